// The steps on this machine, through libndctl, libdaxctl and libcxl. Each step reads the machine anew. The caller
// (guarded_executor.h) locks existing devices, and releases them before a step. Each device is locked anew while it is cleared.
#pragma once

#include "daemon/tools/provision/apply.h"

namespace maru::daemon::provision {

class DeviceExecutor : public Executor {
 public:
  StepResult run(const Step& step) override;
  StepResult undo(const Step& step, const std::string& name) override;
};

// NVDIMM regions and namespaces. execute_namespace.cc
StepResult make_labels(const std::string& region);
StepResult remove_labels(const std::string& region);
StepResult make_namespace(const std::string& region, const std::string& label, uint64_t bytes, uint64_t align);
StepResult remove_namespace(const std::string& name);
StepResult enable_namespace(const std::string& name);
StepResult disable_namespace(const std::string& name);

// DAX devices. execute_device.cc
// Of the name `wanted`, unless the kernel gives it to no empty device; "": of any.
StepResult make_device(const std::string& region, uint64_t bytes, uint64_t align, const std::string& wanted = "");
// It is enabled then, unless it shall not be.
StepResult resize_device(const std::string& name, uint64_t bytes, bool is_disabled_after = false);
StepResult remove_device(const std::string& name);
StepResult enable_device(const std::string& name);
StepResult disable_device(const std::string& name);
StepResult take_from_kernel(const std::string& name);
StepResult give_to_kernel(const std::string& name, KernelUse use = KernelUse::kMovable);
// Writes zeros to [from, to), under the lock that marud takes on the device. Releases it before it returns, so that the caller
// can take away the device's driver (guarded_executor.h). EBUSY: a marud has the device.
Result<void> clear_part_of_device(const std::string& name, uint64_t from, uint64_t to, uint64_t align);
Result<void> clear_whole_device(const std::string& name);

// CXL regions. execute_cxl.cc
StepResult make_cxl_region(const Step& step);
// `takes_memory`: also from the kernel, of a region that was made just now.
StepResult remove_cxl_region(const std::string& name, bool takes_memory = false);

// The DAX devices of a volatile CXL region. execute_cxl_device.cc
// Waits for the device that the kernel makes of a whole new region, for at most half a minute. Puts it into mode devdax.
StepResult settle_cxl_device(const std::string& cxl_region);
// Returns their names.
tl::expected<std::vector<std::string>, StepError> disable_cxl_devices(const std::string& cxl_region, bool takes_memory);

}  // namespace maru::daemon::provision
