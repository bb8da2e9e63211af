// The life of blocks through maru/blocks.hpp, in the shapes that kvbm-logical's benchmark has: a chain of blocks is matched
// while its blocks are held (active), and while nothing holds them (inactive), and 128 handles are dropped. The floor is the
// same through maru.h, from the same hashes.
#include "maru/blocks.hpp"
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/marud_process.h"
#include "tests/bench/suite.h"

#include <array>
#include <optional>
#include <stdexcept>

namespace maru::bench {

namespace {

constexpr size_t kLongest = 128;
constexpr uint32_t kPageSize = 4;  // tokens, as kvbm-logical's own benchmark has it
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kCallsALap = 64;

[[noreturn]] void wrong(const char* what) { throw std::runtime_error(std::string("wrong answer: ") + what); }

template <typename T>
T must_have(BlockOutcome<T> outcome) {
  if (!outcome.ok()) throw std::runtime_error(outcome.error().message().c_str());
  return std::move(*outcome);
}

class BlockRows {
 public:
  explicit BlockRows(Suite& suite) : suite_(suite) {
    PoolShape shape;
    shape.pages = 4096;
    marud_.emplace(suite.options().marud, shape);
    maru_attach_options attach = attach_options();
    attach.socket_path = marud_->socket_path().c_str();
    Outcome<maru::Client> client = maru::Client::attach(attach);
    if (!client) throw std::runtime_error("attach");
    BlockPoolOptions options;
    options.page_size = kPageSize;
    options.block_bytes = kBlockBytes;
    pool_ = must_have(BlockPool::create(*client, options));
    facts_ = facts_of(*pool_.client().geometry(), kLongest);
    laps_ = suite.operations(4000);
    register_chain();
  }

  void measure() {
    for (const size_t n : {size_t(8), size_t(32), size_t(128)}) {
      const std::string name = std::to_string(n);
      {
        const ImmutableBlocks held = must_have(pool_.scan_matches(std::span(hashes_).first(n)));
        row("blocks_match_active_" + name, [this, n] { return matches(n); }, [this, n] { return plain_matches(n); });
      }
      row("blocks_match_inactive_" + name, [this, n] { return matches(n); }, [this, n] { return plain_matches(n); });
    }
    row("blocks_bulk_drop_128", [this] { return drops(); }, [this] { return plain_drops(); });
  }

 private:
  void row(const std::string& name, std::function<double()> value, std::function<double()> floor) {
    if (suite_.wants(name)) suite_.measure(name, {{"value", std::move(value)}, {"floor", std::move(floor)}}, facts_);
  }

  void register_chain() {
    std::vector<uint32_t> tokens(kLongest * kPageSize);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = uint32_t(i);
    if (must_have(hash_tokens(1337, kPageSize, tokens, hashes_)) != kLongest) wrong("hash_tokens");
    AllocatedBlocks allocated = must_have(pool_.allocate(kLongest));
    BlockList<CompleteBlock> complete;
    for (size_t i = 0; i < kLongest; ++i) {
      const TokenBlock block =
          must_have(make_token_block(1337, kPageSize, std::span(tokens).subspan(i * kPageSize, kPageSize),
                                     i == 0 ? std::nullopt : std::optional(hashes_[i - 1])));
      complete.push(must_have(std::move(allocated.blocks[i]).apply_token_block(block)));
    }
    if (!pool_.register_blocks(std::move(complete)).ok()) wrong("register_blocks");
  }

  // Match, look where each block is, and let go.
  double matches(size_t n) {
    const std::span<const BlockHash> hashes = std::span(hashes_).first(n);
    return timed([&] {
      const BlockOutcome<ImmutableBlocks> matched = pool_.match_blocks(hashes);
      if (!matched.ok() || matched->size() != n) wrong("match_blocks");
      keep(matched->bytes(n - 1).data());
    });
  }
  double plain_matches(size_t n) {
    std::array<maru_key, kLongest> keys;
    std::array<maru_view, kLongest> views;
    maru_client* const client = pool_.client().c();
    return timed([&] {
      for (size_t i = 0; i < n; ++i) keys[i] = {&hashes_[i], sizeof(BlockHash), MARU_KEY_DIGEST128, 0};
      maru_match match;
      must(maru_match_prefix(client, keys.data(), n, &match), "match_prefix");
      if (match.blocks != n) wrong("match_prefix");
      must(maru_resolve(client, &match, keys.data(), n, views.data()), "resolve");
      keep(views[n - 1].data);
      must(maru_release_match(client, &match), "release_match");
    });
  }

  // 128 handles, each of its own, dropped as one list.
  double drops() {
    Laps laps;
    for (uint64_t lap = 0; lap < laps_; ++lap) {
      const ImmutableBlocks matched = must_have(pool_.match_blocks(hashes_));
      std::optional<BlockList<ImmutableBlock>> handles(std::in_place);
      for (size_t i = 0; i < kLongest; ++i) handles->push(must_have(matched.hold(i)));
      const uint64_t started_ns = now_ns();
      handles.reset();
      laps.add(now_ns() - started_ns, 1);
    }
    return laps.median();
  }
  double plain_drops() {
    Laps laps;
    maru_client* const client = pool_.client().c();
    std::array<maru_view, kLongest> views;
    for (uint64_t lap = 0; lap < laps_; ++lap) {
      const ImmutableBlocks matched = must_have(pool_.match_blocks(hashes_));
      for (size_t i = 0; i < kLongest; ++i) must(maru_pin_block(client, matched.block(i), &views[i]), "pin_block");
      const uint64_t started_ns = now_ns();
      must(maru_release_batch(client, views.data(), kLongest), "release_batch");
      laps.add(now_ns() - started_ns, 1);
    }
    return laps.median();
  }

  template <typename Work>
  double timed(Work&& work) {
    Laps laps;
    for (uint64_t lap = 0; lap < laps_ / kCallsALap + 1; ++lap) {
      const uint64_t started_ns = now_ns();
      for (uint64_t i = 0; i < kCallsALap; ++i) work();
      laps.add(now_ns() - started_ns, kCallsALap);
    }
    return laps.median();
  }

  Suite& suite_;
  std::optional<MarudProcess> marud_;
  BlockPool pool_;
  std::array<BlockHash, kLongest> hashes_;
  uint64_t laps_ = 0;
  Facts facts_;
};

}  // namespace

void block_rows(Suite& suite) { BlockRows(suite).measure(); }

}  // namespace maru::bench
