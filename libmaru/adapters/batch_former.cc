#include "libmaru/adapters/batch_former.h"

#include <algorithm>
#include <tuple>

namespace maru::adapters {
namespace {

// How far behind a tenant's oldest request another may lie that goes before it.
constexpr size_t kLookAhead = 64;

double cost_of(const maru_batch_request& request) { return request.tokens != 0 ? request.tokens : 1; }

}  // namespace

bool BatchFormer::add(const maru_batch_request& request, uint64_t now_ms) {
  if (!by_id_.try_emplace(request.id, next_sequence_).second) return false;
  Tenant& tenant = tenants_[request.tenant];
  if (tenant.waiting.empty()) {
    std::optional<double> least;
    for (const uint64_t other : busy_tenants_) {
      const double served = tenants_[other].served;
      if (!least || served < *least) least = served;
    }
    if (least) tenant.served = std::max(tenant.served, *least);
    busy_tenants_.insert(request.tenant);
  }
  tenant.waiting.insert(next_sequence_);
  requests_.emplace(next_sequence_, Waiting{request, now_ms});
  ++next_sequence_;
  return true;
}

bool BatchFormer::cancel(uint64_t id) {
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  forget(found->second);
  return true;
}

void BatchFormer::forget(Sequence sequence) {
  const auto found = requests_.find(sequence);
  const maru_batch_request& request = found->second.request;
  Tenant& tenant = tenants_[request.tenant];
  tenant.waiting.erase(sequence);
  if (tenant.waiting.empty()) busy_tenants_.erase(request.tenant);
  by_id_.erase(request.id);
  requests_.erase(found);
}

bool BatchFormer::fits(const Batch& batch, const maru_batch_request& request) const {
  if (request.adapter == 0 || batch.adapters.contains(request.adapter)) return true;
  if (batch.adapters.size() >= limits_.adapters_max) return false;
  return batch.adapters.empty() || batch.ranks + request.rank <= limits_.ranks_max;
}

void BatchFormer::take(Batch& batch, Sequence sequence) {
  const maru_batch_request& request = requests_.at(sequence).request;
  if (request.adapter != 0 && batch.adapters.insert(request.adapter).second) batch.ranks += request.rank;
  batch.ids.push_back(request.id);
  Tenant& tenant = tenants_[request.tenant];
  tenant.served += cost_of(request) / tenant.weight;
  forget(sequence);
}

void BatchFormer::take_old(Batch& batch, uint64_t now_ms, size_t n) {
  for (auto at = requests_.begin(); at != requests_.end() && batch.ids.size() < n;) {
    if (now_ms - at->second.since_ms < limits_.old_ms) return;
    const Sequence sequence = at->first;
    const bool does_fit = fits(batch, at->second.request);
    ++at;
    if (does_fit) take(batch, sequence);
  }
}

std::optional<BatchFormer::Sequence> BatchFormer::best_of(const Batch& batch, const Tenant& tenant) const {
  // Less is better: none further, then by how near the adapter is.
  std::optional<std::tuple<uint32_t, Sequence>> best;
  size_t looked = 0;
  for (const Sequence sequence : tenant.waiting) {
    // Once the batch has all the adapters that it may have, the rest of the queue is looked at for those.
    if (++looked > kLookAhead && (best || batch.adapters.size() < limits_.adapters_max)) break;
    const maru_batch_request& request = requests_.at(sequence).request;
    if (!fits(batch, request)) continue;
    const bool is_free = request.adapter == 0 || batch.adapters.contains(request.adapter);
    const uint32_t distance = is_free ? 0 : 1 + (MARU_ADAPTER_HOT - std::min<uint32_t>(request.tier, MARU_ADAPTER_HOT));
    const std::tuple candidate(distance, sequence);
    if (!best || candidate < *best) best = candidate;
    if (distance == 0) break;
  }
  if (!best) return {};
  return std::get<1>(*best);
}

void BatchFormer::take_fair(Batch& batch, size_t n) {
  std::set<std::tuple<double, uint64_t>> order;
  for (const uint64_t tenant : busy_tenants_) order.emplace(tenants_[tenant].served, tenant);
  while (!order.empty() && batch.ids.size() < n) {
    const uint64_t number = std::get<1>(*order.begin());
    order.erase(order.begin());
    const Tenant& tenant = tenants_[number];
    const std::optional<Sequence> best = best_of(batch, tenant);
    // No request of this tenant fits any more: adapters only come to a batch.
    if (!best) continue;
    take(batch, *best);
    if (!tenant.waiting.empty()) order.emplace(tenant.served, number);
  }
}

void BatchFormer::take_popular(Batch& batch, size_t n) {
  std::map<uint64_t, std::vector<Sequence>> by_adapter;
  for (const auto& [sequence, waiting] : requests_) by_adapter[waiting.request.adapter].push_back(sequence);
  std::vector<const std::vector<Sequence>*> order;
  for (const auto& [adapter, sequences] : by_adapter) order.push_back(&sequences);
  std::ranges::stable_sort(order, std::greater(), [](const auto* sequences) { return sequences->size(); });
  for (const std::vector<Sequence>* sequences : order)
    for (const Sequence sequence : *sequences) {
      if (batch.ids.size() >= n || !fits(batch, requests_.at(sequence).request)) break;
      take(batch, sequence);
    }
}

size_t BatchFormer::next(uint64_t now_ms, uint64_t* ret_ids, size_t n) {
  n = std::min<size_t>(n, limits_.requests_max);
  Batch batch;
  if (limits_.policy == MARU_BATCH_POPULAR) {
    take_popular(batch, n);
  } else {
    take_old(batch, now_ms, n);
    take_fair(batch, n);
  }
  std::ranges::copy(batch.ids, ret_ids);
  return batch.ids.size();
}

}  // namespace maru::adapters
