// Chooses the waiting requests that run together.
//
// A simple former serves the adapter with the most waiting requests first, so a rare adapter waits for ever behind popular
// adapters (kPopular, to compare). The other way is fair between tenants. Each tenant has a counter of the tokens that it was
// served, divided by its weight. The next request comes from the waiting tenant with the smallest counter. A tenant that comes
// back from idleness starts at the smallest counter of the others, so it has no credit from the past. These are virtual token
// counters (Sheng and others, OSDI 2024). Within a tenant the oldest request goes first, unless another of its first requests
// needs no further adapter, or a nearer one. Requests that have waited for old_ms go before all others, the oldest first. So a
// request waits no longer than the older requests take to be served.
#pragma once

#include "maru/adapters.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

namespace maru::adapters {

class BatchFormer {
 public:
  struct Limits {
    uint32_t policy, requests_max, adapters_max, ranks_max, old_ms;
  };
  explicit BatchFormer(const Limits& limits) : limits_(limits) {}

  void set_weight(uint64_t tenant, double weight) { tenants_[tenant].weight = weight; }
  // False: the id waits already.
  bool add(const maru_batch_request& request, uint64_t now_ms);
  // False: it does not wait.
  bool cancel(uint64_t id);
  size_t next(uint64_t now_ms, uint64_t* ret_ids, size_t n);
  size_t waiting() const { return requests_.size(); }

 private:
  // Requests by the order in which they came.
  using Sequence = uint64_t;
  struct Waiting {
    maru_batch_request request;
    uint64_t since_ms;
  };
  struct Tenant {
    double weight = 1;
    double served = 0;  // tokens by weight
    std::set<Sequence> waiting;
  };
  // The requests of a batch so far.
  struct Batch {
    std::vector<uint64_t> ids;
    std::set<uint64_t> adapters;
    uint64_t ranks = 0;
  };

  bool fits(const Batch& batch, const maru_batch_request& request) const;
  void take(Batch& batch, Sequence sequence);
  void take_old(Batch& batch, uint64_t now_ms, size_t n);
  void take_fair(Batch& batch, size_t n);
  void take_popular(Batch& batch, size_t n);
  std::optional<Sequence> best_of(const Batch& batch, const Tenant& tenant) const;
  void forget(Sequence sequence);

  const Limits limits_;
  std::map<Sequence, Waiting> requests_;
  std::unordered_map<uint64_t, Sequence> by_id_;
  std::unordered_map<uint64_t, Tenant> tenants_;
  std::set<uint64_t> busy_tenants_;  // with waiting requests
  Sequence next_sequence_ = 0;
};

}  // namespace maru::adapters
