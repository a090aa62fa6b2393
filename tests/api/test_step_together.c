/*
 * One norm over experts and all other parameters: a step of two optimizers beside plain loops over
 * the whole network. Gradients are whole numbers, so every mean and every sum of squares is exact.
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
enum { DATA, SHARD, TENSOR, PIPELINE, CONTEXT, EXPERT, AXES };
enum { MOST = 8, FIRST = 7, SECOND = 4, ELEMENTS = FIRST + SECOND, STEPS = 3, PARTS = 2 };

static const double kLimits[2] = {200, 150}; /* of groups; every norm is larger */

struct job {
    int32_t sizes[AXES];
    int world_size, rule, spoiled;
    trireme_strategy strategy;
    bool by_groups;
    struct verdict verdicts[MOST];
    int32_t at[MOST][AXES];
    float values[MOST][PARTS][ELEMENTS];
    double norms[MOST][PARTS][STEPS][2];
};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static trireme_parallel *
make_parallel(struct verdict *v, trireme_communicator *communicator, const int32_t *sizes) {
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

/* Of a rank in a step, for an element. A mean over 1 to 8 of them, but for 7, has few digits. */
static float gradient_of(int rank, int step, int element, int part) {
    return (float)(120 * ((rank * 5 + step * 3 + element * 7) % 13 + (part == 1 ? 2 : 0)) - 240);
}

static void
add(struct verdict *v, trireme_model *model, const char *name, uint64_t elements, uint32_t group) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    parameter.parameter_group = group;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
}

static void seal(struct verdict *v, trireme_model *model, bool by_groups) {
    add(v, model, "first", FIRST, 0);
    add(v, model, "second", SECOND, by_groups ? 1 : 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
}

static trireme_optimizer_options rule_of(double max_norm) {
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.5;
    if (max_norm > 0) clipping_of(&rule)->max_norm = max_norm;
    return rule;
}

static trireme_optimizer *
optimize(struct verdict *v, trireme_model *model, const trireme_optimizer_options *rule) {
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, rule, &optimizer));
    return optimizer;
}

/* ---- the bits of plain loops ---- */

static void train(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_parallel *const parallel = make_parallel(v, communicator, job->sizes);
    if (parallel == NULL) return;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_get_coordinates(parallel, rank, job->at[rank], AXES));
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    trireme_model *models[PARTS] = {NULL};
    trireme_optimizer *optimizers[PARTS] = {NULL};
    for (int part = 0; part < PARTS; ++part) {
        if (part == 1) options.gradients = TRIREME_GRADIENTS_SUM;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_parallel_create_model(parallel, part, &options, &models[part]));
        seal(v, models[part], job->by_groups);
        trireme_optimizer_options rule = rule_of(job->by_groups ? 0 : kLimits[0]);
        if (job->by_groups) groups_of(&rule, 2), set_group_norms(&rule, kLimits);
        rule.learning_rate = part == 0 ? 0.5 : 0.25; /* each has its own */
        optimizers[part] = optimize(v, models[part], &rule);
    }
    for (int step = 0; step < STEPS; ++step) {
        for (int part = 0; part < PARTS; ++part) {
            float gradient[ELEMENTS];
            for (int i = 0; i < ELEMENTS; ++i) gradient[i] = gradient_of(rank, step, i, part);
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(models[part], gradient, ELEMENTS, F32, 0));
        }
        /* Each rank names them in its own order. */
        trireme_optimizer *const named[] = {optimizers[(rank + step) % 2],
                                            optimizers[(rank + step + 1) % 2]};
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step_together(named, 2));
        for (int part = 0; part < PARTS; ++part) {
            double *const norms = job->norms[rank][part][step];
            for (uint64_t group = 0; group < 2 && job->by_groups; ++group) {
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_optimizer_get_group_norm(optimizers[part], group,
                                                               &norms[group]));
            }
            if (job->by_groups) continue;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_get_gradient_norm(optimizers[part], &norms[0]));
        }
    }
    for (int part = 0; part < PARTS; ++part) {
        uint64_t steps = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizers[part], &steps));
        EXPECT(v, steps == STEPS);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(models[part], job->values[rank][part],
                                                      ELEMENTS, F32));
        trireme_optimizer_destroy(optimizers[part]);
        trireme_model_destroy(models[part]);
    }
    trireme_parallel_destroy(parallel);
}

/* The gradient of the model that `rank` has: over all ranks that hold the same parameters. */
static double reduced(const struct job *job, int rank, int step, int element, int part) {
    double sum = 0;
    int ranks = 0;
    for (int other = 0; other < job->world_size; ++other) {
        const int32_t *const a = job->at[rank], *const b = job->at[other];
        if (a[TENSOR] != b[TENSOR] || a[PIPELINE] != b[PIPELINE]) continue;
        if (part == 1 && a[EXPERT] != b[EXPERT]) continue;
        sum += gradient_of(other, step, element, part);
        ++ranks;
    }
    return part == 1 ? sum : sum / ranks;
}

static int group_of(const struct job *job, int element) {
    return job->by_groups && element >= FIRST ? 1 : 0;
}

/* Over all parameters of the network, each once: those of its lowest rank. */
static double norm_of(const struct job *job, int step, int group) {
    double squares = 0;
    for (int rank = 0; rank < job->world_size; ++rank) {
        const int32_t *const at = job->at[rank];
        if (at[DATA] != 0 || at[SHARD] != 0 || at[CONTEXT] != 0) continue;
        for (int part = at[EXPERT] == 0 ? 0 : 1; part < PARTS; ++part) {
            for (int i = 0; i < ELEMENTS; ++i) {
                if (group_of(job, i) != group) continue;
                const double g = reduced(job, rank, step, i, part);
                squares += g * g;
            }
        }
    }
    return sqrt(squares);
}

static void check(const struct job *job) {
    for (int rank = 0; rank < job->world_size; ++rank) {
        for (int part = 0; part < PARTS; ++part) {
            float values[ELEMENTS] = {0};
            for (int step = 0; step < STEPS; ++step) {
                for (int i = 0; i < ELEMENTS; ++i) {
                    const int group = group_of(job, i);
                    const double norm = norm_of(job, step, group);
                    assert_true(norm > kLimits[group]);
                    assert_true(job->norms[rank][part][step][group] == norm);
                    const float clip = (float)(kLimits[group] / norm);
                    const float g = (float)reduced(job, rank, step, i, part);
                    values[i] -= (part == 0 ? 0.5f : 0.25f) * (g * clip);
                }
            }
            assert_memory_equal(job->values[rank][part], values, sizeof values);
        }
    }
}

static bool goes_with(trireme_strategy strategy, const int32_t *sizes) {
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) return true;
    if (strategy == TRIREME_STRATEGY_DATA_PARALLEL) return sizes[SHARD] == 1;
    return sizes[DATA] == 1 || sizes[SHARD] == 1;
}

static void begin(struct job *job, const int32_t *sizes) {
    memset(job, 0, sizeof *job);
    job->world_size = 1;
    memcpy(job->sizes, sizes, sizeof job->sizes);
    for (int axis = 0; axis < AXES; ++axis) job->world_size *= sizes[axis];
}

static void both_models_are_clipped_as_one(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const int32_t layouts[][AXES] = {
        {1, 1, 1, 1, 1, 1}, {2, 1, 1, 1, 1, 1}, {3, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 2},
        {1, 1, 1, 1, 1, 3}, {2, 1, 1, 1, 1, 2}, {1, 2, 1, 1, 1, 2}, {1, 1, 2, 1, 1, 2},
        {1, 1, 1, 1, 1, 5}, {2, 2, 1, 1, 1, 2}, {1, 1, 2, 1, 2, 2}, {2, 1, 1, 2, 1, 2},
    };
    static struct job job;
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; ++i) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (!goes_with(strategy, layouts[i])) continue;
            if (is_quick() && (i + (size_t)strategy) % 4 != 0) continue;
            begin(&job, layouts[i]);
            job.strategy = strategy;
            job.by_groups = (i + (size_t)strategy) % 2 != 0;
            run_ranks(job.world_size, train, &job);
            assert_verdicts(job.verdicts, job.world_size);
            check(&job);
        }
    }
}

/* ---- two models of a communicator, and what goes wrong ---- */

struct pair {
    trireme_communicator *own;
    trireme_model *models[PARTS];
    trireme_optimizer *optimizers[PARTS];
};

/* Both models on one communicator, the second one on each rank alone, or the first in a copy. */
enum { TOGETHER, ALONE, IN_A_COPY };

static struct pair make_pair(struct verdict *v, trireme_communicator *communicator, int rank,
                             const trireme_optimizer_options *rules, int where, int32_t unused) {
    struct pair pair = {NULL};
    const int apart = where == TOGETHER ? PARTS : where == ALONE ? 1 : 0;
    if (where == ALONE) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_communicator_split(communicator, rank, 0, NULL, &pair.own));
    } else if (where == IN_A_COPY) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_duplicate(communicator, NULL, &pair.own));
    }
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    options.unused = unused;
    for (int part = 0; part < PARTS; ++part) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_create(part == apart ? pair.own : communicator, &options,
                                           &pair.models[part]));
        seal(v, pair.models[part], false);
        pair.optimizers[part] = optimize(v, pair.models[part], &rules[part]);
    }
    return pair;
}

static void destroy(struct pair pair) {
    for (int part = 0; part < PARTS; ++part) {
        trireme_optimizer_destroy(pair.optimizers[part]);
        trireme_model_destroy(pair.models[part]);
    }
    trireme_communicator_destroy(pair.own);
}

static void hand_in(struct verdict *v, trireme_model *model, float first, float last) {
    float gradients[ELEMENTS] = {0};
    gradients[0] = first;
    gradients[ELEMENTS - 1] = last;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, ELEMENTS, F32, 0));
}

static float value_of(struct verdict *v, trireme_model *model, int element) {
    float values[ELEMENTS];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, ELEMENTS, F32));
    return values[element];
}

/*
 * One model's gradients overflow in steps 1 to 3: both skip. In the first model the steps of ADAM
 * count by parameter, so a step that counted in spite of its skip would change the values.
 */
static void skip_together(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_optimizer_options rules[PARTS] = {rule_of(job->rule == 0 ? 0 : 1000), rule_of(0)};
    if (job->rule != 0) clipping_of(&rules[1])->max_norm = 1000;
    adam_of(&rules[0])->beta1 = 0.5;
    rules[0].kind = TRIREME_RULE_ADAM;
    for (int part = 0; part < PARTS; ++part) {
        rules[part].learning_rate = 1;
        loss_scale_of(&rules[part])->initial_scale = 16;
        loss_scale_of(&rules[part])->growth_interval = 1;
        loss_scale_of(&rules[part])->minimum_scale = 8;
    }
    const struct pair pair = make_pair(v, communicator, rank, rules, TOGETHER, TRIREME_UNUSED_SKIP);
    static const double after[] = {32, 16, 8, 8, 16};
    double scale = 16;
    for (int step = 0; step < 5; ++step) {
        const bool overflow = step > 0 && step < 4;
        const bool spoils = overflow && rank == 1;
        hand_in(v, pair.models[0], (float)(2 * scale), spoils && job->spoiled == 0 ? INFINITY : 0);
        hand_in(v, pair.models[1], 0, spoils && job->spoiled == 1 ? INFINITY : (float)(3 * scale));
        EXPECT_STATUS(v, step == 3 ? TRIREME_ERROR_INVALID_STATE : TRIREME_OK,
                      trireme_optimizer_step_together(pair.optimizers, PARTS));
        if (step == 3) EXPECT(v, says("parameter 1 (\"second\"), as rank 1 handed it in"));
        for (int part = 0; part < PARTS; ++part) {
            trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_get_loss_scale_info(pair.optimizers[part], &info));
            EXPECT(v, info.scale == after[step] && info.skipped == (overflow ? 1 : 0));
            EXPECT(v, info.at_floor == (step == 3 ? 1 : 0));
            EXPECT(v, info.parameter == (overflow && part == job->spoiled ? 1 : UINT64_MAX));
            scale = info.scale;
            double norm = 0;
            if (job->rule == 0) continue;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_get_gradient_norm(pair.optimizers[part], &norm));
            EXPECT(v, norm == sqrt(13));
        }
    }
    /* ADAM with equal gradients makes steps of the rate, whatever their number: two of them. */
    EXPECT(v, fabsf(value_of(v, pair.models[0], 0) + 2) < 1e-5f);
    EXPECT(v, value_of(v, pair.models[1], ELEMENTS - 1) == -6);
    destroy(pair);
}

static void an_overflow_of_one_model_skips_the_step_of_both(void **state) {
    (void)state;
    static struct job job;
    for (int world_size = 2; world_size <= 5; ++world_size) {
        for (int way = 0; way < 4; ++way) {
            memset(&job, 0, sizeof job);
            job.rule = way % 2;
            job.spoiled = way / 2;
            run_ranks(world_size, skip_together, &job);
            assert_verdicts(job.verdicts, world_size);
        }
    }
}

/* One optimizer makes a usual step. */
static void step_alone(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    const trireme_optimizer_options rules[PARTS] = {rule_of(0), rule_of(2)};
    const struct pair pair = make_pair(v, communicator, rank, rules, TOGETHER, 0);
    for (int part = 0; part < PARTS; ++part) {
        hand_in(v, pair.models[part], 4, 3);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step_together(&pair.optimizers[part], 1));
        EXPECT(v, value_of(v, pair.models[part], 0) == (part == 0 ? -2 : -0.5f * (4 * 0.4f)));
    }
    destroy(pair);
}

static void one_optimizer_steps_alone(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, step_alone, verdicts);
    assert_verdicts(verdicts, 2);
}

static double TRIREME_CALLCONV fail_once(uint64_t step, void *user_data) {
    (void)step;
    return (*(int *)user_data)-- > 0 ? NAN : 1;
}

/* Nothing is sent, so all goes on. */
static void be_refused(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = (struct verdict *)context + rank;
    trireme_optimizer_options rules[PARTS] = {rule_of(2), rule_of(2)};
    for (int part = 0; part < PARTS; ++part) loss_scale_of(&rules[part])->growth_interval = 3;
    const struct pair pair = make_pair(v, communicator, rank, rules, TOGETHER, 0);
    trireme_optimizer *const twice[] = {pair.optimizers[0], pair.optimizers[1], pair.optimizers[0]};
    trireme_optimizer *const stale[] = {pair.optimizers[0], (trireme_optimizer *)communicator};
    trireme_optimizer *const null[] = {NULL, pair.optimizers[1]};
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_optimizer_step_together(NULL, 2));
    EXPECT(v, says("optimizers is NULL"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_step_together(pair.optimizers, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_step_together(pair.optimizers, 65));
    EXPECT(v, says("count is 65, but must be 1 to 64"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_optimizer_step_together(twice, 3));
    EXPECT(v, says("optimizers[2] is also optimizers[0]"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_step_together(stale, 2));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_step_together(null, 2));
    /* No backward pass of one of them. */
    hand_in(v, pair.models[0], 4, 3);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_step_together(pair.optimizers, PARTS));
    hand_in(v, pair.models[1], 4, 3);
    /* The schedule of the second one has no answer yet. */
    int failures = 1;
    trireme_user_schedule_options schedule = TRIREME_USER_SCHEDULE_OPTIONS_INIT;
    schedule.factor = fail_once;
    schedule.user_data = &failures;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_optimizer_set_schedule(pair.optimizers[1], &schedule.base));
    EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK,
                  trireme_optimizer_step_together(pair.optimizers, PARTS));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step_together(pair.optimizers, PARTS));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_schedule(pair.optimizers[1], NULL));
    /* A step of one of them alone: the other's loss scale has counted fewer. */
    hand_in(v, pair.models[0], 4, 3);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(pair.optimizers[0]));
    for (int part = 0; part < PARTS; ++part) hand_in(v, pair.models[part], 4, 3);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_step_together(pair.optimizers, PARTS));
    EXPECT(v, says("the loss scale of optimizers[1] has other counts"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(pair.optimizers[1]));
    hand_in(v, pair.models[1], 4, 3);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step_together(pair.optimizers, PARTS));
    destroy(pair);
    /* Options that do not go together: none, another limit, another scale. */
    for (int other = 0; other < 3; ++other) {
        trireme_optimizer_options pairs[PARTS] = {rule_of(2), rule_of(2)};
        if (other == 0) pairs[1] = rule_of(0);
        if (other == 1) clipping_of(&pairs[1])->max_norm = 3;
        if (other == 2) loss_scale_of(&pairs[1])->initial_scale = 4;
        const struct pair wrong = make_pair(v, communicator, rank, pairs, TOGETHER, 0);
        for (int part = 0; part < PARTS; ++part) hand_in(v, wrong.models[part], 0, 0);
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_optimizer_step_together(wrong.optimizers, PARTS));
        static const char *const why[] = {"without a max_norm and loss_scale", "other max_norm",
                                          "another loss_scale"};
        EXPECT(v, says("optimizers[1]") && says(why[other]));
        for (int part = 0; part < PARTS; ++part) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(wrong.optimizers[part]));
        }
        destroy(wrong);
    }
    trireme_model_options uneven = TRIREME_MODEL_OPTIONS_INIT;
    uneven.strategy = TRIREME_STRATEGY_ZERO1;
    uneven.flags = TRIREME_MODEL_FLAG_UNEVEN;
    trireme_model *models[PARTS];
    trireme_optimizer *optimizers[PARTS];
    const trireme_optimizer_options rule = rule_of(2);
    for (int part = 0; part < PARTS; ++part) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &uneven, &models[part]));
        seal(v, models[part], false);
        optimizers[part] = optimize(v, models[part], &rule);
    }
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED, trireme_optimizer_step_together(optimizers, PARTS));
    EXPECT(v, says("optimizers[0] has a model with TRIREME_MODEL_FLAG_UNEVEN"));
    for (int part = 0; part < PARTS; ++part) {
        trireme_optimizer_destroy(optimizers[part]);
        trireme_model_destroy(models[part]);
    }
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(1, be_refused, verdicts);
    run_ranks(3, be_refused, verdicts);
    assert_verdicts(verdicts, 3);
}

/* The last rank makes another call than the others. */
static void disagree(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const bool last = rank == job->world_size - 1;
    trireme_optimizer_options rules[PARTS] = {rule_of(2), rule_of(2)};
    const int apart = ranks_make_groups() ? IN_A_COPY : TOGETHER;
    const struct pair pair =
        make_pair(v, communicator, rank, rules, job->rule == 3 ? ALONE : apart, 0);
    const struct pair other = make_pair(v, communicator, rank, rules, TOGETHER, 0);
    trireme_optimizer *const crossed[] = {pair.optimizers[0], other.optimizers[1]};
    for (int part = 0; part < PARTS; ++part) hand_in(v, pair.models[part], 4, 3);
    for (int part = 0; part < PARTS; ++part) hand_in(v, other.models[part], 4, 3);
    if (last && job->rule == 0) {
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_step(pair.optimizers[0]));
    } else {
        if (last && job->rule == 1)
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_set_learning_rate(pair.optimizers[1], 0.25));
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                      trireme_optimizer_step_together(last && job->rule == 2 ? crossed
                                                                             : pair.optimizers,
                                                      PARTS));
    }
    EXPECT(v, says("learning rate or optimizers that step together"));
    /* Both have failed, and a rank that goes on with the second one hears of it. */
    if (!last || job->rule != 2) {
        const trireme_status later = trireme_optimizer_step(pair.optimizers[1]);
        EXPECT(v, later == TRIREME_ERROR_MISMATCH || later == TRIREME_ERROR_ABORTED);
    }
    destroy(pair);
    destroy(other);
}

static void ranks_that_step_otherwise_are_a_mismatch(void **state) {
    (void)state;
    static struct job job;
    for (int how = 0; how < 4; ++how) {
        if (how == 3 && !ranks_make_groups()) continue;
        memset(&job, 0, sizeof job);
        job.rule = how;
        job.world_size = 2 + how % 2;
        run_ranks(job.world_size, disagree, &job);
        assert_verdicts(job.verdicts, job.world_size);
    }
}

static int32_t TRIREME_CALLCONV spoil(const trireme_update *update, void *user_data) {
    (void)update;
    return *(const int *)user_data == 1 ? 6 : 0;
}

/* The rule of one model fails on rank 1. The step of the other one may be done by then. */
static void fail_one(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_optimizer_options rules[PARTS] = {rule_of(2), rule_of(2)};
    trireme_optimizer_options *const own = &rules[job->rule];
    own->kind = 0;
    user_rule_of(own)->update = spoil;
    user_rule_of(own)->user_data = &rank;
    const struct pair pair = make_pair(v, communicator, rank, rules, TOGETHER, 0);
    for (int part = 0; part < PARTS; ++part) hand_in(v, pair.models[part], 4, 3);
    EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK,
                  trireme_optimizer_step_together(pair.optimizers, PARTS));
    EXPECT(v, says("rank 1 answered 6"));
    for (int part = 0; part < PARTS; ++part) {
        EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_optimizer_step(pair.optimizers[part]));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    destroy(pair);
}

static void a_failure_of_one_model_fails_both(void **state) {
    (void)state;
    static struct job job;
    for (int part = 0; part < PARTS; ++part) {
        memset(&job, 0, sizeof job);
        job.rule = part;
        run_ranks(3, fail_one, &job);
        assert_verdicts(job.verdicts, 3);
    }
}

/* Rank 0 gives up one of the models before the step: the others hear why, in whichever they wait.
 */
static void give_up(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *copy = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_duplicate(communicator, NULL, &copy));
    trireme_communicator *const homes[PARTS] = {communicator, copy};
    const trireme_optimizer_options rule = rule_of(2);
    trireme_model *models[PARTS];
    trireme_optimizer *optimizers[PARTS];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    for (int part = 0; part < PARTS; ++part) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(homes[part], &options, &models[part]));
        seal(v, models[part], false);
        optimizers[part] = optimize(v, models[part], &rule);
        hand_in(v, models[part], 4, 3);
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == 0) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_abort(homes[job->rule], "enough"));
    }
    EXPECT_STATUS(v, TRIREME_ERROR_ABORTED, trireme_optimizer_step_together(optimizers, PARTS));
    EXPECT(v, says("enough"));
    for (int part = 0; part < PARTS; ++part) {
        EXPECT_STATUS(v, TRIREME_ERROR_ABORTED, trireme_optimizer_step(optimizers[part]));
        trireme_optimizer_destroy(optimizers[part]);
        trireme_model_destroy(models[part]);
    }
    trireme_communicator_destroy(copy);
}

static void an_abort_of_one_communicator_ends_the_step(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    for (int part = 0; part < PARTS; ++part) {
        memset(&job, 0, sizeof job);
        job.rule = part;
        run_ranks(3, give_up, &job);
        assert_verdicts(job.verdicts, 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_models_are_clipped_as_one),
        cmocka_unit_test(an_overflow_of_one_model_skips_the_step_of_both),
        cmocka_unit_test(one_optimizer_steps_alone),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(ranks_that_step_otherwise_are_a_mismatch),
        cmocka_unit_test(a_failure_of_one_model_fails_both),
        cmocka_unit_test(an_abort_of_one_communicator_ends_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
