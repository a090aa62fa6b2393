/*
 * Stages that compute forward again, by checkpoint_every, by activation_budget_bytes and by R of
 * the schedule: the bits of a plain loop, so many second forwards as the options say, in memory as
 * planned. Ranks of one model take the same layers for a budget, also where one shares memory with
 * the other stage and one does not.
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
#include "pipeline_chain_seeds.inc"

#define LEAVES 6
enum { MOST_ACTIONS = 512 };

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

/* Some pipelines have one memory then, and some send messages. Budgets alone differ there. */
static bool are_hosts_mixed(void) {
    return getenv("TRIREME_TESTS_HOSTS") != NULL && !ranks_use_transport();
}

static bool is_split_stage(const struct rank *r, uint32_t stage) {
    for (uint64_t l = r->cuts[stage]; l < r->cuts[stage + 1]; ++l) {
        if ((r->job->split >> l & 1) != 0) return true;
    }
    return false;
}

/* Actions of the schedule for a stage and micro-batch. */
struct cell {
    bool again, weights, follows; /* R; W; backward right after forward */
};

/* Second forwards of one rank's layers in a step of `own` micro-batches. A backward right after its
 * forward still finds the last stretch, or, in halves, the whole stage. */
static int second_forwards(struct rank *r, int own) {
    trireme_pipeline_action list[MOST_ACTIONS];
    static _Thread_local struct cell cells[MOST_STAGES][MOST_LEAVES];
    uint64_t count = 0;
    EXPECT_STATUS(r->verdict, TRIREME_OK,
                  trireme_pipeline_schedule_actions(r->schedule, (uint32_t)r->place, list,
                                                    MOST_ACTIONS, &count));
    EXPECT(r->verdict, count <= MOST_ACTIONS);
    memset(cells, 0, sizeof cells);
    for (uint64_t i = 0; i < count; ++i) {
        struct cell *const c = &cells[list[i].stage][list[i].micro_batch];
        if (list[i].kind == TRIREME_PIPELINE_KIND_R) c->again = true;
        if (list[i].kind == TRIREME_PIPELINE_KIND_W) c->weights = true;
        if (!is_backward_action(&list[i]) || i == 0) continue;
        c->follows = list[i - 1].kind == TRIREME_PIPELINE_KIND_F &&
                     list[i - 1].stage == list[i].stage &&
                     list[i - 1].micro_batch == list[i].micro_batch;
    }
    const struct cell *in_work = NULL;
    int sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
        const trireme_pipeline_action *const a = &list[i];
        const struct cell *const c = &cells[a->stage][a->micro_batch];
        const int layers = (int)(r->cuts[a->stage + 1] - r->cuts[a->stage]);
        const int every = r->job->every > (uint64_t)layers ? layers : (int)r->job->every;
        const bool halves = c->weights && is_split_stage(r, a->stage);
        const bool sends =
            a->stage + 1 < r->stages && r->rank_of[a->stage] != r->rank_of[a->stage + 1];
        const bool computes = (int)a->micro_batch < own;
        const bool keeps = !c->again && (every == 0 || (halves && c->follows));
        if (a->kind == TRIREME_PIPELINE_KIND_F && !keeps) in_work = c;
        if (a->kind == TRIREME_PIPELINE_KIND_R && computes) sum += layers;
        if (!is_backward_action(a) || keeps || c->again) continue;
        const int last = (layers - 1) % every + 1;
        const bool at_hand = !halves && in_work == c && !sends;
        if (computes) sum += layers - (at_hand ? last : 0);
        if (!halves) in_work = NULL;
    }
    return sum;
}

static void train(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    for (int step = 0; step < STEPS && v->text[0] == 0; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
        EXPECT(v, memcmp(&metrics.loss, &job->right->losses[step], sizeof(double)) == 0);
        EXPECT(v, metrics.gradient_norm == job->right->norms[step]);
    }
    double evaluated = 0;
    if (v->text[0] == 0) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_evaluate(r.trainer, &r, &evaluated));
        EXPECT(v, memcmp(&evaluated, &job->right->evaluated, sizeof evaluated) == 0);
        check_chain_values(&r);
        trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r.trainer, &info));
        job->info[number] = info;
        trireme_trainer_info again = TRIREME_TRAINER_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r.trainer, &again));
        EXPECT(v, memcmp(&again, &info, sizeof info) == 0);
        EXPECT(v, info.allocated_bytes ==
                      info.planned_checkpoint_bytes + info.planned_stretch_bytes +
                          info.planned_gradient_bytes + info.planned_parameter_gradient_bytes +
                          info.planned_exchange_bytes);
        const int total = micro_batches_of(job);
        const int own =
            job->leaves == 0 ? total : (job->leaves - r.data + job->data - 1) / job->data;
        EXPECT(v, r.calls[TRIREME_PHASE_FORWARD] == own * (int)r.layer_count * STEPS);
        EXPECT(v, r.calls[TRIREME_PHASE_EVALUATE] == own * (int)r.layer_count);
        uint64_t twice = 0;
        for (int l = 0; l < LAYERS; ++l) twice += r.twice[l] ? 1 : 0;
        EXPECT(v, own == total ? info.recomputed == twice : info.recomputed >= twice);
        if (job->budget == 0) {
            EXPECT(v, r.calls[TRIREME_PHASE_RECOMPUTE] == second_forwards(&r, own) * STEPS);
        } else {
            EXPECT(v, info.planned_stretch_bytes + info.planned_gradient_bytes <= job->budget);
            EXPECT(v, (r.calls[TRIREME_PHASE_RECOMPUTE] > 0) == (info.recomputed > 0));
        }
    }
    end_rank(&r);
}

static const struct curve *reproducible(void) {
    static struct curve curve;
    draw_seeds();
    if (curve.losses[0] == 0) plain_training(LEAVES, 0, 0, &curve);
    return &curve;
}

static const struct {
    trireme_pipeline_order order;
    int stages_per_rank;
} kOrders[] = {
    {TRIREME_PIPELINE_ORDER_GPIPE, 1},       {TRIREME_PIPELINE_ORDER_1F1B, 1},
    {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2}, {TRIREME_PIPELINE_ORDER_ZB_H1, 1},
    {TRIREME_PIPELINE_ORDER_ZB_V, 2},        {TRIREME_PIPELINE_ORDER_BEST, 2},
    {TRIREME_PIPELINE_ORDER_DUALPIPE_V, 2},  {TRIREME_PIPELINE_ORDER_WAVE, 3},
};
enum { ORDERS = sizeof kOrders / sizeof kOrders[0] };
static const unsigned kSplits[] = {0, 0xff, 0x55, 0x06};
static const struct {
    uint64_t every;
    enum second_forward second_forward;
} kWays[] = {{1, NO_R}, {2, NO_R}, {3, NO_R}, {100, NO_R}, {0, EACH_R}, {0, EARLY_R}, {2, EARLY_R}};
enum { WAYS = sizeof kWays / sizeof kWays[0] };

static void run_ways(struct job *job, int first, int step) {
    const trireme_strategy strategy = job->strategy;
    for (int w = first % step; w < WAYS; w += step) {
        job->every = kWays[w].every;
        job->second_forward = kWays[w].second_forward;
        job->strategy = (trireme_strategy)(1 + (strategy + w) % TRIREME_STRATEGY_HYBRID_SHARD);
        run_chain(job, train);
    }
}

static void second_forwards_have_the_bits_of_a_plain_loop(void **state) {
    (void)state;
    if (!ranks_make_groups() || are_hosts_mixed()) skip();
    const struct curve *const right = reproducible();
    const bool long_run = getenv("TRIREME_TEST_LONG") != NULL;
    for (int ranks = 1; ranks <= 5; ++ranks) {
        int jobs = 0;
        for (int k = 0; k < ORDERS; ++k) {
            for (int s = 0; s < 4; ++s) {
                static struct job job;
                job = (struct job){.strategy = 1,
                                   .data = 1,
                                   .ranks = ranks,
                                   .order = kOrders[k].order,
                                   .stages_per_rank = kOrders[k].stages_per_rank,
                                   .leaves = LEAVES,
                                   .split = kSplits[s],
                                   .right = right};
                if (ranks * job.stages_per_rank > MOST_STAGES || !all_have_parameters(&job)) {
                    continue;
                }
                run_ways(&job, ranks + k + s, long_run ? 1 : is_quick() ? 7 : 3);
                ++jobs;
            }
        }
        assert_true(jobs > 0);
    }
}

static void second_forwards_go_with_ranks_of_data(void **state) {
    (void)state;
    if (!ranks_make_groups() || are_hosts_mixed()) skip();
    const bool long_run = getenv("TRIREME_TEST_LONG") != NULL;
    const int meshes[][2] = {{2, 2}, {3, 2}, {4, 2}, {2, 3}, {2, 4}}; /* 4: some have a leaf less */
    for (int m = 0; m < 5; ++m) {
        for (int leaves = 0; leaves < 2; ++leaves) {
            static struct curve sums;
            if (leaves == 0) plain_training(0, meshes[m][0], 3, &sums);
            for (int k = 0; k < 5; ++k) {
                static struct job job;
                job = (struct job){.strategy = (trireme_strategy)(1 + (m + k) % 5),
                                   .data = meshes[m][0],
                                   .ranks = meshes[m][1],
                                   .order = kOrders[k].order,
                                   .stages_per_rank = kOrders[k].stages_per_rank,
                                   .leaves = leaves * LEAVES,
                                   .micro_batches = leaves == 0 ? 3 : 0,
                                   .split = kSplits[(k + m) % 4],
                                   .right = leaves == 0 ? &sums : reproducible()};
                if (!all_have_parameters(&job)) continue;
                run_ways(&job, m + k + leaves, long_run ? 1 : is_quick() ? 7 : 3);
            }
        }
    }
}

/* ---- when ---- */

struct event {
    int32_t phase;
    int layer, micro_batch;
};
static struct event events[256];
static int event_count;

static int32_t TRIREME_CALLCONV noting_forward(const trireme_layer_call *c, void *user_data) {
    events[event_count++] = (struct event){c->phase, (int)c->number, (int)c->micro_batch};
    return forward(c, user_data);
}
static int32_t TRIREME_CALLCONV noting_backward(const trireme_layer_call *c, void *user_data) {
    events[event_count++] = (struct event){c->phase, (int)c->number, (int)c->micro_batch};
    return backward(c, user_data);
}

static void note_calls(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    make_rank(&r, all);
    for (uint64_t i = 0; i < r.layer_count; ++i) {
        r.layers[i].forward = noting_forward;
        r.layers[i].backward = noting_backward;
        if (r.layers[i].backward_weight != NULL) r.layers[i].backward_weight = noting_backward;
    }
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(r.verdict, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    event_count = 0;
    EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    end_rank(&r);
}

static void expect_events(const char *text) {
    int at = 0;
    for (const char *next = text; *next != 0; ++next) {
        if (*next == ' ') continue;
        int first = 0, end = 0, micro_batch = 0, used = 0;
        const char kind = *next;
        assert_int_equal(sscanf(next + 1, "%d-%d.%d%n", &first, &end, &micro_batch, &used), 3);
        static const char kinds[] = "?FRBEIW";
        const int step = first <= end ? 1 : -1;
        for (int layer = first; layer != end + step; layer += step, ++at) {
            if (at == event_count || events[at].phase != strchr(kinds, kind) - kinds ||
                events[at].layer != layer || events[at].micro_batch != micro_batch) {
                print_error("call %d is not %c of layer %d in micro-batch %d\n", at, kind, layer,
                            micro_batch);
                fail();
            }
        }
        next += used;
    }
    assert_int_equal(at, event_count);
}

/* Calls of one rank, in their order: from the first layer to the second one, in a micro-batch. */
static void a_second_forward_comes_in_its_turn(void **state) {
    (void)state;
    draw_seeds();
    static const struct {
        const char *schedule;
        uint64_t every;
        unsigned split;
        const char *calls;
    } cases[] = {
        /* Stretch by stretch, from the last one. */
        {"0F0 0F1 0B0 0B1", 3, 0,
         "F0-7.0 F0-7.1 R6-7.0 B7-6.0 R3-5.0 B5-3.0 R0-2.0 B2-0.0 "
         "R6-7.1 B7-6.1 R3-5.1 B5-3.1 R0-2.1 B2-0.1"},
        /* A backward right after forward finds the last stretch where it is. */
        {"0F0 0B0 0F1 0B1", 3, 0,
         "F0-7.0 B7-6.0 R3-5.0 B5-3.0 R0-2.0 B2-0.0 F0-7.1 B7-6.1 R3-5.1 B5-3.1 R0-2.1 B2-0.1"},
        /* R comes when the schedule says so, and backward right away. */
        {"0F0 0F1 0R1 0R0 0B0 0B1", 0, 0, "F0-7.0 F0-7.1 R0-7.1 R0-7.0 B7-0.0 B7-0.1"},
        /* Only where the schedule has it. */
        {"0F0 0F1 0R1 0B0 0B1", 0, 0, "F0-7.0 F0-7.1 R0-7.1 B7-0.0 B7-0.1"},
        {"0F0 0F1 0R1 0B0 0B1", 4, 0, "F0-7.0 F0-7.1 R0-7.1 R4-7.0 B7-4.0 R0-3.0 B3-0.0 B7-0.1"},
        /* Halves have the whole stage from I until W. */
        {"0F0 0F1 0I0 0I1 0W1 0W0", 3, 0xff,
         "F0-7.0 F0-7.1 R0-7.0 I7-0.0 R0-7.1 I7-0.1 W7-0.1 W7-0.0"},
        {"0F0 0F1 0I1 0I0 0W1 0W0", 3, 0xff, "F0-7.0 F0-7.1 I7-0.1 R0-7.0 I7-0.0 W7-0.1 W7-0.0"},
        {"0F0 0F1 0R0 0I1 0I0 0W1 0W0", 0, 0xff,
         "F0-7.0 F0-7.1 R0-7.0 I7-0.1 I7-0.0 W7-0.1 W7-0.0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[160];
        snprintf(text, sizeof text, "pipeline ranks=1 stages=1 micro_batches=2 placement=0\n%s\n",
                 cases[i].schedule);
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                           .data = 1,
                           .ranks = 1,
                           .stages_per_rank = 1,
                           .text = text,
                           .leaves = 2,
                           .split = cases[i].split,
                           .every = cases[i].every};
        run_chain(&job, note_calls);
        expect_events(cases[i].calls);
    }
}

/* ---- memory ---- */

static uint64_t piece(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}
static uint64_t output_of(int layer) {
    return is_loss(layer) ? 0 : piece(4 * ROWS * (uint64_t)kWidths[layer + 1]);
}
static uint64_t saved_of(int layer) {
    return is_plain(layer) ? 0 : output_of(layer);
}

struct bytes {
    uint64_t kept, again, work, gradients, all;
};

/* Of a stage from layer `first` to `end`, whose layers up to `until` are computed again: by
 * stretches, or with every = 0 at once. A message has a header of 128 bytes if ranks share no
 * memory, and else lies where its sender has it. */
static struct bytes bytes_of(int first, int end, int until, int every) {
    const bool in_place = !ranks_use_transport();
    struct bytes b = {0};
    uint64_t turns[2] = {0, 0}, outputs[2] = {0, 0}, saved = 0, stretch = 0;
    if (first > 0 && !in_place) b.kept += 128 + piece(4 * ROWS * (uint64_t)kWidths[first]);
    for (int l = first; l < end; ++l) {
        const bool last = l + 1 == end, sent = last && !is_loss(l), again = l < until;
        const bool checkpoint =
            again && !last && (l + 1 == until || (every > 0 && (l + 1 - first) % every == 0));
        if (sent) b.kept += in_place ? 0 : 128;
        if (sent || checkpoint || !again) b.kept += output_of(l);
        if (!again) b.kept += saved_of(l);
        if (again && every > 0) {
            if ((l - first) % every == 0) stretch = 0;
            stretch += saved_of(l) + (checkpoint ? 0 : output_of(l));
            if (stretch > b.work) b.work = stretch;
        }
        if (again && every == 0) b.again += saved_of(l) + (checkpoint ? 0 : output_of(l));
        b.all += output_of(l) + saved_of(l);
        if (again && output_of(l) > outputs[(l - first) % 2]) {
            outputs[(l - first) % 2] = output_of(l);
        }
        if (again && saved_of(l) > saved) saved = saved_of(l);
        if (!last && output_of(l) > turns[(l - first) % 2]) turns[(l - first) % 2] = output_of(l);
        if (sent && !in_place) b.gradients += 128 + output_of(l);
    }
    if (every == 0 && until > first) b.work = outputs[0] + outputs[1] + saved;
    b.gradients += turns[0] + turns[1];
    return b;
}

/* 1F1B holds min(p - r, m) micro-batches on rank r, GPipe all. Each has its checkpoints, and one
 * at a time a stretch. */
static void micro_batches_keep_checkpoints_alone(void **state) {
    (void)state;
    if (!ranks_make_groups() || are_hosts_mixed()) skip();
    const struct curve *const right = reproducible();
    for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int k = 0; k < 2; ++k) {
            for (int every = 0; every <= 8; every = every < 3 ? every + 1 : every + 5) {
                static struct job job;
                job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2,
                                   .data = 1,
                                   .ranks = ranks,
                                   .order = kOrders[k].order,
                                   .stages_per_rank = 1,
                                   .leaves = LEAVES,
                                   .every = (uint64_t)every,
                                   .second_forward = every == 0 ? EACH_R : NO_R,
                                   .right = right};
                run_chain(&job, train);
                for (int r = 0; r < ranks; ++r) {
                    const int first = (int)cut_of((uint64_t)r, (uint64_t)ranks);
                    const int end = (int)cut_of((uint64_t)r + 1, (uint64_t)ranks);
                    const struct bytes b = bytes_of(first, end, end, every);
                    const int held = k == 0 || ranks - r > LEAVES ? LEAVES : ranks - r;
                    const trireme_trainer_info *const info = &job.info[r];
                    assert_int_equal(info->planned_stretch_bytes,
                                     (uint64_t)held * b.kept + b.again + b.gradients + b.work);
                    const int stretches = every == 0 ? 1 : (end - first + every - 1) / every;
                    assert_int_equal(info->stretches, stretches);
                }
            }
        }
    }
}

/* The peak of the simulator, beside gradients of outputs and what one forward needs until R. */
static void check_against_the_simulator(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r.trainer, &info));
    trireme_pipeline_stage_costs stages[MOST_STAGES];
    struct bytes own = {0};
    for (uint64_t s = 0; s < r.stages; ++s) {
        const struct bytes b = bytes_of((int)r.cuts[s], (int)r.cuts[s + 1], (int)r.cuts[s + 1], 0);
        stages[s] = (trireme_pipeline_stage_costs)TRIREME_PIPELINE_STAGE_COSTS_INIT;
        stages[s].forward = stages[s].input = stages[s].weight = stages[s].recompute = 1;
        stages[s].checkpoint_bytes = b.kept;
        stages[s].kept_bytes = stages[s].held_bytes = b.kept + b.again;
        if ((int)r.rank_of[s] == r.place) own = b;
    }
    trireme_pipeline_costs costs = TRIREME_PIPELINE_COSTS_INIT;
    costs.stages = stages;
    costs.stage_count = r.stages;
    trireme_pipeline_step_report report = TRIREME_PIPELINE_STEP_REPORT_INIT;
    trireme_pipeline_rank_times ranks[MOST_RANKS];
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_pipeline_schedule_simulate(r.schedule, &costs, NULL, &report, ranks,
                                                     MOST_RANKS));
    /* Gradients are there for one micro-batch at a time. */
    EXPECT(v, info.planned_stretch_bytes == ranks[r.place].peak_bytes + own.gradients + own.work);
    end_rank(&r);
}

static void peaks_are_those_of_the_simulator(void **state) {
    (void)state;
    if (!ranks_make_groups() || are_hosts_mixed()) skip();
    for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int k = 0; k < 2; ++k) {
            static struct job job;
            job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                               .data = 1,
                               .ranks = ranks,
                               .order = kOrders[k].order,
                               .stages_per_rank = 1,
                               .leaves = LEAVES,
                               .second_forward = EACH_R};
            run_chain(&job, check_against_the_simulator);
        }
    }
}

/* All micro-batches are there at once: each keeps checkpoints and the layers from `until` on. */
static uint64_t least_of_gpipe(int first, int end, int until) {
    uint64_t least = UINT64_MAX;
    for (int every = 1; every <= (until > first ? until - first : 1); ++every) {
        const struct bytes b = bytes_of(first, end, until, every);
        const uint64_t all = LEAVES * b.kept + b.work + b.gradients;
        if (all < least) least = all;
    }
    return least;
}

static void try_budget(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    char words[160];
    snprintf(words, sizeof words, "options.activation_budget_bytes is %llu, but the least that ",
             (unsigned long long)r.job->budget);
    EXPECT_STATUS(r.verdict, TRIREME_ERROR_OUT_OF_MEMORY, create_chain_trainer(&r, &pipeline));
    const bool at_fault = r.job->info[number].least_bytes > r.job->budget;
    EXPECT(r.verdict, at_fault ? says(words) && says("without checkpoints it takes ")
                               : says("answered OUT_OF_MEMORY"));
    end_rank(&r);
}

static void a_budget_recomputes_as_few_layers_as_fit(void **state) {
    (void)state;
    if (!ranks_make_groups() || are_hosts_mixed()) skip();
    const struct curve *const right = reproducible();
    for (int ranks = 1; ranks <= 2; ++ranks) {
        static struct job job;
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                           .data = 1,
                           .ranks = ranks,
                           .order = TRIREME_PIPELINE_ORDER_GPIPE,
                           .stages_per_rank = 1,
                           .leaves = LEAVES,
                           .right = right};
        run_chain(&job, train);
        const int end = (int)cut_of(1, (uint64_t)ranks);
        const trireme_trainer_info all = job.info[0];
        assert_int_equal(all.recomputed, 0);
        assert_int_equal(all.largest_bytes, all.planned_stretch_bytes + all.planned_gradient_bytes);
        uint64_t least = UINT64_MAX;
        for (int until = 0; until <= end; ++until) {
            const uint64_t bytes = least_of_gpipe(0, end, until);
            if (bytes < least) least = bytes;
        }
        assert_int_equal(all.least_bytes, least);
        uint64_t needed = least; /* by the rank that needs the most */
        for (int r = 0; r < ranks; ++r) {
            if (job.info[r].least_bytes > needed) needed = job.info[r].least_bytes;
        }
        for (uint64_t budget = needed; budget <= all.largest_bytes; budget += 448) {
            job.budget = budget;
            run_chain(&job, train);
            int until = 0;
            while (least_of_gpipe(0, end, until) > budget) ++until;
            assert_int_equal(job.info[0].recomputed, until);
            assert_int_equal(job.info[0].planned_stretch_bytes, least_of_gpipe(0, end, until));
        }
        job.budget = needed - 1;
        run_chain(&job, try_budget);
    }
}

/* Any schedule within its least budget, also on ranks of data that share parameters. */
static void each_schedule_fits_its_least_budget(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int k = 0; k < ORDERS; ++k) {
        for (int data = 1; data <= 2; ++data) {
            static struct job job;
            job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                               .data = data,
                               .ranks = 2,
                               .order = kOrders[k].order,
                               .stages_per_rank = kOrders[k].stages_per_rank,
                               .leaves = LEAVES,
                               .split = kSplits[k % 4],
                               .right = right};
            run_chain(&job, train);
            for (int r = 0; r < 2 * data; ++r) {
                if (job.info[r].least_bytes > job.budget) job.budget = job.info[r].least_bytes;
            }
            run_chain(&job, train);
        }
    }
}

/* ---- layers that are not trained ---- */

/* The first stages may have no gradients at all. */
static void frozen_layers_stay_as_they_are(void **state) {
    (void)state;
    if (!ranks_make_groups() || are_hosts_mixed()) skip();
    reproducible();
    const unsigned frozen[] = {0x01, 0x03, 0x40, 0x24};
    for (int f = 0; f < 4; ++f) {
        static struct curve right;
        plain_frozen = frozen[f];
        plain_training(LEAVES, 0, 0, &right);
        plain_frozen = 0;
        for (int ranks = 1; ranks <= 4; ++ranks) {
            static struct job job;
            job = (struct job){.strategy = 1,
                               .data = ranks < 3 ? 2 : 1,
                               .ranks = ranks,
                               .order = kOrders[(ranks + f) % 5].order,
                               .stages_per_rank = kOrders[(ranks + f) % 5].stages_per_rank,
                               .leaves = LEAVES,
                               .split = kSplits[(ranks + f) % 4],
                               .frozen = frozen[f],
                               .right = &right};
            if (!all_have_parameters(&job)) continue;
            run_chain(&job, train);
            run_ways(&job, ranks + f, is_quick() ? 7 : 3);
        }
    }
}

/* ---- what is refused ---- */

static void ask_for_other_checkpoints(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    options.seed = 12345;
    options.pipeline = &pipeline;
    options.checkpoint_every = r.data == 0 ? 2 : 3;
    const trireme_status differ =
        trireme_trainer_create(r.optimizer, r.layers, r.layer_count, &options, &r.trainer);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, differ);
    EXPECT(v, says("options.checkpoint_every is 2 on rank 0 and 3 on rank 1"));
    options.checkpoint_every = 0;
    options.activation_budget_bytes = r.data == 0 ? 20000 : 30000;
    const trireme_status budgets =
        trireme_trainer_create(r.optimizer, r.layers, r.layer_count, &options, &r.trainer);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, budgets);
    EXPECT(v, says("options.activation_budget_bytes is 20000 on rank 0 and 30000 on rank 1"));
    options.checkpoint_every = 2;
    const trireme_status both =
        trireme_trainer_create(r.optimizer, r.layers, r.layer_count, &options, &r.trainer);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, both);
    EXPECT(v, says("are both set"));
    /* Ranks of other stages may have other ones. */
    options.activation_budget_bytes = 0;
    options.checkpoint_every = r.place == 0 ? 2 : 0;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_trainer_create(r.optimizer, r.layers, r.layer_count, &options,
                                         &r.trainer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    EXPECT(v, (r.calls[TRIREME_PHASE_RECOMPUTE] > 0) == (r.place == 0));
    end_rank(&r);
}

static void copies_of_a_stage_recompute_alike(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    draw_seeds();
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                       .data = 2,
                       .ranks = 2,
                       .order = TRIREME_PIPELINE_ORDER_1F1B,
                       .stages_per_rank = 1,
                       .leaves = LEAVES};
    run_chain(&job, ask_for_other_checkpoints);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_forward_comes_in_its_turn),
        cmocka_unit_test(micro_batches_keep_checkpoints_alone),
        cmocka_unit_test(peaks_are_those_of_the_simulator),
        cmocka_unit_test(second_forwards_have_the_bits_of_a_plain_loop),
        cmocka_unit_test(second_forwards_go_with_ranks_of_data),
        cmocka_unit_test(a_budget_recomputes_as_few_layers_as_fit),
        cmocka_unit_test(each_schedule_fits_its_least_budget),
        cmocka_unit_test(frozen_layers_stay_as_they_are),
        cmocka_unit_test(copies_of_a_stage_recompute_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
