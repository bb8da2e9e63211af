// For programs that are not marud and use its log (log.h).
#pragma once

namespace maru::daemon {

// The name in front of each line instead of "marud": a text that lives as long as the program. Before log_start().
void log_name_program(const char* name);

}  // namespace maru::daemon
