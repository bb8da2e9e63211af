// Least recently used: the default.
#include "daemon/policy/built_in.h"

namespace maru::daemon {

namespace {

class Lru final : public Policy {
 public:
  const char* name() const override { return "lru"; }
  PolicyPlace place(const PolicyBlock& block) const override { return {0, block.last_use}; }
};

}  // namespace

std::unique_ptr<Policy> make_lru(OptionReader&) { return std::make_unique<Lru>(); }

}  // namespace maru::daemon
