/*
 * Trainers of models on a device, over a driver of the tests: callbacks queue their work in the
 * caller's stream, which runs at once, as late as it may or by chance. The oracle is a plain loop
 * of one process, or the same training on the host, bit for bit.
 */
#include <trireme/trireme.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "device_ranks.h"
#include "options.h"
#include "processes.h"
#include "device_trainer.inc"

static void check_memory(const struct trainee *t) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    CHECK(trireme_model_get_memory(t->model, &memory) == TRIREME_OK);
    CHECK(memory.planned_working == memory.allocated_working);
    CHECK(memory.planned_optimizer_state == memory.allocated_optimizer_state);
}

static void check_info(const struct trainee *t) {
    trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
    CHECK(trireme_trainer_get_info(t->trainer, &info) == TRIREME_OK);
    CHECK(info.allocated_bytes ==
          info.planned_checkpoint_bytes + info.planned_stretch_bytes + info.planned_gradient_bytes +
              info.planned_parameter_gradient_bytes + info.planned_exchange_bytes);
    check_memory(t);
}

static void resume(struct trainee *t) {
    uint64_t bytes = 0;
    CHECK(trireme_optimizer_get_saved_bytes(t->optimizer, &bytes) == TRIREME_OK);
    char *const state = malloc(bytes);
    CHECK(state != NULL);
    CHECK(trireme_optimizer_save(t->optimizer, state, bytes, NULL) == TRIREME_OK);
    end_model(t);
    make_model(t);
    CHECK(trireme_optimizer_load(t->optimizer, state, bytes) == TRIREME_OK);
    CHECK(make_trainer(t) == TRIREME_OK);
    free(state);
}

/* The step whose callback fails, is skipped or destroys; then the others go on. */
static void odd_step(struct trainee *t, struct found *found) {
    const struct job *const job = t->job;
    if (job->scaled) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        t->spoils = t->number == 0;
        CHECK(trireme_trainer_step(t->trainer, t, &metrics) == TRIREME_OK);
        CHECK(metrics.skipped == 1);
        t->spoils = false;
    }
    if (job->act == NOTHING || job->act == DESTROYS || job->act == SETS_FROZEN) return;
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_ERROR_CALLBACK);
    snprintf(found->message, sizeof found->message, "%s", trireme_last_error());
    if (t->acted && job->act == RECORDS) FAKE(fake_captures, "fake_capture")(t->stream, 0);
}

static void train(int number, const struct job *job, struct found *found) {
    struct trainee *const t = new_trainee(job, number);
    make_model(t);
    CHECK(make_trainer(t) == TRIREME_OK);
    for (int step = 0; step < STEPS; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        if (step == 1) odd_step(t, found);
        double loss = 0;
        CHECK(trireme_trainer_evaluate(t->trainer, t, &loss) == TRIREME_OK);
        CHECK(trireme_trainer_step(t->trainer, t, &metrics) == TRIREME_OK);
        if (job->act == DESTROYS && step == 1) break; /* one rank has no model any more */
        CHECK(loss == metrics.loss);
        found->losses[step] = metrics.loss;
        found->norms[step] = metrics.gradient_norm;
        if (job->right != NULL) CHECK(metrics.loss == job->right->losses[step]);
        check_info(t);
        if (step == 0 && job->resumed) resume(t);
    }
    if (job->act != DESTROYS) {
        look(t, found->values);
        CHECK(trireme_model_check_replicas(t->model) == TRIREME_OK);
    }
    if (job->right != NULL) {
        CHECK(memcmp(found->values, job->right->values, sizeof found->values) == 0);
    }
    end_trainee(t);
}

struct all {
    struct job job;
    struct found found[MOST_RANKS];
};

static void train_rank(int number, void *context) {
    struct all *const all = context;
    train(number, &all->job, &all->found[number]);
}

static void run_job(struct all *all) {
    unique_rendezvous(all->job.rendezvous, sizeof all->job.rendezvous);
    run_threads(all->job.world, train_rank, all);
}

static void no_trace(void) {
    no_complaint();
    for (int i = 0; i < 2; ++i) CHECK(FAKE(fake_retained, "fake_retained_count")(i) == 0);
    CHECK(FAKE(fake_current, "fake_current_context")() == NULL);
}

/* Seeds of all layers, from the host. */
static void draw_seeds(void) {
    if (seeds[0][0][0] != 0) return;
    struct all all = {
        .job = {.strategy = TRIREME_STRATEGY_DATA_PARALLEL, .world = 1, .on_host = true}};
    run_job(&all);
}

/* ---- the same bits ---- */

static void bits(void) {
    static const trireme_strategy strategies[] = {TRIREME_STRATEGY_DATA_PARALLEL,
                                                  TRIREME_STRATEGY_ZERO1, TRIREME_STRATEGY_ZERO2};
    draw_seeds();
    struct curve right;
    plain_leaves(LEAVES, STEPS, seed_of, &right);
    for (int i = 0; i < 3; ++i) {
        struct all all = {.job = {.strategy = strategies[i],
                                  .world = 1 + i,
                                  .every = i == 0 ? 0 : (uint64_t)i + 1,
                                  .own_streams = i != 1,
                                  .resumed = i == 2,
                                  .zeroes = i == 0,
                                  .right = &right}};
        run_job(&all);
    }
    const int32_t back = TRIREME_PHASE_BACKWARD;
    const struct job shards[] = {
        {.world = 1, .every = 2, .own_streams = true, .act = SETS_FROZEN, .phase = back},
        {.world = 2, .resumed = true, .every = 1},
        {.world = 3, .every = 3, .own_streams = true, .kept = true},
        {.world = 2, .replica = 1, .every = 2, .own_streams = true},
        {.world = 3, .replica = 3, .every = 2, .kept = true},
    };
    for (size_t i = 0; i < sizeof shards / sizeof *shards; ++i) {
        struct all all = {.job = shards[i]};
        all.job.strategy = i < 3 ? TRIREME_STRATEGY_ZERO3 : TRIREME_STRATEGY_HYBRID_SHARD;
        all.job.right = &right;
        run_job(&all);
    }
    for (int i = 0; i < 3; ++i) {
        plain_ranks(2, 1 + i, i < 2, STEPS, seed_of, &right);
        struct all all = {.job = {.strategy = strategies[i],
                                  .world = 2,
                                  .passes = 1 + i,
                                  .every = 2,
                                  .own_streams = i != 1,
                                  .right = &right}};
        run_job(&all);
    }
    no_trace();
}

static void trainers_on_a_device_have_the_bits_of_a_plain_loop(void **state) {
    (void)state;
    run_in_all_modes(bits);
}

static void features(void) {
    draw_seeds();
    const struct job jobs[] = {
        {.world = 3,
         .strategy = TRIREME_STRATEGY_ZERO2,
         .adamw = true,
         .max_norm = 0.01,
         .pinned = true,
         .resumed = true},
        {.world = 2,
         .strategy = TRIREME_STRATEGY_ZERO3,
         .lamb = true,
         .scaled = true,
         .max_norm = 0.01,
         .pinned = true,
         .resumed = true,
         .own_streams = true},
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; ++i) {
        struct all there = {.job = jobs[i]}, here = {.job = jobs[i]};
        here.job.on_host = true;
        run_job(&here);
        run_job(&there);
        for (int k = 0; k < jobs[i].world; ++k) {
            CHECK(memcmp(&there.found[k], &here.found[k], sizeof there.found[k]) == 0);
            CHECK(there.found[k].norms[0] > 0.01);
        }
    }
    no_trace();
}

static void features_have_the_bits_of_the_host(void **state) {
    (void)state;
    run_in_all_modes(features);
}

/* ---- callbacks that fail ---- */

/* With zero3 the peers need a rank whose layer has failed. */
static trireme_strategy sharded(int world) {
    return world > 1 ? TRIREME_STRATEGY_ZERO3 : TRIREME_STRATEGY_ZERO1;
}

static void fails(enum act act, int32_t phase, const char *word) {
    struct curve right;
    plain_leaves(LEAVES, STEPS, seed_of, &right);
    for (int world = 1; world <= 2; ++world) {
        struct all all = {.job = {.strategy = sharded(world),
                                  .world = world,
                                  .every = 2,
                                  .own_streams = true,
                                  .act = act,
                                  .phase = phase,
                                  .right = &right}};
        run_job(&all);
        for (int i = 0; i < world; ++i) {
            const char *const message = all.found[i].message;
            char rank[16];
            snprintf(rank, sizeof rank, "on rank %d", world / 2);
            const bool told = strstr(message, word) != NULL && strstr(message, rank) != NULL;
            if (!told) fprintf(stderr, "\"%s\" has no \"%s\"\n", message, word);
            CHECK(told);
        }
    }
}

static void failing_callbacks(void) {
    const int32_t back = TRIREME_PHASE_BACKWARD;
    draw_seeds();
    fails(ANSWERS, TRIREME_PHASE_FORWARD, "forward of layer 1 (\"second\") answered 7");
    fails(ANSWERS, TRIREME_PHASE_RECOMPUTE, "recomputed forward of layer 2 (\"third\") answered 7");
    fails(ANSWERS, back, "backward of layer 2 (\"third\") answered 7");
    fails(LEAVES_OUT, back, "backward of layer 2 (\"third\") left out 1 of its 1 gradient: \"w2\"");
    fails(LEAVES_UNWRITTEN, back, "did not write 1 of its 1 gradient: \"w2\" (from element 3 on)");
    fails(LEAVES_INPUT, back,
          "backward of layer 2 (\"third\") did not write its input_gradient, and the unwritten "
          "part has come to a gradient of layer 1 (\"second\")");
    fails(BRINGS_HOST_MEMORY, back,
          "backward of layer 2 (\"third\") set a place to memory that is not of the model's "
          "device, for 1 of its 1 gradient: \"w2\"");
    fails(RECORDS, back, "backward of layer 2 (\"third\") left its stream so that no work can be");
    fails(RECORDS, TRIREME_PHASE_FORWARD, "forward of layer 1 (\"second\") left its stream so");
    no_trace();
}

static void callbacks_that_fail_fail_the_step_on_all_ranks(void **state) {
    (void)state;
    run_in_all_modes(failing_callbacks);
}

/* Work of a callback that failed is still queued when its trainer, model and optimizer end. */
static void early_ends(void) {
    draw_seeds();
    for (int world = 1; world <= 2; ++world) {
        struct all all = {.job = {.strategy = sharded(world),
                                  .world = world,
                                  .own_streams = true,
                                  .act = DESTROYS,
                                  .phase = TRIREME_PHASE_BACKWARD}};
        run_job(&all);
    }
    const struct job job = {.strategy = TRIREME_STRATEGY_ZERO3,
                            .world = 1,
                            .own_streams = true,
                            .act = RECORDS,
                            .phase = TRIREME_PHASE_FORWARD,
                            .rendezvous = "local://early-end"};
    struct trainee *const t = new_trainee(&job, 0);
    make_model(t);
    CHECK(make_trainer(t) == TRIREME_OK);
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_ERROR_CALLBACK);
    FAKE(fake_captures, "fake_capture")(t->stream, 0);
    end_trainee(t);
    no_trace();
}

static void memory_stays_until_the_work_of_callbacks_is_done(void **state) {
    (void)state;
    run_in_all_modes(early_ends);
}

/* ---- devices that fail, and peers that die ---- */

struct end {
    struct job job;
    trireme_status status;
    const char *word;
};

static void with_a_bad_end(int number, void *context, struct outcome *outcome) {
    const struct end *const end = context;
    use_fake("mode=lazy");
    draw_seeds();
    struct trainee *const t = new_trainee(&end->job, number);
    t->timeout_ns = number == 1 && end->job.act == STANDS_STILL ? 500 * 1000 * 1000 : PATIENT_NS;
    make_model(t);
    CHECK(make_trainer(t) == TRIREME_OK);
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
    keep_error(outcome, trireme_trainer_step(t->trainer, t, NULL));
    outcome->later = trireme_trainer_step(t->trainer, t, NULL);
    end_model(t);
    trireme_communicator_destroy(t->communicator);
    /* A device that failed may still be at work: its memory and its context stay. */
    CHECK(FAKE(fake_retained, "fake_retained_count")(number % 2) == (number == 1));
    no_complaint(); /* also when the device goes on at last, with the work that was queued */
    free(t);
}

static void ends(enum act act, int32_t phase, trireme_status status, const char *word) {
    struct processes processes;
    const bool whole = phase == TRIREME_PHASE_BACKWARD;
    struct end end = {.job = {.strategy = whole ? TRIREME_STRATEGY_ZERO2 : TRIREME_STRATEGY_ZERO3,
                              .world = 3,
                              .every = 2,
                              .own_streams = true,
                              .act = act,
                              .phase = phase},
                      .status = status,
                      .word = word};
    unique_host_rendezvous(end.job.rendezvous, sizeof end.job.rendezvous);
    start_processes(&processes, 3, with_a_bad_end, &end);
    wait_processes(&processes);
    for (int i = 0; i < 3; ++i) {
        const struct outcome *const outcome = &processes.outcomes[i];
        if (i == 1 && act == DIES) continue;
        if (outcome->exit_code != 0) fail_msg("rank %d: exit code %d", i, outcome->exit_code);
        if (outcome->status != status || !blames_only(&outcome->info, 1) || outcome->later >= 0) {
            fail_msg("rank %d, act %d: %d, %s", i, (int)act, outcome->status, outcome->message);
        }
        assert_non_null(strstr(outcome->message, word));
        assert_non_null(strstr(outcome->message, "rank 1"));
    }
    free_processes(&processes);
}

static void a_dead_peer_or_device_fails_the_step_on_all_ranks(void **state) {
    (void)state;
    const trireme_status failed = TRIREME_ERROR_DEVICE, late = TRIREME_ERROR_TIMEOUT;
    ends(DIES, TRIREME_PHASE_BACKWARD, TRIREME_ERROR_PEER_LOST, "rank 1");
    ends(DIES, TRIREME_PHASE_FORWARD, TRIREME_ERROR_PEER_LOST, "rank 1");
    ends(BREAKS, TRIREME_PHASE_FORWARD, failed, "719");
    ends(BREAKS, TRIREME_PHASE_BACKWARD, failed, "719");
    ends(STANDS_STILL, TRIREME_PHASE_RECOMPUTE, late, "has not done its work");
    ends(STANDS_STILL, TRIREME_PHASE_BACKWARD, late, "has not done its work");
}

/* ---- memory that runs out ---- */

struct poor {
    struct job job;
    struct trainee *trainees[2];
};

static void prepare_trainee(int number, void *context) {
    struct poor *const poor = context;
    poor->trainees[number] = new_trainee(&poor->job, number);
    make_model(poor->trainees[number]);
}

/* Each rank hears of it, whichever has no memory. */
static void create_with_little(int number, void *context) {
    struct trainee *const t = ((struct poor *)context)->trainees[number];
    CHECK_FAILS(make_trainer(t), TRIREME_ERROR_OUT_OF_MEMORY, "OUT_OF_MEMORY");
    CHECK(t->trainer == NULL);
    CHECK(trireme_barrier(t->communicator, NULL) == TRIREME_OK);
}

static void go_on(int number, void *context) {
    struct trainee *const t = ((struct poor *)context)->trainees[number];
    CHECK(make_trainer(t) == TRIREME_OK);
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
    end_trainee(t);
}

static const char *little;

/* The script changes while no rank calls. */
static void little_memory(void) {
    draw_seeds();
    struct poor poor = {.job = {.strategy = TRIREME_STRATEGY_ZERO1, .world = 2}};
    unique_rendezvous(poor.job.rendezvous, sizeof poor.job.rendezvous);
    run_threads(2, prepare_trainee, &poor);
    const int before = FAKE(fake_lives, "fake_live_count")();
    use_fake(little);
    run_threads(2, create_with_little, &poor);
    CHECK(FAKE(fake_lives, "fake_live_count")() == before);
    use_fake("mode=lazy");
    run_threads(2, go_on, &poor);
    no_trace();
    CHECK(FAKE(fake_lives, "fake_live_count")() == 0);
}

/* A reservation, memory, a mapping, or a pinned block cannot be made. */
static void memory_that_runs_out_fails_the_creation_on_all_ranks(void **state) {
    (void)state;
    static const char *const calls[] = {"cuMemAddressReserve", "cuMemCreate", "cuMemMap",
                                        "cuMemSetAccess", "cuMemHostAlloc"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i) {
        char script[64];
        snprintf(script, sizeof script, "mode=lazy fail=%s:2", calls[i]);
        little = script;
        run(little_memory, "mode=lazy");
    }
}

/* ---- optimizer state in pinned memory ---- */

static void pin_on_one_rank(int number, void *context) {
    struct trainee *const t = new_trainee(context, number);
    make_model(t);
    trireme_optimizer_destroy(t->optimizer);
    t->optimizer = NULL;
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_ADAMW;
    if (number == 1) state_file_of(&rule)->kind = TRIREME_OFFLOAD_KIND_PINNED;
    CHECK_FAILS(trireme_optimizer_create(t->model, &rule, &t->optimizer), TRIREME_ERROR_MISMATCH,
                "options.offload", "pinned memory", "not set");
    end_trainee(t);
}

static void pinned_state(void) {
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT, none = TRIREME_ERROR_OUT_OF_MEMORY;
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO1, .world = 1, .passes = 1};
    for (int k = 0; k < 2; ++k) {
        job.on_host = k == 1;
        unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
        struct trainee *const t = new_trainee(&job, 0);
        make_model(t);
        trireme_optimizer_destroy(t->optimizer);
        t->optimizer = NULL;
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = TRIREME_RULE_ADAMW;
        trireme_offload_options *const offload = state_file_of(&rule);
        offload->kind = TRIREME_OFFLOAD_KIND_PINNED;
        if (job.on_host) {
            CHECK_FAILS(trireme_optimizer_create(t->model, &rule, &t->optimizer), bad,
                        "TRIREME_OFFLOAD_KIND_PINNED", "works on the host");
            end_trainee(t);
            continue;
        }
        offload->ratio = 0.5;
        CHECK_FAILS(trireme_optimizer_create(t->model, &rule, &t->optimizer), bad, "a ratio",
                    "they are 0");
        offload->ratio = 0;
        offload->kind = 2;
        CHECK_FAILS(trireme_optimizer_create(t->model, &rule, &t->optimizer), bad, "kind 2");
        offload->kind = TRIREME_OFFLOAD_KIND_PINNED;
        rule.kind = TRIREME_RULE_SGD;
        CHECK_FAILS(trireme_optimizer_create(t->model, &rule, &t->optimizer), bad,
                    "means nothing to sgd");
        rule.kind = TRIREME_RULE_ADAMW;
        trireme_model_options parameters = TRIREME_MODEL_OPTIONS_INIT;
        parameters.strategy = TRIREME_STRATEGY_ZERO1;
        parameters.offload = offload;
        trireme_model *model = NULL;
        CHECK_FAILS(trireme_model_create(t->communicator, &parameters, &model), bad,
                    "for optimizers alone");
        /* It takes no memory of the device, and pinned memory alone. */
        const int before = FAKE(fake_lives, "fake_live_count")();
        use_fake("mode=lazy fail=cuMemHostAlloc:2");
        CHECK_FAILS(trireme_optimizer_create(t->model, &rule, &t->optimizer), none,
                    "cuMemHostAlloc");
        CHECK(FAKE(fake_lives, "fake_live_count")() == before);
        use_fake("mode=lazy fail=cuMemCreate:2");
        CHECK(trireme_optimizer_create(t->model, &rule, &t->optimizer) == TRIREME_OK);
        use_fake("mode=lazy");
        check_memory(t);
        CHECK(make_trainer(t) == TRIREME_OK);
        CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
        end_trainee(t);
    }
    job = (struct job){.strategy = TRIREME_STRATEGY_ZERO1, .world = 2, .passes = 1};
    unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(2, pin_on_one_rank, &job);
    no_trace();
    CHECK(FAKE(fake_lives, "fake_live_count")() == 0);
}

static void state_in_pinned_memory_takes_none_of_the_device(void **state) {
    (void)state;
    run(pinned_state, "mode=lazy");
}

/* ---- layers with `reads`, and pipelines ---- */

static void refused_trainers(void) {
    const trireme_status no = TRIREME_ERROR_UNSUPPORTED;
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO3, .world = 1, .passes = 1};
    unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
    struct trainee *const t = new_trainee(&job, 0);
    make_model(t);
    const uint64_t earlier = 0, cuts[] = {0, LAYERS};
    t->reads = &earlier;
    CHECK_FAILS(make_trainer(t), no, "`reads`", "CUDA device 0", "docs/gpus.md");
    t->reads = NULL;
    trireme_pipeline_schedule_options order = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    order.order = TRIREME_PIPELINE_ORDER_1F1B;
    order.ranks = order.micro_batches = order.stages_per_rank = 1;
    trireme_pipeline_schedule *schedule = NULL;
    CHECK(trireme_pipeline_schedule_create(&order, &schedule) == TRIREME_OK);
    trireme_trainer_pipeline_options pipeline = TRIREME_TRAINER_PIPELINE_OPTIONS_INIT;
    pipeline.schedule = schedule;
    pipeline.cuts = cuts;
    pipeline.cut_count = 2;
    pipeline.communicator = t->communicator;
    t->pipeline = &pipeline;
    CHECK(make_trainer(t) < 0); /* such a group has memory of a device */
    trireme_communicator *const host = join(0, 1, "local://stages", -1);
    pipeline.communicator = host;
    CHECK_FAILS(make_trainer(t), no, "options.pipeline", "CUDA device 0", "docs/gpus.md");
    CHECK(t->trainer == NULL);
    t->pipeline = NULL;
    CHECK(make_trainer(t) == TRIREME_OK); /* the model goes on */
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
    trireme_communicator_destroy(host);
    trireme_pipeline_schedule_destroy(schedule);
    end_trainee(t);
    no_trace();
}

static void reads_and_pipelines_are_refused(void **state) {
    (void)state;
    run(refused_trainers, "mode=lazy");
}

/* ---- trireme_model_set_stream() ---- */

static trireme_status name_stream(trireme_model *model, trireme_device_kind kind, void *native) {
    const trireme_stream stream = {kind, 0, native};
    return trireme_model_set_stream(model, &stream);
}

static void refused_streams(void) {
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT, state = TRIREME_ERROR_INVALID_STATE;
    const trireme_device_kind cuda = TRIREME_DEVICE_CUDA;
    draw_seeds();
    struct job job = {.strategy = TRIREME_STRATEGY_DATA_PARALLEL, .world = 1, .passes = 1};
    unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
    struct trainee *const t = new_trainee(&job, 0);
    make_model(t);
    trireme_model *const model = t->model;
    void *const own = FAKE(fake_stream, "fake_user_stream")(0);
    CHECK(name_stream(model, cuda, own) == TRIREME_OK);
    char value[32];

    void *const foreign = FAKE(fake_foreign, "fake_foreign_stream")(0);
    snprintf(value, sizeof value, "0x%llx", (unsigned long long)(uintptr_t)foreign);
    CHECK_FAILS(name_stream(model, cuda, foreign), bad, "trireme_model_set_stream", value,
                "not of the device's primary context");
    CHECK_FAILS(name_stream(model, cuda, FAKE(fake_stream, "fake_user_stream")(1)), bad,
                "not of the device's primary context");
    CHECK_FAILS(name_stream(model, cuda, &job), bad, "does not exist", "(400)");
    const trireme_stream reserved = {TRIREME_DEVICE_CUDA, 7, own};
    CHECK_FAILS(trireme_model_set_stream(model, &reserved), bad, "reserved 7", "all zero");
    CHECK_FAILS(name_stream(model, TRIREME_DEVICE_HOST, NULL), bad, "kind 1");
    CHECK_FAILS(name_stream(model, 0, own), bad, "kind 0");
    CHECK_FAILS(name_stream(model, 9, NULL), bad, "kind 9");
    void *const recorded = FAKE(fake_stream, "fake_user_stream")(0);
    FAKE(fake_captures, "fake_capture")(recorded, 1);
    snprintf(value, sizeof value, "0x%llx", (unsigned long long)(uintptr_t)recorded);
    CHECK_FAILS(name_stream(model, cuda, recorded), state, value, "recorded into a graph");
    FAKE(fake_captures, "fake_capture")(recorded, 0);
    CHECK_FAILS(trireme_model_set_stream(NULL, NULL), TRIREME_ERROR_INVALID_HANDLE, "model");

    /* The stream named before has stayed, until its end. Then another one helps. */
    t->stream = own;
    CHECK(make_trainer(t) == TRIREME_OK);
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
    FAKE(fake_ends, "fake_end_stream")(own);
    CHECK_FAILS(trireme_trainer_step(t->trainer, t, NULL), bad, "does not exist");
    CHECK_FAILS(trireme_optimizer_step(t->optimizer), state, "");
    t->stream = recorded;
    CHECK(name_stream(model, cuda, recorded) == TRIREME_OK);
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
    t->stream = NULL;
    CHECK(trireme_model_set_stream(model, NULL) == TRIREME_OK);
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
    CHECK(name_stream(model, 0, NULL) == TRIREME_OK);
    CHECK(trireme_trainer_step(t->trainer, t, NULL) == TRIREME_OK);
    end_trainee(t);

    job.on_host = true;
    unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
    struct trainee *const host = new_trainee(&job, 0);
    make_model(host);
    CHECK_FAILS(name_stream(host->model, cuda, own), state, "works on the host");
    CHECK_FAILS(trireme_model_set_stream(host->model, NULL), state, "works on the host");
    end_trainee(host);
    no_trace();
}

static void streams_that_cannot_be_used_are_refused(void **state) {
    (void)state;
    run(refused_streams, "mode=lazy");
}

/* The caller's gradients, and its reads of parameters, are in the stream that was named last. */
static void named_streams(void) {
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO1, .world = 1, .passes = 1};
    unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
    struct trainee *const t = new_trainee(&job, 0);
    make_model(t);
    float here[ELEMENTS], before[ELEMENTS], seen[ELEMENTS], right[ELEMENTS], zero[ELEMENTS] = {0};
    float *const there = new_memory(t, sizeof here);
    for (int i = 0; i < ELEMENTS; ++i) here[i] = (float)(i % 7) - 3, right[i] = initial(i);
    float *parameters = NULL;
    CHECK(trireme_model_get_parameter_data(t->model, 0, (void **)&parameters, NULL) == TRIREME_OK);
    for (int step = 0; step < 3; ++step) {
        void *const stream = step == 2 ? NULL : FAKE(fake_stream, "fake_user_stream")(0);
        CHECK(name_stream(t->model, TRIREME_DEVICE_CUDA, stream) == TRIREME_OK);
        t->stream = stream;
        look(t, before);
        FAKE(fake_writes, "fake_queue_write")(0, stream, there, here, sizeof here);
        CHECK(trireme_model_accumulate_flat(t->model, there, ELEMENTS, F32, 0) == TRIREME_OK);
        FAKE(fake_reads, "fake_queue_read")(0, stream, seen, parameters, 30 * sizeof *seen);
        CHECK(trireme_optimizer_step(t->optimizer) == TRIREME_OK);
        FAKE(fake_writes, "fake_queue_write")(0, stream, there, zero, sizeof zero);
        FAKE(fake_synchronizes, "fake_synchronize")(0, stream);
        CHECK(memcmp(seen, before, 30 * sizeof *seen) == 0);
    }
    float v[ELEMENTS];
    for (int step = 0; step < 3; ++step) descend(right, v, here, step);
    look(t, seen);
    CHECK(memcmp(seen, right, sizeof right) == 0);
    end_trainee(t);
    no_trace();
}

static void calls_wait_for_the_stream_that_was_named(void **state) {
    (void)state;
    run_in_all_modes(named_streams);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trainers_on_a_device_have_the_bits_of_a_plain_loop),
        cmocka_unit_test(features_have_the_bits_of_the_host),
        cmocka_unit_test(callbacks_that_fail_fail_the_step_on_all_ranks),
        cmocka_unit_test(memory_stays_until_the_work_of_callbacks_is_done),
        cmocka_unit_test(a_dead_peer_or_device_fails_the_step_on_all_ranks),
        cmocka_unit_test(memory_that_runs_out_fails_the_creation_on_all_ranks),
        cmocka_unit_test(state_in_pinned_memory_takes_none_of_the_device),
        cmocka_unit_test(reads_and_pipelines_are_refused),
        cmocka_unit_test(streams_that_cannot_be_used_are_refused),
        cmocka_unit_test(calls_wait_for_the_stream_that_was_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
