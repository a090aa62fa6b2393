/* A started message is moved by the caller that waits for it, by one that asks, or by the library.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "processes.h"
#include "ranks.h"

#define SHORT_NS (50ull * 1000 * 1000)
#define SOON_NS (20ull * 1000 * 1000 * 1000)
#define LARGE 300001

static trireme_request *start_receive(struct rank_pair pair, void *data, uint64_t bytes,
                                      uint64_t tag, uint64_t timeout_ns) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    trireme_request *request = NULL;
    assert_int_equal(trireme_receive_start(pair.ranks[1], data, bytes, TRIREME_DTYPE_U8, 0, tag,
                                           &options, &request),
                     TRIREME_OK);
    return request;
}

struct waiter {
    pthread_t thread;
    trireme_request *request;
    trireme_status status;
    _Atomic int begun;
};

static void *wait_for_it(void *context) {
    struct waiter *const waiter = context;
    atomic_store(&waiter->begun, 1);
    waiter->status = trireme_request_wait(waiter->request, LONG_NS);
    return NULL;
}

static void begin_wait(struct waiter *waiter, trireme_request *request) {
    waiter->request = request;
    atomic_store(&waiter->begun, 0);
    assert_int_equal(pthread_create(&waiter->thread, NULL, wait_for_it, waiter), 0);
    while (!atomic_load(&waiter->begun)) sleep_ms(1);
    sleep_ms(15); /* it has stopped polling, and sleeps */
}

static trireme_status end_wait(struct waiter *waiter) {
    pthread_join(waiter->thread, NULL);
    trireme_request_destroy(waiter->request);
    return waiter->status;
}

/* The messages come in the other order than the waits began. */
static void threads_of_a_rank_wait_for_different_messages(void **state) {
    (void)state;
    enum { WAITERS = 4 };
    const struct rank_pair pair = make_rank_pair();
    static unsigned char data[WAITERS][LARGE], sent[LARGE];
    for (int round = 0; round < 8; ++round) {
        struct waiter waiters[WAITERS];
        memset(data, 0, sizeof data);
        for (int i = 0; i < WAITERS; ++i) {
            const uint64_t bytes = i % 2 == 0 ? 9 : LARGE;
            begin_wait(&waiters[i], start_receive(pair, data[i], bytes, (uint64_t)i, LONG_NS));
        }
        for (int i = WAITERS - 1; i >= 0; --i) {
            memset(sent, round * WAITERS + i + 1, sizeof sent);
            assert_int_equal(trireme_send(pair.ranks[0], sent, i % 2 == 0 ? 9 : LARGE,
                                          TRIREME_DTYPE_U8, 1, (uint64_t)i, NULL),
                             TRIREME_OK);
        }
        for (int i = 0; i < WAITERS; ++i) {
            assert_int_equal(end_wait(&waiters[i]), TRIREME_OK);
            for (int at = 0; at < (i % 2 == 0 ? 9 : LARGE); ++at) {
                if (data[i][at] != round * WAITERS + i + 1) fail_msg("byte %d of %d", at, i);
            }
        }
    }
    free_rank_pair(pair);
}

static void a_wait_ends_when_another_thread_cancels(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    unsigned char byte = 0;
    struct waiter waiter;
    begin_wait(&waiter, start_receive(pair, &byte, 1, 3, LONG_NS));
    const uint64_t begin = monotonic_ns();
    assert_int_equal(trireme_request_cancel(waiter.request), TRIREME_OK);
    assert_int_equal(end_wait(&waiter), TRIREME_ERROR_CANCELLED);
    assert_true(monotonic_ns() - begin < SOON_NS);
    free_rank_pair(pair);
}

static void a_wait_ends_at_the_deadline_of_the_message(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    unsigned char byte = 0;
    const uint64_t begin = monotonic_ns();
    struct waiter waiter;
    begin_wait(&waiter, start_receive(pair, &byte, 1, 3, 2 * SHORT_NS));
    assert_int_equal(end_wait(&waiter), TRIREME_ERROR_TIMEOUT);
    assert_true(monotonic_ns() - begin < SOON_NS);
    free_rank_pair(pair);
}

/* A wait that ends before the message leaves it under way. */
static void a_short_wait_can_be_followed_by_another(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    unsigned char in = 0, out = 5;
    trireme_request *const request = start_receive(pair, &in, 1, 3, LONG_NS);
    assert_int_equal(trireme_request_wait(request, 0), TRIREME_ERROR_TIMEOUT);
    assert_int_equal(trireme_request_wait(request, SHORT_NS), TRIREME_ERROR_TIMEOUT);
    assert_int_equal(trireme_send(pair.ranks[0], &out, 1, TRIREME_DTYPE_U8, 1, 3, NULL),
                     TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_OK);
    assert_int_equal(in, 5);
    trireme_request_destroy(request);
    free_rank_pair(pair);
}

static void a_caller_that_asks_sees_the_end(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    for (int i = 1; i < 200; ++i) {
        unsigned char in = 0;
        const unsigned char out = (unsigned char)i;
        trireme_request *const request = start_receive(pair, &in, 1, 3, LONG_NS);
        int32_t done = 0;
        assert_int_equal(trireme_request_test(request, &done), TRIREME_OK);
        assert_int_equal(done, 0);
        assert_int_equal(trireme_send(pair.ranks[0], &out, 1, TRIREME_DTYPE_U8, 1, 3, NULL),
                         TRIREME_OK);
        const uint64_t end = monotonic_ns() + SOON_NS;
        while (!done && monotonic_ns() < end) {
            assert_int_equal(trireme_request_test(request, &done), TRIREME_OK);
        }
        assert_int_equal(done, 1);
        assert_int_equal(in, i);
        trireme_request_destroy(request);
    }
    free_rank_pair(pair);
}

struct call {
    _Atomic int calls;
    pthread_t thread;
    int32_t code;
};

static void note_call(trireme_status code, void *context) {
    struct call *const call = context;
    call->thread = pthread_self();
    call->code = code;
    atomic_fetch_add(&call->calls, 1);
}

/* Another message is carried by a caller meanwhile; the callback is never called by that one. */
static void a_callback_comes_from_the_library_while_callers_move_messages(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    unsigned char in[2] = {0}, out = 6;
    struct waiter waiter;
    begin_wait(&waiter, start_receive(pair, &in[0], 1, 1, LONG_NS));
    for (int i = 1; i <= 50; ++i) {
        struct call call = {.code = 1};
        trireme_request *const request = start_receive(pair, &in[1], 1, 2, LONG_NS);
        assert_int_equal(trireme_request_on_complete(request, note_call, &call), TRIREME_OK);
        assert_int_equal(trireme_send(pair.ranks[0], &out, 1, TRIREME_DTYPE_U8, 1, 2, NULL),
                         TRIREME_OK);
        const uint64_t end = monotonic_ns() + SOON_NS;
        while (atomic_load(&call.calls) == 0 && monotonic_ns() < end) sleep_ms(1);
        assert_int_equal(atomic_load(&call.calls), 1);
        assert_int_equal(call.code, TRIREME_OK);
        assert_false(pthread_equal(call.thread, pthread_self()));
        assert_false(pthread_equal(call.thread, waiter.thread));
        trireme_request_destroy(request);
    }
    assert_int_equal(trireme_send(pair.ranks[0], &out, 1, TRIREME_DTYPE_U8, 1, 1, NULL),
                     TRIREME_OK);
    assert_int_equal(end_wait(&waiter), TRIREME_OK);
    free_rank_pair(pair);
}

/* The library moves a large message by itself, so that the blocking send ends. */
static void a_message_moves_although_nobody_waits(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    static unsigned char in[LARGE], out[LARGE];
    for (int i = 1; i < 30; ++i) {
        memset(out, i, sizeof out);
        trireme_request *const request = start_receive(pair, in, LARGE, 3, LONG_NS);
        assert_int_equal(trireme_send(pair.ranks[0], out, LARGE, TRIREME_DTYPE_U8, 1, 3, NULL),
                         TRIREME_OK);
        assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_OK);
        assert_memory_equal(in, out, LARGE);
        trireme_request_destroy(request);
        if (i % 10 == 0) sleep_ms(30); /* the thread falls asleep */
    }
    free_rank_pair(pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_a_rank_wait_for_different_messages),
        cmocka_unit_test(a_wait_ends_when_another_thread_cancels),
        cmocka_unit_test(a_wait_ends_at_the_deadline_of_the_message),
        cmocka_unit_test(a_short_wait_can_be_followed_by_another),
        cmocka_unit_test(a_caller_that_asks_sees_the_end),
        cmocka_unit_test(a_callback_comes_from_the_library_while_callers_move_messages),
        cmocka_unit_test(a_message_moves_although_nobody_waits),
    };
    return cmocka_run_group_tests_name("waits", tests, NULL, NULL);
}
