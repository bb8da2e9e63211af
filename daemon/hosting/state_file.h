// The records of marud about a pool across its own end. Of a memory pool: how to know its memory again when a client or
// the service manager hands it back. Of a pool on a device or in a file: which pool it was. Of any pool: the limits of
// tenants that were set at run time, and its description if it was added at run time. One small file for each, replaced
// as a whole.
#pragma once

#include "daemon/base/uuid.h"
#include "daemon/memory/device.h"
#include "daemon/pool/tenants/tenants.h"
#include "daemon/system/boot_id.h"
#include "libmaru/base/file_descriptor.h"
#include "libmaru/base/result.h"

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace maru::daemon {

struct PoolRecord {
  std::string pool;
  std::array<uint8_t, 16> uuid = {};
  DeviceIdentity device;
  std::string boot_id;  // memory of another boot is gone
  // Of a pool on a DAX device:
  std::string dax_name = {};        // "dax0.0", as the kernel called it; empty: it is in memory or in a file
  std::string dax_pages_name = {};  // of a split pool: the device of its pages, dax_name has the control region
  bool is_volatile = false;         // the device's content does not outlive power
  bool is_being_cleared = false;    // its old content is given up, and it is not all zeros yet
  bool is_being_formatted = false;  // under this uuid: nothing of it may be there, or all
  // Of a memory pool in two pieces its pages; `device` is its control region, with the bytes of both.
  std::optional<DeviceIdentity> pages = {};
  std::string file_path = {};  // of a pool in a file, or the file of its control region; else empty

  bool is_made() const { return !is_being_cleared && !is_being_formatted; }
};

class StateDirectory {
 public:
  explicit StateDirectory(std::string path) : path_(std::move(path)) {}

  // Errors: EPERM this marud is root's and the folder another user's, whose marud could not read the files in it.
  Result<void> check_owner() const;
  // Keeps other maruds out as long as this object or a copy of it lives: another marud would take our records for the records
  // of a dead marud. Once is enough, more does no harm.
  Result<void> hold() const;
  // Nothing when there is no record. Errors: EBADMSG marud did not write the file.
  Result<std::optional<PoolRecord>> load(const std::string& pool) const;
  Result<void> save(const PoolRecord& record) const;
  // The records of all pools on DAX devices but this pool, also of pools that are in no configuration any more.
  // Unreadable records are left out.
  std::vector<PoolRecord> others_on_dax(const std::string& pool) const;
  void remove(const std::string& pool) const;
  std::string file_of(const std::string& pool) const { return path_ + "/pool-" + pool + ".state"; }  // of the record

  // That the pool was being drained, in a file of its own.
  bool is_draining(const std::string& pool) const;
  Result<void> save_draining(const std::string& pool, bool draining) const;

  // Pools that were added at run time, each with the text that describes it, in a file of its own: state_added.cc.
  std::vector<std::string> added() const;
  bool is_added(const std::string& pool) const;
  Result<std::string> load_added(const std::string& pool) const;
  Result<void> save_added(const std::string& pool, const std::string& toml) const;
  Result<void> forget_added(const std::string& pool) const;

  // The limits of run time for the tenants of a pool, in a file of their own: it stays when the pool's memory does not.
  // Empty when there is none. Errors: EBADMSG marud did not write the file.
  Result<TenantSettings> load_tenants(const std::string& pool) const;
  Result<void> save_tenants(const std::string& pool, const TenantSettings& at_run_time) const;

 private:
  std::string tenants_file_of(const std::string& pool) const { return path_ + "/pool-" + pool + ".tenants"; }
  std::string draining_file_of(const std::string& pool) const { return path_ + "/pool-" + pool + ".draining"; }
  std::string added_file_of(const std::string& pool) const { return path_ + "/pool-" + pool + ".added"; }
  Result<void> replace(const std::string& path, const std::string& text) const;
  // Before a file is changed: the directory may have been taken away with its lock. Another marud may hold a new directory at
  // the path by now, whose files must stay. Otherwise the lock is taken again. Errors: EBUSY another marud holds it.
  Result<void> hold_still() const;
  Result<void> lock() const;
  Result<void> unlink(const std::string& path) const;
  struct Lock {
    std::mutex mutex;  // threads write for the deciding thread
    FileDescriptor file;
  };
  std::string path_;
  std::shared_ptr<Lock> lock_ = std::make_shared<Lock>();
};

}  // namespace maru::daemon
