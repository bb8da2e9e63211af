#include "libmaru/shm/blocks/hash.h"

#include <bit>
#include <cstring>

namespace maru::shm {
namespace {

uint64_t load_le64(const std::byte* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, 8);  // every machine this builds for is little-endian
  return word;
}
static_assert(std::endian::native == std::endian::little);

}  // namespace

namespace {

inline void make_digests(const uint64_t* secret, const std::byte* keys, size_t stride, size_t count, uint64_t tenant,
                         Digest* ret_digests) {
  const Permutation permutation(secret);
  const uint64_t tweak = secret[kSecretTweak128] ^ tenant;
  for (size_t i = 0; i < count; ++i, keys += stride) {
    uint64_t words[2];
    std::memcpy(words, keys, sizeof(words));
    ret_digests[i] = permutation({words[0] ^ tweak, words[1]});
  }
}

#if defined(__x86_64__)
// Its multiplication leaves the other registers alone.
__attribute__((target("bmi2"))) void make_digests_bmi2(const uint64_t* secret, const std::byte* keys, size_t stride,
                                                       size_t count, uint64_t tenant, Digest* ret_digests) {
  make_digests(secret, keys, stride, count, tenant, ret_digests);
}
#endif

}  // namespace

void digests_of_128(const uint64_t* secret, const std::byte* keys, size_t stride, size_t count, uint64_t tenant,
                    Digest* ret_digests) {
#if defined(__x86_64__)
  static const bool has_bmi2 = __builtin_cpu_supports("bmi2");
  if (has_bmi2) return make_digests_bmi2(secret, keys, stride, count, tenant, ret_digests);
#endif
  make_digests(secret, keys, stride, count, tenant, ret_digests);
}

PlainDigest plain_of_bytes(const uint64_t* secret, std::span<const std::byte> key, uint64_t tenant) {
  const SipHash hash = siphash128(secret[kSecretSip0], secret[kSecretSip1], key);
  return {hash.lo ^ secret[kSecretTweakBytes] ^ tenant, hash.hi};
}

void plain_of_bytes(const uint64_t* secret, const SipInputs& keys, const uint64_t (&tenants)[kSipLanes],
                    PlainDigest (&ret_plain)[kSipLanes]) {
  SipHash hashes[kSipLanes];
  siphash128_side_by_side(secret[kSecretSip0], secret[kSecretSip1], keys, hashes);
  for (size_t i = 0; i < keys.count; ++i)
    ret_plain[i] = {hashes[i].lo ^ secret[kSecretTweakBytes] ^ tenants[i], hashes[i].hi};
}

uint64_t tenant_id(const uint64_t* secret, std::span<const std::byte> name) {
  const uint64_t id = siphash128(secret[kSecretTenant0], secret[kSecretTenant1], name).lo;
  return id ? id : 1;
}

// The fraction of the golden ratio and of square roots, in the manner of the SHA-2 constants.
static constexpr uint64_t kC[4] = {0x9e3779b97f4a7c15, 0x6a09e667f3bcc909, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b};

uint64_t payload_checksum(std::span<const std::byte> payload) {
  // Four independent lanes of folded products keep up with memory.
  uint64_t lane[4] = {kC[1], kC[2], kC[3], kC[0] ^ payload.size()};
  size_t i = 0;
  for (; i + 32 <= payload.size(); i += 32)
    for (size_t k = 0; k < 4; ++k)
      lane[k] = folded_product(lane[k] ^ load_le64(payload.data() + i + 8 * k), kC[k]) + kC[3 - k];
  for (; i < payload.size(); ++i) lane[i & 3] = (lane[i & 3] ^ uint64_t(payload[i])) * kC[1];
  const uint64_t sum =
      folded_product(lane[0] ^ std::rotl(lane[2], 29), kC[0]) ^ folded_product(lane[1] ^ std::rotl(lane[3], 17), kC[2]);
  return sum ? sum : 1;
}

uint64_t bound_checksum(uint64_t payload_checksum, const BlockClaims& block) {
  uint64_t sum = folded_product(payload_checksum ^ block.digest.lo, kC[0]) + block.digest.hi;
  sum = folded_product(sum ^ block.length, kC[1]) + block.parent;
  sum = folded_product(sum ^ block.metadata, kC[2]);
  return sum ? sum : 1;
}

}  // namespace maru::shm
