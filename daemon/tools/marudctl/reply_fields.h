// Fields of marud's replies. marud may be older or newer than marudctl, so each field may be missing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace maru::marudctl {

// 0 when there is no number of this name.
inline uint64_t number(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

// Empty when there is no text of this name.
inline std::string text(const nlohmann::json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

// A limit in bytes as tables show it: null, "-", when there is none.
inline nlohmann::json limit_shown(const nlohmann::json& object, const char* name) {
  const uint64_t bytes = number(object, name);
  return bytes == 0 ? nlohmann::json(nullptr) : nlohmann::json(bytes);
}

// An empty array when there is none of this name.
inline const nlohmann::json& rows_of(const nlohmann::json& object, const char* name) {
  static const nlohmann::json kNone = nlohmann::json::array();
  const auto found = object.find(name);
  return found != object.end() && found->is_array() ? *found : kNone;
}

// The tenant of a block as people name it, and commands take it: its name, or id: and its number; empty when it has none.
inline std::string tenant_text(const nlohmann::json& row) {
  if (const std::string name = text(row, "tenant_name"); !name.empty()) return name;
  if (const uint64_t id = number(row, "tenant"); id != 0) return "id:" + std::to_string(id);  // of an older marud
  const std::string id = text(row, "tenant");
  return id.empty() ? "" : "id:" + id;
}

}  // namespace maru::marudctl
