// A pool on a DAX device: memory behind a character device, to be mapped in multiples of its alignment and never read, written
// or truncated. One device holds one pool.
//
// The device is locked through a descriptor that clients never get. Its content is looked at before anything is written; the
// caller that opens it decides its fate.
#pragma once

#include "daemon/memory/dax_sysfs.h"
#include "daemon/memory/device.h"
#include "daemon/memory/device_content.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace maru::daemon {

class DaxDevice final : public Device {
 public:
  // Opens and locks the device; changes nothing on it. `alignment_wanted`: of the configuration, 0 any. Errors: EBUSY
  // another marud has it, EACCES, EINVAL a pool needs another mode, size or alignment.
  static Result<std::unique_ptr<DaxDevice>> open(const DaxDescription& found, uint64_t alignment_wanted,
                                                 const DaxRules& rules);

  std::string_view kind() const override { return "dax"; }
  const DaxDescription& description() const { return description_; }
  const DeviceLabel& label() const { return label_; }  // as it was when it was opened
  DeviceBytes content() const { return {fd(), bytes(), map_alignment(), name()}; }

 private:
  DaxDevice() = default;

  FileDescriptor lock_;  // apart from fd(): a lock of an open file description lives as long as any copy of it
  DaxDescription description_;
  DeviceLabel label_;
};

// When find_dax_devices() may return devices that begin blank.
enum class BlankDevices : uint8_t {
  kElse,          // when none holds a pool that may be meant
  kFirst,         // with any content of other devices: for a command that formats
  kIfAllAreRead,  // as kElse, if every device that the wish means could be read: an unread one may hold the pool
  kNever,         // the pool is somewhere: a device that is not visible now must not lose its place to another device
};

// A pool that lies, or is to lie, on some other device of this marud, as its state files say.
struct OtherPool {
  Uuid uuid = {};
  std::string name;
};
// The pool that has this uuid; null: none.
const OtherPool* owner_of(const Uuid& uuid, const std::vector<OtherPool>& others);

// The devices that `wish` may mean, best first:
//   a path           that device
//   "uuid:UUID"      the device that holds this pool, under any name
//   "node:N"         among the devices on NUMA node N the device that holds the pool `known`; without `known` the only
//                    device that holds a pool; else the devices that begin blank
//   "cxl:free"       the same, among the devices of CXL memory
// `holds`: the piece that the device must hold, the control region (kPool) or the pages (kData). `claimed_by`: a formatting of
// this machine (DeviceLabel::claimed_by) that was cut off. Its device is as good as the pool whose uuid it has, and comes
// before devices that begin blank. So is a device that was being cleared, and pages that were being labelled. `others`: a
// device of one of these pools is not chosen, nor a cut-off formatting for it; a path or a uuid finds it nevertheless. Looks at
// labels and changes nothing. Errors: ENOENT, with the finding on each device, or why it could not be read; ENOTUNIQ.
Result<std::vector<DaxDescription>> find_dax_devices(const std::string& wish, const std::optional<Uuid>& known,
                                                     DeviceLabel::Kind holds, BlankDevices blank, const DaxRules& rules,
                                                     std::optional<uint32_t> claimed_by = std::nullopt,
                                                     const std::vector<OtherPool>& others = {});

// For a device without a label: whether the wish may mean it. A uuid means the device that `known` was on; a path means only
// the device behind it.
bool may_mean(const std::string& wish, const DaxDescription& device, const Uuid& known);
// The uuid of a "uuid:UUID".
std::optional<Uuid> uuid_in(const std::string& wish);

// The mistake in the form of such a wish, or nothing.
std::optional<std::string> check_dax_wish(const std::string& wish);

}  // namespace maru::daemon
