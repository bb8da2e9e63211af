#include "daemon/dax/split_device.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>

namespace maru::daemon {
namespace {

// One huge page: what follows begins as a huge page does.
constexpr uint64_t kLabelRoom = 2ull << 20;

}  // namespace

Result<std::unique_ptr<SplitDevice>> SplitDevice::join(std::unique_ptr<DaxDevice> control,
                                                       std::unique_ptr<DaxDevice> pages) {
  if (pages->bytes() <= kLabelRoom)
    return failure(EINVAL, "put pages on " + pages->name() + ": found " + std::to_string(pages->bytes()) +
                               " bytes, expected more than 2 MiB");
  auto device = std::unique_ptr<SplitDevice>(new SplitDevice);
  const std::string pages_path = "/proc/self/fd/" + std::to_string(pages->fd());
  device->fd_.reset(::fcntl(pages->fd(), F_DUPFD_CLOEXEC, 3));
  device->control_fd_.reset(::fcntl(control->fd(), F_DUPFD_CLOEXEC, 3));
  device->read_only_fd_.reset(::open(pages_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!device->fd_.is_open() || !device->control_fd_.is_open() || !device->read_only_fd_.is_open())
    return failure(errno, "open " + pages->name() + " and " + control->name() + " for clients");
  device->map_sync_ = pages->map_sync();
  device->name_ = pages->name() + ", control region on " + control->name();
  device->map_alignment_ = pages->map_alignment();
  device->control_alignment_ = control->map_alignment();
  device->pages_offset_ = kLabelRoom;
  device->pages_room_ = pages->bytes() - kLabelRoom;
  device->control_room_ = control->bytes();
  device->identity_ = control->identity();
  device->identity_.bytes = control->bytes() + pages->bytes();
  device->control_device_ = std::move(control);
  device->pages_device_ = std::move(pages);
  return device;
}

Result<void> SplitDevice::label_pages(const uint8_t (&uuid)[16]) {
  DataLabel label = {kDataLabelMagic, {}, pages_device_->bytes(), pages_offset(), 0};
  std::memcpy(label.uuid, uuid, sizeof(label.uuid));
  label.checksum = data_label_checksum(label);
  auto mapped = Mapping::map_shared(fd(), 0, std::max(kLabelRoom, map_alignment()), PROT_READ | PROT_WRITE);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + pages_device_->name());
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size())) return failure(ENFILE, "guard " + pages_device_->name());
  std::memcpy(mapped->data(), &label, sizeof(label));
  if (guard.has_fired()) return failure(EIO, "write the label of " + pages_device_->name() + " (a memory error)");
  return {};
}

}  // namespace maru::daemon
