/* Ranks may meet at host://NAME if they are processes of one user with the same token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"

#define SHORT_NS (100ull * 1000 * 1000)
#define TOKEN_A "the first token of 28 bytes."
#define TOKEN_B "a second token of 28 bytes.."

struct meeting {
    char rendezvous[96];
    char file[64]; /* with TOKEN_A and the end of a line */
    int world_size;
    const char *tokens[MOST_PROCESSES]; /* of each rank; NULL: none; "file": it is in `file` */
    int told;                           /* ranks that are to hear that their token is another */
    _Atomic int *heard;                 /* of them, in memory that all share */
};

static void take_token(const struct meeting *meeting, int rank) {
    const char *const token = meeting->tokens[rank];
    unsetenv("TRIREME_TOKEN_FD");
    unsetenv("TRIREME_TOKEN_FILE");
    unsetenv("TRIREME_TOKEN");
    if (token == NULL) return;
    const bool in_file = strcmp(token, "file") == 0;
    setenv(in_file ? "TRIREME_TOKEN_FILE" : "TRIREME_TOKEN", in_file ? meeting->file : token, 1);
}

static void prepare(struct meeting *meeting, int world_size) {
    *meeting = (struct meeting){.world_size = world_size};
    meeting->heard = mmap(NULL, sizeof *meeting->heard, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(meeting->heard != MAP_FAILED);
    snprintf(meeting->file, sizeof meeting->file, "/tmp/token-XXXXXX");
    const int file = mkstemp(meeting->file);
    assert_true(file >= 0 && write(file, TOKEN_A "\n", sizeof TOKEN_A) == sizeof TOKEN_A);
    close(file);
}

static void tidy_up(struct meeting *meeting) {
    unlink(meeting->file);
    munmap(meeting->heard, sizeof *meeting->heard);
}

static bool same_token(const struct meeting *meeting, int rank, int other) {
    const char *values[2] = {meeting->tokens[rank], meeting->tokens[other]};
    for (int i = 0; i < 2; ++i) {
        if (values[i] == NULL) values[i] = "";
        if (strcmp(values[i], "file") == 0) values[i] = TOKEN_A;
    }
    return strcmp(values[0], values[1]) == 0;
}

/* The job's token is that of rank 0. */
static bool is_told(const struct meeting *meeting, int rank) {
    return !same_token(meeting, 0, rank);
}

static void meet_and_sum(int rank, void *context, struct outcome *outcome) {
    const struct meeting *const meeting = context;
    take_token(meeting, rank);
    trireme_communicator *const communicator =
        join_process(rank, meeting->world_size, meeting->rendezvous, PATIENT_NS);
    const bool waits = !is_told(meeting, rank) && meeting->told > 0;
    /* A rank with the right token waits for a rank that may still come: it gets no failure. */
    do {
        keep_error(outcome,
                   trireme_communicator_wait_ready(communicator, waits ? SHORT_NS : PATIENT_NS));
    } while (waits && outcome->status == TRIREME_ERROR_TIMEOUT &&
             atomic_load(meeting->heard) < meeting->told);
    if (!waits) atomic_fetch_add(meeting->heard, 1);
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = waits ? SHORT_NS : PATIENT_NS;
    float value = (float)(rank + 1);
    outcome->later = trireme_all_reduce(communicator, &value, &value, 1, TRIREME_DTYPE_F32,
                                        TRIREME_REDUCTION_SUM, &options);
    outcome->numbers[0] = (int64_t)value;
    trireme_communicator_destroy(communicator);
}

static void processes_with_different_tokens_never_meet(void **state) {
    (void)state;
    static const char *const sets[][3] = {
        {TOKEN_A, TOKEN_B, TOKEN_A}, {TOKEN_A, NULL, TOKEN_A}, {NULL, TOKEN_A, NULL},
        {"file", TOKEN_B, "file"},   {NULL, "file", TOKEN_B},  {TOKEN_A, TOKEN_A, TOKEN_B},
    };
    int told = 0;
    for (size_t set = 0; set < sizeof sets / sizeof *sets; ++set) {
        for (int world_size = 2; world_size <= 3; ++world_size) {
            struct meeting meeting;
            struct processes processes;
            prepare(&meeting, world_size);
            unique_host_rendezvous(meeting.rendezvous, sizeof meeting.rendezvous);
            memcpy(meeting.tokens, sets[set], sizeof sets[set]);
            for (int rank = 0; rank < world_size; ++rank) meeting.told += is_told(&meeting, rank);
            if (meeting.told == 0) continue; /* the next test's */
            start_processes(&processes, world_size, meet_and_sum, &meeting);
            wait_processes(&processes);
            tidy_up(&meeting);
            for (int rank = 0; rank < world_size; ++rank) {
                const struct outcome *const outcome = &processes.outcomes[rank];
                const bool hears = is_told(&meeting, rank);
                assert_int_equal(outcome->exit_code, 0);
                if (outcome->later == TRIREME_OK) {
                    fail_msg("set %zu: rank %d of %d has a sum of %lld with another token", set,
                             rank, world_size, (long long)outcome->numbers[0]);
                }
                if (outcome->status !=
                    (hears ? TRIREME_ERROR_AUTHENTICATION : TRIREME_ERROR_TIMEOUT)) {
                    fail_msg("set %zu: rank %d of %d: %s", set, rank, world_size, outcome->message);
                }
                assert_non_null(strstr(outcome->message,
                                       hears ? "another token than rank 0" : "another token)"));
                assert_null(strstr(outcome->message, "bytes."));
                told += hears;
            }
            free_processes(&processes);
        }
    }
    assert_int_equal(told, 12);
}

static void the_same_token_meets_wherever_it_comes_from(void **state) {
    (void)state;
    static const char *const sets[][3] = {{TOKEN_A, TOKEN_A, TOKEN_A},
                                          {NULL, NULL, NULL},
                                          {"file", TOKEN_A, "file"},
                                          {"x", "x", "x"}};
    for (size_t set = 0; set < sizeof sets / sizeof *sets; ++set) {
        struct meeting meeting;
        struct processes processes;
        prepare(&meeting, 3);
        unique_host_rendezvous(meeting.rendezvous, sizeof meeting.rendezvous);
        memcpy(meeting.tokens, sets[set], sizeof sets[set]);
        start_processes(&processes, 3, meet_and_sum, &meeting);
        wait_processes(&processes);
        tidy_up(&meeting);
        for (int rank = 0; rank < 3; ++rank) {
            const struct outcome *const outcome = &processes.outcomes[rank];
            if (outcome->status != TRIREME_OK) fail_msg("rank %d: %s", rank, outcome->message);
            assert_int_equal(outcome->numbers[0], 6);
        }
        free_processes(&processes);
    }
}

static void a_token_that_others_may_read_is_refused_at_once(void **state) {
    (void)state;
    struct meeting meeting;
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    trireme_communicator *communicator = NULL;
    prepare(&meeting, 1);
    assert_int_equal(chmod(meeting.file, 0644), 0);
    options.rendezvous = "host://tokens";
    options.world_size = 1;
    setenv("TRIREME_TOKEN_FILE", meeting.file, 1);
    assert_int_equal(trireme_communicator_create(&options, &communicator),
                     TRIREME_ERROR_AUTHENTICATION);
    assert_non_null(strstr(trireme_last_error(), meeting.file));
    /* Threads of one process have one environment: a token would tell them nothing. */
    options.rendezvous = "local://tokens";
    assert_int_equal(trireme_communicator_create(&options, &communicator), TRIREME_OK);
    trireme_communicator_destroy(communicator);
    unsetenv("TRIREME_TOKEN_FILE");
    tidy_up(&meeting);
}

/* ---- another user of the machine ---- */

#define OTHER_USER 65534
#define CALLERS 3
#define ROUNDS 300

static socklen_t place_of(const char *rendezvous, int rank, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "trireme/0/%s/%d",
                                rendezvous + strlen("host://"), rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static pid_t start_other_user(void (*function)(const char *), const char *rendezvous) {
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || setgid(OTHER_USER) != 0 || setuid(OTHER_USER) != 0) _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of the user ends it */
    function(rendezvous);
    _exit(0);
}

static void end_other_user(pid_t child) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Without end, at every place of the group. */
static void call_in_a_loop(const char *rendezvous) {
    for (int rank = 0;; rank = (rank + 1) % 2) {
        struct sockaddr_un address;
        const socklen_t length = place_of(rendezvous, rank, &address);
        const int caller = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
        if (caller < 0) _exit(2);
        (void)!connect(caller, (const struct sockaddr *)&address, length);
        close(caller);
    }
}

/* Each operation starts with memory that the peer has yet to be told of, by the thread that is
 * called. */
static void share_memory(int rank, void *context, struct outcome *outcome) {
    const struct meeting *const meeting = context;
    trireme_communicator *const communicator =
        join_process(rank, meeting->world_size, meeting->rendezvous, PATIENT_NS);
    for (int round = 0; round < ROUNDS; ++round) {
        trireme_buffer *buffer = NULL;
        void *data = NULL;
        const uint64_t count = 20000;
        if (trireme_buffer_alloc(communicator, count * 4, &buffer) != TRIREME_OK ||
            trireme_buffer_get_data(buffer, &data) != TRIREME_OK) {
            _exit(95);
        }
        float *const values = data;
        for (uint64_t i = 0; i < count; ++i) values[i] = (float)(rank + round);
        keep_error(outcome, trireme_all_reduce(communicator, values, values, count,
                                               TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, NULL));
        if (outcome->status != TRIREME_OK) break;
        outcome->wrong |= values[count - 1] != (float)(1 + 2 * round);
        ++outcome->rounds;
        trireme_buffer_destroy(buffer);
    }
    trireme_communicator_destroy(communicator);
}

static bool may_be_another_user(void) {
    if (geteuid() == 0) return true;
    print_message("1 skipped: only root becomes another user\n");
    return false;
}

static void another_user_who_calls_without_end_costs_time_only(void **state) {
    (void)state;
    if (!may_be_another_user()) skip();
    struct meeting meeting = {.world_size = 2};
    struct processes processes;
    pid_t callers[CALLERS];
    unique_host_rendezvous(meeting.rendezvous, sizeof meeting.rendezvous);
    for (int i = 0; i < CALLERS; ++i) {
        callers[i] = start_other_user(call_in_a_loop, meeting.rendezvous);
    }
    start_processes(&processes, 2, share_memory, &meeting);
    wait_processes(&processes);
    for (int i = 0; i < CALLERS; ++i) end_other_user(callers[i]);
    for (int rank = 0; rank < 2; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        if (o->rounds != ROUNDS) {
            fail_msg("rank %d: %d of %d rounds, %s%s", rank, o->rounds, ROUNDS,
                     o->hung ? "hung " : "", o->message);
        }
        assert_false(o->wrong);
        assert_int_equal(o->exit_code, 0);
    }
    free_processes(&processes);
}

static void hold_place_0(const char *rendezvous) {
    struct sockaddr_un address;
    const socklen_t length = place_of(rendezvous, 0, &address);
    const int holder = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (holder < 0 || bind(holder, (const struct sockaddr *)&address, length) != 0 ||
        listen(holder, 5) != 0) {
        _exit(2);
    }
    for (;;) pause();
}

static bool is_held(const char *rendezvous) {
    struct sockaddr_un address;
    const socklen_t length = place_of(rendezvous, 0, &address);
    const int caller = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
    const bool held = connect(caller, (const struct sockaddr *)&address, length) == 0;
    close(caller);
    return held;
}

/* It holds for rank 0, too, which greets no peer. */
static void join_a_place_of_another_user(int rank, void *context, struct outcome *outcome) {
    const struct meeting *const meeting = context;
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    trireme_communicator *communicator = NULL;
    options.rank = rank;
    options.world_size = 2;
    options.rendezvous = meeting->rendezvous;
    options.timeout_ns = PATIENT_NS;
    keep_error(outcome, trireme_communicator_create(&options, &communicator));
    if (outcome->status != TRIREME_OK) return;
    keep_error(outcome, trireme_communicator_wait_ready(communicator, PATIENT_NS));
    trireme_communicator_destroy(communicator);
}

static void a_place_that_another_user_holds_is_told_with_the_user(void **state) {
    (void)state;
    if (!may_be_another_user()) skip();
    struct meeting meeting = {.world_size = 2};
    struct processes processes;
    unique_host_rendezvous(meeting.rendezvous, sizeof meeting.rendezvous);
    const pid_t holder = start_other_user(hold_place_0, meeting.rendezvous);
    while (!is_held(meeting.rendezvous)) {
        assert_int_equal(waitpid(holder, NULL, WNOHANG), 0);
        sleep_ms(1);
    }
    start_processes(&processes, 2, join_a_place_of_another_user, &meeting);
    wait_processes(&processes);
    end_other_user(holder);
    for (int rank = 0; rank < 2; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        if (o->status != TRIREME_ERROR_AUTHENTICATION) fail_msg("rank %d: %s", rank, o->message);
        assert_non_null(strstr(o->message, "held by user 65534"));
    }
    free_processes(&processes);
}

/* The parent has used the library then, so this test comes last. */
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_with_different_tokens_never_meet),
        cmocka_unit_test(the_same_token_meets_wherever_it_comes_from),
        cmocka_unit_test(another_user_who_calls_without_end_costs_time_only),
        cmocka_unit_test(a_place_that_another_user_holds_is_told_with_the_user),
        cmocka_unit_test(a_token_that_others_may_read_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
