/*
 * A trainer with a pipeline when something goes wrong: callbacks that fail at any action, ranks
 * that disagree, options that are refused, ranks that make different calls or come too late.
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

#include "pipeline_failing.inc"

/* ---- callbacks that fail ---- */

static void a_failed_callback_is_known_everywhere(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    const struct {
        trireme_pipeline_order order;
        int stages_per_rank;
    } orders[] = {{TRIREME_PIPELINE_ORDER_GPIPE, 1},
                  {TRIREME_PIPELINE_ORDER_1F1B, 1},
                  {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2},
                  {TRIREME_PIPELINE_ORDER_ZB_H1, 1},
                  {TRIREME_PIPELINE_ORDER_ZB_V, 2}};
    const int meshes[][2] = {{1, 1}, {1, 2}, {2, 2}, {1, 4}};
    const int32_t phases[] = {TRIREME_PHASE_FORWARD, TRIREME_PHASE_BACKWARD, TRIREME_PHASE_EVALUATE,
                              TRIREME_PHASE_BACKWARD_INPUT, TRIREME_PHASE_BACKWARD_WEIGHT};
    static const char *const words[] = {"forward of layer ", "backward of layer ",
                                        "forward of an evaluation of layer ",
                                        "backward for the input of layer ",
                                        "backward for the weights of layer "};
    int trial = 0;
    for (int m = 0; m < 4; ++m) {
        for (int k = 0; k < 5; ++k) {
            for (int layer = 0; layer < LAYERS; ++layer) {
                for (int p = 0; p < 5; ++p) {
                    const bool long_run = getenv("TRIREME_TEST_LONG") != NULL;
                    if (++trial % (is_quick() ? 11 : 3) != 0 && !long_run) continue;
                    static struct job job;
                    job = job_of(meshes[m][0], meshes[m][1], orders[k].order,
                                 orders[k].stages_per_rank, p > 2 ? 0xff : 0);
                    job.strategy = 1 + trial % TRIREME_STRATEGY_HYBRID_SHARD;
                    job.right = right;
                    job.act = ANSWERS;
                    job.layer = layer;
                    job.phase = phases[p];
                    job.rank = trial % job.data;
                    job.micro_batch = trial / 2 % micro_batches_of(&job);
                    if (!all_have_parameters(&job)) continue;
                    run_chain(&job, fail_once);
                    int stage = 0, place = 0;
                    find_place(&job, layer, &stage, &place);
                    char what[64];
                    snprintf(what, sizeof what, "%s%d", words[p], layer);
                    check_messages(&job, what, stage, place);
                    check_messages(&job, "answered 7", stage, place);
                }
            }
        }
    }
}

/* In R, in the backward of a whole stage, and in one of halves. */
static void a_failed_second_forward_is_known_everywhere(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    const struct {
        trireme_pipeline_order order;
        int stages_per_rank;
        uint64_t every;
        enum second_forward second_forward;
        unsigned split;
    } ways[] = {{TRIREME_PIPELINE_ORDER_GPIPE, 1, 1, NO_R, 0},
                {TRIREME_PIPELINE_ORDER_GPIPE, 1, 2, NO_R, 0xff},
                {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2, 0, EACH_R, 0},
                {TRIREME_PIPELINE_ORDER_1F1B, 1, 0, EACH_R, 0},
                {TRIREME_PIPELINE_ORDER_ZB_H1, 1, 0, EACH_R, 0xff}};
    const int meshes[][2] = {{1, 1}, {1, 2}, {2, 2}, {1, 4}};
    const bool long_run = getenv("TRIREME_TEST_LONG") != NULL;
    int trial = 0;
    for (int m = 0; m < 4; ++m) {
        for (int k = 0; k < 5; ++k) {
            for (int layer = 0; layer < LAYERS; ++layer) {
                if (++trial % (is_quick() ? 9 : 3) != 0 && !long_run) continue;
                static struct job job;
                job = job_of(meshes[m][0], meshes[m][1], ways[k].order, ways[k].stages_per_rank,
                             ways[k].split);
                job.strategy = 1 + trial % TRIREME_STRATEGY_HYBRID_SHARD;
                job.right = right;
                job.every = ways[k].every;
                job.second_forward = ways[k].second_forward;
                job.act = ANSWERS;
                job.layer = layer;
                job.phase = TRIREME_PHASE_RECOMPUTE;
                job.rank = trial % job.data;
                job.micro_batch = trial / 2 % micro_batches_of(&job);
                if (!all_have_parameters(&job)) continue;
                run_chain(&job, fail_once);
                int stage = 0, place = 0;
                find_place(&job, layer, &stage, &place);
                char what[64];
                snprintf(what, sizeof what, "recomputed forward of layer %d", layer);
                check_messages(&job, what, stage, place);
                check_messages(&job, "answered 7", stage, place);
            }
        }
    }
}

/* An output that is longer than planned, and a second forward that says something else. */
static void a_wrong_size_is_known_everywhere(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int k = 0; k < 4; ++k) {
        static struct job job;
        job = job_of(1 + k % 2, k < 2 ? 2 : 1, TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
        job.strategy = TRIREME_STRATEGY_ZERO3;
        job.right = right;
        job.every = 2;
        job.layer = 1 + k;
        job.micro_batch = 1;
        job.rank = job.data - 1;
        int stage = 0, place = 0;
        find_place(&job, job.layer, &stage, &place);
        job.act = USES_MORE;
        job.phase = TRIREME_PHASE_FORWARD;
        run_chain(&job, fail_once);
        char what[128];
        const int bytes = 4 * ROWS * kWidths[job.layer + 1];
        snprintf(what, sizeof what,
                 " used %d bytes of its output (output_used), whose output_bytes are %d", bytes + 1,
                 bytes);
        check_messages(&job, what, stage, place);
        job.act = OTHER_SHAPE;
        job.phase = TRIREME_PHASE_RECOMPUTE;
        run_chain(&job, fail_once);
        check_messages(&job, " set another output_used or output_shape than the first", stage,
                       place);
    }
}

static void an_unwritten_gradient_is_known_everywhere(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int layer = 0; layer < LAYERS - 1; ++layer) {
        for (int split = 0; split < 2; ++split) {
            static struct job job;
            job = job_of(1, 4, TRIREME_PIPELINE_ORDER_ZB_H1, 1, split != 0 ? 0xff : 0);
            job.right = right;
            job.act = LEAVES_GAP;
            job.layer = layer;
            job.phase = split != 0 ? TRIREME_PHASE_BACKWARD_WEIGHT : TRIREME_PHASE_BACKWARD;
            job.micro_batch = 2;
            if (is_plain(layer)) continue;
            run_chain(&job, fail_once);
            int stage = 0, place = 0;
            find_place(&job, layer, &stage, &place);
            check_messages(&job, "did not write 2 of its 2 gradients", stage, place);
        }
    }
}

/* A gradient that goes to another rank unwritten comes to gradients there. */
static void an_unwritten_input_gradient_does_not_train_another_stage(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int layer = 1; layer < LAYERS; ++layer) {
        static struct job job;
        job = job_of(1, 4, TRIREME_PIPELINE_ORDER_ZB_H1, 1, 0xff);
        job.right = right;
        job.act = LEAVES_GAP;
        job.layer = layer;
        job.phase = TRIREME_PHASE_BACKWARD_INPUT;
        job.micro_batch = 1;
        run_chain(&job, fail_once);
        for (int i = 0; i < 4; ++i) {
            /* Each stage has two layers. */
            if (layer % 2 == 0) {
                assert_non_null(strstr(kept_message[i], "backward of a layer of a later stage"));
            }
            if (strstr(kept_message[i], " of its input_gradient") != NULL ||
                strstr(kept_message[i], "did not write its input_gradient") != NULL) {
                continue;
            }
            print_error("layer %d: rank %d says \"%s\"\n", layer, i, kept_message[i]);
            fail();
        }
    }
}

/* The layers of rank 0 before the later stage are not trained, but those of rank 1 between are. */
static void a_gap_is_found_behind_untrained_layers_of_a_rank(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    reproducible();
    static struct job job;
    job = job_of(1, 2, TRIREME_PIPELINE_ORDER_ZB_V, 2, 0xff);
    job.frozen = 0x3;
    job.act = LEAVES_GAP;
    job.layer = 6;
    job.phase = TRIREME_PHASE_BACKWARD_INPUT;
    job.micro_batch = 1;
    run_chain(&job, fail_once);
}

/* ---- ranks that disagree ---- */

enum fault {
    SCHEDULES,
    LATER_ACTION,
    CUTS,
    SEEDS,
    FLAGS,
    SIZES,
    INPUT_SIZE,
    NO_INPUT_LAYER,
    NO_SCHEDULE,
    NO_CUTS,
    LAYER_LIST,
    NO_PLACE,
    FAULTS
};

static const struct {
    trireme_status status;
    const char *words;
} kFaults[FAULTS] = {
    {TRIREME_ERROR_MISMATCH,
     "the micro-batches of options.pipeline.schedule is 6 on rank 0 and 5 on rank 1"},
    {TRIREME_ERROR_MISMATCH,
     "action 2 of rank 0 in options.pipeline.schedule is 0B0 on rank 0 and 0F2 on rank 1"},
    {TRIREME_ERROR_MISMATCH, "options.pipeline.cuts is 0 2 5 8  on rank 0 and 0 3 5 8  on rank 2"},
    {TRIREME_ERROR_MISMATCH, "options.seed is "},
    {TRIREME_ERROR_MISMATCH, "options.flags is "},
    {TRIREME_ERROR_INVALID_ARGUMENT, "has input_bytes 44, but layer "},
    {TRIREME_ERROR_INVALID_ARGUMENT,
     "the first layer of stage 1 has input_bytes 44, but stage 0 puts out 40"},
    {TRIREME_ERROR_INVALID_ARGUMENT, "layers, but by options.pipeline.cuts the stages of rank"},
    {TRIREME_ERROR_INVALID_HANDLE, "schedule"},
    {TRIREME_ERROR_INVALID_ARGUMENT, "options.pipeline.cuts is NULL"},
    {TRIREME_ERROR_INVALID_ARGUMENT, "struct_size"},
    {TRIREME_ERROR_INVALID_ARGUMENT, "out_trainer"},
};

static enum fault fault_under_test;

/* The last rank along the pipeline differs; then all ranks come again and are right. */
static void disagree(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    options.seed = 12345;
    options.pipeline = &pipeline;
    trireme_layer layers[LAYERS];
    memcpy(layers, r.layers, sizeof layers);
    uint64_t count = r.layer_count, cuts[MOST_STAGES + 1];
    memcpy(cuts, r.cuts, sizeof cuts);
    trireme_pipeline_schedule *other = NULL;
    const bool differs = r.place + 1 == job->ranks;
    trireme_pipeline_schedule_options how = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    how.order = TRIREME_PIPELINE_ORDER_GPIPE;
    how.ranks = (uint32_t)job->ranks;
    how.micro_batches = fault_under_test == SCHEDULES ? 5 : 6;
    EXPECT_STATUS(v, TRIREME_OK, trireme_pipeline_schedule_create(&how, &other));
    switch (differs ? fault_under_test : FAULTS) {
        case SCHEDULES:
        case LATER_ACTION: pipeline.schedule = other; break;
        case CUTS:
            cuts[1] = 3;
            pipeline.cuts = cuts;
            break;
        case SEEDS: options.seed = 6; break;
        case FLAGS: options.flags = TRIREME_TRAINER_FLAG_ZERO_GRADIENTS; break;
        case SIZES: layers[1].input_bytes = 44; break;
        case INPUT_SIZE: layers[0].input_bytes = 44; break;
        case NO_INPUT_LAYER: --count; break;
        case NO_SCHEDULE: pipeline.schedule = NULL; break;
        case NO_CUTS: pipeline.cuts = NULL; break;
        case LAYER_LIST: layers[0].struct_size = 4; break;
        default: break;
    }
    trireme_trainer *none = NULL;
    const trireme_status status =
        trireme_trainer_create(r.optimizer, layers, count, &options,
                               differs && fault_under_test == NO_PLACE ? NULL : &none);
    EXPECT(v, none == NULL && status != TRIREME_OK);
    EXPECT_STATUS(v, kFaults[fault_under_test].status, status);
    /* A fault that one rank sees alone has its words there. The others hear that there is one. */
    const bool alone = fault_under_test == SIZES || fault_under_test >= NO_INPUT_LAYER;
    char answered[64];
    snprintf(answered, sizeof answered, "rank 1 answered %s", trireme_status_name(status));
    EXPECT(v, says(alone && !differs ? answered : kFaults[fault_under_test].words));
    EXPECT_STATUS(v, TRIREME_OK,
                  create_chain_trainer(&r, &(trireme_trainer_pipeline_options){
                                               sizeof(trireme_trainer_pipeline_options), 0, r.along,
                                               r.schedule, r.cuts, r.stages + 1}));
    make_right_steps(&r);
    trireme_pipeline_schedule_destroy(other);
    end_rank(&r);
}

static void ranks_that_disagree_hear_of_it(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reproducible();
    for (int fault = 0; fault < FAULTS; ++fault) {
        static struct job job;
        fault_under_test = (enum fault)fault;
        for (int data = 1; data <= 2; ++data) {
            job = job_of(data, fault == CUTS ? 3 : 2, TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
            job.right = right;
            /* Without leaves, whose number says how many micro-batches there are. */
            if (fault == SCHEDULES || fault == LATER_ACTION || data == 2) {
                job.leaves = 0;
                job.micro_batches = LEAVES;
                job.right = NULL;
            }
            run_chain(&job, disagree);
        }
    }
}

/* Both data ranks have four layers in each of their places, but other ones. */
static void cut_otherwise(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    static const uint64_t other[] = {0, 3, 5, 7, LAYERS};
    for (uint64_t s = 0; s <= r.stages && r.data == 1; ++s) r.cuts[s] = other[s];
    describe_chain(&r);
    for (uint64_t i = 0; i < r.layer_count; ++i) {
        r.layers[i].name = "layer";
        r.layers[i].first_parameter = r.layers[i].parameter_count = 0;
        r.layers[i].input_bytes = 0;
        r.layers[i].output_bytes = r.layers[i].saved_bytes = 64;
    }
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
    EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_model_create(r.copies, &options, &r.model));
    const uint64_t size = 3;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "p";
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &size;
    EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_model_add_parameter(r.model, &parameter, NULL));
    r.layers[0].parameter_count = 1;
    for (uint64_t i = 1; i < r.layer_count; ++i) r.layers[i].first_parameter = 1;
    EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_model_seal(r.model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    EXPECT_STATUS(r.verdict, TRIREME_OK, trireme_optimizer_create(r.model, &rule, &r.optimizer));
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(r.verdict, TRIREME_ERROR_MISMATCH, create_chain_trainer(&r, &pipeline));
    EXPECT(r.verdict, says("options.pipeline.cuts is 0 2 4 6 8  on rank 0 and 0 3 5 7 8  on"));
    end_rank(&r);
}

static void data_ranks_cut_alike(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(2, 2, TRIREME_PIPELINE_ORDER_ZB_V, 2, 0);
    job.leaves = 0;
    job.micro_batches = 4;
    run_chain(&job, cut_otherwise);
}

static void ask_for_a_norm(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    const bool others = job->norm == OF_COPIES;
    EXPECT_STATUS(r.verdict, others ? TRIREME_ERROR_MISMATCH : TRIREME_ERROR_INVALID_ARGUMENT,
                  create_chain_trainer(&r, &pipeline));
    EXPECT(r.verdict, says(others ? "the group of norm_ranks is " : "but no norm_ranks"));
    end_rank(&r);
}

static void a_norm_is_that_of_all_stages(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (int data = 1; data <= 2; ++data) {
        for (int norm = OF_NOBODY_ELSE; norm <= NO_NORM; ++norm) {
            static struct job job;
            job = job_of(data, 2, TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
            job.norm = (enum norm)norm;
            if (norm == NO_NORM) job.loss_scale = 1024; /* with which stages skip together */
            run_chain(&job, ask_for_a_norm);
        }
    }
}

/* ---- refusals ---- */

static void try_options(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options good = pipeline_of(&r);
    trireme_trainer *none = NULL;
    trireme_trainer_pipeline_options bad = good;
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    options.seed = 12345;
    options.pipeline = &bad;
    const trireme_status invalid = TRIREME_ERROR_INVALID_ARGUMENT;
#define REFUSED(status, words)                                                                    \
    EXPECT_STATUS(v, status,                                                                      \
                  trireme_trainer_create(r.optimizer, r.layers, r.layer_count, &options, &none)); \
    EXPECT(v, none == NULL);                                                                      \
    if (!says(words)) EXPECT(v, !"another message"), print_error("%s\n", trireme_last_error());   \
    bad = good
    bad.struct_size = 16;
    REFUSED(invalid, "options.pipeline");
    bad.communicator = NULL;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "communicator");
    bad.schedule = NULL;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "schedule");
    bad.cuts = NULL;
    REFUSED(invalid, "options.pipeline.cuts is NULL");
    bad.flags = 2;
    REFUSED(invalid, "options.pipeline.flags 2 has a bit that is no");
    bad.cut_count = 2;
    REFUSED(invalid, "options.pipeline.cut_count is 2, but a schedule of 2 stages has 3 cuts");
    bad.cut_count = UINT64_MAX;
    REFUSED(invalid, "options.pipeline.cut_count is 18446744073709551615, above 262145");
    const uint64_t falling[] = {0, 5, 4}, late[] = {1, 4, 8}, empty[] = {0, 8, 8};
    bad.cuts = falling;
    REFUSED(invalid, "options.pipeline.cuts[2] is 4, below cuts[1], 5");
    bad.cuts = late;
    REFUSED(invalid, "options.pipeline.cuts[0] is 1, not 0");
    bad.cuts = empty;
    REFUSED(invalid, "stage 1 has no layers by options.pipeline.cuts");
    options.micro_batches = 6;
    REFUSED(invalid, "options.micro_batches 6 of a reproducible model");
    options.micro_batches = 0;
    options.flags = 64;
    REFUSED(invalid, "options.flags 64");
    options.flags = 0;
    /* Schedules that do not fit. */
    trireme_pipeline_schedule_options how = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    trireme_pipeline_schedule *other[3] = {NULL, NULL, NULL};
    how.order = TRIREME_PIPELINE_ORDER_ZB_H1;
    how.ranks = 2;
    how.micro_batches = 5;
    EXPECT_STATUS(v, TRIREME_OK, trireme_pipeline_schedule_create(&how, &other[0]));
    bad.schedule = other[0];
    REFUSED(invalid, "options.pipeline.schedule has 5 micro-batches, but 6 leaves on 1 ranks");
    how.micro_batches = 6;
    how.ranks = 3;
    EXPECT_STATUS(v, TRIREME_OK, trireme_pipeline_schedule_create(&how, &other[1]));
    bad.schedule = other[1];
    REFUSED(invalid,
            "options.pipeline.schedule has 3 ranks, but options.pipeline.communicator "
            "has 2");
    how.ranks = 2;
    EXPECT_STATUS(v, TRIREME_OK, trireme_pipeline_schedule_create(&how, &other[2]));
    bad.schedule = other[2];
    bad.flags = TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT;
    if (r.place == 0) {
        REFUSED(invalid, "has no backward_weight, but the schedule has W");
    } else {
        REFUSED(invalid, "backward_weight");
    }
    for (int i = 0; i < 3; ++i) trireme_pipeline_schedule_destroy(other[i]);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &good));
    make_right_steps(&r);
    end_rank(&r);
}

static void options_are_checked(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    const struct curve *const right = reproducible();
    job = job_of(1, 2, TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
    job.right = right;
    run_chain(&job, try_options);
}

/* Schedules that no generator makes: actions that a trainer does not make, and a circle. */
static void try_schedules(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    static const struct {
        const char *text;
        trireme_status status;
        const char *words;
    } texts[] = {
        {"0GATHER 0F0 0B0 0RELEASE\n1F0 1B0\n", TRIREME_ERROR_UNSUPPORTED,
         "a trainer makes F, R, I, W, B"},
        {"0F0 0B0 0REDUCE\n1F0 1B0\n", TRIREME_ERROR_UNSUPPORTED, "a trainer makes F, R, I, W, B"},
        {"0R0 0F0 0B0\n1F0 1B0\n", TRIREME_ERROR_INVALID_ARGUMENT, "cannot run"},
        {"0F0 0B0 0R0\n1F0 1B0\n", TRIREME_ERROR_INVALID_ARGUMENT, "cannot run"},
        {"0F0\n1F0 1B0\n", TRIREME_ERROR_INVALID_ARGUMENT, "cannot run"},
        {"0B0 0F0\n1F0 1B0\n", TRIREME_ERROR_INVALID_ARGUMENT, "cannot run"},
        {"0F0 (0F1;0B0) 0B1\n1F0 1F1 1B0 1B1\n", TRIREME_ERROR_INVALID_ARGUMENT,
         "cannot run with its messages"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; ++i) {
        trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
        trireme_pipeline_schedule *schedule = NULL;
        char text[128];
        snprintf(text, sizeof text, "pipeline ranks=2 stages=2 micro_batches=%d placement=0,1\n%s",
                 strstr(texts[i].text, "F1") != NULL ? 2 : 1, texts[i].text);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_pipeline_schedule_parse(text, strlen(text), &schedule));
        pipeline.schedule = schedule;
        EXPECT_STATUS(v, texts[i].status, create_chain_trainer(&r, &pipeline));
        EXPECT(v, says(texts[i].words));
        trireme_pipeline_schedule_destroy(schedule);
    }
    /* Numbers that are nowhere. */
    const trireme_pipeline_action wild[] = {{TRIREME_PIPELINE_KIND_B, UINT32_MAX, UINT32_MAX, 0},
                                            {TRIREME_PIPELINE_KIND_F, 7, 9, 0},
                                            {-5, 0, 0, 0}};
    const uint32_t rank_of[] = {0, 1};
    const uint64_t counts[] = {2, 1};
    trireme_pipeline_schedule *schedule = NULL;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_pipeline_schedule_from_actions(2, 6, rank_of, 2, wild, counts,
                                                         &schedule));
    trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    pipeline.schedule = schedule;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, create_chain_trainer(&r, &pipeline));
    EXPECT(v, says("cannot run"));
    trireme_pipeline_schedule_destroy(schedule);
    /* Sizes that no memory has. */
    const uint64_t saved = r.layers[0].saved_bytes;
    pipeline = pipeline_of(&r);
    r.layers[0].saved_bytes = UINT64_MAX - 5;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, create_chain_trainer(&r, &pipeline));
    EXPECT(v, says("more bytes than memory can have"));
    r.layers[0].saved_bytes = saved;
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    end_rank(&r);
}

static void schedules_are_checked(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(1, 2, TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
    run_chain(&job, try_schedules);
}

/* ---- ranks that go different ways ---- */

static void call_other_things(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    double loss = 0;
    const trireme_status status = r.place == 1 ? trireme_trainer_evaluate(r.trainer, &r, &loss)
                                               : trireme_trainer_step(r.trainer, &r, NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, status);
    EXPECT(v, says("of step 1 ") && says("of an evaluation after step 0"));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_trainer_step(r.trainer, &r, NULL));
    end_rank(&r);
}

static void ranks_in_different_calls_hear_of_it(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int meshes[][2] = {{1, 2}, {2, 2}, {1, 4}};
    reproducible();
    for (int m = 0; m < 3; ++m) {
        static struct job job;
        job = job_of(meshes[m][0], meshes[m][1], TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
        run_chain(&job, call_other_things);
    }
}

/* A rank does not come to a step: all others fail at the deadline. */
static void stay_away(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = begin_rank(all, number, job);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    if (number != 1) {
        EXPECT_STATUS(v, TRIREME_ERROR_TIMEOUT, trireme_trainer_step(r.trainer, &r, NULL));
        EXPECT_STATUS(v, TRIREME_ERROR_TIMEOUT, trireme_trainer_step(r.trainer, &r, NULL));
    }
    /* It waits until the others are done. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(all, NULL));
    end_rank(&r);
}

static void a_rank_that_stays_away_is_not_waited_for(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int meshes[][2] = {{1, 2}, {2, 2}, {1, 3}};
    reproducible();
    for (int m = 0; m < 3; ++m) {
        static struct job job;
        job = job_of(meshes[m][0], meshes[m][1], TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
        job.timeout_ns = 300ull * 1000 * 1000;
        run_chain(&job, stay_away);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_callback_is_known_everywhere),
        cmocka_unit_test(a_failed_second_forward_is_known_everywhere),
        cmocka_unit_test(a_wrong_size_is_known_everywhere),
        cmocka_unit_test(an_unwritten_gradient_is_known_everywhere),
        cmocka_unit_test(an_unwritten_input_gradient_does_not_train_another_stage),
        cmocka_unit_test(a_gap_is_found_behind_untrained_layers_of_a_rank),
        cmocka_unit_test(ranks_that_disagree_hear_of_it),
        cmocka_unit_test(data_ranks_cut_alike),
        cmocka_unit_test(a_norm_is_that_of_all_stages),
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(schedules_are_checked),
        cmocka_unit_test(ranks_in_different_calls_hear_of_it),
        cmocka_unit_test(a_rank_that_stays_away_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
