// A pool that is full of blocks whose names and order are known.
#pragma once

#include "tests/unit/pool_fixture.h"

#include <stdexcept>

namespace maru::daemon {

using Keys = std::vector<std::string>;

inline std::string name(uint64_t i) { return "key-" + std::to_string(i); }

// Fills the whole pool with one-page roots, a millisecond apart. Returns them in the order of their names.
inline std::vector<PageRef> fill(PoolUnderTest& home, InProcessClient& client) {
  std::vector<PageRef> blocks;
  for (uint64_t i = 0; i < home.region.pages(); ++i) {
    ++home.now_ms;
    blocks.push_back(client.store(name(i)));
    if (blocks.back().is_none()) throw std::runtime_error("the pool does not take " + name(i));
    if (i % 100 == 0) home.pool->turn(home.now_ms);
  }
  EXPECT_TRUE(client.evicted.empty());
  return blocks;
}

}  // namespace maru::daemon
