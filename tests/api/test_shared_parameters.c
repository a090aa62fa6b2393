/*
 * Parameters that are SHARED along "tensor": each rank's gradient is a summand, and the library
 * adds them up before the data axis. The oracle is one process that adds up by plain loops: along
 * the tree of ranks, then over the leaves or the ranks of the model.
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

#define STEPS 3
#define MOST_RANKS 8
#define LEAVES 5
#define RATE 0.25f

/* In the order of registration. Own parameters have another size in each model. */
enum { OWN_A, NORM, BIAS, OWN_B, ROUTER, SCALAR, PARAMETERS };
static const char *const parameter_names[PARAMETERS] = {"own a", "norm",   "bias",
                                                        "own b", "router", "scalar"};
enum { MOST_ELEMENTS = 40 };

static bool is_shared(int parameter) {
    return parameter == NORM || parameter == ROUTER || parameter == SCALAR;
}

static int elements_of(int parameter, int tensor) {
    switch (parameter) {
        case OWN_A: return 9 + 3 * tensor;
        case NORM: return 5;
        case BIAS: return 4;
        case OWN_B: return 17 - 2 * tensor;
        case ROUTER: return 33;
        default: return 1;
    }
}

enum way { FLAT, BY_PARAMETER, BACKWARDS_ON_SOME, WITH_HOOK };

struct job {
    int data, tensor;
    trireme_strategy strategy;
    uint32_t leaves;
    uint32_t passes; /* of a step without leaves */
    uint64_t bucket_bytes;
    trireme_dtype dtype, reduce_dtype;
    bool masters, plain_numbers, stochastic;
    double max_norm;
    enum way way;
    struct verdict verdicts[MOST_RANKS];
    double norms[MOST_RANKS][STEPS];
    float values[MOST_RANKS][PARAMETERS][MOST_ELEMENTS]; /* by mesh rank */
};

static int world_of(const struct job *job) {
    return job->data * job->tensor;
}

/* One rank's gradient. Numbers of unequal size show another order of additions. Sums of small
 * multiples of 1/8 are exact. A parameter that is whole has one gradient in all models. */
static float summand(const struct job *job, int step, int leaf, int tensor, int parameter, int i) {
    if (parameter == BIAS) tensor = 0;
    const uint32_t mixed = (uint32_t)(i + 100 * parameter + 1) * 2654435761u ^
                           (uint32_t)(leaf * 40503 + tensor * 9973 + step * 7919 + 17);
    if (job->plain_numbers) return (float)((int)(mixed % 33) - 16) / 8;
    const float scale = mixed % 3 == 0 ? 1e-3f : mixed % 3 == 1 ? 1.0f : 1e4f;
    return scale * ((float)(mixed % 20011) - 10005.0f) / 7.0f;
}

static float start_of(int tensor, int parameter, int i) {
    if (is_shared(parameter) || parameter == BIAS) tensor = 0;
    return (float)(parameter + 1) + (float)i / 64 + (float)tensor;
}

/* ---- the oracle ---- */

/* The tree of leaf_tree.hpp: neighbours, then pairs of those; one without a partner moves up. */
static float tree_sum(float *numbers, int count) {
    for (int width = count; width > 1; width = (width + 1) / 2) {
        for (int i = 0; i < width / 2; ++i) {
            volatile float sum = numbers[2 * i] + numbers[2 * i + 1];
            numbers[i] = sum;
        }
        if (width % 2 == 1) numbers[width / 2] = numbers[width - 1];
    }
    return numbers[0];
}

static float to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Of one leaf, or of one pass: along "tensor". */
static float
along_tensor(const struct job *job, int step, int leaf, int tensor, int parameter, int i) {
    if (!is_shared(parameter)) return summand(job, step, leaf, tensor, parameter, i);
    float numbers[MOST_RANKS] = {0};
    for (int t = 0; t < job->tensor; ++t) numbers[t] = summand(job, step, leaf, t, parameter, i);
    return tree_sum(numbers, job->tensor);
}

/* data_parallel and zero1 add up passes first. */
static float all_passes_along_tensor(const struct job *job, int step, int rank, int tensor,
                                     int parameter, int i) {
    float numbers[MOST_RANKS] = {0};
    for (int t = 0; t < job->tensor; ++t) {
        numbers[t] = 0;
        for (uint32_t pass = 0; pass < job->passes; ++pass) {
            const float one = summand(job, step, rank + (int)pass * 16, t, parameter, i);
            volatile float sum = pass == 0 ? one : numbers[t] + one;
            numbers[t] = sum;
        }
    }
    return is_shared(parameter) ? tree_sum(numbers, job->tensor) : numbers[tensor];
}

static float over_ranks(const struct job *job, const float *numbers) {
    float sum = 0;
    for (int rank = 0; rank < job->data; ++rank) {
        const float one = job->reduce_dtype != 0 ? to_bf16(numbers[rank]) : numbers[rank];
        volatile float next = rank == 0 ? one : sum + one;
        sum = next;
    }
    return sum / (float)job->data;
}

static float gradient_of(const struct job *job, int step, int tensor, int parameter, int i) {
    float numbers[16] = {0};
    if (job->leaves > 0) {
        for (int leaf = 0; leaf < (int)job->leaves; ++leaf) {
            numbers[leaf] = along_tensor(job, step, leaf, tensor, parameter, i);
        }
        return tree_sum(numbers, (int)job->leaves) / (float)job->leaves;
    }
    if (job->strategy <= TRIREME_STRATEGY_ZERO1) {
        for (int rank = 0; rank < job->data; ++rank) {
            numbers[rank] = all_passes_along_tensor(job, step, rank, tensor, parameter, i);
        }
        return over_ranks(job, numbers);
    }
    float sum = 0;
    for (uint32_t pass = 0; pass < job->passes; ++pass) {
        for (int rank = 0; rank < job->data; ++rank) {
            numbers[rank] = along_tensor(job, step, rank + (int)pass * 16, tensor, parameter, i);
        }
        const float one = over_ranks(job, numbers);
        volatile float next = pass == 0 ? one : sum + one;
        sum = next;
    }
    return sum;
}

/* Each parameter once: an own one of each model, and what the models have in common. */
static double norm_of(const struct job *job, int step) {
    long double sum = 0;
    for (int parameter = 0; parameter < PARAMETERS; ++parameter) {
        const bool common = is_shared(parameter) || parameter == BIAS;
        for (int t = 0; t < (common ? 1 : job->tensor); ++t) {
            for (int i = 0; i < elements_of(parameter, t); ++i) {
                const long double one = gradient_of(job, step, t, parameter, i);
                sum += one * one;
            }
        }
    }
    return sqrt((double)sum);
}

static void check(const struct job *job) {
    float clip[STEPS];
    for (int step = 0; step < STEPS; ++step) {
        clip[step] = 1;
        if (job->max_norm == 0) continue;
        const double norm = norm_of(job, step);
        assert_true(norm > job->max_norm);
        clip[step] = (float)(job->max_norm / norm);
        for (int rank = 0; rank < world_of(job); ++rank) {
            assert_true(job->norms[rank][step] == norm);
        }
    }
    for (int rank = 0; rank < world_of(job); ++rank) {
        const int t = rank % job->tensor; /* "tensor" is the last axis, the fastest one */
        for (int parameter = 0; parameter < PARAMETERS; ++parameter) {
            for (int i = 0; i < elements_of(parameter, t); ++i) {
                float value = start_of(t, parameter, i);
                if (job->dtype == TRIREME_DTYPE_BF16) value = to_bf16(value);
                for (int step = 0; step < STEPS; ++step) {
                    volatile float gradient = gradient_of(job, step, t, parameter, i) * clip[step];
                    volatile float change = RATE * gradient;
                    value -= change;
                }
                if (job->dtype == TRIREME_DTYPE_BF16) value = to_bf16(value);
                const float found = job->values[rank][parameter][i];
                if (memcmp(&found, &value, sizeof value) == 0) continue;
                fail_msg(
                    "%s of rank %d, element %d: %.9g, not %.9g (data %d, tensor %d, strategy "
                    "%d, leaves %u, passes %u, way %d)",
                    parameter_names[parameter], rank, i, (double)found, (double)value, job->data,
                    job->tensor, (int)job->strategy, job->leaves, job->passes, (int)job->way);
            }
        }
    }
}

/* ---- one rank ---- */

/* The axis that this file calls "tensor", as a mesh names it. */
static const char *axis_name = "tensor";

static trireme_mesh *
make_mesh(struct verdict *v, trireme_communicator *all, int data, int tensor, bool shard) {
    const char *const axes[2] = {shard ? "shard" : "data", axis_name};
    const int32_t sizes[2] = {data, tensor};
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_names = axes;
    options.axis_sizes = sizes;
    options.axis_count = 2;
    trireme_mesh *mesh = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create(all, &options, &mesh));
    return mesh;
}

static trireme_parameter_placement on_tensor(trireme_placement kind) {
    trireme_parameter_placement placement = TRIREME_PARAMETER_PLACEMENT_INIT;
    placement.kind = kind;
    placement.axis = axis_name;
    return placement;
}

static trireme_status add(trireme_model *model, const char *name, uint64_t elements,
                          trireme_dtype dtype, trireme_placement kind) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const trireme_parameter_placement placement = on_tensor(kind);
    parameter.name = name;
    parameter.dtype = dtype;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    parameter.placements = kind != 0 ? &placement : NULL;
    parameter.placement_count = kind != 0 ? 1 : 0;
    return trireme_model_add_parameter(model, &parameter, NULL);
}

static int32_t TRIREME_CALLCONV keep_bucket(const trireme_bucket *bucket, void *user_data) {
    (void)bucket;
    (void)user_data;
    return 0;
}

static trireme_model *
make_model(struct verdict *v, const struct job *job, trireme_mesh *mesh, int tensor) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    options.leaves = job->leaves;
    options.reduce_dtype = job->reduce_dtype;
    if (job->bucket_bytes > 0) {
        trireme_bucket_options *const buckets = buckets_of(&options);
        buckets->bytes = buckets->first_bytes = job->bucket_bytes;
        if (job->way == WITH_HOOK) buckets->hook = keep_bucket;
        units_of(&options)->minimum_bytes = 1;
    }
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    for (int parameter = 0; parameter < PARAMETERS; ++parameter) {
        const trireme_placement kind = is_shared(parameter) ? TRIREME_PLACEMENT_SHARED
                                       : parameter == BIAS  ? TRIREME_PLACEMENT_WHOLE
                                                            : 0;
        EXPECT_STATUS(v, TRIREME_OK,
                      add(model, parameter_names[parameter],
                          (uint64_t)elements_of(parameter, tensor), job->dtype, kind));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static void pass(struct verdict *v, const struct job *job, trireme_model *model, int tensor,
                 int step, int leaf, uint32_t flags) {
    float gradients[PARAMETERS][MOST_ELEMENTS], flat[PARAMETERS * MOST_ELEMENTS];
    int count = 0;
    for (int parameter = 0; parameter < PARAMETERS; ++parameter) {
        for (int i = 0; i < elements_of(parameter, tensor); ++i) {
            gradients[parameter][i] = summand(job, step, leaf, tensor, parameter, i);
            flat[count++] = gradients[parameter][i];
        }
    }
    if (job->way == FLAT) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, flat, (uint64_t)count, TRIREME_DTYPE_F32,
                                                    flags));
        return;
    }
    const bool forwards = job->way == BACKWARDS_ON_SOME && tensor % 2 == 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, flags));
    for (int k = 0; k < PARAMETERS; ++k) {
        const int parameter = forwards ? k : PARAMETERS - 1 - k;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, (uint64_t)parameter, gradients[parameter],
                                                   (uint64_t)elements_of(parameter, tensor),
                                                   TRIREME_DTYPE_F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
}

static trireme_optimizer *make_sgd(struct verdict *v, trireme_model *model) {
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    return optimizer;
}

static void destroy(trireme_optimizer *optimizer, trireme_model *model, trireme_mesh *mesh) {
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void take_values(struct verdict *v, struct job *job, trireme_model *model, int rank) {
    const int tensor = rank % job->tensor;
    float wide[PARAMETERS * MOST_ELEMENTS];
    uint16_t narrow[PARAMETERS * MOST_ELEMENTS];
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    const bool is_narrow = job->dtype == TRIREME_DTYPE_BF16;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, is_narrow ? (void *)narrow : (void *)wide,
                                                  info.elements, job->dtype));
    int at = 0;
    for (int parameter = 0; parameter < PARAMETERS; ++parameter) {
        for (int i = 0; i < elements_of(parameter, tensor); ++i, ++at) {
            if (is_narrow) {
                const uint32_t bits = (uint32_t)narrow[at] << 16;
                memcpy(&job->values[rank][parameter][i], &bits, sizeof bits);
            } else {
                job->values[rank][parameter][i] = wide[at];
            }
        }
    }
}

static void set_start(struct verdict *v, const struct job *job, trireme_model *model, int tensor) {
    float wide[PARAMETERS * MOST_ELEMENTS];
    uint16_t narrow[PARAMETERS * MOST_ELEMENTS];
    uint64_t count = 0;
    for (int parameter = 0; parameter < PARAMETERS; ++parameter) {
        for (int i = 0; i < elements_of(parameter, tensor); ++i, ++count) {
            wide[count] = to_bf16(start_of(tensor, parameter, i));
            if (job->dtype != TRIREME_DTYPE_BF16) wide[count] = start_of(tensor, parameter, i);
            uint32_t bits;
            memcpy(&bits, &wide[count], sizeof bits);
            narrow[count] = (uint16_t)(bits >> 16);
        }
    }
    const bool is_narrow = job->dtype == TRIREME_DTYPE_BF16;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model,
                                                     is_narrow ? (void *)narrow : (void *)wide,
                                                     count, job->dtype, 0));
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int tensor = rank % job->tensor, data = rank / job->tensor;
    trireme_mesh *const mesh =
        make_mesh(v, all, job->data, job->tensor, job->strategy == TRIREME_STRATEGY_HYBRID_SHARD);
    trireme_model *const model = make_model(v, job, mesh, tensor);
    set_start(v, job, model, tensor);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = RATE;
    rule.check_every = 1;
    if (job->masters) rule.flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
    if (job->max_norm > 0) clipping_of(&rule)->max_norm = job->max_norm;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    for (int step = 0; step < STEPS; ++step) {
        if (job->leaves > 0) {
            for (int leaf = data; leaf < (int)job->leaves; leaf += job->data) {
                pass(v, job, model, tensor, step, leaf, 0);
            }
        } else {
            for (uint32_t i = 0; i < job->passes; ++i) {
                pass(v, job, model, tensor, step, data + (int)i * 16,
                     i + 1 < job->passes ? TRIREME_BACKWARD_FLAG_NO_SYNC : 0);
            }
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        if (job->max_norm > 0) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_optimizer_get_gradient_norm(optimizer, &job->norms[rank][step]));
        }
    }
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    EXPECT(v, memory.planned_gradients == memory.allocated_gradients);
    /* This test gathers no unit, and the plan of zero3 and hybrid_shard counts gathers. */
    if (job->leaves == 0 && job->passes == 1 && job->strategy <= TRIREME_STRATEGY_ZERO2) {
        EXPECT(v, memory.planned_step_bytes == memory.sent_step_bytes);
    }
    take_values(v, job, model, rank);
    destroy(optimizer, model, mesh);
}

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(world_of(job), function, job);
    assert_verdicts(job->verdicts, world_of(job));
}

static void train_and_check(struct job job) {
    static struct job kept;
    kept = job;
    run_job(&kept, train);
    check(&kept);
}

static const int worlds[][2] = {{1, 2}, {2, 2}, {1, 3}, {2, 3}, {1, 4}, {4, 2}, {3, 1}, {1, 5}};
#define WORLDS (sizeof worlds / sizeof worlds[0])

static void run_everywhere(struct job job) {
    for (size_t w = 0; w < WORLDS; ++w) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (is_quick() && (w + (size_t)strategy) % 3 != 0) continue;
            job.data = worlds[w][0];
            job.tensor = worlds[w][1];
            job.strategy = strategy;
            train_and_check(job);
        }
    }
}

static const struct job plain = {.passes = 1, .dtype = TRIREME_DTYPE_F32, .way = FLAT};

static void run_strategies(int data, int tensor, rank_function *function) {
    for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct job job;
        job = plain;
        job.data = data;
        job.tensor = tensor;
        job.strategy = strategy;
        run_job(&job, function);
    }
}

static void each_strategy_adds_up_along_the_axis(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_everywhere(plain);
    struct job job = plain;
    job.bucket_bytes = 64;
    job.way = BY_PARAMETER;
    run_everywhere(job);
    job.bucket_bytes = 210; /* from "tensor" 2 on, "norm" lies in the bucket of "router" */
    run_everywhere(job);
}

static void leaves_and_passes_are_added_up_behind_the_axis(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct job job = plain;
    job.leaves = LEAVES;
    job.way = BY_PARAMETER;
    job.bucket_bytes = 64;
    run_everywhere(job);
    job = plain;
    job.passes = 3;
    job.bucket_bytes = 1;
    run_everywhere(job);
}

static void a_norm_counts_a_shared_parameter_once(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct job job = plain;
    job.plain_numbers = true;
    job.max_norm = 0.5;
    run_everywhere(job);
    job.leaves = 4;
    run_everywhere(job);
}

static void narrow_parameters_and_gradients_are_added_up_wide(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct job job = plain;
    job.dtype = TRIREME_DTYPE_BF16;
    job.masters = true;
    run_everywhere(job);
    job.leaves = LEAVES;
    run_everywhere(job);
    job = plain;
    job.reduce_dtype = TRIREME_DTYPE_BF16;
    run_everywhere(job);
}

/* Gradients in another order on some ranks, or a hook that sees buckets before their sums. */
static void sums_have_one_order_on_all_ranks(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    struct job job = plain;
    job.bucket_bytes = 64;
    job.way = BACKWARDS_ON_SOME;
    run_everywhere(job);
    job.way = WITH_HOOK;
    run_everywhere(job);
}

/* ---- one sum for every number of ranks ---- */

enum { BLOCKS = 4, WIDTH = 700 };
static float block_results[3][WIDTH];

/* A rank hands in the sum of its blocks along the tree. */
static void add_blocks(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, 1, job->tensor, false);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK,
                  add(model, "norm", WIDTH, TRIREME_DTYPE_F32, TRIREME_PLACEMENT_SHARED));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer *const optimizer = make_sgd(v, model);
    float gradient[WIDTH], values[WIDTH];
    const int own = BLOCKS / job->tensor;
    for (int i = 0; i < WIDTH; ++i) {
        float blocks[BLOCKS];
        for (int b = 0; b < own; ++b) {
            blocks[b] = summand(job, 0, rank * own + b, 0, ROUTER, i);
        }
        gradient[i] = tree_sum(blocks, own);
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(model, gradient, WIDTH, TRIREME_DTYPE_F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, WIDTH, TRIREME_DTYPE_F32));
    if (rank == job->tensor - 1) {
        memcpy(block_results[job->tensor / 2], values, sizeof values); /* 1, 2, 4: 0, 1, 2 */
    }
    destroy(optimizer, model, mesh);
}

static void sums_of_blocks_have_the_same_bits_for_every_number_of_ranks(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int tensor = 1; tensor <= BLOCKS; tensor *= 2) {
        static struct job job;
        job = plain;
        job.data = 1;
        job.tensor = tensor;
        run_job(&job, add_blocks);
    }
    assert_memory_equal(block_results[0], block_results[1], sizeof block_results[0]);
    assert_memory_equal(block_results[0], block_results[2], sizeof block_results[0]);
    bool sequence_differs = false;
    for (int i = 0; i < WIDTH; ++i) {
        float blocks[BLOCKS], sum = 0;
        for (int b = 0; b < BLOCKS; ++b) {
            blocks[b] = summand(&plain, 0, b, 0, ROUTER, i);
            volatile float next = sum + blocks[b];
            sum = next;
        }
        const float tree = tree_sum(blocks, BLOCKS);
        assert_true(block_results[0][i] == -tree);
        sequence_differs |= tree != sum;
    }
    assert_true(sequence_differs); /* else this test sees no order */
}

/* ---- missing gradients, overflows, aliases ---- */

static trireme_model *
make_small(struct verdict *v, trireme_mesh *mesh, trireme_strategy strategy, int32_t unused) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    options.unused = unused;
    trireme_bucket_options *const buckets = buckets_of(&options);
    buckets->bytes = buckets->first_bytes = 1;
    units_of(&options)->minimum_bytes = 1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    const char *const some[4] = {"used by all", "used by one", "used by none", "own"};
    for (int i = 0; i < 4; ++i) {
        EXPECT_STATUS(v, TRIREME_OK,
                      add(model, some[i], 3, TRIREME_DTYPE_F32,
                          i < 3 ? TRIREME_PLACEMENT_SHARED : 0));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    float ones[12];
    for (int i = 0; i < 12; ++i) ones[i] = 1;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, ones, 12, TRIREME_DTYPE_F32, 0));
    return model;
}

static void miss_some(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int t = rank % job->tensor, d = rank / job->tensor;
    trireme_mesh *const mesh = make_mesh(v, all, job->data, job->tensor, false);
    for (int skips = 0; skips < 2; ++skips) {
        trireme_model *const model =
            make_small(v, mesh, job->strategy, skips ? TRIREME_UNUSED_SKIP : TRIREME_UNUSED_ZERO);
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = TRIREME_RULE_SGD;
        rule.learning_rate = 0.5;
        rule.check_every = 1;
        rule.weight_decay = 0.5;
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        const float gradient[3] = {1, 2, 4};
        for (int step = 0; step < 2; ++step) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_gradient_ready(model, 0, gradient, 3, TRIREME_DTYPE_F32));
            if (t == job->tensor - 1 && d == 0) {
                EXPECT_STATUS(v, TRIREME_OK,
                              trireme_model_gradient_ready(model, 1, gradient, 3,
                                                           TRIREME_DTYPE_F32));
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        }
        float values[12];
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, values, 12, TRIREME_DTYPE_F32));
        for (int i = 0; i < 12; ++i) {
            float expected = 1;
            const float sum = i < 3   ? gradient[i] * (float)job->tensor
                              : i < 6 ? gradient[i - 3] / (float)job->data
                                      : 0;
            for (int step = 0; step < 2; ++step) {
                if (skips && i >= 6) continue;
                expected -= 0.5f * (sum + 0.5f * expected);
            }
            EXPECT(v, values[i] == expected);
        }
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
    trireme_mesh_destroy(mesh);
}

static void a_parameter_that_one_model_uses_is_updated_in_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int data = 1; data <= 2; ++data) run_strategies(data, 2, miss_some);
}

static void overflow(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, job->data, job->tensor, false);
    trireme_model *const model = make_small(v, mesh, job->strategy, TRIREME_UNUSED_ERROR);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    loss_scale_of(&rule)->initial_scale = 4;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    float gradients[12], values[12];
    for (int i = 0; i < 12; ++i) gradients[i] = 2;
    if (rank == 1) gradients[4] = NAN;
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, 12, TRIREME_DTYPE_F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
        EXPECT(v, info.skipped == (step == 0));
        gradients[4] = 2;
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, 12, TRIREME_DTYPE_F32));
    EXPECT(v, values[4] == 1 - (float)job->tensor && values[11] == 0);
    destroy(optimizer, model, mesh);
}

static void an_overflow_in_a_summand_skips_the_step_of_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_strategies(2, 2, overflow);
}

/* A tied parameter: the sum of both names' gradients is the summand. */
static void tie(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, job->data, job->tensor, false);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK,
                  add(model, "table", 3, TRIREME_DTYPE_F32, TRIREME_PLACEMENT_SHARED));
    trireme_parameter_options alias = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t elements = 3;
    const trireme_parameter_placement whole = on_tensor(TRIREME_PLACEMENT_WHOLE);
    alias.name = "head";
    alias.dtype = TRIREME_DTYPE_F32;
    alias.dimensions = 1;
    alias.shape = &elements;
    alias.tied_to = "table";
    alias.placements = &whole;
    alias.placement_count = 1;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_add_parameter(model, &alias, NULL));
    EXPECT(v, strstr(trireme_last_error(),
                     "options.placements of parameter \"head\" are not those "
                     "of \"table\" that it is tied to") != NULL);
    alias.placements = NULL;
    alias.placement_count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &alias, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer *const optimizer = make_sgd(v, model);
    const float one[3] = {1, 2, 3}, ten[3] = {10, 20, 30};
    float values[3];
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (uint64_t name = 2; name-- > 0;) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, name, name ? ten : one, 3,
                                                   TRIREME_DTYPE_F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, 3, TRIREME_DTYPE_F32));
    for (int i = 0; i < 3; ++i) EXPECT(v, values[i] == -(float)(job->tensor * 11 * (i + 1)));
    destroy(optimizer, model, mesh);
}

static void names_of_a_shared_parameter_are_one_summand(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_strategies(2, 3, tie);
}

/* Stage 0 begins its backward when stage 1 has handed in all gradients of its own. */
static void pass_by_stages(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, 1, job->tensor, false);
    trireme_model *const model = make_small(v, mesh, job->strategy, TRIREME_UNUSED_ERROR);
    trireme_optimizer *const optimizer = make_sgd(v, model);
    const float gradient[3] = {1, 2, 4};
    float values[12];
    if (rank == 0) EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    for (uint64_t i = 4; i-- > 0;) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, i, gradient, 3, TRIREME_DTYPE_F32));
    }
    if (rank == 1) EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, 12, TRIREME_DTYPE_F32));
    for (int i = 0; i < 12; ++i) EXPECT(v, values[i] == 1 - gradient[i % 3] * (i < 9 ? 2 : 1));
    destroy(optimizer, model, mesh);
}

static void a_stage_waits_for_no_stage_before_it(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    axis_name = "pipeline";
    run_strategies(1, 2, pass_by_stages);
    axis_name = "tensor";
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_strategy_adds_up_along_the_axis),
        cmocka_unit_test(leaves_and_passes_are_added_up_behind_the_axis),
        cmocka_unit_test(a_norm_counts_a_shared_parameter_once),
        cmocka_unit_test(narrow_parameters_and_gradients_are_added_up_wide),
        cmocka_unit_test(sums_have_one_order_on_all_ranks),
        cmocka_unit_test(sums_of_blocks_have_the_same_bits_for_every_number_of_ranks),
        cmocka_unit_test(a_parameter_that_one_model_uses_is_updated_in_all),
        cmocka_unit_test(an_overflow_in_a_summand_skips_the_step_of_all),
        cmocka_unit_test(names_of_a_shared_parameter_are_one_summand),
        cmocka_unit_test(a_stage_waits_for_no_stage_before_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
