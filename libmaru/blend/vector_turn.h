// Turning rows with vectors of single precision, for the includer's set of instructions. The includer defines
//
//   MARU_TURN       the attribute of each function that uses these instructions
//   Vector          its type of vector, with kWidth numbers
//   Dtype::load, Dtype::store, Dtype::kBytes   of all numbers of a vector
//   load_floats, multiplied, fused_add, fused_subtract, swapped_neighbours
//
// and then includes this file inside of a namespace. The rest of a row behind its whole vectors goes through a padded copy.

template <typename Dtype>
MARU_TURN inline void turn_halves(const std::byte* from_a, const std::byte* from_b, std::byte* to_a, std::byte* to_b,
                                  const float* cos, const float* sin) {
  const Vector x = Dtype::load(from_a), y = Dtype::load(from_b);
  const Vector c = load_floats(cos), s = load_floats(sin);
  Dtype::store(to_a, fused_subtract(x, c, multiplied(y, s)));
  Dtype::store(to_b, fused_add(x, s, multiplied(y, c)));
}

template <typename Dtype>
MARU_TURN inline void turn_neighbours(const std::byte* from, std::byte* to, const float* cos, const float* sin) {
  const Vector x = Dtype::load(from);
  Dtype::store(to, fused_add(x, load_floats(cos), multiplied(swapped_neighbours(x), load_floats(sin))));
}

// Rows of halves.
template <typename Dtype>
MARU_TURN inline void turn_halved_row(const std::byte* from, std::byte* to, const Angles& angles) {
  const size_t half = angles.pairs * Dtype::kBytes;
  size_t i = 0;
  for (; i + kWidth <= angles.pairs; i += kWidth) {
    const size_t at = i * Dtype::kBytes;
    turn_halves<Dtype>(from + at, from + half + at, to + at, to + half + at, angles.cos + i, angles.sin + i);
  }
  if (i == angles.pairs) return;
  const size_t at = i * Dtype::kBytes, left = angles.pairs - i, bytes = left * Dtype::kBytes;
  alignas(64) std::byte a[kWidth * Dtype::kBytes] = {}, b[kWidth * Dtype::kBytes] = {};
  alignas(64) float cos[kWidth] = {}, sin[kWidth] = {};
  std::memcpy(a, from + at, bytes);
  std::memcpy(b, from + half + at, bytes);
  std::memcpy(cos, angles.cos + i, left * sizeof(float));
  std::memcpy(sin, angles.sin + i, left * sizeof(float));
  turn_halves<Dtype>(a, b, a, b, cos, sin);
  std::memcpy(to + at, a, bytes);
  std::memcpy(to + half + at, b, bytes);
}

// Rows of interleaved pairs.
template <typename Dtype>
MARU_TURN inline void turn_interleaved_row(const std::byte* from, std::byte* to, const Angles& angles) {
  const size_t elements = size_t{angles.pairs} * 2;
  size_t i = 0;
  for (; i + kWidth <= elements; i += kWidth)
    turn_neighbours<Dtype>(from + i * Dtype::kBytes, to + i * Dtype::kBytes, angles.cos + i, angles.sin + i);
  if (i == elements) return;
  const size_t at = i * Dtype::kBytes, left = elements - i, bytes = left * Dtype::kBytes;
  alignas(64) std::byte a[kWidth * Dtype::kBytes] = {};
  alignas(64) float cos[kWidth] = {}, sin[kWidth] = {};
  std::memcpy(a, from + at, bytes);
  std::memcpy(cos, angles.cos + i, left * sizeof(float));
  std::memcpy(sin, angles.sin + i, left * sizeof(float));
  turn_neighbours<Dtype>(a, a, cos, sin);
  std::memcpy(to + at, a, bytes);
}

template <typename Dtype>
MARU_TURN void turn_rows(const TurnedRows& rows, const Angles& angles) {
  for (uint64_t row = 0; row < rows.rows; ++row) {
    const std::byte* const from = rows.from + row * rows.from_stride;
    std::byte* const to = rows.to + row * rows.to_stride;
    if (angles.is_interleaved)
      turn_interleaved_row<Dtype>(from, to, angles);
    else
      turn_halved_row<Dtype>(from, to, angles);
  }
}
