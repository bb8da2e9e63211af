// The numbers of marud and its pools at one moment: for the thread that writes them, and as an answer to administration
// for a report.
#pragma once

#include "daemon/admin/admin.h"

#include <nlohmann/json_fwd.hpp>

namespace maru::daemon {

// With the pool of that name alone, or with all when it is empty. Needs censuses.
metrics::Snapshot snapshot_of(const AdminView& view, const std::string& only = "");

// "metrics": the numbers of marud itself, and the limits of users; with a pool the numbers of this pool. Without a line
// for each tenant, of which there may be too many for an answer: quota.list has them.
nlohmann::json metrics_of(const AdminView& view, const nlohmann::json& request);

}  // namespace maru::daemon
