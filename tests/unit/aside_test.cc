// What is done by a thread of its own, where there is no memory for it.
#include "daemon/base/aside.h"

#include "tests/support/wait_until.h"

#include <atomic>
#include <gtest/gtest.h>
#include <new>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

namespace maru::daemon {
namespace {

// Cannot be brought to where the thread would find it, the second time that it is moved.
struct Unmovable {
  explicit Unmovable(int& moves_left) : left(moves_left) {}
  Unmovable(const Unmovable& other) : left(other.left) {
    if (left-- == 0) throw std::bad_alloc();
  }
  int operator()() const { return 1; }
  int& left;
};

template <typename T>
std::optional<T> taken(Aside<T>& aside) {
  std::optional<T> value;
  EXPECT_TRUE(test::wait_until([&] { return (value = aside.take()).has_value(); }));
  return value;
}

TEST(Aside, WhatCannotBeBegunIsNotBegun) {
  Aside<int> aside;
  int moves_left = 1;  // into begin()
  const Unmovable work(moves_left);
  EXPECT_THROW(aside.begin(work, 0), std::bad_alloc);
  EXPECT_FALSE(aside.is_begun());
  EXPECT_EQ(works_aside, 0u);
  aside.begin([] { return 2; }, 0);
  EXPECT_EQ(works_aside, 1u);
  EXPECT_EQ(taken(aside), 2);
  EXPECT_EQ(works_aside, 0u);
}

TEST(Aside, WhatIsThrownBecomesTheOtherAnswer) {
  Aside<int> aside;
  aside.begin([]() -> int { throw std::runtime_error("no"); }, 3);
  EXPECT_EQ(taken(aside), 3);
}

// Threads that open and close pools begin works, too.
TEST(Aside, WorksOfManyThreadsAreCounted) {
  constexpr int kThreads = 2, kRounds = 40;
  constexpr size_t kWorks = 200;
  std::atomic<int> arrived = 0;
  const auto work = [&] {
    for (int round = 1; round <= kRounds; ++round) {
      std::vector<Aside<int>> works(kWorks);
      for (Aside<int>& each : works) each.begin([] { return 1; }, 0);
      ++arrived;
      while (arrived < round * kThreads) {  // the threads forget their works at one moment
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i) threads.emplace_back(work);
  }
  EXPECT_EQ(works_aside, 0u);
}

}  // namespace
}  // namespace maru::daemon
