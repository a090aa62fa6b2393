/*
 * Layers that read outputs of earlier ones, with a pipeline and without: the bits of a plain loop,
 * whatever the schedule and the ranks. Reads that cannot be, and failures that go past layers.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <ranks.h>

#include "directory.inc"
#include "pipeline_chain_checks.inc"
#include "pipeline_failing.inc"

static const struct {
    trireme_pipeline_order order;
    int stages_per_rank;
} kOrders[] = {{TRIREME_PIPELINE_ORDER_GPIPE, 1},       {TRIREME_PIPELINE_ORDER_1F1B, 1},
               {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2}, {TRIREME_PIPELINE_ORDER_ZB_H1, 1},
               {TRIREME_PIPELINE_ORDER_ZB_V, 2},        {TRIREME_PIPELINE_ORDER_BEST, 1}};
static const unsigned kSplits[] = {0, 0xff, 0x55, 0x06};

/* Outputs that later layers read: within a stage, between stages of a rank and between ranks. */
static void layers_read_outputs_of_earlier_ones(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    reproducible();
    static struct curve rights[2];
    chain_reads = true;
    for (int ranks = 1; ranks <= 4; ++ranks) {
        for (int k = 0; k < 6; ++k) {
            if (is_quick() && (ranks + k) % 2 != 0) continue;
            static struct job job;
            chain_varies = (ranks + k) % 3 == 0;
            struct curve *const right = &rights[chain_varies ? 1 : 0];
            if (right->losses[0] == 0) plain_training(LEAVES, 0, 0, right);
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
                               .offload = (ranks + k / 2) % 2 == 0 ? directory : NULL,
                               .right = right};
            if (ranks == 3 && k == 1) job.empty = 2;
            if (job.whole) job.second_forward = NO_R;
            if (job.empty == 0 && !all_have_parameters(&job)) continue;
            run_chain(&job, fail_once);
        }
    }
    assert_int_equal(files_in_directory(), 0);
    chain_reads = chain_varies = false;
}

static const struct curve *reading(void) {
    static struct curve curve;
    reproducible();
    chain_reads = true;
    if (curve.losses[0] == 0) plain_training(LEAVES, 0, 0, &curve);
    return &curve;
}

/* A reader that fails, the layer that it reads, and one that leaves a gradient unwritten. */
static void a_failure_goes_past_layers(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const struct curve *const right = reading();
    const struct {
        enum act act;
        int layer;
        int32_t phase;
        const char *words;
    } faults[] = {
        {ANSWERS, 0, TRIREME_PHASE_FORWARD, "forward of layer 0"},
        {ANSWERS, 6, TRIREME_PHASE_BACKWARD, "backward of layer 6"},
        {ANSWERS, 1, TRIREME_PHASE_BACKWARD, "backward of layer 1"},
        {LEAVES_READ, 5, TRIREME_PHASE_BACKWARD, "its gradient for the output of layer 1, which"},
        {LEAVES_READ, 7, TRIREME_PHASE_BACKWARD, "its gradient for the output of layer 5, which"},
        {LEAVES_GAP, 2, TRIREME_PHASE_BACKWARD, "backward of layer 2"},
        {LEAVES_INPUT, 2, TRIREME_PHASE_BACKWARD, "backward of layer 2"},
    };
    for (int f = 0; f < 7; ++f) {
        static struct job job;
        job = job_of(1 + f % 2, 2 + f % 3,
                     f % 2 == 0 ? TRIREME_PIPELINE_ORDER_1F1B : TRIREME_PIPELINE_ORDER_GPIPE, 1, 0);
        job.right = right;
        job.act = faults[f].act;
        job.layer = faults[f].layer;
        job.phase = faults[f].phase;
        job.micro_batch = 1;
        run_chain(&job, fail_once);
        int stage = 0, place = 0;
        find_place(&job, job.layer, &stage, &place);
        check_messages(&job, faults[f].words, stage, place);
    }
    chain_reads = false;
}

static void train_on(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    EXPECT_STATUS(r.verdict, TRIREME_OK, create_chain_trainer(&r, r.job->whole ? NULL : &pipeline));
    make_right_steps(&r);
    end_rank(&r);
}

/* Nothing is trained before layer 2. It leaves out its gradient, and others read layers 0 and 1. */
static void a_gap_before_frozen_layers_is_no_failure(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct curve right;
    reproducible();
    chain_reads = true;
    plain_frozen = 3;
    plain_training(LEAVES, 0, 0, &right);
    for (int ranks = 1; ranks <= 3; ++ranks) {
        for (int whole = 0; whole < (ranks == 1 ? 2 : 1); ++whole) {
            static struct job job;
            job = job_of(1, ranks, TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
            job.right = &right;
            job.frozen = plain_frozen;
            job.whole = whole != 0;
            job.act = LEAVES_INPUT;
            job.layer = 2;
            job.phase = TRIREME_PHASE_BACKWARD;
            job.micro_batch = 1;
            run_chain(&job, train_on);
        }
    }
    plain_frozen = 0;
    chain_reads = false;
}

/* Layers that cannot be read, on one rank of the pipeline or of the model. */
static void try_reads(trireme_communicator *all, int number, void *context) {
    struct rank r = begin_rank(all, number, context);
    struct verdict *const v = r.verdict;
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    static const uint64_t later[] = {6}, itself[] = {5}, twice[] = {1, 0, 1}, unknown[] = {8},
                          before[] = {4}, other[] = {2}, good[] = {1};
    const struct {
        const uint64_t *reads;
        uint64_t count;
        trireme_dtype dtype;
        trireme_status status;
        const char *words;
    } faults[] = {
        {later, 1, 0, TRIREME_ERROR_INVALID_ARGUMENT, "reads layer 6, which is a later one"},
        {itself, 1, 0, TRIREME_ERROR_INVALID_ARGUMENT, "reads layer 5, which is itself"},
        {twice, 3, 0, TRIREME_ERROR_INVALID_ARGUMENT, "reads layer 1 twice"},
        {unknown, 1, 0, TRIREME_ERROR_INVALID_ARGUMENT,
         "reads layer 8, but the model has 8 layers"},
        {before, 1, 0, TRIREME_ERROR_INVALID_ARGUMENT, "reads layer 4, whose output is its input"},
        {NULL, 1, 0, TRIREME_ERROR_INVALID_ARGUMENT, "].reads is NULL"},
        {good, 4097, 0, TRIREME_ERROR_INVALID_ARGUMENT, "].read_count is 4097, above 4096"},
        {good, 1, TRIREME_DTYPE_I32, TRIREME_ERROR_INVALID_ARGUMENT, "which is not f16, bf16"},
        {other, 1, 0, TRIREME_ERROR_MISMATCH, "layer 1 is \"sixth\""},
    };
    for (size_t f = 0; f < sizeof faults / sizeof faults[0]; ++f) {
        for (uint64_t i = 0; i < r.layer_count; ++i) {
            const bool differs = faults[f].status != TRIREME_ERROR_MISMATCH || r.data == 1;
            if (((struct layer_of *)r.layers[i].user_data)->layer != 5 || !differs) continue;
            r.layers[i].reads = faults[f].reads;
            r.layers[i].read_count = faults[f].count;
            r.layers[i].output_dtype = faults[f].dtype;
        }
        EXPECT_STATUS(v, faults[f].status, create_chain_trainer(&r, &pipeline));
        EXPECT(v, says(r.place == 1 ? faults[f].words : "answered "));
        describe_chain(&r);
    }
    /* Then all is well again. */
    for (uint64_t i = 0; i < r.layer_count && r.place == 0; ++i) {
        if (((struct layer_of *)r.layers[i].user_data)->layer != 0) continue;
        r.layers[i].output_bytes = 43;
        r.layers[i + 1].input_bytes = 43;
    }
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, create_chain_trainer(&r, &pipeline));
    EXPECT(v, says("layer 0, which others read, has output_bytes 43, no whole number of f32"));
    describe_chain(&r);
    EXPECT_STATUS(v, TRIREME_OK, create_chain_trainer(&r, &pipeline));
    make_right_steps(&r);
    end_rank(&r);
}

static void reads_are_checked(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct job job;
    job = job_of(2, 2, TRIREME_PIPELINE_ORDER_1F1B, 1, 0);
    job.right = reading();
    run_chain(&job, try_reads);
    chain_reads = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_read_outputs_of_earlier_ones),
        cmocka_unit_test(a_failure_goes_past_layers),
        cmocka_unit_test(a_gap_before_frozen_layers_is_no_failure),
        cmocka_unit_test(reads_are_checked),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
