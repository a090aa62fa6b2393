/*
 * MUON: trained in every strategy, matrices of all shapes get the bits of plain loops over the
 * formula of optimizer.h, and all else those of ADAMW.
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
#define STEPS 4
#define MOST_RANKS 8
#define RATE 0.07
#define EPSILON 0.03

#include "norms.inc"

/* Groups: 0 is of matrices, 1 of those that are none. */
static const struct shape {
    uint32_t dimensions;
    uint64_t extents[3];
    uint32_t group;
} kShapes[] = {{2, {5, 3, 0}, 0}, {1, {11, 0, 0}, 0}, {2, {2, 9, 0}, 0}, {2, {0, 4, 0}, 0},
               {3, {3, 2, 4}, 0}, {2, {3, 5, 0}, 1},  {2, {4, 4, 0}, 0}, {2, {1, 6, 0}, 0},
               {0, {0, 0, 0}, 0}, {2, {7, 1, 0}, 0},  {2, {1, 1, 0}, 0}, {1, {2, 0, 0}, 1}};
enum {
    PARAMETERS = sizeof kShapes / sizeof kShapes[0],
    TOTAL = 15 + 11 + 18 + 24 + 15 + 16 + 6 + 1 + 7 + 1 + 2
};
#include "muon.inc"

static const double kFactors[] = {1, 0.5}, kDecays[] = {0.125, 0.25};
static const uint32_t kFlags[] = {0, TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE};

struct job {
    trireme_strategy strategy;
    int world_size;
    trireme_dtype dtype;
    bool nesterov, match_adamw, grouped;
    bool resumed; /* saved and loaded in the middle */
    bool broken;  /* a gradient of the third parameter is no number in step 1 */
    bool scaled;  /* by a loss scale */
    bool skips;   /* the fifth parameter has no gradient in step 1 */
    bool masters;
    uint32_t orthogonal_steps;
    uint64_t memory_limit;
    struct verdict verdicts[MOST_RANKS];
    double values[MOST_RANKS][TOTAL];
    trireme_model_memory memory[MOST_RANKS];
};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static uint64_t count_of(int parameter) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < kShapes[parameter].dimensions; ++i) {
        count *= kShapes[parameter].extents[i];
    }
    return count;
}
static bool is_matrix(const struct job *job, int parameter) {
    return kShapes[parameter].dimensions > 1 && !(job->grouped && kShapes[parameter].group == 1);
}

/* Sums and means over the ranks are exact in f32. */
static double mean_gradient(const struct job *job, int step, int element) {
    if (job->broken && step == 1 && element == 29) return NAN;
    return (double)((element * 37 + step * 5 + element / 3 * 11) % 23) / 4 - 2.75;
}
static double gradient_of(const struct job *job, int step, int element, int rank) {
    return mean_gradient(job, step, element) +
           ((double)rank - (double)(job->world_size - 1) / 2) * 0.25;
}
static double initial(int element) {
    return (double)((element * 29) % 31) * 0.375 - 3.5;
}

/* ---- plain loops ---- */

static double power(double base, int exponent) {
    double result = 1;
    for (; exponent != 0; exponent /= 2, base *= base) {
        if (exponent % 2 == 1) result *= base;
    }
    return result;
}

DEFINE_ORTHOGONAL(plain_f32_orthogonal, float)
DEFINE_ORTHOGONAL(plain_f64_orthogonal, double)

#define DEFINE_PLAIN(NAME, T, ROOT)                                                         \
    static void NAME(const struct job *job, int parameter, double rate, double decay, T *p, \
                     const T *g, T *m, T *v, int step) {                                    \
        const int count = (int)count_of(parameter);                                         \
        if (!is_matrix(job, parameter)) {                                                   \
            const T size = (T)(rate / (1 - power(0.9, step)));                              \
            const T inverse = (T)(1 / sqrt(1 - power(0.999, step)));                        \
            for (int i = 0; i < count; ++i) {                                               \
                p[i] -= (T)(rate * decay) * p[i];                                           \
                m[i] = (T)0.9 * m[i] + (T)(1 - 0.9) * g[i];                                 \
                v[i] = (T)0.999 * v[i] + (T)(1 - 0.999) * g[i] * g[i];                      \
                p[i] -= size * m[i] / (ROOT(v[i]) * inverse + (T)EPSILON);                  \
            }                                                                               \
            return;                                                                         \
        }                                                                                   \
        const T momentum = (T)0.95, rest = (T)(1 - 0.95);                                   \
        T u[TOTAL];                                                                         \
        for (int i = 0; i < count; ++i) {                                                   \
            m[i] = momentum * m[i] + rest * g[i];                                           \
            u[i] = job->nesterov ? momentum * m[i] + rest * g[i] : m[i];                    \
        }                                                                                   \
        if (count == 0) return;                                                             \
        const int rows = (int)kShapes[parameter].extents[0], columns = count / rows;        \
        NAME##_orthogonal(u, rows, columns,                                                 \
                          job->orthogonal_steps > 0 ? (int)job->orthogonal_steps : 5);      \
        double factor = rows > columns ? sqrt((double)rows / columns) : 1;                  \
        if (job->match_adamw) factor = 0.2 * sqrt(rows > columns ? rows : columns);         \
        for (int i = 0; i < count; ++i) {                                                   \
            p[i] -= (T)(rate * decay) * p[i];                                               \
            p[i] -= (T)rate * (u[i] * (T)factor);                                           \
        }                                                                                   \
    }

DEFINE_PLAIN(plain_f32, float, sqrtf)
DEFINE_PLAIN(plain_f64, double, sqrt)

static float to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value == value) bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void expect_plain(const struct job *job, double *values) {
    static float p32[TOTAL], g32[TOTAL], m32[TOTAL], v32[TOTAL];
    static double p64[TOTAL], g64[TOTAL], m64[TOTAL], v64[TOTAL];
    memset(m32, 0, sizeof m32);
    memset(v32, 0, sizeof v32);
    memset(m64, 0, sizeof m64);
    memset(v64, 0, sizeof v64);
    for (int i = 0; i < TOTAL; ++i) p32[i] = (float)(p64[i] = initial(i));
    int made[PARAMETERS] = {0};
    for (int step = 0; step < STEPS; ++step) {
        for (int i = 0; i < TOTAL; ++i) g32[i] = (float)(g64[i] = mean_gradient(job, step, i));
        int at = 0;
        for (int number = 0; number < PARAMETERS; at += (int)count_of(number++)) {
            if (job->skips && number == 4 && step == 1) continue;
            const int group = (int)kShapes[number].group;
            const double rate = job->grouped ? RATE * kFactors[group] : RATE;
            const double decay = job->grouped ? kDecays[group] : 0.125;
            ++made[number];
            if (job->dtype == F64) {
                plain_f64(job, number, rate, decay, p64 + at, g64 + at, m64 + at, v64 + at,
                          made[number]);
            } else {
                plain_f32(job, number, rate, decay, p32 + at, g32 + at, m32 + at, v32 + at,
                          made[number]);
            }
        }
        for (int i = 0; i < TOTAL && job->dtype == BF16 && !job->masters; ++i) {
            p32[i] = to_bf16(p32[i]);
        }
    }
    for (int i = 0; i < TOTAL; ++i) {
        values[i] = job->dtype == F64 ? p64[i] : (double)p32[i];
        if (job->dtype == BF16) values[i] = (double)to_bf16(p32[i]);
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
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_MUON;
    options.learning_rate = RATE;
    muon_of(&options)->epsilon = EPSILON;
    options.weight_decay = job->grouped ? 0 : 0.125;
    options.flags = job->masters ? TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS : 0;
    if (job->nesterov) muon_of(&options)->flags = TRIREME_MUON_FLAG_NESTEROV;
    muon_of(&options)->orthogonal_steps = job->orthogonal_steps;
    if (job->match_adamw) muon_of(&options)->rate_adjustment = TRIREME_MUON_RATE_MATCH_ADAMW;
    if (job->scaled) loss_scale_of(&options)->initial_scale = 1024;
    if (job->grouped) {
        groups_of(&options, 2);
        set_group_rates(&options, kFactors);
        set_group_decays(&options, kDecays);
        set_group_flags(&options, kFlags);
    }
    return options;
}

static trireme_model *make(struct verdict *v, trireme_communicator *ranks, const struct job *job) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = job->world_size % 2 == 0 ? 1 : 0;
    options.unused = job->skips ? TRIREME_UNUSED_SKIP : TRIREME_UNUSED_ERROR;
    options.memory_limit_bytes = job->memory_limit;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int i = 0; i < PARAMETERS; ++i) {
        char name[] = "p0";
        name[1] = (char)('a' + i);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = job->dtype;
        parameter.dimensions = kShapes[i].dimensions;
        parameter.shape = kShapes[i].dimensions > 0 ? kShapes[i].extents : NULL;
        parameter.parameter_group = job->grouped ? kShapes[i].group : 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static void set_initial(struct verdict *v, const struct job *job, trireme_model *model) {
    double wide[TOTAL];
    float narrow[TOTAL];
    uint16_t stored[TOTAL];
    for (int i = 0; i < TOTAL; ++i) {
        narrow[i] = (float)(wide[i] = initial(i));
        uint32_t bits;
        memcpy(&bits, &narrow[i], sizeof bits);
        stored[i] = (uint16_t)(bits >> 16); /* exact */
    }
    const void *data = job->dtype == F64 ? (const void *)wide : narrow;
    if (job->dtype == BF16) data = stored;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, data, TOTAL, job->dtype, 0));
}

static void make_step(struct verdict *v, const struct job *job, trireme_model *model,
                      trireme_optimizer *optimizer, int step, int rank) {
    const bool wide = job->dtype == F64;
    double g64[TOTAL];
    float g32[TOTAL];
    for (int i = 0; i < TOTAL; ++i) {
        g64[i] = gradient_of(job, step, i, rank) * (job->scaled ? 1024 : 1);
        g32[i] = (float)g64[i];
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    int end = TOTAL;
    for (int number = PARAMETERS - 1; number >= 0; --number) {
        const int first = end - (int)count_of(number);
        end = first;
        if (job->skips && number == 4 && step == 1) continue;
        const void *data = wide ? (const void *)(g64 + first) : g32 + first;
        if (count_of(number) == 0) data = NULL;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, (uint64_t)number, data, count_of(number),
                                                   wide ? F64 : F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
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
    set_initial(v, job, model);
    const trireme_optimizer_options options = options_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    for (int step = 0; step < STEPS; ++step) {
        if (job->resumed && step == 2) resume(v, ranks, job, &model, &optimizer);
        make_step(v, job, model, optimizer, step, rank);
    }
    trireme_model_memory *const memory = &job->memory[rank];
    *memory = (trireme_model_memory)TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, memory));
    EXPECT(v, memory->planned_working == memory->allocated_working);
    EXPECT(v, memory->planned_optimizer_state == memory->allocated_optimizer_state);
    if (!job->skips && job->strategy < TRIREME_STRATEGY_ZERO3) { /* nothing is gathered */
        EXPECT(v, memory->planned_step_bytes == memory->sent_step_bytes);
    }
    double values[TOTAL];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, TOTAL, job->dtype));
    for (size_t i = 0; i < TOTAL; ++i) job->values[rank][i] = value_at(job->dtype, values, i);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void compare(const struct job *job, const double *expected) {
    for (int rank = 0; rank < job->world_size; ++rank) {
        for (int i = 0; i < TOTAL; ++i) {
            if (job->values[rank][i] == expected[i]) continue;
            if (isnan(job->values[rank][i]) && isnan(expected[i])) continue;
            fail_msg("strategy %d, %d ranks, dtype %d, rank %d, element %d: %a, not %a",
                     (int)job->strategy, job->world_size, (int)job->dtype, rank, i,
                     job->values[rank][i], expected[i]);
        }
    }
}

static void train_and_check(struct job *job) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, train, job);
    assert_verdicts(job->verdicts, job->world_size);
    double expected[TOTAL];
    expect_plain(job, expected);
    compare(job, expected);
}

static const int kWorlds[] = {1, 2, 3, 4, 5, 8};
enum { WORLDS = sizeof kWorlds / sizeof kWorlds[0] };

static void every_strategy_gives_the_bits_of_plain_loops(void **state) {
    (void)state;
    static const trireme_dtype dtypes[] = {F32, F64, BF16};
    int turn = 0;
    for (int w = 0; w < WORLDS; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (is_quick() && (w + strategy) % 3 != 0) continue;
            ++turn;
            static struct job job;
            job = (struct job){.strategy = strategy, .world_size = kWorlds[w]};
            job.dtype = dtypes[turn % 3];
            job.nesterov = turn % 2 == 0;
            job.match_adamw = turn % 5 < 2;
            job.grouped = turn % 4 < 2;
            job.resumed = turn % 7 < 3;
            job.scaled = turn % 5 == 3;
            job.skips = turn % 5 == 1;
            job.masters = job.dtype == BF16 && turn % 4 == 1;
            job.orthogonal_steps = turn % 3 == 1 ? 3 : 0;
            train_and_check(&job);
        }
    }
}

/* It spoils its own matrix, on all ranks, and nothing else. */
static void a_gradient_that_is_no_number_stays_with_its_matrix(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        static struct job job;
        job = (struct job){.strategy = strategy, .world_size = 3, .dtype = F32, .broken = true};
        train_and_check(&job);
        for (int i = 0; i < TOTAL; ++i) {
            assert_int_equal(isnan(job.values[0][i]) != 0, i >= 26 && i < 44);
        }
    }
}

/* ---- state ---- */

/* A training that one world began goes on in another one: all by ranges. */
struct move {
    struct job from, to;
    double parameters[TOTAL], state[2][TOTAL];
    bool kept[2][TOTAL];
};

static uint64_t first_of(uint64_t parameter) {
    uint64_t first = 0;
    for (uint64_t i = 0; i < parameter; ++i) first += count_of((int)i);
    return first;
}

static void give(trireme_communicator *ranks, int rank, void *context) {
    struct move *const move = context;
    struct job *const job = &move->from;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, ranks, job);
    set_initial(v, job, model);
    const trireme_optimizer_options options = options_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    for (int step = 0; step < 2; ++step) make_step(v, job, model, optimizer, step, rank);
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    for (uint64_t i = 0; i < count; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
        const uint64_t first = first_of(range.parameter) + range.first;
        const bool own = range.kind == TRIREME_STATE_KIND_PARAMETER;
        if (!EXPECT(v, range.vector < 2 && first + range.count <= TOTAL)) break;
        double *const to = own ? move->parameters : move->state[range.vector];
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_read_range(optimizer, i, to + first, range.count * 8));
        for (uint64_t k = 0; k < range.count && !own; ++k) {
            EXPECT(v, !move->kept[range.vector][first + k]); /* one owner */
            move->kept[range.vector][first + k] = true;
        }
    }
    /* The others go on with the steps they know. */
    for (int step = 2; step < STEPS; ++step) make_step(v, job, model, optimizer, step, rank);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->values[rank], TOTAL, F64));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void take(trireme_communicator *ranks, int rank, void *context) {
    struct move *const move = context;
    struct job *const job = &move->to;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, ranks, job);
    const trireme_optimizer_options options = options_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    /* Whatever these leave is written over, but for their number. */
    for (int step = 0; step < 2; ++step) make_step(v, job, model, optimizer, step + 5, rank);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, move->parameters, TOTAL, F64, 0));
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    for (uint64_t i = 0; i < count; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
        const uint64_t first = first_of(range.parameter) + range.first;
        if (range.kind != TRIREME_STATE_KIND_OPTIMIZER || !EXPECT(v, range.vector < 2)) continue;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_write_range(optimizer, i, move->state[range.vector] + first,
                                                    range.count * 8));
    }
    for (int step = 2; step < STEPS; ++step) make_step(v, job, model, optimizer, step, rank);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->values[rank], TOTAL, F64));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void ranges_move_to_another_world(void **state) {
    (void)state;
    static const int worlds[][2] = {{3, 2}, {1, 5}, {4, 1}};
    for (int pair = 0; pair < 3; ++pair) {
        for (int strategy = 2; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            static struct move move;
            memset(&move, 0, sizeof move);
            /* data_parallel keeps copies, which a range does not reach: it only gives. */
            move.from = (struct job){.strategy = 1 + strategy % 5, .dtype = F64, .grouped = true};
            move.to = (struct job){.strategy = strategy, .dtype = F64, .grouped = true};
            move.from.world_size = worlds[pair][0];
            move.to.world_size = worlds[pair][1];
            run_ranks(move.from.world_size, give, &move);
            assert_verdicts(move.from.verdicts, move.from.world_size);
            int at = 0;
            for (int number = 0; number < PARAMETERS; at += (int)count_of(number++)) {
                for (int i = at; i < at + (int)count_of(number); ++i) {
                    assert_true(move.kept[0][i]);
                    assert_int_equal(move.kept[1][i], !is_matrix(&move.from, number));
                }
            }
            run_ranks(move.to.world_size, take, &move);
            assert_verdicts(move.to.verdicts, move.to.world_size);
            double expected[TOTAL];
            expect_plain(&move.from, expected);
            compare(&move.from, expected);
            compare(&move.to, expected);
        }
    }
}

static void state_is_a_vector_of_matrices_and_two_of_others(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL, .world_size = 2, .dtype = F32};
    train_and_check(&job);
    uint64_t vectors = 0;
    for (int number = 0; number < PARAMETERS; ++number) {
        vectors += count_of(number) * (is_matrix(&job, number) ? 1 : 2);
    }
    assert_int_equal(job.memory[0].allocated_optimizer_state, vectors * 4);
    job.strategy = TRIREME_STRATEGY_ZERO3;
    train_and_check(&job);
    assert_int_equal(job.memory[0].allocated_optimizer_state +
                         job.memory[1].allocated_optimizer_state,
                     vectors * 4);
}

/* ---- refusals ---- */

static void be_refused(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, ranks, job);
    trireme_optimizer *optimizer = NULL;
    trireme_optimizer_options options = options_of(job);
#define REFUSED(status, words)                                                             \
    do {                                                                                   \
        EXPECT_STATUS(v, (status), trireme_optimizer_create(model, &options, &optimizer)); \
        if (!says(words)) expect_failed(v, __FILE__, __LINE__, trireme_last_error());      \
        options = options_of(job);                                                         \
    } while (0)
    const uint32_t wrong[] = {0, 2}, right[] = {0, 1}, other[] = {0, 0};
    muon_of(&options)->orthogonal_steps = 100;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.rule.orthogonal_steps 100 is above 99");
    muon_of(&options)->rate_adjustment = 2;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT,
            "options.rule.rate_adjustment 2 is no TRIREME_MUON_RATE_*");
    muon_of(&options)->rate_adjustment = -1;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.rule.rate_adjustment -1");
    set_group_flags(&options, wrong);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.groups[1].flags 2 has a bit");
    muon_of(&options)->momentum = 1;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.rule.momentum 1 is not in [0, 1)");
    muon_of(&options)->beta1 = 1;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.rule.beta1 1 is not in (0, 1)");
    muon_of(&options)->flags = 2;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.rule.flags 2");
    muon_of(&options)->reserved = 1;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.rule.reserved is 1");
    options.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "ONE_SWEEP with muon");
    state_file_of(&options)->path = "/tmp";
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "options.offload with muon");
    groups_of(&options, 1);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "parameter_group 1 of parameter");
    /* Options that other rules do not have. */
    options.kind = TRIREME_RULE_ADAMW;
    options.rule = NULL;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT,
            "options.groups[1].flags 1 means nothing to adamw; leave it 0");
    /* Options on which the ranks must agree. */
    muon_of(&options)->orthogonal_steps = rank == 1 ? 4 : 0;
    REFUSED(TRIREME_ERROR_MISMATCH, "orthogonal_steps is 5 on rank 0 and 4 on rank 1");
    muon_of(&options)->rate_adjustment = rank == 1 ? TRIREME_MUON_RATE_MATCH_ADAMW : 0;
    REFUSED(TRIREME_ERROR_MISMATCH,
            "rate_adjustment is original on rank 0 and match_adamw on rank 1");
    set_group_flags(&options, rank == 1 ? other : right);
    REFUSED(TRIREME_ERROR_MISMATCH, "groups[1].flags is 1 on rank 0 and 0 on rank 1");
    if (rank == 1) muon_of(&options)->flags = TRIREME_MUON_FLAG_NESTEROV;
    REFUSED(TRIREME_ERROR_MISMATCH, "nesterov is off on rank 0 and on on rank 1");
    EXPECT(v, optimizer == NULL);
    /* All of that left the model as it was. State is of the same matrices only. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    void *const saved = malloc(bytes + 1);
    if (saved == NULL) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, saved, bytes, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, saved, bytes));
    make_step(v, job, model, optimizer, 0, rank);
    trireme_optimizer_destroy(optimizer);
    set_group_flags(&options, other);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_load(optimizer, saved, bytes));
    EXPECT(v, says("update rule"));
    free(saved);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void what_it_does_not_know_is_refused(void **state) {
    (void)state;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1, .world_size = 2, .dtype = F32};
    job.grouped = true;
    run_ranks(2, be_refused, &job);
    assert_verdicts(job.verdicts, 2);
}

static void be_too_large(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, ranks, job);
    trireme_optimizer *optimizer = NULL;
    trireme_optimizer_options options = options_of(job);
    EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY,
                  trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("memory_limit_bytes is"));
    EXPECT(v, optimizer == NULL);
    /* ADAMW needs more state, but no matrix. */
    options = (trireme_optimizer_options)TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAMW;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_limit_of_memory_counts_its_matrices(void **state) {
    (void)state;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        static struct job job;
        job = (struct job){.strategy = strategy, .world_size = 2, .dtype = F32};
        train_and_check(&job);
        uint64_t most = 0;
        for (int rank = 0; rank < 2; ++rank) {
            const trireme_model_memory *const m = &job.memory[rank];
            const uint64_t all = m->planned_parameters + m->planned_gradients + m->planned_working +
                                 m->planned_optimizer_state;
            if (all > most) most = all;
        }
        job.memory_limit = most;
        train_and_check(&job);
        job.memory_limit = most - 1;
        run_ranks(2, be_too_large, &job);
        assert_verdicts(job.verdicts, 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_gives_the_bits_of_plain_loops),
        cmocka_unit_test(a_gradient_that_is_no_number_stays_with_its_matrix),
        cmocka_unit_test(ranges_move_to_another_world),
        cmocka_unit_test(state_is_a_vector_of_matrices_and_two_of_others),
        cmocka_unit_test(what_it_does_not_know_is_refused),
        cmocka_unit_test(a_limit_of_memory_counts_its_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
