#include "daemon/hosting/dax_format.h"

#include "daemon/base/log.h"
#include "daemon/base/size_text.h"
#include "daemon/memory/split_device.h"
#include "daemon/system/control_group.h"
#include "daemon/system/notify.h"
#include "maru/format/atomic_word.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <sys/random.h>
#include <utility>

namespace maru::daemon {
namespace {

uint64_t monotonic_ms() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1'000'000;
}

Result<Uuid> random_uuid() {
  Uuid uuid;
  if (::getrandom(uuid.data(), uuid.size(), 0) != ssize_t(uuid.size())) return failure(errno, "read random bytes");
  return uuid;
}

// Gives all devices to be cleared up before it clears one. `record`: to be saved, for the pool that will be there;
// `before`: the record in the state file. `is_shared`: several hosts will share the pool.
Result<void> clear(const StateDirectory& state, const DaxDevices& devices, const std::optional<PoolRecord>& before,
                   PoolRecord record, bool is_shared) {
  const std::pair<const DaxDevice*, bool> both[] = {{devices.main.get(), devices.clears_main},
                                                    {devices.pages.get(), devices.clears_pages}};
  const std::string& pool = record.pool;
  const Uuid& uuid = record.uuid;
  // A claim with a machine's number is one on memory that several hosts reach.
  for (const auto& [device, is_cleared] : both)
    is_shared |= is_cleared && (device->label().is_shared || device->label().claimed_by != 0);
  record.is_being_cleared = true;
  // Until there is a mark, only the record says of memory that it lost power: by the boot that it is of.
  const std::string boot_id = record.boot_id;
  const bool is_of_record =
      before && before->dax_name == record.dax_name && before->dax_pages_name == record.dax_pages_name;
  if (is_of_record && before->is_volatile) record.boot_id = before->boot_id;
  if (auto saved = state.save(record); !saved) return saved;
  bool is_any_marked = false;
  for (const auto& [device, is_cleared] : both) {
    if (!is_cleared) continue;
    if (auto given_up = give_up_content(device->content(), device == devices.pages.get(), uuid, is_shared); !given_up) {
      if (before && !is_any_marked) (void)state.save(*before);  // all is as it was
      return given_up;
    }
    is_any_marked = true;
  }
  if (record.boot_id != boot_id) {
    record.boot_id = boot_id;  // or it would speak for the new content when this is done
    if (auto saved = state.save(record); !saved) return saved;
  }
  for (const auto& [device, is_cleared] : both)
    if (is_cleared)
      if (auto cleared = clear_content(device->content(), tell_progress(pool, "cleared", device->name())); !cleared)
        return cleared;
  return {};
}

std::atomic<bool> is_ending{false};

// The signals are blocked while marud works, and taken up by its event loop, which may not run yet.
bool is_told_to_stop() {
  if (is_ending.load()) return true;
  sigset_t waiting;
  return ::sigpending(&waiting) == 0 && (sigismember(&waiting, SIGTERM) == 1 || sigismember(&waiting, SIGINT) == 1);
}

}  // namespace

void end_long_work() { is_ending.store(true); }

Progress tell_progress(const std::string& pool, const char* done, const std::string& device) {
  constexpr uint64_t kLinePauseMs = 10'000;
  const uint64_t start_ms = monotonic_ms();
  return [=, told_ms = start_ms](uint64_t done_bytes, uint64_t of_bytes) mutable {
    const uint64_t now_ms = monotonic_ms();
    notify("EXTEND_TIMEOUT_USEC=60000000");
    if (done_bytes == of_bytes) {
      const double seconds = double(std::max<uint64_t>(now_ms - start_ms, 1)) / 1000;
      log_info("pool \"{}\": {} {} of {} in {:.1f} s, {} a second", pool, done, size_text(of_bytes), device, seconds,
               size_text(uint64_t(double(of_bytes) / seconds)));
    } else if (now_ms - told_ms >= kLinePauseMs) {
      told_ms = now_ms;
      log_info("pool \"{}\": {} {} of {} of {}", pool, done, size_text(done_bytes), size_text(of_bytes), device);
    }
    return !is_told_to_stop();
  };
}

Result<void> touch_all(const std::string& pool, const Device& device) {
  constexpr size_t kOsPage = 4096;
  // In a file a formatting that was cut off may have left its claim.
  const auto touch = [](std::span<std::byte> part, uint64_t) {
    for (size_t at = 0; at < part.size(); at += kOsPage)
      reinterpret_cast<AtomicU64*>(part.data() + at)->fetch_add_relaxed(0);  // no other process has it yet
  };
  // Reserved room of a file is taken already.
  if (device.kind() != "file" || !device.unreserved_because().empty())
    if (auto fits = check_memory_limit(device.fd(), device.bytes(), "all memory of the pool (first_touch)"); !fits)
      return fits;
  const uint64_t start_ms = monotonic_ms();
  const DeviceBytes parts[] = {{device.control_fd(), device.control_room(), device.control_alignment(), device.name()},
                               {device.fd(), device.pages_room(), device.map_alignment(), device.name()}};
  for (const DeviceBytes& part : std::span(parts).first(device.is_split() ? 2 : 1)) {
    auto touched = look_at_all(part, PROT_READ | PROT_WRITE, touch, tell_progress(pool, "touched", device.name()));
    if (!touched) return touched;
  }
  log_time_taken(pool, device.bytes(), std::chrono::milliseconds(monotonic_ms() - start_ms));
  return {};
}

void log_time_taken(const std::string& pool, uint64_t bytes, std::chrono::nanoseconds taken) {
  log_info("pool \"{}\" took its memory in {:.3f} seconds per GiB", pool,
           std::chrono::duration<double>(taken).count() / (double(bytes) / double(1u << 30)));
}

std::string DaxDevices::text() const {
  return main->description().text() +
         (pages ? " (control region) and " + pages->description().text() + " (pages)" : "");
}

PoolRecord DaxDevices::record(const std::string& pool, const Uuid& uuid) const {
  PoolRecord record = {pool, uuid, main->identity(), current_boot_id(), main->description().name};
  record.device.bytes = bytes();
  if (pages) record.dax_pages_name = pages->description().name;
  record.is_volatile = !main->description().is_persistent || (pages && !pages->description().is_persistent);
  return record;
}

Result<std::unique_ptr<Device>> DaxDevices::join() && {
  if (!pages) return std::unique_ptr<Device>(std::move(main));
  auto joined = SplitDevice::join(std::move(main), std::move(pages));
  if (!joined) return tl::unexpected(joined.error());
  return std::unique_ptr<Device>(std::move(*joined));
}

std::vector<OtherPool> other_pools(const StateDirectory& state, const std::string& pool) {
  std::vector<OtherPool> others;
  for (PoolRecord& record : state.others_on_dax(pool)) others.push_back({record.uuid, std::move(record.pool)});
  return others;
}

uint32_t claim_number(const PoolSpec& spec) {
  return spec.pool.sharing.is_shared ? machine_number(spec.pool.sharing) : 0;
}

Result<std::optional<std::string>> what_is_on(const DaxDevice& device, const std::string& pool) {
  if (device.label().kind != DeviceLabel::Kind::kNothing) return std::optional(device.label().found);
  auto content = find_content(device.content(), tell_progress(pool, "looked at", device.name()));
  if (!content) return tl::unexpected(content.error());
  if (!*content) return std::optional<std::string>();
  // It was blank at its beginning when it was opened. Another host may have begun to format it since, and
  // find_content() met that.
  const auto now = read_label(device.content());
  if (!now) return tl::unexpected(now.error());
  if (now->kind != DeviceLabel::Kind::kNothing)
    return failure(EAGAIN, "format " + device.name() +
                               ": found that another host formats it at this moment, or has formatted it meanwhile, "
                               "expected it blank still; start marud again when that host serves it");
  return std::optional("zeros at its beginning and content at byte " + std::to_string(**content));
}

Result<std::unique_ptr<Pool>> format_dax(const PoolSpec& spec, const StateDirectory& state, DaxDevices devices,
                                         uint64_t now_ms) {
  const std::string& pool = spec.pool.name;
  const bool clears = devices.clears_main || devices.clears_pages;
  log_info("pool \"{}\" is new: {} is {}formatted", pool, devices.text(), clears ? "cleared and " : "");
  const auto loaded = state.load(pool);
  const std::optional<PoolRecord> before = loaded ? *loaded : std::nullopt;
  PoolRecord record = devices.record(pool, devices.main->label().uuid);
  auto random = random_uuid();
  if (!random) return tl::unexpected(random.error());
  if (clears) {
    if (record.uuid == Uuid{} && devices.pages) record.uuid = devices.pages->label().uuid;
    if (record.uuid == Uuid{}) record.uuid = *random;
    if (auto cleared = clear(state, devices, before, record, spec.pool.sharing.is_shared); !cleared)
      return tl::unexpected(cleared.error());
  }
  // A formatting that is cut off from here on is this pool's and no other's, since the claim will have this uuid.
  const DeviceLabel& label = devices.main->label();
  const bool goes_on = label.kind == DeviceLabel::Kind::kClaimed && !devices.clears_main && is_whole(label.uuid);
  // By its uuid the configuration has to find it at the next start, too.
  const auto named = uuid_in(devices.pages ? spec.dax.control_device : spec.dax.device);
  record.uuid = goes_on ? label.uuid : named.value_or(*random);
  record.is_being_formatted = true;
  if (auto saved = state.save(record); !saved) return tl::unexpected(saved.error());
  // The old pool lay on a device that was cleared, or went with the power.
  const auto had_it = [&](const DaxDevice& device, const std::string& name) {
    const bool is_lost = before->is_volatile && before->boot_id != current_boot_id();
    return device.label().uuid == before->uuid || (is_lost && device.description().name == name);
  };
  const bool is_gone = before && ((devices.clears_main && had_it(*devices.main, before->dax_name)) ||
                                  (devices.clears_pages && had_it(*devices.pages, before->dax_pages_name)));
  DeviceBytes main = devices.main->content();
  const FileDescriptor main_fd(::fcntl(main.fd, F_DUPFD_CLOEXEC, 3));  // its own goes to the pool
  main.fd = main_fd.get();
  auto device = std::move(devices).join();
  auto made = device ? Pool::format(spec.pool, std::move(*device), now_ms, record.uuid)
                     : Result<std::unique_ptr<Pool>>(tl::unexpected(device.error()));
  if (made) return made;
  const auto left = read_label(main);
  const bool is_begun = left && left->uuid == record.uuid;  // it is found by the record, as after a death
  // Else the pool that marud knew is still somewhere, and no blank device is to be taken in its place.
  if (before && before->is_made() && !before->dax_name.empty() && !is_gone && !is_begun)
    if (auto saved = state.save(*before); !saved)
      log_warning("pool \"{}\": where it lay before is forgotten: {}", pool, saved.error().text());
  return made;
}

Result<void> format_on_command(const PoolSpec& spec, const StateDirectory& state, bool force, uint64_t now_ms) {
  DaxDevices devices;
  const bool is_split = !spec.dax.control_device.empty();
  const auto others = other_pools(state, spec.pool.name);
  // A command that was cut off before is given again: its remains may be cleared, or need not be.
  const auto is_given_up = [&](const DeviceLabel& label) {
    return label.kind == DeviceLabel::Kind::kGivenUp && !label.is_shared && !spec.pool.sharing.is_shared &&
           !owner_of(label.uuid, others);
  };
  const auto is_begun = [&](const DaxDevice& device, DeviceLabel::Kind holds) {
    const DeviceLabel& label = device.label();
    if (holds == DeviceLabel::Kind::kData) return are_claimed(label, device.bytes(), devices.main->label());
    return label.kind == DeviceLabel::Kind::kClaimed && label.claimed_by == claim_number(spec) &&
           !owner_of(label.uuid, others);
  };
  const auto take = [&](const std::string& wish, DeviceLabel::Kind holds, std::unique_ptr<DaxDevice>* ret_device,
                        bool* ret_clears) -> Result<void> {
    // Only a device that is named can be forced: of several the wrong one would be lost.
    if (force && !wish.starts_with("/") && !wish.starts_with("uuid:"))
      return failure(EINVAL, "force the device of pool \"" + spec.pool.name + "\": found device = \"" + wish +
                                 "\", expected a path or \"uuid:...\", so that it is clear which device is meant");
    const auto claimed_by = holds == DeviceLabel::Kind::kPool ? std::optional(claim_number(spec)) : std::nullopt;
    auto candidates =
        find_dax_devices(wish, std::nullopt, holds, BlankDevices::kFirst, spec.dax.rules, claimed_by, others);
    if (!candidates) return tl::unexpected(candidates.error());
    Error last = {ENOENT, "find a device"};
    for (const DaxDescription& candidate : *candidates) {
      if (last.code == ECANCELED) break;
      auto device = DaxDevice::open(candidate, spec.dax.alignment, spec.dax.rules);
      auto found = device ? what_is_on(**device, spec.pool.name) : tl::unexpected(device.error());
      const bool goes_on = found && is_begun(**device, holds);
      if (found && (!*found || force || goes_on || is_given_up((*device)->label()))) {
        *ret_clears = found->has_value() && !goes_on;
        *ret_device = std::move(*device);
        return {};
      }
      last = !found ? found.error()
                    : Error{EEXIST, "format " + (*device)->name() + ": found " + **found +
                                        ", expected it blank; --force clears it, and what it holds is lost"};
    }
    return failure(last.code, last.doing);
  };
  if (auto taken = take(is_split ? spec.dax.control_device : spec.dax.device, DeviceLabel::Kind::kPool, &devices.main,
                        &devices.clears_main);
      !taken)
    return taken;
  if (is_split)
    if (auto taken = take(spec.dax.device, DeviceLabel::Kind::kData, &devices.pages, &devices.clears_pages); !taken)
      return taken;
  PoolRecord record = devices.record(spec.pool.name, {});
  const std::string text = devices.text();
  auto pool = format_dax(spec, state, std::move(devices), now_ms);
  if (!pool) return tl::unexpected(pool.error());
  // No administrator would be told later: marud's start would find a pool and fence it.
  if (const std::string bad = (*pool)->bad_control_memory(); !bad.empty())
    return failure(EHWPOISON, "format pool \"" + spec.pool.name + "\": " + bad);
  if (auto closed = (*pool)->close(); !closed) return closed;
  log_info("pool \"{}\" is formatted on {}, uuid {}", spec.pool.name, text, uuid_text((*pool)->header().uuid));
  std::memcpy(record.uuid.data(), (*pool)->header().uuid, record.uuid.size());
  return state.save(record);
}

}  // namespace maru::daemon
