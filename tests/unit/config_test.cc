// The configuration: what is wrong is named with its key and its line, and the example that is shipped is right.
#include "daemon/config.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace maru::daemon {
namespace {

std::vector<ConfigProblem> problems_of(const std::string& text) {
  std::vector<ConfigProblem> problems;
  parse_config(text, problems);
  return problems;
}

// The only problem, as "line: text".
std::string problem_of(const std::string& text) {
  const auto problems = problems_of(text);
  if (problems.size() == 1) return std::to_string(problems[0].line) + ": " + problems[0].text;
  std::string all = std::to_string(problems.size()) + " problems";
  for (const ConfigProblem& problem : problems) all += "\n" + std::to_string(problem.line) + ": " + problem.text;
  return all;
}

constexpr const char* kPool = "[[pool]]\nname = \"a\"\nbackend = \"memory\"\n";

TEST(Config, ProblemsNameTheirKeyAndItsLine) {
  const std::string pool = kPool;
  EXPECT_EQ(problem_of(pool + "size = \"1GiB\"\nlanes = 1\n"),
            "5: pool \"a\": lanes: found 1, expected 2 (one is marud's own) to 4096");
  EXPECT_EQ(problem_of(pool + "size = \"1GiB\"\npage_bytes = 3000\n"),
            "5: pool \"a\": page_bytes: found 3000, expected a power of two from 4096 to 4194304");
  EXPECT_EQ(problem_of(pool + "size = \"1GiB\"\npagebytes = 4096\n").substr(0, 42),
            "5: pool.pagebytes: found an unknown key, e");
  EXPECT_EQ(problem_of(pool + "\nsize = \"1KiB\"\n"), "5: pool \"a\": size: found 1 KiB, expected 256 KiB to 64 TiB");
}

TEST(Config, WhatIsWrongIsSaidOnce) {
  const std::string pool = kPool;
  EXPECT_EQ(problem_of(pool), "1: pool.size: found nothing, expected the size of the pool, such as \"1GiB\"");
  EXPECT_EQ(problem_of(pool + "size = \"12Q\"\n"),
            "4: pool.size: found \"12Q\", expected a size above zero, such as \"64KiB\", \"1GiB\" or a number of bytes");
}

TEST(Config, PathsAreAbsolute) {
  const std::string pool = std::string(kPool) + "size = \"1GiB\"\n";
  EXPECT_EQ(problem_of(pool + "[daemon]\nstate_dir = \"state\"\n"),
            "6: daemon.state_dir: found \"state\", expected an absolute path");
  EXPECT_EQ(problem_of(pool + "[daemon]\n\nsocket = \"marud.sock\"\n").substr(0, 46),
            "7: daemon.socket: found \"marud.sock\", expected");
  EXPECT_EQ(problems_of(pool + "[daemon]\nsocket = \"/" + std::string(200, 'x') + "\"\n").size(), 1u);
  EXPECT_TRUE(problems_of(pool + "[daemon]\nsocket = \"/a/b\"\nstate_dir = \"/a\"\n").empty());
}

TEST(Config, TheExampleIsRight) {
  const char* path = std::getenv("MARU_EXAMPLE_CONFIG");
  ASSERT_NE(path, nullptr);
  std::vector<ConfigProblem> problems;
  const Config config = read_config(path, problems);
  for (const ConfigProblem& problem : problems) ADD_FAILURE() << problem.line << ": " << problem.text;
  ASSERT_EQ(config.pools.size(), 1u);
  EXPECT_EQ(config.pools[0].bytes, 1u << 30);
  EXPECT_FALSE(others_may_connect(config));
}

}  // namespace
}  // namespace maru::daemon
