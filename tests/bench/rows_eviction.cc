// Making room: marud evicts inside the request of a client whose regions are full of unpinned blocks.
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/keys.h"
#include "tests/bench/suite.h"

#include <memory>

namespace maru::bench {

namespace {

constexpr size_t kBatchPages = 1000;

uint64_t evicted_by(maru_client* client) {
  maru_statistics statistics{};
  statistics.size = sizeof statistics;
  must(maru_get_statistics(client, &statistics), "statistics");
  return statistics.evicted;
}

// Asks for batches of pages that only eviction can give, and stores blocks in them so that the next batch has to be
// evicted as well. The time is that of the whole request, for each page evicted.
double evict_batches(maru_client* client, uint64_t batches, uint64_t& next_key) {
  std::vector<maru_buffer> buffers(kBatchPages);
  Laps laps;
  for (uint64_t batch = 0; batch < batches; ++batch) {
    const uint64_t before = evicted_by(client);
    const uint64_t started_ns = now_ns();
    must(maru_alloc_batch(client, 64, kBatchPages, buffers.data()), "alloc");
    const uint64_t took_ns = now_ns() - started_ns;
    if (const uint64_t evicted = evicted_by(client) - before) laps.add(took_ns, evicted);
    for (const maru_buffer& buffer : buffers) store_block(client, key_of(next_key++), buffer);
  }
  if (laps.empty()) throw std::runtime_error("nothing was evicted");
  return laps.median();
}

}  // namespace

void eviction_rows(Suite& suite) {
  PoolShape shape;
  shape.pages = suite.quick() ? 128 << 10 : 1'000'000;
  shape.pins_max = 131'072;
  shape.lanes = 32;
  suite.progress("filling a pool of " + std::to_string(shape.pages) + " pages");
  const MarudProcess marud(suite.options().marud, shape);
  const Client client(marud.socket_path(), 16);
  const maru_geometry geometry = client.geometry();
  store_roots(client, 0, geometry.pages - 64);
  LoadFloor floor(geometry.pages, pool_has_huge_pages());
  uint64_t next_key = kSpaceRow;
  const uint64_t batches = suite.operations(16);

  const auto measure = [&](const char* row, const std::string& note) {
    Facts facts = facts_of(geometry, geometry.pages);
    facts.note = note;
    suite.measure(row,
                  {{"value", [&] { return evict_batches(client, batches, next_key); }},
                   {"floor", [&] { return floor.dependent_pairs(batches * kBatchPages); }}},
                  facts);
  };
  // Pins spread over the pool; the holders end before the next row begins.
  if (suite.wants("evict_page")) {
    std::vector<std::unique_ptr<Child>> holders;
    for (uint64_t holder = 0; holder < 8; ++holder) {
      holders.push_back(start_role(
          {"holding", marud.socket_path(), std::to_string(geometry.pages / 2 + holder * geometry.pages / 20), "1000"}));
    }
    measure("evict_page", "8 lanes of 1000 pins, 1000 pages a request");
    for (const auto& holder : holders) holder->end(false);
  }
  if (suite.wants("evict_page_100k_pins")) {
    const uint64_t pins = suite.quick() ? 20'000 : 100'000;
    const auto holder =
        start_role({"holding", marud.socket_path(), std::to_string(geometry.pages / 2), std::to_string(pins)});
    measure("evict_page_100k_pins", "one lane of " + std::to_string(pins) + " pins, 1000 pages a request");
    holder->end(false);
  }
}

}  // namespace maru::bench
