/*
 * Groups made from a group: who is in which, in what order, that they work, that they are
 * independent of each other, and what happens when ranks do not agree.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define SHORT_NS (200ull * 1000 * 1000)
#define UNTOUCHED ((trireme_communicator *)(uintptr_t)0x5a5a)
#define MOST 8

static const int sizes[] = {1, 2, 3, 4, 5, 8};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* The expected child, found without the library. */
struct expected {
    int count;
    int32_t ranks[MOST];
};

static void check_child(struct verdict *verdict, trireme_communicator *child, int own,
                        const struct expected *expected) {
    int32_t rank = -1, size = -1, ranks[MOST] = {0};
    if (!EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_rank(child, &rank))) return;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_world_size(child, &size));
    EXPECT(verdict, size == expected->count);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_original_ranks(child, ranks, MOST));
    EXPECT(verdict, memcmp(ranks, expected->ranks, sizeof *ranks * (size_t)size) == 0);
    EXPECT(verdict, rank >= 0 && rank < size && ranks[rank] == own);
    int64_t sum = 0, mine = 1ll << (own * 4);
    for (int i = 0; i < expected->count; ++i) sum += 1ll << (expected->ranks[i] * 4);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(child, &mine, &mine, 1, TRIREME_DTYPE_I64,
                                     TRIREME_REDUCTION_SUM, NULL));
    EXPECT(verdict, mine == sum);
    int32_t seen[MOST] = {0}, number = own;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_gather(child, &number, seen, 1, TRIREME_DTYPE_I32, NULL));
    EXPECT(verdict, memcmp(seen, expected->ranks, sizeof *seen * (size_t)size) == 0);
}

struct patterns {
    int world_size;
    struct verdict verdicts[MOST];
};

static int color_of(int pattern, int rank) {
    switch (pattern) {
        case 0: return 0;
        case 1: return rank % 2;
        case 2: return rank % 3 - 1; /* some are in none */
        case 3: return -1;
        default: return INT32_MAX - rank / 2;
    }
}

static int key_of(int pattern, int rank) {
    switch (pattern) {
        case 0: return -rank;
        case 1: return 0;
        case 2: return rank % 2 == 0 ? INT32_MAX : INT32_MIN;
        default: return rank * 7 % 5;
    }
}

static void split_by_patterns(trireme_communicator *communicator, int rank, void *context) {
    struct patterns *const patterns = context;
    struct verdict *const verdict = &patterns->verdicts[rank];
    for (int pattern = 0; pattern < 5; ++pattern) {
        struct expected expected = {0};
        for (int other = 0; other < patterns->world_size; ++other) {
            if (color_of(pattern, other) != color_of(pattern, rank)) continue;
            int at = expected.count++;
            while (at > 0 && key_of(pattern, expected.ranks[at - 1]) > key_of(pattern, other)) {
                expected.ranks[at] = expected.ranks[at - 1];
                --at;
            }
            expected.ranks[at] = other;
        }
        trireme_communicator *child = UNTOUCHED;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_communicator_split(communicator, color_of(pattern, rank),
                                                 key_of(pattern, rank), NULL, &child));
        if (color_of(pattern, rank) < 0) {
            EXPECT(verdict, child == NULL);
        } else {
            check_child(verdict, child, rank, &expected);
        }
        trireme_communicator_destroy(child);
    }
}

static void a_split_makes_the_groups_of_its_colors_in_the_order_of_keys(void **state) {
    (void)state;
    for (int i = 0; i < SIZES; ++i) {
        struct patterns patterns = {.world_size = sizes[i]};
        run_ranks(sizes[i], split_by_patterns, &patterns);
        assert_verdicts(patterns.verdicts, sizes[i]);
    }
}

static void make_lists(trireme_communicator *communicator, int rank, void *context) {
    struct patterns *const patterns = context;
    struct verdict *const verdict = &patterns->verdicts[rank];
    const int n = patterns->world_size;
    for (int length = 1; length <= n; ++length) {
        struct expected expected = {.count = length}; /* the last ranks, backwards */
        int position = -1;
        for (int i = 0; i < length; ++i) {
            expected.ranks[i] = n - 1 - i;
            if (expected.ranks[i] == rank) position = i;
        }
        trireme_communicator *child = UNTOUCHED;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_communicator_subgroup(communicator, expected.ranks, (uint64_t)length,
                                                    NULL, &child));
        if (position < 0) {
            EXPECT(verdict, child == NULL);
        } else {
            check_child(verdict, child, rank, &expected);
        }
        trireme_communicator_destroy(child);
    }
    struct expected all = {.count = n};
    for (int i = 0; i < n; ++i) all.ranks[i] = i;
    trireme_communicator *twin = UNTOUCHED;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_duplicate(communicator, NULL, &twin));
    check_child(verdict, twin, rank, &all);
    check_child(verdict, communicator, rank, &all);
    trireme_communicator_destroy(twin);
}

static void a_subgroup_has_the_order_of_its_list_and_a_duplicate_all(void **state) {
    (void)state;
    for (int i = 0; i < SIZES; ++i) {
        struct patterns patterns = {.world_size = sizes[i]};
        run_ranks(sizes[i], make_lists, &patterns);
        assert_verdicts(patterns.verdicts, sizes[i]);
    }
}

/* Ranks 0 to 7 in halves, the second half backwards, then each half by parity. */
static void make_grandchildren(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int half = rank / 4;
    trireme_communicator *child = NULL, *grandchild = NULL;
    if (!EXPECT_STATUS(verdict, TRIREME_OK,
                       trireme_communicator_split(communicator, half, half ? -rank : rank, NULL,
                                                  &child))) {
        return;
    }
    int32_t own = -1;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_rank(child, &own));
    EXPECT(verdict, own == (half ? 7 - rank : rank));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_split(child, own % 2, 0, NULL, &grandchild));
    /* The parents are not needed any more. */
    trireme_communicator_destroy(child);
    static const struct expected expected[2][2] = {{{2, {0, 2}}, {2, {1, 3}}},
                                                   {{2, {7, 5}}, {2, {6, 4}}}};
    check_child(verdict, grandchild, rank, &expected[half][own % 2]);
    trireme_communicator_destroy(grandchild);
}

static void children_have_children_whose_ranks_are_those_of_the_root(void **state) {
    (void)state;
    struct verdict verdicts[MOST] = {0};
    run_ranks(8, make_grandchildren, verdicts);
    assert_verdicts(verdicts, 8);
}

static void ask_for_ranks(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    int32_t ranks[3] = {-7, -7, -7};
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_get_original_ranks(communicator, ranks, 2));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_get_original_ranks(communicator, NULL, 3));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_communicator_get_original_ranks(NULL, ranks, 3));
    EXPECT(verdict, ranks[0] == -7 && ranks[2] == -7);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_get_original_ranks(communicator, ranks, 3));
    EXPECT(verdict, ranks[0] == 0 && ranks[1] == 1 && ranks[2] == 2);
}

static void a_created_communicator_has_its_own_ranks(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, ask_for_ranks, verdicts);
    assert_verdicts(verdicts, 3);
}

/* ---- independence ---- */

static void fail_one_by_one(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_communicator *first = NULL, *second = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_duplicate(communicator, NULL, &first));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_duplicate(communicator, NULL, &second));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_wait_ready(second, LONG_NS));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(first, NULL));
    /* A rank may be inside a barrier that others have left: that of `first` must be over. */
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == 1) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_abort(first, "only this one"));
    }
    /* A failed child harms neither its parent nor its sister. */
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED, trireme_barrier(first, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(second, NULL));
    /* A failed parent ends the child that is left. */
    if (rank == 2) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_abort(communicator, "the parent"));
    }
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED, trireme_barrier(communicator, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED, trireme_barrier(second, NULL));
    EXPECT(verdict, strstr(trireme_last_error(), "failed: rank 2 aborted") != NULL);
    /* In its own words for the others: rank 2 has told them. */
    if (rank != 2) EXPECT(verdict, strstr(trireme_last_error(), "is this rank") == NULL);
    trireme_communicator *none = UNTOUCHED;
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED,
                  trireme_communicator_duplicate(communicator, NULL, &none));
    EXPECT(verdict, none == UNTOUCHED);
    /* All its ranks are there: they make another one, which has no part in that. */
    trireme_communicator *third = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_shrink(second, NULL, &third));
    trireme_communicator_destroy(communicator);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(third, NULL));
    trireme_communicator_destroy(first);
    trireme_communicator_destroy(second);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(third, NULL));
    trireme_communicator_destroy(third);
}

static void a_child_ends_with_its_parent_but_fails_alone(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, fail_one_by_one, verdicts);
    assert_verdicts(verdicts, 3);
}

/* Two threads a rank, each with a communicator of its own, in whatever order they come. */
struct pair {
    trireme_communicator *communicators[2];
    struct verdict verdicts[2];
    int rank;
};

static void work_alone(int index, void *context) {
    struct pair *const pair = context;
    struct verdict *const verdict = &pair->verdicts[index];
    for (int round = 0; round < 50; ++round) {
        /* The two threads of a rank begin with different ones of the two. */
        float value = (float)(pair->rank + round + index);
        if (!EXPECT_STATUS(verdict, TRIREME_OK,
                           trireme_all_reduce(pair->communicators[index], &value, &value, 1,
                                              TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL))) {
            return;
        }
        EXPECT(verdict, value == (float)(3 + 3 * (round + index)));
    }
}

static void work_in_pairs(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    struct pair pair = {.rank = rank};
    pair.communicators[0] = communicator;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_duplicate(communicator, NULL, &pair.communicators[1]));
    run_threads(2, work_alone, &pair);
    for (int i = 0; i < 2 && verdict->text[0] == 0; ++i) *verdict = pair.verdicts[i];
    trireme_communicator_destroy(pair.communicators[1]);
}

static void communicators_of_several_threads_go_on_at_once(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, work_in_pairs, verdicts);
    assert_verdicts(verdicts, 3);
}

/* A blocked child does not block its parent, nor the other way round. */
static void
block_one_and_use_the_other(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_communicator *child = NULL;
    trireme_request *request = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_duplicate(communicator, NULL, &child));
    if (rank == 0) EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(child, NULL, &request));
    for (int i = 0; i < 20; ++i) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    }
    if (rank != 0) EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(child, NULL, &request));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
    trireme_request_destroy(request);
    trireme_communicator_destroy(child);
}

static void a_blocked_child_does_not_block_its_parent(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, block_one_and_use_the_other, verdicts);
    assert_verdicts(verdicts, 2);
}

/* ---- the same name twice ---- */

struct runs {
    char rendezvous[64];
    struct verdict verdicts[2];
    trireme_communicator *children[2][2]; /* by run and rank */
};

static void duplicate_first(int rank, void *context) {
    struct runs *const runs = context;
    trireme_communicator *const parent = join_rank(rank, 2, runs->rendezvous);
    EXPECT_STATUS(&runs->verdicts[rank], TRIREME_OK,
                  trireme_communicator_duplicate(parent, NULL, &runs->children[0][rank]));
    trireme_communicator_destroy(parent);
}

static void duplicate_second(int rank, void *context) {
    struct runs *const runs = context;
    struct verdict *const verdict = &runs->verdicts[rank];
    trireme_communicator *const parent = join_rank(rank, 2, runs->rendezvous);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_duplicate(parent, NULL, &runs->children[1][rank]));
    for (int run = 0; run < 2; ++run) {
        struct expected both = {2, {0, 1}};
        check_child(verdict, runs->children[run][rank], rank, &both);
        trireme_communicator_destroy(runs->children[run][rank]);
    }
    trireme_communicator_destroy(parent);
}

static void children_of_parents_of_one_name_never_meet(void **state) {
    (void)state;
    struct runs runs = {0};
    unique_rendezvous(runs.rendezvous, sizeof runs.rendezvous);
    run_threads(2, duplicate_first, &runs);
    assert_verdicts(runs.verdicts, 2);
    run_threads(2, duplicate_second, &runs);
    assert_verdicts(runs.verdicts, 2);
}

/* ---- failures ---- */

typedef trireme_status
make_function(trireme_communicator *communicator, int rank, trireme_communicator **out);

static trireme_status
split_or_duplicate(trireme_communicator *communicator, int rank, trireme_communicator **out) {
    return rank == 1 ? trireme_communicator_duplicate(communicator, NULL, out)
                     : trireme_communicator_split(communicator, 0, 0, NULL, out);
}

static trireme_status
lists_in_other_orders(trireme_communicator *communicator, int rank, trireme_communicator **out) {
    const int32_t lists[2][2] = {{0, 1}, {1, 0}};
    return trireme_communicator_subgroup(communicator, lists[rank == 2], 2, NULL, out);
}

static trireme_status
lists_of_other_lengths(trireme_communicator *communicator, int rank, trireme_communicator **out) {
    const int32_t list[3] = {0, 1, 2};
    return trireme_communicator_subgroup(communicator, list, rank == 0 ? 3 : 2, NULL, out);
}

static trireme_status
split_or_gather(trireme_communicator *communicator, int rank, trireme_communicator **out) {
    char send[24] = {0}, receive[72];
    return rank == 0
               ? trireme_all_gather(communicator, send, receive, 24, TRIREME_DTYPE_BYTES, NULL)
               : trireme_communicator_split(communicator, rank, 0, NULL, out);
}

static trireme_status
split_or_barrier(trireme_communicator *communicator, int rank, trireme_communicator **out) {
    return rank == 2 ? trireme_barrier(communicator, NULL)
                     : trireme_communicator_split(communicator, rank, 0, NULL, out);
}

static make_function *const disagreements[] = {split_or_duplicate, lists_in_other_orders,
                                               lists_of_other_lengths, split_or_gather,
                                               split_or_barrier};

struct disagreement {
    make_function *make;
    struct verdict verdicts[3];
};

static void disagree(trireme_communicator *communicator, int rank, void *context) {
    struct disagreement *const disagreement = context;
    struct verdict *const verdict = &disagreement->verdicts[rank];
    trireme_communicator *child = UNTOUCHED;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, disagreement->make(communicator, rank, &child));
    EXPECT(verdict, child == UNTOUCHED);
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, trireme_barrier(communicator, NULL));
}

static void ranks_that_disagree_get_a_mismatch_and_no_child(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof disagreements / sizeof disagreements[0]; ++i) {
        struct disagreement disagreement = {.make = disagreements[i]};
        run_ranks(3, disagree, &disagreement);
        assert_verdicts(disagreement.verdicts, 3);
    }
}

static void ask_wrongly(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_communicator *child = UNTOUCHED;
    const int32_t lists[][3] = {{0, 1, 3}, {0, 1, 0}, {-1, 0, 1}, {0, 1, INT32_MIN}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; ++i) {
        EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                      trireme_communicator_subgroup(communicator, lists[i], 3, NULL, &child));
        EXPECT(verdict, strstr(trireme_last_error(), "ranks[") != NULL);
    }
    const int32_t whole[3] = {0, 1, 2};
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_subgroup(communicator, whole, 0, NULL, &child));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_subgroup(communicator, NULL, 0, NULL, &child));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_subgroup(communicator, NULL, 3, NULL, &child));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_subgroup(communicator, whole, UINT64_MAX, NULL, &child));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_subgroup(communicator, whole, 3, NULL, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_split(communicator, 0, 0, NULL, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_split(communicator, -1, 0, NULL, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_duplicate(communicator, NULL, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_communicator_split(NULL, 0, 0, NULL, &child));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_communicator_subgroup(NULL, whole, 3, NULL, &child));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_communicator_duplicate(NULL, NULL, &child));
    trireme_child_options options = TRIREME_CHILD_OPTIONS_INIT;
    options.flags = 1;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_duplicate(communicator, &options, &child));
    options.flags = 0;
    options.struct_size = 8;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_duplicate(communicator, &options, &child));
    options.struct_size = sizeof options;
    options.name = "\xff";
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_duplicate(communicator, &options, &child));
    char name[65];
    memset(name, 'n', 64);
    name[64] = 0;
    options.name = name;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_duplicate(communicator, &options, &child));
    EXPECT(verdict, child == UNTOUCHED);
    /* All that was refused before the others heard of it. */
    name[63] = 0;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_duplicate(communicator, &options, &child));
    trireme_communicator_destroy(child);
}

static void wrong_arguments_leave_the_parent_as_it_was(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, ask_wrongly, verdicts);
    assert_verdicts(verdicts, 3);
}

static void
wait_for_one_that_does_not_come(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_communicator *child = UNTOUCHED;
    trireme_child_options options = TRIREME_CHILD_OPTIONS_INIT;
    options.timeout_ns = SHORT_NS;
    if (rank != 2) {
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_communicator_split(communicator, 0, 0, &options, &child));
        trireme_error_info info = TRIREME_ERROR_INFO_INIT;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
        /* On a busy machine the other one may come too late as well. */
        EXPECT(verdict, info.blamed_count >= 1 && info.blamed[info.blamed_count - 1] == 2);
    } else {
        /* Ends when the others gave up. */
        while (trireme_communicator_wait_ready(communicator, 0) == TRIREME_OK) {
        }
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_communicator_split(communicator, 0, 0, &options, &child));
    }
    EXPECT(verdict, child == UNTOUCHED);
}

static void the_deadline_of_the_call_names_who_is_missing(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, wait_for_one_that_does_not_come, verdicts);
    assert_verdicts(verdicts, 3);
}

static void
split_where_one_cannot_join(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_communicator *child = UNTOUCHED;
    EXPECT_STATUS(verdict, TRIREME_ERROR_SYSTEM,
                  trireme_communicator_split(communicator, rank % 2, 0, NULL, &child));
    EXPECT(verdict, child == UNTOUCHED);
    EXPECT(verdict, strstr(trireme_last_error(), "could not join its new group") != NULL);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(verdict, info.blamed_count == 1 && info.system_error != 0);
    /* The parent goes on, and the next one works. */
    struct expected all = {4, {0, 1, 2, 3}};
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_duplicate(communicator, NULL, &child));
    check_child(verdict, child, rank, &all);
    trireme_communicator_destroy(child);
}

static void a_rank_that_cannot_join_fails_the_call_on_all_and_nothing_else(void **state) {
    (void)state;
    static const char *const points[] = {"child.before_join=fail@2", "child.after_join=fail@3",
                                         "join.after_claim=fail@6"};
    for (size_t i = 0; i < sizeof points / sizeof points[0]; ++i) {
        struct verdict verdicts[4] = {0};
        /* The third counts the four joins of the parents, too. */
        assert_int_equal(trireme_failpoint_set(points[i]), TRIREME_OK);
        run_ranks(4, split_where_one_cannot_join, verdicts);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        assert_verdicts(verdicts, 4);
    }
}

static void call_from_a_callback(trireme_status status, void *user_data) {
    (void)status;
    trireme_communicator **const communicator = user_data;
    trireme_communicator *child = NULL;
    if (trireme_communicator_duplicate(*communicator, NULL, &child) ==
        TRIREME_ERROR_INVALID_STATE) {
        *communicator = NULL;
    }
}

static void duplicate_in_a_callback(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_communicator *seen = communicator;
    trireme_request *request = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &request));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_request_on_complete(request, call_from_a_callback, &seen));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
    trireme_request_destroy(request);
    /* The next operation of the progress thread runs after the callback. */
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &request));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
    trireme_request_destroy(request);
    EXPECT(verdict, seen == NULL);
    trireme_communicator *child = UNTOUCHED;
    trireme_communicator_destroy(communicator);
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_HANDLE,
                  trireme_communicator_duplicate(communicator, NULL, &child));
    EXPECT(verdict, child == UNTOUCHED);
}

static void callbacks_and_destroyed_parents_make_no_children(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, duplicate_in_a_callback, verdicts);
    assert_verdicts(verdicts, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_makes_the_groups_of_its_colors_in_the_order_of_keys),
        cmocka_unit_test(a_subgroup_has_the_order_of_its_list_and_a_duplicate_all),
        cmocka_unit_test(children_have_children_whose_ranks_are_those_of_the_root),
        cmocka_unit_test(a_created_communicator_has_its_own_ranks),
        cmocka_unit_test(a_child_ends_with_its_parent_but_fails_alone),
        cmocka_unit_test(communicators_of_several_threads_go_on_at_once),
        cmocka_unit_test(a_blocked_child_does_not_block_its_parent),
        cmocka_unit_test(children_of_parents_of_one_name_never_meet),
        cmocka_unit_test(ranks_that_disagree_get_a_mismatch_and_no_child),
        cmocka_unit_test(wrong_arguments_leave_the_parent_as_it_was),
        cmocka_unit_test(the_deadline_of_the_call_names_who_is_missing),
        cmocka_unit_test(a_rank_that_cannot_join_fails_the_call_on_all_and_nothing_else),
        cmocka_unit_test(callbacks_and_destroyed_parents_make_no_children),
    };
    return cmocka_run_group_tests_name("subgroup", tests, NULL, NULL);
}
