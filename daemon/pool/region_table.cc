#include "daemon/pool/region_table.h"

#include "libmaru/shm/recovery/region_handover.h"

namespace maru::daemon {

void RegionTable::set_up() {
  entries_.assign(core_.region.regions(), {});
  // The owners of the regions are not known yet, and the queues of another host's regions are not to be touched.
  for (RegionEntry& entry : entries_) entry.is_foreign = core_.region.is_shared();
}

std::vector<uint32_t> RegionTable::own_regions() const {
  std::vector<uint32_t> own;
  for (uint32_t i = 0; i < entries_.size(); ++i)
    if (!entries_[i].is_foreign) own.push_back(i);
  return own;
}

std::vector<uint32_t> RegionTable::regions_of(LaneId owner) const {
  std::vector<uint32_t> indices;
  for (uint32_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].state == RegionState::kRented && entries_[i].owner == owner) indices.push_back(i);
  return indices;
}

void RegionTable::show_region(uint32_t index) {
  const RegionEntry& entry = entries_[index];
  const uint32_t host = entry.state == RegionState::kUnused ? 0 : core_.host;
  shm::show_region(core_.region, index, shm::RegionWord::of(entry.state, entry.generation, entry.owner, host));
}

void RegionTable::set_region(uint32_t index, RegionState state, LaneId owner) {
  RegionEntry& entry = entries_[index];
  entry.state = state;
  entry.owner = owner;
  entry.was_found = false;
  entry.generation = (entry.generation + 1) & 0xF'FFFF;
  entry.no_run_since = kNever;
  show_region(index);
}

void RegionTable::set_counted(uint32_t region_index, uint32_t used) {
  if (entries_[region_index].is_foreign) used = 0;
  RegionEntry& entry = entries_[region_index];
  pages_in_use = pages_in_use - entry.counted_pages + used;
  entry.counted_pages = used;
}

}  // namespace maru::daemon
