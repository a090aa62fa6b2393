/*
 * A pipeline whose cuts change between steps, against a plain loop of one process: no bit changes.
 * A move that fails leaves the old layout as it was. The costs by which a program cuts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <ranks.h>

#include "pipeline_chain_checks.inc"
#include "rebalance.inc"

#define LEAVES 6

/* Of one job: what its ranks have in common. */
static uint64_t job_seed;
static uint64_t moved[MOST_RANKS], came[MOST_RANKS], stayed[MOST_RANKS];

/* Of all models along the pipeline: each of the ranks that share a weight has one. */
static uint64_t elements_of(const struct rank *r) {
    uint64_t elements = ELEMENTS;
    unsigned places = 0;
    for (uint64_t s = 0; s < r->stages && r->job->tied; ++s) {
        for (uint64_t l = r->cuts[s]; l < r->cuts[s + 1]; ++l) {
            if (!is_tied((int)l)) continue;
            if ((places >> r->rank_of[s] & 1) != 0) elements -= (uint64_t)weights_of((int)l);
            places |= 1u << r->rank_of[s];
        }
    }
    return elements;
}

static void move_on(struct rank *r, struct rank *next, trireme_communicator *all) {
    struct verdict *const v = r->verdict;
    trireme_trainer_destroy(r->trainer);
    r->trainer = NULL;
    make_rank(next, all);
    trireme_rebalance_options options = move_of(next, all);
    options.buffer_bytes = 64 + drawn(&(uint64_t){job_seed}) % 200; /* odd, many messages */
    trireme_rebalance_report report = TRIREME_REBALANCE_REPORT_INIT;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_parallel_rebalance(r->optimizer, next->optimizer, &options, &report));
    moved[r->number] = report.sent_bytes;
    came[r->number] = report.received_bytes;
    stayed[r->number] = report.kept_bytes;
    EXPECT(v, report.buffer_bytes >= 2 * options.buffer_bytes);
    uint64_t bytes = report.buffer_bytes;
    const struct rank *const both[] = {r, next};
    for (int k = 0; k < 2; ++k) {
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(both[k]->model, &memory));
        bytes += memory.allocated_parameters + memory.allocated_gradients +
                 memory.allocated_optimizer_state + memory.allocated_working;
    }
    EXPECT(v, report.peak_bytes == bytes);
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    uint64_t sent = 0, received = 0, kept = 0;
    for (int k = 0; k < r->job->data * r->job->ranks; ++k) {
        sent += moved[k];
        received += came[k];
        kept += stayed[k];
    }
    /* Parameters and one vector of state, each element once. */
    EXPECT(v, sent == received && sent + kept == 2 * sizeof(float) * elements_of(next));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
}

static void make_step(struct rank *r, int step) {
    trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
    EXPECT_STATUS(r->verdict, TRIREME_OK, trireme_trainer_step(r->trainer, r, &metrics));
    EXPECT(r->verdict, memcmp(&metrics.loss, &r->job->right->losses[step], sizeof(double)) == 0);
    EXPECT(r->verdict, metrics.gradient_norm == r->job->right->norms[step]);
    EXPECT(r->verdict, metrics.step == (uint64_t)step + 1);
}

static void train_with_moves(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    static struct rank places[MOST_RANKS][2];
    struct rank *r = &places[number][0], *next = &places[number][1];
    uint64_t state = job_seed;
    *r = begin_rank(all, number, job);
    struct verdict *const v = r->verdict;
    draw_cuts(r, &state);
    make_rank(r, all);
    make_trainer(r);
    const int first = (int)(drawn(&state) % STEPS);
    for (int step = 0; step < STEPS && v->text[0] == 0; ++step) {
        if (step >= first) {
            begin_next(next, r);
            draw_cuts(next, &state);
            move_on(r, next, all);
            free_layout(r);
            struct rank *const old = r;
            r = next;
            next = old;
            make_trainer(r);
        }
        if (v->text[0] == 0) make_step(r, step);
    }
    double evaluated = 0;
    if (v->text[0] == 0) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_evaluate(r->trainer, r, &evaluated));
        EXPECT(v, memcmp(&evaluated, &job->right->evaluated, sizeof evaluated) == 0);
        check_chain_values(r);
    }
    end_rank(r);
}

static void draw_with_one_rank(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(r.verdict, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    for (int step = 0; step < STEPS; ++step) {
        EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    }
    double loss = 0;
    EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_trainer_evaluate(r.trainer, &r, &loss));
    end_rank(&r);
}

/* Seeds of one rank, and the plain loop with them. */
static const struct curve *right_curve(void) {
    static struct curve curves[2];
    struct curve *const curve = &curves[chain_ties != 0];
    if (curve->losses[0] != 0) return curve;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                       .data = 1,
                       .ranks = 1,
                       .order = TRIREME_PIPELINE_ORDER_1F1B,
                       .stages_per_rank = 1,
                       .micro_batches = MOST_LEAVES};
    run_chain(&job, draw_with_one_rank);
    plain_training(LEAVES, 0, 0, curve);
    assert_true(isfinite(curve->losses[STEPS - 1]) && curve->losses[2] < curve->losses[0]);
    assert_true(curve->norms[0] > MAX_NORM || curve->norms[1] > MAX_NORM); /* it is clipped */
    return curve;
}

static struct job job_of(int data, int ranks, trireme_strategy strategy) {
    return (struct job){.strategy = strategy,
                        .data = data,
                        .ranks = ranks,
                        .order = TRIREME_PIPELINE_ORDER_1F1B,
                        .stages_per_rank = 1,
                        .leaves = LEAVES,
                        .split = 0x55,
                        .right = right_curve()};
}

static void a_move_changes_no_bit(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int meshes[][2] = {{1, 2}, {2, 2}, {1, 1}, {2, 1}, {1, 3}, {3, 2},
                             {4, 2}, {2, 3}, {2, 4}, {1, 5}, {1, 6}};
    const int trials = is_quick() ? 1 : getenv("TRIREME_TEST_LONG") != NULL ? 40 : 3;
    for (int m = 0; m < 11 && !(is_quick() && m > 5); ++m) {
        for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
            for (int t = 0; t < trials; ++t) {
                static struct job job;
                job = job_of(meshes[m][0], meshes[m][1], s);
                /* Two stages a rank leave more of them without layers. */
                if ((t + m) % 3 == 1 && meshes[m][1] > 1) {
                    job.order = TRIREME_PIPELINE_ORDER_ZB_V;
                    job.stages_per_rank = 2;
                } else if ((t + m) % 3 == 2 && meshes[m][1] > 1) {
                    job.order = TRIREME_PIPELINE_ORDER_INTERLEAVED;
                    job.stages_per_rank = 2;
                }
                job_seed = (uint64_t)(m * 1000 + (int)s * 100 + t + 1);
                run_chain(&job, train_with_moves);
            }
        }
    }
}

/* The layers of the weight come to one rank, and to several. */
static void a_tied_weight_moves_with_its_layers(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int meshes[][2] = {{1, 2}, {2, 2}, {1, 3}, {2, 3}};
    const int trials = getenv("TRIREME_TEST_LONG") != NULL ? 20 : 2;
    chain_ties = TIES;
    for (int m = 0; m < 4; ++m) {
        for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
            for (int t = 0; t < trials; ++t) {
                static struct job job;
                job = job_of(meshes[m][0], meshes[m][1], s);
                job.tied = true;
                job.in_units = t % 2 != 0;
                if (t % 2 != 0) {
                    job.order = TRIREME_PIPELINE_ORDER_ZB_V;
                    job.stages_per_rank = 2;
                }
                job_seed = (uint64_t)(m * 1000 + (int)s * 100 + t + 50);
                run_chain(&job, train_with_moves);
            }
        }
    }
    chain_ties = 0;
}

/* ---- moves that fail ---- */

enum fault {
    OTHER_CUTS,
    LOST_LAYER,
    DOUBLE_LAYER,
    NO_NEW,
    SAME,
    STALE,
    SMALL_BUFFER,
    LARGE_BUFFER,
    OTHER_BUFFER,
    NO_CUTS_THERE,
    SMALL_REPORT,
    GATHERED,
    UNDER_WAY,
    OTHER_STEPS,
    NEW_LOSS_SCALE,
    OTHER_RULE,
    FAILS_TO_ALLOCATE,
    FAILS_TO_SEND,
    FAILS_TO_RECEIVE,
    FAILS_TO_RESTORE,
    FAILS_EARLY,
    FAULTS
};
static enum fault fault;

static const struct {
    trireme_status here, elsewhere; /* on the last rank and on the others */
    const char *point;              /* fails once, on any rank */
} kFaults[FAULTS] = {
    [OTHER_CUTS] = {TRIREME_ERROR_MISMATCH, TRIREME_ERROR_MISMATCH, NULL},
    [LOST_LAYER] = {TRIREME_ERROR_MISMATCH, TRIREME_ERROR_MISMATCH, NULL},
    [DOUBLE_LAYER] = {TRIREME_ERROR_MISMATCH, TRIREME_ERROR_MISMATCH, NULL},
    [NO_NEW] = {TRIREME_ERROR_INVALID_HANDLE, TRIREME_ERROR_INVALID_HANDLE, NULL},
    [SAME] = {TRIREME_ERROR_INVALID_ARGUMENT, TRIREME_ERROR_INVALID_ARGUMENT, NULL},
    [STALE] = {TRIREME_ERROR_INVALID_HANDLE, TRIREME_ERROR_INVALID_HANDLE, NULL},
    [SMALL_BUFFER] = {TRIREME_ERROR_INVALID_ARGUMENT, TRIREME_ERROR_INVALID_ARGUMENT, NULL},
    [LARGE_BUFFER] = {TRIREME_ERROR_INVALID_ARGUMENT, TRIREME_ERROR_INVALID_ARGUMENT, NULL},
    [OTHER_BUFFER] = {TRIREME_ERROR_MISMATCH, TRIREME_ERROR_MISMATCH, NULL},
    [NO_CUTS_THERE] = {TRIREME_ERROR_INVALID_ARGUMENT, TRIREME_ERROR_INVALID_ARGUMENT, NULL},
    [SMALL_REPORT] = {TRIREME_ERROR_INVALID_ARGUMENT, TRIREME_ERROR_INVALID_ARGUMENT, NULL},
    [GATHERED] = {TRIREME_ERROR_INVALID_STATE, TRIREME_ERROR_INVALID_STATE, NULL},
    [UNDER_WAY] = {TRIREME_ERROR_INVALID_STATE, TRIREME_ERROR_INVALID_STATE, NULL},
    [OTHER_STEPS] = {TRIREME_ERROR_MISMATCH, TRIREME_ERROR_MISMATCH, NULL},
    [NEW_LOSS_SCALE] = {TRIREME_ERROR_INVALID_ARGUMENT, TRIREME_ERROR_INVALID_ARGUMENT, NULL},
    [OTHER_RULE] = {TRIREME_ERROR_INVALID_ARGUMENT, TRIREME_ERROR_INVALID_ARGUMENT, NULL},
    [FAILS_TO_ALLOCATE] = {0, 0, "rebalance.before_allocate=fail@1"},
    [FAILS_TO_SEND] = {0, 0, "rebalance.before_send=fail@2"},
    [FAILS_TO_RECEIVE] = {0, 0, "rebalance.before_receive=fail@1"},
    [FAILS_TO_RESTORE] = {0, 0, "rebalance.before_restore=fail@1"},
    [FAILS_EARLY] = {0, 0, "rebalance.between_tables=fail@1"},
};

static void move_fails(struct rank *r, struct rank *next, trireme_communicator *all) {
    struct verdict *const v = r->verdict;
    const bool last = r->number == r->job->data * r->job->ranks - 1;
    trireme_rebalance_options options = move_of(next, all);
    trireme_rebalance_report report = TRIREME_REBALANCE_REPORT_INIT;
    trireme_optimizer *from = r->optimizer, *to = next->optimizer;
    uint64_t other[MOST_STAGES + 1];
    memcpy(other, next->cuts, sizeof other);
    if (fault == OTHER_CUTS && last) ++other[1];
    if (fault == OTHER_CUTS) options.cuts = other;
    if (fault == LOST_LAYER || fault == DOUBLE_LAYER) options.cut_count = 0;
    if (fault == NO_NEW && last) to = NULL;
    if (fault == SAME && last) to = from;
    if (fault == STALE && last) from = (trireme_optimizer *)(uintptr_t)0x123456789;
    if (fault == SMALL_BUFFER && last) options.buffer_bytes = 63;
    if (fault == LARGE_BUFFER && last) options.buffer_bytes = ((uint64_t)1 << 40) + 1;
    if (fault == OTHER_BUFFER && last) options.buffer_bytes = 128;
    if (fault == NO_CUTS_THERE && last) options.cuts = NULL;
    if (fault == SMALL_REPORT && last) report.struct_size = 4;
    if (kFaults[fault].point != NULL) options.buffer_bytes = 64; /* many messages */
    const trireme_status status = trireme_parallel_rebalance(from, to, &options, &report);
    if (kFaults[fault].point != NULL) {
        EXPECT(v, status == TRIREME_ERROR_SYSTEM);
    } else {
        EXPECT(v, status == (last ? kFaults[fault].here : kFaults[fault].elsewhere));
        if (fault == LOST_LAYER) {
            EXPECT(v, strstr(trireme_last_error(), "on no rank in the new one") != NULL);
        }
        if (fault == DOUBLE_LAYER) {
            EXPECT(v, strstr(trireme_last_error(), " and on rank ") != NULL);
        }
        if (fault == OTHER_RULE) {
            EXPECT(v, strstr(trireme_last_error(), "options.kind is") != NULL);
        }
        if (fault == OTHER_CUTS) EXPECT(v, strstr(trireme_last_error(), "options.cuts") != NULL);
    }
    if (v->text[0] != 0) {
        const size_t length = strlen(v->text);
        snprintf(v->text + length, sizeof v->text - length, " fault %d: %s: %s", (int)fault,
                 trireme_status_name(status), trireme_last_error());
    }
}

static void train_after_a_fault(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    static struct rank places[MOST_RANKS][2];
    struct rank *const r = &places[number][0], *const next = &places[number][1];
    uint64_t state = job_seed;
    *r = begin_rank(all, number, job);
    struct verdict *const v = r->verdict;
    make_rank(r, all);
    make_trainer(r);
    make_step(r, 0);
    begin_next(next, r);
    do draw_cuts(next, &state);
    while (memcmp(next->cuts, r->cuts, sizeof r->cuts) == 0);
    const bool by_place = fault == LOST_LAYER || fault == DOUBLE_LAYER;
    /* With 3 stages: the third layer is of none of them, or of two. */
    const uint64_t lost[3][2] = {{0, 2}, {3, 6}, {6, 8}}, twice[3][2] = {{0, 3}, {2, 6}, {6, 8}};
    if (by_place) {
        for (int s = 0; s < 3; ++s) {
            if (s != r->place) continue;
            next->cuts[s] = fault == LOST_LAYER ? lost[s][0] : twice[s][0];
            next->cuts[s + 1] = fault == LOST_LAYER ? lost[s][1] : twice[s][1];
        }
    }
    struct job other = *job;
    other.loss_scale = fault == NEW_LOSS_SCALE ? 1024 : job->loss_scale;
    other.other_rule = fault == OTHER_RULE; /* it has as many vectors */
    if (fault == NEW_LOSS_SCALE || fault == OTHER_RULE) next->job = &other;
    make_rank(next, all);
    next->job = job;
    if (fault == GATHERED) EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(next->model, 0));
    if (fault == UNDER_WAY) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
    }
    if (fault == OTHER_STEPS && r->place == 0) {
        trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_counters(r->optimizer, &counters));
        ++counters.steps;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_restore(r->optimizer, &counters));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    if (v->text[0] == 0) move_fails(r, next, all);
    if (fault == UNDER_WAY) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(r->model));
    }
    if (fault == OTHER_STEPS && r->place == 0) {
        trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_counters(r->optimizer, &counters));
        --counters.steps;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_restore(r->optimizer, &counters));
    }
    if (fault >= FAILS_TO_SEND && fault != FAILS_EARLY) { /* it may have parts of both */
        EXPECT(v, trireme_model_check_replicas(next->model) != TRIREME_OK);
    }
    free_layout(next);
    describe_chain(r); /* the callbacks go on with the old layout */
    for (int step = 1; step < STEPS && v->text[0] == 0; ++step) make_step(r, step);
    if (v->text[0] == 0) check_chain_values(r);
    end_rank(r);
}

static void a_move_that_fails_leaves_the_old_layout(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (fault = 0; fault < FAULTS; ++fault) {
        for (int data = 1; data <= 2; ++data) {
            static struct job job;
            job = job_of(data, 3, TRIREME_STRATEGY_ZERO3);
            if (data == 1) job.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
            if (data == 1 && fault == GATHERED) continue; /* it is never gathered */
            job_seed = 7 + (uint64_t)fault;
            assert_true(all_have_parameters(&job));
            if (kFaults[fault].point != NULL) {
                assert_int_equal(trireme_failpoint_set(kFaults[fault].point), TRIREME_OK);
            }
            run_chain(&job, train_after_a_fault);
            assert_int_equal(trireme_failpoint_set(""), TRIREME_OK);
        }
    }
}

/* ---- costs ---- */

enum { SLOW = 4, SLEEP_US = 3000 };

static int32_t TRIREME_CALLCONV slow_forward(const trireme_layer_call *c, void *user_data) {
    usleep(SLEEP_US);
    return forward(c, user_data);
}

static int32_t TRIREME_CALLCONV slow_backward(const trireme_layer_call *c, void *user_data) {
    usleep(SLEEP_US);
    return backward(c, user_data);
}

static trireme_measured_costs told[MOST_RANKS][LAYERS];

static void tell_costs(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    for (uint64_t i = 0; i < r.layer_count; ++i) {
        if (((struct layer_of *)r.layers[i].user_data)->layer != SLOW) continue;
        r.layers[i].forward = slow_forward;
        r.layers[i].backward = slow_backward;
    }
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    struct { /* a later release has longer costs */
        trireme_measured_costs known;
        uint64_t newer;
    } costs[LAYERS];
    memset(costs, 0x77, sizeof costs);
    costs[0].known.struct_size = sizeof costs[0];
    trireme_measured_costs *const list = &costs[0].known;
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_trainer_get_layer_costs(r.trainer, list, LAYERS, &count));
    make_step(&r, 0);
    const bool last = number == job->data * job->ranks - 1;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_trainer_get_layer_costs(r.trainer, list, last ? LAYERS - 1 : LAYERS,
                                                  &count));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_trainer_get_layer_costs(r.trainer, last ? NULL : list, LAYERS, &count));
    costs[0].known.struct_size = sizeof costs[0] - (last ? 4 : 0);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_trainer_get_layer_costs(r.trainer, list, LAYERS, &count));
    costs[0].known.struct_size = sizeof costs[0];
    EXPECT(v, count == 0 && costs[1].newer == 0x7777777777777777);
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_layer_costs(r.trainer, list, LAYERS, &count));
    EXPECT(v, count == LAYERS);
    for (int l = 0; l < LAYERS && v->text[0] == 0; ++l) {
        const trireme_measured_costs *const c = &costs[l].known;
        const uint64_t out = is_loss(l) ? 0 : sizeof(float) * ROWS * (uint64_t)kWidths[l + 1];
        const uint64_t saved = is_plain(l) ? 0 : out;
        EXPECT(v, c->struct_size == sizeof costs[0] && c->reserved == 0 && costs[l].newer == 0);
        EXPECT(v, c->parameter_bytes == sizeof(float) * (uint64_t)(weights_of(l) + biases_of(l)));
        EXPECT(v, c->output_bytes == out && c->kept_bytes == out + saved);
        EXPECT(v, c->forward_seconds > 0 && c->input_seconds > 0);
        EXPECT(v, (c->weight_seconds > 0) == ((job->split >> l & 1) != 0));
        if (l == SLOW) {
            EXPECT(v, c->forward_seconds >= SLEEP_US / 1e6 && c->input_seconds >= SLEEP_US / 1e6);
        }
        told[number][l] = *c;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    EXPECT(v, memcmp(told[number], told[0], sizeof told[0]) == 0);
    /* They begin anew. */
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_trainer_get_layer_costs(r.trainer, list, LAYERS, NULL));
    make_step(&r, 1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_layer_costs(r.trainer, list, LAYERS, NULL));
    make_step(&r, 2);
    end_rank(&r);
}

static void all_ranks_are_told_the_same_costs(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int meshes[][2] = {{1, 1}, {1, 2}, {2, 2}, {1, 3}};
    for (int m = 0; m < 4; ++m) {
        static struct job job;
        job = job_of(meshes[m][0], meshes[m][1], TRIREME_STRATEGY_ZERO2);
        job.order = m == 1 ? TRIREME_PIPELINE_ORDER_ZB_V : TRIREME_PIPELINE_ORDER_ZB_H1;
        job.stages_per_rank = m == 1 ? 2 : 1;
        run_chain(&job, tell_costs);
    }
}

static void costs_need_a_pipeline(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    make_rank(&r, all);
    EXPECT_STATUS(r.verdict, TRIREME_OK, create_chain_trainer(&r, NULL));
    trireme_measured_costs costs[LAYERS] = {TRIREME_MEASURED_COSTS_INIT};
    EXPECT_STATUS(r.verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_trainer_get_layer_costs(r.trainer, costs, LAYERS, NULL));
    EXPECT_STATUS(r.verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_trainer_get_layer_costs(NULL, costs, LAYERS, NULL));
    trireme_rebalance_options options = TRIREME_REBALANCE_OPTIONS_INIT;
    EXPECT_STATUS(r.verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_parallel_rebalance(r.optimizer, r.optimizer, NULL, NULL));
    EXPECT_STATUS(r.verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_parallel_rebalance(r.optimizer, r.optimizer, &options, NULL));
    options.communicator = all;
    options.struct_size = 8;
    EXPECT_STATUS(r.verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_parallel_rebalance(r.optimizer, r.optimizer, &options, NULL));
    end_rank(&r);
}

static void calls_without_their_objects_are_refused(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(1, 1, TRIREME_STRATEGY_DATA_PARALLEL);
    run_chain(&job, costs_need_a_pipeline);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_move_changes_no_bit),
        cmocka_unit_test(a_tied_weight_moves_with_its_layers),
        cmocka_unit_test(a_move_that_fails_leaves_the_old_layout),
        cmocka_unit_test(all_ranks_are_told_the_same_costs),
        cmocka_unit_test(calls_without_their_objects_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
