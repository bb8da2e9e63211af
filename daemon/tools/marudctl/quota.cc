// marudctl quota: the usage of tenants, and their limits.
#include "daemon/base/size_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/number_text.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/tools/marudctl/reply_fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace maru::marudctl {
namespace {

using nlohmann::json;

// The limit of a tenant that may keep nothing: 0 would be no limit, and no block has less.
constexpr uint64_t kNothingAtAll = 1;  // bytes

// A size, "none" for no limit, "nothing" for a limit that leaves nothing, "default" for the pool's. False: other text.
bool read_limit(const std::optional<std::string>& text, const char* name, json& request) {
  if (!text) return true;
  if (*text == "default") {
    request[name] = nullptr;
    return true;
  }
  const auto bytes = *text == "none"      ? std::optional<uint64_t>(0)
                     : *text == "nothing" ? std::optional<uint64_t>(kNothingAtAll)
                                          : daemon::parse_size(*text);
  if (!bytes) return false;
  request[name] = *bytes;
  return true;
}

int read_limits(const Arguments& arguments, json& request) {
  for (const auto& [text, name] : {std::pair{&arguments.soft, "soft"}, {&arguments.hard, "hard"}})
    if (!read_limit(*text, name, request))
      return complain(
          kExitUsage,
          std::string("--") + name + ": found \"" + **text +
              "\", expected a size up to 4194304TiB such as 10GiB, or \"none\", \"nothing\" or \"default\"");
  return kExitDone;
}

// A name as marud knows it, or id:NUMBER for a tenant without a name that marud was told.
int read_tenant(const Arguments& arguments, json& request) {
  const std::string& text = arguments.operands.front();
  if (!text.starts_with("id:")) {
    request["tenant"] = text;
    return kExitDone;
  }
  if (!read_number(text.substr(3), 1, UINT64_MAX))
    return complain(kExitUsage, number_mistake("TENANT", text, 1, UINT64_MAX) + " after id:, as quota list shows it");
  request["id"] = text.substr(3);
  return kExitDone;
}

std::string limit_text(uint64_t bytes) { return bytes == kNothingAtAll ? "nothing" : daemon::size_text(bytes); }

// The limits of a tenant itself: null is that the pool's default applies.
json own_limit_shown(const json& limit) {
  if (limit.is_null()) return "default";
  return json(limit == 0 ? "none" : limit_text(limit.get<uint64_t>()));
}

// An absent limit is shown as "-". The share is the share of the limit that the tenant reaches first.
json for_people(const json& row) {
  const uint64_t used = row.value("used_bytes", uint64_t{0});
  json shown = row;
  const json soft = limit_shown(row, "soft_bytes"), hard = limit_shown(row, "hard_bytes");
  shown["soft_bytes"] = soft == kNothingAtAll ? json("nothing") : soft;
  shown["hard_bytes"] = hard == kNothingAtAll ? json("nothing") : hard;
  if (row.value("tenant", json()).is_null()) shown["tenant"] = tenant_text({{"tenant", row.value("id", json())}});
  shown.erase("id");
  for (const char* name : {"own_soft_bytes", "own_hard_bytes"})
    if (row.contains(name)) shown[name] = own_limit_shown(row[name]);
  for (const char* name : {"soft_bytes", "hard_bytes"})
    if (row.contains("configured")) shown["configured"][name] = own_limit_shown(row["configured"].value(name, json()));
  const uint64_t limit =
      std::min(soft.is_null() ? UINT64_MAX : soft.get<uint64_t>(), hard.is_null() ? UINT64_MAX : hard.get<uint64_t>());
  const bool has_share = limit != UINT64_MAX && limit != kNothingAtAll;
  shown["share_percent"] = has_share ? json(uint64_t(double(used) * 100 / double(limit))) : json(nullptr);
  return shown;
}

std::string limits_text(const json& limits) {
  const auto text = [&](const char* name) {
    const json shown = limit_shown(limits, name);
    return shown.is_null() ? std::string("no limit") : limit_text(shown.get<uint64_t>());
  };
  return "soft " + text("soft_bytes") + ", hard " + text("hard_bytes");
}

// marud lists them in the order of its table, so all are asked for, and cut when they are in order. Returns how many went.
size_t keep_who_uses_most(json& rows, uint64_t limit) {
  std::stable_sort(rows.begin(), rows.end(),
                   [](const json& a, const json& b) { return number(a, "used_bytes") > number(b, "used_bytes"); });
  const size_t left_out = rows.size() > limit ? rows.size() - limit : 0;
  rows.erase(rows.end() - ptrdiff_t(left_out), rows.end());
  return left_out;
}

int ask_about_tenant(const Arguments& arguments, const char* command) {
  json request = {{"command", command}}, reply;
  if (const int code = read_tenant(arguments, request); code != kExitDone) return code;
  if (const int code = read_limits(arguments, request); code != kExitDone) return code;
  if (const int code = Conversation(arguments).ask(std::move(request), reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  if (reply.contains("used_bytes")) reply = for_people(reply);
  print(fields_text(reply, {"tenant", "used_bytes", "soft_bytes", "hard_bytes", "share_percent"}, line_width()));
  return kExitDone;
}

}  // namespace

int quota_set(const Arguments& arguments) {
  if (!arguments.soft && !arguments.hard)
    return complain(kExitUsage, "quota set: found no limit, expected --soft SIZE, --hard SIZE or both");
  return ask_about_tenant(arguments, "quota.set");
}

int quota_get(const Arguments& arguments) { return ask_about_tenant(arguments, "quota.get"); }

int quota_remove(const Arguments& arguments) { return ask_about_tenant(arguments, "quota.remove"); }

int quota_list(const Arguments& arguments) {
  json reply;
  if (const int code =
          Conversation(arguments).ask_for_list({{"command", "quota.list"}}, "tenants", std::nullopt, reply);
      code != kExitDone)
    return code;
  const size_t left_out = keep_who_uses_most(reply["tenants"], arguments.limit.value_or(UINT64_MAX));
  if (left_out != 0) reply["left_out"] = left_out;
  if (arguments.json) return print_json(reply), kExitDone;
  json rows = json::array();
  for (const json& row : reply["tenants"]) rows.push_back(for_people(row));
  print(table_text(rows,
                   {"tenant", "used_bytes", "soft_bytes", "hard_bytes", "share_percent", "over", "refusals", "listed"},
                   "no tenant is known", line_width()));
  if (left_out != 0) print(kMoreText);
  print("default: " + limits_text(reply.value("default", json::object())) +
        "; mode: " + (reply.value("listed_only", false) ? "listed" : "any") + "\n");
  if (const uint64_t others = reply.value("others_used_bytes", uint64_t{0}); others != 0)
    print("blocks of no tenant, and of tenants without a place in the table: " + daemon::size_text(others) + "\n");
  return kExitDone;
}

int quota_default(const Arguments& arguments) {
  json request = {{"command", "quota.default"}}, reply;
  if (const int code = read_limits(arguments, request); code != kExitDone) return code;
  if (const int code = Conversation(arguments).ask(std::move(request), reply); code != kExitDone) return code;
  if (arguments.json)
    print_json(reply);
  else
    print("default: " + limits_text(reply) + " (set by " + reply.value("set_by", "?") + ")\n");
  return kExitDone;
}

int quota_mode(const Arguments& arguments) {
  json request = {{"command", "quota.mode"}}, reply;
  if (!arguments.operands.empty()) {
    const std::string& mode = arguments.operands.front();
    if (mode != "any" && mode != "listed")
      return complain(kExitUsage, "quota mode: found \"" + mode + "\", expected any or listed");
    request["listed"] = mode == "listed";
  }
  if (const int code = Conversation(arguments).ask(std::move(request), reply); code != kExitDone) return code;
  if (arguments.json)
    print_json(reply);
  else
    print(std::string("mode: ") + (reply.value("listed", false) ? "listed" : "any") + " (set by " +
          reply.value("set_by", "?") + ")\n");
  return kExitDone;
}

}  // namespace maru::marudctl
