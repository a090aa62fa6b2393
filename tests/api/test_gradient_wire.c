/*
 * The reduction of gradients between hosts: in pieces over the wire, from the gradients' own
 * memory. Sums of whole numbers are exact, and so are these averages: each is compared with a plain
 * loop.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "options.h"
#include "ranks.h"

#define TOKEN "the token of these tests"
#define F32 TRIREME_DTYPE_F32

enum { MOST_RANKS = 8, PIECE = (256 << 10) / sizeof(float) };

struct job {
    int world_size;
    int absent; /* a rank without data, or -1 */
    trireme_strategy strategy;
    uint64_t elements;
    char rendezvous[96];
    uint64_t sent[MOST_RANKS]; /* messages in the backward pass */
    struct verdict verdicts[MOST_RANKS];
};

static float given(int rank, uint64_t element) {
    return 840 * (float)((element * 7 + (uint64_t)rank * 5) % 64); /* 1 to 8 divide 840 */
}

static trireme_communicator *join(int rank, const struct job *job) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = job->world_size;
    options.rendezvous = job->rendezvous;
    options.timeout_ns = LONG_NS;
    options.backend = "frames"; /* these ranks share a host, whose memory they would use */
    trireme_communicator *out = NULL;
    if (trireme_communicator_create(&options, &out) != TRIREME_OK) fail_msg("no group");
    return out;
}

static uint64_t sent_messages(struct verdict *v, trireme_communicator *group) {
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_get_statistics(group, &statistics));
    return statistics.sent_messages;
}

/* Descends at rate 1 from 0: the parameters become the negative average of the gradients. */
static void train(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *const group = join(rank, job);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    if (job->absent >= 0) options.flags = TRIREME_MODEL_FLAG_UNEVEN;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(group, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "w";
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &job->elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    float *const values = calloc(job->elements + 1, sizeof *values);
    const uint64_t before = sent_messages(v, group);
    const bool absent = rank == job->absent;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_begin_backward(model, absent ? TRIREME_BACKWARD_FLAG_ABSENT : 0));
    if (!absent) {
        for (uint64_t i = 0; i < job->elements; ++i) values[i] = given(rank, i);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, 0, values, job->elements, F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(group, NULL));
    job->sent[rank] = sent_messages(v, group) - before;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, job->elements, F32));
    const float brought = (float)(job->world_size - (job->absent >= 0));
    for (uint64_t i = 0; i < job->elements; ++i) {
        float sum = 0;
        for (int other = 0; other < job->world_size; ++other) {
            if (other != job->absent) sum += given(other, i);
        }
        if (!EXPECT(v, values[i] == -(sum / brought))) break;
    }
    free(values);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(group);
}

static void run(struct job *job) {
    unique_network_rendezvous(job->rendezvous, sizeof job->rendezvous);
    run_threads(job->world_size, train, job);
    assert_verdicts(job->verdicts, MOST_RANKS);
}

static void gradients_of_every_length_are_averaged(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    static const uint64_t lengths[] = {1, 7, 4099, 4 * PIECE + 3};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; ++i) {
        for (size_t j = 0; j < sizeof lengths / sizeof *lengths; ++j) {
            const int n = worlds[i];
            for (int absent = -1; absent < (n > 1 ? n : 0); absent += n) {
                struct job job = {.world_size = n, .absent = absent, .elements = lengths[j]};
                job.strategy = j % 2 == 0 ? TRIREME_STRATEGY_ZERO2 : TRIREME_STRATEGY_DATA_PARALLEL;
                run(&job);
            }
        }
    }
}

/* Ranks whose calls say that one of them gives nothing neither send nor await its pieces. */
static void a_rank_without_data_is_left_out(void **state) {
    (void)state;
    for (int absent = 0; absent < 3; ++absent) {
        struct job job = {.world_size = 3,
                          .absent = absent,
                          .strategy = TRIREME_STRATEGY_ZERO2,
                          .elements = 3 * 9 * PIECE + 5};
        run(&job);
    }
}

/* The step reduces gradients and gathers parameters. A rank sends a block in pieces of 256 KiB to
 * each peer, and announces the memory for each piece that it gets: two messages a piece, both ways.
 * Its calls are few. Frames would be more: each waits for room at its receiver. */
static void gradients_go_in_pieces_over_the_wire(void **state) {
    (void)state;
    enum { PIECES = 20 };
    for (int n = 2; n <= 3; ++n) {
        struct job job = {.world_size = n,
                          .absent = -1,
                          .strategy = TRIREME_STRATEGY_ZERO2,
                          .elements = (uint64_t)n * PIECES * PIECE};
        run(&job);
        const uint64_t of_pieces = (uint64_t)(2 * 2 * PIECES * (n - 1));
        for (int rank = 0; rank < n; ++rank) {
            assert_true(job.sent[rank] > of_pieces);
            assert_true(job.sent[rank] < of_pieces * 5 / 4);
        }
    }
}

int main(void) {
    setenv("TRIREME_TOKEN", TOKEN, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_every_length_are_averaged),
        cmocka_unit_test(a_rank_without_data_is_left_out),
        cmocka_unit_test(gradients_go_in_pieces_over_the_wire),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
