#include "cast_hosts.h"

#include "cast_wishes.h"
#include "tests/sim/mutants.h"

#include <algorithm>

namespace maru::sim::hosts {

using shm::HostClaim;
using shm::HostState;

std::array<HostPlay, kHosts> plays;
uint32_t late_life;
std::array<bool, kWorldKeys> may_go;
std::array<uint32_t, kWorldPages> evictors;

void begin_hosts() {
  plays.fill({});
  late_life = 0;
  may_go.fill(false);
  evictors.fill(0);
}

uint32_t marud_lane(uint32_t host) { return world().daemon_lane_of(host); }
uint32_t client_lane(uint32_t host) { return marud_lane(host) + 1; }
Client& marud_of(uint32_t host) { return client(marud_lane(host)); }

namespace {

// Whether the machine is lost that had the slot in this life.
bool life_is_over(uint32_t host, uint32_t life) {
  if (host != kRejoined || late_life == 0 || life < late_life) return host_died(host);
  return host_died(kLateMachine);
}

}  // namespace

bool is_lost(uint32_t host) { return life_is_over(host, plays[host].life); }

void note_going(uint32_t page) {
  const format::BlockLine& line = world().block(page);
  for (uint32_t key = 0; key < kWorldKeys; ++key)
    if (Digest{line.digest_lo.raw, line.digest_hi.raw} == key_digest(key)) may_go[key] = true;
}

shm::LaneSet lanes_of(uint32_t host) {
  shm::LaneSet lanes;
  for (uint32_t i = 0; i < world().lanes_per_host(); ++i) lanes.add(marud_lane(host) + i);
  return lanes;
}

void evict_as(uint32_t host, uint32_t page) {
  note_going(page);
  ++evictors[page];
  // What other hosts have handed out is known as of now; the product knows its own lanes and no others at this point.
  const shm::LaneSet known = shm::with_other_hosts(world(), lanes_of(host));
  PageRef retired;
  const size_t count = shm::retire_unpinned(marud_of(host).context, known, &page, 1, &plays[host].attempts, &retired);
  if (count == 1) note_going(page);  // another block may have come into the page meanwhile
  --evictors[page];
  if (count == 1) shm::free_retired(marud_of(host).context, retired, nullptr);
}

void evict_some(uint32_t host) {
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    if (shm::host_of_region(world(), world().region_of(page)) != host || !chance().chance(3)) continue;
    const PageWord word{world().block(page).word.load_acquire()};
    if (word.is(PageState::kReady) && word.low() == 0) evict_as(host, page);
  }
}

void free_own_retired(uint32_t host) {
  Client& daemon = marud_of(host);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    // Handed over to an older marud of this host: as sweep_page() does.
    const bool is_ours = word.is(PageState::kRetired) && word.lane().lane == daemon.lane.lane;
    const PageRef ref = PageRef::of(page, word.generation());
    if (is_ours && !(word.lane() == daemon.lane)) shm::hand_over_retired(world(), ref, word.lane(), daemon.lane);
    if (is_ours) shm::finish_retired(daemon.context, ref, lanes_of(host), nullptr);
  }
}

void recount(uint32_t host, Findings& findings) {
  std::array<shm::Recount, 4 * kWorldPages> own;
  size_t count = 0;
  for (size_t i = 0; i < findings.suspect_count; ++i) {
    const PageRef parent = findings.suspects[i].parent;
    if (shm::host_of_region(world(), world().region_of(parent.page())) == host)
      own[count++].parent = parent;
    else
      shm::leave_touch(world().lane(marud_lane(host)), parent.page(), 0);
  }
  std::sort(own.begin(), own.begin() + ptrdiff_t(count),
            [](const shm::Recount& a, const shm::Recount& b) { return a.parent.bits < b.parent.bits; });
  const std::span<shm::Recount> recounts{own.data(), count};
  const shm::HostLanes nobody(world(), kHosts);
  size_t again = count;
  for (uint32_t tries = 0; again > 0 && tries < 20; ++tries) {  // what stays too high is counted at the end
    shm::recount_begin(world(), recounts);
    shm::recount_pages(world(), recounts, nobody, 0, kWorldPages);
    again = shm::recount_commit(world(), recounts, lanes_of(host));
    if (again > 0) yield();
  }
}

void serve_recounts(uint32_t host) {
  Findings findings;
  for (uint32_t other = 0; other < kHosts; ++other) {
    if (other == host) continue;
    shm::Touch touches[8];
    const size_t count = plays[host].readers[other].read(world().lane(marud_lane(other)), 1u << 20, kWorldPages,
                                                         touches, std::size(touches));
    for (size_t i = 0; i < count; ++i) {
      const PageWord word{world().block(touches[i].page).word.load_acquire()};
      if (word.is(PageState::kReady) && word.children() != 0 &&
          shm::host_of_region(world(), world().region_of(touches[i].page)) == host)
        findings.parent_suspect(PageRef::of(touches[i].page, word.generation()));
    }
  }
  if (findings.suspect_count > 0) recount(host, findings);
}

bool holds_retired(uint32_t host) {
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{world().block(page).word.load_acquire()};
    if (word.is(PageState::kRetired) && word.lane().lane == marud_lane(host)) return true;
  }
  return false;
}

namespace {

// The numbers of docs/format.md.
void take_back(uint32_t self, uint32_t dead) {
  note("host %u takes back what host %u held", self, dead);
  if (plays[dead].taken_back_by != kHosts)
    fail("hosts %u and %u take back host %u at once", plays[dead].taken_back_by, self, dead);
  plays[dead].taken_back_by = self;
  const shm::ControlRegion& region = world();
  Findings findings;
  for (uint32_t i = 0; i < region.regions(); ++i)  // 1
    if (shm::inherit_region(region, i, dead, self)) inherit_from_the_dead(i, self);
  const uint32_t first = marud_lane(dead), end = first + region.lanes_per_host();
  for (uint32_t lane = first; lane < end; ++lane) shm::end_lane_pins(region, lane, findings);  // 2
  const shm::HostLanes lanes(region, dead);
  for (uint32_t page = 0; page < kWorldPages; ++page) shm::revive_retiring(region, dead, page);  // 3
  shm::reclaim_pages(marud_of(self).context, lanes, 0, kWorldPages, findings);
  free_own_retired(self);
  for (size_t i = 0; i < findings.orphan_count; ++i) evict_as(self, findings.orphans[i]);
  for (uint32_t page = 0; page < kWorldPages; ++page) {
    const PageWord word{region.block(page).word.load_acquire()};
    if (word.is(PageState::kReady) && word.children() != 0)
      findings.parent_suspect(PageRef::of(page, word.generation()));
  }
  recount(self, findings);
  shm::repair_entries(region, 0, region.buckets());     // 4
  const uint64_t overflow = region.overflow_buckets();  // 5
  shm::release_host_overflow(region, dead, 0, overflow / 2);
  shm::release_host_overflow(region, dead, overflow / 2, overflow);
  for (uint32_t lane = first; lane < end; ++lane) shm::clear_host_lane(region, lane);
  region.host(dead).wanted.store_release(0);
  settle();
  plays[dead].taken_back_by = kHosts;
  const HostClaim claim = shm::read_claim(region, dead);  // 6
  if (claim != HostClaim::dead(claim.generation(), self, plays[self].life))
    fail("host %u lost the right to take back host %u", self, dead);
  shm::free_host(region, dead, claim);
}

// Whether there is proof of a host's death. The negative control takes a late heartbeat for one.
bool has_proof(uint32_t host, uint32_t life) {
  return life_is_over(host, life) || (mutant(kMutantReclaimOnSuspicion) && plays[host].is_declared_by_suspicion);
}

// Returns true if this host is to take back what that one held.
bool declare_if_dead(uint32_t self, uint32_t host, HostClaim claim) {
  if (claim.is(HostState::kFree)) return false;
  if (claim.is(HostState::kDead))
    return shm::is_reclaimer_gone(world(), claim) &&
           shm::declare_host_dead(world(), host, claim, self, plays[self].life);
  if (!has_proof(host, claim.generation())) return false;
  for (uint32_t waits = late_life != 0 || chance().chance(3) ? chance().below(30) : 0; waits > 0; --waits)
    yield();  // the proof takes its time
  return shm::declare_proven_dead(world(), host, claim.generation(), self, plays[self].life);
}

}  // namespace

void watch_others(uint32_t self) {
  HostClaim mine = shm::read_claim(world(), marud_lane(self) / world().lanes_per_host());
  if (mine.is(HostState::kSuspect)) shm::host_is_well(world(), self, mine);
  for (uint32_t host = 0; host < kHosts; ++host) {
    if (host == self) continue;
    HostClaim claim = shm::read_claim(world(), host);
    // A clock that runs fast, or a host that is slow: nobody can tell it from death.
    if (claim.is(HostState::kLive) && (is_lost(host) || chance().chance(4))) {
      if (shm::suspect_host(world(), host, claim)) plays[host].is_declared_by_suspicion = true;
      claim = shm::read_claim(world(), host);
    }
    if (!declare_if_dead(self, host, claim)) continue;
    if (!life_is_over(host, claim.generation()) && !mutant(kMutantReclaimOnSuspicion))
      fail("host %u declares host %u dead, which lives", self, host);
    take_back(self, host);
  }
}

bool is_settled(uint32_t host) {
  if (host == kRejoined && late_life != 0) return process_ended(kLateClient);
  if (!host_died(host)) return process_ended(client_lane(host));
  return shm::read_claim(world(), host).is(HostState::kFree);
}

bool has_work(uint32_t self) {
  for (uint32_t host = 0; host < kHosts; ++host) {
    if (host == self) continue;
    const HostClaim claim = shm::read_claim(world(), host);
    if (claim.is(HostState::kDead) ? shm::is_reclaimer_gone(world(), claim)
                                   : claim.is_in_use() && life_is_over(host, claim.generation()))
      return true;
  }
  return false;
}

}  // namespace maru::sim::hosts
