#include "libmaru/shm/audit.h"

#include "libmaru/base/check.h"
#include "libmaru/shm/block_store.h"

#include <algorithm>
#include <cstring>

namespace maru::shm {
namespace {

using namespace maru::format;

constexpr uint32_t kSlots = uint32_t(limits::kBucketSlots);
constexpr uint64_t kNobody = 0xFFF'FFFF;  // mask of the lane in an overflow bucket's owner word

// The only load of the auditor. Acquire, because what is read between two equal readings of a word must not be read after
// the second: [pairs page.word] [pairs bucket.header] [pairs overflow.owner] [pairs bucket.link] [pairs bucket.location]
uint64_t seen(const AtomicU64& word) { return word.load_acquire(); }

struct Audit {
  const ControlRegion& region;
  const AuditRequest& request;
  FindingSink& sink;
  std::span<uint32_t> children;      // per page, filled by count_children
  std::span<uint64_t> registered;    // a bit per page, filled by mark_registered
  AuditReport report;

  PageWord page_word(uint32_t page) const { return {seen(region.block(page).word)}; }
  bool is_live(uint32_t lane) const { return lane == 0 || (lane < region.lanes() && request.live.has(lane)); }
  bool in_use(uint64_t lane) const {
    return lane == 0 || (seen(region.lane_bitmap().words[lane / 64]) >> lane % 64 & 1) != 0;
  }
  void tell(const Finding& finding) {
    ++report.counts[size_t(finding.invariant)];
    if (report.findings++ < request.findings_max) sink.found(finding);
  }
};

// Every invariant is a function of this type: whether it is violated at `index`, and then the words that show it.
using Check = bool(const Audit& audit, uint64_t index, Finding* ret_finding);

bool violated(Finding* finding, uint32_t slot, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  finding->slot = slot;
  finding->words[0] = a;
  finding->words[1] = b;
  finding->words[2] = c;
  return true;
}

// -- pages ------------------------------------------------------------------------------------------------------------

bool is_block(PageWord word) {
  return word.is(PageState::kReady) || word.is(PageState::kRetiring) || word.is(PageState::kRetired);
}
bool is_visible(PageWord word) { return word.is_findable(word.generation()); }
uint32_t said_run_pages(const Audit& a, uint32_t page) { return uint32_t(seen(a.region.block(page).shape)); }
uint32_t room_in_region(const Audit& a, uint32_t page) {
  return a.region.region_pages() - (page & (a.region.region_pages() - 1));
}

bool page_state(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  return uint32_t(word.state()) >= kPageStateCount && violated(f, 0, word.bits);
}

bool page_low(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  bool fits = true;
  switch (word.state()) {
    case PageState::kOut:
    case PageState::kFree:
    case PageState::kPoisoned: fits = word.low() == 0; break;
    case PageState::kReserved:
    case PageState::kSealed:
    case PageState::kRetired:
    case PageState::kRetiring: fits = word.lane().lane < a.region.lanes(); break;  // an evictor is a lane's number too
    case PageState::kReady:
      fits = word.children() < a.region.pages() && (!word.recount() || word.children() != 0);
      break;
    case PageState::kTail: break;  // kTail
  }
  return !fits && violated(f, 0, word.bits);
}

bool page_lane(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  if (!word.names_lane() || word.lane().lane >= a.region.lanes()) return false;
  if (!a.is_live(word.lane().lane)) return violated(f, 0, word.bits);
  const uint64_t identity = word.lane().lane ? seen(a.region.identity(word.lane().lane).state) : 0;
  // Lane 0 counts its generations by the epoch; a lane that shows no identity cannot be compared.
  const bool comparable = LaneState(identity & 0xFF) == LaneState::kLive;
  return comparable && identity >> 48 != word.lane().generation && violated(f, 0, word.bits, identity);
}

bool page_sealed(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  return word.is(PageState::kSealed) && a.is_live(word.lane().lane) && violated(f, 0, word.bits);
}

// A TAIL whose word is the same before and after was one throughout: its head was held throughout.
bool tail(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!word.is(PageState::kTail)) return false;
  const uint32_t distance = word.low();
  if (distance == 0 || distance > (page & (a.region.region_pages() - 1))) return violated(f, 0, word.bits);
  const uint32_t said = said_run_pages(a, page - distance);
  const PageWord head = a.page_word(page - distance);
  const bool held = is_block(head) || head.is(PageState::kReserved) || head.is(PageState::kSealed) ||
                    head.is(PageState::kPoisoned);
  return (!held || said <= distance) && a.page_word(page) == word && violated(f, 0, word.bits, head.bits, said);
}

bool run_length(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_block(word) && !word.is(PageState::kSealed)) return false;
  const uint32_t said = said_run_pages(a, page);
  return (said == 0 || said > room_in_region(a, page)) && a.page_word(page) == word && violated(f, 0, word.bits, said);
}

bool run_tails(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  const uint32_t said = said_run_pages(a, page);
  if (!is_visible(word) || said > room_in_region(a, page)) return false;
  for (uint32_t i = 1; i < said; ++i) {
    const PageWord further = a.page_word(page + i);
    if (further.is(PageState::kTail) && further.low() == i) continue;
    return a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, further.bits, said);
  }
  return false;
}

// -- blocks -----------------------------------------------------------------------------------------------------------

bool block_length(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const uint64_t length = seen(a.region.block(page).length);
  return length > uint64_t(a.region.run_pages(page)) * a.region.page_bytes() &&
         a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, length);
}

bool block_detail(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const DetailLine& detail = a.region.detail(page);
  const uint64_t kind = seen(detail.kind), owner = seen(detail.owner);
  const bool fits = (kind >> 32 & 0xFF'FFFF) == 0 && owner >> 28 == 0 &&
                    LaneId::from_low(uint32_t(owner)).lane < a.region.lanes();
  return !fits && a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, kind, owner);
}

// Whether a key reference (DetailLine::key) fits, with a long key's cell. *ret_owner: of that cell.
bool key_fits(const Audit& a, PageRef ref, uint64_t key, uint64_t* ret_owner) {
  const uint64_t kind = key >> 56, size = key >> 32 & 0xFF'FFFF, extent = uint32_t(key);
  if (kind > 2 || size == 0 || size > limits::kKeyBytesMax) return false;
  if ((kind == 1 && size != 16) || (kind == 2 && size != 32)) return false;
  if (extent == 0) return size <= a.region.parameters().key_inline_bytes;
  if (extent > a.region.parameters().key_extents) return false;
  *ret_owner = seen(a.region.key_extent_owner(extent - 1));
  return *ret_owner == ref.bits;
}

bool block_key(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const uint64_t key = seen(a.region.detail(page).key);
  uint64_t owner = 0;
  return !key_fits(a, PageRef::of(page, word.generation()), key, &owner) &&
         a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, key, owner);
}

Digest digest_of_key(const uint64_t* secret, const KeyBytes& key) {
  uint64_t words[4];
  std::memcpy(words, key.data, sizeof(words));  // the buffer is larger than any ready-made digest
  if (key.kind == 1) return digest_of_128(secret, words[0], words[1], key.tenant);
  if (key.kind == 2) return digest_of_256(secret, words, key.tenant);
  return digest_of_bytes(secret, {key.data, key.size}, key.tenant);
}

bool block_digest_of_key(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  const PageRef ref = PageRef::of(page, word.generation());
  uint64_t owner = 0;
  if (!is_visible(word) || !key_fits(a, ref, seen(a.region.detail(page).key), &owner)) return false;
  KeyBytes key;
  const Digest said = block_digest(a.region, page);
  if (!read_key(a.region, ref, &key) || digest_of_key(a.region.secret(), key) == said) return false;
  return a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, said.lo, said.hi);
}

PageRef parent_of(const Audit& a, uint32_t page) { return PageRef::from_bits(seen(a.region.block(page).parent)); }

// The parent's word, if the reference names a page that can be a parent; otherwise a word that is none.
PageWord parent_word(const Audit& a, uint32_t page, PageRef parent) {
  return a.region.is_page(parent) && parent.page() != page ? a.page_word(parent.page()) : PageWord{};
}

bool block_parent(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  const PageRef parent = parent_of(a, page);
  if (!is_block(word) || parent.bits == 0) return false;
  const PageWord above = parent_word(a, page, parent);
  const bool good = (above.is(PageState::kReady, parent.generation()) && above.children() != 0) ||
                    above.is(PageState::kPoisoned, parent.generation());
  const PageWord after = a.page_word(page);
  return !good && is_block(after) && after.generation() == word.generation() &&
         violated(f, 0, word.bits, parent.bits, above.bits);
}

bool block_chain(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const PageRef parent = parent_of(a, page);
  uint32_t depth = 0;
  uint64_t chain = 0;
  if (parent.bits != 0) {
    if (!parent_word(a, page, parent).is(PageState::kReady, parent.generation())) return false;  // kBlockParent
    depth = uint32_t(seen(a.region.block(parent.page()).shape) >> 32) + 1;
    chain = seen(a.region.block(parent.page()).chain);
  }
  const BlockLine& line = a.region.block(page);
  const uint64_t shape = seen(line.shape), sum = seen(line.chain);
  const bool agrees = shape >> 32 == depth && depth <= limits::kChainDepthMax &&
                      sum == chain + chain_term(a.region.secret(), block_digest(a.region, page), depth);
  return !agrees && a.page_word(page).is_findable(word.generation()) && violated(f, 0, word.bits, shape, sum);
}

bool block_expiry(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  const PageRef parent = parent_of(a, page);
  if (!is_visible(word) || parent.bits == 0) return false;
  if (!parent_word(a, page, parent).is(PageState::kReady, parent.generation())) return false;  // kBlockParent
  const uint64_t own = seen(a.region.block(page).expires_ms), above = seen(a.region.block(parent.page()).expires_ms);
  return above != 0 && (own == 0 || own > above) && a.page_word(page).is_findable(word.generation()) &&
         violated(f, 0, word.bits, own, above);
}

// The children of one parent, by a pass of its own: how many, and a sum over their lives, so that two passes with equal
// results saw the same children, which were there at every moment in between.
struct ChildPass {
  uint32_t count = 0;
  uint64_t lives = 0;
};
ChildPass pass_over_children(const Audit& a, PageRef parent) {
  ChildPass pass;
  for (uint32_t page = 0; page < a.region.pages(); ++page) {
    const PageWord word = a.page_word(page);
    if (!is_block(word) || parent_of(a, page) != parent) continue;
    ++pass.count;
    pass.lives += folded_product(PageRef::of(page, word.generation()).bits, 0x9e37'79b9'7f4a'7c15);
  }
  return pass;
}

bool children_at_least(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t page = uint32_t(index);
  const PageWord word = a.page_word(page);
  if (!is_visible(word)) return false;
  const uint32_t said = word.is(PageState::kReady) ? word.children() : 0;
  if (said >= a.children[page]) return false;
  if (a.request.mode == AuditMode::kExact) return violated(f, 0, word.bits, a.children[page]);
  // The counts are from different moments: look at this parent alone, before and after its word.
  const PageRef ref = PageRef::of(page, word.generation());
  const ChildPass before = pass_over_children(a, ref);
  const PageWord now = a.page_word(page);
  const ChildPass after = pass_over_children(a, ref);
  return before.count == after.count && before.lives == after.lives && now.is_findable(word.generation()) &&
         (now.is(PageState::kReady) ? now.children() : 0) < before.count && violated(f, 0, now.bits, before.count);
}

bool children_exact(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  return word.is(PageState::kReady) && word.children() > a.children[index] &&
         violated(f, 0, word.bits, a.children[index]);
}

bool block_registered(const Audit& a, uint64_t index, Finding* f) {
  const PageWord word = a.page_word(uint32_t(index));
  if (!word.is(PageState::kReady) || (a.registered[index / 64] >> index % 64 & 1) != 0) return false;
  return !is_pinned(a.region, a.request.live, uint32_t(index)) && violated(f, 0, word.bits);
}

// -- registry ---------------------------------------------------------------------------------------------------------

struct BucketView {
  uint64_t index;
  Bucket& home;
  uint64_t header;
  uint64_t link;
  Bucket* over;      // only if the link and the owner agree

  BucketView(const Audit& a, uint64_t i)
      : index(i), home(a.region.bucket(i)), header(seen(home.tags.header)), link(seen(home.locations.overflow)) {
    const uint64_t number = uint32_t(link);
    over = number != 0 && number <= a.region.overflow_buckets() ? &a.region.overflow(number - 1) : nullptr;
    if (over && seen(over->tags.header) >> 28 != index + 1) over = nullptr;
  }
  bool flagged() const { return (header & kOverflowFlag) != 0; }
  bool is_valid(uint32_t slot) const { return (header >> slot & 1) != 0 && (slot < kSlots || (flagged() && over)); }
  uint64_t location(uint32_t slot) const {
    return slot < kSlots ? seen(home.locations.location[slot]) : over ? seen(over->locations.location[slot - kSlots]) : 0;
  }
  uint64_t tag(uint32_t slot) const {
    return slot < kSlots ? seen(home.tags.tag[slot]) : over ? seen(over->tags.tag[slot - kSlots]) : 0;
  }
  bool unchanged() const { return seen(home.tags.header) == header; }
};

bool bucket_bits(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t header = seen(a.region.bucket(index).tags.header);
  return (header & kOverflowFlag) == 0 && (header & kValidMask) >> kSlots != 0 && violated(f, 0, header);
}

bool bucket_overflow(const Audit& a, uint64_t index, Finding* f) {
  const BucketView view(a, index);
  return view.flagged() && view.over == nullptr && view.unchanged() && violated(f, 0, view.header, view.link);
}

bool bucket_link(const Audit& a, uint64_t index, Finding* f) {
  const BucketView view(a, index);
  return !view.flagged() && uint32_t(view.link) != 0 && view.over == nullptr && violated(f, 0, view.header, view.link);
}

bool slot_location(const Audit& a, uint64_t index, Finding* f) {
  const BucketView view(a, index);
  for (uint32_t slot = 0; slot < 2 * kSlots; ++slot) {
    if (!view.is_valid(slot)) continue;
    const PageRef ref = PageRef::from_bits(view.location(slot));
    const PageWord word = a.region.is_page(ref) ? a.page_word(ref.page()) : PageWord{};
    const bool good = a.region.is_page(ref) && word.generation() == ref.generation() &&
                      (is_block(word) || word.is(PageState::kPoisoned));
    if (!good && view.unchanged()) return violated(f, slot, view.header, ref.bits, word.bits);
  }
  return false;
}

bool slot_digest(const Audit& a, uint64_t index, Finding* f) {
  const BucketView view(a, index);
  for (uint32_t slot = 0; slot < 2 * kSlots; ++slot) {
    if (!view.is_valid(slot)) continue;
    const PageRef ref = PageRef::from_bits(view.location(slot));
    if (!a.region.is_page(ref) || !a.page_word(ref.page()).is_findable(ref.generation())) continue;  // kSlotLocation
    const uint64_t tag = view.tag(slot);
    const Digest digest = block_digest(a.region, ref.page());
    if (tag == digest.lo && home_bucket(a.region, digest) == index) continue;
    if (a.page_word(ref.page()).is_findable(ref.generation()) && view.unchanged())
      return violated(f, slot, view.header, ref.bits, tag);
  }
  return false;
}

bool bucket_duplicate(const Audit& a, uint64_t index, Finding* f) {
  const BucketView view(a, index);
  PageRef refs[2 * kSlots];
  uint32_t count = 0;
  for (uint32_t slot = 0; slot < 2 * kSlots; ++slot) {
    const PageRef ref = PageRef::from_bits(view.location(slot));
    if (!view.is_valid(slot) || !a.region.is_page(ref)) continue;
    for (uint32_t i = 0; i < count; ++i) {
      if (!(block_digest(a.region, ref.page()) == block_digest(a.region, refs[i].page()))) continue;
      const bool both = a.page_word(ref.page()).is_findable(ref.generation()) &&
                        a.page_word(refs[i].page()).is_findable(refs[i].generation());
      if (both && view.unchanged()) return violated(f, slot, view.header, ref.bits, refs[i].bits);
    }
    refs[count++] = ref;
  }
  return false;
}

// A location that is not valid: zero, or left by a publisher or helper whose page has moved on, or whose page is RETIRED.
bool is_idle_location(const Audit& a, uint64_t bits) {
  const PageRef ref = PageRef::from_bits(bits);
  if (bits == 0) return true;
  if (!a.region.is_page(ref)) return false;
  const PageWord word = a.page_word(ref.page());
  return word.generation() != ref.generation() || word.is(PageState::kRetired) || word.is(PageState::kPoisoned);
}

bool slot_claim(const Audit& a, uint64_t index, Finding* f) {
  const BucketView view(a, index);
  for (uint32_t slot = 0; slot < 2 * kSlots; ++slot)
    if (!view.is_valid(slot) && !is_idle_location(a, view.location(slot)))
      return violated(f, slot, view.header, view.location(slot));
  return false;
}

bool overflow_owner(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t owner = seen(a.region.overflow(index).tags.header);
  const bool good = owner == 0 || (owner >> 28 != 0 && owner >> 28 <= a.region.buckets() &&
                                   LaneId::from_low(uint32_t(owner & kNobody)).lane < a.region.lanes());
  return !good && violated(f, 0, owner);
}

bool overflow_linked(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t owner = seen(a.region.overflow(index).tags.header), home = owner >> 28;
  if (home == 0 || home > a.region.buckets()) return false;
  const uint64_t link = seen(a.region.bucket(home - 1).locations.overflow);
  return uint32_t(link) != index + 1 && violated(f, 0, owner, link);
}

bool overflow_lane(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t owner = seen(a.region.overflow(index).tags.header);
  return (owner & kNobody) != 0 && !a.is_live(LaneId::from_low(uint32_t(owner & kNobody)).lane) && violated(f, 0, owner);
}

bool overflow_claim(const Audit& a, uint64_t index, Finding* f) {
  const Bucket& bucket = a.region.overflow(index);
  if (seen(bucket.tags.header) != 0) return false;  // kSlotClaim of its home
  for (uint32_t slot = 0; slot < kSlots; ++slot)
    if (const uint64_t location = seen(bucket.locations.location[slot]); !is_idle_location(a, location))
      return violated(f, slot, 0, location);
  return false;
}

// -- regions and lists ------------------------------------------------------------------------------------------------

struct RegionWord {
  uint64_t bits;
  RegionState state() const { return RegionState(bits >> 60); }
  uint32_t host() const { return uint32_t(bits >> 28) & 0xFFF; }
  uint32_t lane() const { return uint32_t(bits >> 16) & 0xFFF; }
};

bool region_word(const Audit& a, uint64_t index, Finding* f) {
  const RegionWord word{seen(a.region.region(uint32_t(index)).word)};
  const bool good = uint32_t(word.state()) <= uint32_t(RegionState::kDraining) &&
                    word.host() < a.region.parameters().hosts && word.lane() < a.region.lanes();
  return !good && violated(f, 0, word.bits);
}

bool region_lane(const Audit& a, uint64_t index, Finding* f) {
  const RegionWord word{seen(a.region.region(uint32_t(index)).word)};
  return word.state() == RegionState::kRented && !a.is_live(word.lane()) && violated(f, 0, word.bits);
}

bool region_unused(const Audit& a, uint64_t index, Finding* f) {
  const AtomicU64& word = a.region.region(uint32_t(index)).word;
  const RegionWord before{seen(word)};
  if (before.state() != RegionState::kUnused) return false;
  const uint32_t first = uint32_t(index) * a.region.region_pages();
  for (uint32_t i = 0; i < a.region.region_pages(); ++i) {
    const PageWord page = a.page_word(first + i);
    if (page.is(PageState::kOut) || page.is(PageState::kPoisoned)) continue;
    return seen(word) == before.bits && violated(f, 0, before.bits, first + i, page.bits);
  }
  return false;
}

struct ListWalk {
  bool whole = true;            // links agree both ways, so no entry can come twice
  uint64_t entries = 0;
  uint64_t bad_page = 0;        // + 1: where it stopped
  uint64_t bad_link = 0;
  uint64_t rise_page = 0;       // + 1: first entry that was used later than the one before it
};

// From the most recent entry to the coldest. All words are the caller's own, or nobody writes: relaxed.
ListWalk walk_list(const Audit& a, uint32_t region_index) {
  const RegionRecord& list = a.region.region(region_index);
  ListWalk walk;
  uint32_t previous = 0, link = list.lru_head.load_relaxed();
  uint64_t tick = ~uint64_t{0};
  while (link != 0) {
    const bool inside = link <= a.region.pages() && a.region.region_of(link - 1) == region_index;
    if (!inside || a.region.policy(link - 1).newer.load_relaxed() != previous ||
        walk.entries == a.region.region_pages()) {
      walk.whole = false;
      walk.bad_page = previous;
      walk.bad_link = link;
      return walk;
    }
    const PolicyEntry& entry = a.region.policy(link - 1);
    const uint64_t used = entry.last_use_ms.load_relaxed();
    if (used > tick && walk.rise_page == 0) walk.rise_page = link;
    tick = used;
    ++walk.entries;
    previous = link;
    link = entry.older.load_relaxed();
  }
  walk.bad_page = previous;
  walk.bad_link = list.lru_tail.load_relaxed();
  walk.whole = walk.bad_link == previous;
  return walk;
}

bool list_links(const Audit& a, uint64_t index, Finding* f) {
  const ListWalk walk = walk_list(a, uint32_t(index));
  return !walk.whole && violated(f, 0, walk.bad_page, walk.bad_link, walk.entries);
}

bool list_count(const Audit& a, uint64_t index, Finding* f) {
  const ListWalk walk = walk_list(a, uint32_t(index));
  const uint64_t said = a.region.region(uint32_t(index)).lru_count.load_relaxed();  // as in walk_list
  return walk.whole && walk.entries != said && violated(f, 0, said, walk.entries);
}

bool list_members(const Audit& a, uint64_t index, Finding* f) {
  const ListWalk walk = walk_list(a, uint32_t(index));
  const uint32_t first = uint32_t(index) * a.region.region_pages();
  uint64_t members = 0, odd = 0;
  for (uint32_t i = 0; i < a.region.region_pages(); ++i) {
    const uint32_t list = a.region.policy(first + i).list.load_relaxed();  // as in walk_list
    members += list == 1;
    odd += list > 1;
  }
  return walk.whole && (members != walk.entries || odd != 0) && violated(f, 0, members, walk.entries, odd);
}

bool list_order(const Audit& a, uint64_t index, Finding* f) {
  const ListWalk walk = walk_list(a, uint32_t(index));
  return walk.whole && walk.rise_page != 0 && violated(f, 0, walk.rise_page);
}

// -- lanes ------------------------------------------------------------------------------------------------------------

bool lane_bitmap(const Audit& a, uint64_t, Finding* f) {
  for (uint32_t lane = a.region.lanes(); lane < limits::kLanesMax; ++lane)
    if (a.in_use(lane)) return violated(f, 0, lane, seen(a.region.lane_bitmap().words[lane / 64]));
  return false;
}

bool lane_identity(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t state = seen(a.region.identity(uint32_t(index)).state);
  const bool good = (state & 0xFF) <= uint64_t(LaneState::kDead) && (state >> 8 & 0xFF'FFFF'FFFF) == 0;
  return !good && violated(f, 0, state);
}

bool lane_in_use(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t state = seen(a.region.identity(uint32_t(index)).state);
  const bool has_identity = LaneState(state & 0xFF) != LaneState::kFree;
  return index != 0 && a.in_use(index) != has_identity && violated(f, 0, a.in_use(index), state);
}

bool lane_live(const Audit& a, uint64_t index, Finding* f) {
  return a.in_use(index) && !a.is_live(uint32_t(index)) && violated(f, 0, 1);
}

uint64_t used_slots(std::span<AtomicU64> slots) {
  return uint64_t(std::count_if(slots.begin(), slots.end(), [](const AtomicU64& slot) { return seen(slot) != 0; }));
}

bool lane_unused(const Audit& a, uint64_t index, Finding* f) {
  if (a.in_use(index)) return false;
  const LaneView lane = a.region.lane(uint32_t(index));
  const uint64_t pins = used_slots(lane.pins) + used_slots(lane.pin_overflow) + seen(lane.header->pin_overflow);
  const uint64_t intents = used_slots(lane.header->parent_intent), touches = seen(lane.header->touch_count);
  return (pins | intents | touches) != 0 && violated(f, 0, pins, intents, touches);
}

// The first slot of a lane in use for which `bad(slot, ref)` holds.
template <typename F>
bool find_pin(const Audit& a, uint64_t index, Finding* f, F&& bad) {
  if (!a.in_use(index)) return false;
  const LaneView lane = a.region.lane(uint32_t(index));
  const uint32_t sets = uint32_t(lane.pins.size());
  for (uint32_t slot = 0; slot < sets + lane.pin_overflow.size(); ++slot) {
    const uint64_t bits = seen(slot < sets ? lane.pins[slot] : lane.pin_overflow[slot - sets]);
    if (bits != 0 && bad(slot, PageRef::from_bits(bits)))
      return violated(f, slot, bits, a.region.is_page(PageRef::from_bits(bits)) ? a.page_word(uint32_t(bits >> 32) - 1).bits : 0);
  }
  return false;
}

bool pin_page(const Audit& a, uint64_t index, Finding* f) {
  return find_pin(a, index, f, [&](uint32_t, PageRef ref) { return !a.region.is_page(ref); });
}

bool pin_set(const Audit& a, uint64_t index, Finding* f) {
  const Layout& layout = a.region.layout();
  return find_pin(a, index, f, [&](uint32_t slot, PageRef ref) {
    return a.region.is_page(ref) && slot < layout.pin_slots &&
           slot - slot % uint32_t(limits::kPinSetSlots) != pin_set_start(layout, ref.page());
  });
}

bool pin_holds(const Audit& a, uint64_t index, Finding* f) {
  return find_pin(a, index, f, [&](uint32_t, PageRef ref) {
    if (!a.region.is_page(ref)) return false;  // kPinPage
    const PageWord word = a.page_word(ref.page());
    return word.generation() != ref.generation() || (!is_block(word) && !word.is(PageState::kPoisoned));
  });
}

bool pin_overflow(const Audit& a, uint64_t index, Finding* f) {
  if (!a.in_use(index)) return false;
  const LaneView lane = a.region.lane(uint32_t(index));
  const uint64_t said = seen(lane.header->pin_overflow), used = used_slots(lane.pin_overflow);
  return said != used && violated(f, 0, said, used);
}

bool lane_intent(const Audit& a, uint64_t index, Finding* f) {
  if (!a.in_use(index)) return false;
  for (const AtomicU64& word : a.region.lane(uint32_t(index)).header->parent_intent) {
    const uint64_t intent = seen(word);  // [pairs lane.intent]
    if (intent != 0 && !a.region.is_page(PageRef::from_bits(intent))) return violated(f, 0, intent);
  }
  return false;
}

bool lane_intent_done(const Audit& a, uint64_t index, Finding* f) {
  if (!a.in_use(index)) return false;
  for (const AtomicU64& word : a.region.lane(uint32_t(index)).header->parent_intent)
    if (const uint64_t intent = seen(word); intent != 0 && a.region.is_page(PageRef::from_bits(intent)))
      return violated(f, 0, intent);
  return false;
}

// -- keys and tenants -------------------------------------------------------------------------------------------------

bool extent_owner(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t owner = seen(a.region.key_extent_owner(index));
  return owner != 0 && !a.region.is_page(PageRef::from_bits(owner)) && violated(f, 0, owner);
}

bool tenant_name(const Audit& a, uint64_t index, Finding* f) {
  const TenantRecord& tenant = a.region.tenant(uint32_t(index));
  const uint64_t id = seen(tenant.id), size = seen(tenant.name_bytes);
  if (id == 0) return false;
  std::byte name[limits::kTenantNameMax];
  for (size_t i = 0; i < limits::kTenantNameMax / 8; ++i) {
    const uint64_t word = seen(tenant.name[i]);
    std::memcpy(name + 8 * i, &word, 8);
  }
  const bool good = size <= limits::kTenantNameMax && tenant_id(a.region.secret(), {name, size}) == id;
  return !good && violated(f, 0, id, size);
}

// -- the list of invariants, in the order of the enumeration ----------------------------------------------------------

struct Row {
  InvariantInfo info;
  Check* check;
};
using P = AuditPlace;
using C = AuditClass;
constexpr Row kRows[] = {
    {{"page.state", P::kPage, C::kAlways}, page_state},
    {{"page.low", P::kPage, C::kAlways}, page_low},
    {{"page.lane", P::kPage, C::kAtRest}, page_lane},
    {{"page.sealed", P::kPage, C::kAtRest}, page_sealed},
    {{"run.tail", P::kPage, C::kAlways}, tail},
    {{"run.length", P::kPage, C::kAlways}, run_length},
    {{"run.tails", P::kPage, C::kAlways}, run_tails},
    {{"block.length", P::kPage, C::kAlways}, block_length},
    {{"block.detail", P::kPage, C::kAlways}, block_detail},
    {{"block.key", P::kPage, C::kAlways}, block_key},
    {{"block.digest", P::kPage, C::kAlways}, block_digest_of_key},
    {{"block.parent", P::kPage, C::kAlways}, block_parent},
    {{"block.chain", P::kPage, C::kAlways}, block_chain},
    {{"block.expiry", P::kPage, C::kAlways}, block_expiry},
    {{"children.at-least", P::kPage, C::kAlways}, children_at_least},
    {{"children.exact", P::kPage, C::kAtRest}, children_exact},
    {{"block.registered", P::kPage, C::kAtRest}, block_registered},
    {{"bucket.bits", P::kBucket, C::kAlways}, bucket_bits},
    {{"bucket.overflow", P::kBucket, C::kAlways}, bucket_overflow},
    {{"bucket.link", P::kBucket, C::kAtRest}, bucket_link},
    {{"slot.location", P::kBucket, C::kAlways}, slot_location},
    {{"slot.digest", P::kBucket, C::kAlways}, slot_digest},
    {{"bucket.duplicate", P::kBucket, C::kAlways}, bucket_duplicate},
    {{"slot.claim", P::kBucket, C::kAtRest}, slot_claim},
    {{"overflow.owner", P::kOverflowBucket, C::kAlways}, overflow_owner},
    {{"overflow.linked", P::kOverflowBucket, C::kAtRest}, overflow_linked},
    {{"overflow.lane", P::kOverflowBucket, C::kAtRest}, overflow_lane},
    {{"overflow.claim", P::kOverflowBucket, C::kAtRest}, overflow_claim},
    {{"region.word", P::kRegion, C::kAlways}, region_word},
    {{"region.lane", P::kRegion, C::kAtRest}, region_lane},
    {{"region.unused", P::kRegion, C::kAlways}, region_unused},
    {{"list.links", P::kRegion, C::kLists}, list_links},
    {{"list.count", P::kRegion, C::kLists}, list_count},
    {{"list.members", P::kRegion, C::kLists}, list_members},
    {{"list.order", P::kRegion, C::kLists}, list_order},
    {{"lane.bitmap", P::kPool, C::kAlways}, lane_bitmap},
    {{"lane.identity", P::kLane, C::kAlways}, lane_identity},
    {{"lane.in-use", P::kLane, C::kAtRest}, lane_in_use},
    {{"lane.live", P::kLane, C::kAtRest}, lane_live},
    {{"lane.unused", P::kLane, C::kAtRest}, lane_unused},
    {{"pin.page", P::kLane, C::kAlways}, pin_page},
    {{"pin.set", P::kLane, C::kAlways}, pin_set},
    {{"pin.holds", P::kLane, C::kAtRest}, pin_holds},
    {{"pin.overflow", P::kLane, C::kAtRest}, pin_overflow},
    {{"lane.intent", P::kLane, C::kAlways}, lane_intent},
    {{"lane.intent-done", P::kLane, C::kAtRest}, lane_intent_done},
    {{"extent.owner", P::kKeyExtent, C::kAlways}, extent_owner},
    {{"tenant.name", P::kTenant, C::kAlways}, tenant_name},
};
static_assert(sizeof(kRows) / sizeof(kRows[0]) == kInvariantCount);

bool wanted(const AuditRequest& request, uint32_t row) {
  if (request.skip.has(Invariant(row))) return false;
  switch (kRows[row].info.when) {
    case AuditClass::kAlways: return true;
    case AuditClass::kAtRest: return request.mode == AuditMode::kExact;
    case AuditClass::kLists: return request.mode != AuditMode::kLive;
  }
  return false;
}

uint64_t places(const ControlRegion& region, AuditPlace place) {
  switch (place) {
    case AuditPlace::kPool: return 1;
    case AuditPlace::kPage: return region.pages();
    case AuditPlace::kBucket: return region.buckets();
    case AuditPlace::kOverflowBucket: return region.overflow_buckets();
    case AuditPlace::kRegion: return region.regions();
    case AuditPlace::kLane: return region.lanes();
    case AuditPlace::kKeyExtent: return region.parameters().key_extents;
    case AuditPlace::kTenant: return region.parameters().tenants;
  }
  return 0;
}

void run(Audit& a, uint32_t row, uint64_t index) {
  Finding finding{Invariant(row), 0, index, {}};
  if (!kRows[row].check(a, index, &finding)) return;
  if (a.request.mode != AuditMode::kExact)
    for (uint32_t i = 1; i < kConfirmations; ++i) {
      Finding again{Invariant(row), 0, index, {}};
      if (!kRows[row].check(a, index, &again) || !(again == finding)) return;
    }
  a.tell(finding);
}

// How many children each page has that is still in the life that they name.
void count_children(Audit& a) {
  std::ranges::fill(a.children, 0u);
  for (uint32_t page = 0; page < a.region.pages(); ++page) {
    const PageRef parent = parent_of(a, page);
    if (parent.is_none() || !a.region.is_page(parent) || !is_block(a.page_word(page))) continue;
    a.children[parent.page()] += a.page_word(parent.page()).generation() == parent.generation();
  }
}

void mark_registered(Audit& a) {
  std::ranges::fill(a.registered, uint64_t{0});
  for (uint64_t index = 0; index < a.region.buckets(); ++index) {
    const BucketView view(a, index);
    for (uint32_t slot = 0; slot < 2 * kSlots; ++slot) {
      const PageRef ref = PageRef::from_bits(view.location(slot));
      if (view.is_valid(slot) && a.region.is_page(ref) && a.page_word(ref.page()).generation() == ref.generation())
        a.registered[ref.page() / 64] |= 1ull << ref.page() % 64;
    }
  }
}

constexpr size_t round_up_to_word(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

}  // namespace

const InvariantInfo& invariant_info(Invariant invariant) { return kRows[uint32_t(invariant)].info; }

size_t audit_scratch_bytes(const ControlRegion& region) {
  return round_up_to_word(region.pages() * sizeof(uint32_t)) + (region.pages() + 63) / 64 * sizeof(uint64_t);
}

AuditReport audit(const ControlRegion& region, const AuditRequest& request, std::span<std::byte> scratch,
                  FindingSink& sink) {
  MARU_CHECK(scratch.size() >= audit_scratch_bytes(region), "the audit would write beyond its scratch memory");
  MARU_CHECK(reinterpret_cast<uintptr_t>(scratch.data()) % 8 == 0, "the scratch memory holds words");
  auto* counts = reinterpret_cast<uint32_t*>(scratch.data());
  auto* bits = reinterpret_cast<uint64_t*>(scratch.data() + round_up_to_word(region.pages() * sizeof(uint32_t)));
  Audit a{region, request, sink, {counts, region.pages()}, {bits, (region.pages() + 63) / 64}, {}};
  count_children(a);
  if (request.mode == AuditMode::kExact) mark_registered(a);
  // All invariants of one place while its lines are near.
  constexpr AuditPlace kPlaces[] = {P::kPool,   P::kPage, P::kBucket,    P::kOverflowBucket,
                                    P::kRegion, P::kLane, P::kKeyExtent, P::kTenant};
  for (const AuditPlace place : kPlaces)
    for (uint64_t index = 0; index < places(region, place); ++index)
      for (uint32_t row = 0; row < kInvariantCount; ++row)
        if (kRows[row].info.place == place && wanted(request, row)) run(a, row, index);
  return a.report;
}

}  // namespace maru::shm
