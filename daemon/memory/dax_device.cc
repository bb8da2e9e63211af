#include "daemon/memory/dax_device.h"

#include "daemon/base/size_text.h"
#include "daemon/base/uuid.h"
#include "maru/format/control_region.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>

namespace maru::daemon {
namespace {

constexpr std::string_view kByUuid = "uuid:", kByNode = "node:", kFreeCxl = "cxl:free";

std::optional<int> node_of(const std::string& wish) {
  int node = -1;
  const char* begin = wish.data() + kByNode.size();
  const char* end = wish.data() + wish.size();
  const auto read = std::from_chars(begin, end, node);
  return read.ec == std::errc() && read.ptr == end && node >= 0 && node < 1024 ? std::optional(node) : std::nullopt;
}

Result<void> check_usable(const DaxDescription& found, uint64_t alignment_wanted) {
  const std::string use = "use " + found.path + " for a pool: found ";
  if (found.mode == DaxMode::kSystemRam)
    return failure(EBUSY, use +
                              "it in the mode system-ram (the kernel uses it as memory), expected devdax; have its "
                              "mode changed first, marud never takes memory from the kernel");
  if (found.mode == DaxMode::kDisabled)
    return failure(ENODEV, use + "that no driver has it, expected the mode devdax; have it enabled first");
  const uint64_t os_page = uint64_t(::sysconf(_SC_PAGESIZE));
  if (found.alignment < os_page || found.alignment > (1ull << 30))
    return failure(EINVAL,
                   use + "an alignment of " + size_text(found.alignment) + ", expected " + size_text(os_page) +
                       " to 1 GiB; make the device anew with such an alignment (marudctl provision, or daxctl)");
  if (alignment_wanted != 0 && alignment_wanted != found.alignment)
    return failure(EINVAL, use + "an alignment of " + size_text(found.alignment) + ", configured is " +
                               size_text(alignment_wanted) +
                               "; change one of them (the device's is changed by making "
                               "the device anew)");
  if (found.bytes == 0) return failure(EINVAL, use + "that it has no memory, expected some; give it a size first");
  if (found.bytes % found.alignment != 0)
    return failure(EINVAL, use + std::to_string(found.bytes) + " bytes, expected a multiple of its alignment of " +
                               size_text(found.alignment) +
                               "; make the device anew with such a size (marudctl provision, or daxctl)");
  constexpr uint64_t kLeastBytes = 256u << 10;
  if (found.bytes < kLeastBytes)
    return failure(EINVAL, use + size_text(found.bytes) + ", expected at least " + size_text(kLeastBytes) +
                               "; make the device larger (marudctl provision, or daxctl), or name another one");
  return {};
}

struct SeenDevice {
  DaxDescription device;
  std::optional<DeviceLabel> label = {};  // nothing when it cannot be read: then it is no candidate
  std::string unread_because = {};        // for a device that should be readable and is not
  bool is_forbidden = false;              // marud's user may not open it
  bool is_taken = false;                  // by a pool that is open, of this marud or of another
  const OtherPool* owner = nullptr;       // of the pool in the label, if it is known to be another pool
};

SeenDevice look_at(DaxDescription device) {
  SeenDevice seen{std::move(device)};
  if (seen.device.mode == DaxMode::kDisabled) seen.unread_because = "no driver has it";
  if (seen.device.mode != DaxMode::kDevdax || seen.device.bytes == 0) return seen;
  FileDescriptor fd(::open(seen.device.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.is_open()) {
    seen.is_forbidden = errno == EACCES || errno == EPERM;
    seen.unread_because = "which cannot be opened: " + std::string(std::strerror(errno));
    return seen;
  }
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  whole.l_len = off_t(format::kLaneLocks);  // without the clients' locks
  seen.is_taken = ::fcntl(fd.get(), F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  auto label = read_label({fd.get(), seen.device.bytes, seen.device.alignment, seen.device.path});
  if (label)
    seen.label = std::move(*label);
  else
    seen.unread_because = "which cannot be read: " + label.error().text();
  return seen;
}

// Whether the device's content is given up by the marud that was cut off.
bool begins_anew(const DeviceLabel& label, DeviceLabel::Kind holds, std::optional<uint32_t> claimed_by) {
  if (label.kind == DeviceLabel::Kind::kGivenUp) return label.is_of_pages == (holds == DeviceLabel::Kind::kData);
  return label.kind == DeviceLabel::Kind::kClaimed && label.claimed_by == claimed_by;
}

bool is_no_label(const DeviceLabel& label) {
  return label.kind == DeviceLabel::Kind::kForeign || label.kind == DeviceLabel::Kind::kDamaged;
}

constexpr size_t kNamedMax = 32;  // devices in one message

// `all`: the devices that the wish means; `machine`: every device, named when the wish means none.
std::string seen_text(const std::vector<SeenDevice>& all, const std::vector<DaxDescription>& machine) {
  std::string text;
  size_t count = 0;
  const auto add = [&](const std::string& one) {
    if (++count <= kNamedMax) text += (text.empty() ? "" : "; ") + one;
  };
  for (const SeenDevice& seen : all) {
    std::string one = seen.device.path + ", " + dax_mode_text(seen.device.mode);
    if (seen.is_taken) one += ", in use by a pool";
    if (!seen.unread_because.empty()) one += ", " + seen.unread_because;
    if (seen.label)
      one += seen.label->kind == DeviceLabel::Kind::kNothing ? ", blank at its beginning" : ", " + seen.label->found;
    if (seen.owner) one += ", which is pool \"" + seen.owner->name + "\"";
    add(one);
  }
  if (all.empty())
    for (const DaxDescription& device : machine) add(device.text());
  if (text.empty()) return "no DAX device at all";
  if (count > kNamedMax) text += "; and " + std::to_string(count - kNamedMax) + " more";
  return all.empty() ? "none there, and elsewhere " + text : text;
}

}  // namespace

Result<std::unique_ptr<DaxDevice>> DaxDevice::open(const DaxDescription& found, uint64_t alignment_wanted,
                                                   const DaxRules& rules) {
  if (auto usable = check_usable(found, alignment_wanted); !usable) return tl::unexpected(usable.error());
  auto device = std::unique_ptr<DaxDevice>(new DaxDevice);
  device->lock_.reset(::open(found.path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!device->lock_.is_open()) {
    const int code = errno;
    if (code == EACCES || code == EPERM)
      return failure(code, "open " + found.path +
                               ": found that marud's user may not, expected a device that it may read "
                               "and write; give it the device's group (udev does so for packages)");
    return failure(code, "open " + found.path);
  }
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  whole.l_len = off_t(format::kLaneLocks);  // without the clients' locks
  if (::fcntl(device->lock_.get(), F_OFD_SETLK, &whole) != 0) {
    if (errno == EAGAIN || errno == EACCES)
      return failure(EBUSY, "lock " + found.path +
                                ": found that another marud has it, expected it free; stop that one, or "
                                "name another device");
    return failure(errno, "lock " + found.path);
  }
  // The name may have become another device's since it was described; the lock stays with this one.
  const std::string again_path = "/proc/self/fd/" + std::to_string(device->lock_.get());
  auto again =
      rules.must_be_character_device ? describe_dax_device(again_path, rules) : describe_dax_device(found.path, rules);
  if (!again) return tl::unexpected(again.error());
  if (again->name != found.name || again->bytes != found.bytes || again->alignment != found.alignment)
    return failure(ESTALE, "use " + found.path + ": found that it changed while it was opened; try again");
  device->fd_.reset(::open(again_path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!device->fd_.is_open()) return failure(errno, "open " + found.path + " again for clients");

  struct stat status = {};
  if (::fstat(device->fd_.get(), &status) != 0) return failure(errno, "inspect " + found.path);
  device->name_ = found.path;
  device->map_sync_ = kMapSyncGranted;  // there is no file system that could move its blocks
  device->map_alignment_ = found.alignment;
  device->identity_ = {status.st_rdev, 0, 0, found.bytes};
  device->description_ = found;
  auto label = read_label(device->content());
  if (!label) return tl::unexpected(label.error());
  device->label_ = std::move(*label);
  return device;
}

std::optional<std::string> check_dax_wish(const std::string& wish) {
  if (wish.starts_with("/") || wish == kFreeCxl) return std::nullopt;
  if (wish.starts_with(kByUuid) && parse_uuid(wish.substr(kByUuid.size()))) return std::nullopt;
  if (wish.starts_with(kByNode) && node_of(wish)) return std::nullopt;
  return "a path such as \"/dev/dax0.0\", \"uuid:\" and the pool's uuid, \"node:\" and a NUMA node, or \"cxl:free\"";
}

bool may_mean(const std::string& wish, const DaxDescription& device, const Uuid& known) {
  if (wish.starts_with(kByNode)) return node_of(wish) == device.node;
  if (wish == kFreeCxl) return device.is_cxl;
  return uuid_in(wish) == known;
}

std::optional<Uuid> uuid_in(const std::string& wish) {
  return wish.starts_with(kByUuid) ? parse_uuid(wish.substr(kByUuid.size())) : std::nullopt;
}

const OtherPool* owner_of(const Uuid& uuid, const std::vector<OtherPool>& others) {
  const auto found = std::find_if(others.begin(), others.end(), [&](const OtherPool& one) { return one.uuid == uuid; });
  return uuid == Uuid{} || found == others.end() ? nullptr : &*found;
}

Result<std::vector<DaxDescription>> find_dax_devices(const std::string& wish, const std::optional<Uuid>& known,
                                                     DeviceLabel::Kind holds, BlankDevices blank, const DaxRules& rules,
                                                     std::optional<uint32_t> claimed_by,
                                                     const std::vector<OtherPool>& others) {
  if (wish.starts_with("/")) {
    auto described = describe_dax_device(wish, rules);
    if (!described) return tl::unexpected(described.error());
    return std::vector<DaxDescription>{std::move(*described)};
  }
  const bool by_uuid = wish.starts_with(kByUuid), by_node = wish.starts_with(kByNode);
  const auto uuid = by_uuid ? parse_uuid(wish.substr(kByUuid.size())) : known;
  const auto node = by_node ? node_of(wish) : std::nullopt;
  const std::vector<DaxDescription> machine = list_dax_devices(rules);
  std::vector<SeenDevice> seen;
  for (const DaxDescription& device : machine) {
    if (by_node && device.node != node) continue;
    if (wish == kFreeCxl && !device.is_cxl) continue;
    seen.push_back(look_at(device));
  }
  std::vector<DaxDescription> ours, not_known, cut_off, blank_ones;
  bool are_all_read = true, is_forbidden = false;
  for (SeenDevice& one : seen) {
    are_all_read &= one.unread_because.empty();
    is_forbidden |= one.is_forbidden;
    if (!one.label) continue;
    const bool is_cut_off = begins_anew(*one.label, holds, claimed_by);
    const bool is_known = uuid && *uuid != Uuid{};
    const bool has_uuid = is_known && one.label->uuid == *uuid;
    const bool is_in_part = is_known && holds == DeviceLabel::Kind::kData && is_no_label(*one.label) &&
                            are_labelled_in_part(*one.label, one.device.bytes, *uuid);
    const bool is_ours = (has_uuid && (one.label->kind == holds || is_cut_off)) || is_in_part;
    if (is_ours) ours.push_back(one.device);  // taken or not: opening it names the holder
    if (!is_ours) one.owner = owner_of(one.label->uuid, others);
    if (is_ours || one.is_taken || one.owner) continue;
    if (one.label->kind == holds) not_known.push_back(one.device);
    if (is_cut_off && !one.label->is_shared) cut_off.push_back(one.device);
    if (one.label->kind == DeviceLabel::Kind::kNothing) blank_ones.push_back(one.device);
  }
  if (ours.size() > 1)
    return failure(ENOTUNIQ, "find the device of pool " + uuid_text(*uuid) + ": found it on " + ours[0].path +
                                 " and on " + ours[1].path +
                                 ", expected one of them; one may be a copy: name the right "
                                 "one by its path");
  if (!ours.empty()) return ours;
  const auto missing = [&](const std::string& what, const std::string& expected) {
    return failure(ENOENT, "find " + what + ": found " + seen_text(seen, machine) + "; expected " + expected +
                               (is_forbidden ? "; marud's user may not open all of these: give it their group (udev "
                                               "does so for packages)"
                                             : ""));
  };
  if (by_uuid) return missing("the device that holds pool " + uuid_text(*uuid), "one that holds it");
  if (blank == BlankDevices::kFirst && !blank_ones.empty()) return blank_ones;
  // Without a record of its own a pool is taken for this one if nothing else can be meant.
  if (!known && not_known.size() == 1) return not_known;
  if (!known && not_known.size() > 1)
    return failure(ENOTUNIQ, "choose a device for \"" + wish + "\": found " + seen_text(seen, machine) +
                                 "; expected one pool at most: say device = \"uuid:...\"");
  const bool waits_for_all = blank == BlankDevices::kIfAllAreRead && !are_all_read;
  if (blank == BlankDevices::kNever || waits_for_all)
    return missing("the device of pool " + (known ? uuid_text(*known) : "") + " for \"" + wish + "\"",
                   waits_for_all ? "the one that holds it, or that all of these can be read" : "the one that holds it");
  blank_ones.insert(blank_ones.begin(), cut_off.begin(), cut_off.end());  // it was blank, or would be by now
  if (!blank_ones.empty()) return blank_ones;
  return missing("a device for \"" + wish + "\"", "one that holds this pool, or a blank one");
}

}  // namespace maru::daemon
