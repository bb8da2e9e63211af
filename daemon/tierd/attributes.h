// The attributes that a tier keeps beside a block's payload, and the proof of both. The checksums are maru-tierd's own. A tier
// or its device may change bytes, or take one entry for another: a load that does not verify is a miss.
#pragma once

#include "maru/maru.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace maru::tierd {

struct Attributes {
  uint64_t payload_bytes = 0;
  uint64_t payload_checksum = 0;
  uint64_t expires_ms = 0;  // Unix milliseconds, 0: never
  uint32_t priority = 0;
  uint32_t content_type = 0;
  std::string parent;  // an entry_key(); empty: a root
  std::string metadata;
};

std::string encode_attributes(const Attributes& attributes, std::string_view entry_key);
// Nothing: they are not whole, or another key's.
std::optional<Attributes> decode_attributes(std::string_view bytes, std::string_view entry_key);

uint64_t payload_checksum(const void* data, uint64_t bytes);

// The note of an entry: the length of its metadata, which a load must know before it allocates, and 47 bits of a digest of all
// stored bytes, which identifies the same block when it is stored again.
uint64_t note_of(const Attributes& attributes);
inline uint32_t metadata_bytes_of(uint64_t note) { return uint32_t(note & 0x1ffff); }
static_assert(MARU_METADATA_BYTES_MAX <= 0x1ffff);

}  // namespace maru::tierd
