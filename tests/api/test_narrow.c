/*
 * Models whose parameters have 16 bits: refusals, the library's view of them, and models of several
 * types. test_strategies.c checks that training gives the right bits.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <numbers.h>
#include <options.h>
#include <ranks.h>

#define MOST_RANKS 4
#define F16 TRIREME_DTYPE_F16
#define BF16 TRIREME_DTYPE_BF16
#define F32 TRIREME_DTYPE_F32
#define F64 TRIREME_DTYPE_F64

struct job {
    trireme_strategy strategy;
    int world_size;
    trireme_dtype dtype;
    uint64_t elements; /* of the parameter that overflows */
    struct verdict verdicts[MOST_RANKS];
};

static void run_job(struct job *job, rank_function *function) {
    memset(job->verdicts, 0, sizeof job->verdicts);
    run_ranks(job->world_size, function, job);
    assert_verdicts(job->verdicts, job->world_size);
}

#define FOR_EACH_STRATEGY(job) \
    for ((job)->strategy = 1; (job)->strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++(job)->strategy)

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

static trireme_model_options options_of(const struct job *job) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    units_of(&options)->minimum_bytes = 1;
    options.gradients = TRIREME_GRADIENTS_SUM;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = job->world_size % 2 == 0 ? 2 : 1;
    }
    return options;
}

static trireme_status
add(trireme_model *model, const char *name, trireme_dtype dtype, uint64_t elements) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = dtype;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    return trireme_model_add_parameter(model, &parameter, NULL);
}

/* ---- one 16-bit type ---- */

/* "a" of 7 and "b" of 5 elements. */
static trireme_model *make(struct verdict *v, trireme_communicator *communicator,
                           const struct job *job, trireme_bucket_callback hook) {
    trireme_model_options options = options_of(job);
    buckets_of(&options)->hook = hook;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "a", job->dtype, 7));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "b", job->dtype, 5));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    return model;
}

static void refuse_wrong_types(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_dtype other = job->dtype == F16 ? BF16 : F16;
    trireme_model *model = make(v, communicator, job, NULL);
    uint16_t values[12], before[12];
    float wide[12] = {0};
    double wider[12] = {0};
    for (int i = 0; i < 12; ++i) put_number(job->dtype, i - 4.5, &values[i]);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, values, 12, job->dtype, 0));
    /* Parameters travel in their own type only. */
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_broadcast_parameters(model, wide, 12, F32, 0));
    EXPECT(v, says(job->dtype == F16 ? "parameters are f16" : "parameters are bf16"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_gather_parameters(model, wide, 12, F32));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_gather_parameters(model, values, 12, other));
    /* Gradients in theirs or as f32. */
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_accumulate_flat(model, wider, 12, F64, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_accumulate_flat(model, values, 12, other, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_accumulate_flat(model, values, 12, TRIREME_DTYPE_U16, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_accumulate_flat(model, wide, 11, F32, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_accumulate_flat(model, NULL, 12, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_gradient_ready(model, 0, wider, 7, F64));
    EXPECT(v, says("gradient of 7 elements of f64"));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_gradient_ready(model, 0, values, 7, other));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_gradient_ready(model, 0, wide, 6, F32));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_gradient_ready(model, 0, NULL, 7, F32));
    /* All of that left the pass as it was: it ends well, one gradient of each type. */
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gradient_ready(model, 1, wide, 5, F32));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_model_gradient_ready(model, 1, values, 5, job->dtype));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gradient_ready(model, 0, values, 7, job->dtype));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, before, 12, job->dtype));
    EXPECT(v, memcmp(before, values, sizeof values) == 0);
    trireme_model_destroy(model);
}

static void other_types_are_refused_and_change_nothing(void **state) {
    (void)state;
    struct job job = {.world_size = 2};
    FOR_EACH_STRATEGY(&job) {
        for (job.dtype = F16; job.dtype <= BF16; ++job.dtype) run_job(&job, refuse_wrong_types);
    }
}

static void what_no_parameter_can_have_is_refused(void **state) {
    (void)state;
    struct job job = {.world_size = 1, .strategy = TRIREME_STRATEGY_ZERO1};
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = "local://narrow-alone";
    options.world_size = 1;
    trireme_communicator *communicator = NULL;
    assert_int_equal(trireme_communicator_create(&options, &communicator), TRIREME_OK);
    const trireme_model_options model_options = options_of(&job);
    trireme_model *model = NULL;
    assert_int_equal(trireme_model_create(communicator, &model_options, &model), TRIREME_OK);
    for (trireme_dtype dtype = TRIREME_DTYPE_I8; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
        if (dtype >= F16 && dtype <= F64) continue;
        assert_int_equal(add(model, "no", dtype, 3), TRIREME_ERROR_UNSUPPORTED);
        assert_true(says("a parameter is f64, f32, f16 or bf16"));
    }
    /* One type a unit, and of two names for one parameter. */
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "first";
    parameter.unit = "unit";
    parameter.dtype = F16;
    assert_int_equal(trireme_model_add_parameter(model, &parameter, NULL), TRIREME_OK);
    parameter.name = "second";
    parameter.dtype = BF16;
    assert_int_equal(trireme_model_add_parameter(model, &parameter, NULL),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says("is bf16, but unit \"unit\" is f16"));
    parameter.tied_to = "first";
    parameter.dtype = F32;
    assert_int_equal(trireme_model_add_parameter(model, &parameter, NULL),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    trireme_model_destroy(model);
    trireme_communicator_destroy(communicator);
}

static void name_two_types(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    const trireme_model_options options = options_of(job);
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "a", rank == 1 ? BF16 : F16, 7));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("f16 [7] on rank 0") && says("bf16 [7] on rank 1"));
    trireme_model_destroy(model);
}

static void ranks_that_name_two_types_are_told_so(void **state) {
    (void)state;
    struct job job = {.world_size = 2};
    FOR_EACH_STRATEGY(&job) run_job(&job, name_two_types);
}

static void ask_for_wrong_ways(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job);
    trireme_model *model = NULL;
    for (trireme_dtype dtype = -1; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
        if (dtype == 0 || dtype == F16 || dtype == BF16) continue;
        options.reduce_dtype = dtype;
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_model_create(communicator, &options, &model));
        EXPECT(v, says("options.reduce_dtype") && model == NULL);
    }
    options.reduce_dtype = F16;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED, add(model, "wide", F64, 3));
    EXPECT(v, says("a trained parameter of f64 in a model with reduce_dtype f16"));
    trireme_parameter_options frozen = TRIREME_PARAMETER_OPTIONS_INIT;
    frozen.name = "frozen";
    frozen.dtype = F64;
    frozen.flags = TRIREME_PARAMETER_FLAG_FROZEN;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &frozen, NULL));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "trained", F32, 3));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    if (job->strategy == TRIREME_STRATEGY_ZERO1) {
        trireme_optimizer_options sweep = TRIREME_OPTIMIZER_OPTIONS_INIT;
        sweep.kind = TRIREME_RULE_SGD;
        sweep.flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP;
        trireme_optimizer *optimizer = NULL;
        EXPECT_STATUS(v, TRIREME_ERROR_UNSUPPORTED,
                      trireme_optimizer_create(model, &sweep, &optimizer));
        EXPECT(v, says("TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with reduce_dtype") && optimizer == NULL);
    }
    trireme_model_destroy(model);
    /* Ranks that want to give in different types. */
    options.reduce_dtype = rank == 0 ? F16 : BF16;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "trained", F32, 3));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_seal(model));
    EXPECT(v, says("reduce_dtype"));
    trireme_model_destroy(model);
}

static void ways_that_gradients_cannot_travel_are_refused(void **state) {
    (void)state;
    struct job job = {.world_size = 2};
    FOR_EACH_STRATEGY(&job) run_job(&job, ask_for_wrong_ways);
}

/* Finite as it is handed in, and inf as it travels: the last rank's. */
static void overflow_on_the_way(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job);
    options.reduce_dtype = F16;
    buckets_of(&options)->bytes = 1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "first", F32, 5));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "second", F32, job->elements));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    loss_scale_of(&rule)->initial_scale = 1;
    loss_scale_of(&rule)->minimum_scale = 0.5;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    const uint64_t all = 5 + job->elements;
    float *const values = calloc(all, sizeof *values);
    float *const gradients = calloc(all, sizeof *gradients);
    for (uint64_t i = 0; i < all; ++i) gradients[i] = 65504;
    if (rank == job->world_size - 1) gradients[8] = 65520;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(model, values, all, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, all, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale_info(optimizer, &info));
    EXPECT(v, info.skipped == 1 && info.parameter == 1 && info.rank == job->world_size - 1);
    gradients[8] = 65504;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, all, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, all, F32));
    const float wanted = -65504.0f * (float)job->world_size * 2;
    for (uint64_t i = 0; i < all; ++i) EXPECT(v, values[i] == wanted);
    free(values);
    free(gradients);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void who_brought_what_became_inf_on_its_way_is_known(void **state) {
    (void)state;
    for (int world = 1; world <= 3; ++world) {
        struct job job = {.world_size = world, .elements = 7};
        FOR_EACH_STRATEGY(&job) run_job(&job, overflow_on_the_way);
        job.elements = 9000; /* between hosts, more bytes than travel with a call */
        FOR_EACH_STRATEGY(&job) run_job(&job, overflow_on_the_way);
    }
}

static int32_t TRIREME_CALLCONV sees_f32(const trireme_bucket *bucket, void *data) {
    (void)data;
    return bucket->dtype == F32 ? 0 : 1;
}

/* Gradients and squares of them that f16 has no numbers for. */
static void train_and_look(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, communicator, job, sees_f32);
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAM;
    options.learning_rate = 0.01;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    uint16_t ones[12], values[12] = {0};
    float gradients[12];
    for (int i = 0; i < 12; ++i) {
        put_number(job->dtype, 1, &ones[i]);
        gradients[i] = ldexpf(1 + (float)rank, -20);
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, ones, 12, job->dtype, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 12, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 12, job->dtype));
    const int n = job->world_size;
    const float sum = ldexpf((float)(n * (n + 1) / 2), -20);
    /* The rule by hand, in f32: the first step of Adam, then one rounding. */
    const float m = (float)(1 - 0.9) * sum, squares = (float)(1 - 0.999) * sum * sum;
    const float root = sqrtf(squares) * (float)(1 / sqrt(1 - 0.999));
    const float p = 1 - (float)(0.01 / (1 - 0.9)) * m / (root + (float)1e-8);
    uint16_t wanted = 0;
    put_number(job->dtype, p, &wanted);
    for (int i = 0; i < 12; ++i) EXPECT(v, values[i] == wanted);

    /* Parameters are shown in 16 bits, state in 32. */
    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    for (uint64_t i = 0; i < count; ++i) {
        trireme_state_range range = TRIREME_STATE_RANGE_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
        const bool parameter = range.kind == TRIREME_STATE_KIND_PARAMETER;
        EXPECT(v, range.dtype == (parameter ? job->dtype : F32));
        for (uint64_t k = 0; k < range.count; ++k) {
            if (parameter) {
                EXPECT(v, ((const uint16_t *)range.data)[k] == wanted);
            } else {
                EXPECT(v, ((const float *)range.data)[k] == (range.vector == 0 ? m : squares));
            }
        }
    }
    trireme_unit_info unit = TRIREME_UNIT_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_unit_info(model, 1, &unit));
    EXPECT(v, unit.dtype == job->dtype);
    /* The saved state restores both. */
    uint64_t bytes = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    char *const saved = malloc(bytes);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, saved, bytes, NULL));
    uint16_t results[2][12] = {{0}};
    for (int round = 0; round < 2; ++round) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, ones, 12, job->dtype, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, results[round], 12, job->dtype));
        if (round == 0) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, saved, bytes));
        }
    }
    EXPECT(v, memcmp(results[0], results[1], sizeof results[0]) == 0);
    EXPECT(v, memcmp(results[0], values, sizeof values) != 0);
    free(saved);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void sums_and_state_have_32_bits(void **state) {
    (void)state;
    struct job job = {0};
    for (job.world_size = 1; job.world_size <= MOST_RANKS; ++job.world_size) {
        FOR_EACH_STRATEGY(&job) {
            for (job.dtype = F16; job.dtype <= BF16; ++job.dtype) run_job(&job, train_and_look);
        }
    }
}

static void overflow(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = make(v, communicator, job, NULL);
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    /* As many as fit, just beyond, a NaN, and sums that only f32 holds. */
    float gradients[12] = {-65504.0f / 4, -65536.0f / 4, NAN, 1e30f, -1e30f};
    if (rank > 0) gradients[3] = -1e30f, gradients[4] = 1e30f;
    if (job->dtype == F16) {
        gradients[5] = ldexpf(1, -24) / 4; /* the smallest subnormal */
    } else {
        gradients[5] = ldexpf(1, -133) / 4;
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 12, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    uint16_t values[12] = {0};
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, values, 12, job->dtype));
    if (job->dtype == F16) {
        EXPECT(v, values[0] == 0x7bff);
        EXPECT(v, values[1] == 0x7c00);
        EXPECT(v, values[2] == 0x7e00);
        EXPECT(v, values[5] == 0x8001);
    } else {
        EXPECT(v, values[0] == 0x4780); /* 65,536 */
        EXPECT(v, values[1] == 0x4780);
        EXPECT(v, values[2] == 0x7fc0);
        EXPECT(v, values[5] == 0x8001);
    }
    EXPECT(v, number_at(job->dtype, &values[6]) == 0);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void the_ends_of_a_type_are_those_of_its_format(void **state) {
    (void)state;
    struct job job = {.world_size = 4};
    FOR_EACH_STRATEGY(&job) {
        for (job.dtype = F16; job.dtype <= BF16; ++job.dtype) run_job(&job, overflow);
    }
}

/* ---- several types ---- */

static const struct {
    const char *name;
    trireme_dtype dtype;
    uint64_t elements;
} kMixed[] = {{"h", F16, 3},  {"d", F64, 5},   {"s", F32, 7},  {"b", BF16, 9},
              {"h2", F16, 1}, {"s2", F32, 11}, {"b2", BF16, 5}};
enum { MIXED = sizeof kMixed / sizeof kMixed[0] };

static double start_of(int parameter, uint64_t i) {
    return 0.5 * (double)(i % 5) + parameter;
}
static double gradient_of(int parameter, uint64_t i, int rank) {
    return 0.25 * (double)(i % 3) + rank + 0.125 * parameter;
}

static int32_t TRIREME_CALLCONV halve(const trireme_update *update, void *data) {
    (void)data;
    const trireme_dtype wide = update->dtype == F64 ? F64 : F32;
    if (update->dtype != kMixed[update->parameter].dtype) return 1;
    if (update->gradient_dtype != wide || update->reserved != 0) return 2;
    if (update->struct_size != sizeof *update) return 3;
    const uint64_t size = trireme_dtype_bytes(update->dtype);
    const uint64_t wide_size = trireme_dtype_bytes(wide);
    for (uint64_t i = 0; i < update->count; ++i) {
        char *const p = (char *)update->parameters + i * size;
        const double g = number_at(wide, (const char *)update->gradients + i * wide_size);
        const double m = number_at(wide, (char *)update->states[0] + i * wide_size);
        put_number(wide, m + g, (char *)update->states[0] + i * wide_size);
        put_number(update->dtype, number_at(update->dtype, p) - (m + g) / 2, p);
    }
    return 0;
}

static void train_mixture(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job);
    units_of(&options)->minimum_bytes = 8;
    shards_of(&options)->share = TRIREME_SHARE_NEVER; /* the test writes to them */
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    uint64_t bytes = 0, wide_bytes = 0, elements = 0;
    for (int i = 0; i < MIXED; ++i) {
        EXPECT_STATUS(v, TRIREME_OK,
                      add(model, kMixed[i].name, kMixed[i].dtype, kMixed[i].elements));
        elements += kMixed[i].elements;
        bytes += kMixed[i].elements * trireme_dtype_bytes(kMixed[i].dtype);
        wide_bytes += kMixed[i].elements * (kMixed[i].dtype == F64 ? 8 : 4);
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_USER;
    user_rule_of(&rule)->update = halve;
    user_rule_of(&rule)->state_count = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    /* Nothing is padded, whatever the lengths. */
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
    if (job->strategy == TRIREME_STRATEGY_DATA_PARALLEL || job->world_size == 1) {
        EXPECT(v, memory.allocated_parameters == bytes);
        EXPECT(v, memory.allocated_gradients == wide_bytes);
        EXPECT(v, memory.allocated_optimizer_state == wide_bytes);
    }
    /* No flat vector holds them. */
    char flat[400] = {0};
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_gather_parameters(model, flat, elements, F32));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_accumulate_flat(model, flat, elements, F32, 0));
    EXPECT(v, says("have different dtypes"));

    uint64_t count = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &count));
    if (job->strategy == TRIREME_STRATEGY_ZERO3) {
        for (uint64_t i = 0; i < count; ++i) {
            trireme_state_range range = TRIREME_STATE_RANGE_INIT;
            EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range(optimizer, i, &range));
            for (uint64_t k = 0; range.kind == TRIREME_STATE_KIND_PARAMETER && k < range.count;
                 ++k) {
                put_number(range.dtype, start_of((int)range.parameter, range.first + k),
                           (char *)range.data + k * trireme_dtype_bytes(range.dtype));
            }
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    } else {
        for (int i = 0; i < MIXED; ++i) {
            void *data = NULL;
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, (uint64_t)i));
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_get_parameter_data(model, (uint64_t)i, &data, NULL));
            for (uint64_t k = 0; data != NULL && k < kMixed[i].elements; ++k) {
                put_number(kMixed[i].dtype, start_of(i, k),
                           (char *)data + k * trireme_dtype_bytes(kMixed[i].dtype));
            }
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, (uint64_t)i));
        }
    }
    for (int step = 0; step < 2; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        for (int i = MIXED - 1; i >= 0; --i) {
            const bool narrow = (rank + i + step) % 2 == 0;
            const trireme_dtype wide = kMixed[i].dtype == F64 ? F64 : F32;
            const trireme_dtype dtype = narrow ? kMixed[i].dtype : wide;
            char gradient[16 * 8 + 1];
            char *const at = gradient + 1; /* at no multiple of anything */
            for (uint64_t k = 0; k < kMixed[i].elements; ++k) {
                put_number(dtype, gradient_of(i, k, rank), at + k * trireme_dtype_bytes(dtype));
            }
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_gradient_ready(model, (uint64_t)i, at, kMixed[i].elements,
                                                       dtype));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    for (int i = 0; i < MIXED; ++i) {
        void *data = NULL;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, (uint64_t)i));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_get_parameter_data(model, (uint64_t)i, &data, NULL));
        for (uint64_t k = 0; data != NULL && k < kMixed[i].elements; ++k) {
            double sum = 0; /* exact: few bits */
            for (int r = 0; r < job->world_size; ++r) sum += gradient_of(i, k, r);
            char wanted[8] = {0};
            put_number(kMixed[i].dtype, start_of(i, k) - sum / 2, wanted);
            put_number(kMixed[i].dtype, number_at(kMixed[i].dtype, wanted) - sum, wanted);
            const uint64_t size = trireme_dtype_bytes(kMixed[i].dtype);
            EXPECT(v, memcmp((char *)data + k * size, wanted, size) == 0);
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, (uint64_t)i));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void models_of_all_types_train(void **state) {
    (void)state;
    struct job job = {0};
    for (job.world_size = 1; job.world_size <= MOST_RANKS; ++job.world_size) {
        for (job.strategy = 1; job.strategy <= TRIREME_STRATEGY_ZERO3; ++job.strategy) {
            run_job(&job, train_mixture);
        }
    }
}

/* Units of f32 and of bf16: gradients are one f32 vector, parameters are not. */
static void hand_in_one_vector(trireme_communicator *communicator, int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model_options options = options_of(job);
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "wide", F32, 3));
    EXPECT_STATUS(v, TRIREME_OK, add(model, "narrow", BF16, 4));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    EXPECT(v, info.buckets == 1); /* they share one */
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &rule, &optimizer));
    float gradients[7];
    for (int i = 0; i < 7; ++i) gradients[i] = (float)(i + rank) / 2;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_accumulate_flat(model, gradients, 7, BF16, 0));
    EXPECT(v, strstr(trireme_last_error(), "the model's gradients are f32") != NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_model_gather_parameters(model, gradients, 7, F32));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_accumulate_flat(model, gradients, 7, F32, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    for (int unit = 0; unit < 2; ++unit) {
        void *data = NULL;
        uint64_t count = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, (uint64_t)unit));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_get_parameter_data(model, (uint64_t)unit, &data, &count));
        for (uint64_t i = 0; data != NULL && i < count; ++i) {
            float sum = 0;
            for (int r = 0; r < job->world_size; ++r) sum += (float)((int)i + 3 * unit + r) / 2;
            const trireme_dtype dtype = unit == 0 ? F32 : BF16;
            const char *const at = (const char *)data + i * trireme_dtype_bytes(dtype);
            EXPECT(v, number_at(dtype, at) == -sum);
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, (uint64_t)unit));
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void one_f32_vector_holds_gradients_of_f32_and_bf16(void **state) {
    (void)state;
    struct job job = {0};
    for (job.world_size = 1; job.world_size <= MOST_RANKS; ++job.world_size) {
        FOR_EACH_STRATEGY(&job) run_job(&job, hand_in_one_vector);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_types_are_refused_and_change_nothing),
        cmocka_unit_test(what_no_parameter_can_have_is_refused),
        cmocka_unit_test(ranks_that_name_two_types_are_told_so),
        cmocka_unit_test(ways_that_gradients_cannot_travel_are_refused),
        cmocka_unit_test(who_brought_what_became_inf_on_its_way_is_known),
        cmocka_unit_test(sums_and_state_have_32_bits),
        cmocka_unit_test(the_ends_of_a_type_are_those_of_its_format),
        cmocka_unit_test(models_of_all_types_train),
        cmocka_unit_test(one_f32_vector_holds_gradients_of_f32_and_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
