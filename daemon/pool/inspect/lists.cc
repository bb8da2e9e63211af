// What people and tools ask about a pool. Lists are cut at 200 rows and after a bounded walk; "next" goes on from there, and
// may come with few rows or none.
#include "daemon/base/json_text.h"
#include "daemon/base/log.h"
#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/which.h"
#include "daemon/pool/state.h"
#include "libmaru/shm/blocks/hash.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kPagesPerList = 1u << 16;  // looked at for one reply
constexpr size_t kPinnersNamedMax = 200;      // of one block

constexpr const char* kKindNames[] = {"bytes", "digest128", "digest256"};
constexpr const char* kContentNames[] = {"kv_cache", "lora_weight", "temporary", "activation", "gradient"};

constexpr const char* kTenantText =
    "\"tenant\" is a name of 1 to 64 bytes, as text or as 0x and hexadecimal digits; or id: and the tenant's number";

const char* state_name(RegionState state) {
  constexpr const char* kNames[] = {"unused", "rented", "orphaned", "draining"};
  return uint32_t(state) < std::size(kNames) ? kNames[uint32_t(state)] : "unknown";
}

json options_json(const PolicyOptions& options) {
  json out = json::object();
  for (const auto& [name, value] : options) out[name] = value;
  return out;
}

constexpr const char* kCounterNames[] = {"exists_hits", "exists_misses",    "retrieve_hits",   "retrieve_misses",
                                         "match_keys",  "match_blocks",     "stores",          "stored_bytes",
                                         "duplicates",  "deletes",          "pin_full",        "registry_full",
                                         "revives",     "search_fallbacks", "checksum_errors", "rents"};
static_assert(std::size(kCounterNames) == format::kLaneCounterCount);

}  // namespace

const char* Pool::State::page_state_name(PageState state) {
  constexpr const char* kNames[] = {"out",   "free",     "reserved", "sealed",  "tail",
                                    "ready", "retiring", "retired",  "poisoned"};
  return uint32_t(state) < format::kPageStateCount ? kNames[uint32_t(state)] : "unknown";
}

const char* Pool::State::reason_name(EvictReason reason) {
  constexpr const char* kNames[] = {"request", "background", "takeover", "expired", "admin"};
  static_assert(std::size(kNames) == kEvictReasonCount);
  return kNames[size_t(reason)];
}

json Pool::State::admin(const std::string& command, const json& request, uint64_t* ret_ticket) {
  static constexpr std::string_view kChanging[] = {
      "evict", "delete_tree", "clear", "memory.poison", "quota.set", "quota.remove", "host.declare_dead"};
  // "quota.default" and "quota.mode" without values only ask.
  const bool changes = std::ranges::find(kChanging, command) != std::end(kChanging) ||
                       (command.starts_with("quota.") &&
                        (request.contains("soft") || request.contains("hard") || request.contains("listed")));
  constexpr uint64_t kHeld = UINT64_MAX;  // the ticket of what was not begun yet
  if (ret_ticket && *ret_ticket == kHeld) *ret_ticket = 0;
  const bool is_new = !ret_ticket || *ret_ticket == 0;
  if (is_new && is_quiesced() && changes) {
    if (!ret_ticket) return refusal(EAGAIN, "the pool is being checked at rest: try again");
    *ret_ticket = kHeld;
    return {};
  }
  if (command == "regions") return list_regions(request);
  if (command == "which") return which_blocks(core.region, tenants, request);
  if (command == "map") return map();
  const bool sets_limits =
      command == "quota.set" || request.contains("soft") || request.contains("hard") || request.contains("listed");
  if (command.starts_with("quota.") && sets_limits && core.region.is_shared())
    return refusal(EOPNOTSUPP, "pool \"" + core.config.name +
                                   "\" has profile = \"shared\", expected \"local\": limits of tenants are kept by one "
                                   "host, and the others would store beyond them");
  if (command.starts_with("quota.")) return quota(command, request, ret_ticket);
  if (command == "blocks") return list_blocks(request);
  if (command == "block") return one_block(request);
  if (command == "host.list") return list_hosts();
  if (command == "host.declare_dead") return declare_host_dead(request);
  if (command == "pins") return list_pins(request);
  if (command == "memory.poison") return poison_command(request);
  if (command == "memory.list") return list_poisoned(request);
  if (command == "check") return check(flag_in(request, "quiesce"), ret_ticket);
  if (command == "evict") return make_room(request, ret_ticket);
  if (command == "delete_tree" || command == "clear") return remove(command, request, ret_ticket);
  return refusal(EOPNOTSUPP, "there is no such command for a pool");
}

json Pool::State::list_regions(const json& request) {
  const uint64_t rows_max = rows_in(request);
  json rows = json::array();
  uint64_t i = number_in(request, "cursor", 0);
  for (; i < regions.size() && rows.size() < rows_max; ++i) {
    const RegionEntry& entry = regions[i];
    uint32_t free_pages = 0, used_pages = 0;
    for (uint32_t k = 0; k < core.region.region_pages(); ++k) {
      const PageState state = core.word(uint32_t(i) * core.region.region_pages() + k).state();
      free_pages += state == PageState::kFree;
      used_pages += state != PageState::kFree && state != PageState::kOut && state != PageState::kPoisoned;
    }
    uint64_t queued = 0;
    queues.for_shelves(uint32_t(i), [&](uint32_t shelf) { queued += queues.order.count(shelf); });
    json row = {{"region", i},
                {"state", state_name(entry.state)},
                {"generation", entry.generation},
                {"pages", core.region.region_pages()},
                {"free_pages", free_pages},
                {"used_pages", used_pages},
                {"queued_blocks", std::min<uint64_t>(queued, core.region.region_pages())}};
    if (entry.state == RegionState::kRented) {
      row["lane"] = entry.owner.lane;
      row["pid"] = int64_t(lanes.records[entry.owner.lane].who.pid);
    }
    rows.push_back(std::move(row));
    if (rows.size() * uint64_t(core.region.region_pages()) >= 4 * kPagesPerList) {
      ++i;
      break;
    }
  }
  json reply = {{"regions", std::move(rows)}};
  if (i < regions.size()) reply["next"] = i;
  return reply;
}

// Everything here is read without a pin: it is what was there a moment ago.
json Pool::State::block_json(uint32_t page, PageWord found) {
  const format::BlockLine& line = core.region.block(page);
  const format::DetailLine& detail = core.region.detail(page);
  const PageRef ref = PageRef::of(page, found.generation());
  const uint64_t kind = detail.kind.load_acquire();
  const uint32_t content = uint32_t(kind >> 56);
  const uint64_t length = line.length.load_acquire();
  json row = {{"state", page_state_name(found.state())},
              {"page", page},
              {"generation", found.generation()},
              {"pages", core.region.run_pages(page)},
              {"length_bytes", format::payload_bytes_of(length)},
              {"children", found.is(PageState::kReady) ? found.children() : 0},
              {"depth", uint32_t(line.shape.load_acquire() >> 32)},
              {"priority", uint32_t(kind)},
              {"type", content < std::size(kContentNames) ? json(kContentNames[content]) : json(content)},
              {"stored_ms", detail.stored_ms.load_acquire()},
              {"last_use_ms", core.region.header().created_unix_ms + queues.tick_of(page, found.generation())}};
  if (shm::read_key(core.region, ref, &core.key)) {
    row["key"] = key_text({core.key.data, core.key.size});
    row["kind"] = core.key.kind < std::size(kKindNames) ? json(kKindNames[core.key.kind]) : json(core.key.kind);
    tenants.put_tenant(core.key.tenant, row);
  } else {
    row["key"] = nullptr;
  }
  if (const uint64_t bytes = format::metadata_bytes_of(length); bytes != 0) row["metadata_bytes"] = bytes;
  const PageRef parent = PageRef::from_bits(line.parent.load_acquire());
  if (core.region.is_page(parent)) row["parent"] = parent.page();
  if (const uint64_t expires_ms = line.expires_ms.load_acquire(); expires_ms != 0) row["expires_ms"] = expires_ms;
  return row;
}

// Which blocks a listing is about. Who is pinned is looked up for the blocks that the other conditions leave.
struct Pool::State::BlockFilter {
  std::vector<std::byte> prefix;
  std::optional<uint64_t> tenant;
  std::optional<uint32_t> content;
  uint64_t min_priority = 0;
  bool pinned = false;

  // Says what is wrong, or nothing.
  std::string read(const json& request, const PoolTenants& tenants) {
    prefix = key_bytes(text_in(request, "prefix"));
    min_priority = number_in(request, "min_priority", 0);
    pinned = flag_in(request, "pinned");
    if (request.contains("tenant")) tenant = tenants.tenant_in(request);
    if (request.contains("tenant") && !tenant) return kTenantText;
    const std::string type = text_in(request, "type");
    if (type.empty()) return {};
    std::string known;
    for (uint32_t i = 0; i < std::size(kContentNames); ++i) {
      if (type == kContentNames[i]) content = i;
      known += (i == 0 ? "" : ", ") + std::string(kContentNames[i]);
    }
    return content ? "" : "\"type\": found \"" + printable(type) + "\", expected one of " + known;
  }
};

bool Pool::State::passes(const BlockFilter& filter, uint32_t page, PageWord found) {
  const format::DetailLine& detail = core.region.detail(page);
  const uint64_t kind = detail.kind.load_acquire();
  core.meter.add(1);
  if (uint32_t(kind) < filter.min_priority) return false;
  if (filter.content && uint32_t(kind >> 56) != *filter.content) return false;
  if (filter.tenant && detail.tenant.load_acquire() != *filter.tenant) return false;
  if (!filter.prefix.empty()) {
    core.meter.add(limits::kKeyExtentBytes / sizeof(format::BlockLine));  // at most
    if (!shm::read_key(core.region, PageRef::of(page, found.generation()), &core.key) ||
        core.key.size < filter.prefix.size() ||
        std::memcmp(core.key.data, filter.prefix.data(), filter.prefix.size()) != 0)
      return false;
  }
  return true;
}

json Pool::State::list_blocks(const json& request) {
  const uint64_t rows_max = rows_in(request);
  BlockFilter filter;
  if (const std::string wrong = filter.read(request, tenants); !wrong.empty()) return refusal(EINVAL, wrong);
  json rows = json::array();
  size_t bytes = 0;
  uint64_t page = number_in(request, "cursor", 0);
  const uint64_t end = page < core.pages() ? std::min(core.pages(), page + kPagesPerList) : page;
  const LineBudget lines(core.meter, kHeldLinesAtOnce);  // also for keys, and to look for pins in; one block at least
  for (; page < end && !lines.is_spent() && rows.size() < rows_max && bytes < kAdminReplyBytesMax; ++page) {
    const PageWord found = core.word(uint32_t(page));
    if (!found.is(PageState::kReady) && !found.is(PageState::kRetiring) && !found.is(PageState::kRetired)) continue;
    if (!passes(filter, uint32_t(page), found)) continue;
    if (filter.pinned) {
      core.meter.add(lanes.look_lines());
      if (!shm::is_pinned(core.region, lanes.in_use, uint32_t(page))) continue;
    }
    json row = block_json(uint32_t(page), found);
    bytes += json_text(row).size();
    rows.push_back(std::move(row));
  }
  json reply = {{"blocks", std::move(rows)}};
  if (page < core.pages()) reply["next"] = page;
  return reply;
}

// The block that "key", "tenant" and "kind" name; none when there is none, with the refusal to answer. Without a kind every
// kind that the key may have is tried.
PageRef Pool::State::named_block(const json& request, shm::Digest* ret_digest, json* ret_refusal) const {
  const std::vector<std::byte> bytes = key_bytes(text_in(request, "key"));
  if (bytes.empty() || bytes.size() > limits::kKeyBytesMax) {
    *ret_refusal = refusal(EINVAL, "\"key\" is text, or 0x and hexadecimal digits");
    return PageRef::none();
  }
  const std::string wanted_kind = text_in(request, "kind");
  const std::optional<uint64_t> given = tenants.tenant_in(request);
  if (!given) {
    *ret_refusal = refusal(EINVAL, kTenantText);
    return PageRef::none();
  }
  const uint64_t tenant = *given;
  uint64_t words[4] = {};
  std::memcpy(words, bytes.data(), std::min(bytes.size(), sizeof(words)));
  PageRef ref = PageRef::none();
  for (uint32_t kind = 0; kind < std::size(kKindNames) && ref.is_none(); ++kind) {
    if (!wanted_kind.empty() && wanted_kind != kKindNames[kind]) continue;
    if ((kind == 1 && bytes.size() != 16) || (kind == 2 && bytes.size() != 32)) continue;
    *ret_digest = kind == 0   ? shm::digest_of_bytes(core.region.secret(), bytes, tenant)
                  : kind == 1 ? shm::digest_of_128(core.region.secret(), words[0], words[1], tenant)
                              : shm::digest_of_256(core.region.secret(), words, tenant);
    ref = shm::find_unpinned(core.region, *ret_digest);
  }
  if (ref.is_none()) *ret_refusal = refusal(ENOENT, "no block is stored under this key");
  return ref;
}

json Pool::State::one_block(const json& request) {
  shm::Digest digest;
  json none;
  const PageRef ref = named_block(request, &digest, &none);
  if (ref.is_none()) return none;
  json row = block_json(ref.page(), core.word(ref.page()));
  put_metadata(ref, row);
  json pinned_by = json::array();
  uint64_t pinners = 0;
  lanes.in_use.for_each(core.region.lanes(), [&](uint32_t lane) {
    shm::LaneSet one;
    one.add(lane);
    if (!shm::is_pinned(core.region, one, ref.page())) return;
    if (++pinners <= kPinnersNamedMax)  // so many that a reply has room for them
      pinned_by.push_back({{"lane", lane}, {"pid", int64_t(lanes.records[lane].who.pid)}});
  });
  row["pinned_by"] = std::move(pinned_by);
  row["pinned_by_count"] = pinners;
  return row;
}

// -- status -----------------------------------------------------------------------------------------------------------

json Pool::State::status(const metrics::PageCensus& census) const {
  const format::Parameters& parameters = core.region.parameters();
  json page_states = json::object(), region_states = json::object();
  const auto& counts = census.states;
  for (uint32_t i = 0; i < format::kPageStateCount; ++i) page_states[page_state_name(PageState(i))] = counts[i];
  uint64_t by_state[4] = {};
  for (const RegionEntry& entry : regions) ++by_state[uint32_t(entry.state)];
  for (uint32_t i = 0; i < 4; ++i) region_states[state_name(RegionState(i))] = by_state[i];
  uint64_t live = 0, reclaiming = 0;
  json counters = json::object();
  for (uint32_t lane = 1; lane < core.region.lanes(); ++lane) {
    live += lanes.is_live(lane);
    reclaiming += lanes.records[lane].phase == LaneRecord::Phase::kReclaiming;
  }
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i) {
    uint64_t sum = core.totals.counters[i];
    for (uint32_t lane = 1; lane < core.region.lanes(); ++lane)
      if (lanes.is_live(lane)) sum += core.region.lane_header(lane).counter(i);
    counters[kCounterNames[i]] = sum;
  }
  const uint64_t blocks = counts[uint32_t(PageState::kReady)] + counts[uint32_t(PageState::kRetiring)];
  const uint64_t free_pages = counts[uint32_t(PageState::kFree)];
  json reply = {
      {"name", core.config.name},
      {"epoch", core.epoch},
      {"pool_bytes", parameters.pool_bytes},
      {"control_bytes", core.region.layout().control_bytes},
      {"page_bytes", parameters.page_bytes},
      {"pages", core.pages()},
      {"page_states", std::move(page_states)},
      {"region_bytes", parameters.region_pages * parameters.page_bytes},
      {"regions", regions.size()},
      {"region_states", std::move(region_states)},
      {"lanes",
       {{"max", core.region.lanes() - 1}, {"live", live}, {"unproven", lanes.unproven()}, {"reclaiming", reclaiming}}},
      {"blocks", blocks},
      {"block_bytes", census.block_bytes},
      {"evicted_blocks", core.totals.evicted()},
      {"evicted_by",
       {{"request", core.totals.evicted_blocks[size_t(EvictReason::kRequest)]},
        {"background", core.totals.evicted_blocks[size_t(EvictReason::kBackground)]},
        {"takeover", core.totals.evicted_blocks[size_t(EvictReason::kTakeover)]},
        {"expired", core.totals.evicted_blocks[size_t(EvictReason::kExpired)]},
        {"admin", core.totals.evicted_blocks[size_t(EvictReason::kAdmin)]}}},
      {"evicted_pages", core.totals.evicted_pages},
      {"regions_taken", core.totals.regions_taken},
      {"expired_blocks", core.totals.evicted_blocks[size_t(EvictReason::kExpired)]},
      {"background_wakes", core.totals.background_wakes},
      {"refused_rents", core.totals.refused_rents},
      {"clients_reclaimed", core.totals.clients_reclaimed},
      {"lost_touches", lanes.lost_touches()},
      {"queues_rebuilt", core.totals.queues_rebuilt},
      {"longest_turn_lines", core.totals.turn_lines_max},
      {"policy", core.config.policy},
      {"policy_options", options_json(core.config.policy_options)},
      {"high_watermark", core.config.high_watermark},
      {"low_watermark", core.config.low_watermark},
      {"in_use_bytes", regions.pages_in_use * parameters.page_bytes},
      {"is_evicting", background.is_evicting()},
      {"pin_overdue_ms", core.config.pin_overdue_ms},
      {"pins_overdue", pins_overdue()},
      {"pins_overdue_total", pins_overdue_total},
      {"retired_waiting", retired.size()},
      {"tenants", tenants.status(census.no_tenant_bytes)},
      {"held_blocks", held.size()},
      {"counters", std::move(counters)}};
  uint64_t rents = 0;
  json by_time = json::array();  // how many took no longer than 100 ns, 1 us and so on to 10 s, and how many longer
  for (size_t i = 0; i <= metrics::Histogram::kBoundsNs.size(); ++i) {
    rents += core.totals.rent_latency.count(i);
    by_time.push_back(core.totals.rent_latency.count(i));
  }
  reply["rents"] = rents;
  reply["rents_by_time"] = std::move(by_time);
  reply["rents_us"] = core.totals.rent_latency.sum_ns() / 1000;  // from when each came to its answer
  // Of the FREE pages, the share that is not in the longest run of them.
  reply["fragmentation_percent"] = free_pages == 0 ? 0 : (free_pages - census.longest_free) * 100 / free_pages;
  if (!audit_json.empty()) reply["audit"] = audit_json;
  if (room.is_asked()) reply["unreserved_bytes"] = room.lacking_bytes();
  if (!room.full_because().empty()) reply["full_because"] = room.full_because();
  if (const auto hosts_now = hosts_by_state())
    reply["hosts"] = {{"live", (*hosts_now)[0]}, {"suspect", (*hosts_now)[1]}, {"dead", (*hosts_now)[2]}};
  return reply;
}

json Pool::State::lane_status(uint32_t lane) const {
  if (!lanes.is_live(lane)) return json::object();
  const shm::LaneView view = core.region.lane(lane);
  json counters = json::object();
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i) counters[kCounterNames[i]] = view.header->counter(i);
  const PinSummary pinned = pins_of(lane);
  const uint64_t rented = regions.regions_of(lanes.id(lane)).size();
  return {{"generation", lanes.records[lane].generation},
          {"attached_ms", lanes.records[lane].attached_ms},
          {"pins", pinned.pins},
          {"pins_overdue", pinned.overdue},
          {"oldest_pin_ms", pinned.oldest_ms ? json(*pinned.oldest_ms) : json(nullptr)},
          {"regions", rented},
          {"region_bytes", rented * core.region.region_pages() * core.region.page_bytes()},
          {"lost_touches", lanes.records[lane].lost()},
          {"counters", std::move(counters)}};
}

}  // namespace maru::daemon
