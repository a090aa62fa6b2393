/**
 * @file transport.h
 * @brief A group whose bytes the caller's own functions carry, such as a program's network layer.
 *
 * A rank joins such a group by the rendezvous "host-transport://NAME" with
 * trireme_communicator_options.transport set. Frames are datagrams of up to
 * maximum_frame_bytes. The transport must deliver every frame whole, once, and those from one rank
 * to another in the order in which they were sent; what it does not is found and ends the group
 * with TRIREME_ERROR_CORRUPT. All collectives, messages and models work on such a group; groups
 * made from it do not, because a transport carries one group.
 *
 * Ownership: the struct is copied. user_data and the functions must stay valid until `released` is
 * called. Frames lie in memory of the library, never in the caller's buffers, and only while the
 * function runs.
 *
 * Thread safety: `send` is called by one thread of the library and `receive` by another one, never
 * by the caller's threads. Neither may call the library.
 */
#ifndef TRIREME_TRANSPORT_H
#define TRIREME_TRANSPORT_H

#include <stdint.h>
#include <trireme/export.h>

TRIREME_BEGIN_C

/** Smallest maximum_frame_bytes. */
#define TRIREME_TRANSPORT_FRAME_BYTES_MIN 1024

/**
 * Hands one frame to the transport.
 *
 * @param user_data  As in the struct.
 * @param to         Rank that shall get it.
 * @param data       The frame.
 * @param bytes      Its length, 1 to maximum_frame_bytes.
 * @param timeout_ns How long it may wait until there is room for the frame.
 * @return TRIREME_OK when the frame will arrive; TRIREME_ERROR_TIMEOUT when it was not taken, also
 *         because the peer is not there yet: it is offered again. Anything else is a failure of the
 *         transport, which ends the group with TRIREME_ERROR_CALLBACK unless the peer has left.
 */
typedef int32_t (*trireme_transport_send)(void *user_data, int32_t to, const void *data,
                                          uint64_t bytes, uint64_t timeout_ns);

/**
 * Takes one frame of any rank from the transport.
 *
 * @param user_data  As in the struct.
 * @param[out] out_from   Rank that sent it.
 * @param[out] data       Where the frame goes.
 * @param capacity        Bytes there, maximum_frame_bytes.
 * @param[out] out_bytes  Length of the frame.
 * @param timeout_ns  How long it may wait for a frame.
 * @return TRIREME_OK with a frame; TRIREME_ERROR_TIMEOUT when none came. Anything else is a failure
 *         of the transport, which ends the group with TRIREME_ERROR_CALLBACK.
 */
typedef int32_t (*trireme_transport_receive)(void *user_data, int32_t *out_from, void *data,
                                             uint64_t capacity, uint64_t *out_bytes,
                                             uint64_t timeout_ns);

/**
 * Says that the library will not call the transport again.
 *
 * Called once if trireme_communicator_create() answered TRIREME_OK, after the communicator has been
 * destroyed and what it had sent has been handed over, at most some seconds later; never while a
 * function of the transport does not return. On a thread of the library or on the one that destroys
 * the communicator.
 *
 * @param user_data  As in the struct.
 */
typedef void (*trireme_transport_released)(void *user_data);

/** Functions that carry frames between the ranks of one group. */
typedef struct trireme_transport {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** Handed to every function; may be NULL. */
    void *user_data;
    /** Longest frame, at least TRIREME_TRANSPORT_FRAME_BYTES_MIN; 0: 65,536. */
    uint64_t maximum_frame_bytes;
    /** Required. */
    trireme_transport_send send;
    /** Required. */
    trireme_transport_receive receive;
    /** NULL if nobody needs to know. */
    trireme_transport_released released;
} trireme_transport; /* since 1.0 */

/** A transport without functions, to be filled in. */
#define TRIREME_TRANSPORT_INIT { sizeof(trireme_transport), 0, 0, 0, 0, 0, 0 }

TRIREME_END_C

#endif
