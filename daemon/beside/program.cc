#include "daemon/beside/program.h"

#include "daemon/base/log.h"
#include "daemon/base/log_name.h"
#include "daemon/beside/http_server.h"
#include "daemon/system/notify.h"
#include "daemon/version.h"
#include "libmaru/base/standard_streams.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <getopt.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace maru::daemon::beside {
namespace {

constexpr int kStatusMs = 1000;  // between looks at the status line for the service manager

enum Flag : int { kFlagConfig = 1000, kFlagCheckConfig, kFlagLogLevel, kFlagHelp, kFlagVersion };

constexpr option kFlags[] = {
    {"config", required_argument, nullptr, kFlagConfig},      {"check-config", no_argument, nullptr, kFlagCheckConfig},
    {"log-level", required_argument, nullptr, kFlagLogLevel}, {"help", no_argument, nullptr, kFlagHelp},
    {"version", no_argument, nullptr, kFlagVersion},          {nullptr, 0, nullptr, 0},
};

struct CommandLine {
  enum class Action : uint8_t { kServe, kCheckConfig, kHelp, kVersion };
  Action action = Action::kServe;
  std::string config_path;
  std::optional<LogLevel> log_level;
};

CommandLine parse_command_line(int count, char** arguments, std::vector<std::string>& problems) {
  CommandLine line;
  opterr = 0;
  optind = 1;
  while (true) {
    const int begins = optind;
    const int flag = ::getopt_long(count, arguments, "+:", kFlags, nullptr);
    if (flag < 0) break;
    const char* value = optarg ? optarg : "";
    switch (flag) {
      case kFlagConfig: line.config_path = value; break;
      case kFlagCheckConfig: line.action = CommandLine::Action::kCheckConfig; break;
      case kFlagLogLevel:
        line.log_level = log_level_from(value);
        if (!line.log_level)
          problems.push_back("--log-level: found \"" + printable(value) + "\", expected debug, info, warning or error");
        break;
      case kFlagHelp: line.action = CommandLine::Action::kHelp; return line;
      case kFlagVersion: line.action = CommandLine::Action::kVersion; return line;
      case ':':
        problems.push_back("found \"" + printable(arguments[optind - 1]) +
                           "\" without a value, expected one behind it; see --help");
        return line;
      default:
        problems.push_back("found \"" + printable(arguments[begins]) + "\", expected an option; see --help");
        return line;
    }
  }
  if (optind < count)
    problems.push_back("found \"" + printable(arguments[optind]) + "\", expected only options; see --help");
  else if (line.config_path.empty())
    problems.push_back("found no configuration, expected --config FILE; see --help");
  return line;
}

struct CommonSettings {
  LogLevel log_level = LogLevel::kInfo;
  HttpSettings http;
};

CommonSettings read_settings(const Program& program, const std::string& path, std::vector<ConfigProblem>& problems) {
  CommonSettings settings;
  const auto text = read_config_text(path, problems);
  if (!text) return settings;
  parse_toml(*text, problems, [&](ConfigTable root) {
    if (auto table = root.table("daemon")) {
      if (auto value = table->one_of("log_level", {"debug", "info", "warning", "error"}))
        settings.log_level = *log_level_from(*value);
      table->refuse_unknown();
    }
    if (auto table = root.table("http")) settings.http = read_http(*table);
    program.read(root, problems);
    root.refuse_unknown();
  });
  std::stable_sort(problems.begin(), problems.end(),
                   [](const ConfigProblem& one, const ConfigProblem& other) { return one.line < other.line; });
  return settings;
}

Result<void> serve(const Program& program, const CommonSettings& settings) {
  Service service;
  if (auto created = Service::create(service, program.name); !created) return created;
  auto http = HttpServer::start(settings.http, service.counters(), service.health(), service.http());
  if (!http) return tl::unexpected(http.error());
  if (!settings.http.socket_path.empty()) log_info("HTTP is answered on {}", settings.http.socket_path);
  if (!(*http)->tcp_address().empty()) log_info("HTTP is answered on http://{}", (*http)->tcp_address());
  return program.serve(service);
}

}  // namespace

// -- Service ----------------------------------------------------------------------------------------------------------

Result<void> Service::create(Service& service, const char* program_name) {
  service.name_ = program_name;
  std::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  if (::pthread_sigmask(SIG_BLOCK, &signals, nullptr) != 0) return failure(errno, "block signals");
  service.signals_.reset(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  service.stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!service.signals_.is_open() || !service.stop_.is_open()) return failure(errno, "watch signals");
  return {};
}

Result<void> Service::run(const std::function<bool()>& is_alive) {
  notify("READY=1");
  const uint64_t watchdog_ms = watchdog_interval_ms();
  const int wait_ms = watchdog_ms == 0 ? kStatusMs : int(std::clamp<uint64_t>(watchdog_ms / 2, 1, kStatusMs));
  while (true) {
    pollfd entries[] = {{signals_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    ::poll(entries, std::size(entries), wait_ms);
    if (watchdog_ms != 0 && is_alive()) notify("WATCHDOG=1");
    tell_status();
    if (entries[1].revents != 0) break;
    signalfd_siginfo signal = {};
    if (::read(signals_.get(), &signal, sizeof(signal)) != ssize_t(sizeof(signal))) continue;
    if (signal.ssi_signo == SIGHUP) {
      on_hangup();
      continue;
    }
    log_info("{}: {} stops", signal.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT", name_);
    break;
  }
  notify("STOPPING=1");
  return {};
}

void Service::stop() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
}

void Service::tell_status() {
  std::string status = health_.text();
  std::replace(status.begin(), status.end(), '\n', ' ');
  if (status == told_status_) return;
  notify("STATUS=" + (status.empty() ? std::string("All is well.") : status));
  told_status_ = std::move(status);
}

void Service::on_hangup() {
  log_warning("SIGHUP: {} reads its configuration at its start alone; restart it to bring changes into force", name_);
}

// -- the program ------------------------------------------------------------------------------------------------------

int run_program(const Program& program, int count, char** arguments) {
  hold_standard_streams();
  const std::string priority = journal_priority(LogLevel::kError);
  std::vector<std::string> mistakes;
  const CommandLine line = parse_command_line(count, arguments, mistakes);
  for (const std::string& mistake : mistakes)
    std::fprintf(stderr, "%s%s: %s\n", priority.c_str(), program.name, mistake.c_str());
  if (!mistakes.empty()) return 2;
  if (line.action == CommandLine::Action::kHelp) return std::fputs(program.help, stdout) < 0;
  if (line.action == CommandLine::Action::kVersion) return std::printf("%s %s\n", program.name, kVersionText) < 0;

  std::vector<ConfigProblem> problems;
  const CommonSettings settings = read_settings(program, line.config_path, problems);
  for (const ConfigProblem& problem : problems)
    std::fprintf(stderr, "%s%s%s: %s\n", priority.c_str(), line.config_path.c_str(),
                 problem.line > 0 ? (":" + std::to_string(problem.line)).c_str() : "", problem.text.c_str());
  if (!problems.empty()) return 1;
  if (line.action == CommandLine::Action::kCheckConfig) return std::puts("OK") < 0;

  // From here on the configuration is known to be good.
  log_name_program(program.name);
  log_start(line.log_level.value_or(settings.log_level));
  const auto served = serve(program, settings);
  if (!served) log_error("{} stops: {}", program.name, served.error().text());
  log_finish();
  return served ? 0 : 1;
}

}  // namespace maru::daemon::beside
