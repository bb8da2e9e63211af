#include "libmaru/shm/recovery/repair.h"

#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/page_word.h"

namespace maru::shm {
namespace {

using namespace maru::format;

constexpr uint32_t kSlots = uint32_t(limits::kBucketSlots);
constexpr uint64_t kOverflowBits = kValidMask & ~((1ull << kSlots) - 1);

// All accesses are relaxed: no other process works in the pool.
uint64_t seen(const AtomicU64& word) { return word.load_relaxed(); }
void put(const ControlRegion& region, AtomicU64& word, uint64_t bits) {
  word.store_relaxed(bits);  // as above
  flush(region, word);
}

PageWord word_of(const ControlRegion& region, uint32_t page) { return {seen(region.block(page).word)}; }

bool is_block(PageWord word) {
  return word.is(PageState::kReady) || word.is(PageState::kRetiring) || word.is(PageState::kRetired);
}

void free_page(const ControlRegion& region, uint32_t page) {
  const PageWord found = word_of(region, page);
  const RegionWord owner{seen(region.region(region.region_of(page)).word)};
  PageWord left = owner.state() == RegionState::kUnused ? PageWord::out(found.generation() + 1)
                                                        : PageWord::free(found.generation() + 1);
  if (found.is(PageState::kPoisoned)) left = PageWord::poisoned(found.generation());
  put(region, region.block(page).word, left.bits);
}

Repair drop_block(const ControlRegion& region, uint32_t page, RepairSink& sink) {
  const PageWord found = word_of(region, page);
  if (!is_block(found) && !found.is(PageState::kSealed)) return Repair::kNone;  // it has gone already
  if (is_block(found)) sink.block_goes(PageRef::of(page, found.generation()));
  free_page(region, page);
  return Repair::kBlock;
}

Repair repair_low_bits(const ControlRegion& region, uint32_t page, RepairSink& sink) {
  const PageWord found = word_of(region, page);
  // Its children are counted again when the next audit says that there are some.
  if (found.is(PageState::kReady) || found.is(PageState::kRetiring)) {
    put(region, region.block(page).word, PageWord::ready(found.generation(), 0).bits);
    return Repair::kCount;
  }
  if (is_block(found)) return drop_block(region, page, sink);
  free_page(region, page);
  return Repair::kPage;
}

Repair count_again(const ControlRegion& region, uint32_t page, RepairSink& sink) {
  const PageWord found = word_of(region, page);
  if (!found.is(PageState::kReady)) return Repair::kNone;
  // A recount leaves a count of 0 as it is.
  if (found.children() == 0) put(region, region.block(page).word, PageWord::ready(found.generation(), 1).bits);
  sink.count_is_wrong(PageRef::of(page, found.generation()));
  return Repair::kCount;
}

// A parent that is there and counts no child is counted again; without its parent a block goes.
Repair repair_parent(const ControlRegion& region, uint32_t page, RepairSink& sink) {
  const PageRef parent = PageRef::from_bits(seen(region.block(page).parent));
  const bool is_there = region.is_page(parent) && parent.page() != page &&
                        word_of(region, parent.page()).is(PageState::kReady, parent.generation());
  return is_there ? count_again(region, parent.page(), sink) : drop_block(region, page, sink);
}

// -- the registry -----------------------------------------------------------------------------------------------------

Bucket* overflow_of(const ControlRegion& region, const Bucket& home) {
  const uint64_t link = uint32_t(seen(home.locations.overflow));
  return link == 0 || link > region.overflow_buckets() ? nullptr : &region.overflow(link - 1);
}

void take_bits_off(const ControlRegion& region, Bucket& home, uint64_t bits) {
  put(region, home.tags.header, (seen(home.tags.header) + kHeaderVersionOne) & ~bits);
}

Repair empty_slot(const ControlRegion& region, uint64_t index, uint32_t slot, Repair what) {
  Bucket& home = region.bucket(index);
  if (what == Repair::kEntry) take_bits_off(region, home, 1ull << slot);
  Bucket* const bucket = slot < kSlots ? &home : overflow_of(region, home);
  if (bucket != nullptr) put(region, bucket->locations.location[slot % kSlots], 0);
  return what;
}

void unlink_overflow(const ControlRegion& region, Bucket& home) {
  const uint64_t version = seen(home.locations.overflow) >> 32;
  put(region, home.locations.overflow, (version + 1) << 32);
}

Repair repair_bucket(const ControlRegion& region, const Finding& finding) {
  Bucket& home = region.bucket(finding.index);
  switch (finding.invariant) {
    case Invariant::kBucketBits: take_bits_off(region, home, kOverflowBits); return Repair::kEntry;
    case Invariant::kBucketOverflow:
      take_bits_off(region, home, kOverflowBits | kOverflowFlag);
      unlink_overflow(region, home);
      return Repair::kEntry;
    case Invariant::kBucketLink: unlink_overflow(region, home); return Repair::kBucket;
    case Invariant::kSlotClaim: return empty_slot(region, finding.index, finding.slot, Repair::kClaim);
    default: return empty_slot(region, finding.index, finding.slot, Repair::kEntry);
  }
}

Repair repair_overflow_bucket(const ControlRegion& region, const Finding& finding) {
  Bucket& bucket = region.overflow(finding.index);
  const uint64_t owner = seen(bucket.tags.header);
  switch (finding.invariant) {
    case Invariant::kOverflowLane: release_overflow_bucket(region, finding.index, owner); return Repair::kBucket;
    case Invariant::kOverflowClaim:
      put(region, bucket.locations.location[finding.slot % kSlots], 0);
      return Repair::kClaim;
    default: put(region, bucket.tags.header, 0); return Repair::kBucket;
  }
}

// -- lanes ------------------------------------------------------------------------------------------------------------

Repair empty_lane(const ControlRegion& region, uint32_t lane, uint32_t marud_lane) {
  if (lane == marud_lane) {
    clear_pins(region, lane);
    for (AtomicU64& intent : region.lane(lane).header->parent_intent) intent.store_relaxed(0);  // as above
    put(region, region.identity(lane).state, seen(region.identity(lane).state) & ~0xFFFF'FFFF'FF00ull);
  } else {
    clear_host_lane(region, lane);
  }
  for (uint32_t i = 0; i < region.account_slots(); ++i) {
    LaneAccount& account = region.account(lane, i);
    for (AtomicU64* word : {&account.tenant, &account.in_flight, &account.charged, &account.returned})
      word->store_relaxed(0);  // as above; marud counts the tenants' bytes again
    flush(region, account);
  }
  return Repair::kLane;
}

Repair repair_bitmap(const ControlRegion& region) {
  for (uint32_t lane = region.lanes(); lane < limits::kLanesMax; ++lane) set_lane_bit(region, lane, false);
  return Repair::kLane;
}

Repair repair_tenant(const ControlRegion& region, const Finding& finding) {
  TenantRecord& record = region.tenant(uint32_t(finding.index));
  put(region, finding.invariant == Invariant::kTenantName ? record.name_bytes : record.id, 0);
  return Repair::kTenant;
}

}  // namespace

const char* repair_name(Repair repair) {
  switch (repair) {
    case Repair::kNone: return "without a repair";
    case Repair::kBlock: return "blocks dropped";
    case Repair::kPage: return "pages freed";
    case Repair::kCount: return "parents counted again";
    case Repair::kEntry: return "registry entries dropped";
    case Repair::kClaim: return "claims dropped";
    case Repair::kBucket: return "overflow buckets freed";
    case Repair::kLane: return "lanes emptied";
    case Repair::kCell: return "key cells freed";
    case Repair::kTenant: return "tenant records emptied";
  }
  return "unknown";
}

Repair repair_of(Invariant invariant) {
  switch (invariant) {
    case Invariant::kPageState:
    case Invariant::kPageLow:
    case Invariant::kPageLane:
    case Invariant::kPageSealed:
    case Invariant::kTail: return Repair::kPage;
    case Invariant::kRunLength:
    case Invariant::kRunTails:
    case Invariant::kBlockLength:
    case Invariant::kBlockMetadata:
    case Invariant::kBlockDetail:
    case Invariant::kBlockKey:
    case Invariant::kBlockDigest:
    case Invariant::kBlockParent:
    case Invariant::kBlockChain:
    case Invariant::kBlockExpiry:
    case Invariant::kBlockRegistered: return Repair::kBlock;
    case Invariant::kChildrenAtLeast:
    case Invariant::kChildrenExact: return Repair::kCount;
    case Invariant::kBucketBits:
    case Invariant::kBucketOverflow:
    case Invariant::kSlotLocation:
    case Invariant::kSlotDigest:
    case Invariant::kBucketDuplicate: return Repair::kEntry;
    case Invariant::kSlotClaim:
    case Invariant::kOverflowClaim: return Repair::kClaim;
    case Invariant::kBucketLink:
    case Invariant::kOverflowOwner:
    case Invariant::kOverflowLinked:
    case Invariant::kOverflowLane: return Repair::kBucket;
    case Invariant::kRegionWord:
    case Invariant::kRegionLane:
    case Invariant::kRegionUnused:
    case Invariant::kQueueLinks:
    case Invariant::kQueueEnds: return Repair::kNone;
    case Invariant::kLaneBitmap:
    case Invariant::kLaneIdentity:
    case Invariant::kLaneInUse:
    case Invariant::kLaneLive:
    case Invariant::kLaneUnused:
    case Invariant::kPinPage:
    case Invariant::kPinSet:
    case Invariant::kPinHolds:
    case Invariant::kPinOverflow:
    case Invariant::kLaneIntent:
    case Invariant::kLaneIntentDone:
    case Invariant::kLaneAccounts:
    case Invariant::kLaneAccountsDone: return Repair::kLane;
    case Invariant::kExtentOwner: return Repair::kCell;
    case Invariant::kTenantName:
    case Invariant::kTenantPlace: return Repair::kTenant;
  }
  return Repair::kNone;
}

Repair repair(const ControlRegion& region, uint32_t marud_lane, const Finding& finding, RepairSink& sink) {
  const auto index = uint32_t(finding.index);
  switch (finding.invariant) {
    case Invariant::kPageLow: return repair_low_bits(region, index, sink);
    case Invariant::kBlockParent: return repair_parent(region, index, sink);
    case Invariant::kLaneBitmap: return repair_bitmap(region);
    default: break;
  }
  switch (repair_of(finding.invariant)) {
    case Repair::kNone: return Repair::kNone;
    case Repair::kBlock: return drop_block(region, index, sink);
    case Repair::kPage:
      if (is_block(word_of(region, index))) return drop_block(region, index, sink);
      free_page(region, index);
      return Repair::kPage;
    case Repair::kCount: return count_again(region, index, sink);
    case Repair::kEntry: return repair_bucket(region, finding);
    case Repair::kClaim:
    case Repair::kBucket:
      return invariant_info(finding.invariant).place == AuditPlace::kBucket ? repair_bucket(region, finding)
                                                                            : repair_overflow_bucket(region, finding);
    case Repair::kLane: return empty_lane(region, index, marud_lane);
    case Repair::kCell: put(region, region.key_extent_owner(finding.index), 0); return Repair::kCell;
    case Repair::kTenant: return repair_tenant(region, finding);
  }
  return Repair::kNone;
}

}  // namespace maru::shm
