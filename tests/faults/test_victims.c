/*
 * Harder deaths: two ranks inside one collective, a rank that dies slowly because of its memory,
 * and a rank at every visit of failpoints inside composite operations. Survivors blame only the
 * dead, shrink to exactly themselves and get right sums.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calls.h"
#include "processes.h"

#define ROUNDS 3 /* all are healthy in the first */
#define COUNT 2003
#define MOST_TIMES 4096
#define MOST_TRIES 8
#define GIB (1ull << 30)

enum form {
    PLAIN,
    ALL_REDUCE_LIST,
    REDUCE_SCATTER_LIST,
    ALL_GATHER_LIST,
    BROADCAST_LIST,
    BROADCAST_TO_BUFFER,
    SCATTER_TO_BUFFER,
    ALL_GATHER_TO_BUFFER,
    SPLIT,
    SUBGROUP,
    DUPLICATE,
    RING,
    FORMS
};

struct trial {
    enum form form;
    trireme_operation_kind operation; /* PLAIN */
    uint64_t count;
    int world_size;
    int victims[2];
    int victim_count;
    char failpoint[96];
    uint64_t fat_bytes;
    char rendezvous[64];
};

static uint64_t times[MOST_TIMES];
static int time_count;
static int trial_count;
static int death_count;

/* ---- the work of a process ---- */

enum { SIZE = 0, RANKS = 1 };

static trireme_status sum_over(trireme_communicator *group, struct outcome *outcome) {
    int32_t size = 0, ranks[MOST_PROCESSES] = {0}, rank = 0;
    if (trireme_communicator_get_world_size(group, &size) != TRIREME_OK ||
        trireme_communicator_get_rank(group, &rank) != TRIREME_OK ||
        trireme_communicator_get_original_ranks(group, ranks, MOST_PROCESSES) != TRIREME_OK) {
        _exit(94);
    }
    int64_t sum = 0, expected = 0;
    const int64_t own = 1ll << (ranks[rank] * 4);
    for (int i = 0; i < size; ++i) expected += 1ll << (ranks[i] * 4);
    const trireme_status status =
        trireme_all_reduce(group, &own, &sum, 1, TRIREME_DTYPE_I64, TRIREME_REDUCTION_SUM, NULL);
    outcome->wrong |= status == TRIREME_OK && sum != expected;
    outcome->numbers[SIZE] = size;
    for (int i = 0; i < size; ++i) outcome->numbers[RANKS + i] = ranks[i];
    return status;
}

static void go_on(trireme_communicator *group, struct outcome *outcome) {
    for (int tries = 0; tries < MOST_TRIES; ++tries) {
        trireme_communicator *smaller = NULL;
        outcome->again = trireme_communicator_shrink(group, NULL, &smaller);
        if (outcome->again == TRIREME_ERROR_PEER_LOST) continue;
        if (outcome->again != TRIREME_OK) break;
        trireme_communicator_destroy(group);
        group = smaller;
        outcome->again = sum_over(group, outcome);
        if (outcome->again == TRIREME_OK) break;
    }
    if (outcome->again != TRIREME_OK) {
        snprintf(outcome->text, sizeof outcome->text, "%.250s", trireme_last_error());
    }
    trireme_communicator_destroy(group);
}

/* Lists of three, the second one empty. */
static trireme_status call_list(trireme_communicator *group, enum form form, int rank, int n,
                                int round, struct outcome *outcome) {
    const uint64_t counts[3] = {COUNT, 0, 5};
    int32_t *const send = calloc(3 * COUNT * (uint64_t)n, sizeof *send);
    int32_t *const receive = calloc(3 * COUNT * (uint64_t)n, sizeof *receive);
    if (send == NULL || receive == NULL) _exit(92);
    const void *sends[3];
    void *receives[3];
    for (int entry = 0; entry < 3; ++entry) {
        sends[entry] = send + (uint64_t)entry * COUNT * (uint64_t)n;
        receives[entry] = receive + (uint64_t)entry * COUNT * (uint64_t)n;
    }
    for (uint64_t i = 0; i < 3 * COUNT * (uint64_t)n; ++i) send[i] = 1 + rank + round;
    trireme_status status = TRIREME_OK;
    int32_t expected = 0;
    switch (form) {
        case ALL_REDUCE_LIST:
            status = trireme_all_reduce_list(group, sends, receives, counts, 3, TRIREME_DTYPE_I32,
                                             TRIREME_REDUCTION_SUM, NULL);
            for (int i = 0; i < n; ++i) expected += 1 + i + round;
            break;
        case REDUCE_SCATTER_LIST:
            status = trireme_reduce_scatter_list(group, sends, receives, counts, 3,
                                                 TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM, NULL);
            for (int i = 0; i < n; ++i) expected += 1 + i + round;
            break;
        case ALL_GATHER_LIST:
            status =
                trireme_all_gather_list(group, sends, receives, counts, 3, TRIREME_DTYPE_I32, NULL);
            expected = 1 + round; /* of rank 0, which comes first */
            break;
        default:
            if (rank == 0) memcpy(receive, send, 3 * COUNT * (uint64_t)n * sizeof *send);
            status = trireme_broadcast_list(group, receives, counts, 3, TRIREME_DTYPE_I32, 0, NULL);
            expected = 1 + round;
            break;
    }
    for (int entry = 0; entry < 3 && status == TRIREME_OK; ++entry) {
        const int32_t *const got = receives[entry];
        for (uint64_t i = 0; i < counts[entry]; ++i) outcome->wrong |= got[i] != expected;
    }
    free(send);
    free(receive);
    return status;
}

static trireme_status call_to_buffer(trireme_communicator *group, enum form form, int rank, int n,
                                     int round, struct outcome *outcome) {
    int32_t send[MOST_RANKS * 50];
    uint64_t counts[MOST_RANKS];
    for (int i = 0; i < MOST_RANKS * 50; ++i) send[i] = 7 + round;
    for (int i = 0; i < n; ++i) counts[i] = 50;
    trireme_buffer *buffer = NULL;
    trireme_status status = TRIREME_OK;
    uint64_t expected = 50;
    if (form == BROADCAST_TO_BUFFER) {
        status = trireme_broadcast_to_buffer(group, rank == 0 ? send : NULL, rank == 0 ? 50 : 0,
                                             TRIREME_DTYPE_I32, 0, NULL, &buffer);
    } else if (form == SCATTER_TO_BUFFER) {
        status =
            trireme_scatter_to_buffer(group, rank == 0 ? send : NULL, rank == 0 ? counts : NULL,
                                      TRIREME_DTYPE_I32, 0, NULL, &buffer);
    } else {
        status =
            trireme_all_gather_to_buffer(group, send, 50, TRIREME_DTYPE_I32, NULL, counts, &buffer);
        expected = 50 * (uint64_t)n;
    }
    if (status != TRIREME_OK) return status;
    void *data = NULL;
    uint64_t bytes = 0;
    if (trireme_buffer_get_data(buffer, &data) != TRIREME_OK ||
        trireme_buffer_get_bytes(buffer, &bytes) != TRIREME_OK) {
        _exit(95);
    }
    outcome->wrong |= bytes != expected * sizeof(int32_t);
    for (uint64_t i = 0; i < expected && !outcome->wrong; ++i) {
        outcome->wrong |= ((const int32_t *)data)[i] != 7 + round;
    }
    trireme_buffer_destroy(buffer);
    return status;
}

static trireme_status make_child(trireme_communicator *group, enum form form, int n) {
    int32_t all[MOST_RANKS];
    for (int i = 0; i < n; ++i) all[i] = n - 1 - i;
    trireme_communicator *child = NULL;
    const trireme_status status =
        form == SPLIT      ? trireme_communicator_split(group, 0, 0, NULL, &child)
        : form == SUBGROUP ? trireme_communicator_subgroup(group, all, (uint64_t)n, NULL, &child)
                           : trireme_communicator_duplicate(group, NULL, &child);
    trireme_communicator_destroy(child);
    return status;
}

static struct call make_call(const struct trial *trial) {
    struct call call = {.operation = trial->form == PLAIN ? trial->operation
                                                          : TRIREME_OPERATION_KIND_ALL_REDUCE,
                        .dtype = TRIREME_DTYPE_F32,
                        .reduction = TRIREME_REDUCTION_SUM,
                        .count = trial->count,
                        .root = trial->world_size - 1,
                        .algorithm = trial->form == RING ? TRIREME_ALGORITHM_RING : 0};
    if (call.operation == TRIREME_OPERATION_KIND_BARRIER) call.count = 0;
    for (int rank = 0; rank < MOST_RANKS; ++rank) call.counts[rank] = call.count + (uint64_t)rank;
    return call;
}

static bool is_victim(const struct trial *trial, int rank) {
    for (int i = 0; i < trial->victim_count; ++i) {
        if (trial->victims[i] == rank) return true;
    }
    return false;
}

static void live_until_a_failure(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    const int n = trial->world_size;
    const struct call call = make_call(trial);
    struct call_memory memory = {0};
    trireme_communicator *const group = join_process(rank, n, trial->rendezvous, PATIENT_NS);
    const bool plain = trial->form == PLAIN || trial->form == RING;
    if (plain && !allocate_call(group, &call, rank, n, false, &memory)) _exit(92);
    for (int round = 0; round < ROUNDS && outcome->status == TRIREME_OK && !outcome->wrong;
         ++round) {
        if (round == 1 && is_victim(trial, rank)) {
            if (trial->fat_bytes != 0 &&
                mmap(NULL, trial->fat_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0) == MAP_FAILED) {
                _exit(97);
            }
            if (trireme_failpoint_set(trial->failpoint) != TRIREME_OK) _exit(91);
        }
        trireme_status status = TRIREME_OK;
        if (plain) fill_call(&call, &memory, rank, n, round);
        outcome->entered_ns = monotonic_ns();
        if (plain) {
            status = run_call(group, &call, &memory, round == 2, PATIENT_NS);
            outcome->wrong |=
                status == TRIREME_OK && !is_call_right(&call, &memory, rank, n, round);
        } else if (trial->form <= BROADCAST_LIST) {
            status = call_list(group, trial->form, rank, n, round, outcome);
        } else if (trial->form <= ALL_GATHER_TO_BUFFER) {
            status = call_to_buffer(group, trial->form, rank, n, round, outcome);
        } else {
            status = make_child(group, trial->form, n);
        }
        outcome->returned_ns = monotonic_ns();
        if (status == TRIREME_OK) {
            ++outcome->rounds;
        } else {
            keep_error(outcome, status);
        }
    }
    free_call(&memory, false);
    if (trireme_failpoint_set(NULL) != TRIREME_OK) _exit(91);
    /* A rank may die in the last round when the others need nothing more of it. */
    if (outcome->status == TRIREME_OK) keep_error(outcome, trireme_barrier(group, NULL));
    if (outcome->status != TRIREME_OK) return go_on(group, outcome);
    trireme_communicator_destroy(group);
}

/* ---- what the parent makes of it ---- */

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            print_error("%s, form %d, %d ranks, victims %d %d, count %llu: rank %d: ",             \
                        trial->failpoint, (int)trial->form, trial->world_size, trial->victims[0],  \
                        trial->victims[trial->victim_count - 1], (unsigned long long)trial->count, \
                        rank);                                                                     \
            print_error(__VA_ARGS__);                                                              \
            print_error("\n");                                                                     \
            for (int r = 0; r < trial->world_size; ++r) {                                          \
                const struct outcome *const x = &processes->outcomes[r];                           \
                print_error("  rank %d: exit %d, signal %d%s, %d rounds: %s; again %s %s\n", r,    \
                            x->exit_code, x->signal, x->hung ? ", hung" : "", x->rounds,           \
                            x->message, trireme_status_name(x->again), x->text);                   \
            }                                                                                      \
            fail();                                                                                \
        }                                                                                          \
    } while (0)

/* Answers how many have died. */
static int check_survivors(const struct trial *trial, const struct processes *processes) {
    int deaths = 0;
    uint64_t died_ns = 0;
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        if (o->signal != SIGKILL || o->hung) continue;
        CHECK(is_victim(trial, rank), "died");
        ++deaths;
        if (o->entered_ns > died_ns) died_ns = o->entered_ns;
    }
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(!o->hung, "hangs");
        if (o->signal == SIGKILL) continue;
        CHECK(o->exit_code == 0, "ended");
        CHECK(!o->wrong, "a wrong result was called OK");
        if (deaths == 0) {
            CHECK(o->status == TRIREME_OK && o->rounds == ROUNDS, "failed without a death");
            continue;
        }
        CHECK(o->status == TRIREME_ERROR_PEER_LOST, "%s", trireme_status_name(o->status));
        CHECK(o->info.blamed_count > 0, "blames nobody");
        for (uint32_t i = 0; i < o->info.blamed_count; ++i) {
            CHECK(processes->outcomes[o->info.blamed[i]].signal == SIGKILL, "blames rank %d",
                  o->info.blamed[i]);
        }
        CHECK(o->again == TRIREME_OK, "the new group says %s", trireme_status_name(o->again));
        CHECK(o->numbers[SIZE] == trial->world_size - deaths, "the new group has %d ranks",
              (int)o->numbers[SIZE]);
        for (int i = 0; i < o->numbers[SIZE]; ++i) {
            CHECK(processes->outcomes[o->numbers[RANKS + i]].signal != SIGKILL,
                  "the new group has rank %d", (int)o->numbers[RANKS + i]);
        }
        const uint64_t since = died_ns > o->entered_ns ? died_ns : o->entered_ns;
        if (time_count < MOST_TIMES) {
            times[time_count++] = o->returned_ns > since ? o->returned_ns - since : 0;
        }
    }
    ++trial_count;
    death_count += deaths;
    return deaths;
}

static int run_trial(struct trial *trial) {
    struct processes processes;
    unique_host_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, trial->world_size, live_until_a_failure, trial);
    wait_processes(&processes);
    const int deaths = check_survivors(trial, &processes);
    free_processes(&processes);
    return deaths;
}

static void tell(const char *what) {
    for (int i = 1; i < time_count; ++i) { /* insertion sort: a few thousand numbers */
        const uint64_t value = times[i];
        int at = i;
        for (; at > 0 && times[at - 1] > value; --at) times[at] = times[at - 1];
        times[at] = value;
    }
    if (time_count == 0) return;
    printf(
        "%s: %d trials, %d deaths, %d survivors, 0 violations; time to detection p50 %.2f ms, "
        "p99 %.2f ms, max %.2f ms\n",
        what, trial_count, death_count, time_count, (double)times[time_count / 2] / 1e6,
        (double)times[time_count * 99 / 100] / 1e6, (double)times[time_count - 1] / 1e6);
    time_count = trial_count = death_count = 0;
}

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

static const char *const points[] = {"before_publish", "after_publish", "before_move",
                                     "mid_move",       "after_move",    "before_leave"};
enum { POINTS = sizeof points / sizeof points[0] };

/* The second victim may hear of the first one's death before it gets to its own. */
static void survivors_of_two_deaths_in_one_collective_blame_the_dead_alone(void **state) {
    (void)state;
    static const struct {
        int world_size;
        int victims[2];
    } places[] = {{3, {0, 1}}, {3, {1, 2}}, {4, {0, 3}}, {5, {1, 3}}, {8, {6, 7}}};
    enum { PLACES = sizeof places / sizeof places[0] };
    unsigned turn = 0;
    int both = 0;
    for (int operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
         operation <= TRIREME_OPERATION_KIND_ALL_TO_ALL_V; ++operation) {
        if (!is_collective(operation)) continue;
        for (int point = 0; point < POINTS; ++point, ++turn) {
            /* Each operation at two points, each point in a third of the operations. */
            if (sees_threads_alone() && (turn + turn / POINTS) % 3 != 0) continue;
            for (int place = 0; place < PLACES; ++place) {
                if (!is_long() && (place + (int)turn) % PLACES > (is_quick() ? 0 : 1)) continue;
                struct trial trial = {.operation = operation,
                                      .count = (turn + (unsigned)place) % 2 == 0 ? 7 : 300001,
                                      .world_size = places[place].world_size,
                                      .victims = {places[place].victims[0],
                                                  places[place].victims[1]},
                                      .victim_count = 2};
                snprintf(trial.failpoint, sizeof trial.failpoint, "%s.%s=kill@1",
                         operation_text(operation), points[point]);
                const int deaths = run_trial(&trial);
                assert_true(deaths >= 1);
                both += deaths == 2;
            }
        }
    }
    assert_true(both > 0);
    tell("two victims");
}

/* The kernel frees a dead process' memory before its sockets close; peers notice its death before
 * that. */
static void survivors_of_a_fat_rank_blame_it_alone(void **state) {
    (void)state;
    static const int operations[] = {TRIREME_OPERATION_KIND_ALL_REDUCE,
                                     TRIREME_OPERATION_KIND_BROADCAST,
                                     TRIREME_OPERATION_KIND_ALL_TO_ALL};
    const uint64_t most = is_long() ? 6 * GIB : GIB;
    for (uint64_t bytes = GIB; bytes <= most; bytes += 5 * GIB) {
        for (int i = 0; i < 3; ++i) {
            for (int turn = 0; turn < (is_quick() ? 1 : 6); ++turn) {
                struct trial trial = {.operation = operations[i],
                                      .count = turn % 2 == 0 ? 7 : 300001,
                                      .world_size = 3,
                                      .victims = {turn % 3},
                                      .victim_count = 1,
                                      .fat_bytes = bytes};
                snprintf(trial.failpoint, sizeof trial.failpoint, "%s.%s=kill@1",
                         operation_text(operations[i]), points[turn]);
                assert_int_equal(run_trial(&trial), 1);
            }
        }
        tell(bytes == GIB ? "victims of 1 GiB" : "victims of 6 GiB");
    }
}

/* From the first visit on, until the victim comes through alive. */
static void sweep(enum form form, const char *failpoint, int world_size, int victim, int step) {
    for (int visit = 1;; visit += step) {
        struct trial trial = {.form = form,
                              .count = 30001,
                              .world_size = world_size,
                              .victims = {victim},
                              .victim_count = 1};
        snprintf(trial.failpoint, sizeof trial.failpoint, "%s=kill@%d", failpoint, visit);
        const int deaths = run_trial(&trial);
        if (deaths == 0) return;
    }
}

static void survivors_of_a_death_at_any_step_of_a_composite_blame_it_alone(void **state) {
    (void)state;
    static const struct {
        enum form form;
        const char *steps[3];
    } composites[] = {
        {ALL_REDUCE_LIST, {"all_reduce"}},
        {REDUCE_SCATTER_LIST, {"reduce_scatter"}},
        {ALL_GATHER_LIST, {"all_gather"}},
        {BROADCAST_LIST, {"broadcast"}},
        {BROADCAST_TO_BUFFER, {"broadcast"}},
        {SCATTER_TO_BUFFER, {"scatter_v", "broadcast", "scatter"}},
        {ALL_GATHER_TO_BUFFER, {"all_gather_v", "all_gather"}},
        {SPLIT, {"all_gather", "barrier"}},
        {SUBGROUP, {"all_gather", "barrier"}},
        {DUPLICATE, {"all_gather", "barrier"}},
    };
    static const char *const ways_in[] = {"child.before_join", "child.after_join",
                                          "join.before_claim", "join.after_claim",
                                          "join.before_hello", "join.after_hello",
                                          "join.before_ready"};
    for (size_t i = 0; i < sizeof composites / sizeof composites[0]; ++i) {
        const int n = 2 + (int)i % 3;
        const int deaths_before = death_count;
        for (int step = 0; step < 3 && composites[i].steps[step] != NULL; ++step) {
            for (int point = 0; point < POINTS; ++point) {
                if (is_quick() && (point + (int)i) % POINTS != 0) continue;
                char name[64];
                snprintf(name, sizeof name, "%s.%s", composites[i].steps[step], points[point]);
                sweep(composites[i].form, name, n, (point + (int)i) % n, 1);
            }
        }
        if (!is_quick()) assert_true(death_count > deaths_before);
        const bool child = composites[i].form >= SPLIT && composites[i].form <= DUPLICATE;
        for (size_t way = 0; child && way < sizeof ways_in / sizeof ways_in[0]; ++way) {
            if (is_quick() && way % 3 != 0) continue;
            sweep(composites[i].form, ways_in[way], n, (int)way % n, 1);
        }
    }
    tell("steps of composites");
}

static void survivors_of_a_death_inside_an_algorithm_blame_it_alone(void **state) {
    (void)state;
    static const char *const messages[] = {"all_reduce.before_publish", "all_reduce.after_publish",
                                           "send.before_first",         "send.mid_message",
                                           "send.before_done",          "receive.before_first",
                                           "receive.mid_message",       "receive.before_done"};
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; ++i) {
        if (is_quick() && i % 4 != 0) continue;
        for (int n = 2; n <= 4; ++n) sweep(RING, messages[i], n, (int)i % n, is_long() ? 1 : 3);
    }
    tell("steps of an algorithm");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_two_deaths_in_one_collective_blame_the_dead_alone),
        cmocka_unit_test(survivors_of_a_fat_rank_blame_it_alone),
        cmocka_unit_test(survivors_of_a_death_at_any_step_of_a_composite_blame_it_alone),
        cmocka_unit_test(survivors_of_a_death_inside_an_algorithm_blame_it_alone),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("victims", tests, NULL, NULL);
}
