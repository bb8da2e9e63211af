// Bad memory: a page whose bytes can no longer be read goes to POISONED and is never used again, and the block that lay there
// becomes a miss. docs/format.md, "Poison", has the steps and the state after a death at each step.
//
// One CAS from any state decides: a process that fails a CAS on the word after it has lost the page. A POISONED page never has
// another life, so no process has to wait for its pins: views of it stay valid. Two holdings are let go later. One is the count
// of its parent, so that a reader that pins a block below keeps the ancestors that it was promised. The other is the good pages
// of its run. Both go only when no pin and no child names the page; marud checks that again and again.
//
// Thread safety: marud alone, with its own lane. If the process dies here: the word says POISONED, or the page was not
// reported; everything that follows may be done again.
#pragma once

#include "libmaru/shm/blocks/block_store.h"

#include <cstdint>

namespace maru::shm {

enum class PoisonStatus : uint8_t {
  kPoisoned,  // by this call
  kAlready,
  kBusy,  // it is being published, by a lane that lives or that is about to be reclaimed: again later
};
struct PoisonResult {
  PoisonStatus status = PoisonStatus::kBusy;
  PageWord before;  // kPoisoned: the word before
  PageRef head;     // kPoisoned, a TAIL: the head of its run, whose block is to be poisoned as well
};
PoisonResult poison_page(LaneContext& marud, uint32_t page);

// The rest of a block whose head is POISONED. Takes its entry away, again, and says whether it can be let go: no lane of
// `lanes` pins it. (The caller's pass over the pages checks that no block names it as its parent.)
bool is_poison_unpinned(LaneContext& marud, const LaneSet& lanes, uint32_t page);

// Its tails become FREE; then its line names no parent any more, flushed, so that no marud counts it from here on. Returns how
// many tails. *ret_parent: the parent whose count is now too high by one; none for a root.
uint32_t let_poison_go(const ControlRegion& region, uint32_t page, PageRef* ret_parent);

// Whether a page with bad memory is in the run of this block, behind its head. The publisher did not notice in time.
bool has_poisoned_tail(const ControlRegion& region, uint32_t head);

}  // namespace maru::shm
