/**
 * @file messages.h
 * @brief Messages between two ranks: send, receive, probe.
 *
 * A receive takes messages by sender and tag, in the order of sending. It may leave either open.
 * Messages are independent of collectives under way.
 *
 * The top of collectives.h holds here, too: it describes memory, and the statuses that every
 * operation shares. There is one exception. If a message ends with TRIREME_ERROR_TIMEOUT or
 * TRIREME_ERROR_CANCELLED before any of it has moved, neither the communicator nor any other
 * operation fails. A device that is late with the memory of a message fails the communicator.
 *
 * Ownership: buffers belong to the caller and must live until the operation is done.
 * Thread safety: all functions here may be called from any thread, also concurrently.
 */
#ifndef TRIREME_MESSAGES_H
#define TRIREME_MESSAGES_H

#include <stdint.h>
#include <trireme/buffer.h>
#include <trireme/collectives.h>

TRIREME_BEGIN_C

/** In place of the rank that sends: any rank. */
enum { TRIREME_ANY_SOURCE = -1 };

/** The message that a receive or a probe has found. Set struct_size before the call. */
typedef struct trireme_message_info {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Rank that sent it. */
    int32_t source;
    /** Tag with which that rank sent it. */
    uint64_t tag;
    /** Elements in it. */
    uint64_t count;
    /** Type of the elements. */
    trireme_dtype dtype;
    /** 0. */
    uint32_t reserved;
} trireme_message_info; /* since 1.0 */

#define TRIREME_MESSAGE_INFO_INIT TRIREME_INIT(trireme_message_info)

/**
 * Sends elements to one rank.
 *
 * Blocks until it is done on this rank or the deadline passes. Keeps no pointer. A send is done
 * when the caller may use the memory again. That can be before the receiver has the message.
 * Messages with one tag between two ranks arrive in order. A rank can send to itself in four ways:
 * with the `_start` form, inside a batch (trireme_batch_begin()), buffered, or with a receive on
 * another thread.
 *
 * With TRIREME_OPERATION_FLAG_BUFFERED the library copies the elements, and the call returns
 * without a receiver. It waits only while more than 64 MiB of this communicator are on their way.
 * If a rank leaves before its buffered messages are received, they are lost, and the receivers get
 * TRIREME_ERROR_PEER_LOST. The `_start` form refuses the flag.
 *
 * @param communicator  The communicator.
 * @param data  `count` elements.
 * @param count  Elements; trireme_receive() must ask for the same number.
 * @param dtype  Type of the elements; the receiver must ask for the same.
 * @param to  Rank that receives.
 * @param tag  Any number; matched by the receiver.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_send(
    trireme_communicator *communicator, const void *data, uint64_t count, trireme_dtype dtype,
    int32_t to, uint64_t tag, const trireme_operation_options *options);

/**
 * Starts trireme_send() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Messages progress
 * independently of collectives and of each other.
 *
 * @param communicator  The communicator.
 * @param data  `count` elements.
 * @param count  Elements; trireme_receive() must ask for the same number.
 * @param dtype  Type of the elements; the receiver must ask for the same.
 * @param to  Rank that receives.
 * @param tag  Any number; matched by the receiver.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_send_start(trireme_communicator *communicator, const void *data, uint64_t count,
                   trireme_dtype dtype, int32_t to, uint64_t tag,
                   const trireme_operation_options *options, trireme_request **out_request);

/**
 * Receives elements from one rank, or from any.
 *
 * Blocks until it is done on this rank or the deadline passes. Keeps no pointer. Takes the
 * earliest message of that rank with this tag, or of any rank or tag. Earlier messages that do not
 * match are set aside, up to 64 MiB for each sender. Beyond that their sender waits. A message of
 * another count or dtype is TRIREME_ERROR_MISMATCH, whose text has both sides.
 *
 * @param communicator  The communicator.
 * @param[out] data  Memory for `count` elements.
 * @param count  Elements; exactly what the sender sends.
 * @param dtype  Type of the elements.
 * @param from  Rank that sends, or TRIREME_ANY_SOURCE.
 * @param tag  The tag the sender named; must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_receive(trireme_communicator *communicator, void *data, uint64_t count, trireme_dtype dtype,
                int32_t from, uint64_t tag, const trireme_operation_options *options);

/**
 * Starts trireme_receive() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Messages progress
 * independently of collectives and of each other.
 *
 * @param communicator  The communicator.
 * @param[out] data  Memory for `count` elements.
 * @param count  Elements; exactly what the sender sends.
 * @param dtype  Type of the elements.
 * @param from  Rank that sends, or TRIREME_ANY_SOURCE.
 * @param tag  The tag the sender named; must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_receive_start(trireme_communicator *communicator, void *data, uint64_t count,
                      trireme_dtype dtype, int32_t from, uint64_t tag,
                      const trireme_operation_options *options, trireme_request **out_request);

/**
 * Receives at most `capacity` elements, and describes the message.
 *
 * Blocks until it is done on this rank or the deadline passes. Keeps no pointer. As
 * trireme_receive(), but the message may be shorter. A longer one is TRIREME_ERROR_MISMATCH, whose
 * text has both sizes. Not inside a batch (trireme_batch_begin()), which is
 * TRIREME_ERROR_INVALID_STATE.
 *
 * @param communicator  The communicator.
 * @param[out] data  Memory for `capacity` elements.
 * @param capacity  Elements that fit.
 * @param dtype  Type of the elements.
 * @param from  Rank that sends, or TRIREME_ANY_SOURCE.
 * @param tag  The tag the sender named; must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_info  The message. Set struct_size before the call. Not written on failure.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_receive_message(trireme_communicator *communicator, void *data, uint64_t capacity,
                        trireme_dtype dtype, int32_t from, uint64_t tag,
                        const trireme_operation_options *options, trireme_message_info *out_info);

/**
 * Starts trireme_receive_message() and returns at once.
 *
 * Does not wait for a peer. Keeps the buffers until the request is done. Messages progress
 * independently of collectives and of each other. trireme_request_get_message() describes the
 * message.
 *
 * @param communicator  The communicator.
 * @param[out] data  Memory for `capacity` elements.
 * @param capacity  Elements that fit.
 * @param dtype  Type of the elements.
 * @param from  Rank that sends, or TRIREME_ANY_SOURCE.
 * @param tag  The tag the sender named; must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_receive_message_start(
    trireme_communicator *communicator, void *data, uint64_t capacity, trireme_dtype dtype,
    int32_t from, uint64_t tag, const trireme_operation_options *options,
    trireme_request **out_request);

/**
 * Receives a message of any size into new memory.
 *
 * Blocks until it is done on this rank or the deadline passes. Keeps no pointer. As
 * trireme_receive(), but only the sender knows the size. Not inside a batch
 * (trireme_batch_begin()), which is TRIREME_ERROR_INVALID_STATE.
 *
 * @param communicator  The communicator.
 * @param dtype  Type of the elements.
 * @param from  Rank that sends, or TRIREME_ANY_SOURCE.
 * @param tag  The tag the sender named; must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_info  The message; may be NULL. Set struct_size before the call. Not written on
 *                  failure.
 * @param[out] out_buffer  A buffer with the elements. Free it with trireme_buffer_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_receive_to_buffer(trireme_communicator *communicator, trireme_dtype dtype, int32_t from,
                          uint64_t tag, const trireme_operation_options *options,
                          trireme_message_info *out_info, trireme_buffer **out_buffer);

/**
 * Waits for a message that a receive would take, and leaves it for the receive.
 *
 * Blocks until it is done on this rank or the deadline passes. Keeps no pointer. Another thread may
 * take the message before this one does. With a short timeout the call only looks. Not inside a
 * batch (trireme_batch_begin()), which is TRIREME_ERROR_INVALID_STATE.
 *
 * @param communicator  The communicator.
 * @param from  Rank that sends, or TRIREME_ANY_SOURCE.
 * @param tag  The tag the sender named; must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_info  The message. Set struct_size before the call. Not written on failure.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_probe(trireme_communicator *communicator, int32_t from, uint64_t tag,
              const trireme_operation_options *options, trireme_message_info *out_info);

/**
 * Starts trireme_probe() and returns at once.
 *
 * Does not wait for a peer. Once the request is done, trireme_request_get_message() describes the
 * message.
 *
 * @param communicator  The communicator.
 * @param from  Rank that sends, or TRIREME_ANY_SOURCE.
 * @param tag  The tag the sender named; must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG.
 * @param options  Options of this call; NULL for the defaults.
 * @param[out] out_request  The started operation; free it with trireme_request_destroy(). Not
 *                  written on failure.
 * @retval TRIREME_OK  Started; its own outcome comes through the request.
 * @return An argument, handle, memory or earlier failure as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_probe_start(trireme_communicator *communicator, int32_t from, uint64_t tag,
                    const trireme_operation_options *options, trireme_request **out_request);

/**
 * Sends to one rank and receives from one. Both may be the same rank, or this rank itself.
 *
 * Blocks until it is done on this rank or the deadline passes. Keeps no pointer. Both halves are
 * under way at once, so that rings and pairs of such calls need no order. Otherwise each half does
 * the same as trireme_send() and trireme_receive().
 *
 * @param communicator  The communicator.
 * @param send  `send_count` elements.
 * @param send_count  Elements to send.
 * @param to  Rank that receives them.
 * @param send_tag  Tag of the message to send.
 * @param[out] receive  Memory for `receive_count` elements; must not overlap `send`.
 * @param receive_count  Elements to receive; exactly what the sender sends.
 * @param from  Rank that sends them, or TRIREME_ANY_SOURCE.
 * @param receive_tag  Tag of the message to receive; must be 0 with TRIREME_OPERATION_FLAG_ANY_TAG.
 * @param dtype  Type of the elements of both.
 * @param options  Options of this call; NULL for the defaults.
 * @retval TRIREME_OK  Done on this rank.
 * @return Any other status as listed at the top of collectives.h.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_send_receive(
    trireme_communicator *communicator, const void *send, uint64_t send_count, int32_t to,
    uint64_t send_tag, void *receive, uint64_t receive_count, int32_t from, uint64_t receive_tag,
    trireme_dtype dtype, const trireme_operation_options *options);

TRIREME_END_C

#endif
