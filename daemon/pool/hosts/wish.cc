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

// A host that rents less than its share asks the host that rents the most. The other host may refuse. A region that it gives
// up belongs to no host, and the first host that asks for a region rents it.
void Pool::State::ask_for_region() {
  std::vector<uint32_t> rented(core.region.hosts(), 0);
  for (uint32_t i = 0; i < regions.size(); ++i) {
    const uint32_t host = shm::host_of_region(core.region, i);
    if (host < core.region.hosts()) ++rented[host];
  }
  const auto users = std::max<ptrdiff_t>(
      1, std::count_if(rented.begin(), rented.end(), [](uint32_t n) { return n > 0; }) + (rented[core.host] == 0));
  const size_t share = std::max<size_t>(1, regions.size() / size_t(users));
  const auto most = uint32_t(std::max_element(rented.begin(), rented.end()) - rented.begin());
  if (rented[core.host] >= share || rented[most] <= share || most == core.host) return;
  shm::ask_for_region(core.region, most, core.host, core.host_generation);
}

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
    if (!look_for_pins(region_given, room)) return false;
    std::erase_if(region_given.candidates, [&](uint32_t index) { return region_given.pinned[index]; });
    region_given.part = Part::kChoice;
  }
  if (region_given.part == Part::kChoice) {
    const bool saw_all = choose_region(region_given, room);
    if (!region_given.index) return saw_all;
    if (!is_still_anothers(region_given, {})) return true;
    hosts.wish_next = *region_given.index + 1;
    close_region(region_given, room);
  }
  if (!is_still_anothers(region_given, {})) return true;
  if (!empty_region(region_given, room)) return false;
  settle_region(*region_given.index);
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
