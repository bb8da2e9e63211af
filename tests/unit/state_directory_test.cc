// The state directory when it is taken away, and another marud has one at the same path by then.
#include "daemon/hosting/state_file.h"

#include "tests/support/temporary_directory.h"

#include <cerrno>
#include <filesystem>
#include <gtest/gtest.h>

namespace maru::daemon {
namespace {

namespace files = std::filesystem;

PoolRecord record_of(uint8_t first) {
  PoolRecord record;
  record.pool = "default";
  record.uuid[0] = first;
  record.boot_id = "boot";
  return record;
}

class TwoOfOnePath : public ::testing::Test {
 protected:
  uint8_t saved() const {
    const auto found = StateDirectory(path_).load("default");
    return found && *found ? (*found)->uuid[0] : 0;
  }
  // The first one has a record, its directory is removed, and the second one has a record at the same path.
  void take_away() {
    ASSERT_TRUE(first_.hold());
    ASSERT_TRUE(first_.save(record_of(1)));
    EXPECT_EQ(second_.hold().error().code, EBUSY);
    files::remove_all(path_);
    ASSERT_TRUE(second_.hold());
    ASSERT_TRUE(second_.save(record_of(2)));
    ASSERT_TRUE(second_.save_added("more", "text"));
    ASSERT_TRUE(second_.save_draining("default", true));
  }

  test::TemporaryDirectory directory_;
  const std::string path_ = directory_.file("state");
  StateDirectory first_{path_}, second_{path_};
};

TEST_F(TwoOfOnePath, NeitherRemovesNorReplacesTheFilesOfTheOther) {
  take_away();
  first_.remove("default");
  EXPECT_EQ(first_.save(record_of(1)).error().code, EBUSY);
  EXPECT_EQ(first_.forget_added("more").error().code, EBUSY);
  EXPECT_EQ(first_.save_draining("default", false).error().code, EBUSY);
  EXPECT_EQ(saved(), 2);
  EXPECT_TRUE(second_.is_added("more"));
  EXPECT_TRUE(second_.is_draining("default"));
  EXPECT_TRUE(second_.save(record_of(3)));
}

TEST_F(TwoOfOnePath, TheFirstGoesOnWhenTheOtherHasEnded) {
  take_away();
  second_ = StateDirectory(directory_.file("elsewhere"));
  EXPECT_TRUE(first_.save(record_of(1)));
  EXPECT_EQ(saved(), 1);
  EXPECT_EQ(StateDirectory(path_).hold().error().code, EBUSY) << "it has taken the lock again";
}

TEST_F(TwoOfOnePath, OneThatIsAloneMakesItsDirectoryAgain) {
  ASSERT_TRUE(first_.hold());
  files::remove_all(path_);
  EXPECT_TRUE(first_.save(record_of(1)));
  EXPECT_EQ(saved(), 1);
  EXPECT_EQ(second_.hold().error().code, EBUSY);
}

}  // namespace
}  // namespace maru::daemon
