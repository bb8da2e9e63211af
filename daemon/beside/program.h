// The life of a program beside marud, which uses pools as any client or follower does: command line, configuration, log, HTTP,
// signals, and messages to its service manager. Its main() is a call of run_program().
//
//   maru-NAME --config FILE [--check-config] [--log-level LEVEL] | --help | --version
//
// The program's own tables stand in the file beside the tables that all such programs have:
//
//   [daemon]                     [http]                            see http_server.h
//   log_level = "info"           listen = "127.0.0.1:9102"         socket = "/run/maru-NAME/http.sock"
#pragma once

#include "daemon/beside/counters.h"
#include "daemon/beside/health.h"
#include "daemon/beside/http_handler.h"
#include "daemon/config/table.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <functional>

namespace maru::daemon::beside {

// This room, for a running program. The thread that got it from run_program() calls run(); the rest any thread.
class Service {
 public:
  Counters& counters() { return counters_; }
  Health& health() { return health_; }
  HttpHandlers& http() { return http_; }

  // Tells the service manager that the program is ready, and returns when SIGTERM, SIGINT or stop() ends it. For the watchdog's
  // sake `is_alive` is asked every few seconds: whether each thread of the program still makes progress.
  Result<void> run(const std::function<bool()>& is_alive);
  void stop();

  // For run_program(): blocks the signals, also for the threads that are made later.
  static Result<void> create(Service& service, const char* program_name);

 private:
  void tell_status();
  void on_hangup();

  const char* name_ = "";
  Counters counters_;
  Health health_;
  HttpHandlers http_;
  FileDescriptor signals_, stop_;
  std::string told_status_;
};

struct Program {
  const char* name;  // "maru-eventd"
  const char* help;  // the text of --help
  // Reads the program's tables. It tells of mistakes by the table's functions, or appends them to `problems`. Keys that it does
  // not ask for are unknown, and a problem.
  std::function<void(ConfigTable& root, std::vector<ConfigProblem>& problems)> read;
  // Starts the program's threads, calls service.run(), and ends them. An error is logged and makes the exit status 1.
  std::function<Result<void>(Service& service)> serve;
};

// Exit status: 0 stopped as asked, or the configuration is good; 1 the configuration is bad, or the program cannot serve;
// 2 the command line is wrong.
int run_program(const Program& program, int count, char** arguments);

}  // namespace maru::daemon::beside
