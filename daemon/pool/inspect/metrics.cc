// What a pool says of itself in numbers, for graphs. Nothing here walks the pool in one go: the census is taken in steps.
#include "daemon/base/request_fields.h"
#include "daemon/pool/state.h"

#include <algorithm>

namespace maru::daemon {

bool Pool::State::take_census(metrics::PageCensus& census, uint64_t count) const {
  const uint64_t to = census.next + std::min(count, core.pages() - std::min(core.pages(), census.next));
  for (; census.next < to; ++census.next) {
    const auto page = uint32_t(census.next);
    const PageState state = core.word(page).state();
    ++census.states[uint32_t(state) % census.states.size()];
    const bool is_free = state == PageState::kFree;
    census.free_in_a_row = is_free && page % core.region.region_pages() != 0 ? census.free_in_a_row + 1 : is_free;
    census.longest_free = std::max(census.longest_free, census.free_in_a_row);
    if (state == PageState::kReady || state == PageState::kRetiring)
      census.block_bytes += std::min(format::payload_bytes_of(core.region.block(page).length.load_relaxed()),
                                     core.region.run_pages(page) * core.region.page_bytes());
    uint64_t tenant = 0;
    if (const uint64_t bytes = shm::block_bytes(core.region, page, &tenant); tenant == 0)
      census.no_tenant_bytes += bytes;
  }
  return census.next >= core.pages();
}

void Pool::State::fill(metrics::PoolSnapshot& snapshot) {
  static_assert(metrics::kEvictReasons == kEvictReasonCount);
  core.totals.settle_evictions(core.config.policy);
  const format::Parameters& parameters = core.region.parameters();
  snapshot.pool_bytes = parameters.pool_bytes;
  snapshot.page_bytes = parameters.page_bytes;
  for (const RegionEntry& entry : regions) ++snapshot.regions[uint32_t(entry.state) % snapshot.regions.size()];
  snapshot.lanes_max = core.region.lanes() - 1;
  snapshot.lanes_unproven = lanes.unproven();
  snapshot.counters = core.totals.counters;
  for (uint32_t lane = 1; lane < core.region.lanes(); ++lane) {
    snapshot.lanes_reclaiming += lanes.records[lane].phase == LaneRecord::Phase::kReclaiming;
    if (!lanes.is_live(lane)) continue;
    ++snapshot.lanes_live;
    for (uint32_t i = 0; i < format::kLaneCounterCount; ++i)
      snapshot.counters[i] += core.region.lane_header(lane).counter(i);
  }
  snapshot.rent_latency = core.totals.rent_latency;
  snapshot.rents_refused = core.totals.refused_rents;
  snapshot.policy = core.config.policy;
  snapshot.high_watermark = core.config.high_watermark;
  snapshot.low_watermark = core.config.low_watermark;
  snapshot.is_evicting = background.is_evicting();
  snapshot.evicted_blocks = core.totals.evicted_before;
  snapshot.evicted_pages = core.totals.evicted_pages;
  snapshot.regions_taken = core.totals.regions_taken;
  snapshot.background_wakes = core.totals.background_wakes;
  snapshot.lost_touches = lanes.lost_touches();
  snapshot.queues_rebuilt = core.totals.queues_rebuilt;
  snapshot.lines_read = core.meter.read();
  snapshot.pins = pin_ages.by_slot.size();
  snapshot.pins_overdue = pins_overdue();
  snapshot.pins_overdue_total = pins_overdue_total;
  snapshot.retired_blocks = retired.size();
  snapshot.held_blocks = held.size();
  snapshot.clients_reclaimed = core.totals.clients_reclaimed;
  snapshot.reclaimed_pages = findings.freed;
  snapshot.audits = core.totals.audits;
  if (const auto found = audit_json.find("found"); found != audit_json.end()) {
    snapshot.audit_findings = found->get<uint64_t>();
    snapshot.audited_unix_ms = audit_json["at_ms"].get<uint64_t>();
  }
  snapshot.hosts = hosts_by_state();
  snapshot.unreserved_bytes = room.lacking_bytes();

  tenants.read_accounts();
  const TenantTable& table = tenants.table();
  snapshot.tenant_place_refusals = tenants.refusals_without_place();
  for (uint32_t index = 0; index < table.size(); ++index) {
    const TenantTable::Row& row = table.row(index);
    if (row.id == 0 && index != 0) continue;
    const std::string name = row.name.empty() ? "" : tenant_name_text(row.name);
    // No account says what blocks of no tenant use: the pages do, each as it was when the census came to it.
    const uint64_t used_bytes = row.used_bytes + (index == 0 ? snapshot.census.no_tenant_bytes : 0);
    snapshot.tenants.push_back({name, row.id, used_bytes, row.soft_bytes, row.hard_bytes, tenants.refusals(index)});
  }
  const auto uses_more = [](const metrics::TenantUse& a, const metrics::TenantUse& b) {
    return a.used_bytes > b.used_bytes;
  };
  if (snapshot.tenants.size() > metrics::kTenantsShown) {
    const auto cut = snapshot.tenants.begin() + metrics::kTenantsShown;
    std::nth_element(snapshot.tenants.begin(), cut, snapshot.tenants.end(), uses_more);
    for (auto left_out = cut; left_out != snapshot.tenants.end(); ++left_out) {
      ++snapshot.tenants_left_out;
      snapshot.tenants_left_out_bytes += left_out->used_bytes;
    }
    snapshot.tenants.erase(cut, snapshot.tenants.end());
  }
}

bool Pool::take_census(metrics::PageCensus& census, uint64_t pages) const { return state_->take_census(census, pages); }
void Pool::fill(metrics::PoolSnapshot& snapshot) { state_->fill(snapshot); }

}  // namespace maru::daemon
