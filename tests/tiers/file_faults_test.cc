// The file tier on a device that fails: without room, with errors, or slow. The tier's calls to its device come here first.
#include "daemon/tierd/tiers/file/log_format.h"
#include "libmaru/base/file_descriptor.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/tier_user.h"

#include <sys/resource.h>
#include <unistd.h>

namespace maru::test {
namespace {

constexpr uint64_t kRegionBytes = 64u << 10, kRegions = 6;

class FileFaults : public testing::Test {
 protected:
  tierd::TierOptions options(tierd::TierOptions more = {}) const {
    tierd::TierOptions all = {{"path", directory_.file("log")},
                              {"capacity", std::to_string(tierd::kLogFirstRegion + kRegions * kRegionBytes)},
                              {"region_bytes", std::to_string(kRegionBytes)},
                              {"direct", "no"},
                              {"readers", "2"}};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  TemporaryDirectory directory_;
};

TEST_F(FileFaults, ATierThatCannotStartIsRefused) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  FileDescriptor next(::dup(1));
  const rlimit for_the_log_alone = {rlim_t(next.get()) + 1, before.rlim_max};
  next.reset();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &for_the_log_alone), 0);
  const auto tier = tierd::Tier::open("file", options());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(tier);
  EXPECT_NE(tier.error().text().find("raise the limit of open files"), std::string::npos) << tier.error().text();
}

}  // namespace
}  // namespace maru::test
