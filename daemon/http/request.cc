#include "daemon/http/request.h"

#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/http/page/page.h"
#include "daemon/metrics/text.h"
#include "daemon/version.h"

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <nlohmann/json.hpp>

namespace maru::daemon::http {
namespace {

using nlohmann::json;

constexpr int kDepthMax = 8;

int status_of(int code) {
  switch (code) {
    case EACCES:
    case EPERM: return 403;
    case ENOENT:
    case EOPNOTSUPP: return 404;
    case EAGAIN:
    case EIO:
    case EHWPOISON: return 503;
    case ENOSPC: return 409;
    case EMSGSIZE: return 500;
    default: return 400;
  }
}

// -- the plain routes -------------------------------------------------------------------------------------------------

// The reply is marud's answer, unchanged.
Step as_it_is(const Answer& answer) {
  if (answer.code != 0) return say_refusal(answer);
  return {{}, {}, {.status = 200, .body = answer.text + "\n", .allow = {}}};
}

Step ask_kind(Question::Kind kind, std::function<Step(const Answer&)> then) {
  Question question;
  question.kind = kind;
  return {std::move(question), std::move(then), {}};
}

Step healthcheck(const Call&) {
  return ask_kind(Question::Kind::kHealth, [](const Answer& answer) {
    if (answer.code != 0) return say_refusal(answer);
    const json health = json_of(answer.text);
    return say(health["status"] == "unhealthy" ? 503 : 200, health);
  });
}

// All pools, which may be more than one answer has room for.
Step status_from(json command, json pools) {
  Step step = ask(command, [command, pools = std::move(pools)](const Answer& answer) mutable {
    if (answer.code != 0) return say_refusal(answer);
    json part = json_of(answer.text);
    for (json& pool : part["pools"]) pools.push_back(std::move(pool));
    if (part.contains("next")) {
      command["cursor"] = part["next"];
      return status_from(std::move(command), std::move(pools));
    }
    part["pools"] = std::move(pools);
    return say(200, part);
  });
  step.question->kind = Question::Kind::kStatus;
  return step;
}
Step status(const Call& call) { return status_from(command_for(call, "status"), json::array()); }

// The text is made here, so that the deciding thread only takes the numbers.
Step metrics_text(const Call&) {
  return ask_kind(Question::Kind::kMetrics, [](const Answer& answer) -> Step {
    if (answer.code != 0 || !answer.metrics) return say_refusal(answer);
    return add_adapter_metrics(metrics::text_of(*answer.metrics));
  });
}
Step map(const Call& call) { return ask(command_for(call, "map"), as_it_is); }
Step configuration(const Call&) { return ask_kind(Question::Kind::kConfiguration, as_it_is); }
Step policy(const Call& call) { return ask(command_for(call, "policy"), as_it_is); }

Step put_policy(const Call& call) {
  std::optional<Step> wrong;
  const json body = object_in(call, {"name", "options"}, wrong);
  if (wrong) return *wrong;
  if (!body.contains("name") || !body["name"].is_string())
    return say_error(400, "name: found " + std::string(body.contains("name") ? body["name"].type_name() : "nothing") +
                              ", expected the name of a policy; GET /policy lists them");
  json command = command_for(call, "policy.set");
  command.update(body);
  return ask(command, as_it_is);
}

// Clears each pool in turn, or the named pool. Among several, a pool that was removed meanwhile has no block to clear.
Step clear_next(std::vector<std::string> names, json done, bool is_named) {
  if (names.empty()) return say(200, {{"status", "ok"}, {"pools", std::move(done)}});
  const std::string name = names.back();
  names.pop_back();
  return ask({{"command", "clear"}, {"pool", name}},
             [name, names = std::move(names), done = std::move(done), is_named](const Answer& answer) mutable {
               if (answer.code == ENOENT && !is_named) return clear_next(std::move(names), std::move(done), false);
               if (answer.code != 0) return say_refusal(answer);
               json row = json_of(answer.text);
               row["pool"] = name;
               done.push_back(std::move(row));
               return clear_next(std::move(names), std::move(done), is_named);
             });
}

Step clear_cache(const Call& call) {
  if (!call.body.empty()) {
    std::optional<Step> wrong;
    const json body = object_in(call, {"force"}, wrong);
    if (wrong) return *wrong;
    if (body.contains("force") && body["force"] != false)
      return say_error(400,
                       "force: found " + printable(json_text(body["force"])) +
                           ", expected false or nothing: marud never frees a block that somebody holds; its key goes "
                           "now and its memory when it is let go");
  }
  if (!call.pool.empty()) return clear_next({call.pool}, json::array(), true);
  return ask_kind(Question::Kind::kHealth, [](const Answer& answer) {
    if (answer.code != 0) return say_refusal(answer);
    std::vector<std::string> names;
    const json health = json_of(answer.text);
    for (const json& pool : health["pools"])
      if (pool.contains("audit_findings"))  // it has blocks to read, also while it is drained or left
        names.insert(names.begin(), pool["name"].get<std::string>());
    return clear_next(std::move(names), json::array(), false);
  });
}

// -- the page for browsers --------------------------------------------------------------------------------------------

Step say_page(std::string_view text, const char* content_type) {
  return {
      {}, {}, {.status = 200, .body = std::string(text), .content_type = content_type, .allow = {}, .is_page = true}};
}
Step page_style(const Call&) { return say_page(kPageStyle, "text/css; charset=utf-8"); }
Step page_drawing(const Call&) { return say_page(kPageDrawing, "text/javascript; charset=utf-8"); }
Step page_script(const Call&) { return say_page(kPageScript, "text/javascript; charset=utf-8"); }

bool wants_html(const Request& request) { return request.accept.find("text/html") != std::string::npos; }

// -- the table --------------------------------------------------------------------------------------------------------

enum class Body : uint8_t { kNone, kMaybe, kObject };

Step list_paths(const Call&);

// A path's part in braces takes any one part of the target. A path without braces comes before a path with braces. An escape in
// the target's part avoids this: so a client can reach a tenant that has the name of such a path.
struct Route {
  const char* method;
  const char* path;
  Body body;
  bool has_pool;
  Step (*begin)(const Call&);
};

constexpr Route kRoutes[] = {
    {"GET", "/", Body::kNone, false, list_paths},
    {"GET", "/healthcheck", Body::kNone, false, healthcheck},
    {"GET", "/status", Body::kNone, true, status},
    {"GET", "/map", Body::kNone, true, map},
    {"GET", "/clients", Body::kNone, true, list_clients},
    {"GET", "/adapters", Body::kNone, true, list_adapters},
    {"GET", "/tenants", Body::kNone, true, list_tenants},
    {"GET", "/page.css", Body::kNone, false, page_style},
    {"GET", "/page.js", Body::kNone, false, page_script},
    {"GET", "/page_draw.js", Body::kNone, false, page_drawing},
    {"GET", "/conf", Body::kNone, false, configuration},
    {"GET", "/metrics", Body::kNone, false, metrics_text},
    {"POST", "/clear-cache", Body::kMaybe, true, clear_cache},
    {"POST", "/check_blocks", Body::kObject, true, check_blocks},
    {"GET", "/policy", Body::kNone, true, policy},
    {"PUT", "/policy", Body::kObject, true, put_policy},
    {"GET", "/quota", Body::kNone, true, quota_list},
    {"GET", "/quota/config", Body::kNone, true, quota_config_get},
    {"PUT", "/quota/config", Body::kObject, true, quota_config_put},
    {"GET", "/quota/{cache_salt}", Body::kNone, true, quota_get},
    {"PUT", "/quota/{cache_salt}", Body::kObject, true, quota_put},
    {"DELETE", "/quota/{cache_salt}", Body::kNone, true, quota_delete},
    {"GET", "/api/quota", Body::kNone, true, quota_list},
    {"GET", "/api/quota/{cache_salt}", Body::kNone, true, quota_get},
    {"PUT", "/api/quota/{cache_salt}", Body::kObject, true, quota_put},
    {"DELETE", "/api/quota/{cache_salt}", Body::kNone, true, quota_delete},
};

// A browser gets the page, and any other client the list of paths.
Step list_paths(const Call& call) {
  if (call.wants_html) return say_page(kPageText, "text/html; charset=utf-8");
  json paths = json::object();
  for (const Route& route : kRoutes) paths[route.path].push_back(route.method);
  return say(200, {{"name", "marud"}, {"version", kVersionText}, {"paths", std::move(paths)}});
}

constexpr std::string_view kSaltPart = "{cache_salt}";

// Whether the path of a target fits this pattern; `salt` becomes the part in braces, still encoded.
bool fits(std::string_view path, std::string_view pattern, std::string_view& salt) {
  if (!pattern.ends_with(kSaltPart)) return path == pattern;
  pattern.remove_suffix(kSaltPart.size());
  if (!path.starts_with(pattern)) return false;
  salt = path.substr(pattern.size());
  return !salt.empty() && salt.find('/') == std::string_view::npos;
}

std::string in_quotes(std::string_view text) { return "\"" + printable(text) + "\""; }

// Reads "pool=NAME" or nothing into `call`. Returns the mistake in the query; empty: none.
std::string read_query(std::string_view query, const Route& route, Call& call) {
  const std::string expected = route.has_pool ? "expected at most pool=NAME" : "expected none";
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), item.size() + 1));
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    const auto name = decoded(item.substr(0, equals));
    const auto value = decoded(equals == std::string_view::npos ? "" : item.substr(equals + 1));
    if (!name || !value) return "query: found the broken percent-encoding " + in_quotes(item);
    if (!route.has_pool || *name != "pool") return "query: found " + in_quotes(*name) + ", " + expected;
    if (value->empty()) return "pool: found nothing, expected the name of a pool";
    if (!call.pool.empty()) return "pool: found it twice, expected one pool";
    call.pool = *value;
  }
  return {};
}

}  // namespace

Step say(int status, const json& body) {
  return {{}, {}, {.status = status, .body = json_text(body) + "\n", .allow = {}}};
}

Step say_error(int status, const std::string& text) { return say(status, {{"error", text}}); }

Step say_refusal(const Answer& answer) {
  Step step = say_error(status_of(answer.code), answer.text);
  if (step.reply.status == 503) step.reply.retry_after = 1;
  return step;
}

Step ask(const json& command, std::function<Step(const Answer&)> then) {
  Question question;
  question.command = json_text(command);
  return {std::move(question), std::move(then), {}};
}

json command_for(const Call& call, const char* command) {
  json out = {{"command", command}};
  if (!call.pool.empty()) out["pool"] = call.pool;
  return out;
}

json object_in(const Call& call, std::initializer_list<const char*> fields, std::optional<Step>& ret_wrong) {
  std::string expected;
  for (const char* field : fields) expected += (expected.empty() ? "" : ", ") + std::string(field);
  expected = "expected a JSON object with " + expected;
  bool too_deep = false;
  json body = json_of(call.body, kDepthMax, too_deep);
  if (call.body.empty())
    ret_wrong = say_error(400, "body: found nothing, " + expected);
  else if (too_deep)
    ret_wrong = say_error(400, "body: found JSON that is nested too deeply, " + expected);
  else if (body.is_discarded())
    ret_wrong = say_error(400, "body: found what is not JSON, " + in_quotes(call.body.substr(0, 80)) + ", " + expected);
  else if (!body.is_object())
    ret_wrong = say_error(400, "body: found " + std::string(body.type_name()) + ", " + expected);
  if (ret_wrong) return {};
  for (const auto& [name, value] : body.items())
    if (std::none_of(fields.begin(), fields.end(), [&](const char* field) { return name == field; })) {
      ret_wrong = say_error(400, "body: found the unknown field " + in_quotes(name) + ", " + expected);
      return {};
    }
  return body;
}

std::optional<std::string> decoded(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size() || digit(text[i + 1]) < 0 || digit(text[i + 2]) < 0) return std::nullopt;
    out += char(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  return out;
}

bool is_for_page(const Request& request) {
  const std::string_view path = std::string_view(request.target).substr(0, request.target.find('?'));
  if (request.method != "GET" && request.method != "HEAD") return false;
  return path == "/page.css" || path == "/page.js" || path == "/page_draw.js" || (path == "/" && wants_html(request));
}

Step begin(const Request& request) {
  if (request.target.size() > kTargetBytesMax)
    return say_error(414, "found a path of " + std::to_string(request.target.size()) + " bytes, expected at most " +
                              std::to_string(kTargetBytesMax));
  const std::string_view target = request.target;
  const size_t question_mark = target.find('?');
  const std::string_view path = target.substr(0, question_mark);
  const std::string_view query = question_mark == std::string_view::npos ? "" : target.substr(question_mark + 1);
  // HEAD is GET without the body. libmicrohttpd leaves the body out.
  const std::string_view method = request.method == "HEAD" ? "GET" : std::string_view(request.method);

  const Route* found = nullptr;
  std::string_view salt;
  std::vector<std::string> allowed;
  std::string_view fitting;  // the first path that fits: all methods are looked for there
  for (const Route& route : kRoutes) {
    std::string_view part;
    if (!fits(path, route.path, part)) continue;
    if (fitting.empty()) fitting = route.path;
    if (fitting != route.path) continue;
    allowed.emplace_back(route.method);
    if (method != route.method) continue;
    found = &route;
    salt = part;
  }
  if (fitting.empty())
    return say_error(404, "found the path " + in_quotes(path) + ", expected one of those that GET / lists");
  if (!found) {
    std::string allow;
    for (const std::string& one : allowed) allow += (allow.empty() ? "" : ", ") + one + (one == "GET" ? ", HEAD" : "");
    Step step = say_error(405, in_quotes(request.method) + " is nothing that can be done with " + in_quotes(path) +
                                   ", expected one of " + allow);
    step.reply.allow = allow;
    return step;
  }

  Call call{.pool = {}, .salt = {}, .body = request.body};
  if (const std::string wrong = read_query(query, *found, call); !wrong.empty()) return say_error(400, wrong);
  const auto name = decoded(salt);
  if (!name) return say_error(400, "path: found the broken percent-encoding " + in_quotes(salt));
  call.salt = *name;
  call.salt_is_plain = salt.find('%') == std::string_view::npos;
  call.wants_html = wants_html(request);
  if (found->body == Body::kNone && !request.body.empty())
    return say_error(
        400, "body: found " + std::to_string(request.body.size()) + " bytes, expected none with " + request.method);
  return found->begin(call);
}

}  // namespace maru::daemon::http
