// The place of a block's metadata: behind the payload, in the pages of the block's own run. docs/format.md, "Metadata of a
// block". The functions here find the place; a caller that has the pages mapped copies the bytes.
//
// Thread safety: any. The words are another process's, so they are checked against the run.
#pragma once

#include "libmaru/shm/region/control_region.h"

#include <cstdint>

namespace maru::shm {

struct MetadataPlace {
  uint64_t offset = 0;  // from the first byte of the block's first page
  uint64_t bytes = 0;   // 0: none
  bool fits = true;     // false: more than metadata may have, or than the run holds, and `bytes` is 0

  uint64_t end() const { return offset + bytes; }
  friend constexpr bool operator==(const MetadataPlace&, const MetadataPlace&) = default;
};

// Of metadata of so many bytes behind a payload, in a run of `run_bytes`.
inline MetadataPlace metadata_place(uint64_t payload_bytes, uint64_t metadata_bytes, uint64_t run_bytes) {
  const uint64_t offset = format::metadata_offset(payload_bytes);
  if (metadata_bytes == 0) return {offset, 0, true};
  const bool fits =
      metadata_bytes <= limits::kMetadataBytesMax && offset <= run_bytes && metadata_bytes <= run_bytes - offset;
  return {offset, fits ? metadata_bytes : 0, fits};
}

// The bytes of a run that both take, from the beginning of the payload on.
inline uint64_t bytes_with_metadata(uint64_t payload_bytes, uint64_t metadata_bytes) {
  // A size that is too long for a block stays so.
  const bool has_none = metadata_bytes == 0 || payload_bytes > limits::kPoolBytesMax;
  return has_none ? payload_bytes : format::metadata_offset(payload_bytes) + metadata_bytes;
}

// The place of a block's metadata, by its line: the caller holds the block, or looks at the page word again.
inline MetadataPlace metadata_of(const ControlRegion& region, uint32_t page) {
  const uint64_t length = region.block(page).length.load_acquire();  // before the word is read again: [pairs page.word]
  const uint64_t metadata_bytes = format::metadata_bytes_of(length);
  if (metadata_bytes == 0) return {};
  return metadata_place(format::payload_bytes_of(length), metadata_bytes, region.run_pages(page) * region.page_bytes());
}

}  // namespace maru::shm
