// The file of a recording: pages are ready before the records that need them, threads write whole records, and a limit holds.
#include "libmaru/record/recorder.h"

#include "tests/support/sanitizers.h"

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace maru::record {
namespace {

constexpr uint64_t kMegabyte = 1u << 20;

class RecorderFile : public testing::Test {
 protected:
  RecorderFile() {
    std::string name = testing::TempDir() + "recorder-XXXXXX";
    const int made = ::mkstemp(name.data());
    EXPECT_GE(made, 0);
    ::close(made);
    path_ = name;
  }
  ~RecorderFile() override { std::filesystem::remove(path_); }

  struct stat status() const {
    struct stat found = {};
    EXPECT_EQ(::stat(path_.c_str(), &found), 0);
    return found;
  }
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string path_;
};

bool write_one(Recorder& recorder, uint64_t mark, uint32_t keys) {
  const auto bytes = uint32_t(sizeof(format::Record) + keys * sizeof(format::RecordedKey));
  format::Record* record = recorder.begin(bytes);
  if (record == nullptr) return false;
  record->keys = keys;
  record->block = mark;
  auto* key = reinterpret_cast<format::RecordedKey*>(record + 1);
  for (uint32_t i = 0; i < keys; ++i) key[i] = {mark, i};
  Recorder::finish(*record, bytes);
  return true;
}

TEST_F(RecorderFile, HasPagesAheadOfItsRecords) {
  Recorder recorder(path_, 64 * kMegabyte);
  ASSERT_TRUE(recorder.is_open());
  while (status().st_size < off_t(16 * kMegabyte)) std::this_thread::yield();
  for (int i = 0; i < 2000; ++i) ASSERT_TRUE(write_one(recorder, 1, 256));  // 8 MB: half of these pages
  while (status().st_size < off_t(20 * kMegabyte)) {
    ASSERT_TRUE(write_one(recorder, 1, 0));
    std::this_thread::yield();
  }
  EXPECT_GE(512 * status().st_blocks, status().st_size);  // no holes: a full disk is an error, and no signal later
}

TEST_F(RecorderFile, HoldsWholeRecordsOfAllThreads) {
  constexpr uint64_t kThreads = 4, kEach = 5000;
  {
    Recorder recorder(path_, 512 * kMegabyte);
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < kThreads; ++i)
      threads.emplace_back([&, i] {
        for (uint64_t j = 0; j < kEach; ++j) ASSERT_TRUE(write_one(recorder, i * kEach + j, uint32_t(j % 300)));
      });
    for (std::thread& thread : threads) thread.join();
    recorder.end();
  }
  const std::string file = content();
  format::RecordingHeader header;
  std::memcpy(&header, file.data(), sizeof(header));
  std::vector<int> met(kThreads * kEach);
  for (uint64_t at = header.header_bytes; at < header.end;) {
    format::Record record;
    std::memcpy(&record, file.data() + at, sizeof(record));
    ASSERT_EQ(record.magic, format::kRecordMagic) << at;
    ASSERT_EQ(record.keys, record.block % kEach % 300) << at;
    for (uint32_t i = 0; i < record.keys; ++i) {
      format::RecordedKey key;
      std::memcpy(&key, file.data() + at + sizeof(record) + i * sizeof(key), sizeof(key));
      ASSERT_EQ(key.low, record.block) << at;
      ASSERT_EQ(key.high, i) << at;
    }
    ++met[record.block];
    at += record.bytes;
  }
  EXPECT_EQ(met, std::vector<int>(kThreads * kEach, 1));
}

TEST_F(RecorderFile, StaysBelowItsLimitAndCountsTheRest) {
  constexpr uint64_t kLimit = 3 * kMegabyte;
  uint64_t kept = 0, refused = 0;
  {
    Recorder recorder(path_, kLimit);
    for (int i = 0; i < 2000; ++i) (write_one(recorder, 1, 256) ? kept : refused) += 1;
  }
  const std::string file = content();
  format::RecordingHeader header;
  std::memcpy(&header, file.data(), sizeof(header));
  EXPECT_EQ(file.size(), kLimit);
  EXPECT_EQ(kept, (kLimit - sizeof(header)) / (sizeof(format::Record) + 256 * sizeof(format::RecordedKey)));
  EXPECT_EQ(header.dropped, refused);
}

// The kernel may give a signal of the process to any thread that does not block it.
TEST_F(RecorderFile, TakesNoSignalOfTheProgram) {
  sigset_t before, after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  Recorder recorder(path_, 64 * kMegabyte);
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int number = 1; number < SIGRTMIN; ++number)
    EXPECT_EQ(sigismember(&before, number), sigismember(&after, number)) << number;
  while (status().st_size < off_t(16 * kMegabyte)) std::this_thread::yield();  // its thread runs
  int others = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(::getpid())) continue;
    std::ifstream lines(task.path() / "status");
    std::string word;
    while (lines >> word && word != "SigBlk:") {
    }
    uint64_t blocked = 0;
    ASSERT_TRUE(lines >> std::hex >> blocked);
    EXPECT_NE(blocked & 1ull << (SIGUSR1 - 1), 0u) << std::hex << blocked;
    ++others;
  }
  EXPECT_EQ(others, test::kHasThreadSanitizer ? 2 : 1) << "a thread sanitizer has one of its own";
}

}  // namespace
}  // namespace maru::record
