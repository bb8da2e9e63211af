// Names of other projects for marud's numbers, where the meaning is the same, so that their dashboards and scripts
// work. Numbers that marud does not have (copies between devices, a second tier) have no alias.
#include "daemon/metrics/families.h"

namespace maru::daemon::metrics {
namespace {

using shm::PageState;

struct Alias {
  const char* name;
  const char* type;
  const char* help;  // names the family of marud that it repeats
  double (*value)(const PoolSnapshot& pool);
};

template <format::LaneCounter kCounter>
double counter(const PoolSnapshot& pool) {
  return double(pool.counters[kCounter]);
}

uint64_t evicted_of(const PoolSnapshot& pool) {
  uint64_t sum = 0;
  for (const auto& [policy, reasons] : pool.evicted_blocks)
    for (const uint64_t blocks : reasons) sum += blocks;
  return sum;
}

double asked_for(const PoolSnapshot& pool) {
  uint64_t sum = 0;
  for (const Lookup& lookup : lookups_of(pool)) sum += lookup.operation[0] == 'r' ? 0 : lookup.asked;
  return double(sum);
}
double found(const PoolSnapshot& pool) {
  uint64_t sum = 0;
  for (const Lookup& lookup : lookups_of(pool)) sum += lookup.operation[0] == 'r' ? 0 : lookup.found;
  return double(sum);
}

constexpr Alias kAliases[] = {
    {"ruvector_memory_pool_utilization", "gauge", "maru_memory_pool_utilization.", utilization},
    {"ruvector_pages_evicted_total", "counter", "maru_pages_evicted_total.",
     [](const PoolSnapshot& pool) { return double(pool.evicted_pages); }},
    {"lmcache_mp_l1_read_total", "counter", "maru_retrieves_total with result hit.",
     counter<format::kCounterRetrieveHits>},
    {"lmcache_mp_l1_read_failure_total", "counter", "maru_retrieves_total with result miss.",
     counter<format::kCounterRetrieveMisses>},
    {"lmcache_mp_l1_write_total", "counter", "maru_stores_total.", counter<format::kCounterStores>},
    {"lmcache_mp_l1_evicted_total", "counter", "maru_evicted_blocks_total, summed up.",
     [](const PoolSnapshot& pool) { return double(evicted_of(pool)); }},
    {"lmcache_mp_l1_eviction_loop_triggered_total", "counter", "maru_background_evictions_total.",
     [](const PoolSnapshot& pool) { return double(pool.background_wakes); }},
    {"lmcache_mp_l1_allocation_failure_total", "counter", "maru_rents_refused_total.",
     [](const PoolSnapshot& pool) { return double(pool.rents_refused); }},
    {"lmcache_mp_lookup_requested_total", "counter", "maru_lookups_total of exists and match.", asked_for},
    {"lmcache_mp_lookup_hit_total", "counter", "Keys found by exists and match.", found},
    {"lmcache_mp_lookup_hit_l1_total", "counter", "Keys found by exists and match: all blocks are in this tier.",
     found},
    {"lmcache_mp_l1_memory_usage_bytes", "gauge", "maru_memory_pool_used_bytes.",
     [](const PoolSnapshot& pool) { return double(pages_in_use(pool) * pool.page_bytes); }},
    {"lmcache_mp_l1_usage_ratio", "gauge", "maru_memory_pool_utilization.", utilization},
    {"lmcache_mp_l1_staging_bytes", "gauge", "Bytes of the pages that are being filled.",
     [](const PoolSnapshot& pool) {
       return double(pages_in(pool, {PageState::kReserved, PageState::kSealed}) * pool.page_bytes);
     }},
    {"kvbm_match_hashes_requested_total", "counter", "maru_match_keys_total.", counter<format::kCounterMatchKeys>},
    {"kvbm_match_blocks_returned_total", "counter", "maru_match_blocks_total.", counter<format::kCounterMatchBlocks>},
    {"kvbm_registrations_total", "counter", "maru_stores_total.", counter<format::kCounterStores>},
    {"kvbm_duplicate_blocks_total", "counter", "maru_duplicate_stores_total.", counter<format::kCounterDuplicates>},
    {"kvbm_evictions_total", "counter", "maru_evicted_blocks_total, summed up.",
     [](const PoolSnapshot& pool) { return double(evicted_of(pool)); }},
    {"kvbm_host_cache_hit_rate", "gauge", "maru_hit_ratio of match.",
     [](const PoolSnapshot& pool) {
       return ratio(pool.counters[format::kCounterMatchBlocks], pool.counters[format::kCounterMatchKeys], NAN);
     }},
    {"kvbm_inflight_mutable", "gauge", "maru_pages with state reserved or sealed.",
     [](const PoolSnapshot& pool) { return double(pages_in(pool, {PageState::kReserved, PageState::kSealed})); }},
    {"kvbm_inflight_immutable", "gauge", "maru_pins.", [](const PoolSnapshot& pool) { return double(pool.pins); }},
    {"kvbm_reset_pool_size", "gauge", "maru_pages with state free or out.",
     [](const PoolSnapshot& pool) { return double(pages_in(pool, {PageState::kFree, PageState::kOut})); }},
    {"kvbm_inactive_pool_size", "gauge", "maru_blocks.",
     [](const PoolSnapshot& pool) { return double(blocks_of(pool)); }},
};

}  // namespace

void write_aliases(TextWriter& out, const Snapshot& snapshot) {
  out.family("ruvector_allocation_latency_seconds", "histogram", "maru_allocation_latency_seconds.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) { out.histogram({{"pool", pool.name}}, pool.rent_latency); });
  for (const Alias& alias : kAliases) per_pool(out, snapshot, alias.name, alias.type, alias.help, alias.value);
}

}  // namespace maru::daemon::metrics
