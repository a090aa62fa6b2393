/**
 * @file collectives.h
 * @brief Operations that move bytes between the ranks of a communicator.
 *
 * Every operation exists twice: the plain form returns when it is done on this rank, the `_start`
 * form returns a request at once. All ranks must call collectives in the same order, with the same
 * operation, reduction, dtype, counts and root. If ranks disagree, every rank gets
 * TRIREME_ERROR_MISMATCH, never a wrong number: in this call, or in the next one after a small call
 * with a root (rooted_collectives.h). Results are the same bits on all ranks and in every run.
 *
 * Buffers are any memory of the host. For a communicator of a device they are memory of that
 * device, or pinned memory of the host. Peers of one host read memory of trireme_buffer_alloc()
 * without a copy. A buffer may be NULL when it holds no elements. Send and receive memory must not
 * overlap unless an operation says how it works in place.
 *
 * Every operation shares these statuses, so that each function below lists only its own:
 * - TRIREME_ERROR_INVALID_HANDLE: no live communicator of this process.
 * - TRIREME_ERROR_INVALID_ARGUMENT: a pointer is NULL, a number is unknown or out of range, buffers
 *   overlap, or count times size overflows.
 * - TRIREME_ERROR_INVALID_STATE: a blocking call inside a completion callback of the same
 *   communicator, or a call after the communicator was destroyed.
 * - TRIREME_ERROR_UNSUPPORTED: see trireme_capability().
 * - TRIREME_ERROR_TIMEOUT: the deadline passed; names the ranks that are missing.
 * - TRIREME_ERROR_MISMATCH: ranks disagree; names both sides.
 * - TRIREME_ERROR_PEER_LOST: a rank died or left; names it.
 * - TRIREME_ERROR_ABORTED: a rank called trireme_communicator_abort().
 * - TRIREME_ERROR_CANCELLED: a rank withdrew its request.
 * - TRIREME_ERROR_CORRUPT: bytes of a rank changed on the way; names the rank.
 * - TRIREME_ERROR_AUTHENTICATION: a rank has another token than the one where the ranks meet.
 * - TRIREME_ERROR_CALLBACK: the caller's transport answered another number than 0.
 * - TRIREME_ERROR_OUT_OF_MEMORY: host memory has run out.
 * - TRIREME_ERROR_SYSTEM, TRIREME_ERROR_DEVICE: the operating system or the device refused.
 *
 * After an argument error the communicator goes on as if the call had not been made, and receive
 * memory is untouched. After a failure on the way receive memory may hold anything, and the
 * communicator has failed.
 *
 * Ownership: buffers belong to the caller and must live until the operation is done. A device that
 * stands still in a copy may go on after the call has failed. The message says so then, and buffers
 * must live until the device is done.
 * Thread safety: all functions here may be called from any thread, also concurrently.
 */
#ifndef TRIREME_COLLECTIVES_H
#define TRIREME_COLLECTIVES_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** Flags of one call. */
enum {
    /**
     * Collectives: combine in rank order. So every backend and algorithm gives the same bits.
     */
    TRIREME_OPERATION_FLAG_REPRODUCIBLE = 1,
    /** trireme_send(): return without waiting for the receiver. */
    TRIREME_OPERATION_FLAG_BUFFERED = 2,
    /** Receives and probes: take a message of any tag. */
    TRIREME_OPERATION_FLAG_ANY_TAG = 4
};

/**
 * How a collective is made of messages between two ranks. 0 lets the library choose, or the tuning
 * table of the group.
 */
typedef int32_t trireme_algorithm;

/**
 * Numbers of the algorithms. Each gives the same bits on all ranks. Another algorithm may give
 * other bits of a floating-point reduction, unless that is TRIREME_OPERATION_FLAG_REPRODUCIBLE. An
 * operation that lacks an algorithm answers TRIREME_ERROR_UNSUPPORTED and names those it has.
 */
enum {
    TRIREME_ALGORITHM_AUTOMATIC = 0,
    /** Every pair exchanges once; sums in rank order. */
    TRIREME_ALGORITHM_DIRECT = 1,
    /** Neighbours pass pieces on: least traffic. */
    TRIREME_ALGORITHM_RING = 2,
    /** Partners at distances of powers of two (Rabenseifner). */
    TRIREME_ALGORITHM_HALVING_DOUBLING = 3,
    /** One binomial tree. */
    TRIREME_ALGORITHM_BINOMIAL = 4,
    /** Two complementary trees (Sanders, Speck, Traeff 2009). */
    TRIREME_ALGORITHM_DOUBLE_TREE = 5,
    /** Blocks over distances of powers of two (Bruck 1997). */
    TRIREME_ALGORITHM_BRUCK = 6,
    /** One partner after the other. */
    TRIREME_ALGORITHM_PAIRWISE = 7,
    /**
     * The backend's own. Over tcp:// also a started call waits until all ranks have joined. For
     * device memory NCCL's, whose sums of floats may have other bits.
     */
    TRIREME_ALGORITHM_NATIVE = 8
};

/**
 * Names an algorithm, for example "halving_doubling".
 *
 * Does not block. Cannot fail.
 *
 * @param algorithm  Any value.
 * @return A string that lives as long as the library; "unknown" for a value that is no algorithm.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API const char *TRIREME_CALLCONV trireme_algorithm_name(trireme_algorithm algorithm);

/** How urgent an operation is. 0 is normal. */
typedef int32_t trireme_priority;

/** Numbers of the priorities. */
enum {
    TRIREME_PRIORITY_NORMAL = 0,
    /** Operations do not wait behind normal ones: they have a queue of their own. */
    TRIREME_PRIORITY_HIGH = 1
};

/** Options of one call. NULL in place of a pointer to them means all defaults. */
typedef struct trireme_operation_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** 0 or a sum of TRIREME_OPERATION_FLAG_*, where the operation knows it. Default: 0. */
    uint32_t flags;
    /** Nanoseconds from now to the deadline of this call. Default: the communicator's. */
    uint64_t timeout_ns;
    /** Factor of TRIREME_REDUCTION_SCALED_SUM, finite and not 0; must be 0 for other reductions. */
    double scale;
    /** Of the device: see docs/gpus.md. Default: its default stream. All zero for the host. */
    trireme_stream stream;
    /**
     * Collectives of one priority run in the order of their calls. All ranks must name the same.
     * Not for messages. Default: TRIREME_PRIORITY_NORMAL.
     */
    trireme_priority priority;
    /**
     * TRIREME_ALGORITHM_*. All ranks must name the same. Not for messages. Default:
     * TRIREME_ALGORITHM_AUTOMATIC.
     */
    trireme_algorithm algorithm;
    /**
     * f16, bf16, f8e4m3 or f8e5m2: f32 elements are rounded to it before they travel, and so are
     * results. Sums are still made in f32. Not for barriers, all_to_all_v, lists and messages.
     * Default: the dtype itself.
     */
    trireme_dtype wire_dtype;
    /** Must be 0. */
    uint32_t reserved;
} trireme_operation_options; /* since 1.0 */

/** Options that change nothing. */
#define TRIREME_OPERATION_OPTIONS_INIT TRIREME_INIT(trireme_operation_options)

/**
 * Reduces `count` elements over all ranks and gives every rank the result.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer.
 * Works in place when receive == send.
 *
 * @param communicator  The communicator.
 * @param send  This rank's `count` elements.
 * @param[out] receive  Result, `count` elements.
 * @param count  Elements. With 0 the ranks still wait for each other, and their calls are compared.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_reduce(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t count,
    trireme_dtype dtype, trireme_reduction reduction, const trireme_operation_options *options);

/**
 * Starts trireme_all_reduce() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  This rank's `count` elements.
 * @param[out] receive  Result, `count` elements.
 * @param count  Elements. With 0 the ranks still wait for each other, and their calls are compared.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_all_reduce_start(trireme_communicator *communicator, const void *send, void *receive,
                         uint64_t count, trireme_dtype dtype, trireme_reduction reduction,
                         const trireme_operation_options *options, trireme_request **out_request);

/**
 * Reduces world size blocks of `receive_count` elements and gives rank r block r.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer.
 * Works in place when receive is this rank's block of send.
 *
 * @param communicator  The communicator.
 * @param send  `receive_count` x world size elements.
 * @param[out] receive  This rank's block of the result, `receive_count` elements.
 * @param receive_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_reduce_scatter(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t receive_count,
    trireme_dtype dtype, trireme_reduction reduction, const trireme_operation_options *options);

/**
 * Starts trireme_reduce_scatter() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  `receive_count` x world size elements.
 * @param[out] receive  This rank's block of the result, `receive_count` elements.
 * @param receive_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_reduce_scatter_start(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t receive_count,
    trireme_dtype dtype, trireme_reduction reduction, const trireme_operation_options *options,
    trireme_request **out_request);

/**
 * Reduces blocks of different lengths and gives rank r block r.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer.
 * Works in place when receive is this rank's block of send.
 *
 * @param communicator  The communicator.
 * @param send  All blocks, one after the other in rank order.
 * @param[out] receive  This rank's block of the result, counts[rank] elements.
 * @param counts  World size numbers: elements of each block; the same on all ranks. Copied.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_reduce_scatter_v(
    trireme_communicator *communicator, const void *send, void *receive, const uint64_t *counts,
    trireme_dtype dtype, trireme_reduction reduction, const trireme_operation_options *options);

/**
 * Starts trireme_reduce_scatter_v() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  All blocks, one after the other in rank order.
 * @param[out] receive  This rank's block of the result, counts[rank] elements.
 * @param counts  World size numbers: elements of each block; the same on all ranks. Copied.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_reduce_scatter_v_start(
    trireme_communicator *communicator, const void *send, void *receive, const uint64_t *counts,
    trireme_dtype dtype, trireme_reduction reduction, const trireme_operation_options *options,
    trireme_request **out_request);

/**
 * Gives every rank the blocks of all ranks, in rank order.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer.
 * Works in place when send is this rank's block of receive.
 *
 * @param communicator  The communicator.
 * @param send  This rank's `send_count` elements.
 * @param[out] receive  `send_count` x world size elements.
 * @param send_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_gather(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t send_count,
    trireme_dtype dtype, const trireme_operation_options *options);

/**
 * Starts trireme_all_gather() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  This rank's `send_count` elements.
 * @param[out] receive  `send_count` x world size elements.
 * @param send_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_gather_start(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t send_count,
    trireme_dtype dtype, const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives every rank the blocks of all ranks, of different lengths, in rank order.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer.
 * Works in place when send is this rank's block of receive.
 *
 * @param communicator  The communicator.
 * @param send  This rank's counts[rank] elements.
 * @param[out] receive  All blocks, one after the other.
 * @param counts  World size numbers: elements of each block; the same on all ranks. Copied.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_gather_v(
    trireme_communicator *communicator, const void *send, void *receive, const uint64_t *counts,
    trireme_dtype dtype, const trireme_operation_options *options);

/**
 * Starts trireme_all_gather_v() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  This rank's counts[rank] elements.
 * @param[out] receive  All blocks, one after the other.
 * @param counts  World size numbers: elements of each block; the same on all ranks. Copied.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_gather_v_start(
    trireme_communicator *communicator, const void *send, void *receive, const uint64_t *counts,
    trireme_dtype dtype, const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives every rank the root's elements.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. The
 * root's memory is only read.
 *
 * @param communicator  The communicator.
 * @param data  `count` elements: read on the root, written elsewhere.
 * @param count  Elements.
 * @param dtype  Type of the elements.
 * @param root  Rank whose elements are given.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_broadcast(trireme_communicator *communicator, void *data, uint64_t count,
                  trireme_dtype dtype, int32_t root, const trireme_operation_options *options);

/**
 * Starts trireme_broadcast() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param data  `count` elements: read on the root, written elsewhere.
 * @param count  Elements.
 * @param dtype  Type of the elements.
 * @param root  Rank whose elements are given.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_broadcast_start(
    trireme_communicator *communicator, void *data, uint64_t count, trireme_dtype dtype,
    int32_t root, const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives rank r block r of every rank: a transposition of blocks.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. Does
 * not work in place.
 *
 * @param communicator  The communicator.
 * @param send  `block_count` x world size elements: block r goes to rank r.
 * @param[out] receive  `block_count` x world size elements: block r came from rank r.
 * @param block_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_to_all(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t block_count,
    trireme_dtype dtype, const trireme_operation_options *options);

/**
 * Starts trireme_all_to_all() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  `block_count` x world size elements: block r goes to rank r.
 * @param[out] receive  `block_count` x world size elements: block r came from rank r.
 * @param block_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_to_all_start(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t block_count,
    trireme_dtype dtype, const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives rank r block r of every rank; blocks may differ in length.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. Does
 * not work in place. Ranks exchange their counts first. If a rank expects another number of
 * elements than its peer sends, the call fails with TRIREME_ERROR_MISMATCH, which names both
 * numbers.
 *
 * @param communicator  The communicator.
 * @param send  Blocks for rank 0, 1 and so on, one after the other.
 * @param send_counts  World size numbers: elements for each rank. Copied.
 * @param[out] receive  Blocks of rank 0, 1 and so on, one after the other.
 * @param receive_counts  World size numbers: elements of each rank. Copied.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_all_to_all_v(trireme_communicator *communicator, const void *send,
                     const uint64_t *send_counts, void *receive, const uint64_t *receive_counts,
                     trireme_dtype dtype, const trireme_operation_options *options);

/**
 * Starts trireme_all_to_all_v() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  Blocks for rank 0, 1 and so on, one after the other.
 * @param send_counts  World size numbers: elements for each rank. Copied.
 * @param[out] receive  Blocks of rank 0, 1 and so on, one after the other.
 * @param receive_counts  World size numbers: elements of each rank. Copied.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_to_all_v_start(
    trireme_communicator *communicator, const void *send, const uint64_t *send_counts,
    void *receive, const uint64_t *receive_counts, trireme_dtype dtype,
    const trireme_operation_options *options, trireme_request **out_request);

/**
 * Waits until every rank has called it.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer.
 * Moves no data.
 *
 * @param communicator  The communicator.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_barrier(trireme_communicator *communicator, const trireme_operation_options *options);

/**
 * Starts trireme_barrier() and returns at once.
 *
 * Does not wait for a peer. Keeps nothing until the request is done. Started collectives run in
 * the order of their calls.
 *
 * @param communicator  The communicator.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of this file.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_barrier_start(trireme_communicator *communicator, const trireme_operation_options *options,
                      trireme_request **out_request);

TRIREME_END_C

#endif
