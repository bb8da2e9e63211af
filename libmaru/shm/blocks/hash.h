// Keys to digests. Every key becomes a 128-bit digest, keyed with the pool's secret; the digest decides equality.
//
// A ready-made 128-bit digest goes through a keyed permutation: three Feistel rounds with a folded 64 x 64 -> 128 bit product
// as round function. This is a bijection, so two such digests are equal after it exactly if they were before. It takes about
// four nanoseconds. A 256-bit digest is chained through it in two steps. Byte strings are hashed with SipHash (siphash.h) and
// then permuted. The three kinds and every tenant enter the permutation with a secret tweak of their own, so none can imitate
// another.
#pragma once

#include "libmaru/shm/blocks/siphash.h"
#include "libmaru/shm/region/control_region.h"

#include <cstdint>
#include <span>

namespace maru::shm {

struct Digest {
  uint64_t lo = 0;  // the registry's tag
  uint64_t hi = 0;  // chooses the bucket
  friend constexpr bool operator==(const Digest&, const Digest&) = default;
};

// Places of the words of Header::secret.
enum SecretWord : uint32_t {
  kSecretAdd0,
  kSecretAdd1,
  kSecretAdd2,
  kSecretMultiply0,
  kSecretMultiply1,
  kSecretMultiply2,  // made odd when used
  kSecretChainLo,
  kSecretChainHi,
  kSecretChainDepth,
  kSecretTweakBytes,
  kSecretTweak128,
  kSecretTweak256,
  kSecretSip0,
  kSecretSip1,
  kSecretTenant0,
  kSecretTenant1,
};

__extension__ typedef unsigned __int128 uint128;

inline uint64_t folded_product(uint64_t a, uint64_t b) {
  const auto product = static_cast<uint128>(a) * b;
  return uint64_t(product) ^ uint64_t(product >> 64);
}

// The input of the permutation: as good a name for a key as its digest, and three multiplications cheaper. Chain sums are made
// of these, so that a match needs the digests of only the few keys that it looks up.
struct PlainDigest {
  uint64_t lo, hi;  // not zeroed, as in SipHash
  friend constexpr bool operator==(const PlainDigest&, const PlainDigest&) = default;
};

// The permutation with the secrets it needs: a loop that writes memory would load them again for every key.
class Permutation {
 public:
  explicit Permutation(const uint64_t* secret)
      : add_{secret[kSecretAdd0], secret[kSecretAdd1], secret[kSecretAdd2]},
        multiply_{secret[kSecretMultiply0] | 1, secret[kSecretMultiply1] | 1, secret[kSecretMultiply2] | 1} {}
  Digest operator()(const PlainDigest& plain) const {
    Digest d{plain.lo, plain.hi};
    d.hi ^= folded_product(d.lo ^ add_[0], multiply_[0]);
    d.lo ^= folded_product(d.hi ^ add_[1], multiply_[1]);
    d.hi ^= folded_product(d.lo ^ add_[2], multiply_[2]);
    return d;
  }

 private:
  uint64_t add_[3], multiply_[3];
};

inline Digest permute(const uint64_t* secret, const PlainDigest& plain) { return Permutation(secret)(plain); }
inline PlainDigest unpermute(const uint64_t* secret, const Digest& d) {
  PlainDigest plain{d.lo, d.hi};
  plain.hi ^= folded_product(plain.lo ^ secret[kSecretAdd2], secret[kSecretMultiply2] | 1);
  plain.lo ^= folded_product(plain.hi ^ secret[kSecretAdd1], secret[kSecretMultiply1] | 1);
  plain.hi ^= folded_product(plain.lo ^ secret[kSecretAdd0], secret[kSecretMultiply0] | 1);
  return plain;
}

// bytes: 16, little-endian words.
inline PlainDigest plain_of_128(const uint64_t* secret, uint64_t lo, uint64_t hi, uint64_t tenant) {
  return {lo ^ secret[kSecretTweak128] ^ tenant, hi};
}
inline PlainDigest plain_of_256(const uint64_t* secret, const uint64_t (&words)[4], uint64_t tenant) {
  const Digest d = permute(secret, PlainDigest{words[0] ^ secret[kSecretTweak256] ^ tenant, words[1]});
  return {d.lo ^ words[2], d.hi ^ words[3]};
}
PlainDigest plain_of_bytes(const uint64_t* secret, std::span<const std::byte> key, uint64_t tenant);
void plain_of_bytes(const uint64_t* secret, const SipInputs& keys, const uint64_t (&tenants)[kSipLanes],
                    PlainDigest (&ret_plain)[kSipLanes]);
// keys.count digests.
inline void digests_of_bytes(const uint64_t* secret, const SipInputs& keys, uint64_t tenant, Digest* ret_digests) {
  SipHash hashes[kSipLanes];
  siphash128_side_by_side(secret[kSecretSip0], secret[kSecretSip1], keys, hashes);
  const uint64_t tweak = secret[kSecretTweakBytes] ^ tenant;
  for (size_t i = 0; i < keys.count; ++i)
    ret_digests[i] = permute(secret, PlainDigest{hashes[i].lo ^ tweak, hashes[i].hi});
}

inline Digest digest_of_128(const uint64_t* secret, uint64_t lo, uint64_t hi, uint64_t tenant) {
  return permute(secret, plain_of_128(secret, lo, hi, tenant));
}
// Of `count` keys of 16 bytes, one behind the other `stride` bytes apart.
void digests_of_128(const uint64_t* secret, const std::byte* keys, size_t stride, size_t count, uint64_t tenant,
                    Digest* ret_digests);
inline Digest digest_of_256(const uint64_t* secret, const uint64_t (&words)[4], uint64_t tenant) {
  return permute(secret, plain_of_256(secret, words, tenant));
}
inline Digest digest_of_bytes(const uint64_t* secret, std::span<const std::byte> key, uint64_t tenant) {
  return permute(secret, plain_of_bytes(secret, key, tenant));
}

// Never 0.
uint64_t tenant_id(const uint64_t* secret, std::span<const std::byte> name);

// A block's term in the chain sum of its descendants. It depends on the place, so the sum knows the order. ChainSum does the
// same for one key after another.
inline uint64_t chain_term(const uint64_t* secret, const PlainDigest& d, uint32_t depth) {
  return folded_product((d.lo ^ secret[kSecretChainLo]) + depth * (secret[kSecretChainDepth] | 1),
                        d.hi ^ secret[kSecretChainHi]);
}

// The chain sum of keys that come one after another, from the first on. It keeps the secrets it needs: a loop that writes
// memory would load them again for every key.
class ChainSum {
 public:
  explicit ChainSum(const uint64_t* secret)
      : lo_(secret[kSecretChainLo]), hi_(secret[kSecretChainHi]), step_(secret[kSecretChainDepth] | 1) {}
  void add(const PlainDigest& d) {
    sum_ += folded_product((d.lo ^ lo_) + depth_term_, d.hi ^ hi_);
    depth_term_ += step_;
  }
  uint64_t sum() const { return sum_; }

 private:
  uint64_t lo_, hi_, step_;
  uint64_t depth_term_ = 0;
  uint64_t sum_ = 0;
};

inline uint64_t home_bucket(const ControlRegion& region, const Digest& d) {
  return uint64_t(static_cast<uint128>(d.hi) * region.buckets() >> 64);
}

// Of a payload; detects damage, not intent. Never 0: 0 means "none".
uint64_t payload_checksum(std::span<const std::byte> payload);

// The facts that a block's checksum covers beside the payload.
struct BlockClaims {
  Digest digest;
  uint64_t length = 0;    // payload bytes
  uint64_t parent = 0;    // PageRef
  uint64_t metadata = 0;  // payload_checksum() of the metadata, 0 for none
};
// The checksum of a block in a pool with bound checksums: a payload under another block's key does not match it. A process that
// computes it can forge it. Never 0.
uint64_t bound_checksum(uint64_t payload_checksum, const BlockClaims& block);

}  // namespace maru::shm
