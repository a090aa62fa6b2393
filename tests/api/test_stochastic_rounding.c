/*
 * Parameters of bf16 that are rounded by chance: the draws are those of a plain loop, whatever the
 * strategy and the number of ranks, and right on average.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <numbers.h>
#include <options.h>
#include <ranks.h>

#define BF16 TRIREME_DTYPE_BF16
#define F32 TRIREME_DTYPE_F32
#define STEPS 5
#define MOST_RANKS 8

static const struct {
    const char *name;
    uint64_t elements;
} kParameters[] = {{"a", 9}, {"none", 0}, {"b", 1501}, {"c", 1}};
enum { PARAMETERS = sizeof kParameters / sizeof kParameters[0], TOTAL = 9 + 1501 + 1 };

struct job {
    trireme_strategy strategy;
    int world_size;
    bool one_sweep;
    uint64_t seed;
    struct verdict verdicts[MOST_RANKS];
};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

#include "rounding.inc"

/* ---- a training ---- */

/* Powers of two and their halves: sums of up to 8 ranks are exact. */
static float gradient_of(int step, uint64_t place) {
    if (step == 3 && place == 4) return INFINITY;
    return ldexpf((float)((place * 7 + (uint64_t)step) % 13) - 6, -10);
}

static uint16_t first_value(uint64_t place) {
    return (uint16_t)(bits_of_float(0.5f + (float)(place % 64) / 64) >> 16);
}

/* SGD in f32, rounded once a step. */
static void train_plainly(uint64_t seed, uint16_t *values) {
    uint64_t place = 0;
    for (uint64_t p = 0; p < PARAMETERS; ++p) {
        for (uint32_t i = 0; i < kParameters[p].elements; ++i, ++place) {
            values[place] = first_value(place);
            for (int step = 0; step < STEPS; ++step) {
                const float now = float_of_bits((uint32_t)values[place] << 16);
                values[place] = rounded(now - 0.125f * gradient_of(step, place), seed,
                                        (uint64_t)step + 1, kParameters[p].name, i);
            }
        }
    }
}

static trireme_model *
make(struct verdict *v, trireme_communicator *ranks, const struct job *job, trireme_dtype dtype) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    buckets_of(&options)->bytes = 2000;
    units_of(&options)->minimum_bytes = 1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (uint64_t p = 0; p < PARAMETERS; ++p) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kParameters[p].name;
        parameter.dtype = dtype;
        parameter.shape = &kParameters[p].elements;
        parameter.dimensions = 1;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_optimizer_options rule_of(const struct job *job) {
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.125;
    rule.flags = TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING |
                 (job->one_sweep ? TRIREME_OPTIMIZER_FLAG_ONE_SWEEP : 0);
    rule.rounding_seed = job->seed;
    return rule;
}

static void train(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, ranks, job, BF16);
    uint16_t values[TOTAL], wanted[TOTAL];
    for (uint64_t i = 0; i < TOTAL; ++i) values[i] = first_value(i);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, TOTAL, BF16, 0));
    const trireme_optimizer_options rule = rule_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    for (int step = 0; step < STEPS; ++step) {
        float gradients[TOTAL];
        for (uint64_t i = 0; i < TOTAL; ++i) gradients[i] = gradient_of(step, i);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, TOTAL, F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, TOTAL, BF16));
    train_plainly(job->seed, wanted);
    for (int i = 0; i < TOTAL; ++i) EXPECT(v, values[i] == wanted[i]);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void run_job(struct job *job, rank_function *function) {
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

static void draws_do_not_depend_on_who_owns_an_element(void **state) {
    (void)state;
    static const int world_sizes[] = {1, 2, 3, 4, 5, 8};
    for (int w = 0; w < (is_quick() ? 4 : 6); ++w) {
        for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
            static struct job job;
            job = (struct job){.strategy = s,
                               .world_size = world_sizes[w],
                               .seed = (uint64_t)w << 40};
            run_job(&job, train);
        }
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1,
                           .world_size = world_sizes[w],
                           .one_sweep = true};
        run_job(&job, train);
    }
}

/* ---- on average ---- */

/* Steps of a sixteenth of the distance to the next number; rounding to nearest loses all of them.
 */
static void go_down(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    for (int by_chance = 0; by_chance < 2; ++by_chance) {
        trireme_model *const model = make(v, ranks, job, BF16);
        uint16_t values[TOTAL];
        float gradients[TOTAL];
        for (int i = 0; i < TOTAL; ++i) values[i] = 0x3f80, gradients[i] = 1;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, values, TOTAL, BF16, 0));
        trireme_optimizer_options rule = rule_of(job);
        rule.learning_rate = ldexp(1, -12);
        if (by_chance == 0) rule.flags = 0, rule.rounding_seed = 0;
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        for (int step = 0; step < 64; ++step) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(model, gradients, TOTAL, F32, 0));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, TOTAL, BF16));
        double sum = 0;
        for (int i = 0; i < TOTAL; ++i) sum += (double)float_of_bits((uint32_t)values[i] << 16);
        /* Four of 64 draws go down, 2^-8 each; the mean of all elements is 2e-4 off, give or take.
         */
        const double mean = sum / TOTAL;
        EXPECT(v, by_chance ? fabs(mean - (1 - 64 * ldexp(1, -12))) < 1e-3 : mean == 1);
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
}

static void nothing_is_lost_on_average(void **state) {
    (void)state;
    static struct job job;
    for (uint64_t seed = 0; seed < 3; ++seed) {
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2, .world_size = 2};
        job.seed = seed;
        run_job(&job, go_down);
    }
}

/* ---- refused ---- */

static int32_t TRIREME_CALLCONV do_nothing(const trireme_update *update, void *user_data) {
    (void)update;
    (void)user_data;
    return 0;
}

static void refuse(struct verdict *v, trireme_model *model, const trireme_optimizer_options *rule,
                   trireme_status status, const char *words) {
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, status, trireme_optimizer_create(model, rule, &optimizer));
    EXPECT(v, optimizer == NULL && says(words));
}

static void be_refused(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *model = make(v, ranks, job, F32);
    trireme_optimizer_options rule = rule_of(job);
    refuse(v, model, &rule, TRIREME_ERROR_INVALID_ARGUMENT,
           "no parameter to be trained is of bf16");
    trireme_model_destroy(model);
    model = make(v, ranks, job, TRIREME_DTYPE_F16);
    refuse(v, model, &rule, TRIREME_ERROR_UNSUPPORTED, "parameter \"a\" is of f16");
    trireme_model_destroy(model);

    model = make(v, ranks, job, BF16);
    rule.flags |= TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
    refuse(v, model, &rule, TRIREME_ERROR_UNSUPPORTED, "a master is rounded to nearest");
    rule = rule_of(job);
    rule.kind = TRIREME_RULE_USER;
    user_rule_of(&rule)->update = do_nothing;
    refuse(v, model, &rule, TRIREME_ERROR_UNSUPPORTED, "with a rule of the caller");
    rule = rule_of(job);
    rule.flags = 0;
    rule.rounding_seed = 1;
    refuse(v, model, &rule, TRIREME_ERROR_INVALID_ARGUMENT, "options.rounding_seed");
    rule = rule_of(job);
    rule.rounding_seed = (uint64_t)rank + 1;
    refuse(v, model, &rule, TRIREME_ERROR_MISMATCH, "rounding_seed");
    rule = rule_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void what_does_not_go_with_it_is_refused(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1, .world_size = 2};
    run_job(&job, be_refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_do_not_depend_on_who_owns_an_element),
        cmocka_unit_test(nothing_is_lost_on_average),
        cmocka_unit_test(what_does_not_go_with_it_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
