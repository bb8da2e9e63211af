#include "daemon/tools/policy_sim/options.h"

#include <getopt.h>
#include <gtest/gtest.h>
#include <vector>

namespace maru::policy_sim {
namespace {

Result<Options> parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "maru-policy-sim");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  optind = 0;  // getopt starts over
  return parse_options(int(arguments.size()), argv.data());
}

TEST(PolicySimOptions, TheDefaultsAreThoseOfTheUsage) {
  const Result<Options> options = parse({"--trace", "t"});
  ASSERT_TRUE(options) << options.error().text();
  EXPECT_EQ(options->policies.size(), daemon::built_in_policies().size());
  ASSERT_EQ(options->sizes.size(), 7u);
  EXPECT_EQ(options->sizes[0].pages_of(182790), 913u);
  EXPECT_EQ(options->sizes[0].text(), "0.5 %");
  EXPECT_EQ(options->regions, 1u);
  EXPECT_EQ(options->clients, 1u);
  EXPECT_EQ(options->high_watermark, 1);
}

TEST(PolicySimOptions, AllAreUnderstood) {
  const Result<Options> options = parse({"--trace=t",
                                         "--policy",
                                         "lru,s3fifo",
                                         "--policy",
                                         "odds",
                                         "--option",
                                         "s3fifo.probation=0.1",
                                         "--size",
                                         "2,10",
                                         "--pages",
                                         "4096",
                                         "--regions",
                                         "8",
                                         "--clients",
                                         "3",
                                         "--watermarks",
                                         "90,80",
                                         "--requests",
                                         "7",
                                         "--plot",
                                         "p",
                                         "--policy-dir",
                                         "d",
                                         "--jobs",
                                         "2",
                                         "--json"});
  ASSERT_TRUE(options) << options.error().text();
  EXPECT_EQ(options->policies, (std::vector<std::string>{"lru", "s3fifo", "odds"}));
  EXPECT_EQ(options->policy_options.at("s3fifo"), (daemon::PolicyOptions{{"probation", "0.1"}}));
  ASSERT_EQ(options->sizes.size(), 3u);
  EXPECT_EQ(options->sizes[2].pages_of(1), 4096u);
  EXPECT_DOUBLE_EQ(options->high_watermark, 0.9);
  EXPECT_DOUBLE_EQ(options->low_watermark, 0.8);
  EXPECT_EQ(options->requests_max, 7u);
  EXPECT_TRUE(options->json);
}

TEST(PolicySimOptions, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::vector<std::string>, const char*>> wrong = {
      {{}, "--trace"},
      {{"--trace"}, "--trace"},
      {{"--trace", "t", "--size", "0"}, "--size"},
      {{"--trace", "t", "--size", "5,"}, "--size"},
      {{"--trace", "t", "--size", "nan"}, "--size"},
      {{"--trace", "t", "--pages", "many"}, "--pages"},
      {{"--trace", "t", "--regions", "0"}, "--regions"},
      {{"--trace", "t", "--clients", "-1"}, "--clients"},
      {{"--trace", "t", "--watermarks", "80,90"}, "--watermarks"},
      {{"--trace", "t", "--watermarks", "90"}, "--watermarks"},
      {{"--trace", "t", "--policy", "lru,least"}, "least"},
      {{"--trace", "t", "--option", "s3fifo.bogus=1"}, "bogus"},
      {{"--trace", "t", "--option", "probation=1"}, "--option"},
      {{"--trace", "t", "--policy", "lru", "--option", "s3fifo.probation=0.1"}, "s3fifo"},
      {{"--bogus"}, "--bogus"},
      {{"t"}, "t"},
  };
  for (const auto& [arguments, named] : wrong) {
    const Result<Options> options = parse(arguments);
    ASSERT_FALSE(options) << testing::PrintToString(arguments);
    EXPECT_NE(options.error().doing.find(named), std::string::npos) << options.error().doing;
  }
}

}  // namespace
}  // namespace maru::policy_sim
