#include "daemon/hosting/config_json.h"

#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "daemon/config/hosts.h"

#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

const char* level_text(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "";
}

const char* huge_pages_text(HugePages huge_pages) {
  return huge_pages == HugePages::kNever ? "never" : huge_pages == HugePages::kRequire ? "require" : "try";
}

const char* numa_policy_text(NumaPlacement::Policy policy) {
  switch (policy) {
    case NumaPlacement::Policy::kBind: return "bind";
    case NumaPlacement::Policy::kInterleave: return "interleave";
    case NumaPlacement::Policy::kPreferred: return "preferred";
  }
  return "";
}

// Leaves out the command that proves the death of a host: its arguments may be a secret.
void add_sharing(const SharingConfig& sharing, json& pool) {
  pool["profile"] = sharing.is_shared ? "shared" : "local";
  if (!sharing.is_shared) return;
  pool["coherent"] = sharing.is_coherent;
  pool["hosts"] = sharing.hosts != 0 ? sharing.hosts : kHostsDefault;
  pool["suspect_after_ms"] = sharing.suspect_after_ms;
  pool["fencing_names"] = sharing.fencing_names;
  pool["fencing_timeout_ms"] = sharing.fencing_timeout_ms;
}

// The place of the pool: settings for its backend alone.
void add_place(const PoolSpec& spec, json& pool) {
  if (spec.backend == Backend::kFile) {
    pool["path"] = spec.path;
    pool["reserve"] = spec.reserve;
    pool["first_touch"] = spec.numa.first_touch;
  }
  if (!spec.control_path.empty()) pool["control_path"] = spec.control_path;
  if (spec.backend == Backend::kMemory) {
    pool["huge_pages"] = huge_pages_text(spec.huge_pages);
    pool["numa_nodes"] = spec.numa.nodes;
    pool["numa_policy"] = numa_policy_text(spec.numa.policy);
    pool["first_touch"] = spec.numa.first_touch;
  } else {
    pool["after_power_loss"] = spec.after_power_loss == AfterPowerLoss::kVerify ? "verify" : "format";
  }
  if (spec.backend == Backend::kDax) {
    pool["device"] = spec.dax.device;
    if (!spec.dax.control_device.empty()) pool["control_device"] = spec.dax.control_device;
    pool["align"] = spec.dax.alignment;
    pool["format"] = spec.dax.formats_blank ? "blank" : "never";
  }
}

// Settings without a value show the numbers with which the pool was formatted, where it serves.
json pool_json(const HostedPool& hosted) {
  const PoolSpec& spec = hosted.spec();
  json options = json::object(), tenants = json::array();
  for (const auto& [name, value] : spec.pool.policy_options) options[name] = value;
  for (const auto& [name, limits] : spec.pool.tenants.tenants)
    tenants.push_back({{"name", tenant_name_text(name)},
                       {"soft", limits.soft_bytes ? json(*limits.soft_bytes) : json(nullptr)},
                       {"hard", limits.hard_bytes ? json(*limits.hard_bytes) : json(nullptr)}});
  json pool = {{"name", spec.pool.name},
               {"backend", backend_text(spec.backend)},
               {"required", spec.is_required},
               {"max_regions_per_instance", spec.pool.max_regions_per_instance},
               {"users", spec.users},
               {"groups", spec.groups},
               {"readers", spec.readers},
               {"reader_groups", spec.reader_groups},
               {"admins", spec.admins},
               {"admin_groups", spec.admin_groups},
               {"policy", spec.pool.policy},
               {"policy_options", std::move(options)},
               {"high_watermark", spec.pool.high_watermark},
               {"low_watermark", spec.pool.low_watermark},
               {"pin_overdue_ms", spec.pool.pin_overdue_ms},
               {"tenants", spec.pool.tenants.listed_only.value_or(false) ? "listed" : "any"},
               {"default_soft_limit", spec.pool.tenants.defaults.soft_bytes.value_or(0)},
               {"default_hard_limit", spec.pool.tenants.defaults.hard_bytes.value_or(0)},
               {"tenant", std::move(tenants)}};
  add_place(spec, pool);
  add_sharing(spec.pool.sharing, pool);
  if (spec.bytes != 0) pool["size"] = spec.bytes;
  if (const Pool* serving = hosted.serving()) {
    const format::Parameters& has = serving->header().parameters;
    pool["size"] = has.pool_bytes;
    pool["page_bytes"] = has.page_bytes;
    pool["region_bytes"] = has.region_pages * has.page_bytes;
    pool["lanes"] = has.lanes;
    if (spec.pool.sharing.is_shared) pool["hosts"] = has.hosts;
    pool["pins"] = has.pins_max;
    pool["touch_entries"] = has.touch_entries;
    pool["key_inline_bytes"] = has.key_inline_bytes;
    pool["tenants_max"] = has.tenants;
    pool["checksums"] = (serving->header().compat_flags & format::kCompatChecksums) != 0;
  }
  return pool;
}

}  // namespace

json limits_json(const Config& config) {
  const UserLimits& limits = config.user_limits;
  const auto or_null = [](const auto& value) { return value ? json(*value) : json(nullptr); };
  json rules = json::array();
  for (const UserLimitRule& rule : config.user_limit_rules)
    rules.push_back({{"user", or_null(rule.user)},
                     {"group", or_null(rule.group)},
                     {"connections", or_null(rule.connections)},
                     {"regions", or_null(rule.regions)},
                     {"bytes", or_null(rule.bytes)},
                     {"pins", or_null(rule.pins)}});
  return {{"limits",
           {{"connections", limits.connections},
            {"regions", limits.regions},
            {"bytes", limits.bytes},
            {"pins", limits.pins}}},
          {"limit", std::move(rules)}};
}

std::string config_text(const Config& config, const std::vector<std::unique_ptr<HostedPool>>& pools) {
  json daemon = {{"socket", config.socket_path},
                 {"state_dir", config.state_dir},
                 {"log_level", level_text(config.log_level)},
                 {"admin_group", config.admin_group ? json(*config.admin_group) : json(nullptr)},
                 {"policy_dir", config.policy_dir},
                 {"tracing_socket", config.tracing_socket.empty() ? json(nullptr) : json(config.tracing_socket)},
                 {"adopt_grace_ms", config.adopt_grace_ms}};
  json http = {{"socket", http_socket_path(config)},
               {"connections", config.http.connections},
               {"timeout_ms", config.http.timeout_ms}};
  if (!config.http.listen.empty()) {
    http["listen"] = config.http.listen;
    if (!config.http.token_file.empty()) http["token_file"] = config.http.token_file;
    if (!config.http.read_token_file.empty()) http["read_token_file"] = config.http.read_token_file;
  }
  json rows = json::array();
  for (const auto& hosted : pools)
    if (!hosted->is_gone()) rows.push_back(pool_json(*hosted));
  json all = limits_json(config);
  all["daemon"] = std::move(daemon);
  all["http"] = std::move(http);
  all["pool"] = std::move(rows);
  return json_text(all);
}

}  // namespace maru::daemon
