// The parts of a pool share this: its configuration, its memory, the control region in it, marud's own lane, and the time of
// the call that marud serves. The core uses no part.
//
//   (1) After begin(), `region` is mapped and checked, and neither its layout nor `host` changes any more.
//   (2) `now_ms` is the time of the call that is under way; no part asks a clock.
//   (3) Each step that reads a line of memory outside its own adds it to `meter`.
//
// Cost: a look at a page's word is one line.
//
// Thread safety: one thread, except for word(), which changes nothing but the meter.
#pragma once

#include "daemon/base/line_meter.h"
#include "daemon/memory/device.h"
#include "daemon/pool/limits.h"
#include "daemon/pool/pool.h"
#include "daemon/pool/totals.h"
#include "libmaru/shm/blocks/block_store.h"
#include "libmaru/shm/region/control_region.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace maru::daemon {

using shm::LaneId;
using shm::PageRef;
using shm::PageState;
using shm::PageWord;

inline constexpr uint32_t kNoHost = std::numeric_limits<uint32_t>::max();

struct PoolCore final : shm::RegionTrust {
  PoolConfig config;
  std::unique_ptr<Device> device;
  shm::ControlRegion region;
  // Of this marud's life, as the host record shows them.
  uint64_t epoch = 0;
  uint64_t boot_id[2] = {};
  uint64_t pid_namespace = 0;
  bool shows_boot = true;  // false: the content is of another boot and not verified yet
  // The slot of this host, and the generation of its claim. Both are 0 in a pool of one host.
  uint32_t host = 0, host_generation = 0;
  uint64_t now_ms = 0;  // of the call that is being served
  mutable LineMeter meter;

  shm::LaneContext self;  // marud's lane
  std::vector<AtomicU32> pin_counts;
  shm::PinTable pins;
  uint16_t attempt = 0;  // of a look for pins: libmaru/shm/recovery/evict.h
  PoolTotals totals;
  uint64_t last_ticket = 0;  // by which an answer is known that comes in a later turn
  shm::KeyBytes key;         // scratch

  uint64_t pages() const { return region.pages(); }
  PageWord word(uint32_t page) const {
    meter.add(1);
    return {region.block(page).word.load_acquire()};  // [pairs page.word]
  }
  // Of the pool's age.
  uint64_t tick(uint64_t unix_ms) const {
    const uint64_t zero = region.header().created_unix_ms;
    return unix_ms > zero ? unix_ms - zero : 0;
  }
  // Pages that a head costs to reclaim: in a durable pool the length that its line says is walked (tails_end), for each head.
  uint64_t reclaim_cost(uint32_t page) const { return region.is_durable() ? region.run_pages(page) : 1; }
  // Whether the content of a page has expired, of any kind. A hint: the time is the client's word.
  bool has_expired(uint32_t page) const {
    const uint64_t expires_ms = region.block(page).expires_ms.load_relaxed();
    return expires_ms != 0 && now_ms >= expires_ms;
  }
  // READY and childless, and over.
  bool is_expired(uint32_t page, PageWord found) const {
    return found.is(PageState::kReady) && found.low() == 0 && has_expired(page);
  }
  uint64_t pin_slots() const { return region.layout().pin_slots + region.layout().pin_overflow_slots; }  // of a lane

  // In the device's fd().
  uint64_t pages_at() const { return device->is_split() ? device->pages_offset() : region.page_offset(0); }
  uint64_t device_byte(uint64_t page) const { return pages_at() + page * region.page_bytes(); }

  bool is_whole() const override { return !device->is_lost() && device->bad_control_memory().empty(); }
  // The fault of the control region, or nothing.
  std::string bad_control_memory() const;

  // Writes the host record, whose epoch clients compare.
  void show_host(bool is_clean);
  Result<void> write_out_host() const;
};

}  // namespace maru::daemon
