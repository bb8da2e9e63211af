// A question of marudctl to maru-tierd: on the socket on which clients ask it, and not to marud.
#pragma once

#include "daemon/tools/marudctl/commands.h"

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace maru::marudctl {

// The operand at this place, else $MARU_TIER_SOCKET, else the service's.
std::string tierd_socket(const Arguments& arguments, size_t operand);

// `kind` and `body`: of libmaru/prefetch/message.h. Returns kExitDone and the answer, or another exit status and why in
// `ret_problem`. Waits for `timeout_ms` at most.
int ask_tierd(const std::string& path, uint32_t timeout_ms, uint32_t kind, const std::string& body,
              nlohmann::json& ret_answer, std::string& ret_problem);

}  // namespace maru::marudctl
