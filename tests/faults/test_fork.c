/*
 * A program that forks, as Python's multiprocessing does: the child has none of the library's
 * descriptors. So it keeps no name taken and no connection open, and what the program itself has
 * open stays so.
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
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "own_process.h"
#include "processes.h"

#define TOKEN "the token of forking programs"
#define FORKS 40
#define OWN 24

/* A child has the memory of threads that it does not have: nothing that a leak check could judge.
 */
static bool is_child;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
    return is_child;
}

static int exit_code_of(pid_t child) {
    int wait_status = -1;
    while (waitpid(child, &wait_status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 1000 + WTERMSIG(wait_status);
}

/* As many as there were before the library was used. */
static void fork_and_count(int rank, void *context, struct outcome *outcome) {
    trireme_store *store = NULL;
    const int64_t before = count_descriptors();
    trireme_communicator *const communicator = join_process(rank, 2, context, PATIENT_NS);
    trireme_buffer *buffer = NULL;
    if (trireme_store_serve("tcp://127.0.0.1:0", NULL, &store) != TRIREME_OK ||
        trireme_buffer_alloc(communicator, 70000, &buffer) != TRIREME_OK) {
        _exit(95);
    }
    for (int i = 0; i < FORKS; ++i) {
        keep_error(outcome, trireme_barrier(communicator, NULL));
        if (outcome->status != TRIREME_OK) _exit(96);
        outcome->numbers[0] = count_descriptors() - before;
        const pid_t child = fork();
        is_child = child == 0;
        if (child == 0) _exit((int)(count_descriptors() - before) & 127);
        outcome->numbers[1] += exit_code_of(child);
        ++outcome->rounds;
    }
    trireme_buffer_destroy(buffer);
    trireme_store_destroy(store);
    trireme_communicator_destroy(communicator);
}

static void a_child_has_no_descriptor_of_the_library(void **state) {
    (void)state;
    for (int network = 0; network < 2; ++network) {
        struct processes processes;
        char rendezvous[96];
        if (network)
            unique_meeting(rendezvous, sizeof rendezvous);
        else
            unique_host_rendezvous(rendezvous, sizeof rendezvous);
        start_processes(&processes, 2, fork_and_count, rendezvous);
        wait_processes(&processes);
        for (int rank = 0; rank < 2; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            if (o->exit_code != 0) fail_msg("rank %d: exit %d: %s", rank, o->exit_code, o->message);
            assert_int_equal(o->rounds, FORKS);
            assert_true(o->numbers[0] >= 4); /* the parent has some */
            if (o->numbers[1] != 0) {
                fail_msg("%s: %d children had %lld descriptors of the library", rendezvous, FORKS,
                         (long long)o->numbers[1]);
            }
        }
        free_processes(&processes);
    }
}

/* ---- numbers that the program has again ---- */

static atomic_bool enough;

static void *join_and_leave(void *context) {
    int *const rounds = context;
    while (!atomic_load(&enough)) {
        trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
        trireme_communicator *communicator = NULL;
        char rendezvous[64];
        snprintf(rendezvous, sizeof rendezvous, "host://churn-%ld-%d", (long)getpid(), *rounds % 7);
        options.rendezvous = rendezvous;
        options.world_size = 1;
        if (trireme_communicator_create(&options, &communicator) == TRIREME_OK) ++*rounds;
        trireme_communicator_destroy(communicator);
    }
    return NULL;
}

/* In the child: whether all that the program has open is there. */
static int missing(const int *own) {
    int count = 0;
    for (int i = 0; i < OWN; ++i) count += fcntl(own[i], F_GETFD) < 0;
    return count;
}

static void fork_while_numbers_change(int rank, void *context, struct outcome *outcome) {
    (void)rank;
    const int trials = *(const int *)context;
    pthread_t thread;
    int rounds = 0;
    if (pthread_create(&thread, NULL, join_and_leave, &rounds) != 0) _exit(95);
    for (int trial = 0; trial < trials; ++trial) {
        int own[OWN];
        for (int i = 0; i < OWN; ++i) {
            own[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
            if (own[i] < 0) _exit(96);
        }
        const pid_t child = fork();
        is_child = child == 0;
        if (child == 0) _exit(missing(own));
        outcome->numbers[0] += exit_code_of(child);
        for (int i = 0; i < OWN; ++i) close(own[i]);
        ++outcome->rounds;
    }
    atomic_store(&enough, true);
    pthread_join(thread, NULL);
    outcome->numbers[1] = rounds;
}

static void a_child_keeps_what_the_program_opened_at_the_same_numbers(void **state) {
    (void)state;
    struct processes processes;
    int trials = is_quick() ? 40 : 300;
    start_processes(&processes, 1, fork_while_numbers_change, &trials);
    wait_processes(&processes);
    const struct outcome *const o = &processes.outcomes[0];
    assert_int_equal(o->exit_code, 0);
    assert_int_equal(o->rounds, trials);
    assert_int_equal(o->numbers[0], 0);
    assert_true(o->numbers[1] > 0);
    free_processes(&processes);
}

/* ---- a child that lives on ---- */

static pid_t start_sleeper(void) {
    const pid_t child = fork();
    is_child = child == 0;
    if (child != 0) return child;
    for (;;) pause(); /* until the test ends it */
}

static void claim_and_die(int rank, void *context, struct outcome *outcome) {
    (void)join_process(rank, 2, context, PATIENT_NS);
    outcome->numbers[0] = start_sleeper();
    kill(getpid(), SIGKILL);
}

static void claim_again(int rank, void *context, struct outcome *outcome) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    trireme_communicator *communicator = NULL;
    options.rendezvous = context;
    options.rank = rank;
    options.world_size = 2;
    keep_error(outcome, trireme_communicator_create(&options, &communicator));
    trireme_communicator_destroy(communicator);
}

static void a_name_is_free_though_a_child_lives_on(void **state) {
    (void)state;
    struct processes processes;
    char rendezvous[96];
    unique_host_rendezvous(rendezvous, sizeof rendezvous);
    start_processes(&processes, 1, claim_and_die, rendezvous);
    assert_false(wait_stopped(&processes, 0)); /* it ends */
    const pid_t sleeper = (pid_t)processes.outcomes[0].numbers[0];
    assert_true(sleeper > 0);
    struct processes next;
    start_processes(&next, 1, claim_again, rendezvous);
    wait_processes(&next);
    kill(sleeper, SIGKILL);
    wait_processes(&processes);
    if (next.outcomes[0].status != TRIREME_OK) fail_msg("%s", next.outcomes[0].message);
    assert_int_equal(next.outcomes[0].exit_code, 0);
    free_processes(&next);
    free_processes(&processes);
}

static void die_with_a_sleeper(int rank, void *context, struct outcome *outcome) {
    trireme_communicator *const communicator = join_process(rank, 2, context, PATIENT_NS);
    const trireme_status met = trireme_barrier(communicator, NULL);
    if (rank == 1) {
        if (met != TRIREME_OK) _exit(96);
        outcome->numbers[0] = start_sleeper();
        kill(getpid(), SIGKILL);
    }
    keep_error(outcome, met == TRIREME_OK ? trireme_barrier(communicator, NULL) : met);
    trireme_communicator_destroy(communicator);
}

/* By the end of its connections, and not by its silence after seconds. */
static void a_death_is_heard_by_its_connections_though_a_child_lives_on(void **state) {
    (void)state;
    for (int trial = 0; trial < (is_quick() ? 2 : 10); ++trial) {
        struct processes processes;
        char rendezvous[96];
        unique_meeting(rendezvous, sizeof rendezvous);
        start_processes(&processes, 2, die_with_a_sleeper, rendezvous);
        (void)wait_stopped(&processes, 0); /* it ends */
        (void)wait_stopped(&processes, 1);
        const pid_t sleeper = (pid_t)processes.outcomes[1].numbers[0];
        if (sleeper > 0) kill(sleeper, SIGKILL);
        wait_processes(&processes);
        const struct outcome *const o = &processes.outcomes[0];
        assert_true(sleeper > 0);
        assert_int_equal(o->status, TRIREME_ERROR_PEER_LOST);
        assert_true(blames_only(&o->info, 1));
        if (strstr(o->message, "no sign of life") != NULL) fail_msg("%s", o->message);
        free_processes(&processes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_child_has_no_descriptor_of_the_library),
        cmocka_unit_test(a_child_keeps_what_the_program_opened_at_the_same_numbers),
        cmocka_unit_test(a_name_is_free_though_a_child_lives_on),
        cmocka_unit_test(a_death_is_heard_by_its_connections_though_a_child_lives_on),
    };
    setenv("TRIREME_TOKEN", TOKEN, 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
