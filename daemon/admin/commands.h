// The parts of administration that are about a hosted pool's configuration and about processes, not about what is in a pool.
// For admin.cc.
#pragma once

#include "daemon/admin/admin.h"

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace maru::daemon {

const char* condition_text(HostedPool::Condition condition);

// "policy": what evicts, and what the configuration says. "policy.set" {name, options}: another policy until marud restarts;
// the reply may take turns, as those of Pool::admin() do.
nlohmann::json show_policy(const HostedPool& hosted);
nlohmann::json set_policy(const HostedPool& hosted, const nlohmann::json& request, uint64_t now_unix_ms,
                          uint64_t* ret_ticket);

// "client.fence" {pid, start_time} or {pool, lane}: ends a client with SIGKILL. What it held is taken back when its pidfd
// says that it has ended, as after any death. The reply says what the process held; errno EPERM: marud may not signal it.
nlohmann::json fence_client(const AdminView& view, const nlohmann::json& request, const std::string& who);

// "client.forget" {pool, lane, generation}: an administrator says that the process of a lane is gone, where marud has no proof
// (Pool::is_unproven()). marud takes back all that the lane held, and the reply lists it. "generation": the lane's, as the
// administrator saw it; without it any. Errno EBUSY: the lane is not unproven.
nlohmann::json forget_client(const AdminView& view, const nlohmann::json& request, const std::string& who);

}  // namespace maru::daemon
