/* Matching of messages: any source, any tag, probes, sizes that only the sender knows, buffered
 * sends, both halves at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "processes.h"
#include "ranks.h"

#define MOST 8
#define COUNT_OF(array) (sizeof(array) / sizeof *(array))

static const trireme_dtype i32 = TRIREME_DTYPE_I32;

static int32_t size_of(trireme_communicator *communicator) {
    int32_t world_size = 0;
    if (trireme_communicator_get_world_size(communicator, &world_size) != TRIREME_OK) abort();
    return world_size;
}

static trireme_operation_options with_flags(uint32_t flags) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.flags = flags;
    return options;
}

static trireme_operation_options within_ms(uint32_t flags, uint64_t milliseconds) {
    trireme_operation_options options = with_flags(flags);
    options.timeout_ns = milliseconds * 1000 * 1000;
    return options;
}

/* Rank 0 takes every message, from any rank; the others send messages of different sizes. */
static void take_from_anyone(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = size_of(communicator);
    enum { each = 20, longest = 40000 };
    int32_t *const data = calloc(longest, sizeof *data);
    if (data == NULL) abort();
    if (rank > 0) {
        for (int turn = 0; turn < each; ++turn) {
            const uint64_t count = turn % 5 == 4 ? longest : (uint64_t)turn;
            for (uint64_t i = 0; i < count; ++i) data[i] = rank * 1000 + turn;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, data, count, i32, 0, (uint64_t)turn, NULL));
        }
    }
    int next[MOST] = {0};
    for (int i = 0; rank == 0 && i < each * (world_size - 1); ++i) {
        const trireme_operation_options any = with_flags(TRIREME_OPERATION_FLAG_ANY_TAG);
        trireme_message_info seen = TRIREME_MESSAGE_INFO_INIT, info = TRIREME_MESSAGE_INFO_INIT;
        if (i % 2 == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_probe(communicator, TRIREME_ANY_SOURCE, 0, &any, &seen));
            /* The received message is the one seen before. */
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_message(communicator, data, longest, i32, seen.source,
                                                  seen.tag, NULL, &info));
            EXPECT(verdict, info.count == seen.count && info.tag == seen.tag &&
                                info.source == seen.source && info.dtype == i32);
        } else {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_message(communicator, data, longest, i32,
                                                  TRIREME_ANY_SOURCE, 0, &any, &info));
        }
        if (!EXPECT(verdict, info.source > 0 && info.source < world_size)) break;
        /* In the order of sending, for each sender. */
        const int turn = next[info.source]++;
        EXPECT(verdict, info.tag == (uint64_t)turn);
        EXPECT(verdict, info.count == (turn % 5 == 4 ? (uint64_t)longest : (uint64_t)turn));
        for (uint64_t k = 0; k < info.count; ++k) {
            if (!EXPECT(verdict, data[k] == info.source * 1000 + turn)) break;
        }
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    free(data);
}

static void any_source_and_any_tag_take_messages_in_their_order(void **state) {
    (void)state;
    static const int world_sizes[] = {2, 3, 4, 5, 8};
    for (size_t i = 0; i < COUNT_OF(world_sizes); ++i) {
        struct verdict verdicts[MOST] = {0};
        run_ranks(world_sizes[i], take_from_anyone, verdicts);
        assert_verdicts(verdicts, world_sizes[i]);
    }
}

struct meeting {
    char rendezvous[96];
};

static void in_a_process(int rank, void *context, struct outcome *outcome) {
    const struct meeting *const meeting = context;
    struct verdict verdicts[MOST] = {0};
    trireme_communicator *const communicator =
        join_process(rank, 3, meeting->rendezvous, PATIENT_NS);
    take_from_anyone(communicator, rank, verdicts);
    memcpy(outcome->message, verdicts[rank].text, sizeof verdicts[rank].text);
    trireme_communicator_destroy(communicator);
}

static void matching_works_between_processes(void **state) {
    (void)state;
    struct meeting meeting;
    struct processes processes;
    unique_host_rendezvous(meeting.rendezvous, sizeof meeting.rendezvous);
    start_processes(&processes, 3, in_a_process, &meeting);
    wait_processes(&processes);
    for (int rank = 0; rank < 3; ++rank) {
        assert_int_equal(processes.outcomes[rank].exit_code, 0);
        assert_string_equal(processes.outcomes[rank].message, "");
    }
    free_processes(&processes);
}

/* A specific receive that was asked for first gets its message, also beside one for anything. */
static void match_by_order(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const trireme_operation_options any = with_flags(TRIREME_OPERATION_FLAG_ANY_TAG);
    if (rank == 1) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        for (int32_t tag = 1; tag <= 3; ++tag) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, &tag, 1, i32, 0, (uint64_t)tag, NULL));
        }
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        return;
    }
    int32_t got[3] = {0};
    trireme_request *requests[4] = {NULL};
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_receive_start(communicator, &got[0], 1, i32, 1, 2, NULL, &requests[0]));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_receive_message_start(communicator, &got[1], 1, i32, TRIREME_ANY_SOURCE,
                                                0, &any, &requests[1]));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_receive_start(communicator, &got[2], 1, i32, TRIREME_ANY_SOURCE, 3, NULL,
                                        &requests[2]));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_probe_start(communicator, 1, 3, NULL, &requests[3]));
    trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_request_get_message(requests[1], &info));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_request_wait_all((const trireme_request *const *)requests, 3, LONG_NS));
    EXPECT(verdict, got[0] == 2 && got[1] == 1 && got[2] == 3);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_get_message(requests[1], &info));
    EXPECT(verdict, info.source == 1 && info.tag == 1 && info.count == 1 && info.dtype == i32);
    /* The probe came after the receive that took the message, so nothing is left for it. */
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_cancel(requests[3]));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_request_get_message(requests[3], &info));
    for (int i = 0; i < 4; ++i) trireme_request_destroy(requests[i]);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
}

static void receives_match_in_the_order_they_were_asked_for(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, match_by_order, verdicts);
    assert_verdicts(verdicts, 2);
}

static void pass_round(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const int world_size = size_of(communicator);
    enum { count = 50000 };
    int32_t *const sent = malloc(count * sizeof *sent);
    int32_t *const received = malloc(count * sizeof *received);
    if (sent == NULL || received == NULL) abort();
    for (int shift = 0; shift < world_size; ++shift) {
        const int to = (rank + shift) % world_size, from = (rank - shift + world_size) % world_size;
        for (int i = 0; i < count; ++i) sent[i] = rank + shift * 10 + i;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send_receive(communicator, sent, count, to, 7, received, count, from,
                                           7, i32, NULL));
        for (int i = 0; i < count; ++i) {
            if (!EXPECT(verdict, received[i] == from + shift * 10 + i)) break;
        }
    }
    free(sent);
    free(received);
}

static void send_receive_needs_no_order(void **state) {
    (void)state;
    static const int world_sizes[] = {1, 2, 3, 5};
    for (size_t i = 0; i < COUNT_OF(world_sizes); ++i) {
        struct verdict verdicts[MOST] = {0};
        run_ranks(world_sizes[i], pass_round, verdicts);
        assert_verdicts(verdicts, world_sizes[i]);
    }
}

/* --- buffered sends --- */

static void send_ahead(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const trireme_operation_options buffered = with_flags(TRIREME_OPERATION_FLAG_BUFFERED);
    enum { megabytes = 1024 * 1024 };
    char *const data = malloc(40 * megabytes);
    if (data == NULL) abort();
    if (rank == 0) {
        memset(data, 5, 40 * megabytes);
        /* No receive is posted yet. */
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send(communicator, data, 40 * megabytes, TRIREME_DTYPE_BYTES, 1, 1,
                                   &buffered));
        memset(data, 6, 40 * megabytes); /* it was copied */
        const trireme_operation_options soon = within_ms(TRIREME_OPERATION_FLAG_BUFFERED, 50);
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_send(communicator, data, 40 * megabytes, TRIREME_DTYPE_BYTES, 1, 2,
                                   &soon));
        EXPECT(verdict, strstr(trireme_last_error(), "buffered") != NULL);
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        /* Waits for room now. */
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send(communicator, data, 40 * megabytes, TRIREME_DTYPE_BYTES, 1, 3,
                                   &buffered));
        /* To oneself, without a receiver on another thread. */
        int32_t self = 17, got = 0;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send(communicator, &self, 1, i32, 0, 9, &buffered));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_receive(communicator, &got, 1, i32, 0, 9, NULL));
        EXPECT(verdict, got == 17);
    } else {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        for (int tag = 1; tag <= 3; tag += 2) {
            memset(data, 0, 40 * megabytes);
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive(communicator, data, 40 * megabytes, TRIREME_DTYPE_BYTES,
                                          0, (uint64_t)tag, NULL));
            const char expected = tag == 1 ? 5 : 6;
            EXPECT(verdict, data[0] == expected && data[40 * megabytes - 1] == expected);
        }
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    free(data);
}

static void a_buffered_send_waits_for_room_alone(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, send_ahead, verdicts);
    assert_verdicts(verdicts, 2);
}

/* --- sizes --- */

static void receive_unknown(trireme_communicator *communicator, int rank, void *context) {
    static const uint64_t counts[] = {0, 1, 1000, 100003};
    struct verdict *const verdict = (struct verdict *)context + rank;
    const trireme_operation_options any = with_flags(TRIREME_OPERATION_FLAG_ANY_TAG);
    for (size_t n = 0; n < COUNT_OF(counts); ++n) {
        int32_t *const data = malloc(counts[n] * sizeof *data + 1);
        if (data == NULL) abort();
        for (uint64_t i = 0; i < counts[n]; ++i) data[i] = (int32_t)(i * 3);
        if (rank == 0) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send(communicator, data, counts[n], i32, 1, n, NULL));
        } else {
            trireme_buffer *buffer = NULL;
            trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
            uint64_t bytes = 77;
            void *received = NULL;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_to_buffer(communicator, i32, TRIREME_ANY_SOURCE, 0, &any,
                                                    n == 1 ? NULL : &info, &buffer));
            EXPECT(verdict, n == 1 || (info.count == counts[n] && info.tag == n));
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_buffer_get_bytes(buffer, &bytes));
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_buffer_get_data(buffer, &received));
            EXPECT(verdict, bytes == counts[n] * 4 && memcmp(received, data, bytes) == 0);
            trireme_buffer_destroy(buffer);
        }
        free(data);
    }
}

static void truncate(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    int32_t data[8] = {0}, got[8] = {-7};
    if (rank == 0) {
        const trireme_status status = trireme_send(communicator, data, 8, i32, 1, 0, NULL);
        EXPECT(verdict, status == TRIREME_OK || status == TRIREME_ERROR_MISMATCH);
        EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, trireme_barrier(communicator, NULL));
        return;
    }
    trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_receive_message(communicator, got, 5, i32, 0, 0, NULL, &info));
    EXPECT(verdict, strstr(trireme_last_error(), "sent 8 i32") != NULL);
    EXPECT(verdict, strstr(trireme_last_error(), "has room for 5 i32") != NULL);
    EXPECT(verdict, got[0] == -7 && info.count == 0);
}

static void other_dtype(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    float data[2] = {0};
    if (rank == 0) {
        const trireme_status status =
            trireme_send(communicator, data, 2, TRIREME_DTYPE_F32, 1, 0, NULL);
        EXPECT(verdict, status == TRIREME_OK || status == TRIREME_ERROR_MISMATCH);
        return;
    }
    trireme_buffer *buffer = NULL;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_receive_to_buffer(communicator, i32, 0, 0, NULL, NULL, &buffer));
    EXPECT(verdict, buffer == NULL && strstr(trireme_last_error(), "f32") != NULL);
}

struct misfit {
    uint64_t sent, asked;
    trireme_dtype dtype;
    bool up_to;
    struct verdict verdicts[2];
};

/* The message has come when its receive is called: the barrier is behind its send. */
static void receive_another(trireme_communicator *communicator, int rank, void *context) {
    struct misfit *const misfit = context;
    struct verdict *const verdict = &misfit->verdicts[rank];
    int32_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    if (rank == 0) {
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_send(communicator, data, misfit->sent, i32, 1, 0, NULL));
    }
    const trireme_status met = trireme_barrier(communicator, NULL);
    /* The failure may overtake the end of the other rank's barrier. */
    EXPECT(verdict, met == TRIREME_OK || (rank == 0 && met == TRIREME_ERROR_MISMATCH));
    if (rank == 1) {
        trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
        const trireme_status status =
            misfit->up_to
                ? trireme_receive_message(communicator, data, misfit->asked, misfit->dtype, 0, 0,
                                          NULL, &info)
                : trireme_receive(communicator, data, misfit->asked, misfit->dtype, 0, 0, NULL);
        EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, status);
        for (int32_t i = 0; i < 8; ++i) EXPECT(verdict, data[i] == i + 1);
    }
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, trireme_barrier(communicator, NULL));
}

static void a_message_that_does_not_fit_is_no_number(void **state) {
    (void)state;
    static const struct misfit misfits[] = {
        {3, 2, TRIREME_DTYPE_I32, false, {{0}}}, {3, 4, TRIREME_DTYPE_I32, false, {{0}}},
        {3, 3, TRIREME_DTYPE_F32, false, {{0}}}, {0, 1, TRIREME_DTYPE_I32, false, {{0}}},
        {1, 0, TRIREME_DTYPE_I32, false, {{0}}}, {3, 2, TRIREME_DTYPE_I32, true, {{0}}},
        {3, 8, TRIREME_DTYPE_F32, true, {{0}}},
    };
    for (size_t i = 0; i < COUNT_OF(misfits); ++i) {
        struct misfit misfit = misfits[i];
        run_ranks(2, receive_another, &misfit);
        assert_verdicts(misfit.verdicts, 2);
    }
}

static void the_sender_alone_may_know_the_size(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, receive_unknown, verdicts);
    assert_verdicts(verdicts, 2);
    run_ranks(2, truncate, verdicts);
    assert_verdicts(verdicts, 2);
    run_ranks(2, other_dtype, verdicts);
    assert_verdicts(verdicts, 2);
}

/* --- refusals and failures --- */

static void nobody_sends(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    const trireme_operation_options soon = within_ms(TRIREME_OPERATION_FLAG_ANY_TAG, 30);
    const trireme_operation_options tagged = within_ms(0, 30);
    trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                  trireme_probe(communicator, TRIREME_ANY_SOURCE, 0, &soon, &info));
    EXPECT(verdict, strstr(trireme_last_error(), "no rank has sent a message") != NULL);
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                  trireme_probe(communicator, 1 - rank, 5, &tagged, &info));
    EXPECT(verdict, strstr(trireme_last_error(), "with tag 5") != NULL);
    EXPECT(verdict, info.count == 0 && info.source == 0);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    /* The last rank here learns that no rank is left to send. */
    if (rank == 1) return;
    int32_t got = 0;
    EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                  trireme_receive(communicator, &got, 1, i32, TRIREME_ANY_SOURCE, 5, NULL));
}

static void what_never_comes_ends_at_the_deadline_or_when_all_have_left(void **state) {
    (void)state;
    struct verdict verdicts[2] = {0};
    run_ranks(2, nobody_sends, verdicts);
    assert_verdicts(verdicts, 2);
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    int32_t data[4] = {0};
    trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
    trireme_operation_options any = with_flags(TRIREME_OPERATION_FLAG_ANY_TAG);
    trireme_operation_options buffered = with_flags(TRIREME_OPERATION_FLAG_BUFFERED);
    trireme_request *request = NULL;
    trireme_buffer *buffer = NULL;
#define REFUSED(call, part)                                                 \
    do {                                                                    \
        assert_int_equal(call, TRIREME_ERROR_INVALID_ARGUMENT);             \
        if (strstr(trireme_last_error(), part) == NULL) {                   \
            fail_msg("\"%s\" does not say %s", trireme_last_error(), part); \
        }                                                                   \
    } while (0)
    REFUSED(trireme_send(alone, data, 1, i32, TRIREME_ANY_SOURCE, 0, NULL), "to is -1");
    REFUSED(trireme_send(alone, data, 1ull << 62, TRIREME_DTYPE_I8, 0, 0, NULL), "count");
    REFUSED(trireme_send(alone, data, 1ull << 62, TRIREME_DTYPE_I8, 0, 0, &buffered), "count");
    REFUSED(trireme_send(alone, data, 1, i32, 0, 0, &any), "flags");
    REFUSED(trireme_send_start(alone, data, 1, i32, 0, 0, &buffered, &request), "flags");
    REFUSED(trireme_receive(alone, data, 1, i32, 0, 0, &buffered), "flags");
    REFUSED(trireme_receive(alone, data, 1, i32, -2, 0, NULL), "from is -2");
    REFUSED(trireme_receive(alone, data, 1, i32, 0, 3, &any), "tag is 3");
    REFUSED(trireme_barrier(alone, &any), "flags");
    REFUSED(trireme_receive_message(alone, NULL, 1, i32, 0, 0, NULL, &info), "NULL");
    REFUSED(trireme_receive_message(alone, data, 1, i32, 0, 0, NULL, NULL), "out_info");
    REFUSED(trireme_receive_message(alone, data, UINT64_MAX, i32, 0, 0, NULL, &info), "capacity");
    REFUSED(trireme_receive_message(alone, data, 1, 0, 0, 0, NULL, &info), "dtype");
    REFUSED(trireme_receive_message_start(alone, data, 1, i32, 7, 0, NULL, &request), "from is 7");
    REFUSED(trireme_receive_to_buffer(alone, i32, 0, 0, NULL, NULL, NULL), "out_buffer");
    REFUSED(trireme_receive_to_buffer(alone, 99, 0, 0, NULL, NULL, &buffer), "dtype");
    REFUSED(trireme_probe(alone, 1, 0, NULL, &info), "from is 1");
    REFUSED(trireme_probe(alone, 0, 0, NULL, NULL), "out_info");
    REFUSED(trireme_probe_start(alone, 0, 0, NULL, NULL), "out_request");
    REFUSED(trireme_send_receive(alone, data, 2, 0, 0, data + 1, 2, 0, 0, i32, NULL), "overlap");
    REFUSED(trireme_send_receive(alone, data, 2, 1, 0, data + 2, 2, 0, 0, i32, NULL), "to is 1");
    REFUSED(trireme_send_receive(alone, NULL, 2, 0, 0, data + 2, 2, 0, 0, i32, NULL), "NULL");
    any.priority = TRIREME_PRIORITY_HIGH;
    REFUSED(trireme_receive(alone, data, 1, i32, 0, 0, &any), "priority");
    info.struct_size = 4;
    REFUSED(trireme_receive_message(alone, data, 1, i32, 0, 0, NULL, &info), "struct_size");
    info.struct_size = sizeof info;
    REFUSED(trireme_request_wait_all(NULL, 1, 0), "requests");
    assert_int_equal(trireme_request_wait_all(NULL, 0, 0), TRIREME_OK);
    const trireme_request *const nothing[] = {NULL};
    assert_int_equal(trireme_request_wait_all(nothing, 1, 0), TRIREME_ERROR_INVALID_HANDLE);
    assert_int_equal(trireme_request_get_message(NULL, &info), TRIREME_ERROR_INVALID_HANDLE);
    assert_null(request);
    assert_null(buffer);

    /* Several requests: one never ends, and one is of no message. */
    trireme_request *some[2] = {NULL};
    assert_int_equal(trireme_barrier_start(alone, NULL, &some[0]), TRIREME_OK);
    assert_int_equal(trireme_receive_start(alone, data, 1, i32, 0, 5, NULL, &some[1]), TRIREME_OK);
    assert_int_equal(trireme_request_wait_all((const trireme_request *const *)some, 2,
                                              20 * 1000 * 1000),
                     TRIREME_ERROR_TIMEOUT);
    assert_non_null(strstr(trireme_last_error(), "of 2 requests"));
    assert_int_equal(trireme_request_get_message(some[0], &info), TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(trireme_request_cancel(some[1]), TRIREME_OK);
    assert_int_equal(trireme_request_wait_all((const trireme_request *const *)some, 2, LONG_NS),
                     TRIREME_ERROR_CANCELLED);
    for (int i = 0; i < 2; ++i) trireme_request_destroy(some[i]);
    assert_int_equal(trireme_barrier(alone, NULL), TRIREME_OK);
    trireme_communicator_destroy(alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matching_works_between_processes), /* first: it forks */
        cmocka_unit_test(any_source_and_any_tag_take_messages_in_their_order),
        cmocka_unit_test(receives_match_in_the_order_they_were_asked_for),
        cmocka_unit_test(send_receive_needs_no_order),
        cmocka_unit_test(a_buffered_send_waits_for_room_alone),
        cmocka_unit_test(a_message_that_does_not_fit_is_no_number),
        cmocka_unit_test(the_sender_alone_may_know_the_size),
        cmocka_unit_test(what_never_comes_ends_at_the_deadline_or_when_all_have_left),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
