#include "daemon/options.h"

#include "daemon/base/size_text.h"
#include "daemon/config/limits.h"
#include "daemon/memory/numa_nodes.h"
#include "daemon/system/control_group.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <getopt.h>
#include <iterator>
#include <numa.h>
#include <sys/un.h>
#include <utility>

namespace maru::daemon {
namespace {

enum Flag : int {
  kFlagConfig = 1000,
  kFlagCheckConfig,
  kFlagListDevices,
  kFlagMemory,
  kFlagFile,
  kFlagSize,
  kFlagPageBytes,
  kFlagRegionBytes,
  kFlagLanes,
  kFlagPins,
  kFlagSocket,
  kFlagStateDir,
  kFlagPool,
  kFlagLogLevel,
  kFlagForeground,
  kFlagChecksums,
  kFlagMaxRegions,
  kFlagPolicy,
  kFlagPolicyOption,
  kFlagHighWatermark,
  kFlagLowWatermark,
  kFlagFormat,
  kFlagForce,
  kFlagBootId,
  kFlagMachineId,
  kFlagHelp,
  kFlagVersion,
};

constexpr option kFlags[] = {
    {"config", required_argument, nullptr, kFlagConfig},
    {"check-config", no_argument, nullptr, kFlagCheckConfig},
    {"list-devices", no_argument, nullptr, kFlagListDevices},
    {"memory", required_argument, nullptr, kFlagMemory},
    {"file", required_argument, nullptr, kFlagFile},
    {"size", required_argument, nullptr, kFlagSize},
    {"page-bytes", required_argument, nullptr, kFlagPageBytes},
    {"region-bytes", required_argument, nullptr, kFlagRegionBytes},
    {"lanes", required_argument, nullptr, kFlagLanes},
    {"pins", required_argument, nullptr, kFlagPins},
    {"socket", required_argument, nullptr, kFlagSocket},
    {"state-dir", required_argument, nullptr, kFlagStateDir},
    {"pool", required_argument, nullptr, kFlagPool},
    {"log-level", required_argument, nullptr, kFlagLogLevel},
    {"foreground", no_argument, nullptr, kFlagForeground},
    {"checksums", no_argument, nullptr, kFlagChecksums},
    {"max-regions", required_argument, nullptr, kFlagMaxRegions},
    {"policy", required_argument, nullptr, kFlagPolicy},
    {"policy-option", required_argument, nullptr, kFlagPolicyOption},
    {"high-watermark", required_argument, nullptr, kFlagHighWatermark},
    {"low-watermark", required_argument, nullptr, kFlagLowWatermark},
    {"format", required_argument, nullptr, kFlagFormat},
    {"force", no_argument, nullptr, kFlagForce},
    {"boot-id", required_argument, nullptr, kFlagBootId},
    {"machine-id", required_argument, nullptr, kFlagMachineId},
    {"help", no_argument, nullptr, kFlagHelp},
    {"version", no_argument, nullptr, kFlagVersion},
    {nullptr, 0, nullptr, 0},
};

std::string absolute(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  char* here = ::realpath(".", nullptr);
  const std::string out = std::string(here ? here : "") + "/" + path;
  std::free(here);
  return out;
}

uint64_t read_size(const char* flag, const char* text, std::vector<std::string>& problems) {
  const auto bytes = parse_size(text);
  if (bytes && *bytes > 0) return *bytes;
  problems.push_back(std::string(flag) + ": found \"" + printable(text) +
                     "\", expected a size above zero, such as 64KiB or 1GiB");
  return 0;
}

uint32_t read_number(const char* flag, const char* text, uint32_t least, std::vector<std::string>& problems) {
  char* end = nullptr;
  const long value = std::strtol(text, &end, 10);
  if (end != text && *end == 0 && value >= long(least) && value <= INT32_MAX) return uint32_t(value);
  problems.push_back(std::string(flag) + ": found \"" + printable(text) + "\", expected a number from " +
                     std::to_string(least) + " to " + std::to_string(INT32_MAX));
  return 0;
}

double read_fraction(const char* flag, const char* text, std::vector<std::string>& problems) {
  double value = 0;
  const char* end = text + std::strlen(text);
  const auto read = std::from_chars(text, end, value);
  if (read.ec == std::errc() && read.ptr == end && value > 0 && value <= 1) return value;
  problems.push_back(std::string(flag) + ": found \"" + printable(text) +
                     "\", expected a number above 0 and up to 1, such as 0.8");
  return 0.5;  // a value that is always right: the problem is reported
}

void read_policy_option(const std::string& text, PolicyOptions& options, std::vector<std::string>& problems) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos || options.size() >= kPolicyOptionsMax)
    problems.push_back("--policy-option: found \"" + printable(text) + "\", expected NAME=VALUE, at most " +
                       std::to_string(kPolicyOptionsMax) + " of them");
  else
    options.emplace_back(text.substr(0, equals), text.substr(equals + 1));
}

// "-memory", where "--memory" is meant.
bool is_long_option(const char* word) {
  return std::any_of(std::begin(kFlags), std::end(kFlags), [&](const option& flag) {
    return flag.name && word[0] == '-' && std::strcmp(word + 1, flag.name) == 0;
  });
}

}  // namespace

const char* const kHelpText =
    R"(usage: marud --memory SIZE [options]
       marud --file PATH --size SIZE [options]
       marud --config FILE [--check-config] [options]
       marud --config FILE --list-devices
       marud --config FILE --format POOL [--force]

Serves pools of shared memory to processes that share KV blocks.

The pool, on the command line:
  --memory SIZE         a pool in memory; it lives as long as marud or a client
  --file PATH           a pool in a file: tmpfs, hugetlbfs, DAX, or any other
  --size SIZE           of the file; not needed when it exists
  --pool NAME           its name (default: "default")
  --page-bytes SIZE     unit of allocation, a power of two from 4KiB to 4MiB
                        (default: 2MiB, or 64KiB for a pool under 4GiB)
  --region-bytes SIZE   what a client rents at a time, a power of two
                        (default: 256MiB, or a sixteenth of a smaller pool)
  --lanes N             clients at a time, counting marud itself
                        (default: 256, fewer in a small pool)
  --pins N              blocks that a client can hold, a power of two
                        (default: 16384, fewer in a small pool)
  --max-regions N       regions that a client may rent (default: no limit)
  --checksums           blocks carry a checksum, and readers verify it
  --policy NAME         what is evicted first (default: lru); marud.toml(5)
                        lists the policies
  --policy-option NAME=VALUE
                        of the policy; may be given several times
  --high-watermark F    share of the pool that is in use when eviction begins in
                        the background (default: 0.90); 1: never
  --low-watermark F     where it ends (default: 0.80)

Or in a file, which can describe several:
  --config FILE         TOML; see marud.toml(5)
  --check-config        say all that is wrong with the configuration, and exit
  --list-devices        print the devices below /dev that pools name by their
                        paths, and exit
  --format POOL         format the DAX device of this pool, and exit; the device
                        must be blank
  --force               with --format: whatever the device holds, which is lost

Always:
  --socket PATH         where clients connect; by default marud/marud.sock in
                        $XDG_RUNTIME_DIR, else in /run for root and in
                        /run/user/UID for others
  --state-dir PATH      what marud must know again after a restart
                        (default: "state" beside the socket)
  --log-level LEVEL     debug, info (default), warning or error
  --foreground          accepted for clarity: marud never leaves the foreground
  --boot-id UUID        what shared pools take this host's boot id for; for
                        containers and tests, as the next one
  --machine-id TEXT     and its machine id
  --help, --version

SIZE is a number of bytes, or one with KiB, MiB, GiB or TiB.

Signals: SIGTERM and SIGINT stop marud; clients keep the memory and hand it to
the next marud. SIGHUP reads the configuration again (log level, admin group,
grace for adoption, access lists, limits of users, new pools); the rest waits
for a restart.

Exit status: 0 stopped as asked, or the configuration is good; 1 the
configuration is bad, or marud cannot serve; 2 the command line is wrong.
)";

namespace {

// An option that was the last word and needs a value: "--memory SIZE", as the help text has it.
std::string with_value(int flag) {
  const auto* found =
      std::find_if(std::begin(kFlags), std::end(kFlags) - 1, [&](const option& one) { return one.val == flag; });
  const std::string name = std::string("--") + found->name + " ";
  const std::string_view help = kHelpText;
  const size_t begins = help.find("  " + name);
  if (begins == std::string_view::npos) return name + "VALUE";
  const std::string_view value = help.substr(begins + 2 + name.size());
  return name + std::string(value.substr(0, value.find_first_of(" \n,")));
}

}  // namespace

Options parse_options(int count, char** arguments, std::vector<std::string>& problems) {
  Options options;
  PoolSpec spec = default_pool_spec();
  spec.pool.policy_dir = kPolicyDir;
  bool describes_pool = false, has_memory = false, has_size = false, lacks_value = false;
  opterr = 0;
  optind = 1;
  const char* refused = nullptr;  // the last word whose letters are no options
  while (true) {
    const int begins = optind;
    const int flag = ::getopt_long(count, arguments, "+:", kFlags, nullptr);
    if (flag < 0) break;
    const char* value = optarg ? optarg : "";
    describes_pool |= (flag >= kFlagMemory && flag <= kFlagPins) || flag == kFlagPool || flag == kFlagChecksums ||
                      (flag >= kFlagMaxRegions && flag <= kFlagLowWatermark);
    switch (flag) {
      case kFlagConfig: options.config_path = absolute(value); break;
      case kFlagCheckConfig: options.action = Options::Action::kCheckConfig; break;
      case kFlagListDevices: options.action = Options::Action::kListDevices; break;
      case kFlagMemory:
        has_memory = true;
        spec.bytes = read_size("--memory", value, problems);
        break;
      case kFlagFile:
        spec.backend = Backend::kFile;
        spec.path = absolute(value);
        break;
      case kFlagSize:
        has_size = true;
        spec.bytes = read_size("--size", value, problems);
        break;
      case kFlagPageBytes: spec.pool.page_bytes = read_size("--page-bytes", value, problems); break;
      case kFlagRegionBytes: spec.pool.region_bytes = read_size("--region-bytes", value, problems); break;
      case kFlagLanes: spec.pool.lanes = read_number("--lanes", value, 2, problems); break;
      case kFlagPins: spec.pool.pins_max = read_number("--pins", value, 1, problems); break;
      case kFlagSocket: options.socket_path = absolute(value); break;
      case kFlagStateDir: options.state_dir = absolute(value); break;
      case kFlagPool: spec.pool.name = value; break;
      case kFlagLogLevel:
        options.log_level = log_level_from(value);
        if (!options.log_level)
          problems.push_back("--log-level: found \"" + printable(value) + "\", expected debug, info, warning or error");
        break;
      case kFlagForeground: break;
      case kFlagChecksums: spec.pool.checksums = true; break;
      case kFlagMaxRegions:
        spec.pool.max_regions_per_instance = read_number("--max-regions", value, 0, problems);
        break;
      case kFlagPolicy: spec.pool.policy = value; break;
      case kFlagPolicyOption: read_policy_option(value, spec.pool.policy_options, problems); break;
      case kFlagHighWatermark: spec.pool.high_watermark = read_fraction("--high-watermark", value, problems); break;
      case kFlagLowWatermark: spec.pool.low_watermark = read_fraction("--low-watermark", value, problems); break;
      case kFlagFormat:
        options.action = Options::Action::kFormat;
        options.format_pool = value;
        break;
      case kFlagForce: options.force = true; break;
      case kFlagBootId: options.boot_id = value; break;
      case kFlagMachineId: options.machine_id = value; break;
      case kFlagHelp: options.action = Options::Action::kHelp; return options;
      case kFlagVersion: options.action = Options::Action::kVersion; return options;
      case ':':
        lacks_value = true;
        problems.push_back("found \"" + printable(arguments[optind - 1]) + "\" without a value, expected \"" +
                           with_value(optopt) + "\"; see --help");
        break;
      default: {
        // A word with one '-' is taken letter by letter, and is told of once. Only when its last letter is taken is it over.
        const char* word = arguments[optind == begins ? optind : optind - 1];
        if (std::exchange(refused, word) == word) break;
        problems.push_back("found \"" + printable(word) + "\", expected " +
                           (is_long_option(word) ? "\"-" + printable(word) + "\"" : "an option with its value") +
                           "; see --help");
      }
    }
  }
  if (optind < count)
    problems.push_back("found \"" + printable(arguments[optind]) + "\", expected only options; see --help");
  const bool has_file = spec.backend == Backend::kFile;
  if (options.config_path && describes_pool)
    problems.push_back("found --config and options of a pool, expected one of them");
  else if (!options.config_path && !has_memory && !has_file && !lacks_value)
    problems.push_back("found no pool, expected --memory SIZE, --file PATH or --config FILE; see --help");
  if (has_memory && has_file) problems.push_back("found --memory and --file, expected one of them");
  if (!options.format_pool.empty() && !options.config_path)
    problems.push_back("found --format without --config, expected a file that describes the pool");
  if (options.action == Options::Action::kListDevices && !options.config_path)
    problems.push_back("found --list-devices without --config, expected a file that describes pools");
  if (options.force && options.format_pool.empty()) problems.push_back("found --force without --format POOL");
  if (has_size && !has_file) problems.push_back("found --size without --file");
  const auto is_hex = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0 || c == '-'; });
  };
  if (options.boot_id.size() > 36 || !is_hex(options.boot_id))
    problems.push_back("--boot-id: found \"" + printable(options.boot_id) + "\", expected a UUID");
  if (options.machine_id.size() > 64 || !is_hex(options.machine_id))
    problems.push_back("--machine-id: found \"" + printable(options.machine_id) + "\", expected hexadecimal digits");
  if (!options.config_path) options.pool = spec;
  return options;
}

std::string problem_text(const Options& options, const ConfigProblem& problem) {
  const std::string file = options.config_path.value_or("command line");
  return file + (problem.line > 0 ? ":" + std::to_string(problem.line) : "") + ": " + problem.text;
}

namespace {

// The check of nodes that marud makes when it makes a pool. A node may come with a device that is made before that.
void check_nodes(const Config& config, std::vector<ConfigProblem>& problems) {
  const auto makes_node = [](const provision::Wish& wish) { return wish.is_system_ram; };
  if (::numa_available() < 0 || std::any_of(config.wishes.begin(), config.wishes.end(), makes_node)) return;
  const std::set<int> there = nodes_with_memory();
  for (const PoolSpec& spec : config.pools)
    for (const int node : spec.numa.nodes)
      if (!there.contains(node))
        problems.push_back({line_of(spec, spec.lines.contains("numa_node") ? "numa_node" : "numa_nodes"),
                            "pool \"" + printable(spec.pool.name) + "\": " + no_memory_text(node, there)});
}

// The file's socket was checked as the file was read.
void check_socket(const Options& options, const Config& config, std::vector<ConfigProblem>& problems) {
  constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
  const std::string& path = config.socket_path;
  const bool is_of_file = !options.socket_path && path != default_runtime_dir() + "/marud.sock";
  if (is_of_file || (!path.empty() && path.size() <= kSocketPathMax)) return;
  problems.push_back({0, std::string(options.socket_path ? "--socket" : "socket") + ": found \"" + printable(path) +
                             "\", expected a path of at most " + std::to_string(kSocketPathMax) + " bytes"});
}

// Compares the memory that pools take when they are made, in the end all of it, with the machine's memory. The free memory of
// this moment says nothing: it is another moment then. A node that comes with a device has memory of its own.
void check_memory_of_machine(const Config& config, std::vector<ConfigProblem>& problems) {
  const auto makes_memory = [](const provision::Wish& wish) { return wish.is_system_ram; };
  const uint64_t most = memory_of_machine();
  if (most == 0 || std::any_of(config.wishes.begin(), config.wishes.end(), makes_memory)) return;
  uint64_t bytes = 0;
  for (const PoolSpec& spec : config.pools) {
    if (spec.backend != Backend::kMemory) continue;
    if (!spec.numa.first_touch && spec.huge_pages != HugePages::kRequire) continue;
    const bool was_enough = bytes <= most;
    bytes += spec.bytes;
    if (was_enough && bytes > most)
      problems.push_back({line_of(spec, "size"), "pool \"" + printable(spec.pool.name) + "\": size: found " +
                                                     size_text(spec.bytes) +
                                                     ", with which pools of first_touch or of "
                                                     "huge pages have " +
                                                     size_text(bytes) +
                                                     ", expected no more than "
                                                     "the " +
                                                     size_text(most) + " of memory that this machine has"});
  }
}

}  // namespace

Config effective_config(const Options& options, std::vector<ConfigProblem>& problems) {
  Config config;
  if (options.config_path) {
    config = read_config(*options.config_path, problems);
  } else {
    config.socket_path = default_runtime_dir() + "/marud.sock";
    config.pools.push_back(*options.pool);
    check_pools(config.pools, problems);
  }
  config.subordinate_users = SubordinateUsers::of_this_machine();
  check_policies(config.pools, problems);
  for (PoolSpec& spec : config.pools) {
    spec.pool.sharing.boot_id = options.boot_id;
    spec.pool.sharing.machine_id = options.machine_id;
  }
  if (options.socket_path) config.socket_path = *options.socket_path;
  check_socket(options, config, problems);
  if (options.state_dir)
    config.state_dir = *options.state_dir;
  else if (!options.config_path || config.state_dir_is_default)
    config.state_dir = default_state_dir(config.socket_path);
  if (options.log_level) config.log_level = *options.log_level;
  const bool is_check = options.action == Options::Action::kCheckConfig;
  check_http(config, is_check, problems);
  if (is_check) {
    check_nodes(config, problems);
    check_limits_of_bytes(config, problems);
    check_memory_of_machine(config, problems);
  }
  return config;
}

}  // namespace maru::daemon
