/*
 * The ranks' actions after a failure or a loss: agree on flags, and go on as a smaller group. Ranks
 * are threads here, so a lost rank is one that left, that others gave up, or that the failure
 * blames; deaths of processes are in tests/faults.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

#define SHORT_NS (300ull * 1000 * 1000)
#define UNTOUCHED ((trireme_communicator *)(uintptr_t)0x5a5a)
#define MOST 8

static const int sizes[] = {1, 2, 3, 4, 5, 8};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

struct trial {
    int world_size;
    int victim;
    atomic_int gone; /* ranks that are through with what others wait for */
    struct verdict verdicts[MOST];
};

/* Waits until as many ranks are through, without the library. */
static void wait_gone(struct trial *trial, int count) {
    while (atomic_load(&trial->gone) < count) usleep(200);
}

static int last_blames(int rank) {
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    return trireme_last_error_info(&info) == TRIREME_OK && info.blamed_count == 1 &&
           info.blamed[0] == rank;
}

/* The group holds these ranks, in order, and adds up right. */
static void
check_group(struct verdict *verdict, trireme_communicator *group, const int32_t *ranks, int count) {
    int32_t size = 0, seen[MOST] = {0}, own = -1;
    if (!EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_world_size(group, &size)))
        return;
    if (!EXPECT(verdict, size == count)) return;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_original_ranks(group, seen, MOST));
    EXPECT(verdict, memcmp(seen, ranks, sizeof *ranks * (size_t)count) == 0);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_rank(group, &own));
    double values[3] = {ranks[own], 1, 0.5}, sum = 0;
    for (int i = 0; i < count; ++i) sum += ranks[i];
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(group, values, values, 3, TRIREME_DTYPE_F64,
                                     TRIREME_REDUCTION_SUM, NULL));
    EXPECT(verdict, values[0] == sum && values[1] == count && values[2] == 0.5 * count);
}

/* Over sockets ranks that may not reach each other decide: only the larger part of them can, or
 * half of them with the lowest one. */
static int can_go_on_without(int world_size, int victim) {
    const bool by_frames = ranks_use_network() || network_is_memory();
    return !by_frames || world_size > 2 || victim != 0;
}

static int all_but(int world_size, int victim, int32_t *ranks) {
    int count = 0;
    for (int rank = 0; rank < world_size; ++rank) {
        if (rank != victim) ranks[count++] = rank;
    }
    return count;
}

static void shrink_and_check(struct verdict *verdict, trireme_communicator *communicator,
                             const int32_t *ranks, int count) {
    trireme_communicator *group = UNTOUCHED;
    if (!EXPECT_STATUS(verdict, TRIREME_OK,
                       trireme_communicator_shrink(communicator, NULL, &group))) {
        return;
    }
    check_group(verdict, group, ranks, count);
    trireme_communicator_destroy(group);
}

/* ---- nothing is wrong ---- */

static void agree_often(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    for (int round = 0; round < 50; ++round) {
        uint64_t flags = ~(1ull << (rank * 7 + round % 7)), expected = ~0ull;
        for (int other = 0; other < trial->world_size; ++other) {
            expected &= ~(1ull << (other * 7 + round % 7));
        }
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
        EXPECT(verdict, flags == expected);
        /* Agreeing and collectives do not disturb each other. */
        if (round % 10 == 3) {
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        }
    }
    int32_t ranks[MOST];
    shrink_and_check(verdict, communicator, ranks, all_but(trial->world_size, -1, ranks));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
}

static void a_healthy_group_agrees_and_shrinks_to_itself(void **state) {
    (void)state;
    for (int i = 0; i < SIZES; ++i) {
        struct trial trial = {.world_size = sizes[i]};
        run_ranks(sizes[i], agree_often, &trial);
        assert_verdicts(trial.verdicts, sizes[i]);
    }
}

/* ---- after a failure ---- */

static void agree_after_an_abort(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    if (rank == 0) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_abort(communicator, "revoked"));
    }
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED, trireme_barrier(communicator, NULL));
    uint64_t flags = rank == trial->world_size - 1 ? 0xf0 : 0xff;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
    EXPECT(verdict, flags == 0xf0);
    int32_t ranks[MOST];
    shrink_and_check(verdict, communicator, ranks, all_but(trial->world_size, -1, ranks));
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED, trireme_barrier(communicator, NULL));
}

static void an_aborted_group_agrees_and_shrinks_to_all_its_ranks(void **state) {
    (void)state;
    for (int i = 0; i < SIZES; ++i) {
        struct trial trial = {.world_size = sizes[i]};
        run_ranks(sizes[i], agree_after_an_abort, &trial);
        assert_verdicts(trial.verdicts, sizes[i]);
    }
}

static void
go_on_without_one_that_left(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    if (rank == trial->victim) return; /* leaves */
    uint64_t flags = ~0ull << rank;
    uint64_t expected = ~0ull << (trial->world_size - 1 - (trial->victim == trial->world_size - 1));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
    EXPECT(verdict, flags == expected);
    int32_t ranks[MOST];
    const int count = all_but(trial->world_size, trial->victim, ranks);
    shrink_and_check(verdict, communicator, ranks, count);
    /* The old group fails as it would have. */
    EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST, trireme_barrier(communicator, NULL));
    shrink_and_check(verdict, communicator, ranks, count);
}

static void a_group_goes_on_without_a_rank_that_left(void **state) {
    (void)state;
    for (int i = 1; i < SIZES; ++i) {
        for (int victim = 0; victim < sizes[i]; victim += 1 + sizes[i] / 3) {
            struct trial trial = {.world_size = sizes[i], .victim = victim};
            if (!can_go_on_without(sizes[i], victim)) continue;
            run_ranks(sizes[i], go_on_without_one_that_left, &trial);
            assert_verdicts(trial.verdicts, sizes[i]);
        }
    }
}

/* One after the other leaves, until one is alone. */
static void shrink_to_one(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_communicator *group = communicator;
    int through = 0;
    for (int size = trial->world_size; size > 1 && rank != size - 1; --size) {
        trireme_communicator *smaller = NULL;
        int32_t ranks[MOST];
        if (!EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST, trireme_barrier(group, NULL))) break;
        if (!EXPECT_STATUS(verdict, TRIREME_OK,
                           trireme_communicator_shrink(group, NULL, &smaller))) {
            break;
        }
        trireme_communicator_destroy(group);
        group = smaller;
        check_group(verdict, group, ranks, all_but(size - 1, -1, ranks));
        /* No rank leaves while others are still inside the last operation. */
        through += size - 1;
        atomic_fetch_add(&trial->gone, 1);
        wait_gone(trial, through);
    }
    trireme_communicator_destroy(group);
}

static void what_is_left_shrinks_again_until_one_is_alone(void **state) {
    (void)state;
    struct trial trial = {.world_size = 5};
    run_ranks(5, shrink_to_one, &trial);
    assert_verdicts(trial.verdicts, 5);
}

/* ---- ranks that do not come in time ---- */

static void
go_on_without_one_that_is_late(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    uint64_t flags = 3;
    trireme_communicator *group = UNTOUCHED;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == trial->victim) {
        wait_gone(trial, trial->world_size - 1);
        /* All ranks have called this barrier. So it may end well if the news of the deadline comes
         * later than the calls, as it can over a network. The next one cannot. */
        trireme_status status = trireme_barrier(communicator, NULL);
        if (status == TRIREME_OK) status = trireme_barrier(communicator, NULL);
        EXPECT(verdict, status == TRIREME_ERROR_TIMEOUT);
        EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                      trireme_communicator_agree(communicator, &flags, 0));
        EXPECT(verdict, last_blames(rank) && flags == 3);
        EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                      trireme_communicator_shrink(communicator, NULL, &group));
        EXPECT(verdict, last_blames(rank) && group == UNTOUCHED);
        EXPECT(verdict, strstr(trireme_last_error(), "counts as lost") != NULL);
        return;
    }
    /* Only one has the short deadline, when all others are there for sure: no other rank is blamed.
     */
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = SHORT_NS;
    const int hasty = trial->victim == 0 ? 1 : 0;
    if (rank == hasty) wait_gone(trial, trial->world_size - 2);
    if (rank != hasty) atomic_fetch_add(&trial->gone, 1);
    if (rank == hasty) usleep(100 * 1000);
    const trireme_status status = trireme_barrier(communicator, rank == hasty ? &options : NULL);
    EXPECT(verdict, status == TRIREME_ERROR_TIMEOUT);
    if (last_blames(trial->victim)) { /* else one came late although it was asked to come first */
        int32_t ranks[MOST];
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
        EXPECT(verdict, flags == 3);
        shrink_and_check(verdict, communicator, ranks,
                         all_but(trial->world_size, trial->victim, ranks));
    }
    if (rank == hasty) atomic_fetch_add(&trial->gone, 1);
}

static void a_late_rank_is_told_that_the_others_went_on(void **state) {
    (void)state;
    static const int places[][2] = {{2, 0}, {2, 1}, {3, 1}, {4, 0}, {5, 4}};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i) {
        struct trial trial = {.world_size = places[i][0], .victim = places[i][1]};
        run_ranks(trial.world_size, go_on_without_one_that_is_late, &trial);
        assert_verdicts(trial.verdicts, trial.world_size);
    }
}

/* Rank 2 never calls; rank 0 has little time, rank 1 a lot. */
static void agree_in_vain(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    uint64_t flags = rank == 0 ? 6 : 12;
    if (rank == 2) {
        wait_gone(trial, 2);
        EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                      trireme_communicator_agree(communicator, &flags, 0));
        EXPECT(verdict, flags == 12 && last_blames(2));
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT, trireme_barrier(communicator, NULL));
        return;
    }
    if (rank == 0) {
        const trireme_status status = trireme_communicator_agree(communicator, &flags, SHORT_NS);
        EXPECT(verdict, status == TRIREME_ERROR_TIMEOUT && flags == 6);
        trireme_error_info info = TRIREME_ERROR_INFO_INIT;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
        /* On a busy machine rank 1 may be late, too; then it counts as lost as well. */
        trial->victim = info.blamed_count == 1 ? 2 : 1;
        EXPECT(verdict, info.blamed[info.blamed_count - 1] == 2);
        EXPECT(verdict, strcmp(info.operation, "agree") == 0);
        atomic_fetch_add(&trial->gone, 1);
        wait_gone(trial, 2);
    } else {
        const trireme_status status = trireme_communicator_agree(communicator, &flags, 0);
        wait_gone(trial, 1);
        if (trial->victim == 2) {
            EXPECT(verdict, status == TRIREME_OK && flags == (6 & 12));
        } else {
            EXPECT(verdict, status == TRIREME_ERROR_PEER_LOST);
        }
        atomic_fetch_add(&trial->gone, 1);
    }
    if (trial->victim != 2) return;
    static const int32_t ranks[2] = {0, 1};
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
    EXPECT(verdict, flags == (6 & 12));
    shrink_and_check(verdict, communicator, ranks, 2);
}

static void who_is_waited_for_in_vain_counts_as_lost(void **state) {
    (void)state;
    struct trial trial = {.world_size = 3};
    run_ranks(3, agree_in_vain, &trial);
    assert_verdicts(trial.verdicts, 3);
}

/* ---- disagreement and failures on the way ---- */

static void agree_or_shrink(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_communicator *group = UNTOUCHED;
    uint64_t flags = 1;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  rank == 1 ? trireme_communicator_agree(communicator, &flags, 0)
                            : trireme_communicator_shrink(communicator, NULL, &group));
    EXPECT(verdict, group == UNTOUCHED && flags == 1);
    /* All ranks get the failure, and the next call finds all in step. */
    int32_t ranks[MOST];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
    shrink_and_check(verdict, communicator, ranks, all_but(trial->world_size, -1, ranks));
}

static void ranks_that_agree_and_ranks_that_shrink_are_told(void **state) {
    (void)state;
    for (int size = 2; size <= 5; ++size) {
        struct trial trial = {.world_size = size};
        run_ranks(size, agree_or_shrink, &trial);
        assert_verdicts(trial.verdicts, size);
    }
}

static void
shrink_where_one_cannot_join(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_communicator *group = UNTOUCHED;
    EXPECT_STATUS(verdict, TRIREME_ERROR_SYSTEM,
                  trireme_communicator_shrink(communicator, NULL, &group));
    EXPECT(verdict, group == UNTOUCHED);
    int32_t ranks[MOST];
    shrink_and_check(verdict, communicator, ranks, all_but(trial->world_size, -1, ranks));
}

static void a_rank_that_cannot_join_fails_the_call_on_all(void **state) {
    (void)state;
    static const char *const points[] = {"shrink.before_join=fail@2", "shrink.after_join=fail@1"};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; ++i) {
        struct trial trial = {.world_size = 3};
        assert_int_equal(trireme_failpoint_set(points[i]), TRIREME_OK);
        run_ranks(3, shrink_where_one_cannot_join, &trial);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        assert_verdicts(trial.verdicts, 3);
    }
}

/* In more ranks than a vote has bits. */
enum { CROWD = 70 };

struct crowd {
    int32_t blamed[CROWD]; /* -1: this rank could not join itself */
    struct verdict verdicts[CROWD];
};

static void
shrink_where_one_of_many_cannot_join(trireme_communicator *communicator, int rank, void *context) {
    struct crowd *const crowd = context;
    struct verdict *const verdict = &crowd->verdicts[rank];
    trireme_communicator *group = UNTOUCHED;
    EXPECT_STATUS(verdict, TRIREME_ERROR_SYSTEM,
                  trireme_communicator_shrink(communicator, NULL, &group));
    EXPECT(verdict, group == UNTOUCHED);
    crowd->blamed[rank] = -1;
    if (strstr(trireme_last_error(), "could not join the new group") != NULL) {
        trireme_error_info info = TRIREME_ERROR_INFO_INIT;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
        EXPECT(verdict, info.blamed_count == 1);
        crowd->blamed[rank] = info.blamed[0];
    }
    if (EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_communicator_shrink(communicator, NULL, &group))) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(group, NULL));
        trireme_communicator_destroy(group);
    }
}

static void one_of_many_ranks_that_cannot_join_is_named(void **state) {
    (void)state;
    if (ranks_use_transport() || network_is_memory()) skip(); /* many threads for each rank */
    static struct crowd crowd;
    assert_int_equal(trireme_failpoint_set("shrink.before_join=fail@9"), TRIREME_OK);
    run_ranks(CROWD, shrink_where_one_of_many_cannot_join, &crowd);
    assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
    assert_verdicts(crowd.verdicts, CROWD);
    int victim = -1;
    for (int rank = 0; rank < CROWD; ++rank) {
        if (crowd.blamed[rank] >= 0) continue;
        assert_int_equal(victim, -1);
        victim = rank;
    }
    assert_int_not_equal(victim, -1);
    for (int rank = 0; rank < CROWD; ++rank) {
        if (rank != victim) assert_int_equal(crowd.blamed[rank], victim);
    }
}

/* A call that fails on this rank alone, before or after its vote, keeps the others in step. */
static void agree_where_one_fails(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    int failures = 0;
    for (int round = 0; round < 4; ++round) {
        uint64_t flags = 5;
        trireme_status status = trireme_communicator_agree(communicator, &flags, 0);
        if (status == TRIREME_ERROR_SYSTEM) {
            ++failures;
            atomic_fetch_add(&trial->gone, 1);
            status = TRIREME_OK;
            /* Before the vote: this rank is not through with the round. */
            if (trial->victim != 0) --round;
        }
        EXPECT(verdict, status == TRIREME_OK && flags == 5);
    }
    EXPECT(verdict, failures <= 1);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT(verdict, atomic_load(&trial->gone) == 1);
}

static void a_failure_of_one_rank_keeps_all_in_step(void **state) {
    (void)state;
    static const char *const points[] = {"decide.before_vote=fail@4", "decide.after_vote=fail@4",
                                         "decide.before_decision=fail@2",
                                         "decide.after_decision=fail@4"};
    for (int i = 0; i < 4; ++i) {
        /* Over sockets no caller proposes. */
        if (ranks_use_network() && strstr(points[i], "before_decision") != NULL) continue;
        struct trial trial = {.world_size = 3, .victim = i == 0};
        assert_int_equal(trireme_failpoint_set(points[i]), TRIREME_OK);
        run_ranks(3, agree_where_one_fails, &trial);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        assert_verdicts(trial.verdicts, 3);
    }
}

/* ---- leaving in the middle ---- */

enum { ROUNDS = 40 };

struct storm {
    int world_size;
    uint64_t values[MOST][ROUNDS]; /* 0: none */
    struct verdict verdicts[MOST];
};

/* Rank r leaves before round 6 r + 4 at some moment while the others agree. */
static void agree_until_leaving(trireme_communicator *communicator, int rank, void *context) {
    struct storm *const storm = context;
    for (int round = 0; round < ROUNDS; ++round) {
        if (rank > 0 && round == rank * 6 + 4) return;
        uint64_t flags = 1ull << 63 | ~(1ull << rank);
        if (EXPECT_STATUS(&storm->verdicts[rank], TRIREME_OK,
                          trireme_communicator_agree(communicator, &flags, 0))) {
            storm->values[rank][round] = flags;
        }
    }
}

static void all_who_agree_have_the_same_value_while_others_leave(void **state) {
    (void)state;
    for (int repeat = 0; repeat < 20; ++repeat) {
        struct storm storm = {.world_size = 5};
        run_ranks(5, agree_until_leaving, &storm);
        assert_verdicts(storm.verdicts, 5);
        for (int round = 0; round < ROUNDS; ++round) {
            const uint64_t value = storm.values[0][round];
            for (int rank = 0; rank < 5; ++rank) {
                const int stays = rank == 0 || round < rank * 6 + 4;
                assert_int_equal(storm.values[rank][round], stays ? value : 0);
                assert_int_equal(value >> rank & 1, stays ? 0 : 1);
            }
        }
    }
}

struct waiting {
    trireme_communicator *communicator;
    struct verdict verdict;
};

static void *wait_for_agreement(void *context) {
    struct waiting *const waiting = context;
    uint64_t flags = 9;
    const trireme_status status =
        trireme_communicator_agree(waiting->communicator, &flags, LONG_NS);
    EXPECT(&waiting->verdict,
           status == TRIREME_ERROR_INVALID_STATE || status == TRIREME_ERROR_INVALID_HANDLE);
    EXPECT(&waiting->verdict, flags == 9);
    return NULL;
}

static void leave_under_way(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    if (rank == 1) {
        struct waiting waiting = {.communicator = communicator};
        pthread_t thread;
        if (pthread_create(&thread, NULL, wait_for_agreement, &waiting) != 0) abort();
        usleep(20 * 1000);
        trireme_communicator_destroy(communicator);
        pthread_join(thread, NULL);
        *verdict = waiting.verdict;
        atomic_fetch_add(&trial->gone, 1);
        return;
    }
    wait_gone(trial, 1);
    uint64_t flags = 7;
    int32_t ranks[MOST];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
    EXPECT(verdict, flags == 7);
    shrink_and_check(verdict, communicator, ranks, all_but(3, 1, ranks));
}

static void destruction_ends_a_wait_for_agreement(void **state) {
    (void)state;
    struct trial trial = {.world_size = 3};
    run_ranks(3, leave_under_way, &trial);
    assert_verdicts(trial.verdicts, 3);
}

/* ---- two threads of one rank ---- */

struct pair {
    trireme_communicator *communicator;
    struct verdict verdicts[2];
};

static void agree_on_a_thread(int index, void *context) {
    struct pair *const pair = context;
    for (int round = 0; round < 25; ++round) {
        uint64_t flags = 0xabc;
        EXPECT_STATUS(&pair->verdicts[index], TRIREME_OK,
                      trireme_communicator_agree(pair->communicator, &flags, 0));
        EXPECT(&pair->verdicts[index], flags == 0xabc);
    }
}

static void agree_on_two_threads(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct pair pair = {.communicator = communicator};
    run_threads(2, agree_on_a_thread, &pair);
    trial->verdicts[rank] = pair.verdicts[pair.verdicts[0].text[0] == 0];
}

static void two_threads_of_a_rank_agree_one_after_the_other(void **state) {
    (void)state;
    struct trial trial = {.world_size = 3};
    run_ranks(3, agree_on_two_threads, &trial);
    assert_verdicts(trial.verdicts, 3);
}

/* ---- arguments ---- */

static void call_from_a_callback(trireme_status status, void *user_data) {
    (void)status;
    trireme_communicator **const communicator = user_data;
    trireme_communicator *group = NULL;
    uint64_t flags = 1;
    if (trireme_communicator_agree(*communicator, &flags, 0) == TRIREME_ERROR_INVALID_STATE &&
        trireme_communicator_shrink(*communicator, NULL, &group) == TRIREME_ERROR_INVALID_STATE) {
        *communicator = NULL;
    }
}

static void ask_wrongly(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_communicator *group = UNTOUCHED;
    uint64_t flags = 1;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_agree(communicator, NULL, 0));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_communicator_agree(NULL, &flags, 0));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_shrink(communicator, NULL, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_communicator_shrink(NULL, NULL, &group));
    trireme_child_options options = TRIREME_CHILD_OPTIONS_INIT;
    options.flags = 4;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_shrink(communicator, &options, &group));
    EXPECT(verdict, flags == 1 && group == UNTOUCHED);
    trireme_communicator *seen = communicator;
    trireme_request *request = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &request));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_request_on_complete(request, call_from_a_callback, &seen));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
    trireme_request_destroy(request);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &request));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
    trireme_request_destroy(request);
    EXPECT(verdict, seen == NULL);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, 0));
    trireme_communicator_destroy(communicator);
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_communicator_agree(communicator, &flags, 0));
}

static void wrong_arguments_are_refused_before_anybody_hears_of_them(void **state) {
    (void)state;
    struct trial trial = {.world_size = 2};
    run_ranks(2, ask_wrongly, &trial);
    assert_verdicts(trial.verdicts, 2);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_healthy_group_agrees_and_shrinks_to_itself),
        cmocka_unit_test(an_aborted_group_agrees_and_shrinks_to_all_its_ranks),
        cmocka_unit_test(a_group_goes_on_without_a_rank_that_left),
        cmocka_unit_test(what_is_left_shrinks_again_until_one_is_alone),
        cmocka_unit_test(a_late_rank_is_told_that_the_others_went_on),
        cmocka_unit_test(who_is_waited_for_in_vain_counts_as_lost),
        cmocka_unit_test(ranks_that_agree_and_ranks_that_shrink_are_told),
        cmocka_unit_test(a_rank_that_cannot_join_fails_the_call_on_all),
        cmocka_unit_test(one_of_many_ranks_that_cannot_join_is_named),
        cmocka_unit_test(a_failure_of_one_rank_keeps_all_in_step),
        cmocka_unit_test(all_who_agree_have_the_same_value_while_others_leave),
        cmocka_unit_test(destruction_ends_a_wait_for_agreement),
        cmocka_unit_test(two_threads_of_a_rank_agree_one_after_the_other),
        cmocka_unit_test(wrong_arguments_are_refused_before_anybody_hears_of_them),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("survivors", tests, NULL, NULL);
}
