// Whole numbers as people write them: digits, and nothing around them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace maru::marudctl {

// Nothing when it is no number, or one outside of the range.
std::optional<uint64_t> read_number(const std::string& text, uint64_t least, uint64_t most);

// "evict PAGES: found "5x", expected a number from 1 to 65536". `what` names the argument.
std::string number_mistake(const std::string& what, const std::string& text, uint64_t least, uint64_t most);

}  // namespace maru::marudctl
