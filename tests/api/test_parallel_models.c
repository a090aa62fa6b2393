/*
 * Models on all axes of a parallel object, beside the same sums made by hand. Gradients are whole
 * numbers, so every mean and every norm is exact.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "ranks.h"

enum { DATA, SHARD, TENSOR, PIPELINE, CONTEXT, EXPERT, AXES };
enum { MOST = 8, ELEMENTS = 7, STEPS = 2 };

struct job {
    int32_t sizes[AXES];
    int world_size;
    trireme_strategy strategy;
    struct verdict verdicts[MOST];
    int32_t at[MOST][AXES];
    float common[MOST][ELEMENTS], experts[MOST][ELEMENTS];
    double common_norm[MOST], experts_norm[MOST];
};

static trireme_parallel *
make(struct verdict *v, trireme_communicator *communicator, const int32_t *sizes) {
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = sizes[DATA];
    options.shard = sizes[SHARD];
    options.tensor = sizes[TENSOR];
    options.pipeline = sizes[PIPELINE];
    options.context = sizes[CONTEXT];
    options.expert = sizes[EXPERT];
    options.micro_batches = 2;
    trireme_parallel *parallel = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create(communicator, &options, &parallel));
    return parallel;
}

/* Of a rank in a step, for an element. A mean over 1, 2, 3, 4, 6 or 8 of them has few digits. */
static float gradient_of(int rank, int step, int element, bool expert) {
    return (float)(24 * (rank * 5 + step * 3 + element + (expert ? 2 : 0)) - 48);
}

static void add(struct verdict *v, trireme_model *model, const char *name) {
    const uint64_t elements = ELEMENTS;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
}

static trireme_optimizer *optimize(struct verdict *v, trireme_model *model) {
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    clipping.max_norm = 1e9;
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    rule.clipping = &clipping;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    return optimizer;
}

static void train(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_parallel *const parallel = make(v, communicator, job->sizes);
    if (parallel == NULL) return;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_get_coordinates(parallel, rank, job->at[rank], AXES));
    if (rank % 2 == 0) trireme_communicator_destroy(communicator);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    trireme_model *models[2] = {NULL};
    trireme_optimizer *optimizers[2] = {NULL};
    for (int expert = 0; expert < 2; ++expert) {
        if (expert) options.gradients = TRIREME_GRADIENTS_SUM;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_parallel_create_model(parallel, expert, &options, &models[expert]));
        add(v, models[expert], "w");
        optimizers[expert] = optimize(v, models[expert]);
    }
    for (int step = 0; step < STEPS; ++step) {
        for (int expert = 0; expert < 2; ++expert) {
            float gradient[ELEMENTS];
            for (int i = 0; i < ELEMENTS; ++i) {
                gradient[i] = gradient_of(rank, step, i, expert);
            }
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(models[expert], gradient, ELEMENTS,
                                                        TRIREME_DTYPE_F32, 0));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizers[expert]));
        }
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_optimizer_get_gradient_norm(optimizers[0], &job->common_norm[rank]));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_optimizer_get_gradient_norm(optimizers[1], &job->experts_norm[rank]));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(models[0], job->common[rank], ELEMENTS,
                                                  TRIREME_DTYPE_F32));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(models[1], job->experts[rank], ELEMENTS,
                                                  TRIREME_DTYPE_F32));
    for (int expert = 0; expert < 2; ++expert) {
        trireme_optimizer_destroy(optimizers[expert]);
        trireme_model_destroy(models[expert]);
    }
    trireme_parallel_destroy(parallel);
}

/* The gradient of the model that `rank` has: over all ranks that hold the same parameters. */
static double reduced(const struct job *job, int rank, int step, int element, bool expert) {
    double sum = 0;
    int ranks = 0;
    for (int other = 0; other < job->world_size; ++other) {
        const int32_t *const a = job->at[rank], *const b = job->at[other];
        if (a[TENSOR] != b[TENSOR] || a[PIPELINE] != b[PIPELINE]) continue;
        if (expert && a[EXPERT] != b[EXPERT]) continue;
        sum += gradient_of(other, step, element, expert);
        ++ranks;
    }
    return expert ? sum : sum / ranks;
}

/* Over all models of the job, each once: that of its lowest rank. */
static double norm_of(const struct job *job, bool expert) {
    double squares = 0;
    for (int rank = 0; rank < job->world_size; ++rank) {
        const int32_t *const at = job->at[rank];
        if (at[DATA] != 0 || at[SHARD] != 0 || at[CONTEXT] != 0) continue;
        if (!expert && at[EXPERT] != 0) continue;
        for (int i = 0; i < ELEMENTS; ++i) {
            const double g = reduced(job, rank, STEPS - 1, i, expert);
            squares += g * g;
        }
    }
    return sqrt(squares);
}

static void check(const struct job *job) {
    for (int rank = 0; rank < job->world_size; ++rank) {
        for (int i = 0; i < ELEMENTS; ++i) {
            double common = 0, expert = 0;
            for (int step = 0; step < STEPS; ++step) {
                common -= reduced(job, rank, step, i, false);
                expert -= reduced(job, rank, step, i, true);
            }
            assert_true(job->common[rank][i] == common);
            assert_true(job->experts[rank][i] == expert);
        }
        assert_true(job->common_norm[rank] == norm_of(job, false));
        assert_true(job->experts_norm[rank] == norm_of(job, true));
    }
}

static bool goes_with(trireme_strategy strategy, const int32_t *sizes) {
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) return true;
    if (strategy == TRIREME_STRATEGY_DATA_PARALLEL) return sizes[SHARD] == 1;
    return sizes[DATA] == 1 || sizes[SHARD] == 1;
}

static void models_train_as_sums_made_by_hand(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const int32_t layouts[][AXES] = {
        {1, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 1, 1}, {1, 3, 1, 1, 1, 1}, {1, 1, 1, 1, 4, 1},
        {1, 1, 1, 1, 1, 2}, {1, 1, 1, 1, 3, 1}, {1, 1, 1, 1, 2, 2}, {2, 1, 1, 1, 1, 2},
        {1, 2, 1, 1, 1, 2}, {1, 1, 2, 1, 1, 2}, {2, 1, 1, 1, 2, 2}, {2, 2, 1, 1, 1, 2},
        {2, 2, 1, 1, 2, 1}, {1, 2, 1, 1, 2, 2}, {1, 1, 2, 1, 2, 2}, {2, 1, 1, 2, 1, 2},
        {1, 1, 2, 2, 1, 2}, {2, 1, 2, 2, 1, 1}, {1, 1, 1, 3, 1, 2}, {3, 1, 1, 1, 2, 1},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (!goes_with(strategy, layouts[i])) continue;
            if (is_quick() && (i + (size_t)strategy) % 4 != 0) continue;
            static struct job job;
            memset(&job, 0, sizeof job);
            job.strategy = strategy;
            job.world_size = 1;
            memcpy(job.sizes, layouts[i], sizeof job.sizes);
            for (int axis = 0; axis < AXES; ++axis) job.world_size *= job.sizes[axis];
            run_ranks(job.world_size, train, &job);
            assert_verdicts(job.verdicts, job.world_size);
            check(&job);
        }
    }
}

/* ---- leaves ---- */

/*
 * The leaves of a model are the parts of the batch that the rank reads. With several ranks along
 * context each part has so many leaves, one for the positions of each.
 */
static void ask_for_leaves(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_parallel *const parallel = make(v, communicator, job->sizes);
    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &info));
    const uint32_t parts = (uint32_t)info.readers * info.micro_batches;
    const uint32_t leaves = parts * (uint32_t)info.context;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    options.leaves = leaves;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create_model(parallel, 0, &options, &model));
    add(v, model, "w");
    trireme_optimizer *const optimizer = optimize(v, model);
    for (uint32_t k = 0; k < info.micro_batches; ++k) {
        uint64_t first = 0, count = 0;
        uint32_t leaf = 77;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, k, &leaf));
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_rows(parallel, parts, k, &first, &count));
        EXPECT(v, count == 1);
        EXPECT(v, leaf == first * (uint64_t)info.context + (uint64_t)info.context_rank);
        float gradient[ELEMENTS] = {0};
        gradient[0] = (float)leaf;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradient, ELEMENTS, TRIREME_DTYPE_F32,
                                                    0));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    float w[ELEMENTS] = {0};
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, w, ELEMENTS, TRIREME_DTYPE_F32));
    EXPECT(v, w[0] == -(float)(leaves - 1) / 2); /* the mean of the leaves' numbers */
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_parallel_destroy(parallel);
}

/* The gradient of an expert from a micro-batch of one rank: all are different. */
static double of_micro_batch(const trireme_parallel_info *info, const int32_t *at, uint32_t k) {
    const int reader = (at[DATA] * info->shard + at[SHARD]) * info->expert + at[EXPERT];
    return ((int)k * info->readers + reader) * info->context + at[CONTEXT];
}

/*
 * The leaves of experts are those of the ranks that have the same ones: fewer by the ranks along
 * expert. Their gradient is a mean over the leaves of the common model.
 */
static void train_experts_with_leaves(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_parallel *const parallel = make(v, communicator, job->sizes);
    trireme_parallel_info info = TRIREME_PARALLEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_info(parallel, &info));
    int32_t own[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_coordinates(parallel, rank, own, AXES));
    const uint32_t common = (uint32_t)(info.readers * info.context) * info.micro_batches;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    options.gradients = TRIREME_GRADIENTS_SUM;
    options.leaves = common / (uint32_t)info.expert;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_create_model(parallel, TRIREME_PARALLEL_CONTENTS_EXPERTS,
                                                &options, &model));
    add(v, model, "w");
    trireme_optimizer *const optimizer = optimize(v, model);
    for (uint32_t k = 0; k < info.micro_batches; ++k) {
        uint32_t leaf = 77;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, k, &leaf));
        const int32_t copy = own[DATA] * info.shard + own[SHARD];
        const int32_t place = copy * info.context + own[CONTEXT];
        EXPECT(v, (int32_t)leaf == (int32_t)k * info.expert_gradient_ranks + place);
        float gradient[ELEMENTS] = {0};
        gradient[0] = (float)(of_micro_batch(&info, own, k) / common);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradient, ELEMENTS, TRIREME_DTYPE_F32,
                                                    0));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    double sum = 0;
    for (int other = 0; other < job->world_size; ++other) {
        int32_t at[AXES];
        EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_coordinates(parallel, other, at, AXES));
        if (at[EXPERT] != own[EXPERT] || at[TENSOR] != own[TENSOR] ||
            at[PIPELINE] != own[PIPELINE]) {
            continue;
        }
        for (uint32_t k = 0; k < info.micro_batches; ++k) sum += of_micro_batch(&info, at, k);
    }
    float w[ELEMENTS] = {0};
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, w, ELEMENTS, TRIREME_DTYPE_F32));
    EXPECT(v, w[0] == -(float)(sum / common));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_parallel_destroy(parallel);
}

static void leaves_are_parts_of_the_batch(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const int32_t layouts[][AXES] = {
        {1, 1, 1, 1, 1, 1}, {4, 1, 1, 1, 1, 1}, {2, 1, 2, 1, 1, 2},
        {1, 2, 1, 1, 1, 2}, {2, 1, 1, 2, 1, 2}, {2, 1, 1, 1, 2, 1},
        {1, 2, 1, 1, 2, 2}, {1, 1, 1, 1, 1, 2}, {2, 1, 1, 1, 2, 2},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) {
        static struct job job;
        memset(&job, 0, sizeof job);
        job.world_size = 1;
        memcpy(job.sizes, layouts[i], sizeof job.sizes);
        for (int axis = 0; axis < AXES; ++axis) job.world_size *= job.sizes[axis];
        run_ranks(job.world_size, ask_for_leaves, &job);
        assert_verdicts(job.verdicts, job.world_size);
        run_ranks(job.world_size, train_experts_with_leaves, &job);
        assert_verdicts(job.verdicts, job.world_size);
    }
}

/* ---- refusals ---- */

/* With 1 rank along expert both contents lie on the same ranks, which compare them. */
static void disagree_in_contents(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    const int32_t sizes[AXES] = {2, 1, 1, 1, 1, 1};
    trireme_parallel *const parallel = make(v, communicator, sizes);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_create_model(parallel, rank, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = ELEMENTS;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, strstr(trireme_last_error(), "contents is common on rank 0 and experts on rank 1") !=
                  NULL);
    trireme_model_destroy(model);
    trireme_parallel_destroy(parallel);
}

/* With several, other ranks meet. None goes on as if it had a model. */
static void seal_other_contents(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_parallel *const parallel = make(v, communicator, job->sizes);
    int32_t at[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_parallel_get_coordinates(parallel, rank, at, AXES));
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    options.gradients = TRIREME_GRADIENTS_SUM;
    options.timeout_ns = 200000000;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_create_model(parallel, at[EXPERT], &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = ELEMENTS;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    const trireme_status status = trireme_model_seal(model);
    EXPECT(v, status == TRIREME_ERROR_MISMATCH || status == TRIREME_ERROR_TIMEOUT);
    /* Until all have heard: a rank that leaves is lost to those that wait. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    trireme_model_destroy(model);
    trireme_parallel_destroy(parallel);
}

static void other_contents_on_a_rank_are_a_mismatch(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[2] = {0};
    run_ranks(2, disagree_in_contents, verdicts);
    assert_verdicts(verdicts, 2);
    static const int32_t layouts[][AXES] = {{1, 1, 1, 1, 1, 2},
                                            {2, 1, 1, 1, 1, 2},
                                            {1, 1, 2, 1, 1, 2},
                                            {1, 1, 1, 1, 2, 2}};
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) {
        static struct job job;
        memset(&job, 0, sizeof job);
        job.world_size = 1;
        memcpy(job.sizes, layouts[i], sizeof job.sizes);
        for (int axis = 0; axis < AXES; ++axis) job.world_size *= job.sizes[axis];
        run_ranks(job.world_size, seal_other_contents, &job);
        assert_verdicts(job.verdicts, job.world_size);
    }
}

static void average_experts(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    const int32_t several[AXES] = {1, 1, 1, 1, 1, 2}, one[AXES] = {2, 1, 1, 1, 1, 1};
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    trireme_parallel *parallel = make(v, communicator, several);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_parallel_create_model(parallel, TRIREME_PARALLEL_CONTENTS_EXPERTS,
                                                &options, &model));
    EXPECT(v, strstr(trireme_last_error(),
                     "it would divide by 1, but the rows are those of 2 ranks") != NULL);
    EXPECT(v, model == NULL);
    trireme_parallel_destroy(parallel);
    /* With one rank there is no difference. */
    parallel = make(v, communicator, one);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_create_model(parallel, TRIREME_PARALLEL_CONTENTS_EXPERTS,
                                                &options, &model));
    trireme_model_destroy(model);
    trireme_parallel_destroy(parallel);
}

static void an_average_of_experts_is_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct verdict verdicts[2] = {0};
    run_ranks(2, average_experts, verdicts);
    assert_verdicts(verdicts, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_train_as_sums_made_by_hand),
        cmocka_unit_test(leaves_are_parts_of_the_batch),
        cmocka_unit_test(other_contents_on_a_rank_are_a_mismatch),
        cmocka_unit_test(an_average_of_experts_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
