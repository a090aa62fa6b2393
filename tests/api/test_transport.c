/*
 * Groups over a transport of the caller. The other tests check every operation's numbers there when
 * they run with TRIREME_TESTS_TRANSPORT; this one has the faults of a transport.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"
#include "transport.h"

#define MOST 8
#define SECOND_NS (1000ull * 1000 * 1000)
#define UNTOUCHED ((trireme_communicator *)(uintptr_t)0x5a5a)

static const char *const place = "transport://test";

/* ---- joining ---- */

static trireme_status
create(const char *rendezvous, const char *backend, const trireme_transport *transport) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.world_size = 1;
    options.rendezvous = rendezvous;
    options.backend = backend;
    options.transport = transport;
    trireme_communicator *communicator = UNTOUCHED;
    const trireme_status status = trireme_communicator_create(&options, &communicator);
    if (status == TRIREME_OK) {
        trireme_communicator_destroy(communicator);
    } else {
        assert_ptr_equal(communicator, UNTOUCHED);
    }
    return status;
}

static void a_wrong_transport_is_refused(void **state) {
    (void)state;
    struct net *const net = net_create(1);
    trireme_transport good, wrong;
    net_transport(net, 0, &good);
    assert_int_equal(create(place, NULL, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(trireme_last_error(), "needs options.transport"));
    assert_int_equal(create("local://x", NULL, &good), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(create("host://x", NULL, &good), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(create("transport://", NULL, &good), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(create(place, "local", &good), TRIREME_ERROR_UNSUPPORTED);
    assert_int_equal(create("local://x", "frames", NULL), TRIREME_ERROR_UNSUPPORTED);
    assert_int_equal(create(place, "nccl", &good), TRIREME_ERROR_UNSUPPORTED);
    wrong = good;
    wrong.struct_size = 8;
    assert_int_equal(create(place, NULL, &wrong), TRIREME_ERROR_INVALID_ARGUMENT);
    wrong = good;
    wrong.flags = 1;
    assert_int_equal(create(place, NULL, &wrong), TRIREME_ERROR_INVALID_ARGUMENT);
    wrong = good;
    wrong.send = NULL;
    assert_int_equal(create(place, NULL, &wrong), TRIREME_ERROR_INVALID_ARGUMENT);
    wrong = good;
    wrong.receive = NULL;
    assert_int_equal(create(place, NULL, &wrong), TRIREME_ERROR_INVALID_ARGUMENT);
    wrong = good;
    wrong.maximum_frame_bytes = TRIREME_TRANSPORT_FRAME_BYTES_MIN - 1;
    assert_int_equal(create(place, NULL, &wrong), TRIREME_ERROR_INVALID_ARGUMENT);
    /* None of them has been kept: only these two are given back. */
    assert_int_equal(create(place, NULL, &good), TRIREME_OK);
    assert_int_equal(create(place, "frames", &good), TRIREME_OK);
    net_destroy(net, 2);
}

static void the_backend_has_a_name(void **state) {
    (void)state;
    struct net *const net = net_create(1);
    trireme_communicator *communicator;
    assert_int_equal(net_join(net, 0, 1, place, 0, &communicator), TRIREME_OK);
    char text[32];
    assert_int_equal(trireme_communicator_get_backend(communicator, text, sizeof text, NULL),
                     TRIREME_OK);
    assert_string_equal(text, "frames (transport)");
    float value = 3;
    assert_int_equal(trireme_all_reduce(communicator, &value, &value, 1, TRIREME_DTYPE_F32,
                                        TRIREME_REDUCTION_SUM, NULL),
                     TRIREME_OK);
    assert_true(value == 3);
    trireme_communicator *child = UNTOUCHED;
    assert_int_equal(trireme_communicator_split(communicator, 0, 0, NULL, &child),
                     TRIREME_ERROR_UNSUPPORTED);
    assert_ptr_equal(child, UNTOUCHED);
    trireme_communicator_destroy(communicator);
    net_destroy(net, 1);
}

/* Ranks of one net, each on a thread. */
struct scene {
    struct net *net;
    int world_size;
    trireme_status statuses[MOST];
    trireme_error_info infos[MOST];
    struct verdict verdicts[MOST];
    uint64_t timeout_ns;
    void (*body)(struct scene *scene, int rank, trireme_communicator *communicator);
    const char *other_place; /* of the last rank */
    int other_size;          /* of the last rank; 0: the same */
};

static void run_rank(int rank, void *context) {
    struct scene *const scene = context;
    const int last = rank == scene->world_size - 1;
    trireme_communicator *communicator = NULL;
    if (!EXPECT_STATUS(&scene->verdicts[rank], TRIREME_OK,
                       net_join(scene->net, rank,
                                last && scene->other_size ? scene->other_size : scene->world_size,
                                last && scene->other_place ? scene->other_place : place,
                                scene->timeout_ns, &communicator))) {
        return;
    }
    scene->body(scene, rank, communicator);
    trireme_communicator_destroy(communicator);
}

static struct scene play(int world_size, enum fault fault, int frame, uint64_t timeout_ns,
                         void (*body)(struct scene *, int, trireme_communicator *)) {
    struct scene scene = {.net = net_create(world_size),
                          .world_size = world_size,
                          .timeout_ns = timeout_ns,
                          .body = body};
    if (fault != FAULT_NONE) net_break(scene.net, world_size - 1, fault, frame);
    run_threads(world_size, run_rank, &scene);
    net_destroy(scene.net, world_size);
    assert_verdicts(scene.verdicts, world_size);
    return scene;
}

static void remember(struct scene *scene, int rank, trireme_status status) {
    scene->statuses[rank] = status;
    scene->infos[rank] = (trireme_error_info)TRIREME_ERROR_INFO_INIT;
    if (trireme_last_error_info(&scene->infos[rank]) != TRIREME_OK) abort();
}

static void wait_ready(struct scene *scene, int rank, trireme_communicator *communicator) {
    remember(scene, rank, trireme_communicator_wait_ready(communicator, scene->timeout_ns));
}

static void ranks_that_mean_different_groups_hear_of_it(void **state) {
    (void)state;
    for (int which = 0; which < 2; ++which) {
        /* The rank of four also greets rank 3. */
        struct scene scene = {.net = net_create(4),
                              .world_size = 3,
                              .timeout_ns = LONG_NS,
                              .body = wait_ready,
                              .other_size = which == 0 ? 4 : 0,
                              .other_place = which == 1 ? "transport://other" : NULL};
        run_threads(3, run_rank, &scene);
        net_destroy(scene.net, 3);
        assert_verdicts(scene.verdicts, 3);
        for (int rank = 0; rank < 3; ++rank) {
            assert_int_equal(scene.statuses[rank], TRIREME_ERROR_MISMATCH);
        }
    }
}

static void a_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    struct net *const net = net_create(2);
    trireme_communicator *communicator;
    assert_int_equal(net_join(net, 0, 2, place, LONG_NS, &communicator), TRIREME_OK);
    assert_int_equal(trireme_communicator_wait_ready(communicator, 0), TRIREME_ERROR_TIMEOUT);
    assert_non_null(strstr(trireme_last_error(), "rank 1 has not joined"));
    trireme_communicator_destroy(communicator);
    net_destroy(net, 1);
}

/* ---- a transport that fails ---- */

/* Sums until something goes wrong; every sum before is right. */
static void sum_until_failure(struct scene *scene, int rank, trireme_communicator *communicator) {
    enum { COUNT = 5000 };
    static const int most_rounds = 10000;
    int32_t *const data = malloc(COUNT * sizeof *data);
    if (data == NULL) abort();
    trireme_status status = TRIREME_OK;
    for (int round = 0; status == TRIREME_OK && round < most_rounds; ++round) {
        for (int i = 0; i < COUNT; ++i) data[i] = rank + i + round;
        status = trireme_all_reduce(communicator, data, data, COUNT, TRIREME_DTYPE_I32,
                                    TRIREME_REDUCTION_SUM, NULL);
        const int n = scene->world_size;
        for (int i = 0; status == TRIREME_OK && i < COUNT; ++i) {
            const int sum = n * (i + round) + n * (n - 1) / 2;
            if (!EXPECT(&scene->verdicts[rank], data[i] == sum)) break;
        }
    }
    remember(scene, rank, status);
    /* It stays failed, with the first failure. */
    EXPECT_STATUS(&scene->verdicts[rank], status, trireme_barrier(communicator, NULL));
    free(data);
}

static void every_fault_fails_the_group_on_all_ranks(void **state) {
    (void)state;
    static const enum fault faults[] = {FAULT_SEND_FAILS, FAULT_RECEIVE_FAILS, FAULT_CUT,
                                        FAULT_LONGER,     FAULT_TWICE,         FAULT_GARBAGE,
                                        FAULT_STRANGER};
    static const int frames[] = {0, 1, 2, 5, 9, 30, 77};
    static const int sizes[] = {2, 3, 5};
    for (size_t f = 0; f < sizeof faults / sizeof *faults; ++f) {
        for (size_t at = 0; at < sizeof frames / sizeof *frames; ++at) {
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
                const struct scene scene =
                    play(sizes[s], faults[f], frames[at], LONG_NS, sum_until_failure);
                const int is_callback =
                    faults[f] == FAULT_SEND_FAILS || faults[f] == FAULT_RECEIVE_FAILS;
                for (int rank = 0; rank < sizes[s]; ++rank) {
                    const trireme_status status = scene.statuses[rank];
                    const trireme_status expected =
                        is_callback ? TRIREME_ERROR_CALLBACK : TRIREME_ERROR_CORRUPT;
                    if (status != expected) {
                        fail_msg("fault %d at frame %d: rank %d of %d got %s", (int)faults[f],
                                 frames[at], rank, sizes[s], trireme_status_name(status));
                    }
                    assert_true(scene.infos[rank].blamed_count > 0);
                }
            }
        }
    }
}

/* A frame that never comes leaves a gap, or a rank waits for its bytes: no longer than until its
 * deadline. */
static void a_lost_frame_is_a_failure(void **state) {
    (void)state;
    static const int frames[] = {0, 1, 2, 6, 20};
    for (size_t at = 0; at < sizeof frames / sizeof *frames; ++at) {
        const struct scene scene = play(3, FAULT_LOST, frames[at], SECOND_NS, sum_until_failure);
        for (int rank = 0; rank < 3; ++rank) {
            const trireme_status status = scene.statuses[rank];
            assert_true(status == TRIREME_ERROR_CORRUPT || status == TRIREME_ERROR_TIMEOUT);
        }
    }
}

/* A function of the transport that does not return costs a deadline and nothing else: no call and
 * no destruction waits for it, and what the caller gave is not touched once he has it back. */
static void a_transport_that_never_returns_holds_nobody(void **state) {
    (void)state;
    static const int frames[] = {0, 1, 4, 11};
    for (int which = 0; which < 2; ++which) {
        for (size_t at = 0; at < sizeof frames / sizeof *frames; ++at) {
            const struct scene scene = play(3, which == 0 ? FAULT_SEND_HANGS : FAULT_RECEIVE_HANGS,
                                            frames[at], SECOND_NS / 2, sum_until_failure);
            for (int rank = 0; rank < 3; ++rank) {
                const trireme_status status = scene.statuses[rank];
                assert_true(status == TRIREME_ERROR_TIMEOUT || status == TRIREME_ERROR_PEER_LOST);
            }
        }
    }
}

static void
a_disagreement_touches_nothing(struct scene *scene, int rank, trireme_communicator *communicator) {
    float send[8] = {1, 2, 3, 4, 5, 6, 7, 8}, receive[8];
    memset(receive, 0x5a, sizeof receive);
    remember(scene, rank,
             trireme_all_reduce(communicator, send, receive, rank == 2 ? 7 : 8, TRIREME_DTYPE_F32,
                                TRIREME_REDUCTION_SUM, NULL));
    for (size_t i = 0; i < sizeof receive; ++i) {
        EXPECT(&scene->verdicts[rank], ((unsigned char *)receive)[i] == 0x5a);
    }
    EXPECT(&scene->verdicts[rank], strstr(trireme_last_error(), "count 8") != NULL);
    EXPECT(&scene->verdicts[rank], strstr(trireme_last_error(), "count 7") != NULL);
}

static void ranks_that_disagree_get_a_mismatch(void **state) {
    (void)state;
    const struct scene scene = play(4, FAULT_NONE, 0, LONG_NS, a_disagreement_touches_nothing);
    for (int rank = 0; rank < 4; ++rank) {
        assert_int_equal(scene.statuses[rank], TRIREME_ERROR_MISMATCH);
        assert_int_equal(scene.infos[rank].blamed_count, 2);
    }
}

static void agree_and_shrink(struct scene *scene, int rank, trireme_communicator *communicator) {
    uint64_t flags = 7;
    trireme_communicator *smaller = NULL;
    EXPECT_STATUS(&scene->verdicts[rank], TRIREME_ERROR_UNSUPPORTED,
                  trireme_communicator_agree(communicator, &flags, 0));
    EXPECT(&scene->verdicts[rank], strstr(trireme_last_error(), "frames (transport)") != NULL);
    EXPECT_STATUS(&scene->verdicts[rank], TRIREME_ERROR_UNSUPPORTED,
                  trireme_communicator_shrink(communicator, NULL, &smaller));
    EXPECT(&scene->verdicts[rank], flags == 7 && smaller == NULL);
    EXPECT_STATUS(&scene->verdicts[rank], TRIREME_OK, trireme_barrier(communicator, NULL));
}

static void ranks_that_nobody_watches_decide_nothing(void **state) {
    (void)state;
    play(2, FAULT_NONE, 0, LONG_NS, agree_and_shrink);
}

static void abort_after_a_sum(struct scene *scene, int rank, trireme_communicator *communicator) {
    if (rank == 1) {
        EXPECT_STATUS(&scene->verdicts[rank], TRIREME_OK,
                      trireme_communicator_wait_ready(communicator, LONG_NS));
        EXPECT_STATUS(&scene->verdicts[rank], TRIREME_OK,
                      trireme_communicator_abort(communicator, "over"));
    }
    sum_until_failure(scene, rank, communicator);
    EXPECT(&scene->verdicts[rank],
           strstr(trireme_last_error(), "rank 1 aborted: \"over\"") != NULL);
}

static void an_abort_reaches_all(void **state) {
    (void)state;
    const struct scene scene = play(5, FAULT_NONE, 0, LONG_NS, abort_after_a_sum);
    for (int rank = 0; rank < 5; ++rank) {
        assert_int_equal(scene.statuses[rank], TRIREME_ERROR_ABORTED);
    }
}

/* Rank 1 sends its messages and is gone; the others get them, and then learn that it has left. */
static void
leave_after_a_message(struct scene *scene, int rank, trireme_communicator *communicator) {
    enum { COUNT = 40000 };
    static const uint64_t tag = 9;
    int32_t *const data = malloc(COUNT * sizeof *data);
    if (data == NULL) abort();
    struct verdict *const verdict = &scene->verdicts[rank];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == 1) {
        for (int i = 0; i < COUNT; ++i) data[i] = i;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send(communicator, data, COUNT, TRIREME_DTYPE_I32, 0, tag, NULL));
        scene->statuses[rank] = TRIREME_ERROR_PEER_LOST;
    } else {
        if (rank == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, data, COUNT, TRIREME_DTYPE_I32, 1, tag,
                                          NULL));
            for (int i = 0; i < COUNT; ++i) EXPECT(verdict, data[i] == i);
        }
        remember(scene, rank, trireme_barrier(communicator, NULL));
    }
    free(data);
}

static void what_was_sent_arrives_and_then_the_rank_has_left(void **state) {
    (void)state;
    const struct scene scene = play(2, FAULT_NONE, 0, LONG_NS, leave_after_a_message);
    for (int rank = 0; rank < 2; ++rank) {
        assert_int_equal(scene.statuses[rank], TRIREME_ERROR_PEER_LOST);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_transport_is_refused),
        cmocka_unit_test(the_backend_has_a_name),
        cmocka_unit_test(ranks_that_mean_different_groups_hear_of_it),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(every_fault_fails_the_group_on_all_ranks),
        cmocka_unit_test(a_lost_frame_is_a_failure),
        cmocka_unit_test(a_transport_that_never_returns_holds_nobody),
        cmocka_unit_test(ranks_that_disagree_get_a_mismatch),
        cmocka_unit_test(ranks_that_nobody_watches_decide_nothing),
        cmocka_unit_test(an_abort_reaches_all),
        cmocka_unit_test(what_was_sent_arrives_and_then_the_rank_has_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
