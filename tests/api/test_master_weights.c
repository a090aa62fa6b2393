/*
 * Parameters of 16 bits whose optimizer keeps masters of f32: their training is that of f32 in one
 * process, rounded after each step, whatever the strategy and the number of ranks.
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
#include <numbers.h>
#include <options.h>
#include <ranks.h>

#define F16 TRIREME_DTYPE_F16
#define BF16 TRIREME_DTYPE_BF16
#define F32 TRIREME_DTYPE_F32
#define TOTAL 34
#define STEPS 8
#define SET_AT 3     /* all parameters are set before this step */
#define WRITTEN_AT 5 /* some elements are, by their ranges */
#define RESUMED_AT 6 /* the training goes on from its saved state */
#define LEAVES 4
#define MOST_RANKS 8
#define STATES 2 /* most of a rule here, without masters */

/* "wide" is of f32 in a model of several types. */
static const struct {
    const char *name;
    uint64_t elements;
} kParameters[] = {{"a", 9}, {"wide", 5}, {"none", 0}, {"b", 19}, {"c", 1}};
enum { PARAMETERS = sizeof kParameters / sizeof kParameters[0], WIDE = 1 };

struct job {
    trireme_strategy strategy;
    int world_size;
    trireme_dtype dtype;
    trireme_rule_kind kind;
    uint32_t leaves;
    uint64_t bucket_bytes;
    bool mixed, one_sweep, skip;
    double scale;
    struct verdict verdicts[MOST_RANKS];
    uint64_t state_bytes[MOST_RANKS];
    /* By element, from the owners' ranges: its value, its master (of "wide": itself), states. */
    float values[TOTAL], masters[TOTAL], states[STATES][TOTAL];
    int found[TOTAL][2 + STATES];
};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static trireme_dtype dtype_of(const struct job *job, uint64_t parameter) {
    return job->mixed && parameter == WIDE ? F32 : job->dtype;
}

static uint64_t place_of(uint64_t parameter) {
    uint64_t place = 0;
    for (uint64_t p = 0; p < parameter; ++p) place += kParameters[p].elements;
    return place;
}

static int states_of(const struct job *job) {
    const bool two = job->kind == TRIREME_RULE_ADAM || job->kind == TRIREME_RULE_ADAMW ||
                     job->kind == TRIREME_RULE_LAMB;
    return two ? 2 : 1;
}

static int parts_of(const struct job *job) {
    return job->leaves > 0 ? (int)job->leaves : job->world_size;
}

static bool unused(const struct job *job, int step, uint64_t parameter) {
    return job->skip && step == 2 && parameter == 3;
}

/* Eighths: their sums and means are exact. */
static double
gradient_of(const struct job *job, int step, int part, uint64_t parameter, uint64_t element) {
    const uint64_t place = element * 37 + parameter * 101;
    const double mean = (double)((place + (uint64_t)step * 5) % 23) / 4 - 2.75;
    return mean + ((double)part - (double)(parts_of(job) - 1) / 2) * 0.25;
}

/* In the type of a parameter. Small ones are as many in f16 as there are. */
static float rounded(trireme_dtype dtype, double value) {
    uint16_t bits = 0;
    if (dtype == F32) return (float)value;
    put_number(dtype, value, &bits);
    return (float)number_at(dtype, &bits);
}

static float set_to(const struct job *job, uint64_t place) {
    return rounded(job->dtype, (double)place * 0.37 - 4.1);
}

static float written(const struct job *job, uint64_t place) {
    return rounded(job->dtype, 1.7 - (double)place * 0.09);
}

static trireme_model *
make(struct verdict *v, trireme_communicator *all, const struct job *job, uint64_t limit) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    options.leaves = job->leaves;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = job->bucket_bytes;
    options.memory_limit_bytes = limit;
    if (job->skip) options.unused = TRIREME_UNUSED_SKIP;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(all, &options, &model));
    for (uint64_t p = 0; p < PARAMETERS; ++p) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kParameters[p].name;
        parameter.dtype = dtype_of(job, p);
        parameter.dimensions = 1;
        parameter.shape = &kParameters[p].elements;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

/* p -= p / 16 + rate * m, m = m / 2 + g */
static int32_t TRIREME_CALLCONV own_rule(const trireme_update *update, void *user_data) {
    (void)user_data;
    if (update->dtype != F32 || update->gradient_dtype != F32) return 1;
    float *const p = update->parameters;
    const float *const g = update->gradients;
    float *const m = update->states[0];
    for (uint64_t i = 0; i < update->count; ++i) {
        m[i] = m[i] * 0.5f + g[i];
        p[i] -= p[i] * 0.0625f;
        p[i] -= (float)update->learning_rate * m[i];
    }
    return 0;
}

static trireme_optimizer_options rule_of(const struct job *job) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = job->kind;
    options.learning_rate = 0.001;
    options.flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
    if (job->one_sweep) options.flags |= TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    if (job->scale > 0) loss_scale_of(&options)->initial_scale = job->scale;
    if (job->kind == TRIREME_RULE_SGD) set_momentum(&options, 0.5);
    if (job->kind == TRIREME_RULE_LARS) set_momentum(&options, 0.5);
    if (job->kind == TRIREME_RULE_ADAMW) options.weight_decay = 0.125;
    if (job->kind == TRIREME_RULE_USER) {
        user_rule_of(&options)->state_count = 1;
        user_rule_of(&options)->update = own_rule;
    }
    return options;
}

static void backward(struct verdict *v, const struct job *job, trireme_model *model, int step,
                     int part, double scale) {
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (uint64_t p = PARAMETERS; p-- > 0;) {
        if (unused(job, step, p)) continue;
        float gradient[TOTAL];
        for (uint64_t i = 0; i < kParameters[p].elements; ++i) {
            gradient[i] = (float)(gradient_of(job, step, part, p, i) * scale);
        }
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, p, gradient, kParameters[p].elements,
                                                   F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

/* Looks at this rank's elements, and writes some of them if `write`. */
static void
look(struct verdict *v, struct job *job, const trireme_optimizer *optimizer, bool write) {
    uint64_t ranges = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &ranges));
    for (uint64_t r = 0; r < ranges; ++r) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, r, &range));
        const bool is_parameter = range.kind == TRIREME_STATE_KIND_PARAMETER;
        const bool is_master = !is_parameter && range.vector == (uint32_t)states_of(job);
        const trireme_dtype dtype = dtype_of(job, range.parameter);
        EXPECT(v, range.dtype == (is_parameter ? dtype : F32));
        EXPECT(v, !is_master || dtype != F32);
        EXPECT(v, is_parameter || range.vector <= (uint32_t)states_of(job));
        for (uint64_t i = 0; i < range.count; ++i) {
            const uint64_t place = place_of(range.parameter) + range.first + i;
            char *const element = (char *)range.data + i * (range.dtype == F32 ? 4 : 2);
            if (write) {
                if (!is_parameter || dtype == F32 || place % 3 != 0) continue;
                put_number(dtype, (double)written(job, place), element);
                continue;
            }
            const float value = (float)number_at(range.dtype, element);
            if (is_parameter) job->values[place] = value;
            if (is_parameter && dtype == F32) job->masters[place] = value;
            if (is_master) job->masters[place] = value;
            if (!is_parameter && !is_master) job->states[range.vector][place] = value;
            ++job->found[place][is_parameter ? 0 : 1 + range.vector];
        }
    }
}

static void set(struct verdict *v, const struct job *job, trireme_model *model, int rank) {
    uint16_t values[TOTAL];
    for (uint64_t i = 0; i < TOTAL; ++i) put_number(job->dtype, (double)set_to(job, i), &values[i]);
    const int root = job->world_size - 1;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, rank == root ? values : NULL, TOTAL,
                                                     job->dtype, root));
}

static void check_memory(struct verdict *v, struct job *job, trireme_model *model, int rank) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_optimizer_state == memory.allocated_optimizer_state);
    EXPECT(v, memory.planned_working == memory.allocated_working);
    job->state_bytes[rank] = memory.planned_optimizer_state;
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *model = make(v, all, job, 0);
    const trireme_optimizer_options rule = rule_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    check_memory(v, job, model, rank);
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    for (int step = 0; step < STEPS; ++step) {
        if (step == SET_AT && !job->mixed) set(v, job, model, rank);
        if (step == WRITTEN_AT) look(v, job, optimizer, true);
        if (step == RESUMED_AT) {
            uint64_t bytes = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
            void *const state = malloc(bytes);
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, bytes, NULL));
            trireme_optimizer_destroy(optimizer);
            trireme_model_destroy(model);
            model = make(v, all, job, 0);
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, state, bytes));
            free(state);
        }
        double scale = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale(optimizer, &scale));
        if (job->leaves == 0) backward(v, job, model, step, rank, scale);
        for (uint32_t pass = 0; pass < info.micro_batches; ++pass) {
            uint32_t leaf = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, pass, &leaf));
            if (leaf != UINT32_MAX) backward(v, job, model, step, (int)leaf, scale);
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    look(v, job, optimizer, false);
    trireme_optimizer_destroy(optimizer);
    check_memory(v, job, model, rank);
    EXPECT(v, job->state_bytes[rank] == 0);
    /* Nothing of the masters is left behind. */
    if (!job->mixed) set(v, job, model, rank);
    trireme_model_destroy(model);
}

static double power(double base, int exponent) { /* by squaring, as the library has it */
    double result = 1;
    for (; exponent != 0; exponent >>= 1, base *= base) {
        if (exponent & 1) result *= base;
    }
    return result;
}

/* One step of an element in f32. */
static void advance(const struct job *job, int t, float g, float *p, float *m, float *u) {
    const float rate = (float)0.001;
    if (job->kind == TRIREME_RULE_SGD) {
        *m = t == 1 ? g : 0.5f * *m + g;
        *p -= rate * *m;
    } else if (job->kind == TRIREME_RULE_USER) {
        *m = *m * 0.5f + g;
        *p -= *p * 0.0625f;
        *p -= rate * *m;
    } else {
        const float size = (float)(0.001 / (1 - power(0.9, t)));
        const float inverse_root = (float)(1 / sqrt(1 - power(0.999, t)));
        *p -= (float)(0.001 * 0.125) * *p;
        *m = (float)0.9 * *m + (float)(1 - 0.9) * g;
        *u = (float)0.999 * *u + (float)(1 - 0.999) * g * g;
        *p -= size * *m / ((float)sqrt((double)*u) * inverse_root + (float)1e-8);
    }
}

static void expect(const struct job *job, float *values, float *masters, float (*states)[TOTAL]) {
    uint64_t place = 0;
    for (uint64_t parameter = 0; parameter < PARAMETERS; ++parameter) {
        const trireme_dtype dtype = dtype_of(job, parameter);
        for (uint64_t i = 0; i < kParameters[parameter].elements; ++i, ++place) {
            float p = 0, m = 0, u = 0;
            int t = 0;
            for (int step = 0; step < STEPS; ++step) {
                if (step == SET_AT && !job->mixed) p = set_to(job, place);
                if (step == WRITTEN_AT && dtype != F32 && place % 3 == 0) p = written(job, place);
                if (unused(job, step, parameter)) continue;
                double sum = 0;
                for (int part = 0; part < parts_of(job); ++part) {
                    sum += gradient_of(job, step, part, parameter, i);
                }
                advance(job, ++t, (float)(sum / parts_of(job)), &p, &m, &u);
            }
            masters[place] = p;
            values[place] = rounded(dtype, (double)p);
            states[0][place] = m;
            states[1][place] = u;
        }
    }
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    memset(job->found, 0, sizeof job->found);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

static void train_and_check(struct job *job) {
    run_job(job, train);
    float values[TOTAL], masters[TOTAL], states[STATES][TOTAL];
    expect(job, values, masters, states);
    int finer = 0;
    for (int i = 0; i < TOTAL; ++i) {
        const bool wide = job->mixed && i >= 9 && i < 14;
        bool right = job->values[i] == values[i] && job->masters[i] == masters[i];
        right = right && job->found[i][0] == 1;
        for (int s = 0; s < states_of(job); ++s) {
            right = right && job->found[i][1 + s] == 1 && job->states[s][i] == states[s][i];
        }
        right = right && job->found[i][1 + states_of(job)] == (wide ? 0 : 1);
        if (masters[i] != values[i]) ++finer;
        if (right) continue;
        fail_msg(
            "strategy %d, %d ranks, dtype %d, rule %d, element %d: %.9g of %.9g, not %.9g of "
            "%.9g",
            (int)job->strategy, job->world_size, (int)job->dtype, (int)job->kind, i,
            (double)job->values[i], (double)job->masters[i], (double)values[i], (double)masters[i]);
    }
    /* It is worth it: what rounding would have lost is there. */
    assert_true(finer > TOTAL / 2);
}

static const trireme_rule_kind kKinds[] = {TRIREME_RULE_SGD, TRIREME_RULE_ADAMW, TRIREME_RULE_USER};

static void masters_train_as_f32_in_one_process(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            /* Each strategy still meets some worlds, and each world some strategies. */
            if (is_quick() && ((int)w + strategy) % 3 != 0) continue;
            for (int mixed = 0; mixed < 2; ++mixed) {
                static struct job job;
                const size_t turn = w + (size_t)strategy + (size_t)mixed;
                job = (struct job){.strategy = strategy,
                                   .world_size = worlds[w],
                                   .dtype = turn % 2 == 0 ? F16 : BF16,
                                   .kind = kKinds[(w * 2 + (size_t)strategy) % 3],
                                   .leaves = mixed && worlds[w] <= LEAVES ? LEAVES : 0,
                                   .bucket_bytes = worlds[w] % 2 == 0 ? 1 : 0,
                                   .mixed = mixed};
                if (turn % 4 < 2) job.scale = 1024;
                job.skip = turn % 3 == 0;
                train_and_check(&job);
            }
        }
    }
}

static void one_sweep_updates_masters_too(void **state) {
    (void)state;
    for (int world = 1; world <= 5; world += 2) {
        for (size_t k = 0; k < 2; ++k) {
            static struct job job;
            job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1,
                               .world_size = world,
                               .dtype = k == 0 ? BF16 : F16,
                               .kind = kKinds[k],
                               .mixed = world == 3,
                               .one_sweep = true};
            train_and_check(&job);
        }
    }
}

/* From the same values and gradients a model of f32 and the masters of one of 16 bits. */
static void train_twice(trireme_communicator *all, int rank, void *context) {
    struct job *const jobs = context;
    struct verdict *const v = &jobs[0].verdicts[rank];
    for (int narrow = 0; narrow < 2; ++narrow) {
        struct job *const job = &jobs[narrow];
        trireme_model *const model = make(v, all, job, 0);
        trireme_optimizer_options rule = rule_of(job);
        if (!narrow) rule.flags = 0;
        rule.weight_decay = 0.0625;
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        uint16_t halves[TOTAL];
        float wholes[TOTAL];
        for (uint64_t i = 0; i < TOTAL; ++i) {
            wholes[i] = set_to(&jobs[1], i);
            put_number(jobs[1].dtype, (double)wholes[i], &halves[i]);
        }
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model,
                                                         narrow ? (const void *)halves
                                                                : (const void *)wholes,
                                                         TOTAL, job->dtype, 0));
        for (int step = 0; step < STEPS; ++step) {
            backward(v, job, model, step, rank, 1);
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        }
        look(v, job, optimizer, false);
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
}

static void masters_of_every_rule_are_what_f32_is(void **state) {
    (void)state;
    for (trireme_rule_kind kind = 1; kind <= TRIREME_RULE_ADAFACTOR; ++kind) {
        if (kind == TRIREME_RULE_USER) continue; /* above */
        static struct job jobs[2];
        jobs[0] = (struct job){.strategy = 1 + kind % TRIREME_STRATEGY_HYBRID_SHARD,
                               .world_size = 1 + (int)kind % 3,
                               .dtype = F32,
                               .kind = kind};
        jobs[1] = jobs[0];
        jobs[1].dtype = kind % 2 == 0 ? F16 : BF16;
        run_job(&jobs[0], train_twice);
        for (int i = 0; i < TOTAL; ++i) {
            if (jobs[1].masters[i] == jobs[0].values[i] && jobs[1].masters[i] != 0) continue;
            fail_msg("rule %d, element %d: %.9g, not %.9g", (int)kind, i,
                     (double)jobs[1].masters[i], (double)jobs[0].values[i]);
        }
    }
}

/* How many bytes of state there are, over all ranks that share one copy of it. */
static void only_parameters_of_16_bits_have_masters(void **state) {
    (void)state;
    for (int mixed = 0; mixed < 2; ++mixed) {
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                           .world_size = 3,
                           .dtype = BF16,
                           .kind = TRIREME_RULE_ADAMW,
                           .mixed = mixed};
        run_job(&job, train);
        int masters = 0;
        for (int i = 0; i < TOTAL; ++i) masters += job.found[i][1 + STATES];
        assert_int_equal(masters, mixed ? TOTAL - 5 : TOTAL);
    }
}

/* Numbers that a type does not have stay until they are written. */
static void go_beyond(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, all, job, 0);
    trireme_optimizer_options rule = rule_of(job);
    rule.learning_rate = 1; /* and a momentum of 0.5 */
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    static const float gradients[] = {-60000, -30000, 80000};
    static const float masters[] = {60000, 120000, 70000};
    /* The pattern of infinity, read as those of numbers below are. */
    static const float values[] = {60000, 65536, 65536};
    for (int step = 0; step < 3; ++step) {
        float gradient[TOTAL] = {0};
        gradient[0] = gradients[step];
        gradient[1] = step == 0 ? 0x1p-26f : 0x1p-27f; /* less than f16 has */
        gradient[2] = step == 1 ? (float)NAN : 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradient, TOTAL, F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        look(v, job, optimizer, false);
        EXPECT(v, job->masters[0] == masters[step]);
        EXPECT(v, job->values[0] == values[step]);
        EXPECT(v, job->masters[1] == -0x1p-26f * (float)(step + 1));
        EXPECT(v, job->values[1] == (step == 2 ? -0x1p-24f : 0));
        EXPECT(v, step == 0 ? job->masters[2] == 0 : isnan(job->masters[2]));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void masters_go_beyond_their_parameters(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2,
                       .world_size = 1,
                       .dtype = F16,
                       .kind = TRIREME_RULE_SGD};
    run_job(&job, go_beyond);
}

static void be_refused(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_optimizer *optimizer = NULL;
    trireme_optimizer_options rule = rule_of(job);
    /* No parameter of 16 bits: all have f32. */
    struct job wide = *job;
    wide.dtype = F32;
    trireme_model *model = make(v, all, &wide, 0);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("no parameter to be trained is of f16 or bf16") && optimizer == NULL);
    rule.flags = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    optimizer = NULL;
    /* Not on all ranks. */
    model = make(v, all, job, 0);
    rule = rule_of(job);
    rule.flags = rank == 1 ? 0 : rule.flags;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("master_weights is on on rank 0 and off on rank 1") && optimizer == NULL);
    /* A bit that means nothing. */
    rule = rule_of(job);
    rule.flags = 1u << 30;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_create(model, &rule, &optimizer));
    rule = rule_of(job);
    state_file_of(&rule)->path = "/tmp";
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS with options.offload"));
    /* State saved without masters. */
    rule = rule_of(job);
    rule.flags = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    void *const state = malloc(bytes);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, bytes, NULL));
    trireme_optimizer_destroy(optimizer);
    rule = rule_of(job);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_load(optimizer, state, bytes));
    free(state);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    /* A limit that holds all but the masters. */
    const uint64_t without = memory.planned_parameters + memory.planned_gradients +
                             memory.planned_working + memory.planned_optimizer_state;
    const uint64_t limit = without + 4 * TOTAL - 1;
    model = make(v, all, job, limit);
    optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY,
                  trireme_optimizer_create(model, &rule, &optimizer));
    char words[60];
    snprintf(words, sizeof words, "optimizer state %d of adamw;", 12 * TOTAL);
    EXPECT(v, says(words) && optimizer == NULL);
    trireme_model_destroy(model);
    model = make(v, all, job, limit + 1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                       .world_size = 2,
                       .dtype = BF16,
                       .kind = TRIREME_RULE_ADAMW};
    run_job(&job, be_refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masters_train_as_f32_in_one_process),
        cmocka_unit_test(one_sweep_updates_masters_too),
        cmocka_unit_test(masters_of_every_rule_are_what_f32_is),
        cmocka_unit_test(only_parameters_of_16_bits_have_masters),
        cmocka_unit_test(masters_go_beyond_their_parameters),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
