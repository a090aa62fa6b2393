/*
 * Limits of the process (getrlimit) at values from nothing to plenty: a program that uses the
 * library lives, and each call comes back with a status. Each trial is a program of its own: this
 * one, which starts itself again. A rank without a free descriptor reports that itself, and no
 * other rank is blamed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define NOBODY 65534
#define AT_ONCE 6 /* values of a limit that are tried at one time */
#define SECOND (1000ull * 1000 * 1000)

/* The outcome of a trial. 127: the system could not start it. */
enum end { ALL_WENT_WELL = 10, GAVE_A_STATUS = 11, ANSWERED_WRONG = 12 };

/* ---- the program of a trial ---- */

#define TRY(call)                                  \
    do {                                           \
        const trireme_status status_ = (call);     \
        if (status_ != TRIREME_OK) return status_; \
    } while (0)

static bool is_wrong;

static trireme_status
sum_of_two(trireme_communicator *const *ranks, float *const *data, uint64_t count) {
    trireme_request *requests[2] = {NULL, NULL};
    trireme_status status = TRIREME_OK;
    for (int rank = 0; rank < 2; ++rank) {
        for (uint64_t i = 0; i < count; ++i) data[rank][i] = (float)(rank + 1);
    }
    for (int rank = 0; rank < 2 && status == TRIREME_OK; ++rank) {
        status =
            trireme_all_reduce_start(ranks[rank], data[rank], data[rank], count, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, NULL, &requests[rank]);
    }
    if (status != TRIREME_OK) (void)!trireme_communicator_abort(ranks[0], "a start failed");
    for (int rank = 0; rank < 2; ++rank) {
        if (requests[rank] == NULL) continue;
        const trireme_status done = trireme_request_wait(requests[rank], 5 * SECOND);
        if (status == TRIREME_OK) status = done;
        trireme_request_destroy(requests[rank]);
    }
    for (uint64_t i = 0; i < count && status == TRIREME_OK; ++i) {
        is_wrong |= data[0][i] != 3 || data[1][i] != 3;
    }
    return status;
}

static trireme_status work_in_group(trireme_communicator *const *ranks, trireme_buffer **buffers) {
    static float memory[2][70000];
    float *data[2] = {memory[0], memory[1]};
    for (int rank = 0; rank < 2; ++rank) {
        TRY(trireme_communicator_wait_ready(ranks[rank], SECOND));
    }
    TRY(sum_of_two(ranks, data, 1));
    TRY(sum_of_two(ranks, data, 70000));
    for (int rank = 0; rank < 2; ++rank) {
        TRY(trireme_buffer_alloc(ranks[rank], 280000, &buffers[rank]));
        TRY(trireme_buffer_get_data(buffers[rank], (void **)&data[rank]));
    }
    return sum_of_two(ranks, data, 70000);
}

static trireme_status use_group(const char *scheme) {
    trireme_communicator *ranks[2] = {NULL, NULL};
    trireme_buffer *buffers[2] = {NULL, NULL};
    char rendezvous[96];
    trireme_status status = TRIREME_OK;
    if (strcmp(scheme, "tcp") == 0) {
        unique_meeting(rendezvous, sizeof rendezvous);
    } else {
        snprintf(rendezvous, sizeof rendezvous, "%s://limits-%ld", scheme, (long)getpid());
    }
    for (int rank = 0; rank < 2 && status == TRIREME_OK; ++rank) {
        trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
        options.rendezvous = rendezvous;
        options.rank = rank;
        options.world_size = 2;
        options.timeout_ns = 5 * SECOND;
        if (strcmp(scheme, "tcp") == 0) options.backend = network_backend();
        status = trireme_communicator_create(&options, &ranks[rank]);
    }
    if (status == TRIREME_OK) status = work_in_group(ranks, buffers);
    for (int rank = 0; rank < 2; ++rank) {
        trireme_buffer_destroy(buffers[rank]);
        trireme_communicator_destroy(ranks[rank]);
    }
    return status;
}

static trireme_status use_store_at(const char *url, bool serves) {
    trireme_store_options options = TRIREME_STORE_OPTIONS_INIT;
    trireme_store *store = NULL;
    char value[3000];
    char got[3000] = "";
    uint64_t size = 0;
    int32_t found = 0;
    trireme_status status = TRIREME_OK;
    options.timeout_ns = 5 * SECOND;
    memset(value, 'v', sizeof value);
    TRY(serves ? trireme_store_serve(url, &options, &store)
               : trireme_store_connect(url, &options, &store));
    for (int i = 0; i < 30 && status == TRIREME_OK; ++i) {
        status = trireme_store_set(store, "key", value, sizeof value);
    }
    if (status == TRIREME_OK) {
        status = trireme_store_get(store, "key", got, sizeof got, &size, &found);
        is_wrong |= status == TRIREME_OK && memcmp(got, value, sizeof value) != 0;
    }
    trireme_store_destroy(store);
    return status;
}

static trireme_status use_store_file(void) {
    char url[64];
    snprintf(url, sizeof url, "file:///tmp/limits-%ld", (long)getpid());
    unlink(url + strlen("file://"));
    const trireme_status status = use_store_at(url, false);
    unlink(url + strlen("file://"));
    return status;
}

static trireme_status carry_out(const char *scenario) {
    if (strcmp(scenario, "store") == 0) return use_store_at("tcp://127.0.0.1:0", true);
    if (strcmp(scenario, "file") == 0) return use_store_file();
    return use_group(scenario);
}

/* Bytes that the process has now, for limits of more than that. */
static rlim_t bytes_now(int resource) {
    unsigned long long size = 0, data = 0;
    FILE *const file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%llu %*s %*s %*s %*s %llu", &size, &data) != 2) exit(99);
    fclose(file);
    return (rlim_t)(resource == RLIMIT_AS ? size : data) * 4096;
}

/* The first thread has the stack that is limited; what the library does on its own threads is asked
 * for from one that has plenty. */
static void *carry_out_apart(void *scenario) {
    static trireme_status status;
    status = carry_out(scenario);
    if (status != TRIREME_OK && getenv("TRIREME_TESTS_VERBOSE") != NULL) {
        fprintf(stderr, "  %s %s\n", (const char *)scenario, trireme_last_error());
    }
    return &status;
}

static trireme_status carry_out_with_room(char *scenario) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *status = NULL;
    if (pthread_attr_init(&attributes) != 0 ||
        pthread_attr_setstacksize(&attributes, 8u << 20) != 0 ||
        pthread_create(&thread, &attributes, carry_out_apart, scenario) != 0 ||
        pthread_join(thread, &status) != 0) {
        exit(96);
    }
    return *(trireme_status *)status;
}

static int be_trial(char **arguments) {
    const int resource = atoi(arguments[1]);
    struct rlimit limit = {.rlim_cur = strtoull(arguments[2], NULL, 10)};
    setenv("TRIREME_TOKEN", "the token of the limits", 1);
    if (resource == RLIMIT_AS || resource == RLIMIT_DATA) limit.rlim_cur += bytes_now(resource);
    struct rlimit now;
    if (getrlimit((__rlimit_resource_t)resource, &now) != 0) return 97;
    if (limit.rlim_cur > now.rlim_max) limit.rlim_cur = now.rlim_max;
    limit.rlim_max = limit.rlim_cur;
    if (resource != RLIMIT_STACK && setrlimit((__rlimit_resource_t)resource, &limit) != 0)
        return 98;
    const trireme_status status = resource == RLIMIT_STACK
                                      ? carry_out_with_room(arguments[0])
                                      : *(const trireme_status *)carry_out_apart(arguments[0]);
    if (is_wrong) return ANSWERED_WRONG;
    return status == TRIREME_OK ? ALL_WENT_WELL : GAVE_A_STATUS;
}

/* ---- trials ---- */

struct limit {
    const char *name;
    int resource;
    bool as_nobody;         /* root has no such limit */
    bool spares_sanitizers; /* whose own needs it does not cut */
    bool hurts;             /* its smallest value, some scenario */
    rlim_t values[24];      /* the last one is plenty; 0 after the first ends them */
};

#define K 1024ull
#define M (K * K)
/* A thread without a size of its own has as much as the first one may have, and dies of these. A
 * sanitizer's own beginning needs more. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SMALLEST_STACKS
#else
#define SMALLEST_STACKS 24 * K, 28 * K, 32 * K,
#endif
static const struct limit limits[] = {
    {"FSIZE",
     RLIMIT_FSIZE,
     false,
     true,
     true,
     {0, 1, 100, 4095, 4096, 10000, 65536, 200000, 300000, M, 1024 * M}},
    {"STACK",
     RLIMIT_STACK,
     false,
     false,
     false,
     {SMALLEST_STACKS 64 * K, 80 * K, 96 * K, 128 * K, 160 * K, 256 * K, 512 * K, M, 8 * M}},
    {"NOFILE", RLIMIT_NOFILE, false, true, true, {3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13,
                                                  14, 15, 16, 18, 20, 22, 24, 28, 32, 48, 256}},
    {"NPROC", RLIMIT_NPROC, true, false, true, {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 500}},
    {"AS",
     RLIMIT_AS,
     false,
     false,
     true,
     {0, 64 * K, 256 * K, M, 2 * M, 3 * M, 4 * M, 6 * M, 8 * M, 12 * M, 20 * M, 32 * M, 64 * M,
      1024 * M}},
    {"DATA",
     RLIMIT_DATA,
     false,
     false,
     true,
     {0, 64 * K, 256 * K, M, 2 * M, 3 * M, 4 * M, 6 * M, 8 * M, 12 * M, 20 * M, 32 * M, 64 * M,
      1024 * M}},
    {"MEMLOCK", RLIMIT_MEMLOCK, false, true, false, {0, 4096, 64 * K, 64 * M}},
    {"CORE", RLIMIT_CORE, false, true, false, {0, M}},
    {"CPU", RLIMIT_CPU, false, true, false, {60}},
    {"SIGPENDING", RLIMIT_SIGPENDING, false, true, false, {0, 100}},
    {"RTPRIO", RLIMIT_RTPRIO, false, true, false, {0, 1}},
    {"NICE", RLIMIT_NICE, false, true, false, {0, 1}},
    {"LOCKS", RLIMIT_LOCKS, false, true, false, {0, 100}},
    {"MSGQUEUE", RLIMIT_MSGQUEUE, false, true, false, {0, 100000}},
};
static const char *const scenarios[] = {"local", "host", "tcp", "store", "file"};

static pid_t start_trial(const struct limit *limit, const char *scenario, rlim_t value) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child != 0) return child;
    char resource[16], text[32];
    snprintf(resource, sizeof resource, "%d", limit->resource);
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    for (int number = 1; number < NSIG; ++number) signal(number, SIG_DFL);
    if (limit->as_nobody && (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)) _exit(1);
    const struct rlimit set = {value, value};
    /* The size of stacks is taken when a program begins. */
    if (limit->resource == RLIMIT_STACK) {
        /* The environment lies there, too. */
        const char *const path = getenv("LD_LIBRARY_PATH");
        char library[256];
        snprintf(library, sizeof library, "LD_LIBRARY_PATH=%s", path == NULL ? "" : path);
        char *const environment[] = {library, NULL};
        if (setrlimit(RLIMIT_STACK, &set) != 0) _exit(1);
        execle("/proc/self/exe", "faults_test_limits", "trial", scenario, resource, text,
               (char *)NULL, environment);
        _exit(127);
    }
    execl("/proc/self/exe", "faults_test_limits", "trial", scenario, resource, text, (char *)NULL);
    _exit(127);
}

/* Its wait status; -1 if it hung. */
static int end_of_trial(pid_t child) {
    const uint64_t end = monotonic_ns() + HANG_NS;
    int wait_status = 0;
    while (waitpid(child, &wait_status, WNOHANG) == 0) {
        if (monotonic_ns() > end) {
            kill(child, SIGKILL);
            waitpid(child, &wait_status, 0);
            return -1;
        }
        sleep_ms(1);
    }
    return wait_status;
}

struct counts {
    int trials, well, status, not_started;
};

static void judge(const struct limit *limit, const char *scenario, rlim_t value, bool plenty,
                  int wait_status, struct counts *counts) {
    char what[96];
    snprintf(what, sizeof what, "%s with RLIMIT_%s at %llu", scenario, limit->name,
             (unsigned long long)value);
    if (wait_status == -1) fail_msg("%s hangs", what);
    if (WIFSIGNALED(wait_status)) fail_msg("%s: ended by signal %d", what, WTERMSIG(wait_status));
    const int code = WEXITSTATUS(wait_status);
    ++counts->trials;
    switch (code) {
        case ALL_WENT_WELL: ++counts->well; break;
        case GAVE_A_STATUS:
            if (plenty) fail_msg("%s gives a status", what);
            ++counts->status;
            break;
        case 127: ++counts->not_started; break;
        default: fail_msg("%s: exit code %d", what, code);
    }
}

static void try_limit(const struct limit *limit, struct counts *counts) {
    const int status_before = counts->status;
    size_t count = 1;
    while (count < COUNT_OF(limit->values) && limit->values[count] != 0) ++count;
    pid_t children[COUNT_OF(limit->values)][COUNT_OF(scenarios)] = {{0}};
    int ends[COUNT_OF(limit->values)][COUNT_OF(scenarios)];
    for (size_t first = 0; first < count; first += AT_ONCE) {
        const size_t last = first + AT_ONCE < count ? first + AT_ONCE : count;
        for (size_t i = first; i < last; ++i) {
            if (is_quick() && i % 3 != 0 && i + 1 < count) continue;
            for (size_t s = 0; s < COUNT_OF(scenarios); ++s) {
                children[i][s] = start_trial(limit, scenarios[s], limit->values[i]);
                assert_true(children[i][s] > 0);
            }
        }
        for (size_t i = first; i < last; ++i) {
            for (size_t s = 0; s < COUNT_OF(scenarios); ++s) {
                if (children[i][s] > 0) ends[i][s] = end_of_trial(children[i][s]);
            }
        }
    }
    for (size_t i = 0; i < count; ++i) {
        for (size_t s = 0; s < COUNT_OF(scenarios); ++s) {
            if (children[i][s] == 0) continue;
            judge(limit, scenarios[s], limit->values[i], i + 1 == count, ends[i][s], counts);
        }
    }
    if (limit->hurts) assert_true(counts->status > status_before);
}

static void every_limit_is_a_status_and_no_death(void **state) {
    (void)state;
    struct counts counts = {0, 0, 0, 0};
    int skipped = 0;
#if defined(__SANITIZE_THREAD__)
    const bool sanitized = true;
#else
    const bool sanitized = false;
#endif
    for (size_t i = 0; i < COUNT_OF(limits); ++i) {
        const bool possible =
            (!limits[i].as_nobody || geteuid() == 0) && (!sanitized || limits[i].spares_sanitizers);
        skipped += !possible;
        if (possible) try_limit(&limits[i], &counts);
    }
    print_message(
        "%d trials: %d went well, %d gave a status, %d could not be started; %d limits "
        "skipped\n",
        counts.trials, counts.well, counts.status, counts.not_started, skipped);
    assert_true(counts.trials >= (is_quick() ? 60 : 300));
    assert_true(counts.not_started * 10 < counts.trials);
}

/* ---- out of descriptors ---- */

static void take_all_descriptors(void) {
    const struct rlimit few = {64, 64};
    if (setrlimit(RLIMIT_NOFILE, &few) != 0) _exit(95);
    while (dup(0) >= 0) {
    }
    if (errno != EMFILE) _exit(94);
}

/* Rank 1 gets a buffer of rank 0 handed over, and has no number left for it. */
static void have_none_left_for_a_buffer(int rank, void *context, struct outcome *outcome) {
    trireme_communicator *const communicator = join_process(rank, 2, context, PATIENT_NS);
    trireme_buffer *buffer = NULL;
    static float own[70000];
    void *data = own;
    if (trireme_barrier(communicator, NULL) != TRIREME_OK) _exit(96);
    if (rank == 1) take_all_descriptors();
    if (trireme_barrier(communicator, NULL) != TRIREME_OK) _exit(97);
    if (rank == 0 && (trireme_buffer_alloc(communicator, sizeof own, &buffer) != TRIREME_OK ||
                      trireme_buffer_get_data(buffer, &data) != TRIREME_OK)) {
        _exit(98);
    }
    /* Operations that need no memory of the peer may succeed before the failure has arrived. */
    do {
        keep_error(outcome, trireme_all_reduce(communicator, data, data, 70000, TRIREME_DTYPE_F32,
                                               TRIREME_REDUCTION_SUM, NULL));
    } while (outcome->status == TRIREME_OK && ++outcome->rounds < 10000);
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(communicator);
}

static void a_receiver_without_descriptors_blames_itself(void **state) {
    (void)state;
    for (int trial = 0; trial < (is_quick() ? 2 : 10); ++trial) {
        struct processes processes;
        char rendezvous[96];
        unique_host_rendezvous(rendezvous, sizeof rendezvous);
        start_processes(&processes, 2, have_none_left_for_a_buffer, rendezvous);
        wait_processes(&processes);
        for (int rank = 0; rank < 2; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            assert_int_equal(o->exit_code, 0);
            if (o->status != TRIREME_ERROR_SYSTEM || !blames_only(&o->info, 1)) {
                fail_msg("rank %d: %s", rank, o->message);
            }
            assert_non_null(strstr(o->message, "Too many open files"));
        }
        free_processes(&processes);
    }
}

struct callers {
    char rendezvous[96];
    int ready[4];
};

/* Rank 0 accepts no caller: so rank 1, which calls, must not be the missing one. */
static void have_none_left_for_a_caller(int rank, void *context, struct outcome *outcome) {
    const struct callers *const callers = context;
    const int *const ready = callers->ready;
    char byte = 0;
    if (rank == 1 && read(ready[0], &byte, 1) != 1) _exit(95);
    trireme_communicator *const communicator =
        join_process(rank, 2, callers->rendezvous, PATIENT_NS);
    if (rank == 0) {
        take_all_descriptors();
        if (write(ready[1], &byte, 1) != 1) _exit(96);
        /* Until rank 1 has called; then the reason is known. */
        do {
            keep_error(outcome, trireme_communicator_wait_ready(communicator, SECOND / 10));
        } while (outcome->status == TRIREME_ERROR_TIMEOUT && ++outcome->rounds < 400);
        if (write(ready[3], &byte, 1) != 1) _exit(97);
    } else if (read(ready[2], &byte, 1) != 1) {
        _exit(98);
    }
    trireme_communicator_destroy(communicator);
}

static void a_rank_that_cannot_take_in_its_peers_says_why(void **state) {
    (void)state;
    setenv("TRIREME_TOKEN", "the token of the limits", 1);
    for (int network = 0; network < 2; ++network) {
        struct processes processes;
        struct callers callers;
        if (network)
            unique_meeting(callers.rendezvous, sizeof callers.rendezvous);
        else
            unique_host_rendezvous(callers.rendezvous, sizeof callers.rendezvous);
        assert_int_equal(pipe2(callers.ready, O_CLOEXEC), 0);
        assert_int_equal(pipe2(callers.ready + 2, O_CLOEXEC), 0);
        start_processes(&processes, 2, have_none_left_for_a_caller, &callers);
        wait_processes(&processes);
        for (int i = 0; i < 4; ++i) close(callers.ready[i]);
        const struct outcome *const o = &processes.outcomes[0];
        assert_int_equal(o->exit_code, 0);
        if (o->status != TRIREME_ERROR_SYSTEM) {
            fail_msg("%s: %s", callers.rendezvous, o->message);
        }
        assert_int_equal(o->info.system_error, EMFILE);
        assert_true(blames_only(&o->info, 0));
        assert_non_null(strstr(o->message, "rank 0 cannot meet rank 1"));
        assert_int_equal(processes.outcomes[1].exit_code, 0);
        free_processes(&processes);
    }
    unsetenv("TRIREME_TOKEN");
}

int main(int count, char **arguments) {
    if (count == 5 && strcmp(arguments[1], "trial") == 0) return be_trial(arguments + 2);
#if defined(__SANITIZE_ADDRESS__)
    printf(
        "skipped: UBSan looks at memory through a pipe, and here are no descriptors left for one\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_limit_is_a_status_and_no_death),
        cmocka_unit_test(a_receiver_without_descriptors_blames_itself),
        cmocka_unit_test(a_rank_that_cannot_take_in_its_peers_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
