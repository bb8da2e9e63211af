// marud-provision: lists the memory that can hold pools, and arranges it as the configuration says. root runs it by hand, or
// before marud starts; marud itself never changes a device's mode.
#include "daemon/base/json_text.h"
#include "daemon/config/config.h"
#include "daemon/memory/fault_guard.h"
#include "daemon/tools/provision/device_executor.h"
#include "daemon/tools/provision/guarded_executor.h"
#include "daemon/tools/provision/inventory.h"
#include "daemon/tools/provision/record.h"
#include "daemon/tools/provision/report.h"
#include "daemon/tools/provision/settle.h"
#include "daemon/tools/provision/stop_signals.h"
#include "daemon/version.h"
#include "libmaru/base/standard_streams.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <getopt.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

namespace maru::daemon::provision {
namespace {

constexpr int kExitDone = 0, kExitRefused = 1, kExitUsage = 2;

struct Arguments {
  std::string config = "/etc/marud/marud.toml";
  std::string record = kRecordPath;
  std::string command, name;
  bool json = false, force = false;
};

constexpr option kOptions[] = {{"config", required_argument, nullptr, 'c'},
                               {"force", no_argument, nullptr, 'f'},
                               {"json", no_argument, nullptr, 'j'},
                               {"record", required_argument, nullptr, 'r'},
                               {"help", no_argument, nullptr, 'h'},
                               {"version", no_argument, nullptr, 'v'},
                               {nullptr, 0, nullptr, 0}};

void print_help() {
  std::puts(
      "usage: marud-provision [--config FILE] [--json] [--force] COMMAND\n\n"
      "Makes of this machine's CXL memory, NVDIMMs and DAX devices what the\n"
      "[[provision]] tables of marud's configuration say.\n\n"
      "Commands:\n"
      "  list             what there is, and who uses it\n"
      "  plan             what apply would do, and why; changes nothing\n"
      "  apply            does it; a failure half-way is undone, and so is what was\n"
      "                   done when ^C comes. A second time there is nothing to do\n"
      "  release NAME     gives back what was made for the table of that name\n\n"
      "Options:\n"
      "  --config FILE    (default: /etc/marud/marud.toml)\n"
      "  --force          take memory that the kernel uses; lose content of pools\n"
      "  --json           print JSON\n"
      "  --record FILE    what was made (default: /run/marud-provision/made.json)\n"
      "  --help\n"
      "  --version\n\n"
      "Exit status: 0 done, or nothing to do; 1 refused, or failed and undone;\n"
      "2 the command line or the configuration is wrong.");
}

// Set when the command line is read, so that errors are in JSON, too.
bool says_errors_in_json = false;

std::string text_of(const nlohmann::json& json, int indent) { return json_text(json, indent); }

// Returns the status.
int complain(const std::string& text, int status = kExitRefused) {
  if (says_errors_in_json)
    std::fprintf(stderr, "%s\n", text_of({{"error", text}, {"status", status}}, -1).c_str());
  else
    std::fprintf(stderr, "marud-provision: %s\n", text.c_str());
  return status;
}

// A remark beside the output of the command.
void note(const std::string& text) {
  if (says_errors_in_json)
    std::fprintf(stderr, "%s\n", text_of({{"note", text}}, -1).c_str());
  else
    std::fprintf(stderr, "marud-provision: %s\n", text.c_str());
}

int usage(const std::string& text) { return complain(text + "; see marud-provision --help", kExitUsage); }

void print(const nlohmann::json& json) { std::puts(text_of(json, 2).c_str()); }

int list(const Arguments& arguments, const Machine& machine) {
  if (arguments.json)
    print(machine_json(machine));
  else
    std::fputs(machine_text(machine).c_str(), stdout);
  return kExitDone;
}

// Shows the plan; then, unless that was all, follows it and keeps the record.
int follow(const Arguments& arguments, const Machine& machine, const Plan& plan, const std::vector<Made>& made) {
  const bool only_shows = arguments.command == "plan";
  nlohmann::json json = plan_json(plan);
  if (!arguments.json) std::fputs(plan_text(plan).c_str(), stdout);
  if (!arguments.json && !plan.problems.empty()) {
    std::fputs(problems_text(plan, arguments.config).c_str(), stderr);
    if (!only_shows) std::fputs("marud-provision: nothing was changed\n", stderr);
  }
  std::fflush(stdout);
  if (only_shows || !plan.problems.empty() || plan.steps.empty()) {
    if (arguments.json) print(json);
    return plan.problems.empty() ? kExitDone : kExitRefused;
  }
  DeviceExecutor devices;
  GuardedExecutor executor(devices, machine, {read_machine, lock_device});
  // Reads the machine again: new devices have addresses that the plan could not know.
  const auto write_down = [&](const ApplyOutcome& so_far) -> Result<void> {
    auto now = read_machine();
    if (!now) return tl::unexpected<Error>(now.error());
    return write_record(arguments.record, after(made, so_far, *now));
  };
  Onlooker onlooker;
  onlooker.say = [&](const std::string& text) {
    if (arguments.json)
      std::fprintf(stderr, "%s\n", text_of({{"progress", text}}, -1).c_str());
    else
      std::fprintf(stderr, "marud-provision: %s\n", text.c_str());
  };
  // Tried again at the end, and complained of then.
  onlooker.keep = [&](const ApplyOutcome& so_far) { (void)write_down(so_far); };
  StopSignals signals;
  onlooker.why_stop = [&] { return signals.text(); };
  const ApplyOutcome outcome = apply(plan.steps, executor, onlooker);
  int status = outcome.is_complete ? kExitDone : kExitRefused;
  wait_for_udev();  // until new devices belong to marud's user, and removed devices have no nodes
  const auto written = write_down(outcome);
  if (!written) status = complain(written.error().text() + " (devices that were made are not known as ours)");
  json["outcome"] = outcome_json(outcome);
  if (arguments.json)
    print(json);
  else
    std::fputs(outcome_text(outcome).c_str(), outcome.is_complete ? stdout : stderr);
  return status;
}

int run(const Arguments& arguments) {
  const bool changes = arguments.command == "apply" || arguments.command == "release";
  Config config;
  if (arguments.command == "plan" || arguments.command == "apply") {
    std::vector<ConfigProblem> problems;
    config = read_config(arguments.config, problems);
    for (const ConfigProblem& problem : problems) {
      const std::string line = problem.line > 0 ? ":" + std::to_string(problem.line) : "";
      const std::string text = arguments.config + line + ": " + problem.text;
      arguments.json ? void(complain(text, kExitUsage)) : void(std::fprintf(stderr, "%s\n", text.c_str()));
    }
    if (!problems.empty()) return kExitUsage;
    if (config.wishes.empty()) {
      if (arguments.json)
        print(plan_json({}));
      else
        std::puts("nothing to do: the configuration has no [[provision]] table");
      return kExitDone;
    }
  }
  if (changes && ::geteuid() != 0)
    return complain("found user " + std::to_string(::geteuid()) + ", expected root, who alone may change devices");
  FileDescriptor lock;
  if (changes) {
    auto locked = lock_record(arguments.record);
    if (!locked) return complain(locked.error().text());
    lock = std::move(*locked);
  }
  FaultGuard::install();
  // At boot the kernel may still be finding the devices.
  if (arguments.command == "apply") wait_for_udev();
  auto machine = read_machine();
  if (!machine) return complain(machine.error().text());
  if (arguments.command == "list") return list(arguments, *machine);
  auto made = read_record(arguments.record);
  // It has addresses of memory, which the kernel tells root alone: a user has no use for it.
  if (!made && made.error().code == EACCES && !changes) {
    note("what was made is not known, since user " + std::to_string(::geteuid()) + " may not read " + arguments.record +
         ": devices of dynamic regions are matched by size, and root may see another plan");
    made = std::vector<Made>{};
  }
  if (!made) return complain(made.error().text());
  const Plan plan = arguments.command == "release" ? plan_release(*machine, arguments.name, *made, arguments.force)
                                                   : make_plan(*machine, config.wishes, *made, arguments.force);
  return follow(arguments, *machine, plan, *made);
}

int start(int count, char** values) {
  Arguments arguments;
  says_errors_in_json =
      std::any_of(values, values + count, [](const char* word) { return !std::strcmp(word, "--json"); });
  opterr = 0;
  while (true) {
    const int flag = ::getopt_long(count, values, "", kOptions, nullptr);
    if (flag < 0) break;
    switch (flag) {
      case 'c': arguments.config = optarg; break;
      case 'r': arguments.record = optarg; break;
      case 'f': arguments.force = true; break;
      case 'j': arguments.json = true; break;
      case 'h': return print_help(), kExitDone;
      case 'v': return std::printf("marud-provision %s\n", kVersionText), kExitDone;
      default: return usage(std::string("found ") + values[optind - 1] + ", expected an option, with its value");
    }
  }
  says_errors_in_json = arguments.json;
  std::vector<std::string> operands(values + optind, values + count);
  if (operands.empty()) return usage("found no command, expected list, plan, apply or release");
  arguments.command = operands.front();
  const bool is_release = arguments.command == "release";
  if (!is_release && arguments.command != "list" && arguments.command != "plan" && arguments.command != "apply")
    return usage("found the command \"" + arguments.command + "\", expected list, plan, apply or release");
  if (operands.size() != (is_release ? 2u : 1u))
    return usage(is_release ? "release: found " + std::to_string(operands.size() - 1) + " names, expected one"
                            : arguments.command + ": found \"" + operands[1] + "\", expected no more words");
  if (is_release) arguments.name = operands[1];
  return run(arguments);
}

}  // namespace
}  // namespace maru::daemon::provision

int main(int count, char** values) {
  maru::hold_standard_streams();
  try {
    return maru::daemon::provision::start(count, values);
  } catch (const std::exception& exception) {
    return maru::daemon::provision::complain(exception.what());
  }
}
