// Mapped memory that is owned: unmapped once.
#pragma once

#include "libmaru/base/result.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <sys/mman.h>
#include <utility>

namespace maru {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      bytes_ = other.bytes_;
    }
    return *this;
  }
  ~Mapping() { reset(); }

  // Maps [offset, offset + bytes) of a descriptor, shared. `protection` as for mmap.
  static Result<Mapping> map_shared(int fd, uint64_t offset, size_t bytes, int protection) {
    void* address = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, off_t(offset));
    if (address == MAP_FAILED)
      return failure(errno, "map " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset));
    return Mapping(static_cast<std::byte*>(address), bytes);
  }

  // Takes over memory mapped by the caller.
  Mapping(std::byte* address, size_t bytes) : address_(address), bytes_(bytes) {}

  std::byte* data() const { return address_; }
  size_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {address_, bytes_}; }
  bool is_mapped() const { return address_ != nullptr; }
  void reset() {
    if (address_) ::munmap(address_, bytes_);
    address_ = nullptr;
  }

 private:
  std::byte* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace maru
