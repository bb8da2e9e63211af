#include "libmaru/shm/blocks/hash.h"

#include <bit>
#include <cstring>

#if defined(__x86_64__)
// Its intrinsics begin with vectors that are undefined on purpose, of which g++ 12 warns (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

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

#define MARU_EIGHTS __attribute__((target("avx512f")))

using Eight __attribute__((vector_size(64))) = uint64_t;

MARU_EIGHTS inline Eight eight_times(uint64_t word) { return Eight{} + word; }

// Of the lower halves.
MARU_EIGHTS inline Eight products(const Eight& a, const Eight& b) {
  return Eight(_mm512_mul_epu32(__m512i(a), __m512i(b)));
}

// folded_product() of each pair, from products of halves.
MARU_EIGHTS inline Eight folded_products(const Eight& a, const Eight& b) {
  const Eight low = products(a, b);
  const Eight middle = products(a >> 32, b) + (low >> 32);
  const Eight other = products(a, b >> 32) + (middle & 0xFFFF'FFFF);
  const Eight high = products(a >> 32, b >> 32) + (middle >> 32) + (other >> 32);
  return ((low & 0xFFFF'FFFF) | other << 32) ^ high;
}

// Four keys of 16 bytes.
MARU_EIGHTS inline __m512i four_keys(const std::byte* keys, size_t stride) {
  const auto key = [=](size_t i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(keys + i * stride)); };
  const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(key(0)), key(1), 1);
  return _mm512_inserti32x4(_mm512_inserti32x4(two, key(2), 2), key(3), 3);
}

// Eight keys at a time, at a third of the instructions. Unpacking changes their order, and unpacking digests changes it back.
MARU_EIGHTS void make_digests_avx512(const uint64_t* secret, const std::byte* keys, size_t stride, size_t count,
                                     uint64_t tenant, Digest* ret_digests) {
  Eight add[3], multiply[3];
  for (size_t i = 0; i < 3; ++i) {
    add[i] = eight_times(secret[kSecretAdd0 + i]);
    multiply[i] = eight_times(secret[kSecretMultiply0 + i] | 1);
  }
  const Eight tweak = eight_times(secret[kSecretTweak128] ^ tenant);
  for (; count >= 8; count -= 8, keys += 8 * stride, ret_digests += 8) {
    const __m512i first = four_keys(keys, stride), second = four_keys(keys + 4 * stride, stride);
    Eight lo = Eight(_mm512_unpacklo_epi64(first, second)) ^ tweak;
    Eight hi = Eight(_mm512_unpackhi_epi64(first, second));
    hi ^= folded_products(lo ^ add[0], multiply[0]);
    lo ^= folded_products(hi ^ add[1], multiply[1]);
    hi ^= folded_products(lo ^ add[2], multiply[2]);
    _mm512_storeu_si512(ret_digests, _mm512_unpacklo_epi64(__m512i(lo), __m512i(hi)));
    _mm512_storeu_si512(ret_digests + 4, _mm512_unpackhi_epi64(__m512i(lo), __m512i(hi)));
  }
  make_digests(secret, keys, stride, count, tenant, ret_digests);
}
#endif

using MakeDigests = decltype(make_digests);

MakeDigests* fastest_make_digests() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return make_digests_avx512;
  if (__builtin_cpu_supports("bmi2")) return make_digests_bmi2;
#endif
  return make_digests;
}

}  // namespace

void digests_of_128(const uint64_t* secret, const std::byte* keys, size_t stride, size_t count, uint64_t tenant,
                    Digest* ret_digests) {
  static MakeDigests* const fastest = fastest_make_digests();
  fastest(secret, keys, stride, count, tenant, ret_digests);
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
