/*
 * Where ranks meet: one that dies when all have met, but before it is connected to all, is lost
 * soon and not at a deadline. One that never comes is missed at the deadline, and none of those who
 * waited.
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
#define MOST_TRIALS 240
#define AT_ONCE 16
/* Of ranks that wait for one that never comes: the others are there far sooner. */
#define SHORT_MS 800
#define GREETING_NS (20ull * 1000 * 1000)
/* A wait for a connection that is never made would last longer than this. */
#define BEFORE_SILENCE_NS (12000ull * 1000 * 1000)

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

/* ---- a death between meeting and dialling ---- */

struct trial {
    const char *point;
    int visit; /* of it, at which the victim is killed */
    int victim;
    const char *hosts; /* of each rank: a letter; NULL: as they are */
    char rendezvous[64];
};

static void die_when_all_have_met(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    if (rank == trial->victim) {
        char settings[96];
        snprintf(settings, sizeof settings, "%s=kill@%d", trial->point, trial->visit);
        if (trireme_failpoint_set(settings) != TRIREME_OK) _exit(91);
    }
    if (trial->hosts != NULL) setenv("TRIREME_TESTS_HOSTS", trial->hosts, 1);
    trireme_communicator *const group =
        join_process(rank, RANKS, trial->rendezvous, BEFORE_SILENCE_NS);
    keep_error(outcome, trireme_barrier(group, NULL));
    trireme_communicator_destroy(group);
}

/* Each rank dials all below it, for signs of life and for data. */
static int add_deaths(struct trial *trials) {
    static const char *const hosts[] = {NULL, "aabb"};
    const int repeats = is_long() ? 4 : 1;
    int count = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        for (int victim = 0; victim < RANKS; ++victim) {
            trials[count++] =
                (struct trial){"meeting.after_reply", 1, victim, hosts[repeat % 2], ""};
            for (int visit = 1; visit <= 2 * victim; ++visit) {
                const char *const where = hosts[(repeat + visit) % 2];
                trials[count++] = (struct trial){"mesh.before_dial", visit, victim, where, ""};
                trials[count++] = (struct trial){"mesh.before_adopt", visit, victim, where, ""};
            }
        }
    }
    return count;
}

static void expect_lost(const struct trial *trial, const struct processes *group) {
    if (group->outcomes[trial->victim].signal != SIGKILL) {
        fail_msg("rank %d did not come to %s, visit %d", trial->victim, trial->point, trial->visit);
    }
    bool right = true;
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const each = &group->outcomes[rank];
        right = right && (rank == trial->victim ||
                          (each->status == TRIREME_ERROR_PEER_LOST &&
                           blames_only(&each->info, trial->victim) && each->exit_code == 0));
    }
    if (right) return;
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const each = &group->outcomes[rank];
        print_error("rank %d: %s, exit %d, hung %d: %s\n", rank, trireme_status_name(each->status),
                    each->exit_code, each->hung, each->message);
    }
    fail_msg("%s, visit %d of rank %d, hosts %s", trial->point, trial->visit, trial->victim,
             trial->hosts == NULL ? "none" : trial->hosts);
}

static void who_dies_when_all_have_met_is_lost_at_once(void **state) {
    (void)state;
    static struct trial trials[MOST_TRIALS];
    static struct processes groups[AT_ONCE];
    const int count = add_deaths(trials);
    const int step = is_quick() ? 5 : 1;
    int deaths = 0;
    for (int first = 0; first < count; first += step * AT_ONCE) {
        int running = 0;
        for (int i = first; i < count && running < AT_ONCE; i += step) {
            unique_meeting(trials[i].rendezvous, sizeof trials[i].rendezvous);
            start_processes(&groups[running++], RANKS, die_when_all_have_met, &trials[i]);
        }
        for (int i = 0; i < running; ++i) {
            wait_processes(&groups[i]);
            expect_lost(&trials[first + i * step], &groups[i]);
            free_processes(&groups[i]);
            ++deaths;
        }
    }
    printf("meeting: %d deaths after it, told before any deadline\n", deaths);
}

/* ---- ranks that never come ---- */

enum ending { BY_OPERATION, BY_WAIT, BY_EXIT };

struct absence {
    const char *scheme;
    int ranks;
    unsigned absent; /* a bit each */
    enum ending ending;
    int apart_ms; /* between the deadlines of one rank and the next */
    bool last_first;
    char rendezvous[64];
};

static bool is_absent(const struct absence *trial, int rank) {
    return (trial->absent >> rank & 1) != 0;
}

static unsigned ranks_blamed(const trireme_error_info *info) {
    unsigned blamed = 0;
    for (uint32_t i = 0; i < info->blamed_count && i < TRIREME_MAX_BLAMED_RANKS; ++i) {
        blamed |= 1u << info->blamed[i];
    }
    return blamed;
}

/* Without rank 0 the others never met: over the network it is all they can know. */
static unsigned expected_blame(const struct absence *trial) {
    const bool meets_at_0 = strcmp(trial->scheme, "tcp") == 0;
    return meets_at_0 && is_absent(trial, 0) ? 1 : trial->absent;
}

/* A rank knows only the ranks that it has greeted itself, or that rank 0 has told it of. */
static void greet(const struct absence *trial, trireme_communicator *group, uint64_t end) {
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    do {
        if (trireme_communicator_wait_ready(group, GREETING_NS) != TRIREME_ERROR_TIMEOUT) return;
        if (trireme_last_error_info(&info) != TRIREME_OK) return;
    } while (ranks_blamed(&info) != expected_blame(trial) && monotonic_ns() < end);
}

/* Those who come do so before any deadline runs. */
static void wait_for_those_who_come(const struct absence *trial, trireme_communicator *group,
                                    int rank, struct outcome *outcome) {
    const struct outcome *const all = outcome - rank;
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    greet(trial, group, end);
    __atomic_store_n(&outcome->numbers[0], 1, __ATOMIC_RELEASE);
    for (int other = 0; other < trial->ranks; ++other) {
        while (!is_absent(trial, other) && monotonic_ns() < end &&
               __atomic_load_n(&all[other].numbers[0], __ATOMIC_ACQUIRE) == 0) {
            sleep_ms(1);
        }
    }
}

static void wait_in_vain(int rank, void *context, struct outcome *outcome) {
    const struct absence *const trial = context;
    if (is_absent(trial, rank)) return;
    const int turn = trial->last_first ? trial->ranks - 1 - rank : rank;
    const uint64_t timeout_ns = (uint64_t)(SHORT_MS + turn * trial->apart_ms) * 1000000;
    trireme_communicator *const group =
        join_process(rank, trial->ranks, trial->rendezvous, timeout_ns);
    wait_for_those_who_come(trial, group, rank, outcome);
    keep_error(outcome, trial->ending == BY_WAIT
                            ? trireme_communicator_wait_ready(group, timeout_ns)
                            : trireme_barrier(group, NULL));
    if (trial->ending != BY_EXIT) trireme_communicator_destroy(group);
}

static void expect_missed(const struct absence *trial, const struct processes *group) {
    const unsigned expected = expected_blame(trial);
    for (int rank = 0; rank < trial->ranks; ++rank) {
        const struct outcome *const each = &group->outcomes[rank];
        if (is_absent(trial, rank)) continue;
        const unsigned blamed = ranks_blamed(&each->info);
        if (each->status != TRIREME_ERROR_TIMEOUT || blamed != expected || each->exit_code != 0) {
            fail_msg(
                "%s, %d ranks without %x, ending %d, %d ms apart, last first %d: rank %d: %s "
                "blames %x, exit %d, hung %d: %s",
                trial->scheme, trial->ranks, trial->absent, (int)trial->ending, trial->apart_ms,
                trial->last_first, rank, trireme_status_name(each->status), blamed, each->exit_code,
                each->hung, each->message);
        }
    }
}

static int add_absences(const char *scheme, struct absence *trials) {
    static const unsigned absent[][4] = {{1u << 2, 1u << 1, 1u << 0, 0x6},
                                         {1u << 3, 1u << 1, 1u << 0, 0xa},
                                         {1u << 4, 1u << 2, 1u << 0, 0x14}};
    const int repeats = is_long() ? 6 : 1;
    int count = 0;
    for (int i = 0; i < repeats * 36; ++i) {
        const int ranks = 3 + i % 3;
        const struct absence trial = {.scheme = scheme,
                                      .ranks = ranks,
                                      .absent = absent[ranks - 3][i / 3 % 4],
                                      .ending = (enum ending)(i / 12 % 3),
                                      .apart_ms = i / 3 % 2 == 0 ? 60 : 0,
                                      .last_first = (i / 36 + i) % 2 != 0};
        if (!is_quick() || i % 7 == 0) trials[count++] = trial;
    }
    return count;
}

static void only_who_never_comes_is_missed(const char *scheme) {
    static struct absence trials[MOST_TRIALS];
    static struct processes groups[AT_ONCE];
    const int count = add_absences(scheme, trials);
    for (int first = 0; first < count; first += AT_ONCE) {
        const int end = first + AT_ONCE < count ? first + AT_ONCE : count;
        for (int i = first; i < end; ++i) {
            struct absence *const trial = &trials[i];
            if (strcmp(scheme, "tcp") == 0) {
                unique_meeting(trial->rendezvous, sizeof trial->rendezvous);
            } else {
                unique_host_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
            }
            start_processes(&groups[i - first], trial->ranks, wait_in_vain, trial);
        }
        for (int i = first; i < end; ++i) {
            wait_processes(&groups[i - first]);
            expect_missed(&trials[i], &groups[i - first]);
            free_processes(&groups[i - first]);
        }
    }
    printf("meeting: %s, %d times without one rank or two, who alone were missed\n", scheme, count);
}

static void only_who_never_comes_is_missed_over_the_network(void **state) {
    (void)state;
    only_who_never_comes_is_missed("tcp");
}

static void only_who_never_comes_is_missed_on_a_host(void **state) {
    (void)state;
    only_who_never_comes_is_missed("host");
}

/* ---- a rank that learns of a failure, and ends ---- */

/* The call that returns the failure on rank 1. */
enum call { BARRIER, BARRIER_STARTED, RECEIVE, RECEIVE_STARTED, WAIT_READY, AGREE, CALLS };

struct ending_call {
    enum call call;
    char rendezvous[64];
};

static trireme_status finish(trireme_status started, trireme_request *const *request) {
    return started == TRIREME_OK ? trireme_request_wait(*request, PATIENT_NS) : started;
}

static trireme_status run(enum call call, trireme_communicator *group) {
    trireme_request *request = NULL;
    int32_t number = 0;
    uint64_t flags = 0;
    switch (call) {
        case BARRIER_STARTED: return finish(trireme_barrier_start(group, NULL, &request), &request);
        case RECEIVE: return trireme_receive(group, &number, 1, TRIREME_DTYPE_I32, 2, 0, NULL);
        case RECEIVE_STARTED:
            return finish(trireme_receive_start(group, &number, 1, TRIREME_DTYPE_I32, 2, 0, NULL,
                                                &request),
                          &request);
        case WAIT_READY: return trireme_communicator_wait_ready(group, PATIENT_NS);
        case AGREE: return trireme_communicator_agree(group, &flags, PATIENT_NS);
        default: return trireme_barrier(group, NULL);
    }
}

/* Rank 1 fails by itself, on a thread that the caller does not see, and is slow to tell. */
static void end_after_failure(int rank, void *context, struct outcome *outcome) {
    static const char slow[] = "join.after_hello=fail;join.before_spread=sleep(300)";
    const struct ending_call *const ending = context;
    if (rank == 0) return;
    if (rank == 1 && trireme_failpoint_set(slow) != TRIREME_OK) _exit(91);
    trireme_communicator *const group = join_process(rank, 3, ending->rendezvous, PATIENT_NS);
    keep_error(outcome, run(rank == 1 ? ending->call : BARRIER, group));
}

static void who_ends_after_a_failure_has_told_it(void **state) {
    (void)state;
    static struct processes groups[CALLS];
    struct ending_call endings[CALLS];
    for (int call = 0; call < CALLS; ++call) {
        endings[call].call = (enum call)call;
        unique_host_rendezvous(endings[call].rendezvous, sizeof endings[call].rendezvous);
        start_processes(&groups[call], 3, end_after_failure, &endings[call]);
    }
    for (int call = 0; call < CALLS; ++call) {
        wait_processes(&groups[call]);
        for (int rank = 1; rank < 3; ++rank) {
            const struct outcome *const each = &groups[call].outcomes[rank];
            if (each->status != TRIREME_ERROR_SYSTEM || each->exit_code != 0 ||
                strstr(each->message, "failpoint join.after_hello") == NULL) {
                fail_msg("call %d, rank %d: %s, exit %d, hung %d: %s", call, rank,
                         trireme_status_name(each->status), each->exit_code, each->hung,
                         each->message);
            }
        }
        free_processes(&groups[call]);
    }
}

/* ---- a rank that gives up before the last one comes ---- */

enum { GIVES_UP = 1, COMES_LAST = 2, HAS_GONE = 0, IS_MISSED, HAVE_MISSED };
#define AGAIN_NS (100ull * 1000 * 1000)

static bool wait_for(const int64_t *flag) {
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) {
        if (monotonic_ns() > end) return false;
        sleep_ms(1);
    }
    return true;
}

static void tell(int64_t *flag) {
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
}

static int missed_by(int rank) {
    return rank == GIVES_UP ? COMES_LAST : GIVES_UP;
}

static void miss_who_gave_up(int rank, void *context, struct outcome *outcome) {
    struct outcome *const last = outcome - rank + COMES_LAST;
    if (rank == COMES_LAST && !wait_for(&last->numbers[HAS_GONE])) _exit(94);
    trireme_communicator *const group = join_process(rank, 3, context, PATIENT_NS);
    if (rank == 0 && !wait_for(&last->numbers[IS_MISSED])) _exit(95);
    const uint64_t end = monotonic_ns() + PATIENT_NS / 2;
    do { /* on a busy machine it may not have got an answer in time */
        keep_error(outcome, trireme_communicator_wait_ready(group, AGAIN_NS));
    } while (!blames_only(&outcome->info, missed_by(rank)) && monotonic_ns() < end);
    /* Both stay until both have missed the rank that left. */
    if (rank == COMES_LAST) tell(&last->numbers[IS_MISSED]);
    if (rank == COMES_LAST && !wait_for(&last->numbers[HAVE_MISSED])) _exit(96);
    if (rank == 0) tell(&last->numbers[HAVE_MISSED]);
    trireme_communicator_destroy(group);
}

static void who_gives_up_is_missed_once_all_others_are_there(void **state) {
    (void)state;
    char rendezvous[64];
    struct processes group;
    unique_meeting(rendezvous, sizeof rendezvous);
    start_processes(&group, 3, miss_who_gave_up, rendezvous);
    assert_false(wait_stopped(&group, GIVES_UP)); /* it has ended */
    tell(&group.outcomes[COMES_LAST].numbers[HAS_GONE]);
    wait_processes(&group);
    for (int rank = 0; rank < 3; ++rank) {
        const struct outcome *const each = &group.outcomes[rank];
        if (each->status != TRIREME_ERROR_TIMEOUT || each->exit_code != 0 ||
            !blames_only(&each->info, missed_by(rank))) {
            fail_msg("rank %d: %s, exit %d, hung %d: %s", rank, trireme_status_name(each->status),
                     each->exit_code, each->hung, each->message);
        }
    }
    free_processes(&group);
}

/* ---- a rank that leaves in order before the others are connected ---- */

enum { WAITS = 0, DIES = 1, LEAVES = 2 };
enum { HAS_LEFT = 0, IS_KNOWN_TO_HAVE_LEFT, IS_HEARD };

/* Rank LEAVES dials both others, and its watching thread does nothing for it. Rank DIES cannot dial
 * rank WAITS yet. */
static const char *const of_who_leaves[] =
    {[WAITS] = "", [DIES] = "mesh.before_dial=fail", [LEAVES] = "mesh.before_watch=sleep(80000)"};

static void wait_and_hear(trireme_communicator *group, int64_t *flags, struct outcome *outcome) {
    const uint64_t end = monotonic_ns() + PATIENT_NS / 2;
    char byte = 0;
    if (!wait_for(&flags[HAS_LEFT])) _exit(94);
    do {
        keep_error(outcome, trireme_communicator_wait_ready(group, AGAIN_NS));
    } while (!blames_only(&outcome->info, LEAVES) && monotonic_ns() < end);
    tell(&flags[IS_KNOWN_TO_HAVE_LEFT]);
    keep_error(outcome, trireme_receive(group, &byte, 1, TRIREME_DTYPE_BYTES, DIES, 1, NULL));
    if (outcome->status != TRIREME_OK) return;
    tell(&flags[IS_HEARD]);
    keep_error(outcome, trireme_receive(group, &byte, 1, TRIREME_DTYPE_BYTES, DIES, 1, NULL));
}

static void speak_and_die(trireme_communicator *group, int64_t *flags, struct outcome *outcome) {
    if (!wait_for(&flags[IS_KNOWN_TO_HAVE_LEFT])) _exit(95);
    if (trireme_failpoint_set("mesh.before_dial=off") != TRIREME_OK) _exit(92);
    keep_error(outcome, trireme_send(group, "", 1, TRIREME_DTYPE_BYTES, WAITS, 1, NULL));
    if (!wait_for(&flags[IS_HEARD])) _exit(96);
    kill(getpid(), SIGKILL);
}

static void die_after_one_has_left(int rank, void *context, struct outcome *outcome) {
    int64_t *const flags = (outcome - rank)->numbers;
    char place[128];
    snprintf(place, sizeof place, "%s?silence_ms=60000&host=%d", (const char *)context, rank);
    if (trireme_failpoint_set(of_who_leaves[rank]) != TRIREME_OK) _exit(91);
    trireme_communicator *const group = join_process(rank, 3, place, PATIENT_NS);
    if (rank == WAITS) wait_and_hear(group, flags, outcome);
    if (rank == DIES) speak_and_die(group, flags, outcome);
    if (rank == LEAVES) keep_error(outcome, trireme_communicator_wait_ready(group, PATIENT_NS));
    trireme_communicator_destroy(group);
}

static void who_left_in_order_is_not_blamed_for_a_later_death(void **state) {
    (void)state;
    char rendezvous[64];
    struct processes group;
    unique_meeting(rendezvous, sizeof rendezvous);
    start_processes(&group, 3, die_after_one_has_left, rendezvous);
    assert_false(wait_stopped(&group, LEAVES)); /* it has ended */
    tell(&group.outcomes[0].numbers[HAS_LEFT]);
    wait_processes(&group);
    const struct outcome *const waits = &group.outcomes[WAITS];
    if (waits->status != TRIREME_ERROR_PEER_LOST || !blames_only(&waits->info, DIES) ||
        group.outcomes[LEAVES].status != TRIREME_OK || group.outcomes[DIES].signal != SIGKILL) {
        for (int rank = 0; rank < 3; ++rank) {
            const struct outcome *const each = &group.outcomes[rank];
            print_error("rank %d: %s, exit %d, hung %d: %s\n", rank,
                        trireme_status_name(each->status), each->exit_code, each->hung,
                        each->message);
        }
        fail_msg("rank %d died, and not rank %d", DIES, LEAVES);
    }
    free_processes(&group);
}

/* ---- a rank that aborts and leaves, while its thread looks elsewhere ---- */

enum { KNOWS_RANK_1 = 0 };

static void abort_and_leave(int rank, void *context, struct outcome *outcome) {
    const struct absence trial = {.scheme = "host", .absent = 1};
    if (rank == 0) return;
    trireme_communicator *const group = join_process(rank, 3, context, PATIENT_NS);
    greet(&trial, group, monotonic_ns() + PATIENT_NS);
    if (rank == 2) {
        tell(&outcome->numbers[KNOWS_RANK_1]);
        keep_error(outcome, trireme_barrier(group, NULL));
        return;
    }
    uint64_t looks = 0;
    if (!wait_for(&outcome[1].numbers[KNOWS_RANK_1])) _exit(92);
    if (trireme_failpoint_set("join.after_requests=sleep(300)") != TRIREME_OK) _exit(91);
    while (looks == 0) {
        if (trireme_failpoint_get_hits("join.after_requests", &looks) != TRIREME_OK) _exit(93);
        sleep_ms(1);
    }
    keep_error(outcome, trireme_communicator_abort(group, "enough"));
    trireme_communicator_destroy(group);
}

static void who_aborts_and_leaves_has_told_it(void **state) {
    (void)state;
    char rendezvous[64];
    struct processes group;
    unique_host_rendezvous(rendezvous, sizeof rendezvous);
    start_processes(&group, 3, abort_and_leave, rendezvous);
    wait_processes(&group);
    const struct outcome *const told = &group.outcomes[2];
    if (told->status != TRIREME_ERROR_ABORTED || !blames_only(&told->info, 1)) {
        fail_msg("%s, exit %d, hung %d: %s; rank 1: %s, exit %d", trireme_status_name(told->status),
                 told->exit_code, told->hung, told->message,
                 trireme_status_name(group.outcomes[1].status), group.outcomes[1].exit_code);
    }
    free_processes(&group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_who_never_comes_is_missed_over_the_network),
        cmocka_unit_test(only_who_never_comes_is_missed_on_a_host),
        cmocka_unit_test(who_ends_after_a_failure_has_told_it),
        cmocka_unit_test(who_aborts_and_leaves_has_told_it),
        cmocka_unit_test(who_gives_up_is_missed_once_all_others_are_there),
        cmocka_unit_test(who_left_in_order_is_not_blamed_for_a_later_death),
        cmocka_unit_test(who_dies_when_all_have_met_is_lost_at_once),
    };
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    unsetenv("TRIREME_TOKEN_FILE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
