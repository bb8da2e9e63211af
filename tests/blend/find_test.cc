// maru_find_spans() equals a brute-force matcher, on random documents with planted overlaps and random options.
#include "tests/blend/spans_fixture.h"
#include "tests/blend/spans_model.h"

#include <algorithm>
#include <cstdio>
#include <set>

namespace maru::test {
namespace {

class FindSpans : public SpansTest {
 protected:
  FindSpans() : SpansTest(pool()), seed_(fresh_seed()), random_(seed_) {
    std::printf("seed %llu (MARU_SEED repeats it)\n", static_cast<unsigned long long>(seed_));
  }
  static PoolWish pool() {
    PoolWish pool;
    pool.bytes = 64u << 20;
    pool.region_bytes = 4u << 20;
    return pool;
  }

  // Few different tokens make overlaps by chance likely.
  Tokens text(size_t n, uint32_t alphabet) {
    Tokens tokens(n);
    for (uint32_t& token : tokens) token = uint32_t(random_.below(alphabet));
    return tokens;
  }
  static std::string payload_of(std::span<const uint32_t> tokens, uint64_t position) {
    std::string payload = std::to_string(position) + ":";
    for (const uint32_t token : tokens) payload += std::to_string(token) + ",";
    return payload;
  }

  // Documents of several chunks, at random positions; some chunks again at another position.
  std::vector<Tokens> store_documents(const Spans& spans, SpansModel& model, size_t count, uint32_t alphabet) {
    std::vector<Tokens> documents;
    for (size_t i = 0; i < count; ++i) {
      documents.push_back(text(spans.window() * (1 + random_.below(6)), alphabet));
      const uint64_t position = random_.one_in(4) ? 0 : random_.below(2000);
      store(spans, model, documents.back(), position);
      if (random_.one_in(3)) store(spans, model, documents.back(), random_.below(2000));
    }
    return documents;
  }
  void store(const Spans& spans, SpansModel& model, const Tokens& document, uint64_t position) {
    for (size_t at = 0; at < document.size(); at += spans.window()) {
      const std::span chunk = std::span(document).subspan(at, spans.window());
      const auto stored = spans.store_copy(chunk, position + at, bytes_of(payload_of(chunk, position + at)));
      ASSERT_TRUE(stored.ok()) << stored.error();
      ASSERT_EQ(*stored, model.store(chunk, position + at));
    }
  }

  // Pieces of documents, whole and cut, between other tokens.
  Tokens prompt_of(const std::vector<Tokens>& documents, size_t window, uint32_t alphabet) {
    Tokens prompt = text(random_.below(2 * window), alphabet);
    for (uint64_t pieces = random_.below(6); pieces > 0; --pieces) {
      const Tokens& document = documents[random_.below(documents.size())];
      size_t first = 0, end = document.size();
      if (random_.one_in(3)) first = random_.below(document.size());
      if (random_.one_in(3)) end = first + random_.below(document.size() - first + 1);
      prompt.insert(prompt.end(), document.begin() + std::ptrdiff_t(first), document.begin() + std::ptrdiff_t(end));
      const Tokens between = text(random_.one_in(2) ? 0 : random_.below(2 * window), alphabet);
      prompt.insert(prompt.end(), between.begin(), between.end());
    }
    return prompt;
  }
  maru_find_spans_options random_options(size_t window, size_t prompt_tokens) {
    maru_find_spans_options options = Spans::find_options();
    if (random_.one_in(3)) options.step = 1 + random_.below(window + 3);
    if (random_.one_in(3)) options.tokens_min = random_.below(4 * window);
    if (random_.one_in(4)) options.spans_max = 1 + random_.below(4);
    if (random_.one_in(4)) options.flags = MARU_FIND_SKIP_FIRST;
    if (random_.one_in(4)) options.first = random_.below(prompt_tokens + 1);
    return options;
  }

  void expect_equal(const Spans& spans, const SpansModel& model, const Tokens& prompt,
                    const maru_find_spans_options& options) {
    const std::vector<SpansModel::Span> expected = model.find(prompt, options);
    const auto found = spans.find(prompt, options);
    ASSERT_TRUE(found) << found.error();
    EXPECT_EQ(found->rejected(), 0u);
    std::set<maru_block> blocks;
    for (const maru_span& span : found->spans()) blocks.insert(span.block);
    EXPECT_GE(reader_.statistics().pins, blocks.size());
    EXPECT_LE(reader_.statistics().pins, found->spans().size()) << "spans of one block may share a slot";
    ASSERT_EQ(found->spans().size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const maru_span& span = found->spans()[i];
      ASSERT_EQ((SpansModel::Span{span.old_start, span.new_start}), expected[i]) << i;
      ASSERT_EQ(span.old_end - span.old_start, spans.window());
      ASSERT_EQ(span.new_end - span.new_start, spans.window());
      ASSERT_EQ(span.views_count, 1u);
      const std::span tokens = std::span(prompt).subspan(span.new_start, spans.window());
      ASSERT_EQ(text_of(span.views[0]), payload_of(tokens, span.old_start)) << "the bytes of another chunk";
    }
    spans_found_ += expected.size();
  }

  uint64_t seed_;
  Random random_;
  uint64_t spans_found_ = 0;
};

TEST_F(FindSpans, EqualsABruteForceMatcher) {
  const uint64_t prompts = number_from_environment("MARU_PROMPTS", 10'000);
  constexpr size_t kPromptsOfARound = 250;
  for (uint64_t done = 0; done < prompts && !HasFatalFailure(); done += kPromptsOfARound) {
    const auto window = uint32_t(1 + random_.below(40)), occupants = uint32_t(1 + random_.below(3));
    const auto alphabet = uint32_t(random_.one_in(2) ? 3 : 100'000);
    const std::string space = "round " + std::to_string(done);
    const Spans spans = open_spans(reader_, window, 0, occupants, space);
    const Spans writing = open_spans(client_, window, 0, occupants, space);
    SpansModel model(window, occupants);
    const std::vector<Tokens> documents = store_documents(writing, model, 30, alphabet);
    for (size_t i = 0; i < kPromptsOfARound && !HasFatalFailure(); ++i) {
      const Tokens prompt = prompt_of(documents, window, alphabet);
      expect_equal(spans, model, prompt, random_options(window, prompt.size()));
    }
    int deleted = 0;
    for (const auto& [tokens, positions] : model.chunks()) {
      const auto went = writing.forget(tokens);
      ASSERT_TRUE(went);
      deleted += *went;
    }
    EXPECT_EQ(size_t(deleted), model.blocks());
  }
  EXPECT_GT(spans_found_, prompts / 2);
  EXPECT_EQ(ready_pages(), 0u);
  expect_rest();
}

TEST_F(FindSpans, ALongPromptIsScannedInBatchesWithoutAGapBetween) {
  constexpr uint32_t kWindow = 16;
  const Spans writing = open_spans(client_, kWindow), spans = open_spans(reader_, kWindow);
  SpansModel model(kWindow, 1);
  Tokens prompt = text(20'000, 1'000'000);
  for (size_t at = 3; at + kWindow <= prompt.size(); at += kWindow + 1 + random_.below(5 * kWindow))
    store(writing, model, {prompt.begin() + std::ptrdiff_t(at), prompt.begin() + std::ptrdiff_t(at + kWindow)}, at + 7);
  expect_equal(spans, model, prompt, Spans::find_options());
  EXPECT_GT(spans_found_, 300u);
}

TEST_F(FindSpans, ThePrefixComesFirstThenSegmentsAndThenWhatMoved) {
  constexpr uint32_t kWindow = 16;
  const Spans writing = open_spans(client_, kWindow), spans = open_spans(reader_, kWindow);
  const Tokens moved = tokens_from(5000, kWindow),
               prompt = joined({tokens_from(0, 5 * kWindow), moved, tokens_from(900, 3)});
  ASSERT_TRUE(*writing.store_copy(moved, 160, bytes_of("moved")));
  // Of the prompt's blocks 0, 1 and 3 are there under keys that need not know of each other.
  const std::string names[5] = {"p0", "p1", "p2", "p3", "p4"};
  maru_key keys[5];
  for (size_t i = 0; i < 5; ++i) keys[i] = key_of(names[i]);
  for (const size_t i : {0u, 1u, 3u}) ASSERT_EQ(client_.store(names[i], names[i]), 0);

  maru_find_spans_options options = Spans::find_options();
  options.prefix_keys = keys;
  options.prefix_keys_count = 5;
  options.prefix_key_tokens = kWindow;
  {
    const auto found = spans.find(prompt, options);
    ASSERT_TRUE(found) << found.error();
    EXPECT_EQ(found->prefix_tokens(), 2 * kWindow);
    ASSERT_EQ(found->spans().size(), 1u);
    EXPECT_EQ(found->spans()[0].new_start, 5 * kWindow);
  }
  options.flags = MARU_FIND_SEGMENTS;
  const auto found = spans.find(prompt, options);
  ASSERT_TRUE(found) << found.error();
  ASSERT_EQ(found->spans().size(), 2u);
  const maru_span& segment = found->spans()[0];
  EXPECT_EQ(segment.kind, uint32_t(MARU_SPAN_SEGMENT));
  EXPECT_EQ(segment.old_start, 3 * kWindow);
  EXPECT_EQ(segment.new_start, 3 * kWindow);
  EXPECT_EQ(text_of(segment.views[0]), "p3");
  EXPECT_EQ(found->spans()[1].kind, uint32_t(MARU_SPAN_MOVED));
  EXPECT_EQ(found->spans()[1].old_start, 160u);
  maru_view views[2];
  ASSERT_EQ(maru_resolve(reader_, &found->c().prefix, keys, 2, views), 0);
  EXPECT_EQ(text_of(views[1]), "p1");
}

TEST_F(FindSpans, WithoutAPinSlotLeftNothingIsHeld) {
  const uint32_t pins = reader_.geometry().pins_max;
  const Spans writing = open_spans(client_, 1), spans = open_spans(reader_, 1);
  const Tokens prompt = tokens_from(0, 4 * pins);
  for (const uint32_t& token : prompt) ASSERT_TRUE(writing.store_copy({&token, 1}, 0, bytes_of("x")).ok());
  EXPECT_EQ(spans.find(prompt).error(), ENOBUFS);
  EXPECT_EQ(reader_.statistics().pins, 0u);
  maru_find_spans_options options = Spans::find_options();
  options.spans_max = 100;
  const auto found = spans.find(prompt, options);
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->spans().size(), 100u);
  EXPECT_EQ(reader_.statistics().pins, 100u);
}

}  // namespace
}  // namespace maru::test
