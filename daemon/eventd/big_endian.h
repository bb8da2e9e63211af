// Numbers of 64 bits as eight bytes, most significant first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace maru::eventd {

inline std::string big_endian(uint64_t value) {
  std::string bytes(sizeof(value), '\0');
  for (size_t i = 0; i < sizeof(value); ++i) bytes[i] = char(value >> (8 * (sizeof(value) - 1 - i)));
  return bytes;
}

// Of the first eight bytes, which must be there.
inline uint64_t from_big_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes.substr(0, sizeof(value))) value = value << 8 | uint8_t(byte);
  return value;
}

}  // namespace maru::eventd
