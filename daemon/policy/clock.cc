// Clock, or second chance: blocks stand in the order in which they were stored. A block that was used since then starts anew
// when its turn to go comes. A use writes a bit and moves nothing.
//
// word: tick at which it came into the queue << 1 | used since then.
#include "daemon/policy/built_in.h"

#include <algorithm>

namespace maru::daemon {

namespace {

class Clock final : public Policy {
 public:
  const char* name() const override { return "clock"; }
  // The last use, not the present: blocks that marud finds after a change of policy keep their order.
  void stored(PolicyBlock& block, const PolicyPool&) override { block.word = block.last_use << 1; }
  void used(PolicyBlock& block, const PolicyPool&) override { block.word |= kUsed; }
  PolicyPlace place(const PolicyBlock& block) const override { return {0, block.word >> 1}; }
  bool spare(PolicyBlock& block, const PolicyPool& pool) override {
    if ((block.word & kUsed) == 0) return false;
    block.word = std::max(pool.now, (block.word >> 1) + 1) << 1;
    return true;
  }

 private:
  static constexpr uint64_t kUsed = 1;
};

}  // namespace

std::unique_ptr<Policy> make_clock(OptionReader&) { return std::make_unique<Clock>(); }

}  // namespace maru::daemon
