#include "daemon/tierd/tiers/s3/s3_object.h"

#include "daemon/tierd/tiers/groups.h"
#include "daemon/tierd/tiers/s3/sigv4.h"
#include "maru/tier.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <type_traits>
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::tierd {

namespace {

constexpr std::array<char, 6> kS3Magic = {'M', 'A', 'R', 'U', 'S', '3'};
constexpr std::array<char, 2> kS3Version = {'0', '1'};
constexpr std::string_view kBase64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

struct FixedS3Head {
  std::array<char, 6> magic;
  std::array<char, 2> version;
  uint64_t payload_bytes, payload_checksum, attributes_checksum, note;
  uint32_t key_bytes, attributes_bytes;
  uint64_t checksum;  // of this with this field 0, and of the key
};
static_assert(sizeof(FixedS3Head) == kS3FixedBytes && std::has_unique_object_representations_v<FixedS3Head>);

uint64_t checksum_of_head(FixedS3Head fixed, std::string_view key) {
  fixed.checksum = 0;
  std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof fixed);
  bytes += key;
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string base64url(std::string_view bytes) {
  std::string text;
  uint32_t held = 0;
  unsigned bits = 0;
  for (const char c : bytes) {
    held = held << 8 | static_cast<unsigned char>(c);
    for (bits += 8; bits >= 6; bits -= 6) text += kBase64[held >> (bits - 6) & 63];
  }
  if (bits > 0) text += kBase64[held << (6 - bits) & 63];
  return text;
}

// Nothing: base64url() gives such text for no bytes.
std::optional<std::string> from_base64url(std::string_view text) {
  std::string bytes;
  uint32_t held = 0;
  unsigned bits = 0;
  for (const char c : text) {
    const size_t digit = kBase64.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    held = held << 6 | uint32_t(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += char(held >> bits);
  }
  if (bits >= 6 || (held & ((1u << bits) - 1)) != 0) return std::nullopt;
  return bytes;
}

}  // namespace

uint64_t s3_checksum(const void* data, uint64_t bytes) { return XXH3_64bits(data, bytes); }

std::string encode_s3_head(const S3Head& head, std::string_view key) {
  FixedS3Head fixed = {kS3Magic,
                       kS3Version,
                       head.payload_bytes,
                       head.payload_checksum,
                       head.attributes_checksum,
                       head.note,
                       head.key_bytes,
                       head.attributes_bytes,
                       0};
  fixed.checksum = checksum_of_head(fixed, key);
  std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof fixed);
  return bytes.append(key);
}

HeadVerdict decode_s3_head(std::string_view bytes, std::string_view key, S3Head& ret_head) {
  FixedS3Head fixed;
  if (bytes.size() < sizeof fixed) return HeadVerdict::kForeign;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.magic != kS3Magic || fixed.version != kS3Version) return HeadVerdict::kForeign;
  if (fixed.key_bytes != key.size() || bytes.substr(sizeof fixed) != key ||
      fixed.checksum != checksum_of_head(fixed, key) || fixed.payload_bytes > kS3ObjectBytesMax ||
      fixed.attributes_bytes > MARU_TIER_ATTRIBUTES_BYTES_MAX)
    return HeadVerdict::kDamaged;
  ret_head = {fixed.payload_bytes, fixed.payload_checksum, fixed.attributes_checksum,
              fixed.note,          fixed.key_bytes,        fixed.attributes_bytes};
  return HeadVerdict::kWhole;
}

std::string s3_object_name(std::string_view prefix, std::string_view key) {
  const std::string digest = hex_of(sha256_of({key}));
  std::string name(prefix);
  name.append(digest, 0, 2).append("/");
  if (key.size() <= kNamedKeyBytesMax) return name.append("k").append(base64url(key));
  const std::string_view group = group_of(key);
  const bool has_group = !group.empty() && group.size() <= kNamedGroupBytesMax;
  name.append(has_group ? "g" : "h").append(digest).append("-").append(std::to_string(key.size()));
  if (has_group) name.append("-").append(base64url(group));
  return name;
}

std::optional<NamedEntry> parse_s3_object_name(std::string_view prefix, std::string_view name) {
  constexpr size_t kShardBytes = 3, kDigestBytes = 64;
  if (!name.starts_with(prefix) || name.size() < prefix.size() + kShardBytes + 2) return std::nullopt;
  const char form = name[prefix.size() + kShardBytes];
  const std::string_view rest = name.substr(prefix.size() + kShardBytes + 1);
  NamedEntry entry;
  if (form == 'k') {
    auto key = from_base64url(rest);
    if (!key || key->empty() || key->size() > kNamedKeyBytesMax) return std::nullopt;
    entry.key_bytes = uint32_t(key->size());
    entry.group = group_of(*key);
    entry.key = std::move(*key);
    if (s3_object_name(prefix, entry.key) != name) return std::nullopt;
    return entry;
  }
  if ((form != 'h' && form != 'g') || rest.size() < kDigestBytes + 2 || rest[kDigestBytes] != '-') return std::nullopt;
  std::string_view length = rest.substr(kDigestBytes + 1);
  if (form == 'g') {
    const size_t dash = length.find('-');
    auto group = dash == std::string_view::npos ? std::nullopt : from_base64url(length.substr(dash + 1));
    if (!group || group->empty() || group->size() > kNamedGroupBytesMax) return std::nullopt;
    entry.group = std::move(*group);
    length = length.substr(0, dash);
  }
  const auto read = std::from_chars(length.data(), length.data() + length.size(), entry.key_bytes);
  if (read.ec != std::errc() || read.ptr != length.data() + length.size() || entry.key_bytes <= kNamedKeyBytesMax ||
      entry.key_bytes > MARU_TIER_KEY_BYTES_MAX)
    return std::nullopt;
  return entry;
}

}  // namespace maru::tierd
