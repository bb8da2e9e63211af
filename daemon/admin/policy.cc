#include "daemon/admin/commands.h"
#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"

#include <cerrno>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

json policy_json(const PoolConfig& config) {
  json options = json::object();
  for (const auto& [name, value] : config.policy_options) options[name] = value;
  return {{"policy", config.policy}, {"policy_options", std::move(options)}};
}

}  // namespace

json show_policy(const HostedPool& hosted) {
  json reply = policy_json(hosted.serving()->config());
  reply["pool"] = hosted.name();
  reply["configured"] = policy_json(hosted.spec().pool);
  reply["built_in"] = json::array();
  for (const std::string_view name : built_in_policies()) reply["built_in"].push_back(std::string(name));
  return reply;
}

json set_policy(const HostedPool& hosted, const json& request, uint64_t now_unix_ms, uint64_t* ret_ticket) {
  if (ret_ticket && *ret_ticket != 0) return hosted.serving()->late_policy(ret_ticket);
  const std::string name = text_in(request, "name");
  if (name.empty()) return refusal(EINVAL, "\"name\" is the name of a policy");
  PolicyOptions options;
  if (const auto found = request.find("options"); found != request.end()) {
    if (!found->is_object() || found->size() > kPolicyOptionsMax)
      return refusal(EINVAL, "\"options\" is an object of at most " + std::to_string(kPolicyOptionsMax) + " options");
    for (const auto& [option, value] : found->items()) {
      if (value.is_structured() || value.is_null())
        return refusal(EINVAL, "option \"" + printable(option) + "\" is a number, true or false, or a text");
      options.emplace_back(option, value.is_string() ? value.get<std::string>() : json_text(value));
    }
  }
  if (hosted.serving()->is_quiesced()) return refusal(EAGAIN, "the pool is being checked at rest: try again");
  const json was = policy_json(hosted.serving()->config());
  if (auto set = hosted.serving()->set_policy(name, options, now_unix_ms, ret_ticket != nullptr); !set)
    return refusal(set.error().code, set.error().doing);
  json reply = {{"pool", hosted.name()},
                {"was", was},
                {"is", policy_json(hosted.serving()->config())},
                {"lasts_until", "marud restarts"},
                {"configured", policy_json(hosted.spec().pool)}};
  return hosted.serving()->when_ordered(std::move(reply), ret_ticket);
}

}  // namespace maru::daemon
