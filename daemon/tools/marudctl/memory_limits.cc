#include "daemon/tools/marudctl/memory_limits.h"

#include "daemon/base/size_text.h"
#include "daemon/system/control_group.h"
#include "daemon/tools/marudctl/reply_fields.h"

#include <map>
#include <nlohmann/json.hpp>

namespace maru::marudctl {
namespace {

using nlohmann::json;

// Pools whose pages the kernel charges to a group, and their size. It charges files on tmpfs, wherever that is mounted, but
// neither huge pages nor devices.
std::map<std::string, uint64_t> charged_pools(const json& status) {
  std::map<std::string, uint64_t> pools;
  for (const json& pool : status.value("pools", json::array())) {
    if (is_taken_when_touched(pool))
      pools[pool.value("name", std::string())] = number(pool, "pages") * number(pool, "page_bytes");
  }
  return pools;
}

struct Group {
  daemon::MemoryLimit limit;
  std::string who;    // the first of its processes
  size_t others = 0;  // how many more there are
  std::string pool;   // the largest that they use
  uint64_t pool_bytes = 0;
};

void meet(std::map<std::string, Group>& groups, const std::string& root, const std::string& pid, const std::string& who,
          const std::string& pool, uint64_t pool_bytes) {
  const auto limit = daemon::memory_limit(root, pid);
  if (!limit) return;
  Group& group = groups[limit->group];
  if (group.who.empty())
    group.who = who;
  else
    ++group.others;
  group.limit = *limit;
  if (pool_bytes <= group.pool_bytes) return;
  group.pool = pool;
  group.pool_bytes = pool_bytes;
}

}  // namespace

std::vector<Diagnosis> judge_limits(const std::string& root, const json& status, const json& clients) {
  const std::map<std::string, uint64_t> pools = charged_pools(status);
  std::map<std::string, Group> groups;
  // marud itself takes control regions, which it had room for when it made them.
  meet(groups, root, std::to_string(number(status, "pid")), "marud", "", 0);
  for (const json& client : clients) {
    const auto pool = pools.find(client.value("pool", std::string()));
    const std::string pid = std::to_string(number(client, "pid"));
    meet(groups, root, pid, client.value("command", std::string()) + " (" + pid + ")",
         pool == pools.end() ? "" : pool->first, pool == pools.end() ? 0 : pool->second);
  }
  std::vector<Diagnosis> diagnoses;
  for (const auto& [name, group] : groups) {
    const std::string what = "memory limit of " + group.who +
                             (group.others > 0 ? " and " + std::to_string(group.others) + " more" : std::string());
    std::string found = daemon::size_text(group.limit.bytes) + " for the control group " + name;
    if (group.limit.kills > 0) {
      diagnoses.push_back(
          {Grade::kWrong, what, found + ", where " + std::to_string(group.limit.kills) + " processes were killed at it",
           "the kernel ends a process of the group when it needs more; memory of a pool counts for the group of "
           "whoever touches it first",
           "a higher limit (MemoryMax= of a service), or a smaller pool"});
    } else if (group.pool_bytes > group.limit.bytes) {
      diagnoses.push_back(
          {Grade::kWarning, what,
           found + ", and pool \"" + group.pool + "\" has " + daemon::size_text(group.pool_bytes),
           "memory of a pool counts for the group of whoever touches it first, and at the limit the kernel kills a "
           "process of the group",
           "a limit above the pool and what the process needs itself; or first_touch, which makes marud's group pay; "
           "or huge pages, which no such limit counts"});
    } else {
      diagnoses.push_back({Grade::kGood, what, found, "", ""});
    }
  }
  return diagnoses;
}

}  // namespace maru::marudctl
