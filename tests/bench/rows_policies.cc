// What eviction policies cost: the request that needs them, and the store that does not.
#include "tests/bench/clock.h"
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/keys.h"
#include "tests/bench/suite.h"

#include <stdexcept>

namespace maru::bench {
namespace {

constexpr const char* kPolicies[] = {"lru",    "clock",      "fifo",     "lfu",          "ttl",
                                     "s3fifo", "size_aware", "priority", "isolated_lru", "odds"};

void set_policy(const MarudProcess& marud, const std::string& name) {
  const std::string reply = marud.ask(R"({"command":"policy.set","name":")" + name + "\"}");
  if (reply.find("\"error\"") != std::string::npos) throw std::runtime_error("policy " + name + ": " + reply);
}

// Each request can only be served by evicting `batch` blocks; every block that takes their place is stored, so that the
// policy learns of it. Per page, the whole request, its two messages included.
double evict_batches(maru_client* client, size_t batch, uint64_t batches, uint64_t& next_key) {
  std::vector<maru_buffer> buffers(batch);
  Laps laps;
  for (uint64_t i = 0; i < batches; ++i) {
    const uint64_t started_ns = now_ns();
    must(maru_alloc_batch(client, 64, batch, buffers.data()), "alloc");
    laps.add(now_ns() - started_ns, batch);
    for (const maru_buffer& buffer : buffers) store_block(client, key_of(next_key++), buffer);
  }
  return laps.median();
}

// A request that marud answers at once: nothing is stored under the key whose tree is to go.
double round_trips(maru_client* client, uint64_t count) {
  Laps laps;
  const Key key = key_of(kSpaceRow - 1);
  const maru_key name = as_maru_key(key);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t started_ns = now_ns();
    maru_delete_tree(client, &name, nullptr);
    laps.add(now_ns() - started_ns, 1);
  }
  return laps.median();
}

// Stores that find free pages, and deletes that give them back.
double store_and_delete(maru_client* client, uint64_t count, uint64_t& next_key) {
  const uint64_t started_ns = now_ns();
  for (uint64_t i = 0; i < count; ++i) {
    const Key key = key_of(next_key++);
    const maru_key name = as_maru_key(key);
    char payload[64] = {};
    must(maru_store_copy(client, &name, payload, sizeof payload, nullptr, nullptr), "store");
    must(maru_delete(client, &name), "delete");
  }
  return double(now_ns() - started_ns) / double(count);
}

void evict_rows(Suite& suite) {
  PoolShape shape;
  shape.pages = suite.quick() ? 32 << 10 : 256 << 10;
  const MarudProcess marud(suite.options().marud, shape);
  const Client client(marud.socket_path(), 1);
  const maru_geometry geometry = client.geometry();
  store_roots(client, 0, geometry.pages - 8);
  LoadFloor floor(geometry.pages, pool_has_huge_pages());
  uint64_t next_key = kSpaceRow;
  for (const auto& [row, batch] : {std::pair{"evict_64", size_t{64}}, std::pair{"evict_1", size_t{1}}}) {
    if (!suite.wants(row)) continue;
    const uint64_t batches = suite.operations(6400 / batch);
    Facts facts = facts_of(geometry, geometry.pages);
    facts.note = batch == 1 ? "value: lru; value - floor is what choosing and freeing takes" : "value: lru";
    std::vector<Contestant> contestants;
    for (const char* policy : kPolicies)
      contestants.push_back(
          {policy == kPolicies[0] ? "value" : "peer_" + std::string(policy), [&, policy, batch = batch] {
             set_policy(marud, policy);
             evict_batches(client, batch, 4, next_key);  // the pages that were on their way
             return evict_batches(client, batch, batches, next_key);
           }});
    contestants.push_back({"floor", [&, batch = batch] {
                             return batch == 1 ? round_trips(client, batches) : floor.dependent_pairs(6400);
                           }});
    suite.measure(row, contestants, facts);
  }
}

// Two pools of which half is in use: one that would evict, between its watermarks, and one that never does.
void store_row(Suite& suite) {
  PoolShape evicting, never;
  evicting.pages = never.pages = 64 << 10;
  evicting.more = "policy = \"lru\"\nhigh_watermark = 0.90\nlow_watermark = 0.80\n";
  never.more = "policy = \"none\"\nhigh_watermark = 1\n";
  const MarudProcess evicting_marud(suite.options().marud, evicting), never_marud(suite.options().marud, never);
  const Client with(evicting_marud.socket_path(), 16), without(never_marud.socket_path(), 16);
  uint64_t next_key = kSpaceRow, other_next_key = kSpaceRow;
  store_roots(with, 0, evicting.pages / 2);
  store_roots(without, 0, never.pages / 2);
  const uint64_t count = suite.operations(200'000);
  Facts facts = facts_of(with.geometry(), evicting.pages / 2);
  facts.note = "store and delete, 64 bytes";
  suite.measure("store_beside_eviction",
                {{"value", [&] { return store_and_delete(with, count, next_key); }},
                 {"floor", [&] { return store_and_delete(without, count, other_next_key); }}},
                facts);
}

}  // namespace

void policy_rows(Suite& suite) {
  if (suite.wants("evict_64") || suite.wants("evict_1")) evict_rows(suite);
  if (suite.wants("store_beside_eviction")) store_row(suite);
}

}  // namespace maru::bench
