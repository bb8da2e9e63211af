// marudctl: asks marud, prints a table on a terminal and JSON with --json.
#include "daemon/marudctl/commands.h"
#include "libmaru/wire/socket.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <getopt.h>

namespace maru::marudctl {
namespace {

// Letters are options that every command takes; the others belong to some, which name them in their table.
enum Flag : int {
  kLimit = 256,
  kPrefix,
  kTenant,
  kType,
  kMinPriority,
  kPinned,
  kOverdue,
  kPid,
  kOption,
  kSoft,
  kHard,
  kQuiesce,
  kFile,
  kPages,
  kConfig,
  kForce,
  kYes,
  kOnce,
  kIntervalMs,
  kOutput,
  kFence,
  kDeadline,
};

constexpr option kOptions[] = {
    {"socket", required_argument, nullptr, 's'},
    {"pool", required_argument, nullptr, 'p'},
    {"json", no_argument, nullptr, 'j'},
    {"timeout-ms", required_argument, nullptr, 't'},
    {"help", no_argument, nullptr, 'h'},
    {"version", no_argument, nullptr, 'v'},
    {"limit", required_argument, nullptr, kLimit},
    {"prefix", required_argument, nullptr, kPrefix},
    {"tenant", required_argument, nullptr, kTenant},
    {"type", required_argument, nullptr, kType},
    {"min-priority", required_argument, nullptr, kMinPriority},
    {"pinned", no_argument, nullptr, kPinned},
    {"overdue", no_argument, nullptr, kOverdue},
    {"pid", required_argument, nullptr, kPid},
    {"option", required_argument, nullptr, kOption},
    {"soft", required_argument, nullptr, kSoft},
    {"hard", required_argument, nullptr, kHard},
    {"quiesce", no_argument, nullptr, kQuiesce},
    {"file", required_argument, nullptr, kFile},
    {"pages", required_argument, nullptr, kPages},
    {"config", required_argument, nullptr, kConfig},
    {"force", no_argument, nullptr, kForce},
    {"yes", no_argument, nullptr, kYes},
    {"once", no_argument, nullptr, kOnce},
    {"interval-ms", required_argument, nullptr, kIntervalMs},
    {"output", required_argument, nullptr, kOutput},
    {"fence", no_argument, nullptr, kFence},
    {"deadline", required_argument, nullptr, kDeadline},
    {nullptr, 0, nullptr, 0},
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
      "                    $XDG_RUNTIME_DIR/marud/marud.sock when it exists, else, for\n"
      "                    users other than root, /run/user/UID/marud/marud.sock when\n"
      "                    it exists, else /run/marud/marud.sock)\n"
      "  --pool NAME       (default: the only pool, or the one named \"default\")\n"
      "  --json            print marud's reply as JSON\n"
      "  --timeout-ms N    wait for marud at most so long (default: 10000)\n"
      "  --help            this text\n"
      "  --version         the same as the command version\n\n"
      "Exit status: 0 done; 1 marud refused, or what was asked for is not there, or\n"
      "the output could not be written; 2 the command line is wrong; 3 marud cannot be reached or does not answer;\n"
      "4 check found violations, or doctor something that is wrong.");
}

int complain(const char* format, const char* what) {
  std::fputs("marudctl: ", stderr);
  std::fprintf(stderr, format, what);
  std::fputs("; see marudctl --help\n", stderr);
  return kExitUsage;
}

// What the summary says of a command, in one line.
std::string usage_of(const Command& command) {
  std::string text = command.name;
  for (const char* at = command.usage; *at; at += *at == '\n' || *at == ' ' ? std::strspn(at, " \n") : 1)
    text += at == command.usage ? std::string(" ") + *at : std::string(1, *at == '\n' ? ' ' : *at);
  return text;
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

// The options of the command line; those that only some commands take are named in `ret_special`. Returns the exit status.
int read_options(int count, char** values, Arguments& arguments, std::vector<std::string>& ret_special,
                 bool& ret_help) {
  opterr = 0;
  while (true) {
    int index = 0;
    const int flag = ::getopt_long(count, values, "", kOptions, &index);
    if (flag < 0) return kExitDone;
    uint64_t number = 0;
    const auto reads = [&](uint64_t most) { return read_number(optarg, most, number); };
    const auto wrong = [&] {
      return complain((std::string("--") + kOptions[index].name + " %s is not a number above zero").c_str(), optarg);
    };
    switch (flag) {
      case 's': arguments.socket_path = optarg; break;
      case 'p': arguments.pool = optarg; break;
      case 'j': arguments.json = true; break;
      case 't':
        if (!reads(3'600'000)) return wrong();
        arguments.timeout_ms = uint32_t(number);
        break;
      case 'h': ret_help = true; return kExitDone;
      case 'v': arguments.operands = {"version"}; break;
      case kLimit:
        if (!reads(UINT32_MAX)) return wrong();
        arguments.limit = number;
        break;
      case kPrefix: arguments.prefix = optarg; break;
      case kTenant: arguments.tenant = optarg; break;
      case kType: arguments.type = optarg; break;
      case kMinPriority:
        if (!reads(UINT32_MAX)) return wrong();
        arguments.min_priority = number;
        break;
      case kPinned: arguments.pinned = true; break;
      case kOverdue: arguments.overdue = true; break;
      case kPid:
        if (!reads(INT32_MAX)) return wrong();
        arguments.pid = number;
        break;
      case kOption: arguments.policy_options.emplace_back(optarg); break;
      case kSoft: arguments.soft = optarg; break;
      case kHard: arguments.hard = optarg; break;
      case kQuiesce: arguments.quiesce = true; break;
      case kFile: arguments.file = optarg; break;
      case kPages: arguments.pages = optarg; break;
      case kConfig: arguments.config = optarg; break;
      case kForce: arguments.force = true; break;
      case kYes: arguments.yes = true; break;
      case kOnce: arguments.once = true; break;
      case kIntervalMs:
        if (!reads(UINT32_MAX)) return wrong();
        arguments.interval_ms = number;
        break;
      case kOutput: arguments.output = optarg; break;
      case kFence: arguments.fence = true; break;
      case kDeadline:
        if (!reads(86'400)) return wrong();
        arguments.deadline_s = number;
        break;
      default: return complain("%s is not an option, or lacks its value", values[optind - 1]);
    }
    if (flag >= kLimit) ret_special.emplace_back(kOptions[index].name);
  }
}

// The command that the operands begin with, whose words are taken from them; null with the exit status.
const Command* find_command(std::vector<std::string>& operands, int& ret_code) {
  const std::string first = operands.front();
  const std::string both = operands.size() > 1 ? first + " " + operands[1] : first;
  std::string second_words;
  for (const Command* command = kCommands; command->name; ++command) {
    const std::string name = command->name;
    if (name == first || name == both) {
      operands.erase(operands.begin(), operands.begin() + (name == first ? 1 : 2));
      return command;
    }
    if (name.starts_with(first + " "))
      second_words += (second_words.empty() ? "" : ", ") + name.substr(first.size() + 1);
  }
  ret_code = second_words.empty() ? complain("%s is not a command", first.c_str())
                                  : complain((first + " goes on with one of: %s").c_str(), second_words.c_str());
  return nullptr;
}

int run(int count, char** values) {
  Arguments arguments;
  arguments.socket_path = wire::default_socket_path();
  std::vector<std::string> special;
  bool wants_help = false;
  if (const int code = read_options(count, values, arguments, special, wants_help); code != kExitDone) return code;
  arguments.operands.insert(arguments.operands.end(), values + optind, values + count);
  if (wants_help) return print_help(), kExitDone;
  if (arguments.operands.empty()) return complain("%s", "a command is missing");
  if (arguments.operands.front() == "help") return print_help(), kExitDone;
  int code = kExitDone;
  const Command* command = find_command(arguments.operands, code);
  if (!command) return code;
  for (const std::string& option : special)
    if (!takes(*command, option.c_str())) return complain(("%s does not take --" + option).c_str(), command->name);
  const int operands = int(arguments.operands.size());
  const std::string expected = ", expected marudctl " + usage_of(*command);
  if (operands < command->operands_min)
    return complain(("%s: an argument is missing" + expected).c_str(), command->name);
  if (operands > command->operands_max)
    return complain((std::string(command->name) + ": found \"%s\"" + expected).c_str(),
                    arguments.operands.back().c_str());
  return command->run(arguments);
}

// A script that keeps the output must not take half of it, or nothing, for all.
int after_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "marudctl: the output could not be written: %s\n", std::strerror(errno));
  return code == kExitDone ? kExitRefused : code;
}

}  // namespace

std::vector<OptionName> option_names() {
  std::vector<OptionName> names;
  for (const option* entry = kOptions; entry->name; ++entry)
    names.push_back({entry->name, entry->has_arg == required_argument});
  return names;
}

}  // namespace maru::marudctl

int main(int count, char** values) {
  try {
    return maru::marudctl::after_output(maru::marudctl::run(count, values));
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "marudctl: %s\n", exception.what());
    return maru::marudctl::kExitUnreachable;
  }
}
