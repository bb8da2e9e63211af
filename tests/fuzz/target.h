// What a fuzz target is: one entry point that takes any bytes, and inputs to begin with. libFuzzer drives it when the build
// has `-Dfuzz=true` (clang); runner.cc drives the same entry point in every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace maru::fuzz {

using Input = std::vector<uint8_t>;

// Well-formed inputs, from which mutations reach further than from nothing.
std::vector<Input> first_inputs();

// What must hold whatever the input was.
inline void must(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz target: %s\n", what);
  std::abort();
}

// Takes an input apart, from the front. Gives zeros at its end.
class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool is_over() const { return at_ >= size_; }
  size_t left() const { return size_ - at_; }
  uint64_t number(unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; ++i) value |= uint64_t(at_ < size_ ? data_[at_++] : 0) << (8 * i);
    return value;
  }
  // At most `size` bytes.
  std::vector<uint8_t> bytes(size_t size) {
    const size_t count = size < left() ? size : left();
    std::vector<uint8_t> taken(data_ + at_, data_ + at_ + count);
    at_ += count;
    return taken;
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

class Writer {
 public:
  Writer& number(uint64_t value, unsigned bytes) {
    for (unsigned i = 0; i < bytes; ++i, value >>= 8) input_.push_back(uint8_t(value));
    return *this;
  }
  template <typename Bytes>
  Writer& bytes(const Bytes& bytes) {
    for (const auto byte : bytes) input_.push_back(uint8_t(byte));
    return *this;
  }
  Input take() { return std::move(input_); }

 private:
  Input input_;
};

}  // namespace maru::fuzz
