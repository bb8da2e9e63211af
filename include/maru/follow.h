/*
 * Follow a pool: which blocks it has, and which come and go, for routers and other indexes of its contents.
 *
 * marud writes each event of a pool into a ring in memory that it shares with its followers, and no follower can write to it. A
 * follower reads without a message, costs marud and the pool's clients nothing more than the others do, and stores nothing. It
 * is no client: it has no lane, pins nothing, and needs the right to read the pool.
 *
 * A follower first gets the blocks that are there (a snapshot, parents before children), and then each change:
 *
 *   RESET  STORED* (snapshot)  CURRENT  ( STORED | REMOVED )*   RESET  STORED* (snapshot)  CURRENT  ...
 *
 * RESET says that all blocks told so far are void. It comes first, and again when events were lost: the follower was too slow,
 * or another marud serves the pool. So a program that empties its index at RESET, and adds and removes as it is told, has
 * exactly the pool's blocks, a moment late. In one life of a block STORED comes once, and REMOVED once and later. A parent's
 * STORED comes before its children's, and its REMOVED after theirs. docs/events.md describes the mechanism and its cost.
 *
 * Results and errors are as in maru.h. One thread at a time may use a follower; several followers are independent. After fork()
 * the child's functions return -ECHILD, and maru_follow_close() frees the child's copy.
 */
#ifndef MARU_FOLLOW_H
#define MARU_FOLLOW_H

#include <maru/maru.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct maru_follower maru_follower;

enum maru_follow_kind {
  MARU_FOLLOW_RESET = 1,   /* forget all blocks; those that are there follow */
  MARU_FOLLOW_STORED = 2,  /* a block is there */
  MARU_FOLLOW_REMOVED = 3, /* it is not there any more */
  MARU_FOLLOW_CURRENT = 4  /* the snapshot is complete */
};

/* Why a block went, or why there is a RESET. */
enum maru_follow_reason {
  MARU_FOLLOW_NO_REASON = 0, /* of STORED and CURRENT */

  MARU_FOLLOW_BY_CLIENT = 1,     /* a client deleted it, or it expired and a client met it */
  MARU_FOLLOW_BY_REQUEST = 2,    /* evicted: a client asked for memory */
  MARU_FOLLOW_BY_BACKGROUND = 3, /* evicted: the pool was fuller than its high watermark */
  MARU_FOLLOW_BY_TAKEOVER = 4,   /* evicted: its region went to another client */
  MARU_FOLLOW_BY_EXPIRY = 5,     /* its time to live was over */
  MARU_FOLLOW_BY_ADMIN = 6,      /* an administrator, or a call of maru_delete_tree */
  MARU_FOLLOW_BY_BAD_MEMORY = 7, /* its memory went bad */
  MARU_FOLLOW_BY_HOST = 8,       /* another host of a shared pool */

  MARU_FOLLOW_BEGIN = 32,   /* RESET: the follower begins */
  MARU_FOLLOW_OVERRUN = 33, /* RESET: the follower was too slow, and events were overwritten */
  MARU_FOLLOW_RESTART = 34, /* RESET: another marud, or another feed, than before */
  MARU_FOLLOW_DAMAGE = 35   /* RESET: what the follower read was damaged */
};

/* The name of a reason for people: "client", "request", "background", "takeover", "expired", "admin", "bad memory", "host",
 * "begin", "overrun", "restart", "damage"; "" for no reason and "unknown" for any other number. A static text. Any thread. */
MARU_PUBLIC const char *maru_follow_reason_name(uint32_t reason);

enum maru_follow_event_flags {
  MARU_FOLLOW_IN_SNAPSHOT = 1u << 0,  /* STORED: the block was there when the follower looked */
  MARU_FOLLOW_METADATA_GONE = 1u << 1 /* STORED: the block has metadata and went before the follower could read it */
};

/* An event. Pointers are valid until the next call with this follower. */
typedef struct maru_follow_event {
  uint32_t kind;        /* enum maru_follow_kind */
  uint32_t reason;      /* enum maru_follow_reason */
  uint32_t flags;       /* enum maru_follow_event_flags */
  uint32_t depth;       /* blocks above this one; 0: a root */
  uint64_t incarnation; /* of the feed; another value after a restart of marud. Never 0 */
  /* Rises by 1 with each event of this incarnation, for all followers alike. Of RESET, CURRENT and the blocks of a snapshot it
   * is the number of the last event that the snapshot contains. */
  uint64_t sequence;
  uint64_t at_ms;       /* Unix milliseconds when marud saw it; of a snapshot's blocks when they were stored */
  maru_block block;     /* 0: of RESET and CURRENT, as all that follows */
  maru_block parent;    /* 0: a root */
  maru_key key;         /* with its tenant */
  maru_key parent_key;  /* size 0: a root, or the parent is not known */
  uint64_t length;      /* payload bytes */
  uint64_t stored_ms;   /* Unix milliseconds, by the clock of the client that stored it */
  uint64_t expires_ms;  /* Unix milliseconds, 0: never */
  const void *metadata; /* of the block (maru.h); NULL: it has none */
  uint32_t metadata_bytes;
  uint32_t content_type; /* enum maru_content_type */
  uint32_t priority;
  uint32_t tenant_name_bytes;
  const char *tenant_name; /* of key.tenant, no zero behind it; NULL: none, or marud has not been told the name */
  uint64_t reserved[3];
} maru_follow_event;

enum maru_follow_flags {
  MARU_FOLLOW_NO_METADATA = 1u << 0 /* do not read metadata, and do not keep it */
};

typedef struct maru_follow_options {
  size_t size;
  const char *socket_path; /* as in maru_attach_options */
  const char *pool;        /* NULL: the pool named "default" */
  uint32_t flags;          /* enum maru_follow_flags */
  uint32_t timeout_ms;     /* for requests to marud; 0: 5000 */
  uint64_t reserved[4];
} maru_follow_options;

/* Begins to follow a pool.
 *   options       may be NULL for the defaults.
 *   ret_follower  owned by the caller until maru_follow_close().
 * Blocks for at most timeout_ms. Errors: -ENOENT no such pool or socket; -ECONNREFUSED no marud there; -EACCES the pool's
 * access list refuses this user; -EDQUOT the user is at one of its limits; -ENODEV the pool is not open yet; -EIO marud has
 * fenced the pool; -EPROTO marud speaks another version, or is too old to be followed; -EBADMSG marud's answer is damaged;
 * -EMFILE no descriptors left; -ENOSPC marud has no memory for a feed; -ETIMEDOUT; -EINVAL; -ENOMEM. */
MARU_PUBLIC int maru_follow_open(const maru_follow_options *options, maru_follower **ret_follower);

/* Ends it. NULL is allowed. Does not block. */
MARU_PUBLIC void maru_follow_close(maru_follower *follower);

/* The next events, in order, `events_max` (at least 1) at most. Waits for up to `timeout_ms` until there is one; 0: does not
 * wait; -1: for as long as it takes. Returns how many; 0: the time is over, or maru_follow_wake() was called. After a loss it
 * connects again by itself, and takes a new snapshot; the first call does so as well. A snapshot reads memory of the pool and
 * takes about a second for a million blocks, and the call that begins it does not return before.
 * Errors, after which the next call goes on with another try: -ECONNREFUSED marud does not answer; -ENODEV, -EIO, -ENOENT,
 * -EACCES and the others of maru_follow_open(), as marud says. Such a call waits for up to timeout_ms, too, and fails at its
 * end. -EAGAIN events come faster than this follower takes snapshots. -ECHILD; -EINVAL; -ENOMEM: the next call begins with a
 * RESET. */
MARU_PUBLIC int maru_follow_next(maru_follower *follower, maru_follow_event *ret_events, size_t events_max,
                                 int timeout_ms);

/* Lets a maru_follow_next() that waits in another thread return 0, or the next call that would wait. May be called from any
 * thread and from a signal handler. */
MARU_PUBLIC void maru_follow_wake(maru_follower *follower);

/* How far a follower is. Set size = sizeof(maru_follow_status); fields behind `size` of an older caller are not written. */
typedef struct maru_follow_status {
  size_t size;
  uint64_t incarnation;
  uint64_t sequence;   /* of the last event that maru_follow_next() has returned */
  uint64_t newest;     /* of the last event in the ring */
  uint64_t blocks;     /* that are there, by what was returned */
  uint64_t snapshots;  /* taken so far */
  uint64_t overruns;   /* of them, because this follower was too slow */
  uint64_t restarts;   /* of them, because there was another feed */
  uint64_t ring_bytes; /* of the ring, and how many of them are unread */
  uint64_t unread_bytes;
  uint32_t is_connected; /* 1: marud is there, as far as is known */
  uint32_t is_current;   /* 1: CURRENT came, and no loss is known since */
  uint64_t reserved[4];
} maru_follow_status;

/* The same thread as maru_follow_next(). Errors: -EINVAL. */
MARU_PUBLIC int maru_follow_get_status(const maru_follower *follower, maru_follow_status *ret_status);

/* -- which blocks are there ------------------------------------------------------------------------------------------ */

/* Keys [start, end) of an array are there. */
typedef struct maru_range {
  uint64_t start;
  uint64_t end;
} maru_range;

/* Which of n keys are there: a match without pins, for routers. Each range is as long as it can be, and they come in order. An
 * answer is a hint, since a block may go at any moment, and is found as maru_exists() finds it.
 * ret_ranges: room for ranges_max; (n + 1) / 2 hold every answer. Returns how many ranges there are; when that is more than
 * ranges_max, the first ranges_max were written. ret_present (may be NULL): how many keys are there. Errors: -EINVAL, also
 * more than 2^20 keys; -ESHUTDOWN the pool is being removed: detach. */
MARU_PUBLIC int maru_which(maru_client *client, const maru_key *keys, size_t n, maru_range *ret_ranges,
                           size_t ranges_max, size_t *ret_present);

#ifdef __cplusplus
}
#endif

#endif
