/*
 * Ranks that disagree about an operation: each of them gets MISMATCH, the message names both sides,
 * and no receive memory is touched. With ranks as threads and as processes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <unistd.h>

#include "calls.h"
#include "processes.h"
#include "ranks.h"

#define UNTOUCHED 0xa5

struct pair {
    struct call sides[2];
    int odd_rank; /* this rank calls sides[1] */
    int world_size;
    const char *word; /* what the message must hold besides the operations; NULL for nothing */
    const char *other_word;
    char rendezvous[64];
};

struct pairs {
    struct pair *items;
    int count;
    int capacity;
};

/* ---- the pairs ---- */

static struct call base_call(trireme_operation_kind operation) {
    struct call call = {.operation = operation,
                        .dtype = TRIREME_DTYPE_F32,
                        .reduction = TRIREME_REDUCTION_SUM,
                        .count = 12,
                        .root = 0};
    for (int rank = 0; rank < MOST_RANKS; ++rank) call.counts[rank] = 4;
    return call;
}

/* Each pair comes in several world sizes and with several odd ranks, in turn. */
static void add(struct pairs *pairs, struct call one, struct call two, const char *word,
                const char *other_word) {
    static const struct {
        int world_size;
        int odd_rank;
    } places[] = {{2, 1}, {3, 0}, {3, 2}, {2, 0}, {4, 1}, {3, 1}};
    if (pairs->count == pairs->capacity) {
        pairs->capacity = pairs->capacity * 2 + 64;
        pairs->items = realloc(pairs->items, (size_t)pairs->capacity * sizeof *pairs->items);
        if (pairs->items == NULL) abort();
    }
    const size_t turn = (size_t)pairs->count % (sizeof places / sizeof places[0]);
    pairs->items[pairs->count++] = (struct pair){.sides = {one, two},
                                                 .odd_rank = places[turn].odd_rank,
                                                 .world_size = places[turn].world_size,
                                                 .word = word,
                                                 .other_word = other_word};
}

static void add_different_operations(struct pairs *pairs) {
    const int last = TRIREME_OPERATION_KIND_ALL_TO_ALL_V;
    for (int one = TRIREME_OPERATION_KIND_ALL_REDUCE; one <= last; ++one) {
        for (int two = one + 1; two <= last; ++two) {
            if (!is_collective(one) || !is_collective(two)) continue;
            add(pairs, base_call(one), base_call(two), NULL, NULL);
            add(pairs, base_call(two), base_call(one), NULL, NULL);
        }
    }
}

static void add_different_counts(struct pairs *pairs, trireme_operation_kind operation) {
    static const uint64_t others[] = {0, 1, 11, 13, 24, 100003};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        struct call two = base_call(operation);
        two.count = others[i];
        static const char *const texts[] = {"count 0",  "count 1",  "count 11",
                                            "count 13", "count 24", "count 100003"};
        add(pairs, base_call(operation), two, "count 12", texts[i]);
    }
}

/* Of one sum and of different sums. */
static void add_different_v_counts(struct pairs *pairs, trireme_operation_kind operation) {
    for (int change = 0; change < 6; ++change) {
        struct call one = base_call(operation);
        struct call two = base_call(operation);
        two.counts[change % 2] += (uint64_t)change + 1;
        if (change >= 3) two.counts[(change + 1) % 2] -= (uint64_t)change - 2;
        if (change == 5) { /* the same blocks in another order */
            two = one;
            one.counts[0] = two.counts[1] = 7;
        }
        add(pairs, one, two, "count", "count");
    }
}

static void add_different_dtypes(struct pairs *pairs, trireme_operation_kind operation) {
    const int last = reduces(operation) ? TRIREME_DTYPE_F8E5M2 : TRIREME_DTYPE_BYTES;
    for (int dtype = TRIREME_DTYPE_I8; dtype <= last; ++dtype) {
        if (dtype == TRIREME_DTYPE_F32) continue;
        struct call two = base_call(operation);
        two.dtype = dtype;
        add(pairs, base_call(operation), two, trireme_dtype_name(TRIREME_DTYPE_F32),
            trireme_dtype_name(dtype));
    }
}

static void add_different_reductions(struct pairs *pairs, trireme_operation_kind operation) {
    static const trireme_reduction others[] = {TRIREME_REDUCTION_AVERAGE, TRIREME_REDUCTION_PRODUCT,
                                               TRIREME_REDUCTION_MIN, TRIREME_REDUCTION_MAX,
                                               TRIREME_REDUCTION_SCALED_SUM};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; ++i) {
        struct call two = base_call(operation);
        two.reduction = others[i];
        two.scale = 1.0;
        add(pairs, base_call(operation), two, trireme_reduction_name(TRIREME_REDUCTION_SUM),
            trireme_reduction_name(others[i]));
    }
    struct call bits = base_call(operation);
    bits.dtype = TRIREME_DTYPE_U32;
    bits.reduction = TRIREME_REDUCTION_BAND;
    struct call other_bits = bits;
    other_bits.reduction = TRIREME_REDUCTION_BXOR;
    add(pairs, bits, other_bits, trireme_reduction_name(TRIREME_REDUCTION_BAND),
        trireme_reduction_name(TRIREME_REDUCTION_BXOR));
}

static void add_different_scales(struct pairs *pairs, trireme_operation_kind operation) {
    static const double scales[][2] = {{1.0, 2.0},
                                       {0.5, -0.5},
                                       {1.0, 1.0000000000000002},
                                       {1e-9, 2e-9}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; ++i) {
        struct call one = base_call(operation);
        one.reduction = TRIREME_REDUCTION_SCALED_SUM;
        struct call two = one;
        one.scale = scales[i][0];
        two.scale = scales[i][1];
        add(pairs, one, two, "scale", "scale");
    }
}

static void add_different_roots(struct pairs *pairs, trireme_operation_kind operation) {
    for (int turn = 0; turn < 6; ++turn) {
        struct call two = base_call(operation);
        two.root = 1;
        add(pairs, base_call(operation), two, "root 0", "root 1");
        add(pairs, two, base_call(operation), "root 0", "root 1");
    }
}

/* Every rank may have counts of its own here, but what one sends another must expect. */
static void add_different_pair_counts(struct pairs *pairs) {
    for (uint64_t turn = 0; turn < 6; ++turn) {
        struct call two = base_call(TRIREME_OPERATION_KIND_ALL_TO_ALL_V);
        for (int i = 0; i < MOST_RANKS; ++i) two.counts[i] += turn * turn + 1;
        add(pairs, base_call(TRIREME_OPERATION_KIND_ALL_TO_ALL_V), two, "sends", "expects");
    }
}

static void add_different_ways(struct pairs *pairs, trireme_operation_kind operation) {
    struct call two = base_call(operation);
    two.algorithm = TRIREME_ALGORITHM_DIRECT;
    add(pairs, base_call(operation), two, "algorithm", "algorithm");
    two.algorithm = TRIREME_ALGORITHM_AUTOMATIC;
    two.flags = TRIREME_OPERATION_FLAG_REPRODUCIBLE;
    add(pairs, base_call(operation), two, "reproducible", "reproducible");
}

static struct pairs all_pairs(void) {
    struct pairs pairs = {0};
    add_different_operations(&pairs);
    for (int operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
         operation <= TRIREME_OPERATION_KIND_ALL_TO_ALL_V; ++operation) {
        if (!is_collective(operation)) continue;
        add_different_ways(&pairs, operation);
        if (operation == TRIREME_OPERATION_KIND_BARRIER) continue;
        if (operation == TRIREME_OPERATION_KIND_ALL_TO_ALL_V) {
            add_different_pair_counts(&pairs);
        } else if (is_v_form(operation)) {
            add_different_v_counts(&pairs, operation);
        } else {
            add_different_counts(&pairs, operation);
        }
        add_different_dtypes(&pairs, operation);
        if (reduces(operation)) {
            add_different_reductions(&pairs, operation);
            add_different_scales(&pairs, operation);
        }
        if (has_root(operation)) add_different_roots(&pairs, operation);
    }
    return pairs;
}

/* Between hosts pieces make a call with an algorithm, or with many elements. */
static bool goes_in_pieces(const struct pair *pair) {
    const uint64_t carried = 512; /* elements of any type that travel with a call */
    bool in_pieces = false;
    for (int side = 0; side < 2; ++side) {
        const struct call *const call = &pair->sides[side];
        in_pieces |= call->algorithm != TRIREME_ALGORITHM_AUTOMATIC || call->count > carried;
    }
    return in_pieces && ranks_use_network();
}

/* ---- one rank ---- */

static void call_own_side(trireme_communicator *communicator, const struct pair *pair, int rank,
                          struct outcome *outcome) {
    const struct call *const call = &pair->sides[rank == pair->odd_rank];
    const bool shared = pair->sides[0].operation % 2 == 0;
    struct call_memory memory;
    if (!allocate_call(communicator, call, rank, pair->world_size, shared, &memory)) {
        outcome->wrong = true;
        return;
    }
    const unsigned char own = (unsigned char)(1 + rank);
    memset(memory.send, own, memory.send_bytes);
    memset(memory.receive, UNTOUCHED, memory.receive_bytes);
    /* A rank that moves pieces sees calls as they come, and waits a moment for more of them. One of
     * those that it names then comes last. */
    if (goes_in_pieces(pair) && rank == (pair->odd_rank == 0 ? 1 : 0)) usleep(1000);
    keep_error(outcome, run_call(communicator, call, &memory, false, PATIENT_NS));
    outcome->later = run_call(communicator, call, &memory, false, PATIENT_NS);
    for (uint64_t i = 0; i < memory.receive_bytes; ++i) {
        /* An algorithm between hosts moves bytes beside the comparison, but no peer's ones. */
        const bool may_be = ranks_use_network() && memory.receive[i] == own;
        outcome->wrong |= memory.receive[i] != UNTOUCHED && !may_be;
    }
    free_call(&memory, shared);
}

static void as_process(int rank, void *context, struct outcome *outcome) {
    const struct pair *const pair = context;
    trireme_communicator *const communicator =
        join_process(rank, pair->world_size, pair->rendezvous, PATIENT_NS);
    call_own_side(communicator, pair, rank, outcome);
    trireme_communicator_destroy(communicator);
}

struct threads {
    const struct pair *pair;
    struct outcome *outcomes;
};

static void as_thread(trireme_communicator *communicator, int rank, void *context) {
    const struct threads *const threads = context;
    call_own_side(communicator, threads->pair, rank, &threads->outcomes[rank]);
}

/* ---- outcomes ---- */

/* All ranks name the two lowest ranks that differ. But ranks that move pieces name two of those
 * that have called in time: a busy machine may hold a rank for longer than the others wait. */
static void check(const struct pair *pair, const struct outcome *outcomes) {
    const char *const one = operation_text(pair->sides[0].operation);
    const char *const two = operation_text(pair->sides[1].operation);
    for (int rank = 0; rank < pair->world_size; ++rank) {
        const struct outcome *const o = &outcomes[rank];
        const bool named = strstr(o->message, one) != NULL && strstr(o->message, two) != NULL &&
                           strstr(o->message, "rank ") != NULL;
        const bool told = pair->word == NULL || (strstr(o->message, pair->word) != NULL &&
                                                 strstr(o->message, pair->other_word) != NULL);
        /* Rank 0 is compared with the first rank that differs from it. */
        const int other = pair->odd_rank == 0 ? 1 : pair->odd_rank;
        const int *const ranks = o->info.blamed;
        const bool lowest = o->info.blamed_count == 2 && ranks[0] == 0 && ranks[1] == other;
        const bool differ = o->info.blamed_count == 2 && ranks[0] < ranks[1] &&
                            (ranks[0] == pair->odd_rank || ranks[1] == pair->odd_rank);
        const bool blamed = goes_in_pieces(pair) ? differ : lowest;
        if (o->status == TRIREME_ERROR_MISMATCH && o->later == TRIREME_ERROR_MISMATCH &&
            !o->wrong && !o->hung && named && told && blamed) {
            continue;
        }
        print_error(
            "%s against %s (%s, %s), %d ranks, odd rank %d: rank %d got %s, later %s%s%s, "
            "blames %u ranks: %s\n",
            one, two, pair->word != NULL ? pair->word : "-",
            pair->other_word != NULL ? pair->other_word : "-", pair->world_size, pair->odd_rank,
            rank, trireme_status_name(o->status), trireme_status_name(o->later),
            o->wrong ? ", memory touched" : "", o->hung ? ", hangs" : "", o->info.blamed_count,
            o->message);
        fail();
    }
}

/* First, while this process has not used the library: each child begins afresh. */
static void processes_that_disagree_get_mismatch(void **state) {
    (void)state;
    struct pairs pairs = all_pairs();
    int trials = 0;
    for (int i = 0; i < pairs.count; ++i) {
        if (is_quick() && i % 8 != 0) continue;
        struct processes processes;
        struct pair *const pair = &pairs.items[i];
        unique_host_rendezvous(pair->rendezvous, sizeof pair->rendezvous);
        start_processes(&processes, pair->world_size, as_process, pair);
        wait_processes(&processes);
        for (int rank = 0; rank < pair->world_size; ++rank) {
            if (processes.outcomes[rank].exit_code == 0) continue;
            fail_msg("%s against %s, %d ranks, odd rank %d: rank %d ended with code %d, signal %d",
                     operation_text(pair->sides[0].operation),
                     operation_text(pair->sides[1].operation), pair->world_size, pair->odd_rank,
                     rank, processes.outcomes[rank].exit_code, processes.outcomes[rank].signal);
        }
        check(pair, processes.outcomes);
        free_processes(&processes);
        ++trials;
    }
    printf("mismatch: %d pairs between processes\n", trials);
    if (!is_quick()) assert_true(trials >= 200);
    free(pairs.items);
}

static void threads_that_disagree_get_mismatch(void **state) {
    (void)state;
    struct pairs pairs = all_pairs();
    for (int i = 0; i < pairs.count; ++i) {
        struct outcome *const outcomes = calloc(MOST_RANKS, sizeof *outcomes);
        assert_non_null(outcomes);
        struct threads threads = {&pairs.items[i], outcomes};
        run_ranks(pairs.items[i].world_size, as_thread, &threads);
        check(&pairs.items[i], outcomes);
        free(outcomes);
    }
    printf("mismatch: %d pairs between threads\n", pairs.count);
    assert_true(pairs.count >= 200);
    free(pairs.items);
}

/* ---- a rank that has not called ---- */

#define SOON_NS (10ull * 1000 * 1000 * 1000) /* far less than the deadline of the calls */

/* Ranks 0 and 1 differ. Rank 2 calls nothing of theirs: it waits for a message that never comes. */
static void differ_without_rank_2(trireme_communicator *communicator, int rank, void *context) {
    struct outcome *const outcome = &((struct outcome *)context)[rank];
    const uint64_t count = 100003;
    float *const data = calloc(count, sizeof *data);
    if (data == NULL) abort();
    outcome->later = trireme_communicator_wait_ready(communicator, LONG_NS);
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = rank == 2 ? SOON_NS : LONG_NS;
    keep_error(outcome,
               rank == 2 ? trireme_receive(communicator, data, 1, TRIREME_DTYPE_F32, 0, 5, &options)
                         : trireme_all_reduce(communicator, data, data, count - (uint64_t)rank,
                                              TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, &options));
    free(data);
}

static void a_rank_that_has_not_called_is_told(void **state) {
    (void)state;
    if (!ranks_use_network()) return; /* in one memory the ranks wait for all calls */
    struct outcome *const outcomes = calloc(3, sizeof *outcomes);
    assert_non_null(outcomes);
    run_ranks(3, differ_without_rank_2, outcomes);
    for (int rank = 0; rank < 3; ++rank) {
        const struct outcome *const o = &outcomes[rank];
        assert_int_equal(o->later, TRIREME_OK);
        assert_int_equal(o->status, TRIREME_ERROR_MISMATCH);
        assert_int_equal(o->info.blamed_count, 2);
        assert_int_equal(o->info.blamed[0], 0);
        assert_int_equal(o->info.blamed[1], 1);
    }
    free(outcomes);
}

/* ---- a rank that calls a moment later ---- */

struct later {
    pthread_barrier_t before;
    trireme_error_info infos[3];
    struct verdict verdicts[3];
};

static void
differ_a_moment_before_rank_0(trireme_communicator *communicator, int rank, void *context) {
    struct later *const later = context;
    const uint64_t count = 100003;
    float *const data = calloc(count, sizeof *data);
    if (data == NULL) abort();
    struct verdict *const verdict = &later->verdicts[rank];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_wait_ready(communicator, LONG_NS));
    pthread_barrier_wait(&later->before);
    if (rank == 0) usleep(4000);
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_all_reduce(communicator, data, data, count - (uint64_t)rank,
                                     TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL));
    later->infos[rank].struct_size = sizeof later->infos[rank];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&later->infos[rank]));
    free(data);
}

/* Ranks 1 and 2 differ, and wait a moment for rank 0. A busy machine may hold it for longer. */
static void a_rank_that_calls_a_moment_later_is_named(void **state) {
    (void)state;
    if (!ranks_use_network()) return; /* in one memory the ranks wait for all calls */
    int named = 0;
    for (int i = 0; i < 20; ++i) {
        struct later later = {0};
        pthread_barrier_init(&later.before, NULL, 3);
        run_ranks(3, differ_a_moment_before_rank_0, &later);
        pthread_barrier_destroy(&later.before);
        assert_verdicts(later.verdicts, 3);
        bool by_all = true;
        for (int rank = 0; rank < 3; ++rank) {
            assert_int_equal(later.infos[rank].blamed_count, 2);
            by_all &= later.infos[rank].blamed[0] == 0 && later.infos[rank].blamed[1] == 1;
        }
        named += by_all;
    }
    printf("mismatch: rank 0 is named in %d of 20 calls\n", named);
    assert_true(named >= 5);
}

/* ---- messages ---- */

struct message_case {
    uint64_t counts[2]; /* of the sender and of the receiver */
    trireme_dtype dtypes[2];
    const char *words[2];
};

static const struct message_case message_cases[] = {
    {{3, 4}, {TRIREME_DTYPE_F32, TRIREME_DTYPE_F32}, {"3", "4"}},
    {{4, 3}, {TRIREME_DTYPE_F32, TRIREME_DTYPE_F32}, {"4", "3"}},
    {{0, 5}, {TRIREME_DTYPE_I32, TRIREME_DTYPE_I32}, {"0", "5"}},
    {{100000, 99999}, {TRIREME_DTYPE_I32, TRIREME_DTYPE_I32}, {"100000", "99999"}},
    {{8, 8}, {TRIREME_DTYPE_F32, TRIREME_DTYPE_I32}, {"f32", "i32"}},
    {{8, 4}, {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64}, {"f32", "f64"}}, /* as many bytes */
};

static void exchange(trireme_communicator *communicator, const struct message_case *message,
                     int rank, struct outcome *outcome) {
    static const uint64_t most = 100000;
    unsigned char *const data = malloc(most * 8);
    if (data == NULL) abort();
    memset(data, UNTOUCHED, most * 8);
    outcome->later = trireme_communicator_wait_ready(communicator, LONG_NS);
    if (rank == 0) {
        const trireme_status sent =
            trireme_send(communicator, data, message->counts[0], message->dtypes[0], 1, 5, NULL);
        outcome->numbers[0] = sent;
    } else {
        keep_error(outcome, trireme_receive(communicator, data, message->counts[1],
                                            message->dtypes[1], 0, 5, NULL));
        for (uint64_t i = 0; i < most * 8; ++i) outcome->wrong |= data[i] != UNTOUCHED;
    }
    free(data);
}

static void exchange_as_thread(trireme_communicator *communicator, int rank, void *context) {
    struct {
        const struct message_case *message;
        struct outcome *outcomes;
    } *const both = context;
    exchange(communicator, both->message, rank, &both->outcomes[rank]);
}

static void a_receiver_that_wants_something_else_gets_mismatch(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof message_cases / sizeof message_cases[0]; ++i) {
        struct outcome *const outcomes = calloc(2, sizeof *outcomes);
        assert_non_null(outcomes);
        struct {
            const struct message_case *message;
            struct outcome *outcomes;
        } both = {&message_cases[i], outcomes};
        run_ranks(2, exchange_as_thread, &both);
        assert_int_equal(outcomes[0].later, TRIREME_OK);
        assert_int_equal(outcomes[1].later, TRIREME_OK);
        assert_int_equal(outcomes[1].status, TRIREME_ERROR_MISMATCH);
        assert_false(outcomes[1].wrong);
        assert_non_null(strstr(outcomes[1].message, message_cases[i].words[0]));
        assert_non_null(strstr(outcomes[1].message, message_cases[i].words[1]));
        /* A send is done once its memory is free, which can be before its peer looks at it. */
        assert_true(outcomes[0].numbers[0] == TRIREME_OK ||
                    outcomes[0].numbers[0] == TRIREME_ERROR_MISMATCH ||
                    outcomes[0].numbers[0] == TRIREME_ERROR_PEER_LOST);
        free(outcomes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_that_disagree_get_mismatch),
        cmocka_unit_test(threads_that_disagree_get_mismatch),
        cmocka_unit_test(a_rank_that_has_not_called_is_told),
        cmocka_unit_test(a_rank_that_calls_a_moment_later_is_named),
        cmocka_unit_test(a_receiver_that_wants_something_else_gets_mismatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
