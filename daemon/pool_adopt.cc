// Taking over a pool that another marud left. Clients may be at work meanwhile: lanes that the identities call live stay
// live until their processes are proven gone, and nothing of theirs is touched. What names nobody is freed, counts of
// children are checked in one pass, and the lists are built anew from the ticks.
#include "daemon/log.h"
#include "daemon/pool_state.h"
#include "libmaru/shm/host_reclaim.h"
#include "libmaru/shm/region_handover.h"

#include <algorithm>

namespace maru::daemon {

// ret_dead: lanes that the last marud was taking back.
void Pool::State::adopt_lanes(std::vector<LaneId>* ret_dead) {
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i)
    totals.counters[i] = region.lane(lanes.first).header->counters[i].load_relaxed();  // the last marud is gone
  uint64_t bits[limits::kLanesMax / 64];
  for (uint32_t w = 0; w < std::size(bits); ++w) bits[w] = region.lane_bitmap().words[w].load_seq_cst();
  for (uint32_t lane = lanes.first + 1; lane < lanes.end; ++lane) {
    const format::LaneIdentity& identity = region.identity(lane);
    const uint64_t state = identity.state.load_acquire();
    LaneRecord& record = lanes.records[lane];
    record.generation = uint32_t(state >> 48);
    const bool has_bit = (bits[lane / 64] >> lane % 64 & 1) != 0;
    const uint64_t pid = identity.process.load_relaxed();
    if ((state & 0xFF) == uint64_t(format::LaneState::kLive) && record.generation != 0 && pid > 0 &&
        pid <= 0x7FFF'FFFF) {
      record.phase = LaneRecord::Phase::kLive;
      record.is_adopted = true;
      record.who.pid = pid_t(pid);
      record.who.start_time = identity.start_time.load_relaxed();
      const uint64_t credentials = identity.credentials.load_relaxed();
      record.who.uid = uid_t(credentials >> 32);
      record.who.gid = gid_t(credentials);
      record.attached_ms = identity.attached_ms.load_relaxed();
      record.touches.resume(region.lane_header(lane).touches_read.load_relaxed());  // the last marud is gone
      record.pid_namespace = identity.pid_namespace.load_relaxed();
      record.same_boot =
          identity.boot_id_lo.load_relaxed() == boot_id[0] && identity.boot_id_hi.load_relaxed() == boot_id[1];
      lanes.in_use.add(lane);
      continue;
    }
    // The last marud was taking it back, or about to hand it out: nobody knows of it.
    if (!has_bit && (state & 0xFF) == uint64_t(format::LaneState::kFree)) continue;
    ret_dead->push_back(lanes.id(lane));
    take_counters(lane);
    shm::clear_pins(region, lane);
    shm::reclaim_intents(region, lane, findings);
    shm::clear_lane(region, lane);
    show_lane(lane, format::LaneState::kFree);
  }
  // Pins and intents of marud's own lane are of the marud before.
  shm::clear_pins(region, lanes.first);
  shm::reclaim_intents(region, lanes.first, findings);
  if (region.is_shared()) lanes.in_use.add(lanes.first);
  show_lane_bits();
}

void Pool::State::adopt_regions() {
  for (uint32_t i = 0; i < regions.size(); ++i) {
    const bool is_own = !region.is_shared() || shm::adopt_region(region, i, hosts.self);
    const shm::RegionWord shown{region.region(i).word.load_acquire()};  // [pairs region.word]
    RegionEntry& entry = regions[i];
    entry.generation = shown.generation();
    entry.is_foreign = false;
    if (!is_own) {
      entry.is_foreign = shown.state() != RegionState::kUnused;
      entry.state = entry.is_foreign ? RegionState::kDraining : RegionState::kUnused;
      continue;
    }
    entry.state = RegionState::kDraining;  // until its pages have said what it is
    if (shown.state() == RegionState::kRented && lanes.is_live(shown.owner().lane) && !lanes.is_dead(shown.owner())) {
      entry.state = RegionState::kRented;
      entry.owner = shown.owner();
    }
  }
}

// Overflow buckets whose word names a lane that left them. One pass, whatever names somebody wrote there.
void Pool::State::adopt_overflow() {
  for (uint64_t i = 0; i < region.overflow_buckets(); ++i) {
    const uint64_t owner = region.overflow(i).tags.header.load_acquire();  // [pairs overflow.owner]
    const auto low = uint32_t(owner & 0xFFF'FFFF);
    if (low != 0 && lanes.is_dead(LaneId::from_low(low))) shm::release_overflow_bucket(region, i, owner);
  }
}

void Pool::State::adopt_pages(std::span<const LaneId> dead) {
  // Children of each page, as the children say. Clients change things while this counts, so it only tells whom to recount.
  std::vector<uint32_t> children(pages(), 0);
  // In a durable pool the length that a head's line says is walked for its tails, and clients wrote that: so of a region with a
  // dead head all tails of the dead go first, in one walk.
  const auto tails = region.is_durable() ? shm::Tails::kAreFreed : shm::Tails::kToFree;
  uint64_t tails_freed_to = 0;  // page
  for (uint64_t i = 0; i < pages(); ++i) {
    const auto page = uint32_t(i);
    PageWord now = word(page);
    const bool is_own_mark = !region.is_shared() || now.lane().lane == lanes.first;
    if (now.is(PageState::kRetiring) && is_own_mark) {
      region.block(page).word.cas_seq_cst(now.bits, PageWord::ready(now.generation(), 0).bits);
      now = word(page);
    }
    if (now.names_lane() && lanes.is_dead(now.lane())) {
      if (region.is_durable() && i >= tails_freed_to) {
        const uint64_t first = i - i % region.region_pages();
        tails_freed_to = std::min(first + region.region_pages(), pages());
        shm::free_dead_tails(region, lanes, uint32_t(first), uint32_t(tails_freed_to), findings);
      }
      shm::reclaim_pages(self, lanes, page, page + 1, findings, tails);
      now = word(page);
    }
    if (now.is(PageState::kPoisoned) || now.is(PageState::kReady) || now.is(PageState::kReserved)) adopt_poison(page);
    if (now.is(PageState::kRetired) && now.lane() == lanes.daemon) queue_retired(PageRef::of(page, now.generation()));
    // The pins that told of it are gone, so every block of those lanes is asked for.
    if (!dead.empty() && now.is(PageState::kReady)) {
      const LaneId publisher = LaneId::from_low(uint32_t(region.detail(page).owner.load_relaxed()));  // a hint
      if (std::find(dead.begin(), dead.end(), publisher) != dead.end() && !shm::is_registered(region, page))
        findings.unregistered(PageRef::of(page, now.generation()));
    }
    if (!now.is(PageState::kSealed) && !now.is(PageState::kReady) && !now.is(PageState::kRetired)) continue;
    const PageRef parent = PageRef::from_bits(region.block(page).parent.load_acquire());  // checked before use
    if (region.is_page(parent) && word(parent.page()).generation() == parent.generation()) ++children[parent.page()];
  }
  for (uint64_t i = 0; i < pages(); ++i) {
    const auto page = uint32_t(i);
    const PageWord now = word(page);
    // Of other hosts' what a death of the last marud may have left too high; their own recounts are their own.
    if (now.is(PageState::kReady) && ((owns_page(page) && now.recount()) || now.children() > children[page]))
      findings.parents.push_back(PageRef::of(page, now.generation()));
  }
  children = {};
  for (int tries = 0; tries < 3 && !findings.parents.empty(); ++tries) {
    recount_again_ms = 0;
    step_recounts(pages());
  }
  adopt_overflow();
  for (uint32_t i = 0; i < regions.size(); ++i)
    if (regions[i].state == RegionState::kRented) {
      shm::open_region_pages(region, i);  // what the last marud was about to give
      show_region(i);
    } else if (!regions[i].is_foreign && !(region.is_shared() && regions[i].state == RegionState::kUnused)) {
      settle_region(i);
    }
  order.set_pool({tick(now_ms), pages(), region.region_pages(), region.page_bytes()});
  for (uint32_t i = 0; i < regions.size(); ++i) rebuild_queues(i);
  totals.queues_rebuilt = 0;
  drain_all_touches();
  // What the last marud had read of the lanes of other hosts nobody knows.
  for (uint32_t lane = 0; lane < lanes.records.size(); ++lane)
    if (!lanes.is_own(lane)) lanes.records[lane].lost_before = lanes.records[lane].touches.lost();
  take_findings();
  finish_all_retired();
}

// The whole audit costs more than everything above together, so a large pool is audited when somebody asks.
void Pool::State::adopt_audit() {
  if (pages() > kAuditedAtStartPages) {
    audit_json = {{"mode", "not at the start of so large a pool"}};
    return;
  }
  const nlohmann::json report = check_now();
  if (report["found"] != 0)
    log_warning("pool \"{}\" violates invariants of its format, which stay as they are: {}", config.name,
                report["violations"].dump().substr(0, 400));
}

}  // namespace maru::daemon
