// Turns the pairs of heads, in several ways: one for each kind of processor, of which the best that is there is used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maru::blend {

// Heads at constant distances, all turned by the same angles.
struct TurnedRows {
  const std::byte* from;
  std::byte* to;
  uint64_t rows;
  uint64_t from_stride, to_stride;  // bytes from one head to the next
};

// For each pair its cosine and sine; and the same for each element of interleaved pairs, where the sine of the even element is
// negative.
struct Angles {
  uint32_t pairs;
  bool is_interleaved;  // pairs are neighbours, otherwise halves
  const float* cos;     // as many as pairs, or as elements where they are interleaved
  const float* sin;
};

using TurnWay = void (*)(const TurnedRows& rows, const Angles& angles);

enum class Way : uint32_t { kPlain, kAvx2, kAvx512 };
inline constexpr uint32_t kWays = 3;

// For a dtype of maru/rope.h. Null where this processor lacks an instruction of the way.
TurnWay turn_way(Way way, uint32_t dtype);
// The best of them.
TurnWay best_turn_way(uint32_t dtype);

}  // namespace maru::blend
