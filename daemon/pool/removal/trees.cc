#include "daemon/pool/removal/trees.h"

#include "libmaru/shm/recovery/evict.h"
#include "maru/follow.h"

#include <algorithm>

namespace maru::daemon {
namespace {

constexpr uint32_t kNoPage = 0xFFFF'FFFF;
constexpr uint64_t kClearedPerStep = 16;  // entries, which are memory of our own

// Takes up to `wanted` from the budget.
uint64_t spend(uint64_t& budget, uint64_t wanted) {
  const uint64_t spent = std::min(budget, wanted);
  budget -= spent;
  return spent;
}

}  // namespace

void Trees::begin(TreeWalk& walk, std::vector<PageRef> roots) const {
  walk.has_below.assign(roots.size(), false);
  walk.levels = {0};
  walk.level_end = roots.size();
  walk.tree = std::move(roots);
  walk.first_child = std::make_unique_for_overwrite<uint32_t[]>(core_.pages());
  walk.next_child = std::make_unique_for_overwrite<uint32_t[]>(core_.pages());
}

void Trees::begin_whole(TreeWalk& walk) const {
  begin(walk, {});
  walk.is_whole = true;
  walk.retires = true;
}

// Scribbled links may form a circle. A circle has a root, too, when a parent must be higher up than its child.
bool Trees::is_higher(PageRef parent, uint32_t page) const {
  const auto depth = [&](uint32_t of) { return uint32_t(core_.region.block(of).shape.load_acquire() >> 32); };
  return depth(parent.page()) < depth(page);
}

// A child that its parent has counted, or is about to.
bool Trees::counts_for_parent(uint32_t page, PageWord found) const {
  return found.is(PageState::kSealed) || found.is(PageState::kReady) || found.is(PageState::kRetiring) ||
         found.is(PageState::kRetired) || (found.is(PageState::kPoisoned) && !lanes_.let_go.contains(page));
}

bool Trees::gather_links(TreeWalk& walk, uint64_t& budget) {
  const uint64_t end = walk.next + spend(budget, core_.pages() - walk.next);
  for (; walk.next < end; ++walk.next) {
    const auto page = uint32_t(walk.next);
    const PageWord found = core_.word(page);
    if (!counts_for_parent(page, found)) continue;
    // A client may have left it to us a moment ago, in a touch that was not read yet.
    if (found.is(PageState::kRetired) && found.lane() == lanes_.daemon)
      retired_.add(PageRef::of(page, found.generation()));
    const PageRef parent = PageRef::from_bits(core_.region.block(page).parent.load_acquire());  // checked below
    const bool is_child = core_.region.is_page(parent) && parent.page() != page &&
                          core_.word(parent.page()).generation() == parent.generation() &&
                          (!walk.is_whole || is_higher(parent, page));
    if (!is_child && walk.is_whole) walk.tree.push_back(PageRef::of(page, found.generation()));
    if (!is_child) continue;
    walk.next_child[page] = walk.first_child[parent.page()];
    walk.first_child[parent.page()] = page;
  }
  return walk.next == core_.pages();
}

// Each list is walked once, for any scribbled links, so this ends.
bool Trees::climb(TreeWalk& walk, uint64_t& budget) {
  for (; walk.next < walk.tree.size(); ++walk.next) {
    if (walk.next == walk.level_end) {
      walk.levels.push_back(walk.next);
      walk.level_end = walk.tree.size();
    }
    const PageRef parent = walk.tree[walk.next];
    if (walk.child == kNoPage) walk.child = std::exchange(walk.first_child[parent.page()], kNoPage);
    while (walk.child != kNoPage) {
      if (spend(budget, 1) == 0) return false;
      const uint32_t page = walk.child;
      walk.child = std::exchange(walk.next_child[page], kNoPage);
      const PageWord found = core_.word(page);
      if (!counts_for_parent(page, found) || core_.region.block(page).parent.load_acquire() != parent.bits) continue;
      if (walk.next < walk.has_below.size()) walk.has_below[walk.next] = true;
      if (page == walk.tree.front().page()) continue;  // of a scribbled cycle, or a root anyway
      walk.tree.push_back(PageRef::of(page, found.generation()));
    }
    if (spend(budget, 1) == 0) return ++walk.next == walk.tree.size();
  }
  return true;
}

bool Trees::take(TreeWalk& walk, uint64_t& budget) {
  std::vector<uint32_t> victims;
  while (!walk.tree.empty()) {
    if (walk.tree.size() == walk.levels.back()) {
      walk.levels.pop_back();
      continue;
    }
    if (budget == 0) return false;
    // From the end of the deepest level that is left, a batch: never of two levels, since a parent goes after its children.
    // Each of them is a look at all lanes, where clients say how much there is to read.
    const uint64_t look = std::max(kStepsOfABlock, lanes_.look_lines());
    const uint64_t most = std::clamp<uint64_t>(budget / look, 1, shm::kEvictBatchMax);
    size_t count = std::min<uint64_t>(walk.tree.size() - walk.levels.back(), most);
    victims.clear();
    for (size_t i = walk.tree.size(); i > walk.tree.size() - count; --i) {
      const uint32_t page = walk.tree[i - 1].page();
      // A client wrote the length of its run.
      if (spend(budget, evictor_.eviction_lines(page, look)); budget == 0) count = walk.tree.size() - i + 1;
      if (walk.reason == EvictReason::kExpired && !core_.has_expired(page)) continue;  // a client scribbled
      if (core_.word(page).is_findable(walk.tree[i - 1].generation())) victims.push_back(page);
    }
    walk.tree.resize(walk.tree.size() - count);
    const size_t gone = evictor_.evict_pages(victims, walk.reason);
    walk.deleted += gone;
    walk.left += victims.size() - gone;
    for (uint32_t page : victims) {
      const PageWord found = core_.word(page);
      if (!walk.retires || !found.is(PageState::kReady)) continue;
      const PageRef ref = PageRef::of(page, found.generation());
      if (take_key(ref))
        ++walk.retired;
      else if (found.low() != 0)  // it has children, or they are being counted
        walk.stays.push_back(ref);
    }
  }
  return true;
}

bool Trees::step(TreeWalk& walk, uint64_t& budget) {
  using Phase = TreeWalk::Phase;
  if (walk.phase == Phase::kClear) {
    const uint64_t end = std::min(core_.pages(), walk.next + std::min(budget, core_.pages()) * kClearedPerStep);
    spend(budget, (end - walk.next) / kClearedPerStep + 1);
    std::fill(walk.first_child.get() + walk.next, walk.first_child.get() + end, kNoPage);
    std::fill(walk.next_child.get() + walk.next, walk.next_child.get() + end, kNoPage);
    walk.next = end;
    if (end < core_.pages()) return false;
    walk.phase = Phase::kLinks;
    walk.next = 0;
  }
  if (walk.phase == Phase::kLinks) {
    if (!gather_links(walk, budget)) return false;
    walk.phase = Phase::kTree;
    walk.next = 0;
    walk.level_end = walk.tree.size();
  }
  if (walk.phase == Phase::kTree) {
    if (!climb(walk, budget)) return false;
    retired_.finish(kHeldLinesAtOnce);  // blocks that were deleted under an ended pin still hold their parents
    walk.phase = Phase::kTake;
  }
  if (walk.phase == Phase::kTake && !take(walk, budget)) return false;
  walk.phase = Phase::kDone;
  return true;
}

bool Trees::take_key(PageRef ref) {
  if (shm::retire_ref(core_.self, ref) != shm::RetireStatus::kRetired) return false;
  feed_.removed_by(ref, MARU_FOLLOW_BY_ADMIN);
  if (!queues_.held.has(ref.page())) queues_.remove(ref.page());
  retired_.add(ref);
  return true;
}

}  // namespace maru::daemon
