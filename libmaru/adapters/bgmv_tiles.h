// The loops of bgmv_kernels.h with vectors of floats, for the includer's set of instructions. The includer defines
//
//   MARU_TARGET      the attribute of each function that uses these instructions; a lambda would have none of them
//   Vector           its type of vector, with kLanes floats
//   kRequestsAtOnce  the number of requests whose sums fit into registers
//   load<kElement>(row, at)   the weights of a row as floats; INT8 without their scale
//   zeros, repeated, load_floats, store_floats, fused_add, sum_of
//
// and then includes this file inside of a namespace.

template <Element kElement, unsigned kRequests>
MARU_TARGET void shrink_tile(const std::byte* const* rows, uint64_t columns, const float* const* inputs, float* sums) {
  Vector totals[kRequests][kRowsAtOnce];
#pragma GCC unroll 4
  for (unsigned request = 0; request < kRequests; ++request)
#pragma GCC unroll 4
    for (unsigned row = 0; row < kRowsAtOnce; ++row) totals[request][row] = zeros();
  uint64_t at = 0;
  for (; at + kLanes <= columns; at += kLanes) {
    Vector weights[kRowsAtOnce];
#pragma GCC unroll 4
    for (unsigned row = 0; row < kRowsAtOnce; ++row) weights[row] = load<kElement>(rows[row], at);
#pragma GCC unroll 4
    for (unsigned request = 0; request < kRequests; ++request) {
      const Vector input = load_floats(inputs[request] + at);
#pragma GCC unroll 4
      for (unsigned row = 0; row < kRowsAtOnce; ++row)
        totals[request][row] = fused_add(weights[row], input, totals[request][row]);
    }
  }
#pragma GCC unroll 4
  for (unsigned request = 0; request < kRequests; ++request)
#pragma GCC unroll 4
    for (unsigned row = 0; row < kRowsAtOnce; ++row) {
      float sum = sum_of(totals[request][row]);
      for (uint64_t rest = at; rest < columns; ++rest)
        sum += weight_of(rows[row], kElement, rest) * inputs[request][rest];
      sums[request * kRowsAtOnce + row] = sum;
    }
}

template <Element kElement, unsigned kRequests>
MARU_TARGET void expand_tile(const std::byte* const* rows, uint64_t first, uint64_t count, const float* factors,
                             float* const* outputs) {
  const uint64_t end = first + count;
  uint64_t at = first;
  for (; at + kLanes <= end; at += kLanes) {
    Vector weights[kRowsAtOnce];
#pragma GCC unroll 4
    for (unsigned row = 0; row < kRowsAtOnce; ++row) weights[row] = load<kElement>(rows[row], at);
#pragma GCC unroll 4
    for (unsigned request = 0; request < kRequests; ++request) {
      Vector output = load_floats(outputs[request] + at);
#pragma GCC unroll 4
      for (unsigned row = 0; row < kRowsAtOnce; ++row)
        output = fused_add(repeated(factors[request * kRowsAtOnce + row]), weights[row], output);
      store_floats(outputs[request] + at, output);
    }
  }
  for (; at < end; ++at)
    for (unsigned request = 0; request < kRequests; ++request)
      for (unsigned row = 0; row < kRowsAtOnce; ++row)
        outputs[request][at] += factors[request * kRowsAtOnce + row] * weight_of(rows[row], kElement, at);
}

// The tile for as many requests as there are.
template <Element kElement, unsigned kRequests = kRequestsAtOnce>
void shrink_of(const std::byte* const* rows, uint64_t columns, const float* const* inputs, unsigned requests,
               float* sums) {
  if (requests == kRequests) return shrink_tile<kElement, kRequests>(rows, columns, inputs, sums);
  if constexpr (kRequests > 1) shrink_of<kElement, kRequests - 1>(rows, columns, inputs, requests, sums);
}
template <Element kElement, unsigned kRequests = kRequestsAtOnce>
void expand_of(const std::byte* const* rows, uint64_t first, uint64_t count, const float* factors,
               float* const* outputs, unsigned requests) {
  if (requests == kRequests) return expand_tile<kElement, kRequests>(rows, first, count, factors, outputs);
  if constexpr (kRequests > 1) expand_of<kElement, kRequests - 1>(rows, first, count, factors, outputs, requests);
}

void shrink(const std::byte* const* rows, Element element, uint64_t columns, const float* const* inputs,
            unsigned requests, float* sums) {
  switch (element) {
    case Element::kFloat32: return shrink_of<Element::kFloat32>(rows, columns, inputs, requests, sums);
    case Element::kFloat16: return shrink_of<Element::kFloat16>(rows, columns, inputs, requests, sums);
    case Element::kBfloat16: return shrink_of<Element::kBfloat16>(rows, columns, inputs, requests, sums);
    case Element::kInt8: return shrink_of<Element::kInt8>(rows, columns, inputs, requests, sums);
  }
}

void expand(const std::byte* const* rows, Element element, uint64_t first, uint64_t count, const float* factors,
            float* const* outputs, unsigned requests) {
  switch (element) {
    case Element::kFloat32: return expand_of<Element::kFloat32>(rows, first, count, factors, outputs, requests);
    case Element::kFloat16: return expand_of<Element::kFloat16>(rows, first, count, factors, outputs, requests);
    case Element::kBfloat16: return expand_of<Element::kBfloat16>(rows, first, count, factors, outputs, requests);
    case Element::kInt8: return expand_of<Element::kInt8>(rows, first, count, factors, outputs, requests);
  }
}
