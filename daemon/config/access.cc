// Access: the lists of users and groups, and the limits of users.
#include "daemon/config/table.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <grp.h>
#include <pwd.h>
#include <vector>

namespace maru::daemon {

namespace {

// Configurations are read by several threads at once, so each look has a buffer of its own. No call says how large an
// entry can be: a group's has the names of all its members.
constexpr size_t kEntryBytes = 4096, kEntryBytesMax = 16u << 20;

template <typename Entry, typename Find>
std::optional<Entry> entry_of(Find find, const std::string& name, std::vector<char>& buffer) {
  for (buffer.resize(kEntryBytes); buffer.size() <= kEntryBytesMax; buffer.resize(4 * buffer.size())) {
    Entry entry = {};
    Entry* found = nullptr;
    int error = EINTR;
    while (error == EINTR) error = find(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (error != ERANGE) return found ? std::optional(entry) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::optional<gid_t> group_of(const std::string& name) {
  std::vector<char> buffer;
  const auto entry = entry_of<group>(::getgrnam_r, name, buffer);
  return entry ? std::optional(entry->gr_gid) : std::nullopt;
}

std::optional<uid_t> user_of(const std::string& name) {
  std::vector<char> buffer;
  const auto entry = entry_of<passwd>(::getpwnam_r, name, buffer);
  return entry ? std::optional(entry->pw_uid) : std::nullopt;
}

void read_access(ConfigTable& table, PoolSpec& spec) {
  constexpr const char* kUsers = "users of this machine, or their numbers";
  constexpr const char* kGroups = "groups of this machine, or their numbers";
  spec.users = table.names_or_numbers("users", kUsers, user_of);
  spec.groups = table.names_or_numbers("groups", kGroups, group_of);
  spec.readers = table.names_or_numbers("readers", kUsers, user_of);
  spec.reader_groups = table.names_or_numbers("reader_groups", kGroups, group_of);
  spec.admins = table.names_or_numbers("admins", kUsers, user_of);
  spec.admin_groups = table.names_or_numbers("admin_groups", kGroups, group_of);
}

namespace {

constexpr int64_t kCountMax = INT32_MAX;

UserLimitRule read_limits(ConfigTable& table) {
  UserLimitRule rule;
  if (auto value = table.integer("connections", 0, limits::kConnectionsMax)) rule.connections = uint64_t(*value);
  if (auto value = table.integer("regions", 0, kCountMax)) rule.regions = uint64_t(*value);
  rule.bytes = table.size_or_zero("bytes");
  if (rule.bytes) rule.bytes_line = table.lines().at("bytes");
  if (auto value = table.integer("pins", 0, kCountMax)) rule.pins = uint64_t(*value);
  return rule;
}

}  // namespace

void read_user_limits(ConfigTable& root, Config& config) {
  if (auto table = root.table("limits")) {
    const UserLimitRule all = read_limits(*table);
    const UserLimits none;
    config.user_limits = {all.connections.value_or(none.connections), all.regions.value_or(none.regions),
                          all.bytes.value_or(none.bytes), all.pins.value_or(none.pins)};
    config.user_limits_bytes_line = all.bytes_line;
    table->refuse_unknown();
  }
  for (ConfigTable& table : root.tables("limit")) {
    UserLimitRule rule = read_limits(table);
    rule.user = table.name_or_number("user", "a user of this machine, or its number", user_of);
    rule.group = table.name_or_number("group", "a group of this machine, or its number", group_of);
    if (table.has("user") && table.has("group")) table.wrong("group", "nothing: this table is for a user");
    if (!table.has("user") && !table.has("group")) table.missing("user", "a user, or a group under \"group\"");
    for (const UserLimitRule& other : config.user_limit_rules) {
      if (rule.user && other.user == rule.user) table.wrong("user", "each user once");
      if (rule.group && other.group == rule.group) table.wrong("group", "each group once");
    }
    table.refuse_unknown();
    config.user_limit_rules.push_back(rule);
  }
}

bool others_may_connect(const Config& config) {
  return config.admin_group || std::any_of(config.pools.begin(), config.pools.end(), [](const PoolSpec& spec) {
           return !spec.users.empty() || !spec.groups.empty() || !spec.readers.empty() || !spec.reader_groups.empty() ||
                  !spec.admins.empty() || !spec.admin_groups.empty();
         });
}

}  // namespace maru::daemon
