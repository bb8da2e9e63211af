// The one source of chance in a schedule: everything that a seed decides comes from here, in a fixed order.
#pragma once

#include <cstdint>

namespace maru::sim {

class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}

  // SplitMix64: one addition and two multiplications, and neighbouring seeds give unrelated sequences.
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // 0 .. bound - 1; bound is not 0. The bias of the multiplication is far below what a schedule could notice.
  uint32_t below(uint32_t bound) { return uint32_t(((next() >> 32) * bound) >> 32); }
  bool chance(uint32_t one_in) { return below(one_in) == 0; }
  // Between 1 and 2^bits, every magnitude equally likely: early and late moments both get their share.
  uint32_t magnitude(uint32_t bits) { return 1 + below(1u << (1 + below(bits))); }

 private:
  uint64_t state_;
};

}  // namespace maru::sim
