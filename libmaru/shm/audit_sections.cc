#include "libmaru/shm/audit_checks.h"

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

struct ListWalk {
  bool whole = true;  // links agree both ways, so no entry can come twice
  uint64_t entries = 0;
  uint64_t bad_page = 0;  // + 1: where it stopped
  uint64_t bad_link = 0;
  uint64_t rise_page = 0;  // + 1: first entry that was used later than the one before it
};

// From the most recent entry to the coldest. All words are the caller's own, or nobody writes: relaxed.
static ListWalk walk_list(const Audit& a, uint32_t region_index) {
  const RegionRecord& list = a.region.region(region_index);
  ListWalk walk;
  uint32_t previous = 0, link = list.lru_head.load_relaxed();
  uint64_t tick = ~uint64_t{0};
  while (link != 0) {
    const bool inside = link <= a.region.pages() && a.region.region_of(link - 1) == region_index;
    if (!inside || a.region.policy(link - 1).newer.load_relaxed() != previous ||
        walk.entries == a.region.region_pages()) {
      walk.whole = false;
      walk.bad_page = previous;
      walk.bad_link = link;
      return walk;
    }
    const PolicyEntry& entry = a.region.policy(link - 1);
    const uint64_t used = entry.last_use_ms.load_relaxed();
    if (used > tick && walk.rise_page == 0) walk.rise_page = link;
    tick = used;
    ++walk.entries;
    previous = link;
    link = entry.older.load_relaxed();
  }
  walk.bad_page = previous;
  walk.bad_link = list.lru_tail.load_relaxed();
  walk.whole = walk.bad_link == previous;
  return walk;
}

bool list_links(const Audit& a, uint64_t index, Finding* f) {
  const ListWalk walk = walk_list(a, uint32_t(index));
  return !walk.whole && violated(f, 0, walk.bad_page, walk.bad_link, walk.entries);
}

bool list_count(const Audit& a, uint64_t index, Finding* f) {
  const ListWalk walk = walk_list(a, uint32_t(index));
  const uint64_t said = a.region.region(uint32_t(index)).lru_count.load_relaxed();  // as in walk_list
  return walk.whole && walk.entries != said && violated(f, 0, said, walk.entries);
}

bool list_members(const Audit& a, uint64_t index, Finding* f) {
  const ListWalk walk = walk_list(a, uint32_t(index));
  const uint32_t first = uint32_t(index) * a.region.region_pages();
  uint64_t members = 0, odd = 0;
  for (uint32_t i = 0; i < a.region.region_pages(); ++i) {
    const uint32_t list = a.region.policy(first + i).list.load_relaxed();  // as in walk_list
    members += list == 1;
    odd += list > 1;
  }
  return walk.whole && (members != walk.entries || odd != 0) && violated(f, 0, members, walk.entries, odd);
}

bool list_order(const Audit& a, uint64_t index, Finding* f) {
  const ListWalk walk = walk_list(a, uint32_t(index));
  return walk.whole && walk.rise_page != 0 && violated(f, 0, walk.rise_page);
}

// -- lanes ------------------------------------------------------------------------------------------------------------

bool lane_bitmap(const Audit& a, uint64_t, Finding* f) {
  for (uint32_t lane = a.region.lanes(); lane < limits::kLanesMax; ++lane)
    if (a.in_use(lane)) return violated(f, 0, lane, seen(a.region.lane_bitmap().words[lane / 64]));
  return false;
}

bool lane_identity(const Audit& a, uint64_t index, Finding* f) {
  const uint64_t state = seen(a.region.identity(uint32_t(index)).state);
  const bool good = (state & 0xFF) <= uint64_t(LaneState::kDead) && (state >> 8 & 0xFF'FFFF'FFFF) == 0;
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
  const uint64_t intents = used_slots(lane.header->parent_intent), touches = seen(lane.header->touch_count);
  return (pins | intents | touches) != 0 && violated(f, 0, pins, intents, touches);
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
  if (id == 0) return false;
  std::byte name[limits::kTenantNameMax];
  for (size_t i = 0; i < limits::kTenantNameMax / 8; ++i) {
    const uint64_t word = seen(tenant.name[i]);
    std::memcpy(name + 8 * i, &word, 8);
  }
  const bool good = size <= limits::kTenantNameMax && tenant_id(a.region.secret(), {name, size}) == id;
  return !good && violated(f, 0, id, size);
}

}  // namespace maru::shm::audit_checks
