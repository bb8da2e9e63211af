// The things that apply made since the machine started. The file goes when the machine stops, as devices without a label do.
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
// Replaces the file, whole or not at all.
Result<void> write_record(const std::string& path, const std::vector<Made>& made);
// While it is open, no other run of this program changes the machine. Errors: EBUSY another run has it.
Result<FileDescriptor> lock_record(const std::string& path);

// The record after these steps. A device that was removed and put back stays with its table, also under a new name.
std::vector<Made> after(std::vector<Made> made, const ApplyOutcome& outcome, const Machine& machine);

}  // namespace maru::daemon::provision
