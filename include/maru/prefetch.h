/*
 * Ask maru-tierd to load blocks from storage below a pool, before they are needed. libmaru-prefetch, a library of its own: a
 * program that has no tiers needs none of it.
 *
 *   maru_prefetch(keys, n, NULL, &ticket);             at once: maru-tierd looks, and reads missing blocks
 *   ... the program does something else ...
 *   maru_prefetch_wait(ticket, 100, &status);          status.usable leading keys are in the pool now
 *   maru_match_prefix(client, keys, n, &match);        pins them, as always
 *   maru_prefetch_release(ticket);
 *
 * Blocks that a ticket has found or loaded are pinned by maru-tierd until the ticket is released (as far as its bounds allow),
 * so the program finds them. All this is a help and never a duty. Without maru-tierd, or with a slow one, a prefetch ends with
 * the blocks that the pool has anyway, and the program computes the rest.
 *
 * Results are as in maru.h: 0 or -errno, outputs are written on success only. One thread at a time may use a ticket; tickets
 * are independent of each other. A ticket is a connection, whose end maru-tierd notices: also when the program dies.
 */
#ifndef MARU_PREFETCH_H
#define MARU_PREFETCH_H

#include <maru/maru.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MARU_PREFETCH_KEYS_MAX 4096

typedef struct maru_prefetch_ticket maru_prefetch_ticket;

enum maru_prefetch_policy {
  MARU_PREFETCH_PREFIX = 0, /* stop at the first key that is not to be had: it is nowhere, or its load fails */
  MARU_PREFETCH_SPARSE = 1, /* load every key that a tier has */
  /* Stop at the first key that is neither in the pool nor in a tier, as PREFIX does; a load that fails is a gap, behind which
   * loading goes on: for a caller that computes the gap alone. */
  MARU_PREFETCH_SEGMENTED_PREFIX = 2
};

enum maru_prefetch_flags {
  /* The blocks that this ticket loads are for its asker alone. A block that others have not pinned leaves the pool when the
   * ticket is released, unless another ticket has asked for it as well. It stays in the tier. */
  MARU_PREFETCH_TEMPORARY = 1u << 0
};

typedef struct maru_prefetch_options {
  size_t size;
  const char *socket_path; /* of maru-tierd; NULL: $MARU_TIER_SOCKET, else /run/maru-tierd/prefetch.sock */
  uint32_t policy;         /* enum maru_prefetch_policy */
  uint32_t deadline_ms;    /* the ticket ends then with the blocks that are there; 0: 1000. At most 60000 */
  uint32_t compute_us; /* how long the caller would compute one block, in microseconds. A load does not begin when it
                              is estimated to take longer than computing the ticket's blocks under way and this block.
                              0: unknown, load in any case */
  uint32_t flags;      /* enum maru_prefetch_flags */
  uint64_t reserved[4];
} maru_prefetch_options;

/* The end of a ticket. Set size = sizeof(maru_prefetch_status_info). */
typedef struct maru_prefetch_status_info {
  size_t size;
  uint32_t is_done; /* 0: all that follows is 0 */
  uint32_t keys;
  uint32_t usable;  /* leading keys that were in the pool when the ticket ended */
  uint32_t in_pool; /* keys that were there already */
  uint32_t loaded;  /* keys that were read from a tier */
  uint32_t absent;  /* keys that no tier has */
  uint32_t failed;  /* keys that could not be loaded; this is a miss */
  uint32_t gated;   /* keys that were not loaded because of compute_us */
  uint32_t late;    /* keys that were not there when the deadline came */
  uint32_t reserved0;
  uint64_t loaded_bytes;
  uint64_t took_us; /* from the question to the end of the ticket, in maru-tierd */
  uint64_t reserved[4];
} maru_prefetch_status_info;

/* Asks for n keys (1 to MARU_PREFETCH_KEYS_MAX), in the order in which they are needed. The library reads them during the
 * call only. Tenants are numbered as in the pool that this maru-tierd serves.
 *   options     may be NULL for the defaults.
 *   ret_ticket  owned by the caller until maru_prefetch_release().
 * Does not wait for a device. Errors: -ENOENT no such socket; -ECONNREFUSED, -ECONNRESET no maru-tierd there; -EACCES this
 * user may not ask; -EAGAIN maru-tierd has too many questions: go on without; -EMSGSIZE the keys have more than 1 MiB;
 * -EMFILE; -EINVAL; -ENOMEM. After each of them the caller goes on as if no tier existed. */
MARU_PUBLIC int maru_prefetch(const maru_key *keys, size_t n, const maru_prefetch_options *options,
                              maru_prefetch_ticket **ret_ticket);

/* Whether the ticket has ended, without waiting. Errors: -ECONNRESET maru-tierd has gone, and nothing is held; -EINVAL. */
MARU_PUBLIC int maru_prefetch_status(maru_prefetch_ticket *ticket, maru_prefetch_status_info *ret_status);

/* Waits until the ticket ends, for at most timeout_ms; -1: until its deadline has ended it. Errors: -ETIMEDOUT; -ECONNRESET
 * maru-tierd has gone, and nothing is held; -EINVAL. */
MARU_PUBLIC int maru_prefetch_wait(maru_prefetch_ticket *ticket, int timeout_ms, maru_prefetch_status_info *ret_status);

/* A descriptor that is readable once the ticket has ended, or maru-tierd has gone: for poll(2) and loops of events. It stays
 * the library's, and is valid until maru_prefetch_release(). Never fails. */
MARU_PUBLIC int maru_prefetch_descriptor(const maru_prefetch_ticket *ticket);

/* Ends the ticket: loads that have not ended are given up, and its blocks may be evicted. NULL is allowed. Does not wait. */
MARU_PUBLIC void maru_prefetch_release(maru_prefetch_ticket *ticket);

#ifdef __cplusplus
}
#endif

#endif
