#include "libmaru/shm/recovery/poison.h"

#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/page_run.h"

namespace maru::shm {

PoisonResult poison_page(LaneContext& marud, uint32_t page) {
  const ControlRegion& region = *marud.region;
  AtomicU64& word = region.block(page).word;
  PageWord found{word.load_seq_cst()};  // [pairs page.retiring]
  for (uint32_t tries = 0; tries < limits::kPageWordRetries; ++tries) {
    if (found.is(PageState::kPoisoned)) return {PoisonStatus::kAlready, found, PageRef::none()};
    // Its publisher is between two steps that no other may come between: whether the parent counts it, only it knows.
    if (found.is(PageState::kSealed)) return {PoisonStatus::kBusy, found, PageRef::none()};
    const bool is_block =
        found.is(PageState::kReady) || found.is(PageState::kRetiring) || found.is(PageState::kRetired);
    // Of this life if the CAS succeeds.
    const Digest digest = block_digest(region, page);
    uint64_t tenant = 0;
    const uint64_t bytes = is_block ? tenant_bytes(region, page, &tenant) : 0;
    // Sequentially consistent, as RETIRED is: the pins that are looked for later must be those of before. [pairs pin.slot]
    if (!word.cas_seq_cst(found.bits, PageWord::poisoned(found.generation()).bits)) continue;
    // Before anything else: a lost host's old word would give the page back, and the blocks below and behind it may be gone by
    // then.
    flush(region, word);
    PoisonResult result{PoisonStatus::kPoisoned, found, PageRef::none()};
    if (is_block) {
      registry_remove(region, marud.id, digest, PageRef::of(page, found.generation()));
      if (bytes != 0 && marud.returns != nullptr) marud.returns->returned(page, tenant, bytes);
    }
    const uint32_t distance = found.low();
    if (found.is(PageState::kTail) && distance != 0 && distance <= page % region.region_pages()) {
      const PageWord above{region.block(page - distance).word.load_acquire()};  // [pairs page.word]
      result.head = PageRef::of(page - distance, above.generation());
    }
    return result;
  }
  return {PoisonStatus::kBusy, found, PageRef::none()};
}

bool is_poison_unpinned(LaneContext& marud, const LaneSet& lanes, uint32_t page) {
  const ControlRegion& region = *marud.region;
  const PageWord found{region.block(page).word.load_seq_cst()};  // [pairs page.retiring]
  if (!found.is(PageState::kPoisoned)) return false;
  const bool pinned = is_pinned(region, with_other_hosts(region, lanes), page) || !marud.may_believe();
  // Once more after the look: a publisher between its header CAS and its last look had a pin until now.
  registry_remove(region, marud.id, block_digest(region, page), PageRef::of(page, found.generation()));
  return !pinned;
}

uint32_t let_poison_go(const ControlRegion& region, uint32_t page, PageRef* ret_parent) {
  format::BlockLine& line = region.block(page);
  const PageRef parent = PageRef::from_bits(line.parent.load_acquire());  // [pairs page.word]
  *ret_parent = region.is_page(parent) ? parent : PageRef::none();
  const uint32_t freed = free_tails(region, page);
  line.parent.store_release(0);
  flush(region, line);
  return freed;
}

bool has_poisoned_tail(const ControlRegion& region, uint32_t head) {
  for (uint32_t i = tails_end(region, head); i-- > 1;)
    if (PageWord{region.block(head + i).word.load_acquire()}.is(PageState::kPoisoned))
      return true;  // [pairs page.word]
  return false;
}

}  // namespace maru::shm
