/**
 * @file buffer.h
 * @brief Memory that collectives read in place, and memory of devices.
 *
 * Ownership: a buffer is created by trireme_buffer_alloc() or its like, and destroyed by
 * trireme_buffer_destroy(); it keeps its communicator alive. Thread safety: all functions here
 * may be called from any thread; the memory itself is the caller's to guard.
 */
#ifndef TRIREME_BUFFER_H
#define TRIREME_BUFFER_H

#include <stdint.h>
#include <trireme/device.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/**
 * Allocates memory where the communicator works.
 *
 * For a communicator of the host it is memory that the peers of this host read directly, without a
 * copy. Collectives recognise it by its address, also in the middle of it; any other memory works
 * too, with a copy. For a communicator of a device it is memory of that device:
 * trireme_buffer_alloc_kind() with TRIREME_MEMORY_KIND_DEVICE.
 *
 * Local: does not wait for the peers. The memory is zero and aligned to 4096 bytes.
 *
 * @param communicator  The communicator whose operations will use the memory.
 * @param bytes         Size; 0 gives a buffer whose memory must not be touched.
 * @param[out] out_buffer  The new buffer; free it with trireme_buffer_destroy(). Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_buffer is NULL.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The system does not have that much.
 * @retval TRIREME_ERROR_SYSTEM  The mapping could not be made.
 * @retval TRIREME_ERROR_UNSUPPORTED, TRIREME_ERROR_DEVICE, TRIREME_ERROR_TIMEOUT  As for
 * trireme_buffer_alloc_kind().
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_buffer_alloc(
    trireme_communicator *communicator, uint64_t bytes, trireme_buffer **out_buffer);

/**
 * Allocates memory of a kind. The communicator's operations take it as an operand.
 *
 * A communicator of a device has kinds TRIREME_MEMORY_KIND_DEVICE and TRIREME_MEMORY_KIND_PINNED.
 * The host reads and writes PINNED, and the device does at the same address. A communicator of the
 * host has TRIREME_MEMORY_KIND_HOST. TRIREME_MEMORY_KIND_DEFAULT is DEVICE or HOST, by the
 * communicator.
 *
 * The memory is zero and aligned to 4096 bytes. The device maps DEVICE in pieces, mostly of 2 MiB:
 * many small buffers take more of its memory than their sizes.
 *
 * Waits for the driver, and with DEVICE for the device, which sets the memory to zero. The deadline
 * is timeout_ns of the communicator's options. A failure leaves the communicator's group as it is.
 * Does not wait for the peers.
 *
 * Operations of the library keep the memory until they are over. trireme_buffer_destroy() keeps it
 * until the work in the device's default stream is done. The caller's work in other streams is done
 * before. Once the device has failed an operation, the memory of its buffers is never given back,
 * as the driver could wait there.
 *
 * @param communicator  The communicator whose operations will use the memory.
 * @param kind          TRIREME_MEMORY_KIND_*.
 * @param bytes         Size; 0 gives a buffer whose memory must not be touched.
 * @param[out] out_buffer  The new buffer; free it with trireme_buffer_destroy(). Not written on
 * failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_buffer is NULL, `kind` is no kind of memory, or the
 * communicator works elsewhere.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The device, or the host, does not have that much. Nothing is
 * left of the attempt.
 * @retval TRIREME_ERROR_UNSUPPORTED  `kind` is MANAGED. Or it is DEVICE, and the device's driver
 * cannot map memory.
 * @retval TRIREME_ERROR_DEVICE  The driver fails. The message has its function and its code.
 * @retval TRIREME_ERROR_TIMEOUT  The device has not set the memory to zero by the deadline. The
 * memory is then never given back.
 * @retval TRIREME_ERROR_SYSTEM  The mapping of HOST could not be made.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_buffer_alloc_kind(trireme_communicator *communicator, trireme_memory_kind kind,
                          uint64_t bytes, trireme_buffer **out_buffer);

/**
 * Destroys the handle. The library frees the memory once no operation uses it any more.
 *
 * Never waits for a peer. For a communicator of a device it waits for the work in the device's
 * default stream, which may use the memory. The deadline is timeout_ns of the
 * communicator's options. The memory is never given back after it, nor if that stream is recorded
 * into a graph.
 *
 * @param buffer  A buffer; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_buffer_destroy(trireme_buffer *buffer);

/**
 * Gives the address of a buffer's memory. The host cannot read memory of a device there.
 *
 * Does not block. The address is good until trireme_buffer_destroy().
 *
 * @param buffer  The buffer.
 * @param[out] out_data  First byte. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live buffer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_data is NULL.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_buffer_get_data(const trireme_buffer *buffer, void **out_data);

/**
 * Gives the size of a buffer's memory.
 *
 * Does not block.
 *
 * @param buffer  The buffer.
 * @param[out] out_bytes  The size asked for. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live buffer of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_bytes is NULL.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_buffer_get_bytes(const trireme_buffer *buffer, uint64_t *out_bytes);

/**
 * Copies bytes on this rank: between memory of the communicator's device and of the host, or within
 * one of them.
 *
 * For a communicator of a device each side is memory of that device, or any memory of the host but
 * managed memory. Memory of the host that is not pinned goes through pinned memory, in pieces of
 * 4 MiB. For a communicator of the host both are memory of the host.
 *
 * Waits for the device: the copy begins when the earlier work in the stream is done, and the call
 * returns when the bytes are there. With 0 bytes it waits for that work alone. The deadline is
 * timeout_ns of the communicator's options. Does not wait for the peers, and a failure leaves the
 * communicator's group as it is. Keeps no pointer.
 *
 * @param communicator  Whose device it is.
 * @param to            Where the bytes go. It has no byte in common with `from`.
 * @param from          Where they come from.
 * @param bytes         How many; the addresses may be NULL for 0.
 * @param stream        The handle of a stream of the device's primary context, for example a
 * cudaStream_t. NULL is the default stream, and the only one for a communicator of the host.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live communicator of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  An address is NULL, or its memory is managed, another
 * device's, or a device's for a communicator of the host. The two have bytes in common, `bytes` is
 * out of range, or the stream is of another context.
 * @retval TRIREME_ERROR_INVALID_STATE  The stream is recorded into a graph.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  No memory can be pinned.
 * @retval TRIREME_ERROR_DEVICE  The driver fails. The message has its function and its code.
 * @retval TRIREME_ERROR_TIMEOUT  The device has not done its work by the deadline. If the message
 * says that the device may still copy, keep the memory of this call. The library then gives no
 * memory of the device back.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_memory_copy(
    trireme_communicator *communicator, void *to, const void *from, uint64_t bytes, void *stream);

TRIREME_END_C

#endif
