#include "daemon/base/json_text.h"

#include <nlohmann/json.hpp>

namespace maru::daemon {

using nlohmann::json;

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

json json_of(std::string_view text) { return json::parse(text, nullptr, false); }

json json_of(std::string_view text, int depth_max, bool& ret_is_too_deep) {
  ret_is_too_deep = false;
  const json::parser_callback_t limit_depth = [&](int depth, json::parse_event_t, json&) {
    ret_is_too_deep |= depth > depth_max;
    return depth <= depth_max;
  };
  return json::parse(text, limit_depth, false);
}

}  // namespace maru::daemon
