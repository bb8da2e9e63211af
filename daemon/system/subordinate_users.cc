#include "daemon/system/subordinate_users.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <istream>
#include <map>
#include <memory>
#include <pwd.h>
#include <vector>

namespace maru::daemon {
namespace {

std::optional<uint64_t> number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size() || value > UINT32_MAX) return {};
  return value;
}

}  // namespace

SubordinateUsers SubordinateUsers::parse(std::istream& lines, const UserOf& user_of) {
  SubordinateUsers users;
  for (std::string line; std::getline(lines, line);) {
    const size_t one = line.find(':'), two = one == std::string::npos ? one : line.find(':', one + 1);
    if (two == std::string::npos) continue;
    const std::string name = line.substr(0, one);
    const auto first = number(line.substr(one + 1, two - one - 1)), count = number(line.substr(two + 1));
    if (!first || !count || *count == 0) continue;
    const auto owner = number(name) ? std::optional(uid_t(*number(name))) : user_of(name);
    // Root has no limits; the ids that it gives to a container are not root.
    if (owner && *owner != 0) users.ranges_.push_back({*first, *first + *count, *owner});
  }
  std::stable_sort(users.ranges_.begin(), users.ranges_.end(),
                   [](const Range& a, const Range& b) { return a.first < b.first; });
  uint64_t end = 0;
  for (Range& range : users.ranges_) {
    range.first = std::max(range.first, end);
    end = std::max(end, range.end);
  }
  std::erase_if(users.ranges_, [](const Range& range) { return range.first >= range.end; });
  return users;
}

SubordinateUsers SubordinateUsers::of_this_machine() {
  std::map<std::string, uid_t, std::less<>> users;
  if (std::unique_ptr<FILE, int (*)(FILE*)> passwords(std::fopen("/etc/passwd", "re"), std::fclose); passwords) {
    std::vector<char> line(4096);  // a buffer of its own: several threads read configurations
    passwd entry = {};
    passwd* found = nullptr;
    for (int error = 0; error == 0 || error == ERANGE;) {
      error = ::fgetpwent_r(passwords.get(), &entry, line.data(), line.size(), &found);
      if (error == 0) users.emplace(entry.pw_name, entry.pw_uid);
      if (error == ERANGE) line.resize(2 * line.size());  // and the line once more
    }
  }
  std::ifstream file("/etc/subuid");
  return parse(file, [&](const std::string& name) {
    const auto found = users.find(name);
    return found == users.end() ? std::nullopt : std::optional(found->second);
  });
}

uid_t SubordinateUsers::owner(uid_t user) const {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), uint64_t(user),
                                [](uint64_t id, const Range& range) { return id < range.first; });
  if (after == ranges_.begin()) return user;
  const Range& range = *--after;
  return user < range.end ? range.owner : user;
}

}  // namespace maru::daemon
