// Whatever was put in, and in however many parts it is taken out: what comes out is what one sort of all would give.
#include "daemon/pool/eviction/touch_backlog.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace maru::daemon {
namespace {

using shm::Touch;

TEST(TouchBacklog, RunsComeOutAsIfTheyHadBeenSortedAtOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    TouchBacklog backlog;
    std::vector<Touch> all, out, part;
    uint32_t page = 0;
    for (uint32_t run = 0; run < random() % 40; ++run) {
      std::vector<Touch> touches(random() % 100);
      for (Touch& touch : touches) touch = {page++, random() % 300};  // the page says when it was put in
      backlog.add(touches);
      all.insert(all.end(), touches.begin(), touches.end());
    }
    EXPECT_EQ(backlog.size(), all.size());
    std::stable_sort(all.begin(), all.end(), [](const Touch& a, const Touch& b) { return a.tick < b.tick; });
    while (!backlog.empty()) {
      const size_t limit = 1 + random() % 200, before = backlog.size();
      backlog.take(limit, part);
      ASSERT_EQ(part.size(), std::min(limit, before));
      EXPECT_EQ(backlog.size(), before - part.size());
      out.insert(out.end(), part.begin(), part.end());
    }
    ASSERT_EQ(out.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(out[i].page, all[i].page) << i;
      ASSERT_EQ(out[i].tick, all[i].tick) << i;
    }
  }
}

TEST(TouchBacklog, WhatComesLaterAndIsOlderGoesFirst) {
  TouchBacklog backlog;
  std::vector<Touch> part;
  const Touch first[] = {{1, 10}, {2, 20}}, second[] = {{3, 15}};
  backlog.add(first);
  backlog.take(1, part);
  ASSERT_EQ(part.size(), 1u);
  EXPECT_EQ(part[0].page, 1u);
  backlog.add(second);
  backlog.take(10, part);
  ASSERT_EQ(part.size(), 2u);
  EXPECT_EQ(part[0].page, 3u);
  EXPECT_EQ(part[1].page, 2u);
  EXPECT_TRUE(backlog.empty());
  backlog.add({});
  EXPECT_TRUE(backlog.empty());
}

}  // namespace
}  // namespace maru::daemon
