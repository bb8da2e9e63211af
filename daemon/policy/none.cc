// Nothing is evicted. Blocks stand in the order of their use all the same: for listings, and for the policy that follows.
#include "daemon/policy/built_in.h"

namespace maru::daemon {

namespace {

class None final : public Policy {
 public:
  const char* name() const override { return "none"; }
  bool evicts() const override { return false; }
  PolicyPlace place(const PolicyBlock& block) const override { return {0, block.last_use}; }
};

}  // namespace

std::unique_ptr<Policy> make_none(OptionReader&) { return std::make_unique<None>(); }

}  // namespace maru::daemon
