/*
 * A collective as data: its kind, its arguments, and a check of its result. The oracle is plain
 * arithmetic over the known contributions of all ranks.
 */
#ifndef TRIREME_TESTS_CALLS_H
#define TRIREME_TESTS_CALLS_H

#include <stdbool.h>
#include <stdint.h>
#include <trireme/trireme.h>

#define MOST_RANKS 8

struct call {
    trireme_operation_kind operation;
    trireme_dtype dtype;
    trireme_reduction reduction; /* where something is reduced */
    uint64_t count;              /* as in the header; unused by the v forms */
    uint64_t counts[MOST_RANKS]; /* the v forms; all_to_all_v: see pair_count() */
    int32_t root;                /* where there is one */
    double scale;                /* SCALED_SUM */
    trireme_algorithm algorithm;
    uint32_t flags;
};

/* Memory of one call on one rank. */
struct call_memory {
    trireme_buffer *buffers[2]; /* where it comes from trireme_buffer_alloc() */
    unsigned char *send;        /* NULL where there is only `receive` */
    unsigned char *receive;
    uint64_t send_bytes;
    uint64_t receive_bytes;
};

bool is_collective(trireme_operation_kind operation);
bool is_v_form(trireme_operation_kind operation);
bool reduces(trireme_operation_kind operation);
bool has_root(trireme_operation_kind operation);
const char *operation_text(trireme_operation_kind operation);

/* all_to_all(_v): the elements that `source` sends to `destination`. */
uint64_t pair_count(const struct call *call, int source, int destination);

/* The origin of element `index` of the result of `rank`: not for reductions. */
struct origin {
    int source;
    uint64_t index; /* in what the source sends */
};
struct origin origin_of(const struct call *call, int rank, int world_size, uint64_t index);

/* Allocates the memory of `call`: by trireme_buffer_alloc() if `shared`, else by malloc(). */
bool allocate_call(trireme_communicator *communicator, const struct call *call, int rank,
                   int world_size, bool shared, struct call_memory *memory);
void free_call(struct call_memory *memory, bool shared);

/* Runs the call, or starts it and waits for its request. */
trireme_status run_call(trireme_communicator *communicator, const struct call *call,
                        const struct call_memory *memory, bool started, uint64_t timeout_ns);

/* F32 and SUM only: fills the contributions, and checks the results. `round` makes calls differ. */
void fill_call(const struct call *call, const struct call_memory *memory, int rank, int world_size,
               int round);
bool is_call_right(const struct call *call, const struct call_memory *memory, int rank,
                   int world_size, int round);

#endif
