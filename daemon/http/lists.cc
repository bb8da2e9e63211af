// Lists that marudctl asks for page by page, whole. They are as long as there are lanes, or places for tenants.
#include "daemon/http/request.h"

#include <nlohmann/json.hpp>

namespace maru::daemon::http {
namespace {

using nlohmann::json;

// `change` is made to each row.
Step list_from(const json& command, const char* field, void (*change)(json& row), json rows) {
  return ask(command, [command, field, change, rows = std::move(rows)](const Answer& answer) mutable {
    if (answer.code != 0) return say_refusal(answer);
    json part = json::parse(answer.text);
    for (json& row : part[field]) {
      change(row);
      rows.push_back(std::move(row));
    }
    if (!part.contains("next")) return say(200, {{field, std::move(rows)}});
    json next = command;
    next["cursor"] = part["next"];
    return list_from(next, field, change, std::move(rows));
  });
}

}  // namespace

Step list_clients(const Call& call) {
  return list_from(command_for(call, "clients"), "clients", [](json&) {}, json::array());
}

// Their numbers have 64 bits, of which programs in a browser would lose some: so they are text here.
Step list_tenants(const Call& call) {
  const auto change = [](json& row) { row["id"] = std::to_string(row["id"].get<uint64_t>()); };
  return list_from(command_for(call, "quota.list"), "tenants", change, json::array());
}

}  // namespace maru::daemon::http
