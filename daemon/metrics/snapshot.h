// The facts at one moment that are worth a graph: numbers alone. The deciding thread takes them, and another thread turns them
// into text.
#pragma once

#include "daemon/metrics/histogram.h"
#include "maru/format/control_region.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon::metrics {

inline constexpr size_t kRegionStates = 4;
inline constexpr size_t kEvictReasons = 5;
inline constexpr size_t kHostStates = 3;  // live, suspect, dead
// Tenants that have a line of their own: the largest users of memory. The others are summed up.
inline constexpr size_t kTenantsShown = 1000;

// The pages of a pool by their content, counted in steps of any size.
struct PageCensus {
  std::array<uint64_t, 16> states = {};  // by page state
  uint64_t block_bytes = 0;
  uint64_t no_tenant_bytes = 0;  // of whole pages, of blocks of no tenant
  uint64_t longest_free = 0;     // pages in a row, within a region
  uint64_t free_in_a_row = 0;
  uint64_t next = 0;  // page; at the end of the pool the census is complete
};

struct TenantUse {
  std::string name;  // as marudctl shows it; "" for a tenant without a known name, and for blocks of none
  uint64_t id = 0;
  uint64_t used_bytes = 0, soft_bytes = 0, hard_bytes = 0;
  uint64_t refused = 0;
};

struct PoolSnapshot {
  std::string name;
  std::string condition;
  bool is_serving = false;  // the rest is 0 otherwise
  PageCensus census;
  uint64_t pool_bytes = 0, page_bytes = 0;
  std::array<uint64_t, kRegionStates> regions = {};
  uint64_t lanes_max = 0, lanes_live = 0, lanes_unproven = 0, lanes_reclaiming = 0;
  std::array<uint64_t, format::kLaneCounterCount> counters = {};  // of all clients that ever were
  Histogram rent_latency;
  uint64_t rents_refused = 0;
  std::string policy;
  double high_watermark = 0, low_watermark = 0;
  bool is_evicting = false;
  std::map<std::string, std::array<uint64_t, kEvictReasons>> evicted_blocks;  // by policy, then by reason
  uint64_t evicted_pages = 0;
  uint64_t regions_taken = 0, background_wakes = 0, lost_touches = 0, queues_rebuilt = 0;
  uint64_t pins = 0, pins_overdue = 0, pins_overdue_total = 0;
  uint64_t retired_blocks = 0, held_blocks = 0;
  uint64_t clients_reclaimed = 0, reclaimed_pages = 0;
  uint64_t audits = 0, audit_findings = 0, audited_unix_ms = 0;
  uint64_t lines_read = 0;
  std::optional<std::array<uint64_t, kHostStates>> hosts;  // of a pool that hosts share
  uint64_t unreserved_bytes = 0;
  std::vector<TenantUse> tenants;
  uint64_t tenants_left_out = 0, tenants_left_out_bytes = 0;
  uint64_t tenant_place_refusals = 0;  // stores
};

// Requests that are refused because of the asker.
enum class Refusal : uint8_t { kAttach, kWrite, kAdministrate, kConnections, kRegions, kBytes, kPins };
inline constexpr size_t kRefusals = 7;

struct UserNumbers {
  uint64_t connections = 0, regions = 0, bytes = 0, pins = 0;
};

// Turns of the event loop, each from the end of one wait to the next wait.
struct TurnTimes {
  Histogram lasted;
  Histogram cpu;  // processor time of the thread itself
  uint64_t longest_cpu_ns = 0;
};

struct Snapshot {
  uint64_t start_unix_ms = 0;
  uint64_t connections = 0;
  uint64_t log_lines_dropped = 0;
  uint64_t sockets_lost = 0, http_sockets_lost = 0;
  TurnTimes turns;
  std::array<uint64_t, kRefusals> refusals = {};
  std::map<uint32_t, UserNumbers> users;  // by number
  uint64_t users_over_pins = 0;
  std::vector<PoolSnapshot> pools;
};

}  // namespace maru::daemon::metrics
