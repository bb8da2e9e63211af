// The tier that goes wrong as a seed says, for tests and for trying an installation out. It wraps another tier:
//
//   kind = "fault"   inner = "file"   inner_path = "..."   seed = 7   flip = 10   hang = 1000
//
// Each fault has a rate, "one in so many requests", decided by seed and number of the request.
//
//   hang     the request never completes, until the tier is closed
//   eio      the request ends with -EIO
//   enospc   a store ends with -ENOSPC
//   short    a load fills half of its payload and says so
//   flip     a load has one wrong bit
//   slow     the request completes slow_ms later
//   gone     an entry that a lookup has found is absent when it is loaded
#include "daemon/tierd/tiers/built_in.h"
#include "daemon/tierd/tiers/completions.h"
#include "daemon/tierd/tiers/options.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unordered_map>
#include <vector>

namespace maru::tierd {
namespace {

using Clock = std::chrono::steady_clock;

enum class Fault : uint8_t { kNone, kHang, kEio, kEnospc, kShort, kFlip, kSlow, kGone };

struct Rates {
  uint64_t hang, eio, enospc, short_reads, flip, slow, gone, slow_ms, seed;
};

class FaultTier {
 public:
  FaultTier(const Rates& rates, const maru_tier_calls& inner) : rates_(rates), inner_(inner) {}
  ~FaultTier() {
    if (tier_) inner_.close(tier_);
  }
  FaultTier(const FaultTier&) = delete;
  FaultTier& operator=(const FaultTier&) = delete;

  int open(const std::vector<maru_tier_option>& options, char* problem, size_t problem_bytes) {
    poll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    if (!poll_.is_open() || !timer_.is_open() || !own_.is_open()) {
      std::snprintf(problem, problem_bytes, "no descriptor is left; raise the limit of open files");
      return -EMFILE;
    }
    if (const int result = inner_.open(options.data(), options.size(), &tier_, problem, problem_bytes); result != 0)
      return result;
    for (const int descriptor : {inner_.event_descriptor(tier_), timer_.get(), own_.descriptor()}) {
      epoll_event event = {};
      event.events = EPOLLIN;
      ::epoll_ctl(poll_.get(), EPOLL_CTL_ADD, descriptor, &event);
    }
    return 0;
  }

  int descriptor() const { return poll_.get(); }
  const maru_tier_calls& inner() const { return inner_; }
  maru_tier* tier() const { return tier_; }

  size_t submit(const maru_tier_request* requests, size_t n) {
    for (size_t i = 0; i < n; ++i) {
      const uint64_t number = requests_++;
      const Fault fault = choose(requests[i].kind, number);
      if (fault == Fault::kHang) continue;
      if (fault == Fault::kEio || fault == Fault::kEnospc || fault == Fault::kGone) {
        own_.put({requests[i].ticket,
                  fault == Fault::kEio    ? -EIO
                  : fault == Fault::kGone ? -ENOENT
                                          : -ENOSPC,
                  0, 0, 0});
        continue;
      }
      if (inner_.submit(tier_, &requests[i], 1) == 0) {
        requests_ = number;  // it comes again, and has the same fate
        return i;
      }
      if (fault != Fault::kNone) marked_[requests[i].ticket] = {fault, requests[i], number};
    }
    return n;
  }

  size_t complete(maru_tier_completion* ret_completions, size_t n) {
    size_t taken = own_.take(ret_completions, n);
    taken += inner_.complete(tier_, ret_completions + taken, n - taken);
    const size_t end = taken;
    taken = 0;
    for (size_t i = 0; i < end; ++i)
      if (spoil(ret_completions[i])) ret_completions[taken++] = ret_completions[i];
    const Clock::time_point now = Clock::now();
    while (taken < n && !late_.empty() && late_.front().first <= now) {
      ret_completions[taken++] = late_.front().second;
      late_.pop_front();
    }
    arm(now);
    return taken;
  }

 private:
  struct Marked {
    Fault fault;
    maru_tier_request request;
    uint64_t number;
  };

  uint64_t draw(uint64_t number, uint64_t what) const {
    uint64_t z = rates_.seed + 0x9e37'79b9'7f4a'7c15ull * (number * 16 + what + 1);
    z = (z ^ (z >> 30)) * 0xbf58'476d'1ce4'e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d0'49bb'1331'11ebull;
    return z ^ (z >> 31);
  }

  Fault choose(uint32_t kind, uint64_t number) const {
    const bool is_load = kind == MARU_TIER_LOAD, is_store = kind == MARU_TIER_STORE;
    const struct {
      Fault fault;
      uint64_t rate;
      bool applies;
    } faults[] = {{Fault::kHang, rates_.hang, true},         {Fault::kEio, rates_.eio, true},
                  {Fault::kEnospc, rates_.enospc, is_store}, {Fault::kShort, rates_.short_reads, is_load},
                  {Fault::kFlip, rates_.flip, is_load},      {Fault::kGone, rates_.gone, is_load},
                  {Fault::kSlow, rates_.slow, true}};
    for (const auto& [fault, rate, applies] : faults)
      if (applies && rate > 0 && draw(number, uint64_t(fault)) % rate == 0) return fault;
    return Fault::kNone;
  }

  // False: it comes later.
  bool spoil(maru_tier_completion& done) {
    const auto found = marked_.find(done.ticket);
    if (found == marked_.end()) return true;
    const Marked marked = found->second;
    marked_.erase(found);
    const maru_tier_request& request = marked.request;
    if (marked.fault == Fault::kSlow) {
      late_.emplace_back(Clock::now() + std::chrono::milliseconds(rates_.slow_ms), done);
      return false;
    }
    if (done.result != 0) return true;
    if (marked.fault == Fault::kShort) {
      done.payload_bytes /= 2;
      std::memset(static_cast<char*>(request.payload) + done.payload_bytes, 0,
                  request.payload_bytes - done.payload_bytes);
    }
    if (marked.fault == Fault::kFlip && request.payload_bytes > 0) {
      const uint64_t bit = draw(marked.number, 9) % (request.payload_bytes * 8);
      static_cast<unsigned char*>(request.payload)[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
    }
    return true;
  }

  void arm(Clock::time_point now) {
    itimerspec spec = {};
    if (!late_.empty()) {
      const auto wait = std::max<std::chrono::nanoseconds>(late_.front().first - now, std::chrono::nanoseconds(1));
      spec.it_value = {time_t(wait.count() / 1'000'000'000), long(wait.count() % 1'000'000'000)};
    }
    ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
    uint64_t ignored = 0;
    if (late_.empty()) (void)!::read(timer_.get(), &ignored, sizeof ignored);
  }

  const Rates rates_;
  const maru_tier_calls& inner_;
  maru_tier* tier_ = nullptr;
  FileDescriptor poll_, timer_;
  Completions own_;
  uint64_t requests_ = 0;
  std::unordered_map<uint64_t, Marked> marked_;
  std::deque<std::pair<Clock::time_point, maru_tier_completion>>
      late_;  // all wait equally long, so the first is the next
};

FaultTier& of(maru_tier* tier) { return *reinterpret_cast<FaultTier*>(tier); }

int open_fault(const maru_tier_option* options, size_t n, maru_tier** ret_tier, char* problem, size_t problem_bytes) {
  constexpr std::string_view kInner = "inner_";
  std::vector<maru_tier_option> own, inner;
  for (size_t i = 0; i < n; ++i) {
    if (std::string_view(options[i].name).starts_with(kInner))
      inner.push_back({options[i].name + kInner.size(), options[i].value});
    else
      own.push_back(options[i]);
  }
  OptionReader reader(own.data(), own.size());
  const std::string kind = reader.text("inner", "");
  const auto rate = [&](const char* name) { return reader.number(name, 0, 0, UINT32_MAX); };
  const Rates rates = {rate("hang"),  rate("eio"),     rate("enospc"),
                       rate("short"), rate("flip"),    rate("slow"),
                       rate("gone"),  rate("slow_ms"), reader.number("seed", 1, 0, UINT64_MAX)};
  std::string mistake =
      reader.mistake("inner, inner_NAME, seed, hang, eio, enospc, short, flip, slow, slow_ms or gone");
  const maru_tier_calls* const calls = built_in_tier(kind);
  if (mistake.empty() && calls == nullptr)
    mistake = "inner: found \"" + kind + "\", expected one of " + built_in_tier_names();
  if (!mistake.empty()) {
    std::snprintf(problem, problem_bytes, "%s", mistake.c_str());
    return -EINVAL;
  }
  auto tier = std::make_unique<FaultTier>(rates, *calls);
  if (const int result = tier->open(inner, problem, problem_bytes); result != 0) return result;
  *ret_tier = reinterpret_cast<maru_tier*>(tier.release());
  return 0;
}

}  // namespace

const maru_tier_calls kFaultTier = {
    .size = sizeof(maru_tier_calls),
    .abi = MARU_TIER_ABI,
    .reserved0 = 0,
    .name = "fault",
    .open = open_fault,
    .close = [](maru_tier* tier) { delete &of(tier); },
    .event_descriptor = [](maru_tier* tier) { return of(tier).descriptor(); },
    .submit = [](maru_tier* tier, const maru_tier_request* requests, size_t n) { return of(tier).submit(requests, n); },
    .complete = [](maru_tier* tier, maru_tier_completion* done, size_t n) { return of(tier).complete(done, n); },
    .get_properties =
        [](maru_tier* tier, maru_tier_properties* properties) {
          of(tier).inner().get_properties(of(tier).tier(), properties);
        },
    .get_usage = [](maru_tier* tier, maru_tier_usage* usage) { of(tier).inner().get_usage(of(tier).tier(), usage); },
    .get_health = [](maru_tier* tier,
                     maru_tier_health* health) { of(tier).inner().get_health(of(tier).tier(), health); },
    .list = [](maru_tier* tier, uint64_t* cursor, maru_tier_entry* entries,
               size_t n) { return of(tier).inner().list(of(tier).tier(), cursor, entries, n); },
    // The inner tier's properties say whether these may be called.
    .get_group = [](maru_tier* tier, const void* name, uint32_t name_bytes,
                    maru_tier_group* group) { of(tier).inner().get_group(of(tier).tier(), name, name_bytes, group); },
    .list_groups = [](maru_tier* tier, const maru_tier_group* after, maru_tier_group* groups,
                      size_t n) { return of(tier).inner().list_groups(of(tier).tier(), after, groups, n); },
    .list_oldest = [](maru_tier* tier, const void* name, uint32_t name_bytes, maru_tier_entry* entries,
                      size_t n) { return of(tier).inner().list_oldest(of(tier).tier(), name, name_bytes, entries, n); },
};

}  // namespace maru::tierd
