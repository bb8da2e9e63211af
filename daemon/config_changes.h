// What a configuration that was read again changes, as its file has it: some comes into force at once, the rest waits for a
// restart, and the administrator is told which.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace maru::daemon {

// The values of a file: of each table ("daemon", "pool main") the keys ("size", "tenant.alice.soft") and their values.
using WrittenConfig = std::map<std::string, std::map<std::string, std::string>>;

// One line for each difference that waits for a restart of marud. `running`: what the running marud began with; it forgets
// pools that do not serve any more, and learns those that are new in `fresh` and start at once.
std::vector<std::string> waiting_changes(WrittenConfig& running, const WrittenConfig& fresh,
                                         const std::vector<std::string>& serving);

}  // namespace maru::daemon
