// How fast a file tier stores and loads, with so many requests under way and every payload verified. scripts/bench-tiers runs
// it beside fio. Prints {"store": bytes a second, "load": ..., "open_ms": ...}.
//
//   tier_speed FOLDER PAYLOAD_BYTES COUNT DEPTH
#include "tests/tiers/tier_user.h"

#include <chrono>
#include <cstdio>
#include <memory>

namespace maru::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Keeps `depth` requests under way until `count` are done. Their memory is the slots', as pages of a pool would be.
class Load {
 public:
  Load(tierd::Tier& tier, uint64_t bytes, size_t depth) : tier_(tier), bytes_(bytes), attributes_(100, 'a') {
    for (size_t i = 0; i < depth; ++i) {
      slots_.push_back(tierd::AlignedBytes(bytes));
      Random random(i);
      for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
        const uint64_t word = random.next();
        std::memcpy(slots_.back().data() + at, &word, 8);
      }
      sums_.push_back(tierd::checksum_of(slots_.back().data(), bytes));
    }
  }

  // Bytes a second. `order`: of the keys.
  double run(uint32_t kind, const std::vector<uint64_t>& order) {
    const Clock::time_point begin = Clock::now();
    size_t next = 0, done = 0;
    for (size_t slot = 0; slot < slots_.size() && next < order.size(); ++slot) start(kind, order[next++], slot);
    maru_tier_completion completion = {};
    pollfd wait = {tier_.event_descriptor(), POLLIN, 0};
    while (done < order.size()) {
      if (tier_.complete(&completion, 1) == 0) {
        ::poll(&wait, 1, -1);
        continue;
      }
      if (completion.result != 0) throw std::runtime_error("a request failed: " + std::to_string(completion.result));
      ++done;
      if (next < order.size()) start(kind, order[next++], size_t(completion.ticket));
    }
    return double(bytes_ * order.size()) / seconds_since(begin);
  }

 private:
  void start(uint32_t kind, uint64_t key, size_t slot) {
    maru_tier_request request = {};
    request.ticket = slot;
    request.kind = kind;
    request.key = &(keys_[slot] = key);
    request.key_bytes = sizeof key;
    request.payload = slots_[slot].data();
    request.payload_bytes = bytes_;
    request.payload_checksum = sums_[slot];
    rooms_[slot] = attributes_;
    request.attributes = rooms_[slot].data();
    request.attributes_bytes = uint32_t(attributes_.size());
    request.note = key;
    while (tier_.submit(&request, 1) == 0) std::this_thread::yield();
  }

  tierd::Tier& tier_;
  const uint64_t bytes_;
  const std::string attributes_;
  std::vector<tierd::AlignedBytes> slots_;
  std::vector<uint64_t> sums_;
  std::map<size_t, uint64_t> keys_;
  std::map<size_t, std::string> rooms_;
};

int run(const std::string& folder, uint64_t bytes, uint64_t count, size_t depth) {
  const tierd::TierOptions options = {{"path", folder + "/tier_speed.log"},
                                      {"capacity", std::to_string((bytes + 65536) * count * 5 / 4 + (512u << 20))},
                                      {"readers", std::to_string(depth)},
                                      {"write_bytes", std::to_string(bytes * depth)}};
  std::vector<uint64_t> order(count);
  for (uint64_t i = 0; i < count; ++i) order[i] = i;
  double store = 0, load = 0;
  {
    const auto tier = open_or_throw("file", options);
    Load work(*tier, bytes, depth);
    store = work.run(MARU_TIER_STORE, order);
    Random random(7);
    for (uint64_t i = count - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    load = work.run(MARU_TIER_LOAD, order);
  }
  const Clock::time_point begin = Clock::now();
  const auto again = open_or_throw("file", options);
  const double open_ms = 1000 * seconds_since(begin);
  if (again->usage().entries != count) throw std::runtime_error("entries are gone after a restart");
  std::printf("{\"store\": %.0f, \"load\": %.0f, \"open_ms\": %.2f, \"direct\": %s}\n", store, load, open_ms,
              again->health().text[0] ? "false" : "true");
  return 0;
}

}  // namespace
}  // namespace maru::test

int main(int count, char** words) {
  if (count != 5) return std::fprintf(stderr, "tier_speed FOLDER PAYLOAD_BYTES COUNT DEPTH\n"), 2;
  return maru::test::run(words[1], std::strtoull(words[2], nullptr, 0), std::strtoull(words[3], nullptr, 0),
                         std::strtoull(words[4], nullptr, 0));
}
