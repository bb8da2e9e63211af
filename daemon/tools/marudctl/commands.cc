#include "daemon/tools/marudctl/commands.h"

#include "daemon/base/size_text.h"
#include "daemon/tools/marudctl/conversation.h"
#include "daemon/tools/marudctl/number_text.h"
#include "daemon/tools/marudctl/output.h"
#include "daemon/tools/marudctl/reply_fields.h"
#include "daemon/version.h"
#include "maru/format/limits.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace maru::marudctl {
namespace {

using nlohmann::json;

// The bytes of a pool that are not for pages.
std::string control_text(const json& pool) {
  const auto bytes = pool.at("control_bytes").get<uint64_t>(), all = pool.at("pool_bytes").get<uint64_t>();
  char share[32];
  std::snprintf(share, sizeof(share), ", %.1f %% of the pool", all == 0 ? 0 : 100 * double(bytes) / double(all));
  return daemon::size_text(bytes) + share;
}

// Prints all fields of one pool.
void print_pool(json pool) {
  // The bytes of all blocks get a heading of their own: "page" and "region" head the size of a single page and region.
  if (pool.contains("block_bytes")) pool["bytes_in_blocks"] = daemon::size_text(pool["block_bytes"].get<uint64_t>());
  if (pool.contains("policy")) pool["policy"] = policy_text(pool);
  if (pool.contains("control_bytes") && pool.contains("pool_bytes")) pool["control_region"] = control_text(pool);
  // "evicted_blocks" would look like the sum of the evictions by reason, which is larger. So it gets another name.
  if (pool.contains("evicted_blocks")) pool["evicted_for_room"] = pool["evicted_blocks"];
  for (const char* shown_already :
       {"evicted_blocks", "block_bytes", "control_bytes", "policy_options", "expired_blocks", "rents_by_time"})
    pool.erase(shown_already);
  print("\n" + fields_text(pool,
                           {"name",
                            "condition",
                            "reason",
                            "backend",
                            "device",
                            "medium",
                            "map_sync",
                            "uuid",
                            "epoch",
                            "pool_bytes",
                            "control_region",
                            "page_bytes",
                            "pages",
                            "region_bytes",
                            "regions",
                            "lanes",
                            "blocks",
                            "bytes_in_blocks",
                            "in_use_bytes",
                            "policy",
                            "high_watermark",
                            "low_watermark",
                            "is_evicting",
                            "background_wakes",
                            "evicted_for_room",
                            "evicted_by",
                            "evicted_pages"},
                           line_width()));
}

// A line for each of several.
void print_pools(const json& pools) {
  json rows = json::array();
  std::string reasons;
  for (const json& pool : pools) {
    json row = {{"pool", text(pool, "name")}, {"condition", text(pool, "condition")}};
    if (pool.contains("pages")) {
      const uint64_t bytes = number(pool, "pages") * number(pool, "page_bytes");
      row["size_bytes"] = number(pool, "pool_bytes");
      row["used_percent"] = bytes == 0 ? 0 : 100 * number(pool, "in_use_bytes") / bytes;
      row["blocks"] = number(pool, "blocks");
      row["clients"] = number(pool.value("lanes", json::object()), "live");
      row["policy"] = text(pool, "policy");
    }
    rows.push_back(std::move(row));
    std::string reason = text(pool, "reason");
    if (reason.empty()) continue;
    if (!reason.starts_with("pool \"")) reason = "pool \"" + text(pool, "name") + "\": " + reason;
    reasons += wrapped(reason, "", line_width() != 0 ? line_width() : std::string::npos);
  }
  print("\n" +
        table_text(rows, {"pool", "condition", "size_bytes", "used_percent", "blocks", "clients", "policy"},
                   "there is no pool", line_width()) +
        reasons + "marudctl --pool NAME status says more of one\n");
}

int status(const Arguments& arguments) {
  json reply;
  if (const int code = Conversation(arguments).ask_for_list({{"command", "status"}}, "pools", std::nullopt, reply);
      code != kExitDone)
    return code;
  if (arguments.json) return print_json(reply), kExitDone;
  json pools = std::move(reply["pools"]);
  reply.erase("pools");
  print(fields_text(reply, {"version", "pid", "uptime_ms", "connections", "lanes", "state_dir"}, line_width()));
  const auto is_meant = [&](const json& pool) { return !arguments.pool || text(pool, "name") == *arguments.pool; };
  if (std::count_if(pools.begin(), pools.end(), is_meant) > 1) return print_pools(pools), kExitDone;
  for (json& pool : pools)
    if (is_meant(pool)) print_pool(std::move(pool));
  return kExitDone;
}

int clients(const Arguments& arguments) {
  json reply;
  const json request = {{"command", "clients"}, {"all_hosts", true}};
  if (const int code = Conversation(arguments).ask_for_list(request, "clients", std::nullopt, reply); code != kExitDone)
    return code;
  if (arguments.json) return print_json(reply), kExitDone;
  json& rows = reply["clients"];
  for (json& client : rows)
    if (const std::string name = text(client, "host_name"); !name.empty())
      client["host"] = std::to_string(number(client, "host")) + " (" + name + ")";
  // A short heading beside the column of pins, and no column when no pin is overdue, so that a line fits.
  const auto is_late = [](const json& client) { return number(client, "pins_overdue") != 0; };
  if (std::any_of(rows.begin(), rows.end(), is_late))
    for (json& client : rows) client["overdue"] = number(client, "pins_overdue");
  std::stable_sort(rows.begin(), rows.end(), [](const json& a, const json& b) {
    return std::pair(text(a, "pool"), number(a, "lane")) < std::pair(text(b, "pool"), number(b, "lane"));
  });
  print(table_text(rows,
                   {"pid", "pid_namespace", "command", "uid", "pool", "lane", "host", "state", "since_ms", "pins",
                    "overdue", "regions"},
                   "no process is attached", line_width()));
  if (std::any_of(rows.begin(), rows.end(), [](const json& row) { return text(row, "state") == "unproven"; }))
    print("unproven: marud cannot know whether it lives (see marudctl client forget)\n");
  return kExitDone;
}

// States that look worse than they are, and their meaning.
constexpr struct {
  const char* state;
  const char* meaning;
} kRegionNotes[] = {
    {"orphaned", "its client has ended: its blocks stay, and it can be rented"},
    {"draining", "its blocks make room: the region goes to somebody else"},
};

int regions(const Arguments& arguments) {
  json reply;
  if (const int code = Conversation(arguments).ask_for_list({{"command", "regions"}}, "regions", std::nullopt, reply);
      code != kExitDone)
    return code;
  if (arguments.json) return print_json(reply), kExitDone;
  json rows = json::array();
  for (json& row : reply["regions"])
    if (text(row, "state") != "unused") rows.push_back(std::move(row));
  const size_t unused = reply["regions"].size() - rows.size();
  // Short headings beside the column of all pages.
  for (json& row : rows) row["free"] = number(row, "free_pages"), row["used"] = number(row, "used_pages");
  for (json& row : rows) row["queued"] = number(row, "queued_blocks");
  print(table_text(rows, {"region", "state", "lane", "pid", "pages", "free", "used", "queued"}, "nobody rents a region",
                   line_width()));
  for (const auto& note : kRegionNotes)
    if (std::any_of(rows.begin(), rows.end(), [&](const json& row) { return row.value("state", "") == note.state; }))
      print(std::string(note.state) + ": " + note.meaning + "\n");
  if (unused != 0) print(std::to_string(unused) + (unused == 1 ? " region is unused\n" : " regions are unused\n"));
  return kExitDone;
}

// Names one block.
json about_key(const Arguments& arguments, const char* command) {
  json request = {{"command", command}, {"key", arguments.operands.front()}};
  if (arguments.tenant) request["tenant"] = *arguments.tenant;
  return request;
}

void name_tenant(json& row) {
  if (const std::string name = tenant_text(row); !name.empty()) row["tenant"] = name;
  row.erase("tenant_name");
}

int pins(const Arguments& arguments) {
  return print_list(arguments, {{"command", "pins"}, {"overdue", arguments.overdue}}, "pins",
                    {"pid", "command", "uid", "lane", "state", "age_ms", "overdue", "page", "key", "tenant"},
                    arguments.limit, arguments.overdue ? "no pin is overdue" : "nothing is pinned", name_tenant);
}

int blocks(const Arguments& arguments) {
  if (!arguments.operands.empty()) {
    if (arguments.prefix || arguments.type || arguments.min_priority || arguments.pinned)
      return complain(kExitUsage, "a KEY is one block: only --tenant goes with it");
    json reply;
    const json request = about_key(arguments, "block");
    if (const int code = Conversation(arguments).ask(request, reply); code != kExitDone) return code;
    if (arguments.json) return print_json(reply), kExitDone;
    name_tenant(reply);
    const uint64_t pinners = number(reply, "pinned_by_count"), named = reply.value("pinned_by", json::array()).size();
    reply.erase("pinned_by_count");
    const uint64_t metadata = number(reply, "metadata_bytes"), shown = number(reply, "metadata_shown_bytes");
    reply.erase("metadata_shown_bytes");
    if (reply.erase("metadata_bytes") != 0)
      reply["metadata_size_bytes"] = metadata;  // beside "metadata", which is the text
    print(fields_text(reply,
                      {"key", "state", "length_bytes", "metadata_size_bytes", "metadata", "page", "pages", "generation",
                       "parent", "children"},
                      line_width()));
    if (shown != 0)
      print("metadata is cut: the first " + daemon::size_text(shown) + " of " + daemon::size_text(metadata) + "\n");
    if (pinners > named) print("and " + std::to_string(pinners - named) + " more that pin it\n");
    return kExitDone;
  }
  json request = {{"command", "blocks"}, {"pinned", arguments.pinned}};
  if (arguments.prefix) request["prefix"] = *arguments.prefix;
  if (arguments.tenant) request["tenant"] = *arguments.tenant;
  if (arguments.type) request["type"] = *arguments.type;
  if (arguments.min_priority) request["min_priority"] = *arguments.min_priority;
  constexpr uint64_t kShownByDefault = 100;
  const bool is_narrowed = request.size() > 2 || arguments.pinned;
  return print_list(arguments, std::move(request), "blocks",
                    {"key", "state", "page", "length_bytes", "metadata_bytes", "children", "last_use_ms", "tenant"},
                    arguments.limit.value_or(kShownByDefault),
                    is_narrowed ? "no block is like that" : "the pool has no block", name_tenant);
}

int evict(const Arguments& arguments) {
  const std::string& text = arguments.operands.front();
  const auto pages = read_number(text, 1, limits::kPagesMax);
  if (!pages) return complain(kExitUsage, number_mistake("evict PAGES", text, 1, limits::kPagesMax));
  return print_fields(arguments, {{"command", "evict"}, {"pages", *pages}}, {});
}

int delete_tree(const Arguments& arguments) { return print_fields(arguments, about_key(arguments, "delete_tree"), {}); }

int clear(const Arguments& arguments) {
  if (!arguments.yes) return complain(kExitUsage, "clear removes every block of the pool; confirm with --yes");
  return print_fields(arguments, {{"command", "clear"}}, {});
}

int check(const Arguments& arguments) {
  if (arguments.pages && !arguments.file)
    return complain(kExitUsage, "check: found --pages alone, expected --file with the control region beside it");
  if (arguments.file) return check_file(*arguments.file, arguments.pages, arguments.json);
  json reply;
  const json request = {{"command", "check"}, {"quiesce", arguments.quiesce}};
  if (const int code = Conversation(arguments).ask(request, reply); code != kExitDone) return code;
  const auto found = reply.find("violations");
  const bool is_clean = found == reply.end() || (found->is_array() && found->empty()) || *found == 0;
  if (arguments.json) {
    print_json(reply);
  } else {
    if (found != reply.end()) print_violations(*found);
    reply.erase("violations");
    print(fields_text(reply, {}));
    print(is_clean ? "no violation found\n" : "the control region violates its invariants\n");
  }
  return is_clean ? kExitDone : kExitViolations;
}

int memory_poison(const Arguments& arguments) {
  const std::string& text = arguments.operands.front();
  const bool is_page = text.find_first_not_of("0123456789") == std::string::npos;
  const auto page = read_number(text, 0, limits::kPagesMax - 1);
  if (is_page && !page)
    return complain(kExitUsage, number_mistake("memory poison PAGE", text, 0, limits::kPagesMax - 1));
  if (!arguments.yes)
    return complain(kExitUsage,
                    "a poisoned page is never used again, whatever becomes of the memory; confirm with --yes");
  json request = {{"command", "memory.poison"}};
  if (is_page)
    request["page"] = *page;
  else
    request["key"] = text;
  if (arguments.tenant) request["tenant"] = *arguments.tenant;
  return print_fields(arguments, std::move(request), {"page", "was", "result"});
}

int memory_list(const Arguments& arguments) {
  return print_list(arguments, {{"command", "memory.list"}}, "memory", {"page", "state", "device_byte", "pinned"},
                    arguments.limit, "no memory is known to be bad");
}

int version(const Arguments& arguments) {
  if (arguments.json)
    print_json({{"version", daemon::kVersionText}});
  else
    print(std::string("marudctl ") + daemon::kVersionText + "\n");
  return kExitDone;
}

}  // namespace

const Command kCommands[] = {
    {"status", "", "marud and its pools", "", 0, 0, Word::kAny, status},
    {"clients", "", "processes that hold lanes: connected, frozen until they end, or unproven", "", 0, 0, Word::kAny,
     clients},
    {"regions", "", "regions of the pool, and who rents them", "", 0, 0, Word::kAny, regions},
    {"blocks",
     "[--limit N] [--prefix TEXT|0xHEX] [--tenant TENANT] [--type TYPE]\n         [--min-priority N] [--pinned] | KEY "
     "[--tenant TENANT]",
     "blocks of the pool (100 unless told), or the one under KEY in full",
     "limit prefix tenant type min-priority pinned", 0, 1, Word::kAny, blocks},
    {"pins", "[--limit N] [--overdue]", "pinned blocks: by whom, for how long (\"-\": not known yet)", "limit overdue",
     0, 0, Word::kAny, pins},
    {"evict", "PAGES", "evict the coldest blocks that nobody uses until PAGES more pages are free", "", 1, 1,
     Word::kAny, evict},
    {"delete-tree", "KEY [--tenant TENANT]", "remove a block and all that is below it, as far as it is not pinned",
     "tenant", 1, 1, Word::kAny, delete_tree},
    {"clear", "--yes", "remove every block; of a pinned one the key now, the memory later", "yes", 0, 0, Word::kAny,
     clear},
    {"client fence", "(LANE | --pid PID) [--yes]", "end a process that is attached, with SIGKILL, after asking",
     "pid yes", 0, 1, Word::kLane, client_fence},
    {"client forget", "LANE [--yes]", "say that a process is gone of which marud cannot know, after asking", "yes", 1,
     1, Word::kLane, client_forget},
    {"memory poison", "(PAGE | KEY [--tenant TENANT]) --yes",
     "never use the memory of this page again; what is stored there is a miss", "tenant yes", 1, 1, Word::kAny,
     memory_poison},
    {"memory list", "[--limit N]", "pages with bad memory, or said to have some", "limit", 0, 0, Word::kAny,
     memory_list},
    {"device list", "", "the pools' devices, and how far draining is", "", 0, 0, Word::kAny, device_list},
    {"device add", "FILE.toml | POOL", "start a pool that the file, or marud's configuration by now, describes", "", 1,
     1, Word::kPoolOrFile, device_add},
    {"device drain", "POOL", "give no memory any more, evict what nobody uses; reads go on", "", 1, 1, Word::kDevice,
     device_drain},
    {"device cancel", "POOL", "end draining or removing: the pool serves as before", "", 1, 1, Word::kDevice,
     device_cancel},
    {"device remove", "POOL [--deadline S] [--fence] [--yes]",
     "ask clients to leave, and close the device when they have", "deadline fence yes", 1, 1, Word::kDevice,
     device_remove},
    {"host list", "", "hosts of a shared pool: live, suspect, or dead and being taken back", "", 0, 0, Word::kAny,
     host_list},
    {"host declare-dead", "HOST --yes [--force]", "say that a host is off: what it held is taken back", "yes force", 1,
     1, Word::kHost, host_declare_dead},
    {"policy show", "", "what the pool evicts first, and what its configuration says", "", 0, 0, Word::kAny,
     policy_show},
    {"policy set", "NAME [--option NAME=VALUE]...", "another policy, until marud restarts; no block is lost", "option",
     1, 1, Word::kPolicy, policy_set},
    {"quota list", "[--limit N]", "tenants: what they use, and what they may", "limit", 0, 0, Word::kAny, quota_list},
    {"quota get", "TENANT", "one tenant", "", 1, 1, Word::kTenant, quota_get},
    {"quota set", "TENANT [--soft SIZE] [--hard SIZE]", "limits of a tenant; SIZE may be none, nothing or default",
     "soft hard", 1, 1, Word::kTenant, quota_set},
    {"quota remove", "TENANT", "the tenant's own limits go, the default ones apply", "", 1, 1, Word::kTenant,
     quota_remove},
    {"quota default", "[--soft SIZE] [--hard SIZE]", "limits of tenants that have none of their own", "soft hard", 0, 0,
     Word::kAny, quota_default},
    {"quota mode", "[any|listed]", "whether tenants without limits of their own may store", "", 0, 1, Word::kMode,
     quota_mode},
    {"tier list", "[SOCKET]", "storage below the pool, as maru-tierd has it", "", 0, 1, Word::kPath, tier_list},
    {"tier status", "[SOCKET]", "hits, bytes, speed, queue and breaker of each tier", "", 0, 1, Word::kPath,
     tier_status},
    {"tier quota", "(list | set TENANT SIZE | remove TENANT) [SOCKET]", "what tenants have in tiers, and may have", "",
     1, 4, Word::kTierVerb, tier_quota},
    {"tier drain", "[SOCKET]", "wait until maru-tierd has written all that waits", "", 0, 1, Word::kPath, tier_drain},
    {"tier clear", "NAME [SOCKET] --yes", "forget every entry of a tier", "yes", 1, 2, Word::kAny, tier_clear},
    {"adapters", "[REGISTER] [--limit N]", "LoRA adapters in the pool: form, uses, pins (100 unless told)", "limit", 0,
     1, Word::kPath, adapters},
    {"check", "[--quiesce] [--file PATH [--pages PATH]]",
     "audit the control region: live, at rest, or in a file without marud", "quiesce file pages", 0, 0, Word::kAny,
     check},
    {"top", "[--interval-ms N] [--once]", "a live picture: pools, clients, hit ratios, rates; h shows the keys",
     "interval-ms once", 0, 0, Word::kAny, top},
    {"watch", "[--limit N]", "blocks as they are stored and removed, one a line, until Ctrl-C", "limit", 0, 0,
     Word::kAny, watch},
    {"record", "FILE -- COMMAND [WORD]...", "run a program, and record its calls of libmaru for maru-replay", "", 2,
     INT_MAX, Word::kPath, record},
    {"doctor", "", "what on this machine would make marud slow or fail, and what to do", "", 0, 0, Word::kAny, doctor},
    {"support-dump", "[--output PATH] [--keys]", "write what a bug report needs into one file, without keys of blocks",
     "output keys", 0, 0, Word::kAny, support_dump},
    {"completion", "(bash | zsh | fish | words -- [WORD]...)",
     "a script that completes the words of marudctl; or what may come next", "", 1, INT_MAX, Word::kShell, completion},
    {"provision", "(list | plan | apply | release NAME) [--config FILE] [--force]",
     "CXL memory, NVDIMMs, DAX devices: what there is; making what is configured", "config force", 1, 2, Word::kStep,
     provision},
    {"version", "", "of marudctl", "", 0, 0, Word::kAny, version},
    {nullptr, nullptr, nullptr, nullptr, 0, 0, Word::kAny, nullptr},
};

}  // namespace maru::marudctl
