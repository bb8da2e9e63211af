#include "daemon/base/size_text.h"

#include <cmath>
#include <cstdio>

namespace maru::daemon {

std::optional<uint64_t> parse_size(std::string_view text) {
  uint64_t whole = 0;
  size_t at = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    whole = whole * 10 + uint64_t(text[at] - '0');
    if (whole > (1ull << 62)) return std::nullopt;
  }
  if (at == 0) return std::nullopt;
  uint64_t fraction = 0, scale = 1;
  if (at < text.size() && text[at] == '.') {
    const size_t first = ++at;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
      if (scale >= 1'000'000) return std::nullopt;
      fraction = fraction * 10 + uint64_t(text[at] - '0');
      scale *= 10;
    }
    if (at == first) return std::nullopt;
  }
  while (at < text.size() && text[at] == ' ') ++at;
  std::string_view suffix = text.substr(at);
  unsigned shift = 0;
  if (!suffix.empty() && suffix != "B") {
    switch (suffix.front()) {
      case 'K': shift = 10; break;
      case 'M': shift = 20; break;
      case 'G': shift = 30; break;
      case 'T': shift = 40; break;
      default: return std::nullopt;
    }
    suffix.remove_prefix(1);
    if (!suffix.empty() && suffix != "iB") return std::nullopt;
  } else if (scale > 1) {
    return std::nullopt;  // half a byte
  }
  if (whole > (UINT64_MAX >> shift) / 2) return std::nullopt;
  return (whole << shift) + (fraction << shift) / scale;
}

std::string size_text(uint64_t bytes) {
  static constexpr const char* kSuffixes[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = double(bytes);
  size_t suffix = 0;
  while (value >= 1024 && suffix + 1 < std::size(kSuffixes)) {
    value /= 1024;
    ++suffix;
  }
  char text[48];
  const bool is_whole = value == std::floor(value);
  std::snprintf(text, sizeof(text), is_whole ? "%.0f %s" : "%.1f %s", value, kSuffixes[suffix]);
  return text;
}

}  // namespace maru::daemon
