// Who may use what: the lists of users and groups.
#include "daemon/config_table.h"

#include <algorithm>
#include <grp.h>
#include <pwd.h>

namespace maru::daemon {

std::optional<gid_t> group_of(const std::string& name) {
  const group* entry = ::getgrnam(name.c_str());
  return entry ? std::optional<gid_t>(entry->gr_gid) : std::nullopt;
}

std::optional<uid_t> user_of(const std::string& name) {
  const passwd* entry = ::getpwnam(name.c_str());
  return entry ? std::optional<uid_t>(entry->pw_uid) : std::nullopt;
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

bool others_may_connect(const Config& config) {
  return config.admin_group || std::any_of(config.pools.begin(), config.pools.end(), [](const PoolSpec& spec) {
           return !spec.users.empty() || !spec.groups.empty() || !spec.readers.empty() || !spec.reader_groups.empty() ||
                  !spec.admins.empty() || !spec.admin_groups.empty();
         });
}

}  // namespace maru::daemon
