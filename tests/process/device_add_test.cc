// Pools that are added while marud runs: of every backend, what survives marud's end, and that nobody waits for a device that
// is being opened. Files stand in for DAX devices.
#include "libmaru/base/file_descriptor.h"
#include "libmaru/wire/codec.h"
#include "libmaru/wire/socket.h"
#include "tests/support/dax_stand_in.h"
#include "tests/support/marud_process.h"
#include "tests/support/slow_file.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <string>
#include <sys/stat.h>
#include <sys/vfs.h>

namespace maru::test {
namespace {

using nlohmann::json;

constexpr uint64_t kBytes = 16u << 20;

std::string table_of(const std::string& name, const std::string& lines) {
  return "[[pool]]\nname = \"" + name +
         "\"\npage_bytes = \"4KiB\"\nregion_bytes = \"1MiB\"\nlanes = 16\npins = 1024\nhigh_watermark = 1\n" + lines;
}

class DeviceAdd : public ::testing::Test {
 protected:
  // A memory pool "default", and devices on NUMA nodes 0 to 2 that nobody uses yet.
  DeviceAdd()
      : marud_({PoolWish{}}, MarudProcess::kGraceMs, [&](const TemporaryDirectory& directory) {
          devices_ = std::make_unique<DaxStandIn>(directory.file("dax"));
          for (int number = 0; number < 3; ++number)
            devices_->add(name_of(number), kBytes, DaxStandIn::kPersistent, number);
        }) {}
  static std::string name_of(int number) { return "dax" + std::to_string(number) + ".0"; }
  std::string on_path(int number) const {
    return "backend = \"dax\"\ndevice = \"" + devices_->path(name_of(number)) + "\"\n";
  }
  json add(const std::string& toml) const { return marud_.ask({{"command", "device.add"}, {"toml", toml}}); }
  json add_far(const std::string& lines) const { return add(table_of("far", lines)); }
  json remove(const std::string& pool) const {
    return marud_.ask({{"command", "device.remove"}, {"name", pool}, {"discard", true}});
  }
  json row(const std::string& pool = "far") const {
    const json list = marud_.ask({{"command", "device.list"}});
    for (const json& one : list.at("devices"))
      if (one.at("pool") == pool) return one;
    return nullptr;
  }
  TestClient client(const std::string& pool = "far") const { return TestClient(marud_.socket_path(), pool); }
  bool is_kept(const std::string& pool = "far") const {
    return std::filesystem::exists(marud_.directory().file("state/pool-" + pool + ".added"));
  }

  std::unique_ptr<DaxStandIn> devices_;
  MarudProcess marud_;
};

TEST_F(DeviceAdd, APoolOnADeviceSurvivesMarudAndItsRemovalEndsIt) {
  ASSERT_EQ(add_far(on_path(1)).value("added", json()), json::array({"far"}));
  EXPECT_EQ(row().at("backend"), "dax");
  EXPECT_EQ(row().at("medium"), "devdax");
  EXPECT_EQ(row("default").at("backend"), "memory");
  EXPECT_EQ(client().store("k", "text"), 0);
  marud_.kill();
  marud_.start();
  EXPECT_EQ(client().text("k"), "text");
  marud_.stop();
  marud_.start();
  EXPECT_EQ(client().text("k"), "text");
  EXPECT_FALSE(remove("far").contains("refused"));
  EXPECT_TRUE(wait_until([&] { return row().is_null(); }));
  EXPECT_FALSE(is_kept());
  marud_.stop();
  marud_.start();
  EXPECT_TRUE(row().is_null());
}

TEST_F(DeviceAdd, ADeviceIsFoundByNodeAndByTheUuidOfItsPool) {
  ASSERT_FALSE(add_far("backend = \"dax\"\ndevice = \"node:2\"\n").contains("refused"));
  EXPECT_EQ(row().at("device"), devices_->path("dax2.0"));
  EXPECT_EQ(client().store("k", "text"), 0);
  const std::string uuid = marud_.pool_status("far").at("uuid");
  marud_.stop();
  marud_.start();
  EXPECT_EQ(client().text("k"), "text");
  remove("far");
  EXPECT_TRUE(wait_until([&] { return row().is_null(); }));
  devices_->rename("dax2.0", "dax7.0");
  const json added = add(table_of("again", "backend = \"dax\"\ndevice = \"uuid:" + uuid + "\"\n"));
  ASSERT_EQ(added.value("added", json()), json::array({"again"})) << added.dump();
  EXPECT_EQ(client("again").text("k"), "text");
  const json twice = add(table_of("twice", "backend = \"dax\"\ndevice = \"uuid:" + uuid + "\"\n"));
  EXPECT_EQ(twice.value("refused", 0), EBUSY) << twice.dump();
  const json by_name = add(table_of("twice", "backend = \"dax\"\ndevice = \"" + devices_->path("dax7.0") + "\"\n"));
  EXPECT_EQ(by_name.value("refused", 0), EBUSY) << "the device is locked: " << by_name.dump();
}

TEST_F(DeviceAdd, FilesAndMemoryComeBackToo) {
  const std::string file = marud_.directory().file("far.pool");
  ASSERT_FALSE(add(table_of("far", "backend = \"file\"\npath = \"" + file + "\"\nsize = \"16MiB\"\n") +
                   table_of("near", "backend = \"memory\"\nsize = \"16MiB\"\n"))
                   .contains("refused"));
  struct statfs file_system = {};
  ASSERT_EQ(::statfs(file.c_str(), &file_system), 0);
  EXPECT_EQ(row().at("medium"), file_system.f_type == TMPFS_MAGIC ? "tmpfs" : "file");
  EXPECT_EQ(row("near").at("backend"), "memory");
  EXPECT_EQ(client().store("k", "text"), 0);
  TestClient holds_memory(marud_.socket_path(), "near");
  EXPECT_EQ(holds_memory.store("k", "near text"), 0);
  marud_.kill();
  marud_.start();
  EXPECT_EQ(client().text("k"), "text");
  EXPECT_TRUE(wait_until([&] { return maru_reattach(holds_memory) == 0; }));
  EXPECT_EQ(client("near").text("k"), "near text");
}

TEST_F(DeviceAdd, WhatIsRefusedLeavesNothing) {
  devices_->put("dax1.0", 0, std::string(4096, 'x'));
  const json refused = add_far(on_path(1));
  EXPECT_EQ(refused.value("refused", 0), EEXIST) << refused.dump();
  EXPECT_NE(refused.value("text", "").find("expected a blank device"), std::string::npos) << refused.dump();
  EXPECT_EQ(devices_->get("dax1.0", 0, 4096), std::string(4096, 'x'));
  EXPECT_FALSE(is_kept());
  EXPECT_TRUE(row().is_null());
  EXPECT_EQ(add_far("backend = \"dax\"\ndevice = \"node:9\"\n").value("refused", 0), ENOENT);
  const json half = add(table_of("one", on_path(0)) + table_of("two", on_path(1)));
  EXPECT_EQ(half.value("refused", 0), EEXIST) << half.dump();
  EXPECT_NE(half.value("text", "").find("added [\"one\"]"), std::string::npos) << half.dump();
  EXPECT_TRUE(is_kept("one"));
  EXPECT_FALSE(is_kept("two"));
  marud_.stop();
  marud_.start();
  EXPECT_FALSE(row("one").is_null());
  EXPECT_TRUE(row("two").is_null());
}

TEST_F(DeviceAdd, ADeviceThatIsMissingAtTheStartKeepsNobodyFromServing) {
  ASSERT_FALSE(add_far(on_path(1)).contains("refused"));
  marud_.stop();
  devices_->remove("dax1.0");
  marud_.start();
  EXPECT_EQ(client("default").store("k", "text"), 0);
  EXPECT_EQ(row().value("condition", ""), "unavailable");
  EXPECT_NE(row().value("note", "").find("dax1.0"), std::string::npos) << row();
  devices_->add("dax1.0", kBytes);
  EXPECT_TRUE(wait_until([&] { return row().value("condition", "") == "serving"; })) << "it is tried again";
  marud_.stop();
  devices_->remove("dax1.0");
  marud_.start();
  EXPECT_FALSE(remove("far").contains("refused"));
  EXPECT_TRUE(wait_until([&] { return row().is_null(); }));
  EXPECT_FALSE(is_kept());
  EXPECT_EQ(remove("far").value("refused", 0), ENOENT);
  EXPECT_EQ(remove("../pool-far").value("refused", 0), ENOENT);
}

TEST_F(DeviceAdd, TheConfigurationGoesBeforeWhatWasAdded) {
  ASSERT_FALSE(add_far(on_path(1)).contains("refused"));
  EXPECT_EQ(client().store("k", "text"), 0);
  marud_.stop();
  std::ofstream(marud_.directory().file("marud.toml"), std::ios::app) << table_of("far", on_path(1));
  marud_.start();
  EXPECT_TRUE(marud_.has_logged("pool \"far\" is in the configuration by now"));
  EXPECT_FALSE(is_kept());
  EXPECT_EQ(client().text("k"), "text");
}

// -- while a device is being opened -----------------------------------------------------------------------------------

class SlowDeviceAdd : public DeviceAdd {
 protected:
  // Whoever opens the device stands still over what sysfs says of it.
  SlowDeviceAdd()
      : slow_(marud_.directory().file("dax") + "/sys/" + DaxStandIn::kPersistent + "/" + name_of(1) + "/size") {}
  // Asks for the pool "far" on the slow device, and leaves the answer for later.
  void ask_for_far() {
    auto socket = wire::connect_to(marud_.socket_path());
    ASSERT_TRUE(socket);
    const std::string text = json({{"command", "device.add"}, {"toml", table_of("far", on_path(1))}}).dump();
    const auto packet = wire::encode(wire::Type::kAdmin, 7, 0, std::as_bytes(std::span(text.data(), text.size())));
    ASSERT_TRUE(wire::send_packet(socket->get(), packet, -1, far_too_long_ms()));
    asker_ = std::move(*socket);
    ASSERT_TRUE(slow_.is_reached());
  }
  json late_answer() {
    auto reply = wire::receive_packet(asker_.get(), far_too_long_ms());
    if (!reply) return {{"none", reply.error().text()}};
    const auto header = wire::decode_reply(reply->bytes);
    const auto payload = wire::payload_of(reply->bytes);
    const std::string body(reinterpret_cast<const char*>(payload.data()), payload.size());
    if (!header || header->request_id != 7 || header->status != 0) return {{"refused", body}};
    return json::parse(body);
  }

  SlowFile slow_;
  FileDescriptor asker_;
};

TEST_F(SlowDeviceAdd, OthersAreServedWhileADeviceIsOpened) {
  ASSERT_NO_FATAL_FAILURE(ask_for_far());
  EXPECT_EQ(row().value("condition", ""), "opening");
  // Another pool, old clients and new ones, other commands.
  TestClient client(marud_.socket_path());
  EXPECT_EQ(client.store("k", "text"), 0);
  EXPECT_EQ(client.text("k"), "text");
  EXPECT_EQ(marud_.pool_status().at("blocks"), 1);
  // The same pool, and another one on its device.
  EXPECT_EQ(add_far(on_path(1)).value("refused", 0), EALREADY);
  EXPECT_EQ(add(table_of("other", on_path(1))).value("refused", 0), EBUSY);
  EXPECT_EQ(remove("far").value("refused", 0), EBUSY);
  int result = 0;
  EXPECT_EQ(TestClient::try_attach(marud_.socket_path(), "far", &result), nullptr);
  EXPECT_EQ(result, -ENOENT);
  // A second device meanwhile.
  EXPECT_EQ(add(table_of("second", on_path(2))).value("added", json()), json::array({"second"}));
  slow_.go_on();
  EXPECT_EQ(late_answer().value("added", json()), json::array({"far"}));
  EXPECT_EQ(row().value("condition", ""), "serving");
  EXPECT_EQ(this->client().store("k", "text"), 0);
}

TEST_F(SlowDeviceAdd, WhoeverAskedMayLeave) {
  ASSERT_NO_FATAL_FAILURE(ask_for_far());
  asker_.reset();
  EXPECT_EQ(marud_.ask({{"command", "status"}}).at("pools").size(), 1u);
  slow_.go_on();
  EXPECT_TRUE(wait_until([&] { return row().value("condition", "") == "serving"; }));
}

TEST_F(SlowDeviceAdd, TheNextMarudGoesOnWithWhatAKillCutOff) {
  ASSERT_NO_FATAL_FAILURE(ask_for_far());
  marud_.kill();
  slow_.end();
  marud_.start();
  EXPECT_EQ(row().value("condition", ""), "serving");
  EXPECT_EQ(client().store("k", "text"), 0);
}

}  // namespace
}  // namespace maru::test
