/* Models: the order of calls, the refusals, and the ranks' agreement. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#define MOST_RANKS 5

struct answer {
    trireme_status status;
    char message[320];
};

static struct answer ask(trireme_status status) {
    struct answer answer = {.status = status};
    if (status != TRIREME_OK) {
        snprintf(answer.message, sizeof answer.message, "%s", trireme_last_error());
    }
    return answer;
}

static void expect(struct answer answer, trireme_status status, const char *words) {
    if (answer.status != status) print_error("%s\n", answer.message);
    assert_int_equal(answer.status, status);
    if (words == NULL) return;
    if (strstr(answer.message, words) == NULL) {
        print_error("\"%s\" does not say \"%s\"\n", answer.message, words);
        fail();
    }
}

static trireme_model *
new_model(trireme_communicator *communicator, trireme_strategy strategy, uint32_t leaves) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    options.leaves = leaves;
    units_of(&options)->minimum_bytes = 1;
    shards_of(&options)->share = TRIREME_SHARE_NEVER; /* units are really gathered */
    trireme_model *model = NULL;
    if (trireme_model_create(communicator, &options, &model) != TRIREME_OK) abort();
    return model;
}

static trireme_status
add(trireme_model *model, const char *name, uint64_t elements, trireme_dtype dtype) {
    trireme_parameter_options options = TRIREME_PARAMETER_OPTIONS_INIT;
    options.name = name;
    options.dtype = dtype;
    options.dimensions = 1;
    options.shape = &elements;
    return trireme_model_add_parameter(model, &options, NULL);
}

/* ---- disagreement ---- */

struct disagreement {
    int who; /* what the last rank does otherwise */
    struct answer seals[MOST_RANKS];
    struct answer later[MOST_RANKS];
    struct answer sums[MOST_RANKS];
    float sum[MOST_RANKS];
};

static void seal_otherwise(trireme_communicator *communicator, int rank, void *context) {
    struct disagreement *const d = context;
    int32_t size = 0;
    if (trireme_communicator_get_world_size(communicator, &size) != TRIREME_OK) abort();
    const bool odd = rank == size - 1;
    trireme_model *const model =
        new_model(communicator,
                  odd && d->who == 0 ? TRIREME_STRATEGY_ZERO2 : TRIREME_STRATEGY_ZERO1,
                  odd && d->who == 1 ? 4 : 0);
    (void)add(model, "w1", 4, TRIREME_DTYPE_F32);
    (void)add(model, odd && d->who == 2 ? "w3" : "w2", odd && d->who == 3 ? 64 : 128,
              odd && d->who == 4 ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32);
    if (!(odd && d->who == 5)) (void)add(model, "more", 1, TRIREME_DTYPE_F32);
    d->seals[rank] = ask(trireme_model_seal(model));
    d->later[rank] = ask(trireme_model_gather_unit(model, 0));
    trireme_model_destroy(model);
    const float one = 1;
    d->sums[rank] = ask(trireme_all_reduce(communicator, &one, &d->sum[rank], 1, TRIREME_DTYPE_F32,
                                           TRIREME_REDUCTION_SUM, NULL));
}

static void ranks_that_register_differently_hear_the_first_difference_and_go_on(void **state) {
    (void)state;
    const char *const words[] = {
        "strategy is zero1 on rank 0 and zero2 on rank 2",
        "leaves is 0 on rank 0 and 4 on rank 2",
        "parameter 1 is \"w2\" f32 [128] on rank 0 and \"w3\" f32 [128] on rank "
        "2",
        "parameter 1 is \"w2\" f32 [128] on rank 0 and \"w2\" f32 [64] on rank 2",
        "parameter 1 is \"w2\" f32 [128] on rank 0 and \"w2\" f64 [128] on rank "
        "2",
        "parameter 2 is \"more\" f32 [1] on rank 0 and missing on rank 2",
    };
    for (int who = 0; who < 6; ++who) {
        struct disagreement d = {.who = who};
        run_ranks(3, seal_otherwise, &d);
        for (int rank = 0; rank < 3; ++rank) {
            expect(d.seals[rank], TRIREME_ERROR_MISMATCH, words[who]);
            expect(d.later[rank], TRIREME_ERROR_MISMATCH, words[who]);
            expect(d.sums[rank], TRIREME_OK, NULL);
            assert_true(d.sum[rank] == 3);
        }
    }
}

/* ---- the order of calls ---- */

enum { CALLS = 23 };

struct order {
    trireme_strategy strategy;
    struct answer answers[2][CALLS];
    float values[2][6];
};

static trireme_optimizer *sgd(trireme_model *model) {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 0.5;
    trireme_optimizer *optimizer = NULL;
    if (trireme_optimizer_create(model, &options, &optimizer) != TRIREME_OK) abort();
    return optimizer;
}

/* Wrong calls between the right ones of one step; those must not notice. */
static void call_in_wrong_order(trireme_communicator *communicator, int rank, void *context) {
    struct order *const order = context;
    struct answer *a = order->answers[rank];
    const float start[6] = {1, 2, 3, 4, 5, 6}, g[6] = {2, 2, 2, 2, 2, 2};
    float values[6];
    uint32_t leaf = 0;
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    trireme_model *const model = new_model(communicator, order->strategy, 0);
    (void)add(model, "a", 4, TRIREME_DTYPE_F32);
    (void)add(model, "b", 2, TRIREME_DTYPE_F32);
    *a++ = ask(trireme_model_get_info(model, &info));
    *a++ = ask(trireme_model_begin_backward(model, 0));
    *a++ = ask(trireme_model_seal(model)); /* good */
    *a++ = ask(trireme_model_seal(model));
    *a++ = ask(add(model, "c", 1, TRIREME_DTYPE_F32));
    *a++ = ask(trireme_model_get_leaf(model, 0, &leaf));
    *a++ = ask(trireme_model_release_unit(model, 0));
    *a++ =
        ask(trireme_model_broadcast_parameters(model, start, 6, TRIREME_DTYPE_F32, 0)); /* good */
    trireme_optimizer *const optimizer = sgd(model);
    *a++ = ask(trireme_optimizer_step(optimizer));
    *a++ = ask(trireme_model_gradient_ready(model, 0, g, 4, TRIREME_DTYPE_F32));
    *a++ = ask(trireme_model_end_backward(model));
    *a++ = ask(trireme_model_begin_backward(model, 0)); /* good */
    *a++ = ask(trireme_model_begin_backward(model, 0));
    *a++ = ask(trireme_model_check_replicas(model));
    *a++ = ask(trireme_model_end_backward(model));
    *a++ = ask(trireme_model_gradient_ready(model, 1, g, 2, TRIREME_DTYPE_F32)); /* good */
    *a++ = ask(trireme_model_gradient_ready(model, 1, g, 2, TRIREME_DTYPE_F32));
    *a++ = ask(trireme_model_gradient_ready(model, 0, g, 4, TRIREME_DTYPE_F32)); /* good */
    *a++ = ask(trireme_model_end_backward(model));                               /* good */
    *a++ = ask(trireme_model_begin_backward(model, 0));
    *a++ = ask(trireme_model_broadcast_parameters(model, start, 6, TRIREME_DTYPE_F32, 0));
    *a++ = ask(trireme_optimizer_step(optimizer));                                    /* good */
    *a++ = ask(trireme_model_gather_parameters(model, values, 6, TRIREME_DTYPE_F32)); /* good */
    memcpy(order->values[rank], values, sizeof values);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void calls_in_the_wrong_order_are_refused_and_forgotten(void **state) {
    (void)state;
    const char *const words[CALLS] =
        {"not sealed",
         "not sealed",
         NULL,
         "is sealed",
         "is sealed",
         "not reproducible",
         "unit 0 (\"a\") is not gathered",
         NULL,
         "no backward pass was made",
         "no backward pass is under way",
         "no backward pass is under way",
         NULL,
         "a backward pass is under way",
         "a step is under way",
         "gradients of 2 of 2 parameters are missing: parameter 0 (\"a\"), parameter 1",
         NULL,
         "parameter 1 (\"b\") was handed in before",
         NULL,
         NULL,
         "the last pass of this step",
         "a step is under way",
         NULL,
         NULL};
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        struct order order = {.strategy = strategy};
        run_ranks(2, call_in_wrong_order, &order);
        for (int rank = 0; rank < 2; ++rank) {
            for (int i = 0; i < CALLS; ++i) {
                expect(order.answers[rank][i],
                       words[i] == NULL ? TRIREME_OK : TRIREME_ERROR_INVALID_STATE, words[i]);
            }
            for (int i = 0; i < 6; ++i) assert_true(order.values[rank][i] == (float)i);
        }
    }
}

/* ---- arguments ---- */

enum { MOST_ANSWERS = 60 };

struct arguments {
    int count;
    struct answer answers[MOST_ANSWERS];
    trireme_status wanted[MOST_ANSWERS];
    const char *words[MOST_ANSWERS];
};

static void
want(struct arguments *arguments, trireme_status answer, trireme_status wanted, const char *words) {
    if (arguments->count == MOST_ANSWERS) abort();
    arguments->answers[arguments->count] = ask(answer);
    arguments->wanted[arguments->count] = wanted;
    arguments->words[arguments->count++] = words;
}

static void give_bad_arguments(trireme_communicator *communicator, int rank, void *context) {
    (void)rank;
    struct arguments *const all = context;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    trireme_model *model = NULL;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    want(all, trireme_model_create(communicator, NULL, &model), bad, "options is NULL");
    want(all, trireme_model_create(communicator, &options, &model), bad, "options.strategy 0");
    options.strategy = TRIREME_STRATEGY_ZERO3;
    want(all, trireme_model_create(communicator, &options, NULL), bad, "out_model is NULL");
    want(all, trireme_model_create(NULL, &options, &model), TRIREME_ERROR_INVALID_HANDLE, NULL);
    options.gradients = 2;
    want(all, trireme_model_create(communicator, &options, &model), bad, "options.gradients 2");
    options.gradients = 0;
    options.leaves = 65537;
    want(all, trireme_model_create(communicator, &options, &model), bad, "options.leaves 65537");
    options.leaves = 2;
    options.unused = 3;
    want(all, trireme_model_create(communicator, &options, &model), bad, "options.unused 3");
    options.unused = 0;
    options.flags = 1024;
    want(all, trireme_model_create(communicator, &options, &model), bad, "options.flags 1024");
    options.flags = 0;
    shards_of(&options)->ranks = 1;
    want(all, trireme_model_create(communicator, &options, &model), bad,
         "options.shards.ranks 1 is for");
    options.strategy = TRIREME_STRATEGY_HYBRID_SHARD;
    shards_of(&options)->ranks = 2;
    want(all, trireme_model_create(communicator, &options, &model), bad,
         "options.shards.ranks 2 does not divide a world of 1");
    options.strategy = TRIREME_STRATEGY_ZERO3;
    shards_of(&options)->ranks = 0;
    options.struct_size = 8;
    want(all, trireme_model_create(communicator, &options, &model), bad,
         "options.struct_size is 8");
    struct {
        trireme_model_options options;
        uint64_t newer;
    } grown = {TRIREME_MODEL_OPTIONS_INIT, 1};
    grown.options.strategy = 1;
    grown.options.struct_size = sizeof grown;
    want(all, trireme_model_create(communicator, &grown.options, &model), TRIREME_ERROR_UNSUPPORTED,
         "newer");
    if (model != NULL) abort();

    options.struct_size = sizeof options;
    if (trireme_model_create(communicator, &options, &model) != TRIREME_OK) abort();
    want(all, trireme_model_add_parameter(model, NULL, NULL), bad, "options is NULL");
    if (add(model, "a", 3, TRIREME_DTYPE_F32) != TRIREME_OK) abort();
    want(all, add(model, "a", 3, TRIREME_DTYPE_F32), bad, "is taken");
    if (add(model, "b", 2, TRIREME_DTYPE_F64) != TRIREME_OK) abort();
    if (trireme_model_seal(model) != TRIREME_OK) abort();

    float values[5] = {0};
    void *data = values;
    uint32_t leaf = 9;
    trireme_unit_info unit = TRIREME_UNIT_INFO_INIT;
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    want(all, trireme_model_get_info(model, NULL), bad, "out_info is NULL");
    info.struct_size = 3;
    want(all, trireme_model_get_info(model, &info), bad, "out_info.struct_size is 3");
    want(all, trireme_model_get_memory(model, NULL), bad, "out_memory is NULL");
    want(all, trireme_model_get_statistics(model, NULL), bad, "out_statistics is NULL");
    trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
    statistics.struct_size = 55;
    want(all, trireme_model_get_statistics(model, &statistics), bad,
         "out_statistics.struct_size is 55");
    want(all, trireme_model_get_unit_info(model, 2, &unit), bad, "unit 2 of a model with 2");
    want(all, trireme_model_gather_unit(model, 9), bad, "unit 9 of a model with 2");
    want(all, trireme_model_release_unit(model, 2), bad, "unit 2 of a model with 2");
    want(all, trireme_model_get_parameter_data(model, 2, &data, NULL), bad,
         "parameter 2 of a model");
    want(all, trireme_model_get_parameter_data(model, 0, NULL, NULL), bad, "out_data is NULL");
    want(all, trireme_model_get_parameter_data(model, 0, &data, NULL), TRIREME_ERROR_INVALID_STATE,
         "unit 0 (\"a\") is not gathered");
    if (data != values) abort();
    want(all, trireme_model_gather_parameters(model, values, 4, TRIREME_DTYPE_F32), bad, "count 4");
    want(all, trireme_model_gather_parameters(model, values, 5, TRIREME_DTYPE_F32), bad,
         "different dtypes");
    want(all, trireme_model_broadcast_parameters(model, values, 5, TRIREME_DTYPE_F32, 1), bad,
         "root 1");
    want(all, trireme_model_get_leaf(model, 2, &leaf), bad, "micro_batch 2 of 2");
    want(all, trireme_model_get_leaf(model, 0, NULL), bad, "out_leaf is NULL");
    want(all, trireme_model_begin_backward(model, 4), bad, "flags 4");
    want(all, trireme_model_begin_backward(model, TRIREME_BACKWARD_FLAG_ABSENT),
         TRIREME_ERROR_UNSUPPORTED, "without TRIREME_MODEL_FLAG_UNEVEN");
    want(all, trireme_model_begin_backward(model, TRIREME_BACKWARD_FLAG_NO_SYNC),
         TRIREME_ERROR_UNSUPPORTED, "NO_SYNC");
    if (trireme_model_begin_backward(model, 0) != TRIREME_OK) abort();
    want(all, trireme_model_gradient_ready(model, 2, values, 3, TRIREME_DTYPE_F32), bad,
         "parameter 2 of a model");
    want(all, trireme_model_gradient_ready(model, 0, values, 2, TRIREME_DTYPE_F32), bad,
         "2 elements of f32");
    want(all, trireme_model_gradient_ready(model, 0, values, 3, TRIREME_DTYPE_F64), bad, "f64");
    want(all, trireme_model_gradient_ready(model, 0, NULL, 3, TRIREME_DTYPE_F32), bad,
         "gradient is NULL");
    trireme_model_destroy(model);
    trireme_model_destroy(model);
    trireme_model_destroy(NULL);
    want(all, trireme_model_seal(model), TRIREME_ERROR_INVALID_HANDLE, NULL);
    want(all, trireme_model_end_backward(NULL), TRIREME_ERROR_INVALID_HANDLE, NULL);
}

static void bad_arguments_are_named(void **state) {
    (void)state;
    static struct arguments all;
    run_ranks(1, give_bad_arguments, &all);
    assert_true(all.count > 30);
    for (int i = 0; i < all.count; ++i) expect(all.answers[i], all.wanted[i], all.words[i]);
}

static void names_of_strategies_go_both_ways(void **state) {
    (void)state;
    const struct {
        const char *text;
        trireme_strategy strategy;
    } names[] = {{"data_parallel", 1}, {"zero1", 2},      {"zero2", 3},         {"zero3", 4},
                 {"ddp", 1},           {"NO_SHARD", 1},   {"shard_grad_op", 3}, {"FSDP", 4},
                 {"full_shard", 4},    {"NoShard", 1},    {"ShardGradOp", 3},   {"FullShard", 4},
                 {"HybridShard", 5},   {"full-shard", 4}, {"HYBRID_SHARD", 5}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        trireme_strategy strategy = 0;
        assert_int_equal(trireme_strategy_parse(names[i].text, &strategy), TRIREME_OK);
        assert_int_equal(strategy, names[i].strategy);
        if (i < 4) assert_string_equal(trireme_strategy_name(strategy), names[i].text);
    }
    trireme_strategy strategy = 77;
    const char *const wrong[] = {"zero4", "", "_", "Full", "FullShards", "full shard"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        assert_int_equal(trireme_strategy_parse(wrong[i], &strategy),
                         TRIREME_ERROR_INVALID_ARGUMENT);
    }
    assert_int_equal(trireme_strategy_parse(NULL, &strategy), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_strategy_parse("zero1", NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(strategy, 77);
    assert_string_equal(trireme_strategy_name(0), "unknown");
    assert_string_equal(trireme_strategy_name(6), "unknown");
}

/* ---- units in flight ---- */

struct flight {
    struct answer first;
    struct answer step;
    struct answer set;
    double values[2][3];
    uint64_t before, during, after, allocated_during;
};

static void keep_everything_gathered(trireme_communicator *communicator, int rank, void *context) {
    struct flight *const flight = (struct flight *)context + rank;
    const double start[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    trireme_model *const model = new_model(communicator, TRIREME_STRATEGY_ZERO3, 0);
    const char *const names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; ++i) (void)add(model, names[i], 3, TRIREME_DTYPE_F64);
    flight->first = ask(trireme_model_seal(model));
    trireme_optimizer *const optimizer = sgd(model);
    flight->set = ask(trireme_model_broadcast_parameters(model, start, 9, TRIREME_DTYPE_F64, 0));
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    trireme_status status = trireme_model_get_memory(model, &memory);
    flight->before = memory.planned_working;
    for (uint64_t unit = 0; unit < 3; ++unit) {
        if (status == TRIREME_OK) status = trireme_model_gather_unit(model, unit);
        if (status == TRIREME_OK) status = trireme_model_gather_unit(model, unit); /* counts */
        if (status == TRIREME_OK) status = trireme_model_release_unit(model, unit);
    }
    for (int i = 0; i < 2; ++i) {
        void *data = NULL;
        if (status == TRIREME_OK) {
            status = trireme_model_get_parameter_data(model, (uint64_t)i * 2, &data, NULL);
        }
        if (status == TRIREME_OK) memcpy(flight->values[i], data, 3 * sizeof(double));
    }
    if (status == TRIREME_OK) status = trireme_model_get_memory(model, &memory);
    flight->during = memory.planned_working;
    flight->allocated_during = memory.allocated_working;
    if (flight->first.status == TRIREME_OK) flight->first = ask(status);
    double gradients[9] = {0};
    status = trireme_model_accumulate_flat(model, gradients, 9, TRIREME_DTYPE_F64, 0);
    flight->step = ask(trireme_optimizer_step(optimizer));
    for (uint64_t unit = 0; unit < 3 && status == TRIREME_OK; ++unit) {
        status = trireme_model_release_unit(model, unit);
    }
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    if (status == TRIREME_OK) status = trireme_model_get_memory(model, &memory);
    flight->after = memory.allocated_working;
    if (flight->first.status == TRIREME_OK) flight->first = ask(status);
    trireme_model_destroy(model);
    trireme_optimizer_destroy(optimizer);
}

static void units_may_all_be_gathered_but_not_at_the_step(void **state) {
    (void)state;
    struct flight flights[3];
    memset(flights, 0, sizeof flights);
    run_ranks(3, keep_everything_gathered, flights);
    for (int rank = 0; rank < 3; ++rank) {
        const struct flight *const flight = &flights[rank];
        expect(flight->first, TRIREME_OK, NULL);
        expect(flight->set, TRIREME_OK, NULL);
        expect(flight->step, TRIREME_ERROR_INVALID_STATE, "unit 0 (\"a\") is gathered");
        for (int i = 0; i < 3; ++i) {
            assert_true(flight->values[0][i] == 1 + i);
            assert_true(flight->values[1][i] == 7 + i);
        }
        assert_int_equal(flight->during, flight->before + 64); /* two fit into the pool */
        assert_int_equal(flight->allocated_during, flight->during);
        assert_int_equal(flight->after, flight->before);
    }
}

/* ---- discard ---- */

struct discard {
    trireme_strategy strategy;
    uint32_t leaves;
    struct answer answers[MOST_RANKS];
    float values[MOST_RANKS][4];
};

/* Gradients that are thrown away, at different places of the step, then good
 * ones. */
static void discard_and_step(trireme_communicator *communicator, int rank, void *context) {
    struct discard *const d = context;
    trireme_model *const model = new_model(communicator, d->strategy, d->leaves);
    trireme_status status = add(model, "a", 3, TRIREME_DTYPE_F32);
    if (status == TRIREME_OK) status = add(model, "b", 1, TRIREME_DTYPE_F32);
    if (status == TRIREME_OK) status = trireme_model_seal(model);
    if (status != TRIREME_OK) abort();
    trireme_optimizer *const optimizer = sgd(model);
    const float wrong[4] = {1e30f, 1e30f, 1e30f, 1e30f}, good[4] = {-2, -4, -6, -8};
    /* Ranks that got differently far in the same pass. */
    uint32_t first = 0;
    if (d->leaves > 0) status = trireme_model_get_leaf(model, 0, &first);
    if (status == TRIREME_OK && first != UINT32_MAX) {
        status = trireme_model_begin_backward(model, 0);
        for (uint64_t i = 2; i-- > (uint64_t)rank && status == TRIREME_OK;) {
            status =
                trireme_model_gradient_ready(model, i, wrong, i == 0 ? 3 : 1, TRIREME_DTYPE_F32);
        }
        if (rank == 0 && status == TRIREME_OK) status = trireme_model_end_backward(model);
    }
    if (status == TRIREME_OK) status = trireme_model_discard_gradients(model);
    for (int round = 0; round < 3 && status == TRIREME_OK; ++round) {
        if (round == 2) status = trireme_model_discard_gradients(model); /* of nothing */
        const float *const g = round == 2 ? good : wrong;
        uint32_t passes = 1, leaf = 0;
        if (d->leaves > 0) passes = round == 0 ? 1 : (d->leaves + 2) / 3;
        for (uint32_t pass = 0; pass < passes && status == TRIREME_OK; ++pass) {
            if (d->leaves > 0) status = trireme_model_get_leaf(model, pass, &leaf);
            if (status != TRIREME_OK || leaf == UINT32_MAX) continue;
            status = trireme_model_accumulate_flat(model, g, 4, TRIREME_DTYPE_F32,
                                                   d->leaves == 0 && round == 0
                                                       ? TRIREME_BACKWARD_FLAG_NO_SYNC
                                                       : 0);
        }
        if (status != TRIREME_OK) break;
        status =
            round < 2 ? trireme_model_discard_gradients(model) : trireme_optimizer_step(optimizer);
    }
    if (status == TRIREME_OK) {
        status = trireme_model_gather_parameters(model, d->values[rank], 4, TRIREME_DTYPE_F32);
    }
    d->answers[rank] = ask(status);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void discarded_gradients_leave_no_trace(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        for (uint32_t leaves = 0; leaves <= 7; ++leaves) {
            struct discard d = {.strategy = strategy, .leaves = leaves};
            run_ranks(3, discard_and_step, &d);
            for (int rank = 0; rank < 3; ++rank) {
                expect(d.answers[rank], TRIREME_OK, NULL);
                for (int i = 0; i < 4; ++i) assert_true(d.values[rank][i] == (float)(i + 1));
            }
        }
    }
}

/* ---- destroying ---- */

struct leaving {
    pthread_barrier_t all_started;
    struct answer answers[3];
    struct answer stale[3];
};

static void leave_in_the_middle(trireme_communicator *communicator, int rank, void *context) {
    struct leaving *const leaving = context;
    trireme_model *const model = new_model(communicator, TRIREME_STRATEGY_ZERO2, 0);
    trireme_status status = add(model, "a", 1000, TRIREME_DTYPE_F32);
    if (status == TRIREME_OK) status = trireme_model_seal(model);
    static const float gradient[1000];
    /* Rank 0 never takes part, so the reductions of the others are under way for
     * ever. */
    if (rank > 0 && status == TRIREME_OK) {
        status = trireme_model_accumulate_flat(model, gradient, 1000, TRIREME_DTYPE_F32, 0);
    }
    leaving->answers[rank] = ask(status);
    (void)pthread_barrier_wait(&leaving->all_started);
    trireme_model_destroy(model);
    leaving->stale[rank] = ask(trireme_model_discard_gradients(model));
}

static void a_model_may_be_destroyed_while_its_reductions_run(void **state) {
    (void)state;
    for (int round = 0; round < 5; ++round) {
        struct leaving leaving;
        memset(&leaving, 0, sizeof leaving);
        assert_int_equal(pthread_barrier_init(&leaving.all_started, NULL, 3), 0);
        run_ranks(3, leave_in_the_middle, &leaving);
        (void)pthread_barrier_destroy(&leaving.all_started);
        for (int rank = 0; rank < 3; ++rank) {
            expect(leaving.answers[rank], TRIREME_OK, NULL);
            expect(leaving.stale[rank], TRIREME_ERROR_INVALID_HANDLE, NULL);
        }
    }
}

struct mixed {
    struct answer answer;
    float a[5];
    double b[3];
};

/* Units of two dtypes: no flat vector, but hooks and shards as ever. */
static void train_mixed(trireme_communicator *communicator, int rank, void *context) {
    struct mixed *const mixed = (struct mixed *)context + rank;
    trireme_model *const model = new_model(communicator, TRIREME_STRATEGY_ZERO3, 3);
    trireme_status status = add(model, "a", 5, TRIREME_DTYPE_F32);
    if (status == TRIREME_OK) status = add(model, "b", 3, TRIREME_DTYPE_F64);
    if (status == TRIREME_OK) status = trireme_model_seal(model);
    if (status != TRIREME_OK) abort();
    trireme_optimizer *const optimizer = sgd(model);
    const float a[5] = {-2, -4, -6, -8, -10};
    const double b[3] = {2, 4, 6};
    uint32_t leaf = UINT32_MAX;
    for (uint32_t pass = 0; pass < 2 && status == TRIREME_OK; ++pass) {
        status = trireme_model_get_leaf(model, pass, &leaf);
        if (status != TRIREME_OK || leaf == UINT32_MAX) continue;
        status = trireme_model_begin_backward(model, 0);
        if (status == TRIREME_OK) {
            status = trireme_model_gradient_ready(model, 1, b, 3, TRIREME_DTYPE_F64);
        }
        if (status == TRIREME_OK) {
            status = trireme_model_gradient_ready(model, 0, a, 5, TRIREME_DTYPE_F32);
        }
        if (status == TRIREME_OK) status = trireme_model_end_backward(model);
    }
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    for (uint64_t unit = 0; unit < 2 && status == TRIREME_OK; ++unit) {
        void *data = NULL;
        status = trireme_model_gather_unit(model, unit);
        if (status == TRIREME_OK)
            status = trireme_model_get_parameter_data(model, unit, &data, NULL);
        if (status == TRIREME_OK && unit == 0) memcpy(mixed->a, data, sizeof mixed->a);
        if (status == TRIREME_OK && unit == 1) memcpy(mixed->b, data, sizeof mixed->b);
        if (status == TRIREME_OK) status = trireme_model_release_unit(model, unit);
    }
    mixed->answer = ask(status);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void units_of_two_dtypes_train_with_hooks(void **state) {
    (void)state;
    struct mixed all[2];
    memset(all, 0, sizeof all);
    run_ranks(2, train_mixed, all);
    for (int rank = 0; rank < 2; ++rank) {
        expect(all[rank].answer, TRIREME_OK, NULL);
        for (int i = 0; i < 5; ++i) assert_true(all[rank].a[i] == (float)(i + 1));
        for (int i = 0; i < 3; ++i) assert_true(all[rank].b[i] == -(double)(i + 1));
    }
}

/* ---- a model without parameters, as a rank of a pipeline may have ---- */

struct nothing {
    trireme_strategy strategy;
    trireme_rule_kind kind;
    struct verdict verdicts[3];
};

static int32_t TRIREME_CALLCONV never_called(const trireme_update *update, void *user_data) {
    (void)update, (void)user_data;
    return 1;
}

/* Each call that a model and its optimizer have answers as with parameters. */
static void train_nothing(trireme_communicator *communicator, int rank, void *context) {
    struct nothing *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_model *const model = new_model(communicator, job->strategy, 3);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = job->kind;
    options.learning_rate = 0.5;
    trireme_user_rule_options rule = TRIREME_USER_RULE_OPTIONS_INIT;
    rule.update = never_called;
    rule.state_count = 1;
    if (job->kind == TRIREME_RULE_USER) options.rule = &rule.base;
    clipping_of(&options)->max_norm = 1;
    loss_scale_of(&options)->initial_scale = 8;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, v, 0, TRIREME_DTYPE_F32, 0));
    for (uint64_t step = 1; step <= 2 && v->text[0] == 0; ++step) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
        double norm = -1;
        uint64_t steps = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_gradient_norm(optimizer, &norm));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &steps));
        EXPECT(v, norm == 0 && steps == step);
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_parameters(model, v, 0, TRIREME_DTYPE_F32));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_check_replicas(model));
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &info));
    EXPECT(v, info.parameters == 0 && info.units == 0 && info.elements == 0);
    uint64_t ranges = 7, bytes = 0, saved = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_range_count(optimizer, &ranges));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_saved_bytes(optimizer, &bytes));
    char state[4096] = {0};
    EXPECT(v, ranges == 0 && bytes > 0 && bytes <= sizeof state);
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_save(optimizer, state, bytes, &saved));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_load(optimizer, state, saved));
    uint64_t steps = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_step_count(optimizer, &steps));
    EXPECT(v, steps == 2);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_model_without_parameters_makes_steps(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        for (trireme_rule_kind kind = 1; kind <= TRIREME_RULE_MUON; ++kind) {
            struct nothing job = {.strategy = strategy, .kind = kind};
            run_ranks(3, train_nothing, &job);
            assert_verdicts(job.verdicts, 3);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_register_differently_hear_the_first_difference_and_go_on),
        cmocka_unit_test(calls_in_the_wrong_order_are_refused_and_forgotten),
        cmocka_unit_test(bad_arguments_are_named),
        cmocka_unit_test(names_of_strategies_go_both_ways),
        cmocka_unit_test(units_may_all_be_gathered_but_not_at_the_step),
        cmocka_unit_test(discarded_gradients_leave_no_trace),
        cmocka_unit_test(a_model_may_be_destroyed_while_its_reductions_run),
        cmocka_unit_test(units_of_two_dtypes_train_with_hooks),
        cmocka_unit_test(a_model_without_parameters_makes_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
