#include "daemon/pool/memory/takeovers.h"

#include "libmaru/shm/recovery/evict.h"
#include "libmaru/shm/recovery/region_handover.h"

#include <algorithm>
#include <utility>

namespace maru::daemon {
namespace {

// Words that one takeover reads while it chooses: all of a small pool, the emptiest regions of a large one.
constexpr uint64_t kPagesLookedAtMax = 1u << 16;
constexpr uint64_t kSlotsPerLine = 8;

}  // namespace

// Of one lane, in lines.
uint64_t Takeovers::pin_lines() const { return core_.pin_slots() / kSlotsPerLine; }

// Regions with a page that some lane pins, lane by lane. A hint: eviction looks again, block by block. Returns true at the end.
bool Takeovers::look_for_pins(Takeover& takeover, Shortage& shortage) const {
  const shm::LaneSet in_use = shm::with_other_hosts(core_.region, lanes_.in_use);
  for (; takeover.next_lane < core_.region.lanes(); ++takeover.next_lane) {
    if (!in_use.has(takeover.next_lane)) continue;
    if (shortage.lines_left == 0) return false;
    const shm::LaneView view = core_.region.lane(takeover.next_lane);
    for (const std::span<AtomicU64> slots : {view.pins, view.pin_overflow})
      for (const AtomicU64& slot : slots) {
        const PageRef ref = PageRef::from_bits(slot.load_relaxed());  // a hint, see above
        if (core_.region.is_page(ref)) takeover.pinned[core_.region.region_of(ref.page())] = true;
      }
    core_.meter.add(pin_lines());
    shortage.spend(pin_lines());
  }
  return true;
}

// The pages that a region would give: its blocks that may go in waves, children before their parents, and the longest row of
// pages that would be free. Pages are marked as they become free on paper. In a run only pages whose own words name its head
// are marked, since a client can forge the length of every run.
RegionOutlook Takeovers::look_at_region(uint32_t index) const {
  RegionOutlook outlook;
  const uint32_t first = index * core_.region.region_pages(), count = core_.region.region_pages();
  std::vector<bool> is_free(count, false);
  std::vector<uint32_t> children(count, 0), wave;
  for (uint32_t i = 0; i < count; ++i) {
    const PageWord found = core_.word(first + i);
    is_free[i] = found.is(PageState::kFree) || found.is(PageState::kOut);
    if (!found.is(PageState::kReady)) continue;
    ++outlook.blocks;
    children[i] = found.children();
    if (found.low() == 0) wave.push_back(first + i);
  }
  const auto mark_free = [&](uint32_t head) {
    is_free[head - first] = true;
    const uint32_t end = head + core_.region.run_pages(head);
    for (uint32_t page = head + 1; page < end; ++page) {
      const PageWord found = core_.word(page);
      if (!found.is(PageState::kTail) || found.low() != page - head) break;  // it is a tail of one head at most
      is_free[page - first] = true;
    }
  };
  std::vector<uint32_t> next;
  while (!wave.empty()) {  // ends: a page is in one wave at most, because each child lowers its parent's number once
    next.clear();
    std::erase_if(wave, [&](uint32_t page) { return queues_.tenant_class(queues_.tenant(page)) == kTenantProtected; });
    for (uint32_t page : wave) {
      mark_free(page);
      const PageRef parent = PageRef::from_bits(core_.region.block(page).parent.load_acquire());  // a hint
      if (!core_.region.is_page(parent) || core_.region.region_of(parent.page()) != index) continue;
      const PageWord above = core_.word(parent.page());
      if (!above.is(PageState::kReady, parent.generation()) || above.recount()) continue;
      uint32_t& left = children[parent.page() - first];
      if (left > 0 && --left == 0) next.push_back(parent.page());
    }
    outlook.waves.push_back(std::move(wave));
    wave = std::move(next);
  }
  for (uint32_t i = 0, row = 0; i < count; ++i) {
    row = is_free[i] ? row + 1 : 0;
    outlook.longest_row = std::max(outlook.longest_row, row);
  }
  return outlook;
}

bool Takeovers::choose_region(Takeover& takeover, Shortage& shortage) const {
  for (; takeover.looked < takeover.candidates.size(); ++takeover.looked) {
    if (shortage.lines_left == 0) return false;
    const uint64_t before = core_.meter.read();
    RegionOutlook outlook = look_at_region(takeover.candidates[takeover.looked]);
    shortage.spend(core_.meter.read() - before);
    if (outlook.longest_row < shortage.run_pages || (takeover.index && outlook.blocks >= takeover.outlook.blocks))
      continue;
    takeover.outlook = std::move(outlook);
    takeover.index = takeover.candidates[takeover.looked];
  }
  return true;
}

// Steps 2 and 3 of docs/format.md.
void Takeovers::close_region(Takeover& takeover, Shortage& shortage) {
  takeover.from = regions_[*takeover.index].owner;
  regions_.set_region(*takeover.index, RegionState::kDraining, {});
  takeover.generation = regions_[*takeover.index].generation;
  shm::close_region_pages(core_.region, *takeover.index);
  core_.meter.add(core_.region.region_pages());
  shortage.spend(core_.region.region_pages());
  takeover.part = Takeover::Part::kBlocks;
}

// Step 4, as far as the lines last. Returns true at the end.
bool Takeovers::empty_region(Takeover& takeover, Shortage& shortage) {
  std::vector<uint32_t> victims;
  for (; takeover.wave < takeover.outlook.waves.size(); ++takeover.wave, takeover.next = 0) {
    const std::vector<uint32_t>& wave = takeover.outlook.waves[takeover.wave];
    while (takeover.next < wave.size()) {
      if (shortage.lines_left == 0) return false;
      const uint64_t look = lanes_.look_lines(), before = core_.meter.read();
      victims.clear();
      for (uint64_t lines = 0; takeover.next < wave.size() && victims.size() < shm::kEvictBatchMax;) {
        victims.push_back(wave[takeover.next++]);
        lines += evictor_.eviction_lines(victims.back(), look);
        if (lines >= shortage.lines_left) break;
      }
      Shortage inside = shortage;  // frees without taking
      inside.asker = {};
      inside.runs = 0;
      inside.reason = EvictReason::kTakeover;
      takeover.gone += evictor_.evict_pages(victims, inside);
      shortage.key_bytes_left = inside.key_bytes_left;
      shortage.blocks_evicted = inside.blocks_evicted;
      shortage.pages_evicted = inside.pages_evicted;
      shortage.spend(core_.meter.read() - before);
    }
  }
  return true;
}

// Step 3 once more, and steps 5 to 7.
void Takeovers::hand_over(Takeover& takeover, Shortage& shortage) {
  const uint32_t index = *takeover.index;
  shm::close_region_pages(core_.region, index);
  core_.meter.add(core_.region.region_pages());
  const uint64_t runs = grants_.grant_region(index, shortage.asker, shortage.run_pages);
  shortage.runs -= std::min(shortage.runs, runs);
  shortage.result->regions.push_back(index);
  --shortage.items_left;
  if (shortage.regions_left != kNever) --shortage.regions_left;
  const uint64_t blocks = takeover.outlook.blocks;
  if (takeover.from.lane != 0)
    shortage.result->taken.push_back(
        {takeover.from.lane, index, takeover.generation, takeover.gone, blocks - std::min(blocks, takeover.gone)});
  ++core_.totals.regions_taken;
}

bool Takeovers::begin(Search& search, TakeFrom whom) {
  Shortage& shortage = search.shortage;
  if (!queues_.policy->evicts() || shortage.items_left == 0 || shortage.regions_left == 0 || shortage.lines_left == 0)
    return false;
  std::vector<uint32_t> rented(core_.region.lanes(), 0);  // by lane
  for (const RegionEntry& entry : regions_)
    if (entry.state == RegionState::kRented) ++rented[entry.owner.lane];
  const uint32_t own = rented[shortage.asker.lane];
  if (core_.config.max_regions_per_instance != 0 && own >= core_.config.max_regions_per_instance) return false;
  const auto owners =
      size_t(std::count_if(rented.begin(), rented.end(), [](uint32_t n) { return n > 0; })) + (own == 0);
  const size_t share = std::max<size_t>(1, regions_.size() / owners);
  if (whom == TakeFrom::kOverShare && own >= share) return false;

  Takeover takeover;
  for (uint32_t i = 0; i < regions_.size(); ++i) {
    const RegionEntry& entry = regions_[i];
    const bool is_anothers =
        entry.state == RegionState::kRented && entry.owner != shortage.asker && !lanes_.is_dead(entry.owner);
    const bool may = whom == TakeFrom::kOverShare ? is_anothers && rented[entry.owner.lane] > share
                                                  : is_anothers || entry.state == RegionState::kOrphaned;
    if (may && room_.has(i)) takeover.candidates.push_back(i);
  }
  if (takeover.candidates.empty()) return false;
  takeover.pinned.assign(regions_.size(), false);
  search.takeover = std::move(takeover);
  return true;
}

// Keeps the candidates without a pin, and sorts them by the pages in use at the last count. The first candidates are worth a
// look, and exact numbers decide among them.
void Takeovers::sort_candidates(Takeover& takeover) const {
  auto& candidates = takeover.candidates;
  std::erase_if(candidates, [&](uint32_t index) { return takeover.pinned[index]; });
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](uint32_t a, uint32_t b) { return regions_[a].counted_pages < regions_[b].counted_pages; });
  candidates.resize(
      std::min<size_t>(candidates.size(), std::max<uint64_t>(1, kPagesLookedAtMax / core_.region.region_pages())));
  takeover.part = Takeover::Part::kChoice;
}

bool Takeovers::is_still_anothers(const Takeover& takeover, LaneId asker) const {
  const RegionEntry& entry = regions_[*takeover.index];
  if (takeover.part == Takeover::Part::kBlocks)
    return entry.state == RegionState::kDraining && entry.generation == takeover.generation && !entry.is_foreign;
  const bool is_anothers = entry.state == RegionState::kRented && entry.owner != asker && !lanes_.is_dead(entry.owner);
  return is_anothers || entry.state == RegionState::kOrphaned;
}

void Takeovers::step(Search& search) {
  Takeover& takeover = *search.takeover;
  Shortage& shortage = search.shortage;
  using Part = Takeover::Part;
  if (takeover.part == Part::kPins) {
    if (!look_for_pins(takeover, shortage)) return;
    sort_candidates(takeover);
  }
  if (takeover.part == Part::kChoice) {
    if (!choose_region(takeover, shortage)) return;
    // An asker that has got a region in this turn has its answer with it, and does not leave another region half emptied.
    const bool is_enough =
        !search.has_nothing() && takeover.outlook.blocks * lanes_.look_lines() >= shortage.lines_left;
    if (!takeover.index || is_enough || !is_still_anothers(takeover, shortage.asker)) return search.takeover.reset();
    close_region(takeover, shortage);
  }
  if (!is_still_anothers(takeover, shortage.asker)) return search.takeover.reset();
  if (!empty_region(takeover, shortage)) return;
  if (shortage.items_left == 0 || shortage.regions_left == 0) return end(search);
  hand_over(takeover, shortage);
  search.takeover.reset();
}

void Takeovers::end(Search& search) {
  if (!search.takeover) return;
  const Takeover& takeover = *search.takeover;
  if (takeover.part == Takeover::Part::kBlocks && is_still_anothers(takeover, {}))
    grants_.orphan_region(*takeover.index);
  search.takeover.reset();
}

}  // namespace maru::daemon
