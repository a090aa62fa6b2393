/*
 * Models on a mesh that fail, one of them alone: the others hear of it, and none waits for its
 * deadline. The deadline is short, so that a wait shows as a TIMEOUT.
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

#define SHORT_NS (3ull * 1000 * 1000 * 1000)
#define MODELS 64 /* of a communicator, at the same time */

/* One rank's mesh and its place there. */
struct place {
    struct verdict *v;
    trireme_mesh *mesh;
    int32_t at[AXES];
};

static struct place begin(struct job *job, trireme_communicator *all, int rank) {
    struct place p = {.v = &job->verdicts[rank]};
    p.mesh = make_mesh(p.v, all, names, job->sizes, AXES, job->order);
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_mesh_get_coordinates(p.mesh, rank, p.at, AXES));
    return p;
}

static trireme_model *create(const struct place *p, uint32_t flags) {
    trireme_model_options options = spread_by(TRIREME_STRATEGY_ZERO1);
    options.leaves = 0;
    options.flags = flags;
    options.timeout_ns = SHORT_NS;
    trireme_model *model = NULL;
    EXPECT_STATUS(p->v, TRIREME_OK, trireme_mesh_create_model(p->mesh, &options, &model));
    return model;
}

static trireme_communicator *along(const struct place *p, const char *axis) {
    trireme_communicator *ranks = NULL;
    EXPECT_STATUS(p->v, TRIREME_OK, trireme_mesh_get_axis_communicator(p->mesh, axis, &ranks));
    return ranks;
}

/* Every axis and the mesh itself are well. */
static void expect_well(const struct place *p) {
    for (int axis = 0; axis < AXES; ++axis) {
        EXPECT_STATUS(p->v, TRIREME_OK, trireme_barrier(along(p, names[axis]), NULL));
    }
    trireme_model *const model = create(p, 0);
    add(p->v, model, "w", 3, NULL);
    EXPECT_STATUS(p->v, TRIREME_OK, trireme_model_seal(model));
    trireme_model_destroy(model);
}

static void run_on(const int32_t *sizes, rank_function *function) {
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1};
    memcpy(job.sizes, sizes, sizeof job.sizes);
    assert_true(goes_with(job.strategy, sizes));
    run_job(&job, function);
}

/* ---- seal ---- */

/* Stages of one tensor coordinate differ. The others see that on no axis of theirs. */
static void differ_on_a_later_axis(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    trireme_model *const model = create(&p, 0);
    const bool odd = p.at[TENSOR] == 0 && p.at[PIPELINE] == 1;
    add(p.v, model, "norm", odd ? COMMON + 1 : COMMON, "pipeline");
    EXPECT_STATUS(p.v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(p.v, p.at[TENSOR] == 0 ? says("along axis \"pipeline\" of the mesh: whole parameter 0 ")
                                  : says("among all ranks of the mesh: rank "));
    EXPECT_STATUS(p.v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    trireme_model_destroy(model);
    expect_well(&p);
    trireme_mesh_destroy(p.mesh);
}

static void a_seal_that_fails_on_a_later_axis_fails_for_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on((const int32_t[AXES]){1, 1, 2, 2}, differ_on_a_later_axis);
    run_on((const int32_t[AXES]){2, 1, 2, 2}, differ_on_a_later_axis);
}

/* All channels of one communicator are taken, until it is too late. */
static void have_no_channels(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    trireme_model *others[MODELS] = {NULL};
    const bool full = p.at[TENSOR] == 0;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    for (int i = 0; full && i < MODELS; ++i) {
        EXPECT_STATUS(p.v, TRIREME_OK,
                      trireme_model_create(along(&p, "data"), &options, &others[i]));
    }
    trireme_model *const model = create(&p, 0);
    add(p.v, model, "w", 3, NULL);
    EXPECT_STATUS(p.v, TRIREME_ERROR_INVALID_STATE, trireme_model_seal(model));
    EXPECT(p.v, full ? says("is one of more than 64")
                     : says("along axis \"tensor\" of the mesh: rank 0 answered "));
    for (int i = 0; i < MODELS; ++i) trireme_model_destroy(others[i]);
    EXPECT_STATUS(p.v, TRIREME_ERROR_INVALID_STATE, trireme_model_seal(model));
    trireme_model_destroy(model);
    expect_well(&p);
    trireme_mesh_destroy(p.mesh);
}

static void a_seal_that_failed_is_not_repeated_alone(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on((const int32_t[AXES]){1, 1, 2, 1}, have_no_channels);
}

/* One rank's model is on the communicator of the axis. The rank with which it lies along "tensor"
 * cannot hear that. */
static void be_on_no_mesh(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    const bool plain = p.at[TENSOR] == 0 && p.at[DATA] == 1;
    trireme_model_options options = spread_by(TRIREME_STRATEGY_ZERO1);
    options.leaves = 0;
    options.timeout_ns = SHORT_NS;
    trireme_model *model = NULL;
    if (plain) {
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_create(along(&p, "data"), &options, &model));
    } else {
        model = create(&p, 0);
    }
    add(p.v, model, "w", 3, NULL);
    const bool alone = p.at[TENSOR] == 1 && p.at[DATA] == 1;
    EXPECT_STATUS(p.v, alone ? TRIREME_ERROR_TIMEOUT : TRIREME_ERROR_MISMATCH,
                  trireme_model_seal(model));
    EXPECT(p.v, p.at[TENSOR] == 0 ? says("the mesh is data=2:")
                : alone           ? says("along axis \"tensor\" of the mesh: ")
                                  : says("along axis \"tensor\" of the mesh: rank 0 answered "));
    trireme_model_destroy(model);
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(along(&p, "data"), NULL));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(all, NULL));
    /* The mesh seals no other model. */
    model = create(&p, 0);
    add(p.v, model, "w", 3, NULL);
    EXPECT_STATUS(p.v, p.at[DATA] == 1 ? TRIREME_ERROR_TIMEOUT : TRIREME_ERROR_MISMATCH,
                  trireme_model_seal(model));
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void a_model_on_no_mesh_is_a_mismatch_of_the_others(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on((const int32_t[AXES]){2, 1, 2, 1}, be_on_no_mesh);
}

/* ---- optimizers ---- */

enum odd_one { NO_NORM, NO_NORM_ON_ONE_RANK, CHECKS, UNEVEN, BAD_RATE, BAD_KIND, HAS_ONE };

/* One model, or one of its ranks, wants another optimizer than the others. */
static void want(enum odd_one what, trireme_communicator *all, int rank, struct job *job) {
    const struct place p = begin(job, all, rank);
    const bool odd = p.at[TENSOR] == 0 && (what != NO_NORM_ON_ONE_RANK || p.at[DATA] == 0);
    trireme_model *model = create(&p, what == UNEVEN && odd ? TRIREME_MODEL_FLAG_UNEVEN : 0);
    add(p.v, model, "w", 1, NULL);
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *has = NULL;
    if (what == HAS_ONE) {
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_create(model, &rule, &has));
        if (!odd) trireme_optimizer_destroy(has);
    }
    if (what == BAD_RATE && odd) rule.learning_rate = -1;
    if (what == BAD_KIND && odd) rule.kind = 999;
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    clipping.max_norm = 10;
    const bool has_norm = what != CHECKS && (!odd || what >= UNEVEN);
    if (what == CHECKS && odd) rule.check_every = 10;
    if (has_norm) rule.clipping = &clipping;
    const trireme_status expected = what == UNEVEN     ? TRIREME_ERROR_UNSUPPORTED
                                    : what == HAS_ONE  ? TRIREME_ERROR_INVALID_STATE
                                    : what >= BAD_RATE ? TRIREME_ERROR_INVALID_ARGUMENT
                                                       : TRIREME_ERROR_MISMATCH;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(p.v, expected, trireme_optimizer_create(model, &rule, &optimizer));
    if (expected == TRIREME_ERROR_MISMATCH) {
        EXPECT(p.v, says(what == CHECKS
                             ? "among all ranks of the mesh: options.check_every is 10 on rank 0 "
                             : "among all ranks of the mesh: a norm or loss scale is "));
    } else if (!odd) {
        EXPECT(p.v, says("among all ranks of the mesh: rank 0 answered "));
    }
    /* Then all want the same. */
    if (what == UNEVEN) {
        trireme_model_destroy(model);
        model = create(&p, 0);
        add(p.v, model, "w", 1, NULL);
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_seal(model));
    }
    if (odd) trireme_optimizer_destroy(has);
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    rule.check_every = 0;
    rule.clipping = &clipping;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const float gradient = (float)(3 + p.at[TENSOR]);
    double norm = 0;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_accumulate_flat(model, &gradient, 1, F32, 0));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_get_gradient_norm(optimizer, &norm));
    EXPECT(p.v, norm == 5);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void want_no_norm(trireme_communicator *all, int rank, void *context) {
    want(NO_NORM, all, rank, context);
}
static void want_no_norm_on_one_rank(trireme_communicator *all, int rank, void *context) {
    want(NO_NORM_ON_ONE_RANK, all, rank, context);
}
static void want_checks(trireme_communicator *all, int rank, void *context) {
    want(CHECKS, all, rank, context);
}
static void want_uneven_data(trireme_communicator *all, int rank, void *context) {
    want(UNEVEN, all, rank, context);
}
static void want_a_bad_rate(trireme_communicator *all, int rank, void *context) {
    want(BAD_RATE, all, rank, context);
}

static void want_a_bad_kind(trireme_communicator *all, int rank, void *context) {
    want(BAD_KIND, all, rank, context);
}
static void want_a_second_one(trireme_communicator *all, int rank, void *context) {
    want(HAS_ONE, all, rank, context);
}

static void an_optimizer_that_one_model_wants_otherwise_fails_for_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    rank_function *const wants[] = {want_no_norm,     want_no_norm_on_one_rank, want_checks,
                                    want_uneven_data, want_a_bad_rate,          want_a_bad_kind,
                                    want_a_second_one};
    for (size_t i = 0; i < sizeof wants / sizeof wants[0]; ++i) {
        run_on((const int32_t[AXES]){1, 1, 2, 1}, wants[i]);
        run_on((const int32_t[AXES]){2, 1, 2, 1}, wants[i]);
    }
}

/* One model has failed since it was sealed, and knows it. */
static void want_one_for_a_failed_model(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    trireme_model *const model = create(&p, 0);
    add(p.v, model, "w", 3, NULL);
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_seal(model));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(all, NULL));
    const bool failed = p.at[TENSOR] == 0;
    if (failed) {
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_communicator_abort(along(&p, "data"), "for a test"));
        EXPECT_STATUS(p.v, TRIREME_ERROR_ABORTED, trireme_model_check_replicas(model));
    }
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(p.v, TRIREME_ERROR_ABORTED, trireme_optimizer_create(model, &rule, &optimizer));
    if (!failed) EXPECT(p.v, says("among all ranks of the mesh: "));
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void an_optimizer_for_a_failed_model_fails_for_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on((const int32_t[AXES]){2, 1, 2, 1}, want_one_for_a_failed_model);
}

/* ---- check_replicas ---- */

/* The ranks of one model have lost each other; those of the others are well. */
static void compare_with_one_that_failed(trireme_communicator *all, int rank, void *context) {
    const struct job *const job = context;
    const struct place p = begin(context, all, rank);
    trireme_model *const model = create(&p, 0);
    const trireme_parameter_placement both[2] = {whole_on("tensor"), whole_on("pipeline")};
    const uint64_t elements = COMMON;
    trireme_parameter_options norm = vector_of("norm", &elements);
    norm.placements = both;
    norm.placement_count = 2;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_add_parameter(model, &norm, NULL));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_seal(model));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_check_replicas(model));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(all, NULL));
    const int away = p.at[TENSOR] + p.at[PIPELINE];
    if (away == 0) {
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_communicator_abort(along(&p, "data"), "for a test"));
    }
    EXPECT_STATUS(p.v, away < 2 ? TRIREME_ERROR_ABORTED : TRIREME_OK,
                  trireme_model_check_replicas(model));
    if (away == 1) {
        EXPECT(p.v,
               says(p.at[TENSOR] == 1 ? "along axis \"tensor\" of the mesh: rank 0 answered "
                                      : "along axis \"pipeline\" of the mesh: rank 0 answered "));
    }
    /* They go on, and so do the communicators of the caller. */
    float values[COMMON];
    EXPECT_STATUS(p.v, away == 0 ? TRIREME_ERROR_ABORTED : TRIREME_OK,
                  trireme_model_gather_parameters(model, values, COMMON, F32));
    if (away > 0) EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(along(&p, "data"), NULL));
    if (job->sizes[PIPELINE] > 1) {
        EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(along(&p, "pipeline"), NULL));
    }
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(along(&p, "tensor"), NULL));
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void a_model_that_cannot_compare_tells_the_others(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on((const int32_t[AXES]){1, 1, 2, 1}, compare_with_one_that_failed);
    run_on((const int32_t[AXES]){2, 1, 2, 1}, compare_with_one_that_failed);
    run_on((const int32_t[AXES]){2, 1, 2, 2}, compare_with_one_that_failed);
}

/* A step under way is no failure: the comparison can be made again. */
static void compare_in_a_step(trireme_communicator *all, int rank, void *context) {
    const struct place p = begin(context, all, rank);
    trireme_model *const model = create(&p, 0);
    add(p.v, model, "norm", COMMON, "tensor");
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_seal(model));
    const bool odd = p.at[TENSOR] == 0;
    const float gradients[COMMON] = {1};
    if (odd) {
        EXPECT_STATUS(p.v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, COMMON, F32, 0));
    }
    EXPECT_STATUS(p.v, TRIREME_ERROR_INVALID_STATE, trireme_model_check_replicas(model));
    EXPECT(p.v, odd ? says("a step is under way")
                    : says("along axis \"tensor\" of the mesh: rank 0 answered INVALID_STATE"));
    if (odd) EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_discard_gradients(model));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_check_replicas(model));
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void a_model_in_a_step_tells_the_others(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    run_on((const int32_t[AXES]){1, 1, 2, 1}, compare_in_a_step);
    run_on((const int32_t[AXES]){2, 1, 2, 1}, compare_in_a_step);
}

static int32_t TRIREME_CALLCONV refuse(const trireme_update *update, void *answer) {
    (void)update;
    return *(const int32_t *)answer;
}

/* The rule of one model fails in a step that ends with a comparison. */
static void fail_in_a_step(double max_norm, trireme_communicator *all, int rank, struct job *job) {
    const struct place p = begin(job, all, rank);
    trireme_model *const model = create(&p, 0);
    add(p.v, model, "norm", COMMON, "tensor");
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_model_seal(model));
    const bool odd = p.at[TENSOR] == 0;
    int32_t answer = 0;
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_USER;
    rule.learning_rate = 1;
    rule.check_every = 2;
    user_rule_of(&rule)->update = refuse;
    user_rule_of(&rule)->user_data = &answer;
    if (max_norm > 0) clipping_of(&rule)->max_norm = max_norm;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const float gradients[COMMON] = {1};
    for (int step = 1; step <= 2; ++step) {
        if (step == 2 && odd && p.at[DATA] == 0) answer = 7;
        EXPECT_STATUS(p.v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, COMMON, F32, 0));
        EXPECT_STATUS(p.v, step == 1 ? TRIREME_OK : TRIREME_ERROR_CALLBACK,
                      trireme_optimizer_step(optimizer));
    }
    EXPECT(p.v, odd ? says("the update rule of rank 0 answered 7")
                    : says("along axis \"tensor\" of the mesh: rank 0 answered CALLBACK"));
    /* A model that failed comes to later ones, too. */
    EXPECT_STATUS(p.v, TRIREME_ERROR_CALLBACK, trireme_model_check_replicas(model));
    EXPECT_STATUS(p.v, TRIREME_OK, trireme_barrier(along(&p, "tensor"), NULL));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(p.mesh);
}

static void fail_alone(trireme_communicator *all, int rank, void *context) {
    fail_in_a_step(0, all, rank, context);
}
static void fail_after_the_norm(trireme_communicator *all, int rank, void *context) {
    fail_in_a_step(10, all, rank, context);
}

static void a_step_that_fails_tells_the_models_that_compare(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    rank_function *const fail[] = {fail_alone, fail_after_the_norm};
    for (size_t i = 0; i < sizeof fail / sizeof fail[0]; ++i) {
        run_on((const int32_t[AXES]){1, 1, 2, 1}, fail[i]);
        run_on((const int32_t[AXES]){2, 1, 2, 1}, fail[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_seal_that_fails_on_a_later_axis_fails_for_all),
        cmocka_unit_test(a_seal_that_failed_is_not_repeated_alone),
        cmocka_unit_test(a_model_on_no_mesh_is_a_mismatch_of_the_others),
        cmocka_unit_test(an_optimizer_that_one_model_wants_otherwise_fails_for_all),
        cmocka_unit_test(an_optimizer_for_a_failed_model_fails_for_all),
        cmocka_unit_test(a_model_that_cannot_compare_tells_the_others),
        cmocka_unit_test(a_model_in_a_step_tells_the_others),
        cmocka_unit_test(a_step_that_fails_tells_the_models_that_compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
