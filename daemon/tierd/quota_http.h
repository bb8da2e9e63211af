// Quotas of tenants in tiers by HTTP, with marud's paths and fields for quotas in a pool (docs/openapi.json):
//
//   GET /quota            {"users": {TENANT: {"limit_gb", "current_usage_gb", "tiers": {TIER: usage in GiB}}}}
//   GET /quota/TENANT     {"cache_salt", "limit_gb", "current_usage_gb", "tiers", "exists"}
//   PUT /quota/TENANT     {"limit_gb": N} -> {"cache_salt", "limit_gb", "status": "ok"}
//   DELETE /quota/TENANT  {"cache_salt", "status": "removed" | "not_found"}
#pragma once

#include "daemon/beside/http_handler.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace maru::tierd {

// An order as on the socket of [prefetch] (libmaru/prefetch/message.h): 0 or -errno, and JSON.
struct OrderAnswer {
  int result = 0;
  std::string json;
};
using AskOrder = std::function<OrderAnswer(uint32_t kind, const std::string& body)>;

// Nothing: another path.
std::optional<maru::daemon::beside::HttpReply> answer_quota(const maru::daemon::beside::HttpCall& call,
                                                            const AskOrder& ask);

}  // namespace maru::tierd
