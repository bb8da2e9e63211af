#include "daemon/memory/split_device.h"

#include "daemon/memory/memory_trouble.h"
#include "libmaru/base/map_sync.h"
#include "libmaru/shm/region/data_label.h"
#include "libmaru/shm/region/flush.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>

namespace maru::daemon {
namespace {

using format::kDataLabelRoom;

// A property that one of the two does not grant, the pool does not have.
const std::string& map_sync_of(const Device& control, const Device& pages) {
  return control.map_sync() == kMapSyncGranted ? pages.map_sync() : control.map_sync();
}

}  // namespace

Result<std::unique_ptr<SplitDevice>> SplitDevice::join(std::unique_ptr<Device> control, std::unique_ptr<Device> pages) {
  if (pages->bytes() <= kDataLabelRoom)
    return failure(EINVAL, "put pages on " + pages->name() + ": found " + std::to_string(pages->bytes()) +
                               " bytes, expected more than 2 MiB");
  auto device = std::unique_ptr<SplitDevice>(new SplitDevice);
  const std::string pages_path = "/proc/self/fd/" + std::to_string(pages->fd());
  device->fd_.reset(::fcntl(pages->fd(), F_DUPFD_CLOEXEC, 3));
  device->control_fd_.reset(::fcntl(control->fd(), F_DUPFD_CLOEXEC, 3));
  device->read_only_fd_.reset(::open(pages_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!device->fd_.is_open() || !device->control_fd_.is_open() || !device->read_only_fd_.is_open())
    return failure(errno, "open " + pages->name() + " and " + control->name() + " for clients");
  device->map_sync_ = map_sync_of(*control, *pages);
  device->unreserved_because_ = pages->unreserved_because();  // allocate() takes all of the control region's room
  device->name_ = pages->name() + ", control region on " + control->name();
  device->map_alignment_ = pages->map_alignment();
  device->control_alignment_ = control->map_alignment();
  device->advise_huge_ = control->advises_huge();
  device->pages_offset_ = kDataLabelRoom;
  device->pages_room_ = pages->bytes() - kDataLabelRoom;
  device->control_room_ = control->bytes();
  device->identity_ = control->identity();
  device->identity_.bytes = control->bytes() + pages->bytes();
  device->control_device_ = std::move(control);
  device->pages_device_ = std::move(pages);
  return device;
}

Result<void> SplitDevice::label_pages(const uint8_t (&uuid)[16], bool is_shared) {
  const format::DataLabel label = shm::make_data_label(uuid, pages_device_->bytes(), pages_offset(), is_shared);
  auto mapped = map_shared_synchronously(fd(), std::max(kDataLabelRoom, map_alignment()), PROT_READ | PROT_WRITE,
                                         std::max(kDataLabelRoom, map_alignment()));
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + pages_device_->name());
  FaultGuard guard;
  if (!guard.begin(mapped->data(), mapped->size(), map_alignment()))
    return failure(ENFILE, "guard " + pages_device_->name());
  shm::write_data_label(mapped->data(), label);
  shm::flush_lines(mapped->data(), sizeof(label));  // before the header, without which it means nothing
  if (const std::string why = memory_trouble(guard); !why.empty())
    return failure(memory_trouble_code(guard),
                   "write the label of " + pages_device_->name() + ": it cannot be written (" + why + ")");
  return {};
}

// The label is taken with it: a file system that is full is an error here, and would be SIGBUS later.
Result<void> SplitDevice::allocate(uint64_t bytes) {
  if (auto taken = control_device_->allocate(bytes); !taken) return taken;
  return pages_device_->allocate(sizeof(format::DataLabel));
}

Result<void> SplitDevice::write_out() const {
  if (auto written = control_device_->write_out(); !written) return written;
  return pages_device_->write_out();
}

void SplitDevice::keep() {
  control_device_->keep();
  pages_device_->keep();
}

void SplitDevice::share() {
  control_device_->share();
  pages_device_->share();
}

}  // namespace maru::daemon
