#include "daemon/tierd/settings.h"

#include <set>

namespace maru::tierd {

namespace {

constexpr size_t kTiersMax = 8;
constexpr size_t kOptionsMax = 64;

using maru::daemon::ConfigTable;

void read_store(ConfigTable& table, Settings& settings) {
  if (const auto policy = table.one_of("policy", {"all", "second_use", "skip_pool"}))
    settings.store.policy = *policy == "all"          ? StorePolicy::kAll
                            : *policy == "second_use" ? StorePolicy::kSecondUse
                                                      : StorePolicy::kSkipPool;
  if (const auto percent = table.integer("pins_percent", 1, 50)) settings.pins_percent = uint32_t(*percent);
  if (const auto bytes = table.size("bytes_a_day")) settings.store.bytes_a_day = *bytes;
  if (const auto attempts = table.integer("attempts", 1, 10)) settings.store.attempts_max = uint32_t(*attempts);
  if (const auto forgets = table.boolean("forget_deleted")) settings.store.forgets_deleted = *forgets;
  table.refuse_unknown();
}

TierSettings read_tier(ConfigTable& table, std::set<std::string>& names) {
  TierSettings tier;
  if (const auto name = table.text("name")) {
    tier.slot.name = *name;
    if (name->empty() || name->size() > 32 ||
        name->find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-_") != std::string::npos)
      table.wrong("name", "1 to 32 of a-z, 0-9, - and _");
    else if (!names.insert(*name).second)
      table.wrong("name", "a name that no other tier has");
  } else {
    table.missing("name", "a name for people and metrics, such as \"nvme\"");
  }
  if (const auto kind = table.text("kind"))
    tier.kind = *kind;
  else
    table.missing("kind", "\"file\", another built-in kind, or the path of a shared object");
  if (const auto ms = table.integer("load_timeout_ms", 1, 600'000)) tier.slot.load_timeout_ms = uint32_t(*ms);
  if (const auto ms = table.integer("store_timeout_ms", 1, 600'000)) tier.slot.store_timeout_ms = uint32_t(*ms);
  if (const auto most = table.integer("in_flight_max", 1, 1024)) tier.slot.in_flight_max = uint32_t(*most);
  if (table.has("options")) tier.options = table.scalars("options", kOptionsMax);
  table.refuse_unknown();
  return tier;
}

}  // namespace

Settings read_settings(ConfigTable& root) {
  Settings settings;
  if (auto table = root.table("pool")) {
    if (const auto name = table->text("name")) settings.pool = *name;
    if (const auto path = table->text("socket")) settings.socket_path = *path;
    table->refuse_unknown();
  }
  if (auto table = root.table("store")) read_store(*table, settings);
  if (auto table = root.table("prefetch")) {
    if (const auto path = table->text("socket")) settings.prefetch_socket = *path;
    if (const auto bytes = table->size("in_flight")) settings.in_flight_bytes_max = *bytes;
    if (const auto percent = table->integer("held_percent", 0, 50)) settings.held_percent = uint32_t(*percent);
    table->refuse_unknown();
  }
  if (auto table = root.table("quotas")) {
    if (const auto path = table->text("file")) settings.quotas_path = *path;
    if (const auto bytes = table->size("default")) settings.quota_bytes = *bytes;
    table->refuse_unknown();
  }
  std::set<std::string> names;
  for (ConfigTable& table : root.tables("tier")) settings.tiers.push_back(read_tier(table, names));
  if (settings.tiers.empty())
    root.missing("tier", "at least one [[tier]] with a name and a kind");
  else if (settings.tiers.size() > kTiersMax)
    root.wrong("tier", "at most " + std::to_string(kTiersMax) + " tiers");
  return settings;
}

}  // namespace maru::tierd
