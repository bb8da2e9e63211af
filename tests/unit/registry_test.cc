#include "libmaru/shm/blocks/registry.h"
#include "small_pool.h"

#include <algorithm>
#include <map>
#include <random>

namespace maru::shm {
namespace {

// Digests are made up here, so pages get a READY word and a digest without a key.
class RegistryTest : public testing::Test {
 protected:
  explicit RegistryTest(const PoolShape& shape = {}) : pool_(shape) {}

  PageRef make_block(uint32_t page, const Digest& digest) {
    const uint32_t generation = pool_.word(page).generation();
    format::BlockLine& line = pool_.region.block(page);
    line.digest_lo.store_relaxed(digest.lo);
    line.digest_hi.store_relaxed(digest.hi);
    line.shape.store_relaxed(1);
    pool_.set_word(page, PageWord::ready(generation, 0));
    return PageRef::of(page, generation);
  }
  InsertResult insert(const Digest& digest, PageRef own, uint64_t now_ms = 0) {
    const Pin pin = pins_.pin_own(own);
    const InsertResult result = registry_insert(pool_.region, id_, pins_, digest, own, now_ms);
    pins_.unpin(pin.slot, own);
    return result;
  }
  // Retires, removes and frees, as block_store does.
  bool remove(const Digest& digest, PageRef ref) {
    pool_.set_word(ref.page(), PageWord::retired(ref.generation(), id_));
    const bool removed = registry_remove(pool_.region, id_, digest, ref);
    pool_.set_word(ref.page(), PageWord::free(ref.generation() + 1));
    return removed;
  }
  PageRef find(const Digest& digest) {
    const Candidates candidates = registry_find(pool_.region, digest);
    for (uint32_t i = 0; i < candidates.count; ++i)
      if (block_digest(pool_.region, candidates.ref(i).page()) == digest) return candidates.ref(i);
    return PageRef::none();
  }
  // The n-th digest whose home is `bucket`.
  Digest in_bucket(uint64_t bucket, uint64_t n, uint64_t tag) {
    const uint64_t step = ~uint64_t{0} / pool_.region.buckets();
    const Digest digest{tag, bucket * step + step / 2 + n};
    EXPECT_EQ(home_bucket(pool_.region, digest), bucket);
    return digest;
  }
  Names audit() {
    Names names = pool_.audit();
    for (const char* made_up : {"block.key", "block.digest", "block.chain"}) names.erase(made_up);
    return names;
  }
  uint32_t overflow_in_use() {
    uint32_t n = 0;
    for (uint64_t i = 0; i < pool_.region.overflow_buckets(); ++i)
      n += pool_.region.overflow(i).tags.header.load_relaxed() != 0;
    return n;
  }

  SmallPool pool_;
  PinTable& pins_ = pool_.client(1).pins;
  const LaneId id_{1, 7};
};

TEST_F(RegistryTest, FindsWhatWasInsertedUntilItIsRemoved) {
  const Digest digest{1, 2};
  EXPECT_FALSE(registry_exists(pool_.region, digest));
  const PageRef ref = make_block(3, digest);
  EXPECT_EQ(insert(digest, ref).status, InsertStatus::kInserted);
  EXPECT_TRUE(registry_exists(pool_.region, digest));
  EXPECT_EQ(find(digest), ref);
  EXPECT_TRUE(remove(digest, ref));
  EXPECT_FALSE(registry_exists(pool_.region, digest));
  EXPECT_FALSE(remove(digest, ref)) << "it was taken away already";
}

TEST_F(RegistryTest, TheFirstWriterWins) {
  const Digest digest{1, 2};
  const PageRef first = make_block(3, digest), second = make_block(4, digest);
  EXPECT_EQ(insert(digest, first).status, InsertStatus::kInserted);
  const InsertResult lost = insert(digest, second);
  EXPECT_EQ(lost.status, InsertStatus::kDuplicate);
  EXPECT_EQ(lost.winner, first);
  pool_.set_word(4, PageWord::free(1));
  EXPECT_EQ(audit(), Names{});
}

TEST_F(RegistryTest, ARetiringWinnerIsRevived) {
  const Digest digest{1, 2};
  const PageRef first = make_block(3, digest), second = make_block(4, digest);
  insert(digest, first);
  pool_.set_word(3, PageWord::retiring(0, 0, 1));
  EXPECT_EQ(insert(digest, second).status, InsertStatus::kDuplicate);
  EXPECT_EQ(pool_.word(3), PageWord::ready(0, 0));
}

TEST_F(RegistryTest, ARetiredOneIsHelpedOutOfSight) {
  const Digest digest{1, 2};
  const PageRef first = make_block(3, digest), second = make_block(4, digest);
  insert(digest, first);
  pool_.set_word(3, PageWord::retired(0, id_));
  EXPECT_EQ(insert(digest, second).status, InsertStatus::kInserted);
  EXPECT_EQ(find(digest), second);
  EXPECT_FALSE(registry_remove(pool_.region, id_, digest, first));
  EXPECT_EQ(find(digest), second);
}

TEST_F(RegistryTest, AnExpiredOneIsNamedAsBeingInTheWay) {
  const Digest digest{1, 2};
  const PageRef first = make_block(3, digest), second = make_block(4, digest);
  insert(digest, first);
  pool_.region.block(3).expires_ms.store_relaxed(1000);
  EXPECT_EQ(insert(digest, second, 999).status, InsertStatus::kDuplicate);
  EXPECT_EQ(insert(digest, second, 0).status, InsertStatus::kDuplicate) << "0 ignores expiry";
  const InsertResult result = insert(digest, second, 1000);
  EXPECT_EQ(result.status, InsertStatus::kExpiredInTheWay);
  EXPECT_EQ(result.winner, first);
}

TEST_F(RegistryTest, EqualTagsAreToldApartByTheBlock) {
  std::vector<std::pair<Digest, PageRef>> blocks;
  for (uint32_t i = 0; i < 10; ++i) {  // more than one bucket holds
    const Digest digest = in_bucket(4, i, 77);
    blocks.push_back({digest, make_block(i, digest)});
    ASSERT_EQ(insert(digest, blocks.back().second).status, InsertStatus::kInserted);
  }
  EXPECT_EQ(registry_find(pool_.region, blocks[0].first).count, 10u);
  for (const auto& [digest, ref] : blocks) EXPECT_EQ(find(digest), ref);
  EXPECT_TRUE(find(in_bucket(4, 99, 77)).is_none());
  EXPECT_EQ(audit(), Names{});
  for (const auto& [digest, ref] : blocks) EXPECT_TRUE(remove(digest, ref));
  EXPECT_FALSE(registry_exists(pool_.region, blocks[0].first));
}

// The vector code compares tags in halves of 32 bits, several at once, beside the header. Each slot has halves of its own. A
// tag that combines halves of two slots is absent.
TEST_F(RegistryTest, TagsThatDifferInHalfTheirBitsAreNotTaken) {
  constexpr uint32_t kTags = 2 * uint32_t(limits::kBucketSlots);
  const auto tag_of = [](uint64_t high, uint64_t low) { return (0xa000'0000 + high) << 32 | (0x5000'0000 + low); };
  for (uint32_t n = 0; n < kTags; ++n) {
    const Digest digest = in_bucket(1, n, tag_of(n, n));
    ASSERT_EQ(insert(digest, make_block(n, digest)).status, InsertStatus::kInserted);
  }
  const format::Bucket& home = pool_.region.bucket(1);
  for (uint64_t high = 0; high <= kTags; ++high)
    for (uint64_t low = 0; low <= kTags; ++low) {
      const Digest digest = in_bucket(1, low, tag_of(high, low));
      const bool is_there = high == low && low < kTags;
      EXPECT_EQ(registry_exists(pool_.region, digest), is_there) << high << " " << low;
      uint8_t present = 2;
      EXPECT_EQ(registry_exists_batch(pool_.region, &digest, 1, &present), size_t{is_there});
      EXPECT_EQ(present, uint8_t{is_there});
      EXPECT_EQ(registry_find(pool_.region, digest).count, uint32_t{is_there});
      EXPECT_EQ(!registry_find_plain(pool_.region, home, digest).is_none(), is_there && low < limits::kBucketSlots);
      if (is_there) {
        EXPECT_EQ(find(digest).page(), low);
      }
    }
  // The header lies beside the tags, and is none.
  const uint64_t header = home.tags.header.load_acquire();
  for (const uint64_t tag : {header, header << 32 | header >> 32, uint64_t{0}})
    EXPECT_FALSE(registry_exists(pool_.region, in_bucket(1, 0, tag)));
}

TEST_F(RegistryTest, AnOverflowBucketIsClaimedReleasedAndUsedAgain) {
  std::vector<std::pair<Digest, PageRef>> blocks;
  for (uint32_t i = 0; i < 14; ++i) {
    const Digest digest = in_bucket(4, i, 100 + i);
    blocks.push_back({digest, make_block(i, digest)});
    ASSERT_EQ(insert(digest, blocks.back().second).status, InsertStatus::kInserted) << i;
    EXPECT_EQ(overflow_in_use(), i < 7 ? 0u : 1u);
  }
  const Digest one_more = in_bucket(4, 14, 114);
  EXPECT_EQ(insert(one_more, make_block(14, one_more)).status, InsertStatus::kFull);
  pool_.set_word(14, PageWord::free(1));
  EXPECT_EQ(audit(), Names{});
  for (const auto& [digest, ref] : blocks) EXPECT_TRUE(registry_exists(pool_.region, digest));
  for (uint32_t i = 7; i < 14; ++i) EXPECT_TRUE(remove(blocks[i].first, blocks[i].second));
  EXPECT_EQ(overflow_in_use(), 0u);
  EXPECT_EQ(pool_.region.bucket(4).tags.header.load_relaxed() & format::kOverflowFlag, 0u);
  EXPECT_EQ(audit(), Names{});
  EXPECT_EQ(insert(one_more, make_block(14, one_more)).status, InsertStatus::kInserted);
  EXPECT_EQ(overflow_in_use(), 1u);
  EXPECT_EQ(find(one_more), PageRef::of(14, 1));
}

TEST_F(RegistryTest, NoOverflowBucketLeftIsFull) {
  for (uint64_t i = 0; i < pool_.region.overflow_buckets(); ++i)
    pool_.region.overflow(i).tags.header.store_relaxed(uint64_t{i + 1} << 28 | LaneId{2, 7}.low());
  for (uint32_t i = 0; i < 7; ++i) {
    const Digest digest = in_bucket(10, i, 100 + i);
    EXPECT_EQ(insert(digest, make_block(i, digest)).status, InsertStatus::kInserted);
  }
  const Digest digest = in_bucket(10, 7, 107);
  EXPECT_EQ(insert(digest, make_block(7, digest)).status, InsertStatus::kFull);
  release_overflow_of(pool_.region, {3, 7});
  EXPECT_EQ(insert(digest, PageRef::of(7, 0)).status, InsertStatus::kFull) << "nothing was lane 3's";
  release_overflow_of(pool_.region, {2, 7});  // claimed, and linked by nobody
  EXPECT_EQ(insert(digest, PageRef::of(7, 0)).status, InsertStatus::kInserted);
}

TEST_F(RegistryTest, TheOverflowBucketOfADeadLaneStaysWithItsHomeWhileLinked) {
  for (uint32_t i = 0; i < 8; ++i) {
    const Digest digest = in_bucket(4, i, 100 + i);
    insert(digest, make_block(i, digest));
  }
  release_overflow_of(pool_.region, id_);
  EXPECT_EQ(overflow_in_use(), 1u);
  EXPECT_EQ(audit(), Names{});
  EXPECT_TRUE(remove(in_bucket(4, 7, 107), PageRef::of(7, 0)));
  EXPECT_EQ(overflow_in_use(), 0u) << "released by whoever takes the last entry";
}

TEST_F(RegistryTest, AClaimOfADeadPublisherIsTakenOver) {
  // Claimed for page 20 in all seven slots, and then the publisher died and its page was freed.
  for (auto& location : pool_.region.bucket(4).locations.location) location.store_relaxed(PageRef::of(20, 0).bits);
  pool_.set_word(20, PageWord::sealed(0, {2, 7}));
  const Digest digest = in_bucket(4, 0, 1);
  EXPECT_EQ(insert(digest, make_block(3, digest)).status, InsertStatus::kInserted);
  EXPECT_EQ(overflow_in_use(), 1u) << "that page may still be published";
  pool_.set_word(20, PageWord::free(1));
  const Digest next = in_bucket(4, 1, 2);
  EXPECT_EQ(insert(next, make_block(4, next)).status, InsertStatus::kInserted);
  EXPECT_EQ(pool_.region.bucket(4).locations.location[0].load_relaxed(), PageRef::of(4, 0).bits);
}

TEST_F(RegistryTest, RemovingLeavesAnotherPublishersClaimAlone) {
  const Digest digest = in_bucket(4, 0, 1);
  const PageRef ref = make_block(3, digest);
  insert(digest, ref);
  pool_.region.bucket(4).locations.location[1].store_relaxed(PageRef::of(9, 0).bits);  // a claim
  EXPECT_TRUE(remove(digest, ref));
  EXPECT_EQ(pool_.region.bucket(4).locations.location[0].load_relaxed(), 0u);
  EXPECT_EQ(pool_.region.bucket(4).locations.location[1].load_relaxed(), PageRef::of(9, 0).bits);
}

class LargeRegistryTest : public RegistryTest {
 protected:
  LargeRegistryTest() : RegistryTest({.pages = 4096, .region_pages = 1024, .key_inline_bytes = 32}) {}
};

TEST_F(LargeRegistryTest, AgreesWithAMapUnderChurn) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  std::map<uint32_t, PageRef> model;  // by key number
  std::vector<uint32_t> free_pages;
  for (uint32_t page = 0; page < 4096; ++page) free_pages.push_back(page);
  const auto digest_of = [&](uint32_t key) { return digest_of_128(pool_.region.secret(), key, 0, 0); };
  for (int step = 0; step < 60'000; ++step) {
    const uint32_t key = uint32_t(random() % 6000);
    const Digest digest = digest_of(key);
    const auto at = model.find(key);
    ASSERT_EQ(find(digest), at == model.end() ? PageRef::none() : at->second);
    if (at != model.end()) {
      if (random() % 3 != 0) continue;
      ASSERT_TRUE(remove(digest, at->second));
      free_pages.push_back(at->second.page());
      model.erase(at);
    } else if (!free_pages.empty()) {
      const PageRef ref = make_block(free_pages.back(), digest);
      const InsertResult result = insert(digest, ref);
      if (result.status == InsertStatus::kFull) {
        // One bucket in a million or so at full load; never for want of overflow buckets.
        const uint64_t header = pool_.region.bucket(home_bucket(pool_.region, digest)).tags.header.load_relaxed();
        ASSERT_EQ(header & format::kValidMask, format::kValidMask);
        pool_.set_word(ref.page(), PageWord::free(ref.generation() + 1));
        continue;
      }
      ASSERT_EQ(result.status, InsertStatus::kInserted);
      free_pages.pop_back();
      model.emplace(key, ref);
    }
  }
  EXPECT_GT(model.size(), 2000u);
  for (uint32_t key = 0; key < 6000; ++key)
    ASSERT_EQ(registry_exists(pool_.region, digest_of(key)), model.contains(key)) << key;
  EXPECT_GT(overflow_in_use(), 0u);
  std::vector<Digest> all;
  for (uint32_t key = 0; key < 6000; ++key) all.push_back(digest_of(key));
  std::vector<uint8_t> present(all.size(), 7);
  EXPECT_EQ(registry_exists_batch(pool_.region, all.data(), all.size(), present.data()), model.size());
  for (uint32_t key = 0; key < 6000; ++key) ASSERT_EQ(present[key], model.contains(key)) << key;
  // Batches that end anywhere in a group, or before the groups that are asked for ahead.
  for (uint32_t size = 0; size <= 5 * ExistsBatch::kGroup; ++size) {
    const uint32_t first = uint32_t(random() % (6000 - size));
    std::vector<uint8_t> few(size + 1, 7);
    const size_t found = registry_exists_batch(pool_.region, &all[first], size, few.data());
    EXPECT_EQ(found, size_t(std::count(few.begin(), few.end() - 1, 1)));
    for (uint32_t i = 0; i < size; ++i) ASSERT_EQ(few[i], model.contains(first + i)) << size << ' ' << i;
    ASSERT_EQ(few[size], 7) << size;
  }
  EXPECT_EQ(audit(), Names{});
  for (const auto& [key, ref] : model) EXPECT_TRUE(remove(digest_of(key), ref));
  EXPECT_EQ(overflow_in_use(), 0u);
}

TEST_F(LargeRegistryTest, HoldsAsManyKeysAsThereArePages) {
  for (uint32_t page = 0; page < 4096; ++page) {
    const Digest digest = digest_of_128(pool_.region.secret(), page, 7, 0);
    ASSERT_EQ(insert(digest, make_block(page, digest)).status, InsertStatus::kInserted)
        << page;  // always the same keys
  }
  EXPECT_EQ(audit(), Names{});
}

// A full pool whose blocks are replaced again and again: a small one deviates more from what is expected of many buckets.
class SmallRegistryTest : public RegistryTest, public ::testing::WithParamInterface<uint64_t> {
 protected:
  SmallRegistryTest() : RegistryTest({.pages = GetParam(), .region_pages = 16, .key_inline_bytes = 32}) {}
};

TEST_P(SmallRegistryTest, NoOverflowBucketIsMissedUnderChurn) {
  std::mt19937_64 random(GetParam());
  std::vector<std::pair<Digest, PageRef>> stored(GetParam());  // by page
  for (uint64_t step = 0; step < 100'000; ++step) {
    const auto page = uint32_t(step < GetParam() ? step : random() % GetParam());
    if (!stored[page].second.is_none()) {
      ASSERT_TRUE(remove(stored[page].first, stored[page].second));
    }
    const Digest digest = digest_of_128(pool_.region.secret(), step, 0, 0);
    stored[page] = {digest, make_block(page, digest)};
    if (insert(digest, stored[page].second).status == InsertStatus::kInserted) continue;
    // The home and its overflow bucket may both be full, rarely.
    const format::Bucket& home = pool_.region.bucket(home_bucket(pool_.region, digest));
    ASSERT_NE(uint32_t(home.locations.overflow.load_relaxed()), 0u) << "step " << step << ", " << overflow_in_use();
    pool_.set_word(page, PageWord::free(stored[page].second.generation() + 1));
    stored[page].second = PageRef::none();
  }
}
INSTANTIATE_TEST_SUITE_P(Pages, SmallRegistryTest, ::testing::Values(16, 64, 128, 256, 512, 1024, 2048));

// Any words in buckets, locations and links: operations end, and nothing outside is touched.
TEST_F(RegistryTest, DamagedWordsDoNotCrash) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 2000; ++round) {
    for (int k = 0; k < 20; ++k) {
      format::Bucket& bucket = random() % 3 ? pool_.region.bucket(random() % pool_.region.buckets())
                                            : pool_.region.overflow(random() % pool_.region.overflow_buckets());
      const uint64_t small = PageRef::of(uint32_t(random() % 70), uint32_t(random() % 3)).bits;
      switch (random() % 5) {
        case 0: bucket.tags.header.store_relaxed(random() & 0xFFFF'FFFF); break;
        case 1: bucket.tags.tag[random() % 7].store_relaxed(random() % 4); break;
        case 2: bucket.locations.location[random() % 7].store_relaxed(random() % 2 ? small : random()); break;
        case 3: bucket.locations.overflow.store_relaxed(random() % 2 ? random() % 9 : random()); break;
        default: pool_.region.block(uint32_t(random() % 64)).word.store_relaxed(random());
      }
    }
    for (int k = 0; k < 5; ++k) {
      const Digest digest{random() % 4, random()};
      registry_exists(pool_.region, digest);
      registry_find(pool_.region, digest);
      const uint32_t page = uint32_t(random() % 64);
      const PageRef ref = make_block(page, digest);
      insert(digest, ref, random() % 1000);
      if (random() % 2) registry_remove(pool_.region, id_, digest, ref);
    }
    release_overflow_of(pool_.region, {uint32_t(random() % 8), 7});
    pool_.audit();
  }
}

}  // namespace
}  // namespace maru::shm
