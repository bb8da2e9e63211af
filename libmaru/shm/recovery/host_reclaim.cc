#include "libmaru/shm/recovery/host_reclaim.h"

#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/host_claim.h"

namespace maru::shm {

using namespace maru::format;

namespace {

bool exchange_region(const ControlRegion& region, uint32_t index, RegionWord from, RegionWord to) {
  AtomicU64& shared = region.region(index).word;
  uint64_t expected = from.bits;
  if (!shared.cas_seq_cst(expected, to.bits)) return false;  // [pairs region.word]
  flush(region, shared);
  return true;
}

RegionWord orphan_of(uint32_t heir, RegionWord found) {
  return RegionWord::of(RegionState::kOrphaned, found.generation() + 1, {}, heir);
}

RegionWord read_region(const ControlRegion& region, uint32_t index) {
  return {region.region(index).word.load_acquire()};  // [pairs region.word]
}

}  // namespace

uint32_t host_of_region(const ControlRegion& region, uint32_t index) {
  return read_region(region, index).host_in(region);
}

bool inherit_region(const ControlRegion& region, uint32_t index, uint32_t dead_host, uint32_t heir) {
  const RegionWord found = read_region(region, index);
  return found.host_in(region) == dead_host && exchange_region(region, index, found, orphan_of(heir, found));
}

bool inherit_left_region(const ControlRegion& region, uint32_t index, uint32_t heir, uint32_t* ret_generation) {
  RegionWord found = read_region(region, index);
  const uint32_t host = found.host_in(region);
  if (found.state() != RegionState::kOrphaned || host >= region.hosts()) return false;
  // Behind the word: a host that has the slot after this look has given its regions another word, or finds this one's.
  if (!read_claim(region, host).is(HostState::kFree)) return false;
  const RegionWord inherited = orphan_of(heir, found);
  *ret_generation = inherited.generation();
  return exchange_region(region, index, found, inherited);
}

bool adopt_region(const ControlRegion& region, uint32_t index, uint32_t host) {
  const RegionWord found = read_region(region, index);
  if (found.host_in(region) != host) return false;
  if (found.state() != RegionState::kOrphaned) return true;
  return exchange_region(region, index, found, orphan_of(host, found));
}

void revive_retiring(const ControlRegion& region, uint32_t host, uint32_t page) {
  AtomicU64& word = region.block(page).word;
  PageWord found{word.load_acquire()};  // [pairs page.word]
  if (!found.is(PageState::kRetiring) || found.lane().lane != region.daemon_lane_of(host)) return;
  word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), 0).bits);
  flush(region, word);
}

uint32_t repair_entries(const ControlRegion& region, uint64_t from, uint64_t to) {
  constexpr uint32_t kSlots = uint32_t(limits::kBucketSlots);
  uint32_t repaired = 0;
  for (uint64_t index = from; index < to; ++index) {
    Bucket& home = region.bucket(index);
    for (uint32_t slot = 0; slot < 2 * kSlots; ++slot) {
      uint64_t header = home.tags.header.load_acquire();  // [pairs bucket.header]
      if ((header >> slot & 1) == 0) continue;
      const AtomicU64* location = nullptr;
      if (slot < kSlots) {
        location = &home.locations.location[slot];
      } else if ((header & kOverflowFlag) != 0) {
        const uint64_t link = uint32_t(home.locations.overflow.load_acquire());  // [pairs bucket.link]
        if (link != 0 && link <= region.overflow_buckets())
          location = &region.overflow(link - 1).locations.location[slot - kSlots];
      }
      const PageRef ref = PageRef::from_bits(location ? location->load_acquire() : 0);  // [pairs bucket.location]
      if (region.is_page(ref)) {
        const PageWord word{region.block(ref.page()).word.load_acquire()};  // [pairs page.word]
        if (word.is_findable(ref.generation()) || word.is(PageState::kRetired, ref.generation())) continue;
      }
      // If the header has changed since, the slot may have another entry.
      const uint64_t without = (header + kHeaderVersionOne) & ~(1ull << slot);
      repaired += home.tags.header.cas_seq_cst(header, without);  // [pairs bucket.header]
    }
    flush(region, home.tags);
  }
  return repaired;
}

void release_host_overflow(const ControlRegion& region, uint32_t host, uint64_t from, uint64_t to) {
  for (uint64_t i = from; i < to; ++i) {
    const uint64_t owner = region.overflow(i).tags.header.load_acquire();  // [pairs overflow.owner]
    const LaneId lane = LaneId::from_low(uint32_t(owner) & 0xFFF'FFFF);
    if (owner != 0 && lane != LaneId{} && lane.lane < region.lanes() && region.host_of_lane(lane.lane) == host)
      release_overflow_bucket(region, i, owner);
  }
}

void clear_host_lane(const ControlRegion& region, uint32_t lane) {
  clear_pins(region, lane);
  clear_lane(region, lane);
  LaneIdentity& identity = region.identity(lane);
  const uint64_t generation = identity.state.load_relaxed() >> 48;  // no other writer: the host is dead
  identity.process.store_relaxed(0);                                // published by the state
  identity.start_time.store_relaxed(0);
  identity.boot_id_lo.store_relaxed(0);
  identity.boot_id_hi.store_relaxed(0);
  identity.pid_namespace.store_relaxed(0);
  identity.credentials.store_relaxed(0);
  identity.attached_ms.store_relaxed(0);
  identity.state.store_release(generation << 48 | uint64_t(LaneState::kFree));
  flush(region, identity);
  set_lane_bit(region, lane, false);
}

void set_lane_bit(const ControlRegion& region, uint32_t lane, bool is_in_use) {
  AtomicU64& word = region.lane_bitmap().words[lane / 64];
  const uint64_t bit = 1ull << lane % 64;
  uint64_t found = word.load_acquire();  // the CAS decides
  // A failure is another host's success on one of its own lanes, or a process scribbles. [pairs lanes.in_use]
  for (uint32_t tries = 0; ((found & bit) != 0) != is_in_use && !word.cas_seq_cst(found, found ^ bit); ++tries)
    if (tries == limits::kPageWordRetries) {
      word.exchange_seq_cst(found ^ bit);
      break;
    }
  flush(region, word);
}

}  // namespace maru::shm
