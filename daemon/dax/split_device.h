// A pool on two devices: the control region on one, the pages on the other. Clients that only read get a descriptor of the
// pages with which the kernel lets them read, and nothing else.
//
// The device of the pages begins with a label that names the pool. It is written before the control region, so that a control
// region that is there always has its pages.
#pragma once

#include "daemon/dax/dax_device.h"

#include <memory>

namespace maru::daemon {

class SplitDevice final : public Device {
 public:
  static Result<std::unique_ptr<SplitDevice>> join(std::unique_ptr<DaxDevice> control,
                                                   std::unique_ptr<DaxDevice> pages);

  std::string_view kind() const override { return "dax"; }
  const DaxDevice& control_device() const { return *control_device_; }
  const DaxDevice& pages_device() const { return *pages_device_; }
  Result<void> label_pages(const uint8_t (&uuid)[16]) override;

 private:
  SplitDevice() = default;

  std::unique_ptr<DaxDevice> control_device_, pages_device_;
};

}  // namespace maru::daemon
