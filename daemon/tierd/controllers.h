// The thread that moves blocks between the pool and its tiers: one loop over the feed, the tiers' completions and the
// questions of clients. It decides; transfers run in the tiers' own threads.
#pragma once

#include "daemon/beside/program.h"
#include "daemon/tierd/pool_follower.h"
#include "daemon/tierd/prefetch_controller.h"
#include "daemon/tierd/prefetch_door.h"
#include "daemon/tierd/quota_http.h"
#include "daemon/tierd/settings.h"

#include <atomic>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

namespace maru::tierd {

class Controllers {
 public:
  // Opens the tiers, attaches to the pool, and starts. Waits for marud as long as `may_wait` says so. Afterwards blocks move.
  static Result<std::unique_ptr<Controllers>> start(const Settings& settings, maru::daemon::beside::Service& service);
  // Finishes operations that can be finished, and closes the tiers.
  ~Controllers();
  Controllers(const Controllers&) = delete;
  Controllers& operator=(const Controllers&) = delete;

  // Whether the loop has come round since the last call.
  bool is_alive();

 private:
  Controllers(const Settings& settings, maru::daemon::beside::Service& service);
  Result<void> open_tiers();
  Result<void> attach();
  Result<void> begin();
  void run();
  void serve(int descriptor);
  bool pool_is_gone();
  void measure();

  void order(uint32_t kind, const std::string& name, PrefetchDoor::Answer answer);
  std::string tiers_json();
  std::string quotas_json(const std::string& wish);
  Result<std::string> change_quota(uint32_t kind, const std::string& body);
  void learn_name(const std::string& tenant);
  // An order of another thread. Waits for its answer, -ETIMEDOUT at last.
  OrderAnswer ask(uint32_t kind, const std::string& body);
  void answer_asked();
  void answer_drained();
  Result<uint64_t> clear(const std::string& name);
  void clear_more();

  const Settings settings_;
  maru::daemon::beside::Service& service_;
  maru_client* client_ = nullptr;
  PoolId pool_id_ = {};
  TenantNames names_;
  FeedQueue feed_;
  FileDescriptor stop_, poll_, asked_;
  StoreController::Slots slots_;
  std::unique_ptr<TenantQuotas> quotas_;
  std::unique_ptr<StoreController> stores_;
  std::unique_ptr<PrefetchController> prefetches_;
  std::unique_ptr<PrefetchDoor> door_;
  std::unique_ptr<PoolFollower> follower_;
  std::deque<std::pair<TierSlot*, std::string>> clearing_;  // entries of a tier that is being emptied
  std::vector<PrefetchDoor::Answer> draining_;
  Clock::time_point next_look_ = {};
  struct Asked {
    uint32_t kind;
    std::string body;
    std::promise<OrderAnswer> answer;
  };
  std::mutex asked_mutex_;
  std::deque<Asked> asked_orders_;  // under the lock
  std::atomic<bool> is_stopping_{false};
  std::atomic<uint64_t> rounds_{0};
  uint64_t rounds_seen_ = 0;
  std::thread thread_;
};

}  // namespace maru::tierd
