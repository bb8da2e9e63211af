// Descriptors of a process belong to its program, which may have none of the standard ones and may close all that it does not
// know. A program of its own, since it starts itself again without standard streams.
#include "tests/support/child_process.h"
#include "tests/support/marud_process.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test_client.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace maru::test {
namespace {

std::set<int> open_numbers() {
  std::set<int> numbers;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    numbers.insert(std::stoi(entry.path().filename()));
  std::erase_if(numbers, [](int fd) { return ::fcntl(fd, F_GETFD) < 0; });  // of the folder itself
  return numbers;
}

// The numbers that are in use only since this was made: a client's.
class NewNumbers {
 public:
  std::vector<int> all() const {
    std::vector<int> numbers;
    for (const int fd : open_numbers())
      if (!before_.contains(fd)) numbers.push_back(fd);
    return numbers;
  }

 private:
  const std::set<int> before_ = open_numbers();
};

// From the last: a session thread that cannot be woken any more ends, and opens nothing under the numbers that become free.
void close_all(const std::vector<int>& numbers) {
  std::for_each(numbers.rbegin(), numbers.rend(), [](int fd) { ::close(fd); });
}

// Files that the program opens itself, under the numbers that are free. Every other one is an eventfd, which looks like any
// other eventfd.
class OwnFiles {
 public:
  explicit OwnFiles(const std::vector<int>& numbers) {
    const int last = *std::max_element(numbers.begin(), numbers.end());
    for (int fd = 0; fd < last;) {
      const bool is_event = files_.size() % 2 != 0;
      fd = is_event ? ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : ::memfd_create("own", MFD_CLOEXEC);
      struct stat status = {};
      if (fd < 0 || ::fstat(fd, &status) != 0) throw std::runtime_error("open a file");
      files_.push_back({fd, is_event, status.st_ino});
    }
  }
  ~OwnFiles() {
    for (const File& file : files_) ::close(file.fd);
  }

  // The damage to these files, in words; empty: none.
  std::string damage() const {
    std::string text;
    for (const File& file : files_) {
      struct stat status = {};
      eventfd_t count = 0;
      const std::string name = " " + std::to_string(file.fd);
      if (::fstat(file.fd, &status) != 0 || status.st_ino != file.inode)
        text += name + " was closed;";
      else if (status.st_size != 0 || (file.is_event && ::eventfd_read(file.fd, &count) == 0))
        text += name + " was written;";
    }
    return text;
  }

 private:
  struct File {
    int fd;
    bool is_event;
    ino_t inode;
  };
  std::vector<File> files_;
};

// -- standard streams -------------------------------------------------------------------------------------------------

constexpr const char* kNoise = "noise on a stream that is closed";

// Started without some standard streams. The exit status says which step failed.
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

// A library that one of these programs uses could write into a pool, too, if it got such a number.
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

// -- numbers that the program closes ----------------------------------------------------------------------------------

// A child of fork() closes the numbers of its parent, opens files of its own, and detaches the client that it has inherited.
std::string close_and_let_go(maru_client* inherited, const std::vector<int>& numbers) {
  close_all(numbers);
  const OwnFiles own(numbers);
  maru_detach(inherited);
  return own.damage();
}

TEST(Descriptors, AChildOfForkKeepsTheFilesThatItOpenedUnderNumbersOfItsParentsClient) {
  MarudProcess marud;
  const NewNumbers numbers;
  TestClient parent(marud.socket_path());
  ASSERT_EQ(parent.store("k", "text"), 0);
  const std::vector<int> of_client = numbers.all();
  ASSERT_FALSE(of_client.empty());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string damage = close_and_let_go(parent, of_client);
    if (!damage.empty()) std::fprintf(stderr, "in the child:%s\n", damage.c_str());
    ::_exit(damage.empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(maru_reattach(parent), 0);
  EXPECT_EQ(parent.text("k"), "text");
}

class ClosedNumbers : public ::testing::TestWithParam<uint32_t> {
 protected:
  // The program takes the numbers away under the library's thread, which that sanitizer calls a data race.
  void SetUp() override {
    if (kHasThreadSanitizer) GTEST_SKIP() << "a thread sanitizer ends a program that closes numbers in use";
  }
};

// Requests go on by another connection, and nothing is sent to a file that has a number now which was the client's.
TEST_P(ClosedNumbers, AClientWorksOnWithoutThemAndTouchesNoFileOfTheProgram) {
  MarudProcess marud;
  const NewNumbers numbers;
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), GetParam());
  ASSERT_EQ(client.store("k", "text"), 0);
  const std::vector<int> of_client = numbers.all();
  close_all(of_client);
  const OwnFiles own(of_client);
  EXPECT_EQ(client.text("k"), "text");
  constexpr int kBlocks = 600;  // more than a region holds, so that marud is asked
  for (int i = 0; i < kBlocks; ++i) ASSERT_EQ(client.store("k" + std::to_string(i), "text"), 0) << i;
  EXPECT_EQ(maru_reattach(client), 0);
  client.detach();
  EXPECT_EQ(own.damage(), "");
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("lanes").at("live") == 0; })) << "the lane is kept";
}

// More times than the pool has lanes: each detach ends, and gives its lane back.
TEST_P(ClosedNumbers, DetachingEndsAndGivesTheLaneBack) {
  MarudProcess marud({PoolWish{.lanes = 4}});
  for (int i = 0; i < 20; ++i) {
    const NewNumbers numbers;
    TestClient client(marud.socket_path(), "default", far_too_long_ms(), GetParam());
    const std::vector<int> of_client = numbers.all();
    close_all(of_client);
    const OwnFiles own(of_client);
    client.detach();
    ASSERT_EQ(own.damage(), "") << i;
  }
}

// The child has copies, so that nothing of the client is at its end when the numbers are closed here.
TEST_P(ClosedNumbers, DetachingEndsWhileAChildHoldsCopies) {
  MarudProcess marud;
  const NewNumbers numbers;
  TestClient client(marud.socket_path(), "default", far_too_long_ms(), GetParam());
  const std::vector<int> of_client = numbers.all();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  close_all(of_client);
  client.detach();
  EXPECT_TRUE(wait_until([&] { return marud.pool_status().at("lanes").at("live") == 0; })) << "the lane is kept";
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

// Of the numbers each alone: the others are still the client's, and are closed.
TEST_P(ClosedNumbers, EachAloneIsLeftToTheProgram) {
  MarudProcess marud;
  for (size_t which = 0;; ++which) {
    const NewNumbers numbers;
    TestClient client(marud.socket_path(), "default", far_too_long_ms(), GetParam());
    const std::vector<int> of_client = numbers.all();
    if (which == of_client.size()) break;
    const int own = of_client[which], file = ::memfd_create("own", MFD_CLOEXEC);
    ASSERT_EQ(::dup3(file, own, O_CLOEXEC), own);
    ::close(file);
    EXPECT_EQ(client.store("k", "text"), which == 0 ? 0 : 1);
    EXPECT_EQ(maru_reattach(client), 0) << own;
    client.detach();
    struct stat status = {};
    EXPECT_EQ(::fstat(own, &status), 0) << own << " was closed";
    EXPECT_EQ(status.st_size, 0) << own << " was written";
    EXPECT_EQ(numbers.all(), std::vector<int>{own});
    ::close(own);
  }
}

// A second client gets the numbers that the first had, for the same memory: device and inode are the same, too.
TEST_P(ClosedNumbers, AnotherClientsMemoryIsNotTheClosedOnes) {
  MarudProcess marud;
  const NewNumbers numbers;
  TestClient first(marud.socket_path(), "default", far_too_long_ms(), GetParam());
  close_all(numbers.all());
  TestClient second(marud.socket_path(), "default", far_too_long_ms(), GetParam());
  ASSERT_EQ(second.store("k", "text"), 0);
  const std::vector<int> of_second = numbers.all();
  first.detach();
  EXPECT_EQ(numbers.all(), of_second);
  marud.kill();
  marud.start();
  EXPECT_EQ(maru_reattach(second), 0) << "marud did not get its memory back";
  EXPECT_EQ(second.text("k"), "text");
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutAThread, ClosedNumbers, ::testing::Values(0u, MARU_ATTACH_NO_SESSION_THREAD),
                         [](const auto& instance) { return instance.param ? "NoThread" : "SessionThread"; });

}  // namespace
}  // namespace maru::test

int main(int count, char** arguments) {
  if (count == 3 && std::strcmp(arguments[1], "--without-streams") == 0)
    return maru::test::run_without_streams(arguments[2]);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
