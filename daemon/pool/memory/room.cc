// Room for the regions of a pool whose file system has not promised it (region_room.h): clients get regions with room alone.
#include "daemon/base/log.h"
#include "daemon/base/size_text.h"
#include "daemon/pool/state.h"

namespace maru::daemon {

Result<void> Pool::State::begin_room() {
  if (core.device->unreserved_because().empty()) return {};
  auto made = RegionRoom::of(core.device->fd(), core.pages_at(), core.region.region_pages() * core.region.page_bytes(), core.region.regions(),
                             core.device->name());
  if (!made) return tl::unexpected(made.error());
  room = std::move(*made);
  return {};
}

// An earlier marud may have given out pages that have no room.
void Pool::State::adopt_room() {
  if (!room) return;
  for (uint32_t index = 0; index < regions.size(); ++index) {
    const uint32_t first = index * core.region.region_pages();
    bool is_open = false;
    for (uint32_t i = 0; i < core.region.region_pages() && !is_open; ++i)
      is_open = !regions[index].is_foreign && !core.word(first + i).is(PageState::kOut);
    if (is_open) room->take(index);
  }
  close_bare_pages();
}

// FREE pages without room become OUT, so that no client takes them. Pages that lanes hold stay theirs.
void Pool::State::close_bare_pages() {
  if (!room || room->full_because().empty()) return;
  uint64_t closed = 0;
  for (uint32_t index = 0; index < regions.size(); ++index) {
    if (has_room(index) || regions[index].is_foreign) continue;
    const uint32_t first = index * core.region.region_pages();
    for (const RegionRoom::Range& bare : room->bare(index)) {
      const uint64_t begin = bare.offset / core.region.page_bytes();
      const uint64_t end = (bare.offset + bare.bytes + core.region.page_bytes() - 1) / core.region.page_bytes();
      closed += shm::close_pages(core.region, first + uint32_t(begin), first + uint32_t(end));
    }
  }
  if (closed != 0)
    log_warning("pool \"{}\": {} free pages are not given to clients until there is room: {}", core.config.name, closed,
                room->full_because());
}

// A turn. Regions that an earlier marud gave out get room as soon as the file system has some.
void Pool::State::step_room() {
  if (!room) return;
  const bool was_busy = room->is_busy();
  const bool was_full = !room->full_because().empty();
  const auto got = room->step(core.now_ms);
  if (got && regions[*got].state == RegionState::kRented && !regions[*got].is_foreign)
    shm::open_region_pages(core.region, *got);
  const std::string& full = room->full_because();
  if (!was_full && !full.empty())
    log_warning("pool \"{}\" gives its clients no further region until there is room: {}", core.config.name, full);
  if (was_full && full.empty()) log_info("pool \"{}\": there is room for its regions again", core.config.name);
  // Requests that wait for the thread have their turn before it gets a region for which no request waits.
  if (was_busy || room->is_busy() || rests(core.now_ms, room_again_ms, RegionRoom::kAgainMs)) return;
  room_again_ms = core.now_ms + RegionRoom::kAgainMs;
  for (uint32_t index = 0; index < regions.size(); ++index)
    if (!has_room(index) && !regions[index].is_foreign && regions[index].state != RegionState::kUnused)
      return room->begin(index, core.now_ms);
  // So that the status says when the file system has room again.
  if (!full.empty())
    for (uint32_t index = 0; index < regions.size(); ++index)
      if (!has_room(index)) return room->begin(index, core.now_ms);
}

// For a request that has got nothing. A caller without a place for a ticket cannot wait: then this takes the room now.
bool Pool::State::waits_for_room(const Shortage& shortage, bool may_wait) {
  if (!room || shortage.room_wanted == kNever) return false;
  const auto wanted = uint32_t(shortage.room_wanted);
  if (!may_wait) return room->take(wanted);
  room->begin(wanted, core.now_ms);
  return room->is_busy();
}

}  // namespace maru::daemon
