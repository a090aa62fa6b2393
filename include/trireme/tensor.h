/**
 * @file tensor.h
 * @brief Tensor parallelism: arrays that ranks hold in parts, and the exchanges between such forms.
 *
 * A tensor object describes how the ranks of one communicator split the layers of a model. It cuts
 * every extent (rows, columns, heads) into blocks, and gives each rank neighbouring blocks.
 *
 * A region is one place of a model where an array changes its form. There are four forms:
 * - whole: every rank has the same array, and each rank's gradient is the whole gradient.
 * - shared: every rank has the same array, and each rank's gradient is a summand.
 * - split: each rank has its rows, or its columns.
 * - partial: each rank's array is a summand.
 *
 * A forward pass converts the array. A backward pass converts its gradient, from the second form to
 * the first one. See trireme_region_kind for both directions, and docs/tensor.md.
 *
 * Bits: with `blocks` of G, a sum has G summands, one for each block. They are added along one
 * binary tree: summands 2k and 2k+1, then pairs of those; one without a partner moves up alone. So
 * sums have the same bits for every number of ranks from 1 to G. With `blocks` of 0 each rank has
 * one summand. Then sums have the same bits for the same number of ranks. Sums of f16, bf16 and f8
 * are made in f32, and rounded once.
 *
 * Order: passes are collectives of the communicator. All ranks make them in one order with each
 * other and with the communicator's other collectives. Ranks compare the region's name, its options
 * and the direction of each pass that moves bytes. If ranks differ, every rank gets
 * TRIREME_ERROR_MISMATCH.
 *
 * Ownership: trireme_tensor_create() and trireme_region_create() create objects, and the functions
 * named _destroy destroy them. A region keeps its tensor object alive. Once the communicator is
 * destroyed, passes that move bytes answer TRIREME_ERROR_INVALID_STATE.
 *
 * Thread safety: one thread at a time may call functions with the same region. All others may run
 * on any thread, also concurrently.
 */
#ifndef TRIREME_TENSOR_H
#define TRIREME_TENSOR_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** How ranks split the layers of a model between them. */
typedef struct trireme_tensor trireme_tensor;
/** A place of a model where an array that ranks split changes its form. */
typedef struct trireme_region trireme_region;

/** Most blocks of an extent, and most summands of a sum. */
#define TRIREME_TENSOR_MAX_BLOCKS 65536

/** The provider of the matrix products of layers. 0 is none. */
typedef int32_t trireme_gemm_kind;

/** Numbers of the providers. The library links no BLAS, and never picks a provider by itself. */
enum {
    /** A function of the caller. */
    TRIREME_GEMM_KIND_CALLER = 1,
    /** A BLAS that the library opens at run time, by cblas_sgemm and cblas_dgemm: F32 and F64. */
    TRIREME_GEMM_KIND_LOADED = 2,
    /** The library's own loops. They sum in f64, have the same bits on all machines, and are slow.
     */
    TRIREME_GEMM_KIND_BUILTIN = 3
};

/**
 * One matrix product: result = left * right, or result + left * right.
 *
 * All matrices are row-major: elements of a row lie side by side. A step is the distance from row
 * to row in elements, as the matrix lies in memory. A transposed matrix lies there as its
 * transpose: `left` is rows by depth, or depth by rows if transposed.
 */
typedef struct trireme_product {
    /** sizeof this struct as the library knows it. */
    uint32_t struct_size;
    /** Type of `left` and `right`. `result` has the same type, or F32 if this is F16 or BF16. */
    trireme_dtype dtype;
    /** 1 if `left` lies in memory as its transpose, else 0. */
    int32_t left_transposed;
    /** The same for `right`. */
    int32_t right_transposed;
    /** 1 to add the product to `result`. 0 to overwrite it; its old contents may be NaN. */
    int32_t add;
    /** 0. */
    uint32_t reserved;
    /** Rows of `left` and `result`; 1 or more. */
    uint64_t rows;
    /** Columns of `right` and `result`; 1 or more. */
    uint64_t columns;
    /** Columns of `left` and rows of `right`; 1 or more. */
    uint64_t depth;
    /** The left matrix. */
    const void *left;
    /** Its step. */
    uint64_t left_step;
    /** The right matrix. */
    const void *right;
    /** Its step. */
    uint64_t right_step;
    /** The result. It has no byte in common with the others. */
    void *result;
    /** Its step. */
    uint64_t result_step;
} trireme_product; /* since 1.0 */

/**
 * A caller's matrix product. It runs on the thread of the call that needs it, one at a time for
 * each tensor object.
 *
 * It returns 0, or any other number to fail: then all ranks get TRIREME_ERROR_CALLBACK. Equal
 * products have to give equal bits, wherever the matrices lie, or layers are not reproducible.
 */
typedef int32_t(TRIREME_CALLCONV *trireme_product_callback)(const trireme_product *product,
                                                            void *user_data);

/** A provider of products. Start from TRIREME_GEMM_OPTIONS_INIT. */
typedef struct trireme_gemm_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** The provider. Required. */
    trireme_gemm_kind kind;
    /**
     * LOADED: a file, or several with commas between them; the first one that can be used is taken.
     * Must be NULL for other kinds. Default: NULL, the names in docs/tensor.md.
     */
    const char *library;
    /**
     * LOADED: threads of each product. A library has one number of threads in a process, and the
     * bits depend on it. Must be 0 for other kinds. Default: 0, one.
     */
    uint32_t threads;
    /** Must be 0. */
    uint32_t reserved;
    /** CALLER: the product. Required there, must be NULL for other kinds. */
    trireme_product_callback callback;
    /** CALLER: handed to `callback`. It lives until the last layer of the tensor object is gone. */
    void *user_data;
} trireme_gemm_options; /* since 1.0 */

/** A provider that lacks only its kind. */
#define TRIREME_GEMM_OPTIONS_INIT TRIREME_INIT(trireme_gemm_options)

/** Flags of a tensor object. They change layers (layers.h), not regions. */
enum {
    /**
     * Between layers, each rank has its rows of activations, in place of all rows. A
     * column-parallel layer gathers them. A row-parallel layer splits its sums by rows.
     */
    TRIREME_TENSOR_FLAG_SEQUENCE = 1,
    /**
     * Column-parallel layers keep the gathered input for backward in the caller's memory. Without
     * it they gather the input once more. Needs SEQUENCE.
     */
    TRIREME_TENSOR_FLAG_KEEP_GATHERED = 2
};

/** How ranks split extents. Start from TRIREME_TENSOR_OPTIONS_INIT. */
typedef struct trireme_tensor_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0, or a sum of TRIREME_TENSOR_FLAG_*. Default: 0. */
    uint32_t flags;
    /**
     * Blocks of every extent: at least the world size, at most TRIREME_TENSOR_MAX_BLOCKS. Block i
     * of an extent E holds [iE/G, (i+1)E/G). Default: 0, one block for each rank.
     */
    uint32_t blocks;
    /**
     * Layers multiply so many rows at a time, and exchange them while they multiply the next ones.
     * All ranks give the same number. Above the rows of a layer it means all of them. Products of
     * fewer rows may have other bits: see docs/tensor.md. Default: 0, all rows with local:// and
     * host://; else at most 4 tiles, but all rows with `blocks`, unless the provider is BUILTIN.
     */
    uint32_t row_tile;
    /** Longest time of a pass, in nanoseconds. Default: the communicator's timeout. */
    uint64_t timeout_ns;
    /** The provider of products. Default: NULL, none; then no layer can be made. */
    const trireme_gemm_options *gemm;
} trireme_tensor_options; /* since 1.0 */

/** One block for each rank. */
#define TRIREME_TENSOR_OPTIONS_INIT TRIREME_INIT(trireme_tensor_options)

/** A rank's share of every extent. Set struct_size before the call. */
typedef struct trireme_tensor_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** This rank's number in the communicator. */
    int32_t rank;
    /** Ranks of the communicator. */
    int32_t world_size;
    /** Blocks of every extent; the world size where the options say 0. */
    uint32_t blocks;
    /** The first block of this rank. */
    uint32_t first_block;
    /** Blocks of this rank; 1 or more. */
    uint32_t block_count;
    /** Regions that are not destroyed, those inside layers too. */
    uint32_t region_count;
    /** 0. */
    uint32_t reserved;
} trireme_tensor_info; /* since 1.0 */

/** An info ready for trireme_tensor_get_info(). */
#define TRIREME_TENSOR_INFO_INIT TRIREME_INIT(trireme_tensor_info)

/** The provider of products that a tensor object uses. Set struct_size before the call. */
typedef struct trireme_gemm_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** The provider; 0 if there is none. */
    trireme_gemm_kind kind;
    /** Threads of each product; 0 if not known. */
    uint32_t threads;
    /**
     * 1 if equal products gave equal bits when the provider was tried: with other threads busy, and
     * at other addresses. BUILTIN and CALLER are not tried and have 1. 0 without a provider.
     */
    uint32_t repeatable;
    /** The name under which the library was opened, cut to fit; empty if there is none. */
    char library[128];
    /** The library's version as it tells it, cut to fit; empty if it does not. */
    char version[128];
    /** The products that gave other bits, cut to fit; empty if repeatable. */
    char difference[128];
} trireme_gemm_info; /* since 1.0 */

/** An info ready for trireme_tensor_get_gemm_info(). */
#define TRIREME_GEMM_INFO_INIT TRIREME_INIT(trireme_gemm_info)

/** Attention heads of one rank. Set struct_size before the call. */
typedef struct trireme_head_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 1 if another rank holds one of these key/value heads, too; else 0. */
    uint32_t kv_shared;
    /** The first query head of the rank. */
    uint64_t first_head;
    /** Query heads of the rank; may be 0. */
    uint64_t head_count;
    /** The first key/value head that these query heads use. */
    uint64_t first_kv_head;
    /** Key/value heads that they use; 0 without query heads. */
    uint64_t kv_head_count;
} trireme_head_info; /* since 1.0 */

/** An info ready for trireme_tensor_heads(). */
#define TRIREME_HEAD_INFO_INIT TRIREME_INIT(trireme_head_info)

/**
 * Makes a tensor object for the ranks of a communicator.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`, but for user_data. All ranks
 * give the same blocks; passes compare them. A provider LOADED makes a few small products, which
 * tell whether it is right and repeatable.
 *
 * @param communicator  The ranks, such as those along the axis "tensor" of a mesh.
 * @param options       How ranks split extents; NULL for the defaults.
 * @param[out] out_tensor  The new object; free it with trireme_tensor_destroy(). Not written on
 *                      failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_tensor is NULL, a flag is unknown, `reserved` of
 *                      `gemm` is not 0, or `blocks` is below the world size or too large. Or
 *                      KEEP_GATHERED stands without SEQUENCE. Or the provider's kind is unknown,
 *                      lacks its callback, or has a field of another kind.
 * @retval TRIREME_ERROR_INVALID_STATE  The library of a provider LOADED computes with another
 *                      number of threads in this process.
 * @retval TRIREME_ERROR_UNSUPPORTED  No BLAS can be used; the message lists what was tried and why
 *                      it was refused. Or `blocks` is above 0, and equal products of the library
 *                      gave other bits. Or `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_tensor_create(trireme_communicator *communicator, const trireme_tensor_options *options,
                      trireme_tensor **out_tensor);

/**
 * Destroys the handle. Regions and layers live on.
 *
 * Never waits for a peer.
 *
 * @param tensor  A tensor object; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_tensor_destroy(trireme_tensor *tensor);

/**
 * Tells this rank's share of every extent.
 *
 * Does not block.
 *
 * @param tensor  The tensor object.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_tensor_get_info(const trireme_tensor *tensor, trireme_tensor_info *info);

/**
 * Tells which provider computes the products of layers.
 *
 * Does not block.
 *
 * @param tensor  The tensor object.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_tensor_get_gemm_info(const trireme_tensor *tensor, trireme_gemm_info *info);

/**
 * Tells which elements of an extent a rank holds: those of its blocks.
 *
 * Does not block.
 *
 * @param tensor  The tensor object.
 * @param extent  Elements of the whole extent; may be below the world size.
 * @param rank    A rank of the communicator.
 * @param[out] out_first  Its first element. Not written on failure.
 * @param[out] out_count  Its elements; may be 0. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or the rank is out of range.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_tensor_range(const trireme_tensor *tensor,
                                                                      uint64_t extent, int32_t rank,
                                                                      uint64_t *out_first,
                                                                      uint64_t *out_count);

/**
 * Tells which elements of an extent a block holds. A host that makes products block by block gets
 * the same bits for every number of ranks.
 *
 * Does not block.
 *
 * @param tensor  The tensor object.
 * @param extent  Elements of the whole extent; may be below the number of blocks.
 * @param block   Number of a block, from 0, of any rank.
 * @param[out] out_first  Its first element. Not written on failure.
 * @param[out] out_count  Its elements; may be 0. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or there is no such block.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_tensor_block(const trireme_tensor *tensor,
                                                                      uint64_t extent,
                                                                      uint32_t block,
                                                                      uint64_t *out_first,
                                                                      uint64_t *out_count);

/**
 * Tells which attention heads a rank holds. Query head h uses key/value head h / (heads/kv_heads).
 *
 * With at least as many key/value heads as blocks, the key/value heads are cut into blocks. Query
 * heads go with theirs. With fewer, the query heads are cut, and each rank holds the key/value
 * heads that its own use. A key/value head may then lie on several ranks: its gradients are
 * summands.
 *
 * A region holds the columns of these heads if its `column_unit` says how many go together. Let D
 * be the columns of a head. Query heads: D * heads/kv_heads with at least as many key/value heads
 * as blocks, else D. Key/value heads: D. With fewer key/value heads than blocks, no region cuts
 * these.
 *
 * Does not block.
 *
 * @param tensor    The tensor object.
 * @param heads     Query heads of all ranks; 1 or more.
 * @param kv_heads  Key/value heads of all ranks. Divides `heads`.
 * @param rank      A rank of the communicator.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL or its struct_size too small, a number is
 *                  0, kv_heads does not divide `heads`, or the rank is out of range.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_tensor_heads(const trireme_tensor *tensor,
                                                                      uint64_t heads,
                                                                      uint64_t kv_heads,
                                                                      int32_t rank,
                                                                      trireme_head_info *info);

/** A place of a model where an array changes its form. */
typedef int32_t trireme_region_kind;

/**
 * Numbers of the kinds. Each line tells the two forms, then the forward pass, then the backward
 * pass. A pass with "nothing moves" or "this rank's part" works on this rank alone. Every other
 * pass moves bytes, and counts as one that does with a single rank, too.
 */
enum {
    /** Whole to shared. Forward: nothing moves. Backward: the sum of all ranks. */
    TRIREME_REGION_KIND_COPY = 1,
    /** Partial to whole. Forward: the sum of all ranks. Backward: nothing moves. */
    TRIREME_REGION_KIND_REDUCE = 2,
    /** Split to whole. Forward: all parts. Backward: this rank's part. */
    TRIREME_REGION_KIND_GATHER = 3,
    /** Split to shared. Forward: all parts. Backward: this rank's part of the sum. */
    TRIREME_REGION_KIND_GATHER_SUM = 4,
    /** Whole to split. Forward: this rank's part. Backward: all parts. */
    TRIREME_REGION_KIND_SCATTER = 5,
    /** Partial to split. Forward: this rank's part of the sum. Backward: all parts. */
    TRIREME_REGION_KIND_REDUCE_SCATTER = 6,
    /** Split along one dimension to split along the other one, in both directions. */
    TRIREME_REGION_KIND_EXCHANGE = 7
};

/** A dimension of an array of `rows` times `columns`. Elements of a row lie side by side. */
typedef int32_t trireme_region_dimension;

/** Numbers of the dimensions. */
enum {
    /** For kinds without a split form. */
    TRIREME_REGION_DIMENSION_NONE = 0,
    TRIREME_REGION_DIMENSION_ROWS = 1,
    TRIREME_REGION_DIMENSION_COLUMNS = 2
};

/** One region. Start from TRIREME_REGION_OPTIONS_INIT. */
typedef struct trireme_region_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * Name for messages: 1 to 63 bytes of UTF-8 without control characters. No two regions of a
     * tensor object share one, unless one is destroyed. Required.
     */
    const char *name;
    /** How the array changes. Required. */
    trireme_region_kind kind;
    /**
     * The dimension along which the split form is cut. EXCHANGE: of the form before the forward
     * pass. COPY and REDUCE: must be NONE. Else required.
     */
    trireme_region_dimension dimension;
    /** Rows of the whole array. Default: 0, which is an array without elements. */
    uint64_t rows;
    /** Columns of the whole array. Default: 0. */
    uint64_t columns;
    /** Type of the elements. Regions without a sum take every type. Required. */
    trireme_dtype dtype;
    /**
     * Summands of a sum, of all ranks together; the world size or more. Rank r of t has those from
     * rG/t to (r+1)G/t. Must be 0 in regions without a sum. Default: the tensor's blocks.
     */
    uint32_t parts;
    /**
     * Rows that stay on one rank together, such as those of an attention head. Divides `rows`. The
     * units are cut as an extent is, in place of single rows. Must be 0 or 1 in regions that do not
     * cut rows; EXCHANGE cuts both dimensions. Default: 0, which means 1.
     */
    uint64_t row_unit;
    /** The same for columns. */
    uint64_t column_unit;
} trireme_region_options; /* since 1.0 */

/** No region yet. */
#define TRIREME_REGION_OPTIONS_INIT TRIREME_INIT(trireme_region_options)

/** Sizes and counts of a region on this rank. Set struct_size before the call. */
typedef struct trireme_region_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Forward passes that have succeeded. */
    uint64_t forward_passes;
    /** Backward passes that have succeeded. */
    uint64_t backward_passes;
    /** Elements that a forward pass reads from each part, and a backward pass writes. */
    uint64_t input_count;
    /** Elements that a forward pass writes, and a backward pass reads from each part. */
    uint64_t output_count;
    /** Arrays at `parts` of a forward pass. */
    uint32_t forward_parts;
    /** Arrays at `parts` of a backward pass. */
    uint32_t backward_parts;
    /**
     * Bytes of this rank that peers read in a forward pass. Over connections, a rank may pass some
     * of them on to others.
     */
    uint64_t forward_bytes;
    /** Bytes of this rank that peers read in a backward pass. */
    uint64_t backward_bytes;
} trireme_region_info; /* since 1.0 */

/** An info ready for trireme_region_get_info(). */
#define TRIREME_REGION_INFO_INIT TRIREME_INIT(trireme_region_info)

/** Flags of a pass. */
enum {
    /** Adds to the gradients of weights and biases. Only for their passes in layers.h. */
    TRIREME_PASS_FLAG_ADD = 1
};

/** Options of one pass. NULL in place of a pointer to them means all defaults. */
typedef struct trireme_pass_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** TRIREME_PASS_FLAG_ADD or 0. Must be 0 for a region. Default: 0. */
    uint32_t flags;
    /** Nanoseconds from now to the deadline. Default: timeout_ns of the tensor object's options. */
    uint64_t timeout_ns;
} trireme_pass_options; /* since 1.0 */

/** The tensor object's deadline. */
#define TRIREME_PASS_OPTIONS_INIT TRIREME_INIT(trireme_pass_options)

/**
 * Makes a region.
 *
 * Local: does not wait for the peers. Keeps no pointer into `options`.
 *
 * @param tensor   The tensor object.
 * @param options  The region. Required.
 * @param[out] out_region  The new region; free it with trireme_region_destroy(). Not written on
 *                 failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live tensor object of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or a number is unknown or out of
 *                 range. Or the name is empty, too long, taken, not UTF-8 or has a control
 *                 character. Or `dimension`, `parts` or a unit does not suit the kind. Or a unit
 *                 does not divide its extent. Or the array has more bytes than memory can hold.
 * @retval TRIREME_ERROR_UNSUPPORTED  The dtype has no sum, and the region has one. Or `options`
 *                 sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_region_create(
    trireme_tensor *tensor, const trireme_region_options *options, trireme_region **out_region);

/**
 * Destroys a region. Its name is free again at once.
 *
 * Never waits for a peer. A pass that runs in another thread goes on.
 *
 * @param region  A region; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_region_destroy(trireme_region *region);

/**
 * Tells the sizes and counts of a region.
 *
 * Does not block.
 *
 * @param region  The region.
 * @param[out] info  Where to write it. Only struct_size is read.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live region of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  `info` is NULL, or its struct_size is too small.
 *
 * Thread safety: one call at a time per region.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_region_get_info(const trireme_region *region, trireme_region_info *info);

/**
 * Converts an array from the first form of the region to the second one.
 *
 * Collective if the pass moves bytes (trireme_region_kind): blocks until it is done on this rank or
 * the deadline passes. Keeps no pointer. Allocates memory for sums, and for splits by columns, at
 * its first use.
 *
 * `output` and each part are whole arrays, or this rank's rows or columns of them, as the form
 * says. Rows lie one after the other without gaps. `output` may be one of `parts` in passes of COPY
 * and REDUCE. Else they have no byte in common. Parts may overlap each other.
 *
 * @param region  The region.
 * @param parts   `part_count` pointers, each to info.input_count elements. An array without
 *                elements may be NULL.
 * @param part_count  info.forward_parts: 1, but for a sum over blocks one for each summand of this
 *                rank.
 * @param[out] output  info.output_count elements. After an argument error it is untouched. After a
 *                failure on the way it may hold anything.
 * @param options  Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live region of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, part_count is wrong, arrays overlap,
 *                or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  Called inside a batch. Or the pass moves bytes, and was
 *                called inside a completion callback of the communicator, or after its destruction.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed,
 *         if the pass moves bytes.
 *
 * Thread safety: one call at a time per region.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_region_forward(trireme_region *region, const void *const *parts, uint32_t part_count,
                       void *output, const trireme_pass_options *options);

/**
 * Converts a gradient from the second form of the region to the first one.
 *
 * As trireme_region_forward(), with the directions exchanged: collective if the pass moves bytes,
 * and then blocks. There is one forward pass at least for each backward pass.
 *
 * @param region  The region.
 * @param parts   `part_count` pointers, each to info.output_count elements. An array without
 *                elements may be NULL.
 * @param part_count  info.backward_parts.
 * @param[out] output  info.input_count elements. After an argument error it is untouched. After a
 *                failure on the way it may hold anything.
 * @param options  Options of this pass; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live region of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, part_count is wrong, arrays overlap,
 *                or an option is out of range.
 * @retval TRIREME_ERROR_INVALID_STATE  There were as many backward passes as forward passes. Or as
 *                for trireme_region_forward().
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @return Any other status as listed at the top of collectives.h. Then the communicator has failed,
 *         if the pass moves bytes.
 *
 * Thread safety: one call at a time per region.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_region_backward(trireme_region *region, const void *const *parts, uint32_t part_count,
                        void *output, const trireme_pass_options *options);

TRIREME_END_C

#endif
