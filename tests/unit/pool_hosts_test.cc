// Two hosts on one pool, each with a marud of its own, step by step: what one finds that the other has done meanwhile.
#include "daemon/pool/hosts/pool_hosts.h"
#include "libmaru/shm/recovery/host_reclaim.h"
#include "libmaru/shm/recovery/host_wish.h"
#include "libmaru/shm/region/host_claim.h"
#include "tests/support/wait_until.h"
#include "tests/unit/pool_fixture.h"

#include <gtest/gtest.h>
#include <thread>

namespace maru::daemon {
namespace {

using nlohmann::json;
using shm::HostClaim;
using shm::HostState;

SharingConfig sharing_of(uint32_t host) {
  SharingConfig sharing;
  sharing.is_shared = sharing.is_coherent = true;
  sharing.hosts = 2;
  sharing.machine_id = host == 0 ? "aaaa" : "bbbb";
  sharing.boot_id = host == 0 ? "11111111-1111-4111-8111-111111111111" : "22222222-2222-4222-8222-222222222222";
  return sharing;
}

class PoolHosts : public ::testing::Test {
 protected:
  PoolUnderTest first_{1u << 20, 16, 64, sharing_of(0)};
  PoolUnderTest second_{first_, sharing_of(1)};

  HostClaim claim(uint32_t host) { return shm::read_claim(first_.region, host); }
  // An administrator of the second host says so, who is wrong.
  void declare_first_dead() {
    const json reply = second_.pool->admin("host.declare_dead", {{"host", 0}, {"force", true}}, second_.now_ms);
    ASSERT_EQ(reply.value("state", ""), "dead") << reply.dump();
  }
};

TEST_F(PoolHosts, AMarudThatEndsLeavesASlotAloneThatIsBeingTakenBack) {
  auto client = first_.attach();
  ASSERT_FALSE(client->store("a").is_none());
  first_.pool->detach(client->grant.lane);
  declare_first_dead();
  const HostClaim dead = claim(0);
  ASSERT_TRUE(dead.is(HostState::kDead));
  const uint64_t machine_id = first_.region.host(0).machine_id.load_acquire();
  first_.pool->close();  // no turn since
  EXPECT_EQ(claim(0), dead);
  EXPECT_EQ(first_.region.host(0).machine_id.load_acquire(), machine_id);
  EXPECT_EQ(first_.region.host(0).clean.load_relaxed(), 0u);
  second_.settle();
  EXPECT_EQ(claim(0), HostClaim::of(HostState::kFree, dead.generation() + 1));
  EXPECT_TRUE(second_.exists("a"));
}

TEST_F(PoolHosts, AReclaimStopsWhenItsClaimIsSomebodyElses) {
  auto client = first_.attach();
  const PageRef pinned = client->store("a");
  ASSERT_EQ(client->pin(pinned).status, shm::PinStatus::kPinned);
  declare_first_dead();
  // Whoever took the slot to the end, and who attached in it.
  ASSERT_TRUE(shm::free_host(first_.region, 0, claim(0)));
  ASSERT_TRUE(shm::claim_host(first_.region, 0, claim(0), 7));
  ASSERT_TRUE(shm::finish_attach(first_.region, 0, claim(0)));
  const HostClaim live = claim(0);
  second_.settle();
  EXPECT_EQ(claim(0), live);
  EXPECT_NE(first_.region.host(0).machine_id.load_acquire(), 0u);
  EXPECT_TRUE(shm::is_pinned(first_.region, shm::LaneSet::in_use(first_.region), pinned.page()));
  EXPECT_TRUE(second_.pool->admin("host.list", {}, second_.now_ms).at("reclaiming").is_null());
}

// A machine died before its id was there; or it is slow, and begins again.
TEST_F(PoolHosts, ASlotWhoseAttachingStandsStillIsFreeAgain) {
  first_.pool->close();
  second_.pool->close();
  SharingConfig quick = sharing_of(1);
  quick.suspect_after_ms = 100;
  PoolUnderTest third(first_, quick);
  const uint32_t slot = claim(0).is(HostState::kFree) ? 0 : 1;
  ASSERT_TRUE(shm::claim_host(first_.region, slot, claim(slot), 7));
  const HostClaim attaching = claim(slot);
  const json reply = third.pool->admin("host.declare_dead", {{"host", slot}, {"force", true}}, third.now_ms);
  EXPECT_NE(reply.dump().find("attaches"), std::string::npos) << reply.dump();
  EXPECT_TRUE(test::wait_until([&] {
    third.settle();
    return claim(slot) == HostClaim::of(HostState::kFree, attaching.generation() + 1);
  }));
  EXPECT_FALSE(shm::finish_attach(first_.region, slot, attaching));
}

// Another machine that was slow wrote its id over the one of this host.
TEST_F(PoolHosts, AHostWritesItsIdAgain) {
  const uint64_t id = first_.region.host(1).machine_id.load_acquire();
  first_.region.host(1).machine_id.store_release(id + 1);
  second_.settle();
  EXPECT_EQ(first_.region.host(1).machine_id.load_acquire(), id);
}

TEST_F(PoolHosts, AMarudThatEndsTakesBackFirstWhatItHadBegunTo) {
  auto client = first_.attach();
  ASSERT_FALSE(client->store("a").is_none());
  first_.pool->client_died(client->grant.lane);
  EXPECT_TRUE(first_.pool->is_reclaiming());
  const HostClaim live = claim(0);
  first_.pool->close();
  EXPECT_EQ(claim(0), HostClaim::of(HostState::kFree, live.generation() + 1));
  EXPECT_TRUE(second_.exists("a"));
}

// The parent lies in a region of the first host, its child in one of the second.
class PoolHostsPoison : public PoolHosts {
 protected:
  std::unique_ptr<InProcessClient> above_ = first_.attach(), below_ = second_.attach();
  const PageRef parent_ = above_->store("parent"), child_ = below_->store("child", parent_);

  uint32_t children() { return first_.word(parent_.page()).children(); }
  void poison_child() {
    EXPECT_EQ(children(), 1u);
    second_.pool->admin("memory.poison", {{"page", child_.page()}}, second_.now_ms);
    ASSERT_TRUE(second_.word(child_.page()).is(PageState::kPoisoned));
  }
};

TEST_F(PoolHostsPoison, HoldsNoParentOfAnotherHostWhenItWasLetGo) {
  poison_child();
  second_.settle();
  first_.settle();
  EXPECT_EQ(children(), 0u);
}

TEST_F(PoolHostsPoison, IsLetGoByWhoInheritsItsRegion) {
  ASSERT_EQ(below_->pin(child_).status, shm::PinStatus::kPinned);
  poison_child();
  second_.settle();
  first_.settle();
  ASSERT_EQ(children(), 1u) << "somebody pins the child";
  const json reply = first_.pool->admin("host.declare_dead", {{"host", 1}, {"force", true}}, first_.now_ms);
  ASSERT_EQ(reply.value("state", ""), "dead") << reply.dump();
  first_.settle();
  EXPECT_EQ(children(), 0u);
}

// What a freed page names as its parent counts again once it is POISONED; who said so is lost, and the region is nobody's.
TEST_F(PoolHostsPoison, IsLetGoInARegionThatIsNobodys) {
  ASSERT_EQ(second_.delete_tree(second_.digest("child")).deleted, 1u);
  second_.settle();
  ASSERT_EQ(children(), 0u);
  second_.pool->detach(below_->grant.lane);
  second_.settle();
  ASSERT_EQ(shm::host_of_region(first_.region, first_.region.region_of(child_.page())), first_.region.hosts());
  const PageWord out = first_.word(child_.page());
  first_.region.block(child_.page()).word.store_release(PageWord::poisoned(out.generation()).bits);
  const PageWord parent = first_.word(parent_.page());
  first_.region.block(parent_.page()).word.store_release(PageWord::ready(parent.generation(), 1).bits);
  for (int i = 0; i < 20; ++i) {
    first_.now_ms += 6000;
    first_.settle();
  }
  EXPECT_EQ(children(), 0u);
}

// A run that a client of the second host fills, in a region that is the first one's by now.
TEST_F(PoolHostsPoison, WaitsForClientsOfOtherHostsThatMayWriteBehindIt) {
  const PageRef run = below_->take(3);
  ASSERT_FALSE(run.is_none());
  const uint32_t index = first_.region.region_of(run.page());
  first_.region.region(index).word.store_release(shm::RegionWord::of(format::RegionState::kOrphaned, 7, {}, 0).bits);
  first_.region.block(run.page()).word.store_release(PageWord::poisoned(run.generation()).bits);
  ASSERT_TRUE(first_.restart());
  first_.pool->client_died(above_->grant.lane);
  const auto wait = [&] {
    for (int i = 0; i < 20; ++i) {
      first_.now_ms += 6000;
      first_.settle();
    }
  };
  wait();
  EXPECT_TRUE(first_.word(run.page() + 1).is(PageState::kTail)) << "its client may still write there";
  second_.pool->client_died(below_->grant.lane);
  second_.settle();
  wait();
  EXPECT_TRUE(first_.word(run.page() + 1).is(PageState::kFree) || first_.word(run.page() + 1).is(PageState::kOut));
}

// The length that a head's line says counts there, since the lines of tails may be lost; and clients wrote it.
TEST(PoolAdoption, OfADurablePoolWalksItsPagesOnceForAllTailsOfTheDead) {
  constexpr uint32_t kPages = 1u << 16, kLost = 3, kRun = 8;
  PoolUnderTest first(uint64_t{kPages} * 4096 + (64u << 20), kPages, 64, sharing_of(0));
  ASSERT_TRUE(first.region.is_durable());
  auto client = first.attach();
  ASSERT_TRUE(client->rent(1));
  const shm::LaneId dead = {client->grant.lane, client->lane.id.generation};
  const PageRef living = client->take(4);
  ASSERT_FALSE(living.is_none());
  first.pool->client_died(client->grant.lane);
  first.settle();
  const auto set = [&](uint32_t page, uint64_t bits) { first.region.block(page).word.store_release(bits); };
  for (uint32_t page = 0; page < kPages; ++page) {
    first.region.block(page).shape.store_relaxed(kPages);
    if (page < kRun)
      set(page, page == kLost ? PageWord::free(5).bits
                : page == 0   ? PageWord::reserved(5, dead).bits
                              : PageWord::tail(5, page).bits);
    else
      set(page, PageWord::reserved(5, dead).bits);
  }
  first.pool.reset();
  ASSERT_TRUE(first.restart());
  for (uint32_t page = 0; page < kPages; ++page) {
    const PageWord word = first.word(page);
    ASSERT_TRUE(word.is(PageState::kFree) || word.is(PageState::kOut)) << page << ": " << word.bits;
    ASSERT_EQ(word.generation(), page == kLost ? 5u : 6u) << page;
  }
}

// The wish of a host that rents nothing, in a pool of which one look sees a part.
TEST(PoolWishes, ALookForARegionToGiveUpIsBounded) {
  constexpr uint32_t kRegionPages = 512;
  PoolUnderTest first(uint64_t{400} * kRegionPages * 4096, kRegionPages, 64, sharing_of(0));
  PoolUnderTest second(first, sharing_of(1));
  auto client = first.attach();
  while (client->regions.size() < first.region.regions()) ASSERT_TRUE(client->rent(kRegionPages));
  // Of all but the last region to be looked at a page is held, so none of them can be given up.
  const auto regions = first.region.regions();
  ASSERT_GT(uint64_t{regions} * kRegionPages, 2 * (uint64_t{1} << 16));
  for (uint32_t i = 0; i + 1 < regions; ++i)
    ASSERT_FALSE(shm::take_page(first.region, client->lane.id, i * kRegionPages).is_none());
  const auto wish = [&] { return shm::read_wish(first.region, 0); };
  const auto looks = [&] {
    for (uint32_t n = 0;; ++n) {
      if (wish().is_none()) return n;
      const uint64_t looked_ms = monotonic_ms();
      while (monotonic_ms() - looked_ms <= kHostLookPauseMs) std::this_thread::yield();
      first.pool->turn(++first.now_ms);
    }
  };
  const HostClaim asker = shm::read_claim(first.region, 1);
  ASSERT_TRUE(shm::ask_for_region(first.region, 0, 1, asker.generation()));
  EXPECT_EQ(looks(), uint64_t{regions} * kRegionPages / (1u << 16) + 1);
  EXPECT_EQ(shm::host_of_region(first.region, regions - 1), first.region.hosts()) << "nobody's";
}

}  // namespace
}  // namespace maru::daemon
