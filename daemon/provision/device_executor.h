// The steps on the machine at hand, through libndctl, libdaxctl and libcxl. Each step reads the machine anew.
#pragma once

#include "daemon/provision/apply.h"

namespace maru::daemon::provision {

class DeviceExecutor : public Executor {
 public:
  Result<std::string> run(const Step& step) override;
  Result<void> undo(const Step& step, const std::string& name) override;
};

// NVDIMM regions and namespaces. execute_namespace.cc
Result<std::string> make_labels(const std::string& region);
Result<std::string> remove_labels(const std::string& region);
Result<std::string> make_namespace(const std::string& region, const std::string& label, uint64_t bytes, uint64_t align);
Result<std::string> remove_namespace(const std::string& name);
Result<std::string> enable_namespace(const std::string& name);

// DAX devices. execute_device.cc
Result<std::string> make_device(const std::string& region, uint64_t bytes, uint64_t align);
Result<std::string> resize_device(const std::string& name, uint64_t bytes);
Result<std::string> remove_device(const std::string& name);
Result<std::string> enable_device(const std::string& name);
Result<std::string> disable_device(const std::string& name);
Result<std::string> take_from_kernel(const std::string& name);
Result<std::string> give_to_kernel(const std::string& name);
Result<void> clear_whole_device(const std::string& name);

// CXL regions. execute_cxl.cc
Result<std::string> make_cxl_region(const Step& step);
Result<std::string> remove_cxl_region(const std::string& name);

// The DAX devices of a volatile CXL region. execute_cxl_device.cc
// Waits for the one that the kernel makes of all of a new region, for half a minute at most, and has it in mode devdax.
Result<std::string> settle_cxl_device(const std::string& cxl_region);
Result<std::string> disable_cxl_devices(const std::string& cxl_region);

}  // namespace maru::daemon::provision
