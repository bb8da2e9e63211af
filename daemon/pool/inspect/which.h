// Which of many keys are there: a match without pins, for routers that ask by HTTP.
#pragma once

#include "daemon/pool/tenants/pool_tenants.h"
#include "libmaru/shm/region/control_region.h"

#include <nlohmann/json_fwd.hpp>

namespace maru::daemon {

// "which" {keys: [text], kind, tenant} -> {"ranges": [[start, end], ...], "present": how many}.
nlohmann::json which_blocks(const shm::ControlRegion& region, const PoolTenants& tenants,
                            const nlohmann::json& request);

}  // namespace maru::daemon
