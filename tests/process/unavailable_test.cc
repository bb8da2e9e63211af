// Pools that cannot be opened when marud starts: the others are served, it is said which and why, and they come when they can.
// Files stand in for DAX devices.
#include "tests/support/dax_stand_in.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <csignal>
#include <fstream>
#include <gtest/gtest.h>
#include <stdexcept>
#include <string>
#include <sys/stat.h>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uint64_t kBytes = 32u << 20;

PoolWish far_pool(const std::string& more = "") {
  PoolWish pool;
  pool.name = "far";
  pool.on_device = true;
  pool.more = "device = \"DEV/dax0.0\"\n" + more;
  return pool;
}

class Unavailable : public ::testing::Test {
 protected:
  // A pool "default" in memory and one on a device, which is not there yet.
  void start(std::vector<PoolWish> pools = {PoolWish{}, far_pool()}) {
    marud_ = std::make_unique<MarudProcess>(
        std::move(pools), MarudProcess::kGraceMs,
        [&](const TemporaryDirectory& directory) { devices_ = std::make_unique<DaxStandIn>(directory.file("dax")); });
  }
  std::unique_ptr<TestClient> client(const std::string& pool) {
    return std::make_unique<TestClient>(marud_->socket_path(), pool);
  }
  std::string condition(const std::string& pool = "far") {
    const json status = marud_->ask({{"command", "status"}});
    for (const json& one : status.at("pools"))
      if (one.at("name") == pool) return one.at("condition");
    return "not there";
  }
  // "far" served from its device, which holds something else when marud is started again.
  void come_back_to_other_content() {
    start();
    devices_->add("dax0.0", kBytes);
    ASSERT_TRUE(wait_until([&] { return condition() == "serving"; }));
    marud_->stop();
    devices_->put("dax0.0", 0, std::string(8192, 'x'));
    marud_->start();
    EXPECT_EQ(condition(), "unavailable");
  }
  json add_far() { return marud_->ask({{"command", "device.add"}, {"name", "far"}}); }

  std::unique_ptr<DaxStandIn> devices_;
  std::unique_ptr<MarudProcess> marud_;
};

TEST_F(Unavailable, AMissingDeviceKeepsNobodyElseFromServingAndIsTakenWhenItComes) {
  start();
  EXPECT_EQ(condition(), "unavailable");
  EXPECT_NE(marud_->pool_status("far").value("reason", "").find("dax0.0"), std::string::npos);
  EXPECT_EQ(client("default")->store("k", "text"), 0);
  int refused = 0;
  EXPECT_EQ(TestClient::try_attach(marud_->socket_path(), "far", &refused), nullptr);
  EXPECT_EQ(refused, -ENODEV);
  devices_->add("dax0.0", kBytes);
  EXPECT_TRUE(wait_until([&] { return condition() == "serving"; })) << "nobody asked for it";
  EXPECT_EQ(client("far")->store("k", "text"), 0);
  marud_->kill();
  marud_->start();
  EXPECT_EQ(client("far")->text("k"), "text");
}

TEST_F(Unavailable, WhatIsInMemoryComesBackAfterACrashAlthoughADeviceWent) {
  start();
  devices_->add("dax0.0", kBytes);
  ASSERT_TRUE(wait_until([&] { return condition() == "serving"; }));
  const auto holder = client("default"), of_far = client("far");
  ASSERT_EQ(holder->store("k", "text"), 0);
  marud_->kill();
  devices_->remove("dax0.0");
  marud_->start();
  EXPECT_EQ(condition(), "unavailable");
  EXPECT_TRUE(wait_until([&] { return maru_reattach(*holder) == 0; }));
  EXPECT_EQ(client("default")->text("k"), "text");
  EXPECT_EQ(maru_reattach(*of_far), -ENODEV) << "it goes on with what it has";
}

TEST_F(Unavailable, ADeviceThatHoldsSomethingElseStaysAsItIsUntilItIsCleared) {
  come_back_to_other_content();
  const json refused = add_far();
  EXPECT_EQ(refused.value("refused", 0), EEXIST) << refused;
  EXPECT_NE(refused.value("text", "").find("expected a blank device"), std::string::npos) << refused;
  EXPECT_EQ(devices_->get("dax0.0", 0, 8192), std::string(8192, 'x'));
  devices_->remove("dax0.0");
  devices_->add("dax0.0", kBytes);
  const json added = add_far();
  EXPECT_EQ(added.value("added", json()), json::array({"far"})) << added;
  EXPECT_EQ(client("far")->store("k", "text"), 0);
  EXPECT_EQ(add_far().value("refused", 0), EEXIST) << "it serves";
}

TEST_F(Unavailable, AReloadTriesWhatNoTimeWouldMend) {
  come_back_to_other_content();
  devices_->remove("dax0.0");
  devices_->add("dax0.0", kBytes);
  ::kill(marud_->pid(), SIGHUP);
  EXPECT_TRUE(wait_until([&] { return condition() == "serving"; }));
}

TEST_F(Unavailable, ANewPoolOfTheConfigurationThatCannotBeOpenedHasItsPlaceToo) {
  start({PoolWish{}});
  const std::string folder = marud_->directory().file("missing");
  std::ofstream(marud_->directory().file("marud.toml"), std::ios::app)
      << "\n[[pool]]\nname = \"late\"\nbackend = \"file\"\npath = \"" << folder << "/pool\"\nsize = \"32MiB\"\n";
  ::kill(marud_->pid(), SIGHUP);
  EXPECT_TRUE(wait_until([&] { return condition("late") == "unavailable"; })) << marud_->log();
  EXPECT_NE(marud_->pool_status("late").value("reason", "").find(folder), std::string::npos);
  int refused = 0;
  EXPECT_EQ(TestClient::try_attach(marud_->socket_path(), "late", &refused), nullptr);
  EXPECT_EQ(refused, -ENODEV);
  ASSERT_EQ(::mkdir(folder.c_str(), 0700), 0);
  EXPECT_TRUE(wait_until([&] { return condition("late") == "serving"; })) << "nobody asked for it";
  EXPECT_EQ(client("late")->store("k", "text"), 0);
}

TEST_F(Unavailable, ItCanBeRemovedAndStaysSo) {
  start();
  EXPECT_EQ(marud_->ask({{"command", "device.drain"}, {"name", "far"}}).value("refused", 0), EBUSY);
  const json removed = marud_->ask({{"command", "device.remove"}, {"name", "far"}});
  EXPECT_FALSE(removed.contains("refused")) << removed;
  EXPECT_TRUE(wait_until([&] { return condition() == "not there"; }));
  devices_->add("dax0.0", kBytes);
  ::kill(marud_->pid(), SIGHUP);
  EXPECT_TRUE(marud_->has_logged("pool \"far\" was removed and stays so"));
  EXPECT_EQ(add_far().value("added", json()), json::array({"far"}));
}

TEST_F(Unavailable, WithoutAPoolThatIsRequiredMarudDoesNotStart) {
  try {
    start({PoolWish{}, far_pool("required = true\n")});
    FAIL() << "it started";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("marud stops: pool \"far\""), std::string::npos) << error.what();
  }
}

TEST_F(Unavailable, WithoutAnyPoolMarudDoesNotStart) {
  try {
    start({far_pool()});
    FAIL() << "it started";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("marud stops: pool \"far\""), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace maru::test
