// The page for browsers by HTTP, and what it shows:
//
//   GET /        the page, or for other programs the paths
//   GET /status  {"pool", "pid", "queued", "pinned_bytes", "loading_bytes", "tiers": [{"name", "kind", "hits", ...}]}, which
//                marudctl tier status shows
#pragma once

#include "daemon/tierd/quota_http.h"

namespace maru::tierd {

// Nothing: another path.
std::optional<maru::daemon::beside::HttpReply> answer_page(const maru::daemon::beside::HttpCall& call,
                                                           const AskOrder& ask);

}  // namespace maru::tierd
