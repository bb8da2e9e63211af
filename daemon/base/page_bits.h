// One bit for each page of a pool, in memory of marud's own.
#pragma once

#include <cstdint>
#include <vector>

namespace maru::daemon {

class PageBits {
 public:
  void resize(uint64_t pages) { words_.assign((pages + 63) / 64, 0); }
  bool has(uint32_t page) const { return (words_[page / 64] >> page % 64 & 1) != 0; }
  void add(uint32_t page) { words_[page / 64] |= 1ull << page % 64; }
  void remove(uint32_t page) { words_[page / 64] &= ~(1ull << page % 64); }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace maru::daemon
