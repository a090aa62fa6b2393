/*
 * Update in backward: the moment when parameters change, the calls that are then refused, and the
 * state after a failed step. Until every rank has handed in its first bucket nothing has changed,
 * and afterwards the model has failed on all ranks.
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

enum { PARAMETERS = 4, EACH = 9, ELEMENTS = PARAMETERS * EACH, MOST_RANKS = 4 };

enum kind { PLAIN, HOOK_BEFORE, HOOK_AFTER, RULE, RULE_DESTROYS };

struct job {
    trireme_strategy strategy;
    int world_size, leaves;
    enum kind kind;
    int failing; /* rank */
    struct verdict verdicts[MOST_RANKS];
};

struct rank {
    struct job *job;
    int number;
    struct verdict *verdict;
    trireme_model *model;
    trireme_optimizer *optimizer;
    const float *places[PARAMETERS]; /* good until the model is destroyed; or NULL */
    int calls;
};

/* Small whole numbers, so that every sum is exact. */
static float initial(int i) {
    return (float)(i % 7 - 3);
}
static float gradient_of(int parameter, int rank) {
    return (float)((parameter + 1) * (rank + 1));
}
static float changed(const struct job *job, int i, int steps) {
    float sum = 0;
    for (int rank = 0; rank < job->world_size; ++rank) sum += gradient_of(i / EACH, rank);
    return initial(i) - 0.5F * sum * (float)steps;
}

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static int32_t TRIREME_CALLCONV hook(const trireme_bucket *bucket, void *user_data) {
    struct rank *const r = user_data;
    const int32_t moment = r->job->kind == HOOK_BEFORE ? TRIREME_HOOK_BEFORE : TRIREME_HOOK_AFTER;
    return r->number == r->job->failing && bucket->moment == moment ? 9 : 0;
}

static int32_t TRIREME_CALLCONV rule(const trireme_update *update, void *user_data) {
    struct rank *const r = user_data;
    float *const p = update->parameters;
    const float *const g = update->gradients;
    for (uint64_t i = 0; i < update->count; ++i) p[i] -= 0.5F * g[i];
    if (r->number != r->job->failing || r->calls++ > 0) return 0;
    if (r->job->kind == RULE) return 5;
    EXPECT_STATUS(r->verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_set_learning_rate(r->optimizer, 1));
    EXPECT_STATUS(r->verdict, TRIREME_ERROR_INVALID_STATE, trireme_model_end_backward(r->model));
    trireme_optimizer_destroy(r->optimizer);
    trireme_model_destroy(r->model);
    return 0;
}

static void make_model(struct rank *r, trireme_communicator *communicator, uint32_t flags) {
    struct verdict *const v = r->verdict;
    const struct job *const job = r->job;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    options.gradients = TRIREME_GRADIENTS_SUM;
    options.leaves = (uint32_t)job->leaves;
    buckets_of(&options)->bytes = units_of(&options)->minimum_bytes = 1;
    options.flags = flags;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = (uint32_t)job->world_size;
    }
    if (job->kind == HOOK_BEFORE || job->kind == HOOK_AFTER) {
        buckets_of(&options)->hook = hook;
        buckets_of(&options)->user_data = r;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &r->model));
    for (int k = 0; k < PARAMETERS; ++k) {
        static const char *const names[PARAMETERS] = {"a", "b", "c", "d"};
        const uint64_t size = EACH;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[k];
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &size;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(r->model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(r->model));
    float values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) values[i] = initial(i);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(r->model, values, ELEMENTS, F32, 0));
}

static void make_optimizer(struct rank *r) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 0.5;
    if (r->job->kind >= RULE) {
        options.kind = TRIREME_RULE_USER;
        user_rule_of(&options)->update = rule;
        user_rule_of(&options)->user_data = r;
    }
    EXPECT_STATUS(r->verdict, TRIREME_OK,
                  trireme_optimizer_create(r->model, &options, &r->optimizer));
}

static struct rank *start(struct job *job, int number) {
    static struct rank ranks[MOST_RANKS];
    ranks[number] = (struct rank){.job = job, .number = number, .verdict = &job->verdicts[number]};
    return &ranks[number];
}

static struct rank *make(struct job *job, trireme_communicator *communicator, int number) {
    struct rank *const r = start(job, number);
    make_model(r, communicator, TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD);
    make_optimizer(r);
    for (int k = 0; k < PARAMETERS; ++k) {
        void *place = NULL;
        if (trireme_model_get_parameter_data(r->model, (uint64_t)k, &place, NULL) == TRIREME_OK) {
            r->places[k] = place;
        }
    }
    return r;
}

static void unmake(struct rank *r) {
    trireme_model_destroy(r->model);
    trireme_optimizer_destroy(r->optimizer);
}

static trireme_status hand_in(struct rank *r, int parameter) {
    float gradient[EACH];
    for (int i = 0; i < EACH; ++i) gradient[i] = gradient_of(parameter, r->number);
    return trireme_model_gradient_ready(r->model, (uint64_t)parameter, gradient, EACH, F32);
}

static void pass(struct rank *r) {
    EXPECT_STATUS(r->verdict, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
    for (int k = PARAMETERS; k-- > 0;) EXPECT_STATUS(r->verdict, TRIREME_OK, hand_in(r, k));
    EXPECT_STATUS(r->verdict, TRIREME_OK, trireme_model_end_backward(r->model));
}

/* The values that this rank sees, even of a model that has failed. */
static void expect_as_at_first(struct rank *r) {
    for (int i = 0; i < ELEMENTS; ++i) {
        const float *const place = r->places[i / EACH];
        if (place != NULL) EXPECT(r->verdict, place[i % EACH] == initial(i));
    }
}

static void expect_changed(struct rank *r, int steps) {
    float values[ELEMENTS];
    EXPECT_STATUS(r->verdict, TRIREME_OK,
                  trireme_model_gather_parameters(r->model, values, ELEMENTS, F32));
    for (int i = 0; i < ELEMENTS; ++i) EXPECT(r->verdict, values[i] == changed(r->job, i, steps));
}

static void
run(trireme_strategy strategy, int world_size, int leaves, enum kind kind, rank_function *body) {
    static struct job job;
    job = (struct job){.strategy = strategy,
                       .world_size = world_size,
                       .leaves = leaves,
                       .kind = kind,
                       .failing = world_size - 1};
    run_ranks(world_size, body, &job);
    for (int i = 0; i < world_size; ++i) {
        if (job.verdicts[i].text[0] == 0) continue;
        print_error("%s, world of %d, leaves %d, kind %d\n", trireme_strategy_name(strategy),
                    world_size, leaves, (int)kind);
    }
    assert_verdicts(job.verdicts, world_size);
}

#define FOR_EACH_STRATEGY(s) for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s)

/* ---- when parameters change ---- */

/* Two places for buckets: the third gradient waits until the first bucket is updated. */
static void watch(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(r->model, &memory));
    EXPECT(v, memory.planned_gradients == 0 && memory.allocated_gradients == 0);
    for (int step = 0; step < 3; ++step) {
        const bool gathered = step == 1;
        if (gathered) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(r->model, PARAMETERS - 1));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
        for (int k = PARAMETERS; k-- > 1;) EXPECT_STATUS(v, TRIREME_OK, hand_in(r, k));
        const int last = (PARAMETERS - 1) * EACH;
        EXPECT(v, *r->places[PARAMETERS - 1] == changed(r->job, last, gathered ? step : step + 1));
        EXPECT(v, *r->places[0] == changed(r->job, 0, step));
        if (gathered) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(r->model, PARAMETERS - 1));
        }
        EXPECT_STATUS(v, TRIREME_OK, hand_in(r, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(r->model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r->optimizer));
        expect_changed(r, step + 1);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(r->model, &statistics));
        EXPECT(v, statistics.extra_buckets == 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(r->model, &memory));
        EXPECT(v, memory.planned_working == memory.allocated_working);
    }
    unmake(r);
}

static void a_bucket_is_updated_before_the_next_but_one(void **state) {
    (void)state;
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_ZERO2; ++s) {
        run(s, 1, 0, PLAIN, watch);
        run(s, 1, 1, PLAIN, watch);
    }
}

/* Where a unit stays gathered its bucket keeps its place, and another one is made for the third. */
static void keep_gathered(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    for (int k = 0; k < PARAMETERS; ++k) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(r->model, (uint64_t)k));
    }
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
        for (int k = PARAMETERS; k-- > 0;) {
            EXPECT_STATUS(v, TRIREME_OK, hand_in(r, k));
            for (int i = 0; i < ELEMENTS; ++i) {
                void *place = NULL;
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_model_get_parameter_data(r->model, (uint64_t)(i / EACH),
                                                               &place, NULL));
                const float *const values = place;
                EXPECT(v, values[i % EACH] == changed(r->job, i, step));
            }
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(r->model));
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(r->model, &statistics));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(r->model, &memory));
        EXPECT(v, statistics.extra_buckets == 2 * ((uint64_t)step + 1));
        EXPECT(v, memory.planned_working == memory.allocated_working);
        for (int k = 0; k < PARAMETERS; ++k) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(r->model, (uint64_t)k));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r->optimizer));
        expect_changed(r, step + 1);
        for (int k = 0; k < PARAMETERS; ++k) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(r->model, (uint64_t)k));
        }
    }
    unmake(r);
}

static void what_the_caller_keeps_gathered_waits_for_the_step(void **state) {
    (void)state;
    run(TRIREME_STRATEGY_DATA_PARALLEL, 1, 0, PLAIN, keep_gathered);
    run(TRIREME_STRATEGY_ZERO2, 1, 0, PLAIN, keep_gathered);
}

/* ---- refusals ---- */

static void be_refused(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = start(context, number);
    struct verdict *const v = r->verdict;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = r->job->strategy;
    if (options.strategy == TRIREME_STRATEGY_HYBRID_SHARD) shards_of(&options)->ranks = 2;
    options.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD | TRIREME_MODEL_FLAG_UNEVEN;
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_model_create(communicator, &options, &r->model));
    EXPECT(v, says("TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD with TRIREME_MODEL_FLAG_UNEVEN"));
    options.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
    options.unused = TRIREME_UNUSED_SKIP;
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_model_create(communicator, &options, &r->model));
    EXPECT(v, says("TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD with TRIREME_UNUSED_SKIP"));
    EXPECT(v, r->model == NULL);
    make_model(r, communicator, TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_begin_backward(r->model, 0));
    EXPECT(v, says("has no optimizer"));
    const double norms[1] = {1};
    for (int i = 0; i < 8; ++i) {
        trireme_optimizer_options rules = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rules.kind = TRIREME_RULE_SGD;
        const char *words = "a norm of all gradients";
        switch (i) {
            case 0: clipping_of(&rules)->max_norm = 1; break;
            case 1:
                groups_of(&rules, 1);
                set_group_norms(&rules, norms);
                break;
            case 2:
                loss_scale_of(&rules)->initial_scale = 2;
                words = "a loss scale";
                break;
            case 3:
                rules.kind = TRIREME_RULE_LAMB;
                words = "a rule that needs norms";
                break;
            case 4:
                rules.kind = TRIREME_RULE_ADAFACTOR;
                words = "a rule that needs norms";
                break;
            case 5:
                rules.kind = TRIREME_RULE_MUON;
                words = "a rule that needs whole matrices";
                break;
            case 6:
                rules.kind = TRIREME_RULE_LARS;
                words = "a rule that needs norms";
                break;
            default:
                rules.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
                words = "ONE_SWEEP with a strategy other than zero1";
                if (r->job->strategy == TRIREME_STRATEGY_ZERO1) {
                    words = "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP, which keeps all gradients";
                }
        }
        EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                      trireme_optimizer_create(r->model, &rules, &r->optimizer));
        EXPECT(v, says(words) && r->optimizer == NULL);
    }
    make_optimizer(r);
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_model_begin_backward(r->model, TRIREME_BACKWARD_FLAG_NO_SYNC));
    EXPECT(v, says("NO_SYNC") && says("no place for sums"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(r->optimizer, 0.5));
    /* Rates are those of the beginning, and no caller may look at parameters. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
    const trireme_constant_schedule_options schedule = TRIREME_CONSTANT_SCHEDULE_OPTIONS_INIT;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_set_learning_rate(r->optimizer, 0.25));
    EXPECT(v, says("whose rates are those of its first"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_set_schedule(r->optimizer, &schedule.base));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_set_group_rate_factor(r->optimizer, 0, 1));
    for (int k = PARAMETERS; k-- > 0;) EXPECT_STATUS(v, TRIREME_OK, hand_in(r, k));
    float values[ELEMENTS];
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_model_gather_parameters(r->model, values, ELEMENTS, F32));
    EXPECT(v, says("parameters change"));
    void *view = values;
    int32_t adds = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_model_get_gradient_data(r->model, 0, &view, NULL, NULL, &adds));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(r->model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r->optimizer));
    expect_changed(r, 1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(r->optimizer, 0.25));
    unmake(r);
}

static void what_needs_all_gradients_first_is_refused(void **state) {
    (void)state;
    FOR_EACH_STRATEGY(s) {
        run(s, 2, 0, PLAIN, be_refused);
    }
}

/* ---- failures ---- */

/* All hear of it, and of the two rates, and nothing has changed. */
static void learn_otherwise(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    if (number == r->job->failing) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(r->optimizer, 0.25));
    }
    pass(r);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_step(r->optimizer));
    char words[80];
    snprintf(words, sizeof words, "learning rate is 0.5 on rank 0 and 0.25 on rank %d",
             r->job->failing);
    EXPECT(v, says(words));
    expect_as_at_first(r);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_begin_backward(r->model, 0));
    unmake(r);
}

static void two_learning_rates_are_a_mismatch_before_anything_changes(void **state) {
    (void)state;
    FOR_EACH_STRATEGY(s) {
        run(s, 3, 0, PLAIN, learn_otherwise);
        run(s, 3, 3, PLAIN, learn_otherwise);
    }
}

static void answer_otherwise(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    pass(r);
    EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_optimizer_step(r->optimizer));
    char words[80];
    snprintf(words, sizeof words, "%s of rank %d answered %d",
             r->job->kind == RULE ? "update rule" : "bucket hook", r->job->failing,
             r->job->kind == RULE ? 5 : 9);
    EXPECT(v, says(words));
    /* Before the first bucket has gone out, no rank can update. */
    if (r->job->kind == HOOK_BEFORE) expect_as_at_first(r);
    EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_model_begin_backward(r->model, 0));
    unmake(r);
}

static void a_hook_or_rule_that_fails_is_told_at_the_step(void **state) {
    (void)state;
    FOR_EACH_STRATEGY(s) {
        for (enum kind kind = HOOK_BEFORE; kind <= RULE; ++kind) {
            run(s, 3, 0, kind, answer_otherwise);
            run(s, 2, 2, kind, answer_otherwise);
        }
    }
}

static void lose_the_rule(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
    trireme_status status = TRIREME_OK;
    for (int k = PARAMETERS; k-- > 0 && status == TRIREME_OK;) status = hand_in(r, k);
    EXPECT(v, status == TRIREME_ERROR_INVALID_HANDLE && r->calls == 1);
    unmake(r);
}

/* In the middle of the call in which it runs, which goes on to its end. */
static void a_rule_may_destroy_what_it_belongs_to(void **state) {
    (void)state;
    FOR_EACH_STRATEGY(s) {
        run(s, 1, 0, RULE_DESTROYS, lose_the_rule);
    }
}

/* One rank gives up before its first bucket: nothing has changed, and the next step is a good one.
 */
static void discard_in_time(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    for (int round = 0; round < 2; ++round) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
        if (number != r->job->failing) {
            for (int k = PARAMETERS; k-- > 0;) EXPECT_STATUS(v, TRIREME_OK, hand_in(r, k));
            if (round == 1) EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(r->model));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(r->model));
        expect_as_at_first(r);
    }
    for (int step = 0; step < 2; ++step) {
        pass(r);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r->optimizer));
        expect_changed(r, step + 1);
    }
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(r->model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    unmake(r);
}

static void discard_too_late(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
    const int least = number == r->job->failing ? PARAMETERS - 1 : 0;
    for (int k = PARAMETERS; k-- > least;) EXPECT_STATUS(v, TRIREME_OK, hand_in(r, k));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_discard_gradients(r->model));
    EXPECT(v, says("cannot be discarded") && says("neither the old ones nor the new ones"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_begin_backward(r->model, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_step(r->optimizer));
    EXPECT(v, says("cannot be discarded"));
    unmake(r);
}

static void a_step_can_be_discarded_until_its_first_bucket(void **state) {
    (void)state;
    FOR_EACH_STRATEGY(s) {
        run(s, 3, 0, PLAIN, discard_in_time);
        run(s, 3, 3, PLAIN, discard_in_time);
        run(s, 3, 0, PLAIN, discard_too_late);
        run(s, 3, 3, PLAIN, discard_too_late);
        run(s, 1, 0, PLAIN, discard_too_late);
    }
}

/* Some discard the step and others end it. */
static void end_or_discard(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    if (number == r->job->failing) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
        const trireme_status status = trireme_model_discard_gradients(r->model);
        EXPECT(v, status == TRIREME_OK || status == TRIREME_ERROR_MISMATCH);
    } else {
        pass(r);
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_step(r->optimizer));
        char words[80];
        snprintf(words, sizeof words, "rank %d has failed in this step or discarded it",
                 r->job->failing);
        EXPECT(v, says(words));
    }
    expect_as_at_first(r);
    unmake(r);
}

/* Some discard it when the update has begun: no rank takes the step for made. */
static void end_or_discard_too_late(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    pass(r);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r->optimizer));
    if (number == r->job->failing) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
        EXPECT_STATUS(v, TRIREME_OK, hand_in(r, PARAMETERS - 1));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_discard_gradients(r->model));
        EXPECT(v, says("cannot be discarded"));
    } else {
        pass(r);
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_step(r->optimizer));
        char words[80];
        snprintf(words, sizeof words, "rank %d has discarded the step, and others have made it",
                 r->job->failing);
        EXPECT(v, says(words));
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_begin_backward(r->model, 0));
    }
    unmake(r);
}

static void a_step_that_some_have_discarded_is_a_mismatch(void **state) {
    (void)state;
    FOR_EACH_STRATEGY(s) {
        run(s, 2, 0, PLAIN, end_or_discard);
        run(s, 2, 0, PLAIN, end_or_discard_too_late);
        run(s, 3, 0, PLAIN, end_or_discard_too_late);
        run(s, 3, 3, PLAIN, end_or_discard_too_late);
    }
}

/* The pass goes on, and ends well when they are there. */
static void forget_one(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
        for (int k = PARAMETERS; k-- > 1;) EXPECT_STATUS(v, TRIREME_OK, hand_in(r, k));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_end_backward(r->model));
        EXPECT(v, says("parameters are missing: parameter 0"));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_step(r->optimizer));
        EXPECT_STATUS(v, TRIREME_OK, hand_in(r, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(r->model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r->optimizer));
        expect_changed(r, step + 1);
    }
    unmake(r);
}

static void gradients_that_are_missing_may_still_come(void **state) {
    (void)state;
    FOR_EACH_STRATEGY(s) {
        run(s, 2, 0, PLAIN, forget_one);
    }
}

/* Without its optimizer nothing more is updated, and the step can only be discarded. */
static void lose_the_optimizer(trireme_communicator *communicator, int number, void *context) {
    struct rank *const r = make(context, communicator, number);
    struct verdict *const v = r->verdict;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
    EXPECT_STATUS(v, TRIREME_OK, hand_in(r, PARAMETERS - 1));
    trireme_optimizer_destroy(r->optimizer);
    for (int k = PARAMETERS - 1; k-- > 0;) EXPECT_STATUS(v, TRIREME_OK, hand_in(r, k));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(r->model));
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    trireme_optimizer *other = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_create(r->model, &options, &other));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_discard_gradients(r->model));
    EXPECT(v, says("cannot be discarded") && other == NULL);
    unmake(r);
}

static void a_step_without_its_optimizer_comes_to_nothing(void **state) {
    (void)state;
    FOR_EACH_STRATEGY(s) {
        run(s, 2, 0, PLAIN, lose_the_optimizer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bucket_is_updated_before_the_next_but_one),
        cmocka_unit_test(what_the_caller_keeps_gathered_waits_for_the_step),
        cmocka_unit_test(what_needs_all_gradients_first_is_refused),
        cmocka_unit_test(two_learning_rates_are_a_mismatch_before_anything_changes),
        cmocka_unit_test(a_hook_or_rule_that_fails_is_told_at_the_step),
        cmocka_unit_test(a_rule_may_destroy_what_it_belongs_to),
        cmocka_unit_test(a_step_can_be_discarded_until_its_first_bucket),
        cmocka_unit_test(a_step_that_some_have_discarded_is_a_mismatch),
        cmocka_unit_test(gradients_that_are_missing_may_still_come),
        cmocka_unit_test(a_step_without_its_optimizer_comes_to_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
