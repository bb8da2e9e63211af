#include "libmaru/adapters/bgmv_kernels.h"
#include "libmaru/adapters/weights.h"

namespace maru::adapters {
namespace {

void shrink(const std::byte* const* rows, Element element, uint64_t columns, const float* const* inputs,
            unsigned requests, float* sums) {
  for (unsigned request = 0; request < requests; ++request)
    for (unsigned row = 0; row < kRowsAtOnce; ++row) {
      float sum = 0;
      for (uint64_t at = 0; at < columns; ++at) sum += weight_of(rows[row], element, at) * inputs[request][at];
      sums[request * kRowsAtOnce + row] = sum;
    }
}

void expand(const std::byte* const* rows, Element element, uint64_t first, uint64_t count, const float* factors,
            float* const* outputs, unsigned requests) {
  for (unsigned request = 0; request < requests; ++request)
    for (uint64_t at = first; at < first + count; ++at) {
      float sum = outputs[request][at];
      for (unsigned row = 0; row < kRowsAtOnce; ++row)
        sum += factors[request * kRowsAtOnce + row] * weight_of(rows[row], element, at);
      outputs[request][at] = sum;
    }
}

}  // namespace

float weight_of(const std::byte* row, Element element, uint64_t at) {
  return element == Element::kInt8 ? float(int8_t(row[at])) : weight_at(row, element, at);
}

const BgmvKernels& plain_kernels() {
  static constexpr BgmvKernels kKernels = {4, shrink, expand};
  return kKernels;
}

}  // namespace maru::adapters
