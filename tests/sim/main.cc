// The simulator's command. Without arguments it runs every scenario for a while; the last line is the result.
//
//   sim [--schedules N] [--seed S] [--scenario NAME] [--model tso|relaxed|sequential] [--mutant ID] [--trace]
//   sim --mutants [--schedules N]     every negative control must fail within N schedules of each of its scenarios
//   sim --list
//
// --schedules is the total over all scenarios that run; --seed alone is one schedule of each. Exit status: 0 all held,
// 1 a violation (its seed and the command that shows it again are printed), 2 usage.
#include "mutant_list.h"
#include "scenario.h"

#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace maru::sim {
namespace {

constexpr uint64_t kSchedulesDefault = 100'000;
constexpr uint64_t kMutantSchedulesDefault = 1'000'000;

struct Options {
  uint64_t schedules = 0;
  uint64_t seed = 1;
  bool seed_given = false;
  const Scenario* scenario = nullptr;
  int memory_model = -1;
  unsigned mutant = 0;
  bool trace = false;
  bool mutants = false;
  bool list = false;
};

struct Totals {
  uint64_t schedules = 0;
  uint64_t steps = 0;
  uint64_t deaths = 0;
  unsigned failures = 0;
};

// What runs at the moment, for the signal handler: a crash in the code under test is a violation like any other.
const char* running_scenario = "";
uint64_t running_seed;

void print_replay(const char* scenario, uint64_t seed, const Options& options) {
  std::printf("  again: scripts/sim --scenario %s --seed %" PRIu64, scenario, seed);
  static constexpr const char* kModels[] = {"tso", "relaxed", "sequential"};
  if (options.memory_model >= 0) std::printf(" --model %s", kModels[options.memory_model]);
  if (options.mutant != 0) std::printf(" --mutant %u", options.mutant);
  std::printf(" --trace\n");
}

// The crashed fibre's stack may be the reason, so this runs on one of its own; only calls that are safe in a handler.
void on_crash(int signal_number) {
  char text[256];
  const int length = std::snprintf(text, sizeof text, "crash: signal %d in scenario %s, seed %" PRIu64 "\n",
                                   signal_number, running_scenario, running_seed);
  if (length > 0 && write(STDERR_FILENO, text, size_t(length)) < 0) _exit(1);
  _exit(1);
}

void catch_crashes() {
  static char stack[64 << 10];
  stack_t alternate{};
  alternate.ss_sp = stack;
  alternate.ss_size = sizeof stack;
  sigaltstack(&alternate, nullptr);
  struct sigaction action{};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) sigaction(number, &action, nullptr);
}

Outcome run_one(const Scenario& scenario, const Options& options, uint64_t seed, unsigned mutant_id) {
  Settings settings;
  settings.seed = seed;
  settings.trace = options.trace;
  settings.memory_model = options.memory_model;
  settings.mutant = mutant_id;
  running_scenario = scenario.name;
  running_seed = seed;
  return run_schedule(scenario, settings);
}

// Stops at the first violation of the scenario: the next ones would mostly be the same.
void run_scenario(const Scenario& scenario, const Options& options, uint64_t schedules, Totals* totals) {
  const auto start = std::chrono::steady_clock::now();
  uint64_t deaths = 0, steps = 0, done = 0;
  bool failed = false;
  for (; done < schedules && !failed; ++done) {
    const uint64_t seed = options.seed + done;
    const Outcome outcome = run_one(scenario, options, seed, options.mutant);
    deaths += outcome.deaths;
    steps += outcome.steps;
    if (!outcome.failed) continue;
    failed = true;
    std::printf("VIOLATION in %s, seed %" PRIu64 " (%s): %s\n", scenario.name, seed,
                outcome.memory_model == MemoryModel::kTso ? "tso" : "relaxed", outcome.message);
    print_replay(scenario.name, seed, options);
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (schedules > 1) {
    std::printf("%-28s %9" PRIu64 " schedules %7.1f steps each %8" PRIu64 " deaths %6.1f s  %s\n", scenario.name, done,
                double(steps) / double(done == 0 ? 1 : done), deaths, seconds, failed ? "FAILED" : "ok");
    std::fflush(stdout);
  }
  totals->schedules += done;
  totals->steps += steps;
  totals->deaths += deaths;
  totals->failures += failed;
}

int run_scenarios(const Options& options) {
  Totals totals;
  const auto scenarios = all_scenarios();
  const uint64_t count = options.scenario != nullptr ? 1 : scenarios.size();
  uint64_t schedules = options.schedules;
  if (schedules == 0) schedules = options.seed_given ? count : kSchedulesDefault;
  const uint64_t each = (schedules + count - 1) / count;
  for (const Scenario* scenario : scenarios) {
    if (options.scenario == nullptr || options.scenario == scenario) run_scenario(*scenario, options, each, &totals);
  }
  std::printf("sim: %" PRIu64 " schedules, %" PRIu64 " scenarios, %" PRIu64 " steps, %" PRIu64 " deaths, %u failures\n",
              totals.schedules, count, totals.steps, totals.deaths, totals.failures);
  return totals.failures == 0 ? 0 : 1;
}

// -- negative controls ------------------------------------------------------------------------------------------------

int run_mutants(const Options& options) {
  const uint64_t bound = options.schedules != 0 ? options.schedules : kMutantSchedulesDefault;
  uint64_t schedules = 0, deaths = 0;
  unsigned survivors = 0, count = 0;
  std::printf("%4s  %-44s %-28s %10s %12s  %s\n", "id", "wrong variant", "scenario", "schedules", "seed",
              "what failed");
  for (const MutantRecord& record : mutant_records()) {
    ++count;
    bool killed = false;
    uint64_t tried = 0;
    for (uint64_t i = 0; i < bound && !killed; ++i) {
      // Its scenarios in turn, so that one that cannot show it costs little.
      for (const char* name : record.scenarios) {
        if (name == nullptr || killed) break;
        const Scenario* scenario = find_scenario(name);
        if (scenario == nullptr) {
          std::fprintf(stderr, "sim: mutant %u names a scenario that does not exist: %s\n", record.id, name);
          return 2;
        }
        ++tried;
        const Outcome outcome = run_one(*scenario, options, options.seed + i, record.id);
        deaths += outcome.deaths;
        if (!outcome.failed) continue;
        killed = true;
        std::printf("%4u  %-44s %-28s %10" PRIu64 " %12" PRIu64 "  %s\n", record.id, record.name, scenario->name, tried,
                    options.seed + i, outcome.message);
      }
    }
    schedules += tried;
    if (!killed) {
      ++survivors;
      std::printf("%4u  %-44s %-28s %10" PRIu64 " %12s  SURVIVES\n", record.id, record.name, record.scenarios[0], tried,
                  "-");
    }
    std::fflush(stdout);
  }
  std::printf("sim: %" PRIu64 " schedules, %u negative controls, %" PRIu64 " deaths, %u survivors\n", schedules, count,
              deaths, survivors);
  return survivors == 0 ? 0 : 1;
}

int usage(const char* problem) {
  std::fprintf(stderr,
               "sim: %s\nusage: sim [--schedules N] [--seed S] [--scenario NAME] [--model tso|relaxed|sequential] "
               "[--mutant ID] [--trace] [--mutants] [--list]\n",
               problem);
  return 2;
}

bool parse_number(const char* text, uint64_t* ret_number) {
  if (text == nullptr || *text < '0' || *text > '9') return false;
  char* end = nullptr;
  *ret_number = std::strtoull(text, &end, 10);
  return *end == 0;
}

int run(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const char* name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    uint64_t number = 0;
    if (std::strcmp(name, "--schedules") == 0) {
      if (!parse_number(value, &options.schedules) || options.schedules == 0)
        return usage("--schedules needs a number");
      ++i;
    } else if (std::strcmp(name, "--seed") == 0) {
      if (!parse_number(value, &options.seed)) return usage("--seed needs a number");
      options.seed_given = true;
      ++i;
    } else if (std::strcmp(name, "--scenario") == 0) {
      options.scenario = value != nullptr ? find_scenario(value) : nullptr;
      if (options.scenario == nullptr) return usage("--scenario needs one of the names that --list prints");
      ++i;
    } else if (std::strcmp(name, "--model") == 0) {
      if (value != nullptr && std::strcmp(value, "tso") == 0)
        options.memory_model = int(MemoryModel::kTso);
      else if (value != nullptr && std::strcmp(value, "relaxed") == 0)
        options.memory_model = int(MemoryModel::kRelaxed);
      else if (value != nullptr && std::strcmp(value, "sequential") == 0)
        options.memory_model = int(MemoryModel::kSequential);
      else
        return usage("--model is tso, relaxed or sequential");
      ++i;
    } else if (std::strcmp(name, "--mutant") == 0) {
      if (!parse_number(value, &number)) return usage("--mutant needs a number");
      options.mutant = unsigned(number);
      ++i;
    } else if (std::strcmp(name, "--trace") == 0) {
      options.trace = true;
    } else if (std::strcmp(name, "--mutants") == 0) {
      options.mutants = true;
    } else if (std::strcmp(name, "--list") == 0) {
      options.list = true;
    } else {
      return usage("unknown argument");
    }
  }
  if (options.list) {
    for (const Scenario* scenario : all_scenarios()) std::printf("%-28s %s\n", scenario->name, scenario->about);
    for (const MutantRecord& record : mutant_records()) std::printf("mutant %-21u %s\n", record.id, record.name);
    return 0;
  }
  catch_crashes();
  return options.mutants ? run_mutants(options) : run_scenarios(options);
}

}  // namespace
}  // namespace maru::sim

int main(int argc, char** argv) { return maru::sim::run(argc, argv); }
