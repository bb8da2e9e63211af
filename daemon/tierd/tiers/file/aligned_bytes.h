// Memory that a device can read and write without a copy: whole blocks, at a multiple of a block, zeroed.
#pragma once

#include "daemon/tierd/tiers/file/log_format.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <sys/mman.h>

namespace maru::tierd {

class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(uint64_t bytes) : bytes_(in_blocks(bytes)) {
    if (bytes_ == 0) return;
    if (bytes_ >= kMappedBytesMin) {
      // The kernel zeroes its pages once, when they are first used. Pages of 2 MiB are not asked for: where memory is in
      // pieces the kernel takes longer to make them than a device to fill them.
      void* const mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (mapped == MAP_FAILED) throw std::bad_alloc();
      data_ = {static_cast<std::byte*>(mapped), Free{bytes_}};
      return;
    }
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kLogBlock, bytes_)));
    if (!data_) throw std::bad_alloc();
    std::memset(data_.get(), 0, bytes_);
  }
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  uint64_t size() const { return bytes_; }
  std::span<std::byte> all() { return {data_.get(), bytes_}; }
  std::span<const std::byte> all() const { return {data_.get(), bytes_}; }

 private:
  static constexpr uint64_t kMappedBytesMin = 4u << 20;
  struct Free {
    uint64_t mapped_bytes;  // 0, as in an empty pointer: it is the heap's
    void operator()(std::byte* data) const { mapped_bytes > 0 ? void(::munmap(data, mapped_bytes)) : std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  uint64_t bytes_ = 0;
};

}  // namespace maru::tierd
