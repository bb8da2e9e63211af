// The way up: blocks that a client is going to need are read from the tiers into pages of the pool, proven, and published.
//
//   keys -> pinned where the pool has them -> LOOKUP in the tiers, in their order -> room in the pool -> LOAD -> proof
//        -> published under the key, with its parent and its metadata, pinned
//
// A ticket asks for keys. Loads are shared: a key that two tickets ask for is loaded once. A load begins in the order of the
// ticket's keys; a block is published after its parent. The prefix policy begins no load behind the first key that fails; the
// segmented policy stops only behind the first key that is nowhere. Blocks that are loaded for temporary tickets alone leave
// the pool with the last ticket that holds them (temporary_blocks.h). An error is a miss. At its deadline a ticket ends with
// the blocks that are there. A load without a waiting ticket publishes nothing, also when the tier answers later, unless it is
// the parent of a load that has one. Its pages are free when the tier has given them back.
//
// Threads: one, the controllers'.
#pragma once

#include "daemon/tierd/attributes.h"
#include "daemon/tierd/entry_key.h"
#include "daemon/tierd/store_controller.h"
#include "daemon/tierd/temporary_blocks.h"
#include "daemon/tierd/tier_slot.h"
#include "libmaru/prefetch/message.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace maru::tierd {

struct PrefetchSettings {
  uint64_t in_flight_bytes_max = 256u << 20;
  uint64_t held_bytes_max = 0;  // pinned for tickets; beyond that a ticket holds its newest block
  uint32_t deadline_ms_max = 60'000;
};

class PrefetchController {
 public:
  using Slots = StoreController::Slots;
  using Reply = maru::prefetch::PrefetchReply;

  struct WantedKey {
    std::string data;
    uint32_t kind = 0;
    uint64_t tenant = 0;
    maru_key now() const { return {data.data(), uint32_t(data.size()), kind, tenant}; }
  };
  struct Wanted {
    std::vector<WantedKey> keys;
    uint32_t policy = 0;
    uint32_t deadline_ms = 0;
    uint32_t compute_us = 0;
    bool is_temporary = false;
  };
  class Ticket;

  PrefetchController(const PrefetchSettings& settings, maru_client* client, const PoolId& pool, TenantNames& names,
                     Slots& slots, StoreController& stores, Counters& counters);
  ~PrefetchController();
  PrefetchController(const PrefetchController&) = delete;
  PrefetchController& operator=(const PrefetchController&) = delete;

  // `finished` is called once, perhaps at once. The ticket holds the found blocks until it is destroyed.
  std::shared_ptr<Ticket> begin(Wanted wanted, std::function<void(const Reply&)> finished);
  void cancel(const std::shared_ptr<Ticket>& ticket);
  void expire(Clock::time_point now);
  // Begins loads that wait for room. Call it after completions.
  void pump();
  // The key was deleted: a load of it that is under way publishes nothing.
  void void_load(const std::string& entry_key);

  bool has_open() const { return !running_.empty() || !loads_.empty(); }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }

 private:
  struct Load;

  void look(const std::shared_ptr<Load>& load, size_t tier);
  void looked(const std::shared_ptr<Load>& load, const maru_tier_completion& done);
  bool start(const std::shared_ptr<Load>& load);  // false: there is no room now
  void released(const std::shared_ptr<Load>& load);
  bool is_proven(Load& load) const;
  void work();
  void publish(const std::shared_ptr<Load>& load);
  void settle(const std::shared_ptr<Load>& load);
  void fail(const std::shared_ptr<Load>& load, uint32_t Reply::* why);
  void tell_waiters(Load& load, bool is_there, uint32_t Reply::* count);
  std::vector<std::shared_ptr<Ticket>> wanting(const Load& load) const;
  void keep(Ticket& ticket, maru_block block);
  void drop_buffer(Load& load);
  void leave(const std::shared_ptr<Load>& load);
  void detach(const std::shared_ptr<Load>& load);
  void advance(const std::shared_ptr<Ticket>& ticket);
  void start_loads(const std::shared_ptr<Ticket>& ticket);
  void finish(const std::shared_ptr<Ticket>& ticket, bool is_answered);
  bool pin(Ticket& ticket, const maru_key& key);
  bool is_gated(Ticket& ticket, const Load& load) const;

  const PrefetchSettings settings_;
  maru_client* const client_;
  const PoolId pool_;
  TenantNames& names_;
  Slots& slots_;
  StoreController& stores_;
  Sample &tickets_, &late_tickets_, &in_pool_, &loaded_, &loaded_bytes_, &absent_, &failed_, &gated_, &unproven_,
      &no_room_, &parent_gone_, &discarded_, &held_, &in_flight_;
  TemporaryBlocks temporaries_;  // tickets that end let go of them
  std::vector<std::shared_ptr<Ticket>> running_;
  std::unordered_map<std::string, std::shared_ptr<Load>> loads_;  // by entry_key()
  std::deque<std::shared_ptr<Load>> ready_;                       // to be published
  bool is_working_ = false;
  uint64_t in_flight_bytes_ = 0, held_bytes_ = 0;
  uint64_t hung_bytes_ = 0;  // of those in flight: of loads whose deadline is over
};

// The blocks that a ticket holds in the pool, until its asker has taken them.
class PrefetchController::Ticket {
 public:
  explicit Ticket(PrefetchController& controller) : controller_(controller) {}
  ~Ticket();
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;

 private:
  friend class PrefetchController;
  enum class State : uint8_t { kLooking, kFound, kLoading, kThere, kMissing, kAbsent };  // kAbsent: it is nowhere
  static bool is_settled(State state) { return state >= State::kThere; }
  bool ends_at(State state) const;  // nothing behind such a key is of use
  void end_behind(size_t index);

  PrefetchController& controller_;
  Wanted wanted;
  std::function<void(const Reply&)> finished;
  std::vector<State> states;
  std::vector<std::shared_ptr<Load>> loads;
  std::vector<maru_view> views;       // pinned
  std::vector<maru_block> temporary;  // that it holds, in TemporaryBlocks
  maru_view newest = {};              // pinned beyond the bound of these; block 0: none
  Reply reply = {};
  Clock::time_point begun = {}, deadline = {};
  uint64_t held_bytes = 0;
  size_t next = 0;  // the first key whose load has not begun, and may have to
  bool is_finished = false, is_advancing = false;
  bool is_trial = false;  // all of its loads begin, also slow ones
};

}  // namespace maru::tierd
