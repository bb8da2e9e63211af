#include "libmaru/shm/audit/checks.h"

#include <algorithm>
#include <cstring>

namespace maru::shm::audit_checks {

// -- regions and lists ------------------------------------------------------------------------------------------------

struct RegionWord {
  uint64_t bits;
  RegionState state() const { return RegionState(bits >> 60); }
  uint32_t host() const { return uint32_t(bits >> 28) & 0xFFF; }
  uint32_t lane() const { return uint32_t(bits >> 16) & 0xFFF; }
};

bool region_word(const Audit& a, uint64_t index, Finding* f) {
  const RegionWord word{seen(a.region.region(uint32_t(index)).word)};
  const bool good = uint32_t(word.state()) <= uint32_t(RegionState::kDraining) &&
                    word.host() < a.region.parameters().hosts && word.lane() < a.region.lanes();
  return !good && violated(f, 0, word.bits);
}

bool region_lane(const Audit& a, uint64_t index, Finding* f) {
  const RegionWord word{seen(a.region.region(uint32_t(index)).word)};
  return word.state() == RegionState::kRented && !a.is_live(word.lane()) && violated(f, 0, word.bits);
}

bool region_unused(const Audit& a, uint64_t index, Finding* f) {
  const AtomicU64& word = a.region.region(uint32_t(index)).word;
  const RegionWord before{seen(word)};
  if (before.state() != RegionState::kUnused) return false;
  const uint32_t first = uint32_t(index) * a.region.region_pages();
  for (uint32_t i = 0; i < a.region.region_pages(); ++i) {
    const PageWord page = a.page_word(first + i);
    if (page.is(PageState::kOut) || page.is(PageState::kPoisoned)) continue;
    return seen(word) == before.bits && violated(f, 0, before.bits, first + i, page.bits);
  }
  return false;
}

// All words of the policy table are the caller's own, or have no writer: relaxed.
static bool leads_to(const Audit& a, uint32_t region_index, uint32_t link, uint32_t queue) {
  return link <= a.region.pages() && a.region.region_of(link - 1) == region_index &&
         a.region.policy(link - 1).list.load_relaxed() == queue;
}

bool queue_links(const Audit& a, uint64_t index, Finding* f) {
  const uint32_t region_index = uint32_t(index), first = region_index * a.region.region_pages();
  for (uint32_t page = first; page < first + a.region.region_pages(); ++page) {
    const PolicyEntry& entry = a.region.policy(page);
    const uint32_t queue = entry.list.load_relaxed();
    if (queue == 0) continue;
    const uint32_t newer = entry.newer.load_relaxed(), older = entry.older.load_relaxed();
    if (newer != 0 &&
        (!leads_to(a, region_index, newer, queue) || a.region.policy(newer - 1).older.load_relaxed() != page + 1))
      return violated(f, 0, page, newer, queue);
    if (older != 0 &&
        (!leads_to(a, region_index, older, queue) || a.region.policy(older - 1).newer.load_relaxed() != page + 1))
      return violated(f, 0, page, older, queue);
  }
  return false;
}

// When links agree, an entry is on one way from a cold end to a warm one, or on a cycle.
bool queue_ends(const Audit& a, uint64_t index, Finding* f) {
  if (queue_links(a, index, f)) return false;  // said already
  const uint32_t first = uint32_t(index) * a.region.region_pages();
  uint64_t members = 0, reached = 0;
  for (uint32_t page = first; page < first + a.region.region_pages(); ++page) {
    const PolicyEntry& entry = a.region.policy(page);
    if (entry.list.load_relaxed() == 0) continue;
    ++members;
    if (entry.older.load_relaxed() != 0) continue;
    // Another process may write the links since they were looked at: each is followed only within the region.
    for (uint32_t link = page + 1;
         link - 1 >= first && link - 1 - first < a.region.region_pages() && reached <= a.region.region_pages();
         ++reached)
      link = a.region.policy(link - 1).newer.load_relaxed();
  }
  return members != reached && violated(f, 0, members, reached);
}

// -- lanes ------------------------------------------------------------------------------------------------------------

bool lane_bitmap(const Audit& a, uint64_t, Finding* f) {
  for (uint32_t lane = a.region.lanes(); lane < limits::kLanesMax; ++lane)
    if (a.in_use(lane)) return violated(f, 0, lane, seen(a.region.lane_bitmap().words[lane / 64]));
  return false;
}

bool lane_identity(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t state = seen(a.region.identity(uint32_t(index)).state);
  const bool is_reserved_zero = (state & ~format::kLaneHasLock) << 16 >> 24 == 0;
  const bool has_flag = (state & format::kLaneHasLock) != 0;
  const bool good = (state & 0xFF) <= uint64_t(LaneState::kDead) && is_reserved_zero &&
                    (!has_flag || LaneState(state & 0xFF) == LaneState::kLive);
  return !good && violated(f, 0, state);
}

bool lane_in_use(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t state = seen(a.region.identity(uint32_t(index)).state);
  const bool has_identity = LaneState(state & 0xFF) != LaneState::kFree;
  return index != 0 && a.in_use(index) != has_identity && violated(f, 0, a.in_use(index), state);
}

bool lane_live(const Audit& a, uint64_t index, Finding* f) {
  return a.in_use(index) && !a.is_live(uint32_t(index)) && violated(f, 0, 1);
}

static uint64_t used_slots(std::span<AtomicU64> slots) {
  return uint64_t(std::count_if(slots.begin(), slots.end(), [](const AtomicU64& slot) { return seen(slot) != 0; }));
}

bool lane_unused(const Audit& a, uint64_t index, Finding* f) {
  if (a.in_use(index)) return false;
  const LaneView lane = a.region.lane(uint32_t(index));
  const uint64_t pins = used_slots(lane.pins) + used_slots(lane.pin_overflow) + seen(lane.header->pin_overflow);
  const uint64_t intents = used_slots(lane.header->parent_intent);
  uint64_t others = seen(lane.header->touch_count);
  for (uint32_t i = 0; i < a.region.account_slots(); ++i) others |= seen(a.region.account(uint32_t(index), i).tenant);
  return (pins | intents | others) != 0 && violated(f, 0, pins, intents, others);
}

// The first slot of a lane in use for which `bad(slot, ref)` holds.
template <typename F>
static bool find_pin(const Audit& a, uint64_t index, Finding* f, F&& bad) {
  if (!a.in_use(index)) return false;
  const LaneView lane = a.region.lane(uint32_t(index));
  const uint32_t sets = uint32_t(lane.pins.size());
  for (uint32_t slot = 0; slot < sets + lane.pin_overflow.size(); ++slot) {
    const uint64_t bits = seen(slot < sets ? lane.pins[slot] : lane.pin_overflow[slot - sets]);
    if (bits != 0 && bad(slot, PageRef::from_bits(bits)))
      return violated(f, slot, bits,
                      a.region.is_page(PageRef::from_bits(bits)) ? a.page_word(uint32_t(bits >> 32) - 1).bits : 0);
  }
  return false;
}

bool pin_page(const Audit& a, uint64_t index, Finding* f) {
  return find_pin(a, index, f, [&](uint32_t, PageRef ref) { return !a.region.is_page(ref); });
}

bool pin_set(const Audit& a, uint64_t index, Finding* f) {
  const Layout& layout = a.region.layout();
  return find_pin(a, index, f, [&](uint32_t slot, PageRef ref) {
    return a.region.is_page(ref) && slot < layout.pin_slots &&
           slot - slot % uint32_t(limits::kPinSetSlots) != pin_set_start(layout, ref.page());
  });
}

bool pin_holds(const Audit& a, uint64_t index, Finding* f) {
  return find_pin(a, index, f, [&](uint32_t, PageRef ref) {
    if (!a.region.is_page(ref)) return false;  // kPinPage
    const PageWord word = a.page_word(ref.page());
    return word.generation() != ref.generation() || (!is_block(word) && !word.is(PageState::kPoisoned));
  });
}

bool pin_overflow(const Audit& a, uint64_t index, Finding* f) {
  if (!a.in_use(index)) return false;
  const LaneView lane = a.region.lane(uint32_t(index));
  const uint64_t said = seen(lane.header->pin_overflow), used = used_slots(lane.pin_overflow);
  return said != used && violated(f, 0, said, used);
}

bool lane_intent(const Audit& a, uint64_t index, Finding* f) {
  if (!a.in_use(index)) return false;
  for (const AtomicU64& word : a.region.lane(uint32_t(index)).header->parent_intent) {
    const uint64_t intent = seen(word);  // [pairs lane.intent]
    if (intent != 0 && !a.region.is_page(PageRef::from_bits(intent))) return violated(f, 0, intent);
  }
  return false;
}

bool lane_intent_done(const Audit& a, uint64_t index, Finding* f) {
  if (!a.in_use(index)) return false;
  for (const AtomicU64& word : a.region.lane(uint32_t(index)).header->parent_intent)
    if (const uint64_t intent = seen(word); intent != 0 && a.region.is_page(PageRef::from_bits(intent)))
      return violated(f, 0, intent);
  return false;
}

// -- keys and tenants -------------------------------------------------------------------------------------------------

bool extent_owner(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t owner = seen(a.region.key_extent_owner(index));
  return owner != 0 && !a.region.is_page(PageRef::from_bits(owner)) && violated(f, 0, owner);
}

bool tenant_name(const Audit& a, uint64_t index, Finding* f) {
  const TenantRecord& tenant = a.region.tenant(uint32_t(index));
  const uint64_t id = seen(tenant.id), size = seen(tenant.name_bytes);
  if (id == 0 || size == 0) return false;
  std::byte name[limits::kTenantNameMax];
  for (size_t i = 0; i < limits::kTenantNameMax / 8; ++i) {
    const uint64_t word = seen(tenant.name[i]);
    std::memcpy(name + 8 * i, &word, 8);
  }
  const bool good = size <= limits::kTenantNameMax && tenant_id(a.region.secret(), {name, size}) == id;
  return !good && violated(f, 0, id, size);
}

bool tenant_place(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t id = seen(a.region.tenant(uint32_t(index)).id);
  if (id == 0) return false;
  const uint32_t place = find_tenant(a.region, id);
  return place != index && violated(f, 0, id, place);
}

bool lane_accounts(const Audit& a, uint64_t index, Finding* f) {
  const auto lane = uint32_t(index);
  if (!a.in_use(lane)) return false;
  for (uint32_t i = 0; i < a.region.account_slots(); ++i) {
    const LaneAccount& account = a.region.account(lane, i);
    const uint64_t tenant = seen(account.tenant);
    const bool is_misplaced = tenant != 0 && (i == kOthersAccount || find_account(a.region, lane, tenant) != i);
    const uint64_t numbers = seen(account.in_flight) | seen(account.charged) | seen(account.returned);
    if (is_misplaced || (tenant == 0 && i != kOthersAccount && numbers != 0 && seen(account.tenant) == 0))
      return violated(f, i, tenant, numbers);
  }
  return false;
}

bool lane_accounts_done(const Audit& a, uint64_t index, Finding* f) {
  if (!a.in_use(index)) return false;
  for (uint32_t i = 0; i < a.region.account_slots(); ++i)
    if (const uint64_t in_flight = seen(a.region.account(uint32_t(index), i).in_flight); in_flight != 0)
      return violated(f, i, in_flight);
  return false;
}

}  // namespace maru::shm::audit_checks
