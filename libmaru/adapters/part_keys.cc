#include "libmaru/adapters/part_keys.h"

#define XXH_INLINE_ALL
#include <algorithm>
#include <cstring>
#include <xxhash.h>

namespace maru::adapters {
namespace {

// The facts that a key depends on. The version changes with the placement or the manifest.
struct KeyText {
  uint64_t version;
  uint64_t device, inode, file_bytes, modified_ns, headers_hash;
  uint64_t part_bytes;
  uint8_t checksum[16];  // of the weights; zeros where the file was not read when it was loaded
  uint32_t form, part;
};
static_assert(std::has_unique_object_representations_v<KeyText>);
constexpr uint64_t kPlacementVersion = 2;
constexpr uint64_t kPartsMax = 1u << 20;

}  // namespace

PartDigest part_digest(const Entry& entry, Form form, uint64_t part_bytes, uint32_t part) {
  KeyText text = {kPlacementVersion,  entry.device, entry.inode, entry.file_bytes, entry.modified_ns,
                  entry.headers_hash, part_bytes,   {},          index_of(form),   part};
  if (entry.is_checked == 1) std::memcpy(text.checksum, entry.checksum, sizeof(text.checksum));
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(&text, sizeof(text)));
  PartDigest digest;
  std::memcpy(digest.data(), canonical.digest, sizeof(canonical.digest));
  return digest;
}

PartKeys::PartKeys(const Entry& entry, Form form, uint64_t part_bytes) {
  const uint64_t count = std::min<uint64_t>(entry.form_parts[index_of(form)], kPartsMax);
  digests_.reserve(count), keys_.reserve(count);
  for (uint32_t part = 0; part < count; ++part) {
    digests_.push_back(part_digest(entry, form, part_bytes, part));
    keys_.push_back({digests_[part].data(), 16, MARU_KEY_DIGEST128, 0});
  }
}

}  // namespace maru::adapters
