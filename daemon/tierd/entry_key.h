// The key under which a tier knows a block: the block's own key, and its tenant in a form that outlives the pool.
//
// A pool numbers tenants by a hash with a secret of its own, so the number means nothing to another pool. A tier keeps the
// name, which hosts and later pools share. For a tenant without a known name it keeps the pool's id and the number:
// such entries are found as long as the pool lives.
//
//   1 byte   kind of the key
//   1 byte   length of the scope
//   scope    nothing: no tenant; 'n' and the name; 'p', 16 bytes of the pool, 8 of the number
//   rest     the bytes of the key
#pragma once

#include "maru/maru.h"

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace maru::tierd {

// Tenants by number and by name.
class TenantNames {
 public:
  void learn(uint64_t tenant, std::string_view name) {
    if (tenant != 0 && !name.empty()) names_.try_emplace(tenant, name);
  }
  const std::string* name_of(uint64_t tenant) const {
    const auto found = names_.find(tenant);
    return found == names_.end() ? nullptr : &found->second;
  }

 private:
  std::map<uint64_t, std::string> names_;
};

using PoolId = std::array<uint8_t, 16>;

std::string entry_key(const maru_key& key, const PoolId& pool, const TenantNames& names);

struct SplitKey {
  uint32_t kind = 0;
  std::string_view scope, data;
};
// Nothing: these bytes are no such key.
std::optional<SplitKey> split_entry_key(std::string_view bytes);
// For people: the tenant's name, "" for none, and "(unnamed)".
std::string scope_text(std::string_view scope);

}  // namespace maru::tierd
