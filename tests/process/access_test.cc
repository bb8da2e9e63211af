// Who may attach and who may administrate is decided by the lists of the configuration and the kernel's word about who is
// asking.
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/roles.h"
#include "tests/support/marud_process.h"
#include "tests/support/slow_file.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <grp.h>
#include <gtest/gtest.h>
#include <sstream>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uid_t kListed = 54'321, kStranger = 54'322;
constexpr gid_t kGroup = 54'330, kOtherGroup = 54'331;

class Access : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can become other users";
  }
  // What maru_attach says to this user: the errno. `groups`: supplementary ones, "1,2".
  static int attach_as(const MarudProcess& marud, uid_t user, const std::string& groups = "-") {
    return status_of({own_program(), "--role", "attach-as", marud.socket_path(), std::to_string(user), groups}, "");
  }
  // What marud says to a command of this user: the errno; the answer is in answer_.
  int ask_as(const MarudProcess& marud, uid_t user, const std::string& groups, const json& request) {
    const std::string path = marud.directory().file("answer");
    ::unlink(path.c_str());
    const int status = status_of(
        {own_program(), "--role", "ask-as", marud.socket_path(), std::to_string(user), groups, request.dump()}, path);
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    answer_ = text.str();
    return status;
  }
  static PoolWish pool(const std::string& name, const std::string& more) {
    PoolWish pool;
    pool.name = name;
    pool.bytes = 4u << 20;
    pool.region_bytes = 256u << 10;
    pool.more = more;
    return pool;
  }
  // The list of users of pool "default", and marud told of it.
  static void give_to(const MarudProcess& marud, uid_t before, const std::string& after) {
    const std::string path = marud.directory().file("marud.toml"), was = "users = [" + std::to_string(before) + "]";
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    std::string changed = text.str();
    ASSERT_NE(changed.find(was), std::string::npos);
    changed.replace(changed.find(was), was.size(), after);
    std::ofstream(path) << changed;
    ::kill(marud.pid(), SIGHUP);
    ASSERT_TRUE(marud.has_logged("the configuration was read again"));
  }
  std::string answer_;

 private:
  static int status_of(const std::vector<std::string>& command, const std::string& output_path) {
    const auto ended = ChildProcess(command, output_path).wait();
    return ended && !ended->by_signal ? ended->code : -1;
  }
};

TEST_F(Access, OnlyListedUsersAttach) {
  PoolWish pool;
  pool.users = std::to_string(kListed);
  MarudProcess marud({pool});
  marud.directory().open_to_everybody();
  EXPECT_EQ(attach_as(marud, kListed), 0);
  EXPECT_EQ(attach_as(marud, kStranger), EACCES);
  EXPECT_EQ(attach_as(marud, 0), 0);
  EXPECT_TRUE(marud.has_logged(
      "may not use pool \"default\": refused, the access list of pool \"default\" does not name this user"));
  EXPECT_TRUE(marud.has_logged(", user " + std::to_string(kStranger) + ") may not use"));
}

TEST_F(Access, WithoutAListNobodyElseReachesTheSocket) {
  MarudProcess marud;
  marud.directory().open_to_everybody();
  EXPECT_EQ(attach_as(marud, kStranger), EACCES);
}

TEST_F(Access, AnyGroupOfTheProcessCounts) {
  MarudProcess marud({pool("default", "groups = [" + std::to_string(kGroup) + ", " + std::to_string(kListed) + "]\n")});
  marud.directory().open_to_everybody();
  EXPECT_EQ(attach_as(marud, kStranger), EACCES);
  EXPECT_EQ(attach_as(marud, kStranger, std::to_string(kOtherGroup)), EACCES);
  EXPECT_EQ(attach_as(marud, kStranger, std::to_string(kOtherGroup) + "," + std::to_string(kGroup)), 0);
  EXPECT_EQ(attach_as(marud, kListed), 0) << "the group that it runs as";
  // More than fit in one question to the kernel.
  std::string many;
  for (gid_t group = 60'000; group < 60'100; ++group) many += std::to_string(group) + ",";
  EXPECT_EQ(attach_as(marud, kStranger, many + std::to_string(kOtherGroup)), EACCES);
  EXPECT_EQ(attach_as(marud, kStranger, many + std::to_string(kGroup)), 0);
}

TEST_F(Access, AdminsOfAPoolAdministrateThatPoolAlone) {
  MarudProcess marud({pool("default", "users = [" + std::to_string(kStranger) + "]\n"),
                      pool("theirs", "admins = [" + std::to_string(kListed) + "]\nadmin_groups = [" +
                                         std::to_string(kGroup) + "]\n")});
  marud.directory().open_to_everybody();
  for (const auto& [user, groups] :
       {std::pair<uid_t, std::string>{kListed, "-"}, {kStranger, std::to_string(kGroup)}}) {
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "clear"}, {"pool", "theirs"}}), 0) << answer_;
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "clear"}, {"pool", "default"}}), EACCES) << answer_;
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "clear"}}), EACCES) << "the default pool: " << answer_;
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "device.drain"}, {"name", "theirs"}}), EACCES) << answer_;
    EXPECT_EQ(answer_, "\"device drain\" is for root, marud's own user and the admin group") << "marudctl's word";
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "client.fence"}, {"pid", ::getpid()}}), EACCES) << answer_;
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "client.forget"}, {"pool", "theirs"}, {"lane", 1}}), EACCES)
        << answer_;
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "metrics"}}), EACCES) << answer_;
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "metrics"}, {"pool", "theirs"}}), EACCES) << answer_;
    EXPECT_EQ(ask_as(marud, user, groups, {{"command", "clear"}, {"pool", "nothing"}}), ENOENT) << answer_;
    EXPECT_EQ(answer_, "there is no pool \"nothing\", expected one of theirs");
    ASSERT_EQ(ask_as(marud, user, groups, {{"command", "status"}}), 0) << answer_;
    const json pools = json::parse(answer_).at("pools");
    ASSERT_EQ(pools.size(), 1u) << answer_;
    EXPECT_EQ(pools[0].at("name"), "theirs");
  }
  EXPECT_TRUE(marud.has_logged(", user " + std::to_string(kListed) + ") may not administrate: "));
  EXPECT_EQ(ask_as(marud, kStranger, "-", {{"command", "status"}}), EACCES) << answer_;
  EXPECT_EQ(ask_as(marud, 0, "-", {{"command", "clear"}}), 0) << answer_;
  EXPECT_EQ(attach_as(marud, kListed), EACCES) << "who may administrate may not attach for that";
}

// Clients and their lanes, too: what others do in other pools is none of their business.
TEST_F(Access, AdminsOfAPoolSeeItsClientsAlone) {
  MarudProcess marud({pool("default", ""), pool("theirs", "admins = [" + std::to_string(kListed) + "]\n")});
  marud.directory().open_to_everybody();
  TestClient one(marud.socket_path()), two(marud.socket_path(), "theirs");
  ASSERT_EQ(ask_as(marud, kListed, "-", {{"command", "clients"}}), 0) << answer_;
  const json clients = json::parse(answer_).at("clients");
  ASSERT_EQ(clients.size(), 1u) << answer_;
  EXPECT_EQ(clients[0].at("pool"), "theirs");
  EXPECT_EQ(ask_as(marud, kListed, "-", {{"command", "clients"}, {"pool", "theirs"}}), 0) << answer_;
  EXPECT_EQ(ask_as(marud, kListed, "-", {{"command", "clients"}, {"pool", "default"}}), ENOENT) << answer_;
  EXPECT_EQ(answer_, "there is no pool \"default\", expected one of theirs");
}

TEST_F(Access, ReloadBringsTheListsIntoForce) {
  MarudProcess marud({pool("default", "users = [" + std::to_string(kListed) + "]\n")});
  marud.directory().open_to_everybody();
  ASSERT_EQ(attach_as(marud, kListed), 0);
  ASSERT_EQ(attach_as(marud, kStranger), EACCES);
  give_to(marud, kListed,
          "users = [" + std::to_string(kStranger) + "]\nadmins = [" + std::to_string(kStranger) +
              "]\npin_overdue_ms = 7000");
  EXPECT_TRUE(marud.has_logged("pool default: pin_overdue_ms was not set and is 7000 now: this waits for a restart"));
  EXPECT_EQ(marud.log().find("users was"), std::string::npos) << "in force at once";
  EXPECT_EQ(attach_as(marud, kListed), EACCES);
  EXPECT_EQ(attach_as(marud, kStranger), 0);
  EXPECT_EQ(ask_as(marud, kStranger, "-", {{"command", "clear"}}), 0) << answer_;
  EXPECT_EQ(ask_as(marud, kListed, "-", {{"command", "clear"}}), EACCES) << answer_;
}

// The pool that takes its place was described before.
TEST_F(Access, AReloadWhileAPoolBeginsAnewHoldsForTheNewOne) {
  MarudProcess marud({pool("default", "users = [" + std::to_string(kListed) + "]\n")}, 0);
  marud.directory().open_to_everybody();
  marud.kill();
  SlowFile slow(marud.directory().file("state/pool-default.tenants"));  // which the new pool reads, and finds a pipe
  marud.start();
  auto waiting = std::async(std::launch::async, [&] { return attach_as(marud, kListed); });  // makes it begin
  ASSERT_TRUE(slow.is_reached());
  give_to(marud, kListed, "users = [" + std::to_string(kStranger) + "]");
  slow.go_on();
  EXPECT_EQ(waiting.get(), EACCES);
  EXPECT_EQ(attach_as(marud, kListed), EACCES);
  EXPECT_EQ(attach_as(marud, kStranger), 0);
}

// Becomes this user with these supplementary groups.
bool become(const char* number, const std::string& groups) {
  const auto user = uid_t(std::strtoul(number, nullptr, 10));
  if (user == 0) return true;
  std::vector<gid_t> list;
  std::stringstream text(groups == "-" ? "" : groups);
  for (std::string one; std::getline(text, one, ',');) list.push_back(gid_t(std::strtoul(one.c_str(), nullptr, 10)));
  return ::setgroups(list.size(), list.data()) == 0 && ::setgid(user) == 0 && ::setuid(user) == 0;
}

}  // namespace

// --role attach-as SOCKET USER GROUPS: ends with the errno of attaching.
int run_attach_as(int argument_count, char** arguments) {
  if (argument_count != 3) return 2;
  if (!become(arguments[1], arguments[2])) return 126;
  const std::string socket_path = arguments[0], pool = "default";
  int result = 0;
  const auto client = TestClient::try_attach(socket_path, pool, &result);
  return -result;
}

// --role ask-as SOCKET USER GROUPS JSON: ends with the errno of an administration command, and prints the answer.
int run_ask_as(int argument_count, char** arguments) {
  if (argument_count != 4) return 2;
  if (!become(arguments[1], arguments[2])) return 126;
  auto socket = wire::connect_to(arguments[0]);
  if (!socket) return socket.error().code;
  const std::string_view text = arguments[3];
  const auto packet = wire::encode(wire::Type::kAdmin, 1, 0, std::as_bytes(std::span(text.data(), text.size())));
  if (!wire::send_packet(socket->get(), packet, -1, far_too_long_ms())) return 125;
  auto reply = wire::receive_packet(socket->get(), far_too_long_ms());
  if (!reply) return 125;
  const auto header = wire::decode_reply(reply->bytes);
  const auto payload = wire::payload_of(reply->bytes);
  std::fwrite(payload.data(), 1, payload.size(), stdout);
  return header ? -header->status : 125;
}

}  // namespace maru::test
