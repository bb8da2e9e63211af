// The registers of LoRA adapters that users have for a pool, where libmaru-adapters puts them by itself, and their totals
// (maru/format/adapter_totals.h). Users write these files, so all that is in them is only shown.
#pragma once

#include "libmaru/base/file_descriptor.h"
#include "maru/format/adapter_totals.h"

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace maru::daemon {

struct UserAdapterFile {
  uint32_t uid;
  std::string path;
  FileDescriptor file;  // for reading; not open where this process may not read it
};
// The registers of this pool, or with kAdapterTotalsSuffix their totals. `pool_uuid`: as text, with or without '-'. Passes over
// files of another user than their name says. Looks at a bounded number of names.
std::vector<UserAdapterFile> adapter_files_of(const std::string& pool_uuid, const char* suffix,
                                              const std::string& folder = format::kAdapterRegisterFolder);

// An object for each user: "uid", a field for each total, and "hot_ratio", "warm_ratio" where there were uses.
nlohmann::json adapter_users_of(const std::string& pool_uuid,
                                const std::string& folder = format::kAdapterRegisterFolder);

}  // namespace maru::daemon
