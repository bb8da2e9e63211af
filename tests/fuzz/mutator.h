// Changes an input in ways that a seed repeats: bits, bytes, words, numbers that are just at an edge, pieces cut out, doubled
// and taken from another input.
#pragma once

#include "tests/fuzz/target.h"
#include "tests/support/random.h"

#include <algorithm>
#include <cstring>

namespace maru::fuzz {

class Mutator {
 public:
  static constexpr size_t kInputBytesMax = 8192;

  Mutator(std::vector<Input> first, uint64_t seed) : first_(std::move(first)), random_(seed) {
    if (first_.empty()) first_.push_back({});
  }

  Input next() {
    Input input = first_[random_.below(first_.size())];
    for (uint64_t changes = random_.below(8); changes > 0; --changes) change(input);
    if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
    return input;
  }

 private:
  void change(Input& input) {
    static constexpr uint64_t kEdges[] = {0,      1,       2,           0x7F,        0x80,        0xFF,
                                          0x7FFF, 0xFFFF,  0x10000,     0x7FFF'FFFF, 0x8000'0000, 0xFFFF'FFFF,
                                          4096,   1 << 20, 0xFFFF'FFFE, 1ull << 32,  1ull << 63,  ~0ull};
    if (input.empty()) {
      for (uint64_t n = random_.below(64); n > 0; --n) input.push_back(uint8_t(random_.next()));
      return;
    }
    const size_t at = random_.below(input.size());
    const size_t left = input.size() - at;
    switch (random_.below(8)) {
      case 0: input[at] ^= uint8_t(1u << random_.below(8)); break;
      case 1: input[at] = uint8_t(random_.next()); break;
      case 2: {
        const uint64_t value = kEdges[random_.below(std::size(kEdges))];
        std::memcpy(&input[at], &value, std::min<size_t>(left, size_t{1} << random_.below(4)));
        break;
      }
      case 3: {
        const uint64_t value = random_.next();
        std::memcpy(&input[at], &value, std::min<size_t>(left, 8));
        break;
      }
      case 4: input.erase(input.begin() + long(at), input.begin() + long(at + 1 + random_.below(left))); break;
      case 5: input.resize(at); break;
      case 6: {
        const Input piece(input.begin() + long(at), input.begin() + long(at + 1 + random_.below(left)));
        input.insert(input.begin() + long(random_.below(input.size())), piece.begin(), piece.end());
        break;
      }
      case 7: {
        const Input& other = first_[random_.below(first_.size())];
        if (other.empty()) break;
        const size_t from = random_.below(other.size());
        input.insert(input.begin() + long(at), other.begin() + long(from), other.end());
        break;
      }
    }
  }

  std::vector<Input> first_;
  test::Random random_;
};

}  // namespace maru::fuzz
