#include "daemon/pool/memory/room.h"

#include "daemon/base/log.h"
#include "libmaru/shm/recovery/region_handover.h"

namespace maru::daemon {

Result<void> PoolRoom::set_up() {
  if (core_.device->unreserved_because().empty()) return {};
  auto made =
      RegionRoom::of(core_.device->fd(), core_.pages_at(), core_.region.region_pages() * core_.region.page_bytes(),
                     core_.region.regions(), core_.device->name());
  if (!made) return tl::unexpected(made.error());
  room_ = std::move(*made);
  return {};
}

void PoolRoom::adopt() {
  if (!room_) return;
  for (uint32_t index = 0; index < regions_.size(); ++index) {
    const uint32_t first = index * core_.region.region_pages();
    bool is_open = false;
    for (uint32_t i = 0; i < core_.region.region_pages() && !is_open; ++i)
      is_open = !regions_[index].is_foreign && !core_.word(first + i).is(PageState::kOut);
    if (is_open) room_->take(index);
  }
  close_bare_pages();
}

void PoolRoom::close_bare_pages() {
  if (!room_ || room_->full_because().empty()) return;
  uint64_t closed = 0;
  for (uint32_t index = 0; index < regions_.size(); ++index) {
    if (has(index) || regions_[index].is_foreign) continue;
    const uint32_t first = index * core_.region.region_pages();
    for (const RegionRoom::Range& bare : room_->bare(index)) {
      const uint64_t begin = bare.offset / core_.region.page_bytes();
      const uint64_t end = (bare.offset + bare.bytes + core_.region.page_bytes() - 1) / core_.region.page_bytes();
      closed += shm::close_pages(core_.region, first + uint32_t(begin), first + uint32_t(end));
    }
  }
  if (closed != 0)
    log_warning("pool \"{}\": {} free pages are not given to clients until there is room: {}", core_.config.name,
                closed, room_->full_because());
}

void PoolRoom::step() {
  if (!room_) return;
  const bool was_busy = room_->is_busy();
  const bool was_full = !room_->full_because().empty();
  const auto got = room_->step(core_.now_ms);
  if (got && regions_[*got].state == RegionState::kRented && !regions_[*got].is_foreign)
    shm::open_region_pages(core_.region, *got);
  const std::string& full = room_->full_because();
  if (!was_full && !full.empty())
    log_warning("pool \"{}\" gives its clients no further region until there is room: {}", core_.config.name, full);
  if (was_full && full.empty()) log_info("pool \"{}\": there is room for its regions again", core_.config.name);
  // Requests that wait for the thread have their turn before it gets a region for which no request waits.
  if (was_busy || room_->is_busy() || rests(core_.now_ms, again_ms_, RegionRoom::kAgainMs)) return;
  again_ms_ = core_.now_ms + RegionRoom::kAgainMs;
  for (uint32_t index = 0; index < regions_.size(); ++index)
    if (!has(index) && !regions_[index].is_foreign && regions_[index].state != RegionState::kUnused)
      return room_->begin(index, core_.now_ms);
  // So that the status says when the file system has room again.
  if (!full.empty())
    for (uint32_t index = 0; index < regions_.size(); ++index)
      if (!has(index)) return room_->begin(index, core_.now_ms);
}

bool PoolRoom::waits_for_room(const Shortage& shortage, bool may_wait) {
  if (!room_ || shortage.room_wanted == kNever) return false;
  const auto wanted = uint32_t(shortage.room_wanted);
  if (!may_wait) return room_->take(wanted);
  room_->begin(wanted, core_.now_ms);
  return room_->is_busy();
}

}  // namespace maru::daemon
