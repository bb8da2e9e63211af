// Least frequently used, and of those used equally often the least recently used: one queue for each number of uses.
#include "daemon/policy/built_in.h"

#include <algorithm>
#include <limits>

namespace maru::daemon {

namespace {

class Lfu final : public Policy {
 public:
  const char* name() const override { return "lfu"; }
  // Storing counts as a use.
  void stored(PolicyBlock& block, const PolicyPool&) override { block.word = 1; }
  void used(PolicyBlock& block, const PolicyPool&) override { block.word = std::min(block.word, kUsesMax - 1) + 1; }
  PolicyPlace place(const PolicyBlock& block) const override {
    return {uint32_t(std::min(block.word, kUsesMax)), block.last_use};
  }

 private:
  static constexpr uint64_t kUsesMax = std::numeric_limits<uint32_t>::max();
};

}  // namespace

std::unique_ptr<Policy> make_lfu(OptionReader&) { return std::make_unique<Lfu>(); }

}  // namespace maru::daemon
