// Which of several ways to do one thing is the fastest on this machine. No list of processors stays true: 32-byte streaming
// stores are the best copy there is on one, twice as slow as memcpy on another. So the first large jobs of a process take turns
// and are timed; from then on the best way is the only one. The median of several times counts: others may have the core
// meanwhile, and memory that happens to lie in the cache favours the ways that go through it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <span>

namespace maru {

// Way is a pointer to a function. Among equally fast ways the way that was added first is the best. Any thread may call any
// function once all ways have been added.
template <typename Way, uint32_t kWaysMax>
class FastestWay {
 public:
  void add(Way way) { candidates_[count_++].way = way; }

  // Null as long as the ways take turns.
  Way best() const { return best_.load(std::memory_order_relaxed); }

  // One turn: its way, and how long the job took that the way did. The caller ends the turn when the job was large enough.
  struct Turn {
    uint32_t number;
    Way way;
  };
  Turn begin_turn() {
    const uint32_t number = turns_.fetch_add(1, std::memory_order_relaxed);
    return {number, candidates_[number % count_].way};
  }
  void end_turn(const Turn& turn, uint64_t ns, uint64_t bytes) {
    const uint64_t ns_per_mib = (ns << 20) / bytes;
    if (turn.number < count_ * kTurnsEach)
      candidates_[turn.number % count_].times[turn.number / count_].store(ns_per_mib, std::memory_order_relaxed);
    if (turn.number + 1 >= count_ * kTurnsEach) best_.store(fastest(), std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kTurnsEach = 7;
  struct Candidate {
    Way way = nullptr;
    std::array<std::atomic<uint64_t>, kTurnsEach> times = {};  // ns a MiB; 0 while another thread's turn is not over
    uint64_t median() const {
      std::array<uint64_t, kTurnsEach> sorted;
      for (uint32_t i = 0; i < kTurnsEach; ++i) sorted[i] = times[i].load(std::memory_order_relaxed);
      std::ranges::nth_element(sorted, sorted.begin() + kTurnsEach / 2);
      return sorted[kTurnsEach / 2];
    }
  };

  Way fastest() const {
    return std::ranges::min_element(std::span(candidates_).first(count_), {}, &Candidate::median)->way;
  }

  std::array<Candidate, kWaysMax> candidates_;
  uint32_t count_ = 0;
  std::atomic<uint32_t> turns_{0};
  std::atomic<Way> best_{nullptr};
};

inline uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

}  // namespace maru
