#include "tests/bench/suite.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>

namespace maru::bench {

namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

double median(std::vector<double> samples) {
  if (samples.empty()) return NAN;
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  return samples.size() % 2 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += (c >= 0 && c < ' ') ? ' ' : c;
  }
  return out + '"';
}

std::string number(double value) {
  char text[64];
  std::snprintf(text, sizeof text, std::fabs(value) >= 100 ? "%.1f" : "%.4g", value);
  return std::isfinite(value) ? text : "null";
}

bool is_socket_peer(const std::string& name) { return name == "peer_memcached" || name == "peer_redis"; }

struct Outcome {
  double value = NAN;
  double floor = NAN;
  double ratio = NAN;
  double peer_limit = INFINITY;  // the value at which every factor over a peer is just reached
  bool met = true;
  double low = NAN, high = NAN;  // of the samples of the value
};

Outcome judge(const RowSpec& spec, const std::map<std::string, double>& medians) {
  Outcome outcome;
  for (const auto& [name, value] : medians) {
    if (name == "value") outcome.value = value;
    if (name == "floor") outcome.floor = value;
    if (is_socket_peer(name) && spec.socket_factor > 0) {
      outcome.peer_limit = std::min(outcome.peer_limit, value / spec.socket_factor);
    }
    if (name == "peer_lmdb" && spec.lmdb_factor > 0) {
      outcome.peer_limit = std::min(outcome.peer_limit, value / spec.lmdb_factor);
    }
  }
  outcome.ratio = outcome.value / outcome.floor;
  switch (spec.limit_of) {
    case LimitOf::kNone: break;
    case LimitOf::kValue: outcome.met = outcome.value <= spec.limit; break;
    case LimitOf::kRatio: outcome.met = outcome.ratio <= spec.limit; break;
    case LimitOf::kRatioAtLeast: outcome.met = outcome.ratio >= spec.limit; break;
  }
  if (outcome.value > outcome.peer_limit) outcome.met = false;
  return outcome;
}

const char* limit_kind(LimitOf of) {
  switch (of) {
    case LimitOf::kNone: return "none";
    case LimitOf::kValue: return "value";
    case LimitOf::kRatio: return "ratio";
    case LimitOf::kRatioAtLeast: return "ratio_minimum";
  }
  return "none";
}

void print_json(const RowSpec& spec, const Outcome& outcome, const std::map<std::string, double>& medians,
                const Facts& facts, unsigned rounds, const std::string& cpu) {
  std::string line = "{\"name\":" + quoted(spec.name) + ",\"value\":" + number(outcome.value) +
                     ",\"unit\":" + quoted(spec.unit) + ",\"floor\":" + number(outcome.floor) +
                     ",\"ratio\":" + number(outcome.ratio);
  line += ",\"limit\":" + (spec.limit_of == LimitOf::kNone ? "null" : number(spec.limit)) +
          ",\"limit_of\":" + quoted(limit_kind(spec.limit_of));
  if (std::isfinite(outcome.peer_limit)) line += ",\"limit_by_peers\":" + number(outcome.peer_limit);
  line += std::string(",\"met\":") + (outcome.met ? "true" : "false");
  line += ",\"value_low\":" + number(outcome.low) + ",\"value_high\":" + number(outcome.high);
  for (const auto& [name, value] : medians) {
    if (name.starts_with("peer_")) line += "," + quoted(name) + ":" + number(value);
  }
  for (const auto& [name, value] : facts.extra) line += "," + quoted(name) + ":" + number(value());
  line += ",\"page_bytes\":" + std::to_string(facts.page_bytes) +
          ",\"pool_bytes\":" + std::to_string(facts.pool_bytes) + ",\"keys\":" + std::to_string(facts.keys) +
          ",\"rounds\":" + std::to_string(rounds) + ",\"cpu\":" + quoted(cpu) +
          ",\"huge_pages\":" + (facts.huge_pages ? "true" : "false");
  if (!facts.note.empty()) line += ",\"note\":" + quoted(facts.note);
  std::printf("%s}\n", line.c_str());
}

void print_table(const RowSpec& spec, const Outcome& outcome, const std::map<std::string, double>& medians,
                 const Facts& facts) {
  std::string limit = "-";
  if (spec.limit_of != LimitOf::kNone) {
    limit = (spec.limit_of == LimitOf::kRatioAtLeast ? ">= " : "<= ") + number(spec.limit) +
            (spec.limit_of == LimitOf::kValue ? "" : " x");
  }
  if (std::isfinite(outcome.peer_limit)) limit += ", <= " + number(outcome.peer_limit);
  std::printf("%-22s %12s %-8s %12s %8s  %-22s %s\n", spec.name, number(outcome.value).c_str(), spec.unit,
              number(outcome.floor).c_str(), number(outcome.ratio).c_str(), limit.c_str(),
              outcome.met ? "ok" : "MISSED");
  std::string detail;
  for (const auto& [name, value] : medians) {
    if (name.starts_with("peer_")) detail += "  " + name.substr(5) + " " + number(value);
  }
  for (const auto& [name, value] : facts.extra) detail += "  " + name + " " + number(value());
  std::printf("    page %llu, pool %.2f GiB, %llu keys, huge pages %s%s%s%s\n", (unsigned long long)facts.page_bytes,
              double(facts.pool_bytes) / (1 << 30), (unsigned long long)facts.keys,
              facts.huge_pages ? "granted" : "not granted", detail.empty() ? "" : ";", detail.c_str(),
              facts.note.empty() ? "" : (" [" + facts.note + "]").c_str());
}

}  // namespace

Suite::Suite(Options options) : options_(std::move(options)) {
  if (options_.rounds == 0) options_.rounds = options_.quick ? 5 : 7;
  if (options_.cold_keys == 0) options_.cold_keys = options_.quick ? 200'000 : 10'000'000;
}

bool Suite::wants(const std::string& row) const { return options_.only.empty() || options_.only.contains(row); }

bool Suite::wants_group(const std::string& group) const {
  return std::any_of(row_table().begin(), row_table().end(),
                     [&](const RowSpec& row) { return group == row.group && wants(row.name); });
}

void Suite::measure(const std::string& row, const std::vector<Contestant>& contestants, const Facts& facts) {
  const auto spec = std::find_if(row_table().begin(), row_table().end(),
                                 [&](const RowSpec& candidate) { return row == candidate.name; });
  if (spec == row_table().end()) throw std::logic_error("no such row: " + row);
  progress("measuring " + row);

  std::vector<std::vector<double>> samples(contestants.size());
  for (const Contestant& contestant : contestants) contestant.sample();  // one unmeasured round warms everything up
  for (unsigned round = 0; round < rounds(); ++round) {
    for (size_t i = 0; i < contestants.size(); ++i) samples[i].push_back(contestants[i].sample());
  }

  std::map<std::string, double> medians;
  double low = NAN, high = NAN;
  for (size_t i = 0; i < contestants.size(); ++i) {
    const double value = median(samples[i]);
    const auto [place, added] = medians.emplace(contestants[i].name, value);
    if (!added) place->second = std::min(place->second, value);
    if (contestants[i].name == "value") {
      low = *std::min_element(samples[i].begin(), samples[i].end());
      high = *std::max_element(samples[i].begin(), samples[i].end());
    }
  }
  Outcome outcome = judge(*spec, medians);
  outcome.low = low;
  outcome.high = high;
  if (!outcome.met) missed_.push_back(row);

  if (options_.json) {
    print_json(*spec, outcome, medians, facts, rounds(), cpu_model());
  } else {
    if (!heading_printed_) {
      std::printf("%s, %u rounds\n%-22s %12s %-8s %12s %8s  %-22s\n", cpu_model().c_str(), rounds(), "row", "value",
                  "unit", "floor", "ratio", "limit");
      heading_printed_ = true;
    }
    print_table(*spec, outcome, medians, facts);
  }
  std::fflush(stdout);
}

void Suite::progress(const std::string& text) const {
  if (!options_.json) std::fprintf(stderr, "... %s\n", text.c_str());
}

void Suite::lacks(const std::string& text) {
  if (std::find(lacking_.begin(), lacking_.end(), text) == lacking_.end()) lacking_.push_back(text);
}

void Suite::finish() {
  for (const std::string& text : lacking_) std::fprintf(stderr, "this machine lacks: %s\n", text.c_str());
  if (missed_.empty() || options_.json) return;
  std::fprintf(stderr, "limits missed:");
  for (const std::string& row : missed_) std::fprintf(stderr, " %s", row.c_str());
  std::fprintf(stderr, "\n");
}

}  // namespace maru::bench
