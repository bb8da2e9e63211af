// Processes that use adapters die at each step of each move. The next process that opens the register, or meets the
// adapter, leaves the pool and the register as if the dead one had never begun.
#include "tests/adapters/mortal.h"
#include "tests/adapters/set_fixture.h"

#include <csignal>
#include <fcntl.h>
#include <unistd.h>

namespace maru::test {

using adapters::AdapterSet;
using adapters::Step;

namespace {

constexpr std::pair<const char*, Step> kSteps[] = {
    {"making-begun", Step::kMakingBegun},
    {"allocated", Step::kAllocated},
    {"filled", Step::kFilled},
    {"storing-part", Step::kStoringPart},
    {"stored", Step::kStored},
    {"removing-begun", Step::kRemovingBegun},
    {"deepest-removed", Step::kDeepestRemoved},
    {"parts-removed", Step::kPartsRemoved},
};

// Clocks of the roles: long after whatever the register says, so that the rules move at once.
constexpr uint64_t kLateMs = kFirstMs + 50'000, kLaterMs = kFirstMs + 500'000;

int act(AdapterSet& set, const std::string& action, const std::string& name) {
  maru_adapters_reason reason = {};
  if (action == "unload") return set.unload(name, &reason);
  if (action == "promote" || action == "demote") return set.rebalance(1) == 1 ? 0 : -ENOENT;
  maru_adapter* adapter = nullptr;
  const int status =
      set.acquire(name, action == "acquire-exact" ? MARU_ADAPTER_EXACT : MARU_ADAPTER_ANY, &adapter, &reason);
  if (status < 0) std::fprintf(stderr, "%s\n", reason.text);
  return status;  // held until the process ends
}

}  // namespace

int play_mortal(const std::vector<std::string>& arguments) {
  // The descriptors of its pipes.
  if (arguments.size() == 8 &&
      (::dup2(std::stoi(arguments[6]), STDIN_FILENO) < 0 || ::dup2(std::stoi(arguments[7]), STDOUT_FILENO) < 0))
    return 3;
  const std::string &socket = arguments.at(0), &path = arguments.at(1), &name = arguments.at(2),
                    &action = arguments.at(3);
  const TestClient client(socket);
  maru_geometry geometry = client.geometry();
  AdapterSet::Wish wish;
  wish.in_register.path = path;
  std::memcpy(wish.in_register.pool_uuid, geometry.uuid, 16);
  wish.in_register.page_bytes = geometry.page_bytes;
  wish.now_ms = [&] { return action == "promote" ? kLateMs : action == "demote" ? kLaterMs : kFirstMs; };
  int passes = std::stoi(arguments.at(5));
  wish.at_step = [&](Step step) {
    for (const auto& [text, at] : kSteps)
      if (at == step && arguments.at(4) == text && passes-- == 0) ::kill(::getpid(), SIGKILL);
  };
  AdapterSet set(client, wish);
  maru_adapters_reason reason = {};
  if (set.open(&reason) != 0) return std::fprintf(stderr, "%s\n", reason.text), 3;
  const int status = act(set, action, name);
  std::printf("done %d\n", status);
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) continue;
  return 0;
}

namespace {

struct Death {
  const char* action;
  const char* step;
  int skip;
};
std::ostream& operator<<(std::ostream& out, const Death& death) {
  return out << death.action << " at " << death.step << " after " << death.skip;
}

class DeathsOfHolders : public ::testing::Test {
 protected:
  // Three parts and more, so that a death may come between them.
  static AdapterWish wish() {
    AdapterWish wish;
    wish.rank = 40;
    return wish;
  }
  maru_adapters_statistics statistics(AdapterSet& set) {
    maru_adapters_statistics statistics = {};
    EXPECT_EQ(set.statistics(&statistics), 0);
    return statistics;
  }

  // Of the whole pool, as a client that holds nothing counts them.
  uint64_t blocks() {
    const TestClient client(home_.marud().socket_path());
    maru_block_counts counts = {};
    counts.size = sizeof(counts);
    EXPECT_EQ(maru_count_blocks(client, &counts), 0);
    return counts.blocks;
  }

  AdapterHome home_;
};

class Deaths : public DeathsOfHolders, public ::testing::WithParamInterface<Death> {};

TEST_P(Deaths, LeaveTheBaseline) {
  const std::string action = GetParam().action;
  maru_adapters_statistics before = {};
  {
    const TestClient client(home_.marud().socket_path());
    const auto set = home_.open(client);
    home_.add(*set, "a", wish());
    maru_adapter_info info = {};
    ASSERT_EQ(set->find("a", &info), 0);
    ASSERT_GE(info.warm_parts, 3u);
    if (action == "promote")
      for (int i = 0; i < 12; ++i) const Use use(*set, "a");
    if (action == "demote" || action == "unload") const Use use(*set, "a", MARU_ADAPTER_EXACT);
    before = statistics(*set);
  }
  const uint64_t blocks_before = blocks();
  {
    ChildProcess mortal({own_program(), "--role", home_.marud().socket_path(), home_.register_path(), "a",
                         GetParam().action, GetParam().step, std::to_string(GetParam().skip)});
    const auto ended = mortal.wait();
    ASSERT_TRUE(ended && ended->by_signal && ended->code == SIGKILL) << (ended ? ended->text() : "it goes on");
  }
  {
    const TestClient client(home_.marud().socket_path());
    const auto set = home_.open(client);
    const maru_adapters_statistics after = statistics(*set);
    // What the dead process had begun to make is gone, and so is what it had begun to remove.
    EXPECT_EQ(after.repairs, 1u);
    EXPECT_LE(after.hot_adapters + after.warm_adapters, before.hot_adapters + before.warm_adapters);
    EXPECT_LE(blocks(), blocks_before);
    // The adapter works as ever.
    const Use use(*set, "a", MARU_ADAPTER_EXACT);
    ASSERT_EQ(use.status(), 0) << use.reason();
    EXPECT_EQ(difference(use.get(), wish_named("a", wish()), 0), "");
  }
  {
    const TestClient client(home_.marud().socket_path());
    const auto set = home_.open(client);
    maru_adapters_reason reason = {};
    // Until marud has taken back the pins of the dead.
    ASSERT_TRUE(wait_until([&] { return set->unload("a", &reason) == 0; })) << reason.text;
    const maru_adapters_statistics after = statistics(*set);
    EXPECT_EQ(after.hot_adapters + after.warm_adapters + after.hot_bytes + after.warm_bytes, 0u);
  }
  EXPECT_EQ(blocks(), 0u);
  const ControlMap map(home_.marud().socket_path());
  expect_baseline(home_.marud(), map);
}

INSTANTIATE_TEST_SUITE_P(EachStep, Deaths,
                         ::testing::Values(Death{"acquire", "making-begun", 0}, Death{"acquire", "allocated", 0},
                                           Death{"acquire", "filled", 0}, Death{"acquire", "storing-part", 0},
                                           Death{"acquire", "storing-part", 1}, Death{"acquire", "storing-part", 2},
                                           Death{"acquire", "stored", 0}, Death{"acquire-exact", "storing-part", 1},
                                           Death{"acquire-exact", "stored", 0}, Death{"promote", "making-begun", 0},
                                           Death{"promote", "allocated", 0}, Death{"promote", "filled", 0},
                                           Death{"promote", "storing-part", 1}, Death{"promote", "stored", 0},
                                           Death{"promote", "removing-begun", 0},
                                           Death{"promote", "deepest-removed", 0}, Death{"promote", "parts-removed", 0},
                                           Death{"demote", "making-begun", 0}, Death{"demote", "allocated", 0},
                                           Death{"demote", "filled", 0}, Death{"demote", "storing-part", 1},
                                           Death{"demote", "stored", 0}, Death{"demote", "removing-begun", 0},
                                           Death{"demote", "deepest-removed", 0}, Death{"demote", "parts-removed", 0},
                                           Death{"unload", "removing-begun", 0}, Death{"unload", "deepest-removed", 0},
                                           Death{"unload", "parts-removed", 0}));

// A process dies while another waits for what it makes.
TEST_F(DeathsOfHolders, AHolderThatDiesHoldsNothing) {
  const TestClient client(home_.marud().socket_path());
  const auto set = home_.open(client);
  home_.add(*set, "a", wish());
  maru_adapters_reason reason = {};
  {
    int said[2], input[2];
    ASSERT_EQ(::pipe2(said, O_CLOEXEC), 0);
    ASSERT_EQ(::pipe2(input, O_CLOEXEC), 0);
    const FileDescriptor said_read(said[0]), input_write(input[1]);
    FileDescriptor said_write(said[1]), input_read(input[0]);
    ChildProcess holder(
        {own_program(), "--role", home_.marud().socket_path(), home_.register_path(), "a", "acquire-exact", "none", "0",
         std::to_string(input_read.get()), std::to_string(said_write.get())},
        "", {input_read.get(), said_write.get()});
    said_write.reset(), input_read.reset();
    char line[7] = {};
    ASSERT_EQ(::read(said_read.get(), line, 6), 6);
    EXPECT_STREQ(line, "done 0");
    EXPECT_EQ(set->unload("a", &reason), -EBUSY) << reason.text;
    holder.kill();
  }
  // Until marud has taken back the dead client's pin, the adapter is held.
  EXPECT_TRUE(wait_until([&] { return set->unload("a", &reason) == 0; })) << reason.text;
  EXPECT_EQ(statistics(*set).hot_adapters, 0u);
}

}  // namespace
}  // namespace maru::test
