#include "libmaru/shm/recovery/adopt.h"

#include "libmaru/shm/region/flush.h"

#include <algorithm>

namespace maru::shm {

using namespace maru::format;

namespace {

PageWord word_of(const ControlRegion& region, uint32_t page) {
  return {region.block(page).word.load_acquire()};  // [pairs page.word]
}

void end_mark(const Adoption& adoption, uint32_t page, PageWord found) {
  const ControlRegion& region = *adoption.daemon->region;
  const bool is_own = !region.is_shared() || found.lane().lane == adoption.daemon->id.lane;
  if (!is_own) return;
  AtomicU64& word = region.block(page).word;
  word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), 0).bits);
  flush(region, word);
}

void free_dead(Adoption& adoption, uint32_t page) {
  const ControlRegion& region = *adoption.daemon->region;
  if (region.is_durable() && page >= adoption.tails_freed_to) {
    const uint64_t first = page - page % region.region_pages();
    adoption.tails_freed_to = std::min<uint64_t>(first + region.region_pages(), region.pages());
    free_dead_tails(region, *adoption.dead, uint32_t(first), uint32_t(adoption.tails_freed_to), *adoption.sink);
  }
  const auto tails = region.is_durable() ? Tails::kAreFreed : Tails::kToFree;
  reclaim_pages(*adoption.daemon, *adoption.dead, page, page + 1, *adoption.sink, tails);
}

}  // namespace

void adopt_lane(const ControlRegion& region, uint32_t lane, ReclaimSink& sink) {
  clear_pins(region, lane);
  reclaim_intents(region, lane, sink);
}

void flag_count(const ControlRegion& region, uint32_t page) {
  PageWord found = word_of(region, page);
  if (!found.is(PageState::kReady) || found.children() == 0 || found.recount()) return;
  // Where this fails the count has changed, and there is no flag.
  region.block(page).word.cas_seq_cst(found.bits, PageWord::ready(found.generation(), found.children(), true).bits);
}

PageWord adopt_page(Adoption& adoption, uint32_t page) {
  const ControlRegion& region = *adoption.daemon->region;
  PageWord found = word_of(region, page);
  if (found.is(PageState::kRetiring)) {
    end_mark(adoption, page, found);
    found = word_of(region, page);
  }
  if (found.names_lane() && adoption.dead->is_dead(found.lane())) {
    free_dead(adoption, page);
    found = word_of(region, page);
  }
  if (found.is(PageState::kReady) && !adoption.begun.empty()) {
    const LaneId publisher = LaneId::from_low(uint32_t(region.detail(page).owner.load_relaxed()));  // a hint
    const bool is_begun = std::find(adoption.begun.begin(), adoption.begun.end(), publisher) != adoption.begun.end();
    if (is_begun && !is_registered(region, page)) adoption.sink->unregistered(PageRef::of(page, found.generation()));
  }
  if (found.is(PageState::kReady) || found.is(PageState::kRetired)) {
    const PageRef parent = PageRef::from_bits(region.block(page).parent.load_acquire());  // [pairs page.word]
    if (region.is_page(parent) && word_of(region, parent.page()).generation() == parent.generation())
      ++adoption.children[parent.page()];
  }
  return found;
}

PageRef suspect_of(const Adoption& adoption, uint32_t page, bool is_own) {
  const ControlRegion& region = *adoption.daemon->region;
  PageWord found = word_of(region, page);
  if (!found.is(PageState::kReady) || found.children() == 0) return PageRef::none();
  const PageRef suspect = PageRef::of(page, found.generation());
  if (found.children() > adoption.children[page]) return suspect;
  if (!is_own) return PageRef::none();
  const uint64_t unflagged = PageWord::ready(found.generation(), found.children()).bits;
  const bool was_still = found.recount() && region.block(page).word.cas_seq_cst(found.bits, unflagged);
  return was_still ? PageRef::none() : suspect;
}

void adopt_overflow(const ControlRegion& region, const DeadLanes& dead) {
  for (uint64_t i = 0; i < region.overflow_buckets(); ++i) {
    const uint64_t owner = region.overflow(i).tags.header.load_acquire();  // [pairs overflow.owner]
    const auto low = uint32_t(owner & 0xFFF'FFFF);
    if (low != 0 && dead.is_dead(LaneId::from_low(low))) release_overflow_bucket(region, i, owner);
  }
}

}  // namespace maru::shm
