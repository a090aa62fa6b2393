/*
 * Unplanned ends: a thread that is cancelled inside a call; a program that exits or forks in one
 * thread while others wait; a communicator that is destroyed with requests under way; groups that
 * come and go; a library that is loaded and unloaded again and again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "own_process.h"
#include "processes.h"
#include "ranks.h"

static int trial_count;

enum way {
    COLLECTIVE,
    LARGE_COLLECTIVE,
    STARTED,
    ANY_OF_STARTED,
    RECEIVE,
    STARTED_RECEIVE,
    READY,
    AGREE,
    SPLIT,
    WAYS
};

#define LARGE 100001

/* ---- a thread is cancelled while it waits in a call ---- */

struct cancelled {
    enum way way;
    char rendezvous[64];
    trireme_communicator *groups[2];
    atomic_int entered;
    atomic_int answered; /* 1 + how often the call has come back */
    trireme_status status;
    bool right;
};

static trireme_status wait_in(const struct cancelled *c, int rank, bool *right) {
    trireme_communicator *const group = c->groups[rank];
    trireme_communicator *child = NULL;
    trireme_request *request = NULL;
    trireme_status status = TRIREME_OK;
    uint64_t flags = 6, index = 0;
    const uint64_t count = c->way == LARGE_COLLECTIVE ? LARGE : 3;
    int32_t *const data = calloc(count, sizeof *data);
    for (uint64_t i = 0; i < count; ++i) data[i] = rank + 1;
    switch (c->way) {
        case COLLECTIVE:
        case LARGE_COLLECTIVE:
            status = trireme_all_reduce(group, data, data, count, TRIREME_DTYPE_I32,
                                        TRIREME_REDUCTION_SUM, NULL);
            *right = data[count - 1] == 3;
            break;
        case STARTED:
        case ANY_OF_STARTED:
            status = trireme_all_reduce_start(group, data, data, count, TRIREME_DTYPE_I32,
                                              TRIREME_REDUCTION_SUM, NULL, &request);
            if (status == TRIREME_OK) {
                status = c->way == STARTED
                             ? trireme_request_wait(request, LONG_NS)
                             : trireme_request_wait_any((const trireme_request *const *)&request, 1,
                                                        LONG_NS, &index);
            }
            *right = data[count - 1] == 3;
            break;
        case RECEIVE:
        case STARTED_RECEIVE:
            if (rank == 1) {
                status = trireme_send(group, data, count, TRIREME_DTYPE_I32, 0, 1, NULL);
                *right = true;
                break;
            }
            if (c->way == RECEIVE) {
                status = trireme_receive(group, data, count, TRIREME_DTYPE_I32, 1, 1, NULL);
            } else {
                status = trireme_receive_start(group, data, count, TRIREME_DTYPE_I32, 1, 1, NULL,
                                               &request);
                if (status == TRIREME_OK) status = trireme_request_wait(request, LONG_NS);
            }
            *right = data[count - 1] == 2;
            break;
        case READY:
            status = trireme_communicator_wait_ready(group, LONG_NS);
            *right = true;
            break;
        case AGREE:
            status = trireme_communicator_agree(group, &flags, 0);
            *right = flags == 6;
            break;
        default:
            status = trireme_communicator_split(group, 0, 0, NULL, &child);
            *right = child != NULL;
            break;
    }
    trireme_request_destroy(request);
    trireme_communicator_destroy(child);
    free(data);
    return status;
}

static void *wait_and_be_cancelled(void *context) {
    struct cancelled *const c = context;
    bool right = false;
    atomic_store(&c->entered, 1);
    c->status = wait_in(c, 0, &right);
    c->right = right;
    atomic_store(&c->answered, 1);
    for (;;) pthread_testcancel();
    return NULL;
}

static void a_thread_that_is_cancelled_ends_after_its_call(void **state) {
    (void)state;
    for (enum way way = 0; way < WAYS; ++way) {
        for (int turn = 0; turn < (is_quick() ? 3 : 10); ++turn) {
            struct cancelled c = {.way = way};
            pthread_t thread;
            void *end = NULL;
            unique_rendezvous(c.rendezvous, sizeof c.rendezvous);
            c.groups[0] = join_rank(0, 2, c.rendezvous);
            if (way != READY) c.groups[1] = join_rank(1, 2, c.rendezvous);
            assert_int_equal(pthread_create(&thread, NULL, wait_and_be_cancelled, &c), 0);
            while (atomic_load(&c.entered) == 0) sleep_ms(1);
            /* Sometimes it is inside already, sometimes about to be; both must be right. */
            if (turn % 2 == 0) sleep_ms(3);
            assert_int_equal(pthread_cancel(thread), 0);
            if (turn % 3 == 0) sleep_ms(2);
            assert_int_equal(atomic_load(&c.answered), 0);
            if (way == READY) c.groups[1] = join_rank(1, 2, c.rendezvous);
            bool right = false;
            assert_int_equal(wait_in(&c, 1, &right), TRIREME_OK);
            assert_int_equal(pthread_join(thread, &end), 0);
            assert_true(end == PTHREAD_CANCELED);
            assert_int_equal(atomic_load(&c.answered), 1);
            assert_int_equal(c.status, TRIREME_OK);
            assert_true(right && c.right);
            trireme_communicator_destroy(c.groups[0]);
            trireme_communicator_destroy(c.groups[1]);
            ++trial_count;
        }
    }
}

/* ---- a thread that is cancelled lets go last of what its call worked on ---- */

struct last_holder {
    trireme_communicator *group;
    float *data;
    trireme_status status;
};

static void *work_and_let_go(void *context) {
    struct last_holder *const last = context;
    last->status = trireme_all_reduce(last->group, last->data, last->data, 5, TRIREME_DTYPE_F32,
                                      TRIREME_REDUCTION_SUM, NULL);
    for (;;) pthread_testcancel();
    return NULL;
}

static bool is_inside(trireme_communicator *group) {
    static char record[1 << 16];
    uint64_t length = 0;
    return trireme_communicator_get_flight_record(group, record, sizeof record, &length) ==
               TRIREME_OK &&
           strstr(record, "all_reduce") != NULL;
}

/* Rank 0 cancels a thread inside a call and destroys what the call works on: its buffer, or its
   communicator, too. Rank 1 comes when that is done, or never. */
static void cancel_the_last_holder(int rank, void *context, struct outcome *outcome) {
    const int turns = is_quick() ? 20 : 100;
    for (int turn = 0; turn < turns; ++turn) {
        const bool group_too = turn % 2 == 1;
        char name[96];
        snprintf(name, sizeof name, "%s-%d", (const char *)context, turn);
        struct last_holder last = {.group = join_process(rank, 2, name, PATIENT_NS)};
        trireme_buffer *buffer = NULL;
        void *data = NULL;
        if (trireme_buffer_alloc(last.group, 64, &buffer) != TRIREME_OK) _exit(91);
        if (trireme_buffer_get_data(buffer, &data) != TRIREME_OK) _exit(92);
        last.data = data;
        if (trireme_barrier(last.group, NULL) != TRIREME_OK) _exit(93);
        if (rank == 1) {
            char word = 0;
            const trireme_status told =
                trireme_receive(last.group, &word, 1, TRIREME_DTYPE_BYTES, 0, 1, NULL);
            if (told != (group_too ? TRIREME_ERROR_PEER_LOST : TRIREME_OK)) _exit(94);
            if (!group_too) {
                last.status = trireme_all_reduce(last.group, last.data, last.data, 5,
                                                 TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL);
            }
            if (last.status != TRIREME_OK) _exit(95);
            trireme_buffer_destroy(buffer);
        } else {
            pthread_t thread;
            void *end = NULL;
            const char word = 1;
            if (pthread_create(&thread, NULL, work_and_let_go, &last) != 0) _exit(96);
            const uint64_t latest = monotonic_ns() + PATIENT_NS;
            while (!is_inside(last.group)) {
                if (monotonic_ns() > latest) _exit(97);
                sleep_ms(1);
            }
            if (pthread_cancel(thread) != 0) _exit(98);
            trireme_buffer_destroy(buffer);
            if (group_too) {
                trireme_communicator_destroy(last.group);
            } else if (trireme_send(last.group, &word, 1, TRIREME_DTYPE_BYTES, 1, 1, NULL) !=
                       TRIREME_OK) {
                _exit(99);
            }
            if (pthread_join(thread, &end) != 0 || end != PTHREAD_CANCELED) _exit(100);
            if (last.status != (group_too ? TRIREME_ERROR_PEER_LOST : TRIREME_OK)) _exit(101);
        }
        trireme_communicator_destroy(last.group);
        ++outcome->rounds;
    }
}

static void a_thread_that_is_cancelled_may_let_go_last(void **state) {
    (void)state;
    struct processes processes;
    char rendezvous[64];
    unique_host_rendezvous(rendezvous, sizeof rendezvous);
    start_processes(&processes, 2, cancel_the_last_holder, rendezvous);
    wait_processes(&processes);
    for (int rank = 0; rank < 2; ++rank) {
        assert_false(processes.outcomes[rank].hung);
        assert_int_equal(processes.outcomes[rank].signal, 0);
        assert_int_equal(processes.outcomes[rank].exit_code, 0);
        assert_int_equal(processes.outcomes[rank].rounds, is_quick() ? 20 : 100);
    }
    trial_count += processes.outcomes[0].rounds;
    free_processes(&processes);
}

/* ---- a program exits ---- */

struct leaving {
    enum way way;
    char rendezvous[64];
};

static void *exit_here(void *unused) {
    (void)unused;
    sleep_ms(2);
    exit(7);
}

static void exit_with_calls_under_way(int rank, void *context, struct outcome *outcome) {
    const struct leaving *const leaving = context;
    struct cancelled c = {.way = leaving->way};
    c.groups[rank] = join_process(rank, 2, leaving->rendezvous, PATIENT_NS);
    if (trireme_barrier(c.groups[rank], NULL) != TRIREME_OK) _exit(96);
    static int32_t data[3];
    trireme_request *pending[2] = {NULL, NULL};
    if (rank == 0) {
        pthread_t thread;
        if (trireme_all_reduce_start(c.groups[0], data, data, 3, TRIREME_DTYPE_I32,
                                     TRIREME_REDUCTION_SUM, NULL, &pending[0]) != TRIREME_OK ||
            trireme_receive_start(c.groups[0], data, 3, TRIREME_DTYPE_I32, 1, 77, NULL,
                                  &pending[1]) != TRIREME_OK ||
            pthread_create(&thread, NULL, exit_here, NULL) != 0) {
            _exit(97);
        }
        bool right = false;
        (void)wait_in(&c, 0, &right); /* for ever: the other one never comes */
        for (;;) pause();
    }
    /* This rank sees its end, by a message that never comes. */
    keep_error(outcome, trireme_receive(c.groups[1], data, 3, TRIREME_DTYPE_I32, 0, 78, NULL));
    trireme_communicator_destroy(c.groups[1]);
}

static void a_program_that_exits_in_one_thread_ends_and_is_missed(void **state) {
    (void)state;
    static const enum way ways[] = {STARTED, RECEIVE, STARTED_RECEIVE, AGREE};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
        for (int turn = 0; turn < (is_quick() ? 2 : 10); ++turn) {
            struct leaving leaving = {.way = ways[i]};
            struct processes processes;
            unique_host_rendezvous(leaving.rendezvous, sizeof leaving.rendezvous);
            start_processes(&processes, 2, exit_with_calls_under_way, &leaving);
            wait_processes(&processes);
            assert_false(processes.outcomes[0].hung || processes.outcomes[1].hung);
            assert_int_equal(processes.outcomes[0].signal, 0);
            assert_int_equal(processes.outcomes[0].exit_code, 7);
            assert_int_equal(processes.outcomes[1].exit_code, 0);
            assert_int_equal(processes.outcomes[1].status, TRIREME_ERROR_PEER_LOST);
            assert_true(blames_only(&processes.outcomes[1].info, 0));
            free_processes(&processes);
            ++trial_count;
        }
    }
}

/* ---- a communicator goes while requests are under way ---- */

static void requests_of_a_communicator_that_goes_end_as_failures(void **state) {
    (void)state;
    enum { MOST = 3 };
    for (int turn = 0; turn < (is_quick() ? 5 : 50); ++turn) {
        char rendezvous[64];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        trireme_communicator *const group = join_rank(0, 2, rendezvous);
        trireme_communicator *const other = join_rank(1, 2, rendezvous);
        int32_t data[MOST][5] = {{0}};
        trireme_request *requests[MOST] = {NULL};
        assert_int_equal(trireme_all_reduce_start(group, data[0], data[0], 5, TRIREME_DTYPE_I32,
                                                  TRIREME_REDUCTION_SUM, NULL, &requests[0]),
                         TRIREME_OK);
        assert_int_equal(trireme_barrier_start(group, NULL, &requests[1]), TRIREME_OK);
        assert_int_equal(trireme_receive_start(group, data[2], 5, TRIREME_DTYPE_I32, 1, 3, NULL,
                                               &requests[2]),
                         TRIREME_OK);
        if (turn % 2 == 0) sleep_ms(1);
        trireme_communicator_destroy(group);
        for (int i = 0; i < MOST; ++i) {
            if (turn % 3 != 0) {
                assert_int_equal(trireme_request_wait(requests[i], LONG_NS),
                                 TRIREME_ERROR_PEER_LOST);
            }
            trireme_request_destroy(requests[i]);
            assert_int_equal(trireme_request_wait(requests[i], 0), TRIREME_ERROR_INVALID_HANDLE);
        }
        assert_int_equal(trireme_barrier(other, NULL), TRIREME_ERROR_PEER_LOST);
        trireme_communicator_destroy(other);
        ++trial_count;
    }
}

/* ---- a program forks while its threads wait ---- */

enum child { LEAVES_AT_ONCE, EXITS, BECOMES_ANOTHER, USES_THE_GROUP, MAKES_A_GROUP, CHILDREN };

static void be_child(enum child child, trireme_communicator *group) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    trireme_communicator *made = NULL;
    int32_t data[3] = {0};
    char rendezvous[64];
    switch (child) {
        case LEAVES_AT_ONCE: _exit(0);
        case EXITS:
            exit(0); /* handlers of the end of the program run, with all their other threads gone */
        case BECOMES_ANOTHER: execl("/bin/true", "true", (char *)NULL); _exit(127);
        case USES_THE_GROUP:
            for (int i = 0; i < 3; ++i) {
                if (trireme_all_reduce(group, data, data, 3, TRIREME_DTYPE_I32,
                                       TRIREME_REDUCTION_SUM,
                                       NULL) != TRIREME_ERROR_INVALID_HANDLE) {
                    _exit(11);
                }
            }
            trireme_communicator_destroy(group);
            _exit(0);
        default:
            snprintf(rendezvous, sizeof rendezvous, "local://child-%ld", (long)getpid());
            options.rendezvous = rendezvous;
            options.world_size = 1;
            if (trireme_communicator_create(&options, &made) != TRIREME_ERROR_INVALID_STATE) {
                _exit(12);
            }
            if (made != NULL || strstr(trireme_last_error(), "forked") == NULL) _exit(13);
            _exit(0);
    }
}

/* A child has the memory of threads that it does not have: nothing that a leak check could judge.
 */
static bool is_child;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
    return is_child;
}

static void fork_with_calls_under_way(int rank, void *context, struct outcome *outcome) {
    struct cancelled c = {.way = RECEIVE};
    const char *const rendezvous = context;
    c.groups[rank] = join_process(rank, 2, rendezvous, PATIENT_NS);
    if (trireme_barrier(c.groups[rank], NULL) != TRIREME_OK) _exit(96);
    bool right = true;
    for (int turn = 0; turn < CHILDREN * 2; ++turn) {
        if (rank == 1) {
            /* Comes when the children have gone. */
            if (trireme_barrier(c.groups[1], NULL) != TRIREME_OK) _exit(98);
            keep_error(outcome, wait_in(&c, 1, &right));
        } else {
            pthread_t thread;
            struct cancelled *const waiting = calloc(1, sizeof *waiting);
            *waiting = c;
            if (pthread_create(&thread, NULL, wait_and_be_cancelled, waiting) != 0) _exit(97);
            while (atomic_load(&waiting->entered) == 0) sleep_ms(1);
            const pid_t child = fork();
            is_child = child == 0;
            if (child == 0) be_child((enum child)(turn % CHILDREN), c.groups[0]);
            int wait_status = -1;
            if (child < 0 || waitpid(child, &wait_status, 0) != child) _exit(99);
            if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
                outcome->numbers[turn % CHILDREN] = wait_status;
            }
            if (trireme_barrier(c.groups[0], NULL) != TRIREME_OK) _exit(98);
            pthread_cancel(thread);
            pthread_join(thread, NULL);
            right = waiting->right;
            keep_error(outcome, waiting->status);
            free(waiting);
        }
        outcome->wrong |= !right;
        if (outcome->status != TRIREME_OK) break;
        ++outcome->rounds;
    }
    trireme_communicator_destroy(c.groups[rank]);
}

static void a_program_that_forks_while_its_threads_wait_goes_on(void **state) {
    (void)state;
    struct processes processes;
    char rendezvous[64];
    unique_host_rendezvous(rendezvous, sizeof rendezvous);
    start_processes(&processes, 2, fork_with_calls_under_way, rendezvous);
    wait_processes(&processes);
    for (int rank = 0; rank < 2; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        if (o->status != TRIREME_OK) print_error("%s\n", o->message);
        assert_false(o->hung);
        assert_int_equal(o->signal, 0);
        assert_int_equal(o->exit_code, 0);
        assert_int_equal(o->rounds, CHILDREN * 2);
        assert_false(o->wrong);
        for (int child = 0; child < CHILDREN; ++child) assert_int_equal(o->numbers[child], 0);
    }
    free_processes(&processes);
    trial_count += CHILDREN * 2;
}

/* ---- groups come and go ---- */

/* Where one of many groups lives: threads see it, processes would. */
static void live_briefly(const char *rendezvous, int turn) {
    trireme_communicator *groups[2];
    trireme_request *requests[2];
    int32_t data[2] = {turn, 1};
    for (int rank = 0; rank < 2; ++rank) groups[rank] = join_rank(rank, 2, rendezvous);
    if (turn % 4 != 0) {
        for (int rank = 0; rank < 2; ++rank) {
            assert_int_equal(trireme_all_reduce_start(groups[rank], &data[rank], &data[rank], 1,
                                                      TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM,
                                                      NULL, &requests[rank]),
                             TRIREME_OK);
        }
        for (int rank = 0; rank < 2; ++rank) {
            assert_int_equal(trireme_request_wait(requests[rank], LONG_NS), TRIREME_OK);
            trireme_request_destroy(requests[rank]);
            assert_int_equal(data[rank], turn + 1);
        }
    }
    trireme_communicator_destroy(groups[turn % 2]);
    trireme_communicator_destroy(groups[1 - turn % 2]);
}

static void groups_come_and_go_a_thousand_times(void **state) {
    (void)state;
    char rendezvous[64];
    remember_files();
    const char *const schemes[] = {"local", "host"};
    for (size_t scheme = 0; scheme < 2; ++scheme) {
        const int turns = is_quick() ? 60 : 500;
        int64_t descriptors = 0;
        snprintf(rendezvous, sizeof rendezvous, "%s://again-%ld", schemes[scheme], (long)getpid());
        for (int turn = 0; turn < turns; ++turn) {
            if (turn == 10) descriptors = count_descriptors();
            live_briefly(rendezvous, turn); /* under one name, again and again */
            ++trial_count;
        }
        /* A thread that is told to end may hold its own for a moment. */
        const uint64_t end = monotonic_ns() + PATIENT_NS;
        while (count_descriptors() > descriptors && monotonic_ns() < end) {
            sleep_ms(5);
        }
        assert_int_equal(count_descriptors(), descriptors);
    }
    assert_true(no_file_is_left());
}

/* ---- the library goes while its threads live ---- */

typedef trireme_status
create_function(const trireme_communicator_options *options, trireme_communicator **out);
typedef trireme_status
start_function(trireme_communicator *communicator, const trireme_operation_options *options,
               trireme_request **out);
typedef trireme_status wait_function(const trireme_request *request, uint64_t timeout_ns);
typedef void destroy_group_function(trireme_communicator *communicator);
typedef void destroy_request_function(trireme_request *request);

/* A file of its own is a library of its own: this program itself does not keep it loaded. */
static bool copy_library(const char *to) {
    Dl_info self;
    if (dladdr((void *)(uintptr_t)&trireme_version, &self) == 0) return false;
    FILE *const from = fopen(self.dli_fname, "rbe");
    FILE *const copy = fopen(to, "wbe");
    char block[65536];
    size_t bytes = 0;
    bool good = from != NULL && copy != NULL;
    while (good && (bytes = fread(block, 1, sizeof block, from)) > 0) {
        good = fwrite(block, 1, bytes, copy) == bytes;
    }
    if (from != NULL) good = ferror(from) == 0 && good;
    if (from != NULL) fclose(from);
    if (copy != NULL) good = fclose(copy) == 0 && good;
    return good;
}

static void load_and_unload(int rank, void *context, struct outcome *outcome) {
    (void)rank;
    const char *const path = context;
    const int turns = is_quick() ? 20 : 100;
    for (int turn = 0; turn < turns; ++turn) {
        void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) _exit(21);
        create_function *const create =
            (create_function *)(uintptr_t)dlsym(library, "trireme_communicator_create");
        start_function *const start =
            (start_function *)(uintptr_t)dlsym(library, "trireme_barrier_start");
        wait_function *const wait =
            (wait_function *)(uintptr_t)dlsym(library, "trireme_request_wait");
        destroy_group_function *const destroy =
            (destroy_group_function *)(uintptr_t)dlsym(library, "trireme_communicator_destroy");
        destroy_request_function *const forget =
            (destroy_request_function *)(uintptr_t)dlsym(library, "trireme_request_destroy");
        if (!create || !start || !wait || !destroy || !forget) _exit(22);
        if ((void *)(uintptr_t)create == (void *)(uintptr_t)&trireme_communicator_create) _exit(23);
        trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
        char rendezvous[64];
        snprintf(rendezvous, sizeof rendezvous, "local://unloaded-%d", turn);
        options.rendezvous = rendezvous;
        options.world_size = 2; /* the other one never comes: its thread waits */
        trireme_communicator *group = NULL;
        trireme_request *request = NULL;
        if (create(&options, &group) != TRIREME_OK) _exit(24);
        if (start(group, NULL, &request) != TRIREME_OK) _exit(25);
        if (dlclose(library) != 0) _exit(26);
        if (turn % 2 == 0) sleep_ms(1);
        if (turn % 10 == 9) continue; /* left as it is, until the program ends */
        destroy(group);
        if (wait(request, LONG_NS) != TRIREME_ERROR_PEER_LOST) _exit(27);
        forget(request);
        ++outcome->rounds;
    }
    exit(0);
}

static void a_library_may_be_unloaded_while_its_threads_live(void **state) {
    (void)state;
    struct processes processes;
    char folder[] = "/tmp/test-lifecycle-XXXXXX";
    char path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/copy.so", folder);
    const bool copied = copy_library(path);
    start_processes(&processes, copied ? 1 : 0, load_and_unload, path);
    wait_processes(&processes);
    unlink(path);
    rmdir(folder);
    assert_true(copied);
    assert_false(processes.outcomes[0].hung);
    assert_int_equal(processes.outcomes[0].signal, 0);
    assert_int_equal(processes.outcomes[0].exit_code, 0);
    assert_int_equal(processes.outcomes[0].rounds, is_quick() ? 18 : 90);
    free_processes(&processes);
    trial_count += is_quick() ? 20 : 100;
}

static int tell_count(void **state) {
    (void)state;
    printf("lifecycle: %d trials, 0 hangs, 0 violations\n", trial_count);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        /* These fork: their parent must not have used the library. */
        cmocka_unit_test(a_program_that_exits_in_one_thread_ends_and_is_missed),
        cmocka_unit_test(a_program_that_forks_while_its_threads_wait_goes_on),
        cmocka_unit_test(a_library_may_be_unloaded_while_its_threads_live),
        cmocka_unit_test(a_thread_that_is_cancelled_may_let_go_last),
        cmocka_unit_test(a_thread_that_is_cancelled_ends_after_its_call),
        cmocka_unit_test(requests_of_a_communicator_that_goes_end_as_failures),
        cmocka_unit_test(groups_come_and_go_a_thousand_times),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("lifecycle", tests, NULL, tell_count);
}
