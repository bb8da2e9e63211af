#include "daemon/tools/replay/recorded_calls.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <maru/maru.hpp>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace maru::replay {
namespace {

using Clock = std::chrono::steady_clock;
using format::Recorded;

struct KeyHash {
  size_t operator()(const RecordedKey& key) const { return key.low; }
};
struct KeyEqual {
  bool operator()(const RecordedKey& a, const RecordedKey& b) const { return a.low == b.low && a.high == b.high; }
};

bool is_change(Recorded operation) {
  return operation == Recorded::kStore || operation == Recorded::kStoreChain || operation == Recorded::kDelete ||
         operation == Recorded::kDeleteTree;
}

bool is_played(Recorded operation) {
  return is_change(operation) || operation == Recorded::kExists || operation == Recorded::kMatch ||
         operation == Recorded::kRetrieve || operation == Recorded::kPin;
}

// For each call the earlier calls that it waits for, of other threads.
std::vector<std::vector<uint32_t>> dependencies_of(const std::vector<RecordedCall>& calls) {
  struct Touched {
    int64_t changed_by = -1;
    std::vector<uint32_t> asked_by;  // since
  };
  std::unordered_map<RecordedKey, Touched, KeyHash, KeyEqual> touched;
  std::vector<std::vector<uint32_t>> dependencies(calls.size());
  for (uint32_t i = 0; i < calls.size(); ++i) {
    if (!is_played(calls[i].operation)) continue;
    auto& waits = dependencies[i];
    const auto depend = [&](const RecordedKey& key, bool changes) {
      Touched& place = touched[key];
      if (place.changed_by >= 0) waits.push_back(uint32_t(place.changed_by));
      if (!changes) return place.asked_by.push_back(i);
      waits.insert(waits.end(), place.asked_by.begin(), place.asked_by.end());
      place.asked_by.clear();
      place.changed_by = i;
    };
    for (const RecordedKey& key : calls[i].keys) depend(key, is_change(calls[i].operation));
    if (calls[i].parent) depend(*calls[i].parent, false);
    std::sort(waits.begin(), waits.end());
    waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
    std::erase_if(waits, [&](uint32_t earlier) { return earlier == i || calls[earlier].actor == calls[i].actor; });
  }
  return dependencies;
}

maru_key key_of(const RecordedKey& key) { return {&key, sizeof(key), MARU_KEY_DIGEST128, 0}; }

// One thread of a recorded client.
class Actor {
 public:
  Actor(maru_client* client, uint64_t payload_bytes_max) : client_(client), payload_bytes_max_(payload_bytes_max) {}

  // Returns the result, as format::Record defines it.
  int play(const RecordedCall& call) {
    keys_.clear();
    for (const RecordedKey& key : call.keys) keys_.push_back(key_of(key));
    switch (call.operation) {
      case Recorded::kExists: return exists();
      case Recorded::kMatch: return match();
      case Recorded::kRetrieve:
      case Recorded::kPin: return retrieve(call.operation == Recorded::kPin);
      case Recorded::kStore: return store(call, false);
      case Recorded::kStoreChain: return store(call, true);
      case Recorded::kDelete: return erase();
      case Recorded::kDeleteTree: return keys_.empty() ? 0 : maru_delete_tree(client_.get(), keys_.data(), nullptr);
      default: return 0;
    }
  }

 private:
  struct Detach {
    void operator()(maru_client* client) const { maru_detach(client); }
  };

  int exists() {
    present_.resize(keys_.size());
    return maru_exists_batch(client_.get(), keys_.data(), keys_.size(), present_.data());
  }

  int match() {
    maru_match match = {};
    if (const int result = maru_match_prefix(client_.get(), keys_.data(), keys_.size(), &match); result != 0)
      return result;
    const int found = int(match.blocks);
    maru_release_match(client_.get(), &match);
    return found;
  }

  int retrieve(bool only_pins) {
    views_.resize(keys_.size());
    const int found = only_pins ? maru_pin_batch(client_.get(), keys_.data(), keys_.size(), views_.data())
                                : maru_retrieve_batch(client_.get(), keys_.data(), keys_.size(), views_.data());
    if (found < 0) return found;
    std::erase_if(views_, [](const maru_view& view) { return view.data == nullptr; });
    maru_release_batch(client_.get(), views_.data(), views_.size());
    return found;
  }

  int store(const RecordedCall& call, bool is_chain) {
    const uint64_t bytes = std::max<uint64_t>(
        payload_bytes_max_ != 0 ? std::min(call.block_bytes, payload_bytes_max_) : call.block_bytes, 1);
    if (content_.size() < bytes) content_.resize(bytes, char(0x5a));
    maru_store_options options = {};
    options.size = sizeof(options);
    maru_key parent = call.parent ? key_of(*call.parent) : maru_key{};
    if (call.parent) options.parent_key = &parent;
    int stored = 0;
    for (const maru_key& key : keys_) {
      const int result = maru_store_copy(client_.get(), &key, content_.data(), bytes, &options, nullptr);
      if (result < 0) return stored > 0 && is_chain ? stored : result;
      ++stored;
      if (!is_chain) continue;
      parent = key;
      options.parent_key = &parent;
    }
    return is_chain ? stored : 0;
  }

  int erase() {
    if (keys_.size() == 1) return maru_delete(client_.get(), keys_.data());
    return maru_delete_batch(client_.get(), keys_.data(), keys_.size(), nullptr);
  }

  std::unique_ptr<maru_client, Detach> client_;
  const uint64_t payload_bytes_max_;
  std::vector<maru_key> keys_;
  std::vector<maru_view> views_;
  std::vector<uint8_t> present_;
  std::vector<char> content_;
};

uint64_t found_of(const RecordedCall& call, int result) {
  if (result < 0) return 0;
  switch (call.operation) {
    case Recorded::kExists:
    case Recorded::kRetrieve:
    case Recorded::kPin:
    case Recorded::kMatch:
    case Recorded::kStoreChain: return uint64_t(result);
    case Recorded::kStore: return call.keys.size();
    default: return 0;
  }
}

// Whether two results say the same. Of a single key 1 and a length mean "there"; of a store 0 and 1 mean "it is there now".
bool is_same(const RecordedCall& call, int result) {
  if ((call.result < 0) != (result < 0)) return false;
  if (result < 0) return call.result == result;
  if (is_change(call.operation) && call.operation != Recorded::kStoreChain) return true;
  return call.result == result;
}

class Player {
 public:
  Player(const Recordings& recordings, const CallSettings& settings, CallReport& report)
      : calls_(recordings.calls),
        settings_(settings),
        report_(report),
        done_(new std::atomic<uint32_t>[calls_.size()]) {
    for (size_t i = 0; i < calls_.size(); ++i) done_[i].store(0, std::memory_order_relaxed);
    if (settings.order == Order::kDependency) dependencies_ = dependencies_of(calls_);
    of_actor_.resize(recordings.actors);
    for (uint32_t i = 0; i < calls_.size(); ++i)
      if (is_played(calls_[i].operation)) of_actor_[calls_[i].actor].push_back(i);
  }

  Result<void> run() {
    std::vector<std::unique_ptr<Actor>> actors;
    maru_attach_options options = {};
    options.size = sizeof(options);
    if (!settings_.socket_path.empty()) options.socket_path = settings_.socket_path.c_str();
    if (!settings_.pool.empty()) options.pool = settings_.pool.c_str();
    for (const auto& calls : of_actor_) {
      maru_client* client = nullptr;
      if (const int result = calls.empty() ? 0 : maru_attach(&options, &client); result != 0)
        return failure(-result, "attach to the pool");
      actors.push_back(client != nullptr ? std::make_unique<Actor>(client, settings_.payload_bytes_max) : nullptr);
    }
    const Clock::time_point begin = Clock::now();
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < actors.size(); ++i) {
      if (!actors[i]) continue;
      threads.emplace_back([this, &actor = *actors[i], &calls = of_actor_[i], begin] { run(actor, calls, begin); });
    }
    threads.clear();
    report_.took_ns = uint64_t(std::chrono::nanoseconds(Clock::now() - begin).count());
    if (!calls_.empty()) report_.recorded_ns = calls_.back().at_ns + calls_.back().took_ns;
    return {};
  }

 private:
  void run(Actor& actor, const std::vector<uint32_t>& calls, Clock::time_point begin) {
    for (const uint32_t index : calls) {
      const RecordedCall& call = calls_[index];
      if (settings_.order == Order::kTime)
        std::this_thread::sleep_until(begin + std::chrono::nanoseconds(int64_t(double(call.at_ns) / settings_.speed)));
      if (!dependencies_.empty())
        for (const uint32_t earlier : dependencies_[index]) done_[earlier].wait(0, std::memory_order_acquire);
      const Clock::time_point begun = Clock::now();
      const int result = actor.play(call);
      const uint64_t took = uint64_t(std::chrono::nanoseconds(Clock::now() - begun).count());
      note(call, result, took);
      done_[index].store(1, std::memory_order_release);
      done_[index].notify_all();
    }
  }

  void note(const RecordedCall& call, int result, uint64_t took_ns) {
    const std::lock_guard lock(noting_);
    CallReport::OfOperation& of = report_.of[size_t(call.operation)];
    ++of.calls;
    of.same += is_same(call, result);
    of.keys += call.keys.size();
    of.recorded_found += found_of(call, call.result);
    of.found += found_of(call, result);
    of.errors += result < 0 && result != -ENOENT;
    of.recorded_errors += call.result < 0 && call.result != -ENOENT;
    of.latency.record(took_ns);
  }

  const std::vector<RecordedCall>& calls_;
  const CallSettings& settings_;
  CallReport& report_;
  std::unique_ptr<std::atomic<uint32_t>[]> done_;
  std::vector<std::vector<uint32_t>> dependencies_, of_actor_;
  std::mutex noting_;
};

}  // namespace

Result<void> play(const Recordings& recordings, const CallSettings& settings, CallReport& report) {
  return Player(recordings, settings, report).run();
}

}  // namespace maru::replay
