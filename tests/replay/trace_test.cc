#include "daemon/tools/replay/trace.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace maru::replay {
namespace {

// A trace file that is removed when the test ends.
class TraceFile {
 public:
  explicit TraceFile(const std::string& text) {
    path_ = testing::TempDir() + "maru-trace-XXXXXX";
    const int fd = ::mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    ::close(fd);
    std::ofstream(path_) << text;
  }
  ~TraceFile() { std::remove(path_.c_str()); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Trace, TheReleasedTraceHasItsKnownSize) {
  const char* path = std::getenv("MARU_TRACE");
  ASSERT_NE(path, nullptr) << "MARU_TRACE names the trace";
  const Result<Trace> trace = read_trace(path, 0);
  ASSERT_TRUE(trace) << trace.error().text();
  EXPECT_EQ(trace->requests.size(), 12031u);
  EXPECT_EQ(trace->block_references, 288500u);
  EXPECT_EQ(trace->distinct_blocks, 182790u);
  EXPECT_EQ(trace->longest_request, 247u);
}

TEST(Trace, StopsAfterTheWantedRequests) {
  const TraceFile file("{\"hash_ids\": [1, 2]}\n\n{\"hash_ids\": [1, 3]}\n{\"hash_ids\": []}\n");
  const Result<Trace> trace = read_trace(file.path(), 2);
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->requests.size(), 2u);
  EXPECT_EQ(trace->distinct_blocks, 3u);
}

TEST(Trace, AnErrorNamesTheLine) {
  for (const char* bad :
       {"nonsense", "[1, 2]", "{}", "{\"hash_ids\": 7}", "{\"hash_ids\": [-1]}", "{\"hash_ids\": [1"}) {
    const TraceFile file(std::string("{\"hash_ids\": [1]}\n") + bad + "\n");
    const Result<Trace> trace = read_trace(file.path(), 0);
    ASSERT_FALSE(trace) << bad;
    EXPECT_NE(trace.error().doing.find(":2:"), std::string::npos) << trace.error().doing;
  }
}

TEST(Trace, AFileThatIsNotThereIsAnError) {
  const Result<Trace> trace = read_trace("/nonexistent/trace.jsonl", 0);
  ASSERT_FALSE(trace);
  EXPECT_EQ(trace.error().code, ENOENT);
}

}  // namespace
}  // namespace maru::replay
