// The benchmark suite: scripts/bench runs it.
#include "tests/bench/content.h"
#include "tests/bench/floors.h"
#include "tests/bench/suite.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>

namespace {

using namespace maru::bench;

constexpr const char* kUsage =
    "usage: maru-bench [--json] [--only NAME]... [--quick] [--list] [--no-peers] [--rounds N]\n"
    "                  [--cold-keys N] [--marud PATH]\n"
    "  --json       one object a line\n"
    "  --only NAME  this row (may be repeated)\n"
    "  --quick      200 k keys where the row means 10 M, short samples\n"
    "  --list       the rows, their questions and their yardsticks\n"
    "  --no-peers   without the other stores, whose loading takes most of the time; their limits are not held\n";

Options parse(int argc, char** argv) {
  Options options;
  options.marud = std::filesystem::path(own_path()).parent_path() / "../../daemon/marud";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&]() -> std::string {
      if (i + 1 >= argc) throw std::invalid_argument(argument + " needs a value");
      return argv[++i];
    };
    if (argument == "--json") {
      options.json = true;
    } else if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--list") {
      options.list = true;
    } else if (argument == "--no-peers") {
      options.peers = false;
    } else if (argument == "--only") {
      options.only.insert(value());
    } else if (argument == "--rounds") {
      options.rounds = unsigned(std::stoul(value()));
    } else if (argument == "--cold-keys") {
      options.cold_keys = std::stoull(value());
    } else if (argument == "--marud") {
      options.marud = value();
    } else {
      throw std::invalid_argument("unknown argument " + argument);
    }
  }
  for (const std::string& name : options.only) {
    bool known = false;
    for (const RowSpec& row : row_table()) known = known || name == row.name;
    if (!known) throw std::invalid_argument("no row is called " + name + " (see --list)");
  }
  return options;
}

void print_list() {
  for (const RowSpec& row : row_table()) {
    std::printf("%-24s %s\n%-24s against: %s\n", row.name, row.question, "", row.yardstick);
  }
}

void run(Suite& suite) {
  run_on_cpu(0);
  if (suite.wants_group("allocation")) allocation_rows(suite);
  if (suite.wants_group("copy")) copy_rows(suite);
  if (suite.wants_group("reslice")) reslice_rows(suite);
  if (suite.wants_group("blend")) blend_rows(suite);
  if (suite.wants_group("adapters")) adapter_rows(suite);
  if (suite.wants_group("adapter_batches")) adapter_batch_rows(suite);
  if (suite.wants_group("cached")) lookup_rows(suite, false);
  if (suite.wants_group("store")) store_rows(suite);
  if (suite.wants_group("blocks")) block_rows(suite);
  if (suite.wants_group("scaling")) scaling_rows(suite);
  if (suite.wants_group("eviction")) eviction_rows(suite);
  if (suite.wants_group("policies")) policy_rows(suite);
  if (suite.wants_group("recovery")) recovery_rows(suite);
  if (suite.wants_group("cold")) lookup_rows(suite, true);
  if (suite.wants_group("blend_cold")) blend_cold_row(suite);
  suite.finish();
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    if (argc > 2 && std::strcmp(argv[1], "--role") == 0) return play_role({argv + 2, argv + argc});
    const Options options = parse(argc, argv);
    if (options.list) {
      print_list();
      return 0;
    }
    Suite suite(options);
    run(suite);
    return 0;
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "maru-bench: %s\n%s", error.what(), kUsage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "maru-bench: %s\n", error.what());
    return 1;
  }
}
