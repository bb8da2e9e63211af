// Reclaim of a whole host, after the proof of its death (pool_hosts.cc) and with the claim that names this marud: the numbers
// are those of docs/format.md. In turns of bounded size; clients of this host store and read meanwhile.
//
// If marud dies here: the claim still says DEAD and names this host, so the next marud begins again.
#include "libmaru/shm/recovery/host_reclaim.h"
#include "daemon/base/log.h"
#include "daemon/pool/state.h"
#include "libmaru/shm/region/flush.h"

#include <algorithm>

namespace maru::daemon {

void Pool::State::begin_host_reclaim(uint32_t host) {
  HostReclaim& reclaim = hosts.reclaim;
  if (reclaim.host != kNoHost) {
    if (reclaim.host != host) hosts.waiting.push_back(host);
    return;
  }
  const shm::HostClaim claim = shm::read_claim(core.region, host);
  if (claim != shm::HostClaim::dead(claim.generation(), core.host, core.host_generation)) return;  // it waited too long
  reclaim = {};
  reclaim.host = host;
  reclaim.claim = claim;
  reclaim.children.assign(core.pages(), 0);
  lanes.dead_host = host;
  recency.drain(kTouchesPerDrain);
  for (uint32_t i = 0; i < regions.size(); ++i) {  // 1
    if (!shm::inherit_region(core.region, i, host, core.host)) continue;
    RegionEntry& entry = regions[i];
    entry = {};
    entry.state = RegionState::kOrphaned;
    entry.generation = shm::RegionWord{core.region.region(i).word.load_relaxed()}.generation();  // written just now
    queues.for_shelves(i, [&](uint32_t shelf) { queues.leave_unordered(shelf); });  // the entries are the dead host's
    reclaim.inherited.push_back(i);
  }
}

// 2 and 5: whether a step took some of the dead host's lanes, from `next` on, which is counted from its first one. A turn takes
// as many bytes of lanes as of the lines of `count` pages, and one lane at least.
template <typename Take>
bool Pool::State::take_dead_lanes(uint32_t& next, uint64_t count, Take&& take) {
  const uint32_t of_host = core.region.lanes_per_host(), first = core.region.daemon_lane_of(hosts.reclaim.host);
  if (next == of_host) return false;
  const uint64_t lanes_at_once = count * sizeof(format::BlockLine) / core.region.layout().lane_bytes;
  const auto to = uint32_t(std::min<uint64_t>(of_host, next + std::max<uint64_t>(1, lanes_at_once)));
  for (; next < to; ++next) take(first + next);
  return true;
}

// Returns true when there is more to do right away.
bool Pool::State::step_host_reclaim(uint64_t count) {
  HostReclaim& reclaim = hosts.reclaim;
  if (reclaim.host == kNoHost) return false;
  if (shm::read_claim(core.region, reclaim.host) != reclaim.claim) return drop_host_reclaim();
  const auto end_pins = [&](uint32_t lane) { shm::end_lane_pins(core.region, lane, findings); };
  if (take_dead_lanes(reclaim.next_unpinned, count, end_pins)) return true;  // 2
  const shm::HostLanes dead(core.region, reclaim.host);
  const uint64_t freed_before = findings.freed;
  for (uint64_t spent = 0; reclaim.next_page < core.pages() && spent < count; ++reclaim.next_page) {  // 3
    const auto page = uint32_t(reclaim.next_page);
    const PageWord before = core.word(page);
    spent += before.names_lane() && dead.is_dead(before.lane()) ? core.reclaim_cost(page) : 1;
    shm::revive_retiring(core.region, reclaim.host, page);
    shm::reclaim_pages(core.self, dead, page, page + 1, findings);
    const PageWord now = core.word(page);
    if (!now.is(PageState::kSealed) && !now.is(PageState::kReady) && !now.is(PageState::kRetired)) continue;
    const PageRef parent = PageRef::from_bits(core.region.block(page).parent.load_acquire());  // checked before use
    if (core.region.is_page(parent) && core.word(parent.page()).generation() == parent.generation())
      ++reclaim.children[parent.page()];
  }
  regions.own_frees += findings.freed - freed_before;
  if (reclaim.next_page < core.pages()) return true;
  const uint64_t last = std::min<uint64_t>(core.region.buckets(), reclaim.next_bucket + count / 4);
  reclaim.repaired_entries += shm::repair_entries(core.region, reclaim.next_bucket, last);  // 4
  reclaim.next_bucket = last;
  const auto clear = [&](uint32_t lane) {
    tenants.fold(lane);
    lanes.records[lane].touches.restart();
    shm::clear_host_lane(core.region, lane);
  };
  if (last < core.region.buckets() || compare_children(count) || settle_inherited(count) || release_overflow(count) ||
      take_dead_lanes(reclaim.next_cleared, count, clear))
    return true;
  finish_host_reclaim();
  return false;
}

// Counts may be too high in every region, those of third hosts, too; step_recounts passes these on when all is taken back.
// What clients store and delete meanwhile makes a difference of no meaning, or hides one until the next recount. Returns true
// unless there was nothing left to do.
bool Pool::State::compare_children(uint64_t count) {
  HostReclaim& reclaim = hosts.reclaim;
  if (reclaim.next_compared == core.pages()) return false;
  const uint64_t to = std::min(core.pages(), reclaim.next_compared + count);
  for (; reclaim.next_compared < to; ++reclaim.next_compared) {
    const auto page = uint32_t(reclaim.next_compared);
    const PageWord now = core.word(page);
    if (now.is(PageState::kReady) && (now.recount() || now.children() > reclaim.children[page]))
      reclaim.parents.push_back(PageRef::of(page, now.generation()));
  }
  return true;
}

// The inherited regions that are still nobody's, and the queues of those that are not another host's by now.
bool Pool::State::settle_inherited(uint64_t count) {
  HostReclaim& reclaim = hosts.reclaim;
  if (reclaim.next_inherited == reclaim.inherited.size()) return false;
  const size_t to = std::min<size_t>(
      reclaim.inherited.size(), reclaim.next_inherited + std::max<uint64_t>(1, count / core.region.region_pages()));
  for (; reclaim.next_inherited < to; ++reclaim.next_inherited) {
    const uint32_t index = reclaim.inherited[reclaim.next_inherited];
    if (regions[index].state == RegionState::kOrphaned) grants.settle_region(index);
    if (regions[index].state != RegionState::kUnused && !regions[index].is_foreign)
      queues.for_shelves(index,
                         [&](uint32_t shelf) { queues.mend(shelf); });  // an empty one may be another host's by now
  }
  return true;
}

// 5, what the dead had claimed beside the registry.
bool Pool::State::release_overflow(uint64_t count) {
  HostReclaim& reclaim = hosts.reclaim;
  if (reclaim.next_overflow == core.region.overflow_buckets()) return false;
  const uint64_t to = std::min(core.region.overflow_buckets(), reclaim.next_overflow + count / 4);
  shm::release_host_overflow(core.region, reclaim.host, reclaim.next_overflow, to);
  reclaim.next_overflow = to;
  return true;
}

// Somebody else took it over, who begins again, or has ended it; what follows may be another host's. False: nothing is left to
// do. Regions that were inherited until now are this host's, and the sweep settles them.
bool Pool::State::drop_host_reclaim() {
  HostReclaim& reclaim = hosts.reclaim;
  log_warning(
      "pool \"{}\": the claim of host {} was changed while this host took back what it held, which leaves the "
      "rest to who did that",
      core.config.name, reclaim.host);
  for (const PageRef parent : reclaim.parents) findings.parent_suspect(parent);
  reclaim = {};
  lanes.dead_host = kNoHost;
  return false;
}

void Pool::State::finish_host_reclaim() {
  HostReclaim& reclaim = hosts.reclaim;
  const uint32_t host = reclaim.host;
  for (const PageRef parent : reclaim.parents) findings.parent_suspect(parent);
  format::HostRecord& record = core.region.host(host);  // 6, but for the epoch, which goes on
  for (AtomicU64* field : {&record.boot_id_lo, &record.boot_id_hi, &record.process, &record.machine_id, &record.wanted})
    field->store_release(0);
  for (AtomicU64& part : record.name) part.store_release(0);
  shm::flush(core.region, record);
  const bool is_freed = shm::free_host(core.region, host, reclaim.claim);
  ++hosts.reclaimed;
  log_warning("pool \"{}\": what host {} held is taken back: {} regions, {} entries repaired{}", core.config.name, host,
              reclaim.inherited.size(), reclaim.repaired_entries,
              is_freed ? "" : "; its claim was changed meanwhile, and its slot stays as it is");
  reclaim = {};
  lanes.dead_host = kNoHost;
}

}  // namespace maru::daemon
