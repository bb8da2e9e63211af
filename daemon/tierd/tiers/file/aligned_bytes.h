// Memory that a device can read and write without a copy: whole blocks, at a multiple of a block, zeroed.
#pragma once

#include "daemon/tierd/tiers/file/log_format.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>

namespace maru::tierd {

class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(uint64_t bytes) : bytes_(in_blocks(bytes)) {
    if (bytes_ == 0) return;
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
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  uint64_t bytes_ = 0;
};

}  // namespace maru::tierd
