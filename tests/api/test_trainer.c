/*
 * The trainer against a plain loop of one process: the same bits for every strategy, number of
 * ranks and choice of checkpoints; layers called as often as the formula says, in memory as
 * planned; and its treatment of callbacks that fail, call back, destroy or ask to stop.
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

#include "trainer_job.inc"

/* ---- the same bits ---- */

static void train(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = start(job, number);
    struct verdict *const v = r.verdict;
    make(&r, communicator);
    for (int step = 0; step < job->steps; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
        EXPECT(v, memcmp(&metrics.loss, &job->right->losses[step], sizeof(double)) == 0);
        EXPECT(v, metrics.step == (uint64_t)step + 1 && metrics.stop == 0 && metrics.skipped == 0);
        EXPECT(v, metrics.loss_scale == 1 && metrics.gradient_norm == -1 &&
                      metrics.learning_rate == 0.05);
        EXPECT(v, metrics.seconds > 0 && metrics.exposed_seconds >= 0);
        EXPECT(v, metrics.exposed_seconds <= metrics.seconds);
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(r.model, &memory));
        EXPECT(v, metrics.sent_bytes == memory.sent_step_bytes);
        EXPECT(v, memory.planned_working == memory.allocated_working);
        const int total = job->leaves > 0 ? job->leaves : job->world_size * job->micro_batches;
        EXPECT(v, metrics.micro_batches == (uint64_t)total);
        if (v->text[0] != 0) break;
    }
    check_values(&r);
    /* How often layers were called. */
    trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(r.trainer, &info));
    int own = job->micro_batches;
    if (job->leaves > 0) {
        own = number < job->leaves ? (job->leaves - number - 1) / job->world_size + 1 : 0;
    }
    EXPECT(v, r.calls[TRIREME_PHASE_FORWARD] == own * LAYERS * job->steps);
    EXPECT(v, r.calls[TRIREME_PHASE_BACKWARD] == own * LAYERS * job->steps);
    EXPECT(v, r.calls[TRIREME_PHASE_RECOMPUTE] == own * (int)info.recomputed * job->steps);
    EXPECT(v, info.planned_window_bytes == 0);
    EXPECT(v, info.allocated_bytes == info.planned_checkpoint_bytes + info.planned_stretch_bytes +
                                          info.planned_gradient_bytes +
                                          info.planned_parameter_gradient_bytes +
                                          info.planned_exchange_bytes);
    if (number == 0) job->info = info;
    unmake(&r);
}

/* Steps that are compared with nothing. */
static void draw_seeds(trireme_communicator *communicator, int number, void *context) {
    struct rank r = start(context, number);
    make(&r, communicator);
    for (int step = 0; step < STEPS; ++step) {
        EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    }
    unmake(&r);
}

static const struct curve *reproducible(void) {
    static struct curve curve;
    if (curve.losses[0] != 0) return &curve;
    struct job job = job_of(TRIREME_STRATEGY_DATA_PARALLEL, 1, &curve);
    run_job(&job, draw_seeds);
    for (int step = 0; step < STEPS; ++step) {
        for (int leaf = 0; leaf < LEAVES; ++leaf) {
            for (int layer = 0; layer < LAYERS; ++layer) {
                assert_true(seeds[step][leaf][layer] != 0);
                assert_true(seeds[step][leaf][layer] != seeds[0][0][(layer + 1) % LAYERS]);
                if (leaf > 0) assert_true(seeds[step][leaf][layer] != seeds[step][0][layer]);
                if (step > 0) assert_true(seeds[step][leaf][layer] != seeds[0][leaf][layer]);
            }
        }
    }
    plain_leaves(LEAVES, STEPS, seed_of, &curve);
    assert_true(isfinite(curve.losses[STEPS - 1]) && curve.losses[STEPS - 1] < curve.losses[0]);
    return &curve;
}

static void every_training_has_the_bits_of_a_plain_loop(void **state) {
    (void)state;
    const struct curve *const right = reproducible();
    const int worlds[] = {1, 2, 3, 4, 5, 8};
    const uint64_t every[] = {0, 1, 2, 3, 0};
    for (int w = 0; w < 6; ++w) {
        for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
            for (int k = 0; k < 5; ++k) {
                if (is_quick() && (worlds[w] > 4 || k == 1 || k == 3 || w % 2 == 0)) continue;
                struct job job = job_of(s, worlds[w], right);
                job.checkpoint_every = every[k];
                job.budget = k == 4 ? 700 : 0;
                job.share = k == 0;
                run_job(&job, train);
                if (k % 2 == 1) continue;
                job.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
                job.share = !job.share;
                run_job(&job, train);
            }
        }
    }
}

static void micro_batches_add_up_without_leaves(void **state) {
    (void)state;
    reproducible();
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        for (int passes = 1; passes <= 3; ++passes) {
            struct curve right;
            plain_ranks(2, passes, s <= TRIREME_STRATEGY_ZERO1, STEPS, seed_of, &right);
            struct job job = job_of(s, 2, &right);
            job.leaves = 0;
            job.micro_batches = passes;
            job.checkpoint_every = (uint64_t)passes;
            run_job(&job, train);
        }
    }
}

/* ---- memory ---- */

static uint64_t piece(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}
static uint64_t output_of(int l) {
    return l + 1 < LAYERS ? piece(sizeof(float) * ROWS * (uint64_t)kWidths[l + 1]) : 0;
}

static void checkpoints_take_what_the_formula_says(void **state) {
    (void)state;
    const struct curve *const right = reproducible();
    for (int every = 0; every <= LAYERS + 1; ++every) {
        struct job job = job_of(TRIREME_STRATEGY_ZERO3, 2, right);
        job.checkpoint_every = (uint64_t)every;
        run_job(&job, train);
        const int length = every == 0 || every > LAYERS ? LAYERS : every;
        uint64_t kept = 0, largest = 0;
        int stretches = 0, last = 0;
        for (int first = 0; first < LAYERS; first += length) {
            uint64_t inside = 0;
            const int end = first + length < LAYERS ? first + length : LAYERS;
            for (int l = first; l < end; ++l) inside += 2 * output_of(l);
            if (end < LAYERS) {
                kept += output_of(end - 1);
                inside -= output_of(end - 1);
            }
            if (inside > largest) largest = inside;
            ++stretches;
            last = first;
        }
        assert_int_equal(job.info.stretches, stretches);
        assert_int_equal(job.info.recomputed, last);
        assert_int_equal(job.info.planned_checkpoint_bytes, kept);
        assert_int_equal(job.info.planned_stretch_bytes, largest);
        uint64_t turns[2] = {0, 0};
        for (int l = 0; l + 1 < LAYERS; ++l) {
            if (output_of(l) > turns[l % 2]) turns[l % 2] = output_of(l);
        }
        assert_int_equal(job.info.planned_gradient_bytes, turns[0] + turns[1]);
        /* Of the fourth layer, 35 and 7 elements; zero3 has no views. */
        assert_int_equal(job.info.planned_parameter_gradient_bytes, piece(4 * 35) + piece(4 * 7));
        /* Three losses and nine words for each of two ranks. */
        assert_int_equal(job.info.planned_exchange_bytes, 2 * (3 + 9) * 8);
    }
}

struct budget {
    struct job job;
    trireme_status status;
    char message[512];
};

static void make_only(trireme_communicator *communicator, int number, void *context) {
    struct budget *const budget = context;
    struct rank r = start(&budget->job, number);
    make_model(&r, communicator, 0);
    trireme_layer layers[LAYERS];
    describe_layers(&r, layers);
    const trireme_trainer_options options = options_of(&r);
    const trireme_status status =
        trireme_trainer_create(r.optimizer, layers, LAYERS, &options, &r.trainer);
    if (number == 0) {
        budget->status = status;
        budget->job.info = (trireme_trainer_info)TRIREME_TRAINER_INFO_INIT;
        if (status == TRIREME_OK) {
            EXPECT_STATUS(r.verdict, TRIREME_OK,
                          trireme_trainer_get_info(r.trainer, &budget->job.info));
        } else {
            snprintf(budget->message, sizeof budget->message, "%s", trireme_last_error());
        }
    }
    if (status != TRIREME_OK) EXPECT(r.verdict, r.trainer == NULL);
    unmake(&r);
}

static void a_budget_computes_as_little_again_as_fits(void **state) {
    (void)state;
    static struct budget budget;
    budget.job = job_of(TRIREME_STRATEGY_ZERO2, 2, NULL);
    run_job(&budget.job, make_only);
    const uint64_t least = budget.job.info.least_bytes, largest = budget.job.info.largest_bytes;
    assert_true(least < largest);
    uint64_t before = UINT64_MAX;
    for (uint64_t bytes = least - 64; bytes <= largest + 64; bytes += 64) {
        budget.job.budget = bytes;
        run_job(&budget.job, make_only);
        if (bytes < least) {
            char number[32];
            snprintf(number, sizeof number, " %llu;", (unsigned long long)least);
            assert_int_equal(budget.status, TRIREME_ERROR_OUT_OF_MEMORY);
            assert_non_null(strstr(budget.message, number));
            continue;
        }
        const trireme_trainer_info *const info = &budget.job.info;
        assert_int_equal(budget.status, TRIREME_OK);
        assert_true(info->planned_checkpoint_bytes + info->planned_stretch_bytes +
                        info->planned_gradient_bytes <=
                    bytes);
        assert_true(info->recomputed <= before);
        before = info->recomputed;
    }
    assert_int_equal(before, 0);
}

/* ---- callbacks that fail ---- */

static void fail_once(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = start(job, number);
    struct verdict *const v = r.verdict;
    make(&r, communicator);
    if (job->phase == TRIREME_PHASE_EVALUATE) {
        double loss = 77;
        EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_trainer_evaluate(r.trainer, &r, &loss));
        EXPECT(v, loss == 77);
    } else {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_trainer_step(r.trainer, &r, &metrics));
        EXPECT(v, metrics.micro_batches == 0);
    }
    char wanted[64];
    snprintf(wanted, sizeof wanted, "layer %d (\"%s\")", job->layer, kNames[job->layer]);
    EXPECT(v, strstr(trireme_last_error(), wanted) != NULL);
    snprintf(wanted, sizeof wanted, "on rank %d", job->rank);
    EXPECT(v, strstr(trireme_last_error(), wanted) != NULL);
    EXPECT(v,
           strstr(trireme_last_error(), job->act == ANSWERS ? "answered 7" : "left out") != NULL);
    static const char *const phases[] = {"", "forward", "recomputed", "backward", "evaluation"};
    EXPECT(v, strstr(trireme_last_error(), phases[job->phase]) != NULL);
    trireme_error_info info = {.struct_size = sizeof info};
    EXPECT_STATUS(v, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(v, info.blamed_count == 1 && info.blamed[0] == job->rank);
    for (int step = 0; step < STEPS; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
        if (v->text[0] != 0) break;
    }
    check_values(&r);
    unmake(&r);
}

static void a_failed_callback_leaves_no_trace(void **state) {
    (void)state;
    const struct curve *const right = reproducible();
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        if (is_quick() && s % 2 == 0) continue;
        for (int32_t phase = TRIREME_PHASE_FORWARD; phase <= TRIREME_PHASE_EVALUATE; ++phase) {
            for (int layer = 0; layer < 5; layer += 3) {
                struct job job = job_of(s, 3, right);
                job.checkpoint_every = 2;
                job.act = ANSWERS;
                job.rank = 1;
                job.phase = phase;
                job.layer = layer;
                run_job(&job, fail_once);
            }
        }
        struct job job = job_of(s, 2, right);
        job.act = LEAVES_OUT;
        job.phase = TRIREME_PHASE_BACKWARD;
        job.layer = 1;
        run_job(&job, fail_once);
    }
}

/* In backward it is too late, once all ranks have handed in their first bucket. */
static void fail_for_good(trireme_communicator *communicator, int number, void *context) {
    struct rank r = start(context, number);
    struct verdict *const v = r.verdict;
    make(&r, communicator);
    for (int call = 0; call < 2; ++call) {
        EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_trainer_step(r.trainer, &r, NULL));
        EXPECT(v, strstr(trireme_last_error(),
                         "backward of layer 0 (\"first\") answered 7 on rank 1"));
        EXPECT(v, strstr(trireme_last_error(), "neither the old ones nor the new ones") != NULL);
    }
    unmake(&r);
}

static void with_update_in_backward_nothing_changes_before_the_first_bucket(void **state) {
    (void)state;
    const struct curve *const right = reproducible();
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        if (is_quick() && s % 2 == 0) continue;
        for (int kind = 0; kind < 5; ++kind) {
            struct job job = job_of(s, kind < 3 ? 6 : 3, right);
            if (is_quick() && kind < 3) job.world_size = 3;
            job.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
            job.act = ANSWERS;
            job.rank = 1;
            job.checkpoint_every = kind % 2 == 0 ? 2 : 0;
            job.share = kind % 2 == 1;
            switch (kind) {
                case 0: job.phase = TRIREME_PHASE_FORWARD; break;
                case 1: /* the layer before has no parameters */
                    job.phase = TRIREME_PHASE_BACKWARD;
                    job.layer = 4;
                    break;
                case 2:
                    job.phase = TRIREME_PHASE_EVALUATE;
                    job.layer = 3;
                    break;
                default: /* in its first micro-batch of two */
                    job.phase = kind == 3 ? TRIREME_PHASE_RECOMPUTE : TRIREME_PHASE_BACKWARD;
                    job.checkpoint_every = 2;
            }
            run_job(&job, fail_once);
        }
        struct job late = job_of(s, 3, right);
        late.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
        late.act = ANSWERS;
        late.rank = 1;
        late.leaves = 3;
        late.phase = TRIREME_PHASE_BACKWARD;
        run_job(&late, fail_for_good);
    }
}

/* A schedule that has no rate for the second step when it is asked for the first time. */
static double TRIREME_CALLCONV fail_in_second(uint64_t step, void *user_data) {
    bool *const failed = user_data;
    if (step != 1 || *failed) return 1;
    *failed = true;
    return NAN;
}

static void have_no_rate(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = start(job, number);
    struct verdict *const v = r.verdict;
    make(&r, communicator);
    bool failed = number != job->rank;
    trireme_user_schedule_options schedule = TRIREME_USER_SCHEDULE_OPTIONS_INIT;
    schedule.factor = fail_in_second;
    schedule.user_data = &failed;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_schedule(r.optimizer, &schedule.base));
    for (int call = 0; call < STEPS + 1; ++call) {
        EXPECT_STATUS(v, call == 1 ? TRIREME_ERROR_CALLBACK : TRIREME_OK,
                      trireme_trainer_step(r.trainer, &r, NULL));
        if (call == 1) EXPECT(v, strstr(trireme_last_error(), "no rate for the step on rank 1"));
        if (v->text[0] != 0) break;
    }
    check_values(&r);
    unmake(&r);
}

static void a_schedule_without_a_rate_leaves_no_trace(void **state) {
    (void)state;
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        struct job job = job_of(s, 3, reproducible());
        job.rank = 1;
        run_job(&job, have_no_rate);
        job.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
        run_job(&job, have_no_rate);
    }
}

/* A gradient that is left out is none where the model allows it. */
static void go_through(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = start(job, number);
    struct verdict *const v = r.verdict;
    make(&r, communicator);
    trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
    EXPECT(v, memcmp(&metrics.loss, &reproducible()->losses[0], sizeof(double)) == 0);
    EXPECT(v, r.acted == (number == job->rank) && metrics.stop == (job->act == ASKS_TO_STOP));
    if (job->act == DESTROYS && number == job->rank) {
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_trainer_step(r.trainer, &r, NULL));
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_optimizer_step(r.optimizer));
    }
    unmake(&r);
}

static void what_callbacks_may_do(void **state) {
    (void)state;
    reproducible();
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        for (enum act act = LEAVES_OUT; act <= ASKS_TO_STOP; ++act) {
            for (int32_t phase = act == LEAVES_OUT ? TRIREME_PHASE_BACKWARD : TRIREME_PHASE_FORWARD;
                 phase <= TRIREME_PHASE_BACKWARD; ++phase) {
                struct job job = job_of(s, 2, NULL);
                job.checkpoint_every = 2;
                job.unused = s % 2 == 0 ? TRIREME_UNUSED_ZERO : TRIREME_UNUSED_SKIP;
                job.act = act;
                job.rank = 1;
                job.phase = phase;
                job.layer = 2;
                run_job(&job, go_through);
                if (job.unused == TRIREME_UNUSED_SKIP) continue;
                job.flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
                run_job(&job, go_through);
            }
        }
    }
}

/* ---- evaluation, stopping ---- */

static void evaluate_and_stop(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = start(job, number);
    struct verdict *const v = r.verdict;
    make(&r, communicator);
    double loss = 77;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_trainer_evaluate(r.trainer, &r, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_evaluate(r.trainer, &r, &loss));
    EXPECT(v, memcmp(&loss, &job->right->losses[0], sizeof loss) == 0);
    EXPECT(v, r.calls[TRIREME_PHASE_FORWARD] == 0 && r.calls[TRIREME_PHASE_BACKWARD] == 0);
    /* The last rank asks after the first step, with its answer: all know it after the second. */
    for (int step = 0; step < STEPS; ++step) {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        r.stops_after = step == 0 && number + 1 == job->world_size;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, &metrics));
        EXPECT(v, metrics.stop == (step > 0));
        if (v->text[0] != 0) break;
    }
    check_values(&r);
    unmake(&r);
}

static void all_stop_after_the_same_step(void **state) {
    (void)state;
    const struct curve *const right = reproducible();
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        struct job job = job_of(s, 3, right);
        run_job(&job, evaluate_and_stop);
    }
}

/* ---- refusals ---- */

static void disagree(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = start(job, number);
    struct verdict *const v = r.verdict;
    make_model(&r, communicator, 0);
    trireme_layer layers[LAYERS];
    for (int kind = 0; kind < 4; ++kind) {
        describe_layers(&r, layers);
        trireme_trainer_options options = options_of(&r);
        const char *named = "layer 3";
        if (kind == 0 && number == 1) layers[3].name = "another";
        if (kind == 1 && number == 1) layers[3].saved_bytes += 1;
        if (kind == 2 && number == 1) layers[3].output_bytes += 1;
        if (kind == 3) {
            named = "checkpoint_every is ";
            if (number == 1) options.checkpoint_every = 3;
        }
        EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                      trireme_trainer_create(r.optimizer, layers, LAYERS, &options, &r.trainer));
        EXPECT(v, strstr(trireme_last_error(), named) != NULL && r.trainer == NULL);
    }
    describe_layers(&r, layers);
    const trireme_trainer_options options = options_of(&r);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_trainer_create(r.optimizer, layers, LAYERS, &options, &r.trainer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    unmake(&r);
}

static void ranks_that_disagree_hear_of_it(void **state) {
    (void)state;
    reproducible();
    struct job job = job_of(TRIREME_STRATEGY_ZERO3, 3, NULL);
    run_job(&job, disagree);
}

static void refuse(struct rank *r, trireme_status status, const trireme_layer *layers,
                   uint64_t count, const trireme_trainer_options *options, const char *named) {
    trireme_trainer *trainer = NULL;
    EXPECT_STATUS(r->verdict, status,
                  trireme_trainer_create(r->optimizer, layers, count, options, &trainer));
    EXPECT(r->verdict, strstr(trireme_last_error(), named) != NULL);
    if (!EXPECT(r->verdict, trainer == NULL)) trireme_trainer_destroy(trainer);
}

/* NULL in place of options is as options with all defaults. */
static void make_with_defaults(struct rank *r, const trireme_layer *layers) {
    struct verdict *const v = r->verdict;
    const trireme_trainer_options defaults = TRIREME_TRAINER_OPTIONS_INIT;
    const trireme_trainer_options *const options[] = {&defaults, NULL};
    trireme_trainer_info info[2] = {TRIREME_TRAINER_INFO_INIT, TRIREME_TRAINER_INFO_INIT};
    for (int i = 0; i < 2; ++i) {
        trireme_trainer *trainer = NULL;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_trainer_create(r->optimizer, layers, LAYERS, options[i], &trainer));
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_get_info(trainer, &info[i]));
        trireme_trainer_destroy(trainer);
    }
    EXPECT(v, info[0].stretches == 1 && memcmp(&info[0], &info[1], sizeof info[0]) == 0);
}

static void misuse(trireme_communicator *communicator, int number, void *context) {
    struct rank r = start(context, number);
    struct verdict *const v = r.verdict;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    make_model(&r, communicator, 0);
    trireme_layer layers[LAYERS];
    trireme_trainer_options options = options_of(&r);
    describe_layers(&r, layers);
    make_with_defaults(&r, layers);
    refuse(&r, bad, NULL, LAYERS, &options, "layers is NULL");
    refuse(&r, bad, layers, 0, &options, "layer_count is 0");
    EXPECT_STATUS(v, bad, trireme_trainer_create(r.optimizer, layers, LAYERS, &options, NULL));
    refuse(&r, bad, layers, LAYERS - 2, &options, "\"w4\"");
    refuse(&r, bad, layers, LAYERS - 2, &options, "belongs to no layer");
#define BROKEN(change, named)                             \
    do {                                                  \
        describe_layers(&r, layers);                      \
        options = options_of(&r);                         \
        change;                                           \
        refuse(&r, bad, layers, LAYERS, &options, named); \
    } while (0)
    BROKEN(layers[2].name = NULL, "layer 2 has no name");
    BROKEN(layers[2].name = "\xff", "UTF-8");
    BROKEN(layers[2].forward = NULL, "\"third\") has no forward");
    BROKEN(layers[2].backward = NULL, "\"third\") has no backward");
    BROKEN(layers[2].flags = 1, "\"third\") has flags");
    BROKEN(layers[2].parameter_count = 3, "\"w3\"");
    BROKEN(layers[2].parameter_count = UINT64_MAX, "\"third\")");
    BROKEN(layers[2].first_parameter = UINT64_MAX, "\"third\")");
    BROKEN(layers[2].saved_bytes = UINT64_MAX, "\"third\")");
    BROKEN((layers[1].output_bytes = 1ull << 59, layers[2].output_bytes = 1ull << 59),
           "\"third\")");
    BROKEN(layers[2].struct_size = 8, "layers[2].struct_size is 8");
    BROKEN(layers[2].struct_size += 8, "layers[2].struct_size");
    BROKEN(options.flags = 2, "options.flags");
    BROKEN(options.reserved = 1, "options.reserved");
    BROKEN(options.micro_batches = 2, "micro_batches 2 of a reproducible model");
    BROKEN((options.checkpoint_every = 1, options.activation_budget_bytes = 1), "both");
    BROKEN(options.struct_size = 8, "options.struct_size is 8");
    describe_layers(&r, layers);
    options = options_of(&r);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_trainer_create((trireme_optimizer *)r.model, layers, LAYERS, &options,
                                         &r.trainer));
    /* Layers of a later release; none sets its new fields. */
    struct {
        trireme_layer known;
        uint64_t added;
    } later[LAYERS];
    memset(later, 0, sizeof later);
    for (int l = 0; l < LAYERS; ++l) {
        later[l].known = layers[l];
        later[l].known.struct_size = sizeof later[l];
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_trainer_create(r.optimizer, &later[0].known, LAYERS, &options,
                                         &r.trainer));
    later[3].added = 1;
    refuse(&r, TRIREME_ERROR_UNSUPPORTED, &later[0].known, LAYERS, &options, "layers[3]");
    trireme_trainer_metrics metrics = {.struct_size = 8};
    trireme_trainer_info info = {.struct_size = 8};
    EXPECT_STATUS(v, bad, trireme_trainer_step(r.trainer, &r, &metrics));
    EXPECT_STATUS(v, bad, trireme_trainer_get_info(r.trainer, &info));
    EXPECT_STATUS(v, bad, trireme_trainer_get_info(r.trainer, NULL));
    /* A step that was begun by hand is not the trainer's. */
    float gradients[ELEMENTS] = {0};
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(r.model, gradients, ELEMENTS, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_trainer_step(r.trainer, &r, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(r.model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    trireme_trainer_destroy(r.trainer);
    trireme_trainer_destroy(r.trainer);
    trireme_trainer_destroy(NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_trainer_request_stop(r.trainer));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_HANDLE, trireme_trainer_step(r.trainer, &r, NULL));
    unmake(&r);
    make_model(&r, communicator, TRIREME_MODEL_FLAG_UNEVEN);
    refuse(&r, TRIREME_ERROR_UNSUPPORTED, layers, LAYERS, &options, "TRIREME_MODEL_FLAG_UNEVEN");
    unmake(&r);
}

static void arguments_are_checked(void **state) {
    (void)state;
    reproducible();
    struct job job = job_of(TRIREME_STRATEGY_ZERO1, 1, NULL);
    run_job(&job, misuse);
}

/* A rank that cannot go on in the middle of a step is not waited for. */
static void break_down(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct rank r = start(job, number);
    make(&r, communicator);
    EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (number == 0) EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_failpoint_set(job->failpoint));
    EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT(r.verdict, trireme_trainer_step(r.trainer, &r, NULL) != TRIREME_OK);
    EXPECT(r.verdict, trireme_trainer_step(r.trainer, &r, NULL) != TRIREME_OK);
    unmake(&r);
}

static void fail_to_make(trireme_communicator *communicator, int number, void *context) {
    struct rank r = start(context, number);
    struct verdict *const v = r.verdict;
    make_model(&r, communicator, 0);
    trireme_layer layers[LAYERS];
    describe_layers(&r, layers);
    const trireme_trainer_options options = options_of(&r);
    if (number == 0) EXPECT_STATUS(v, TRIREME_OK, trireme_failpoint_set(r.job->failpoint));
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    refuse(&r, TRIREME_ERROR_SYSTEM, layers, LAYERS, &options, "");
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_trainer_create(r.optimizer, layers, LAYERS, &options, &r.trainer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(r.trainer, &r, NULL));
    unmake(&r);
}

static void a_step_that_breaks_fails_everywhere(void **state) {
    (void)state;
    reproducible();
    static const char *const places[] = {"trainer.before_exchange=fail@2",
                                         "trainer.after_exchange=fail"};
    for (int i = 0; i < 2; ++i) {
        struct job job = job_of(TRIREME_STRATEGY_ZERO3, 3, NULL);
        job.failpoint = places[i];
        run_job(&job, break_down);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    }
    struct job job = job_of(TRIREME_STRATEGY_ZERO3, 3, NULL);
    job.failpoint = "trainer.before_allocate=fail@1";
    run_job(&job, fail_to_make);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_training_has_the_bits_of_a_plain_loop),
        cmocka_unit_test(micro_batches_add_up_without_leaves),
        cmocka_unit_test(checkpoints_take_what_the_formula_says),
        cmocka_unit_test(a_budget_computes_as_little_again_as_fits),
        cmocka_unit_test(a_failed_callback_leaves_no_trace),
        cmocka_unit_test(with_update_in_backward_nothing_changes_before_the_first_bucket),
        cmocka_unit_test(a_schedule_without_a_rate_leaves_no_trace),
        cmocka_unit_test(what_callbacks_may_do),
        cmocka_unit_test(all_stop_after_the_same_step),
        cmocka_unit_test(ranks_that_disagree_hear_of_it),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(a_step_that_breaks_fails_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
