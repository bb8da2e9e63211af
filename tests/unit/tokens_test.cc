// The hashes of libmaru-tokens against those that the engines' own libraries computed: tests/data/token_hashes.tsv.
#include "maru/tokens.h"
#include "libmaru/tokens/blake3.h"
#include "libmaru/tokens/sha256.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Fields = std::vector<std::string>;

Fields split(const std::string& text, char separator) {
  Fields fields;
  std::istringstream stream(text);
  for (std::string field; std::getline(stream, field, separator);) fields.push_back(field);
  return fields;
}

std::string from_hex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) bytes += char(std::stoi(text.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string to_hex(const void* bytes, size_t n) {
  std::string text;
  for (size_t i = 0; i < n; ++i) {
    char byte[3];
    std::snprintf(byte, sizeof(byte), "%02x", unsigned(static_cast<const uint8_t*>(bytes)[i]));
    text += byte;
  }
  return text;
}

template <typename T>
std::vector<T> numbers(const std::string& text) {
  std::vector<T> result;
  for (const std::string& field : split(text, ',')) result.push_back(T(std::stoull(field)));
  return result;
}

const std::map<std::string, uint32_t> kAlgorithms = {{"blake3", MARU_TOKENS_BLAKE3},
                                                     {"sha256_cbor", MARU_TOKENS_SHA256_CBOR},
                                                     {"sha256", MARU_TOKENS_SHA256_PICKLE},
                                                     {"xxhash_cbor", MARU_TOKENS_XXH3_CBOR},
                                                     {"xxhash", MARU_TOKENS_XXH3_PICKLE}};

std::vector<Fields> lines_of(const std::string& kind) {
  const char* path = std::getenv("MARU_TOKEN_HASHES");
  std::ifstream file(path == nullptr ? "tests/data/token_hashes.tsv" : path);
  std::vector<Fields> found;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    const Fields fields = split(line, '\t');
    const bool is_special = fields[0] == "root" || fields[0] == "dynamo" || fields[0] == "lmcache_engine";
    if (is_special ? fields[0] == kind : kind == "blocks") found.push_back(fields);
  }
  EXPECT_FALSE(found.empty()) << "set MARU_TOKEN_HASHES to tests/data/token_hashes.tsv";
  return found;
}

maru_tokens_options options(uint32_t algorithm, uint32_t block_tokens, const std::string& parent) {
  maru_tokens_options o{};
  o.size = sizeof(o);
  o.algorithm = algorithm;
  o.block_tokens = block_tokens;
  o.parent = parent.data();
  o.parent_bytes = parent.size();
  return o;
}

TEST(Tokens, BlocksHaveTheHashesOfTheEngines) {
  for (const Fields& f : lines_of("blocks")) {
    const std::string parent = from_hex(f[2]);
    maru_tokens_options o = options(kAlgorithms.at(f[0]), uint32_t(std::stoul(f[1])), parent);
    o.extra_keys = f[3] == "bare" ? MARU_TOKENS_EXTRA_BARE : MARU_TOKENS_EXTRA_TAGGED;
    if (f[4] != "-") o.lora_name = f[4].c_str();
    if (f[5] != "-") o.lora_path = f[5].c_str();
    if (f[6] != "-") o.cache_salt = f[6].c_str();
    const auto tokens = numbers<uint32_t>(f[7]);
    const Fields expected = split(f[8], ',');
    const auto bytes = size_t(maru_tokens_hash_bytes(o.algorithm));
    std::vector<uint8_t> hashes(bytes * expected.size());
    ASSERT_EQ(maru_tokens_hash(&o, tokens.data(), tokens.size(), hashes.data(), hashes.size()), 0) << f[0];
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_EQ(to_hex(hashes.data() + i * bytes, bytes), expected[i]) << f[0] << ' ' << f[1] << " block " << i;
  }
}

TEST(Tokens, AChainGoesOnFromAnyOfItsHashes) {
  std::vector<uint32_t> tokens(64);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = uint32_t(i * 1009);
  for (const auto& [name, algorithm] : kAlgorithms) {
    const std::string root(32, 'r');
    const auto bytes = size_t(maru_tokens_hash_bytes(algorithm));
    std::vector<uint8_t> whole(4 * bytes), rest(3 * bytes);
    maru_tokens_options o = options(algorithm, 16, root);
    ASSERT_EQ(maru_tokens_hash(&o, tokens.data(), 64, whole.data(), whole.size()), 0);
    o.parent = whole.data();
    o.parent_bytes = bytes;
    ASSERT_EQ(maru_tokens_hash(&o, tokens.data() + 16, 48, rest.data(), rest.size()), 0);
    EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + long(bytes))) << name;
  }
}

TEST(Tokens, RootsAreThoseOfTheEngines) {
  for (const Fields& f : lines_of("root")) {
    const uint32_t algorithm = kAlgorithms.at(f[1]);
    uint8_t hash[MARU_TOKENS_HASH_BYTES_MAX];
    ASSERT_EQ(maru_tokens_root(algorithm, f[2] == "-" ? nullptr : f[2].c_str(), hash), 0);
    EXPECT_EQ(to_hex(hash, size_t(maru_tokens_hash_bytes(algorithm))), f[3]) << f[1] << ' ' << f[2];
  }
}

TEST(Tokens, ChunksOfLMCacheWithinAnEngine) {
  for (const Fields& f : lines_of("lmcache_engine")) {
    const auto tokens = numbers<uint32_t>(f[4]);
    const auto expected = numbers<uint64_t>(f[5]);
    std::vector<uint64_t> hashes(expected.size());
    const uint64_t parent = std::stoull(f[2]);
    const auto chunk_tokens = uint32_t(std::stoul(f[3]));
    ASSERT_EQ(maru_tokens_lmcache_engine(kAlgorithms.at(f[1]), parent, chunk_tokens, tokens.data(), tokens.size(),
                                         hashes.data()),
              0);
    EXPECT_EQ(hashes, expected) << f[1] << ' ' << parent;
  }
}

TEST(Tokens, DynamosHashesAreThoseOfLibxxhash) {
  for (const Fields& f : lines_of("dynamo")) {
    const auto tokens = numbers<uint32_t>(f[3]);
    const auto expected_blocks = numbers<uint64_t>(f[4]), expected_sequences = numbers<uint64_t>(f[5]);
    std::vector<uint64_t> blocks(expected_blocks.size()), sequences(blocks.size());
    const auto salt = std::stoull(f[1]);
    const auto block_tokens = uint32_t(std::stoul(f[2]));
    ASSERT_EQ(
        maru_tokens_dynamo(salt, nullptr, block_tokens, tokens.data(), tokens.size(), blocks.data(), sequences.data()),
        0);
    EXPECT_EQ(blocks, expected_blocks);
    EXPECT_EQ(sequences, expected_sequences);
    uint64_t second = 0;
    ASSERT_EQ(maru_tokens_dynamo(salt, &sequences[0], block_tokens, tokens.data() + block_tokens, block_tokens, nullptr,
                                 &second),
              0);
    EXPECT_EQ(second, expected_sequences[1]);
  }
}

// Lengths around every limit of both functions: a block, a chunk, and trees of up to nine chunks.
TEST(Tokens, Sha256WithAndWithoutInstructionsIsTheSame) {
  std::vector<uint8_t> message(1000);
  for (size_t i = 0; i < message.size(); ++i) message[i] = uint8_t(i * 7);
  for (size_t n = 0; n <= message.size(); ++n) {
    uint8_t fast[32], portable[32];
    maru::tokens::sha256(message.data(), n, fast);
    maru::tokens::sha256_portable(message.data(), n, portable);
    ASSERT_EQ(to_hex(fast, 32), to_hex(portable, 32)) << n;
  }
  uint8_t hash[32];
  maru::tokens::sha256(reinterpret_cast<const uint8_t*>("abc"), 3, hash);  // FIPS 180-2, appendix B.1
  EXPECT_EQ(to_hex(hash, 32), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

// The lengths for which the authors publish hashes; the input is 0 to 250, again and again.
TEST(Tokens, Blake3HasTheVectorsOfItsAuthors) {
  const std::map<size_t, std::string> vectors = {
      {0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"},
      {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
      {63, "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b"},
      {64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98"},
      {65, "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee"},
      {1023, "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"},
      {1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
      {1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
      {2048, "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
      {2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030"},
      {3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"},
      {4096, "015094013f57a5277b59d8475c0501042c0b642e531b0a1c8f58d2163229e969"},
      {5121, "628bd2cb2004694adaab7bbd778a25df25c47b9d4155a55f8fbd79f2fe154cff"},
      {7168, "61da957ec2499a95d6b8023e2b0e604ec7f6b50e80a9678b89d2628e99ada77a"},
      {8193, "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b"},
      {16384, "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4"},
  };
  for (const auto& [bytes, expected] : vectors) {
    std::vector<uint8_t> message(bytes);
    for (size_t i = 0; i < bytes; ++i) message[i] = uint8_t(i % 251);
    uint8_t hash[32];
    maru::tokens::blake3(message.data(), bytes, hash);
    EXPECT_EQ(to_hex(hash, 32), expected) << bytes;
  }
}

TEST(Tokens, EqualTextsOfWhichAPickleMayHaveOneAreRefused) {
  struct Texts {
    const char *name, *path, *salt;
    bool are_tagged;
  };
  const std::string parent(32, 'p');
  const std::vector<uint32_t> tokens(16, 1);
  const auto hash = [&](uint32_t algorithm, const Texts& texts) {
    maru_tokens_options o = options(algorithm, 16, parent);
    o.lora_name = texts.name;
    o.lora_path = texts.path;
    o.cache_salt = texts.salt;
    o.extra_keys = texts.are_tagged ? MARU_TOKENS_EXTRA_TAGGED : MARU_TOKENS_EXTRA_BARE;
    uint8_t hashes[32];
    return maru_tokens_hash(&o, tokens.data(), tokens.size(), hashes, sizeof(hashes));
  };
  const std::vector<Texts> equal = {{"a", "a", nullptr, true},        {"a", "/path", "a", true},
                                    {"name", "/path", "/path", true}, {"lora", "/path", nullptr, true},
                                    {"name", "/path", "lora", true},  {nullptr, nullptr, "cache_salt", true},
                                    {"name", nullptr, "name", false}};
  const std::vector<Texts> others = {
      {"a", "b", "c", true}, {"lora", nullptr, "cache_salt", false}, {"", "/", "s", true}};
  for (const uint32_t algorithm : {MARU_TOKENS_SHA256_PICKLE, MARU_TOKENS_XXH3_PICKLE}) {
    for (const Texts& texts : equal) EXPECT_EQ(hash(algorithm, texts), -EINVAL) << &texts - equal.data();
    for (const Texts& texts : others) EXPECT_EQ(hash(algorithm, texts), 0) << &texts - others.data();
  }
  for (const Texts& texts : equal) EXPECT_EQ(hash(MARU_TOKENS_SHA256_CBOR, texts), 0) << &texts - equal.data();
}

TEST(Tokens, WhatCannotBeHashedIsRefusedAndNothingWritten) {
  const std::string parent(32, 'p'), long_text(256, 'x'), long_path(MARU_TOKENS_PATH_BYTES_MAX + 1, 'x');
  const std::vector<uint32_t> tokens(32, 1);
  uint8_t hashes[64] = {};
  const auto hash = [&](auto change) {
    maru_tokens_options o = options(MARU_TOKENS_SHA256_CBOR, 16, parent);
    change(o);
    return maru_tokens_hash(&o, tokens.data(), tokens.size(), hashes, sizeof(hashes));
  };
  EXPECT_EQ(hash([](auto& o) { o.size = sizeof(o) - 1; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.algorithm = 0; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.algorithm = 6; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.block_tokens = 0; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.block_tokens = MARU_TOKENS_BLOCK_MAX + 1; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.parent = nullptr; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.parent_bytes = 0; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.parent_bytes = MARU_TOKENS_PARENT_MAX + 1; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.reserved[1] = 1; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.extra_keys = 2; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.lora_name = "without a path"; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.lora_path = "/without/a/name"; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) {
              o.extra_keys = MARU_TOKENS_EXTRA_BARE;
              o.lora_name = o.lora_path = "has a path";
            }),
            -EINVAL);
  EXPECT_EQ(hash([&](auto& o) { o.lora_name = long_text.c_str(), o.lora_path = "/path"; }), -EINVAL);
  EXPECT_EQ(hash([&](auto& o) { o.lora_name = "lora", o.lora_path = long_path.c_str(); }), -EINVAL);
  EXPECT_EQ(hash([&](auto& o) { o.cache_salt = long_text.c_str(); }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.algorithm = MARU_TOKENS_BLAKE3, o.cache_salt = "salt"; }), -EINVAL);
  EXPECT_EQ(hash([](auto& o) { o.block_tokens = 8; }), -EINVAL) << "four hashes have no room";
  EXPECT_EQ(to_hex(hashes, 64), std::string(128, '0'));
  EXPECT_EQ(hash([](auto& o) { o.block_tokens = 33; }), 0) << "no whole block";
  EXPECT_EQ(to_hex(hashes, 64), std::string(128, '0'));
  EXPECT_EQ(maru_tokens_hash(nullptr, nullptr, 0, nullptr, 0), -EINVAL);
  EXPECT_EQ(maru_tokens_hash_bytes(9), -EINVAL);
  EXPECT_EQ(maru_tokens_root(MARU_TOKENS_BLAKE3, "seed", hashes), -EINVAL);
  EXPECT_EQ(maru_tokens_root(MARU_TOKENS_SHA256_CBOR, long_text.c_str(), hashes), -EINVAL);
  uint64_t words[2] = {7, 7};
  const auto for_engine = [&](uint32_t algorithm, uint32_t chunk_tokens, const uint32_t* from) {
    return maru_tokens_lmcache_engine(algorithm, 0, chunk_tokens, from, tokens.size(), words);
  };
  EXPECT_EQ(for_engine(MARU_TOKENS_BLAKE3, 16, tokens.data()), -EINVAL);
  EXPECT_EQ(for_engine(6, 16, tokens.data()), -EINVAL);
  EXPECT_EQ(for_engine(MARU_TOKENS_SHA256_CBOR, 0, tokens.data()), -EINVAL);
  EXPECT_EQ(for_engine(MARU_TOKENS_SHA256_CBOR, 16, nullptr), -EINVAL);
  EXPECT_EQ(for_engine(MARU_TOKENS_SHA256_CBOR, 33, tokens.data()), 0) << "no whole chunk";
  EXPECT_EQ(words[0] + words[1], 14u);
  EXPECT_EQ(maru_tokens_dynamo(0, nullptr, 0, tokens.data(), 4, nullptr, nullptr), -EINVAL);
  EXPECT_EQ(maru_tokens_dynamo(0, nullptr, 4, nullptr, 4, nullptr, nullptr), -EINVAL);
}

}  // namespace
