#include "calls.h"

#include <stdlib.h>
#include <string.h>

bool is_v_form(trireme_operation operation) {
    return operation == TRIREME_OPERATION_REDUCE_SCATTER_V ||
           operation == TRIREME_OPERATION_ALL_GATHER_V;
}

bool reduces(trireme_operation operation) {
    return operation == TRIREME_OPERATION_ALL_REDUCE ||
           operation == TRIREME_OPERATION_REDUCE_SCATTER ||
           operation == TRIREME_OPERATION_REDUCE_SCATTER_V;
}

const char *operation_text(trireme_operation operation) {
    static const char *const names[] = {"",
                                        "all_reduce",
                                        "reduce_scatter",
                                        "reduce_scatter_v",
                                        "all_gather",
                                        "all_gather_v",
                                        "broadcast",
                                        "barrier"};
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

static void sizes(const struct call *call, int rank, int world_size, uint64_t *send,
                  uint64_t *receive) {
    const uint64_t mine = block(call, rank);
    const uint64_t all = before(call, world_size);
    *send = *receive = 0;
    switch (call->operation) {
    case TRIREME_OPERATION_ALL_REDUCE:
        *send = *receive = call->count;
        break;
    case TRIREME_OPERATION_REDUCE_SCATTER:
    case TRIREME_OPERATION_REDUCE_SCATTER_V:
        *send = all;
        *receive = mine;
        break;
    case TRIREME_OPERATION_ALL_GATHER:
    case TRIREME_OPERATION_ALL_GATHER_V:
        *send = mine;
        *receive = all;
        break;
    case TRIREME_OPERATION_BROADCAST:
        *receive = call->count;
        break;
    default:
        break;
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
    if (trireme_buffer_data(*buffer, &data) != TRIREME_OK) return false;
    *out = data;
    return true;
}

bool allocate_call(trireme_communicator *communicator, const struct call *call, int rank,
                   int world_size, bool shared, struct call_memory *memory) {
    const uint64_t size = trireme_dtype_size(call->dtype);
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

static trireme_status run_plain(trireme_communicator *communicator, const struct call *c,
                                const struct call_memory *m,
                                const trireme_operation_options *options) {
    switch (c->operation) {
    case TRIREME_OPERATION_ALL_REDUCE:
        return trireme_all_reduce(communicator, m->send, m->receive, c->count, c->dtype,
                                  c->reduction, options);
    case TRIREME_OPERATION_REDUCE_SCATTER:
        return trireme_reduce_scatter(communicator, m->send, m->receive, c->count, c->dtype,
                                      c->reduction, options);
    case TRIREME_OPERATION_REDUCE_SCATTER_V:
        return trireme_reduce_scatter_v(communicator, m->send, m->receive, c->counts, c->dtype,
                                        c->reduction, options);
    case TRIREME_OPERATION_ALL_GATHER:
        return trireme_all_gather(communicator, m->send, m->receive, c->count, c->dtype, options);
    case TRIREME_OPERATION_ALL_GATHER_V:
        return trireme_all_gather_v(communicator, m->send, m->receive, c->counts, c->dtype,
                                    options);
    case TRIREME_OPERATION_BROADCAST:
        return trireme_broadcast(communicator, m->receive, c->count, c->dtype, c->root, options);
    default:
        return trireme_barrier(communicator, options);
    }
}

static trireme_status start(trireme_communicator *communicator, const struct call *c,
                            const struct call_memory *m, const trireme_operation_options *options,
                            trireme_request **request) {
    switch (c->operation) {
    case TRIREME_OPERATION_ALL_REDUCE:
        return trireme_all_reduce_start(communicator, m->send, m->receive, c->count, c->dtype,
                                        c->reduction, options, request);
    case TRIREME_OPERATION_REDUCE_SCATTER:
        return trireme_reduce_scatter_start(communicator, m->send, m->receive, c->count, c->dtype,
                                            c->reduction, options, request);
    case TRIREME_OPERATION_REDUCE_SCATTER_V:
        return trireme_reduce_scatter_v_start(communicator, m->send, m->receive, c->counts,
                                              c->dtype, c->reduction, options, request);
    case TRIREME_OPERATION_ALL_GATHER:
        return trireme_all_gather_start(communicator, m->send, m->receive, c->count, c->dtype,
                                        options, request);
    case TRIREME_OPERATION_ALL_GATHER_V:
        return trireme_all_gather_v_start(communicator, m->send, m->receive, c->counts, c->dtype,
                                          options, request);
    case TRIREME_OPERATION_BROADCAST:
        return trireme_broadcast_start(communicator, m->receive, c->count, c->dtype, c->root,
                                       options, request);
    default:
        return trireme_barrier_start(communicator, options, request);
    }
}

trireme_status run_call(trireme_communicator *communicator, const struct call *call,
                        const struct call_memory *memory, bool started, uint64_t timeout_ns) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    options.scale = call->reduction == TRIREME_SCALED_SUM ? call->scale : 0;
    if (!started) return run_plain(communicator, call, memory, &options);
    trireme_request *request = NULL;
    trireme_status status = start(communicator, call, memory, &options, &request);
    if (status != TRIREME_OK) return status;
    /* The operation's own deadline ends it long before this one. */
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
    if (call->operation == TRIREME_OPERATION_BROADCAST && rank == call->root) {
        float *const data = (float *)memory->receive;
        for (uint64_t i = 0; i < call->count; ++i) data[i] = value_of(rank, i, round);
    }
}

bool is_call_right(const struct call *call, const struct call_memory *memory, int rank,
                   int world_size, int round) {
    const float *const got = (const float *)memory->receive;
    const uint64_t received = memory->receive_bytes / sizeof(float);
    uint64_t at = 0;
    switch (call->operation) {
    case TRIREME_OPERATION_ALL_REDUCE:
        for (uint64_t i = 0; i < received; ++i) {
            if (got[i] != sum_of(world_size, i, round)) return false;
        }
        return true;
    case TRIREME_OPERATION_REDUCE_SCATTER:
    case TRIREME_OPERATION_REDUCE_SCATTER_V:
        for (uint64_t i = 0; i < received; ++i) {
            if (got[i] != sum_of(world_size, before(call, rank) + i, round)) return false;
        }
        return true;
    case TRIREME_OPERATION_ALL_GATHER:
    case TRIREME_OPERATION_ALL_GATHER_V:
        for (int source = 0; source < world_size; ++source) {
            for (uint64_t i = 0; i < block(call, source); ++i, ++at) {
                if (got[at] != value_of(source, i, round)) return false;
            }
        }
        return true;
    case TRIREME_OPERATION_BROADCAST:
        for (uint64_t i = 0; i < received; ++i) {
            if (got[i] != value_of(call->root, i, round)) return false;
        }
        return true;
    default:
        return true;
    }
}
