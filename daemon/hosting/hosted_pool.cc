#include "daemon/hosting/hosted_pool.h"

#include "daemon/base/log.h"
#include "daemon/base/size_text.h"
#include "daemon/hosting/dax_format.h"
#include "daemon/memory/memory_device.h"
#include "daemon/system/notify.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

namespace maru::daemon {

Result<std::unique_ptr<HostedPool>> HostedPool::start(const PoolSpec& spec, const StateDirectory& state,
                                                      std::map<std::string, FileDescriptor>& stored, uint64_t now_ms) {
  auto hosted = std::unique_ptr<HostedPool>(new HostedPool(spec, state));
  auto started = spec.backend == Backend::kFile  ? hosted->start_file(now_ms)
                 : spec.backend == Backend::kDax ? hosted->start_dax(now_ms)
                                                 : hosted->start_memory(stored, now_ms);
  if (!started) return failure(started.error().code, "pool \"" + spec.pool.name + "\": " + started.error().doing);
  return hosted;
}

Result<std::unique_ptr<HostedPool>> HostedPool::start_anew(const PoolSpec& spec, const StateDirectory& state,
                                                           uint64_t now_ms) {
  auto hosted = std::unique_ptr<HostedPool>(new HostedPool(spec, state));
  log_warning("pool \"{}\" begins anew: nobody handed its memory back, its blocks are lost", spec.pool.name);
  if (auto begun = hosted->begin_anew(now_ms); !begun)
    return failure(begun.error().code, "pool \"" + spec.pool.name + "\": " + begun.error().doing);
  return hosted;
}

Result<std::unique_ptr<HostedPool>> HostedPool::start_on(std::unique_ptr<Device> memory, const PoolRecord& record,
                                                         const PoolSpec& spec, const StateDirectory& state,
                                                         uint64_t now_ms) {
  auto hosted = std::unique_ptr<HostedPool>(new HostedPool(spec, state));
  hosted->record_ = record;
  if (auto adopted = hosted->adopt_memory(std::move(memory), now_ms); !adopted)
    return failure(adopted.error().code, "pool \"" + spec.pool.name + "\": " + adopted.error().doing);
  return hosted;
}

std::unique_ptr<HostedPool> HostedPool::unavailable(const PoolSpec& spec, const StateDirectory& state,
                                                    const Error& why) {
  auto hosted = std::unique_ptr<HostedPool>(new HostedPool(spec, state));
  hosted->condition_ = Condition::kUnavailable;
  hosted->set_unavailable(spec, why);
  return hosted;
}

bool HostedPool::set_unavailable(const PoolSpec& tried, const Error& why) {
  spec_ = tried;
  unavailable_code_ = why.code;
  return std::exchange(unavailable_because_, why.text()) != why.text();
}

// A device that is not there yet, or not for this user; or another process has it; or it changed meanwhile; or other
// hosts have every slot of it. A device with forbidden content stays so.
bool HostedPool::may_become_available() const {
  switch (unavailable_code_) {
    case ENOENT:
    case ENODEV:
    case ENXIO:
    case EBUSY:
    case EAGAIN:
    case EACCES:
    case EPERM:
    case EIO:
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
    case ESTALE:
    case EUSERS: return true;
    default: return false;
  }
}

void HostedPool::set_access(const PoolSpec& reread) {
  spec_.users = reread.users;
  spec_.groups = reread.groups;
  spec_.readers = reread.readers;
  spec_.reader_groups = reread.reader_groups;
  spec_.admins = reread.admins;
  spec_.admin_groups = reread.admin_groups;
}

Result<void> HostedPool::serve(Result<std::unique_ptr<Pool>> pool) {
  if (!pool) return tl::unexpected(pool.error());
  auto at_run_time = state_.load_tenants(name());
  // A file that cannot be read now is there, and the next change would overwrite it.
  if (!at_run_time && at_run_time.error().code != EBADMSG) return tl::unexpected(at_run_time.error());
  pool_ = std::move(*pool);
  if (!at_run_time)
    log_error(
        "pool \"{}\" does without the limits of tenants that were set at run time, and the next change begins their "
        "file "
        "anew: {}",
        name(), at_run_time.error().text());
  pool_->set_tenant_limits(at_run_time ? *at_run_time : TenantSettings(),
                           [state = state_, pool_name = name()](const TenantSettings& settings) {
                             return state.save_tenants(pool_name, settings);
                           });
  condition_ = Condition::kServing;
  if (state_.is_draining(name())) {
    condition_ = Condition::kDraining;
    pool_->set_draining(true, 0);
    log_info("pool \"{}\" was being drained, and goes on with that (marudctl device cancel {})", name(), name());
  }
  const format::Parameters& parameters = pool_->header().parameters;
  log_info("pool \"{}\" serves {} of {} in pages of {}, epoch {}, uuid {}", name(), size_text(parameters.pool_bytes),
           pool_->device().name(), size_text(parameters.page_bytes), pool_->epoch(), uuid_text(pool_->header().uuid));
  if (const std::string& map_sync = pool_->device().map_sync(); !map_sync.empty())
    log_info("pool \"{}\": MAP_SYNC is {}", name(), map_sync);
  if (const std::string& why = pool_->why_no_lane_locks(); !why.empty())
    log_info("pool \"{}\" gives lanes out without locks: {}; the death of a client is proven by its process alone",
             name(), why);
  if (const std::string& why = pool_->device().unreserved_because(); !why.empty())
    log_warning(
        "pool \"{}\": its file system has not promised room for all of it, and a store that finds none is refused: {}",
        name(), why);
  tell_of_differences();
  fence_if_lost();
  return {};
}

Result<void> HostedPool::remember() {
  const Device& device = pool_->device();
  PoolRecord record = {name(), {}, device.identity(), current_boot_id()};
  record.pages = device.pages_identity();
  std::memcpy(record.uuid.data(), pool_->header().uuid, record.uuid.size());
  hand_to_service_manager();
  return state_.save(record);
}

void HostedPool::hand_to_service_manager() {
  const Device& device = pool_->device();
  is_stored_ = notify("FDSTORE=1\nFDNAME=" + stored_name(), device.control_fd()) &&
               (!device.is_split() || notify("FDSTORE=1\nFDNAME=" + stored_pages_name(), device.fd()));
  if (!is_stored_) forget_stored();  // half of a pool is none
}

void HostedPool::forget_stored() const {
  for (const std::string& stored : {stored_name(), stored_pages_name()}) notify("FDSTOREREMOVE=1\nFDNAME=" + stored);
}

// The wishes of the configuration for a new pool that this one, formatted earlier, does not meet.
void HostedPool::tell_of_differences() const {
  const format::Parameters& has = pool_->header().parameters;
  std::string kept;
  const auto compare = [&](const char* key, uint64_t wanted, uint64_t found, bool is_size) {
    if (wanted == 0 || wanted == found) return;
    const auto text = [&](uint64_t value) { return is_size ? size_text(value) : std::to_string(value); };
    kept += (kept.empty() ? "" : ", ") + std::string(key) + " " + text(found) + " (configured: " + text(wanted) + ")";
  };
  compare("page_bytes", spec_.pool.page_bytes, has.page_bytes, true);
  compare("region_bytes", spec_.pool.region_bytes, has.region_pages * has.page_bytes, true);
  compare("lanes", spec_.pool.lanes, has.lanes, false);
  compare("pins", spec_.pool.pins_max, has.pins_max, false);
  compare("touch_entries", spec_.pool.touch_entries, has.touch_entries, false);
  compare("key_inline_bytes", spec_.pool.key_inline_bytes, has.key_inline_bytes, false);
  compare("tenants_max", spec_.pool.tenants_max, has.tenants, false);
  const bool has_checksums = (pool_->header().compat_flags & format::kCompatChecksums) != 0;
  if (spec_.pool.checksums != has_checksums)
    kept += (kept.empty() ? "" : ", ") + std::string(has_checksums ? "its checksums" : "no checksums");
  if (!kept.empty()) log_warning("pool \"{}\" keeps what it was formatted with: {}", name(), kept);
}

Result<bool> HostedPool::adopt_verified(std::unique_ptr<Device> device, const std::string& place, uint64_t now_ms) {
  auto pool = Pool::adopt(spec_.pool, std::move(device), now_ms, true);
  const auto verified = pool ? (*pool)->verify(tell_progress(name(), "verified", place), now_ms)
                             : Result<Pool::Verified>(tl::unexpected(pool.error()));
  if (!verified && verified.error().code != EBADMSG) return tl::unexpected(verified.error());
  if (!verified) {
    log_warning("pool \"{}\" is formatted anew, its blocks are lost: {}", name(), verified.error().doing);
    return false;
  }
  log_info("pool \"{}\": of {} blocks with {} {} were dropped", name(), verified->blocks, size_text(verified->bytes),
           verified->dropped);
  if (auto served = serve(std::move(pool)); !served) return tl::unexpected(served.error());
  return true;
}

Result<void> HostedPool::start_memory(std::map<std::string, FileDescriptor>& stored, uint64_t now_ms) {
  auto record = state_.load(name());
  if (!record && record.error().code != EBADMSG) return tl::unexpected(record.error());  // its memory may be there
  if (!record) {
    log_warning("pool \"{}\" begins anew: {}", name(), record.error().text());
  } else if (*record && !(*record)->dax_name.empty()) {
    log_info("pool \"{}\" begins anew: until now it was on {}, which is left as it is", name(), (*record)->dax_name);
  } else if (*record && !(*record)->file_path.empty()) {
    log_info("pool \"{}\" begins anew: until now it was in {}, which is left as it is", name(), (*record)->file_path);
  } else if (*record && (*record)->boot_id != current_boot_id()) {
    log_info("pool \"{}\" begins anew: its memory was lost with the last boot", name());
  } else {
    record_ = *record;
  }
  const auto take = [&](const std::string& what) {
    auto found = stored.extract(what);
    return found ? std::move(found.mapped()) : FileDescriptor();
  };
  HeldMemory held = {take(stored_name()), take(stored_pages_name()), false};
  if (held.main.is_open() || held.pages.is_open()) {
    if (record_) {
      auto memory = recognise(std::move(held));
      auto accepted = memory ? adopt_memory(std::move(*memory), now_ms) : tl::unexpected(memory.error());
      if (accepted) return {};
      log_warning("pool \"{}\": what the service manager kept is refused: {}", name(), accepted.error().text());
    }
    forget_stored();
  }
  if (record_) {
    log_info("pool \"{}\" waits for a client to hand its memory back (marud was restarted)", name());
    return {};
  }
  return begin_anew(now_ms);
}

Result<std::unique_ptr<Device>> HostedPool::recognise(HeldMemory held) const {
  return MemoryDevice::adopt(std::move(held), record_->device, record_->pages);
}

Result<void> HostedPool::adopt_memory(std::unique_ptr<Device> memory, uint64_t now_ms) {
  auto pool = Pool::adopt(spec_.pool, std::move(memory), now_ms);
  if (!pool) return tl::unexpected(pool.error());
  if (std::memcmp((*pool)->header().uuid, record_->uuid.data(), record_->uuid.size()) != 0)
    return failure(ESTALE, "accept memory that holds another pool");
  auto served = serve(std::move(pool));
  if (!served) return served;
  record_.reset();
  hand_to_service_manager();  // the state file is up to date already
  return {};
}

// The state file names the earlier memory until remember(): a marud that is cut off here has left that memory as it was.
Result<void> HostedPool::begin_anew(uint64_t now_ms) {
  const auto division = [&](uint64_t bytes, uint64_t unit) { return Pool::control_room(spec_.pool, bytes, unit, 0); };
  const auto start = std::chrono::steady_clock::now();
  auto device = MemoryDevice::create(name(), spec_.bytes, spec_.huge_pages, spec_.numa, division,
                                     tell_progress(name(), "placed", spec_.numa.text()));
  if (!device) return tl::unexpected(device.error());
  if (const std::string& why = (*device)->without_huge_pages(); !why.empty())
    log_info("pool \"{}\" does without huge pages: {}", name(), why);
  if ((*device)->is_taken())
    log_time_taken(name(), (*device)->bytes(), std::chrono::steady_clock::now() - start);
  else if (spec_.numa.first_touch)
    if (auto touched = touch_all(name(), **device); !touched) return touched;
  auto served = serve(Pool::format(spec_.pool, std::move(*device), now_ms));
  if (!served) return served;
  return remember();
}

bool HostedPool::fence_if_lost() {
  if (!serving()) return false;
  std::string bad = pool_->lost_because();
  if (bad.empty()) bad = pool_->bad_control_memory();
  if (bad.empty() && !pool_->device().is_lost()) return false;
  if (condition_ != Condition::kLeaving) condition_ = Condition::kFenced;
  fenced_because_ =
      bad.empty() ? "its memory went away (" + pool_->device().name() + " was truncated, or the machine ran out of it)"
                  : bad;
  pool_->give_up_turns();
  log_error("pool \"{}\" is fenced: {}; its clients are asked to leave and it takes no new ones", name(),
            fenced_because_);
  return true;
}

void HostedPool::lane_ended(uint32_t lane, bool said_goodbye) {
  if (!pool_) return;
  if (!serving())
    pool_->give_up_lane(lane);
  else if (said_goodbye)
    pool_->detach(lane);
  else
    pool_->client_died(lane);
}

// marud is not told whether it is restarted or stopped: systemd keeps stored descriptors over a restart, and gives them
// up with a stop.
std::string HostedPool::future_text(bool is_held) const {
  if (!is_held)
    return "is left with the service manager: a restart gets it back; a stop gives it up, since no client holds it";
  return is_stored_
             ? "stays with its clients and, over a restart, with the service manager: the next marud gets it back"
             : "stays with its clients: the next marud gets it back";
}

void HostedPool::stop(bool is_held) {
  // A pool that is being closed is left in order, unless its disk does not answer.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (ending_.is_lasting() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  while (!is_held && !is_written_out()) {
    notify("EXTEND_TIMEOUT_USEC=60000000");
    writing_.wait_for(std::chrono::seconds(10));
  }
  close();
  if (spec_.backend != Backend::kMemory || condition_ == Condition::kWaiting || condition_ == Condition::kUnavailable ||
      is_gone())
    return;
  if ((is_held && fenced_because_.empty()) || is_stored_) {
    log_info("pool \"{}\" {}", name(), future_text(is_held));
    return;
  }
  state_.remove(name());
  log_info("pool \"{}\" ends with marud: no client holds its memory", name());
}

}  // namespace maru::daemon
