// Finding the command that words name, and printing the commands.
#pragma once

#include "daemon/tools/marudctl/commands.h"

#include <string>
#include <vector>

namespace maru::marudctl {

// Finds the command at the beginning of `operands`, and removes its words there; null after it printed an error.
const Command* find_command(std::vector<std::string>& operands);

// "quota set TENANT [--soft SIZE] [--hard SIZE]", in one line.
std::string usage_of(const Command& command);

// Whether commands of two words begin with this one.
bool is_first_of_two(const std::string& word);

// Of a command, of all that begin with its first word, or of everything when there are no words. `may_go_on`: there may be more
// words than the command has. Returns the exit status.
int print_help(const std::vector<std::string>& words, bool may_go_on);

}  // namespace maru::marudctl
