#include "daemon/pool/inspect/which.h"

#include "daemon/base/request_fields.h"
#include "daemon/pool/inspect/tenant_rows.h"
#include "libmaru/shm/blocks/hash.h"
#include "libmaru/shm/blocks/registry.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace maru::daemon {
namespace {

using nlohmann::json;

constexpr size_t kKeysMax = 1u << 14;
constexpr const char* kKinds[] = {"bytes", "digest128", "digest256"};

// Whether a key is of a kind, and its digest.
std::optional<shm::Digest> digest_of(const uint64_t* secret, std::span<const std::byte> bytes, size_t kind,
                                     uint64_t tenant) {
  if ((kind == 1 && bytes.size() != 16) || (kind == 2 && bytes.size() != 32)) return std::nullopt;
  if (kind == 0) return shm::digest_of_bytes(secret, bytes, tenant);
  uint64_t words[4] = {};
  std::memcpy(words, bytes.data(), bytes.size());
  return kind == 1 ? shm::digest_of_128(secret, words[0], words[1], tenant) : shm::digest_of_256(secret, words, tenant);
}

std::string place(size_t i) { return "keys[" + std::to_string(i) + "]"; }

}  // namespace

json which_blocks(const shm::ControlRegion& region, const PoolTenants& tenants, const json& request) {
  const auto keys = request.find("keys");
  if (keys == request.end() || !keys->is_array() || keys->size() > kKeysMax)
    return refusal(EINVAL, "\"keys\" is a list of at most " + std::to_string(kKeysMax) + " keys");
  const std::string wanted = text_in(request, "kind");
  const auto known = std::find(std::begin(kKinds), std::end(kKinds), wanted);
  if (!wanted.empty() && known == std::end(kKinds))
    return refusal(EINVAL, "\"kind\" is \"bytes\", \"digest128\" or \"digest256\"; without it a key may be of any");
  const std::optional<uint64_t> tenant = tenant_in(tenants, request);
  if (!tenant) return refusal(EINVAL, "\"tenant\" is the name of a tenant, or its id");

  json ranges = json::array();
  uint64_t present = 0;
  bool was_present = false;
  for (size_t i = 0; i < keys->size(); ++i) {
    const json& key = (*keys)[i];
    const std::vector<std::byte> bytes = key.is_string() ? key_bytes(key.get<std::string>()) : std::vector<std::byte>();
    if (bytes.empty() || bytes.size() > limits::kKeyBytesMax)
      return refusal(EINVAL, place(i) + ": found what is no key, expected text of 1 to " +
                                 std::to_string(limits::kKeyBytesMax) + " bytes, or 0x and hexadecimal digits");
    bool is_present = false, is_key = false;
    for (size_t kind = 0; kind < std::size(kKinds) && !is_present; ++kind) {
      if (!wanted.empty() && wanted != kKinds[kind]) continue;
      const auto digest = digest_of(region.secret(), bytes, kind, *tenant);
      is_key |= digest.has_value();
      is_present = digest && shm::registry_exists(region, *digest);
    }
    if (!is_key)
      return refusal(EINVAL,
                     place(i) + ": found " + std::to_string(bytes.size()) + " bytes, which no " + wanted + " has");
    present += is_present;
    if (is_present && !was_present) ranges.push_back({i, i + 1});
    if (is_present) ranges.back()[1] = i + 1;
    was_present = is_present;
  }
  return {{"ranges", std::move(ranges)}, {"present", present}};
}

}  // namespace maru::daemon
