/*
 * The norm over several models that step together: a mesh of data x tensor, where the tensor ranks
 * have different parts of one parameter and the same other one.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#define F32 TRIREME_DTYPE_F32
#define PART 7   /* elements of "w" on a tensor rank */
#define COMMON 5 /* of "norm" on all of them */
#define STEPS 3
#define LEAVES 2
#define MOST_RANKS 8

struct job {
    trireme_strategy strategy;
    int tensor, data;
    bool spoil; /* one gradient is inf */
    struct verdict verdicts[MOST_RANKS];
    double norms[MOST_RANKS][STEPS];
    float values[MOST_RANKS][PART + COMMON];
};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static float gradient_of(int step, int leaf, int element) {
    return (float)((element * 37 + leaf * 11 + step * 5) % 23) * 0.37f - 3.1f;
}

static trireme_status
add(trireme_model *model, const char *name, uint64_t elements, uint32_t replicas) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    parameter.replicas = replicas;
    return trireme_model_add_parameter(model, &parameter, NULL);
}

static trireme_model *make(struct verdict *v, trireme_communicator *ranks,
                           trireme_strategy strategy, uint64_t part, uint32_t replicas) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    options.leaves = LEAVES;
    units_of(&options)->minimum_bytes = 1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "w", part, 0));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "norm", COMMON, replicas));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_optimizer_options rule_of(double max_norm, trireme_communicator *norm_ranks) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 0.1;
    clipping_of(&options)->max_norm = max_norm;
    options.norm_ranks = norm_ranks;
    return options;
}

/* Tensor rank t of the mesh; data ranks are those with the same t. */
static trireme_communicator *
data_ranks(struct verdict *v, trireme_communicator *all, int rank, int tensor) {
    trireme_communicator *data = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_split(all, rank % tensor, rank, NULL, &data));
    return data;
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int t = rank % job->tensor;
    trireme_communicator *const data = data_ranks(v, all, rank, job->tensor);
    trireme_model *const model = make(v, data, job->strategy, PART, (uint32_t)job->tensor);
    trireme_optimizer_options rule = rule_of(1.5, all);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    for (int step = 0; step < STEPS; ++step) {
        for (uint32_t pass = 0; pass < info.micro_batches; ++pass) {
            uint32_t leaf = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, pass, &leaf));
            if (leaf == UINT32_MAX) continue;
            float gradients[PART + COMMON];
            for (int i = 0; i < PART; ++i) {
                gradients[i] = gradient_of(step, (int)leaf, t * PART + i);
            }
            for (int i = 0; i < COMMON; ++i) {
                gradients[PART + i] = gradient_of(step, (int)leaf, job->tensor * PART + i);
            }
            if (job->spoil && t == 0 && leaf == 0) gradients[3] = INFINITY;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(model, gradients, PART + COMMON, F32, 0));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_get_gradient_norm(optimizer, &job->norms[rank][step]));
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->values[rank], PART + COMMON, F32));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(data);
}

/* One process with everything, by plain loops; only the norm's last rounding is the library's. */
static void check(struct job *job) {
    float whole[8 * PART + COMMON] = {0};
    const int elements = job->tensor * PART + COMMON;
    for (int step = 0; step < STEPS; ++step) {
        float gradients[8 * PART + COMMON];
        long double sum = 0;
        for (int i = 0; i < elements; ++i) {
            gradients[i] = (gradient_of(step, 0, i) + gradient_of(step, 1, i)) / LEAVES;
            sum += (long double)gradients[i] * (long double)gradients[i];
        }
        const double norm = (double)sqrtl(sum); /* 23-bit numbers: the sum is exact */
        for (int rank = 0; rank < job->tensor * job->data; ++rank) {
            assert_true(job->norms[rank][step] == (double)sqrt((double)sum));
        }
        const float clip = (float)(norm > 1.5 ? 1.5 / sqrt((double)sum) : 1);
        for (int i = 0; i < elements; ++i) whole[i] -= 0.1f * (gradients[i] * clip);
    }
    for (int rank = 0; rank < job->tensor * job->data; ++rank) {
        const int t = rank % job->tensor;
        assert_memory_equal(job->values[rank], whole + t * PART, PART * sizeof(float));
        assert_memory_equal(job->values[rank] + PART, whole + job->tensor * PART,
                            COMMON * sizeof(float));
    }
}

static void run_job(struct job *job, rank_function *function) {
    const int ranks = job->tensor * job->data;
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(ranks, function, job);
    assert_verdicts(job->verdicts, ranks);
}

static void a_mesh_clips_as_one_process(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip(); /* groups of such ranks are not there yet */
    const int meshes[][2] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {2, 3}};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; ++i) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
            static struct job job;
            job = (struct job){.strategy = strategy, .tensor = meshes[i][0], .data = meshes[i][1]};
            run_job(&job, train);
            check(&job);
        }
    }
}

static void an_infinite_gradient_shows_on_all_models(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2, .tensor = 2, .data = 2, .spoil = true};
    run_job(&job, train);
    for (int rank = 0; rank < 4; ++rank) {
        for (int step = 0; step < STEPS; ++step) assert_true(isnan(job.norms[rank][step]));
    }
}

static void be_refused(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *const data = data_ranks(v, all, rank, 2);
    trireme_model *model = make(v, data, TRIREME_STRATEGY_ZERO1, PART, 2);
    trireme_optimizer *optimizer = NULL;
    trireme_optimizer_options rule = rule_of(0, all);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("norm_ranks means nothing without options.clipping.max_norm"));
    rule = rule_of(1, (trireme_communicator *)model);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_optimizer_create(model, &rule, &optimizer));
    /* On one rank of the model only. */
    rule = rule_of(1, rank < 2 ? all : NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("norm_ranks is set on rank 0 and not set on rank 1"));
    /* Tensor ranks that clip by other norms. */
    rule = rule_of(rank % 2 + 1, all);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("max_norm is 1 on rank 0 and 2 on rank 1"));
    /* A group that has not all ranks of the model. */
    trireme_communicator *tensor = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_split(all, rank / 2, rank, NULL, &tensor));
    rule = rule_of(1, tensor);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("the group of norm_ranks is"));
    EXPECT(v, optimizer == NULL);
    /* All of that left the model as it was. */
    rule = rule_of(1, all);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    optimizer = NULL;
    /* More replicas than ranks. */
    model = make(v, data, TRIREME_STRATEGY_ZERO1, PART, 5);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("replicas 5 of parameter \"norm\", but options.norm_ranks has 4 ranks"));
    trireme_model_destroy(model);
    trireme_model_options uneven = TRIREME_MODEL_OPTIONS_INIT;
    uneven.strategy = TRIREME_STRATEGY_ZERO1;
    uneven.flags = TRIREME_MODEL_FLAG_UNEVEN;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(data, &uneven, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "w", 3, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_model_destroy(model);
    trireme_communicator_destroy(tensor);
    trireme_communicator_destroy(data);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.tensor = 2, .data = 2};
    run_job(&job, be_refused);
}

/* One of two models is over its limit of memory: the other one hears of it, and all may go on. */
static void be_too_large(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *const data = data_ranks(v, all, rank, 2);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(data, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "w", 1000, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    trireme_model_destroy(model);
    options.memory_limit_bytes =
        rank % 2 == 0
            ? memory.planned_parameters + memory.planned_gradients + memory.planned_working + 5000
            : 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(data, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "w", 1000, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = rule_of(1, all);
    rule.kind = TRIREME_RULE_ADAM; /* 8,000 bytes */
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY,
                  trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says(rank % 2 == 0 ? "memory_limit_bytes" : "answered OUT_OF_MEMORY"));
    rule.kind = TRIREME_RULE_SGD; /* none */
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(data);
}

static void a_model_that_is_too_large_tells_the_others(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.tensor = 2, .data = 2};
    run_job(&job, be_too_large);
}

static int32_t TRIREME_CALLCONV spoil_bucket(const trireme_bucket *bucket, void *user_data) {
    return bucket->moment == TRIREME_HOOK_AFTER && *(const int *)user_data == 0 ? 7 : 0;
}

/* The step of one of two models fails on all its ranks; those of the other hear of it and why,
 * long before their deadline. */
static void fail_one_model(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *const data = data_ranks(v, all, rank, 2);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    buckets_of(&options)->hook = spoil_bucket;
    buckets_of(&options)->user_data = &rank;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(data, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "w", 6, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    const trireme_optimizer_options rule = rule_of(1, all);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const float gradients[6] = {1, 2, 3, 4, 5, 6};
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 6, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_optimizer_step(optimizer));
    EXPECT(v, says("bucket hook of rank 0 answered 7"));
    /* The caller's own communicators live on. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(data, NULL));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(data);
}

static void a_step_that_fails_in_one_model_fails_in_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        job = (struct job){.strategy = strategy, .tensor = 2, .data = 2};
        run_job(&job, fail_one_model);
    }
}

/* Rank 0 gives up in the middle of backward, long before its model would come to the norm. */
static void fail_before_the_step(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *const data = data_ranks(v, all, rank, 2);
    trireme_model *const model = make(v, data, job->strategy, PART, 2);
    const trireme_optimizer_options rule = rule_of(1, all);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    const float gradients[PART + COMMON] = {1};
    if (rank == 0) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_abort(data, "enough"));
        EXPECT_STATUS(v, TRIREME_ERROR_ABORTED,
                      trireme_model_gradient_ready(model, 0, gradients, PART, F32) == TRIREME_OK
                          ? trireme_model_discard_gradients(model)
                          : TRIREME_ERROR_ABORTED);
    } else {
        const trireme_status given =
            trireme_model_accumulate_flat(model, gradients, PART + COMMON, F32, 0);
        EXPECT(v, given == TRIREME_OK || (rank == 2 && given == TRIREME_ERROR_ABORTED));
        EXPECT_STATUS(v, TRIREME_ERROR_ABORTED, trireme_optimizer_step(optimizer));
        EXPECT(v, says("enough"));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(data);
}

static void a_model_that_fails_before_the_step_fails_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        job = (struct job){.strategy = strategy, .tensor = 2, .data = 2};
        run_job(&job, fail_before_the_step);
    }
}

/* The ranks of one model want different things; the others are told. */
static void want_other_rules(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *const data = data_ranks(v, all, rank, 2);
    trireme_model *const model = make(v, data, job->strategy, PART, 2);
    trireme_optimizer_options rule = rule_of(1, all);
    if (rank == 2) rule.learning_rate = 7;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, optimizer == NULL && says("learning_rate"));
    /* All may try again. */
    rule.learning_rate = 0.1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_optimizer_destroy(optimizer);
    /* One rank has the norm of all and the other its own, so no rank comes to norm_ranks. */
    optimizer = NULL;
    if (rank % 2 == 0) {
        if (rank == 2) rule.norm_ranks = NULL;
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                      trireme_optimizer_create(model, &rule, &optimizer));
        EXPECT(v, optimizer == NULL && says("norm_ranks"));
    }
    trireme_model_destroy(model);
    trireme_communicator_destroy(data);
}

static void ranks_of_a_model_that_disagree_tell_the_others(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2, .tensor = 2, .data = 2};
    run_job(&job, want_other_rules);
}

static void count_otherwise(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(all, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "w", 3, 2 + (uint32_t)rank));
    trireme_parameter_options alias = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t extent = 3;
    alias.name = "alias";
    alias.tied_to = "w";
    alias.dtype = F32;
    alias.dimensions = 1;
    alias.shape = &extent;
    alias.replicas = 7;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_add_parameter(model, &alias, NULL));
    alias.replicas = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &alias, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("of 2 replicas on rank 0") && says("of 3 replicas on rank 1"));
    trireme_model_destroy(model);
}

static void ranks_agree_on_the_replicas(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.tensor = 2, .data = 1};
    run_job(&job, count_otherwise);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mesh_clips_as_one_process),
        cmocka_unit_test(an_infinite_gradient_shows_on_all_models),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_model_that_is_too_large_tells_the_others),
        cmocka_unit_test(a_step_that_fails_in_one_model_fails_in_all),
        cmocka_unit_test(a_model_that_fails_before_the_step_fails_all),
        cmocka_unit_test(ranks_of_a_model_that_disagree_tell_the_others),
        cmocka_unit_test(ranks_agree_on_the_replicas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
