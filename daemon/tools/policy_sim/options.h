// The options of maru-policy-sim.
#pragma once

#include "daemon/policy/policies.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace maru::policy_sim {

// How large a pool is: a share of the distinct blocks of the trace, or a number of pages.
struct PoolSize {
  double percent = 0;  // 0: `pages` says it
  uint64_t pages = 0;

  uint64_t pages_of(uint64_t distinct_blocks) const {
    return percent > 0 ? uint64_t(double(distinct_blocks) * percent / 100) : pages;
  }
  std::string text() const;
};

struct Options {
  std::string trace_path;
  std::vector<std::string> policies;                            // empty: all that are built in
  std::vector<PoolSize> sizes;                                  // empty: kDefaultPercents
  std::map<std::string, daemon::PolicyOptions> policy_options;  // by policy
  std::string policy_dir;
  std::string plot_path;      // empty: none
  uint64_t requests_max = 0;  // 0: the whole trace
  uint32_t regions = 1;
  uint32_t clients = 1;
  double high_watermark = 1, low_watermark = 1;  // shares
  uint32_t jobs = 0;                             // 0: as many as there are CPUs
  bool json = false;

  bool help = false;
  bool version = false;
};

inline constexpr uint32_t kRegionsMax = 4096;
inline constexpr uint32_t kClientsMax = 1024;
inline constexpr uint32_t kJobsMax = 64;
inline constexpr double kDefaultPercents[] = {0.5, 1, 2, 5, 10, 20, 50};

// The error names the wrong option, its value and the expected value.
Result<Options> parse_options(int argc, char** argv);

std::string usage();

}  // namespace maru::policy_sim
