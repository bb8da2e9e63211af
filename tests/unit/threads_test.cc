// Many threads through one mapping; the ones to run under the thread sanitizer. What they may not break is checked at the
// end by the auditor, and during the run by each thread for what it holds. No timing is asserted.
#include "libmaru/shm/blocks/prefix.h"
#include "libmaru/shm/blocks/touch.h"
#include "libmaru/shm/recovery/evict.h"
#include "small_pool.h"

#include <atomic>
#include <random>
#include <thread>

namespace maru::shm {
namespace {

constexpr uint32_t kRounds = 4000;

class ThreadsTest : public testing::Test {
 protected:
  ThreadsTest() : pool_({.pages = 128, .region_pages = 32, .pins_max = 16}) {}

  // Runs f(index, random) in `count` threads and waits for all.
  template <typename F>
  void run(uint32_t count, F&& f) {
    const uint64_t seed = std::random_device{}();
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < count; ++i)
      threads.emplace_back([&f, i, seed] {
        std::mt19937_64 random(seed + i);
        f(i, random);
      });
    for (std::thread& thread : threads) thread.join();
  }
  static std::string key(uint64_t i) { return "key " + std::to_string(i); }
  PageRef take_random(uint32_t lane, std::mt19937_64& random) {
    for (uint32_t tries = 0; tries < 1000; ++tries) {
      const PageRef ref = take_page(pool_.region, pool_.lane(lane).id, uint32_t(random() % pool_.region.pages()));
      if (!ref.is_none()) return ref;
    }
    return PageRef::none();
  }
  // Under a pin the page cannot come into another life, and the digest is the one that was asked for.
  void expect_held(const Found& found, const Digest& digest) {
    const PageWord word = pool_.word(found.ref.page());
    ASSERT_EQ(word.generation(), found.ref.generation());
    ASSERT_TRUE(word.is(PageState::kReady) || word.is(PageState::kRetiring) || word.is(PageState::kRetired));
    ASSERT_EQ(block_digest(pool_.region, found.ref.page()), digest);
  }
  void publish_or_give_back(uint32_t lane, const NewBlock& block, std::mt19937_64& random) {
    const PageRef own = take_random(lane, random);
    if (own.is_none()) return;
    const PublishResult result = publish(pool_.lane(lane), own, block);
    if (result.status != PublishStatus::kStored) give_back_run(pool_.region, pool_.lane(lane).id, own);
  }
  void finish_or_hand_over(uint32_t lane, PageRef ref) {
    while (finish_retired(pool_.lane(lane), ref, pool_.lanes, nullptr) == FinishStatus::kPinned)
      std::this_thread::yield();
  }

  SmallPool pool_;
};

TEST_F(ThreadsTest, ThreadsOfOneClientShareSlots) {
  std::vector<PageRef> refs;
  for (uint32_t i = 0; i < 12; ++i) refs.push_back(pool_.store(1, key(i)));
  PinTable& pins = pool_.client(2).pins;
  run(4, [&](uint32_t, std::mt19937_64& random) {
    for (uint32_t i = 0; i < kRounds; ++i) {
      const PageRef ref = refs[random() % refs.size()];
      const Pin pin = pins.pin(ref);
      ASSERT_EQ(pin.status, PinStatus::kPinned);
      ASSERT_TRUE(is_pinned(pool_.region, pool_.lanes, ref.page()));
      if (random() % 4 == 0) {
        const Pin again = pins.pin(ref);
        ASSERT_EQ(again.status, PinStatus::kPinned);
        ASSERT_TRUE(pins.unpin(again.slot, ref));
      }
      ASSERT_TRUE(pins.unpin(pin.slot, ref));
    }
  });
  EXPECT_EQ(pins.slots_in_use(), 0u);
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ThreadsTest, ReadersEvictorAndPublishers) {
  run(4, [&](uint32_t index, std::mt19937_64& random) {
    uint16_t attempt = 0;
    for (uint32_t i = 0; i < kRounds; ++i) {
      const std::string text = key(random() % 40);
      const Digest digest = pool_.digest(text);
      if (index == 0) {  // marud
        const uint32_t page = uint32_t(random() % pool_.region.pages());
        PageRef retired;
        if (retire_unpinned(pool_.lane(0), pool_.lanes, &page, 1, &attempt, &retired) == 1) {
          ASSERT_EQ(free_retired(pool_.lane(0), retired, nullptr), FinishStatus::kFreed);
        }
      } else if (index == 1) {
        publish_or_give_back(1, pool_.block(text), random);
      } else {
        const Found found = find_and_pin(pool_.lane(index), digest, 0);
        if (found.status != FindStatus::kFound) continue;
        expect_held(found, digest);
        ASSERT_TRUE(pool_.client(index).pins.unpin(found.slot, found.ref));
      }
    }
  });
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ThreadsTest, OneKeyHasOneWinner) {
  for (uint32_t round = 0; round < 300; ++round) {
    std::atomic<uint32_t> stored{0}, duplicates{0};
    std::atomic<uint64_t> winner{0};
    const std::string text = key(round);
    std::vector<std::thread> threads;
    std::atomic<uint32_t> waiting{0};
    for (uint32_t lane = 1; lane <= 3; ++lane)
      threads.emplace_back([&, lane] {
        std::mt19937_64 random(round * 10 + lane);
        const PageRef own = take_random(lane, random);
        ++waiting;
        while (waiting < 3) std::this_thread::yield();
        const PublishResult result = publish(pool_.lane(lane), own, pool_.block(text));
        if (result.status == PublishStatus::kStored) {
          ++stored;
          winner = result.block.bits;
        } else {
          EXPECT_EQ(result.status, PublishStatus::kDuplicate);
          ++duplicates;
          EXPECT_EQ(give_back_run(pool_.region, pool_.lane(lane).id, own), 1u);
        }
      });
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(stored, 1u);
    ASSERT_EQ(duplicates, 2u);
    ASSERT_TRUE(pool_.remove(1, PageRef::from_bits(winner)));
  }
  EXPECT_EQ(pool_.audit(), Names{});
  EXPECT_EQ(pool_.count(PageState::kFree), 128u);
}

TEST_F(ThreadsTest, DeletersAndReaders) {
  run(4, [&](uint32_t index, std::mt19937_64& random) {
    const uint32_t lane = index + 1;
    for (uint32_t i = 0; i < kRounds; ++i) {
      const std::string text = key(random() % 12);
      const Digest digest = pool_.digest(text);
      switch (random() % 3) {
        case 0: publish_or_give_back(lane, pool_.block(text), random); break;
        case 1: {
          PageRef ref;
          if (retire(pool_.lane(lane), digest, &ref) == RetireStatus::kRetired) finish_or_hand_over(lane, ref);
          break;
        }
        default: {
          const Found found = find_and_pin(pool_.lane(lane), digest, 0);
          if (found.status != FindStatus::kFound) break;
          expect_held(found, digest);
          ASSERT_TRUE(pool_.client(lane).pins.unpin(found.slot, found.ref));
        }
      }
    }
  });
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ThreadsTest, ChildrenAndTheirParents) {
  const PageRef root = pool_.store(1, "root");
  run(4, [&](uint32_t index, std::mt19937_64& random) {
    const uint32_t lane = index + 1;
    for (uint32_t i = 0; i < kRounds; ++i) {
      const std::string text = key(random() % 10);
      if (random() % 2) {
        // Sometimes under another child: then the parent may go while it is being published.
        const PageRef above = random() % 2 ? root : find_unpinned(pool_.region, pool_.digest(key(random() % 10)));
        publish_or_give_back(lane, pool_.block(text, above.is_none() ? root : above), random);
      } else {
        PageRef ref;
        if (retire(pool_.lane(lane), pool_.digest(text), &ref) == RetireStatus::kRetired)
          finish_or_hand_over(lane, ref);
      }
    }
  });
  EXPECT_EQ(pool_.audit(), Names{});
  EXPECT_TRUE(pool_.word(root.page()).is(PageState::kReady, root.generation()));
}

TEST_F(ThreadsTest, MatchPrefixWhileTheChainGrowsAndShrinks) {
  std::vector<PlainDigest> keys;
  for (uint64_t i = 0; i < 24; ++i) keys.push_back(pool_.plain(key(i)));
  run(3, [&](uint32_t index, std::mt19937_64& random) {
    std::vector<PageRef> chain;
    std::vector<HeldBlock> held(keys.size() + 1);
    for (uint32_t i = 0; i < kRounds; ++i) {
      if (index != 0) {
        const PrefixResult result =
            match_prefix(pool_.lane(index + 1), prefix_keys(pool_.region, keys), 0, held.data());
        for (size_t k = 0; k < result.held; ++k)
          ASSERT_EQ(pool_.word(held[k].ref.page()).generation(), held[k].ref.generation());
        release_prefix(pool_.lane(index + 1), held.data(), result.held);
      } else if (chain.size() < keys.size() && random() % 2) {
        chain.push_back(pool_.store(1, key(chain.size()), chain.empty() ? PageRef::none() : chain.back()));
      } else if (!chain.empty()) {
        ASSERT_EQ(retire_ref(pool_.lane(1), chain.back()), RetireStatus::kRetired);
        finish_or_hand_over(1, chain.back());
        chain.pop_back();
      }
    }
  });
  EXPECT_EQ(pool_.audit(), Names{});
}

TEST_F(ThreadsTest, RunsOfSeveralLanes) {
  run(4, [&](uint32_t index, std::mt19937_64& random) {
    const LaneId id = pool_.lane(index + 1).id;
    for (uint32_t i = 0; i < kRounds; ++i) {
      const uint32_t page = uint32_t(random() % 128), room = 32 - page % 32;
      const PageRef run = take_run(pool_.region, id, page, 1 + uint32_t(random() % std::min(room, 6u)), nullptr);
      if (!run.is_none()) {
        ASSERT_EQ(give_back_run(pool_.region, id, run), pool_.region.run_pages(run.page()));
      }
    }
  });
  EXPECT_EQ(pool_.count(PageState::kFree), 128u);
}

TEST_F(ThreadsTest, TouchesOfSeveralThreadsAndTheirReader) {
  const LaneView lane = pool_.region.lane(1);
  std::atomic<uint32_t> writers{2};
  run(3, [&](uint32_t index, std::mt19937_64&) {
    if (index != 0) {
      for (uint32_t i = 0; i < kRounds; ++i) leave_touch(lane, index, i);
      --writers;
      return;
    }
    TouchReader reader;
    Touch touches[16];
    uint64_t seen = 0;
    for (;;) {
      const bool last = writers == 0;
      const size_t n = reader.read(lane, kRounds, 128, touches, 16);
      for (size_t i = 0; i < n; ++i) ASSERT_TRUE(touches[i].page == 1 || touches[i].page == 2);
      seen += n;
      if (last && n == 0) break;
    }
    EXPECT_EQ(seen + reader.lost(), 2 * uint64_t{kRounds}) << "every touch is read or counted as lost";
  });
}

// A live audit beside all that must never cry wolf.
TEST_F(ThreadsTest, LiveAuditsFindNothingInAWorkingPool) {
  std::atomic<uint32_t> writers{3};
  run(4, [&](uint32_t index, std::mt19937_64& random) {
    if (index == 0) {
      while (writers != 0) ASSERT_EQ(pool_.audit(AuditMode::kLive), Names{});
      return;
    }
    for (uint32_t i = 0; i < kRounds; ++i) {
      const std::string text = key(random() % 30);
      if (random() % 2) {
        const PageRef above = find_unpinned(pool_.region, pool_.digest(key(random() % 30)));
        publish_or_give_back(index, pool_.block(text, above), random);
      } else {
        PageRef ref;
        if (retire(pool_.lane(index), pool_.digest(text), &ref) == RetireStatus::kRetired)
          finish_or_hand_over(index, ref);
      }
    }
    --writers;
  });
  EXPECT_EQ(pool_.audit(), Names{});
}

}  // namespace
}  // namespace maru::shm
