// Two maruds on one file, each taken for a host of its own (--boot-id, --machine-id), and clients of both. What this cannot
// show is a host that takes its caches with it; that is the simulator's. tests/hardware/vm/hosts.py has real kernels.
#include "tests/process/board.h"
#include "tests/process/keeper.h"
#include "tests/process/puppet.h"
#include "tests/process/roles.h"
#include "tests/process/shared_hosts.h"
#include "tests/support/control_map.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <memory>
#include <sstream>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace maru::test {
namespace {

// The pool is all in one file, or has its control region in a file of its own.
class HostsOnFiles : public Hosts, public ::testing::WithParamInterface<const char*> {
 protected:
  const bool is_in_two_ = std::string(GetParam()) == "TwoFiles";
  const std::string control_path_ = directory_.file("control");
  const std::string files_ = is_in_two_ ? "control_path = \"" + control_path_ + "\"\n" : "";
  const std::string watched_ = files_ + watch_;

  Host begun(uint32_t number) { return Host(directory_, number, files_, 16u << 20, Host::Start::kBegin); }
};
INSTANTIATE_TEST_SUITE_P(On, HostsOnFiles, ::testing::Values("OneFile", "TwoFiles"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(HostsOnFiles, ABlockStoredOnOneHostIsFoundOnTheOther) {
  Host a(directory_, 0, files_), b(directory_, 1, files_);
  EXPECT_EQ(::access(control_path_.c_str(), F_OK) == 0, is_in_two_);
  EXPECT_EQ(a.state_of(1), "live");
  EXPECT_EQ(b.state_of(0), "live");
  Puppet on_a(a.socket_path()), on_b(b.socket_path());
  ASSERT_EQ(on_a.store("root", "of host a"), 0);
  EXPECT_EQ(on_b.retrieve("root").at("text"), "of host a");
  EXPECT_EQ(on_b.store("root", "again"), 1) << "one key, one block, whoever stores it";
  ASSERT_EQ(on_b.store("child", "of host b", "root"), 0);
  EXPECT_EQ(on_a.retrieve("child").at("text"), "of host b");
  EXPECT_EQ(on_a.remove("root"), -ENOTEMPTY) << "a child on another host counts like any other";
  EXPECT_EQ(on_a.remove("child"), 0);
  EXPECT_EQ(on_b.exists("child"), 0);
  EXPECT_EQ(on_b.release("root"), 0);
  EXPECT_EQ(on_a.release("child"), 0);
  // The child was pinned when it was deleted: marud of host a frees it, and lowers a count that lies in anybody's region.
  EXPECT_TRUE(wait_until([&] { return on_b.remove("root") == 0; })) << "anybody may delete";
  EXPECT_EQ(on_a.exists("root"), 0);
  const uint32_t lane_a = uint32_t(on_a.result({{"do", "lane"}})), lane_b = uint32_t(on_b.result({{"do", "lane"}}));
  EXPECT_LT(lane_a, 8u);
  EXPECT_GT(lane_b, 8u) << "lanes belong to hosts by their number";
  on_a.ask({{"do", "detach"}});
  on_b.ask({{"do", "detach"}});
  EXPECT_EQ(a.violations(), 0u);
  EXPECT_EQ(b.violations(), 0u);
  const auto ended = b.stop();
  EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0);
  EXPECT_EQ(a.state_of(1), "free") << "nobody was left: a clean detach";
}

// On request, so that who asks for processes of this machine gets no others.
TEST_F(Hosts, ClientsOfAllHostsAreListedWithTheirHost) {
  Host a(directory_, 0), b(directory_, 1);
  Puppet on_a(a.socket_path()), on_b(b.socket_path());
  ASSERT_EQ(on_b.store("of b", "stored by b"), 0);
  const auto lane_b = uint32_t(on_b.result({{"do", "lane"}}));
  EXPECT_EQ(a.ask({{"command", "clients"}}).at("clients").size(), 1u);
  const json rows = a.ask({{"command", "clients"}, {"all_hosts", true}}).at("clients");
  ASSERT_EQ(rows.size(), 2u) << rows.dump();
  EXPECT_EQ(rows[0].at("host"), 0);
  EXPECT_EQ(rows[0].at("pid"), on_a.process().pid());
  const json& other = rows[1];
  EXPECT_EQ(other.at("host"), 1);
  EXPECT_EQ(other.at("host_name"), a.host(1).at("name"));
  EXPECT_EQ(other.at("pid"), on_b.process().pid());
  EXPECT_EQ(other.at("uid"), ::getuid());
  EXPECT_EQ(other.at("lane"), lane_b);
  EXPECT_EQ(other.at("pool"), "default");
  EXPECT_EQ(other.at("state"), "live");
  EXPECT_EQ(other.at("regions"), 1);
  EXPECT_FALSE(other.contains("start_time")) << "by which a process of this host would be known";
  const json rest = a.ask({{"command", "clients"}, {"all_hosts", true}, {"cursor", (1ull << 48) + lane_b + 1}});
  EXPECT_TRUE(rest.at("clients").empty()) << rest.dump();

  const char* program = std::getenv("MARU_TEST_MARUDCTL");
  ASSERT_TRUE(program);
  const std::string path = directory_.file("marudctl.out");
  const auto ended = ChildProcess({program, "--socket", a.socket_path(), "clients"}, path).wait();
  EXPECT_TRUE(ended && ended->code == 0);
  std::stringstream table;
  table << std::ifstream(path).rdbuf();
  EXPECT_NE(table.str().find("HOST"), std::string::npos) << table.str();
  EXPECT_NE(table.str().find("1 (" + other.at("host_name").get<std::string>() + ")"), std::string::npos) << table.str();
  on_b.ask({{"do", "detach"}});
  EXPECT_TRUE(
      wait_until([&] { return a.ask({{"command", "clients"}, {"all_hosts", true}}).at("clients").size() == 1; }));
}

// Both find nothing; one makes the pool, and the other one finds it at some moment of that.
TEST_P(HostsOnFiles, TwoHostsThatStartAtOnceMakeOnePool) {
  for (int round = 0; round < 5; ++round) {
    Host a = begun(0), b = begun(1);
    a.await();
    b.await();
    const auto uuid_on = [](const Host& host) {
      return host.ask({{"command", "status"}}).at("pools").at(0).at("uuid").get<std::string>();
    };
    EXPECT_EQ(uuid_on(a), uuid_on(b));
    Puppet on_a(a.socket_path()), on_b(b.socket_path());
    ASSERT_EQ(on_a.store("key", "of both"), 0);
    EXPECT_EQ(on_b.retrieve("key").at("text"), "of both");
    a.kill();
    b.kill();
    ASSERT_EQ(::unlink(directory_.file("pool").c_str()), 0);
    ASSERT_TRUE(!is_in_two_ || ::unlink(control_path_.c_str()) == 0);
  }
}

// As if the host that makes the pool had made one of the files yet.
TEST_F(Hosts, TheSecondHostWaitsForBothFilesOfTheFirst) {
  const std::string control_path = directory_.file("control"), files = "control_path = \"" + control_path + "\"\n";
  Host a(directory_, 0, files);
  ASSERT_EQ(Puppet(a.socket_path()).store("key", "of host a"), 0);
  ASSERT_TRUE(a.stop());
  const std::string elsewhere = directory_.file("elsewhere");
  for (const std::string& late : {control_path, directory_.file("pool")}) {
    ASSERT_EQ(::rename(late.c_str(), elsewhere.c_str()), 0);
    ::unlink((directory_.file("host1") + ".log").c_str());  // of the one before
    Host b(directory_, 1, files, 16u << 20, Host::Start::kBegin);
    EXPECT_TRUE(wait_until(
        [&] { return !b.is_running() || b.log().find("waits for both of its files") != std::string::npos; }));
    EXPECT_NE(::access(late.c_str(), F_OK), 0) << "half of a pool is not made anew";
    ASSERT_EQ(::rename(elsewhere.c_str(), late.c_str()), 0);
    b.await();
    EXPECT_EQ(Puppet(b.socket_path()).retrieve("key").at("text"), "of host a");
    ASSERT_TRUE(b.stop());
  }
}

TEST_F(Hosts, ASuspectHostKeepsItsBlocksItsPinsAndItsSlot) {
  Host a(directory_, 0, watch_), b(directory_, 1, watch_);
  Puppet on_a(a.socket_path()), on_b(b.socket_path());
  ASSERT_EQ(on_a.store("of a", "stored by a"), 0);
  ASSERT_EQ(on_b.store("pinned by a", "stored by b"), 0);
  ASSERT_EQ(on_b.store("pinned by nobody", "stored by b"), 0);
  ASSERT_EQ(on_a.retrieve("pinned by a").at("result"), 0);
  a.signal(SIGSTOP);
  ASSERT_TRUE(b.sees(0, "suspect"));
  EXPECT_TRUE(b.has_logged("is suspect: no heartbeat"));
  b.ask({{"command", "evict"}, {"pages", 4000}});
  EXPECT_EQ(on_b.exists("pinned by nobody"), 0);
  EXPECT_EQ(on_b.retrieve("pinned by a").at("result"), 0) << "a pin of a suspect host holds";
  EXPECT_EQ(on_a.ask({{"do", "read held"}, {"key", "pinned by a"}}).at("text"), "stored by b");
  EXPECT_EQ(on_b.retrieve("of a").at("text"), "stored by a");
  a.signal(SIGCONT);
  EXPECT_TRUE(b.sees(0, "live")) << "it was only slow";
  EXPECT_EQ(b.host(0).at("generation"), 1);
  EXPECT_EQ(on_a.store("again", "after all that"), 0);
  EXPECT_EQ(on_b.retrieve("again").at("text"), "after all that");
}

TEST_P(HostsOnFiles, WhatADeadHostHeldIsTakenBackAndNothingElse) {
  Host a(directory_, 0, watched_), b(directory_, 1, watched_);
  Board board;
  const std::string fd = std::to_string(board.fd());
  ChildProcess keeper({own_program(), "--role", "keeper", b.socket_path(), "7", fd, "0", "200"}, "", {board.fd()});
  Puppet on_a(a.socket_path()), on_b(b.socket_path());
  ASSERT_EQ(on_a.store("of a", "stored by a"), 0);
  ASSERT_EQ(on_b.store("held by both", "stored by b"), 0);
  ASSERT_EQ(on_a.retrieve("held by both").at("result"), 0);
  ASSERT_EQ(on_b.retrieve("held by both").at("result"), 0);
  ASSERT_EQ(on_a.ask({{"do", "alloc"}, {"bytes", 4096}, {"buffers", 5}}).at("result"), 0);
  const json early = b.ask({{"command", "host.declare_dead"}, {"host", 0}});
  if (early.contains("refused")) {  // unless the machine was so slow that it is suspect already
    EXPECT_NE(early.at("text").get<std::string>().find("not suspect"), std::string::npos) << early;
  }
  a.kill();
  on_a.process().kill();  // after its marud, which would take all of this back itself
  ASSERT_TRUE(b.sees(0, "suspect") || early.contains("state"));
  EXPECT_EQ(b.host(0).at("regions").is_number(), true);
  if (early.contains("refused")) {
    const json dead = b.ask({{"command", "host.declare_dead"}, {"host", 0}});
    ASSERT_EQ(dead.value("state", ""), "dead") << dead;
  }
  ASSERT_TRUE(b.sees(0, "free"));
  EXPECT_TRUE(b.has_logged("what host 0 held is taken back"));
  EXPECT_EQ(on_b.retrieve("of a").at("text"), "stored by a") << "a block outlives its host";
  EXPECT_EQ(on_b.ask({{"do", "read held"}, {"key", "held by both"}}).at("text"), "stored by b");
  EXPECT_EQ(on_b.release("of a"), 0);
  EXPECT_EQ(on_b.release("held by both"), 0);
  EXPECT_TRUE(wait_until([&] { return !keeper.is_running() || board->worker[0].kept.load() >= 200; }));
  EXPECT_TRUE(keeper.is_running()) << "a client of the survivor missed a block";
  board->stop.store(1);
  const auto ended = keeper.wait();
  EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0) << (ended ? ended->text() : "hangs");
  on_b.ask({{"do", "detach"}});
  EXPECT_TRUE(wait_until([&] { return b.violations() == 0; })) << b.ask({{"command", "check"}, {"quiesce", true}});
  b.ask({{"command", "clear"}});
  json status;
  // What is in use is counted region by region, in turns.
  EXPECT_TRUE(wait_until([&] {
    status = b.ask({{"command", "status"}}).at("pools").at(0);
    return status.at("in_use_bytes") == 0;
  })) << "five pages were being filled by the dead: "
      << status;
  EXPECT_EQ(status.at("blocks"), 0);
  // The slot, and its lanes, are anybody's again.
  Host c(directory_, 0, watched_);
  Puppet on_c(c.socket_path());
  EXPECT_EQ(on_c.store("new", "from the slot of the dead"), 0);
}

TEST_F(Hosts, AHostLeavesTheQueuesOfTheOtherAlone) {
  Host a(directory_, 0, watch_), b(directory_, 1, watch_);
  Puppet on_b(b.socket_path());
  ASSERT_EQ(on_b.store("one", "in a region that nobody had"), 0);
  b.ask({{"command", "evict"}, {"pages", 1}});  // looks at all pages; what stays is in a queue
  ASSERT_EQ(on_b.store("two", "in the same"), 0);
  // Host 0 notices that the region is not anybody's any more.
  EXPECT_TRUE(wait_until([&] {
    const json rows = a.ask({{"command", "regions"}}).at("regions");
    return rows[0].at("state") == "draining";
  })) << a.ask({{"command", "regions"}})
      << b.ask({{"command", "regions"}});
  ASSERT_EQ(on_b.store("three", "after that"), 0);
  EXPECT_EQ(on_b.retrieve("two").at("text"), "in the same");
  EXPECT_EQ(on_b.release("two"), 0);
  // Host 1 looks at all pages again, and takes the coldest.
  b.ask({{"command", "evict"}, {"pages", 1}});
  for (const Host* host : {&a, &b})
    EXPECT_EQ(host->violations(), 0u) << host->ask({{"command", "check"}, {"quiesce", true}});
}

TEST_F(Hosts, ABootOfTheSameMachineIsAProof) {
  Host a(directory_, 0), b(directory_, 1);
  Puppet on_a(a.socket_path()), on_b(b.socket_path());
  ASSERT_EQ(on_a.store("of a", "before the boot"), 0);
  ASSERT_EQ(on_b.store("of b", "stored by b"), 0);
  ASSERT_EQ(on_a.retrieve("of b").at("result"), 0);
  const uint64_t generation = b.host(0).at("generation");
  a.kill();
  on_a.process().kill();
  a.boot_again();
  EXPECT_TRUE(a.has_logged("this machine was booted again"));
  EXPECT_EQ(b.host(0).at("generation"), generation + 1) << "its own slot again";
  EXPECT_EQ(on_b.retrieve("of a").at("text"), "before the boot");
  EXPECT_EQ(on_b.remove("of b"), 0);
  EXPECT_TRUE(wait_until([&] { return b.host(0).at("clients") == 0; })) << "lanes of the last boot";
  Puppet again(a.socket_path());
  EXPECT_EQ(again.retrieve("of a").at("text"), "before the boot");
}

// Two machines that were made from one image. A marud keeps a second one of its machine out by a lock; so the other machine is
// played by somebody who writes its heartbeat, and nothing else.
TEST_F(Hosts, AMachineWithTheIdOfAnotherThatLivesIsRefused) {
  Host a(directory_, 0);
  const ControlMap map(a.socket_path());
  const uint64_t claim = map.region().host(0).claim.load_acquire();
  a.kill();
  std::atomic<bool> lives = true;
  std::thread other([&] {
    AtomicU64& heartbeat = map.region().host(0).heartbeat_ms;
    for (uint64_t beat = heartbeat.load_acquire(); lives.load();
         std::this_thread::sleep_for(std::chrono::milliseconds(5)))
      heartbeat.store_release(++beat);
  });
  const std::string log = directory_.file("second.log");
  ChildProcess second(
      {marud_program(), "--config", directory_.file("host0.toml"), "--boot-id", kNextBoot, "--machine-id", "abcdef00"},
      log);
  const auto ended = second.wait();
  lives = false;
  other.join();
  EXPECT_TRUE(ended && !ended->by_signal && ended->code != 0) << (ended ? ended->text() : "goes on");
  std::stringstream said;
  said << std::ifstream(log).rdbuf();
  EXPECT_NE(said.str().find("has the same machine id and is alive"), std::string::npos) << said.str();
  EXPECT_EQ(map.region().host(0).claim.load_acquire(), claim) << "the slot stays whose it is";
}

TEST_F(Hosts, AHostThatWasDeclaredDeadFencesItself) {
  Host a(directory_, 0), b(directory_, 1);
  Puppet on_a(a.socket_path());
  ASSERT_EQ(on_a.store("of a", "stored by a"), 0);
  const json dead = b.ask({{"command", "host.declare_dead"}, {"host", 0}, {"force", true}});
  ASSERT_EQ(dead.value("state", ""), "dead") << dead;
  EXPECT_TRUE(a.has_logged("was declared dead by another one"));
  EXPECT_TRUE(wait_until([&] { return a.ask({{"command", "status"}}).at("pools").at(0).at("condition") == "fenced"; }));
  on_a.process().kill();
  EXPECT_TRUE(b.sees(0, "free"));
  const auto ended = a.stop();
  EXPECT_TRUE(ended && !ended->by_signal && ended->code == 0);
  EXPECT_EQ(b.state_of(0), "free") << "its end leaves the slot alone";
  a.start();
  EXPECT_EQ(b.state_of(0), "live") << "and it may come back";
}

// A machine that stood still: what happened meanwhile comes up before its marud looks at its slot.
TEST_F(Hosts, AHostThatWasDeclaredDeadTakesNothingBackThatIsAnothersByNow) {
  Host a(directory_, 0), b(directory_, 1);
  Puppet on_a(a.socket_path());
  ASSERT_EQ(on_a.store("of a", "stored by a"), 0);
  const auto lane = uint32_t(on_a.result({{"do", "lane"}}));
  const ControlMap map(b.socket_path());
  a.signal(SIGSTOP);
  const json dead = b.ask({{"command", "host.declare_dead"}, {"host", 0}, {"force", true}});
  ASSERT_EQ(dead.value("state", ""), "dead") << dead;
  ASSERT_TRUE(b.sees(0, "free"));
  on_a.process().kill();
  AtomicU64& slot = map.region().lane(lane).pins[0];
  slot.store_release(7);  // of who has the lane now
  a.signal(SIGCONT);
  EXPECT_TRUE(a.has_logged("was declared dead by another one"));
  EXPECT_TRUE(wait_until([&] { return a.ask({{"command", "status"}}).at("pools").at(0).at("condition") == "fenced"; }));
  EXPECT_EQ(slot.load_acquire(), 7u);
  slot.store_release(0);
}

// Its process lives on, so that marud would wait for it for ever.
TEST_F(Hosts, WhoLostItsConnectionToAFencedPoolSaysGoodbyeAllTheSame) {
  Host a(directory_, 0), b(directory_, 1);
  auto client =
      std::make_unique<TestClient>(a.socket_path(), "default", far_too_long_ms(), MARU_ATTACH_NO_SESSION_THREAD);
  ASSERT_EQ(client->store("of a", "stored by a"), 0);
  const json dead = b.ask({{"command", "host.declare_dead"}, {"host", 0}, {"force", true}});
  ASSERT_EQ(dead.value("state", ""), "dead") << dead;
  EXPECT_TRUE(wait_until([&] { return a.ask({{"command", "status"}}).at("pools").at(0).at("condition") == "fenced"; }));
  int ended = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_un peer = {};
    socklen_t bytes = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 && peer.sun_path == a.socket_path())
      ended += ::shutdown(fd, SHUT_RDWR) == 0;
  }
  ASSERT_EQ(ended, 1);
  EXPECT_TRUE(a.has_logged("is kept until the process ends or attaches again"));
  client.reset();
  const json all = a.ask({{"command", "device.list"}});
  EXPECT_EQ(all.at("devices").at(0).at("clients"), 0) << all.dump();
}

// Who has a fenced pool mapped would read what others have made of it since.
TEST_F(Hosts, ClientsLeaveAPoolThatWasFencedAndItIsRemovedAfterThem) {
  Host a(directory_, 0), b(directory_, 1);
  const auto clients = [&] {
    const json rows = a.ask({{"command", "device.list"}}).at("devices");
    return rows.empty() ? -1 : rows.at(0).at("clients").get<int>();
  };
  Puppet idle(a.socket_path());
  TestClient reader(a.socket_path());
  uint32_t lane = 0;
  const json all = a.ask({{"command", "clients"}});
  for (const json& row : all.at("clients"))
    if (row.at("pid") == ::getpid()) lane = row.at("lane");
  ASSERT_NE(lane, 0u);
  const ControlMap map(b.socket_path());  // where its lane is told of
  const auto generation = uint32_t(map.region().identity(lane).state.load_acquire() >> 48);
  ASSERT_EQ(reader.store("of a", "stored by a"), 0);
  maru_view view;
  ASSERT_EQ(reader.retrieve("of a", &view), 0);
  ASSERT_EQ(clients(), 2);
  const json dead = b.ask({{"command", "host.declare_dead"}, {"host", 0}, {"force", true}});
  ASSERT_EQ(dead.value("state", ""), "dead") << dead;
  EXPECT_TRUE(wait_until([&] { return a.ask({{"command", "status"}}).at("pools").at(0).at("condition") == "fenced"; }));
  EXPECT_TRUE(wait_until([&] { return reader.exists("of a") == -ESHUTDOWN && idle.exists("of a") == -ESHUTDOWN; }));
  EXPECT_TRUE(wait_until([&] { return clients() == 1; })) << "who holds nothing has left";
  ASSERT_EQ(a.ask({{"command", "device.remove"}, {"name", "default"}, {"deadline_ms", far_too_long_ms()}})
                .value("clients", 0),
            1);

  // It loses its connection, to another one of its process, and says goodbye on a third.
  auto socket = wire::connect_to(a.socket_path());
  ASSERT_TRUE(socket);
  wire::AttachRequest attach{};
  std::strcpy(attach.pool, "default");
  attach.previous_lane = lane;
  attach.previous_generation = generation;
  ASSERT_TRUE(wire::send_packet(socket->get(), wire::encode(wire::Type::kAttach, 1, 0, wire::bytes_of(attach)), -1,
                                far_too_long_ms()));
  const auto reply = wire::receive_packet(socket->get(), far_too_long_ms());
  ASSERT_TRUE(reply);
  const auto header = wire::decode_reply(reply->bytes);
  ASSERT_TRUE(header);
  EXPECT_EQ(header->status, -EIO);
  EXPECT_TRUE(a.has_logged("it attached again on another connection"));
  EXPECT_EQ(clients(), 1) << "removing waits for it";
  EXPECT_EQ(reader.release(view), 0);
  EXPECT_TRUE(wait_until([&] { return clients() == -1; })) << a.log();
}

// More pages than one turn takes, and regions of the dead host behind what it sees.
TEST_F(Hosts, WhatADeadHostHeldIsTakenBackInTurns) {
  constexpr uint64_t kBytes = 512u << 20;
  constexpr uint64_t kPagesOfATurn = 1u << 16, kMore = 64 * 256;  // in 64 regions
  Host a(directory_, 0, watch_, kBytes), b(directory_, 1, watch_, kBytes);
  const auto regions_of_status = [&](const char* state) {
    return b.ask({{"command", "status"}}).at("pools").at(0).at("region_states").at(state).get<uint64_t>();
  };
  Puppet on_b(b.socket_path());
  {
    Puppet on_a(a.socket_path());
    ASSERT_EQ(on_a.store("early", "stored first"), 0);
    ASSERT_EQ(on_a.ask({{"do", "alloc"}, {"bytes", 4096}, {"buffers", kPagesOfATurn + kMore}}).at("result"), 0);
    ASSERT_EQ(on_a.store("late", "stored last"), 0);
    a.kill();
    on_a.process().kill();
  }
  ASSERT_TRUE(b.sees(0, "suspect"));
  const json dead = b.ask({{"command", "host.declare_dead"}, {"host", 0}});
  ASSERT_EQ(dead.value("state", ""), "dead") << dead;
  ASSERT_TRUE(b.sees(0, "free"));
  EXPECT_TRUE(b.has_logged("what host 0 held is taken back"));
  EXPECT_EQ(on_b.retrieve("early").at("text"), "stored first");
  EXPECT_EQ(on_b.retrieve("late").at("text"), "stored last");
  EXPECT_LE(regions_of_status("orphaned"), 2u) << "those with the blocks; the others had only what was being filled";
  EXPECT_TRUE(wait_until([&] { return b.violations() == 0; })) << b.ask({{"command", "check"}, {"quiesce", true}});
}

// As if the host had died before its caches held the bytes no more: the block line says what the payload does not.
TEST_P(HostsOnFiles, ABlockWhosePayloadWasLostWithItsHostIsAMiss) {
  Host a(directory_, 0, watched_), b(directory_, 1, watched_);
  Puppet on_b(b.socket_path());
  const std::string lost = "the bytes that host a took with it";
  {
    Puppet on_a(a.socket_path());
    ASSERT_EQ(on_a.store("lost", lost), 0);
    ASSERT_EQ(on_a.store("below", "child of what was lost", "lost"), 0);
    ASSERT_EQ(on_a.store("kept", "the bytes that were flushed"), 0);
    on_a.process().kill();
  }
  a.kill();
  {
    std::fstream pool(directory_.file("pool"), std::ios::in | std::ios::out | std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(pool)), {});
    const size_t at = bytes.find(lost);
    ASSERT_NE(at, std::string::npos);
    pool.clear();
    pool.seekp(std::streamoff(at));
    pool << std::string(lost.size(), '\0');
  }
  ASSERT_TRUE(b.sees(0, "suspect"));
  EXPECT_EQ(on_b.retrieve("kept").at("text"), "the bytes that were flushed") << "the host is only suspect";
  EXPECT_EQ(on_b.retrieve("lost").at("result"), -EIO) << "its child holds it, and it is never handed out";
  EXPECT_EQ(on_b.retrieve("below").at("text"), "child of what was lost");
  EXPECT_EQ(on_b.release("below"), 0);
  EXPECT_EQ(on_b.remove("below"), 0);
  ASSERT_EQ(b.ask({{"command", "host.declare_dead"}, {"host", 0}}).value("state", ""), "dead");
  ASSERT_TRUE(b.sees(0, "free"));
  EXPECT_TRUE(wait_until([&] { return on_b.retrieve("lost").at("result") == -ENOENT; })) << "then it goes";
  EXPECT_EQ(on_b.retrieve("kept").at("text"), "the bytes that were flushed");
  EXPECT_EQ(on_b.store("lost", "stored anew"), 0);
  EXPECT_EQ(on_b.retrieve("lost").at("text"), "stored anew");
}

// As marud of a host with much memory free does for one that has none: Grants::ask_other_hosts().
TEST_F(Hosts, AHostWithoutMemoryIsGivenARegionOfTheOther) {
  Host a(directory_, 0, watch_), b(directory_, 1, watch_);
  Puppet on_a(a.socket_path());
  // Until host a rents all that there is.
  const auto unused = [&] { return b.ask({{"command", "host.list"}}).at("unused_regions").get<int>(); };
  for (int i = 0; i < 100 && unused() > 0; ++i)
    ASSERT_GT(on_a.ask({{"do", "store many"}, {"key", "a" + std::to_string(i)}, {"count", 200}}).at("result"), 0);
  ASSERT_EQ(unused(), 0);
  Puppet on_b(b.socket_path());
  // Whatever it has got without asking is not enough for its share.
  int number = 0;
  EXPECT_TRUE(wait_until([&] {
    on_b.ask({{"do", "store many"}, {"key", "b" + std::to_string(number++)}, {"count", 200}});
    return a.log().find("is given up for host 1, which asked for one") != std::string::npos;
  }));
  EXPECT_TRUE(wait_until([&] {
    on_b.ask({{"do", "store many"}, {"key", "b" + std::to_string(number++)}, {"count", 200}});
    return a.host(1).at("regions") >= 2;
  })) << a.ask({{"command", "host.list"}});
  EXPECT_EQ(on_b.store("of b", "in a region that was a's"), 0);
  EXPECT_EQ(on_a.retrieve("of b").at("text"), "in a region that was a's");
  EXPECT_EQ(on_a.release("of b"), 0);
  on_a.ask({{"do", "detach"}});
  on_b.ask({{"do", "detach"}});
  EXPECT_TRUE(wait_until([&] { return a.violations() == 0; })) << a.ask({{"command", "check"}, {"quiesce", true}});
}

TEST_F(Hosts, AHostThatDrainsASharedPoolEmptiesItsOwnPart) {
  Host a(directory_, 0, watch_), b(directory_, 1, watch_);
  Puppet on_a(a.socket_path()), on_b(b.socket_path());
  ASSERT_EQ(on_a.store("of a", "stored by a"), 0);
  ASSERT_EQ(on_b.store("of b", "stored by b"), 0);
  ASSERT_EQ(on_b.store("pinned", "stored by b"), 0);
  ASSERT_EQ(on_a.retrieve("pinned").at("result"), 0);
  const auto regions_of = [&](uint32_t host) { return b.host(host).at("regions").get<int>(); };
  ASSERT_EQ(regions_of(0), 1);
  ASSERT_EQ(regions_of(1), 1);
  ASSERT_EQ(a.ask({{"command", "device.drain"}, {"name", "default"}}).value("condition", ""), "draining");
  const auto drained = [&] { return a.ask({{"command", "device.list"}}).at("devices").at(0); };
  EXPECT_TRUE(wait_until([&] { return drained().value("drained", false); })) << drained();
  EXPECT_EQ(on_b.exists("of a"), 0) << "it went with its region";
  EXPECT_EQ(on_b.retrieve("of b").at("text"), "stored by b");
  EXPECT_EQ(regions_of(0), 0) << "given up, for others to rent";
  EXPECT_EQ(regions_of(1), 1);
  EXPECT_EQ(on_a.store("refused", "nothing is given any more"), -ESHUTDOWN);
  // Host b goes on in all there is.
  ASSERT_GT(on_b.ask({{"do", "store many"}, {"key", "many"}, {"count", 1000}}).at("result"), 0);
  EXPECT_GT(regions_of(1), 1);
  EXPECT_TRUE(wait_until([&] { return drained().value("drained", false); })) << "whatever b stores: " << drained();
  ASSERT_EQ(a.ask({{"command", "device.cancel"}, {"name", "default"}}).value("condition", ""), "serving");
  EXPECT_EQ(on_a.store("again", "after that"), 0);
  EXPECT_EQ(on_b.retrieve("again").at("text"), "after that");
  EXPECT_EQ(on_a.release("pinned"), 0);
  on_a.ask({{"do", "detach"}});
  on_b.ask({{"do", "detach"}});
  for (const Host* host : {&a, &b})
    EXPECT_TRUE(wait_until([&] { return host->violations() == 0; }))
        << host->ask({{"command", "check"}, {"quiesce", true}});
}

TEST_F(Hosts, LimitsOfTenantsAreRefusedAndNotIgnored) {
  Host a(directory_, 0, watch_);
  const json refused = a.ask({{"command", "quota.set"}, {"tenant", "t"}, {"hard", 4096}});
  EXPECT_EQ(refused.value("refused", 0), EOPNOTSUPP) << refused;
  EXPECT_EQ(a.ask({{"command", "quota.default"}, {"hard", 4096}}).value("refused", 0), EOPNOTSUPP);
  EXPECT_FALSE(a.ask({{"command", "quota.default"}}).contains("refused")) << "to ask is allowed";
}

TEST_F(Hosts, APoolIsOpenedAsWhatItIs) {
  {
    Host a(directory_, 0);
  }
  const auto run = [&](const std::string& more) {
    const std::string config = directory_.file("one.toml"), log = directory_.file("one.log");
    std::ofstream(config) << "[daemon]\nsocket = \"" << directory_.file("one.sock")
                          << "\"\n\n[[pool]]\nbackend = \"file\"\n"
                          << "path = \"" << directory_.file("pool") << "\"\n"
                          << more;
    std::ofstream(log).close();
    ChildProcess marud({marud_program(), "--config", config}, log);
    const auto ended = marud.wait();
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    return (ended ? ended->text() : "goes on") + "\n" + text.str();
  };
  EXPECT_NE(run("").find("expected profile = \"shared\" in the configuration"), std::string::npos) << run("");
  const std::string incoherent = run("profile = \"shared\"\n");
  EXPECT_NE(incoherent.find("expected coherent = true"), std::string::npos) << incoherent;
  const std::string local = run("coherent = true\n");
  EXPECT_NE(local.find("nothing without profile = \"shared\""), std::string::npos) << local;
}

}  // namespace

// For machines of their own (tests/hardware/vm/hosts.py): --role store|find|hold SOCKET KEY [TEXT].
static int run_client(const std::string& role, const char* socket, const char* key, const char* text) {
  TestClient client(socket);
  if (role == "store") return client.store(key, text) == 0 ? 0 : 1;
  maru_view view;
  if ((role != "find" && role != "hold") || client.retrieve(key, &view) != 0) return 1;
  std::fwrite(view.data, 1, view.bytes, stdout);
  std::fflush(stdout);  // for whoever waits for it in a file
  if (role == "hold") ::pause();
  return client.release(view) == 0 ? 0 : 1;
}

}  // namespace maru::test

int main(int count, char** arguments) {
  if (count >= 3 && std::strcmp(arguments[1], "--role") == 0) {
    if (std::strcmp(arguments[2], "puppet") == 0) return maru::test::run_puppet(count - 3, arguments + 3);
    if (std::strcmp(arguments[2], "keeper") == 0) return maru::test::run_keeper(count - 3, arguments + 3);
    if (count >= 5)
      return maru::test::run_client(arguments[2], arguments[3], arguments[4], count > 5 ? arguments[5] : "");
    return 2;
  }
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
