// One open tier, built in or from a shared object, with its end.
#pragma once

#include "libmaru/base/result.h"
#include "maru/tier.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace maru::tierd {

using TierOptions = std::vector<std::pair<std::string, std::string>>;

class Tier {
 public:
  // `kind`: a built-in one, or the path of a shared object, which contains a '/'. An error names the finding,
  // the expectation and the remedy.
  static Result<std::unique_ptr<Tier>> open(const std::string& kind, const TierOptions& options);
  ~Tier();
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;

  int event_descriptor() { return calls_->event_descriptor(tier_); }
  size_t submit(const maru_tier_request* requests, size_t n) { return calls_->submit(tier_, requests, n); }
  size_t complete(maru_tier_completion* done, size_t n) { return calls_->complete(tier_, done, n); }
  maru_tier_properties properties() {
    maru_tier_properties found = {};
    calls_->get_properties(tier_, &found);
    return found;
  }
  maru_tier_usage usage() {
    maru_tier_usage found = {};
    calls_->get_usage(tier_, &found);
    return found;
  }
  maru_tier_health health() {
    maru_tier_health found = {};
    calls_->get_health(tier_, &found);
    found.text[sizeof found.text - 1] = 0;
    return found;
  }
  int list(uint64_t* cursor, maru_tier_entry* entries, size_t n) { return calls_->list(tier_, cursor, entries, n); }
  const char* kind() const { return calls_->name; }

  // Whether it tells each tenant's entries. Otherwise a tenant has nothing in it as far as the next three know.
  bool counts_groups() const { return counts_groups_; }
  maru_tier_group group(std::string_view name);
  std::vector<maru_tier_group> groups();
  // The oldest entries of a group, `n` at most: their keys, with the bytes that group() counts.
  std::vector<std::pair<std::string, uint64_t>> oldest(std::string_view name, size_t n);

 private:
  Tier(const maru_tier_calls* calls, void* library, maru_tier* tier);

  const maru_tier_calls* calls_;
  void* library_;  // null: built in
  maru_tier* tier_;
  bool counts_groups_ = false;
};

}  // namespace maru::tierd
