// marudctl policy: which policy a pool evicts by.
#include "daemon/base/json_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/output.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

namespace maru::marudctl {
namespace {

using nlohmann::json;

std::string options_text(const json& options, const char* before_value, const char* between, bool quotes) {
  std::string text;
  for (const auto& [name, value] : options.items()) {
    std::string shown = value.is_string() ? value.get<std::string>() : daemon::json_text(value);
    char* end = nullptr;
    std::strtod(shown.c_str(), &end);
    const bool is_bare = (end != shown.c_str() && *end == 0) || shown == "true" || shown == "false";
    if (quotes && !is_bare) shown = "\"" + shown + "\"";
    text += (text.empty() ? "" : between) + name + before_value + shown;
  }
  return text;
}

// As marud.toml has it.
std::string toml_text(const json& policy) {
  std::string text = "  policy = \"" + policy.value("policy", "") + "\"\n";
  const std::string options = options_text(policy.value("policy_options", json::object()), " = ", ", ", true);
  return options.empty() ? text : text + "  policy_options = { " + options + " }\n";
}

}  // namespace

std::string policy_text(const json& policy) {
  const std::string options = options_text(policy.value("policy_options", json::object()), "=", ", ", false);
  return policy.value("policy", "") + (options.empty() ? "" : " (" + options + ")");
}

int policy_show(const Arguments& arguments) {
  json reply;
  if (const int code = Conversation(arguments).ask({{"command", "policy"}}, reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  json shown = {{"pool", reply.value("pool", "")}, {"policy", policy_text(reply)}};
  shown["configured"] = policy_text(reply.value("configured", json::object()));
  print(fields_text(shown, {"pool", "policy", "configured"}));
  // They would not fit one line beside the heading.
  std::string names;
  for (const json& name : reply.value("built_in", json::array()))
    if (name.is_string()) names += " " + name.get<std::string>();
  print("built in\n " + names + "\n");
  return kExitDone;
}

int policy_set(const Arguments& arguments) {
  json request = {{"command", "policy.set"}, {"name", arguments.operands.front()}, {"options", json::object()}};
  for (const std::string& option : arguments.policy_options) {
    const size_t equals = option.find('=');
    if (equals == 0 || equals == std::string::npos)
      return complain(kExitUsage, "--option: found \"" + option + "\", expected NAME=VALUE");
    request["options"][option.substr(0, equals)] = option.substr(equals + 1);
  }
  json reply;
  if (const int code = Conversation(arguments).ask(std::move(request), reply); code != kExitDone) return code;
  if (arguments.json) return print_json(reply), kExitDone;
  const json was = reply.value("was", json::object()), is = reply.value("is", json::object());
  const json configured = reply.value("configured", json::object());
  print("pool \"" + reply.value("pool", "") + "\": the policy was " + policy_text(was) + " and is " + policy_text(is) +
        "\n");
  if (configured == is)
    print("It is what marud was configured with.\n");
  else
    print("It lasts until marud restarts. To keep it, put into marud.toml:\n" + toml_text(is));
  return kExitDone;
}

}  // namespace maru::marudctl
