#include "daemon/config_changes.h"

#include "daemon/log.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace maru::daemon {
namespace {

constexpr std::string_view kPool = "pool ";

// Whether Server::reload() brings this key into force.
bool is_reloaded(std::string_view table, std::string_view key) {
  static constexpr std::array kOfDaemon = {"log_level", "admin_group", "adopt_grace_ms"};
  static constexpr std::array kOfPools = {"users", "groups", "readers", "reader_groups", "admins", "admin_groups"};
  const auto has = [&](const auto& keys) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (table == "daemon") return has(kOfDaemon);
  if (table.starts_with(kPool)) return has(kOfPools);
  // marud-provision reads [[provision]] whenever it is called.
  return table == "limits" || table.starts_with("limit ") || table.starts_with("provision ");
}

std::string shown(const std::string* value) {
  constexpr size_t kBytesMax = 80;
  if (value == nullptr) return "not set";
  return printable(value->size() > kBytesMax ? value->substr(0, kBytesMax) + "..." : *value);
}

void compare_keys(const std::string& table, const std::map<std::string, std::string>& running,
                  const std::map<std::string, std::string>& fresh, std::vector<std::string>& changes) {
  const auto add = [&](const std::string& key, const std::string* before, const std::string* now) {
    if (is_reloaded(table, key)) return;
    changes.push_back(printable(table) + ": " + printable(key) + " was " + shown(before) + " and is " + shown(now) +
                      " now: this waits for a restart of marud");
  };
  for (const auto& [key, value] : running) {
    const auto now = fresh.find(key);
    if (now == fresh.end() || now->second != value) add(key, &value, now == fresh.end() ? nullptr : &now->second);
  }
  for (const auto& [key, value] : fresh)
    if (!running.contains(key)) add(key, nullptr, &value);
}

}  // namespace

std::vector<std::string> waiting_changes(WrittenConfig& running, const WrittenConfig& fresh,
                                         const std::vector<std::string>& serving) {
  std::erase_if(running, [&](const auto& table) {
    return table.first.starts_with(kPool) &&
           std::find(serving.begin(), serving.end(), table.first.substr(kPool.size())) == serving.end();
  });
  std::vector<std::string> changes;
  for (const auto& [table, keys] : running) {
    const auto now = fresh.find(table);
    if (now == fresh.end() && table.starts_with(kPool))
      changes.push_back(
          printable(table) +
          " is not configured any more: it goes on until it is removed (marudctl device remove) or marud is "
          "started anew");
    else
      compare_keys(table, keys, now == fresh.end() ? std::map<std::string, std::string>() : now->second, changes);
  }
  for (const auto& [table, keys] : fresh) {
    if (running.contains(table)) continue;
    if (table.starts_with(kPool))
      running.emplace(table, keys);
    else
      compare_keys(table, {}, keys, changes);
  }
  return changes;
}

}  // namespace maru::daemon
