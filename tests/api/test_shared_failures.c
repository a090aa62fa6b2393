/*
 * Parameters that are SHARED along "tensor" where that cannot be, or where one model fails: what
 * does not go with them is refused with the reason. Models that differ get a MISMATCH. A failure of
 * one model reaches the others, and none waits for its deadline.
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

#define F32 TRIREME_DTYPE_F32
#define MOST_RANKS 8
#define SHORT_NS (5ull * 1000 * 1000 * 1000)

struct job {
    int data, tensor, pipeline;
    struct verdict verdicts[MOST_RANKS];
};

/* One rank's mesh and its place there. */
struct place {
    struct verdict *v;
    trireme_mesh *mesh;
    int data, tensor;
};

static bool says(const char *words) {
    if (strstr(trireme_last_error(), words) != NULL) return true;
    print_error("not \"%s\", but: %s\n", words, trireme_last_error());
    return false;
}

static struct place begin(struct job *job, trireme_communicator *all, int rank) {
    static const char *const axes[3] = {"data", "tensor", "pipeline"};
    const int32_t sizes[3] = {job->data, job->tensor, job->pipeline};
    struct place p = {.v = &job->verdicts[rank]};
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_names = axes;
    options.axis_sizes = sizes;
    options.axis_count = 3;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_mesh_create(all, &options, &p.mesh));
    int32_t at[3] = {0};
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_mesh_get_coordinates(p.mesh, rank, at, 3));
    p.data = at[0];
    p.tensor = at[1];
    return p;
}

static trireme_model_options zero2(void) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    options.timeout_ns = SHORT_NS;
    return options;
}

static trireme_parameter_placement on(const char *axis, trireme_placement kind) {
    trireme_parameter_placement placement = TRIREME_PARAMETER_PLACEMENT_INIT;
    placement.kind = kind;
    placement.axis = axis;
    return placement;
}

static trireme_status
add(trireme_model *model, const char *name, uint64_t elements, trireme_placement kind) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const trireme_parameter_placement placement = on("tensor", kind);
    parameter.name = name;
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    parameter.placements = kind != 0 ? &placement : NULL;
    parameter.placement_count = kind != 0 ? 1 : 0;
    return trireme_model_add_parameter(model, &parameter, NULL);
}

static void run_on(int data, int tensor, int pipeline, rank_function *function) {
    static struct job job;
    job = (struct job){.data = data, .tensor = tensor, .pipeline = pipeline};
    run_ranks(data * tensor * pipeline, function, &job);
    assert_verdicts(job.verdicts, data * tensor * pipeline);
}

static void refuse(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    const struct {
        uint32_t flags;
        const char *words;
    } rows[] = {
        {TRIREME_MODEL_FLAG_UNEVEN,
         "TRIREME_PLACEMENT_SHARED in a model with "
         "TRIREME_MODEL_FLAG_UNEVEN"},
        {TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD,
         "TRIREME_PLACEMENT_SHARED in a model with "
         "TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        trireme_model_options options = zero2();
        options.flags = rows[i].flags;
        trireme_model *model = NULL;
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_mesh_create_model(p.mesh, &options, &model));
        EXPECT_STATUS(p.v, TRIREME_ERROR_UNSUPPORTED,
                      add(model, "norm", 3, TRIREME_PLACEMENT_SHARED));
        EXPECT(p.v, says(rows[i].words));
        EXPECT_STATUS(p.v, TRIREME_OK, add(model, "norm", 3, TRIREME_PLACEMENT_WHOLE));
        trireme_model_destroy(model);
    }
    trireme_model_options options = zero2();
    options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_mesh_create_model(p.mesh, &options, &model));
    EXPECT_STATUS(p.v, TRIREME_OK, add(model, "norm", 3, TRIREME_PLACEMENT_SHARED));
    const trireme_parameter_placement both[2] = {on("tensor", TRIREME_PLACEMENT_SHARED),
                                                 on("pipeline", TRIREME_PLACEMENT_SHARED)};
    trireme_parameter_options twice = TRIREME_PARAMETER_OPTIONS_INIT;
    twice.name = "twice";
    twice.dtype = F32;
    twice.placements = both;
    twice.placement_count = 2;
    EXPECT_STATUS(p.v, TRIREME_ERROR_UNSUPPORTED, trireme_model_add_parameter(model, &twice, NULL));
    EXPECT(p.v, says("parameter \"twice\" is shared on two axes of several ranks"));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(p.v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(p.v, says("TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with TRIREME_PLACEMENT_SHARED"));
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void what_does_not_go_with_sums_is_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on(1, 2, 2, refuse);
}

/* ---- models that differ ---- */

static int32_t TRIREME_CALLCONV keep_bucket(const trireme_bucket *bucket, void *user_data) {
    (void)bucket;
    (void)user_data;
    return 0;
}

static void differ(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    const bool odd = p.tensor == 1;
    const char *const words[] = {
        "whole parameter 0 is \"norm\" f32 [3] of 2 replicas shared on \"tensor\" on rank 0 and "
        "\"norm\" f32 [3] of 2 replicas whole on \"tensor\" on rank 1",
        "whole parameter 0 is \"norm\" f32 [3] of 2 replicas shared on \"tensor\" on rank 0 and "
        "missing on rank 1",
        "options.strategy is zero2 on rank 0 and zero1 on rank 1",
        "options.leaves is 0 on rank 0 and 2 on rank 1",
        "options.gradients is average on rank 0 and sum on rank 1",
        "options.unused is 0 on rank 0 and 1 on rank 1",
        "options.reduce_dtype is 0 on rank 0",
        "options.buckets.hook is not set on rank 0 and set on rank 1",
    };
    for (int what = 0; what < (int)(sizeof words / sizeof words[0]); ++what) {
        trireme_model_options options = zero2();
        if (odd && what == 2) options.strategy = TRIREME_STRATEGY_ZERO1;
        if (odd && what == 3) options.leaves = 2;
        if (odd && what == 4) options.gradients = TRIREME_GRADIENTS_SUM;
        if (odd && what == 5) options.unused = TRIREME_UNUSED_ZERO;
        if (odd && what == 6) options.reduce_dtype = TRIREME_DTYPE_BF16;
        if (odd && what == 7) buckets_of(&options)->hook = keep_bucket;
        trireme_model *model = NULL;
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_mesh_create_model(p.mesh, &options, &model));
        EXPECT_STATUS(p.v, TRIREME_OK,
                      add(model, "norm", 3,
                          odd && what == 0   ? TRIREME_PLACEMENT_WHOLE
                          : odd && what == 1 ? 0
                                             : TRIREME_PLACEMENT_SHARED));
        EXPECT_STATUS(p.v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
        EXPECT(p.v, says(words[what]));
        EXPECT_STATUS(p.v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
        trireme_model_destroy(model);
    }
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(all, NULL));
    trireme_mesh_destroy(p.mesh);
}

static void models_that_differ_get_a_mismatch(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on(1, 2, 1, differ);
    run_on(2, 2, 1, differ);
}

/* ---- one model fails ---- */

static int32_t TRIREME_CALLCONV fail_bucket(const trireme_bucket *bucket, void *user_data) {
    return bucket->moment == TRIREME_HOOK_BEFORE && *(const bool *)user_data ? 7 : 0;
}

static trireme_model *make(const struct place *p, const trireme_model_options *options) {
    trireme_model *model = NULL;
    EXPECT_STATUS(p->v, TRIREME_OK, trireme_mesh_create_model(p->mesh, options, &model));
    EXPECT_STATUS(p->v, TRIREME_OK, add(model, "norm", 3, TRIREME_PLACEMENT_SHARED));
    EXPECT_STATUS(p->v, TRIREME_OK, add(model, "w", 2, 0));
    EXPECT_STATUS(p->v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

/* Its step ends as the other model stands in the next pass. */
static void fail_in_a_hook(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    bool fails = p.tensor == 1 && p.data == 0;
    trireme_model_options options = zero2();
    buckets_of(&options)->hook = fail_bucket;
    buckets_of(&options)->user_data = &fails;
    trireme_model *const model = make(&p, &options);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const float gradients[5] = {1, 2, 3, 4, 5};
    trireme_status status = TRIREME_OK;
    for (int step = 0; step < 3 && status == TRIREME_OK; ++step) {
        status = trireme_model_accumulate_flat(model, gradients, 5, F32, 0);
        if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    }
    EXPECT_STATUS(p.v, TRIREME_ERROR_CALLBACK, status);
    EXPECT_STATUS(p.v, TRIREME_ERROR_CALLBACK,
                  trireme_model_accumulate_flat(model, gradients, 5, F32, 0));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void a_model_whose_hook_fails_fails_the_others(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on(1, 2, 1, fail_in_a_hook);
    run_on(2, 2, 1, fail_in_a_hook);
}

/* The ranks of one model lose each other while the other model waits for a sum. */
static void lose_the_model(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    const trireme_model_options options = zero2();
    trireme_model *const model = make(&p, &options);
    trireme_communicator *data = NULL;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_mesh_get_axis_communicator(p.mesh, "data", &data));
    const float gradients[5] = {1, 2, 3, 4, 5};
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(all, NULL));
    if (p.tensor == 1) {
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_communicator_abort(data, "for a test"));
    }
    trireme_status status = TRIREME_OK;
    /* A pass does not wait for the ranks of its model. The next one needs the other model again. */
    for (int i = 0; i < 2 && status == TRIREME_OK; ++i) {
        status =
            trireme_model_accumulate_flat(model, gradients, 5, F32, TRIREME_BACKWARD_FLAG_NO_SYNC);
    }
    EXPECT_STATUS(p.v, TRIREME_ERROR_ABORTED, status);
    EXPECT(p.v, says("for a test"));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(all, NULL));
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void a_model_that_is_lost_fails_those_that_wait_for_its_summand(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on(2, 2, 1, lose_the_model);
}

/* Some gradients of a step are on their way. All ranks discard the step, and make the next one. */
static void discard(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    const trireme_model_options options = zero2();
    trireme_model *const model = make(&p, &options);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const float gradients[5] = {1, 2, 3, 4, 5};
    for (int early = 0; early < 2; ++early) {
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        if (p.tensor == early) {
            EXPECT_STATUS(p.v, TRIREME_OK,
                          trireme_model_gradient_ready(model, 0, gradients, 3, F32));
        }
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_discard_gradients(model));
    }
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 5, F32, 0));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_step(optimizer));
    float values[5];
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_gather_parameters(model, values, 5, F32));
    EXPECT(p.v, values[0] == -2 && values[1] == -4 && values[2] == -6 && values[3] == -4);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void a_step_that_all_discard_leaves_no_summand(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on(1, 2, 1, discard);
    run_on(2, 2, 1, discard);
}

/* ---- gradients of what is whole ---- */

enum { LATE_STEP = 5 };

/* A model forgets its sum in one step. The others find that before any parameter changes. */
static void forget_a_sum(const struct place *p, int forgotten, uint64_t check_every, bool found) {
    const trireme_model_options options = zero2();
    trireme_model *model = NULL;
    EXPECT_STATUS(p->v, TRIREME_OK, trireme_mesh_create_model(p->mesh, &options, &model));
    EXPECT_STATUS(p->v, TRIREME_OK, add(model, "own", 2, 0));
    EXPECT_STATUS(p->v, TRIREME_OK, add(model, "bias", 7, TRIREME_PLACEMENT_WHOLE));
    EXPECT_STATUS(p->v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    rule.check_every = check_every;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(p->v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    for (int step = 1; step <= forgotten; ++step) {
        float gradients[9] = {(float)p->tensor, 2, 1, 1, 1, 1, 1, 1, 1};
        if (step == forgotten && p->tensor == 1) gradients[7] = 3;
        EXPECT_STATUS(p->v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 9, F32, 0));
        const bool fails = found && step == forgotten;
        EXPECT_STATUS(p->v, fails ? TRIREME_ERROR_MISMATCH : TRIREME_OK,
                      trireme_optimizer_step(optimizer));
        if (fails) {
            EXPECT(p->v, says("along axis \"tensor\" of the mesh: the gradient of parameter 1 "
                              "(\"bias\") has other bits on rank 1 than on the others of "));
        }
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void forget_sums(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    for (int step = 1; step <= 3; ++step) forget_a_sum(&p, step, 0, true);
    forget_a_sum(&p, 4, 0, false);
    forget_a_sum(&p, LATE_STEP, LATE_STEP, true);
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(all, NULL));
    trireme_mesh_destroy(p.mesh);
}

/* One model has no gradient to compare. */
static void want_one_sweep(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    trireme_model_options options = zero2();
    options.strategy = TRIREME_STRATEGY_ZERO1;
    trireme_model *model = NULL;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_mesh_create_model(p.mesh, &options, &model));
    EXPECT_STATUS(p.v, TRIREME_OK, add(model, "bias", 7, TRIREME_PLACEMENT_WHOLE));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    if (p.tensor == 1) rule.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(p.v, TRIREME_ERROR_MISMATCH, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT(p.v, says("a gradient that is there before its update is yes on rank 0 and no on rank"));
    rule.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const float gradients[7] = {0};
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 7, F32, 0));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_step(optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void models_compare_gradients_or_none_does(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on(2, 2, 1, want_one_sweep);
}

static void a_forgotten_sum_is_a_mismatch(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on(1, 3, 1, forget_sums);
    run_on(2, 3, 1, forget_sums);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_go_with_sums_is_refused),
        cmocka_unit_test(models_that_differ_get_a_mismatch),
        cmocka_unit_test(a_model_whose_hook_fails_fails_the_others),
        cmocka_unit_test(a_model_that_is_lost_fails_those_that_wait_for_its_summand),
        cmocka_unit_test(a_step_that_all_discard_leaves_no_summand),
        cmocka_unit_test(a_forgotten_sum_is_a_mismatch),
        cmocka_unit_test(models_compare_gradients_or_none_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
