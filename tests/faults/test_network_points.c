/*
 * kill -9 at each failpoint of the code between hosts: on the way in (calling, being called,
 * meeting, dialling); in the middle of a frame or of a piece on the wire; in a split; on the way
 * out; in the store and in a client of it. Survivors learn which rank it was; no rank hangs or has
 * a wrong number.
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
#define LARGE 1000001 /* on a wire: more than one part of a piece */
#define PASSED 5001   /* numbers of a message: more than one frame */
#define ROUNDS 40
#define MOST_TRIALS 1000
#define AT_ONCE 48
/* A rank that never came is missed at this deadline; healthy ranks of a busy machine are there far
 * sooner. */
#define JOIN_NS (6000ull * 1000 * 1000)

enum stage { JOINING, WORKING, SPLITTING, LEAVING };

struct point {
    const char *settings; /* with %d: at which visit */
    enum stage stage;
    int victims[3]; /* who comes there; -1: the end */
};

static const struct point points[] = {
    {"mesh.before_listen=kill@%d", JOINING, {0, 1, 2}},
    {"call.before_hello=kill@%d", JOINING, {0, 1, 2}},
    {"call.before_proof=kill@%d", JOINING, {0, 1, 2}},
    {"call.before_verdict=kill@%d", JOINING, {0, 1, 2}},
    {"meeting.before_request=kill@%d", JOINING, {0, 1, 2}},
    {"meeting.after_request=kill@%d", JOINING, {0, 1, 2}},
    {"meeting.after_reply=kill@%d", JOINING, {0, 1, 2}},
    {"meeting.before_tell=kill@%d", JOINING, {0, -1}},
    {"meeting.mid_tell=kill@%d", JOINING, {0, -1}},
    {"gate.before_enter=kill@%d", JOINING, {0, 1, -1}},
    {"mesh.before_dial=kill@%d", JOINING, {1, 2, -1}},
    {"mesh.before_adopt=kill@%d", JOINING, {1, 2, -1}},
    {"frame.mid_head=short@%d;frame.before_rest=kill", WORKING, {0, 1, 2}},
    {"frame.mid_body=short@%d;frame.before_rest=kill", WORKING, {0, 1, 2}},
    {"piece.before_first=kill@%d", WORKING, {0, 1, 2}},
    {"piece.mid_piece=kill@%d", WORKING, {0, 1, 2}},
    {"piece.before_done=kill@%d", WORKING, {0, 1, 2}},
    {"child.before_join=kill@%d", SPLITTING, {0, 1, 2}},
    {"child.after_join=kill@%d", SPLITTING, {0, 1, 2}},
    {"leave.before_goodbye=kill@%d", LEAVING, {0, 1, 2}},
    {"leave.after_goodbye=kill@%d", LEAVING, {0, 1, 2}},
};

enum { POINTS = sizeof points / sizeof points[0] };

struct trial {
    const struct point *point;
    int visit;
    int victim;
    char rendezvous[64];
};

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

/* ---- ranks ---- */

static void die_there(const struct trial *trial) {
    char text[96];
    snprintf(text, sizeof text, trial->point->settings, trial->visit);
    if (trireme_failpoint_set(text) != TRIREME_OK) _exit(91);
}

/* Waits until numbers[which] is 1 for all but the victim; -1: for all. A rank that left before
 * others have their verdict would become their failure. */
enum { VERDICT = 1, CONNECTED = 2 };
static void wait_for_others(int which, int victim, int rank, struct outcome *outcome, int ranks) {
    const struct outcome *const all = outcome - rank;
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    __atomic_store_n(&outcome->numbers[which], 1, __ATOMIC_RELEASE);
    for (int other = 0; other < ranks; ++other) {
        while (other != victim && monotonic_ns() < end &&
               __atomic_load_n(&all[other].numbers[which], __ATOMIC_ACQUIRE) == 0) {
            sleep_ms(2);
        }
    }
}

static trireme_status split_once(trireme_communicator *group, int rank) {
    trireme_communicator *child = NULL;
    trireme_status status = trireme_communicator_split(group, 0, rank, NULL, &child);
    if (status == TRIREME_OK) status = trireme_barrier(child, NULL);
    trireme_communicator_destroy(child);
    return status;
}

/* Collectives go over the wire, and messages in frames. */
static trireme_status
pass_on(trireme_communicator *group, int rank, int round, int32_t *data, bool *wrong) {
    int32_t *const other = data + PASSED;
    const int before = (rank + RANKS - 1) % RANKS;
    for (int i = 0; i < PASSED; ++i) data[i] = i + rank * round;
    const trireme_status status =
        trireme_send_receive(group, data, PASSED, (rank + 1) % RANKS, 1, other, PASSED, before, 1,
                             TRIREME_DTYPE_I32, NULL);
    for (int i = 0; i < PASSED && status == TRIREME_OK; ++i)
        *wrong |= other[i] != i + before * round;
    return status;
}

static trireme_status
sum_once(trireme_communicator *group, int rank, int round, int32_t *data, bool *wrong) {
    for (int i = 0; i < LARGE; ++i) data[i] = i + rank + round;
    const trireme_status status = trireme_all_reduce(group, data, data, LARGE, TRIREME_DTYPE_I32,
                                                     TRIREME_REDUCTION_SUM, NULL);
    for (int i = 0; i < LARGE && status == TRIREME_OK; ++i)
        *wrong |= data[i] != 3 * (i + round) + 3;
    return status;
}

static void work(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    const enum stage stage = trial->point->stage;
    int32_t *const data = malloc(sizeof *data * LARGE);
    if (data == NULL) _exit(92);
    if (rank == trial->victim && stage == JOINING) die_there(trial);
    trireme_communicator *const group = join_process(rank, RANKS, trial->rendezvous, JOIN_NS);
    trireme_status status = trireme_barrier(group, NULL);
    if (status == TRIREME_OK && rank == trial->victim && stage != JOINING) die_there(trial);
    for (int round = 0; round < ROUNDS && status == TRIREME_OK && !outcome->wrong; ++round) {
        if (rank == trial->victim && stage == LEAVING && round == 5) break;
        status = stage == SPLITTING ? split_once(group, rank)
                 : stage == WORKING ? sum_once(group, rank, round, data, &outcome->wrong)
                                    : trireme_barrier(group, NULL);
        if (status == TRIREME_OK && stage == WORKING) {
            status = pass_on(group, rank, round, data, &outcome->wrong);
        }
        if (status == TRIREME_OK) ++outcome->rounds;
    }
    outcome->returned_ns = monotonic_ns();
    if (status != TRIREME_OK) keep_error(outcome, status);
    if (status != TRIREME_OK) wait_for_others(VERDICT, trial->victim, rank, outcome, RANKS);
    trireme_communicator_destroy(group);
    free(data);
}

static bool blames(const trireme_error_info *info, int rank) {
    for (uint32_t i = 0; i < info->blamed_count && i < TRIREME_MAX_BLAMED_RANKS; ++i) {
        if (info->blamed[i] == rank) return true;
    }
    return false;
}

/* Whether the victim came to the point. */
static bool check(const struct trial *trial, const struct processes *group) {
    const struct outcome *const victim = &group->outcomes[trial->victim];
    const bool died = victim->signal == SIGKILL && !victim->hung;
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const each = &group->outcomes[rank];
        if (rank == trial->victim && died) continue;
        const bool went_well = each->status == TRIREME_OK && each->rounds == ROUNDS;
        /* A rank that never came is missed at the deadline, perhaps with others that could not come
         * in. */
        const bool named =
            (each->status == TRIREME_ERROR_PEER_LOST && blames_only(&each->info, trial->victim)) ||
            (each->status == TRIREME_ERROR_TIMEOUT && blames(&each->info, trial->victim));
        const bool lost = died || (trial->point->stage == LEAVING && rank != trial->victim);
        const bool right = lost ? named : went_well || trial->point->stage == LEAVING;
        if (right && !each->wrong && !each->hung && each->exit_code == 0) continue;
        fail_msg(
            "%s, visit %d of rank %d (died: %d): rank %d after %d rounds: %s, wrong %d, hung %d, "
            "exit %d, signal %d: %s",
            trial->point->settings, trial->visit, trial->victim, died, rank, each->rounds,
            trireme_status_name(each->status), each->wrong, each->hung, each->exit_code,
            each->signal, each->message);
    }
    return died;
}

static int add_trials(struct trial *trials) {
    const int visits = is_long() ? 10 : 2;
    int count = 0;
    for (int visit = 1; visit <= visits; ++visit) {
        for (int point = 0; point < POINTS; ++point) {
            for (int i = 0; i < 3 && points[point].victims[i] >= 0; ++i) {
                /* Each once of another rank, and once more of another visit. */
                const bool turn = i == (point + visit) % 3 || points[point].victims[1] < 0;
                if (!is_long() && !turn) continue;
                if (is_quick() && (point + visit) % 4 != 0) continue;
                trials[count++] =
                    (struct trial){&points[point], visit, points[point].victims[i], ""};
            }
        }
    }
    return count;
}

static void who_dies_at_any_point_between_hosts_is_named(void **state) {
    (void)state;
    static struct trial trials[MOST_TRIALS];
    static struct processes groups[AT_ONCE];
    static int deaths[POINTS];
    const int count = add_trials(trials);
    int died = 0;
    /* Many at once, since some sleep to their deadline. */
    for (int first = 0; first < count; first += AT_ONCE) {
        const int end = first + AT_ONCE < count ? first + AT_ONCE : count;
        for (int i = first; i < end; ++i) {
            unique_process_rendezvous(trials[i].rendezvous, sizeof trials[i].rendezvous);
            start_processes(&groups[i - first], RANKS, work, &trials[i]);
        }
        for (int i = first; i < end; ++i) {
            wait_processes(&groups[i - first]);
            if (check(&trials[i], &groups[i - first])) {
                ++deaths[trials[i].point - points];
                ++died;
            }
            free_processes(&groups[i - first]);
        }
    }
    for (int point = 0; point < POINTS && !is_quick(); ++point) {
        if (deaths[point] == 0) fail_msg("nobody came to %s", points[point].settings);
    }
    printf("kill: %s, %d deaths at %d failpoints between hosts, survivors named the victim\n",
           network_has_engine() ? "gloo" : "tcp", died, (int)POINTS);
}

/* ---- the store ---- */

#define CLIENTS 3 /* the first serves it, too */
#define ADDS 60

struct store_trial {
    const char *settings;
    int victim;
    char url[64];
    int victim_lives[2]; /* a pipe that ends with the victim */
};

static void count_in_store(int rank, void *context, struct outcome *outcome) {
    const struct store_trial *const trial = context;
    trireme_store_options options = TRIREME_STORE_OPTIONS_INIT;
    trireme_store *store = NULL;
    options.timeout_ns = JOIN_NS;
    trireme_status status = rank == 0 ? trireme_store_serve(trial->url, &options, &store)
                                      : trireme_store_connect(trial->url, &options, &store);
    if (status == TRIREME_OK && rank == trial->victim &&
        trireme_failpoint_set(trial->settings) != TRIREME_OK) {
        _exit(91);
    }
    wait_for_others(CONNECTED, -1, rank, outcome, CLIENTS);
    int64_t sum = 0;
    char none;
    if (rank != trial->victim) close(trial->victim_lives[1]);
    for (int i = 0; i < ADDS && status == TRIREME_OK; ++i) {
        status = trireme_store_add(store, "n", 1, &sum);
        if (status == TRIREME_OK) ++outcome->rounds;
    }
    if (status != TRIREME_OK) keep_error(outcome, status);
    outcome->numbers[0] = sum;
    /* The one who serves goes last. */
    wait_for_others(VERDICT, trial->victim, rank, outcome, rank == 0 ? CLIENTS : 0);
    if (rank == 0 && trial->victim > 0 && read(trial->victim_lives[0], &none, 1) != 0) _exit(94);
    if (rank == 0 && status == TRIREME_OK) {
        if (trireme_store_add(store, "n", 0, &outcome->numbers[0]) != TRIREME_OK) _exit(93);
    }
    trireme_store_destroy(store);
}

static void who_asks_a_store_that_dies_hears_of_it_and_one_that_dies_disturbs_nobody(void **state) {
    (void)state;
    static const struct store_trial kinds[] = {
        {"store.before_take=kill@25", 0, "", {0}}, {"store.before_answer=kill@25", 0, "", {0}},
        {"store.before_ask=kill@25", 1, "", {0}},  {"store.after_ask=kill@25", 1, "", {0}},
        {"store.before_take=fail@25", 0, "", {0}},
    };
    const int repeats = is_long() ? 30 : 1;
    int trials = 0;
    for (int i = 0; i < repeats * (int)(sizeof kinds / sizeof kinds[0]); ++i) {
        struct store_trial trial = kinds[(size_t)i % (sizeof kinds / sizeof kinds[0])];
        struct processes group;
        char meeting[64];
        unique_process_rendezvous(meeting, sizeof meeting);
        snprintf(trial.url, sizeof trial.url, "%.*s", (int)strcspn(meeting + 6, "/") + 6, meeting);
        assert_int_equal(pipe(trial.victim_lives), 0);
        start_processes(&group, CLIENTS, count_in_store, &trial);
        close(trial.victim_lives[0]);
        close(trial.victim_lives[1]);
        wait_processes(&group);
        const bool kills = trial.victim >= 0 && strstr(trial.settings, "kill") != NULL;
        const bool server_died = kills && trial.victim == 0;
        for (int rank = 0; rank < CLIENTS; ++rank) {
            const struct outcome *const each = &group.outcomes[rank];
            const bool killed = kills && rank == trial.victim;
            const bool right = killed ? each->signal == SIGKILL
                               : server_died
                                   ? each->status == TRIREME_ERROR_PEER_LOST && each->exit_code == 0
                                   : each->rounds == ADDS && each->exit_code == 0;
            if (right && !each->hung) continue;
            fail_msg("%s of %d: %d after %d adds: %s, exit %d, signal %d: %s", trial.settings,
                     trial.victim, rank, each->rounds, trireme_status_name(each->status),
                     each->exit_code, each->signal, each->message);
        }
        /* The victim's request was done, once, or not; it asked 25 times at most. */
        const int64_t sum = group.outcomes[0].numbers[0];
        const int alive = kills ? CLIENTS - 1 : CLIENTS;
        if (!server_died) assert_in_range(sum, alive * ADDS, alive * ADDS + (kills ? 25 : 0));
        free_processes(&group);
        ++trials;
    }
    printf("kill: store, %d trials, 0 adds lost or done twice\n", trials);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_dies_at_any_point_between_hosts_is_named),
        cmocka_unit_test(who_asks_a_store_that_dies_hears_of_it_and_one_that_dies_disturbs_nobody),
    };
    setenv("TRIREME_TESTS_NETWORK", "1", 0);
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
