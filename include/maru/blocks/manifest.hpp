// Describes how a set of blocks was computed, so that no engine reads the blocks of another model, dtype or layout. C++20,
// header only. Programs include this file beside maru/blocks.hpp, and link maru, maru-tokens and maru-layout.
//
// maru/blocks/attached_manifest.hpp stores it in a pool, and compares it with the stored manifest.
//
// The canonical bytes of a manifest, all numbers little-endian:
//
//   0    magic "MARUMANI"
//   8    version, 32 bits: 1
//   12   bytes of all, 32 bits: a multiple of 8
//   16   the canonical bytes of the layout (maru/layout.h), with 1 block
//   144  tensor_ranks, tensor_rank, pipeline_ranks, pipeline_rank, page_size, zero: 32 bits each
//   168  framework, framework_version, model, revision, dtype, quantisation, lora: each 32 bits of length, and the bytes
//   ...  zeros up to a multiple of 8
//   -8   checksum, 64 bits, of all bytes before
//
// The pool has these bytes in a block under the key "maru.manifest." and the fingerprint in 32 hexadecimal digits. A namespace
// is a block under "maru.namespace." and its name; its bytes are magic "MARUNAME", version 1, length 48 (32 bits each), the
// fingerprint, 64 bits of zero, and a checksum. It is the manifest's child, so that the pool keeps the manifest as long.
// A checksum is maru_tokens_dynamo() over the bytes as words of 32 bits, 4096 of them at a time; the hash so far is the salt.
#ifndef MARU_BLOCKS_MANIFEST_HPP
#define MARU_BLOCKS_MANIFEST_HPP

#include <maru/layout.hpp>
#include <maru/maru.hpp>
#include <maru/tokens.h>

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace maru {
inline namespace api_0 {

inline constexpr size_t kManifestTextMax = 1024;   // bytes of each text of a manifest
inline constexpr size_t kManifestBytesMax = 7376;  // of all canonical bytes
inline constexpr size_t kNamespaceBytesMax = 64;   // of a namespace's name

namespace blocks_detail {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they lie in memory");

inline constexpr uint32_t kManifestVersion = 1, kNamespaceVersion = 1;
inline constexpr uint64_t kChecksumSalt = 0x6d61'7275'2d73'756d, kFingerprintSalt = 0x6d61'7275'2d66'7072;

[[gnu::format(printf, 2, 3)]] inline Refusal refuse(int code, const char* format, ...) {
  Refusal refusal;
  refusal.code = code;
  va_list values;
  va_start(values, format);
  std::vsnprintf(refusal.reason.text, sizeof(refusal.reason.text), format, values);
  va_end(values);
  return refusal;
}

// Of whole words.
inline uint64_t hash_words(uint64_t salt, std::span<const std::byte> bytes) {
  constexpr size_t kAtOnce = MARU_TOKENS_BLOCK_MAX;
  uint32_t words[kAtOnce];
  for (size_t at = 0; at < bytes.size();) {
    const size_t count = std::min(kAtOnce, (bytes.size() - at) / sizeof(uint32_t));
    if (count == 0) break;
    std::memcpy(words, bytes.data() + at, count * sizeof(uint32_t));
    maru_tokens_dynamo(salt, nullptr, uint32_t(count), words, count, &salt, nullptr);
    at += count * sizeof(uint32_t);
  }
  return salt;
}

class ByteWriter {
 public:
  template <typename T>
    requires std::is_trivially_copyable_v<T>
  void put(const T& value) {
    put(&value, sizeof(value));
  }
  void put(const void* data, size_t n) {
    const std::byte* const from = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), from, from + n);
  }
  void set(size_t at, uint32_t value) { std::memcpy(bytes_.data() + at, &value, sizeof(value)); }
  size_t size() const { return bytes_.size(); }
  // Fills up to whole words of 64 bits, and puts the checksum behind.
  std::vector<std::byte> close() {
    bytes_.resize((bytes_.size() + 7) & ~size_t(7));
    put(hash_words(kChecksumSalt, bytes_));
    return std::move(bytes_);
  }

 private:
  std::vector<std::byte> bytes_;
};

// Reads a value, with zeros for bytes behind the end.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T take() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> take_bytes(size_t n) {
    const std::span<const std::byte> taken = bytes_.first(std::min(n, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
};

// The bytes that begin with a magic, a version and a length, and end with a checksum. The version comes before all that another
// version may have changed. `bytes_at`: where the length stands. `bytes_min`: a multiple of 8 with the checksum.
template <typename Length>
Refusal check_frame(const char* what, const char* magic, uint32_t version, size_t bytes_at, size_t bytes_min,
                    size_t bytes_max, std::span<const std::byte> bytes) {
  if (bytes.size() >= 8 && std::memcmp(bytes.data(), magic, 8) != 0)
    return refuse(EBADMSG, "these %zu bytes do not begin with \"%s\", so they are no %s", bytes.size(), magic, what);
  uint32_t found_version = version;
  if (bytes.size() >= 12) std::memcpy(&found_version, bytes.data() + 8, sizeof(found_version));
  if (found_version != version)
    return refuse(EPROTONOSUPPORT,
                  "version: found %u, expected %u: write the %s with the version of maru that reads it", found_version,
                  version, what);
  if (bytes.size() < bytes_min || bytes.size() > bytes_max)
    return refuse(EBADMSG, "length: found %zu bytes, expected %zu to %zu for a %s", bytes.size(), bytes_min, bytes_max,
                  what);
  Length length;
  std::memcpy(&length, bytes.data() + bytes_at, sizeof(length));
  if (length != bytes.size() || length % 8 != 0)
    return refuse(EBADMSG, "length: found %zu bytes, expected %llu: the %s is cut or damaged", bytes.size(),
                  static_cast<unsigned long long>(length), what);
  uint64_t found;
  std::memcpy(&found, bytes.data() + bytes.size() - sizeof(found), sizeof(found));
  const uint64_t expected = hash_words(kChecksumSalt, bytes.first(bytes.size() - sizeof(found)));
  if (found != expected)
    return refuse(EBADMSG, "checksum: found %016" PRIx64 ", expected %016" PRIx64 ": the %s is damaged", found,
                  expected, what);
  return {};
}

// Printable ASCII, so that a text has one form in bytes.
inline Refusal check_text(const char* field, std::string_view text, size_t bytes_min, size_t bytes_max) {
  if (text.size() < bytes_min || text.size() > bytes_max)
    return refuse(EINVAL, "%s: found %zu bytes, expected %zu to %zu", field, text.size(), bytes_min, bytes_max);
  for (const char letter : text)
    if (letter < 0x20 || letter > 0x7E)
      return refuse(EINVAL, "%s: found the byte 0x%02x, expected printable ASCII: write other letters as %%XX", field,
                    unsigned(uint8_t(letter)));
  return {};
}

}  // namespace blocks_detail

using ManifestFingerprint = std::array<std::byte, 16>;

inline std::string to_text(const ManifestFingerprint& fingerprint) {
  std::string text;
  for (const std::byte byte : fingerprint)
    for (const unsigned half : {unsigned(byte) >> 4, unsigned(byte) & 15}) text += "0123456789abcdef"[half];
  return text;
}

// Texts are printable ASCII of at most kManifestTextMax bytes; all but framework and model may be empty. Two manifests are
// equal when their canonical bytes are.
struct Manifest {
  std::string framework;          // "vllm"
  std::string framework_version;  // "0.11.0"
  std::string model;              // "meta-llama/Llama-3.1-8B"
  std::string revision;           // of the model's weights
  std::string dtype;              // of the model's arithmetic; the layout has the elements' dtype
  std::string quantisation;       // of weights and cache
  std::string lora;               // name and revision of the adapter
  Layout layout;                  // of one block, for this rank; the number of blocks does not count
  uint32_t tensor_ranks = 1;
  uint32_t tensor_rank = 0;
  uint32_t pipeline_ranks = 1;
  uint32_t pipeline_rank = 0;
  uint32_t page_size = 0;  // tokens of the engine's pages, at least 1

  // Errors: EINVAL a field is out of range; the errors of maru_layout_measure. The reason names the field.
  Answer<std::vector<std::byte>> encode() const;
  // Any bytes. Errors: of encode; EBADMSG they are no manifest, or are cut, damaged or not canonical; EPROTONOSUPPORT they have
  // another version.
  static Answer<Manifest> decode(std::span<const std::byte> bytes);
  // Of the canonical bytes. Its first 8 bytes make a good salt_hash of init_sequence(): then blocks of another manifest have
  // other names.
  Answer<ManifestFingerprint> fingerprint() const;
  Answer<uint64_t> salt_hash() const;
  // EEXIST: this manifest differs from the manifest that the caller expects. The reason has the first differing field and both
  // values. Errors: of encode.
  Answer<void> expect(const Manifest& expected) const;

 private:
  struct Text {
    const char* name;
    std::string Manifest::* member;
    size_t bytes_min;
  };
  struct Number {
    const char* name;
    uint32_t Manifest::* member;
  };
  static constexpr size_t kTextsAt = 168;
  // In the order of the bytes.
  static std::span<const Text> texts() {
    static constexpr Text kTexts[] = {
        {"framework", &Manifest::framework, 1}, {"framework_version", &Manifest::framework_version, 0},
        {"model", &Manifest::model, 1},         {"revision", &Manifest::revision, 0},
        {"dtype", &Manifest::dtype, 0},         {"quantisation", &Manifest::quantisation, 0},
        {"lora", &Manifest::lora, 0},
    };
    return kTexts;
  }
  static std::span<const Number> numbers() {
    static constexpr Number kNumbers[] = {
        {"tensor_ranks", &Manifest::tensor_ranks},     {"tensor_rank", &Manifest::tensor_rank},
        {"pipeline_ranks", &Manifest::pipeline_ranks}, {"pipeline_rank", &Manifest::pipeline_rank},
        {"page_size", &Manifest::page_size},
    };
    return kNumbers;
  }
  Refusal check() const;
  static Refusal differ(const Layout& found, const Layout& expected);
};

inline Refusal Manifest::check() const {
  using namespace blocks_detail;
  for (const Text& text : texts())
    if (const Refusal bad = check_text(text.name, this->*text.member, text.bytes_min, kManifestTextMax); bad.code != 0)
      return bad;
  if (tensor_rank >= tensor_ranks)
    return refuse(EINVAL, "tensor_rank: found %u, expected less than tensor_ranks, %u", tensor_rank, tensor_ranks);
  if (pipeline_rank >= pipeline_ranks)
    return refuse(EINVAL, "pipeline_rank: found %u, expected less than pipeline_ranks, %u", pipeline_rank,
                  pipeline_ranks);
  if (page_size == 0) return refuse(EINVAL, "page_size: found 0, expected the tokens of a page, 1 or more");
  return {};
}

inline Answer<std::vector<std::byte>> Manifest::encode() const {
  using namespace blocks_detail;
  if (const Refusal bad = check(); bad.code != 0) return bad;
  Layout one_block = layout;
  one_block.blocks = 1;
  const Answer<Layout::Encoded> layout_bytes = one_block.encode();
  if (!layout_bytes) return refuse(layout_bytes.error(), "layout: %.240s", layout_bytes.reason().data());
  ByteWriter out;
  out.put("MARUMANI", 8);
  out.put(kManifestVersion);
  out.put(uint32_t(0));  // the length, below
  out.put(*layout_bytes);
  for (const Number& number : numbers()) out.put(this->*number.member);
  out.put(uint32_t(0));
  for (const Text& text : texts()) {
    out.put(uint32_t((this->*text.member).size()));
    out.put((this->*text.member).data(), (this->*text.member).size());
  }
  out.set(12, uint32_t((out.size() + 7) & ~size_t(7)) + 8);
  return out.close();
}

inline Answer<Manifest> Manifest::decode(std::span<const std::byte> bytes) {
  using namespace blocks_detail;
  constexpr size_t kBytesMin = (kTextsAt + 7 * sizeof(uint32_t) + 7) / 8 * 8 + sizeof(uint64_t);
  if (const Refusal bad =
          check_frame<uint32_t>("manifest", "MARUMANI", kManifestVersion, 12, kBytesMin, kManifestBytesMax, bytes);
      bad.code != 0)
    return bad;
  Manifest manifest;
  const Answer<Layout> of_bytes = Layout::decode(bytes.subspan(16, MARU_LAYOUT_ENCODED_BYTES));
  if (!of_bytes) return refuse(of_bytes.error(), "layout: %.240s", of_bytes.reason().data());
  manifest.layout = *of_bytes;
  ByteReader in(bytes.first(bytes.size() - sizeof(uint64_t)).subspan(16 + MARU_LAYOUT_ENCODED_BYTES));
  for (const Number& number : numbers()) manifest.*number.member = in.take<uint32_t>();
  in.take<uint32_t>();
  for (const Text& text : texts()) {
    const uint32_t length = in.take<uint32_t>();
    const std::span<const std::byte> found = in.take_bytes(length);
    if (found.size() != length)
      return refuse(EBADMSG, "%s: found %zu bytes, expected %u: the manifest is damaged", text.name, found.size(),
                    length);
    (manifest.*text.member).assign(reinterpret_cast<const char*>(found.data()), found.size());
  }
  // A manifest has one form. Other bytes can only lie behind the texts, in the padding or in a reserved field.
  Answer<std::vector<std::byte>> again = manifest.encode();
  if (!again) return refuse(again.error(), "%s", again.reason().data());
  if (again->size() != bytes.size() || std::memcmp(again->data(), bytes.data(), bytes.size()) != 0)
    return refuse(EBADMSG,
                  "padding: found other bytes, expected zeros and a layout of 1 block: the manifest is damaged");
  return manifest;
}

inline Answer<ManifestFingerprint> Manifest::fingerprint() const {
  using namespace blocks_detail;
  const Answer<std::vector<std::byte>> bytes = encode();
  if (!bytes) return refuse(bytes.error(), "%s", bytes.reason().data());
  const uint64_t words[] = {hash_words(kFingerprintSalt, *bytes), hash_words(~kFingerprintSalt, *bytes)};
  return std::bit_cast<ManifestFingerprint>(words);
}

inline Answer<uint64_t> Manifest::salt_hash() const {
  const Answer<ManifestFingerprint> of_this = fingerprint();
  if (!of_this) return blocks_detail::refuse(of_this.error(), "%s", of_this.reason().data());
  uint64_t salt;
  std::memcpy(&salt, of_this->data(), sizeof(salt));
  return salt;
}

inline Refusal Manifest::differ(const Layout& found, const Layout& expected) {
  struct Field {
    const char* name;
    uint64_t found, expected;
  };
  const Field fields[] = {
      {"kind", found.kind, expected.kind},
      {"order", found.order, expected.order},
      {"dtype", found.dtype, expected.dtype},
      {"outer", found.outer, expected.outer},
      {"layers", found.layers, expected.layers},
      {"page_tokens", found.page_tokens, expected.page_tokens},
      {"heads", found.heads, expected.heads},
      {"head_dim", found.head_dim, expected.head_dim},
      {"alignment", found.alignment, expected.alignment},
      {"heads_total", found.heads_total, expected.heads_total},
      {"first_head", found.first_head, expected.first_head},
      {"layers_total", found.layers_total, expected.layers_total},
      {"first_layer", found.first_layer, expected.first_layer},
  };
  for (const Field& field : fields)
    if (field.found != field.expected)
      return blocks_detail::refuse(EEXIST, "layout.%s: found %" PRIu64 ", expected %" PRIu64, field.name, field.found,
                                   field.expected);
  return {};
}

inline Answer<void> Manifest::expect(const Manifest& expected) const {
  using namespace blocks_detail;
  // Both as canonical bytes have them: a zero of a layout may stand for a value.
  const Answer<std::vector<std::byte>> bytes[] = {encode(), expected.encode()};
  for (const auto& of_one : bytes)
    if (!of_one) return refuse(of_one.error(), "%s", of_one.reason().data());
  if (*bytes[0] == *bytes[1]) return {};
  const Answer<Manifest> ours = decode(*bytes[0]), theirs = decode(*bytes[1]);
  for (const Text& text : texts()) {
    const std::string &found = *ours.*text.member, &wanted = *theirs.*text.member;
    if (found == wanted) continue;
    const size_t same = size_t(std::ranges::mismatch(found, wanted).in1 - found.begin());
    const size_t from = same > 40 ? same - 20 : 0;  // long texts often begin with the same folder
    return refuse(EEXIST, "%s: found \"%s%.90s\", expected \"%s%.90s\"", text.name, from > 0 ? "..." : "",
                  found.c_str() + from, from > 0 ? "..." : "", wanted.c_str() + from);
  }
  for (const Number& number : numbers())
    if (*ours.*number.member != *theirs.*number.member)
      return refuse(EEXIST, "%s: found %u, expected %u", number.name, *ours.*number.member, *theirs.*number.member);
  return differ(ours->layout, theirs->layout);
}

}  // namespace api_0
}  // namespace maru

#endif
