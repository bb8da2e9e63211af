// The registry: digest -> {page, generation}, a hash table of fixed size that readers never write.
//
// A home bucket is two cache lines: a header word and seven 64-bit tags; seven locations. `exists` reads the first line and is
// one cache miss. A home bucket that is full claims an overflow bucket. The home header has its valid bits, too, so that every
// change of the visible entries is one CAS on one word, which also raises that word's version. Publishing uses the header value
// read *before* the search for duplicates. Another publisher of the same key changes the word in between, the CAS fails, and
// the search starts again. So one key has one winner, without a lock, and a publisher that stops half-way has changed nothing
// that another process waits for.
//
// Claims. A slot is claimed by a CAS of its location while its valid bit is off. The CAS is from 0, or from the location of a
// page that has moved on to another generation (left by a dead publisher or remover). Publishing never moves a claim.
//
// Thread safety: any number of threads of any number of processes. Progress: a failed CAS is another thread's success; loops
// are bounded by limits::kPublishRetries and limits::kBucketReadRetries. If the process dies here: a claimed slot becomes
// claimable again when the page is freed. An overflow bucket that was claimed and not linked, or unlinked and not released,
// names the lane of the dead process, and release_overflow_of() releases it.
#pragma once

#include "libmaru/shm/blocks/hash.h"
#include "libmaru/shm/blocks/pin.h"

#include <algorithm>
#include <cstdint>

namespace maru::shm {

// Whether a block is visible under this digest. Compares the 64 bits of the tag within the bucket.
bool registry_exists(const ControlRegion& region, const Digest& digest);
// Brings the line that registry_exists reads closer; registry_prefetch_locations the line that locations are in.
void registry_prefetch(const ControlRegion& region, const Digest& digest);
void registry_prefetch_locations(const ControlRegion& region, const Digest& digest);

// The same for many keys, each line fetched while earlier keys are compared. ret_present: 1 or 0 each. Returns how many.
size_t registry_exists_batch(const ControlRegion& region, const Digest* digests, size_t count, uint8_t* ret_present);

// The locations whose tags match: usually none or one. They prove nothing; the digest in the block line, read under a pin
// or between two reads of an unchanged page word, does.
struct Candidates {
  uint32_t count = 0;
  uint64_t bits[2 * limits::kBucketSlots];  // the first `count` are set

  PageRef ref(uint32_t i) const { return PageRef::from_bits(bits[i]); }
};
Candidates registry_find(const ControlRegion& region, const Digest& digest);
// The location of the only slot of the home bucket whose tag matches, read under an unchanged header. None otherwise. The
// overflow bucket may have the tag, too: registry_find tells. Enough in practice, at a third of the instructions.
PageRef registry_find_plain(const ControlRegion& region, const format::Bucket& home, const Digest& digest);

enum class InsertStatus : uint8_t { kInserted, kDuplicate, kFull, kPinsFull, kExpiredInTheWay };
struct InsertResult {
  InsertStatus status = InsertStatus::kFull;
  PageRef winner;  // kDuplicate: the block that is there; kExpiredInTheWay: the block to be retired
};

// Publishes `own`, whose page is READY and pinned by the caller's table. now_ms: 0 ignores expiry.
InsertResult registry_insert(const ControlRegion& region, LaneId lane, PinTable& pins, const Digest& digest,
                             PageRef own, uint64_t now_ms);

// Takes the entry that names `ref` away, if there is one. Any process may call it once the page is RETIRED or POISONED; it must
// have been called before the page is freed. Returns whether this call took it away.
bool registry_remove(const ControlRegion& region, LaneId lane, const Digest& digest, PageRef ref);

// The blocks in the buckets of a key, read under an unchanged header.
struct BucketContent {
  uint32_t count = 0;
  uint64_t bits[2 * limits::kBucketSlots];  // PageRefs of the first `count` valid slots
  bool is_full = false;                     // all slots are valid, also the slots of an overflow bucket

  PageRef ref(uint32_t i) const { return PageRef::from_bits(bits[i]); }
};
BucketContent registry_content(const ControlRegion& region, const Digest& digest);

// Releases the overflow buckets that a dead lane claimed and did not link, or unlinked and did not release: of all, or of
// [from, to).
void release_overflow_of(const ControlRegion& region, LaneId dead, uint64_t from = 0, uint64_t to = UINT64_MAX);
// One of them: `owner` is a reading of its owner word, and names the dead lane.
void release_overflow_bucket(const ControlRegion& region, uint64_t index, uint64_t owner);

// Keys of a batch that are not in their home buckets, one in a hundred of a full pool: each costs two further misses, one
// after the other. They are put off and finished together, so that these misses overlap as well.
class LaterKeys {
 public:
  // Remembers key `i` of the batch and fetches the line that names its overflow bucket. True when no further one fits.
  bool add(size_t i, const format::Bucket& home) {
    keys_[count_++] = {i, &home};
    __builtin_prefetch(&home.locations);
    return count_ == kLaterMax;
  }
  // Calls finish_one(i) for each, its lines fetched, and forgets them.
  template <typename F>
  void finish(const ControlRegion& region, F&& finish_one) {
    for (size_t k = 0; k < count_; ++k) {
      const uint64_t link = uint32_t(keys_[k].home->locations.overflow.load_acquire());  // [pairs bucket.link]
      if (link == 0 || link > region.overflow_buckets()) continue;
      const format::Bucket& over = region.overflow(link - 1);
      __builtin_prefetch(&over.tags);
      __builtin_prefetch(&over.locations);
    }
    for (size_t k = 0; k < count_; ++k) finish_one(keys_[k].index);
    count_ = 0;
  }

 private:
  static constexpr size_t kLaterMax = 64;
  struct Key {
    size_t index;
    const format::Bucket* home;
  };
  Key keys_[kLaterMax];
  size_t count_ = 0;
};

// Looks for many keys at once. A group of keys goes through three passes. First its digests are made. Then its lines are asked
// for, while the lines of earlier groups are on their way, as far as misses can overlap. Last the tags are compared. Making the
// digests meanwhile costs little: the processor would wait for lines.
class ExistsBatch {
 public:
  static constexpr size_t kGroup = 32;
  // digests: room for `count`, which run()'s hash fills. ret_present: `count` bytes, 1 or 0 for each key.
  ExistsBatch(const ControlRegion& region, const Digest* digests, size_t count, uint8_t* ret_present)
      : region_(region), digests_(digests), count_(count), present_(ret_present) {
    std::ranges::fill(homes_, &region.bucket(0));
  }

  // hash(first, end) makes the digests of these keys; false, and all is given up, if one is not a key.
  template <typename F>
  bool run(F&& hash) {
    const auto begin = [&](size_t first) {
      if (first >= count_) return true;
      const size_t end = std::min(count_, first + kGroup);
      if (!hash(first, end)) return false;
      place(first, end);
      return true;
    };
    for (size_t first = 0; first < kAhead; first += kGroup)
      if (!begin(first)) return false;
    fetch_first();
    const Compare compare_keys = fastest_compare();
    for (size_t first = 0; first < count_; first += kGroup) {
      if (!begin(first + kAhead)) return false;
      (this->*compare_keys)(first, std::min(count_, first + kGroup));
    }
    return true;
  }
  // How many are present.
  size_t finish();

 private:
  static constexpr size_t kAhead = 2 * kGroup, kNear = kGroup / 2;
  static constexpr size_t kRing = 4 * kGroup;
  // The same with other instructions.
  using Compare = void (ExistsBatch::*)(size_t first, size_t end);
  static Compare fastest_compare();
  template <bool kFarToSecondLevel, typename Match>
  void compare_by(Match&& match, size_t first, size_t end);
  template <bool kFarToSecondLevel>
  void compare(size_t first, size_t end);
  template <bool kFarToSecondLevel>
  void compare_avx512(size_t first, size_t end);
  void put_off(size_t i);
  void finish_later();
  void place(size_t first, size_t end);
  // Of the keys from `first` on as many as are eights. Returns the first of the rest.
  size_t place_eights(size_t first, size_t end);
  void fetch_first() const;

  const ControlRegion& region_;
  const Digest* digests_;
  size_t count_;
  uint8_t* present_;
  const format::Bucket* homes_[kRing];  // of the keys under way; of no key: any
  LaterKeys later_;
};

// The digest in a page's block line.
inline Digest block_digest(const ControlRegion& region, uint32_t page) {
  const format::BlockLine& line = region.block(page);
  return {line.digest_lo.load_acquire(),
          line.digest_hi.load_acquire()};  // before the word is read again: [pairs page.word]
}

}  // namespace maru::shm
