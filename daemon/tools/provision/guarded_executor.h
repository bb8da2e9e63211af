// An executor that looks again before each step and each undoing: the devices that it is about are locked as marud locks them,
// then the machine is read anew and compared with what the plan saw (recheck.h). A step about something that changed meanwhile
// is not begun, so that a pool which somebody made or opened after the plan is not lost.
//
// The locks are let go of right before the step: it takes the driver from its devices, and Linux (seen in 6.1) starts a
// character device anew when a driver takes it back, whoever has it open. A descriptor from before that drops the last
// reference of the new one when it is closed; then nobody can open the device (ENXIO) until its driver was taken away once
// more. So a process that opens a device after the look is not kept out: the kernel has no means for it.
#pragma once

#include "daemon/tools/provision/apply.h"
#include "daemon/tools/provision/machine.h"
#include "libmaru/base/file_descriptor.h"

#include <functional>
#include <string>

namespace maru::daemon::provision {

// What it looks with.
struct Eyes {
  std::function<Result<Machine>()> read_machine;
  // A descriptor that is not open: the device has no driver, or is the kernel's memory, and nobody can open it.
  std::function<Result<FileDescriptor>(const std::string& device)> lock_device;
};

class GuardedExecutor final : public Executor {
 public:
  // `planned`: the machine that the plan was made for.
  GuardedExecutor(Executor& executor, Machine planned, Eyes eyes)
      : executor_(executor), expected_(std::move(planned)), eyes_(std::move(eyes)) {}

  StepResult run(const Step& step) override;
  StepResult undo(const Step& step, const std::string& name) override;

 private:
  // Fails when the step is not to be begun. No descriptor is left open.
  Result<void> look_again(const Step& step);
  void look_after(const Step& step, const std::string& name);

  Executor& executor_;
  Machine expected_;
  const Eyes eyes_;
};

}  // namespace maru::daemon::provision
