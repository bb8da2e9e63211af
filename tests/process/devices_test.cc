// Pools on devices, with real processes: what survives which end, who may write, and what a loss of power leaves. Files
// stand in for devices; tests/hardware/vm/devdax.py does the same with real ones.
#include "libmaru/shm/region/control_region.h"
#include "libmaru/wire/socket.h"
#include "tests/support/dax_stand_in.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"
#include "tests/support/wait_until.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

namespace maru::test {
namespace {

constexpr uint64_t kBytes = 32u << 20;

PoolWish on_device(const std::string& more, bool checksums = false) {
  PoolWish pool;
  pool.on_device = true;
  pool.checksums = checksums;
  pool.more = more;
  return pool;
}

// The stand-in devices must be there before marud is.
class Devices : public ::testing::Test {
 protected:
  void start(const std::string& more, bool checksums = false) {
    marud_ = std::make_unique<MarudProcess>(std::vector<PoolWish>{on_device(more, checksums)}, MarudProcess::kGraceMs,
                                            [&](const TemporaryDirectory& directory) {
                                              devices_ = std::make_unique<DaxStandIn>(directory.file("dax"));
                                              devices_->add("dax0.0", kBytes);
                                              devices_->add("dax1.0", kBytes);
                                            });
  }
  std::unique_ptr<TestClient> client(uint32_t flags = 0) {
    return std::make_unique<TestClient>(marud_->socket_path(), "default", far_too_long_ms(), flags);
  }
  format::Header header(const char* device) {
    format::Header header;
    const std::string bytes = devices_->get(device, 0, sizeof(header));
    std::memcpy(&header, bytes.data(), sizeof(header));
    return header;
  }
  // As if the power had been lost while marud worked.
  void pretend_other_boot(const char* device) {
    const uint64_t at = header(device).sections[format::kSectionHosts].offset;
    format::HostRecord host;
    std::string bytes = devices_->get(device, at, sizeof(host));
    std::memcpy(&host, bytes.data(), sizeof(host));
    host.boot_id_lo.store_relaxed(1);
    host.clean.store_relaxed(0);
    std::memcpy(bytes.data(), &host, sizeof(host));
    devices_->put(device, at, bytes);
    // So do the lanes of the processes of that boot.
    const format::Header head = header(device);
    for (uint32_t lane = 1; lane < head.parameters.lanes; ++lane) {
      const uint64_t identity_at = head.sections[format::kSectionLaneIdentities].offset + sizeof(format::LaneBitmap) +
                                   lane * sizeof(format::LaneIdentity) + offsetof(format::LaneIdentity, boot_id_lo);
      devices_->put(device, identity_at, std::string(8, '\1'));
    }
  }
  // Where the bytes of this block lie on the device.
  uint64_t find(const char* device, const std::string& text) {
    const std::string all = devices_->get(device, 0, kBytes);
    const uint64_t control = header("dax0.0").control_bytes;
    const size_t at = all.find(text, device == std::string("dax0.0") ? control : 0);
    EXPECT_NE(at, std::string::npos) << text;
    return at;
  }
  uint64_t violations() { return marud_->ask({{"command", "check"}, {"quiesce", true}}).at("found"); }

  std::unique_ptr<DaxStandIn> devices_;
  std::unique_ptr<MarudProcess> marud_;
};

TEST_F(Devices, BlocksSurviveStopAndKill) {
  start("device = \"node:0\"\n");
  EXPECT_EQ(marud_->pool_status().at("backend"), "dax");
  EXPECT_EQ(client()->store("a", "first"), 0);
  marud_->kill();
  marud_->start();
  EXPECT_EQ(client()->text("a"), "first");
  marud_->stop();
  devices_->rename("dax0.0", "dax5.0");  // another boot would call it so
  marud_->start();
  EXPECT_EQ(client()->text("a"), "first");
  EXPECT_EQ(marud_->pool_status().at("epoch"), 3u);
  EXPECT_EQ(violations(), 0u);
}

TEST_F(Devices, AKnownPoolWaitsForItsDeviceBesideABlankOne) {
  start("device = \"node:0\"\n");
  EXPECT_EQ(client()->store("a", "first"), 0);
  marud_->stop();
  const std::string path = devices_->path("dax0.0");
  std::filesystem::rename(path, path + ".late");
  EXPECT_THROW(marud_->start(), std::runtime_error);
  EXPECT_TRUE(marud_->has_logged("a blank device is not taken in its place"));
  EXPECT_EQ(devices_->get("dax1.0", 0, 4096), std::string(4096, 0));
  std::filesystem::rename(path + ".late", path);
  marud_->start();
  EXPECT_EQ(client()->text("a"), "first");
}

TEST_F(Devices, FreeCxlMemoryIsOneDeviceAndTheOthersAreNamed) {
  marud_ = std::make_unique<MarudProcess>(std::vector<PoolWish>{on_device("device = \"cxl:free\"\n")},
                                          MarudProcess::kGraceMs, [&](const TemporaryDirectory& directory) {
                                            devices_ = std::make_unique<DaxStandIn>(directory.file("dax"));
                                            for (const char* name : {"dax0.0", "dax1.0"})
                                              devices_->add(name, kBytes, DaxStandIn::kCxl);
                                          });
  EXPECT_TRUE(marud_->has_logged("takes no more than that of the CXL memory; blank, or not in use, are also " +
                                 devices_->path("dax1.0")))
      << marud_->log();
}

TEST_F(Devices, ALossOfPowerDropsWhatIsDamagedAndKeepsTheRest) {
  start("device = \"node:0\"\n", true);
  const auto writer = client();
  EXPECT_EQ(writer->store("good", "good bytes"), 0);
  EXPECT_EQ(writer->store("bad", "bad bytes"), 0);
  EXPECT_EQ(writer->store("child of bad", "child bytes", "bad"), 0);
  EXPECT_EQ(writer->store("grandchild of bad", "grandchild bytes", "child of bad"), 0);
  EXPECT_EQ(writer->store("child of good", "good child bytes", "good"), 0);
  maru_view held;
  EXPECT_EQ(writer->retrieve("bad", &held), 0);  // when the power goes
  marud_->kill();
  devices_->put("dax0.0", find("dax0.0", "bad bytes"), "B");
  pretend_other_boot("dax0.0");
  marud_->start();
  EXPECT_TRUE(marud_->has_logged("of 5 blocks with"));
  EXPECT_TRUE(marud_->has_logged("3 were dropped"));
  const auto reader = client();
  EXPECT_EQ(reader->text("good"), "good bytes");
  EXPECT_EQ(reader->text("child of good"), "good child bytes");
  for (const char* gone : {"bad", "child of bad", "grandchild of bad"})
    EXPECT_EQ(reader->text(gone), std::nullopt) << gone;
  EXPECT_EQ(violations(), 0u);
  EXPECT_EQ(reader->store("bad", "new bytes"), 0);
}

TEST_F(Devices, DamagedBookkeepingIsRepairedAndTheBlocksStay) {
  start("device = \"node:0\"\n", true);
  EXPECT_EQ(client()->store("a", "first"), 0);
  marud_->kill();
  pretend_other_boot("dax0.0");
  const format::Header head = header("dax0.0");
  const auto& overflow = head.sections[format::kSectionOverflow];
  devices_->put("dax0.0", overflow.offset, std::string(overflow.bytes, '\xa5'));
  marud_->start();
  EXPECT_TRUE(marud_->has_logged("its bookkeeping was damaged by the loss of power"));
  EXPECT_TRUE(marud_->has_logged("claims dropped"));
  EXPECT_EQ(client()->text("a"), "first");
  EXPECT_EQ(violations(), 0u);
}

TEST_F(Devices, ReadersOfASplitPoolCannotWriteItsPages) {
  start("device = \"DEV/dax1.0\"\ncontrol_device = \"DEV/dax0.0\"\n");
  const auto writer = client();
  EXPECT_EQ(writer->store("a", "first"), 0);
  const auto reader = client(MARU_ATTACH_READ_ONLY);
  EXPECT_EQ(reader->text("a"), "first");
  EXPECT_EQ(reader->store("a", "first"), -EROFS);
  EXPECT_EQ(reader->store("b", "second"), -EROFS);
  EXPECT_EQ(reader->remove("a"), -EROFS);
  EXPECT_EQ(reader->remove_tree("a"), -EROFS);
  maru_buffer buffer;
  EXPECT_EQ(maru_alloc(*reader, 100, &buffer), -EROFS);
  // The descriptors of this process: it has both clients, so one of the pages may be written and one may not.
  int writable = 0, readable = 0;
  for (int fd = 3; fd < 200; ++fd) {
    struct stat status = {}, device = {};
    if (::fstat(fd, &status) != 0 || ::stat(devices_->path("dax1.0").c_str(), &device) != 0) continue;
    if (status.st_ino != device.st_ino || status.st_dev != device.st_dev) continue;
    ((::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY ? readable : writable)++;
  }
  EXPECT_EQ(writable, 1);
  EXPECT_EQ(readable, 1);
  // The pages are on the one device and everything else is on the other.
  EXPECT_NE(devices_->get("dax1.0", 0, kBytes).find("first"), std::string::npos);
  EXPECT_EQ(devices_->get("dax0.0", 0, kBytes).find("first"), std::string::npos);
}

TEST_F(Devices, ASplitPoolIsAdoptedWithItsOwnPagesAlone) {
  start("device = \"DEV/dax1.0\"\ncontrol_device = \"DEV/dax0.0\"\n", true);
  EXPECT_EQ(client()->store("a", "first"), 0);
  marud_->kill();
  marud_->start();
  EXPECT_EQ(client()->text("a"), "first");
  marud_->stop();
  pretend_other_boot("dax0.0");
  marud_->start();
  EXPECT_TRUE(marud_->has_logged("of 1 blocks with"));
  EXPECT_EQ(client()->text("a"), "first");
  marud_->stop();
  devices_->put("dax1.0", 0, std::string(4096, 0));
  EXPECT_THROW(marud_->start(), std::runtime_error);
  EXPECT_TRUE(marud_->has_logged("expected the pages of pool"));
}

// A marud from before pools in memory were in two pieces may have a pool on two devices, and takes one descriptor and no more.
TEST_F(Devices, ClientsOfASplitPoolHandBackOneDescriptor) {
  start("device = \"DEV/dax1.0\"\ncontrol_device = \"DEV/dax0.0\"\n");
  const auto writer = client();
  EXPECT_EQ(writer->store("a", "first"), 0);
  marud_->kill();
  {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, marud_->socket_path().c_str(), sizeof(address.sun_path) - 1);
    ::unlink(address.sun_path);
    const FileDescriptor listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    const FileDescriptor session(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const auto request = wire::receive_packet(session.get(), far_too_long_ms());
    ASSERT_TRUE(request) << request.error().text();
    EXPECT_TRUE(request->fd.is_open());
    EXPECT_FALSE(request->second.is_open());
  }
  marud_->start();
  EXPECT_EQ(writer->store("b", "second"), 0);
  EXPECT_EQ(client()->text("b"), "second");
}

TEST_F(Devices, ASecondMarudIsToldThatTheDeviceIsBusy) {
  start("device = \"DEV/dax0.0\"\n");
  EXPECT_EQ(client()->store("a", "first"), 0);
  const std::string config = marud_->directory().file("second.toml");
  std::ofstream(config) << "[daemon]\nsocket = \"" << marud_->directory().file("second.sock") << "\"\nstate_dir = \""
                        << marud_->directory().file("second")
                        << "\"\n[[pool]]\nname = \"x\"\nbackend = \"dax\"\ndevice = \"" << devices_->path("dax0.0")
                        << "\"\n";
  const std::string log = marud_->directory().file("second.log");
  ChildProcess second({marud_program(), "--config", config}, log);
  const auto ended = second.wait();
  ASSERT_TRUE(ended && !ended->by_signal);
  EXPECT_EQ(ended->code, 1);
  std::ifstream file(log);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("another marud has it"), std::string::npos) << text;
  EXPECT_EQ(client()->text("a"), "first");
}

}  // namespace
}  // namespace maru::test
