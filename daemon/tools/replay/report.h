// The result of a replay, for people and for machines.
#pragma once

#include "daemon/tools/replay/board.h"
#include "daemon/tools/replay/exact_lru.h"
#include "daemon/tools/replay/options.h"
#include "daemon/tools/trace/trace.h"

#include <nlohmann/json.hpp>
#include <string>

namespace maru::replay {

struct Report {
  // `board` is the board of a replay whose clients are gone. Options and trace must outlive the report.
  Report(const Options& replay_options, const maru::trace::Trace& replayed, const Board& board);

  // A client that failed makes a replay worthless, even if all bytes were right.
  bool is_clean(uint32_t clients_failed) const { return clients_failed == 0 && wrong_bytes == 0; }

  std::string text() const;
  nlohmann::ordered_json json() const;

  const Options& options;
  const maru::trace::Trace& trace;
  uint64_t pool_bytes = 0, control_bytes = 0, page_bytes = 0, pages = 0;
  uint64_t pool_blocks = 0;  // that fit at once
  uint64_t requests = 0, blocks = 0, hit_blocks = 0, tier_blocks = 0, tier_failures = 0;
  uint64_t verified_bytes = 0, wrong_bytes = 0, checked_blocks = 0;
  uint64_t stored_blocks = 0, duplicate_blocks = 0, evicted_blocks = 0, rents = 0, search_fallbacks = 0;
  uint64_t parent_gone = 0, parent_gone_twice = 0, no_space_requests = 0, no_space_blocks = 0;
  uint64_t failed_stores = 0, failed_store_errno = 0;
  double seconds = 0;  // from the first client's start to the last one's end
  double hit_ratio = 0;
  LruOutcome lru;  // of as many blocks as the pool holds
  LruOutcome limitless;
  std::array<LatencyHistogram, kOperations> latency;
};

}  // namespace maru::replay
