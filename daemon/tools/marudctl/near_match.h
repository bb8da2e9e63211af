// Suggestions for a word that is not known: the known words that are written almost like it.
#pragma once

#include <string>
#include <vector>

namespace maru::marudctl {

// At most three, the nearest first; none when nothing is near. Blanks, '-' and '_' are alike, and so are A and a.
std::vector<std::string> near_matches(const std::string& word, const std::vector<std::string>& known);

}  // namespace maru::marudctl
