// Policies from shared objects: the example of docs/examples/policy, and files and folders that must be refused. Only root can
// make a folder that marud trusts, so others see these tests skipped.
#include "daemon/policy/policies.h"

#include "tests/support/temporary_directory.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::test {
namespace {

namespace fs = std::filesystem;
using daemon::make_policy;
using daemon::PolicyOptions;

class LoadedPolicies : public testing::Test {
 protected:
  void SetUp() override {
    const char* built = std::getenv("MARU_POLICY_MODULES");
    if (built == nullptr) GTEST_SKIP() << "MARU_POLICY_MODULES must name the folder with the shared objects";
    if (::geteuid() != 0) GTEST_SKIP() << "needs root: policies are loaded from folders of root alone";
    built_ = built;
    ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
    install("deep_first", "deep_first");
  }
  // A new file each time, as a package manager would do it.
  void install(const std::string& module, const std::string& name) {
    const std::string path = folder_.file(name + ".so");
    fs::remove(path);
    fs::copy_file(built_ + "/" + module + ".so", path);
    ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  }
  std::string problem(const std::string& name, int code, const PolicyOptions& options = {}) {
    const auto made = make_policy(name, options, folder_.path());
    EXPECT_FALSE(made.has_value());
    if (made) return "";
    EXPECT_EQ(made.error().code, code) << made.error().text();
    return made.error().doing;
  }
  bool is_mapped(const std::string& name) const {
    std::ifstream maps("/proc/self/maps");
    const std::string all((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
    return all.find(folder_.file(name + ".so")) != all.npos;
  }

  TemporaryDirectory folder_;
  std::string built_;
};

TEST_F(LoadedPolicies, TheExampleWorksAsItsReadmeSays) {
  const auto made = make_policy("deep_first", {{"depth", "10"}}, folder_.path());
  ASSERT_TRUE(made.has_value()) << made.error().text();
  const Policy& policy = **made;
  EXPECT_STREQ(policy.name(), "deep_first");
  EXPECT_EQ(policy.needs(), kNeedsLine);
  EXPECT_TRUE(policy.evicts());
  EXPECT_EQ(policy.ranking(), Ranking::kByPlace);
  EXPECT_EQ(policy.place({.last_use = 7, .depth = 10}).queue, 1u);
  EXPECT_EQ(policy.place({.last_use = 7, .depth = 11}).queue, 0u);
  EXPECT_EQ(policy.place({.last_use = 7, .depth = 11}).order, 7u);
}

TEST_F(LoadedPolicies, StayLoadedAsLongAsTheyLive) {
  EXPECT_FALSE(is_mapped("deep_first"));
  {
    auto first = make_policy("deep_first", {{"depth", "1"}}, folder_.path());
    ASSERT_TRUE(first.has_value());
    auto second = make_policy("deep_first", {}, folder_.path());
    ASSERT_TRUE(second.has_value());
    first->reset();
    EXPECT_TRUE(is_mapped("deep_first"));
    EXPECT_EQ((*second)->place({.depth = 64}).queue, 1u);
  }
  EXPECT_FALSE(is_mapped("deep_first"));
}

// The loader knows libraries by path, and a path through a descriptor comes again.
TEST_F(LoadedPolicies, AreReadAnewWhileAnOlderOneLives) {
  const auto old = make_policy("deep_first", {}, folder_.path());
  ASSERT_TRUE(old.has_value());
  install("wrong_abi", "deep_first");
  problem("deep_first", ELIBACC);
  install("wrong_abi", "another");
  problem("another", ELIBACC);
  EXPECT_EQ((*old)->place({.depth = 65}).queue, 0u);
}

TEST_F(LoadedPolicies, HaveTheNameOfTheirFile) {
  install("deep_first", "Other_name-2");
  const auto made = make_policy("Other_name-2", {}, folder_.path());
  ASSERT_TRUE(made.has_value()) << made.error().text();
  EXPECT_STREQ((*made)->name(), "Other_name-2");
}

TEST_F(LoadedPolicies, NeverReplaceABuiltInOne) {
  install("deep_first", "lru");
  const auto made = make_policy("lru", {}, folder_.path());
  ASSERT_TRUE(made.has_value());
  EXPECT_EQ((*made)->needs(), kNeedsNothing);
}

TEST_F(LoadedPolicies, SayWhatIsWrongWithAnOption) {
  EXPECT_EQ(problem("deep_first", EINVAL, {{"depth", "ten"}}),
            "make the policy deep_first: option depth is 'ten', expected a whole number of blocks; correct it in "
            "policy_options");
  EXPECT_EQ(problem("deep_first", EINVAL, {{"width", "1"}}),
            "make the policy deep_first: option 'width' is not known, expected depth; remove it from policy_options");
}

TEST_F(LoadedPolicies, AreRefusedIfTheyAreNone) {
  install("wrong_abi", "wrong_abi");
  EXPECT_NE(problem("wrong_abi", ELIBACC).find("was built for version 2 of maru/policy.h, expected 1"),
            std::string::npos);
  install("no_symbols", "no_symbols");
  EXPECT_NE(problem("no_symbols", ELIBACC).find("exports no maru_policy_abi"), std::string::npos);
  install("no_create", "no_create");
  EXPECT_NE(problem("no_create", ELIBACC).find("exports no maru_policy_create"), std::string::npos);
  install("refuses", "refuses");
  EXPECT_NE(problem("refuses", EINVAL).find("xxx"), std::string::npos);
  std::ofstream(folder_.file("empty.so")).close();
  problem("empty", ELIBACC);
}

TEST_F(LoadedPolicies, AreRefusedIfSomebodyElseMayWriteTheFile) {
  const std::string path = folder_.file("deep_first.so");
  for (const mode_t mode : {0664, 0646, 0666}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    EXPECT_NE(problem("deep_first", EPERM).find(path), std::string::npos);
  }
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  ASSERT_EQ(::chown(path.c_str(), 4711, 0), 0);
  EXPECT_NE(problem("deep_first", EPERM).find("belongs to user 4711, expected root"), std::string::npos);
}

TEST_F(LoadedPolicies, AreRefusedIfSomebodyElseMayWriteTheFolder) {
  for (const mode_t mode : {0775, 0757, 01777}) {
    ASSERT_EQ(::chmod(folder_.path().c_str(), mode), 0);
    EXPECT_NE(problem("deep_first", EPERM).find("expected nobody but its owner to write"), std::string::npos);
  }
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chown(folder_.path().c_str(), 4711, 0), 0);
  problem("deep_first", EPERM);
  ASSERT_EQ(::chown(folder_.path().c_str(), 0, 0), 0);
}

TEST_F(LoadedPolicies, AreRefusedBehindSymbolicLinks) {
  fs::create_symlink("deep_first.so", folder_.file("link.so"));
  problem("link", EPERM);
  TemporaryDirectory elsewhere;
  const std::string link = elsewhere.file("policies");
  fs::create_directory_symlink(folder_.path(), link);
  const auto made = make_policy("deep_first", {}, link);
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, EPERM);
}

TEST_F(LoadedPolicies, AreRefusedIfTheyAreNoFiles) {
  fs::create_directory(folder_.file("folder.so"));
  problem("folder", EPERM);
  ASSERT_EQ(::mkfifo(folder_.file("pipe.so").c_str(), 0600), 0);
  problem("pipe", EPERM);
  problem("missing", ENOENT);
  const auto made = make_policy("deep_first", {}, folder_.file("no-such-folder"));
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ENOENT);
}

}  // namespace
}  // namespace maru::test
