// The changes that a configuration brings when it is read again, as its file has it. Some come into force at once. The rest
// waits for a restart, and the administrator is told which.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace maru::daemon {

// The content of a table of a file: its keys ("size", "tenant.alice.soft") and their values, as they are written there.
using WrittenTable = std::map<std::string, std::string>;

// One line for each difference that waits for a restart of marud. `name`: "daemon", or "pool main". `running`: the
// table when marud, or the pool, began.
std::vector<std::string> waiting_changes(const std::string& name, const WrittenTable& running,
                                         const WrittenTable& fresh);

}  // namespace maru::daemon
