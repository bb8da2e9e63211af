// The block that expires first goes first, to the second, since it would not be here long anyway; within a second the
// least recently used. Blocks that never expire come after all others. One queue for each second, so that a use moves a
// block to the warm end of its own.
#include "daemon/policy/built_in.h"

#include <algorithm>
#include <limits>

namespace maru::daemon {

namespace {

class Ttl final : public Policy {
 public:
  const char* name() const override { return "ttl"; }
  uint32_t needs() const override { return kNeedsLine; }
  PolicyPlace place(const PolicyBlock& block) const override {
    if (block.expires == 0) return {kNever, block.last_use};
    return {uint32_t(std::min<uint64_t>(block.expires / 1000, kNever - 1)), block.last_use};
  }

 private:
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();  // a pool of 136 years does not happen
};

}  // namespace

std::unique_ptr<Policy> make_ttl(OptionReader&) { return std::make_unique<Ttl>(); }

}  // namespace maru::daemon
