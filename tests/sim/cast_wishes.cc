#include "cast_wishes.h"

#include "cast.h"
#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/host_wish.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "tests/sim/mutants.h"

#include <array>

namespace maru::sim {
namespace {

using format::RegionState;
using shm::RegionWord;

constexpr uint32_t kRegions = kWorldPages / kWorldRegionPages;
constexpr uint32_t kNone = ~0u;

void (*evict_page_as)(uint32_t host, uint32_t page) = nullptr;
// What no marud knows: who looks after each region. A host enters itself when its CAS has made it so, and leaves before it says
// that the region is nobody's, so two of them here are two who believe it.
std::array<uint32_t, kRegions> holder;

uint32_t regions_of(uint32_t host) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < kRegions; ++i) count += shm::host_of_region(world(), i) == host;
  return count;
}

void set_word(uint32_t index, RegionState state, LaneId owner, uint32_t host) {
  const RegionWord found{world().region(index).word.load_acquire()};
  shm::show_region(world(), index, RegionWord::of(state, found.generation() + 1, owner, host));
}

void take(uint32_t index, uint32_t host) {
  if (holder[index] != kNone && holder[index] != host)
    fail("hosts %u and %u look after region %u at once", holder[index], host, index);
  holder[index] = host;
}

// As settle_region(): empty, it is nobody's; else it stays an orphan of this host.
void settle_region(uint32_t host, uint32_t index) {
  if (!shm::vacate_region(world(), index)) return set_word(index, RegionState::kOrphaned, {}, host);
  note("host %u gives region %u up", host, index);
  holder[index] = kNone;
  set_word(index, RegionState::kUnused, {}, 0);
}

void rent_unused(uint32_t host) {
  for (uint32_t index = 0; index < kRegions; ++index) {
    const LaneId owner = lane_id(world().daemon_lane_of(host) + 1);
    uint32_t generation = 0;
    if (!shm::rent_unused_region(world(), index, owner, host, &generation)) continue;
    take(index, host);
    note("host %u rents region %u", host, index);
    shm::open_region_pages(world(), index);
    return;
  }
}

void ask(uint32_t host, uint32_t generation) {
  uint32_t most = host;
  for (uint32_t other = 0; other < kWorldHosts; ++other)
    if (regions_of(other) > regions_of(most)) most = other;
  if (most == host || regions_of(most) < 2) return;
  if (shm::ask_for_region(world(), most, host, generation)) note("host %u asks host %u for a region", host, most);
}

void evict_childless(uint32_t host, uint32_t index) {
  for (uint32_t page = index * kWorldRegionPages; page < (index + 1) * kWorldRegionPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    if (word.is(PageState::kReady) && word.low() == 0) evict_page_as(host, page);
  }
}

RegionState state_of(uint32_t index) { return RegionWord{world().region(index).word.load_acquire()}.state(); }

void answer(uint32_t host) {
  const shm::HostWish wish = shm::read_wish(world(), host);
  if (wish.is_none()) return;
  if (!shm::is_asker_live(world(), wish)) return shm::end_wish(world(), host, wish);
  const uint32_t first = chance().below(kRegions);
  for (uint32_t i = 0; i < kRegions; ++i) {
    const uint32_t index = (first + i) % kRegions;
    if (holder[index] != host || state_of(index) == RegionState::kDraining) continue;
    set_word(index, RegionState::kDraining, {}, host);
    shm::close_region_pages(world(), index);
    evict_childless(host, index);
    shm::close_region_pages(world(), index);
    settle_region(host, index);
    break;
  }
  shm::end_wish(world(), host, wish);
}

}  // namespace

void begin_wishes(void (*evict)(uint32_t host, uint32_t page)) {
  evict_page_as = evict;
  // A second wish waits until the first one was answered.
  watch_wishes([](uint32_t host, uint64_t before, uint64_t after) {
    if (before != 0 && after != 0)
      fail("the wish of host %u to host %u takes the place of host %u's", shm::HostWish{after}.host(), host,
           shm::HostWish{before}.host());
  });
  // One region is unused. The first host has all others, or all but one of them, so one or two hosts have to ask.
  const bool has_second = chance().chance(2);
  for (uint32_t index = 0; index < kRegions; ++index) {
    const bool is_unused = index == kRegions - 1;
    holder[index] = is_unused ? kNone : index == kRegions - 2 && has_second ? 1 : 0;
    const LaneId owner = lane_id(world().daemon_lane_of(is_unused ? 0 : holder[index]) + 1);
    const RegionWord word = is_unused ? RegionWord::of(RegionState::kUnused, 0, {}, 0)
                                      : RegionWord::of(RegionState::kRented, 0, owner, holder[index]);
    world().region(index).word.raw = word.bits;
    for (uint32_t page = index * kWorldRegionPages; is_unused && page < kWorldPages; ++page)
      world().block(page).word.raw = PageWord::out(PageWord{world().block(page).word.raw}.generation()).bits;
  }
}

void forget_wishes() { evict_page_as = nullptr; }

void share_regions(uint32_t host, uint32_t generation) {
  if (evict_page_as == nullptr) return;
  inherit_left(host);
  if (regions_of(host) < 2) rent_unused(host);
  if (regions_of(host) < 1 || chance().chance(2)) ask(host, generation);
  answer(host);
}

void drain_part(uint32_t host) {
  for (uint32_t index = 0; index < kRegions; ++index) {
    if (holder[index] != host && !mutant(kMutantDrainForeign)) continue;
    note("host %u drains region %u", host, index);
    if (state_of(index) != RegionState::kDraining) set_word(index, RegionState::kDraining, {}, host);
    evict_childless(host, index);
    shm::close_region_pages(world(), index);
    bool is_empty = true;
    for (uint32_t page = index * kWorldRegionPages; page < (index + 1) * kWorldRegionPages; ++page)
      is_empty &= PageWord{world().block(page).word.load_acquire()}.is(PageState::kOut);
    if (is_empty) settle_region(host, index);
  }
  answer(host);  // wishes of before are ended, in vain or not
}

void cancel_drain(uint32_t host) {
  if (evict_page_as == nullptr) return;
  for (uint32_t index = 0; index < kRegions; ++index)
    if (holder[index] == host && state_of(index) == RegionState::kDraining) settle_region(host, index);
}

void inherit_left(uint32_t host) {
  if (evict_page_as == nullptr) return;
  for (uint32_t index = 0; index < kRegions; ++index) {
    uint32_t generation = 0;
    if (holder[index] == host || !shm::inherit_left_region(world(), index, host, &generation)) continue;
    note("host %u inherits region %u, which was left", host, index);
    take(index, host);
  }
}

void leave_parts(uint32_t host) {
  for (uint32_t index = 0; index < kRegions; ++index) {
    if (holder[index] != host) continue;
    settle_region(host, index);
    holder[index] = kNone;
  }
}

void adopt_parts(uint32_t host) {
  if (evict_page_as == nullptr) return;
  for (uint32_t index = 0; index < kRegions; ++index) {
    // The last marud may have died between the word and the book.
    const bool is_own = shm::adopt_region(world(), index, host);
    if (holder[index] != kNone && (is_own ? host_died(holder[index]) : holder[index] == host)) holder[index] = kNone;
    if (is_own) take(index, host);
    if (holder[index] == host && state_of(index) == RegionState::kRented) shm::open_region_pages(world(), index);
  }
  cancel_drain(host);
}

void inherit_from_the_dead(uint32_t index, uint32_t heir) {
  if (evict_page_as != nullptr) holder[index] = heir;
}

void answer_last_wish(uint32_t host) {
  if (evict_page_as == nullptr) return;
  answer(host);
  if (!shm::read_wish(world(), host).is_none()) fail("at rest host %u has a wish that nobody answers", host);
}

}  // namespace maru::sim
