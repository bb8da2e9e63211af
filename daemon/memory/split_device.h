// A pool on two devices, or in two files: the control region in one, the pages in the other. Clients that only read get a
// descriptor of the pages with which the kernel lets them read, and nothing else.
//
// The device with the pages begins with a label that names the pool (maru/format/data_label.h).
#pragma once

#include "daemon/memory/device.h"

#include <memory>

namespace maru::daemon {

class SplitDevice final : public Device {
 public:
  // Both of the same kind.
  static Result<std::unique_ptr<SplitDevice>> join(std::unique_ptr<Device> control, std::unique_ptr<Device> pages);

  std::string_view kind() const override { return pages_device_->kind(); }
  const Device& control_device() const { return *control_device_; }
  const Device& pages_device() const { return *pages_device_; }
  Result<void> label_pages(const uint8_t (&uuid)[16], bool is_shared) override;
  Result<void> allocate(uint64_t bytes) override;
  void keep() override;
  void share() override;
  Result<void> write_out() const override;

 private:
  SplitDevice() = default;

  std::unique_ptr<Device> control_device_, pages_device_;
};

}  // namespace maru::daemon
