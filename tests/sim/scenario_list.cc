#include "scenario.h"

#include <cstring>
#include <vector>

namespace maru::sim {

std::span<const Scenario* const> all_scenarios() {
  static const std::vector<const Scenario*> all = [] {
    std::vector<const Scenario*> list;
    for (const auto group :
         {pin_scenarios(),    registry_scenarios(), chain_scenarios(), page_scenarios(),   metadata_scenarios(),
          death_scenarios(),  takeover_scenarios(), grant_scenarios(), tenant_scenarios(), poison_scenarios(),
          host_scenarios(),   power_scenarios(),    room_scenarios(),  epoch_scenarios(),  lane_scenarios(),
          attach_scenarios(), format_scenarios(),   feed_scenarios(),  tier_scenarios(),   wrong_pool_scenarios()}) {
      for (const Scenario& scenario : group) list.push_back(&scenario);
    }
    return list;
  }();
  return all;
}

const Scenario* find_scenario(const char* name) {
  for (const Scenario* scenario : all_scenarios()) {
    if (std::strcmp(scenario->name, name) == 0) return scenario;
  }
  return nullptr;
}

}  // namespace maru::sim
