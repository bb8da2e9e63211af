// A worker that stores blocks that nobody may lose: in a pool that holds everything, each of its keys is found, always,
// whatever happens to marud. It also deletes and stores again some of its keys, so that stores go on when the pool is full,
// and reads what the other keepers keep. A miss ends it with status 3.
#pragma once

#include <cstdint>
#include <string>

namespace maru::test {

// Key number i of a keeper is kept for ever unless i % kKeeperChanging == 0: those come and go.
inline constexpr uint64_t kKeeperChanging = 4;
inline std::string keeper_key(uint32_t worker, uint64_t i) {
  return "keeper " + std::to_string(worker) + " key " + std::to_string(i);
}

}  // namespace maru::test
