/* Messages: order, tags, sizes, both ways at once, oneself; and every way to fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define SHORT_NS (20ull * 1000 * 1000)
#define LARGE 3000001 /* bytes: many times a ring */

static unsigned char pattern(uint64_t salt, uint64_t index) {
    return (unsigned char)(index * 31 + index / 251 + salt * 57 + 1);
}

static unsigned char *make_pattern(uint64_t salt, uint64_t bytes) {
    unsigned char *const memory = malloc(bytes + 1);
    if (memory == NULL) abort();
    for (uint64_t i = 0; i < bytes; ++i) memory[i] = pattern(salt, i);
    return memory;
}

static int has_pattern(const unsigned char *memory, uint64_t salt, uint64_t bytes) {
    for (uint64_t i = 0; i < bytes; ++i) {
        if (memory[i] != pattern(salt, i)) return 0;
    }
    return 1;
}

static trireme_status finish(trireme_request *request) {
    const trireme_status status = trireme_request_wait(request, LONG_NS);
    trireme_request_destroy(request);
    return status;
}

/* --- success --- */

static void pass_on(trireme_communicator *communicator, int rank, void *context) {
    static const uint64_t counts[] = {0, 1, 3, 1000, 16379, 16380, 65536, 100003};
    struct verdict *const verdict = (struct verdict *)context + rank;
    int32_t n = 0;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_world_size(communicator, &n));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
        const uint64_t bytes = counts[i] * 4;
        const int to = (rank + 1) % n, from = (rank + n - 1) % n;
        unsigned char *const out = make_pattern((uint64_t)rank + i, bytes);
        unsigned char *const in = calloc(bytes + 1, 1);
        trireme_request *request = NULL;
        if (rank % 2 == 0) { /* both forms meet each other */
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send_start(communicator, out, counts[i], TRIREME_DTYPE_F32, to, i,
                                             NULL, &request));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, in, counts[i], TRIREME_DTYPE_F32, from, i,
                                          NULL));
        } else {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_start(communicator, in, counts[i], TRIREME_DTYPE_F32,
                                                from, i, NULL, &request));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, out, counts[i], TRIREME_DTYPE_F32, to, i,
                                       NULL));
        }
        EXPECT_STATUS(verdict, TRIREME_OK, finish(request));
        EXPECT(verdict, has_pattern(in, (uint64_t)from + i, bytes));
        free(out);
        free(in);
    }
}

/* Lengths round that of a frame of 8,192 bytes: over a transport frames end anywhere, also between
 * two messages. */
static void send_many(trireme_communicator *communicator, int rank, void *context) {
    enum { MESSAGES = 1500, BASE = 8000, SPREAD = 256 };
    struct verdict *const verdict = (struct verdict *)context + rank;
    for (uint64_t i = 0; i < MESSAGES; ++i) {
        const uint64_t bytes = BASE + i * 37 % SPREAD;
        unsigned char *const memory = rank == 0 ? make_pattern(i, bytes) : calloc(bytes, 1);
        const trireme_status status =
            rank == 0
                ? trireme_send(communicator, memory, bytes, TRIREME_DTYPE_BYTES, 1, 0, NULL)
                : trireme_receive(communicator, memory, bytes, TRIREME_DTYPE_BYTES, 0, 0, NULL);
        EXPECT_STATUS(verdict, TRIREME_OK, status);
        EXPECT(verdict, has_pattern(memory, i, bytes));
        free(memory);
        if (status != TRIREME_OK) return;
    }
}

static void messages_about_as_long_as_a_frame_arrive_whole(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, send_many, verdicts);
    assert_verdicts(verdicts, 2);
}

static void a_ring_of_ranks_passes_messages_of_every_size_on(void **state) {
    (void)state;
    static const int world_sizes[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof world_sizes / sizeof *world_sizes; ++i) {
        struct verdict verdicts[8] = {0};
        run_ranks(world_sizes[i], pass_on, verdicts);
        assert_verdicts(verdicts, world_sizes[i]);
    }
}

/* Small messages move at once where a rank has no other under way. They keep the order of their
 * sends within a tag. Their receives wait for them, come later, or ask for another tag first. Some
 * messages have no elements, and one receive takes a shorter message. */
static void send_small(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_operation_options any = TRIREME_OPERATION_OPTIONS_INIT;
    any.flags = TRIREME_OPERATION_FLAG_ANY_TAG;
    for (int32_t i = 0; i < 2000; ++i) {
        int32_t in[4] = {-1, -1, -1, -1};
        if (rank == 0) {
            const int32_t first[3] = {i, i + 1, i + 2};
            const int32_t second = i + 3, third = i + 4;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, first, 3, TRIREME_DTYPE_I32, 1, 2, NULL));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, NULL, 0, TRIREME_DTYPE_I32, 1, 1, NULL));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, &second, 1, TRIREME_DTYPE_I32, 1, 2, NULL));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, &third, 1, TRIREME_DTYPE_I32, 1, 3, NULL));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, NULL, 0, TRIREME_DTYPE_I32, 1, 4, NULL));
            continue;
        }
        if (i % 3 == 1) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, NULL, 0, TRIREME_DTYPE_I32, 0, 1, NULL));
        }
        trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_receive_message(communicator, in, 4, TRIREME_DTYPE_I32, 0, 2, NULL,
                                              &info));
        EXPECT(verdict, info.count == 3 && info.tag == 2 && info.source == 0);
        EXPECT(verdict, in[0] == i && in[1] == i + 1 && in[2] == i + 2 && in[3] == -1);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_receive(communicator, in, 1, TRIREME_DTYPE_I32, 0, 2, NULL));
        EXPECT(verdict, in[0] == i + 3);
        if (i % 3 != 1) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, NULL, 0, TRIREME_DTYPE_I32, 0, 1, NULL));
        }
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_receive(communicator, in, 1, TRIREME_DTYPE_I32, 0, 0, &any));
        EXPECT(verdict, in[0] == i + 4);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send(communicator, NULL, 0, TRIREME_DTYPE_I32, 0, 4, NULL));
    }
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_get_statistics(communicator, &statistics));
    EXPECT(verdict, statistics.operations >= 2000 * 5);
}

static void small_messages_keep_their_order(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, send_small, verdicts);
    assert_verdicts(verdicts, 2);
}

static void exchange_large(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int peer = 1 - rank;
    unsigned char *const out = make_pattern((uint64_t)rank, LARGE);
    unsigned char *const in = calloc(LARGE, 1);
    /* Both send before they receive. */
    trireme_request *send = NULL, *receive = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_send_start(communicator, out, LARGE, TRIREME_DTYPE_BYTES, peer, 1, NULL,
                                     &send));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_receive_start(communicator, in, LARGE, TRIREME_DTYPE_BYTES, peer, 1, NULL,
                                        &receive));
    EXPECT_STATUS(verdict, TRIREME_OK, finish(send));
    EXPECT_STATUS(verdict, TRIREME_OK, finish(receive));
    EXPECT(verdict, has_pattern(in, (uint64_t)peer, LARGE));
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_get_statistics(communicator, &statistics));
    EXPECT(verdict, statistics.operations == 2 && statistics.failures == 0);
    EXPECT(verdict, statistics.sent_bytes == LARGE && statistics.received_bytes == LARGE);
    free(out);
    free(in);
}

static void large_messages_cross_both_ways_at_once(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, exchange_large, verdicts);
    assert_verdicts(verdicts, 2);
}

static void mix_tags(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    enum { MESSAGES = 24 };
    /* Rank 0 sends 24 messages with the tags 0, 1, 2 in turn; rank 1 takes all of tag 2 first. */
    if (rank == 0) {
        trireme_request *requests[MESSAGES];
        unsigned char *payloads[MESSAGES];
        for (uint64_t i = 0; i < MESSAGES; ++i) {
            payloads[i] = make_pattern(i, i * 5000);
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send_start(communicator, payloads[i], i * 5000, TRIREME_DTYPE_U8,
                                             1, i % 3, NULL, &requests[i]));
        }
        for (int i = 0; i < MESSAGES; ++i) {
            EXPECT_STATUS(verdict, TRIREME_OK, finish(requests[i]));
            free(payloads[i]);
        }
        return;
    }
    unsigned char *const in = malloc(MESSAGES * 5000);
    for (int tag = 2; tag >= 0; --tag) {
        for (uint64_t i = (uint64_t)tag; i < MESSAGES; i += 3) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, in, i * 5000, TRIREME_DTYPE_U8, 0,
                                          (uint64_t)tag, NULL));
            EXPECT(verdict, has_pattern(in, i, i * 5000));
        }
    }
    free(in);
}

static void messages_of_one_tag_keep_their_order_whatever_tag_is_asked_for_first(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, mix_tags, verdicts);
    assert_verdicts(verdicts, 2);
}

static void receive_early(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    int64_t numbers[6] = {0};
    trireme_request *requests[6];
    for (int i = 0; i < 6; ++i) {
        /* The receives of one tag take the messages in the order of the receives. */
        if (rank == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_start(communicator, &numbers[i], 1, TRIREME_DTYPE_I64, 1,
                                                (uint64_t)i % 2, NULL, &requests[i]));
        }
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    for (int i = 0; i < 6; ++i) {
        if (rank == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK, finish(requests[i]));
            EXPECT(verdict, numbers[i] == 100 + i);
        } else {
            const int64_t number = 100 + i;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, &number, 1, TRIREME_DTYPE_I64, 0,
                                       (uint64_t)i % 2, NULL));
        }
    }
}

static void receives_that_wait_are_served_in_their_order(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, receive_early, verdicts);
    assert_verdicts(verdicts, 2);
}

static void talk_to_all(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    enum { RANKS = 4, TURNS = 20 };
    for (int turn = 0; turn < TURNS; ++turn) {
        trireme_request *requests[2 * RANKS];
        int32_t out[RANKS], in[RANKS];
        int64_t one = 1, sum = 0;
        for (int peer = 0; peer < RANKS; ++peer) {
            out[peer] = turn * 100 + rank * 10 + peer;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_start(communicator, &in[peer], 1, TRIREME_DTYPE_I32, peer,
                                                ~0ull, NULL, &requests[2 * peer]));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send_start(communicator, &out[peer], 1, TRIREME_DTYPE_I32, peer,
                                             ~0ull, NULL, &requests[2 * peer + 1]));
        }
        /* Messages need no order with collectives. */
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I64,
                                         TRIREME_REDUCTION_SUM, NULL));
        for (int i = 0; i < 2 * RANKS; ++i) EXPECT_STATUS(verdict, TRIREME_OK, finish(requests[i]));
        for (int peer = 0; peer < RANKS; ++peer) {
            EXPECT(verdict, in[peer] == turn * 100 + peer * 10 + rank);
        }
        EXPECT(verdict, sum == RANKS);
    }
}

static void all_ranks_talk_to_all_beside_collectives(void **state) {
    (void)state;
    struct verdict verdicts[4] = {0};
    run_ranks(4, talk_to_all, verdicts);
    assert_verdicts(verdicts, 4);
}

static void talk_to_oneself(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    unsigned char *const out = make_pattern(9, LARGE);
    unsigned char *const in = calloc(LARGE, 1);
    trireme_request *request = NULL;
    for (int turn = 0; turn < 2; ++turn) {
        if (turn == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send_start(communicator, out, LARGE, TRIREME_DTYPE_U8, rank, 4,
                                             NULL, &request));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, in, LARGE, TRIREME_DTYPE_U8, rank, 4,
                                          NULL));
        } else {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_start(communicator, in, LARGE, TRIREME_DTYPE_U8, rank, 4,
                                                NULL, &request));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, out, LARGE, TRIREME_DTYPE_U8, rank, 4, NULL));
        }
        EXPECT_STATUS(verdict, TRIREME_OK, finish(request));
        EXPECT(verdict, has_pattern(in, 9, LARGE));
        memset(in, 0, LARGE);
    }
    free(out);
    free(in);
}

static void a_rank_can_send_to_itself(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 2; ++world_size) {
        struct verdict verdicts[2] = {0};
        run_ranks(world_size, talk_to_oneself, verdicts);
        assert_verdicts(verdicts, world_size);
    }
}

static void send_and_go(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    int32_t number = 41 + rank;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_wait_ready(communicator, LONG_NS));
    if (rank == 0) {
        /* Small enough to lie in the ring, so it is sent before its receive. */
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send(communicator, &number, 1, TRIREME_DTYPE_I32, 1, 0, NULL));
        trireme_communicator_destroy(communicator);
        return;
    }
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_receive(communicator, &number, 1, TRIREME_DTYPE_I32, 0, 0, NULL));
    EXPECT(verdict, number == 41);
    EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                  trireme_receive(communicator, &number, 1, TRIREME_DTYPE_I32, 0, 0, NULL));
}

static void what_a_rank_sent_before_it_left_still_arrives(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, send_and_go, verdicts);
    assert_verdicts(verdicts, 2);
}

/* --- failure --- */

static void another_count_or_dtype_is_a_mismatch_that_names_both(void **state) {
    (void)state;
    for (int early = 0; early < 2; ++early) {
        for (int dtype = 0; dtype < 2; ++dtype) {
            const struct rank_pair pair = make_rank_pair();
            int64_t out[5] = {1, 2, 3, 4, 5}, in[5] = {0};
            trireme_request *request = NULL;
            if (!early) {
                assert_int_equal(trireme_send(pair.ranks[0], out, 5, TRIREME_DTYPE_I64, 1, 8, NULL),
                                 TRIREME_OK);
            }
            assert_int_equal(trireme_receive_start(pair.ranks[1], in, dtype ? 5 : 4,
                                                   dtype ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_I64, 0,
                                                   8, NULL, &request),
                             TRIREME_OK);
            if (early) { /* done or told of the mismatch: both are right */
                const trireme_status status =
                    trireme_send(pair.ranks[0], out, 5, TRIREME_DTYPE_I64, 1, 8, NULL);
                assert_true(status == TRIREME_OK || status == TRIREME_ERROR_MISMATCH);
            }
            assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_ERROR_MISMATCH);
            const char *const message = trireme_last_error();
            assert_non_null(strstr(message, "rank 0 sent 5 i64 with tag 8"));
            assert_non_null(
                strstr(message, dtype ? "rank 1 asked for 5 f64" : "rank 1 asked for 4 i64"));
            assert_non_null(strstr(message, "receive"));
            trireme_error_info info = TRIREME_ERROR_INFO_INIT;
            assert_int_equal(trireme_last_error_info(&info), TRIREME_OK);
            assert_int_equal(info.blamed_count, 2);
            assert_string_equal(info.operation, "receive");
            assert_int_equal(in[0], 0);
            assert_int_equal(trireme_barrier(pair.ranks[0], NULL), TRIREME_ERROR_MISMATCH);
            trireme_request_destroy(request);
            free_rank_pair(pair);
        }
    }
}

static void a_large_send_hears_of_a_mismatch_while_it_waits(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    unsigned char *const out = make_pattern(1, LARGE);
    unsigned char byte = 0;
    trireme_request *request = NULL;
    assert_int_equal(trireme_send_start(pair.ranks[0], out, LARGE, TRIREME_DTYPE_U8, 1, 2, NULL,
                                        &request),
                     TRIREME_OK);
    assert_int_equal(trireme_receive(pair.ranks[1], &byte, 1, TRIREME_DTYPE_U8, 0, 2, NULL),
                     TRIREME_ERROR_MISMATCH);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_ERROR_MISMATCH);
    trireme_request_destroy(request);
    free(out);
    free_rank_pair(pair);
}

static void a_receive_that_times_out_is_withdrawn_and_harms_nobody(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = SHORT_NS;
    int32_t number = 7, sent = 8;
    assert_int_equal(trireme_receive(pair.ranks[1], &number, 1, TRIREME_DTYPE_I32, 0, 77, &soon),
                     TRIREME_ERROR_TIMEOUT);
    assert_non_null(strstr(trireme_last_error(), "rank 0"));
    assert_non_null(strstr(trireme_last_error(), "tag 77"));
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    assert_int_equal(trireme_last_error_info(&info), TRIREME_OK);
    assert_int_equal(info.blamed_count, 1);
    assert_int_equal(info.blamed[0], 0);
    trireme_request *request = NULL;
    assert_int_equal(trireme_receive_start(pair.ranks[1], &number, 1, TRIREME_DTYPE_I32, 0, 77,
                                           &soon, &request),
                     TRIREME_OK);
    assert_int_equal(finish(request), TRIREME_ERROR_TIMEOUT);
    assert_int_equal(number, 7);
    assert_int_equal(trireme_send(pair.ranks[0], &sent, 1, TRIREME_DTYPE_I32, 1, 77, NULL),
                     TRIREME_OK);
    assert_int_equal(trireme_receive(pair.ranks[1], &number, 1, TRIREME_DTYPE_I32, 0, 77, NULL),
                     TRIREME_OK);
    assert_int_equal(number, 8);
    free_rank_pair(pair);
}

static void a_message_to_a_rank_that_has_not_joined_says_so(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 2, rendezvous);
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = SHORT_NS;
    int32_t number = 7;
    assert_int_equal(trireme_receive(alone, &number, 1, TRIREME_DTYPE_I32, 1, 0, &soon),
                     TRIREME_ERROR_TIMEOUT);
    assert_non_null(strstr(trireme_last_error(), "rank 1 has not joined"));
    trireme_communicator_destroy(alone);
}

static void a_message_that_is_not_matched_can_be_cancelled_without_harm(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    int32_t number = 7, sent = 8;
    trireme_request *request = NULL;
    assert_int_equal(trireme_receive_start(pair.ranks[1], &number, 1, TRIREME_DTYPE_I32, 0, 5, NULL,
                                           &request),
                     TRIREME_OK);
    assert_int_equal(trireme_request_cancel(request), TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_ERROR_CANCELLED);
    assert_int_equal(trireme_request_cancel(request), TRIREME_ERROR_INVALID_STATE);
    trireme_request_destroy(request);
    assert_int_equal(trireme_send(pair.ranks[0], &sent, 1, TRIREME_DTYPE_I32, 1, 5, NULL),
                     TRIREME_OK);
    assert_int_equal(number, 7);
    assert_int_equal(trireme_receive(pair.ranks[1], &number, 1, TRIREME_DTYPE_I32, 0, 5, NULL),
                     TRIREME_OK);
    assert_int_equal(number, 8);
    free_rank_pair(pair);
}

static void send_late(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    if (rank == 1) {
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT, trireme_barrier(communicator, NULL));
        return;
    }
    unsigned char *const out = make_pattern(1, LARGE);
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = SHORT_NS;
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                  trireme_send(communicator, out, LARGE, TRIREME_DTYPE_U8, 1, 2, &soon));
    free(out);
}

static void a_late_message_fails_the_group_if_a_part_of_it_has_moved(void **state) {
    (void)state;
    if (!ranks_use_transport()) skip(); /* no part of it moves then */
    struct verdict verdicts[2] = {{{0}}};
    run_ranks(2, send_late, verdicts);
    assert_verdicts(verdicts, 2);
}

static void a_late_message_that_no_receive_has_met_harms_nobody(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    unsigned char *const out = make_pattern(1, LARGE);
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = SHORT_NS;
    assert_int_equal(trireme_send(pair.ranks[0], out, LARGE, TRIREME_DTYPE_U8, 1, 2, &soon),
                     TRIREME_ERROR_TIMEOUT);
    /* Its bytes have stayed where they are: the next message meets the receive. */
    int32_t number = 7, got = 0;
    assert_int_equal(trireme_send(pair.ranks[0], &number, 1, TRIREME_DTYPE_I32, 1, 2, NULL),
                     TRIREME_OK);
    assert_int_equal(trireme_receive(pair.ranks[1], &got, 1, TRIREME_DTYPE_I32, 0, 2, NULL),
                     TRIREME_OK);
    assert_int_equal(got, 7);
    free(out);
    free_rank_pair(pair);
}

struct departure {
    struct verdict verdicts[2];
    int sends;
};

static void wait_for_one_who_leaves(trireme_communicator *communicator, int rank, void *context) {
    struct departure *const departure = context;
    struct verdict *const verdict = &departure->verdicts[rank];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == 1) return; /* leaves */
    unsigned char *const memory = make_pattern(0, LARGE);
    EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                  departure->sends
                      ? trireme_send(communicator, memory, LARGE, TRIREME_DTYPE_U8, 1, 0, NULL)
                      : trireme_receive(communicator, memory, LARGE, TRIREME_DTYPE_U8, 1, 0, NULL));
    EXPECT(verdict, strstr(trireme_last_error(), "rank 1") != NULL);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(verdict, info.blamed_count == 1 && info.blamed[0] == 1);
    free(memory);
}

static void a_peer_that_leaves_ends_the_messages_with_it(void **state) {
    (void)state;
    for (int sends = 0; sends < 2; ++sends) {
        struct departure departure = {.sends = sends};
        run_ranks(2, wait_for_one_who_leaves, &departure);
        assert_verdicts(departure.verdicts, 2);
    }
}

static void abort_while_waiting(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    char byte = 0;
    if (rank == 2) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_abort(communicator, "enough"));
        return;
    }
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED,
                  trireme_receive(communicator, &byte, 1, TRIREME_DTYPE_U8, 1 - rank, 0, NULL));
    EXPECT(verdict, strstr(trireme_last_error(), "enough") != NULL);
}

static void an_abort_ends_messages_too(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, abort_while_waiting, verdicts);
    assert_verdicts(verdicts, 3);
}

static void failpoints_of_messages_are_met_and_fail_the_group(void **state) {
    (void)state;
    static const char *const points[] = {"send.before_first",   "send.mid_message",
                                         "send.before_done",    "receive.before_first",
                                         "receive.mid_message", "receive.before_done"};
    for (size_t i = 0; i < sizeof points / sizeof *points; ++i) {
        const struct rank_pair pair = make_rank_pair();
        char text[64];
        int32_t number = 1;
        uint64_t hits = 0;
        strcpy(text, points[i]);
        strcat(text, "=fail");
        assert_int_equal(trireme_failpoint_set(text), TRIREME_OK);
        trireme_request *request = NULL;
        trireme_status status =
            trireme_send_start(pair.ranks[0], &number, 1, TRIREME_DTYPE_I32, 1, 0, NULL, &request);
        assert_int_equal(status, TRIREME_OK);
        /* The rank without the failpoint may have finished before. */
        status = trireme_receive(pair.ranks[1], &number, 1, TRIREME_DTYPE_I32, 0, 0, NULL);
        const trireme_status sent = finish(request);
        const int sends = strncmp(points[i], "send", 4) == 0;
        assert_int_equal(sends ? sent : status, TRIREME_ERROR_SYSTEM);
        assert_true(status == TRIREME_OK || status == TRIREME_ERROR_SYSTEM);
        assert_true(sent == TRIREME_OK || sent == TRIREME_ERROR_SYSTEM);
        assert_int_equal(trireme_barrier(pair.ranks[0], NULL), TRIREME_ERROR_SYSTEM);
        assert_int_equal(trireme_failpoint_get_hits(points[i], &hits), TRIREME_OK);
        assert_true(hits >= 1);
        assert_int_equal(trireme_failpoint_set(NULL), TRIREME_OK);
        free_rank_pair(pair);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ring_of_ranks_passes_messages_of_every_size_on),
        cmocka_unit_test(messages_about_as_long_as_a_frame_arrive_whole),
        cmocka_unit_test(small_messages_keep_their_order),
        cmocka_unit_test(large_messages_cross_both_ways_at_once),
        cmocka_unit_test(messages_of_one_tag_keep_their_order_whatever_tag_is_asked_for_first),
        cmocka_unit_test(receives_that_wait_are_served_in_their_order),
        cmocka_unit_test(all_ranks_talk_to_all_beside_collectives),
        cmocka_unit_test(a_rank_can_send_to_itself),
        cmocka_unit_test(what_a_rank_sent_before_it_left_still_arrives),
        cmocka_unit_test(another_count_or_dtype_is_a_mismatch_that_names_both),
        cmocka_unit_test(a_large_send_hears_of_a_mismatch_while_it_waits),
        cmocka_unit_test(a_receive_that_times_out_is_withdrawn_and_harms_nobody),
        cmocka_unit_test(a_message_to_a_rank_that_has_not_joined_says_so),
        cmocka_unit_test(a_message_that_is_not_matched_can_be_cancelled_without_harm),
        cmocka_unit_test(a_late_message_fails_the_group_if_a_part_of_it_has_moved),
        cmocka_unit_test(a_late_message_that_no_receive_has_met_harms_nobody),
        cmocka_unit_test(a_peer_that_leaves_ends_the_messages_with_it),
        cmocka_unit_test(an_abort_ends_messages_too),
        cmocka_unit_test(failpoints_of_messages_are_met_and_fail_the_group),
    };
    return cmocka_run_group_tests_name("messages", tests, NULL, NULL);
}
