#include "daemon/policy/use_record.h"

#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

constexpr size_t kOften = 3, kSeldom = 5;

UseRecord record_of(double often, double seldom, uint64_t age) {
  UseRecord record;
  record.resize(6400);
  record.add_arrival(kOften, 1000);
  record.add_arrival(kSeldom, 1000);
  record.add_use(kOften, age, often);
  record.add_use(kSeldom, age, seldom);
  for (size_t i = 0; i < UseRecord::kClasses; ++i) record.refresh_next();
  return record;
}

TEST(UseRecord, WhatIsUsedMoreOftenIsWorthMore) {
  const UseRecord record = record_of(500, 100, 1000);
  EXPECT_GT(record.worth(kOften, 0), 3 * record.worth(kSeldom, 0));
}

TEST(UseRecord, WhatIsUsedSoonerIsWorthMore) {
  EXPECT_GT(record_of(300, 0, 1000).worth(kOften, 0), 3 * record_of(300, 0, 10'000).worth(kOften, 0));
}

TEST(UseRecord, ABlockThatWasNotUsedWhenOthersWereIsWorthLittle) {
  const UseRecord record = record_of(300, 0, 1000);
  EXPECT_GT(record.worth(kOften, 900), record.worth(kOften, 0)) << "its time is near";
  EXPECT_LT(record.worth(kOften, 2000), record.worth(kOften, 0) / 10) << "its time has passed";
}

TEST(UseRecord, IsTheExpectedUsesForTheTime) {
  // Half of the blocks are used again at about 1000, so waiting for that costs each a little less than 1000, or less for those
  // that are used within the bin: about 0.5 / 1000, in 2^-40.
  const double expected = 0.5 / 1000 * double(uint64_t{1} << 40);
  const double worth = double(record_of(500, 0, 1000).worth(kOften, 0));
  EXPECT_GT(worth, 0.75 * expected);
  EXPECT_LT(worth, 1.25 * expected);
}

TEST(UseRecord, UsesOfUnknownAgeTakeTheAgesThatAreKnown) {
  UseRecord record;
  record.resize(6400);
  record.add_arrival(kOften, 1000);
  record.add_age(kOften, 1000);
  record.add_uses_of_unknown_age(kOften, 500);
  for (size_t i = 0; i < UseRecord::kClasses; ++i) record.refresh_next();
  EXPECT_EQ(record.worth(kOften, 0), record_of(500, 0, 1000).worth(kOften, 0));
}

TEST(UseRecord, AnyAgeAndAnyPoolHasAPlace) {
  for (const uint64_t pages : {0ull, 1ull, 63ull, 1ull << 40}) {
    UseRecord record;
    record.resize(pages);
    for (uint32_t bit = 0; bit < 64; ++bit) record.add_use(0, uint64_t{1} << bit);
    for (size_t i = 0; i < UseRecord::kClasses; ++i) record.refresh_next();
    EXPECT_LE(record.worth(0, ~uint64_t{0}), record.worth(0, 0)) << pages;
  }
}

}  // namespace
}  // namespace maru::daemon
