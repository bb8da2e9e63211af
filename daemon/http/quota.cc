// Quotas with the verbs and fields of LMCache's servers, so that scripts for those servers work. A cache salt is the name of a
// tenant of marud. limit_gb is its soft limit in GiB (2^30). hard_limit_gb is its hard limit, which those servers do not know.
//
//   a limit of 0      those servers evict all blocks of such a tenant; marud's 0 means no limit, so it becomes one byte
//   "_default"        blocks of no tenant; a tenant of this name is written %5Fdefault
//   "config"          the default; a tenant of this name is written %63onfig
#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "daemon/http/request.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string_view>

namespace maru::daemon::http {
namespace {

using nlohmann::json;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr double kGibMax = double(1ull << 32);  // 4 ZiB less than overflows, and more than any pool has
constexpr uint64_t kNothingAtAll = 1;           // bytes: the limit of a tenant that may keep nothing
constexpr const char* kNobody = "_default";
constexpr const char* kConfig = "config";  // in the place of a name: the default

// The shortest decimal number that means exactly this number of bytes. So a limit that was set as 0.3 reads 0.3, and a client
// can send back any number that it read.
double gib_of(uint64_t bytes) {
  if (bytes <= kNothingAtAll) return 0.0;
  const double exact = double(bytes) / kGib;
  for (double scale = 1; scale < 1e13; scale *= 10)
    if (const double gib = std::round(exact * scale) / scale; std::llround(gib * kGib) == int64_t(bytes)) return gib;
  return exact;
}

bool has_escape(const std::string& text) {
  const auto is_digit = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  for (size_t i = 0; i + 2 < text.size(); ++i)
    if (text[i] == '%' && is_digit(text[i + 1]) && is_digit(text[i + 2])) return true;
  return false;
}

// The text of a tenant's name, which is bytes. UTF-8 without control characters stands as it is. Any other name is
// percent-encoded as in a path, and so is a name that has an escape in it: no two names have the same text. The two names with
// another meaning in a path get an escape for their first letter.
json salt_json(const std::string& name) {
  if (name == kNobody || name == kConfig) return fmt::format("%{:02X}{}", uint8_t(name.front()), name.substr(1));
  const bool is_plain = std::none_of(name.begin(), name.end(), [](char c) { return uint8_t(c) < 0x20 || c == 0x7f; });
  if (is_plain && !has_escape(name) && json_of(json_text(name)) == name) return name;  // other bytes than UTF-8 differ
  std::string encoded;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) || std::string_view("-._~").find(c) != std::string_view::npos)
      encoded += c;
    else
      encoded += fmt::format("%{:02X}", uint8_t(c));
  return encoded;
}

std::string name_of(const json& row) {
  if (!row["tenant"].is_string()) return "";
  const auto bytes = key_bytes(row["tenant"].get<std::string>());
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool means_nobody(const Call& call) { return call.salt_is_plain && call.salt == kNobody; }

json quota_command(const Call& call, const char* command) {
  json out = command_for(call, command);
  out["tenant"] = key_text(std::as_bytes(std::span(call.salt)));
  return out;
}

// "limit_gb", the soft limit, and "hard_limit_gb" of a tenant. Without a soft limit "limit_gb" is null: 0 would say that the
// tenant may keep nothing. The hard limit cannot stand in for it: marud refuses bytes above a hard limit and does not evict.
json limits_json(const json& row) {
  const uint64_t soft = row["soft_bytes"], hard = row["hard_bytes"];
  json out = {{"limit_gb", soft != 0 ? json(gib_of(soft)) : json(nullptr)}};
  if (hard != 0) out["hard_limit_gb"] = gib_of(hard);
  return out;
}

// No such tenant: these routes answer this case themselves. A missing pool has another text.
bool is_unknown_tenant(const Answer& answer) { return answer.code == ENOENT && answer.text.starts_with("this tenant"); }

// A number of GiB as bytes. On a mistake `ret_wrong` holds the reply.
uint64_t bytes_in(const json& body, const char* field, std::optional<Step>& ret_wrong) {
  const auto found = body.find(field);
  if (found != body.end() && found->is_number())
    if (const double gib = found->get<double>(); std::isfinite(gib) && gib >= 0 && gib <= kGibMax)
      return std::max(kNothingAtAll, uint64_t(std::llround(gib * kGib)));
  ret_wrong = say_error(
      400, std::string(field) + ": found " +
               (found == body.end() ? "nothing" : found->dump(-1, ' ', true, json::error_handler_t::replace)) +
               ", expected a number of GiB from 0 to 4294967296");
  return 0;
}

// `limits`: an object with soft_bytes and hard_bytes.
Step say_tenant(const json& salt, const json& limits, uint64_t used_bytes, bool exists) {
  json reply = limits_json(limits);
  if (!exists && reply.size() == 1 && reply["limit_gb"].is_null())
    reply["limit_gb"] = 0.0;  // as those servers say where nothing was set
  reply["cache_salt"] = salt;
  reply["current_usage_gb"] = gib_of(used_bytes);
  reply["exists"] = exists;
  return say(200, reply);
}

Step list_from(const Call& call, uint64_t cursor, json users) {
  json command = command_for(call, "quota.list");
  command["cursor"] = cursor;
  return ask(command, [pool = call.pool, users = std::move(users)](const Answer& answer) mutable {
    if (answer.code != 0) return say_refusal(answer);
    const json page = json_of(answer.text);
    for (const json& row : page["tenants"]) {
      if (!row["listed"]) continue;  // not listed: quota_get() shows the tenant's usage
      json user = limits_json(row);
      user["current_usage_gb"] = gib_of(row["used_bytes"]);
      const json salt = salt_json(name_of(row));
      users[salt.get<std::string>()] = std::move(user);
    }
    if (!page.contains("next")) return say(200, {{"users", std::move(users)}});
    const std::string none;
    const Call again{.pool = pool, .salt = {}, .body = none};
    return list_from(again, page["next"], std::move(users));
  });
}

Step config_reply(const Answer& answer, bool is_change) {
  if (answer.code != 0) return say_refusal(answer);
  json reply = limits_json(json_of(answer.text));
  reply["default_limit_gb"] = reply["limit_gb"];
  reply.erase("limit_gb");
  if (is_change) reply["status"] = "ok";
  return say(200, reply);
}

}  // namespace

Step quota_list(const Call& call) { return list_from(call, 0, json::object()); }

Step quota_get(const Call& call) {
  if (means_nobody(call)) {
    json command = command_for(call, "quota.list");
    command["limit"] = 1;
    return ask(command, [](const Answer& answer) {
      if (answer.code != 0) return say_refusal(answer);
      const json page = json_of(answer.text);
      return say(200, {{"cache_salt", kNobody},
                       {"limit_gb", 0.0},
                       {"current_usage_gb", gib_of(page["others_used_bytes"])},
                       {"exists", false}});
    });
  }
  // The default applies to a tenant that is not listed. Where only listed tenants may store, such a tenant has no limit to
  // show.
  const auto of_stranger = [salt = salt_json(call.salt), mode = command_for(call, "quota.mode")](const json& limits,
                                                                                                 uint64_t used_bytes) {
    return ask(mode, [salt, limits, used_bytes](const Answer& answer) {
      if (answer.code != 0) return say_refusal(answer);
      const bool may_store = !json_of(answer.text)["listed"].get<bool>();
      return say_tenant(salt, may_store ? limits : json{{"soft_bytes", 0}, {"hard_bytes", 0}}, used_bytes, false);
    });
  };
  const auto of_unknown = [of_stranger](const Answer& answer) {
    return answer.code != 0 ? say_refusal(answer) : of_stranger(json_of(answer.text), 0);
  };
  return ask(quota_command(call, "quota.get"), [salt = salt_json(call.salt), of_stranger, of_unknown,
                                                command = command_for(call, "quota.default")](const Answer& answer) {
    if (is_unknown_tenant(answer)) return ask(command, of_unknown);
    if (answer.code != 0) return say_refusal(answer);
    const json row = json_of(answer.text);
    return row["listed"] ? say_tenant(salt, row, row["used_bytes"], true) : of_stranger(row, row["used_bytes"]);
  });
}

Step quota_put(const Call& call) {
  if (means_nobody(call))
    return say_error(400,
                     "cache_salt: found \"_default\", which stands for blocks of no tenant, and those have no limit in "
                     "marud; expected the name of a tenant (one that is named so is %5Fdefault)");
  std::optional<Step> wrong;
  const json body = object_in(call, {"limit_gb", "hard_limit_gb"}, wrong);
  if (wrong) return *wrong;
  json command = quota_command(call, "quota.set");
  command["soft"] = bytes_in(body, "limit_gb", wrong);
  if (!wrong && body.contains("hard_limit_gb")) command["hard"] = bytes_in(body, "hard_limit_gb", wrong);
  if (wrong) return *wrong;
  return ask(command, [salt = salt_json(call.salt)](const Answer& answer) {
    if (answer.code != 0) return say_refusal(answer);
    json reply = limits_json(json_of(answer.text));
    reply["cache_salt"] = salt;
    reply["status"] = "ok";
    return say(200, reply);
  });
}

Step quota_delete(const Call& call) {
  if (means_nobody(call)) return say(200, {{"cache_salt", kNobody}, {"status", "not_found"}});
  return ask(quota_command(call, "quota.remove"), [salt = salt_json(call.salt)](const Answer& answer) {
    if (answer.code != 0 && !is_unknown_tenant(answer)) return say_refusal(answer);
    return say(200, {{"cache_salt", salt}, {"status", answer.code == 0 ? "removed" : "not_found"}});
  });
}

Step quota_config_get(const Call& call) {
  return ask(command_for(call, "quota.default"), [](const Answer& answer) { return config_reply(answer, false); });
}

Step quota_config_put(const Call& call) {
  std::optional<Step> wrong;
  const json body = object_in(call, {"default_limit_gb", "hard_limit_gb"}, wrong);
  if (wrong) return *wrong;
  json command = command_for(call, "quota.default");
  // Unset is exempt.
  if (body.contains("default_limit_gb") && body["default_limit_gb"].is_null())
    command["soft"] = 0;
  else
    command["soft"] = bytes_in(body, "default_limit_gb", wrong);
  if (!wrong && body.contains("hard_limit_gb")) command["hard"] = bytes_in(body, "hard_limit_gb", wrong);
  if (wrong) return *wrong;
  return ask(command, [](const Answer& answer) { return config_reply(answer, true); });
}

}  // namespace maru::daemon::http
