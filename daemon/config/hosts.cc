// The settings of pools that several hosts share.
#include "daemon/config/hosts.h"

#include "daemon/base/size_text.h"
#include "daemon/config/table.h"
#include "maru/format/limits.h"

#include <algorithm>

namespace maru::daemon {

void read_sharing(ConfigTable& table, PoolSpec& spec) {
  SharingConfig& sharing = spec.pool.sharing;
  if (auto value = table.one_of("profile", {"local", "shared"})) sharing.is_shared = *value == "shared";
  if (auto value = table.boolean("coherent")) sharing.is_coherent = *value;
  if (auto value = table.integer("hosts", 2, limits::kHostsMax)) sharing.hosts = uint32_t(*value);
  if (auto value = table.integer("suspect_after_ms", 100, 3'600'000)) sharing.suspect_after_ms = uint32_t(*value);
  if (auto value = table.integer("fencing_timeout_ms", 100, 3'600'000)) sharing.fencing_timeout_ms = uint32_t(*value);
  sharing.fencing_command = table.texts("fencing_command");
  if (!sharing.fencing_command.empty() && sharing.fencing_command.front().front() != '/')
    table.wrong("fencing_command", "an absolute path and its arguments, [\"/path\", \"argument\"]");
  sharing.fencing_names = table.texts("fencing_names");
  if (!sharing.fencing_names.empty() && sharing.fencing_command.empty())
    table.wrong("fencing_names", "nothing without fencing_command");
  spec.pool.checksums |= sharing.is_shared;
  if (sharing.is_shared) return;
  for (const char* key :
       {"coherent", "hosts", "suspect_after_ms", "fencing_timeout_ms", "fencing_command", "fencing_names"})
    if (table.has(key)) table.wrong(key, "nothing without profile = \"shared\"");
}

void check_sharing(const PoolSpec& spec, std::vector<ConfigProblem>& problems) {
  const SharingConfig& sharing = spec.pool.sharing;
  if (!sharing.is_shared) return;
  const auto refuse = [&](const char* key, const std::string& found, const std::string& expected) {
    problems.push_back({line_of(spec, key), "pool \"" + printable(spec.pool.name) + "\": " + key + ": found " + found +
                                                ", expected " + expected});
  };
  if (!sharing.is_coherent)
    refuse(
        "profile", "\"shared\" without coherent = true",
        "coherent = true, by which you declare that atomic operations on this memory hold between the hosts; without "
        "that blocks are lost and mixed up (CXL 3 with back-invalidation has it, CXL 2 pooling has not)");
  // The name of a host stands in the pool, where any client can write it: it could have any machine fenced.
  if (!sharing.fencing_command.empty() && !spec.lines.contains("fencing_names"))
    refuse(
        "fencing_command", "no fencing_names beside it",
        "fencing_names = [\"HOST\", ...] with the names of the other hosts of this pool, as marudctl host list shows "
        "them: the command is run for no others");
  if (spec.backend == Backend::kMemory)
    refuse("profile", "\"shared\" with backend = \"memory\"", "memory that other hosts reach: \"file\" or \"dax\"");
  const TenantSettings& tenants = spec.pool.tenants;
  if (!tenants.tenants.empty() || tenants.defaults.soft_bytes || tenants.defaults.hard_bytes ||
      tenants.listed_only.value_or(false))
    refuse("profile", "\"shared\" with limits of tenants", "none: limits are kept by one host");
  const uint32_t lanes = spec.pool.lanes, hosts = sharing.hosts != 0 ? sharing.hosts : kHostsDefault;
  if (lanes != 0 && lanes / hosts < 2)
    refuse("lanes", std::to_string(lanes), "at least " + std::to_string(2 * hosts) + ", two for each of the hosts");
}

}  // namespace maru::daemon
