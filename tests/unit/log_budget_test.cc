#include "daemon/base/log_budget.h"

#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

constexpr uint64_t kLaterMs = 10'000;

uint32_t taken(LogBudget& budget, std::optional<uid_t> user, uint32_t lines) {
  uint32_t taken = 0;
  for (uint32_t i = 0; i < lines; ++i) taken += budget.takes(user);
  return taken;
}

TEST(LogBudget, NobodyTakesTheLinesOfOthers) {
  LogBudget budget(LogLevel::kWarning, "refusals", 4, 10);
  EXPECT_EQ(budget.renewed(1), std::nullopt);
  EXPECT_EQ(taken(budget, 1000, 100), 4u);
  EXPECT_EQ(taken(budget, std::nullopt, 100), 4u);
  EXPECT_EQ(taken(budget, 1001, 1), 1u);
}

TEST(LogBudget, AllTogetherTakeNoMoreThanThereIs) {
  LogBudget budget(LogLevel::kWarning, "refusals", 4, 10);
  uint32_t lines = 0;
  for (uid_t user = 0; user < 10'000; ++user) lines += taken(budget, user, 4);
  EXPECT_EQ(lines, 10u);
}

TEST(LogBudget, WhatWasLeftOutIsToldWhenTheBudgetRenews) {
  LogBudget budget(LogLevel::kWarning, "refusals", 4, 10);
  EXPECT_EQ(budget.renewed(1), std::nullopt);
  taken(budget, 1000, 9);
  taken(budget, 1001, 5);
  EXPECT_EQ(budget.renewed(kLaterMs), std::nullopt) << "too early";
  EXPECT_EQ(budget.renewed(kLaterMs + 1), "and 6 further refusals were not logged, 5 of them of user 1000");
  EXPECT_EQ(taken(budget, 1000, 9), 4u);
  EXPECT_EQ(budget.renewed(2 * kLaterMs + 1), "and 5 further refusals were not logged, 5 of them of user 1000");
  EXPECT_EQ(budget.renewed(3 * kLaterMs + 1), std::nullopt);
  taken(budget, std::nullopt, 5);
  EXPECT_EQ(budget.renewed(4 * kLaterMs + 1), "and 1 further refusals were not logged");
}

}  // namespace
}  // namespace maru::daemon
