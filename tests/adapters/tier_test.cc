// Adapters that marud has evicted come back from a tier of a real maru-tierd, by their keys and not from their files.
#include "tests/adapters/set_fixture.h"
#include "tests/tiers/tierd_process.h"

#include <csignal>
#include <filesystem>

namespace maru::test {
namespace {

using adapters::AdapterSet;

class AdapterTiers : public ::testing::Test {
 protected:
  AdapterTiers()
      : tierd_(home_.marud(),
               "[[tier]]\nname = \"disk\"\nkind = \"file\"\n[tier.options]\npath = \"DIR\"\ncapacity = "
               "\"64MiB\"\nregion_bytes = \"1MiB\"\n") {
    tierd_.start();
    wish_.tier_socket = tierd_.socket_path();
    wish_.timeout_ms = 240'000;  // a tier has a quarter of it
    wish_.part_bytes = 4096;     // so that a form has several blocks
  }

  maru_adapters_statistics statistics(AdapterSet& set) {
    maru_adapters_statistics statistics = {};
    EXPECT_EQ(set.statistics(&statistics), 0);
    return statistics;
  }
  size_t weights_in_pool() {
    return home_.marud().ask({{"command", "blocks"}, {"type", "lora_weight"}})["blocks"].size();
  }
  // Stores an adapter in its exact form, and waits until the tier has it. Returns how many blocks it has.
  uint64_t add_and_store(AdapterSet& set, const std::string& name) {
    home_.add(set, name);
    const Use use(set, name, MARU_ADAPTER_EXACT);
    EXPECT_EQ(use.status(), 0) << use.reason();
    maru_adapter_info info = {};
    EXPECT_EQ(set.find(name, &info), 0);
    EXPECT_GT(info.hot_parts, 1u);
    EXPECT_TRUE(tierd_.has_entries(info.hot_parts)) << tierd_.list().dump();
    return info.hot_parts;
  }
  // Stores blocks that no process asks for again, until fewer than so many of weights are left. An administrator's `evict`
  // would not do: a tier forgets what an administrator removes.
  void evict_below(uint64_t blocks) {
    ASSERT_TRUE(wait_until([&] {
      EXPECT_EQ(client_.store("filler " + std::to_string(filler_++), "a page"), 0);
      return weights_in_pool() < blocks;
    }));
  }
  void evict_all() { evict_below(1); }
  // The adapter's files, out of the way.
  class Hidden {
   public:
    explicit Hidden(const std::string& folder) : folder_(folder) {
      std::filesystem::rename(folder_, folder_ + ".hidden");
    }
    ~Hidden() { std::filesystem::rename(folder_ + ".hidden", folder_); }

   private:
    const std::string folder_;
  };
  void expect_exact(AdapterSet& set, const std::string& name) {
    const Use use(set, name, MARU_ADAPTER_EXACT);
    ASSERT_EQ(use.status(), 0) << use.reason() << "\n" << tierd_.log();
    EXPECT_EQ(difference(use.get(), wish_named(name), 0), "");
  }

  static PoolWish small_pool() {
    PoolWish pool;
    pool.bytes = 6u << 20;
    return pool;
  }

  AdapterHome home_{small_pool()};
  TierdProcess tierd_;
  SetWish wish_;
  TestClient client_{home_.marud().socket_path()};
  uint64_t filler_ = 0;
};

TEST_F(AdapterTiers, AnEvictedFormComesBackWithoutItsFiles) {
  const auto set = home_.open(client_, wish_);
  add_and_store(*set, "a");
  evict_all();
  {
    const Hidden hidden(home_.folder("a"));
    expect_exact(*set, "a");
  }
  const maru_adapters_statistics after = statistics(*set);
  EXPECT_EQ(after.loads, 2u);
  EXPECT_EQ(after.tier_loads, 1u);
  EXPECT_EQ(after.evicted, 1u);
  EXPECT_EQ(after.hot_adapters, 1u);
  tierd_.stop();
}

// It takes connections and answers none.
TEST_F(AdapterTiers, AStoppedMaruTierdHoldsUpNoLoadForLong) {
  wish_.timeout_ms = 2000;
  const auto set = home_.open(client_, wish_);
  add_and_store(*set, "a");
  evict_all();
  ASSERT_TRUE(tierd_.suspend());
  expect_exact(*set, "a");
  EXPECT_EQ(::kill(tierd_.pid(), SIGCONT), 0);
  EXPECT_EQ(statistics(*set).tier_loads, 0u);
  EXPECT_EQ(statistics(*set).loads, 2u);
}

// Its weights were not read when it was loaded, so a tier could have those of another file with the same name and size.
TEST_F(AdapterTiers, AnAdapterThatWasLoadedUnreadComesFromItsFile) {
  const auto set = home_.open(client_, wish_);
  write_adapter(home_.folder("a"), wish_named("a"));
  maru_adapters_reason reason = {};
  ASSERT_EQ(set->load("a", home_.folder("a"), MARU_ADAPTERS_LOAD_LAZY, &reason), 0) << reason.text;
  expect_exact(*set, "a");
  maru_adapter_info info = {};
  ASSERT_EQ(set->find("a", &info), 0);
  ASSERT_TRUE(tierd_.has_entries(info.hot_parts)) << tierd_.list().dump();  // it could come from the tier
  evict_all();
  expect_exact(*set, "a");
  EXPECT_EQ(statistics(*set).loads, 2u);
  EXPECT_EQ(statistics(*set).tier_loads, 0u);
}

// marud takes the deepest part first. A tier forgets blocks that a client deletes, so the parts before it must stay.
TEST_F(AdapterTiers, WhatEvictionHasLeftStaysAndIsCompleted) {
  const auto set = home_.open(client_, wish_);
  const uint64_t parts = add_and_store(*set, "a");
  evict_below(parts);
  ASSERT_GT(weights_in_pool(), 0u);
  {
    const Hidden hidden(home_.folder("a"));
    expect_exact(*set, "a");
  }
  EXPECT_EQ(statistics(*set).tier_loads, 1u);
  tierd_.stop();
}

TEST_F(AdapterTiers, WithoutAnAnswerTheFilesAreRead) {
  const auto set = home_.open(client_, wish_);
  add_and_store(*set, "a");
  tierd_.kill();
  evict_all();
  expect_exact(*set, "a");
  const maru_adapters_statistics after = statistics(*set);
  EXPECT_EQ(after.loads, 2u);
  EXPECT_EQ(after.tier_loads, 0u);
}

TEST_F(AdapterTiers, WithoutATierAndFilesNothingStays) {
  const auto set = home_.open(client_, wish_);
  const uint64_t parts = add_and_store(*set, "a");
  evict_below(parts);
  tierd_.kill();
  const Hidden hidden(home_.folder("a"));
  const Use use(*set, "a", MARU_ADAPTER_EXACT);
  EXPECT_EQ(use.status(), -ENOENT) << use.reason();
  EXPECT_EQ(weights_in_pool(), 0u);
  EXPECT_EQ(statistics(*set).hot_adapters, 0u);
}

}  // namespace
}  // namespace maru::test
