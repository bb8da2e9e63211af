// The numbers from which text.cc and aliases.cc compute their families.
#pragma once

#include "daemon/metrics/text.h"
#include "libmaru/shm/region/page_word.h"

#include <array>
#include <cmath>
#include <cstdint>

namespace maru::daemon::metrics {

// The same values under the names that other projects' dashboards ask for. aliases.cc
void write_aliases(TextWriter& out, const Snapshot& snapshot);

// The uses of users, and the requests that were refused them. users.cc
void write_users(TextWriter& out, const Snapshot& snapshot);

template <typename F>
void for_serving(const Snapshot& snapshot, F&& act) {
  for (const PoolSnapshot& pool : snapshot.pools)
    if (pool.is_serving) act(pool);
}

// A family with one value for each pool.
template <typename F>
void per_pool(TextWriter& out, const Snapshot& snapshot, const char* name, const char* type, const char* help,
              F&& value) {
  out.family(name, type, help);
  for_serving(snapshot, [&](const PoolSnapshot& pool) { out.sample({{"pool", pool.name}}, value(pool)); });
}

inline double ratio(uint64_t part, uint64_t whole, double of_nothing = 0) {
  return whole == 0 ? of_nothing : double(part) / double(whole);
}

inline uint64_t pages_in(const PoolSnapshot& pool, std::initializer_list<shm::PageState> states) {
  uint64_t sum = 0;
  for (const shm::PageState state : states) sum += pool.census.states[size_t(state)];
  return sum;
}

inline uint64_t blocks_of(const PoolSnapshot& pool) {
  return pages_in(pool, {shm::PageState::kReady, shm::PageState::kRetiring});
}

inline uint64_t pages_usable(const PoolSnapshot& pool) {
  uint64_t sum = 0;
  for (const uint64_t pages : pool.census.states) sum += pages;
  return sum - pages_in(pool, {shm::PageState::kPoisoned});
}

// Pages that no client rents are not in use.
inline uint64_t pages_in_use(const PoolSnapshot& pool) {
  return pages_usable(pool) - pages_in(pool, {shm::PageState::kOut, shm::PageState::kFree});
}

inline double utilization(const PoolSnapshot& pool) { return ratio(pages_in_use(pool), pages_usable(pool)); }

struct Lookup {
  const char* operation;
  uint64_t found, asked;
};
inline std::array<Lookup, 3> lookups_of(const PoolSnapshot& pool) {
  const auto& counters = pool.counters;
  const uint64_t exists = counters[format::kCounterExistsHits], retrieved = counters[format::kCounterRetrieveHits];
  return {{{"exists", exists, exists + counters[format::kCounterExistsMisses]},
           {"retrieve", retrieved, retrieved + counters[format::kCounterRetrieveMisses]},
           {"match", counters[format::kCounterMatchBlocks], counters[format::kCounterMatchKeys]}}};
}

}  // namespace maru::daemon::metrics
