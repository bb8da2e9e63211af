/*
 * libmaru-layout: where the elements of a KV cache lie in memory, and copies between two layouts of the same tokens.
 *
 * A layout describes the blocks of a KV cache, or of one rank's part of it. The library computes strides, addresses and sizes
 * from it, writes it as bytes and as JSON, and makes a fingerprint of it for keys. A re-slicing is a plan of copies: from the
 * layouts of the ranks that stored blocks to the layouts of the ranks that want them.
 *
 * The library has no part in libmaru, and needs nothing but the C and C++ runtime. Its functions neither block nor enter the
 * kernel, but the functions of re-slicing allocate memory. Any thread may call any function; a plan does not change, so several
 * threads may use a plan at the same time.
 *
 * Results: 0 is success, a negative value is -errno. The library writes parameters named ret_ only on success, and copies its
 * arguments: no argument must outlive its call. Each `reason` may be NULL; on failure it has the found value, the expected
 * value, and often a remedy.
 */
#ifndef MARU_LAYOUT_H
#define MARU_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MARU_LAYOUT_PUBLIC __attribute__((visibility("default")))
#else
#define MARU_LAYOUT_PUBLIC
#endif

/* How the parts of blocks follow each other, the slowest first. A part ("region") holds the elements of one block, one layer,
 * and either K or V. A storage is a piece of memory with an address of its own. */
enum maru_layout_kind {
  MARU_LAYOUT_CONTIGUOUS = 1,     /* one storage: blocks, layers, K and V. A block is one piece of memory */
  MARU_LAYOUT_SEPARATE_OUTER = 2, /* a storage for each layer: K and V, blocks. All K, then all V */
  MARU_LAYOUT_SEPARATE_BLOCK = 3, /* a storage for each layer: blocks, K and V */
  MARU_LAYOUT_SEPARATE = 4        /* either of the two above: a wish for maru_layout_choose_kind(), and in no layout */
};

/* How the elements of a region follow each other, the slowest first; the elements of a head always come last. */
enum maru_layout_order {
  MARU_LAYOUT_NHD = 1, /* tokens, heads */
  MARU_LAYOUT_HND = 2  /* heads, tokens */
};

/* The type of an element. The library never converts one; types of less than a byte count as bytes of several elements. */
enum maru_layout_dtype {
  MARU_LAYOUT_UINT8 = 1,
  MARU_LAYOUT_INT8 = 2,
  MARU_LAYOUT_FLOAT8_E4M3FN = 3,
  MARU_LAYOUT_FLOAT8_E5M2 = 4,
  MARU_LAYOUT_FLOAT16 = 5,
  MARU_LAYOUT_BFLOAT16 = 6,
  MARU_LAYOUT_FLOAT32 = 7,
  MARU_LAYOUT_FLOAT64 = 8
};

#define MARU_LAYOUT_BLOCKS_MAX (1ull << 40)
#define MARU_LAYOUT_LAYERS_MAX 65536u
#define MARU_LAYOUT_PAGE_TOKENS_MAX (1u << 20)
#define MARU_LAYOUT_HEADS_MAX 65536u
#define MARU_LAYOUT_HEAD_DIM_MAX (1u << 20)
#define MARU_LAYOUT_ALIGNMENT_MAX (1u << 30)
#define MARU_LAYOUT_STORAGE_BYTES_MAX ((1ull << 62) - 1) /* of one storage, and of one block */
#define MARU_LAYOUT_ENCODED_BYTES 128
#define MARU_LAYOUT_JSON_BYTES_MAX 1024 /* with the zero at the end */
#define MARU_LAYOUT_FINGERPRINT_BYTES 16
#define MARU_LAYOUT_REASON_BYTES 256

/* Why a call failed, as a sentence that ends with a zero. */
typedef struct maru_layout_reason {
  char text[MARU_LAYOUT_REASON_BYTES];
} maru_layout_reason;

/* The blocks of a KV cache, or the part of them that one rank of a split model has. */
typedef struct maru_layout {
  size_t size;          /* set by the caller to sizeof(maru_layout); zero what is not needed */
  uint32_t kind;        /* enum maru_layout_kind */
  uint32_t order;       /* enum maru_layout_order */
  uint32_t dtype;       /* enum maru_layout_dtype */
  uint32_t outer;       /* 2: K and V. 1: one tensor for both, as latent attention (MLA) has */
  uint64_t blocks;      /* 1 to MARU_LAYOUT_BLOCKS_MAX */
  uint64_t layers;      /* of this part; 1 to MARU_LAYOUT_LAYERS_MAX */
  uint64_t page_tokens; /* tokens of a block; 1 to MARU_LAYOUT_PAGE_TOKENS_MAX */
  uint64_t heads;     /* KV heads of this part; 1 to MARU_LAYOUT_HEADS_MAX. 1 where only the inner dimension is known */
  uint64_t head_dim;  /* elements of a head; 1 to MARU_LAYOUT_HEAD_DIM_MAX. The inner dimension is heads * head_dim */
  uint64_t alignment; /* bytes; a power of two up to MARU_LAYOUT_ALIGNMENT_MAX. 0 is 1. See maru_layout_sizes */
  uint64_t heads_total;  /* KV heads of the model; 0: this part has all */
  uint64_t first_head;   /* of this part, among those of the model */
  uint64_t layers_total; /* layers of the model; 0: this part has all */
  uint64_t first_layer;  /* of this part, among those of the model */
  uint64_t reserved[2];
} maru_layout;

/* The numbers that follow from a layout, in bytes unless the comment says otherwise. An address is
 *   base + base_offset + block * block_stride + layer * layer_stride + outer * outer_stride
 * where base_offset brings the base to a multiple of the alignment: maru_layout_base_offset(). */
typedef struct maru_layout_sizes {
  uint64_t element_bytes;
  uint64_t region_bytes;     /* page_tokens * heads * head_dim elements */
  uint64_t outer_stride;     /* from K to V */
  uint64_t layer_stride;     /* 0 where each layer has a storage */
  uint64_t block_stride;     /* aligned: all of a block (contiguous), of a layer (separate block) or of a region */
  uint64_t block_bytes;      /* all elements of one block: layers * outer * region_bytes. Without padding */
  uint64_t storages;         /* how many; 1, or as many as layers */
  uint64_t storage_bytes;    /* of each. A contiguous layout has no padding behind its last block */
  uint64_t allocation_bytes; /* of each, wherever it begins: storage_bytes + alignment - 1 */
  uint64_t reserved[3];
} maru_layout_sizes;

/* A piece of a storage. The offset counts from the base, brought to a multiple of the alignment. */
typedef struct maru_layout_part {
  uint64_t storage; /* index; the layer where each has a storage, otherwise 0 */
  uint64_t offset;  /* bytes */
  uint64_t bytes;
} maru_layout_part;

/* One element; each index counts from 0 within the layout, so that layer 0 is the model's layer first_layer. */
typedef struct maru_layout_element {
  uint64_t block;
  uint64_t layer;
  uint64_t outer;
  uint64_t token;
  uint64_t head;
  uint64_t dim;
} maru_layout_element;

/* Checks a layout, and computes its sizes.
 *   reason         see above; in all functions
 * Errors: -EINVAL a field is out of range, the structure has another size, or the part is outside of the model; -EOVERFLOW a
 * storage or a block would have more than MARU_LAYOUT_STORAGE_BYTES_MAX bytes. */
MARU_LAYOUT_PUBLIC int maru_layout_measure(const maru_layout *layout, maru_layout_sizes *ret_sizes,
                                           maru_layout_reason *reason);

/* How many bytes follow a base until a multiple of the alignment.
 *   base           an address, or an offset in a mapping that begins at a page
 *   alignment      bytes, as in a layout
 * Errors: -EINVAL the alignment is no power of two, or too large; -EOVERFLOW no such multiple follows the base. */
MARU_LAYOUT_PUBLIC int maru_layout_base_offset(uint64_t base, uint64_t alignment, uint64_t *ret_bytes,
                                               maru_layout_reason *reason);

/* Where a region lies.
 *   block, layer   count from 0 within the layout
 *   outer          0: K, 1: V
 * Errors: as maru_layout_measure(); -ERANGE there is no such block, layer or outer index. */
MARU_LAYOUT_PUBLIC int maru_layout_locate(const maru_layout *layout, uint64_t block, uint64_t layer, uint64_t outer,
                                          maru_layout_part *ret_part, maru_layout_reason *reason);

/* Where one element lies.
 * Errors: as maru_layout_measure(); -ERANGE an index of the element is too large. */
MARU_LAYOUT_PUBLIC int maru_layout_locate_element(const maru_layout *layout, const maru_layout_element *element,
                                                  maru_layout_part *ret_part, maru_layout_reason *reason);

/* All of one block, in as few pieces as possible, in the order layers, K and V. A contiguous block is one piece; separate block
 * has a piece for each layer, and separate outer a piece for each layer's K and V. Together they have block_bytes bytes.
 *   ret_parts, room   as many; 2 * layers are always enough
 *   ret_parts_count   how many pieces there are
 * Errors: as maru_layout_measure(); -ERANGE there is no such block; -ENOSPC there are more pieces than room. */
MARU_LAYOUT_PUBLIC int maru_layout_block_parts(const maru_layout *layout, uint64_t block, maru_layout_part *ret_parts,
                                               size_t room, size_t *ret_parts_count, maru_layout_reason *reason);

/* The part of a layout that one rank has. The heads are split over the tensor ranks: evenly, or, where there are more ranks
 * than heads, each head goes to as many neighbouring ranks. The layers are split evenly over the pipeline ranks. A layout whose
 * layers are split otherwise sets first_layer, layers and layers_total itself.
 *   whole          a layout with all heads and layers of the model
 *   tensor_rank    0 to tensor_ranks - 1
 *   pipeline_rank  0 to pipeline_ranks - 1
 * Errors: as maru_layout_measure(); -EINVAL `whole` is a part, there is no such rank, or the split is uneven. */
MARU_LAYOUT_PUBLIC int maru_layout_slice(const maru_layout *whole, uint64_t tensor_ranks, uint64_t tensor_rank,
                                         uint64_t pipeline_ranks, uint64_t pipeline_rank, maru_layout *ret_layout,
                                         maru_layout_reason *reason);

/* The kind that a name means. Case, '_' and '-' do not count.
 *   text           ends with a zero: "fully_contiguous" or "contiguous", "layer_separate" (MARU_LAYOUT_SEPARATE),
 *                  "layer_separate_outer_contiguous" or "separate_outer", "layer_separate_block_contiguous" or "separate_block"
 * Errors: -EINVAL it is none of these. */
MARU_LAYOUT_PUBLIC int maru_layout_kind_from_text(const char *text, uint32_t *ret_kind, maru_layout_reason *reason);

/* The kind of a layout, from a wish and from the shape of an engine's tensors. With MARU_LAYOUT_SEPARATE the shape decides: its
 * first extent has room for the blocks, or else its second has. Without a shape, K and V come first. A wish for a certain order
 * is granted unless the shape contradicts it. Both orders have the same number of bytes, and the wrong order would swap K and V
 * without a word. With outer 1 the two orders are the same.
 *   wish           enum maru_layout_kind
 *   shape          extents of one layer's tensor; may be NULL with 0 dimensions. MARU_LAYOUT_CONTIGUOUS does not look at it
 *   blocks, outer  as in a layout
 * Errors: -EINVAL the wish is no kind, blocks or outer is out of range, the shape has no room for the blocks, or contradicts
 * the wish; -ENOTUNIQ blocks is 1 or 2, so that K and V look like blocks in the shape: wish for a certain order. */
MARU_LAYOUT_PUBLIC int maru_layout_choose_kind(uint32_t wish, const uint64_t *shape, size_t dimensions, uint64_t blocks,
                                               uint32_t outer, uint32_t *ret_kind, maru_layout_reason *reason);

/* A layout as bytes, the same on every machine: a magic, a version, the fields, and a checksum.
 *   ret_bytes      MARU_LAYOUT_ENCODED_BYTES of them
 * Errors: as maru_layout_measure(). */
MARU_LAYOUT_PUBLIC int maru_layout_encode(const maru_layout *layout, void *ret_bytes, maru_layout_reason *reason);

/* The layout in such bytes, checked as maru_layout_measure() does.
 *   bytes, n       any bytes, also hostile bytes
 * Errors: as maru_layout_measure(); -EBADMSG these bytes are no layout, or are cut or damaged; -EPROTONOSUPPORT they have
 * another version. */
MARU_LAYOUT_PUBLIC int maru_layout_decode(const void *bytes, size_t n, maru_layout *ret_layout,
                                          maru_layout_reason *reason);

/* A layout as one JSON object, on one line.
 *   ret_text, room  bytes for it and a zero; MARU_LAYOUT_JSON_BYTES_MAX are always enough
 * Errors: as maru_layout_measure(); -ENOSPC it has more bytes. */
MARU_LAYOUT_PUBLIC int maru_layout_to_json(const maru_layout *layout, char *ret_text, size_t room,
                                           maru_layout_reason *reason);

/* The layout in such a JSON object, checked as maru_layout_measure() does. The members may stand in any order. "alignment",
 * "heads_total", "first_head", "layers_total", "first_layer" and "fingerprint" may be absent.
 *   text, n        any bytes, also hostile bytes; UTF-8, without a zero at the end
 * Errors: as maru_layout_measure(); -EBADMSG the text is not such an object, has an unknown member, lacks a member or has it
 * twice, or has the fingerprint of another layout; -EPROTONOSUPPORT it has another version. */
MARU_LAYOUT_PUBLIC int maru_layout_from_json(const char *text, size_t n, maru_layout *ret_layout,
                                             maru_layout_reason *reason);

/* A hash of 128 bits that keeps blocks of different layouts apart: mix it into keys. It covers all fields but the number of
 * blocks, so that two engines with caches of different sizes share blocks.
 *   ret_fingerprint   MARU_LAYOUT_FINGERPRINT_BYTES bytes
 * Errors: as maru_layout_measure(). */
MARU_LAYOUT_PUBLIC int maru_layout_fingerprint(const maru_layout *layout, void *ret_fingerprint,
                                               maru_layout_reason *reason);

/* A plan of copies from some layouts (sources) to others (targets) of the same tokens. */
typedef struct maru_reslice maru_reslice;

#define MARU_RESLICE_LAYOUTS_MAX 1024
#define MARU_RESLICE_BLOCKS_MAX (1u << 24)
#define MARU_RESLICE_MOVES_MAX (1u << 22) /* of 40 bytes each: a plan has one for each piece that fits no pattern */

typedef struct maru_reslice_options {
  size_t size;                   /* set by the caller to sizeof(maru_reslice_options); zero the rest */
  const uint64_t *source_blocks; /* the blocks that hold the tokens, in the order of the tokens; NULL: all, from 0 */
  size_t source_blocks_count;    /* 1 to MARU_RESLICE_BLOCKS_MAX */
  const uint64_t *target_blocks; /* the blocks to fill, likewise; each at most once */
  size_t target_blocks_count;
  uint64_t reserved[3];
} maru_reslice_options;

/* Plans the copies that fill the blocks of all targets. Each target has its heads and layers from the first source that has
 * them; a head that several sources have is read once for each target that wants it. Neighbours on both sides become one run.
 * Sources may differ from targets in kind, order, alignment and the tokens of a block; the number of tokens is the same.
 *   options        NULL: all blocks of the layouts
 *   sources, targets   1 to MARU_RESLICE_LAYOUTS_MAX of each. All layouts of one side have equal blocks and page_tokens
 *   ret_plan       the caller frees it with maru_reslice_free()
 * Errors: as maru_layout_measure(), for each layout; -EINVAL also where two layouts differ in dtype, outer, head_dim,
 * heads_total or layers_total, the numbers of tokens differ, or a block is to be filled twice; -EOVERFLOW also where the plan
 * would copy more than MARU_LAYOUT_STORAGE_BYTES_MAX bytes; -ERANGE there is no such block; -ENODATA no source has a head or a
 * layer of a target; -E2BIG the plan has too many moves: plan fewer blocks at a time; -ENOMEM. */
MARU_LAYOUT_PUBLIC int maru_reslice_plan(const maru_reslice_options *options, const maru_layout *sources,
                                         size_t sources_count, const maru_layout *targets, size_t targets_count,
                                         maru_reslice **ret_plan, maru_layout_reason *reason);

/* Frees a plan; NULL is fine. No other thread may use it any more. */
MARU_LAYOUT_PUBLIC void maru_reslice_free(maru_reslice *plan);

typedef struct maru_reslice_totals {
  uint64_t bytes;           /* that a copy writes */
  uint64_t runs;            /* pieces that are neighbours on both sides */
  uint64_t run_bytes_min;   /* the shortest of them */
  uint64_t run_bytes_max;   /* the longest of them */
  uint64_t moves;           /* patterns of runs with constant strides: what the plan keeps */
  uint64_t source_storages; /* of all sources together: what maru_reslice_copy() wants */
  uint64_t target_storages; /* likewise */
  uint64_t reserved;
} maru_reslice_totals;

/* How much a plan copies, and in which pieces.
 * Errors: -EINVAL an argument is NULL. */
MARU_LAYOUT_PUBLIC int maru_reslice_measure(const maru_reslice *plan, maru_reslice_totals *ret_totals);

/* One piece of a plan. Storages count through all layouts, in the order of the layouts. Offsets count from the base, brought to
 * a multiple of the alignment. */
typedef struct maru_reslice_run {
  uint64_t source_storage;
  uint64_t source_offset; /* bytes */
  uint64_t target_storage;
  uint64_t target_offset; /* bytes */
  uint64_t bytes;
} maru_reslice_run;

/* Some runs of a plan, for a caller that copies by itself (a GPU, a network).
 *   first          0 to the number of runs - 1
 *   ret_runs, n    the runs from `first` on, n at most
 *   ret_count      how many they are
 * Errors: -EINVAL an argument is NULL, or n is 0; -ERANGE there is no such run. */
MARU_LAYOUT_PUBLIC int maru_reslice_runs(const maru_reslice *plan, uint64_t first, maru_reslice_run *ret_runs, size_t n,
                                         size_t *ret_count);

/* The memory of one storage. */
typedef struct maru_reslice_storage {
  void *data;     /* a source is only read */
  uint64_t bytes; /* that may be touched from there on */
} maru_reslice_storage;

/* Copies. The calling thread copies all, with streaming stores where they are the fastest on this machine, and later stores of
 * the thread follow them. No thread may write the sources meanwhile, nor touch the targets.
 *   sources, targets   the storages of all layouts, in their order, as many as maru_reslice_measure() says
 * Errors: -EINVAL another number of storages, an address that is NULL, or a target that overlaps another storage; -ENOSPC a
 * storage has fewer bytes than its layout needs behind its base (allocation_bytes are always enough); -ENOMEM. The library
 * copies nothing then. */
MARU_LAYOUT_PUBLIC int maru_reslice_copy(const maru_reslice *plan, const maru_reslice_storage *sources,
                                         size_t sources_count, const maru_reslice_storage *targets,
                                         size_t targets_count, maru_layout_reason *reason);

#ifdef __cplusplus
}
#endif

#endif
