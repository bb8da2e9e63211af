#include "daemon/config/changes.h"

#include "daemon/base/log.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace maru::daemon {
namespace {

// Whether Server::reload() brings this key into force.
bool is_reloaded(std::string_view table, std::string_view key) {
  static constexpr std::array kOfDaemon = {"log_level", "admin_group", "adopt_grace_ms"};
  static constexpr std::array kOfPools = {"users", "groups", "readers", "reader_groups", "admins", "admin_groups"};
  const auto has = [&](const auto& keys) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  return table == "daemon" ? has(kOfDaemon) : table.starts_with("pool ") && has(kOfPools);
}

std::string shown(const std::string* value) {
  constexpr size_t kBytesMax = 80;
  if (value == nullptr) return "not set";
  return printable(value->size() > kBytesMax ? value->substr(0, kBytesMax) + "..." : *value);
}

}  // namespace

std::vector<std::string> waiting_changes(const std::string& name, const WrittenTable& running,
                                         const WrittenTable& fresh) {
  std::vector<std::string> changes;
  const auto add = [&](const std::string& key, const std::string* before, const std::string* now) {
    if (is_reloaded(name, key)) return;
    // The arguments of a command may be passwords.
    const std::string values =
        key == "fencing_command" ? " is another one" : " was " + shown(before) + " and is " + shown(now);
    changes.push_back(printable(name) + ": " + printable(key) + values + " now: this waits for a restart of marud");
  };
  for (const auto& [key, value] : running) {
    const auto now = fresh.find(key);
    if (now == fresh.end() || now->second != value) add(key, &value, now == fresh.end() ? nullptr : &now->second);
  }
  for (const auto& [key, value] : fresh)
    if (!running.contains(key)) add(key, nullptr, &value);
  return changes;
}

}  // namespace maru::daemon
