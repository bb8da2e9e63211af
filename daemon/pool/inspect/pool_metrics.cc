// A pool's facts in numbers, for graphs.
#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/pool_status.h"

#include <algorithm>

namespace maru::daemon {

bool PoolStatus::take_census(metrics::PageCensus& census, uint64_t count) const {
  const uint64_t to = census.next + std::min(count, core_.pages() - std::min(core_.pages(), census.next));
  for (; census.next < to; ++census.next) {
    const auto page = uint32_t(census.next);
    const PageState state = core_.word(page).state();
    ++census.states[uint32_t(state) % census.states.size()];
    const bool is_free = state == PageState::kFree;
    census.free_in_a_row = is_free && page % core_.region.region_pages() != 0 ? census.free_in_a_row + 1 : is_free;
    census.longest_free = std::max(census.longest_free, census.free_in_a_row);
    if (state == PageState::kReady || state == PageState::kRetiring)
      census.block_bytes += std::min(format::payload_bytes_of(core_.region.block(page).length.load_relaxed()),
                                     core_.region.run_pages(page) * core_.region.page_bytes());
    uint64_t tenant = 0;
    if (const uint64_t bytes = shm::block_bytes(core_.region, page, &tenant); tenant == 0)
      census.no_tenant_bytes += bytes;
  }
  return census.next >= core_.pages();
}

void PoolStatus::fill(metrics::PoolSnapshot& snapshot) {
  static_assert(metrics::kEvictReasons == kEvictReasonCount);
  core_.totals.settle_evictions(core_.config.policy);
  const format::Parameters& parameters = core_.region.parameters();
  snapshot.pool_bytes = parameters.pool_bytes;
  snapshot.page_bytes = parameters.page_bytes;
  for (const RegionEntry& entry : regions_) ++snapshot.regions[uint32_t(entry.state) % snapshot.regions.size()];
  snapshot.lanes_max = core_.region.lanes() - 1;
  snapshot.lanes_unproven = lanes_.unproven();
  snapshot.counters = core_.totals.counters;
  for (uint32_t lane = 1; lane < core_.region.lanes(); ++lane) {
    snapshot.lanes_reclaiming += lanes_.records[lane].phase == LaneRecord::Phase::kReclaiming;
    if (!lanes_.is_live(lane)) continue;
    ++snapshot.lanes_live;
    for (uint32_t i = 0; i < format::kLaneCounterCount; ++i)
      snapshot.counters[i] += core_.region.lane_header(lane).counter(i);
  }
  snapshot.rent_latency = core_.totals.rent_latency;
  snapshot.rents_refused = core_.totals.refused_rents;
  snapshot.policy = core_.config.policy;
  snapshot.high_watermark = core_.config.high_watermark;
  snapshot.low_watermark = core_.config.low_watermark;
  snapshot.is_evicting = background_.is_evicting();
  snapshot.evicted_blocks = core_.totals.evicted_before;
  snapshot.evicted_pages = core_.totals.all_evicted_pages();
  snapshot.regions_taken = core_.totals.regions_taken;
  snapshot.background_wakes = core_.totals.background_wakes;
  snapshot.lost_touches = lanes_.lost_touches();
  snapshot.queues_rebuilt = core_.totals.queues_rebuilt;
  snapshot.lines_read = core_.meter.read();
  snapshot.pins = pin_ages_.by_slot.size();
  snapshot.pins_overdue = pin_watch_.overdue();
  snapshot.pins_overdue_total = pin_watch_.overdue_total();
  snapshot.retired_blocks = retired_.size();
  snapshot.held_blocks = held_.size();
  snapshot.clients_reclaimed = core_.totals.clients_reclaimed;
  snapshot.reclaimed_pages = findings_.freed;
  snapshot.audits = core_.totals.audits;
  if (const auto found = audits_.last().find("found"); found != audits_.last().end()) {
    snapshot.audit_findings = found->get<uint64_t>();
    snapshot.audited_unix_ms = audits_.last()["at_ms"].get<uint64_t>();
  }
  snapshot.hosts = host_lists_.hosts_by_state();
  snapshot.unreserved_bytes = room_.lacking_bytes();

  tenants_.read_accounts();
  const TenantTable& table = tenants_.table();
  snapshot.tenant_place_refusals = tenants_.refusals_without_place();
  for (uint32_t index = 0; index < table.size(); ++index) {
    const TenantTable::Row& row = table.row(index);
    if (row.id == 0 && index != 0) continue;
    const std::string name = row.name.empty() ? "" : tenant_name_text(row.name);
    // No account has the bytes of blocks of no tenant. The pages have them, each as it was when the census came to it.
    const uint64_t used_bytes = row.used_bytes + (index == 0 ? snapshot.census.no_tenant_bytes : 0);
    snapshot.tenants.push_back({name, row.id, used_bytes, row.soft_bytes, row.hard_bytes, tenants_.refusals(index)});
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

}  // namespace maru::daemon
