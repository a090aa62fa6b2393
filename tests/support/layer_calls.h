/*
 * One object of each kind that splits layers, along one communicator, and every call of theirs as
 * data. Inputs are numbers of the rank alone, so that a call's outputs are the same each time.
 * Products and the activation are the test's own callbacks.
 */
#ifndef TRIREME_TESTS_LAYER_CALLS_H
#define TRIREME_TESTS_LAYER_CALLS_H

#include <stdbool.h>
#include <stdint.h>
#include <trireme/trireme.h>

enum layer_call {
    COPY_FORWARD,
    COPY_BACKWARD,
    REDUCE_FORWARD,
    GATHER_FORWARD,
    GATHER_BACKWARD,
    GATHER_SUM_FORWARD,
    GATHER_SUM_BACKWARD,
    SCATTER_FORWARD,
    SCATTER_BACKWARD,
    REDUCE_SCATTER_FORWARD,
    REDUCE_SCATTER_BACKWARD,
    EXCHANGE_FORWARD,
    EXCHANGE_BACKWARD,
    COLUMN_FORWARD,
    COLUMN_BACKWARD,
    COLUMN_WEIGHT,
    COLUMN_BOTH, /* gradients of input and weight; begins with a forward pass if none is left */
    ROW_FORWARD,
    ROW_BACKWARD,
    ROW_WEIGHT,
    ROW_BOTH,
    MLP_FORWARD,
    MLP_BACKWARD,
    MLP_WEIGHT,
    MLP_BOTH,
    EMBED,
    EMBED_BACKWARD,
    LOSS,
    LOSS_BACKWARD,
    ATTEND,
    ATTEND_BACKWARD,
    ROUTE,
    DISPATCH,
    COMBINE,
    COMBINE_BACKWARD,
    DISPATCH_BACKWARD,
    ROUTE_BACKWARD,
    LAYER_CALLS
};

/* The differences of one rank's objects. */
struct layer_variant {
    bool named;  /* their names */
    bool longer; /* one more row; experts: one more element of each */
    bool tokens; /* other tokens */
};

struct layer_calls {
    struct layer_variant variant;
    int32_t rank, ranks;
    uint64_t rows;
    uint32_t blocks; /* of this rank */
    trireme_tensor *tensor;
    trireme_region *copy, *reduce, *gather, *gather_sum, *scatter, *reduce_scatter, *exchange;
    trireme_linear *column, *row;
    trireme_mlp *mlp;
    trireme_vocabulary *vocabulary;
    trireme_context *context;
    trireme_experts *experts;
    float *memory;        /* of all arrays */
    enum layer_call last; /* call that was made */
    /* Before calls, products and activations; not 0: it fails. May be NULL. */
    int32_t (*event)(void *);
    void *user_data;
};

/* Makes the objects that are NULL, one after the other, up to the first that fails. `calls` must
 * not move, and is freed in any case. It begins as zeros, but for `event` and `user_data`. */
trireme_status make_layer_calls(trireme_communicator *communicator, struct layer_variant variant,
                                struct layer_calls *calls);
void free_layer_calls(struct layer_calls *calls);

/* "row forward" */
const char *layer_call_name(enum layer_call call);
/* Text that a failure of this call has in its message. */
const char *layer_call_object(enum layer_call call);
bool is_local_call(enum layer_call call);
/* Whether it may be the first call of its object. */
bool is_first_call(enum layer_call call);
/* Whether there may be more of it than of the others: each lets one backward call follow. */
bool is_forward_call(enum layer_call call);
/* Whether it makes gradients of a weight. */
bool is_weight_call(enum layer_call call);

trireme_status make_layer_call(struct layer_calls *calls, enum layer_call call);
/* Of all that the last call has written. */
uint64_t hash_of_outputs(const struct layer_calls *calls);

#endif
