#include "daemon/tools/policy_sim/options.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <getopt.h>
#include <string>
#include <string_view>
#include <utility>

namespace maru::policy_sim {
namespace {

enum Option : int {
  kTrace = 1000,
  kPolicy,
  kPolicyDir,
  kPolicyOption,
  kSize,
  kPages,
  kRegions,
  kClients,
  kWatermarks,
  kRequests,
  kPlot,
  kJobs,
  kJson,
  kHelp,
  kVersion,
};

const option kLongOptions[] = {
    {"trace", required_argument, nullptr, kTrace},
    {"policy", required_argument, nullptr, kPolicy},
    {"policy-dir", required_argument, nullptr, kPolicyDir},
    {"option", required_argument, nullptr, kPolicyOption},
    {"size", required_argument, nullptr, kSize},
    {"pages", required_argument, nullptr, kPages},
    {"regions", required_argument, nullptr, kRegions},
    {"clients", required_argument, nullptr, kClients},
    {"watermarks", required_argument, nullptr, kWatermarks},
    {"requests", required_argument, nullptr, kRequests},
    {"plot", required_argument, nullptr, kPlot},
    {"jobs", required_argument, nullptr, kJobs},
    {"json", no_argument, nullptr, kJson},
    {"help", no_argument, nullptr, kHelp},
    {"version", no_argument, nullptr, kVersion},
    {nullptr, 0, nullptr, 0},
};

std::vector<std::string> parts_of(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    parts.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

tl::unexpected<Error> wrong(const char* option_name, const std::string& wants, const std::string& found) {
  return failure(EINVAL, std::string(option_name) + " wants " + wants + ", not \"" + found + "\"");
}

template <typename Number>
Result<Number> parse_number(const char* option_name, const std::string& text, Number least, Number most,
                            const std::string& wants) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stopped != end || !(value >= least && value <= most))
    return wrong(option_name, wants, text);
  return value;
}

Result<uint64_t> parse_whole(const char* option_name, const std::string& text, uint64_t least, uint64_t most) {
  return parse_number<uint64_t>(option_name, text, least, most,
                                "a whole number from " + std::to_string(least) + " to " + std::to_string(most));
}

Result<void> add_sizes(const std::string& text, std::vector<PoolSize>& sizes) {
  for (const std::string& part : parts_of(text)) {
    const Result<double> percent =
        parse_number<double>("--size", part, 0.0001, 1000, "percentages of the distinct blocks, above 0, with commas");
    if (!percent) return tl::unexpected<Error>(percent.error());
    sizes.push_back({*percent, 0});
  }
  return {};
}

Result<void> add_pages(const std::string& text, std::vector<PoolSize>& sizes) {
  for (const std::string& part : parts_of(text)) {
    const Result<uint64_t> pages = parse_whole("--pages", part, 1, 1u << 31);
    if (!pages) return tl::unexpected<Error>(pages.error());
    sizes.push_back({0, *pages});
  }
  return {};
}

Result<void> add_policy_option(const std::string& text, Options& options) {
  const size_t dot = text.find('.'), equals = text.find('=', dot == std::string::npos ? 0 : dot);
  if (dot == 0 || dot == std::string::npos || equals == std::string::npos || equals == dot + 1)
    return wrong("--option", "POLICY.NAME=VALUE, as in s3fifo.probation=0.1", text);
  options.policy_options[text.substr(0, dot)].emplace_back(text.substr(dot + 1, equals - dot - 1),
                                                           text.substr(equals + 1));
  return {};
}

Result<void> set_watermarks(const std::string& text, Options& options) {
  const std::vector<std::string> parts = parts_of(text);
  const char* const wants = "two percentages, HIGH,LOW, with 0 < LOW <= HIGH, 1 < HIGH <= 100, as in 90,80";
  if (parts.size() != 2) return wrong("--watermarks", wants, text);
  const Result<double> high = parse_number<double>("--watermarks", parts[0], 0.001, 100, wants);
  const Result<double> low = parse_number<double>("--watermarks", parts[1], 0.001, high ? *high : 100, wants);
  // marud itself takes shares, such as 0.9; as percentages they would be pools that are always empty.
  if (!high || !low || *high <= 1) return wrong("--watermarks", wants, text);
  options.high_watermark = *high / 100;
  options.low_watermark = *low / 100;
  return {};
}

// Checks the whole command line: an option for a policy that does not take part is a mistake.
Result<void> check(Options& options) {
  if (options.trace_path.empty()) return failure(EINVAL, "--trace is missing");
  if (options.policies.empty())
    for (const std::string_view name : daemon::built_in_policies()) options.policies.emplace_back(name);
  if (options.sizes.empty())
    for (const double percent : kDefaultPercents) options.sizes.push_back({percent, 0});
  for (const auto& [policy, unused] : options.policy_options)
    if (std::find(options.policies.begin(), options.policies.end(), policy) == options.policies.end())
      return failure(EINVAL, "--option is given for the policy \"" + policy + "\", which does not take part");
  for (const std::string& name : options.policies) {
    const daemon::PolicyOptions& of_policy = options.policy_options[name];
    if (const auto policy = daemon::make_policy(name, of_policy, options.policy_dir); !policy)
      return failure(EINVAL, "policy \"" + name + "\": " + policy.error().text());
  }
  return {};
}

}  // namespace

std::string PoolSize::text() const {
  if (percent <= 0) return std::to_string(pages);
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g %%", percent);
  return text;
}

constexpr size_t kColumns = 80;  // of a terminal

std::string usage() {
  std::string names, line = "Built in:";
  for (const std::string_view name : daemon::built_in_policies()) {
    if (line.size() + name.size() + 2 > kColumns) names += std::exchange(line, " ") + "\n";
    line += " " + std::string(name);
  }
  names += line;
  return R"(Usage: maru-policy-sim --trace FILE [options]

Replays a trace of requests against marud's eviction policies, on paper: how
many blocks each would find in pools of several sizes, beside Belady's
algorithm, which knows the future. Traces are in the format of Mooncake or of
Qwen-Bailian.

  --trace FILE         requests, one JSON object with "hash_ids" and "timestamp"
                       a line
  --policy NAME,...    policies (default: all that are built in)
  --option P.KEY=VALUE an option of policy P, as in marud's configuration; can
                       be repeated
  --policy-dir DIR     where policies that are not built in are loaded from
  --size PERCENT,...   sizes of the pool in percent of the distinct blocks
                       (default: 0.5,1,2,5,10,20,50)
  --pages N,...        sizes in pages; a block has one
  --regions N          regions of equal size that the pool is split into
                       (default 1)
  --clients N          clients that take turns; each evicts from its own regions
                       first (default 1)
  --watermarks H,L     evict between requests, from H percent in use down to L
                       (default: only when a client asks)
  --requests N         stop after the first N requests of the trace
  --plot FILE          draw the hit ratios into FILE, as SVG
  --jobs N             simulations that run at once (default: as many as there
                       are CPUs)
  --json               print the result as one JSON object
  --help, --version

)" + names +
         R"(

Exit status: 0 done; 1 the trace cannot be read, or the plot not written; 2 the
command line is wrong.
)";
}

Result<Options> parse_options(int argc, char** argv) {
  Options options;
  opterr = 0;
  const auto whole = [](const char* name, uint64_t least, uint64_t most, auto& ret) -> Result<void> {
    const Result<uint64_t> number = parse_whole(name, optarg, least, most);
    if (!number) return tl::unexpected<Error>(number.error());
    ret = std::remove_reference_t<decltype(ret)>(*number);
    return {};
  };
  for (int chosen; (chosen = ::getopt_long(argc, argv, "", kLongOptions, nullptr)) != -1;) {
    Result<void> read;
    switch (chosen) {
      case kTrace: options.trace_path = optarg; break;
      case kPolicy:
        for (std::string& name : parts_of(optarg)) options.policies.push_back(std::move(name));
        break;
      case kPolicyDir: options.policy_dir = optarg; break;
      case kPolicyOption: read = add_policy_option(optarg, options); break;
      case kSize: read = add_sizes(optarg, options.sizes); break;
      case kPages: read = add_pages(optarg, options.sizes); break;
      case kRegions: read = whole("--regions", 1, kRegionsMax, options.regions); break;
      case kClients: read = whole("--clients", 1, kClientsMax, options.clients); break;
      case kWatermarks: read = set_watermarks(optarg, options); break;
      case kRequests: read = whole("--requests", 1, UINT64_MAX, options.requests_max); break;
      case kPlot: options.plot_path = optarg; break;
      case kJobs: read = whole("--jobs", 1, kJobsMax, options.jobs); break;
      case kJson: options.json = true; break;
      case kHelp: options.help = true; return options;
      case kVersion: options.version = true; return options;
      default: return failure(EINVAL, std::string("unknown option, or one without its argument: ") + argv[optind - 1]);
    }
    if (!read) return tl::unexpected<Error>(read.error());
  }
  if (optind < argc) return failure(EINVAL, std::string("unexpected argument ") + argv[optind]);
  if (const Result<void> checked = check(options); !checked) return tl::unexpected<Error>(checked.error());
  return options;
}

}  // namespace maru::policy_sim
