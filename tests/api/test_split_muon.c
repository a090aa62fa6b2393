/*
 * MUON with matrices that are SPLIT along "tensor", and also along "pipeline": models gather the
 * whole matrix, and each keeps its part. Every part has the bits of plain loops over the whole
 * matrix, and all else those of ADAMW.
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

#include "norms.inc"

#define F32 TRIREME_DTYPE_F32
#define F64 TRIREME_DTYPE_F64
#define STEPS 4
#define MOST_RANKS 8
#define RATE 0.07
#define DECAY 0.125
#define NOT_CUT 3

/* A cut dimension has `fused` equal parts, which are each cut among the ranks. Ranks along
 * "pipeline" cut the dimension `second`. "columns" and "cube" are WHOLE on one of the axes. */
static const struct shape {
    const char *name;
    uint32_t dimensions;
    uint64_t extents[3];
    uint32_t cut, fused, second;
} kShapes[] = {
    {"rows", 2, {5, 9, 0}, 0, 1, 1},   {"columns", 2, {7, 6, 0}, 1, 1, NOT_CUT},
    {"fused", 2, {12, 4, 0}, 0, 3, 1}, {"cube", 3, {3, 8, 2}, 1, 1, 0},
    {"whole", 2, {4, 4, 0}, 3, 1, 0},  {"vector", 1, {11, 0, 0}, 0, 1, NOT_CUT},
    {"few", 2, {2, 3, 0}, 0, 1, 1},    {"no matrix", 2, {4, 3, 0}, 0, 1, 1},
};
enum {
    PARAMETERS = sizeof kShapes / sizeof kShapes[0],
    TOTAL = 45 + 42 + 48 + 48 + 16 + 11 + 6 + 12
};
enum { LARGE = 4, FEW = 6, NO_MATRIX = 7 };

#include "muon.inc"

DEFINE_ORTHOGONAL(orthogonal_f32, float)
DEFINE_ORTHOGONAL(orthogonal_f64, double)

struct job {
    int data, tensor; /* `tensor` counts all models, also those along "pipeline" */
    int pipeline;     /* ranks along it; 0: there is no such axis */
    trireme_strategy strategy;
    trireme_dtype dtype;
    bool nesterov, match_adamw;
    bool resumed;   /* saved and loaded in the middle */
    unsigned skips; /* parameters by bit, see is_skipped() */
    bool alone;     /* odd ranks of "tensor" have a matrix of their own before all others */
    struct verdict verdicts[MOST_RANKS];
    double values[MOST_RANKS][TOTAL];
    bool held[MOST_RANKS][TOTAL];
};

static int ranks_of(const struct job *job) {
    return job->data * job->tensor;
}

static bool says(const char *words) {
    if (strstr(trireme_last_error(), words) != NULL) return true;
    print_error("not \"%s\", but: %s\n", words, trireme_last_error());
    return false;
}

static int count_of(int parameter) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < kShapes[parameter].dimensions; ++i) {
        count *= kShapes[parameter].extents[i];
    }
    return (int)count;
}

static double initial(int element) {
    return (double)((element * 29) % 31) * 0.375 - 3.5;
}

/* Sums and means over the ranks are exact in f32. */
static double mean_gradient(int step, int element) {
    return (double)((element * 37 + step * 5 + element / 3 * 11) % 23) / 4 - 2.75;
}

/* ---- parts ---- */

struct part {
    uint64_t shape[3], pairs[6], second[2];
    int count, numbers[TOTAL]; /* of each element, its number among those of all parameters */
};

static void find_part(const struct job *job, int parameter, int tensor, struct part *part) {
    const struct shape *const shape = &kShapes[parameter];
    int first = 0, held = 0;
    for (int i = 0; i < parameter; ++i) first += count_of(i);
    memset(part, 0, sizeof *part);
    memcpy(part->shape, shape->extents, sizeof part->shape);
    const int lines = job->pipeline > 0 ? job->pipeline : 1, line = job->tensor / lines;
    bool here[TOTAL] = {false}; /* by index of the cut dimension */
    if (shape->cut != NOT_CUT) {
        const uint64_t all = shape->extents[shape->cut] / shape->fused;
        for (uint64_t i = 0; i < shape->fused; ++i) {
            const uint64_t begin = all * (uint64_t)(tensor % line) / (uint64_t)line;
            const uint64_t end = all * (uint64_t)(tensor % line + 1) / (uint64_t)line;
            part->pairs[2 * i] = i * all + begin;
            part->pairs[2 * i + 1] = end - begin;
            for (uint64_t k = begin; k < end; ++k) here[i * all + k] = true;
            held += (int)(end - begin);
        }
        part->shape[shape->cut] = (uint64_t)held;
    }
    const uint32_t second = lines > 1 ? shape->second : NOT_CUT;
    if (second != NOT_CUT) {
        const uint64_t all = shape->extents[second];
        const uint64_t end = all * (uint64_t)(tensor / line + 1) / (uint64_t)lines;
        part->second[0] = all * (uint64_t)(tensor / line) / (uint64_t)lines;
        part->second[1] = end - part->second[0];
        part->shape[second] = part->second[1];
    }
    for (int i = 0; i < count_of(parameter); ++i) {
        bool held_here = true;
        for (int d = (int)shape->dimensions - 1, rest = i; d >= 0; --d) {
            const uint64_t index = (uint64_t)rest % shape->extents[d];
            rest /= (int)shape->extents[d];
            if ((uint32_t)d == shape->cut) held_here = held_here && here[index];
            if ((uint32_t)d == second)
                held_here = held_here && index - part->second[0] < part->second[1];
        }
        if (held_here) part->numbers[part->count++] = first + i;
    }
}

/* In step 1 models may skip parts. The model that holds the first element of a matrix skips it if
 * the matrix has a bit in `skips`. Of another large matrix the model with the last element skips
 * it. So two models skip different matrices of one round. */
static bool is_skipped(const struct job *job, int parameter, const struct part *part, int step) {
    if (job->skips == 0 || step != 1 || part->count == 0) return false;
    if (parameter != FEW && parameter >= LARGE) return false;
    int first = 0;
    for (int i = 0; i < parameter; ++i) first += count_of(i);
    if ((job->skips >> parameter & 1) != 0) return part->numbers[0] == first;
    return part->numbers[part->count - 1] == first + count_of(parameter) - 1;
}

/* ---- plain loops over whole matrices ---- */

static double power(double base, int exponent) {
    double result = 1;
    for (; exponent > 0; --exponent) result *= base;
    return result;
}

#define DEFINE_STEP(NAME, T, ROOT, ORTHOGONAL)                                                     \
    static void NAME(const struct job *job, int parameter, T *p, const T *g, T *m, T *v, int step, \
                     const bool *skipped) {                                                        \
        const int count = count_of(parameter);                                                     \
        const struct shape *const shape = &kShapes[parameter];                                     \
        if (shape->dimensions < 2 || parameter == NO_MATRIX) {                                     \
            const T size = (T)(RATE / (1 - power(0.9, step)));                                     \
            const T inverse = (T)(1 / sqrt(1 - power(0.999, step)));                               \
            for (int i = 0; i < count; ++i) {                                                      \
                p[i] -= (T)(RATE * DECAY) * p[i];                                                  \
                m[i] = (T)0.9 * m[i] + (T)(1 - 0.9) * g[i];                                        \
                v[i] = (T)0.999 * v[i] + (T)(1 - 0.999) * g[i] * g[i];                             \
                p[i] -= size * m[i] / (ROOT(v[i]) * inverse + (T)0.03);                            \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        const T momentum = (T)0.95, rest = (T)(1 - 0.95);                                          \
        T u[TOTAL];                                                                                \
        for (int i = 0; i < count; ++i) {                                                          \
            u[i] = 0;                                                                              \
            if (skipped[i]) continue;                                                              \
            m[i] = momentum * m[i] + rest * g[i];                                                  \
            u[i] = job->nesterov ? momentum * m[i] + rest * g[i] : m[i];                           \
        }                                                                                          \
        const int rows = (int)shape->extents[0], columns = count / rows;                           \
        ORTHOGONAL(u, rows, columns, 5);                                                           \
        double factor = rows > columns ? sqrt((double)rows / columns) : 1;                         \
        if (job->match_adamw) factor = 0.2 * sqrt(rows > columns ? rows : columns);                \
        for (int i = 0; i < count; ++i) {                                                          \
            if (skipped[i]) continue;                                                              \
            p[i] -= (T)(RATE * DECAY) * p[i];                                                      \
            p[i] -= (T)RATE * (u[i] * (T)factor);                                                  \
        }                                                                                          \
    }

DEFINE_STEP(step_f32, float, sqrtf, orthogonal_f32)
DEFINE_STEP(step_f64, double, sqrt, orthogonal_f64)

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
        for (int i = 0; i < TOTAL; ++i) g32[i] = (float)(g64[i] = mean_gradient(step, i));
        for (int number = 0, at = 0; number < PARAMETERS; at += count_of(number++)) {
            bool skipped[TOTAL] = {false};
            for (int tensor = 0; tensor < job->tensor; ++tensor) {
                static struct part part;
                find_part(job, number, tensor, &part);
                for (int i = 0; i < part.count && is_skipped(job, number, &part, step); ++i) {
                    skipped[part.numbers[i] - at] = true;
                }
            }
            ++made[number];
            if (job->dtype == F64) {
                step_f64(job, number, p64 + at, g64 + at, m64 + at, v64 + at, made[number],
                         skipped);
            } else {
                step_f32(job, number, p32 + at, g32 + at, m32 + at, v32 + at, made[number],
                         skipped);
            }
        }
    }
    for (int i = 0; i < TOTAL; ++i) values[i] = job->dtype == F64 ? p64[i] : (double)p32[i];
}

/* ---- the library ---- */

static trireme_optimizer_options options_of(const struct job *job) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_MUON;
    options.learning_rate = RATE;
    options.weight_decay = DECAY;
    muon_of(&options)->epsilon = 0.03;
    if (job->nesterov) muon_of(&options)->flags = TRIREME_MUON_FLAG_NESTEROV;
    if (job->match_adamw) muon_of(&options)->rate_adjustment = TRIREME_MUON_RATE_MATCH_ADAMW;
    groups_of(&options, 2)[1].flags = TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE;
    return options;
}

static trireme_mesh *
make_mesh(struct verdict *v, trireme_communicator *all, const struct job *job) {
    const bool shards = job->strategy == TRIREME_STRATEGY_HYBRID_SHARD;
    const int lines = job->pipeline > 0 ? job->pipeline : 1;
    const char *const axes[3] = {shards ? "shard" : "data", lines > 1 ? "pipeline" : "tensor",
                                 "tensor"};
    const int32_t sizes[3] = {job->data, lines > 1 ? lines : job->tensor, job->tensor / lines};
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_names = axes;
    options.axis_sizes = sizes;
    options.axis_count = lines > 1 ? 3 : 2;
    options.order = TRIREME_MESH_ORDER_LAST_FASTEST;
    trireme_mesh *mesh = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create(all, &options, &mesh));
    return mesh;
}

static trireme_model *
make_model(struct verdict *v, trireme_mesh *mesh, const struct job *job, int tensor) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = job->data % 2 == 0 ? 1 : 0;
    options.unused = job->skips != 0 ? TRIREME_UNUSED_SKIP : TRIREME_UNUSED_ERROR;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    if (job->alone && tensor % 2 == 1) {
        const uint64_t shape[2] = {6, 6};
        parameter.name = "alone";
        parameter.dtype = job->dtype;
        parameter.dimensions = 2;
        parameter.shape = shape;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    for (int i = 0; i < PARAMETERS; ++i) {
        static _Thread_local struct part part;
        find_part(job, i, tensor, &part);
        trireme_parameter_placement placements[2] = {TRIREME_PARAMETER_PLACEMENT_INIT,
                                                     TRIREME_PARAMETER_PLACEMENT_INIT};
        for (int k = 0; k < 2; ++k) {
            const uint32_t cut = k == 0 ? kShapes[i].cut : kShapes[i].second;
            placements[k].axis = k == 0 ? "tensor" : "pipeline";
            placements[k].kind = TRIREME_PLACEMENT_WHOLE;
            if (cut == NOT_CUT) continue;
            placements[k].kind = TRIREME_PLACEMENT_SPLIT;
            placements[k].dimension = cut;
            placements[k].extent = kShapes[i].extents[cut];
            placements[k].stretches = k == 0 ? part.pairs : part.second;
            placements[k].stretch_count = k == 0 ? kShapes[i].fused : 1;
        }
        parameter.name = kShapes[i].name;
        parameter.dtype = job->dtype;
        parameter.dimensions = kShapes[i].dimensions;
        parameter.shape = part.shape;
        parameter.placements = placements;
        parameter.placement_count = job->pipeline > 1 ? 2 : 1;
        parameter.parameter_group = i == NO_MATRIX ? 1 : 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

/* Writes numbers of a rank's elements, the matrix of its own as -1, and returns their count. */
static int numbers_of(const struct job *job, int tensor, int *numbers) {
    int count = 0;
    if (job->alone && tensor % 2 == 1) {
        while (count < 36) numbers[count++] = -1;
    }
    for (int i = 0; i < PARAMETERS; ++i) {
        static _Thread_local struct part part;
        find_part(job, i, tensor, &part);
        memcpy(numbers + count, part.numbers, (size_t)part.count * sizeof(int));
        count += part.count;
    }
    return count;
}

static void put(trireme_dtype dtype, void *to, int at, double value) {
    const float narrow = (float)value;
    if (dtype == F64) {
        memcpy((char *)to + (size_t)at * sizeof value, &value, sizeof value);
    } else {
        memcpy((char *)to + (size_t)at * sizeof narrow, &narrow, sizeof narrow);
    }
}

static double value_at(trireme_dtype dtype, const void *values, int at) {
    float narrow = 0;
    double wide = 0;
    memcpy(&narrow, (const char *)values + (size_t)at * sizeof narrow, sizeof narrow);
    if (dtype == F64) memcpy(&wide, (const char *)values + (size_t)at * sizeof wide, sizeof wide);
    return dtype == F64 ? wide : (double)narrow;
}

static void
hand_in(struct verdict *v, const struct job *job, trireme_model *model, int step, int rank) {
    const int tensor = rank % job->tensor;
    const uint64_t alone = job->alone && tensor % 2 == 1;
    const double offset = (rank / job->tensor - (double)(job->data - 1) / 2) * 0.25;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    double gradients[TOTAL];
    for (int i = PARAMETERS - 1; i >= 0; --i) {
        static _Thread_local struct part part;
        find_part(job, i, tensor, &part);
        if (is_skipped(job, i, &part, step)) continue;
        for (int k = 0; k < part.count; ++k) {
            put(job->dtype, gradients, k, mean_gradient(step, part.numbers[k]) + offset);
        }
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, alone + (uint64_t)i,
                                                   part.count > 0 ? gradients : NULL,
                                                   (uint64_t)part.count, job->dtype));
    }
    if (alone != 0) {
        for (int k = 0; k < 36; ++k) put(job->dtype, gradients, k, k % 5 - 2);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, 0, gradients, 36, job->dtype));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int tensor = rank % job->tensor;
    trireme_mesh *const mesh = make_mesh(v, all, job);
    trireme_model *model = make_model(v, mesh, job, tensor);
    int numbers[TOTAL + 36];
    double values[TOTAL + 36];
    const int count = numbers_of(job, tensor, numbers);
    for (int i = 0; i < count; ++i) {
        put(job->dtype, values, i, numbers[i] < 0 ? i * 0.125 : initial(numbers[i]));
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, (uint64_t)count, job->dtype,
                                                     0));
    const trireme_optimizer_options options = options_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    for (int step = 0; step < STEPS; ++step) {
        if (job->resumed && step == 2) {
            uint64_t bytes = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
            void *const state = malloc(bytes + 1);
            if (state == NULL) abort();
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, bytes, NULL));
            trireme_optimizer_destroy(optimizer);
            trireme_model_destroy(model);
            optimizer = NULL;
            model = make_model(v, mesh, job, tensor);
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, state, bytes));
            free(state);
        }
        hand_in(v, job, model, step, rank);
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    EXPECT(v, memory.planned_optimizer_state == memory.allocated_optimizer_state);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, (uint64_t)count, job->dtype));
    for (int i = 0; i < count; ++i) {
        if (numbers[i] < 0) continue;
        job->held[rank][numbers[i]] = true;
        job->values[rank][numbers[i]] = value_at(job->dtype, values, i);
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void train_and_check(struct job *job) {
    run_ranks(ranks_of(job), train, job);
    assert_verdicts(job->verdicts, ranks_of(job));
    double expected[TOTAL];
    expect_plain(job, expected);
    for (int i = 0; i < TOTAL; ++i) {
        bool found = false;
        for (int rank = 0; rank < ranks_of(job); ++rank) {
            if (!job->held[rank][i]) continue;
            found = true;
            if (job->values[rank][i] != expected[i]) {
                fail_msg("strategy %d, %d x %d, dtype %d, rank %d, element %d: %a, not %a",
                         (int)job->strategy, job->data, job->tensor, (int)job->dtype, rank, i,
                         job->values[rank][i], expected[i]);
            }
        }
        assert_true(found);
    }
}

static const int kLayouts[][2] = {{1, 2}, {2, 1}, {2, 2}, {1, 3}, {3, 2},
                                  {2, 3}, {1, 5}, {2, 4}, {4, 2}, {1, 8}};
enum { LAYOUTS = sizeof kLayouts / sizeof kLayouts[0] };

static void parts_have_the_bits_of_plain_loops_over_whole_matrices(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    int turn = 0;
    for (int layout = 0; layout < LAYOUTS; ++layout) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (is_quick() && (layout + strategy) % 3 != 0) continue;
            ++turn;
            static struct job job;
            job = (struct job){.data = kLayouts[layout][0],
                               .tensor = kLayouts[layout][1],
                               .strategy = strategy,
                               .dtype = turn % 2 == 0 ? F64 : F32};
            job.nesterov = turn % 3 == 0;
            job.match_adamw = turn % 5 < 2;
            job.resumed = turn % 7 < 4;
            static const unsigned kSkips[3] = {1u << FEW | 5, 1u << FEW | 3, 1u << FEW | 9};
            job.skips = turn % 5 == 1 ? kSkips[turn / 5 % 3] : 0;
            job.alone = turn % 4 < 2;
            train_and_check(&job);
        }
    }
}

/* Up to two axes cut a matrix, also into parts of no element. */
static void parts_along_two_axes_have_the_bits_of_plain_loops(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const int kGrids[][3] = {{1, 2, 2}, {2, 2, 2}, {1, 2, 3}, {1, 3, 2}, {1, 4, 2}};
    int turn = 0;
    for (size_t grid = 0; grid < sizeof kGrids / sizeof kGrids[0]; ++grid) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (is_quick() && (grid + (size_t)strategy) % 3 != 0) continue;
            ++turn;
            static struct job job;
            job = (struct job){.data = kGrids[grid][0],
                               .tensor = kGrids[grid][1] * kGrids[grid][2],
                               .pipeline = kGrids[grid][1],
                               .strategy = strategy,
                               .dtype = turn % 2 == 0 ? F64 : F32};
            job.nesterov = turn % 3 == 0;
            job.match_adamw = turn % 5 < 2;
            job.resumed = turn % 7 < 4;
            static const unsigned kSkips[3] = {1u << FEW | 5, 1u << FEW | 3, 1u << FEW | 9};
            job.skips = turn % 3 == 1 ? kSkips[turn / 3 % 3] : 0;
            job.alone = turn % 4 < 2;
            train_and_check(&job);
        }
    }
}

/* ---- failures ---- */

/* One model takes a matrix element by element, which the others would wait for. */
static void want_other_matrices(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, job);
    trireme_model *const model = make_model(v, mesh, job, rank % job->tensor);
    trireme_optimizer_options options = options_of(job);
    if (rank % job->tensor == 1) {
        groups_of(&options, 2)[0].flags = TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE;
    }
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT(v,
           says("parameter \"rows\" is a matrix with 5 steps on rank 0 and no matrix on rank 1"));
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void models_of_a_part_treat_it_as_one_matrix(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.data = 2, .tensor = 2, .strategy = TRIREME_STRATEGY_ZERO1, .dtype = F32};
    run_ranks(ranks_of(&job), want_other_matrices, &job);
    assert_verdicts(job.verdicts, ranks_of(&job));
}

/* A rank leaves before a step: all others hear of it, also along the axis. */
static void leave_before_step(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, job);
    trireme_model *const model = make_model(v, mesh, job, rank % job->tensor);
    const trireme_optimizer_options options = options_of(job);
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    hand_in(v, job, model, 0, rank);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL)); /* all have handed in */
    if (rank != 1) {
        EXPECT_STATUS(v, TRIREME_ERROR_PEER_LOST, trireme_optimizer_step(optimizer));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void a_rank_that_leaves_ends_the_wait_for_its_part(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int data = 1; data <= 2; ++data) {
        static struct job job;
        job = (struct job){.data = data,
                           .tensor = 2,
                           .strategy = TRIREME_STRATEGY_ZERO2,
                           .dtype = F32};
        run_ranks(ranks_of(&job), leave_before_step, &job);
        assert_verdicts(job.verdicts, ranks_of(&job));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_bits_of_plain_loops_over_whole_matrices),
        cmocka_unit_test(parts_along_two_axes_have_the_bits_of_plain_loops),
        cmocka_unit_test(models_of_a_part_treat_it_as_one_matrix),
        cmocka_unit_test(a_rank_that_leaves_ends_the_wait_for_its_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
