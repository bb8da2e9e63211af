#include "daemon/metrics/text.h"

#include "daemon/metrics/families.h"
#include "daemon/version.h"

namespace maru::daemon::metrics {
namespace {

using format::LaneCounter;
using shm::PageState;
using Labels = TextWriter::Labels;

constexpr const char* kPageStateNames[] = {"out",   "free",     "reserved", "sealed",  "tail",
                                           "ready", "retiring", "retired",  "poisoned"};
static_assert(std::size(kPageStateNames) == format::kPageStateCount);
constexpr const char* kRegionStateNames[] = {"unused", "rented", "orphaned", "draining"};
static_assert(std::size(kRegionStateNames) == kRegionStates);
constexpr const char* kReasonNames[] = {"request", "background", "takeover", "expired", "admin"};
static_assert(std::size(kReasonNames) == kEvictReasons);
constexpr const char* kHostStateNames[] = {"live", "suspect", "dead"};
static_assert(std::size(kHostStateNames) == kHostStates);

// The name of a counter of all clients.
struct CounterFamily {
  const char* name;
  const char* help;
  LaneCounter counter;
};
constexpr CounterFamily kCounterFamilies[] = {
    {"maru_match_keys_total", "Keys asked for as prefixes; the denominator of maru_match_blocks_total.",
     format::kCounterMatchKeys},
    {"maru_match_blocks_total", "Blocks found as prefixes.", format::kCounterMatchBlocks},
    {"maru_stores_total", "Blocks stored.", format::kCounterStores},
    {"maru_stored_bytes_total", "Bytes of blocks stored.", format::kCounterStoredBytes},
    {"maru_duplicate_stores_total", "Stores that found a block under their key already.", format::kCounterDuplicates},
    {"maru_deletes_total", "Blocks that clients deleted.", format::kCounterDeletes},
    {"maru_pin_refusals_total", "Pins refused because every slot of the client was in use.", format::kCounterPinFull},
    {"maru_registry_full_total",
     "Stores refused because the registry was full at their key, or because no cell was free for it.",
     format::kCounterRegistryFull},
    {"maru_revives_total", "Blocks about to be evicted that a client put back by using them.", format::kCounterRevives},
    {"maru_prefix_walks_total", "Searches for the end of a prefix that had to walk.", format::kCounterSearchFallbacks},
    {"maru_checksum_errors_total", "Blocks whose bytes did not match their checksum.", format::kCounterChecksumErrors},
    {"maru_rent_requests_total", "Requests for memory that clients sent.", format::kCounterRents},
};

void write_marud(TextWriter& out, const Snapshot& snapshot) {
  out.family("maru_build_info", "gauge", "1, with the version of marud.");
  out.sample({{"version", kVersionText}}, uint64_t(1));
  out.family("maru_start_time_seconds", "gauge", "When marud started, in seconds since 1970.");
  out.sample({}, double(snapshot.start_unix_ms) / 1000);
  out.family("maru_connections", "gauge", "Connections to marud's socket.");
  out.sample({}, snapshot.connections);
  out.family("maru_event_loop_turn_seconds", "histogram", "How long a turn of the event loop took, waiting excluded.");
  out.histogram({}, snapshot.turns.lasted);
  out.family("maru_event_loop_turn_cpu_seconds", "histogram",
             "How much processor time of its own a turn of the event loop took.");
  out.histogram({}, snapshot.turns.cpu);
  out.family("maru_log_dropped_lines_total", "counter",
             "Lines of marud's log dropped because standard error took none.");
  out.sample({}, snapshot.log_lines_dropped);
  out.family("maru_sockets_lost_total", "counter", "How often the file of a socket of marud's was taken away.");
  out.sample({{"socket", "clients"}}, snapshot.sockets_lost);
  out.sample({{"socket", "http"}}, snapshot.http_sockets_lost);
}

void write_space(TextWriter& out, const Snapshot& snapshot) {
  out.family("maru_pool_serving", "gauge",
             "1 when the pool serves, 0 when it waits for its memory, is fenced or unavailable.");
  for (const PoolSnapshot& pool : snapshot.pools)
    out.sample({{"pool", pool.name}, {"condition", pool.condition}}, uint64_t(pool.is_serving));
  per_pool(out, snapshot, "maru_pool_bytes", "gauge", "Size of the pool, control region included.",
           [](const PoolSnapshot& pool) { return pool.pool_bytes; });
  per_pool(out, snapshot, "maru_page_bytes", "gauge", "Size of a page.",
           [](const PoolSnapshot& pool) { return pool.page_bytes; });
  per_pool(out, snapshot, "maru_pool_unreserved_bytes", "gauge",
           "Bytes of a pool in a file for which its file system has promised no room yet.",
           [](const PoolSnapshot& pool) { return pool.unreserved_bytes; });
  out.family("maru_pages", "gauge", "Pages by state.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    for (size_t i = 0; i < std::size(kPageStateNames); ++i)
      out.sample({{"pool", pool.name}, {"state", kPageStateNames[i]}}, pool.census.states[i]);
  });
  out.family("maru_regions", "gauge", "Regions by state.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    for (size_t i = 0; i < kRegionStates; ++i)
      out.sample({{"pool", pool.name}, {"state", kRegionStateNames[i]}}, pool.regions[i]);
  });
  per_pool(out, snapshot, "maru_memory_pool_utilization", "gauge", "Share of the pool's pages that is in use, 0 to 1.",
           utilization);
  per_pool(out, snapshot, "maru_memory_pool_used_bytes", "gauge", "Bytes of the pages that are in use.",
           [](const PoolSnapshot& pool) { return pages_in_use(pool) * pool.page_bytes; });
  per_pool(out, snapshot, "maru_fragmentation_ratio", "gauge",
           "Share of the FREE pages that is not in the longest run of them, 0 to 1.", [](const PoolSnapshot& pool) {
             const uint64_t free = pool.census.states[size_t(PageState::kFree)];
             return ratio(free - pool.census.longest_free, free);
           });
  per_pool(out, snapshot, "maru_largest_free_run_pages", "gauge", "Pages of the longest run of FREE ones.",
           [](const PoolSnapshot& pool) { return pool.census.longest_free; });
  per_pool(out, snapshot, "maru_blocks", "gauge", "Blocks in the pool.", blocks_of);
  per_pool(out, snapshot, "maru_block_bytes", "gauge", "Bytes of the blocks in the pool.",
           [](const PoolSnapshot& pool) { return pool.census.block_bytes; });
  out.family(
      "maru_lanes", "gauge",
      "Lanes of clients: how many there can be, live ones, those of them whose process cannot be proven to live or to "
      "have ended, and those being taken back.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    out.sample({{"pool", pool.name}, {"state", "max"}}, pool.lanes_max);
    out.sample({{"pool", pool.name}, {"state", "live"}}, pool.lanes_live);
    out.sample({{"pool", pool.name}, {"state", "unproven"}}, pool.lanes_unproven);
    out.sample({{"pool", pool.name}, {"state", "reclaiming"}}, pool.lanes_reclaiming);
  });
}

void write_lookups(TextWriter& out, const Snapshot& snapshot) {
  const auto hits_and_misses = [&](const char* name, const char* help, LaneCounter hits, LaneCounter misses) {
    out.family(name, "counter", help);
    for_serving(snapshot, [&](const PoolSnapshot& pool) {
      out.sample({{"pool", pool.name}, {"result", "hit"}}, pool.counters[hits]);
      out.sample({{"pool", pool.name}, {"result", "miss"}}, pool.counters[misses]);
    });
  };
  hits_and_misses("maru_exists_total", "Keys asked whether they are there.", format::kCounterExistsHits,
                  format::kCounterExistsMisses);
  hits_and_misses("maru_retrieves_total", "Keys asked for to be read.", format::kCounterRetrieveHits,
                  format::kCounterRetrieveMisses);
  for (const CounterFamily& family : kCounterFamilies)
    per_pool(out, snapshot, family.name, "counter", family.help,
             [&](const PoolSnapshot& pool) { return pool.counters[family.counter]; });
  out.family("maru_lookups_total", "counter", "Keys asked for, by operation: the denominators of maru_hit_ratio.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    for (const Lookup& lookup : lookups_of(pool))
      out.sample({{"pool", pool.name}, {"operation", lookup.operation}}, lookup.asked);
  });
  out.family("maru_hit_ratio", "gauge",
             "Keys found of those asked for since the pool began, by operation; NaN before the first.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    for (const Lookup& lookup : lookups_of(pool))
      out.sample({{"pool", pool.name}, {"operation", lookup.operation}}, ratio(lookup.found, lookup.asked, NAN));
  });
}

void write_eviction(TextWriter& out, const Snapshot& snapshot) {
  out.family("maru_allocation_latency_seconds", "histogram",
             "How long marud took to decide on a client's request for memory.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) { out.histogram({{"pool", pool.name}}, pool.rent_latency); });
  per_pool(out, snapshot, "maru_rents_refused_total", "counter",
           "Requests for memory refused because nothing was free and nothing could be evicted.",
           [](const PoolSnapshot& pool) { return pool.rents_refused; });
  out.family("maru_policy_info", "gauge", "1, with the eviction policy in force.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    out.sample({{"pool", pool.name}, {"policy", pool.policy}}, uint64_t(1));
  });
  out.family("maru_watermark_ratio", "gauge", "Shares in use between which marud evicts in the background.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    out.sample({{"pool", pool.name}, {"level", "high"}}, pool.high_watermark);
    out.sample({{"pool", pool.name}, {"level", "low"}}, pool.low_watermark);
  });
  per_pool(out, snapshot, "maru_evicting", "gauge", "1 while marud evicts in the background.",
           [](const PoolSnapshot& pool) { return uint64_t(pool.is_evicting); });
  out.family("maru_evicted_blocks_total", "counter", "Blocks evicted, by the policy that was in force and the reason.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    for (const auto& [policy, reasons] : pool.evicted_blocks)
      for (size_t i = 0; i < kEvictReasons; ++i)
        out.sample({{"pool", pool.name}, {"policy", policy}, {"reason", kReasonNames[i]}}, reasons[i]);
  });
  per_pool(out, snapshot, "maru_pages_evicted_total", "counter", "Pages of the blocks evicted.",
           [](const PoolSnapshot& pool) { return pool.evicted_pages; });
  per_pool(out, snapshot, "maru_regions_taken_total", "counter", "Regions taken from one client for another.",
           [](const PoolSnapshot& pool) { return pool.regions_taken; });
  per_pool(out, snapshot, "maru_background_evictions_total", "counter", "Times that the high watermark was reached.",
           [](const PoolSnapshot& pool) { return pool.background_wakes; });
  per_pool(out, snapshot, "maru_lost_touches_total", "counter", "Uses of blocks that marud read too late to know of.",
           [](const PoolSnapshot& pool) { return pool.lost_touches; });
  per_pool(out, snapshot, "maru_lines_read_total", "counter",
           "Lines of the control region that marud's walks have read, each of 64 bytes.",
           [](const PoolSnapshot& pool) { return pool.lines_read; });
  per_pool(out, snapshot, "maru_queues_rebuilt_total", "counter",
           "Orders of eviction that were made anew, each of a shelf of pages.",
           [](const PoolSnapshot& pool) { return pool.queues_rebuilt; });
}

void write_upkeep(TextWriter& out, const Snapshot& snapshot) {
  per_pool(out, snapshot, "maru_pins", "gauge", "Pins seen when marud looked last; 65536 at most.",
           [](const PoolSnapshot& pool) { return pool.pins; });
  per_pool(out, snapshot, "maru_pins_overdue", "gauge", "Pins that are held longer than pin_overdue_ms without a use.",
           [](const PoolSnapshot& pool) { return pool.pins_overdue; });
  per_pool(out, snapshot, "maru_pins_overdue_total", "counter", "Pins that have become overdue.",
           [](const PoolSnapshot& pool) { return pool.pins_overdue_total; });
  per_pool(out, snapshot, "maru_retired_blocks", "gauge", "Blocks whose key is gone and whose memory somebody holds.",
           [](const PoolSnapshot& pool) { return pool.retired_blocks; });
  per_pool(out, snapshot, "maru_held_blocks", "gauge", "Blocks left out of the order of eviction because of a pin.",
           [](const PoolSnapshot& pool) { return pool.held_blocks; });
  per_pool(out, snapshot, "maru_clients_reclaimed_total", "counter", "Clients that died or left and were taken back.",
           [](const PoolSnapshot& pool) { return pool.clients_reclaimed; });
  per_pool(out, snapshot, "maru_reclaimed_pages_total", "counter",
           "Pages that clients left unfinished and marud freed.",
           [](const PoolSnapshot& pool) { return pool.reclaimed_pages; });
  per_pool(out, snapshot, "maru_audits_total", "counter", "Audits of the pool.",
           [](const PoolSnapshot& pool) { return pool.audits; });
  per_pool(out, snapshot, "maru_audit_findings", "gauge", "Violations that the last audit found.",
           [](const PoolSnapshot& pool) { return pool.audit_findings; });
  per_pool(out, snapshot, "maru_audit_time_seconds", "gauge",
           "When the last audit was, in seconds since 1970; 0: never.",
           [](const PoolSnapshot& pool) { return double(pool.audited_unix_ms) / 1000; });
  out.family("maru_hosts", "gauge", "Hosts of a pool that several share, by state.");
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    for (size_t i = 0; pool.hosts && i < kHostStates; ++i)
      out.sample({{"pool", pool.name}, {"state", kHostStateNames[i]}}, (*pool.hosts)[i]);
  });
}

void write_tenants(TextWriter& out, const Snapshot& snapshot) {
  const auto for_tenants = [&](auto&& act) {
    for_serving(snapshot, [&](const PoolSnapshot& pool) {
      for (const TenantUse& tenant : pool.tenants) {
        const std::string nameless = tenant.id == 0 ? "(others)" : "id:" + std::to_string(tenant.id);
        act(pool, tenant, tenant.name.empty() ? nameless : tenant.name);
      }
    });
  };
  out.family("maru_tenant_bytes", "gauge",
             "Bytes of whole pages that a tenant uses; \"(others)\" are blocks of no tenant, and of tenants without a "
             "place in the table, \"(further)\" the sum of those that use least where there are more than 1000.");
  for_tenants([&](const PoolSnapshot& pool, const TenantUse& tenant, const std::string& name) {
    out.sample({{"pool", pool.name}, {"tenant", name}}, tenant.used_bytes);
  });
  for_serving(snapshot, [&](const PoolSnapshot& pool) {
    if (pool.tenants_left_out != 0)
      out.sample({{"pool", pool.name}, {"tenant", "(further)"}}, pool.tenants_left_out_bytes);
  });
  out.family("maru_tenant_limit_bytes", "gauge", "Limits that apply to a tenant, where it has any.");
  for_tenants([&](const PoolSnapshot& pool, const TenantUse& tenant, const std::string& name) {
    if (tenant.soft_bytes != 0)
      out.sample({{"pool", pool.name}, {"tenant", name}, {"kind", "soft"}}, tenant.soft_bytes);
    if (tenant.hard_bytes != 0)
      out.sample({{"pool", pool.name}, {"tenant", name}, {"kind", "hard"}}, tenant.hard_bytes);
  });
  out.family("maru_tenant_refusals_total", "counter", "Stores of a tenant that were refused.");
  for_tenants([&](const PoolSnapshot& pool, const TenantUse& tenant, const std::string& name) {
    if (tenant.id != 0) out.sample({{"pool", pool.name}, {"tenant", name}}, tenant.refused);
  });
  per_pool(out, snapshot, "maru_tenant_place_refusals_total", "counter",
           "Stores that were refused because a hard limit holds for their tenant, and the pool has no place for it.",
           [](const PoolSnapshot& pool) { return pool.tenant_place_refusals; });
}

}  // namespace

std::string text_of(const Snapshot& snapshot) {
  TextWriter out;
  write_marud(out, snapshot);
  write_users(out, snapshot);
  write_space(out, snapshot);
  write_lookups(out, snapshot);
  write_eviction(out, snapshot);
  write_upkeep(out, snapshot);
  write_tenants(out, snapshot);
  write_aliases(out, snapshot);
  return out.take();
}

}  // namespace maru::daemon::metrics
