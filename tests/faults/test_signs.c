/*
 * Signs of life between hosts: whatever holds a rank's other threads, or stops a rank that listens,
 * no living rank is declared dead. Each rank is held for longer than its peers, or itself, allow a
 * silence.
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

#define RANKS 3
#define SILENCE_MS 2000
#define HOLD_MS 4000
#define HOLD "sleep(4000)"
#define AT_ONCE 16
#define MOST_TRIALS 512

enum when { BEFORE_JOINING, AFTER_JOINING, STOPPED };

struct hold {
    const char *settings; /* with %d: at which visit */
    enum when when;
    int rank;
    int first_visit, last_visit; /* STOPPED: rounds */
    bool alone; /* the held rank gives no sign meanwhile: only it has the short limit */
};

static const struct hold holds[] = {
    /* A frame half written holds the mutex of its peer. */
    {"frame.mid_head=" HOLD "@%d", AFTER_JOINING, 0, 1, 6, false},
    {"frame.mid_body=" HOLD "@%d", AFTER_JOINING, 1, 1, 6, false},
    {"frame.mid_head=short@%d;frame.before_rest=" HOLD "@1", AFTER_JOINING, 2, 1, 3, false},
    /* The first three visits of rank 0 are those of the meeting, which it serves. */
    {"gate.before_enter=" HOLD "@%d", BEFORE_JOINING, 0, 5, 7, false},
    {"gate.before_enter=" HOLD "@%d", BEFORE_JOINING, 1, 2, 2, false},
    /* The thread that lets peers in stops, or has no memory any more. */
    {"mesh.before_watch=" HOLD "@%d", AFTER_JOINING, 0, 1, 2, false},
    {"mesh.before_watch=fail(12)@%d+", AFTER_JOINING, 1, 1, 2, false},
    /* The thread that counts the silence of others is late itself. */
    {"signs.before_count=" HOLD "@%d", AFTER_JOINING, 0, 1, 4, true},
    {"", STOPPED, 0, 1, 4, true},
    {"", STOPPED, 2, 1, 4, true},
};

enum { HOLDS = sizeof holds / sizeof holds[0] };

struct trial {
    const struct hold *hold;
    int visit;
    char rendezvous[96];
    char place[RANKS][128];
};

/* Rank 0 says to all whether another round follows, so that all see the end of the hold. */
static void work(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    const struct hold *const hold = trial->hold;
    char text[128];
    snprintf(text, sizeof text, hold->settings, trial->visit);
    const bool held = rank == hold->rank && hold->when != STOPPED;
    if (held && hold->when == BEFORE_JOINING && trireme_failpoint_set(text) != TRIREME_OK)
        _exit(91);
    trireme_communicator *const group = join_process(rank, RANKS, trial->place[rank], PATIENT_NS);
    trireme_status status = trireme_barrier(group, NULL);
    if (held && hold->when == AFTER_JOINING && trireme_failpoint_set(text) != TRIREME_OK) _exit(91);
    const uint64_t end = monotonic_ns() + (HOLD_MS + SILENCE_MS / 2) * 1000000ull;
    for (int32_t more = 1; status == TRIREME_OK && more != 0;) {
        if (hold->when == STOPPED && rank == hold->rank && outcome->rounds == trial->visit) {
            raise(SIGSTOP);
        }
        more = rank == 0 && monotonic_ns() < end;
        status = trireme_all_reduce(group, &more, &more, 1, TRIREME_DTYPE_I32,
                                    TRIREME_REDUCTION_MAX, NULL);
        /* Collectives go over the wire, and messages in frames. */
        int32_t out = rank, in = -1;
        const int before = (rank + RANKS - 1) % RANKS;
        if (status == TRIREME_OK) {
            status = trireme_send_receive(group, &out, 1, (rank + 1) % RANKS, 1, &in, 1, before, 1,
                                          TRIREME_DTYPE_I32, NULL);
        }
        if (status == TRIREME_OK && in != before) _exit(92);
        if (status == TRIREME_OK) ++outcome->rounds;
        sleep_ms(5);
    }
    if (status != TRIREME_OK) keep_error(outcome, status);
    /* All have their verdict before one leaves. */
    struct outcome *const all = outcome - rank;
    __atomic_store_n(&outcome->numbers[0], 1, __ATOMIC_RELEASE);
    for (int other = 0; other < RANKS; ++other) {
        const uint64_t patient = monotonic_ns() + PATIENT_NS;
        while (__atomic_load_n(&all[other].numbers[0], __ATOMIC_ACQUIRE) == 0 &&
               monotonic_ns() < patient) {
            sleep_ms(2);
        }
    }
    trireme_communicator_destroy(group);
    for (size_t part = 0; held && part < strlen(text); part += strcspn(text + part, ";") + 1) {
        char name[64];
        uint64_t hits = 0;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(text + part, "="), text + part);
        if (trireme_failpoint_get_hits(name, &hits) != TRIREME_OK) _exit(93);
        if (hits == 0 || (part == 0 && hits < (uint64_t)trial->visit)) _exit(94);
    }
}

static void start_trial(struct trial *trial, struct processes *group) {
    unique_meeting(trial->rendezvous, sizeof trial->rendezvous);
    for (int rank = 0; rank < RANKS; ++rank) {
        const bool patient = trial->hold->alone && rank != trial->hold->rank;
        snprintf(trial->place[rank], sizeof trial->place[rank], "%s?silence_ms=%d",
                 trial->rendezvous, patient ? 60000 : SILENCE_MS);
    }
    start_processes(group, RANKS, work, trial);
}

/* The number of groups in which a rank was declared dead. */
static int end_trial(const struct trial *trial, struct processes *group) {
    wait_processes(group);
    int wrong = 0;
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const each = &group->outcomes[rank];
        if (each->status == TRIREME_OK && each->rounds > 0 && each->exit_code == 0 && !each->hung)
            continue;
        fprintf(stderr,
                "rank %d held by \"%s\", %d: rank %d after %d rounds: %s, exit %d, hung %d: %s\n",
                trial->hold->rank, trial->hold->settings, trial->visit, rank, each->rounds,
                trireme_status_name(each->status), each->exit_code, each->hung, each->message);
        wrong = 1;
    }
    free_processes(group);
    return wrong;
}

static void nobody_who_lives_is_declared_dead_while_something_holds_a_rank(void **state) {
    (void)state;
    static struct trial trials[MOST_TRIALS];
    static struct processes groups[AT_ONCE];
    const int repeats = getenv("TRIREME_TEST_LONG") != NULL ? 12 : 1;
    int count = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        for (int i = 0; i < HOLDS; ++i) {
            const int last = repeats > 1 ? holds[i].last_visit : holds[i].first_visit;
            for (int visit = holds[i].first_visit; visit <= last; ++visit) {
                trials[count++] = (struct trial){.hold = &holds[i], .visit = visit};
            }
        }
    }
    int wrong = 0;
    for (int first = 0; first < count; first += AT_ONCE) {
        const int end = first + AT_ONCE < count ? first + AT_ONCE : count;
        for (int i = first; i < end; ++i) start_trial(&trials[i], &groups[i - first]);
        bool stopped = false;
        for (int i = first; i < end; ++i) {
            if (trials[i].hold->when == STOPPED) {
                assert_true(wait_stopped(&groups[i - first], trials[i].hold->rank));
                stopped = true;
            }
        }
        if (stopped) sleep_ms(HOLD_MS);
        for (int i = first; i < end; ++i) {
            if (trials[i].hold->when == STOPPED)
                kill(groups[i - first].ids[trials[i].hold->rank], SIGCONT);
        }
        for (int i = first; i < end; ++i) wrong += end_trial(&trials[i], &groups[i - first]);
    }
    printf(
        "signs: %d groups in which a rank was held for %d ms, %d in which one was declared dead after %d ms\n",
        count, HOLD_MS, wrong, SILENCE_MS);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nobody_who_lives_is_declared_dead_while_something_holds_a_rank),
    };
    setenv("TRIREME_TESTS_NETWORK", "1", 1);
    setenv("TRIREME_TOKEN", "a token for tests of 27 bytes", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
