// The form of an entry in a bucket: one object, written by one request. S3 shows an object when its last byte has come, and
// replaces it at once, so a bucket never has a part of an entry.
//
//   fixed fields, key | payload | attributes
//
// Fixed fields and key are the head. It proves itself, and has checksums of the rest. The key alone tells where the payload
// begins, so ranges of it are read side by side, straight into the memory of a request.
//
// The name of the object has the key, or the digest and length of a long key, with its group (maru/tier.h). So a list of names
// tells the size and the tenant of every entry.
//
//   PREFIX hh/k BASE64URL(key)                                  up to kNamedKeyBytesMax bytes of key
//   PREFIX hh/g HEX(SHA-256(key)) - LENGTH - BASE64URL(group)   longer ones of a group of 1 to kNamedGroupBytesMax bytes
//   PREFIX hh/h HEX(SHA-256(key)) - LENGTH                      longer ones of no group; the head tells of a longer group
//
// `hh` are two hex digits of the digest: S3 divides a busy bucket by the beginnings of names, and 16 lists run side by side.
// Names have letters, digits, "-._~/" only. These need no encoding in a URL, which signers do not agree upon.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace maru::tierd {

inline constexpr size_t kNamedKeyBytesMax = 180;  // 240 characters: some servers keep a part of a name as a file's name
inline constexpr size_t kNamedGroupBytesMax =
    120;  // 160 characters beside the digest; maru-tierd's have 65 bytes at most
inline constexpr size_t kS3FixedBytes = 56;
inline constexpr uint64_t kS3ObjectBytesMax = 5ull << 30;  // of one request, in S3

struct S3Head {
  uint64_t payload_bytes = 0;
  uint64_t payload_checksum = 0;  // XXH3, as in tier.h
  uint64_t attributes_checksum = 0;
  uint64_t note = 0;
  uint32_t key_bytes = 0;
  uint32_t attributes_bytes = 0;

  uint64_t head_bytes() const { return kS3FixedBytes + key_bytes; }
  uint64_t object_bytes() const { return head_bytes() + payload_bytes + attributes_bytes; }
  bool operator==(const S3Head&) const = default;
};

std::string encode_s3_head(const S3Head& head, std::string_view key);

enum class HeadVerdict : uint8_t {
  kWhole,
  kForeign,  // other data, or another version's: not ours to judge
  kDamaged   // ours, and it does not verify, or it is another key's
};
// `bytes`: the first kS3FixedBytes + key.size() of an object, or fewer where the object has no more.
HeadVerdict decode_s3_head(std::string_view bytes, std::string_view key, S3Head& ret_head);

std::string s3_object_name(std::string_view prefix, std::string_view key);

struct NamedEntry {
  std::string key;         // empty: the name has a digest only
  std::string group;       // as far as the name tells it
  uint32_t key_bytes = 0;  // in any case
};
// Nothing: no entry has this name.
std::optional<NamedEntry> parse_s3_object_name(std::string_view prefix, std::string_view name);

uint64_t s3_checksum(const void* data, uint64_t bytes);

}  // namespace maru::tierd
