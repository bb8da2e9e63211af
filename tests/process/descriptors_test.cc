// Descriptors of a process belong to its program, which may have none of the standard ones. A program of its own, since it starts itself again without standard streams.
#include "tests/support/child_process.h"
#include "tests/support/marud_process.h"
#include "tests/support/test_client.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

namespace maru::test {
namespace {

// -- standard streams -------------------------------------------------------------------------------------------------

constexpr const char* kNoise = "noise on a stream that is closed";

// Started without some standard streams. The exit status is what went wrong.
int run_without_streams(const char* socket_path) {
  std::vector<int> closed;
  for (int fd = 0; fd <= STDERR_FILENO; ++fd)
    if (::fcntl(fd, F_GETFD) < 0) closed.push_back(fd);
  TestClient client(socket_path);
  if (client.store("k", "text") != 0) return 10;
  for (const int fd : closed)
    if (::write(fd, kNoise, std::strlen(kNoise)) >= 0 || errno != EBADF) return 11 + fd;
  if (client.text("k") != "text") return 20;
  if (maru_reattach(client) != 0) return 21;
  client.detach();
  return closed.empty() ? 22 : 0;
}

// A program, started by a shell that closes streams as `closing` says.
std::vector<std::string> without_streams(const std::string& closing, std::vector<std::string> command) {
  command.insert(command.begin(), {"sh", "-c", "exec \"$0\" \"$@\" " + closing});
  return command;
}
const char* const kClosings[] = {"2>&-", ">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"};

TEST(Descriptors, AProgramWithoutStandardStreamsPrintsIntoNoMemory) {
  MarudProcess marud;
  TestClient other(marud.socket_path());
  ASSERT_EQ(other.store("other's", "other's text"), 0);
  for (const std::string closing : kClosings) {
    ChildProcess process(without_streams(closing, {own_program(), "--without-streams", marud.socket_path()}));
    const auto ended = process.wait();
    ASSERT_TRUE(ended) << closing << ": hangs";
    EXPECT_TRUE(!ended->by_signal && ended->code == 0) << closing << ": " << ended->text();
    EXPECT_EQ(other.text("k"), "text") << closing;
    EXPECT_EQ(other.text("other's"), "other's text") << closing;
    EXPECT_EQ(other.remove("k"), 0);
  }
}

// What is printed by a library that one of these programs uses must not go into a pool, either.
TEST(Descriptors, ProgramsHoldTheStandardStreamsBeforeTheyOpenAnything) {
  const TemporaryDirectory directory;
  const std::string probe = directory.file("probe");
  ChildProcess can_trace({"strace", "-o", probe, "true"}, "/dev/null");
  if (const auto ended = can_trace.wait(); !ended || ended->by_signal || ended->code != 0)
    GTEST_SKIP() << "strace is missing or may not trace here";
  const char* const variables[] = {"MARU_TEST_MARUD", "MARU_TEST_MARUDCTL", "MARU_TEST_PROVISION", "MARU_TEST_REPLAY",
                                   "MARU_TEST_POLICY_SIM"};
  for (const char* variable : variables) {
    const char* program = std::getenv(variable);
    ASSERT_NE(program, nullptr) << variable;
    const std::string trace = directory.file("trace");
    ChildProcess process({"strace", "-o", trace, "sh", "-c", "exec \"$0\" --version <&- >&- 2>&-", program});
    ASSERT_TRUE(process.wait()) << program;
    std::ifstream file(trace);
    std::set<std::string> held;
    for (std::string line; std::getline(file, line);) {
      if (line.find("execve(") != std::string::npos) held.clear();
      if (line.find("\"/dev/null\"") != std::string::npos) held.insert(line.substr(line.rfind('=')));
    }
    EXPECT_EQ(held, (std::set<std::string>{"= 0", "= 1", "= 2"})) << program;
    std::filesystem::remove(trace);
  }
}

}  // namespace
}  // namespace maru::test

int main(int count, char** arguments) {
  if (count == 3 && std::strcmp(arguments[1], "--without-streams") == 0)
    return maru::test::run_without_streams(arguments[2]);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
