// marudctl completion bash: made from the table of commands, so that it never lags behind it.
#include "daemon/marudctl/conversation.h"
#include "daemon/marudctl/options.h"

#include <set>
#include <string>

namespace maru::marudctl {
namespace {

std::string first_word(const std::string& name) { return name.substr(0, name.find(' ')); }
std::string second_word(const std::string& name) {
  const size_t space = name.find(' ');
  return space == std::string::npos ? "" : name.substr(space + 1);
}

void add_word(std::string& words, const std::string& word) { words += (words.empty() ? "" : " ") + word; }

// "limit prefix" as "--limit --prefix".
std::string as_options(const std::string& names) {
  std::string out;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(' ', at), names.size());
    add_word(out, "--" + names.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

// A case of the shell for each command: its second words, or its own options.
std::string cases() {
  std::string out;
  std::set<std::string> done;
  for (const Command* command = kCommands; command->name; ++command) {
    const std::string first = first_word(command->name);
    if (second_word(command->name).empty()) {
      out += "    " + first + ") own=\"" + as_options(command->options) + "\" ;;\n";
      continue;
    }
    if (!done.insert(first).second) continue;
    std::string seconds, inner;
    for (const Command* other = kCommands; other->name; ++other) {
      if (first_word(other->name) != first) continue;
      add_word(seconds, second_word(other->name));
      inner += "        " + second_word(other->name) + ") own=\"" + as_options(other->options) + "\" ;;\n";
    }
    out += "    " + first + ")\n      case $second in\n" + inner + "        *) words=\"" + seconds +
           "\" ;;\n      esac ;;\n";
  }
  return out;
}

std::string script() {
  std::string firsts, everywhere, with_value;
  std::set<std::string> seen;
  for (const Command* command = kCommands; command->name; ++command)
    if (seen.insert(first_word(command->name)).second) add_word(firsts, first_word(command->name));
  for (const Option& option : options()) {
    if (is_of_every_command(option)) add_word(everywhere, std::string("--") + option.name);
    if (option.value) with_value += (with_value.empty() ? "--" : " | --") + std::string(option.name);
  }
  return "# Completes marudctl in bash; made by `marudctl completion bash`.\n"
         "_marudctl() {\n"
         "  local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} first= second= own= words= i\n"
         "  COMPREPLY=()\n"
         "  case $before in\n"
         "    --socket | --file | --pages | --output) COMPREPLY=($(compgen -f -- \"$now\")); return ;;\n"
         "    --pool)\n"
         "      words=$(marudctl --json --timeout-ms 1000 status 2>/dev/null | sed -n 's/^      \"name\": "
         "\"\\(.*\\)\".*/\\1/p')\n"
         "      COMPREPLY=($(compgen -W \"$words\" -- \"$now\")); return ;;\n"
         "    " +
         with_value +
         ") return ;;\n"
         "  esac\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    case ${COMP_WORDS[i]} in\n"
         "      " +
         with_value +
         ") ((++i)) ;;\n"
         "      -*) ;;\n"
         "      *) if [[ -z $first ]]; then first=${COMP_WORDS[i]}; elif [[ -z $second ]]; then "
         "second=${COMP_WORDS[i]}; fi ;;\n"
         "    esac\n"
         "  done\n"
         "  case $first in\n"
         "    '') words=\"" +
         firsts + " help\" ;;\n" + cases() +
         "  esac\n"
         "  if [[ $now == -* ]]; then words=\"" +
         everywhere +
         " $own\"; fi\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$now\"))\n"
         "}\n"
         "complete -F _marudctl marudctl\n";
}

}  // namespace

int completion(const Arguments& arguments) {
  if (arguments.operands.front() != "bash")
    return complain(kExitUsage, "completion: found \"" + arguments.operands.front() + "\", expected bash");
  print(script());
  return kExitDone;
}

}  // namespace maru::marudctl
