// Tenants kept apart: the tenant that uses the largest part of its limit gives first, and of its blocks the least
// recently used. A tenant without a limit is measured against the whole pool, so that without any limits the largest
// user gives first. Blocks that count for no tenant use nothing and go last.
#include "daemon/policy/built_in.h"

#include <algorithm>

namespace maru::daemon {

namespace {

class IsolatedLru final : public Policy {
 public:
  const char* name() const override { return "isolated_lru"; }
  Ranking ranking() const override { return Ranking::kByRank; }
  PolicyPlace place(const PolicyBlock& block) const override { return {0, block.last_use}; }
  // Rises while the tenant's blocks leave.
  uint64_t rank(const PolicyBlock&, const PolicyTenant& tenant, const PolicyQueues&,
                const PolicyPool& pool) const override {
    const uint64_t limit = tenant.limit_bytes != 0 ? tenant.limit_bytes : pool.pages * pool.page_bytes;
    const double part = double(tenant.used_bytes) / double(std::max<uint64_t>(limit, 1));
    return kPartMax - uint64_t(std::min(part * kPartUnit, double(kPartMax)));
  }

 private:
  static constexpr double kPartUnit = double(uint64_t{1} << 40);
  static constexpr uint64_t kPartMax = uint64_t{1} << 60;
};

}  // namespace

std::unique_ptr<Policy> make_isolated_lru(OptionReader&) { return std::make_unique<IsolatedLru>(); }

}  // namespace maru::daemon
