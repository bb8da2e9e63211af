// What marud remembers of a memory pool across its own end, so that it knows the memory again when a client or the service
// manager hands it back. One small file per pool, replaced as a whole.
#pragma once

#include "daemon/dax/device.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace maru::daemon {

struct PoolRecord {
  std::string pool;
  std::array<uint8_t, 16> uuid = {};
  DeviceIdentity device;
  std::string boot_id;  // memory of another boot is gone
};

std::string uuid_text(const uint8_t (&uuid)[16]);
// Read once, by the first call; empty if that failed. A marud that found none later, for want of a descriptor, would take
// every process of the pool for one of another boot, and so for dead.
const std::string& current_boot_id();

class StateDirectory {
 public:
  explicit StateDirectory(std::string path) : path_(std::move(path)) {}

  // To be held as long as the directory is used: another marud would take our records for those of a marud that ended.
  Result<FileDescriptor> lock() const;
  // Nothing when there is no record. Errors: EBADMSG the file is not one that marud wrote.
  Result<std::optional<PoolRecord>> load(const std::string& pool) const;
  Result<void> save(const PoolRecord& record) const;
  void remove(const std::string& pool) const;

 private:
  std::string file_of(const std::string& pool) const { return path_ + "/pool-" + pool + ".state"; }
  std::string path_;
};

}  // namespace maru::daemon
