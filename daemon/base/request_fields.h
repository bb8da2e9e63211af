// The fields of administration requests, and the texts of refusals and keys in replies. For the parts of a pool that
// answer them (daemon/pool/inspect).
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace maru::daemon {

inline constexpr uint64_t kAdminRowsMax = 200;            // of a list, in one reply
inline constexpr size_t kAdminReplyBytesMax = 48u << 10;  // of the rows; leaves room for the rest of the message

// A field of the wrong type counts as absent.
uint64_t number_in(const nlohmann::json& request, const char* name, uint64_t otherwise);
// An id has 64 bits, of which other languages' numbers keep 53: so it is written as text, and read as text or as a number.
std::optional<uint64_t> id_of(const nlohmann::json& value);
std::string text_in(const nlohmann::json& request, const char* name);
bool flag_in(const nlohmann::json& request, const char* name);
// "limit", from 1 to kAdminRowsMax.
uint64_t rows_in(const nlohmann::json& request);

nlohmann::json refusal(int code, const std::string& text);

// A key as text if the text alone gives the same bytes, otherwise as 0x and hexadecimal digits; and the reverse, where an odd
// or foreign digit makes it text.
std::string key_text(std::span<const std::byte> key);
// The same of bytes that may be text with spaces, lines and all of UTF-8. `is_cut`: the bytes are the beginning of longer text,
// and an incomplete last character is left out.
std::string text_or_hex(std::span<const std::byte> bytes, bool is_cut);
std::vector<std::byte> key_bytes(const std::string& text);
// The name of a tenant, as a key; in hexadecimal digits if the name reads like the label of a tenant without one
// ("id:7", "(others)").
std::string tenant_name_text(const std::string& name);

}  // namespace maru::daemon
