// The next words on a command line of marudctl, for the scripts that complete it in shells.
#pragma once

#include <string>
#include <vector>

namespace maru::marudctl {

struct NextWord {
  std::string word;
  std::string help;  // a few words; may be empty
};

// In the place of a word: names of files are meant.
constexpr const char* kPaths = ":paths";

// `words`: the words behind "marudctl", the last one as far as it is typed, and perhaps empty. marud is asked for its
// names where they belong; without an answer within a second there are none of them. The answers may begin otherwise
// than the last word does: shells have their own ideas of a match.
std::vector<NextWord> next_words(const std::vector<std::string>& words);

}  // namespace maru::marudctl
