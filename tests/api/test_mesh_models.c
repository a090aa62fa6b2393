/*
 * Models on meshes: the axes tell how a model lies. Along "tensor" and "pipeline" every rank has a
 * parameter "w" of its own, of another size; "norm" is whole along "tensor". The oracle is one
 * process with all of that, by plain loops.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#include "mesh_models.inc"

#define PART 8 /* elements of "w" at tensor coordinate 0, and one more at each next one */
#define MAX_NORM 1.5

/* "w" and "norm", sealed. */
static trireme_model *
make_model(struct verdict *v, trireme_mesh *mesh, trireme_strategy strategy, int tensor) {
    const trireme_model_options options = spread_by(strategy);
    trireme_model *model = NULL;
    if (!EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model))) {
        return NULL;
    }
    add(v, model, "w", (uint64_t)(PART + tensor), NULL);
    add(v, model, "norm", COMMON, "tensor");
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static trireme_optimizer_options rule_of(double max_norm) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 0.1;
    if (max_norm > 0) clipping_of(&options)->max_norm = max_norm;
    return options;
}

/* ---- training ---- */

static float gradient_of(int step, int leaf, int element) {
    return (float)((element * 37 + leaf * 11 + step * 5) % 23) * 0.37f - 3.1f;
}

/* Numbers of elements in the one process that has all: of "w" in the model of tensor coordinate t
 * and pipeline coordinate p, and of "norm", which only the stages have several of. */
static int number_of(int t, int p, int i) {
    return i < PART + t ? (p * MOST_RANKS + t) * MOST + i
                        : (MOST_RANKS * MOST_RANKS + p) * MOST + i - PART - t;
}
#define NUMBERS ((MOST_RANKS * MOST_RANKS + MOST_RANKS) * MOST)

static uint64_t part_of(uint64_t count, uint64_t parts, uint64_t part) {
    return count / parts + (part < count % parts ? 1 : 0);
}

/* The rank keeps the part of its coordinates: with several ranks on one axis that is one number. */
static void check_held(struct verdict *v, const struct job *job, trireme_model *model,
                       const int32_t *at, uint64_t count) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_parameters == memory.allocated_parameters);
    uint64_t parts = 1, part = 0;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        parts = (uint64_t)job->sizes[SHARD];
        part = (uint64_t)at[SHARD];
    } else if (job->strategy == TRIREME_STRATEGY_ZERO3) {
        parts = (uint64_t)job->sizes[DATA] * (uint64_t)job->sizes[SHARD];
        part = (uint64_t)(at[DATA] + at[SHARD]);
    }
    EXPECT(v, memory.planned_parameters == part_of(count, parts, part) * sizeof(float));
}

static void train(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    int32_t *const at = job->at[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    if (job->leaves) trireme_communicator_destroy(all);
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_coordinates(mesh, rank, at, AXES));
    const int t = at[TENSOR], p = at[PIPELINE], count = PART + t + COMMON;
    trireme_model *const model = make_model(v, mesh, job->strategy, t);
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    EXPECT(v, info.world_size == job->sizes[DATA] * job->sizes[SHARD]);
    check_held(v, job, model, at, (uint64_t)count);
    trireme_optimizer_options rule = rule_of(MAX_NORM);
    rule.check_every = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    for (int step = 0; step < STEPS; ++step) {
        for (uint32_t pass = 0; pass < info.micro_batches; ++pass) {
            uint32_t leaf = 0;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(model, pass, &leaf));
            if (leaf == UINT32_MAX) continue;
            float gradients[MOST];
            for (int i = 0; i < count; ++i) {
                gradients[i] = gradient_of(step, (int)leaf, number_of(t, p, i));
            }
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(model, gradients, (uint64_t)count, F32, 0));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_get_gradient_norm(optimizer, &job->norms[rank][step]));
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, job->values[rank], (uint64_t)count, F32));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

/* One process with everything. */
static void check(const struct job *job) {
    static float whole[NUMBERS];
    static bool there[NUMBERS];
    memset(whole, 0, sizeof whole);
    memset(there, 0, sizeof there);
    for (int t = 0; t < job->sizes[TENSOR]; ++t) {
        for (int p = 0; p < job->sizes[PIPELINE]; ++p) {
            for (int i = 0; i < PART + t + COMMON; ++i) there[number_of(t, p, i)] = true;
        }
    }
    for (int step = 0; step < STEPS; ++step) {
        static float gradients[NUMBERS];
        long double sum = 0; /* 23-bit numbers: the sum is exact */
        for (int i = 0; i < NUMBERS; ++i) {
            if (!there[i]) continue;
            gradients[i] = (gradient_of(step, 0, i) + gradient_of(step, 1, i)) / LEAVES;
            sum += (long double)gradients[i] * (long double)gradients[i];
        }
        const double norm = sqrt((double)sum);
        for (int rank = 0; rank < world_of(job); ++rank) {
            assert_true(job->norms[rank][step] == norm);
        }
        assert_true(norm > MAX_NORM);
        const float clip = (float)(MAX_NORM / norm);
        for (int i = 0; i < NUMBERS; ++i) {
            if (there[i]) whole[i] -= 0.1f * (gradients[i] * clip);
        }
    }
    for (int rank = 0; rank < world_of(job); ++rank) {
        const int t = job->at[rank][TENSOR], p = job->at[rank][PIPELINE];
        for (int i = 0; i < PART + t + COMMON; ++i) {
            assert_true(job->values[rank][i] == whole[number_of(t, p, i)]);
        }
    }
}

static void a_mesh_trains_as_one_process(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (size_t i = 0; i < MESHES; ++i) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (!goes_with(strategy, meshes[i])) continue;
            for (int order = 0; order <= TRIREME_MESH_ORDER_FIRST_FASTEST; ++order) {
                if (is_quick() && (int)(i + (size_t)strategy) % 3 != order) continue;
                static struct job job;
                job = (struct job){.strategy = strategy, .order = order};
                memcpy(job.sizes, meshes[i], sizeof job.sizes);
                run_job(&job, train);
                check(&job);
            }
        }
    }
}

static void a_mesh_trains_without_its_communicator(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int32_t some[][AXES] = {{1, 1, 2, 1}, {2, 1, 2, 1}, {2, 2, 1, 2}};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; ++i) {
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1, .leaves = true};
        if (some[i][SHARD] > 1) job.strategy = TRIREME_STRATEGY_HYBRID_SHARD;
        memcpy(job.sizes, some[i], sizeof job.sizes);
        run_job(&job, train);
        check(&job);
    }
}

/* The groups of a mesh, counted by hand: one for each axis, and those that only models need. */
static const struct groups {
    const char *axes[3];
    int32_t sizes[3];
    int groups;
} of_meshes[] = {
    {{"data", "shard", "tensor"}, {1, 1, 1}, 3},    {{"data", "shard", "tensor"}, {2, 1, 1}, 3},
    {{"data", "shard", "tensor"}, {1, 1, 2}, 3},    {{"data", "shard", "tensor"}, {2, 2, 1}, 4},
    {{"data", "shard", "tensor"}, {2, 1, 2}, 4},    {{"data", "shard", "tensor"}, {2, 2, 2}, 5},
    {{"data", "tensor", "pipeline"}, {1, 2, 2}, 4}, {{"data", "shard", "context"}, {2, 2, 2}, 4},
    {{"data", "tensor", "replica"}, {2, 2, 2}, 3},  {{"tensor", "pipeline", "x"}, {2, 2, 1}, 3},
    {{"data", "shard", "expert"}, {2, 2, 2}, 5},    {{"data", "tensor", "expert"}, {2, 1, 2}, 4},
    {{"data", "tensor", "expert"}, {1, 2, 2}, 4},   {{"data", "tensor", "expert"}, {2, 2, 2}, 5},
};
static const struct groups *counted;

static void make_groups(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    trireme_mesh *const mesh =
        make_mesh(&job->verdicts[rank], all, counted->axes, counted->sizes, 3, job->order);
    trireme_mesh_destroy(mesh);
}

static void a_mesh_makes_only_groups_that_it_needs(void **state) {
    (void)state;
    if (!ranks_make_groups() || ranks_use_transport()) skip(); /* they join in other ways */
    for (size_t i = 0; i < sizeof of_meshes / sizeof of_meshes[0]; ++i) {
        counted = &of_meshes[i];
        static struct job job;
        job = (struct job){.sizes = {counted->sizes[0], counted->sizes[1], counted->sizes[2], 1}};
        assert_int_equal(trireme_failpoint_set("join.before_claim=off"), TRIREME_OK);
        run_job(&job, make_groups);
        uint64_t joined = 0;
        assert_int_equal(trireme_failpoint_get_hits("join.before_claim", &joined), TRIREME_OK);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        assert_int_equal(joined, world_of(&job) * (1 + counted->groups));
    }
}

/* ---- two networks on one mesh ---- */

enum { ACTOR, CRITIC, NETWORKS };

/* One rank's models of two networks. A thread trains each of them. */
struct networks {
    trireme_model *models[NETWORKS];
    int tensor;
    int late; /* the one whose thread begins later */
    struct verdict verdicts[NETWORKS];
};

static float network_gradient(int network, int tensor) {
    return (float)(3 + tensor) / (network == ACTOR ? 1 : 10);
}

static void train_network(int network, void *context) {
    struct networks *const n = context;
    struct verdict *const v = &n->verdicts[network];
    trireme_model *const model = n->models[network];
    const struct timespec a_while = {0, 100l * 1000 * 1000};
    if (network == n->late) nanosleep(&a_while, NULL);
    trireme_optimizer_options rule = rule_of(1);
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const float gradient = network_gradient(network, n->tensor);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, &gradient, 1, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    long double sum = 0;
    for (int tensor = 0; tensor < 2; ++tensor) {
        const long double part = network_gradient(network, tensor);
        sum += part * part;
    }
    const double expected = sqrt((double)sum);
    double norm = 0;
    float value = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_gradient_norm(optimizer, &norm));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, &value, 1, F32));
    EXPECT(v, norm == expected);
    EXPECT(v, value == -gradient * (expected > 1 ? (float)(1 / expected) : 1));
    trireme_optimizer_destroy(optimizer);
}

static void train_networks(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    int32_t at[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_coordinates(mesh, rank, at, AXES));
    static struct networks of_rank[MOST_RANKS];
    struct networks *const n = &of_rank[rank];
    *n = (struct networks){.tensor = at[TENSOR], .late = at[TENSOR] == 0 ? CRITIC : ACTOR};
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    for (int i = 0; i < NETWORKS; ++i) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &n->models[i]));
        add(v, n->models[i], "w", 1, NULL);
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(n->models[i]));
    }
    run_threads(NETWORKS, train_network, n);
    for (int i = 0; i < NETWORKS; ++i) {
        if (n->verdicts[i].text[0] != '\0') {
            expect_failed(v, __FILE__, __LINE__, n->verdicts[i].text);
        }
        trireme_model_destroy(n->models[i]);
    }
    trireme_mesh_destroy(mesh);
}

static void two_networks_have_a_norm_each(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.sizes = {1, 1, 2, 1}};
    run_job(&job, train_networks);
    job = (struct job){.sizes = {2, 1, 2, 1}};
    run_job(&job, train_networks);
}

/* ---- what is whole along an axis ---- */

static void register_differently(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    int32_t at[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_coordinates(mesh, rank, at, AXES));
    const trireme_model_options options = spread_by(TRIREME_STRATEGY_ZERO3);
    const bool odd = at[TENSOR] == 1;
    trireme_model *model = NULL;
    /* Another shape. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    add(v, model, "norm", odd ? COMMON + 1 : COMMON, "tensor");
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("along axis \"tensor\" of the mesh: whole parameter 0 is \"norm\" f32 [5] of 2 "
                   "replicas whole on \"tensor\" on rank 0 and \"norm\" f32 [6]"));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    trireme_model_destroy(model);
    /* Whole for one of them only. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    add(v, model, "norm", COMMON, odd ? NULL : "tensor");
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("along axis \"tensor\" of the mesh: whole parameter 0 is \"norm\" f32 [5] of 2 "
                   "replicas whole on \"tensor\" on rank 0 and missing on rank 1"));
    trireme_model_destroy(model);
    /* The ranks of one model differ among themselves; the other model hears that. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    add(v, model, "norm", COMMON, "tensor");
    add(v, model, "w", odd && at[DATA] == 1 ? 4 : 3, NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, odd ? says("parameter 1 is \"w\" f32 [3] on rank 0 and \"w\" f32 [4] on rank 1")
                  : says("along axis \"tensor\" of the mesh: rank 1 answered "));
    trireme_model_destroy(model);
    /* The mesh lives on. */
    model = make_model(v, mesh, TRIREME_STRATEGY_ZERO3, at[TENSOR]);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    trireme_model_destroy(model);
    /* One of them is on the communicator of the axis alone. It lives on, too. */
    trireme_communicator *data = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_axis_communicator(mesh, "data", &data));
    if (at[DATA] == 0) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    } else {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(data, &options, &model));
    }
    add(v, model, "w", 3, NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("the mesh is data=2:"));
    trireme_model_destroy(model);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(data, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    trireme_mesh_destroy(mesh);
}

static void ranks_that_register_differently_get_a_mismatch(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.sizes = {2, 1, 2, 1}};
    run_job(&job, register_differently);
}

static void hold_different_copies(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    int32_t at[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_coordinates(mesh, rank, at, AXES));
    const int t = at[TENSOR];
    const uint64_t count = (uint64_t)(PART + t + COMMON);
    trireme_model *const model = make_model(v, mesh, job->strategy, t);
    float values[MOST];
    for (uint64_t i = 0; i < count; ++i) values[i] = (float)i - (float)t; /* "norm": the same */
    for (int i = 0; i < PART + t; ++i) values[i] = (float)(100 * t + i);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, count, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    /* One bit of one element of "norm", in one of the models. */
    const int spoilt = job->sizes[TENSOR] - 1;
    if (t == spoilt) values[count - 2] = nextafterf(values[count - 2], 1e9f);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, count, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_check_replicas(model));
    char words[200];
    snprintf(words, sizeof words,
             "along axis \"tensor\" of the mesh: parameter 1 (\"norm\") has other bits on rank %d",
             spoilt);
    EXPECT(v, says(words));
    /* Two elements that change places have other bits, too. */
    if (t == spoilt) {
        values[count - 2] = (float)(count - 1) - (float)t;
        values[count - 1] = (float)(count - 2) - (float)t;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, count, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_check_replicas(model));
    for (uint64_t i = 0; i < count; ++i) values[i] = (float)i - (float)t;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, count, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void copies_along_an_axis_are_compared(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int32_t some[][AXES] = {{1, 1, 3, 1}, {2, 1, 3, 1}, {1, 2, 3, 1}, {1, 1, 3, 2}};
    for (size_t i = 0; i < sizeof some / sizeof some[0]; ++i) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (!goes_with(strategy, some[i])) continue;
            static struct job job;
            job = (struct job){.strategy = strategy};
            memcpy(job.sizes, some[i], sizeof job.sizes);
            run_job(&job, hold_different_copies);
        }
    }
}

/* One stage of the pipeline has spoilt copies; the other one finds none. */
static void spoil_one_stage(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    int32_t at[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_coordinates(mesh, rank, at, AXES));
    const trireme_model_options options = spread_by(TRIREME_STRATEGY_ZERO2);
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    add(v, model, "stage", COMMON, "tensor");
    const trireme_parameter_placement both[2] = {whole_on("pipeline"), whole_on("tensor")};
    const uint64_t elements = COMMON;
    trireme_parameter_options everywhere = vector_of("everywhere", &elements);
    everywhere.placements = both;
    everywhere.placement_count = 2;
    everywhere.replicas = 4;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &everywhere, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    float values[2 * COMMON] = {0};
    values[0] = at[PIPELINE] == 1 && at[TENSOR] == 1 ? 1 : 0;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, 2 * COMMON, F32, 0));
    EXPECT_STATUS(v, at[PIPELINE] == 1 ? TRIREME_ERROR_MISMATCH : TRIREME_OK,
                  trireme_model_check_replicas(model));
    if (at[PIPELINE] == 1) EXPECT(v, says("along axis \"tensor\" of the mesh: parameter 0"));
    values[0] = 0;
    values[COMMON] = (float)at[PIPELINE];
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, 2 * COMMON, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_check_replicas(model));
    EXPECT(v, says("along axis \"pipeline\" of the mesh: parameter 1 (\"everywhere\")"));
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void each_axis_is_compared_by_itself(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.sizes = {2, 1, 2, 2}};
    run_job(&job, spoil_one_stage);
}

/* A tied embedding: the first stage has it in a unit of its input. The last one has it in a unit of
 * its head, where an alias names it. */
static void tie_an_embedding(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    int32_t at[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_coordinates(mesh, rank, at, AXES));
    const bool last = at[PIPELINE] == 1;
    const trireme_model_options options = spread_by(job->strategy);
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    if (last) add(v, model, "w", 3, NULL);
    const uint64_t elements = COMMON;
    const trireme_parameter_placement whole = whole_on("pipeline");
    trireme_parameter_options embedding = vector_of("embedding", &elements);
    embedding.unit = last ? "head" : "input";
    embedding.placements = &whole;
    embedding.placement_count = 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &embedding, NULL));
    trireme_parameter_options alias = vector_of("lm_head", &elements);
    alias.tied_to = "embedding";
    if (last) EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &alias, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    float values[3 + COMMON] = {0};
    const uint64_t count = last ? 3 + COMMON : COMMON;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, count, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    values[count - 1] = last ? 1 : 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, count, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_check_replicas(model));
    EXPECT(v, says("(\"embedding\") has other bits"));
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void units_and_aliases_are_each_models_own(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3, .sizes = {1, 1, 1, 2}};
    run_job(&job, tie_an_embedding);
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3, .sizes = {2, 1, 1, 2}};
    run_job(&job, tie_an_embedding);
}

/* ---- steps of several models ---- */

static void step_alone(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    int32_t at[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_coordinates(mesh, rank, at, AXES));
    trireme_model *model = NULL;
    const trireme_model_options zero1 = spread_by(TRIREME_STRATEGY_ZERO1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &zero1, &model));
    add(v, model, "w", (uint64_t)(PART + at[TENSOR]), NULL);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = rule_of(0);
    trireme_optimizer *optimizer = NULL;
    /* Models of a mesh have nothing in common without a norm, or a parameter that is whole along an
     * axis: one of them steps more often. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const uint64_t count = (uint64_t)(PART + at[TENSOR]);
    const float gradients[MOST] = {1};
    for (int step = 0; step < 1 + at[TENSOR]; ++step) {
        for (int leaf = 0; leaf < LEAVES; ++leaf) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_accumulate_flat(model, gradients, count, F32, 0));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    trireme_optimizer_destroy(optimizer);
    /* The axes tell the ranks of a norm. */
    rule = rule_of(1);
    rule.norm_ranks = all;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("options.norm_ranks for a model on a mesh"));
    /* With a norm all of them step together, and compare what they clip by. */
    rule = rule_of(1 + at[TENSOR]);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(v, says("max_norm is 1 on rank 0 and 2 on rank "));
    trireme_model_destroy(model);
    /* And none of them may be absent. */
    trireme_model_options uneven = TRIREME_MODEL_OPTIONS_INIT;
    uneven.strategy = TRIREME_STRATEGY_ZERO1;
    uneven.flags = TRIREME_MODEL_FLAG_UNEVEN;
    trireme_model *other = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &uneven, &other));
    add(v, other, "w", 3, NULL);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(other));
    rule = rule_of(1);
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED, trireme_optimizer_create(other, &rule, &optimizer));
    EXPECT(v, says("a norm or loss scale of all models along axis \"tensor\" of the mesh with "
                   "TRIREME_MODEL_FLAG_UNEVEN"));
    rule = rule_of(0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(other, &rule, &optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(other);
    trireme_mesh_destroy(mesh);
}

static void models_without_a_norm_step_alone(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.sizes = {1, 1, 2, 1}};
    run_job(&job, step_alone);
}

/* An inf in one model: all of them skip the step, whatever axis lies between. */
static void overflow(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    int32_t at[AXES];
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_get_coordinates(mesh, rank, at, AXES));
    trireme_model *const model = make_model(v, mesh, TRIREME_STRATEGY_ZERO2, at[TENSOR]);
    trireme_optimizer_options rule = rule_of(0);
    loss_scale_of(&rule)->initial_scale = 4;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const uint64_t count = (uint64_t)(PART + at[TENSOR] + COMMON);
    float gradients[MOST], values[MOST];
    for (int i = 0; i < MOST; ++i) gradients[i] = 8;
    if (at[PIPELINE] == 1 && at[TENSOR] == 0) gradients[0] = INFINITY;
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, count, F32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
        EXPECT(v, info.skipped == (step == 0));
        gradients[0] = 4;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, count, F32));
    /* One step with a scale that fell to 2. */
    EXPECT(v, values[0] == -0.1f * 2 && values[1] == -0.1f * 4);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void an_overflow_in_one_model_skips_the_step_of_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.sizes = {2, 1, 1, 2}};
    run_job(&job, overflow);
    job = (struct job){.sizes = {2, 1, 2, 2}};
    run_job(&job, overflow);
}

/* ---- an end ---- */

static void outlive_the_mesh(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    trireme_model *const model = make_model(v, mesh, job->strategy, 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    trireme_mesh_destroy(mesh);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_check_replicas(model));
    EXPECT(v, says("communicator was destroyed before the model"));
    trireme_model_destroy(model);
}

static void a_model_ends_with_its_mesh(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1, .sizes = {2, 1, 1, 1}};
    run_job(&job, outlive_the_mesh);
    job = (struct job){.strategy = TRIREME_STRATEGY_HYBRID_SHARD, .sizes = {2, 2, 1, 1}};
    run_job(&job, outlive_the_mesh);
}

static void miss_the_seal(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    trireme_model_options options = spread_by(TRIREME_STRATEGY_ZERO1);
    options.timeout_ns = 200ull * 1000 * 1000;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    add(v, model, "norm", COMMON, "tensor");
    /* The model of rank 1 never comes; the barrier keeps its rank here. */
    if (rank == 0) {
        EXPECT_STATUS(v, TRIREME_ERROR_TIMEOUT, trireme_model_seal(model));
        EXPECT(v, says("along axis \"tensor\" of the mesh"));
        EXPECT(v, says("rank 1"));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void a_model_that_never_comes_is_missed(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.sizes = {1, 1, 2, 1}};
    run_job(&job, miss_the_seal);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mesh_trains_as_one_process),
        cmocka_unit_test(a_mesh_trains_without_its_communicator),
        cmocka_unit_test(a_mesh_makes_only_groups_that_it_needs),
        cmocka_unit_test(two_networks_have_a_norm_each),
        cmocka_unit_test(ranks_that_register_differently_get_a_mismatch),
        cmocka_unit_test(copies_along_an_axis_are_compared),
        cmocka_unit_test(each_axis_is_compared_by_itself),
        cmocka_unit_test(units_and_aliases_are_each_models_own),
        cmocka_unit_test(models_without_a_norm_step_alone),
        cmocka_unit_test(an_overflow_in_one_model_skips_the_step_of_all),
        cmocka_unit_test(a_model_ends_with_its_mesh),
        cmocka_unit_test(a_model_that_never_comes_is_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
