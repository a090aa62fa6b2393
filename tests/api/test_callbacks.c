/*
 * Calls from inside a bucket hook or an update rule. Calls on their own model are refused and
 * change nothing, destroying is allowed, and the caller's own collectives go on. A callback that
 * never returns leaves a model that can only be destroyed.
 */
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
enum { MOST_RANKS = 3, UNITS = 3, ELEMENTS = 5 + 6 + 7, CALLS = 27 };

enum place { BEFORE, AFTER, RULE };
enum act { CALLS_THE_MODEL, DESTROYS, SUMS, JUMPS };

struct job {
    trireme_strategy strategy;
    int world_size;
    enum place place;
    enum act act;
    struct verdict verdicts[MOST_RANKS];
};

/* One rank of a job. */
struct rank {
    struct job *job;
    struct verdict *verdict;
    trireme_communicator *communicator;
    trireme_model *model;
    trireme_optimizer *optimizer;
    int visits;
    jmp_buf way_out;
};

/* ---- from inside ---- */

/* Every function of a model and an optimizer. None may write to its arguments. */
static void call_everything(struct rank *r) {
    struct verdict *const v = r->verdict;
    trireme_model *const m = r->model;
    trireme_optimizer *const o = r->optimizer;
    float values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) values[i] = 77;
    uint64_t number = 77;
    uint32_t leaf = 77;
    double real = 77;
    void *data = values;
    const uint64_t shape = 5;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "late";
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &shape;
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    trireme_optimizer *another = NULL;
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    trireme_unit_info unit = TRIREME_UNIT_INFO_INIT;
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
    trireme_state_range range = TRIREME_STATE_RANGE_INIT;
    const trireme_status answers[CALLS] = {
        trireme_model_add_parameter(m, &parameter, &number),
        trireme_model_seal(m),
        trireme_model_get_info(m, &info),
        trireme_model_get_unit_info(m, 0, &unit),
        trireme_model_get_memory(m, &memory),
        trireme_model_get_statistics(m, &statistics),
        trireme_model_check_replicas(m),
        trireme_model_broadcast_parameters(m, values, ELEMENTS, F32, 0),
        trireme_model_gather_parameters(m, values, ELEMENTS, F32),
        trireme_model_gather_unit(m, 0),
        trireme_model_release_unit(m, 0),
        trireme_model_get_parameter_data(m, 0, &data, &number),
        trireme_model_get_leaf(m, 0, &leaf),
        trireme_model_begin_backward(m, 0),
        trireme_model_gradient_ready(m, 0, values, 5, F32),
        trireme_model_end_backward(m),
        trireme_model_accumulate_flat(m, values, ELEMENTS, F32, 0),
        trireme_model_discard_gradients(m),
        trireme_optimizer_create(m, &rule, &another),
        trireme_optimizer_step(o),
        trireme_optimizer_join(o, &number),
        trireme_optimizer_set_learning_rate(o, 5),
        trireme_optimizer_get_learning_rate(o, &real),
        trireme_optimizer_get_range_count(o, &number),
        trireme_optimizer_get_range(o, 0, &range),
        trireme_optimizer_save(o, values, sizeof values, &number),
        trireme_optimizer_load(o, values, sizeof values),
    };
    for (int i = 0; i < CALLS; ++i) {
        if (answers[i] == TRIREME_ERROR_INVALID_STATE || v->text[0] != 0) continue;
        snprintf(v->text, sizeof v->text, "call %d from inside is %s", i,
                 trireme_status_name(answers[i]));
    }
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_get_step_count(o, &number));
    EXPECT(v, strstr(trireme_last_error(), "from inside") != NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_get_gradient_norm(o, &real));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_get_saved_bytes(o, &number));
    for (int i = 0; i < ELEMENTS; ++i) EXPECT(v, values[i] == 77);
    EXPECT(v, number == 77 && leaf == 77 && real == 77 && another == NULL && data == values);
    EXPECT(v, info.elements == 0 && unit.elements == 0 && memory.planned_parameters == 0);
    EXPECT(v, statistics.steps == 0 && range.count == 0);
}

static void act(struct rank *r) {
    ++r->visits;
    switch (r->job->act) {
        case CALLS_THE_MODEL: call_everything(r); break;
        case DESTROYS:
            trireme_model_destroy(r->model);
            trireme_optimizer_destroy(r->optimizer);
            break;
        case SUMS: {
            const int32_t one = 1;
            int32_t sum = 0;
            EXPECT_STATUS(r->verdict, TRIREME_OK,
                          trireme_all_reduce(r->communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                                             TRIREME_REDUCTION_SUM, NULL));
            EXPECT(r->verdict, sum == r->job->world_size);
            break;
        }
        case JUMPS: longjmp(r->way_out, 1);
    }
}

static int32_t TRIREME_CALLCONV hook(const trireme_bucket *bucket, void *user_data) {
    struct rank *const r = user_data;
    const bool before = bucket->moment == TRIREME_HOOK_BEFORE;
    if (r->job->place == (before ? BEFORE : AFTER)) act(r);
    return 0;
}

static int32_t TRIREME_CALLCONV descend(const trireme_update *update, void *user_data) {
    float *const p = update->parameters;
    const float *const g = update->gradients;
    for (uint64_t i = 0; i < update->count; ++i) p[i] -= g[i];
    struct rank *const r = user_data;
    if (r->job->place == RULE) act(r);
    return 0;
}

/* ---- from outside ---- */

static void set_up(struct rank *r) {
    struct verdict *const v = r->verdict;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = r->job->strategy;
    units_of(&options)->minimum_bytes = buckets_of(&options)->bytes = 1;
    buckets_of(&options)->hook = hook;
    buckets_of(&options)->user_data = r;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(r->communicator, &options, &r->model));
    static const char *const names[UNITS] = {"a", "b", "c"};
    for (uint64_t i = 0; i < UNITS; ++i) {
        const uint64_t size = 5 + i;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[i];
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &size;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(r->model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(r->model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_USER;
    user_rule_of(&rule)->update = descend;
    user_rule_of(&rule)->user_data = r;
    clipping_of(&rule)->max_norm = 1e9;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(r->model, &rule, &r->optimizer));
}

static void work(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = {.job = job, .verdict = &job->verdicts[number], .communicator = communicator};
    struct verdict *const v = r.verdict;
    set_up(&r);
    float gradient[ELEMENTS], values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) gradient[i] = (float)(number + 1);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(r.model, gradient, 5 + 6 + 7, F32, 0));
    if (job->act == DESTROYS && job->place == BEFORE) {
        /* The model was gone with the first bucket; the call went on to its end. */
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_step(r.optimizer));
    } else {
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r.optimizer));
    }
    EXPECT(v, r.visits > 0);
    if (job->act == DESTROYS) {
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                      trireme_model_gather_parameters(r.model, values, ELEMENTS, F32));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_step(r.optimizer));
    } else {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(r.model, values, ELEMENTS, F32));
        const float average = (float)(job->world_size + 1) / 2;
        for (int i = 0; i < ELEMENTS; ++i) EXPECT(v, values[i] == -average);
        trireme_optimizer_destroy(r.optimizer);
        trireme_model_destroy(r.model);
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
}

static void run_job(trireme_strategy strategy, int world_size, enum place place, enum act act) {
    struct job job = {.strategy = strategy, .world_size = world_size, .place = place, .act = act};
    run_ranks(world_size, work, &job);
    for (int rank = 0; rank < world_size; ++rank) {
        if (job.verdicts[rank].text[0] != 0) {
            print_error("%s on %d ranks, place %d, act %d\n", trireme_strategy_name(strategy),
                        world_size, (int)place, (int)act);
        }
    }
    assert_verdicts(job.verdicts, world_size);
}

static void calls_from_inside_are_refused_and_change_nothing(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        for (int world_size = 1; world_size <= MOST_RANKS; ++world_size) {
            for (int place = BEFORE; place <= RULE; ++place) {
                run_job(strategy, world_size, place, CALLS_THE_MODEL);
            }
        }
    }
}

static void a_model_may_be_destroyed_from_inside(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        for (int world_size = 1; world_size <= MOST_RANKS; ++world_size) {
            for (int place = BEFORE; place <= RULE; ++place) {
                run_job(strategy, world_size, place, DESTROYS);
            }
        }
    }
}

/* On every rank as often, and in the same order: so with data_parallel alone. */
static void collectives_of_the_callers_own_go_on_inside(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= MOST_RANKS; ++world_size) {
        for (int place = BEFORE; place <= RULE; ++place) {
            run_job(TRIREME_STRATEGY_DATA_PARALLEL, world_size, place, SUMS);
        }
    }
}

static void one_that_never_comes_back_leaves_a_model_to_be_destroyed(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* what lay on the stack that was left is lost, which is a leak and no crash */
#else
    for (volatile int place = BEFORE; place <= RULE; ++place) {
        struct job job = {.strategy = TRIREME_STRATEGY_ZERO2,
                          .world_size = 1,
                          .place = place,
                          .act = JUMPS};
        char rendezvous[64];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        struct rank r = {.job = &job,
                         .verdict = &job.verdicts[0],
                         .communicator = join_rank(0, 1, rendezvous)};
        set_up(&r);
        float gradient[ELEMENTS] = {0};
        trireme_status status = TRIREME_OK;
        if (setjmp(r.way_out) == 0) {
            status = trireme_model_accumulate_flat(r.model, gradient, ELEMENTS, F32, 0);
            if (status == TRIREME_OK) status = trireme_optimizer_step(r.optimizer);
            fail_msg("it came back with %s", trireme_status_name(status));
        }
        assert_int_equal(trireme_optimizer_step(r.optimizer), TRIREME_ERROR_INVALID_STATE);
        assert_int_equal(trireme_model_discard_gradients(r.model), TRIREME_ERROR_INVALID_STATE);
        trireme_model_destroy(r.model);
        trireme_optimizer_destroy(r.optimizer);
        assert_int_equal(trireme_optimizer_step(r.optimizer), TRIREME_ERROR_INVALID_HANDLE);
        assert_int_equal(trireme_barrier(r.communicator, NULL), TRIREME_OK);
        assert_verdicts(job.verdicts, 1);
        trireme_communicator_destroy(r.communicator);
    }
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_from_inside_are_refused_and_change_nothing),
        cmocka_unit_test(a_model_may_be_destroyed_from_inside),
        cmocka_unit_test(collectives_of_the_callers_own_go_on_inside),
        cmocka_unit_test(one_that_never_comes_back_leaves_a_model_to_be_destroyed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
