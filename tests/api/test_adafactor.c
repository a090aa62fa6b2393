/*
 * ADAFACTOR: plain formulas after many steps, and the same bits for every strategy and number of
 * ranks. State moves to another number of ranks, and wrong options are refused.
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

#define F16 TRIREME_DTYPE_F16
#define BF16 TRIREME_DTYPE_BF16
#define F32 TRIREME_DTYPE_F32
#define F64 TRIREME_DTYPE_F64
#define MOST_RANKS 8
#define STEPS 4
#define MOVED_AT 2
#define MANY_STEPS 100
#define SOME_STEPS 20
#define RATE 0.07
#define TOTAL 144 /* elements of all parameters */

/* Matrices, one of them of no elements, a scalar, a vector, a tensor, thin ones, one of zeros at
 * first, and a frozen one. */
static const struct {
    uint32_t dimensions;
    uint64_t shape[3];
    int first, rows, columns; /* 0 rows: no matrix */
} kParameters[] = {{2, {5, 7}, 0, 5, 7},   {2, {0, 3}, 35, 0, 0},    {0, {0}, 35, 0, 0},
                   {1, {11}, 36, 0, 0},    {3, {3, 2, 4}, 47, 3, 8}, {2, {1, 9}, 71, 1, 9},
                   {2, {9, 1}, 80, 9, 1},  {2, {2, 2}, 89, 2, 2},    {2, {13, 3}, 93, 13, 3},
                   {2, {2, 3}, 132, 2, 3}, {1, {6}, 138, 0, 0}};
enum { PARAMETERS = sizeof kParameters / sizeof kParameters[0], ZEROS = 7, FROZEN = 9, TENSOR = 4 };

static int elements_of(int p) {
    return (p + 1 < PARAMETERS ? kParameters[p + 1].first : TOTAL) - kParameters[p].first;
}

/* The contents of all ranks' ranges. */
enum { VALUES, SQUARES, MASTERS, ROWS, COLUMNS, SLOTS };
struct image {
    double numbers[SLOTS][TOTAL];
    int seen[SLOTS][TOTAL];
};

struct job {
    trireme_strategy strategy;
    int world_size;
    trireme_dtype dtype;
    bool mixed; /* one parameter is of f64, whatever dtype is */
    bool no_vectors;
    bool resumed; /* saved and loaded in the middle */
    bool grouped, scaled, clipped, skips, masters, random, broken;
    bool shared;
    int written;     /* in the middle parameters are set: 1, or written: 2 */
    int from, steps; /* 0 steps: STEPS */
    double decay;
    double beta2_decay, epsilon, max_update, min_parameter;
    const struct image *moved; /* of another number of ranks after `from` steps */
    struct image image;
    uint64_t state_bytes[MOST_RANKS];
    struct verdict verdicts[MOST_RANKS];
};

static const double kFactors[] = {1, 0.5, 1.5}, kDecays[] = {0, 0.25, 0.125};

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

/* Sums and means over the ranks are exact in f32. Rows are of different sizes, one of zeros. */
static double mean_gradient(const struct job *job, int step, int element) {
    if (job->broken && step == 1 && element == 50) return NAN;
    if (element >= 7 && element < 14) return 0;
    const double size = element % 5 == 0 ? 0.125 : element < 93 ? 1 : 16;
    return ((double)((element * 37 + step * 5) % 23) / 4 - 2.75) * size;
}

static double gradient_of(const struct job *job, int step, int element, int rank) {
    return mean_gradient(job, step, element) +
           ((double)rank - (double)(job->world_size - 1) / 2) * 0.25;
}

static double initial(int element) {
    const bool zero = element >= kParameters[ZEROS].first && element < kParameters[ZEROS + 1].first;
    return zero ? 0 : (double)((element * 29) % 31) * 0.375 - 3.5;
}

static bool is_used(const struct job *job, int step, int p) {
    return !job->skips || (p + step) % 3 != 0;
}

/* ---- plain loops ---- */

typedef long double real;

static real root_mean_square(const real *values, int count) {
    real sum = 0;
    for (int i = 0; i < count; ++i) sum += values[i] * values[i];
    return sqrtl(sum / count);
}

static void plain_step(const struct job *job, int p, int step, real *values, real *squares,
                       real *rows, real *columns) {
    const int count = elements_of(p), height = kParameters[p].rows, width = kParameters[p].columns;
    const double rate = job->grouped ? RATE * kFactors[p % 3] : RATE;
    const double decay = job->grouped ? kDecays[p % 3] : job->decay;
    const double eps = job->epsilon > 0 ? job->epsilon : job->dtype == F64 ? 0x1p-52 : 0x1p-23;
    const double d = job->max_update > 0 ? job->max_update : 1;
    const double eps2 = job->min_parameter > 0 ? job->min_parameter : 0.001;
    const real w = powl(step, (real)(job->beta2_decay != 0 ? job->beta2_decay : -0.8));
    real g[TOTAL], u[TOTAL], mean = 0;
    for (int i = 0; i < count; ++i) {
        g[i] = (real)mean_gradient(job, step - 1, kParameters[p].first + i);
    }
    for (int i = 0; i < height; ++i) {
        real sum = 0;
        for (int j = 0; j < width; ++j) sum += g[i * width + j] * g[i * width + j];
        rows[i] = (1 - w) * rows[i] + w * sum / width;
        mean += rows[i] / height;
    }
    for (int j = 0; j < width; ++j) {
        real sum = 0;
        for (int i = 0; i < height; ++i) sum += g[i * width + j] * g[i * width + j];
        columns[j] = (1 - w) * columns[j] + w * sum / height;
    }
    for (int i = 0; i < count; ++i) {
        if (height == 0) squares[i] = (1 - w) * squares[i] + w * g[i] * g[i];
        const real v = height == 0 ? squares[i]
                                   : rows[i / width] * columns[i % width] / fmaxl(mean, (real)eps);
        u[i] = g[i] / sqrtl(fmaxl(v, (real)eps * (real)eps));
    }
    const real alpha =
        fmaxl((real)eps2, root_mean_square(values, count)) * fminl((real)rate, 1 / sqrtl(step));
    const real length = alpha / fmaxl(1, root_mean_square(u, count) / (real)d);
    for (int i = 0; i < count; ++i) {
        values[i] *= 1 - (real)rate * (real)decay;
        values[i] -= length * u[i];
    }
}

static void expect_near(const struct job *job, int steps, double tolerance) {
    static real values[TOTAL], squares[TOTAL], rows[TOTAL], columns[TOTAL];
    for (int p = 0; p < PARAMETERS; ++p) {
        if (p == FROZEN || elements_of(p) == 0) continue;
        const int first = kParameters[p].first, count = elements_of(p);
        for (int i = 0; i < count; ++i) {
            values[i] = (real)initial(first + i);
            squares[i] = rows[i] = columns[i] = 0;
        }
        for (int step = 1; step <= steps; ++step) {
            plain_step(job, p, step, values, squares, rows, columns);
        }
        const struct {
            int slot, count;
            const real *expected;
        } all[] = {{VALUES, count, values},
                   {SQUARES, kParameters[p].rows == 0 ? count : 0, squares},
                   {ROWS, kParameters[p].rows, rows},
                   {COLUMNS, kParameters[p].columns, columns}};
        for (int a = 0; a < 4; ++a) {
            for (int i = 0; i < all[a].count; ++i) {
                const double expected = (double)all[a].expected[i];
                const double found = job->image.numbers[all[a].slot][first + i];
                if (fabs(found - expected) <= tolerance * (1 + fabs(expected))) continue;
                fail_msg("slot %d of parameter %d, element %d: %.17g is not near %.17g",
                         all[a].slot, p, i, found, expected);
            }
        }
    }
}

/* ---- the library ---- */

static uint64_t size_of(trireme_dtype dtype) {
    return dtype == F64 ? 8 : dtype == F32 ? 4 : 2;
}

/* Of 16 bits only their code, which is a number, too. */
static double number_at(trireme_dtype dtype, const void *values, uint64_t i) {
    if (dtype == F64) return ((const double *)values)[i];
    if (dtype == F32) return (double)((const float *)values)[i];
    return ((const uint16_t *)values)[i];
}

static void put_number(trireme_dtype dtype, double value, void *values, uint64_t i) {
    if (dtype == F64) {
        ((double *)values)[i] = value;
    } else if (dtype == F32) {
        ((float *)values)[i] = (float)value;
    } else {
        ((uint16_t *)values)[i] = (uint16_t)value;
    }
}

/* Those of initial() are exact in every type. */
static double code_of(trireme_dtype dtype, double value) {
    if (dtype == F64 || dtype == F32 || value == 0) return value;
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    if (dtype == BF16) return bits >> 16;
    return (bits >> 31) << 15 | (((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
}

static trireme_dtype dtype_of(const struct job *job, int p) {
    return job->mixed && p == TENSOR ? F64 : job->dtype;
}

static trireme_optimizer_options options_of(const struct job *job) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAFACTOR;
    options.learning_rate = RATE;
    options.weight_decay = job->grouped ? 0 : job->decay;
    adafactor_of(&options)->beta2_decay = job->beta2_decay;
    set_epsilon(&options, job->epsilon);
    adafactor_of(&options)->max_update_rms = job->max_update;
    adafactor_of(&options)->min_parameter_rms = job->min_parameter;
    if (job->scaled) loss_scale_of(&options)->initial_scale = 1024;
    if (job->clipped) clipping_of(&options)->max_norm = 100;
    if (job->masters) options.flags |= TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
    if (job->random) {
        options.flags |= TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
        options.rounding_seed = 5;
    }
    if (job->grouped) {
        groups_of(&options, 3);
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
    options.unused = job->skips ? TRIREME_UNUSED_SKIP : 0;
    shards_of(&options)->share = job->shared ? TRIREME_SHARE_ALWAYS : TRIREME_SHARE_NEVER;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int p = 0; p < PARAMETERS; ++p) {
        char name[8];
        snprintf(name, sizeof name, "p%d", p);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = dtype_of(job, p);
        parameter.dimensions = kParameters[p].dimensions;
        parameter.shape = kParameters[p].shape;
        parameter.parameter_group = job->grouped ? (uint32_t)p % 3 : 0;
        if (p == FROZEN || (job->no_vectors && kParameters[p].rows == 0)) {
            parameter.flags = TRIREME_PARAMETER_FLAG_FROZEN;
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static void
set_values(struct verdict *v, const struct job *job, trireme_model *model, const double *numbers) {
    double memory[TOTAL];
    for (int i = 0; i < TOTAL; ++i) put_number(job->dtype, numbers[i], memory, (uint64_t)i);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, memory, TOTAL, job->dtype, 0));
}

static void
backward(struct verdict *v, const struct job *job, trireme_model *model, int step, int rank) {
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (int p = PARAMETERS; p-- > 0;) {
        if (p == FROZEN || (job->no_vectors && kParameters[p].rows == 0)) continue;
        if (!is_used(job, step, p)) continue;
        const trireme_dtype given = dtype_of(job, p) == F64 ? F64 : F32;
        double memory[TOTAL];
        for (int i = 0; i < elements_of(p); ++i) {
            const double g = gradient_of(job, step, kParameters[p].first + i, rank);
            put_number(given, g * (job->scaled ? 1024 : 1), memory, (uint64_t)i);
        }
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, (uint64_t)p, memory,
                                                   (uint64_t)elements_of(p), given));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

static int slot_of(const trireme_state_range *range) {
    switch (range->kind) {
        case TRIREME_STATE_KIND_ROWS: return ROWS;
        case TRIREME_STATE_KIND_COLUMNS: return COLUMNS;
        case TRIREME_STATE_KIND_OPTIMIZER: return range->vector == 0 ? SQUARES : MASTERS;
        default: return VALUES;
    }
}

/* Reads the ranges of this rank into `to`, or writes the state from `from`. */
static void visit_ranges(struct verdict *v, const struct job *job, trireme_optimizer *optimizer,
                         struct image *to, const struct image *from) {
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    int before = 0;
    for (uint64_t r = 0; r < count; ++r) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, r, &range));
        const int p = (int)range.parameter, slot = slot_of(&range);
        if (!EXPECT(v, p < PARAMETERS && range.count > 0 && range.kind >= before)) return;
        before = range.kind;
        uint64_t most = (uint64_t)elements_of(p);
        if (slot == ROWS || slot == COLUMNS) {
            most = (uint64_t)(slot == ROWS ? kParameters[p].rows : kParameters[p].columns);
            EXPECT(v, range.dimensions == 1 && range.shape[0] == most && range.vector == 0);
        } else {
            EXPECT(v, range.dimensions == kParameters[p].dimensions);
        }
        if (slot == SQUARES) EXPECT(v, kParameters[p].rows == 0);
        if (!EXPECT(v, range.first + range.count <= most)) return;
        EXPECT(v, range.dtype == (dtype_of(job, p) == F64 ? F64
                                  : slot == VALUES        ? dtype_of(job, p)
                                                          : F32));
        double memory[TOTAL];
        const uint64_t bytes = range.count * size_of(range.dtype);
        for (uint64_t i = 0; i < range.count; ++i) {
            const uint64_t at = (uint64_t)kParameters[p].first + range.first + i;
            if (to != NULL) {
                to->numbers[slot][at] = number_at(range.dtype, range.data, i);
                __atomic_add_fetch(&to->seen[slot][at], 1, __ATOMIC_RELAXED);
            } else {
                put_number(range.dtype, from->numbers[slot][at], memory, i);
            }
        }
        /* By both ways, in turns. */
        if (from == NULL || slot == VALUES) continue;
        if (r % 2 == 0) {
            memcpy(range.data, memory, bytes);
        } else {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_write_range(optimizer, r, memory, bytes));
        }
    }
}

/* Parameters alone; only their owner has a copy. */
static void write_values(struct verdict *v, const struct job *job, trireme_optimizer *optimizer) {
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    for (uint64_t r = 0; r < count; ++r) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, r, &range));
        if (range.kind != TRIREME_STATE_KIND_PARAMETER) continue;
        for (uint64_t i = 0; i < range.count; ++i) {
            const int at = kParameters[range.parameter].first + (int)(range.first + i);
            put_number(range.dtype, code_of(job->dtype, -initial(at)), range.data, i);
        }
    }
}

static void check_memory(struct verdict *v, struct job *job, trireme_model *model, int rank) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_optimizer_state == memory.allocated_optimizer_state);
    EXPECT(v, memory.planned_working == memory.allocated_working);
    job->state_bytes[rank] = memory.planned_optimizer_state;
}

/* A new model and optimizer that go on where the old ones ended. */
static void resume(struct verdict *v, trireme_communicator *ranks, const struct job *job,
                   trireme_model **model, trireme_optimizer **optimizer) {
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(*optimizer, &bytes));
    void *const state = malloc(bytes);
    if (state == NULL) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(*optimizer, state, bytes, NULL));
    trireme_optimizer_destroy(*optimizer);
    trireme_model_destroy(*model);
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
    double start[TOTAL];
    for (int i = 0; i < TOTAL; ++i) start[i] = code_of(job->dtype, initial(i));
    if (!job->mixed) set_values(v, job, model, start);
    const trireme_optimizer_options options = options_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    check_memory(v, job, model, rank);
    const int steps = job->steps > 0 ? job->steps : STEPS;
    for (int step = 0; step < steps; ++step) {
        if (job->moved != NULL && step == job->from) {
            /* Of the steps before these only their number is left. */
            set_values(v, job, model, job->moved->numbers[VALUES]);
            visit_ranges(v, job, optimizer, NULL, job->moved);
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        }
        if (job->written == 1 && step == MOVED_AT) {
            for (int i = 0; i < TOTAL; ++i) start[i] = code_of(job->dtype, -initial(i));
            set_values(v, job, model, start);
        }
        if (job->written == 2 && step == MOVED_AT) {
            write_values(v, job, optimizer);
            EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(ranks, NULL));
        }
        if (job->resumed && step == MOVED_AT) resume(v, ranks, job, &model, &optimizer);
        const bool other = job->moved != NULL && step < job->from;
        backward(v, job, model, other ? step + 7 : step, rank);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    visit_ranges(v, job, optimizer, &job->image, NULL);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static int expected_of(const struct job *job, int slot, int p) {
    const int rows = kParameters[p].rows, count = elements_of(p);
    const bool frozen = p == FROZEN || (job->no_vectors && rows == 0);
    if (slot == VALUES) return count;
    if (frozen || (slot == MASTERS && !job->masters)) return 0;
    if (slot == MASTERS) return dtype_of(job, p) == F64 ? 0 : count;
    if (slot == SQUARES) return rows == 0 ? count : 0;
    return slot == ROWS ? rows : kParameters[p].columns;
}

static void run_job(struct job *job) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    memset(&job->image, 0, sizeof job->image);
    run_ranks(job->world_size, train, job);
    assert_verdicts(job->verdicts, job->world_size);
    for (int slot = 0; slot < SLOTS; ++slot) {
        for (int p = 0; p < PARAMETERS; ++p) {
            for (int i = 0; i < elements_of(p); ++i) {
                assert_int_equal(job->image.seen[slot][kParameters[p].first + i],
                                 i < expected_of(job, slot, p));
            }
        }
    }
}

/* Bit by bit; every NaN is the same one. */
static void assert_same(const struct job *job, const struct job *expected, const char *what) {
    for (int slot = 0; slot < SLOTS; ++slot) {
        for (int i = 0; i < TOTAL; ++i) {
            const double found = job->image.numbers[slot][i];
            const double wanted = expected->image.numbers[slot][i];
            if (memcmp(&found, &wanted, sizeof found) == 0) continue;
            fail_msg("%s, strategy %d, %d ranks, dtype %d, slot %d, element %d: %a, not %a", what,
                     (int)job->strategy, job->world_size, (int)job->dtype, slot, i, found, wanted);
        }
    }
}

static const int kWorlds[] = {2, 3, 4, 5, 8};
enum { WORLDS = sizeof kWorlds / sizeof kWorlds[0] };

/* Every way trains to the result of one rank with data_parallel. One in four, under a sanitizer in
 * eight. */
static void check_everywhere(const struct job *plain, const char *what) {
    static struct job alone, job;
    alone = *plain;
    alone.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
    alone.world_size = 1;
    alone.resumed = alone.shared = false;
    run_job(&alone);
    static int turn = 0;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        for (int w = 0; w < WORLDS; ++w) {
            if ((++turn + w) % (is_quick() ? 8 : 4) != 0) continue;
            job = *plain;
            job.strategy = strategy;
            job.world_size = kWorlds[w];
            job.shared = strategy != TRIREME_STRATEGY_DATA_PARALLEL && turn % 3 == 0 &&
                         !ranks_use_transport();
            job.resumed = turn % 5 < 2;
            run_job(&job);
            assert_same(&job, &alone, what);
        }
    }
}

static void every_strategy_gives_the_same_bits(void **state) {
    (void)state;
    check_everywhere(&(struct job){.dtype = F32, .decay = 0.125}, "f32");
    check_everywhere(&(struct job){.dtype = F64}, "f64");
    check_everywhere(&(struct job){.dtype = BF16}, "bf16");
    check_everywhere(&(struct job){.dtype = F16, .decay = 0.125}, "f16");
    check_everywhere(&(struct job){.dtype = F32, .mixed = true}, "f32 and f64");
    check_everywhere(&(struct job){.dtype = BF16, .mixed = true, .masters = true}, "mixed masters");
}

static void other_features_go_with_it(void **state) {
    (void)state;
    check_everywhere(&(struct job){.dtype = F32, .grouped = true, .skips = true}, "groups, skips");
    check_everywhere(&(struct job){.dtype = F64, .clipped = true, .decay = 0.5}, "clipped");
    check_everywhere(&(struct job){.dtype = F32, .scaled = true, .clipped = true}, "loss scale");
    check_everywhere(&(struct job){.dtype = F16, .masters = true, .decay = 0.125}, "masters");
    check_everywhere(&(struct job){.dtype = BF16, .random = true}, "stochastic rounding");
    check_everywhere(&(struct job){.dtype = F32, .broken = true}, "NaN");
}

/* A gradient that is no number makes its matrix NaN, and nothing else. */
static void a_broken_gradient_breaks_its_parameter(void **state) {
    (void)state;
    static struct job job, whole;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3, .world_size = 3, .dtype = F32};
    whole = job;
    job.broken = true;
    run_job(&job);
    run_job(&whole);
    for (int i = 0; i < TOTAL; ++i) {
        const bool broken = i >= kParameters[TENSOR].first && i < kParameters[TENSOR + 1].first;
        if (broken) {
            assert_true(isnan(job.image.numbers[VALUES][i]));
        } else {
            assert_true(job.image.numbers[VALUES][i] == whole.image.numbers[VALUES][i]);
        }
    }
    for (int i = 0; i < kParameters[TENSOR].rows; ++i) {
        assert_true(isnan(job.image.numbers[ROWS][kParameters[TENSOR].first + i]));
    }
}

static void many_steps_follow_the_formula(void **state) {
    (void)state;
    const struct job jobs[] =
        {{.dtype = F64},
         {.dtype = F32},
         {.dtype = F64, .decay = 0.125, .beta2_decay = -0.5, .max_update = 0.5},
         {.dtype = F32, .decay = 0.125, .epsilon = 1e-30, .min_parameter = 2},
         {.dtype = F64, .grouped = true, .epsilon = 0.5, .max_update = 100},
         {.dtype = F32, .grouped = true, .beta2_decay = -1.25}};
    for (size_t i = 0; i < sizeof jobs / sizeof jobs[0]; ++i) {
        static struct job job;
        job = jobs[i];
        job.strategy = i % 2 == 0 ? TRIREME_STRATEGY_ZERO2 : TRIREME_STRATEGY_ZERO3;
        job.world_size = 2;
        job.steps = i < 2 ? MANY_STEPS : SOME_STEPS;
        run_job(&job);
        expect_near(&job, job.steps, job.dtype == F64 ? 1e-12 : 1e-5);
    }
}

/* Its norm is that of the written values, too. */
static void a_master_begins_anew_where_its_parameter_was_written(void **state) {
    (void)state;
    for (int masters = 0; masters <= 1; ++masters) {
        static struct job jobs[2];
        for (int i = 0; i < 2; ++i) {
            jobs[i] = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                                   .world_size = 3,
                                   .dtype = masters != 0 ? BF16 : F32,
                                   .masters = masters != 0,
                                   .written = 1 + i};
            run_job(&jobs[i]);
        }
        assert_same(&jobs[1], &jobs[0], "written");
    }
}

/* The ranges of one number of ranks go on with another: rows and columns with every strategy, and
 * vectors where a rank has no copy of the others' elements. */
static void ranges_go_on_with_other_ranks(void **state) {
    (void)state;
    static const int moves[][2] = {{1, 3}, {3, 2}, {4, 1}, {2, 5}, {5, 4}};
    for (int m = 0; m < (is_quick() ? 2 : 5); ++m) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if ((m + strategy) % 2 != 0) continue;
            static struct job from, job, whole;
            from = (struct job){.strategy = (strategy + m) % TRIREME_STRATEGY_HYBRID_SHARD + 1,
                                .world_size = moves[m][0],
                                .steps = MOVED_AT,
                                .dtype = m % 2 == 0 ? F64 : F32,
                                .decay = 0.125,
                                .no_vectors = strategy == TRIREME_STRATEGY_DATA_PARALLEL};
            if (strategy == TRIREME_STRATEGY_ZERO2) {
                from.dtype = BF16;
                from.masters = true;
            }
            whole = job = from;
            whole.steps = job.steps = 0;
            run_job(&from);
            run_job(&whole);
            job.strategy = strategy;
            job.world_size = moves[m][1];
            job.moved = &from.image;
            job.from = MOVED_AT;
            run_job(&job);
            assert_same(&job, &whole, "moved");
        }
    }
}

/* A matrix takes as many numbers as it has rows and columns, spread over all ranks. */
static void state_is_small(void **state) {
    (void)state;
    int vectors = 0, matrices = 0;
    for (int p = 0; p < PARAMETERS; ++p) {
        if (p == FROZEN) continue;
        if (kParameters[p].rows == 0) vectors += elements_of(p);
        matrices += kParameters[p].rows + kParameters[p].columns;
    }
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        for (int world = 1; world <= 4; world += 3) {
            static struct job job;
            job = (struct job){.strategy = strategy, .world_size = world, .dtype = F32, .steps = 1};
            run_job(&job);
            uint64_t bytes = 0;
            for (int rank = 0; rank < world; ++rank) bytes += job.state_bytes[rank];
            const int copies = strategy == TRIREME_STRATEGY_DATA_PARALLEL ? world : 1;
            assert_int_equal(bytes, 4 * (copies * vectors + matrices));
        }
    }
}

/* ---- refusals ---- */

static void be_refused(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, ranks, job);
    trireme_optimizer *optimizer = NULL;
    const struct {
        double epsilon, decay, most, least;
        const char *words;
    } wrong[] = {{-1, 0, 0, 0, "options.rule.epsilon -1 is not finite and 0 or more"},
                 {0, 0.5, 0, 0, "options.rule.beta2_decay 0.5 is not finite and below 0"},
                 {0, -INFINITY, 0, 0, "options.rule.beta2_decay -inf is not finite and below 0"},
                 {0, NAN, 0, 0, "options.rule.beta2_decay nan"},
                 {0, 0, -1, 0, "options.rule.max_update_rms -1 is not finite and above 0"},
                 {0, 0, INFINITY, 0, "options.rule.max_update_rms inf is not finite and above 0"},
                 {0, 0, 0, NAN, "options.rule.min_parameter_rms nan"},
                 {0, 0, 0, -0.5, "options.rule.min_parameter_rms -0.5 is not finite and above 0"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
        adafactor_of(&options)->epsilon = wrong[i].epsilon;
        adafactor_of(&options)->beta2_decay = wrong[i].decay;
        adafactor_of(&options)->max_update_rms = wrong[i].most;
        adafactor_of(&options)->min_parameter_rms = wrong[i].least;
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_optimizer_create(model, &options, &optimizer));
        if (!EXPECT(v, says(wrong[i].words))) break;
    }
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAFACTOR;
    state_file_of(&options)->path = "/tmp";
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("options.offload with adafactor"));
    options.offload = NULL;
    options.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("ONE_SWEEP with a rule that needs norms of whole parameters"));
    options.flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_create(model, &options, &optimizer));
    options.flags = 0;
    /* Ranks that want different things. */
    adafactor_of(&options)->beta2_decay = rank == 1 ? -0.5 : -0.8;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("beta2_decay is -0.8") && says("on rank 0 and -0.5 on rank 1"));
    adafactor_of(&options)->beta2_decay = 0;
    adafactor_of(&options)->max_update_rms = rank == 1 ? 2 : 1;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("max_update_rms is 1 on rank 0 and 2 on rank 1"));
    adafactor_of(&options)->max_update_rms = 0;
    adafactor_of(&options)->min_parameter_rms = rank == 1 ? 2 : 1;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v, says("min_parameter_rms is 1 on rank 0 and 2 on rank 1"));
    adafactor_of(&options)->min_parameter_rms = 0;
    EXPECT(v, optimizer == NULL);
    /* All of that left the model as it was. Its saved state is no state of another rule. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    double rate = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_learning_rate(optimizer, &rate));
    EXPECT(v, rate == 0.01);
    backward(v, job, model, 0, rank);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    char *const saved = malloc(bytes);
    if (saved == NULL) abort();
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, saved, bytes, NULL));
    saved[bytes - 1] ^= 1; /* the last column */
    EXPECT_STATUS(v, TRIREME_ERROR_CORRUPT, trireme_optimizer_load(optimizer, saved, bytes));
    saved[bytes - 1] ^= 1;
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    const double number = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_write_range(optimizer, count - 1, &number, 3));
    EXPECT(v, says("bytes is 3"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_write_range(optimizer, count - 1, NULL, 4));
    trireme_optimizer_destroy(optimizer);
    options.kind = TRIREME_RULE_ADAGRAD;
    options.rule = NULL;
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
    run_ranks(2, be_refused, &job);
    assert_verdicts(job.verdicts, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(many_steps_follow_the_formula),
                                       cmocka_unit_test(every_strategy_gives_the_same_bits),
                                       cmocka_unit_test(other_features_go_with_it),
                                       cmocka_unit_test(a_broken_gradient_breaks_its_parameter),
                                       cmocka_unit_test(
                                           a_master_begins_anew_where_its_parameter_was_written),
                                       cmocka_unit_test(ranges_go_on_with_other_ranks),
                                       cmocka_unit_test(state_is_small),
                                       cmocka_unit_test(what_it_does_not_know_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
