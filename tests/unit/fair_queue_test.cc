#include "daemon/server/fair_queue.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

namespace maru::daemon {
namespace {

using Queue = FairQueue<int, std::string>;

// Serves one and says which.
std::string next(Queue& queue, uint64_t time = 10) {
  std::string served;
  queue.serve_next([&](std::string&& work) {
    served = std::move(work);
    return time;
  });
  return served;
}

TEST(FairQueue, ServesOneUserInTheOrderOfArrival) {
  Queue queue;
  for (const char* work : {"a", "b", "c"}) queue.push(1, work);
  EXPECT_EQ(queue.size(1), 3u);
  EXPECT_EQ(queue.size(2), 0u);
  for (const char* work : {"a", "b", "c"}) EXPECT_EQ(next(queue), work);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.keys(), 0u);
}

TEST(FairQueue, WhoComesLateWaitsForOnePieceOfWorkOfEachOther) {
  Queue queue;
  for (int i = 0; i < 1000; ++i) queue.push(1, "many");
  for (int i = 0; i < 500; ++i) EXPECT_EQ(next(queue), "many");
  queue.push(2, "one");
  queue.push(3, "another");
  std::vector<std::string> served;
  for (int i = 0; i < 3; ++i) served.push_back(next(queue));
  EXPECT_EQ(std::count(served.begin(), served.end(), "many"), 1);
}

TEST(FairQueue, SharesTheTimeNotTheCount) {
  Queue queue;
  for (int i = 0; i < 1000; ++i) queue.push(1, "long"), queue.push(2, "short");
  uint64_t used_long = 0, used_short = 0;
  for (int i = 0; i < 500; ++i)
    queue.serve_next([&](std::string&& work) {
      const uint64_t time = work == "long" ? 90 : 10;
      (work == "long" ? used_long : used_short) += time;
      return time;
    });
  EXPECT_NEAR(double(used_long), double(used_short), 100);
}

TEST(FairQueue, WhoAsksAgainAfterEveryAnswerHasNoMoreThanTheOthers) {
  Queue queue;
  for (int i = 0; i < 100; ++i) queue.push(1, "waits");
  queue.push(2, "asks again");
  int again = 0;
  for (int i = 0; i < 50; ++i) {
    queue.serve_next([&](std::string&& work) {
      if (work != "asks again") return uint64_t(10);
      ++again;
      return uint64_t(40);
    });
    if (queue.size(2) == 0) queue.push(2, "asks again");
  }
  EXPECT_NEAR(again, 10, 1);  // 10 x 40 beside 40 x 10
}

TEST(FairQueue, NobodySavesTimeForLater) {
  Queue queue;
  queue.push(2, "early");
  for (int i = 0; i < 100; ++i) queue.push(1, "steady");
  for (int i = 0; i < 60; ++i) next(queue);  // 2 is away meanwhile
  for (int i = 0; i < 20; ++i) queue.push(2, "late");
  int late = 0;
  for (int i = 0; i < 20; ++i) late += next(queue) == "late";
  EXPECT_NEAR(late, 10, 1);
}

TEST(FairQueue, ServingMayBringMoreWork) {
  Queue queue;
  queue.push(1, "first");
  queue.serve_next([&](std::string&&) {
    queue.push(1, "of the same");
    queue.push(2, "of another");
    return uint64_t(10);
  });
  EXPECT_EQ(next(queue), "of another");
  EXPECT_EQ(next(queue), "of the same");
  EXPECT_TRUE(queue.empty());
}

TEST(FairQueue, ForgetsWhoOwesNothing) {
  Queue queue;
  for (int i = 0; i < 100'000; ++i) queue.push(0, "always");
  for (int user = 1; user < 50'000; ++user) {
    queue.push(user, "once");
    next(queue), next(queue);
    ASSERT_LT(queue.keys(), 200u) << user;
  }
}

TEST(FairQueue, TakesWhatCanOnlyBeMoved) {
  FairQueue<int, std::unique_ptr<int>> queue;
  queue.push(1, std::make_unique<int>(7));
  queue.serve_next([](std::unique_ptr<int>&& work) {
    EXPECT_EQ(*work, 7);
    return uint64_t(1);
  });
}

}  // namespace
}  // namespace maru::daemon
