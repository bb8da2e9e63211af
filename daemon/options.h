// The command line of marud.
#pragma once

#include "daemon/config/config.h"

#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

struct Options {
  enum class Action : uint8_t { kServe, kCheckConfig, kListDevices, kFormat, kHelp, kVersion };
  Action action = Action::kServe;
  std::optional<std::string> config_path;
  std::optional<std::string> socket_path;
  std::optional<std::string> state_dir;
  std::optional<LogLevel> log_level;
  std::string format_pool;  // kFormat
  bool force = false;
  std::string boot_id, machine_id;  // of shared pools; empty: the machine's own
  std::optional<PoolSpec> pool;     // described on the command line instead of in a file
};

// Mistakes are appended to `problems`.
Options parse_options(int count, char** arguments, std::vector<std::string>& problems);

// The configuration to use: the file, or the pool of the command line, with the command line's overrides.
Config effective_config(const Options& options, std::vector<ConfigProblem>& problems);

// With the place where it is.
std::string problem_text(const Options& options, const ConfigProblem& problem);

extern const char* const kHelpText;

// marud: main.cc. `rules` are the defaults, except in a test that has no devices.
int run(int count, char** arguments, const DaxRules& rules);

}  // namespace maru::daemon
