#include "daemon/pool/reclaim/recounts.h"

#include "libmaru/shm/blocks/touch.h"

#include <algorithm>
#include <span>

namespace maru::daemon {

// Takes the next parents from the head of the queue, `most` for a pass and `a_step` of them now, and sets their flags. Returns
// true when the pass can begin.
bool Recounts::begin(size_t most, size_t a_step) {
  const size_t before = recounts_.size();
  for (size_t i = 0; i < a_step && recounts_.size() < most && !findings_.parents.empty(); ++i) {
    const uint32_t page = findings_.parents.take();
    const PageWord found = core_.word(page);
    if (!regions_.owns_page(page))  // the host of its region counts it, and reads this touch as a question
      shm::leave_touch(core_.region.lane(lanes_.first), page, core_.tick(core_.now_ms));
    else if (found.is(PageState::kReady) && found.children() != 0)
      recounts_.push_back({.parent = PageRef::of(page, found.generation())});
  }
  const auto is_before = [](const shm::Recount& a, const shm::Recount& b) { return a.parent.bits < b.parent.bits; };
  const auto taken = recounts_.begin() + ptrdiff_t(before);
  std::sort(taken, recounts_.end(), is_before);
  shm::recount_begin(core_.region, {taken, recounts_.end()});
  core_.meter.add(recounts_.size() - before);
  std::inplace_merge(recounts_.begin(), taken, recounts_.end(), is_before);
  return recounts_.size() >= most || findings_.parents.empty();
}

// Puts the counts of the next `a_step` parents in. Returns true at the end.
bool Recounts::commit(size_t a_step) {
  const size_t count = std::min(a_step, recounts_.size() - settled_);
  const std::span<shm::Recount> some = std::span(recounts_).subspan(settled_, count);
  shm::recount_commit(core_.region, some, lanes_.in_use);
  core_.meter.add(count + core_.region.lanes());
  for (const shm::Recount& recount : some) {
    if (!recount.postponed) continue;
    // It waits for a live client's next step: once more, later.
    findings_.parents.add(recount.parent.page());
    again_ms_ = core_.now_ms + kRecountPauseMs;
  }
  settled_ += count;
  return settled_ == recounts_.size();
}

// Counts the children of suspect parents again, so many parents in each pass over the pages. Then the parents without children
// get their places in the order. Until then they are out of the order, as if marud had read no use of them. A step at a time,
// or a whole pass at once. Returns true when there is more to do right away.
bool Recounts::step(bool in_turns) {
  const LineBudget budget(core_.meter, in_turns ? kLinesPerTurn : kNever),
      places(core_.meter, in_turns ? kPlaceLinesPerTurn : kNever);
  const size_t a_step = in_turns ? kRecountsPerTurn : SIZE_MAX;
  if (part_ == Part::kBegin) {
    if (recounts_.empty() && (findings_.parents.empty() || rests(core_.now_ms, again_ms_, kRecountPauseMs)))
      return false;
    if (!begin(in_turns ? kRecountsAtOnce : SIZE_MAX, a_step)) return true;
    if (recounts_.empty()) return false;
    part_ = Part::kPages;
    next_ = 0;
  }
  while (part_ == Part::kPages) {
    if (budget.is_spent()) return true;
    const uint64_t to = std::min(core_.pages(), next_ + kLinkedPagesPerTurn);
    shm::recount_pages(core_.region, recounts_, lanes_, uint32_t(next_), uint32_t(to));
    core_.meter.add(2 * (to - next_));  // the words, and the lines that they lead to
    next_ = to;
    if (to == core_.pages()) part_ = Part::kCommit;
  }
  while (part_ == Part::kCommit) {
    if (budget.is_spent()) return true;
    if (!commit(a_step)) continue;
    part_ = Part::kPlaces;
    settled_ = 0;
  }
  while (settled_ < recounts_.size()) {
    if (places.is_spent()) return true;
    queues_.child_left(recounts_[settled_++].parent, nullptr);  // with the use that its child's end has left it
  }
  recounts_.clear();
  settled_ = 0;
  part_ = Part::kBegin;
  return !findings_.parents.empty() && !rests(core_.now_ms, again_ms_, kRecountPauseMs);
}

}  // namespace maru::daemon
