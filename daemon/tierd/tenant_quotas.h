// How much a tenant may keep in a tier. A limit holds in each tier that counts its entries by tenant (maru/tier.h).
//
// Limits that administrators set are kept in a file, so that they outlive maru-tierd. Without such a file there is the default
// of the configuration alone.
//
// Threads: one, the controllers'.
#pragma once

#include "daemon/tierd/tier_slot.h"
#include "libmaru/base/result.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace maru::tierd {

class TenantQuotas {
 public:
  // `path`: empty for none. Reads the existing file; a file with other content is refused.
  static Result<std::unique_ptr<TenantQuotas>> open(const std::string& path, uint64_t default_bytes);

  // Of an entry key's scope; 0: no limit. The default is for tenants, and not for blocks of no tenant.
  uint64_t limit_of(std::string_view scope) const;
  bool has_any() const { return default_bytes_ != 0 || !limits_.empty(); }
  uint64_t default_bytes() const { return default_bytes_; }
  const std::map<std::string, uint64_t>& limits() const { return limits_; }

  // In force, and in the file, when they return without an error.
  Result<void> set(const std::string& tenant, uint64_t bytes);
  Result<void> remove(const std::string& tenant);  // ENOENT: it has none of its own

  struct Room {
    bool is_there = false;             // the bytes may be written
    std::vector<std::string> too_old;  // entries to delete from this tier, the oldest of the tenant's
  };
  // Whether the tenant may write `bytes` more to this tier, and the entries that have to go for it. Bytes on their way count
  // when they have arrived: ask again then, with 0 bytes. Where its limit is reached a sixteenth of it is freed at once, as
  // looking for the oldest entries takes longer than deleting them. `is_busy`: a key that must not be deleted now.
  Room room_for(TierSlot& slot, std::string_view scope, uint64_t bytes,
                const std::function<bool(const std::string&)>& is_busy) const;

 private:
  TenantQuotas(std::string path, uint64_t default_bytes) : path_(std::move(path)), default_bytes_(default_bytes) {}
  Result<void> change(std::map<std::string, uint64_t> limits);

  const std::string path_;
  const uint64_t default_bytes_;
  std::map<std::string, uint64_t> limits_;  // by name
};

}  // namespace maru::tierd
