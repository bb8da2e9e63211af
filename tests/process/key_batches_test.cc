// Many keys in one call: it answers what as many calls of one key do.
#include "tests/support/marud_process.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"

#include <algorithm>
#include <gtest/gtest.h>

namespace maru::test {
namespace {

class KeyBatches : public ::testing::Test {
 protected:
  MarudProcess marud_;
  TestClient writer_{marud_.socket_path()};
  TestClient reader_{marud_.socket_path()};
  std::vector<std::string> names_;

  // So many keys, the texts of names_; of these every third is stored, with itself as its payload.
  std::vector<maru_key> keys_with_every_third_stored(size_t n) {
    for (size_t i = 0; i < n; ++i) names_.push_back("key " + std::to_string(i));
    std::vector<maru_key> keys;
    for (const std::string& name : names_) keys.push_back(key_of(name));
    for (size_t i = 0; i < n; i += 3) EXPECT_EQ(writer_.store(keys[i], names_[i]), 0);
    return keys;
  }
};

// Texts beside each other are hashed together where their lengths allow that: they are near each other here, or of one length,
// with other kinds of keys, other tenants and what is no key between them.
TEST_F(KeyBatches, BatchesOfEveryMixtureAgreeWithSingleCalls) {
  Random random(fresh_seed());
  uint64_t tenant = 0;
  ASSERT_EQ(maru_tenant(writer_, "tenant", 6, &tenant), 0);
  for (const uint64_t lengths : {1, 4, 40}) {
    std::vector<std::string> names(100);
    std::vector<maru_key> keys;
    for (size_t i = 0; i < names.size(); ++i) {
      const bool is_digest = random.one_in(10);
      names[i] = std::to_string(lengths) + " " + std::to_string(1000 + i);
      names[i].resize(is_digest ? 16 : names[i].size() + random.below(lengths), 'x');
      keys.push_back(key_of(names[i], random.one_in(2) ? tenant : 0));
      if (is_digest) keys.back().kind = MARU_KEY_DIGEST128;
      if (i % 2 == 0) {
        ASSERT_EQ(writer_.store(keys[i], names[i]), 0);
      }
    }
    std::vector<uint8_t> present(keys.size());
    ASSERT_EQ(maru_exists_batch(reader_, keys.data(), keys.size(), present.data()), int(keys.size() / 2));
    for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(present[i], maru_exists(reader_, &keys[i])) << i;
    std::vector<maru_key> chain;
    for (size_t i = 0; i < keys.size(); i += 2) chain.push_back(keys[i]);
    maru_match match;
    ASSERT_EQ(maru_match_prefix(reader_, chain.data(), chain.size(), &match), 0);
    EXPECT_EQ(match.blocks, chain.size());
    EXPECT_EQ(maru_release_match(reader_, &match), 0);
    for (size_t i = 0; i < 20; ++i) {
      std::vector<maru_key> wrong = keys;
      wrong[i].size = 0;
      EXPECT_EQ(maru_exists_batch(reader_, wrong.data(), wrong.size(), present.data()), -EINVAL) << i;
    }
  }
}

// The same names in rows: far apart and without gaps, of one length and of several, of every kind, from every place in a group.
TEST_F(KeyBatches, RowsAgreeWithBatches) {
  Random random(fresh_seed());
  uint64_t tenant = 0;
  ASSERT_EQ(maru_tenant(writer_, "tenant", 6, &tenant), 0);
  constexpr size_t kRows = 67, kStride = 80;
  for (const uint32_t kind : {MARU_KEY_BYTES, MARU_KEY_DIGEST128, MARU_KEY_DIGEST256})
    for (const bool is_even : {true, false}) {
      if (!is_even && kind != MARU_KEY_BYTES) continue;
      for (const uint32_t length : {1u, 7u, 8u, 35u, 64u, 80u}) {
        const uint32_t size = kind == MARU_KEY_BYTES ? length : kind == MARU_KEY_DIGEST128 ? 16 : 32;
        const size_t stride = random.one_in(2) ? kStride : size;
        std::vector<uint8_t> bytes(kRows * kStride);
        for (uint8_t& byte : bytes) byte = uint8_t(random.next());
        std::vector<uint32_t> sizes(kRows, size);
        if (!is_even)
          for (uint32_t& some : sizes) some = 1 + uint32_t(random.below(size));
        const maru_key_rows rows = {bytes.data(), stride, is_even && random.one_in(2) ? nullptr : sizes.data(),
                                    size,         kind,   random.one_in(2) ? tenant : 0};
        std::vector<maru_key> keys;
        for (size_t i = 0; i < kRows; ++i) {
          keys.push_back({bytes.data() + i * stride, sizes[i], kind, rows.tenant});
          if (random.one_in(2)) {
            ASSERT_GE(writer_.store(keys[i], "text"), 0);
          }
        }
        std::vector<uint8_t> expected(kRows), present(kRows + 1);
        for (size_t n = 0; n <= kRows; ++n) {
          present.assign(kRows + 1, 7);
          const int found = maru_exists_batch(reader_, keys.data(), n, expected.data());
          ASSERT_EQ(maru_exists_rows(reader_, &rows, n, present.data()), found);
          ASSERT_TRUE(std::equal(expected.begin(), expected.begin() + std::ptrdiff_t(n), present.begin()));
          ASSERT_EQ(present[n], 7);
        }
        const size_t at = random.below(kRows);
        sizes[at] = kind == MARU_KEY_BYTES ? random.one_in(2) ? 0 : 4097 : 17;
        maru_key_rows wrong = rows;
        wrong.sizes = sizes.data();
        EXPECT_EQ(maru_exists_rows(reader_, &wrong, kRows, present.data()), -EINVAL) << at;
        for (const maru_key& key : keys) maru_delete(writer_, &key);
      }
    }
}

TEST_F(KeyBatches, RowsMayOverlap) {
  const std::string text = "abcdefghijklmnopqrstuvwxyz";
  ASSERT_EQ(writer_.store(key_of("cdefg"), "text"), 0);
  for (const size_t stride : {0, 1}) {
    const maru_key_rows rows = {text.data() + (stride == 0 ? 2 : 0), stride, nullptr, 5, MARU_KEY_BYTES, 0};
    std::vector<uint8_t> present(20);
    EXPECT_EQ(maru_exists_rows(reader_, &rows, present.size(), present.data()), stride == 0 ? 20 : 1);
    for (size_t i = 0; i < present.size(); ++i) EXPECT_EQ(present[i], stride == 0 || i == 2) << i;
  }
}

TEST_F(KeyBatches, RowsThatAreNoneAreRefused) {
  const std::string text = "sixteen bytes!!!";
  const maru_key_rows good = {text.data(), 16, nullptr, 16, MARU_KEY_DIGEST128, 0};
  uint8_t present = 7;
  EXPECT_EQ(maru_exists_rows(reader_, &good, 1, &present), 0);
  EXPECT_EQ(present, 0);
  EXPECT_EQ(maru_exists_rows(reader_, nullptr, 0, nullptr), 0);
  EXPECT_EQ(maru_exists_rows(reader_, nullptr, 1, &present), -EINVAL);
  EXPECT_EQ(maru_exists_rows(reader_, &good, 1, nullptr), -EINVAL);
  EXPECT_EQ(maru_exists_rows(reader_, &good, (size_t{1} << 20) + 1, &present), -EINVAL);
  for (const maru_key_rows& wrong :
       std::initializer_list<maru_key_rows>{{nullptr, 16, nullptr, 16, MARU_KEY_DIGEST128, 0},
                                            {nullptr, 16, nullptr, 16, MARU_KEY_BYTES, 0},
                                            {text.data(), 16, nullptr, 0, MARU_KEY_BYTES, 0},
                                            {text.data(), 16, nullptr, 4097, MARU_KEY_BYTES, 0},
                                            {text.data(), 16, nullptr, 15, MARU_KEY_DIGEST128, 0},
                                            {text.data(), 16, nullptr, 16, 3, 0}})
    EXPECT_EQ(maru_exists_rows(reader_, &wrong, 1, &present), -EINVAL);
}

TEST_F(KeyBatches, BatchesAgreeWithSingleCalls) {
  const std::vector<maru_key> keys = keys_with_every_third_stored(300);
  std::vector<uint8_t> present(keys.size(), 7);
  EXPECT_EQ(maru_exists_batch(reader_, keys.data(), keys.size(), present.data()), 100);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(present[i], i % 3 == 0);
  std::vector<maru_view> views(keys.size());
  EXPECT_EQ(maru_retrieve_batch(reader_, keys.data(), keys.size(), views.data()), 100);
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(views[i].data != nullptr, i % 3 == 0);
    if (i % 3 == 0) {
      EXPECT_EQ(std::string_view(static_cast<const char*>(views[i].data), views[i].bytes), names_[i]);
    }
  }
  EXPECT_EQ(maru_release_batch(reader_, views.data(), views.size()), 0);
  std::vector<int32_t> results(keys.size());
  EXPECT_EQ(maru_delete_batch(reader_, keys.data(), keys.size(), results.data()), 100);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(results[i], i % 3 == 0 ? 0 : -ENOENT);
}

TEST_F(KeyBatches, ABatchThatFailsLeavesNoViewOfAnEarlierOne) {
  ASSERT_EQ(writer_.store(key_of("a"), "a"), 0);
  const maru_key good = key_of("a");
  maru_view held;
  ASSERT_EQ(maru_retrieve(reader_, &good, &held), 0);
  maru_view views[2] = {held, held};
  const maru_key keys[] = {good, key_of("")};
  EXPECT_EQ(maru_retrieve_batch(reader_, keys, 2, views), -EINVAL);
  EXPECT_EQ(maru_release_batch(reader_, views, 2), 0);
  EXPECT_EQ(maru_release(reader_, &held), 0) << "its pin was ended by the views of a call that failed";
}

// Batches are taken in groups: none is forgotten at an edge, and nothing is written behind the last key.
TEST_F(KeyBatches, BatchesOfAnySizeAndWithAWrongKeyAnywhere) {
  const std::vector<maru_key> keys = keys_with_every_third_stored(70);
  for (size_t n = 0; n <= keys.size(); ++n) {
    std::vector<uint8_t> present(keys.size() + 1, 7);
    EXPECT_EQ(maru_exists_batch(reader_, keys.data(), n, present.data()), int(n + 2) / 3);
    for (size_t i = 0; i < present.size(); ++i) EXPECT_EQ(present[i], i < n ? i % 3 == 0 : 7) << i << " of " << n;
  }
  for (size_t wrong = 0; wrong < keys.size(); ++wrong) {
    std::vector<maru_key> some = keys;
    some[wrong].size = 0;
    std::vector<uint8_t> present(keys.size());
    EXPECT_EQ(maru_exists_batch(reader_, some.data(), some.size(), present.data()), -EINVAL) << wrong;
  }
}

}  // namespace
}  // namespace maru::test
