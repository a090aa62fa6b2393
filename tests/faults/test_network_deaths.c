/*
 * A rank of a tcp:// group is killed at any moment: while it joins, in the middle of any operation,
 * between two; that is stopped for less time than it may be silent; whose meeting place dies before
 * all have met. Survivors learn which rank it was, and never have a wrong number.
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
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "ranks.h"

#define RANKS 3
#define LARGE 50001
#define PERMANENT INT32_MAX

struct job {
    int victim;
    uint64_t life_ns; /* from its start to its end, or from when all were there; 0: it lives */
    bool when_ready;
    uint64_t timeout_ns;
    int rounds;
    int patient_rank; /* the others come later */
    unsigned late_ms;
    char rendezvous[96];
};

/* ---- ranks ---- */

static struct outcome *dying;

static void *die_later(void *life_ns) {
    const uint64_t end = monotonic_ns() + *(uint64_t *)life_ns;
    while (monotonic_ns() < end) usleep(50);
    dying->returned_ns = monotonic_ns();
    raise(SIGKILL);
    return NULL;
}

static trireme_communicator *join(int rank, const struct job *job) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = RANKS;
    options.rendezvous = job->rendezvous;
    options.timeout_ns = job->timeout_ns;
    options.backend = network_backend();
    trireme_communicator *communicator = NULL;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, trireme_last_error());
        _exit(90);
    }
    return communicator;
}

/* One operation of many kinds and sizes; *wrong: it said OK and its result was not right. */
static trireme_status
step(trireme_communicator *group, int rank, int round, int32_t *data, bool *wrong) {
    const int count = round % 2 == 0 ? 3 : LARGE;
    const int root = round % RANKS;
    int32_t *const all = data + LARGE;
    trireme_status status = TRIREME_OK;
    for (int i = 0; i < count; ++i) data[i] = i + rank + round;
    switch (round % 6) {
        case 0:
        case 3:
            status = trireme_all_reduce(group, data, data, (uint64_t)count, TRIREME_DTYPE_I32,
                                        TRIREME_REDUCTION_SUM, NULL);
            for (int i = 0; i < count && status == TRIREME_OK; ++i) {
                *wrong |= data[i] != 3 * (i + round) + 3;
            }
            return status;
        case 1:
            status = trireme_broadcast(group, data, (uint64_t)count, TRIREME_DTYPE_I32, root, NULL);
            for (int i = 0; i < count && status == TRIREME_OK; ++i) {
                *wrong |= data[i] != i + root + round;
            }
            return status;
        case 2:
        case 5:
            status = trireme_all_gather(group, data, all, (uint64_t)count, TRIREME_DTYPE_I32, NULL);
            for (int i = 0; i < RANKS * count && status == TRIREME_OK; ++i) {
                *wrong |= all[i] != i % count + i / count + round;
            }
            return status;
        default:
            status = trireme_send_receive(group, data, (uint64_t)count, (rank + 1) % RANKS, 1, all,
                                          (uint64_t)count, (rank + RANKS - 1) % RANKS, 1,
                                          TRIREME_DTYPE_I32, NULL);
            for (int i = 0; i < count && status == TRIREME_OK; ++i) {
                *wrong |= all[i] != i + (rank + RANKS - 1) % RANKS + round;
            }
            return status;
    }
}

static void work(int rank, void *context, struct outcome *outcome) {
    struct job *const job = context;
    int32_t *const data = malloc(sizeof *data * LARGE * (RANKS + 1));
    pthread_t killer;
    if (data == NULL) _exit(92);
    const bool dies = rank == job->victim && job->life_ns != 0;
    if (rank != job->patient_rank) sleep_ms(job->late_ms);
    dying = outcome;
    if (dies && !job->when_ready && pthread_create(&killer, NULL, die_later, &job->life_ns) != 0) {
        _exit(92);
    }
    trireme_communicator *const group = join(rank, job);
    trireme_status status = TRIREME_OK;
    if (job->when_ready) {
        status = trireme_communicator_wait_ready(group, PATIENT_NS);
        if (dies && pthread_create(&killer, NULL, die_later, &job->life_ns) != 0) _exit(92);
    }
    for (int round = 0; round < job->rounds && status == TRIREME_OK; ++round) {
        bool wrong = false;
        status = step(group, rank, round, data, &wrong);
        outcome->wrong |= wrong;
        if (status == TRIREME_OK) ++outcome->rounds;
    }
    outcome->returned_ns = monotonic_ns();
    if (status != TRIREME_OK) keep_error(outcome, status);
    trireme_communicator_destroy(group);
    free(data);
}

static void expect_good(const struct processes *processes, int rank, int rounds) {
    const struct outcome *const each = &processes->outcomes[rank];
    if (each->status != TRIREME_OK || each->wrong || each->exit_code != 0 ||
        each->rounds != rounds) {
        fail_msg("rank %d after %d rounds: wrong %d, exit %d: %s", rank, each->rounds, each->wrong,
                 each->exit_code, each->message);
    }
}

/* ---- killed at any moment ---- */

static bool blames(const trireme_error_info *info, int rank) {
    for (uint32_t i = 0; i < info->blamed_count && i < TRIREME_MAX_BLAMED_RANKS; ++i) {
        if (info->blamed[i] == rank) return true;
    }
    return false;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void
kill_at(uint64_t life_ns, bool when_ready, int victim, uint64_t timeout_ns, double *told_ms) {
    struct job job = {.victim = victim,
                      .life_ns = life_ns,
                      .when_ready = when_ready,
                      .timeout_ns = timeout_ns,
                      .rounds = PERMANENT};
    struct processes processes;
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    start_processes(&processes, RANKS, work, &job);
    wait_processes(&processes);
    assert_int_equal(processes.outcomes[victim].signal, SIGKILL);
    *told_ms = 0;
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const each = &processes.outcomes[rank];
        if (rank == victim) continue;
        /* A rank that never came is missed at the deadline, perhaps with others that could not come
         * in. */
        const bool lost =
            each->status == TRIREME_ERROR_PEER_LOST && blames_only(&each->info, victim);
        const bool late = each->status == TRIREME_ERROR_TIMEOUT && blames(&each->info, victim);
        if ((!lost && !late) || each->wrong || each->hung || each->exit_code != 0) {
            fail_msg(
                "rank %d, %d killed after %d us: %s, wrong %d, hung %d, exit %d, signal %d: %s",
                rank, victim, (int)(life_ns / 1000), trireme_status_name(each->status), each->wrong,
                each->hung, each->exit_code, each->signal, each->message);
        }
        const double ms =
            (double)(int64_t)(each->returned_ns - processes.outcomes[victim].returned_ns) / 1e6;
        if (lost && ms > *told_ms) *told_ms = ms;
    }
    free_processes(&processes);
}

static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void a_rank_killed_at_any_moment_is_named(void **state) {
    (void)state;
    const bool is_long = getenv("TRIREME_TEST_LONG") != NULL;
    const int trials = is_long ? 2000 : is_quick() ? 6 : 40;
    double *const told = malloc(sizeof *told * (size_t)trials);
    uint64_t seed = 20240229;
    assert_non_null(told);
    for (int trial = 0; trial < trials; ++trial) {
        kill_at(1 + draw(&seed) % 40000000, true, trial % RANKS, PATIENT_NS, &told[trial]);
    }
    qsort(told, (size_t)trials, sizeof *told, compare);
    printf("kill: tcp, %d deaths of one of %d ranks, told after %.1f ms (median), %.1f ms (last)\n",
           trials, RANKS, told[trials / 2], told[trials - 1]);
    free(told);
}

/* Whether or not the others have met it. The deadline is short: it ends the wait for a rank that
 * never came. */
static void a_rank_killed_while_it_joins_is_named(void **state) {
    (void)state;
    const int trials = getenv("TRIREME_TEST_LONG") != NULL ? 300 : is_quick() ? 1 : 3;
    uint64_t seed = 4711;
    double told = 0;
    for (int trial = 0; trial < trials; ++trial) {
        kill_at(1 + draw(&seed) % 6000000, false, (trial + 1) % RANKS, 1500 * 1000000ull, &told);
    }
}

/* ---- stopped, but not for long ---- */

static void a_rank_stopped_for_a_moment_is_not_lost(void **state) {
    (void)state;
    struct job job = {.victim = -1, .timeout_ns = PATIENT_NS, .rounds = 200};
    struct processes processes;
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    start_processes(&processes, RANKS, work, &job);
    for (int rank = 0; rank < RANKS; ++rank) {
        sleep_ms(15);
        kill(processes.ids[rank], SIGSTOP);
        sleep_ms(150);
        kill(processes.ids[rank], SIGCONT);
    }
    wait_processes(&processes);
    for (int rank = 0; rank < RANKS; ++rank) expect_good(&processes, rank, job.rounds);
    free_processes(&processes);
}

/* ---- the meeting place dies ---- */

/* Rank 1 waits there; the others come when it has been taken over by another process. */
static void another_rank_zero_takes_the_place_of_one_that_died(void **state) {
    (void)state;
    struct job job = {.victim = -1,
                      .timeout_ns = PATIENT_NS,
                      .rounds = 6,
                      .patient_rank = 1,
                      .late_ms = 200};
    struct processes processes;
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    const pid_t first = fork();
    assert_true(first >= 0);
    if (first == 0) {
        join(0, &job);
        for (;;) pause();
    }
    start_processes(&processes, RANKS, work, &job);
    sleep_ms(100);
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
    wait_processes(&processes);
    for (int rank = 0; rank < RANKS; ++rank) expect_good(&processes, rank, job.rounds);
    free_processes(&processes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_killed_at_any_moment_is_named),
        cmocka_unit_test(a_rank_killed_while_it_joins_is_named),
        cmocka_unit_test(a_rank_stopped_for_a_moment_is_not_lost),
        cmocka_unit_test(another_rank_zero_takes_the_place_of_one_that_died),
    };
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    unsetenv("TRIREME_TOKEN_FILE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
