/**
 * @file rooted_collectives.h
 * @brief Collectives in which one rank, the root, gives or gets: reduce, gather and scatter.
 *
 * All ranks name the same root. The rules at the top of collectives.h hold here, too: order, memory
 * and the statuses that every operation shares. trireme_broadcast() is in collectives.h.
 *
 * Small calls need not wait. A rank that gives elements and needs none leaves once they are copied:
 * a leaf of a gather or reduce, the root of a broadcast or scatter. That holds if the rank's last
 * calls announce this one (docs/collectives.md): between ranks of one host (local://, host://) for
 * up to 176 bytes, between at most 8 ranks of several hosts (tcp://) for up to 4096. Then:
 * - TRIREME_OK means that this rank is done and may use its memory again. It does not mean that the
 *   peers have called.
 * - On one host a rank is at most 63 calls ahead of the slowest one, where it waits for it until
 * the deadline. Between hosts it is at most 64 cells ahead of each rank to which it sends.
 * - If ranks disagree, a rank whose call is not the announced one waits for all ranks. It gets
 *   TRIREME_ERROR_MISMATCH once it or the root has the other's call. So do ranks that still wait.
 * - A rank that has left already gets that status from its next call after another rank has
 * noticed, of any kind: a barrier, too. Between hosts the news takes as long as a message.
 * - A rank that has left hears of a peer's death likewise: from its next call once the death is
 *   known, and when it finds no free cell.
 * - No rank takes elements of a call that differs from its own.
 *
 * Call trireme_barrier() to know that all ranks have come.
 *
 * Ownership: buffers belong to the caller and must live until the operation is done.
 * Thread safety: any thread may call all functions here, also concurrently.
 */
#ifndef TRIREME_ROOTED_COLLECTIVES_H
#define TRIREME_ROOTED_COLLECTIVES_H

#include <stdint.h>
#include <trireme/collectives.h>

TRIREME_BEGIN_C

/**
 * Reduces `count` elements over all ranks and gives the root the result.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. The
 * root may pass receive == send, to reduce in place. Other ranks do not use `receive`.
 *
 * @param communicator  The communicator.
 * @param send  This rank's `count` elements.
 * @param[out] receive  Result, `count` elements. Only the root needs it; else it may be NULL.
 * @param count  Elements.
 * @param dtype  Type of the elements.
 * @param reduction  How the ranks' elements are combined.
 * @param root  Rank that gets the result.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_reduce(trireme_communicator *communicator, const void *send, void *receive, uint64_t count,
               trireme_dtype dtype, trireme_reduction reduction, int32_t root,
               const trireme_operation_options *options);

/**
 * Starts trireme_reduce() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  This rank's `count` elements.
 * @param[out] receive  Result, `count` elements. Only the root needs it; else it may be NULL.
 * @param count  Elements.
 * @param dtype  Type of the elements.
 * @param reduction  How the ranks' elements are combined.
 * @param root  Rank that gets the result.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started. The request tells the outcome.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_reduce_start(trireme_communicator *communicator, const void *send, void *receive,
                     uint64_t count, trireme_dtype dtype, trireme_reduction reduction, int32_t root,
                     const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives the root the blocks of all ranks, one after the other in rank order.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. The
 * root may pass its own block of `receive` as `send`, to gather in place. Other ranks do not use
 * `receive`.
 *
 * @param communicator  The communicator.
 * @param send  This rank's block, `send_count` elements.
 * @param[out] receive  `send_count` x world size elements. Only the root needs it; else it may be
 *                  NULL.
 * @param send_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param root  Rank that gets the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_gather(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t send_count,
    trireme_dtype dtype, int32_t root, const trireme_operation_options *options);

/**
 * Starts trireme_gather() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  This rank's block, `send_count` elements.
 * @param[out] receive  `send_count` x world size elements. Only the root needs it; else it may be
 *                  NULL.
 * @param send_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param root  Rank that gets the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started. The request tells the outcome.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_gather_start(trireme_communicator *communicator, const void *send, void *receive,
                     uint64_t send_count, trireme_dtype dtype, int32_t root,
                     const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives the root the blocks of all ranks, which may differ in length.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. The
 * root may pass its own block of `receive` as `send`, to gather in place. Other ranks do not use
 * `receive`.
 *
 * @param communicator  The communicator.
 * @param send  This rank's block, counts[rank] elements.
 * @param[out] receive  All blocks, one after the other in rank order. Only the root needs it; else
 *                  it may be NULL.
 * @param counts  Elements of each block, one number for each rank. The same on all ranks. Copied.
 * @param dtype  Type of the elements.
 * @param root  Rank that gets the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_gather_v(
    trireme_communicator *communicator, const void *send, void *receive, const uint64_t *counts,
    trireme_dtype dtype, int32_t root, const trireme_operation_options *options);

/**
 * Starts trireme_gather_v() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  This rank's block, counts[rank] elements.
 * @param[out] receive  All blocks, one after the other in rank order. Only the root needs it; else
 *                  it may be NULL.
 * @param counts  Elements of each block, one number for each rank. The same on all ranks. Copied.
 * @param dtype  Type of the elements.
 * @param root  Rank that gets the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started. The request tells the outcome.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_gather_v_start(trireme_communicator *communicator, const void *send, void *receive,
                       const uint64_t *counts, trireme_dtype dtype, int32_t root,
                       const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives rank r block r of the root's elements.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. The
 * root may pass its own block of `send` as `receive`, to scatter in place. Other ranks do not use
 * `send`.
 *
 * @param communicator  The communicator.
 * @param send  `receive_count` x world size elements. Only the root needs it; else it may be NULL.
 * @param[out] receive  This rank's block, `receive_count` elements.
 * @param receive_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param root  Rank that has the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_scatter(
    trireme_communicator *communicator, const void *send, void *receive, uint64_t receive_count,
    trireme_dtype dtype, int32_t root, const trireme_operation_options *options);

/**
 * Starts trireme_scatter() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  `receive_count` x world size elements. Only the root needs it; else it may be NULL.
 * @param[out] receive  This rank's block, `receive_count` elements.
 * @param receive_count  Elements of one block.
 * @param dtype  Type of the elements.
 * @param root  Rank that has the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started. The request tells the outcome.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_scatter_start(trireme_communicator *communicator, const void *send, void *receive,
                      uint64_t receive_count, trireme_dtype dtype, int32_t root,
                      const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives rank r block r of the root's elements. Blocks may differ in length.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. The
 * root may pass its own block of `send` as `receive`, to scatter in place. Other ranks do not use
 * `send`.
 *
 * @param communicator  The communicator.
 * @param send  All blocks, one after the other in rank order. Only the root needs it; else it may
 *                  be NULL.
 * @param[out] receive  This rank's block, counts[rank] elements.
 * @param counts  Elements of each block, one number for each rank. The same on all ranks. Copied.
 * @param dtype  Type of the elements.
 * @param root  Rank that has the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_scatter_v(
    trireme_communicator *communicator, const void *send, void *receive, const uint64_t *counts,
    trireme_dtype dtype, int32_t root, const trireme_operation_options *options);

/**
 * Starts trireme_scatter_v() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param send  All blocks, one after the other in rank order. Only the root needs it; else it may
 *                  be NULL.
 * @param[out] receive  This rank's block, counts[rank] elements.
 * @param counts  Elements of each block, one number for each rank. The same on all ranks. Copied.
 * @param dtype  Type of the elements.
 * @param root  Rank that has the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started. The request tells the outcome.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_scatter_v_start(trireme_communicator *communicator, const void *send, void *receive,
                        const uint64_t *counts, trireme_dtype dtype, int32_t root,
                        const trireme_operation_options *options, trireme_request **out_request);

TRIREME_END_C

#endif
