// marud, from top to bottom.
#include "daemon/base/log.h"
#include "daemon/base/memory_reserve.h"
#include "daemon/config/config.h"
#include "daemon/config/named_devices.h"
#include "daemon/hosting/added_pools.h"
#include "daemon/hosting/dax_format.h"
#include "daemon/hosting/hosted_pool.h"
#include "daemon/hosting/state_file.h"
#include "daemon/http/service.h"
#include "daemon/memory/fault_guard.h"
#include "daemon/options.h"
#include "daemon/server/event_loop.h"
#include "daemon/server/listener.h"
#include "daemon/server/server.h"
#include "daemon/system/boot_id.h"
#include "daemon/system/notify.h"
#include "daemon/system/passed_socket.h"
#include "daemon/version.h"
#include "libmaru/base/standard_streams.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <sys/resource.h>
#include <sys/signalfd.h>

namespace maru::daemon {
namespace {

// Signals arrive as events of the loop; a client that closes its end must not end marud.
Result<FileDescriptor> take_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  // The program that started marud may have ignored it, and then marud does not learn how a fencing command ended.
  std::signal(SIGCHLD, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write, as a full disk is
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  if (::sigprocmask(SIG_BLOCK, &signals, nullptr) != 0) return failure(errno, "block signals");
  FileDescriptor fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.is_open()) return failure(errno, "watch signals");
  return fd;
}

// A connection, a pidfd of its process and one of its lane, for as many clients as there may be.
void allow_many_descriptors() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Pools in files need no records.
bool needs_records(const Config& config) {
  return std::any_of(config.pools.begin(), config.pools.end(),
                     [](const PoolSpec& spec) { return spec.backend != Backend::kFile; });
}

Result<void> format(const Config& config, const std::string& name, bool force) {
  const auto found = std::find_if(config.pools.begin(), config.pools.end(),
                                  [&](const PoolSpec& spec) { return spec.pool.name == name; });
  if (found == config.pools.end() || found->backend != Backend::kDax)
    return failure(EINVAL, "format \"" + name +
                               "\": found no pool of this name with backend = \"dax\" (others are "
                               "formatted when marud starts)");
  FaultGuard::install();
  const StateDirectory state(config.state_dir);
  if (auto held = state.hold(); !held) return held;
  return format_on_command(*found, state, force, uint64_t(std::time(nullptr)) * 1000);
}

// Null: it is not configured.
Result<std::unique_ptr<http::Service>> start_http(const Config& config, http::Exchange& exchange) {
  if (!config.http.is_on) return nullptr;
  HttpConfig settings = config.http;
  settings.socket_path = http_socket_path(config);
  return http::Service::start(settings, config.admin_group, exchange);
}

Result<void> serve(Config& config, const Options& options) {
  allow_many_descriptors();
  MemoryReserve::set_aside();
  FaultGuard::install();
  if (current_boot_id().empty()) return failure(EIO, "read the boot id in /proc/sys/kernel/random");
  auto signals = take_signals();
  if (!signals) return tl::unexpected(signals.error());
  auto loop = EventLoop::create();
  if (!loop) return tl::unexpected(loop.error());

  const StateDirectory state(config.state_dir);
  if (auto right = state.check_owner(); !right) return right;  // before anything is made
  auto stored = take_stored_descriptors();
  auto passed = take_listening_socket(stored, config.socket_path);
  if (!passed) return tl::unexpected(passed.error());
  // From here on no other process listens on this socket.
  auto listener = Listener::open(config.socket_path, others_may_connect(config), std::move(*passed));
  if (!listener) return tl::unexpected(listener.error());
  // From here on no other marud recognises memory by these records. Pools in files have locks of their own.
  if (needs_records(config) || !state.added().empty())
    if (auto held = state.hold(); !held) return held;

  // From here on every pool serves, or waits for its memory, or is tried again until it can be opened.
  HostedPools pools;
  const uint64_t now_ms = uint64_t(std::time(nullptr)) * 1000;
  if (auto started = start_configured_pools(config, state, stored, pools, now_ms); !started) return started;
  start_added_pools(config, state, stored, pools, now_ms);

  const Reread reread = [options] {
    std::vector<ConfigProblem> problems;
    Reading reading = {effective_config(options, problems), {}};
    for (const ConfigProblem& problem : problems) reading.problems.push_back(problem_text(options, problem));
    if (!problems.empty()) reading.config.reset();
    return reading;
  };
  // From here on another thread asks the questions that come by HTTP, and this thread answers.
  auto exchange = http::Exchange::create();
  if (!exchange) return tl::unexpected(exchange.error());
  http::Desk desk(**exchange, config);
  auto service = start_http(config, **exchange);
  if (!service) {
    log_error("HTTP is not answered until marud is started again: {}", service.error().text());
    desk.set_trouble("cannot " + service.error().text());
  }
  Server server(config, pools, state, std::move(*loop), *listener, std::move(*signals), reread,
                config.http.is_on ? &desk : nullptr);
  log_info("marud {} listens on {}{}", kVersionText, config.socket_path,
           listener->is_passed() ? ", a socket that the service manager passed" : "");
  auto served = server.run();
  if (service) service->reset();

  // From here on no request is answered; clients keep their memory.
  server.stop();
  return served;
}

}  // namespace

int run(int count, char** arguments, const DaxRules& rules) {
  std::vector<std::string> mistakes;
  const Options options = parse_options(count, arguments, mistakes);
  const std::string priority = journal_priority(LogLevel::kError);
  for (const std::string& mistake : mistakes) std::fprintf(stderr, "%smarud: %s\n", priority.c_str(), mistake.c_str());
  if (!mistakes.empty()) return 2;
  if (options.action == Options::Action::kHelp) return std::fputs(kHelpText, stdout) < 0;
  if (options.action == Options::Action::kVersion) return std::printf("marud %s\n", kVersionText) < 0;

  std::vector<ConfigProblem> problems;
  std::vector<std::string> devices;
  Config config;
  const bool lists_devices = options.action == Options::Action::kListDevices;
  if (lists_devices)
    devices = named_devices(*options.config_path, problems);
  else
    config = effective_config(options, problems);
  for (const ConfigProblem& problem : problems)
    std::fprintf(stderr, "%s%s\n", priority.c_str(), problem_text(options, problem).c_str());
  if (!problems.empty()) return 1;
  for (const std::string& device : devices) std::puts(device.c_str());
  if (lists_devices) return std::fflush(stdout) != 0;
  if (options.action == Options::Action::kCheckConfig) return std::puts("OK") < 0;

  // From here on the configuration is known to be good.
  log_start(config.log_level);
  for (PoolSpec& spec : config.pools) spec.dax.rules = rules;
  auto served = options.action == Options::Action::kFormat ? format(config, options.format_pool, options.force)
                                                           : serve(config, options);
  if (!served) log_error("marud stops: {}", served.error().text());
  log_finish();
  return served ? 0 : 1;
}

}  // namespace maru::daemon

#ifndef MARU_WITHOUT_MAIN  // a test has a main() of its own
int main(int count, char** arguments) {
  maru::hold_standard_streams();
  return maru::daemon::run(count, arguments, {});
}
#endif
