#include "daemon/tierd/tiers/file/region_table.h"

#include "daemon/tierd/tiers/groups.h"

#include <utility>

namespace maru::tierd {

bool RegionTable::fits(const Region& region, const LogEntry& entry) const {
  return region.end + entry.record_bytes() + footer_room(region.footer_bytes + entry.footer_bytes()) <= region_bytes_;
}

bool RegionTable::can_hold(const LogEntry& entry) const {
  return entry.payload_bytes <= region_bytes_ && fits(Region{}, entry);
}

std::optional<RecordPlace> RegionTable::place(const LogEntry& entry, bool may_take_last,
                                              std::optional<uint32_t>& ret_closed) {
  if (open_ && !fits(regions_[*open_], entry)) ret_closed = close_open();
  if (!open_) {
    if (clean_.size() <= (may_take_last ? 0 : 1)) return std::nullopt;
    open_ = clean_.front();
    clean_.pop_front();
    regions_[*open_].state = RegionState::kOpen;
  }
  Region& region = regions_[*open_];
  const RecordPlace place = {*open_, region.end};
  region.end += entry.record_bytes();
  region.footer_bytes += entry.footer_bytes();
  ++region.writes;
  return place;
}

std::optional<uint32_t> RegionTable::close_open() {
  if (open_) regions_[*open_].state = RegionState::kClosed;
  return std::exchange(open_, std::nullopt);
}

std::optional<uint32_t> RegionTable::any_fresh() const {
  for (uint32_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].state == RegionState::kFresh) return i;
  return std::nullopt;
}

std::optional<uint32_t> RegionTable::oldest_closed() const {
  std::optional<uint32_t> oldest;
  for (uint32_t i = 0; i < regions_.size(); ++i)
    if (regions_[i].state == RegionState::kClosed && (!oldest || regions_[i].sequence < regions_[*oldest].sequence))
      oldest = i;
  return oldest && regions_[*oldest].writes == 0 ? oldest : std::nullopt;
}

void RegionTable::count(const LogEntry& entry, int sign) {
  const uint64_t change = uint64_t(sign) * (entry.payload_bytes + entry.attributes_bytes);
  entry_bytes_ += change;
  const std::string_view name = group_of(entry.key);
  auto group = groups_.find(name);
  if (group == groups_.end()) group = groups_.try_emplace(std::string(name)).first;
  group->second.entries += uint64_t(sign);
  group->second.bytes += change;
  if (group->second.entries == 0) groups_.erase(group);
}

void RegionTable::written(const RecordPlace& place, LogEntry entry) {
  Region& region = regions_[place.region];
  if (entry.is_tombstone()) {
    forget(entry.key);
    region.entries.push_back(std::move(entry));
    return;
  }
  const uint32_t slot = uint32_t(region.entries.size());
  forget(entry.key);
  count(entry, 1);
  index_[entry.key] = {place.region, slot, 0};
  region.entries.push_back(std::move(entry));
}

bool RegionTable::moved(const RecordPlace& place, LogEntry entry, uint32_t from_region) {
  IndexedEntry* const found = find(entry.key);
  const bool is_current = found && found->region == from_region && entry_of(*found).sequence == entry.sequence;
  // On the device it is in any case, with a sequence that says how old it is.
  Region& region = regions_[place.region];
  region.entries.push_back(std::move(entry));
  if (is_current) *found = {place.region, uint32_t(region.entries.size() - 1), 0};
  return is_current;
}

IndexedEntry* RegionTable::find(std::string_view key) {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &found->second;
}

void RegionTable::forget(std::string_view key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  count(entry_of(found->second), -1);
  index_.erase(found);
}

size_t RegionTable::forget_region(uint32_t index) {
  const Region& region = regions_[index];
  size_t gone = 0;
  for (uint32_t slot = 0; slot < region.entries.size(); ++slot) {
    const IndexedEntry* const found = find(region.entries[slot].key);
    if (!found || found->region != index || found->slot != slot) continue;
    forget(region.entries[slot].key);
    ++gone;
  }
  return gone;
}

bool RegionTable::is_current(uint32_t region, uint32_t slot) const {
  const auto found = index_.find(regions_[region].entries[slot].key);
  return found != index_.end() && found->second.region == region && found->second.slot == slot;
}

size_t RegionTable::list_oldest(std::string_view group, size_t n,
                                const std::function<void(const LogEntry&)>& each) const {
  if (!groups_.contains(group)) return 0;
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < regions_.size(); ++i)
    if (!regions_[i].entries.empty()) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [this](uint32_t one, uint32_t other) { return regions_[one].sequence < regions_[other].sequence; });
  size_t listed = 0;
  for (const uint32_t index : order) {
    const auto& entries = regions_[index].entries;
    for (uint32_t slot = 0; slot < entries.size() && listed < n; ++slot) {
      if (group_of(entries[slot].key) != group || !is_current(index, slot)) continue;
      each(entries[slot]);
      ++listed;
    }
  }
  return listed;
}

size_t RegionTable::list(uint64_t* cursor, size_t n, const std::function<void(const LogEntry&)>& each) const {
  // The cursor is {region, slot} + 1 in one number: regions have fewer than 2^32 records.
  uint64_t at = *cursor;
  size_t listed = 0;
  while (listed < n && (at >> 32) < regions_.size()) {
    const Region& region = regions_[at >> 32];
    const uint32_t slot = uint32_t(at);
    if (slot >= region.entries.size()) {
      at = ((at >> 32) + 1) << 32;
      continue;
    }
    if (is_current(uint32_t(at >> 32), slot)) {
      each(region.entries[slot]);
      ++listed;
    }
    ++at;
  }
  *cursor = at;
  return listed;
}

void RegionTable::index_recovered() {
  size_t records = 0;
  for (const Region& region : regions_) records += region.entries.size();
  index_.reserve(records);
  // Of two with one sequence the record was moved, and the newer region will last longer.
  const auto is_older = [&](const IndexedEntry& before, uint32_t region, const LogEntry& entry) {
    const uint64_t sequence = entry_of(before).sequence;
    return sequence < entry.sequence ||
           (sequence == entry.sequence && regions_[before.region].sequence < regions_[region].sequence);
  };
  for (uint32_t i = 0; i < regions_.size(); ++i) {
    sequence_seen(regions_[i].sequence);
    for (uint32_t slot = 0; slot < regions_[i].entries.size(); ++slot) {
      const LogEntry& entry = regions_[i].entries[slot];
      sequence_seen(entry.sequence);
      const auto [at, is_new] = index_.try_emplace(entry.key, IndexedEntry{i, slot, 0});
      if (!is_new && is_older(at->second, i, entry)) at->second = {i, slot, 0};
    }
  }
  // The tombstones have denied their records.
  for (auto at = index_.begin(); at != index_.end();) {
    const LogEntry& entry = entry_of(at->second);
    if (entry.is_tombstone()) {
      at = index_.erase(at);
    } else {
      count(entry, 1);
      ++at;
    }
  }
}

}  // namespace maru::tierd
