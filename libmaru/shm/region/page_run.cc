#include "libmaru/shm/region/page_run.h"

#include "libmaru/shm/region/flush.h"

#include <algorithm>

namespace maru::shm {

PageRef take_page(const ControlRegion& region, LaneId lane, uint32_t page) {
  AtomicU64& word = region.block(page).word;
  PageWord found{word.load_relaxed()};  // a guess: the CAS decides
  if (!found.is(PageState::kFree)) return PageRef::none();
  const uint32_t generation = found.generation();
  if (!word.cas_acq_rel(found.bits, PageWord::reserved(generation, lane).bits)) return PageRef::none();
  region.block(page).shape.store_relaxed(1);  // a reader sees the word after a release by this lane
  return PageRef::of(page, generation);
}

PageRef take_run(const ControlRegion& region, LaneId lane, uint32_t page, uint32_t count, uint32_t* ret_blocker) {
  const PageRef head = take_page(region, lane, page);
  if (head.is_none()) {
    if (ret_blocker) *ret_blocker = page;
    return head;
  }
  for (uint32_t i = 1; i < count; ++i) {
    if (!take_page(region, lane, page + i).is_none()) continue;
    if (ret_blocker) *ret_blocker = page + i;
    for (uint32_t k = i; k-- > 0;) {
      const PageWord word{region.block(page + k).word.load_relaxed()};  // RESERVED by this lane
      give_back_run(region, lane, PageRef::of(page + k, word.generation()));
    }
    return PageRef::none();
  }
  if (count > 1 && !join_run(region, lane, page, count)) {
    if (ret_blocker) *ret_blocker = page;
    return PageRef::none();
  }
  return head;
}

bool join_run(const ControlRegion& region, LaneId lane, uint32_t first, uint32_t count) {
  const auto is_mine = [&](PageWord word) { return word.is(PageState::kReserved) && word.lane() == lane; };
  region.block(first).shape.store_release(count);  // before any TAIL exists: [pairs page.word]
  flush(region, region.block(first));
  bool all = true;
  for (uint32_t i = 1; i < count && all; ++i) {
    AtomicU64& word = region.block(first + i).word;
    PageWord found{word.load_relaxed()};  // RESERVED by this lane: only POISONED can replace it
    all = is_mine(found) && word.cas_seq_cst(found.bits, PageWord::tail(found.generation(), i).bits);
  }
  // A marud that has made the head POISONED meanwhile may have looked for its tails before they were there. Either it has seen
  // them, or this load sees POISONED. [pairs page.retiring]
  if (!is_mine(PageWord{region.block(first).word.load_seq_cst()}))
    free_tails(region, first);
  else if (all)
    return true;
  // From the last to the head, which takes its tails along.
  for (uint32_t i = count; i-- > 0;) {
    const PageWord found{region.block(first + i).word.load_relaxed()};  // as above
    if (is_mine(found)) give_back_run(region, lane, PageRef::of(first + i, found.generation()));
  }
  return false;
}

PageRef grant_run(const ControlRegion& region, LaneId daemon, LaneId to, uint32_t page, uint32_t count, uint64_t mark,
                  uint32_t* ret_blocker) {
  const PageRef head = take_run(region, daemon, page, count, ret_blocker);
  if (head.is_none()) return head;
  format::BlockLine& line = region.block(page);
  line.parent.store_relaxed(head.bits);  // published by the word, as the next
  line.chain.store_relaxed(mark);
  uint64_t own = PageWord::reserved(head.generation(), daemon).bits;
  const uint64_t its = PageWord::reserved(head.generation(), to).bits;
  if (line.word.cas_acq_rel(own, its)) return head;  // [pairs page.word]
  if (ret_blocker) *ret_blocker = page;
  return PageRef::none();
}

uint64_t give_back_granted(const ControlRegion& region, LaneId lane, std::span<const uint64_t> marks) {
  uint64_t freed = 0;
  for (uint64_t page = 0; page < region.pages(); ++page) {
    const format::BlockLine& line = region.block(uint32_t(page));
    const PageWord found{line.word.load_acquire()};  // [pairs page.word]
    if (!found.is(PageState::kReserved) || found.lane() != lane) continue;
    const PageRef head = PageRef::of(uint32_t(page), found.generation());
    // Another thread of this client may be writing this line. A buffer that it fills is no parent of itself, and a page that it
    // took may have a mark of an earlier life.
    const bool is_marked = std::binary_search(marks.begin(), marks.end(), line.chain.load_relaxed()) &&
                           line.parent.load_relaxed() == head.bits;
    if (is_marked) freed += give_back_run(region, lane, head);
  }
  return freed;
}

uint32_t tails_end(const ControlRegion& region, uint32_t head) {
  const uint32_t run_pages = region.run_pages(head);
  if (region.is_durable()) return run_pages;
  for (uint32_t i = 1; i < run_pages; ++i) {
    const PageWord found{region.block(head + i).word.load_acquire()};  // [pairs page.word]
    if (!found.is(PageState::kPoisoned) && !(found.is(PageState::kTail) && found.low() == i)) return i;
  }
  return run_pages;
}

uint32_t free_tails(const ControlRegion& region, uint32_t head) {
  uint32_t freed = 0;
  for (uint32_t i = tails_end(region, head); i-- > 1;) {
    AtomicU64& word = region.block(head + i).word;
    PageWord found{word.load_acquire()};  // [pairs page.word]
    // A TAIL at this distance can only be this head's, since the head is still held.
    if (found.is(PageState::kTail) && found.low() == i)
      freed += word.cas_acq_rel(found.bits, PageWord::free(found.generation() + 1).bits);
  }
  if (freed != 0) flush(region, &region.block(head) + 1, (region.run_pages(head) - 1) * sizeof(format::BlockLine));
  return freed;
}

uint32_t give_back_run(const ControlRegion& region, LaneId lane, PageRef head) {
  AtomicU64& word = region.block(head.page()).word;
  uint64_t mine = PageWord::reserved(head.generation(), lane).bits;
  if (word.load_acquire() != mine) return 0;  // [pairs page.word]
  uint32_t freed = 0, generation = head.generation();
  if (region.run_pages(head.page()) > 1) {
    // When several threads give back one buffer, one goes on: only a thread that certainly holds the head frees tails.
    const uint64_t renewed = PageWord::reserved(++generation, lane).bits;
    if (!word.cas_acq_rel(mine, renewed)) return 0;
    mine = renewed;
    freed = free_tails(region, head.page());
  }
  return word.cas_acq_rel(mine, PageWord::free(generation + 1).bits) ? freed + 1 : freed;
}

PageRef renew_page(const ControlRegion& region, LaneId lane, PageRef page) {
  if (region.run_pages(page.page()) != 1) return PageRef::none();
  uint64_t mine = PageWord::reserved(page.generation(), lane).bits;
  const uint32_t generation = page.generation() + 1;
  if (!region.block(page.page()).word.cas_acq_rel(mine, PageWord::reserved(generation, lane).bits))
    return PageRef::none();
  return PageRef::of(page.page(), generation);
}

}  // namespace maru::shm
