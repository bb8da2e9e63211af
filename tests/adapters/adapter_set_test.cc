// Sets of adapters on a real marud: loading, holding, sharing, budgets, moves between the forms.
#include "tests/adapters/set_fixture.h"

#include <atomic>
#include <cmath>
#include <new>
#include <thread>

namespace maru::test {
namespace {

using adapters::AdapterSet;

class AdapterSets : public ::testing::Test {
 protected:
  AdapterSets() : home_(pool()) {}
  static PoolWish pool() {
    PoolWish pool;
    pool.bytes = 16u << 20;
    return pool;
  }
  maru_adapters_statistics statistics(AdapterSet& set) {
    maru_adapters_statistics statistics = {};
    EXPECT_EQ(set.statistics(&statistics), 0);
    return statistics;
  }
  uint32_t tier(AdapterSet& set, const std::string& name) {
    maru_adapter_info info = {};
    EXPECT_EQ(set.find(name, &info), 0);
    return info.tier;
  }

  AdapterHome home_;
  TestClient client_{home_.marud().socket_path()};
};

TEST_F(AdapterSets, HoldsTheWeightsOfTheFileBitForBit) {
  const auto set = home_.open(client_);
  for (const auto dtype : {Dtype::kFloat16, Dtype::kBfloat16, Dtype::kFloat32}) {
    AdapterWish wish;
    wish.dtype = dtype;
    const std::string name = dtype_name(dtype);
    home_.add(*set, name, wish);
    const Use exact(*set, name, MARU_ADAPTER_EXACT);
    ASSERT_EQ(exact.status(), 0) << exact.reason();
    EXPECT_EQ(difference(exact.get(), wish_named(name, wish), 0), "");
    EXPECT_EQ(exact->form, adapters::Form::kHot);
    // The address is the pool's: rows begin at lines of the cache.
    maru_adapter_module module = {};
    module.size = sizeof(module);
    ASSERT_EQ(maru_adapter_get_module(exact.get(), 0, &module), 0);
    EXPECT_EQ((reinterpret_cast<uintptr_t>(module.a.parts[0]) + module.a.first_offset) % 64, 0u);
    EXPECT_EQ(module.scaling, 2.0f);
  }
}

TEST_F(AdapterSets, FirstUseMakesTheSmallForm) {
  const auto set = home_.open(client_);
  home_.add(*set, "a");
  EXPECT_EQ(tier(*set, "a"), uint32_t(MARU_ADAPTER_COLD));
  const Use use(*set, "a");
  ASSERT_EQ(use.status(), 0) << use.reason();
  EXPECT_EQ(use->form, adapters::Form::kWarm);
  EXPECT_EQ(difference(use.get(), wish_named("a"), 1.001f / 254), "");
  EXPECT_NE(difference(use.get(), wish_named("a"), 0), "");
  EXPECT_EQ(tier(*set, "a"), uint32_t(MARU_ADAPTER_WARM));
}

TEST_F(AdapterSets, OtherProcessesLoadNothing) {
  const TestClient other_client(home_.marud().socket_path());
  const auto set = home_.open(client_), other = home_.open(other_client);
  home_.add(*set, "a");
  const Use here(*set, "a", MARU_ADAPTER_EXACT);
  const maru_adapters_statistics before = statistics(*set);
  const Use there(*other, "a", MARU_ADAPTER_EXACT);
  ASSERT_EQ(there.status(), 0) << there.reason();
  EXPECT_EQ(difference(there.get(), wish_named("a"), 0), "");
  const maru_adapters_statistics after = statistics(*other);
  EXPECT_EQ(after.loads, before.loads);
  EXPECT_EQ(after.loaded_bytes, before.loaded_bytes);
  EXPECT_EQ(after.acquires_hot, before.acquires_hot + 1);
  EXPECT_EQ(after.hot_bytes, before.hot_bytes);
}

TEST_F(AdapterSets, RefusesASecondAdapterOfAName) {
  const auto set = home_.open(client_);
  home_.add(*set, "a");
  home_.add(*set, "b");
  maru_adapters_reason reason = {};
  EXPECT_EQ(set->load("a", home_.folder("a"), 0, &reason), 0) << reason.text;  // the same again
  EXPECT_EQ(set->load("a", home_.folder("b"), 0, &reason), -EEXIST);
  EXPECT_NE(std::string(reason.text).find("the name \"a\" belongs to the adapter in"), std::string::npos)
      << reason.text;
  EXPECT_EQ(set->unload("a", &reason), 0) << reason.text;
  EXPECT_EQ(set->load("a", home_.folder("b"), 0, &reason), 0) << reason.text;
  const Use use(*set, "a", MARU_ADAPTER_EXACT);
  EXPECT_EQ(difference(use.get(), wish_named("b"), 0), "");
}

TEST_F(AdapterSets, RefusesTheBaseModelOfOthersAndLeavesNothing) {
  SetWish own;
  own.base = "base/model";
  const auto set = home_.open(client_, own);
  const uint64_t before = free_pages(home_.marud());
  AdapterWish wish;
  wish.base = "base/other";
  write_adapter(home_.folder("x"), wish);
  maru_adapters_reason reason = {};
  EXPECT_EQ(set->load("x", home_.folder("x"), 0, &reason), -EXDEV);
  EXPECT_NE(std::string(reason.text).find("expected one of \"base/model\""), std::string::npos) << reason.text;
  // Weights that are no numbers, found when they are needed.
  TensorsFile file = tensors_of({});
  file.data.replace(0, 2, std::string("\x00\x7c", 2));
  write_adapter(home_.folder("y"), config_of({}), file.bytes());
  EXPECT_EQ(set->load("y", home_.folder("y"), 0, &reason), -EBADMSG);
  EXPECT_EQ(set->load("y", home_.folder("y"), MARU_ADAPTERS_LOAD_LAZY, &reason), 0) << reason.text;
  for (const uint32_t want : {MARU_ADAPTER_ANY, MARU_ADAPTER_EXACT}) {
    const Use use(*set, "y", want);
    EXPECT_EQ(use.status(), -EBADMSG) << use.reason();
    EXPECT_NE(use.reason().find("NaN or infinite"), std::string::npos) << use.reason();
  }
  EXPECT_EQ(statistics(*set).hot_adapters + statistics(*set).warm_adapters, 0u);
  EXPECT_EQ(statistics(*set).hot_bytes + statistics(*set).warm_bytes, 0u);
  EXPECT_EQ(free_pages(home_.marud()), before);
}

TEST_F(AdapterSets, SaysThatAFileChanged) {
  const auto set = home_.open(client_);
  home_.add(*set, "a");
  AdapterWish wish;
  wish.rank = 4;
  write_adapter(home_.folder("a"), wish);
  const Use use(*set, "a");
  EXPECT_EQ(use.status(), -ESTALE) << use.reason();
}

TEST_F(AdapterSets, UnloadWaitsForNobodyAndTakesAll) {
  const TestClient other_client(home_.marud().socket_path());
  const auto set = home_.open(client_), other = home_.open(other_client);
  const uint64_t before = free_pages(home_.marud());
  home_.add(*set, "a");
  maru_adapters_reason reason = {};
  {
    const Use there(*other, "a", MARU_ADAPTER_EXACT);
    EXPECT_EQ(set->unload("a", &reason), -EBUSY) << reason.text;
    EXPECT_EQ(other->unload("a", &reason), -EBUSY) << reason.text;
    const Use still(*set, "a", MARU_ADAPTER_EXACT);
    EXPECT_EQ(difference(still.get(), wish_named("a"), 0), "");
  }
  EXPECT_EQ(set->unload("a", &reason), 0) << reason.text;
  EXPECT_EQ(Use(*set, "a").status(), -ENOENT);
  EXPECT_EQ(Use(*other, "a").status(), -ENOENT);
  EXPECT_EQ(free_pages(home_.marud()), before);
}

TEST_F(AdapterSets, ABudgetThatIsHeldIsRefused) {
  SetWish own;
  own.hot_max = 2;
  const auto set = home_.open(client_, own);
  for (const char* name : {"a", "b", "c"}) home_.add(*set, name);
  const Use a(*set, "a", MARU_ADAPTER_EXACT);
  {
    const Use b(*set, "b", MARU_ADAPTER_EXACT);
    const Use c(*set, "c", MARU_ADAPTER_EXACT);
    EXPECT_EQ(c.status(), -EDQUOT) << c.reason();
    EXPECT_EQ(statistics(*set).refusals, 1u);
    EXPECT_EQ(statistics(*set).hot_adapters, 2u);
  }
  const Use c(*set, "c", MARU_ADAPTER_EXACT);
  EXPECT_EQ(c.status(), 0) << c.reason();
  EXPECT_EQ(tier(*set, "b"), uint32_t(MARU_ADAPTER_COLD));
  EXPECT_EQ(statistics(*set).hot_adapters, 2u);
}

TEST_F(AdapterSets, ABudgetOfBytesIsOne) {
  SetWish own;
  const auto measuring = home_.open(client_, own);
  home_.add(*measuring, "a");
  maru_adapter_info info = {};
  ASSERT_EQ(measuring->find("a", &info), 0);
  std::filesystem::remove(home_.register_path());
  own.bytes_max = 2 * info.hot_bytes + 1;
  const auto set = home_.open(client_, own);
  for (const char* name : {"a", "b", "c"}) home_.add(*set, name);
  const Use a(*set, "a", MARU_ADAPTER_EXACT), b(*set, "b", MARU_ADAPTER_EXACT), c(*set, "c", MARU_ADAPTER_EXACT);
  EXPECT_EQ(b.status(), 0);
  EXPECT_EQ(c.status(), -EDQUOT) << c.reason();
  EXPECT_LE(statistics(*set).hot_bytes, own.bytes_max);
}

TEST_F(AdapterSets, PromotesWhatIsUsedAndDemotesWhatIsNot) {
  const auto set = home_.open(client_);
  for (const char* name : {"busy", "idle"}) home_.add(*set, name);
  {
    const Use use(*set, "idle");
  }
  for (int i = 0; i < 12; ++i) const Use use(*set, "busy");
  EXPECT_EQ(set->rebalance(100), 0);  // both have just come
  home_.pass(31'000);
  EXPECT_EQ(set->rebalance(100), 1);
  EXPECT_EQ(tier(*set, "busy"), uint32_t(MARU_ADAPTER_HOT));
  EXPECT_EQ(tier(*set, "idle"), uint32_t(MARU_ADAPTER_WARM));
  EXPECT_EQ(statistics(*set).warm_adapters, 1u);
  {
    const Use use(*set, "busy");
    EXPECT_EQ(use->form, adapters::Form::kHot);
    EXPECT_EQ(difference(use.get(), wish_named("busy"), 0), "");
  }
  home_.pass(70'000);
  EXPECT_EQ(set->rebalance(100), 2);
  EXPECT_EQ(tier(*set, "busy"), uint32_t(MARU_ADAPTER_WARM));
  EXPECT_EQ(tier(*set, "idle"), uint32_t(MARU_ADAPTER_COLD));
  home_.pass(70'000);
  EXPECT_EQ(set->rebalance(100), 1);
  EXPECT_EQ(tier(*set, "busy"), uint32_t(MARU_ADAPTER_COLD));
  EXPECT_EQ(statistics(*set).promotions, 1u);
  EXPECT_EQ(statistics(*set).demotions, 1u);
}

TEST_F(AdapterSets, AHundredCyclesAddNoError) {
  const auto set = home_.open(client_);
  home_.add(*set, "a");
  std::vector<std::vector<float>> first;
  for (int cycle = 0; cycle < 100; ++cycle) {
    std::vector<std::vector<float>> now;
    {
      const Use use(*set, "a");
      ASSERT_EQ(use.status(), 0) << use.reason();
      ASSERT_EQ(use->form, adapters::Form::kWarm);
      for (size_t number = 0; number < maru_adapter_modules(use.get()); ++number) {
        maru_adapter_module module = {};
        module.size = sizeof(module);
        ASSERT_EQ(maru_adapter_get_module(use.get(), number, &module), 0);
        now.emplace_back(module.rank * module.in_features);
        ASSERT_EQ(maru_adapter_copy(use.get(), number, MARU_ADAPTER_A, MARU_ADAPTER_FLOAT32, now.back().data(),
                                    now.back().size() * 4),
                  0);
      }
    }
    if (first.empty()) first = now;
    ASSERT_EQ(now, first) << "cycle " << cycle;
    for (int i = 0; i < 12; ++i) const Use use(*set, "a");
    home_.pass(31'000);
    ASSERT_EQ(set->rebalance(10), 1);
    ASSERT_EQ(tier(*set, "a"), uint32_t(MARU_ADAPTER_HOT));
    home_.pass(70'000);
    ASSERT_EQ(set->rebalance(10), 1);
    ASSERT_EQ(tier(*set, "a"), uint32_t(MARU_ADAPTER_WARM));
  }
}

TEST_F(AdapterSets, WhatIsHeldIsNotMoved) {
  const TestClient other_client(home_.marud().socket_path());
  const auto set = home_.open(client_), other = home_.open(other_client);
  home_.add(*set, "a");
  const Use there(*other, "a", MARU_ADAPTER_EXACT);
  home_.pass(100'000);
  EXPECT_EQ(set->rebalance(10), 0);
  EXPECT_EQ(tier(*set, "a"), uint32_t(MARU_ADAPTER_HOT));
  EXPECT_EQ(statistics(*set).warm_adapters, 0u);
  EXPECT_EQ(difference(there.get(), wish_named("a"), 0), "");
}

TEST_F(AdapterSets, EvictionByMarudIsAMiss) {
  const auto set = home_.open(client_);
  home_.add(*set, "a");
  {
    const Use use(*set, "a", MARU_ADAPTER_EXACT);
  }
  // The pool fills up with other blocks, twice over.
  const std::string filler(4096, 'x');
  for (int i = 0; i < 8192; ++i) ASSERT_GE(client_.store("filler " + std::to_string(i), filler), 0);
  EXPECT_EQ(tier(*set, "a"), uint32_t(MARU_ADAPTER_HOT));  // so the register thinks
  const Use use(*set, "a", MARU_ADAPTER_EXACT);
  ASSERT_EQ(use.status(), 0) << use.reason();
  EXPECT_EQ(difference(use.get(), wish_named("a"), 0), "");
  EXPECT_EQ(statistics(*set).evicted, 1u);
  EXPECT_EQ(statistics(*set).hot_adapters, 1u);
}

TEST_F(AdapterSets, PrefetchMakesTheNextUseAHit) {
  const auto set = home_.open(client_);
  home_.add(*set, "a");
  EXPECT_EQ(set->prefetch("a", MARU_ADAPTER_EXACT), 0);
  EXPECT_EQ(set->prefetch("none", MARU_ADAPTER_ANY), -ENOENT);
  const Use use(*set, "a", MARU_ADAPTER_EXACT);
  EXPECT_EQ(statistics(*set).acquires_hot, 1u);
  EXPECT_EQ(statistics(*set).acquires_cold, 0u);
}

TEST_F(AdapterSets, ManyThreadsMakeOneCopy) {
  const TestClient other_client(home_.marud().socket_path());
  const auto set = home_.open(client_), other = home_.open(other_client);
  home_.add(*set, "a");
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      const Use use(i % 2 ? *set : *other, "a", MARU_ADAPTER_EXACT);
      if (use.status() != 0 || !difference(use.get(), wish_named("a"), 0).empty()) ++wrong;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(statistics(*set).loads, 1u);
}

TEST_F(AdapterSets, NoMemoryAtAnyStepLeavesNothing) {
  constexpr adapters::Step kSteps[] = {adapters::Step::kMakingBegun, adapters::Step::kAllocated,
                                       adapters::Step::kFilled, adapters::Step::kStoringPart, adapters::Step::kStored};
  for (const adapters::Step step : kSteps)
    for (const int skip : {0, 1}) {
      bool is_armed = true;
      int passes = skip;
      SetWish own;
      own.part_bytes = 4096;
      own.at_step = [&](adapters::Step at) {
        if (is_armed && at == step && passes-- == 0) throw std::bad_alloc();
      };
      std::filesystem::remove(home_.register_path());
      const auto set = home_.open(client_, own);
      home_.add(*set, "a");
      const uint64_t before = free_pages(home_.marud());
      {
        const Use use(*set, "a", MARU_ADAPTER_EXACT);
        if (passes < 0) {
          EXPECT_EQ(use.status(), -ENOMEM) << use.reason();
          EXPECT_EQ(free_pages(home_.marud()), before) << "step " << int(step);
          EXPECT_EQ(statistics(*set).hot_adapters, 0u);
        }
      }
      is_armed = false;
      {
        const Use use(*set, "a", MARU_ADAPTER_EXACT);
        EXPECT_EQ(use.status(), 0) << use.reason();
      }
      maru_adapters_reason reason = {};
      EXPECT_EQ(set->unload("a", &reason), 0) << reason.text;
    }
}

TEST_F(AdapterSets, AFullRegisterSaysSoAndForgetsWhatIsUnloaded) {
  SetWish own;
  own.entries_max = 3;
  const auto set = home_.open(client_, own);
  maru_adapters_reason reason = {};
  for (const char* name : {"a", "b", "c"}) home_.add(*set, name);
  write_adapter(home_.folder("d"), {});
  EXPECT_EQ(set->load("d", home_.folder("d"), 0, &reason), -ENOSPC);
  EXPECT_NE(std::string(reason.text).find("has 3 adapters of 3"), std::string::npos) << reason.text;
  for (int round = 0; round < 20; ++round) {
    const std::string name = "name " + std::to_string(round);
    ASSERT_EQ(set->unload(round == 0 ? "b" : "name " + std::to_string(round - 1), &reason), 0) << reason.text;
    ASSERT_EQ(set->load(name, home_.folder("d"), 0, &reason), 0) << reason.text;
    ASSERT_EQ(Use(*set, "a").status(), 0);
  }
  uint64_t cursor = 0;
  std::vector<std::string> names;
  for (maru_adapter_info info = {}; set->next(&cursor, &info) == 0;) names.push_back(info.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "name 19", "c"}));
  for (const std::string& name : {std::string(), std::string(128, 'x'), std::string("a\nb")})
    EXPECT_EQ(set->load(name, home_.folder("d"), 0, &reason), -EINVAL) << reason.text;
}

TEST_F(AdapterSets, WaitsForAnotherOnlySoLong) {
  const TestClient other_client(home_.marud().socket_path());
  std::atomic<bool> has_begun{false}, may_go_on{false};
  SetWish slow;
  slow.at_step = [&](adapters::Step at) {
    if (at != adapters::Step::kFilled) return;
    has_begun = true;
    may_go_on.wait(false);
  };
  SetWish hasty;
  hasty.timeout_ms = 200;
  const auto set = home_.open(client_, slow), other = home_.open(other_client, hasty);
  home_.add(*set, "a");
  std::thread maker([&] {
    const Use use(*set, "a", MARU_ADAPTER_EXACT);
    EXPECT_EQ(use.status(), 0) << use.reason();
  });
  EXPECT_TRUE(wait_until([&] { return has_begun.load(); }));
  EXPECT_EQ(Use(*other, "a", MARU_ADAPTER_EXACT).status(), -ETIMEDOUT);
  maru_adapters_reason reason = {};
  EXPECT_EQ(other->unload("a", &reason), -EBUSY) << reason.text;
  may_go_on = true;
  may_go_on.notify_all();
  maker.join();
  const Use use(*other, "a", MARU_ADAPTER_EXACT);
  EXPECT_EQ(use.status(), 0) << use.reason();
  EXPECT_EQ(statistics(*other).loads, 1u);
  EXPECT_GE(statistics(*other).waits, 1u);
}

// Threads take turns at one form, so each begins its work as soon as the thread before has ended its own.
TEST_F(AdapterSets, ThreadsThatFollowEachOtherAreNotTakenForDead) {
  SetWish narrow;
  narrow.hot_max = 1;
  const auto set = home_.open(client_, narrow);
  for (const char* name : {"a", "b"}) home_.add(*set, name);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      for (int turn = 0; turn < 1000; ++turn) (void)set->prefetch((i + turn) % 2 ? "a" : "b", MARU_ADAPTER_EXACT);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(statistics(*set).demotions, 0u);
  EXPECT_EQ(statistics(*set).repairs, 0u);
}

TEST_F(AdapterSets, RegistersRefuseWhatTheyAreNot) {
  const auto open_file = [&](const SetWish& wish) {
    AdapterSet::Wish own;
    own.in_register.path = home_.register_path();
    own.in_register.page_bytes = 4096, own.in_register.part_bytes = wish.part_bytes, own.in_register.entries_max = 16;
    own.in_register.base_model = wish.base;
    own.in_register.base_fingerprint[15] = wish.fingerprint;
    own.in_register.rules.window_ms = 60'000;
    own.now_ms = [] { return kFirstMs; };
    maru_adapters_reason reason = {};
    AdapterSet set(client_, own);
    const int status = set.open(&reason);
    return std::to_string(status) + " " + reason.text;
  };
  write_file(home_.register_path(), std::string(8192, 'x'));
  std::filesystem::permissions(home_.register_path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_NE(open_file({}).find("is too short"), open_file({}).size());
  EXPECT_EQ(open_file({}).substr(0, 1), "0") << "a register whose maker died is made anew";
  std::string bytes(4096, 'x');
  {
    std::ifstream file(home_.register_path(), std::ios::binary);
    file.read(bytes.data(), 4096);
  }
  bytes[0] ^= 1;
  write_file(home_.register_path(), bytes);
  EXPECT_NE(open_file({}).find("no register of version"), std::string::npos) << open_file({});
  std::filesystem::remove(home_.register_path());
  SetWish wish;
  wish.base = "one";
  EXPECT_EQ(open_file(wish), "0 ");
  wish.base = "two";
  EXPECT_NE(open_file(wish).find("base model is \"one\", not \"two\""), std::string::npos) << open_file(wish);
  std::filesystem::remove(home_.register_path());
  wish.fingerprint = 7;
  EXPECT_EQ(open_file(wish), "0 ");
  wish.fingerprint = 8;
  EXPECT_NE(open_file(wish).find("another fingerprint"), std::string::npos) << open_file(wish);
  wish.fingerprint = 0;
  EXPECT_EQ(open_file(wish), "0 ") << "who gives none takes the register's";
}

}  // namespace
}  // namespace maru::test
