// What apply made since the machine started, in a file that goes when the machine does, as devices without a label do.
#pragma once

#include "daemon/tools/provision/apply.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <string>
#include <vector>

namespace maru::daemon::provision {

inline constexpr const char* kRecordPath = "/run/marud-provision/made.json";

// Nothing when there is no file. Errors: it cannot be read, or is not ours.
Result<std::vector<Made>> read_record(const std::string& path);
// In place of what is there, whole or not at all.
Result<void> write_record(const std::string& path, const std::vector<Made>& made);
// Until it is closed, nobody else changes this machine by this program. Errors: EBUSY, somebody does.
Result<FileDescriptor> lock_record(const std::string& path);

// The record after these steps. A device that was removed and put back stays its table's, wherever the kernel put it.
std::vector<Made> after(std::vector<Made> made, const ApplyOutcome& outcome, const Machine& machine);

}  // namespace maru::daemon::provision
