// The way down: new blocks of the pool are written to the tiers out of the pool's own pages.
//
//   feed -> policy -> pin -> checksum, attributes -> STORE to each tier -> unpin
//
// Pins are bounded by the bytes that they keep from eviction, also pins that a tier does not give back: then nothing more is
// stored, and the pool goes on without tiers. A pin keeps the whole chain above its block. So the deepest pinned block of a
// chain counts, with all blocks above it. A chain that is longer than the bound is written alone. Each key has at most one
// change under way; later events of this key wait.
//
// Threads: one, the controllers'.
#pragma once

#include "daemon/tierd/attributes.h"
#include "daemon/tierd/daily_budget.h"
#include "daemon/tierd/entry_key.h"
#include "daemon/tierd/feed_queue.h"
#include "daemon/tierd/tenant_quotas.h"
#include "daemon/tierd/tier_slot.h"

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace maru::tierd {

enum class StorePolicy : uint8_t {
  kAll,
  kSecondUse,  // a key that comes for the second time: it was wanted again after it had gone
  kSkipPool    // written, then deleted from the pool
};

struct StoreSettings {
  StorePolicy policy = StorePolicy::kAll;
  uint64_t pinned_bytes_max = 0;
  uint64_t bytes_a_day = 0;  // admitted at most; 0: no limit
  uint32_t attempts_max = 3;
  bool forgets_deleted = true;  // blocks that a client or an administrator deletes leave the tiers, too
};

class StoreController {
 public:
  using Slots = std::vector<std::unique_ptr<TierSlot>>;

  StoreController(const StoreSettings& settings, maru_client* client, const PoolId& pool, TenantNames& names,
                  TenantQuotas& quotas, Slots& slots, Counters& counters);
  ~StoreController();
  StoreController(const StoreController&) = delete;
  StoreController& operator=(const StoreController&) = delete;

  void take(std::deque<FeedItem> items);
  // Begins as much as may be under way. Call it after completions.
  void pump();
  // A block that the way up has published: it is in a tier already.
  void published(maru_block block);
  // Deletes the entries that tenants have beyond their quotas, as after a quota was lowered, some entries a call.
  void hold_to_quotas();
  // Deletes the entry from one tier: it does not verify, or an administrator empties the tier.
  void forget_in(TierSlot& slot, const std::string& entry_key);
  // A change of this key is under way, in some tier.
  bool is_changing(const std::string& entry_key) const { return busy_.contains(entry_key); }
  // The tier may have an older entry: it refused the deletion or the replacement. Such an entry counts as absent.
  bool is_stale(const TierSlot& slot, const std::string& entry_key) const {
    return stale_.contains({&slot, entry_key});
  }
  // Tells marud of blocks that a tier has by now, one message a call: of those that have waited for a pause, in which marud
  // meets a block that was stored just now.
  void report_copies(Clock::time_point now);
  bool has_copies() const { return !due_copies_.empty() || !copies_.empty(); }
  // Tries again to delete some of these.
  void delete_stale();
  // Called with the key of each deletion that the tiers follow.
  std::function<void(const std::string& entry_key)> deleted;

  uint64_t pinned_bytes() const { return pinned_bytes_; }
  // A block that leaves the pool and stays in the tiers. As maru_delete_block(): others may hold it, and then it stays.
  int free_block(maru_block block);
  size_t queued() const { return queue_.size() + deletions_.size() + waiting_; }
  bool is_idle() const { return queue_.empty() && deletions_.empty() && busy_.empty(); }

 private:
  struct Job;  // a pinned block and its writes

  bool begin(FeedItem& item);  // false: not now
  bool is_admitted(const FeedItem& item, const std::string& key);
  void write(std::shared_ptr<Job> job);
  void written(const std::shared_ptr<Job>& job, size_t slot, int result);
  void note_stale(const TierSlot& slot, const std::string& key, bool is_stale);
  void finish(Job& job);
  void end(Job& job);
  bool may_hold(uint64_t chain_bytes, const std::string& parent) const;
  void hold(Job& job);
  void let_go(Job& job);
  void finish_change(const std::string& key);
  void erase(const std::string& key);
  void erase_from(const std::vector<TierSlot*>& slots, const std::string& key);
  bool has_room(TierSlot& slot, std::string_view scope, uint64_t bytes);

  const StoreSettings settings_;
  maru_client* const client_;
  const PoolId pool_;
  TenantNames& names_;
  TenantQuotas& quotas_;
  Slots& slots_;
  Sample &stored_, &stored_bytes_, &given_up_, &gone_, &not_admitted_, &over_budget_, &over_quota_, &evicted_for_quota_,
      &left_out_, &deleted_, &freed_, &reported_, &pinned_, &held_, &queue_length_;
  std::deque<FeedItem> queue_;  // stored blocks
  std::deque<FeedItem>
      deletions_;  // they never wait for room; a stored block whose deletion went first is gone when it comes
  size_t waiting_ = 0;
  std::unordered_map<std::string, std::deque<FeedItem>> busy_;  // keys under change, and the events that came meanwhile
  std::unordered_set<maru_block> published_, freed_blocks_;
  struct Seen {
    uint64_t digest = 0;  // of a key
    maru_block block = 0;
  };
  std::vector<Seen> seen_;  // keys that came once, for kSecondUse
  std::set<std::pair<const TierSlot*, std::string>> stale_;
  std::pair<const TierSlot*, std::string> stale_tried_ = {};  // the last one of them
  DailyBudget budget_;
  std::unordered_map<std::string, Job*> pinned_jobs_;  // by key
  std::vector<maru_block> copies_, due_copies_;        // that a tier has, and marud does not know of
  Clock::time_point next_report_ = {};
  uint64_t pinned_bytes_ = 0;  // of the pinned blocks themselves
  uint64_t held_bytes_ = 0;    // of them and the chains above them
};

}  // namespace maru::tierd
