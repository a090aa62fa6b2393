/*
 * The library leaves its host as it found it: descriptors, threads, mappings, signals, mask, folder
 * and umask; and a host that forks does no harm to either side.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "own_process.h"
#include "processes.h"
#include "ranks.h"

#define WARM_UP 3 /* cycles after which the C library's own memory stops growing */
#define CYCLES 20
#define RANKS 3
/* Entries of the folder of threads when the library has none: ".", ".." and the caller's. */
#ifdef __SANITIZE_THREAD__
#define ALONE 5 /* and two of the sanitizer: after a fork, and beside the first thread */
#else
#define ALONE 3
#endif

/* ---- the resources of a process ---- */

static int64_t count_mappings(const char *word) {
    char line[512];
    int64_t count = 0;
    FILE *const maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) return -1;
    while (fgets(line, sizeof line, maps) != NULL) count += strstr(line, word) != NULL;
    fclose(maps);
    return count;
}

struct possessions {
    int64_t descriptors;
    int64_t threads;
    int64_t memory_files;
    int64_t mappings;
};

static struct possessions look(void) {
    return (struct possessions){count_descriptors(), count_own_threads(), count_mappings("memfd:"),
                                count_mappings("")};
}

/* Threads that have been told to end may take a moment to be gone. */
static struct possessions look_until(const struct possessions *wanted) {
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    struct possessions now = look();
    while (now.threads > wanted->threads && monotonic_ns() < end) {
        sleep_ms(5);
        now = look();
    }
    return now;
}

/* Byte by byte comparable, so that nothing is overlooked. */
struct manners {
    void (*handlers[NSIG])(int);
    int flags[NSIG];
    bool blocked[NSIG];
    mode_t umask;
    char folder[512];
};

static void look_at_manners(struct manners *manners) {
    sigset_t mask;
    memset(manners, 0, sizeof *manners);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int number = 1; number < NSIG; ++number) {
        struct sigaction action;
        manners->blocked[number] = sigismember(&mask, number) == 1;
        if (sigaction(number, NULL, &action) != 0) continue;
        manners->handlers[number] = action.sa_handler;
        manners->flags[number] = action.sa_flags;
    }
    manners->umask = umask(0);
    umask(manners->umask);
    if (getcwd(manners->folder, sizeof manners->folder) == NULL) _exit(94);
}

/* ---- a whole life of a communicator ---- */

static void live(int rank, int world_size, const char *rendezvous) {
    trireme_communicator *const communicator = join_rank(rank, world_size, rendezvous);
    for (int shared = 0; shared < 2; ++shared) {
        const struct call call = {.operation = TRIREME_OPERATION_KIND_ALL_REDUCE,
                                  .dtype = TRIREME_DTYPE_F32,
                                  .reduction = TRIREME_REDUCTION_SUM,
                                  .count = 60001};
        struct call_memory memory;
        if (!allocate_call(communicator, &call, rank, world_size, shared != 0, &memory)) _exit(92);
        for (int started = 0; started < 2; ++started) {
            fill_call(&call, &memory, rank, world_size, started);
            if (run_call(communicator, &call, &memory, started != 0, LONG_NS) != TRIREME_OK ||
                !is_call_right(&call, &memory, rank, world_size, started)) {
                fprintf(stderr, "rank %d: %s\n", rank, trireme_last_error());
                _exit(95);
            }
        }
        /* Sooner or later than the communicator: any order is right. */
        if (shared == 0) free_call(&memory, false);
        if (shared != 0) {
            trireme_request *request = NULL;
            int32_t descriptor = -1;
            if (trireme_barrier_start(communicator, NULL, &request) != TRIREME_OK ||
                trireme_request_get_fd(request, &descriptor) != TRIREME_OK ||
                trireme_request_wait(request, LONG_NS) != TRIREME_OK) {
                _exit(96);
            }
            trireme_communicator_destroy(communicator);
            trireme_request_destroy(request);
            free_call(&memory, true);
        }
    }
}

struct hygiene {
    bool threads; /* ranks are threads of each process, or the processes themselves */
    int world_size;
    char rendezvous[64];
};

static void live_as_thread(int rank, void *context) {
    const struct hygiene *const hygiene = context;
    live(rank, hygiene->world_size, hygiene->rendezvous);
}

static void one_cycle(struct hygiene *hygiene, int rank, int cycle) {
    struct hygiene now = *hygiene;
    if (hygiene->threads) {
        snprintf(now.rendezvous, sizeof now.rendezvous, "local://hygiene-%d", cycle);
        run_threads(hygiene->world_size, live_as_thread, &now);
    } else {
        snprintf(now.rendezvous, sizeof now.rendezvous, "%.40s-%d", hygiene->rendezvous, cycle);
        live(rank, hygiene->world_size, now.rendezvous);
    }
}

/* In a process of its own, which reports its findings. */
static void live_and_look(int rank, void *context, struct outcome *outcome) {
    struct hygiene *const hygiene = context;
    struct manners before;
    struct manners after;
    sigset_t some;
    /* The host's own settings, none of them a default. */
    mallopt(M_ARENA_MAX, 1);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGUSR1, SIG_IGN);
    sigemptyset(&some);
    sigaddset(&some, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &some, NULL);
    umask(027);
    look_at_manners(&before);
    const struct possessions wanted = {.threads = ALONE};
    for (int cycle = 0; cycle < WARM_UP; ++cycle) one_cycle(hygiene, rank, cycle);
    const struct possessions first = look_until(&wanted);
    for (int cycle = WARM_UP; cycle < WARM_UP + CYCLES; ++cycle) one_cycle(hygiene, rank, cycle);
    const struct possessions last = look_until(&wanted);
    look_at_manners(&after);
    const int64_t numbers[] =
        {first.descriptors, last.descriptors,   first.threads,
         last.threads,      first.memory_files, last.memory_files,
         first.mappings,    last.mappings,      memcmp(&before, &after, sizeof before)};
    memcpy(outcome->numbers, numbers, sizeof numbers);
}

static void check_hygiene(struct hygiene *hygiene, int process_count) {
    struct processes processes;
    unique_host_rendezvous(hygiene->rendezvous, sizeof hygiene->rendezvous);
    start_processes(&processes, process_count, live_and_look, hygiene);
    wait_processes(&processes);
    for (int rank = 0; rank < process_count; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        assert_false(o->hung);
        assert_int_equal(o->exit_code, 0);
        assert_true(o->numbers[0] > 0);
        assert_int_equal(o->numbers[0], o->numbers[1]);
        assert_int_equal(o->numbers[2], o->numbers[3]);
#if !defined(__SANITIZE_THREAD__) /* how many it has is its own affair */
        assert_int_equal(o->numbers[3], ALONE);
#endif
        assert_int_equal(o->numbers[4], 0);
        assert_int_equal(o->numbers[5], 0);
        /* The heap may be in a few pieces more; one mapping a cycle would be a leak. */
        if (!is_quick()) assert_true(o->numbers[7] - o->numbers[6] < CYCLES / 2);
        assert_int_equal(o->numbers[8], 0);
    }
    free_processes(&processes);
}

static void ranks_that_are_processes_leave_their_host_as_it_was(void **state) {
    (void)state;
    struct hygiene hygiene = {.threads = false, .world_size = RANKS};
    check_hygiene(&hygiene, RANKS);
}

static void ranks_that_are_threads_leave_their_host_as_it_was(void **state) {
    (void)state;
    struct hygiene hygiene = {.threads = true, .world_size = RANKS};
    check_hygiene(&hygiene, 1);
}

/* ---- descriptors are not inherited ---- */

static void look_at_inherited(int rank, void *context, struct outcome *outcome) {
    const struct hygiene *const hygiene = context;
    char command[128];
    trireme_communicator *const communicator =
        join_process(rank, hygiene->world_size, hygiene->rendezvous, PATIENT_NS);
    trireme_buffer *buffer = NULL;
    trireme_request *request = NULL;
    int32_t descriptor = -1;
    if (trireme_buffer_alloc(communicator, 5000, &buffer) != TRIREME_OK ||
        trireme_barrier_start(communicator, NULL, &request) != TRIREME_OK ||
        trireme_request_get_fd(request, &descriptor) != TRIREME_OK ||
        trireme_request_wait(request, PATIENT_NS) != TRIREME_OK) {
        _exit(96);
    }
    /* The test's own are closed on exec, too: every descriptor that the program sees beyond 2 would
     * be the library's. */
    snprintf(
        command, sizeof command,
        "for f in /proc/$$/fd/*; do case $(readlink $f) in *memfd*|*socket*|*eventfd*) exit 7;; "
        "esac; done; exit 0");
    const int wait_status = system(command);
    outcome->numbers[0] = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
    outcome->status = trireme_barrier(communicator, NULL);
    trireme_request_destroy(request);
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(communicator);
}

static void a_program_that_the_host_runs_inherits_nothing(void **state) {
    (void)state;
    struct hygiene hygiene = {.world_size = 2};
    struct processes processes;
    unique_host_rendezvous(hygiene.rendezvous, sizeof hygiene.rendezvous);
    start_processes(&processes, 2, look_at_inherited, &hygiene);
    wait_processes(&processes);
    for (int rank = 0; rank < 2; ++rank) {
        assert_int_equal(processes.outcomes[rank].exit_code, 0);
        assert_int_equal(processes.outcomes[rank].numbers[0], 0);
        assert_int_equal(processes.outcomes[rank].status, TRIREME_OK);
    }
    free_processes(&processes);
}

/* ---- fork in the host ---- */

#define REFUSED 20

/* In the child of a rank: every handle is refused, freeing is harmless, and exec works. */
static void use_handles_after_fork(trireme_communicator *communicator, trireme_buffer *buffer,
                                   trireme_request *request) {
    int32_t number = -1;
    void *data = NULL;
    const trireme_status answers[] = {
        trireme_barrier(communicator, NULL),
        trireme_communicator_get_rank(communicator, &number),
        trireme_communicator_wait_ready(communicator, PATIENT_NS),
        trireme_communicator_abort(communicator, "from a child"),
        trireme_buffer_alloc(communicator, 100, &buffer),
        trireme_buffer_get_data(buffer, &data),
        trireme_request_wait(request, PATIENT_NS),
        trireme_request_test(request, &number),
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; ++i) {
        if (answers[i] != TRIREME_ERROR_INVALID_HANDLE) _exit(REFUSED + 1 + (int)i);
    }
    if (number != -1 || data != NULL) _exit(REFUSED);
    trireme_request_destroy(request);
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(communicator);
    execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
    _exit(127);
}

static void fork_and_go_on(int rank, void *context, struct outcome *outcome) {
    const struct hygiene *const hygiene = context;
    trireme_communicator *const communicator =
        join_process(rank, hygiene->world_size, hygiene->rendezvous, PATIENT_NS);
    trireme_buffer *buffer = NULL;
    trireme_request *request = NULL;
    if (trireme_buffer_alloc(communicator, 5000, &buffer) != TRIREME_OK ||
        trireme_barrier_start(communicator, NULL, &request) != TRIREME_OK ||
        trireme_request_wait(request, PATIENT_NS) != TRIREME_OK) {
        _exit(96);
    }
    for (int i = 0; i < 3; ++i) {
        const pid_t child = fork();
        if (child < 0) _exit(97);
        if (child == 0) use_handles_after_fork(communicator, buffer, request);
        int wait_status = 0;
        waitpid(child, &wait_status, 0);
        outcome->numbers[i] = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
        /* The end of the child is not the end of the rank. */
        int32_t sum = 0;
        const int32_t one = 1;
        const trireme_status status =
            trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                               TRIREME_REDUCTION_SUM, NULL);
        if (status != TRIREME_OK) {
            keep_error(outcome, status);
            break;
        }
        outcome->wrong |= sum != hygiene->world_size;
        ++outcome->rounds;
    }
    trireme_request_destroy(request);
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(communicator);
}

static void a_fork_of_the_host_has_no_handles_and_does_no_harm(void **state) {
    (void)state;
    struct hygiene hygiene = {.world_size = 2};
    struct processes processes;
    unique_host_rendezvous(hygiene.rendezvous, sizeof hygiene.rendezvous);
    start_processes(&processes, 2, fork_and_go_on, &hygiene);
    wait_processes(&processes);
    for (int rank = 0; rank < 2; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        if (o->status != TRIREME_OK) print_error("%s\n", o->message);
        assert_int_equal(o->exit_code, 0);
        assert_int_equal(o->status, TRIREME_OK);
        assert_int_equal(o->rounds, 3);
        assert_false(o->wrong);
        for (int i = 0; i < 3; ++i) assert_int_equal(o->numbers[i], 0);
    }
    free_processes(&processes);
}

/* A child that lives on without exec holds copies of all descriptors of its parent. */
static void die_with_a_child(int rank, void *context, struct outcome *outcome) {
    const struct hygiene *const hygiene = context;
    trireme_communicator *const communicator =
        join_process(rank, hygiene->world_size, hygiene->rendezvous, PATIENT_NS);
    const trireme_status met = trireme_barrier(communicator, NULL);
    if (rank == 0) {
        if (met != TRIREME_OK) _exit(96);
        const pid_t child = fork();
        if (child == 0) {
            for (;;) pause(); /* until the test ends it */
        }
        outcome->numbers[0] = child;
        kill(getpid(), SIGKILL);
    }
    /* The death may be heard of before a slow survivor is out of the first barrier. */
    keep_error(outcome, met == TRIREME_OK ? trireme_barrier(communicator, NULL) : met);
    trireme_communicator_destroy(communicator);
}

static void a_rank_whose_child_lives_on_is_still_seen_to_die(void **state) {
    (void)state;
    struct hygiene hygiene = {.world_size = 3};
    struct processes processes;
    unique_host_rendezvous(hygiene.rendezvous, sizeof hygiene.rendezvous);
    start_processes(&processes, 3, die_with_a_child, &hygiene);
    for (int rank = 0; rank < 3; ++rank) (void)wait_stopped(&processes, rank);
    if (processes.outcomes[0].numbers[0] > 0) {
        kill((pid_t)processes.outcomes[0].numbers[0], SIGKILL);
    }
    wait_processes(&processes);
    assert_int_equal(processes.outcomes[0].signal, SIGKILL);
    for (int rank = 1; rank < 3; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        assert_int_equal(o->exit_code, 0);
        assert_int_equal(o->status, TRIREME_ERROR_PEER_LOST);
        assert_true(blames_only(&o->info, 0));
    }
    free_processes(&processes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_are_processes_leave_their_host_as_it_was),
        cmocka_unit_test(ranks_that_are_threads_leave_their_host_as_it_was),
        cmocka_unit_test(a_program_that_the_host_runs_inherits_nothing),
        cmocka_unit_test(a_fork_of_the_host_has_no_handles_and_does_no_harm),
        cmocka_unit_test(a_rank_whose_child_lives_on_is_still_seen_to_die),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
