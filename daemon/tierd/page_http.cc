#include "daemon/tierd/page_http.h"

#include "daemon/base/json_text.h"
#include "daemon/tierd/page/page.h"
#include "libmaru/prefetch/message.h"

#include <nlohmann/json.hpp>
#include <string_view>

namespace maru::tierd {

namespace {

using maru::daemon::beside::HttpCall;
using maru::daemon::beside::HttpReply;

constexpr std::string_view kPaths =
    "GET /metrics      numbers for Prometheus\n"
    "GET /healthcheck  what does not work, as JSON\n"
    "GET /status       the tiers, as JSON\n"
    "GET /quota        quotas of tenants, as JSON\n"
    "Browsers get a page.\n";

HttpReply text(std::string_view body, const char* type) { return {200, std::string(body), type}; }

}  // namespace

std::optional<HttpReply> answer_page(const HttpCall& call, const AskOrder& ask) {
  if (call.method != "GET" && call.method != "HEAD") return std::nullopt;
  if (call.path == "/page.css") return text(kPageStyle, "text/css; charset=utf-8");
  if (call.path == "/page.js") return text(kPageScript, "text/javascript; charset=utf-8");
  if (call.path == "/page_draw.js") return text(kPageDrawing, "text/javascript; charset=utf-8");
  if (call.path == "/")
    return call.wants_html ? text(kPageText, "text/html; charset=utf-8") : text(kPaths, "text/plain");
  if (call.path != "/status") return std::nullopt;
  const OrderAnswer answer = ask(maru::prefetch::kListTiers, "");
  if (answer.result == 0) return HttpReply{200, answer.json + "\n"};
  return HttpReply{503,
                   maru::daemon::json_text({{"error", maru::daemon::json_of(answer.json).value("text", "")}}) + "\n"};
}

}  // namespace maru::tierd
