/*
 * Models beside plain training: failures, the ranks that learn of them, and the library's own
 * counters. test_strategies.c checks the numbers.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#define MOST_RANKS 4
#define F32 TRIREME_DTYPE_F32

struct job {
    trireme_strategy strategy;
    int world_size;
    int kind; /* the kind of failure, where a test has several */
    struct verdict verdicts[MOST_RANKS];
};

static trireme_model_options options_of(trireme_strategy strategy, int world_size) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    units_of(&options)->minimum_bytes = 1;
    shards_of(&options)->share = TRIREME_SHARE_NEVER;
    const bool hybrid = strategy == TRIREME_STRATEGY_HYBRID_SHARD;
    if (hybrid) shards_of(&options)->ranks = (uint32_t)world_size / 2;
    return options;
}

/* "p0" of 5 elements, "p1" of 6, ...: a unit for each. */
static trireme_model *make(struct verdict *v, trireme_communicator *communicator,
                           const trireme_model_options *options, int parameters) {
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, options, &model));
    for (int i = 0; i < parameters; ++i) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        const uint64_t elements = 5 + (uint64_t)i;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &elements;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_optimizer *sgd(struct verdict *v, trireme_model *model, uint64_t check_every) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 1;
    options.check_every = check_every;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    return optimizer;
}

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static bool blames(int32_t rank) {
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    return trireme_last_error_info(&info) == TRIREME_OK && info.blamed_count == 1 &&
           info.blamed[0] == rank;
}

/* The group goes on whatever became of the model. */
static void sum_again(struct verdict *v, trireme_communicator *communicator, int world_size) {
    float one = 1, sum = 0;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_all_reduce(communicator, &one, &sum, 1, F32, TRIREME_REDUCTION_SUM,
                                     NULL));
    EXPECT(v, sum == (float)world_size);
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

#define FOR_EACH_STRATEGY(job) \
    for ((job)->strategy = 1; (job)->strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++(job)->strategy)

/* ---- hooks ---- */

enum { FAIL_BEFORE, FAIL_AFTER };

static int32_t TRIREME_CALLCONV refuse_before(const trireme_bucket *bucket, void *data) {
    (void)data;
    return bucket->moment == TRIREME_HOOK_BEFORE && bucket->bucket == 1 ? 41 : 0;
}

static int32_t TRIREME_CALLCONV refuse_after(const trireme_bucket *bucket, void *data) {
    (void)data;
    return bucket->moment == TRIREME_HOOK_AFTER && bucket->bucket == 1 ? 42 : 0;
}

static int32_t TRIREME_CALLCONV accept_all(const trireme_bucket *bucket, void *data) {
    (void)bucket, (void)data;
    return 0;
}

static int32_t TRIREME_CALLCONV accept_update(const trireme_update *update, void *data) {
    (void)update, (void)data;
    return 0;
}

static void fail_in_a_hook(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    buckets_of(&options)->bytes = 1;
    buckets_of(&options)->hook = rank != 1                  ? accept_all
                                 : job->kind == FAIL_BEFORE ? refuse_before
                                                            : refuse_after;
    trireme_model *const model = make(v, communicator, &options, 3);
    trireme_optimizer *const optimizer = sgd(v, model, 0);
    float gradients[18] = {0};
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 18, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_optimizer_step(optimizer));
    EXPECT(v,
           says(job->kind == FAIL_BEFORE ? "the bucket hook of rank 1 answered 41 for bucket 1"
                                         : "the bucket hook of rank 1 answered 42 for bucket 1"));
    EXPECT(v, blames(1));
    EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_model_begin_backward(model, 0));
    sum_again(v, communicator, job->world_size);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_hook_that_fails_fails_the_step_everywhere(void **state) {
    (void)state;
    struct job job = {.world_size = 4};
    FOR_EACH_STRATEGY(&job) {
        for (job.kind = FAIL_BEFORE; job.kind <= FAIL_AFTER; ++job.kind) {
            run_job(&job, fail_in_a_hook);
        }
    }
}

static void set_a_hook_on_one_rank(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    if (rank == 1) buckets_of(&options)->hook = accept_all;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "p";
    parameter.dtype = F32;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("buckets.hook is not set on rank 0 and set on rank 1"));
    sum_again(v, communicator, job->world_size);
    trireme_model_destroy(model);
}

static void a_hook_is_everywhere_or_nowhere(void **state) {
    (void)state;
    struct job job = {.world_size = 2};
    FOR_EACH_STRATEGY(&job) run_job(&job, set_a_hook_on_one_rank);
}

/* ---- copies ---- */

/* Rank 2 changes one element of its copy; of two copies the lower rank's is the one to be. */
static void change_one_copy(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    units_of(&options)->persistent_bytes = 28; /* p0 and p1: whole everywhere */
    trireme_model *const model = make(v, communicator, &options, 4);
    trireme_optimizer *const optimizer = sgd(v, model, 2);
    float values[26];
    for (int i = 0; i < 26; ++i) values[i] = (float)i;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, 26, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    void *data = NULL;
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_parameter_data(model, 1, &data, &count));
    if (data == NULL) abort();
    if (rank == 2) ((float *)data)[3] = -0.5f;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_check_replicas(model));
    EXPECT(v, says("parameter 1 (\"p1\") has other bits on rank 2 than on the others of ranks"));
    EXPECT(v, blames(2));
    /* The model lives on, and the root's values make the copies the same. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, 26, F32, 1));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    /* Within a step it fails the model: the second step compares. */
    float gradients[26] = {0};
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 26, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    if (rank == 2) ((float *)data)[3] = -0.5f;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 26, F32, 0));
    /* The owner of the element gives it to all ranks, except with data_parallel. */
    const bool everybody_updates = job->strategy == TRIREME_STRATEGY_DATA_PARALLEL;
    EXPECT_STATUS(v, everybody_updates ? TRIREME_ERROR_MISMATCH : TRIREME_OK,
                  trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, everybody_updates ? TRIREME_ERROR_MISMATCH : TRIREME_OK,
                  trireme_model_check_replicas(model));
    sum_again(v, communicator, job->world_size);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_copy_that_differs_is_found_and_named(void **state) {
    (void)state;
    struct job job = {.world_size = 4};
    FOR_EACH_STRATEGY(&job) run_job(&job, change_one_copy);
}

/* ---- uneven inputs ---- */

static void
call_wrongly_with_uneven_inputs(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    trireme_model *const even = make(v, communicator, &options, 1);
    trireme_optimizer *const step_even = sgd(v, even, 0);
    uint64_t steps = 77;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_join(step_even, &steps));
    EXPECT(v, says("without TRIREME_MODEL_FLAG_UNEVEN"));
    trireme_optimizer_destroy(step_even);
    trireme_model_destroy(even);

    options.flags = TRIREME_MODEL_FLAG_UNEVEN;
    trireme_model *const model = make(v, communicator, &options, 2);
    trireme_optimizer *const optimizer = sgd(v, model, 0);
    float g[11] = {8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8}, values[11] = {0};
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, TRIREME_BACKWARD_FLAG_ABSENT));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_model_gradient_ready(model, 0, g, 5, F32));
    EXPECT(v, says("TRIREME_BACKWARD_FLAG_ABSENT"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_join(optimizer, &steps));
    EXPECT(v, says("a step is under way"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_join(optimizer, &steps));
    EXPECT(v, steps == 77);
    /* No rank brought a gradient: the gradients are zero. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    /* Of three ranks one brings 8: the average is over one, not over three. */
    if (rank == 1) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, g, 11, F32, 0));
    } else {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, NULL, 11, F32,
                                                    TRIREME_BACKWARD_FLAG_ABSENT));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 11, F32));
    for (int i = 0; i < 11; ++i) EXPECT(v, values[i] == -8);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void wrong_calls_with_uneven_inputs_are_refused(void **state) {
    (void)state;
    struct job job = {.world_size = 3};
    FOR_EACH_STRATEGY(&job) {
        if (job.strategy == TRIREME_STRATEGY_HYBRID_SHARD) continue; /* 3 ranks have no half */
        run_job(&job, call_wrongly_with_uneven_inputs);
    }
}

/* Ranks have 0, 1, 2, ... steps of data; the learning rate follows those that have some. */
static void run_out_one_by_one(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    options.flags = TRIREME_MODEL_FLAG_UNEVEN;
    trireme_model *const model = make(v, communicator, &options, 2);
    trireme_optimizer *const optimizer = sgd(v, model, 0);
    float expected = 0, rate = 1;
    for (int round = 0; round < 2; ++round) { /* and all ranks begin anew together */
        for (int step = 0; step < rank; ++step) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_set_learning_rate(optimizer, 1.0 / (1 + step)));
            float g[6];
            for (uint64_t unit = 0; unit < 2; ++unit) {
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, unit));
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, unit));
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
            for (int parameter = 1; parameter >= 0; --parameter) {
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, (uint64_t)parameter));
                for (int i = 0; i < 6; ++i) g[i] = (float)(rank + step);
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_model_gradient_ready(model, (uint64_t)parameter, g,
                                                           5 + (uint64_t)parameter, F32));
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_model_release_unit(model, (uint64_t)parameter));
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        }
        uint64_t followed = 77;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_join(optimizer, &followed));
        EXPECT(v, followed == (uint64_t)(job->world_size - 1 - rank));
        for (int step = 0; step < job->world_size - 1; ++step) {
            float sum = 0, contributors = 0;
            for (int r = step + 1; r < job->world_size; ++r)
                sum += (float)(r + step), ++contributors;
            rate = 1.0f / (float)(1 + step);
            expected -= rate * (sum / contributors);
        }
        double learning_rate = 0;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_get_learning_rate(optimizer, &learning_rate));
        EXPECT(v, (float)learning_rate == rate);
    }
    float values[11];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 11, F32));
    for (int i = 0; i < 11; ++i) EXPECT(v, values[i] == expected);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void ranks_that_run_out_of_data_follow_the_others(void **state) {
    (void)state;
    struct job job = {.world_size = 4};
    FOR_EACH_STRATEGY(&job) run_job(&job, run_out_one_by_one);
    job.world_size = 2;
    FOR_EACH_STRATEGY(&job) run_job(&job, run_out_one_by_one);
}

/* Rank 0 never has data. The gradient of leaf l is l + 1 everywhere. */
struct leaves_job {
    struct job job;
    uint32_t leaves;
};

enum { PLAIN, EVALUATED, DISCARDED };

static void
step_with_leaves(struct verdict *v, trireme_model *model, trireme_optimizer *optimizer) {
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    for (uint32_t pass = 0; pass < info.micro_batches; ++pass) {
        uint32_t leaf = UINT32_MAX;
        float g[6];
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, pass, &leaf));
        for (int i = 0; i < 6; ++i) g[i] = (float)(leaf + 1);
        for (uint64_t i = 0; i < 4; ++i) {
            const uint64_t unit = i < 2 ? i : 3 - i;
            if (i == 2 && leaf != UINT32_MAX) {
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, unit));
            if (i >= 2 && leaf != UINT32_MAX) {
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_model_gradient_ready(model, unit, g, 5 + unit, F32));
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, unit));
        }
        if (leaf != UINT32_MAX) EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
}

static void never_have_data(trireme_communicator *communicator, int rank, void *context) {
    struct leaves_job *const all = context;
    struct job *const job = &all->job;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    options.flags = TRIREME_MODEL_FLAG_UNEVEN;
    options.leaves = all->leaves;
    trireme_model *const model = make(v, communicator, &options, 2);
    trireme_optimizer *const optimizer = sgd(v, model, 0);
    float values[11], sum = 0, count = 0, expected = 0;
    for (uint32_t leaf = 0; leaf < all->leaves; ++leaf) {
        if (leaf % (uint32_t)job->world_size != 0) sum += (float)(leaf + 1), ++count;
    }
    for (int round = 0; round < 2; ++round) {
        if (job->kind == EVALUATED) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 11, F32));
        } else if (job->kind == DISCARDED) {
            if ((uint32_t)rank < all->leaves) {
                EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
        }
        for (int step = 0; step < 2 && rank > 0; ++step) step_with_leaves(v, model, optimizer);
        uint64_t followed = 77;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_join(optimizer, &followed));
        EXPECT(v, followed == (rank == 0 ? 2 : 0));
        for (int step = 0; step < 2; ++step) expected -= sum / count;
    }
    /* All ranks look at the parameters, and none has data. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 11, F32));
    uint64_t followed = 77, steps = 77;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_join(optimizer, &followed));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &steps));
    EXPECT(v, followed == 0 && steps == 4);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 11, F32));
    for (int i = 0; i < 11; ++i) EXPECT(v, values[i] == expected);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_rank_may_have_no_data_from_the_first_step_on(void **state) {
    (void)state;
    const struct {
        int world_size;
        uint32_t leaves;
    } kinds[] = {{2, 4}, {2, 2}, {4, 6}, {4, 2}, {4, 3}};
    for (int i = 0; i < 5; ++i) {
        struct leaves_job all = {.job = {.world_size = kinds[i].world_size},
                                 .leaves = kinds[i].leaves};
        FOR_EACH_STRATEGY(&all.job) {
            for (all.job.kind = PLAIN; all.job.kind <= DISCARDED; ++all.job.kind) {
                memset(all.job.verdicts, 0, sizeof all.job.verdicts);
                run_ranks(all.job.world_size, never_have_data, &all);
                assert_verdicts(all.job.verdicts, all.job.world_size);
            }
        }
    }
}

/* The others take their units in another order than the rank that follows did, or name two rates.
 */
enum { OTHER_ORDER, TWO_RATES };

static void follow_what_differs(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    options.flags = TRIREME_MODEL_FLAG_UNEVEN;
    trireme_model *const model = make(v, communicator, &options, 3);
    trireme_optimizer *const optimizer = sgd(v, model, 0);
    float g[18] = {0};
    trireme_status status = TRIREME_OK;
    if (rank == 0) {
        status = trireme_optimizer_join(optimizer, NULL);
    } else {
        if (job->kind == TWO_RATES) {
            status = trireme_optimizer_set_learning_rate(optimizer, rank);
        } else {
            status = trireme_model_gather_unit(model, 2);
        }
        if (status == TRIREME_OK) status = trireme_model_accumulate_flat(model, g, 18, F32, 0);
        if (status == TRIREME_OK && job->kind == OTHER_ORDER) {
            status = trireme_model_release_unit(model, 2);
        }
        if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    }
    EXPECT(v, status == TRIREME_ERROR_MISMATCH);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void following_other_steps_than_ones_own_is_a_mismatch(void **state) {
    (void)state;
    struct job job = {.world_size = 3, .strategy = TRIREME_STRATEGY_ZERO3};
    run_job(&job, follow_what_differs);
    job.kind = TWO_RATES;
    job.strategy = TRIREME_STRATEGY_ZERO1; /* no gathers that could differ before */
    run_job(&job, follow_what_differs);
}

/* ---- gradients that are not there ---- */

static void leave_gradients_out(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    trireme_model *const model = make(v, communicator, &options, 3);
    trireme_optimizer *const optimizer = sgd(v, model, 0);
    const float g[7] = {1, 1, 1, 1, 1, 1, 1};
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gradient_ready(model, 1, g, 6, F32));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_end_backward(model));
    EXPECT(v,
           says("gradients of 2 of 3 parameters are missing: parameter 0 (\"p0\"), parameter 2"));
    /* The pass goes on. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gradient_ready(model, 0, g, 5, F32));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_end_backward(model));
    EXPECT(v, says("gradients of 1 of 3 parameters are missing: parameter 2 (\"p2\");"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gradient_ready(model, 2, g, 7, F32));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    float values[18];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 18, F32));
    for (int i = 0; i < 18; ++i) EXPECT(v, values[i] == -1);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void missing_gradients_are_named_and_may_still_come(void **state) {
    (void)state;
    struct job job = {.world_size = 2};
    FOR_EACH_STRATEGY(&job) run_job(&job, leave_gradients_out);
}

/* ---- one sweep ---- */

static void ask_for_one_sweep(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const char *const words[] = {"reproducible",      "UNEVEN",        "UNUSED_SKIP",
                                 "a bucket hook",     "with clipping", "with clipping",
                                 "rule of the caller"};
    for (int kind = 0; kind < 8; ++kind) {
        trireme_model_options options = options_of(job->strategy, job->world_size);
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = TRIREME_RULE_SGD;
        rule.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
        if (kind == 0) options.leaves = 2;
        if (kind == 1) options.flags = TRIREME_MODEL_FLAG_UNEVEN;
        if (kind == 2) options.unused = TRIREME_UNUSED_SKIP;
        if (kind == 3) buckets_of(&options)->hook = accept_all;
        if (kind == 4) clipping_of(&rule)->max_norm = 1;
        if (kind == 5) clipping_of(&rule)->max_value = 1;
        if (kind == 6) rule.kind = TRIREME_RULE_USER, user_rule_of(&rule)->update = accept_update;
        trireme_model *const model = make(v, communicator, &options, 2);
        trireme_optimizer *optimizer = NULL;
        const bool good = kind == 7 && job->strategy == TRIREME_STRATEGY_ZERO1;
        EXPECT_STATUS(v, good ? TRIREME_OK : TRIREME_ERROR_UNSUPPORTED,
                      trireme_optimizer_create(model, &rule, &optimizer));
        EXPECT(v, good || says(job->strategy == TRIREME_STRATEGY_ZERO1 ? words[kind]
                                                                       : "other than zero1"));
        EXPECT(v, good == (optimizer != NULL));
        rule.flags = 0;
        if (!good) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        }
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
}

static void one_sweep_says_what_it_does_not_go_with(void **state) {
    (void)state;
    struct job job = {.world_size = 2};
    FOR_EACH_STRATEGY(&job) run_job(&job, ask_for_one_sweep);
}

/* ---- groups, and what the engine says it did ---- */

enum { LAYERS = 1000 };

static void pass_over(struct verdict *v, trireme_model *model) {
    for (int i = 0; i < 2 * LAYERS; ++i) {
        const uint64_t unit = (uint64_t)(i < LAYERS ? i : 2 * LAYERS - 1 - i);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, unit));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, unit));
    }
}

static void train_a_thousand_layers(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(TRIREME_STRATEGY_ZERO3, job->world_size);
    units_of(&options)->minimum_bytes = (uint64_t)job->kind;
    units_of(&options)->prefetch_bytes = 200000;
    trireme_model *const model = make(v, communicator, &options, LAYERS);
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    EXPECT(v, info.units == LAYERS && info.shared_bytes == 0);
    /* 5 + ... + 1004 elements of 4 bytes are 2,018,000. */
    const uint64_t groups = job->kind == 1 ? LAYERS : 2018000 / (uint64_t)job->kind;
    const uint64_t found = info.unit_groups;
    EXPECT(v, found <= groups + 1 && found + 2 >= groups);
    uint64_t sum = 0;
    for (uint64_t unit = 0; unit < LAYERS; ++unit) {
        trireme_unit_info shown = TRIREME_UNIT_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_unit_info(model, unit, &shown));
        EXPECT(v, shown.unit_group < found && shown.elements == 5 + unit);
        EXPECT(v, shown.shard_first + shown.shard_count <= shown.elements);
        sum += shown.shard_count;
    }
    /* Shares of the groups differ by an element each. */
    EXPECT(v, sum * 2 + found >= info.elements && sum * 2 <= info.elements + found);
    trireme_model_statistics first = TRIREME_MODEL_STATISTICS_INIT, second = first;
    pass_over(v, model);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &first));
    pass_over(v, model);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &second));
    /* Forward and backward: each group twice, but the last one of several units stays. */
    const uint64_t kept = job->kind == 1 ? 0 : 1;
    EXPECT(v, first.gathers == 2 * found - kept);
    EXPECT(v, first.prefetched == 0); /* no order was learnt before the first pass */
    EXPECT(v, second.gathers - first.gathers <= 2 * found);
    EXPECT(v, second.prefetched - first.prefetched >= 2 * found - 8 || found < 8);
    EXPECT(v, second.peak_unit_groups >= 2 && second.exposed_ns > 0);
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.allocated_working == memory.planned_working);
    trireme_model_destroy(model);
}

static void a_thousand_tiny_layers_are_a_few_dozen_gathers(void **state) {
    (void)state;
    struct job job = {.world_size = 2};
    const int sizes[] = {1, 50000, 100000};
    for (int i = 0; i < 3; ++i) {
        job.kind = sizes[i];
        run_job(&job, train_a_thousand_layers);
    }
}

/* ---- one copy for all ---- */

static void share_parameters(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    trireme_model *model = NULL;
    shards_of(&options)->share = 3;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_create(communicator, &options, &model));
    EXPECT(v, says("options.shards.share 3"));
    shards_of(&options)->share = TRIREME_SHARE_ALWAYS;
    if (job->strategy == TRIREME_STRATEGY_DATA_PARALLEL || ranks_use_transport()) {
        const bool alone = job->strategy == TRIREME_STRATEGY_DATA_PARALLEL;
        EXPECT_STATUS(v, alone ? TRIREME_ERROR_INVALID_ARGUMENT : TRIREME_ERROR_UNSUPPORTED,
                      trireme_model_create(communicator, &options, &model));
        EXPECT(v, says(alone ? "zero1 trains the same" : "share no memory"));
        EXPECT(v, model == NULL);
    }
    shards_of(&options)->share = TRIREME_SHARE_AUTO;
    model = make(v, communicator, &options, 3);
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    const bool shares = job->strategy >= TRIREME_STRATEGY_ZERO3 && !ranks_use_transport();
    EXPECT(v, info.shared_bytes == (shares ? 18 * sizeof(float) : 0));
    float values[18];
    for (int i = 0; i < 18; ++i) values[i] = (float)i;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, 18, F32, 1));
    for (uint64_t unit = 0; unit < 3; ++unit) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, unit));
        void *data = NULL;
        uint64_t count = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_parameter_data(model, unit, &data, &count));
        for (uint64_t i = 0; i < count && data != NULL; ++i) {
            EXPECT(v, ((float *)data)[i] == (float)(unit == 0 ? i : unit == 1 ? 5 + i : 11 + i));
        }
    }
    trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &statistics));
    const bool gathers = job->strategy >= TRIREME_STRATEGY_ZERO3 && !shares;
    EXPECT(v, statistics.gathers == (gathers ? 3 : 0));
    for (uint64_t unit = 0; unit < 3; ++unit) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, unit));
    }
    trireme_model_destroy(model);
}

static void one_copy_is_shared_where_it_can_be(void **state) {
    (void)state;
    struct job job = {.world_size = 4};
    FOR_EACH_STRATEGY(&job) run_job(&job, share_parameters);
}

/* One wants a copy with the others, one of its own: that is said before memory is shared. */
static void ask_for_different_sharing(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const bool strategies = job->kind == 1;
    trireme_model_options options = options_of(TRIREME_STRATEGY_ZERO3, job->world_size);
    shards_of(&options)->share = TRIREME_SHARE_AUTO;
    if (rank == 1 && strategies) options.strategy = TRIREME_STRATEGY_ZERO1;
    if (rank == 1 && !strategies) shards_of(&options)->share = TRIREME_SHARE_NEVER;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "p";
    parameter.dtype = F32;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says(strategies ? "strategy is zero3 on rank 0 and zero1 on rank 1"
                              : "shards.share is 0 on rank 0 and 2 on rank 1"));
    sum_again(v, communicator, job->world_size);
    trireme_model_destroy(model);
}

static void different_sharing_is_a_mismatch_and_the_group_lives_on(void **state) {
    (void)state;
    struct job job = {.world_size = 3};
    for (job.kind = 0; job.kind < 2; ++job.kind) run_job(&job, ask_for_different_sharing);
}

/* Two ranks that each think they are the root must not both write the one copy. */
static void name_two_roots(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    shards_of(&options)->share = TRIREME_SHARE_AUTO;
    trireme_model *const model = make(v, communicator, &options, 3);
    const float values[18] = {0};
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                  trireme_model_broadcast_parameters(model, values, 18, F32, rank == 0 ? 0 : 1));
    EXPECT(v, says("root"));
    trireme_model_destroy(model);
}

static void two_roots_are_a_mismatch(void **state) {
    (void)state;
    struct job job = {.world_size = 4};
    FOR_EACH_STRATEGY(&job) run_job(&job, name_two_roots);
}

/* A model of nothing takes all calls, though there is nothing to gather and no memory for it. */
static void train_nothing(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job->strategy, job->world_size);
    shards_of(&options)->share = job->kind == 1 ? TRIREME_SHARE_AUTO : TRIREME_SHARE_NEVER;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    const uint64_t none = 0;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "nothing";
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &none;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_ADAMW;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, 0));
        void *data = NULL;
        uint64_t count = 7;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_parameter_data(model, 0, &data, &count));
        EXPECT(v, count == 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gradient_ready(model, 0, NULL, 0, F32));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_model_of_nothing_trains(void **state) {
    (void)state;
    struct job job = {.world_size = 2};
    for (job.kind = 0; job.kind < 2; ++job.kind) {
        FOR_EACH_STRATEGY(&job) run_job(&job, train_nothing);
    }
}

/* ---- groups that are not there ---- */

static void ask_for_hybrid(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(TRIREME_STRATEGY_HYBRID_SHARD, 4);
    shards_of(&options)->ranks = rank == 3 ? 4 : 2;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "p";
    parameter.dtype = F32;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("shards.ranks is 2 on rank 0 and 4 on rank 3"));
    sum_again(v, communicator, 4);
    trireme_model_destroy(model);
}

static void hybrid_groups_that_cannot_be_are_refused(void **state) {
    (void)state;
    struct job job = {.world_size = 4};
    run_job(&job, ask_for_hybrid);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hook_that_fails_fails_the_step_everywhere),
        cmocka_unit_test(a_hook_is_everywhere_or_nowhere),
        cmocka_unit_test(a_copy_that_differs_is_found_and_named),
        cmocka_unit_test(wrong_calls_with_uneven_inputs_are_refused),
        cmocka_unit_test(ranks_that_run_out_of_data_follow_the_others),
        cmocka_unit_test(a_rank_may_have_no_data_from_the_first_step_on),
        cmocka_unit_test(following_other_steps_than_ones_own_is_a_mismatch),
        cmocka_unit_test(missing_gradients_are_named_and_may_still_come),
        cmocka_unit_test(one_sweep_says_what_it_does_not_go_with),
        cmocka_unit_test(a_thousand_tiny_layers_are_a_few_dozen_gathers),
        cmocka_unit_test(one_copy_is_shared_where_it_can_be),
        cmocka_unit_test(different_sharing_is_a_mismatch_and_the_group_lives_on),
        cmocka_unit_test(two_roots_are_a_mismatch),
        cmocka_unit_test(a_model_of_nothing_trains),
        cmocka_unit_test(hybrid_groups_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
