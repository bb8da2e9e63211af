// The users' acts with LoRA adapters in a pool. The deciding thread knows nothing of adapters: the HTTP thread reads the users'
// files.
#include "daemon/base/adapter_files.h"
#include "daemon/base/json_text.h"
#include "daemon/http/request.h"
#include "daemon/metrics/text.h"

#include <nlohmann/json.hpp>

namespace maru::daemon::http {
namespace {

using nlohmann::json;

struct Family {
  const char* name;
  const char* help;
  format::AdapterTotal total;
};
constexpr Family kCounters[] = {
    {"maru_adapter_loads_total", "Forms of adapters made from a file or a tier.", format::kAdapterLoads},
    {"maru_adapter_tier_loads_total", "Of them, forms that a tier had.", format::kAdapterTierLoads},
    {"maru_adapter_loaded_bytes_total", "Bytes that were read for them.", format::kAdapterLoadedBytes},
    {"maru_adapter_promotions_total", "Moves from WARM to HOT.", format::kAdapterPromotions},
    {"maru_adapter_demotions_total", "Moves from HOT to WARM or COLD.", format::kAdapterDemotions},
    {"maru_adapter_evicted_total", "Forms that marud had evicted when they were wanted.", format::kAdapterEvicted},
    {"maru_adapter_waits_total", "Waits for another process's load.", format::kAdapterWaits},
    {"maru_adapter_refusals_total", "Requests refused because a budget was used up.", format::kAdapterRefusals},
    {"maru_adapter_repairs_total", "Forms that a dead process had left unfinished.", format::kAdapterRepairs},
};

// Calls done(users) with the users of all pools. The pools may come in several answers.
Step with_users(json command, json users, std::function<Step(json users)> done) {
  return ask(command, [command, users = std::move(users), done = std::move(done)](const Answer& answer) mutable {
    if (answer.code != 0) return say_refusal(answer);
    const json part = json_of(answer.text);
    for (const json& pool : part.value("pools", json::array())) {
      if (!pool.contains("uuid")) continue;
      for (json& user : adapter_users_of(pool["uuid"].get<std::string>())) {
        user["pool"] = pool.value("name", "");
        users.push_back(std::move(user));
      }
    }
    if (!part.contains("next")) return done(std::move(users));
    command["cursor"] = part["next"];
    return with_users(std::move(command), std::move(users), std::move(done));
  });
}

// Families with these users; empty without a user.
std::string families_of(const json& users) {
  if (users.empty()) return {};
  metrics::TextWriter out;
  const auto for_users = [&](const auto& act) {
    for (const json& user : users)
      act(user["pool"].get<std::string>(), std::to_string(user["uid"].get<uint64_t>()),
          [&user](format::AdapterTotal which) { return user[format::kAdapterTotalNames[which]].get<uint64_t>(); });
  };
  // A sample for each form.
  const auto by_tier = [&](const char* name, const char* type, const char* help,
                           std::initializer_list<std::pair<const char*, format::AdapterTotal>> tiers) {
    out.family(name, type, help);
    for_users([&](const std::string& pool, const std::string& uid, const auto& total) {
      for (const auto& [tier, which] : tiers) out.sample({{"pool", pool}, {"uid", uid}, {"tier", tier}}, total(which));
    });
  };
  by_tier("maru_adapter_acquires_total", "counter", "Uses of adapters, by the form that was resident.",
          {{"hot", format::kAdapterAcquiresHot},
           {"warm", format::kAdapterAcquiresWarm},
           {"cold", format::kAdapterAcquiresCold}});
  by_tier("maru_adapters_resident", "gauge", "Adapters with this form in the pool.",
          {{"hot", format::kAdapterHot}, {"warm", format::kAdapterWarm}});
  by_tier("maru_adapter_resident_bytes", "gauge", "Bytes of the pages of these forms.",
          {{"hot", format::kAdapterHotBytes}, {"warm", format::kAdapterWarmBytes}});
  const auto plain = [&](const char* name, const char* type, const char* help, format::AdapterTotal which) {
    out.family(name, type, help);
    for_users([&](const std::string& pool, const std::string& uid, const auto& total) {
      out.sample({{"pool", pool}, {"uid", uid}}, total(which));
    });
  };
  plain("maru_adapters_registered", "gauge", "Adapters in the user's register.", format::kAdapterRegistered);
  for (const Family& family : kCounters) plain(family.name, "counter", family.help, family.total);
  return out.take();
}

}  // namespace

Step list_adapters(const Call& call) {
  return with_users(command_for(call, "status"), json::array(),
                    [](json users) { return say(200, {{"adapters", std::move(users)}}); });
}

Step add_adapter_metrics(std::string text) {
  return with_users({{"command", "status"}}, json::array(), [text = std::move(text)](const json& users) -> Step {
    return {
        {}, {}, {.status = 200, .body = text + families_of(users), .content_type = metrics::kContentType, .allow = {}}};
  });
}

}  // namespace maru::daemon::http
