// Limits of users: what marud hands out ends where they say, what it cannot stop is noticed, whoever is refused is told why,
// and the others go on. A [[limit]] that names the user of the test limits it, whoever that is.
#include "libmaru/shm/recovery/region_handover.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/process/roles.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uint64_t kRegionBytes = 256u << 10, kPageBytes = 4096;
constexpr uid_t kAnother = 54'321;

std::string limit_of(uid_t user, const std::string& limits) {
  return "\n[[limit]]\nuser = " + std::to_string(user) + "\n" + limits + "\n";
}
std::string own_limit(const std::string& limits) { return limit_of(::geteuid(), limits); }

PoolWish pool(const std::string& more, const std::string& name = "default") {
  PoolWish pool;
  pool.name = name;
  pool.bytes = 4u << 20;
  pool.region_bytes = kRegionBytes;
  pool.pins = 64;
  pool.more = more;
  return pool;
}

// Takes memory and keeps it until there is no more; the last answer is in *ret_result.
uint64_t take_all(maru_client* client, int* ret_result) {
  uint64_t pages = 0;
  maru_buffer buffer;
  while ((*ret_result = maru_alloc(client, kPageBytes, &buffer)) == 0) ++pages;
  return pages;
}

uint64_t regions_rented(const MarudProcess& marud, const std::string& pool = "default") {
  uint64_t rented = 0;
  const json reply = marud.ask({{"command", "regions"}, {"pool", pool}});
  for (const json& region : reply.at("regions")) rented += region.at("state") == "rented";
  return rented;
}

TEST(UserLimits, RegionsEndAtTheLimitForAllClientsOfAUserTogether) {
  MarudProcess marud({pool(own_limit("regions = 3"))});
  auto first = std::make_unique<TestClient>(marud.socket_path());
  TestClient second(marud.socket_path());
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(second, kPageBytes, &buffer), 0);
  int result = 0;
  EXPECT_EQ(take_all(*first, &result), 2 * kRegionBytes / kPageBytes);
  EXPECT_EQ(result, -EDQUOT);
  EXPECT_EQ(regions_rented(marud), 3u);
  EXPECT_TRUE(marud.has_logged("rents 3 regions of 768 KiB, and may rent 3 (regions under [limits] or [[limit]]"));
  EXPECT_EQ(take_all(second, &result), kRegionBytes / kPageBytes - 1) << "the rest of its own";
  EXPECT_EQ(result, -EDQUOT);
  // What one gives back another may have.
  first.reset();
  EXPECT_EQ(take_all(second, &result), 2 * kRegionBytes / kPageBytes);
  EXPECT_EQ(result, -EDQUOT);
}

TEST(UserLimits, AClientIsToldWhatItsUserMayRent) {
  const auto told = [](const MarudProcess& marud) {
    const TestClient client(marud.socket_path());
    maru_geometry geometry{};
    geometry.size = sizeof(geometry);
    EXPECT_EQ(maru_get_geometry(client, &geometry), 0);
    return std::make_pair(geometry.user_regions_max, geometry.user_bytes_max);
  };
  const MarudProcess limited({pool(own_limit("regions = 3\nbytes = \"700KiB\""))}),
      others({pool(limit_of(kAnother, "regions = 3"))});
  EXPECT_EQ(told(limited), std::make_pair(uint64_t{3}, uint64_t{700} << 10));
  EXPECT_EQ(told(others), std::make_pair(uint64_t{0}, uint64_t{0}));
}

TEST(UserLimits, WhatHoldsForEverybodyDoesNotHoldForMarudsOwnUser) {
  MarudProcess marud({pool("\n[limits]\nregions = 1\nconnections = 1\n")});
  TestClient first(marud.socket_path()), second(marud.socket_path());
  int result = 0;
  EXPECT_GT(take_all(first, &result), 2 * kRegionBytes / kPageBytes);
  EXPECT_EQ(result, -ENOSPC);
}

TEST(UserLimits, AtTheLimitAClientEvictsItsOwnBlocksAndGoesOn) {
  MarudProcess marud({pool(own_limit("regions = 2"))});
  TestClient client(marud.socket_path());
  for (int i = 0; i < 500; ++i) ASSERT_EQ(client.store("k" + std::to_string(i), std::string(4000, 'x')), 0) << i;
  EXPECT_EQ(client.text("k499"), std::string(4000, 'x'));
  EXPECT_EQ(regions_rented(marud), 2u);
  EXPECT_LE(marud.pool_status().at("blocks").get<uint64_t>(), 2 * kRegionBytes / kPageBytes);
}

TEST(UserLimits, BytesCountOverAllPools) {
  MarudProcess marud({pool(""), pool(own_limit("bytes = \"800KiB\""), "other")});
  TestClient one(marud.socket_path()), two(marud.socket_path(), "other");
  int result = 0;
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(one, kPageBytes, &buffer), 0);
  EXPECT_EQ(take_all(two, &result), 2 * kRegionBytes / kPageBytes);
  EXPECT_EQ(result, -EDQUOT);
  EXPECT_EQ(regions_rented(marud) + regions_rented(marud, "other"), 3u);
  EXPECT_TRUE(marud.has_logged("rents 3 regions of 768 KiB, and may rent 800 KiB (bytes under"));
}

TEST(UserLimits, LessThanARegionIsNoMemoryAndIsSaid) {
  MarudProcess marud({pool(own_limit("bytes = \"100KiB\""))});
  const TestClient client(marud.socket_path());
  int result = 0;
  EXPECT_EQ(take_all(client, &result), 0u);
  EXPECT_EQ(result, -EDQUOT);
  EXPECT_TRUE(
      marud.has_logged("may rent 100 KiB (bytes under [limits] or [[limit]] in marud.toml), which is less than one "
                       "region of pool \"default\", 256 KiB: it gets no memory there"));
}

// A full pool in which everything is another user's: a limited one gets so many regions and not a page more.
TEST(UserLimits, ALimitedUserTakesNoMoreThanItsRegionsFromOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become other users";
  PoolWish wish = pool("users = [" + std::to_string(kAnother) + "]\n" + limit_of(kAnother, "regions = 2"));
  wish.pins = 1024;
  MarudProcess marud({wish});
  marud.directory().open_to_everybody();
  TestClient mine(marud.socket_path());
  const uint64_t pages = mine.geometry().pages;
  for (uint64_t i = 0; i < pages; ++i) {
    const int result = mine.store("mine " + std::to_string(i), "text");
    ASSERT_TRUE(result == 0 || result == -EXFULL) << i << ": " << result;  // rare: both of its buckets are full
  }
  const auto count = [&] {
    uint64_t there = 0;
    for (uint64_t i = 0; i < pages; ++i) there += mine.exists("mine " + std::to_string(i)) == 1;
    return there;
  };
  const uint64_t before = count();
  ChildProcess other({own_program(), "--role", "store-as", marud.socket_path(), std::to_string(kAnother), "600"});
  const auto ended = other.wait();
  ASSERT_TRUE(ended && !ended->by_signal);
  EXPECT_EQ(ended->code, EDQUOT) << "it holds all of its own blocks, and gets no others'";
  const uint64_t left = count();
  EXPECT_GE(left + 2 * kRegionBytes / kPageBytes, before);
  EXPECT_LT(left, before) << "it did get memory";
}

TEST(UserLimits, TooManyPinsAreNoticedAndCostMemoryAndLanes) {
  MarudProcess marud({pool(own_limit("pins = 20"))});
  TestClient client(marud.socket_path());
  std::vector<maru_view> held(40);
  for (size_t i = 0; i < held.size(); ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_EQ(client.store(key, "text " + std::to_string(i)), 0);
    ASSERT_EQ(client.retrieve(key, &held[i]), 0);
  }
  // How many there were when marud looked: 21 or more.
  ASSERT_TRUE(
      marud.has_logged(" of pool \"default\" and may pin 20: it gets neither memory nor another lane of that pool"));
  int result = 0;
  take_all(client, &result);
  EXPECT_EQ(result, -EDQUOT);
  EXPECT_TRUE(marud.has_logged(" blocks of pool \"default\", and may pin 20 of each pool (pins under"));
  EXPECT_FALSE(TestClient::try_attach(marud.socket_path(), "default", &result));
  EXPECT_EQ(result, -EDQUOT);
  for (size_t i = 0; i < held.size(); ++i)
    EXPECT_EQ(std::string_view(static_cast<const char*>(held[i].data), held[i].bytes), "text " + std::to_string(i));
  EXPECT_EQ(maru_release_batch(client, held.data(), held.size()), 0);
  EXPECT_TRUE(marud.has_logged("is within its limit of pins of pool \"default\" again"));
  EXPECT_TRUE(wait_until([&] { return TestClient::try_attach(marud.socket_path(), "default", &result) != nullptr; }));
  maru_buffer buffer;
  EXPECT_TRUE(wait_until([&] { return maru_alloc(client, kPageBytes, &buffer) == 0; }));
}

// A client that may write to a pool can write pins into every lane of it.
TEST(UserLimits, PinsInAPoolAreNoReasonInAnotherOne) {
  MarudProcess marud({pool(""), pool(own_limit("pins = 20"), "other")});
  TestClient victim(marud.socket_path());
  {
    const ControlMap map(marud.socket_path());
    const shm::LaneView lane = map.region().lane(victim.geometry().lane);
    for (uint32_t i = 0; i < 40; ++i) lane.pins[i].store_release(shm::PageRef::of(i, 0).bits);
  }
  ASSERT_TRUE(marud.has_logged("and may pin 20: it gets neither memory nor another lane of that pool"));
  int result = 0;
  take_all(victim, &result);
  EXPECT_EQ(result, -EDQUOT) << "in this pool it counts";
  TestClient there(marud.socket_path(), "other");
  maru_buffer buffer;
  EXPECT_EQ(maru_alloc(there, kPageBytes, &buffer), 0);
  EXPECT_TRUE(TestClient::try_attach(marud.socket_path(), "other", &result)) << result;
}

json ping(int socket, std::string* ret_text) {
  if (!wire::send_packet(socket, wire::encode(wire::Type::kPing, 7, 0, {}), -1, far_too_long_ms())) return "not sent";
  auto reply = wire::receive_packet(socket, far_too_long_ms());
  if (!reply) return reply.error().text();
  const auto header = wire::decode_reply(reply->bytes);
  const auto payload = wire::payload_of(reply->bytes);
  ret_text->assign(reinterpret_cast<const char*>(payload.data()), payload.size());
  return header ? json(header->status) : json("no reply");
}

TEST(UserLimits, ConnectionsBeyondTheLimitAreToldAndTheOthersGoOn) {
  MarudProcess marud({pool(own_limit("connections = 4"))});
  TestClient client(marud.socket_path());
  std::vector<FileDescriptor> sockets;
  std::string text;
  for (int i = 0; i < 3; ++i) {
    sockets.push_back(std::move(*wire::connect_to(marud.socket_path())));
    // The one by which the test asked whether marud was there may still be on its way out.
    EXPECT_TRUE(wait_until([&] {
      if (ping(sockets.back().get(), &text) == 0) return true;
      sockets.back() = std::move(*wire::connect_to(marud.socket_path()));
      return false;
    }));
  }
  for (int i = 0; i < 40; ++i) {
    auto refused = wire::connect_to(marud.socket_path());
    ASSERT_TRUE(refused);
    ASSERT_EQ(ping(refused->get(), &text), -EDQUOT) << i;
    EXPECT_NE(text.find("has 4 connections to marud already, as many as it may have"), std::string::npos) << text;
    const auto closed = wire::receive_packet(refused->get(), far_too_long_ms());
    EXPECT_TRUE(!closed && closed.error().code != ETIMEDOUT) << "it is not closed";
  }
  int result = 0;
  EXPECT_FALSE(TestClient::try_attach(marud.socket_path(), "default", &result));
  EXPECT_EQ(result, -EDQUOT);
  // Silent ones: a few wait for their answer, the others are closed, and nobody else notices.
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 100; ++i)
    if (auto socket = wire::connect_to(marud.socket_path())) silent.push_back(std::move(*socket));
  EXPECT_EQ(ping(sockets[0].get(), &text), 0);
  EXPECT_EQ(client.remove_tree("nothing"), -ENOENT);
  // They keep nobody from being told why; but who comes while many of them are on their way in or out may be closed without a
  // word, as they are.
  EXPECT_TRUE(wait_until([&] {
    const auto told = wire::connect_to(marud.socket_path());
    return told && ping(told->get(), &text) == -EDQUOT;
  }));
  silent.clear();
  sockets.pop_back();
  EXPECT_TRUE(wait_until([&] { return TestClient::try_attach(marud.socket_path(), "default", &result) != nullptr; }));
  EXPECT_TRUE(marud.has_logged("a connection of process "));
}

// Those who may use nothing take no places from those who may.
TEST(UserLimits, StrangersKeepNobodyOut) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become other users";
  MarudProcess marud({pool("users = [" + std::to_string(kAnother) + "]\n")});
  marud.directory().open_to_everybody();
  std::vector<FileDescriptor> connections;
  std::string text;
  const auto connect_as = [&](uid_t user) {
    EXPECT_EQ(::seteuid(user), 0);
    auto socket = wire::connect_to(marud.socket_path());
    const json result = socket ? ping(socket->get(), &text) : json(socket.error().text());
    EXPECT_EQ(::seteuid(0), 0);  // not before marud has looked who it is
    if (socket) connections.push_back(std::move(*socket));
    return result;
  };
  int let_in = 0;
  while (let_in < 200 && connect_as(uid_t(60'000 + let_in % 8)) == 0) ++let_in;
  EXPECT_EQ(let_in, 64);
  EXPECT_NE(text.find("users who may use no pool have 64 connections"), std::string::npos) << text;
  EXPECT_EQ(connect_as(kAnother), 0);
  EXPECT_EQ(connect_as(0), 0);
  EXPECT_EQ(connect_as(60'001), -EDQUOT);
  connections.erase(connections.begin(), connections.begin() + 8);
  EXPECT_TRUE(wait_until([&] { return connect_as(60'001) == 0; }));
}

// What came while marud stood still is all there at once, another user's first.
TEST(UserLimits, NobodyWaitsForAllThatAnotherUserAsks) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become other users";
  MarudProcess marud({pool("users = [" + std::to_string(kAnother) + "]\n")});
  marud.directory().open_to_everybody();
  constexpr size_t kMine = 30;  // so many that are dropped are all in the log
  std::vector<FileDescriptor> connections;
  const auto connect = [&] {
    auto socket = wire::connect_to(marud.socket_path());
    ASSERT_TRUE(socket) << socket.error().text();
    connections.push_back(std::move(*socket));
  };
  for (size_t i = 0; i < kMine; ++i) connect();
  // Linux before 6.5 does not say which process connected, so marud believes the user only while the process is that user's.
  ASSERT_TRUE(wait_until([&] { return marud.ask({{"command", "status"}}).at("connections") == kMine + 1; }));
  ASSERT_EQ(::seteuid(kAnother), 0);
  connect();
  const bool is_known = marud.has_logged("user " + std::to_string(kAnother) + ") connected");
  ASSERT_EQ(::seteuid(0), 0);
  ASSERT_TRUE(is_known) << marud.log();
  ASSERT_TRUE(wait_until([&] { return marud.ask({{"command", "status"}}).at("connections") == kMine + 2; }));

  marud.suspend();
  for (const FileDescriptor& socket : connections) ASSERT_EQ(::send(socket.get(), "?", 1, MSG_NOSIGNAL), 1);
  marud.resume();
  std::vector<std::string> dropped;  // in the order in which they were served
  ASSERT_TRUE(wait_until([&] {
    std::istringstream log(marud.log());
    dropped.clear();
    for (std::string line; std::getline(log, line);)
      if (line.find(" is dropped: ") != std::string::npos) dropped.push_back(line);
    return dropped.size() == kMine + 1;
  })) << marud.log();
  const auto theirs = std::find_if(dropped.begin(), dropped.end(), [](const std::string& line) {
    return line.find("user " + std::to_string(kAnother) + ")") != std::string::npos;
  });
  EXPECT_LT(size_t(theirs - dropped.begin()), kMine / 2);  // a turn sees some of what has come, not always all
}

TEST(UserLimits, ReloadBringsThemIntoForce) {
  MarudProcess marud({pool(own_limit("regions = 1"))});
  TestClient client(marud.socket_path());
  int result = 0;
  EXPECT_EQ(take_all(client, &result), kRegionBytes / kPageBytes);
  ASSERT_EQ(result, -EDQUOT);
  const std::string path = marud.directory().file("marud.toml");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string changed = text.str();
  ASSERT_NE(changed.find("regions = 1\n"), std::string::npos);
  changed.replace(changed.find("regions = 1\n"), 12, "regions = 3\n");
  std::ofstream(path) << changed;
  ::kill(marud.pid(), SIGHUP);
  ASSERT_TRUE(marud.has_logged("limits of users are in force"));
  EXPECT_EQ(take_all(client, &result), 2 * kRegionBytes / kPageBytes);
  EXPECT_EQ(result, -EDQUOT);
}

// What the pool says about a lane could have been written by any client: after a restart the kernel is asked.
TEST(UserLimits, ALaneThatClaimsToBeAnothersCountsForItsUserAfterARestart) {
  PoolWish wish = pool(own_limit("regions = 1"));
  wish.in_file = true;
  MarudProcess marud({wish});
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
  int result = 0;
  take_all(client, &result);
  ASSERT_EQ(result, -EDQUOT);
  {
    const ControlMap map(marud.socket_path());
    map.region().identity(client.geometry().lane).credentials.store_relaxed(uint64_t(kAnother) << 32 | kAnother);
  }
  marud.kill();
  marud.start();
  ASSERT_TRUE(marud.has_logged("still holds lane " + std::to_string(client.geometry().lane)));
  TestClient another(marud.socket_path());
  EXPECT_EQ(take_all(another, &result), 0u);
  EXPECT_EQ(result, -EDQUOT);
}

// The same of words about regions and lanes: a marud that starts knows these words alone.
TEST(UserLimits, RegionsAndLanesThatAPoolClaimsAreNoReasonInAnotherOneAfterARestart) {
  PoolWish claims = pool(""), other = pool(own_limit("regions = 3\nconnections = 4"), "other");
  claims.in_file = other.in_file = true;
  MarudProcess marud({claims, other});
  TestClient client(marud.socket_path());
  maru_buffer buffer;
  ASSERT_EQ(maru_alloc(client, kPageBytes, &buffer), 0);
  {
    const ControlMap map(marud.socket_path());
    const shm::ControlRegion& region = map.region();
    const uint32_t own = client.geometry().lane;
    const auto& mine = region.identity(own);
    const shm::LaneId id{own, uint32_t(mine.state.load_acquire() >> 48)};
    for (uint32_t i = 0; i < region.regions(); ++i)
      region.region(i).word.store_release(shm::RegionWord::of(format::RegionState::kRented, 1, id).bits);
    for (uint32_t lane = 1; lane < region.lanes(); ++lane) {
      if (lane == own) continue;
      auto& another = region.identity(lane);
      another.process.store_relaxed(mine.process.load_relaxed());
      another.start_time.store_relaxed(mine.start_time.load_relaxed());
      another.boot_id_lo.store_relaxed(mine.boot_id_lo.load_relaxed());
      another.boot_id_hi.store_relaxed(mine.boot_id_hi.load_relaxed());
      another.credentials.store_relaxed(mine.credentials.load_relaxed());
      another.pid_namespace.store_relaxed(mine.pid_namespace.load_relaxed());
      another.state.store_release(uint64_t(7) << 48 | uint64_t(format::LaneState::kLive));
    }
  }
  marud.kill();
  marud.start();
  ASSERT_TRUE(marud.has_logged("still holds lane " + std::to_string(client.geometry().lane == 1 ? 2 : 1)));
  int result = 0;
  const auto there = TestClient::try_attach(marud.socket_path(), "other", &result);
  ASSERT_TRUE(there) << result;
  EXPECT_EQ(maru_alloc(*there, kPageBytes, &buffer), 0);
}

TEST(UserLimits, MistakesInTheConfigurationAreNamed) {
  const TemporaryDirectory directory;
  const std::string config = directory.file("marud.toml"), output = directory.file("output");
  std::ofstream(config) << "[limits]\nconnections = 5000\n"
                           "[[limit]]\nuser = 1\ngroup = 2\nregions = -1\n"
                           "[[limit]]\nbytes = \"1GiB\"\n"
                           "[[limit]]\nuser = 1\nrows = 3\n"
                           "[[pool]]\nname = \"a\"\nbackend = \"memory\"\nsize = \"4MiB\"\n";
  const auto ended = ChildProcess({marud_program(), "--config", config, "--check-config"}, output).wait();
  ASSERT_TRUE(ended && !ended->by_signal);
  EXPECT_EQ(ended->code, 1);
  std::ifstream file(output);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  for (const char* expected :
       {":2: limits.connections: found 5000, expected a whole number from 0 to 4096",
        ":5: limit.group: found 2, expected nothing: this table is for a user",
        ":6: limit.regions: found -1, expected a whole number from 0 to ",
        ":7: limit.user: found nothing, expected a user, or a group",
        ":10: limit.user: found 1, expected each user once", ":11: limit.rows: found an unknown key"})
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\nnot in:\n" << text;
}

}  // namespace

// --role store-as SOCKET USER COUNT: stores blocks of a page as this user, or finds them there, and keeps them pinned; ends
// with the errno of the first that could not be stored.
int run_store_as(int argument_count, char** arguments) {
  if (argument_count != 3) return 2;
  const auto user = uid_t(std::strtoul(arguments[1], nullptr, 10));
  if (::setgid(user) != 0 || ::setuid(user) != 0) return 126;
  TestClient client(arguments[0]);
  for (int i = 0; i < std::atoi(arguments[2]); ++i) {
    const std::string key = "theirs " + std::to_string(i);
    const int result = client.store(key, "text");
    if (result == -EXFULL) continue;  // rare: both of its buckets are full
    if (result < 0) return -result;
    maru_view view;  // held until the end
    if (client.retrieve(key, &view) != 0) return 1;
  }
  return 0;
}

}  // namespace maru::test
