// Pins that people look at: who holds which block, for how long, and which are overdue. Nothing here ends a pin: only its
// owner does, or proof that its owner is dead (lanes/reclaim.cc).
//
// A pin is overdue when the process has held its block for `pin_overdue_ms` and nobody, in any process, has used the block
// anew in that time. The slot of a pin says which block it holds and not since when, so a block that a process pins again
// and again would look like one long pin; its uses tell the two apart. A pin that really was forgotten on a block in steady
// use is noticed when the use ends, and until then it keeps nothing from being evicted that would have gone.
#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "daemon/pool/state.h"

#include <algorithm>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kPinSlotsPerList = 1u << 16;
constexpr size_t kOverdueNamedMax = 256;  // between two questions for what has become overdue

uint64_t since(uint64_t now_ms, uint64_t then_ms) { return now_ms > then_ms ? now_ms - then_ms : 0; }

}  // namespace

PageRef Pool::State::pin_in(uint32_t lane, uint64_t slot) const {
  const shm::LaneView view = core.region.lane(lane);
  return PageRef::from_bits(slot < view.pins.size() ? view.pins[slot].load_relaxed()  // only looked at
                                                    : view.pin_overflow[slot - view.pins.size()].load_relaxed());
}

// The age of what this slot holds now; nothing when it was not looked at yet, or is one of more than are remembered.
const PinAge* Pool::State::age_of(uint32_t lane, uint64_t slot, PageRef ref) const {
  const auto found = pin_ages.by_slot.find(uint64_t(lane) << 32 | slot);
  return found != pin_ages.by_slot.end() && found->second.ref == ref.bits ? &found->second : nullptr;
}

bool Pool::State::is_overdue(const PinAge& age) const {
  if (since(core.now_ms, age.since_ms) < core.config.pin_overdue_ms) return false;
  const PageRef ref = PageRef::from_bits(age.ref);
  if (!core.region.is_page(ref)) return false;
  const uint64_t last_use_ms = core.region.header().created_unix_ms + queues.tick_of(ref.page(), ref.generation());
  return since(core.now_ms, last_use_ms) >= core.config.pin_overdue_ms;
}

// A pin never moves to another slot, so its age is that of what is in the slot. Looked at from time to time: an age is
// known as exactly as the looks are frequent.
void Pool::State::look_at_pins(uint64_t slots) {
  uint64_t lanes_skipped = 0;
  while (slots > 0 && lanes_skipped <= core.region.lanes()) {
    if (pin_look_next >= core.pin_slots() * core.region.lanes()) pin_look_next = 0;
    const auto lane = uint32_t(pin_look_next / core.pin_slots());
    const auto slot = uint32_t(pin_look_next % core.pin_slots());
    if (!lanes.is_live(lane)) {
      pin_look_next = (lane + 1) * core.pin_slots();
      ++lanes_skipped;
      continue;
    }
    ++pin_look_next;
    --slots;
    const PageRef ref = pin_in(lane, slot);
    pin_look_count = (slot == 0 ? 0 : pin_look_count) + (ref.bits != 0);
    if (slot + 1 == core.pin_slots()) lanes.records[lane].pins_seen = pin_look_count;
    const uint64_t id = uint64_t(lane) << 32 | slot;
    if (ref.bits == 0) {
      if (!pin_ages.by_slot.empty()) pin_ages.by_slot.erase(id);
    } else if (auto found = pin_ages.by_slot.find(id);
               found != pin_ages.by_slot.end() && found->second.ref == ref.bits) {
      if (!found->second.is_counted && is_overdue(found->second)) count_overdue(lane, found->second);
    } else if (found != pin_ages.by_slot.end() || pin_ages.by_slot.size() < kPinAgesMax) {
      pin_ages.by_slot[id] = {ref.bits, core.now_ms};
    }
  }
}

void Pool::State::count_overdue(uint32_t lane, PinAge& age) {
  age.is_counted = true;
  ++pins_overdue_total;
  if (overdue_news.pins.size() >= kOverdueNamedMax) {
    ++overdue_news.unnamed;
    return;
  }
  const PageRef ref = PageRef::from_bits(age.ref);
  const bool has_key = shm::read_key(core.region, ref, &core.key);
  overdue_news.pins.push_back({lane, lanes.records[lane].who.pid, ref.page(),
                               has_key ? key_text({core.key.data, core.key.size}) : std::string(),
                               since(core.now_ms, age.since_ms)});
}

uint64_t Pool::State::pins_overdue() const {
  return uint64_t(std::count_if(pin_ages.by_slot.begin(), pin_ages.by_slot.end(), [&](const auto& entry) {
    const auto lane = uint32_t(entry.first >> 32);
    return lanes.is_live(lane) && pin_in(lane, uint32_t(entry.first)).bits == entry.second.ref &&
           is_overdue(entry.second);
  }));
}

Pool::State::PinSummary Pool::State::pins_of(uint32_t lane) const {
  PinSummary summary;
  for (uint64_t slot = 0; slot < core.pin_slots(); ++slot) {
    const PageRef ref = pin_in(lane, slot);
    if (ref.bits == 0) continue;
    ++summary.pins;
    const PinAge* age = age_of(lane, slot, ref);
    if (!age) continue;
    summary.overdue += is_overdue(*age);
    summary.oldest_ms = std::max(summary.oldest_ms.value_or(0), since(core.now_ms, age->since_ms));
  }
  return summary;
}

json Pool::State::list_pins(const json& request) {
  const uint64_t rows_max = rows_in(request);
  const bool only_overdue = flag_in(request, "overdue");
  const uint64_t end = core.pin_slots() * core.region.lanes();
  json rows = json::array();
  size_t bytes = 0;
  uint64_t at = std::min(number_in(request, "cursor", 0), end);
  for (uint64_t steps = 0;
       at < end && steps < kPinSlotsPerList && rows.size() < rows_max && bytes < kAdminReplyBytesMax; ++steps) {
    const auto lane = uint32_t(at / core.pin_slots());
    const auto slot = uint32_t(at % core.pin_slots());
    if (!lanes.is_live(lane)) {
      at = (lane + 1) * core.pin_slots();
      continue;
    }
    ++at;
    const PageRef ref = pin_in(lane, slot);
    if (!core.region.is_page(ref)) continue;
    const PinAge* age = age_of(lane, slot, ref);
    const bool overdue = age && is_overdue(*age);
    if (only_overdue && !overdue) continue;
    json row = {{"lane", lane},
                {"pid", int64_t(lanes.records[lane].who.pid)},
                {"page", ref.page()},
                {"generation", ref.generation()},
                {"age_ms", age ? json(since(core.now_ms, age->since_ms)) : json(nullptr)},
                {"overdue", overdue}};
    row["key"] =
        shm::read_key(core.region, ref, &core.key) ? json(key_text({core.key.data, core.key.size})) : json(nullptr);
    if (!row["key"].is_null()) tenants.put_tenant(core.key.tenant, row);
    constexpr size_t kHolderBytes = 96;  // whoever sends the reply adds the process's name and user
    bytes += json_text(row).size() + kHolderBytes;
    rows.push_back(std::move(row));
  }
  json reply = {{"pins", std::move(rows)}};
  if (at < end) reply["next"] = at;
  return reply;
}

OverduePins Pool::take_overdue_pins() { return std::exchange(state_->overdue_news, {}); }

void Pool::add_uses(std::map<uid_t, UserUse>& uses) const {
  const State& state = *state_;
  std::vector<uint64_t> rented(state.lanes.records.size(), 0), found(rented);
  for (const RegionEntry& entry : state.regions) {
    if (entry.state != RegionState::kRented || entry.owner.lane >= rented.size()) continue;
    ++rented[entry.owner.lane];
    found[entry.owner.lane] += entry.was_found;
  }
  const uint64_t region_bytes = state.core.region.region_pages() * state.core.region.page_bytes();
  for (uint32_t lane = state.lanes.first + 1; lane < state.lanes.end; ++lane) {
    if (!state.lanes.is_live(lane)) continue;
    UserUse& use = uses[state.lanes.records[lane].who.uid];
    use.regions += rented[lane];
    use.bytes += rented[lane] * region_bytes;
    use.found_regions += found[lane];
    use.found_bytes += found[lane] * region_bytes;
    use.pins += state.lanes.records[lane].pins_seen;
  }
}

}  // namespace maru::daemon
