#include "daemon/tools/marudctl/sample.h"

#include "daemon/tools/marudctl/reply_fields.h"

#include <algorithm>
#include <string>

namespace maru::marudctl {
namespace {

using nlohmann::json;

const json& part(const json& object, const char* name) {
  static const json kNone = json::object();
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? *found : kNone;
}

// Counters of one pool or one client at two moments.
class Growth {
 public:
  Growth(const json& before, const json& after, uint64_t ns) : before_(before), after_(after), ns_(ns) {}

  uint64_t of(const char* name) const {
    const uint64_t then = number(before_, name), now = number(after_, name);
    return now > then ? now - then : 0;
  }
  double per_second(uint64_t count) const { return ns_ == 0 ? 0 : double(count) * 1e9 / double(ns_); }
  double per_second(const char* name) const { return per_second(of(name)); }

  // The figures that pools and clients have in common.
  void put_into(json& row) const {
    const uint64_t hits = of("retrieve_hits"), asked = hits + of("retrieve_misses");
    const uint64_t matched = of("match_blocks"), keys = of("match_keys");
    row["asked_per_s"] = per_second(asked + keys + of("exists_hits") + of("exists_misses"));
    row["retrieves_per_s"] = per_second(asked);
    row["retrieve_hit_percent"] = share(hits, asked);
    row["match_hit_percent"] = share(matched, keys);
    row["stores_per_s"] = per_second("stores");
    row["stored_bytes_per_s"] = per_second("stored_bytes");
    row["duplicates_per_s"] = per_second("duplicates");
    row["deletes_per_s"] = per_second("deletes");
    row["rents_per_s"] = per_second("rents");
  }

 private:
  static json share(uint64_t part, uint64_t whole) {
    return whole == 0 ? json(nullptr) : json(double(std::min(part, whole)) * 100 / double(whole));
  }
  const json& before_;
  const json& after_;
  const uint64_t ns_;
};

// The row of `rows` that has the same values under these names.
const json& same_row(const json& rows, const json& like, std::initializer_list<const char*> names) {
  static const json kNone = json::object();
  if (!rows.is_array()) return kNone;
  for (const json& row : rows)
    if (row.is_object() && std::all_of(names.begin(), names.end(), [&](const char* name) {
          return row.value(name, json()) == like.value(name, json());
        }))
      return row;
  return kNone;
}

// marud's time to decide on requests for memory between the two samples: the mean, and the time within which 99 of 100 were
// decided. Null where no client asked.
void put_latency(const json& before, const json& after, uint64_t ns, json& row) {
  const Growth growth(before, after, ns);
  const uint64_t rents = ns == 0 ? 0 : growth.of("rents");
  const json& now = rows_of(after, "rents_by_time");
  const json& then = rows_of(before, "rents_by_time");
  row["rent_mean_us"] = rents == 0 ? json(nullptr) : json(double(growth.of("rents_us")) / double(rents));
  row["rent_99_us"] = nullptr;
  uint64_t seen = 0;
  double bound_us = 0.1;  // each bucket reaches to ten times the last bucket; the final bucket has no end
  for (size_t i = 0; rents != 0 && i < now.size() && seen * 100 < rents * 99; ++i, bound_us *= 10) {
    const auto count = [&](const json& row_of) {
      return i < row_of.size() && row_of[i].is_number_unsigned() ? row_of[i].get<uint64_t>() : 0;
    };
    seen += count(now) > count(then) ? count(now) - count(then) : 0;
    row["rent_99_us"] = i + 1 < now.size() ? json(bound_us) : json(nullptr);
  }
}

json pool_row(const json& before, const json& after, uint64_t ns) {
  json row = {{"name", text(after, "name")}, {"condition", text(after, "condition")}};
  if (after.contains("reason")) row["reason"] = after["reason"];
  const uint64_t bytes = number(after, "pages") * number(after, "page_bytes");
  row["page_bytes"] = number(after, "page_bytes");
  row["bytes"] = bytes;
  row["in_use_bytes"] = number(after, "in_use_bytes");
  row["in_use_percent"] =
      bytes == 0 ? json(nullptr) : json(double(number(after, "in_use_bytes")) * 100 / double(bytes));
  row["blocks"] = number(after, "blocks");
  row["policy"] = text(after, "policy");
  row["is_evicting"] = after.value("is_evicting", json(false)) == true;
  row["clients"] = number(part(after, "lanes"), "live");
  row["pins_overdue"] = number(after, "pins_overdue");
  row["evicted_blocks_per_s"] = Growth(before, after, ns).per_second("evicted_blocks");
  row["refused_rents_per_s"] = Growth(before, after, ns).per_second("refused_rents");
  Growth(part(before, "counters"), part(after, "counters"), ns).put_into(row);
  put_latency(before, after, ns, row);
  return row;
}

// Tiers of another maru-tierd than before have no growth.
json tier_rows(const Sample& before, const Sample& after) {
  const bool is_same = number(before.tiers, "pid") == number(after.tiers, "pid") && before.taken_ns != 0;
  const uint64_t ns = is_same && after.taken_ns > before.taken_ns ? after.taken_ns - before.taken_ns : 0;
  json rows = json::array();
  for (const json& tier : rows_of(after.tiers, "tiers")) {
    if (!tier.is_object()) continue;
    const json& then = same_row(rows_of(before.tiers, "tiers"), tier, {"name"});
    const Growth growth(then.empty() ? tier : then, tier, ns);
    const uint64_t hits = growth.of("hits"), asked = hits + growth.of("misses");
    json row = {{"pool", text(after.tiers, "pool")}, {"hit_percent", nullptr}};
    if (asked != 0) row["hit_percent"] = double(hits) * 100 / double(asked);
    for (const char* name : {"name", "kind", "entries", "entry_bytes", "physical_bytes", "capacity_bytes", "in_flight",
                             "queue", "breaker", "trouble"})
      if (tier.contains(name)) row[name] = tier[name];
    row["waiting_blocks"] = number(after.tiers, "queued");
    for (const char* name : {"loads", "loaded_bytes", "stores", "stored_bytes", "failures"})
      row[name + std::string("_per_s")] = growth.per_second(name);
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

json changes(const Sample& before, const Sample& after) {
  const bool same_marud = number(before.status, "pid") == number(after.status, "pid") && before.taken_ns != 0;
  const uint64_t ns = same_marud && after.taken_ns > before.taken_ns ? after.taken_ns - before.taken_ns : 0;
  json out = {{"interval_ms", ns / 1'000'000}, {"answer_us", after.answer_ns / 1000}};
  for (const char* name : {"version", "pid", "uptime_ms", "connections"})
    if (after.status.contains(name)) out[name] = after.status[name];
  out["pools"] = json::array();
  for (const json& pool : rows_of(after.status, "pools")) {
    if (!pool.is_object()) continue;
    const json& then = same_row(rows_of(before.status, "pools"), pool, {"name", "epoch"});
    // Without an earlier sample there is no growth, even if counters are above 0.
    out["pools"].push_back(pool_row(then.empty() ? pool : then, pool, ns));
  }
  out["tiers"] = tier_rows(before, after);
  out["clients"] = json::array();
  for (const json& client : after.clients) {
    if (!client.is_object()) continue;
    const json& then = same_row(before.clients, client, {"pool", "lane", "generation", "pid"});
    json row = json::object();
    for (const char* name : {"pid", "command", "uid", "pool", "lane", "state", "since_ms", "pins", "pins_overdue",
                             "regions", "region_bytes", "oldest_pin_ms", "lost_touches", "counters"})
      if (client.contains(name)) row[name] = client[name];
    Growth(part(then.empty() ? client : then, "counters"), part(client, "counters"), ns).put_into(row);
    out["clients"].push_back(std::move(row));
  }
  return out;
}

}  // namespace maru::marudctl
