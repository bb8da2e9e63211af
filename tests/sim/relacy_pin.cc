// Pins against eviction under the C++ memory model, by relacy: the steps of "Pins" and "Eviction and deletion" in the
// description of the control region, written once more with relacy's types. What the payload's readers and its next owner do
// is a data race unless the protocol orders them, and relacy reports any. The simulator runs the product's own code; this
// runs the orders that it names, under a model weaker than any machine.
//
// Each wrong variant must be reported.
#include "tests/sim/relacy_verdict.h"

namespace {

// The page word of one page: its state and, for RETIRING, the attempt. A freed page has moved on to its next life.
enum Word : unsigned { kReady = 1, kRetired = 2, kFree = 3, kRetiring = 8 };  // kRetiring + attempt

enum class Variant { kRight, kNoBarrier, kAcquireLoad, kRelaxedUnpin, kNoAttempt };

template <Variant variant>
struct PinTest : rl::test_suite<PinTest<variant>, 4> {
  rl::atomic<unsigned> word;
  rl::atomic<unsigned> slot[2];
  rl::var<int> payload;

  void before() {
    word.store(kReady, rl::mo_relaxed, $);
    for (auto& s : slot) s.store(0, rl::mo_relaxed, $);
    payload($) = 1;
  }

  void thread(unsigned index) {
    if (index < 2)
      read(slot[index]);
    else
      evict(index);
  }

  void read(rl::atomic<unsigned>& mine) {
    // The slot, then the word: if the evictor's mark came first it is seen here, else the evictor sees the slot.
    if (variant == Variant::kNoBarrier)
      mine.store(1, rl::mo_release, $);
    else
      mine.exchange(1, rl::mo_seq_cst, $);
    unsigned found = word.load(variant == Variant::kAcquireLoad ? rl::mo_acquire : rl::mo_seq_cst, $);
    bool pinned = found == kReady;
    while (!pinned && found >= kRetiring) {
      pinned = word.compare_exchange_strong(found, kReady, rl::mo_seq_cst, $);
      if (!pinned) pinned = found == kReady;
    }
    if (pinned) RL_ASSERT(payload($) == 1);
    mine.store(0, variant == Variant::kRelaxedUnpin ? rl::mo_relaxed : rl::mo_release, $);
  }

  // Two threads evict, each with attempts of its own; in the wrong variant they look alike.
  void evict(unsigned index) {
    const unsigned mark = kRetiring + (variant == Variant::kNoAttempt ? 0 : index);
    unsigned expected = kReady;
    if (!word.compare_exchange_strong(expected, mark, rl::mo_seq_cst, $)) return;
    bool pinned = false;
    for (auto& s : slot) pinned |= s.load(rl::mo_seq_cst, $) != 0;
    expected = mark;
    if (pinned) {
      word.compare_exchange_strong(expected, kReady, rl::mo_seq_cst, $);
      return;
    }
    if (!word.compare_exchange_strong(expected, kRetired, rl::mo_seq_cst, $)) return;
    payload($) = 2;  // the next owner writes
    word.store(kFree, rl::mo_release, $);
  }
};

}  // namespace

int main() {
  bool ok = is_as_it_should_be<PinTest<Variant::kRight>>("pin", true);
  ok &= is_as_it_should_be<PinTest<Variant::kNoBarrier>>("pin without the barrier", false);
  ok &= is_as_it_should_be<PinTest<Variant::kAcquireLoad>>("the word is read by an acquire load", false);
  ok &= is_as_it_should_be<PinTest<Variant::kRelaxedUnpin>>("unpin by a relaxed store", false);
  ok &= is_as_it_should_be<PinTest<Variant::kNoAttempt>>("RETIRING without attempt number", false);
  return ok ? 0 : 1;
}
