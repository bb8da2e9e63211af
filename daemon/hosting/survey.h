// A look at every page of every pool, in steps that are short enough for a turn of the event loop.
#pragma once

#include "daemon/hosting/hosted_pool.h"
#include "daemon/metrics/snapshot.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace maru::daemon {

class Survey {
 public:
  static constexpr uint64_t kPagesPerTurn = 1u << 12;  // a step of a tenth of a millisecond

  // Counts the next pages. Returns true when all are counted. Begins anew when pools came or went meanwhile.
  bool step(const std::vector<std::unique_ptr<HostedPool>>& pools, uint64_t count = kPagesPerTurn);
  // By pool, in their order.
  const std::vector<metrics::PageCensus>& censuses() const { return censuses_; }

 private:
  std::vector<metrics::PageCensus> censuses_;
  size_t pool_ = 0;
};

}  // namespace maru::daemon
