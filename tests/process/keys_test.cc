// Keys of every kind, tenants, chains, time to live, checksums.
#include "libmaru/shm/blocks/hash.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cstring>
#include <gtest/gtest.h>
#include <numeric>

namespace maru::test {
namespace {

using format::PageState;

class Keys : public ::testing::Test {
 protected:
  MarudProcess marud_;
  TestClient writer_{marud_.socket_path()};
  TestClient reader_{marud_.socket_path()};
  std::string read(const maru_key& key) {
    maru_view view;
    const int result = maru_retrieve(reader_, &key, &view);
    if (result != 0) return "error " + std::to_string(result);
    std::string text(static_cast<const char*>(view.data), view.bytes);
    EXPECT_EQ(reader_.release(view), 0);
    return text;
  }
};

// By its touch marud learns of a block; a use may go without one when its page was touched in this millisecond already.
TEST_F(Keys, EveryBlockThatIsStoredLeavesATouch) {
  const ControlMap map(marud_.socket_path());
  const auto touches = [&] { return map.region().lane(writer_.geometry().lane).header->touch_count.load_relaxed(); };
  for (int i = 0; i < 1000; ++i) {  // the thread's cache gives the same pages again, often within a millisecond
    const std::string name = "k" + std::to_string(i);
    const uint64_t before = touches();
    ASSERT_EQ(writer_.store(name, "text"), 0);
    ASSERT_GT(touches(), before) << i;
    const maru_key key = key_of(name);
    ASSERT_EQ(maru_delete(writer_, &key), 0);
  }
}

// It is freed by marud, which hears of it in a turn; whoever deletes the tree must not have to wait for that.
TEST_F(Keys, TreeWhoseChildWasDeletedAndLetGoIsDeletedAtOnce) {
  for (int i = 0; i < 200; ++i) {  // between the fourth call and the fifth marud seldom has a turn
    const std::string child = "b" + std::to_string(i);
    ASSERT_EQ(writer_.store("a", "parent"), 0);
    ASSERT_EQ(writer_.store(child, "child", "a"), 0);
    maru_view view;
    const maru_key key = key_of(child);
    ASSERT_EQ(maru_retrieve(reader_, &key, &view), 0);
    ASSERT_EQ(maru_delete(writer_, &key), 0);
    ASSERT_EQ(reader_.release(view), 0);
    uint64_t deleted = 0;
    ASSERT_EQ(writer_.remove_tree("a", &deleted), 0) << i;
    ASSERT_EQ(deleted, 1u) << i;
  }
}

TEST_F(Keys, KindsAndTenantsAreSeparate) {
  char bytes[32];
  std::iota(bytes, bytes + 32, char(1));
  uint64_t alice = 0, bob = 0, alice_again = 0;
  ASSERT_EQ(maru_tenant(writer_, "alice", 5, &alice), 0);
  ASSERT_EQ(maru_tenant(writer_, "bob", 3, &bob), 0);
  ASSERT_EQ(maru_tenant(reader_, "alice", 5, &alice_again), 0);
  EXPECT_NE(alice, 0u);
  EXPECT_NE(alice, bob);
  EXPECT_EQ(alice, alice_again);

  std::vector<maru_key> keys;
  for (const uint64_t tenant : {uint64_t{0}, alice, bob}) {
    keys.push_back({bytes, 16, MARU_KEY_BYTES, tenant});
    keys.push_back({bytes, 16, MARU_KEY_DIGEST128, tenant});
    keys.push_back({bytes, 32, MARU_KEY_BYTES, tenant});
    keys.push_back({bytes, 32, MARU_KEY_DIGEST256, tenant});
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(maru_exists(reader_, &keys[i]), 0) << i;
    EXPECT_EQ(writer_.store(keys[i], "block " + std::to_string(i)), 0) << i;
  }
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(read(keys[i]), "block " + std::to_string(i));
}

TEST_F(Keys, LongestKeysAreKeptWhole) {
  std::string long_key(4096, 'x');
  for (char last : {'a', 'b'}) {
    long_key.back() = last;
    const maru_key key = key_of(long_key);
    EXPECT_EQ(writer_.store(key, std::string("ends in ") + last), 0);
  }
  for (char last : {'a', 'b'}) {
    long_key.back() = last;
    EXPECT_EQ(read(key_of(long_key)), std::string("ends in ") + last);
  }
  long_key.push_back('x');
  EXPECT_EQ(writer_.store(key_of(long_key), "too long"), -EINVAL);
}

TEST_F(Keys, ParentsAreKeptAndLeavesGoFirst) {
  EXPECT_EQ(writer_.store("child", "text", "parent"), -ENOLINK) << "there is no such parent";
  ASSERT_EQ(writer_.store("parent", "p"), 0);
  ASSERT_EQ(writer_.store("child", "c", "parent"), 0);
  ASSERT_EQ(writer_.store("grandchild", "g", "child"), 0);
  EXPECT_EQ(reader_.remove("parent"), -ENOTEMPTY);
  EXPECT_EQ(reader_.remove("child"), -ENOTEMPTY);
  EXPECT_EQ(reader_.remove("grandchild"), 0);
  EXPECT_EQ(reader_.remove("child"), 0);
  EXPECT_EQ(reader_.store("child", "c", "parent"), 0);
  EXPECT_EQ(reader_.remove("parent"), -ENOTEMPTY);
}

TEST_F(Keys, ParentThatIsGoneIsAnErrorOfItsOwn) {
  maru_block parent = 0;
  ASSERT_EQ(writer_.store("parent", "p", {}, 0, &parent), 0);
  ASSERT_EQ(reader_.remove("parent"), 0);
  ASSERT_EQ(writer_.store("parent", "a new life under the same key"), 0);
  const maru_key key = key_of("child");
  maru_store_options options{};
  options.size = sizeof(options);
  options.parent = parent;
  EXPECT_EQ(maru_store_copy(writer_, &key, "c", 1, &options, nullptr), -ENOLINK);
  EXPECT_EQ(writer_.exists("child"), 0);
  options.parent = 0;
  EXPECT_EQ(maru_store_copy(writer_, &key, "c", 1, &options, nullptr), 0) << "as a root it goes";
}

// However it is stored, and however its parent is named.
TEST_F(Keys, ABlockThatIsThereNeedsNoParent) {
  maru_block parent = 0, there_block = 0;
  ASSERT_EQ(writer_.store("parent", "p", {}, 0, &parent), 0);
  ASSERT_EQ(writer_.store("there", "t", {}, 0, &there_block), 0);
  ASSERT_EQ(writer_.remove("parent"), 0);
  const maru_key there = key_of("there"), fresh = key_of("fresh"), gone = key_of("parent");
  const maru_key chain[] = {there, fresh};
  for (const bool by_key : {true, false}) {
    SCOPED_TRACE(by_key ? "by key" : "by block");
    maru_store_options options{};
    options.size = sizeof(options);
    (by_key ? (void)(options.parent_key = &gone) : (void)(options.parent = parent));
    maru_buffer buffers[2];
    maru_block blocks[2] = {};
    int32_t results[2] = {};
    size_t stored = 0, done = 0;
    maru_view view;
    EXPECT_EQ(maru_store_copy(writer_, &there, "t", 1, &options, nullptr), 1);
    ASSERT_EQ(maru_alloc_batch(writer_, 1, 2, buffers), 0);
    EXPECT_EQ(maru_store_pinned(writer_, &there, &buffers[0], &options, &view), 1);
    EXPECT_EQ(maru_store_pinned(writer_, &fresh, &buffers[1], &options, &view), -ENOLINK);
    EXPECT_EQ(maru_store_batch(writer_, chain, buffers, 2, &options, blocks, results), 0);
    EXPECT_EQ(results[0], 1);
    EXPECT_EQ(results[1], -ENOLINK);
    EXPECT_EQ(blocks[0], there_block);
    ASSERT_EQ(maru_alloc(writer_, 1, &buffers[0]), 0);
    EXPECT_EQ(maru_store(writer_, &fresh, &buffers[1], &options, nullptr), -ENOLINK);
    EXPECT_EQ(maru_store(writer_, &there, &buffers[0], &options, &blocks[0]), 1);
    EXPECT_EQ(blocks[0], there_block);
    // A chain goes on below what is there.
    ASSERT_EQ(maru_alloc(writer_, 1, &buffers[0]), 0);
    EXPECT_EQ(maru_store_chain(writer_, chain, buffers, 2, &options, blocks, &stored, &done), 0);
    EXPECT_EQ(stored, 1u);
    EXPECT_EQ(done, 2u);
    EXPECT_EQ(writer_.remove("there"), -ENOTEMPTY);
    EXPECT_EQ(writer_.remove("fresh"), 0);
  }
}

TEST_F(Keys, ABlockThatIsThereNeedsNoParentWhoseTimeIsOver) {
  maru_block parent = 0;
  ASSERT_EQ(writer_.store("there", "t"), 0);
  ASSERT_EQ(writer_.store("parent", "p", {}, 1, &parent), 0);
  ASSERT_TRUE(wait_until([&] { return writer_.exists("parent") == 0; }));
  maru_store_options options{};
  options.size = sizeof(options);
  options.parent = parent;
  const maru_key there = key_of("there"), fresh = key_of("fresh");
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(writer_, 1, &buffer), 0);
  EXPECT_EQ(maru_store(writer_, &fresh, &buffer, &options, nullptr), -ENOLINK);
  EXPECT_EQ(maru_store(writer_, &there, &buffer, &options, nullptr), 1);
}

TEST_F(Keys, ACopyIsRefusedBeforeMemoryIsAskedFor) {
  maru_block parent = 0;
  ASSERT_EQ(writer_.store("parent", "p", {}, 0, &parent), 0);
  ASSERT_EQ(writer_.store("there", "t"), 0);
  ASSERT_EQ(writer_.remove("parent"), 0);
  // A client that has stored nothing rents nothing yet.
  TestClient fresh(marud_.socket_path());
  const maru_key key = key_of("child"), there = key_of("there"), gone = key_of("parent");
  maru_store_options options{};
  options.size = sizeof(options);
  options.parent = parent;
  EXPECT_EQ(maru_store_copy(fresh, &key, "c", 1, &options, nullptr), -ENOLINK);
  EXPECT_EQ(maru_store_copy(fresh, &there, "c", 1, &options, nullptr), 1) << "a block that is there needs no parent";
  options.parent_key = &gone;
  EXPECT_EQ(maru_store_copy(fresh, &key, "c", 1, &options, nullptr), -EINVAL) << "two parents";
  EXPECT_EQ(maru_store_copy(fresh, &there, "c", 1, &options, nullptr), -EINVAL);
  options.parent = 0;
  EXPECT_EQ(maru_store_copy(fresh, &key, "c", 1, &options, nullptr), -ENOLINK);
  options.parent_key = nullptr;
  for (const uint32_t unknown : {5u, 99u, 256u}) {
    options.content_type = unknown;
    EXPECT_EQ(maru_store_copy(fresh, &key, "c", 1, &options, nullptr), -EINVAL) << unknown;
  }
  EXPECT_EQ(fresh.statistics().rents, 0u);
}

TEST_F(Keys, DeleteTreeTakesLeavesFirstAndLeavesWhatIsHeld) {
  ASSERT_EQ(writer_.store("root", "r"), 0);
  for (int branch = 0; branch < 3; ++branch) {
    const std::string name = "b" + std::to_string(branch);
    ASSERT_EQ(writer_.store(name, "b", "root"), 0);
    for (int leaf = 0; leaf < 4; ++leaf) ASSERT_EQ(writer_.store(name + "/" + std::to_string(leaf), "l", name), 0);
  }
  ASSERT_EQ(writer_.store("elsewhere", "e"), 0);
  maru_view held;
  ASSERT_EQ(reader_.retrieve("b1/2", &held), 0);
  uint64_t deleted = 0;
  EXPECT_EQ(writer_.remove_tree("root", &deleted), -EBUSY);
  EXPECT_EQ(reader_.exists("b1/2"), 1);
  EXPECT_EQ(reader_.exists("b1"), 1);
  EXPECT_EQ(reader_.exists("root"), 1);
  uint64_t rest = 0;
  EXPECT_EQ(reader_.release(held), 0);
  EXPECT_EQ(writer_.remove_tree("root", &rest), 0);
  EXPECT_EQ(deleted + rest, 1u + 3u + 12u);
  for (const char* name : {"root", "b0", "b1/2", "b2/3"}) EXPECT_EQ(reader_.exists(name), 0) << name;
  EXPECT_EQ(reader_.text("elsewhere"), "e");
  EXPECT_EQ(writer_.remove_tree("root"), -ENOENT);
}

TEST_F(Keys, PrefixOfAChainIsFoundHeldByOnePinAndResolved) {
  constexpr size_t kLength = 40, kStored = 25;
  std::vector<std::string> names;
  for (size_t i = 0; i < kLength; ++i) names.push_back("chain " + std::to_string(i));
  std::vector<maru_key> keys;
  for (const std::string& name : names) keys.push_back(key_of(name));
  std::vector<maru_buffer> buffers(kStored);
  ASSERT_EQ(maru_alloc_batch(writer_, 64, kStored, buffers.data()), 0);
  for (size_t i = 0; i < kStored; ++i) std::memcpy(buffers[i].data, names[i].c_str(), names[i].size() + 1);
  size_t stored = 0, done = 0;
  ASSERT_EQ(maru_store_chain(writer_, keys.data(), buffers.data(), kStored, nullptr, nullptr, &stored, &done), 0);
  EXPECT_EQ(stored, kStored);
  EXPECT_EQ(done, kStored);

  maru_match match;
  ASSERT_EQ(maru_match_prefix(reader_, keys.data(), kLength, &match), 0);
  EXPECT_EQ(match.blocks, kStored);
  EXPECT_EQ(reader_.statistics().pins, 1u);
  std::vector<maru_view> views(kStored);
  ASSERT_EQ(maru_resolve(reader_, &match, keys.data(), kStored, views.data()), 0);
  for (size_t i = 0; i < kStored; ++i) EXPECT_STREQ(static_cast<const char*>(views[i].data), names[i].c_str());
  EXPECT_EQ(writer_.remove_tree(names[0]), -EBUSY) << "the match holds the chain";
  EXPECT_EQ(maru_release_match(reader_, &match), 0);
  EXPECT_EQ(reader_.statistics().pins, 0u);

  // Blocks that are there, but are not one chain, are walked and held each.
  for (size_t i = kStored; i < kStored + 3; ++i) ASSERT_EQ(writer_.store(names[i], "a root"), 0);
  ASSERT_EQ(maru_match_prefix(reader_, keys.data(), kLength, &match), 0);
  EXPECT_EQ(match.blocks, kStored + 3);
  EXPECT_GT(reader_.statistics().pins, 1u);
  EXPECT_EQ(maru_release_match(reader_, &match), 0);
  EXPECT_EQ(reader_.statistics().pins, 0u);
}

TEST_F(Keys, MatchedBlocksAreResolvedThoughTheirKeysWereTaken) {
  // A chain of which the deepest block is deleted and stored anew, and roots of which one is.
  for (const bool is_chain : {true, false}) {
    const std::string prefix = is_chain ? "chain " : "root ";
    std::vector<std::string> names;
    for (int i = 0; i < 4; ++i) names.push_back(prefix + std::to_string(i));
    std::vector<maru_key> keys;
    for (const std::string& name : names) keys.push_back(key_of(name));
    for (size_t i = 0; i < 4; ++i)
      ASSERT_EQ(writer_.store(names[i], "old " + names[i], is_chain && i > 0 ? names[i - 1] : ""), 0);
    maru_match match;
    ASSERT_EQ(maru_match_prefix(reader_, keys.data(), 4, &match), 0);
    ASSERT_EQ(match.blocks, 4u);
    const std::string taken = names[is_chain ? 3 : 1];
    ASSERT_EQ(writer_.remove(taken), 0);
    for (const bool is_stored_again : {false, true}) {
      if (is_stored_again) {
        ASSERT_EQ(writer_.store(taken, "new"), 0);
      }
      maru_view views[4];
      ASSERT_EQ(maru_resolve(reader_, &match, keys.data(), 4, views), 0);
      for (size_t i = 0; i < 4; ++i)
        EXPECT_EQ(std::string_view(static_cast<const char*>(views[i].data), views[i].bytes), "old " + names[i]);
    }
    EXPECT_EQ(maru_release_match(reader_, &match), 0);
    EXPECT_EQ(reader_.text(taken), "new");
  }
}

// What a match holds is given, whatever keys are named, and nothing else, though it is there.
TEST_F(Keys, BlocksThatAMatchDoesNotHoldAreNotResolved) {
  constexpr size_t kKeys = 12;
  // Roots; a chain; chains of three each, which is a match that is walked.
  for (const size_t length : {size_t{1}, kKeys, size_t{3}}) {
    std::vector<std::string> names[2];
    std::vector<maru_key> keys[2];
    for (int which = 0; which < 2; ++which) {
      for (size_t i = 0; i < kKeys; ++i)
        names[which].push_back(std::to_string(length) + (which ? " other " : " own ") + std::to_string(i));
      for (size_t i = 0; i < kKeys; ++i) {
        keys[which].push_back(key_of(names[which][i]));
        ASSERT_EQ(writer_.store(names[which][i], names[which][i], i % length != 0 ? names[which][i - 1] : ""), 0);
      }
    }
    maru_match match;
    ASSERT_EQ(maru_match_prefix(reader_, keys[0].data(), kKeys, &match), 0);
    ASSERT_EQ(match.blocks, kKeys);
    maru_view views[kKeys];
    for (size_t n = 1; n <= kKeys; ++n) {
      const std::string which = std::to_string(n) + " keys, chains of " + std::to_string(length);
      ASSERT_EQ(maru_resolve(reader_, &match, keys[0].data(), n, views), 0) << which;
      for (size_t i = 0; i < n; ++i)
        EXPECT_EQ(std::string_view(static_cast<const char*>(views[i].data), views[i].bytes), names[0][i]) << which;
      EXPECT_LT(maru_resolve(reader_, &match, keys[1].data(), n, views), 0) << which;
      for (size_t i = 0; i < n; ++i) {
        std::vector<maru_key> mixed = keys[0];
        mixed[i] = keys[1][i];
        EXPECT_LT(maru_resolve(reader_, &match, mixed.data(), n, views), 0) << which << ", one of them another: " << i;
      }
    }
    EXPECT_EQ(maru_release_match(reader_, &match), 0);
  }
}

TEST_F(Keys, BlockWhoseTimeIsOverIsAbsentAndReplaced) {
  ASSERT_EQ(writer_.store("short", "old", {}, 1), 0);
  EXPECT_TRUE(wait_until([&] { return !reader_.text("short"); }));
  EXPECT_EQ(writer_.store("short", "new"), 0);
  EXPECT_EQ(reader_.text("short"), "new");
  EXPECT_EQ(writer_.store("for ever", "text", {}, ~uint64_t{0}), 0);
  EXPECT_EQ(reader_.text("for ever"), "text");
  // A child does not outlive its parent.
  ASSERT_EQ(writer_.store("parent", "p", {}, 1), 0);
  const int stored = writer_.store("child", "c", "parent", 3'600'000);
  EXPECT_TRUE(stored == 0 || stored == -ENOLINK) << stored;
  if (stored == 0) {
    EXPECT_TRUE(wait_until([&] { return !reader_.text("child"); }));
  }
  // And none is stored below one whose time is over.
  ASSERT_EQ(writer_.store("over", "p", {}, 1), 0);
  EXPECT_TRUE(wait_until([&] { return !reader_.text("over"); }));
  EXPECT_EQ(writer_.store("late child", "c", "over"), -ENOLINK);
}

TEST_F(Keys, WhatHasExpiredIsHandedToMarud) {
  ControlMap map(marud_.socket_path());
  maru_block root = 0, child = 0;
  ASSERT_EQ(writer_.store("root", "r", {}, 0, &root), 0);
  ASSERT_EQ(writer_.store("child", "c", "root", 0, &child), 0);
  marud_.suspend();
  for (const maru_block block : {root, child})
    map.region().block(format::PageRef::from_bits(block).page()).expires_ms.store_release(1);
  // The time of a touch is a millisecond, and two of a block in one leave one trace.
  const auto leaves_touch = [&](TestClient& client, auto&& look) {
    const AtomicU64& count = map.region().lane(client.geometry().lane).header->touch_count;
    const uint64_t before = count.load_acquire();
    return wait_until([&] {
      look();
      return count.load_acquire() != before;
    });
  };
  const maru_key keys[] = {key_of("root"), key_of("child")};
  maru_view views[2];
  maru_match match;
  EXPECT_TRUE(leaves_touch(reader_, [&] { EXPECT_EQ(reader_.text("root"), std::nullopt); }));
  EXPECT_TRUE(leaves_touch(reader_, [&] { EXPECT_EQ(maru_retrieve_batch(reader_, keys, 2, views), 0); }));
  EXPECT_TRUE(leaves_touch(reader_, [&] {
    ASSERT_EQ(maru_match_prefix(reader_, keys, 2, &match), 0);
    EXPECT_EQ(match.blocks, 0u);
    maru_release_match(reader_, &match);
  }));
  EXPECT_TRUE(leaves_touch(writer_, [&] { EXPECT_EQ(writer_.store("root", "new"), -EAGAIN) << "it has a child"; }));
  marud_.resume();
  EXPECT_TRUE(wait_until([&] { return writer_.store("root", "new") == 0; }));
  EXPECT_EQ(reader_.text("root"), "new");
}

// Otherwise a parent that is in use all the time would be as cold as when it was stored.
TEST_F(Keys, DeletedChildLeavesItsLastUseToItsParent) {
  ControlMap map(marud_.socket_path());
  maru_block root = 0, child = 0;
  ASSERT_EQ(writer_.store("root", "r", {}, 0, &root), 0);
  ASSERT_EQ(writer_.store("child", "c", "root", 0, &child), 0);
  marud_.suspend();
  const uint32_t page = format::PageRef::from_bits(root).page();
  const auto ring = map.region().lane(writer_.geometry().lane).touches;
  const auto last_touch = [&](uint32_t of) {
    uint64_t tick = 0;
    for (const AtomicU64& entry : ring)
      if (const uint64_t word = entry.load_acquire(); word >> 32 == uint64_t(of) + 1)
        tick = std::max(tick, word & 0x7FFF'FFFF);
    return tick;
  };
  const uint64_t stored = last_touch(page);
  EXPECT_TRUE(wait_until([&] {
    EXPECT_EQ(writer_.text("child"), "c");
    return last_touch(format::PageRef::from_bits(child).page()) > stored;
  }));
  const uint64_t used = last_touch(format::PageRef::from_bits(child).page());
  ASSERT_EQ(writer_.remove("child"), 0);
  EXPECT_EQ(last_touch(page), used);
  marud_.resume();
}

// One byte of the block's first page is another one.
void damage(const ControlMap& map, maru_block block) {
  const uint64_t at =
      map.attached().pages_offset + format::PageRef::from_bits(block).page() * map.region().page_bytes();
  auto page = Mapping::map_shared(map.device_fd(), at, 4096, PROT_READ | PROT_WRITE);
  ASSERT_TRUE(page) << page.error().text();
  page->data()[90] ^= std::byte{1};
}

TEST(Checksums, WhoMayOnlyReadDeletesNothing) {
  PoolWish pool;
  pool.checksums = true;
  MarudProcess marud({pool});
  TestClient writer(marud.socket_path());
  TestClient reader(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
  ControlMap map(marud.socket_path());
  maru_block block = 0;
  ASSERT_EQ(writer.store("k", std::string(100, 'm'), {}, 0, &block), 0);
  damage(map, block);
  maru_view view;
  const maru_key key = key_of("k");
  for (int i = 0; i < 2; ++i) EXPECT_EQ(reader.retrieve("k", &view), -EIO);
  EXPECT_EQ(maru_retrieve_batch(reader, &key, 1, &view), 0) << "absent in a batch";
  EXPECT_EQ(view.block, 0u);
  EXPECT_EQ(view.bytes, uint64_t(EIO)) << "and why is said";
  EXPECT_EQ(reader.statistics().pins, 0u);
  EXPECT_EQ(reader.statistics().checksum_errors, 3u);
  const auto page = format::PageRef::from_bits(block);
  EXPECT_TRUE(shm::PageWord{map.region().block(page.page()).word.load_acquire()}.is(format::PageState::kReady,
                                                                                    page.generation()))
      << "a reader has taken it away";
  EXPECT_EQ(writer.retrieve("k", &view), -EIO);
  EXPECT_EQ(writer.retrieve("k", &view), -ENOENT) << "who may write has";
}

TEST(Checksums, DamagedPayloadIsAnErrorAndGone) {
  PoolWish pool;
  pool.checksums = true;
  MarudProcess marud({pool});
  TestClient writer(marud.socket_path()), reader(marud.socket_path());
  ControlMap map(marud.socket_path());
  const std::string text(10'000, 'm');
  maru_block block = 0;
  ASSERT_EQ(writer.store("k", text, {}, 0, &block), 0);
  ASSERT_EQ(writer.store("sound", text), 0);
  EXPECT_EQ(reader.text("k"), text);

  const uint64_t at =
      map.attached().pages_offset + format::PageRef::from_bits(block).page() * map.region().page_bytes();
  auto page = Mapping::map_shared(map.device_fd(), at, 3 * 4096, PROT_READ | PROT_WRITE);
  ASSERT_TRUE(page) << page.error().text();
  page->data()[9'000] ^= std::byte{1};

  maru_view view;
  EXPECT_EQ(reader.retrieve("k", &view), -EIO);
  EXPECT_EQ(reader.retrieve("k", &view), -ENOENT);
  EXPECT_EQ(writer.exists("k"), 0);
  EXPECT_EQ(reader.statistics().checksum_errors, 1u);
  EXPECT_EQ(reader.statistics().pins, 0u);
  EXPECT_EQ(reader.text("sound"), text);
  EXPECT_EQ(writer.store("k", text), 0);
  EXPECT_EQ(reader.text("k"), text);
}

// A client that writes the index gives each of two keys the other's payload.
TEST(Checksums, ABlockUnderAnotherBlocksKeyIsAnError) {
  PoolWish pool;
  pool.checksums = true;
  MarudProcess marud({pool});
  TestClient writer(marud.socket_path()), reader(marud.socket_path());
  ControlMap map(marud.socket_path());
  const shm::ControlRegion& region = map.region();
  ASSERT_TRUE(region.has_bound_checksums());
  maru_block blocks[2] = {};
  ASSERT_EQ(writer.store("k", std::string(100, 'k'), {}, 0, &blocks[0]), 0);
  ASSERT_EQ(writer.store("l", std::string(100, 'l'), {}, 0, &blocks[1]), 0);
  format::BlockLine* lines[2];
  AtomicU64* locations[2] = {};
  for (int i = 0; i < 2; ++i) {
    lines[i] = &region.block(format::PageRef::from_bits(blocks[i]).page());
    for (uint64_t bucket = 0; bucket < region.buckets(); ++bucket)
      for (AtomicU64& location : region.bucket(bucket).locations.location)
        if (location.load_relaxed() == blocks[i]) locations[i] = &location;
    ASSERT_NE(locations[i], nullptr);
  }
  for (const auto word : {&format::BlockLine::digest_lo, &format::BlockLine::digest_hi}) {
    const uint64_t first = (lines[0]->*word).exchange_seq_cst((lines[1]->*word).load_relaxed());
    (lines[1]->*word).store_release(first);
  }
  locations[0]->store_release(blocks[1]);
  locations[1]->store_release(blocks[0]);

  maru_view view;
  EXPECT_EQ(reader.retrieve("k", &view), -EIO) << "the payload of another key";
  EXPECT_EQ(reader.retrieve("l", &view), -EIO);
  EXPECT_EQ(reader.statistics().checksum_errors, 2u);
}

// Fourteen keys fill the two buckets that they share; the next one is stored all the same.
TEST(FullBuckets, AnotherKeyIsStoredAndTheColdestMakesRoom) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ControlMap map(marud.socket_path());
  const shm::ControlRegion& region = map.region();
  std::vector<std::string> names;
  for (int i = 0; names.size() < 16; ++i) {
    const std::string name = "key " + std::to_string(i);
    const shm::Digest digest = shm::digest_of_bytes(region.secret(), std::as_bytes(std::span(name)), 0);
    if (shm::home_bucket(region, digest) == 0) names.push_back(name);
  }
  const auto stored = [&] {
    int count = 0;
    for (const std::string& name : names) count += client.exists(name);
    return count;
  };
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(client.store(names[i], "text"), 0) << i;
  EXPECT_EQ(client.text(names[14]), "text");
  EXPECT_EQ(stored(), 14);
  // As an earlier marud, which would end the connection at a message that it does not know.
  region.host(0).serves.store_release(0);
  EXPECT_EQ(client.store(names[15], "text"), -EXFULL);
  EXPECT_EQ(stored(), 14);
}

}  // namespace
}  // namespace maru::test
