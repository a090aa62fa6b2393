/*
 * The rules of the library that divide each gradient by what it was, or take its sign: trained in
 * every strategy they give the bits of plain loops over the formulas of optimizer_shard.h.
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
#include <ranks.h>

#define F32 TRIREME_DTYPE_F32
#define F64 TRIREME_DTYPE_F64
#define BF16 TRIREME_DTYPE_BF16
#define TOTAL 45 /* elements of all parameters */
#define STEPS 4
#define MOST_RANKS 8
#define MOST_STATES 3
#define RATE 0.07
#define EPSILON 0.03

static const uint64_t kElements[] = {17, 0, 1, 22, 5};
enum { PARAMETERS = sizeof kElements / sizeof kElements[0] };

struct rule {
    trireme_optimizer_kind kind;
    double momentum;
    bool centered;
    double decay;
};

static const struct rule kRules[] = {
    {TRIREME_OPTIMIZER_ADAGRAD, 0, false, 0}, {TRIREME_OPTIMIZER_ADAGRAD, 0, false, 0.125},
    {TRIREME_OPTIMIZER_RMSPROP, 0, false, 0}, {TRIREME_OPTIMIZER_RMSPROP, 0.75, false, 0.125},
    {TRIREME_OPTIMIZER_RMSPROP, 0, true, 0},  {TRIREME_OPTIMIZER_RMSPROP, 0.75, true, 0.125},
    {TRIREME_OPTIMIZER_LION, 0, false, 0},    {TRIREME_OPTIMIZER_LION, 0, false, 0.125}};
enum { RULES = sizeof kRules / sizeof kRules[0] };

struct job {
    const struct rule *rule;
    trireme_strategy strategy;
    int world_size;
    trireme_dtype dtype;
    bool one_sweep;
    bool resumed; /* saved and loaded in the middle */
    struct verdict verdicts[MOST_RANKS];
    double values[MOST_RANKS][TOTAL];
};

static bool says(const char *words) { return strstr(trireme_last_error(), words) != NULL; }

/* Sums and means over the ranks are exact in f32. The mean is 0 for some elements, always, so that
 * LION meets the sign of 0. */
static double mean_gradient(int step, int element) {
    if (element % 11 == 3) return 0;
    return (double)((element * 37 + step * 5) % 23) / 4 - 2.75;
}

static double gradient_of(int step, int element, int rank, int world_size) {
    return mean_gradient(step, element) + ((double)rank - (double)(world_size - 1) / 2) * 0.25;
}

/* The products of these are not exact in any type. */
static double initial(int element) { return (double)((element * 29) % 31) * 0.375 - 3.5; }

/* ---- plain loops ---- */

#define DEFINE_STEP(NAME, T, ROOT)                                                      \
    static T NAME(const struct rule *rule, T p, T g, T *states) {                       \
        const T rate = (T)RATE, decay = (T)rule->decay, epsilon = (T)EPSILON;           \
        const T b1 = (T)0.9, rest1 = (T)(1 - 0.9), b2 = (T)0.99, rest2 = (T)(1 - 0.99); \
        const T momentum = (T)rule->momentum;                                           \
        if (rule->kind == TRIREME_OPTIMIZER_LION) {                                     \
            if (rule->decay != 0) p -= (T)(RATE * rule->decay) * p;                     \
            const T c = b1 * states[0] + rest1 * g;                                     \
            if (c > 0) p -= rate;                                                       \
            if (c < 0) p += rate;                                                       \
            states[0] = b2 * states[0] + rest2 * g;                                     \
            return p;                                                                   \
        }                                                                               \
        if (rule->decay != 0) g += decay * p;                                           \
        if (rule->kind == TRIREME_OPTIMIZER_ADAGRAD) {                                  \
            states[0] += g * g;                                                         \
            return p - rate * g / (ROOT(states[0]) + epsilon);                          \
        }                                                                               \
        states[0] = b2 * states[0] + rest2 * g * g;                                     \
        T spread = states[0];                                                           \
        if (rule->centered) {                                                           \
            T *const m = &states[rule->momentum != 0 ? 2 : 1];                          \
            *m += rest2 * (g - *m);                                                     \
            spread -= *m * *m;                                                          \
            if (spread < 0) spread = 0;                                                 \
        }                                                                               \
        const T d = ROOT(spread) + epsilon;                                             \
        if (rule->momentum == 0) return p - rate * g / d;                               \
        states[1] = momentum * states[1] + g / d;                                       \
        return p - rate * states[1];                                                    \
    }

DEFINE_STEP(step_f32, float, sqrtf)
DEFINE_STEP(step_f64, double, sqrt)

static float to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void expect_plain(const struct job *job, double *values) {
    for (int i = 0; i < TOTAL; ++i) {
        double p = initial(i), wide[MOST_STATES] = {0};
        float narrow[MOST_STATES] = {0};
        for (int step = 0; step < STEPS; ++step) {
            const double g = mean_gradient(step, i);
            if (job->dtype == F64) {
                p = step_f64(job->rule, p, g, wide);
            } else {
                const float next = step_f32(job->rule, (float)p, (float)g, narrow);
                p = (double)(job->dtype == BF16 ? to_bf16(next) : next);
            }
        }
        values[i] = p;
    }
}

/* ---- the library ---- */

static double value_at(trireme_dtype dtype, const void *values, size_t i) {
    if (dtype == F64) return ((const double *)values)[i];
    if (dtype == F32) return (double)((const float *)values)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)values)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static trireme_optimizer_options options_of(const struct rule *rule) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = rule->kind;
    options.learning_rate = RATE;
    options.momentum = rule->momentum;
    options.weight_decay = rule->decay;
    if (rule->kind != TRIREME_OPTIMIZER_LION) options.epsilon = EPSILON;
    if (rule->centered) options.flags = TRIREME_OPTIMIZER_CENTERED;
    return options;
}

static trireme_model *make(struct verdict *v, trireme_communicator *ranks, const struct job *job) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    options.minimum_unit_bytes = 1;
    options.bucket_bytes = job->world_size % 2 == 0 ? 1 : 0;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        options.shard_ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int i = 0; i < PARAMETERS; ++i) {
        char name[] = "p0";
        name[1] = (char)('0' + i);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = job->dtype;
        parameter.dimensions = 1;
        parameter.shape = &kElements[i];
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

/* A new model and optimizer that go on where the old ones ended. */
static void resume(struct verdict *v, trireme_communicator *ranks, const struct job *job,
                   trireme_model **model, trireme_optimizer **optimizer) {
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_saved_bytes(*optimizer, &bytes));
    void *const state = malloc(bytes + 1);
    if (state == NULL) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(*optimizer, state, bytes, NULL));
    trireme_optimizer_destroy(*optimizer);
    trireme_model_destroy(*model);
    *optimizer = NULL;
    *model = make(v, ranks, job);
    const trireme_optimizer_options options = options_of(job->rule);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(*model, &options, optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(*optimizer, state, bytes));
    free(state);
}

static void train(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *model = make(v, ranks, job);
    double wide[TOTAL];
    float narrow[TOTAL];
    for (int i = 0; i < TOTAL; ++i) {
        wide[i] = initial(i);
        narrow[i] = (float)wide[i];
    }
    const bool is_wide = job->dtype == F64;
    const trireme_dtype given = is_wide ? F64 : F32;
    const void *const data = is_wide ? (const void *)wide : (const void *)narrow;
    if (job->dtype == BF16) {
        uint16_t stored[TOTAL];
        for (int i = 0; i < TOTAL; ++i) {
            uint32_t bits;
            memcpy(&bits, &narrow[i], sizeof bits);
            stored[i] = (uint16_t)(bits >> 16); /* exact */
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_set_parameters(model, stored, TOTAL, BF16, 0));
    } else {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_set_parameters(model, data, TOTAL, given, 0));
    }
    trireme_optimizer_options options = options_of(job->rule);
    if (job->one_sweep) options.flags |= TRIREME_OPTIMIZER_ONE_SWEEP;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    for (int step = 0; step < STEPS; ++step) {
        if (job->resumed && step == 2) resume(v, ranks, job, &model, &optimizer);
        for (int i = 0; i < TOTAL; ++i) {
            wide[i] = gradient_of(step, i, rank, job->world_size);
            narrow[i] = (float)wide[i];
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, data, TOTAL, given, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    double values[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_parameters(model, values, TOTAL, job->dtype));
    for (size_t i = 0; i < TOTAL; ++i) job->values[rank][i] = value_at(job->dtype, values, i);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void train_and_check(struct job *job) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, train, job);
    assert_verdicts(job->verdicts, job->world_size);
    double expected[TOTAL];
    expect_plain(job, expected);
    for (int rank = 0; rank < job->world_size; ++rank) {
        for (int i = 0; i < TOTAL; ++i) {
            if (job->values[rank][i] == expected[i]) continue;
            fail_msg(
                "%s number %d, strategy %d, %d ranks, dtype %d, rank %d, element %d: %a, not %a",
                trireme_optimizer_kind_name(job->rule->kind), (int)(job->rule - kRules),
                (int)job->strategy, job->world_size, (int)job->dtype, rank, i, job->values[rank][i],
                expected[i]);
        }
    }
}

static const trireme_dtype kDtypes[] = {F32, F64, BF16};

static void every_strategy_gives_the_bits_of_plain_loops(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    int jobs = 0;
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            for (int rule = 0; rule < RULES; ++rule) {
                /* Each rule meets each strategy and each world (under a sanitizer
                 * nearly each), not all pairs of them. */
                if ((rule + strategy + (int)w) % (is_quick() ? 8 : 4) != 0) continue;
                static struct job job;
                job = (struct job){.rule = &kRules[rule], .strategy = strategy};
                job.world_size = worlds[w];
                job.dtype = kDtypes[jobs % 3];
                job.resumed = jobs % 5 < 2;
                ++jobs;
                train_and_check(&job);
            }
        }
    }
}

static void one_sweep_gives_the_same_bits(void **state) {
    (void)state;
    for (int rule = 0; rule < RULES; ++rule) {
        for (int world = 2; world <= 3; ++world) {
            static struct job job;
            job = (struct job){.rule = &kRules[rule], .strategy = TRIREME_STRATEGY_ZERO1};
            job.world_size = world;
            job.dtype = kDtypes[(rule + world) % 3];
            job.one_sweep = true;
            train_and_check(&job);
        }
    }
}

/* ---- what is kept, and what is refused ---- */

static void look_at_states(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    static const uint32_t expected[RULES] = {1, 1, 1, 2, 2, 3, 1, 1};
    for (int rule = 0; rule < RULES; ++rule) {
        trireme_model *const model = make(v, ranks, job);
        const trireme_optimizer_options options = options_of(&kRules[rule]);
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
        uint64_t count = 0, elements[MOST_STATES] = {0};
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_range_count(optimizer, &count));
        for (uint64_t i = 0; i < count; ++i) {
            trireme_state_range range = TRIREME_STATE_RANGE_INIT;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
            if (range.kind != TRIREME_STATE_OPTIMIZER) continue;
            if (EXPECT(v, range.vector < MOST_STATES)) elements[range.vector] += range.count;
        }
        for (uint32_t vector = 0; vector < MOST_STATES; ++vector) {
            EXPECT(v, elements[vector] == (vector < expected[rule] ? TOTAL : 0));
        }
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
}

static void each_rule_keeps_the_vectors_of_its_formula(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL, .world_size = 1, .dtype = F32};
    run_ranks(1, look_at_states, &job);
    assert_verdicts(job.verdicts, 1);
}

static void be_refused(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, ranks, job);
    trireme_optimizer *optimizer = NULL;
    const trireme_optimizer_kind adagrad = TRIREME_OPTIMIZER_ADAGRAD,
                                 rmsprop = TRIREME_OPTIMIZER_RMSPROP, lion = TRIREME_OPTIMIZER_LION;
    const struct {
        trireme_optimizer_kind kind;
        uint32_t flags;
        double momentum, beta1, beta2, epsilon;
        const char *words;
    } wrong[] = {
        {adagrad, 0, 0.5, 0, 0, 0, "options.momentum 0.5 means nothing to adagrad"},
        {adagrad, 0, 0, 0.5, 0, 0, "options.beta1 0.5 means nothing to adagrad"},
        {adagrad, 0, 0, 0, 0.5, 0, "options.beta2 0.5 means nothing to adagrad"},
        {adagrad, 0, 0, 0, 0, -1, "options.epsilon -1 is not finite and 0 or more"},
        {rmsprop, 0, 1, 0, 0, 0, "options.momentum 1 is not in [0, 1)"},
        {rmsprop, 0, 0, 0.5, 0, 0, "options.beta1 0.5 means nothing to rmsprop"},
        {rmsprop, 0, 0, 0, 1, 0, "options.beta2 1 is not in (0, 1)"},
        {lion, 0, 0.5, 0, 0, 0, "options.momentum 0.5 means nothing to lion"},
        {lion, 0, 0, 1, 0, 0, "options.beta1 1 is not in (0, 1)"},
        {lion, 0, 0, 0, -0.5, 0, "options.beta2 -0.5 is not in (0, 1)"},
        {lion, 0, 0, 0, 0, 1, "options.epsilon 1 means nothing to lion"},
        {rmsprop, TRIREME_OPTIMIZER_NESTEROV, 0.5, 0, 0, 0, "NESTEROV is for sgd"},
        {lion, TRIREME_OPTIMIZER_CENTERED, 0, 0, 0, 0, "CENTERED is for rmsprop"},
        {TRIREME_OPTIMIZER_SGD, TRIREME_OPTIMIZER_CENTERED, 0, 0, 0, 0, "CENTERED is for rmsprop"},
        {lion + 1, 0, 0, 0, 0, 0, "options.kind 8 is no update rule"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
        options.kind = wrong[i].kind;
        options.flags = wrong[i].flags;
        options.momentum = wrong[i].momentum;
        options.beta1 = wrong[i].beta1;
        options.beta2 = wrong[i].beta2;
        options.epsilon = wrong[i].epsilon;
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_optimizer_create(model, &options, &optimizer));
        if (!EXPECT(v, says(wrong[i].words))) break;
        EXPECT(v, optimizer == NULL);
    }
    /* Ranks that want different things. */
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = rmsprop;
    if (rank == 1) options.flags = TRIREME_OPTIMIZER_CENTERED;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("centered is off on rank 0 and on on rank 1"));
    options.flags = 0;
    options.kind = rank == 1 ? lion : adagrad;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("kind is adagrad on rank 0 and lion on rank 1"));
    EXPECT(v, optimizer == NULL);
    /* All of that left the model as it was. What one rule saved is no state of another, also where
     * both keep as many vectors. */
    static const struct rule pairs[][2] = {
        {{TRIREME_OPTIMIZER_RMSPROP, 0, false, 0}, {TRIREME_OPTIMIZER_ADAGRAD, 0, false, 0}},
        {{TRIREME_OPTIMIZER_RMSPROP, 0.5, false, 0}, {TRIREME_OPTIMIZER_RMSPROP, 0, true, 0}},
        {{TRIREME_OPTIMIZER_RMSPROP, 0, true, 0}, {TRIREME_OPTIMIZER_RMSPROP, 0.5, true, 0}}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        options = options_of(&pairs[i][0]);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
        uint64_t bytes = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_saved_bytes(optimizer, &bytes));
        void *const saved = malloc(bytes + 1);
        if (saved == NULL) abort();
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, saved, bytes, NULL));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, saved, bytes));
        trireme_optimizer_destroy(optimizer);
        options = options_of(&pairs[i][1]);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_optimizer_load(optimizer, saved, bytes));
        EXPECT(v, says("update rule"));
        free(saved);
        trireme_optimizer_destroy(optimizer);
    }
    trireme_model_destroy(model);
}

static void what_a_rule_does_not_know_is_refused(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2, .world_size = 2, .dtype = F32};
    run_ranks(2, be_refused, &job);
    assert_verdicts(job.verdicts, 2);
}

static void names_are_those_of_the_header(void **state) {
    (void)state;
    assert_string_equal(trireme_optimizer_kind_name(TRIREME_OPTIMIZER_ADAGRAD), "adagrad");
    assert_string_equal(trireme_optimizer_kind_name(TRIREME_OPTIMIZER_RMSPROP), "rmsprop");
    assert_string_equal(trireme_optimizer_kind_name(TRIREME_OPTIMIZER_LION), "lion");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_gives_the_bits_of_plain_loops),
        cmocka_unit_test(one_sweep_gives_the_same_bits),
        cmocka_unit_test(each_rule_keeps_the_vectors_of_its_formula),
        cmocka_unit_test(what_a_rule_does_not_know_is_refused),
        cmocka_unit_test(names_are_those_of_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
