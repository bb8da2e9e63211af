// After a restart: finds the processes of the lanes that an earlier marud gave out.
#include "daemon/base/log.h"
#include "daemon/server/server.h"

#include <algorithm>
#include <cerrno>
#include <optional>

namespace maru::daemon {
namespace {

// Tries again to watch the processes of adopted lanes.
constexpr uint64_t kWatchPauseMs = 1000;
// The same where that takes a look at all processes of the machine, rarer and rarer: such a lane may last.
constexpr uint64_t kElsewherePauseMs = 5000, kElsewherePauseMaxMs = 320'000;

// Why a process of another pid namespace cannot be watched: ESRCH no process there has its start time.
Error why_elsewhere(const ClientIdentity& who, const Result<std::vector<uint64_t>>& times) {
  if (!times) return times.error();
  const bool is_there = std::any_of(times->begin(), times->end(),
                                    [&](uint64_t start_time) { return is_same_start(start_time, who.start_time); });
  return {is_there ? EXDEV : ESRCH,
          "watch process " + std::to_string(who.pid) + " of another pid namespace than marud's"};
}

// A pidfd of the lane's process. Errors: ESRCH the process is gone, or nothing maps its lane; any other proves nothing.
// `times`: when the processes of the machine started, once a lane has needed to know.
Result<FileDescriptor> find_process(const Pool::AdoptedLane& lane, LaneLock lock,
                                    std::optional<Result<std::vector<uint64_t>>>& times) {
  const std::string doing = "watch process " + std::to_string(lane.who.pid);
  if (!lane.same_boot) return failure(ESRCH, doing + " of another boot");
  if (!lane.is_elsewhere) {
    auto pidfd = open_process(lane.who.pid, lane.who.start_time);
    if (pidfd || pidfd.error().code == ESRCH || lock != LaneLock::kFree) return pidfd;
  }
  if (lock == LaneLock::kFree) return failure(ESRCH, doing + ", which has its lane mapped no more");
  if (!times) times = all_start_times();
  return tl::unexpected(why_elsewhere(lane.who, *times));
}

}  // namespace

// After a restart a lane counts as alive until its process is proven dead. Returns when to look again for processes that are
// not watched yet.
std::optional<uint64_t> Server::watch_adopted(uint32_t index) {
  std::optional<uint64_t> again_ms;
  std::optional<Result<std::vector<uint64_t>>> times;
  Pool* pool = pools_[index]->known();
  if (elsewhere_.size() <= index) elsewhere_.resize(index + 1);
  Elsewhere& elsewhere = elsewhere_[index];
  const bool looks_elsewhere = now_.monotonic_ms >= elsewhere.due_ms;
  for (const Pool::AdoptedLane& lane : pool->adopted_lanes()) {
    if (lanes_.find_lane(index, lane.lane)) continue;
    const LaneLock lock = pool->lock_of(lane.lane);
    if (lane.is_elsewhere && lane.same_boot && lock != LaneLock::kFree && !looks_elsewhere) {
      const uint64_t pause_ms =
          lock == LaneLock::kHeld ? kWatchPauseMs : elsewhere.due_ms - now_.monotonic_ms;  // a lock is soon asked for
      again_ms = std::min(again_ms.value_or(kElsewherePauseMaxMs), pause_ms);
      continue;
    }
    auto pidfd = find_process(lane, lock, times);
    if (!pidfd && pidfd.error().code != ESRCH && adopted_said_.insert({index, lane.lane, lane.who.start_time}).second)
      log_warning("lane {} of pool \"{}\" counts as alive, and its process is looked for again later: {}", lane.lane,
                  pools_[index]->name(), pidfd.error().text());
    if (!pidfd && pidfd.error().code == ESRCH) {
      log_info("process {} ended while marud was away: lane {} of pool \"{}\" is reclaimed", lane.who.pid, lane.lane,
               pools_[index]->name());
      pools_[index]->lane_ended(lane.lane, false);
      continue;
    }
    if (!pidfd) {
      if (lane.is_elsewhere && elsewhere.due_ms <= now_.monotonic_ms) {
        elsewhere.pause_ms = std::clamp(2 * elsewhere.pause_ms, kElsewherePauseMs, kElsewherePauseMaxMs);
        elsewhere.due_ms = now_.monotonic_ms + elsewhere.pause_ms;
      }
      const bool is_rare = lane.is_elsewhere && lock != LaneLock::kHeld;
      again_ms = std::min(again_ms.value_or(kElsewherePauseMaxMs), is_rare ? elsewhere.pause_ms : kWatchPauseMs);
      continue;
    }
    log_info("process {} still holds lane {} of pool \"{}\"", lane.who.pid, lane.lane, pools_[index]->name());
    ClientIdentity who = lane.who;
    const auto user = user_of_process(who.pid);
    if (user) who.uid = *user;
    pool->lane_is_watched(lane.lane, user ? std::optional(*user) : std::nullopt);
    LaneWatch& watch = lanes_.add({0, index, lane.lane, who, command_of(who.pid), std::move(*pidfd), 0, now_.unix_ms});
    loop_->watch_process(watch.id, watch.pidfd.get());
  }
  return again_ms;
}

}  // namespace maru::daemon
