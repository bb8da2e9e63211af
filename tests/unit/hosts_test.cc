// What the format says about hosts, on a byte array: whose lanes are whose, the claim on a slot, and the repairs of a reclaim.
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/poison.h"
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/shm/region/flush.h"
#include "libmaru/shm/region/host_claim.h"
#include "tests/unit/small_pool.h"

#include <cstring>

namespace maru::shm {
namespace {

class HostsTest : public testing::Test {
 protected:
  SmallPool pool_{{.lanes = 8, .hosts = 3}};
  const ControlRegion& region_ = pool_.region;

  HostClaim claim(uint32_t host) const { return read_claim(region_, host); }
  // As a machine does that attaches, without its id.
  bool take_slot(uint32_t host) {
    return claim_host(region_, host, claim(host), kMachine) &&
           (claim(host).is_in_use() || finish_attach(region_, host, claim(host)));
  }
  static constexpr uint64_t kMachine = uint64_t{0xABCDEF} << 40 | 5;
};

TEST_F(HostsTest, LanesBelongToHostsByTheirNumber) {
  EXPECT_TRUE(region_.is_shared());
  EXPECT_EQ(region_.lanes_per_host(), 2u);
  EXPECT_EQ(region_.daemon_lane_of(2), 4u);
  EXPECT_EQ(region_.host_of_lane(5), 2u);
  EXPECT_GE(region_.host_of_lane(7), region_.hosts()) << "what is left over is nobody's";
  const SmallPool local;
  EXPECT_FALSE(local.region.is_durable());
  EXPECT_EQ(local.region.host_of_lane(7), 0u) << "a pool of one host gives it all lanes";
}

TEST_F(HostsTest, AnUnknownFlagAndTooFewLanesAreRefused) {
  Layout layout;
  Header header = region_.header();
  EXPECT_EQ(ControlRegion::check_header(header, uint64_t{1} << 40, &layout), nullptr);
  header.incompat_flags |= 16;
  header.checksum = header_checksum(header);
  EXPECT_STREQ(ControlRegion::check_header(header, uint64_t{1} << 40, &layout),
               "the control region uses a feature that this version does not know");
  header = region_.header();
  header.parameters.hosts = 5;
  header.checksum = header_checksum(header);
  EXPECT_STREQ(ControlRegion::check_header(header, uint64_t{1} << 40, &layout),
               "there are fewer than two lanes for each host");
}

TEST_F(HostsTest, AClaimChangesAsTheTableSays) {
  const HostClaim free = claim(1);
  EXPECT_TRUE(free.is(HostState::kFree));
  EXPECT_FALSE(suspect_host(region_, 1, free));
  EXPECT_FALSE(declare_host_dead(region_, 1, free, 0, 1)) << "nobody has it";
  EXPECT_FALSE(finish_attach(region_, 1, free));
  EXPECT_FALSE(end_attach(region_, 1, free));
  ASSERT_TRUE(claim_host(region_, 1, free, kMachine));
  EXPECT_FALSE(claim_host(region_, 1, free, kMachine)) << "one wins";
  const HostClaim attaching = claim(1);
  EXPECT_EQ(attaching, HostClaim::of(HostState::kAttaching, free.generation() + 1, 0xABCDEF));
  EXPECT_FALSE(attaching.is_in_use());
  EXPECT_FALSE(suspect_host(region_, 1, attaching));
  EXPECT_FALSE(declare_proven_dead(region_, 1, attaching.generation(), 0, 1)) << "it holds nothing";
  ASSERT_TRUE(finish_attach(region_, 1, attaching));
  EXPECT_FALSE(end_attach(region_, 1, attaching)) << "too late";
  const HostClaim live = claim(1);
  EXPECT_EQ(live, HostClaim::of(HostState::kLive, free.generation() + 1, 0xABCDEF));
  EXPECT_FALSE(host_is_well(region_, 1, live));
  ASSERT_TRUE(suspect_host(region_, 1, live));
  ASSERT_TRUE(host_is_well(region_, 1, claim(1)));
  EXPECT_EQ(claim(1), live) << "a host that was slow is the same as before";
  ASSERT_TRUE(suspect_host(region_, 1, live));
  const HostClaim suspect = claim(1);
  ASSERT_TRUE(declare_host_dead(region_, 1, suspect, 2, 7));
  EXPECT_FALSE(declare_host_dead(region_, 1, suspect, 0, 1)) << "one takes it back";
  const HostClaim dead = claim(1);
  EXPECT_EQ(dead, HostClaim::dead(live.generation(), 2, 7));
  EXPECT_EQ(dead.reclaimer(), 2u);
  EXPECT_FALSE(claim_host(region_, 1, dead, kMachine)) << "not before all is taken back";
  EXPECT_FALSE(declare_host_dead(region_, 1, dead, 2, 7));
  ASSERT_TRUE(declare_host_dead(region_, 1, dead, 0, 1)) << "who takes the reclaimer back takes this over";
  EXPECT_FALSE(free_host(region_, 1, dead));
  ASSERT_TRUE(free_host(region_, 1, claim(1)));
  EXPECT_EQ(claim(1), HostClaim::of(HostState::kFree, live.generation() + 1));
}

// Two machines that start at once choose the same slot: one has it, and the other one starts over.
TEST_F(HostsTest, ASlotIsClaimedFromTheClaimByWhichItWasChosen) {
  constexpr uint64_t kFirst = uint64_t{11} << 40, kSecond = uint64_t{22} << 40;
  const HostSlot first = choose_slot(region_, kFirst), second = choose_slot(region_, kSecond);
  ASSERT_EQ(first.host, second.host);
  ASSERT_TRUE(claim_host(region_, first.host, first.claim, kFirst));
  EXPECT_FALSE(claim_host(region_, second.host, second.claim, kSecond));
  EXPECT_EQ(choose_slot(region_, kSecond).host, first.host + 1) << "its id is not there yet";
  EXPECT_EQ(choose_slot(region_, kFirst).host, first.host) << "and yet it goes on there";
  region_.host(first.host).machine_id.store_release(kFirst);
  ASSERT_TRUE(finish_attach(region_, first.host, claim(first.host)));
  const HostClaim live = claim(first.host);
  EXPECT_EQ(choose_slot(region_, kFirst).host, first.host) << "its own, and no second one";
  EXPECT_EQ(choose_slot(region_, kFirst).claim, live);
  EXPECT_EQ(choose_slot(region_, kSecond).host, first.host + 1);
  for (uint32_t host = 1; host < region_.hosts(); ++host) ASSERT_TRUE(take_slot(host));
  EXPECT_EQ(choose_slot(region_, kSecond).host, region_.hosts()) << "all are taken";
}

// What a machine leaves that dies over attaching or detaching is known for its own by its next marud, and for nobody else's.
TEST_F(HostsTest, ASlotIsAMachinesByItsTagAndItsId) {
  const auto own = [&] { return choose_slot(region_, kMachine).host; };
  region_.host(2).machine_id.store_release(kMachine);  // of one that was too slow: the slot is another one's now
  ASSERT_TRUE(claim_host(region_, 2, claim(2), uint64_t{1} << 60));
  ASSERT_TRUE(finish_attach(region_, 2, claim(2)));
  EXPECT_EQ(own(), 0u);
  ASSERT_TRUE(claim_host(region_, 1, claim(1), kMachine));
  EXPECT_EQ(own(), 1u);
  const HostClaim attaching = claim(1);
  ASSERT_TRUE(claim_host(region_, 1, attaching, kMachine));
  EXPECT_FALSE(finish_attach(region_, 1, attaching)) << "who is slow begins again";
  EXPECT_EQ(claim(1).generation(), attaching.generation() + 1);
  ASSERT_TRUE(finish_attach(region_, 1, claim(1)));
  region_.host(1).machine_id.store_release(kMachine);
  EXPECT_EQ(own(), 1u);
  region_.host(1).machine_id.store_release(0);
  EXPECT_EQ(own(), 1u) << "it was about to leave";
  region_.host(1).machine_id.store_release(kMachine + 1);
  EXPECT_EQ(own(), 0u) << "of the same tag";
  region_.host(1).machine_id.store_release(kMachine);
  region_.host(1).claim.store_release(HostClaim::of(HostState::kLive, 9).bits);
  EXPECT_EQ(own(), 1u) << "from an older version";
}

TEST_F(HostsTest, WhoDoesNotEndItsAttachingLosesTheSlotWithoutProof) {
  ASSERT_TRUE(claim_host(region_, 1, claim(1), kMachine));
  const HostClaim attaching = claim(1);
  ASSERT_TRUE(end_attach(region_, 1, attaching));
  EXPECT_EQ(claim(1), HostClaim::of(HostState::kFree, attaching.generation() + 1));
  EXPECT_FALSE(finish_attach(region_, 1, attaching));
  ASSERT_TRUE(take_slot(1));
  EXPECT_FALSE(finish_attach(region_, 1, attaching)) << "another host has it";
  EXPECT_FALSE(end_attach(region_, 1, claim(1)));
}

// Whoever leaves ends its own life, and nothing that somebody else has begun.
TEST_F(HostsTest, AHostLeavesOnlyWhatItStillHas) {
  ASSERT_TRUE(take_slot(1));
  const uint32_t life = claim(1).generation();
  EXPECT_FALSE(leave_host(region_, 1, life - 1)) << "another life";
  EXPECT_FALSE(free_host(region_, 1, claim(1))) << "it is not dead";
  ASSERT_TRUE(suspect_host(region_, 1, claim(1)));
  ASSERT_TRUE(leave_host(region_, 1, life)) << "it was only slow";
  EXPECT_EQ(claim(1), HostClaim::of(HostState::kFree, life + 1));
  EXPECT_FALSE(leave_host(region_, 1, life)) << "twice";
  ASSERT_TRUE(take_slot(1));
  ASSERT_TRUE(declare_host_dead(region_, 1, claim(1), 0, 1));
  const HostClaim dead = claim(1);
  EXPECT_FALSE(leave_host(region_, 1, dead.generation()));
  EXPECT_EQ(claim(1), dead);
}

TEST_F(HostsTest, AProofIsForOneLife) {
  ASSERT_TRUE(take_slot(1));
  const uint32_t fenced = claim(1).generation();
  ASSERT_TRUE(take_slot(1));  // its machine was booted again meanwhile
  const HostClaim live = claim(1);
  EXPECT_FALSE(declare_proven_dead(region_, 1, fenced, 0, 1));
  EXPECT_EQ(claim(1), live);
  EXPECT_TRUE(declare_proven_dead(region_, 1, live.generation(), 0, 1));
  EXPECT_FALSE(declare_proven_dead(region_, 1, live.generation(), 2, 1)) << "somebody is at it";
}

// Host 2 takes host 1 back, and something becomes of host 2.
TEST_F(HostsTest, AReclaimerIsGoneWhenItsLifeIsOver) {
  ASSERT_TRUE(take_slot(1) && take_slot(2));
  const uint32_t life = claim(2).generation();
  ASSERT_TRUE(declare_host_dead(region_, 1, claim(1), 2, life));
  const HostClaim dead = claim(1);
  EXPECT_EQ(dead.reclaimer_generation(), life);
  EXPECT_FALSE(is_reclaimer_gone(region_, dead));
  ASSERT_TRUE(suspect_host(region_, 2, claim(2)));
  EXPECT_FALSE(is_reclaimer_gone(region_, dead)) << "it is only slow";
  ASSERT_TRUE(declare_host_dead(region_, 2, claim(2), 0, 1));
  EXPECT_TRUE(is_reclaimer_gone(region_, dead));
  ASSERT_TRUE(free_host(region_, 2, claim(2)));
  EXPECT_TRUE(is_reclaimer_gone(region_, dead)) << "and was taken back itself";
  ASSERT_TRUE(take_slot(2));
  EXPECT_TRUE(is_reclaimer_gone(region_, dead)) << "another host has its slot";
  EXPECT_TRUE(is_reclaimer_gone(region_, HostClaim::dead(3, region_.hosts(), 1))) << "no host at all";
}

TEST_F(HostsTest, ARegionIsInheritedFromTheHostInItsWord) {
  AtomicU64& word = region_.region(1).word;
  word.store_release(RegionWord::of(format::RegionState::kRented, 7, {3, 7}, 1).bits);
  EXPECT_EQ(host_of_region(region_, 1), 1u);
  EXPECT_FALSE(inherit_region(region_, 1, 2, 0));
  ASSERT_TRUE(inherit_region(region_, 1, 1, 2));
  const RegionWord now{word.load_acquire()};
  EXPECT_EQ(now.state(), format::RegionState::kOrphaned);
  EXPECT_EQ(now.host(), 2u);
  EXPECT_EQ(now.generation(), 8u);
  word.store_release(0);
  EXPECT_EQ(host_of_region(region_, 1), region_.hosts()) << "nobody's";
}

TEST_F(HostsTest, WhatAHostLeftIsWhoIsFaster) {
  AtomicU64& word = region_.region(1).word;
  const auto now = [&] { return RegionWord{word.load_acquire()}; };
  uint32_t generation = 0;
  ASSERT_TRUE(take_slot(1));
  word.store_release(RegionWord::of(format::RegionState::kOrphaned, 7, {}, 1).bits);
  EXPECT_FALSE(inherit_left_region(region_, 1, 2, &generation)) << "it has not left";
  ASSERT_TRUE(leave_host(region_, 1, claim(1).generation()));
  word.store_release(RegionWord::of(format::RegionState::kRented, 7, {3, 7}, 1).bits);
  EXPECT_FALSE(inherit_left_region(region_, 1, 2, &generation)) << "no orphan";
  word.store_release(RegionWord::of(format::RegionState::kOrphaned, 7, {}, 1).bits);
  ASSERT_TRUE(inherit_left_region(region_, 1, 2, &generation));
  EXPECT_EQ(generation, 8u);
  EXPECT_EQ(now().bits, RegionWord::of(format::RegionState::kOrphaned, 8, {}, 2).bits);

  ASSERT_TRUE(take_slot(1));
  EXPECT_FALSE(adopt_region(region_, 1, 1)) << "another host has inherited it";
  const uint64_t seen = RegionWord::of(format::RegionState::kOrphaned, 8, {}, 1).bits;
  word.store_release(seen);
  EXPECT_TRUE(adopt_region(region_, 1, 1));
  EXPECT_EQ(now().bits, RegionWord::of(format::RegionState::kOrphaned, 9, {}, 1).bits)
      << "whoever saw it before must not have it any more";
  word.store_release(RegionWord::of(format::RegionState::kRented, 9, {3, 7}, 1).bits);
  EXPECT_TRUE(adopt_region(region_, 1, 1));
  EXPECT_EQ(now().generation(), 9u) << "its client knows this word";
}

TEST_F(HostsTest, PinsOfOtherHostsAreFoundWhenTheirLaneIsNew) {
  LaneSet own;
  own.add(0);
  own.add(1);
  pool_.stop_using_lane(5);
  EXPECT_FALSE(with_other_hosts(region_, own).has(5));
  set_lane_bit(region_, 5, true);
  EXPECT_TRUE(with_other_hosts(region_, own).has(5));
  EXPECT_TRUE(with_other_hosts(region_, own).has(0));
  const SmallPool local;
  EXPECT_FALSE(with_other_hosts(local.region, own).has(5)) << "one host knows its lanes itself";
}

TEST_F(HostsTest, APoisonedBlockThatAnotherHostPinsIsNotLetGo) {
  const PageRef held = publish(pool_.lane(1), pool_.take(1), pool_.block("held")).block;
  std::vector<AtomicU32> counts(PinTable::counts_needed(region_.layout()));
  PinTable theirs(region_, 5, counts);
  set_lane_bit(region_, 5, true);
  LaneSet own;
  own.add(0);
  own.add(1);
  const Pin pin = theirs.pin(held);
  ASSERT_EQ(poison_page(pool_.lane(0), held.page()).status, PoisonStatus::kPoisoned);
  EXPECT_FALSE(is_poison_unpinned(pool_.lane(0), own, held.page()));
  EXPECT_TRUE(theirs.unpin(pin.slot, held));
  EXPECT_TRUE(is_poison_unpinned(pool_.lane(0), own, held.page()));
}

TEST_F(HostsTest, EntriesOfPagesThatMovedOnLoseTheirBitAndOthersStay) {
  const PageRef gone = publish(pool_.lane(1), pool_.take(1), pool_.block("gone")).block;
  const PageRef there = publish(pool_.lane(1), pool_.take(1), pool_.block("there")).block;
  ASSERT_TRUE(registry_exists(region_, pool_.digest("gone")));
  pool_.set_word(gone.page(), PageWord::free(gone.generation() + 1));
  EXPECT_TRUE(registry_exists(region_, pool_.digest("gone"))) << "exists believes the registry";
  EXPECT_EQ(repair_entries(region_, 0, region_.buckets()), 1u);
  EXPECT_FALSE(registry_exists(region_, pool_.digest("gone")));
  EXPECT_EQ(find_unpinned(region_, pool_.digest("there")), there);
  EXPECT_EQ(repair_entries(region_, 0, region_.buckets()), 0u);
}

TEST_F(HostsTest, WhatAHostHeldEndsWithItAndNothingElse) {
  const PageRef block = publish(pool_.lane(1), pool_.take(1), pool_.block("a")).block;
  ASSERT_EQ(pool_.client(3).pins.pin(block).status, PinStatus::kPinned);
  ASSERT_EQ(pool_.client(5).pins.pin(block).status, PinStatus::kPinned);
  const PageRef taken = pool_.take(3), others = pool_.take(5);
  struct Sink final : ReclaimSink {
    void parent_suspect(PageRef) override {}
    void retired_taken(PageRef) override {}
    void unregistered(PageRef) override { ++orphans; }
    void pages_freed(uint32_t pages) override { freed += pages; }
    uint32_t freed = 0, orphans = 0;
  } sink;
  for (const uint32_t lane : {2u, 3u}) end_lane_pins(region_, lane, sink);
  reclaim_pages(pool_.lane(0), HostLanes(region_, 1), 0, uint32_t(region_.pages()), sink);
  for (const uint32_t lane : {2u, 3u}) clear_host_lane(region_, lane);
  EXPECT_EQ(sink.freed, 1u);
  EXPECT_EQ(sink.orphans, 0u);
  EXPECT_TRUE(pool_.word(taken.page()).is(PageState::kFree));
  EXPECT_TRUE(pool_.word(others.page()).is(PageState::kReserved));
  EXPECT_TRUE(is_pinned(region_, LaneSet::in_use(region_), block.page())) << "by the other host";
  pool_.client(5).pins.unpin(0, block);
  LaneSet dead;
  dead.add(3);
  EXPECT_FALSE(is_pinned(region_, dead, block.page()));
  EXPECT_FALSE(LaneSet::in_use(region_).has(3));
  EXPECT_TRUE(LaneSet::in_use(region_).has(5));
}

TEST_F(HostsTest, OverflowBucketsOfADeadHostAreReleasedPartByPart) {
  const auto owner = [&](uint64_t i) -> AtomicU64& { return region_.overflow(i).tags.header; };
  const auto claimed = [](LaneId lane) { return uint64_t{1} << 28 | lane.low(); };
  const uint64_t all = region_.overflow_buckets();
  ASSERT_GE(all, 4u);
  const uint64_t of_live = claimed({5, 7});
  for (const uint64_t i : {uint64_t{0}, all - 2, all - 1}) owner(i).store_relaxed(claimed({3, 7}));
  owner(1).store_relaxed(of_live);
  release_host_overflow(region_, 1, 0, all - 1);
  EXPECT_EQ(owner(0).load_relaxed(), 0u);
  EXPECT_EQ(owner(all - 2).load_relaxed(), 0u);
  EXPECT_EQ(owner(all - 1).load_relaxed(), claimed({3, 7})) << "the next part's";
  release_host_overflow(region_, 1, all - 1, all);
  EXPECT_EQ(owner(all - 1).load_relaxed(), 0u);
  EXPECT_EQ(owner(1).load_relaxed(), of_live);
}

TEST(Flush, ThereIsAnInstruction) {
  alignas(64) uint64_t words[16] = {};
  flush_lines(words, sizeof words);
  flush_lines(&words[7], 16);
  flush_lines(words, 0);
#if defined(__x86_64__)
  EXPECT_STRNE(flush_instruction(), "none");
#endif
}

}  // namespace
}  // namespace maru::shm
