/*
 * A transport inside this process: one bounded queue of frames for each rank, and faults on order.
 */
#ifndef TRIREME_TESTS_TRANSPORT_H
#define TRIREME_TESTS_TRANSPORT_H

#include <stdint.h>
#include <trireme/trireme.h>

enum fault {
    FAULT_NONE,
    FAULT_SEND_FAILS,
    FAULT_RECEIVE_FAILS,
    FAULT_CUT,        /* the frame loses its last byte */
    FAULT_LONGER,     /* receive claims more bytes than there was room for */
    FAULT_TWICE,      /* the frame comes twice */
    FAULT_LOST,       /* the frame does not come */
    FAULT_GARBAGE,    /* other bytes of the same length come */
    FAULT_STRANGER,   /* the frame comes from a rank that does not exist */
    FAULT_SEND_HANGS, /* send does not return until net_let_go() */
    FAULT_RECEIVE_HANGS
};

struct net;

struct net *net_create(int world_size);
/* The transport of one rank. */
void net_transport(struct net *net, int rank, trireme_transport *out);
/* Strikes once, at this frame or a later one (counted from 0, over the frames that the rank sends
 * or receives). */
void net_break(struct net *net, int rank, enum fault fault, int frame);
void net_let_go(struct net *net);
/* Frames that a rank has sent. */
int net_sent(struct net *net, int rank);
/* Waits until the library has released `count` transports of the net, and frees it. */
void net_destroy(struct net *net, int count);

/* A communicator over the net; returns the status of trireme_communicator_create(). */
trireme_status net_join(struct net *net, int rank, int world_size, const char *rendezvous,
                        uint64_t timeout_ns, trireme_communicator **out);

#endif
