// Second names of chains, collisions made on purpose, tenants and models, eviction, stale names.
#include "libmaru/blend/chunk_names.h"
#include "tests/blend/collision.h"
#include "tests/blend/spans_fixture.h"

#include <cstdio>

namespace maru::test {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr uint32_t kWindow = 4 * kBlockTokens;

class SecondNames : public SpansTest {
 protected:
  SecondNames() : writing_(open_spans(client_, kWindow)), spans_(open_spans(reader_, kWindow)) {}

  // A chain of six blocks whose last four are the chunk.
  maru_block store_named(const std::string& chain, const Tokens& chunk, uint64_t position = 2 * kBlockTokens) {
    const std::vector<maru_block> blocks = store_chain(client_, chain, 6);
    const auto named = writing_.name(chunk, position, blocks.back(), 4, "note");
    EXPECT_TRUE(named.ok()) << named.error();
    return blocks.back();
  }

  const Tokens chunk_ = tokens_from(100, kWindow);
  const Tokens prompt_ = joined({tokens_from(9000, 5), chunk_, tokens_from(7000, 9)});
  Spans writing_, spans_;
};

TEST_F(SecondNames, LeadToTheBlocksOfTheChainWhichAreThereOnce) {
  store_named("document", chunk_);
  EXPECT_EQ(ready_pages(), 7u) << "six blocks and the name";
  const auto found = spans_.find(prompt_);
  ASSERT_TRUE(found) << found.error();
  ASSERT_EQ(found->spans().size(), 1u);
  const maru_span& span = found->spans()[0];
  EXPECT_EQ(span.old_start, 2 * kBlockTokens);
  EXPECT_EQ(span.new_start, 5u);
  EXPECT_EQ((std::string_view{static_cast<const char*>(span.note), span.note_bytes}), "note");
  ASSERT_EQ(span.views_count, 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(text_of(span.views[i]), "block " + std::to_string(i + 2));
  EXPECT_EQ(reader_.statistics().pins, 1u) << "the name's pin holds the chain";
}

TEST_F(SecondNames, HoldTheirChainUntilTheyAreForgotten) {
  store_named("document", chunk_);
  EXPECT_EQ(client_.remove("document/5"), -ENOTEMPTY);
  EXPECT_EQ(*writing_.forget(chunk_), 1);
  EXPECT_EQ(*writing_.forget(chunk_), 0);
  EXPECT_EQ(client_.remove("document/5"), 0);
  EXPECT_EQ(found(spans_, prompt_), 0u);
}

TEST_F(SecondNames, AreRefusedForWhatIsNoSuchChain) {
  const std::vector<maru_block> blocks = store_chain(client_, "short", 3);
  EXPECT_EQ(writing_.name(chunk_, 0, blocks.back(), 4).error(), EINVAL) << "three blocks";
  EXPECT_EQ(writing_.name(chunk_, 0, blocks.back(), 0).error(), EINVAL);
  EXPECT_EQ(writing_.name(std::span(chunk_).first(3), 0, blocks.back(), 3).error(), EINVAL);
  ASSERT_EQ(client_.remove_tree("short/0"), 0);
  EXPECT_EQ(writing_.name(chunk_, 0, blocks.back(), 3).error(), ENOLINK) << "it is gone";
  EXPECT_EQ(ready_pages(), 0u);
}

TEST_F(SecondNames, OfTheSameTokensAreStoredOnce) {
  store_named("document", chunk_);
  const std::vector<maru_block> other = store_chain(client_, "other", 4);
  const auto again = writing_.name(chunk_, 0, other.back(), 4);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(*again);
  EXPECT_FALSE(*writing_.store_copy(chunk_, 7, bytes_of("copy")));
  EXPECT_EQ(ready_pages(), 6u + 1 + 4);
  EXPECT_EQ(client_.statistics().pins, 0u);
}

// A name cannot outlive its chain: no lookup meets a stale one, and none has to be dropped after strikes.
TEST_F(SecondNames, GoWithTheirChainAndComeBackWithIt) {
  const maru_block before = store_named("document", chunk_);
  ASSERT_EQ(client_.remove_tree("document/0"), 0);
  {
    const auto found = spans_.find(prompt_);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->spans().size(), 0u);
    EXPECT_EQ(found->rejected(), 0u);
  }
  const maru_block after = store_named("document", chunk_, 5 * kBlockTokens);
  EXPECT_NE(before, after);
  const auto found = spans_.find(prompt_);
  ASSERT_EQ(found->spans().size(), 1u);
  EXPECT_EQ(found->spans()[0].old_start, 5 * kBlockTokens) << "of the later life";
}

TEST_F(SecondNames, WhatIsHeldIsNotEvictedAndWhatIsNotLeavesNoTrace) {
  store_named("kept", chunk_);
  const Tokens other = tokens_from(50'000, kWindow);
  store_named("goes", other);
  auto held = spans_.find(prompt_);
  ASSERT_EQ(held->spans().size(), 1u);
  const uint64_t pages = map_.region().pages();
  for (uint64_t i = 0; i < 2 * pages; ++i) {
    std::string key = "filler " + std::to_string(i);
    ASSERT_GE(client_.store_near(key, "x"), 0) << i;
  }
  EXPECT_EQ(client_.exists("goes/5"), 0);
  EXPECT_EQ(found(spans_, other), 0u) << "evicted with its chain";
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(text_of(held->spans()[0].views[i]), "block " + std::to_string(i + 2));
  held->release();
  for (uint64_t i = 0; i < 2 * pages; ++i) {
    std::string key = "more " + std::to_string(i);
    ASSERT_GE(client_.store_near(key, "x"), 0) << i;
  }
  EXPECT_EQ(found(spans_, prompt_), 0u);
  EXPECT_EQ(client_.exists("kept/0"), 0);
  expect_rest();
}

TEST_F(SecondNames, MillionsThatComeAndGoLeaveNoTraceAndNoError) {
  const uint64_t cycles = number_from_environment("MARU_SPAN_CYCLES", 100'000);
  const Spans narrow = open_spans(client_, 4, 0, 0, "cycles");
  Tokens chunk(4);
  uint64_t refused = 0;
  for (uint64_t i = 0; i < cycles; ++i) {
    chunk = {uint32_t(i), uint32_t(i >> 32), 3, 4};
    const auto stored = narrow.store_copy(chunk, i, bytes_of("payload"));
    if (stored.error() == EXFULL) {
      ++refused;  // both buckets of a key are full, once in so many
      continue;
    }
    ASSERT_TRUE(stored.ok()) << stored.error() << " after " << i;
    ASSERT_TRUE(*stored) << i;
    ASSERT_EQ(found(narrow, chunk), 1u) << i;
  }
  std::printf("%llu chunks, %llu refused by full buckets\n", static_cast<unsigned long long>(cycles),
              static_cast<unsigned long long>(refused));
  EXPECT_LE(refused, cycles / 1000);
  EXPECT_LE(ready_pages(), map_.region().pages());
  EXPECT_EQ(map_.count_pins(), 0u);
}

// -- who meets whom --------------------------------------------------------------------------------------------------

TEST_F(SecondNames, TenantsModelsAndLengthsNeverMeet) {
  uint64_t alice = 0, bob = 0;
  ASSERT_EQ(maru_tenant(client_, "alice", 5, &alice), 0);
  ASSERT_EQ(maru_tenant(client_, "bob", 3, &bob), 0);
  const Spans of_alice = open_spans(client_, kWindow, alice);
  ASSERT_TRUE(*of_alice.store_copy(chunk_, 0, bytes_of("alice's")));
  EXPECT_EQ(found(of_alice, prompt_), 1u);
  EXPECT_EQ(found(open_spans(reader_, kWindow, bob), prompt_), 0u);
  EXPECT_EQ(found(spans_, prompt_), 0u) << "no tenant";
  EXPECT_EQ(found(open_spans(reader_, kWindow, alice, 0, "another model"), prompt_), 0u);
  EXPECT_EQ(found(open_spans(reader_, kWindow - 1, alice), prompt_), 0u);
  const std::vector<maru_block> of_bob = store_chain(client_, "bob's", 4, bob);
  EXPECT_EQ(of_alice.name(tokens_from(0, kWindow), 0, of_bob.back(), 4).error(), EINVAL) << "a chain of another tenant";
}

// A block lies under the very key that the lookup asks for, but its record names another tenant, space or text, or is broken.
TEST_F(SecondNames, ARecordThatDiffersInAnythingIsAMiss) {
  const blend::ChunkNames& names = spans_.c()->names;
  const blend::NameBytes name = names.name(chunk_.data(), 0);
  const maru_key key = names.key(name);
  const blend::RecordHeader right = names.header(1234, 0, 0);
  std::vector<std::byte> record(blend::record_bytes(kWindow, 0));
  const auto found_with = [&](const blend::RecordHeader& header, const Tokens& tokens, size_t bytes) {
    blend::write_record(header, tokens.data(), nullptr, record.data());
    std::memcpy(record.data(), &header, sizeof(header));
    const maru_metadata metadata = {record.data(), uint32_t(bytes), 0};
    maru_store_options options = {};
    options.size = sizeof(options);
    options.metadata = &metadata;
    EXPECT_EQ(maru_store_copy(client_, &key, "x", 1, &options, nullptr), 0);
    const auto result = spans_.find(prompt_);
    EXPECT_EQ(result->rejected(), 1 - result->spans().size());
    EXPECT_EQ(maru_delete(client_, &key), 0);
    return result->spans().size();
  };
  ASSERT_EQ(found_with(right, chunk_, record.size()), 1u) << "the right one is found";
  Tokens other = chunk_;
  other[kWindow - 1] ^= 1;
  EXPECT_EQ(found_with(right, other, record.size()), 0u) << "another text";
  EXPECT_EQ(found_with(right, chunk_, record.size() - 1), 0u) << "cut off";
  EXPECT_EQ(found_with(right, chunk_, 5), 0u);
  EXPECT_EQ(found_with(right, chunk_, 0), 0u);
  const auto expect_miss = [&](const char* what, auto&& change) {
    blend::RecordHeader header = right;
    change(header);
    std::vector<std::byte> kept(record.size());
    blend::RecordHeader sized = header;
    sized.window = kWindow;
    sized.note_bytes = 0;
    blend::write_record(sized, chunk_.data(), nullptr, record.data());
    EXPECT_EQ(found_with(header, chunk_, record.size()), 0u) << what;
  };
  expect_miss("tenant", [](auto& h) { h.tenant ^= 1; });
  expect_miss("space", [](auto& h) { h.space[15] ^= 1; });
  expect_miss("magic", [](auto& h) { h.magic ^= 1; });
  expect_miss("chain that is not there", [](auto& h) { h.chain_blocks = 2; });
}

// -- collisions ------------------------------------------------------------------------------------------------------

// A process of the pool knows the base, so it can make two texts of one name, as no prompt can.
TEST_F(SecondNames, ACraftedCollisionIsAMissAndNeverAnotherText) {
  const auto [a, b] = colliding_texts(spans_.c()->names.hash());
  ASSERT_NE(a, b);
  ASSERT_EQ(spans_.c()->names.hash().of(a.data()), spans_.c()->names.hash().of(b.data()));
  ASSERT_TRUE(*writing_.store_copy(a, 0, bytes_of("a's")));
  EXPECT_EQ(found(spans_, a), 1u);
  const auto result = spans_.find(b);
  EXPECT_EQ(result->spans().size(), 0u);
  EXPECT_EQ(result->rejected(), 1u);
  EXPECT_EQ(writing_.store_copy(b, 0, bytes_of("b's")).error(), EEXIST);
  EXPECT_EQ(*writing_.forget(b), 0) << "a's chunk is not b's to forget";
  // With room for another occupant both are there.
  const Spans two = open_spans(client_, kWindow, 0, 2);
  ASSERT_TRUE(*two.store_copy(b, 0, bytes_of("b's")));
  const auto both = two.find(joined({b, a}));
  ASSERT_EQ(both->spans().size(), 2u);
  EXPECT_EQ(text_of(both->spans()[0].views[0]), "b's");
  EXPECT_EQ(text_of(both->spans()[1].views[0]), "a's");
}

TEST_F(SecondNames, OtherSpacesAndPoolsHaveOtherBases) {
  const MarudProcess other_marud;
  TestClient other(other_marud.socket_path());
  const uint64_t here = spans_.c()->names.hash().base();
  EXPECT_EQ(here, writing_.c()->names.hash().base()) << "the same in every client";
  EXPECT_NE(here, open_spans(other, kWindow).c()->names.hash().base());
  EXPECT_NE(here, open_spans(client_, kWindow, 0, 0, "another").c()->names.hash().base());
}

TEST_F(SecondNames, SurviveMarud) {
  store_named("document", chunk_);
  ASSERT_TRUE(*writing_.store_copy(tokens_from(70'000, kWindow), 0, bytes_of("with its bytes")));
  marud_.kill();
  EXPECT_EQ(found(spans_, prompt_), 1u) << "while marud is away";
  marud_.start();
  TestClient later(marud_.socket_path());
  const Spans after = open_spans(later, kWindow);
  const auto result = after.find(joined({tokens_from(70'000, kWindow), {1, 2}, chunk_}));
  ASSERT_EQ(result->spans().size(), 2u);
  EXPECT_EQ(text_of(result->spans()[0].views[0]), "with its bytes");
  EXPECT_EQ(text_of(result->spans()[1].views[3]), "block 5");
}

TEST_F(SecondNames, ThePoolIsAuditedWithNamesInIt) {
  store_named("document", chunk_);
  ASSERT_EQ(found(spans_, prompt_), 1u);
  client_.detach();
  reader_.detach();
  expect_baseline(marud_, map_);
}

// -- bad input -------------------------------------------------------------------------------------------------------

TEST_F(SecondNames, BadInputIsRefusedAndHoldsNothing) {
  EXPECT_EQ(Spans::open(client_, "", 16).error(), EINVAL);
  EXPECT_EQ(Spans::open(client_, "m", 0).error(), EINVAL);
  EXPECT_EQ(Spans::open(client_, "m", MARU_SPAN_WINDOW_MAX + 1).error(), EINVAL);
  EXPECT_EQ(Spans::open(client_, "m", 16, 0, MARU_SPAN_OCCUPANTS_MAX + 1).error(), EINVAL);
  EXPECT_EQ(Spans::open(nullptr, "m", 16).error(), EINVAL);
  EXPECT_EQ(writing_.store_copy(chunk_, 0, bytes_of("x"), std::string(MARU_SPAN_NOTE_BYTES_MAX + 1, 'n')).error(),
            EINVAL);
  const maru_key key = key_of("k");
  maru_find_spans_options options = Spans::find_options();
  options.prefix_keys = &key;
  options.prefix_keys_count = 1;
  EXPECT_EQ(spans_.find(prompt_, options).error(), EINVAL) << "no tokens a key";
  options.prefix_key_tokens = prompt_.size() + 1;
  EXPECT_EQ(spans_.find(prompt_, options).error(), EINVAL) << "more tokens than there are";
  options = Spans::find_options();
  options.flags = 1u << 9;
  EXPECT_EQ(spans_.find(prompt_, options).error(), EINVAL);
  EXPECT_EQ(found(spans_, {}), 0u);
  TestClient read_only(marud_.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_READ_ONLY);
  const Spans looking = open_spans(read_only, kWindow);
  EXPECT_EQ(looking.store_copy(chunk_, 0, bytes_of("x")).error(), EROFS);
  EXPECT_EQ(found(looking, prompt_), 0u);
  const Spans longest = open_spans(client_, MARU_SPAN_WINDOW_MAX);
  const Tokens tokens = tokens_from(0, MARU_SPAN_WINDOW_MAX);
  EXPECT_TRUE(*longest.store_copy(tokens, 0, bytes_of("x"), std::string(MARU_SPAN_NOTE_BYTES_MAX, 'n')));
  EXPECT_EQ(found(longest, tokens), 1u);
  expect_rest();
}

}  // namespace
}  // namespace maru::test
