/*
 * libmaru: share KV blocks between processes through memory that marud provides.
 *
 * A client attaches to a pool. Blocks are stored under keys, found by keys, and read in place. Lookups, reads and stores into
 * pages that the client already has are loads, stores and atomics on shared memory. They need no system call and no message,
 * and work while marud is stopped. marud is asked for memory (maru_alloc, when the client has none left), for whole subtrees
 * (maru_delete_tree), and when a client attaches and detaches.
 *
 * Results: 0 or a positive value is success, a negative value is -errno; any call may fail with -ENOMEM. Parameters named ret_
 * are written only on success; an array named so may be written in part by a call that fails. A batch has at most 2^20 entries
 * (-EINVAL). Unless a comment says otherwise a function may be called from any thread, with the same client as well, and
 * neither blocks nor enters the kernel. maru_alloc enters it the first time that it takes pages of a region, to map them for
 * writing. Requests to marud go one after the other; threads wait for each other's. After fork() the child's functions return
 * -ECHILD (except maru_tenant and maru_get_geometry, which need no memory of the pool, and maru_daemon_epoch); the child
 * attaches for itself.
 *
 * Once the pool is being removed, or marud has fenced it, calls that allocate, store, find or delete fail with -ESHUTDOWN, and
 * so does maru_alloc while the pool is being drained. Release all views and matches then, abort buffers, and detach. Of a
 * client with MARU_ATTACH_READ_ONLY, calls that allocate, store or delete fail with -EROFS.
 *
 * A client keeps descriptors: its connection, the memory of its pool, and two sockets for its session thread. None of them is
 * 0, 1 or 2. The program may close their numbers. The library neither uses nor closes a file that the program opens under such
 * a number later, and the next request makes another connection. The session thread ends then; so the client stays when marud
 * asks it to leave. Core dumps leave pools out unless the environment has MARU_DUMP_POOLS=1.
 *
 * Structures that begin with `size` grow in later versions: set size = sizeof(the structure) and zero the rest.
 */
#ifndef MARU_H
#define MARU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MARU_VERSION_MAJOR 0
#define MARU_VERSION_MINOR 1
#define MARU_VERSION_PATCH 0

#if defined(__GNUC__)
#define MARU_PUBLIC __attribute__((visibility("default")))
#else
#define MARU_PUBLIC
#endif

/* One attachment to one pool. */
typedef struct maru_client maru_client;

/* Names one life of a block: a block that is stored later never has the same value. 0 is no block. Plain data: may be copied,
 * compared, and sent to other processes that are attached to the same pool. */
typedef uint64_t maru_block;

/* -- keys ------------------------------------------------------------------------------------------------------------ */

enum maru_key_kind {
  MARU_KEY_BYTES = 0,     /* 1 to 4096 bytes of any value */
  MARU_KEY_DIGEST128 = 1, /* 16 bytes that are already a digest; equal digests are equal keys */
  MARU_KEY_DIGEST256 = 2  /* 32 bytes that are already a digest */
};

/* Keys of different kinds or tenants are different keys. The library reads `data` during the call only. */
typedef struct maru_key {
  const void *data;
  uint32_t size;   /* bytes; must fit the kind */
  uint32_t kind;   /* enum maru_key_kind */
  uint64_t tenant; /* from maru_tenant(), 0 for none */
} maru_key;

/* Keys in one array, the first at `data` and each `stride` bytes behind the one before. They and `sizes` stay the caller's,
 * and are read during the call only. */
typedef struct maru_key_rows {
  const void *data;
  size_t stride;         /* bytes; more than a key has, as many, or fewer: keys may overlap */
  const uint32_t *sizes; /* of each key, in bytes; NULL: every key has `size` bytes */
  uint32_t size;
  uint32_t kind;   /* enum maru_key_kind, of all keys */
  uint64_t tenant; /* from maru_tenant(), of all keys; 0 for none */
} maru_key_rows;

/* A key as the pool holds it. */
typedef struct maru_key_copy {
  uint32_t size;
  uint32_t kind;
  uint64_t tenant;
  uint8_t data[4096];
} maru_key_copy;

/* Bytes that describe one block (its layers, its layout, its tokens), stored behind the payload in the block's own pages. They
 * never change, and a reader gets them with the block. `data` may be NULL when there are none. */
#define MARU_METADATA_BYTES_MAX 65536
typedef struct maru_metadata {
  const void *data;
  uint32_t bytes;     /* 0: none. At most MARU_METADATA_BYTES_MAX */
  uint32_t reserved0; /* zero */
} maru_metadata;

/* -- attaching ------------------------------------------------------------------------------------------------------- */

enum maru_attach_flags {
  MARU_ATTACH_FIRST_FIT = 1u << 0, /* allocate runs first-fit; the default is best-fit */
  /* Do not start the thread that re-attaches after a restart of marud: call maru_reattach() instead. */
  MARU_ATTACH_NO_SESSION_THREAD = 1u << 1,
  /* Find and read only. In a pool in memory, or with its control region on a device or in a file of its own, the kernel keeps
   * this client from writing blocks. */
  MARU_ATTACH_READ_ONLY = 1u << 2
};

typedef struct maru_attach_options {
  size_t size;
  /* NULL: $MARU_SOCKET; else marud/marud.sock in $XDG_RUNTIME_DIR (where that is not set, for users other than root, in
   * /run/user/UID) when it exists; else /run/marud/marud.sock. */
  const char *socket_path;
  const char *pool;            /* NULL: the pool named "default" */
  uint32_t flags;              /* enum maru_attach_flags */
  uint32_t thread_cache_pages; /* pages each thread keeps reserved; 0: 16. At most 4096 */
  uint32_t timeout_ms;         /* for requests to marud; 0: 5000 */
  uint32_t reserved0;
  uint64_t reserved[4];
} maru_attach_options;

/* Attaches to a pool of the marud that listens on the socket.
 *   options      may be NULL for the defaults.
 *   ret_client   owned by the caller until maru_detach().
 * Blocks for at most timeout_ms. Errors: -ENOENT no such pool or socket; -ECONNREFUSED no marud there; -EPIPE, -ECONNRESET
 * marud closed the connection; -EACCES the pool's access list refuses this user; -EDQUOT the user is at one of its limits;
 * -EUSERS every lane of the pool is in use; -ENODEV marud could not open the pool yet; -ESHUTDOWN the pool is being removed;
 * -EIO marud has fenced the pool; -EPROTO marud speaks another version; -EBADMSG the control region is damaged or of another
 * version; -EMFILE the process has no descriptors left; -EAGAIN the session thread could not be started, or the process has no
 * key left, pthread_key_create(3); -ENOLCK the process locks all its mappings, and RLIMIT_MEMLOCK is too low for the pool;
 * -ETIMEDOUT; -EINVAL; -ENOMEM; and those of connect(2), as of a path that is no socket. */
MARU_PUBLIC int maru_attach(const maru_attach_options *options, maru_client **ret_client);

/* Ends the attachment: releases every pin, aborts every unfinished buffer, gives regions back, unmaps the memory and frees
 * the client. All views and buffers of this client are invalid afterwards; blocks it stored stay. No other thread may
 * use the client any more. A marud that was started anew meanwhile is told as well (for want of memory only by the end of the
 * process). Blocks until marud has answered, at most four times timeout_ms, and until the session thread has finished its
 * request; the memory is returned in any case.
 * NULL is allowed. In a child after fork it only closes the child's descriptors, and leaves memory as the parent's threads
 * left it. */
MARU_PUBLIC void maru_detach(maru_client *client);

/* Connects again after marud was restarted, and hands it the memory of the pool if it has lost it. The session thread does
 * this on its own; call it to do it now. Blocks for at most timeout_ms. Returns 0 when connected (also when it was all
 * along). Errors: -ECONNREFUSED no marud; -ESTALE marud has another pool of this name now: detach and attach;
 * -ESHUTDOWN the pool is being removed: detach; -EIO marud has fenced the pool; -EMFILE no room for descriptors;
 * -EPROTO marud's answer is not understood; -ENOENT, -EACCES, -EDQUOT, -EUSERS, -ENODEV as from maru_attach, of the marud that
 * was started anew; -ETIMEDOUT. */
MARU_PUBLIC int maru_reattach(maru_client *client);

/* How often this host's marud has begun to serve this pool: another number after each restart. Never fails; 0 in a child after
 * fork. */
MARU_PUBLIC uint64_t maru_daemon_epoch(const maru_client *client);

/* The value to put into maru_key.tenant: a keyed hash of the tenant's name (LMCache's cache_salt), the same in every
 * process attached to this pool. name: size bytes, 1 to 64. Errors: -EINVAL. */
MARU_PUBLIC int maru_tenant(const maru_client *client, const void *name, size_t size, uint64_t *ret_tenant);

typedef struct maru_geometry {
  size_t size;         /* set by the caller to sizeof(maru_geometry) */
  uint64_t pool_bytes; /* control region and pages */
  uint64_t control_bytes;
  uint64_t page_bytes;
  uint64_t pages;
  uint64_t region_pages;
  uint32_t lanes;
  uint32_t lane;     /* of this client */
  uint32_t pins_max; /* blocks this client can hold pinned at the least */
  uint32_t key_bytes_max;
  uint8_t uuid[16];
  uint32_t checksums;          /* 1: finding a block reads all of it, to verify it; 0: it does not */
  uint32_t metadata_bytes_max; /* of one block; 0: a marud from before metadata formatted the pool, which holds none */
  /* The limits of all clients of this user together, over all pools, at the time of the attachment. 0: no limit */
  uint64_t user_regions_max;
  uint64_t user_bytes_max;
} maru_geometry;

/* Errors: -EINVAL size is unknown. */
MARU_PUBLIC int maru_get_geometry(const maru_client *client, maru_geometry *ret_geometry);

/* Has the library call call(argument) before the memory of the pool leaves its addresses in this process, and wait for its
 * return: in the session thread when marud wants the memory back or has fenced the pool, otherwise in maru_detach(). This is
 * for devices that copy from these addresses and to them: each has ended its copies, and forgotten the addresses, when call()
 * returns.
 *   call         replaces the one given before; NULL: none. It is called once, with no lock that another function of the
 *                library takes. It calls no function with this client.
 *   ret_pages    may be NULL. Gets the address of page 0; page p lies p * page_bytes behind it (maru_geometry), for as long as
 *                the memory does. Pages are mapped for reading, and a region for writing once maru_alloc() has given out
 *                pages of it.
 * Waits for a call that is under way in another thread, which the caller's locks must not hinder. In a child of fork() nothing
 * is called: the child has none of the memory. Errors: -ESHUTDOWN the memory has gone, or is going; -EINVAL. */
MARU_PUBLIC int maru_before_unmap(maru_client *client, void (*call)(void *argument), void *argument, void **ret_pages);

typedef struct maru_statistics {
  size_t size; /* set by the caller to sizeof(maru_statistics) */
  uint64_t exists_keys, exists_hits;
  uint64_t retrieve_hits, retrieve_misses;
  uint64_t match_keys, match_blocks;
  uint64_t stores, stored_bytes, duplicates, deletes;
  uint64_t pin_full, registry_full, revives, search_fallbacks, checksum_errors, rents;
  uint64_t pins;          /* slots in use now */
  uint64_t regions;       /* rented by this client now */
  uint64_t pages_cached;  /* reserved and unused, in caches of threads */
  uint64_t evicted;       /* blocks that requests of this client evicted */
  uint64_t evicted_lost;  /* of them not kept for maru_next_evicted() */
  uint64_t regions_taken; /* from this client, for others, so far */
} maru_statistics;

/* Totals of this client since it attached. Errors: -EINVAL size is unknown. */
MARU_PUBLIC int maru_get_statistics(const maru_client *client, maru_statistics *ret_statistics);

/* -- storing --------------------------------------------------------------------------------------------------------- */

/* Memory to fill: whole pages, contiguous, private to the caller until it is stored or aborted. */
typedef struct maru_buffer {
  void *data;
  uint64_t bytes;   /* as asked for */
  maru_block block; /* what the block will be called */
} maru_buffer;

/* Takes pages for `bytes` bytes (1 to the size of a region). Uses pages that the calling thread has cached, then pages of
 * the client's regions, and only then asks marud, which rents a region or evicts. ret_buffer must end in maru_store() or
 * maru_abort(). May block for timeout_ms when marud is asked. Errors:
 *   -ENOSPC    no page is free and marud can evict none, or the file system of the pool's file is full
 *   -EDQUOT    within this user's limits no page is free and marud can evict none
 *   -EFBIG     `bytes` is larger than a region
 *   -ENOTCONN, -ETIMEDOUT  the call needed marud, and marud did not answer (a later call gets the memory of a late answer)
 *   -ESTALE    as from maru_reattach
 *   -EINVAL    an argument is invalid */
MARU_PUBLIC int maru_alloc(maru_client *client, uint64_t bytes, maru_buffer *ret_buffer);

/* The same n times (at least once), all or nothing. The library first computes how many pages are missing, and asks for them in
 * one request. */
MARU_PUBLIC int maru_alloc_batch(maru_client *client, uint64_t bytes, size_t n, maru_buffer *ret_buffers);

/* maru_alloc_batch with room for metadata behind the `bytes` bytes of each buffer: `metadata_bytes`, from 0 to
 * MARU_METADATA_BYTES_MAX. The library writes nothing there before the caller stores the buffer. Errors: of maru_alloc, where
 * -EFBIG counts both; -E2BIG `metadata_bytes` is more than MARU_METADATA_BYTES_MAX; -EOPNOTSUPP the pool holds no metadata
 * (maru_geometry). */
MARU_PUBLIC int maru_alloc_with_metadata(maru_client *client, uint64_t bytes, uint32_t metadata_bytes, size_t n,
                                         maru_buffer *ret_buffers);

/* Gives back buffers that were not stored. Errors: -EINVAL not a buffer of this client; -EHWPOISON a buffer lies in bad memory,
 * of which the library tells marud, and is lost. */
MARU_PUBLIC int maru_abort(maru_client *client, const maru_buffer *buffer);
MARU_PUBLIC int maru_abort_batch(maru_client *client, const maru_buffer *buffers, size_t n);

enum maru_content_type {
  MARU_CONTENT_KV_CACHE = 0,
  MARU_CONTENT_LORA_WEIGHT = 1,
  MARU_CONTENT_TEMPORARY = 2,
  MARU_CONTENT_ACTIVATION = 3,
  MARU_CONTENT_GRADIENT = 4
};

typedef struct maru_store_options {
  size_t size;
  maru_block parent;          /* a stored block, 0 for none */
  const maru_key *parent_key; /* or its key; at most one of the two */
  uint64_t ttl_ms;            /* 0: for ever. A block never outlives its parent's time */
  uint32_t priority;          /* for the eviction policy */
  uint32_t content_type;      /* enum maru_content_type; -EINVAL for what is none */
  /* An entry for each block of the call; NULL: no block has metadata. The library copies the bytes during the call. */
  const maru_metadata *metadata;
  uint64_t reserved[3];
} maru_store_options;

/* A block, pinned: neither evicted nor overwritten until maru_release. */
typedef struct maru_view {
  const void *data;
  uint64_t bytes;
  maru_block block;
  uint64_t pin; /* for maru_release */
} maru_view;

/* Makes the buffer visible under the key, in one step with the metadata that the options name. Returns 0 when it was stored and
 * 1 when a block was there already: that block stays, this buffer's pages are given back at once. Either way the buffer is used
 * up and ret_block (may be NULL) is the block under the key. By the time the call returns it may be gone again, deleted,
 * evicted or cleared. A block that is there already needs no parent: only a new block fails when the options' parent is gone.
 * options may be NULL: a root. A tenant with a hard limit stores from a credit that marud grants in advance; when that is used
 * up, marud is asked, which may block for timeout_ms. Tenants without one ask only where the registry is full at the key, which
 * it is for about one block in 50,000 of a full pool.
 * Errors (the buffer stays the caller's):
 *   -EDQUOT    the tenant is at its hard limit: delete blocks of the tenant, or wait until marud evicts some
 *   -EUSERS    the tenant has a hard limit, and the pool has no place to count its bytes (tenants_max in marud.toml)
 *   -EPERM     the pool takes only tenants that its administrator has listed
 *   -ENOTCONN, -ETIMEDOUT, -ESTALE  the call needed credit, or room in the registry, from marud, and marud did not answer
 *   -ENOLINK   the parent is gone: store the parent again first, or store this block as a root
 *   -EXFULL    the registry is full at this key and marud may evict no block there, or no cell is free for a key this long
 *   -ENOBUFS   every pin slot is taken
 *   -EAGAIN    an expired block with children is in the way, or marud is counting the bytes of the tenant: try later
 *   -E2BIG     the metadata has more than MARU_METADATA_BYTES_MAX bytes
 *   -EMSGSIZE  the metadata does not fit behind the payload in the buffer's pages: allocate with maru_alloc_with_metadata()
 *   -EOPNOTSUPP  the pool holds no metadata, since a marud from before metadata formatted it (maru_geometry): store without
 *   -EHWPOISON the buffer lies in bad memory, of which the library tells marud; the buffer is lost
 *   -EINVAL    an argument is invalid, or the buffer belongs to another client */
MARU_PUBLIC int maru_store(maru_client *client, const maru_key *key, const maru_buffer *buffer,
                           const maru_store_options *options, maru_block *ret_block);

/* maru_store for a caller that goes on reading the buffer's memory. Returns 0 when it was stored: ret_view is the block, pinned
 * without a gap since it became visible; release it when the program does not use the memory any more. Returns 1 when a block
 * was there already: the buffer stays the caller's; abort it when the program does not use the memory any more. *ret_view is
 * then a view of nothing. Errors: of maru_store. */
MARU_PUBLIC int maru_store_pinned(maru_client *client, const maru_key *key, const maru_buffer *buffer,
                                  const maru_store_options *options, maru_view *ret_view);

/* maru_store for n buffers under keys that need not know of each other, each as if it were stored alone, in their order. The
 * options hold for all of them, but options->metadata has n entries, one for each buffer. ret_results (n entries) receives the
 * result of maru_store for each: 0 it was stored, 1 a block was there already, also a block of this very call. Either way the
 * buffer is used up. Or its error: the buffer stays the caller's. ret_blocks (n entries, may be NULL) receives the blocks under
 * the keys, 0 where there was an error. If marud does not answer a request for one block, the library does not ask for the
 * others: the call blocks for at most timeout_ms. Returns how many are new. Errors (nothing was stored, all buffers stay the
 * caller's): -EROFS the client only reads; -EINVAL, also when an entry is not a key. */
MARU_PUBLIC int maru_store_batch(maru_client *client, const maru_key *keys, const maru_buffer *buffers, size_t n,
                                 const maru_store_options *options, maru_block *ret_blocks, int32_t *ret_results);

/* maru_alloc_with_metadata, memcpy, maru_store; nothing is allocated when the key is present, or when the parent is gone.
 * Errors: of both. */
MARU_PUBLIC int maru_store_copy(maru_client *client, const maru_key *key, const void *data, uint64_t bytes,
                                const maru_store_options *options, maru_block *ret_block);

/* The same for n keys: the bytes[i] bytes at data[i] under keys[i]. Options, ret_blocks and the returned value are as in
 * maru_store_batch. The library first computes the missing pages of all blocks, asks for them in one request for each tenant
 * and number of pages, and takes them together. If marud cannot give all of them now, the first blocks are stored. If they are
 * more than the whole pool holds, none is stored. ret_results (n entries, may be NULL) receives the result of maru_store_copy
 * for each. Errors (nothing was stored): of maru_store_batch. */
MARU_PUBLIC int maru_store_copy_batch(maru_client *client, const maru_key *keys, const void *const *data,
                                      const uint64_t *bytes, size_t n, const maru_store_options *options,
                                      maru_block *ret_blocks, int32_t *ret_results);

/* Stores n buffers as a chain: the first under options->parent (or as a root), each further block under the block before, each
 * with its entry of options->metadata. Where a block is there already, the chain goes on below it.
 *   ret_blocks  n entries, may be NULL: the blocks
 *   ret_stored  may be NULL: how many blocks were new, also on an error
 *   ret_done    may be NULL: how many buffers are used up, also on an error
 * On an error the buffers before the failing one are used up, and the others stay the caller's. Errors: of maru_store. */
MARU_PUBLIC int maru_store_chain(maru_client *client, const maru_key *keys, const maru_buffer *buffers, size_t n,
                                 const maru_store_options *options, maru_block *ret_blocks, size_t *ret_stored,
                                 size_t *ret_done);

/* Blocks that requests of this client evicted (also requests that ended in -ENOSPC), oldest first, each once. Keeps the last
 * 4096; maru_statistics counts the lost entries. Errors: -ENOENT no more. */
MARU_PUBLIC int maru_next_evicted(maru_client *client, maru_key_copy *ret_key);

/* -- finding and reading --------------------------------------------------------------------------------------------- */

/* 1 present, 0 absent. Compares 64 bits of the key's digest, and does not hold the block. A block whose time to live is over
 * stays present until marud removes it, some milliseconds later if marud runs. maru_retrieve gives the proof.
 * Errors: -ESHUTDOWN; -EINVAL. */
MARU_PUBLIC int maru_exists(maru_client *client, const maru_key *key);

/* ret_present: n bytes, 1 or 0 each. Returns how many are present. Errors: -ESHUTDOWN; -EINVAL, also when an entry is not a
 * key; some of ret_present is written then. */
MARU_PUBLIC int maru_exists_batch(maru_client *client, const maru_key *keys, size_t n, uint8_t *ret_present);

/* The same for n keys in rows of one array. It is faster, since the library reads the keys in place. Errors: of
 * maru_exists_batch. */
MARU_PUBLIC int maru_exists_rows(maru_client *client, const maru_key_rows *rows, size_t n, uint8_t *ret_present);

/* Finds and pins a block. ret_view must be released. Errors: -ENOENT absent; -ENOBUFS every pin slot is taken; -EIO the
 * payload does not match its checksum (the block is deleted, unless it has children or this client only reads); -EHWPOISON
 * its memory is bad, where maru_handle_memory_errors() was called; -ESHUTDOWN; -EINVAL. */
MARU_PUBLIC int maru_retrieve(maru_client *client, const maru_key *key, maru_view *ret_view);

/* The same for n keys. Absent keys get a view with data NULL and block 0, which need not be released but may. Its bytes are 0,
 * or EIO or EHWPOISON where a block was there and could not be read. Returns how many were found. On an error nothing is
 * pinned, and the views say so. */
MARU_PUBLIC int maru_retrieve_batch(maru_client *client, const maru_key *keys, size_t n, maru_view *ret_views);

/* As maru_retrieve, but neither maps nor verifies the payload: ret_view->data is NULL. */
MARU_PUBLIC int maru_pin(maru_client *client, const maru_key *key, maru_view *ret_view);

/* The same for n keys. Absent keys get a view of nothing, with block 0, which need not be released but may. Returns how many
 * were found. On an error nothing is pinned, and the views say so. */
MARU_PUBLIC int maru_pin_batch(maru_client *client, const maru_key *keys, size_t n, maru_view *ret_views);

/* As maru_pin, by block. Errors: -ENOENT the block is gone; -ENOBUFS; -EINVAL. */
MARU_PUBLIC int maru_pin_block(maru_client *client, maru_block block, maru_view *ret_view);

/* As maru_retrieve, by block, and this is no use of the block: the pool's policy does not hear of it, and no counter of hits
 * rises. For programs that copy blocks elsewhere. An expired block is found until marud has taken it away. Errors: -ENOENT the
 * block is gone; -ENOBUFS, -EIO, -EHWPOISON, -ESHUTDOWN as of maru_retrieve; -EINVAL. */
MARU_PUBLIC int maru_peek_block(maru_client *client, maru_block block, maru_view *ret_view);

/* The metadata of a block that the caller holds. The view may come from maru_retrieve, maru_peek_block, maru_pin,
 * maru_pin_block, maru_store_pinned or maru_resolve. The bytes lie in the pool behind the payload, at an address that is a
 * multiple of 64. They may be read for as long as the view is held. The call reads no word of the pool that finding the block
 * has not read. Where the pool has checksums, maru_retrieve, maru_peek_block and maru_resolve have verified the bytes.
 * ret_metadata: data NULL and bytes 0 where the block has none. Errors: -ENOENT the block is gone, because the caller did not
 * hold it; -EBADMSG its line is damaged (run marudctl check); -EHWPOISON its memory is bad; -EINVAL, also a view of nothing. */
MARU_PUBLIC int maru_view_metadata(maru_client *client, const maru_view *view, maru_metadata *ret_metadata);

/* The pool's facts about a block. */
typedef struct maru_block_info {
  size_t size;             /* set by the caller to sizeof(maru_block_info) */
  uint64_t bytes;          /* of the payload */
  uint32_t metadata_bytes; /* 0: none */
  uint32_t depth;          /* blocks above it; 0: a root */
  maru_block parent;       /* 0: a root */
  uint64_t tenant;         /* as in maru_key, 0 for none */
  uint32_t priority;
  uint32_t content_type; /* enum maru_content_type */
  uint64_t stored_ms;    /* when it was stored, in milliseconds of the Unix clock */
  uint64_t expires_ms;   /* when its time to live ends, likewise; 0: never */
} maru_block_info;

/* Fills ret_info, and ret_key (may be NULL) with the key, of a block that the caller has pinned or holds by a match. For a
 * block that the caller does not hold, the call gives its facts at one moment of the call, or says that it is gone. Errors:
 * -ENOENT the block is gone; -EHWPOISON its memory went bad; -EBADMSG its key is damaged (run marudctl check); -EINVAL, also a
 * size that is unknown. */
MARU_PUBLIC int maru_get_block_info(maru_client *client, maru_block block, maru_block_info *ret_info,
                                    maru_key_copy *ret_key);

/* Ends the pin of a view from maru_retrieve, maru_pin or maru_peek_block; its data must not be read any more. Errors: -EINVAL
 * not pinned by this view. A second release is such an error; but while this client has another pin of the same block, it
 * would end that pin. */
MARU_PUBLIC int maru_release(maru_client *client, const maru_view *view);
MARU_PUBLIC int maru_unpin(maru_client *client, const maru_view *view);
MARU_PUBLIC int maru_release_batch(maru_client *client, const maru_view *views, size_t n);

/* The result of maru_match_prefix, with the pins that hold it. */
typedef struct maru_match {
  size_t blocks;      /* leading keys that are present */
  maru_block deepest; /* of them, 0 when blocks is 0; the parent for what is stored next */
  uint64_t pin;
  void *pins; /* the library's, when the blocks are not one chain */
} maru_match;

/* How many of the leading keys are present, all held until maru_release_match. Keys stored as a chain (each block under the
 * block before) are found by search and held by one pin; others are walked and pinned each. Errors: -ENOBUFS every pin slot is
 * taken; -ESHUTDOWN; -EINVAL; -ENOMEM. */
MARU_PUBLIC int maru_match_prefix(maru_client *client, const maru_key *keys, size_t n, maru_match *ret_match);

/* Where the blocks of a match are: views of the first n keys given to maru_match_prefix, n at most match->blocks. The views
 * live as long as the match and are not released themselves (their pin is 0). Only blocks that the match holds get a view;
 * for fewer keys than the match has blocks the library looks at each block between. Errors: -ENOENT a block was lost to bad
 * memory, or the keys are others; -EIO the payload of a block does not match its checksum; -EHWPOISON its memory is bad;
 * -ESHUTDOWN; -EINVAL, also where the keys are others. */
MARU_PUBLIC int maru_resolve(maru_client *client, const maru_match *match, const maru_key *keys, size_t n,
                             maru_view *ret_views);

/* Errors: -EINVAL not held. */
MARU_PUBLIC int maru_release_match(maru_client *client, maru_match *match);

/* -- deleting -------------------------------------------------------------------------------------------------------- */

/* Removes a block of the pool, also a block of another client. The key is gone at once, the memory with the last pin.
 * Errors: -ENOENT absent; -ENOTEMPTY it has children; -EROFS the client only reads; -ESHUTDOWN; -EINVAL. */
MARU_PUBLIC int maru_delete(maru_client *client, const maru_key *key);

/* The same for n keys, in order. ret_results (n entries, may be NULL) receives 0 or the error of each. Returns how many
 * were deleted. Errors (nothing was deleted): -EROFS the client only reads; -EINVAL. */
MARU_PUBLIC int maru_delete_batch(maru_client *client, const maru_key *keys, size_t n, int32_t *ret_results);

enum maru_delete_flags {
  MARU_DELETE_UNPINNED = 1u << 0 /* leave the block alone where a client has it pinned, this client included */
};

/* Removes this life of a block. A block that was stored later under the same key stays. Use this call for a block that the
 * program has held, when its key may have another block by now.
 *   block  from maru_store, maru_retrieve and the like
 *   flags  enum maru_delete_flags. A pin that begins during the call does not stop it; its holder reads on.
 * With MARU_DELETE_UNPINNED the call reads a line of each lane. Errors: -ENOENT this life is gone; -ENOTEMPTY the block has
 * children: delete them first; -EBUSY the block is pinned; -EROFS the client only reads; -ESHUTDOWN; -EINVAL the number is no
 * block of this pool, or a flag is unknown. */
MARU_PUBLIC int maru_delete_block(maru_client *client, maru_block block, uint32_t flags);

/* Asks marud to remove a block and everything below it, leaves first. Pinned blocks and their ancestors stay. Blocks for at
 * most timeout_ms. ret_deleted (may be NULL): how many blocks went, also with -EBUSY. Errors: -ENOENT; -EBUSY something
 * stayed; -EAGAIN the tree of a call that timed out is not done; -ENOTCONN, -ETIMEDOUT, -ESTALE as from maru_alloc; -EROFS the
 * client only reads; -ESHUTDOWN; -EINVAL. */
MARU_PUBLIC int maru_delete_tree(maru_client *client, const maru_key *key, uint64_t *ret_deleted);

/* -- copies ---------------------------------------------------------------------------------------------------------- */

/* Tells marud that copies of these blocks are outside the pool, as in a tier. It is a hint: where the pool's policy finds
 * blocks equally cold, marud evicts those with a copy first, as far as it looks. The hint ends with this life of the block,
 * and with marud.
 *   blocks  n of them, 2^20 at most; NULL if n is 0
 * Returns how many of them marud has noted. It leaves out blocks that have gone, those in regions of other hosts, and those
 * that were stored some milliseconds ago, which it has not met yet. Any thread. Waits for marud's answers, each for at most
 * timeout_ms: one for each 1024 blocks. Errors (some of the blocks may be noted): -EOPNOTSUPP this marud is an older one;
 * -EROFS the client only reads; -ENOTCONN, -ETIMEDOUT, -ESTALE as from maru_alloc; -ESHUTDOWN; -EINVAL. */
MARU_PUBLIC int maru_report_copies(maru_client *client, const maru_block *blocks, size_t n);

/* -- counting -------------------------------------------------------------------------------------------------------- */

typedef struct maru_block_counts {
  size_t size;         /* set by the caller to sizeof(maru_block_counts) */
  uint64_t blocks;     /* that can be found now */
  uint64_t held;       /* of them, those that a client pins, and their ancestors: nothing evicts them */
  uint64_t used_pages; /* of these blocks */
  uint64_t free_pages; /* that hold nothing, whether a client rents their region or not */
  uint64_t reserved[3];
} maru_block_counts;

/* Counts the blocks and the free pages of the whole pool, of all clients. The call reads a line of each page in a region that
 * was used, and the pins of all lanes: some milliseconds for a million pages. Other clients go on meanwhile, so the numbers are
 * of no single moment. Errors: -ESHUTDOWN; -EINVAL size is unknown; -ENOMEM. */
MARU_PUBLIC int maru_count_blocks(maru_client *client, maru_block_counts *ret_counts);

/* -- memory errors -------------------------------------------------------------------------------------------------- */

enum maru_memory_error_flags {
  MARU_MEMORY_ERRORS_VIEWS = 1u << 0 /* views as well: what cannot be read is replaced by zeros */
};

/* Asks the library to handle SIGBUS in memory of its pools. Without this call a memory error ends the process, as the kernel
 * has it, since the signal belongs to the program. With it the library's own reading and copying (maru_store_copy, and
 * checksums in maru_store, maru_retrieve, maru_resolve) returns -EHWPOISON instead, and tells marud of the page. Where there is
 * no memory at all, as in a file on a full file system, maru_store_copy returns -ENOSPC. With MARU_MEMORY_ERRORS_VIEWS a
 * program that reads a view gets zeros for bad memory; maru_view_error() tells so afterwards. The handler passes every SIGBUS
 * that is not the library's on to the earlier handler; a program that installs its own later calls ours, or goes without. May
 * be called again, to add flags. Errors: -EINVAL. */
MARU_PUBLIC int maru_handle_memory_errors(uint32_t flags);

/* Whether memory of this view, its metadata included, is known to have gone bad while this client had it. Then bytes that the
 * program read of it may be zeros. Ask after reading and before releasing. Returns 0 if nothing is known. Errors: -EHWPOISON;
 * -EINVAL. */
MARU_PUBLIC int maru_view_error(maru_client *client, const maru_view *view);

/* -- other ----------------------------------------------------------------------------------------------------------- */

/* "0.1.0" */
MARU_PUBLIC const char *maru_version(void);

#ifdef __cplusplus
}
#endif

#endif
