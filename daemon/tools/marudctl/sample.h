// The changes between two looks at marud: the figures of marudctl top. No terminal, no clock, no socket here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

namespace maru::marudctl {

// The account of marud at one moment.
struct Sample {
  uint64_t taken_ns = 0;   // CLOCK_MONOTONIC
  uint64_t answer_ns = 0;  // how long marud took to answer "status"
  nlohmann::json status = nlohmann::json::object();
  nlohmann::json clients = nlohmann::json::array();  // rows
  nlohmann::json tiers = nlohmann::json::object();   // maru-tierd's answer; empty: no maru-tierd
};

// The figures of the time between two samples, as `marudctl top --json` prints them:
//   {"interval_ms", "answer_us", "version", "pid", "uptime_ms", "connections", "pools": [...], "clients": [...],
//    "tiers": [...]}
// Rates end in _per_s. A rate is 0 where a counter has not grown, or began anew with another marud or a new client in the lane.
// Shares end in _percent, and are null without requests. `before` may be empty: then every rate is 0.
nlohmann::json changes(const Sample& before, const Sample& after);

}  // namespace maru::marudctl
