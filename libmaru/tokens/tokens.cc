// The functions of maru/tokens.h: they check the arguments, and walk over the blocks.
#include "maru/tokens.h"

#include "libmaru/tokens/blake3.h"
#include "libmaru/tokens/block_text.h"
#include "libmaru/tokens/sha256.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <new>
#include <optional>
#include <vector>

// Inline, so that there is no library to link with.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace maru::tokens {
namespace {

using Bytes = std::vector<uint8_t>;

struct Algorithm {
  size_t hash_bytes;
  bool is_pickle;  // else CBOR; means nothing for BLAKE3
  void (*digest)(const uint8_t* message, size_t bytes, uint8_t* ret_hash);
};

void xxh3_128(const uint8_t* message, size_t bytes, uint8_t* ret_hash) {
  XXH128_canonical_t canonical;  // the most significant byte first, as the package xxhash has its digests
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(message, bytes));
  std::memcpy(ret_hash, canonical.digest, sizeof(canonical.digest));
}

std::optional<Algorithm> find(uint32_t number) {
  switch (number) {
    case MARU_TOKENS_BLAKE3: return Algorithm{32, false, blake3};
    case MARU_TOKENS_SHA256_CBOR: return Algorithm{32, false, sha256};
    case MARU_TOKENS_SHA256_PICKLE: return Algorithm{32, true, sha256};
    case MARU_TOKENS_XXH3_CBOR: return Algorithm{16, false, xxh3_128};
    case MARU_TOKENS_XXH3_PICKLE: return Algorithm{16, true, xxh3_128};
    default: return std::nullopt;
  }
}

// The text of one of the engine's strings; nothing when it is too long.
std::optional<std::string_view> read_text(const char* text, size_t bytes_max = MARU_TOKENS_EXTRA_BYTES_MAX) {
  const size_t bytes = strnlen(text, bytes_max + 1);
  if (bytes > bytes_max) return std::nullopt;
  return std::string_view(text, bytes);
}

// A pickle has a reference for an object that comes again, and the text for an equal object. So the pickle of equal texts
// depends on the engine's objects.
bool has_text_twice(ExtraKeys extra) {
  std::array<std::string_view, 5> seen;
  size_t n = 0;
  for (const ExtraKey& key : extra)
    for (const std::string_view text : key.all()) {
      if (std::find(seen.begin(), seen.begin() + n, text) != seen.begin() + n) return true;
      seen[n++] = text;
    }
  return false;
}

// vLLM's: of the LoRA, then of the cache salt. Returns how many there are; nothing when they cannot be.
std::optional<size_t> read_extra_keys(const maru_tokens_options& options, std::array<ExtraKey, 2>& ret_extra) {
  const bool is_tagged = options.extra_keys == MARU_TOKENS_EXTRA_TAGGED;
  if (!is_tagged && options.extra_keys != MARU_TOKENS_EXTRA_BARE) return std::nullopt;
  const bool has_path = is_tagged && options.lora_name != nullptr;
  if ((options.lora_path != nullptr) != has_path) return std::nullopt;
  size_t extras = 0;
  const auto add = [&](const char* tag, std::initializer_list<std::optional<std::string_view>> texts) {
    ExtraKey& key = ret_extra[extras++];
    key.is_tuple = is_tagged;
    if (is_tagged) key.texts[key.n++] = tag;
    for (const auto& text : texts)
      if (text) key.texts[key.n++] = *text;
    return std::all_of(texts.begin(), texts.end(), [](const auto& text) { return text.has_value(); });
  };
  if (has_path &&
      !add("lora", {read_text(options.lora_name), read_text(options.lora_path, MARU_TOKENS_PATH_BYTES_MAX)}))
    return std::nullopt;
  if (!is_tagged && options.lora_name != nullptr && !add("", {read_text(options.lora_name)})) return std::nullopt;
  if (options.cache_salt != nullptr && !add("cache_salt", {read_text(options.cache_salt)})) return std::nullopt;
  if (extras > 0 && options.algorithm == MARU_TOKENS_BLAKE3) return std::nullopt;
  return extras;
}

bool is_block(uint32_t block_tokens, size_t n) {
  return block_tokens >= 1 && block_tokens <= MARU_TOKENS_BLOCK_MAX && n <= MARU_TOKENS_MAX;
}

// The parent, then the tokens, big-endian.
void hash_blake3(std::span<const uint8_t> parent, const uint32_t* tokens, size_t block_tokens, size_t blocks,
                 uint8_t* ret_hashes) {
  Bytes message(MARU_TOKENS_PARENT_MAX + 4 * block_tokens);
  for (size_t i = 0; i < blocks; ++i) {
    std::memcpy(message.data(), parent.data(), parent.size());
    uint8_t* const words = message.data() + parent.size();
    for (size_t j = 0; j < block_tokens; ++j) {
      const uint32_t word = __builtin_bswap32(tokens[i * block_tokens + j]);
      std::memcpy(words + 4 * j, &word, 4);
    }
    blake3(message.data(), parent.size() + 4 * block_tokens, ret_hashes);
    parent = {ret_hashes, 32};
    ret_hashes += 32;
  }
}

// The second of the extra keys is the cache salt, which only the first block of a prompt has.
void hash_texts(const Algorithm& algorithm, std::span<const uint8_t> parent, ExtraKeys extra, size_t extra_of_others,
                const uint32_t* tokens, size_t block_tokens, size_t blocks, uint8_t* ret_hashes) {
  Bytes text(block_text_bytes_max(block_tokens));
  for (size_t i = 0; i < blocks; ++i) {
    const std::span<const uint32_t> block(tokens + i * block_tokens, block_tokens);
    const size_t bytes = algorithm.is_pickle ? write_pickle(parent, block, extra, text.data())
                                             : write_cbor(parent, block, extra, text.data());
    algorithm.digest(text.data(), bytes, ret_hashes);
    parent = {ret_hashes, algorithm.hash_bytes};
    ret_hashes += algorithm.hash_bytes;
    extra = extra.first(extra_of_others);
  }
}

int hash(const maru_tokens_options& options, const uint32_t* tokens, size_t n, void* ret_hashes, size_t ret_bytes) {
  const std::optional<Algorithm> algorithm = find(options.algorithm);
  if (!algorithm || !is_block(options.block_tokens, n)) return -EINVAL;
  if (options.parent == nullptr || options.parent_bytes < 1 || options.parent_bytes > MARU_TOKENS_PARENT_MAX)
    return -EINVAL;
  for (const uint64_t word : options.reserved)
    if (word != 0) return -EINVAL;
  const size_t blocks = n / options.block_tokens;
  if (ret_bytes < blocks * algorithm->hash_bytes) return -EINVAL;
  if (blocks == 0) return 0;
  if (tokens == nullptr || ret_hashes == nullptr) return -EINVAL;

  const std::span<const uint8_t> parent(static_cast<const uint8_t*>(options.parent), options.parent_bytes);
  std::array<ExtraKey, 2> extra;
  const std::optional<size_t> extras = read_extra_keys(options, extra);
  if (!extras || (algorithm->is_pickle && has_text_twice(ExtraKeys(extra).first(*extras)))) return -EINVAL;
  auto* hashes = static_cast<uint8_t*>(ret_hashes);
  if (options.algorithm == MARU_TOKENS_BLAKE3)
    hash_blake3(parent, tokens, options.block_tokens, blocks, hashes);
  else
    hash_texts(*algorithm, parent, ExtraKeys(extra).first(*extras), options.lora_name == nullptr ? 0 : 1, tokens,
               options.block_tokens, blocks, hashes);
  return 0;
}

int hash_for_engine(const Algorithm& algorithm, uint64_t parent, const uint32_t* tokens, size_t chunk_tokens,
                    size_t chunks, uint64_t* ret_hashes) {
  Bytes text(block_text_bytes_max(chunk_tokens));
  for (size_t i = 0; i < chunks; ++i) {
    const std::span<const uint32_t> chunk(tokens + i * chunk_tokens, chunk_tokens);
    const size_t bytes =
        algorithm.is_pickle ? write_pickle(parent, chunk, text.data()) : write_cbor(parent, chunk, text.data());
    uint8_t digest[MARU_TOKENS_HASH_BYTES_MAX];
    algorithm.digest(text.data(), bytes, digest);
    std::memcpy(&parent, digest, sizeof(parent));
    parent = __builtin_bswap64(parent);
    ret_hashes[i] = parent;
  }
  return 0;
}

}  // namespace
}  // namespace maru::tokens

using namespace maru::tokens;

extern "C" {

MARU_TOKENS_PUBLIC int maru_tokens_hash_bytes(uint32_t algorithm) {
  const std::optional<Algorithm> found = find(algorithm);
  return found ? int(found->hash_bytes) : -EINVAL;
}

MARU_TOKENS_PUBLIC int maru_tokens_root(uint32_t algorithm, const char* seed, void* ret_hash) {
  const std::optional<Algorithm> found = find(algorithm);
  if (!found || ret_hash == nullptr) return -EINVAL;
  auto* hash = static_cast<uint8_t*>(ret_hash);
  if (algorithm == MARU_TOKENS_BLAKE3) {
    if (seed != nullptr) return -EINVAL;
    const uint8_t zeros[12] = {};  // a hash before that is the number 0, in eight bytes, and the token 0
    blake3(zeros, sizeof(zeros), hash);
    return 0;
  }
  uint8_t text[block_text_bytes_max(1)];
  size_t bytes;
  if (seed == nullptr) {
    bytes = found->is_pickle ? write_pickle_of_zeros(text) : write_cbor_of_zeros(text);
  } else {
    const std::optional<std::string_view> given = read_text(seed);
    if (!given) return -EINVAL;
    bytes = found->is_pickle ? write_pickle(*given, text) : write_cbor(*given, text);
  }
  found->digest(text, bytes, hash);
  return 0;
}

MARU_TOKENS_PUBLIC int maru_tokens_hash(const maru_tokens_options* options, const uint32_t* tokens, size_t n,
                                        void* ret_hashes, size_t ret_bytes) {
  if (options == nullptr || options->size < sizeof(maru_tokens_options)) return -EINVAL;
  try {
    return hash(*options, tokens, n, ret_hashes, ret_bytes);
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

MARU_TOKENS_PUBLIC int maru_tokens_lmcache_engine(uint32_t algorithm, uint64_t parent, uint32_t chunk_tokens,
                                                  const uint32_t* tokens, size_t n, uint64_t* ret_hashes) {
  const std::optional<Algorithm> found = find(algorithm);
  if (!found || algorithm == MARU_TOKENS_BLAKE3 || !is_block(chunk_tokens, n)) return -EINVAL;
  const size_t chunks = n / chunk_tokens;
  if (chunks == 0) return 0;
  if (tokens == nullptr || ret_hashes == nullptr) return -EINVAL;
  try {
    return hash_for_engine(*found, parent, tokens, chunk_tokens, chunks, ret_hashes);
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

MARU_TOKENS_PUBLIC int maru_tokens_dynamo(uint64_t salt, const uint64_t* parent, uint32_t block_tokens,
                                          const uint32_t* tokens, size_t n, uint64_t* ret_blocks,
                                          uint64_t* ret_sequences) {
  if (!is_block(block_tokens, n) || (tokens == nullptr && n >= block_tokens)) return -EINVAL;
  std::optional<uint64_t> before;
  if (parent != nullptr) before = *parent;
  for (size_t i = 0; i < n / block_tokens; ++i) {
    const uint64_t block = XXH3_64bits_withSeed(tokens + i * block_tokens, size_t(block_tokens) * 4, salt);
    uint64_t sequence = block;
    if (before) {
      const uint64_t both[2] = {*before, block};
      sequence = XXH3_64bits_withSeed(both, sizeof(both), salt);
    }
    before = sequence;
    if (ret_blocks != nullptr) ret_blocks[i] = block;
    if (ret_sequences != nullptr) ret_sequences[i] = sequence;
  }
  return 0;
}

}  // extern "C"
