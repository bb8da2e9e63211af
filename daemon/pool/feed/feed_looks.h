// The places where marud looks for news, beyond touches and its own work: the regions of lanes that deleted blocks or
// lost touches, and then all pages.
//
// Thread safety: one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace maru::daemon {

class FeedLooks {
 public:
  // Pages for each step of upkeep: while something moves, and in case a client has damaged its own words.
  static constexpr uint64_t kPagesWhenMoved = 1u << 15;
  static constexpr uint64_t kPagesWhenIdle = 1u << 12;

  explicit FeedLooks(uint32_t lanes) : seen_(lanes, 0), moved_(lanes, false), active_(lanes, false) {}

  // A number of this lane that changes with each delete, each freed page, each lost touch, and each client.
  void note(uint32_t lane, uint64_t number) {
    if (seen_[lane] == number) return;
    seen_[lane] = number;
    moved_[lane] = true;
    ++moves_;
  }

  // A round over the regions looks at the regions of lanes that moved before it began.
  bool has_regions() {
    if (region_next_ != 0 || region_page_ != 0) return true;
    if (std::ranges::none_of(moved_, [](bool moved) { return moved; })) return false;
    active_.swap(moved_);
    std::fill(moved_.begin(), moved_.end(), false);
    return true;
  }
  bool is_active(uint32_t lane) const { return lane < active_.size() && active_[lane]; }
  uint32_t region_next() const { return region_next_; }
  uint32_t region_page() const { return region_page_; }  // of that region, the next one
  uint32_t take_region_page() { return region_page_++; }
  void region_done(uint32_t regions) {
    region_page_ = 0;
    region_next_ = region_next_ + 1 < regions ? region_next_ + 1 : 0;
  }

  // The walk over all pages.
  uint64_t pages_now() const { return is_quick_ || moves_ != moves_walked_ ? kPagesWhenMoved : kPagesWhenIdle; }
  uint32_t take_page(uint64_t pages) {
    if (page_next_ == 0) {
      is_quick_ = moves_ != moves_walked_;
      moves_walked_ = moves_;
    }
    const auto page = uint32_t(page_next_);
    page_next_ = page_next_ + 1 < pages ? page_next_ + 1 : 0;
    return page;
  }

 private:
  std::vector<uint64_t> seen_;
  std::vector<bool> moved_, active_;
  uint64_t moves_ = 0, moves_walked_ = 0;  // of all lanes; when the walk that is under way began
  bool is_quick_ = false;                  // that one was begun because something moved
  uint32_t region_next_ = 0, region_page_ = 0;
  uint64_t page_next_ = 0;
};

}  // namespace maru::daemon
