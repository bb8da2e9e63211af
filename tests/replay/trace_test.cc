#include "daemon/tools/trace/trace.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <unistd.h>

namespace maru::trace {
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

TEST(Trace, ADeepValueIsAnErrorLikeAnyOther) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  const TraceFile file("{\"hash_ids\": [" + deep + "]}\n");
  const Result<Trace> trace = read_trace(file.path(), 0);
  ASSERT_FALSE(trace);
  EXPECT_NE(trace.error().doing.find("\"hash_ids\" holds an array"), std::string::npos) << trace.error().doing;
}

TEST(Trace, TimesAreReadInBothFormats) {
  const TraceFile mooncake("{\"timestamp\": 27482, \"hash_ids\": [1]}\n{\"timestamp\": 27482, \"hash_ids\": [2]}\n");
  const Result<Trace> in_ms = read_trace(mooncake.path(), 0, Times::kRequired);
  ASSERT_TRUE(in_ms) << in_ms.error().text();
  EXPECT_EQ(in_ms->requests[1].time_ms, 27482u);
  const TraceFile bailian("{\"chat_id\": 159, \"parent_chat_id\": 55, \"timestamp\": 61.114, \"hash_ids\": [1]}\n");
  const Result<Trace> in_seconds = read_trace(bailian.path(), 0, Times::kRequired);
  ASSERT_TRUE(in_seconds) << in_seconds.error().text();
  EXPECT_EQ(in_seconds->requests[0].time_ms, 61114u);
}

TEST(Trace, ATimeThatIsMissingOrWrongIsAnErrorWhereTimesAreNeeded) {
  const std::pair<const char*, const char*> bad[] = {
      {"{\"hash_ids\": [1]}", "no \"timestamp\""},
      {"{\"timestamp\": \"now\", \"hash_ids\": [1]}", "\"now\""},
      {"{\"timestamp\": -1, \"hash_ids\": [1]}", "-1"},
      {"{\"timestamp\": 1e300, \"hash_ids\": [1]}", "milliseconds"},
      {"{\"timestamp\": 4, \"hash_ids\": [1]}", "sort the trace"},
  };
  for (const auto& [line, named] : bad) {
    const TraceFile file(std::string("{\"timestamp\": 5, \"hash_ids\": [1]}\n") + line + "\n");
    EXPECT_TRUE(read_trace(file.path(), 0)) << line;
    const Result<Trace> trace = read_trace(file.path(), 0, Times::kRequired);
    ASSERT_FALSE(trace) << line;
    EXPECT_NE(trace.error().doing.find(":2:"), std::string::npos) << trace.error().doing;
    EXPECT_NE(trace.error().doing.find(named), std::string::npos) << trace.error().doing;
  }
}

TEST(Trace, AFileThatIsNotThereIsAnError) {
  const Result<Trace> trace = read_trace("/nonexistent/trace.jsonl", 0);
  ASSERT_FALSE(trace);
  EXPECT_EQ(trace.error().code, ENOENT);
}

}  // namespace
}  // namespace maru::trace
