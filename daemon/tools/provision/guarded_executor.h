// An executor that looks again before each step and each undoing. It locks the step's devices as marud locks them, reads the
// machine anew, and compares it with the planned machine (recheck.h). If a part of the step changed meanwhile, the step does
// not begin. So no pool is lost that was made or opened after the plan.
//
// It releases the locks right before the step, because the step takes the driver from its devices. Linux (seen in 6.1) starts a
// character device anew when a driver takes it back, even while a process has it open. When such an old descriptor is closed,
// it drops the last reference of the new device. Then no process can open the device (ENXIO) until its driver was taken away
// once more. So this executor does not stop a process that opens a device after the look: the kernel has no means for it.
#pragma once

#include "daemon/tools/provision/apply.h"
#include "daemon/tools/provision/machine.h"
#include "libmaru/base/file_descriptor.h"

#include <functional>
#include <string>

namespace maru::daemon::provision {

// The means of looking.
struct Eyes {
  std::function<Result<Machine>()> read_machine;
  // Returns a closed descriptor for a device without a driver, or of the kernel's memory: no process can open such a device.
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
