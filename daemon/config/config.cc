#include "daemon/config/config.h"

#include "daemon/base/request_fields.h"
#include "daemon/base/size_text.h"
#include "daemon/config/hosts.h"
#include "daemon/config/limits.h"
#include "daemon/config/table.h"
#include "libmaru/shm/region/pool_sizing.h"
#include "libmaru/wire/codec.h"
#include "maru/format/data_label.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>
#include <sys/un.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

void read_daemon(ConfigTable table, Config& config) {
  constexpr size_t kSocketPathMax = sizeof(sockaddr_un::sun_path) - 1;
  if (auto value = table.text("socket")) {
    if (value->front() != '/' || value->size() > kSocketPathMax)
      table.wrong("socket", "an absolute path of at most " + std::to_string(kSocketPathMax) + " bytes");
    config.socket_path = *value;
  }
  if (auto value = table.text("state_dir")) {
    if (value->front() != '/') table.wrong("state_dir", "an absolute path");
    config.state_dir = *value;
  }
  if (auto value = table.text("policy_dir")) {
    if (value->front() == '/')
      config.policy_dir = *value;
    else
      table.wrong("policy_dir", "an absolute path");
  }
  if (auto value = table.text("tracing_socket")) {
    if (value->front() != '/' || value->size() > kSocketPathMax)
      table.wrong("tracing_socket", "an absolute path of at most " + std::to_string(kSocketPathMax) + " bytes");
    config.tracing_socket = *value;
  }
  if (auto value = table.one_of("log_level", {"debug", "info", "warning", "error"}))
    config.log_level = *log_level_from(*value);
  if (auto value = table.name_or_number("admin_group", "a group of this machine, or its number", group_of))
    config.admin_group = *value;
  if (auto value = table.integer("adopt_grace_ms", 0, 600'000)) config.adopt_grace_ms = uint32_t(*value);
  table.refuse_unknown();
}

void read_eviction(ConfigTable& table, PoolConfig& pool) {
  if (auto value = table.text("policy")) pool.policy = *value;
  pool.policy_options = table.scalars("policy_options", kPolicyOptionsMax);
  if (auto value = table.fraction("high_watermark")) pool.high_watermark = *value;
  if (auto value = table.fraction("low_watermark")) pool.low_watermark = *value;
  if (auto value = table.integer("pin_overdue_ms", 1, INT32_MAX)) pool.pin_overdue_ms = uint32_t(*value);
}

std::string tenant_name(const std::string& text) {
  const std::vector<std::byte> bytes = key_bytes(text);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Of limits that stand in one table, since a soft one above the hard one would never be reached.
void check_limits(ConfigTable& table, const char* soft_key, const char* hard_key, const TenantLimits& limits) {
  const uint64_t soft = limits.soft_bytes.value_or(0), hard = limits.hard_bytes.value_or(0);
  if (hard != 0 && soft > hard)
    table.wrong(soft_key, std::string("at most ") + hard_key + ", which is " + size_text(hard));
}

void read_tenants(ConfigTable& table, PoolConfig& pool) {
  pool.tenants.defaults = {table.size_or_zero("default_soft_limit"), table.size_or_zero("default_hard_limit")};
  check_limits(table, "default_soft_limit", "default_hard_limit", pool.tenants.defaults);
  if (auto value = table.one_of("tenants", {"any", "listed"})) pool.tenants.listed_only = *value == "listed";
  if (auto value = table.integer("tenants_max", 1, limits::kTenantsMax)) pool.tenants_max = uint32_t(*value);
  for (ConfigTable& one : table.tables("tenant")) {
    const TenantLimits limits = {one.size_or_zero("soft"), one.size_or_zero("hard")};
    check_limits(one, "soft", "hard", limits);
    const auto text = one.text("name");
    const std::string name = text ? tenant_name(*text) : "";
    if (!one.has("name"))
      one.missing("name", "the tenant's name");
    else if (text && name.size() > maru::limits::kTenantNameMax)
      one.wrong("name", "1 to 64 bytes, as text or as 0x and hexadecimal digits");
    else if (text && !pool.tenants.tenants.emplace(name, limits).second)
      one.wrong("name", "each tenant once");
    one.refuse_unknown();
  }
}

PoolSpec read_pool(ConfigTable table) {
  PoolSpec spec = default_pool_spec();
  spec.line = table.line();
  spec.lines = table.lines();
  spec.written = table.written();
  if (auto value = table.text("name")) spec.pool.name = *value;
  const auto backend = table.one_of("backend", {"memory", "file", "dax"});
  if (backend == "file") spec.backend = Backend::kFile;
  if (backend == "dax") spec.backend = Backend::kDax;
  if (auto value = table.boolean("required")) spec.is_required = *value;
  if (!backend && !table.has("backend")) table.missing("backend", "\"memory\", \"file\" or \"dax\"");
  if (auto value = table.text("path")) spec.path = *value;
  if (auto value = table.text("control_path")) spec.control_path = *value;
  if (auto value = table.size("size")) spec.bytes = *value;
  if (auto value = table.boolean("reserve")) spec.reserve = *value;
  if (spec.backend != Backend::kFile && table.has("reserve"))
    table.wrong("reserve", "nothing: it is for pools in files");
  if (auto value = table.size("page_bytes")) spec.pool.page_bytes = *value;
  if (auto value = table.size("region_bytes")) spec.pool.region_bytes = *value;
  if (auto value = table.integer("lanes", 1, INT32_MAX)) spec.pool.lanes = uint32_t(*value);
  if (auto value = table.integer("pins", 1, INT32_MAX)) spec.pool.pins_max = uint32_t(*value);
  if (auto value = table.integer("touch_entries", 1, INT32_MAX)) spec.pool.touch_entries = uint32_t(*value);
  if (auto value = table.size("key_inline_bytes")) {
    if (*value <= UINT32_MAX && *value > 0)
      spec.pool.key_inline_bytes = uint32_t(*value);
    else
      table.wrong("key_inline_bytes", "a number from 32 to 4096");
  }
  if (auto value = table.integer("max_regions_per_instance", 0, INT32_MAX))
    spec.pool.max_regions_per_instance = uint32_t(*value);
  if (auto value = table.boolean("checksums")) spec.pool.checksums = *value;
  read_eviction(table, spec.pool);
  read_sharing(table, spec);
  read_tenants(table, spec.pool);
  if (auto value = table.one_of("huge_pages", {"try", "never", "require"}))
    spec.huge_pages = *value == "never"     ? HugePages::kNever
                      : *value == "require" ? HugePages::kRequire
                                            : HugePages::kTry;
  read_numa(table, spec);
  read_access(table, spec);
  read_dax(table, spec);
  if (spec.backend == Backend::kDax) {
    table.refuse_unknown();
    return spec;
  }
  if (spec.backend == Backend::kFile) {
    if (table.has("huge_pages"))
      table.wrong("huge_pages", "nothing: it is for memory pools (a file's page size is its file system's)");
    for (const char* key : {"numa_node", "numa_nodes", "numa_policy"})
      if (table.has(key)) table.wrong(key, "nothing: it is for memory pools");
    if (!table.has("path")) table.missing("path", "the path of the pool's file");
    if (!spec.control_path.empty() && normal_path(spec.control_path) == normal_path(spec.path))
      table.wrong("control_path", "another file than path, or nothing to have both in that one");
  } else {
    for (const char* key : {"path", "control_path"})
      if (table.has(key)) table.wrong(key, "nothing: a memory pool has no file");
    if (!table.has("size")) table.missing("size", "the size of the pool, such as \"1GiB\"");
  }
  table.refuse_unknown();
  return spec;
}

std::string fraction_text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// 0 and 0 are a pool without background eviction, as tests make it.
void check_watermarks(const PoolSpec& spec, std::vector<ConfigProblem>& problems) {
  const double high = spec.pool.high_watermark, low = spec.pool.low_watermark;
  if (low < high || (low == 0 && high == 0)) return;
  // The administrator is to change the watermark that the file has; if it has both, the low one.
  const bool blames_high = spec.lines.contains("high_watermark") && !spec.lines.contains("low_watermark");
  const char* key = blames_high ? "high_watermark" : "low_watermark";
  const char* other = blames_high ? "low_watermark" : "high_watermark";
  const bool is_default = spec.line != 0 && !spec.lines.contains(other);
  problems.push_back({line_of(spec, key), "pool \"" + printable(spec.pool.name) + "\": " + key + ": found " +
                                              fraction_text(blames_high ? high : low) + ", expected " +
                                              (blames_high ? "more than " : "less than ") + other + ", which is " +
                                              fraction_text(blames_high ? low : high) +
                                              (is_default ? " unless it is set, too" : "")});
}

void check_pool(const PoolSpec& spec, std::vector<ConfigProblem>& problems) {
  const auto refuse = [&](const char* key, const std::string& found, const std::string& expected) {
    problems.push_back({line_of(spec, key), "pool \"" + printable(spec.pool.name) + "\": " + key + ": found " + found +
                                                ", expected " + expected});
  };
  const auto check_power = [&](const char* key, uint64_t value, uint64_t least, uint64_t most) {
    if (value != 0 && (!std::has_single_bit(value) || value < least || value > most))
      refuse(key, std::to_string(value),
             "a power of two from " + std::to_string(least) + " to " + std::to_string(most));
  };
  constexpr uint64_t kPoolBytesMin = 256u << 10;  // below it the control region leaves no page
  if (!wire::is_pool_name(spec.pool.name))
    refuse("name", "\"" + printable(spec.pool.name) + "\"",
           "1 to 63 letters, digits, '-', '_' or '.', and no '.' at the beginning");
  if (spec.bytes != 0 &&  // 0 of a memory pool was refused where it was read
      (spec.bytes < kPoolBytesMin || spec.bytes > limits::kPoolBytesMax))
    refuse("size", size_text(spec.bytes), size_text(kPoolBytesMin) + " to " + size_text(limits::kPoolBytesMax));
  if (spec.backend == Backend::kFile && !spec.path.empty() && spec.path.front() != '/')
    refuse("path", "\"" + printable(spec.path) + "\"", "an absolute path");
  if (!spec.control_path.empty() && spec.control_path.front() != '/')
    refuse("control_path", "\"" + printable(spec.control_path) + "\"", "an absolute path");
  check_power("page_bytes", spec.pool.page_bytes, limits::kPageBytesMin, limits::kPageBytesMax);
  check_power("region_bytes", spec.pool.region_bytes, limits::kPageBytesMin, limits::kPoolBytesMax);
  if (spec.pool.region_bytes != 0 && spec.pool.region_bytes < spec.pool.page_bytes)
    refuse("region_bytes", size_text(spec.pool.region_bytes),
           "at least page_bytes, " + size_text(spec.pool.page_bytes));
  if (spec.bytes != 0 && spec.pool.region_bytes > spec.bytes)
    refuse("region_bytes", size_text(spec.pool.region_bytes), "at most the pool's size, " + size_text(spec.bytes));
  if (spec.pool.lanes == 1 || spec.pool.lanes > limits::kLanesMax)
    refuse("lanes", std::to_string(spec.pool.lanes), "2 (one is marud's own) to " + std::to_string(limits::kLanesMax));
  check_watermarks(spec, problems);
  check_sharing(spec, problems);
  check_power("pins", spec.pool.pins_max, 16, limits::kPinsMaxLimit);
  check_power("touch_entries", spec.pool.touch_entries, 16, limits::kTouchEntriesLimit);
  const uint32_t inline_bytes = spec.pool.key_inline_bytes;
  if (inline_bytes != 0 &&
      (inline_bytes % 8 != 0 || inline_bytes < limits::kKeyInlineMin || inline_bytes > limits::kKeyInlineMax))
    refuse("key_inline_bytes", std::to_string(inline_bytes), "a multiple of 8 from 32 to 4096");
}

shm::FormatWishes wishes_of(const PoolSpec& spec) {
  shm::FormatWishes wishes;
  wishes.pool_bytes = spec.bytes;
  wishes.page_bytes = spec.pool.page_bytes;
  wishes.region_bytes = spec.pool.region_bytes;
  wishes.lanes = spec.pool.lanes;
  wishes.pins_max = spec.pool.pins_max;
  wishes.touch_entries = spec.pool.touch_entries;
  wishes.key_inline_bytes = spec.pool.key_inline_bytes;
  wishes.tenants = spec.pool.tenants_max;
  const SharingConfig& sharing = spec.pool.sharing;
  wishes.hosts = !sharing.is_shared ? 1 : sharing.hosts != 0 ? sharing.hosts : kHostsDefault;
  return wishes;
}

constexpr uint64_t kOsPageBytes = 4096, kHugePageBytes = 2ull << 20;

// The units in which the two pieces of a pool are taken, as far as the configuration decides them.
uint64_t unit_of(const PoolSpec& spec) {
  return spec.backend == Backend::kMemory && spec.huge_pages == HugePages::kRequire ? kHugePageBytes : kOsPageBytes;
}

// The complaint of a formatting about so many bytes, or nothing.
const char* why_no_pool(const PoolSpec& spec, const shm::FormatWishes& wishes) {
  if (spec.backend == Backend::kMemory || !spec.control_path.empty()) {
    shm::Pieces pieces;
    const uint64_t label_bytes = spec.backend == Backend::kMemory ? 0 : format::kDataLabelRoom;
    return shm::divide_pool(wishes, unit_of(spec), label_bytes, &pieces);
  }
  shm::Parameters parameters;
  shm::Layout layout;
  if (const char* wrong = shm::choose_parameters(wishes, &parameters)) return wrong;
  return shm::plan_layout(parameters, &layout);
}

// The least size, in units, that would do where this one does not; nothing when none would. A size that does makes every larger
// one do (control_region.cc, choose_shape()) up to where there are too many pages, so doubling and then halving finds it.
std::optional<uint64_t> least_size(const PoolSpec& spec) {
  const uint64_t unit = unit_of(spec), most = limits::kPoolBytesMax / unit;
  shm::FormatWishes wishes = wishes_of(spec);
  const auto is_enough = [&](uint64_t units) {
    wishes.pool_bytes = units * unit;
    return why_no_pool(spec, wishes) == nullptr;
  };
  uint64_t too_few = wishes.pool_bytes / unit, enough = std::clamp<uint64_t>(2 * too_few, 1, most);
  while (!is_enough(enough)) {
    if (enough == most) return std::nullopt;
    too_few = enough;
    enough = std::min(2 * enough, most);
  }
  while (enough - too_few > 1) {
    const uint64_t middle = too_few + (enough - too_few) / 2;
    (is_enough(middle) ? enough : too_few) = middle;
  }
  return enough * unit;
}

// Never less than it is, as a rounded text might say.
std::string exact_size_text(uint64_t bytes) {
  const auto whole = [bytes](unsigned shift) { return (bytes & ((uint64_t{1} << shift) - 1)) == 0; };
  if (whole(30)) return std::to_string(bytes >> 30) + " GiB";
  return whole(20) ? std::to_string(bytes >> 20) + " MiB" : std::to_string(bytes >> 10) + " KiB";
}

// Too many pages: the least page_bytes that would do.
void refuse_page_bytes(const PoolSpec& spec, const char* wrong, std::vector<ConfigProblem>& problems) {
  // Pages are never larger than a region, so a small one may have made them small.
  const char* key = spec.pool.page_bytes != 0 ? "page_bytes" : "region_bytes";
  shm::FormatWishes wishes = wishes_of(spec);
  const uint64_t found = wishes.page_bytes != 0 ? wishes.page_bytes : wishes.region_bytes;
  for (wishes.page_bytes = found; wishes.page_bytes < limits::kPageBytesMax && why_no_pool(spec, wishes);) {
    wishes.page_bytes *= 2;
    if (wishes.region_bytes != 0) wishes.region_bytes = std::max(wishes.region_bytes, wishes.page_bytes);
  }
  problems.push_back({line_of(spec, key), "pool \"" + printable(spec.pool.name) + "\": " + key + ": found " +
                                              size_text(found) + ", expected at least " + size_text(wishes.page_bytes) +
                                              " for a pool of " + size_text(spec.bytes) + ": " + wrong});
}

// Values that are possible one by one and not together: the complaint of a formatting, before any device is touched.
void check_geometry(const PoolSpec& spec, std::vector<ConfigProblem>& problems) {
  const char* wrong = why_no_pool(spec, wishes_of(spec));
  if (!wrong) return;
  if (std::string_view(wrong).starts_with("page_bytes")) return refuse_page_bytes(spec, wrong, problems);
  const auto least = least_size(spec);
  const bool is_huge = unit_of(spec) == kHugePageBytes;
  problems.push_back(
      {line_of(spec, "size"),
       "pool \"" + printable(spec.pool.name) + "\": size: found " + size_text(spec.bytes) + ", " +
           (least ? "expected at least " + exact_size_text(*least) + (is_huge ? " in huge pages of 2 MiB" : "") + ": "
                  : "which cannot be: ") +
           wrong + " (fewer lanes, pins or touch_entries make the control region smaller)"});
}

// The least bytes of a memory pool's region: they may differ with and without huge pages. Nothing when no region is possible.
std::optional<uint64_t> region_bytes_of(const PoolSpec& spec) {
  std::optional<uint64_t> least;
  for (const uint64_t unit : {kOsPageBytes, kHugePageBytes}) {
    const shm::FormatWishes wishes = wishes_of(spec);
    shm::Pieces pieces;
    shm::Parameters parameters;
    shm::Layout layout;
    if (shm::divide_pool(wishes, unit, 0, &pieces)) continue;
    if (shm::choose_parameters_in_two(wishes, pieces, &parameters, &layout)) continue;
    const uint64_t bytes = parameters.region_pages * parameters.page_bytes;
    least = std::min(least.value_or(bytes), bytes);
  }
  return least;
}

}  // namespace

void check_limits_of_bytes(const Config& config, std::vector<ConfigProblem>& problems) {
  const PoolSpec* smallest = nullptr;
  uint64_t least = UINT64_MAX;
  for (const PoolSpec& spec : config.pools) {
    const auto bytes = spec.backend == Backend::kMemory ? region_bytes_of(spec) : std::nullopt;
    if (!bytes) return;
    if (*bytes >= least) continue;
    least = *bytes;
    smallest = &spec;
  }
  const auto check = [&](const char* table, uint64_t bytes, int line) {
    if (bytes == 0 || bytes >= least) return;
    problems.push_back({line, std::string(table) + ".bytes: found " + size_text(bytes) + ", expected at least " +
                                  exact_size_text(least) + ", one region of pool \"" + printable(smallest->pool.name) +
                                  "\", or 0 for no limit: with less there is no memory at all"});
  };
  check("limits", config.user_limits.bytes, config.user_limits_bytes_line);
  for (const UserLimitRule& rule : config.user_limit_rules) check("limit", rule.bytes.value_or(0), rule.bytes_line);
}

const char* const kPolicyDir = MARU_POLICY_DIR;

const char* backend_text(Backend backend) {
  switch (backend) {
    case Backend::kMemory: return "memory";
    case Backend::kFile: return "file";
    case Backend::kDax: break;
  }
  return "dax";
}

PoolSpec default_pool_spec() {
  PoolSpec spec;
  spec.pool.high_watermark = kHighWatermark;
  spec.pool.low_watermark = kLowWatermark;
  return spec;
}

int line_of(const PoolSpec& spec, const char* key) {
  const auto found = spec.lines.find(key);
  return found == spec.lines.end() ? spec.line : found->second;
}

std::string default_runtime_dir() {
  if (const char* runtime = std::getenv("XDG_RUNTIME_DIR"); runtime && *runtime) return std::string(runtime) + "/marud";
  return ::geteuid() == 0 ? "/run/marud" : "/run/user/" + std::to_string(::geteuid()) + "/marud";
}

std::string default_state_dir(const std::string& socket_path) {
  return socket_path.substr(0, socket_path.find_last_of('/')) + "/state";
}

std::string normal_path(const std::string& path) { return std::filesystem::path(path).lexically_normal(); }

void check_pools(const std::vector<PoolSpec>& pools, std::vector<ConfigProblem>& problems) {
  std::set<std::string> names, paths;
  for (const PoolSpec& spec : pools) {
    const size_t before = problems.size();
    check_pool(spec, problems);
    if (problems.size() == before && spec.bytes != 0) check_geometry(spec, problems);
    if (!names.insert(spec.pool.name).second)
      problems.push_back({line_of(spec, "name"), "pool.name: found \"" + printable(spec.pool.name) +
                                                     "\" a second time, expected a name of its own"});
    for (const auto& [key, device] :
         {std::pair("device", spec.dax.device), std::pair("control_device", spec.dax.control_device)}) {
      if (!device.starts_with("/") && !device.starts_with("uuid:")) continue;
      // Both devices of a pool have its uuid. That one path is both is said where they are read.
      const std::string place = device.starts_with("/") ? normal_path(device) : key + device;
      const bool is_both =
          device.starts_with("/") && normal_path(spec.dax.control_device) == normal_path(spec.dax.device);
      if (!paths.insert(place).second && !is_both)
        problems.push_back({line_of(spec, key), "pool." + std::string(key) + ": found \"" + printable(device) +
                                                    "\" a second time, expected a device of its own"});
    }
    for (const auto& [key, path] : {std::pair("path", spec.path), std::pair("control_path", spec.control_path)})
      if (!path.empty() && !paths.insert(normal_path(path)).second &&
          normal_path(spec.control_path) != normal_path(spec.path))
        problems.push_back({line_of(spec, key), "pool." + std::string(key) + ": found \"" + printable(path) +
                                                    "\" a second time, expected a file of its own"});
  }
  if (pools.empty()) problems.push_back({0, "pool: found none, expected at least one [[pool]]"});
  if (pools.size() > limits::kPoolsMax)
    problems.push_back(
        {0, "pool: found " + std::to_string(pools.size()) + ", expected at most " + std::to_string(limits::kPoolsMax)});
}

Config parse_config(std::string_view text, std::vector<ConfigProblem>& problems) {
  Config config;
  parse_toml(text, problems, [&](ConfigTable root) {
    if (auto table = root.table("daemon")) {
      config.written_daemon = table->written();
      read_daemon(std::move(*table), config);
    }
    if (auto table = root.table("http")) {
      config.written_http = table->written();
      read_http(std::move(*table), config.http);
    }
    read_user_limits(root, config);
    for (ConfigTable& table : root.tables("pool")) config.pools.push_back(read_pool(std::move(table)));
    for (ConfigTable& table : root.tables("provision")) config.wishes.push_back(provision::read_wish(std::move(table)));
    root.refuse_unknown();
    check_pools(config.pools, problems);
    provision::check_wishes(config.wishes, problems);
  });
  if (config.policy_dir.empty()) config.policy_dir = kPolicyDir;
  for (PoolSpec& spec : config.pools) {
    spec.pool.policy_dir = config.policy_dir;
    spec.pool.tracing_socket = config.tracing_socket;
  }
  if (config.socket_path.empty()) config.socket_path = default_runtime_dir() + "/marud.sock";
  config.state_dir_is_default = config.state_dir.empty();
  if (config.state_dir_is_default) config.state_dir = default_state_dir(config.socket_path);
  return config;
}

Config read_config(const std::string& path, std::vector<ConfigProblem>& problems) {
  const auto text = read_config_text(path, problems);
  return text ? parse_config(*text, problems) : Config{};
}

}  // namespace maru::daemon
