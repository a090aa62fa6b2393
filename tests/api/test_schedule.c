/*
 * Learning-rate schedules: factors against formulas written down once more; meaningless options;
 * and trainings with a schedule against trainings whose rate is set by hand before each step.
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

#include "schedule.inc"

#define F64 TRIREME_DTYPE_F64
enum { ELEMENTS = 11, FIRST = 5, STEPS = 7, MOST_RANKS = 4 };

static const double kPi = 3.14159265358979323846;

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static struct plan schedule_of(trireme_schedule_kind kind, uint64_t total) {
    return (struct plan){.kind = kind, .total_steps = total};
}

/* ---- factors ---- */

/* The rise of the factor in a warm-up of w steps. */
static double rising(const struct plan *o, uint64_t s) {
    const double w = (double)o->warm_up_steps;
    if ((o->flags & TRIREME_SCHEDULE_FLAG_FROM_ZERO) != 0) return (double)s / w;
    if (o->warm_up_factor == 0) return ((double)s + 1) / w;
    return o->warm_up_factor + (1 - o->warm_up_factor) * (double)s / w;
}

static double cycling(const struct plan *o, uint64_t step) {
    const double n = (double)o->total_steps, s = (double)step;
    const double low = 1 / (o->div_factor == 0 ? 25 : o->div_factor);
    const double lowest = low / (o->final_div_factor == 0 ? 10000 : o->final_div_factor);
    const double top = (o->pct_start == 0 ? 0.3 : o->pct_start) * n - 1;
    if (s > n - 1) return lowest;
    double a = low, b = 1, part = 0;
    if (s <= top) {
        part = top == 0 ? 1 : s / top;
    } else {
        a = 1;
        b = lowest;
        part = (s - top) / (n - 1 - top);
    }
    if ((o->flags & TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING) != 0) return a + (b - a) * part;
    return b + (a - b) / 2 * (cos(kPi * part) + 1);
}

static double expected_factor(const struct plan *o, uint64_t s) {
    const uint64_t w = o->warm_up_steps, n = o->total_steps;
    if (o->kind == TRIREME_SCHEDULE_KIND_ONE_CYCLE) return cycling(o, s);
    if (s < w) return rising(o, s);
    if (o->kind == TRIREME_SCHEDULE_KIND_CONSTANT) return 1;
    if (s >= n) return o->end_factor;
    const double part = (double)(s - w) / (double)(n - w), end = o->end_factor;
    if (o->kind == TRIREME_SCHEDULE_KIND_LINEAR) return 1 + (end - 1) * part;
    return end + (1 - end) * (1 + cos(kPi * part)) / 2;
}

static double factor_of(const struct plan *options, uint64_t step) {
    double factor = 77;
    assert_int_equal(value_of(options, step, &factor), TRIREME_OK);
    return factor;
}

static void check_factors(const struct plan *options) {
    const uint64_t last = options->total_steps + options->warm_up_steps + 3;
    for (uint64_t step = 0; step <= last; ++step) {
        const double factor = factor_of(options, step);
        if (!(factor >= 0 && factor <= 1) ||
            fabs(factor - expected_factor(options, step)) > 1e-14) {
            fail_msg(
                "kind %d of %d steps, %d of them to warm up: step %d has factor %.17g and not "
                "%.17g",
                options->kind, (int)options->total_steps, (int)options->warm_up_steps, (int)step,
                factor, expected_factor(options, step));
        }
    }
    assert_true(factor_of(options, UINT64_MAX) == factor_of(options, last));
}

static void factors_are_those_of_the_formulas(void **state) {
    (void)state;
    const uint64_t totals[] = {1, 2, 3, 10, 100, 1001};
    for (size_t i = 0; i < sizeof totals / sizeof totals[0]; ++i) {
        const uint64_t total = totals[i];
        const uint64_t warm_ups[] = {0, 1, total / 3, total - 1, total};
        for (trireme_schedule_kind kind = 1; kind <= TRIREME_SCHEDULE_KIND_COSINE; ++kind) {
            const bool ends = kind != TRIREME_SCHEDULE_KIND_CONSTANT;
            for (int trial = 0; trial < 5 * 4 * 3; ++trial) {
                struct plan o = schedule_of(kind, ends ? total : 0);
                o.warm_up_steps = warm_ups[trial % 5];
                const int start = trial / 5 % 4;
                if (o.warm_up_steps > 0 && start == 1) o.warm_up_factor = 0.1;
                if (o.warm_up_steps > 0 && start == 2) o.warm_up_factor = 1;
                if (o.warm_up_steps > 0 && start == 3) o.flags = TRIREME_SCHEDULE_FLAG_FROM_ZERO;
                const double ends_at[] = {0, 0.1, 1};
                if (ends) o.end_factor = ends_at[trial / 20];
                check_factors(&o);
            }
        }
        for (int trial = 0; trial < 4 * 2 * 2 * 2; ++trial) {
            const double starts[] = {0, 0.01, 0.5, 1};
            struct plan o = schedule_of(TRIREME_SCHEDULE_KIND_ONE_CYCLE, total);
            o.pct_start = starts[trial % 4];
            o.div_factor = trial / 4 % 2 == 0 ? 0 : 3;
            o.final_div_factor = trial / 8 % 2 == 0 ? 0 : 1;
            o.flags = trial / 16 == 0 ? 0 : TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING;
            check_factors(&o);
        }
    }
}

static void the_ends_are_exact(void **state) {
    (void)state;
    struct plan o = schedule_of(TRIREME_SCHEDULE_KIND_COSINE, 30);
    o.warm_up_steps = 7;
    o.end_factor = 0.3;
    assert_true(factor_of(&o, 0) == 1.0 / 7);
    assert_true(factor_of(&o, 6) == 1 && factor_of(&o, 7) == 1);
    assert_true(factor_of(&o, 29) > 0.3 && factor_of(&o, 30) == 0.3);
    o.kind = TRIREME_SCHEDULE_KIND_LINEAR;
    o.flags = TRIREME_SCHEDULE_FLAG_FROM_ZERO;
    assert_true(factor_of(&o, 0) == 0 && factor_of(&o, 7) == 1 && factor_of(&o, 30) == 0.3);
    o.flags = 0;
    o.warm_up_factor = 0.2;
    assert_true(factor_of(&o, 0) == 0.2 && factor_of(&o, 7) == 1);
    /* Nothing but a warm-up: its last step is the last but the end. */
    o.warm_up_steps = 30;
    assert_true(factor_of(&o, 29) < 1 && factor_of(&o, 30) == 0.3);
    o = schedule_of(TRIREME_SCHEDULE_KIND_ONE_CYCLE, 20);
    o.pct_start = 0.5;
    assert_true(factor_of(&o, 0) == 0.04 && factor_of(&o, 9) == 1);
    assert_true(factor_of(&o, 19) == 0.04 / 1e4 && factor_of(&o, 20) == 0.04 / 1e4);
    /* The peak is the end. */
    o.pct_start = 1;
    assert_true(factor_of(&o, 19) == 1 && factor_of(&o, 20) == 0.04 / 1e4);
}

static double TRIREME_CALLCONV halves(uint64_t step, void *user_data) {
    ++*(int *)user_data;
    return ldexp(3, -(int)step);
}

static double TRIREME_CALLCONV answers(uint64_t step, void *user_data) {
    (void)step;
    return *(const double *)user_data;
}

static void a_schedule_of_the_caller_answers_the_factor(void **state) {
    (void)state;
    int calls = 0;
    struct plan o = schedule_of(TRIREME_SCHEDULE_KIND_USER, 0);
    o.factor = halves;
    o.user_data = &calls;
    assert_true(factor_of(&o, 0) == 3 && factor_of(&o, 5) == 3.0 / 32);
    assert_int_equal(calls, 2);
    double answer = 0;
    o.factor = answers;
    o.user_data = &answer;
    assert_true(factor_of(&o, 9) == 0);
    const double wrong[] = {-1e-300, -INFINITY, INFINITY, NAN};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        double factor = 77;
        answer = wrong[i];
        assert_int_equal(value_of(&o, 4, &factor), TRIREME_ERROR_CALLBACK);
        assert_true(says("for step 4") && factor == 77);
    }
}

/* ---- refusals ---- */

struct refused {
    struct plan plan;
    const char *words;
};

static void options_that_mean_nothing_are_refused(void **state) {
    (void)state;
    enum {
        CONSTANT = TRIREME_SCHEDULE_KIND_CONSTANT,
        LINEAR = TRIREME_SCHEDULE_KIND_LINEAR,
        COSINE = TRIREME_SCHEDULE_KIND_COSINE,
        CYCLE = TRIREME_SCHEDULE_KIND_ONE_CYCLE,
        OWN = TRIREME_SCHEDULE_KIND_USER
    };
    const struct refused cases[] = {
        {{.kind = 0}, "kind 0 is no schedule"},
        {{.kind = OWN + 1}, "kind 6 is no schedule"},
        {{.kind = -1}, "kind -1"},
        {{.kind = CONSTANT, .flags = 4}, "flags 4 has a bit that means nothing to constant"},
        {{.kind = COSINE, .total_steps = 9, .flags = 2}, "flags 2 has a bit that means nothing to"},
        {{.kind = CYCLE, .total_steps = 9, .flags = 1}, "flags 1 has a bit that means nothing to"},
        {{.kind = CYCLE, .total_steps = 9, .reserved = 2}, "reserved is 2"},
        {{.kind = CONSTANT, .warm_up_factor = 0.5}, "without options.warm_up_steps"},
        {{.kind = CONSTANT, .reserved = 1}, "reserved is 1"},
        {{.kind = LINEAR}, "total_steps is 0, but linear"},
        {{.kind = COSINE}, "total_steps is 0, but cosine"},
        {{.kind = CYCLE}, "total_steps is 0, but one_cycle"},
        {{.kind = LINEAR, .total_steps = 9, .warm_up_steps = 10}, "warm_up_steps 10 is above"},
        {{.kind = COSINE, .total_steps = 9, .warm_up_steps = UINT64_MAX}, "is above"},
        {{.kind = COSINE, .total_steps = 9, .warm_up_factor = 0.5},
         "without options.warm_up_steps"},
        {{.kind = COSINE, .total_steps = 9, .flags = 1}, "FROM_ZERO means nothing without"},
        {{.kind = COSINE, .total_steps = 9, .warm_up_steps = 2, .warm_up_factor = 1.5},
         "warm_up_factor 1.5 is not in"},
        {{.kind = COSINE, .total_steps = 9, .warm_up_steps = 2, .warm_up_factor = NAN},
         "warm_up_factor"},
        {{.kind = COSINE, .total_steps = 9, .warm_up_steps = 2, .warm_up_factor = 0.5, .flags = 1},
         "FROM_ZERO with options.warm_up_factor"},
        {{.kind = COSINE, .total_steps = 9, .end_factor = -0.5}, "end_factor -0.5 is not in"},
        {{.kind = LINEAR, .total_steps = 9, .end_factor = 1.25}, "end_factor 1.25 is not in"},
        {{.kind = LINEAR, .total_steps = 9, .end_factor = NAN}, "end_factor"},
        {{.kind = CYCLE, .total_steps = 9, .pct_start = 1.5}, "pct_start 1.5 is not in"},
        {{.kind = CYCLE, .total_steps = 9, .pct_start = -0.5}, "pct_start"},
        {{.kind = CYCLE, .total_steps = 9, .div_factor = 0.5}, "div_factor 0.5 is not"},
        {{.kind = CYCLE, .total_steps = 9, .div_factor = INFINITY}, "div_factor inf"},
        {{.kind = CYCLE, .total_steps = 9, .final_div_factor = 0.5}, "final_div_factor 0.5"},
        {{.kind = OWN}, "factor is NULL"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        double factor = 77;
        assert_int_equal(value_of(&cases[i].plan, 0, &factor), TRIREME_ERROR_INVALID_ARGUMENT);
        if (!says(cases[i].words)) fail_msg("%s", trireme_last_error());
        assert_true(factor == 77);
    }
}

static uint32_t size_of(trireme_schedule_kind kind) {
    const struct plan plan = {.kind = kind};
    return options_of(&plan).base.struct_size;
}

static void structs_of_other_sizes_are_read_or_refused(void **state) {
    (void)state;
    double answer = 0.75, factor = 77;
    for (trireme_schedule_kind kind = 1; kind <= TRIREME_SCHEDULE_KIND_USER; ++kind) {
        const struct plan plan = {.kind = kind,
                                  .total_steps = 4,
                                  .factor = answers,
                                  .user_data = &answer};
        union schedule options = options_of(&plan);
        const uint32_t size = size_of(kind);
        assert_true(size >= 24 && size <= 48);
        for (uint32_t older = 0; older < size; ++older) {
            options.base.struct_size = older;
            assert_int_equal(trireme_schedule_value(&options.base, 1, &factor),
                             TRIREME_ERROR_INVALID_ARGUMENT);
            assert_true(says("options.struct_size is ") && says("_SCHEDULE_OPTIONS_INIT"));
        }
        options.base.struct_size = size + 8;
        assert_int_equal(trireme_schedule_value(&options.base, 1, &factor), TRIREME_OK);
        options.memory[size / 8] = 1;
        assert_int_equal(trireme_schedule_value(&options.base, 1, &factor),
                         TRIREME_ERROR_UNSUPPORTED);
        options.base.struct_size = size;
        assert_int_equal(trireme_schedule_value(&options.base, 1, &factor), TRIREME_OK);
        assert_int_equal(trireme_schedule_value(&options.base, 1, NULL),
                         TRIREME_ERROR_INVALID_ARGUMENT);
    }
    assert_true(factor == 0.75);
    assert_int_equal(trireme_schedule_value(NULL, 1, &factor), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says("options is NULL") && factor == 0.75);
}

/* ---- training ---- */

/* The actions of a training besides its steps. */
enum way { BY_SCHEDULE, BY_HAND, RESUMED, FAILS_IN_BETWEEN };

struct job {
    trireme_strategy strategy;
    int world_size;
    struct plan schedule;
    enum way way;
    bool groups; /* the parameters are two groups, whose factors change on the way */
    bool skips;  /* the second parameter has a gradient in every other step */
    bool one_sweep;
    struct verdict verdicts[MOST_RANKS];
    double values[MOST_RANKS][ELEMENTS];
    uint64_t calls[MOST_RANKS]; /* of the caller's schedule */
};

/* One rank of a job, for a schedule of the caller. */
struct rank {
    struct job *job;
    int rank;
    bool fails;
    trireme_optimizer *optimizer;
};

static double TRIREME_CALLCONV waves(uint64_t step, void *user_data) {
    struct rank *const r = user_data;
    ++r->job->calls[r->rank];
    if (r->fails) return step % 2 == 0 ? NAN : -1;
    return 0.5 + (double)(step % 3);
}

static trireme_model *make(struct verdict *v, trireme_communicator *ranks, const struct job *job) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    units_of(&options)->minimum_bytes = 1;
    if (job->skips) options.unused = TRIREME_UNUSED_SKIP;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (uint32_t p = 0; p < 2; ++p) {
        const uint64_t elements = p == 0 ? FIRST : ELEMENTS - FIRST;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = p == 0 ? "a" : "b";
        parameter.dtype = F64;
        parameter.dimensions = 1;
        parameter.shape = &elements;
        parameter.parameter_group = job->groups ? p : 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_optimizer *adamw(struct verdict *v, trireme_model *model, const struct job *job) {
    static const double factors[2] = {1, 0.25};
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAMW;
    options.learning_rate = 0.1;
    options.weight_decay = 0.01;
    if (job->one_sweep) options.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    if (job->groups) {
        groups_of(&options, 2);
        set_group_rates(&options, factors);
    }
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    return optimizer;
}

static void
backward(struct verdict *v, trireme_model *model, const struct job *job, int rank, int step) {
    double gradients[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) {
        gradients[i] = (double)((i * 7 + step * 5 + rank * 3) % 13) / 4 - 1.5;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    if (!job->skips || step % 2 == 0) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, 1, gradients + FIRST, ELEMENTS - FIRST,
                                                   F64));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gradient_ready(model, 0, gradients, FIRST, F64));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

static struct plan schedule_on(struct rank *r) {
    struct plan options = r->job->schedule;
    if (options.kind == TRIREME_SCHEDULE_KIND_USER) {
        options.factor = waves;
        options.user_data = r;
    }
    return options;
}

static void save_and_begin_anew(struct verdict *v, struct rank *r, trireme_model **model,
                                trireme_communicator *ranks) {
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(r->optimizer, &bytes));
    void *const state = malloc(bytes);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(r->optimizer, state, bytes, NULL));
    trireme_optimizer_destroy(r->optimizer);
    trireme_model_destroy(*model);
    *model = make(v, ranks, r->job);
    r->optimizer = adamw(v, *model, r->job);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(r->optimizer, 5));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(r->optimizer, state, bytes));
    free(state);
}

static void train(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *model = make(v, ranks, job);
    struct rank r = {job, rank, false, adamw(v, model, job)};
    const struct plan schedule = schedule_on(&r);
    if (job->way != BY_HAND) {
        EXPECT_STATUS(v, TRIREME_OK, set_plan(r.optimizer, &schedule));
    }
    for (int step = 0; step < STEPS; ++step) {
        const double base = step < 5 ? 0.1 : 0.07;
        double factor = 0, rate = 0;
        EXPECT_STATUS(v, TRIREME_OK, value_of(&schedule, (uint64_t)step, &factor));
        if (job->way == BY_HAND) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_set_learning_rate(r.optimizer, base * factor));
        } else {
            if (step == 5) {
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_optimizer_set_learning_rate(r.optimizer, base));
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_learning_rate(r.optimizer, &rate));
            EXPECT(v, rate == base);
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_rate(r.optimizer, &rate));
        EXPECT(v, rate == base * factor);
        if (job->groups && step == 2) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_set_group_rate_factor(r.optimizer, 1, 1.75));
        }
        if (job->way == RESUMED && step == 3) {
            save_and_begin_anew(v, &r, &model, ranks);
            EXPECT_STATUS(v, TRIREME_OK, set_plan(r.optimizer, &schedule));
            if (job->groups) {
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_optimizer_set_group_rate_factor(r.optimizer, 1, 1.75));
            }
        }
        backward(v, model, job, rank, step);
        if (job->way == FAILS_IN_BETWEEN && (step + rank) % 2 == 0) {
            /* One rank alone, while others are in the step already. */
            r.fails = true;
            for (int i = 0; i < 2; ++i) {
                EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_optimizer_step(r.optimizer));
                EXPECT(v, says(step % 2 == 0 ? "the schedule answered nan" : "answered -1"));
            }
            double unwritten = 77;
            EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK,
                          trireme_optimizer_get_step_rate(r.optimizer, &unwritten));
            EXPECT(v, unwritten == 77);
            uint64_t steps = 77;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(r.optimizer, &steps));
            EXPECT(v, steps == (uint64_t)step);
            r.fails = false;
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r.optimizer));
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->values[rank], ELEMENTS, F64));
    trireme_optimizer_destroy(r.optimizer);
    trireme_model_destroy(model);
}

/* Trains both ways; all ranks come out with the same bits. */
static void compare_ways(struct job *job, enum way way) {
    static struct job by_hand;
    memset(job->verdicts, 0, sizeof job->verdicts);
    memset(job->calls, 0, sizeof job->calls);
    by_hand = *job;
    job->way = way;
    by_hand.way = BY_HAND;
    run_ranks(job->world_size, train, job);
    run_ranks(by_hand.world_size, train, &by_hand);
    assert_verdicts(job->verdicts, job->world_size);
    assert_verdicts(by_hand.verdicts, job->world_size);
    bool moved = false;
    for (int rank = 0; rank < job->world_size; ++rank) {
        assert_memory_equal(job->values[rank], by_hand.values[0], sizeof job->values[rank]);
    }
    for (int i = 0; i < ELEMENTS; ++i) moved = moved || fabs(job->values[0][i]) > 0.01;
    assert_true(moved);
}

static const int kWorlds[] = {1, 2, 3, 4};

/* Every kind with every strategy, every kind and every strategy in every world. */
static void a_schedule_is_the_rate_set_by_hand(void **state) {
    (void)state;
    static struct job job;
    for (trireme_schedule_kind kind = 1; kind <= TRIREME_SCHEDULE_KIND_USER; ++kind) {
        for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
            if (is_quick() && (s + kind) % 2 == 0) continue;
            memset(&job, 0, sizeof job);
            job.world_size = kWorlds[(s + kind) % 4];
            job.strategy = s;
            const bool ends =
                kind != TRIREME_SCHEDULE_KIND_CONSTANT && kind != TRIREME_SCHEDULE_KIND_USER;
            job.schedule = schedule_of(kind, ends ? STEPS - 1 : 0);
            if (kind <= TRIREME_SCHEDULE_KIND_COSINE) job.schedule.warm_up_steps = 2;
            job.groups = s % 2 == 0;
            compare_ways(&job, BY_SCHEDULE);
        }
    }
}

static void training_goes_on_where_it_was_saved(void **state) {
    (void)state;
    static struct job job;
    for (size_t i = 0; i < 4; ++i) {
        memset(&job, 0, sizeof job);
        job.world_size = kWorlds[i];
        job.strategy = i % 2 == 0 ? TRIREME_STRATEGY_ZERO3 : TRIREME_STRATEGY_ZERO1;
        job.schedule = schedule_of(TRIREME_SCHEDULE_KIND_COSINE, STEPS + 2);
        job.groups = i >= 2;
        compare_ways(&job, RESUMED);
        job.schedule = schedule_of(TRIREME_SCHEDULE_KIND_USER, 0);
        compare_ways(&job, RESUMED);
    }
}

static void a_schedule_goes_by_the_steps_of_the_optimizer(void **state) {
    (void)state;
    static struct job job;
    memset(&job, 0, sizeof job);
    job.world_size = 3;
    job.strategy = TRIREME_STRATEGY_ZERO2;
    job.schedule = schedule_of(TRIREME_SCHEDULE_KIND_LINEAR, STEPS + 1);
    job.skips = true;
    compare_ways(&job, BY_SCHEDULE);
    compare_ways(&job, RESUMED);
    job.skips = false;
    job.one_sweep = true;
    job.strategy = TRIREME_STRATEGY_ZERO1;
    compare_ways(&job, BY_SCHEDULE);
}

static void a_schedule_that_answers_nothing_fails_and_may_be_asked_again(void **state) {
    (void)state;
    static struct job job;
    for (size_t i = 0; i < 4; ++i) {
        memset(&job, 0, sizeof job);
        job.world_size = kWorlds[i];
        job.strategy = 1 + (trireme_strategy)i;
        job.schedule = schedule_of(TRIREME_SCHEDULE_KIND_USER, 0);
        compare_ways(&job, FAILS_IN_BETWEEN);
        for (int rank = 0; rank < job.world_size; ++rank) assert_true(job.calls[rank] >= 3 * STEPS);
    }
}

/* ---- ranks that disagree ---- */

enum dispute { SCHEDULES, ANSWERS, FACTORS };

struct disputing {
    trireme_strategy strategy;
    enum dispute dispute;
    struct verdict verdicts[MOST_RANKS];
};

static void learn_otherwise(trireme_communicator *ranks, int rank, void *context) {
    struct disputing *const disputing = context;
    struct verdict *const v = &disputing->verdicts[rank];
    struct job job = {.strategy = disputing->strategy, .world_size = 3, .groups = true};
    trireme_model *const model = make(v, ranks, &job);
    trireme_optimizer *const optimizer = adamw(v, model, &job);
    double answer = rank == 2 ? 0.5 : 0.75;
    struct plan options = schedule_of(TRIREME_SCHEDULE_KIND_LINEAR, 10);
    if (disputing->dispute == SCHEDULES) options.total_steps += (uint64_t)rank;
    if (disputing->dispute == ANSWERS) {
        options = schedule_of(TRIREME_SCHEDULE_KIND_USER, 0);
        options.factor = answers;
        options.user_data = &answer;
    }
    EXPECT_STATUS(v, TRIREME_OK, set_plan(optimizer, &options));
    if (disputing->dispute == FACTORS) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_set_group_rate_factor(optimizer, 1, rank == 1 ? 2 : 3));
    }
    if (disputing->dispute == SCHEDULES) { /* they begin with the same factor */
        backward(v, model, &job, rank, 0);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    backward(v, model, &job, rank, 1);
    for (int i = 0; i < 2; ++i) { /* and the model stays failed */
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_step(optimizer));
        EXPECT(v, says("learning rate"));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void ranks_with_other_rates_are_a_mismatch_everywhere(void **state) {
    (void)state;
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_ZERO3; ++s) {
        for (enum dispute dispute = SCHEDULES; dispute <= FACTORS; ++dispute) {
            static struct disputing disputing;
            memset(&disputing, 0, sizeof disputing);
            disputing.strategy = s;
            disputing.dispute = dispute;
            run_ranks(3, learn_otherwise, &disputing);
            assert_verdicts(disputing.verdicts, 3);
        }
    }
}

/* ---- ranks that run out of data ---- */

static void run_out(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options model_options = TRIREME_MODEL_OPTIONS_INIT;
    model_options.strategy = job->strategy;
    model_options.flags = TRIREME_MODEL_FLAG_UNEVEN;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &model_options, &model));
    const uint64_t elements = ELEMENTS;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "a";
    parameter.dtype = F64;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 0.5;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    const struct plan schedule = schedule_of(TRIREME_SCHEDULE_KIND_LINEAR, 8);
    EXPECT_STATUS(v, TRIREME_OK, set_plan(optimizer, &schedule));
    double expected = 0, base = 0.5;
    for (int step = 0; step < 2 * rank; ++step) {
        if (step == 3) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(optimizer, 0.25));
        }
        double gradients[ELEMENTS];
        for (int i = 0; i < ELEMENTS; ++i) gradients[i] = 2;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, ELEMENTS, F64, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_join(optimizer, NULL));
    for (int step = 0; step < 2 * (job->world_size - 1); ++step) {
        base = step < 3 ? 0.5 : 0.25;
        expected -= base * (1 - step / 8.0) * 2;
    }
    double rate = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_learning_rate(optimizer, &rate));
    EXPECT(v, rate == base);
    double values[ELEMENTS];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, ELEMENTS, F64));
    for (int i = 0; i < ELEMENTS; ++i) EXPECT(v, values[i] == expected);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void ranks_without_data_take_the_rates_of_the_others(void **state) {
    (void)state;
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_ZERO3; ++s) {
        static struct job job;
        memset(&job, 0, sizeof job);
        job.strategy = s;
        job.world_size = 3;
        run_ranks(3, run_out, &job);
        assert_verdicts(job.verdicts, 3);
    }
}

/* ---- from inside, and refusals of an optimizer ---- */

static double TRIREME_CALLCONV meddles(uint64_t step, void *user_data) {
    struct rank *const r = user_data;
    struct verdict *const v = &r->job->verdicts[r->rank];
    double rate = 77;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_get_step_rate(r->optimizer, &rate));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_set_schedule(r->optimizer, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_set_group_rate_factor(r->optimizer, 0, 1));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_step(r->optimizer));
    EXPECT(v, says("from inside") && rate == 77);
    if (step == 1) trireme_optimizer_destroy(r->optimizer);
    return 1;
}

static void call_wrongly(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, ranks, job);
    struct rank r = {job, rank, false, adamw(v, model, job)};
    trireme_optimizer *const o = r.optimizer;
    double rate = 77;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_optimizer_get_step_rate(o, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_get_step_rate(NULL, &rate));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_set_schedule(NULL, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_optimizer_set_group_rate_factor(NULL, 0, 1));
    const double wrong[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 3; ++i) {
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_optimizer_set_group_rate_factor(o, 1, wrong[i]));
        EXPECT(v, says("factor"));
    }
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_set_group_rate_factor(o, 2, 1));
    EXPECT(v, says("group 2 is not below group_count 2"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(o, 1e300));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_set_group_rate_factor(o, 1, 1e10));
    EXPECT(v, says("is not finite"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(o, 0.5));

    /* A schedule that is refused leaves the one before. */
    struct plan options = schedule_of(TRIREME_SCHEDULE_KIND_LINEAR, 4);
    options.end_factor = 0.5;
    EXPECT_STATUS(v, TRIREME_OK, set_plan(o, &options));
    options.total_steps = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, set_plan(o, &options));
    EXPECT(v, says("total_steps"));
    const trireme_schedule_options bare = {sizeof bare, TRIREME_SCHEDULE_KIND_LINEAR};
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_optimizer_set_schedule(o, &bare));
    backward(v, model, job, rank, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(o));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_rate(o, &rate));
    EXPECT(v, rate == 0.5 * (1 - 0.125));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_schedule(o, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_rate(o, &rate));
    EXPECT(v, rate == 0.5);

    /* A factor that makes a rate of a group infinite. */
    double answer = 1e300;
    options = schedule_of(TRIREME_SCHEDULE_KIND_USER, 0);
    options.factor = answers;
    options.user_data = &answer;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_group_rate_factor(o, 1, 1e10));
    EXPECT_STATUS(v, TRIREME_OK, set_plan(o, &options));
    rate = 77;
    EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_optimizer_get_step_rate(o, &rate));
    EXPECT(v, says("is not finite") && rate == 77);

    /* The schedule destroys its own optimizer, which lives on until the step is over. */
    options.factor = meddles;
    options.user_data = &r;
    EXPECT_STATUS(v, TRIREME_OK, set_plan(o, &options));
    backward(v, model, job, rank, 1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(o));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_get_step_rate(o, &rate));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_set_schedule(o, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_optimizer_set_group_rate_factor(o, 0, 1));

    /* Without groups there is none to set. */
    const struct job plain = {.strategy = job->strategy, .world_size = job->world_size};
    trireme_model_destroy(model);
    trireme_model *const alone = make(v, ranks, &plain);
    trireme_optimizer *const another = adamw(v, alone, &plain);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_set_group_rate_factor(another, 0, 1));
    EXPECT(v, says("without groups"));
    trireme_optimizer_destroy(another);
    trireme_model_destroy(alone);
}

static void wrong_calls_are_refused_and_change_nothing(void **state) {
    (void)state;
    static struct job job;
    for (int world_size = 1; world_size <= 2; ++world_size) {
        memset(&job, 0, sizeof job);
        job.strategy = TRIREME_STRATEGY_ZERO3;
        job.world_size = world_size;
        job.groups = true;
        run_ranks(world_size, call_wrongly, &job);
        assert_verdicts(job.verdicts, world_size);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(factors_are_those_of_the_formulas),
        cmocka_unit_test(the_ends_are_exact),
        cmocka_unit_test(a_schedule_of_the_caller_answers_the_factor),
        cmocka_unit_test(options_that_mean_nothing_are_refused),
        cmocka_unit_test(structs_of_other_sizes_are_read_or_refused),
        cmocka_unit_test(a_schedule_is_the_rate_set_by_hand),
        cmocka_unit_test(training_goes_on_where_it_was_saved),
        cmocka_unit_test(a_schedule_goes_by_the_steps_of_the_optimizer),
        cmocka_unit_test(a_schedule_that_answers_nothing_fails_and_may_be_asked_again),
        cmocka_unit_test(ranks_with_other_rates_are_a_mismatch_everywhere),
        cmocka_unit_test(ranks_without_data_take_the_rates_of_the_others),
        cmocka_unit_test(wrong_calls_are_refused_and_change_nothing),
    };
    return cmocka_run_group_tests_name("learning-rate schedules", tests, NULL, NULL);
}
