// S3-FIFO with a large probation queue.
//
// Most blocks are used once and never again, so a new block has to prove itself. It enters the probation queue, and leaves the
// pool from there unless it was used. Blocks that were used go to the main queue, which is a clock with a small count. Both are
// first in, first out: a use raises a count and moves nothing. A block that comes back soon after it was evicted from probation
// had been evicted too early, and enters the main queue at once. So digests of such blocks are remembered, in a table that does
// not grow (the ghosts).
//
// Probation gives first while it holds more than its share of the blocks, main otherwise. Traces of prefixes want half of the
// pool for probation and one use as proof; the paper's 10 % and two uses lose several points of hit ratio there.
//
// word: tick at which it came into its queue << 3 | in main << 2 | uses since then, 3 at most.
#include "daemon/policy/built_in.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace maru::daemon {

namespace {

// Remembers at least the last `window` digests that were put in, for windows up to half of its slots, except digests that met
// nine others in a set of eight. A digest is represented by 32 of its bits, so one in about 2^29 is mistaken for another.
class GhostTable {
 public:
  static constexpr uint64_t kSlotsMax = 1u << 22;  // 32 MiB

  // Forgets everything if the size changes.
  void resize(uint64_t pages) {
    const uint64_t slots = std::clamp<uint64_t>(std::bit_ceil(2 * pages), kWays, kSlotsMax);
    if (slots != slots_.size()) slots_.assign(slots, {});
  }

  void put(uint64_t digest) {
    if (slots_.empty()) return;
    ++put_;
    Slot* const set = set_of(digest);
    // An equal one, or else that which was put first.
    Slot* const place =
        std::max_element(set, set + kWays, [&](const Slot& a, const Slot& b) { return age(a) < age(b); });
    Slot* const equal = find(digest);
    *(equal != nullptr ? equal : place) = {uint32_t(digest), uint32_t(put_)};
  }

  // Whether it was among the last `window`; forgets it.
  bool take(uint64_t digest, uint64_t window) {
    Slot* const found = slots_.empty() ? nullptr : find(digest);
    if (found == nullptr) return false;
    const bool is_recent = age(*found) < window;
    *found = {};
    return is_recent;
  }

 private:
  static constexpr uint64_t kWays = 8;
  static constexpr uint64_t kEmptyAge = ~uint64_t{0};
  struct Slot {
    uint32_t digest = 0;
    uint32_t put = 0;  // low bits of put_ then; with `digest` 0 too: empty
  };

  uint64_t age(const Slot& slot) const {
    return slot.digest == 0 && slot.put == 0 ? kEmptyAge : uint32_t(uint32_t(put_) - slot.put);
  }
  Slot* set_of(uint64_t digest) {
    const uint64_t mixed = (digest ^ digest >> 32) * 0x9e3779b97f4a7c15;
    return &slots_[(mixed >> 40) * kWays & (slots_.size() - 1)];
  }
  Slot* find(uint64_t digest) {
    Slot* const set = set_of(digest);
    for (Slot* each = set; each < set + kWays; ++each)
      if (each->digest == uint32_t(digest) && age(*each) != kEmptyAge) return each;
    return nullptr;
  }

  std::vector<Slot> slots_;
  uint64_t put_ = 0;
};

class S3Fifo final : public Policy {
 public:
  S3Fifo(double probation, uint32_t threshold) : probation_(probation), threshold_(threshold) {}

  const char* name() const override { return "s3fifo"; }
  uint32_t needs() const override { return kNeedsLine; }
  Ranking ranking() const override { return Ranking::kByRank; }

  void stored(PolicyBlock& block, const PolicyPool& pool) override {
    ghosts_.resize(pool.pages);
    // The last use, not the present: blocks that marud finds after a change of policy keep their order.
    block.word = word(block.last_use, ghosts_.take(block.digest, blocks_), 0);
  }
  void used(PolicyBlock& block, const PolicyPool&) override {
    if (uses(block.word) < kUsesMax) ++block.word;
  }
  PolicyPlace place(const PolicyBlock& block) const override {
    return {is_main(block.word) ? kMain : kProbation, entered(block.word)};
  }
  bool spare(PolicyBlock& block, const PolicyPool& pool) override {
    const uint64_t now = std::max(pool.now, entered(block.word) + 1);
    if (!is_main(block.word)) {
      if (uses(block.word) < threshold_) return false;
      block.word = word(now, true, 0);
    } else {
      if (uses(block.word) == 0) return false;
      block.word = word(now, true, uses(block.word) - 1);
    }
    return true;
  }
  void evicted(const PolicyBlock& block) override {
    if (!is_main(block.word)) ghosts_.put(block.digest);
  }
  uint64_t rank(const PolicyBlock& block, const PolicyTenant&, const PolicyQueues& queues,
                const PolicyPool& pool) const override {
    // Measured against the blocks at the beginning of the request, so that probation's turn, once over, does not come again
    // because main shrinks.
    const uint64_t probation = queues.blocks(kProbation), all = probation + queues.blocks(kMain);
    blocks_ = pool.now == asked_at_ ? std::max(blocks_, all) : all;
    asked_at_ = pool.now;
    if (is_main(block.word)) return 1;
    return double(probation) > probation_ * double(blocks_) ? 0 : 2;
  }

 private:
  static constexpr uint32_t kProbation = 0, kMain = 1;
  static constexpr uint32_t kUsesMax = 3;

  static uint64_t word(uint64_t tick, bool in_main, uint32_t uses) { return tick << 3 | uint64_t(in_main) << 2 | uses; }
  static uint64_t entered(uint64_t word) { return word >> 3; }
  static bool is_main(uint64_t word) { return (word & 4) != 0; }
  static uint32_t uses(uint64_t word) { return uint32_t(word & 3); }

  const double probation_;
  const uint32_t threshold_;
  GhostTable ghosts_;
  mutable uint64_t asked_at_ = 0;  // tick of the last request, and the blocks there were then: as many ghosts count
  mutable uint64_t blocks_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_s3fifo(OptionReader& options) {
  const double probation = options.number("probation", 0.5, 0, 1);
  return std::make_unique<S3Fifo>(probation, uint32_t(options.whole_number("threshold", 1, 1, 3)));
}

}  // namespace maru::daemon
