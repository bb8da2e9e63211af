// Formatting a pool on a DAX device: from marud's start, or on command (marud --format).
#pragma once

#include "daemon/config/config.h"
#include "daemon/hosting/state_file.h"
#include "daemon/memory/dax_device.h"
#include "daemon/pool/pool.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace maru::daemon {

// For work that may take minutes. Logs its progress, and at last its rate; asks the service manager for time; ends the work
// when marud is told to stop.
Progress tell_progress(const std::string& pool, const char* done, const std::string& device);

// All such work, in any thread, ends with ECANCELED from now on.
void end_long_work();

// Has the kernel take all memory of a new pool now, where its policy puts it, by several threads. Otherwise a client that
// touches memory first has a page fault for every page. Logs the seconds per GiB.
Result<void> touch_all(const std::string& pool, const Device& device);
void log_time_taken(const std::string& pool, uint64_t bytes, std::chrono::nanoseconds taken);

// The device of a pool, or both devices of a split pool, and whether they must be cleared before they are formatted: they
// are not all zeros.
struct DaxDevices {
  std::unique_ptr<DaxDevice> main;   // everything; of a split pool the control region
  std::unique_ptr<DaxDevice> pages;  // of a split pool
  bool clears_main = false, clears_pages = false;

  std::string text() const;
  uint64_t bytes() const { return main->bytes() + (pages ? pages->bytes() : 0); }
  // The record of the pool on them, for the state file.
  PoolRecord record(const std::string& pool, const Uuid& uuid) const;
  Result<std::unique_ptr<Device>> join() &&;
};

// The pools on DAX devices that the state files know beside this one.
std::vector<OtherPool> other_pools(const StateDirectory& state, const std::string& pool);

// Under which this machine claims memory that it formats.
uint32_t claim_number(const PoolSpec& spec);

// The content that keeps a device from being formatted, or only from being formatted without being cleared; nothing: it
// is zeros all over. Reads all of it unless its label says enough.
Result<std::optional<std::string>> what_is_on(const DaxDevice& device, const std::string& pool);

// A marud that is cut off meanwhile finds in its state file that it may go on.
Result<std::unique_ptr<Pool>> format_dax(const PoolSpec& spec, const StateDirectory& state, DaxDevices devices,
                                         uint64_t now_ms);

// `marud --config FILE --format POOL [--force]`: formats the pool's device and leaves it in order. `force`: with any content.
Result<void> format_on_command(const PoolSpec& spec, const StateDirectory& state, bool force, uint64_t now_ms);

}  // namespace maru::daemon
