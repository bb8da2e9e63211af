#include "daemon/hosting/added_pools.h"

#include "daemon/base/log.h"
#include "daemon/config/table.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

namespace maru::daemon {
namespace {

Result<PoolSpec> load_spec(const std::string& name, const Config& config, const StateDirectory& state) {
  auto toml = state.load_added(name);
  if (!toml) return tl::unexpected(toml.error());
  auto specs = read_added(*toml, config);
  if (!specs) return tl::unexpected(specs.error());
  for (PoolSpec& spec : *specs)
    if (spec.pool.name == name) return std::move(spec);
  return failure(EBADMSG, "find pool \"" + name + "\" in what was kept of it");
}

}  // namespace

std::string problems_text(const std::vector<ConfigProblem>& problems) {
  std::string text;
  for (const ConfigProblem& problem : problems)
    text += (text.empty() ? "" : "; ") + (problem.line > 0 ? "line " + std::to_string(problem.line) + ": " : "") +
            problem.text;
  return text;
}

void complete_spec(const Config& config, PoolSpec& spec) {
  spec.pool.policy_dir = config.policy_dir;
  spec.pool.tracing_socket = config.tracing_socket;
  // Of the command line; each pool of the configuration has them.
  if (config.pools.empty()) return;
  const PoolSpec& any = config.pools.front();
  spec.pool.sharing.boot_id = any.pool.sharing.boot_id;
  spec.pool.sharing.machine_id = any.pool.sharing.machine_id;
  spec.dax.rules = any.dax.rules;
}

Result<std::vector<PoolSpec>> read_added(const std::string& toml, const Config& config) {
  std::vector<ConfigProblem> problems;
  Config fresh = parse_config(toml, problems);
  for (PoolSpec& spec : fresh.pools) complete_spec(config, spec);
  if (problems.empty()) check_policies(fresh.pools, problems);
  if (!problems.empty()) return failure(EINVAL, "the file cannot be used: " + problems_text(problems));
  return std::move(fresh.pools);
}

Result<std::vector<PoolSpec>> read_addition(const std::string& toml, const Config& config, bool of_owner) {
  auto specs = read_added(toml, config);
  if (!specs) return specs;
  std::vector<ConfigProblem> problems;
  parse_toml(toml, problems, [&](const ConfigTable& root) {
    for (const char* key : {"daemon", "http", "limits", "limit"})
      if (root.has(key))
        problems.push_back({root.lines()[key], std::string(key) +
                                                   ": found what is of marud as a whole, and belongs into its own "
                                                   "configuration; expected [[pool]] alone"});
  });
  for (const PoolSpec& spec : *specs)
    if (!of_owner && !spec.pool.sharing.fencing_command.empty())
      problems.push_back(
          {line_of(spec, "fencing_command"),
           "pool \"" + printable(spec.pool.name) +
               "\": fencing_command: found a program, which would run as marud's own user; expected none "
               "in what others than root and that user add: let one of them add the pool, or describe it "
               "in marud's configuration"});
  if (!problems.empty()) return failure(EINVAL, "the file cannot be used: " + problems_text(problems));
  return specs;
}

void say_that_it_is_without(const PoolSpec& spec, const Error& why) {
  log_error("marud goes on without a pool until it can be opened (marudctl device add {} tries it at once): {}",
            spec.pool.name, why.text());
}

Result<void> start_configured_pools(const Config& config, const StateDirectory& state,
                                    std::map<std::string, FileDescriptor>& stored, HostedPools& pools,
                                    uint64_t now_ms) {
  std::vector<std::pair<const PoolSpec*, Error>> failures;
  bool is_any_usable = config.pools.empty();
  for (const PoolSpec& spec : config.pools) {
    auto hosted = HostedPool::start(spec, state, stored, now_ms);
    is_any_usable |= bool(hosted);
    if (!hosted && spec.is_required) return tl::unexpected(hosted.error());
    if (!hosted) failures.emplace_back(&spec, hosted.error());
    pools.push_back(hosted ? std::move(*hosted) : HostedPool::unavailable(spec, state, hosted.error()));
  }
  for (const auto& [spec, why] : failures) {
    if (is_any_usable)
      say_that_it_is_without(*spec, why);
    else if (failures.size() > 1)
      log_error("pool \"{}\" cannot be opened: {}", spec->pool.name, why.text());
  }
  if (!is_any_usable)
    return failures.size() == 1 ? tl::unexpected(failures.front().second)
                                : failure(failures.front().second.code, "open any of the pools");
  return {};
}

void start_added_pools(const Config& config, const StateDirectory& state, std::map<std::string, FileDescriptor>& stored,
                       HostedPools& pools, uint64_t now_ms) {
  for (const std::string& name : state.added()) {
    if (std::any_of(pools.begin(), pools.end(), [&](const auto& hosted) { return hosted->name() == name; })) {
      log_info("pool \"{}\" is in the configuration by now: the file that it was added from is forgotten", name);
      if (auto forgotten = state.forget_added(name); !forgotten) log_warning("{}", forgotten.error().text());
      continue;
    }
    auto spec = load_spec(name, config, state);
    if (!spec) {
      log_error("pool \"{}\", which was added at run time, does not serve: {} (marudctl device remove {} forgets it)",
                name, spec.error().text(), name);
      continue;
    }
    auto hosted = HostedPool::start(*spec, state, stored, now_ms);
    if (!hosted) say_that_it_is_without(*spec, hosted.error());
    pools.push_back(hosted ? std::move(*hosted) : HostedPool::unavailable(*spec, state, hosted.error()));
  }
}

}  // namespace maru::daemon
