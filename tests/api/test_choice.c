/*
 * Many ranks of tcp:// on one host choose between its memory and frames. They have few connections,
 * and the choice makes no others. All choose the same, and a late rank alone is named. Each rank is
 * a process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <unistd.h>

#include "processes.h"
#include "ranks.h"

#define MEMORY "local (processes, met by tcp)"
#define FRAMES "frames (tcp)"
/* Busy machines take their time to come to the choice. */
#define LATE_NS (6000ull * 1000 * 1000)

enum { MANY = 72, MOST_SOCKETS = 65536 };
enum { CONNECTIONS, NEAR, READY }; /* numbers of an outcome */

struct trial {
    int world_size;
    int victim;             /* -1: none */
    const char *failpoints; /* of the victim */
    const char *says;
    char rendezvous[96];
};

static trireme_communicator *join(int rank, const struct trial *trial, uint64_t timeout_ns) {
    if (rank == trial->victim && trireme_failpoint_set(trial->failpoints) != TRIREME_OK) _exit(91);
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = trial->world_size;
    options.rendezvous = trial->rendezvous;
    options.timeout_ns = timeout_ns;
    trireme_communicator *out = NULL;
    if (trireme_communicator_create(&options, &out) != TRIREME_OK) _exit(90);
    return out;
}

static void start(struct trial *trial, process_function *function, struct processes *processes) {
    char meeting[80];
    unique_meeting(meeting, sizeof meeting);
    snprintf(trial->rendezvous, sizeof trial->rendezvous, "%s?connections=few", meeting);
    start_processes(processes, trial->world_size, function, trial);
}

static void run(struct trial *trial, process_function *function, struct processes *processes) {
    start(trial, function, processes);
    wait_processes(processes);
}

static void wait_for_others(int rank, struct outcome *outcome, int ranks) {
    const struct outcome *const all = outcome - rank;
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    __atomic_store_n(&outcome->numbers[READY], 1, __ATOMIC_RELEASE);
    for (int other = 0; other < ranks; ++other) {
        while (__atomic_load_n(&all[other].numbers[READY], __ATOMIC_ACQUIRE) == 0 &&
               monotonic_ns() < end) {
            sleep_ms(1);
        }
    }
}

/* ---- the choice ---- */

/* The TCP connections of this process. */
static int count_connections(void) {
    static unsigned long established[MOST_SOCKETS];
    int count = 0, found = 0;
    char line[512];
    FILE *const table = fopen("/proc/self/net/tcp", "r");
    if (table == NULL) return MOST_SOCKETS;
    while (fgets(line, sizeof line, table) != NULL && count < MOST_SOCKETS) {
        unsigned state = 0;
        unsigned long inode = 0;
        if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s %*s %*s %lu", &state, &inode) == 2 &&
            state == 1) {
            established[count++] = inode;
        }
    }
    fclose(table);
    DIR *const folder = opendir("/proc/self/fd");
    if (folder == NULL) return MOST_SOCKETS;
    for (const struct dirent *each = readdir(folder); each != NULL; each = readdir(folder)) {
        char path[300], target[64] = {0};
        snprintf(path, sizeof path, "/proc/self/fd/%s", each->d_name);
        unsigned long inode = 0;
        if (readlink(path, target, sizeof target - 1) < 0 ||
            sscanf(target, "socket:[%lu]", &inode) != 1) {
            continue;
        }
        for (int i = 0; i < count; ++i) found += established[i] == inode;
    }
    closedir(folder);
    return found;
}

static int count_near(int rank, int n) {
    int count = 0;
    for (int other = 0; other < n; ++other) {
        const int up = (other - rank + n) % n, down = (rank - other + n) % n;
        count += up != 0 && ((up & (up - 1)) == 0 || (down & (down - 1)) == 0);
    }
    return count;
}

static void choose(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const group = join(rank, trial, PATIENT_NS);
    int64_t sum = rank;
    trireme_status status =
        trireme_all_reduce(group, &sum, &sum, 1, TRIREME_DTYPE_I64, TRIREME_REDUCTION_SUM, NULL);
    if (status == TRIREME_OK) {
        outcome->wrong = sum != trial->world_size * (trial->world_size - 1) / 2;
        status = trireme_communicator_get_backend(group, outcome->text, sizeof outcome->text, NULL);
    }
    keep_error(outcome, status);
    outcome->numbers[CONNECTIONS] = count_connections();
    outcome->numbers[NEAR] = count_near(rank, trial->world_size);
    wait_for_others(rank, outcome, trial->world_size);
    if (status == TRIREME_OK) {
        outcome->again = trireme_barrier(group, NULL);
        outcome->wrong |= outcome->again != TRIREME_OK;
    }
    trireme_communicator_destroy(group);
}

static void all_choose_the_same(void **state) {
    (void)state;
    static const struct {
        int world_size;
        const char *failpoints;
        const char *says;
    } trials[] = {{12, NULL, MEMORY},
                  {12, "memory.before_join=fail", FRAMES},
                  {12, "memory.before_use=fail", FRAMES},
                  {12, "memory.before_join=sleep(300)", MEMORY},
                  {12, "memory.before_use=sleep(300)", MEMORY},
                  {7, NULL, MEMORY},
                  {MANY, NULL, MEMORY},
                  {MANY, "memory.before_use=fail", FRAMES}};
    for (size_t i = 0; i < sizeof trials / sizeof *trials; ++i) {
        const int n = trials[i].world_size;
        struct trial trial = {.world_size = n, .victim = -1, .failpoints = trials[i].failpoints};
        if (trial.failpoints != NULL) trial.victim = (int)(i * 7 + 3) % n;
        struct processes processes;
        run(&trial, choose, &processes);
        for (int rank = 0; rank < n; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            /* Rank 0 has the meeting, too: a connection from each rank. */
            const int64_t most = 3 * o->numbers[NEAR] + 4 + (rank == 0 ? n : 0);
            const int64_t least = strcmp(trials[i].says, FRAMES) == 0 ? 2 * o->numbers[NEAR] : 0;
            if (o->exit_code != 0 || o->hung || o->wrong || o->status != TRIREME_OK ||
                o->numbers[CONNECTIONS] < least || strcmp(o->text, trials[i].says) != 0 ||
                o->numbers[CONNECTIONS] > most) {
                fail_msg(
                    "%d ranks, %s: rank %d: exit %d, hung %d, wrong %d, says \"%s\", "
                    "%d connections with %d near ranks: %s",
                    n, trial.failpoints != NULL ? trial.failpoints : "", rank, o->exit_code,
                    o->hung, o->wrong, o->text, (int)o->numbers[CONNECTIONS], (int)o->numbers[NEAR],
                    o->message);
            }
        }
        free_processes(&processes);
    }
}

/* ---- ranks that are late, or die ---- */

static void wait_in_vain(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const group = join(rank, trial, LATE_NS);
    keep_error(outcome, trireme_barrier(group, NULL));
    wait_for_others(rank, outcome, trial->world_size);
    trireme_communicator_destroy(group);
}

static void a_late_rank_alone_is_named(void **state) {
    (void)state;
    static const char *const points[] = {"memory.before_join=sleep(12000)",
                                         "memory.before_use=sleep(12000)"};
    struct trial trials[2];
    struct processes groups[2];
    for (int i = 0; i < 2; ++i) {
        trials[i] = (struct trial){.world_size = 12, .victim = 6 - i, .failpoints = points[i]};
        start(&trials[i], wait_in_vain, &groups[i]);
    }
    for (int i = 0; i < 2; ++i) wait_processes(&groups[i]);
    for (int i = 0; i < 2; ++i) {
        const struct trial *const trial = &trials[i];
        for (int rank = 0; rank < trial->world_size; ++rank) {
            const struct outcome *const o = &groups[i].outcomes[rank];
            if (rank == trial->victim) continue;
            if (o->exit_code != 0 || o->status != TRIREME_ERROR_TIMEOUT ||
                !blames_only(&o->info, trial->victim)) {
                fail_msg("%s of rank %d: rank %d: exit %d, %s: %s", trial->failpoints,
                         trial->victim, rank, o->exit_code, trireme_status_name(o->status),
                         o->message);
            }
        }
        free_processes(&groups[i]);
    }
}

static void work_until_death(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const group = join(rank, trial, PATIENT_NS);
    keep_error(outcome, trireme_barrier(group, NULL));
    trireme_communicator_destroy(group);
}

static void a_rank_that_dies_meanwhile_is_named(void **state) {
    (void)state;
    static const char *const points[] = {"memory.before_join=kill", "memory.before_use=kill"};
    for (int i = 0; i < 4; ++i) {
        struct trial trial = {.world_size = i < 2 ? 9 : 12, .failpoints = points[i % 2]};
        trial.victim = (i * 5 + 2) % trial.world_size;
        struct processes processes;
        run(&trial, work_until_death, &processes);
        for (int rank = 0; rank < trial.world_size; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            if (rank == trial.victim) continue;
            if (o->exit_code != 0 || o->hung || o->status != TRIREME_ERROR_PEER_LOST ||
                !blames_only(&o->info, trial.victim)) {
                fail_msg("%s of rank %d: rank %d: exit %d, hung %d, %s: %s", trial.failpoints,
                         trial.victim, rank, o->exit_code, o->hung, trireme_status_name(o->status),
                         o->message);
            }
        }
        free_processes(&processes);
    }
}

static void come_and_go(int rank, void *context, struct outcome *outcome) {
    struct trial trial = *(const struct trial *)context;
    char rendezvous[96];
    memcpy(rendezvous, trial.rendezvous, sizeof rendezvous);
    char *const options = strchr(rendezvous, '?');
    *options = 0;
    for (int round = 0; round < 10; ++round) {
        snprintf(trial.rendezvous, sizeof trial.rendezvous, "%.60s-%d?%.20s", rendezvous, round,
                 options + 1);
        trireme_communicator *const group = join(rank, &trial, PATIENT_NS);
        keep_error(outcome, trireme_communicator_wait_ready(group, PATIENT_NS));
        trireme_communicator_destroy(group);
        outcome->rounds = round + 1;
        if (outcome->status != TRIREME_OK) return;
    }
}

/* A rank that has chosen may leave at once: no other one misses it, whatever they choose. */
static void ranks_leave_as_soon_as_they_have_chosen(void **state) {
    (void)state;
    static const char *const points[] = {NULL, "memory.before_join=fail", "memory.before_use=fail",
                                         "memory.before_use=sleep(40)"};
    bool right = true;
    for (int i = 0; i < 4; ++i) {
        struct trial trial = {.world_size = 9, .victim = -1, .failpoints = points[i]};
        if (points[i] != NULL) trial.victim = i * 2;
        struct processes processes;
        run(&trial, come_and_go, &processes);
        for (int rank = 0; rank < trial.world_size; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            if (o->exit_code == 0 && !o->hung && o->status == TRIREME_OK) continue;
            print_error("%s: rank %d, round %d: exit %d, hung %d, %s: %s\n",
                        points[i] != NULL ? points[i] : "", rank, o->rounds, o->exit_code, o->hung,
                        trireme_status_name(o->status), o->message);
            right = false;
        }
        free_processes(&processes);
    }
    assert_true(right);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_choose_the_same),
        cmocka_unit_test(a_late_rank_alone_is_named),
        cmocka_unit_test(a_rank_that_dies_meanwhile_is_named),
        cmocka_unit_test(ranks_leave_as_soon_as_they_have_chosen),
    };
    setenv("TRIREME_TOKEN", "a token for tests of 27 bytes", 1);
    unsetenv("TRIREME_TOKEN_FILE");
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("choice", tests, NULL, NULL);
}
