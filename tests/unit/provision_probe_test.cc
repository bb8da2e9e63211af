// What marud-provision does with a device that has bad memory. Files stand in for devices.
#include "daemon/tools/provision/inventory.h"
#include "maru/format/control_region.h"
#include "tests/support/bad_beyond_end.h"
#include "tests/support/temporary_directory.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>

namespace maru::daemon::provision {
namespace {

constexpr uint64_t kBytes = 8u << 20, kAlignment = 2u << 20;

class ProvisionProbe : public ::testing::Test {
 protected:
  ProvisionProbe() { std::ofstream(path_).close(); }

  // The first `good_bytes` can be read; they begin with `text`.
  DaxDeviceFacts probe(uint64_t good_bytes, const std::string& text = "") {
    std::ofstream(path_, std::ios::trunc) << text;
    std::filesystem::resize_file(path_, good_bytes);
    std::vector<DaxDeviceFacts> devices(1);
    devices[0].name = name_;
    devices[0].bytes = kBytes;
    devices[0].align = kAlignment;
    devices[0].mode = DaxMode::kDevdax;
    probe_devices(devices);
    return devices[0];
  }

  test::TemporaryDirectory directory_;
  const std::string path_ = directory_.file("dax0.0");
  const std::string name_ = ".." + path_;  // from /dev
  const test::BadBeyondEnd bad_;
};

TEST_F(ProvisionProbe, BadMemoryIsNotBlank) {
  EXPECT_TRUE(probe(kBytes).is_blank);
  EXPECT_FALSE(probe(0).is_blank);
  EXPECT_FALSE(probe(4096).is_blank) << "as far as a label reaches";
  const uint64_t magic = format::kMagic;
  const std::string begin(reinterpret_cast<const char*>(&magic), sizeof(magic));
  EXPECT_NE(probe(kBytes, begin).pool, "");
  EXPECT_NE(probe(64u << 10, begin).pool, "") << "its header can be read";
}

TEST_F(ProvisionProbe, BadMemoryIsNotCleared) {
  std::filesystem::resize_file(path_, kBytes);
  EXPECT_TRUE(clear_device(name_, 0, kBytes, kAlignment));
  std::filesystem::resize_file(path_, kBytes / 2);
  const auto cleared = clear_device(name_, 0, kBytes, kAlignment);
  ASSERT_FALSE(cleared);
  EXPECT_EQ(cleared.error().code, EIO);
  EXPECT_NE(cleared.error().doing.find("(a memory error at byte "), std::string::npos) << cleared.error().doing;
}

}  // namespace
}  // namespace maru::daemon::provision
