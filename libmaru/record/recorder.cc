#include "libmaru/record/recorder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>

namespace maru::record {
namespace {

constexpr uint64_t kStepBytes = 1u << 20;    // by which the file grows
constexpr uint64_t kAheadBytes = 16u << 20;  // that are ready for records; 4,000 matches of 256 keys
constexpr uint64_t kBytesMax = 4ull << 30, kBytesLeast = 64u << 10;
constexpr int kFirstDescriptor = 3;  // the standard streams stay free for the program

// Never destroyed: other threads may call libmaru while the process ends.
std::atomic<Recorder*> recorder{nullptr};
std::atomic<bool> is_decided{false};
std::mutex deciding;

void before_fork() { deciding.lock(); }
void after_fork() { deciding.unlock(); }
void begin_again_in_child() {
  recorder.store(nullptr);  // the mapping and its file are the parent's
  is_decided.store(false);
  deciding.unlock();
}

// The object stays: another thread may be writing a record.
void end_file() {
  static Recorder* ended;
  ended = recorder.exchange(nullptr);
  if (ended != nullptr) ended->end();
}

uint64_t unix_ns() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return uint64_t(now.tv_sec) * 1'000'000'000 + uint64_t(now.tv_nsec);
}

}  // namespace

Recorder* Recorder::get() {
  if (is_decided.load(std::memory_order_acquire)) return recorder.load(std::memory_order_acquire);
  const char* path = std::getenv("MARU_RECORD");
  const bool is_wanted = path != nullptr && *path != '\0';
  // Before the lock: another thread may fork while this one makes the recorder.
  static std::once_flag once;
  if (is_wanted)
    std::call_once(once, [] {
      ::pthread_atfork(before_fork, after_fork, begin_again_in_child);
      std::atexit(end_file);
    });
  const std::lock_guard lock(deciding);
  if (is_decided.load(std::memory_order_acquire)) return recorder.load(std::memory_order_acquire);
  if (is_wanted) {
    const char* limit = std::getenv("MARU_RECORD_BYTES");
    const uint64_t wanted = limit != nullptr ? std::strtoull(limit, nullptr, 10) : 0;
    auto made =
        std::make_unique<Recorder>(std::string(path) + "." + std::to_string(::getpid()), wanted ? wanted : kBytesMax);
    if (made->is_open()) recorder.store(made.release(), std::memory_order_release);
  }
  is_decided.store(true, std::memory_order_release);
  return recorder.load(std::memory_order_acquire);
}

Recorder::Recorder(const std::string& path, uint64_t bytes_max)
    : bytes_max_(std::max(bytes_max, kBytesLeast) / kBytesLeast * kBytesLeast) {
  const int opened = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  descriptor_ = opened < 0 ? -1 : ::fcntl(opened, F_DUPFD_CLOEXEC, kFirstDescriptor);
  const int code = errno;
  if (opened >= 0) ::close(opened);
  if (descriptor_ < 0) {
    std::fprintf(stderr,
                 "libmaru-record: %s: %s. Calls are not recorded; set MARU_RECORD to a path in a folder that this user "
                 "may write to.\n",
                 path.c_str(), std::strerror(code));
    return;
  }
  void* reserved = ::mmap(nullptr, bytes_max_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return;
  base_ = static_cast<std::byte*>(reserved);
  ::madvise(reserved, bytes_max_, MADV_DONTFORK);
  if (!grow(sizeof(format::RecordingHeader))) {
    std::fprintf(stderr, "libmaru-record: %s cannot grow: %s. Calls are not recorded.\n", path.c_str(),
                 std::strerror(errno));
    ::munmap(base_, bytes_max_);
    base_ = nullptr;
    return;
  }
  header() = {format::kRecordingMagic,
              format::kRecordingVersion,
              sizeof(format::RecordingHeader),
              uint64_t(::getpid()),
              unix_ns(),
              now_ns(),
              0,
              0,
              0};
  // The program's signals are for its own threads.
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    ahead_ = std::thread([this] { make_ahead(); });
  } catch (const std::system_error&) {
    is_asked_.store(true);  // calls make their pages themselves
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ask_ahead();
}

Recorder::~Recorder() {
  end();
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Recorder::end() {
  is_ending_.store(true);
  if (ahead_.joinable()) {
    is_asked_.store(true);
    is_asked_.notify_one();
    ahead_.join();
  }
  if (base_ != nullptr) header().end = std::min(end_.load(), mapped_.load());
}

void Recorder::ask_ahead() {
  if (!is_asked_.load(std::memory_order_relaxed) && !is_asked_.exchange(true)) is_asked_.notify_one();
}

void Recorder::make_ahead() {
  while (true) {
    is_asked_.wait(false);
    while (!is_ending_.load()) {
      const uint64_t ready = mapped_.load(std::memory_order_relaxed);
      const uint64_t wanted = std::min(end_.load(std::memory_order_relaxed) + kAheadBytes, bytes_max_);
      if (ready >= wanted) break;
      if (!grow(ready + 1)) return;
    }
    if (mapped_.load(std::memory_order_relaxed) == bytes_max_) return;
    is_asked_.store(false);
    if (is_ending_.load()) return;  // end() may have asked before the line above
  }
}

bool Recorder::grow(uint64_t end) {
  const std::lock_guard lock(growing_);
  const uint64_t from = mapped_.load(std::memory_order_relaxed);  // under the lock
  if (end <= from) return true;
  if (end > bytes_max_) return false;
  const uint64_t to = std::min((end + kStepBytes - 1) / kStepBytes * kStepBytes, bytes_max_);
  // With its blocks: a full disk is an error here, and no signal later.
  if ((errno = ::posix_fallocate(descriptor_, off_t(from), off_t(to - from))) != 0) return false;
  if (::mmap(base_ + from, to - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, descriptor_, off_t(from)) ==
      MAP_FAILED)
    return false;
  ::madvise(base_ + from, to - from, MADV_DONTFORK);
  ::madvise(base_ + from, to - from,
            MADV_POPULATE_WRITE);  // a wish: one call instead of a thousand page faults in calls
  mapped_.store(to, std::memory_order_release);
  return true;
}

format::Record* Recorder::begin(uint32_t bytes) {
  const uint64_t at = end_.fetch_add(bytes, std::memory_order_relaxed);
  const uint64_t ready = mapped_.load(std::memory_order_acquire);
  if (at + bytes + kAheadBytes / 2 > ready) ask_ahead();
  if (at + bytes > ready && !grow(at + bytes)) {
    std::atomic_ref<uint64_t>(header().dropped).fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  return reinterpret_cast<format::Record*>(base_ + at);
}

void Recorder::finish(format::Record& record, uint32_t bytes) {
  record.bytes = bytes;
  std::atomic_ref<uint32_t>(record.magic).store(format::kRecordMagic, std::memory_order_release);
}

}  // namespace maru::record
