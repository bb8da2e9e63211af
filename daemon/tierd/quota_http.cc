#include "daemon/tierd/quota_http.h"

#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "libmaru/prefetch/message.h"

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

namespace maru::tierd {

namespace {

using maru::daemon::beside::HttpCall;
using maru::daemon::beside::HttpReply;
using nlohmann::json;

constexpr double kGib = 1 << 30, kGibMax = 1ull << 32;
constexpr uint64_t kNothingAtAll = 1;  // bytes: 0 would be no limit, and no block has less

HttpReply say(unsigned status, const json& body) { return {status, maru::daemon::json_text(body) + "\n"}; }
HttpReply complain(unsigned status, const std::string& text) { return say(status, {{"error", text}}); }

std::optional<std::string> without_percent(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                    : -1;
    };
    if (i + 2 >= text.size() || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) return std::nullopt;
    plain += char(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  return plain;
}

json limit_gb(uint64_t bytes) {
  return bytes == 0 ? json(nullptr) : json(bytes == kNothingAtAll ? 0.0 : double(bytes) / kGib);
}

// One tenant's part of an answer about all tenants.
json tenant_in(const json& all, const std::string& tenant) {
  json out = {{"limit_gb", nullptr}, {"current_usage_gb", 0.0}, {"tiers", json::object()}};
  out["limit_gb"] = limit_gb(all["limits"].value(tenant, all.value("default_bytes", uint64_t{0})));
  double used = 0;
  for (const json& row : all["usage"]) {
    if (row.value("tenant", "") != tenant) continue;
    const double gib = row.value("used_bytes", 0.0) / kGib;
    out["tiers"][row.value("tier", "")] = gib;
    used += gib;
  }
  out["current_usage_gb"] = used;
  return out;
}

HttpReply list(const json& all) {
  json users = json::object();
  for (const auto& [tenant, bytes] : all["limits"].items()) users[tenant] = tenant_in(all, tenant);
  for (const json& row : all["usage"])
    if (const std::string tenant = row.value("tenant", ""); !users.contains(tenant))
      users[tenant] = tenant_in(all, tenant);
  json out = {{"users", std::move(users)}, {"default_limit_gb", limit_gb(all.value("default_bytes", uint64_t{0}))}};
  if (all.contains("left_out")) out["left_out"] = all["left_out"];
  return say(200, out);
}

HttpReply refused(const OrderAnswer& answer) {
  const json said = maru::daemon::json_of(answer.json);
  const unsigned status = answer.result == -ETIMEDOUT ? 503 : answer.result == -EINVAL ? 400 : 409;
  return complain(status, said.is_object() ? said.value("text", "") : "");
}

HttpReply put(const HttpCall& call, const std::string& tenant, const AskOrder& ask) {
  const json body = maru::daemon::json_of(call.body);
  const json wanted = body.is_object() ? body.value("limit_gb", json()) : json();
  const double gib = wanted.is_number() ? wanted.get<double>() : -1;
  if (!std::isfinite(gib) || gib < 0 || gib > kGibMax || body.size() != 1)
    return complain(400, "the body: expected {\"limit_gb\": N} with a number of GiB from 0 to 4294967296");
  const uint64_t bytes = std::max(kNothingAtAll, uint64_t(std::llround(gib * kGib)));
  const OrderAnswer answer =
      ask(maru::prefetch::kSetQuota, maru::daemon::json_text({{"tenant", tenant}, {"bytes", bytes}}));
  if (answer.result != 0) return refused(answer);
  return say(200, {{"cache_salt", tenant}, {"limit_gb", limit_gb(bytes)}, {"status", "ok"}});
}

HttpReply remove(const std::string& tenant, const AskOrder& ask) {
  const OrderAnswer answer = ask(maru::prefetch::kDropQuota, maru::daemon::json_text({{"tenant", tenant}}));
  if (answer.result != 0 && answer.result != -ENOENT) return refused(answer);
  return say(200, {{"cache_salt", tenant}, {"status", answer.result == 0 ? "removed" : "not_found"}});
}

}  // namespace

std::optional<HttpReply> answer_quota(const HttpCall& call, const AskOrder& ask) {
  std::string_view path = call.path;
  if (path.starts_with("/api/")) path.remove_prefix(4);
  if (path != "/quota" && !path.starts_with("/quota/")) return std::nullopt;
  const bool is_change = call.method == "PUT" || call.method == "DELETE";
  if (!is_change && call.method != "GET" && call.method != "HEAD")
    return complain(405, "found " + call.method + ", expected GET, PUT or DELETE");
  if (is_change && !call.may_change)
    return complain(
        403,
        "quotas are changed by root and the user of maru-tierd, on the Unix socket of [http]; found another caller");
  std::string tenant;
  if (path.size() > 7) {
    const auto name = without_percent(path.substr(7));
    if (!name || name->empty()) return complain(400, "the path: expected /quota/ and the name of a tenant");
    tenant = maru::daemon::tenant_name_text(*name);
  }
  if (is_change && tenant.empty())
    return complain(405, "found " + call.method + " of all tenants, expected one in the path");
  if (is_change) return call.method == "PUT" ? put(call, tenant, ask) : remove(tenant, ask);
  const OrderAnswer answer =
      ask(maru::prefetch::kListQuotas, tenant.empty() ? "" : maru::daemon::json_text({{"tenant", tenant}}));
  if (answer.result != 0) return refused(answer);
  const json all = maru::daemon::json_of(answer.json);
  if (tenant.empty()) return list(all);
  json found = tenant_in(all, tenant);
  found["cache_salt"] = tenant;
  found["exists"] = all["limits"].contains(tenant);
  return say(200, found);
}

}  // namespace maru::tierd
