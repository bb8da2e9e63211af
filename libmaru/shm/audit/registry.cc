#include "libmaru/shm/audit/checks.h"

#include <algorithm>

namespace maru::shm::audit_checks {

static constexpr uint32_t kSlots = uint32_t(limits::kBucketSlots);
static constexpr uint64_t kLaneMask = 0xFFF'FFFF;  // of an overflow bucket's owner word

// -- registry ---------------------------------------------------------------------------------------------------------

struct BucketView {
  uint64_t index;
  Bucket& home;
  uint64_t header;
  uint64_t link;
  Bucket* over;  // only if the link and the owner agree

  BucketView(const Audit& a, uint64_t i)
      : index(i), home(a.region.bucket(i)), header(seen(home.tags.header)), link(seen(home.locations.overflow)) {
    const uint64_t number = uint32_t(link);
    over = number != 0 && number <= a.region.overflow_buckets() ? &a.region.overflow(number - 1) : nullptr;
    if (over && seen(over->tags.header) >> 28 != index + 1) over = nullptr;
  }
  bool flagged() const { return (header & kOverflowFlag) != 0; }
  bool is_valid(uint32_t slot) const { return (header >> slot & 1) != 0 && (slot < kSlots || (flagged() && over)); }
  uint64_t location(uint32_t slot) const {
    return slot < kSlots ? seen(home.locations.location[slot])
           : over        ? seen(over->locations.location[slot - kSlots])
                         : 0;
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

// A location that is not valid: zero, or left by a publisher or helper while its page has moved on or is RETIRED.
static bool is_idle_location(const Audit& a, uint64_t bits) {
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
                                   LaneId::from_low(uint32_t(owner & kLaneMask)).lane < a.region.lanes());
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
  return (owner & kLaneMask) != 0 && !a.is_live(LaneId::from_low(uint32_t(owner & kLaneMask)).lane) &&
         violated(f, 0, owner);
}

bool overflow_claim(const Audit& a, uint64_t index, Finding* f) {
  const Bucket& bucket = a.region.overflow(index);
  if (seen(bucket.tags.header) != 0) return false;  // kSlotClaim of its home
  for (uint32_t slot = 0; slot < kSlots; ++slot)
    if (const uint64_t location = seen(bucket.locations.location[slot]); !is_idle_location(a, location))
      return violated(f, slot, 0, location);
  return false;
}

void mark_registered(Audit& a, uint64_t from, uint64_t to) {
  for (uint64_t index = from; index < to; ++index) {
    const BucketView view(a, index);
    for (uint32_t slot = 0; slot < 2 * kSlots; ++slot) {
      const PageRef ref = PageRef::from_bits(view.location(slot));
      if (view.is_valid(slot) && a.region.is_page(ref) && a.page_word(ref.page()).generation() == ref.generation())
        a.registered[ref.page() / 64] |= 1ull << ref.page() % 64;
    }
  }
}

}  // namespace maru::shm::audit_checks
