/* Attention over ranks: bad arguments, ranks that differ, callbacks that fail, ranks that do not
 * come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attention.inc"
#include "ranks.h"

#define MOST 5
#define UNTOUCHED ((trireme_context *)(uintptr_t)0x6b6b)

static const struct attention plain = {.positions = 13,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .width = 3,
                                       .chunks = 10,
                                       .causal = true,
                                       .dtype = TRIREME_DTYPE_F32};

static bool says(const char *words) {
    if (strstr(trireme_last_error(), words) != NULL) return true;
    fprintf(stderr, "\"%s\" is not in: %s\n", words, trireme_last_error());
    return false;
}

#define REFUSED(status, words, call)             \
    do {                                         \
        assert_int_equal((call), (status));      \
        if (!says(words)) fail_msg("%s", #call); \
    } while (0)

#define REFUSES(change, status, words)                                                     \
    do {                                                                                   \
        trireme_context_options options = context_options(&plain, 1, 1);                   \
        change;                                                                            \
        REFUSED(status, words, trireme_context_create(pair.ranks[0], &options, &context)); \
    } while (0)

static void options_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_context *context = UNTOUCHED;
    trireme_attention_callbacks callbacks = TRIREME_ATTENTION_CALLBACKS_INIT;
    const trireme_status invalid = TRIREME_ERROR_INVALID_ARGUMENT;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "communicator is NULL",
            trireme_context_create(NULL, NULL, &context));
    REFUSED(invalid, "options is NULL", trireme_context_create(pair.ranks[0], NULL, &context));
    REFUSES(options.struct_size = 8, invalid, "options.struct_size is 8");
    REFUSES(options.flags = 3, invalid, "is 2, but must be 0");
    REFUSES(options.reserved = 1, invalid, "options.reserved is 1");
    REFUSES(options.name = NULL, invalid, "options.name is NULL");
    REFUSES(options.name = "", invalid, "options.name is empty");
    REFUSES(options.name = "a\nb", invalid, "control character");
    REFUSES(options.name = "\xff", invalid, "not UTF-8");
    REFUSES(options.name = "0123456789012345678901234567890123456789012345678901234567890123",
            invalid, "64 bytes, more than 63");
    REFUSES(options.layout = 0, invalid, "options.layout is 0, not one of TRIREME_CONTEXT_LAYOUT_");
    REFUSES(options.method = 3, invalid, "options.method is 3, not one of TRIREME_CONTEXT_METHOD_");
    REFUSES(options.provider = 0, invalid, "options.provider is 0");
    REFUSES(options.dtype = 99, invalid, "options.dtype is 99");
    REFUSES(options.dtype = TRIREME_DTYPE_F64, TRIREME_ERROR_UNSUPPORTED, "options.dtype is f64");
    REFUSES(options.chunks = 0, invalid, "options.chunks is 0, below 2");
    REFUSES(options.chunks = 1, invalid, "options.chunks is 1, below 2: each rank needs one");
    REFUSES((options.chunks = 3, options.layout = 2), invalid, "below 4: each rank needs two");
    REFUSES(options.chunks = 1025, invalid, "options.chunks is 1025, above 1024");
    REFUSES(options.heads = 0, invalid, "options.heads is 0");
    REFUSES(options.width = 0, invalid, "options.width is 0");
    REFUSES(options.kv_heads = 3, invalid, "which does not divide the 4 heads");
    REFUSES(options.kv_heads = 8, invalid, "which does not divide the 4 heads");
    REFUSES(options.scale = NAN, invalid, "options.scale is no finite number");
    REFUSES(options.scale = -INFINITY, invalid, "options.scale is no finite number");
    REFUSES(options.positions = UINT64_MAX, invalid, "more bytes than memory can hold");
    REFUSES((options.positions = 0, options.width = UINT64_MAX), invalid, "than memory can hold");
    REFUSES((options.positions = 1ull << 60, options.heads = options.kv_heads = 1), invalid,
            "than memory can hold");
    REFUSES(options.callbacks = &callbacks, invalid, "options.callbacks is not NULL");
    REFUSES(options.provider = 2, invalid, "options.callbacks is NULL");
    REFUSES((options.provider = 2, options.callbacks = &callbacks), invalid,
            "options.callbacks.forward is NULL");
    callbacks.forward = forward_pair;
    REFUSES((options.provider = 2, options.callbacks = &callbacks), invalid,
            "options.callbacks.backward is NULL");
    callbacks.reserved = 1;
    REFUSES((options.provider = 2, options.callbacks = &callbacks), invalid,
            "options.callbacks.reserved is 1");
    callbacks.struct_size = 4;
    REFUSES((options.provider = 2, options.callbacks = &callbacks), invalid,
            "options.callbacks.struct_size is 4");
    const trireme_context_options good = context_options(&plain, 1, 1);
    REFUSED(invalid, "out_context is NULL", trireme_context_create(pair.ranks[0], &good, NULL));
    assert_ptr_equal(context, UNTOUCHED);
    free_rank_pair(pair);
}

static void questions_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    const trireme_context_options options = context_options(&plain, 2, 1);
    trireme_context *context = NULL;
    trireme_context_info info = TRIREME_CONTEXT_INFO_INIT;
    const trireme_status invalid = TRIREME_ERROR_INVALID_ARGUMENT;
    assert_int_equal(trireme_context_create(pair.ranks[0], &options, &context), TRIREME_OK);
    uint64_t positions[2] = {99, 99}, count = 99;
    REFUSED(invalid, "info is NULL", trireme_context_get_info(context, NULL));
    info.struct_size = 4;
    REFUSED(invalid, "info.struct_size is 4", trireme_context_get_info(context, &info));
    REFUSED(invalid, "out_count is NULL", trireme_context_positions(context, 0, NULL, 0, NULL));
    REFUSED(invalid, "positions is NULL", trireme_context_positions(context, 0, NULL, 1, &count));
    REFUSED(invalid, "rank is 2, but", trireme_context_positions(context, 2, NULL, 0, &count));
    REFUSED(invalid, "rank is -1, but", trireme_context_positions(context, -1, NULL, 0, &count));
    assert_true(count == 99);
    /* As many as fit. */
    assert_int_equal(trireme_context_positions(context, 1, positions, 1, &count), TRIREME_OK);
    assert_true(count > 2 && positions[0] != 99 && positions[1] == 99);
    trireme_context_destroy(context);
    trireme_context_destroy(context);
    trireme_context_destroy(NULL);
    info.struct_size = sizeof info;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "is not live", trireme_context_get_info(context, &info));
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "a communicator handle was given where a context",
            trireme_context_get_info((trireme_context *)pair.ranks[0], &info));
    free_rank_pair(pair);
}

/* One rank, so that nothing but the arguments can be wrong. */
static void refuse_arrays(trireme_communicator *communicator, int rank, void *context_of_test) {
    struct verdict *const verdict = context_of_test;
    const trireme_context_options options = context_options(&plain, 1, 2);
    trireme_context *context = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_create(communicator, &options, &context));
    struct rank_arrays r = make_rank_arrays(&plain, context, rank);
    const trireme_attention_arrays forward = arrays_of_pass(&r, false);
    const trireme_attention_arrays backward = arrays_of_pass(&r, true);
    const trireme_attention_options fine = TRIREME_ATTENTION_OPTIONS_INIT;
    trireme_attention_arrays arrays = forward;
    trireme_attention_options pass = fine;
#define WRONG(change, run, words)                                                \
    do {                                                                         \
        change;                                                                  \
        EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,                   \
                      trireme_context_attention_##run(context, &arrays, &pass)); \
        EXPECT(verdict, says(words));                                            \
        arrays = run##_arrays;                                                   \
        pass = fine;                                                             \
    } while (0)
#define forward_arrays forward
#define backward_arrays backward
    WRONG(arrays.q = NULL, forward, "arrays.q is NULL but holds 13 rows");
    WRONG(arrays.v = NULL, forward, "arrays.v is NULL");
    WRONG(arrays.output = NULL, forward, "arrays.output is NULL");
    WRONG(arrays.kept = NULL, forward, "arrays.kept is NULL");
    WRONG(arrays.dk = r.memory[DK], forward, "arrays.dk is not NULL, but a forward pass has no");
    WRONG(arrays.reserved = 1, forward, "arrays.reserved is 1");
    WRONG(arrays.struct_size = 16, forward, "arrays.struct_size is 16");
    WRONG(arrays.output = r.memory[Q], forward, "arrays.q and arrays.output overlap");
    WRONG(arrays.kept = (float *)r.memory[V], forward, "arrays.v and arrays.kept overlap");
    WRONG(arrays.output = r.memory[K] + 4, forward, "arrays.k and arrays.output overlap");
    WRONG(pass.flags = 1, forward, "options.flags is 1");
    WRONG(pass.struct_size = 8, forward, "options.struct_size is 8");
    uint64_t starts[14] = {0};
    WRONG(pass.sequence_count = 1, forward, "options.sequence_starts is NULL");
    WRONG((pass.sequence_starts = starts, pass.sequence_count = 14), forward,
          "options.sequence_count is 14, above the 13 positions");
    WRONG((pass.sequence_starts = starts, pass.sequence_count = 2), forward,
          "options.sequence_starts[1] is 0, not above the one before, 0");
    starts[1] = 13;
    WRONG((pass.sequence_starts = starts, pass.sequence_count = 2), forward,
          "options.sequence_starts[1] is 13, but the sequence has 13 positions");
    arrays = backward;
    WRONG(arrays.d_output = NULL, backward, "arrays.d_output is NULL");
    WRONG(arrays.dv = NULL, backward, "arrays.dv is NULL");
    WRONG(arrays.dq = r.memory[Q], backward, "arrays.q and arrays.dq overlap");
    WRONG(arrays.dk = r.memory[DV], backward, "arrays.dk and arrays.dv overlap");
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_context_attention_forward(context, NULL, NULL));
    for (uint64_t i = 0; i < 13 * 12; ++i) {
        EXPECT(verdict, ((float *)r.memory[OUTPUT])[i] == 77 && ((float *)r.memory[DQ])[i] == 77);
    }
    /* Arrays that are only read may be one, and nothing has happened so far. */
    arrays = forward;
    arrays.v = arrays.k;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_attention_forward(context, &arrays, &pass));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_begin());
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_context_attention_forward(context, &arrays, &pass));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_end());
    trireme_communicator_destroy(communicator);
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_context_attention_forward(context, &arrays, &pass));
    trireme_context_destroy(context);
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_context_attention_backward(context, &backward, NULL));
    free_rank_arrays(&r);
}

static void arrays_are_checked(void **state) {
    (void)state;
    struct verdict verdict = {""};
    run_ranks(1, refuse_arrays, &verdict);
    assert_verdicts(&verdict, 1);
}

/* --- ranks that differ --------------------------------------------------------------------------
 */

struct difference {
    int number;
    bool backward;
    struct verdict verdicts[MOST];
};

/* Rank 1 has one option that the other ranks have not. */
static bool
change_option(int number, trireme_context_options *options, trireme_attention_options *pass) {
    static const uint64_t starts[] = {5};
    switch (number) {
        case 0: options->name = "layer 4"; return true;
        case 1: options->positions = 14; return true;
        case 2: options->chunks = 11; return true;
        case 3: options->layout = 1; return true;
        case 4: options->method = 3 - options->method; return true;
        case 5: options->heads = 6; return true;
        case 6: options->kv_heads = 1; return true;
        case 7: options->width = 2; return true;
        case 8: options->dtype = TRIREME_DTYPE_BF16; return true;
        case 9: options->flags = 0; return true;
        case 10: options->scale = 0.25; return true;
        case 11: options->provider = TRIREME_ATTENTION_PROVIDER_CALLER; return true;
        case 12:
            pass->sequence_starts = starts;
            pass->sequence_count = 1;
            return true;
        case 13: pass->sequence_starts = starts; return true; /* 5 in place of 6 */
        default: return false;
    }
}

static void differ(trireme_communicator *communicator, int rank, void *context_of_test) {
    struct difference *const test = context_of_test;
    struct verdict *const verdict = &test->verdicts[rank];
    trireme_context_options options = context_options(&plain, 2, 1 + test->number % 2);
    trireme_attention_options pass = TRIREME_ATTENTION_OPTIONS_INIT;
    trireme_attention_callbacks callbacks = TRIREME_ATTENTION_CALLBACKS_INIT;
    callbacks.forward = forward_pair;
    callbacks.backward = backward_pair;
    static const uint64_t six[] = {6};
    if (test->number == 13) {
        pass.sequence_starts = six;
        pass.sequence_count = 1;
    }
    /* A difference that is none would end without a mismatch. */
    if (rank == 1) EXPECT(verdict, change_option(test->number, &options, &pass));
    if (options.provider == TRIREME_ATTENTION_PROVIDER_CALLER) options.callbacks = &callbacks;
    struct attention own = plain;
    own.positions = options.positions;
    own.heads = options.heads;
    own.kv_heads = options.kv_heads;
    own.width = options.width;
    own.dtype = options.dtype;
    trireme_context *context = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_create(communicator, &options, &context));
    struct rank_arrays r = make_rank_arrays(&own, context, rank);
    const trireme_attention_arrays arrays = arrays_of_pass(&r, test->backward);
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  test->backward ? trireme_context_attention_backward(context, &arrays, &pass)
                                 : trireme_context_attention_forward(context, &arrays, &pass));
    EXPECT(verdict, says("pass of context \"layer "));
    trireme_context_destroy(context);
    free_rank_arrays(&r);
}

static void ranks_that_differ_all_get_a_mismatch(void **state) {
    (void)state;
    for (int number = 0; number < 14; ++number) {
        for (int backward = 0; backward < 2; ++backward) {
            struct difference test = {.number = number, .backward = backward != 0};
            run_ranks(3, differ, &test);
            assert_verdicts(test.verdicts, 3);
        }
    }
}

static void go_different_ways(trireme_communicator *communicator, int rank, void *context_of_test) {
    struct verdict *const verdict = &((struct verdict *)context_of_test)[rank];
    const trireme_context_options options = context_options(&plain, 1, 2);
    trireme_context *context = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_create(communicator, &options, &context));
    struct rank_arrays r = make_rank_arrays(&plain, context, rank);
    const trireme_attention_arrays arrays = arrays_of_pass(&r, rank == 0);
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  rank == 0 ? trireme_context_attention_backward(context, &arrays, NULL)
                            : trireme_context_attention_forward(context, &arrays, NULL));
    EXPECT(verdict, says("forward \"layer 3\"") && says("backward \"layer 3\""));
    trireme_context_destroy(context);
    free_rank_arrays(&r);
}

static void directions_are_compared(void **state) {
    (void)state;
    struct verdict verdicts[2] = {{""}, {""}};
    run_ranks(2, go_different_ways, verdicts);
    assert_verdicts(verdicts, 2);
}

static void wait_alone(trireme_communicator *communicator, int rank, void *context_of_test) {
    struct verdict *const verdict = &((struct verdict *)context_of_test)[rank];
    if (rank == 1) return;
    trireme_context_options options = context_options(&plain, 1, 2);
    options.timeout_ns = 50 * 1000 * 1000;
    trireme_context *context = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_create(communicator, &options, &context));
    struct rank_arrays r = make_rank_arrays(&plain, context, rank);
    const trireme_attention_arrays arrays = arrays_of_pass(&r, false);
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                  trireme_context_attention_forward(context, &arrays, NULL));
    EXPECT(verdict, says("the deadline is 0.05 s, timeout_ns of the context's options"));
    trireme_context_destroy(context);
    free_rank_arrays(&r);
}

static void hold(trireme_communicator *communicator, int rank, void *context_of_test) {
    wait_alone(communicator, rank, context_of_test);
    /* Rank 1 leaves only when rank 0 has given up: a group that is destroyed is another failure. */
    if (rank == 1) {
        trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
        struct verdict *const verdict = &((struct verdict *)context_of_test)[rank];
        uint64_t word = 0;
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_receive(communicator, &word, 1, TRIREME_DTYPE_U64, 0, 7, &options));
    }
}

static void a_rank_that_does_not_come_is_a_timeout(void **state) {
    (void)state;
    struct verdict verdicts[2] = {{""}, {""}};
    run_ranks(2, hold, verdicts);
    assert_verdicts(verdicts, 2);
}

/* --- callbacks ----------------------------------------------------------------------------------
 */

struct failing {
    int world_size;
    trireme_context_method method;
    bool backward;
    int victim; /* its callback answers 41 for the pair */
    uint32_t q_chunk, kv_chunk;
    struct verdict verdicts[MOST];
};

struct caller {
    const struct failing *test;
    trireme_context *context;
    const trireme_attention_arrays *arrays;
    bool fails;
    trireme_status inner;
};

static bool is_the_pair(const struct failing *test, const trireme_attention_call *call) {
    return call->q_chunk == test->q_chunk && call->kv_chunk == test->kv_chunk;
}

static int32_t TRIREME_CALLCONV failing_forward(const trireme_attention_call *call, void *user) {
    struct caller *const caller = user;
    if (caller->context != NULL) {
        caller->inner = trireme_context_attention_forward(caller->context, caller->arrays, NULL);
    }
    if (caller->fails && !caller->test->backward && is_the_pair(caller->test, call)) return 41;
    return forward_pair(call, NULL);
}

static int32_t TRIREME_CALLCONV failing_backward(const trireme_attention_call *call, void *user) {
    const struct caller *const caller = user;
    if (caller->fails && is_the_pair(caller->test, call)) return 41;
    return backward_pair(call, NULL);
}

static void fail_once(trireme_communicator *communicator, int rank, void *context_of_test) {
    struct failing *const test = context_of_test;
    struct verdict *const verdict = &test->verdicts[rank];
    trireme_context_options options = context_options(&plain, 2, test->method);
    struct caller caller = {.test = test, .fails = true};
    trireme_attention_callbacks callbacks = TRIREME_ATTENTION_CALLBACKS_INIT;
    callbacks.forward = failing_forward;
    callbacks.backward = failing_backward;
    callbacks.user_data = &caller;
    options.provider = TRIREME_ATTENTION_PROVIDER_CALLER;
    options.callbacks = &callbacks;
    trireme_context *context = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_create(communicator, &options, &context));
    struct rank_arrays r = make_rank_arrays(&plain, context, rank);
    const trireme_attention_arrays forward = arrays_of_pass(&r, false);
    const trireme_attention_arrays backward = arrays_of_pass(&r, true);
    for (int again = 0; again < 2; ++again) { /* the next passes work */
        const bool fails = again == 0;
        caller.fails = fails;
        EXPECT_STATUS(verdict, fails && !test->backward ? TRIREME_ERROR_CALLBACK : TRIREME_OK,
                      trireme_context_attention_forward(context, &forward, NULL));
        if (fails && !test->backward) {
            EXPECT(verdict, r.rows == 0 || ((float *)r.memory[OUTPUT])[0] == 77);
        }
        if (fails && test->backward) {
            EXPECT_STATUS(verdict, TRIREME_ERROR_CALLBACK,
                          trireme_context_attention_backward(context, &backward, NULL));
            EXPECT(verdict, r.rows == 0 || ((float *)r.memory[DK])[0] == 77);
        }
        if (fails) {
            char words[160];
            snprintf(words, sizeof words,
                     "%s pass of context \"layer 3\": the callback of rank %d for chunk pair "
                     "(%u, %u) answered 41",
                     test->backward ? "backward" : "forward", test->victim, test->q_chunk,
                     test->kv_chunk);
            EXPECT(verdict, says(words));
            trireme_error_info info = TRIREME_ERROR_INFO_INIT;
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
            EXPECT(verdict, info.blamed_count == 1 && info.blamed[0] == test->victim);
        }
    }
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_context_attention_backward(context, &backward, NULL));
    /* A pass from a callback is refused, and does no harm. */
    caller.context = context;
    caller.arrays = &forward;
    caller.inner = TRIREME_ERROR_INVALID_STATE;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_attention_forward(context, &forward, NULL));
    EXPECT(verdict, caller.inner == TRIREME_ERROR_INVALID_STATE);
    trireme_context_info info = TRIREME_CONTEXT_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_get_info(context, &info));
    EXPECT(verdict, info.forward_passes == (test->backward ? 3u : 2u));
    EXPECT(verdict, info.backward_passes == 1);
    trireme_context_destroy(context);
    free_rank_arrays(&r);
}

static void a_failing_callback_fails_the_pass_on_all_ranks(void **state) {
    (void)state;
    /* Of 10 chunks in zigzag: 1 rank has all, the first of 2 has 0 and 9, rank 4 of 5 has 4. */
    static const struct {
        int world_size, victim;
        uint32_t q, kv;
    } cases[] = {{1, 0, 9, 0}, {2, 0, 9, 4}, {2, 1, 4, 4}, {5, 4, 4, 0}, {5, 0, 9, 9}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        for (int choice = 0; choice < 4; ++choice) {
            struct failing test = {.world_size = cases[i].world_size,
                                   .victim = cases[i].victim,
                                   .q_chunk = cases[i].q,
                                   .kv_chunk = cases[i].kv,
                                   .method = 1 + choice % 2,
                                   .backward = choice >= 2};
            run_ranks(test.world_size, fail_once, &test);
            assert_verdicts(test.verdicts, test.world_size);
        }
    }
}

/* --- numbers that are none ----------------------------------------------------------------------
 */

struct poison {
    enum array array;
    trireme_context_method method;
    struct verdict verdicts[3];
};

/* Position 6 has a NaN in one array. */
static void pass_a_nan(trireme_communicator *communicator, int rank, void *context_of_test) {
    struct poison *const test = context_of_test;
    struct verdict *const verdict = &test->verdicts[rank];
    const trireme_context_options options = context_options(&plain, 2, test->method);
    trireme_context *context = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_create(communicator, &options, &context));
    struct rank_arrays r = make_rank_arrays(&plain, context, rank);
    for (uint64_t row = 0; row < r.rows; ++row) {
        if (r.positions[row] != 6) continue;
        float *const numbers = (float *)r.memory[test->array];
        const uint64_t columns = row_of_array(&plain, test->array);
        for (uint64_t i = 0; i < columns; ++i) numbers[row * columns + i] = NAN;
    }
    const trireme_attention_arrays forward = arrays_of_pass(&r, false);
    const trireme_attention_arrays backward = arrays_of_pass(&r, true);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_attention_forward(context, &forward, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_context_attention_backward(context, &backward, NULL));
    for (uint64_t row = 0; row < r.rows; ++row) {
        const uint64_t position = r.positions[row];
        const bool sees_it = test->array == Q ? position == 6 : position >= 6;
        const float *const output = (const float *)r.memory[OUTPUT] + row * 12;
        const float *const dk = (const float *)r.memory[DK] + row * 6;
        for (int i = 0; i < 12; ++i) EXPECT(verdict, isnan(output[i]) == sees_it);
        /* Query 6 makes no gradient of the keys behind it; the others see NaN in d_output's row. */
        if (test->array == Q) EXPECT(verdict, isnan(dk[0]) == (position <= 6));
    }
    trireme_context_destroy(context);
    free_rank_arrays(&r);
}

static void a_nan_reaches_those_that_see_it_alone(void **state) {
    (void)state;
    for (enum array array = Q; array <= V; ++array) {
        for (trireme_context_method method = 1; method <= 2; ++method) {
            struct poison test = {.array = array, .method = method};
            run_ranks(3, pass_a_nan, &test);
            assert_verdicts(test.verdicts, 3);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(questions_are_checked),
        cmocka_unit_test(arrays_are_checked),
        cmocka_unit_test(ranks_that_differ_all_get_a_mismatch),
        cmocka_unit_test(directions_are_compared),
        cmocka_unit_test(a_rank_that_does_not_come_is_a_timeout),
        cmocka_unit_test(a_failing_callback_fails_the_pass_on_all_ranks),
        cmocka_unit_test(a_nan_reaches_those_that_see_it_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
