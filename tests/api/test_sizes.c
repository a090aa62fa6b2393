/*
 * Sizes that no memory has: numbers whose products or sums wrap. Each is refused on the spot with
 * its number, or answered with OUT_OF_MEMORY where the number itself is legal; no shorter memory is
 * allocated than asked for, and the group goes on.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

enum { RANKS = 2, SIZES = 8 };
static const uint64_t kSizes[SIZES] = {UINT64_C(1) << 57, UINT64_C(1) << 61,
                                       UINT64_C(1) << 62, (UINT64_C(1) << 62) + 1,
                                       UINT64_C(1) << 63, UINT64_MAX - 4095,
                                       UINT64_MAX - 1,    UINT64_MAX};
static struct verdict verdicts[RANKS];

#define SAYS(words)                                        \
    do {                                                   \
        if (strstr(trireme_last_error(), (words)) == NULL) \
            EXPECT(v, !"the message has not " words);      \
    } while (0)

static bool names(uint64_t number) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, number);
    return strstr(trireme_last_error(), text) != NULL;
}

static void sum_again(struct verdict *v, trireme_communicator *communicator) {
    int32_t one = 1, sum = 0;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                                     TRIREME_REDUCTION_SUM, NULL));
    EXPECT(v, sum == RANKS);
}

static trireme_status add(trireme_model *model, const char *name, trireme_dtype dtype,
                          uint32_t dimensions, const uint64_t *shape) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = dtype;
    parameter.dimensions = dimensions;
    parameter.shape = shape;
    return trireme_model_add_parameter(model, &parameter, NULL);
}

static void allocate(trireme_communicator *communicator, int rank, void *context) {
    (void)context;
    struct verdict *const v = &verdicts[rank];
    for (int i = 0; i < SIZES; ++i) {
        trireme_buffer *buffer = NULL;
        EXPECT_STATUS(v, TRIREME_ERROR_OUT_OF_MEMORY,
                      trireme_buffer_alloc(communicator, kSizes[i], &buffer));
        EXPECT(v, names(kSizes[i]));
        EXPECT(v, buffer == NULL);
    }
    sum_again(v, communicator);
}

static void buffers_beyond_memory_are_refused(void **state) {
    (void)state;
    memset(verdicts, 0, sizeof verdicts);
    run_ranks(RANKS, allocate, NULL);
    assert_verdicts(verdicts, RANKS);
}

/* Extents whose product wraps to something small, and parameters whose sum does. */
static void describe(trireme_communicator *communicator, int rank, void *context) {
    (void)context;
    struct verdict *const v = &verdicts[rank];
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    for (int i = 0; i < SIZES; ++i) {
        EXPECT_STATUS(v, bad, add(model, "one", TRIREME_DTYPE_F64, 1, &kSizes[i]));
        SAYS("has more than 2^48 elements");
        EXPECT(v, names(kSizes[i]));
        const uint64_t shape[3] = {kSizes[i], 8, 4};
        EXPECT_STATUS(v, bad, add(model, "three", TRIREME_DTYPE_F32, 3, shape));
        SAYS("has more than 2^48 elements");
    }
    static const uint64_t kWraps[2] = {UINT64_C(1) << 32, UINT64_C(1) << 32};
    EXPECT_STATUS(v, bad, add(model, "wraps to 0", TRIREME_DTYPE_F32, 2, kWraps));
    static const uint64_t kWrapsToOne[2] = {UINT64_C(274177), UINT64_C(67280421310721)};
    EXPECT_STATUS(v, bad, add(model, "wraps to 1", TRIREME_DTYPE_F32, 2, kWrapsToOne));
    static const uint64_t kHalf = UINT64_C(1) << 47;
    EXPECT_STATUS(v, TRIREME_OK, add(model, "a", TRIREME_DTYPE_F64, 1, &kHalf));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "b", TRIREME_DTYPE_F64, 1, &kHalf));
    EXPECT_STATUS(v, bad, add(model, "c", TRIREME_DTYPE_F64, 0, NULL));
    SAYS("\"c\" brings the model above 2^48 elements");
    trireme_model_destroy(model);
    sum_again(v, communicator);
}

static void parameters_beyond_memory_are_refused(void **state) {
    (void)state;
    memset(verdicts, 0, sizeof verdicts);
    run_ranks(RANKS, describe, NULL);
    assert_verdicts(verdicts, RANKS);
}

/* A small model refuses calls with wrong sizes, and trains as if they had not been made. */
static void exchange(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = &verdicts[rank];
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
    const int field = *(const int *)context;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    shards_of(&options)->share = TRIREME_SHARE_NEVER;
    uint64_t *const fields[] = {&buckets_of(&options)->bytes,
                                &units_of(&options)->prefetch_bytes,
                                &units_of(&options)->minimum_bytes,
                                &units_of(&options)->persistent_bytes,
                                &buckets_of(&options)->first_bytes,
                                &options.memory_limit_bytes};
    for (int i = 0; i < SIZES; ++i) {
        trireme_model *model = NULL;
        trireme_optimizer *optimizer = NULL;
        *fields[field] = kSizes[i];
        if (fields[field] == &options.memory_limit_bytes) {
            options.planned_rule = TRIREME_RULE_ADAMW;
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
        static const uint64_t kFive = 5;
        EXPECT_STATUS(v, TRIREME_OK, add(model, "a", f32, 1, &kFive));
        EXPECT_STATUS(v, TRIREME_OK, add(model, "b", f32, 1, &kFive));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = TRIREME_RULE_SGD;
        rule.learning_rate = 1;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
        float values[10] = {0};
        EXPECT_STATUS(v, bad, trireme_model_broadcast_parameters(model, values, kSizes[i], f32, 0));
        EXPECT(v, names(kSizes[i]));
        EXPECT_STATUS(v, bad, trireme_model_gather_parameters(model, values, kSizes[i], f32));
        EXPECT(v, names(kSizes[i]));
        EXPECT_STATUS(v, bad,
                      trireme_model_gather_parameters(model, values, kSizes[i] + 40,
                                                      TRIREME_DTYPE_BYTES));
        EXPECT_STATUS(v, bad, trireme_model_accumulate_flat(model, values, kSizes[i], f32, 0));
        EXPECT(v, names(kSizes[i]));
        EXPECT_STATUS(v, bad, trireme_optimizer_read_range(optimizer, 0, values, kSizes[i]));
        EXPECT(v, names(kSizes[i]));
        EXPECT_STATUS(v, bad, trireme_optimizer_read_range(optimizer, kSizes[i], values, 4));
        EXPECT(v, names(kSizes[i]));
        EXPECT_STATUS(v, bad, trireme_optimizer_write_range(optimizer, 0, values, kSizes[i]));
        EXPECT(v, names(kSizes[i]));
        void *data = NULL;
        EXPECT_STATUS(v, bad, trireme_model_get_parameter_data(model, kSizes[i], &data, NULL));
        EXPECT(v, names(kSizes[i]));
        EXPECT_STATUS(v, bad, trireme_model_gather_unit(model, kSizes[i]));
        EXPECT(v, names(kSizes[i]));
        for (int k = 0; k < 10; ++k) values[k] = 1;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, values, 10, f32, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 10, f32));
        for (int k = 0; k < 10; ++k) EXPECT(v, values[k] == -1);
        trireme_optimizer_destroy(optimizer);
        trireme_model_destroy(model);
    }
    sum_again(v, communicator);
}

static void sizes_that_a_model_has_not_are_refused(void **state) {
    (void)state;
    for (int field = 0; field < 6; ++field) {
        memset(verdicts, 0, sizeof verdicts);
        run_ranks(RANKS, exchange, &field);
        assert_verdicts(verdicts, RANKS);
    }
}

/* Groups of parameters, of ranks and of axes. */
static void group(trireme_communicator *communicator, int rank, void *context) {
    (void)context;
    struct verdict *const v = &verdicts[rank];
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    static const int32_t kRanks[2] = {0, 1};
    for (int i = 0; i < SIZES; ++i) {
        trireme_communicator *child = NULL;
        EXPECT_STATUS(v, bad,
                      trireme_communicator_subgroup(communicator, kRanks, kSizes[i], NULL, &child));
        EXPECT(v, names(kSizes[i]));
        EXPECT(v, child == NULL);
    }
    static const int32_t kLarge[4] = {65536, 65536, INT32_MAX, 2};
    static const char *const kNames[4] = {"a", "b", "c", "d"};
    for (uint32_t axes = 1; axes <= 4; ++axes) {
        trireme_mesh_options mesh = TRIREME_MESH_OPTIONS_INIT;
        trireme_mesh *made = NULL;
        mesh.axis_count = axes;
        mesh.axis_names = kNames;
        mesh.axis_sizes = kLarge;
        EXPECT_STATUS(v, bad, trireme_mesh_create(communicator, &mesh, &made));
        SAYS("but the communicator has 2 ranks");
        EXPECT(v, made == NULL);
    }
    sum_again(v, communicator);
}

static void groups_of_more_than_there_are_are_refused(void **state) {
    (void)state;
    memset(verdicts, 0, sizeof verdicts);
    run_ranks(RANKS, group, NULL);
    assert_verdicts(verdicts, RANKS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_beyond_memory_are_refused),
        cmocka_unit_test(parameters_beyond_memory_are_refused),
        cmocka_unit_test(sizes_that_a_model_has_not_are_refused),
        cmocka_unit_test(groups_of_more_than_there_are_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
