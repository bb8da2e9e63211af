// marudctl tier: storage below a pool.
#include "daemon/base/json_text.h"
#include "daemon/base/size_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/tools/marudctl/reply_fields.h"
#include "daemon/tools/marudctl/tierd_question.h"
#include "libmaru/prefetch/message.h"

#include <nlohmann/json.hpp>

namespace maru::marudctl {
namespace {

using nlohmann::json;
using namespace maru::prefetch;

// Asks maru-tierd. Returns kExitDone and its answer, or prints the error and returns the exit status.
int ask(const Arguments& arguments, size_t socket_operand, uint32_t kind, const std::string& body, json& ret_answer) {
  std::string problem;
  const int code =
      ask_tierd(tierd_socket(arguments, socket_operand), arguments.timeout_ms, kind, body, ret_answer, problem);
  return code == kExitDone ? code : complain(code, problem);
}

json share_of(uint64_t part, uint64_t whole) {
  return whole == 0 ? json(nullptr) : json(uint64_t(double(part) * 100 / double(whole)));
}

}  // namespace

int tier_list(const Arguments& arguments) {
  json answer;
  if (const int code = ask(arguments, 0, kListTiers, "", answer); code != kExitDone) return code;
  if (arguments.json) return print_json(answer), kExitDone;
  print(table_text(
      answer["tiers"],
      {"name", "kind", "entries", "entry_bytes", "physical_bytes", "capacity_bytes", "in_flight", "breaker", "trouble"},
      "maru-tierd has no tier", line_width()));
  print(std::to_string(number(answer, "queued")) + " blocks of the pool \"" + text(answer, "pool") +
        "\" wait to be written\n");
  return kExitDone;
}

int tier_status(const Arguments& arguments) {
  json answer;
  if (const int code = ask(arguments, 0, kListTiers, "", answer); code != kExitDone) return code;
  if (arguments.json) return print_json(answer), kExitDone;
  const json tiers = answer["tiers"];
  answer.erase("tiers");
  print(fields_text(answer, {"pool", "pid", "queued", "pinned_bytes", "loading_bytes"}, line_width()));
  for (json tier : tiers) {
    tier["hit_percent"] = share_of(number(tier, "hits"), number(tier, "hits") + number(tier, "misses"));
    if (text(tier, "trouble").empty()) tier.erase("trouble");
    print("\n" + fields_text(tier,
                             {"name",
                              "kind",
                              "trouble",
                              "breaker",
                              "entries",
                              "entry_bytes",
                              "physical_bytes",
                              "capacity_bytes",
                              "hits",
                              "misses",
                              "hit_percent",
                              "loads",
                              "loaded_bytes",
                              "load_bytes_per_second",
                              "stores",
                              "stored_bytes",
                              "store_bytes_per_second",
                              "in_flight",
                              "queue",
                              "failures"},
                             line_width()));
  }
  return kExitDone;
}

int tier_drain(const Arguments& arguments) {
  json answer;
  if (const int code = ask(arguments, 0, kDrainTiers, "", answer); code != kExitDone) return code;
  if (arguments.json) return print_json(answer), kExitDone;
  print("all that waited is written\n");
  return kExitDone;
}

int tier_clear(const Arguments& arguments) {
  const std::string& name = arguments.operands.front();
  if (!arguments.yes)
    return complain(kExitUsage, "tier clear forgets every entry of the tier \"" + name + "\"; say --yes to do it");
  json answer;
  if (const int code = ask(arguments, 1, kClearTier, name, answer); code != kExitDone) return code;
  if (arguments.json) return print_json(answer), kExitDone;
  print(std::to_string(number(answer, "deleting")) + " entries go\n");
  return kExitDone;
}

// -- quotas --------------------------------------------------------------------------------------------------------------

namespace {

int list_quotas(const Arguments& arguments) {
  json answer;
  if (const int code = ask(arguments, 1, kListQuotas, "", answer); code != kExitDone) return code;
  if (arguments.json) return print_json(answer), kExitDone;
  json rows = json::array();
  for (json row : answer["usage"]) {
    row["share_percent"] = number(row, "limit_bytes") == 0
                               ? json(nullptr)
                               : share_of(number(row, "used_bytes"), number(row, "limit_bytes"));
    row["limit_bytes"] = limit_shown(row, "limit_bytes");
    rows.push_back(std::move(row));
  }
  print(table_text(rows, {"tenant", "tier", "entries", "used_bytes", "limit_bytes", "share_percent"},
                   "no tier that counts its entries by tenant has any", line_width()));
  for (const auto& [tenant, bytes] : answer["limits"].items())
    print("limit of " + tenant + " in each tier: " + (bytes == 0 ? "none" : daemon::size_text(bytes.get<uint64_t>())) +
          "\n");
  const uint64_t others = number(answer, "default_bytes");
  print("limit of other tenants: " + (others == 0 ? std::string("none") : daemon::size_text(others)) + "\n");
  for (const json& name : answer["not_counted"])
    print("the tier " + name.get<std::string>() + " does not count its entries by tenant: no limit holds there\n");
  return kExitDone;
}

int change_quota(const Arguments& arguments, bool is_set) {
  json request = {{"tenant", arguments.operands[1]}}, answer;
  if (is_set) {
    const std::string& size = arguments.operands[2];
    const auto bytes = size == "none" ? std::optional<uint64_t>(0) : daemon::parse_size(size);
    if (!bytes)
      return complain(kExitUsage, "tier quota set: found \"" + size + "\", expected a size such as 10GiB, or \"none\"");
    request["bytes"] = *bytes;
  }
  if (const int code =
          ask(arguments, is_set ? 3 : 2, is_set ? kSetQuota : kDropQuota, daemon::json_text(request), answer);
      code != kExitDone)
    return code;
  if (arguments.json) return print_json(answer), kExitDone;
  answer["limit_bytes"] = limit_shown(answer, "limit_bytes");
  print(fields_text(answer, {"tenant", "limit_bytes"}, line_width()));
  return kExitDone;
}

}  // namespace

int tier_quota(const Arguments& arguments) {
  const std::string& verb = arguments.operands.front();
  const size_t operands = arguments.operands.size();
  if (verb == "list" && operands <= 2) return list_quotas(arguments);
  if (verb == "set" && operands >= 3) return change_quota(arguments, true);
  if (verb == "remove" && operands >= 2 && operands <= 3) return change_quota(arguments, false);
  return complain(kExitUsage,
                  "tier quota: found \"" + verb + "\" and " + std::to_string(operands - 1) +
                      " more words, expected list, set TENANT SIZE, or remove TENANT, and perhaps a socket");
}

}  // namespace maru::marudctl
