#include "libmaru/shm/blocks/block_store.h"
#include "small_pool.h"

#include <cstring>

namespace maru::shm {
namespace {

constexpr uint64_t kNow = 1'700'000'001'000;

class BlockStoreTest : public testing::Test {
 protected:
  PageRef find(std::string_view key, uint64_t now_ms = kNow) {
    const Found found = find_and_pin(pool_.lane(2), pool_.digest(key), now_ms);
    if (found.status != FindStatus::kFound) return PageRef::none();
    EXPECT_TRUE(pool_.client(2).pins.unpin(found.slot, found.ref));
    return found.ref;
  }
  PublishResult publish_one(const NewBlock& block, PageRef* ret_own = nullptr) {
    const PageRef own = pool_.take(1);
    if (ret_own) *ret_own = own;
    return publish(pool_.lane(1), own, block);
  }
  uint32_t children(PageRef ref) { return pool_.word(ref.page()).children(); }
  // Nothing was published: the page is the lane's as before, and no pin is left.
  void expect_withdrawn(PageRef own) {
    EXPECT_EQ(pool_.word(own.page()), PageWord::reserved(own.generation(), pool_.lane(1).id));
    EXPECT_EQ(pool_.client(1).pins.slots_in_use(), 0u);
    EXPECT_EQ(pool_.audit(), Names{});
    EXPECT_GT(give_back_run(pool_.region, pool_.lane(1).id, own), 0u);
  }

  SmallPool pool_;
};

TEST_F(BlockStoreTest, ARootIsFoundWithAllThatIsKnownOfIt) {
  NewBlock block = pool_.block("a");
  block.length = 4000;
  block.priority = 5;
  block.content_type = 3;
  block.payload_checksum = 77;
  PageRef own;
  const PublishResult result = publish_one(block, &own);
  ASSERT_EQ(result.status, PublishStatus::kStored);
  EXPECT_EQ(result.block, own);
  EXPECT_EQ(find("a"), own);
  EXPECT_EQ(find_unpinned(pool_.region, pool_.digest("a")), own);
  EXPECT_EQ(pool_.word(own.page()), PageWord::ready(own.generation(), 0));
  const format::BlockLine& line = pool_.region.block(own.page());
  EXPECT_EQ(line.length.load_relaxed(), 4000u);
  EXPECT_EQ(line.parent.load_relaxed(), 0u);
  EXPECT_EQ(line.shape.load_relaxed(), 1u);
  EXPECT_EQ(line.chain.load_relaxed(), chain_term(pool_.region.secret(), pool_.plain("a"), 0));
  const format::DetailLine& detail = pool_.region.detail(own.page());
  EXPECT_EQ(detail.kind.load_relaxed(), uint64_t{3} << 56 | 5);
  EXPECT_EQ(detail.checksum.load_relaxed(), 77u);
  EXPECT_EQ(detail.owner.load_relaxed(), pool_.lane(1).id.low());
  EXPECT_EQ(detail.stored_ms.load_relaxed(), kNow);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(BlockStoreTest, AChainCountsItsChildren) {
  const PageRef root = pool_.store(1, "a"), child = pool_.store(2, "b", root), leaf = pool_.store(1, "c", child);
  EXPECT_EQ(children(root), 1u);
  EXPECT_EQ(children(child), 1u);
  EXPECT_EQ(children(leaf), 0u);
  EXPECT_EQ(pool_.region.block(leaf.page()).shape.load_relaxed() >> 32, 2u);
  EXPECT_EQ(pool_.audit(), Names{});
  EXPECT_EQ(retire_ref(pool_.lane(1), root), RetireStatus::kHasChildren);
  EXPECT_EQ(retire_ref(pool_.lane(1), child), RetireStatus::kHasChildren);
  EXPECT_TRUE(pool_.remove(1, leaf));
  EXPECT_EQ(children(child), 0u);
  EXPECT_TRUE(pool_.remove(1, child));
  EXPECT_TRUE(pool_.remove(1, root));
  EXPECT_EQ(pool_.count(PageState::kFree), 64u);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(BlockStoreTest, AParentThatIsGoneIsAnErrorOfItsOwn) {
  const PageRef parent = pool_.store(1, "a");
  EXPECT_TRUE(pool_.remove(1, parent));
  PageRef own;
  for (const PageRef gone : {parent, PageRef::of(1000, 0), PageRef::of(parent.page(), 9)}) {
    EXPECT_EQ(publish_one(pool_.block("b", gone), &own).status, PublishStatus::kNoParent);
    expect_withdrawn(own);
  }
  own = pool_.take(1);
  EXPECT_EQ(publish(pool_.lane(1), own, pool_.block("b", own)).status, PublishStatus::kNoParent) << "its own parent";
  EXPECT_TRUE(find("b").is_none());
}

TEST_F(BlockStoreTest, ARetiredParentThatIsPinnedIsGoneToo) {
  const PageRef parent = pool_.store(1, "a");
  const Pin pin = pool_.client(2).pins.pin(parent);
  EXPECT_EQ(retire_ref(pool_.lane(1), parent), RetireStatus::kRetired);
  PageRef own;
  EXPECT_EQ(publish_one(pool_.block("b", parent), &own).status, PublishStatus::kNoParent);
  pool_.client(2).pins.unpin(pin.slot, parent);
  expect_withdrawn(own);
}

TEST_F(BlockStoreTest, ARetiringParentComesBackWithItsChild) {
  const PageRef parent = pool_.store(1, "a");
  pool_.set_word(parent.page(), PageWord::retiring(parent.generation(), 0, 1));
  pool_.store(1, "b", parent);
  EXPECT_EQ(pool_.word(parent.page()), PageWord::ready(parent.generation(), 1));
}

TEST_F(BlockStoreTest, ACountThatIsFullRefusesTheNextChild) {
  const PageRef parent = pool_.store(1, "a");
  pool_.set_word(parent.page(), PageWord::ready(parent.generation(), limits::kChildCountMax));
  EXPECT_FALSE(add_child(pool_.region, parent));
  pool_.set_word(parent.page(), PageWord::ready(parent.generation(), 0));
  drop_child(pool_.region, parent);
  EXPECT_EQ(children(parent), 0u) << "never below zero";
}

TEST_F(BlockStoreTest, TheSecondWriterLosesAndKeepsItsPage) {
  const PageRef first = pool_.store(1, "a");
  PageRef own;
  const PublishResult result = publish_one(pool_.block("a"), &own);
  EXPECT_EQ(result.status, PublishStatus::kDuplicate);
  EXPECT_EQ(result.block, first);
  expect_withdrawn(own);
}

TEST_F(BlockStoreTest, ALateLoserIsWithdrawnAndItsParentUncounted) {
  // The winner cannot be seen by the first look (its digest is hidden), only by the registry's own look at the bucket.
  const PageRef parent = pool_.store(1, "p");
  const PageRef winner = pool_.store(1, "a");
  pool_.region.block(winner.page()).expires_ms.store_relaxed(kNow - 1);
  PageRef own;
  const PublishResult result = publish_one(pool_.block("a", parent), &own);
  EXPECT_EQ(result.status, PublishStatus::kExpiredInTheWay);
  EXPECT_EQ(result.block, winner);
  EXPECT_EQ(children(parent), 0u);
  expect_withdrawn(own);
  // What the caller does about it: retire the expired one and try again.
  EXPECT_TRUE(pool_.remove(1, winner));
  EXPECT_EQ(publish_one(pool_.block("a", parent)).status, PublishStatus::kStored);
  EXPECT_EQ(children(parent), 1u);
}

TEST_F(BlockStoreTest, AWithdrawnRunKeepsItsTails) {
  const PageRef winner = pool_.store(1, "a");
  pool_.region.block(winner.page()).expires_ms.store_relaxed(kNow - 1);
  const PageRef own = pool_.take(1, 4);
  EXPECT_EQ(publish(pool_.lane(1), own, pool_.block("a")).status, PublishStatus::kExpiredInTheWay);
  EXPECT_EQ(pool_.region.run_pages(own.page()), 4u);
  for (uint32_t i = 1; i < 4; ++i) EXPECT_TRUE(pool_.word(own.page() + i).is(PageState::kTail));
  const PublishResult again = publish(pool_.lane(1), own, pool_.block("another key"));
  EXPECT_EQ(again.status, PublishStatus::kStored) << "the same run under another key";
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(BlockStoreTest, OnlyAReservedRunOfTheLaneIsPublished) {
  const PageRef own = pool_.take(1);
  EXPECT_EQ(publish(pool_.lane(2), own, pool_.block("a")).status, PublishStatus::kNotReserved);
  EXPECT_EQ(publish(pool_.lane(1), PageRef::of(own.page(), 5), pool_.block("a")).status, PublishStatus::kNotReserved);
  EXPECT_EQ(publish(pool_.lane(1), PageRef::of(1000, 0), pool_.block("a")).status, PublishStatus::kNotReserved);
  EXPECT_EQ(publish(pool_.lane(1), own, pool_.block("a")).status, PublishStatus::kStored);
  EXPECT_EQ(publish(pool_.lane(1), own, pool_.block("b")).status, PublishStatus::kNotReserved) << "published already";
}

TEST_F(BlockStoreTest, NoPinSlotIsNotAMiss) {
  const PageRef stored = pool_.store(1, "a");
  std::vector<std::pair<Pin, PageRef>> pins;
  for (uint32_t page = 0; page < 64; ++page) {  // takes every slot of lanes 1 and 2, whatever the pages are
    for (const uint32_t lane : {1u, 2u}) pool_.client(lane).pins.pin_own(PageRef::of(page, 9));
    for (const uint32_t lane : {1u, 2u}) pool_.client(lane).pins.pin_own(PageRef::of(page, 10));
  }
  EXPECT_EQ(find_and_pin(pool_.lane(2), pool_.digest("a"), kNow).status, FindStatus::kPinsFull);
  EXPECT_EQ(publish_one(pool_.block("b")).status, PublishStatus::kPinsFull);
  EXPECT_EQ(find_unpinned(pool_.region, pool_.digest("a")), stored);
  EXPECT_TRUE(find_unpinned(pool_.region, pool_.digest("b")).is_none());
}

TEST_F(BlockStoreTest, ADeletedBlockThatIsPinnedIsGoneAtOnceAndFreedLater) {
  const PageRef parent = pool_.store(1, "p"), ref = pool_.store(1, "a", parent);
  const Found held = find_and_pin(pool_.lane(2), pool_.digest("a"), kNow);
  ASSERT_EQ(held.status, FindStatus::kFound);
  PageRef retired;
  EXPECT_EQ(retire(pool_.lane(3), pool_.digest("a"), &retired), RetireStatus::kRetired);
  EXPECT_EQ(retired, ref);
  EXPECT_TRUE(find("a").is_none());
  EXPECT_FALSE(registry_exists(pool_.region, pool_.digest("a")));
  EXPECT_EQ(finish_retired(pool_.lane(3), ref, pool_.lanes, nullptr), FinishStatus::kPinned);
  EXPECT_EQ(children(parent), 1u) << "it holds its ancestors while somebody holds it";
  EXPECT_EQ(retire(pool_.lane(1), pool_.digest("a"), &retired), RetireStatus::kAbsent);

  EXPECT_EQ(finish_retired(pool_.lane(1), ref, pool_.lanes, nullptr), FinishStatus::kNotMine);
  EXPECT_TRUE(hand_over_retired(pool_.region, ref, pool_.lane(3).id, daemon_lane(pool_.region)));
  EXPECT_FALSE(hand_over_retired(pool_.region, ref, pool_.lane(3).id, daemon_lane(pool_.region)));
  EXPECT_EQ(finish_retired(pool_.lane(0), ref, pool_.lanes, nullptr), FinishStatus::kPinned);
  // The key may be stored again meanwhile.
  const PageRef again = pool_.store(1, "a", parent);
  EXPECT_EQ(children(parent), 2u);
  EXPECT_EQ(pool_.audit(), Names{});
  EXPECT_TRUE(pool_.client(2).pins.unpin(held.slot, ref));
  uint32_t pages = 0;
  EXPECT_EQ(finish_retired(pool_.lane(0), ref, pool_.lanes, &pages), FinishStatus::kFreed);
  EXPECT_EQ(pages, 1u);
  EXPECT_EQ(children(parent), 1u);
  EXPECT_EQ(find("a"), again);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(BlockStoreTest, ARunIsFreedWhole) {
  const PageRef own = pool_.take(1, 5);
  ASSERT_EQ(publish(pool_.lane(1), own, pool_.block("a")).status, PublishStatus::kStored);
  EXPECT_EQ(retire_ref(pool_.lane(2), own), RetireStatus::kRetired);
  uint32_t pages = 0;
  EXPECT_EQ(finish_retired(pool_.lane(2), own, pool_.lanes, &pages), FinishStatus::kFreed);
  EXPECT_EQ(pages, 5u);
  for (uint32_t i = 0; i < 5; ++i) EXPECT_EQ(pool_.word(own.page() + i), PageWord::free(own.generation() + 1));
}

TEST_F(BlockStoreTest, IntentsAreClosed) {
  const PageRef parent = pool_.store(1, "p");
  EXPECT_TRUE(pool_.remove(1, pool_.store(1, "a", parent)));
  for (const AtomicU64& intent : pool_.lane(1).header().parent_intent) EXPECT_EQ(intent.load_relaxed(), 0u);
  EXPECT_EQ(pool_.lane(1).intents_in_use.load_relaxed(), 0u);
}

TEST_F(BlockStoreTest, ExpiredBlocksAreAbsentAndNeverOutliveTheirParent) {
  NewBlock root = pool_.block("a");
  root.expires_ms = kNow + 1000;
  const PageRef parent = publish_one(root).block;
  NewBlock child = pool_.block("b", parent);
  child.expires_ms = kNow + 5000;
  const PageRef ref = publish_one(child).block;
  EXPECT_EQ(pool_.region.block(ref.page()).expires_ms.load_relaxed(), kNow + 1000);
  child = pool_.block("c", parent);
  EXPECT_EQ(pool_.region.block(publish_one(child).block.page()).expires_ms.load_relaxed(), kNow + 1000);
  child = pool_.block("d", parent);
  child.expires_ms = kNow + 10;
  EXPECT_EQ(pool_.region.block(publish_one(child).block.page()).expires_ms.load_relaxed(), kNow + 10);
  EXPECT_EQ(find("b", kNow + 999), ref);
  EXPECT_TRUE(find("b", kNow + 1000).is_none());
  EXPECT_EQ(find("b", 0), ref) << "0 ignores expiry";
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(BlockStoreTest, KeysOfEveryKindAndLengthComeBack) {
  KeyBytes key;
  for (const size_t size : {1u, 7u, 8u, 63u, 64u, 65u, 500u, 4096u}) {
    std::string text(size, 'k');
    text[0] = char('a' + size % 26);
    const PageRef ref = pool_.store(1, text);
    ASSERT_TRUE(read_key(pool_.region, ref, &key));
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(key.data), key.size), text);
    EXPECT_EQ(key.kind, 0u);
    EXPECT_TRUE(pool_.remove(1, ref));
    EXPECT_FALSE(read_key(pool_.region, ref, &key)) << "that life is over";
  }
  const uint64_t words[4] = {1, 2, 3, 4};
  NewBlock block = pool_.block("");
  block.tenant = tenant_id(pool_.region.secret(), bytes_of("t"));
  block.digest = digest_of_256(pool_.region.secret(), words, block.tenant);
  block.key = std::as_bytes(std::span(words));
  block.key_kind = 2;
  const PageRef ref = publish_one(block).block;
  ASSERT_TRUE(read_key(pool_.region, ref, &key));
  EXPECT_EQ(key.kind, 2u);
  EXPECT_EQ(key.size, 32u);
  EXPECT_EQ(key.tenant, block.tenant);
  EXPECT_EQ(std::memcmp(key.data, words, 32), 0);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(BlockStoreTest, LongKeysUseCellsAndGiveThemBackByBeingFreed) {
  const auto long_key = [](char c) { return std::string(200, c); };
  std::vector<PageRef> refs;
  for (const char c : {'a', 'b', 'c', 'd'}) refs.push_back(pool_.store(1, long_key(c)));
  const std::string fifth = long_key('e');
  PageRef own;
  EXPECT_EQ(publish_one(pool_.block(fifth), &own).status, PublishStatus::kKeySpaceFull);
  expect_withdrawn(own);
  KeyBytes key;
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(read_key(pool_.region, refs[i], &key));
    EXPECT_EQ(char(key.data[0]), char('a' + i));
  }
  EXPECT_EQ(pool_.audit(), Names{});
  EXPECT_TRUE(pool_.remove(1, refs[2]));
  const PageRef stored = pool_.store(1, fifth);
  ASSERT_TRUE(read_key(pool_.region, stored, &key));
  EXPECT_EQ(char(key.data[199]), 'e');
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(BlockStoreTest, DamagedKeysAreRefused) {
  const PageRef ref = pool_.store(1, "a");
  KeyBytes key;
  AtomicU64& word = pool_.region.detail(ref.page()).key;
  for (const uint64_t damaged : {uint64_t{0}, uint64_t{5000} << 32, uint64_t{65} << 32, uint64_t{1} << 32 | 0xFFFF'FFFF,
                                 uint64_t{1} << 32 | 5, uint64_t{1} << 32 | 1, ~uint64_t{0}}) {
    word.store_relaxed(damaged);
    EXPECT_FALSE(read_key(pool_.region, ref, &key)) << std::hex << damaged;
  }
  EXPECT_FALSE(read_key(pool_.region, PageRef::of(64, 0), &key));
}

TEST_F(BlockStoreTest, AFullBucketIsAnErrorOfItsOwnAndNothingIsLeft) {
  // Digests are chosen so that all fall into one bucket; the key that is stored does not matter here.
  const uint64_t half = ~uint64_t{0} / pool_.region.buckets() / 2;
  PublishResult result;
  PageRef own;
  for (uint32_t i = 0; i < 15; ++i) {
    NewBlock block = pool_.block("x");
    block.digest = {i, half + i};
    result = publish_one(block, &own);
    ASSERT_EQ(result.status, i < 14 ? PublishStatus::kStored : PublishStatus::kRegistryFull) << i;
  }
  EXPECT_EQ(pool_.word(own.page()), PageWord::reserved(own.generation(), pool_.lane(1).id));
  EXPECT_EQ(pool_.client(1).pins.slots_in_use(), 0u);
}

}  // namespace
}  // namespace maru::shm
