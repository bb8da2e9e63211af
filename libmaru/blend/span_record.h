// The metadata of a chunk's block: the tokens that its key is made of, and their position when they were computed.
//
//   header | window tokens, 4 bytes each | note
//
// Little-endian, as the pool. A reader copies the header once and checks it; the tokens it compares where they lie.
#pragma once

#include "maru/spans.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace maru::blend {

using Fingerprint = std::array<uint8_t, 16>;

struct RecordHeader {
  uint32_t magic;
  uint32_t window;        // tokens
  uint64_t position;      // of the first token, where the chunk was computed
  uint64_t tenant;        // of the key: two tenants' keys could have one digest
  Fingerprint space;      // of the space's name
  uint32_t chain_blocks;  // 0: the payload is the chunk. Otherwise so many blocks are: the parent, and those above it
  uint32_t note_bytes;
};
static_assert(sizeof(RecordHeader) == 48 && std::has_unique_object_representations_v<RecordHeader>);

inline constexpr uint32_t kRecordMagic = 0x314E5053;  // "SPN1"

constexpr uint32_t record_bytes(uint32_t window, uint32_t note_bytes) {
  return uint32_t(sizeof(RecordHeader)) + window * 4 + note_bytes;
}
static_assert(record_bytes(MARU_SPAN_WINDOW_MAX, MARU_SPAN_NOTE_BYTES_MAX) <= MARU_METADATA_BYTES_MAX);

// Into record_bytes() bytes.
inline void write_record(const RecordHeader& header, const uint32_t* tokens, const void* note, std::byte* ret_bytes) {
  std::memcpy(ret_bytes, &header, sizeof(header));
  std::memcpy(ret_bytes + sizeof(header), tokens, size_t{header.window} * 4);
  if (header.note_bytes != 0)
    std::memcpy(ret_bytes + sizeof(header) + size_t{header.window} * 4, note, header.note_bytes);
}

struct Record {
  RecordHeader header;
  const void* note;
};

// Nothing unless the metadata is a record of just these tokens in this space.
inline std::optional<Record> read_record(const maru_metadata& metadata, const Fingerprint& space, uint64_t tenant,
                                         const uint32_t* tokens, uint32_t window) {
  Record record = {};
  if (metadata.bytes < record_bytes(window, 0)) return std::nullopt;
  const auto* const bytes = static_cast<const std::byte*>(metadata.data);
  std::memcpy(&record.header, bytes, sizeof(record.header));
  const RecordHeader& header = record.header;
  if (header.magic != kRecordMagic || header.window != window || header.tenant != tenant || header.space != space)
    return std::nullopt;
  if (header.note_bytes > MARU_SPAN_NOTE_BYTES_MAX || header.chain_blocks > MARU_SPAN_BLOCKS_MAX) return std::nullopt;
  if (metadata.bytes != record_bytes(window, header.note_bytes)) return std::nullopt;
  if (std::memcmp(bytes + sizeof(header), tokens, size_t{window} * 4) != 0) return std::nullopt;
  record.note = header.note_bytes != 0 ? bytes + record_bytes(window, 0) : nullptr;
  return record;
}

}  // namespace maru::blend
