/*
 * More ranks of tcp:// than send each call to all others: their results, and the messages of a
 * small call. Ranks that disagree, stay away or die are named; those that come late or leave are
 * not. Each rank is a process.
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

#define TOKEN "the token of these tests"
#define MANY 72
#define SMALL_BYTES 4096
#define LARGE_COUNT 100000

struct job {
    int world_size;
    int odd;        /* the rank that does something else */
    int late;       /* the rank that comes late; -1: none */
    bool large;     /* the call moves its bytes by messages of their own */
    int kind;       /* of what goes wrong */
    bool own_hosts; /* each rank calls its host by another name */
    char rendezvous[96];
};

enum { BOUND, RIGHT }; /* numbers of an outcome */

static trireme_communicator *join(int rank, const struct job *job, uint64_t timeout_ns) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    char rendezvous[128];
    snprintf(rendezvous, sizeof rendezvous, "%s", job->rendezvous);
    add_host(rendezvous, sizeof rendezvous, rank);
    if (job->own_hosts) {
        const size_t length = strlen(rendezvous);
        snprintf(rendezvous + length, sizeof rendezvous - length, "%chost=rank%d",
                 strchr(rendezvous, '?') == NULL ? '?' : '&', rank);
    }
    options.rank = rank;
    options.world_size = job->world_size;
    options.rendezvous = rendezvous;
    options.timeout_ns = timeout_ns;
    options.backend = "frames";
    trireme_communicator *out = NULL;
    if (trireme_communicator_create(&options, &out) != TRIREME_OK) _exit(90);
    if (trireme_communicator_wait_ready(out, LONG_NS) != TRIREME_OK) _exit(91);
    return out;
}

static void run_job(struct job *job, process_function *function, struct processes *processes) {
    unique_network_rendezvous(job->rendezvous, sizeof job->rendezvous);
    start_processes(processes, job->world_size, function, job);
    wait_processes(processes);
    for (int rank = 0; rank < job->world_size; ++rank) {
        if (processes->outcomes[rank].hung) fail_msg("rank %d of %d hangs", rank, job->world_size);
    }
}

/* ---- results and messages ---- */

/* Element i of that rank's contribution. */
static int64_t given(int rank, uint64_t i) {
    return (int64_t)(i * 1000) + rank * rank + 1;
}

static int64_t sum_of(int world_size, uint64_t i) {
    int64_t sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += given(rank, i);
    return sum;
}

enum { KINDS = 8 };

/* Runs one collective whose contribution of a rank has at most `bytes`; whether it was right. */
static bool run_kind(trireme_communicator *group, int kind, int rank, int n, uint64_t bytes) {
    static int64_t in[SMALL_BYTES / 8 + MANY], out[(SMALL_BYTES / 8 + 1) * MANY];
    const uint64_t whole = bytes / 8, block = bytes / 8 / (uint64_t)n;
    const int root = n - 1 - kind % n;
    bool right = true;
    for (uint64_t i = 0; i < sizeof in / sizeof *in; ++i) in[i] = given(rank, i);
    memset(out, 0x55, sizeof out);
    trireme_status status = TRIREME_ERROR_INTERNAL;
    switch (kind) {
        case 0: status = trireme_barrier(group, NULL); break;
        case 1:
            status = trireme_all_reduce(group, in, out, whole, TRIREME_DTYPE_I64,
                                        TRIREME_REDUCTION_SUM, NULL);
            for (uint64_t i = 0; i < whole; ++i) right &= out[i] == sum_of(n, i);
            break;
        case 2:
            status = trireme_broadcast(group, in, whole, TRIREME_DTYPE_I64, root, NULL);
            for (uint64_t i = 0; i < whole; ++i) right &= in[i] == given(root, i);
            break;
        case 3:
            status = trireme_all_gather(group, in, out, block, TRIREME_DTYPE_I64, NULL);
            for (uint64_t i = 0; i < block * (uint64_t)n; ++i) {
                right &= out[i] == given((int)(i / block), i % block);
            }
            break;
        case 4:
            status = trireme_reduce_scatter(group, in, out, block, TRIREME_DTYPE_I64,
                                            TRIREME_REDUCTION_SUM, NULL);
            for (uint64_t i = 0; i < block; ++i) {
                right &= out[i] == sum_of(n, block * (uint64_t)rank + i);
            }
            break;
        case 5:
            status = trireme_reduce(group, in, out, whole, TRIREME_DTYPE_I64, TRIREME_REDUCTION_SUM,
                                    root, NULL);
            for (uint64_t i = 0; i < whole && rank == root; ++i) right &= out[i] == sum_of(n, i);
            break;
        case 6:
            status = trireme_gather(group, in, out, block, TRIREME_DTYPE_I64, root, NULL);
            for (uint64_t i = 0; i < block * (uint64_t)n && rank == root; ++i) {
                right &= out[i] == given((int)(i / block), i % block);
            }
            break;
        default:
            status = trireme_all_to_all(group, in, out, block, TRIREME_DTYPE_I64, NULL);
            for (uint64_t i = 0; i < block * (uint64_t)n; ++i) {
                right &= out[i] == given((int)(i / block), block * (uint64_t)rank + i % block);
            }
    }
    return right && status == TRIREME_OK;
}

static uint64_t sent_messages(trireme_communicator *group) {
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    if (trireme_communicator_get_statistics(group, &statistics) != TRIREME_OK) _exit(92);
    return statistics.sent_messages;
}

static void count_messages(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    const int n = job->world_size;
    trireme_communicator *const group = join(rank, job, LONG_NS);
    /* Larger groups carry less with a call. */
    const uint64_t most = n <= 64 ? SMALL_BYTES : 256 * 1024 / (uint64_t)n;
    const uint64_t sizes[] = {0, 8, 1000, most};
    outcome->numbers[RIGHT] = 1;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
        for (int kind = 0; kind < KINDS; ++kind) {
            /* A rank that waits for long sends more, on a busy machine: the best of some. */
            uint64_t fewest = UINT64_MAX;
            for (int turn = 0; turn < 6; ++turn) {
                const uint64_t before = sent_messages(group);
                if (!run_kind(group, kind, rank, n, sizes[s]) && outcome->numbers[RIGHT] == 1) {
                    outcome->numbers[RIGHT] = 0;
                    snprintf(outcome->message, sizeof outcome->message,
                             "kind %d, %d bytes, last error \"%.500s\"", kind, (int)sizes[s],
                             trireme_last_error());
                }
                const uint64_t sent = sent_messages(group) - before;
                if (sent < fewest) fewest = sent;
            }
            if ((int64_t)fewest > outcome->numbers[BOUND]) {
                outcome->numbers[BOUND] = (int64_t)fewest;
                snprintf(outcome->text, sizeof outcome->text, "kind %d, %d bytes", kind,
                         (int)sizes[s]);
            }
        }
    }
    trireme_communicator_destroy(group);
}

/* Of a call, by rank: few ranks send theirs to all others, up to 8 of them if a link lies between
 * them. The others send theirs in rounds. */
static int rounds_of(int world_size) {
    int rounds = 0;
    for (int reach = 1; reach < world_size; reach *= 2) ++rounds;
    return rounds;
}

static int messages_of(int world_size, bool own_hosts) {
    const bool few_connections = getenv("TRIREME_TESTS_FEW_CONNECTIONS") != NULL;
    const int most_direct = few_connections ? 1 : own_hosts ? 8 : 5;
    return world_size <= most_direct ? world_size - 1 : rounds_of(world_size);
}

static void a_small_call_takes_a_logarithm_of_messages(void **state) {
    (void)state;
    static const struct {
        int n;
        bool own_hosts;
    } worlds[] = {{2, false},  {3, false},  {4, false},  {5, false},  {6, false},   {6, true},
                  {8, false},  {8, true},   {9, false},  {9, true},   {12, false},  {16, false},
                  {17, false}, {24, false}, {33, false}, {64, false}, {MANY, false}};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; ++i) {
        const int n = worlds[i].n;
        if (is_quick() && n > 9) continue;
        struct job job = {.world_size = n, .own_hosts = worlds[i].own_hosts};
        struct processes processes;
        run_job(&job, count_messages, &processes);
        /* On a busy machine larger groups tell some calls twice. */
        const int bound = n <= 9 ? messages_of(n, job.own_hosts) : 2 * rounds_of(n) + 2;
        int64_t most = 0;
        for (int rank = 0; rank < n; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            assert_int_equal(o->exit_code, 0);
            if (o->numbers[RIGHT] != 1) {
                fail_msg("%d ranks: rank %d got wrong numbers, first in %s: %s", n, rank,
                         o->message, o->text);
            }
            if (o->numbers[BOUND] > bound) {
                fail_msg("%d ranks: rank %d sent %d messages in a call (%s), not at most %d", n,
                         rank, (int)o->numbers[BOUND], o->text, bound);
            }
            if (o->numbers[BOUND] > most) most = o->numbers[BOUND];
        }
        /* Some rank sends that many: the count would else see another way. */
        assert_true(most >= messages_of(n, job.own_hosts));
        printf("messages: %d ranks%s: at most %d in a call of at most %d bytes\n", n,
               job.own_hosts ? " of as many hosts" : "", (int)most, SMALL_BYTES);
        free_processes(&processes);
    }
}

/* ---- who is named ---- */

enum { EACH_DIFFERS = 4, LATE_GOODBYE }; /* differs from its neighbours */

static int64_t memory[LARGE_COUNT];

static trireme_status
call_of(trireme_communicator *group, const struct job *job, int rank, uint64_t timeout_ns) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    const uint64_t count = job->large ? LARGE_COUNT : 5;
    const bool odd = rank == job->odd || job->kind == EACH_DIFFERS;
    switch (odd ? job->kind : 0) {
        case 1: return trireme_barrier(group, &options);
        case 2:
            return trireme_all_reduce(group, memory, memory, count - 1, TRIREME_DTYPE_I64,
                                      TRIREME_REDUCTION_SUM, &options);
        case 3:
            return trireme_all_reduce(group, memory, memory, count, TRIREME_DTYPE_I64,
                                      TRIREME_REDUCTION_MAX, &options);
        case EACH_DIFFERS:
            return trireme_all_reduce(group, memory, memory, count - 2 + rank % 2,
                                      TRIREME_DTYPE_I64, TRIREME_REDUCTION_SUM, &options);
        default:
            return trireme_all_reduce(group, memory, memory, count, TRIREME_DTYPE_I64,
                                      TRIREME_REDUCTION_SUM, &options);
    }
}

static void call_something_else(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    trireme_communicator *const group = join(rank, job, LONG_NS);
    /* A slow rank may hear of the others' next call before its barrier ends. */
    trireme_status status = trireme_barrier(group, NULL);
    if (status == TRIREME_OK) status = call_of(group, job, rank, 0);
    keep_error(outcome, status);
    trireme_communicator_destroy(group);
}

static void every_rank_hears_of_a_call_that_differs(void **state) {
    (void)state;
    static const int worlds[] = {9, 12, 13, 14, 16};
    for (int number = 0; number < (is_quick() ? 4 : 20); ++number) {
        struct job job = {.world_size = worlds[number % 5], .kind = 1 + number % 4};
        job.odd = (number * 5 + 3) % job.world_size;
        job.large = number / 4 % 2 == 1;
        struct processes processes;
        run_job(&job, call_something_else, &processes);
        for (int rank = 0; rank < job.world_size; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            char named[32];
            snprintf(named, sizeof named, "rank %d called ", job.odd);
            const bool says_it = job.kind == EACH_DIFFERS || strstr(o->message, named) != NULL;
            if (o->status != TRIREME_ERROR_MISMATCH || !says_it) {
                fail_msg("number %d: rank %d, where rank %d called something else: %s: %s", number,
                         rank, job.odd, trireme_status_name(o->status), o->message);
            }
        }
        free_processes(&processes);
    }
}

static void stay_away_or_come_late(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    trireme_communicator *const group = join(rank, job, LONG_NS);
    if (trireme_barrier(group, NULL) != TRIREME_OK) _exit(93);
    if (rank == job->odd) {
        sleep_ms(3500);
        return trireme_communicator_destroy(group);
    }
    /* It comes when the others have begun to wait for long, and is in no wait of its own before
       their deadline. */
    if (rank == job->late) {
        sleep_ms(800);
        if (trireme_failpoint_set("all_reduce.after_publish=sleep(2500)@1") != TRIREME_OK)
            _exit(94);
    }
    keep_error(outcome, call_of(group, job, rank, 2000ull * 1000 * 1000));
    trireme_communicator_destroy(group);
}

static void only_who_stays_away_is_named(void **state) {
    (void)state;
    for (int number = 0; number < (is_quick() ? 2 : 4); ++number) {
        struct job job = {.world_size = number % 2 == 0 ? 9 : 13};
        job.odd = (number * 7 + 2) % job.world_size;
        job.late = (job.odd + 1 + number) % job.world_size;
        if (job.late == job.odd) job.late = -1;
        job.large = number % 4 >= 2;
        struct processes processes;
        run_job(&job, stay_away_or_come_late, &processes);
        for (int rank = 0; rank < job.world_size; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            if (rank == job.odd) continue;
            if (o->status != TRIREME_ERROR_TIMEOUT || !blames_only(&o->info, job.odd)) {
                fail_msg(
                    "number %d: rank %d, where rank %d stayed away and rank %d was late: %s: "
                    "%s",
                    number, rank, job.odd, job.late, trireme_status_name(o->status), o->message);
            }
        }
        free_processes(&processes);
    }
}

static void die_in_a_call(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    static const char *const points[] = {"all_reduce.before_publish=kill@3",
                                         "all_reduce.after_publish=kill@3",
                                         "all_reduce.mid_move=kill@3"};
    trireme_communicator *const group = join(rank, job, LONG_NS);
    if (trireme_barrier(group, NULL) != TRIREME_OK) _exit(93);
    if (rank == job->odd && trireme_failpoint_set(points[job->kind - 1]) != TRIREME_OK) _exit(94);
    struct job calls = *job;
    calls.kind = 0;
    trireme_status status = TRIREME_OK;
    for (int turn = 0; turn < 20 && status == TRIREME_OK; ++turn) {
        status = call_of(group, &calls, rank, 0);
        outcome->rounds += status == TRIREME_OK;
    }
    keep_error(outcome, status);
    trireme_communicator_destroy(group);
}

static void who_dies_is_named(void **state) {
    (void)state;
    for (int number = 0; number < (is_quick() ? 3 : 12); ++number) {
        struct job job = {.world_size = number % 2 == 0 ? 10 : 16, .kind = 1 + number % 3};
        job.odd = (number * 3 + 1) % job.world_size;
        job.large = number % 4 >= 2;
        struct processes processes;
        run_job(&job, die_in_a_call, &processes);
        for (int rank = 0; rank < job.world_size; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            if (rank == job.odd) {
                assert_int_equal(o->signal, SIGKILL);
            } else if (o->status != TRIREME_ERROR_PEER_LOST || !blames_only(&o->info, job.odd)) {
                fail_msg("number %d: rank %d, where rank %d died: %s: %s", number, rank, job.odd,
                         trireme_status_name(o->status), o->message);
            }
        }
        free_processes(&processes);
    }
}

/* ---- leaving, and two queues ---- */

static void leave_after_a_last_call(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    trireme_communicator *group = join(rank, job, LONG_NS);
    outcome->numbers[RIGHT] = 1;
    for (int turn = 0; turn < (is_quick() ? 2 : 6); ++turn) {
        trireme_communicator *twin = NULL;
        if (trireme_communicator_duplicate(group, NULL, &twin) != TRIREME_OK) _exit(93);
        /* Ranks come to it one after the other, and go at once. */
        usleep((useconds_t)((rank * 7 + turn * 5) % job->world_size) * 1000);
        outcome->numbers[RIGHT] &= run_kind(twin, 1 + turn % 2, rank, job->world_size, 256);
        trireme_communicator_destroy(twin);
    }
    trireme_communicator_destroy(group);
}

static void who_leaves_after_a_call_is_not_missed_in_it(void **state) {
    (void)state;
    static const int worlds[] = {9, 11, 16};
    for (size_t i = 0; i < (is_quick() ? 1 : 3); ++i) {
        struct job job = {.world_size = worlds[i]};
        struct processes processes;
        run_job(&job, leave_after_a_last_call, &processes);
        for (int rank = 0; rank < job.world_size; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            assert_int_equal(o->exit_code, 0);
            assert_int_equal(o->numbers[RIGHT], 1);
        }
        free_processes(&processes);
    }
}

static void call_after_one_has_left(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    trireme_communicator *const group = join(rank, job, LONG_NS);
    trireme_status status = trireme_barrier(group, NULL);
    struct job calls = *job;
    calls.kind = 0;
    /* Its connections end before its goodbye is taken. */
    if (rank != job->odd && job->kind == LATE_GOODBYE &&
        trireme_failpoint_set("leave.before_taken=sleep(200)") != TRIREME_OK) {
        _exit(94);
    }
    if (status == TRIREME_OK && rank != job->odd) status = call_of(group, &calls, rank, 0);
    keep_error(outcome, status);
    trireme_communicator_destroy(group);
}

static void who_has_left_is_missed_in_the_next_call(void **state) {
    (void)state;
    for (int number = 0; number < (is_quick() ? 4 : 8); ++number) {
        struct job job = {.world_size = number % 2 == 0 ? 3 : 12, .large = number / 2 % 2 == 1};
        job.odd = (number * 5 + 1) % job.world_size;
        if (number % 4 == 2) job.kind = LATE_GOODBYE;
        struct processes processes;
        run_job(&job, call_after_one_has_left, &processes);
        for (int rank = 0; rank < job.world_size; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            char left[32];
            snprintf(left, sizeof left, "rank %d left", job.odd);
            if (rank != job.odd &&
                (o->status != TRIREME_ERROR_PEER_LOST || !blames_only(&o->info, job.odd) ||
                 strstr(o->message, left) == NULL)) {
                fail_msg("number %d: rank %d, where rank %d left: %s: %s", number, rank, job.odd,
                         trireme_status_name(o->status), o->message);
            }
        }
        free_processes(&processes);
    }
}

static void use_two_queues(int rank, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    const int n = job->world_size;
    trireme_communicator *const group = join(rank, job, LONG_NS);
    trireme_operation_options urgent = TRIREME_OPERATION_OPTIONS_INIT;
    urgent.priority = 1;
    outcome->numbers[RIGHT] = 1;
    for (int turn = 0; turn < 30; ++turn) {
        static int64_t large[20000];
        int64_t small[3] = {given(rank, 1), given(rank, 2), given(rank, 3)};
        const uint64_t count = turn % 3 == 0 ? 20000 : 40;
        for (uint64_t i = 0; i < count; ++i) large[i] = given(rank, i);
        trireme_request *requests[2] = {NULL, NULL};
        const bool first = (rank + turn) % 2 == 0; /* either order */
        for (int k = 0; k < 2; ++k) {
            const trireme_status status =
                (k == 0) == first
                    ? trireme_all_reduce_start(group, large, large, count, TRIREME_DTYPE_I64,
                                               TRIREME_REDUCTION_SUM, NULL, &requests[0])
                    : trireme_all_reduce_start(group, small, small, 3, TRIREME_DTYPE_I64,
                                               TRIREME_REDUCTION_SUM, &urgent, &requests[1]);
            if (status != TRIREME_OK) _exit(94);
        }
        for (int k = 0; k < 2; ++k) {
            if (trireme_request_wait(requests[k], LONG_NS) != TRIREME_OK) _exit(95);
            trireme_request_destroy(requests[k]);
        }
        for (uint64_t i = 0; i < count; ++i) {
            outcome->numbers[RIGHT] &= large[i] == sum_of(n, i);
        }
        for (uint64_t i = 0; i < 3; ++i) outcome->numbers[RIGHT] &= small[i] == sum_of(n, i + 1);
    }
    trireme_communicator_destroy(group);
}

static void two_queues_run_side_by_side(void **state) {
    (void)state;
    static const int worlds[] = {9, 14};
    for (size_t i = 0; i < (is_quick() ? 1 : 2); ++i) {
        struct job job = {.world_size = worlds[i]};
        struct processes processes;
        run_job(&job, use_two_queues, &processes);
        for (int rank = 0; rank < job.world_size; ++rank) {
            assert_int_equal(processes.outcomes[rank].exit_code, 0);
            assert_int_equal(processes.outcomes[rank].numbers[RIGHT], 1);
        }
        free_processes(&processes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_small_call_takes_a_logarithm_of_messages),
        cmocka_unit_test(every_rank_hears_of_a_call_that_differs),
        cmocka_unit_test(only_who_stays_away_is_named),
        cmocka_unit_test(who_dies_is_named),
        cmocka_unit_test(who_leaves_after_a_call_is_not_missed_in_it),
        cmocka_unit_test(who_has_left_is_missed_in_the_next_call),
        cmocka_unit_test(two_queues_run_side_by_side),
    };
    setenv("TRIREME_TOKEN", TOKEN, 1);
    unsetenv("TRIREME_TOKEN_FILE");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
