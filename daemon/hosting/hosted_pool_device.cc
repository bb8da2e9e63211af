// A pool on a DAX device: finds the devices that may be meant, gathers the facts for dax_judgement.h, and does the work
// before the pool serves.
#include "daemon/base/log.h"
#include "daemon/base/uuid.h"
#include "daemon/hosting/dax_format.h"
#include "daemon/hosting/dax_judgement.h"
#include "daemon/hosting/hosted_pool.h"
#include "daemon/hosting/power_loss.h"
#include "daemon/memory/dax_device.h"

#include <cerrno>
#include <cstring>

namespace maru::daemon {
namespace {

using Record = std::optional<PoolRecord>;

KnownPool known_pool(const PoolSpec& spec, const Record& record, const StateDirectory& state) {
  return {spec,
          record,
          state.file_of(spec.pool.name),
          other_pools(state, spec.pool.name),
          std::string(current_boot_id()),
          claim_number(spec)};
}

DaxFacts facts_of(const DaxDevice& device) {
  return {std::string(device.name()), device.description(), device.label(), device.bytes()};
}

// The search for the devices of a pool.
class DaxSearch {
 public:
  // `record`: of the pool, in the state directory.
  DaxSearch(const PoolSpec& spec, const Record& record, const StateDirectory& state)
      : spec_(spec), record_(record), judge_(known_pool(spec, record, state)) {}

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
    if (fate == Fate::kVerify && devices.pages && judge_.lost_power_under(facts_of(*devices.pages))) {
      log_warning("pool \"{}\": of its pages {} holds nothing: there is nothing to verify, it is formatted anew",
                  spec_.pool.name, devices.pages->name());
      fate = Fate::kClearAndFormat;
    }
    devices.clears_main = fate == Fate::kClearAndFormat;
    if (devices.pages) {
      const auto judged = judge_pages(*devices.pages, *devices.main, fate);
      if (!judged) return tl::unexpected(judged.error());
      devices.clears_pages = *judged == Fate::kClearAndFormat;
    }
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
    const auto begun = judge_.begun_uuid((*control)->label());
    return begun ? begun : known;
  }

  Result<std::vector<DaxDescription>> find(const std::string& wish, const std::optional<Uuid>& known,
                                           DeviceLabel::Kind holds) const {
    // Claims are made where the control region will be.
    const auto claimed_by = holds == DeviceLabel::Kind::kPool ? std::optional(claim_number(spec_)) : std::nullopt;
    const auto look_for = [&](const std::optional<Uuid>& uuid, BlankDevices blank) {
      return find_dax_devices(wish, uuid, holds, blank, spec_.dax.rules, claimed_by, judge_.known().others);
    };
    if (!record_ || !record_->is_being_formatted) return look_for(known, judge_.blank_devices());
    // There may be none of this uuid: then it is a pool that marud does not know yet.
    auto begun = look_for(known, BlankDevices::kNever);
    return begun || begun.error().code != ENOENT ? begun : look_for(std::nullopt, judge_.blank_devices());
  }

  // The first device that the wish may mean and `accept` takes.
  template <typename Accept>
  Result<std::unique_ptr<DaxDevice>> choose(const std::string& wish, const std::optional<Uuid>& known,
                                            DeviceLabel::Kind holds, const std::string& name, Accept&& accept) {
    auto candidates = find(wish, known, holds);
    const bool is_lost = !candidates && candidates.error().code == ENOENT && record_ && !spec_.pool.sharing.is_shared;
    // Volatile memory has lost its label. The state file knows it, for a device that the configuration may mean.
    if (is_lost)
      for (const DaxDescription& device : list_dax_devices(spec_.dax.rules))
        if (judge_.lost_power(device, name) && may_mean(wish, device, record_->uuid))
          candidates = std::vector<DaxDescription>{device};
    if (!candidates) {
      const Error& error = candidates.error();
      const bool takes_none =
          judge_.blank_devices() == BlankDevices::kNever && !uuid_in(wish) && !wish.starts_with("/");
      if (!takes_none || error.code != ENOENT) return tl::unexpected(error);
      return failure(error.code, error.doing + "; a blank device is not taken in its place" + judge_.how_to_forget());
    }
    Error last = {ENOENT, "find a device"};
    for (const DaxDescription& found : *candidates) {
      auto device = DaxDevice::open(found, spec_.dax.alignment, spec_.dax.rules);
      if (device) {
        auto accepted = is_lost ? judge_.expect_garbage(facts_of(**device)) : Result<void>();
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

  // `pages` is null when both pieces of the pool lie on the device.
  Result<Fate> judge(DaxDevice& device, const DaxDevice* pages) {
    const DaxFacts main = facts_of(device);
    const auto beside = pages ? std::optional(facts_of(*pages)) : std::nullopt;
    return with_evidence(device, pages, [&](const DaxEvidence& evidence) {
      return judge_.judge(main, beside ? &*beside : nullptr, evidence);
    });
  }

  // The pages of a split pool go with its control region.
  Result<Fate> judge_pages(DaxDevice& pages, const DaxDevice& main, Fate fate) {
    const DaxFacts facts = facts_of(pages), control = facts_of(main);
    return with_evidence(pages, nullptr, [&](const DaxEvidence& evidence) {
      return judge_.judge_pages(facts, control, fate, evidence);
    });
  }

  // Asks until no fact is lacking: each is gathered once.
  template <typename Ask>
  Result<Fate> with_evidence(DaxDevice& device, const DaxDevice* pages, Ask&& ask) {
    DaxEvidence evidence;
    for (;;) {
      const Result<DaxJudgement> judged = ask(evidence);
      if (!judged) return tl::unexpected(judged.error());
      if (judged->lacks == DaxJudgement::Lack::kNothing) {
        if (!judged->warning.empty()) log_warning("pool \"{}\": {}", spec_.pool.name, judged->warning);
        return judged->fate;
      }
      if (auto gathered = gather(judged->lacks, device, pages, evidence); !gathered)
        return tl::unexpected(gathered.error());
    }
  }

  Result<void> gather(DaxJudgement::Lack lack, DaxDevice& device, const DaxDevice* pages, DaxEvidence& evidence) {
    switch (lack) {
      case DaxJudgement::Lack::kNothing: break;
      case DaxJudgement::Lack::kContent: {
        auto found = what_is_on(device, spec_.pool.name);
        if (!found) return tl::unexpected(found.error());
        evidence.content = DaxEvidence::Content{!*found, found->value_or("")};
        break;
      }
      case DaxJudgement::Lack::kBelief: {
        const bool is_persistent = device.description().is_persistent && (!pages || pages->description().is_persistent);
        const auto belief =
            judge_pool(spec_, device, device.label(), device.bytes() + (pages ? pages->bytes() : 0), is_persistent);
        if (!belief) return tl::unexpected(belief.error());
        evidence.belief = *belief;
        break;
      }
      case DaxJudgement::Lack::kOtherPlace: {
        const auto found = find_dax_devices("uuid:" + uuid_text(record_->uuid), {}, DeviceLabel::Kind::kPool,
                                            BlankDevices::kNever, spec_.dax.rules);
        if (!found && found.error().code != ENOENT) return tl::unexpected(found.error());
        evidence.other_place = found ? found->front().path : "";
        break;
      }
    }
    return {};
  }

  const PoolSpec& spec_;
  const Record& record_;
  const DaxJudge judge_;
};

// "cxl:free" is one device; an administrator who expects all free memory learns of the rest.
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
  auto devices = DaxSearch(spec_, known, state_).run(&fate);
  if (!devices) return tl::unexpected(devices.error());
  log_info("pool \"{}\" lies on {}", name(), devices->text());
  tell_of_unused(spec_, *devices);
  PoolRecord record = devices->record(name(), {});
  const auto made = fate == Fate::kFormat || fate == Fate::kClearAndFormat
                        ? serve(format_dax(spec_, state_, std::move(*devices), now_ms))
                        : adopt_dax(std::move(*devices), fate == Fate::kVerify, now_ms);
  if (!made) return made;
  std::memcpy(record.uuid.data(), pool_->header().uuid, record.uuid.size());
  // The pool's own label identifies it; without the record a device is only harder to find.
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
