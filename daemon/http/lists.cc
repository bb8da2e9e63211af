// Lists that marudctl asks for page by page, whole. They are as long as there are lanes, or places for tenants.
#include "daemon/http/request.h"

#include <nlohmann/json.hpp>

namespace maru::daemon::http {
namespace {

using nlohmann::json;

Step list_from(const json& command, const char* field, json rows) {
  return ask(command, [command, field, rows = std::move(rows)](const Answer& answer) mutable {
    if (answer.code != 0) return say_refusal(answer);
    json part = json::parse(answer.text);
    for (json& row : part[field]) rows.push_back(std::move(row));
    if (!part.contains("next")) return say(200, {{field, std::move(rows)}});
    json next = command;
    next["cursor"] = part["next"];
    return list_from(next, field, std::move(rows));
  });
}

}  // namespace

Step list_clients(const Call& call) { return list_from(command_for(call, "clients"), "clients", json::array()); }

Step list_tenants(const Call& call) { return list_from(command_for(call, "quota.list"), "tenants", json::array()); }

}  // namespace maru::daemon::http
