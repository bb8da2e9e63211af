#pragma once

#include <cstddef>
#include <string_view>

namespace maru::tierd {

// The text without the white space at both its ends.
inline std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

}  // namespace maru::tierd
