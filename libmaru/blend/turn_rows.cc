#include "libmaru/blend/turn_rows.h"

#include "libmaru/blend/half.h"
#include "libmaru/blend/turn_rows_x86.h"
#include "maru/rope.h"

#include <cstring>

namespace maru::blend {
namespace {

struct Float16 {
  using Bits = uint16_t;
  static double read(Bits bits) { return double_of_float16(bits); }
  static Bits write(double value) { return float16_of(value); }
};
struct Bfloat16 {
  using Bits = uint16_t;
  static double read(Bits bits) { return double_of_bfloat16(bits); }
  static Bits write(double value) { return bfloat16_of(value); }
};
struct Float32 {
  using Bits = float;
  static double read(Bits value) { return double(value); }
  static Bits write(double value) { return float(value); }
};

// The reference: each pair in double precision, rounded once.
template <typename Dtype>
void turn_plain(const TurnedRows& rows, const Angles& angles) {
  using Bits = typename Dtype::Bits;
  const size_t distance = angles.is_interleaved ? 1 : angles.pairs, step = angles.is_interleaved ? 2 : 1;
  for (uint64_t row = 0; row < rows.rows; ++row) {
    const std::byte* const from = rows.from + row * rows.from_stride;
    std::byte* const to = rows.to + row * rows.to_stride;
    for (size_t i = 0; i < angles.pairs; ++i) {
      const size_t first = i * step * sizeof(Bits), second = first + distance * sizeof(Bits);
      Bits a, b;
      std::memcpy(&a, from + first, sizeof(a));
      std::memcpy(&b, from + second, sizeof(b));
      // Of interleaved pairs the odd element's sine has the sign of the pair's.
      const double cos = double(angles.cos[i * step]), sin = double(angles.sin[i * step + (step - 1)]);
      const double x = Dtype::read(a), y = Dtype::read(b);
      a = Dtype::write(x * cos - y * sin);
      b = Dtype::write(x * sin + y * cos);
      std::memcpy(to + first, &a, sizeof(a));
      std::memcpy(to + second, &b, sizeof(b));
    }
  }
}

TurnWay plain_way(uint32_t dtype) {
  switch (dtype) {
    case MARU_ROPE_FLOAT16: return turn_plain<Float16>;
    case MARU_ROPE_BFLOAT16: return turn_plain<Bfloat16>;
    default: return turn_plain<Float32>;
  }
}

}  // namespace

TurnWay turn_way(Way way, uint32_t dtype) {
  switch (way) {
    case Way::kPlain: return plain_way(dtype);
    case Way::kAvx2: return avx2_turn_way(dtype);
    case Way::kAvx512: return avx512_turn_way(dtype);
  }
  return nullptr;
}

TurnWay best_turn_way(uint32_t dtype) {
  if (const TurnWay turn = avx512_turn_way(dtype)) return turn;
  if (const TurnWay turn = avx2_turn_way(dtype)) return turn;
  return plain_way(dtype);
}

}  // namespace maru::blend
