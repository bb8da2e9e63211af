// The keys of every row: 128-bit digests made from an index, so that all contestants hold and ask for the same ones
// and no table of 10 M keys is dragged through the caches that are being measured.
#pragma once

#include "maru/maru.h"

#include <cstdint>

namespace maru::bench {

struct Key {
  uint64_t lo;
  uint64_t hi;
};

// Blocks of one chain have consecutive indices.
inline constexpr uint64_t kChainBlocks = 256;

// Spaces keep the keys of different purposes apart.
inline constexpr uint64_t kSpaceContent = 0;
inline constexpr uint64_t kSpaceStoring = 1ull << 40;  // the process that stores meanwhile
inline constexpr uint64_t kSpaceRow = 2ull << 40;      // what a row stores and deletes itself

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

inline Key key_of(uint64_t index) {
  const uint64_t lo = mix((index + 1) * 0x9e3779b97f4a7c15ull);
  return {lo, mix(lo ^ 0xd1b54a32d192ed03ull)};
}

inline maru_key as_maru_key(const Key& key) { return {&key, sizeof(Key), MARU_KEY_DIGEST128, 0}; }

// A generator that is a single addition and a mix, so that preparing a sample costs little.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() { return mix(state_ += 0x9e3779b97f4a7c15ull); }
  // Bounds are below 2^32.
  uint64_t below(uint64_t bound) { return ((next() >> 32) * bound) >> 32; }

 private:
  uint64_t state_;
};

}  // namespace maru::bench
