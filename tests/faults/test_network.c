/*
 * tcp:// groups whose peers die, freeze or leave, and strangers who call at their ports. No rank
 * hangs, all name the right rank, and the program keeps its signals as they were.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "processes.h"
#include "ranks.h"

#define RANKS 3
#define VICTIM 1
#define LARGE 300001
#define PAINFUL 5 /* the operation in which it happens */

enum harm { KILLED, KILLED_INSIDE, STOPPED, LEFT };

struct job {
    enum harm harm;
    long delay_ns; /* KILLED_INSIDE: after the operation began, about */
    char rendezvous[96];
};

/* ---- peers ---- */

static trireme_communicator *join_network(int rank, int world_size, const char *rendezvous) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = world_size;
    char place[128];
    snprintf(place, sizeof place, "%s", rendezvous);
    add_host(place, sizeof place, rank);
    options.rendezvous = place;
    options.timeout_ns = PATIENT_NS;
    options.backend = network_backend();
    trireme_communicator *communicator = NULL;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, trireme_last_error());
        _exit(90);
    }
    return communicator;
}

static void *kill_later(void *context) {
    const struct timespec delay = {0, ((const struct job *)context)->delay_ns};
    nanosleep(&delay, NULL);
    raise(SIGKILL);
    return NULL;
}

/* numbers[0]: it has its failure, or its own end. */
static void sum_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    float *const data = malloc(LARGE * sizeof *data);
    if (data == NULL) _exit(92);
    trireme_communicator *const communicator = join_network(rank, RANKS, job->rendezvous);
    for (int round = 0; outcome->status == TRIREME_OK && !outcome->wrong; ++round) {
        if (rank == VICTIM && round == PAINFUL) {
            if (job->harm == LEFT) break;
            pthread_t killer;
            if (job->harm == KILLED_INSIDE) {
                if (pthread_create(&killer, NULL, kill_later, context) != 0) _exit(93);
            } else {
                raise(job->harm == KILLED ? SIGKILL : SIGSTOP);
            }
        }
        for (int i = 0; i < LARGE; ++i) data[i] = (float)(rank + 1);
        const trireme_status status =
            trireme_all_reduce(communicator, data, data, LARGE, TRIREME_DTYPE_F32,
                               TRIREME_REDUCTION_SUM, NULL);
        if (status != TRIREME_OK) {
            keep_error(outcome, status);
        } else {
            ++outcome->rounds;
            for (int i = 0; i < LARGE; ++i) outcome->wrong |= data[i] != 6.0f;
        }
    }
    if (outcome->status != TRIREME_OK) outcome->later = trireme_barrier(communicator, NULL);
    struct sigaction action;
    outcome->numbers[1] = sigaction(SIGPIPE, NULL, &action) == 0 && action.sa_handler == SIG_DFL;
    trireme_communicator_destroy(communicator);
    free(data);
    __atomic_store_n(&outcome->numbers[0], 1, __ATOMIC_SEQ_CST);
}

static void expect_survivor(const struct outcome *outcome, int rank, enum harm harm) {
    if (outcome->status != TRIREME_ERROR_PEER_LOST || outcome->later != TRIREME_ERROR_PEER_LOST ||
        !blames_only(&outcome->info, VICTIM) || outcome->wrong || outcome->exit_code != 0) {
        fail_msg("rank %d: %s, later %s, wrong %d, hung %d, exit %d, signal %d: %s", rank,
                 trireme_status_name(outcome->status), trireme_status_name(outcome->later),
                 outcome->wrong, outcome->hung, outcome->exit_code, outcome->signal,
                 outcome->message);
    }
    /* Bytes that the victim's system had not yet taken are gone with it. */
    assert_true(outcome->rounds >= PAINFUL - 1);
    if (harm != KILLED_INSIDE) assert_true(outcome->rounds <= PAINFUL);
    assert_true(outcome->numbers[1]); /* SIGPIPE would have ended it, and is as it was */
}

static bool survivors_are_done(const struct processes *processes) {
    for (int rank = 0; rank < RANKS; ++rank) {
        if (rank == VICTIM) continue;
        if (__atomic_load_n(&processes->outcomes[rank].numbers[0], __ATOMIC_SEQ_CST) == 0) {
            return false;
        }
    }
    return true;
}

static void harm_one(enum harm harm, long delay_ns) {
    struct job job = {.harm = harm, .delay_ns = delay_ns};
    struct processes processes;
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    strcat(job.rendezvous, "?silence_ms=3000");
    start_processes(&processes, RANKS, sum_until_it_fails, &job);
    if (harm == STOPPED) {
        assert_true(wait_stopped(&processes, VICTIM));
        const uint64_t end = monotonic_ns() + HANG_NS;
        while (!survivors_are_done(&processes) && monotonic_ns() < end) sleep_ms(20);
        kill(processes.ids[VICTIM], SIGCONT);
    }
    wait_processes(&processes);
    for (int rank = 0; rank < RANKS; ++rank) {
        if (rank != VICTIM) expect_survivor(&processes.outcomes[rank], rank, harm);
    }
    const struct outcome *const victim = &processes.outcomes[VICTIM];
    const bool killed = harm == KILLED || harm == KILLED_INSIDE;
    if (killed) assert_int_equal(victim->signal, SIGKILL);
    if (!killed) assert_int_equal(victim->exit_code, 0);
    if (harm == STOPPED) assert_int_not_equal(victim->status, TRIREME_OK); /* it went on alone */
    free_processes(&processes);
}

static void a_killed_rank_is_named(void **state) {
    (void)state;
    for (int trial = 0; trial < (is_quick() ? 2 : 6); ++trial) harm_one(KILLED, 0);
}
static void a_rank_killed_inside_an_operation_is_named(void **state) {
    (void)state;
    const int trials = is_quick() ? 3 : 10;
    for (int trial = 0; trial < trials; ++trial) harm_one(KILLED_INSIDE, 250000L * trial);
}
static void a_stopped_rank_is_named(void **state) {
    (void)state;
    harm_one(STOPPED, 0);
}
static void a_rank_that_left_is_named(void **state) {
    (void)state;
    harm_one(LEFT, 0);
}

/* ---- who has said everything ---- */

#define LAST_COUNT 60000 /* bytes: one is on its way, the other still in the sender's memory */

static void send_and_end(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    static unsigned char bytes[LAST_COUNT];
    trireme_communicator *const communicator = join_network(rank, 2, job->rendezvous);
    outcome->status = trireme_communicator_wait_ready(communicator, PATIENT_NS);
    for (int number = 0; number < 2 && outcome->status == TRIREME_OK; ++number) {
        if (rank == 1) {
            memset(bytes, 'a' + number, sizeof bytes);
            outcome->status =
                trireme_send(communicator, bytes, LAST_COUNT, TRIREME_DTYPE_U8, 0, 7, NULL);
            continue;
        }
        if (number == 0) sleep_ms(100); /* the other one has ended, if it does not wait for this */
        outcome->status =
            trireme_receive(communicator, bytes, LAST_COUNT, TRIREME_DTYPE_U8, 1, 7, NULL);
        for (int i = 0; i < LAST_COUNT; ++i) outcome->wrong |= bytes[i] != 'a' + number;
    }
    if (outcome->status != TRIREME_OK) keep_error(outcome, outcome->status);
    trireme_communicator_destroy(communicator);
}

static void what_a_process_sent_before_it_ended_arrives(void **state) {
    (void)state;
    for (int trial = 0; trial < (is_quick() ? 1 : 3); ++trial) {
        struct job job = {.harm = LEFT};
        struct processes processes;
        unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
        start_processes(&processes, 2, send_and_end, &job);
        wait_processes(&processes);
        for (int rank = 0; rank < 2; ++rank) {
            const struct outcome *const outcome = &processes.outcomes[rank];
            if (outcome->status != TRIREME_OK || outcome->wrong || outcome->exit_code != 0) {
                fail_msg("rank %d: %s", rank, outcome->message);
            }
        }
        free_processes(&processes);
    }
}

/* ---- strangers ---- */

/* The ports at which this process listens on its own address of the loopback. */
static int find_listeners(const char *address, unsigned short *ports, int capacity) {
    FILE *const file = fopen("/proc/net/tcp", "r");
    char line[256];
    int count = 0;
    struct in_addr own;
    assert_int_equal(inet_pton(AF_INET, address, &own), 1);
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        unsigned local = 0;
        unsigned port = 0;
        unsigned state = 0;
        if (sscanf(line, "%*d: %X:%X %*X:%*X %X", &local, &port, &state) == 3 && state == 0x0a &&
            local == own.s_addr && count < capacity) {
            ports[count++] = (unsigned short)port;
        }
    }
    fclose(file);
    return count;
}

/* The listening sockets of this process. All are at this address, or the test fails: on other ones
 * there is nothing to be reached. */
static int count_own_listeners(const char *address) {
    struct in_addr own;
    int count = 0;
    assert_int_equal(inet_pton(AF_INET, address, &own), 1);
    for (int descriptor = 3; descriptor < 1024; ++descriptor) {
        int listens = 0;
        socklen_t bytes = sizeof listens;
        struct sockaddr_storage at;
        if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0) continue;
        bytes = sizeof at;
        if (!listens || getsockname(descriptor, (struct sockaddr *)&at, &bytes) != 0) continue;
        if (at.ss_family == AF_UNIX) continue; /* inherited, perhaps */
        assert_int_equal(at.ss_family, AF_INET);
        assert_int_equal(((const struct sockaddr_in *)&at)->sin_addr.s_addr, own.s_addr);
        ++count;
    }
    return count;
}

static void expect_own_listeners(const char *address, int count) {
    const uint64_t end = monotonic_ns() + HANG_NS;
    while (count_own_listeners(address) != count && monotonic_ns() < end) sleep_ms(5);
    assert_int_equal(count_own_listeners(address), count);
}

static int call_port(const char *address, unsigned short port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &to.sin_addr);
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (made < 0 || connect(made, (struct sockaddr *)&to, sizeof to) != 0) {
        fail_msg("port %u: %s", port, strerror(errno));
    }
    return made;
}

/* Whether the other end has hung up. Bytes that it sent before are dropped. */
static bool is_turned_away(int stranger) {
    const uint64_t end = monotonic_ns() + HANG_NS;
    while (monotonic_ns() < end) {
        char bytes[512];
        struct pollfd entry = {stranger, POLLIN, 0};
        if (poll(&entry, 1, 1000) <= 0) continue;
        if (recv(stranger, bytes, sizeof bytes, 0) <= 0) return true;
    }
    return false;
}

static void strangers_get_nothing_and_hinder_nobody(void **state) {
    (void)state;
    enum { IDLE = 300, WORDS = 5 };
    char rendezvous[96];
    char address[32];
    unsigned short ports[8];
    int idle[IDLE];
    int rude[8 * WORDS];
    int rude_count = 0;
    char huge[4096];
    char mirror[104]; /* begins as a greeting of ours does */
    memset(huge, 0xff, sizeof huge);
    memset(mirror, 0, sizeof mirror);
    memcpy(mirror, "trireme\n", 8);
    const struct {
        const char *text;
        size_t bytes;
    } words[WORDS] = {{"GET / HTTP/1.1\r\n\r\n", 18},
                      {"\0\0\0\1\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0", 19},
                      {huge, sizeof huge},
                      {mirror, sizeof mirror},
                      {mirror, 50}};
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    sscanf(rendezvous, "tcp://%31[0-9.]", address);
    strcat(strcat(rendezvous, "?interface="), address);
    trireme_communicator *ranks[3] = {join_network(0, 3, rendezvous), NULL, NULL};
    ranks[1] = join_network(1, 3, rendezvous);
    const uint64_t end = monotonic_ns() + HANG_NS;
    int listeners = 0;
    while ((listeners = find_listeners(address, ports, 8)) < 3 && monotonic_ns() < end) {
        sleep_ms(5);
    }
    assert_int_equal(listeners, 3); /* the meeting, and one of each rank */
    expect_own_listeners(address, 3);
    for (int i = 0; i < IDLE; ++i) idle[i] = call_port(address, ports[i % listeners]);
    for (int i = 0; i < listeners; ++i) {
        for (int word = 0; word < WORDS; ++word) {
            const int made = call_port(address, ports[i]);
            assert_true(send(made, words[word].text, words[word].bytes, MSG_NOSIGNAL) > 0);
            rude[rude_count++] = made;
        }
    }
    ranks[2] = join_network(2, 3, rendezvous);
    for (int rank = 0; rank < 3; ++rank) {
        if (trireme_communicator_wait_ready(ranks[rank], PATIENT_NS) != TRIREME_OK) {
            fail_msg("rank %d: %s", rank, trireme_last_error());
        }
    }
    /* When all are there, a rank accepts no more callers; the meeting is for other groups. */
    expect_own_listeners(address, 1);
    for (int i = 0; i < rude_count; ++i) {
        assert_true(is_turned_away(rude[i]));
        close(rude[i]);
    }
    for (int i = 0; i < IDLE; ++i) {
        assert_true(is_turned_away(idle[i]));
        close(idle[i]);
    }
    for (int rank = 0; rank < 3; ++rank) {
        assert_int_equal(trireme_communicator_wait_ready(ranks[rank], PATIENT_NS), TRIREME_OK);
        trireme_communicator_destroy(ranks[rank]);
    }
    expect_own_listeners(address, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_rank_killed_inside_an_operation_is_named),
        cmocka_unit_test(a_stopped_rank_is_named),
        cmocka_unit_test(a_rank_that_left_is_named),
        cmocka_unit_test(what_a_process_sent_before_it_ended_arrives),
        cmocka_unit_test(strangers_get_nothing_and_hinder_nobody),
    };
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    unsetenv("TRIREME_TOKEN_FILE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
