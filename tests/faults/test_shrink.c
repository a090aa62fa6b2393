/*
 * kill -9 of one or two ranks while they train, make a child, agree or shrink: those who are left
 * agree on one value, end in one group of exactly them, and train on. A rank that was frozen and
 * given up is told so when it wakes. With TRIREME_TESTS_NETWORK over sockets, where too few that
 * are left are told that.
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

#define MOST_TIMES 1024
#define MOST_TRIES 8
/* Healthy ranks of a busy machine arrive within far less. */
#define SHORT_DEADLINE_NS (4000ull * 1000 * 1000)

struct trial {
    int world_size;
    int victims[2];
    const char *points[2]; /* what victims set; NULL: there is no second one */
    uint64_t timeout_ns;   /* of the operation that may run into it */
    char rendezvous[64];
};

/* From the first failure to the first right sum of the new group. */
static uint64_t times[MOST_TIMES];
static int time_count;
static int trial_count;
static int tries_count;
static int death_count;

enum { AGREED = 0, TRIES = 1, COUNT = 2, RANKS = 3, DONE = 15 };

/* ---- the work of a process ---- */

/* Whether a sum over the group is right; its ranks are those of the root. */
static trireme_status
sum_over(trireme_communicator *group, uint64_t timeout_ns, struct outcome *outcome) {
    int32_t rank = -1, size = 0, ranks[MOST_PROCESSES] = {0};
    if (trireme_communicator_get_rank(group, &rank) != TRIREME_OK ||
        trireme_communicator_get_world_size(group, &size) != TRIREME_OK ||
        trireme_communicator_get_original_ranks(group, ranks, MOST_PROCESSES) != TRIREME_OK) {
        _exit(94);
    }
    int64_t values[1000], sum = 0;
    for (int i = 0; i < size; ++i) sum += 1ll << (ranks[i] * 6);
    for (int i = 0; i < 1000; ++i) values[i] = (1ll << (ranks[rank] * 6)) * (i + 1);
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    const trireme_status status = trireme_all_reduce(group, values, values, 1000, TRIREME_DTYPE_I64,
                                                     TRIREME_REDUCTION_SUM, &options);
    for (int i = 0; i < 1000 && status == TRIREME_OK; ++i) {
        outcome->wrong |= values[i] != sum * (i + 1);
    }
    return status;
}

/* Shrinks until a group works. */
static void go_on(trireme_communicator *group, struct outcome *outcome) {
    for (int tries = 1; tries <= MOST_TRIES; ++tries) {
        trireme_communicator *smaller = NULL;
        outcome->numbers[TRIES] = tries;
        outcome->again = trireme_communicator_shrink(group, NULL, &smaller);
        if (outcome->again != TRIREME_OK) {
            snprintf(outcome->text, sizeof outcome->text, "%.250s", trireme_last_error());
        }
        if (outcome->again != TRIREME_OK) {
            trireme_error_info info = TRIREME_ERROR_INFO_INIT;
            if (trireme_last_error_info(&info) != TRIREME_OK) _exit(96);
            if (info.try_again == 1) continue;
            return;
        }
        trireme_communicator_destroy(group);
        group = smaller;
        outcome->again = sum_over(group, 0, outcome);
        if (outcome->again == TRIREME_OK) break;
        snprintf(outcome->text, sizeof outcome->text, "%.250s", trireme_last_error());
    }
    outcome->returned_ns = monotonic_ns();
    int32_t size = 0, ranks[MOST_PROCESSES] = {0};
    if (trireme_communicator_get_world_size(group, &size) != TRIREME_OK ||
        trireme_communicator_get_original_ranks(group, ranks, MOST_PROCESSES) != TRIREME_OK) {
        _exit(94);
    }
    outcome->numbers[COUNT] = size;
    for (int i = 0; i < size; ++i) outcome->numbers[RANKS + i] = ranks[i];
    __atomic_store_n(&outcome->numbers[DONE], 1, __ATOMIC_RELEASE);
    trireme_communicator_destroy(group);
}

static void train_and_go_on(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const group =
        join_process(rank, trial->world_size, trial->rendezvous, PATIENT_NS);
    if (trireme_barrier(group, NULL) != TRIREME_OK) _exit(93);
    for (int i = 0; i < 2; ++i) {
        if (trial->points[i] != NULL && rank == trial->victims[i] &&
            trireme_failpoint_set(trial->points[i]) != TRIREME_OK) {
            _exit(91);
        }
    }
    /* Training: a child for something else, and two steps. */
    trireme_communicator *twin = NULL;
    trireme_status status = trireme_communicator_duplicate(group, NULL, &twin);
    if (status == TRIREME_OK) status = sum_over(twin, 0, outcome);
    trireme_communicator_destroy(twin);
    for (int step = 0; step < 2 && status == TRIREME_OK; ++step) {
        status = sum_over(group, trial->timeout_ns, outcome);
        if (status == TRIREME_OK) ++outcome->rounds;
    }
    keep_error(outcome, status);
    outcome->entered_ns = monotonic_ns();
    if (status == TRIREME_OK && rank == trial->world_size - 1) {
        if (trireme_communicator_abort(group, "enough") != TRIREME_OK) _exit(95);
    }
    uint64_t flags = ~(1ull << rank);
    outcome->later = trireme_communicator_agree(group, &flags, 0);
    outcome->numbers[AGREED] = (int64_t)flags;
    if (outcome->later != TRIREME_OK) {
        snprintf(outcome->text, sizeof outcome->text, "%.250s", trireme_last_error());
    }
    go_on(group, outcome);
}

/* ---- what the parent makes of it ---- */

static void print_outcomes(const struct trial *trial, const struct processes *processes) {
    print_error("%d ranks, %s on %d, %s on %d\n", trial->world_size,
                trial->points[0] == NULL ? "stop" : trial->points[0], trial->victims[0],
                trial->points[1] == NULL ? "nothing" : trial->points[1], trial->victims[1]);
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        print_error(
            "  rank %d: exit code %d, signal %d%s, %s, agree %s (%llx), shrink %s after %d "
            "tries, %d ranks: %s; %s\n",
            rank, o->exit_code, o->signal, o->hung ? ", hung" : "", trireme_status_name(o->status),
            trireme_status_name(o->later), (unsigned long long)o->numbers[AGREED],
            trireme_status_name(o->again), (int)o->numbers[TRIES], (int)o->numbers[COUNT],
            o->message, o->text);
    }
}

#define CHECK(condition)                                       \
    do {                                                       \
        if (!(condition)) {                                    \
            print_outcomes(trial, processes);                  \
            fail_msg("rank %d: not so: %s", rank, #condition); \
        }                                                      \
    } while (0)

/* In agree the first decision is made, in shrink the second to the fourth. */
static const char *const points[] = {"all_reduce.before_publish=kill@2",
                                     "all_reduce.mid_move=kill@3",
                                     "all_reduce.before_leave=kill@3",
                                     "child.before_join=kill",
                                     "child.after_join=kill",
                                     "decide.before_vote=kill@1",
                                     "decide.after_vote=kill@1",
                                     "decide.before_decision=kill@1",
                                     "decide.after_decision=kill@1",
                                     "decide.before_vote=kill@2",
                                     "decide.after_vote=kill@2",
                                     "decide.before_decision=kill@2",
                                     "decide.after_decision=kill@2",
                                     "shrink.before_join=kill@1",
                                     "shrink.after_join=kill@1",
                                     "decide.before_vote=kill@3",
                                     "decide.after_vote=kill@3",
                                     "decide.before_decision=kill@3",
                                     "decide.after_decision=kill@3",
                                     "decide.before_vote=kill@4",
                                     "decide.after_vote=kill@4",
                                     "decide.after_decision=kill@4",
                                     "decide.before_prepare=kill@1",
                                     "decide.before_prepare=kill@2",
                                     "decide.before_propose=kill@1",
                                     "decide.before_propose=kill@2",
                                     "decide.before_propose=kill@3",
                                     "decide.before_accept=kill@1",
                                     "decide.before_accept=kill@2",
                                     "decide.before_spread=kill@1",
                                     "decide.before_spread=kill@2",
                                     "decide.before_spread=kill@4",
                                     "decide.before_spread=kill@3"};
enum { POINTS = sizeof points / sizeof points[0], COMMON_POINTS = POINTS - 11 };

/* Points of ranks of one host, and points of messages between ranks. */
static bool is_passed(int point) {
    if (!ranks_use_network()) return point < COMMON_POINTS;
    /* A rank that has sent all its messages may die there unnoticed. */
    return strstr(points[point], "before_decision") == NULL &&
           strstr(points[point], "before_leave") == NULL;
}

/* Those that not every rank comes to, or not as often. */
static bool may_be_missed(const char *point) {
    return strstr(point, "before_decision") != NULL || strstr(point, "before_prepare") != NULL ||
           strstr(point, "before_propose") != NULL || strstr(point, "before_accept") != NULL ||
           strstr(point, "before_spread") != NULL;
}

static bool is_victim(const struct trial *trial, int rank) {
    return rank == trial->victims[0] || (trial->points[1] != NULL && rank == trial->victims[1]);
}

static void check_survivors(const struct trial *trial, const struct processes *processes) {
    int64_t ranks[MOST_PROCESSES] = {0};
    int count = 0;
    const struct outcome *first = NULL;
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(!o->hung);
        if (o->signal == SIGKILL) {
            CHECK(is_victim(trial, rank));
            continue;
        }
        /* A victim that is to die where not every rank comes may never come there; of two victims
         * the first to die may keep the other from its point. */
        CHECK(!is_victim(trial, rank) || trial->points[1] != NULL ||
              may_be_missed(trial->points[0]));
        CHECK(o->exit_code == 0);
        ranks[count++] = rank;
        if (first == NULL) first = o;
    }
    for (int i = 0; i < count; ++i) {
        const int rank = (int)ranks[i];
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(!o->wrong);
        CHECK(o->later == TRIREME_OK);
        CHECK(o->numbers[AGREED] == first->numbers[AGREED]);
        CHECK((o->numbers[AGREED] >> rank & 1) == 0);
        CHECK(o->numbers[AGREED] >> trial->world_size == -1);
        CHECK(o->again == TRIREME_OK);
        CHECK(o->numbers[COUNT] == count);
        CHECK(memcmp(&o->numbers[RANKS], ranks, sizeof *ranks * (size_t)count) == 0);
        if (time_count < MOST_TIMES) times[time_count++] = o->returned_ns - o->entered_ns;
        tries_count += o->numbers[TRIES] > 1;
    }
    death_count += trial->world_size - count;
    ++trial_count;
}

static void run_trial(struct trial *trial) {
    struct processes processes;
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, trial->world_size, train_and_go_on, trial);
    wait_processes(&processes);
    check_survivors(trial, &processes);
    free_processes(&processes);
}

/* After one death as many are left as can decide over sockets, too, but for the first. */
static const int places[][2] = {{2, 0}, {2, 1}, {3, 0}, {3, 2}, {4, 1}, {5, 4}};
enum { PLACES = sizeof places / sizeof places[0] };

static void survivors_of_one_death_train_on_in_one_group(void **state) {
    (void)state;
    for (int point = 0; point < POINTS; ++point) {
        for (int place = 0; place < PLACES; ++place) {
            if (!is_passed(point) || (is_quick() && (point + place) % PLACES != 0)) continue;
            if (ranks_use_network() && place == 0) continue;
            struct trial trial = {.world_size = places[place][0],
                                  .victims = {places[place][1], 0},
                                  .points = {points[point], NULL}};
            run_trial(&trial);
        }
    }
}

static void survivors_of_two_deaths_train_on_in_one_group(void **state) {
    (void)state;
    const int pairs[][3] = {{ranks_use_network() ? 5 : 3, 0, 1}, {4, 3, 1}, {5, 0, 4}};
    for (int first = 0; first < POINTS; ++first) {
        for (int turn = 0; turn < 3; ++turn) {
            const int second = (first * 5 + turn * 7 + 4) % POINTS;
            if (!is_passed(first) || !is_passed(second)) continue;
            if (is_quick() && (first + turn) % 6 != 0) continue;
            struct trial trial = {.world_size = pairs[turn][0],
                                  .victims = {pairs[turn][1], pairs[turn][2]},
                                  .points = {points[first], points[second]}};
            run_trial(&trial);
        }
    }
}

/* ---- too few that are left ---- */

struct loss {
    int world_size;
    int victims;
    bool first; /* they are the first ranks, else the last ones */
    char rendezvous[64];
};

static void agree_with_too_few(int rank, void *context, struct outcome *outcome) {
    const struct loss *const loss = context;
    trireme_communicator *const group =
        join_process(rank, loss->world_size, loss->rendezvous, PATIENT_NS);
    trireme_status status = trireme_barrier(group, NULL);
    if (loss->first ? rank < loss->victims : rank >= loss->world_size - loss->victims) {
        raise(SIGKILL); /* perhaps while another victim waits: all have met */
    }
    while (status == TRIREME_OK) status = trireme_barrier(group, NULL);
    uint64_t flags = 5;
    trireme_communicator *smaller = NULL;
    outcome->again = trireme_communicator_shrink(group, NULL, &smaller);
    outcome->later = trireme_communicator_agree(group, &flags, 0);
    keep_error(outcome, outcome->later);
    outcome->wrong = flags != 5 || smaller != NULL;
    trireme_communicator_destroy(group);
}

static void ranks_that_are_too_few_to_go_on_are_told(void **state) {
    (void)state;
    static const struct loss losses[] = {{2, 1, true, ""}, {3, 2, false, ""}, {4, 2, true, ""}};
    for (size_t i = 0; i < sizeof losses / sizeof losses[0] && ranks_use_network(); ++i) {
        struct loss loss = losses[i];
        struct processes processes;
        unique_process_rendezvous(loss.rendezvous, sizeof loss.rendezvous);
        start_processes(&processes, loss.world_size, agree_with_too_few, &loss);
        wait_processes(&processes);
        int left = 0;
        for (int rank = 0; rank < loss.world_size; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            if (o->signal == SIGKILL && !o->hung) continue;
            ++left;
            if (o->exit_code != 0 || o->wrong || o->again != TRIREME_ERROR_PEER_LOST ||
                o->later != TRIREME_ERROR_PEER_LOST || (int)o->info.blamed_count < loss.victims ||
                strstr(o->message, "no majority") == NULL) {
                fail_msg("rank %d of %d: exit code %d, %s, %s: %s", rank, loss.world_size,
                         o->exit_code, trireme_status_name(o->again), trireme_status_name(o->later),
                         o->message);
            }
        }
        assert_int_equal(left, loss.world_size - loss.victims);
        free_processes(&processes);
    }
}

/* ---- frozen ranks ---- */

static void freeze_and_wake(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    if (rank != trial->victims[0]) {
        train_and_go_on(rank, context, outcome);
        return;
    }
    trireme_communicator *const group =
        join_process(rank, trial->world_size, trial->rendezvous, PATIENT_NS);
    trireme_communicator *twin = NULL, *smaller = NULL;
    if (trireme_barrier(group, NULL) != TRIREME_OK ||
        trireme_communicator_duplicate(group, NULL, &twin) != TRIREME_OK ||
        sum_over(twin, 0, outcome) != TRIREME_OK) {
        _exit(93);
    }
    /* Others still want what its threads send them. */
    if (ranks_use_network()) sleep_ms(500);
    raise(SIGSTOP);
    keep_error(outcome, sum_over(group, 0, outcome));
    uint64_t flags = 1;
    outcome->later = trireme_communicator_agree(group, &flags, 0);
    outcome->again = trireme_communicator_shrink(group, NULL, &smaller);
    keep_error(outcome, outcome->again);
    outcome->wrong |= flags != 1 || smaller != NULL;
    trireme_communicator_destroy(twin);
    trireme_communicator_destroy(group);
}

static void check_frozen(const struct trial *trial, const struct processes *processes) {
    const int victim = trial->victims[0];
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(!o->hung && o->exit_code == 0 && !o->wrong);
        if (rank == victim) {
            CHECK(o->later == TRIREME_ERROR_PEER_LOST && o->again == TRIREME_ERROR_PEER_LOST);
            CHECK(blames_only(&o->info, victim));
            continue;
        }
        /* Over sockets also for its silence, whichever comes first. */
        CHECK(o->status == TRIREME_ERROR_TIMEOUT ||
              (ranks_use_network() && o->status == TRIREME_ERROR_PEER_LOST));
        CHECK(blames_only(&o->info, victim));
        CHECK(o->later == TRIREME_OK && o->again == TRIREME_OK);
        CHECK(o->numbers[COUNT] == trial->world_size - 1);
    }
    ++trial_count;
}

static void a_frozen_rank_is_given_up_and_told_so_when_it_wakes(void **state) {
    (void)state;
    static struct trial trials[PLACES];
    static struct processes groups[PLACES];
    const int step = is_quick() ? 3 : 1;
    /* All at once, since they mostly sleep. */
    const int from = ranks_use_network() ? 1 : 0;
    for (int i = from; i < PLACES; i += step) {
        trials[i] = (struct trial){.world_size = places[i][0],
                                   .victims = {places[i][1], 0},
                                   .timeout_ns = SHORT_DEADLINE_NS};
        unique_process_rendezvous(trials[i].rendezvous, sizeof trials[i].rendezvous);
        start_processes(&groups[i], trials[i].world_size, freeze_and_wake, &trials[i]);
    }
    const uint64_t end = monotonic_ns() + HANG_NS / 2;
    for (int i = from; i < PLACES; i += step) {
        const int victim = trials[i].victims[0];
        assert_true(wait_stopped(&groups[i], victim));
        for (int rank = 0; rank < trials[i].world_size; ++rank) {
            const int64_t *const done = &groups[i].outcomes[rank].numbers[DONE];
            while (rank != victim && monotonic_ns() < end &&
                   __atomic_load_n(done, __ATOMIC_ACQUIRE) == 0) {
                sleep_ms(2);
            }
        }
        kill(groups[i].ids[victim], SIGCONT);
    }
    for (int i = from; i < PLACES; i += step) {
        wait_processes(&groups[i]);
        check_frozen(&trials[i], &groups[i]);
        free_processes(&groups[i]);
    }
}

static void the_time_until_training_goes_on_is_told(void **state) {
    (void)state;
    assert_true(time_count > 0 && death_count > trial_count / 2);
    for (int i = 1; i < time_count; ++i) { /* insertion sort: a thousand numbers */
        const uint64_t value = times[i];
        int at = i;
        for (; at > 0 && times[at - 1] > value; --at) times[at] = times[at - 1];
        times[at] = value;
    }
    printf(
        "shrink: %d trials, %d deaths, %d survivors, 0 hangs, %d shrank more than once; failure "
        "to right sum "
        "p50 %.2f ms, p99 %.2f ms, max %.2f ms\n",
        trial_count, death_count, time_count, tries_count, (double)times[time_count / 2] / 1e6,
        (double)times[time_count * 99 / 100] / 1e6, (double)times[time_count - 1] / 1e6);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_one_death_train_on_in_one_group),
        cmocka_unit_test(survivors_of_two_deaths_train_on_in_one_group),
        cmocka_unit_test(ranks_that_are_too_few_to_go_on_are_told),
        cmocka_unit_test(a_frozen_rank_is_given_up_and_told_so_when_it_wakes),
        cmocka_unit_test(the_time_until_training_goes_on_is_told),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("shrink", tests, NULL, NULL);
}
