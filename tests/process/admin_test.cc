// Administration of real processes' blocks: who pins what and for how long, one key in full, trees that go, and marudctl
// itself, also over a file.
#include "tests/support/child_process.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::test {
namespace {

using nlohmann::json;

class Admin : public ::testing::Test {
 protected:
  // Runs marudctl; what it prints is in output_.
  int marudctl(std::vector<std::string> arguments, const MarudProcess& marud) {
    const char* program = std::getenv("MARU_TEST_MARUDCTL");
    if (!program) throw std::runtime_error("MARU_TEST_MARUDCTL must name the marudctl to test");
    const std::string path = marud.directory().file("marudctl.out");
    ::unlink(path.c_str());
    arguments.insert(arguments.begin(), {program, "--socket", marud.socket_path()});
    const auto ended = ChildProcess(arguments, path).wait();
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    output_ = text.str();
    return ended && !ended->by_signal ? ended->code : -1;
  }
  std::string output_;
};

TEST_F(Admin, PinsSayWhoHoldsThemAndForHowLong) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("held", "payload"), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("held", &view), 0);
  json pin;
  // Ages are looked at now and then.
  ASSERT_TRUE(wait_until([&] {
    const json pins = marud.ask({{"command", "pins"}}).at("pins");
    if (pins.size() != 1) return false;
    pin = pins[0];
    return !pin.at("age_ms").is_null() && pin.at("age_ms") > 0;
  })) << pin;
  EXPECT_EQ(pin.at("key"), "held");
  EXPECT_EQ(pin.at("pid"), ::getpid());
  EXPECT_EQ(pin.at("uid"), ::getuid());
  EXPECT_FALSE(pin.at("command").get<std::string>().empty());
  EXPECT_EQ(client.release(view), 0);
  EXPECT_TRUE(marud.ask({{"command", "pins"}}).at("pins").empty());
}

TEST_F(Admin, TreesGoAsFarAsNobodyHoldsThem) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  for (const auto& [key, parent] :
       {std::pair{"root", ""}, {"left", "root"}, {"leaf", "left"}, {"right", "root"}, {"other", ""}})
    ASSERT_EQ(client.store(key, key, parent), 0);
  maru_view view;
  ASSERT_EQ(client.retrieve("right", &view), 0);
  json reply = marud.ask({{"command", "delete_tree"}, {"key", "root"}});
  EXPECT_EQ(reply.value("deleted_blocks", 0), 2) << reply;
  EXPECT_EQ(client.exists("right"), 1);
  EXPECT_EQ(client.exists("root"), 1) << "its child is held";
  EXPECT_EQ(client.exists("leaf"), 0);
  EXPECT_EQ(client.release(view), 0);
  EXPECT_EQ(marudctl({"delete-tree", "root"}, marud), 0) << output_;
  EXPECT_EQ(client.exists("root"), 0);
  EXPECT_EQ(client.exists("other"), 1);
  EXPECT_EQ(marudctl({"delete-tree", "root"}, marud), 1) << output_;
  EXPECT_TRUE(marud.has_logged("\"delete_tree\" on pool \"default\": {\"deleted_blocks\":2")) << "the consequence is logged";
}

TEST_F(Admin, ABlockOfATenantIsShownInFull) {
  MarudProcess marud;
  TestClient client(marud.socket_path());
  uint64_t tenant = 0;
  ASSERT_EQ(maru_tenant(client, "salt", 4, &tenant), 0);
  const maru_key key = key_of("k", tenant);
  ASSERT_EQ(maru_store_copy(client, &key, "x", 1, nullptr, nullptr), 0);
  EXPECT_EQ(marudctl({"blocks", "k"}, marud), 1);
  EXPECT_EQ(marudctl({"--json", "blocks", "k", "--tenant", std::to_string(tenant)}, marud), 0) << output_;
  EXPECT_EQ(json::parse(output_).at("tenant"), tenant);
}

TEST_F(Admin, APoolThatIsNotNamedIsNotTouched) {
  PoolWish other;
  other.name = "other";
  MarudProcess marud({PoolWish{}, other});
  TestClient client(marud.socket_path());
  ASSERT_EQ(client.store("k", "v"), 0);
  EXPECT_EQ(marud.ask({{"command", "clear"}, {"pool", 5}}).value("refused", 0), EINVAL);
  EXPECT_EQ(marud.ask({{"command", "clear"}, {"pool", "other"}}).value("deleted_blocks", -1), 0);
  EXPECT_EQ(client.exists("k"), 1);
  EXPECT_EQ(marud.ask({{"command", "status"}, {"pool", "other"}}).at("pools").size(), 1u);
  EXPECT_EQ(marudctl({"--pool", "absent", "status"}, marud), 1) << output_;
  EXPECT_EQ(marudctl({"--pool", "default", "clear", "--yes"}, marud), 0) << output_;
  EXPECT_EQ(client.exists("k"), 0);
}

TEST_F(Admin, FilesAreChecked) {
  PoolWish pool;
  pool.in_file = true;
  MarudProcess marud({pool});
  {
    TestClient client(marud.socket_path());
    for (int i = 0; i < 100; ++i) ASSERT_EQ(client.store("k" + std::to_string(i), "v", i % 10 ? "k0" : ""), 0);
    EXPECT_EQ(marudctl({"check", "--quiesce"}, marud), 0) << output_;
    EXPECT_EQ(marudctl({"check"}, marud), 0) << output_;
  }
  EXPECT_EQ(marudctl({"check", "--file", marud.pool_file("default")}, marud), 0) << output_;
  EXPECT_NE(output_.find("a marud serves it"), std::string::npos) << output_;
  marud.stop();
  EXPECT_EQ(marudctl({"check", "--file", marud.pool_file("default")}, marud), 0) << output_;
  EXPECT_EQ(output_.find("a marud serves it"), std::string::npos) << output_;
  // Half of it is not a pool any more.
  ASSERT_EQ(::truncate(marud.pool_file("default").c_str(), off_t(pool.bytes / 2)), 0);
  EXPECT_EQ(marudctl({"check", "--file", marud.pool_file("default")}, marud), 1) << output_;
}

// The records of two marud would be mixed up, and the memory of one taken for lost.
TEST_F(Admin, ASecondMarudDoesNotShareTheStateDirectory) {
  MarudProcess marud;
  const std::string output = marud.directory().file("second.log");
  ChildProcess second({marud_program(), "--memory", "1GiB", "--socket", marud.directory().file("second.sock"),
                       "--state-dir", marud.directory().file("state")},
                      output);
  const auto ended = second.wait();
  ASSERT_TRUE(ended && !ended->by_signal);
  EXPECT_EQ(ended->code, 1);
  std::stringstream text;
  text << std::ifstream(output).rdbuf();
  EXPECT_NE(text.str().find("another marud does"), std::string::npos) << text.str();
}

}  // namespace
}  // namespace maru::test
