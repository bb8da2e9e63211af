#include "libmaru/shm/blocks/block_store.h"

#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/region/flush.h"

#include <algorithm>
#include <cstring>

namespace maru::shm {
namespace {

using namespace maru::format;

// A block line's depth and run length share a word.
constexpr uint64_t shape_word(uint32_t depth, uint32_t pages) { return uint64_t(depth) << 32 | pages; }

// -- keys in shared memory --------------------------------------------------------------------------------------------

void write_words(std::span<AtomicU64> words, std::span<const std::byte> bytes) {
  for (size_t i = 0; i * 8 < bytes.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * 8, std::min<size_t>(8, bytes.size() - i * 8));
    words[i].store_relaxed(word);  // published by the page word
  }
}

void read_words(std::span<const AtomicU64> words, std::byte* bytes, size_t size) {
  for (size_t i = 0; i * 8 < size; ++i) {
    const uint64_t word = words[i].load_acquire();  // before the page word is read again: [pairs page.word]
    std::memcpy(bytes + i * 8, &word, std::min<size_t>(8, size - i * 8));
  }
}

// Claims a cell for a key that is longer than the inline key, by naming the block in the cell's owner word. A cell whose owner
// has moved on to another generation is free, so nothing has to be given back and a death leaks nothing. A second attempt of a
// store with the same page keeps its cell; if the first attempt found no cell, it looks elsewhere, too.
bool claim_key_extent(const ControlRegion& region, PageRef own, uint64_t now_ms, uint64_t* ret_extent) {
  const uint64_t count = region.parameters().key_extents;
  const uint64_t before = uint32_t(region.detail(own.page()).key.load_relaxed());
  if (before != 0 && before <= count &&
      region.key_extent_owner(before - 1).load_acquire() == own.bits) {  // [pairs extent.owner]
    *ret_extent = before - 1;
    return true;
  }
  const uint64_t probes = std::min<uint64_t>(count, limits::kKeyExtentProbes);
  for (uint64_t i = 0; i < 2 * probes; ++i) {
    const uint64_t first = i < probes ? own.page() : own.page() + (1 + now_ms % count) * limits::kKeyExtentProbes;
    const uint64_t extent = (first + i * 0x9e3779b1ull) % count;
    AtomicU64& owner = region.key_extent_owner(extent);
    uint64_t found = owner.load_acquire();  // [pairs extent.owner]
    const PageRef holder = PageRef::from_bits(found);
    if (found != own.bits && found != 0 && region.is_page(holder) &&
        PageWord{region.block(holder.page()).word.load_acquire()}.generation() ==
            holder.generation())  // [pairs page.word]
      continue;
    if (found == own.bits || owner.cas_acq_rel(found, own.bits)) {  // [pairs extent.owner]
      *ret_extent = extent;
      return true;
    }
  }
  return false;
}

bool write_key(const ControlRegion& region, PageRef own, const NewBlock& block) {
  uint64_t extent_field = 0;
  if (block.key.size() <= region.parameters().key_inline_bytes) {
    write_words(region.key_cell(own.page()), block.key);
    flush(region, region.key_cell(own.page()).data(), block.key.size());
  } else {
    uint64_t extent = 0;
    if (!claim_key_extent(region, own, block.now_ms, &extent)) return false;
    write_words(region.key_extent(extent), block.key);
    flush(region, region.key_extent_owner(extent));
    flush(region, region.key_extent(extent).data(), block.key.size());
    extent_field = extent + 1;
  }
  region.detail(own.page())
      .key.store_relaxed(uint64_t(block.key_kind & 0xFF) << 56 | uint64_t(block.key.size()) << 32 | extent_field);
  return true;
}

// -- the lane's parent intents ----------------------------------------------------------------------------------------

// Names a parent in the lane while its count is about to be lowered, so that a death in between is found and the parent
// recounted.
class ParentIntent {
 public:
  ParentIntent(LaneContext& lane, PageRef parent) : lane_(lane), used_(!parent.is_none()) {
    if (!used_) return;
    for (;;) {  // ends: at most kParentIntents threads are between here and the destructor, and none of them waits
      uint64_t in_use = lane.intents_in_use.load_relaxed();  // the CAS decides
      const uint64_t free = ~in_use & ((1u << limits::kParentIntents) - 1);
      if (free == 0) continue;
      index_ = uint32_t(__builtin_ctzll(free));
      if (lane.intents_in_use.cas_acq_rel(in_use, in_use | 1ull << index_)) break;
    }
    lane.header().parent_intent[index_].store_release(parent.bits);
  }
  ~ParentIntent() {
    if (!used_) return;
    lane_.header().parent_intent[index_].store_release(0);
    lane_.intents_in_use.fetch_add_seq_cst(~(1ull << index_) + 1);
  }
  ParentIntent(const ParentIntent&) = delete;
  ParentIntent& operator=(const ParentIntent&) = delete;

 private:
  LaneContext& lane_;
  bool used_;
  uint32_t index_ = 0;
};

PageRef parent_of(const ControlRegion& region, uint32_t page) {
  const PageRef parent = PageRef::from_bits(region.block(page).parent.load_relaxed());  // under the caller's hold
  return region.is_page(parent) ? parent : PageRef::none();
}

}  // namespace

// Any client may write the epoch, and marud raises it for ever. Lane 0 of generation 0 means "no lane", so no epoch gives it.
// Two epochs that give the same generation are far apart.
static uint32_t daemon_generation(uint64_t epoch) {
  const auto generation = uint32_t(epoch & 0xFFFF);
  return generation != 0 ? generation : 0x8000;
}

LaneId daemon_lane(const ControlRegion& region, uint32_t host) {
  // An older epoch only delays the new marud.
  return {region.daemon_lane_of(host), daemon_generation(region.host(host).epoch.load_relaxed())};
}

// -- finding ----------------------------------------------------------------------------------------------------------

Found find_and_pin(LaneContext& lane, const Digest& digest, uint64_t now_ms) {
  const ControlRegion& region = *lane.region;
  registry_prefetch_locations(region, digest);  // the second line of the bucket arrives with the first
  Found absent;
  for (uint32_t tries = 0; tries < limits::kBucketReadRetries; ++tries) {
    const Candidates candidates = registry_find(region, digest);
    // The block line is on its way while a pin slot is looked for.
    if (candidates.count != 0) __builtin_prefetch(&region.block(candidates.ref(0).page()));
    bool lost_one = false;
    for (uint32_t i = 0; i < candidates.count; ++i) {
      const PageRef ref = candidates.ref(i);
      const Pin pin = lane.pins->pin(ref);
      if (pin.status == PinStatus::kFull) return {FindStatus::kPinsFull, ref, 0};
      if (pin.status == PinStatus::kGone) {
        lost_one = true;
        continue;
      }
      if (block_digest(region, ref.page()) == digest) {
        const uint64_t expires_ms = region.block(ref.page()).expires_ms.load_relaxed();  // under the pin
        if (expires_ms == 0 || now_ms == 0 || now_ms < expires_ms) return {FindStatus::kFound, ref, pin.slot};
        absent.ref = ref;
      }
      lane.pins->unpin(pin.slot, ref);
    }
    // A candidate that was lost may have been stored again under another page since. The same loss twice means an entry whose
    // page is retired and not yet removed.
    if (!lost_one || tries > 1) return absent;
  }
  return absent;
}

PageRef find_unpinned(const ControlRegion& region, const Digest& digest) {
  const Candidates candidates = registry_find(region, digest);
  for (uint32_t i = 0; i < candidates.count; ++i) {
    const PageRef ref = candidates.ref(i);
    AtomicU64& word = region.block(ref.page()).word;
    if (!PageWord{word.load_acquire()}.is_findable(ref.generation())) continue;  // [pairs page.word]
    const bool same = block_digest(region, ref.page()) == digest;
    if (same && PageWord{word.load_acquire()}.is_findable(ref.generation())) return ref;  // [pairs page.word]
  }
  return PageRef::none();
}

bool read_key(const ControlRegion& region, PageRef ref, KeyBytes* ret_key) {
  if (!region.is_page(ref)) return false;
  AtomicU64& word = region.block(ref.page()).word;
  if (PageWord{word.load_acquire()}.generation() != ref.generation()) return false;  // [pairs page.word]
  const DetailLine& detail = region.detail(ref.page());
  const uint64_t key = detail.key.load_acquire();  // before the page word is read again: [pairs page.word]
  const uint32_t size = uint32_t(key >> 32) & 0xFF'FFFF;
  const uint64_t extent = uint32_t(key);
  if (size == 0 || size > limits::kKeyBytesMax) return false;
  if (extent == 0) {
    if (size > region.parameters().key_inline_bytes) return false;
    read_words(region.key_cell(ref.page()), ret_key->data, size);
  } else {
    if (extent - 1 >= region.parameters().key_extents) return false;
    read_words(region.key_extent(extent - 1), ret_key->data, size);
    if (region.key_extent_owner(extent - 1).load_acquire() != ref.bits) return false;  // [pairs extent.owner]
  }
  ret_key->kind = uint32_t(key >> 56);
  ret_key->size = size;
  ret_key->tenant = detail.tenant.load_acquire();                         // as above: [pairs page.word]
  return PageWord{word.load_acquire()}.generation() == ref.generation();  // [pairs page.word]
}

bool read_metadata(const ControlRegion& region, PageRef ref, const MetadataPlace& place,
                   std::span<const AtomicU64> words, std::span<std::byte> ret_bytes) {
  if (!region.is_page(ref) || ret_bytes.size() > place.bytes || ret_bytes.size() > words.size_bytes()) return false;
  const AtomicU64& word = region.block(ref.page()).word;
  const auto is_block = [&](PageWord found) {
    return found.is_findable(ref.generation()) || found.is(PageState::kRetired, ref.generation());
  };
  if (!is_block(PageWord{word.load_acquire()})) return false;  // [pairs page.word]
  if (metadata_of(region, ref.page()) != place) return false;
  read_words(words, ret_bytes.data(), ret_bytes.size());
  return is_block(PageWord{word.load_acquire()});  // [pairs page.word]
}

// -- parents ----------------------------------------------------------------------------------------------------------

bool add_child(const ControlRegion& region, PageRef parent) {
  AtomicU64& word = region.block(parent.page()).word;
  PageWord found{word.load_acquire()};  // [pairs page.word]
  for (uint32_t tries = 0; tries < limits::kPageWordRetries; ++tries) {
    if (!found.is_findable(parent.generation())) return false;
    const uint32_t children = found.is(PageState::kReady) ? found.children() : 0;
    if (children == limits::kChildCountMax) return false;
    // Also from RETIRING: the evictor's next step fails. A recount that is under way loses its flag and its CAS.
    if (word.cas_seq_cst(found.bits, PageWord::ready(parent.generation(), children + 1).bits)) return true;
  }
  return false;
}

void drop_child(const ControlRegion& region, PageRef parent) {
  if (!region.is_page(parent)) return;
  AtomicU64& word = region.block(parent.page()).word;
  PageWord found{word.load_acquire()};  // [pairs page.word]
  for (uint32_t tries = 0; tries < limits::kPageWordRetries; ++tries) {
    if (!found.is(PageState::kReady, parent.generation()) || found.children() == 0) return;
    if (word.cas_seq_cst(found.bits, PageWord::ready(parent.generation(), found.children() - 1).bits)) return;
  }
}

bool fits_checksum(const ControlRegion& region, uint32_t page, const ReadBlock& read) {
  const uint64_t expected = region.detail(page).checksum.load_relaxed();  // under the caller's pin
  if (!region.has_bound_checksums()) return expected == 0 || expected == read.payload_checksum;
  const uint64_t parent = region.block(page).parent.load_relaxed();  // as above
  return expected == bound_checksum(read.payload_checksum, {read.digest, read.bytes, parent, read.metadata_checksum});
}

// -- storing ----------------------------------------------------------------------------------------------------------

namespace {

// Undoes a publication that did not become visible: the run is RESERVED again and its parent uncounted. False: the lane no
// longer owns the run. Another process has retired it, and frees it; or it has children, since a caller knew the block's name
// too early, and goes after them.
bool withdraw(LaneContext& lane, PageRef own, PageRef parent) {
  const ControlRegion& region = *lane.region;
  AtomicU64& word = region.block(own.page()).word;
  PageWord found{word.load_acquire()};  // [pairs page.word]
  const uint64_t retired = PageWord::retired(own.generation(), lane.id).bits;
  // READY, or RETIRING by an evictor that met it. Ends: each failure means that another process's step on the word succeeded.
  do {
    const bool has_children = found.is(PageState::kReady) && found.children() != 0;
    if (!found.is_findable(own.generation()) || has_children) return false;
  } while (!word.cas_seq_cst(found.bits, retired));
  const ParentIntent intent(lane, parent);
  uint64_t expected = retired;
  if (!word.cas_acq_rel(expected, PageWord::reserved(own.generation(), lane.id).bits)) return false;
  flush(region, region.block(own.page()));  // or it might be READY again, and uncounted
  if (!parent.is_none()) drop_child(region, parent);
  return true;
}

}  // namespace

void prefetch_publish(const ControlRegion& region, PageRef own, const Digest& digest) {
  registry_prefetch(region, digest);
  registry_prefetch_locations(region, digest);
  if (!region.is_page(own)) return;
  __builtin_prefetch(&region.block(own.page()), 1);
  __builtin_prefetch(&region.detail(own.page()), 1);
  __builtin_prefetch(region.key_cell(own.page()).data(), 1);
}

PublishResult publish(LaneContext& lane, PageRef own, const NewBlock& block) {
  const ControlRegion& region = *lane.region;
  if (!region.is_page(own)) return {};
  BlockLine& line = region.block(own.page());
  uint64_t word = PageWord::reserved(own.generation(), lane.id).bits;
  if (line.word.load_acquire() != word) return {};  // [pairs page.word]

  // Everything that will be written is fetched at once, not one miss after the other.
  registry_prefetch_locations(region, block.digest);
  __builtin_prefetch(&region.detail(own.page()), 1);
  __builtin_prefetch(region.key_cell(own.page()).data(), 1);
  if (region.is_page(block.parent)) __builtin_prefetch(&region.block(block.parent.page()), 1);

  // (1) Usually a key that is there already is seen here, before anything was touched.
  if (const PageRef there = find_unpinned(region, block.digest); !there.is_none()) {
    const uint64_t expires_ms = region.block(there.page()).expires_ms.load_relaxed();  // decided again by the registry
    if (expires_ms == 0 || block.now_ms < expires_ms) return {PublishStatus::kDuplicate, there};
  }

  // (2) Everything about the block, while the page is ours alone.
  uint32_t depth = 0;
  uint64_t chain = 0, expires_ms = block.expires_ms;
  if (!block.parent.is_none()) {
    if (!region.is_page(block.parent) || block.parent == own) return {PublishStatus::kNoParent, {}};
    const BlockLine& parent = region.block(block.parent.page());
    if (!PageWord{parent.word.load_acquire()}.is_findable(block.parent.generation()))  // [pairs page.word]
      return {PublishStatus::kNoParent, {}};
    // These belong to the parent if the CAS of step (4) finds the same generation.
    depth = uint32_t(parent.shape.load_relaxed() >> 32) + 1;
    chain = parent.chain.load_relaxed();
    const uint64_t parent_expires_ms = parent.expires_ms.load_relaxed();
    // An expired parent would make its child expire before it is stored.
    if (parent_expires_ms != 0 && block.now_ms >= parent_expires_ms) return {PublishStatus::kNoParent, {}};
    if (parent_expires_ms != 0 && (expires_ms == 0 || parent_expires_ms < expires_ms)) expires_ms = parent_expires_ms;
    if (depth > limits::kChainDepthMax) return {PublishStatus::kNoParent, {}};
  }
  if (!write_key(region, own, block)) return {PublishStatus::kKeySpaceFull, {}};
  DetailLine& detail = region.detail(own.page());
  detail.tenant.store_relaxed(block.tenant);  // all published by the page word
  detail.kind.store_relaxed(uint64_t(block.content_type) << 56 | block.priority);
  const BlockClaims claims{block.digest, block.length, block.parent.bits, block.metadata_checksum};
  const bool is_bound = region.has_bound_checksums() && block.payload_checksum != 0;
  detail.checksum.store_relaxed(is_bound ? bound_checksum(block.payload_checksum, claims) : block.payload_checksum);
  detail.stored_ms.store_relaxed(block.now_ms);
  detail.owner.store_relaxed(lane.id.low());
  line.digest_lo.store_relaxed(block.digest.lo);
  line.digest_hi.store_relaxed(block.digest.hi);
  line.length.store_relaxed(length_word(block.length, block.metadata_bytes));
  line.parent.store_relaxed(block.parent.bits);
  line.shape.store_relaxed(shape_word(depth, region.run_pages(own.page())));
  line.chain.store_relaxed(chain + chain_term(region.secret(), unpermute(region.secret(), block.digest), depth));
  line.expires_ms.store_relaxed(expires_ms);
  flush(region, detail);
  // The words of the tails; the line of the head is written back when it says READY.
  flush(region, &region.block(own.page()) + 1, (region.run_pages(own.page()) - 1) * sizeof(BlockLine));

  // The tenant's account, before the word says that there is a block.
  StoreCharge charge(region, lane.id.lane, block.tenant, region.run_pages(own.page()) * region.page_bytes());
  if (charge.is_refused()) return {PublishStatus::kNeedsCredit, {}};

  // (3) The pin that keeps it between visible and committed, then SEALED: now the word says which parent it may count on.
  const Pin pin = lane.pins->pin_own(own);
  if (pin.status != PinStatus::kPinned) return {PublishStatus::kPinsFull, {}};
  uint64_t sealed = PageWord::sealed(own.generation(), lane.id).bits;
  if (!line.word.cas_acq_rel(word, sealed)) {
    lane.pins->unpin(pin.slot, own);
    return {};
  }

  // (4) The parent counts its child before the child is visible.
  if (!block.parent.is_none() && !add_child(region, block.parent)) {
    line.word.cas_acq_rel(sealed, PageWord::reserved(own.generation(), lane.id).bits);
    lane.pins->unpin(pin.slot, own);
    return {PublishStatus::kNoParent, {}};
  }

  if (!block.parent.is_none()) flush(region, region.block(block.parent.page()));

  // (5) READY: complete, and known to no other process yet.
  line.word.cas_seq_cst(sealed, PageWord::ready(own.generation(), 0).bits);
  flush(region, line);

  // (6) One CAS of the home bucket makes it visible.
  const InsertResult inserted = registry_insert(region, lane.id, *lane.pins, block.digest, own, block.now_ms);
  PublishResult result;
  switch (inserted.status) {
    case InsertStatus::kInserted:
      // (7) A `clear` may have retired it before its entry existed; then the entry must not outlive this pin.
      if (!PageWord{line.word.load_seq_cst()}.is_findable(own.generation()))  // [pairs page.word]
        registry_remove(region, lane.id, block.digest, own);
      lane.pins->unpin(pin.slot, own);
      charge.keep();
      return {PublishStatus::kStored, own};
    case InsertStatus::kDuplicate: result = {PublishStatus::kDuplicate, inserted.winner}; break;
    case InsertStatus::kFull: result = {PublishStatus::kRegistryFull, {}}; break;
    case InsertStatus::kPinsFull: result = {PublishStatus::kPinsFull, {}}; break;
    case InsertStatus::kExpiredInTheWay: result = {PublishStatus::kExpiredInTheWay, inserted.winner}; break;
  }
  if (!withdraw(lane, own, block.parent)) {
    // A process that took it away between (5) and (6) frees it. For the caller it was stored, and is gone already: the buffer
    // cannot be the caller's any more.
    charge.keep();
    result = {PublishStatus::kStored, own};
  }
  lane.pins->unpin(pin.slot, own);
  return result;
}

// -- removing ---------------------------------------------------------------------------------------------------------

RetireStatus retire_ref(LaneContext& lane, PageRef ref) {
  const ControlRegion& region = *lane.region;
  if (!region.is_page(ref)) return RetireStatus::kAbsent;
  AtomicU64& word = region.block(ref.page()).word;
  PageWord found{word.load_acquire()};  // [pairs page.word]
  for (uint32_t tries = 0; tries < limits::kPageWordRetries; ++tries) {
    if (!found.is_findable(ref.generation())) return RetireStatus::kAbsent;
    if (found.is(PageState::kReady) && found.children() != 0) return RetireStatus::kHasChildren;
    const Digest digest = block_digest(region, ref.page());  // of this life if the CAS succeeds
    __builtin_prefetch(&region.detail(ref.page()));          // the process that frees it asks for its tenant
    if (!word.cas_seq_cst(found.bits, PageWord::retired(ref.generation(), lane.id).bits)) continue;
    flush(region, region.block(ref.page()));  // or it might be READY again, and in no bucket
    registry_remove(region, lane.id, digest, ref);
    return RetireStatus::kRetired;
  }
  return RetireStatus::kAbsent;
}

RetireStatus retire(LaneContext& lane, const Digest& digest, PageRef* ret_ref) {
  // A second look: between finding and retiring, the block may have been replaced by another under the same key.
  for (uint32_t tries = 0; tries < limits::kBucketReadRetries; ++tries) {
    const PageRef ref = find_unpinned(*lane.region, digest);
    if (ref.is_none()) return RetireStatus::kAbsent;
    const RetireStatus status = retire_ref(lane, ref);
    if (status == RetireStatus::kAbsent) continue;
    *ret_ref = ref;
    return status;
  }
  return RetireStatus::kAbsent;
}

FinishStatus free_retired(LaneContext& lane, PageRef ref, uint32_t* ret_pages) {
  const ControlRegion& region = *lane.region;
  AtomicU64& word = region.block(ref.page()).word;
  uint64_t mine = PageWord::retired(ref.generation(), lane.id).bits;
  if (word.load_acquire() != mine) return FinishStatus::kNotMine;  // [pairs page.word]
  const PageRef parent = parent_of(region, ref.page());
  const ParentIntent intent(lane, parent);
  FreeReturn tenant(region, lane.id.lane, lane.returns, ref.page());
  const uint32_t pages = free_tails(region, ref.page());
  if (!word.cas_seq_cst(mine, PageWord::free(ref.generation() + 1).bits)) return FinishStatus::kNotMine;
  flush(region, region.block(ref.page()));  // or it might be RETIRED again, and be uncounted twice
  tenant.freed();
  // Only the process that freed the child uncounts it, and only after it is free: until then it holds its ancestors.
  if (!parent.is_none()) drop_child(region, parent);
  if (ret_pages) *ret_pages = pages + 1;
  return FinishStatus::kFreed;
}

FinishStatus finish_retired(LaneContext& lane, PageRef ref, const LaneSet& lanes, uint32_t* ret_pages) {
  const ControlRegion& region = *lane.region;
  const uint64_t mine = PageWord::retired(ref.generation(), lane.id).bits;
  if (region.block(ref.page()).word.load_seq_cst() != mine) return FinishStatus::kNotMine;  // [pairs page.retiring]
  if (is_pinned(region, with_other_hosts(region, lanes), ref.page()) || !lane.may_believe())
    return FinishStatus::kPinned;
  // Once more, now that no publisher of this page can be between its header CAS and its last look (it would have a pin).
  registry_remove(region, lane.id, block_digest(region, ref.page()), ref);
  return free_retired(lane, ref, ret_pages);
}

FinishStatus finish_deleted(LaneContext& lane, PageRef ref, const LaneSet& lanes, uint64_t use_tick, uint64_t now_tick,
                            uint32_t* ret_pages) {
  const ControlRegion& region = *lane.region;
  const PageRef parent = parent_of(region, ref.page());  // RETIRED: ours alone
  if (parent.is_none()) return finish_retired(lane, ref, lanes, ret_pages);
  // marud's knowledge of the block's uses until now, or else its time of storing: hints, of which any value does.
  const PolicyEntry& known = region.policy(ref.page());
  const uint64_t stored_ms = region.detail(ref.page()).stored_ms.load_relaxed(), zero = region.header().created_unix_ms;
  uint64_t last = known.generation.load_relaxed() == ref.generation() + 1 ? known.last_use_ms.load_relaxed()
                                                                          : stored_ms - std::min(stored_ms, zero);
  last = std::min(std::max(last, use_tick), now_tick);
  // Before the page is FREE: a process that finds the parent without children finds this in the ring, even after a death.
  // [pairs page.word]
  leave_touch(region.lane(lane.id.lane), parent.page(), last);
  return finish_retired(lane, ref, lanes, ret_pages);
}

bool hand_over_retired(const ControlRegion& region, PageRef ref, LaneId from, LaneId to) {
  uint64_t expected = PageWord::retired(ref.generation(), from).bits;
  if (!region.block(ref.page()).word.cas_acq_rel(expected, PageWord::retired(ref.generation(), to).bits)) return false;
  flush(region, region.block(ref.page()));
  return true;
}

}  // namespace maru::shm
