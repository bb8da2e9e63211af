#include "daemon/pool/inspect/pool_status.h"

#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/names.h"
#include "daemon/pool/inspect/tenant_rows.h"

#include <algorithm>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kPagesPerList = 1u << 16;  // looked at for one reply

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

json PoolStatus::list_regions(const json& request) {
  const uint64_t rows_max = rows_in(request);
  json rows = json::array();
  uint64_t i = number_in(request, "cursor", 0);
  for (; i < regions_.size() && rows.size() < rows_max; ++i) {
    const RegionEntry& entry = regions_[i];
    uint32_t free_pages = 0, used_pages = 0;
    for (uint32_t k = 0; k < core_.region.region_pages(); ++k) {
      const PageState state = core_.word(uint32_t(i) * core_.region.region_pages() + k).state();
      free_pages += state == PageState::kFree;
      used_pages += state != PageState::kFree && state != PageState::kOut && state != PageState::kPoisoned;
    }
    uint64_t queued = 0;
    queues_.for_shelves(uint32_t(i), [&](uint32_t shelf) { queued += queues_.order.count(shelf); });
    json row = {{"region", i},
                {"state", state_name(entry.state)},
                {"generation", entry.generation},
                {"pages", core_.region.region_pages()},
                {"free_pages", free_pages},
                {"used_pages", used_pages},
                {"queued_blocks", std::min<uint64_t>(queued, core_.region.region_pages())}};
    if (entry.state == RegionState::kRented) {
      row["lane"] = entry.owner.lane;
      row["pid"] = int64_t(lanes_.records[entry.owner.lane].who.pid);
    }
    rows.push_back(std::move(row));
    if (rows.size() * uint64_t(core_.region.region_pages()) >= 4 * kPagesPerList) {
      ++i;
      break;
    }
  }
  json reply = {{"regions", std::move(rows)}};
  if (i < regions_.size()) reply["next"] = i;
  return reply;
}

json PoolStatus::status(const metrics::PageCensus& census) const {
  const format::Parameters& parameters = core_.region.parameters();
  json page_states = json::object(), region_states = json::object();
  const auto& counts = census.states;
  for (uint32_t i = 0; i < format::kPageStateCount; ++i) page_states[page_state_name(PageState(i))] = counts[i];
  uint64_t by_state[4] = {};
  for (const RegionEntry& entry : regions_) ++by_state[uint32_t(entry.state)];
  for (uint32_t i = 0; i < 4; ++i) region_states[state_name(RegionState(i))] = by_state[i];
  uint64_t live = 0, reclaiming = 0;
  json counters = json::object();
  for (uint32_t lane = 1; lane < core_.region.lanes(); ++lane) {
    live += lanes_.is_live(lane);
    reclaiming += lanes_.records[lane].phase == LaneRecord::Phase::kReclaiming;
  }
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i) {
    uint64_t sum = core_.totals.counters[i];
    for (uint32_t lane = 1; lane < core_.region.lanes(); ++lane)
      if (lanes_.is_live(lane)) sum += core_.region.lane_header(lane).counter(i);
    counters[kCounterNames[i]] = sum;
  }
  const uint64_t blocks = counts[uint32_t(PageState::kReady)] + counts[uint32_t(PageState::kRetiring)];
  const uint64_t free_pages = counts[uint32_t(PageState::kFree)];
  json reply = {{"name", core_.config.name},
                {"epoch", core_.epoch},
                {"pool_bytes", parameters.pool_bytes},
                {"control_bytes", core_.region.layout().control_bytes},
                {"page_bytes", parameters.page_bytes},
                {"pages", core_.pages()},
                {"page_states", std::move(page_states)},
                {"region_bytes", parameters.region_pages * parameters.page_bytes},
                {"regions", regions_.size()},
                {"region_states", std::move(region_states)},
                {"lanes",
                 {{"max", core_.region.lanes() - 1},
                  {"live", live},
                  {"unproven", lanes_.unproven()},
                  {"reclaiming", reclaiming}}},
                {"blocks", blocks},
                {"block_bytes", census.block_bytes},
                {"evicted_blocks", core_.totals.evicted()},
                {"evicted_by",
                 {{"request", core_.totals.evicted_blocks[size_t(EvictReason::kRequest)]},
                  {"background", core_.totals.evicted_blocks[size_t(EvictReason::kBackground)]},
                  {"takeover", core_.totals.evicted_blocks[size_t(EvictReason::kTakeover)]},
                  {"expired", core_.totals.evicted_blocks[size_t(EvictReason::kExpired)]},
                  {"admin", core_.totals.evicted_blocks[size_t(EvictReason::kAdmin)]}}},
                {"evicted_pages", core_.totals.all_evicted_pages()},
                {"regions_taken", core_.totals.regions_taken},
                {"expired_blocks", core_.totals.evicted_blocks[size_t(EvictReason::kExpired)]},
                {"background_wakes", core_.totals.background_wakes},
                {"refused_rents", core_.totals.refused_rents},
                {"clients_reclaimed", core_.totals.clients_reclaimed},
                {"lost_touches", lanes_.lost_touches()},
                {"queues_rebuilt", core_.totals.queues_rebuilt},
                {"longest_turn_lines", core_.totals.turn_lines_max},
                {"policy", core_.config.policy},
                {"policy_options", options_json(core_.config.policy_options)},
                {"high_watermark", core_.config.high_watermark},
                {"low_watermark", core_.config.low_watermark},
                {"in_use_bytes", regions_.pages_in_use * parameters.page_bytes},
                {"is_evicting", background_.is_evicting()},
                {"pin_overdue_ms", core_.config.pin_overdue_ms},
                {"pins_overdue", pin_watch_.overdue()},
                {"pins_overdue_total", pin_watch_.overdue_total()},
                {"retired_waiting", retired_.size()},
                {"tenants", tenants_status(tenants_, census.no_tenant_bytes)},
                {"held_blocks", held_.size()},
                {"counters", std::move(counters)}};
  uint64_t rents = 0;
  json by_time = json::array();  // how many took no longer than 100 ns, 1 us and so on to 10 s, and how many longer
  for (size_t i = 0; i <= metrics::Histogram::kBoundsNs.size(); ++i) {
    rents += core_.totals.rent_latency.count(i);
    by_time.push_back(core_.totals.rent_latency.count(i));
  }
  reply["rents"] = rents;
  reply["rents_by_time"] = std::move(by_time);
  reply["rents_us"] = core_.totals.rent_latency.sum_ns() / 1000;  // from when each came to its answer
  // Of the FREE pages, the share that is not in the longest run of them.
  reply["fragmentation_percent"] = free_pages == 0 ? 0 : (free_pages - census.longest_free) * 100 / free_pages;
  if (!audits_.last().empty()) reply["audit"] = audits_.last();
  if (room_.is_asked()) reply["unreserved_bytes"] = room_.lacking_bytes();
  if (!room_.full_because().empty()) reply["full_because"] = room_.full_because();
  if (const auto hosts_now = host_lists_.hosts_by_state())
    reply["hosts"] = {{"live", (*hosts_now)[0]}, {"suspect", (*hosts_now)[1]}, {"dead", (*hosts_now)[2]}};
  return reply;
}

json PoolStatus::lane(uint32_t lane) const {
  if (!lanes_.is_live(lane)) return json::object();
  const shm::LaneView view = core_.region.lane(lane);
  json counters = json::object();
  for (uint32_t i = 0; i < format::kLaneCounterCount; ++i) counters[kCounterNames[i]] = view.header->counter(i);
  const PinWatch::PinSummary pinned = pin_watch_.pins_of(lane);
  const uint64_t rented = regions_.regions_of(lanes_.id(lane)).size();
  return {{"generation", lanes_.records[lane].generation},
          {"attached_ms", lanes_.records[lane].attached_ms},
          {"pins", pinned.pins},
          {"pins_overdue", pinned.overdue},
          {"oldest_pin_ms", pinned.oldest_ms ? json(*pinned.oldest_ms) : json(nullptr)},
          {"regions", rented},
          {"region_bytes", rented * core_.region.region_pages() * core_.region.page_bytes()},
          {"lost_touches", lanes_.records[lane].lost()},
          {"counters", std::move(counters)}};
}

json PoolStatus::drain() const {
  json row = {{"pages", core_.pages()}};
  if (!drain_.is_on()) return row;
  row["drained"] = drain_.is_done();
  if (!drain_.has_counted()) return row;
  row["left_pages"] = drain_.left().pages;
  row["left_blocks"] = drain_.left().blocks;
  row["pinned_blocks"] = drain_.left().pinned;
  return row;
}

}  // namespace maru::daemon
