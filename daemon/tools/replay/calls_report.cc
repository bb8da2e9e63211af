#include "daemon/tools/replay/calls_report.h"

#include <algorithm>
#include <cstdio>

namespace maru::replay {
namespace {

const char* name_of(size_t operation) {
  switch (format::Recorded(operation)) {
    case format::Recorded::kExists: return "exists";
    case format::Recorded::kMatch: return "match";
    case format::Recorded::kRetrieve: return "retrieve";
    case format::Recorded::kPin: return "pin";
    case format::Recorded::kStore: return "store";
    case format::Recorded::kStoreChain: return "store_chain";
    case format::Recorded::kDelete: return "delete";
    case format::Recorded::kDeleteTree: return "delete_tree";
    default: return "other";
  }
}

std::string line(const char* form, auto... values) {
  char text[256];
  std::snprintf(text, sizeof(text), form, values...);
  return text;
}

}  // namespace

bool has_new_errors(const CallReport& report) {
  return std::any_of(report.of.begin(), report.of.end(), [](const auto& of) { return of.errors > of.recorded_errors; });
}

std::string calls_text(const Recordings& recordings, const CallReport& report) {
  std::string text =
      line("Recorded   %zu calls of %u threads in %.3f s\nReplayed   in %.3f s\n", recordings.calls.size(),
           recordings.actors, double(report.recorded_ns) / 1e9, double(report.took_ns) / 1e9);
  if (recordings.torn_bytes + recordings.dropped + recordings.parents_unknown != 0)
    text +=
        line("Missing    %llu bytes of records of processes that died, %llu calls beyond a full file, %llu parents\n",
             (unsigned long long)recordings.torn_bytes, (unsigned long long)recordings.dropped,
             (unsigned long long)recordings.parents_unknown);
  text += "\n  operation       calls  same result     keys  found then   found now  errors   p50 us   p99 us\n";
  for (size_t i = 0; i < report.of.size(); ++i) {
    const CallReport::OfOperation& of = report.of[i];
    if (of.calls == 0) continue;
    text += line("  %-12s %8llu %12llu %8llu %11llu %11llu %7llu %8.1f %8.1f\n", name_of(i),
                 (unsigned long long)of.calls, (unsigned long long)of.same, (unsigned long long)of.keys,
                 (unsigned long long)of.recorded_found, (unsigned long long)of.found, (unsigned long long)of.errors,
                 double(of.latency.quantile_ns(0.5)) / 1e3, double(of.latency.quantile_ns(0.99)) / 1e3);
  }
  return text;
}

nlohmann::json calls_json(const Recordings& recordings, const CallReport& report) {
  nlohmann::json operations = nlohmann::json::object();
  for (size_t i = 0; i < report.of.size(); ++i) {
    const CallReport::OfOperation& of = report.of[i];
    if (of.calls == 0) continue;
    operations[name_of(i)] = {{"calls", of.calls},
                              {"same_result", of.same},
                              {"keys", of.keys},
                              {"recorded_found", of.recorded_found},
                              {"found", of.found},
                              {"errors", of.errors},
                              {"recorded_errors", of.recorded_errors},
                              {"p50_ns", of.latency.quantile_ns(0.5)},
                              {"p99_ns", of.latency.quantile_ns(0.99)}};
  }
  return {{"recorded",
           {{"calls", recordings.calls.size()},
            {"threads", recordings.actors},
            {"ns", report.recorded_ns},
            {"torn_bytes", recordings.torn_bytes},
            {"dropped", recordings.dropped},
            {"parents_unknown", recordings.parents_unknown},
            {"unknown", recordings.unknown}}},
          {"replayed_ns", report.took_ns},
          {"operations", operations}};
}

}  // namespace maru::replay
