// Mapped memory that is owned: unmapped once.
//
// A pool has holes, parts that nothing has used: they take no memory until a process reads them. Mapping a pool reads none:
//
// * A core dump reads all that is mapped. It leaves pools out, unless the environment asks for them.
// * After mlockall(2) with MCL_FUTURE the kernel reads each new mapping that may be read. So a pool is mapped without that
//   right. It gets its rights when the lock is taken off.
#pragma once

#include "libmaru/base/result.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace maru {

// $MARU_DUMP_POOLS is 1: core dumps hold the memory of pools.
inline bool dumps_pools() {
  const char* wish = std::getenv("MARU_DUMP_POOLS");
  return wish && std::strcmp(wish, "1") == 0;
}

inline void leave_out_of_dumps(void* address, size_t bytes) {
  if (!dumps_pools()) ::madvise(address, bytes, MADV_DONTDUMP);
}

// mmap(2) of memory that is not locked, and that nothing reads before this returns. On a failure with MAP_FIXED the address is
// free, or its memory has no rights. A handler of a signal may call this.
inline void* map_untouched(void* place, size_t bytes, int protection, int flags, int fd, off_t offset) {
  void* address = ::mmap(place, bytes, PROT_NONE, flags, fd, offset);
  if (address == MAP_FAILED) return address;
  (void)::munlock(address, bytes);  // a filter of system calls may refuse it: hardly any process locks its mappings
  if (protection == PROT_NONE || ::mprotect(address, bytes, protection) == 0) return address;
  const int code = errno;
  if ((flags & MAP_FIXED) == 0) ::munmap(address, bytes);
  errno = code;
  return MAP_FAILED;
}

// Replaces these mappings by private, zeroed memory, in one step for all threads. A handler of a signal may call this.
inline bool map_zeros_over(void* place, size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* zeros = map_untouched(nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (zeros != MAP_FAILED) {
    if (::mremap(zeros, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place) != MAP_FAILED) return true;
    ::munmap(zeros, bytes);
  }
  // The process has not so many addresses more. After mlockall(2) this takes memory for all of it.
  return ::mmap(place, bytes, PROT_READ | PROT_WRITE, kFlags | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// The error of a mapping that failed with this errno. ENOLCK: the process locks all that it maps, and is at its limit for that.
// The kernel says EAGAIN, which has other meanings here.
inline tl::unexpected<Error> mapping_failure(int code, const std::string& doing) {
  if (code != EAGAIN) return failure(code, doing);
  return failure(ENOLCK, doing +
                             ": this process locks all memory that it maps, mlockall(2) with MCL_FUTURE, and "
                             "RLIMIT_MEMLOCK does not let it lock so much; raise that limit, or map before locking");
}

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
    void* address = map_untouched(nullptr, bytes, protection, MAP_SHARED, fd, off_t(offset));
    if (address == MAP_FAILED)
      return mapping_failure(errno, "map " + std::to_string(bytes) + " bytes at offset " + std::to_string(offset));
    leave_out_of_dumps(address, bytes);
    return Mapping(static_cast<std::byte*>(address), bytes);
  }

  // The same from the start of the descriptor, at an address that a huge page can begin at: at other addresses the kernel
  // cannot use huge pages with any memory. `alignment`: the device's demand on `bytes`, and on the address.
  static Result<Mapping> map_shared_aligned(int fd, size_t bytes, int protection, uint64_t alignment) {
    constexpr uint64_t kHugePage = 2ull << 20;
    const uint64_t step = alignment > kHugePage ? alignment : kHugePage;
    const size_t reserve_bytes = bytes + step;
    void* reserved = ::mmap(nullptr, reserve_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED)
      return mapping_failure(errno, "reserve " + std::to_string(reserve_bytes) + " bytes of addresses");
    auto* start = static_cast<std::byte*>(reserved);
    const uint64_t place = reinterpret_cast<uint64_t>(reserved);
    const size_t before = size_t((step - place % step) % step);
    void* address = map_untouched(start + before, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    const int code = errno;
    if (address == MAP_FAILED) {
      ::munmap(reserved, reserve_bytes);
      return mapping_failure(code, "map " + std::to_string(bytes) + " bytes");
    }
    leave_out_of_dumps(address, bytes);
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
  // Leaves the addresses to their present content: in a child of fork() that has not inherited the memory.
  void forget() { address_ = nullptr; }

 private:
  std::byte* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace maru
