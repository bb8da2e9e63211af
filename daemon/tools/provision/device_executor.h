// The steps on the machine at hand, through libndctl, libdaxctl and libcxl. Each step reads the machine anew. Devices that are
// there already are locked by whoever calls (guarded_executor.h), who lets go of them before a step; each is locked anew while
// it is cleared.
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
// Zeros in [from, to), under the lock that marud takes on the device; it is let go of before this returns, so that the device's
// driver can be taken away (guarded_executor.h). EBUSY: a marud has the device.
Result<void> clear_part_of_device(const std::string& name, uint64_t from, uint64_t to, uint64_t align);
Result<void> clear_whole_device(const std::string& name);

// CXL regions. execute_cxl.cc
StepResult make_cxl_region(const Step& step);
// `takes_memory`: also from the kernel, of a region that was made just now.
StepResult remove_cxl_region(const std::string& name, bool takes_memory = false);

// The DAX devices of a volatile CXL region. execute_cxl_device.cc
// Waits for the one that the kernel makes of all of a new region, for half a minute at most, and has it in mode devdax.
StepResult settle_cxl_device(const std::string& cxl_region);
// Their names.
tl::expected<std::vector<std::string>, StepError> disable_cxl_devices(const std::string& cxl_region, bool takes_memory);

}  // namespace maru::daemon::provision
