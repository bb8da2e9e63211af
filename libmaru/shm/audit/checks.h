// Inside of the auditor: declarations that its parts share. See audit.h.
#pragma once

#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/blocks/block_store.h"

#include <array>
#include <cstdint>
#include <span>

namespace maru::shm::audit_checks {

using namespace maru::format;

// The only load of the auditor, but for the queues. It is an acquire: a word that is read between two equal readings of another
// word must not be read after the second.
// [pairs page.word] [pairs bucket.header] [pairs bucket.link] [pairs bucket.location] [pairs overflow.owner]
inline uint64_t seen(const AtomicU64& word) { return word.load_acquire(); }

// Passes over all pages that an exact audit spends on POISONED children: a scribbled pool must not hold it up.
inline constexpr uint32_t kChildPassesMax = 64;
// Parents whose counts a live audit looks at again.
inline constexpr uint32_t kDoubtsMax = 64;

// The children of one parent, by a pass over all pages: their number, and a sum over their lives. So two passes with equal
// results saw the same children, which were there at every moment in between.
struct ChildPass {
  uint32_t count = 0;
  uint64_t lives = 0;
  friend constexpr bool operator==(const ChildPass&, const ChildPass&) = default;
};
// A parent that seems to count too few: the counts are from different moments.
struct Doubt {
  PageRef parent;
  ChildPass before, after;
  PageWord between;  // its word
};

struct Audit {
  const ControlRegion& region;
  AuditRequest request;
  FindingSink& sink;
  LaneSet live;                    // the request's, and lane 0
  std::span<uint32_t> children;    // per page, filled by count_children
  std::span<uint64_t> registered;  // a bit per page, filled by mark_registered
  mutable uint32_t child_passes_left = kChildPassesMax;
  mutable std::array<Doubt, kDoubtsMax> doubts{};  // by page
  mutable uint32_t doubt_count = 0;
  AuditReport report{};

  PageWord page_word(uint32_t page) const { return {seen(region.block(page).word)}; }
  bool is_live(uint32_t lane) const { return lane < region.lanes() && live.has(lane); }
  bool in_use(uint64_t lane) const {
    return lane == 0 || (seen(region.lane_bitmap().words[lane / 64]) >> lane % 64 & 1) != 0;
  }
};

// A block that holds its ancestors: published, and not free yet.
inline bool is_block(PageWord word) {
  return word.is(PageState::kReady) || word.is(PageState::kRetiring) || word.is(PageState::kRetired);
}
inline bool is_visible(PageWord word) { return word.is_findable(word.generation()); }

inline PageRef parent_of(const Audit& a, uint32_t page) {
  return PageRef::from_bits(seen(a.region.block(page).parent));
}

// Ends every invariant's function on a violation.
inline bool violated(Finding* finding, uint32_t slot, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  finding->slot = slot;
  finding->words[0] = a;
  finding->words[1] = b;
  finding->words[2] = c;
  return true;
}

// Fill the scratch memory, before the checks that use it: with the children among pages [from, to), with the pages that home
// buckets [from, to) name.
void count_children(Audit& audit, uint64_t from, uint64_t to);
void mark_registered(Audit& audit, uint64_t from, uint64_t to);

// The steps of doubts: a pass over all pages, a look at the parents' words, another pass, and a report of the remaining doubts.
void pass_over_doubts(Audit& audit, ChildPass Doubt::* pass, uint64_t from, uint64_t to);
void look_at_doubts(Audit& audit);
bool is_confirmed(const Doubt& doubt, Finding* ret_finding);

// audit.cc: all invariants of one place, and how many of these places there are.
void check_place(Audit& audit, AuditPlace place, uint64_t index);
uint64_t places(const ControlRegion& region, AuditPlace place);
void report(Audit& audit, const Finding& finding);

// Every invariant is a function of this type: whether it is violated at `index`, and then the slot and the words that show it.
// audit.h has the demand of each invariant beside its name.
using Check = bool(const Audit& audit, uint64_t index, Finding* ret_finding);

// audit/pages.cc
Check page_state, page_low, page_lane, page_sealed, tail, run_length, run_tails, block_length, block_metadata,
    block_detail, block_key, block_digest_of_key, block_parent, block_chain, block_expiry, children_at_least,
    children_exact, block_registered;

// audit/registry.cc
Check bucket_bits, bucket_overflow, bucket_link, slot_location, slot_digest, bucket_duplicate, slot_claim,
    overflow_owner, overflow_linked, overflow_lane, overflow_claim;

// audit/sections.cc
Check region_word, region_lane, region_unused, queue_links, queue_ends, lane_bitmap, lane_identity, lane_in_use,
    lane_live, lane_unused, pin_page, pin_set, pin_holds, pin_overflow, lane_intent, lane_intent_done, extent_owner,
    tenant_name, tenant_place, lane_accounts, lane_accounts_done;

}  // namespace maru::shm::audit_checks
