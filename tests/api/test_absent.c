/*
 * Ranks without data where the others gather units: they take part in the gathers and delay no
 * rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "options.h"
#include "ranks.h"

#define F32 TRIREME_DTYPE_F32

/* A bucket a unit, so that the two places of buckets in flight are soon taken. */
enum { MANY_UNITS = 7, PASSES_BEFORE = 1, REPRODUCIBLE = 2, ENDS_FIRST = 4, KINDS = 8 };
/* Elements of a unit. Between hosts the bucket of a long one is more than travels with a call. */
enum { SHORT = 9, LONG = 4099 };

struct job {
    trireme_strategy strategy;
    int world_size;
    int kind; /* a sum of the above */
    uint64_t elements;
    struct verdict verdicts[4];
};

static void
gather_and_release(struct job *job, trireme_model *model, int rank, uint64_t unit, bool brings) {
    struct verdict *const v = &job->verdicts[rank];
    float gradient[LONG];
    for (uint64_t i = 0; i < job->elements; ++i) gradient[i] = (float)(rank + 1);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, unit));
    if (brings) {
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gradient_ready(model, unit, gradient, job->elements, F32));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, unit));
}

/* Rank 0 has no data, and takes part in the gathers of the others: during its empty pass, or after.
 */
static void
be_absent_where_units_are_gathered(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const int passes = (job->kind & PASSES_BEFORE) != 0 ? 2 : 1;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) shards_of(&options)->ranks = 2;
    options.flags = TRIREME_MODEL_FLAG_UNEVEN;
    shards_of(&options)->share = TRIREME_SHARE_NEVER;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = 1;
    if ((job->kind & REPRODUCIBLE) != 0) options.leaves = (uint32_t)(passes * job->world_size);
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    for (int i = 0; i < MANY_UNITS; ++i) {
        const char name[] = {(char)('a' + i), 0};
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &job->elements;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    for (int pass = 0; pass < passes; ++pass) {
        /* With two passes rank 0 has data for the first one. */
        const bool present = rank > 0 || pass + 1 < passes;
        const bool ends_first = !present && (job->kind & ENDS_FIRST) != 0;
        for (uint64_t i = 0; i < MANY_UNITS; ++i) gather_and_release(job, model, rank, i, false);
        uint32_t flags = present ? 0 : TRIREME_BACKWARD_FLAG_ABSENT;
        if (pass + 1 < passes && (job->kind & REPRODUCIBLE) == 0)
            flags |= TRIREME_BACKWARD_FLAG_NO_SYNC;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, flags));
        if (ends_first) EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
        for (uint64_t i = MANY_UNITS; i-- > 0;) gather_and_release(job, model, rank, i, present);
        if (!ends_first) EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    /* Of the numbers 1, 2, ..., without 1 where rank 0 brought nothing. */
    float sum = 0, brought = 0;
    for (int r = 0; r < job->world_size; ++r) {
        const int by_rank = r > 0 ? passes : passes - 1;
        sum += (float)(by_rank * (r + 1));
        brought += (float)((job->kind & REPRODUCIBLE) != 0 ? by_rank : by_rank > 0);
    }
    float values[MANY_UNITS * LONG];
    const uint64_t all = MANY_UNITS * job->elements;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, all, F32));
    for (uint64_t i = 0; i < all; ++i) EXPECT(v, values[i] == -(sum / brought));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void an_absent_rank_does_not_hold_up_gathers(void **state) {
    (void)state;
    struct job job = {0};
    const trireme_strategy strategies[] = {TRIREME_STRATEGY_ZERO3, TRIREME_STRATEGY_HYBRID_SHARD};
    for (job.world_size = 2; job.world_size <= 4; job.world_size += 2) {
        for (int s = 0; s < 2; ++s) {
            job.strategy = strategies[s];
            for (int trial = 0; trial < 2 * KINDS; ++trial) {
                job.kind = trial / 2;
                job.elements = trial % 2 == 0 ? SHORT : LONG;
                memset(job.verdicts, 0, sizeof job.verdicts);
                run_ranks(job.world_size, be_absent_where_units_are_gathered, &job);
                assert_verdicts(job.verdicts, job.world_size);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_absent_rank_does_not_hold_up_gathers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
