#include "daemon/tools/marudctl/help.h"

#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/near_match.h"
#include "daemon/tools/marudctl/options.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace maru::marudctl {
namespace {

std::string entry(const Command& command) {
  return std::string("  ") + command.name + (*command.usage ? " " : "") + command.usage + "\n      " + command.help +
         "\n";
}

// "--limit N"
std::string option_usage(const Option& option) {
  const std::string letter = option.flag <= UINT8_MAX ? std::string("-") + char(option.flag) + ", " : "";
  return letter + "--" + option.name + (option.value ? std::string(" ") + option.value : "");
}

std::string summary() {
  std::string text =
      "usage: marudctl [--socket PATH] [--pool NAME] [--json] COMMAND\n\n"
      "Looks at, and administrates, a running marud.\n\n"
      "Commands:\n";
  for (const Command* command = kCommands; command->name; ++command) text += entry(*command);
  return text +
         "  help [COMMAND]\n      this text, or that of one command\n\n"
         "Options:\n"
         "  --socket PATH     of marud (default: $MARU_SOCKET, else\n"
         "                    $XDG_RUNTIME_DIR/marud/marud.sock when it exists, else, for\n"
         "                    users other than root, /run/user/UID/marud/marud.sock when\n"
         "                    it exists, else /run/marud/marud.sock)\n"
         "  --pool NAME       (default: the only pool, or the one named \"default\")\n"
         "  --json            print marud's reply as JSON\n"
         "  --timeout-ms N    wait for marud at most so long (default: 10000)\n"
         "  -h, --help        this text; after a command, what it takes\n"
         "  -V, --version     the same as the command version\n\n"
         "Exit status: 0 done; 1 marud refused, or what was asked for is not there, or\n"
         "the output could not be written; 2 the command line is wrong; 3 marud cannot\n"
         "be reached or does not answer; 4 check found violations, or doctor something\n"
         "that is wrong.\n";
}

std::string help_of(const Command& command) {
  constexpr size_t kWidthMax = 80;
  std::string text = std::string("usage: marudctl [OPTIONS] ") + command.name;
  const std::string usage = command.usage;  // of several lines, perhaps
  const bool fits = text.size() + 1 + usage.substr(0, usage.find('\n')).size() <= kWidthMax;
  text += (usage.empty() ? "" : fits ? " " : "\n         ") + usage + "\n\n" + command.help + "\n\nOptions:\n";
  std::vector<const Option*> taken;
  for (const bool is_own : {true, false})
    for (const Option& option : options())
      if (is_own != is_of_every_command(option) && takes(command, option.name)) taken.push_back(&option);
  size_t width = 0;
  for (const Option* option : taken) width = std::max(width, option_usage(*option).size());
  for (const Option* option : taken) {
    const std::string of_option = option_usage(*option);
    text += "  " + of_option + std::string(width - of_option.size() + 2, ' ') + option->help + "\n";
  }
  return text + "\nmarudctl(1) says more.\n";
}

std::string first_word(const std::string& name) { return name.substr(0, name.find(' ')); }

std::vector<std::string> second_words(const std::string& first) {
  std::vector<std::string> words;
  for (const Command* command = kCommands; command->name; ++command) {
    const std::string name = command->name;
    if (name.starts_with(first + " ")) words.push_back(name.substr(first.size() + 1));
  }
  return words;
}

std::string help_of_group(const std::string& first) {
  std::string text = "usage: marudctl [OPTIONS] " + first + " COMMAND\n\nCommands:\n";
  for (const Command* command = kCommands; command->name; ++command)
    if (first_word(command->name) == first) text += entry(*command);
  return text + "\nmarudctl " + first + " COMMAND --help says more of one.\n";
}

std::vector<std::string> all_names() {
  std::vector<std::string> names = {"help"};
  for (const Command* command = kCommands; command->name; ++command) {
    names.emplace_back(command->name);
    if (const std::string first = first_word(command->name); first != command->name) names.push_back(first);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void complain_of_command(const std::string& words, const std::vector<std::string>& meant, const std::string& ending) {
  std::string text = "\"" + words + "\" is no command";
  for (const std::string& name : meant) text += (name == meant.front() ? ", did you mean marudctl " : " or ") + name;
  complain(kExitUsage, text + (meant.empty() ? ending : "?"));
}

}  // namespace

std::string usage_of(const Command& command) {
  std::string text = command.name;
  for (const char* at = command.usage; *at; at += *at == '\n' || *at == ' ' ? std::strspn(at, " \n") : 1)
    text += at == command.usage ? std::string(" ") + *at : std::string(1, *at == '\n' ? ' ' : *at);
  return text;
}

bool is_first_of_two(const std::string& word) { return !second_words(word).empty(); }

const Command* find_command(std::vector<std::string>& operands) {
  const std::string first = operands.front();
  const std::string both = operands.size() > 1 ? first + " " + operands[1] : first;
  for (const Command* command = kCommands; command->name; ++command) {
    const std::string name = command->name;
    const bool is_two_words = name.find(' ') != std::string::npos;
    if (is_two_words ? name != both || !is_first_of_two(first) : name != first) continue;
    operands.erase(operands.begin(), operands.begin() + (is_two_words ? 2 : 1));
    return command;
  }
  if (is_first_of_two(first)) {
    const std::vector<std::string> seconds = second_words(first);
    std::string listed;
    for (const std::string& second : seconds) listed += (listed.empty() ? "" : ", ") + second;
    const std::string ending = first + " goes on with one of: " + listed + "; see marudctl " + first + " --help";
    std::vector<std::string> meant = both == first ? std::vector<std::string>() : near_matches(operands[1], seconds);
    for (std::string& second : meant) second = first + " " + second;
    if (both == first)
      complain(kExitUsage, ending);
    else
      complain_of_command(both, meant, ": " + ending);
    return nullptr;
  }
  // The second word may be a part of the name, or the subject of the command.
  std::vector<std::string> meant = near_matches(both, all_names());
  const bool is_both = !meant.empty();
  if (!is_both) meant = near_matches(first, all_names());
  complain_of_command(is_both ? both : first, meant, "; see marudctl --help");
  return nullptr;
}

int print_help(const std::vector<std::string>& words, bool may_go_on) {
  if (words.empty() || words.front() == "help") return print(summary()), kExitDone;
  if (words.size() == 1 && is_first_of_two(words.front())) return print(help_of_group(words.front())), kExitDone;
  std::vector<std::string> left = words;
  const Command* command = find_command(left);
  if (!command) return kExitUsage;
  if (!left.empty() && !may_go_on)
    return complain(kExitUsage, "help: found \"" + left.front() + "\", expected marudctl help [COMMAND]");
  return print(help_of(*command)), kExitDone;
}

}  // namespace maru::marudctl
