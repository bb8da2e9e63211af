// marudctl: asks marud, prints a table on a terminal and JSON with --json.
#include "daemon/marudctl/commands.h"
#include "libmaru/wire/socket.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <getopt.h>

namespace maru::marudctl {
namespace {

constexpr option kOptions[] = {
    {"socket", required_argument, nullptr, 's'}, {"pool", required_argument, nullptr, 'p'},
    {"json", no_argument, nullptr, 'j'},         {"timeout-ms", required_argument, nullptr, 't'},
    {"limit", required_argument, nullptr, 'l'},  {"prefix", required_argument, nullptr, 'x'},
    {"tenant", required_argument, nullptr, 'n'},
    {"quiesce", no_argument, nullptr, 'q'},      {"file", required_argument, nullptr, 'f'},
    {"yes", no_argument, nullptr, 'y'},          {"help", no_argument, nullptr, 'h'},
    {"version", no_argument, nullptr, 'v'},      {nullptr, 0, nullptr, 0},
};

void print_help() {
  std::puts(
      "usage: marudctl [--socket PATH] [--pool NAME] [--json] COMMAND\n\n"
      "Looks at, and administrates, a running marud.\n\n"
      "Commands:");
  for (const Command* command = kCommands; command->name; ++command)
    std::printf("  %s%s%s\n      %s\n", command->name, *command->usage ? " " : "", command->usage, command->help);
  std::puts(
      "  help\n      this text\n\n"
      "Options:\n"
      "  --socket PATH     of marud (default: $MARU_SOCKET, else\n"
      "                    $XDG_RUNTIME_DIR/marud/marud.sock when it exists, else\n"
      "                    /run/marud/marud.sock)\n"
      "  --pool NAME       (default: the only pool, or the one named \"default\")\n"
      "  --json            print marud's reply as JSON\n"
      "  --timeout-ms N    wait for marud at most so long (default: 10000)\n\n"
      "Exit status: 0 done; 1 marud refused, or what was asked for is not there;\n"
      "2 the command line is wrong; 3 marud cannot be reached or does not answer;\n"
      "4 check found violations.");
}

int complain(const char* format, const char* what) {
  std::fputs("marudctl: ", stderr);
  std::fprintf(stderr, format, what);
  std::fputs("; see marudctl --help\n", stderr);
  return kExitUsage;
}

bool takes(const Command& command, const char* wanted) {
  const size_t bytes = std::strlen(wanted);
  for (const char* at = command.options; *at;) {
    const size_t length = std::strcspn(at, " ");
    if (length == bytes && std::strncmp(at, wanted, bytes) == 0) return true;
    at += length + (at[length] == ' ');
  }
  return false;
}

bool read_number(const char* text, uint64_t most, uint64_t& ret_value) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*text < '0' || *text > '9' || *end != 0 || value == 0 || value > most) return false;
  ret_value = value;
  return true;
}

int run(int count, char** values) {
  Arguments arguments;
  arguments.socket_path = wire::default_socket_path();
  const char* special[8] = {};  // options that only some commands take, as they came
  size_t specials = 0;
  opterr = 0;
  while (true) {
    int index = 0;
    const int flag = ::getopt_long(count, values, "", kOptions, &index);
    if (flag < 0) break;
    uint64_t number = 0;
    switch (flag) {
      case 's': arguments.socket_path = optarg; break;
      case 'p': arguments.pool = optarg; break;
      case 'j': arguments.json = true; break;
      case 't':
        if (!read_number(optarg, 3'600'000, number)) return complain("--timeout-ms %s is not a number above zero", optarg);
        arguments.timeout_ms = uint32_t(number);
        break;
      case 'l':
        if (!read_number(optarg, UINT32_MAX, number)) return complain("--limit %s is not a number above zero", optarg);
        arguments.limit = number;
        break;
      case 'x': arguments.prefix = optarg; break;
      case 'n':
        if (!read_number(optarg, UINT64_MAX, number)) return complain("--tenant %s is not a number above zero", optarg);
        arguments.tenant = number;
        break;
      case 'q': arguments.quiesce = true; break;
      case 'f': arguments.file = optarg; break;
      case 'y': arguments.yes = true; break;
      case 'h': print_help(); return kExitDone;
      case 'v': arguments.operands = {"version"}; break;
      default: return complain("%s is not an option, or lacks its value", values[optind - 1]);
    }
    if (std::strchr("lxnqfy", flag) && specials < std::size(special)) special[specials++] = kOptions[index].name;
  }
  arguments.operands.insert(arguments.operands.end(), values + optind, values + count);
  if (arguments.operands.empty()) return complain("%s", "a command is missing");
  const std::string name = arguments.operands.front();
  arguments.operands.erase(arguments.operands.begin());
  if (name == "help") return print_help(), kExitDone;
  for (const Command* command = kCommands; command->name; ++command) {
    if (name != command->name) continue;
    for (size_t i = 0; i < specials; ++i)
      if (!takes(*command, special[i]))
        return complain(("%s does not take --" + std::string(special[i])).c_str(), command->name);
    const int operands = int(arguments.operands.size());
    if (operands < command->operands_min) return complain("%s lacks its argument", command->name);
    if (operands > command->operands_max) return complain("%s has too many arguments", command->name);
    return command->run(arguments);
  }
  return complain("%s is not a command", name.c_str());
}

}  // namespace
}  // namespace maru::marudctl

int main(int count, char** values) {
  try {
    return maru::marudctl::run(count, values);
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "marudctl: %s\n", exception.what());
    return maru::marudctl::kExitUnreachable;
  }
}
