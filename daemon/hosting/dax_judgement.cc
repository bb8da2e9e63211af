#include "daemon/hosting/dax_judgement.h"

#include "daemon/base/size_text.h"
#include "daemon/base/uuid.h"

#include <cerrno>

namespace maru::daemon {
namespace {

using Lack = DaxJudgement::Lack;

DaxJudgement lacks(Lack what) { return {what}; }
DaxJudgement decided(Fate fate, std::string warning = {}) { return {Lack::kNothing, fate, std::move(warning)}; }

bool is_of_a_pool(const DeviceLabel& label) {
  using Kind = DeviceLabel::Kind;
  if (label.kind == Kind::kGivenUp) return label.is_shared;  // another host may be at it
  return label.kind == Kind::kPool || label.kind == Kind::kData || label.kind == Kind::kClaimed;
}

uint64_t bytes_of(const DaxFacts& device, const DaxFacts* pages) { return device.bytes + (pages ? pages->bytes : 0); }

}  // namespace

std::string DaxJudge::how_to_force() const {
  return "; marud --config FILE --format " + pool() + " --force clears and formats it, and what it holds is lost";
}

std::string DaxJudge::how_to_forget() const {
  return "; marud --config FILE --format " + pool() + " makes a new pool on a blank device, and so does " +
         "marud itself when " + known_.record_path + " is removed";
}

// -- the device with the control region -------------------------------------------------------------------------------

Result<DaxJudgement> DaxJudge::judge(const DaxFacts& device, const DaxFacts* pages, const DaxEvidence& evidence) const {
  const DeviceLabel& label = device.label;
  const std::optional<PoolRecord>& record = known_.record;
  const std::string& wish = pages ? known_.spec.dax.control_device : known_.spec.dax.device;
  if (is_own_claim(label)) return begin_anew(device, wish, Fate::kFormat);  // it was blank before, or had been cleared
  if (is_given_up(label)) return begin_anew(device, wish, Fate::kClearAndFormat);
  if (record && is_half_cleared(device, record->dax_name) && record->device.bytes == bytes_of(device, pages) &&
      !is_shared())
    return decided(Fate::kClearAndFormat, "clearing " + device.name + " was cut off, it begins anew");
  if (label.kind == DeviceLabel::Kind::kPool) return judge_known(device, pages, evidence);
  if (!evidence.content) return lacks(Lack::kContent);
  if (evidence.content->is_blank) return judge_blank(device, evidence);
  const std::string& found = evidence.content->found;
  if (record && lost_power(device.description, record->dax_name) && !is_shared() && !is_of_a_pool(label))
    return decided(Fate::kClearAndFormat, device.name + " holds " + found +
                                              ", which is what volatile memory holds after a loss of power: it is "
                                              "cleared and formatted");
  return failure(EEXIST,
                 "use " + device.name + ": found " + found + ", expected a blank device or this pool" + how_to_force());
}

// Work that was cut off goes on, unless it was for another pool.
Result<DaxJudgement> DaxJudge::begin_anew(const DaxFacts& device, const std::string& wish, Fate fate) const {
  if (auto nobodys = expect_no_other_pool(device, wish); !nobodys) return tl::unexpected(nobodys.error());
  const char* work = fate == Fate::kFormat ? "formatting " : "clearing ";
  return decided(fate, work + device.name + " was cut off, it begins anew");
}

// A pool lies there.
Result<DaxJudgement> DaxJudge::judge_known(const DaxFacts& device, const DaxFacts* pages,
                                           const DaxEvidence& evidence) const {
  const DeviceLabel& label = device.label;
  const std::string& wish = pages ? known_.spec.dax.control_device : known_.spec.dax.device;
  // A record that was made before a formatting does not say whether the formatting ended.
  const bool is_known = known_.record && known_.record->is_made();
  const auto named = uuid_in(wish);
  const auto expected = named || !is_known ? named : std::optional(known_.record->uuid);
  if (!expected)
    if (auto nobodys = expect_no_other_pool(device, wish); !nobodys) return tl::unexpected(nobodys.error());
  if (expected && *expected != label.uuid)
    return failure(EEXIST, "use " + device.name + ": found " + label.found + ", expected the pool that it was, " +
                               uuid_text(*expected) + "; devices change their names: say device = \"uuid:...\"" +
                               how_to_force());
  if (auto whole = expect_whole(device, pages); !whole) return tl::unexpected(whole.error());
  if (!evidence.belief) return lacks(Lack::kBelief);
  return decided(*evidence.belief == Belief::kAdopt    ? Fate::kAdopt
                 : *evidence.belief == Belief::kVerify ? Fate::kVerify
                                                       : Fate::kClearAndFormat);
}

// Zeros all over. The device may have had the pool, and the name that the record says, when it was last open: names change.
Result<DaxJudgement> DaxJudge::judge_blank(const DaxFacts& device, const DaxEvidence& evidence) const {
  if (!known_.spec.dax.formats_blank)
    return failure(ENODATA, "use " + device.name +
                                ": found it blank, expected a pool, since format = \"never\"; "
                                "marud --config FILE --format " +
                                pool() + " formats it");
  if (blank_devices() != BlankDevices::kNever || known_.record->dax_name != device.description.name)
    return decided(Fate::kFormat);
  if (!evidence.other_place) return lacks(Lack::kOtherPlace);
  const std::string uuid = uuid_text(known_.record->uuid);
  if (evidence.other_place->empty())
    return decided(Fate::kFormat, device.name + " is blank, and pool " + uuid +
                                      ", which was there, is on no device that can be read: a new one is made");
  return failure(EEXIST, "use " + device.name + ": found it blank, expected the pool that it was, " + uuid +
                             ", which is on " + *evidence.other_place +
                             "; devices change their names: say device = \"uuid:" + uuid + "\"" + how_to_forget());
}

// -- the device with the pages ----------------------------------------------------------------------------------------

Result<DaxJudgement> DaxJudge::judge_pages(const DaxFacts& pages, const DaxFacts& main, Fate fate,
                                           const DaxEvidence& evidence) const {
  const DeviceLabel& label = pages.label;
  if (fate == Fate::kAdopt || fate == Fate::kVerify) {
    const bool is_data = label.kind == DeviceLabel::Kind::kData;
    if (is_data && label.uuid == main.label.uuid && label.data.data_bytes == pages.bytes) return decided(Fate::kAdopt);
    return failure(EEXIST, "use " + pages.name + ": found " + (label.found.empty() ? "no label" : label.found) +
                               ", expected the pages of pool " + uuid_text(main.label.uuid) +
                               ", whose control region is on " + main.name);
  }
  if (are_claimed(label, pages.bytes, main.label)) return decided(Fate::kFormat);
  if (is_given_up(label)) {
    if (auto nobodys = expect_no_other_pool(pages, known_.spec.dax.device); !nobodys)
      return tl::unexpected(nobodys.error());
    return decided(Fate::kClearAndFormat);
  }
  if (may_clear(pages, main, fate)) return decided(Fate::kClearAndFormat);
  if (!evidence.content) return lacks(Lack::kContent);
  if (evidence.content->is_blank) return decided(Fate::kFormat);
  return failure(EEXIST, "use " + pages.name + ": found " + evidence.content->found +
                             ", expected a blank device, or the pages of what was on " + main.name + how_to_force());
}

// Whether these pages hold nothing that any process could still read: their control region is given up for good reasons, and
// the pages belong to it, or are the rest of volatile memory.
bool DaxJudge::may_clear(const DaxFacts& pages, const DaxFacts& main, Fate fate) const {
  const DeviceLabel& label = pages.label;
  const std::optional<PoolRecord>& record = known_.record;
  if (is_shared() || label.is_shared) return false;
  const bool is_data = label.kind == DeviceLabel::Kind::kData;
  if (main.label.kind == DeviceLabel::Kind::kPool && is_data && label.uuid == main.label.uuid) return true;
  if (!record || label.kind == DeviceLabel::Kind::kPool) return false;
  // A blank control device may be another device under an old name, and the control region elsewhere.
  const bool is_given_up = fate == Fate::kClearAndFormat || lost_power(main.description, record->dax_name);
  if (is_data) return is_given_up && label.uuid == record->uuid;
  if (is_half_cleared(pages, record->dax_pages_name)) return true;
  return lost_power(pages.description, record->dax_pages_name) && !is_of_a_pool(label);
}

// -- the meaning of the facts -----------------------------------------------------------------------------------------

// A pool that marud knows may lie on a device that comes late or that marud cannot open now. A pool in memory that lost its
// content lies nowhere any more; marud knows this loss only after it has read every device.
BlankDevices DaxJudge::blank_devices() const {
  if (!known_.record || !known_.record->is_made()) return BlankDevices::kElse;
  const bool is_gone = known_.record->is_volatile && known_.record->boot_id != known_.boot_id && !is_shared();
  return is_gone ? BlankDevices::kIfAllAreRead : BlankDevices::kNever;
}

bool DaxJudge::lost_power(const DaxDescription& device, const std::string& name) const {
  const PoolRecord& record = *known_.record;
  return !device.is_persistent && record.is_volatile && record.boot_id != known_.boot_id && name == device.name;
}

bool DaxJudge::lost_power_under(const DaxFacts& pages) const {
  return pages.label.kind != DeviceLabel::Kind::kData && known_.record &&
         lost_power(pages.description, known_.record->dax_pages_name);
}

std::optional<Uuid> DaxJudge::begun_uuid(const DeviceLabel& label) const {
  const bool is_cut_off = (is_own_claim(label) || is_given_up(label)) && label.uuid != Uuid{};
  return is_cut_off ? std::optional(label.uuid) : std::nullopt;
}

bool DaxJudge::is_own_claim(const DeviceLabel& label) const {
  return label.kind == DeviceLabel::Kind::kClaimed && label.claimed_by == known_.claim_number;
}

// In a pool of several hosts another host may be clearing the device at this moment, with any pool.
bool DaxJudge::is_given_up(const DeviceLabel& label) const {
  return label.kind == DeviceLabel::Kind::kGivenUp && !label.is_shared && !is_shared();
}

// Whether this device was being cleared, by its name and its content: zeros at its beginning, or this pool still. Any other
// content has come since, or was not given up yet: while a device is cleared, it begins with a mark.
bool DaxJudge::is_half_cleared(const DaxFacts& device, const std::string& name) const {
  const PoolRecord& record = *known_.record;
  if (!record.is_being_cleared || name != device.description.name) return false;
  const DeviceLabel& label = device.label;
  const bool is_ours = is_of_a_pool(label) && label.uuid == record.uuid && label.kind != DeviceLabel::Kind::kGivenUp;
  // Zeros at the beginning in another boot say nothing of the bytes behind them.
  const bool is_zero_still = label.kind == DeviceLabel::Kind::kNothing && record.boot_id == known_.boot_id;
  return is_zero_still || is_ours;
}

// -- refusals ---------------------------------------------------------------------------------------------------------

// Pools are walls, and the configuration may name a device that another pool has.
Result<void> DaxJudge::expect_no_other_pool(const DaxFacts& device, const std::string& wish) const {
  const OtherPool* owner = owner_of(device.label.uuid, known_.others);
  if (!owner || uuid_in(wish) == owner->uuid || (known_.record && known_.record->uuid == owner->uuid)) return {};
  return failure(EEXIST, "use " + device.name + ": found " + device.label.found + ", which is pool \"" + owner->name +
                             "\", expected a blank device or this pool; if it has this name now, say " +
                             "device = \"uuid:" + uuid_text(owner->uuid) + "\"" + how_to_force());
}

Result<void> DaxJudge::expect_garbage(const DaxFacts& device) const {
  if (!is_of_a_pool(device.label)) return {};
  return failure(EEXIST, "use " + device.name + ": found " + device.label.found +
                             ", expected what memory holds after a loss of power; name the device with its path" +
                             how_to_force());
}

// A device may have become smaller while no marud had it.
Result<void> DaxJudge::expect_whole(const DaxFacts& device, const DaxFacts* pages) const {
  const DeviceLabel& label = device.label;
  const uint64_t pool_bytes = label.header.parameters.pool_bytes, bytes = bytes_of(device, pages);
  if (pages && pages->label.kind == DeviceLabel::Kind::kData && pages->label.uuid == label.uuid) {
    const uint64_t pages_bytes = pages->label.data.data_bytes;
    if (pages_bytes != pages->bytes) return resized(*pages, pages_bytes);
    return pool_bytes <= bytes ? Result<void>() : resized(device, pool_bytes - pages_bytes);
  }
  if (pool_bytes <= bytes) return {};
  return failure(EEXIST, "use " + device.name + ": found " + label.found + ", more than there is (" + size_text(bytes) +
                             "), expected a whole pool; one on two devices needs control_device, and a device that "
                             "was made smaller its size back" +
                             how_to_force());
}

tl::unexpected<Error> DaxJudge::resized(const DaxFacts& device, uint64_t was_bytes) const {
  return failure(EEXIST, "use " + device.name + ": found " + device.label.found + ", on a device of " +
                             std::to_string(device.bytes) + " bytes, expected one of " + std::to_string(was_bytes) +
                             ", as when it was formatted; give the device its size back" + how_to_force());
}

}  // namespace maru::daemon
