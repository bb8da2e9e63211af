/*
 * libmaru-adapters: LoRA adapters in the pool that also holds KV cache.
 *
 * An adapter is a folder with PEFT's adapter_config.json and adapter_model.safetensors. A program loads it under a name, and
 * acquires it when a request needs it. The weights lie in the pool as blocks of the type LORA_WEIGHT: once for all processes of
 * the host, read in place. An adapter has up to three forms:
 *
 *   HOT   the weights as the file has them, bit for bit, in pages of the pool
 *   WARM  8-bit integers with a scale for each row, in pages of the pool; about half of the bytes
 *   COLD  the file alone; or blocks in a tier of maru-tierd
 *
 * A register has the names, the resident forms, and how often each adapter was used of late. It is a file in memory that all
 * processes of a user share. From it the library decides which form an adapter has: maru_adapters_rebalance(). The pool stays a
 * cache: marud may evict a form that no process holds, and the next use reads the file again.
 *
 * Beside the weights the library has a batched matrix-vector product over them (maru_bgmv), and a former of batches that mix
 * adapters (maru_batch_former).
 *
 * Results: 0 is success, a negative value is -errno; any call may fail with -ENOMEM. The library writes parameters named ret_
 * only on success, and copies its arguments: no argument must outlive its call. Each `reason` may be NULL; on failure it has
 * the found value, the expected value, and often a remedy. Any thread may call any function. A child of fork() opens for
 * itself.
 *
 * Structures that begin with `size` grow in later versions: set size = sizeof(the structure) and zero the rest.
 */
#ifndef MARU_ADAPTERS_H
#define MARU_ADAPTERS_H

#include <maru/maru.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MARU_ADAPTERS_PUBLIC __attribute__((visibility("default")))
#else
#define MARU_ADAPTERS_PUBLIC
#endif

#define MARU_ADAPTERS_NAME_BYTES_MAX 127
#define MARU_ADAPTERS_FOLDER_BYTES_MAX 255
#define MARU_ADAPTERS_REASON_BYTES 384
#define MARU_ADAPTERS_ENTRIES_MAX (1u << 20)
#define MARU_ADAPTERS_BASE_BYTES_MAX 255

/* One process's use of a register and of a pool. */
typedef struct maru_adapters maru_adapters;

/* An adapter that the process holds: its weights stay where they are until maru_adapters_release(). */
typedef struct maru_adapter maru_adapter;

/* Why a call failed, as a sentence that ends with a zero. */
typedef struct maru_adapters_reason {
  char text[MARU_ADAPTERS_REASON_BYTES];
} maru_adapters_reason;

enum maru_adapter_tier { MARU_ADAPTER_COLD = 0, MARU_ADAPTER_WARM = 1, MARU_ADAPTER_HOT = 2 };

/* The type of a weight. */
enum maru_adapter_dtype {
  MARU_ADAPTER_FLOAT32 = 1,
  MARU_ADAPTER_FLOAT16 = 2,
  MARU_ADAPTER_BFLOAT16 = 3,
  MARU_ADAPTER_INT8 = 4 /* with a scale for each row */
};

/* -- opening --------------------------------------------------------------------------------------------------------- */

/* A linear module of the base model, as the last part of its path names it. */
typedef struct maru_adapters_module {
  const char *name; /* "q_proj" */
  uint64_t in_features;
  uint64_t out_features;
} maru_adapters_module;

typedef struct maru_adapters_options {
  size_t size;
  const char *register_path; /* NULL: maru-adapters.UID.POOL in /dev/shm, POOL being the pool's uuid */
  /* Folders of adapters are below it, and so is all that their links name. NULL: a folder may lie anywhere, and its links must
   * stay inside of it. */
  const char *root;
  const char *base_model; /* base_model_name_or_path that adapters must have. NULL or "": any */
  /* 16 bytes that name the base model's weights, as the caller computes them: all processes of the register must give the
   * same, or none. NULL: none. */
  const void *base_fingerprint;
  /* Of the base model: an adapter may have these alone, with these sizes. May be NULL. */
  const maru_adapters_module *modules;
  size_t modules_count; /* 0: any modules */
  /* Adapters in the register; 0: 16384. At most MARU_ADAPTERS_ENTRIES_MAX. About 650 bytes each. */
  uint32_t entries_max;
  uint32_t window_ms;         /* over which uses count; 0: 60000 */
  uint32_t hot_enter_uses;    /* in the window, to become HOT; 0: 10 */
  uint32_t hot_leave_uses;    /* with fewer an adapter stops being HOT; 0: half of hot_enter_uses */
  uint32_t stay_ms;           /* rules leave a form alone for so long after it came; 0: 30000 */
  uint32_t hot_adapters_max;  /* 0: 100 */
  uint32_t warm_adapters_max; /* 0: 1000 */
  uint64_t hot_bytes_max;     /* of pages; 0: a quarter of the pool */
  uint64_t warm_bytes_max;    /* likewise */
  uint64_t part_bytes; /* an adapter lies in blocks of at most so many bytes; 0: a page of the pool, 256 KiB at least */
  uint32_t timeout_ms; /* to wait for another process that loads the same adapter; 0: 5000 */
  uint32_t reserved0;
  uint64_t (*now_ms)(void *context); /* the clock of the rules, in milliseconds. NULL: the machine's monotonic one */
  void *now_context;
  /* Of a maru-tierd, whose tiers may have forms that marud has evicted: the library asks them before it reads the file. NULL:
   * $MARU_TIER_SOCKET, and no tier where that is not set; "": no tier. */
  const char *tier_socket;
  uint64_t reserved[3];
} maru_adapters_options;

/* Opens the register, and makes it where there is none. The first process decides entries_max, the budgets, the rules, the base
 * model and part_bytes. Later processes get the register's values; their base_model and base_fingerprint must agree.
 *   client   stays the caller's, and must outlive the result
 *   options  may be NULL
 * Forms that a dead process left unfinished are removed first. Errors: -EINVAL an option; -EACCES the register belongs to
 * another user; -EBADMSG the file is no register, or of another version: remove it; -EXDEV another base model or pool; -ENOSPC
 * the file system has no room for the register; -ETIMEDOUT another process has it locked for long. */
MARU_ADAPTERS_PUBLIC int maru_adapters_open(maru_client *client, const maru_adapters_options *options,
                                            maru_adapters **ret_adapters, maru_adapters_reason *reason);

/* Releases the process's holds, and frees. The register stays, with its adapters. NULL is allowed. */
MARU_ADAPTERS_PUBLIC void maru_adapters_close(maru_adapters *adapters);

/* -- loading --------------------------------------------------------------------------------------------------------- */

enum maru_adapters_load_flags {
  MARU_ADAPTERS_LOAD_LAZY = 1u << 0 /* read the headers alone; the weights are checked when they are first needed */
};

/* Checks an adapter, and enters it into the register. It is COLD until it is acquired or prefetched.
 *   name    1 to MARU_ADAPTERS_NAME_BYTES_MAX bytes, no control characters
 *   folder  with adapter_config.json and adapter_model.safetensors; relative to the root where there is one
 *   flags   enum maru_adapters_load_flags
 * Entering the same folder with the same files under the same name again changes nothing, and succeeds. Enters the kernel, and
 * reads the files. Errors: -EEXIST the name belongs to another adapter; -EBADMSG a file is damaged, contradicts itself, or has
 * weights that are no numbers; -EOPNOTSUPP the library does not know this kind of adapter; -EXDEV the adapter is for another
 * base model, or a path leads out of the folder; -ENOENT no such file; -ENOSPC the register is full, or its file system is;
 * -EFBIG a row of the adapter is longer than part_bytes; -ETIMEDOUT another process has the register locked; -EINVAL. */
MARU_ADAPTERS_PUBLIC int maru_adapters_load(maru_adapters *adapters, const char *name, const char *folder,
                                            uint32_t flags, maru_adapters_reason *reason);

/* Takes an adapter out of the register, and its weights out of the pool. Errors: -ENOENT; -EBUSY a process holds it, or
 * loads it now; -ETIMEDOUT. */
MARU_ADAPTERS_PUBLIC int maru_adapters_unload(maru_adapters *adapters, const char *name, maru_adapters_reason *reason);

/* -- using ----------------------------------------------------------------------------------------------------------- */

enum maru_adapter_want {
  MARU_ADAPTER_ANY = 0,  /* the form that is resident; if none, the one that the rules say */
  MARU_ADAPTER_EXACT = 1 /* HOT: the weights of the file, bit for bit */
};

/* Holds an adapter, so that its weights stay, and counts a use. Where the wanted form is resident, and not evicted by marud,
 * the call neither copies weights nor enters the kernel. Otherwise it reads the file, makes the form in new pages, and
 * publishes it when it is whole; other processes that want the same form wait for that, timeout_ms at most. If a budget is
 * used up, the call removes forms that no process holds, the least used first; it looks at each resident form once.
 *   want  enum maru_adapter_want
 * Errors: -ENOENT no such adapter; -EDQUOT the budget is used up, and processes hold all of it; -ENOSPC the pool has no room,
 * or marud evicts the form again and again before it is held; -ESTALE the file has changed: unload the adapter, and load it
 * again; -EBADMSG the weights are damaged; -ETIMEDOUT another process did not finish; and the errors of reading files. */
MARU_ADAPTERS_PUBLIC int maru_adapters_acquire(maru_adapters *adapters, const char *name, uint32_t want,
                                               maru_adapter **ret_adapter, maru_adapters_reason *reason);

/* Ends the hold. NULL is allowed. */
MARU_ADAPTERS_PUBLIC void maru_adapters_release(maru_adapter *adapter);

/* Makes the named adapters resident, as maru_adapters_acquire would, and holds none: for adapters that waiting requests name.
 * ret_results (n entries, may be NULL) receives 0 or the error of each. Returns how many are resident. */
MARU_ADAPTERS_PUBLIC int maru_adapters_prefetch(maru_adapters *adapters, const char *const *names, size_t n,
                                                uint32_t want, int32_t *ret_results);

/* Moves adapters between forms as the rules say, at most `moves_max` of them: call it every few seconds, from one process or
 * several. A HOT adapter with little use becomes WARM, an idle adapter becomes COLD, and a WARM adapter with more use becomes
 * HOT. A form that a process holds stays. Returns how many moved. Errors: -ETIMEDOUT. */
MARU_ADAPTERS_PUBLIC int maru_adapters_rebalance(maru_adapters *adapters, uint32_t moves_max);

/* -- looking --------------------------------------------------------------------------------------------------------- */

typedef struct maru_adapter_info {
  size_t size; /* set by the caller to sizeof(maru_adapter_info) */
  char name[MARU_ADAPTERS_NAME_BYTES_MAX + 1];
  char folder[MARU_ADAPTERS_FOLDER_BYTES_MAX + 1];
  uint32_t tier; /* enum maru_adapter_tier: the best form that is resident. Of a held adapter: the form that is held */
  uint32_t rank; /* the largest of its modules */
  uint32_t modules; /* pairs of matrices */
  uint32_t dtype;   /* enum maru_adapter_dtype, of the file */
  double alpha;
  uint64_t file_bytes;
  uint64_t hot_bytes; /* of pages that the form takes, or would take */
  uint64_t warm_bytes;
  uint8_t checksum[16];           /* XXH3-128 of the sums of the tensors in the order of the file, each the XXH3-128 of
                                     a tensor's bytes; zeros until they were read once */
  uint32_t window_uses;           /* in the last window */
  uint32_t hot_parts, warm_parts; /* blocks of the form */
  uint32_t reserved0;
  uint64_t reserved[2];
} maru_adapter_info;

/* Errors: -ENOENT; -EINVAL size is unknown; -ETIMEDOUT. */
MARU_ADAPTERS_PUBLIC int maru_adapters_find(maru_adapters *adapters, const char *name, maru_adapter_info *ret_info);

/* The adapters of the register, one a call. *cursor: 0 at first; the call moves it. Errors: -ENOENT no more; -EINVAL size is
 * unknown; -ETIMEDOUT. */
MARU_ADAPTERS_PUBLIC int maru_adapters_next(maru_adapters *adapters, uint64_t *cursor, maru_adapter_info *ret_info);

/* Totals of all processes since the register was made, and the resident forms now. Errors of the call below: -EINVAL size is
 * unknown; -ETIMEDOUT. */
typedef struct maru_adapters_statistics {
  size_t size; /* set by the caller to sizeof(maru_adapters_statistics) */
  uint64_t adapters;
  uint64_t hot_adapters, warm_adapters;
  uint64_t hot_bytes, warm_bytes; /* of pages */
  uint64_t hot_bytes_max, warm_bytes_max;
  uint64_t hot_adapters_max, warm_adapters_max;
  uint64_t acquires_hot, acquires_warm, acquires_cold; /* by what was resident when the adapter was asked for */
  uint64_t loads, loaded_bytes; /* forms that were made from a file or a tier, and the bytes that were read for them */
  uint64_t promotions, demotions;
  uint64_t evicted;        /* forms that marud had taken when they were wanted */
  uint64_t waits;          /* for another process's load */
  uint64_t refusals;       /* because a budget was used up */
  uint64_t repairs;        /* forms that a dead process had left unfinished */
  uint64_t register_bytes; /* of the register's file, most of it without memory until it is used */
  uint64_t tier_loads;     /* of the loads, those from a tier */
  uint64_t reserved[3];
} maru_adapters_statistics;

MARU_ADAPTERS_PUBLIC int maru_adapters_get_statistics(maru_adapters *adapters,
                                                      maru_adapters_statistics *ret_statistics);

/* The facts of a held adapter. Errors: -ESTALE the adapter was unloaded meanwhile; -EINVAL size is unknown; -ETIMEDOUT. */
MARU_ADAPTERS_PUBLIC int maru_adapter_get_info(const maru_adapter *adapter, maru_adapter_info *ret_info);

/* The rows of a matrix, in the blocks of an adapter. A row lies in one block, and begins at a multiple of 64 bytes; the first
 * first_rows lie in parts[0] from first_offset on, then rows_per_part in each further part, from its start on. Behind the
 * elements of an INT8 row, at the next multiple of 4 bytes, comes its scale, a float. */
typedef struct maru_adapter_rows {
  const void *const *parts;
  uint64_t first_offset;
  uint64_t first_rows;
  uint64_t rows_per_part;
  uint64_t slot_bytes; /* from row to row */
  uint64_t rows;
  uint64_t columns;
  uint32_t dtype; /* enum maru_adapter_dtype */
  uint32_t reserved0;
} maru_adapter_rows;

/* The part of an adapter for one linear module: y += scaling * B (A x). */
typedef struct maru_adapter_module {
  size_t size;      /* set by the caller to sizeof(maru_adapter_module) */
  const char *name; /* the module's path in the base model: "model.layers.0.self_attn.q_proj" */
  uint64_t in_features, out_features;
  uint32_t rank;
  float scaling;
  maru_adapter_rows a;  /* A: rank rows of in_features */
  maru_adapter_rows bt; /* B, transposed: rank rows of out_features */
} maru_adapter_module;

/* How many modules the adapter has. Never fails. */
MARU_ADAPTERS_PUBLIC size_t maru_adapter_modules(const maru_adapter *adapter);

/* A module by its number, in the order of their names. Its pointers are valid while the adapter is held. Errors: -ENOENT no
 * such number; -EINVAL size is unknown. */
MARU_ADAPTERS_PUBLIC int maru_adapter_get_module(const maru_adapter *adapter, size_t number,
                                                 maru_adapter_module *ret_module);

enum maru_adapter_matrix { MARU_ADAPTER_A = 1, MARU_ADAPTER_B = 2 };

/* Copies a matrix into the caller's memory, in rows without gaps, as the file has it: A is [rank, in_features], B is
 * [out_features, rank].
 *   dtype  enum maru_adapter_dtype: FLOAT32, or the type of the held form (not INT8)
 *   bytes  exactly the size of the matrix
 * Errors: -ENOENT no such module; -EINVAL the bytes, the matrix or the dtype. */
MARU_ADAPTERS_PUBLIC int maru_adapter_copy(const maru_adapter *adapter, size_t number, uint32_t matrix, uint32_t dtype,
                                           void *ret_data, uint64_t bytes);

/* -- batched matrix-vector products ---------------------------------------------------------------------------------- */

/* Threads that compute. */
typedef struct maru_bgmv maru_bgmv;

enum maru_bgmv_instructions {
  MARU_BGMV_FASTEST = 0, /* that the processor has */
  MARU_BGMV_PLAIN = 1,
  MARU_BGMV_AVX2 = 2,
  MARU_BGMV_AVX512 = 3
};

/* One token of a request. */
typedef struct maru_bgmv_request {
  const maru_adapter_module *module; /* NULL: the base model, nothing is added */
  const float *x;                    /* in_features */
  float *y;                          /* out_features; no two requests share one */
} maru_bgmv_request;

/* threads: 1 to 256, with the caller's; 0: one for each processor that the process may use. instructions: enum
 * maru_bgmv_instructions. Errors: -EOPNOTSUPP the processor has them not; -EAGAIN a thread could not be started; -EINVAL. */
MARU_ADAPTERS_PUBLIC int maru_bgmv_create(uint32_t threads, uint32_t instructions, maru_bgmv **ret_bgmv);

/* No other thread may use it any more. NULL is allowed. */
MARU_ADAPTERS_PUBLIC void maru_bgmv_free(maru_bgmv *bgmv);

/* enum maru_bgmv_instructions: those in use. */
MARU_ADAPTERS_PUBLIC uint32_t maru_bgmv_uses(const maru_bgmv *bgmv);

/* y += scaling * B (A x) for each request, in floats of 32 bits. Requests that name the same module share the reading of its
 * weights in any order; the library knows equal modules by equal pointers. An INT8 weight counts as its integer times its row's
 * scale. The result differs from the same sums without rounding by at most 2^-23 * (in_features + rank + 4) times the sum of
 * the terms' magnitudes. One call at a time uses the threads; others wait. Errors: -EINVAL a module has no rows; nothing is
 * written then. */
MARU_ADAPTERS_PUBLIC int maru_bgmv_add(maru_bgmv *bgmv, const maru_bgmv_request *requests, size_t n);

/* -- forming batches ------------------------------------------------------------------------------------------------- */

/* Requests that wait. One thread at a time may use it. */
typedef struct maru_batch_former maru_batch_former;

enum maru_batch_policy {
  MARU_BATCH_FAIR = 0,   /* tenants in turn, by tokens served; requests that have waited long go first */
  MARU_BATCH_POPULAR = 1 /* the adapters with the most waiting requests first: others starve */
};

typedef struct maru_batch_options {
  size_t size;
  uint32_t policy;       /* enum maru_batch_policy */
  uint32_t requests_max; /* in a batch; 0: 256 */
  uint32_t adapters_max; /* distinct ones in a batch; 0: 32 */
  uint32_t ranks_max;    /* the sum of the ranks of a batch's distinct adapters; 0: 4096. One alone always fits */
  uint32_t old_ms;       /* a request that has waited for so long goes before all younger ones; 0: 1000 */
  uint32_t reserved0;
  uint64_t reserved[4];
} maru_batch_options;

typedef struct maru_batch_request {
  uint64_t id;      /* the caller's, of one waiting request at a time */
  uint64_t tenant;  /* the caller's number */
  uint64_t adapter; /* the caller's number; 0: the base model */
  uint32_t tokens;  /* what the request costs; 0 counts as 1 */
  uint32_t rank;    /* of the adapter */
  uint32_t tier;    /* enum maru_adapter_tier: of equals, resident ones go first */
  uint32_t reserved0;
} maru_batch_request;

/* options may be NULL. Errors: -EINVAL. */
MARU_ADAPTERS_PUBLIC int maru_batch_create(const maru_batch_options *options, maru_batch_former **ret_former);

/* NULL is allowed. */
MARU_ADAPTERS_PUBLIC void maru_batch_free(maru_batch_former *former);

/* The tenant's share of tokens: a tenant of weight 2 gets twice as many as a tenant of weight 1. Without this call each tenant
 * has weight 1. Errors: -EINVAL weight is not finite, or not above 0. */
MARU_ADAPTERS_PUBLIC int maru_batch_set_weight(maru_batch_former *former, uint64_t tenant, double weight);

/* Adds a request that begins to wait at now_ms. Errors: -EEXIST the id waits already; -EINVAL. */
MARU_ADAPTERS_PUBLIC int maru_batch_add(maru_batch_former *former, const maru_batch_request *request, uint64_t now_ms);

/* Takes a request back. Errors: -ENOENT it does not wait. */
MARU_ADAPTERS_PUBLIC int maru_batch_cancel(maru_batch_former *former, uint64_t id);

/* Forms a batch, and forgets its requests.
 *   ret_ids  room for n ids; the batch has no more
 * Returns how many requests the batch has, 0 when none waits. Errors: -EINVAL n is 0. */
MARU_ADAPTERS_PUBLIC int maru_batch_next(maru_batch_former *former, uint64_t now_ms, uint64_t *ret_ids, size_t n);

/* How many requests wait. */
MARU_ADAPTERS_PUBLIC size_t maru_batch_waiting(const maru_batch_former *former);

#ifdef __cplusplus
}
#endif

#endif
