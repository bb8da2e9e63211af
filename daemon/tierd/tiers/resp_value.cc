#include "daemon/tierd/tiers/resp_value.h"

#include "maru/tier.h"

#include <array>
#include <cstring>
#include <type_traits>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::tierd {

namespace {

constexpr uint64_t kRespPayloadBytesMax = 1ull << 40;  // sums of 16 million of them do not overflow
constexpr std::array<char, 8> kRespMagic = {'M', 'A', 'R', 'U', 'R', 'E', 'S', '2'};

struct FixedRespHead {
  std::array<char, 8> magic;
  uint64_t payload_bytes, payload_checksum, chunk_bytes, note, stored_us;
  uint32_t key_bytes, attributes_bytes;
  uint64_t checksum;  // of all, with this field 0
};
static_assert(sizeof(FixedRespHead) == kRespFixedBytes && std::has_unique_object_representations_v<FixedRespHead>);

RespHead head_of(const FixedRespHead& fixed) {
  return {fixed.payload_bytes, fixed.payload_checksum, fixed.chunk_bytes, fixed.note, fixed.stored_us, {}};
}

bool has_bounds(const RespHead& head) {
  return head.payload_bytes == 0 ||
         (head.payload_bytes <= kRespPayloadBytesMax && head.chunk_bytes > 0 && head.chunks() <= kRespChunksMax);
}

}  // namespace

std::string resp_head_name(std::string_view prefix, std::string_view key) {
  return std::string(prefix) + "h" + std::string(key);
}

std::string resp_chunk_name(std::string_view prefix, std::string_view key, uint64_t checksum, uint64_t chunk) {
  std::string name(prefix);
  name += 'c';
  for (const uint64_t number : {checksum, chunk})
    for (int shift = 0; shift < 64; shift += 8) name += char(number >> shift);
  return name.append(key);
}

std::string encode_resp_head(const RespHead& head, std::string_view key) {
  FixedRespHead fixed = {kRespMagic, head.payload_bytes, head.payload_checksum, head.chunk_bytes,
                         head.note,  head.stored_us,     uint32_t(key.size()),  uint32_t(head.attributes.size()),
                         0};
  std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof fixed);
  bytes.append(key).append(head.attributes);
  fixed.checksum = XXH3_64bits(bytes.data(), bytes.size());
  std::memcpy(bytes.data(), &fixed, sizeof fixed);
  return bytes;
}

std::optional<RespHead> decode_resp_head(std::string_view bytes, std::string_view key) {
  FixedRespHead fixed;
  if (bytes.size() < sizeof fixed) return std::nullopt;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.magic != kRespMagic || fixed.key_bytes != key.size() ||
      bytes.size() != sizeof fixed + uint64_t(fixed.key_bytes) + fixed.attributes_bytes ||
      bytes.substr(sizeof fixed, key.size()) != key)
    return std::nullopt;
  std::string copy(bytes);
  std::memset(copy.data() + offsetof(FixedRespHead, checksum), 0, sizeof fixed.checksum);
  if (XXH3_64bits(copy.data(), copy.size()) != fixed.checksum) return std::nullopt;
  RespHead head = head_of(fixed);
  head.attributes = bytes.substr(sizeof fixed + key.size());
  return has_bounds(head) ? std::optional(std::move(head)) : std::nullopt;
}

std::optional<RespHead> decode_resp_numbers(std::string_view bytes, std::string_view key,
                                            uint32_t& ret_attributes_bytes) {
  FixedRespHead fixed;
  if (bytes.size() < sizeof fixed) return std::nullopt;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.magic != kRespMagic || fixed.key_bytes != key.size() ||
      fixed.attributes_bytes > MARU_TIER_ATTRIBUTES_BYTES_MAX)
    return std::nullopt;
  RespHead head = head_of(fixed);
  ret_attributes_bytes = fixed.attributes_bytes;
  return has_bounds(head) ? std::optional(std::move(head)) : std::nullopt;
}

}  // namespace maru::tierd
