// The format of the file tier: a log of regions, whose records prove themselves whole.
//
//   0            superblock: magic and version, the size of its regions, a random id
//   4 KiB        a block in which O_DIRECT is tried
//   64 KiB       region 0, region 1, ...
//
// A region:
//   0            its header: index, sequence
//   4 KiB        record, record, ...    each begins at a multiple of 4 KiB
//   ...          bytes that were never written in this life of the region
//   end          footer: an entry for each record, then in the last 4 KiB the trailer that proves it
//
// A record: header, key and attributes, filled up to a multiple of 4 KiB; then the payload, likewise. A tombstone is a record
// without a payload: its key was deleted.
//
// Sequences. A region gets a new sequence each time that it begins anew, so records of an earlier life prove themselves stale.
// An entry gets a sequence when it is stored or deleted, and among two records of one key the higher counts. A record that is
// moved keeps its own. Regions are given up in the order of their sequences. A record of a key is never written to an older
// region than a tombstone or record of that key with a lower sequence; so a tombstone outlives all records that it denies.
//
// Checksums are XXH3 of 64 bits, with the store's id as a part of each sum. A payload therefore cannot pass for a
// record, unless its author knows the id.
//
// Numbers are little-endian. docs/tiers.md has the state after a crash at each point.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace maru::tierd {

inline constexpr uint64_t kLogBlock = 4096;         // the unit of offsets, and of O_DIRECT on every device that we know
inline constexpr uint64_t kLogFirstRegion = 65536;  // bytes before region 0
inline constexpr uint64_t kLogProbeOffset = kLogBlock;
inline constexpr uint32_t kLogVersion = 1;
inline constexpr uint64_t kLogRegionBytesMin = 64u << 10;  // a header, a record, a footer, with room; for tests
inline constexpr uint64_t kLogRegionBytesMax = 1ull << 32;
inline constexpr uint64_t kLogRegionsMin = 4;  // one for writing, two clean regions, one with entries

using LogMagic = std::array<char, 8>;
using LogId = std::array<uint8_t, 16>;
inline constexpr LogMagic kSuperblockMagic = {'M', 'A', 'R', 'U', 'T', 'I', 'E', 'R'};
inline constexpr LogMagic kRegionMagic = {'M', 'A', 'R', 'U', 'R', 'E', 'G', 'N'};
inline constexpr LogMagic kRecordMagic = {'M', 'A', 'R', 'U', 'B', 'L', 'C', 'K'};
inline constexpr LogMagic kTrailerMagic = {'M', 'A', 'R', 'U', 'F', 'O', 'O', 'T'};

// The rest of its 4 KiB is zero, as behind the other headers of a single block.
struct Superblock {
  LogMagic magic;
  uint32_t version;
  uint32_t reserved0;
  uint64_t region_bytes;
  uint64_t regions;   // may grow from one start to the next; with fewer the log begins anew
  LogId id;           // random; all checksums of this log depend on it
  uint64_t checksum;  // of the fields above
};

struct RegionHeader {
  LogMagic magic;
  uint32_t version;
  uint32_t index;
  uint64_t sequence;
  uint64_t checksum;
};

enum RecordFlags : uint32_t { kRecordTombstone = 1u << 0 };

struct RecordHeader {
  LogMagic magic;
  uint32_t version;
  uint32_t header_bytes;  // this, key and attributes, filled up
  uint64_t region_sequence;
  uint64_t region_offset;  // where in the region it begins
  uint64_t sequence;
  uint64_t payload_bytes;
  uint64_t payload_checksum;
  uint64_t note;
  uint32_t key_bytes;
  uint32_t attributes_bytes;
  uint32_t flags;  // RecordFlags
  uint32_t reserved0;
  uint64_t checksum;  // of all header_bytes, with this field 0
};

// In the footer, followed by the key and zeros up to a multiple of 8.
struct FooterEntry {
  uint64_t sequence;
  uint64_t payload_bytes;
  uint64_t payload_checksum;
  uint64_t note;
  uint32_t region_block;  // where the record begins, in units of 4 KiB
  uint32_t attributes_bytes;
  uint32_t key_bytes;
  uint32_t flags;
};

struct RegionTrailer {
  LogMagic magic;
  uint32_t version;
  uint32_t entries;
  uint64_t region_sequence;
  uint64_t footer_offset;  // in the region; a multiple of 4 KiB
  uint64_t footer_bytes;   // of its entries
  uint64_t footer_checksum;
  uint64_t checksum;  // of the fields above
};

static_assert(sizeof(Superblock) == 56 && sizeof(RegionHeader) == 32 && sizeof(RecordHeader) == 88 &&
              sizeof(FooterEntry) == 48 && sizeof(RegionTrailer) == 56);
static_assert(std::has_unique_object_representations_v<Superblock> &&
              std::has_unique_object_representations_v<RegionHeader> &&
              std::has_unique_object_representations_v<RecordHeader> &&
              std::has_unique_object_representations_v<FooterEntry> &&
              std::has_unique_object_representations_v<RegionTrailer>);

inline constexpr uint64_t in_blocks(uint64_t bytes) { return (bytes + kLogBlock - 1) / kLogBlock * kLogBlock; }

// One record, as the index knows it.
struct LogEntry {
  std::string key;
  uint64_t sequence = 0;
  uint64_t payload_bytes = 0;
  uint64_t payload_checksum = 0;
  uint64_t note = 0;
  uint64_t region_offset = 0;
  uint32_t attributes_bytes = 0;
  uint32_t flags = 0;

  bool is_tombstone() const { return (flags & kRecordTombstone) != 0; }
  uint64_t header_bytes() const { return in_blocks(sizeof(RecordHeader) + key.size() + attributes_bytes); }
  uint64_t record_bytes() const { return header_bytes() + in_blocks(payload_bytes); }
  uint64_t footer_bytes() const { return sizeof(FooterEntry) + (key.size() + 7) / 8 * 8; }
};

uint64_t checksum_of(const void* data, size_t bytes);

// Each fills its block, or its blocks, whole. `room` is zeroed first.
void write_superblock(std::span<std::byte> room, uint64_t region_bytes, uint64_t regions, const LogId& id);
void write_region_header(std::span<std::byte> room, const LogId& id, uint32_t index, uint64_t sequence);
void write_record_header(std::span<std::byte> room, const LogId& id, uint64_t region_sequence, const LogEntry& entry,
                         const void* attributes);
// Footer and trailer together, as they lie at the end of a region of `region_bytes`. They take footer_room() bytes.
std::vector<std::byte> make_footer(const LogId& id, uint64_t region_sequence, uint64_t region_bytes,
                                   std::span<const LogEntry> entries);
inline uint64_t footer_room(uint64_t entries_bytes) { return in_blocks(entries_bytes) + kLogBlock; }

// Nothing: the bytes do not verify.
std::optional<Superblock> read_superblock(std::span<const std::byte> block);
std::optional<uint64_t> read_region_sequence(std::span<const std::byte> block, const LogId& id, uint32_t index);
// header_bytes of the record that begins here, if it may be one; 0: it cannot be. Proves nothing.
uint64_t promised_header_bytes(std::span<const std::byte> block);
// `header`: header_bytes of it. `ret_attributes` may be null.
std::optional<LogEntry> read_record_header(std::span<const std::byte> header, const LogId& id, uint64_t region_sequence,
                                           uint64_t region_offset, std::string_view* ret_attributes);
std::optional<RegionTrailer> read_trailer(std::span<const std::byte> block, const LogId& id, uint64_t region_sequence,
                                          uint64_t region_bytes);
std::optional<std::vector<LogEntry>> read_footer(std::span<const std::byte> footer, const LogId& id,
                                                 const RegionTrailer& trailer, uint64_t region_bytes);

}  // namespace maru::tierd
