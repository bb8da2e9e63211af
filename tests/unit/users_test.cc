// Who counts for what: subordinate ids, strangers, and the connections that are kept for administrators.
#include "daemon/server/users.h"

#include <gtest/gtest.h>
#include <sstream>

namespace maru::daemon {
namespace {

constexpr uid_t kAlice = 1000, kBob = 1001, kStranger = 7777;

SubordinateUsers subordinates(const std::string& text) {
  std::istringstream lines(text);
  return SubordinateUsers::parse(lines, [](const std::string& name) -> std::optional<uid_t> {
    if (name == "alice") return kAlice;
    if (name == "bob") return kBob;
    if (name == "root") return 0;
    return std::nullopt;
  });
}

TEST(SubordinateUsers, AnIdBelongsToTheOwnerOfItsRange) {
  const SubordinateUsers users = subordinates(
      "alice:100000:65536\n# nothing\n\n1001:200000:10\nnobody here:300000:10\nroot:400000:10\nalice:500000:0\n"
      "bob:x:3\nbob:1:\nbob:4294967290:10\nbob\n");
  EXPECT_EQ(users.owner(100'000), kAlice);
  EXPECT_EQ(users.owner(165'535), kAlice);
  EXPECT_EQ(users.owner(165'536), 165'536u);
  EXPECT_EQ(users.owner(99'999), 99'999u);
  EXPECT_EQ(users.owner(200'009), kBob);
  EXPECT_EQ(users.owner(300'000), 300'000u) << "its owner is unknown";
  EXPECT_EQ(users.owner(400'000), 400'000u) << "root has no limits, and what it starts is not root";
  EXPECT_EQ(users.owner(500'000), 500'000u) << "an empty range";
  EXPECT_EQ(users.owner(4'294'967'295), kBob);
  EXPECT_EQ(users.owner(0), 0u);
  EXPECT_EQ(SubordinateUsers().owner(kAlice), kAlice);
  const SubordinateUsers nested =
      subordinates("bob:120000:10\nalice:100000:65536\nbob:165000:1000\nbob:100000:65536\n");
  EXPECT_EQ(nested.owner(120'005), kAlice);
  EXPECT_EQ(nested.owner(150'000), kAlice);
  EXPECT_EQ(nested.owner(165'535), kAlice);
  EXPECT_EQ(nested.owner(165'536), kBob);
  EXPECT_EQ(nested.owner(165'999), kBob);
  EXPECT_EQ(nested.owner(166'000), 166'000u);
}

class UsersTest : public testing::Test {
 protected:
  static Peer peer(uid_t user, gid_t group = 100) {
    Peer peer;
    peer.who.uid = user;
    peer.who.gid = group;
    return peer;
  }
  // Connects as Server does. Why not, or nothing.
  std::string connect(const Peer& who) {
    const std::string why = users_.why_no_connection(who, "somebody", connections_, closing_, 0);
    if (!why.empty()) return why;
    users_.connected(users_.account_of(who.who.uid), users_.is_stranger(who));
    ++connections_;
    return {};
  }
  size_t closing_ = 0;
  Config config_;
  std::vector<std::unique_ptr<HostedPool>> pools_;
  LaneWatches lanes_;
  Users users_{config_, pools_, lanes_};
  size_t connections_ = 0;
};

TEST_F(UsersTest, SubordinateIdsOfAUserShareItsLimit) {
  config_.subordinate_users = subordinates("alice:100000:65536\n");
  config_.user_limits.connections = 3;
  EXPECT_EQ(connect(peer(kAlice)), "");
  EXPECT_EQ(connect(peer(100'000)), "");
  EXPECT_EQ(connect(peer(100'001)), "");
  EXPECT_NE(connect(peer(100'002)).find("user 1000 has 3 connections"), std::string::npos);
  EXPECT_NE(connect(peer(kAlice)), "");
  EXPECT_EQ(connect(peer(kBob)), "");
  users_.left(kAlice, true);
  EXPECT_EQ(connect(peer(100'002)), "");
  // What is said of the owner holds for them.
  config_.user_limit_rules.push_back(
      {.user = kAlice, .group = {}, .connections = 5, .regions = {}, .bytes = {}, .pins = {}});
  EXPECT_EQ(connect(peer(100'003)), "");
  EXPECT_EQ(connect(peer(100'003)), "");
  EXPECT_NE(connect(peer(100'003)), "");
  // Who has a rule of its own counts for itself.
  config_.user_limit_rules.push_back(
      {.user = 100'004, .group = {}, .connections = 1, .regions = {}, .bytes = {}, .pins = {}});
  EXPECT_EQ(connect(peer(100'004)), "");
  EXPECT_NE(connect(peer(100'004)).find("user 100004 has 1 connections"), std::string::npos);
}

TEST_F(UsersTest, AConnectionThatIsNotClosedYetIsOneStill) {
  config_.user_limits.connections = 3;
  closing_ = 2;
  EXPECT_EQ(connect(peer(kAlice)), "");
  EXPECT_NE(connect(peer(kAlice)).find("has 3 connections to marud already, 2 of them not closed yet"),
            std::string::npos);
  closing_ = 0;
  EXPECT_EQ(connect(peer(kAlice)), "");
}

TEST_F(UsersTest, StrangersHaveFewConnectionsAllTogetherAndAdministratorsTheLastOnes) {
  constexpr gid_t kAdmins = 50;
  config_.admin_group = kAdmins;
  std::string why;
  uint64_t strangers = 0;
  while (strangers < 1000 && (why = connect(peer(uid_t(kStranger + strangers)))).empty()) ++strangers;
  EXPECT_EQ(strangers, 64u);
  EXPECT_NE(why.find("users who may use no pool have 64 connections"), std::string::npos) << why;
  EXPECT_EQ(connect(peer(kAlice, kAdmins)), "");
  connections_ = limits::kConnectionsMax - 64;
  EXPECT_NE(connect(peer(kStranger)).find("kept for administrators"), std::string::npos);
  EXPECT_EQ(connect(peer(kAlice, kAdmins)), "");
  EXPECT_EQ(connect(peer(0)), "");
  connections_ = limits::kConnectionsMax;
  EXPECT_NE(connect(peer(0)).find("as many as there can be"), std::string::npos);
}

}  // namespace
}  // namespace maru::daemon
