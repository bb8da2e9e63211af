// marudctl: asks marud, prints a table on a terminal and JSON with --json.
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/help.h"
#include "daemon/tools/marudctl/options.h"
#include "libmaru/base/standard_streams.h"
#include "libmaru/wire/socket.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

namespace maru::marudctl {
namespace {

// Of a command that is known: that it takes these options, and so many operands. Returns the exit status.
int check_words(const Command& command, const Arguments& arguments, const Asked& asked) {
  const std::string expected = "expected marudctl " + usage_of(command) + "; see marudctl " + command.name + " --help";
  const std::string name = command.name;
  for (const std::string& option : asked.special)
    if (!takes(command, option)) return complain(kExitUsage, name + " does not take --" + option + ", " + expected);
  const int operands = int(arguments.operands.size());
  if (operands < command.operands_min) return complain(kExitUsage, name + ": an argument is missing, " + expected);
  if (operands > command.operands_max)
    return complain(kExitUsage, name + ": found \"" + arguments.operands[command.operands_max] + "\", " + expected);
  if (operands != 0 && arguments.operands.front().empty())
    return complain(kExitUsage, name + ": found an empty argument, " + expected);
  return kExitDone;
}

// Whether the words ask for JSON, before it is known whether they are right: "--json" or its beginning, which no other option
// has.
bool seems_to_ask_for_json(int count, char** values) {
  for (int at = 1; at < count && std::strcmp(values[at], "--") != 0; ++at)
    if (std::strlen(values[at]) > 2 && std::strncmp(values[at], "--json", std::strlen(values[at])) == 0) return true;
  return false;
}

int run(int count, char** values) {
  complain_in_json(seems_to_ask_for_json(count, values));
  Arguments arguments;
  arguments.socket_path = wire::default_socket_path();
  Asked asked;
  if (const int code = read_command_line(count, values, arguments, asked); code != kExitDone) return code;
  complain_in_json(arguments.json);
  std::vector<std::string>& words = arguments.operands;
  if (asked.help) return print_help(words, true);
  if (asked.version) words = {"version"};
  if (words.empty()) return complain(kExitUsage, "a command is missing; see marudctl --help");
  if (words.front() == "help") return print_help({words.begin() + 1, words.end()}, false);
  if (words.size() == 2 && words.back() == "help" && is_first_of_two(words.front()))
    return print_help({words.front()}, false);
  const Command* command = find_command(words);
  if (!command) return kExitUsage;
  if (const int code = asked.version ? kExitDone : check_words(*command, arguments, asked); code != kExitDone)
    return code;
  return command->run(arguments);
}

// A script that keeps the output must not take half of it, or nothing, for all.
int after_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  return complain(code == kExitDone ? kExitRefused : code,
                  std::string("the output could not be written: ") + std::strerror(errno));
}

}  // namespace
}  // namespace maru::marudctl

int main(int count, char** values) {
  maru::hold_standard_streams();
  try {
    return maru::marudctl::after_output(maru::marudctl::run(count, values));
  } catch (const std::exception& exception) {
    return maru::marudctl::complain(maru::marudctl::kExitUnreachable, exception.what());
  }
}
