// The scenarios, each a small play on one control region with what must be true in it. One file per group.
#pragma once

#include "engine.h"

#include <cstddef>
#include <span>

namespace maru::sim {

std::span<const Scenario> pin_scenarios();
std::span<const Scenario> registry_scenarios();
std::span<const Scenario> chain_scenarios();
std::span<const Scenario> page_scenarios();
std::span<const Scenario> metadata_scenarios();
std::span<const Scenario> death_scenarios();
std::span<const Scenario> takeover_scenarios();
std::span<const Scenario> grant_scenarios();
std::span<const Scenario> tenant_scenarios();
std::span<const Scenario> poison_scenarios();
std::span<const Scenario> host_scenarios();
std::span<const Scenario> power_scenarios();
std::span<const Scenario> room_scenarios();
std::span<const Scenario> epoch_scenarios();
std::span<const Scenario> lane_scenarios();
std::span<const Scenario> attach_scenarios();
std::span<const Scenario> format_scenarios();
std::span<const Scenario> feed_scenarios();
std::span<const Scenario> tier_scenarios();
std::span<const Scenario> wrong_pool_scenarios();

// All of them, in the order in which they are listed.
std::span<const Scenario* const> all_scenarios();
const Scenario* find_scenario(const char* name);

}  // namespace maru::sim
