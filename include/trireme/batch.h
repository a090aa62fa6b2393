/**
 * @file batch.h
 * @brief Several operations as one: batches of calls, lists of buffers, and calls whose receivers
 * do not know the length.
 *
 * The top of collectives.h holds here, too: it describes order, memory, and the statuses that every
 * operation shares.
 *
 * Ownership: buffers belong to the caller and must live until the operation is done.
 * Thread safety: all functions here may be called from any thread, also concurrently.
 */
#ifndef TRIREME_BATCH_H
#define TRIREME_BATCH_H

#include <stdint.h>
#include <trireme/buffer.h>
#include <trireme/collectives.h>

TRIREME_BEGIN_C

/**
 * Opens a batch: until trireme_batch_end() this thread only starts operations. The end waits for
 * them.
 *
 * Does not block. The batch holds the blocking operations of collectives.h, rooted_collectives.h,
 * messages.h and the lists below that this thread calls, on any communicator:
 * - Each of them answers TRIREME_OK once it is started.
 * - Their buffers belong to the library until trireme_batch_end() has returned.
 * - Sends and receives of one batch need no order among the ranks.
 * - Batches nest: only the outermost end waits.
 * - A thread that ends inside a batch lets go of its operations; they go on.
 * - Calls whose outcome is more than a status answer TRIREME_ERROR_INVALID_STATE. These are
 *   trireme_receive_message(), trireme_probe(), and those with a buffer as their result.
 *
 * @retval TRIREME_OK
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_batch_begin(void);

/**
 * Closes a batch and waits for all operations that this thread called in it.
 *
 * Blocks until each of them is done or its own deadline has passed.
 *
 * @retval TRIREME_OK  All operations are done. Of an inner batch: it is closed.
 * @retval TRIREME_ERROR_INVALID_STATE  No batch is open on this thread.
 * @return Otherwise the failure of the first call, in their order, that failed.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_batch_end(void);

/**
 * Reduces several buffers over all ranks and gives every rank the results.
 *
 * List: as one call of trireme_all_reduce() for each entry, in order, but small entries travel
 * together. Collective: blocks until it is done on this rank or the deadline passes. Keeps no
 * pointer. The lists are copied at the call. Works in place for entries whose receive == send.
 *
 * @param communicator  The communicator.
 * @param sends  `length` pointers: counts[i] elements each.
 * @param[out] receives  `length` pointers: results of counts[i] elements each.
 * @param counts  Elements of each entry.
 * @param length  Entries of the lists; the same on all ranks, as their counts are.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_reduce_list(
    trireme_communicator *communicator, const void *const *sends, void *const *receives,
    const uint64_t *counts, uint64_t length, trireme_dtype dtype, trireme_reduction reduction,
    const trireme_operation_options *options);

/**
 * Starts trireme_all_reduce_list() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param sends  `length` pointers: counts[i] elements each.
 * @param[out] receives  `length` pointers: results of counts[i] elements each.
 * @param counts  Elements of each entry.
 * @param length  Entries of the lists; the same on all ranks, as their counts are.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_reduce_list_start(
    trireme_communicator *communicator, const void *const *sends, void *const *receives,
    const uint64_t *counts, uint64_t length, trireme_dtype dtype, trireme_reduction reduction,
    const trireme_operation_options *options, trireme_request **out_request);

/**
 * Reduces several buffers and gives rank r block r of each.
 *
 * List: as one call of trireme_reduce_scatter() for each entry, in order, but small entries
 * travel together. Collective: blocks until it is done on this rank or the deadline passes. Keeps
 * no pointer. The lists are copied at the call. Works in place for entries whose receive is this
 * rank's block of send.
 *
 * @param communicator  The communicator.
 * @param sends  `length` pointers: counts[i] x world size elements each.
 * @param[out] receives  `length` pointers: this rank's blocks, counts[i] elements each.
 * @param counts  Elements of one block of each entry.
 * @param length  Entries of the lists; the same on all ranks, as their counts are.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_reduce_scatter_list(
    trireme_communicator *communicator, const void *const *sends, void *const *receives,
    const uint64_t *counts, uint64_t length, trireme_dtype dtype, trireme_reduction reduction,
    const trireme_operation_options *options);

/**
 * Starts trireme_reduce_scatter_list() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param sends  `length` pointers: counts[i] x world size elements each.
 * @param[out] receives  `length` pointers: this rank's blocks, counts[i] elements each.
 * @param counts  Elements of one block of each entry.
 * @param length  Entries of the lists; the same on all ranks, as their counts are.
 * @param dtype  Type of the elements.
 * @param reduction  How they are combined.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_reduce_scatter_list_start(
    trireme_communicator *communicator, const void *const *sends, void *const *receives,
    const uint64_t *counts, uint64_t length, trireme_dtype dtype, trireme_reduction reduction,
    const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives every rank the blocks of all ranks, for several buffers.
 *
 * List: as one call of trireme_all_gather() for each entry, in order, but small entries travel
 * together. Collective: blocks until it is done on this rank or the deadline passes. Keeps no
 * pointer. The lists are copied at the call. Works in place for entries whose send is this rank's
 * block of receive.
 *
 * @param communicator  The communicator.
 * @param sends  `length` pointers: this rank's blocks, counts[i] elements each.
 * @param[out] receives  `length` pointers: counts[i] x world size elements each.
 * @param counts  Elements of one block of each entry.
 * @param length  Entries of the lists; the same on all ranks, as their counts are.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_all_gather_list(trireme_communicator *communicator, const void *const *sends,
                        void *const *receives, const uint64_t *counts, uint64_t length,
                        trireme_dtype dtype, const trireme_operation_options *options);

/**
 * Starts trireme_all_gather_list() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param sends  `length` pointers: this rank's blocks, counts[i] elements each.
 * @param[out] receives  `length` pointers: counts[i] x world size elements each.
 * @param counts  Elements of one block of each entry.
 * @param length  Entries of the lists; the same on all ranks, as their counts are.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_gather_list_start(
    trireme_communicator *communicator, const void *const *sends, void *const *receives,
    const uint64_t *counts, uint64_t length, trireme_dtype dtype,
    const trireme_operation_options *options, trireme_request **out_request);

/**
 * Gives every rank the root's elements, for several buffers.
 *
 * List: as one call of trireme_broadcast() for each entry, in order, but small entries travel
 * together. Collective: blocks until it is done on this rank or the deadline passes. Keeps no
 * pointer. The lists are copied at the call.
 *
 * @param communicator  The communicator.
 * @param data  `length` pointers: counts[i] elements each, read on the root, written elsewhere.
 * @param counts  Elements of each entry.
 * @param length  Entries of the lists; the same on all ranks, as their counts are.
 * @param dtype  Type of the elements.
 * @param root  Rank whose elements are given.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_broadcast_list(
    trireme_communicator *communicator, void *const *data, const uint64_t *counts, uint64_t length,
    trireme_dtype dtype, int32_t root, const trireme_operation_options *options);

/**
 * Starts trireme_broadcast_list() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Started collectives run
 * in the order of their calls.
 *
 * @param communicator  The communicator.
 * @param data  `length` pointers: counts[i] elements each, read on the root, written elsewhere.
 * @param counts  Elements of each entry.
 * @param length  Entries of the lists; the same on all ranks, as their counts are.
 * @param dtype  Type of the elements.
 * @param root  Rank whose elements are given.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_broadcast_list_start(
    trireme_communicator *communicator, void *const *data, const uint64_t *counts, uint64_t length,
    trireme_dtype dtype, int32_t root, const trireme_operation_options *options,
    trireme_request **out_request);

/**
 * Gives every rank the root's elements in new memory. Only the root knows how many there are.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. Not
 * inside a batch (trireme_batch_begin()), which is TRIREME_ERROR_INVALID_STATE.
 *
 * @param communicator  The communicator.
 * @param data  The root's elements; not used elsewhere, may be NULL there.
 * @param count  Elements of the root; not used elsewhere.
 * @param dtype  Type of the elements.
 * @param root  Rank whose elements are given.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_buffer  A buffer with the elements; its size says how many. On the root it may
 *                  be NULL: then no copy is made there. Free it with trireme_buffer_destroy().
 *                  Not written on failure.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_broadcast_to_buffer(
    trireme_communicator *communicator, const void *data, uint64_t count, trireme_dtype dtype,
    int32_t root, const trireme_operation_options *options, trireme_buffer **out_buffer);

/**
 * Gives rank r block r of the root's elements, in new memory. Only the root knows the lengths.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. Not
 * inside a batch (trireme_batch_begin()), which is TRIREME_ERROR_INVALID_STATE.
 *
 * @param communicator  The communicator.
 * @param send  All blocks, one after the other in rank order. Read on the root only; may be NULL
 *                  elsewhere.
 * @param counts  World size numbers: elements of each block. Read on the root only; may be NULL
 *                  elsewhere.
 * @param dtype  Type of the elements.
 * @param root  Rank that has the blocks.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_buffer  A buffer with this rank's block; its size says how long. Free it with
 *                  trireme_buffer_destroy(). Not written on failure.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_scatter_to_buffer(trireme_communicator *communicator, const void *send,
                          const uint64_t *counts, trireme_dtype dtype, int32_t root,
                          const trireme_operation_options *options, trireme_buffer **out_buffer);

/**
 * Gives every rank the blocks of all ranks in new memory. Each rank knows only its own length.
 *
 * Collective: blocks until it is done on this rank or the deadline passes. Keeps no pointer. Not
 * inside a batch (trireme_batch_begin()), which is TRIREME_ERROR_INVALID_STATE.
 *
 * @param communicator  The communicator.
 * @param send  This rank's block.
 * @param send_count  Elements of this rank's block.
 * @param dtype  Type of the elements.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_counts  World size numbers: elements of each block.
 * @param[out] out_buffer  A buffer with all blocks, one after the other in rank order. Free it
 *                  with trireme_buffer_destroy(). Not written on failure.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_all_gather_to_buffer(
    trireme_communicator *communicator, const void *send, uint64_t send_count, trireme_dtype dtype,
    const trireme_operation_options *options, uint64_t *out_counts, trireme_buffer **out_buffer);

TRIREME_END_C

#endif
