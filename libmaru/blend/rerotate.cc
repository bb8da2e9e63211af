#include "libmaru/blend/rerotate.h"

#include "libmaru/blend/frequencies.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>

namespace maru::blend {
namespace {

uint64_t element_bytes(uint32_t dtype) { return dtype == MARU_ROPE_FLOAT32 ? 4 : 2; }

// From one number to the next.
struct Strides {
  uint64_t layer, token, head;
};
Strides strides_from(const maru_rerotation& keys) {
  return {keys.from_layer_stride, keys.from_token_stride, keys.from_head_stride};
}
Strides strides_to(const maru_rerotation& keys) {
  return {keys.to_layer_stride, keys.to_token_stride, keys.to_head_stride};
}

// Whether the address of the last byte can be computed.
bool fits(const maru_rerotation& keys, const void* base, const Strides& strides, uint64_t head_bytes) {
  uint64_t end = reinterpret_cast<uintptr_t>(base);
  const uint64_t steps[][2] = {{keys.layers - 1, strides.layer},
                               {keys.tokens - 1, strides.token},
                               {keys.heads - 1, strides.head},
                               {1, head_bytes}};
  for (const auto& [count, stride] : steps) {
    uint64_t reach = 0;
    if (__builtin_mul_overflow(count, stride, &reach) || __builtin_add_overflow(end, reach, &end)) return false;
  }
  return end <= INT64_MAX;
}

int check_keys(const maru_rope& rope, const maru_rerotation& keys, maru_rope_reason* reason) {
  if (keys.size != sizeof(keys))
    return refuse(reason, EINVAL, "size is %zu, expected sizeof(maru_rerotation), %zu", keys.size, sizeof(keys));
  if (keys.dtype < MARU_ROPE_FLOAT16 || keys.dtype > MARU_ROPE_FLOAT32)
    return refuse(reason, EINVAL, "dtype is %u, expected an enum maru_rope_dtype, 1 to 3", keys.dtype);
  if (keys.reserved0 != 0 || keys.reserved[0] != 0 || keys.reserved[1] != 0)
    return refuse(reason, EINVAL, "a reserved field is not 0");
  if (keys.old_position > MARU_ROPE_POSITION_MAX || keys.new_position > MARU_ROPE_POSITION_MAX)
    return refuse(reason, EINVAL, "the positions are %llu and %llu, expected at most 2^40", ull(keys.old_position),
                  ull(keys.new_position));
  if (keys.layers == 0 || keys.tokens == 0 || keys.heads == 0) return 0;
  if (keys.from == nullptr || keys.to == nullptr) return refuse(reason, EINVAL, "from or to is NULL");
  const uint64_t element = element_bytes(keys.dtype), head_bytes = element * rope.head_dim;
  for (const Strides& strides : {strides_from(keys), strides_to(keys)})
    if (strides.layer % element != 0 || strides.token % element != 0 || strides.head % element != 0)
      return refuse(reason, EINVAL, "a stride is no multiple of an element, %llu bytes", ull(element));
  if (!fits(keys, keys.from, strides_from(keys), head_bytes) || !fits(keys, keys.to, strides_to(keys), head_bytes))
    return refuse(reason, EOVERFLOW, "the keys would reach beyond the address space");
  return 0;
}

// Cosines and sines for the difference of two positions.
class TurnTable {
 public:
  TurnTable(const maru_rope& rope, const maru_rerotation& keys) {
    const uint32_t pairs = pairs_of(rope);
    const size_t entries = rope.pairing == MARU_ROPE_GPTJ ? size_t{pairs} * 2 : pairs;
    double* frequencies = few_frequencies_;
    float* floats = few_floats_;
    if (pairs > kFew) {
      many_frequencies_ = std::make_unique_for_overwrite<double[]>(pairs);
      many_floats_ = std::make_unique_for_overwrite<float[]>(entries * 2);
      frequencies = many_frequencies_.get();
      floats = many_floats_.get();
    }
    frequencies_of(rope, frequencies);
    float* const cos = floats;
    float* const sin = floats + entries;
    const double distance = double(int64_t(keys.new_position) - int64_t(keys.old_position));
    for (uint32_t i = 0; i < pairs; ++i) {
      const double angle = distance * frequencies[i];
      const auto c = float(std::cos(angle)), s = float(std::sin(angle));
      if (rope.pairing == MARU_ROPE_GPTJ) {
        cos[2 * i] = cos[2 * i + 1] = c;
        sin[2 * i] = -s;
        sin[2 * i + 1] = s;
      } else {
        cos[i] = c;
        sin[i] = s;
      }
    }
    angles_ = {pairs, rope.pairing == MARU_ROPE_GPTJ, cos, sin};
  }
  const Angles& angles() const { return angles_; }

 private:
  static constexpr uint32_t kFew = 1024;
  double few_frequencies_[kFew];
  float few_floats_[4 * kFew];
  std::unique_ptr<double[]> many_frequencies_;
  std::unique_ptr<float[]> many_floats_;
  Angles angles_;
};

// The elements behind the rotary dimension, of all heads of a row of heads.
void copy_rest(const TurnedRows& rows, uint64_t rotary_bytes, uint64_t head_bytes) {
  if (rotary_bytes == head_bytes || rows.from == rows.to) return;
  for (uint64_t i = 0; i < rows.rows; ++i)
    std::memcpy(rows.to + i * rows.to_stride + rotary_bytes, rows.from + i * rows.from_stride + rotary_bytes,
                head_bytes - rotary_bytes);
}

}  // namespace

int rerotate(const maru_rope& rope, const maru_rerotation& keys, TurnWay way, maru_rope_reason* reason) {
  if (const int status = check_rope(rope, reason); status != 0) return status;
  if (const int status = check_keys(rope, keys, reason); status != 0) return status;
  const TurnTable table(rope, keys);
  const uint64_t element = element_bytes(keys.dtype), head_bytes = element * rope.head_dim;
  const uint64_t rotary_bytes = element * rotary_dim_of(rope);
  const auto* const from = static_cast<const std::byte*>(keys.from);
  auto* const to = static_cast<std::byte*>(keys.to);
  for (uint64_t layer = 0; layer < keys.layers; ++layer)
    for (uint64_t token = 0; token < keys.tokens; ++token) {
      const TurnedRows rows = {from + layer * keys.from_layer_stride + token * keys.from_token_stride,
                               to + layer * keys.to_layer_stride + token * keys.to_token_stride, keys.heads,
                               keys.from_head_stride, keys.to_head_stride};
      way(rows, table.angles());
      copy_rest(rows, rotary_bytes, head_bytes);
    }
  return 0;
}

}  // namespace maru::blend

int maru_rerotate(const maru_rope* rope, const maru_rerotation* keys, maru_rope_reason* reason) try {
  using namespace maru::blend;
  if (rope == nullptr || keys == nullptr) return refuse(reason, EINVAL, "an argument is NULL");
  return rerotate(*rope, *keys, best_turn_way(keys->dtype), reason);
} catch (const std::bad_alloc&) {
  return -ENOMEM;
}
