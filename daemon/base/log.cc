#include "daemon/base/log.h"

#include "daemon/base/log_name.h"
#include "daemon/base/log_queue.h"
#include "daemon/base/plain_text.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

// How long marud's end waits for a standard error that takes nothing.
constexpr std::chrono::milliseconds kFlushTime(1000);

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The journal names its stream in $JOURNAL_STREAM as "device:inode"; a redirected standard error has other numbers.
bool writes_to_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status = {};
  if (!stream || ::fstat(STDERR_FILENO, &status) != 0) return false;
  return std::string_view(stream) == fmt::format("{}:{}", uint64_t(status.st_dev), uint64_t(status.st_ino));
}

bool is_journal = false;  // set once, by log_start()

std::string program_name = "marud";  // set before log_start()

// Of syslog(3).
int priority_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return 7;
    case LogLevel::kInfo: return 6;
    case LogLevel::kWarning: return 4;
    case LogLevel::kError: return 3;
  }
  return 6;
}

const char* name_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return "debug";
    case LogLevel::kInfo: return "info";
    case LogLevel::kWarning: return "warning";
    case LogLevel::kError: return "error";
  }
  return "info";
}

// Never destroyed, as the queue: a thread may still write when marud ends (aside.h).
std::shared_ptr<spdlog::logger>& logger() {
  static auto& instance = *new std::shared_ptr<spdlog::logger>;
  return instance;
}

LogQueue* queue = nullptr;  // set once, by log_start()

// Lines for a terminal are coloured as far as the pattern says; all go to the queue.
class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit QueueSink(bool is_terminal) : is_terminal_(is_terminal) {}

  std::string text_of(LogLevel level, std::string_view line) {
    const std::lock_guard lock(mutex_);
    return formatted({program_name, to_spdlog(level), spdlog::string_view_t(line.data(), line.size())});
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override { queue->put(formatted(message)); }
  void flush_() override {}

  std::string formatted(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t buffer;
    formatter_->format(message, buffer);
    std::string text(buffer.data(), buffer.size());
    if (!is_terminal_ || message.color_range_end <= message.color_range_start) return text;
    text.insert(message.color_range_end, "\033[m");
    return text.insert(message.color_range_start, colour_of(message.level));
  }

  static const char* colour_of(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::debug: return "\033[36m";
      case spdlog::level::warn: return "\033[33m\033[1m";
      case spdlog::level::err: return "\033[31m\033[1m";
      default: return "\033[32m";
    }
  }

  const bool is_terminal_;
};

std::string with_priority(LogLevel level, std::string_view line) {
  return is_journal ? fmt::format("<{}>{}: {}", priority_of(level), name_of(level), line) : std::string(line);
}

ssize_t put_in_queue(void*, const char* text, size_t bytes) {
  queue->put({text, bytes});
  return ssize_t(bytes);
}

// Libraries and failed checks print from any thread, and that thread must not wait either.
void queue_standard_error() {
  FILE* stream = ::fopencookie(nullptr, "w", {nullptr, put_in_queue, nullptr, nullptr});
  if (!stream) return;
  std::setvbuf(stream, nullptr, _IOLBF, BUFSIZ);
  stderr = stream;
}

// The lines that explain the signal may still be in the queue.
void on_fatal_signal(int signal) {
  queue->await_from_signal_handler(kFlushTime);
  ::raise(signal);  // delivered when this returns, with the default action
}

// Where another handler is installed (a sanitizer's) it stays.
void flush_on_fatal_signals() {
  for (const int signal : {SIGABRT, SIGSEGV, SIGILL, SIGFPE}) {
    struct sigaction now = {}, ours = {};
    if (::sigaction(signal, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    ours.sa_handler = on_fatal_signal;
    ours.sa_flags = int(SA_RESETHAND);
    sigemptyset(&ours.sa_mask);
    ::sigaction(signal, &ours, nullptr);
  }
}

}  // namespace

std::optional<LogLevel> log_level_from(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return std::nullopt;
}

void log_name_program(const char* name) { program_name = name; }

void log_start(LogLevel level) {
  is_journal = writes_to_journal();
  auto sink = std::make_shared<QueueSink>(::isatty(STDERR_FILENO) != 0);
  sink->set_pattern(is_journal ? "%v" : "%Y-%m-%d %H:%M:%S.%e " + program_name + "[%P] %^%l%$: %v");
  queue = new LogQueue(STDERR_FILENO, [sink](uint64_t lines) {
    return sink->text_of(
        LogLevel::kWarning,
        with_priority(LogLevel::kWarning, fmt::format("{} lines of the log were dropped here: standard error took none "
                                                      "for so long that the queue of {} KiB was full",
                                                      lines, LogQueue::kBytes >> 10)));
  });
  logger() = std::make_shared<spdlog::logger>(program_name, std::move(sink));
  log_set_level(level);
  queue_standard_error();
  flush_on_fatal_signals();
}

void log_finish() {
  if (queue) queue->flush(kFlushTime);
}

uint64_t log_dropped_lines() { return queue ? queue->dropped_lines() : 0; }

void log_set_level(LogLevel level) {
  if (logger()) logger()->set_level(to_spdlog(level));
}

bool log_shows(LogLevel level) { return logger() && logger()->should_log(to_spdlog(level)); }

void log_write(LogLevel level, std::string_view line) {
  if (!logger()) return;
  if (is_journal)
    logger()->log(to_spdlog(level), "{}", with_priority(level, line));
  else
    logger()->log(to_spdlog(level), "{}", line);
}

std::string journal_priority(LogLevel level) {
  return writes_to_journal() ? fmt::format("<{}>", priority_of(level)) : "";
}

std::string printable(std::string_view text) {
  constexpr size_t kBytesMax = 256;
  return plain_text(text, kBytesMax);
}

}  // namespace maru::daemon
