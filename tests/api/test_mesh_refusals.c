/*
 * Models on meshes: each option, axis and placement that contradicts another one is refused, with a
 * message that names both.
 */
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

#include "mesh_models.inc"

#define UNTOUCHED ((trireme_model *)(uintptr_t)0x6b6b)

static void refuse(struct verdict *v, trireme_mesh *mesh, const trireme_model_options *options,
                   trireme_status status, const char *words) {
    trireme_model *model = UNTOUCHED;
    EXPECT_STATUS(v, status, trireme_mesh_create_model(mesh, options, &model));
    if (!says(words)) expect_failed(v, __FILE__, __LINE__, trireme_last_error());
    EXPECT(v, model == UNTOUCHED);
}

static void be_refused_by_axes(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    trireme_model_options options = spread_by(job->strategy);
    refuse(v, mesh, &options, TRIREME_ERROR_INVALID_ARGUMENT, trireme_strategy_name(job->strategy));
    EXPECT(v, says("axis \"shard\""));
    trireme_mesh_destroy(mesh);
}

static void a_strategy_that_contradicts_the_axes_is_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    int refused = 0;
    for (size_t i = 0; i < MESHES; ++i) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
            if (goes_with(strategy, meshes[i])) continue;
            static struct job job;
            job = (struct job){.strategy = strategy};
            memcpy(job.sizes, meshes[i], sizeof job.sizes);
            run_job(&job, be_refused_by_axes);
            ++refused;
        }
    }
    assert_true(refused > 20);
}

static void give_wrong_options(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    trireme_model_options options = spread_by(TRIREME_STRATEGY_ZERO3);
    refuse(v, mesh, &options, TRIREME_ERROR_INVALID_ARGUMENT,
           "options.strategy zero3 spreads a model over \"data\" or \"shard\", but the mesh has an "
           "axis \"data\" of 2 ranks and an axis \"shard\" of 2 ranks; hybrid_shard takes both");
    options = spread_by(TRIREME_STRATEGY_DATA_PARALLEL);
    refuse(v, mesh, &options, TRIREME_ERROR_INVALID_ARGUMENT,
           "options.strategy data_parallel keeps everything on each rank, but the mesh has an axis "
           "\"shard\" of 2 ranks");
    options = spread_by(TRIREME_STRATEGY_HYBRID_SHARD);
    shards_of(&options)->ranks = 4;
    refuse(v, mesh, &options, TRIREME_ERROR_INVALID_ARGUMENT,
           "options.shards.ranks is 4, but the mesh has an axis \"shard\" of 2 ranks");
    options = spread_by(TRIREME_STRATEGY_HYBRID_SHARD);
    shards_of(&options)->stride = 1;
    refuse(v, mesh, &options, TRIREME_ERROR_INVALID_ARGUMENT,
           "options.shards.stride is 1, but neighbours on axis \"shard\" of the mesh are 2 apart");
    options = spread_by(9);
    refuse(v, mesh, &options, TRIREME_ERROR_INVALID_ARGUMENT,
           "options.strategy 9 is no TRIREME_STRATEGY_*");
    options = spread_by(TRIREME_STRATEGY_HYBRID_SHARD);
    options.units =
        &(trireme_unit_options){.struct_size = sizeof(trireme_unit_options), .reshard_ranks = 3};
    refuse(v, mesh, &options, TRIREME_ERROR_INVALID_ARGUMENT,
           "options.units.reshard_ranks 3 does not divide the 2 ranks");
    refuse(v, mesh, NULL, TRIREME_ERROR_INVALID_ARGUMENT, "options is NULL");
    options = spread_by(TRIREME_STRATEGY_HYBRID_SHARD);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_mesh_create_model(mesh, &options, NULL));
    refuse(v, NULL, &options, TRIREME_ERROR_INVALID_HANDLE, "mesh");
    refuse(v, (trireme_mesh *)all, &options, TRIREME_ERROR_INVALID_HANDLE, "communicator");
    /* The options may repeat the axes. */
    shards_of(&options)->ranks = 2;
    shards_of(&options)->stride = 2;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
    refuse(v, mesh, &options, TRIREME_ERROR_INVALID_HANDLE, "mesh");
}

static void options_that_contradict_the_axes_are_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.order = TRIREME_MESH_ORDER_FIRST_FASTEST, .sizes = {2, 2, 1, 1}};
    run_job(&job, give_wrong_options);
}

static void make_other_meshes(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    static const struct {
        const char *axes[2];
        int32_t sizes[2];
        trireme_strategy strategy;
        trireme_status status; /* OK: none */
        const char *words;
    } rows[] = {
        {{"tensor", "pipeline"},
         {2, 1},
         TRIREME_STRATEGY_ZERO1,
         TRIREME_ERROR_INVALID_ARGUMENT,
         "the mesh has neither axis \"data\" nor axis \"shard\""},
        {{"context", "expert"},
         {1, 2},
         TRIREME_STRATEGY_ZERO1,
         TRIREME_ERROR_INVALID_ARGUMENT,
         "the mesh has neither axis \"data\" nor axis \"shard\""},
        {{"data", "replica"},
         {1, 2},
         TRIREME_STRATEGY_ZERO1,
         TRIREME_ERROR_INVALID_ARGUMENT,
         "a model on axis \"replica\" of 2 ranks: an axis of a model is called data, shard, tensor, "
         "pipeline, context or expert"},
        {{"data", "tensor"},
         {2, 1},
         TRIREME_STRATEGY_HYBRID_SHARD,
         TRIREME_ERROR_INVALID_ARGUMENT,
         "options.strategy hybrid_shard needs an axis \"shard\" of the mesh"},
        {{"data", "context"}, {2, 1}, TRIREME_STRATEGY_ZERO1, TRIREME_OK, NULL},
        {{"data", "context"}, {1, 2}, TRIREME_STRATEGY_ZERO1, TRIREME_OK, NULL},
        {{"shard", "expert"}, {1, 2}, TRIREME_STRATEGY_ZERO3, TRIREME_OK, NULL},
        {{"data", "replica"}, {2, 1}, TRIREME_STRATEGY_ZERO1, TRIREME_OK, NULL},
        {{"shard", "expert"}, {2, 1}, TRIREME_STRATEGY_HYBRID_SHARD, TRIREME_OK, NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        trireme_mesh *const mesh = make_mesh(v, all, rows[i].axes, rows[i].sizes, 2, 0);
        const trireme_model_options options = spread_by(rows[i].strategy);
        if (rows[i].status != TRIREME_OK) {
            refuse(v, mesh, &options, rows[i].status, rows[i].words);
        } else {
            trireme_model *model = NULL;
            EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
            add(v, model, "w", 3, NULL);
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
            trireme_model_destroy(model);
        }
        trireme_mesh_destroy(mesh);
    }
}

static void axes_that_a_model_does_not_know_are_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.sizes = {2, 1, 1, 1}};
    run_job(&job, make_other_meshes);
}

/* Adds "x" with these placements and replicas. */
static void
refuse_placement(struct verdict *v, trireme_model *model, const char *tied_to, uint32_t replicas,
                 const trireme_parameter_placement *placements, uint64_t count, const char *words) {
    const uint64_t elements = COMMON;
    trireme_parameter_options parameter = vector_of("x", &elements);
    parameter.tied_to = tied_to;
    parameter.replicas = replicas;
    parameter.placements = placements;
    parameter.placement_count = count;
    uint64_t number = 77;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_add_parameter(model, &parameter, &number));
    if (!says(words)) expect_failed(v, __FILE__, __LINE__, trireme_last_error());
    EXPECT(v, number == 77);
}

static void place_wrongly(trireme_communicator *all, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_mesh *const mesh = make_mesh(v, all, names, job->sizes, AXES, job->order);
    const trireme_model_options options = spread_by(TRIREME_STRATEGY_ZERO1);
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(mesh, &options, &model));
    add(v, model, "norm", COMMON, "tensor");
    trireme_parameter_placement tensor[2] = {whole_on("tensor"), whole_on("tensor")};
    refuse_placement(v, model, NULL, 0, tensor, 2,
                     "options.placements[1].axis \"tensor\" of parameter \"x\" is named twice");
    refuse_placement(v, model, NULL, 0, tensor, 0,
                     "options.placements is set, but options.placement_count is 0");
    refuse_placement(v, model, NULL, 0, NULL, 1, "options.placements is NULL");
    refuse_placement(v, model, NULL, 0, tensor, 17, "options.placement_count 17 is above 16");
    refuse_placement(v, model, NULL, 3, tensor, 1,
                     "options.replicas of parameter \"x\" is 3, but it is whole on axis \"tensor\" "
                     "of 2 ranks");
    refuse_placement(
        v, model, NULL, 2, NULL, 0,
        "options.replicas of parameter \"x\" is 2, but options.placements tell no axis "
        "on which it is whole");
    trireme_parameter_placement one = whole_on("tensors");
    refuse_placement(
        v, model, NULL, 0, &one, 1,
        "options.placements[0].axis \"tensors\" of parameter \"x\" is no axis of the model's mesh");
    one = whole_on("data");
    refuse_placement(v, model, NULL, 0, &one, 1,
                     "options.placements[0].axis \"data\" of parameter \"x\" is an axis on which "
                     "options.strategy places parameters");
    one = whole_on(NULL);
    refuse_placement(v, model, NULL, 0, &one, 1, "options.placements[0].axis is NULL");
    one = whole_on("tensor");
    one.kind = 5;
    refuse_placement(v, model, NULL, 0, &one, 1,
                     "options.placements[0].kind 5 of parameter \"x\" is no TRIREME_PLACEMENT_*");
    one.kind = TRIREME_PLACEMENT_WHOLE;
    one.struct_size = 8;
    refuse_placement(v, model, NULL, 0, &one, 1, "TRIREME_PARAMETER_PLACEMENT_INIT");
    one = whole_on("pipeline");
    refuse_placement(
        v, model, "norm", 0, &one, 1,
        "options.placements of parameter \"x\" are not those of \"norm\" that it is tied to");
    /* An alias is whole where its parameter is, and may say so. An axis of 1 rank adds nothing. */
    const uint64_t elements = COMMON;
    trireme_parameter_options alias = vector_of("alias", &elements);
    alias.tied_to = "norm";
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &alias, NULL));
    alias.name = "same";
    alias.replicas = 2;
    alias.placements = tensor;
    alias.placement_count = 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &alias, NULL));
    alias.name = "alone";
    alias.tied_to = NULL;
    alias.replicas = 1;
    one = whole_on("pipeline");
    alias.placements = &one;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &alias, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_model_destroy(model);
    /* A communicator has no axes. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(all, &options, &model));
    refuse_placement(v, model, NULL, 0, tensor, 1,
                     "options.placements[0] of parameter \"x\", but its model was created on a "
                     "communicator, which has no axes");
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
}

static void placements_that_mean_nothing_are_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.sizes = {1, 1, 2, 1}};
    run_job(&job, place_wrongly);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_strategy_that_contradicts_the_axes_is_refused),
        cmocka_unit_test(options_that_contradict_the_axes_are_refused),
        cmocka_unit_test(axes_that_a_model_does_not_know_are_refused),
        cmocka_unit_test(placements_that_mean_nothing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
