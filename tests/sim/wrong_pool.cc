// Two parts of a well-known design for a shared page pool, in a right and a wrong variant, small and apart from libmaru:
// they show that the simulator finds the errors that such designs have.
//
// A free list as a stack of linked pages. The wrong variant compares only the head: between reading the head's successor
// and the exchange, others may take both pages and put the first back, and then the list leads into a page that somebody
// owns. The right one has a version beside the head. (Both lose a page if its taker dies before it has said so, which is
// why libmaru's pages name their owner in the word that takes them.)
//
// Pins as a count and a status in two words. The wrong variant looks at the count and frees; a pin in between is a pin on
// a page that is gone. The right one keeps both in one word.
#include "maru/format/atomic_word.h"
#include "scenario.h"
#include "tests/sim/mutants.h"

#include <cstdint>

namespace maru::sim {
namespace {

constexpr uint32_t kPages = 4;
constexpr uint32_t kProcesses = 3;

// -- the free list ----------------------------------------------------------------------------------------------------

AtomicU64 head;               // version:32 | page + 1:32
AtomicU64 next_page[kPages];  // page + 1, 0: end
unsigned owner[kPages];       // what the simulator knows: the process that holds the page, or kNobody

uint64_t head_word(uint64_t before, uint64_t link) {
  const uint64_t version = mutant(kMutantUntaggedFreeList) ? 0 : (before >> 32) + 1;
  return version << 32 | link;
}

uint32_t pop() {  // page + 1, or 0
  uint64_t found = head.load_acquire();
  while (uint32_t(found) != 0) {
    const uint64_t after = next_page[uint32_t(found) - 1].load_acquire();
    if (head.cas_acq_rel(found, head_word(found, after))) return uint32_t(found);
  }
  return 0;
}

void push(uint32_t link) {
  uint64_t found = head.load_acquire();
  do {
    next_page[link - 1].store_relaxed(uint32_t(found));
  } while (!head.cas_acq_rel(found, head_word(found, link)));
}

void take_and_return(void*) {
  for (uint32_t rounds = 2 + chance().below(3); rounds > 0; --rounds) {
    uint32_t mine[2];
    uint32_t count = 0;
    for (uint32_t wanted = 1 + chance().below(2); wanted > 0; --wanted) {
      const uint32_t link = pop();
      if (link == 0) continue;
      if (owner[link - 1] != kNobody)
        fail("page %u is given to process %u and %u has it", link - 1, current_process(), owner[link - 1]);
      owner[link - 1] = current_process();
      mine[count++] = link;
    }
    for (uint32_t i = 0; i < count; ++i) {
      owner[mine[i] - 1] = kNobody;
      push(mine[i]);
    }
  }
}

void free_list_setup() {
  for (uint32_t page = 0; page < kPages; ++page) {
    next_page[page].raw = page;  // a chain from the last page to the first
    owner[page] = kNobody;
  }
  head.raw = kPages;
  for (uint32_t process = 1; process <= kProcesses; ++process) spawn("client", process, take_and_return);
}

void free_list_finish() {
  uint32_t count = 0;
  for (uint64_t link = uint32_t(head.raw); link != 0 && count <= kPages; link = next_page[link - 1].raw) ++count;
  if (count != kPages) fail("the free list has %u pages at the end, and %u should be there", count, kPages);
}

// -- counted pins -----------------------------------------------------------------------------------------------------

enum Status : uint64_t { kUnpinned, kPinned, kGone };
constexpr uint64_t kGoneBit = uint64_t(1) << 63;
AtomicU64 pin_count;  // right: gone:1 | count:63
AtomicU64 status;     // wrong: beside the count
bool freed;           // what the simulator knows

bool take_pin() {
  uint64_t found = pin_count.load_acquire();
  for (;;) {
    if (mutant(kMutantCountedPins) ? status.load_acquire() == kGone : (found & kGoneBit) != 0) return false;
    if (!pin_count.cas_acq_rel(found, found + 1)) continue;
    if (mutant(kMutantCountedPins)) status.store_release(kPinned);
    return true;
  }
}

void use_page(void*) {
  for (uint32_t rounds = 1 + chance().below(2); rounds > 0; --rounds) {
    if (!take_pin()) return;
    for (uint32_t looks = 3; looks > 0; --looks) {
      if (freed) fail("the page is freed under the pin of process %u", current_process());
      yield();
    }
    if (pin_count.fetch_add_seq_cst(~uint64_t{0}) == 1 && mutant(kMutantCountedPins)) status.store_release(kUnpinned);
  }
}

void evict_page_of_design(void*) {
  for (uint32_t rounds = 1 + chance().below(3); rounds > 0; --rounds) {
    if (mutant(kMutantCountedPins)) {
      if (pin_count.load_acquire() > 0) continue;
      status.store_release(kGone);
      settle();
      freed = true;
      return;
    }
    uint64_t expected = 0;
    if (!pin_count.cas_acq_rel(expected, kGoneBit)) continue;
    freed = true;
    return;
  }
}

void counted_pins_setup() {
  pin_count.raw = status.raw = 0;
  freed = false;
  spawn("reader 1", 1, use_page);
  spawn("reader 2", 2, use_page);
  spawn("evictor", 3, evict_page_of_design);
}

void nothing() {}

constexpr Scenario kScenarios[] = {
    {"free-list", "a linked free list with a version beside its head: no page has two owners", free_list_setup,
     free_list_finish, nullptr},
    {"counted-pins", "pins as a count in the word that evicts: no page is freed under a pin", counted_pins_setup,
     nothing, nullptr},
};

}  // namespace

std::span<const Scenario> wrong_pool_scenarios() { return kScenarios; }

}  // namespace maru::sim
