/*
 * Models on a device: what is refused, wrong memory, memory that runs out, devices that fail or
 * stand still, and peers that die. The driver of the tests is told when.
 */
#include <trireme/trireme.h>

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "device_ranks.h"
#include "models.h"
#include "options.h"
#include "processes.h"

enum { COUNT = 100, UNITS = 3 };

static trireme_optimizer_options adamw(void) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAMW;
    options.learning_rate = 0.01;
    return options;
}

static trireme_model_options sharded(void) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    return options;
}

static int live(void) {
    return FAKE(fake_lives, "fake_live_count")();
}

static float *new_gradient(int device, float value) {
    float here[COUNT];
    for (int i = 0; i < COUNT; ++i) here[i] = value;
    float *const gradient = FAKE(fake_memory, "fake_device_memory")(device, sizeof here);
    CHECK(gradient != NULL);
    FAKE(fake_writes, "fake_queue_write")(device, NULL, gradient, here, sizeof here);
    return gradient;
}

static trireme_status backward(trireme_model *model, const float *gradient) {
    trireme_status status = trireme_model_begin_backward(model, 0);
    for (uint64_t i = UNITS; i-- > 0 && status == TRIREME_OK;) {
        status = trireme_model_gradient_ready(model, i, gradient, COUNT, TRIREME_DTYPE_F32);
    }
    return status == TRIREME_OK ? trireme_model_end_backward(model) : status;
}

/* ---- refusals ---- */

static int32_t TRIREME_CALLCONV no_hook(const trireme_bucket *bucket, void *data) {
    (void)bucket, (void)data;
    return 0;
}

static int32_t TRIREME_CALLCONV no_update(const trireme_update *update, void *data) {
    (void)update, (void)data;
    return 0;
}

static int32_t TRIREME_CALLCONV no_layer(const trireme_layer_call *call, void *data) {
    (void)call, (void)data;
    return 0;
}

static void refused_models(trireme_communicator *ranks) {
    const trireme_status no = TRIREME_ERROR_UNSUPPORTED;
    const char *const place = "a model on CUDA device 0", *const page = "docs/gpus.md";
    trireme_model *model = NULL;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    parameter_file_of(&options)->path = "/tmp";
    CHECK_FAILS(trireme_model_create(ranks, &options, &model), no, place, "options.offload", page);
    options = sharded();
    options.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
    CHECK_FAILS(trireme_model_create(ranks, &options, &model), no, place, "UPDATE_IN_BACKWARD");
    options = sharded();
    buckets_of(&options)->hook = no_hook;
    CHECK_FAILS(trireme_model_create(ranks, &options, &model), no, place, "a bucket hook");
    options = sharded();
    shards_of(&options)->share = TRIREME_SHARE_ALWAYS;
    CHECK_FAILS(trireme_model_create(ranks, &options, &model), no, place, "SHARE_ALWAYS");
    CHECK(model == NULL);
}

static void refused_rules(trireme_model *model) {
    static const struct {
        trireme_rule_kind kind;
        const char *word;
    } kinds[] = {{TRIREME_RULE_ADAFACTOR, "adafactor"}, {TRIREME_RULE_MUON, "muon"}};
    const trireme_status no = TRIREME_ERROR_UNSUPPORTED;
    const char *const place = "an optimizer of a model on CUDA device 0";
    trireme_optimizer *optimizer = NULL;
    trireme_optimizer_options options = adamw();
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; ++i) {
        options.kind = kinds[i].kind;
        CHECK_FAILS(trireme_optimizer_create(model, &options, &optimizer), no, place, kinds[i].word,
                    "docs/gpus.md");
    }
    options = adamw();
    options.kind = TRIREME_RULE_USER;
    user_rule_of(&options)->update = no_update;
    CHECK_FAILS(trireme_optimizer_create(model, &options, &optimizer), no, place, "user");
    options = adamw();
    options.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
    CHECK_FAILS(trireme_optimizer_create(model, &options, &optimizer), no, place, "ONE_SWEEP");
    options = adamw();
    state_file_of(&options)->path = "/tmp";
    CHECK_FAILS(trireme_optimizer_create(model, &options, &optimizer), no, place,
                "options.offload");
    CHECK(optimizer == NULL);
}

static void not_yet(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const ranks = join(0, 1, rendezvous, 0);
    refused_models(ranks);
    trireme_model *model = NULL;
    const trireme_model_options options = sharded();
    CHECK(make_model(ranks, &options, UNITS, COUNT, &model) == TRIREME_OK);
    refused_rules(model);
    const trireme_optimizer_options rule = adamw();
    trireme_optimizer *optimizer = NULL;
    CHECK(trireme_optimizer_create(model, &rule, &optimizer) == TRIREME_OK);
    trireme_trainer *trainer = NULL;
    trireme_trainer_options trainer_options = TRIREME_TRAINER_OPTIONS_INIT;
    activation_file_of(&trainer_options)->path = "/tmp";
    trireme_layer layer = TRIREME_LAYER_INIT;
    layer.name = "all";
    layer.parameter_count = UNITS;
    layer.forward = layer.backward = no_layer;
    CHECK_FAILS(trireme_trainer_create(optimizer, &layer, 1, &trainer_options, &trainer),
                TRIREME_ERROR_UNSUPPORTED,
                "options.offload of a trainer whose model is on CUDA device 0");
    CHECK(trainer == NULL);
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const host = join(0, 1, rendezvous, -1);
    trireme_model *host_model = NULL;
    trireme_optimizer *host_optimizer = NULL;
    CHECK(make_model(host, &options, UNITS, COUNT, &host_model) == TRIREME_OK);
    CHECK(trireme_optimizer_create(host_model, &rule, &host_optimizer) == TRIREME_OK);
    trireme_rebalance_options rebalance = TRIREME_REBALANCE_OPTIONS_INIT;
    rebalance.communicator = host;
    CHECK_FAILS(trireme_parallel_rebalance(optimizer, host_optimizer, &rebalance, NULL),
                TRIREME_ERROR_UNSUPPORTED, "a model on CUDA device 0 cannot move");
    CHECK_FAILS(trireme_parallel_rebalance(host_optimizer, optimizer, &rebalance, NULL),
                TRIREME_ERROR_UNSUPPORTED, "a model on CUDA device 0 cannot move");
    trireme_optimizer_destroy(host_optimizer);
    trireme_model_destroy(host_model);
    trireme_communicator_destroy(host);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(ranks);
    no_complaint();
    CHECK(live() == 0);
}

static void what_does_not_work_yet_says_so(void **state) {
    (void)state;
    run(not_yet, "mode=lazy");
}

/* ---- memory of the caller ---- */

static void wrong_memory(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const ranks = join(0, 1, rendezvous, 0);
    void *const own = FAKE(fake_own_context, "fake_push_own_context")();
    trireme_model *model = NULL;
    const trireme_model_options options = sharded();
    CHECK(make_model(ranks, &options, UNITS, COUNT, &model) == TRIREME_OK);
    const trireme_optimizer_options rule = adamw();
    trireme_optimizer *optimizer = NULL;
    CHECK(trireme_optimizer_create(model, &rule, &optimizer) == TRIREME_OK);

    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
    static float here[UNITS * COUNT];
    void *const pinned = FAKE(fake_allocate, "fake_allocate_area")(1, 0, sizeof here);
    void *const managed = FAKE(fake_allocate, "fake_allocate_area")(3, 0, sizeof here);
    float *const other = new_gradient(1, 1), *const gradient = new_gradient(0, 1);
    float *const all = FAKE(fake_memory, "fake_device_memory")(0, sizeof here);
    FAKE(fake_writes, "fake_queue_write")(0, NULL, all, here, sizeof here);
    CHECK(trireme_model_begin_backward(model, 0) == TRIREME_OK);
    CHECK_FAILS(trireme_model_gradient_ready(model, 0, here, COUNT, f32), bad,
                "gradient is memory of the host", "works on CUDA device 0");
    CHECK_FAILS(trireme_model_gradient_ready(model, 0, pinned, COUNT, f32), bad,
                "gradient is pinned memory");
    CHECK_FAILS(trireme_model_gradient_ready(model, 0, managed, COUNT, f32), bad,
                "gradient is managed memory");
    CHECK_FAILS(trireme_model_gradient_ready(model, 0, other, COUNT, f32), bad,
                "gradient is memory of CUDA device 1");
    CHECK_FAILS(trireme_model_gradient_ready(model, 0, gradient + COUNT - 1, 1 << 14, f32), bad,
                "16384 elements");
    CHECK(trireme_model_discard_gradients(model) == TRIREME_OK);
    CHECK_FAILS(trireme_model_accumulate_flat(model, here, UNITS * COUNT, f32, 0), bad,
                "gradients is memory of the host");
    CHECK_FAILS(trireme_model_broadcast_parameters(model, here, UNITS * COUNT, f32, 0), bad,
                "values is memory of the host");
    CHECK_FAILS(trireme_model_gather_parameters(model, here, UNITS * COUNT, f32), bad,
                "values is memory of the host");
    /* The default stream is recorded into a graph. */
    FAKE(fake_captures, "fake_capture")(NULL, 1);
    CHECK_FAILS(trireme_model_gather_parameters(model, all, UNITS * COUNT, f32),
                TRIREME_ERROR_INVALID_STATE, "recorded into a graph");
    CHECK_FAILS(trireme_model_accumulate_flat(model, all, UNITS * COUNT, f32, 0),
                TRIREME_ERROR_INVALID_STATE, "recorded into a graph");
    FAKE(fake_captures, "fake_capture")(NULL, 0);
    /* The model goes on, and all these have changed nothing. */
    CHECK(backward(model, gradient) == TRIREME_OK);
    CHECK(trireme_optimizer_step(optimizer) == TRIREME_OK);
    CHECK(trireme_model_gather_parameters(model, all, UNITS * COUNT, f32) == TRIREME_OK);
    FAKE(fake_reads, "fake_queue_read")(0, NULL, here, all, sizeof here);
    FAKE(fake_synchronizes, "fake_synchronize")(0, NULL);
    /* A first step of ADAMW goes the learning rate against a gradient, but for epsilon. */
    for (int i = 0; i < UNITS * COUNT; ++i) CHECK(here[i] < -0.0099f && here[i] > -0.0101f);
    CHECK(FAKE(fake_current, "fake_current_context")() == own);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(ranks);
    CHECK(FAKE(fake_current, "fake_current_context")() == own);
    no_complaint();
}

static void wrong_memory_is_refused_by_its_kind(void **state) {
    (void)state;
    run(wrong_memory, "mode=lazy");
}

/* ---- a gradient that is not awaited ---- */

enum { LONG_COUNT = 1 << 16 }; /* of a frozen one: more bytes than the way of any other takes */

static trireme_model *with_long_frozen(trireme_communicator *ranks) {
    const trireme_model_options options = sharded();
    trireme_model *model = NULL;
    CHECK(trireme_model_create(ranks, &options, &model) == TRIREME_OK);
    for (int i = 0; i < 2; ++i) {
        const uint64_t count = i == 0 ? COUNT : LONG_COUNT;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = i == 0 ? "trained" : "frozen";
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.dimensions = 1;
        parameter.shape = &count;
        if (i == 1) parameter.flags = TRIREME_PARAMETER_FLAG_FROZEN;
        CHECK(trireme_model_add_parameter(model, &parameter, NULL) == TRIREME_OK);
    }
    CHECK(trireme_model_seal(model) == TRIREME_OK);
    return model;
}

static void refuse_unawaited(int device, const float *gradient) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const ranks = join(0, 1, rendezvous, device);
    trireme_model *const model = with_long_frozen(ranks);
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
    CHECK_FAILS(trireme_model_gradient_ready(model, 0, gradient, COUNT, f32),
                TRIREME_ERROR_INVALID_STATE, "no backward pass is under way");
    CHECK(trireme_model_begin_backward(model, 0) == TRIREME_OK);
    CHECK_FAILS(trireme_model_gradient_ready(model, 1, gradient, LONG_COUNT, f32),
                TRIREME_ERROR_INVALID_ARGUMENT, "parameter 1 (\"frozen\") is frozen");
    CHECK(trireme_model_gradient_ready(model, 0, gradient, COUNT, f32) == TRIREME_OK);
    CHECK_FAILS(trireme_model_gradient_ready(model, 0, gradient, COUNT, f32),
                TRIREME_ERROR_INVALID_STATE, "was handed in before");
    CHECK(trireme_model_end_backward(model) == TRIREME_OK);
    trireme_model_destroy(model);
    trireme_communicator_destroy(ranks);
}

static void not_awaited(void) {
    static float here[LONG_COUNT];
    float *const there = FAKE(fake_memory, "fake_device_memory")(0, sizeof here);
    FAKE(fake_writes, "fake_queue_write")(0, NULL, there, here, sizeof here);
    refuse_unawaited(-1, here);
    refuse_unawaited(0, there);
    no_complaint();
}

static void a_gradient_that_is_not_awaited_is_refused_as_on_the_host(void **state) {
    (void)state;
    run(not_awaited, "mode=lazy");
}

/* ---- memory that runs out ---- */

struct poor {
    char rendezvous[64];
    trireme_strategy strategy;
    bool survived;
};

static void seal_with_little(int rank, void *context) {
    struct poor *const poor = context;
    trireme_communicator *const ranks = join(rank, 2, poor->rendezvous, rank);
    CHECK(trireme_barrier(ranks, NULL) == TRIREME_OK);
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_model_options options = sharded();
    options.strategy = poor->strategy;
    const trireme_optimizer_options rule = adamw();
    trireme_status status = make_model(ranks, &options, UNITS, COUNT, &model);
    if (status == TRIREME_OK) status = trireme_optimizer_create(model, &rule, &optimizer);
    if (status != TRIREME_OK) {
        CHECK(status == TRIREME_ERROR_OUT_OF_MEMORY);
        const char *const text = trireme_last_error();
        CHECK(strstr(text, "CUDA device") != NULL || strstr(text, "answered OUT_OF_MEMORY"));
        CHECK(optimizer == NULL);
    }
    if (rank == 0) poor->survived = status == TRIREME_OK;
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    CHECK(trireme_barrier(ranks, NULL) == TRIREME_OK); /* the group goes on */
    trireme_communicator_destroy(ranks);
}

static bool had_enough;
static trireme_strategy poor_strategy;

static void little_memory(void) {
    struct poor poor = {.strategy = poor_strategy};
    unique_rendezvous(poor.rendezvous, sizeof poor.rendezvous);
    run_threads(2, seal_with_little, &poor);
    no_complaint();
    CHECK(live() == 0);
    for (int i = 0; i < 2; ++i) CHECK(FAKE(fake_retained, "fake_retained_count")(i) == 0);
    if (poor.survived != had_enough) _exit(1);
}

/* Each rank makes a pinned block and three of its device: a reservation, memory and a mapping. With
 * zero3 it makes one more there, for units. */
static void memory_that_runs_out_fails_the_creation_on_all_ranks(void **state) {
    (void)state;
    char script[64];
    poor_strategy = TRIREME_STRATEGY_ZERO1;
    for (int i = 0; i <= 20; ++i) {
        snprintf(script, sizeof script, "mode=lazy oom=%d", i);
        had_enough = i >= 20;
        run(little_memory, script);
    }
    poor_strategy = TRIREME_STRATEGY_ZERO3;
    for (int i = 13; i <= 26; ++i) {
        snprintf(script, sizeof script, "mode=lazy oom=%d", i);
        had_enough = i >= 26;
        run(little_memory, script);
    }
}

/* ---- a device that fails or stands still, and a peer that dies ---- */

enum when { IN_BACKWARD, IN_STEP, IN_GATHER };

static trireme_status gather_units(trireme_model *model) {
    trireme_status status = TRIREME_OK;
    for (uint64_t i = 0; i < UNITS && status == TRIREME_OK; ++i) {
        status = trireme_model_gather_unit(model, i);
        if (status == TRIREME_OK) status = trireme_model_release_unit(model, i);
    }
    return status;
}

struct failure {
    char rendezvous[64];
    const char *script;
    enum when when;
    trireme_status status;
    const char *word;
    bool killed;
};

static void with_a_bad_device(int number, void *context, struct outcome *outcome) {
    const struct failure *const failure = context;
    use_fake("mode=lazy");
    trireme_communicator *const ranks = join(number, 3, failure->rendezvous, number % 2);
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_model_options options = sharded();
    if (failure->when == IN_GATHER) options.strategy = TRIREME_STRATEGY_ZERO3;
    units_of(&options)->minimum_bytes = 1;
    const bool is_late = failure->status == TRIREME_ERROR_TIMEOUT && !failure->killed;
    options.timeout_ns = number == 0 && is_late ? 500 * 1000 * 1000 : PATIENT_NS;
    const trireme_optimizer_options rule = adamw();
    CHECK(make_model(ranks, &options, UNITS, COUNT, &model) == TRIREME_OK);
    CHECK(trireme_optimizer_create(model, &rule, &optimizer) == TRIREME_OK);
    const float *const gradient = new_gradient(number % 2, 1);
    CHECK(backward(model, gradient) == TRIREME_OK);
    CHECK(trireme_optimizer_step(optimizer) == TRIREME_OK);
    if (number == 0 && failure->when == IN_BACKWARD) use_fake(failure->script);
    trireme_status status = TRIREME_OK;
    if (failure->when == IN_GATHER) {
        if (number == 0) use_fake(failure->script);
        status = gather_units(model);
    }
    if (status == TRIREME_OK) status = backward(model, gradient);
    if (number == 0 && failure->when == IN_STEP) use_fake(failure->script);
    if (number == 0 && failure->killed) raise(SIGKILL);
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    keep_error(outcome, status);
    outcome->later = backward(model, gradient);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(ranks);
    /* A device that failed may still be at work: its memory and its context stay. */
    const bool stays = number == 0;
    CHECK(FAKE(fake_retained, "fake_retained_count")(number % 2) == stays);
    CHECK((live() > 0) == stays);
    no_complaint(); /* also when the device goes on at last */
}

static void fails(const struct failure *failure) {
    struct processes processes;
    struct failure own = *failure;
    unique_host_rendezvous(own.rendezvous, sizeof own.rendezvous);
    start_processes(&processes, 3, with_a_bad_device, &own);
    wait_processes(&processes);
    for (int i = 0; i < 3; ++i) {
        const struct outcome *const outcome = &processes.outcomes[i];
        if (i == 0 && failure->killed) continue;
        if (outcome->exit_code != 0) fail_msg("rank %d: exit code %d", i, outcome->exit_code);
        assert_true(outcome->later < 0);
        if (outcome->status != failure->status || !blames_only(&outcome->info, 0)) {
            fail_msg("rank %d, \"%s\": %d, %s", i, failure->script, outcome->status,
                     outcome->message);
        }
        assert_non_null(strstr(outcome->message, failure->word));
        assert_non_null(strstr(outcome->message, "rank 0"));
    }
    free_processes(&processes);
}

static void a_failed_device_fails_the_model_on_all_ranks(void **state) {
    (void)state;
    const trireme_status failed = TRIREME_ERROR_DEVICE, late = TRIREME_ERROR_TIMEOUT;
    const struct failure failures[] = {
        {.script = "sticky=0:719", .when = IN_BACKWARD, .status = failed, .word = "719"},
        {.script = "fail=cuPointerGetAttributes:719",
         .when = IN_BACKWARD,
         .status = failed,
         .word = "719"},
        {.script = "sticky=0:719", .when = IN_STEP, .status = failed, .word = "719"},
        {.script = "fail=cuLaunchKernel:719", .when = IN_STEP, .status = failed, .word = "719"},
        {.script = "fail=cuEventRecord:719", .when = IN_STEP, .status = failed, .word = "719"},
        {.script = "stall=1", .when = IN_BACKWARD, .status = late, .word = "has not done its work"},
        {.script = "stall=1", .when = IN_STEP, .status = late, .word = "has not done its work"},
        {.script = "stuck=1", .when = IN_BACKWARD, .status = late, .word = "has not done its work"},
        {.script = "stuck=1", .when = IN_STEP, .status = late, .word = "has not done its work"},
        {.script = "sticky=0:719", .when = IN_GATHER, .status = failed, .word = "719"},
        {.script = "fail=cuStreamWaitEvent:719",
         .when = IN_GATHER,
         .status = failed,
         .word = "719"},
        {.script = "stuck=1", .when = IN_GATHER, .status = late, .word = "has not done its work"},
    };
    for (size_t i = 0; i < sizeof failures / sizeof *failures; ++i) fails(&failures[i]);
}

static void a_killed_peer_is_named(void **state) {
    (void)state;
    const struct failure killed = {.script = "mode=lazy",
                                   .when = IN_STEP,
                                   .status = TRIREME_ERROR_PEER_LOST,
                                   .word = "rank 0",
                                   .killed = true};
    fails(&killed);
}

/* ---- work of the caller that is late ---- */

/* The default stream comes to the gradient after the deadline. By then the caller has given the
 * memory to other work. */
static void late_stream(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const ranks = join(0, 1, rendezvous, 0);
    trireme_model *model = NULL;
    trireme_model_options options = sharded();
    options.timeout_ns = 50 * 1000 * 1000;
    CHECK(make_model(ranks, &options, UNITS, COUNT, &model) == TRIREME_OK);
    float *const gradient = new_gradient(0, 1);
    float found[COUNT];
    FAKE(fake_synchronizes, "fake_synchronize")(0, NULL);
    FAKE(fake_holds, "fake_hold")(NULL, 1);
    FAKE(fake_writes, "fake_queue_write")(0, NULL, gradient, found, sizeof(float));
    CHECK_FAILS(backward(model, gradient), TRIREME_ERROR_TIMEOUT,
                "rank 0: the device of this rank");
    void *const other = FAKE(fake_stream, "fake_user_stream")(0);
    FAKE(fake_holds, "fake_hold")(NULL, 0);
    FAKE(fake_synchronizes, "fake_synchronize")(0, NULL);
    FAKE(fake_writes, "fake_queue_write")(0, other, gradient, found, sizeof found);
    trireme_model_destroy(model);
    trireme_communicator_destroy(ranks);
    no_complaint(); /* a copy that was queued behind the late work would race with that */
}

static void late_work_of_the_caller_leaves_nothing_queued(void **state) {
    (void)state;
    run_in_all_modes(late_stream);
}

/* Masters are made of what the caller has queued for the parameters. */
static void late_parameters(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const ranks = join(0, 1, rendezvous, 0);
    trireme_model_options options = sharded();
    options.timeout_ns = 50 * 1000 * 1000;
    trireme_model *model = NULL;
    CHECK(trireme_model_create(ranks, &options, &model) == TRIREME_OK);
    const uint64_t count = COUNT;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "narrow";
    parameter.dtype = TRIREME_DTYPE_BF16;
    parameter.dimensions = 1;
    parameter.shape = &count;
    CHECK(trireme_model_add_parameter(model, &parameter, NULL) == TRIREME_OK);
    CHECK(trireme_model_seal(model) == TRIREME_OK);
    trireme_optimizer_options rule = adamw();
    rule.flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
    float *const gradient = new_gradient(0, 1);
    const float word = 0;
    FAKE(fake_synchronizes, "fake_synchronize")(0, NULL);
    FAKE(fake_holds, "fake_hold")(NULL, 1);
    FAKE(fake_writes, "fake_queue_write")(0, NULL, gradient, &word, sizeof word);
    trireme_optimizer *optimizer = NULL;
    CHECK_FAILS(trireme_optimizer_create(model, &rule, &optimizer), TRIREME_ERROR_TIMEOUT,
                "rank 0: the device of this rank");
    CHECK(optimizer == NULL);
    FAKE(fake_holds, "fake_hold")(NULL, 0);
    trireme_model_destroy(model);
    trireme_communicator_destroy(ranks);
    no_complaint();
}

static void masters_wait_for_parameters_of_the_caller(void **state) {
    (void)state;
    run(late_parameters, "mode=lazy");
}

/* ---- work of the caller reads a parameter of a model that ends ---- */

static void end_or_release(int number, void *context) {
    const struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
    if (number == 0) {
        trireme_model_destroy(context);
        return;
    }
    nanosleep(&moment, NULL);
    FAKE(fake_holds, "fake_hold")(NULL, 0);
}

static trireme_memory_kind kind_of(const void *data) {
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    CHECK(trireme_memory_get_info(data, &info) == TRIREME_OK);
    return info.kind;
}

static void ends_under_work(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const ranks = join(0, 1, rendezvous, 0);
    const trireme_model_options options = sharded();
    for (int recorded = 0; recorded < 2; ++recorded) {
        trireme_model *model = NULL;
        void *data = NULL;
        float found = 1;
        CHECK(make_model(ranks, &options, UNITS, COUNT, &model) == TRIREME_OK);
        CHECK(trireme_model_get_parameter_data(model, 1, &data, NULL) == TRIREME_OK);
        if (recorded) { /* nothing is known of that work, so the memory stays */
            FAKE(fake_captures, "fake_capture")(NULL, 1);
            trireme_model_destroy(model);
            FAKE(fake_captures, "fake_capture")(NULL, 0);
            CHECK(kind_of(data) == TRIREME_MEMORY_KIND_DEVICE);
            continue;
        }
        FAKE(fake_holds, "fake_hold")(NULL, 1);
        FAKE(fake_reads, "fake_queue_read")(0, NULL, &found, data, sizeof found);
        run_threads(2, end_or_release, model);
        CHECK(found == 0);
        CHECK(kind_of(data) == TRIREME_MEMORY_KIND_HOST); /* it has gone back */
    }
    trireme_communicator_destroy(ranks);
    no_complaint();
}

static void a_model_waits_for_the_default_stream_before_it_goes(void **state) {
    (void)state;
    run(ends_under_work, "mode=lazy");
}

/* ---- a step of several models ---- */

struct pair {
    trireme_communicator *ranks[2];
    trireme_model *models[2];
    trireme_optimizer *optimizers[2];
};

/* Models with groups of their own, so that the failure of one says nothing to the other's. */
static struct pair make_pair(int number, char rendezvous[2][64], uint64_t timeout_ns) {
    struct pair pair;
    trireme_model_options options = sharded();
    options.timeout_ns = timeout_ns;
    trireme_optimizer_options rule = adamw();
    clipping_of(&rule)->max_norm = 1;
    for (int i = 0; i < 2; ++i) {
        pair.ranks[i] = join(number, 2, rendezvous[i], number);
        CHECK(make_model(pair.ranks[i], &options, UNITS, COUNT, &pair.models[i]) == TRIREME_OK);
        CHECK(trireme_optimizer_create(pair.models[i], &rule, &pair.optimizers[i]) == TRIREME_OK);
    }
    return pair;
}

/* Rank 0 names first the model that was made last. Its peer waits in the other one. */
static trireme_status step_pair(int number, const struct pair *pair) {
    trireme_optimizer *const ordered[2] = {pair->optimizers[1 - number], pair->optimizers[number]};
    return trireme_optimizer_step_together(ordered, 2);
}

static void step_behind_late_work(int number, void *context) {
    const uint64_t own_timeout_ns = number == 0 ? 300 * 1000 * 1000 : PATIENT_NS;
    const struct pair pair = make_pair(number, context, own_timeout_ns);
    float *const gradient = new_gradient(number, 1);
    FAKE(fake_synchronizes, "fake_synchronize")(number, NULL);
    for (int round = 0; round < 2; ++round) {
        for (int i = 0; i < 2; ++i) CHECK(backward(pair.models[i], gradient) == TRIREME_OK);
        if (round == 0) CHECK(step_pair(number, &pair) == TRIREME_OK);
    }
    if (number == 0) {
        const float word = 0;
        FAKE(fake_captures, "fake_capture")(NULL, 1);
        CHECK_FAILS(step_pair(number, &pair), TRIREME_ERROR_INVALID_STATE,
                    "recorded into a graph"); /* a mistake, which fails no group */
        FAKE(fake_captures, "fake_capture")(NULL, 0);
        FAKE(fake_holds, "fake_hold")(NULL, 1);
        FAKE(fake_writes, "fake_queue_write")(0, NULL, gradient, &word, sizeof word);
    }
    CHECK_FAILS(step_pair(number, &pair), TRIREME_ERROR_TIMEOUT, "rank 0: the device of this rank");
    if (number == 0) FAKE(fake_holds, "fake_hold")(NULL, 0);
    for (int i = 0; i < 2; ++i) {
        CHECK(backward(pair.models[i], gradient) < 0);
        trireme_optimizer_destroy(pair.optimizers[i]);
        trireme_model_destroy(pair.models[i]);
        trireme_communicator_destroy(pair.ranks[i]);
    }
}

static void late_pair(void) {
    char rendezvous[2][64];
    for (int i = 0; i < 2; ++i) unique_rendezvous(rendezvous[i], sizeof rendezvous[i]);
    run_threads(2, step_behind_late_work, rendezvous);
    no_complaint();
}

static void a_step_of_several_models_waits_for_the_caller(void **state) {
    (void)state;
    run(late_pair, "mode=lazy");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_work_yet_says_so),
        cmocka_unit_test(wrong_memory_is_refused_by_its_kind),
        cmocka_unit_test(a_gradient_that_is_not_awaited_is_refused_as_on_the_host),
        cmocka_unit_test(memory_that_runs_out_fails_the_creation_on_all_ranks),
        cmocka_unit_test(a_failed_device_fails_the_model_on_all_ranks),
        cmocka_unit_test(a_killed_peer_is_named),
        cmocka_unit_test(late_work_of_the_caller_leaves_nothing_queued),
        cmocka_unit_test(masters_wait_for_parameters_of_the_caller),
        cmocka_unit_test(a_step_of_several_models_waits_for_the_caller),
        cmocka_unit_test(a_model_waits_for_the_default_stream_before_it_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
