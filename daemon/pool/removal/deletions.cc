#include "daemon/pool/removal/deletions.h"

#include <algorithm>
#include <cerrno>

namespace maru::daemon {
namespace {

constexpr size_t kDeletionsMax = 4096;    // of administrators; each client has one
constexpr size_t kClearedPerTurn = 1024;  // a millisecond, if all of them go

Removal removal_of(const TreeWalk& walk) { return {walk.is_whole, walk.deleted, walk.left, walk.retired}; }

}  // namespace

// Nothing when the key is absent. A childless block needs no look for a tree.
bool Deletions::begin_deletion(const wire::DeleteTreeRequest& request, TreeWalk& walk) const {
  const PageRef root = shm::find_unpinned(core_.region, {request.digest_lo, request.digest_hi});
  if (root.is_none()) return false;
  if (core_.word(root.page()).children() != 0) {
    trees_.begin(walk, {root});
    return true;
  }
  walk.phase = TreeWalk::Phase::kTake;
  walk.tree = {root};
  walk.levels = {0};
  return true;
}

Result<Pending<Removal>> Deletions::remove(const shm::Digest& digest, bool is_clear, bool at_once) {
  TreeWalk walk;
  if (is_clear)
    trees_.begin_whole(walk);
  else if (!begin_deletion({digest.lo, digest.hi}, walk))
    return failure(ENOENT, "no block is stored under this key");
  uint64_t budget = at_once ? kNever : kTreeStepsPerTurn;
  if ((at_once || deletions_.empty()) && trees_.step(walk, budget)) {
    keep_clearing(walk);
    return removal_of(walk);
  }
  if (deletions_.size() >= kDeletionsMax) return failure(EAGAIN, "too many trees are being deleted already: try again");
  deletions_.push_back({lanes_.daemon, ++core_.last_ticket, std::move(walk)});
  return Pending<Removal>::later(core_.last_ticket);
}

Pending<DeleteTreeResult> Deletions::begin(LaneId asker, const wire::DeleteTreeRequest& request) {
  // Each costs memory, and has its turn when those before it are done.
  if (std::any_of(deletions_.begin(), deletions_.end(), [&](const Deletion& other) { return other.asker == asker; }))
    return DeleteTreeResult{-EAGAIN, 0, 0};
  TreeWalk walk;
  if (!begin_deletion(request, walk)) return DeleteTreeResult{-ENOENT, 0, 0};
  uint64_t budget = kTreeStepsPerTurn;
  if (deletions_.empty() && trees_.step(walk, budget)) return DeleteTreeResult{0, walk.deleted, walk.left};
  deletions_.push_back({asker, ++core_.last_ticket, std::move(walk)});
  return Pending<DeleteTreeResult>::later(core_.last_ticket);
}

// Blocks that a `clear` had to leave go when the blocks below them have gone. If marud dies, they stay.
void Deletions::keep_clearing(TreeWalk& walk) {
  if (!walk.is_whole) return;
  cleared_ = std::move(walk.stays);  // it has met the blocks that earlier clears had to leave, too
  cleared_next_ = cleared_kept_ = 0;
}

// A part of a pass over the left blocks: children come before their parents, so one pass takes a whole chain. A block that may
// go costs the lines that the look for its pins reads, at least one. Returns true when more work can be done right away.
bool Deletions::step_cleared() {
  if (cleared_.empty()) return false;
  const size_t end = std::min<size_t>(cleared_.size(), cleared_next_ + kClearedPerTurn);
  for (uint64_t lines = kHeldLinesAtOnce; cleared_next_ < end && lines > 0; ++cleared_next_) {
    const PageRef ref = cleared_[cleared_next_];
    const PageWord found = core_.word(ref.page());
    if (!found.is_findable(ref.generation())) continue;  // gone
    const uint32_t page = ref.page();
    if (found.low() == 0) {
      lines -= std::min(lines, lanes_.look_lines());
      if (evictor_.evict_pages({&page, 1}, EvictReason::kAdmin) != 0 || trees_.take_key(ref)) continue;
    }
    cleared_[cleared_kept_++] = ref;
  }
  if (cleared_next_ < cleared_.size()) return true;
  cleared_.resize(cleared_kept_);
  cleared_next_ = cleared_kept_ = 0;
  return false;
}

// Also for a client that has gone meanwhile: it asked for it.
bool Deletions::step() {
  uint64_t budget = kTreeStepsPerTurn;
  while (!deletions_.empty() && trees_.step(deletions_.front().walk, budget)) {
    Deletion& done = deletions_.front();
    keep_clearing(done.walk);
    if (done.asker == lanes_.daemon)
      removals_.push_back({done.ticket, removal_of(done.walk)});
    else
      deleted_trees_.push_back({done.ticket, {0, done.walk.deleted, done.walk.left}});
    deletions_.pop_front();
    if (budget == 0) break;
  }
  return !deletions_.empty();
}

}  // namespace maru::daemon
