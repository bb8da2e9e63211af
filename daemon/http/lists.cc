// Lists that marudctl asks for page by page, whole. They are as long as there are lanes, or places for tenants.
#include "daemon/base/json_text.h"
#include "daemon/http/request.h"

#include <nlohmann/json.hpp>

namespace maru::daemon::http {
namespace {

using nlohmann::json;

// `whole`: an object with the rows so far in `field`. The first answer brings the field `beside`.
Step list_from(const json& command, const char* field, const char* beside, json whole) {
  return ask(command, [command, field, beside, whole = std::move(whole)](const Answer& answer) mutable {
    if (answer.code != 0) return say_refusal(answer);
    json part = json_of(answer.text);
    for (json& row : part[field]) whole[field].push_back(std::move(row));
    if (beside && part.contains(beside)) whole[beside] = part[beside];
    if (!part.contains("next")) return say(200, whole);
    json next = command;
    next["cursor"] = part["next"];
    return list_from(next, field, beside, std::move(whole));
  });
}

}  // namespace

Step list_clients(const Call& call) {
  return list_from(command_for(call, "clients"), "clients", nullptr, {{"clients", json::array()}});
}

Step list_tenants(const Call& call) {
  return list_from(command_for(call, "quota.list"), "tenants", "others_used_bytes", {{"tenants", json::array()}});
}

}  // namespace maru::daemon::http
