// What somebody meant who wrote a word that is not known: those of the known ones that are written almost so.
#pragma once

#include <string>
#include <vector>

namespace maru::marudctl {

// At most three, the nearest first; none when nothing is near. Blanks, '-' and '_' are alike, and so are A and a.
std::vector<std::string> near_matches(const std::string& word, const std::vector<std::string>& known);

}  // namespace maru::marudctl
