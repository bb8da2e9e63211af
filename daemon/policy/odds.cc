// Odds: the block goes whose chance of another use, for the time that it would have to wait for it, is the worst.
// Nothing is assumed about the workload: the policy learns the behaviour of blocks from their uses.
//
// Blocks of a class are taken for equal. A class is the number of further uses (0, 1, 2, 3, up to 5, 8, 15, and more), and
// whether the block ever was the parent of another block in the pool. The second matters since the last block of a prompt is
// seldom full. The next prompt of the same conversation has another block in its place, and never asks for it again. Within a
// class the block with the oldest use goes first; UseRecord chooses the class.
//
// A client leaves one touch for a whole prefix, at its deepest block. The blocks above hear of such uses when the deeper block
// goes: a use of the child was a use of the parent. For blocks that are gone, a table remembers how often they were used and
// when last. So a block that comes back is not new, and uses that came too late are counted.
//
// word: its last use, counted in blocks stored, << 20 | ever a parent << 16 | uses before it came back << 8 | uses since.
#include "daemon/policy/built_in.h"
#include "daemon/policy/use_record.h"

#include <algorithm>
#include <bit>
#include <vector>

namespace maru::daemon {

namespace {

struct Word {
  uint64_t clock = 0;  // 44 bits
  bool was_parent = false;
  uint32_t uses_before = 0;  // 0 to kUsesMax
  uint32_t uses = 0;         // 0 to kUsesMax

  static constexpr uint32_t kUsesMax = 255;

  explicit Word(uint64_t bits)
      : clock(bits >> 20), was_parent((bits >> 16 & 1) != 0), uses_before(bits >> 8 & 0xFF), uses(bits & 0xFF) {}
  uint64_t bits() const { return clock << 20 | uint64_t(was_parent) << 16 | uint64_t(uses_before) << 8 | uses; }
  uint32_t all_uses() const { return std::min(uses_before + uses, kUsesMax); }
};

size_t class_of(uint32_t uses, bool was_parent) {
  static constexpr uint32_t kLast[] = {0, 1, 2, 3, 5, 8, 15};
  const size_t step = size_t(std::lower_bound(std::begin(kLast), std::end(kLast), uses) - std::begin(kLast));
  return step * 2 + size_t(was_parent);
}

// Blocks that were evicted. Does not grow; a digest is represented by 32 of its bits, so that one in 2^29 or so is mistaken.
class Remembered {
 public:
  struct Slot {
    uint32_t digest = 0;
    uint32_t clock = 0;  // low bits
    uint8_t uses = 0;
    bool was_parent = false;
    bool is_taken = false;
  };

  void resize(uint64_t pages) {
    const uint64_t slots = std::clamp<uint64_t>(std::bit_ceil(kPerPage * pages), kSlotsMin, kSlotsMax);
    if (slots != slots_.size()) slots_.assign(slots, {});
  }

  void put(uint64_t digest, const Word& word) {
    if (slots_.empty()) return;
    Slot* const set = set_of(digest);
    // An equal one, or an empty one, or else that which was not used for the longest time.
    Slot* best = set;
    for (Slot* each = set; each < set + kWays; ++each) {
      if (each->is_taken && each->digest == uint32_t(digest)) {
        best = each;
        break;
      }
      if (best->is_taken &&
          (!each->is_taken || uint32_t(word.clock - each->clock) > uint32_t(word.clock - best->clock)))
        best = each;
    }
    *best = {uint32_t(digest), uint32_t(word.clock), uint8_t(word.all_uses()), word.was_parent, true};
  }

  // Forgets it.
  Slot take(uint64_t digest) {
    if (slots_.empty()) return {};
    Slot* const set = set_of(digest);
    for (Slot* each = set; each < set + kWays; ++each) {
      if (!each->is_taken || each->digest != uint32_t(digest)) continue;
      const Slot found = *each;
      *each = {};
      return found;
    }
    return {};
  }

 private:
  static constexpr uint64_t kWays = 8;
  static constexpr uint64_t kPerPage = 4;
  static constexpr uint64_t kSlotsMin = 1u << 16;  // 768 KiB
  static constexpr uint64_t kSlotsMax = 1u << 22;  // 48 MiB

  Slot* set_of(uint64_t digest) { return &slots_[(digest >> 32) * kWays & (slots_.size() - 1)]; }
  std::vector<Slot> slots_;
};

class Odds final : public Policy {
 public:
  const char* name() const override { return "odds"; }
  uint32_t needs() const override { return kNeedsLine; }
  Ranking ranking() const override { return Ranking::kByRank; }

  void stored(PolicyBlock& block, const PolicyPool& pool) override {
    record_.resize(pool.pages);
    remembered_.resize(pool.pages);
    ++clock_;
    note_parent(block);
    Word word(clock_ << 20);
    const Remembered::Slot before = remembered_.take(block.digest);
    if (before.is_taken) {
      record_.add_use(class_of(before.uses, before.was_parent), uint32_t(uint32_t(clock_) - before.clock));
      word.uses_before = std::min<uint32_t>(before.uses + 1u, Word::kUsesMax);
    }
    record_.add_arrival(class_of(word.uses_before, false));
    last_stored_ = {block.depth, block.last_use, word.uses_before};
    block.word = word.bits();
    refresh();
  }

  void used(PolicyBlock& block, const PolicyPool&) override {
    Word word(block.word);
    record_.add_age(class_of(word.all_uses(), word.was_parent), age_of(word));
    word.uses = std::min(word.uses + 1, Word::kUsesMax);
    word.clock = clock_;
    block.word = word.bits();
    refresh();
  }

  void child_left(PolicyBlock& parent, const PolicyBlock& child, const PolicyPool&) override {
    Word word(parent.word);
    const Word left(child.word);
    word.was_parent = true;
    word.uses = std::min(word.uses + left.uses, Word::kUsesMax);
    word.clock = std::max(word.clock, left.clock);
    parent.word = word.bits();
  }

  // The block's life is known now: each use took it from one class to the next.
  void evicted(const PolicyBlock& block) override {
    const Word word(block.word);
    constexpr uint32_t kStepsMax = 16;
    for (uint32_t i = 0; i < std::min(word.uses, kStepsMax); ++i) {
      const uint32_t uses = std::min(word.uses_before + i, Word::kUsesMax);
      record_.add_uses_of_unknown_age(class_of(uses, word.was_parent), 1);
      record_.add_arrival(class_of(uses + 1, word.was_parent));
    }
    remembered_.put(block.digest, word);
  }

  PolicyPlace place(const PolicyBlock& block) const override {
    const Word word(block.word);
    clock_ =
        std::max(clock_, word.clock);  // words outlive marud, the clock does not; a new marud asks for all places first
    return {uint32_t(class_of(word.all_uses(), word.was_parent)), word.clock};
  }

  uint64_t rank(const PolicyBlock& block, const PolicyTenant&, const PolicyQueues&, const PolicyPool&) const override {
    const Word word(block.word);
    return record_.worth(class_of(word.all_uses(), word.was_parent), age_of(word));
  }

 private:
  uint64_t age_of(const Word& word) const { return clock_ - std::min(clock_, word.clock); }

  // A chain is stored from its head to its tail. The block stored before this one, if it is the parent, has arrived as one.
  void note_parent(const PolicyBlock& block) {
    if (block.depth != last_stored_.depth + 1 || block.last_use > last_stored_.tick + kChainMs) return;
    record_.add_arrival(class_of(last_stored_.uses_before, false), -1);
    record_.add_arrival(class_of(last_stored_.uses_before, true));
  }

  void refresh() {
    if (++events_ % kEventsPerRefresh == 0) record_.refresh_next();
  }

  static constexpr uint64_t kChainMs = 100;  // between two blocks of a chain, stored at once
  static constexpr uint64_t kEventsPerRefresh = 32;

  struct LastStored {
    uint32_t depth = ~0u - 1;
    uint64_t tick = 0;
    uint32_t uses_before = 0;
  };
  UseRecord record_;
  Remembered remembered_;
  LastStored last_stored_;
  mutable uint64_t clock_ = 0;  // blocks stored
  uint64_t events_ = 0;
};

}  // namespace

std::unique_ptr<Policy> make_odds(OptionReader&) { return std::make_unique<Odds>(); }

}  // namespace maru::daemon
