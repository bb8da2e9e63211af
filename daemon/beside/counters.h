// The numbers of a program beside marud, as Prometheus reads them.
//
// Thread safety: any thread may do everything. Samples are made while the program starts or when a part of it begins, and never
// go; the program keeps the references.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maru::daemon::beside {

// One number. Each value may be stale by a moment, which a graph does not show, so the accesses are relaxed.
class Sample {
 public:
  void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Durations in fixed buckets.
class Durations {
 public:
  static constexpr std::array<double, 8> kBoundsSeconds = {0.000'01, 0.000'1, 0.001, 0.01, 0.1, 1, 10, 100};

  void add(double seconds);
  uint64_t count(size_t bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  double sum_seconds() const { return double(sum_ns_.load(std::memory_order_relaxed)) / 1e9; }

 private:
  std::array<std::atomic<uint64_t>, kBoundsSeconds.size() + 1> counts_ = {};
  std::atomic<uint64_t> sum_ns_{0};
};

class Counters {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // The sample of this family with these labels: the same one for the same name and labels. A counter's name ends with
  // "_total". `help`: one line, of the first call for this name.
  Sample& counter(std::string_view name, std::string_view help, const Labels& labels = {});
  Sample& gauge(std::string_view name, std::string_view help, const Labels& labels = {});
  // The name ends with "_seconds".
  Durations& durations(std::string_view name, std::string_view help, const Labels& labels = {});

  // All of them, in the order in which their families were made.
  std::string text() const;

 private:
  struct Member {
    std::string labels;  // as text, without braces
    Sample sample;
    Durations durations;  // of a histogram alone
  };
  struct Family {
    std::string name, help;
    const char* type;
    std::deque<Member> members;  // which do not move
  };
  Member& member(std::string_view name, const char* type, std::string_view help, const Labels& labels);

  mutable std::mutex mutex_;  // of the lists, not of the numbers
  std::deque<Family> families_;
};

}  // namespace maru::daemon::beside
