#include "daemon/tierd/tiers/file/recovery.h"

#include "daemon/tierd/tiers/file/aligned_bytes.h"
#include "daemon/tierd/tiers/thread_signals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <new>
#include <string>
#include <system_error>
#include <thread>

namespace maru::tierd {

uint64_t scan_piece(std::span<const std::byte> piece, uint64_t piece_offset, uint64_t region_bytes, const LogId& id,
                    uint64_t region_sequence, std::vector<LogEntry>& entries, uint64_t* ret_torn) {
  const uint64_t piece_end = piece_offset + piece.size();
  // Records are written side by side, so a whole record may follow a torn record: every block may begin a record.
  uint64_t offset = std::max(piece_offset, kLogBlock);
  while (offset + kLogBlock <= piece_end) {
    const auto here = piece.subspan(offset - piece_offset);
    const uint64_t header_bytes = promised_header_bytes(here);
    if (header_bytes > here.size() && offset + header_bytes <= region_bytes) return offset;
    std::optional<LogEntry> entry;
    if (header_bytes > 0 && header_bytes <= here.size())
      entry = read_record_header(here.first(header_bytes), id, region_sequence, offset, nullptr);
    if (entry && entry->payload_bytes <= region_bytes - offset - header_bytes) {
      if (entry->record_bytes() > here.size()) return offset;
      if (checksum_of(here.data() + header_bytes, entry->payload_bytes) == entry->payload_checksum) {
        offset += entry->record_bytes();
        entries.push_back(std::move(*entry));
        continue;
      }
    }
    *ret_torn += entry.has_value();
    offset += kLogBlock;
  }
  return offset;
}

std::vector<LogEntry> scan_region(std::span<const std::byte> region, const LogId& id, uint64_t region_sequence,
                                  uint64_t* ret_torn) {
  std::vector<LogEntry> entries;
  (void)scan_piece(region, 0, region.size(), id, region_sequence, entries, ret_torn);
  return entries;
}

namespace {

constexpr uint64_t kPieceBytes = 2u << 20;  // of a region that is read whole; it stays in a processor's cache
constexpr size_t kRecoveryThreads = 4;      // so that a device reads while a processor takes the entries out of footers

// A region's entries by its footer; nothing: it has none that verifies.
Result<std::optional<std::vector<LogEntry>>> footer_of(const BlockFile& file, uint32_t index, uint64_t sequence) {
  AlignedBytes block(kLogBlock);
  const uint64_t begin = file.region_offset(index);
  if (auto got = file.read(block.data(), kLogBlock, begin + file.region_bytes() - kLogBlock); !got)
    return tl::unexpected(got.error());
  const auto trailer = read_trailer(block.all(), file.id(), sequence, file.region_bytes());
  if (!trailer) return std::nullopt;
  AlignedBytes footer(trailer->footer_bytes);
  if (auto got = file.read(footer.data(), footer.size(), begin + trailer->footer_offset); !got)
    return tl::unexpected(got.error());
  return read_footer(footer.all(), file.id(), *trailer, file.region_bytes());
}

void set_entries(Region& region, std::vector<LogEntry> entries) {
  for (const LogEntry& entry : entries) {
    region.end = std::max(region.end, entry.region_offset + entry.record_bytes());
    region.footer_bytes += entry.footer_bytes();
  }
  region.entries = std::move(entries);
}

// The findings of one thread.
struct Finding {
  RecoveredLog log;
  std::optional<Error> error;
};

// Without a footer: every record that verifies, and then a footer for the next start.
Result<void> recover_by_records(const BlockFile& file, uint32_t index, Region& region, AlignedBytes& room,
                                RecoveredLog& log) {
  std::vector<LogEntry> entries;
  for (uint64_t offset = 0, piece_bytes = kPieceBytes; offset < file.region_bytes();) {
    piece_bytes = std::min(piece_bytes, file.region_bytes() - offset);
    if (room.size() < piece_bytes) room = AlignedBytes(piece_bytes);
    const auto piece = room.all().first(piece_bytes);
    if (auto got = file.read(piece.data(), piece.size(), file.region_offset(index) + offset); !got)
      return tl::unexpected(got.error());
    const uint64_t next =
        scan_piece(piece, offset, file.region_bytes(), file.id(), region.sequence, entries, &log.torn);
    // A record that is larger than a piece: with all of the region's rest it is not.
    piece_bytes = next > offset ? kPieceBytes : file.region_bytes();
    offset = next;
  }
  set_entries(region, std::move(entries));
  // Not opened again: a torn record may lie behind the last whole one, and would verify when its rest was written late.
  region.state = region.entries.empty() ? RegionState::kClean : RegionState::kClosed;
  if (region.entries.empty()) return {};
  const auto footer = make_footer(file.id(), region.sequence, file.region_bytes(), region.entries);
  AlignedBytes aligned(footer.size());
  std::copy(footer.begin(), footer.end(), aligned.data());
  const auto put =
      file.write(aligned.data(), aligned.size(), file.region_offset(index) + file.region_bytes() - footer.size());
  region.has_footer = put.has_value();  // without it the next start scans again
  return {};
}

Result<void> recover_region(const BlockFile& file, uint32_t index, Region& region, AlignedBytes& room,
                            RecoveredLog& log) {
  AlignedBytes block(kLogBlock);
  if (auto got = file.read(block.data(), kLogBlock, file.region_offset(index)); !got)
    return tl::unexpected(got.error());
  const auto sequence = read_region_sequence(block.all(), file.id(), index);
  if (!sequence) return {};  // FRESH, with any bytes
  region.sequence = *sequence;
  auto entries = footer_of(file, index, *sequence);
  if (!entries) return tl::unexpected(entries.error());
  if (!*entries) {
    ++log.scanned;
    return recover_by_records(file, index, region, room, log);
  }
  ++log.with_footer;
  region.has_footer = true;
  region.state = (*entries)->empty() ? RegionState::kClean : RegionState::kClosed;
  set_entries(region, std::move(**entries));
  return {};
}

}  // namespace

Result<RecoveredLog> recover_log(const BlockFile& file, RegionTable& table) {
  // Each thread takes the next region, and writes into this one alone.
  std::array<Finding, kRecoveryThreads> findings;
  std::atomic<uint32_t> next = 0;
  const auto recover = [&](Finding& finding) {
    try {
      AlignedBytes room;
      for (uint32_t i = next++; i < table.count() && !finding.error; i = next++) {
        auto done = recover_region(file, i, table.region(i), room, finding.log);
        if (!done) finding.error = done.error();
      }
    } catch (const std::bad_alloc&) {
      finding.error = Error{ENOMEM, "read the log; give this program memory for its index and for " +
                                        std::to_string(kRecoveryThreads) + " regions"};
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (size_t i = 1; i < findings.size() && i < table.count(); ++i)
        threads.emplace_back([&recover, &finding = findings[i]] {
          block_signals();
          recover(finding);
        });
    } catch (const std::system_error&) {
      // the limit of threads: the started threads read the whole log
    }
    recover(findings[0]);
  }
  RecoveredLog recovered;
  for (const Finding& finding : findings) {
    if (finding.error) return tl::unexpected(*finding.error);
    recovered.with_footer += finding.log.with_footer;
    recovered.scanned += finding.log.scanned;
    recovered.torn += finding.log.torn;
  }
  // Before the index: sequences seen there count.
  table.index_recovered();
  return recovered;
}

}  // namespace maru::tierd
