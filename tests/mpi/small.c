/*
 * One rank of a job that mpirun has started. It calls operations whose payload travels with the
 * comparison of the calls. Exit status 0: all is well; it reports failures on standard error.
 *
 * usage: small calls|late|mismatch|timeout|abort|goodbye
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ranks.h"

#define MILLISECOND_NS 1000000ull
#define MOST 140 /* more than travels with a comparison */

static struct verdict verdict;
static int rank, n;

static trireme_communicator *join(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = "mpi://";
    options.backend = "mpi"; /* on one host, too */
    options.timeout_ns = LONG_NS;
    trireme_communicator *communicator = NULL;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK) {
        fprintf(stderr, "cannot join: %s\n", trireme_last_error());
        exit(3);
    }
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_get_rank(communicator, &rank));
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_get_world_size(communicator, &n));
    return communicator;
}

static void fill(int32_t *values, uint64_t count, uint64_t turn) {
    for (uint64_t i = 0; i < count; ++i) values[i] = (int32_t)(i * 3 + turn) + rank * 1000;
}

static bool is_sum(const int32_t *values, uint64_t count, uint64_t turn) {
    bool right = true;
    for (uint64_t i = 0; i < count; ++i) {
        right = right && values[i] == (int32_t)(i * 3 + turn) * n + 1000 * (n * (n - 1) / 2);
    }
    return right;
}

static trireme_status sum(trireme_communicator *communicator, int32_t *values, uint64_t count,
                          const trireme_operation_options *options) {
    return trireme_all_reduce(communicator, values, values, count, TRIREME_DTYPE_I32,
                              TRIREME_REDUCTION_SUM, options);
}

/* Calls of all sizes around the border, in two channels at once; `late`: each rank is late in its
 * turn. */
static void run_calls(trireme_communicator *communicator, bool late) {
    trireme_operation_options urgent = TRIREME_OPERATION_OPTIONS_INIT;
    urgent.priority = TRIREME_PRIORITY_HIGH;
    for (uint64_t turn = 0; turn < (late ? 30 : 600); ++turn) {
        int32_t here[MOST], there[MOST], root[3];
        const uint64_t count = turn % MOST, other = (turn * 7) % MOST;
        if (late && (int)(turn % (uint64_t)n) == rank) usleep(turn % 3 == 0 ? 20000 : 700);
        fill(here, count, turn);
        fill(there, other, turn + 5);
        trireme_request *request = NULL;
        EXPECT_STATUS(&verdict, TRIREME_OK,
                      trireme_all_reduce_start(communicator, there, there, other, TRIREME_DTYPE_I32,
                                               TRIREME_REDUCTION_SUM, &urgent, &request));
        EXPECT_STATUS(&verdict, TRIREME_OK, sum(communicator, here, count, NULL));
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
        trireme_request_destroy(request);
        EXPECT(&verdict, is_sum(here, count, turn));
        EXPECT(&verdict, is_sum(there, other, turn + 5));
        const int32_t from = (int32_t)(turn % (uint64_t)n);
        for (int i = 0; i < 3; ++i) root[i] = rank == from ? (int32_t)turn + i : -1;
        EXPECT_STATUS(&verdict, TRIREME_OK,
                      trireme_broadcast(communicator, root, 3, TRIREME_DTYPE_I32, from, NULL));
        for (int i = 0; i < 3; ++i) EXPECT(&verdict, root[i] == (int32_t)turn + i);
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    }
}

/* One rank calls another operation after some that agree; it must read only its own memory. */
static void run_mismatch(trireme_communicator *communicator) {
    int32_t values[8];
    for (uint64_t turn = 0; turn < 10; ++turn) {
        fill(values, 8, turn);
        EXPECT_STATUS(&verdict, TRIREME_OK, sum(communicator, values, 8, NULL));
    }
    fill(values, 8, 0);
    const uint64_t count = rank == n - 1 ? 7 : 8;
    EXPECT_STATUS(&verdict, TRIREME_ERROR_MISMATCH, sum(communicator, values, count, NULL));
    EXPECT(&verdict, strstr(trireme_last_error(), "count") != NULL);
    for (int32_t i = 0; i < 8; ++i) EXPECT(&verdict, values[i] == i * 3 + rank * 1000);
    EXPECT_STATUS(&verdict, TRIREME_ERROR_MISMATCH, trireme_barrier(communicator, NULL));
}

/* The last rank does not come; the others' messages to it must not reach the next group. */
static void run_timeout(trireme_communicator *communicator) {
    int32_t values[2];
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = 200 * MILLISECOND_NS;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == n - 1) {
        trireme_status status = TRIREME_OK;
        while (status == TRIREME_OK) { /* until it learns that the others have given up */
            usleep(10000);
            status = trireme_communicator_wait_ready(communicator, LONG_NS);
        }
        EXPECT(&verdict, status == TRIREME_ERROR_TIMEOUT);
    } else {
        fill(values, 2, 0);
        EXPECT_STATUS(&verdict, TRIREME_ERROR_TIMEOUT, sum(communicator, values, 2, &options));
        char name[32];
        snprintf(name, sizeof name, "rank %d did not arrive", n - 1);
        EXPECT(&verdict, strstr(trireme_last_error(), name) != NULL);
    }
    trireme_communicator *const next = join();
    run_calls(next, false);
    trireme_communicator_destroy(next);
}

/* The last rank aborts while the others wait for it. */
static void run_abort(trireme_communicator *communicator) {
    int32_t values[2] = {0, 0};
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == n - 1) {
        usleep(30000);
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_abort(communicator, "enough"));
    }
    EXPECT_STATUS(&verdict, TRIREME_ERROR_ABORTED, sum(communicator, values, 2, NULL));
    EXPECT(&verdict, strstr(trireme_last_error(), "enough") != NULL);
}

/* A rank that has finished leaves at once, and the others do not take it for lost. */
static void run_goodbye(void) {
    for (uint64_t turn = 0; turn < 12; ++turn) {
        trireme_communicator *const communicator = join();
        int32_t values[4];
        fill(values, 4, turn);
        if (rank == 0) usleep((useconds_t)(turn % 4) * 1000);
        EXPECT_STATUS(&verdict, TRIREME_OK, sum(communicator, values, 4, NULL));
        EXPECT(&verdict, is_sum(values, 4, turn));
        trireme_communicator_destroy(communicator);
    }
}

int main(int count, char **arguments) {
    const char *const part = count > 1 ? arguments[1] : "";
    if (strcmp(part, "goodbye") == 0) {
        run_goodbye();
    } else {
        trireme_communicator *const communicator = join();
        if (strcmp(part, "calls") == 0 || strcmp(part, "late") == 0) {
            run_calls(communicator, strcmp(part, "late") == 0);
        } else if (strcmp(part, "mismatch") == 0) {
            run_mismatch(communicator);
        } else if (strcmp(part, "timeout") == 0) {
            run_timeout(communicator);
        } else if (strcmp(part, "abort") == 0) {
            run_abort(communicator);
        } else {
            fprintf(stderr, "no part \"%s\"\n", part);
            return 2;
        }
        trireme_communicator_destroy(communicator);
    }
    if (verdict.text[0] != 0) fprintf(stderr, "rank %d of %d: %s\n", rank, n, verdict.text);
    return verdict.text[0] == 0 ? 0 : 1;
}
