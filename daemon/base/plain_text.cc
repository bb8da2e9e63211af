#include "daemon/base/plain_text.h"

#include <algorithm>
#include <cstdint>

namespace maru::daemon {
namespace {

uint8_t byte_at(std::string_view text, size_t at) { return at < text.size() ? uint8_t(text[at]) : 0; }

// Bytes of the character that the text begins with, as the Unicode standard's table of well-formed sequences has them; 0 when
// its first byte begins none.
size_t character_bytes(std::string_view text) {
  const uint8_t first = byte_at(text, 0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  uint8_t low = 0x80,
          high = 0xBF;  // of the second byte: neither too long a sequence, nor a surrogate, nor beyond the last
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  const size_t bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (byte_at(text, 1) < low || byte_at(text, 1) > high) return 0;
  for (size_t i = 2; i < bytes; ++i)
    if ((byte_at(text, i) & 0xC0) != 0x80) return 0;
  return bytes;
}

bool is_control(std::string_view character) {
  const uint8_t first = byte_at(character, 0);
  return first < 0x20 || first == 0x7F || (first == 0xC2 && byte_at(character, 1) < 0xA0);
}

}  // namespace

std::string plain_text(std::string_view text, size_t bytes_max, std::string_view kept) {
  std::string out;
  out.reserve(std::min(text.size(), bytes_max));
  while (!text.empty()) {
    const size_t bytes = character_bytes(text);
    std::string_view character = text.substr(0, std::max<size_t>(bytes, 1));
    text.remove_prefix(character.size());
    if (bytes == 0 || (is_control(character) && kept.find(character) == std::string_view::npos)) character = "?";
    if (out.size() + character.size() > bytes_max) break;
    out += character;
  }
  return out;
}

std::string in_quotes(std::string_view text) { return '"' + std::string(text) + '"'; }

}  // namespace maru::daemon
