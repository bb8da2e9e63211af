// First in, first out: a use changes nothing.
#include "daemon/policy/built_in.h"

namespace maru::daemon {

namespace {

class Fifo final : public Policy {
 public:
  const char* name() const override { return "fifo"; }
  uint32_t needs() const override { return kNeedsDetail; }
  PolicyPlace place(const PolicyBlock& block) const override { return {0, block.stored}; }
};

}  // namespace

std::unique_ptr<Policy> make_fifo(OptionReader&) { return std::make_unique<Fifo>(); }

}  // namespace maru::daemon
