// Many unrelated keys in one call: each as if it came alone, with a result of its own, and marud asked once.
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <atomic>
#include <cerrno>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace maru::test {
namespace {

using format::PageState;

constexpr uint64_t kPageBytes = 4096;

// n keys, and a text for each.
struct Items {
  explicit Items(size_t n, const std::string& prefix = "k", uint64_t tenant = 0) : names(n), results(n, 77), blocks(n) {
    for (size_t i = 0; i < n; ++i) names[i] = prefix + std::to_string(i);
    for (const std::string& name : names) add(name, tenant);
  }
  void add(const std::string& text, uint64_t tenant) {
    keys.push_back(key_of(text, tenant));
    data.push_back(text.data());
    bytes.push_back(text.size());
  }
  size_t size() const { return keys.size(); }
  size_t count(int32_t result) const { return size_t(std::count(results.begin(), results.end(), result)); }
  int copy_to(maru_client* client, const maru_store_options* options = nullptr) {
    return maru_store_copy_batch(client, keys.data(), data.data(), bytes.data(), size(), options, blocks.data(),
                                 results.data());
  }

  std::vector<std::string> names;
  std::vector<maru_key> keys;
  std::vector<const void*> data;
  std::vector<uint64_t> bytes;
  std::vector<int32_t> results;
  std::vector<maru_block> blocks;
};

maru_store_options under(const maru_key* parent) {
  maru_store_options options{};
  options.size = sizeof(options);
  options.parent_key = parent;
  return options;
}

class Batch : public ::testing::Test {
 protected:
  explicit Batch(const PoolWish& pool = PoolWish()) : marud_({pool}) {}

  // What is RESERVED and not in a cache of a thread: buffers that nobody can name any more, if the test knows of none.
  uint64_t pages_lost() const {
    return map_.count_pages()[PageState::kReserved] - client_.statistics().pages_cached -
           other_.statistics().pages_cached;
  }

  MarudProcess marud_;
  ControlMap map_{marud_.socket_path()};
  TestClient client_{marud_.socket_path()};
  TestClient other_{marud_.socket_path()};
};

TEST_F(Batch, EachBufferHasAResultOfItsOwn) {
  Items items(100);
  std::vector<maru_buffer> buffers(100);
  ASSERT_EQ(maru_alloc_batch(client_, kPageBytes, buffers.size(), buffers.data()), 0);
  for (size_t i = 0; i < buffers.size(); ++i) std::snprintf(static_cast<char*>(buffers[i].data), 32, "text %zu", i);
  maru_block before = 0;
  ASSERT_EQ(other_.store("k3", "was there", {}, 0, &before), 0);
  items.keys[50] = items.keys[40];  // twice in one call
  const maru_buffer other_buffer = buffers[60];
  buffers[60] = buffers[59];  // used up by the one before
  const uint64_t duplicates = client_.statistics().duplicates;
  EXPECT_EQ(maru_store_batch(client_, items.keys.data(), buffers.data(), items.size(), nullptr, items.blocks.data(),
                             items.results.data()),
            97);
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(items.results[i], i == 3 || i == 50 ? 1 : i == 60 ? -EINVAL : 0) << i;
    EXPECT_EQ(items.blocks[i], i == 3 ? before : i == 50 ? buffers[40].block : i == 60 ? 0 : buffers[i].block) << i;
    if (items.results[i] != 0) continue;
    maru_view view;
    ASSERT_EQ(maru_retrieve(other_, &items.keys[i], &view), 0) << i;
    EXPECT_EQ("text " + std::to_string(i), static_cast<const char*>(view.data));
    EXPECT_EQ(other_.release(view), 0);
  }
  EXPECT_EQ(client_.statistics().duplicates, duplicates + 2);
  EXPECT_EQ(client_.statistics().pins, 0u);
  EXPECT_EQ(pages_lost(), 1u);
  EXPECT_EQ(maru_abort(client_, &other_buffer), 0);
  EXPECT_EQ(pages_lost(), 0u);
}

TEST_F(Batch, CopiesMayBeOfAnySize) {
  Items items(40);
  const uint64_t largest = client_.geometry().region_pages * kPageBytes;
  std::vector<std::string> texts(40);
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].assign(i % 4 * kPageBytes + 1 + i, char('a' + i % 26));
    if (i == 20) texts[i].resize(largest + 1);
    if (i == 21) items.keys[i] = items.keys[11];  // smaller than the other, and later
    items.data[i] = texts[i].data();
    items.bytes[i] = texts[i].size();
  }
  EXPECT_EQ(items.copy_to(client_), 38);
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(items.results[i], i == 20 ? -EFBIG : i == 21 ? 1 : 0) << i;
    if (i == 20 || i == 21) continue;
    EXPECT_TRUE(other_.text(items.names[i]) == texts[i]) << i;
  }
  EXPECT_EQ(items.blocks[20], 0u);
  EXPECT_EQ(items.blocks[21], items.blocks[11]);
  EXPECT_EQ(items.copy_to(other_), 0) << "all are there";
  EXPECT_EQ(items.count(1), 39u);
  EXPECT_EQ(pages_lost(), 0u);
  // Who does not care what became of each need not ask.
  EXPECT_EQ(maru_store_copy_batch(client_, items.keys.data(), items.data.data(), items.bytes.data(), 20, nullptr,
                                  nullptr, nullptr),
            0);
}

TEST_F(Batch, AChildForEachKeyUnderOneParent) {
  ASSERT_EQ(client_.store("root", "text"), 0);
  const maru_key root = key_of("root"), nobody = key_of("nobody");
  maru_store_options options = under(&root);
  Items items(10);
  EXPECT_EQ(items.copy_to(client_, &options), 10);
  EXPECT_EQ(client_.remove("root"), -ENOTEMPTY);
  // A parent that nobody knows: each is refused for it, and its buffer stays the caller's.
  options = under(&nobody);
  Items orphans(10, "o");
  std::vector<maru_buffer> buffers(10);
  ASSERT_EQ(maru_alloc_batch(client_, kPageBytes, buffers.size(), buffers.data()), 0);
  EXPECT_EQ(
      maru_store_batch(client_, orphans.keys.data(), buffers.data(), 10, &options, nullptr, orphans.results.data()), 0);
  EXPECT_EQ(orphans.count(-ENOLINK), 10u);
  EXPECT_EQ(pages_lost(), 10u);
  EXPECT_EQ(maru_abort_batch(client_, buffers.data(), buffers.size()), 0);
  // Copies of what is there are not refused, as in maru_store_copy.
  orphans.keys[4] = items.keys[4];
  EXPECT_EQ(orphans.copy_to(client_, &options), 0);
  EXPECT_EQ(orphans.count(-ENOLINK), 9u);
  EXPECT_EQ(orphans.results[4], 1);
  EXPECT_EQ(client_.remove_tree("root"), 0);
  // By its number, which is of a life that is over.
  options.parent_key = nullptr;
  options.parent = items.blocks[0];
  EXPECT_EQ(orphans.copy_to(client_, &options), 0);
  EXPECT_EQ(orphans.count(-ENOLINK), 10u);
  EXPECT_EQ(pages_lost(), 0u);
}

TEST_F(Batch, WhatIsNoBatchIsRefusedAsAWhole) {
  Items items(5);
  maru_view views[5];
  std::vector<maru_buffer> buffers(5);
  ASSERT_EQ(maru_alloc_batch(client_, kPageBytes, 5, buffers.data()), 0);
  const auto store = [&](maru_client* client, size_t n = 5, const maru_store_options* options = nullptr) {
    return maru_store_batch(client, items.keys.data(), buffers.data(), n, options, nullptr, items.results.data());
  };
  TestClient reader(marud_.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
  EXPECT_EQ(store(reader), -EROFS);
  EXPECT_EQ(items.copy_to(reader), -EROFS);
  maru_store_options wrong = under(&items.keys[0]);
  wrong.parent = ~uint64_t{0} >> 1;  // both
  EXPECT_EQ(store(client_, 5, &wrong), -EINVAL);
  EXPECT_EQ(items.copy_to(client_, &wrong), -EINVAL);
  items.bytes[3] = 0;
  EXPECT_EQ(items.copy_to(client_), -EINVAL);
  items.bytes[3] = 2;
  items.keys[4].size = 0;  // not a key
  EXPECT_EQ(store(client_), -EINVAL);
  EXPECT_EQ(items.copy_to(client_), -EINVAL);
  EXPECT_EQ(maru_pin_batch(client_, items.keys.data(), 5, views), -EINVAL);
  EXPECT_EQ(views[0].block, 0u);
  items.keys[4].size = 2;
  EXPECT_EQ(store(client_, (1u << 20) + 1), -EINVAL);
  EXPECT_EQ(maru_store_batch(client_, items.keys.data(), nullptr, 5, nullptr, nullptr, items.results.data()), -EINVAL);
  EXPECT_EQ(maru_store_batch(client_, items.keys.data(), buffers.data(), 5, nullptr, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(items.count(77), 5u) << "nothing was written";
  EXPECT_EQ(maru_pin_batch(client_, items.keys.data(), 5, nullptr), -EINVAL);
  EXPECT_EQ(maru_pin_batch(client_, items.keys.data(), 5, views), 0) << "nothing was stored";
  EXPECT_EQ(store(client_, 0), 0);
  EXPECT_EQ(maru_pin_batch(client_, nullptr, 0, nullptr), 0);
  EXPECT_EQ(store(client_), 5);
}

// Their first buffers are the same page of the same life, each of its own pool.
TEST_F(Batch, ABufferOfAnotherPoolIsRefused) {
  MarudProcess elsewhere{{PoolWish()}};
  TestClient stranger(elsewhere.socket_path());
  maru_buffer ours, theirs;
  ASSERT_EQ(maru_alloc(client_, kPageBytes, &ours), 0);
  ASSERT_EQ(maru_alloc(stranger, kPageBytes, &theirs), 0);
  ASSERT_EQ(ours.block, theirs.block);
  const maru_key key = key_of("k");
  int32_t result = 77;
  maru_view view;
  EXPECT_EQ(maru_store(client_, &key, &theirs, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(maru_store_pinned(client_, &key, &theirs, nullptr, &view), -EINVAL);
  EXPECT_EQ(maru_store_batch(client_, &key, &theirs, 1, nullptr, nullptr, &result), 0);
  EXPECT_EQ(result, -EINVAL);
  EXPECT_EQ(maru_store_chain(client_, &key, &theirs, 1, nullptr, nullptr, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(maru_abort(client_, &theirs), -EINVAL);
  EXPECT_EQ(maru_store(client_, &key, &ours, nullptr, nullptr), 0) << "its own is as it was";
  EXPECT_EQ(maru_store(stranger, &key, &theirs, nullptr, nullptr), 0);
}

TEST_F(Batch, OneOfTwoWritersWinsEachKey) {
  for (int round = 0; round < 20; ++round) {
    const std::string prefix = "r" + std::to_string(round) + " ";
    Items mine(64, prefix), theirs(64, prefix);
    std::atomic<int> ready{0};
    const auto store = [&](maru_client* client, Items& items) {
      ready.fetch_add(1);
      while (ready.load() < 2) {
      }
      return items.copy_to(client);
    };
    int first = 0, second = 0;
    std::thread one([&] { first = store(client_, mine); });
    std::thread two([&] { second = store(other_, theirs); });
    one.join();
    two.join();
    EXPECT_EQ(first + second, 64);
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_EQ(mine.results[i] + theirs.results[i], 1) << i;
      EXPECT_EQ(mine.blocks[i], theirs.blocks[i]) << i;
    }
  }
  EXPECT_EQ(pages_lost(), 0u);
}

TEST_F(Batch, PinsHoldWithoutShowing) {
  Items items(80);
  ASSERT_EQ(items.copy_to(client_), 80);
  ASSERT_EQ(client_.remove("k7"), 0);
  std::vector<maru_view> views(80);
  EXPECT_EQ(maru_pin_batch(other_, items.keys.data(), 80, views.data()), 79);
  EXPECT_EQ(other_.statistics().pins, 79u);
  EXPECT_EQ(views[7].block, 0u);
  EXPECT_EQ(views[8].block, items.blocks[8]);
  EXPECT_EQ(views[8].bytes, items.bytes[8]);
  EXPECT_EQ(views[8].data, nullptr);
  // What is deleted under its pin keeps its page.
  ASSERT_EQ(client_.remove("k8"), 0);
  EXPECT_GE(map_.count_pages()[PageState::kRetired], 1u);
  EXPECT_EQ(maru_release_batch(other_, views.data(), views.size()), 0);
  EXPECT_EQ(other_.statistics().pins, 0u);
}

PoolWish few_pins() {
  PoolWish pool;
  pool.pins = 64;
  return pool;
}
class BatchOfPins : public Batch {
 protected:
  BatchOfPins() : Batch(few_pins()) {}
};

TEST_F(BatchOfPins, MoreThanThereAreSlotsPinsNothing) {
  Items items(500);
  ASSERT_EQ(items.copy_to(client_), 500);
  std::vector<maru_view> views(500);
  views[0].block = 1;
  EXPECT_EQ(maru_pin_batch(client_, items.keys.data(), 500, views.data()), -ENOBUFS);
  EXPECT_EQ(views[0].block, 0u);
  EXPECT_EQ(map_.count_pins(), 0u);
  EXPECT_EQ(maru_pin_batch(client_, items.keys.data(), 50, views.data()), 50);
  // However often a block is asked for, it takes no more than the slots of its set.
  for (maru_key& key : items.keys) key = items.keys[0];
  EXPECT_EQ(maru_pin_batch(client_, items.keys.data(), 450, views.data() + 50), 450);
  EXPECT_LE(map_.count_pins(), 50u + 8u);
  EXPECT_EQ(maru_release_batch(client_, views.data(), views.size()), 0);
  EXPECT_EQ(map_.count_pins(), 0u);
  // Stores need a slot each, for a moment.
  Items more(100, "m");
  EXPECT_EQ(more.copy_to(client_), 100);
}

PoolWish one_region() {
  PoolWish pool;
  pool.bytes = 3u << 20;
  pool.region_bytes = 256u << 10;
  pool.pins = 2048;
  return pool;
}
class BatchInASmallPool : public Batch {
 protected:
  BatchInASmallPool() : Batch(one_region()) {}
};

TEST_F(BatchInASmallPool, WhatIsMissingIsAskedForOnce) {
  const uint64_t pages = client_.geometry().pages;
  std::vector<std::string> keys;
  while (client_.statistics().evicted == 0) {
    keys.push_back("old " + std::to_string(keys.size()));
    const int result = client_.store(keys.back(), "text");
    ASSERT_TRUE(result == 0 || result == -EXFULL) << result;
    ASSERT_LT(keys.size(), 2 * pages);
  }
  const uint64_t rents = client_.statistics().rents, evicted = client_.statistics().evicted;
  Items items(pages / 2);
  const int stored = items.copy_to(client_);
  EXPECT_EQ(size_t(stored), items.count(0));
  EXPECT_EQ(items.count(0) + items.count(-EXFULL), items.size());  // rare: both buckets of a key are full
  EXPECT_LE(items.count(-EXFULL), 3u);
  EXPECT_EQ(client_.statistics().rents, rents + 1);
  EXPECT_GE(client_.statistics().evicted - evicted, items.size() - 32) << "what the thread had cached it uses";
  EXPECT_EQ(pages_lost(), 0u);
}

TEST_F(BatchInASmallPool, WhereNotAllFitTheFirstAreStored) {
  const uint64_t pages = client_.geometry().pages;
  // More than there are pages: nobody's blocks go for what can never be had.
  Items far_too_many(pages + 1);
  ASSERT_EQ(other_.store("theirs", "text"), 0);
  EXPECT_EQ(far_too_many.copy_to(client_), 0);
  EXPECT_EQ(far_too_many.count(-ENOSPC), pages + 1);
  EXPECT_EQ(other_.exists("theirs"), 1);
  EXPECT_EQ(pages_lost(), 0u);
  // Three quarters of the pool are held.
  Items held(pages * 3 / 4, "h");
  std::vector<maru_view> views(held.size());
  held.copy_to(other_);
  const int pinned = maru_pin_batch(other_, held.keys.data(), held.size(), views.data());
  ASSERT_GE(pinned, int(held.size() - 3));
  Items items(pages / 2);
  const int stored = items.copy_to(client_);
  EXPECT_EQ(size_t(stored), items.count(0));
  EXPECT_GE(stored, int(pages / 4 - 40)) << items.results.back();
  EXPECT_EQ(items.count(0) + items.count(-EXFULL) + items.count(-ENOSPC), items.size());
  size_t first_refused = 0;
  while (items.results[first_refused] != -ENOSPC) ++first_refused;
  for (size_t i = first_refused; i < items.size(); ++i) {
    EXPECT_EQ(items.results[i], -ENOSPC) << i;
    EXPECT_EQ(items.blocks[i], 0u);
    EXPECT_EQ(client_.exists(items.names[i]), 0) << i;
  }
  for (size_t i = 0; i < first_refused; ++i) {
    if (items.results[i] != 0) continue;
    EXPECT_EQ(client_.text(items.names[i]), items.names[i]);
  }
  EXPECT_EQ(pages_lost(), 0u);
  EXPECT_EQ(maru_release_batch(other_, views.data(), views.size()), 0);
  Items rest(pages / 2, "x");
  rest.copy_to(client_);
  EXPECT_EQ(rest.count(-ENOSPC), 0u) << "nothing was lost";
}

TEST_F(Batch, ATenantAtItsLimitIsRefusedAndOthersAreNot) {
  uint64_t tenant = 0;
  ASSERT_EQ(maru_tenant(client_, "a", 1, &tenant), 0);
  ASSERT_FALSE(marud_.ask({{"command", "quota.set"}, {"tenant", "a"}, {"hard", 30 * kPageBytes}}).contains("refused"));
  Items items(100, "k", tenant);
  EXPECT_EQ(items.copy_to(client_), 30);
  for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ(items.results[i], i < 30 ? 0 : -EDQUOT) << i;
  EXPECT_EQ(pages_lost(), 0u);
  // Buffers of it stay the caller's, and of somebody else, in the same call, are stored.
  std::vector<maru_buffer> buffers(100);
  ASSERT_EQ(maru_alloc_batch(client_, kPageBytes, buffers.size(), buffers.data()), 0);
  for (size_t i = 0; i < items.size(); ++i) items.keys[i].tenant = i % 2 ? 0 : tenant;
  EXPECT_EQ(maru_store_batch(client_, items.keys.data(), buffers.data(), 100, nullptr, nullptr, items.results.data()),
            50);
  EXPECT_EQ(items.count(1), 15u);
  EXPECT_EQ(items.count(-EDQUOT), 35u);
  EXPECT_EQ(pages_lost(), 35u);
  for (size_t i = 0; i < items.size(); ++i) {
    if (items.results[i] >= 0) continue;
    EXPECT_EQ(maru_abort(client_, &buffers[i]), 0) << i;
  }
  EXPECT_EQ(pages_lost(), 0u);
}

TEST_F(Batch, WithoutMarudWhatNeedsItIsRefused) {
  uint64_t tenant = 0;
  ASSERT_EQ(maru_tenant(client_, "a", 1, &tenant), 0);
  ASSERT_FALSE(marud_.ask({{"command", "quota.set"}, {"tenant", "a"}, {"hard", 300 * kPageBytes}}).contains("refused"));
  std::vector<maru_buffer> buffers(200);
  ASSERT_EQ(maru_alloc_batch(client_, kPageBytes, buffers.size(), buffers.data()), 0);
  Items items(200, "k", tenant);
  for (size_t i = 0; i < items.size(); i += 2) items.keys[i].tenant = 0;
  marud_.kill();
  EXPECT_EQ(maru_store_batch(client_, items.keys.data(), buffers.data(), 200, nullptr, nullptr, items.results.data()),
            100);
  for (size_t i = 0; i < items.size(); ++i) EXPECT_EQ(items.results[i], i % 2 ? -ENOTCONN : 0) << i;
  Items copies(2000, "c");
  const int stored = copies.copy_to(client_);
  EXPECT_GT(stored, 0) << "what is free in its regions";
  EXPECT_EQ(copies.count(0) + copies.count(-ENOTCONN) + copies.count(-ENOSPC), copies.size());
  marud_.start();
}

TEST_F(Batch, AChildOfForkIsRefused) {
  Items items(3);
  ASSERT_EQ(items.copy_to(client_), 3);
  maru_buffer buffers[3];
  ASSERT_EQ(maru_alloc_batch(client_, kPageBytes, 3, buffers), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    maru_view views[3];
    int failed = 0;
    if (items.copy_to(client_) != -ECHILD) failed |= 1;
    if (maru_store_batch(client_, items.keys.data(), buffers, 3, nullptr, nullptr, items.results.data()) != -ECHILD)
      failed |= 2;
    if (maru_pin_batch(client_, items.keys.data(), 3, views) != -ECHILD) failed |= 4;
    ::_exit(failed);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(client_.statistics().pins, 0u);
  EXPECT_EQ(maru_abort_batch(client_, buffers, 3), 0);
}

}  // namespace
}  // namespace maru::test
