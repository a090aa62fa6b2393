/*
 * Dynamic loss scale: All ranks skip steps with an inf or NaN anywhere. The rest is the training of
 * one process without a scale, whatever the strategy and the number of ranks.
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
#define TOTAL 21 /* elements of all parameters */
#define MOST 9   /* of one */
#define STEPS 10
#define LEAVES 4
#define MOST_RANKS 8
#define UNUSED 0 /* the parameter that gets no gradient in step UNUSED_STEP if one is skipped */
#define UNUSED_STEP 6

static const struct {
    const char *name;
    uint64_t elements;
} kParameters[] = {{"a", 7}, {"b", 5}, {"none", 0}, {"c", MOST}};
enum { PARAMETERS = sizeof kParameters / sizeof kParameters[0] };

/* The gradients that overflow in a step: their parts of the batch, and their parameters. The number
 * of ranks or leaves decides which of them has a part. The parameter that a report names, and the
 * part. */
static const struct {
    int parts[2], parameters[2];
    double value; /* 0: none overflows */
    int first;    /* the named one of the two */
} kSpoils[STEPS] = {
    [2] = {{1, 1}, {1, 1}, INFINITY, 0},
    [4] = {{2, 2}, {0, 0}, NAN, 0},
    [5] = {{0, 1}, {3, 3}, -INFINITY, 0},
    [8] = {{0, 1}, {3, 1}, NAN, 1},
};

/* By 2 after two good steps in a row, by half after an overflow, and never below 2. */
static const double kScalesAfter[STEPS] = {4, 8, 4, 4, 2, 2, 2, 4, 2, 2};
#define FIRST_SCALE 4
#define AT_FLOOR 5 /* the step that finds it there */

enum way { HOOKS, FLAT, VIEWS };
enum clipped { CLIP_ALL, CLIP_GROUPS, CLIP_NOTHING }; /* by the norm over norm_ranks */

struct job {
    trireme_strategy strategy;
    int world_size;
    trireme_dtype dtype;
    uint32_t leaves; /* 0: each rank has a part of its own */
    uint64_t bucket_bytes;
    enum way way;
    double max_norm, max_value;
    enum clipped clipped;
    bool skip, resumed;
    struct verdict verdicts[MOST_RANKS];
    double norms[MOST_RANKS][STEPS];
    double values[MOST_RANKS][STEPS][TOTAL];
};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static int parts_of(const struct job *job) {
    return job->leaves > 0 ? (int)job->leaves : job->world_size;
}

static bool unused(const struct job *job, int step, uint64_t parameter) {
    return job->skip && step == UNUSED_STEP && parameter == UNUSED;
}

/* Eighths: their sums, means and squares are exact in every type. */
static double
gradient_of(const struct job *job, int step, int part, uint64_t parameter, uint64_t element) {
    const uint64_t place = element * 37 + parameter * 101;
    const double mean = (double)((place + (uint64_t)step * 5) % 23) / 4 - 2.75;
    /* These add up to 0. */
    return mean + ((double)part - (double)(parts_of(job) - 1) / 2) * 0.25;
}

/* A part's gradients: with its loss scaled, and with the fault in its backward pass. */
static double handed(const struct job *job, int step, int part, uint64_t parameter,
                     uint64_t element, double scale) {
    for (int i = 0; i < 2 && kSpoils[step].value != 0; ++i) {
        if (part == kSpoils[step].parts[i] % parts_of(job) &&
            parameter == (uint64_t)kSpoils[step].parameters[i] && element == 2) {
            return kSpoils[step].value;
        }
    }
    return gradient_of(job, step, part, parameter, element) * scale;
}

static trireme_model *
make(struct verdict *v, trireme_communicator *ranks, const struct job *job, uint32_t flags) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    options.leaves = job->leaves;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = job->bucket_bytes;
    options.flags = flags;
    if (job->skip) options.unused = TRIREME_UNUSED_SKIP;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int p = 0; p < PARAMETERS; ++p) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kParameters[p].name;
        parameter.dtype = job->dtype;
        parameter.dimensions = 1;
        parameter.shape = &kParameters[p].elements;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_optimizer_options rule_of(double scale) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAM;
    options.learning_rate = 0.1;
    if (scale != 0) loss_scale_of(&options)->initial_scale = scale;
    return options;
}

static float from_bf16(uint16_t code) {
    const uint32_t bits = (uint32_t)code << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value)) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Elements in a type. */
static void store(trireme_dtype dtype, const double *from, uint64_t count, void *to) {
    for (uint64_t i = 0; i < count; ++i) {
        if (dtype == F64) ((double *)to)[i] = from[i];
        if (dtype == F32) ((float *)to)[i] = (float)from[i];
        if (dtype == BF16) ((uint16_t *)to)[i] = to_bf16((float)from[i]);
    }
}

static double value_at(trireme_dtype dtype, const void *values, size_t i) {
    if (dtype == F64) return ((const double *)values)[i];
    if (dtype == F32) return (double)((const float *)values)[i];
    return (double)from_bf16(((const uint16_t *)values)[i]);
}

static void backward(struct verdict *v, const struct job *job, trireme_model *model, int step,
                     int part, double scale) {
    double wide[TOTAL] = {0}, own[TOTAL];
    uint64_t place = 0;
    for (uint64_t p = 0; p < PARAMETERS; ++p) {
        for (uint64_t i = 0; i < kParameters[p].elements; ++i, ++place) {
            wide[place] = handed(job, step, part, p, i, scale);
        }
    }
    if (job->way == FLAT) {
        store(job->dtype, wide, TOTAL, own);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, own, TOTAL, job->dtype, 0));
        return;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (uint64_t p = PARAMETERS; p-- > 0;) {
        place -= kParameters[p].elements;
        if (unused(job, step, p)) continue;
        void *data = own;
        trireme_dtype dtype = job->dtype;
        if (job->way == VIEWS) {
            void *view = NULL;
            trireme_dtype type = 0;
            int32_t adds = 0;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_get_gradient_data(model, p, &view, NULL, &type, &adds));
            EXPECT(v, adds == 0);
            if (view != NULL) data = view, dtype = type;
        }
        store(dtype, wide + place, kParameters[p].elements, data);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, p, data, kParameters[p].elements, dtype));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

/* How the library tells of the step. */
static void look(struct verdict *v, const struct job *job, const trireme_optimizer *optimizer,
                 int step, trireme_status status) {
    const bool overflow = kSpoils[step].value != 0;
    const int first = kSpoils[step].first;
    const int parameter = kSpoils[step].parameters[first];
    const int part = kSpoils[step].parts[first] % parts_of(job);
    int rank = part % job->world_size;
    /* The same on both: the lower rank is named. */
    if (kSpoils[step].parameters[0] == kSpoils[step].parameters[1]) {
        const int other = kSpoils[step].parts[1 - first] % parts_of(job) % job->world_size;
        if (other < rank) rank = other;
    }
    EXPECT(v, status == (step == AT_FLOOR ? TRIREME_ERROR_INVALID_STATE : TRIREME_OK));
    if (step == AT_FLOOR) {
        char words[120];
        snprintf(words, sizeof words, "is in parameter %d (\"%s\"), as rank %d handed it in",
                 parameter, kParameters[parameter].name, rank);
        EXPECT(v, says(words) && says("the loss scale is at its floor, 2, and"));
        trireme_error_info info = TRIREME_ERROR_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_last_error_info(&info));
        EXPECT(v, info.blamed_count == 1 && info.blamed[0] == rank);
    }
    double scale = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale(optimizer, &scale));
    EXPECT(v, scale == kScalesAfter[step]);
    trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
    uint64_t skipped = 0, steps = 0;
    for (int s = 0; s <= step; ++s) {
        if (kSpoils[s].value != 0)
            ++skipped;
        else
            ++steps;
    }
    EXPECT(v, info.scale == scale && info.skipped_steps == skipped);
    EXPECT(v, info.skipped == (overflow ? 1 : 0) && info.at_floor == (step == AT_FLOOR ? 1 : 0));
    EXPECT(v, info.parameter == (overflow ? (uint64_t)parameter : UINT64_MAX));
    EXPECT(v, info.rank == (overflow ? rank : -1));
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &count));
    EXPECT(v, count == steps);
}

static void resume(struct verdict *v, const struct job *job, trireme_communicator *all,
                   const trireme_optimizer_options *rule, trireme_model **model,
                   trireme_optimizer **optimizer) {
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(*optimizer, &bytes));
    void *const state = malloc(bytes);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(*optimizer, state, bytes, NULL));
    trireme_optimizer_destroy(*optimizer);
    trireme_model_destroy(*model);
    *model = make(v, all, job, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(*model, rule, optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(*optimizer, state, bytes));
    free(state);
    trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(*optimizer, &info));
    EXPECT(v, info.skipped == 0 && info.parameter == UINT64_MAX && info.rank == -1);
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *model = make(v, all, job, 0);
    trireme_optimizer_options rule = rule_of(FIRST_SCALE);
    loss_scale_of(&rule)->growth_interval = 2;
    loss_scale_of(&rule)->minimum_scale = 2;
    clipping_of(&rule)->max_norm = job->max_norm;
    clipping_of(&rule)->max_value = job->max_value;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    for (int step = 0; step < STEPS; ++step) {
        double scale = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale(optimizer, &scale));
        if (job->leaves == 0) backward(v, job, model, step, rank, scale);
        for (uint32_t pass = 0; pass < info.micro_batches; ++pass) {
            uint32_t leaf = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, pass, &leaf));
            if (leaf != UINT32_MAX) backward(v, job, model, step, (int)leaf, scale);
        }
        look(v, job, optimizer, step, trireme_optimizer_step(optimizer));
        if (job->max_norm > 0) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_get_gradient_norm(optimizer, &job->norms[rank][step]));
        }
        double values[TOTAL];
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, values, TOTAL, job->dtype));
        for (size_t i = 0; i < TOTAL; ++i) {
            job->values[rank][step][i] = value_at(job->dtype, values, i);
        }
        if (job->resumed && (step == 0 || step == AT_FLOOR)) {
            resume(v, job, all, &rule, &model, &optimizer);
        }
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    EXPECT(v, memory.planned_optimizer_state == memory.allocated_optimizer_state);
    trireme_optimizer_destroy(optimizer);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    trireme_model_destroy(model);
}

static double power(double base, int exponent) { /* by squaring, as the library has it */
    double result = 1;
    for (; exponent != 0; exponent >>= 1, base *= base) {
        if (exponent & 1) result *= base;
    }
    return result;
}

/* Adam in one process, without a loss scale; steps that overflow are left out. */
#define ADAM(T)                                                           \
    do {                                                                  \
        const T size = (T)(0.1 / (1 - power(0.9, t)));                    \
        const T inverse_root = (T)(1 / sqrt(1 - power(0.999, t)));        \
        const T g = (T)mean * (T)clip;                                    \
        const T first = (T)0.9 * (T)m[place] + (T)(1 - 0.9) * g;          \
        const T second = (T)0.999 * (T)u[place] + (T)(1 - 0.999) * g * g; \
        const T below = (T)sqrt((double)second) * inverse_root + (T)1e-8; \
        m[place] = (double)first;                                         \
        u[place] = (double)second;                                        \
        p[place] = (double)((T)p[place] - size * first / below);          \
    } while (0)

static double mean_of(const struct job *job, int step, uint64_t parameter, uint64_t element) {
    double sum = 0;
    for (int part = 0; part < parts_of(job); ++part) {
        sum += gradient_of(job, step, part, parameter, element);
    }
    const double mean = sum / parts_of(job);
    if (job->max_value == 0) return mean;
    return mean > job->max_value ? job->max_value : mean < -job->max_value ? -job->max_value : mean;
}

static void expect(const struct job *job, double *norms, double (*values)[TOTAL]) {
    double p[TOTAL] = {0}, m[TOTAL] = {0}, u[TOTAL] = {0};
    int steps[PARAMETERS] = {0};
    double norm = 0;
    for (int step = 0; step < STEPS; ++step) {
        double sum = 0;
        for (uint64_t n = 0; n < PARAMETERS; ++n) {
            for (uint64_t i = 0; i < kParameters[n].elements && !unused(job, step, n); ++i) {
                sum += mean_of(job, step, n, i) * mean_of(job, step, n, i);
            }
        }
        if (kSpoils[step].value == 0) norm = sqrt(sum);
        norms[step] = norm;
        const double clip = job->max_norm > 0 && norm > job->max_norm ? job->max_norm / norm : 1;
        uint64_t place = 0;
        for (uint64_t n = 0; n < PARAMETERS && kSpoils[step].value == 0; ++n) {
            const bool used = !unused(job, step, n);
            const int t = used ? ++steps[n] : 0;
            for (uint64_t i = 0; i < kParameters[n].elements; ++i, ++place) {
                if (!used) continue;
                const double mean = mean_of(job, step, n, i);
                if (job->dtype == F64)
                    ADAM(double);
                else
                    ADAM(float);
                if (job->dtype == BF16) p[place] = (double)from_bf16(to_bf16((float)p[place]));
            }
        }
        memcpy(values[step], p, sizeof p);
    }
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

static void train_and_check(struct job *job) {
    run_job(job, train);
    static double norms[STEPS], values[STEPS][TOTAL];
    expect(job, norms, values);
    for (int rank = 0; rank < job->world_size; ++rank) {
        for (int step = 0; step < STEPS; ++step) {
            if (job->max_norm > 0 && job->norms[rank][step] != norms[step]) {
                fail_msg("rank %d step %d: norm %.17g, not %.17g", rank, step,
                         job->norms[rank][step], norms[step]);
            }
            for (int i = 0; i < TOTAL; ++i) {
                if (job->values[rank][step][i] == values[step][i]) continue;
                fail_msg(
                    "strategy %d, %d ranks, dtype %d, leaves %u: rank %d step %d element %d: "
                    "%.17g, not %.17g",
                    (int)job->strategy, job->world_size, (int)job->dtype, (unsigned)job->leaves,
                    rank, step, i, job->values[rank][step][i], values[step][i]);
            }
        }
    }
}

static const trireme_dtype kDtypes[] = {F32, F64, BF16};
static const int kWorlds[] = {1, 2, 3, 4, 5, 8};

static void scaled_training_is_that_of_one_process(void **state) {
    (void)state;
    for (size_t w = 0; w < sizeof kWorlds / sizeof kWorlds[0]; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            /* Each strategy still meets some worlds, and each world some strategies. */
            if (is_quick() && ((int)w + strategy) % 3 != 0) continue;
            static struct job job;
            const size_t turn = w + (size_t)strategy;
            job = (struct job){.strategy = strategy,
                               .world_size = kWorlds[w],
                               .dtype = kDtypes[turn % 3],
                               .bucket_bytes = kWorlds[w] % 2 == 0 ? 1 : 0,
                               .way = turn % 2 == 0 ? HOOKS : VIEWS,
                               .resumed = turn % 4 == 1};
            train_and_check(&job);
            job.leaves = kWorlds[w] <= LEAVES ? LEAVES : 0;
            job.way = FLAT;
            job.max_norm = 1.5;
            train_and_check(&job);
        }
    }
}

static void beside_other_features_it_is_the_same(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        static struct job job;
        job = (struct job){.strategy = strategy, .world_size = 3, .dtype = F32, .max_value = 2};
        train_and_check(&job);
        job.world_size = 2;
        job.skip = true;
        job.resumed = true;
        job.max_norm = 0.75;
        train_and_check(&job);
        if (is_quick() && strategy % 2 == 0) continue;
        job.leaves = LEAVES;
        job.bucket_bytes = 1;
        train_and_check(&job);
    }
}

/* Each rank's gradients are finite, their sum is not: no single rank had it. */
static void overflow_in_the_sum(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, all, job, 0);
    trireme_optimizer_options rule = rule_of(1);
    loss_scale_of(&rule)->hysteresis = 2;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    float gradients[TOTAL] = {0};
    /* Discarded gradients name no rank. */
    gradients[0] = rank == 0 ? (float)NAN : 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, TOTAL, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
    gradients[0] = 0;
    gradients[7] = gradients[20] = 3e38f;
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, TOTAL, F32, 0));
        /* The second one is not let pass any more. */
        EXPECT_STATUS(v, step == 0 ? TRIREME_OK : TRIREME_ERROR_INVALID_STATE,
                      trireme_optimizer_step(optimizer));
        trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
        EXPECT(v, info.skipped == 1 && info.parameter == 1 && info.rank == -1);
        EXPECT(v, info.overflows == (uint64_t)step + 1 && info.scale == 1 && info.at_floor == step);
    }
    EXPECT(v, says("in parameter 1 (\"b\"), but in no rank's own gradient of it"));
    trireme_optimizer_destroy(optimizer);
    /* Without a scale it goes through the rule. */
    rule = rule_of(0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, TOTAL, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    float values[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, TOTAL, F32));
    EXPECT(v, isnan(values[7]) && values[0] == 0);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_sum_that_overflows_names_no_rank(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        static struct job job;
        job = (struct job){.strategy = strategy, .world_size = 2 + strategy % 2, .dtype = F32};
        run_job(&job, overflow_in_the_sum);
    }
}

/* Rank 0 has data for one step, rank 1 for five. Two of these overflow, one with the scale at its
 * floor. */
static void follow(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, all, job, TRIREME_MODEL_FLAG_UNEVEN);
    trireme_optimizer_options rule = rule_of(2);
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    loss_scale_of(&rule)->growth_interval = 9;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    static const double scales[] = {2, 2, 1, 1, 1};
    const int own = rank == 0 ? 1 : 5;
    for (int step = 0; step < own; ++step) {
        double scale = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale(optimizer, &scale));
        EXPECT(v, scale == scales[step]);
        float gradients[TOTAL];
        for (int i = 0; i < TOTAL; ++i) gradients[i] = (float)((rank + 1) * scale);
        if (rank == 1 && (step == 1 || step == 3)) gradients[13] = (float)INFINITY;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, TOTAL, F32, 0));
        EXPECT_STATUS(v, step == 3 ? TRIREME_ERROR_INVALID_STATE : TRIREME_OK,
                      trireme_optimizer_step(optimizer));
    }
    uint64_t followed = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_join(optimizer, &followed));
    EXPECT(v, followed == (rank == 0 ? 4 : 0));
    trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
    EXPECT(v, info.scale == 1 && info.skipped_steps == 2 && info.skipped == 0);
    EXPECT(v, info.clean_steps == 1);
    float values[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, TOTAL, F32));
    /* The mean of all ranks once, then two times without rank 0. */
    float first = 0, later = 0;
    for (int r = 0; r < job->world_size; ++r) first += (float)(r + 1);
    later = (first - 1) / (float)(job->world_size - 1);
    first /= (float)job->world_size;
    for (int i = 0; i < TOTAL; ++i) EXPECT(v, values[i] == -(first + 2 * later));
    uint64_t steps = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &steps));
    EXPECT(v, steps == 3);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_rank_without_data_follows_skipped_steps(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        static struct job job;
        job = (struct job){.strategy = strategy, .world_size = 2, .dtype = F32};
        run_job(&job, follow);
        job.world_size = 4;
        run_job(&job, follow);
    }
}

/* Two models of norm_ranks. The second one's gradients overflow; then it is given another scale. */
static void skip_together(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int part = rank % 2;
    trireme_communicator *own = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_split(all, part, rank, NULL, &own));
    trireme_model *const model = make(v, own, job, 0);
    trireme_optimizer_options rule = rule_of(16);
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    static const double limits[1] = {1e9}; /* too high to clip */
    if (job->clipped == CLIP_ALL) clipping_of(&rule)->max_norm = 100;
    if (job->clipped == CLIP_GROUPS) groups_of(&rule, 1), set_group_norms(&rule, limits);
    clipping_of(&rule)->max_value = 2; /* would hide an inf */
    loss_scale_of(&rule)->growth_interval = 1;
    loss_scale_of(&rule)->minimum_scale = 8;
    rule.norm_ranks = all;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    static const double after[] = {32, 16, 8, 8, 16};
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    void *const state = malloc(bytes);
    double scale = 16, norm = 0;
    for (int step = 0; step < 5; ++step) {
        const bool overflow = step > 0 && step < 4;
        float gradients[TOTAL] = {0};
        gradients[0] = (float)(part == 0 ? 3 * scale : 4 * scale); /* clipped by value */
        if (overflow && rank == 3) gradients[9] = (float)-INFINITY;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, TOTAL, F32, 0));
        EXPECT_STATUS(v, step == 3 ? TRIREME_ERROR_INVALID_STATE : TRIREME_OK,
                      trireme_optimizer_step(optimizer));
        if (step == 3) {
            EXPECT(v, says(part == 0 ? "in another model of norm_ranks" : "as rank 1 handed"));
        }
        trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
        EXPECT(v, info.scale == after[step] && info.skipped == (overflow ? 1 : 0));
        EXPECT(v, info.parameter == (overflow && part == 1 ? 1 : UINT64_MAX));
        EXPECT(v, info.rank == (overflow && part == 1 ? 1 : -1));
        scale = info.scale;
        if (step == 0)
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, bytes, NULL));
        EXPECT_STATUS(v, job->clipped == CLIP_ALL ? TRIREME_OK : TRIREME_ERROR_INVALID_STATE,
                      trireme_optimizer_get_gradient_norm(optimizer, &norm));
        EXPECT_STATUS(v, job->clipped == CLIP_GROUPS ? TRIREME_OK : TRIREME_ERROR_INVALID_STATE,
                      trireme_optimizer_get_group_norm(optimizer, 0, &norm));
        EXPECT(v, norm == (job->clipped == CLIP_NOTHING ? 0 : sqrt(8)));
    }
    /* Each model has made the two steps without an overflow, and no other one. */
    float values[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, TOTAL, F32));
    EXPECT(v, values[0] == -4 && values[9] == 0);
    /* One model goes back to where the scale was another one. */
    if (part == 1) EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, state, bytes));
    free(state);
    const float zeros[TOTAL] = {0};
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, zeros, TOTAL, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_step(optimizer));
    EXPECT(v, says("learning rate and loss scale"));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(own);
}

static void models_of_norm_ranks_skip_together(void **state) {
    (void)state;
    if (ranks_use_transport()) skip(); /* groups of such ranks are not there yet */
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct job job;
        for (enum clipped clipped = CLIP_ALL; clipped <= CLIP_NOTHING; ++clipped) {
            job = (struct job){.strategy = strategy, .world_size = 4, .dtype = F32};
            job.clipped = clipped;
            run_job(&job, skip_together);
        }
    }
}

/* Two trainings with equal numbers of steps and of skipped steps, but different skipped steps. */
static void mix_saved_parts(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    void *saved[2] = {NULL};
    uint64_t bytes = 0;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    for (int training = 0; training < 2; ++training) {
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
        model = make(v, all, job, 0);
        const trireme_optimizer_options rule = rule_of(1024);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        for (int step = 0; step < 3; ++step) {
            float gradients[TOTAL] = {0};
            if (step == 2 * training) gradients[0] = (float)INFINITY;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(model, gradients, TOTAL, F32, 0));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
        saved[training] = malloc(bytes);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_save(optimizer, saved[training], bytes, NULL));
    }
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_load(optimizer, saved[rank], bytes));
    EXPECT(v, says("steps since the scale changed"));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, saved[0], bytes));
    for (int i = 0; i < 2; ++i) free(saved[i]);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void saved_parts_of_other_trainings_do_not_mix(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1, .world_size = 2, .dtype = F32};
    run_job(&job, mix_saved_parts);
}

static void be_refused(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, all, job, 0);
    trireme_optimizer *optimizer = NULL;
    trireme_optimizer_options rule = rule_of(0);
#define REFUSED(status, words)                                                          \
    do {                                                                                \
        EXPECT_STATUS(v, status, trireme_optimizer_create(model, &rule, &optimizer));   \
        if (!says(words)) EXPECT_STATUS(v, TRIREME_OK, status); /* shows the message */ \
        EXPECT(v, optimizer == NULL);                                                   \
    } while (0)
    const trireme_status invalid = TRIREME_ERROR_INVALID_ARGUMENT;
    static const double firsts[] = {-1, 3, 0x1p65, 0x1p-65, (double)INFINITY, (double)NAN};
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; ++i) {
        rule = rule_of(firsts[i]);
        REFUSED(invalid, "is not a power of two in [2^-64, 2^64]");
    }
#define WRONG(field, ...)                                                 \
    do {                                                                  \
        const double numbers[] = {__VA_ARGS__, INFINITY, NAN};            \
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; ++i) { \
            rule = rule_of(4);                                            \
            loss_scale_of(&rule)->field = numbers[i];                     \
            REFUSED(invalid, "options.loss_scale." #field);               \
        }                                                                 \
    } while (0)
    WRONG(growth_factor, 0.5, -2, 3, 0x1p65);
    WRONG(backoff_factor, 1, 2, -0.5, 0.75, 0x1p-65);
    WRONG(minimum_scale, 8, -1, 3, 0x1p-65);
#undef WRONG
    rule = rule_of(4);
    loss_scale_of(&rule)->flags = 1;
    REFUSED(invalid, "options.loss_scale.flags is 1");
    rule = rule_of(4);
    loss_scale_of(&rule)->struct_size = 4;
    REFUSED(invalid, "options.loss_scale.struct_size is 4");
    rule = rule_of(4);
    rule.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with a loss scale");
    /* Not the same on all ranks. */
    const bool other = rank == 1;
    const trireme_status differs = TRIREME_ERROR_MISMATCH;
    rule = rule_of(other ? 8 : 4);
    REFUSED(differs, "loss_scale.initial_scale is 4 on rank 0 and 8 on rank 1");
    rule = rule_of(other ? 0 : 4);
    REFUSED(differs, "options.loss_scale is set on rank 0 and not set on rank 1");
#define DIFFERS(field, own, others, words)                  \
    do {                                                    \
        rule = rule_of(4);                                  \
        loss_scale_of(&rule)->field = other ? others : own; \
        REFUSED(differs, #field " is " words);              \
    } while (0)
    DIFFERS(growth_factor, 2, 4, "2 on rank 0 and 4 on rank 1");
    DIFFERS(backoff_factor, 0.5, 0.25, "0.5 on rank 0 and 0.25 on rank 1");
    DIFFERS(minimum_scale, 2, 1, "2 on rank 0 and 1 on rank 1");
    DIFFERS(growth_interval, 0, 1, "2000 on rank 0 and 1 on rank 1");
    DIFFERS(hysteresis, 1, 2, "1 on rank 0 and 2 on rank 1");
#undef DIFFERS
#undef REFUSED
    /* All of that left the model as it was. */
    trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
    double scale = 5;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_get_loss_scale(NULL, &scale));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_optimizer_get_loss_scale_info(NULL, &info));
    rule = rule_of(0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_optimizer_get_loss_scale_info(optimizer, &info));
    EXPECT(v, says("created without options.loss_scale") && info.scale == 0);
    EXPECT_STATUS(v, invalid, trireme_optimizer_get_loss_scale(optimizer, NULL));
    EXPECT(v, scale == 5);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale(optimizer, &scale));
    EXPECT(v, scale == 1);
    uint64_t bytes = 0, more = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    void *const state = malloc(bytes);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, bytes, NULL));
    trireme_optimizer_destroy(optimizer);
    /* The least there can be: the floor is no larger. */
    rule = rule_of(0x1p-64);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT_STATUS(v, invalid, trireme_optimizer_get_loss_scale_info(optimizer, NULL));
    info.struct_size = 16;
    EXPECT_STATUS(v, invalid, trireme_optimizer_get_loss_scale_info(optimizer, &info));
    info.struct_size = sizeof info;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
    EXPECT(v, info.scale == 0x1p-64 && info.skipped == 0 && info.at_floor == 0 && info.rank == -1);
    /* State saved without a scale has none to restore. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &more));
    EXPECT(v, more == bytes + 32);
    EXPECT_STATUS(v, invalid, trireme_optimizer_load(optimizer, state, bytes));
    free(state);
    trireme_optimizer_destroy(optimizer);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_optimizer_get_loss_scale(optimizer, &scale));
    trireme_model_destroy(model);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1, .world_size = 2, .dtype = F32};
    run_job(&job, be_refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scaled_training_is_that_of_one_process),
        cmocka_unit_test(beside_other_features_it_is_the_same),
        cmocka_unit_test(a_sum_that_overflows_names_no_rank),
        cmocka_unit_test(a_rank_without_data_follows_skipped_steps),
        cmocka_unit_test(models_of_norm_ranks_skip_together),
        cmocka_unit_test(saved_parts_of_other_trainings_do_not_mix),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
