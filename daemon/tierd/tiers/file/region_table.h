// The regions of a log and the index of its entries: the place of each key, the open region, the next region to go. No I/O.
//
// A region's life:
//
//   FRESH --prepare--> CLEAN --open--> OPEN --full--> CLOSED --give up--> CLEAN
//
// FRESH regions were never written in this file, so the file system may have no room for them. CLEAN regions have a header on
// the device, with their next sequence. At most one is OPEN.
//
// Not thread-safe: FileTier holds its lock.
#pragma once

#include "daemon/tierd/tiers/file/log_format.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace maru::tierd {

enum class RegionState : uint8_t { kFresh, kClean, kOpen, kClosed };

struct Region {
  RegionState state = RegionState::kFresh;
  uint64_t sequence = 0;
  uint64_t end = kLogBlock;   // where the next record goes
  uint64_t footer_bytes = 0;  // of the entries so far
  uint32_t writes = 0;        // under way
  uint32_t reads = 0;         // under way; the region is not given up before they are done
  bool has_footer = false;
  std::vector<LogEntry> entries;  // entries whose records are on the device, in the order of writing
};

// Where a record is, or will be.
struct RecordPlace {
  uint32_t region = 0;
  uint64_t offset = 0;  // in the region
};

struct IndexedEntry {
  uint32_t region = 0;
  uint32_t slot = 0;  // in Region::entries
  uint32_t uses = 0;  // loads since it was written here
};

// The number and bytes of entries whose keys name the same group (maru/tier.h).
struct GroupCount {
  uint64_t entries = 0;
  uint64_t bytes = 0;
};

class RegionTable {
 public:
  RegionTable(uint64_t region_bytes, uint64_t regions) : region_bytes_(region_bytes), regions_(regions) {}

  uint64_t region_bytes() const { return region_bytes_; }
  size_t count() const { return regions_.size(); }
  Region& region(uint32_t index) { return regions_[index]; }
  const Region& region(uint32_t index) const { return regions_[index]; }
  uint64_t next_sequence() { return next_sequence_++; }
  void sequence_seen(uint64_t sequence) { next_sequence_ = std::max(next_sequence_, sequence + 1); }

  // Of any record: that it fits into an empty region.
  bool can_hold(const LogEntry& entry) const;
  // Room for the record in the open region; opens a clean region when that is full, and tells which region is complete now.
  // Nothing: there is no clean region. The place counts as a write under way. `may_take_last`: of the clean regions; the last
  // is for records that are moved, so that recently used entries find room while new records wait.
  std::optional<RecordPlace> place(const LogEntry& entry, bool may_take_last, std::optional<uint32_t>& ret_closed);
  // Ends the open region early, as its device takes no more.
  std::optional<uint32_t> close_open();

  void add_clean(uint32_t index) { clean_.push_back(index); }
  size_t clean_count() const { return clean_.size(); }
  // A region that holds nothing and has no header; nothing: none is left.
  std::optional<uint32_t> any_fresh() const;
  // The closed region with the lowest sequence, if no write is under way in it.
  std::optional<uint32_t> oldest_closed() const;

  // The record is on the device. Replaces the key's earlier record; a tombstone removes it.
  void written(const RecordPlace& place, LogEntry entry);
  // The same for a record that was moved; only while the index still has its old place.
  bool moved(const RecordPlace& place, LogEntry entry, uint32_t from_region);
  IndexedEntry* find(std::string_view key);
  const LogEntry& entry_of(const IndexedEntry& found) const { return regions_[found.region].entries[found.slot]; }
  void forget(std::string_view key);
  // Takes the region's entries out of the index. Returns how many there were.
  size_t forget_region(uint32_t index);

  uint64_t entries() const { return index_.size(); }
  uint64_t entry_bytes() const { return entry_bytes_; }

  // Entries with a sequence of their region and slot behind the cursor, for list().
  size_t list(uint64_t* cursor, size_t n, const std::function<void(const LogEntry&)>& each) const;

  // By the names of groups that have entries.
  const std::map<std::string, GroupCount, std::less<>>& groups() const { return groups_; }
  // The group's entries as they were written, the first of them first, until `n` were told. Returns how many. Looks at every
  // entry of the regions that it comes to.
  size_t list_oldest(std::string_view group, size_t n, const std::function<void(const LogEntry&)>& each) const;

  // After recovery: the entries of all regions become the index, the highest sequence of each key first.
  void index_recovered();

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  bool fits(const Region& region, const LogEntry& entry) const;
  bool is_current(uint32_t region, uint32_t slot) const;  // the index leads to it
  void count(const LogEntry& entry, int sign);

  const uint64_t region_bytes_;
  std::vector<Region> regions_;
  std::deque<uint32_t> clean_;
  std::optional<uint32_t> open_;
  std::unordered_map<std::string, IndexedEntry, TextHash, std::equal_to<>> index_;
  std::map<std::string, GroupCount, std::less<>> groups_;
  uint64_t entry_bytes_ = 0;
  uint64_t next_sequence_ = 1;
};

}  // namespace maru::tierd
