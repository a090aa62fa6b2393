/*
 * A trainer with a pipeline against a plain loop of one process: the same bits for every schedule,
 * number of ranks and strategy, in memory as planned.
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

static void train(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    memset(r.layers, 0x5a, sizeof r.layers); /* they were copied */
    describe_chain(&r);
    for (int step = 0; step < STEPS && v->text[0] == 0; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
        if (job->right == NULL) continue;
        EXPECT(v, memcmp(&metrics.loss, &job->right->losses[step], sizeof(double)) == 0);
        EXPECT(v, metrics.gradient_norm == job->right->norms[step]);
        EXPECT(v, metrics.step == (uint64_t)step + 1 && metrics.stop == 0 && metrics.skipped == 0);
        const int total = job->leaves > 0 ? job->leaves : job->data * job->micro_batches;
        EXPECT(v, metrics.micro_batches == (uint64_t)total);
    }
    double evaluated = 0;
    if (v->text[0] == 0) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_evaluate(r.trainer, &r, &evaluated));
    }
    if (job->right != NULL && v->text[0] == 0) {
        EXPECT(v, memcmp(&evaluated, &job->right->evaluated, sizeof evaluated) == 0);
        check_chain_values(&r);
        trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r.trainer, &info));
        int split = 0;
        for (uint64_t i = 0; i < r.layer_count; ++i) {
            split += r.layers[i].backward_weight != NULL ? 1 : 0;
        }
        EXPECT(v, info.layers == r.layer_count && info.split_layers == (uint64_t)split);
        EXPECT(v, info.stages == (uint64_t)job->stages_per_rank);
        EXPECT(v, info.micro_batches == (uint32_t)micro_batches_of(job));
        EXPECT(v, info.allocated_bytes == info.planned_stretch_bytes + info.planned_gradient_bytes +
                                              info.planned_parameter_gradient_bytes +
                                              info.planned_exchange_bytes);
        job->info[number] = info;
        const int total = micro_batches_of(job);
        const int own =
            job->leaves == 0 ? total : (job->leaves - r.data + job->data - 1) / job->data;
        const int layers = (int)r.layer_count;
        EXPECT(v, r.calls[TRIREME_PHASE_FORWARD] == own * layers * STEPS);
        EXPECT(v, r.calls[TRIREME_PHASE_BACKWARD] == own * (layers - split) * STEPS);
        EXPECT(v, r.calls[TRIREME_PHASE_BACKWARD_INPUT] == own * split * STEPS);
        EXPECT(v, r.calls[TRIREME_PHASE_BACKWARD_WEIGHT] == own * split * STEPS);
        EXPECT(v, r.calls[TRIREME_PHASE_EVALUATE] == own * layers);
    }
    end_rank(&r);
}

/* Seeds do not depend on gradients: these steps are compared with nothing. */
static void draw_seeds(void) {
    static bool drawn;
    if (drawn) return;
    drawn = true;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                       .data = 1,
                       .ranks = 1,
                       .order = TRIREME_PIPELINE_ORDER_1F1B,
                       .stages_per_rank = 1,
                       .micro_batches = MOST_LEAVES};
    run_chain(&job, train);
}

static const struct curve *reproducible(void) {
    static struct curve curve;
    draw_seeds();
    if (curve.losses[0] == 0) {
        plain_training(LEAVES, 0, 0, &curve);
        assert_true(isfinite(curve.losses[STEPS - 1]) && curve.losses[2] < curve.losses[0]);
        /* Clipping takes part in some steps. */
        assert_true(curve.norms[0] > MAX_NORM || curve.norms[1] > MAX_NORM);
    }
    return &curve;
}

static const struct {
    trireme_pipeline_order order;
    int stages_per_rank;
} kOrders[] = {
    {TRIREME_PIPELINE_ORDER_GPIPE, 1},       {TRIREME_PIPELINE_ORDER_1F1B, 1},
    {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2}, {TRIREME_PIPELINE_ORDER_ZB_H1, 1},
    {TRIREME_PIPELINE_ORDER_ZB_V, 2},        {TRIREME_PIPELINE_ORDER_BEST, 1},
    {TRIREME_PIPELINE_ORDER_LOOPED_BFS, 2},  {TRIREME_PIPELINE_ORDER_ZB_H2, 1},
    {TRIREME_PIPELINE_ORDER_V_HALF, 2},      {TRIREME_PIPELINE_ORDER_V_MIN, 2},
    {TRIREME_PIPELINE_ORDER_DUALPIPE_V, 2},  {TRIREME_PIPELINE_ORDER_WAVE, 2},
    {TRIREME_PIPELINE_ORDER_BEST, 2},        {TRIREME_PIPELINE_ORDER_INTERLEAVED, 3},
    {TRIREME_PIPELINE_ORDER_WAVE, 3},
};
enum { ORDERS = sizeof kOrders / sizeof kOrders[0] };
static const unsigned kSplits[] = {0, 0xff, 0x55, 0x06};

static void each_schedule_has_the_bits_of_a_plain_loop(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int ranks = 1; ranks <= 5; ++ranks) {
        for (int k = 0; k < ORDERS; ++k) {
            for (int s = 0; s < 4; ++s) {
                if (is_quick() && (ranks + k + s) % 3 != 0) continue;
                static struct job job;
                job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                                   .data = 1,
                                   .ranks = ranks,
                                   .order = kOrders[k].order,
                                   .stages_per_rank = kOrders[k].stages_per_rank,
                                   .leaves = LEAVES,
                                   .split = kSplits[s],
                                   .right = right};
                if (ranks * job.stages_per_rank > MOST_STAGES || !all_have_parameters(&job))
                    continue;
                run_chain(&job, train);
            }
        }
    }
}

static void each_strategy_goes_with_a_pipeline(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    const int meshes[][2] = {{2, 1}, {2, 2}, {3, 2}, {4, 2}, {2, 3}, {2, 4}, {1, 8}, {8, 1}};
    for (int m = 0; m < 8; ++m) {
        for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
            for (int k = 0; k < 6; ++k) {
                if ((k + s + m) % 2 != 0 && getenv("TRIREME_TEST_LONG") == NULL) continue;
                if (is_quick() && (m > 2 || k % 2 == 1)) continue;
                static struct job job;
                job = (struct job){.strategy = s,
                                   .data = meshes[m][0],
                                   .ranks = meshes[m][1],
                                   .order = kOrders[k].order,
                                   .stages_per_rank = kOrders[k].stages_per_rank,
                                   .leaves = LEAVES,
                                   .split = kSplits[(k + m) % 4],
                                   .right = right};
                if (job.ranks * job.stages_per_rank > MOST_STAGES || !all_have_parameters(&job)) {
                    continue;
                }
                run_chain(&job, train);
            }
        }
    }
}

static void micro_batches_add_up_in_their_order(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    draw_seeds();
    const int meshes[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 4}, {2, 2}, {2, 3}, {1, 5}};
    const int counts[] = {1, 2, 3, 5, 8};
    for (int m = 0; m < 7; ++m) {
        for (int c = 0; c < 5; ++c) {
            static struct curve right;
            plain_training(0, meshes[m][0], counts[c], &right);
            for (int k = 0; k < ORDERS; ++k) {
                if (is_quick() && (m + c + k) % 5 != 0) continue;
                static struct job job;
                job = (struct job){.strategy = 1 + (k + m + c) % TRIREME_STRATEGY_HYBRID_SHARD,
                                   .data = meshes[m][0],
                                   .ranks = meshes[m][1],
                                   .order = kOrders[k].order,
                                   .stages_per_rank = kOrders[k].stages_per_rank,
                                   .micro_batches = counts[c],
                                   .split = kSplits[(k + c) % 4],
                                   .right = &right};
                if (job.ranks * job.stages_per_rank > MOST_STAGES || !all_have_parameters(&job)) {
                    continue;
                }
                run_chain(&job, train);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_schedule_has_the_bits_of_a_plain_loop),
        cmocka_unit_test(each_strategy_goes_with_a_pipeline),
        cmocka_unit_test(micro_batches_add_up_in_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
