/*
 * MUON: large matrices are gathered round by round, and the memory for it is planned.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#define F32 TRIREME_DTYPE_F32
#define F64 TRIREME_DTYPE_F64
#define MOST_RANKS 8

#define LONG 530000 /* two rows of it are more than 8 MiB of f64 */
#define LARGE 5

struct large {
    int world_size;
    trireme_strategy strategy;
    double *trained; /* by rank 0 */
    uint64_t working[MOST_RANKS];
    struct verdict verdicts[MOST_RANKS];
};

static void train_large(trireme_communicator *ranks, int rank, void *context) {
    struct large *const large = context;
    struct verdict *const v = &large->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = large->strategy;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    for (int i = 0; i < LARGE; ++i) {
        const uint64_t wide[] = {2, LONG}, tall[] = {LONG, 2};
        char name[] = "0";
        name[0] = (char)('0' + i);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = F64;
        parameter.dimensions = 2;
        parameter.shape = i % 2 == 0 ? wide : tall;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_MUON;
    muon_of(&rule)->orthogonal_steps = 2;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const uint64_t count = (uint64_t)LARGE * 2 * LONG;
    double *const values = malloc(count * sizeof *values);
    if (values == NULL) abort();
    for (uint64_t i = 0; i < count; ++i) values[i] = (double)(i * 37 % 1013) / 8 - 60;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, values, count, F64, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, count, F64));
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    EXPECT(v, memory.planned_working == memory.allocated_working);
    large->working[rank] = memory.allocated_working;
    if (rank == 0) memcpy(large->trained, values, count * sizeof *values);
    free(values);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* Matrices that are gathered one after the other, as two at the same time would be too much. */
static void rounds_bound_the_working_memory(void **state) {
    (void)state;
    if (is_quick()) skip();
    const uint64_t count = (uint64_t)LARGE * 2 * LONG;
    double *const alone = malloc(count * sizeof *alone);
    double *const spread = malloc(count * sizeof *spread);
    assert_true(alone != NULL && spread != NULL);
    static struct large one, more;
    one = (struct large){.world_size = 1, .strategy = TRIREME_STRATEGY_ZERO1, .trained = alone};
    run_ranks(1, train_large, &one);
    assert_verdicts(one.verdicts, 1);
    more = (struct large){.world_size = 2, .strategy = TRIREME_STRATEGY_ZERO1, .trained = spread};
    run_ranks(2, train_large, &more);
    assert_verdicts(more.verdicts, 2);
    assert_memory_equal(alone, spread, count * sizeof *alone);
    /* A round has a matrix of each rank; this rank holds at most all elements of one, its own
     * matrix, and a copy for the computation; and the memory of products. All five at once would be
     * more. */
    const uint64_t matrix = 2 * LONG * 8;
    for (int rank = 0; rank < 2; ++rank) {
        assert_true(more.working[rank] > 2 * matrix);
        assert_true(more.working[rank] < 4 * matrix + (4u << 20));
    }
    free(alone);
    free(spread);
}

#define MANY 16

static void plan_many(trireme_communicator *ranks, int rank, void *context) {
    struct large *const large = context;
    struct verdict *const v = &large->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = large->strategy;
    units_of(&options)->minimum_bytes =
        UINT64_MAX; /* of one group each rank owns matrices that are whole */
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
    const uint64_t shape[] = {2, 2 * LONG};
    for (int i = 0; i < MANY; ++i) {
        char name[] = "a";
        name[0] = (char)('a' + i);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = F32;
        parameter.dimensions = 2;
        parameter.shape = shape;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_model_memory before = TRIREME_MODEL_MEMORY_INIT, memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &before));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_MUON;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    large->working[rank] = memory.planned_working - before.planned_working;
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* Each rank has a matrix of its own to compute with, but those of one owner wait for each other: it
 * sends one, gets one, and has that once more. */
static void an_owner_sends_one_large_matrix_at_a_time(void **state) {
    (void)state;
    if (is_quick()) skip();
    const uint64_t matrix = 2 * 2 * LONG * 4;
    for (int world_size = 4; world_size <= 8; world_size += 4) {
        static struct large large;
        large = (struct large){.world_size = world_size, .strategy = TRIREME_STRATEGY_ZERO2};
        run_ranks(world_size, plan_many, &large);
        assert_verdicts(large.verdicts, world_size);
        for (int rank = 0; rank < world_size; ++rank) {
            assert_true(large.working[rank] > 3 * matrix);
            assert_true(large.working[rank] < 3 * matrix + (1u << 20));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_bound_the_working_memory),
        cmocka_unit_test(an_owner_sends_one_large_matrix_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
