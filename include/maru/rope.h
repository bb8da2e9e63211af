/*
 * libmaru-blend, second part: keys moved to another position.
 *
 * A rotary embedding turns each pair of elements of a key by an angle that is the token's position times the frequency of the
 * pair. Keys become right for another position when each pair is turned by the difference. The
 * scaled variants differ in their frequencies alone; a factor on the length of the keys stays as it is. Values carry no
 * position.
 *
 * Nothing here needs a pool. Any thread may call any function; none blocks, enters the kernel or allocates memory (but for
 * the heap, where a rotation has more than 1024 pairs). Each `reason` may be NULL. On failure it is a sentence: the value
 * that the library found, and the value that it expected.
 */
#ifndef MARU_ROPE_H
#define MARU_ROPE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if !defined(MARU_BLEND_PUBLIC)
#if defined(__GNUC__)
#define MARU_BLEND_PUBLIC __attribute__((visibility("default")))
#else
#define MARU_BLEND_PUBLIC
#endif
#endif

#define MARU_ROPE_HEAD_DIM_MAX 65536u
#define MARU_ROPE_POSITION_MAX (1ull << 40)
#define MARU_ROPE_REASON_BYTES 256

typedef struct maru_rope_reason {
  char text[MARU_ROPE_REASON_BYTES];
} maru_rope_reason;

/* Which elements of a head make a pair. */
enum maru_rope_pairing {
  MARU_ROPE_NEOX = 1, /* element i and element i + rotary_dim / 2: Llama, Qwen, Mistral, GPT-NeoX */
  MARU_ROPE_GPTJ = 2  /* element 2 i and element 2 i + 1: GPT-J, and the models that vLLM calls not neox style */
};

/* The frequency of pair i is base^(-2 i / rotary_dim), changed as follows. */
enum maru_rope_scaling {
  MARU_ROPE_PLAIN = 0,
  MARU_ROPE_LINEAR = 1,    /* divided by `factor` */
  MARU_ROPE_DYNAMIC = 2,   /* "dynamic NTK" as vLLM has it, for all positions alike: the base is multiplied by
                            (factor^2 - factor + 1)^(d / (d - 2)), d the rotary dimension */
  MARU_ROPE_NTK_ALPHA = 3, /* the base is multiplied by factor^(d / (d - 2)) */
  MARU_ROPE_YARN = 4,      /* fast pairs stay, slow ones are divided by `factor`, with a ramp between */
  MARU_ROPE_LLAMA3 = 5,    /* the same by wavelengths, as Llama 3.1 */
  MARU_ROPE_LONGROPE = 6   /* each pair is divided by its own factor, as Phi-3: `factors` */
};

enum maru_rope_flags {
  MARU_ROPE_YARN_EXACT_RANGE =
      1u << 0 /* the ramp of yarn ends where it is computed, not at whole pairs ("truncate": false) */
};

/* The rotary embedding of a model. Zero the fields that the scaling does not need. */
typedef struct maru_rope {
  size_t size;
  uint32_t head_dim;   /* elements of a head; 2 to MARU_ROPE_HEAD_DIM_MAX */
  uint32_t rotary_dim; /* of them, the first ones, that are turned; even. 0: all */
  uint32_t pairing;    /* enum maru_rope_pairing */
  uint32_t scaling;    /* enum maru_rope_scaling */
  uint32_t flags;      /* enum maru_rope_flags */
  uint32_t reserved0;
  double base;                 /* "rope_theta"; above 1 */
  double factor;               /* of linear, dynamic, alpha, yarn, llama3; above 0 */
  double original_positions;   /* "original_max_position_embeddings" of yarn and llama3 */
  double beta_fast;            /* yarn; 0: 32 */
  double beta_slow;            /* yarn; 0: 1 */
  double extrapolation_factor; /* yarn; 0: 1 */
  double low_freq_factor;      /* llama3 */
  double high_freq_factor;     /* llama3; above the low one */
  const double *factors; /* longrope: rotary_dim / 2 of them, the short or the long ones, whichever the engine used */
  uint64_t reserved[2];
} maru_rope;

/* Computes the frequency of each pair, in radians a position.
 *   ret_frequencies  rotary_dim / 2 of them
 *   n                how many there is room for
 * Errors: -EINVAL a field is out of range; -ENOSPC n is too small. */
MARU_BLEND_PUBLIC int maru_rope_frequencies(const maru_rope *rope, double *ret_frequencies, size_t n,
                                            maru_rope_reason *reason);

enum maru_rope_dtype { MARU_ROPE_FLOAT16 = 1, MARU_ROPE_BFLOAT16 = 2, MARU_ROPE_FLOAT32 = 3 };

/* Keys to move: layers of tokens of heads, each head in one piece. A stride is the distance in bytes from one to the next, a
 * multiple of an element, and means nothing where there is one. */
typedef struct maru_rerotation {
  size_t size;
  const void *from;
  void *to;       /* the same as `from`, with the same strides, to turn in place; otherwise memory apart from it */
  uint32_t dtype; /* enum maru_rope_dtype */
  uint32_t reserved0;
  uint64_t layers, tokens, heads;
  uint64_t from_layer_stride, from_token_stride, from_head_stride;
  uint64_t to_layer_stride, to_token_stride, to_head_stride;
  uint64_t old_position; /* of the first token, where the keys were computed; at most MARU_ROPE_POSITION_MAX */
  uint64_t new_position; /* where they shall be */
  uint64_t reserved[2];
} maru_rerotation;

/* Turns the keys of neighbouring tokens from their old position to a new one. Elements behind the rotary dimension stay, and
 * are copied where `to` is another place. Neither has to be aligned beyond an element.
 *
 * The angles are computed in double precision, the products in single (in double on a processor without AVX2). Let r be the
 * length of a pair, x an exact element of the turned pair, and u 2^-11 for float16, 2^-8 for bfloat16, 2^-24 for float32. The
 * result differs from x by at most u |x| + 2^-22 r. Where a float16 is too small to be normal, it may differ by 2^-25 more. NaN
 * and infinite keys stay no numbers.
 * Errors: -EINVAL a field is out of range; -EOVERFLOW the keys would reach beyond the address space. */
MARU_BLEND_PUBLIC int maru_rerotate(const maru_rope *rope, const maru_rerotation *keys, maru_rope_reason *reason);

#ifdef __cplusplus
}
#endif

#endif
