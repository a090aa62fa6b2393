/*
 * Parameters that are SPLIT along "tensor": the placement tells which part of the whole parameter a
 * rank holds. Stochastic rounding draws by the number of an element in the whole, so that parts are
 * rounded as the whole is in one process. Parts that do not make the whole are refused.
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

#include "rounding.inc"

#define MOST_RANKS 8
#define STEPS 3
#define SEED 77
#define DIMENSIONS 3
#define MOST 512 /* elements of the whole */

struct job {
    int data, tensor;
    trireme_strategy strategy;
    uint32_t dimension; /* that is cut */
    int fused;          /* stretches of a rank */
    bool later;         /* on odd ranks of "tensor" another parameter comes before */
    bool mixed; /* on odd ranks of "tensor" the whole parameter comes before the split one */
    struct verdict verdicts[MOST_RANKS];
};

static const uint64_t whole_shape[DIMENSIONS] = {4, 12, 5};

static bool says(const char *words) {
    if (strstr(trireme_last_error(), words) != NULL) return true;
    print_error("not \"%s\", but: %s\n", words, trireme_last_error());
    return false;
}

static trireme_mesh *
make_mesh(struct verdict *v, trireme_communicator *all, const struct job *job) {
    const char *const axes[2] = {job->strategy == TRIREME_STRATEGY_HYBRID_SHARD ? "shard" : "data",
                                 "tensor"};
    const int32_t sizes[2] = {job->data, job->tensor};
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_names = axes;
    options.axis_sizes = sizes;
    options.axis_count = 2;
    trireme_mesh *mesh = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create(all, &options, &mesh));
    return mesh;
}

static trireme_model *make_model(struct verdict *v, trireme_mesh *mesh, trireme_strategy strategy) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    return model;
}

/* The indices of the cut dimension that a rank holds: `fused` equal parts are each cut among the
 * ranks, unevenly, as queries, keys and values are. */
static uint64_t parts_of(const struct job *job, int tensor, uint64_t *pairs) {
    const uint64_t all = whole_shape[job->dimension] / (uint64_t)job->fused;
    uint64_t held = 0;
    for (int i = 0; i < job->fused; ++i) {
        const uint64_t first = all * (uint64_t)tensor / (uint64_t)job->tensor;
        const uint64_t end = all * (uint64_t)(tensor + 1) / (uint64_t)job->tensor;
        pairs[2 * i] = (uint64_t)i * all + first;
        pairs[2 * i + 1] = end - first;
        held += end - first;
    }
    return held;
}

/* Of each element here, its number in the whole. */
static int numbers_of(const struct job *job, int tensor, uint32_t *numbers) {
    uint64_t pairs[2 * MOST], indices[MOST];
    int held = 0, count = 0;
    parts_of(job, tensor, pairs);
    for (int i = 0; i < job->fused; ++i) {
        for (uint64_t k = 0; k < pairs[2 * i + 1]; ++k) indices[held++] = pairs[2 * i] + k;
    }
    uint64_t shape[DIMENSIONS];
    memcpy(shape, whole_shape, sizeof shape);
    shape[job->dimension] = (uint64_t)held;
    for (uint64_t a = 0; a < shape[0]; ++a) {
        for (uint64_t b = 0; b < shape[1]; ++b) {
            for (uint64_t c = 0; c < shape[2]; ++c) {
                uint64_t at[DIMENSIONS] = {a, b, c};
                at[job->dimension] = indices[at[job->dimension]];
                numbers[count++] =
                    (uint32_t)((at[0] * whole_shape[1] + at[1]) * whole_shape[2] + at[2]);
            }
        }
    }
    return count;
}

static float gradient_at(int step, uint32_t number) {
    return (float)((number * 37 + (uint32_t)step * 11) % 101) * 0.0137f - 0.6f;
}

static trireme_status
add_matrix(trireme_model *model, const char *name, const uint64_t *shape, trireme_dtype dtype,
           const trireme_parameter_placement *placement) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = dtype;
    parameter.dimensions = DIMENSIONS;
    parameter.shape = shape;
    parameter.placements = placement;
    parameter.placement_count = placement != NULL ? 1 : 0;
    return trireme_model_add_parameter(model, &parameter, NULL);
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int tensor = rank % job->tensor;
    trireme_mesh *const mesh = make_mesh(v, all, job);
    trireme_model *const model = make_model(v, mesh, job->strategy);
    const uint64_t two[DIMENSIONS] = {1, 1, 2};
    const bool late = job->later && tensor % 2 == 1, mixed = job->mixed && tensor % 2 == 1;
    if (late) {
        EXPECT_STATUS(v, TRIREME_OK, add_matrix(model, "before", two, TRIREME_DTYPE_BF16, NULL));
    }
    uint64_t pairs[2 * MOST], shape[DIMENSIONS];
    memcpy(shape, whole_shape, sizeof shape);
    shape[job->dimension] = parts_of(job, tensor, pairs);
    trireme_parameter_placement placement = TRIREME_PARAMETER_PLACEMENT_INIT;
    placement.kind = TRIREME_PLACEMENT_SPLIT;
    placement.axis = "tensor";
    placement.dimension = job->dimension;
    placement.extent = whole_shape[job->dimension];
    placement.stretches = pairs;
    placement.stretch_count = (uint64_t)job->fused;
    trireme_parameter_placement whole = TRIREME_PARAMETER_PLACEMENT_INIT;
    whole.kind = TRIREME_PLACEMENT_WHOLE;
    whole.axis = "tensor";
    for (int i = 0; i < 2; ++i) {
        const bool split = (i == 0) != mixed;
        EXPECT_STATUS(v, TRIREME_OK,
                      add_matrix(model, split ? "w" : "norm", split ? shape : two,
                                 TRIREME_DTYPE_BF16, split ? &placement : &whole));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.01;
    rule.flags = TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
    rule.rounding_seed = SEED;
    rule.check_every = 1; /* "norm" is rounded by one draw in all models */
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    uint32_t numbers[MOST];
    const int count = numbers_of(job, tensor, numbers), first = late || mixed ? 2 : 0;
    const int of_norm = mixed ? 0 : first + count;
    float expected[MOST], norm[2] = {1, 1}, flat[MOST + 4] = {0};
    for (int i = 0; i < count; ++i) expected[i] = 1 + (float)(numbers[i] % 64) / 128;
    uint16_t values[MOST + 4] = {0};
    for (int i = 0; i < count; ++i) {
        values[first + i] = (uint16_t)(bits_of_float(expected[i]) >> 16);
    }
    for (int i = 0; i < 2; ++i) values[of_norm + i] = 0x3f80;
    const uint64_t elements = (uint64_t)(first + count + (mixed ? 0 : 2));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, elements, TRIREME_DTYPE_BF16,
                                                     0));
    for (int step = 0; step < STEPS; ++step) {
        for (int i = 0; i < count; ++i) flat[first + i] = gradient_at(step, numbers[i]);
        for (int i = 0; i < 2; ++i) flat[of_norm + i] = 0.377f * (float)(i + 1);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, flat, elements, TRIREME_DTYPE_F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        for (int i = 0; i < count; ++i) {
            volatile float change = 0.01f * gradient_at(step, numbers[i]);
            volatile float next = expected[i] - change;
            expected[i] = float_of_bits(
                (uint32_t)rounded(next, SEED, (uint64_t)step + 1, "w", numbers[i]) << 16);
        }
        for (int i = 0; i < 2; ++i) {
            volatile float change = 0.01f * (0.377f * (float)(i + 1));
            volatile float next = norm[i] - change;
            norm[i] = float_of_bits(
                (uint32_t)rounded(next, SEED, (uint64_t)step + 1, "norm", (uint32_t)i) << 16);
        }
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, elements, TRIREME_DTYPE_BF16));
    int wrong = 0;
    for (int i = 0; i < count; ++i) {
        wrong += values[first + i] != bits_of_float(expected[i]) >> 16;
    }
    for (int i = 0; i < 2; ++i) {
        wrong += values[of_norm + i] != bits_of_float(norm[i]) >> 16;
    }
    EXPECT(v, wrong == 0);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->data * job->tensor, function, job);
    assert_verdicts(job->verdicts, job->data * job->tensor);
}

static void a_part_is_rounded_as_in_the_whole(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int worlds[][2] = {{1, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 3}, {1, 4}, {4, 2}, {1, 5}};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            for (uint32_t dimension = 0; dimension < DIMENSIONS; ++dimension) {
                if (is_quick() && (w + (size_t)strategy + dimension) % 3 != 0) continue;
                static struct job job;
                job = (struct job){.data = worlds[w][0],
                                   .tensor = worlds[w][1],
                                   .strategy = strategy,
                                   .dimension = dimension,
                                   .fused = dimension == 1 ? 3 : 1};
                run_job(&job, train);
            }
        }
    }
}

/* The number of a parameter differs between models, as between stages of a pipeline. */
static void models_draw_by_one_number_of_a_parameter(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct job job;
        job = (struct job){.data = 2,
                           .tensor = 3,
                           .strategy = strategy,
                           .dimension = 1,
                           .fused = 3,
                           .later = true};
        run_job(&job, train);
    }
}

/* Ranks agree on the order of the whole parameters, and on that of the split ones. */
static void models_mix_whole_and_split_parameters_in_any_way(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        for (int tensor = 2; tensor <= 4; ++tensor) {
            static struct job job;
            job = (struct job){.data = 2,
                               .tensor = tensor,
                               .strategy = strategy,
                               .dimension = 1,
                               .fused = 3,
                               .mixed = true};
            run_job(&job, train);
        }
    }
}

/* ---- what is refused ---- */

static trireme_parameter_placement
split(uint32_t dimension, uint64_t extent, const uint64_t *pairs, uint64_t count) {
    trireme_parameter_placement placement = TRIREME_PARAMETER_PLACEMENT_INIT;
    placement.kind = TRIREME_PLACEMENT_SPLIT;
    placement.axis = "tensor";
    placement.dimension = dimension;
    placement.extent = extent;
    placement.stretches = pairs;
    placement.stretch_count = count;
    return placement;
}

static void refuse(struct verdict *v, trireme_model *model, trireme_parameter_placement placement,
                   const char *words) {
    const uint64_t shape[DIMENSIONS] = {4, 6, 5};
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  add_matrix(model, "x", shape, TRIREME_DTYPE_F32, &placement));
    EXPECT(v, says(words));
}

static void place_wrongly(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, job);
    trireme_model *const model = make_model(v, mesh, TRIREME_STRATEGY_ZERO1);
    const uint64_t six[2] = {3, 6}, twice[4] = {0, 4, 3, 2}, beyond[2] = {7, 6};
    const uint64_t huge[2] = {UINT64_MAX, 6}, short_one[2] = {0, 5};
    refuse(v, model, split(3, 12, six, 1),
           "options.placements[0].dimension 3 of parameter \"x\", which has 3 dimensions");
    refuse(v, model, split(1, 12, beyond, 1), "has 6 indices from 7 on, beyond the extent 12");
    refuse(v, model, split(1, 12, huge, 1), "beyond the extent 12");
    refuse(v, model, split(1, 12, twice, 2), "stretches of parameter \"x\" has index 3 twice");
    refuse(v, model, split(1, 12, short_one, 1), "has 5 indices, but dimension 1 has 6");
    refuse(v, model, split(1, 12, NULL, 0), "has 0 indices, but dimension 1 has 6");
    refuse(v, model, split(1, 12, NULL, 1),
           "options.placements[0].stretches is NULL, but options.placements[0].stretch_count is 1");
    refuse(v, model, split(1, 12, six, 0), "stretches is set, but");
    refuse(v, model, split(1, 12, six, 65537), "stretch_count 65537 is above 65,536");
    trireme_parameter_placement placement = split(1, 12, six, 1);
    placement.reserved = 3;
    refuse(v, model, placement, "options.placements[0].reserved is 3, and not 0");
    placement = split(1, 12, six, 1);
    for (trireme_placement kind = TRIREME_PLACEMENT_WHOLE; kind <= TRIREME_PLACEMENT_SHARED;
         ++kind) {
        placement.kind = kind;
        refuse(v, model, placement, "mean nothing but with TRIREME_PLACEMENT_SPLIT");
    }
    placement = split(1, 12, six, 1);
    placement.axis = "tensors";
    refuse(v, model, placement, "is no axis of the model's mesh");
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void parts_that_mean_nothing_are_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.data = 1, .tensor = 2};
    run_job(&job, place_wrongly);
}

static void seal_wrongly(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int t = rank % job->tensor;
    trireme_mesh *const mesh = make_mesh(v, all, job);
    const struct {
        uint64_t first[2], count[2], extent[2];
        uint32_t dimension[2];
        trireme_status status;
        const char *words;
    } rows[] = {
        {{0, 6}, {6, 6}, {12, 12}, {1, 1}, TRIREME_OK, ""},
        {{6, 0}, {6, 6}, {12, 12}, {1, 1}, TRIREME_OK, ""},
        {{0, 12}, {12, 0}, {12, 12}, {1, 1}, TRIREME_OK, ""},
        {{0, 6},
         {6, 5},
         {12, 12},
         {1, 1},
         TRIREME_ERROR_INVALID_ARGUMENT,
         "along axis \"tensor\" of the mesh: index 11 of dimension 1 of split parameter \"w\" lies "
         "on no rank, but the extent is 12"},
        {{0, 7},
         {6, 5},
         {12, 12},
         {1, 1},
         TRIREME_ERROR_INVALID_ARGUMENT,
         "index 6 of dimension 1"},
        {{0, 5},
         {6, 7},
         {12, 12},
         {1, 1},
         TRIREME_ERROR_INVALID_ARGUMENT,
         "index 5 of dimension 1 of split parameter \"w\" lies on ranks 0 and 1"},
        {{0, 6},
         {6, 6},
         {12, 13},
         {1, 1},
         TRIREME_ERROR_MISMATCH,
         "split parameter 0 is \"w\" f32 [4, 12, 5] split on \"tensor\" by dimension 1 of 12 on "
         "rank 0 and \"w\" f32 [4, 13, 5] split on \"tensor\" by dimension 1 of 13 on rank 1"},
        {{0, 2}, {2, 2}, {4, 4}, {0, 1}, TRIREME_ERROR_MISMATCH, "split parameter 0 is \"w\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        trireme_model *const model = make_model(v, mesh, TRIREME_STRATEGY_ZERO2);
        const uint64_t pair[2] = {rows[i].first[t], rows[i].count[t]};
        uint64_t shape[DIMENSIONS] = {4, 12, 5};
        shape[rows[i].dimension[t]] = rows[i].count[t];
        const trireme_parameter_placement placement =
            split(rows[i].dimension[t], rows[i].extent[t], pair, 1);
        EXPECT_STATUS(v, TRIREME_OK, add_matrix(model, "w", shape, TRIREME_DTYPE_F32, &placement));
        EXPECT_STATUS(v, rows[i].status, trireme_model_seal(model));
        EXPECT(v, says(rows[i].words));
        trireme_model_destroy(model);
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    trireme_mesh_destroy(mesh);
}

static void parts_that_do_not_make_the_whole_are_told_at_seal(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.data = 1, .tensor = 2};
    run_job(&job, seal_wrongly);
    job = (struct job){.data = 2, .tensor = 2};
    run_job(&job, seal_wrongly);
}

/* ---- rules with norms ---- */

/* A multiple of 1/8, so that sums of squares are exact. */
static float plain_number(uint32_t number, uint32_t salt) {
    return (float)((int)((number * 37 + salt * 11) % 33) - 16) / 8;
}

static float whole_numbers[2][MOST]; /* of a step of the whole, by LARS and by LAMB */

/* One step of LARS without momentum, or of LAMB without decay, by the formulas of optimizer.h. */
static void step_whole(void) {
    const int count = (int)(whole_shape[0] * whole_shape[1] * whole_shape[2]);
    double values = 0, gradients = 0, directions = 0;
    static double direction[MOST];
    for (int i = 0; i < count; ++i) {
        const double p = (double)plain_number((uint32_t)i, 1);
        const double g = (double)plain_number((uint32_t)i, 2);
        values += p * p;
        gradients += g * g;
        direction[i] = g / (fabs(g) + 1e-6); /* corrected, the moments of one step are g and g^2 */
        directions += direction[i] * direction[i];
    }
    const double lars = 0.001 * sqrt(values) / sqrt(gradients);
    const double lamb = sqrt(values) / sqrt(directions);
    for (int i = 0; i < count; ++i) {
        const double p = (double)plain_number((uint32_t)i, 1);
        whole_numbers[0][i] = (float)(p - 64 * lars * (double)plain_number((uint32_t)i, 2));
        whole_numbers[1][i] = (float)(p - 0.125 * lamb * direction[i]);
    }
}

static void step_by_norms(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int tensor = rank % job->tensor;
    trireme_mesh *const mesh = make_mesh(v, all, job);
    uint64_t pairs[2 * MOST], shape[DIMENSIONS];
    memcpy(shape, whole_shape, sizeof shape);
    shape[job->dimension] = parts_of(job, tensor, pairs);
    uint32_t numbers[MOST];
    const int count = numbers_of(job, tensor, numbers);
    for (int lamb = 0; lamb < 2; ++lamb) {
        trireme_model *const model = make_model(v, mesh, job->strategy);
        const trireme_parameter_placement placement =
            split(job->dimension, whole_shape[job->dimension], pairs, (uint64_t)job->fused);
        EXPECT_STATUS(v, TRIREME_OK, add_matrix(model, "w", shape, TRIREME_DTYPE_F32, &placement));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = lamb ? TRIREME_RULE_LAMB : TRIREME_RULE_LARS;
        rule.learning_rate = lamb ? 0.125 : 64;
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        float values[MOST], gradients[MOST];
        for (int i = 0; i < count; ++i) {
            values[i] = plain_number(numbers[i], 1);
            gradients[i] = plain_number(numbers[i], 2);
        }
        const uint64_t elements = (uint64_t)count;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, values, elements, TRIREME_DTYPE_F32,
                                                         0));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, elements, TRIREME_DTYPE_F32,
                                                    0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
        EXPECT(v, memory.planned_working == memory.allocated_working);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, values, elements, TRIREME_DTYPE_F32));
        double worst = 0;
        for (int i = 0; i < count; ++i) {
            const double wanted = (double)whole_numbers[lamb][numbers[i]];
            const double error = fabs((double)values[i] - wanted);
            if (error > worst) worst = error;
        }
        EXPECT(v, worst < 1e-6); /* numbers are up to 3, so that is a few of their last bits */
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
    trireme_mesh_destroy(mesh);
}

static void a_part_takes_the_norm_of_the_whole(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    step_whole();
    const int worlds[][2] = {{1, 1}, {1, 2}, {2, 2}, {1, 3}, {2, 3}, {1, 4}, {4, 2}, {1, 5}};
    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            static struct job job;
            job = (struct job){.data = worlds[w][0],
                               .tensor = worlds[w][1],
                               .strategy = strategy,
                               .dimension = (uint32_t)(w + (size_t)strategy) % DIMENSIONS,
                               .fused = 1};
            if (job.dimension == 1) job.fused = 3;
            run_job(&job, step_by_norms);
        }
    }
}

/* Two matrices of ones, each in two parts: "a" along "tensor", "b" along "pipeline". Two
 * ranks add them in the other order. Gradients are 1 in the first part and 2 in the other one, so
 * that LARS moves an element by 0.001 / sqrt(2.5) of its gradient. */
static void step_on_two_axes(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const char *const axes[3] = {"pipeline", "data", "tensor"};
    const int32_t sizes[3] = {2, 1, 2};
    trireme_mesh_options mesh_options = TRIREME_MESH_OPTIONS_INIT;
    mesh_options.axis_names = axes;
    mesh_options.axis_sizes = sizes;
    mesh_options.axis_count = 3;
    trireme_mesh *mesh = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create(all, &mesh_options, &mesh));
    trireme_model *const model = make_model(v, mesh, job->strategy);
    float values[20], gradients[20];
    int count = 0;
    for (int i = 0; i < 2; ++i) {
        const bool along_tensor = (i == 0) == (rank % 3 == 0);
        const uint64_t shape[DIMENSIONS] = {2, along_tensor ? 8 : 2, 1};
        const int part = along_tensor ? rank % 2 : rank / 2;
        const uint64_t half = shape[1], pair[2] = {half * (uint64_t)part, half};
        for (uint64_t k = 0; k < 2 * half; ++k) gradients[count++] = 1 + (float)part;
        trireme_parameter_placement placement = split(1, 2 * half, pair, 1);
        placement.axis = along_tensor ? "tensor" : "pipeline";
        EXPECT_STATUS(v, TRIREME_OK,
                      add_matrix(model, along_tensor ? "a" : "b", shape, TRIREME_DTYPE_F32,
                                 &placement));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_LARS;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    for (int i = 0; i < 20; ++i) values[i] = 1;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, 20, TRIREME_DTYPE_F32, 0));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(model, gradients, 20, TRIREME_DTYPE_F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, 20, TRIREME_DTYPE_F32));
    for (int i = 0; i < 20; ++i) {
        const double wanted = 1 - 0.001 * (double)gradients[i] / sqrt(2.5);
        EXPECT(v, fabs((double)values[i] - wanted) < 1e-6);
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void norms_have_one_order_of_axes(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct job job;
        job = (struct job){.data = 2, .tensor = 2, .strategy = strategy};
        run_job(&job, step_on_two_axes);
    }
}

/* Models with other rules. */
static void want_another_rule(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int t = rank % job->tensor;
    trireme_mesh *const mesh = make_mesh(v, all, job);
    trireme_model *const model = make_model(v, mesh, TRIREME_STRATEGY_ZERO2);
    const uint64_t shape[DIMENSIONS] = {4, 6, 5}, pair[2] = {(uint64_t)t * 6, 6};
    const trireme_parameter_placement placement = split(1, 12, pair, 1);
    EXPECT_STATUS(v, TRIREME_OK, add_matrix(model, "w", shape, TRIREME_DTYPE_F32, &placement));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = t == 0 ? TRIREME_RULE_LAMB : TRIREME_RULE_SGD;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("the rule is lamb on rank 0 and sgd on rank 1"));
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void models_of_one_parameter_have_one_rule(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.data = 2, .tensor = 2};
    run_job(&job, want_another_rule);
}

/* Models that would make other gradients of a whole parameter. */
static void want_other_leaves(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, job);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    options.leaves = rank % job->tensor == 0 ? 4 : 8;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    const uint64_t shape[DIMENSIONS] = {4, 6, 5};
    trireme_parameter_placement whole = TRIREME_PARAMETER_PLACEMENT_INIT;
    whole.kind = TRIREME_PLACEMENT_WHOLE;
    whole.axis = "tensor";
    EXPECT_STATUS(v, TRIREME_OK, add_matrix(model, "w", shape, TRIREME_DTYPE_F32, &whole));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("options.leaves is 4 on rank 0 and 8 on rank 1"));
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void models_of_a_whole_parameter_have_one_way_to_its_gradient(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.data = 2, .tensor = 2};
    run_job(&job, want_other_leaves);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_is_rounded_as_in_the_whole),
        cmocka_unit_test(models_draw_by_one_number_of_a_parameter),
        cmocka_unit_test(models_mix_whole_and_split_parameters_in_any_way),
        cmocka_unit_test(parts_that_mean_nothing_are_refused),
        cmocka_unit_test(parts_that_do_not_make_the_whole_are_told_at_seal),
        cmocka_unit_test(a_part_takes_the_norm_of_the_whole),
        cmocka_unit_test(norms_have_one_order_of_axes),
        cmocka_unit_test(models_of_one_parameter_have_one_rule),
        cmocka_unit_test(models_of_a_whole_parameter_have_one_way_to_its_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
