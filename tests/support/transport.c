#include "transport.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_QUEUED 16 /* frames: few, so that senders meet a full queue */
#define FRAME_BYTES 8192

struct frame {
    struct frame *next;
    int32_t from;
    uint64_t bytes;
    uint64_t claimed; /* what receive says */
    unsigned char data[];
};

struct end {
    struct net *net;
    int rank;
    struct frame *first;
    struct frame **last;
    int queued;
    int sent, received;
    enum fault fault;
    int fault_frame;
};

struct net {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int world_size;
    bool let_go;
    bool closing; /* no frame is waited for: receivers end at once, not at their next timeout */
    int released;
    struct end ends[];
};

struct net *net_create(int world_size) {
    struct net *const net = calloc(1, sizeof *net + sizeof(struct end) * (size_t)world_size);
    if (net == NULL) abort();
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&net->mutex, NULL);
    pthread_cond_init(&net->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    net->world_size = world_size;
    for (int rank = 0; rank < world_size; ++rank) {
        struct end *const end = &net->ends[rank];
        end->net = net;
        end->rank = rank;
        end->last = &end->first;
    }
    return net;
}

static struct timespec moment(uint64_t timeout_ns) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t ns = (uint64_t)now.tv_nsec + timeout_ns;
    now.tv_sec += (time_t)(ns / 1000000000);
    now.tv_nsec = (long)(ns % 1000000000);
    return now;
}

/* Whether the fault happens now: once, to a frame that is late enough. */
static bool strikes(struct end *end, enum fault fault, int frame) {
    if (end->fault != fault || frame < end->fault_frame) return false;
    end->fault = FAULT_NONE;
    return true;
}

static void hang(struct net *net) {
    while (!net->let_go) pthread_cond_wait(&net->changed, &net->mutex);
}

static void
queue_frame(struct end *to, int32_t from, const void *data, uint64_t bytes, uint64_t claimed) {
    struct frame *const frame = malloc(sizeof *frame + bytes);
    if (frame == NULL) abort();
    frame->next = NULL;
    frame->from = from;
    frame->bytes = bytes;
    frame->claimed = claimed;
    memcpy(frame->data, data, bytes);
    *to->last = frame;
    to->last = &frame->next;
    ++to->queued;
    pthread_cond_broadcast(&to->net->changed);
}

static int32_t
send_frame(void *user_data, int32_t to, const void *data, uint64_t bytes, uint64_t timeout_ns) {
    struct end *const end = user_data;
    struct net *const net = end->net;
    if (to < 0 || to >= net->world_size || bytes == 0 || bytes > FRAME_BYTES) abort();
    struct end *const peer = &net->ends[to];
    const struct timespec until = moment(timeout_ns);
    int32_t status = TRIREME_OK;
    pthread_mutex_lock(&net->mutex);
    while (peer->queued >= MOST_QUEUED && status == TRIREME_OK) {
        if (pthread_cond_timedwait(&net->changed, &net->mutex, &until) != 0) {
            status = TRIREME_ERROR_TIMEOUT;
        }
    }
    if (status == TRIREME_OK) {
        const int number = end->sent++;
        unsigned char *const other = malloc(bytes);
        if (other == NULL) abort();
        memset(other, 0xa7, bytes);
        if (strikes(end, FAULT_SEND_FAILS, number)) {
            status = -77;
        } else if (strikes(end, FAULT_SEND_HANGS, number)) {
            hang(net);
            status = -77;
        } else if (strikes(end, FAULT_CUT, number)) {
            queue_frame(peer, end->rank, data, bytes - 1, bytes - 1);
        } else if (strikes(end, FAULT_LONGER, number)) {
            queue_frame(peer, end->rank, data, bytes, FRAME_BYTES + 1);
        } else if (strikes(end, FAULT_TWICE, number)) {
            queue_frame(peer, end->rank, data, bytes, bytes);
            queue_frame(peer, end->rank, data, bytes, bytes);
        } else if (strikes(end, FAULT_GARBAGE, number)) {
            queue_frame(peer, end->rank, other, bytes, bytes);
        } else if (strikes(end, FAULT_STRANGER, number)) {
            queue_frame(peer, net->world_size, data, bytes, bytes);
        } else if (!strikes(end, FAULT_LOST, number)) {
            queue_frame(peer, end->rank, data, bytes, bytes);
        }
        free(other);
    }
    pthread_mutex_unlock(&net->mutex);
    return status;
}

static int32_t receive_frame(void *user_data, int32_t *out_from, void *data, uint64_t capacity,
                             uint64_t *out_bytes, uint64_t timeout_ns) {
    struct end *const end = user_data;
    struct net *const net = end->net;
    const struct timespec until = moment(timeout_ns);
    int32_t status = TRIREME_OK;
    pthread_mutex_lock(&net->mutex);
    while (end->first == NULL && status == TRIREME_OK) {
        if (net->closing || pthread_cond_timedwait(&net->changed, &net->mutex, &until) != 0) {
            status = TRIREME_ERROR_TIMEOUT;
        }
    }
    if (status == TRIREME_OK) {
        const int number = end->received++;
        if (strikes(end, FAULT_RECEIVE_FAILS, number)) {
            status = -78;
        } else if (strikes(end, FAULT_RECEIVE_HANGS, number)) {
            hang(net);
            status = -78;
        }
    }
    if (status == TRIREME_OK) {
        struct frame *const frame = end->first;
        end->first = frame->next;
        if (end->first == NULL) end->last = &end->first;
        --end->queued;
        if (frame->bytes > capacity) abort();
        memcpy(data, frame->data, frame->bytes);
        *out_from = frame->from;
        *out_bytes = frame->claimed;
        free(frame);
        pthread_cond_broadcast(&net->changed);
    }
    pthread_mutex_unlock(&net->mutex);
    return status;
}

static void released(void *user_data) {
    struct end *const end = user_data;
    struct net *const net = end->net;
    pthread_mutex_lock(&net->mutex);
    ++net->released;
    pthread_cond_broadcast(&net->changed);
    pthread_mutex_unlock(&net->mutex);
}

void net_transport(struct net *net, int rank, trireme_transport *out) {
    *out = (trireme_transport)TRIREME_TRANSPORT_INIT;
    out->user_data = &net->ends[rank];
    out->maximum_frame_bytes = FRAME_BYTES;
    out->send = send_frame;
    out->receive = receive_frame;
    out->released = released;
}

void net_break(struct net *net, int rank, enum fault fault, int frame) {
    pthread_mutex_lock(&net->mutex);
    net->ends[rank].fault = fault;
    net->ends[rank].fault_frame = frame;
    pthread_mutex_unlock(&net->mutex);
}

void net_let_go(struct net *net) {
    pthread_mutex_lock(&net->mutex);
    net->let_go = true;
    pthread_cond_broadcast(&net->changed);
    pthread_mutex_unlock(&net->mutex);
}

int net_sent(struct net *net, int rank) {
    pthread_mutex_lock(&net->mutex);
    const int sent = net->ends[rank].sent;
    pthread_mutex_unlock(&net->mutex);
    return sent;
}

void net_destroy(struct net *net, int count) {
    net_let_go(net);
    pthread_mutex_lock(&net->mutex);
    net->closing = true;
    pthread_cond_broadcast(&net->changed);
    while (net->released < count) pthread_cond_wait(&net->changed, &net->mutex);
    pthread_mutex_unlock(&net->mutex);
    for (int rank = 0; rank < net->world_size; ++rank) {
        while (net->ends[rank].first != NULL) {
            struct frame *const frame = net->ends[rank].first;
            net->ends[rank].first = frame->next;
            free(frame);
        }
    }
    pthread_cond_destroy(&net->changed);
    pthread_mutex_destroy(&net->mutex);
    free(net);
}

trireme_status net_join(struct net *net, int rank, int world_size, const char *rendezvous,
                        uint64_t timeout_ns, trireme_communicator **out) {
    trireme_transport transport;
    net_transport(net, rank, &transport);
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = world_size;
    options.rendezvous = rendezvous;
    options.timeout_ns = timeout_ns;
    options.transport = &transport;
    return trireme_communicator_create(&options, out);
}
