// Bad memory in a pool. Somebody says that a page is bad: the administrator, a client that met it, or the kernel. A page of
// payload becomes POISONED, by one CAS and for ever, and its block a miss; docs/format.md, "Poison", has the steps. What the
// block still holds is let go when nobody pins it and nothing is below it: this is asked for in turns, with growing pauses,
// since a pin may last. Of the control region nothing can be taken away: whoever hosts the pool fences it.
//
// If marud dies here: the page words say what is POISONED; the next marud takes all of it for not let go yet.
#include "libmaru/shm/recovery/poison.h"
#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/memory/probe.h"
#include "daemon/pool/state.h"
#include "libmaru/shm/region/page_run.h"
#include "maru/follow.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kPoisonPauseMinMs = 20, kPoisonPauseMaxMs = 5000;
constexpr uint64_t kReportPauseMs = 1000;           // a page that read well is not read again for a client before that
constexpr size_t kReportsMax = 64;                  // remembered
constexpr uint64_t kLinesPerPoisonList = 1u << 18;  // and one page at least
// A turn's part of what clients could have prepared at will before marud was started.
constexpr size_t kPoisonHeadsPerTurn = 4096, kPoisonRetriesPerTurn = 64;

}  // namespace

// -- poisoning --------------------------------------------------------------------------------------------------------

shm::PoisonStatus Pool::State::poison(uint32_t page) {
  const shm::PoisonResult result = shm::poison_page(core.self, page);
  if (result.status == shm::PoisonStatus::kBusy) {
    if (std::find(poison_waiting.begin(), poison_waiting.end(), page) == poison_waiting.end())
      poison_waiting.push_back(page);
    return result.status;
  }
  std::erase(poison_waiting, page);
  if (result.status != shm::PoisonStatus::kPoisoned) return result.status;
  if (result.before.is(PageState::kReady))
    feed.removed_by(PageRef::of(page, result.before.generation()), MARU_FOLLOW_BY_BAD_MEMORY);
  queues.remove(page);
  PoisonedPage poisoned = {PageRef::of(page, result.before.generation()), {}, 0};
  // Whoever was filling it may have joined it to a run just now, and still writes behind it.
  if (result.before.is(PageState::kReserved)) poisoned.filler = result.before.lane();
  keep_poisoned(poisoned);
  poison_pause_ms = 0;
  poison_again_ms = 0;
  if (!result.head.is_none()) poison_heads.push_back(result.head);
  return result.status;
}

void Pool::State::keep_poisoned(const PoisonedPage& poisoned) {
  poison_known.add(poisoned.ref.page());
  poison_held.push_back(poisoned);
}

// Runs with a bad page behind their head, a bounded number of them. What is a block goes; what is being filled is looked at
// again. Returns whether any went: then there may be more to do right away.
bool Pool::State::look_at_poison_heads() {
  bool any_went = false;
  for (size_t looks = std::min(poison_heads.size(), kPoisonHeadsPerTurn); looks > 0; --looks) {
    if (poison_head_next >= poison_heads.size()) poison_head_next = 0;
    const PageRef head = poison_heads[poison_head_next];
    const PageWord found = core.word(head.page());
    const bool is_same = found.generation() == head.generation();
    if (is_same && (found.is(PageState::kReserved) || found.is(PageState::kSealed))) {
      ++poison_head_next;
      continue;
    }
    poison_heads[poison_head_next] = poison_heads.back();
    poison_heads.pop_back();
    any_went = true;
    if (found.is_findable(head.generation())) poison(head.page());
  }
  return any_went;
}

// -- letting go -------------------------------------------------------------------------------------------------------

// Whether nobody writes any more in the name of this lane, of whatever host it is.
bool Pool::State::is_over(LaneId lane) const {
  if (lanes.is_dead(lane) || lanes.is_own(lane.lane)) return lanes.is_dead(lane);
  return !shm::LaneSet::in_use(core.region).has(lane.lane) ||
         uint32_t(core.region.identity(lane.lane).state.load_acquire() >> 48) != lane.generation;
}

// The clients that other hosts have now. Who comes later fills nothing behind a page that is POISONED already.
void Pool::State::note_others() {
  poison_others.resize(core.region.lanes());
  shm::LaneSet::in_use(core.region).for_each(core.region.lanes(), [&](uint32_t lane) {
    if (!lanes.is_own(lane) && lane != core.region.daemon_lane_of(core.region.host_of_lane(lane)))
      poison_others[lane] = uint32_t(core.region.identity(lane).state.load_acquire() >> 48);
  });
}

bool Pool::State::are_others_gone() {
  bool are_gone = true;
  for (uint32_t lane = 0; lane < poison_others.size(); ++lane) {
    if (poison_others[lane] != 0 && is_over({lane, poison_others[lane]})) poison_others[lane] = 0;
    are_gone &= poison_others[lane] == 0;
  }
  return are_gone;
}

// `has_below`: for the first of poison_held, whether something that counts still names it as its parent. Nothing can come below
// a POISONED page, so what was true when it was looked for, since it was POISONED, is true now. Goes on where the last slice
// ended; returns true at the end, when what still holds something stands in poison_held alone.
bool Pool::State::let_poison_go(const std::vector<bool>& has_below, uint64_t& budget) {
  const uint64_t oldest = lanes.oldest_arrival(), cost = std::max(kStepsOfABlock, lanes.look_lines());
  const bool are_gone = are_others_gone();
  bool has_noted = false;
  for (; poison_go_next < poison_held.size(); ++poison_go_next) {
    if (budget == 0) return false;
    PoisonedPage poisoned = poison_held[poison_go_next];
    const uint32_t page = poisoned.ref.page();
    --budget;
    if (!core.word(page).is(PageState::kPoisoned)) {  // somebody scribbled
      poison_known.remove(page);
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
    const bool may_have_below = poison_go_next >= has_below.size() || has_below[poison_go_next];
    bool stays = may_have_below || poisoned.filler || oldest < poisoned.filled_before ||
                 poisoned.others != PoisonedPage::Others::kNone;
    if (!stays) {
      budget -= std::min(budget, cost);
      stays = !shm::is_poison_unpinned(core.self, lanes.in_use, page);
    }
    if (stays) {
      poison_held[poison_go_kept++] = poisoned;
      continue;
    }
    PageRef parent;
    regions.own_frees += shm::let_poison_go(core.region, page, &parent);
    lanes.let_go.insert(page);
    poison_known.remove(page);
    if (!parent.is_none()) findings.parent_suspect(parent);
  }
  poison_held.resize(poison_go_kept);
  poison_go_next = poison_go_kept = 0;
  return true;
}

// The blocks below POISONED ones, leaves first, go: all that may go at once, of what is pinned the key now and the memory
// later. Returns true when there is more to do right away.
bool Pool::State::step_poison() {
  for (size_t tries = std::min(poison_waiting.size(), kPoisonRetriesPerTurn); tries > 0; --tries) {
    const uint32_t page = poison_waiting.front();
    poison_waiting.erase(poison_waiting.begin());
    poison(page);  // at the end again if it is still being published
  }
  const bool more_heads = look_at_poison_heads();
  if (!poison_walk) {
    if (poison_held.empty() || rests(core.now_ms, poison_again_ms, kPoisonPauseMaxMs)) return more_heads;
    std::vector<PageRef> roots;
    for (const PoisonedPage& poisoned : poison_held) roots.push_back(poisoned.ref);
    begin_tree(poison_walk.emplace(), std::move(roots));
    poison_walk->retires = true;
  }
  uint64_t budget = kTreeStepsPerTurn;
  if (!step_tree(*poison_walk, budget)) return true;
  const bool has_new = poison_held.size() > poison_walk->has_below.size();
  if (!let_poison_go(poison_walk->has_below, budget)) return true;
  poison_walk.reset();
  if (has_new) poison_pause_ms = 0;
  poison_pause_ms = std::clamp(poison_pause_ms * 2, kPoisonPauseMinMs, kPoisonPauseMaxMs);
  poison_again_ms = core.now_ms + poison_pause_ms;
  return more_heads;
}

// A page that the marud before left POISONED, or a block with one in its run.
void Pool::State::adopt_poison(uint32_t page) {
  const PageWord found = core.word(page);
  if (found.is(PageState::kPoisoned)) {
    PoisonedPage poisoned = {PageRef::of(page, found.generation()), {}, 0};
    // Nobody knows any more what it was: pages behind it wait for every client of that time.
    if (page % core.region.region_pages() + 1 < core.region.region_pages() &&
        core.word(page + 1).is(PageState::kTail)) {
      poisoned.filled_before = lanes.next_arrival;
      if (core.region.is_shared()) poisoned.others = PoisonedPage::Others::kUnknown;
    }
    keep_poisoned(poisoned);
  } else if (found.is_findable(found.generation()) && shm::has_poisoned_tail(core.region, page)) {
    poison(page);
  } else if (found.is(PageState::kReserved) && shm::has_poisoned_tail(core.region, page)) {
    poison_heads.push_back(PageRef::of(page, found.generation()));
  }
}

// Of a region that another host had before, or that is nobody's: perhaps nobody is left who lets it go.
void Pool::State::know_poison(uint32_t page) {
  if (!lanes.let_go.contains(page) && !poison_known.has(page)) adopt_poison(page);
}

// -- who says so ------------------------------------------------------------------------------------------------------

std::string Pool::State::report_bad_page(uint64_t page) {
  if (page >= core.pages()) return {};
  if (core.word(uint32_t(page)).is(PageState::kPoisoned)) return {};
  const auto known = std::find_if(poison_reports.begin(), poison_reports.end(),
                                  [&](const PoisonReport& report) { return report.page == page; });
  if (known != poison_reports.end() && rests(core.now_ms, known->at_ms + kReportPauseMs, kReportPauseMs)) return {};
  const auto bad = probe_memory(*core.device, core.device_byte(page), core.region.page_bytes());
  if (bad && !bad->empty()) {
    std::erase_if(poison_reports, [&](const PoisonReport& report) { return report.page == page; });
    const bool is_done = poison(uint32_t(page)) != shm::PoisonStatus::kBusy;
    look_at_poison_heads();
    return fmt::format("page {} has bad memory at byte {} of {}: it {} out of use for ever, and its block is a miss",
                       page, bad->front().offset, core.device->name(),
                       is_done ? "is" : "goes as soon as it was published");
  }
  if (known != poison_reports.end()) {
    known->at_ms = core.now_ms;
  } else {
    if (poison_reports.size() == kReportsMax) poison_reports.erase(poison_reports.begin());
    poison_reports.push_back({uint32_t(page), core.now_ms});
  }
  return fmt::format(
      "page {} is said to have bad memory, but marud {}: it stays in use (marudctl memory poison {} takes it "
      "away)",
      page, bad ? "reads all of it" : "cannot look: " + bad.error().text(), page);
}

json Pool::State::poison_command(const json& request) {
  uint64_t page = number_in(request, "page", ~uint64_t{0});
  if (request.contains("page") == request.contains("key"))
    return refusal(EINVAL, "\"page\" or \"key\", one of them, says which page is bad");
  if (request.contains("key")) {
    shm::Digest digest;
    json none;
    const PageRef ref = named_block(request, &digest, &none);
    if (ref.is_none()) return none;
    page = ref.page();
  }
  if (page >= core.pages())
    return refusal(ERANGE, "\"page\": found " + json_text(request["page"]) + ", expected 0 to " +
                               std::to_string(core.pages() - 1) + " (marudctl blocks KEY names the page of a block)");
  const PageWord before = core.word(uint32_t(page));
  const shm::PoisonStatus status = poison(uint32_t(page));
  step_poison();
  return {{"page", page},
          {"was", page_state_name(before.state())},
          {"result", status == shm::PoisonStatus::kPoisoned  ? "poisoned"
                     : status == shm::PoisonStatus::kAlready ? "was poisoned already"
                                                             : "goes as soon as it was published"}};
}

json Pool::State::list_poisoned(const json& request) {
  const uint64_t rows_max = rows_in(request);
  json rows = json::array();
  uint64_t page = number_in(request, "cursor", 0);
  const auto add = [&](uint64_t at, const char* state) {
    json row = {{"page", at}, {"state", state}, {"device_byte", core.device_byte(at)}};
    if (std::string_view(state) == "poisoned") {
      core.meter.add(lanes.look_lines());
      row["pinned"] = shm::is_pinned(core.region, lanes.in_use, uint32_t(at));
    }
    rows.push_back(std::move(row));
  };
  if (page == 0) {
    for (uint32_t waiting : poison_waiting) add(waiting, "waiting");
    for (const PoisonReport& report : poison_reports) add(report.page, "reported");
  }
  const uint64_t end = std::max(page, core.pages());
  const LineBudget lines(core.meter, kLinesPerPoisonList);
  for (; page < end && !lines.is_spent() && rows.size() < rows_max; ++page)
    if (core.word(uint32_t(page)).is(PageState::kPoisoned)) add(page, "poisoned");
  json reply = {{"memory", std::move(rows)}};
  if (page < core.pages()) reply["next"] = page;
  return reply;
}

std::string Pool::bad_control_memory() const { return state_->core.bad_control_memory(); }

std::string Pool::report_bad_page(uint64_t page, uint64_t now_ms) {
  state_->core.now_ms = now_ms;
  return state_->report_bad_page(page);
}

}  // namespace maru::daemon
