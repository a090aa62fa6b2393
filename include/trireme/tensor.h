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

/** How ranks split extents. Start from TRIREME_TENSOR_OPTIONS_INIT. */
typedef struct trireme_tensor_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /**
     * Blocks of every extent: at least the world size, at most TRIREME_TENSOR_MAX_BLOCKS. Block i
     * of an extent E holds [iE/G, (i+1)E/G). Default: 0, one block for each rank.
     */
    uint32_t blocks;
    /** Must be 0. */
    uint32_t reserved;
    /** Longest time of a pass, in nanoseconds. Default: the communicator's timeout. */
    uint64_t timeout_ns;
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
    /** Regions that are not destroyed. */
    uint32_t region_count;
    /** 0. */
    uint32_t reserved;
} trireme_tensor_info; /* since 1.0 */

/** An info ready for trireme_tensor_get_info(). */
#define TRIREME_TENSOR_INFO_INIT TRIREME_INIT(trireme_tensor_info)

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
 * Local: does not wait for the peers. Keeps no pointer into `options`. All ranks give the same
 * blocks; passes compare them.
 *
 * @param communicator  The ranks, such as those along the axis "tensor" of a mesh.
 * @param options       How ranks split extents; NULL for the defaults.
 * @param[out] out_tensor  The new object; free it with trireme_tensor_destroy(). Not written on
 *                      failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_tensor is NULL, `flags` or `reserved` is not 0, or
 *                      `blocks` is below the world size or too large.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_tensor_create(trireme_communicator *communicator, const trireme_tensor_options *options,
                      trireme_tensor **out_tensor);

/**
 * Destroys the handle. Regions live on.
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

/** Options of one pass. NULL in place of a pointer to them means all defaults. */
typedef struct trireme_pass_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
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
