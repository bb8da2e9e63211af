#include "libmaru/shm/blocks/hash.h"
#include "small_pool.h"

#include <bit>
#include <cstring>
#include <random>
#include <string>

namespace maru::shm {
namespace {

const FormatIdentity kIdentity = fixed_identity();
const uint64_t* const kSecret = kIdentity.secret;

std::string hex(const SipHash& d) {
  std::string text;
  for (const uint64_t word : {d.lo, d.hi})
    for (int i = 0; i < 8; ++i) {
      char byte[3];
      std::snprintf(byte, sizeof(byte), "%02x", unsigned(word >> (8 * i) & 0xFF));
      text += byte;
    }
  return text;
}

// Key 00..0f, input 00, 01, 02, ...: the first outputs that the authors of SipHash publish for the 128-bit variant.
TEST(SipHash, FirstVectorsOfTheAuthors) {
  const uint64_t key0 = 0x0706050403020100, key1 = 0x0f0e0d0c0b0a0908;
  std::byte input[64];
  for (size_t i = 0; i < 64; ++i) input[i] = std::byte(i);
  EXPECT_EQ(hex(siphash128(key0, key1, {input, 0})), "a3817f04ba25a8e66df67214c7550293");
  EXPECT_EQ(hex(siphash128(key0, key1, {input, 1})), "da87c1d86b99af44347659119b22fc45");
  EXPECT_EQ(hex(siphash128(key0, key1, {input, 2})), "8177228da4a45dc7fca38bdef60affe4");
}

TEST(SipHash, EveryBitOfInputAndKeyMatters) {
  std::byte input[19] = {};
  const SipHash plain = siphash128(1, 2, input);
  for (size_t bit = 0; bit < sizeof(input) * 8; ++bit) {
    input[bit / 8] ^= std::byte(1u << bit % 8);
    const SipHash other = siphash128(1, 2, input);
    EXPECT_GT(std::popcount(plain.lo ^ other.lo) + std::popcount(plain.hi ^ other.hi), 30);
    input[bit / 8] ^= std::byte(1u << bit % 8);
  }
  for (size_t size = 0; size < sizeof(input); ++size) EXPECT_FALSE(siphash128(1, 2, {input, size}) == plain) << size;
  EXPECT_FALSE(siphash128(1, 3, input) == plain);
}

// Strings of every length up to some words, each lane of another length and at another place of its line; also too few.
TEST(SipHash, SideBySideIsAsOneByOneWithAllInstructions) {
  std::byte bytes[1024];
  std::mt19937_64 random(20261123);
  for (std::byte& byte : bytes) byte = std::byte(random());
  for (const SipWay& way : siphash128_ways())
    for (size_t words = 0; words < 12; ++words)
      for (int round = 0; round < 50; ++round) {
        SipInputs inputs{};
        inputs.count = 1 + random() % kSipLanes;
        for (size_t lane = 0; lane < inputs.count; ++lane) {
          inputs.data[lane] = bytes + random() % 900;
          inputs.size[lane] = 8 * words + random() % 8;
        }
        SipHash hashes[kSipLanes];
        way.hash(words, uint64_t(round), inputs, hashes);
        for (size_t lane = 0; lane < inputs.count; ++lane)
          ASSERT_EQ(hashes[lane], siphash128(words, uint64_t(round), {inputs.data[lane], inputs.size[lane]}))
              << way.instructions << ", lane " << lane << ", " << inputs.size[lane] << " bytes";
      }
}

TEST(Hash, PermuteIsABijection) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 10'000; ++i) {
    const PlainDigest plain{random(), random()};
    EXPECT_EQ(unpermute(kSecret, permute(kSecret, plain)), plain);
  }
}

// The counts have eights of keys and a rest. Halves of words are all ones or all zeros now and then.
TEST(Hash, ManyDigestsAreAsOneByOne) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  constexpr uint64_t kEdges[] = {0, 1, UINT32_MAX, uint64_t{1} << 32, UINT64_MAX << 32, UINT64_MAX - 1, UINT64_MAX};
  for (const size_t stride : {size_t{16}, size_t{17}, size_t{40}, size_t{4096}})
    for (size_t count = 0; count <= 40; ++count) {
      FormatIdentity pool = kIdentity;
      for (uint64_t& word : pool.secret) word = random() % 4 == 0 ? kEdges[random() % std::size(kEdges)] : random();
      const uint64_t tenant = random();
      std::vector<std::byte> rows(stride * count + 16);
      std::vector<Digest> expected(count), digests(count + 1, Digest{7, 7});
      for (size_t i = 0; i < count; ++i) {
        uint64_t words[2];
        for (uint64_t& word : words) word = random() % 4 == 0 ? kEdges[random() % std::size(kEdges)] : random();
        std::memcpy(&rows[i * stride], words, sizeof(words));
        expected[i] = digest_of_128(pool.secret, words[0], words[1], tenant);
      }
      digests_of_128(pool.secret, rows.data(), stride, count, tenant, digests.data());
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(digests[i], expected[i]) << i << " of " << count << ", " << stride;
      ASSERT_EQ(digests[count], (Digest{7, 7})) << count;
    }
}

TEST(Hash, ReadyMadeDigestsStayDifferent) {
  // As engines make them: a few bits apart, or a counter.
  std::set<std::pair<uint64_t, uint64_t>> seen;
  for (uint64_t i = 0; i < 4096; ++i) {
    const Digest a = digest_of_128(kSecret, i, 0, 0), b = digest_of_128(kSecret, 0, i + 1, 0);
    EXPECT_TRUE(seen.insert({a.lo, a.hi}).second);
    EXPECT_TRUE(seen.insert({b.lo, b.hi}).second);
  }
}

TEST(Hash, CountersSpreadOverTagsAndBuckets) {
  // 64 buckets by the high bits of `hi`; 6400 keys; each bucket within six standard deviations of 100.
  uint32_t buckets[64] = {};
  std::set<uint64_t> tags;
  for (uint64_t i = 0; i < 6400; ++i) {
    const Digest d = digest_of_128(kSecret, i, 0, 0);
    ++buckets[d.hi >> 58];
    tags.insert(d.lo);
  }
  EXPECT_EQ(tags.size(), 6400u);
  for (const uint32_t n : buckets) EXPECT_NEAR(n, 100, 60);
}

TEST(Hash, KindsTenantsAndPoolsAreDomainsOfTheirOwn) {
  std::byte bytes[32] = {};
  const uint64_t words[4] = {0, 0, 0, 0};
  const FormatIdentity other_pool = [] {
    FormatIdentity identity = fixed_identity();
    for (uint64_t& word : identity.secret) word = word * 3 + 1;
    return identity;
  }();
  std::set<std::pair<uint64_t, uint64_t>> seen;
  for (const uint64_t tenant : {uint64_t{0}, tenant_id(kSecret, bytes_of("a")), tenant_id(kSecret, bytes_of("b"))})
    for (const uint64_t* secret : {kSecret, static_cast<const uint64_t*>(other_pool.secret)})
      for (const Digest& d : {digest_of_128(secret, 0, 0, tenant), digest_of_256(secret, words, tenant),
                              digest_of_bytes(secret, {bytes, 16}, tenant), digest_of_bytes(secret, bytes, tenant)})
        EXPECT_TRUE(seen.insert({d.lo, d.hi}).second);
}

TEST(Hash, EveryWordOfA256BitDigestMatters) {
  const uint64_t plain[4] = {1, 2, 3, 4};
  for (int i = 0; i < 4; ++i) {
    uint64_t changed[4] = {1, 2, 3, 4};
    changed[i] ^= uint64_t{1} << 40;
    EXPECT_FALSE(digest_of_256(kSecret, plain, 0) == digest_of_256(kSecret, changed, 0));
  }
}

TEST(Hash, TenantsAreNeverZero) { EXPECT_NE(tenant_id(kSecret, {}), 0u); }

TEST(Hash, AChainSumIsTheSumOfItsTerms) {
  ChainSum sum(kSecret);
  uint64_t expected = 0;
  for (uint32_t depth = 0; depth < 300; ++depth) {
    EXPECT_EQ(sum.sum(), expected) << depth;
    const PlainDigest d{depth * 0x9e3779b97f4a7c15u, ~uint64_t{depth}};
    sum.add(d);
    expected += chain_term(kSecret, d, depth);
  }
}

TEST(Hash, ChainSumKnowsTheOrder) {
  const PlainDigest a = plain_of_128(kSecret, 1, 0, 0), b = plain_of_128(kSecret, 2, 0, 0);
  EXPECT_NE(chain_term(kSecret, a, 0) + chain_term(kSecret, b, 1),
            chain_term(kSecret, b, 0) + chain_term(kSecret, a, 1));
  EXPECT_NE(chain_term(kSecret, a, 0), chain_term(kSecret, a, 1));
  EXPECT_NE(chain_term(kSecret, a, 1), chain_term(kSecret, b, 1));
}

TEST(Hash, PayloadChecksumSeesEveryByteAndTheLength) {
  std::vector<std::byte> payload(1000);
  const uint64_t plain = payload_checksum(payload);
  for (size_t i = 0; i < payload.size(); ++i) {
    payload[i] ^= std::byte{1};
    EXPECT_NE(payload_checksum(payload), plain) << i;
    payload[i] ^= std::byte{1};
  }
  for (size_t size = 0; size < payload.size(); size += 7)
    EXPECT_NE(payload_checksum({payload.data(), size}), plain) << size;
  EXPECT_NE(payload_checksum({}), 0u);
}

TEST(Hash, BoundChecksumSeesThePayloadTheKeyTheLengthTheParentAndTheMetadata) {
  const BlockClaims block{{3, 4}, 100, 5, 6};
  const uint64_t sum = bound_checksum(77, block);
  EXPECT_NE(bound_checksum(78, block), sum);
  for (uint32_t bit = 0; bit < 64; ++bit) {
    const uint64_t one = uint64_t{1} << bit;
    EXPECT_NE(bound_checksum(77, {{3 ^ one, 4}, 100, 5, 6}), sum) << bit;
    EXPECT_NE(bound_checksum(77, {{3, 4 ^ one}, 100, 5, 6}), sum) << bit;
    EXPECT_NE(bound_checksum(77, {{3, 4}, 100 ^ one, 5, 6}), sum) << bit;
    EXPECT_NE(bound_checksum(77, {{3, 4}, 100, 5 ^ one, 6}), sum) << bit;
    EXPECT_NE(bound_checksum(77, {{3, 4}, 100, 5, 6 ^ one}), sum) << bit;
  }
}

// docs/format.md gives these to whoever writes another implementation; the secret is that of fixed_identity().
TEST(Hash, VectorsOfTheFormatDocument) {
  const uint64_t words[4] = {1, 2, 3, 4};
  const uint64_t tenant = tenant_id(kSecret, bytes_of("tenant"));
  EXPECT_EQ(kSecret[0], 0x0123456789abcdefu);
  EXPECT_EQ(kSecret[15], 0x0123456789abcdefu * 31);
  EXPECT_EQ(tenant, 0x06bb6e52afb7e104u);
  EXPECT_EQ(digest_of_bytes(kSecret, bytes_of("hello"), 0), (Digest{0x402a5f406c08c83d, 0xa4bdc70b666c85fe}));
  EXPECT_EQ(digest_of_bytes(kSecret, bytes_of("hello"), tenant), (Digest{0x74e6281804f89ea0, 0xe8b2794da4d1ebb4}));
  EXPECT_EQ(digest_of_128(kSecret, 1, 2, 0), (Digest{0x9a6f55980a20b58c, 0xc70414c5b86387fd}));
  EXPECT_EQ(digest_of_256(kSecret, words, 0), (Digest{0x6120eea73d59923e, 0xf38b23eb59bb685f}));
  EXPECT_EQ(chain_term(kSecret, plain_of_128(kSecret, 1, 2, 0), 3), 0xc76eba821c82fe98u);
  EXPECT_EQ(payload_checksum(bytes_of("hello")), 0x2595681ee583e959u);
  const Digest hello = digest_of_bytes(kSecret, bytes_of("hello"), 0);
  EXPECT_EQ(bound_checksum(0x2595681ee583e959, {hello, 5, 0}), 0x7d0cad32ae96b953u);
  const uint64_t metadata = payload_checksum(bytes_of("layers 0 to 3"));
  EXPECT_EQ(bound_checksum(0x2595681ee583e959, {hello, 5, 0, metadata}), 0x9151ed8d1c0700ebu);
}

}  // namespace
}  // namespace maru::shm
