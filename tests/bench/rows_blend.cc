// Reuse beyond prefixes: chunks found in a prompt, second names, keys moved.
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/keys.h"
#include "tests/bench/suite.h"

#include <cstring>
#include <maru/blend.hpp>
#include <stdexcept>

namespace maru::bench {

namespace {

constexpr size_t kPromptTokens = 128 << 10;
constexpr uint32_t kWindow = 256;
constexpr uint64_t kCachedKeys = 200'000, kColdKeys = 10'000'000;
constexpr uint64_t kSparePages = 64 << 10;
constexpr size_t kParents = 64;
constexpr uint64_t kSmallBytes = 64;
constexpr uint64_t kTurnedBytes = 32 << 20;

Spans open_spans(maru_client* client) {
  Outcome<Spans> spans = Spans::open(client, "a model of the benchmark", kWindow);
  if (!spans) throw std::runtime_error("maru_open_spans: " + std::to_string(spans.error()));
  return *std::move(spans);
}

class Prompts {
 public:
  // Other tokens each time, so that no window was asked for before.
  const std::vector<uint32_t>& next() {
    for (uint32_t& token : tokens_) token = uint32_t(random_.below(128'000));
    return tokens_;
  }

 private:
  Random random_{7};
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(kPromptTokens);
};

// Nanoseconds a token, where nothing is found.
double find(const Spans& spans, Prompts& prompts, uint64_t count) {
  Laps laps;
  for (uint64_t i = 0; i < count; ++i) {
    const std::vector<uint32_t>& prompt = prompts.next();
    const uint64_t started_ns = now_ns();
    const auto found = spans.find(prompt);
    laps.add(now_ns() - started_ns, prompt.size());
    if (!found || !found->spans().empty()) throw std::runtime_error("wrong answer: find_spans");
  }
  return laps.median();
}

void find_row(Suite& suite, const char* row, uint64_t wanted) {
  if (!suite.wants(row)) return;
  const uint64_t keys = whole_chains(wanted);
  PoolShape shape;
  shape.pages = keys + 4096;
  suite.progress("storing " + std::to_string(keys) + " blocks");
  const MarudProcess marud(suite.options().marud, shape);
  const Client client(marud.socket_path(), 64);
  store_chains(client, keys);
  const Facts facts = facts_of(client.geometry(), keys);
  LoadFloor floor(client.geometry().pages, facts.huge_pages);
  const Spans spans = open_spans(client);
  Prompts prompts;
  const uint64_t count = suite.operations(8);
  suite.measure(row,
                {{"value", [&] { return find(spans, prompts, count); }},
                 {"floor", [&] { return floor.gathered(count * kPromptTokens / 256); }}},
                facts);
}

// Names of chunks under blocks that are there, and blocks without metadata under the same.
class Names {
 public:
  Names(maru_client* client, const Spans& spans) : client_(client), spans_(spans), tokens_(kWindow, 1) {
    for (size_t i = 0; i < kParents; ++i) {
      const Key key = key_of(kSpaceRow + (1ull << 36) + i);
      const maru_key name = as_maru_key(key);
      must(maru_store_copy(client_, &name, payload_, kSmallBytes, nullptr, &parents_[i]), "store a parent");
    }
  }

  double name(uint64_t count) {
    Laps laps;
    const uint64_t first = next_;
    for (; next_ < first + count; next_ += kLap) {
      const uint64_t started_ns = now_ns();
      for (uint64_t i = next_; i < next_ + kLap; ++i) must_name(i);
      laps.add(now_ns() - started_ns, kLap);
    }
    for (uint64_t i = first; i < next_; ++i)
      if (const auto went = spans_.forget(tokens_of(i)); !went || *went != 1)
        throw std::runtime_error("a name is gone");
    return laps.trimmed_mean();
  }
  double store(uint64_t count) {
    Laps laps;
    const uint64_t first = next_;
    for (; next_ < first + count; next_ += kLap) {
      const uint64_t started_ns = now_ns();
      for (uint64_t i = next_; i < next_ + kLap; ++i) must_store(i);
      laps.add(now_ns() - started_ns, kLap);
    }
    for (uint64_t i = first; i < next_; ++i) {
      const Key key = key_of(kSpaceRow + i);
      const maru_key name = as_maru_key(key);
      must(maru_delete(client_, &name), "delete");
    }
    return laps.trimmed_mean();
  }

 private:
  static constexpr uint64_t kLap = 64;

  std::span<const uint32_t> tokens_of(uint64_t i) {
    tokens_[0] = uint32_t(i);
    return tokens_;
  }
  void must_name(uint64_t i) {
    const auto named = spans_.name(tokens_of(i), 0, parents_[i % kParents], 1);
    if (!named.ok() || !*named) throw std::runtime_error("maru_name_span: " + std::to_string(named.error()));
  }
  void must_store(uint64_t i) {
    maru_buffer buffer;
    must(maru_alloc(client_, kSmallBytes, &buffer), "alloc");
    std::memcpy(buffer.data, payload_, kSmallBytes);
    const Key key = key_of(kSpaceRow + i);
    const maru_key name = as_maru_key(key);
    maru_store_options options{};
    options.size = sizeof options;
    options.parent = parents_[i % kParents];
    must(maru_store(client_, &name, &buffer, &options, nullptr), "store");
  }

  maru_client* client_;
  const Spans& spans_;
  std::vector<uint32_t> tokens_;
  maru_block parents_[kParents];
  std::byte payload_[kSmallBytes] = {};
  uint64_t next_ = 0;
};

void name_row(Suite& suite) {
  if (!suite.wants("name_span")) return;
  PoolShape shape;
  shape.pages = 2 * kSparePages;
  const MarudProcess marud(suite.options().marud, shape);
  const Client client(marud.socket_path(), 64);
  {
    // No store meets a page fault.
    std::vector<maru_buffer> buffers(kSparePages);
    must(maru_alloc_batch(client, 4096, buffers.size(), buffers.data()), "alloc");
    for (const maru_buffer& buffer : buffers) std::memset(buffer.data, 0, 4096);
    must(maru_abort_batch(client, buffers.data(), buffers.size()), "abort");
  }
  const Spans spans = open_spans(client);
  Names names(client, spans);
  const uint64_t count = suite.operations(8192) / 64 * 64;
  suite.measure("name_span",
                {{"value", [&] { return names.name(count); }}, {"floor", [&] { return names.store(count); }}},
                facts_of(client.geometry(), 0));
}

void rerotate_row(Suite& suite) {
  if (!suite.wants("rerotate_fp16")) return;
  const FloorMemory from(kTurnedBytes, true), to(kTurnedBytes, true);
  std::memset(from.data(), 3, kTurnedBytes);
  const uint64_t copies = suite.operations(24);
  maru_rope model = rope();
  model.head_dim = 128;
  model.base = 500'000;
  maru_rerotation keys = rerotation();
  keys.from = from.data();
  keys.to = to.data();
  keys.dtype = MARU_ROPE_FLOAT16;
  keys.layers = 32;
  keys.heads = 8;
  keys.from_head_stride = keys.to_head_stride = 2 * model.head_dim;
  keys.from_token_stride = keys.to_token_stride = keys.heads * keys.from_head_stride;
  keys.tokens = kTurnedBytes / keys.layers / keys.from_token_stride;
  keys.from_layer_stride = keys.to_layer_stride = keys.tokens * keys.from_token_stride;
  keys.new_position = 4096;
  const auto turn = [&, copies](uint32_t pairing) {
    model.pairing = pairing;
    Laps laps;
    for (uint64_t i = 0; i < copies; ++i) {
      const uint64_t started_ns = now_ns();
      if (!rerotate(model, keys)) throw std::runtime_error("maru_rerotate");
      laps.add(now_ns() - started_ns, 1);
    }
    return laps.median();
  };
  std::vector<Contestant> contestants = {{"value", [&] { return turn(MARU_ROPE_NEOX); }}};
  for (const CopyWay& way : copy_ways())
    contestants.push_back({"floor", [&from, &to, copies, way] {
                             Laps laps;
                             for (uint64_t i = 0; i < copies; ++i) {
                               const uint64_t started_ns = now_ns();
                               way.copy(to.data(), from.data(), kTurnedBytes);
                               laps.add(now_ns() - started_ns, 1);
                             }
                             return laps.median();
                           }});
  Facts facts;
  facts.huge_pages = huge_pages_mapped("bench-floor");
  facts.extra = {{"interleaved", [&] { return turn(MARU_ROPE_GPTJ); }}};
  suite.measure("rerotate_fp16", contestants, facts);
}

}  // namespace

void blend_rows(Suite& suite) {
  rerotate_row(suite);
  name_row(suite);
  find_row(suite, "find_spans_cached", kCachedKeys);
}

void blend_cold_row(Suite& suite) {
  const uint64_t asked = suite.options().cold_keys;
  find_row(suite, "find_spans_cold", asked != 0 ? asked : suite.quick() ? kCachedKeys : kColdKeys);
}

}  // namespace maru::bench
