// Traces for the tests: the shipped ones, and some made on the spot.
#pragma once

#include "daemon/tools/policy_sim/workload.h"
#include "daemon/tools/trace/trace.h"

#include <cstdlib>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace maru::policy_sim {

inline std::string data_file(const std::string& name) {
  const char* folder = std::getenv("MARU_DATA");
  EXPECT_NE(folder, nullptr) << "MARU_DATA names the folder tests/data";
  return std::string(folder ? folder : ".") + "/" + name;
}

inline trace::Trace conversation(uint64_t requests_max = 0) {
  const Result<trace::Trace> trace =
      trace::read_trace(data_file("mooncake_conversation.jsonl"), requests_max, trace::Times::kRequired);
  EXPECT_TRUE(trace) << trace.error().text();
  return trace ? *trace : trace::Trace{};
}

// Requests a second apart.
inline trace::Trace trace_of(const std::vector<std::vector<uint64_t>>& requests) {
  trace::Trace trace;
  for (const auto& ids : requests) {
    trace.requests.push_back({ids, 1000 * (trace.requests.size() + 1)});
    trace.block_references += ids.size();
  }
  return trace;
}

}  // namespace maru::policy_sim
