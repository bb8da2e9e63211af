// Random numbers that a seed repeats, and where the seed comes from.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace maru::test {

// splitmix64 (Steele, Lea, Flood 2014): every seed is a good one.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e37'79b9'7f4a'7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebull;
    return z ^ (z >> 31);
  }
  // 0 to n - 1.
  uint64_t below(uint64_t n) { return next() % n; }
  bool one_in(uint64_t n) { return below(n) == 0; }

 private:
  uint64_t state_;
};

inline uint64_t number_from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 0) : otherwise;
}

// $MARU_SEED, or another one every time. Whoever takes it prints it.
inline uint64_t fresh_seed() {
  std::random_device device;
  return number_from_environment("MARU_SEED", uint64_t(device()) << 32 | device());
}

}  // namespace maru::test
