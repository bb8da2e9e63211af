#include "daemon/pool/hosts/host_reclaims.h"

#include "daemon/base/log.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/flush.h"

#include <algorithm>

namespace maru::daemon {

void HostReclaims::begin(uint32_t host) {
  HostReclaim& reclaim = now_;
  if (reclaim.host != kNoHost) {
    if (reclaim.host != host) waiting_.push_back(host);
    return;
  }
  const shm::HostClaim claim = shm::read_claim(core_.region, host);
  if (claim != shm::HostClaim::dead(claim.generation(), core_.host, core_.host_generation))
    return;  // it waited too long
  reclaim = {};
  reclaim.host = host;
  reclaim.claim = claim;
  reclaim.children.assign(core_.pages(), 0);
  lanes_.dead_host = host;
  recency_.drain(kTouchesPerDrain);
  for (uint32_t i = 0; i < regions_.size(); ++i) {  // 1
    if (!shm::inherit_region(core_.region, i, host, core_.host)) continue;
    RegionEntry& entry = regions_[i];
    entry = {};
    entry.state = RegionState::kOrphaned;
    entry.generation = shm::RegionWord{core_.region.region(i).word.load_relaxed()}.generation();  // written just now
    queues_.for_shelves(i, [&](uint32_t shelf) { queues_.leave_unordered(shelf); });  // the entries are the dead host's
    reclaim.inherited.push_back(i);
  }
}

// 2 and 5: whether a step took some of the dead host's lanes, from `next` on, which is counted from its first one. A turn takes
// as many bytes of lanes as of the lines of `count` pages, and one lane at least.
template <typename Take>
bool HostReclaims::take_dead_lanes(uint32_t& next, uint64_t count, Take&& take) {
  const uint32_t of_host = core_.region.lanes_per_host(), first = core_.region.daemon_lane_of(now_.host);
  if (next == of_host) return false;
  const uint64_t lanes_at_once = count * sizeof(format::BlockLine) / core_.region.layout().lane_bytes;
  const auto to = uint32_t(std::min<uint64_t>(of_host, next + std::max<uint64_t>(1, lanes_at_once)));
  for (; next < to; ++next) take(first + next);
  return true;
}

bool HostReclaims::step(uint64_t count) {
  HostReclaim& reclaim = now_;
  if (reclaim.host == kNoHost) return false;
  if (shm::read_claim(core_.region, reclaim.host) != reclaim.claim) return drop();
  const auto end_pins = [&](uint32_t lane) { shm::end_lane_pins(core_.region, lane, findings_); };
  if (take_dead_lanes(reclaim.next_unpinned, count, end_pins)) return true;  // 2
  const shm::HostLanes dead(core_.region, reclaim.host);
  const uint64_t freed_before = findings_.freed;
  for (uint64_t spent = 0; reclaim.next_page < core_.pages() && spent < count; ++reclaim.next_page) {  // 3
    const auto page = uint32_t(reclaim.next_page);
    const PageWord before = core_.word(page);
    spent += before.names_lane() && dead.is_dead(before.lane()) ? core_.reclaim_cost(page) : 1;
    shm::revive_retiring(core_.region, reclaim.host, page);
    shm::reclaim_pages(core_.self, dead, page, page + 1, findings_);
    const PageWord now = core_.word(page);
    if (!now.is(PageState::kSealed) && !now.is(PageState::kReady) && !now.is(PageState::kRetired)) continue;
    const PageRef parent = PageRef::from_bits(core_.region.block(page).parent.load_acquire());  // checked before use
    if (core_.region.is_page(parent) && core_.word(parent.page()).generation() == parent.generation())
      ++reclaim.children[parent.page()];
  }
  regions_.own_frees += findings_.freed - freed_before;
  if (reclaim.next_page < core_.pages()) return true;
  const uint64_t last = std::min<uint64_t>(core_.region.buckets(), reclaim.next_bucket + count / 4);
  reclaim.repaired_entries += shm::repair_entries(core_.region, reclaim.next_bucket, last);  // 4
  reclaim.next_bucket = last;
  const auto clear = [&](uint32_t lane) {
    tenants_.fold(lane);
    lanes_.records[lane].touches.restart();
    shm::clear_host_lane(core_.region, lane);
  };
  if (last < core_.region.buckets() || compare_children(count) || settle_inherited(count) || release_overflow(count) ||
      take_dead_lanes(reclaim.next_cleared, count, clear))
    return true;
  finish();
  return false;
}

// Counts may be too high in every region, also in regions of third hosts; step_recounts passes these on when all is taken back.
// Stores and deletes meanwhile make a difference of no meaning, or hide a difference until the next recount. Returns true
// unless there was nothing left to do.
bool HostReclaims::compare_children(uint64_t count) {
  HostReclaim& reclaim = now_;
  if (reclaim.next_compared == core_.pages()) return false;
  const uint64_t to = std::min(core_.pages(), reclaim.next_compared + count);
  for (; reclaim.next_compared < to; ++reclaim.next_compared) {
    const auto page = uint32_t(reclaim.next_compared);
    const PageWord now = core_.word(page);
    if (now.is(PageState::kReady) && (now.recount() || now.children() > reclaim.children[page]))
      reclaim.parents.push_back(PageRef::of(page, now.generation()));
  }
  return true;
}

// Settles the inherited regions that still have no owner, and the queues of regions that this host still has.
bool HostReclaims::settle_inherited(uint64_t count) {
  HostReclaim& reclaim = now_;
  if (reclaim.next_inherited == reclaim.inherited.size()) return false;
  const size_t to = std::min<size_t>(
      reclaim.inherited.size(), reclaim.next_inherited + std::max<uint64_t>(1, count / core_.region.region_pages()));
  for (; reclaim.next_inherited < to; ++reclaim.next_inherited) {
    const uint32_t index = reclaim.inherited[reclaim.next_inherited];
    if (regions_[index].state == RegionState::kOrphaned) grants_.settle_region(index);
    if (regions_[index].state != RegionState::kUnused && !regions_[index].is_foreign)
      queues_.for_shelves(index,
                          [&](uint32_t shelf) { queues_.mend(shelf); });  // an empty one may be another host's by now
  }
  return true;
}

// 5, the overflow buckets that the dead host had claimed beside the registry.
bool HostReclaims::release_overflow(uint64_t count) {
  HostReclaim& reclaim = now_;
  if (reclaim.next_overflow == core_.region.overflow_buckets()) return false;
  const uint64_t to = std::min(core_.region.overflow_buckets(), reclaim.next_overflow + count / 4);
  shm::release_host_overflow(core_.region, reclaim.host, reclaim.next_overflow, to);
  reclaim.next_overflow = to;
  return true;
}

// Another host took the reclaim over and begins again, or has ended it; the rest may be another host's. False: nothing is left
// to do. Regions that were inherited until now are this host's, and the sweep settles them.
bool HostReclaims::drop() {
  HostReclaim& reclaim = now_;
  log_warning(
      "pool \"{}\": the claim of host {} was changed while this host took back what it held, which leaves the "
      "rest to who did that",
      core_.config.name, reclaim.host);
  for (const PageRef parent : reclaim.parents) findings_.parent_suspect(parent);
  reclaim = {};
  lanes_.dead_host = kNoHost;
  return false;
}

void HostReclaims::finish() {
  HostReclaim& reclaim = now_;
  const uint32_t host = reclaim.host;
  for (const PageRef parent : reclaim.parents) findings_.parent_suspect(parent);
  format::HostRecord& record = core_.region.host(host);  // 6, but for the epoch, which goes on
  for (AtomicU64* field : {&record.boot_id_lo, &record.boot_id_hi, &record.process, &record.machine_id, &record.wanted})
    field->store_release(0);
  for (AtomicU64& part : record.name) part.store_release(0);
  shm::flush(core_.region, record);
  const bool is_freed = shm::free_host(core_.region, host, reclaim.claim);
  ++reclaimed_;
  log_warning("pool \"{}\": what host {} held is taken back: {} regions, {} entries repaired{}", core_.config.name,
              host, reclaim.inherited.size(), reclaim.repaired_entries,
              is_freed ? "" : "; its claim was changed meanwhile, and its slot stays as it is");
  reclaim = {};
  lanes_.dead_host = kNoHost;
}

bool HostReclaims::is_known(uint32_t host) const {
  return now_.host == host || std::find(waiting_.begin(), waiting_.end(), host) != waiting_.end();
}

void HostReclaims::begin_next() {
  if (now_.host != kNoHost || waiting_.empty()) return;
  const uint32_t next = waiting_.back();
  waiting_.pop_back();
  begin(next);
}

}  // namespace maru::daemon
