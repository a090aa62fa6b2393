/*
 * A weight that three layers of a chain share (TRIREME_PLACEMENT_TIED), on stages of several ranks:
 * the bits of a plain loop, and what all ranks hear when something goes wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <ranks.h>

#include "pipeline_chain_checks.inc"

#define LEAVES 6

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static struct job job_of(int data, int ranks) {
    return (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                        .data = data,
                        .ranks = ranks,
                        .order = TRIREME_PIPELINE_ORDER_1F1B,
                        .stages_per_rank = 1,
                        .leaves = LEAVES,
                        .split = 0x15,
                        .tied = true};
}

/* Planned is allocated, in the trainer and in the model. */
static void check_memory(struct rank *r) {
    struct verdict *const v = r->verdict;
    trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r->trainer, &info));
    EXPECT(v, info.allocated_bytes == info.planned_stretch_bytes + info.planned_gradient_bytes +
                                          info.planned_parameter_gradient_bytes +
                                          info.planned_exchange_bytes);
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(r->model, &memory));
    EXPECT(v, memory.planned_parameters == memory.allocated_parameters &&
                  memory.planned_gradients == memory.allocated_gradients &&
                  memory.planned_optimizer_state == memory.allocated_optimizer_state &&
                  memory.planned_working == memory.allocated_working);
}

static void make_right_steps(struct rank *r) {
    struct verdict *const v = r->verdict;
    const struct curve *const right = r->job->right;
    for (int step = 0; step < STEPS && v->text[0] == 0; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r->trainer, r, &metrics));
        if (right == NULL) continue;
        EXPECT(v, memcmp(&metrics.loss, &right->losses[step], sizeof(double)) == 0);
        EXPECT(v, metrics.gradient_norm == right->norms[step]);
    }
    double loss = 0;
    if (v->text[0] != 0) return;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_evaluate(r->trainer, r, &loss));
    if (right == NULL) return;
    check_chain_values(r);
    EXPECT(v, memcmp(&loss, &right->evaluated, sizeof loss) == 0);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(r->model));
    check_memory(r);
}

static void train(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(r.verdict, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    double loss = 0; /* an evaluation before any step holds nothing back */
    if (r.verdict->text[0] == 0 && job->act == NOTHING && job->right != NULL) {
        EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_trainer_evaluate(r.trainer, &r, &loss));
    }
    if (job->act != NOTHING && r.verdict->text[0] == 0) {
        EXPECT_STATUS(r.verdict, TRIREME_ERROR_CALLBACK, trireme_trainer_step(r.trainer, &r, NULL));
    }
    make_right_steps(&r);
    end_rank(&r);
}

/* A job of one rank tells the seeds. `ranks` with `passes`: without leaves. */
static const struct curve *curve_of(int ranks, int passes) {
    static struct curve curves[4];
    struct curve *const curve = &curves[ranks];
    if (curve->losses[0] != 0) return curve;
    static struct job job;
    job = job_of(1, 1);
    job.tied = false;
    job.leaves = 0;
    job.micro_batches = MOST_LEAVES;
    run_chain(&job, train);
    plain_training(LEAVES, ranks, passes, curve);
    return curve;
}

static const trireme_strategy kStrategies[] = {TRIREME_STRATEGY_DATA_PARALLEL,
                                               TRIREME_STRATEGY_ZERO1, TRIREME_STRATEGY_ZERO2,
                                               TRIREME_STRATEGY_ZERO3,
                                               TRIREME_STRATEGY_HYBRID_SHARD};
enum { STRATEGIES = 5 };

static const struct {
    trireme_pipeline_order order;
    int stages_per_rank;
} kOrders[] = {
    {TRIREME_PIPELINE_ORDER_GPIPE, 1},       {TRIREME_PIPELINE_ORDER_1F1B, 1},
    {TRIREME_PIPELINE_ORDER_ZB_H1, 1},       {TRIREME_PIPELINE_ORDER_ZB_V, 2},
    {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2}, {TRIREME_PIPELINE_ORDER_BEST, 1},
};
enum { ORDERS = 6 };

/* The layers of the weight lie on 1 to 3 ranks, and a rank has up to all three of them. */
static void every_layout_has_the_bits_of_a_plain_loop(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const int meshes[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 2},
                                    {2, 3}, {3, 2}, {4, 2}, {2, 1}, {1, 5}};
    const bool all = getenv("TRIREME_TEST_LONG") != NULL;
    int turn = 0;
    for (int m = 0; m < 10; ++m) {
        for (int k = 0; k < ORDERS; ++k) {
            for (int s = 0; s < STRATEGIES; ++s, ++turn) {
                if (!all && turn % 5 != m % 5) continue;
                static struct job job;
                job = job_of(meshes[m][0], meshes[m][1]);
                job.right = curve_of(0, 0);
                job.strategy = kStrategies[(s + k) % STRATEGIES];
                job.order = kOrders[k].order;
                job.stages_per_rank = kOrders[k].stages_per_rank;
                job.in_units = turn % 2 != 0;
                if (!all_have_parameters(&job)) continue;
                run_chain(&job, train);
            }
        }
    }
}

/* Ranks have one leaf more than others, or none. */
static void ranks_without_a_leaf_wait_for_none(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct curve one;
    (void)curve_of(0, 0);
    plain_training(1, 0, 0, &one);
    for (int s = 0; s < STRATEGIES; ++s) {
        static struct job job;
        job = job_of(2, 2);
        job.leaves = 1;
        job.strategy = kStrategies[s];
        job.right = &one;
        run_chain(&job, train);
        job.split = 0;
        job.act = ANSWERS; /* the rank without a leaf drops the step, too */
        job.layer = 4 * (s % 2);
        job.phase = s % 3 == 0 ? TRIREME_PHASE_FORWARD : TRIREME_PHASE_BACKWARD;
        run_chain(&job, train);
    }
}

static void micro_batches_without_leaves_add_up_in_order(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int data = 1; data <= 3; ++data) {
        for (int k = 0; k < ORDERS; ++k) {
            static struct job job;
            job = job_of(data, 2);
            job.leaves = 0;
            job.micro_batches = LEAVES / data;
            job.right = curve_of(data, LEAVES / data);
            job.strategy = kStrategies[(k + data) % 4];
            job.order = kOrders[k].order;
            job.stages_per_rank = kOrders[k].stages_per_rank;
            run_chain(&job, train);
        }
    }
}

/* ---- failures ---- */

static void a_failed_callback_trains_nothing(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static const int32_t phases[] = {TRIREME_PHASE_FORWARD, TRIREME_PHASE_BACKWARD};
    for (int layer = 1; layer <= 5; layer += 2) {
        for (int p = 0; p < 2; ++p) {
            for (int data = 1; data <= 2; ++data) {
                static struct job job;
                job = job_of(data, 3);
                job.right = curve_of(0, 0);
                job.strategy = kStrategies[(layer + p) % STRATEGIES];
                job.split = 0;
                job.act = ANSWERS;
                job.layer = layer == 3 ? 4 : layer;
                job.phase = phases[p];
                job.micro_batch = data == 1 ? 4 : 1;
                job.rank = data - 1;
                run_chain(&job, train);
            }
        }
    }
}

static void gaps_are_found(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(1, 3);
    job.right = curve_of(0, 0);
    job.split = 0;
    job.act = LEAVES_GAP;
    job.layer = 4;
    job.phase = TRIREME_PHASE_BACKWARD;
    run_chain(&job, train);
}

/* A gradient of one layer and leaf is inf. */
static int32_t TRIREME_CALLCONV backward_to_inf(const trireme_layer_call *c, void *user_data) {
    const struct layer_of *const me = user_data;
    const int32_t answer = backward(c, user_data);
    if (c->leaf == 3 && c->gradients != NULL && !me->rank->acted) {
        ((float *)c->gradients[0])[7] = INFINITY;
        me->rank->acted = true;
    }
    return answer;
}

static void skip_together(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    for (uint64_t i = 0; i < r.layer_count; ++i) {
        if (((struct layer_of *)r.layers[i].user_data)->layer != job->layer) continue;
        r.layers[i].backward = backward_to_inf;
    }
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
    EXPECT(v, metrics.skipped == 1 && metrics.step == 0);
    make_right_steps(&r);
    end_rank(&r);
}

static void an_overflow_skips_the_step_on_all(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int layer = 1; layer <= 4; layer += 3) {
        static struct job job;
        job = job_of(2, 2);
        job.strategy = layer == 1 ? TRIREME_STRATEGY_DATA_PARALLEL : TRIREME_STRATEGY_ZERO3;
        job.right = curve_of(0, 0);
        job.split = 0;
        job.loss_scale = 4; /* a power of two, so that no bit changes */
        job.layer = layer;
        run_chain(&job, skip_together);
    }
}

static void seal_only(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    make_rank(&r, all); /* expects a MISMATCH */
    EXPECT(r.verdict, says("tied"));
    end_rank(&r);
}

static void ranks_that_disagree_are_told(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int place = 0; place < 2; ++place) {
        static struct job job;
        job = job_of(2, 2);
        job.untied = place + 1;
        run_chain(&job, seal_only);
        job = job_of(1, 3);
        job.other_shape = place + 1;
        run_chain(&job, seal_only);
    }
}

static void step_once(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_trainer_step(r.trainer, &r, NULL));
    EXPECT(v, says("tied parameter \"tied\" has other bits on rank"));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_check_replicas(r.model));
    /* Nothing was trained, so the model goes on with the right values. */
    float values[ELEMENTS];
    uint64_t count = 0;
    bool has_tied = false;
    for (uint64_t i = 0; i < r.layer_count; ++i) {
        const int layer = ((struct layer_of *)r.layers[i].user_data)->layer;
        for (int k = 0; k < weights_of(layer) && !(is_tied(layer) && has_tied); ++k) {
            values[count++] = initial(weight_of(layer) + k);
        }
        for (int k = 0; k < biases_of(layer); ++k) {
            values[count++] = initial(first_of(layer) + weights_of(layer) + k);
        }
        has_tied = has_tied || is_tied(layer);
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(r.model, values, count, F32, 0));
    make_right_steps(&r);
    end_rank(&r);
}

/* The first call of one stage is an evaluation, and that of the others a step. */
static void call_other_things(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    double loss = 0;
    const trireme_status status = r.place == 1 ? trireme_trainer_evaluate(r.trainer, &r, &loss)
                                               : trireme_trainer_step(r.trainer, &r, NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, status);
    EXPECT(v, says("of step 1 ") && says("of an evaluation after step 0"));
    end_rank(&r);
}

static void copies_that_differ_are_not_trained(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int ranks = 2; ranks <= 4; ++ranks) {
        static struct job job;
        job = job_of(ranks == 2 ? 2 : 1, ranks);
        job.other_value = 1;
        job.right = curve_of(0, 0);
        run_chain(&job, step_once);
    }
}

static void ranks_in_different_calls_hear_of_it(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int data = 1; data <= 2; ++data) {
        static struct job job;
        job = job_of(data, 2);
        job.timeout_ns = 20000000000;
        run_chain(&job, call_other_things);
    }
}

/* Without a norm, no other part compares the rates of the ranks. */
static void with_other_rates(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    if (r.place == 0) {
        EXPECT_STATUS(v, TRIREME_OK,
                      r.job->grouped ? trireme_optimizer_set_group_rate_factor(r.optimizer, 0, 0.5)
                                     : trireme_optimizer_set_learning_rate(r.optimizer, 0.5));
    }
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_trainer_step(r.trainer, &r, NULL));
    EXPECT(v, says(r.job->grouped ? "rate factors" : "learning rate"));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_trainer_step(r.trainer, &r, NULL));
    end_rank(&r);
}

static void with_other_rules(trireme_communicator *all, int number, void *context) {
    struct job own = *(const struct job *)context;
    struct job *const shared = context;
    struct rank r = begin_rank(all, number, shared);
    struct verdict *const v = r.verdict;
    own.other_rule = r.place == 1;
    r.job = &own;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, create_chain_trainer(&r, &pipeline));
    EXPECT(v, says("options.kind"));
    end_rank(&r);
}

/* A trainer of one rank alone would train its copy alone. */
static void train_without_a_pipeline(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    make_rank(&r, all);
    EXPECT_STATUS(r.verdict, TRIREME_ERROR_INVALID_ARGUMENT, create_chain_trainer(&r, NULL));
    EXPECT(r.verdict, says("set options.pipeline"));
    end_rank(&r);
}

/* The pipeline's ranks have another order than those of the mesh. */
static void train_in_another_order(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    trireme_communicator *other = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_split(all, r.data, -r.place, NULL, &other));
    trireme_communicator_destroy(r.along);
    r.along = other;
    r.place = r.job->ranks - 1 - r.place; /* its stages come from there */
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, create_chain_trainer(&r, &pipeline));
    EXPECT(v, says("of this axis"));
    end_rank(&r);
}

static void trainers_that_cannot_add_up_are_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(1, 2);
    run_chain(&job, train_without_a_pipeline);
    job = job_of(1, 4);
    run_chain(&job, train_in_another_order);
}

/* A name of one rank alone, and models that cannot tie. */
static void refuse_parameters(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    trireme_parameter_placement tie = TRIREME_PARAMETER_PLACEMENT_INIT;
    tie.axis = "data";
    tie.kind = TRIREME_PLACEMENT_TIED;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = r.place == 0 ? "tokens" : "token";
    parameter.dtype = F32;
    parameter.placements = &tie;
    parameter.placement_count = 1;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(r.mesh, &options, &r.model));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_add_parameter(r.model, &parameter, NULL));
    tie.axis = "pipeline";
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(r.model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_model_seal(r.model));
    EXPECT(v, says("but no other rank has one of this name"));
    trireme_model_destroy(r.model);
    options.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    EXPECT_STATUS(v, TRIREME_OK, trireme_mesh_create_model(r.mesh, &options, &r.model));
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                  trireme_model_add_parameter(r.model, &parameter, NULL));
    EXPECT(v, says("TRIREME_PLACEMENT_TIED in a model with"));
    end_rank(&r);
}

static void parameters_that_cannot_be_tied_are_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(1, 2);
    run_chain(&job, refuse_parameters);
}

static void holders_update_alike(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(1, 2);
    job.norm = NO_NORM;
    run_chain(&job, with_other_rates);
    job.grouped = true;
    run_chain(&job, with_other_rates);
    job = job_of(2, 2);
    job.norm = NO_NORM;
    run_chain(&job, with_other_rules);
}

int main(void) {
    chain_ties = TIES;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_has_the_bits_of_a_plain_loop),
        cmocka_unit_test(ranks_without_a_leaf_wait_for_none),
        cmocka_unit_test(micro_batches_without_leaves_add_up_in_order),
        cmocka_unit_test(a_failed_callback_trains_nothing),
        cmocka_unit_test(gaps_are_found),
        cmocka_unit_test(an_overflow_skips_the_step_on_all),
        cmocka_unit_test(ranks_that_disagree_are_told),
        cmocka_unit_test(copies_that_differ_are_not_trained),
        cmocka_unit_test(ranks_in_different_calls_hear_of_it),
        cmocka_unit_test(holders_update_alike),
        cmocka_unit_test(trainers_that_cannot_add_up_are_refused),
        cmocka_unit_test(parameters_that_cannot_be_tied_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
