#include "daemon/pool/removal/poison.h"

#include "daemon/memory/probe.h"
#include "libmaru/shm/recovery/poison.h"
#include "libmaru/shm/region/page_run.h"
#include "maru/follow.h"

#include <algorithm>
#include <fmt/format.h>

namespace maru::daemon {
namespace {

constexpr uint64_t kPoisonPauseMinMs = 20, kPoisonPauseMaxMs = 5000;
constexpr uint64_t kReportPauseMs = 1000;  // a page that read well is not read again for a client before that
constexpr size_t kReportsMax = 64;         // remembered
// A turn's share of the work that clients could have prepared at will before marud was started.
constexpr size_t kPoisonHeadsPerTurn = 4096, kPoisonRetriesPerTurn = 64;

}  // namespace

// -- poisoning --------------------------------------------------------------------------------------------------------

shm::PoisonStatus Poison::poison(uint32_t page) {
  const shm::PoisonResult result = shm::poison_page(core_.self, page);
  if (result.status == shm::PoisonStatus::kBusy) {
    if (std::find(waiting_.begin(), waiting_.end(), page) == waiting_.end()) waiting_.push_back(page);
    return result.status;
  }
  std::erase(waiting_, page);
  if (result.status != shm::PoisonStatus::kPoisoned) return result.status;
  if (result.before.is(PageState::kReady))
    feed_.removed_by(PageRef::of(page, result.before.generation()), MARU_FOLLOW_BY_BAD_MEMORY);
  queues_.remove(page);
  PoisonedPage poisoned = {PageRef::of(page, result.before.generation()), {}, 0};
  // The client that was filling it may have joined it to a run just now, and still writes behind it.
  if (result.before.is(PageState::kReserved)) poisoned.filler = result.before.lane();
  keep_poisoned(poisoned);
  pause_ms_ = 0;
  again_ms_ = 0;
  if (!result.head.is_none()) heads_.push_back(result.head);
  return result.status;
}

void Poison::keep_poisoned(const PoisonedPage& poisoned) {
  known_.add(poisoned.ref.page());
  held_.push_back(poisoned);
}

// Looks at runs with a bad page behind their head, a bounded number of them. A block goes; a buffer that is being filled is
// looked at again. Returns whether any went: then there may be more work right away.
bool Poison::look_at_poison_heads() {
  bool any_went = false;
  for (size_t looks = std::min(heads_.size(), kPoisonHeadsPerTurn); looks > 0; --looks) {
    if (head_next_ >= heads_.size()) head_next_ = 0;
    const PageRef head = heads_[head_next_];
    const PageWord found = core_.word(head.page());
    const bool is_same = found.generation() == head.generation();
    if (is_same && (found.is(PageState::kReserved) || found.is(PageState::kSealed))) {
      ++head_next_;
      continue;
    }
    heads_[head_next_] = heads_.back();
    heads_.pop_back();
    any_went = true;
    if (found.is_findable(head.generation())) poison(head.page());
  }
  return any_went;
}

// -- letting go -------------------------------------------------------------------------------------------------------

// Whether no process writes any more in the name of this lane, of any host.
bool Poison::is_over(LaneId lane) const {
  if (lanes_.is_dead(lane) || lanes_.is_own(lane.lane)) return lanes_.is_dead(lane);
  return !shm::LaneSet::in_use(core_.region).has(lane.lane) ||
         uint32_t(core_.region.identity(lane.lane).state.load_acquire() >> 48) != lane.generation;
}

// Notes the clients that other hosts have now. A later client fills nothing behind a page that is POISONED already.
void Poison::note_others() {
  others_.resize(core_.region.lanes());
  shm::LaneSet::in_use(core_.region).for_each(core_.region.lanes(), [&](uint32_t lane) {
    if (!lanes_.is_own(lane) && lane != core_.region.daemon_lane_of(core_.region.host_of_lane(lane)))
      others_[lane] = uint32_t(core_.region.identity(lane).state.load_acquire() >> 48);
  });
}

bool Poison::are_others_gone() {
  bool are_gone = true;
  for (uint32_t lane = 0; lane < others_.size(); ++lane) {
    if (others_[lane] != 0 && is_over({lane, others_[lane]})) others_[lane] = 0;
    are_gone &= others_[lane] == 0;
  }
  return are_gone;
}

// `has_below`: for the first of held_, whether a counting block still names it as its parent. Nothing can come below a POISONED
// page. So the result of a look after it was POISONED still holds. Goes on where the last slice ended. Returns true at the end,
// when held_ has only the pages that still hold something.
bool Poison::let_poison_go(const std::vector<bool>& has_below, uint64_t& budget) {
  const uint64_t oldest = lanes_.oldest_arrival(), cost = std::max(kStepsOfABlock, lanes_.look_lines());
  const bool are_gone = are_others_gone();
  bool has_noted = false;
  for (; go_next_ < held_.size(); ++go_next_) {
    if (budget == 0) return false;
    PoisonedPage poisoned = held_[go_next_];
    const uint32_t page = poisoned.ref.page();
    --budget;
    if (!core_.word(page).is(PageState::kPoisoned)) {  // a client scribbled
      known_.remove(page);
      continue;
    }
    if (poisoned.filler && is_over(*poisoned.filler)) poisoned.filler.reset();
    if (poisoned.others == PoisonedPage::Others::kUnknown) {
      if (!has_noted) note_others();
      has_noted = true;
      poisoned.others = PoisonedPage::Others::kNoted;
    } else if (are_gone) {
      poisoned.others = PoisonedPage::Others::kNone;
    }
    // Poisoned since that was looked for: may have some.
    const bool may_have_below = go_next_ >= has_below.size() || has_below[go_next_];
    bool stays = may_have_below || poisoned.filler || oldest < poisoned.filled_before ||
                 poisoned.others != PoisonedPage::Others::kNone;
    if (!stays) {
      budget -= std::min(budget, cost);
      stays = !shm::is_poison_unpinned(core_.self, lanes_.in_use, page);
    }
    if (stays) {
      held_[go_kept_++] = poisoned;
      continue;
    }
    PageRef parent;
    regions_.own_frees += shm::let_poison_go(core_.region, page, &parent);
    lanes_.let_go.insert(page);
    known_.remove(page);
    if (!parent.is_none()) findings_.parent_suspect(parent);
  }
  held_.resize(go_kept_);
  go_next_ = go_kept_ = 0;
  return true;
}

// The blocks below POISONED blocks go, leaves first: all that may go at once. A pinned block loses its key now and its memory
// later. Returns true when more work can be done right away.
bool Poison::step() {
  for (size_t tries = std::min(waiting_.size(), kPoisonRetriesPerTurn); tries > 0; --tries) {
    const uint32_t page = waiting_.front();
    waiting_.erase(waiting_.begin());
    poison(page);  // at the end again if it is still being published
  }
  const bool more_heads = look_at_poison_heads();
  if (!walk_) {
    if (held_.empty() || rests(core_.now_ms, again_ms_, kPoisonPauseMaxMs)) return more_heads;
    std::vector<PageRef> roots;
    for (const PoisonedPage& poisoned : held_) roots.push_back(poisoned.ref);
    trees_.begin(walk_.emplace(), std::move(roots));
    walk_->retires = true;
  }
  uint64_t budget = kTreeStepsPerTurn;
  if (!trees_.step(*walk_, budget)) return true;
  const bool has_new = held_.size() > walk_->has_below.size();
  if (!let_poison_go(walk_->has_below, budget)) return true;
  walk_.reset();
  if (has_new) pause_ms_ = 0;
  pause_ms_ = std::clamp(pause_ms_ * 2, kPoisonPauseMinMs, kPoisonPauseMaxMs);
  again_ms_ = core_.now_ms + pause_ms_;
  return more_heads;
}

void Poison::adopt(uint32_t page) {
  const PageWord found = core_.word(page);
  if (found.is(PageState::kPoisoned)) {
    PoisonedPage poisoned = {PageRef::of(page, found.generation()), {}, 0};
    // The page's earlier state is unknown: pages behind it wait for every client of that time.
    if (page % core_.region.region_pages() + 1 < core_.region.region_pages() &&
        core_.word(page + 1).is(PageState::kTail)) {
      poisoned.filled_before = lanes_.next_arrival;
      if (core_.region.is_shared()) poisoned.others = PoisonedPage::Others::kUnknown;
    }
    keep_poisoned(poisoned);
  } else if (found.is_findable(found.generation()) && shm::has_poisoned_tail(core_.region, page)) {
    poison(page);
  } else if (found.is(PageState::kReserved) && shm::has_poisoned_tail(core_.region, page)) {
    heads_.push_back(PageRef::of(page, found.generation()));
  }
}

void Poison::know(uint32_t page) {
  if (!lanes_.let_go.contains(page) && !known_.has(page)) adopt(page);
}

// -- the reports ------------------------------------------------------------------------------------------------------

std::string Poison::report_bad_page(uint64_t page) {
  if (page >= core_.pages()) return {};
  if (core_.word(uint32_t(page)).is(PageState::kPoisoned)) return {};
  const auto known =
      std::find_if(reports_.begin(), reports_.end(), [&](const Report& report) { return report.page == page; });
  if (known != reports_.end() && rests(core_.now_ms, known->at_ms + kReportPauseMs, kReportPauseMs)) return {};
  const auto bad = probe_memory(*core_.device, core_.device_byte(page), core_.region.page_bytes());
  if (bad && !bad->empty()) {
    std::erase_if(reports_, [&](const Report& report) { return report.page == page; });
    const bool is_done = poison(uint32_t(page)) != shm::PoisonStatus::kBusy;
    look_at_poison_heads();
    return fmt::format("page {} has bad memory at byte {} of {}: it {} out of use for ever, and its block is a miss",
                       page, bad->front().offset, core_.device->name(),
                       is_done ? "is" : "goes as soon as it was published");
  }
  if (known != reports_.end()) {
    known->at_ms = core_.now_ms;
  } else {
    if (reports_.size() == kReportsMax) reports_.erase(reports_.begin());
    reports_.push_back({uint32_t(page), core_.now_ms});
  }
  return fmt::format(
      "page {} is said to have bad memory, but marud {}: it stays in use (marudctl memory poison {} takes it "
      "away)",
      page, bad ? "reads all of it" : "cannot look: " + bad.error().text(), page);
}

}  // namespace maru::daemon
