/*
 * tcp://ADDRESS:PORT: groups whose ranks reach each other by sockets. The tests of collectives and
 * models run over the network, too, and check results; this one checks joining, refusals, groups
 * made from groups, and that nothing stays behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "own_process.h"
#include "processes.h"
#include "ranks.h"

#define TOKEN "the token of these tests"

static trireme_status
create(int rank, int world_size, const char *rendezvous, trireme_communicator **out) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = world_size;
    options.rendezvous = rendezvous;
    options.timeout_ns = LONG_NS;
    options.backend = network_backend();
    return trireme_communicator_create(&options, out);
}

static trireme_communicator *created(int rank, int world_size, const char *rendezvous) {
    trireme_communicator *out = NULL;
    if (create(rank, world_size, rendezvous, &out) != TRIREME_OK) {
        fail_msg("rank %d: %s", rank, trireme_last_error());
    }
    return out;
}

static int expect_sum(struct verdict *verdict, trireme_communicator *communicator, int world_size) {
    int64_t value[3] = {1, 2, 3};
    return EXPECT_STATUS(verdict, TRIREME_OK,
                         trireme_all_reduce(communicator, value, value, 3, TRIREME_DTYPE_I64,
                                            TRIREME_REDUCTION_SUM, NULL)) &&
           EXPECT(verdict, value[0] == world_size && value[2] == 3 * world_size);
}

/* ---- groups ---- */

struct job {
    int world_size;
    char rendezvous[96];
    struct verdict verdicts[8];
};

static void join_and_sum(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *communicator = NULL;
    if (!EXPECT_STATUS(verdict, TRIREME_OK,
                       create(rank, job->world_size, job->rendezvous, &communicator))) {
        return;
    }
    expect_sum(verdict, communicator, job->world_size);
    trireme_communicator_destroy(communicator);
}

static void one_name_serves_many_groups_one_after_the_other(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 5, 2, 4};
    struct job job = {0};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; ++i) {
        job.world_size = worlds[i];
        run_threads(job.world_size, join_and_sum, &job);
        assert_verdicts(job.verdicts, 8);
    }
}

static void work_in_children(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    const int n = job->world_size;
    trireme_communicator *parent = NULL;
    trireme_communicator *half = NULL;
    trireme_communicator *copy = NULL;
    trireme_communicator *deep = NULL;
    if (!EXPECT_STATUS(verdict, TRIREME_OK, create(rank, n, job->rendezvous, &parent))) return;
    /* The server of the meeting is not always rank 0 of a child. */
    if (EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_communicator_split(parent, rank % 2, -rank, NULL, &half))) {
        expect_sum(verdict, half, rank % 2 == 0 ? (n + 1) / 2 : n / 2);
        if (EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_duplicate(half, NULL, &deep))) {
            expect_sum(verdict, deep, rank % 2 == 0 ? (n + 1) / 2 : n / 2);
        }
    }
    if (EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_duplicate(parent, NULL, &copy))) {
        expect_sum(verdict, copy, n);
    }
    trireme_communicator_destroy(parent);
    if (copy != NULL) expect_sum(verdict, copy, n); /* it lives without its parent's handle */
    trireme_communicator_destroy(copy);
    trireme_communicator_destroy(half);
    trireme_communicator_destroy(deep);
}

static void groups_make_groups(void **state) {
    (void)state;
    for (int n = 2; n <= 5; ++n) {
        struct job job = {.world_size = n};
        unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
        strcat(job.rendezvous, "?interface=lo");
        run_threads(n, work_in_children, &job);
        assert_verdicts(job.verdicts, 8);
    }
}

static void process_main(int rank, void *context, struct outcome *outcome) {
    struct job *const job = context;
    work_in_children(rank, job);
    snprintf(outcome->text, sizeof outcome->text, "%.255s", job->verdicts[rank].text);
}

static void ranks_are_processes(void **state) {
    (void)state;
    struct job job = {.world_size = 4};
    struct processes processes;
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    start_processes(&processes, job.world_size, process_main, &job);
    wait_processes(&processes);
    for (int rank = 0; rank < job.world_size; ++rank) {
        const struct outcome *const outcome = &processes.outcomes[rank];
        if (outcome->text[0] != 0) fail_msg("rank %d: %s", rank, outcome->text);
        assert_int_equal(outcome->exit_code, 0);
    }
    free_processes(&processes);
}

static void it_says_what_it_is(void **state) {
    (void)state;
    char rendezvous[96];
    char text[64];
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const communicator = created(0, 1, rendezvous);
    assert_int_equal(trireme_communicator_wait_ready(communicator, LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_communicator_get_backend(communicator, text, sizeof text, NULL),
                     TRIREME_OK);
    assert_string_equal(text,
                        network_is_memory() ? "local (processes, met by tcp)" : "frames (tcp)");
    trireme_communicator_destroy(communicator);
}

/* ---- nothing stays ---- */

static void groups_leave_no_descriptors_and_no_threads(void **state) {
    (void)state;
    const int64_t descriptors = count_descriptors();
    const int64_t threads = count_own_threads();
    struct job job = {.world_size = 3};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    for (int i = 0; i < 5; ++i) run_threads(job.world_size, join_and_sum, &job);
    assert_verdicts(job.verdicts, 8);
    /* One whose peers never come, too. */
    trireme_communicator_destroy(created(1, 2, job.rendezvous));
    trireme_communicator_destroy(created(0, 2, job.rendezvous));
    /* They go in the background; how soon depends on the machine. */
    const uint64_t end = monotonic_ns() + HANG_NS;
    while ((count_descriptors() > descriptors || count_own_threads() > threads) &&
           monotonic_ns() < end) {
        sleep_ms(20);
    }
    assert_true(count_descriptors() <= descriptors);
    assert_true(count_own_threads() <= threads);
}

/* ---- refusals ---- */

static void expect_refused(const char *rendezvous, trireme_status status, const char *words) {
    trireme_communicator *communicator = (trireme_communicator *)&communicator;
    trireme_communicator *const before = communicator;
    const trireme_status answer = create(0, 1, rendezvous, &communicator);
    if (answer != status || strstr(trireme_last_error(), words) == NULL) {
        fail_msg("\"%s\": %s: %s", rendezvous, trireme_status_name(answer), trireme_last_error());
    }
    assert_ptr_equal(communicator, before);
}

static void places_that_are_none_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *rendezvous;
        const char *words;
    } wrong[] = {
        {"tcp://", "no name"},
        {"tcp://127.0.0.1", "ADDRESS:PORT"},
        {"tcp://:29500", "ADDRESS:PORT"},
        {"tcp://127.0.0.1:", "port"},
        {"tcp://127.0.0.1:0", "port"},
        {"tcp://127.0.0.1:65536", "port"},
        {"tcp://127.0.0.1:29500x", "port"},
        {"tcp://::1:29500", "brackets"},
        {"tcp://0.0.0.0:29500", "every address"},
        {"tcp://[::]:29500", "every address"},
        {"tcp://no-such-host.invalid:29500", "no-such-host.invalid"},
        {"tcp://127.0.0.1:29500?interface=", "interface="},
        {"tcp://127.0.0.1:29500?interface=no-such-one", "no interface \"no-such-one\""},
        {"tcp://127.0.0.1:29500?interface=0.0.0.0", "every address"},
        {"tcp://127.0.0.1:29500?interface=lo,no-such-one", "no interface \"no-such-one\""},
        {"tcp://127.0.0.1:29500?interface=127.0.0.2,0.0.0.0", "every address"},
        {"tcp://127.0.0.1:29500?interface=127.0.0.2,lo,127.0.0.2", "\"127.0.0.2\" twice"},
        {"tcp://127.0.0.1:29500?interface=lo,127.0.0.1", "\"lo\" and \"127.0.0.1\" have one"},
        {"tcp://127.0.0.1:29500?interface=lo,,127.0.0.2", "no letters"},
        {"tcp://127.0.0.1:29500?interface=lo,", "no letters"},
        {"tcp://127.0.0.1:29500?interface=a,b,c,d,e,f,g,h,i", "9 interfaces, above the 8"},
        {"tcp://127.0.0.1:29500?silence_ms=999", "silence_ms"},
        {"tcp://127.0.0.1:29500?silence_ms=1e4", "silence_ms"},
        {"tcp://127.0.0.1:29500?token=secret", "is none of"},
        {"tcp://127.0.0.1:29500/0123456789012345678901234567890123456789012345678901234567890123",
         "63 bytes"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        expect_refused(wrong[i].rendezvous, TRIREME_ERROR_INVALID_ARGUMENT, wrong[i].words);
    }
    /* The address belongs to no host here: the rank cannot be reached at it. */
    expect_refused("tcp://127.0.0.1:29500?interface=192.0.2.1", TRIREME_ERROR_SYSTEM, "192.0.2.1");
}

static void nobody_joins_without_a_token(void **state) {
    (void)state;
    const char *const place = "tcp://127.0.0.1:29500/tokens";
    char path[] = "/tmp/test-token-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    unsetenv("TRIREME_TOKEN");
    expect_refused(place, TRIREME_ERROR_AUTHENTICATION, "TRIREME_TOKEN_FILE");
    setenv("TRIREME_TOKEN", "15 bytes of it.", 1);
    expect_refused(place, TRIREME_ERROR_AUTHENTICATION, "15 bytes");

    setenv("TRIREME_TOKEN", TOKEN, 1);
    setenv("TRIREME_TOKEN_FILE", path, 1); /* this variable counts */
    expect_refused(place, TRIREME_ERROR_AUTHENTICATION, "0 bytes");
    assert_int_equal(write(file, TOKEN "\n", sizeof TOKEN), sizeof TOKEN);
    assert_int_equal(fchmod(file, 0640), 0);
    expect_refused(place, TRIREME_ERROR_AUTHENTICATION, "mode");
    assert_int_equal(fchmod(file, 0400), 0);
    char rendezvous[96];
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const from_file = created(0, 2, rendezvous);
    unsetenv("TRIREME_TOKEN_FILE");
    trireme_communicator *const from_variable = created(1, 2, rendezvous);
    assert_int_equal(trireme_communicator_wait_ready(from_file, LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_communicator_wait_ready(from_variable, LONG_NS), TRIREME_OK);
    trireme_communicator_destroy(from_file);
    trireme_communicator_destroy(from_variable);

    char link[64];
    snprintf(link, sizeof link, "%s.link", path);
    assert_int_equal(symlink(path, link), 0);
    setenv("TRIREME_TOKEN_FILE", link, 1);
    /* Kubernetes shows its secrets like this. The file behind the link counts. */
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const from_link = created(0, 2, rendezvous);
    unsetenv("TRIREME_TOKEN_FILE");
    trireme_communicator *const other = created(1, 2, rendezvous);
    assert_int_equal(trireme_communicator_wait_ready(from_link, LONG_NS), TRIREME_OK);
    trireme_communicator_destroy(from_link);
    trireme_communicator_destroy(other);
    setenv("TRIREME_TOKEN_FILE", link, 1);
    assert_int_equal(fchmod(file, 0640), 0);
    expect_refused(place, TRIREME_ERROR_AUTHENTICATION, "mode");
    assert_int_equal(fchmod(file, 0400), 0);
    if (geteuid() == 0) {
        assert_int_equal(fchown(file, 65534, 65534), 0);
        expect_refused(place, TRIREME_ERROR_AUTHENTICATION, "belongs to user 65534");
    } else {
        print_message("1 skipped: only root gives a file to another user\n");
    }
    setenv("TRIREME_TOKEN_FILE", "/tmp", 1);
    expect_refused(place, TRIREME_ERROR_AUTHENTICATION, "no regular file");
    unsetenv("TRIREME_TOKEN_FILE");
    unlink(link);
    unlink(path);
    close(file);
}

/* Connections of this address whose ends ask the other one whether it lives; *all: of all. */
static int asking_ends(const char *rendezvous, int *all) {
    unsigned address[4], port = 0;
    char line[300];
    int asking = 0;
    *all = 0;
    assert_int_equal(sscanf(rendezvous, "tcp://%u.%u.%u.%u:%u", &address[0], &address[1],
                            &address[2], &address[3], &port),
                     5);
    /* Other programs use the port at other addresses. The kernel prints the bytes as a number. */
    const unsigned own = address[0] | address[1] << 8 | address[2] << 16 | address[3] << 24;
    FILE *const file = fopen("/proc/net/tcp", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned local = 0, local_port = 0, remote = 0, remote_port = 0, state = 0, timer = 0;
        if (sscanf(line, " %*d: %8X:%X %8X:%X %X %*X:%*X %X:", &local, &local_port, &remote,
                   &remote_port, &state, &timer) != 6) {
            continue;
        }
        const bool ends_here = local == own && local_port == port;
        if ((!ends_here && (remote != own || remote_port != port)) || state != 1) continue;
        ++*all;
        asking += timer == 2; /* the kernel's timer of keep-alive */
    }
    fclose(file);
    return asking;
}

/* A host that vanishes while it waits for the others would else keep its rank for ever. */
static void who_waits_at_the_meeting_is_asked_whether_it_lives(void **state) {
    (void)state;
    char rendezvous[96];
    unique_meeting(rendezvous, sizeof rendezvous);
    trireme_communicator *const first = created(0, 3, rendezvous);
    trireme_communicator *const second = created(1, 3, rendezvous);
    int all = 0, asking = 0;
    const uint64_t end = monotonic_ns() + LONG_NS / 10;
    /* The kernel may print a line twice when connections come or go elsewhere. */
    while ((asking = asking_ends(rendezvous, &all)) != 4 && monotonic_ns() < end) sleep_ms(5);
    assert_int_equal(asking, 4);
    trireme_communicator_destroy(first);
    trireme_communicator_destroy(second);
}

static void another_token_does_not_get_in(void **state) {
    (void)state;
    char rendezvous[96];
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const inside = created(0, 2, rendezvous);
    setenv("TRIREME_TOKEN", "the token of somebody else", 1);
    trireme_communicator *const outside = created(1, 2, rendezvous);
    setenv("TRIREME_TOKEN", TOKEN, 1);
    assert_int_equal(trireme_communicator_wait_ready(outside, LONG_NS),
                     TRIREME_ERROR_AUTHENTICATION);
    assert_non_null(strstr(trireme_last_error(), "does not know the token"));
    assert_int_equal(trireme_barrier(outside, NULL), TRIREME_ERROR_AUTHENTICATION);
    assert_int_equal(trireme_communicator_wait_ready(inside, 1), TRIREME_ERROR_TIMEOUT);
    trireme_communicator_destroy(outside);
    trireme_communicator *const right = created(1, 2, rendezvous);
    assert_int_equal(trireme_communicator_wait_ready(inside, LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_communicator_wait_ready(right, LONG_NS), TRIREME_OK);
    trireme_communicator_destroy(inside);
    trireme_communicator_destroy(right);
}

static void the_second_who_claims_a_rank_hears_of_the_first(void **state) {
    (void)state;
    char rendezvous[96];
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const zero = created(0, 3, rendezvous);
    trireme_communicator *const claims[2] = {created(1, 3, rendezvous), created(1, 3, rendezvous)};
    trireme_status statuses[2] = {TRIREME_ERROR_TIMEOUT, TRIREME_ERROR_TIMEOUT};
    int second = -1;
    for (int i = 0; second < 0; i = 1 - i) {
        statuses[i] = trireme_communicator_wait_ready(claims[i], 1000 * 1000);
        if (statuses[i] != TRIREME_ERROR_TIMEOUT) second = i;
    }
    assert_int_equal(statuses[second], TRIREME_ERROR_INVALID_STATE);
    assert_non_null(strstr(trireme_last_error(), "two claim to be rank 1"));
    /* The first is in. */
    trireme_communicator *const two = created(2, 3, rendezvous);
    assert_int_equal(trireme_communicator_wait_ready(claims[1 - second], LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_communicator_wait_ready(zero, LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_communicator_wait_ready(two, LONG_NS), TRIREME_OK);
    trireme_communicator_destroy(zero);
    trireme_communicator_destroy(claims[0]);
    trireme_communicator_destroy(claims[1]);
    trireme_communicator_destroy(two);
}

static void ranks_of_different_world_sizes_all_hear_of_it(void **state) {
    (void)state;
    char rendezvous[96];
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const zero = created(0, 3, rendezvous);
    trireme_communicator *const one = created(1, 4, rendezvous);
    assert_int_equal(trireme_communicator_wait_ready(zero, LONG_NS), TRIREME_ERROR_MISMATCH);
    assert_non_null(strstr(trireme_last_error(), "names world size"));
    assert_int_equal(trireme_communicator_wait_ready(one, LONG_NS), TRIREME_ERROR_MISMATCH);
    assert_non_null(strstr(trireme_last_error(), "names world size"));
    trireme_communicator_destroy(zero);
    trireme_communicator_destroy(one);
}

static void one_rank_decides_alone(void **state) {
    (void)state;
    char rendezvous[96];
    uint64_t decided = 7;
    trireme_communicator *same = NULL;
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const communicator = created(0, 1, rendezvous);
    assert_int_equal(trireme_communicator_agree(communicator, &decided, LONG_NS), TRIREME_OK);
    assert_int_equal(decided, 7);
    assert_int_equal(trireme_communicator_shrink(communicator, NULL, &same), TRIREME_OK);
    struct verdict verdict = {{0}};
    expect_sum(&verdict, same, 1);
    assert_verdicts(&verdict, 1);
    trireme_communicator_destroy(same);
    trireme_communicator_destroy(communicator);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_are_processes), /* before this process has threads */
        cmocka_unit_test(one_name_serves_many_groups_one_after_the_other),
        cmocka_unit_test(groups_make_groups),
        cmocka_unit_test(it_says_what_it_is),
        cmocka_unit_test(groups_leave_no_descriptors_and_no_threads),
        cmocka_unit_test(places_that_are_none_are_refused),
        cmocka_unit_test(nobody_joins_without_a_token),
        cmocka_unit_test(who_waits_at_the_meeting_is_asked_whether_it_lives),
        cmocka_unit_test(another_token_does_not_get_in),
        cmocka_unit_test(the_second_who_claims_a_rank_hears_of_the_first),
        cmocka_unit_test(ranks_of_different_world_sizes_all_hear_of_it),
        cmocka_unit_test(one_rank_decides_alone),
    };
    setenv("TRIREME_TOKEN", TOKEN, 1);
    unsetenv("TRIREME_TOKEN_FILE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
