#include "libmaru/shm/recovery/evict.h"

#include "libmaru/base/check.h"
#include "libmaru/shm/region/flush.h"

namespace maru::shm {
namespace {

PageWord marked_word(const LaneContext& evictor, uint32_t generation, uint16_t attempt) {
  return PageWord::retiring(generation, evictor.id.lane, attempt);
}

}  // namespace

size_t retire_unpinned(LaneContext& evictor, const LaneSet& lanes, const uint32_t* pages, size_t count,
                       uint16_t* attempt, PageRef* ret_retired) {
  MARU_CHECK(count <= kEvictBatchMax, "the batch must fit the array of marked pages");
  const ControlRegion& region = *evictor.region;
  ++*attempt;
  struct Marked {
    uint32_t page;
    uint32_t generation;
  };
  Marked marked[kEvictBatchMax];
  size_t marks = 0;
  for (size_t i = 0; i < count; ++i) {
    AtomicU64& word = region.block(pages[i]).word;
    PageWord found{word.load_acquire()};                             // [pairs page.word]
    if (!found.is(PageState::kReady) || found.low() != 0) continue;  // children, or a recount is under way
    const uint32_t generation = found.generation();
    const PageWord mark = marked_word(evictor, generation, *attempt);
    if (!word.cas_seq_cst(found.bits, mark.bits)) {
      continue;
    }
    marked[marks++] = {pages[i], generation};
    prefetch_pins(region, lanes, pages[i]);
  }

  // After the marks: another host may hand out a lane at any moment. [pairs lanes.in_use]
  const LaneSet looked_at = with_other_hosts(region, lanes);
  bool must_stay[kEvictBatchMax];
  for (size_t i = 0; i < marks; ++i) must_stay[i] = is_pinned(region, looked_at, marked[i].page);
  // All looks first: this may have been the first touch of an idle lane's slots.
  const bool is_true = evictor.may_believe();
  size_t retired = 0;
  for (size_t i = 0; i < marks; ++i) {
    AtomicU64& word = region.block(marked[i].page).word;
    uint64_t mine = marked_word(evictor, marked[i].generation, *attempt).bits;
    if (must_stay[i] || !is_true) {
      word.cas_seq_cst(mine, PageWord::ready(marked[i].generation, 0).bits);
      continue;
    }
    const Digest digest = block_digest(region, marked[i].page);  // of this life if the CAS succeeds
    if (!word.cas_seq_cst(mine, PageWord::retired(marked[i].generation, evictor.id).bits)) continue;
    flush(region, region.block(marked[i].page));  // or it might be READY again, and in no bucket
    const PageRef ref = PageRef::of(marked[i].page, marked[i].generation);
    registry_remove(region, evictor.id, digest, ref);
    ret_retired[retired++] = ref;
  }
  return retired;
}

}  // namespace maru::shm
