#include "daemon/hosting/survey.h"

#include <algorithm>

namespace maru::daemon {

bool Survey::step(const std::vector<std::unique_ptr<HostedPool>>& pools, uint64_t count) {
  if (censuses_.size() != pools.size()) {
    censuses_.assign(pools.size(), {});
    pool_ = 0;
  }
  for (uint64_t left = count; left > 0 && pool_ < pools.size();) {
    metrics::PageCensus& census = censuses_[pool_];
    const uint64_t before = census.next;
    const Pool* pool = pools[pool_]->serving();
    if (pool && !pool->take_census(census, left)) return false;
    left -= std::min(left, census.next - before);
    ++pool_;
  }
  return pool_ == pools.size();
}

}  // namespace maru::daemon
