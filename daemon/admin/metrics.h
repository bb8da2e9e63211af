// What there is to count of marud and its pools at one moment: as numbers for whoever writes them, and as an answer to
// administration for a report.
#pragma once

#include "daemon/admin/admin.h"

#include <nlohmann/json_fwd.hpp>

namespace maru::daemon {

// With the pool of that name alone, or with all when it is empty. Needs censuses.
metrics::Snapshot snapshot_of(const AdminView& view, const std::string& only = "");

// "metrics": those of marud itself, and what users may have; with a pool those of this pool. Without a line for each tenant, of
// which there may be too many for an answer: quota.list has them.
nlohmann::json metrics_of(const AdminView& view, const nlohmann::json& request);

}  // namespace maru::daemon
