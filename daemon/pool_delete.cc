// Removing whole trees, and everything: leaves first, as the child counts demand.
#include "daemon/pool_state.h"
#include "libmaru/shm/evict.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
namespace {

constexpr uint32_t kNoPage = 0xFFFF'FFFF;

}  // namespace

// Who is below whom is written in the children alone, so one pass over the pages turns it round: for each parent page its
// first child, for each child the next one. A stale link costs a look at a page that is no descendant's and is checked.
DeleteTreeResult Pool::State::delete_tree(const wire::DeleteTreeRequest& request) {
  DeleteTreeResult result;
  const PageRef root = shm::find_unpinned(region, {request.digest_lo, request.digest_hi});
  if (root.is_none()) {
    result.status = -ENOENT;
    return result;
  }
  std::vector<PageRef> tree = {root};
  std::vector<size_t> levels = {0};  // where each level of the tree starts
  if (word(root.page()).children() != 0) {
    std::vector<uint32_t> first_child(pages(), kNoPage), next_child(pages(), kNoPage);
    for (uint64_t i = 0; i < pages(); ++i) {
      const auto page = uint32_t(i);
      const PageWord found = word(page);
      if (!found.is(PageState::kReady) && !found.is(PageState::kRetiring)) continue;
      const PageRef parent = PageRef::from_bits(region.block(page).parent.load_acquire());  // checked below
      if (!region.is_page(parent) || word(parent.page()).generation() != parent.generation()) continue;
      next_child[page] = first_child[parent.page()];
      first_child[parent.page()] = page;
    }
    for (size_t level = 0; level < levels.size(); ++level) {
      const size_t start = levels[level], end = tree.size();
      if (start == end) break;
      for (size_t i = start; i < end; ++i)
        // Each page is in the list of one parent at most, and of a scribbled cycle only the root is met from outside: left
        // out here, it is met once, and so is every other page.
        for (uint32_t child = first_child[tree[i].page()]; child != kNoPage; child = next_child[child])
          if (child != root.page()) tree.push_back(PageRef::of(child, word(child).generation()));
      if (tree.size() > end) levels.push_back(end);
    }
  }
  std::vector<uint32_t> victims;
  for (size_t level = levels.size(); level-- > 0;) {
    const size_t end = level + 1 < levels.size() ? levels[level + 1] : tree.size();
    victims.clear();
    for (size_t i = levels[level]; i < end; ++i)
      if (word(tree[i].page()).is_findable(tree[i].generation())) victims.push_back(tree[i].page());
    const size_t gone = evict_pages(victims, EvictReason::kAdmin);
    result.deleted += gone;
    result.left += victims.size() - gone;
  }
  return result;  // that something stayed is in `left`
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
