#include "libmaru/shm/hash.h"

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

struct SipState {
  uint64_t v0, v1, v2, v3;
  void round() {
    v0 += v1;
    v1 = std::rotl(v1, 13);
    v1 ^= v0;
    v0 = std::rotl(v0, 32);
    v2 += v3;
    v3 = std::rotl(v3, 16);
    v3 ^= v2;
    v0 += v3;
    v3 = std::rotl(v3, 21);
    v3 ^= v0;
    v2 += v1;
    v1 = std::rotl(v1, 17);
    v1 ^= v2;
    v2 = std::rotl(v2, 32);
  }
};

}  // namespace

Digest siphash128(uint64_t key0, uint64_t key1, std::span<const std::byte> input) {
  SipState s{0x736f6d6570736575 ^ key0, 0x646f72616e646f6d ^ key1 ^ 0xee, 0x6c7967656e657261 ^ key0,
             0x7465646279746573 ^ key1};
  size_t i = 0;
  for (; i + 8 <= input.size(); i += 8) {
    const uint64_t m = load_le64(input.data() + i);
    s.v3 ^= m;
    s.round();
    s.round();
    s.v0 ^= m;
  }
  uint64_t last = uint64_t(input.size()) << 56;
  for (size_t k = 0; i + k < input.size(); ++k) last |= uint64_t(input[i + k]) << (8 * k);
  s.v3 ^= last;
  s.round();
  s.round();
  s.v0 ^= last;
  s.v2 ^= 0xee;
  for (int k = 0; k < 4; ++k) s.round();
  Digest d;
  d.lo = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
  s.v1 ^= 0xdd;
  for (int k = 0; k < 4; ++k) s.round();
  d.hi = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
  return d;
}

PlainDigest plain_of_bytes(const uint64_t* secret, std::span<const std::byte> key, uint64_t tenant) {
  const Digest d = siphash128(secret[kSecretSip0], secret[kSecretSip1], key);
  return {d.lo ^ secret[kSecretTweakBytes] ^ tenant, d.hi};
}

uint64_t tenant_id(const uint64_t* secret, std::span<const std::byte> name) {
  const uint64_t id = siphash128(secret[kSecretTenant0], secret[kSecretTenant1], name).lo;
  return id ? id : 1;
}

uint64_t payload_checksum(std::span<const std::byte> payload) {
  // Four independent lanes of folded products keep up with memory; the constants are the fraction of the golden ratio and
  // of square roots, in the manner of the SHA-2 constants.
  constexpr uint64_t kC[4] = {0x9e3779b97f4a7c15, 0x6a09e667f3bcc909, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b};
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

}  // namespace maru::shm
