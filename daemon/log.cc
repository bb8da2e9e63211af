#include "daemon/log.h"

#include "daemon/plain_text.h"

#include <cstdlib>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

namespace maru::daemon {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The journal names its stream in $JOURNAL_STREAM as "device:inode"; a redirected standard error is another one.
bool writes_to_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status = {};
  if (!stream || ::fstat(STDERR_FILENO, &status) != 0) return false;
  return std::string_view(stream) == fmt::format("{}:{}", uint64_t(status.st_dev), uint64_t(status.st_ino));
}

bool is_journal = false;  // set once, by log_start()

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

// Never destroyed: a thread may still write when marud ends (aside.h).
std::shared_ptr<spdlog::logger>& logger() {
  static auto& instance = *new std::shared_ptr<spdlog::logger>;
  return instance;
}

}  // namespace

std::optional<LogLevel> log_level_from(std::string_view name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "info") return LogLevel::kInfo;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return std::nullopt;
}

void log_start(LogLevel level) {
  logger() = ::isatty(STDERR_FILENO) ? spdlog::stderr_color_mt("marud") : spdlog::stderr_logger_mt("marud");
  is_journal = writes_to_journal();
  logger()->set_pattern(is_journal ? "%v" : "%Y-%m-%d %H:%M:%S.%e marud[%P] %^%l%$: %v");
  logger()->flush_on(spdlog::level::debug);
  log_set_level(level);
}

void log_set_level(LogLevel level) {
  if (logger()) logger()->set_level(to_spdlog(level));
}

bool log_shows(LogLevel level) { return logger() && logger()->should_log(to_spdlog(level)); }

void log_write(LogLevel level, std::string_view line) {
  if (!logger()) return;
  if (is_journal)
    logger()->log(to_spdlog(level), "<{}>{}: {}", priority_of(level), name_of(level), line);
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
