// The canonical bytes of a layout. All numbers are little-endian:
//
//   0   magic "MARULAYT"
//   8   version, 32 bits: 1
//   12  bytes of all, 32 bits: 128
//   16  kind, order, dtype, outer, 32 bits each
//   32  blocks, layers, page_tokens, heads, head_dim, alignment, heads_total, first_head, layers_total, first_layer,
//       64 bits each
//   112 zero, 64 bits
//   120 checksum, 64 bits: XXH3 of the 120 bytes before
//
// A layout has one such form: fields that the caller may leave zero have their values here. The fingerprint is XXH3 of 128
// bits, over the first 120 bytes with the number of blocks zero, most significant byte first.
#include "libmaru/layout/encoded.h"

#include "libmaru/layout/geometry.h"
#include "libmaru/layout/reason.h"

#include <bit>
#include <cerrno>
#include <cstring>

// Inline, so that there is no library to link with.
#define XXH_INLINE_ALL
#include <xxhash.h>

static_assert(std::endian::native == std::endian::little, "the fields are copied as they lie in memory");

namespace maru::layout {
namespace {

constexpr char kMagic[] = {'M', 'A', 'R', 'U', 'L', 'A', 'Y', 'T'};

struct Bytes {
  char magic[8];
  uint32_t version;
  uint32_t bytes;
  uint32_t kind, order, dtype, outer;
  uint64_t blocks, layers, page_tokens, heads, head_dim, alignment;
  uint64_t heads_total, first_head, layers_total, first_layer;
  uint64_t zero;
  uint64_t checksum;
};
static_assert(sizeof(Bytes) == MARU_LAYOUT_ENCODED_BYTES && offsetof(Bytes, blocks) == 32 &&
              offsetof(Bytes, zero) == 112);
static_assert(std::has_unique_object_representations_v<Bytes>);

constexpr size_t kHashedBytes = offsetof(Bytes, checksum);

Bytes bytes_of(const maru_layout& layout) {
  Bytes bytes = {};
  std::memcpy(bytes.magic, kMagic, sizeof(kMagic));
  bytes.version = kVersion;
  bytes.bytes = sizeof(Bytes);
  bytes.kind = layout.kind;
  bytes.order = layout.order;
  bytes.dtype = layout.dtype;
  bytes.outer = layout.outer;
  bytes.blocks = layout.blocks;
  bytes.layers = layout.layers;
  bytes.page_tokens = layout.page_tokens;
  bytes.heads = layout.heads;
  bytes.head_dim = layout.head_dim;
  bytes.alignment = layout.alignment;
  bytes.heads_total = layout.heads_total;
  bytes.first_head = layout.first_head;
  bytes.layers_total = layout.layers_total;
  bytes.first_layer = layout.first_layer;
  bytes.checksum = XXH3_64bits(&bytes, kHashedBytes);
  return bytes;
}

maru_layout layout_of(const Bytes& bytes) {
  maru_layout layout = {};
  layout.size = sizeof(layout);
  layout.kind = bytes.kind;
  layout.order = bytes.order;
  layout.dtype = bytes.dtype;
  layout.outer = bytes.outer;
  layout.blocks = bytes.blocks;
  layout.layers = bytes.layers;
  layout.page_tokens = bytes.page_tokens;
  layout.heads = bytes.heads;
  layout.head_dim = bytes.head_dim;
  layout.alignment = bytes.alignment;
  layout.heads_total = bytes.heads_total;
  layout.first_head = bytes.first_head;
  layout.layers_total = bytes.layers_total;
  layout.first_layer = bytes.first_layer;
  return layout;
}

// The version comes first: another version may have another length.
int check_frame(const void* given, size_t n, Bytes& bytes, maru_layout_reason* reason) {
  std::memset(&bytes, 0, sizeof(bytes));
  std::memcpy(&bytes, given, n < sizeof(bytes) ? n : sizeof(bytes));
  if (n >= sizeof(kMagic) && std::memcmp(bytes.magic, kMagic, sizeof(kMagic)) != 0)
    return fail(reason, EBADMSG, "these %zu bytes do not begin with \"MARULAYT\", so they are no layout", n);
  if (n >= offsetof(Bytes, bytes) && bytes.version != kVersion)
    return fail(reason, EPROTONOSUPPORT, "the layout has version %u, and this library reads version %u", bytes.version,
                kVersion);
  if (n != sizeof(bytes)) return fail(reason, EBADMSG, "found %zu bytes, expected %zu", n, sizeof(bytes));
  if (bytes.bytes != sizeof(bytes))
    return fail(reason, EBADMSG, "the bytes say that they are %u, expected %zu", bytes.bytes, sizeof(bytes));
  const uint64_t checksum = XXH3_64bits(&bytes, kHashedBytes);
  if (bytes.checksum != checksum)
    return fail(reason, EBADMSG, "the checksum is %016llx, expected %016llx: the bytes are damaged",
                ull(bytes.checksum), ull(checksum));
  if (bytes.zero != 0) return fail(reason, EBADMSG, "the reserved field is %llu, expected 0", ull(bytes.zero));
  return 0;
}

}  // namespace

Encoded encode(const maru_layout& layout) { return std::bit_cast<Encoded>(bytes_of(layout)); }

Fingerprint fingerprint(const maru_layout& layout) {
  Bytes bytes = bytes_of(layout);
  bytes.blocks = 0;
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(&bytes, kHashedBytes));
  return std::bit_cast<Fingerprint>(canonical);
}

}  // namespace maru::layout

using namespace maru::layout;

extern "C" {

MARU_LAYOUT_PUBLIC int maru_layout_encode(const maru_layout* layout, void* ret_bytes, maru_layout_reason* reason) {
  Geometry geometry;
  if (const int status = read_geometry(layout, geometry, reason); status < 0) return status;
  if (ret_bytes == nullptr) return fail(reason, EINVAL, "ret_bytes is NULL");
  const Encoded bytes = encode(geometry.layout);
  std::memcpy(ret_bytes, bytes.data(), bytes.size());
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_decode(const void* bytes, size_t n, maru_layout* ret_layout,
                                          maru_layout_reason* reason) {
  if (bytes == nullptr && n > 0) return fail(reason, EINVAL, "bytes is NULL");
  if (ret_layout == nullptr) return fail(reason, EINVAL, "ret_layout is NULL");
  if (n == 0) return fail(reason, EBADMSG, "found 0 bytes, expected %zu", sizeof(Bytes));
  Bytes known;
  if (const int status = check_frame(bytes, n, known, reason); status < 0) return status;
  const maru_layout layout = layout_of(known);
  Geometry geometry;
  if (const int status = read_geometry(&layout, geometry, reason); status < 0) return status;
  // A zero that stands for something is another form of the same layout, which the encoder does not write.
  if (std::memcmp(&geometry.layout, &layout, sizeof(layout)) != 0)
    return fail(reason, EBADMSG, "alignment, heads_total or layers_total is 0, expected its value");
  *ret_layout = layout;
  return 0;
}

MARU_LAYOUT_PUBLIC int maru_layout_fingerprint(const maru_layout* layout, void* ret_fingerprint,
                                               maru_layout_reason* reason) {
  Geometry geometry;
  if (const int status = read_geometry(layout, geometry, reason); status < 0) return status;
  if (ret_fingerprint == nullptr) return fail(reason, EINVAL, "ret_fingerprint is NULL");
  const Fingerprint hash = fingerprint(geometry.layout);
  std::memcpy(ret_fingerprint, hash.data(), hash.size());
  return 0;
}

}  // extern "C"
