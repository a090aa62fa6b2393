/**
 * @file transport.h
 * @brief A group whose bytes the caller's own functions carry, such as a program's network layer.
 *
 * A rank joins such a group by the rendezvous "transport://NAME" with
 * trireme_communicator_options.transport set. Frames are datagrams of up to maximum_frame_bytes.
 * The transport keeps these rules:
 *
 * - It delivers every frame whole and once.
 * - It delivers frames from one rank to another in the order in which they were sent.
 *
 * The library notices a broken rule and ends the group with TRIREME_ERROR_CORRUPT. All collectives,
 * messages and models work on such a group. It can have no children, because a transport carries
 * one group.
 *
 * Ownership: the library copies the struct. user_data and the functions must stay valid until the
 * library calls `released`. Frames lie in memory of the library, never in the caller's buffers.
 * They are valid only while the function runs.
 *
 * Thread safety: one thread of the library calls `send` and another one calls `receive`. The
 * caller's threads never do. Neither function may call the library.
 */
#ifndef TRIREME_TRANSPORT_H
#define TRIREME_TRANSPORT_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>

TRIREME_BEGIN_C

/** Least maximum_frame_bytes, in bytes. */
#define TRIREME_TRANSPORT_FRAME_BYTES_MIN 1024

/**
 * Hands one frame to the transport.
 *
 * @param user_data  As in the struct.
 * @param to         Rank that gets the frame.
 * @param data       The frame.
 * @param bytes      Length of the frame, 1 to maximum_frame_bytes.
 * @param timeout_ns Longest wait in ns until there is room for the frame.
 * @return TRIREME_OK: the frame will arrive. TRIREME_ERROR_TIMEOUT: the transport did not take the
 *         frame, also because the peer is not there yet; the library offers it again. Anything else
 *         is a failure of the transport. It ends the group with TRIREME_ERROR_CALLBACK, unless the
 *         peer has left.
 */
typedef trireme_status(TRIREME_CALLCONV *trireme_transport_send_callback)(
    void *user_data, int32_t to, const void *data, uint64_t bytes, uint64_t timeout_ns);

/**
 * Takes one frame of any rank from the transport.
 *
 * @param user_data  As in the struct.
 * @param[out] out_from   Rank that sent the frame.
 * @param[out] data       Memory into which the function writes the frame.
 * @param capacity        Bytes at `data`, maximum_frame_bytes.
 * @param[out] out_bytes  Length of the frame.
 * @param timeout_ns  Longest wait in ns for a frame.
 * @return TRIREME_OK: a frame came. TRIREME_ERROR_TIMEOUT: none came. Anything else is a failure of
 *         the transport, which ends the group with TRIREME_ERROR_CALLBACK.
 */
typedef trireme_status(TRIREME_CALLCONV *trireme_transport_receive_callback)(
    void *user_data, int32_t *out_from, void *data, uint64_t capacity, uint64_t *out_bytes,
    uint64_t timeout_ns);

/**
 * Says that the library will not call the transport again.
 *
 * The library calls it once if trireme_communicator_create() answered TRIREME_OK. The call comes
 * after the communicator was destroyed and its last frames were handed over, at most some seconds
 * later. It never comes while a function of the transport runs. It comes on a thread of the
 * library, or on the thread that destroys the communicator.
 *
 * @param user_data  As in the struct.
 */
typedef void(TRIREME_CALLCONV *trireme_transport_released_callback)(void *user_data);

/** Functions that carry frames between the ranks of one group. */
typedef struct trireme_transport {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** Handed to every function; may be NULL. */
    void *user_data;
    /** Longest frame in bytes, at least TRIREME_TRANSPORT_FRAME_BYTES_MIN. Default: 65,536. */
    uint64_t maximum_frame_bytes;
    /** Hands a frame to the transport. Required. */
    trireme_transport_send_callback send;
    /** Takes a frame from the transport. Required. */
    trireme_transport_receive_callback receive;
    /** Called when the library needs the transport no more. Default: NULL, none. */
    trireme_transport_released_callback released;
} trireme_transport; /* since 1.0 */

/** A transport without functions, to be filled in. */
#define TRIREME_TRANSPORT_INIT TRIREME_INIT(trireme_transport)

TRIREME_END_C

#endif
