// Publishing one key by several, looking it up, and removing it, under the C++ memory model, by relacy: the steps of
// "Registry" in the description of the control region, written once more with relacy's types, for a bucket of two slots.
// The payload of each page is plain data: a reader that sees bytes of an unpublished or reused page is a data race, and
// relacy reports it. The simulator runs the product's own code; this runs the orders that it names, under a model weaker
// than any machine.
//
// Each wrong variant must be reported.
#include "tests/sim/relacy_verdict.h"

namespace {

constexpr unsigned kSlots = 2;
constexpr unsigned kPublishers = 2;
constexpr unsigned kTag = 7;

// State of a page; its generation is in the higher bits, and a location is page + 1 and generation.
enum State : unsigned { kReserved = 0, kReady = 1, kRetired = 2, kFree = 3 };
constexpr unsigned word_of(unsigned generation, State state) { return generation << 2 | state; }
constexpr unsigned location_of(unsigned page, unsigned generation) { return (page + 1) << 8 | generation; }
constexpr unsigned page_of(unsigned location) { return (location >> 8) - 1; }
constexpr unsigned generation_of(unsigned location) { return location & 0xff; }

// Header: version << 2 | valid bits.
constexpr unsigned with(unsigned header, unsigned slot) { return (header + 4) | 1u << slot; }
constexpr unsigned without(unsigned header, unsigned slot) { return (header + 4) & ~(1u << slot); }

enum class Variant { kRight, kRereadHeader, kRelaxedUnpin, kRelaxedHeader, kFreeBeforeRemove };

template <Variant variant>
struct PublishTest : rl::test_suite<PublishTest<variant>, 4> {
  rl::atomic<unsigned> header;
  rl::atomic<unsigned> tag[kSlots];
  rl::atomic<unsigned> location[kSlots];
  rl::atomic<unsigned> word[kPublishers];
  rl::atomic<unsigned> pin[4];  // of thread i: a location, or 0
  rl::var<int> payload[kPublishers];
  unsigned winners;
  bool removed;

  void before() {
    header.store(0, rl::mo_relaxed, $);
    for (unsigned i = 0; i < kSlots; ++i) {
      tag[i].store(0, rl::mo_relaxed, $);
      location[i].store(0, rl::mo_relaxed, $);
    }
    for (unsigned i = 0; i < kPublishers; ++i) {
      word[i].store(word_of(0, kReserved), rl::mo_relaxed, $);
      payload[i]($) = 0;
    }
    for (auto& p : pin) p.store(0, rl::mo_relaxed, $);
    winners = 0;
    removed = false;
  }

  void after() { RL_ASSERT(winners == 1 || removed); }

  void thread(unsigned index) {
    if (index < kPublishers)
      publish(index);
    else if (index == 2)
      look(index);
    else
      remove();
  }

  // Pins and proves; the caller clears the pin.
  bool pin_page(unsigned thread_index, unsigned where) {
    pin[thread_index].exchange(where, rl::mo_seq_cst, $);
    return word[page_of(where)].load(rl::mo_seq_cst, $) == word_of(generation_of(where), kReady);
  }
  void unpin(unsigned thread_index) {
    pin[thread_index].store(0, variant == Variant::kRelaxedUnpin ? rl::mo_relaxed : rl::mo_release, $);
  }

  void publish(unsigned me) {
    payload[me]($) = 100 + int(me);
    word[me].store(word_of(0, kReady), rl::mo_seq_cst, $);
    unsigned slot = kSlots;
    for (;;) {
      const unsigned h = header.load(rl::mo_acquire, $);  // (1)
      bool again = false, duplicate = false;
      for (unsigned i = 0; i < kSlots && !again && !duplicate; ++i) {  // (2)
        if ((h >> i & 1) == 0 || tag[i].load(rl::mo_acquire, $) != kTag) continue;
        const unsigned where = location[i].load(rl::mo_acquire, $);
        if (where == 0) {
          again = true;  // removed since (1)
          continue;
        }
        if (pin_page(me, where)) {
          duplicate = header.load(rl::mo_acquire, $) == h;
          again = !duplicate;
        } else {
          unsigned expected = h;
          header.compare_exchange_strong(expected, without(h, i), rl::mo_seq_cst, $);  // help
          again = true;
        }
        unpin(me);
      }
      if (again) continue;
      if (duplicate) break;
      if (slot == kSlots) {  // (3)
        for (unsigned i = 0; i < kSlots && slot == kSlots; ++i) {
          unsigned none = location[i].load(rl::mo_acquire, $);
          if ((h >> i & 1) != 0) continue;
          if (none != 0 && word[page_of(none)].load(rl::mo_acquire, $) >> 2 == generation_of(none)) continue;
          if (location[i].compare_exchange_strong(none, location_of(me, 0), rl::mo_seq_cst, $)) slot = i;
        }
        continue;
      }
      tag[slot].store(kTag, rl::mo_release, $);  // (4)
      unsigned expected = variant == Variant::kRereadHeader ? header.load(rl::mo_acquire, $) : h;
      const auto order = variant == Variant::kRelaxedHeader ? rl::mo_relaxed : rl::mo_seq_cst;
      if (header.compare_exchange_strong(expected, with(expected, slot), order, $)) {  // (5)
        ++winners;
        return;
      }
    }
    // Lost: the claim and the page come back, and the page gets another payload.
    if (slot != kSlots) {
      unsigned mine = location_of(me, 0);
      location[slot].compare_exchange_strong(mine, 0, rl::mo_acq_rel, $);
    }
    word[me].store(word_of(0, kReserved), rl::mo_release, $);
    payload[me]($) = 0;
  }

  void look(unsigned me) {
    for (unsigned tries = 0; tries < 3; ++tries) {
      const unsigned h = header.load(rl::mo_acquire, $);
      for (unsigned i = 0; i < kSlots; ++i) {
        if ((h >> i & 1) == 0 || tag[i].load(rl::mo_acquire, $) != kTag) continue;
        const unsigned where = location[i].load(rl::mo_acquire, $);
        if (header.load(rl::mo_acquire, $) != h) break;
        if (pin_page(me, where)) RL_ASSERT(payload[page_of(where)]($) == 100 + int(page_of(where)));
        unpin(me);
        return;
      }
    }
  }

  // Takes the key away, frees its page when no pin is left, and writes into it as the next owner would.
  void remove() {
    const unsigned h = header.load(rl::mo_acquire, $);
    for (unsigned i = 0; i < kSlots; ++i) {
      if ((h >> i & 1) == 0) continue;
      const unsigned where = location[i].load(rl::mo_acquire, $);
      if (where == 0 || header.load(rl::mo_acquire, $) != h) return;
      const unsigned page = page_of(where);
      unsigned expected = word_of(generation_of(where), kReady);
      if (!word[page].compare_exchange_strong(expected, word_of(generation_of(where), kRetired), rl::mo_seq_cst, $))
        return;
      removed = true;
      if (variant != Variant::kFreeBeforeRemove) remove_entry(where);
      for (unsigned thread_index = 0; thread_index < 4; ++thread_index) {
        if (pin[thread_index].load(rl::mo_seq_cst, $) == where) return;  // left to whoever comes later
      }
      payload[page]($) = 0;
      word[page].store(word_of(generation_of(where) + 1, kFree), rl::mo_seq_cst, $);
      if (variant == Variant::kFreeBeforeRemove) {
        RL_ASSERT(!is_listed(where));
        remove_entry(where);
      }
      return;
    }
  }

  bool is_listed(unsigned where) {
    const unsigned h = header.load(rl::mo_seq_cst, $);
    for (unsigned i = 0; i < kSlots; ++i) {
      if ((h >> i & 1) != 0 && location[i].load(rl::mo_seq_cst, $) == where) return true;
    }
    return false;
  }

  void remove_entry(unsigned where) {
    for (;;) {
      unsigned h = header.load(rl::mo_acquire, $);
      unsigned slot = kSlots;
      for (unsigned i = 0; i < kSlots; ++i) {
        if ((h >> i & 1) != 0 && location[i].load(rl::mo_acquire, $) == where) slot = i;
      }
      if (slot == kSlots) {
        if (header.load(rl::mo_acquire, $) == h) return;
        continue;
      }
      const unsigned seen = h;
      if (!header.compare_exchange_strong(h, without(seen, slot), rl::mo_seq_cst, $)) continue;
      unsigned expected = where;
      location[slot].compare_exchange_strong(expected, 0, rl::mo_acq_rel, $);
      return;
    }
  }
};

}  // namespace

int main() {
  bool ok = is_as_it_should_be<PublishTest<Variant::kRight>>("publish, look up, remove", true);
  ok &= is_as_it_should_be<PublishTest<Variant::kRereadHeader>>("publish against a re-read header", false);
  ok &= is_as_it_should_be<PublishTest<Variant::kRelaxedUnpin>>("unpin by a relaxed store", false);
  ok &= is_as_it_should_be<PublishTest<Variant::kRelaxedHeader>>("the header by a relaxed step", false);
  ok &= is_as_it_should_be<PublishTest<Variant::kFreeBeforeRemove>>("page freed before its registry entry", false);
  return ok ? 0 : 1;
}
