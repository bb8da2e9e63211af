// Room for a run of k pages among blocks of other sizes: of all windows of k pages that hold only FREE pages and whole
// blocks that may go, those whose warmest block is the coldest in the order of the policy; of equally warm ones those with
// fewer pages in use.
//
// Example, k = 2, last uses of one-page blocks: [9][FREE][3][4][1]: windows cost 9, 3, 4, 4; {FREE, 3} is taken.
// Cost: one pass over the words of the regions, a running maximum over each window, and a sort of the cheapest. Of a large pool
// one turn of a request sees a part, and the next one goes on there. A block whose pin was seen is held, so that no other
// window costs another look at it.
#include "daemon/pool/state.h"
#include "libmaru/shm/recovery/evict.h"

#include <algorithm>
#include <deque>
#include <set>
#include <tuple>

namespace maru::daemon {
namespace {

struct Window {
  EvictionOrder::Key warmest;  // block in it
  uint32_t used;               // pages that are not FREE
  uint32_t first;
  friend bool operator<(const Window& a, const Window& b) {
    return std::tie(a.warmest, a.used, a.first) < std::tie(b.warmest, b.used, b.first);
  }
};

constexpr EvictionOrder::Key kMustStay = {kTenantProtected, kNever, kNever, 0};
constexpr EvictionOrder::Key kNoBlock = {};

struct Cell {
  EvictionOrder::Key key = kMustStay;
  bool is_free = false;
  bool begins = false;  // a window may begin here
  bool ends = false;    // a window may end here
};

void find_windows(std::span<const Cell> cells, uint32_t first_page, uint32_t run_pages, std::vector<Window>& windows) {
  std::deque<uint32_t> warmest;  // indices of ever colder cells
  uint32_t used = 0;
  for (uint32_t i = 0; i < cells.size(); ++i) {
    while (!warmest.empty() && cells[warmest.back()].key <= cells[i].key) warmest.pop_back();
    warmest.push_back(i);
    used += !cells[i].is_free;
    if (i >= run_pages) used -= !cells[i - run_pages].is_free;
    if (i + 1 < run_pages) continue;
    const uint32_t start = i + 1 - run_pages;
    while (warmest.front() < start) warmest.pop_front();
    const EvictionOrder::Key key = cells[warmest.front()].key;
    if (key.tenant_class != kTenantProtected && cells[start].begins && cells[i].ends)
      windows.push_back({key, used, first_page + start});
  }
}

}  // namespace

// Pages of one region among which a turn looks for windows of so many pages at once.
uint64_t Pool::State::window_part(uint64_t run_pages) const {
  return std::min<uint64_t>(core.region.region_pages(), std::max(kWindowPagesPerTurn, 2 * run_pages));
}

// And of all regions.
uint64_t Pool::State::window_pages(uint64_t run_pages) const {
  return std::max(kWindowPagesPerTurn, window_part(run_pages));
}

// Whether nobody pins any of these blocks, and no tenant keeps one. All of a window is looked at, or one of many blocks would
// never have its turn: over as many turns as that takes.
Pool::State::WindowLook Pool::State::may_all_go(std::span<const uint32_t> heads, Shortage& shortage) {
  if (std::any_of(heads.begin(), heads.end(), [&](uint32_t page) { return queues.held.has(page); }))
    return WindowLook::kMustStay;
  const uint64_t cost = lanes.look_lines();
  for (const uint32_t page : heads) {
    if (page < shortage.window_looked_to) continue;
    if (shortage.lines_left == 0) return WindowLook::kUnfinished;
    shortage.spend(cost);
    core.meter.add(cost);
    // The windows before this one may have brought its tenant down to its limit.
    if (queues.tenant_class(queues.tenant(page)) == kTenantProtected) return WindowLook::kMustStay;
    const PageWord found = core.word(page);
    if (shm::is_pinned(core.region, lanes.in_use, page)) {
      if (found.is(PageState::kReady) && found.children() == 0) held.hold(PageRef::of(page, found.generation()));
      return WindowLook::kMustStay;
    }
    shortage.window_looked_to = page + 1;
  }
  return WindowLook::kMayGo;
}

// Goes on with this window as far as the lines last, and takes it for the asker when its blocks have gone. Returns true when
// that is over: the window was taken, or something in it must stay.
bool Pool::State::empty_window(uint32_t first, Shortage& shortage) {
  if (shortage.window != first) shortage.window_looked_to = first;
  shortage.window = first;
  std::vector<uint32_t> heads;
  for (uint32_t page = first; page < first + shortage.run_pages; ++page)
    if (core.word(page).is(PageState::kReady)) heads.push_back(page);
  shortage.spend(shortage.run_pages);
  const WindowLook look = may_all_go(heads, shortage);
  if (look == WindowLook::kUnfinished) return false;
  if (look == WindowLook::kMayGo) {
    for (size_t start = 0; start < heads.size();) {
      if (shortage.lines_left == 0) return false;
      const uint64_t cost = lanes.look_lines(), before = core.meter.read();
      size_t n = 0;
      for (uint64_t lines = 0; start + n < heads.size() && n < shm::kEvictBatchMax && lines < shortage.lines_left; ++n)
        lines += evictor.eviction_lines(heads[start + n], cost);
      Shortage inside = shortage;  // frees without taking
      inside.asker = {};
      inside.runs = 0;
      evictor.evict_pages(std::span(heads).subspan(start, n), inside);
      shortage.key_bytes_left = inside.key_bytes_left;
      shortage.blocks_evicted = inside.blocks_evicted;
      shortage.pages_evicted = inside.pages_evicted;
      shortage.spend(core.meter.read() - before);
      start += n;
    }
    evictor.take_for_asker(first, shortage, nullptr);
  }
  shortage.window.reset();
  return true;
}

// Returns true when nothing is wanted any more.
bool Pool::State::evict_windows(std::span<const uint32_t> in, Shortage& shortage) {
  if (!queues.policy->evicts() || shortage.lines_left == 0) return !shortage.is_open();
  if (shortage.window && !empty_window(*shortage.window, shortage)) return false;
  if (!shortage.is_open() || in.empty()) return !shortage.is_open();
  const auto run_pages = uint32_t(shortage.run_pages);
  std::vector<Window> windows;
  std::vector<Cell> cells;
  const size_t keep = 4 * std::min<uint64_t>(shortage.runs, shortage.items_left) + 1024;
  const auto part = uint32_t(window_part(run_pages));
  auto at = size_t(std::lower_bound(in.begin(), in.end(), core.region.region_of(window_next)) - in.begin()) % in.size();
  uint32_t offset = in[at] == core.region.region_of(window_next) ? window_next % core.region.region_pages() : 0;
  Shortage::WindowPass& pass = shortage.window_pass(in.size());
  while (pass.pages_looked_at < in.size() * core.region.region_pages() && shortage.window_pages_left >= part) {
    const uint32_t first = in[at] * core.region.region_pages() + offset;
    cells.assign(std::min(part, core.region.region_pages() - offset), Cell{});
    shortage.window_pages_left -= part;
    // Parts overlap, so that each window is in one of them.
    const bool is_last = offset + cells.size() == core.region.region_pages();
    const auto step = uint32_t(is_last ? cells.size() : cells.size() + 1 - run_pages);
    pass.pages_looked_at += step;
    offset = is_last ? 0 : offset + step;
    if (is_last) at = (at + 1) % in.size();
    window_next = in[at] * core.region.region_pages() + offset;
    for (uint32_t i = 0; i < cells.size();) {
      const PageWord found = core.word(first + i);
      uint32_t length = 1;
      if (found.is(PageState::kFree)) {
        cells[i] = {kNoBlock, true, true, true};
      } else if (found.is(PageState::kReady) && found.low() == 0 && !queues.held.has(first + i)) {
        length = core.region.run_pages(first + i);
        queues.know(first + i, found.generation());
        const EvictionOrder::Key its_key = queues.order.key(first + i);
        for (uint32_t k = 0; k < length && i + k < cells.size(); ++k)
          cells[i + k] = {its_key, false, k == 0, k + 1 == length};
      }
      i += length;
    }
    find_windows(cells, first, run_pages, windows);
    if (windows.size() > 4 * keep) {
      std::nth_element(windows.begin(), windows.begin() + long(keep), windows.end());
      windows.resize(keep);
    }
  }
  std::sort(windows.begin(), windows.end());

  std::set<uint32_t> taken;  // first pages of windows that were tried: others must not overlap them
  for (const Window& window : windows) {
    if (!shortage.is_open() || shortage.lines_left == 0) break;
    const auto after = taken.lower_bound(window.first);
    if (after != taken.end() && *after < window.first + run_pages) continue;
    if (after != taken.begin() && *std::prev(after) + run_pages > window.first) continue;
    const uint64_t gone_before = shortage.blocks_evicted;
    if (!empty_window(window.first, shortage)) break;
    if (shortage.blocks_evicted != gone_before || !shortage.is_open()) taken.insert(window.first);
  }
  return !shortage.is_open();
}

}  // namespace maru::daemon
