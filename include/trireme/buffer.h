/**
 * @file buffer.h
 * @brief Memory that collectives read in place.
 *
 * Ownership: a buffer is created by trireme_buffer_alloc() and destroyed by
 * trireme_buffer_destroy(); it keeps its communicator alive. Thread safety: all functions here
 * may be called from any thread; the memory itself is the caller's to guard.
 */
#ifndef TRIREME_BUFFER_H
#define TRIREME_BUFFER_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/**
 * Allocates memory that the peers of this host read directly, without a copy.
 *
 * Local: does not wait for the peers. The memory is zero and aligned to 4096 bytes. Collectives
 * recognise it by its address, also in the middle of it; any other memory works too, with a copy.
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
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_buffer_alloc(
    trireme_communicator *communicator, uint64_t bytes, trireme_buffer **out_buffer);

/**
 * Destroys the handle. The library frees the memory once no operation uses it any more.
 *
 * Never waits for a peer.
 *
 * @param buffer  A buffer; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_buffer_destroy(trireme_buffer *buffer);

/**
 * Gives the address of a buffer's memory.
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

TRIREME_END_C

#endif
