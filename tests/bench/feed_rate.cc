// What followers cost: how long requests for memory take beside a feed that is read at full rate, against the same without a
// follower, in turns within one run; and how long an event takes from the store to the follower.
//
//   feed_rate SOCKET [SECONDS [STORES_PER_SECOND...]]      of a small pool, so that each store evicts a block: two events each
#include "maru/follow.h"
#include "maru/maru.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBatch = 64;  // pages that a producer asks for at a time
constexpr uint32_t kProducers = 2;

uint64_t now_ns() { return uint64_t(Clock::now().time_since_epoch().count()); }

[[noreturn]] void fail(const char* what, int code) {
  std::fprintf(stderr, "feed_rate: %s: %s\n", what, std::strerror(-code));
  std::exit(1);
}

uint64_t percentile(std::vector<uint64_t>& values, double share) {
  if (values.empty()) return 0;
  const size_t at = std::min(values.size() - 1, size_t(double(values.size()) * share));
  std::nth_element(values.begin(), values.begin() + ptrdiff_t(at), values.end());
  return values[at];
}

// Stores blocks under keys that say when, at a rate; notes how long taking memory takes.
struct Producer {
  std::vector<uint64_t> takes_ns;
  uint64_t stores = 0;

  void run(const char* socket, uint64_t per_second, const std::atomic<bool>& stop, uint32_t number) {
    maru_attach_options options = {};
    options.size = sizeof(options);
    options.socket_path = socket;
    options.timeout_ms = 60'000;
    maru_client* client = nullptr;
    if (const int code = maru_attach(&options, &client); code < 0) fail("attach", code);
    const uint64_t begun = now_ns();
    maru_buffer buffers[kBatch];
    while (!stop.load(std::memory_order_relaxed)) {
      if (stores * 1'000'000'000 > (now_ns() - begun) * per_second) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      const uint64_t before = now_ns();
      const int code = maru_alloc_batch(client, 64, kBatch, buffers);
      takes_ns.push_back(now_ns() - before);
      if (code < 0) continue;  // another producer was faster
      for (const maru_buffer& buffer : buffers) {
        char text[64];
        const int bytes = std::snprintf(text, sizeof(text), "%020llu %u %llu", (unsigned long long)now_ns(), number,
                                        (unsigned long long)stores++);
        const maru_key key = {text, uint32_t(bytes), MARU_KEY_BYTES, 0};
        if (maru_store(client, &key, &buffer, nullptr, nullptr) < 0) maru_abort(client, &buffer);
      }
    }
    maru_detach(client);
  }
};

struct Reader {
  std::vector<uint64_t> delays_ns;
  uint64_t events = 0, overruns = 0;

  void run(const char* socket, const std::atomic<bool>& stop) {
    maru_follow_options options = {};
    options.size = sizeof(options);
    options.socket_path = socket;
    maru_follower* follower = nullptr;
    if (const int code = maru_follow_open(&options, &follower); code < 0) fail("follow", code);
    std::vector<maru_follow_event> all(1024);
    while (!stop.load(std::memory_order_relaxed)) {
      const int found = maru_follow_next(follower, all.data(), all.size(), 50);
      const uint64_t now = now_ns();
      for (int i = 0; i < found; ++i) {
        const maru_follow_event& event = all[size_t(i)];
        overruns += event.kind == MARU_FOLLOW_RESET && event.reason == MARU_FOLLOW_OVERRUN;
        if (event.kind != MARU_FOLLOW_STORED && event.kind != MARU_FOLLOW_REMOVED) continue;
        if ((event.flags & MARU_FOLLOW_IN_SNAPSHOT) != 0) continue;
        ++events;
        if (event.kind != MARU_FOLLOW_STORED) continue;
        uint64_t stored = 0;
        std::from_chars(static_cast<const char*>(event.key.data), static_cast<const char*>(event.key.data) + 20,
                        stored);
        if (stored != 0 && now > stored) delays_ns.push_back(now - stored);
      }
    }
    maru_follow_close(follower);
  }
};

struct Phase {
  std::vector<uint64_t> takes_ns;
  uint64_t stores = 0;
  double seconds = 0;
};

void run_phase(const char* socket, double seconds, uint64_t per_second, Reader* reader, Phase& phase) {
  std::atomic<bool> stop = false;
  std::vector<Producer> producers(kProducers);
  std::vector<std::thread> threads;
  if (reader) threads.emplace_back([&] { reader->run(socket, stop); });
  for (uint32_t i = 0; i < kProducers; ++i)
    threads.emplace_back([&, i] { producers[i].run(socket, per_second / kProducers, stop, i); });
  const auto begun = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  phase.seconds += std::chrono::duration<double>(Clock::now() - begun).count();
  for (Producer& producer : producers) {
    phase.stores += producer.stores;
    phase.takes_ns.insert(phase.takes_ns.end(), producer.takes_ns.begin(), producer.takes_ns.end());
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "feed_rate SOCKET [SECONDS [STORES_PER_SECOND...]]\n");
    return 2;
  }
  const double seconds = count > 2 ? std::atof(arguments[2]) : 4;
  std::vector<uint64_t> rates;
  for (int i = 3; i < count; ++i) rates.push_back(uint64_t(std::atoll(arguments[i])));
  if (rates.empty()) rates = {25'000, 100'000};
  for (const uint64_t rate : rates) {
    Phase alone, followed;
    Reader reader;
    for (int turn = 0; turn < 4; ++turn) {
      run_phase(arguments[1], seconds / 4, rate, nullptr, alone);
      run_phase(arguments[1], seconds / 4, rate, &reader, followed);
    }
    const double p99_alone = double(percentile(alone.takes_ns, 0.99)),
                 p99 = double(percentile(followed.takes_ns, 0.99));
    std::printf(
        "{\"stores_per_s_wanted\": %llu, \"stores_per_s_alone\": %.0f, \"stores_per_s_followed\": %.0f, "
        "\"events_per_s\": %.0f, \"overruns\": %llu, \"take_p99_alone_us\": %.1f, \"take_p99_followed_us\": %.1f, "
        "\"ratio\": %.2f, \"delay_p50_ms\": %.2f, \"delay_p99_ms\": %.2f}\n",
        (unsigned long long)rate, double(alone.stores) / alone.seconds, double(followed.stores) / followed.seconds,
        double(reader.events) / followed.seconds, (unsigned long long)reader.overruns, p99_alone / 1e3, p99 / 1e3,
        p99_alone > 0 ? p99 / p99_alone : 0, double(percentile(reader.delays_ns, 0.5)) / 1e6,
        double(percentile(reader.delays_ns, 0.99)) / 1e6);
    std::fflush(stdout);
  }
  return 0;
}
