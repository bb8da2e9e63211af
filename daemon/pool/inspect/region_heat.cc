#include "daemon/pool/inspect/region_heat.h"

#include <algorithm>
#include <cmath>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kCellsMax = 1024;  // of the picture; a cell of a larger pool stands for several regions
constexpr size_t kOwnersMax = 100;    // named: the clients that rent most
constexpr uint64_t kCoolPauseMs = 1000;
constexpr double kHalfLifeMs = 8000;

// One letter for each state, in their order; 'h' is a region of another host.
constexpr char kLetters[] = {'u', 'r', 'o', 'd', 'h'};
constexpr size_t kRentedKind = 1, kForeignKind = 4;
static_assert(size_t(RegionState::kRented) == kRentedKind && size_t(RegionState::kDraining) + 1 == kForeignKind);

size_t kind_of(const RegionEntry& entry) {
  return entry.is_foreign ? kForeignKind : std::min(size_t(entry.state), kForeignKind - 1);
}

struct Owner {
  LaneId id;
  uint64_t regions = 0, used_pages = 0;
};

}  // namespace

void RegionHeat::cool() {
  if (core_.now_ms >= last_cooling_ms_ && core_.now_ms - last_cooling_ms_ < kCoolPauseMs) return;
  const double passed_ms =
      core_.now_ms > last_cooling_ms_ ? double(core_.now_ms - last_cooling_ms_) : double(kCoolPauseMs);
  const auto stays = float(std::exp2(-passed_ms / kHalfLifeMs));
  for (RegionEntry& entry : regions_) entry.heat *= stays;
  last_cooling_ms_ = core_.now_ms;
}

// {"regions", "region_pages", "region_bytes", "regions_per_cell", "owners": [{lane, pid, regions, used_pages}],
// "owners_left_out", "cells": {"states": "one letter a cell", "owner": [index in owners, or null], "used_pages": [...],
// "uses_per_s": [...], "idle_s": [seconds since the last use, or null]}}. For a cell with several regions: the state and the
// owner are those of its largest share; pages and uses count all of them; the time counts since the last use of any.
json RegionHeat::map() const {
  std::vector<Owner> owners;
  std::vector<uint32_t> place(core_.region.lanes(), 0);  // in owners, + 1
  for (const RegionEntry& entry : regions_) {
    if (entry.state != RegionState::kRented || entry.is_foreign || entry.owner.lane >= place.size()) continue;
    uint32_t& at = place[entry.owner.lane];
    if (at == 0) {
      owners.push_back({entry.owner, 0, 0});
      at = uint32_t(owners.size());
    }
    ++owners[at - 1].regions;
    owners[at - 1].used_pages += entry.counted_pages;
  }
  std::stable_sort(owners.begin(), owners.end(), [](const Owner& a, const Owner& b) { return a.regions > b.regions; });
  std::fill(place.begin(), place.end(), 0);
  json named = json::array();
  for (size_t i = 0; i < std::min(owners.size(), kOwnersMax); ++i) {
    const uint32_t lane = owners[i].id.lane;
    place[lane] = uint32_t(i) + 1;
    named.push_back({{"lane", lane},
                     {"pid", int64_t(lanes_.records[lane].who.pid)},
                     {"regions", owners[i].regions},
                     {"used_pages", owners[i].used_pages}});
  }

  const uint64_t per_cell = std::max<uint64_t>(1, (regions_.size() + kCellsMax - 1) / kCellsMax);
  const uint64_t zero_ms = core_.region.header().created_unix_ms;
  std::string states;
  json owner = json::array(), used = json::array(), uses = json::array(), idle = json::array();
  // For a cell's regions: their owner, 0 for an owner without a name here, or behind the owners the kinds of regions.
  std::array<uint32_t, kOwnersMax + 1 + std::size(kLetters)> votes;
  for (uint64_t first = 0; first < regions_.size(); first += per_cell) {
    votes = {};
    uint64_t used_pages = 0, used_tick = 0;
    double heat = 0;
    for (uint64_t i = first; i < std::min<uint64_t>(first + per_cell, regions_.size()); ++i) {
      const RegionEntry& entry = regions_[i];
      const size_t kind = kind_of(entry);
      const bool has_owner = kind == kRentedKind && entry.owner.lane < place.size();
      ++votes[has_owner ? place[entry.owner.lane] : kOwnersMax + 1 + kind];
      used_pages += entry.counted_pages;
      heat += double(entry.heat);
      used_tick = std::max(used_tick, entry.used_tick);
    }
    const auto most = size_t(std::max_element(votes.begin(), votes.end()) - votes.begin());
    states += most <= kOwnersMax ? kLetters[kRentedKind] : kLetters[most - kOwnersMax - 1];
    owner.push_back(most == 0 || most > kOwnersMax ? json(nullptr) : json(most - 1));
    used.push_back(used_pages);
    uses.push_back(std::round(heat * std::log(2.0) / (kHalfLifeMs / 1000) * 10) / 10);
    const uint64_t used_ms = zero_ms + used_tick;
    idle.push_back(used_tick == 0 ? json(nullptr) : json(core_.now_ms > used_ms ? (core_.now_ms - used_ms) / 1000 : 0));
  }
  return {{"regions", regions_.size()},
          {"region_pages", core_.region.region_pages()},
          {"region_bytes", core_.region.region_pages() * core_.region.page_bytes()},
          {"regions_per_cell", per_cell},
          {"owners", std::move(named)},
          {"owners_left_out", owners.size() - std::min(owners.size(), kOwnersMax)},
          {"cells",
           {{"states", std::move(states)},
            {"owner", std::move(owner)},
            {"used_pages", std::move(used)},
            {"uses_per_s", std::move(uses)},
            {"idle_s", std::move(idle)}}}};
}

}  // namespace maru::daemon
