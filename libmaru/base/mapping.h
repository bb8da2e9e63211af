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

  // The same from the start of the descriptor, at an address that a huge page can begin at: without that the kernel cannot
  // use huge pages, whatever the memory is made of. `alignment`: what the device demands of `bytes`, and of the address.
  static Result<Mapping> map_shared_aligned(int fd, size_t bytes, int protection, uint64_t alignment) {
    constexpr uint64_t kHugePage = 2ull << 20;
    const uint64_t step = alignment > kHugePage ? alignment : kHugePage;
    const size_t reserve_bytes = bytes + step;
    void* reserved = ::mmap(nullptr, reserve_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
      return failure(errno, "reserve " + std::to_string(reserve_bytes) + " bytes of addresses");
    auto* start = static_cast<std::byte*>(reserved);
    const uint64_t place = reinterpret_cast<uint64_t>(reserved);
    const size_t before = size_t((step - place % step) % step);
    void* address = ::mmap(start + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    const int code = errno;
    if (address == MAP_FAILED) {
      ::munmap(reserved, reserve_bytes);
      return failure(code, "map " + std::to_string(bytes) + " bytes");
    }
    if (before != 0) ::munmap(reserved, before);
    const uint64_t os_page = 4096;
    const size_t end = before + (bytes + os_page - 1) / os_page * os_page;
    if (end < reserve_bytes) ::munmap(start + end, reserve_bytes - end);
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
  // Leaves the addresses to whatever is there now: in a child of fork() that has not inherited the memory.
  void forget() { address_ = nullptr; }

 private:
  std::byte* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace maru
