// A pool on a DAX device: which device it is, what may become of what lies there, and the work before it serves.
//
//   what lies there                          the pool
//   zeros, all over                          is formatted, unless format = "never"
//   this pool, of this boot or in order      is adopted, as a pool in a file
//   this pool, cut off by a loss of power    is adopted after every block was verified, or formatted (after_power_loss)
//   another pool, or anything else           is refused; only `marud --format` takes such a device
//   the same, on volatile memory that held   is cleared and formatted: what lies there is what memory holds when power comes
//     this pool in another boot              back, and the state file says so
//   a formatting that was cut off            is formatted, if it was begun by this machine and no pages but its own are there
//   what was being cleared                   is cleared and formatted, unless several hosts reach it
//
// A pool that several hosts share is never verified, cleared or formatted because of what this host knows: others may be at
// work in it. Its blocks are compared with their checksums at every hit.
#include "daemon/base/log.h"
#include "daemon/base/size_text.h"
#include "daemon/hosting/dax_format.h"
#include "daemon/hosting/hosted_pool.h"
#include "daemon/hosting/power_loss.h"
#include "daemon/memory/dax_device.h"

#include <cerrno>
#include <cstring>

namespace maru::daemon {
namespace {

enum class Fate : uint8_t { kFormat, kClearAndFormat, kAdopt, kVerify };

// The state file knows the device by this name, and its memory lost its content since.
bool lost_power(const PoolRecord& record, const DaxDescription& device, const std::string& name) {
  return !device.is_persistent && record.is_volatile && record.boot_id != current_boot_id() && name == device.name;
}

bool is_of_a_pool(const DeviceLabel& label) {
  using Kind = DeviceLabel::Kind;
  if (label.kind == Kind::kGivenUp) return label.is_shared;  // another host may be at it
  return label.kind == Kind::kPool || label.kind == Kind::kData || label.kind == Kind::kClaimed;
}

std::string how_to_force(const PoolSpec& spec) {
  return "; marud --config FILE --format " + spec.pool.name +
         " --force clears and formats it, and what it holds is lost";
}

using Record = std::optional<PoolRecord>;

class Opening {
 public:
  // `record`: of the pool, in the state directory.
  Opening(const PoolSpec& spec, const Record& record, const StateDirectory& state)
      : spec_(spec),
        record_(record),
        record_path_(state.file_of(spec.pool.name)),
        others_(other_pools(state, spec.pool.name)) {}

  Result<DaxDevices> run(Fate* ret_fate) {
    const bool is_split = !spec_.dax.control_device.empty();
    const auto known = record_ ? std::optional(record_->uuid) : std::nullopt;
    const std::string& wish = is_split ? spec_.dax.control_device : spec_.dax.device;
    DaxDevices devices;
    Fate fate = Fate::kAdopt;
    devices.main = nullptr;
    if (is_split) {
      // First the pages, which nothing is decided by: how large the pool is follows from both.
      auto pages = choose(spec_.dax.device, known_pages(wish, known), DeviceLabel::Kind::kData,
                          record_ ? record_->dax_pages_name : "", [](DaxDevice&) { return Result<void>(); });
      if (!pages) return tl::unexpected(pages.error());
      devices.pages = std::move(*pages);
    }
    auto main = choose(wish, known, DeviceLabel::Kind::kPool, record_ ? record_->dax_name : "",
                       [&](DaxDevice& device) -> Result<void> {
                         auto judged = judge(device, devices.pages.get());
                         if (!judged) return tl::unexpected(judged.error());
                         fate = *judged;
                         return {};
                       });
    if (!main) return tl::unexpected(main.error());
    devices.main = std::move(*main);
    if (fate == Fate::kVerify && devices.pages && lost_power_under(*devices.pages)) {
      log_warning("pool \"{}\": of its pages {} holds nothing: there is nothing to verify, it is formatted anew",
                  spec_.pool.name, devices.pages->name());
      fate = Fate::kClearAndFormat;
    }
    devices.clears_main = fate == Fate::kClearAndFormat;
    if (devices.pages)
      if (auto judged = judge_pages(*devices.pages, *devices.main, fate, &devices.clears_pages); !judged)
        return tl::unexpected(judged.error());
    *ret_fate = fate;
    return devices;
  }

 private:
  // The uuid that the pages have. Of a formatting that was cut off it stands in the claim, and in no record yet.
  std::optional<Uuid> known_pages(const std::string& control_wish, const std::optional<Uuid>& known) const {
    if (record_ && record_->is_made()) return known;
    const auto found = find(control_wish, known, DeviceLabel::Kind::kPool);
    if (!found) return known;
    const auto control = DaxDevice::open(found->front(), spec_.dax.alignment, spec_.dax.rules);
    if (!control) return known;
    const DeviceLabel& label = (*control)->label();
    const bool is_cut_off = (is_own_claim(label) || is_given_up(label)) && label.uuid != Uuid{};
    return is_cut_off ? std::optional(label.uuid) : known;
  }

  Result<std::vector<DaxDescription>> find(const std::string& wish, const std::optional<Uuid>& known,
                                           DeviceLabel::Kind holds) const {
    // Claims are made where the control region will be.
    const auto claimed_by = holds == DeviceLabel::Kind::kPool ? std::optional(claim_number(spec_)) : std::nullopt;
    const auto look_for = [&](const std::optional<Uuid>& uuid, BlankDevices blank) {
      return find_dax_devices(wish, uuid, holds, blank, spec_.dax.rules, claimed_by, others_);
    };
    if (!record_ || !record_->is_being_formatted) return look_for(known, blank_devices());
    // There may be none of this uuid: then it is a pool that marud does not know yet.
    auto begun = look_for(known, BlankDevices::kNever);
    return begun || begun.error().code != ENOENT ? begun : look_for(std::nullopt, blank_devices());
  }

  // The first device that the wish may mean and `accept` takes.
  template <typename Accept>
  Result<std::unique_ptr<DaxDevice>> choose(const std::string& wish, const std::optional<Uuid>& known,
                                            DeviceLabel::Kind holds, const std::string& name, Accept&& accept) {
    auto candidates = find(wish, known, holds);
    const bool is_lost = !candidates && candidates.error().code == ENOENT && record_ && !spec_.pool.sharing.is_shared;
    // Volatile memory no longer says what it was; the state file does, of a device that the configuration may mean.
    if (is_lost)
      for (const DaxDescription& device : list_dax_devices(spec_.dax.rules))
        if (lost_power(*record_, device, name) && may_mean(wish, device, record_->uuid))
          candidates = std::vector<DaxDescription>{device};
    if (!candidates) {
      const Error& error = candidates.error();
      const bool takes_none = blank_devices() == BlankDevices::kNever && !uuid_in(wish) && !wish.starts_with("/");
      if (!takes_none || error.code != ENOENT) return tl::unexpected(error);
      return failure(error.code, error.doing + "; a blank device is not taken in its place" + how_to_forget());
    }
    Error last = {ENOENT, "find a device"};
    for (const DaxDescription& found : *candidates) {
      auto device = DaxDevice::open(found, spec_.dax.alignment, spec_.dax.rules);
      if (device) {
        auto accepted = is_lost ? expect_garbage(**device) : Result<void>();
        if (accepted) accepted = accept(**device);
        if (accepted) return device;
        last = accepted.error();
      } else {
        last = device.error();
      }
      if (last.code == ECANCELED) break;
      if (candidates->size() > 1) log_info("pool \"{}\" does not take {}: {}", spec_.pool.name, found.path, last.doing);
    }
    return failure(last.code, last.doing);
  }

  // A pool that marud knows may lie on a device that is late, or may not be opened now, and one in memory that lost its content
  // does not: but of that only the device itself, when it is read, can be sure.
  BlankDevices blank_devices() const {
    if (!record_ || !record_->is_made()) return BlankDevices::kElse;
    const bool is_gone = record_->is_volatile && record_->boot_id != current_boot_id() && !spec_.pool.sharing.is_shared;
    return is_gone ? BlankDevices::kIfAllAreRead : BlankDevices::kNever;
  }

  std::string how_to_forget() const {
    return "; marud --config FILE --format " + spec_.pool.name + " makes a new pool on a blank device, and so does " +
           "marud itself when " + record_path_ + " is removed";
  }

  // The configuration names this blank device, which had the pool and its name when that was last open: names change.
  Result<void> expect_nowhere_else(const DaxDevice& device) const {
    if (blank_devices() != BlankDevices::kNever || record_->dax_name != device.description().name) return {};
    const std::string uuid = uuid_text(record_->uuid);
    const auto elsewhere =
        find_dax_devices("uuid:" + uuid, {}, DeviceLabel::Kind::kPool, BlankDevices::kNever, spec_.dax.rules);
    if (!elsewhere && elsewhere.error().code == ENOENT) {
      log_warning(
          "pool \"{}\": {} is blank, and pool {}, which was there, is on no device that can be read: a new one "
          "is made",
          spec_.pool.name, device.name(), uuid);
      return {};
    }
    if (!elsewhere) return tl::unexpected(elsewhere.error());
    return failure(EEXIST, "use " + device.name() + ": found it blank, expected the pool that it was, " + uuid +
                               ", which is on " + elsewhere->front().path +
                               "; devices change their names: say device = \"uuid:" + uuid + "\"" + how_to_forget());
  }

  // Pools are walls, and the configuration may name a device that another one of them has.
  Result<void> expect_no_other_pool(const DaxDevice& device, const std::string& wish) const {
    const OtherPool* owner = owner_of(device.label().uuid, others_);
    if (!owner || uuid_in(wish) == owner->uuid || (record_ && record_->uuid == owner->uuid)) return {};
    return failure(EEXIST, "use " + device.name() + ": found " + device.label().found + ", which is pool \"" +
                               owner->name + "\", expected a blank device or this pool; if it has this name now, say " +
                               "device = \"uuid:" + uuid_text(owner->uuid) + "\"" + how_to_force(spec_));
  }

  // A device that only its name speaks for, and names change from boot to boot.
  Result<void> expect_garbage(const DaxDevice& device) const {
    const DeviceLabel& label = device.label();
    if (!is_of_a_pool(label)) return {};
    return failure(EEXIST, "use " + device.name() + ": found " + label.found +
                               ", expected what memory holds after a loss of power; name the device with its path" +
                               how_to_force(spec_));
  }

  // A device may have become smaller while no marud had it.
  Result<void> expect_whole(const DaxDevice& device, const DaxDevice* pages) const {
    const DeviceLabel& label = device.label();
    const uint64_t pool_bytes = label.header.parameters.pool_bytes, bytes = bytes_of(device, pages);
    if (pages && pages->label().kind == DeviceLabel::Kind::kData && pages->label().uuid == label.uuid) {
      const uint64_t pages_bytes = pages->label().data.data_bytes;
      if (pages_bytes != pages->bytes()) return resized(*pages, pages_bytes);
      return pool_bytes <= bytes ? Result<void>() : resized(device, pool_bytes - pages_bytes);
    }
    if (pool_bytes <= bytes) return {};
    return failure(EEXIST, "use " + device.name() + ": found " + label.found + ", more than there is (" +
                               size_text(bytes) +
                               "), expected a whole pool; one on two devices needs control_device, and a device that "
                               "was made smaller its size back" +
                               how_to_force(spec_));
  }

  tl::unexpected<Error> resized(const DaxDevice& device, uint64_t was_bytes) const {
    return failure(EEXIST, "use " + device.name() + ": found " + device.label().found + ", on a device of " +
                               std::to_string(device.bytes()) + " bytes, expected one of " + std::to_string(was_bytes) +
                               ", as when it was formatted; give the device its size back" + how_to_force(spec_));
  }

  Result<Fate> judge_known(DaxDevice& device, const DaxDevice* pages) {
    const DeviceLabel& label = device.label();
    const std::string& wish = pages ? spec_.dax.control_device : spec_.dax.device;
    // A record that was made before a formatting does not say what became of it.
    const bool is_known = record_ && record_->is_made();
    const auto named = uuid_in(wish);
    const auto expected = named || !is_known ? named : std::optional(record_->uuid);
    if (!expected)
      if (auto nobodys = expect_no_other_pool(device, wish); !nobodys) return tl::unexpected(nobodys.error());
    if (expected && *expected != label.uuid)
      return failure(EEXIST, "use " + device.name() + ": found " + label.found + ", expected the pool that it was, " +
                                 uuid_text(*expected) + "; devices change their names: say device = \"uuid:...\"" +
                                 how_to_force(spec_));
    if (auto whole = expect_whole(device, pages); !whole) return tl::unexpected(whole.error());
    const uint64_t bytes = bytes_of(device, pages);
    const bool is_persistent = device.description().is_persistent && (!pages || pages->description().is_persistent);
    const auto belief = judge_pool(spec_, device, label, bytes, is_persistent);
    if (!belief) return tl::unexpected(belief.error());
    return *belief == Belief::kAdopt    ? Fate::kAdopt
           : *belief == Belief::kVerify ? Fate::kVerify
                                        : Fate::kClearAndFormat;
  }

  bool is_own_claim(const DeviceLabel& label) const {
    return label.kind == DeviceLabel::Kind::kClaimed && label.claimed_by == claim_number(spec_);
  }
  // Of a pool of several hosts another one may be clearing it at this moment, whatever pool this is.
  bool is_given_up(const DeviceLabel& label) const {
    return label.kind == DeviceLabel::Kind::kGivenUp && !label.is_shared && !spec_.pool.sharing.is_shared;
  }

  static uint64_t bytes_of(const DaxDevice& device, const DaxDevice* pages) {
    return device.bytes() + (pages ? pages->bytes() : 0);
  }

  // `pages` is null when both pieces of the pool lie on the device.
  Result<Fate> judge(DaxDevice& device, const DaxDevice* pages) {
    const DaxDescription& description = device.description();
    const DeviceLabel& label = device.label();
    const SharingConfig& sharing = spec_.pool.sharing;
    const std::string& wish = pages ? spec_.dax.control_device : spec_.dax.device;
    if (is_own_claim(label)) {
      if (auto nobodys = expect_no_other_pool(device, wish); !nobodys) return tl::unexpected(nobodys.error());
      log_warning("pool \"{}\": formatting {} was cut off, it begins anew", spec_.pool.name, device.name());
      return Fate::kFormat;  // it was blank before, or had been cleared
    }
    if (is_given_up(label)) {
      if (auto nobodys = expect_no_other_pool(device, wish); !nobodys) return tl::unexpected(nobodys.error());
      log_warning("pool \"{}\": clearing {} was cut off, it begins anew", spec_.pool.name, device.name());
      return Fate::kClearAndFormat;
    }
    if (record_ && is_half_cleared(device, record_->dax_name) && record_->device.bytes == bytes_of(device, pages) &&
        !sharing.is_shared) {
      log_warning("pool \"{}\": clearing {} was cut off, it begins anew", spec_.pool.name, device.name());
      return Fate::kClearAndFormat;
    }
    if (label.kind == DeviceLabel::Kind::kPool) return judge_known(device, pages);
    auto found = what_is_on(device, spec_.pool.name);
    if (!found) return tl::unexpected(found.error());
    if (!*found) {
      if (spec_.dax.formats_blank) {
        if (auto nowhere = expect_nowhere_else(device); !nowhere) return tl::unexpected(nowhere.error());
        return Fate::kFormat;
      }
      return failure(ENODATA, "use " + device.name() +
                                  ": found it blank, expected a pool, since format = \"never\"; "
                                  "marud --config FILE --format " +
                                  spec_.pool.name + " formats it");
    }
    if (record_ && lost_power(*record_, description, record_->dax_name) && !sharing.is_shared && !is_of_a_pool(label)) {
      log_warning(
          "pool \"{}\": {} holds {}, which is what volatile memory holds after a loss of power: it is cleared "
          "and formatted",
          spec_.pool.name, device.name(), **found);
      return Fate::kClearAndFormat;
    }
    return failure(EEXIST, "use " + device.name() + ": found " + **found + ", expected a blank device or this pool" +
                               how_to_force(spec_));
  }

  // Whether this device was being cleared, by its name and by what lies there: nothing at its beginning, or this pool still.
  // Anything else has come since, or was not given up yet: while a device is cleared, it begins with a mark.
  bool is_half_cleared(const DaxDevice& device, const std::string& name) const {
    if (!record_->is_being_cleared || name != device.description().name) return false;
    const DeviceLabel& label = device.label();
    const bool is_ours =
        is_of_a_pool(label) && label.uuid == record_->uuid && label.kind != DeviceLabel::Kind::kGivenUp;
    // Zeros at the beginning of another boot say nothing of what lies behind them.
    const bool is_zero_still = label.kind == DeviceLabel::Kind::kNothing && record_->boot_id == current_boot_id();
    return is_zero_still || is_ours;
  }

  // What lay there went with the power, the label too, and the control region on another device did not.
  bool lost_power_under(const DaxDevice& pages) const {
    return pages.label().kind != DeviceLabel::Kind::kData && record_ &&
           lost_power(*record_, pages.description(), record_->dax_pages_name);
  }

  // The pages of a split pool go with its control region.
  Result<void> judge_pages(DaxDevice& pages, const DaxDevice& main, Fate fate, bool* ret_clears) {
    const DeviceLabel& label = pages.label();
    const bool is_data = label.kind == DeviceLabel::Kind::kData;
    if (fate == Fate::kAdopt || fate == Fate::kVerify) {
      if (is_data && label.uuid == main.label().uuid && label.data.data_bytes == pages.bytes()) return {};
      return failure(EEXIST, "use " + pages.name() + ": found " + (label.found.empty() ? "no label" : label.found) +
                                 ", expected the pages of pool " + uuid_text(main.label().uuid) +
                                 ", whose control region is on " + main.name());
    }
    *ret_clears = false;
    if (are_claimed(label, pages.bytes(), main.label())) return {};
    if (is_given_up(label)) {
      *ret_clears = true;
      return expect_no_other_pool(pages, spec_.dax.device);
    }
    *ret_clears = may_clear(pages, main, fate);
    if (*ret_clears) return {};
    auto found = what_is_on(pages, spec_.pool.name);
    if (!found) return tl::unexpected(found.error());
    if (!*found) return {};
    return failure(EEXIST, "use " + pages.name() + ": found " + **found +
                               ", expected a blank device, or the pages of what was on " + main.name() +
                               how_to_force(spec_));
  }

  // Whether these pages hold nothing that anybody could still read: their control region is given up for good reasons, and
  // they are its, or what volatile memory holds.
  bool may_clear(const DaxDevice& pages, const DaxDevice& main, Fate fate) const {
    const DeviceLabel& label = pages.label();
    if (spec_.pool.sharing.is_shared || label.is_shared) return false;
    const bool is_data = label.kind == DeviceLabel::Kind::kData;
    if (main.label().kind == DeviceLabel::Kind::kPool && is_data && label.uuid == main.label().uuid) return true;
    if (!record_ || label.kind == DeviceLabel::Kind::kPool) return false;
    // A control device that is only blank may be another one under an old name, and the control region elsewhere.
    const bool is_given_up =
        fate == Fate::kClearAndFormat || lost_power(*record_, main.description(), record_->dax_name);
    if (is_data) return is_given_up && label.uuid == record_->uuid;
    if (is_half_cleared(pages, record_->dax_pages_name)) return true;
    return lost_power(*record_, pages.description(), record_->dax_pages_name) && !is_of_a_pool(label);
  }

  const PoolSpec& spec_;
  const Record& record_;
  const std::string record_path_;
  const std::vector<OtherPool> others_;
};

// "cxl:free" is one device; whoever expects all that is free learns what is left.
void tell_of_unused(const PoolSpec& spec, const DaxDevices& devices) {
  const std::string wish = "cxl:free";
  if (spec.dax.device != wish && spec.dax.control_device != wish) return;
  const auto blank = find_dax_devices(wish, {}, DeviceLabel::Kind::kPool, BlankDevices::kFirst, spec.dax.rules);
  std::string unused;
  for (const DaxDescription& device : blank ? *blank : std::vector<DaxDescription>())
    if (device.name != devices.main->description().name &&
        (!devices.pages || device.name != devices.pages->description().name))
      unused += (unused.empty() ? "" : ", ") + device.text();
  if (!unused.empty())
    log_info("pool \"{}\" takes no more than that of the CXL memory; blank, or not in use, are also {}", spec.pool.name,
             unused);
}

}  // namespace

Result<void> HostedPool::start_dax(uint64_t now_ms) {
  auto loaded = state_.load(name());
  if (!loaded) log_warning("pool \"{}\": what was known of its device is lost: {}", name(), loaded.error().text());
  const Record known = loaded && *loaded && !(*loaded)->dax_name.empty() ? *loaded : std::nullopt;
  Fate fate = Fate::kAdopt;
  auto devices = Opening(spec_, known, state_).run(&fate);
  if (!devices) return tl::unexpected(devices.error());
  log_info("pool \"{}\" lies on {}", name(), devices->text());
  tell_of_unused(spec_, *devices);
  PoolRecord record = devices->record(name(), {});
  const auto made = fate == Fate::kFormat || fate == Fate::kClearAndFormat
                        ? serve(format_dax(spec_, state_, std::move(*devices), now_ms))
                        : adopt_dax(std::move(*devices), fate == Fate::kVerify, now_ms);
  if (!made) return made;
  std::memcpy(record.uuid.data(), pool_->header().uuid, record.uuid.size());
  // The pool itself says what it is; without the record a device is only found less well.
  if (auto saved = state_.save(record); !saved) log_warning("pool \"{}\": {}", name(), saved.error().text());
  return {};
}

Result<void> HostedPool::adopt_dax(DaxDevices devices, bool verifies, uint64_t now_ms) {
  const std::string place = devices.text();
  PoolRecord record = devices.record(name(), devices.main->label().uuid);
  auto device = std::move(devices).join();
  if (!device) return tl::unexpected(device.error());
  if (!verifies) return serve(Pool::adopt(spec_.pool, std::move(*device), now_ms));
  const auto is_believed = adopt_verified(std::move(*device), place, now_ms);
  if (!is_believed) return tl::unexpected(is_believed.error());
  if (*is_believed) return {};
  record.is_being_cleared = true;
  if (auto saved = state_.save(record); !saved) return saved;
  return start_dax(now_ms);  // which ends: a pool that was formatted is not verified
}

}  // namespace maru::daemon
