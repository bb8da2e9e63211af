// JSON as text, in a file of its own. Each file that names the library's reader and writer compiles them anew, and that takes
// longer than all the rest of most files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace maru::daemon {

// On one line, or with `indent` spaces for each level. Text from outside is not always UTF-8; other bytes become U+FFFD
// instead of an exception.
std::string json_text(const nlohmann::json& value, int indent = -1);

// Discarded (is_discarded()) where the text is not JSON.
nlohmann::json json_of(std::string_view text);

// As json_of(); levels below `depth_max` are left out, and ret_is_too_deep says so.
nlohmann::json json_of(std::string_view text, int depth_max, bool& ret_is_too_deep);

}  // namespace maru::daemon
