#include "libmaru/shm/blocks/registry.h"

#include "libmaru/shm/region/flush.h"

#include <algorithm>

#if defined(__SSE2__) && !defined(MARU_SIM) && !defined(__SANITIZE_THREAD__)
// Its intrinsics begin with vectors that are undefined on purpose, of which g++ 12 warns (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#define MARU_VECTOR_TAGS 1
#endif

namespace maru::shm {
namespace {

using namespace maru::format;

constexpr uint32_t kSlots = uint32_t(limits::kBucketSlots);

// -- the words of a bucket --------------------------------------------------------------------------------------------

struct HomeHeader {
  uint64_t bits = 0;
  uint32_t valid_home() const { return uint32_t(bits) & 0x7F; }
  uint32_t valid_overflow() const { return uint32_t(bits >> kSlots) & 0x7F; }
  bool has_overflow() const { return (bits & kOverflowFlag) != 0; }
  bool is_valid(uint32_t slot) const { return (bits >> slot & 1) != 0; }
  HomeHeader next() const { return {bits + kHeaderVersionOne}; }
  HomeHeader with(uint32_t slot) const { return {next().bits | 1ull << slot}; }
  HomeHeader without(uint32_t slot) const { return {next().bits & ~(1ull << slot)}; }
  HomeHeader with_overflow() const { return {next().bits | kOverflowFlag}; }
  HomeHeader without_overflow() const { return {next().bits & ~kOverflowFlag}; }
};

// Home bucket's word: version:32 | overflow bucket + 1:32. The version changes whenever a linked bucket is taken into use
// again, so that a releaser that was stopped cannot unlink a bucket that is in use.
struct OverflowLink {
  uint64_t bits = 0;
  bool is_none() const { return uint32_t(bits) == 0; }
  uint64_t index() const { return uint32_t(bits) - 1; }
  OverflowLink to(uint64_t index) const { return {((bits >> 32) + 1) << 32 | (index + 1)}; }
  OverflowLink again() const { return {bits + (1ull << 32)}; }
  OverflowLink none() const { return {((bits >> 32) + 1) << 32}; }
};

// The lane in the owner word of an overflow bucket that is linked and that no lane is releasing.
constexpr LaneId kNobody{0, 0};

uint64_t owner_word(uint64_t home, LaneId lane) { return (home + 1) << 28 | lane.low(); }

uint32_t match_tags(const BucketTags& line, uint64_t tag) {
#if defined(MARU_VECTOR_TAGS)
  // Four 16-byte compares of 32-bit halves; both halves of a word must be equal; then eight results are packed into eight
  // bits, of which the first is the header's. The loads are not atomic as a whole, but each 64-bit word is on x86, and the
  // header is read again by the caller.
  const __m128i wanted = _mm_set1_epi64x(int64_t(tag));
  const auto* words = reinterpret_cast<const __m128i*>(&line);
  const __m128 a = _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_load_si128(words), wanted));
  const __m128 b = _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_load_si128(words + 1), wanted));
  const __m128 c = _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_load_si128(words + 2), wanted));
  const __m128 d = _mm_castsi128_ps(_mm_cmpeq_epi32(_mm_load_si128(words + 3), wanted));
  const __m128 first = _mm_and_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xDD));
  const __m128 second = _mm_and_ps(_mm_shuffle_ps(c, d, 0x88), _mm_shuffle_ps(c, d, 0xDD));
  const __m128i packed = _mm_packs_epi32(_mm_castps_si128(first), _mm_castps_si128(second));
  const auto bits = uint32_t(_mm_movemask_epi8(_mm_packs_epi16(packed, packed))) & 0xFF;
  __asm__ volatile("" ::: "memory");
  return bits >> 1;
#else
  uint32_t bits = 0;
  for (uint32_t i = 0; i < kSlots; ++i) bits |= uint32_t(line.tag[i].load_acquire() == tag) << i;  // [pairs bucket.tag]
  return bits;
#endif
}

// A home bucket and the overflow bucket that its link names at the moment.
struct BucketPair {
  const ControlRegion& region;
  uint64_t home_index;
  Bucket& home;

  BucketPair(const ControlRegion& r, const Digest& digest)
      : region(r), home_index(home_bucket(r, digest)), home(r.bucket(home_index)) {}

  HomeHeader header() const { return {home.tags.header.load_acquire()}; }         // [pairs bucket.header]
  OverflowLink link() const { return {home.locations.overflow.load_acquire()}; }  // [pairs bucket.link]
  // nullptr when there is none, or the word is damaged.
  Bucket* overflow(OverflowLink link) const {
    return link.is_none() || link.index() >= region.overflow_buckets() ? nullptr : &region.overflow(link.index());
  }
  // Slots 0..6 are the home's, 7..13 the overflow bucket's.
  AtomicU64* location(uint32_t slot, Bucket* overflow) const {
    if (slot < kSlots) return &home.locations.location[slot];
    return overflow ? &overflow->locations.location[slot - kSlots] : nullptr;
  }
  AtomicU64* tag(uint32_t slot, Bucket* overflow) const {
    if (slot < kSlots) return &home.tags.tag[slot];
    return overflow ? &overflow->tags.tag[slot - kSlots] : nullptr;
  }
  bool change(HomeHeader from, HomeHeader to) const {
    if (!home.tags.header.cas_seq_cst(from.bits, to.bits)) return false;  // [pairs bucket.header]
    flush(region, home.tags);
    return true;
  }

  // Bit i: slot i is valid under `h` and has the tag. The tags are only as good as a second, equal read of the header.
  uint32_t matches(HomeHeader h, uint64_t wanted, Bucket* over) const {
    uint32_t bits = match_tags(home.tags, wanted) & h.valid_home();
    if (over && h.valid_overflow() != 0) bits |= (match_tags(over->tags, wanted) & h.valid_overflow()) << kSlots;
    return bits;
  }
};

// Whether the page of a location has been freed since, so that no publisher can be about to publish it.
bool has_moved_on(const ControlRegion& region, PageRef ref) {
  if (!region.is_page(ref)) return true;  // damaged: no publisher wrote this
  return PageWord{region.block(ref.page()).word.load_acquire()}.generation() != ref.generation();  // [pairs page.word]
}

// Lets go of an overflow bucket that holds nothing valid. First the flag goes, with a new version of the header, so that no
// process takes the bucket into use again under the old header. Then this lane takes the right to release it, which one lane at
// a time has. A linked bucket is owned by no lane, and a step from there names this lane. Then the link goes. If the bucket was
// taken into use again meanwhile, its link has another version, and the right is given back. If the process dies here: the
// owner word names the dead lane, and release_overflow_of() finishes or undoes it. If its host is lost: the right is in memory
// before the link changes, so a bucket without a link always names a lane.
void release_overflow(const BucketPair& pair, LaneId lane, HomeHeader h, OverflowLink link) {
  Bucket* over = pair.overflow(link);
  if (over == nullptr || h.valid_overflow() != 0) return;
  if (!pair.change(h, h.without_overflow())) return;
  uint64_t owner = owner_word(pair.home_index, kNobody);
  const uint64_t mine = owner_word(pair.home_index, lane);
  if (!over->tags.header.cas_acq_rel(owner, mine)) return;  // another lane is at it: [pairs overflow.owner]
  flush(pair.region, over->tags);
  uint64_t expected = link.bits, after = 0;
  if (!pair.home.locations.overflow.cas_seq_cst(expected, link.none().bits))
    after = owner_word(pair.home_index, kNobody);
  flush(pair.region, pair.home.locations);  // before another home bucket may have it
  owner = mine;
  over->tags.header.cas_acq_rel(owner, after);  // [pairs overflow.owner]
}

}  // namespace

bool registry_exists(const ControlRegion& region, const Digest& digest) {
  const BucketPair pair(region, digest);
  HomeHeader h = pair.header();
  bool found = false;
  // A bucket that changes faster than it can be read leaves the last answer, which was true of some of its slots.
  for (uint32_t tries = 0; tries < limits::kBucketReadRetries; ++tries) {
    found = (match_tags(pair.home.tags, digest.lo) & h.valid_home()) != 0;
    if (!found && h.valid_overflow() != 0) {
      const Bucket* over = pair.overflow(pair.link());
      found = over && (match_tags(over->tags, digest.lo) & h.valid_overflow()) != 0;
    }
    const HomeHeader after = pair.header();
    if (after.bits == h.bits) break;
    h = after;
  }
  return found;
}

namespace {

// Intel's first level waits for a dozen lines at a time, its second level for four times as many. So lines that are wanted only
// three groups later come faster when they are asked for there. AMD's processors take such a hint badly, even where the line is
// at hand (18 ns a key instead of 9, exists_batch256_cached). They wait for enough lines at the first level.
bool fetch_to_second_level() {
#ifdef __x86_64__
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

}  // namespace

#if defined(MARU_VECTOR_TAGS)
// home_bucket() of eight keys at a time. A region has less than 2^32 buckets, so halves are enough.
__attribute__((target("avx512f"))) size_t ExistsBatch::place_eights(size_t first, size_t end) {
  using Eight __attribute__((vector_size(64))) = uint64_t;
  const Eight buckets = Eight{} + region_.buckets();
  const auto times_buckets = [&](const Eight& lower) __attribute__((target("avx512f"))) {
    return Eight(_mm512_mul_epu32(__m512i(lower), __m512i(buckets)));
  };
  const Bucket* const all = &region_.bucket(0);
  for (; first + 8 <= end; first += 8) {
    const __m512i low_keys = _mm512_loadu_si512(digests_ + first), high_keys = _mm512_loadu_si512(digests_ + first + 4);
    const Eight hi = Eight(_mm512_permutex2var_epi64(low_keys, __m512i(Eight{1, 3, 5, 7, 9, 11, 13, 15}), high_keys));
    const Eight index = (times_buckets(hi >> 32) + (times_buckets(hi) >> 32)) >> 32;
    _mm512_storeu_si512(&homes_[first % kRing], __m512i(index * sizeof(Bucket) + reinterpret_cast<uintptr_t>(all)));
  }
  return first;
}
#endif

void ExistsBatch::place(size_t first, size_t end) {
#if defined(MARU_VECTOR_TAGS)
  static const bool has_avx512 = __builtin_cpu_supports("avx512f");
  if (has_avx512) first = place_eights(first, end);
#endif
  const uint64_t buckets = region_.buckets();
  const Bucket* const all = &region_.bucket(0);
  for (size_t i = first; i < end; ++i)
    homes_[i % kRing] = all + uint64_t(static_cast<uint128>(digests_[i].hi) * buckets >> 64);
}

void ExistsBatch::fetch_first() const {
  for (size_t i = 0; i < kAhead; ++i) __builtin_prefetch(&homes_[i]->tags);
}

namespace {

// One key: `header` was read before `bits`, the slots of its home that have its tag. Returns false when the overflow bucket has
// the answer, or the header has changed meanwhile.
inline bool settle(const Bucket& home, uint64_t header, uint32_t bits, uint8_t& ret_present) {
  const HomeHeader h{header};
  const bool found = (bits & h.valid_home()) != 0;
  ret_present = found;
  const bool is_same = home.tags.header.load_acquire() == header;  // [pairs bucket.header]
  return is_same && (found || h.valid_overflow() == 0);
}

}  // namespace

void ExistsBatch::put_off(size_t i) {
  present_[i] = 0;
  if (later_.add(i, *homes_[i % kRing])) finish_later();
}

// Members are read once: the bytes of `present` could be anything.
//
// Each key asks for the line of a key far behind it, and once more for the line of a nearer key. A prefetch is dropped when
// the processor has too many misses in flight; most that were dropped come with the second one (of 200 k keys in the
// third level of the cache 13 ns become 11).
template <bool kFarToSecondLevel, typename Match>
inline __attribute__((always_inline)) void ExistsBatch::compare_by(Match&& match, size_t first, size_t end) {
  static_assert(kGroup % kNear == 0 && kAhead % kNear == 0 && kRing % kNear == 0);
  for (; first < end; first += kNear) {
    const size_t count = std::min(kNear, end - first);
    const Digest* const digests = digests_ + first;
    uint8_t* const present = present_ + first;
    const Bucket* const* const homes = homes_ + first % kRing;
    const Bucket* const* const near = homes_ + (first + kNear) % kRing;
    const Bucket* const* const far = homes_ + (first + kAhead) % kRing;
    for (size_t i = 0; i < count; ++i) {
      __builtin_prefetch(&far[i]->tags, 0, kFarToSecondLevel ? 2 : 3);
      __builtin_prefetch(&near[i]->tags);
      const Bucket& home = *homes[i];
      const uint64_t header = home.tags.header.load_acquire();  // [pairs bucket.header]
      if (!settle(home, header, match(home.tags, digests[i].lo), present[i])) put_off(first + i);
    }
  }
}

template <bool kFarToSecondLevel>
void ExistsBatch::compare(size_t first, size_t end) {
  compare_by<kFarToSecondLevel>(match_tags, first, end);
}

#if defined(MARU_VECTOR_TAGS)
template <bool kFarToSecondLevel>
__attribute__((target("avx512f"))) void ExistsBatch::compare_avx512(size_t first, size_t end) {
  const auto match = [](const BucketTags& line, uint64_t tag) __attribute__((target("avx512f"))) {
    // As in match_tags: each word is whole, and the header is read again.
    const uint32_t bits = _mm512_cmpeq_epi64_mask(_mm512_load_si512(&line), _mm512_set1_epi64(int64_t(tag))) >> 1;
    __asm__ volatile("" ::: "memory");
    return bits;
  };
  compare_by<kFarToSecondLevel>(match, first, end);
}
#endif

ExistsBatch::Compare ExistsBatch::fastest_compare() {
  static const Compare fastest = [] {
    const bool is_far = fetch_to_second_level();
#if defined(MARU_VECTOR_TAGS)
    if (__builtin_cpu_supports("avx512f"))
      return is_far ? &ExistsBatch::compare_avx512<true> : &ExistsBatch::compare_avx512<false>;
#endif
    return is_far ? &ExistsBatch::compare<true> : &ExistsBatch::compare<false>;
  }();
  return fastest;
}

void ExistsBatch::finish_later() {
  later_.finish(region_, [this](size_t i) { present_[i] = registry_exists(region_, digests_[i]); });
}

size_t ExistsBatch::finish() {
  finish_later();
  size_t found = 0;
  for (size_t i = 0; i < count_; ++i) found += present_[i];
  return found;
}

size_t registry_exists_batch(const ControlRegion& region, const Digest* digests, size_t count, uint8_t* ret_present) {
  ExistsBatch batch(region, digests, count, ret_present);
  batch.run([](size_t, size_t) { return true; });
  return batch.finish();
}

PageRef registry_find_plain(const ControlRegion& region, const Bucket& home, const Digest& digest) {
  const HomeHeader h{home.tags.header.load_acquire()};  // [pairs bucket.header]
  const uint32_t bits = match_tags(home.tags, digest.lo) & h.valid_home();
  if (bits == 0 || (bits & (bits - 1)) != 0) return PageRef::none();
  const PageRef ref =
      PageRef::from_bits(home.locations.location[__builtin_ctz(bits)].load_acquire());  // [pairs bucket.location]
  const bool is_valid = home.tags.header.load_acquire() == h.bits;                      // [pairs bucket.header]
  return is_valid && region.is_page(ref) ? ref : PageRef::none();
}

void registry_prefetch(const ControlRegion& region, const Digest& digest) {
  __builtin_prefetch(&region.bucket(home_bucket(region, digest)).tags);
}

void registry_prefetch_locations(const ControlRegion& region, const Digest& digest) {
  __builtin_prefetch(&region.bucket(home_bucket(region, digest)).locations);
}

Candidates registry_find(const ControlRegion& region, const Digest& digest) {
  const BucketPair pair(region, digest);
  HomeHeader h = pair.header();
  Candidates result;
  for (uint32_t tries = 0; tries < limits::kBucketReadRetries; ++tries) {
    Bucket* over = h.valid_overflow() != 0 ? pair.overflow(pair.link()) : nullptr;
    result.count = 0;
    for (uint32_t bits = pair.matches(h, digest.lo, over); bits; bits &= bits - 1) {
      const uint32_t slot = uint32_t(__builtin_ctz(bits));
      const PageRef ref = PageRef::from_bits(pair.location(slot, over)->load_acquire());  // [pairs bucket.location]
      if (region.is_page(ref)) result.bits[result.count++] = ref.bits;
    }
    const HomeHeader after = pair.header();
    if (after.bits == h.bits) return result;
    h = after;
  }
  // A location that is not known to have been valid may be a claim that was never published: report a miss.
  result.count = 0;
  return result;
}

BucketContent registry_content(const ControlRegion& region, const Digest& digest) {
  const BucketPair pair(region, digest);
  HomeHeader h = pair.header();
  BucketContent result;
  for (uint32_t tries = 0; tries < limits::kBucketReadRetries; ++tries) {
    Bucket* over = h.has_overflow() ? pair.overflow(pair.link()) : nullptr;
    result.count = 0;
    for (uint32_t slot = 0; slot < (over ? 2 * kSlots : kSlots); ++slot) {
      if (!h.is_valid(slot)) continue;
      const PageRef ref = PageRef::from_bits(pair.location(slot, over)->load_acquire());  // [pairs bucket.location]
      if (region.is_page(ref)) result.bits[result.count++] = ref.bits;
    }
    result.is_full = h.valid_home() == 0x7F && (!h.has_overflow() || h.valid_overflow() == 0x7F);
    const HomeHeader after = pair.header();
    if (after.bits == h.bits) return result;
    h = after;
  }
  // It changes faster than it can be read, so there was room in it.
  return {};
}

namespace {

enum class DuplicateCheck : uint8_t { kNone, kFound, kChanged, kPinsFull, kExpired };

// Step (2) of publishing: is a block with this digest visible under header `h`?
DuplicateCheck find_duplicate(const BucketPair& pair, HomeHeader h, Bucket* over, PinTable& pins, const Digest& digest,
                              PageRef own, uint64_t now_ms, PageRef* ret_winner) {
  const ControlRegion& region = pair.region;
  for (uint32_t bits = pair.matches(h, digest.lo, over); bits; bits &= bits - 1) {
    const uint32_t slot = uint32_t(__builtin_ctz(bits));
    const PageRef ref = PageRef::from_bits(pair.location(slot, over)->load_acquire());  // [pairs bucket.location]
    if (ref == own) continue;
    if (!region.is_page(ref)) {
      pair.change(h, h.without(slot));  // damaged: help it out of sight
      return DuplicateCheck::kChanged;
    }
    const Pin pin = pins.pin(ref);
    if (pin.status == PinStatus::kFull) return DuplicateCheck::kPinsFull;
    if (pin.status == PinStatus::kGone) {
      // Retired or freed and not yet removed. If the header has changed since, the step fails and nothing is harmed.
      pair.change(h, h.without(slot));
      return DuplicateCheck::kChanged;
    }
    const bool same = block_digest(region, ref.page()) == digest;
    const uint64_t expires_ms = region.block(ref.page()).expires_ms.load_relaxed();  // under the pin
    pins.unpin(pin.slot, ref);
    if (!same) continue;
    // The location may have been read after the entry was removed and another publisher of the same key had claimed the slot.
    // Its block is not visible yet, and may never be.
    if (pair.header().bits != h.bits) return DuplicateCheck::kChanged;
    *ret_winner = ref;
    return expires_ms != 0 && now_ms >= expires_ms && now_ms != 0 ? DuplicateCheck::kExpired : DuplicateCheck::kFound;
  }
  return DuplicateCheck::kNone;
}

// Step (3): claims a slot of the pair for `own`. Returns false if both buckets are full.
bool claim_slot(const BucketPair& pair, HomeHeader h, Bucket* over, PageRef own, uint32_t* ret_slot) {
  const uint32_t slots = h.has_overflow() && over ? 2 * kSlots : kSlots;
  for (uint32_t slot = 0; slot < slots; ++slot) {
    if (h.is_valid(slot)) continue;
    AtomicU64* location = pair.location(slot, over);
    uint64_t found = location->load_acquire();  // [pairs bucket.location]
    if (found != 0 && !has_moved_on(pair.region, PageRef::from_bits(found))) continue;
    if (location->cas_seq_cst(found, own.bits)) {
      *ret_slot = slot;
      return true;
    }
  }
  return false;
}

// Gives the home bucket an overflow bucket, or takes a linked one into use again. Returns false if there is none left.
bool attach_overflow(const BucketPair& pair, LaneId lane, HomeHeader h) {
  const ControlRegion& region = pair.region;
  OverflowLink link = pair.link();
  if (!link.is_none()) {
    uint64_t expected = link.bits;
    if (!pair.home.locations.overflow.cas_seq_cst(expected, link.again().bits)) return true;
    // Or the link has its old version again when this host is lost, and a releaser elsewhere unlinks a bucket that is in use.
    flush(region, pair.home.locations);
    pair.change(h, h.with_overflow());
    return true;
  }
  const uint64_t count = region.overflow_buckets();
  const uint64_t start = pair.home_index % count;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t index = (start + i) % count;
    AtomicU64& owner = region.overflow(index).tags.header;
    uint64_t expected = 0;
    if (owner.load_relaxed() != 0 || !owner.cas_acq_rel(expected, owner_word(pair.home_index, lane))) continue;  // hint
    flush(region, region.overflow(index).tags);
    uint64_t none = link.bits;
    const bool linked = pair.home.locations.overflow.cas_seq_cst(none, link.to(index).bits);  // [pairs bucket.link]
    flush(region, pair.home.locations);
    // A linked bucket is owned by no lane, so that any lane may release it; or another process linked a bucket first.
    uint64_t mine = owner_word(pair.home_index, lane);
    owner.cas_acq_rel(mine, linked ? owner_word(pair.home_index, kNobody) : 0);  // [pairs overflow.owner]
    if (linked) pair.change(h, h.with_overflow());
    return true;
  }
  return false;
}

// In memory before the page is used elsewhere in this life: a claim that came back would keep its slot for as long.
void drop_claim(const BucketPair& pair, uint32_t slot, uint64_t overflow_index, PageRef own) {
  Bucket& bucket = slot < kSlots ? pair.home : pair.region.overflow(overflow_index);
  uint64_t expected = own.bits;
  bucket.locations.location[slot % kSlots].cas_acq_rel(expected, 0);
  flush(pair.region, bucket.locations);
}

}  // namespace

InsertResult registry_insert(const ControlRegion& region, LaneId lane, PinTable& pins, const Digest& digest,
                             PageRef own, uint64_t now_ms) {
  const BucketPair pair(region, digest);
  bool claimed = false;
  uint32_t slot = 0;
  OverflowLink claimed_link;
  const auto give_up = [&](InsertStatus status, PageRef winner) {
    if (claimed) drop_claim(pair, slot, claimed_link.index(), own);
    return InsertResult{status, winner};
  };
  for (uint32_t tries = 0; tries < limits::kPublishRetries; ++tries) {
    const HomeHeader h = pair.header();  // (1)
    const OverflowLink link = pair.link();
    Bucket* over = pair.overflow(link);
    if (h.has_overflow() && over == nullptr) {
      if (pair.header().bits != h.bits) continue;
      return give_up(InsertStatus::kFull, PageRef::none());  // damaged
    }
    if (claimed && slot >= kSlots && (!h.has_overflow() || link.bits != claimed_link.bits)) {
      drop_claim(pair, slot, claimed_link.index(), own);  // the overflow bucket was released under the claim
      claimed = false;
    }

    PageRef winner;
    switch (find_duplicate(pair, h, over, pins, digest, own, now_ms, &winner)) {  // (2)
      case DuplicateCheck::kNone: break;
      case DuplicateCheck::kChanged: continue;
      case DuplicateCheck::kPinsFull: return give_up(InsertStatus::kPinsFull, PageRef::none());
      case DuplicateCheck::kFound: return give_up(InsertStatus::kDuplicate, winner);
      case DuplicateCheck::kExpired: return give_up(InsertStatus::kExpiredInTheWay, winner);
    }

    if (!claimed) {  // (3)
      if (claim_slot(pair, h, over, own, &slot)) {
        claimed = true;
        claimed_link = link;
      } else if (h.has_overflow()) {
        if (pair.header().bits != h.bits) continue;
        return give_up(InsertStatus::kFull, PageRef::none());
      } else if (!attach_overflow(pair, lane, h)) {
        return give_up(InsertStatus::kFull, PageRef::none());
      }
      continue;
    }

    pair.tag(slot, over)->store_release(digest.lo);  // (4) [pairs bucket.tag]
    if (slot < kSlots)
      flush(region, pair.home.locations);  // the tag's line is written back with the header
    else
      flush(region, *over);
    if (pair.change(h, h.with(slot))) return {InsertStatus::kInserted, own};  // (5)
  }
  return give_up(InsertStatus::kFull, PageRef::none());
}

bool registry_remove(const ControlRegion& region, LaneId lane, const Digest& digest, PageRef ref) {
  const BucketPair pair(region, digest);
  const bool is_marud = lane.lane % region.lanes_per_host() == 0;
  const uint32_t tries_max = is_marud ? limits::kMarudRemoveRetries : limits::kPublishRetries;
  for (uint32_t tries = 0; tries < tries_max; ++tries) {
    const HomeHeader h = pair.header();
    const OverflowLink link = pair.link();
    Bucket* over = h.has_overflow() ? pair.overflow(link) : nullptr;
    uint32_t slot = 0;
    AtomicU64* location = nullptr;
    for (uint32_t i = 0; i < 2 * kSlots && location == nullptr; ++i) {
      if (!h.is_valid(i)) continue;
      AtomicU64* here = pair.location(i, over);
      if (here && here->load_acquire() == ref.bits) {  // [pairs bucket.location]
        slot = i;
        location = here;
      }
    }
    if (location == nullptr) {
      if (pair.header().bits != h.bits) continue;
      // The entry was absent for a moment of this call. The process that helped to remove it does not release the overflow
      // bucket.
      if (!link.is_none() && h.valid_overflow() == 0) release_overflow(pair, lane, h, link);
      return false;
    }
    const HomeHeader without = h.without(slot);
    if (!pair.change(h, without)) continue;
    // Only after the valid bit is off, and only from this very location: by then it may be another publisher's.
    uint64_t expected = ref.bits;
    location->cas_acq_rel(expected, 0);
    if (!link.is_none() && without.valid_overflow() == 0) release_overflow(pair, lane, without, link);
    return true;
  }
  return false;
}

void release_overflow_of(const ControlRegion& region, LaneId dead, uint64_t from, uint64_t to) {
  for (uint64_t i = from; i < std::min(to, region.overflow_buckets()); ++i) {
    const uint64_t owner = region.overflow(i).tags.header.load_acquire();  // [pairs overflow.owner]
    if (owner != 0 && (owner & 0xFFF'FFFF) == dead.low()) release_overflow_bucket(region, i, owner);
  }
}

void release_overflow_bucket(const ControlRegion& region, uint64_t index, uint64_t owner) {
  const uint64_t home = (owner >> 28) - 1;
  const bool linked = home < region.buckets() && uint32_t(region.bucket(home).locations.overflow.load_acquire()) ==
                                                     index + 1;  // [pairs bucket.link]
  // A linked bucket stays with its home.
  AtomicU64& word = region.overflow(index).tags.header;
  word.cas_acq_rel(owner, linked ? owner_word(home, kNobody) : 0);
  flush(region, word);
}

}  // namespace maru::shm
