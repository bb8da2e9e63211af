// The keys of a form's parts. They follow from the file's identity, and from the checksum of its weights where loading has read
// them. A file that was written anew has other blocks. Two names for one file have the same, unless one was loaded lazily.
#pragma once

#include "libmaru/adapters/register_format.h"

#include <array>
#include <cstddef>
#include <maru/maru.h>
#include <vector>

namespace maru::adapters {

using PartDigest = std::array<uint8_t, 16>;
PartDigest part_digest(const Entry& entry, Form form, uint64_t part_bytes, uint32_t part);

class PartKeys {
 public:
  PartKeys(const Entry& entry, Form form, uint64_t part_bytes);
  PartKeys(const PartKeys&) = delete;
  PartKeys& operator=(const PartKeys&) = delete;
  size_t size() const { return keys_.size(); }
  const maru_key* data() const { return keys_.data(); }
  const maru_key& operator[](size_t at) const { return keys_[at]; }

 private:
  std::vector<PartDigest> digests_;
  std::vector<maru_key> keys_;
};

}  // namespace maru::adapters
