#include "daemon/admin/metrics.h"

#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/metrics/text.h"
#include "daemon/server/users.h"

#include <nlohmann/json.hpp>

namespace maru::daemon {

using nlohmann::json;

metrics::Snapshot snapshot_of(const AdminView& view, const std::string& only) {
  metrics::Snapshot snapshot;
  snapshot.start_unix_ms = view.start_unix_ms;
  snapshot.connections = view.connections;
  snapshot.log_lines_dropped = log_dropped_lines();
  snapshot.sockets_lost = view.sockets_lost;
  snapshot.http_sockets_lost = view.http_sockets_lost;
  if (view.turns) snapshot.turns = *view.turns;
  if (view.users) view.users->fill(snapshot);
  for (size_t i = 0; i < view.pools.size(); ++i) {
    const HostedPool& hosted = *view.pools[i];
    if (hosted.is_gone()) continue;  // another pool may have its name by now
    if (!only.empty() && hosted.name() != only) continue;
    metrics::PoolSnapshot pool;
    pool.name = hosted.name();
    pool.condition = condition_text(hosted.condition());
    pool.is_serving = hosted.serving() != nullptr;
    if (pool.is_serving) {
      pool.census = (*view.censuses)[i];
      hosted.serving()->fill(pool);
    }
    snapshot.pools.push_back(std::move(pool));
  }
  return snapshot;
}

json metrics_of(const AdminView& view, const json& request) {
  const std::string only = text_in(request, "pool");
  metrics::Snapshot snapshot = snapshot_of(view, only);
  if (only.empty()) {
    snapshot.pools.clear();
    json reply = view.users ? view.users->limits_json() : json::object();
    reply["metrics"] = metrics::text_of(snapshot);
    return reply;
  }
  snapshot.users.clear();
  for (metrics::PoolSnapshot& pool : snapshot.pools) pool.tenants.clear();
  return {{"pool", only}, {"metrics", metrics::text_of(snapshot)}};
}

}  // namespace maru::daemon
