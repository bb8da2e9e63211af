// Removing whole trees (removal/tree.cc), and everything: leaves first, as the child counts demand.
#include "daemon/base/request_fields.h"
#include "daemon/pool/state.h"
#include "maru/follow.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr size_t kDeletionsMax = 4096;    // of administrators; each client has one
constexpr size_t kRemovalsMax = 64;       // of those who went away meanwhile
constexpr size_t kClearedPerTurn = 1024;  // a millisecond, if all of them go

json removed_json(const TreeWalk& walk) {
  if (!walk.is_whole) return {{"deleted_blocks", walk.deleted}, {"left_blocks", walk.left}};
  return {{"deleted_blocks", walk.deleted},
          {"deleted_when_unpinned", walk.retired},
          {"left_blocks", walk.left - walk.retired}};
}

}  // namespace

// Nothing when the key is absent. A block that nobody is below needs no look for a tree.
bool Pool::State::begin_deletion(const wire::DeleteTreeRequest& request, TreeWalk& walk) const {
  const PageRef root = shm::find_unpinned(core.region, {request.digest_lo, request.digest_hi});
  if (root.is_none()) return false;
  if (core.word(root.page()).children() != 0) {
    begin_tree(walk, {root});
    return true;
  }
  walk.phase = TreeWalk::Phase::kTake;
  walk.tree = {root};
  walk.levels = {0};
  return true;
}

// For an administrator: "delete_tree" or "clear", which takes everything that may go; of what is pinned the key goes now, and
// the memory when the last pin does. Without a place for a ticket it is done when this returns.
json Pool::State::remove(const std::string& command, const json& request, uint64_t* ret_ticket) {
  if (ret_ticket && *ret_ticket != 0) return late_answer(ret_ticket);
  TreeWalk walk;
  shm::Digest digest;
  json none;
  if (command == "clear")
    begin_whole(walk);
  else if (named_block(request, &digest, &none).is_none())
    return none;
  else if (!begin_deletion({digest.lo, digest.hi}, walk))
    return refusal(ENOENT, "no block is stored under this key");
  uint64_t budget = ret_ticket ? kTreeStepsPerTurn : kNever;
  if ((!ret_ticket || deletions.empty()) && step_tree(walk, budget)) {
    keep_clearing(walk);
    return removed_json(walk);
  }
  if (deletions.size() >= kDeletionsMax) return refusal(EAGAIN, "too many trees are being deleted already: try again");
  *ret_ticket = ++core.last_ticket;
  deletions.push_back({lanes.daemon, *ret_ticket, std::move(walk)});
  return {};
}

void Pool::State::keep_answer(uint64_t ticket, json reply) {
  late_answers[ticket] = std::move(reply);
  if (late_answers.size() > kRemovalsMax) late_answers.erase(late_answers.begin());
}

// Nothing while it is under way.
json Pool::State::late_answer(uint64_t* ret_ticket) {
  const auto has_ticket = [&](const Deletion& waiting) { return waiting.ticket == *ret_ticket; };
  if (std::any_of(deletions.begin(), deletions.end(), has_ticket)) return {};
  const auto done = late_answers.find(*ret_ticket);
  if (done == late_answers.end()) return refusal(ECANCELED, "the pool went away before this was done");
  json reply = std::move(done->second);
  late_answers.erase(done);
  *ret_ticket = 0;
  return reply;
}

// The reply, now or when the queues are built: then there is a ticket for it.
nlohmann::json Pool::State::when_ordered(nlohmann::json reply, uint64_t* ret_ticket) {
  if (!ret_ticket || !queues.is_reordering()) return reply;
  ordered_replies.push_back({* ret_ticket = ++core.last_ticket, std::move(reply)});
  return {};
}

// Those that wait have their answers when the queues are built.
void Pool::State::settle_ordered() {
  if (queues.is_reordering()) return;
  for (Ordered& waiting : std::exchange(ordered_replies, {})) keep_answer(waiting.ticket, std::move(waiting.reply));
}

nlohmann::json Pool::State::late_policy(uint64_t* ret_ticket) {
  settle_ordered();
  const auto is_it = [&](const Ordered& waiting) { return waiting.ticket == *ret_ticket; };
  if (std::any_of(ordered_replies.begin(), ordered_replies.end(), is_it)) return {};
  return late_answer(ret_ticket);
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
  *ret_ticket = ++core.last_ticket;
  deletions.push_back({asker, *ret_ticket, std::move(walk)});
  return {};
}

// Of a block that somebody holds the key goes, and the memory when nobody does. False if it has children, or is not there.
bool Pool::State::take_key(PageRef ref) {
  if (shm::retire_ref(core.self, ref) != shm::RetireStatus::kRetired) return false;
  feed.removed_by(ref, MARU_FOLLOW_BY_ADMIN);
  if (!queues.held.has(ref.page())) queues.remove(ref.page());
  retired.add(ref);
  return true;
}

// What a `clear` had to leave goes when what is below it has gone. If marud dies, it stays.
void Pool::State::keep_clearing(TreeWalk& walk) {
  if (!walk.is_whole) return;
  cleared = std::move(walk.stays);  // it has met what earlier ones had to leave, too
  cleared_next = cleared_kept = 0;
}

// A part of a pass over what was left: children come before their parents, so one pass takes a whole chain. Blocks that may go
// count for what looking for their pins reads, one at least. Returns true when there is more to do right away.
bool Pool::State::step_cleared() {
  if (cleared.empty()) return false;
  const size_t end = std::min<size_t>(cleared.size(), cleared_next + kClearedPerTurn);
  for (uint64_t lines = kHeldLinesAtOnce; cleared_next < end && lines > 0; ++cleared_next) {
    const PageRef ref = cleared[cleared_next];
    const PageWord found = core.word(ref.page());
    if (!found.is_findable(ref.generation())) continue;  // gone
    const uint32_t page = ref.page();
    if (found.low() == 0) {
      lines -= std::min(lines, lanes.look_lines());
      if (evictor.evict_pages({&page, 1}, EvictReason::kAdmin) != 0 || take_key(ref)) continue;
    }
    cleared[cleared_kept++] = ref;
  }
  if (cleared_next < cleared.size()) return true;
  cleared.resize(cleared_kept);
  cleared_next = cleared_kept = 0;
  return false;
}

// Also for a client that has gone meanwhile: it asked for it.
bool Pool::State::step_deletions() {
  uint64_t budget = kTreeStepsPerTurn;
  while (!deletions.empty() && step_tree(deletions.front().walk, budget)) {
    Deletion& done = deletions.front();
    keep_clearing(done.walk);
    if (done.asker == lanes.daemon)
      keep_answer(done.ticket, removed_json(done.walk));
    else
      deleted_trees.push_back({done.ticket, {0, done.walk.deleted, done.walk.left}});
    deletions.pop_front();
    if (budget == 0) break;
  }
  return !deletions.empty();
}

}  // namespace maru::daemon
