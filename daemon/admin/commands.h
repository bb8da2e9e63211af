// The commands of administrators that marud itself answers: about marud as a whole, processes, and the configuration of a pool.
// For the table in admin.cc.
#pragma once

#include "daemon/admin/admin.h"

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace maru::daemon {

// Whether the asking administrator administrates marud, or this pool.
bool is_theirs(const AdminView& view, const HostedPool& hosted);
// "there is no pool NAME", with the names of the administrator's own pools.
std::string no_pool_text(const AdminView& view, const std::string& name);

// "status": every pool of the administrator, or the pool that the request names; as many as one reply has room for. "next" says
// where to go on, as "cursor".
nlohmann::json show_status(const AdminView& view, const nlohmann::json& request);
// "clients": the processes that hold lanes, likewise in several replies. With "all_hosts" also the clients of other hosts.
nlohmann::json list_clients(const AdminView& view, const nlohmann::json& request);

// "policy": the policy in use, and the policy in the configuration. "policy.set" {name, options}: another policy until marud
// restarts; the reply may take turns, as the replies of Pool::admin() do.
nlohmann::json show_policy(const HostedPool& hosted);
nlohmann::json set_policy(const HostedPool& hosted, const nlohmann::json& request, uint64_t now_unix_ms,
                          uint64_t* ret_ticket);

// "client.fence" {pid, start_time} or {pool, lane}: ends a client with SIGKILL. Its holdings are taken back when its
// pidfd says that it has ended, as after any death. The reply lists these holdings; errno EPERM: marud may not signal
// it.
nlohmann::json fence_client(const AdminView& view, const nlohmann::json& request, const std::string& who);

// "client.forget" {pool, lane, generation}: an administrator says that the process of a lane is gone, where marud has no proof
// (Pool::is_unproven()). marud takes back all that the lane held, and the reply lists it. "generation": the lane's, as the
// administrator saw it; without it any. Errno EBUSY: the lane is not unproven.
nlohmann::json forget_client(const AdminView& view, const nlohmann::json& request, const std::string& who);

}  // namespace maru::daemon
