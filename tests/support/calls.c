#include "calls.h"

#include <stdlib.h>
#include <string.h>

#define MOST_OPERATIONS 18

bool is_collective(trireme_operation_kind operation) {
    return operation >= TRIREME_OPERATION_KIND_ALL_REDUCE &&
           operation <= TRIREME_OPERATION_KIND_ALL_TO_ALL_V &&
           operation != TRIREME_OPERATION_KIND_SEND && operation != TRIREME_OPERATION_KIND_RECEIVE;
}

bool is_v_form(trireme_operation_kind operation) {
    return operation == TRIREME_OPERATION_KIND_REDUCE_SCATTER_V ||
           operation == TRIREME_OPERATION_KIND_ALL_GATHER_V ||
           operation == TRIREME_OPERATION_KIND_GATHER_V ||
           operation == TRIREME_OPERATION_KIND_SCATTER_V ||
           operation == TRIREME_OPERATION_KIND_ALL_TO_ALL_V;
}

bool reduces(trireme_operation_kind operation) {
    return operation == TRIREME_OPERATION_KIND_ALL_REDUCE ||
           operation == TRIREME_OPERATION_KIND_REDUCE ||
           operation == TRIREME_OPERATION_KIND_REDUCE_SCATTER ||
           operation == TRIREME_OPERATION_KIND_REDUCE_SCATTER_V;
}

bool has_root(trireme_operation_kind operation) {
    return operation == TRIREME_OPERATION_KIND_BROADCAST ||
           operation == TRIREME_OPERATION_KIND_REDUCE ||
           operation == TRIREME_OPERATION_KIND_GATHER ||
           operation == TRIREME_OPERATION_KIND_GATHER_V ||
           operation == TRIREME_OPERATION_KIND_SCATTER ||
           operation == TRIREME_OPERATION_KIND_SCATTER_V;
}

const char *operation_text(trireme_operation_kind operation) {
    static const char *const names[MOST_OPERATIONS] = {"",
                                                       "all_reduce",
                                                       "reduce_scatter",
                                                       "reduce_scatter_v",
                                                       "all_gather",
                                                       "all_gather_v",
                                                       "broadcast",
                                                       "barrier",
                                                       "send",
                                                       "receive",
                                                       "reduce",
                                                       "gather",
                                                       "gather_v",
                                                       "scatter",
                                                       "scatter_v",
                                                       "all_to_all",
                                                       "all_to_all_v",
                                                       "probe"};
    return names[operation];
}

/* Elements of the block of one rank, and of all blocks before it. */
static uint64_t block(const struct call *call, int rank) {
    return is_v_form(call->operation) ? call->counts[rank] : call->count;
}

static uint64_t before(const struct call *call, int rank) {
    uint64_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += block(call, r);
    return sum;
}

uint64_t pair_count(const struct call *call, int source, int destination) {
    if (call->operation == TRIREME_OPERATION_KIND_ALL_TO_ALL) return call->count;
    return call->counts[(source + 2 * destination) % MOST_RANKS];
}

static void
sizes(const struct call *call, int rank, int world_size, uint64_t *send, uint64_t *receive) {
    const bool root = rank == call->root;
    *send = *receive = 0;
    switch (call->operation) {
        case TRIREME_OPERATION_KIND_ALL_REDUCE: *send = *receive = call->count; break;
        case TRIREME_OPERATION_KIND_REDUCE:
            *send = call->count;
            *receive = root ? call->count : 0;
            break;
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER:
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER_V:
            *send = before(call, world_size);
            *receive = block(call, rank);
            break;
        case TRIREME_OPERATION_KIND_ALL_GATHER:
        case TRIREME_OPERATION_KIND_ALL_GATHER_V:
            *send = block(call, rank);
            *receive = before(call, world_size);
            break;
        case TRIREME_OPERATION_KIND_GATHER:
        case TRIREME_OPERATION_KIND_GATHER_V:
            *send = block(call, rank);
            *receive = root ? before(call, world_size) : 0;
            break;
        case TRIREME_OPERATION_KIND_SCATTER:
        case TRIREME_OPERATION_KIND_SCATTER_V:
            *send = root ? before(call, world_size) : 0;
            *receive = block(call, rank);
            break;
        case TRIREME_OPERATION_KIND_ALL_TO_ALL:
        case TRIREME_OPERATION_KIND_ALL_TO_ALL_V:
            for (int peer = 0; peer < world_size; ++peer) {
                *send += pair_count(call, rank, peer);
                *receive += pair_count(call, peer, rank);
            }
            break;
        case TRIREME_OPERATION_KIND_BROADCAST: *receive = call->count; break;
        default: break;
    }
}

struct origin origin_of(const struct call *call, int rank, int world_size, uint64_t index) {
    struct origin origin = {0, index};
    switch (call->operation) {
        case TRIREME_OPERATION_KIND_BROADCAST: origin.source = call->root; return origin;
        case TRIREME_OPERATION_KIND_SCATTER:
        case TRIREME_OPERATION_KIND_SCATTER_V:
            origin.source = call->root;
            origin.index += before(call, rank);
            return origin;
        case TRIREME_OPERATION_KIND_ALL_TO_ALL:
        case TRIREME_OPERATION_KIND_ALL_TO_ALL_V:
            while (origin.source < world_size &&
                   origin.index >= pair_count(call, origin.source, rank)) {
                origin.index -= pair_count(call, origin.source++, rank);
            }
            for (int peer = 0; peer < rank; ++peer) {
                origin.index += pair_count(call, origin.source, peer);
            }
            return origin;
        default: /* the gathers */
            while (origin.source < world_size && origin.index >= block(call, origin.source)) {
                origin.index -= block(call, origin.source++);
            }
            return origin;
    }
}

static bool allocate(trireme_communicator *communicator, bool shared, uint64_t bytes,
                     trireme_buffer **buffer, unsigned char **out) {
    if (!shared) {
        *out = malloc(bytes + 1);
        return *out != NULL;
    }
    void *data = NULL;
    if (trireme_buffer_alloc(communicator, bytes, buffer) != TRIREME_OK) return false;
    if (trireme_buffer_get_data(*buffer, &data) != TRIREME_OK) return false;
    *out = data;
    return true;
}

bool allocate_call(trireme_communicator *communicator, const struct call *call, int rank,
                   int world_size, bool shared, struct call_memory *memory) {
    const uint64_t size = trireme_dtype_bytes(call->dtype);
    memset(memory, 0, sizeof *memory);
    sizes(call, rank, world_size, &memory->send_bytes, &memory->receive_bytes);
    memory->send_bytes *= size;
    memory->receive_bytes *= size;
    return allocate(communicator, shared, memory->send_bytes, &memory->buffers[0], &memory->send) &&
           allocate(communicator, shared, memory->receive_bytes, &memory->buffers[1],
                    &memory->receive);
}

void free_call(struct call_memory *memory, bool shared) {
    if (shared) {
        trireme_buffer_destroy(memory->buffers[0]);
        trireme_buffer_destroy(memory->buffers[1]);
    } else {
        free(memory->send);
        free(memory->receive);
    }
    memset(memory, 0, sizeof *memory);
}

static void pair_counts(trireme_communicator *communicator, const struct call *call, uint64_t *sent,
                        uint64_t *received) {
    int32_t rank = 0, world_size = 0;
    if (trireme_communicator_get_rank(communicator, &rank) != TRIREME_OK ||
        trireme_communicator_get_world_size(communicator, &world_size) != TRIREME_OK) {
        abort();
    }
    for (int peer = 0; peer < world_size; ++peer) {
        sent[peer] = pair_count(call, rank, peer);
        received[peer] = pair_count(call, peer, rank);
    }
}

static trireme_status
run_plain(trireme_communicator *communicator, const struct call *c, const struct call_memory *m,
          const trireme_operation_options *options) {
    switch (c->operation) {
        case TRIREME_OPERATION_KIND_ALL_REDUCE:
            return trireme_all_reduce(communicator, m->send, m->receive, c->count, c->dtype,
                                      c->reduction, options);
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER:
            return trireme_reduce_scatter(communicator, m->send, m->receive, c->count, c->dtype,
                                          c->reduction, options);
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER_V:
            return trireme_reduce_scatter_v(communicator, m->send, m->receive, c->counts, c->dtype,
                                            c->reduction, options);
        case TRIREME_OPERATION_KIND_ALL_GATHER:
            return trireme_all_gather(communicator, m->send, m->receive, c->count, c->dtype,
                                      options);
        case TRIREME_OPERATION_KIND_ALL_GATHER_V:
            return trireme_all_gather_v(communicator, m->send, m->receive, c->counts, c->dtype,
                                        options);
        case TRIREME_OPERATION_KIND_BROADCAST:
            return trireme_broadcast(communicator, m->receive, c->count, c->dtype, c->root,
                                     options);
        case TRIREME_OPERATION_KIND_REDUCE:
            return trireme_reduce(communicator, m->send, m->receive, c->count, c->dtype,
                                  c->reduction, c->root, options);
        case TRIREME_OPERATION_KIND_GATHER:
            return trireme_gather(communicator, m->send, m->receive, c->count, c->dtype, c->root,
                                  options);
        case TRIREME_OPERATION_KIND_GATHER_V:
            return trireme_gather_v(communicator, m->send, m->receive, c->counts, c->dtype, c->root,
                                    options);
        case TRIREME_OPERATION_KIND_SCATTER:
            return trireme_scatter(communicator, m->send, m->receive, c->count, c->dtype, c->root,
                                   options);
        case TRIREME_OPERATION_KIND_SCATTER_V:
            return trireme_scatter_v(communicator, m->send, m->receive, c->counts, c->dtype,
                                     c->root, options);
        case TRIREME_OPERATION_KIND_ALL_TO_ALL:
            return trireme_all_to_all(communicator, m->send, m->receive, c->count, c->dtype,
                                      options);
        case TRIREME_OPERATION_KIND_ALL_TO_ALL_V: {
            uint64_t sent[MOST_RANKS], received[MOST_RANKS];
            pair_counts(communicator, c, sent, received);
            return trireme_all_to_all_v(communicator, m->send, sent, m->receive, received, c->dtype,
                                        options);
        }
        default: return trireme_barrier(communicator, options);
    }
}

static trireme_status
start(trireme_communicator *communicator, const struct call *c, const struct call_memory *m,
      const trireme_operation_options *options, trireme_request **request) {
    switch (c->operation) {
        case TRIREME_OPERATION_KIND_ALL_REDUCE:
            return trireme_all_reduce_start(communicator, m->send, m->receive, c->count, c->dtype,
                                            c->reduction, options, request);
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER:
            return trireme_reduce_scatter_start(communicator, m->send, m->receive, c->count,
                                                c->dtype, c->reduction, options, request);
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER_V:
            return trireme_reduce_scatter_v_start(communicator, m->send, m->receive, c->counts,
                                                  c->dtype, c->reduction, options, request);
        case TRIREME_OPERATION_KIND_ALL_GATHER:
            return trireme_all_gather_start(communicator, m->send, m->receive, c->count, c->dtype,
                                            options, request);
        case TRIREME_OPERATION_KIND_ALL_GATHER_V:
            return trireme_all_gather_v_start(communicator, m->send, m->receive, c->counts,
                                              c->dtype, options, request);
        case TRIREME_OPERATION_KIND_BROADCAST:
            return trireme_broadcast_start(communicator, m->receive, c->count, c->dtype, c->root,
                                           options, request);
        case TRIREME_OPERATION_KIND_REDUCE:
            return trireme_reduce_start(communicator, m->send, m->receive, c->count, c->dtype,
                                        c->reduction, c->root, options, request);
        case TRIREME_OPERATION_KIND_GATHER:
            return trireme_gather_start(communicator, m->send, m->receive, c->count, c->dtype,
                                        c->root, options, request);
        case TRIREME_OPERATION_KIND_GATHER_V:
            return trireme_gather_v_start(communicator, m->send, m->receive, c->counts, c->dtype,
                                          c->root, options, request);
        case TRIREME_OPERATION_KIND_SCATTER:
            return trireme_scatter_start(communicator, m->send, m->receive, c->count, c->dtype,
                                         c->root, options, request);
        case TRIREME_OPERATION_KIND_SCATTER_V:
            return trireme_scatter_v_start(communicator, m->send, m->receive, c->counts, c->dtype,
                                           c->root, options, request);
        case TRIREME_OPERATION_KIND_ALL_TO_ALL:
            return trireme_all_to_all_start(communicator, m->send, m->receive, c->count, c->dtype,
                                            options, request);
        case TRIREME_OPERATION_KIND_ALL_TO_ALL_V: {
            uint64_t sent[MOST_RANKS], received[MOST_RANKS];
            pair_counts(communicator, c, sent, received);
            return trireme_all_to_all_v_start(communicator, m->send, sent, m->receive, received,
                                              c->dtype, options, request);
        }
        default: return trireme_barrier_start(communicator, options, request);
    }
}

trireme_status run_call(trireme_communicator *communicator, const struct call *call,
                        const struct call_memory *memory, bool started, uint64_t timeout_ns) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    options.algorithm = call->algorithm;
    options.flags = call->flags;
    options.scale = call->reduction == TRIREME_REDUCTION_SCALED_SUM ? call->scale : 0;
    if (!started) return run_plain(communicator, call, memory, &options);
    trireme_request *request = NULL;
    trireme_status status = start(communicator, call, memory, &options, &request);
    if (status != TRIREME_OK) return status;
    /* The operation's own deadline ends it long before this deadline. */
    status = trireme_request_wait(request, timeout_ns * 2);
    trireme_request_destroy(request);
    return status;
}

/* Small whole numbers, so that sums of them are exact. */
static float value_of(int rank, uint64_t index, int round) {
    return (float)((uint64_t)(rank + 1) * 3 + index % 7 + (uint64_t)(round % 5) * 11);
}

static float sum_of(int world_size, uint64_t index, int round) {
    float sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += value_of(rank, index, round);
    return sum;
}

void fill_call(const struct call *call, const struct call_memory *memory, int rank, int world_size,
               int round) {
    (void)world_size;
    float *const send = (float *)memory->send;
    for (uint64_t i = 0; i < memory->send_bytes / sizeof(float); ++i) {
        send[i] = value_of(rank, i, round);
    }
    memset(memory->receive, 0xff, memory->receive_bytes); /* not a number */
    if (call->operation == TRIREME_OPERATION_KIND_BROADCAST && rank == call->root) {
        float *const data = (float *)memory->receive;
        for (uint64_t i = 0; i < call->count; ++i) data[i] = value_of(rank, i, round);
    }
}

bool is_call_right(const struct call *call, const struct call_memory *memory, int rank,
                   int world_size, int round) {
    const float *const got = (const float *)memory->receive;
    const uint64_t received = memory->receive_bytes / sizeof(float);
    const bool blocks = call->operation == TRIREME_OPERATION_KIND_REDUCE_SCATTER ||
                        call->operation == TRIREME_OPERATION_KIND_REDUCE_SCATTER_V;
    for (uint64_t i = 0; i < received; ++i) {
        float expected = 0;
        if (reduces(call->operation)) {
            expected = sum_of(world_size, i + (blocks ? before(call, rank) : 0), round);
        } else {
            const struct origin origin = origin_of(call, rank, world_size, i);
            expected = value_of(origin.source, origin.index, round);
        }
        if (got[i] != expected) return false;
    }
    return true;
}
