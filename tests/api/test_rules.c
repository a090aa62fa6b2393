/*
 * The rules of the library that scale each gradient by its history, take its sign, or scale by the
 * norm of a whole parameter: trained in every strategy they give the bits of plain loops over the
 * formulas of optimizer.h.
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
#define F64 TRIREME_DTYPE_F64
#define BF16 TRIREME_DTYPE_BF16
#define TOTAL 45 /* elements of all parameters */
#define STEPS 4
#define MANY_STEPS 100
#define MOST_RANKS 8
#define MOST_STATES 3
#define RATE 0.07
#define EPSILON 0.03

static const uint64_t kElements[] = {17, 0, 1, 22, 5};
enum { PARAMETERS = sizeof kElements / sizeof kElements[0] };

struct rule {
    trireme_rule_kind kind;
    double momentum;
    bool centered;
    double decay;
    double most; /* max_trust */
};

static const struct rule kRules[] =
    {{TRIREME_RULE_ADAGRAD, 0, false, 0, 0}, {TRIREME_RULE_ADAGRAD, 0, false, 0.125, 0},
     {TRIREME_RULE_RMSPROP, 0, false, 0, 0}, {TRIREME_RULE_RMSPROP, 0.75, false, 0.125, 0},
     {TRIREME_RULE_RMSPROP, 0, true, 0, 0},  {TRIREME_RULE_RMSPROP, 0.75, true, 0.125, 0},
     {TRIREME_RULE_LION, 0, false, 0, 0},    {TRIREME_RULE_LION, 0, false, 0.125, 0},
     {TRIREME_RULE_LAMB, 0, false, 0, 0},    {TRIREME_RULE_LAMB, 0, false, 0.125, 1.5},
     {TRIREME_RULE_LARS, 0, false, 0, 0},    {TRIREME_RULE_LARS, 0.75, false, 0.125, 0.5}};
enum { RULES = sizeof kRules / sizeof kRules[0], ELEMENT_RULES = 8 };

/* Of each parameter, if they are in groups of their own. */
static const double kFactors[] = {1, 1, 0.5, 1.5, 2}, kDecays[] = {0, 0.125, 0.25, 0, 0.125};

struct job {
    const struct rule *rule;
    trireme_strategy strategy;
    int world_size;
    trireme_dtype dtype;
    bool one_sweep;
    bool resumed; /* saved and loaded in the middle */
    bool grouped; /* each parameter in a group of its own */
    bool broken;  /* one gradient is no number */
    bool scaled;  /* by a loss scale */
    int steps;    /* 0: STEPS */
    struct verdict verdicts[MOST_RANKS];
    double values[MOST_RANKS][TOTAL];
};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

/* Sums and means over the ranks are exact in f32. The mean is 0 for some elements, always, so that
 * LION meets the sign of 0. */
static double mean_gradient(const struct job *job, int step, int element) {
    if (job->broken && step == 1 && element == 19) return NAN;
    if (element % 11 == 3) return 0;
    return (double)((element * 37 + step * 5) % 23) / 4 - 2.75;
}

static double gradient_of(const struct job *job, int step, int element, int rank) {
    return mean_gradient(job, step, element) +
           ((double)rank - (double)(job->world_size - 1) / 2) * 0.25;
}

/* The products of these are not exact in any type. The last parameter begins as zeros. */
static double initial(int element) {
    return element >= TOTAL - 5 ? 0 : (double)((element * 29) % 31) * 0.375 - 3.5;
}

static int steps_of(const struct job *job) {
    return job->steps > 0 ? job->steps : STEPS;
}

/* ---- plain loops ---- */

#define DEFINE_STEP(NAME, T, ROOT)                                                      \
    static T NAME(const struct rule *rule, T p, T g, T *states) {                       \
        const T rate = (T)RATE, decay = (T)rule->decay, epsilon = (T)EPSILON;           \
        const T b1 = (T)0.9, rest1 = (T)(1 - 0.9), b2 = (T)0.99, rest2 = (T)(1 - 0.99); \
        const T momentum = (T)rule->momentum;                                           \
        if (rule->kind == TRIREME_RULE_LION) {                                          \
            if (rule->decay != 0) p -= (T)(RATE * rule->decay) * p;                     \
            const T c = b1 * states[0] + rest1 * g;                                     \
            if (c > 0) p -= rate;                                                       \
            if (c < 0) p += rate;                                                       \
            states[0] = b2 * states[0] + rest2 * g;                                     \
            return p;                                                                   \
        }                                                                               \
        if (rule->decay != 0) g += decay * p;                                           \
        if (rule->kind == TRIREME_RULE_ADAGRAD) {                                       \
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

#include "norms.inc"

static double power(double base, int exponent) {
    double result = 1;
    for (; exponent != 0; exponent /= 2, base *= base) {
        if (exponent % 2 == 1) result *= base;
    }
    return result;
}

static double trust_of(const struct rule *rule, double decay, double whole, double other) {
    double trust = whole / other;
    if (rule->kind == TRIREME_RULE_LARS) {
        trust = 0.25 * whole / (other + decay * whole + EPSILON);
    }
    if (!(trust > 0) || !isfinite(trust)) trust = 1;
    return rule->most > 0 && trust > rule->most ? rule->most : trust;
}

/* The whole of one parameter, in the step of this number. */
#define DEFINE_WHOLE_STEP(NAME, T, ROOT, NORM)                                                 \
    static void NAME(const struct rule *rule, double rate, double decay, T *p, const T *given, \
                     T(*states)[MOST_STATES], int count, int number) {                         \
        const bool lamb = rule->kind == TRIREME_RULE_LAMB;                                     \
        const T b1 = (T)0.9, rest1 = (T)(1 - 0.9), b2 = (T)0.999, rest2 = (T)(1 - 0.999);      \
        const T size = (T)(1 / (1 - power(0.9, number)));                                      \
        const T inverse = (T)(1 / sqrt(1 - power(0.999, number)));                             \
        double before[TOTAL], other[TOTAL];                                                    \
        T along[TOTAL];                                                                        \
        for (int i = 0; i < count; ++i) {                                                      \
            T *const s = states[i], g = given[i];                                              \
            along[i] = g;                                                                      \
            if (lamb) {                                                                        \
                s[0] = b1 * s[0] + rest1 * g;                                                  \
                s[1] = b2 * s[1] + rest2 * g * g;                                              \
                along[i] = size * s[0] / (ROOT(s[1]) * inverse + (T)EPSILON);                  \
                if (decay != 0) along[i] += (T)decay * p[i];                                   \
            }                                                                                  \
            before[i] = (double)p[i];                                                          \
            other[i] = (double)along[i];                                                       \
        }                                                                                      \
        rate *= trust_of(rule, decay, NORM(before, count), NORM(other, count));                \
        for (int i = 0; i < count; ++i) {                                                      \
            T *const s = states[i], g = along[i];                                              \
            if (!lamb && decay != 0) g += (T)decay * p[i];                                     \
            if (rule->momentum != 0) {                                                         \
                s[0] = (T)rule->momentum * s[0] + (T)rate * g;                                 \
                p[i] -= s[0];                                                                  \
            } else {                                                                           \
                p[i] -= (T)rate * g;                                                           \
            }                                                                                  \
        }                                                                                      \
    }

static double plain_norm(const double *values, int count) {
    long double sum = 0;
    for (int i = 0; i < count; ++i) sum += (long double)values[i] * (long double)values[i];
    return (double)sqrtl(sum);
}

DEFINE_WHOLE_STEP(whole_step_f32, float, sqrtf, norm_of)
DEFINE_WHOLE_STEP(whole_step_f64, double, sqrt, norm_of)
DEFINE_WHOLE_STEP(whole_step_exactly, long double, sqrtl, plain_norm)

static float to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void expect_whole(const struct job *job, bool exactly, double *values) {
    static float p32[TOTAL], g32[TOTAL], s32[TOTAL][MOST_STATES];
    static double p64[TOTAL], g64[TOTAL], s64[TOTAL][MOST_STATES];
    static long double p80[TOTAL], g80[TOTAL], s80[TOTAL][MOST_STATES];
    memset(s32, 0, sizeof s32);
    memset(s64, 0, sizeof s64);
    for (int i = 0; i < TOTAL; ++i) {
        p64[i] = initial(i);
        p32[i] = (float)p64[i];
        p80[i] = (long double)p64[i];
        for (int state = 0; state < MOST_STATES; ++state) s80[i][state] = 0;
    }
    for (int step = 0; step < steps_of(job); ++step) {
        for (int i = 0; i < TOTAL; ++i) {
            g64[i] = mean_gradient(job, step, i);
            g32[i] = (float)g64[i];
            g80[i] = (long double)g64[i];
        }
        int first = 0;
        for (int number = 0; number < PARAMETERS; ++number) {
            const int count = (int)kElements[number], at = first;
            first += count;
            const double rate = job->grouped ? RATE * kFactors[number] : RATE;
            const double decay = job->grouped ? kDecays[number] : job->rule->decay;
            if (exactly) {
                whole_step_exactly(job->rule, rate, decay, p80 + at, g80 + at, s80 + at, count,
                                   step + 1);
            } else if (job->dtype == F64) {
                whole_step_f64(job->rule, rate, decay, p64 + at, g64 + at, s64 + at, count,
                               step + 1);
            } else {
                whole_step_f32(job->rule, rate, decay, p32 + at, g32 + at, s32 + at, count,
                               step + 1);
            }
        }
        for (int i = 0; i < TOTAL && job->dtype == BF16; ++i) p32[i] = to_bf16(p32[i]);
    }
    for (int i = 0; i < TOTAL; ++i) {
        values[i] = job->dtype == F64 ? p64[i] : (double)p32[i];
        if (exactly) values[i] = (double)p80[i];
    }
}

static void expect_plain(const struct job *job, double *values) {
    if (job->rule - kRules >= ELEMENT_RULES) {
        expect_whole(job, false, values);
        return;
    }
    for (int i = 0; i < TOTAL; ++i) {
        double p = initial(i), wide[MOST_STATES] = {0};
        float narrow[MOST_STATES] = {0};
        for (int step = 0; step < STEPS; ++step) {
            const double g = mean_gradient(job, step, i);
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

static trireme_optimizer_options options_of(const struct job *job) {
    const struct rule *const rule = job->rule;
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = rule->kind;
    options.learning_rate = RATE;
    if (rule->momentum != 0) set_momentum(&options, rule->momentum);
    options.weight_decay = rule->decay;
    if (rule->kind != TRIREME_RULE_LION) set_epsilon(&options, EPSILON);
    if (rule->centered) rmsprop_of(&options)->flags = TRIREME_RMSPROP_FLAG_CENTERED;
    if (rule->kind == TRIREME_RULE_LARS) lars_of(&options)->trust_coefficient = 0.25;
    if (rule->kind == TRIREME_RULE_LARS) lars_of(&options)->max_trust = rule->most;
    if (rule->kind == TRIREME_RULE_LAMB) lamb_of(&options)->max_trust = rule->most;
    if (job->scaled) loss_scale_of(&options)->initial_scale = 1024;
    if (job->grouped) {
        options.weight_decay = 0;
        groups_of(&options, PARAMETERS);
        set_group_rates(&options, kFactors);
        set_group_decays(&options, kDecays);
    }
    return options;
}

static trireme_model *make(struct verdict *v, trireme_communicator *ranks, const struct job *job) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = job->world_size % 2 == 0 ? 1 : 0;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
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
        parameter.parameter_group = job->grouped ? (uint32_t)i : 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

/* A new model and optimizer that go on where the old ones ended. */
static void resume(struct verdict *v, trireme_communicator *ranks, const struct job *job,
                   trireme_model **model, trireme_optimizer **optimizer) {
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(*optimizer, &bytes));
    void *const state = malloc(bytes + 1);
    if (state == NULL) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(*optimizer, state, bytes, NULL));
    trireme_optimizer_destroy(*optimizer);
    trireme_model_destroy(*model);
    *optimizer = NULL;
    *model = make(v, ranks, job);
    const trireme_optimizer_options options = options_of(job);
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
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, stored, TOTAL, BF16, 0));
    } else {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, data, TOTAL, given, 0));
    }
    trireme_optimizer_options options = options_of(job);
    if (job->one_sweep) options.flags |= TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    for (int step = 0; step < steps_of(job); ++step) {
        if (job->resumed && step == 2) resume(v, ranks, job, &model, &optimizer);
        for (int i = 0; i < TOTAL; ++i) {
            wide[i] = gradient_of(job, step, i, rank) * (job->scaled ? 1024 : 1);
            narrow[i] = (float)wide[i];
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, data, TOTAL, given, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    double values[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, TOTAL, job->dtype));
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
            if (isnan(job->values[rank][i]) && isnan(expected[i])) continue;
            fail_msg(
                "%s number %d, strategy %d, %d ranks, dtype %d, rank %d, element %d: %a, not %a",
                trireme_rule_name(job->rule->kind), (int)(job->rule - kRules), (int)job->strategy,
                job->world_size, (int)job->dtype, rank, i, job->values[rank][i], expected[i]);
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
    for (int rule = 0; rule < ELEMENT_RULES; ++rule) {
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

/* Each parameter with a trust ratio, learning rate and decay of its own; one of them has a gradient
 * that is no number, which is then its own affair. */
static void norms_are_those_of_each_parameter(void **state) {
    (void)state;
    for (int rule = ELEMENT_RULES; rule < RULES; ++rule) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            for (int broken = 0; broken <= 1; ++broken) {
                if (is_quick() && (rule + strategy + broken) % 4 != 0) continue;
                static struct job job;
                job = (struct job){.rule = &kRules[rule], .strategy = strategy};
                job.world_size = 3 + broken;
                job.dtype = kDtypes[(rule + strategy) % 3];
                job.grouped = broken == 0 || strategy % 2 == 0;
                job.broken = broken != 0;
                job.scaled = broken == 0 && strategy % 2 == 0;
                train_and_check(&job);
            }
        }
    }
}

static void many_steps_follow_the_formula(void **state) {
    (void)state;
    for (int rule = ELEMENT_RULES; rule < RULES; ++rule) {
        for (int wide = 0; wide <= 1; ++wide) {
            static struct job job;
            job = (struct job){.rule = &kRules[rule], .strategy = TRIREME_STRATEGY_ZERO2};
            job.world_size = 2;
            job.dtype = wide != 0 ? F64 : F32;
            job.steps = MANY_STEPS;
            train_and_check(&job);
            double exact[TOTAL];
            expect_whole(&job, true, exact);
            for (int i = 0; i < TOTAL; ++i) {
                const double most = (wide != 0 ? 1e-12 : 1e-5) * (1 + fabs(exact[i]));
                if (fabs(job.values[0][i] - exact[i]) <= most) continue;
                fail_msg("rule %d, element %d: %.17g is not near %.17g", rule, i, job.values[0][i],
                         exact[i]);
            }
        }
    }
}

/* ---- saved state, and refusals ---- */

static void look_at_states(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    static const uint32_t expected[RULES] = {1, 1, 1, 2, 2, 3, 1, 1, 2, 2, 0, 1};
    for (int rule = 0; rule < RULES; ++rule) {
        trireme_model *const model = make(v, ranks, job);
        job->rule = &kRules[rule];
        const trireme_optimizer_options options = options_of(job);
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
        uint64_t count = 0, elements[MOST_STATES] = {0};
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
        for (uint64_t i = 0; i < count; ++i) {
            trireme_state_range range = TRIREME_STATE_RANGE_INIT;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
            if (range.kind != TRIREME_STATE_KIND_OPTIMIZER) continue;
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
    const trireme_rule_kind adagrad = TRIREME_RULE_ADAGRAD, rmsprop = TRIREME_RULE_RMSPROP,
                            lion = TRIREME_RULE_LION, lamb = TRIREME_RULE_LAMB,
                            lars = TRIREME_RULE_LARS;
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
#define REFUSED(words)                                                                \
    do {                                                                              \
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,                              \
                      trireme_optimizer_create(model, &options, &optimizer));         \
        if (!says(words)) expect_failed(v, __FILE__, __LINE__, trireme_last_error()); \
        EXPECT(v, optimizer == NULL);                                                 \
        options = (trireme_optimizer_options)TRIREME_OPTIMIZER_OPTIONS_INIT;          \
    } while (0)
    adagrad_of(&options)->epsilon = -1;
    REFUSED("options.rule.epsilon -1 is not finite and 0 or more");
    rmsprop_of(&options)->momentum = 1;
    REFUSED("options.rule.momentum 1 is not in [0, 1)");
    rmsprop_of(&options)->alpha = 1;
    REFUSED("options.rule.alpha 1 is not in (0, 1)");
    rmsprop_of(&options)->flags = 2;
    REFUSED("options.rule.flags 2");
    lion_of(&options)->beta1 = 1;
    REFUSED("options.rule.beta1 1 is not in (0, 1)");
    lion_of(&options)->beta2 = -0.5;
    REFUSED("options.rule.beta2 -0.5 is not in (0, 1)");
    lamb_of(&options)->beta1 = -1;
    REFUSED("options.rule.beta1 -1 is not in (0, 1)");
    lamb_of(&options)->max_trust = -1;
    REFUSED("options.rule.max_trust -1 is not finite and 0 or more");
    lamb_of(&options)->max_trust = INFINITY;
    REFUSED("options.rule.max_trust inf is not finite and 0 or more");
    lars_of(&options)->momentum = 1;
    REFUSED("options.rule.momentum 1 is not in [0, 1)");
    lars_of(&options)->epsilon = -1;
    REFUSED("options.rule.epsilon -1 is not finite and 0 or more");
    lars_of(&options)->trust_coefficient = -1;
    REFUSED("options.rule.trust_coefficient -1 is not finite and 0 or more");
    options.kind = 100;
    REFUSED("options.kind 100 is no update rule");
    /* Numbers of one rule with the kind of another. */
    const trireme_rule_kind kinds[] = {adagrad, rmsprop, lion, lamb, lars};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; ++i) {
        for (int named = 0; named < 2; ++named) {
            options.kind = kinds[i];
            if (kinds[i] == lars) {
                (void)lamb_of(&options);
            } else {
                (void)lars_of(&options);
            }
            REFUSED(trireme_rule_name(named ? kinds[i] : kinds[i] == lars ? lamb : lars));
        }
    }
#undef REFUSED
    /* Ranks that want different things. */
    options.kind = rmsprop;
    if (rank == 1) rmsprop_of(&options)->flags = TRIREME_RMSPROP_FLAG_CENTERED;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("centered is off on rank 0 and on on rank 1"));
    options.rule = NULL;
    options.kind = rank == 1 ? lion : adagrad;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("kind is adagrad on rank 0 and lion on rank 1"));
    options.kind = lars;
    lars_of(&options)->trust_coefficient = rank == 1 ? 0.5 : 0.25;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("trust_coefficient is 0.25 on rank 0 and 0.5 on rank 1"));
    lars_of(&options)->trust_coefficient = 0;
    lars_of(&options)->max_trust = rank == 1 ? 0.5 : 0;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("max_trust is 0 on rank 0 and 0.5 on rank 1"));
    EXPECT(v, optimizer == NULL);
    /* All of that left the model as it was. The saved state of one rule is no state of another,
     * even if both keep equally many vectors. */
    static const struct rule pairs[][2] =
        {{{TRIREME_RULE_RMSPROP, 0, false, 0, 0}, {TRIREME_RULE_ADAGRAD, 0, false, 0, 0}},
         {{TRIREME_RULE_RMSPROP, 0.5, false, 0, 0}, {TRIREME_RULE_RMSPROP, 0, true, 0, 0}},
         {{TRIREME_RULE_RMSPROP, 0, true, 0, 0}, {TRIREME_RULE_RMSPROP, 0.5, true, 0, 0}},
         {{TRIREME_RULE_LAMB, 0, false, 0, 0}, {TRIREME_RULE_RMSPROP, 0, true, 0, 0}},
         {{TRIREME_RULE_LARS, 0.5, false, 0, 0}, {TRIREME_RULE_LION, 0, false, 0, 0}}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        options = options_of(&(struct job){.rule = &pairs[i][0]});
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
        uint64_t bytes = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
        void *const saved = malloc(bytes + 1);
        if (saved == NULL) abort();
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, saved, bytes, NULL));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, saved, bytes));
        trireme_optimizer_destroy(optimizer);
        options = options_of(&(struct job){.rule = &pairs[i][1]});
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
    assert_string_equal(trireme_rule_name(TRIREME_RULE_ADAGRAD), "adagrad");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_RMSPROP), "rmsprop");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_LION), "lion");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_LAMB), "lamb");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_LARS), "lars");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_ADAFACTOR), "adafactor");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_MUON), "muon");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_gives_the_bits_of_plain_loops),
        cmocka_unit_test(one_sweep_gives_the_same_bits),
        cmocka_unit_test(norms_are_those_of_each_parameter),
        cmocka_unit_test(many_steps_follow_the_formula),
        cmocka_unit_test(each_rule_keeps_the_vectors_of_its_formula),
        cmocka_unit_test(what_a_rule_does_not_know_is_refused),
        cmocka_unit_test(names_are_those_of_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
