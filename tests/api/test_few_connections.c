/*
 * Groups whose ranks have few connections at first: what a rank does with one that it has no
 * connection to. 12 ranks, as threads: those at a distance of 1, 2, 4 and 8 have one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "processes.h"
#include "ranks.h"

enum { RANKS = 12, FAR = 5, BYTES = 3000, LARGE = 500000, TRIALS = 5 };
#define U8 TRIREME_DTYPE_U8

typedef void body_function(trireme_communicator **group, int rank, struct verdict *verdict);

struct job {
    body_function *body;
    char rendezvous[120];
    struct verdict verdicts[RANKS];
};

/* The body may leave the group by itself: then the handle is NULL. */
static void run_rank(int rank, void *context) {
    struct job *const job = context;
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = RANKS;
    options.rendezvous = job->rendezvous;
    options.backend = "frames";
    options.timeout_ns = PATIENT_NS;
    trireme_communicator *group = NULL;
    struct verdict *const verdict = &job->verdicts[rank];
    if (!EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_create(&options, &group))) return;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(group, NULL));
    job->body(&group, rank, verdict);
    trireme_communicator_destroy(group);
}

static void run(body_function *body) {
    struct job job = {.body = body};
    char meeting[80];
    unique_meeting(meeting, sizeof meeting);
    snprintf(job.rendezvous, sizeof job.rendezvous, "%s?connections=few", meeting);
    run_threads(RANKS, run_rank, &job);
    assert_verdicts(job.verdicts, RANKS);
}

static void leave(trireme_communicator **group) {
    trireme_communicator_destroy(*group);
    *group = NULL;
}

/* The sender has no connection when it leaves. */
static void send_and_leave(trireme_communicator **group, int rank, struct verdict *verdict) {
    unsigned char data[BYTES];
    for (int i = 0; i < BYTES; ++i) data[i] = (unsigned char)(i * 7);
    if (rank == 0) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_send(*group, data, BYTES, U8, FAR, 3, NULL));
        leave(group);
    } else if (rank == FAR) {
        unsigned char in[BYTES] = {0};
        sleep_ms(100);
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_receive(*group, in, BYTES, U8, 0, 3, NULL));
        EXPECT(verdict, memcmp(in, data, BYTES) == 0);
    }
}

static void a_message_arrives_although_its_sender_leaves_at_once(void **state) {
    (void)state;
    for (int trial = 0; trial < TRIALS; ++trial) run(send_and_leave);
}

/* Rank 0 would lead the decision. */
static void
agree_without_the_first(trireme_communicator **group, int rank, struct verdict *verdict) {
    if (rank == 0) return leave(group);
    sleep_ms(200);
    uint64_t value = ~(1ull << rank);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_agree(*group, &value, 0));
    uint64_t all = ~0ull;
    for (int each = 1; each < RANKS; ++each) all &= ~(1ull << each);
    EXPECT(verdict, value == all);
    /* The group has not failed: ranks at a distance of 3 and 6 meet only now. */
    int32_t out = rank;
    int32_t in = -1;
    const int peer = rank == 2 ? FAR : rank == FAR ? 2 : rank == 1 ? 7 : rank == 7 ? 1 : -1;
    if (peer < 0) return;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_send_receive(*group, &out, 1, peer, 1, &in, 1, peer, 1, TRIREME_DTYPE_I32,
                                       NULL));
    EXPECT(verdict, in == peer);
}

static void ranks_agree_after_the_first_has_left(void **state) {
    (void)state;
    run(agree_without_the_first);
}

/* A rank hears of a far one that has left when it calls it. */
static void send_to_one_that_left(trireme_communicator **group, int rank, struct verdict *verdict) {
    if (rank == FAR) return leave(group);
    if (rank != 0 && rank != 8) return;
    sleep_ms(200);
    unsigned char *const data = calloc(1, LARGE);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                  trireme_send(*group, data, LARGE, U8, FAR, 3, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(verdict, blames_only(&info, FAR));
    free(data);
}

static void a_send_to_a_far_rank_that_has_left_fails(void **state) {
    (void)state;
    run(send_to_one_that_left);
}

int main(void) {
    setenv("TRIREME_TOKEN", "a token for tests of 27 bytes", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_arrives_although_its_sender_leaves_at_once),
        cmocka_unit_test(ranks_agree_after_the_first_has_left),
        cmocka_unit_test(a_send_to_a_far_rank_that_has_left_fails),
    };
    return cmocka_run_group_tests_name("few connections", tests, NULL, NULL);
}
