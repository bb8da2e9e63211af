// The configuration: what is wrong is named with its key and its line, and the example that is shipped is right.
#include "daemon/config/config.h"
#include "daemon/config/changes.h"
#include "daemon/options.h"
#include "tests/support/temporary_directory.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <utility>
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

// As several that add pools and one that reads the configuration again.
TEST(Config, ManyThreadsLookUpNames) {
  std::vector<std::pair<std::string, uid_t>> users;
  std::vector<std::pair<std::string, gid_t>> groups;
  for (const char* name : {"root", "daemon", "bin", "sys", "mail", "news", "games", "man", "lp", "nobody"}) {
    if (const auto user = user_of(name)) users.emplace_back(name, *user);
    if (const auto group = group_of(name)) groups.emplace_back(name, *group);
  }
  ASSERT_GT(users.size(), 3u);
  ASSERT_GT(groups.size(), 3u);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (size_t i = thread; i < 2000; ++i) {
        const auto& [user, uid] = users[i % users.size()];
        const auto& [group, gid] = groups[i % groups.size()];
        wrong += user_of(user) != uid;
        wrong += group_of(group) != gid;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_FALSE(user_of("nobody has this name"));
}

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
  EXPECT_EQ(
      problem_of(pool + "size = \"12Q\"\n"),
      "4: pool.size: found \"12Q\", expected a size above zero, such as \"64KiB\", \"1GiB\" or a number of bytes");
}

// Each of these breaks something that toml++ promised the compiler.
TEST(Config, WhatIsNoTomlIsOneProblemOfItsLine) {
  const std::string pool = kPool;
  for (const char* wrong : {"[/x]\n", "size = \"1GiB\"\u00e4\n", "\u00e4 = 1\n", "size = \u0459\n"}) {
    const auto problems = problems_of(pool + wrong);
    EXPECT_EQ(problems.size(), 1u) << wrong;
    EXPECT_EQ(problems.empty() ? 0 : problems[0].line, 4) << wrong;
  }
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

Config config_of(const std::string& text) {
  std::vector<ConfigProblem> problems;
  Config config = parse_config(text, problems);
  for (const ConfigProblem& problem : problems) ADD_FAILURE() << problem.line << ": " << problem.text;
  return config;
}

TEST(Config, PoolsEvictInTheBackgroundUnlessTheySayOtherwise) {
  const std::string pool = std::string(kPool) + "size = \"1GiB\"\n";
  const PoolConfig says_nothing = config_of(pool).pools.at(0).pool;
  EXPECT_EQ(says_nothing.policy, "lru");
  EXPECT_TRUE(says_nothing.policy_options.empty());
  EXPECT_EQ(says_nothing.high_watermark, 0.90);
  EXPECT_EQ(says_nothing.low_watermark, 0.80);
  EXPECT_EQ(says_nothing.pin_overdue_ms, 30'000u);
  EXPECT_EQ(says_nothing.policy_dir, kPolicyDir);
  EXPECT_EQ(says_nothing.tracing_socket, "");
  const Config config = config_of("[daemon]\npolicy_dir = \"/elsewhere\"\ntracing_socket = \"/spans\"\n" + pool +
                                  "high_watermark = 1\nlow_watermark = 0.5\npin_overdue_ms = 7\n");
  EXPECT_EQ(config.pools.at(0).pool.high_watermark, 1.0);
  EXPECT_EQ(config.pools.at(0).pool.low_watermark, 0.5);
  EXPECT_EQ(config.pools.at(0).pool.pin_overdue_ms, 7u);
  EXPECT_EQ(config.pools.at(0).pool.policy_dir, "/elsewhere");
  EXPECT_EQ(config.pools.at(0).pool.tracing_socket, "/spans");
}

TEST(Config, PoolsOnDevicesHaveKeysOfTheirOwn) {
  const std::string dax = "[[pool]]\nname = \"a\"\nbackend = \"dax\"\n";
  const PoolSpec spec = config_of(dax +
                                  "device = \"node:1\"\ncontrol_device = \"/dev/dax0.0\"\nalign = \"1GiB\"\n"
                                  "format = \"never\"\nafter_power_loss = \"format\"\nreaders = [7]\n")
                            .pools.at(0);
  EXPECT_EQ(spec.backend, Backend::kDax);
  EXPECT_EQ(spec.dax.device, "node:1");
  EXPECT_EQ(spec.dax.control_device, "/dev/dax0.0");
  EXPECT_EQ(spec.dax.alignment, 1u << 30);
  EXPECT_FALSE(spec.dax.formats_blank);
  EXPECT_EQ(spec.after_power_loss, AfterPowerLoss::kFormat);
  EXPECT_EQ(spec.readers, std::vector<uid_t>{7});
  EXPECT_EQ(problem_of(dax).substr(0, 49), "1: pool.device: found nothing, expected the devic");
  EXPECT_EQ(problem_of(dax + "device = \"dax0.0\"\n").substr(0, 40), "4: pool.device: found \"dax0.0\", expected");
  EXPECT_EQ(problem_of(dax + "device = \"/dev/dax0.0\"\nsize = \"1GiB\"\n"),
            "5: pool.size: found \"1GiB\", expected nothing: a pool on a DAX device has the size of the device");
  EXPECT_EQ(problem_of(dax + "device = \"/dev/dax0.0\"\nalign = 12288\n").substr(0, 36),
            "5: pool.align: found 12288, expected");
  EXPECT_EQ(problem_of(dax + "device = \"/dev/dax0.0\"\nreaders = [7]\n").substr(0, 55),
            "5: pool.readers: found an array, expected control_devic");
  EXPECT_EQ(config_of(std::string(kPool) + "size = \"1GiB\"\nreaders = [7]\n").pools.at(0).readers,
            std::vector<uid_t>{7});
  EXPECT_EQ(problem_of(std::string(kPool) + "size = \"1GiB\"\ndevice = \"/dev/dax0.0\"\n"),
            "5: pool.device: found \"/dev/dax0.0\", expected nothing: it is for pools with backend = \"dax\"");
  const std::string twice = dax + "device = \"/dev/dax0.0\"\n[[pool]]\nname = \"b\"\nbackend = \"dax\"\n";
  EXPECT_EQ(problem_of(twice + "device = \"/dev/dax0.0\"\n"),
            "8: pool.device: found \"/dev/dax0.0\" a second time, expected a device of its own");
  EXPECT_EQ(problem_of(twice + "device = \"/dev/dax1.0\"\ncontrol_device = \"/dev/dax0.0\"\n"),
            "9: pool.control_device: found \"/dev/dax0.0\" a second time, expected a device of its own");
  const std::string uuid = "\"uuid:21cf8fa9-19c5-ed97-f54d-62a331c51486\"\n";
  const std::string by_uuid = "device = " + uuid + "control_device = " + uuid;
  EXPECT_TRUE(problems_of(dax + by_uuid).empty());
  EXPECT_EQ(problems_of(dax + by_uuid + "[[pool]]\nname = \"b\"\nbackend = \"dax\"\n" + by_uuid).size(), 2u);
}

TEST(Config, PoolsInFilesMayHaveTwo) {
  const std::string file = "[[pool]]\nname = \"a\"\nbackend = \"file\"\npath = \"/a\"\n";
  const PoolSpec spec = config_of(file + "control_path = \"/b\"\nreaders = [7]\n").pools.at(0);
  EXPECT_EQ(spec.path, "/a");
  EXPECT_EQ(spec.control_path, "/b");
  EXPECT_EQ(spec.readers, std::vector<uid_t>{7});
  EXPECT_EQ(
      problem_of(file + "readers = [7]\n"),
      "5: pool.readers: found an array, expected control_path beside it: who can write the control region of a pool "
      "in one piece can write its blocks");
  EXPECT_EQ(problem_of(file + "control_path = \"/a\"\n"),
            "5: pool.control_path: found \"/a\", expected another file than path, or nothing to have both in that one");
  EXPECT_EQ(problem_of(file + "control_path = \"b\"\n"),
            "5: pool \"a\": control_path: found \"b\", expected an absolute path");
  const std::string both = file + "control_path = \"/b\"\n";
  EXPECT_EQ(problem_of(both + "[[pool]]\nname = \"b\"\nbackend = \"file\"\npath = \"/b\"\n"),
            "9: pool.path: found \"/b\" a second time, expected a file of its own");
  EXPECT_EQ(problem_of(both + "[[pool]]\nname = \"b\"\nbackend = \"file\"\npath = \"/c\"\ncontrol_path = \"/b\"\n"),
            "10: pool.control_path: found \"/b\" a second time, expected a file of its own");
  EXPECT_EQ(problem_of(std::string(kPool) + "size = \"1GiB\"\ncontrol_path = \"/b\"\n"),
            "5: pool.control_path: found \"/b\", expected nothing: a memory pool has no file");
  EXPECT_EQ(problem_of("[[pool]]\nname = \"a\"\nbackend = \"dax\"\ndevice = \"/dev/dax0.0\"\ncontrol_path = \"/b\"\n"),
            "5: pool.control_path: found \"/b\", expected nothing: a pool on a DAX device has control_device =");
  const std::string small = both + "page_bytes = 4096\nlanes = 8\npins = 64\n";
  EXPECT_NE(problem_of(small + "size = \"2MiB\"\n").find("size: found 2 MiB, expected at least "), std::string::npos)
      << "the label of the pages takes as much";
  EXPECT_TRUE(problems_of(small + "size = \"4MiB\"\n").empty());
}

TEST(Config, RoomOfAFileIsReservedUnlessItSaysNo) {
  const std::string file = "[[pool]]\nname = \"a\"\nbackend = \"file\"\npath = \"/a\"\n";
  EXPECT_TRUE(config_of(file).pools.at(0).reserve);
  const PoolSpec spec = config_of(file + "reserve = false\nfirst_touch = true\n").pools.at(0);
  EXPECT_FALSE(spec.reserve);
  EXPECT_TRUE(spec.numa.first_touch);
  EXPECT_EQ(problem_of(std::string(kPool) + "size = \"1GiB\"\nreserve = true\n"),
            "5: pool.reserve: found true, expected nothing: it is for pools in files");
}

TEST(Config, MemoryIsPlacedOnNodes) {
  const std::string pool = std::string(kPool) + "size = \"1GiB\"\n";
  EXPECT_EQ(config_of(pool + "numa_node = 3\n").pools.at(0).numa.nodes, std::vector<int>{3});
  const NumaPlacement numa =
      config_of(pool + "numa_nodes = [0, 2]\nnuma_policy = \"interleave\"\nfirst_touch = true\n").pools.at(0).numa;
  EXPECT_EQ(numa.nodes, (std::vector<int>{0, 2}));
  EXPECT_EQ(numa.policy, NumaPlacement::Policy::kInterleave);
  EXPECT_TRUE(numa.first_touch);
  EXPECT_EQ(problem_of(pool + "numa_nodes = [0, -1]\n"),
            "5: pool.numa_nodes: found an array, expected an array of whole numbers from 0 to 1023");
  EXPECT_EQ(problem_of(pool + "numa_policy = \"bind\"\n"),
            "5: pool.numa_policy: found \"bind\", expected numa_nodes beside it");
}

// Control region and pages take whole huge pages, each for itself.
TEST(Config, APoolTooSmallForItsPiecesIsToldTheLeastSize) {
  const std::string small = std::string(kPool) + "page_bytes = 4096\nlanes = 8\npins = 64\n";
  const std::string require = small + "huge_pages = \"require\"\n";
  EXPECT_EQ(
      problem_of(require + "size = \"2MiB\"\n"),
      "8: pool \"a\": size: found 2 MiB, expected at least 4 MiB in huge pages of 2 MiB: the pool is too small for "
      "its control region and a single region of pages (fewer lanes, pins or touch_entries make the control region "
      "smaller)");
  EXPECT_TRUE(problems_of(require + "size = \"4MiB\"\n").empty());
  EXPECT_TRUE(problems_of(small + "size = \"2MiB\"\n").empty()) << "in pages of 4 KiB there is room for both";
  // Regions as large as the rest of it.
  const std::string regions = require + "region_bytes = \"4MiB\"\n";
  EXPECT_NE(problem_of(regions + "size = \"4MiB\"\n").find("expected at least 6 MiB in huge pages"), std::string::npos)
      << problem_of(regions + "size = \"4MiB\"\n");
  EXPECT_TRUE(problems_of(regions + "size = \"6MiB\"\n").empty());
  // What is asked for does, to the byte.
  const std::string odd = std::string(kPool) + "page_bytes = \"4MiB\"\nregion_bytes = \"1GiB\"\nsize = ";
  EXPECT_NE(problem_of(odd + "\"1GiB\"\n").find("expected at least 10"), std::string::npos)
      << problem_of(odd + "\"1GiB\"\n");
}

TEST(Config, PagesTooSmallForTheSizeAreToldTheLeast) {
  const std::string memory = "[[pool]]\nname = \"a\"\nbackend = \"memory\"\nsize = \"64TiB\"\n";
  const std::string file = "[[pool]]\nname = \"a\"\nbackend = \"file\"\nsize = \"64TiB\"\npath = \"/a\"\n";
  const std::string why =
      ": page_bytes is too small for this size: there would be more than 2^32 - 2 pages, and the rest "
      "would stay unused; choose a larger page_bytes";
  for (const std::string& pool : {memory, file, file + "control_path = \"/b\"\n"}) {
    const std::string line = std::to_string(1 + std::count(pool.begin(), pool.end(), '\n'));
    for (const char* page : {"4 KiB", "8 KiB"})
      EXPECT_EQ(
          problem_of(pool + "page_bytes = \"" + page + "\"\n"),
          line + ": pool \"a\": page_bytes: found " + page + ", expected at least 16 KiB for a pool of 64 TiB" + why);
    EXPECT_EQ(problem_of(pool + "region_bytes = \"8KiB\"\n"),
              line + ": pool \"a\": region_bytes: found 8 KiB, expected at least 16 KiB for a pool of 64 TiB" + why);
    for (const char* key : {"page_bytes", "region_bytes"})
      EXPECT_TRUE(problems_of(pool + key + " = \"16KiB\"\n").empty()) << pool << key;
    EXPECT_TRUE(problems_of(pool).empty());
  }
}

// Against trying one size after the other.
TEST(Config, TheLeastSizeIsTheLeastThatIsTaken) {
  const std::string files = "[[pool]]\nname = \"a\"\nbackend = \"file\"\npath = \"/a\"\n";
  const std::string in_two = files + "control_path = \"/b\"\n";
  const std::string shared = "profile = \"shared\"\ncoherent = true\nhosts = ";
  for (const std::string& more : {shared + "2\n", shared + "64\n", std::string("lanes = 512\npins = 128\n")})
    for (const char* page : {"4KiB", "64KiB"})
      for (const std::string& place : {files, in_two}) {
        const std::string pool = place + more + "page_bytes = \"" + page + "\"\nsize = ";
        const auto is_taken = [&](uint64_t kib) {
          return problems_of(pool + std::to_string(kib << 10) + "\n").empty();
        };
        uint64_t least = 256;
        while (!is_taken(least)) least += 4;
        if (least == 256) continue;
        // From whatever is too small the same.
        for (const uint64_t kib : {uint64_t{256}, least / 2 / 4 * 4, least - 4}) {
          if (kib < 256) continue;
          const std::string said = problem_of(pool + std::to_string(kib << 10) + "\n");
          const std::string size =
              least % 1024 == 0 ? std::to_string(least >> 10) + " MiB" : std::to_string(least) + " KiB";
          EXPECT_NE(said.find("expected at least " + size + ":"), std::string::npos) << pool << kib << " KiB\n" << said;
        }
      }
}

// Less than one page of the memory that it is to be taken from.
TEST(Config, TheLeastSizeIsSaidOfWhatIsLessThanAHugePage) {
  for (const char* size : {"256KiB", "1MiB", "2MiB"}) {
    const std::string said =
        problem_of("[[pool]]\nname = \"a\"\nhuge_pages = \"require\"\nsize = \"" + std::string(size) + "\"\n");
    EXPECT_NE(said.find("expected at least 4 MiB"), std::string::npos) << said;
  }
}

TEST(Config, FencingIsOfSharedPoolsAndNamesAreOfFencing) {
  const std::string pool = "[[pool]]\nname = \"a\"\nbackend = \"file\"\npath = \"/a\"\nsize = \"1GiB\"\n";
  const std::string shared = "profile = \"shared\"\ncoherent = true\n";
  const std::string command = "fencing_command = [\"/fence\"]\n", names = "fencing_names = [\"b\", \"c\"]\n";
  const SharingConfig sharing = config_of(pool + shared + command + names).pools.at(0).pool.sharing;
  EXPECT_EQ(sharing.fencing_names, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(problem_of(pool + shared + names),
            "8: pool.fencing_names: found an array, expected nothing without fencing_command");
  EXPECT_EQ(problem_of(pool + shared + command + "fencing_names = []\n"),
            "9: pool.fencing_names: found an array, expected an array of texts that are not empty");
  EXPECT_EQ(problems_of(pool + command + names).size(), 2u) << "each of them needs the profile";
  // Of a pool that any client can give any name to.
  EXPECT_EQ(
      problem_of(pool + shared + command),
      "8: pool \"a\": fencing_command: found no fencing_names beside it, expected fencing_names = [\"HOST\", ...] "
      "with the names of the other hosts of this pool, as marudctl host list shows them: the command is run for no "
      "others");
  EXPECT_EQ(problems_of(pool + command).size(), 1u) << "the profile comes first";
}

TEST(Config, OptionsOfAPolicyAreHandedOnAsText) {
  const std::string pool = std::string(kPool) + "size = \"1GiB\"\npolicy = \"mine\"\n";
  const PoolConfig config =
      config_of(pool + "policy_options = { share = 0.5, tenth = 0.1, uses = 3, fast = true, text = \"a b\" }\n")
          .pools.at(0)
          .pool;
  EXPECT_EQ(config.policy, "mine");
  const PolicyOptions expected = {{"fast", "true"}, {"share", "0.5"}, {"tenth", "0.1"}, {"text", "a b"}, {"uses", "3"}};
  EXPECT_EQ(config.policy_options, expected);
  EXPECT_EQ(problem_of(pool + "policy_options = { share = [1] }\n"),
            "6: pool.policy_options.share: found an array, expected a number, true or false, or a text");
  EXPECT_EQ(problem_of(pool + "policy_options = { share = nan }\n"),
            "6: pool.policy_options.share: found nan, expected a number, true or false, or a text");
  EXPECT_EQ(problem_of(pool + "policy_options = 3\n"),
            "6: pool.policy_options: found 3, expected a table of at most 64 options, such as { name = 0.5 }");
}

TEST(Config, WatermarksThatCannotBeAreNamed) {
  const std::string pool = std::string(kPool) + "size = \"1GiB\"\n";
  EXPECT_EQ(problem_of(pool + "high_watermark = 1.5\n"),
            "5: pool.high_watermark: found 1.5, expected a number above 0 and up to 1, such as 0.8");
  EXPECT_EQ(problem_of(pool + "low_watermark = \"80%\"\n"),
            "5: pool.low_watermark: found \"80%\", expected a number above 0 and up to 1, such as 0.8");
  EXPECT_EQ(problem_of(pool + "default_soft_limit = \"2MiB\"\ndefault_hard_limit = \"1MiB\"\n"),
            "5: pool.default_soft_limit: found \"2MiB\", expected at most default_hard_limit, which is 1 MiB");
  EXPECT_EQ(problem_of(pool + "[[pool.tenant]]\nname = \"t\"\nsoft = \"2MiB\"\nhard = \"1MiB\"\n"),
            "7: pool.tenant.soft: found \"2MiB\", expected at most hard, which is 1 MiB");
  EXPECT_EQ(problem_of(pool + "high_watermark = 0.5\nlow_watermark = 0.5\n"),
            "6: pool \"a\": low_watermark: found 0.5, expected less than high_watermark, which is 0.5");
  EXPECT_EQ(problem_of(pool + "low_watermark = 0.95\n"),
            "5: pool \"a\": low_watermark: found 0.95, expected less than high_watermark, which is 0.9 unless it is "
            "set, too");
  EXPECT_EQ(
      problem_of(pool + "high_watermark = 0.7\n"),
      "5: pool \"a\": high_watermark: found 0.7, expected more than low_watermark, which is 0.8 unless it is set, too");
  EXPECT_EQ(problem_of(pool + "pin_overdue_ms = 0\n"),
            "5: pool.pin_overdue_ms: found 0, expected a whole number from 1 to 2147483647");
}

TEST(Config, PoliciesThatCannotBeMadeAreProblems) {
  const std::string pool = std::string(kPool) + "size = \"1GiB\"\n";
  const auto problems_with = [&](const std::string& text) {
    std::vector<ConfigProblem> problems;
    check_policies(config_of(pool + text).pools, problems);
    return problems;
  };
  EXPECT_TRUE(problems_with("").empty());
  EXPECT_TRUE(problems_with("policy = \"s3fifo\"\npolicy_options = { probation = 0.25 }\n").empty());
  const auto unknown = problems_with("policy = \"guess\"\n");
  ASSERT_EQ(unknown.size(), 1u);
  EXPECT_EQ(unknown[0].line, 5);
  EXPECT_NE(unknown[0].text.find("guess"), std::string::npos) << unknown[0].text;
  EXPECT_NE(unknown[0].text.find("lru"), std::string::npos) << "the policies that there are: " << unknown[0].text;
  const auto option = problems_with("policy = \"lru\"\npolicy_options = { speed = 3 }\n");
  ASSERT_EQ(option.size(), 1u);
  EXPECT_EQ(option[0].line, 6);
  EXPECT_NE(option[0].text.find("speed"), std::string::npos) << option[0].text;
}

TEST(Config, StateLiesBesideTheSocket) {
  const std::string pool = std::string(kPool) + "size = \"1GiB\"\n";
  EXPECT_EQ(config_of(pool + "[daemon]\nsocket = \"/a/b/c.sock\"\n").state_dir, "/a/b/state");
  EXPECT_EQ(config_of(pool + "[daemon]\nsocket = \"/a/b/c.sock\"\nstate_dir = \"/d\"\n").state_dir, "/d");
}

// -- the command line -------------------------------------------------------------------------------------------------

Config config_of_line(std::vector<std::string> arguments, std::vector<std::string>& problems) {
  arguments.insert(arguments.begin(), "marud");
  std::vector<char*> values;
  for (std::string& argument : arguments) values.push_back(argument.data());
  values.push_back(nullptr);
  const Options options = parse_options(int(arguments.size()), values.data(), problems);
  if (!problems.empty()) return {};
  std::vector<ConfigProblem> wrong;
  Config config = effective_config(options, wrong);
  for (const ConfigProblem& problem : wrong) problems.push_back(std::to_string(problem.line) + ": " + problem.text);
  return config;
}

TEST(CommandLine, ASocketPathThatIsTooLongIsWrong) {
  std::vector<std::string> problems;
  config_of_line({"--memory", "1GiB", "--socket", "/" + std::string(106, 's')}, problems);
  EXPECT_TRUE(problems.empty()) << problems[0];
  config_of_line({"--memory", "1GiB", "--socket", "/" + std::string(107, 's')}, problems);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("--socket"), std::string::npos) << problems[0];
  EXPECT_NE(problems[0].find("107 bytes"), std::string::npos) << problems[0];
}

TEST(CommandLine, ItSaysWhatIsEvictedAndWhen) {
  std::vector<std::string> problems;
  PoolConfig pool = config_of_line({"--memory", "1GiB"}, problems).pools.at(0).pool;
  EXPECT_EQ(pool.policy, "lru");
  EXPECT_EQ(pool.high_watermark, 0.90);
  EXPECT_EQ(pool.low_watermark, 0.80);
  pool = config_of_line({"--memory", "1GiB", "--policy", "s3fifo", "--policy-option", "probation=0.5",
                         "--policy-option", "threshold=2", "--high-watermark", "0.7", "--low-watermark", "0.6"},
                        problems)
             .pools.at(0)
             .pool;
  EXPECT_EQ(pool.policy, "s3fifo");
  EXPECT_EQ(pool.policy_options, (PolicyOptions{{"probation", "0.5"}, {"threshold", "2"}}));
  EXPECT_EQ(pool.high_watermark, 0.7);
  EXPECT_EQ(pool.low_watermark, 0.6);
  EXPECT_TRUE(problems.empty()) << problems[0];
}

TEST(CommandLine, NoLanesAndNoPinsAreNotTheDefault) {
  for (const char* option : {"--lanes", "--pins"}) {
    std::vector<std::string> problems;
    config_of_line({"--memory", "1GiB", option, "0"}, problems);
    ASSERT_EQ(problems.size(), 1u) << option;
    EXPECT_EQ(problems[0].find(std::string(option) + ": found \"0\", expected a number from "), 0u) << problems[0];
  }
}

TEST(CommandLine, WhatItSaysOfEvictionIsChecked) {
  const auto problem = [](std::vector<std::string> arguments) {
    std::vector<std::string> problems;
    arguments.insert(arguments.begin(), {"--memory", "1GiB"});
    config_of_line(arguments, problems);
    return problems.size() == 1 ? problems[0] : std::to_string(problems.size()) + " problems";
  };
  EXPECT_EQ(problem({"--high-watermark", "90"}),
            "--high-watermark: found \"90\", expected a number above 0 and up to 1, such as 0.8");
  EXPECT_EQ(problem({"--low-watermark", "0.95"}),
            "0: pool \"default\": low_watermark: found 0.95, expected less than high_watermark, which is 0.9");
  EXPECT_EQ(problem({"--policy-option", "probation"}),
            "--policy-option: found \"probation\", expected NAME=VALUE, at most 64 of them");
  EXPECT_NE(problem({"--policy", "guess"}).find("guess"), std::string::npos);
  EXPECT_EQ(problem({"--config", "/x", "--policy", "lru"}).find("found --config and options of a pool"), 0u);
}

TEST(CommandLine, StateLiesBesideTheSocketThatIsGiven) {
  std::vector<std::string> problems;
  EXPECT_EQ(config_of_line({"--memory", "1GiB", "--socket", "/a/b/c.sock"}, problems).state_dir, "/a/b/state");
  const char* example = std::getenv("MARU_EXAMPLE_CONFIG");
  ASSERT_NE(example, nullptr);
  EXPECT_EQ(config_of_line({"--config", example, "--socket", "/a/b/c.sock"}, problems).state_dir, "/var/lib/marud")
      << "a configuration that says where state is wins";
  const test::TemporaryDirectory directory;
  const std::string path = directory.file("marud.toml");
  std::ofstream(path) << kPool << "size = \"1GiB\"\n";
  EXPECT_EQ(config_of_line({"--config", path, "--socket", "/a/b/c.sock"}, problems).state_dir, "/a/b/state");
  EXPECT_TRUE(problems.empty()) << problems[0];
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
  check_policies(config.pools, problems);
  EXPECT_TRUE(problems.empty()) << problems[0].text;
}

// What it shows as a default is one, wherever marud was built for.
TEST(Config, TheExampleShowsNoOtherFolderOfPoliciesAsTheDefault) {
  const char* path = std::getenv("MARU_EXAMPLE_CONFIG");
  ASSERT_NE(path, nullptr);
  std::ifstream file(path);
  std::string line, before;
  while (std::getline(file, line) && !line.starts_with("#policy_dir = ")) before = line;
  ASSERT_TRUE(line.starts_with("#policy_dir = ")) << "the example does not have it";
  const std::string shown = config_of("[daemon]\n" + line.substr(1) + "\n" + kPool + "size = \"1GiB\"\n").policy_dir;
  EXPECT_TRUE(shown == kPolicyDir || before.find("The default is") != std::string::npos)
      << "found " << shown << " shown as the default, which is " << kPolicyDir;
}

Config read(const std::string& text) {
  std::vector<ConfigProblem> problems;
  Config config = parse_config(text, problems);
  for (const ConfigProblem& problem : problems) ADD_FAILURE() << problem.line << ": " << problem.text << "\n" << text;
  return config;
}

TEST(ConfigChanges, WhatWaitsForARestartIsNamedWithBothValues) {
  const std::string pool = std::string(kPool) + "size = \"1GiB\"\n";
  const Config running = read("[daemon]\nlog_level = \"info\"\nsocket = \"/a/b\"\n[http]\ntimeout_ms = 3000\n" + pool +
                              "users = [0]\npolicy = \"lru\"\n[[pool.tenant]]\nname = \"t\"\nsoft = \"1MiB\"\n");
  const Config fresh =
      read("[daemon]\nlog_level = \"debug\"\nsocket = \"/c\"\n[limits]\npins = 3\n" + std::string(kPool) +
           "size = \"2GiB\"\nusers = [0, 1]\nhigh_watermark = 0.7\nlow_watermark = 0.40\n"
           "policy_options = { probation = 1.0 }\n[[pool.tenant]]\nname = \"t\"\nsoft = \"2MiB\"\n");
  using Lines = std::vector<std::string>;
  const std::string wait = " now: this waits for a restart of marud";
  EXPECT_EQ(waiting_changes("daemon", running.written_daemon, running.written_daemon), Lines());
  EXPECT_EQ(waiting_changes("daemon", running.written_daemon, fresh.written_daemon),
            Lines{"daemon: socket was \"/a/b\" and is \"/c\"" + wait});
  EXPECT_EQ(waiting_changes("http", running.written_http, fresh.written_http),
            Lines{"http: timeout_ms was 3000 and is not set" + wait});
  EXPECT_EQ(
      waiting_changes("pool a", running.pools[0].written, fresh.pools[0].written),
      (Lines{"pool a: policy was \"lru\" and is not set" + wait, "pool a: size was \"1GiB\" and is \"2GiB\"" + wait,
             "pool a: tenant.t.soft was \"1MiB\" and is \"2MiB\"" + wait,
             "pool a: high_watermark was not set and is 0.7" + wait,
             "pool a: low_watermark was not set and is 0.4" + wait,
             "pool a: policy_options.probation was not set and is 1.0" + wait}));
}

TEST(ConfigChanges, ArgumentsOfCommandsStayOutOfTheLog) {
  const auto lines = waiting_changes("pool a", {{"fencing_command", "[\"fence\", \"secret\"]"}},
                                     {{"fencing_command", "[\"fence\", \"another\"]"}});
  EXPECT_EQ(lines,
            std::vector<std::string>{"pool a: fencing_command is another one now: this waits for a restart of marud"});
}

}  // namespace
}  // namespace maru::daemon
