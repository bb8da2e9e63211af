#include "daemon/base/request_fields.h"

#include "daemon/base/plain_text.h"

#include <algorithm>
#include <charconv>

namespace maru::daemon {

using nlohmann::json;

uint64_t number_in(const json& request, const char* name, uint64_t otherwise) {
  const auto found = request.find(name);
  if (found == request.end() || !found->is_number_integer()) return otherwise;
  return found->is_number_unsigned() || found->get<int64_t>() >= 0 ? found->get<uint64_t>() : otherwise;
}
std::optional<uint64_t> id_of(const json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (!value.is_string()) return std::nullopt;
  const auto& text = value.get_ref<const std::string&>();
  uint64_t id = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return id;
}
std::string text_in(const json& request, const char* name) {
  const auto found = request.find(name);
  return found != request.end() && found->is_string() ? found->get<std::string>() : std::string();
}
bool flag_in(const json& request, const char* name) {
  const auto found = request.find(name);
  return found != request.end() && found->is_boolean() && found->get<bool>();
}
uint64_t rows_in(const json& request) {
  return std::clamp<uint64_t>(number_in(request, "limit", kAdminRowsMax), 1, kAdminRowsMax);
}

json refusal(int code, const std::string& text) { return {{"error", text}, {"errno", code}}; }

namespace {

std::string hex_text(std::span<const std::byte> bytes) {
  std::string hex = "0x";
  for (std::byte b : bytes) {
    hex += "0123456789abcdef"[uint8_t(b) >> 4];
    hex += "0123456789abcdef"[uint8_t(b) & 15];
  }
  return hex;
}

}  // namespace

std::string key_text(std::span<const std::byte> key) {
  const auto is_printable = [](std::byte b) { return b > std::byte{0x20} && b < std::byte{0x7f}; };
  const std::string text(reinterpret_cast<const char*>(key.data()), key.size());
  const bool is_text = std::all_of(key.begin(), key.end(), is_printable) && !text.starts_with("0x");
  return is_text ? text : hex_text(key);
}

std::string text_or_hex(std::span<const std::byte> bytes, bool is_cut) {
  const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (all.starts_with("0x")) return hex_text(bytes);
  constexpr size_t kLongestPart = 3;  // of a character of UTF-8
  for (size_t cut = 0; cut <= (is_cut ? std::min(kLongestPart, all.size()) : 0); ++cut) {
    const std::string_view text = all.substr(0, all.size() - cut);
    if (plain_text(text, std::string_view::npos, "\n\t\r") == text) return std::string(text);
  }
  return hex_text(bytes);
}

std::string tenant_name_text(const std::string& name) {
  const auto bytes = std::as_bytes(std::span(name));
  return name.starts_with("id:") || name.starts_with("(") ? hex_text(bytes) : key_text(bytes);
}

std::vector<std::byte> key_bytes(const std::string& text) {
  const auto as_text = [&] {
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    return std::vector<std::byte>(bytes, bytes + text.size());
  };
  if (!text.starts_with("0x") || text.size() % 2 != 0) return as_text();
  std::vector<std::byte> bytes;
  for (size_t i = 2; i < text.size(); i += 2) {
    int value = 0;
    for (char c : text.substr(i, 2)) {
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return as_text();
      value = value * 16 + digit;
    }
    bytes.push_back(std::byte(value));
  }
  return bytes;
}

}  // namespace maru::daemon
