// maru-tierd when things go wrong: a tier that lies, fails and hangs, and deaths at any moment. Whatever happens, what a
// client reads is what was stored, the pool's words are in order, and nothing stays pinned.
//
// MARU_TIER_KILLS says how often something is killed at least, MARU_TIER_SECONDS for how long things are killed.
#include "libmaru/prefetch/message.h"
#include "tests/support/block_content.h"
#include "tests/support/test_client.h"
#include "tests/tiers/tierd_process.h"

#include <functional>
#include <gtest/gtest.h>

namespace maru::test {
namespace {

constexpr uint64_t kKeys = 800;  // of 16 to 64 KiB: more than the pool holds

const std::string kFile =
    "inner = \"file\"\ninner_path = \"DIR\"\ninner_capacity = \"64MiB\"\ninner_region_bytes = \"1MiB\"\n";

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
      if (random_.one_in(10))
        prefetch.release();  // goes away in the middle
      else if (prefetch.wait() == 0)
        loaded += prefetch.status().loaded;
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

  // Until what the test is about has happened. must_load: also until a load was in time, which a tier with short deadlines on
  // a busy machine may never be.
  void run(const std::string& tiers, const std::function<bool()>& has_happened, bool must_load = true) {
    tierd_ = std::make_unique<TierdProcess>(marud_, tiers, "[store]\nforget_deleted = false\n");
    tierd_->start();
    Engine engine(marud_, seed_);
    const auto is_over = [&] { return (engine.loaded > 0 || !must_load) && has_happened(); };
    for (int i = 0; !HasFailure() && (i < 300 || (i < 20'000 && (i % 100 != 0 || !is_over()))); ++i)
      engine.step(*tierd_);
    EXPECT_GT(engine.reads, 0u);
    if (must_load) {
      EXPECT_GT(engine.loaded, 0u);
    }
    EXPECT_TRUE(has_happened()) << tierd_->list().dump();
    EXPECT_TRUE(tierd_->is_running()) << tierd_->log();
  }
  uint64_t operations(const std::string& kind, const std::string& result) {
    return tierd_->metric("maru_tier_operations_total{tier=\"bad\",kind=\"" + kind + "\",result=\"" + result + "\"}");
  }
  // After everybody has gone: no pins, and every invariant holds.
  void expect_order() {
    EXPECT_TRUE(wait_until([&] { return marud_.ask({{"command", "pins"}}).at("pins").empty(); }));
    const auto reply = marud_.ask({{"command", "check"}, {"quiesce", true}});
    ASSERT_TRUE(reply.contains("violations")) << reply.dump();
    EXPECT_TRUE(reply["violations"].empty()) << reply.dump();
  }

  const uint64_t seed_ = fresh_seed();
  MarudProcess marud_;
  std::unique_ptr<TierdProcess> tierd_;
};

TEST_F(TierdFaults, FlippedBitsAreMisses) {
  run(faulty("flip = 5\nseed = " + std::to_string(seed_ % 1000)),
      [&] { return tierd_->metric("maru_tier_unproven_total") > 0; });
  tierd_->stop();
  expect_order();
}

TEST_F(TierdFaults, ShortReadsAreMisses) {
  run(faulty("short = 5\nseed = " + std::to_string(seed_ % 1000)),
      [&] { return tierd_->metric("maru_tier_unproven_total") > 0; });
  tierd_->stop();
  expect_order();
}

TEST_F(TierdFaults, ErrorsAndGoneEntriesAreMisses) {
  run(faulty("eio = 20\nenospc = 7\ngone = 5\nseed = " + std::to_string(seed_ % 1000)),
      [&] { return operations("store", "failed") > 0 && operations("load", "absent") > 0; });
  tierd_->stop();
  expect_order();
}

TEST_F(TierdFaults, LateAnswersReviveNothing) {
  run(
      faulty("slow = 4\nslow_ms = 120\nseed = " + std::to_string(seed_ % 1000),
             "load_timeout_ms = 40\nstore_timeout_ms = 60\n"),
      [&] { return operations("load", "timed_out") + operations("lookup", "timed_out") > 0; }, false);
  tierd_->stop();
  expect_order();
}

TEST_F(TierdFaults, HangingOperationsHoldUpNobody) {
  run(
      faulty("hang = 40\nseed = " + std::to_string(seed_ % 1000), "load_timeout_ms = 50\nstore_timeout_ms = 100\n"),
      [&] { return tierd_->tier()["in_flight"] > 0; }, false);
  tierd_->kill();
  expect_order();
}

TEST_F(TierdFaults, DeathsAtAnyMomentHarmNobody) {
  const uint64_t kills = number_from_environment("MARU_TIER_KILLS", 12);
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::seconds(number_from_environment("MARU_TIER_SECONDS", 0));
  tierd_ = std::make_unique<TierdProcess>(marud_,
                                          "[[tier]]\nname = \"disk\"\nkind = \"file\"\n[tier.options]\npath = "
                                          "\"DIR\"\ncapacity = \"64MiB\"\nregion_bytes = \"1MiB\"\n",
                                          "[store]\nforget_deleted = false\n");
  Random random(seed_);
  uint64_t reads = 0, loaded = 0, killed = 0;
  {
    Engine engine(marud_, random.next());
    while ((killed < kills || std::chrono::steady_clock::now() < until) && !HasFailure()) {
      tierd_->start();
      for (uint64_t steps = random.below(60); steps > 0; --steps) engine.step(*tierd_);
      if (random.one_in(4)) {
        marud_.kill();
        marud_.start();
      }
      tierd_->kill();
      ++killed;
    }
    tierd_->start();
    for (int i = 0; i < 50; ++i) engine.step(*tierd_);
    EXPECT_TRUE(tierd_->is_running()) << tierd_->log();
    reads = engine.reads;
    loaded = engine.loaded;
    tierd_->stop();
  }
  std::printf("tiers: killed %llu times, %llu blocks read, %llu loaded\n", static_cast<unsigned long long>(killed),
              static_cast<unsigned long long>(reads), static_cast<unsigned long long>(loaded));
  EXPECT_GT(reads, 0u);
  EXPECT_GT(loaded, 0u);
  expect_order();
}

}  // namespace
}  // namespace maru::test
