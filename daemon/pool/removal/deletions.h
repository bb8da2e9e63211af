// Trees that clients and administrators delete, one after the other, and the blocks that a `clear` had to leave.
//
//   (1) The first deletion is under way; the others wait. A client has one at a time.
//   (2) A deletion ends also for a client that has gone meanwhile: the client asked for it.
//   (3) Among blocks that a clear leaves, children come before their parents, so one pass takes a whole chain.
//
// Cost: a turn has one budget of steps for all deletions together (limits.h).
//
// Thread safety: one thread. If marud dies here: a part has gone, and the rest stays.
#pragma once

#include "daemon/pool/answers.h"
#include "daemon/pool/removal/trees.h"
#include "libmaru/shm/blocks/hash.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace maru::daemon {

// The answer to an administrator about a tree, or about all blocks.
struct Removal {
  bool is_whole = false;
  uint64_t deleted = 0, left = 0;  // blocks
  uint64_t retired = 0;            // of the left blocks: without a key, and gone when their pins are
};

class Deletions {
 public:
  struct Below {
    PoolCore& core;
    LaneTable& lanes;
    Evictor& evictor;
    Trees& trees;
  };
  explicit Deletions(const Below& below)
      : core_(below.core), lanes_(below.lanes), evictor_(below.evictor), trees_(below.trees) {}
  Deletions(const Deletions&) = delete;
  Deletions& operator=(const Deletions&) = delete;

  // For a client. Errors are in the status.
  Pending<DeleteTreeResult> begin(LaneId asker, const wire::DeleteTreeRequest& request);
  // For an administrator: the block of this key and the blocks below it; or with `is_clear` all blocks. Done when this returns
  // if it is small, or `at_once`. Errors: ENOENT no block has this key; EAGAIN too many wait.
  Result<Pending<Removal>> remove(const shm::Digest& digest, bool is_clear, bool at_once);
  bool is_busy() const { return !deletions_.empty(); }
  // Returns true when more work can be done right away.
  bool step();

  std::vector<DeletedTree> take_deleted_trees() { return std::exchange(deleted_trees_, {}); }
  std::vector<Answered<Removal>> take_removals() { return std::exchange(removals_, {}); }

  // Begins a pass over the blocks that a clear has left, if there are any.
  void begin_pass() { is_clearing_ = !cleared_.empty(); }
  // A part of it. Returns true when more work can be done right away.
  bool step_pass() {
    if (is_clearing_) is_clearing_ = step_cleared();
    return is_clearing_;
  }

 private:
  struct Deletion {
    LaneId asker;
    uint64_t ticket;
    TreeWalk walk;
  };

  bool begin_deletion(const wire::DeleteTreeRequest& request, TreeWalk& walk) const;
  void keep_clearing(TreeWalk& walk);
  bool step_cleared();

  PoolCore& core_;
  LaneTable& lanes_;
  Evictor& evictor_;
  Trees& trees_;
  std::deque<Deletion> deletions_;  // the first one is under way
  std::vector<DeletedTree> deleted_trees_;
  std::vector<Answered<Removal>> removals_;
  // Blocks that a clear has left above held blocks. A pass is at `cleared_next_`; the first `cleared_kept_` entries are blocks
  // that it has looked at and keeps.
  std::vector<PageRef> cleared_;
  size_t cleared_next_ = 0, cleared_kept_ = 0;
  bool is_clearing_ = false;  // a pass is under way
};

}  // namespace maru::daemon
