/*
 * Ranks on two hosts; one dies or is stopped in the middle of a collective: while its host waits
 * for it, the other host waits for it or for its host's ranks. All ranks name that rank, none gets
 * a wrong number, and none hangs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <unistd.h>

#include "processes.h"
#include "ranks.h"

#define RANKS 4
#define HOSTS "aabb"
/* Of three pieces; the ranks of a host meet twice for each, and at each meeting is a failpoint. */
#define COUNT 700001
#define ROUNDS 40
#define DEADLINE_NS (3ull * 1000 * 1000 * 1000)

struct job {
    const char *failpoint;
    int victim;
    uint64_t timeout_ns;
    char rendezvous[96];
};

/* numbers[0]: it is done. */
static void sum_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    char place[128];
    snprintf(place, sizeof place, "%s?host=%c", job->rendezvous, HOSTS[rank]);
    int32_t *const data = malloc(COUNT * sizeof *data);
    if (data == NULL) _exit(92);
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = RANKS;
    options.rendezvous = place;
    options.timeout_ns = job->timeout_ns;
    trireme_communicator *communicator = NULL;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK ||
        trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, trireme_last_error());
        _exit(90);
    }
    if (rank == job->victim && trireme_failpoint_set(job->failpoint) != TRIREME_OK) _exit(91);
    for (int round = 0; outcome->status == TRIREME_OK && !outcome->wrong && round < ROUNDS;
         ++round) {
        for (int i = 0; i < COUNT; ++i) data[i] = i + rank;
        const trireme_status status =
            trireme_all_reduce(communicator, data, data, COUNT, TRIREME_DTYPE_I32,
                               TRIREME_REDUCTION_SUM, NULL);
        if (status != TRIREME_OK) {
            keep_error(outcome, status);
            continue;
        }
        ++outcome->rounds;
        for (int i = 0; i < COUNT; ++i) outcome->wrong |= data[i] != RANKS * i + 6;
    }
    trireme_communicator_destroy(communicator);
    free(data);
    __atomic_store_n(&outcome->numbers[0], 1, __ATOMIC_SEQ_CST);
}

static bool survivors_are_done(const struct processes *processes, int victim) {
    for (int rank = 0; rank < RANKS; ++rank) {
        if (rank == victim) continue;
        if (__atomic_load_n(&processes->outcomes[rank].numbers[0], __ATOMIC_SEQ_CST) == 0) {
            return false;
        }
    }
    return true;
}

static void harm_one(struct job job, trireme_status expected) {
    struct processes processes;
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    start_processes(&processes, RANKS, sum_until_it_fails, &job);
    if (expected == TRIREME_ERROR_TIMEOUT) {
        assert_true(wait_stopped(&processes, job.victim));
        const uint64_t end = monotonic_ns() + HANG_NS;
        while (!survivors_are_done(&processes, job.victim) && monotonic_ns() < end) sleep_ms(20);
        kill(processes.ids[job.victim], SIGCONT);
    }
    wait_processes(&processes);
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const outcome = &processes.outcomes[rank];
        if (rank == job.victim) continue;
        if (outcome->status != expected || !blames_only(&outcome->info, job.victim) ||
            outcome->wrong || outcome->hung || outcome->exit_code != 0) {
            fail_msg("%s of rank %d, rank %d: %s, wrong %d, hung %d, exit %d, signal %d: %s",
                     job.failpoint, job.victim, rank, trireme_status_name(outcome->status),
                     outcome->wrong, outcome->hung, outcome->exit_code, outcome->signal,
                     outcome->message);
        }
    }
    free_processes(&processes);
}

static void who_dies_inside_is_named(void **state) {
    (void)state;
    static const char *const points[] = {"barrier.before_publish=kill@3",
                                         "barrier.after_publish=kill@8",
                                         "barrier.before_leave=kill@13"};
    for (size_t i = 0; i < sizeof points / sizeof *points; ++i) {
        for (int victim = 0; victim < RANKS; victim += is_quick() ? 3 : 1) {
            harm_one((struct job){points[i], victim, PATIENT_NS, ""}, TRIREME_ERROR_PEER_LOST);
        }
    }
}

static void who_stands_still_inside_is_named_at_the_deadline(void **state) {
    (void)state;
    for (int victim = is_quick() ? 2 : 0; victim < RANKS; victim += 2) {
        harm_one((struct job){"barrier.before_publish=stop@4", victim, DEADLINE_NS, ""},
                 TRIREME_ERROR_TIMEOUT);
    }
}

int main(void) {
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_dies_inside_is_named),
        cmocka_unit_test(who_stands_still_inside_is_named_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
