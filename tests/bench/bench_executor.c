/*
 * The executor of a pipeline on processes of this host:
 *
 * - microseconds of an action beyond its callbacks, for outputs of 64 B, 64 KiB and 1 MiB on two
 *   ranks. The callbacks write what they have to, and their time is taken off;
 * - a step over the simulator's makespan, where each forward takes 200 us.
 *
 * bench_executor [MICRO_BATCHES [ROUNDS [RANKS]]]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <trireme/trireme.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(trireme_status status, const char *what) {
    if (status == TRIREME_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, trireme_status_name(status), trireme_last_error());
    _exit(1);
}

static double action_seconds;
static double callback_seconds; /* of this rank */

static void work(double seconds) {
    for (const double end = now() + seconds; seconds > 0 && now() < end;) {
    }
}

static int32_t TRIREME_CALLCONV forward(const trireme_layer_call *call, void *data) {
    (void)data;
    const double begin = now();
    if (call->output != NULL) memset(call->output, (int)call->micro_batch, call->output_bytes);
    if (call->loss != NULL) *call->loss = 1;
    const double end = now();
    callback_seconds += end - begin;
    work(action_seconds - (end - begin));
    return 0;
}

static int32_t TRIREME_CALLCONV backward(const trireme_layer_call *call, void *data) {
    (void)data;
    const double begin = now();
    if (call->input_gradient != NULL) memset(call->input_gradient, 1, call->input_bytes);
    *(float *)call->gradients[0] = 1;
    const double end = now();
    callback_seconds += end - begin;
    work(2 * action_seconds - (end - begin));
    return 0;
}

enum { MOST_RANKS = 16 };

static void rank_main(int rank, int ranks, const char *rendezvous, uint64_t bytes,
                      uint32_t micro_batches, int rounds) {
    trireme_communicator_options joining = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    joining.rank = rank;
    joining.world_size = ranks;
    joining.rendezvous = rendezvous;
    trireme_communicator *along = NULL, *alone = NULL;
    must(trireme_communicator_create(&joining, &along), "join");
    must(trireme_communicator_split(along, rank, 0, NULL, &alone), "split");
    trireme_model_options how = TRIREME_MODEL_OPTIONS_INIT;
    how.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
    trireme_model *model = NULL;
    must(trireme_model_create(alone, &how, &model), "model");
    const uint64_t one = 1;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &one;
    must(trireme_model_add_parameter(model, &parameter, NULL), "parameter");
    must(trireme_model_seal(model), "seal");
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.01;
    trireme_optimizer *optimizer = NULL;
    must(trireme_optimizer_create(model, &rule, &optimizer), "optimizer");
    trireme_pipeline_schedule_options order = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    order.order = TRIREME_PIPELINE_ORDER_1F1B;
    order.ranks = (uint32_t)ranks;
    order.micro_batches = micro_batches;
    trireme_pipeline_schedule *schedule = NULL;
    must(trireme_pipeline_schedule_create(&order, &schedule), "schedule");
    uint64_t cuts[MOST_RANKS + 1];
    for (int s = 0; s <= ranks; ++s) cuts[s] = (uint64_t)s;
    trireme_trainer_pipeline_options pipeline = TRIREME_TRAINER_PIPELINE_OPTIONS_INIT;
    pipeline.communicator = along;
    pipeline.schedule = schedule;
    pipeline.cuts = cuts;
    pipeline.cut_count = (uint64_t)ranks + 1;
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    options.pipeline = &pipeline;
    trireme_layer layer = TRIREME_LAYER_INIT;
    layer.name = "layer";
    layer.parameter_count = 1;
    layer.forward = forward;
    layer.backward = backward;
    layer.output_bytes = rank + 1 < ranks ? bytes : 0;
    trireme_trainer *trainer = NULL;
    must(trireme_trainer_create(optimizer, &layer, 1, &options, &trainer), "trainer");
    double best = 1e9, beyond = 1e9;
    for (int round = 0; round < rounds; ++round) {
        callback_seconds = 0;
        const double begin = now();
        must(trireme_trainer_step(trainer, NULL, NULL), "step");
        const double taken = now() - begin;
        if (round > 0 && taken < best) best = taken;
        if (round > 0 && taken - callback_seconds < beyond) beyond = taken - callback_seconds;
    }
    if (rank == 0 && action_seconds == 0) {
        printf("%8llu bytes: %8.2f us an action\n", (unsigned long long)bytes,
               beyond * 1e6 / (2 * micro_batches));
    } else if (rank == 0) {
        trireme_pipeline_stage_costs stages[MOST_RANKS];
        for (int s = 0; s < ranks; ++s) {
            stages[s] = (trireme_pipeline_stage_costs)TRIREME_PIPELINE_STAGE_COSTS_INIT;
            stages[s].forward = action_seconds;
            stages[s].backward = 2 * action_seconds;
        }
        trireme_pipeline_costs costs = TRIREME_PIPELINE_COSTS_INIT;
        costs.stages = stages;
        costs.stage_count = (uint64_t)ranks;
        trireme_pipeline_step_report report = TRIREME_PIPELINE_STEP_REPORT_INIT;
        must(trireme_pipeline_schedule_simulate(schedule, &costs, NULL, &report, NULL, 0),
             "simulate");
        printf("%8llu bytes: a step takes %.3f of the makespan\n", (unsigned long long)bytes,
               best / report.makespan);
    }
    fflush(stdout);
    trireme_trainer_destroy(trainer);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_pipeline_schedule_destroy(schedule);
    must(trireme_barrier(along, NULL), "barrier");
    trireme_communicator_destroy(alone);
    trireme_communicator_destroy(along);
}

static int run(const char *name, int ranks, uint64_t bytes, double seconds, uint32_t micro_batches,
               int rounds) {
    char rendezvous[64];
    snprintf(rendezvous, sizeof rendezvous, "host://bench-executor-%d-%s", (int)getpid(), name);
    action_seconds = seconds;
    for (int rank = 0; rank < ranks; ++rank) {
        if (fork() != 0) continue;
        rank_main(rank, ranks, rendezvous, bytes, micro_batches, rounds);
        _exit(0);
    }
    int failed = 0;
    for (int status = 0, rank = 0; rank < ranks; ++rank) {
        wait(&status);
        failed |= status;
    }
    return failed;
}

int main(int count, char **arguments) {
    const uint32_t micro_batches = count > 1 ? (uint32_t)atoi(arguments[1]) : 64;
    const int rounds = count > 2 ? atoi(arguments[2]) : 50;
    const int ranks = count > 3 ? atoi(arguments[3]) : 2;
    if (ranks < 2 || ranks > MOST_RANKS) return 2;
    int failed = run("small", 2, 64, 0, micro_batches, rounds);
    failed |= run("middle", 2, 64 << 10, 0, micro_batches, rounds);
    failed |= run("large", 2, 1 << 20, 0, micro_batches, rounds);
    failed |= run("steps", ranks, 64 << 10, 200e-6, micro_batches, rounds / 5 + 2);
    return failed != 0;
}
