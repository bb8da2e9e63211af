// Who may attach is decided by the pool's access list and the kernel's word about who is asking.
#include "tests/process/roles.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"

#include <cerrno>
#include <cstdlib>
#include <grp.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace maru::test {
namespace {

constexpr uid_t kListed = 54'321, kStranger = 54'322;

// What maru_attach says to this user: the errno.
int attach_as(const MarudProcess& marud, uid_t user) {
  ChildProcess process({own_program(), "--role", "attach-as", marud.socket_path(), std::to_string(user)});
  const auto ended = process.wait();
  return ended && !ended->by_signal ? ended->code : -1;
}

TEST(Access, OnlyListedUsersAttach) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become other users";
  PoolWish pool;
  pool.users = std::to_string(kListed);
  MarudProcess marud({pool});
  marud.directory().open_to_everybody();
  EXPECT_EQ(attach_as(marud, kListed), 0);
  EXPECT_EQ(attach_as(marud, kStranger), EACCES);
  EXPECT_EQ(attach_as(marud, 0), 0);
  EXPECT_TRUE(marud.has_logged("may not use pool \"default\": refused"));
}

TEST(Access, WithoutAListNobodyElseReachesTheSocket) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become other users";
  MarudProcess marud;
  marud.directory().open_to_everybody();
  EXPECT_EQ(attach_as(marud, kStranger), EACCES);
}

}  // namespace

// --role attach-as SOCKET USER: ends with the errno of attaching.
int run_attach_as(int argument_count, char** arguments) {
  if (argument_count != 2) return 2;
  const auto user = uid_t(std::strtoul(arguments[1], nullptr, 10));
  if (user != 0 && (::setgroups(0, nullptr) != 0 || ::setgid(user) != 0 || ::setuid(user) != 0)) return 126;
  const std::string socket_path = arguments[0], pool = "default";
  int result = 0;
  const auto client = TestClient::try_attach(socket_path, pool, &result);
  return -result;
}

}  // namespace maru::test
