/*
 * Buckets of more than a few pages, which ranks that share memory reduce in another way than small
 * ones: The sum of every element is added in the order of ranks, whatever the strategy, the world
 * size and the way. The reported bytes are those that the backend has moved.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "options.h"
#include "processes.h"
#include "ranks.h"

enum { PARAMETERS = 3, ELEMENTS = 40001 + 3 + 30000, STEPS = 2 };
static const uint64_t kCounts[PARAMETERS] = {40001, 3, 30000};

struct job {
    int world_size;
    trireme_strategy strategy;
    trireme_dtype dtype;
    bool views, discards, adds_only;
    uint64_t bucket_bytes;
    struct verdict verdicts[8];
};

static double gradient(int rank, int step, uint64_t i) {
    return ((double)((i * 37 + (uint64_t)rank * 11 + (uint64_t)step * 5) % 1009) - 500) / 7;
}

static size_t size_of(trireme_dtype dtype) {
    return dtype == TRIREME_DTYPE_F64 ? 8 : 4;
}

static void put(void *data, trireme_dtype dtype, uint64_t i, double value) {
    if (dtype == TRIREME_DTYPE_F64)
        ((double *)data)[i] = value;
    else
        ((float *)data)[i] = (float)value;
}

static double get(const void *data, trireme_dtype dtype, uint64_t i) {
    return dtype == TRIREME_DTYPE_F64 ? ((const double *)data)[i] : ((const float *)data)[i];
}

/* One element by one process: the ranks' gradients added one after the other, then SGD of rate 1.
 */
static double trained(const struct job *job, uint64_t i) {
    const double n = job->world_size;
    if (job->dtype == TRIREME_DTYPE_F64) {
        double at = 0;
        for (int step = 0; step < STEPS; ++step) {
            double sum = gradient(0, step, i);
            for (int r = 1; r < job->world_size; ++r) sum += gradient(r, step, i);
            at -= job->adds_only ? sum : sum / n;
        }
        return at;
    }
    float at = 0;
    for (int step = 0; step < STEPS; ++step) {
        float sum = (float)gradient(0, step, i);
        for (int r = 1; r < job->world_size; ++r) sum += (float)gradient(r, step, i);
        at -= job->adds_only ? sum : sum / (float)n;
    }
    return at;
}

/* Hands in the gradients of the last parameters of the model, down to `first`. */
static void hand_in(struct verdict *v, const struct job *job, trireme_model *model, int rank,
                    int step, int first) {
    uint64_t end = ELEMENTS;
    for (int p = PARAMETERS; p-- > first;) {
        const uint64_t begin = end - kCounts[p];
        void *data = NULL;
        int32_t adds = 0;
        if (job->views) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_get_gradient_data(model, (uint64_t)p, &data, NULL, NULL,
                                                          &adds));
            EXPECT(v, adds == 0);
        }
        void *const own = malloc(kCounts[p] * size_of(job->dtype));
        void *const to = data != NULL ? data : own;
        for (uint64_t i = 0; i < kCounts[p]; ++i) {
            put(to, job->dtype, i, gradient(rank, step, begin + i));
        }
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, (uint64_t)p, to, kCounts[p], job->dtype));
        free(own);
        end = begin;
    }
}

static uint64_t sent_by(struct verdict *v, trireme_communicator *communicator) {
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_get_statistics(communicator, &statistics));
    return statistics.sent_bytes;
}

static trireme_model *make(struct verdict *v, trireme_communicator *communicator,
                           const struct job *job, trireme_optimizer **out_optimizer) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    buckets_of(&options)->bytes = job->bucket_bytes;
    if (job->adds_only) options.gradients = TRIREME_GRADIENTS_SUM;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    static const char *const names[PARAMETERS] = {"a", "b", "c"};
    for (int p = 0; p < PARAMETERS; ++p) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[p];
        parameter.unit = names[p];
        parameter.dtype = job->dtype;
        parameter.dimensions = 1;
        parameter.shape = &kCounts[p];
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, out_optimizer));
    return model;
}

static void train(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_optimizer *optimizer = NULL;
    trireme_model *const model = make(v, communicator, job, &optimizer);
    uint64_t sent = 0, sent_in_all = 0;
    for (int step = 0; step < STEPS; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
        const uint64_t begin = sent_by(v, communicator);
        if (job->discards) {
            /* Some buckets are full, some are not. */
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
            hand_in(v, job, model, rank, 9, 1 + rank % 2);
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
        const uint64_t before = sent_by(v, communicator);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        hand_in(v, job, model, rank, step, 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        sent = sent_by(v, communicator) - before;
        sent_in_all = sent_by(v, communicator) - begin;
    }
    /* The order of buckets is learnt in the first step, so the last one sends nothing else. */
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    if (!ranks_use_transport()) {
        EXPECT(v, sent == memory.planned_step_bytes);
        EXPECT(v, sent_in_all == memory.sent_step_bytes);
    }
    void *const all = malloc(ELEMENTS * size_of(job->dtype));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, all, ELEMENTS, job->dtype));
    for (uint64_t i = 0; i < ELEMENTS; ++i) {
        const double expected = trained(job, i), got = get(all, job->dtype, i);
        if (!EXPECT(v, memcmp(&expected, &got, sizeof got) == 0)) break;
    }
    free(all);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* ---- a rank that fails ---- */

/* Rank 1 ends its part in the middle of backward, when the others' first bucket waits for it. */
static void abandon(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_optimizer *optimizer = NULL;
    trireme_model *const model = make(v, communicator, job, &optimizer);
    /* No rank is still making its model when rank 1 gives up. */
    const trireme_status met = trireme_barrier(communicator, NULL);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    if (rank == 1) {
        EXPECT(v, met == TRIREME_OK);
        EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_abort(communicator, "no more data"));
    } else {
        /* The failure comes here in one of these, or in the step. */
        float *const gradient = calloc(ELEMENTS, sizeof *gradient);
        for (int p = PARAMETERS; p-- > 0;) {
            if (trireme_model_gradient_ready(model, (uint64_t)p, gradient, kCounts[p],
                                             job->dtype) != TRIREME_OK) {
                break;
            }
        }
        free(gradient);
        EXPECT(v, trireme_model_end_backward(model) != TRIREME_ERROR_TIMEOUT);
        EXPECT_STATUS(v, TRIREME_ERROR_ABORTED, trireme_optimizer_step(optimizer));
        EXPECT(v, strstr(trireme_last_error(), "no more data") != NULL);
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

static void ranks_are_added_in_their_order(void **state) {
    (void)state;
    static const int world_sizes[] = {1, 2, 3, 4, 5, 8};
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        if (is_quick() && world_sizes[w] > 4) continue;
        for (int strategy = TRIREME_STRATEGY_DATA_PARALLEL; strategy <= TRIREME_STRATEGY_ZERO3;
             ++strategy) {
            for (int way = 0; way < 4; ++way) {
                struct job job = {.world_size = world_sizes[w], .strategy = strategy};
                job.dtype = (way + w) % 2 == 0 ? TRIREME_DTYPE_F32 : TRIREME_DTYPE_F64;
                job.views = way % 2 == 1;
                job.adds_only = way == 2;
                job.discards = way >= 2;
                job.bucket_bytes = way == 3 ? 1 : 0;
                run_job(&job, train);
            }
        }
    }
}

static void a_rank_that_gives_up_ends_the_step_of_all(void **state) {
    (void)state;
    for (int world_size = 2; world_size <= 3; ++world_size) {
        struct job job = {.world_size = world_size,
                          .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                          .dtype = TRIREME_DTYPE_F32,
                          .bucket_bytes = 1};
        run_job(&job, abandon);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_added_in_their_order),
        cmocka_unit_test(a_rank_that_gives_up_ends_the_step_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
