// A client is killed before and after each of its steps. A chunk is left with its name or without, and nothing is held.
#include "tests/blend/deaths.h"

#include "tests/blend/spans_fixture.h"
#include "tests/blend/steps.h"
#include "tests/support/child_process.h"

#include <csignal>
#include <cstdio>
#include <functional>

namespace maru::test {
namespace {

constexpr uint32_t kChunkTokens = 32;
constexpr uint64_t kStepsMax = 1000;

Tokens chunk() { return tokens_from(100, kChunkTokens); }
Tokens stored_with_bytes() { return tokens_from(5000, kChunkTokens); }
Tokens prompt() { return joined({tokens_from(1, 3), chunk(), stored_with_bytes(), chunk()}); }

// The work of the process that dies, in steps.
void store_all(TestClient& client, const Spans& spans) {
  const std::vector<maru_block> chain = store_chain(client, "chain", 2);
  (void)spans.name(chunk(), 16, chain.back(), 2);
  (void)spans.store_copy(stored_with_bytes(), 0, bytes_of("bytes"));
  maru_buffer buffer = {};
  const Tokens tokens = stored_with_bytes();
  maru_span_chunk again = {};
  again.size = sizeof(again);
  again.tokens = tokens.data();
  if (maru_alloc_spans(spans.c(), 10, 1, &buffer) == 0 && maru_store_span(spans.c(), &again, &buffer, nullptr) < 0)
    maru_abort(client, &buffer);
}
void find_all(TestClient&, const Spans& spans) {
  const maru_key key = key_of("chain/0");
  maru_find_spans_options options = Spans::find_options();
  options.prefix_keys = &key;
  options.prefix_keys_count = 1;
  options.prefix_key_tokens = 1;
  (void)spans.find(prompt(), options);
}
void forget_all(TestClient&, const Spans& spans) {
  (void)spans.forget(chunk());
  (void)spans.forget(stored_with_bytes());
}

class Deaths : public SpansTest {
 protected:
  // Starts the action again and again, to be killed at one step more each time, until it comes to its end.
  void at_every_step(const std::string& action, const std::function<void()>& before,
                     const std::function<void()>& after) {
    for (uint64_t step = 1; step < kStepsMax && !HasFailure(); ++step) {
      before();
      ChildProcess child({own_program(), "--role", action, marud_.socket_path(), std::to_string(step)});
      const auto ended = child.wait();
      ASSERT_TRUE(ended);
      SCOPED_TRACE(action + " killed at step " + std::to_string(step));
      EXPECT_TRUE(
          wait_until([&] { return map_.count_pins() == 0 && map_.count_pages()[format::PageState::kReserved] == 0; }));
      after();
      if (!ended->by_signal) {
        EXPECT_EQ(ended->code, 0);
        EXPECT_GT(step, 4u) << "the action has no steps";
        std::printf("%s: killed at each of %llu steps\n", action.c_str(), static_cast<unsigned long long>(step - 1));
        return;
      }
      EXPECT_EQ(ended->code, SIGKILL);
    }
  }
  // Each span that is found has the right bytes; how many.
  size_t expect_right_spans() {
    TestClient reader(marud_.socket_path());
    const Spans spans = open_spans(reader, kChunkTokens);
    const auto found = spans.find(prompt());
    EXPECT_TRUE(found);
    for (const maru_span& span : found->spans()) {
      if (span.new_start == 3 + kChunkTokens) {
        EXPECT_EQ(text_of(span.views[0]), "bytes");
        continue;
      }
      EXPECT_EQ(span.views_count, 2u);
      EXPECT_EQ(text_of(span.views[0]), "block 0");
      EXPECT_EQ(text_of(span.views[1]), "block 1");
    }
    EXPECT_EQ(found->rejected(), 0u);
    return found->spans().size();
  }
  void clear() {
    TestClient client(marud_.socket_path());
    const Spans spans = open_spans(client, kChunkTokens);
    (void)client.remove_tree("chain/0");
    ASSERT_TRUE(spans.forget(stored_with_bytes()).ok());
    EXPECT_EQ(map_.count_pages()[format::PageState::kReady], 0u) << "something is left that no key leads to";
  }
  void leave_alone() {
    client_.detach();
    reader_.detach();
  }
};

TEST_F(Deaths, WhoeverStoresLeavesAChunkWithItsNameOrWithout) {
  leave_alone();
  size_t least = 3, most = 0;
  at_every_step(
      "store", [] {},
      [&] {
        const size_t spans = expect_right_spans();
        least = std::min(least, spans);
        most = std::max(most, spans);
        clear();
      });
  EXPECT_EQ(least, 0u);
  EXPECT_EQ(most, 3u) << "twice the chain, and the chunk between";
  expect_baseline(marud_, map_);
}

TEST_F(Deaths, WhoeverFindsLeavesNoPin) {
  const auto store = [&] {
    TestClient client(marud_.socket_path());
    const Spans spans = open_spans(client, kChunkTokens);
    store_all(client, spans);
  };
  leave_alone();
  at_every_step("find", store, [&] { EXPECT_EQ(expect_right_spans(), 3u); });
  expect_baseline(marud_, map_);
}

TEST_F(Deaths, WhoeverForgetsLeavesTheChain) {
  const auto store = [&] {
    TestClient client(marud_.socket_path());
    const Spans spans = open_spans(client, kChunkTokens);
    store_all(client, spans);
  };
  leave_alone();
  at_every_step("forget", store, [&] {
    expect_right_spans();
    TestClient reader(marud_.socket_path());
    EXPECT_EQ(reader.text("chain/1"), "block 1");
  });
  clear();
  expect_baseline(marud_, map_);
}

}  // namespace

int run_dying(const std::string& action, const std::string& socket_path, uint64_t step) {
  TestClient client(socket_path);
  const Spans spans = open_spans(client, kChunkTokens);
  die_at_step(step);
  if (action == "store") store_all(client, spans);
  if (action == "find") find_all(client, spans);
  if (action == "forget") forget_all(client, spans);
  die_at_step(0);
  return 0;
}

}  // namespace maru::test
