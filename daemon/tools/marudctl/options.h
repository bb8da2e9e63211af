// The options of marudctl, in one table, and how they are read.
#pragma once

#include "daemon/tools/marudctl/commands.h"

#include <span>
#include <string>
#include <vector>

namespace maru::marudctl {

struct Option {
  const char* name;
  const char* value;  // the name of its value in a summary; null: it has none
  Word word;          // the kind of its value
  const char* help;   // a few words
  int flag;           // the result of getopt_long; a letter when the option is also that letter
};

// All options. The first options belong to every command, the others to commands that name them.
std::span<const Option> options();
bool is_of_every_command(const Option& option);
const Option* find_option(const std::string& name);  // null: there is none

bool takes(const Command& command, const std::string& name);

struct Asked {
  bool help = false;
  bool version = false;
  std::vector<std::string> special;  // names of those options that only some commands take
};

// Fills `ret_arguments`, operands too. Returns the exit status.
int read_command_line(int count, char** values, Arguments& ret_arguments, Asked& ret_asked);

}  // namespace maru::marudctl
