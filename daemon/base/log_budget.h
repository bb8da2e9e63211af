// Lines of the log that others can cause at will: so many for each user and so many for all together in ten seconds.
// Lines beyond that are counted, and the log says how many when the budget renews. Otherwise any process that can
// connect could fill the disk, and hide the deeds of others. One thread uses a budget.
#pragma once

#include "daemon/base/log.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <sys/types.h>
#include <utility>

namespace maru::daemon {

class LogBudget {
 public:
  // `what` names the lines, in the plural.
  LogBudget(LogLevel level, std::string what, uint32_t each, uint32_t together)
      : level_(level), what_(std::move(what)), each_(each), together_(together) {}

  // A line about a user; nullopt: the user is not known.
  template <typename... Args>
  void say(std::optional<uid_t> user, fmt::format_string<Args...> format, Args&&... args) {
    if (log_shows(level_) && takes(user)) log_write(level_, fmt::format(format, std::forward<Args>(args)...));
  }

  // To be called often, with the time of a clock that no setting changes.
  void renew(uint64_t now_ms) {
    if (const auto line = renewed(now_ms)) log_write(level_, *line);
  }

  // say() and renew() without the log.
  bool takes(std::optional<uid_t> user);
  std::optional<std::string> renewed(uint64_t now_ms);

 private:
  struct Use {
    uint32_t said = 0;
    uint64_t left_out = 0;
  };

  const LogLevel level_;
  const std::string what_;
  const uint32_t each_, together_;
  std::map<std::optional<uid_t>, Use> uses_;
  Use all_;
  uint64_t due_ms_ = 0;
};

}  // namespace maru::daemon
