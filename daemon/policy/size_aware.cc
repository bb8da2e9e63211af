// Recency, size and priority in one score; the lowest goes first.
//
// The idea is old and its usual formula misorders. With an age in seconds and a priority from 1 to 5 in one sum, size counts
// for nothing. A KV block without a touch for a day stands above an adapter used three seconds ago. Here each term lies between
// 0 and 1 before it is weighted:
//
//     recency    half_life / (half_life + age): 1 now, 1/2 after half_life_s, never 0
//     size       log2(pages of the block) / log2(pages of a region); 1 - that with large_first = true
//     priority   (class of the content, 1 to 5, + the user's priority, 15 at most) / 15
//
// The sum is 0.6, 0.2 and 0.2 of them by default, so a difference of recency beats any single other term. The block with the
// highest cost of another store stays longest, unless large_first says that memory is dearer than work.
//
// Size and priority are taken in steps, each pair of which has a queue of its own. Blocks of one queue differ in recency only,
// so the order within never changes while time passes, and the best of the cold ends is the best of all blocks.
//
// word: used since it was stored.
#include "daemon/policy/built_in.h"
#include "daemon/policy/content_class.h"

#include <algorithm>
#include <bit>

namespace maru::daemon {

namespace {

constexpr uint32_t kLevels = 16;

struct Weights {
  double recency, size, priority;
  double half_life_ms;
  bool large_first;
};

class SizeAware final : public Policy {
 public:
  explicit SizeAware(const Weights& weights) : weights_(weights) {}

  const char* name() const override { return "size_aware"; }
  uint32_t needs() const override { return kNeedsLine | kNeedsDetail; }
  Ranking ranking() const override { return Ranking::kByRank; }

  void used(PolicyBlock& block, const PolicyPool&) override { block.word = 1; }
  PolicyPlace place(const PolicyBlock& block) const override {
    return {size_step(block.pages) * kLevels + level(block), block.last_use};
  }
  // Rises from block to block of a queue, since `now` stands still and the next one was used later.
  uint64_t rank(const PolicyBlock& block, const PolicyTenant&, const PolicyQueues&,
                const PolicyPool& pool) const override {
    const double age = pool.now > block.last_use ? double(pool.now - block.last_use) : 0;
    const double recency = weights_.half_life_ms / (weights_.half_life_ms + age);
    const uint32_t steps = size_step(uint32_t(std::min<uint64_t>(pool.region_pages, ~0u)));
    const double part = steps == 0 ? 0 : std::min(1.0, double(size_step(block.pages)) / steps);
    const double size = weights_.large_first ? 1 - part : part;
    const double priority = double(level(block)) / (kLevels - 1);
    const double score = weights_.recency * recency + weights_.size * size + weights_.priority * priority;
    return uint64_t(score / (weights_.recency + weights_.size + weights_.priority) * kScale);
  }

 private:
  static constexpr double kScale = double(uint64_t{1} << 52);

  static uint32_t size_step(uint32_t pages) { return pages == 0 ? 0 : uint32_t(std::bit_width(pages)) - 1; }
  static uint32_t level(const PolicyBlock& block) {
    return std::min(block.priority, kLevels - 1 - kContentClassMax) +
           content_class(block.content_type, block.word != 0);
  }

  const Weights weights_;
};

}  // namespace

std::unique_ptr<Policy> make_size_aware(OptionReader& options) {
  Weights weights;
  weights.recency = options.number("recency", 0.6, 0, 1000);
  weights.size = options.number("size", 0.2, 0, 1000);
  weights.priority = options.number("priority", 0.2, 0, 1000);
  weights.half_life_ms = 1000 * options.number("half_life_s", 600, 0.001, 1e9);
  weights.large_first = options.flag("large_first", false);
  if (weights.recency + weights.size + weights.priority <= 0)
    options.complain(
        "the options recency, size and priority are all 0, expected one above; raise one in policy_options");
  return std::make_unique<SizeAware>(weights);
}

}  // namespace maru::daemon
