// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012), of one byte string or
// of eight side by side. The rounds of one string depend on each other and leave most of a processor idle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace maru::shm {

struct SipHash {
  uint64_t lo, hi;  // not zeroed: as parts of arrays they would be, just before they are filled
  friend constexpr bool operator==(const SipHash&, const SipHash&) = default;
};

SipHash siphash128(uint64_t key0, uint64_t key1, std::span<const std::byte> input);

inline constexpr size_t kSipLanes = 8;

// Strings of equally many whole words of 8 bytes each; the up to 7 bytes after them may differ in number.
struct SipInputs {
  const std::byte* data[kSipLanes];
  size_t size[kSipLanes];
  size_t count;  // 1 to kSipLanes; the other lanes are not looked at
};

using SipSideBySide = void (*)(uint64_t key0, uint64_t key1, const SipInputs& inputs, SipHash (&ret_hashes)[kSipLanes]);

struct SipWay {
  const char* instructions;
  SipSideBySide hash;
};
// The ways that this processor has, the fastest first.
std::span<const SipWay> siphash128_ways();

inline void siphash128_side_by_side(uint64_t key0, uint64_t key1, const SipInputs& inputs,
                                    SipHash (&ret_hashes)[kSipLanes]) {
  static const SipSideBySide fastest = siphash128_ways().front().hash;
  fastest(key0, key1, inputs, ret_hashes);
}

}  // namespace maru::shm
