#include "daemon/tierd/entry_key.h"

namespace maru::tierd {

namespace {
constexpr size_t kFixedBytes = 2;
}

std::string entry_key(const maru_key& key, const PoolId& pool, const TenantNames& names) {
  std::string scope;
  if (const std::string* const name = names.name_of(key.tenant)) {
    scope = "n" + *name;
  } else if (key.tenant != 0) {
    scope = "p";
    scope.append(reinterpret_cast<const char*>(pool.data()), pool.size());
    for (int shift = 0; shift < 64; shift += 8) scope += char(key.tenant >> shift);
  }
  std::string bytes;
  bytes.reserve(kFixedBytes + scope.size() + key.size);
  bytes += char(key.kind);
  bytes += char(scope.size());
  bytes += scope;
  return bytes.append(static_cast<const char*>(key.data), key.size);
}

std::optional<SplitKey> split_entry_key(std::string_view bytes) {
  if (bytes.size() < kFixedBytes) return std::nullopt;
  const size_t scope_bytes = static_cast<unsigned char>(bytes[1]);
  if (bytes.size() < kFixedBytes + scope_bytes) return std::nullopt;
  return SplitKey{static_cast<unsigned char>(bytes[0]), bytes.substr(kFixedBytes, scope_bytes),
                  bytes.substr(kFixedBytes + scope_bytes)};
}

std::string scope_text(std::string_view scope) {
  if (scope.empty()) return {};
  return scope[0] == 'n' ? std::string(scope.substr(1)) : "(unnamed)";
}

}  // namespace maru::tierd
