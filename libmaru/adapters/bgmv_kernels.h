// The two inner loops of a batched matrix-vector product, one pair for each kind of processor.
//
// An adapter adds B (A x). With rank rows of A and of B transposed both steps read whole rows. The first takes the product of a
// row of A and an input ("shrink"). The second adds a row of B, times that number, to an output ("expand"). Four rows and some
// requests go through registers together: a weight is converted once for all these requests, and an output is read and written
// once for four rows.
#pragma once

#include "libmaru/adapters/tensor_list.h"

namespace maru::adapters {

inline constexpr unsigned kRowsAtOnce = 4;

struct BgmvKernels {
  unsigned requests_at_once;  // 4 at most
  // sums[request * 4 + row] = the product of the row and the input, over all columns; INT8 weights without their scale.
  void (*shrink)(const std::byte* const* rows, Element element, uint64_t columns, const float* const* inputs,
                 unsigned requests, float* sums);
  // outputs[request][c] += factors[request * 4 + row] * rows[row][c] for `count` columns from `first` on.
  void (*expand)(const std::byte* const* rows, Element element, uint64_t first, uint64_t count, const float* factors,
                 float* const* outputs, unsigned requests);
};

const BgmvKernels& plain_kernels();
// Null where the processor has not the instructions.
const BgmvKernels* avx2_kernels();
const BgmvKernels* avx512_kernels();

// For all kernels: the weights behind the last whole vector.
float weight_of(const std::byte* row, Element element, uint64_t at);

}  // namespace maru::adapters
