// Each corruption is planted alone and must be found under its own name and no other. Then it is repaired on a copy: the audit
// finds nothing any more, and the rest of the pool is there.
#include "libmaru/shm/audit/audit.h"
#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/reclaim.h"
#include "libmaru/shm/recovery/repair.h"
#include "small_pool.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace maru::shm {
namespace {

// A pool with a root, two children under it, a run of three pages, a long key, and everything in lists.
class AuditTest : public testing::Test {
 protected:
  AuditTest() {
    root_ = pool_.store(1, "root");
    child_ = pool_.store(1, "child", root_);
    other_ = pool_.store(2, "other", root_);
    const PageRef own = pool_.take(1, 3);
    run_ = publish(pool_.lane(1), own, pool_.block("a run")).block;
    long_key_ = std::string(500, 'k');
    long_ = publish(pool_.lane(1), pool_.take(1), pool_.block(long_key_)).block;
    const PageRef queue[] = {root_, child_, other_, run_, long_};
    for (size_t i = 0; i < std::size(queue); ++i) {
      format::PolicyEntry& entry = pool_.region.policy(queue[i].page());
      entry.list.store_relaxed(1);
      entry.older.store_relaxed(i == 0 ? 0 : queue[i - 1].page() + 1);
      entry.newer.store_relaxed(i + 1 == std::size(queue) ? 0 : queue[i + 1].page() + 1);
    }
  }

  format::BlockLine& line(PageRef ref) { return pool_.region.block(ref.page()); }
  format::DetailLine& detail(PageRef ref) { return pool_.region.detail(ref.page()); }
  static void add(AtomicU64& word, uint64_t by) { word.store_relaxed(word.load_relaxed() + by); }
  static void flip(AtomicU64& word, uint64_t bits) { word.store_relaxed(word.load_relaxed() ^ bits); }
  // Where the registry names a block.
  struct Place {
    uint64_t bucket;
    uint32_t slot;
  };
  Place place(PageRef ref) {
    const uint64_t index = home_bucket(pool_.region, block_digest(pool_.region, ref.page()));
    for (uint32_t slot = 0; slot < 7; ++slot)
      if (pool_.region.bucket(index).locations.location[slot].load_relaxed() == ref.bits) return {index, slot};
    ADD_FAILURE() << "not registered at home";
    return {0, 0};
  }
  // A bucket without any entry.
  uint64_t empty_bucket() {
    for (uint64_t i = 0; i < pool_.region.buckets(); ++i)
      if (pool_.region.bucket(i).tags.header.load_relaxed() == 0) return i;
    ADD_FAILURE() << "no empty bucket";
    return 0;
  }
  // "always" invariants must be seen by both audits, the others only at rest.
  void expect(const char* name) {
    EXPECT_EQ(pool_.audit(AuditMode::kExact), Names{name});
    const auto when = pool_.findings.empty() ? AuditClass::kAlways : invariant_info(pool_.findings[0].invariant).when;
    EXPECT_EQ(pool_.audit(AuditMode::kLive), when == AuditClass::kAlways ? Names{name} : Names{});
    EXPECT_EQ(pool_.audit(AuditMode::kLiveOwner), when != AuditClass::kAtRest ? Names{name} : Names{});
    expect_repair(name);
  }
  struct Repairs final : RepairSink {
    std::vector<PageRef> gone;
    std::vector<Recount> recounts;
    void block_goes(PageRef ref) override { gone.push_back(ref); }
    void count_is_wrong(PageRef parent) override { recounts.push_back({.parent = parent}); }
    void count_again(const ControlRegion& region, const LaneSet& live) {
      std::sort(recounts.begin(), recounts.end(),
                [](const Recount& a, const Recount& b) { return a.parent.bits < b.parent.bits; });
      const auto end = std::unique(recounts.begin(), recounts.end(),
                                   [](const Recount& a, const Recount& b) { return a.parent == b.parent; });
      recounts.erase(end, recounts.end());
      struct Nobody final : DeadLanes {
        bool is_dead(LaneId) const override { return false; }
      } nobody;
      recount_begin(region, recounts);
      recount_pages(region, recounts, nobody, 0, uint32_t(region.pages()));
      recount_commit(region, recounts, live);
      recounts.clear();
    }
  };
  size_t blocks_there() const {
    size_t count = 0;
    for (const PageRef ref : {root_, child_, other_, run_, long_})
      count +=
          pool_.word(ref.page()).is(PageState::kReady, ref.generation()) && is_registered(pool_.region, ref.page());
    return count;
  }
  void expect_repair(const std::string& name) {
    pool_.audit();
    const bool has_none = !pool_.findings.empty() && repair_of(pool_.findings[0].invariant) == Repair::kNone;
    EXPECT_EQ(has_none, name.starts_with("queue.") || name.starts_with("region.")) << name;
    if (has_none) return;
    const std::vector<std::byte> damaged(pool_.memory().begin(), pool_.memory().end());
    const size_t before = blocks_there();
    Repairs repairs;
    for (int round = 0; round < 8 && !pool_.audit().empty(); ++round) {
      const std::vector<Finding> found = pool_.findings;
      for (const Finding& finding : found) repair(pool_.region, 0, finding, repairs);
      repairs.count_again(pool_.region, pool_.lanes);
    }
    EXPECT_EQ(pool_.audit(), Names{}) << name;
    // The root takes its two children along.
    EXPECT_LE(before, blocks_there() + 3) << name;
    EXPECT_GE(blocks_there(), 1u) << name;
    std::copy(damaged.begin(), damaged.end(), pool_.memory().begin());
  }

  SmallPool pool_;
  PageRef root_, child_, other_, run_, long_;
  std::string long_key_;
};

TEST_F(AuditTest, FindsNothingInAGoodPool) {
  EXPECT_EQ(pool_.audit(), Names{});
  for (uint32_t page = 0; page < pool_.region.pages(); ++page) pool_.region.policy(page).list.store_relaxed(0);
  for (const PageRef ref : {child_, other_, run_, long_, root_}) {
    EXPECT_TRUE(pool_.remove(1, ref));
    EXPECT_EQ(pool_.audit(), Names{});
  }
}

TEST_F(AuditTest, NamesAreDifferent) {
  Names names;
  for (uint32_t i = 0; i < kInvariantCount; ++i) names.insert(invariant_info(Invariant(i)).name);
  EXPECT_EQ(names.size(), kInvariantCount);
}

TEST_F(AuditTest, PageState) {
  line(PageRef::of(40, 0)).word.store_relaxed(uint64_t{9} << 60);
  expect("page.state");
}

TEST_F(AuditTest, PageLow) {
  pool_.set_word(40, PageWord::of(PageState::kFree, 0, 1));
  expect("page.low");
  pool_.set_word(40, PageWord::of(PageState::kOut, 3, 1));
  expect("page.low");
  pool_.set_word(40, PageWord::reserved(0, {100, 1}));
  expect("page.low");
  pool_.set_word(40, PageWord::free(0));
  const PageWord run = pool_.word(run_.page());
  pool_.set_word(run_.page(), PageWord::ready(run_.generation(), 0, true));
  expect("page.low");
  pool_.set_word(run_.page(), PageWord::retiring(run_.generation(), 100, 1));
  expect("page.low");
  pool_.set_word(run_.page(), run);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, PageLane) {
  pool_.set_word(40, PageWord::reserved(0, {3, 6}));  // an earlier life of the lane
  expect("page.lane");
  pool_.set_word(40, PageWord::reserved(0, {3, 7}));
  EXPECT_EQ(pool_.audit(), Names{});
  pool_.stop_using_lane(3);
  expect("page.lane");
}

TEST_F(AuditTest, PageSealed) {
  pool_.region.block(40).shape.store_relaxed(1);
  pool_.set_word(40, PageWord::sealed(0, {3, 7}));
  expect("page.sealed");
}

TEST_F(AuditTest, Tail) {
  pool_.set_word(40, PageWord::tail(0, 2));  // leads to a FREE page
  expect("run.tail");
  pool_.set_word(40, PageWord::tail(0, 10));  // leads to another region
  expect("run.tail");
  pool_.set_word(40, PageWord::tail(0, 0));
  expect("run.tail");
  pool_.set_word(40, PageWord::free(0));
  pool_.set_word(run_.page() + 3, pool_.word(run_.page() + 3).is(PageState::kFree)
                                      ? PageWord::tail(0, 3)
                                      : pool_.word(run_.page() + 3));  // the long key's page follows the run
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, TailBeyondItsRun) {
  add(line(run_).shape, uint64_t(-1));
  expect("run.tail");
}

TEST_F(AuditTest, RunLength) {
  line(long_).shape.store_relaxed(0);
  expect("run.length");
  line(long_).shape.store_relaxed(17);
  expect("run.length");
}

TEST_F(AuditTest, RunTails) {
  pool_.set_word(run_.page() + 2, PageWord::free(1));
  expect("run.tails");
}

TEST_F(AuditTest, BlockLength) {
  line(run_).length.store_relaxed(3 * 4096 + 1);
  expect("block.length");
  line(run_).length.store_relaxed(3 * 4096);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, BlockDetail) {
  flip(detail(root_).kind, uint64_t{1} << 40);
  expect("block.detail");
  flip(detail(root_).kind, uint64_t{1} << 40);
  detail(root_).owner.store_relaxed(LaneId{100, 1}.low());
  expect("block.detail");
}

TEST_F(AuditTest, BlockKey) {
  const uint64_t good = detail(root_).key.load_relaxed();
  for (const uint64_t key : {uint64_t{3} << 56 | good, good & ~(uint64_t{0xFFFFFF} << 32), good | uint64_t{65} << 32,
                             uint64_t{1} << 56 | good, good | 5, good | 1}) {
    detail(root_).key.store_relaxed(key);
    expect("block.key");
  }
}

TEST_F(AuditTest, BlockKeyInACellOfAnother) {
  const uint64_t extent = uint32_t(detail(long_).key.load_relaxed()) - 1;
  pool_.region.key_extent_owner(extent).store_relaxed(root_.bits);
  expect("block.key");
}

TEST_F(AuditTest, BlockDigest) {
  flip(pool_.region.key_cell(root_.page())[0], 1);
  expect("block.digest");
  flip(pool_.region.key_cell(root_.page())[0], 1);
  flip(detail(root_).tenant, 1);
  expect("block.digest");
}

TEST_F(AuditTest, BlockParent) {
  // The count of the page named stays right for the auditor, since the page named is in another life.
  const uint64_t good = line(child_).parent.load_relaxed();
  pool_.set_word(root_.page(), PageWord::ready(root_.generation(), 1));
  line(child_).parent.store_relaxed(PageRef::of(root_.page(), root_.generation() + 1).bits);
  expect("block.parent");
  line(child_).parent.store_relaxed(PageRef::of(1000, 0).bits);
  expect("block.parent");
  line(child_).parent.store_relaxed(child_.bits);
  pool_.audit();
  EXPECT_TRUE(pool_.audit().contains("block.parent"));
  line(child_).parent.store_relaxed(7);  // no page, but not zero
  expect("block.parent");
  line(child_).parent.store_relaxed(good);
}

TEST_F(AuditTest, BlockChain) {
  add(line(child_).chain, 1);
  expect("block.chain");
  add(line(child_).chain, uint64_t(-1));
  add(line(child_).shape, uint64_t{1} << 32);
  expect("block.chain");
}

TEST_F(AuditTest, BlockExpiry) {
  line(root_).expires_ms.store_relaxed(1000);
  line(other_).expires_ms.store_relaxed(900);
  expect("block.expiry");
  line(child_).expires_ms.store_relaxed(1001);
  expect("block.expiry");
  line(child_).expires_ms.store_relaxed(1000);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, ChildrenAtLeast) {
  pool_.set_word(root_.page(), PageWord::ready(root_.generation(), 1));
  expect("children.at-least");
}

TEST_F(AuditTest, ChildrenExact) {
  pool_.set_word(root_.page(), PageWord::ready(root_.generation(), 3));
  expect("children.exact");
}

TEST_F(AuditTest, BlockRegistered) {
  const Place at = place(run_);
  auto& bucket = pool_.region.bucket(at.bucket);
  bucket.tags.header.store_relaxed(bucket.tags.header.load_relaxed() & ~(uint64_t{1} << at.slot));
  bucket.locations.location[at.slot].store_relaxed(0);
  expect("block.registered");
  const Pin pin = pool_.client(2).pins.pin(run_);  // somebody holds it: it may be about to be published
  EXPECT_EQ(pool_.audit(), Names{});
  pool_.client(2).pins.unpin(pin.slot, run_);
}

// What a publisher could not withdraw because somebody had stored below it: it goes after its children.
TEST_F(AuditTest, ABlockWithChildrenNeedsNoEntry) {
  const Place at = place(root_);
  auto& bucket = pool_.region.bucket(at.bucket);
  bucket.tags.header.store_relaxed(bucket.tags.header.load_relaxed() & ~(uint64_t{1} << at.slot));
  bucket.locations.location[at.slot].store_relaxed(0);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, BucketBits) {
  flip(pool_.region.bucket(empty_bucket()).tags.header, uint64_t{1} << 9);
  expect("bucket.bits");
}

TEST_F(AuditTest, BucketOverflow) {
  auto& bucket = pool_.region.bucket(empty_bucket());
  bucket.tags.header.store_relaxed(format::kOverflowFlag);
  expect("bucket.overflow");
  bucket.locations.overflow.store_relaxed(1000);
  expect("bucket.overflow");
}

TEST_F(AuditTest, BucketLink) {
  pool_.region.bucket(empty_bucket()).locations.overflow.store_relaxed(1);
  expect("bucket.link");
}

TEST_F(AuditTest, SlotLocation) {
  const Place at = place(run_);
  auto& location = pool_.region.bucket(at.bucket).locations.location[at.slot];
  location.store_relaxed(PageRef::of(run_.page(), run_.generation() + 1).bits);
  EXPECT_EQ(pool_.audit(), (Names{"block.registered", "slot.location"}));
  location.store_relaxed(PageRef::of(40, 0).bits);  // a FREE page
  EXPECT_EQ(pool_.audit(), (Names{"block.registered", "slot.location"}));
  EXPECT_EQ(pool_.audit(AuditMode::kLive), Names{"slot.location"});
  location.store_relaxed(0);
  EXPECT_EQ(pool_.audit(AuditMode::kLive), Names{"slot.location"});
}

TEST_F(AuditTest, SlotDigest) {
  const Place at = place(run_);
  flip(pool_.region.bucket(at.bucket).tags.tag[at.slot], 1);
  expect("slot.digest");
}

TEST_F(AuditTest, SlotDigestOfAnotherBucket) {
  auto& bucket = pool_.region.bucket(empty_bucket());
  bucket.tags.tag[0].store_relaxed(line(run_).digest_lo.load_relaxed());
  bucket.locations.location[0].store_relaxed(run_.bits);
  bucket.tags.header.store_relaxed(1);
  expect("slot.digest");
}

TEST_F(AuditTest, BucketDuplicate) {
  const Place at = place(run_);
  auto& bucket = pool_.region.bucket(at.bucket);
  bucket.tags.tag[6].store_relaxed(line(run_).digest_lo.load_relaxed());
  bucket.locations.location[6].store_relaxed(run_.bits);
  flip(bucket.tags.header, 1u << 6);
  expect("bucket.duplicate");
}

TEST_F(AuditTest, SlotClaim) {
  auto& bucket = pool_.region.bucket(empty_bucket());
  bucket.locations.location[2].store_relaxed(run_.bits);
  expect("slot.claim");
  bucket.locations.location[2].store_relaxed(
      PageRef::of(run_.page(), run_.generation() - 1).bits);  // moved on: harmless
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, OverflowOwner) {
  auto& owner = pool_.region.overflow(0).tags.header;
  owner.store_relaxed((pool_.region.buckets() + 1) << 28);
  expect("overflow.owner");
}

TEST_F(AuditTest, OverflowLinked) {
  pool_.region.overflow(0).tags.header.store_relaxed(uint64_t{1} << 28 | LaneId{1, 7}.low());
  expect("overflow.linked");
}

TEST_F(AuditTest, OverflowLane) {
  pool_.region.overflow(0).tags.header.store_relaxed(uint64_t{1} << 28 | LaneId{3, 7}.low());
  pool_.region.bucket(0).locations.overflow.store_relaxed(1);
  EXPECT_EQ(pool_.audit(), Names{});
  pool_.stop_using_lane(3);
  expect("overflow.lane");
}

TEST_F(AuditTest, OverflowClaim) {
  pool_.region.overflow(0).locations.location[3].store_relaxed(run_.bits);
  expect("overflow.claim");
}

TEST_F(AuditTest, RegionWord) {
  pool_.region.region(3).word.store_relaxed(uint64_t{4} << 60);
  expect("region.word");
  pool_.region.region(3).word.store_relaxed(uint64_t{3} << 60 | uint64_t{1} << 28);  // host 1 of one
  expect("region.word");
}

TEST_F(AuditTest, RegionLane) {
  pool_.rent(3, 5);
  pool_.stop_using_lane(5);
  expect("region.lane");
}

TEST_F(AuditTest, RegionUnused) {
  pool_.region.region(3).word.store_relaxed(0);
  expect("region.unused");
  for (uint32_t page = 48; page < 64; ++page) pool_.set_word(page, PageWord::out(0));
  pool_.set_word(50, PageWord::of(PageState::kPoisoned, 0, 0));
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, QueueLinks) {
  format::PolicyEntry& entry = pool_.region.policy(child_.page());
  const uint32_t newer = entry.newer.load_relaxed();
  entry.newer.store_relaxed(root_.page() + 1);
  expect("queue.links");
  entry.newer.store_relaxed(5000);
  expect("queue.links");
  entry.newer.store_relaxed(newer);
  entry.list.store_relaxed(2);
  expect("queue.links");
}

TEST_F(AuditTest, QueueEnds) {
  // The coldest entry and the warmest lead to each other.
  pool_.region.policy(root_.page()).older.store_relaxed(long_.page() + 1);
  pool_.region.policy(long_.page()).newer.store_relaxed(root_.page() + 1);
  expect("queue.ends");
}

// Looked at twice, a link may be another one the second time: it is followed nowhere outside of its region.
TEST_F(AuditTest, QueuesThatSomebodyWritesMeanwhileLeadNowhere) {
  format::PolicyEntry& entry = pool_.region.policy(child_.page());
  pool_.region.policy(root_.page()).newer.store_relaxed(0);
  pool_.region.policy(other_.page()).older.store_relaxed(0);
  entry.older.store_relaxed(0);
  entry.newer.store_relaxed(0xFFFF'FFF0);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (uint32_t list = 0; !is_over; list ^= 1) entry.list.store_relaxed(list);
  });
  struct : FindingSink {
    void found(const Finding&) override {}
  } whatever;
  std::vector<uint64_t> scratch(audit_scratch_bytes(pool_.region) / 8);
  AuditRequest request;
  request.mode = AuditMode::kLiveOwner;
  request.live = pool_.lanes;
  for (int i = 0; i < 2000; ++i) audit(pool_.region, request, std::as_writable_bytes(std::span(scratch)), whatever);
  is_over = true;
  writer.join();
}

TEST_F(AuditTest, LaneBitmap) {
  flip(pool_.region.lane_bitmap().words[0], uint64_t{1} << 8);
  expect("lane.bitmap");
}

TEST_F(AuditTest, LaneIdentity) {
  flip(pool_.region.identity(3).state, 1u << 20);
  expect("lane.identity");
  pool_.region.identity(3).state.store_relaxed(3);
  expect("lane.identity");
  pool_.region.identity(3).state.store_relaxed(uint64_t(format::LaneState::kDead) | format::kLaneHasLock);
  expect("lane.identity");
}

TEST_F(AuditTest, LaneInUse) {
  pool_.stop_using_lane(3);
  pool_.region.identity(3).state.store_relaxed(uint64_t(format::LaneState::kDead));
  expect("lane.in-use");
}

TEST_F(AuditTest, LaneLive) {
  pool_.lanes.remove(3);
  expect("lane.live");
}

TEST_F(AuditTest, LaneUnused) {
  pool_.client(3).pins.pin(root_);
  pool_.stop_using_lane(3);
  expect("lane.unused");
}

TEST_F(AuditTest, PinPage) {
  pool_.region.lane(3).pins[5].store_relaxed(PageRef::of(64, 0).bits);
  expect("pin.page");
}

TEST_F(AuditTest, PinSet) {
  const uint32_t elsewhere = pin_set_start(pool_.region.layout(), root_.page()) == 0 ? 8 : 0;
  pool_.region.lane(3).pins[elsewhere].store_relaxed(root_.bits);
  expect("pin.set");
}

TEST_F(AuditTest, PinHolds) {
  const uint32_t set = pin_set_start(pool_.region.layout(), root_.page());
  pool_.region.lane(3).pins[set].store_relaxed(PageRef::of(root_.page(), root_.generation() + 1).bits);
  expect("pin.holds");
  pool_.region.lane(3).pins[set].store_relaxed(root_.bits);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, PinOverflow) {
  pool_.region.lane(3).header->pin_overflow.store_relaxed(1);
  expect("pin.overflow");
}

TEST_F(AuditTest, LaneIntent) {
  pool_.region.lane(3).header->parent_intent[2].store_relaxed(PageRef::of(64, 0).bits);
  expect("lane.intent");
}

TEST_F(AuditTest, LaneIntentDone) {
  pool_.region.lane(3).header->parent_intent[2].store_relaxed(root_.bits);
  expect("lane.intent-done");
}

TEST_F(AuditTest, ExtentOwner) {
  const uint64_t used = uint32_t(detail(long_).key.load_relaxed()) - 1;
  pool_.region.key_extent_owner((used + 1) % 4).store_relaxed(PageRef::of(64, 0).bits);
  expect("extent.owner");
}

TEST_F(AuditTest, TenantName) {
  const std::byte name[8] = {std::byte{'a'}};
  const uint64_t id = tenant_id(pool_.region.secret(), {name, 1});
  auto& tenant = pool_.region.tenant(uint32_t(id % pool_.region.parameters().tenants));
  tenant.id.store_relaxed(id);
  EXPECT_EQ(pool_.audit(), Names{});  // nobody knows its name
  tenant.name_bytes.store_relaxed(1);
  tenant.name[0].store_relaxed('a');
  EXPECT_EQ(pool_.audit(), Names{});
  tenant.name[0].store_relaxed('b');
  expect("tenant.name");
  tenant.name_bytes.store_relaxed(65);
  expect("tenant.name");
}

TEST_F(AuditTest, TenantPlace) {
  pool_.region.tenant(1).id.store_relaxed(5);
  EXPECT_EQ(pool_.audit(), Names{});
  pool_.region.tenant(2).id.store_relaxed(5);
  expect("tenant.place");
  pool_.region.tenant(2).id.store_relaxed(4);  // a client stops at place 0, which is empty
  expect("tenant.place");
}

TEST_F(AuditTest, LaneAccounts) {
  const uint64_t places = pool_.region.account_slots() - 1;
  const auto place = uint32_t(1 + 9 % places);
  pool_.region.account(3, place).tenant.store_relaxed(9);
  pool_.region.account(3, place).charged.store_relaxed(4096);
  pool_.region.account(3, 0).charged.store_relaxed(4096);
  EXPECT_EQ(pool_.audit(), Names{});
  pool_.region.account(3, place + 1).returned.store_relaxed(1);
  expect("lane.accounts");
  pool_.region.account(3, place + 1).tenant.store_relaxed(9);
  expect("lane.accounts");
}

TEST_F(AuditTest, LaneAccountsDone) {
  pool_.region.account(3, 0).in_flight.store_relaxed(1);
  expect("lane.accounts-done");
}

TEST_F(AuditTest, RetiredAndPinnedIsInOrder) {
  const Pin pin = pool_.client(2).pins.pin(other_);
  ASSERT_EQ(retire_ref(pool_.lane(1), other_), RetireStatus::kRetired);
  EXPECT_EQ(pool_.audit(), Names{});
  EXPECT_TRUE(pool_.client(2).pins.unpin(pin.slot, other_));
  EXPECT_EQ(finish_retired(pool_.lane(1), other_, pool_.lanes, nullptr), FinishStatus::kFreed);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(AuditTest, SkippedInvariantsAreNotLookedAt) {
  line(PageRef::of(40, 0)).word.store_relaxed(uint64_t{9} << 60);
  struct Sink final : FindingSink {
    void found(const Finding&) override { ++count; }
    int count = 0;
  } sink;
  std::vector<uint64_t> scratch(audit_scratch_bytes(pool_.region) / 8);
  AuditRequest request{
      .mode = AuditMode::kExact, .live = pool_.lanes, .skip = InvariantSet{}.with(Invariant::kPageState)};
  EXPECT_EQ(audit(pool_.region, request, std::as_writable_bytes(std::span(scratch)), sink).findings, 0u);
  request.skip = {};
  request.findings_max = 0;
  const AuditReport report = audit(pool_.region, request, std::as_writable_bytes(std::span(scratch)), sink);
  EXPECT_EQ(report.findings, 1u);
  EXPECT_EQ(report.counts[size_t(Invariant::kPageState)], 1u);
  EXPECT_EQ(sink.count, 0) << "the sink is told no more than findings_max";
}

}  // namespace
}  // namespace maru::shm
