// The counters of a pool since its marud began.
#pragma once

#include "daemon/metrics/histogram.h"
#include "daemon/pool/evict_reason.h"
#include "maru/format/control_region.h"

#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>

namespace maru::daemon {

struct PoolTotals {
  std::array<uint64_t, kEvictReasonCount> evicted_blocks = {};  // by reason
  std::array<uint64_t, kEvictReasonCount> evicted_pages = {};   // likewise
  uint64_t evicted() const {                                    // to make room
    return evicted_blocks[size_t(EvictReason::kRequest)] + evicted_blocks[size_t(EvictReason::kBackground)] +
           evicted_blocks[size_t(EvictReason::kTakeover)];
  }
  uint64_t all_evicted_pages() const {
    return std::accumulate(evicted_pages.begin(), evicted_pages.end(), uint64_t(0));
  }
  uint64_t background_wakes = 0;  // the high watermark was reached
  uint64_t refused_rents = 0;
  metrics::Histogram rent_latency;
  // By policy, without the blocks of the present one since it came.
  std::map<std::string, std::array<uint64_t, kEvictReasonCount>> evicted_before;
  std::array<uint64_t, kEvictReasonCount> evicted_when_policy_came = {};
  // Blocks evicted since the present policy came go to its account.
  void settle_evictions(const std::string& policy) {
    auto& of_policy = evicted_before[policy];
    for (size_t i = 0; i < kEvictReasonCount; ++i) of_policy[i] += evicted_blocks[i] - evicted_when_policy_came[i];
    evicted_when_policy_came = evicted_blocks;
  }
  uint64_t audits = 0;
  uint64_t regions_taken = 0;  // from one client for another
  uint64_t queues_rebuilt = 0;
  uint64_t clients_reclaimed = 0;
  uint64_t lost_touches = 0;                                      // of lanes that are gone
  uint64_t turn_lines_max = 0;                                    // the most lines that one turn has read
  std::array<uint64_t, format::kLaneCounterCount> counters = {};  // of lanes that are gone, since the format
};

}  // namespace maru::daemon
