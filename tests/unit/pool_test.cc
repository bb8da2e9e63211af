// Pool: lanes, renting, eviction order, reclaim, adoption, administration.
#include "tests/unit/filled_pool.h"

#include <algorithm>
#include <cerrno>
#include <list>
#include <map>

namespace maru::daemon {
namespace {

TEST(PoolRent, GivesOneRegionAndNotMoreThanIsAskedFor) {
  PoolUnderTest home;
  auto client = home.attach();
  ASSERT_TRUE(client->rent(1));
  EXPECT_EQ(client->regions.size(), 1u);
  EXPECT_EQ(home.count(PageState::kFree), home.region.region_pages());
  ASSERT_TRUE(client->rent(home.region.region_pages() + 1));
  EXPECT_EQ(client->regions.size(), 3u);
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(PoolRent, KeepsToTheLimitOfRegions) {
  PoolUnderTest home;
  home.config.max_regions_per_instance = 2;
  ASSERT_TRUE(home.restart());
  auto client = home.attach();
  ASSERT_TRUE(client->rent(40));
  EXPECT_EQ(client->regions.size(), 2u);
  while (!client->take_free().is_none()) {
  }
  EXPECT_FALSE(client->rent(1));
  EXPECT_EQ(client->last_status, -ENOSPC);
}

TEST(PoolRent, RefusesWhatMakesNoSense) {
  PoolUnderTest home;
  auto client = home.attach();
  EXPECT_FALSE(client->rent(0));
  EXPECT_EQ(client->last_status, -EINVAL);
  EXPECT_FALSE(client->rent(1, 0));
  EXPECT_EQ(client->last_status, -EINVAL);
  EXPECT_FALSE(client->rent(1, home.region.region_pages() + 1));
  EXPECT_EQ(client->last_status, -EFBIG);
  EXPECT_EQ(home.pool->rent(7, {1, 1, 0, 0, 0, 0}, home.now_ms).status, -ENOTCONN);
  ASSERT_TRUE(client->rent(uint64_t(1) << 60));
  EXPECT_EQ(client->regions.size(), home.region.regions());
}

TEST(PoolEvict, OrderIsThatOfAnExactLru) {
  PoolUnderTest home;
  auto client = home.attach();
  const std::vector<PageRef> blocks = fill(home, *client);
  std::list<size_t> model;
  for (size_t i = 0; i < blocks.size(); ++i) model.push_back(i);
  uint64_t random = 12345;
  for (int i = 0; i < 300; ++i) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    const size_t which = (random >> 33) % blocks.size();
    ++home.now_ms;
    client->touch(blocks[which]);
    model.remove(which);
    model.push_back(which);
    if (i % 50 == 0) home.pool->turn(home.now_ms);
  }
  // One by one, and in batches.
  for (uint64_t runs : {1, 1, 1, 7, 30, 1, 40}) {
    client->evicted.clear();
    ASSERT_TRUE(client->rent(runs));
    ASSERT_EQ(client->evicted.size(), runs);
    for (const std::string& key : client->evicted) {
      EXPECT_EQ(key, name(model.front()));
      EXPECT_FALSE(home.exists(key));
      model.pop_front();
    }
  }
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(PoolEvict, LeavesGoBeforeTheirParentsWhichTakeTheLaterUse) {
  PoolUnderTest home;
  auto client = home.attach();
  const PageRef root = client->store("root");
  home.now_ms += 10;
  const PageRef old = client->store("old", root);
  home.now_ms += 10;
  client->store("other");
  home.now_ms += 10;
  client->store("new", root);
  home.now_ms += 10;
  for (uint64_t i = 4; i < home.region.pages(); ++i) client->store(name(i));
  ASSERT_TRUE(client->evicted.empty());
  ASSERT_TRUE(client->rent(4));
  // "old" is the coldest leaf; the root has another child, and when that goes the root is as warm as that child.
  EXPECT_EQ(client->evicted, (Keys{"old", "other", "new", "root"}));
  EXPECT_TRUE(!old.is_none());
}

TEST(PoolEvict, TakesFromItsOwnRegionsBeforeOthers) {
  PoolUnderTest home;
  auto first = home.attach(), second = home.attach();
  for (uint32_t i = 0; i < home.region.region_pages(); ++i) first->store("first-" + std::to_string(i));
  home.now_ms += 100;
  while (second->evicted.empty()) {
    ++home.now_ms;
    ASSERT_FALSE(second->store("second-" + std::to_string(home.now_ms)).is_none());
  }
  EXPECT_EQ(second->evicted, (Keys{"second-" + std::to_string(kStartMs + 101)}));
}

TEST(PoolEvict, APinnedBlockStaysAndKeepsItsPlace) {
  PoolUnderTest home;
  auto client = home.attach(), reader = home.attach();
  const std::vector<PageRef> blocks = fill(home, *client);
  const shm::Pin pin = reader->pin(blocks[0]);
  ASSERT_EQ(pin.status, shm::PinStatus::kPinned);
  ASSERT_TRUE(client->rent(2));
  EXPECT_EQ(client->evicted, (Keys{name(1), name(2)}));
  ASSERT_TRUE(reader->pins.unpin(pin.slot, blocks[0]));
  ASSERT_TRUE(client->rent(2));
  EXPECT_EQ(client->evicted, (Keys{name(1), name(2), name(0), name(3)}));
}

TEST(PoolEvict, EverythingPinnedIsAnAnswer) {
  PoolUnderTest home(1u << 20, 16, 256);
  auto client = home.attach();
  const std::vector<PageRef> blocks = fill(home, *client);
  std::vector<shm::Pin> pins;
  for (PageRef ref : blocks) pins.push_back(client->pin(ref));
  EXPECT_FALSE(client->rent(1));
  EXPECT_EQ(client->last_status, -ENOSPC);
  client->pins.unpin(pins[5].slot, blocks[5]);
  ASSERT_TRUE(client->rent(1));
  EXPECT_EQ(client->evicted, (Keys{name(5)}));
}

TEST(PoolEvict, FindsBlocksWhoseTouchesWereLost) {
  PoolUnderTest home;
  auto client = home.attach();
  for (uint64_t i = 0; i < home.region.pages(); ++i) {
    ++home.now_ms;
    client->store(name(i));
  }
  for (int i = 0; i < 1000; ++i) client->touch(PageRef::of(0, 0));
  ASSERT_TRUE(client->rent(3));
  EXPECT_EQ(client->evicted, (Keys{name(1), name(2), name(3)}));
}

TEST(PoolEvict, RunsOfOneSizeGoInExactOrder) {
  PoolUnderTest home;
  auto client = home.attach();
  std::vector<PageRef> blocks;
  for (uint64_t i = 0; i < home.region.pages() / 4; ++i) {
    ++home.now_ms;
    blocks.push_back(client->store(name(i), PageRef::none(), 4));
  }
  ++home.now_ms;
  client->touch(blocks[1]);
  ASSERT_TRUE(client->evicted.empty());
  ASSERT_TRUE(client->rent(3, 4));
  EXPECT_EQ(client->evicted, (Keys{name(0), name(2), name(3)}));
  ASSERT_EQ(client->runs.size(), 3u);
  EXPECT_EQ(client->runs[0].page, blocks[0].page());
  EXPECT_EQ(client->runs[0].pages, 4u);
  EXPECT_EQ(home.word(blocks[0].page() + 3).state(), PageState::kTail);
}

TEST(PoolEvict, MakesRoomForARunWhereItCostsLeast) {
  PoolUnderTest home;
  auto client = home.attach();
  std::vector<PageRef> blocks = fill(home, *client);
  // Cold neighbours far from the coldest single blocks.
  ++home.now_ms;
  for (size_t i = 0; i < blocks.size(); ++i)
    if (i % 16 != 0 && i != 37 && i != 38) client->touch(blocks[i]);
  home.pool->turn(home.now_ms);
  ASSERT_TRUE(client->rent(1, 2));
  EXPECT_EQ(client->evicted, (Keys{name(37), name(38)}));
  ASSERT_EQ(client->runs.size(), 1u);
  EXPECT_EQ(client->runs[0].page, blocks[37].page());
}

TEST(PoolEvict, MakesRoomForARunUnderChains) {
  PoolUnderTest home;
  auto client = home.attach();
  PageRef parent = PageRef::none();
  for (uint64_t i = 0; i < home.region.pages(); ++i) parent = client->store(name(i), parent);
  ASSERT_FALSE(parent.is_none());
  ASSERT_TRUE(client->rent(2, 8));
  EXPECT_EQ(client->runs.size(), 2u);
  EXPECT_TRUE(home.exists(name(0)));
  home.settle();
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(PoolEvict, ExpiredBlocksGoByThemselves) {
  PoolUnderTest home;
  auto client = home.attach();
  const PageRef ref = client->store("brief");
  home.region.block(ref.page()).expires_ms.store_relaxed(home.now_ms + 10);
  home.settle();
  EXPECT_FALSE(home.exists("brief"));
}

// Its root could not be stored again while anything of it was there.
TEST(PoolEvict, AnExpiredChainGoesInOnePass) {
  PoolUnderTest home;
  auto client = home.attach();
  PageRef last = PageRef::none();
  for (uint64_t i = 0; i < 20; ++i) {
    last = client->store(name(i), last);
    ASSERT_FALSE(last.is_none());
    home.region.block(last.page()).expires_ms.store_relaxed(home.now_ms + 10);
  }
  const PageRef other = client->store("stays");
  home.now_ms += 50;
  home.pool->turn(home.now_ms);
  EXPECT_FALSE(home.exists(name(0)));
  EXPECT_EQ(home.count(PageState::kReady), 1u);
  EXPECT_EQ(home.word(other.page()).state(), PageState::kReady);
}

// -- lanes ------------------------------------------------------------------------------------------------------------

TEST(PoolLanes, TheSameProcessGetsItsLaneBackAndNobodyElse) {
  PoolUnderTest home;
  const ClientIdentity who = {17, 5, 5, 99};
  const auto first = home.pool->attach(who, 0, 0, home.now_ms);
  ASSERT_TRUE(first.has_value());
  const auto again = home.pool->attach(who, first->lane, first->generation, home.now_ms);
  EXPECT_TRUE(again->kept);
  EXPECT_EQ(again->lane, first->lane);
  ClientIdentity other = who;
  other.start_time = 100;
  const auto stranger = home.pool->attach(other, first->lane, first->generation, home.now_ms);
  EXPECT_FALSE(stranger->kept);
  EXPECT_NE(stranger->lane, first->lane);
}

TEST(PoolLanes, AProcessThatHasBecomeAnotherUserKeepsItsLaneAndCountsForThatUser) {
  PoolUnderTest home;
  ClientIdentity who = {17, 5, 5, 99};
  const auto first = home.pool->attach(who, 0, 0, home.now_ms);
  ASSERT_TRUE(first.has_value());
  who.uid = who.gid = 6;
  const auto again = home.pool->attach(who, first->lane, first->generation, home.now_ms);
  EXPECT_TRUE(again->kept);
  EXPECT_EQ(again->lane, first->lane);
  std::map<uid_t, UserUse> uses;
  home.pool->add_uses(uses);
  EXPECT_TRUE(uses.contains(6));
  EXPECT_FALSE(uses.contains(5));
  EXPECT_EQ(home.region.identity(first->lane).credentials.load_relaxed(), uint64_t(6) << 32 | 6);
}

TEST(PoolLanes, AreGivenOutUntilNoneIsLeft) {
  PoolUnderTest home;
  std::set<uint32_t> seen;
  for (uint32_t i = 1; i < home.region.lanes(); ++i) seen.insert(home.attach()->grant.lane);
  EXPECT_EQ(seen.size(), home.region.lanes() - 1);
  EXPECT_EQ(home.pool->attach({1, 1, 1, 1}, 0, 0, home.now_ms).error().code, EUSERS);
  home.pool->client_died(3);
  const auto grant = home.pool->attach({1, 1, 1, 1}, 0, 0, home.now_ms);
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->lane, 3u);
  EXPECT_EQ(grant->generation, 2u);
}

TEST(PoolReclaim, WhatADeadClientHeldIsFreeAgain) {
  PoolUnderTest home;
  auto survivor = home.attach(), dead = home.attach();
  const PageRef parent = survivor->store("parent");
  const PageRef kept = dead->store("kept", parent);
  const PageRef pinned = survivor->store("pinned");
  ASSERT_EQ(dead->pin(pinned).status, shm::PinStatus::kPinned);
  dead->take();
  dead->take(3);
  // SEALED under a parent that counts it already.
  const PageRef sealed = dead->take();
  home.region.block(sealed.page()).parent.store_relaxed(parent.bits);
  home.region.block(sealed.page()).word.store_release(PageWord::sealed(sealed.generation(), dead->lane.id).bits);
  ASSERT_TRUE(shm::add_child(home.region, parent));
  // RETIRED, pinned by itself, not freed.
  const PageRef retired = dead->store("retired");
  ASSERT_EQ(dead->pin(retired).status, shm::PinStatus::kPinned);
  ASSERT_EQ(shm::retire_ref(dead->lane, retired), shm::RetireStatus::kRetired);
  // READY, pinned by its publisher, and in no bucket.
  const PageRef unseen = dead->take();
  ASSERT_EQ(dead->pins.pin_own(unseen).status, shm::PinStatus::kPinned);
  home.region.block(unseen.page()).parent.store_relaxed(0);
  home.region.detail(unseen.page()).owner.store_relaxed(dead->lane.id.low());
  home.region.block(unseen.page()).word.store_release(PageWord::ready(unseen.generation(), 0).bits);
  ASSERT_EQ(home.word(parent.page()).children(), 2u);

  home.pool->client_died(dead->grant.lane);
  home.settle();
  EXPECT_EQ(home.count(PageState::kReserved), 0u);
  EXPECT_EQ(home.count(PageState::kSealed), 0u);
  EXPECT_EQ(home.count(PageState::kRetired), 0u);
  EXPECT_EQ(home.count(PageState::kReady), 3u);
  EXPECT_EQ(home.word(parent.page()).children(), 1u);
  EXPECT_TRUE(home.word(kept.page()).is(PageState::kReady));
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(PoolReclaim, RegionsOfWhoLeftFindANewOwner) {
  PoolUnderTest home;
  auto first = home.attach();
  ASSERT_TRUE(first->rent(home.region.pages()));
  first->store("stays");
  home.pool->detach(first->grant.lane);
  const nlohmann::json states = home.pool->status_json(home.now_ms)["region_states"];
  EXPECT_EQ(states["orphaned"], 1);
  EXPECT_EQ(states["rented"], 0);
  auto second = home.attach();
  ASSERT_TRUE(second->rent(home.region.pages()));
  EXPECT_EQ(second->regions.size(), home.region.regions());
  EXPECT_TRUE(home.exists("stays"));
  EXPECT_TRUE(second->evicted.empty() || second->evicted.size() == 1);
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(PoolReclaim, DetachAnswersWithTheLaneFree) {
  PoolUnderTest home;
  auto client = home.attach();
  client->take();
  home.pool->detach(client->grant.lane);
  EXPECT_EQ(home.count(PageState::kOut), home.region.pages());
  EXPECT_EQ(shm::LaneSet::in_use(home.region).has(client->grant.lane), false);
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

// -- adoption ---------------------------------------------------------------------------------------------------------

TEST(PoolAdopt, KeepsBlocksLanesRegionsAndOrder) {
  PoolUnderTest home;
  auto client = home.attach();
  const std::vector<PageRef> blocks = fill(home, *client);
  ++home.now_ms;
  client->touch(blocks[0]);
  const uint64_t epoch = home.pool->epoch();
  ASSERT_TRUE(home.restart());
  EXPECT_EQ(home.pool->epoch(), epoch + 1);
  ASSERT_EQ(home.pool->adopted_lanes().size(), 1u);
  EXPECT_EQ(home.pool->adopted_lanes()[0].who.start_time, 100u);
  EXPECT_TRUE(home.pool->adopted_lanes()[0].same_boot);
  const auto grant = home.pool->attach({1000, 0, 0, 100}, client->grant.lane, client->grant.generation, home.now_ms);
  ASSERT_TRUE(grant.has_value());
  EXPECT_TRUE(grant->kept);
  EXPECT_TRUE(home.pool->adopted_lanes().empty());
  ASSERT_TRUE(client->rent(3));
  EXPECT_EQ(client->evicted, (Keys{name(1), name(2), name(3)}));
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(PoolAdopt, FinishesWhatTheOldMarudBeganAndWhatNobodyHolds) {
  PoolUnderTest home;
  auto client = home.attach(), reader = home.attach();
  const PageRef parent = client->store("parent");
  const PageRef child = client->store("child", parent);
  const PageRef marked = client->store("marked");
  const PageRef pinned = client->store("pinned");
  ASSERT_EQ(reader->pin(pinned).status, shm::PinStatus::kPinned);
  shm::LaneContext old_marud;
  old_marud.region = &home.region;
  old_marud.id = shm::daemon_lane(home.region);
  ASSERT_EQ(shm::retire_ref(old_marud, pinned), shm::RetireStatus::kRetired);
  ASSERT_EQ(shm::retire_ref(old_marud, child), shm::RetireStatus::kRetired);
  home.region.block(marked.page()).word.store_release(PageWord::retiring(marked.generation(), 0, 9).bits);
  ASSERT_TRUE(shm::add_child(home.region, parent));
  const PageRef stray = client->take();
  home.region.block(stray.page()).word.store_release(PageWord::reserved(stray.generation(), {7, 7}).bits);
  const PageRef mine = client->take();

  ASSERT_TRUE(home.restart());
  EXPECT_EQ(home.word(parent.page()), PageWord::ready(parent.generation(), 0));
  EXPECT_TRUE(home.word(child.page()).is(PageState::kFree));
  EXPECT_TRUE(home.word(stray.page()).is(PageState::kFree));
  EXPECT_EQ(home.word(mine.page()), PageWord::reserved(mine.generation(), client->lane.id));
  EXPECT_TRUE(home.word(pinned.page()).is(PageState::kRetired));
  EXPECT_TRUE(home.word(marked.page()).is(PageState::kReady));
  shm::clear_pins(home.region, reader->grant.lane);
  home.settle();
  EXPECT_TRUE(home.word(pinned.page()).is(PageState::kFree));
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

// Any client can write the epoch back, and the next marud is called as the last one was.
TEST(PoolAdopt, TakesBackWhatAMarudOfTheSameGenerationHeld) {
  PoolUnderTest home;
  auto client = home.attach();
  const shm::LaneId marud = shm::daemon_lane(home.region);
  const PageRef taken = client->take(), retired = client->store("retired");
  home.region.block(taken.page()).word.store_release(PageWord::reserved(taken.generation(), marud).bits);
  home.region.block(retired.page()).word.store_release(PageWord::retired(retired.generation(), marud).bits);
  home.region.overflow(0).tags.header.store_release(1ull << 28 | marud.low());
  home.region.host(0).epoch.store_release(home.pool->epoch() - 1);
  ASSERT_TRUE(home.restart());
  ASSERT_EQ(shm::daemon_lane(home.region), marud);
  EXPECT_TRUE(home.word(taken.page()).is(PageState::kFree));
  EXPECT_TRUE(home.word(retired.page()).is(PageState::kFree));
  EXPECT_EQ(home.region.overflow(0).tags.header.load_acquire(), 0u);
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

TEST(PoolAdopt, RefusesWhatIsNoPool) {
  PoolUnderTest home;
  home.mapping.data()[100] ^= std::byte{1};
  EXPECT_FALSE(home.restart());
}

// -- trees and administration -----------------------------------------------------------------------------------------

TEST(PoolDelete, ATreeGoesLeavesFirst) {
  PoolUnderTest home;
  auto client = home.attach();
  const PageRef root = client->store("root");
  const PageRef left = client->store("left", root);
  client->store("right", root);
  const PageRef leaf = client->store("leaf", left);
  client->store("bystander");
  const shm::Pin pin = client->pin(leaf);
  const shm::Digest digest = home.digest("root");
  DeleteTreeResult result = home.delete_tree(digest);
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.deleted, 1u);
  EXPECT_EQ(result.left, 3u);
  client->pins.unpin(pin.slot, leaf);
  result = home.delete_tree(digest);
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.deleted, 3u);
  EXPECT_TRUE(home.exists("bystander"));
  EXPECT_EQ(home.delete_tree(digest).status, -ENOENT);
  EXPECT_EQ(home.audit(), std::set<std::string>{});
}

// Parents are read from memory that anybody may write to.
TEST(PoolDelete, ACycleThatSomebodyScribbledEnds) {
  PoolUnderTest home;
  auto client = home.attach();
  const PageRef root = client->store("root");
  const PageRef middle = client->store("middle", root);
  const PageRef leaf = client->store("leaf", middle);
  client->store("bystander");
  home.region.block(root.page()).parent.store_release(leaf.bits);
  const shm::Digest digest = home.digest("root");
  const DeleteTreeResult result = home.delete_tree(digest);
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(result.deleted, 3u);
  EXPECT_EQ(result.left, 0u) << "each is met once";
  EXPECT_TRUE(home.exists("bystander"));
}

TEST(PoolAdmin, ListsBlocksByPrefixAndOneInFull) {
  PoolUnderTest home;
  auto client = home.attach();
  const PageRef root = client->store("a/root");
  client->store("a/leaf", root);
  client->store("b");
  client->store(std::string_view("\x01\x02", 2));
  auto reply = home.pool->admin("blocks", {{"prefix", "a/"}}, home.now_ms);
  ASSERT_EQ(reply["blocks"].size(), 2u);
  EXPECT_EQ(reply["blocks"][0]["key"], "a/root");
  EXPECT_EQ(reply["blocks"][0]["children"], 1);
  reply = home.pool->admin("blocks", {{"prefix", "0x01"}}, home.now_ms);
  ASSERT_EQ(reply["blocks"].size(), 1u);
  EXPECT_EQ(reply["blocks"][0]["key"], "0x0102");
  client->pin(root);
  reply = home.pool->admin("block", {{"key", "a/root"}}, home.now_ms);
  EXPECT_EQ(reply["pinned_by"][0]["lane"], client->grant.lane);
  EXPECT_EQ(home.pool->admin("block", {{"key", "none"}}, home.now_ms)["errno"], ENOENT);
  // Walks in pieces.
  size_t rows = 0;
  nlohmann::json request = {{"limit", 1}};
  for (int i = 0; i < 10; ++i) {
    reply = home.pool->admin("blocks", request, home.now_ms);
    rows += reply["blocks"].size();
    if (!reply.contains("next")) break;
    request["cursor"] = reply["next"];
  }
  EXPECT_EQ(rows, 4u);
}

TEST(PoolAdmin, ShowsPinsWithTheirAge) {
  PoolUnderTest home;
  auto client = home.attach();
  const PageRef ref = client->store("held");
  client->pin(ref);
  home.settle();
  const uint64_t before_ms = home.now_ms;
  home.settle();
  const auto reply = home.pool->admin("pins", nlohmann::json::object(), home.now_ms);
  ASSERT_EQ(reply["pins"].size(), 1u);
  EXPECT_EQ(reply["pins"][0]["key"], "held");
  EXPECT_GE(reply["pins"][0]["age_ms"].get<uint64_t>(), home.now_ms - before_ms);
}

TEST(PoolAdmin, EvictClearAndCheck) {
  PoolUnderTest home;
  auto client = home.attach();
  const std::vector<PageRef> blocks = fill(home, *client);
  auto reply = home.pool->admin("evict", {{"pages", 3}}, home.now_ms);
  EXPECT_EQ(reply["evicted_pages"], 3);
  EXPECT_FALSE(home.exists(name(2)));
  EXPECT_TRUE(home.exists(name(3)));
  const shm::Pin pin = client->pin(blocks[9]);
  reply = home.pool->admin("clear", nlohmann::json::object(), home.now_ms);
  EXPECT_EQ(reply["deleted_when_unpinned"], 1);
  EXPECT_EQ(home.count(PageState::kReady), 0u);
  EXPECT_FALSE(home.exists(name(9)));
  EXPECT_EQ(home.pool->status_json(home.now_ms)["retired_waiting"], 1) << "it does not wait for a sweep to come by";
  client->pins.unpin(pin.slot, blocks[9]);
  home.settle();
  EXPECT_EQ(home.count(PageState::kRetired), 0u);
  EXPECT_EQ(home.pool->admin("check", {{"quiesce", true}}, home.now_ms)["found"], 0);
  home.region.block(0).word.store_release(~0ull);
  EXPECT_NE(home.pool->admin("check", nlohmann::json::object(), home.now_ms)["found"], 0);
}

TEST(PoolAdmin, TotalsDoNotFallWhenClientsLeave) {
  PoolUnderTest home;
  auto client = home.attach();
  client->lane.header().counters[format::kCounterStores].fetch_add_relaxed(5);
  EXPECT_EQ(home.pool->lane_json(client->grant.lane, home.now_ms)["counters"]["stores"], 5);
  home.pool->detach(client->grant.lane);
  EXPECT_EQ(home.pool->status_json(home.now_ms)["counters"]["stores"], 5);
}

TEST(PoolAdmin, AClientThatStandsStillIsNoDamage) {
  PoolUnderTest home;
  auto client = home.attach();
  const std::vector<PageRef> blocks = fill(home, *client);
  AtomicU64& intent = client->lane.header().parent_intent[0];
  intent.store_release(blocks[0].bits);
  EXPECT_NE(home.pool->admin("check", {{"quiesce", true}}, home.now_ms)["found"], 0) << "who asked is told";
  EXPECT_EQ(home.pool->audit_findings(), 0u);
  EXPECT_EQ(home.pool->status_json(home.now_ms)["audit"]["found"], 0);
  home.region.block(0).word.store_release(~0ull);
  EXPECT_NE(home.pool->admin("check", {{"quiesce", true}}, home.now_ms)["found"], 0);
  EXPECT_NE(home.pool->audit_findings(), 0u);
}

// Whatever the marud before had got to with a client that was gone.
TEST(PoolAdmin, TotalsOutliveMarud) {
  PoolUnderTest home;
  const auto stores = [&] { return home.pool->status_json(home.now_ms)["counters"]["stores"].get<uint64_t>(); };
  const auto count = [&](const std::unique_ptr<InProcessClient>& client, uint64_t by) {
    client->lane.header().counters[format::kCounterStores].fetch_add_relaxed(by);
  };
  auto gone = home.attach(), dying = home.attach(), staying = home.attach();
  count(gone, 5);
  count(dying, 30);
  count(staying, 700);
  home.pool->detach(gone->grant.lane);
  home.settle();
  ASSERT_TRUE(home.restart());
  EXPECT_EQ(stores(), 735u);
  home.pool->client_died(dying->grant.lane);  // and nothing of it is taken back
  ASSERT_TRUE(home.restart());
  EXPECT_EQ(stores(), 735u);
  home.settle();
  EXPECT_EQ(stores(), 735u);
  // marud died before it had read the lane.
  home.region.identity(staying->grant.lane).state.store_release(uint64_t(format::LaneState::kDead));
  ASSERT_TRUE(home.restart());
  EXPECT_EQ(stores(), 735u);
}

// One pass, whatever names somebody wrote there.
TEST(PoolAdopt, OverflowBucketsOfAnyNumberOfDeadLanesAreReleased) {
  PoolUnderTest home(512u << 20, 4096);
  const uint64_t count = home.region.overflow_buckets();
  ASSERT_GT(count, 4096u);
  for (uint64_t i = 0; i < count; ++i)
    home.region.overflow(i).tags.header.store_relaxed(1ull << 28 | shm::LaneId{3, 2 + uint32_t(i)}.low());
  ASSERT_TRUE(home.restart());
  uint64_t left = 0;
  for (uint64_t i = 0; i < count; ++i) left += home.region.overflow(i).tags.header.load_relaxed() != 0;
  EXPECT_EQ(left, 0u);
}

}  // namespace
}  // namespace maru::daemon
