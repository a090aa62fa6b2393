/* Requests: tests, waits, cancel, callbacks and descriptors; and every way to give one back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "ranks.h"

#define SHORT_NS (20ull * 1000 * 1000)

/* A flag that one thread waits for and another one raises. */
struct flag {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int raised;
};
#define FLAG_INIT \
    { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0 }

static void raise_flag(struct flag *flag) {
    pthread_mutex_lock(&flag->mutex);
    ++flag->raised;
    pthread_cond_broadcast(&flag->changed);
    pthread_mutex_unlock(&flag->mutex);
}

static void await_flag(struct flag *flag) {
    pthread_mutex_lock(&flag->mutex);
    while (flag->raised == 0) pthread_cond_wait(&flag->changed, &flag->mutex);
    pthread_mutex_unlock(&flag->mutex);
}

/* The observations of a callback. */
struct seen {
    struct flag flag;
    trireme_status status;
    char message[512];
    int calls;
    pthread_t thread;
};
#define SEEN_INIT \
    { FLAG_INIT, 1, {0}, 0, 0 }

static void see(trireme_status status, void *user_data) {
    struct seen *const seen = user_data;
    seen->status = status;
    seen->thread = pthread_self();
    ++seen->calls;
    strncpy(seen->message, trireme_last_error(), sizeof seen->message - 1);
    raise_flag(&seen->flag);
}

static trireme_request *start_barrier(trireme_communicator *communicator, struct verdict *verdict) {
    trireme_request *request = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &request));
    return request;
}

/* Two ranks; only rank 0 acts, until it lets rank 1 come: rank 0's barriers then wait. */
static trireme_request *begin_barrier(trireme_communicator *communicator) {
    trireme_request *request = NULL;
    assert_int_equal(trireme_barrier_start(communicator, NULL, &request), TRIREME_OK);
    return request;
}

static void a_request_tells_that_it_runs_and_then_that_it_is_done(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    int32_t done = 7;
    assert_int_equal(trireme_request_test(request, &done), TRIREME_OK);
    assert_int_equal(done, 0);
    assert_int_equal(trireme_request_wait(request, 0), TRIREME_ERROR_TIMEOUT);
    assert_non_null(strstr(trireme_last_error(), "barrier, sequence 1, is still running"));
    assert_int_equal(trireme_request_wait(request, SHORT_NS), TRIREME_ERROR_TIMEOUT);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, 0), TRIREME_OK);
    assert_int_equal(trireme_request_test(request, &done), TRIREME_OK);
    assert_int_equal(done, 1);
    trireme_request_destroy(request);
    free_rank_pair(pair);
}

static void a_failed_request_answers_its_own_failure_and_leaves_the_output_alone(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    assert_int_equal(trireme_communicator_abort(pair.ranks[1], "the disk is full"), TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_ERROR_ABORTED);
    assert_non_null(strstr(trireme_last_error(), "the disk is full"));
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    assert_int_equal(trireme_last_error_info(&info), TRIREME_OK);
    assert_string_equal(info.operation, "barrier");
    assert_string_equal(info.communicator, pair.rendezvous);
    assert_int_equal(info.sequence, 1);
    assert_int_equal(info.blamed_count, 1);
    assert_int_equal(info.blamed[0], 1);
    int32_t done = 7;
    assert_int_equal(trireme_request_test(request, &done), TRIREME_ERROR_ABORTED);
    assert_int_equal(done, 7);
    trireme_request_destroy(request);
    free_rank_pair(pair);
}

static void wait_any_gives_the_lowest_one_that_is_done(void **state) {
    (void)state;
    const struct rank_pair first = make_rank_pair(), second = make_rank_pair();
    trireme_request *const requests[3] = {begin_barrier(first.ranks[0]),
                                          begin_barrier(second.ranks[0]),
                                          begin_barrier(second.ranks[1])};
    uint64_t index = 9;
    assert_int_equal(trireme_request_wait_any((const trireme_request *const *)requests, 1, SHORT_NS,
                                              &index),
                     TRIREME_ERROR_TIMEOUT);
    assert_int_equal(index, 9);
    assert_int_equal(trireme_request_wait(requests[1], LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_request_wait(requests[2], LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_request_wait_any((const trireme_request *const *)requests, 3, LONG_NS,
                                              &index),
                     TRIREME_OK);
    assert_int_equal(index, 1);
    assert_int_equal(trireme_barrier(first.ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(requests[0], LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_request_wait_any((const trireme_request *const *)requests, 3, 0,
                                              &index),
                     TRIREME_OK);
    assert_int_equal(index, 0);
    for (int i = 0; i < 3; ++i) trireme_request_destroy(requests[i]);
    free_rank_pair(first);
    free_rank_pair(second);
}

static void wait_for_any(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    enum { REQUESTS = 30 };
    trireme_request *requests[REQUESTS];
    for (int i = 0; i < REQUESTS; ++i) requests[i] = start_barrier(communicator, verdict);
    uint64_t index = 0;
    for (int left = REQUESTS; left > 0; --left) {
        if (!EXPECT_STATUS(verdict, TRIREME_OK,
                           trireme_request_wait_any((const trireme_request *const *)requests,
                                                    (uint64_t)left, LONG_NS, &index))) {
            return;
        }
        int32_t done = 0;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_test(requests[index], &done));
        EXPECT(verdict, done == 1);
        trireme_request_destroy(requests[index]);
        requests[index] = requests[left - 1];
    }
}

static void wait_any_finds_every_request_while_they_end(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, wait_for_any, verdicts);
    assert_verdicts(verdicts, 3);
}

static void a_callback_comes_once_on_a_thread_of_the_library(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    struct seen seen = SEEN_INIT, second = SEEN_INIT;
    assert_int_equal(trireme_request_on_complete(request, see, &seen), TRIREME_OK);
    assert_int_equal(trireme_request_on_complete(request, see, &second),
                     TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_OK);
    await_flag(&seen.flag);
    assert_int_equal(seen.status, TRIREME_OK);
    assert_false(pthread_equal(seen.thread, pthread_self()));
    assert_int_equal(trireme_request_on_complete(request, see, &second),
                     TRIREME_ERROR_INVALID_STATE);
    trireme_request_destroy(request);
    free_rank_pair(pair);
    assert_int_equal(seen.calls, 1);
    assert_int_equal(second.calls, 0);
}

static void a_callback_comes_at_once_when_the_request_is_done_already(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_OK);
    struct seen seen = SEEN_INIT;
    assert_int_equal(trireme_request_on_complete(request, see, &seen), TRIREME_OK);
    assert_int_equal(seen.calls, 1);
    assert_true(pthread_equal(seen.thread, pthread_self()));
    assert_int_equal(trireme_request_on_complete(request, see, &seen), TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(seen.calls, 1);
    trireme_request_destroy(request);
    free_rank_pair(pair);
}

static void a_callback_comes_also_when_the_request_was_destroyed_before(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    struct seen seen = SEEN_INIT;
    assert_int_equal(trireme_request_on_complete(request, see, &seen), TRIREME_OK);
    trireme_request_destroy(request);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_OK);
    await_flag(&seen.flag);
    assert_int_equal(seen.calls, 1);
    assert_int_equal(seen.status, TRIREME_OK);
    free_rank_pair(pair);
}

static void a_callback_hears_the_message_of_a_failure(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    struct seen seen = SEEN_INIT;
    assert_int_equal(trireme_request_on_complete(request, see, &seen), TRIREME_OK);
    assert_int_equal(trireme_communicator_abort(pair.ranks[1], "out of paper"), TRIREME_OK);
    await_flag(&seen.flag);
    assert_int_equal(seen.status, TRIREME_ERROR_ABORTED);
    assert_non_null(strstr(seen.message, "out of paper"));
    trireme_request_destroy(request);
    free_rank_pair(pair);
}

/* --- callbacks --- */

struct busy_callback {
    struct flag flag;
    struct rank_pair pair;
    trireme_request *request, *next;
    trireme_status blocking, waiting, starting, message;
    int32_t next_done;
};

static void use_the_library(trireme_status status, void *user_data) {
    struct busy_callback *const all = user_data;
    (void)status;
    char byte = 0;
    all->blocking = trireme_barrier(all->pair.ranks[0], NULL);
    all->message = trireme_receive(all->pair.ranks[0], &byte, 1, TRIREME_DTYPE_U8, 1, 0, NULL);
    all->starting = trireme_barrier_start(all->pair.ranks[0], NULL, &all->next);
    all->waiting = trireme_request_wait(all->next, LONG_NS);
    trireme_request_destroy(all->request);
    raise_flag(&all->flag);
}

static void a_callback_may_start_and_destroy_but_not_block(void **state) {
    (void)state;
    struct busy_callback all = {.flag = FLAG_INIT, .pair = make_rank_pair()};
    all.request = begin_barrier(all.pair.ranks[0]);
    assert_int_equal(trireme_request_on_complete(all.request, use_the_library, &all), TRIREME_OK);
    assert_int_equal(trireme_barrier(all.pair.ranks[1], NULL), TRIREME_OK);
    await_flag(&all.flag);
    assert_int_equal(all.blocking, TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(all.message, TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(all.starting, TRIREME_OK);
    assert_int_equal(all.waiting, TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(trireme_barrier(all.pair.ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(all.next, LONG_NS), TRIREME_OK);
    trireme_request_destroy(all.next);
    free_rank_pair(all.pair);
}

static void destroy_the_communicator(trireme_status status, void *user_data) {
    struct busy_callback *const all = user_data;
    (void)status;
    trireme_communicator_destroy(all->pair.ranks[0]);
    trireme_request_destroy(all->request);
    raise_flag(&all->flag);
}

static void a_callback_may_destroy_the_communicator(void **state) {
    (void)state;
    for (int message = 0; message < 2; ++message) {
        struct busy_callback all = {.flag = FLAG_INIT, .pair = make_rank_pair()};
        char byte = 1;
        if (message) {
            assert_int_equal(trireme_receive_start(all.pair.ranks[0], &byte, 1, TRIREME_DTYPE_U8, 1,
                                                   5, NULL, &all.request),
                             TRIREME_OK);
        } else {
            all.request = begin_barrier(all.pair.ranks[0]);
        }
        assert_int_equal(trireme_request_on_complete(all.request, destroy_the_communicator, &all),
                         TRIREME_OK);
        assert_int_equal(message ? trireme_send(all.pair.ranks[1], &byte, 1, TRIREME_DTYPE_U8, 0, 5,
                                                NULL)
                                 : trireme_barrier(all.pair.ranks[1], NULL),
                         TRIREME_OK);
        await_flag(&all.flag);
        /* That rank has left in order. */
        assert_int_equal(trireme_barrier(all.pair.ranks[1], NULL), TRIREME_ERROR_PEER_LOST);
        free_rank_pair(all.pair);
    }
}

/* --- descriptors --- */

static void a_descriptor_becomes_readable_when_the_operation_is_done(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    int32_t fd = -1, again = -1;
    assert_int_equal(trireme_request_get_fd(request, &fd), TRIREME_OK);
    assert_int_equal(trireme_request_get_fd(request, &again), TRIREME_OK);
    assert_int_equal(fd, again);
    struct pollfd poll_fd = {fd, POLLIN, 0};
    assert_int_equal(poll(&poll_fd, 1, 0), 0);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_OK);
    assert_int_equal(poll(&poll_fd, 1, 100000), 1);
    assert_int_equal(trireme_request_wait(request, 0), TRIREME_OK);
    trireme_request_destroy(request);

    trireme_request *const done = begin_barrier(pair.ranks[0]);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(done, LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_request_get_fd(done, &poll_fd.fd), TRIREME_OK);
    assert_int_equal(poll(&poll_fd, 1, 0), 1);
    trireme_request_destroy(done);
    free_rank_pair(pair);
}

/* --- cancel --- */

static void cancelling_a_queued_collective_fails_the_group(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const running = begin_barrier(pair.ranks[0]);
    trireme_request *const queued = begin_barrier(pair.ranks[0]);
    struct seen seen = SEEN_INIT;
    assert_int_equal(trireme_request_on_complete(queued, see, &seen), TRIREME_OK);
    assert_int_equal(trireme_request_cancel(queued), TRIREME_OK);
    int32_t done = 0;
    assert_int_equal(trireme_request_test(queued, &done), TRIREME_ERROR_CANCELLED);
    assert_int_equal(trireme_request_cancel(queued), TRIREME_ERROR_INVALID_STATE);
    assert_int_equal(trireme_request_wait(running, LONG_NS), TRIREME_ERROR_CANCELLED);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_ERROR_CANCELLED);
    assert_non_null(strstr(trireme_last_error(), "rank 0"));
    await_flag(&seen.flag);
    assert_int_equal(seen.status, TRIREME_ERROR_CANCELLED);
    assert_false(pthread_equal(seen.thread, pthread_self()));
    trireme_request_destroy(running);
    trireme_request_destroy(queued);
    free_rank_pair(pair);
}

static void what_is_done_cannot_be_cancelled(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_request_cancel(request), TRIREME_ERROR_INVALID_STATE);
    assert_non_null(strstr(trireme_last_error(), "barrier, sequence 1"));
    assert_int_equal(trireme_request_wait(request, 0), TRIREME_OK);
    trireme_request_destroy(request);
    free_rank_pair(pair);
}

/* --- deadlines in the queue --- */

static void a_deadline_holds_also_behind_a_longer_operation(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const running = begin_barrier(pair.ranks[0]);
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = SHORT_NS;
    trireme_request *queued = NULL;
    assert_int_equal(trireme_barrier_start(pair.ranks[0], &soon, &queued), TRIREME_OK);
    assert_int_equal(trireme_request_wait(queued, LONG_NS), TRIREME_ERROR_TIMEOUT);
    int32_t done = 0;
    assert_int_equal(trireme_request_test(queued, &done), TRIREME_ERROR_TIMEOUT); /* its own */
    assert_non_null(strstr(trireme_last_error(), "queued"));
    /* The group is out of step now, so it has failed. */
    assert_int_equal(trireme_request_wait(running, LONG_NS), TRIREME_ERROR_TIMEOUT);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_ERROR_TIMEOUT);
    trireme_request_destroy(running);
    trireme_request_destroy(queued);
    free_rank_pair(pair);
}

static void a_plain_call_keeps_its_deadline_behind_a_started_one(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const running = begin_barrier(pair.ranks[0]);
    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = SHORT_NS;
    assert_int_equal(trireme_barrier(pair.ranks[0], &soon), TRIREME_ERROR_TIMEOUT);
    assert_int_equal(trireme_request_wait(running, LONG_NS), TRIREME_ERROR_TIMEOUT);
    trireme_request_destroy(running);
    free_rank_pair(pair);
}

/* --- ends --- */

static void requests_end_when_their_communicator_is_destroyed(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const running = begin_barrier(pair.ranks[0]);
    trireme_request *const queued = begin_barrier(pair.ranks[0]);
    char byte = 0;
    trireme_request *message = NULL;
    assert_int_equal(trireme_receive_start(pair.ranks[0], &byte, 1, TRIREME_DTYPE_U8, 1, 3, NULL,
                                           &message),
                     TRIREME_OK);
    trireme_communicator_destroy(pair.ranks[0]);
    assert_int_equal(trireme_request_wait(running, LONG_NS), TRIREME_ERROR_PEER_LOST);
    assert_int_equal(trireme_request_wait(queued, LONG_NS), TRIREME_ERROR_PEER_LOST);
    assert_int_equal(trireme_request_wait(message, LONG_NS), TRIREME_ERROR_PEER_LOST);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_ERROR_PEER_LOST);
    assert_non_null(strstr(trireme_last_error(), "rank 0"));
    trireme_request_destroy(running);
    trireme_request_destroy(queued);
    trireme_request_destroy(message);
    free_rank_pair(pair);
}

static void a_finished_request_does_not_keep_its_rank_in_the_group(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const request = begin_barrier(pair.ranks[0]);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_OK);
    trireme_communicator_destroy(pair.ranks[0]);
    assert_int_equal(trireme_barrier(pair.ranks[1], NULL), TRIREME_ERROR_PEER_LOST);
    assert_int_equal(trireme_request_wait(request, 0), TRIREME_OK);
    trireme_request_destroy(request);
    free_rank_pair(pair);
}

/* Ends race with cancels, callbacks and destruction; what matters is that each callback comes once.
 */
struct race {
    struct rank_pair pair;
    trireme_request *requests[8];
    atomic_int calls, ended;
};

static void count_call(trireme_status status, void *user_data) {
    struct race *const race = user_data;
    (void)status;
    atomic_fetch_add(&race->calls, 1);
    atomic_fetch_add(&race->ended, 1);
}

static void race_part(int index, void *context) {
    struct race *const race = context;
    for (int i = 0; i < 8; ++i) {
        if (index == 0 && trireme_barrier(race->pair.ranks[1], NULL) != TRIREME_OK) return;
        if (index == 1 &&
            trireme_request_on_complete(race->requests[i], count_call, race) != TRIREME_OK) {
            atomic_fetch_add(&race->ended, 1); /* destroyed before: there is no callback */
        }
        if (index == 2 && i == 6 && trireme_request_cancel(race->requests[i]) != TRIREME_OK)
            continue;
        if (index == 2) trireme_request_destroy(race->requests[7 - i]);
        if (index == 3 && i == 7) trireme_communicator_destroy(race->pair.ranks[0]);
    }
}

static void races_of_ends_cancels_and_destruction_lose_no_callback(void **state) {
    (void)state;
    for (int turn = 0; turn < 100; ++turn) {
        struct race race = {.pair = make_rank_pair()};
        for (int i = 0; i < 8; ++i) race.requests[i] = begin_barrier(race.pair.ranks[0]);
        run_threads(4, race_part, &race);
        for (int i = 0; i < 8; ++i) trireme_request_destroy(race.requests[i]);
        free_rank_pair(race.pair);
        /* The group has ended one way or the other, so the last callbacks are on their way. */
        for (int waits = 0; atomic_load(&race.ended) < 8 && waits < 100000; ++waits)
            poll(NULL, 0, 1);
        assert_int_equal(atomic_load(&race.ended), 8);
    }
}

static void every_function_refuses_what_is_no_request(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_request *const stale = begin_barrier(pair.ranks[0]);
    trireme_request_destroy(stale);
    trireme_request_destroy(stale);
    trireme_request_destroy(NULL);
    trireme_request *const live = begin_barrier(pair.ranks[0]);
    trireme_request *const wrong[] = {NULL, stale, (trireme_request *)pair.ranks[0],
                                      (trireme_request *)(uintptr_t)0x1234};
    for (int i = 0; i < 4; ++i) {
        int32_t number = 7;
        uint64_t index = 7;
        const trireme_request *const list[2] = {live, wrong[i]};
        struct seen seen = SEEN_INIT;
        assert_int_equal(trireme_request_test(wrong[i], &number), TRIREME_ERROR_INVALID_HANDLE);
        assert_int_equal(trireme_request_wait(wrong[i], LONG_NS), TRIREME_ERROR_INVALID_HANDLE);
        assert_int_equal(trireme_request_wait_any(list, 2, LONG_NS, &index),
                         TRIREME_ERROR_INVALID_HANDLE);
        assert_non_null(strstr(trireme_last_error(), "requests[1]"));
        assert_int_equal(trireme_request_cancel(wrong[i]), TRIREME_ERROR_INVALID_HANDLE);
        assert_int_equal(trireme_request_on_complete(wrong[i], see, &seen),
                         TRIREME_ERROR_INVALID_HANDLE);
        assert_int_equal(trireme_request_get_fd(wrong[i], &number), TRIREME_ERROR_INVALID_HANDLE);
        assert_int_equal(number, 7);
        assert_int_equal(index, 7);
        assert_int_equal(seen.calls, 0);
    }
    assert_int_equal(trireme_request_test(live, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_request_get_fd(live, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_request_on_complete(live, NULL, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    uint64_t index = 7;
    const trireme_request *const list[1] = {live};
    assert_int_equal(trireme_request_wait_any(NULL, 1, 0, &index), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_request_wait_any(list, 0, 0, &index), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_request_wait_any(list, 1, 0, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(index, 7);
    trireme_request_destroy(live);
    free_rank_pair(pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_tells_that_it_runs_and_then_that_it_is_done),
        cmocka_unit_test(a_failed_request_answers_its_own_failure_and_leaves_the_output_alone),
        cmocka_unit_test(wait_any_gives_the_lowest_one_that_is_done),
        cmocka_unit_test(wait_any_finds_every_request_while_they_end),
        cmocka_unit_test(a_callback_comes_once_on_a_thread_of_the_library),
        cmocka_unit_test(a_callback_comes_at_once_when_the_request_is_done_already),
        cmocka_unit_test(a_callback_comes_also_when_the_request_was_destroyed_before),
        cmocka_unit_test(a_callback_hears_the_message_of_a_failure),
        cmocka_unit_test(a_callback_may_start_and_destroy_but_not_block),
        cmocka_unit_test(a_callback_may_destroy_the_communicator),
        cmocka_unit_test(a_descriptor_becomes_readable_when_the_operation_is_done),
        cmocka_unit_test(cancelling_a_queued_collective_fails_the_group),
        cmocka_unit_test(what_is_done_cannot_be_cancelled),
        cmocka_unit_test(a_deadline_holds_also_behind_a_longer_operation),
        cmocka_unit_test(a_plain_call_keeps_its_deadline_behind_a_started_one),
        cmocka_unit_test(requests_end_when_their_communicator_is_destroyed),
        cmocka_unit_test(a_finished_request_does_not_keep_its_rank_in_the_group),
        cmocka_unit_test(races_of_ends_cancels_and_destruction_lose_no_callback),
        cmocka_unit_test(every_function_refuses_what_is_no_request),
    };
    return cmocka_run_group_tests_name("requests", tests, NULL, NULL);
}
