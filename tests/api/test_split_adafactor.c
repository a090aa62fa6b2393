/*
 * ADAFACTOR with matrices that are SPLIT along "tensor", "pipeline" or both: models add up rows and
 * columns of the whole. Every part has the bits of one process that holds the whole matrix, and is
 * near plain loops over it.
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
#define STEPS 4
#define MOST_RANKS 8
#define RATE 0.07
#define NOT_CUT 3

/* "tensor" cuts the dimension of the first number and "pipeline" that of the second one. */
static const struct shape {
    const char *name;
    uint32_t dimensions;
    uint64_t extents[3];
    uint32_t cuts[2];
} kShapes[] = {
    {"both", 2, {5, 9, 0}, {0, 1}}, {"one", 2, {7, 6, 0}, {1, NOT_CUT}},
    {"cube", 3, {3, 4, 5}, {2, 0}}, {"other", 2, {4, 6, 0}, {NOT_CUT, 1}},
    {"few", 2, {2, 3, 0}, {0, 1}},  {"vector", 1, {11, 0, 0}, {0, NOT_CUT}},
};
enum { PARAMETERS = sizeof kShapes / sizeof kShapes[0], TOTAL = 45 + 42 + 60 + 24 + 6 + 11 };

struct job {
    int data, tensor, pipeline;
    trireme_strategy strategy;
    bool skips, resumed;
    struct verdict verdicts[MOST_RANKS];
    float values[MOST_RANKS][TOTAL];
    bool held[MOST_RANKS][TOTAL];
};

static int count_of(int parameter) {
    uint64_t count = 1;
    for (uint32_t i = 0; i < kShapes[parameter].dimensions; ++i)
        count *= kShapes[parameter].extents[i];
    return (int)count;
}

static float initial(int element) {
    return (float)((element * 29) % 31) * 0.375f - 3.5f;
}

/* Sums and means over the ranks are exact in f32. The largest of a matrix is on one model alone. */
static float mean_gradient(int step, int element) {
    const float size = element % 5 == 0 ? 0.125f : element % 7 == 3 ? 16 : 1;
    return ((float)((element * 37 + step * 5) % 23) / 4 - 2.75f) * size;
}

struct part {
    uint64_t shape[3], stretch[2][2];
    int count, numbers[TOTAL];
};

static void find_part(const struct job *job, int parameter, const int *at, struct part *part) {
    const struct shape *const shape = &kShapes[parameter];
    const uint64_t ranks[2] = {(uint64_t)job->tensor, (uint64_t)job->pipeline};
    memset(part, 0, sizeof *part);
    memcpy(part->shape, shape->extents, sizeof part->shape);
    uint64_t first[3] = {0}, end[3];
    memcpy(end, shape->extents, sizeof end);
    for (int axis = 0; axis < 2; ++axis) {
        const uint32_t cut = shape->cuts[axis];
        if (cut == NOT_CUT) continue;
        first[cut] = shape->extents[cut] * (uint64_t)at[axis] / ranks[axis];
        end[cut] = shape->extents[cut] * (uint64_t)(at[axis] + 1) / ranks[axis];
        part->stretch[axis][0] = first[cut];
        part->stretch[axis][1] = part->shape[cut] = end[cut] - first[cut];
    }
    int before = 0;
    for (int i = 0; i < parameter; ++i) before += count_of(i);
    for (int i = 0; i < count_of(parameter); ++i) {
        bool here = true;
        for (int d = (int)shape->dimensions - 1, rest = i; d >= 0; --d) {
            const uint64_t index = (uint64_t)rest % shape->extents[d];
            rest /= (int)shape->extents[d];
            here = here && index >= first[d] && index < end[d];
        }
        if (here) part->numbers[part->count++] = before + i;
    }
}

/* In step 1 the model with the first element of some matrices skips its part. */
static bool is_skipped(const struct job *job, int parameter, const struct part *part, int step) {
    if (!job->skips || step != 1 || parameter % 2 != 0 || part->count == 0) return false;
    int before = 0;
    for (int i = 0; i < parameter; ++i) before += count_of(i);
    return part->numbers[0] == before;
}

/* ---- the library ---- */

static trireme_mesh *
make_mesh(struct verdict *v, trireme_communicator *all, const struct job *job) {
    const bool shards = job->strategy == TRIREME_STRATEGY_HYBRID_SHARD;
    const char *const axes[3] = {shards ? "shard" : "data", "pipeline", "tensor"};
    const int32_t sizes[3] = {job->data, job->pipeline, job->tensor};
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_names = axes;
    options.axis_sizes = sizes;
    options.axis_count = 3;
    options.order = TRIREME_MESH_ORDER_LAST_FASTEST;
    trireme_mesh *mesh = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create(all, &options, &mesh));
    return mesh;
}

static trireme_model *
make_model(struct verdict *v, trireme_mesh *mesh, const struct job *job, const int *at) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    units_of(&options)->minimum_bytes = 1;
    options.unused = job->skips ? TRIREME_UNUSED_SKIP : TRIREME_UNUSED_ERROR;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    for (int i = 0; i < PARAMETERS; ++i) {
        static _Thread_local struct part part;
        find_part(job, i, at, &part);
        trireme_parameter_placement placements[2] = {TRIREME_PARAMETER_PLACEMENT_INIT,
                                                     TRIREME_PARAMETER_PLACEMENT_INIT};
        for (int axis = 0; axis < 2; ++axis) {
            const uint32_t cut = kShapes[i].cuts[axis];
            placements[axis].axis = axis == 0 ? "tensor" : "pipeline";
            placements[axis].kind = TRIREME_PLACEMENT_WHOLE;
            if (cut == NOT_CUT) continue;
            placements[axis].kind = TRIREME_PLACEMENT_SPLIT;
            placements[axis].dimension = cut;
            placements[axis].extent = kShapes[i].extents[cut];
            placements[axis].stretches = part.stretch[axis];
            placements[axis].stretch_count = 1;
        }
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kShapes[i].name;
        parameter.dtype = F32;
        parameter.dimensions = kShapes[i].dimensions;
        parameter.shape = part.shape;
        parameter.placements = placements;
        parameter.placement_count = 2;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static void
hand_in(struct verdict *v, const struct job *job, trireme_model *model, int step, int rank) {
    const int models = job->tensor * job->pipeline;
    const int at[2] = {rank % job->tensor, rank % models / job->tensor};
    const float offset = ((float)(rank / models) - (float)(job->data - 1) / 2) * 0.25f;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (int i = PARAMETERS - 1; i >= 0; --i) {
        static _Thread_local struct part part;
        find_part(job, i, at, &part);
        if (is_skipped(job, i, &part, step)) continue;
        float gradients[TOTAL];
        for (int k = 0; k < part.count; ++k)
            gradients[k] = mean_gradient(step, part.numbers[k]) + offset;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, (uint64_t)i,
                                                   part.count > 0 ? gradients : NULL,
                                                   (uint64_t)part.count, F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

static trireme_optimizer *make_optimizer(struct verdict *v, trireme_model *model) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAFACTOR;
    options.learning_rate = RATE;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    return optimizer;
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int at[2] = {rank % job->tensor, rank % (job->tensor * job->pipeline) / job->tensor};
    trireme_mesh *const mesh = make_mesh(v, all, job);
    trireme_model *model = make_model(v, mesh, job, at);
    int numbers[TOTAL];
    float values[TOTAL];
    uint64_t count = 0;
    for (int i = 0; i < PARAMETERS; ++i) {
        static _Thread_local struct part part;
        find_part(job, i, at, &part);
        for (int k = 0; k < part.count; ++k) {
            numbers[count] = part.numbers[k];
            values[count++] = initial(part.numbers[k]);
        }
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, count, F32, 0));
    trireme_optimizer *optimizer = make_optimizer(v, model);
    for (int step = 0; step < STEPS; ++step) {
        if (job->resumed && step == 2) {
            uint64_t bytes = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
            void *const state = malloc(bytes + 1);
            if (state == NULL) abort();
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, bytes, NULL));
            trireme_optimizer_destroy(optimizer);
            trireme_model_destroy(model);
            model = make_model(v, mesh, job, at);
            optimizer = make_optimizer(v, model);
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
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, count, F32));
    for (uint64_t i = 0; i < count; ++i) {
        job->held[rank][numbers[i]] = true;
        job->values[rank][numbers[i]] = values[i];
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

/* ---- plain loops over whole matrices ---- */

typedef long double real;

static real root_mean_square(const real *values, int count) {
    real sum = 0;
    for (int i = 0; i < count; ++i) sum += values[i] * values[i];
    return sqrtl(sum / count);
}

static void expect_plain(real *values) {
    static real squares[TOTAL], rows[TOTAL], columns[TOTAL];
    memset(squares, 0, sizeof squares);
    memset(rows, 0, sizeof rows);
    memset(columns, 0, sizeof columns);
    for (int i = 0; i < TOTAL; ++i) values[i] = (real)initial(i);
    for (int step = 1; step <= STEPS; ++step) {
        const real w = powl(step, -0.8L);
        for (int p = 0, first = 0; p < PARAMETERS; first += count_of(p++)) {
            const int count = count_of(p);
            const bool matrix = kShapes[p].dimensions > 1;
            const int height = (int)kShapes[p].extents[0], width = count / height;
            real g[TOTAL], u[TOTAL], mean = 0;
            for (int i = 0; i < count; ++i) g[i] = (real)mean_gradient(step - 1, first + i);
            for (int i = 0; i < height; ++i) {
                real sum = 0;
                for (int j = 0; j < width; ++j) sum += g[i * width + j] * g[i * width + j];
                rows[first + i] += w * (sum / width - rows[first + i]);
                mean += rows[first + i] / height;
            }
            for (int j = 0; j < width; ++j) {
                real sum = 0;
                for (int i = 0; i < height; ++i) sum += g[i * width + j] * g[i * width + j];
                columns[first + j] += w * (sum / height - columns[first + j]);
            }
            for (int i = 0; i < count; ++i) {
                squares[first + i] += w * (g[i] * g[i] - squares[first + i]);
                const real v = matrix ? rows[first + i / width] * columns[first + i % width] / mean
                                      : squares[first + i];
                u[i] = g[i] / sqrtl(fmaxl(v, 0x1p-46L));
            }
            const real alpha = fmaxl(0.001L, root_mean_square(values + first, count)) *
                               fminl((real)RATE, 1 / sqrtl(step));
            const real length = alpha / fmaxl(1, root_mean_square(u, count));
            for (int i = 0; i < count; ++i) values[first + i] -= length * u[i];
        }
    }
}

/* `same`: has the values of one process, whose part is the whole. */
static void train_and_check(struct job *job, const struct job *same) {
    const int ranks = job->data * job->tensor * job->pipeline;
    run_ranks(ranks, train, job);
    assert_verdicts(job->verdicts, ranks);
    static real plain[TOTAL];
    expect_plain(plain);
    for (int i = 0; i < TOTAL; ++i) {
        bool found = false;
        for (int rank = 0; rank < ranks; ++rank) {
            if (!job->held[rank][i]) continue;
            found = true;
            const float value = job->values[rank][i];
            const bool near = job->skips || fabsl((real)value - plain[i]) < 2e-6L;
            if (near && (same == NULL || value == same->values[0][i])) continue;
            fail_msg("strategy %d, %d x %d x %d, rank %d, element %d: %a, not %a, near %a",
                     (int)job->strategy, job->data, job->pipeline, job->tensor, rank, i,
                     (double)value, same == NULL ? 0 : (double)same->values[0][i],
                     (double)plain[i]);
        }
        assert_true(found);
    }
}

static void parts_have_the_bits_of_whole_matrices(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job one;
    one = (struct job){.data = 1,
                       .tensor = 1,
                       .pipeline = 1,
                       .strategy = TRIREME_STRATEGY_DATA_PARALLEL};
    train_and_check(&one, NULL);
    static const int kLayouts[][3] = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 2, 2}, {2, 2, 2},
                                      {1, 3, 2}, {1, 2, 3}, {2, 1, 3}, {1, 5, 1}, {1, 2, 4}};
    for (size_t layout = 0; layout < sizeof kLayouts / sizeof kLayouts[0]; ++layout) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (is_quick() && (layout + (size_t)strategy) % 3 != 0) continue;
            static struct job job;
            job = (struct job){.data = kLayouts[layout][0],
                               .tensor = kLayouts[layout][1],
                               .pipeline = kLayouts[layout][2],
                               .strategy = strategy,
                               .resumed = (layout + (size_t)strategy) % 2 == 0};
            train_and_check(&job, &one);
        }
    }
}

/* Models that skip parts of other matrices wait for no one: a skipped part adds nothing. */
static void models_may_skip_parts_of_other_matrices(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job first, job;
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        job = (struct job){.data = strategy % 2 + 1,
                           .tensor = 2,
                           .pipeline = 2,
                           .strategy = strategy,
                           .skips = true};
        train_and_check(&job, NULL);
        if (strategy == 1) first = job;
        for (int i = 0; i < TOTAL; ++i) { /* as in every other strategy */
            for (int rank = 0; rank < 4; ++rank) {
                if (first.held[rank][i]) assert_true(first.values[rank][i] == job.values[rank][i]);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_bits_of_whole_matrices),
        cmocka_unit_test(models_may_skip_parts_of_other_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
