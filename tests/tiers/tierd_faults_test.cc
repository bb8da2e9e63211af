// maru-tierd when things go wrong: a tier that lies, fails and hangs, and deaths at any moment. Whatever happens, what a client reads
// is what was stored, the pool's words are in order, and nothing stays pinned.
//
// MARU_TIER_KILLS says how often something is killed.
#include "libmaru/prefetch/message.h"
#include "tests/support/block_content.h"
#include "tests/support/test_client.h"
#include "tests/tiers/tierd_process.h"

#include <gtest/gtest.h>

namespace maru::test {
namespace {

constexpr uint64_t kKeys = 800;  // of 16 to 64 KiB: more than the pool holds

const std::string kFile = "inner = \"file\"\ninner_path = \"DIR\"\ninner_capacity = \"64MiB\"\ninner_region_bytes = \"1MiB\"\n";

std::string faulty(const std::string& faults, const std::string& timeouts = {}) {
  return "[[tier]]\nname = \"bad\"\nkind = \"fault\"\n" + timeouts + "[tier.options]\n" + kFile + faults;
}

// Asks for chains that it has stored before, prefetches, reads, and stores what is not there.
class Engine {
 public:
  Engine(const MarudProcess& marud, uint64_t seed) : client_(marud.socket_path()), random_(seed) {}

  void step(const TierdProcess& tierd) {
    const uint64_t chain = random_.below(kKeys / 10), blocks = 1 + random_.below(10);
    std::vector<std::string> keys;
    for (uint64_t i = 0; i < blocks; ++i) keys.push_back("chain " + std::to_string(chain) + " " + std::to_string(i));
    if (random_.one_in(2)) {
      Prefetch prefetch(tierd, keys, uint32_t(5 + random_.below(200)));
      if (random_.one_in(10)) prefetch.release();  // goes away in the middle
      else if (prefetch.wait() == 0) loaded += prefetch.status().loaded;
      read(keys);
    } else {
      read(keys);
    }
    store(keys);
  }

  uint64_t reads = 0, loaded = 0;
  TestClient& client() { return client_; }

 private:
  static uint64_t bytes_of(const std::string& key) { return 16'000 + std::hash<std::string>{}(key) % 48'000; }

  void read(const std::vector<std::string>& keys) {
    for (const std::string& key : keys) {
      maru_view view = {};
      const int result = client_.retrieve(key, &view);
      if (result == -ENOENT) continue;
      ASSERT_EQ(result, 0);
      ++reads;
      EXPECT_EQ(view.bytes, bytes_of(key));
      EXPECT_EQ(BlockContent::problem(view.data, view.bytes, key), nullptr) << key;
      client_.release(view);
    }
  }
  void store(const std::vector<std::string>& keys) {
    for (size_t i = 0; i < keys.size(); ++i) {
      std::string payload(bytes_of(keys[i]), 0);
      BlockContent::write(payload.data(), payload.size(), keys[i], i);
      const int result = client_.store(keys[i], payload, i ? keys[i - 1] : "");
      if (result == -ENOLINK) return;  // its parent was evicted meanwhile
      ASSERT_GE(result, 0) << keys[i];
    }
  }

  TestClient client_;
  Random random_;
};

class TierdFaults : public testing::Test {
 protected:
  TierdFaults() { std::printf("MARU_SEED=%llu\n", static_cast<unsigned long long>(seed_)); }

  void run(const std::string& tiers, int steps = 400) {
    tierd_ = std::make_unique<TierdProcess>(marud_, tiers, "[store]\nforget_deleted = false\n");
    tierd_->start();
    Engine engine(marud_, seed_);
    for (int i = 0; i < steps && !HasFailure(); ++i) engine.step(*tierd_);
    EXPECT_GT(engine.reads, 0u);
    loaded_ = engine.loaded;
    EXPECT_TRUE(tierd_->is_running()) << tierd_->log();
  }
  // After everybody has gone: no pins, and every invariant holds.
  void expect_order() {
    EXPECT_TRUE(wait_until([&] { return marud_.ask({{"command", "pins"}}).at("pins").empty(); }));
    const auto reply = marud_.ask({{"command", "check"}});
    EXPECT_EQ(reply.value("violations", nlohmann::json::array()).size(), 0u) << reply.dump();
    EXPECT_FALSE(reply.contains("refused")) << reply.dump();
  }

  const uint64_t seed_ = fresh_seed();
  MarudProcess marud_;
  std::unique_ptr<TierdProcess> tierd_;
  uint64_t loaded_ = 0;
};

TEST_F(TierdFaults, FlippedBitsAreMisses) {
  run(faulty("flip = 3\nseed = " + std::to_string(seed_ % 1000)));
  EXPECT_GT(tierd_->metric("maru_tier_unproven_total"), 0u);
  EXPECT_GT(loaded_, 0u);
  tierd_->stop();
  expect_order();
}

TEST_F(TierdFaults, ShortReadsAreMisses) {
  run(faulty("short = 3\nseed = " + std::to_string(seed_ % 1000)));
  EXPECT_GT(tierd_->metric("maru_tier_unproven_total"), 0u);
  tierd_->stop();
  expect_order();
}

TEST_F(TierdFaults, ErrorsAndGoneEntriesAreMisses) {
  run(faulty("eio = 20\nenospc = 7\ngone = 5\nseed = " + std::to_string(seed_ % 1000)));
  EXPECT_GT(tierd_->metric("maru_tier_operations_total{tier=\"bad\",kind=\"store\",result=\"failed\"}"), 0u);
  EXPECT_GT(tierd_->metric("maru_tier_operations_total{tier=\"bad\",kind=\"load\",result=\"absent\"}"), 0u);
  tierd_->stop();
  expect_order();
}

TEST_F(TierdFaults, LateAnswersReviveNothing) {
  run(faulty("slow = 4\nslow_ms = 120\nseed = " + std::to_string(seed_ % 1000), "load_timeout_ms = 40\nstore_timeout_ms = 60\n"));
  EXPECT_GT(tierd_->metric("maru_tier_operations_total{tier=\"bad\",kind=\"load\",result=\"timed_out\"}") +
                tierd_->metric("maru_tier_operations_total{tier=\"bad\",kind=\"lookup\",result=\"timed_out\"}"),
            0u);
  tierd_->stop();
  expect_order();
}

TEST_F(TierdFaults, HangingOperationsHoldUpNobody) {
  run(faulty("hang = 40\nseed = " + std::to_string(seed_ % 1000), "load_timeout_ms = 50\nstore_timeout_ms = 100\n"));
  tierd_->kill();
  expect_order();
}

TEST_F(TierdFaults, DeathsAtAnyMomentHarmNobody) {
  const uint64_t kills = number_from_environment("MARU_TIER_KILLS", 12);
  tierd_ = std::make_unique<TierdProcess>(
      marud_, "[[tier]]\nname = \"disk\"\nkind = \"file\"\n[tier.options]\npath = \"DIR\"\ncapacity = \"64MiB\"\nregion_bytes = \"1MiB\"\n",
      "[store]\nforget_deleted = false\n");
  Random random(seed_);
  uint64_t reads = 0, loaded = 0;
  {
    Engine engine(marud_, random.next());
    for (uint64_t i = 0; i < kills && !HasFailure(); ++i) {
      tierd_->start();
      for (uint64_t steps = random.below(60); steps > 0; --steps) engine.step(*tierd_);
      if (random.one_in(4)) {
        marud_.kill();
        marud_.start();
      }
      tierd_->kill();
    }
    tierd_->start();
    for (int i = 0; i < 50; ++i) engine.step(*tierd_);
    EXPECT_TRUE(tierd_->is_running()) << tierd_->log();
    reads = engine.reads;
    loaded = engine.loaded;
    tierd_->stop();
  }
  EXPECT_GT(reads, 0u);
  EXPECT_GT(loaded, 0u);
  expect_order();
}

}  // namespace
}  // namespace maru::test
