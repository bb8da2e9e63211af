// The owners of subordinate user ids: subuid(5). A user may run processes under each id of its ranges, so that a limit
// on one user means nothing unless these count as the user's own.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace maru::daemon {

class SubordinateUsers {
 public:
  using UserOf = std::function<std::optional<uid_t>(const std::string& name)>;

  // Lines "name or number:first:count"; any other line, a line of an unknown user, and a line about the ids of root are
  // left out. An id in several ranges belongs to the range that begins first, or is written first.
  static SubordinateUsers parse(std::istream& lines, const UserOf& user_of);
  // /etc/subuid, with the names of /etc/passwd: users of a directory are known there by their numbers alone, because to ask
  // for them can take as long as the directory likes.
  static SubordinateUsers of_this_machine();

  // The account of a user: the owner of the range that the id is in, or the user itself.
  uid_t owner(uid_t user) const;

 private:
  struct Range {
    uint64_t first, end;
    uid_t owner;
  };
  std::vector<Range> ranges_;  // by `first`, none within another
};

}  // namespace maru::daemon
