#include "daemon/tools/replay/options.h"

#include <getopt.h>
#include <gtest/gtest.h>
#include <vector>

namespace maru::replay {
namespace {

Result<Options> parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "maru-replay");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  optind = 0;  // getopt starts over
  return parse_options(int(arguments.size()), argv.data());
}

TEST(Options, TheDefaultsAreThoseOfTheUsage) {
  const Result<Options> options = parse({"--trace", "t"});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->clients, 4u);
  EXPECT_EQ(options->payload_bytes, 16384u);
  EXPECT_EQ(options->requests_max, 0u);
  EXPECT_TRUE(options->progress);
  EXPECT_FALSE(options->is_client);
}

TEST(Options, AllAreUnderstood) {
  const Result<Options> options = parse({"--trace", "t", "--socket=s", "--pool", "p", "--clients", "2", "--payload",
                                         "1", "--requests", "7", "--verify", "--json", "--no-progress"});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->socket_path, "s");
  EXPECT_EQ(options->pool, "p");
  EXPECT_EQ(options->clients, 2u);
  EXPECT_EQ(options->payload_bytes, 1u);
  EXPECT_EQ(options->requests_max, 7u);
  EXPECT_TRUE(options->verify_afterwards && options->json && !options->progress);
}

TEST(Options, WhatIsWrongIsNamed) {
  const std::vector<std::vector<std::string>> wrong = {
      {},          {"--trace"}, {"--trace", "t", "--clients", "0"},  {"--trace", "t", "--clients", "65"},
      {"--bogus"}, {"t"},       {"--trace", "t", "--payload", "4k"}, {"--trace", "t", "--requests", "-1"},
  };
  for (const auto& arguments : wrong) {
    const Result<Options> options = parse(arguments);
    ASSERT_FALSE(options) << testing::PrintToString(arguments);
    EXPECT_FALSE(options.error().doing.empty());
  }
}

}  // namespace
}  // namespace maru::replay
