/**
 * @file request.h
 * @brief Started operations: testing them, waiting for them, cancelling them.
 *
 * Ownership: a `_start` function creates a request, trireme_request_destroy() ends it; it keeps
 * its communicator alive. Work progresses without the caller polling. The library does not touch
 * the operation's buffers any more once its request is done, whatever the outcome.
 *
 * Thread safety: all functions here may be called from any thread, also concurrently.
 */
#ifndef TRIREME_REQUEST_H
#define TRIREME_REQUEST_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/messages.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/**
 * Called once when a request is done, on a thread of the library with no lock held. It may call any
 * function of the library except blocking operations on the same communicator. `status` is the
 * operation's; trireme_last_error() on this thread tells its message.
 */
typedef void(TRIREME_CALLCONV *trireme_completion_callback)(trireme_status status, void *user_data);

/**
 * Asks whether an operation is done.
 *
 * Does not block.
 *
 * @param request  The request.
 * @param[out] out_done  1 when done, else 0. Not written when the operation failed.
 * @retval TRIREME_OK  The operation is still running, or it is done and went well.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live request of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_done is NULL.
 * @return Any other status: the operation has failed with it; see the function that started it.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_request_test(const trireme_request *request, int32_t *out_done);

/**
 * Waits until an operation is done.
 *
 * Blocks up to timeout_ns. A wait that ends early leaves the operation running.
 *
 * @param request     The request.
 * @param timeout_ns  Longest wait; 0 asks without waiting.
 * @retval TRIREME_OK  The operation is done and went well.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live request of this process.
 * @retval TRIREME_ERROR_TIMEOUT  Still running; or the operation itself ran out of time.
 *                  trireme_request_test() tells which.
 * @retval TRIREME_ERROR_INVALID_STATE  Still running, and this is a completion callback of its own
 * communicator, which must return before the operation can end.
 * @return Any other status: the operation has failed with it; see the function that started it.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_request_wait(const trireme_request *request, uint64_t timeout_ns);

/**
 * Waits until one of several operations is done.
 *
 * Blocks up to timeout_ns. The status of that operation is asked with trireme_request_test().
 *
 * @param requests    `count` requests.
 * @param count       1 or more.
 * @param timeout_ns  Longest wait; 0 asks without waiting.
 * @param[out] out_index  The lowest index among those that are done. Not written on failure.
 * @retval TRIREME_OK  One is done, well or not.
 * @retval TRIREME_ERROR_INVALID_HANDLE  One is no live request of this process; the message names
 * its index.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or count is 0.
 * @retval TRIREME_ERROR_TIMEOUT  All still run.
 * @retval TRIREME_ERROR_INVALID_STATE  As for trireme_request_wait().
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_request_wait_any(const trireme_request *const *requests, uint64_t count,
                         uint64_t timeout_ns, uint64_t *out_index);

/**
 * Cancels an operation that has not begun.
 *
 * Does not block. These operations have not begun:
 *
 * - A collective that waits in this rank's queue behind others. The ranks are then out of step. So
 *   the group fails, and the peers get TRIREME_ERROR_CANCELLED, too.
 * - A message that has not been matched. The group goes on.
 *
 * @param request  The request.
 * @retval TRIREME_OK  Withdrawn; the request is done with TRIREME_ERROR_CANCELLED.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live request of this process.
 * @retval TRIREME_ERROR_INVALID_STATE  It has begun or is done; it goes on to its end.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_request_cancel(trireme_request *request);

/**
 * Sets a function that the library calls when the operation is done. If it is done already, the
 * function runs at once, on this thread.
 *
 * Does not block. Keeps `callback` and `user_data` until the callback returns. It is called
 * exactly once, also when the request was destroyed before.
 *
 * @param request    The request.
 * @param callback   Called once. Required.
 * @param user_data  Handed to the callback.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live request of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  callback is NULL.
 * @retval TRIREME_ERROR_INVALID_STATE  The request has a callback already.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_request_on_complete(
    trireme_request *request, trireme_completion_callback callback, void *user_data);

/**
 * Gives a descriptor that becomes readable when the operation is done, for event loops.
 *
 * Does not block. The descriptor (an eventfd) belongs to the request and is closed with it; do not
 * close it. A second call gives the same one.
 *
 * @param request  The request.
 * @param[out] out_fd  The descriptor. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live request of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_fd is NULL.
 * @retval TRIREME_ERROR_SYSTEM  The system has no descriptor left.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_request_get_fd(trireme_request *request,
                                                                        int32_t *out_fd);

/**
 * Destroys the handle. The operation goes on to its end, and its buffers must live until then.
 *
 * Never waits.
 *
 * @param request  A request; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_request_destroy(trireme_request *request);

/**
 * Describes the message that a started receive or probe has found.
 *
 * Does not block.
 *
 * @param request  A request of trireme_receive_start(), trireme_receive_message_start() or
 *                  trireme_probe_start().
 * @param[out] out_info  Its message. Set struct_size before the call. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live request of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_info is NULL or its struct_size is too small.
 * @retval TRIREME_ERROR_INVALID_STATE  The request is not done, has failed, or is of another
 *                  operation.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_request_get_message(const trireme_request *request, trireme_message_info *out_info);

/**
 * Waits until all of several requests are done.
 *
 * Blocks until each is done or the timeout has passed; none is cancelled by it. May be called
 * again.
 *
 * @param requests  `count` requests; they may be of several communicators.
 * @param count  Number of requests; 0 is done at once.
 * @param timeout_ns  Longest wait; 0 asks without waiting.
 * @retval TRIREME_OK  All went well.
 * @retval TRIREME_ERROR_INVALID_HANDLE  One of them is no live request of this process; nothing was
 *                  waited for.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  requests is NULL although count is not 0.
 * @retval TRIREME_ERROR_TIMEOUT  Not all were done in time; says how many.
 * @retval TRIREME_ERROR_INVALID_STATE  Inside a completion callback of the communicator of one that
 *                  is not done.
 * @return Otherwise the failure of the first one, in this order, that failed.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_request_wait_all(
    const trireme_request *const *requests, uint64_t count, uint64_t timeout_ns);

TRIREME_END_C

#endif
