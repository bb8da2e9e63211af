#include "daemon/tierd/attributes.h"

#include <array>
#include <cstring>
#include <type_traits>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::tierd {

namespace {

constexpr std::array<char, 4> kMagic = {'M', 'A', 'T', 'R'};
constexpr uint32_t kVersion = 1;

// Followed by the parent's key and the metadata.
struct Fixed {
  std::array<char, 4> magic;
  uint32_t version;
  uint64_t checksum;  // of the key, and of all that follows this field
  uint64_t payload_bytes;
  uint64_t payload_checksum;
  uint64_t expires_ms;
  uint32_t priority;
  uint32_t content_type;
  uint32_t parent_bytes;
  uint32_t metadata_bytes;
};
static_assert(sizeof(Fixed) == 56 && std::has_unique_object_representations_v<Fixed>);
constexpr size_t kSummedFrom = offsetof(Fixed, payload_bytes);

uint64_t sum(std::string_view bytes, std::string_view key) {
  return XXH3_64bits_withSeed(bytes.data() + kSummedFrom, bytes.size() - kSummedFrom,
                              XXH3_64bits(key.data(), key.size()));
}

}  // namespace

std::string encode_attributes(const Attributes& attributes, std::string_view entry_key) {
  Fixed fixed = {kMagic,
                 kVersion,
                 0,
                 attributes.payload_bytes,
                 attributes.payload_checksum,
                 attributes.expires_ms,
                 attributes.priority,
                 attributes.content_type,
                 uint32_t(attributes.parent.size()),
                 uint32_t(attributes.metadata.size())};
  std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof fixed);
  bytes += attributes.parent;
  bytes += attributes.metadata;
  fixed.checksum = sum(bytes, entry_key);
  std::memcpy(bytes.data(), &fixed, sizeof fixed);
  return bytes;
}

std::optional<Attributes> decode_attributes(std::string_view bytes, std::string_view entry_key) {
  Fixed fixed;
  if (bytes.size() < sizeof fixed) return std::nullopt;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.magic != kMagic || fixed.version != kVersion || fixed.checksum != sum(bytes, entry_key))
    return std::nullopt;
  if (sizeof fixed + uint64_t(fixed.parent_bytes) + fixed.metadata_bytes != bytes.size()) return std::nullopt;
  return Attributes{fixed.payload_bytes,
                    fixed.payload_checksum,
                    fixed.expires_ms,
                    fixed.priority,
                    fixed.content_type,
                    std::string(bytes.substr(sizeof fixed, fixed.parent_bytes)),
                    std::string(bytes.substr(sizeof fixed + fixed.parent_bytes))};
}

uint64_t payload_checksum(const void* data, uint64_t bytes) { return XXH3_64bits(data, bytes); }

uint64_t note_of(const Attributes& attributes) {
  const uint64_t digest = XXH3_64bits_withSeed(attributes.metadata.data(), attributes.metadata.size(),
                                               attributes.payload_checksum ^ attributes.expires_ms);
  const uint64_t more = XXH3_64bits_withSeed(attributes.parent.data(), attributes.parent.size(), digest);
  return more << 17 | attributes.metadata.size();
}

}  // namespace maru::tierd
