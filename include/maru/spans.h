/*
 * libmaru-blend, first part: chunks of tokens that were computed once, found anywhere in a prompt.
 *
 * A prefix cache finds a text only behind the very beginning that it had when it was computed. Here a chunk of `window` tokens
 * is stored under a name made of its tokens alone. maru_find_spans() slides over a prompt, asks the pool for every window, and
 * returns the chunks that occur in it, at any place. Their keys still carry the old position: turn them with
 * maru_rerotate() (maru/rope.h), and recompute a share of the tokens. The engine decides which share.
 *
 * A chunk is an ordinary block of the pool. Its name is a polynomial of its tokens modulo 2^61 - 1. The base of the polynomial
 * is derived from the pool's secret, so no prompt can aim at a collision. The block's metadata holds the tokens, which each
 * lookup compares: a collision is a miss, and never another text. A process that is attached to the pool can compute the base,
 * but such a process may store any bytes under any key anyway.
 *
 * Results, sizes of structures, threads, blocking and fork() are as in maru/maru.h. Any thread may use one maru_spans, because
 * it does not change. Each function allocates memory, and may return -ENOMEM.
 */
#ifndef MARU_SPANS_H
#define MARU_SPANS_H

#include <maru/maru.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MARU_BLEND_PUBLIC __attribute__((visibility("default")))
#else
#define MARU_BLEND_PUBLIC
#endif

#define MARU_SPAN_WINDOW_MAX 16128u   /* tokens of a chunk: they fit into the metadata of a block, with the note */
#define MARU_SPAN_NOTE_BYTES_MAX 256u /* bytes of the caller beside a chunk */
#define MARU_SPAN_SPACE_BYTES_MAX 4096u
#define MARU_SPAN_OCCUPANTS_MAX 8u
#define MARU_SPAN_BLOCKS_MAX 4096u /* of a chain that one chunk names */

/* The chunks of one model, layout, tenant and length, in the pool of one client. */
typedef struct maru_spans maru_spans;

typedef struct maru_spans_options {
  size_t size;
  /* Any bytes that describe the payloads: model, revision, layout, rank. Other spaces never meet. */
  const void *space;
  uint32_t space_bytes; /* 1 to MARU_SPAN_SPACE_BYTES_MAX */
  uint32_t window;      /* tokens of each chunk; 1 to MARU_SPAN_WINDOW_MAX */
  uint64_t tenant;      /* from maru_tenant(), 0 for none. Tenants never meet */
  uint32_t occupants;   /* how many blocks the same tokens may have, from different positions; 0: 1. At most
                           MARU_SPAN_OCCUPANTS_MAX. Each is one more lookup for a window that is present */
  uint32_t reserved0;
  uint64_t reserved[2];
} maru_spans_options;

/* Prepares powers of the base and the keyed name of the space, which later calls share.
 *   client         must outlive ret_spans
 *   ret_spans      owned by the caller until maru_close_spans()
 * Copies the options. Errors: -EINVAL an argument or a field is out of range; -EOPNOTSUPP the pool holds no metadata
 * (maru_geometry): let marud format it anew. */
MARU_BLEND_PUBLIC int maru_open_spans(maru_client *client, const maru_spans_options *options, maru_spans **ret_spans);

/* Frees it. Results of maru_find_spans() that are still held must be released before. NULL is allowed. */
MARU_BLEND_PUBLIC void maru_close_spans(maru_spans *spans);

/* -- storing --------------------------------------------------------------------------------------------------------- */

/* A chunk without its bytes. The library copies all of it during the call. */
typedef struct maru_span_chunk {
  size_t size;
  const uint32_t *tokens; /* `window` of them, as maru_spans_options has it */
  uint64_t position;      /* of the first token, in the sequence in which the chunk was computed */
  const void *note;       /* bytes of the caller, which come back with the span; may be NULL when there are none */
  uint32_t note_bytes;    /* at most MARU_SPAN_NOTE_BYTES_MAX */
  uint32_t priority;      /* as in maru_store_options */
  uint64_t ttl_ms;        /* likewise */
  uint64_t reserved[2];
} maru_span_chunk;

/* maru_alloc_with_metadata() with room for the metadata that maru_store_span() writes. Errors: of that function. */
MARU_BLEND_PUBLIC int maru_alloc_spans(maru_spans *spans, uint64_t bytes, size_t n, maru_buffer *ret_buffers);

/* Stores a chunk with its bytes.
 *   buffer         from maru_alloc_spans(), filled
 *   ret_block      may be NULL: the block that has these tokens
 * Returns 0 when it was stored. Returns 1 when these tokens were there already: computed at the same position, or as many
 * times as there may be occupants; the buffer's pages are given back. Errors (the buffer stays the caller's): of maru_store();
 * -EEXIST other texts have this name, in each place that there is for occupants: the chunk cannot be named. */
MARU_BLEND_PUBLIC int maru_store_span(maru_spans *spans, const maru_span_chunk *chunk, const maru_buffer *buffer,
                                      maru_block *ret_block);

/* maru_alloc_spans(), memcpy() and maru_store_span(). Errors: of those. */
MARU_BLEND_PUBLIC int maru_store_span_copy(maru_spans *spans, const maru_span_chunk *chunk, const void *data,
                                           uint64_t bytes, maru_block *ret_block);

/* Gives a second name to a chunk whose bytes are in the pool already, as part of a chain of prefixes. The name is a block of
 * one page, a child of the last block of the chunk. So the chunk cannot go before its name, one pin on the name holds both, and
 * marud evicts the name first.
 *   deepest        the block that holds the chunk's last tokens, of the tenant of `spans`
 *   blocks         how many blocks hold the chunk: `deepest` and blocks - 1 above it. 1 to MARU_SPAN_BLOCKS_MAX
 *   ret_block      may be NULL: the block that has these tokens
 * A block with a name has a child: maru_delete() of it answers -ENOTEMPTY until maru_forget_span().
 * Returns as maru_store_span(). Errors: of maru_alloc() and maru_store(), where -ENOLINK says that `deepest` is gone; -EEXIST
 * as above; -EINVAL also: the chain is shorter than `blocks`, or of another tenant. */
MARU_BLEND_PUBLIC int maru_name_span(maru_spans *spans, const maru_span_chunk *chunk, maru_block deepest,
                                     uint32_t blocks, maru_block *ret_block);

/* Deletes all blocks that have these tokens: names, and chunks with their bytes. Blocks that a name refers to stay.
 * Returns how many blocks it deleted. Errors: -EROFS the client only reads; -ESHUTDOWN; -EINVAL. */
MARU_BLEND_PUBLIC int maru_forget_span(maru_spans *spans, const uint32_t *tokens);

/* -- finding --------------------------------------------------------------------------------------------------------- */

enum maru_span_kind {
  MARU_SPAN_MOVED = 0,  /* found by its tokens: other tokens stand before it than when it was computed */
  MARU_SPAN_SEGMENT = 1 /* found by its key of the prefix, behind a gap: everything before it is the same */
};

/* A part of the prompt that need not be computed from nothing. Tokens are counted from 0. */
typedef struct maru_span {
  uint64_t old_start, old_end; /* where it was when it was computed */
  uint64_t new_start, new_end; /* where it is in the prompt */
  maru_block block;            /* the block that was found; the name, where the bytes are in other blocks */
  const maru_view *views;      /* of the blocks with the bytes, in the order of the tokens. They live until
                                  maru_release_spans(), and are not released themselves */
  uint32_t views_count;
  uint32_t kind;    /* enum maru_span_kind */
  const void *note; /* in the pool; what maru_span_chunk had */
  uint32_t note_bytes;
  uint32_t reserved0;
} maru_span;

enum maru_find_spans_flags {
  MARU_FIND_SEGMENTS = 1u << 0, /* also look for prefix keys behind the end of the prefix */
  /* Leave out chunks computed at position 0: their first tokens draw attention that they do not draw elsewhere. */
  MARU_FIND_SKIP_FIRST = 1u << 1
};

typedef struct maru_find_spans_options {
  size_t size;
  const maru_key *prefix_keys; /* of the prompt's blocks from its beginning, for maru_match_prefix(); NULL: none */
  size_t prefix_keys_count;
  uint64_t prefix_key_tokens; /* tokens of each of these blocks */
  /* No moved chunk begins before this token, or inside of the prefix. A segment begins where its block does. */
  uint64_t first;
  uint64_t step;       /* a moved chunk begins at a multiple of so many tokens, as an engine's blocks do; 0: 1 */
  uint64_t tokens_min; /* neighbouring spans that moved together have at least so many tokens, or are left out */
  uint64_t spans_max;  /* at most so many spans, the first ones; 0: no limit */
  uint32_t flags;      /* enum maru_find_spans_flags */
  uint32_t reserved0;
  uint64_t reserved[2];
} maru_find_spans_options;

typedef struct maru_found_spans {
  maru_match prefix;      /* for maru_resolve() with the prefix keys; maru_release_spans() releases it */
  uint64_t prefix_tokens; /* that it covers */
  const maru_span *spans; /* in the order of new_start; none overlaps another */
  size_t count;
  uint64_t rejected; /* windows whose key was there, with other tokens or unreadable */
  void *held;        /* the library's */
} maru_found_spans;

/* Finds the prefix first, and behind it the chunks that occur in a prompt. Where chunks overlap in the prompt, the call
 * takes the first chunk. All chunks have one length, so no other choice has more spans. Among several occupants the call takes
 * the occupant with the nearest position.
 *   tokens         n of them, read during the call only
 *   options        may be NULL: no prefix, step 1, no limit
 *   ret_found      must end in maru_release_spans(). One pin holds each span, and another pin the prefix
 * Asks the pool for every window: one cache line each, many at a time. Errors (nothing is held): of maru_match_prefix() and
 * maru_retrieve_batch(), above all -ENOBUFS every pin slot is taken: ask for fewer with spans_max. -EINVAL also: the prefix
 * keys are for more tokens than n. */
MARU_BLEND_PUBLIC int maru_find_spans(maru_spans *spans, const uint32_t *tokens, size_t n,
                                      const maru_find_spans_options *options, maru_found_spans *ret_found);

/* Ends all pins of a result, and empties it. Its views and notes must not be read any more. A result that is empty already may
 * be released again. Errors: -EINVAL. */
MARU_BLEND_PUBLIC int maru_release_spans(maru_spans *spans, maru_found_spans *found);

#ifdef __cplusplus
}
#endif

#endif
