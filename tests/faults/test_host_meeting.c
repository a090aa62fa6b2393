/* Who may meet at host://NAME: processes with the same token, and nobody else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
    /* Who has the right token waits for a rank that may still come: it hears of no failure. */
    do {
        keep_error(outcome, trireme_communicator_wait_ready(communicator,
                                                            waits ? SHORT_NS : PATIENT_NS));
    } while (waits && outcome->status == TRIREME_ERROR_TIMEOUT &&
             atomic_load(meeting->heard) < meeting->told);
    if (!waits) atomic_fetch_add(meeting->heard, 1);
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = waits ? SHORT_NS : PATIENT_NS;
    float value = (float)(rank + 1);
    outcome->later = trireme_all_reduce(communicator, &value, &value, 1, TRIREME_DTYPE_F32,
                                        TRIREME_SUM, &options);
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
                if (outcome->status != (hears ? TRIREME_ERROR_AUTHENTICATION : TRIREME_ERROR_TIMEOUT)) {
                    fail_msg("set %zu: rank %d of %d: %s", set, rank, world_size, outcome->message);
                }
                assert_non_null(strstr(outcome->message, hears ? "another token than rank 0" : "another token)"));
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
    static const char *const sets[][3] = {
        {TOKEN_A, TOKEN_A, TOKEN_A}, {NULL, NULL, NULL}, {"file", TOKEN_A, "file"}, {"x", "x", "x"}};
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

/* The parent has used the library then, so this test comes last. */
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_with_different_tokens_never_meet),
        cmocka_unit_test(the_same_token_meets_wherever_it_comes_from),
        cmocka_unit_test(a_token_that_others_may_read_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
