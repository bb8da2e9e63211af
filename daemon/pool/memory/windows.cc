#include "daemon/pool/memory/windows.h"

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

constexpr EvictionOrder::Key kMustStay = {.tenant_class = kTenantProtected, .major = kNever, .order = kNever};
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

uint64_t Windows::part(uint64_t run_pages) const {
  return std::min<uint64_t>(core_.region.region_pages(), std::max(kWindowPagesPerTurn, 2 * run_pages));
}

// And of all regions.
uint64_t Windows::pages(uint64_t run_pages) const { return std::max(kWindowPagesPerTurn, part(run_pages)); }

// Whether these blocks have no pin, and no tenant keeps one. All of a window is looked at, in as many turns as that takes:
// otherwise a window of many blocks would never have its turn.
auto Windows::may_all_go(std::span<const uint32_t> heads, Shortage& shortage) -> Look {
  if (std::any_of(heads.begin(), heads.end(), [&](uint32_t page) { return queues_.held.has(page); }))
    return Look::kMustStay;
  const uint64_t cost = lanes_.look_lines();
  for (const uint32_t page : heads) {
    if (page < shortage.window_looked_to) continue;
    if (shortage.lines_left == 0) return Look::kUnfinished;
    shortage.spend(cost);
    core_.meter.add(cost);
    // The windows before this one may have brought its tenant down to its limit.
    if (queues_.tenant_class(queues_.tenant(page)) == kTenantProtected) return Look::kMustStay;
    const PageWord found = core_.word(page);
    if (shm::is_pinned(core_.region, lanes_.in_use, page)) {
      if (found.is(PageState::kReady) && found.children() == 0) held_.hold(PageRef::of(page, found.generation()));
      return Look::kMustStay;
    }
    shortage.window_looked_to = page + 1;
  }
  return Look::kMayGo;
}

// Goes on with this window as far as the lines last, and takes it for the asker when its blocks have gone. Returns true when
// that is over: the window was taken, or something in it must stay.
bool Windows::empty_window(uint32_t first, Shortage& shortage) {
  if (shortage.window != first) shortage.window_looked_to = first;
  shortage.window = first;
  std::vector<uint32_t> heads;
  for (uint32_t page = first; page < first + shortage.run_pages; ++page)
    if (core_.word(page).is(PageState::kReady)) heads.push_back(page);
  shortage.spend(shortage.run_pages);
  const Look look = may_all_go(heads, shortage);
  if (look == Look::kUnfinished) return false;
  if (look == Look::kMayGo) {
    for (size_t start = 0; start < heads.size();) {
      if (shortage.lines_left == 0) return false;
      const uint64_t cost = lanes_.look_lines(), before = core_.meter.read();
      size_t n = 0;
      for (uint64_t lines = 0; start + n < heads.size() && n < shm::kEvictBatchMax && lines < shortage.lines_left; ++n)
        lines += evictor_.eviction_lines(heads[start + n], cost);
      Shortage inside = shortage;  // frees without taking
      inside.asker = {};
      inside.runs = 0;
      evictor_.evict_pages(std::span(heads).subspan(start, n), inside);
      shortage.key_bytes_left = inside.key_bytes_left;
      shortage.blocks_evicted = inside.blocks_evicted;
      shortage.pages_evicted = inside.pages_evicted;
      shortage.spend(core_.meter.read() - before);
      start += n;
    }
    evictor_.take_for_asker(first, shortage, nullptr);
  }
  shortage.window.reset();
  return true;
}

bool Windows::evict(std::span<const uint32_t> in, Shortage& shortage) {
  if (!queues_.policy->evicts() || shortage.lines_left == 0) return !shortage.is_open();
  if (shortage.window && !empty_window(*shortage.window, shortage)) return false;
  if (!shortage.is_open() || in.empty()) return !shortage.is_open();
  const auto run_pages = uint32_t(shortage.run_pages);
  std::vector<Window> windows;
  std::vector<Cell> cells;
  const size_t keep = 4 * std::min<uint64_t>(shortage.runs, shortage.items_left) + 1024;
  const auto part = uint32_t(this->part(run_pages));
  auto at = size_t(std::lower_bound(in.begin(), in.end(), core_.region.region_of(next_)) - in.begin()) % in.size();
  uint32_t offset = in[at] == core_.region.region_of(next_) ? next_ % core_.region.region_pages() : 0;
  Shortage::WindowPass& pass = shortage.window_pass(in.size());
  while (pass.pages_looked_at < in.size() * core_.region.region_pages() && shortage.window_pages_left >= part) {
    const uint32_t first = in[at] * core_.region.region_pages() + offset;
    cells.assign(std::min(part, core_.region.region_pages() - offset), Cell{});
    shortage.window_pages_left -= part;
    // Parts overlap, so that each window is in one of them.
    const bool is_last = offset + cells.size() == core_.region.region_pages();
    const auto step = uint32_t(is_last ? cells.size() : cells.size() + 1 - run_pages);
    pass.pages_looked_at += step;
    offset = is_last ? 0 : offset + step;
    if (is_last) at = (at + 1) % in.size();
    next_ = in[at] * core_.region.region_pages() + offset;
    for (uint32_t i = 0; i < cells.size();) {
      const PageWord found = core_.word(first + i);
      uint32_t length = 1;
      if (found.is(PageState::kFree)) {
        cells[i] = {kNoBlock, true, true, true};
      } else if (found.is(PageState::kReady) && found.low() == 0 && !queues_.held.has(first + i)) {
        length = core_.region.run_pages(first + i);
        queues_.know(first + i, found.generation());
        const EvictionOrder::Key its_key = queues_.order.key(first + i);
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
