// Removing whole trees (pool_tree.cc), and everything: leaves first, as the child counts demand.
#include "daemon/pool_state.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
// Nothing when the key is absent. A block that nobody is below needs no look for a tree.
bool Pool::State::begin_deletion(const wire::DeleteTreeRequest& request, TreeWalk& walk) const {
  const PageRef root = shm::find_unpinned(region, {request.digest_lo, request.digest_hi});
  if (root.is_none()) return false;
  if (word(root.page()).children() != 0) {
    begin_tree(walk, {root});
    return true;
  }
  walk.phase = TreeWalk::Phase::kTake;
  walk.tree = {root};
  walk.levels = {0};
  return true;
}

// For an administrator, who waits.
DeleteTreeResult Pool::State::delete_tree(const wire::DeleteTreeRequest& request) {
  TreeWalk walk;
  if (!begin_deletion(request, walk)) return {-ENOENT, 0, 0};
  uint64_t budget = kNever;
  (void)step_tree(walk, budget);
  return {0, walk.deleted, walk.left};  // that something stayed is in `left`
}

DeleteTreeResult Pool::State::begin_delete_tree(LaneId asker, const wire::DeleteTreeRequest& request,
                                                uint64_t* ret_ticket) {
  *ret_ticket = 0;
  // Each costs memory, and has its turn when those before it are done.
  if (std::any_of(deletions.begin(), deletions.end(), [&](const Deletion& other) { return other.asker == asker; }))
    return {-EAGAIN, 0, 0};
  TreeWalk walk;
  if (!begin_deletion(request, walk)) return {-ENOENT, 0, 0};
  uint64_t budget = kTreeStepsPerTurn;
  if (deletions.empty() && step_tree(walk, budget)) return {0, walk.deleted, walk.left};
  *ret_ticket = ++last_deletion;
  deletions.push_back({asker, *ret_ticket, std::move(walk)});
  return {};
}

// Also for a client that has gone meanwhile: it asked for it.
bool Pool::State::step_deletions() {
  uint64_t budget = kTreeStepsPerTurn;
  while (!deletions.empty() && step_tree(deletions.front().walk, budget)) {
    const Deletion& done = deletions.front();
    deleted_trees.push_back({done.ticket, {0, done.walk.deleted, done.walk.left}});
    deletions.pop_front();
    if (budget == 0) break;
  }
  return !deletions.empty();
}

// Everything that may go goes; of what is pinned the key goes now, and the memory when the last pin does.
void Pool::State::clear(uint64_t* ret_deleted, uint64_t* ret_retired, uint64_t* ret_left) {
  *ret_deleted = *ret_retired = *ret_left = 0;
  std::vector<std::pair<uint32_t, uint32_t>> blocks;  // depth, page
  for (uint64_t i = 0; i < pages(); ++i) {
    const auto page = uint32_t(i);
    if (word(page).is(PageState::kReady))
      blocks.push_back({uint32_t(region.block(page).shape.load_acquire() >> 32), page});  // a hint: it orders
  }
  std::sort(blocks.begin(), blocks.end(), std::greater<>());
  std::vector<uint32_t> victims;
  for (size_t start = 0; start < blocks.size();) {
    size_t end = start;
    victims.clear();
    while (end < blocks.size() && blocks[end].first == blocks[start].first) victims.push_back(blocks[end++].second);
    *ret_deleted += evict_pages(victims, EvictReason::kAdmin);
    for (uint32_t page : victims) {
      const PageWord found = word(page);
      if (!found.is(PageState::kReady)) continue;
      const PageRef ref = PageRef::of(page, found.generation());
      if (shm::retire_ref(self, ref) != shm::RetireStatus::kRetired) {
        ++*ret_left;
        continue;
      }
      ++*ret_retired;
      if (watch) watch_removed(ref, reason_name(EvictReason::kAdmin));
      if (!held.has(page)) queue_remove(page);
      queue_retired(ref);
    }
    start = end;
  }
  finish_retired(retired_blocks.size());
}

}  // namespace maru::daemon
