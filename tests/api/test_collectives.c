/* Collectives against plain loops: every dtype, reduction, form and place of the memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "numbers.h"
#include "ranks.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static const int world_sizes[] = {1, 2, 3, 4, 5, 8};

/* Runs `function` with every world size; each rank has its verdict. */
static void run_world_sizes(rank_function *function) {
    for (size_t i = 0; i < COUNT_OF(world_sizes); ++i) {
        if (is_quick() && world_sizes[i] > 5) continue;
        struct verdict verdicts[MOST_RANKS] = {0};
        run_ranks(world_sizes[i], function, verdicts);
        assert_verdicts(verdicts, world_sizes[i]);
    }
}

static int world_size_of(trireme_communicator *communicator, struct verdict *verdict) {
    int32_t world_size = 0;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_get_world_size(communicator, &world_size));
    return world_size;
}

/* One of the ways to call: plain or started, in memory of the library or not, in place or not. */
struct way {
    bool started, shared, in_place;
};

static struct way way_of(uint64_t number) {
    return (struct way){(number & 1) != 0, (number & 2) != 0, (number & 4) != 0};
}

static unsigned char pattern(int rank, uint64_t index) {
    return (unsigned char)(index * 31 + index / 251 + (uint64_t)rank * 57 + 1);
}

static void fill_pattern(unsigned char *memory, int rank, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i) memory[i] = pattern(rank, i);
}

static bool came_from_its_origin(const struct call *call, const struct call_memory *memory,
                                 int rank, int world_size, uint64_t size) {
    for (uint64_t i = 0; i < memory->receive_bytes; ++i) {
        const struct origin origin = origin_of(call, rank, world_size, i / size);
        if (memory->receive[i] != pattern(origin.source, origin.index * size + i % size)) {
            return false;
        }
    }
    return true;
}

/* Elements of rank's block, for the operations that have blocks. */
static uint64_t block_of(const struct call *call, int rank) {
    return is_v_form(call->operation) ? call->counts[rank] : call->count;
}

static uint64_t before_of(const struct call *call, int rank) {
    uint64_t elements = 0;
    for (int i = 0; i < rank; ++i) elements += block_of(call, i);
    return elements;
}

/* Runs one call on this rank and compares every element with the plain loop. */
static void check_call(trireme_communicator *communicator, const struct call *call, int rank,
                       int world_size, struct way way, struct verdict *verdict) {
    const uint64_t size = trireme_dtype_bytes(call->dtype), salt = call->count + call->counts[0];
    struct call_memory memory;
    if (!EXPECT(verdict,
                allocate_call(communicator, call, rank, world_size, way.shared, &memory))) {
        abort(); /* the peers would wait */
    }
    const bool gathers = call->operation == TRIREME_OPERATION_KIND_ALL_GATHER ||
                         call->operation == TRIREME_OPERATION_KIND_ALL_GATHER_V ||
                         (call->operation == TRIREME_OPERATION_KIND_GATHER && rank == call->root) ||
                         (call->operation == TRIREME_OPERATION_KIND_GATHER_V && rank == call->root);
    const bool scatters = (call->operation == TRIREME_OPERATION_KIND_SCATTER ||
                           call->operation == TRIREME_OPERATION_KIND_SCATTER_V) &&
                          rank == call->root;
    const bool whole = call->operation == TRIREME_OPERATION_KIND_ALL_REDUCE ||
                       call->operation == TRIREME_OPERATION_KIND_REDUCE;
    struct call_memory used = memory;
    const uint64_t before = whole ? 0 : before_of(call, rank) * size;
    if (way.in_place && gathers) used.send = used.receive + before;
    if (way.in_place && scatters) used.receive = used.send + before;
    if (way.in_place && reduces(call->operation) && used.receive_bytes > 0) {
        used.receive = used.send + before;
    }
    if (reduces(call->operation)) {
        fill_contribution(call->dtype, call->reduction, rank, salt, used.send, 0,
                          used.send_bytes / size);
    } else if (call->operation == TRIREME_OPERATION_KIND_BROADCAST) {
        if (rank == call->root) fill_pattern(used.receive, rank, used.receive_bytes);
    } else {
        fill_pattern(used.send, rank, used.send_bytes);
    }
    /* Ranks of several hosts: in their way also sizes so small that they would not choose it. */
    struct call native = *call;
    native.algorithm = TRIREME_ALGORITHM_NATIVE;
    trireme_status status = TRIREME_ERROR_UNSUPPORTED;
    if (getenv("TRIREME_TESTS_HOSTS") != NULL) {
        status = run_call(communicator, &native, &used, way.started, LONG_NS);
    }
    if (status == TRIREME_ERROR_UNSUPPORTED) {
        status = run_call(communicator, call, &used, way.started, LONG_NS);
    }
    EXPECT_STATUS(verdict, TRIREME_OK, status);
    if (reduces(call->operation)) {
        EXPECT(verdict, is_reduced(call->dtype, call->reduction, call->scale, world_size, salt,
                                   used.receive, before / size, used.receive_bytes / size));
    } else {
        EXPECT(verdict, came_from_its_origin(call, &used, rank, world_size, size));
    }
    free_call(&memory, way.shared);
}

static struct call
make_call(trireme_operation_kind operation, trireme_dtype dtype, trireme_reduction reduction,
          uint64_t count, uint64_t number, int world_size) {
    struct call call = {.operation = operation, .dtype = dtype, .reduction = reduction};
    if (reduction == TRIREME_REDUCTION_SCALED_SUM) call.scale = number % 2 == 0 ? 0.375 : -2;
    if (has_root(operation)) {
        call.root = (int32_t)(number / 8 % (uint64_t)world_size);
    }
    if (!is_v_form(operation)) {
        call.count = count;
    } else {
        /* Different blocks, some of them empty. */
        for (int r = 0; r < MOST_RANKS; ++r) {
            call.counts[r] = ((uint64_t)r * 5 + number) % 7 * count / 3;
        }
    }
    return call;
}

static const trireme_operation_kind reducing[] = {TRIREME_OPERATION_KIND_ALL_REDUCE,
                                                  TRIREME_OPERATION_KIND_REDUCE_SCATTER,
                                                  TRIREME_OPERATION_KIND_REDUCE_SCATTER_V,
                                                  TRIREME_OPERATION_KIND_REDUCE};
static const trireme_operation_kind moving[] = {TRIREME_OPERATION_KIND_ALL_GATHER,
                                                TRIREME_OPERATION_KIND_ALL_GATHER_V,
                                                TRIREME_OPERATION_KIND_BROADCAST,
                                                TRIREME_OPERATION_KIND_GATHER,
                                                TRIREME_OPERATION_KIND_GATHER_V,
                                                TRIREME_OPERATION_KIND_SCATTER,
                                                TRIREME_OPERATION_KIND_SCATTER_V,
                                                TRIREME_OPERATION_KIND_ALL_TO_ALL,
                                                TRIREME_OPERATION_KIND_ALL_TO_ALL_V};

static void reduce_everything(trireme_communicator *communicator, int rank, void *context) {
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 257};
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = world_size_of(communicator, verdict);
    uint64_t number = 0;
    for (trireme_dtype dtype = TRIREME_DTYPE_I8; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
        for (trireme_reduction r = TRIREME_REDUCTION_SUM; r <= TRIREME_REDUCTION_SCALED_SUM; ++r) {
            if (!reduction_means_something(dtype, r)) continue;
            for (size_t i = 0; i < COUNT_OF(counts) * COUNT_OF(reducing); ++i) {
                const struct call call =
                    make_call(reducing[i % COUNT_OF(reducing)], dtype, r,
                              counts[i / COUNT_OF(reducing)], number, world_size);
                check_call(communicator, &call, rank, world_size, way_of(number++ * 3), verdict);
            }
        }
    }
}

static void reductions_match_a_plain_loop_for_every_dtype_and_reduction(void **state) {
    (void)state;
    run_world_sizes(reduce_everything);
}

static void move_everything(trireme_communicator *communicator, int rank, void *context) {
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 1000};
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = world_size_of(communicator, verdict);
    uint64_t number = 0;
    for (trireme_dtype dtype = TRIREME_DTYPE_I8; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
        for (size_t i = 0; i < COUNT_OF(counts) * COUNT_OF(moving); ++i) {
            const struct call call = make_call(moving[i % COUNT_OF(moving)], dtype, 0,
                                               counts[i / COUNT_OF(moving)], number, world_size);
            check_call(communicator, &call, rank, world_size, way_of(number++ * 3), verdict);
        }
    }
}

static void moves_bring_every_byte_to_its_place(void **state) {
    (void)state;
    run_world_sizes(move_everything);
}

static void run_large(trireme_communicator *communicator, int rank, void *context) {
    /* Wide formats: the plain loop over narrow ones is slow, and their loops have been seen above.
     */
    static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_I16, TRIREME_DTYPE_I64,
                                           TRIREME_DTYPE_F64};
    static const uint64_t counts[] = {1000, 100003};
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = world_size_of(communicator, verdict);
    for (uint64_t number = 0; number < 16; ++number) {
        const trireme_dtype dtype = dtypes[number % COUNT_OF(dtypes)];
        const uint64_t count = counts[number / 8];
        struct call call = make_call(TRIREME_OPERATION_KIND_ALL_REDUCE, dtype,
                                     TRIREME_REDUCTION_SUM, count, number, world_size);
        check_call(communicator, &call, rank, world_size, way_of(number), verdict);
        /* Blocks of a rank, so that all of them together are as large. */
        const uint64_t block = count / (uint64_t)world_size;
        call = make_call(reducing[1 + number % 3], dtype, TRIREME_REDUCTION_AVERAGE, block, number,
                         world_size);
        check_call(communicator, &call, rank, world_size, way_of(number), verdict);
        call = make_call(moving[number % COUNT_OF(moving)], dtype, 0, block, number, world_size);
        check_call(communicator, &call, rank, world_size, way_of(number), verdict);
    }
}

static void large_collectives_match_a_plain_loop(void **state) {
    (void)state;
    run_world_sizes(run_large);
}

/* --- order, bits, NaN --- */

struct arrivals {
    struct verdict verdicts[MOST_RANKS];
    int arrived[MOST_RANKS]; /* plain memory: the barrier itself must order it */
};

static void arrive(trireme_communicator *communicator, int rank, void *context) {
    struct arrivals *const arrivals = context;
    struct verdict *const verdict = &arrivals->verdicts[rank];
    const int world_size = world_size_of(communicator, verdict);
    const struct call barrier = {.operation = TRIREME_OPERATION_KIND_BARRIER};
    const struct call_memory none = {0};
    for (int turn = 1; turn <= 20; ++turn) {
        arrivals->arrived[rank] = turn;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      run_call(communicator, &barrier, &none, turn % 2 == 0, LONG_NS));
        for (int i = 0; i < world_size; ++i) EXPECT(verdict, arrivals->arrived[i] == turn);
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    }
}

static void a_barrier_ends_when_all_have_come_and_orders_their_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(world_sizes); ++i) {
        struct arrivals arrivals = {0};
        run_ranks(world_sizes[i], arrive, &arrivals);
        assert_verdicts(arrivals.verdicts, world_sizes[i]);
    }
}

struct bits {
    struct verdict verdicts[5];
    float results[5][2][999];
};

static void sum_awkward_numbers(trireme_communicator *communicator, int rank, void *context) {
    struct bits *const bits = context;
    float send[999];
    for (int i = 0; i < 999; ++i) {
        send[i] = 1.0f / (float)(1 + i * 7 + rank * 13) * (i % 2 == 0 ? 1 : 1e8f);
    }
    for (int turn = 0; turn < 2; ++turn) {
        EXPECT_STATUS(&bits->verdicts[rank], TRIREME_OK,
                      trireme_all_reduce(communicator, send, bits->results[rank][turn], 999,
                                         TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL));
    }
}

static void every_rank_and_every_run_get_the_same_bits(void **state) {
    (void)state;
    static struct bits bits;
    memset(&bits, 0, sizeof bits);
    run_ranks(5, sum_awkward_numbers, &bits);
    assert_verdicts(bits.verdicts, 5);
    for (int rank = 0; rank < 5; ++rank) {
        for (int turn = 0; turn < 2; ++turn) {
            assert_memory_equal(bits.results[rank][turn], bits.results[0][0],
                                sizeof bits.results[0][0]);
        }
    }
}

static void reduce_with_a_nan(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    for (int bad = 0; bad < 3; ++bad) {
        for (trireme_reduction reduction = TRIREME_REDUCTION_MIN;
             reduction <= TRIREME_REDUCTION_MAX; ++reduction) {
            const uint64_t nan_bits = 0x7ff8000000000000u;
            double value = rank, result = 0;
            if (rank == bad) memcpy(&value, &nan_bits, sizeof value);
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_all_reduce(communicator, &value, &result, 1, TRIREME_DTYPE_F64,
                                             reduction, NULL));
            EXPECT(verdict, result != result);
        }
    }
}

static void a_nan_of_any_rank_makes_min_and_max_nan(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, reduce_with_a_nan, verdicts);
    assert_verdicts(verdicts, 3);
}

static void call_on_two_threads(trireme_communicator *communicator, int rank, void *context) {
    /* The order of calls is the program's; here all are the same, so any order is right. */
    struct verdict *const verdict = (struct verdict *)context + rank;
    enum { REQUESTS = 40 };
    trireme_request *requests[REQUESTS] = {NULL};
    int64_t sums[REQUESTS], results[REQUESTS];
    for (int i = 0; i < REQUESTS; ++i) {
        sums[i] = i + rank;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce_start(communicator, &sums[i], &results[i], 1,
                                               TRIREME_DTYPE_I64, TRIREME_REDUCTION_SUM, NULL,
                                               &requests[i]));
        if (i % 7 != 6) continue;
        /* A plain call comes in its turn, after operations that were started before it. */
        int64_t plain = 1000 + i, sum = 0;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, &plain, &sum, 1, TRIREME_DTYPE_I64,
                                         TRIREME_REDUCTION_SUM, NULL));
        EXPECT(verdict, sum == 3 * plain);
        int32_t done = 0;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(requests[i], LONG_NS));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_test(requests[i], &done));
        EXPECT(verdict, done == 1);
    }
    for (int i = 0; i < REQUESTS; ++i) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(requests[i], LONG_NS));
        EXPECT(verdict, results[i] == 3 * i + 3);
        trireme_request_destroy(requests[i]);
    }
}

static void started_and_plain_collectives_run_in_the_order_of_the_calls(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, call_on_two_threads, verdicts);
    assert_verdicts(verdicts, 3);
}

/* --- ranks that disagree --- */

struct disagreement {
    trireme_status statuses[3], later[3];
    char messages[3][512];
    int case_number;
};

static void disagree(trireme_communicator *communicator, int rank, void *context) {
    struct disagreement *const all = context;
    int32_t send[4] = {1, 2, 3, 4}, receive[12];
    const int odd = rank == 1;
    switch (all->case_number) {
        case 0: /* count */
            all->statuses[rank] =
                trireme_all_reduce(communicator, send, receive, odd ? 3 : 4, TRIREME_DTYPE_I32,
                                   TRIREME_REDUCTION_SUM, NULL);
            break;
        case 1: /* dtype */
            all->statuses[rank] = trireme_all_reduce(communicator, send, receive, 4,
                                                     odd ? TRIREME_DTYPE_F32 : TRIREME_DTYPE_I32,
                                                     TRIREME_REDUCTION_SUM, NULL);
            break;
        case 2: /* reduction */
            all->statuses[rank] =
                trireme_all_reduce(communicator, send, receive, 4, TRIREME_DTYPE_I32,
                                   odd ? TRIREME_REDUCTION_MAX : TRIREME_REDUCTION_SUM, NULL);
            break;
        case 3: /* operation */
            all->statuses[rank] =
                odd ? trireme_barrier(communicator, NULL)
                    : trireme_all_gather(communicator, send, receive, 4, TRIREME_DTYPE_I32, NULL);
            break;
        case 4: /* root */
            all->statuses[rank] =
                trireme_broadcast(communicator, send, 4, TRIREME_DTYPE_I32, odd ? 1 : 0, NULL);
            break;
        default: { /* one of the counts of a v form */
            const uint64_t counts[3] = {1, 2, odd ? 0 : 1};
            all->statuses[rank] =
                trireme_all_gather_v(communicator, send, receive, counts, TRIREME_DTYPE_I32, NULL);
        }
    }
    strncpy(all->messages[rank], trireme_last_error(), sizeof all->messages[rank] - 1);
    all->later[rank] = trireme_barrier(communicator, NULL);
}

static void a_disagreement_is_a_mismatch_on_every_rank_and_for_good(void **state) {
    (void)state;
    for (int case_number = 0; case_number < 6; ++case_number) {
        struct disagreement all = {.case_number = case_number};
        run_ranks(3, disagree, &all);
        for (int rank = 0; rank < 3; ++rank) {
            assert_int_equal(all.statuses[rank], TRIREME_ERROR_MISMATCH);
            assert_int_equal(all.later[rank], TRIREME_ERROR_MISMATCH);
            assert_non_null(strstr(all.messages[rank], "rank"));
        }
    }
}

/* --- what travels, and how --- */

static void travel_narrow(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = world_size_of(communicator, verdict);
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.wire_dtype = TRIREME_DTYPE_BF16;
    enum { count = 1000 };
    float send[count], receive[count * MOST_RANKS];
    /* Whole numbers up to 256 survive bf16; 257 becomes 256 or 258, whichever is even: 256. */
    for (int i = 0; i < count; ++i) send[i] = (float)(i % 20 + rank);
    send[7] = 257;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, send, receive, count, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_MAX, &options));
    for (int i = 0; i < count; ++i) {
        EXPECT(verdict, receive[i] == (i == 7 ? 256 : (float)(i % 20 + world_size - 1)));
    }
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_gather(communicator, send, receive, count, TRIREME_DTYPE_F32,
                                     &options));
    for (int source = 0; source < world_size; ++source) {
        for (int i = 0; i < count; ++i) {
            EXPECT(verdict,
                   receive[source * count + i] == (i == 7 ? 256 : (float)(i % 20 + source)));
        }
    }
    for (int i = 0; i < count; ++i) receive[i] = rank == 0 ? send[i] : -1;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_broadcast(communicator, receive, count, TRIREME_DTYPE_F32, 0, &options));
    EXPECT(verdict, receive[8] == 8 && receive[7] == (rank == 0 ? 257 : 256));
    /* Sums are made in f32: in bf16, 256 + 0.5 + 0.5 and so on would stay 256. */
    const float part = rank == 0 ? 256 : 0.5f;
    float sum = 0;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, &part, &sum, 1, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, &options));
    /* 256, 256.5, 257, 257.5, 258 and 259.5; bf16 has 256, 258 and 260 there. */
    EXPECT(verdict, sum == (world_size == 8 ? 260 : world_size > 3 ? 258 : 256));
    /* Refused: a dtype other than f32, and a wire type that is not narrow. */
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_all_reduce(communicator, send, receive, 8, TRIREME_DTYPE_I32,
                                     TRIREME_REDUCTION_SUM, &options));
    options.wire_dtype = TRIREME_DTYPE_F64;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_all_reduce(communicator, send, receive, 8, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, &options));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT, trireme_barrier(communicator, &options));
}

static void other_wire(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.wire_dtype = rank == 0 ? TRIREME_DTYPE_BF16 : TRIREME_DTYPE_F16;
    float send = 1, receive = -7;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_all_reduce(communicator, &send, &receive, 1, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, &options));
    EXPECT(verdict, strstr(trireme_last_error(), "wire dtypes") != NULL);
    EXPECT(verdict, receive == -7);
}

static void elements_may_travel_narrow(void **state) {
    (void)state;
    run_world_sizes(travel_narrow);
    struct verdict verdicts[2] = {0};
    run_ranks(2, other_wire, verdicts);
    assert_verdicts(verdicts, 2);
}

static void run_algorithms(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = world_size_of(communicator, verdict);
    static const trireme_operation_kind operations[] = {TRIREME_OPERATION_KIND_ALL_REDUCE,
                                                        TRIREME_OPERATION_KIND_REDUCE_SCATTER,
                                                        TRIREME_OPERATION_KIND_ALL_GATHER,
                                                        TRIREME_OPERATION_KIND_BROADCAST,
                                                        TRIREME_OPERATION_KIND_REDUCE,
                                                        TRIREME_OPERATION_KIND_GATHER_V,
                                                        TRIREME_OPERATION_KIND_SCATTER_V,
                                                        TRIREME_OPERATION_KIND_ALL_TO_ALL,
                                                        TRIREME_OPERATION_KIND_ALL_TO_ALL_V};
    for (trireme_algorithm algorithm = TRIREME_ALGORITHM_DIRECT;
         algorithm <= TRIREME_ALGORITHM_NATIVE; ++algorithm) {
        for (size_t i = 0; i < COUNT_OF(operations); ++i) {
            static const uint64_t counts[] = {0, 1, 5, 3001};
            struct call call = make_call(operations[i], TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM,
                                         counts[(i + (size_t)algorithm) % 4], i, world_size);
            if (!reduces(call.operation)) call.reduction = 0;
            call.algorithm = algorithm;
            call.flags = i % 2 == 0 ? TRIREME_OPERATION_FLAG_REPRODUCIBLE : 0;
            struct call_memory memory;
            if (!allocate_call(communicator, &call, rank, world_size, false, &memory)) abort();
            fill_call(&call, &memory, rank, world_size, 3);
            const trireme_status status =
                run_call(communicator, &call, &memory, algorithm % 2 == 0, LONG_NS);
            /* An algorithm that an operation does not have is refused, on all ranks alike. */
            if (status == TRIREME_ERROR_UNSUPPORTED) {
                EXPECT(verdict, strstr(trireme_last_error(), "direct") != NULL);
                EXPECT(verdict,
                       algorithm != TRIREME_ALGORITHM_DIRECT &&
                           (algorithm != TRIREME_ALGORITHM_NATIVE || ranks_use_transport()));
            } else {
                EXPECT_STATUS(verdict, TRIREME_OK, status);
                EXPECT(verdict, is_call_right(&call, &memory, rank, world_size, 3));
            }
            free_call(&memory, false);
        }
    }
}

static void other_algorithm(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.algorithm = rank == 0 ? TRIREME_ALGORITHM_RING : TRIREME_ALGORITHM_DIRECT;
    float send = 1, receive = -7;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_all_reduce(communicator, &send, &receive, 1, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, &options));
    EXPECT(verdict, strstr(trireme_last_error(), "algorithms") != NULL);
    EXPECT(verdict, receive == -7);
}

static void every_algorithm_can_be_asked_for(void **state) {
    (void)state;
    run_world_sizes(run_algorithms);
    struct verdict verdicts[2] = {0};
    run_ranks(2, other_algorithm, verdicts);
    assert_verdicts(verdicts, 2);
}

static void hurry(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = world_size_of(communicator, verdict);
    trireme_operation_options high = TRIREME_OPERATION_OPTIONS_INIT;
    high.priority = TRIREME_PRIORITY_HIGH;
    /* Rank 0 joins the normal operation only when all urgent ones are done. */
    trireme_request *normal = NULL;
    if (rank != 0) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &normal));
    }
    for (int turn = 0; turn < 10; ++turn) {
        int32_t one = 1, sum = 0;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                                         TRIREME_REDUCTION_SUM, &high));
        EXPECT(verdict, sum == world_size);
    }
    if (rank == 0) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &normal));
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(normal, LONG_NS));
    trireme_request_destroy(normal);
}

static void urgent_operations_do_not_wait_behind_normal_ones(void **state) {
    (void)state;
    run_world_sizes(hurry);
}

/* The peer has joined, but does not call. */
static void a_deadline_ends_a_collective_and_names_who_is_missing(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *ranks[2];
    for (int rank = 0; rank < 2; ++rank) ranks[rank] = join_rank(rank, 2, rendezvous);
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = 30 * 1000 * 1000;
    float data[3] = {1, 2, 3}, result[3] = {-7, -7, -7};
    assert_int_equal(trireme_all_reduce(ranks[0], data, result, 3, TRIREME_DTYPE_F32,
                                        TRIREME_REDUCTION_SUM, &soon),
                     TRIREME_ERROR_TIMEOUT);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    assert_int_equal(trireme_last_error_info(&info), TRIREME_OK);
    assert_int_equal(info.blamed_count, 1);
    assert_int_equal(info.blamed[0], 1);
    assert_int_equal(info.sequence, 1);
    assert_string_equal(info.operation, "all_reduce");
    assert_true(result[0] == -7 && result[2] == -7);
    /* The peer hears of it as soon as it calls. */
    assert_int_equal(trireme_barrier(ranks[1], NULL), TRIREME_ERROR_TIMEOUT);
    for (int rank = 0; rank < 2; ++rank) trireme_communicator_destroy(ranks[rank]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reductions_match_a_plain_loop_for_every_dtype_and_reduction),
        cmocka_unit_test(moves_bring_every_byte_to_its_place),
        cmocka_unit_test(large_collectives_match_a_plain_loop),
        cmocka_unit_test(a_barrier_ends_when_all_have_come_and_orders_their_memory),
        cmocka_unit_test(every_rank_and_every_run_get_the_same_bits),
        cmocka_unit_test(a_nan_of_any_rank_makes_min_and_max_nan),
        cmocka_unit_test(started_and_plain_collectives_run_in_the_order_of_the_calls),
        cmocka_unit_test(a_disagreement_is_a_mismatch_on_every_rank_and_for_good),
        cmocka_unit_test(a_deadline_ends_a_collective_and_names_who_is_missing),
        cmocka_unit_test(elements_may_travel_narrow),
        cmocka_unit_test(every_algorithm_can_be_asked_for),
        cmocka_unit_test(urgent_operations_do_not_wait_behind_normal_ones),
    };
    return cmocka_run_group_tests_name("collectives", tests, NULL, NULL);
}
