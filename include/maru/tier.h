/*
 * A tier: storage below a pool, as maru-tierd uses it. This header is the contract of its plug-ins.
 *
 * A plug-in is a shared object that exports one table of functions, maru_tier_plugin. maru-tierd opens it with options,
 * submits requests in batches, waits for the descriptor of the tier, and takes completions in batches. docs/tiers.md says how
 * maru-tierd uses a tier, and docs/examples/tier has a plug-in that compiles.
 *
 * An entry has a key, attributes (some hundred bytes to some ten thousand), a payload (kilobytes to hundreds of megabytes),
 * and a note of 64 bits. To a plug-in all of them are bytes. A tier is a cache: it may lose any entry at any time, and then
 * answers that the entry is absent. It must never answer with other bytes than were stored under the key. maru-tierd proves
 * attributes and payload by checksums of its own, so a plug-in that breaks this rule causes misses and no wrong answers.
 *
 * Rules for both sides
 *   memory       Key, attributes and payload of a request belong to the plug-in from submit() until complete() has returned
 *                the request's completion. The plug-in then reads and writes them no more, and neither does the kernel for it:
 *                a late transfer into a page of the pool would change a block of another client. So a plug-in that gives up
 *                waiting for its device keeps the request until the device has answered.
 *   order        Requests may complete in any order. The caller submits no request for a key while another one that changes
 *                this key has not completed.
 *   once         Each accepted request completes once. A store that fails leaves the entry of before, or none.
 *   threads      One thread at a time calls submit() and complete(); get_usage(), get_health() and list() come from any
 *                thread, also meanwhile. No call but open() and close() may wait for a device.
 *   results      0 or -errno. Absent is -ENOENT.
 *   groups       The second byte of a key is the length of a name that follows it. Entries with the same name are a group:
 *                the entries of one tenant. A plug-in may count them, and then tenants have quotas in its tier.
 *
 * Structures that begin with `size` grow in later versions: their writer sets it, and a reader uses no field behind it.
 */
#ifndef MARU_TIER_H
#define MARU_TIER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MARU_TIER_ABI 1u

#define MARU_TIER_KEY_BYTES_MAX 8192u
#define MARU_TIER_ATTRIBUTES_BYTES_MAX 81920u
#define MARU_TIER_BATCH_MAX 1024u
#define MARU_TIER_GROUP_BYTES_MAX 255u

/* One open tier: the plug-in's own. */
typedef struct maru_tier maru_tier;

/* An option of the configuration, as text: numbers as "4096", booleans as "true" and "false". */
typedef struct maru_tier_option {
  const char *name;
  const char *value;
} maru_tier_option;

enum maru_tier_kind {
  MARU_TIER_LOOKUP = 1, /* is there an entry, and how large is it */
  MARU_TIER_LOAD = 2,   /* read attributes and payload */
  MARU_TIER_STORE = 3,  /* write an entry, in place of the one before */
  MARU_TIER_DELETE = 4  /* forget an entry; absent afterwards, also after a restart */
};

typedef struct maru_tier_request {
  uint64_t ticket; /* the caller's; comes back in the completion */
  uint32_t kind;   /* enum maru_tier_kind */
  uint32_t key_bytes;
  const void *key;
  /* LOAD: where they go, with room for attributes_bytes; STORE: they. Otherwise NULL. */
  void *attributes;
  uint32_t attributes_bytes;
  uint32_t reserved0;
  /* LOAD: where it goes, with room for payload_bytes, which is the length that LOOKUP has told; another length is -ESTALE.
   * STORE: it. Otherwise NULL. A payload that begins at a multiple of 4096 can go to a device without a copy. */
  void *payload;
  uint64_t payload_bytes;
  uint64_t payload_checksum; /* STORE: XXH3 of 64 bits, seed 0, of the payload; saves the plug-in a second look */
  uint64_t note;             /* STORE: LOOKUP tells it again */
} maru_tier_request;

typedef struct maru_tier_completion {
  uint64_t ticket;
  /* 0 or -errno: -ENOENT absent; -ENOSPC full; -EFBIG the tier takes no entry this large; -EBADMSG the entry is damaged;
   * -ESTALE the entry has another size; -EIO, -ETIMEDOUT and others of the device. */
  int32_t result;
  uint32_t attributes_bytes; /* LOOKUP and LOAD */
  uint64_t payload_bytes;    /* likewise */
  uint64_t note;             /* likewise */
} maru_tier_completion;

enum maru_tier_capabilities {
  MARU_TIER_KEEPS = 1u << 0,        /* stored entries can be loaded; null does not */
  MARU_TIER_SURVIVES = 1u << 1,     /* entries are there again after a restart of maru-tierd */
  MARU_TIER_LISTS = 1u << 2,        /* list() works */
  MARU_TIER_SHARED = 1u << 3,       /* other hosts may change its content */
  MARU_TIER_BOUNDS_SELF = 1u << 4,  /* the tier evicts by itself when it is full */
  MARU_TIER_COUNTS_GROUPS = 1u << 5 /* get_group(), list_groups() and list_oldest() work */
};

typedef struct maru_tier_properties {
  size_t size;
  uint32_t capabilities; /* enum maru_tier_capabilities */
  uint32_t reserved0;
  uint64_t entry_bytes_max; /* payload of one entry; 0: no limit */
  uint64_t depth_bytes;     /* in flight that this tier makes use of; 0: unknown */
} maru_tier_properties;

typedef struct maru_tier_usage {
  size_t size;
  uint64_t entries;        /* that can be loaded */
  uint64_t entry_bytes;    /* of their payloads and attributes */
  uint64_t physical_bytes; /* that the tier takes of its device now */
  uint64_t capacity_bytes; /* that it will never pass; 0: another's decision */
  uint64_t evicted;        /* entries that the tier gave up for room, since it was opened */
  uint64_t damaged;        /* entries that did not verify, likewise */
  uint64_t reinserted;     /* entries that were moved because they had been used lately, likewise */
  uint64_t in_flight;      /* requests accepted and not completed */
} maru_tier_usage;

typedef struct maru_tier_health {
  size_t size;
  uint32_t is_ready; /* 1: requests are answered */
  uint32_t is_slow;  /* 1: the tier works worse than it could; `text` says why, such as "no O_DIRECT" */
  char text[256];    /* a sentence for people; empty: nothing to say */
} maru_tier_health;

/* One entry in an answer of list(). A tier on a server may know no more than the sum of both sizes without asking: then
 * payload_bytes has the sum, and attributes_bytes and note are 0. */
typedef struct maru_tier_entry {
  uint32_t key_bytes;
  uint32_t attributes_bytes;
  uint64_t payload_bytes;
  uint64_t note;
  uint8_t key[MARU_TIER_KEY_BYTES_MAX];
} maru_tier_entry;

/* The entries of one group in a tier. */
typedef struct maru_tier_group {
  uint64_t entries;     /* that can be loaded */
  uint64_t entry_bytes; /* of their payloads and attributes */
  uint32_t name_bytes;
  uint8_t name[MARU_TIER_GROUP_BYTES_MAX];
  uint8_t reserved0;
} maru_tier_group;

typedef struct maru_tier_calls {
  size_t size;  /* sizeof(maru_tier_calls) */
  uint32_t abi; /* MARU_TIER_ABI */
  uint32_t reserved0;
  const char *name; /* constant, at most 31 bytes of a-z, 0-9 and '-' */

  /* Opens a tier. Everything that survived is found again before the call returns; list() and get_usage() of a tier that others
   * change, too (MARU_TIER_SHARED), may come to know of it later. Returns 0, or -errno and a sentence in
   * `problem`: the finding, the expectation, and the remedy. */
  int (*open)(const maru_tier_option *options, size_t n, maru_tier **ret_tier, char *problem, size_t problem_bytes);

  /* Ends it. Returns after the last transfer from and to memory of requests; their completions are lost. */
  void (*close)(maru_tier *tier);

  /* A descriptor that is readable while complete() has something. The tier's own; valid until close(). */
  int (*event_descriptor)(maru_tier *tier);

  /* Takes the first of n requests (at most MARU_TIER_BATCH_MAX), and returns how many. Fewer than n: its queue is full, and
   * the caller comes again after the next completion. The array is read during the call only. Never negative. */
  size_t (*submit)(maru_tier *tier, const maru_tier_request *requests, size_t n);

  /* Completions, `completions_max` at most. Returns how many; 0: none is there now. Does not wait. */
  size_t (*complete)(maru_tier *tier, maru_tier_completion *ret_completions, size_t completions_max);

  void (*get_properties)(maru_tier *tier, maru_tier_properties *ret_properties);
  void (*get_usage)(maru_tier *tier, maru_tier_usage *ret_usage);
  void (*get_health)(maru_tier *tier, maru_tier_health *ret_health);

  /* Entries behind *cursor, which is 0 at first; `entries_max` at most. Returns how many, and 0 at the end; moves *cursor.
   * An entry that is stored or deleted meanwhile may come or be missing. -EOPNOTSUPP without MARU_TIER_LISTS. */
  int (*list)(maru_tier *tier, uint64_t *cursor, maru_tier_entry *ret_entries, size_t entries_max);

  /* The rest is for MARU_TIER_COUNTS_GROUPS: NULL, or behind `size`, in a plug-in without it. Threads: as get_usage(). */

  /* The group's entries now: with every completed store, and without entries that were deleted or given up for room. */
  void (*get_group)(maru_tier *tier, const void *name, uint32_t name_bytes, maru_tier_group *ret_group);

  /* Groups that have entries, in the order of their names behind `after` (NULL: from the first), `groups_max` at most. Returns
   * how many. */
  int (*list_groups)(maru_tier *tier, const maru_tier_group *after, maru_tier_group *ret_groups, size_t groups_max);

  /* The oldest entries of a group, the oldest first, `entries_max` at most. Returns how many. */
  int (*list_oldest)(maru_tier *tier, const void *name, uint32_t name_bytes, maru_tier_entry *ret_entries,
                     size_t entries_max);
} maru_tier_calls;

/* The symbol that a plug-in exports. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const maru_tier_calls maru_tier_plugin;

#ifdef __cplusplus
}
#endif

#endif
