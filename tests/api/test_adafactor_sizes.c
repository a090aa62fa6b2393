/* ADAFACTOR where gradients of one parameter are of very different sizes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <numbers.h>
#include <options.h>
#include <ranks.h>

#define F32 TRIREME_DTYPE_F32
#define F64 TRIREME_DTYPE_F64
#define MOST_RANKS 3

struct job {
    trireme_strategy strategy;
    int world_size;
    struct verdict verdicts[MOST_RANKS];
};

/* One element, or row, is of another size than the rest; `expected` after the first step. */
static const struct {
    double gradients[4], expected[4], epsilon;
    trireme_dtype dtype;
    bool matrix;
} kSizes[] = {
    /* A row whose squares vanish beside the others' moves by what its gradient is of 2^-51. */
    {{1, -1, 0x1p-55, -0x1p-55}, {0.99, 1.01, 1 - 0.01 / 16, 1 + 0.01 / 16}, 1e-30, F32, true},
    {{1, -1, 0x1p-55, -0x1p-55}, {0.99, 1.01, 1 - 0.01 / 16, 1 + 0.01 / 16}, 0, F64, true},
    {{0x1p60, 0x1p60, 1, 1}, {0.99, 0.99, 1 - 0.01 / 512, 1 - 0.01 / 512}, 0, F32, true},
    /* Below what f32 has squares for. */
    {{1, 1, 1e-23, 1e-24}, {0.99, 0.99, 0.99, 0.99}, 1e-30, F32, false},
    {{1e-24, -1e-24, 1e-24, 1e-24}, {0.99, 1.01, 0.99, 0.99}, 1e-30, F32, true},
    /* And above. */
    {{1, 1, 1, 3e19}, {0.99, 0.99, 0.99, 0.99}, 0, F32, false},
    {{3e19, -3e19, 3e19, 3e19}, {0.99, 1.01, 0.99, 0.99}, 0, F32, true},
};

static void put(trireme_dtype dtype, double value, void *values, int i) {
    put_number(dtype, value, (char *)values + i * (dtype == F64 ? 8 : 4));
}

static double get(trireme_dtype dtype, const void *values, int i) {
    return number_at(dtype, (const char *)values + i * (dtype == F64 ? 8 : 4));
}

static void step_with_sizes(trireme_communicator *ranks, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    for (size_t i = 0; i < sizeof kSizes / sizeof kSizes[0]; ++i) {
        const trireme_dtype dtype = kSizes[i].dtype;
        trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
        options.strategy = job->strategy;
        trireme_model *model = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(ranks, &options, &model));
        const uint64_t shape[] = {kSizes[i].matrix ? 2 : 4, 2};
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = "p";
        parameter.dtype = dtype;
        parameter.shape = shape;
        parameter.dimensions = kSizes[i].matrix ? 2 : 1;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = TRIREME_RULE_ADAFACTOR;
        set_epsilon(&rule, kSizes[i].epsilon);
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        double given[4], values[4]; /* room for four numbers of either type */
        for (int k = 0; k < 4; ++k) put(dtype, 1, values, k);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, values, 4, dtype, 0));
        /* Afterwards all are 1, and nothing is left of it but what the means remember. */
        for (int step = 0; step < 3; ++step) {
            for (int k = 0; k < 4; ++k) {
                put(dtype, step == 0 ? kSizes[i].gradients[k] : 1, given, k);
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, given, 4, dtype, 0));
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 4, dtype));
            for (int k = 0; k < 4; ++k) {
                const double found = get(dtype, values, k);
                const double wanted = kSizes[i].expected[k];
                if (step == 0 ? fabs(found - wanted) < 1e-6 : fabs(found - 1) < 0.1) continue;
                fprintf(stderr, "case %d, step %d, element %d: %.9g\n", (int)i, step, k, found);
                EXPECT(v, false);
            }
        }
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
}

static void neither_tiny_nor_huge_gradients_take_the_step_of_others(void **state) {
    (void)state;
    static struct job job;
    for (int world = 1; world <= 3; ++world) {
        job = (struct job){.strategy = TRIREME_STRATEGY_ZERO2, .world_size = world};
        run_ranks(world, step_with_sizes, &job);
        assert_verdicts(job.verdicts, world);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neither_tiny_nor_huge_gradients_take_the_step_of_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
