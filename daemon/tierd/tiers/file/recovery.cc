#include "daemon/tierd/tiers/file/recovery.h"

#include "daemon/tierd/tiers/file/aligned_bytes.h"

#include <algorithm>

namespace maru::tierd {

std::optional<LogEntry> proven_record(std::span<const std::byte> region, uint64_t offset, const LogId& id,
                                      uint64_t region_sequence, bool* ret_torn) {
  const uint64_t header_bytes = promised_header_bytes(region.subspan(offset));
  if (header_bytes == 0 || header_bytes > region.size() - offset) return std::nullopt;
  auto entry = read_record_header(region.subspan(offset, header_bytes), id, region_sequence, offset, nullptr);
  if (!entry) return std::nullopt;
  const uint64_t room = region.size() - offset - header_bytes;
  if (entry->payload_bytes <= room &&
      checksum_of(region.data() + offset + header_bytes, entry->payload_bytes) == entry->payload_checksum)
    return entry;
  *ret_torn = true;
  return std::nullopt;
}

std::vector<LogEntry> scan_region(std::span<const std::byte> region, const LogId& id, uint64_t region_sequence,
                                  uint64_t* ret_torn) {
  std::vector<LogEntry> entries;
  // Records are written side by side, so one that is whole may follow one that is not: every block may begin one.
  for (uint64_t offset = kLogBlock; offset < region.size();) {
    bool is_torn = false;
    auto entry = proven_record(region, offset, id, region_sequence, &is_torn);
    *ret_torn += is_torn;
    offset += entry ? entry->record_bytes() : kLogBlock;
    if (entry) entries.push_back(std::move(*entry));
  }
  return entries;
}

namespace {

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

}  // namespace

Result<RecoveredLog> recover_log(const BlockFile& file, RegionTable& table) {
  RecoveredLog recovered;
  AlignedBytes block(kLogBlock), whole;
  for (uint32_t i = 0; i < table.count(); ++i) {
    Region& region = table.region(i);
    if (auto got = file.read(block.data(), kLogBlock, file.region_offset(i)); !got) return tl::unexpected(got.error());
    const auto sequence = read_region_sequence(block.all(), file.id(), i);
    if (!sequence) continue;  // FRESH, whatever lies there
    region.sequence = *sequence;
    auto entries = footer_of(file, i, *sequence);
    if (!entries) return tl::unexpected(entries.error());
    if (*entries) {
      ++recovered.with_footer;
      region.has_footer = true;
      region.state = (*entries)->empty() ? RegionState::kClean : RegionState::kClosed;
      set_entries(region, std::move(**entries));
      continue;
    }
    ++recovered.scanned;
    if (whole.size() == 0) whole = AlignedBytes(file.region_bytes());
    if (auto got = file.read(whole.data(), whole.size(), file.region_offset(i)); !got)
      return tl::unexpected(got.error());
    set_entries(region, scan_region(whole.all(), file.id(), *sequence, &recovered.torn));
    // Not opened again: a torn record may lie behind the last whole one, and would verify when its rest was written late.
    region.state = region.entries.empty() ? RegionState::kClean : RegionState::kClosed;
    if (region.entries.empty()) continue;
    const auto footer = make_footer(file.id(), *sequence, file.region_bytes(), region.entries);
    AlignedBytes aligned(footer.size());
    std::copy(footer.begin(), footer.end(), aligned.data());
    const auto put =
        file.write(aligned.data(), aligned.size(), file.region_offset(i) + file.region_bytes() - footer.size());
    region.has_footer = put.has_value();  // without it the next start scans again
  }
  // Before the index: sequences seen there count.
  table.index_recovered();
  return recovered;
}

}  // namespace maru::tierd
