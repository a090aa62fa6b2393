/*
 * The bytes that stages of a pipeline hand to each other. Each layer looks at every byte of its
 * input, output and gradient, when it is called and after a while: for all orders, 2 to 5 ranks,
 * sizes from 0 bytes on, slow senders and receivers. Between threads and between processes.
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
#include <unistd.h>

#include "processes.h"

enum { MOST_STAGES = 16, MOST_RANKS = 8, ROUNDS = 3 };

/* Stage `stage` has one layer, whose output has size_of(stage, ...) bytes. */
struct job {
    trireme_pipeline_order order;
    int ranks, stages_per_rank;
    uint32_t micro_batches;
    bool split;
    int slow;       /* the rank whose callbacks take a while; -1: none */
    int sizes;      /* from where on the list is read */
    uint64_t limit; /* of memory; 0: none */
    bool fits;
    uint64_t need[MOST_RANKS]; /* out, without activations and what is sent */
    char rendezvous[64];
    struct verdict verdicts[MOST_RANKS];
};

struct place {
    const struct job *job;
    struct verdict *verdict;
    int rank, stage, stages;
    int calls;
};

static const struct {
    trireme_pipeline_order order;
    int stages_per_rank;
} kOrders[] = {
    {TRIREME_PIPELINE_ORDER_GPIPE, 1},      {TRIREME_PIPELINE_ORDER_1F1B, 1},
    {TRIREME_PIPELINE_ORDER_LOOPED_BFS, 2}, {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2},
    {TRIREME_PIPELINE_ORDER_ZB_H1, 1},      {TRIREME_PIPELINE_ORDER_ZB_H2, 1},
    {TRIREME_PIPELINE_ORDER_ZB_V, 2},       {TRIREME_PIPELINE_ORDER_V_HALF, 2},
    {TRIREME_PIPELINE_ORDER_V_MIN, 2},      {TRIREME_PIPELINE_ORDER_DUALPIPE_V, 2},
    {TRIREME_PIPELINE_ORDER_WAVE, 3},       {TRIREME_PIPELINE_ORDER_BEST, 1},
};
enum { ORDERS = sizeof kOrders / sizeof kOrders[0] };

static uint64_t size_of(const struct job *job, int stage) {
    static const uint64_t sizes[] = {0, 1, 3, 4, 63, 64, 65, 1000, 70001};
    return sizes[(stage + job->sizes) % 9];
}

/* No byte of a mark for what is not written. */
static unsigned char byte_of(int what, uint64_t pass, uint32_t micro_batch, int stage, uint64_t i) {
    const uint64_t mixed = (uint64_t)what * 31 + pass * 17 + micro_batch * 13 +
                           (uint64_t)stage * 7 + i * 5 + i / 64 * 3;
    return (unsigned char)(1 + mixed % 61);
}

static void put(void *to, uint64_t bytes, int what, const trireme_layer_call *c, int stage) {
    unsigned char *const at = to;
    for (uint64_t i = 0; i < bytes; ++i) at[i] = byte_of(what, c->step, c->micro_batch, stage, i);
}

static bool
has(const void *from, uint64_t bytes, int what, const trireme_layer_call *c, int stage) {
    const unsigned char *const at = from;
    for (uint64_t i = 0; i < bytes; ++i) {
        if (at[i] != byte_of(what, c->step, c->micro_batch, stage, i)) return false;
    }
    return true;
}

enum { OUTPUT = 1, GRADIENT, EVALUATED };

static void look(struct place *p, const trireme_layer_call *c) {
    struct verdict *const v = p->verdict;
    const int made = c->phase == TRIREME_PHASE_EVALUATE ? EVALUATED : OUTPUT;
    const uint64_t in = p->stage > 0 ? size_of(p->job, p->stage - 1) : 0;
    const uint64_t out = p->stage + 1 < p->stages ? size_of(p->job, p->stage) : 0;
    EXPECT(v, c->input_bytes == in && c->output_bytes == out);
    EXPECT(v, has(c->input, in, made, c, p->stage - 1));
    EXPECT(v, (uintptr_t)c->input % 64 == 0);
    if (c->phase == TRIREME_PHASE_FORWARD || c->phase == TRIREME_PHASE_EVALUATE) return;
    EXPECT(v, has(c->output, out, OUTPUT, c, p->stage));
    if (out == 0) return;
    EXPECT(v, has(c->output_gradient, out, GRADIENT, c, p->stage));
    EXPECT(v, (uintptr_t)c->output_gradient % 64 == 0);
}

static void look_twice(struct place *p, const trireme_layer_call *c) {
    look(p, c);
    if (p->rank != p->job->slow || ++p->calls % 3 != 0) return;
    /* The others go on meanwhile, as far as they may. */
    usleep(c->phase == TRIREME_PHASE_EVALUATE ? 3000 : 500);
    look(p, c);
}

static int32_t TRIREME_CALLCONV forward(const trireme_layer_call *c, void *user_data) {
    struct place *const p = user_data;
    look_twice(p, c);
    const int what = c->phase == TRIREME_PHASE_EVALUATE ? EVALUATED : OUTPUT;
    put(c->output, c->output_bytes, what, c, p->stage);
    if (c->loss != NULL) *c->loss = c->micro_batch;
    return 0;
}

static int32_t TRIREME_CALLCONV backward(const trireme_layer_call *c, void *user_data) {
    struct place *const p = user_data;
    look_twice(p, c);
    if (c->input_gradient != NULL) {
        put(c->input_gradient, c->input_bytes, GRADIENT, c, p->stage - 1);
    }
    if (c->gradients != NULL) *(float *)c->gradients[0] = 1;
    return 0;
}

static trireme_pipeline_schedule *schedule_of(const struct job *job) {
    trireme_pipeline_schedule_options order = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    order.order = job->order;
    order.ranks = (uint32_t)job->ranks;
    order.stages_per_rank = (uint32_t)job->stages_per_rank;
    order.micro_batches = job->micro_batches;
    trireme_pipeline_costs costs = TRIREME_PIPELINE_COSTS_INIT;
    trireme_pipeline_stage_costs stages[MOST_STAGES];
    for (int s = 0; s < MOST_STAGES; ++s) {
        stages[s] = (trireme_pipeline_stage_costs)TRIREME_PIPELINE_STAGE_COSTS_INIT;
        stages[s].forward = 1 + 0.2 * s;
        stages[s].input = stages[s].weight = 1;
    }
    costs.stages = stages;
    costs.stage_count = (uint64_t)(job->ranks * job->stages_per_rank);
    if (job->order == TRIREME_PIPELINE_ORDER_BEST) {
        order.costs = &costs;
        order.evaluations = 30;
    }
    trireme_pipeline_schedule *schedule = NULL;
    return trireme_pipeline_schedule_create(&order, &schedule) == TRIREME_OK ? schedule : NULL;
}

static void tell_need(trireme_model *model, trireme_trainer *trainer, struct job *job, int rank,
                      struct verdict *v) {
    trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(trainer, &info));
    EXPECT(v, info.allocated_bytes == info.planned_stretch_bytes + info.planned_gradient_bytes +
                                          info.planned_parameter_gradient_bytes +
                                          info.planned_exchange_bytes);
    trireme_model_memory of_model = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &of_model));
    job->need[rank] = of_model.allocated_parameters + of_model.allocated_gradients +
                      of_model.allocated_optimizer_state + of_model.allocated_working +
                      info.planned_parameter_gradient_bytes + info.planned_exchange_bytes;
}

static void train(trireme_communicator *along, int rank, struct job *job, struct verdict *v) {
    trireme_communicator *alone = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_split(along, rank, 0, NULL, &alone));
    trireme_pipeline_schedule *const schedule = schedule_of(job);
    EXPECT(v, schedule != NULL);
    uint32_t rank_of[MOST_STAGES];
    uint64_t stages = 0, cuts[MOST_STAGES + 1];
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_pipeline_schedule_placement(schedule, rank_of, MOST_STAGES, &stages));
    for (uint64_t s = 0; s <= stages; ++s) cuts[s] = s;
    trireme_model_options how = TRIREME_MODEL_OPTIONS_INIT;
    how.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
    how.timeout_ns = 20ull * 1000 * 1000 * 1000;
    how.memory_limit_bytes = job->limit;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(alone, &how, &model));
    struct place places[MOST_STAGES];
    trireme_layer layers[MOST_STAGES];
    uint64_t count = 0;
    for (int s = 0; s < (int)stages; ++s) {
        if ((int)rank_of[s] != rank) continue;
        const uint64_t one = 1;
        char name[16];
        snprintf(name, sizeof name, "w%d", s);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.dimensions = 1;
        parameter.shape = &one;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
        places[count] = (struct place){job, v, rank, s, (int)stages, 0};
        trireme_layer *const layer = &layers[count];
        *layer = (trireme_layer)TRIREME_LAYER_INIT;
        layer->name = "layer";
        layer->first_parameter = count;
        layer->parameter_count = 1;
        layer->forward = forward;
        layer->backward = backward;
        if (job->split) layer->backward_weight = backward;
        layer->user_data = &places[count++];
        if (s + 1 < (int)stages) layer->output_bytes = size_of(job, s);
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.25;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    trireme_trainer_pipeline_options pipeline = TRIREME_TRAINER_PIPELINE_OPTIONS_INIT;
    pipeline.communicator = along;
    pipeline.schedule = schedule;
    pipeline.cuts = cuts;
    pipeline.cut_count = stages + 1;
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    options.pipeline = &pipeline;
    trireme_trainer *trainer = NULL;
    const bool fits = job->limit == 0 || job->fits;
    EXPECT_STATUS(v, fits ? TRIREME_OK : TRIREME_ERROR_OUT_OF_MEMORY,
                  trireme_trainer_create(optimizer, layers, count, &options, &trainer));
    if (!fits) {
        /* The ranks with more than the limit tell it, the others who that is. */
        EXPECT(v, strstr(trireme_last_error(), job->need[rank] > job->limit
                                                   ? "memory_limit_bytes is"
                                                   : "answered OUT_OF_MEMORY") != NULL);
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(along, NULL));
    }
    const double mean = (job->micro_batches - 1) / 2.0;
    for (int round = 0; round < ROUNDS && fits && v->text[0] == 0; ++round) {
        double loss = 0;
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        if (round != 1) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_evaluate(trainer, NULL, &loss));
            EXPECT(v, loss == mean);
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(trainer, NULL, &metrics));
        EXPECT(v, metrics.loss == mean);
    }
    if (fits) tell_need(model, trainer, job, rank, v);
    trireme_trainer_destroy(trainer);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_pipeline_schedule_destroy(schedule);
    trireme_communicator_destroy(alone);
}

static void thread(trireme_communicator *along, int rank, void *context) {
    struct job *const job = context;
    train(along, rank, job, &job->verdicts[rank]);
}

static void process(int rank, void *context, struct outcome *outcome) {
    struct job *const job = context;
    trireme_communicator *const along = join_process(rank, job->ranks, job->rendezvous, PATIENT_NS);
    train(along, rank, job, &job->verdicts[rank]);
    snprintf(outcome->text, sizeof outcome->text, "%.*s", (int)sizeof outcome->text - 1,
             job->verdicts[rank].text);
    outcome->status = trireme_barrier(along, NULL);
    trireme_communicator_destroy(along);
}

static void print_job(const struct job *job) {
    print_error("order %d, %d ranks of %d stages, %u micro-batches%s, rank %d is slow, sizes %d\n",
                (int)job->order, job->ranks, job->stages_per_rank, job->micro_batches,
                job->split ? " in halves" : "", job->slow, job->sizes);
}

static struct job job_of(int order, int ranks, int k) {
    struct job job = {.order = kOrders[order].order,
                      .ranks = ranks,
                      .stages_per_rank = kOrders[order].stages_per_rank,
                      .micro_batches = (uint32_t)(2 * ranks + k % 2 * 2),
                      .split = k % 3 != 0,
                      .slow = (order + k) % (ranks + 1) - 1,
                      .sizes = (k + order) % 9};
    return job;
}

/* Processes come first: their parent must not have used the library. */
static void processes_hand_on_what_layers_wrote(void **state) {
    (void)state;
    for (int order = 0; order < ORDERS; ++order) {
        for (int ranks = 2; ranks <= 5; ++ranks) {
            if ((order + ranks) % (is_quick() ? 4 : 2) != 0) continue;
            static struct job job;
            job = job_of(order, ranks, order + ranks);
            unique_process_rendezvous(job.rendezvous, sizeof job.rendezvous);
            struct processes processes;
            start_processes(&processes, ranks, process, &job);
            wait_processes(&processes);
            for (int rank = 0; rank < ranks; ++rank) {
                const struct outcome *const o = &processes.outcomes[rank];
                const bool right =
                    !o->hung && o->exit_code == 0 && o->text[0] == 0 && o->status == TRIREME_OK;
                if (!right) {
                    print_job(&job);
                    print_error("rank %d: exit code %d, %s, %s\n", rank, o->exit_code,
                                trireme_status_name(o->status), o->text);
                }
                assert_true(right);
            }
            free_processes(&processes);
        }
    }
}

static void threads_hand_on_what_layers_wrote(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int order = 0; order < ORDERS; ++order) {
        for (int ranks = 2; ranks <= 5; ++ranks) {
            for (int k = 0; k < (is_quick() ? 1 : 2); ++k) {
                static struct job job;
                job = job_of(order, ranks, k + (is_quick() ? order + ranks : 0));
                run_ranks(ranks, thread, &job);
                for (int rank = 0; rank < ranks; ++rank) {
                    if (job.verdicts[rank].text[0] != 0) print_job(&job);
                }
                assert_verdicts(job.verdicts, ranks);
            }
        }
    }
}

/* 1 byte below the need of the fullest rank all ranks are refused. */
static void a_limit_counts_sums_and_headers(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(1, 3, 0);
    run_ranks(3, thread, &job);
    assert_verdicts(job.verdicts, 3);
    for (int rank = 0; rank < 3; ++rank) {
        if (job.need[rank] > job.limit) job.limit = job.need[rank];
    }
    job.fits = true;
    run_ranks(3, thread, &job);
    assert_verdicts(job.verdicts, 3);
    job.fits = false;
    --job.limit;
    run_ranks(3, thread, &job);
    assert_verdicts(job.verdicts, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_hand_on_what_layers_wrote),
        cmocka_unit_test(threads_hand_on_what_layers_wrote),
        cmocka_unit_test(a_limit_counts_sums_and_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
