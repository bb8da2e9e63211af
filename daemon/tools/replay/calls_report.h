// The report of maru-replay on recorded calls.
#pragma once

#include "daemon/tools/replay/recorded_calls.h"

#include <nlohmann/json.hpp>
#include <string>

namespace maru::replay {

std::string calls_text(const Recordings& recordings, const CallReport& report);
nlohmann::json calls_json(const Recordings& recordings, const CallReport& report);

// Whether calls failed more often than when they were recorded.
bool has_new_errors(const CallReport& report);

}  // namespace maru::replay
