#include "daemon/tierd/tiers/file/log_format.h"

#include "libmaru/base/check.h"

#include <algorithm>
#include <cstring>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::tierd {

namespace {

// With the log's id in front, so that only this log's blocks verify.
uint64_t sum(const LogId& id, const void* data, size_t bytes) {
  uint64_t seed = 0;
  std::memcpy(&seed, id.data(), sizeof seed);
  uint64_t more = 0;
  std::memcpy(&more, id.data() + sizeof seed, sizeof more);
  return XXH3_64bits_withSeed(data, bytes, seed) ^ more;
}

template <typename T>
T fields_at(std::span<const std::byte> from) {
  T fields;
  std::memcpy(&fields, from.data(), sizeof fields);
  return fields;
}

template <typename T>
void put_fields(std::span<std::byte> room, const T& fields) {
  MARU_CHECK(room.size() >= sizeof fields, "a header would be written past its block");
  std::memset(room.data(), 0, room.size());
  std::memcpy(room.data(), &fields, sizeof fields);
}

}  // namespace

uint64_t checksum_of(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

void write_superblock(std::span<std::byte> room, uint64_t region_bytes, uint64_t regions, const LogId& id) {
  Superblock block = {kSuperblockMagic, kLogVersion, 0, region_bytes, regions, id, 0};
  block.checksum = sum(id, &block, offsetof(Superblock, checksum));
  put_fields(room, block);
}

std::optional<Superblock> read_superblock(std::span<const std::byte> from) {
  if (from.size() < sizeof(Superblock)) return std::nullopt;
  const auto block = fields_at<Superblock>(from);
  if (block.magic != kSuperblockMagic || block.checksum != sum(block.id, &block, offsetof(Superblock, checksum)))
    return std::nullopt;
  if (block.version == kLogVersion && (block.region_bytes < kLogRegionBytesMin ||
                                       block.region_bytes > kLogRegionBytesMax || block.region_bytes % kLogBlock != 0))
    return std::nullopt;
  return block;
}

void write_region_header(std::span<std::byte> room, const LogId& id, uint32_t index, uint64_t sequence) {
  RegionHeader header = {kRegionMagic, kLogVersion, index, sequence, 0};
  header.checksum = sum(id, &header, offsetof(RegionHeader, checksum));
  put_fields(room, header);
}

std::optional<uint64_t> read_region_sequence(std::span<const std::byte> block, const LogId& id, uint32_t index) {
  if (block.size() < sizeof(RegionHeader)) return std::nullopt;
  const auto header = fields_at<RegionHeader>(block);
  if (header.magic != kRegionMagic || header.version != kLogVersion || header.index != index ||
      header.checksum != sum(id, &header, offsetof(RegionHeader, checksum)))
    return std::nullopt;
  return header.sequence;
}

void write_record_header(std::span<std::byte> room, const LogId& id, uint64_t region_sequence, const LogEntry& entry,
                         const void* attributes) {
  MARU_CHECK(room.size() == entry.header_bytes(), "the header of a record would not fill its blocks");
  RecordHeader header = {kRecordMagic,
                         kLogVersion,
                         uint32_t(room.size()),
                         region_sequence,
                         entry.region_offset,
                         entry.sequence,
                         entry.payload_bytes,
                         entry.payload_checksum,
                         entry.note,
                         uint32_t(entry.key.size()),
                         entry.attributes_bytes,
                         entry.flags,
                         0,
                         0};
  put_fields(room, header);
  std::byte* const behind = room.data() + sizeof header;
  std::memcpy(behind, entry.key.data(), entry.key.size());
  if (entry.attributes_bytes > 0) std::memcpy(behind + entry.key.size(), attributes, entry.attributes_bytes);
  const uint64_t checksum = sum(id, room.data(), room.size());
  std::memcpy(room.data() + offsetof(RecordHeader, checksum), &checksum, sizeof checksum);
}

uint64_t promised_header_bytes(std::span<const std::byte> block) {
  if (block.size() < sizeof(RecordHeader)) return 0;
  const auto header = fields_at<RecordHeader>(block);
  const uint64_t needed = in_blocks(sizeof header + uint64_t(header.key_bytes) + header.attributes_bytes);
  return header.magic == kRecordMagic && header.version == kLogVersion && header.header_bytes == needed ? needed : 0;
}

std::optional<LogEntry> read_record_header(std::span<const std::byte> from, const LogId& id, uint64_t region_sequence,
                                           uint64_t region_offset, std::string_view* ret_attributes) {
  if (promised_header_bytes(from) != from.size()) return std::nullopt;
  const auto header = fields_at<RecordHeader>(from);
  if (header.region_sequence != region_sequence || header.region_offset != region_offset) return std::nullopt;
  // The checksum was taken with its own field 0.
  std::vector<std::byte> copy(from.begin(), from.end());
  std::memset(copy.data() + offsetof(RecordHeader, checksum), 0, sizeof header.checksum);
  if (sum(id, copy.data(), copy.size()) != header.checksum) return std::nullopt;

  const char* const behind = reinterpret_cast<const char*>(from.data()) + sizeof header;
  if (ret_attributes) *ret_attributes = {behind + header.key_bytes, header.attributes_bytes};
  return LogEntry{std::string(behind, header.key_bytes),
                  header.sequence,
                  header.payload_bytes,
                  header.payload_checksum,
                  header.note,
                  region_offset,
                  header.attributes_bytes,
                  header.flags};
}

std::vector<std::byte> make_footer(const LogId& id, uint64_t region_sequence, uint64_t region_bytes,
                                   std::span<const LogEntry> entries) {
  uint64_t bytes = 0;
  for (const LogEntry& entry : entries) bytes += entry.footer_bytes();
  std::vector<std::byte> footer(footer_room(bytes));
  std::byte* at = footer.data();
  for (const LogEntry& entry : entries) {
    const FooterEntry fields = {entry.sequence,
                                entry.payload_bytes,
                                entry.payload_checksum,
                                entry.note,
                                uint32_t(entry.region_offset / kLogBlock),
                                entry.attributes_bytes,
                                uint32_t(entry.key.size()),
                                entry.flags};
    std::memcpy(at, &fields, sizeof fields);
    std::memcpy(at + sizeof fields, entry.key.data(), entry.key.size());
    at += entry.footer_bytes();
  }
  RegionTrailer trailer = {kTrailerMagic,
                           kLogVersion,
                           uint32_t(entries.size()),
                           region_sequence,
                           region_bytes - footer.size(),
                           bytes,
                           sum(id, footer.data(), bytes),
                           0};
  trailer.checksum = sum(id, &trailer, offsetof(RegionTrailer, checksum));
  std::memcpy(footer.data() + footer.size() - kLogBlock, &trailer, sizeof trailer);
  return footer;
}

std::optional<RegionTrailer> read_trailer(std::span<const std::byte> block, const LogId& id, uint64_t region_sequence,
                                          uint64_t region_bytes) {
  if (block.size() < sizeof(RegionTrailer)) return std::nullopt;
  const auto trailer = fields_at<RegionTrailer>(block);
  if (trailer.magic != kTrailerMagic || trailer.version != kLogVersion || trailer.region_sequence != region_sequence ||
      trailer.checksum != sum(id, &trailer, offsetof(RegionTrailer, checksum)))
    return std::nullopt;
  if (trailer.footer_bytes > region_bytes || trailer.footer_offset < kLogBlock ||
      trailer.footer_offset + footer_room(trailer.footer_bytes) != region_bytes)
    return std::nullopt;
  return trailer;
}

std::optional<std::vector<LogEntry>> read_footer(std::span<const std::byte> footer, const LogId& id,
                                                 const RegionTrailer& trailer, uint64_t region_bytes) {
  if (footer.size() < trailer.footer_bytes || sum(id, footer.data(), trailer.footer_bytes) != trailer.footer_checksum)
    return std::nullopt;
  std::vector<LogEntry> entries;
  entries.reserve(std::min<uint64_t>(trailer.entries, trailer.footer_bytes / sizeof(FooterEntry)));
  uint64_t at = 0;
  for (uint32_t i = 0; i < trailer.entries; ++i) {
    if (trailer.footer_bytes - at < sizeof(FooterEntry)) return std::nullopt;
    const auto fields = fields_at<FooterEntry>(footer.subspan(at));
    if (trailer.footer_bytes - at - sizeof fields < fields.key_bytes) return std::nullopt;
    LogEntry entry = {std::string(reinterpret_cast<const char*>(footer.data()) + at + sizeof fields, fields.key_bytes),
                      fields.sequence,
                      fields.payload_bytes,
                      fields.payload_checksum,
                      fields.note,
                      uint64_t(fields.region_block) * kLogBlock,
                      fields.attributes_bytes,
                      fields.flags};
    if (entry.payload_bytes > region_bytes || entry.region_offset < kLogBlock ||
        entry.region_offset + entry.record_bytes() > trailer.footer_offset)
      return std::nullopt;
    at += std::min(entry.footer_bytes(), trailer.footer_bytes - at);
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace maru::tierd
