// Regions between hosts. A host that rents less than its share asks the host that rents the most. That host's marud empties a
// region and makes it nobody's. Like a takeover (memory/takeover.cc) this goes on over turns, and each reads a bounded
// number of lines.
//
// If marud dies here: the wish stays, and the next marud begins again. It settles a half-emptied region by its pages.
#include "daemon/base/log.h"
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/host_wish.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>

namespace maru::daemon {

// The candidates are all regions that a client of this host rents, or rented.
void Pool::State::begin_giving() {
  giving.emplace().pinned.assign(regions.size(), false);
  for (uint32_t n = 0; n < regions.size(); ++n) {
    const uint32_t index = (hosts.wish_next + n) % uint32_t(regions.size());
    const RegionState state = regions[index].state;
    if (!regions[index].is_foreign && (state == RegionState::kRented || state == RegionState::kOrphaned))
      giving->candidates.push_back(index);
  }
}

// Chooses the best of the regions that one look has time for. If none of them will do the search goes on in the next look,
// until it has looked at all. Returns true at the end: a region is nobody's now, or there was none to give.
bool Pool::State::step_giving() {
  using Part = Takeover::Part;
  Takeover& region_given = *giving;
  Shortage room;
  room.run_pages = core.region.region_pages();
  room.lines_left = kWishLinesPerLook;
  if (region_given.part == Part::kPins) {
    if (!takeovers.look_for_pins(region_given, room)) return false;
    std::erase_if(region_given.candidates, [&](uint32_t index) { return region_given.pinned[index]; });
    region_given.part = Part::kChoice;
  }
  if (region_given.part == Part::kChoice) {
    const bool saw_all = takeovers.choose_region(region_given, room);
    if (!region_given.index) return saw_all;
    if (!takeovers.is_still_anothers(region_given, {})) return true;
    hosts.wish_next = *region_given.index + 1;
    takeovers.close_region(region_given, room);
  }
  if (!takeovers.is_still_anothers(region_given, {})) return true;
  if (!takeovers.empty_region(region_given, room)) return false;
  grants.settle_region(*region_given.index);
  ++core.totals.regions_taken;
  return true;
}

void Pool::State::answer_wish() {
  const shm::HostWish wish = shm::read_wish(core.region, core.host);
  const bool is_emptying = giving && giving->part == Takeover::Part::kBlocks;
  if (wish.bits != hosts.wish_bits && !is_emptying) giving.reset();
  hosts.wish_bits = wish.bits;
  if (!is_emptying) {
    if (wish.is_none()) return;
    if (!shm::is_asker_live(core.region, wish)) return shm::end_wish(core.region, core.host, wish);
  }
  if (!giving) begin_giving();
  if (!step_giving()) return;
  if (giving->part == Takeover::Part::kBlocks)
    log_info("pool \"{}\": region {} is given up for host {}, which asked for one", core.config.name, *giving->index,
             wish.host());
  giving.reset();
  shm::end_wish(core.region, core.host, wish);
}

}  // namespace maru::daemon
