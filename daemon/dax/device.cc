#include "daemon/dax/device.h"

namespace maru::daemon {

Result<void> Device::map_control(uint64_t bytes) {
  if (bytes == 0 || bytes > identity_.bytes)
    return failure(EINVAL, "map " + std::to_string(bytes) + " bytes of " + name_ + ", which has " +
                               std::to_string(identity_.bytes));
  const uint64_t rounded = (bytes + map_alignment_ - 1) / map_alignment_ * map_alignment_;
  auto mapped = Mapping::map_shared(fd_.get(), 0, rounded, PROT_READ | PROT_WRITE);
  if (!mapped) return failure(mapped.error().code, mapped.error().doing + " of " + name_);
  if (advise_huge_) ::madvise(mapped->data(), rounded, MADV_HUGEPAGE);  // a wish; the kernel's settings decide
  ::madvise(mapped->data(), rounded, MADV_DONTFORK);
  guard_.end();
  control_ = std::move(*mapped);
  control_bytes_ = bytes;
  if (!guard_.begin(control_.data(), rounded)) {
    control_.reset();
    control_bytes_ = 0;
    return failure(ENFILE, "guard the control region of " + name_);
  }
  return {};
}

}  // namespace maru::daemon
