// UUIDs as text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace maru::daemon {

std::string uuid_text(const uint8_t (&uuid)[16]);
std::string uuid_text(const std::array<uint8_t, 16>& uuid);
// 32 hexadecimal digits in small letters, with '-' between any of them.
std::optional<std::array<uint8_t, 16>> parse_uuid(const std::string& text);

}  // namespace maru::daemon
