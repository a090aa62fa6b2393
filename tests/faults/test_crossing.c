/*
 * Many threads, several communicators, no common order: each communicator must go on by itself. In
 * every trial each rank has one thread for each of three communicators, which runs a seeded
 * sequence of plain, started and grouped operations. A further thread crosses all of them with
 * messages, and with started operations in an order of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "processes.h"
#include "ranks.h"

enum { COMMUNICATORS = 3, STEPS = 12, MOST_WORLD = 3 };

struct trial {
    int world_size;
    unsigned seed;
    char rendezvous[COMMUNICATORS][96];
    struct verdict verdicts[MOST_WORLD * (COMMUNICATORS + 1)];
};

struct lane {
    struct trial *trial;
    int rank;
    trireme_communicator *communicators[COMMUNICATORS];
};

static unsigned next(unsigned *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

/* The same sequence on all ranks, as it depends on the seed and the communicator alone. */
static void run_sequence(struct lane *lane, int number, struct verdict *verdict) {
    trireme_communicator *const communicator = lane->communicators[number];
    const int world_size = lane->trial->world_size;
    unsigned state = lane->trial->seed * 97 + (unsigned)number;
    int32_t values[700], sums[700];
    for (int step = 0; step < STEPS; ++step) {
        const unsigned kind = next(&state) % 4;
        const uint64_t count = 1 + next(&state) % 700;
        for (uint64_t i = 0; i < count; ++i) values[i] = lane->rank + (int32_t)i + step;
        trireme_request *request = NULL;
        if (kind == 3) EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_begin());
        if (kind == 1) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_all_reduce_start(communicator, values, sums, count,
                                                   TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM, NULL,
                                                   &request));
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
            trireme_request_destroy(request);
        } else {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_all_reduce(communicator, values, sums, count, TRIREME_DTYPE_I32,
                                             TRIREME_REDUCTION_SUM, NULL));
        }
        if (kind == 2) EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        if (kind == 3) EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_end());
        const int32_t ranks = world_size * (world_size - 1) / 2;
        for (uint64_t i = 0; i < count; ++i) {
            if (!EXPECT(verdict, sums[i] == ranks + world_size * ((int32_t)i + step))) break;
        }
    }
}

/* Messages and urgent collectives over all communicators, each rank in another order: what one
 * rank does first, another does last. */
static void cross(struct lane *lane, struct verdict *verdict) {
    const int world_size = lane->trial->world_size, rank = lane->rank;
    const int to = (rank + 1) % world_size, from = (rank + world_size - 1) % world_size;
    trireme_operation_options urgent = TRIREME_OPERATION_OPTIONS_INIT;
    urgent.priority = TRIREME_PRIORITY_HIGH;
    for (int step = 0; step < STEPS; ++step) {
        trireme_request *requests[COMMUNICATORS][3];
        int32_t sent[COMMUNICATORS], received[COMMUNICATORS], ones[COMMUNICATORS],
            sum[COMMUNICATORS];
        for (int turn = 0; turn < COMMUNICATORS; ++turn) {
            const int c = (turn + rank + step) % COMMUNICATORS;
            trireme_communicator *const communicator = lane->communicators[c];
            sent[c] = rank * 100 + c * 10 + step;
            ones[c] = 1;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_receive_start(communicator, &received[c], 1, TRIREME_DTYPE_I32,
                                                from, (uint64_t)step, NULL, &requests[c][0]));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_all_reduce_start(communicator, &ones[c], &sum[c], 1,
                                                   TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM,
                                                   &urgent, &requests[c][1]));
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_send_start(communicator, &sent[c], 1, TRIREME_DTYPE_I32, to,
                                             (uint64_t)step, NULL, &requests[c][2]));
        }
        for (int c = 0; c < COMMUNICATORS; ++c) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_request_wait_all((const trireme_request *const *)requests[c], 3,
                                                   LONG_NS));
            for (int i = 0; i < 3; ++i) trireme_request_destroy(requests[c][i]);
            EXPECT(verdict, received[c] == from * 100 + c * 10 + step && sum[c] == world_size);
        }
    }
}

static void run_thread(int index, void *context) {
    struct lane *const lane = context;
    struct verdict *const verdict =
        &lane->trial->verdicts[lane->rank * (COMMUNICATORS + 1) + index];
    if (index < COMMUNICATORS) {
        run_sequence(lane, index, verdict);
    } else {
        cross(lane, verdict);
    }
}

static void run_rank(int rank, void *context) {
    struct trial *const trial = context;
    struct lane lane = {.trial = trial, .rank = rank};
    for (int c = 0; c < COMMUNICATORS; ++c) {
        lane.communicators[c] = join_rank(rank, trial->world_size, trial->rendezvous[c]);
    }
    run_threads(COMMUNICATORS + 1, run_thread, &lane);
    for (int c = 0; c < COMMUNICATORS; ++c) {
        if (trireme_barrier(lane.communicators[c], NULL) != TRIREME_OK) abort();
        trireme_communicator_destroy(lane.communicators[c]);
    }
}

static void run_process(int rank, void *context, struct outcome *outcome) {
    struct trial *const trial = context;
    run_rank(rank, trial);
    for (int i = 0; i <= COMMUNICATORS; ++i) {
        const struct verdict *const verdict = &trial->verdicts[rank * (COMMUNICATORS + 1) + i];
        if (verdict->text[0] != 0) memcpy(outcome->message, verdict->text, sizeof verdict->text);
    }
}

static int trials(int normal) {
    if (is_quick()) return normal / 8;
    return getenv("TRIREME_TEST_LONG") != NULL ? normal * 40 : normal;
}

static void processes_that_cross_go_on(void **state) {
    (void)state;
    const int count = trials(100);
    for (int number = 0; number < count; ++number) {
        static struct trial trial;
        memset(&trial, 0, sizeof trial);
        trial.world_size = 2 + number % 2;
        trial.seed = (unsigned)number;
        for (int c = 0; c < COMMUNICATORS; ++c) {
            unique_host_rendezvous(trial.rendezvous[c], sizeof trial.rendezvous[c]);
        }
        struct processes processes;
        start_processes(&processes, trial.world_size, run_process, &trial);
        wait_processes(&processes);
        for (int rank = 0; rank < trial.world_size; ++rank) {
            assert_int_equal(processes.outcomes[rank].exit_code, 0);
            assert_string_equal(processes.outcomes[rank].message, "");
        }
        free_processes(&processes);
    }
    print_message("crossing: %d trials between processes, 0 hangs\n", count);
}

static void threads_that_cross_go_on(void **state) {
    (void)state;
    const int count = trials(400);
    for (int number = 0; number < count; ++number) {
        static struct trial trial;
        memset(&trial, 0, sizeof trial);
        trial.world_size = 1 + number % MOST_WORLD;
        trial.seed = 1000u + (unsigned)number;
        for (int c = 0; c < COMMUNICATORS; ++c) {
            unique_rendezvous(trial.rendezvous[c], sizeof trial.rendezvous[c]);
        }
        run_threads(trial.world_size, run_rank, &trial);
        assert_verdicts(trial.verdicts, trial.world_size * (COMMUNICATORS + 1));
    }
    print_message("crossing: %d trials between threads, 0 hangs\n", count);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_that_cross_go_on), /* first: it forks */
        cmocka_unit_test(threads_that_cross_go_on),
    };
    return cmocka_run_group_tests_name("crossing", tests, NULL, NULL);
}
