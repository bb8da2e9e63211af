// The user's priority first, then the kind of content, then the last use. One queue for each pair of the first two.
//
// word: used since it was stored.
#include "daemon/policy/built_in.h"
#include "daemon/policy/content_class.h"

#include <algorithm>

namespace maru::daemon {

namespace {

class Priority final : public Policy {
 public:
  const char* name() const override { return "priority"; }
  uint32_t needs() const override { return kNeedsDetail; }
  void used(PolicyBlock& block, const PolicyPool&) override { block.word = 1; }
  PolicyPlace place(const PolicyBlock& block) const override {
    const uint32_t content = content_class(block.content_type, block.word != 0);
    return {std::min(block.priority, kPriorityMax) * kClasses + content, block.last_use};
  }

 private:
  static constexpr uint32_t kClasses = 8;                   // more than kContentClassMax
  static constexpr uint32_t kPriorityMax = ~0u / kClasses;  // higher priorities count as this
  static_assert(kContentClassMax < kClasses);
};

}  // namespace

std::unique_ptr<Policy> make_priority(OptionReader&) { return std::make_unique<Priority>(); }

}  // namespace maru::daemon
