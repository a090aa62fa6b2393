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
#include <time.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <ranks.h>

#include "pipeline_chain_checks.inc"
#include "pipeline_chain_seeds.inc"

#define LEAVES 6

static void train(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, job->whole ? NULL : &pipeline));
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
        EXPECT(v, info.stages == (job->whole ? 0 : (uint64_t)job->stages_per_rank));
        EXPECT(v, info.micro_batches == (uint32_t)micro_batches_of(job));
        EXPECT(v, info.allocated_bytes ==
                      info.planned_checkpoint_bytes + info.planned_stretch_bytes +
                          info.planned_gradient_bytes + info.planned_parameter_gradient_bytes +
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
    for (int ranks = 1; ranks <= 6; ++ranks) {
        int jobs = 0;
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
                ++jobs;
            }
        }
        assert_true(jobs > 0);
    }
}

static void each_strategy_goes_with_a_pipeline(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    const int meshes[][2] = {{2, 1}, {2, 2}, {3, 2}, {4, 2}, {2, 3}, {2, 4}, {1, 6}, {8, 1}};
    for (int m = 0; m < 8 && !(is_quick() && m > 2); ++m) {
        int jobs = 0;
        for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
            for (int k = 0; k < 6; ++k) {
                if ((k + s + m) % 2 != 0 && getenv("TRIREME_TEST_LONG") == NULL) continue;
                if (is_quick() && k % 2 == 1) continue;
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
                ++jobs;
            }
        }
        assert_true(jobs > 0);
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

/* A rank without layers has a model without parameters, and passes on what comes. */
static void ranks_without_layers_pass_on(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    /* The last stage of a V is the first rank's, so all others may be empty. */
    const struct {
        int ranks, data;
        unsigned loop, v;
    } shapes[] = {{2, 1, 0, 2}, {3, 1, 2, 4}, {3, 2, 2, 6}, {4, 1, 6, 10}, {4, 2, 4, 14}};
    for (int i = 0; i < 5; ++i) {
        for (int k = 0; k < 6; ++k) {
            const bool is_v = kOrders[k].order == TRIREME_PIPELINE_ORDER_ZB_V;
            if (is_quick() && (i + k) % 2 != 0) continue;
            static struct job job;
            job = (struct job){.strategy = (i + k) % 2 == 0 ? TRIREME_STRATEGY_ZERO3
                                                            : TRIREME_STRATEGY_DATA_PARALLEL,
                               .data = shapes[i].data,
                               .ranks = shapes[i].ranks,
                               .order = kOrders[k].order,
                               .stages_per_rank = kOrders[k].stages_per_rank,
                               .leaves = LEAVES,
                               .split = kSplits[(i + k) % 4],
                               .empty = is_v ? shapes[i].v : shapes[i].loop,
                               .loss_scale = k == 3 ? 1024 : 0,
                               .tied = k % 2 == 1, /* a model on a mesh; no weight is tied */
                               .right = right};
            if (job.empty == 0) continue;
            run_chain(&job, train);
            for (int n = 0; n < job.ranks * job.data; ++n) {
                assert_int_equal(job.info[n].layers == 0, job.empty >> n / job.data & 1);
            }
            if ((i + k) % 2 == 0)
                job.every = 2;
            else
                job.second_forward = EACH_R;
            run_chain(&job, train);
        }
    }
}

/* Micro-batches of no row, of one and of two, through every kind of stage. */
static void sizes_vary_with_each_micro_batch(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    draw_seeds();
    static struct curve right;
    chain_varies = true;
    plain_training(LEAVES, 0, 0, &right);
    for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int k = 0; k < 6; ++k) {
            if (is_quick() && (ranks + k) % 3 != 0) continue;
            static struct job job;
            job = (struct job){.strategy = (ranks + k) % 2 == 0 ? TRIREME_STRATEGY_ZERO3
                                                                : TRIREME_STRATEGY_DATA_PARALLEL,
                               .data = 1 + (ranks + k / 2) % 2,
                               .ranks = ranks,
                               .order = kOrders[k].order,
                               .stages_per_rank = kOrders[k].stages_per_rank,
                               .leaves = LEAVES,
                               .split = kSplits[(ranks + k) % 4],
                               .every = (ranks + k) % 3 == 1 ? 2 : 0,
                               .second_forward = (ranks + k) % 3 == 2 ? EACH_R : NO_R,
                               .whole = ranks == 1 && k < 2,
                               .right = &right};
            if (ranks == 3 && k == 1) job.empty = 2;
            if (job.whole) job.second_forward = NO_R;
            if (job.empty == 0 && !all_have_parameters(&job)) continue;
            run_chain(&job, train);
        }
    }
    chain_varies = false;
}

/* Micro-batches of a rank add up, and a rank without layers has nothing to add. */
static void sums_go_past_ranks_without_layers(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    draw_seeds();
    for (int data = 1; data <= 2; ++data) {
        static struct curve right;
        plain_training(0, data, 3, &right);
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2,
                           .data = data,
                           .ranks = 3,
                           .order = TRIREME_PIPELINE_ORDER_ZB_H1,
                           .stages_per_rank = 1,
                           .micro_batches = 3,
                           .empty = 2,
                           .right = &right};
        run_chain(&job, train);
    }
}

/* Backward of all micro-batches in another order than forward, whole and in halves: gradients that
 * come early wait. */
static const char kReverse[] =
    "pipeline ranks=2 stages=2 micro_batches=6 placement=0,1\n"
    "0F0 0F1 0F2 0F3 0F4 0F5 0B5 0B4 0B3 0B2 0B1 0B0\n"
    "1F0 1F1 1F2 1F3 1F4 1F5 1B5 1B4 1B3 1B2 1B1 1B0\n";
/* The gradients of all micro-batches are there before the first one is sent. */
static const char kLateMessages[] =
    "pipeline ranks=2 stages=2 micro_batches=6 placement=0,1\n"
    "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0SEND_F2 0F3 0SEND_F3 0F4 0SEND_F4 0F5 0SEND_F5 0RECV_B0 0B0 "
    "0RECV_B1 0B1 0RECV_B2 0B2 0RECV_B3 0B3 0RECV_B4 0B4 0RECV_B5 0B5\n"
    "1RECV_F0 1F0 1RECV_F1 1F1 1RECV_F2 1F2 1RECV_F3 1F3 1RECV_F4 1F4 1RECV_F5 1F5 1B0 1B1 1B2 1B3 "
    "1B4 1B5 1SEND_B0 1SEND_B1 1SEND_B2 1SEND_B3 1SEND_B4 1SEND_B5\n";
/* Halves along a V, in an order of their own each. */
static const char kHalves[] =
    "pipeline ranks=2 stages=4 micro_batches=6 placement=0,1,1,0\n"
    "0F0 0F1 0F2 0F3 0F4 0F5 3F0 3F1 3F2 3F3 3F4 3F5 3I2 3I0 3I1 3I5 3W5 3I4 3I3 0I2 0I0 0W0 0I1 "
    "0I5 0I4 0I3 3W4 3W0 3W1 3W3 3W2 0W5 0W1 0W4 0W2 0W3\n"
    "1F0 2F0 1F1 2F1 1F2 2F2 1F3 1F4 2F3 2F4 1F5 2F5 2I2 2I0 1I2 1I0 2I1 1I1 2B5 2W2 1I5 2I4 2I3 "
    "1B4 1I3 1W2 2W3 2W0 1W5 1W0 2W4 1W1 2W1 1W3\n";

static void gradients_that_come_early_wait(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int s = 0; s < 4; ++s) {
        for (int data = 1; data <= 2; ++data) {
            static struct curve sums;
            static struct job job;
            job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                               .data = data,
                               .ranks = 2,
                               .stages_per_rank = 1,
                               .text = kReverse,
                               .leaves = data * LEAVES,
                               .split = kSplits[s]};
            plain_training(job.leaves, 0, 0, &sums);
            job.right = data == 1 ? right : &sums;
            run_chain(&job, train);
            job.leaves = 0;
            job.micro_batches = LEAVES;
            plain_training(0, data, LEAVES, &sums);
            job.right = &sums;
            run_chain(&job, train);
            job.text = kHalves;
            job.stages_per_rank = 2;
            run_chain(&job, train);
            job.micro_batches = 0;
            job.leaves = data * LEAVES;
            plain_training(job.leaves, 0, 0, &sums);
            run_chain(&job, train);
        }
    }
}

/* A trainer without a pipeline calls the halves one after the other. */
static void layers_in_halves_need_no_pipeline(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        for (int k = 1; k < 4; ++k) {
            static struct job job;
            job = (struct job){.strategy = s,
                               .data = k,
                               .ranks = 1,
                               .order = TRIREME_PIPELINE_ORDER_1F1B,
                               .stages_per_rank = 1,
                               .leaves = LEAVES,
                               .split = kSplits[k],
                               .whole = true,
                               .right = right};
            run_chain(&job, train);
        }
    }
}

static void gradients_that_are_sent_late_stay_as_they_are(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int s = 0; s < 2; ++s) {
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                           .data = 1,
                           .ranks = 2,
                           .stages_per_rank = 1,
                           .text = kLateMessages,
                           .leaves = LEAVES,
                           .split = kSplits[s],
                           .right = reproducible()};
        run_chain(&job, train);
    }
}

/* A loss scale that is a power of two changes no bit. */
static void gradients_are_scaled_on_all_stages(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int s = 0; s < 2; ++s) {
            static struct job job;
            job = (struct job){.strategy = 1 + (ranks + s) % TRIREME_STRATEGY_HYBRID_SHARD,
                               .data = ranks < 4 ? 2 : 1,
                               .ranks = ranks,
                               .order = TRIREME_PIPELINE_ORDER_ZB_H1,
                               .stages_per_rank = 1,
                               .leaves = LEAVES,
                               .split = kSplits[s],
                               .loss_scale = 1024,
                               .right = right};
            run_chain(&job, train);
        }
    }
}

static int32_t TRIREME_CALLCONV sleep_first(const trireme_layer_call *c, void *user_data) {
    const struct timespec pause = {0, 10 * 1000 * 1000};
    if (c->number == 0) nanosleep(&pause, NULL);
    return forward(c, user_data);
}

/* No other rank has a part in these models, so all waits are those for the pipeline. */
static void wait_for_stages(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    make_rank(&r, all);
    for (uint64_t i = 0; i < r.layer_count && r.place == 0; ++i) r.layers[i].forward = sleep_first;
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(r.verdict, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    double exposed = 0;
    for (int step = 0; step < STEPS; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
        EXPECT(r.verdict, metrics.exposed_seconds < metrics.seconds);
        exposed += metrics.exposed_seconds;
    }
    /* The first stage sleeps ten times as long in each step. */
    EXPECT(r.verdict, r.place == 0 || exposed > 0.005);
    end_rank(&r);
}

static void waits_for_stages_are_told(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                       .data = 1,
                       .ranks = 3,
                       .order = TRIREME_PIPELINE_ORDER_1F1B,
                       .stages_per_rank = 1,
                       .leaves = LEAVES,
                       .norm = NO_NORM};
    run_chain(&job, wait_for_stages);
}

static void messages_may_be_named(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int k = 0; k < ORDERS; ++k) {
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2,
                           .data = 1,
                           .ranks = 3,
                           .order = kOrders[k].order,
                           .stages_per_rank = kOrders[k].stages_per_rank,
                           .leaves = LEAVES,
                           .split = 0x55,
                           .messages = true,
                           .right = right};
        if (!all_have_parameters(&job)) continue;
        run_chain(&job, train);
    }
}

/* ---- memory ---- */

static uint64_t piece(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* A header lies before each message; where ranks share memory, it has a cell of its own. */
static uint64_t header_bytes(void) {
    return ranks_use_transport() ? 128 : 0;
}

/* Activations of a micro-batch, and gradients of outputs. They lack received bytes where ranks
 * share memory. */
static void slot_bytes(int first, int end, uint64_t *activations, uint64_t *gradients) {
    uint64_t largest[2] = {0, 0};
    const bool in_place = !ranks_use_transport();
    *activations = first > 0 && !in_place ? 128 + piece(4 * ROWS * (uint64_t)kWidths[first]) : 0;
    *gradients = 0;
    for (int l = first; l < end && !is_loss(l); ++l) {
        const uint64_t bytes = piece(4 * ROWS * (uint64_t)kWidths[l + 1]);
        *activations += bytes + (is_plain(l) ? 0 : bytes);
        if (l + 1 == end) {
            *activations += header_bytes();
            *gradients += in_place ? 0 : 128 + bytes;
        } else if (bytes > largest[(l - first) % 2]) {
            largest[(l - first) % 2] = bytes;
        }
    }
    *gradients += largest[0] + largest[1];
}

/* 1F1B holds min(p - r, m) micro-batches on rank r, GPipe all. */
static void slots_are_those_of_the_peak(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int k = 0; k < 2; ++k) {
            static struct job job;
            job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                               .data = 1,
                               .ranks = ranks,
                               .order = kOrders[k].order,
                               .stages_per_rank = 1,
                               .leaves = LEAVES,
                               .right = right};
            run_chain(&job, train);
            for (int r = 0; r < ranks; ++r) {
                const int first = (int)cut_of((uint64_t)r, (uint64_t)ranks);
                const int end = (int)cut_of((uint64_t)r + 1, (uint64_t)ranks);
                uint64_t activations = 0, gradients = 0;
                slot_bytes(first, end, &activations, &gradients);
                const int held = k == 0 || ranks - r > LEAVES ? LEAVES : ranks - r;
                assert_int_equal(job.info[r].planned_stretch_bytes,
                                 (uint64_t)held * activations + gradients);
                /* Two gradients may wait for the rank before, which may read a third one. */
                const uint64_t sent = piece(header_bytes() + 4 * ROWS * (uint64_t)kWidths[first]);
                assert_int_equal(job.info[r].planned_gradient_bytes,
                                 r == 0 ? 0 : (ranks_use_transport() ? 2 : 3) * sent);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_schedule_has_the_bits_of_a_plain_loop),
        cmocka_unit_test(each_strategy_goes_with_a_pipeline),
        cmocka_unit_test(micro_batches_add_up_in_their_order),
        cmocka_unit_test(ranks_without_layers_pass_on),
        cmocka_unit_test(sizes_vary_with_each_micro_batch),
        cmocka_unit_test(sums_go_past_ranks_without_layers),
        cmocka_unit_test(gradients_that_come_early_wait),
        cmocka_unit_test(layers_in_halves_need_no_pipeline),
        cmocka_unit_test(gradients_that_are_sent_late_stay_as_they_are),
        cmocka_unit_test(gradients_are_scaled_on_all_stages),
        cmocka_unit_test(waits_for_stages_are_told),
        cmocka_unit_test(messages_may_be_named),
        cmocka_unit_test(slots_are_those_of_the_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
