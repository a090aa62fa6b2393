/*
 * Missing or lost ranks, and their last calls: in the message of every rank's failure, and by
 * trireme_communicator_get_last_calls() from every rank.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "calls.h"
#include "processes.h"
#include "ranks.h"
#include "transport.h"

#define SHORT_NS (200ull * 1000 * 1000)

static int trial_count;

/* The lines of all ranks; the caller frees them. NULL if the call fails. */
static char *calls_of(trireme_communicator *communicator) {
    uint64_t length = 0;
    if (trireme_communicator_get_last_calls(communicator, NULL, 0, &length) != TRIREME_OK)
        return NULL;
    const uint64_t capacity = length + 512; /* a sequence may gain digits meanwhile */
    char *const text = malloc(capacity);
    if (trireme_communicator_get_last_calls(communicator, text, capacity, &length) != TRIREME_OK ||
        length >= capacity || strlen(text) != length) {
        free(text);
        return NULL;
    }
    return text;
}

static bool is_told(trireme_communicator *communicator, const char *line) {
    char *const text = calls_of(communicator);
    const bool found = text != NULL && strstr(text, line) != NULL;
    free(text);
    return found;
}

/* Until another rank has got as far. */
static bool wait_told(trireme_communicator *communicator, const char *line) {
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    while (monotonic_ns() < end) {
        if (is_told(communicator, line)) return true;
        sleep_ms(1);
    }
    return false;
}

/* Answers `status` with the error's text kept on this thread. */
static trireme_status
reduce(trireme_communicator *communicator, int32_t priority, uint64_t timeout_ns) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.priority = priority;
    options.timeout_ns = timeout_ns;
    const int32_t one = 1;
    int32_t sum = 0;
    return trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM,
                              &options);
}

/* ---- a rank that does not come ---- */

struct late {
    int world_size;
    int who;
    int before; /* operations that all call before */
    pthread_barrier_t told;
    struct verdict verdicts[MOST_RANKS];
};

static void come_or_not(trireme_communicator *communicator, int rank, void *context) {
    struct late *const late = context;
    struct verdict *const verdict = &late->verdicts[rank];
    char expected[160], line[160];
    for (int i = 0; i < late->before; ++i) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    }
    if (late->before == 0) {
        snprintf(expected, sizeof expected, "rank %d has called nothing", late->who);
    } else {
        snprintf(expected, sizeof expected, "rank %d last called barrier, sequence %d", late->who,
                 late->before);
    }
    /* One has a short deadline, and only when all others are in their calls: no other rank is late.
     */
    const int hasty = late->who == 0 ? 1 : 0;
    if (rank == late->who) pthread_barrier_wait(&late->told);
    for (int other = 0; rank == hasty && other < late->world_size; ++other) {
        if (other == hasty || other == late->who) continue;
        snprintf(line, sizeof line,
                 "{\"rank\":%d,\"state\":\"joined\",\"known\":true,"
                 "\"collective\":\"all_reduce\",\"sequence\":%d,",
                 other, late->before + 1);
        EXPECT(verdict, wait_told(communicator, line));
    }
    const trireme_status status = reduce(communicator, 0, rank == hasty ? SHORT_NS : 0);
    EXPECT(verdict, status == TRIREME_ERROR_TIMEOUT);
    EXPECT(verdict, strstr(trireme_last_error(), expected) != NULL);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(verdict, blames_only(&info, late->who));
    EXPECT(verdict, strcmp(info.operation, "all_reduce") == 0);
    EXPECT(verdict, info.sequence == (uint64_t)late->before + 1);
    /* From every rank, of every rank. */
    for (int other = 0; other < late->world_size; ++other) {
        if (other != late->who) {
            snprintf(
                expected, sizeof expected,
                "{\"rank\":%d,\"state\":\"joined\",\"known\":true,\"collective\":\"all_reduce\","
                "\"sequence\":%d,\"channel\":0,\"message\":null}\n",
                other, late->before + 1);
        } else if (late->before > 0) {
            snprintf(expected, sizeof expected,
                     "{\"rank\":%d,\"state\":\"joined\",\"known\":true,\"collective\":\"barrier\","
                     "\"sequence\":%d,\"channel\":0,\"message\":null}\n",
                     other, late->before);
        } else {
            snprintf(expected, sizeof expected,
                     "{\"rank\":%d,\"state\":\"joined\",\"known\":true,\"collective\":null,"
                     "\"message\":null}\n",
                     other);
        }
        /* A rank may be about to make its call; who came late never began one. */
        EXPECT(verdict, other == late->who ? is_told(communicator, expected)
                                           : wait_told(communicator, expected));
    }
    if (rank != late->who) pthread_barrier_wait(&late->told);
    pthread_barrier_wait(&late->told); /* no rank leaves while others look */
}

static void who_does_not_come_is_named_with_what_it_called_last(void **state) {
    (void)state;
    static const int sizes[] = {2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
        for (int before = 0; before <= 3; before += 3) {
            for (int who = 0; who<sizes[i]; who += sizes[i]> 3 ? sizes[i] - 1 : 1) {
                struct late late = {.world_size = sizes[i], .who = who, .before = before};
                assert_int_equal(pthread_barrier_init(&late.told, NULL, (unsigned)sizes[i]), 0);
                run_ranks(sizes[i], come_or_not, &late);
                pthread_barrier_destroy(&late.told);
                assert_verdicts(late.verdicts, sizes[i]);
                ++trial_count;
            }
        }
    }
}

/* ---- ranks that wait for each other ---- */

struct crossing {
    pthread_barrier_t over;
    struct verdict verdicts[2];
};

/* Each waits for a message of the other; the one whose time is over says what the other does. */
static void wait_for_each_other(trireme_communicator *communicator, int rank, void *context) {
    struct crossing *const crossing = context;
    struct verdict *const verdict = &crossing->verdicts[rank];
    int32_t data = 0;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == 1) {
        trireme_request *request = NULL;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_receive_start(communicator, &data, 1, TRIREME_DTYPE_I32, 0, 5, NULL,
                                            &request));
        pthread_barrier_wait(&crossing->over);
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_cancel(request));
        pthread_barrier_wait(&crossing->over); /* who left earlier would end the receive */
        trireme_request_destroy(request);
        return;
    }
    EXPECT(verdict,
           wait_told(communicator,
                     "\"rank\":1,\"state\":\"joined\",\"known\":true,\"collective\":\"barrier\","
                     "\"sequence\":1,\"channel\":0,\"message\":\"receive\",\"peer\":0,"
                     "\"message_sequence\":1}"));
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = SHORT_NS;
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                  trireme_receive(communicator, &data, 1, TRIREME_DTYPE_I32, 1, 6, &options));
    EXPECT(verdict,
           strstr(trireme_last_error(),
                  "rank 1 has not sent the message with tag 6 (rank 1 last called barrier, "
                  "sequence 1, and receive from rank 0)") != NULL);
    pthread_barrier_wait(&crossing->over);
    pthread_barrier_wait(&crossing->over);
}

static void who_sends_nothing_is_named_with_what_it_waits_for(void **state) {
    (void)state;
    for (int trial = 0; trial < 10; ++trial) {
        struct crossing crossing = {0};
        assert_int_equal(pthread_barrier_init(&crossing.over, NULL, 2), 0);
        run_ranks(2, wait_for_each_other, &crossing);
        pthread_barrier_destroy(&crossing.over);
        assert_verdicts(crossing.verdicts, 2);
        ++trial_count;
    }
}

/* Rank 1 waits in one queue, rank 0 comes in the other: both learn where the other one is. */
static void come_in_two_queues(trireme_communicator *communicator, int rank, void *context) {
    struct crossing *const crossing = context;
    struct verdict *const verdict = &crossing->verdicts[rank];
    if (rank == 0) {
        EXPECT(verdict, wait_told(communicator,
                                  "\"rank\":1,\"state\":\"joined\",\"known\":true,\"collective\":"
                                  "\"all_reduce\",\"sequence\":1,\"channel\":1,"));
    }
    const trireme_status status =
        reduce(communicator, rank == 1 ? TRIREME_PRIORITY_HIGH : 0, rank == 0 ? SHORT_NS : 0);
    EXPECT(verdict, status == TRIREME_ERROR_TIMEOUT);
    EXPECT(verdict, strstr(trireme_last_error(),
                           "rank 1 did not arrive before the deadline, perhaps because the "
                           "priorities differ (rank 1 last called all_reduce, sequence 1 of the "
                           "urgent queue)") != NULL);
}

static void ranks_in_two_queues_learn_where_the_other_one_is(void **state) {
    (void)state;
    for (int trial = 0; trial < 10; ++trial) {
        struct crossing crossing = {0};
        run_ranks(2, come_in_two_queues, &crossing);
        assert_verdicts(crossing.verdicts, 2);
        ++trial_count;
    }
}

/* ---- a rank that dies ---- */

#define MOST_AHEAD 1000 /* calls: more than a rank runs ahead of a peer */

struct death {
    int world_size;
    int victim;
    struct call call;
    int before; /* calls before the one in which it dies */
    char rendezvous[64];
};

static void call_and_die(int rank, void *context, struct outcome *outcome) {
    const struct death *const death = context;
    trireme_communicator *const communicator =
        join_process(rank, death->world_size, death->rendezvous, PATIENT_NS);
    struct call_memory memory;
    if (!allocate_call(communicator, &death->call, rank, death->world_size, false, &memory)) {
        _exit(92);
    }
    if (rank == death->victim) {
        /* It has two steps: the ranks exchange their counts first. */
        const int steps = death->call.operation == TRIREME_OPERATION_KIND_ALL_TO_ALL_V ? 2 : 1;
        char text[96];
        snprintf(text, sizeof text, "%s.before_publish=kill@%d",
                 operation_text(death->call.operation), death->before * steps + 1);
        if (trireme_failpoint_set(text) != TRIREME_OK) _exit(91);
    }
    trireme_status status = TRIREME_OK;
    /* A small call with a root may be over here before its victim dies: a later one tells. */
    for (int i = 0; i <= death->before + MOST_AHEAD && status == TRIREME_OK; ++i) {
        fill_call(&death->call, &memory, rank, death->world_size, i);
        status = run_call(communicator, &death->call, &memory, false, PATIENT_NS);
    }
    keep_error(outcome, status);
    char *const calls = calls_of(communicator);
    if (calls != NULL) {
        char line[16];
        snprintf(line, sizeof line, "{\"rank\":%d,", death->victim);
        const char *const begin = strstr(calls, line);
        if (begin != NULL) {
            snprintf(outcome->text, sizeof outcome->text, "%.*s", (int)strcspn(begin, "\n"), begin);
        }
    }
    free(calls);
    free_call(&memory, false);
    trireme_communicator_destroy(communicator);
}

static void who_dies_is_named_with_what_it_called_last(void **state) {
    (void)state;
    static const int sizes[] = {2, 3, 5};
    for (int operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
         operation <= TRIREME_OPERATION_KIND_ALL_TO_ALL_V; ++operation) {
        if (!is_collective(operation)) continue;
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
            if (is_quick() && (operation + (int)i) % 3 != 0) continue;
            struct death death = {.world_size = sizes[i],
                                  .victim = operation % sizes[i],
                                  .before = 1 + operation % 3,
                                  .call = {.operation = operation,
                                           .dtype = TRIREME_DTYPE_F32,
                                           .reduction = TRIREME_REDUCTION_SUM,
                                           .count = operation == TRIREME_OPERATION_KIND_BARRIER
                                                        ? 0
                                                        : 7}};
            for (int rank = 0; rank < MOST_RANKS; ++rank) death.call.counts[rank] = 7;
            struct processes processes;
            unique_host_rendezvous(death.rendezvous, sizeof death.rendezvous);
            start_processes(&processes, sizes[i], call_and_die, &death);
            wait_processes(&processes);
            char called[128];
            char line[128];
            snprintf(called, sizeof called, "(rank %d last called %s, sequence %d)", death.victim,
                     operation_text(operation), death.before + 1);
            snprintf(line, sizeof line, "\"known\":true,\"collective\":\"%s\",\"sequence\":%d,",
                     operation_text(operation), death.before + 1);
            for (int rank = 0; rank < sizes[i]; ++rank) {
                const struct outcome *const o = &processes.outcomes[rank];
                assert_false(o->hung);
                if (rank == death.victim) {
                    assert_int_equal(o->signal, SIGKILL);
                    continue;
                }
                assert_int_equal(o->exit_code, 0);
                assert_int_equal(o->status, TRIREME_ERROR_PEER_LOST);
                if (strstr(o->message, called) == NULL || strstr(o->text, line) == NULL) {
                    fail_msg("rank %d: no \"%s\" in: %s; %s", rank, called, o->message, o->text);
                }
            }
            free_processes(&processes);
            ++trial_count;
        }
    }
}

/* ---- where nothing can be known, and wrong arguments ---- */

static void look_over_transport(int rank, void *context) {
    struct net *const *const net = context;
    trireme_communicator *communicator = NULL;
    if (net_join(*net, rank, 2, "transport://calls", LONG_NS, &communicator) != TRIREME_OK ||
        trireme_barrier(communicator, NULL) != TRIREME_OK) {
        abort();
    }
    char *const text = calls_of(communicator);
    char own[160];
    snprintf(own, sizeof own,
             "{\"rank\":%d,\"state\":\"joined\",\"known\":true,\"collective\":\"barrier\","
             "\"sequence\":1,\"channel\":0,\"message\":null}\n",
             rank);
    char other[160];
    snprintf(other, sizeof other,
             "{\"rank\":%d,\"state\":\"joined\",\"known\":false,\"collective\":null,"
             "\"message\":null}\n",
             1 - rank);
    if (text == NULL || strstr(text, own) == NULL || strstr(text, other) == NULL) {
        fprintf(stderr, "rank %d: %s\n", rank, text);
        abort();
    }
    free(text);
    if (trireme_barrier(communicator, NULL) != TRIREME_OK) abort();
    trireme_communicator_destroy(communicator);
}

static void calls_of_peers_of_a_transport_are_not_known(void **state) {
    (void)state;
    struct net *net = net_create(2);
    run_threads(2, look_over_transport, &net);
    net_destroy(net, 2);
    ++trial_count;
}

static void a_text_that_is_too_long_is_cut_and_wrong_arguments_write_nothing(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    uint64_t length = 0;
    assert_int_equal(trireme_communicator_get_last_calls(alone, NULL, 0, &length), TRIREME_OK);
    char text[256];
    for (uint64_t capacity = 1; capacity <= length + 2; ++capacity) {
        uint64_t again = 0;
        memset(text, 'x', sizeof text);
        assert_int_equal(trireme_communicator_get_last_calls(alone, text, capacity, &again),
                         TRIREME_OK);
        assert_int_equal(again, length);
        assert_int_equal(strlen(text), capacity <= length ? capacity - 1 : length);
        assert_int_equal(text[capacity < length + 1 ? capacity : length + 1], 'x');
    }
    memset(text, 'x', sizeof text);
    length = 77;
    assert_int_equal(trireme_communicator_get_last_calls(alone, NULL, 5, &length),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_communicator_get_last_calls(NULL, text, sizeof text, &length),
                     TRIREME_ERROR_INVALID_HANDLE);
    trireme_communicator_destroy(alone);
    assert_int_equal(trireme_communicator_get_last_calls(alone, text, sizeof text, &length),
                     TRIREME_ERROR_INVALID_HANDLE);
    assert_int_equal(text[0], 'x');
    assert_int_equal(length, 77);
    printf("last calls: %d trials, 0 violations\n", trial_count);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        /* The first one forks: its parent must not have used the library. */
        cmocka_unit_test(who_dies_is_named_with_what_it_called_last),
        cmocka_unit_test(who_does_not_come_is_named_with_what_it_called_last),
        cmocka_unit_test(who_sends_nothing_is_named_with_what_it_waits_for),
        cmocka_unit_test(ranks_in_two_queues_learn_where_the_other_one_is),
        cmocka_unit_test(calls_of_peers_of_a_transport_are_not_known),
        cmocka_unit_test(a_text_that_is_too_long_is_cut_and_wrong_arguments_write_nothing),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("last calls", tests, NULL, NULL);
}
