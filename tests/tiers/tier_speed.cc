// How fast tiers are, for scripts/bench-tiers. Each form prints one line of JSON.
//
//   tier_speed file FOLDER PAYLOAD_BYTES COUNT DEPTH
//       {"store": bytes a second, "load": ..., "open_ms": ...}, with so many requests under way; fio is the yardstick
//   tier_speed beside FOLDER PAYLOAD_BYTES COUNT
//       {"idle_us": ..., "beside_us": ...}: p99 of a read, alone, and beside writes at half of the speed that they reach alone
//   tier_speed restart FOLDER COUNT
//       {"open_ms": ..., "floor_ms": ...}: until so many entries are ready after SIGKILL, and reading once what that needs
//   tier_speed resp SOCKET PAYLOAD_BYTES COUNT DEPTH
//       {"store": bytes a second, "load": ..., "floor_store": ..., "floor_load": ...}; the floor is a client of the same
//       library that pipelines. The same with "_processor_ms" behind the names: of this process, for COUNT requests
#include "daemon/tierd/tiers/file/block_file.h"
#include "tests/tiers/tier_user.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <functional>
#include <hiredis/hiredis.h>
#include <memory>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace maru::test {
namespace {

using Clock = std::chrono::steady_clock;

// Of all threads: on a busy machine it says more than the time on a wall.
double processor_ms() { return 1000.0 * double(std::clock()) / CLOCKS_PER_SEC; }

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

tierd::TierOptions file_options(const std::string& folder, uint64_t bytes, uint64_t count, size_t depth) {
  return {{"path", folder + "/tier_speed.log"},
          {"capacity", std::to_string((bytes + 65536) * count * 5 / 4 + (512u << 20))},
          {"readers", std::to_string(depth)},
          {"write_bytes", std::to_string(bytes * depth)}};
}

std::vector<uint64_t> keys_below(uint64_t count) {
  std::vector<uint64_t> order(count);
  for (uint64_t i = 0; i < count; ++i) order[i] = i;
  return order;
}

void shuffle(std::vector<uint64_t>& order) {
  Random random(7);
  for (uint64_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
}

int run_file(const std::string& folder, uint64_t bytes, uint64_t count, size_t depth) {
  const tierd::TierOptions options = file_options(folder, bytes, count, depth);
  std::vector<uint64_t> order = keys_below(count);
  double store = 0, load = 0;
  {
    const auto tier = open_or_throw("file", options);
    Load work(*tier, bytes, depth);
    store = work.run(MARU_TIER_STORE, order);
    shuffle(order);
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

// -- reads beside writes -------------------------------------------------------------------------------------------------

// One read at a time, each of another entry, and writes of new entries at a pace. Returns the p99 of the reads in
// microseconds.
double p99_of_reads(tierd::Tier& tier, uint64_t bytes, const std::vector<uint64_t>& order, double writes_a_second,
                    uint64_t& next_key) {
  constexpr uint64_t kRead = 1'000'000;  // its ticket; those of writes are their slots
  constexpr size_t kWrites = 16;
  tierd::AlignedBytes read_room(bytes), write_room(bytes);
  std::string attributes(100, 'a'), write_attributes(100, 'a');
  const uint64_t checksum = tierd::checksum_of(write_room.data(), bytes);
  std::vector<uint64_t> write_keys(kWrites);
  std::vector<size_t> free_slots;
  for (size_t slot = 0; slot < kWrites; ++slot) free_slots.push_back(slot);
  std::vector<double> took;
  const Clock::time_point begin = Clock::now();
  Clock::time_point read_begin;
  uint64_t written = 0, read_key = 0;
  size_t next = 0;
  const auto submit = [&](maru_tier_request request, tierd::AlignedBytes& room, std::string& about,
                          const uint64_t& key) {
    request.key = &key;
    request.key_bytes = sizeof key;
    request.payload = room.data();
    request.payload_bytes = bytes;
    request.attributes = about.data();
    request.attributes_bytes = uint32_t(about.size());
    request.payload_checksum = checksum;
    while (tier.submit(&request, 1) == 0) std::this_thread::yield();
  };
  bool is_reading = false;
  while (took.size() < order.size()) {
    if (!is_reading) {
      maru_tier_request request = {};
      request.ticket = kRead;
      request.kind = MARU_TIER_LOAD;
      read_key = order[next++];
      read_begin = Clock::now();
      submit(request, read_room, attributes, read_key);
      is_reading = true;
    }
    while (writes_a_second > 0 && !free_slots.empty() && double(written) < seconds_since(begin) * writes_a_second) {
      maru_tier_request request = {};
      request.ticket = free_slots.back();
      request.kind = MARU_TIER_STORE;
      write_keys[free_slots.back()] = next_key++;
      submit(request, write_room, write_attributes, write_keys[free_slots.back()]);
      free_slots.pop_back();
      ++written;
    }
    maru_tier_completion done = {};
    pollfd wait = {tier.event_descriptor(), POLLIN, 0};
    ::poll(&wait, 1, 1);
    while (tier.complete(&done, 1) == 1) {
      if (done.result != 0) throw std::runtime_error("a request failed: " + std::to_string(done.result));
      if (done.ticket != kRead) {
        free_slots.push_back(size_t(done.ticket));
        continue;
      }
      took.push_back(1e6 * seconds_since(read_begin));
      is_reading = false;
    }
  }
  while (free_slots.size() < kWrites) {
    maru_tier_completion done = {};
    if (tier.complete(&done, 1) == 1) free_slots.push_back(size_t(done.ticket));
  }
  std::sort(took.begin(), took.end());
  return took[took.size() * 99 / 100];
}

int run_beside(const std::string& folder, uint64_t bytes, uint64_t count) {
  const auto tier = open_or_throw("file", file_options(folder, bytes, 8 * count, 16));
  std::vector<uint64_t> order = keys_below(count);
  const double writes_a_second = Load(*tier, bytes, 16).run(MARU_TIER_STORE, order) / double(bytes);
  shuffle(order);
  uint64_t next_key = count;
  std::vector<double> idle, beside;
  for (int round = 0; round < 3; ++round) {  // in turns
    idle.push_back(p99_of_reads(*tier, bytes, order, 0, next_key));
    beside.push_back(p99_of_reads(*tier, bytes, order, writes_a_second / 2, next_key));
  }
  std::sort(idle.begin(), idle.end());
  std::sort(beside.begin(), beside.end());
  std::printf("{\"idle_us\": %.1f, \"beside_us\": %.1f, \"writes_a_second\": %.0f}\n", idle[1], beside[1],
              writes_a_second / 2);
  return 0;
}

// -- a restart after a kill ----------------------------------------------------------------------------------------------

constexpr uint64_t kSmallBytes = 4096;

[[noreturn]] void store_and_wait(const tierd::TierOptions& options, uint64_t count, int told) {
  const auto tier = open_or_throw("file", options);
  Load(*tier, kSmallBytes, 64).run(MARU_TIER_STORE, keys_below(count));
  (void)!::write(told, "x", 1);
  for (;;) ::pause();
}

// The bytes that a start has to look at, once: header, trailer and footer of each region, and a region without a footer whole.
double read_index_area(const tierd::TierOptions& options) {
  tierd::BlockFileWish wish;
  wish.path = options[0].second;
  wish.capacity_bytes = std::strtoull(options[1].second.c_str(), nullptr, 10);
  auto file = tierd::BlockFile::open(wish);
  if (!file) throw std::runtime_error(file.error().text());
  tierd::AlignedBytes whole(file->region_bytes()), block(tierd::kLogBlock);
  const Clock::time_point begin = Clock::now();
  for (uint64_t i = 0; i < file->regions(); ++i) {
    const uint64_t at = file->region_offset(i);
    if (!file->read(block.data(), block.size(), at)) continue;
    const auto sequence = tierd::read_region_sequence(block.all(), file->id(), uint32_t(i));
    if (!sequence) continue;
    (void)file->read(block.data(), block.size(), at + file->region_bytes() - block.size());
    const auto trailer = tierd::read_trailer(block.all(), file->id(), *sequence, file->region_bytes());
    if (trailer)
      (void)file->read(whole.data(), tierd::in_blocks(trailer->footer_bytes), at + trailer->footer_offset);
    else
      (void)file->read(whole.data(), whole.size(), at);
  }
  return 1000 * seconds_since(begin);
}

int run_restart(const std::string& folder, uint64_t count) {
  const tierd::TierOptions options = file_options(folder, kSmallBytes, count, 16);
  std::array<int, 2> told = {};
  if (::pipe(told.data()) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) store_and_wait(options, count, told[1]);
  char byte = 0;
  ::close(told[1]);
  const bool is_written = ::read(told[0], &byte, 1) == 1;
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  if (!is_written) throw std::runtime_error("the log was not written");
  (void)read_index_area(options);  // both read what has been read before
  const double processor_begin = processor_ms();
  const double floor_ms = read_index_area(options);
  const double processor_middle = processor_ms();
  const Clock::time_point begin = Clock::now();
  const auto tier = open_or_throw("file", options);
  const double open_ms = 1000 * seconds_since(begin);
  const double processor_end = processor_ms();
  std::printf(
      "{\"open_ms\": %.2f, \"floor_ms\": %.2f, \"open_processor_ms\": %.2f, \"floor_processor_ms\": %.2f, \"entries\": "
      "%llu}\n",
      open_ms, floor_ms, processor_end - processor_middle, processor_middle - processor_begin,
      static_cast<unsigned long long>(tier->usage().entries));
  return 0;
}

// -- Redis ---------------------------------------------------------------------------------------------------------------

// A client that does no more than the library: `depth` commands are under way, then one for each answer.
double pipeline(const std::string& socket, bool is_set, const std::string& value, uint64_t count, size_t depth) {
  const std::unique_ptr<redisContext, void (*)(redisContext*)> context(redisConnectUnix(socket.c_str()), redisFree);
  if (!context || context->err) throw std::runtime_error("the server does not answer");
  std::string room(value.size(), 0);
  uint64_t asked = 0;
  const auto ask = [&] {
    const std::string key = "floor " + std::to_string(asked++);
    if (is_set)
      redisAppendCommand(context.get(), "SET %b %b", key.data(), key.size(), value.data(), value.size());
    else
      redisAppendCommand(context.get(), "GET %b", key.data(), key.size());
  };
  const Clock::time_point begin = Clock::now();
  while (asked < std::min<uint64_t>(depth, count)) ask();
  for (uint64_t answered = 0; answered < count; ++answered) {
    void* reply = nullptr;
    if (redisGetReply(context.get(), &reply) != REDIS_OK) throw std::runtime_error(context->errstr);
    const auto& found = *static_cast<redisReply*>(reply);
    if (!is_set)
      std::memcpy(room.data(), found.str, std::min<size_t>(room.size(), size_t(found.len)));  // as a user would
    freeReplyObject(reply);
    if (asked < count) ask();
  }
  return double(value.size() * count) / seconds_since(begin);
}

int run_resp(const std::string& socket, uint64_t bytes, uint64_t count, size_t depth) {
  const auto tier = open_or_throw(
      "resp", {{"socket", socket}, {"depth_bytes", std::to_string(bytes * depth)}, {"timeout_ms", "60000"}});
  Load work(*tier, bytes, depth);
  const std::string value(bytes, 'v');
  struct Row {
    const char* name;
    std::function<double()> run;
    std::vector<double> rates = {}, processor = {};
  };
  std::array<Row, 4> rows = {Row{"store", [&] { return work.run(MARU_TIER_STORE, keys_below(count)); }},
                             Row{"floor_store", [&] { return pipeline(socket, true, value, count, depth); }},
                             Row{"load", [&] { return work.run(MARU_TIER_LOAD, keys_below(count)); }},
                             Row{"floor_load", [&] { return pipeline(socket, false, value, count, depth); }}};
  for (int round = 0; round < 3; ++round)  // in turns
    for (Row& row : rows) {
      const double before = processor_ms();
      row.rates.push_back(row.run());
      row.processor.push_back(processor_ms() - before);
    }
  const char* separator = "{";
  for (Row& row : rows) {
    std::sort(row.rates.begin(), row.rates.end());
    std::sort(row.processor.begin(), row.processor.end());
    std::printf("%s\"%s\": %.0f, \"%s_processor_ms\": %.1f", separator, row.name, row.rates[1], row.name,
                row.processor[1]);
    separator = ", ";
  }
  std::printf("}\n");
  return 0;
}

}  // namespace
}  // namespace maru::test

int main(int count, char** words) {
  using namespace maru::test;
  const std::string form = count > 1 ? words[1] : "";
  const auto number = [&](int i) { return std::strtoull(words[i], nullptr, 0); };
  if (form == "file" && count == 6) return run_file(words[2], number(3), number(4), number(5));
  if (form == "beside" && count == 5) return run_beside(words[2], number(3), number(4));
  if (form == "restart" && count == 4) return run_restart(words[2], number(3));
  if (form == "resp" && count == 6) return run_resp(words[2], number(3), number(4), number(5));
  return std::fprintf(stderr, "tier_speed file|beside|restart|resp ...; its first lines say what\n"), 2;
}
