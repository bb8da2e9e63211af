// The log of marud. Each decision is one line, which names the client or pool and the consequence. Lines go to standard error;
// under systemd's journal without a time of their own, and with the priority in front. Any thread may write, once log_start()
// has returned. No thread waits for standard error: a queue takes the lines, and a thread of its own writes them (log_queue.h).
// The stream `stderr`, on which libraries and failed checks print, leads to the same queue.
#pragma once

#include <fmt/core.h>
#include <optional>
#include <string>
#include <string_view>

namespace maru::daemon {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error".
std::optional<LogLevel> log_level_from(std::string_view name);

void log_start(LogLevel level);
// At the end of marud: waits for the lines that are not written yet, for a second at most.
void log_finish();
uint64_t log_dropped_lines();  // because standard error took none
void log_set_level(LogLevel level);
bool log_shows(LogLevel level);
void log_write(LogLevel level, std::string_view line);

// The prefix of a line on standard error that tells the journal how urgent it is (sd-daemon(3)), such as "<4>"; nothing
// when the log goes elsewhere.
std::string journal_priority(LogLevel level);

// Text that came from outside, fit for one line of a log: each character that is not plain becomes '?' (plain_text.h),
// and it is cut.
std::string printable(std::string_view text);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_shows(LogLevel::kDebug)) log_write(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_write(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_write(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_write(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace maru::daemon
