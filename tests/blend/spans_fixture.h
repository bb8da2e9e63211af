// A marud, two clients, and chunks in few words.
#pragma once

#include "maru/blend.hpp"
#include "tests/process/baseline.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/random.h"
#include "tests/support/test_client.h"

#include <cstring>
#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <vector>

namespace maru::test {

using Tokens = std::vector<uint32_t>;

inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }
inline std::string_view text_of(const maru_view& view) { return {static_cast<const char*>(view.data), view.bytes}; }

inline Spans open_spans(maru_client* client, uint32_t window, uint64_t tenant = 0, uint32_t occupants = 0,
                        std::string_view space = "model, layout") {
  Outcome<Spans> spans = Spans::open(client, space, window, tenant, occupants);
  if (!spans) throw std::runtime_error("maru_open_spans: " + std::to_string(spans.error()));
  return *std::move(spans);
}

inline Tokens tokens_from(uint32_t first, size_t n) {
  Tokens tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = first + uint32_t(i);
  return tokens;
}

// One text behind the other.
inline Tokens joined(const std::vector<Tokens>& parts) {
  Tokens all;
  for (const Tokens& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// The blocks of a chain, 16 tokens each, under keys "CHAIN/0" and so on; each has its number as its payload.
inline std::vector<maru_block> store_chain(TestClient& client, const std::string& chain, size_t blocks,
                                           uint64_t tenant = 0) {
  std::vector<maru_block> stored;
  for (size_t i = 0; i < blocks; ++i) {
    const std::string name = chain + "/" + std::to_string(i), text = "block " + std::to_string(i);
    const maru_key key = key_of(name, tenant);
    maru_store_options options = {};
    options.size = sizeof(options);
    options.parent = i != 0 ? stored.back() : 0;
    maru_block block = 0;
    const int status = maru_store_copy(client, &key, text.data(), text.size(), &options, &block);
    EXPECT_GE(status, 0) << name;
    stored.push_back(block);
  }
  return stored;
}

class SpansTest : public ::testing::Test {
 protected:
  explicit SpansTest(const PoolWish& pool = {})
      : marud_({pool}), client_(marud_.socket_path()), reader_(marud_.socket_path()), map_(marud_.socket_path()) {}

  size_t found(const Spans& spans, const Tokens& prompt) {
    const auto result = spans.find(prompt);
    EXPECT_TRUE(result) << result.error();
    return result ? result->spans().size() : 0;
  }
  uint64_t ready_pages() const { return map_.count_pages()[format::PageState::kReady]; }
  // Nothing that was found is held any more, and marud's audit is content.
  void expect_rest() {
    EXPECT_EQ(client_.statistics().pins, 0u);
    EXPECT_EQ(reader_.statistics().pins, 0u);
    EXPECT_EQ(map_.count_pins(), 0u);
  }

  MarudProcess marud_;
  TestClient client_, reader_;
  ControlMap map_;
};

}  // namespace maru::test
