/*
 * libmaru-tokens: the hashes under which inference engines and their caches know blocks of tokens, bit for bit.
 *
 * An engine cuts a prompt into blocks of as many tokens each. It names a block by a hash of its tokens and of the hash before
 * it, so that equal hashes mean equal prefixes. A program that shares blocks with an engine, or follows the events that the
 * engine publishes, needs the same hashes. This library has no part in libmaru and needs the C and C++ runtime alone. It keeps
 * no state. Any thread may call it; it neither blocks nor enters the kernel, but it may allocate.
 *
 * Results: 0 is success, a negative value is -errno. Parameters named ret_ are written only on success. Only whole blocks are
 * hashed: tokens behind the last whole block are ignored.
 */
#ifndef MARU_TOKENS_H
#define MARU_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MARU_TOKENS_PUBLIC __attribute__((visibility("default")))
#else
#define MARU_TOKENS_PUBLIC
#endif

/* The hash functions, and the serialised form of a block that each one hashes. vLLM serialises the tuple (hash before, tuple of
 * tokens, extra keys). LMCache's multiprocess server uses the same functions with its own, larger blocks and without extra
 * keys. LMCache within the engine's process derives other hashes from them: maru_tokens_lmcache_engine().
 *
 * The library lacks Python's built-in hash(), which LMCache calls "builtin". The tuple holds None, whose hash is an address
 * before CPython 3.12, so even two processes of one program may disagree. */
enum maru_tokens_algorithm {
  MARU_TOKENS_BLAKE3 = 1,        /* LMCache "blake3": the hash before, then each token as 32 bits, most significant byte
                                    first. 32 bytes */
  MARU_TOKENS_SHA256_CBOR = 2,   /* vLLM and LMCache "sha256_cbor": SHA-256 of canonical CBOR. 32 bytes */
  MARU_TOKENS_SHA256_PICKLE = 3, /* vLLM "sha256": SHA-256 of Python's pickle, protocol 5. 32 bytes */
  MARU_TOKENS_XXH3_CBOR = 4,     /* vLLM "xxhash_cbor": XXH3 of canonical CBOR. 16 bytes */
  MARU_TOKENS_XXH3_PICKLE = 5    /* vLLM "xxhash": XXH3 of Python's pickle, protocol 5. 16 bytes */
};

#define MARU_TOKENS_HASH_BYTES_MAX 32
#define MARU_TOKENS_BLOCK_MAX 4096      /* tokens of a block: a longer one would be pickled in several frames */
#define MARU_TOKENS_PARENT_MAX 255      /* bytes */
#define MARU_TOKENS_EXTRA_BYTES_MAX 255 /* of lora_name and of cache_salt */
#define MARU_TOKENS_PATH_BYTES_MAX 4096 /* of lora_path */
#define MARU_TOKENS_MAX (1u << 26)      /* of one call */

/* Bytes of a hash: 32 or 16; -EINVAL when there is no such algorithm. */
MARU_TOKENS_PUBLIC int maru_tokens_hash_bytes(uint32_t algorithm);

/* The hash that stands before the first block.
 *   seed      text that ends with a zero: the value of PYTHONHASHSEED in vLLM's environment. vLLM takes random bytes when this
 *             variable is not set; then ask vLLM. NULL: the root of an LMCache without vLLM, an integer tuple, hashed with the
 *             same algorithm.
 *   ret_hash  maru_tokens_hash_bytes() bytes.
 * Errors: -EINVAL no such algorithm, a seed of more than MARU_TOKENS_EXTRA_BYTES_MAX bytes, or a seed for
 * MARU_TOKENS_BLAKE3, which vLLM does not have. */
MARU_TOKENS_PUBLIC int maru_tokens_root(uint32_t algorithm, const char *seed, void *ret_hash);

/* How vLLM writes the extra keys of a block (generate_block_hash_extra_keys in its v1/core/kv_cache_utils.py). */
enum maru_tokens_extra_keys {
  MARU_TOKENS_EXTRA_TAGGED = 0, /* as 0.33 does: ("lora", name, path) and ("cache_salt", salt) */
  MARU_TOKENS_EXTRA_BARE = 1    /* as vLLM did until the middle of 2026: the name and the salt by themselves, no path */
};

typedef struct maru_tokens_options {
  size_t size;           /* set by the caller to sizeof(maru_tokens_options); zero the rest */
  uint32_t algorithm;    /* enum maru_tokens_algorithm */
  uint32_t block_tokens; /* 1 to MARU_TOKENS_BLOCK_MAX; vLLM's default is 16, LMCache's 256 */
  const void *parent;    /* the hash before the first token: of the block before, or of maru_tokens_root() */
  size_t parent_bytes;   /* 1 to MARU_TOKENS_PARENT_MAX */
  /* vLLM's extra keys: the name of the request's LoRA, in every block, and the request's cache salt, in the first block of a
   * prompt alone: give it to the call that hashes that block. NULL: none. Both end with a zero, are UTF-8, have at most
   * MARU_TOKENS_EXTRA_BYTES_MAX bytes, and must be NULL with MARU_TOKENS_BLAKE3. Images and other modalities have extra keys
   * that only the engine knows. */
  const char *lora_name;
  const char *cache_salt;
  /* Where vLLM has that LoRA from, as its LoRARequest says it (lora_path), in at most MARU_TOKENS_PATH_BYTES_MAX bytes. Tagged
   * keys want it with a name; otherwise it is NULL. */
  const char *lora_path;
  uint64_t extra_keys; /* enum maru_tokens_extra_keys */
  uint64_t reserved[2];
} maru_tokens_options;

/* Hashes the whole blocks of a prompt, each over the one before.
 *   tokens, n      n tokens, at most MARU_TOKENS_MAX
 *   ret_hashes     n / block_tokens hashes, in the order of the blocks
 *   ret_bytes      bytes at ret_hashes; -EINVAL when the hashes need more
 * Errors: -EINVAL; -ENOMEM. With MARU_TOKENS_SHA256_PICKLE and MARU_TOKENS_XXH3_PICKLE, -EINVAL also when two of the hashed
 * texts (name, path, salt and the tags) are equal: the engine may have one or two objects for them, and the pickle differs. */
MARU_TOKENS_PUBLIC int maru_tokens_hash(const maru_tokens_options *options, const uint32_t *tokens, size_t n,
                                        void *ret_hashes, size_t ret_bytes);

/* The hashes of LMCache within an engine's process (the chunk hashes in its CacheEngineKey), of 64 bits. Each is the first
 * eight bytes, most significant first, of a vLLM hash over the tuple (hash before as a number, tuple of tokens, empty tuple).
 *   algorithm      LMCache's pre_caching_hash_algorithm; MARU_TOKENS_BLAKE3 is none of vLLM's
 *   parent         the hash of the chunk before. At the beginning of a prompt it is the first eight bytes of
 *                  maru_tokens_root() with the engine's seed, as such a number; 0 for LMCache without vLLM
 *   chunk_tokens   1 to MARU_TOKENS_BLOCK_MAX; LMCache's default is 256
 *   ret_hashes     n / chunk_tokens words
 * Source: ChunkedTokenDatabase in LMCache 0.5. Tokens behind the last whole chunk are ignored here. With save_unfull_chunk
 * LMCache hashes them, too: call again with their number as chunk_tokens and the last hash as parent.
 * Errors: -EINVAL; -ENOMEM. */
MARU_TOKENS_PUBLIC int maru_tokens_lmcache_engine(uint32_t algorithm, uint64_t parent, uint32_t chunk_tokens,
                                                  const uint32_t *tokens, size_t n, uint64_t *ret_hashes);

/* Dynamo's hashes, of 64 bits: XXH3 with the salt as seed. A block's own hash covers its tokens alone; its sequence
 * hash covers the sequence hash before it, too. The two hashes of a first block are equal.
 *   salt           the seed, which keeps the blocks of different models apart; Dynamo's router takes 1337
 *   parent         the sequence hash of the block before, or NULL for the beginning of a prompt
 *   ret_blocks, ret_sequences   n / block_tokens words each; either may be NULL
 * Errors: -EINVAL block_tokens is not 1 to MARU_TOKENS_BLOCK_MAX, or n is more than MARU_TOKENS_MAX. */
MARU_TOKENS_PUBLIC int maru_tokens_dynamo(uint64_t salt, const uint64_t *parent, uint32_t block_tokens,
                                          const uint32_t *tokens, size_t n, uint64_t *ret_blocks,
                                          uint64_t *ret_sequences);

#ifdef __cplusplus
}
#endif

#endif
