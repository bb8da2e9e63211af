#include "daemon/pool/inspect/pin_watch.h"

#include "daemon/base/json_text.h"
#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/tenant_rows.h"

#include <algorithm>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr uint64_t kPinSlotsPerList = 1u << 16;
constexpr size_t kOverdueNamedMax = 256;  // between two questions for newly overdue pins

uint64_t since(uint64_t now_ms, uint64_t then_ms) { return now_ms > then_ms ? now_ms - then_ms : 0; }

}  // namespace

PageRef PinWatch::pin_in(uint32_t lane, uint64_t slot) const {
  const shm::LaneView view = core_.region.lane(lane);
  return PageRef::from_bits(slot < view.pins.size() ? view.pins[slot].load_relaxed()  // only looked at
                                                    : view.pin_overflow[slot - view.pins.size()].load_relaxed());
}

// The age of the slot's present pin; nothing when it was not looked at yet, or when too many pins are remembered already.
const PinAge* PinWatch::age_of(uint32_t lane, uint64_t slot, PageRef ref) const {
  const auto found = pin_ages_.by_slot.find(uint64_t(lane) << 32 | slot);
  return found != pin_ages_.by_slot.end() && found->second.ref == ref.bits ? &found->second : nullptr;
}

bool PinWatch::is_overdue(const PinAge& age) const {
  if (since(core_.now_ms, age.since_ms) < core_.config.pin_overdue_ms) return false;
  const PageRef ref = PageRef::from_bits(age.ref);
  if (!core_.region.is_page(ref)) return false;
  const uint64_t last_use_ms = core_.region.header().created_unix_ms + queues_.tick_of(ref.page(), ref.generation());
  return since(core_.now_ms, last_use_ms) >= core_.config.pin_overdue_ms;
}

// A pin never moves to another slot, so its age is the age of the slot's content. Looked at from time to time: an age is
// known as exactly as the looks are frequent.
void PinWatch::look(uint64_t slots) {
  uint64_t lanes_skipped = 0;
  while (slots > 0 && lanes_skipped <= core_.region.lanes()) {
    if (next_ >= core_.pin_slots() * core_.region.lanes()) next_ = 0;
    const auto lane = uint32_t(next_ / core_.pin_slots());
    const auto slot = uint32_t(next_ % core_.pin_slots());
    if (!lanes_.is_live(lane)) {
      next_ = (lane + 1) * core_.pin_slots();
      ++lanes_skipped;
      continue;
    }
    ++next_;
    --slots;
    const PageRef ref = pin_in(lane, slot);
    count_ = (slot == 0 ? 0 : count_) + (ref.bits != 0);
    if (slot + 1 == core_.pin_slots()) lanes_.records[lane].pins_seen = count_;
    const uint64_t id = uint64_t(lane) << 32 | slot;
    if (ref.bits == 0) {
      if (!pin_ages_.by_slot.empty()) pin_ages_.by_slot.erase(id);
    } else if (auto found = pin_ages_.by_slot.find(id);
               found != pin_ages_.by_slot.end() && found->second.ref == ref.bits) {
      if (!found->second.is_counted && is_overdue(found->second)) count_overdue(lane, found->second);
    } else if (found != pin_ages_.by_slot.end() || pin_ages_.by_slot.size() < kPinAgesMax) {
      pin_ages_.by_slot[id] = {ref.bits, core_.now_ms};
    }
  }
}

void PinWatch::count_overdue(uint32_t lane, PinAge& age) {
  age.is_counted = true;
  ++overdue_total_;
  if (news_.pins.size() >= kOverdueNamedMax) {
    ++news_.unnamed;
    return;
  }
  const PageRef ref = PageRef::from_bits(age.ref);
  const bool has_key = shm::read_key(core_.region, ref, &core_.key);
  news_.pins.push_back({lane, lanes_.records[lane].who.pid, ref.page(),
                        has_key ? key_text({core_.key.data, core_.key.size}) : std::string(),
                        since(core_.now_ms, age.since_ms)});
}

uint64_t PinWatch::overdue() const {
  return uint64_t(std::count_if(pin_ages_.by_slot.begin(), pin_ages_.by_slot.end(), [&](const auto& entry) {
    const auto lane = uint32_t(entry.first >> 32);
    return lanes_.is_live(lane) && pin_in(lane, uint32_t(entry.first)).bits == entry.second.ref &&
           is_overdue(entry.second);
  }));
}

PinWatch::PinSummary PinWatch::pins_of(uint32_t lane) const {
  PinSummary summary;
  for (uint64_t slot = 0; slot < core_.pin_slots(); ++slot) {
    const PageRef ref = pin_in(lane, slot);
    if (ref.bits == 0) continue;
    ++summary.pins;
    const PinAge* age = age_of(lane, slot, ref);
    if (!age) continue;
    summary.overdue += is_overdue(*age);
    summary.oldest_ms = std::max(summary.oldest_ms.value_or(0), since(core_.now_ms, age->since_ms));
  }
  return summary;
}

json PinWatch::list(const json& request) {
  const uint64_t rows_max = rows_in(request);
  const bool only_overdue = flag_in(request, "overdue");
  const uint64_t end = core_.pin_slots() * core_.region.lanes();
  json rows = json::array();
  size_t bytes = 0;
  uint64_t at = std::min(number_in(request, "cursor", 0), end);
  for (uint64_t steps = 0;
       at < end && steps < kPinSlotsPerList && rows.size() < rows_max && bytes < kAdminReplyBytesMax; ++steps) {
    const auto lane = uint32_t(at / core_.pin_slots());
    const auto slot = uint32_t(at % core_.pin_slots());
    if (!lanes_.is_live(lane)) {
      at = (lane + 1) * core_.pin_slots();
      continue;
    }
    ++at;
    const PageRef ref = pin_in(lane, slot);
    if (!core_.region.is_page(ref)) continue;
    const PinAge* age = age_of(lane, slot, ref);
    const bool overdue = age && is_overdue(*age);
    if (only_overdue && !overdue) continue;
    json row = {{"lane", lane},
                {"pid", int64_t(lanes_.records[lane].who.pid)},
                {"page", ref.page()},
                {"generation", ref.generation()},
                {"age_ms", age ? json(since(core_.now_ms, age->since_ms)) : json(nullptr)},
                {"overdue", overdue}};
    row["key"] =
        shm::read_key(core_.region, ref, &core_.key) ? json(key_text({core_.key.data, core_.key.size})) : json(nullptr);
    if (!row["key"].is_null()) put_tenant(tenants_, core_.key.tenant, row);
    constexpr size_t kHolderBytes = 96;  // the sender of the reply adds the process's name and user
    bytes += json_text(row).size() + kHolderBytes;
    rows.push_back(std::move(row));
  }
  json reply = {{"pins", std::move(rows)}};
  if (at < end) reply["next"] = at;
  return reply;
}

}  // namespace maru::daemon
