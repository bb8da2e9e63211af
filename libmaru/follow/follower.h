// A follower of a pool: the snapshot, the events behind it, and the recovery after a loss. include/maru/follow.h is the
// contract, docs/events.md the description.
//
// Thread safety: one thread at a time, but wake().
#pragma once

#include "libmaru/follow/followed_pool.h"
#include "maru/follow.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <sys/types.h>
#include <unordered_map>
#include <vector>

namespace maru::follow {

class Follower {
 public:
  struct Options {
    std::string socket_path, pool;
    uint32_t timeout_ms = 5000;
    bool reads_metadata = true;
  };
  explicit Follower(Options options);
  ~Follower();
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  Result<void> connect();
  // How many events were written, or -errno. May throw std::bad_alloc; then the caller calls forget_all().
  int next(std::span<maru_follow_event> events, int timeout_ms);
  // Events that were read and not told are lost: the next call begins with RESET.
  void forget_all();
  void wake();
  bool is_child() const;
  maru_follow_status status() const;

 private:
  using Blocks = std::unordered_map<uint32_t, FollowedBlock>;
  enum class Phase : uint8_t {
    kLost,      // no connection, or no feed
    kWaiting,   // for a feed of which a snapshot can be taken
    kTelling,   // a snapshot
    kFollowing  // the ring
  };

  int take(std::span<maru_follow_event> events);
  void reconnect();
  void lose(uint32_t reason, int code);
  bool is_connection_over() const;
  bool take_snapshot();
  bool read_table();
  void leave_out_late();
  int tell_snapshot(std::span<maru_follow_event> events);
  int follow(std::span<maru_follow_event> events);
  bool is_over(Blocks::const_iterator on_page) const;
  int tell_record(std::span<maru_follow_event> events);
  void tell(maru_follow_event& event, uint32_t kind, const FollowedBlock* block);
  void name_tenant(maru_follow_event& event);
  void wait(uint32_t seen, uint32_t ms);

  const Options options_;
  const pid_t process_;
  Phase phase_ = Phase::kLost;
  Phase before_ = Phase::kLost;  // when the connection was lost
  KeptDescriptor socket_;
  std::unique_ptr<FollowedPool> pool_;
  shm::FeedReader reader_;
  Blocks blocks_;                                      // by page: blocks that were told, or are being told
  std::vector<std::pair<uint32_t, uint32_t>> order_;   // of a snapshot: depth and page
  size_t told_ = 0;                                    // of it; RESET is 1
  std::unordered_map<uint64_t, std::string> tenants_;  // names, by id; a place stays as long as this follower
  std::vector<FollowedBlock> gone_;                    // the last events point into their bytes
  shm::FeedRecord record_;                             // scratch
  uint32_t reason_ = MARU_FOLLOW_BEGIN;                // of the next RESET
  int error_ = 0;                                      // why there is no connection
  int64_t again_ms_ = 0;                               // monotonic: not before this
  uint64_t told_blocks_ = 0;
  uint64_t snapshots_ = 0, overruns_ = 0, restarts_ = 0;
  std::atomic<bool> is_woken_{false};
  std::atomic<AtomicU32*> wake_word_{nullptr};
  AtomicU32 own_word_{};  // waits on this word without a feed
};

}  // namespace maru::follow
