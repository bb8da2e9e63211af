// What a busy maru-tierd costs the users of a pool: lookup, retrieve and store, beside a maru-tierd that writes every block to
// files, and without, in turns. The pool is full, and marud evicts in the background. For scripts/bench-tiers. Prints the
// medians as JSON.
//
//   pool_beside_tierd ROUNDS SECONDS_EACH
#include "tests/support/test_client.h"
#include "tests/tiers/tierd_process.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <thread>

namespace maru::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kBlockBytes = 64 << 10;
constexpr std::chrono::microseconds kPace{500};  // one block each: 125 MiB a second, which a maru-tierd keeps up with
constexpr int kLookups = 16, kRetrieves = 4;     // beside each store
constexpr std::array<const char*, 3> kNames = {"store", "lookup", "retrieve"};

using Samples = std::array<std::vector<double>, 3>;  // nanoseconds of one call

double nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

void measure(TestClient& client, double seconds, uint64_t& next_key, Samples& samples) {
  const std::string payload(kBlockBytes, 'x');
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (Clock::time_point turn = Clock::now(); turn < end; turn += kPace) {
    std::this_thread::sleep_until(turn);
    const std::string key = "key " + std::to_string(next_key++);
    Clock::time_point begin = Clock::now();
    if (client.store(key, payload) != 0) throw std::runtime_error("a store failed");
    samples[0].push_back(nanoseconds_since(begin));
    begin = Clock::now();
    for (int i = 0; i < kLookups; ++i)
      if (client.exists(key) != 1) throw std::runtime_error("a block is not there");
    samples[1].push_back(nanoseconds_since(begin) / kLookups);
    begin = Clock::now();
    for (int i = 0; i < kRetrieves; ++i) {
      maru_view view = {};
      if (client.retrieve(key, &view) != 0) throw std::runtime_error("a block is not there");
      client.release(view);
    }
    samples[2].push_back(nanoseconds_since(begin) / kRetrieves);
  }
}

double median(std::vector<double>& values) {
  std::nth_element(values.begin(), values.begin() + ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

int run(int rounds, double seconds) {
  PoolWish wish;
  wish.bytes = 256u << 20;
  wish.region_bytes = 16u << 20;
  // As marud's configuration has it. Without eviction in the background a store into a full pool asks marud and waits for its
  // answer. Then this row would measure how soon a busy machine gives marud a processor.
  wish.high_watermark = 0.9;
  MarudProcess marud({wish});
  TierdProcess tierd(
      marud, "[[tier]]\nname = \"disk\"\nkind = \"file\"\n[tier.options]\npath = \"DIR\"\ncapacity = \"1GiB\"\n");
  TestClient client(marud.socket_path());
  uint64_t next_key = 0, written = 0;
  Samples beside, alone;
  Samples warm;
  measure(client, seconds, next_key, warm);
  for (int round = 0; round < rounds; ++round) {
    measure(client, seconds, next_key, alone);
    tierd.start();
    measure(client, seconds, next_key, beside);
    written += tierd.metric("maru_tier_stored_blocks_total");
    tierd.kill();
  }
  std::printf("{\"written\": %llu", static_cast<unsigned long long>(written));
  for (size_t i = 0; i < kNames.size(); ++i)
    std::printf(", \"%s_ns\": %.1f, \"%s_floor_ns\": %.1f", kNames[i], median(beside[i]), kNames[i], median(alone[i]));
  std::printf("}\n");
  return written > 0 ? 0 : 1;
}

}  // namespace
}  // namespace maru::test

int main(int count, char** words) {
  if (count != 3) return std::fprintf(stderr, "pool_beside_tierd ROUNDS SECONDS_EACH\n"), 2;
  return maru::test::run(int(std::strtol(words[1], nullptr, 0)), std::strtod(words[2], nullptr));
}
