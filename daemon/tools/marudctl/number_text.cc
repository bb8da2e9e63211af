#include "daemon/tools/marudctl/number_text.h"

#include <charconv>

namespace maru::marudctl {

std::optional<uint64_t> read_number(const std::string& text, uint64_t least, uint64_t most) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < least || value > most) return std::nullopt;
  return value;
}

std::string number_mistake(const std::string& what, const std::string& text, uint64_t least, uint64_t most) {
  return what + ": found \"" + text + "\", expected a number from " + std::to_string(least) + " to " +
         std::to_string(most);
}

}  // namespace maru::marudctl
