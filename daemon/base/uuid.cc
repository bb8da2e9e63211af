#include "daemon/base/uuid.h"

#include <cstdio>

namespace maru::daemon {

std::optional<std::array<uint8_t, 16>> parse_uuid(const std::string& text) {
  std::array<uint8_t, 16> uuid = {};
  size_t nibbles = 0;
  for (char c : text) {
    if (c == '-') continue;
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0 || nibbles >= 32) return std::nullopt;
    uuid[nibbles / 2] = uint8_t(uuid[nibbles / 2] << 4 | value);
    ++nibbles;
  }
  return nibbles == 32 ? std::optional(uuid) : std::nullopt;
}

namespace {

std::string text_of_bytes(const uint8_t* uuid) {
  std::string out;
  char pair[3];
  for (size_t i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    std::snprintf(pair, sizeof(pair), "%02x", uuid[i]);
    out += pair;
  }
  return out;
}

}  // namespace

std::string uuid_text(const uint8_t (&uuid)[16]) { return text_of_bytes(uuid); }
std::string uuid_text(const std::array<uint8_t, 16>& uuid) { return text_of_bytes(uuid.data()); }

}  // namespace maru::daemon
