#include "daemon/pool/hosts/wishes.h"

#include "daemon/base/log.h"
#include "daemon/pool/hosts/pool_hosts.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/host_wish.h"

namespace maru::daemon {

// The candidates are all regions that a client of this host rents, or rented.
void Wishes::begin_giving() {
  giving_.emplace().pinned.assign(regions_.size(), false);
  for (uint32_t n = 0; n < regions_.size(); ++n) {
    const uint32_t index = (next_ + n) % uint32_t(regions_.size());
    const RegionState state = regions_[index].state;
    if (!regions_[index].is_foreign && (state == RegionState::kRented || state == RegionState::kOrphaned))
      giving_->candidates.push_back(index);
  }
}

// Chooses the best of the regions that one look has time for. If none of them will do the search goes on in the next look,
// until it has looked at all. Returns true at the end: a region is unused now, or there was none to give.
bool Wishes::step_giving() {
  using Part = Takeover::Part;
  Takeover& region_given = *giving_;
  Shortage room;
  room.run_pages = core_.region.region_pages();
  room.lines_left = kWishLinesPerLook;
  if (region_given.part == Part::kPins) {
    if (!takeovers_.look_for_pins(region_given, room)) return false;
    std::erase_if(region_given.candidates, [&](uint32_t index) { return region_given.pinned[index]; });
    region_given.part = Part::kChoice;
  }
  if (region_given.part == Part::kChoice) {
    const bool saw_all = takeovers_.choose_region(region_given, room);
    if (!region_given.index) return saw_all;
    if (!takeovers_.is_still_anothers(region_given, {})) return true;
    next_ = *region_given.index + 1;
    takeovers_.close_region(region_given, room);
  }
  if (!takeovers_.is_still_anothers(region_given, {})) return true;
  if (!takeovers_.empty_region(region_given, room)) return false;
  grants_.settle_region(*region_given.index);
  ++core_.totals.regions_taken;
  return true;
}

void Wishes::answer() {
  const shm::HostWish wish = shm::read_wish(core_.region, core_.host);
  const bool is_emptying = giving_ && giving_->part == Takeover::Part::kBlocks;
  if (wish.bits != bits_ && !is_emptying) giving_.reset();
  bits_ = wish.bits;
  if (!is_emptying) {
    if (wish.is_none()) return;
    if (!shm::is_asker_live(core_.region, wish)) return shm::end_wish(core_.region, core_.host, wish);
  }
  if (!giving_) begin_giving();
  if (!step_giving()) return;
  if (giving_->part == Takeover::Part::kBlocks)
    log_info("pool \"{}\": region {} is given up for host {}, which asked for one", core_.config.name, *giving_->index,
             wish.host());
  giving_.reset();
  shm::end_wish(core_.region, core_.host, wish);
}

}  // namespace maru::daemon
