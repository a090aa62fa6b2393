/*
 * kill -9 of one rank, or of two at once, at every failpoint of every operation: each survivor gets
 * PEER_LOST that names exactly who died, soon, and lives on. Over host://, or with
 * TRIREME_TESTS_NETWORK and TRIREME_TESTS_HOSTS as between hosts.
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

#include "calls.h"
#include "processes.h"

#define ROUNDS 4     /* the failpoint acts in the second */
#define SMALL 5      /* elements that fit beside an operation's description */
#define LARGE 300001 /* more than one piece of any transfer */
#define PROMPT_NS (250ull * 1000 * 1000)
#define AT_MOST_NS (5000ull * 1000 * 1000)
#define MOST_TRIALS 4096

struct trial {
    struct call call;
    char failpoint[64];
    int world_size;
    int victim;
    int second;   /* a second victim there; -1: none */
    bool shared;  /* memory of trireme_buffer_alloc() */
    bool started; /* the _start form */
    char rendezvous[64];
    char next_rendezvous[64]; /* where the survivors meet again */
};

/* How long survivors took, over all trials of the program. */
static uint64_t times[MOST_TRIALS];
static int time_count;
static int trial_count;

/* ---- the work of a process ---- */

static void die_at(const char *failpoint, int visit) {
    char text[96];
    snprintf(text, sizeof text, "%s=kill@%d", failpoint, visit);
    if (trireme_failpoint_set(text) != TRIREME_OK) _exit(91);
}

static bool is_victim(const struct trial *trial, int rank) {
    return rank == trial->victim || rank == trial->second;
}

/* Those who are left form a new group and use it. */
static void go_on_without_victim(const struct trial *trial, int rank, struct outcome *outcome) {
    int left = 0;
    int number = 0;
    for (int other = 0; other < trial->world_size; ++other) {
        if (is_victim(trial, other)) continue;
        number += other < rank;
        ++left;
    }
    trireme_communicator *const communicator =
        join_process(number, left, trial->next_rendezvous, PATIENT_NS);
    int32_t sum = 0;
    const int32_t one = 1;
    outcome->again = trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                                        TRIREME_REDUCTION_SUM, NULL);
    if (outcome->again == TRIREME_OK && sum != left) outcome->wrong = true;
    trireme_communicator_destroy(communicator);
}

static void call_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    struct call_memory memory;
    trireme_communicator *const communicator =
        join_process(rank, trial->world_size, trial->rendezvous, PATIENT_NS);
    if (!allocate_call(communicator, &trial->call, rank, trial->world_size, trial->shared,
                       &memory)) {
        _exit(92);
    }
    /* Joining takes its time, which is no part of hearing of a death. For some a victim may be too
     * quick. */
    outcome->entered_ns = monotonic_ns();
    const trireme_status met = trireme_communicator_wait_ready(communicator, PATIENT_NS);
    outcome->returned_ns = monotonic_ns();
    if (met != TRIREME_OK) keep_error(outcome, met);
    if (is_victim(trial, rank)) die_at(trial->failpoint, 2);
    for (int round = 0; round < ROUNDS && outcome->status == TRIREME_OK && !outcome->wrong;
         ++round) {
        fill_call(&trial->call, &memory, rank, trial->world_size, round);
        outcome->entered_ns = monotonic_ns();
        const trireme_status status =
            run_call(communicator, &trial->call, &memory, trial->started, PATIENT_NS);
        outcome->returned_ns = monotonic_ns();
        if (status != TRIREME_OK) {
            keep_error(outcome, status);
        } else if (is_call_right(&trial->call, &memory, rank, trial->world_size, round)) {
            ++outcome->rounds;
        } else {
            outcome->wrong = true;
        }
    }
    /* A small call with a root may be over here before its victim dies elsewhere: the next call
     * that waits tells. */
    if (outcome->status == TRIREME_OK && !outcome->wrong) {
        outcome->entered_ns = monotonic_ns();
        const trireme_status status = trireme_barrier(communicator, NULL);
        outcome->returned_ns = monotonic_ns();
        if (status != TRIREME_OK) keep_error(outcome, status);
    }
    if (outcome->status != TRIREME_OK) {
        outcome->later = run_call(communicator, &trial->call, &memory, trial->started, PATIENT_NS);
    }
    free_call(&memory, trial->shared);
    trireme_communicator_destroy(communicator);
    /* Of two victims one may hear of the other before its own turn. */
    if (outcome->status != TRIREME_OK && !is_victim(trial, rank)) {
        go_on_without_victim(trial, rank, outcome);
    }
}

/* The victim sends to all others in turn or receives from all in turn; the others go on. */
static void talk_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    const bool victim_sends = strncmp(trial->failpoint, "send.", 5) == 0;
    const bool sends = (rank == trial->victim) == victim_sends;
    trireme_communicator *const communicator =
        join_process(rank, trial->world_size, trial->rendezvous, PATIENT_NS);
    const uint64_t count = trial->call.count;
    float *const data = malloc(count * sizeof *data);
    if (data == NULL) _exit(92);
    /* Each rank waits until all have met; but the victim may be too quick for some. */
    const trireme_status met = trireme_barrier(communicator, NULL);
    if (met != TRIREME_OK) keep_error(outcome, met);
    if (rank == trial->victim) die_at(trial->failpoint, trial->world_size);
    /* Far more than any queue between two ranks holds. */
    const int rounds = 100000;
    for (int round = 0; round < rounds && outcome->status == TRIREME_OK && !outcome->wrong;
         ++round) {
        const int other = rank == trial->victim
                              ? (rank + 1 + round % (trial->world_size - 1)) % trial->world_size
                              : trial->victim;
        for (uint64_t i = 0; i < count; ++i) data[i] = sends ? (float)i : -1.0f;
        outcome->entered_ns = monotonic_ns();
        const trireme_status status =
            sends ? trireme_send(communicator, data, count, TRIREME_DTYPE_F32, other, 7, NULL)
                  : trireme_receive(communicator, data, count, TRIREME_DTYPE_F32, other, 7, NULL);
        outcome->returned_ns = monotonic_ns();
        if (status != TRIREME_OK) {
            keep_error(outcome, status);
            continue;
        }
        ++outcome->rounds;
        for (uint64_t i = 0; i < count; ++i) outcome->wrong |= data[i] != (float)i;
    }
    if (outcome->status != TRIREME_OK) outcome->later = trireme_barrier(communicator, NULL);
    free(data);
    trireme_communicator_destroy(communicator);
    if (outcome->status != TRIREME_OK) go_on_without_victim(trial, rank, outcome);
}

/* ---- what the parent makes of it ---- */

static void describe(const struct trial *trial, char *text, size_t capacity) {
    snprintf(text, capacity, "%s, %d ranks, victims %d and %d, count %llu, %s memory, %s form",
             trial->failpoint, trial->world_size, trial->victim, trial->second,
             (unsigned long long)trial->call.count, trial->shared ? "shared" : "own",
             trial->started ? "started" : "blocking");
}

static void print_outcomes(const struct trial *trial, const struct processes *processes) {
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        print_error("  rank %d: exit code %d, signal %d%s, %d rounds, %s, again %s, %.3f ms: %s\n",
                    rank, o->exit_code, o->signal, o->hung ? ", hung" : "", o->rounds,
                    trireme_status_name(o->status), trireme_status_name(o->again),
                    (double)(int64_t)(o->returned_ns - o->entered_ns) / 1e6, o->message);
    }
}

#define CHECK(condition, ...)                         \
    do {                                              \
        if (!(condition)) {                           \
            print_error("%s: rank %d: ", name, rank); \
            print_error(__VA_ARGS__);                 \
            print_error("\n");                        \
            print_outcomes(trial, processes);         \
            fail();                                   \
        }                                             \
    } while (0)

static bool blames_victims(const struct trial *trial, const trireme_error_info *info) {
    for (uint32_t i = 0; i < info->blamed_count && i < TRIREME_MAX_BLAMED_RANKS; ++i) {
        if (!is_victim(trial, info->blamed[i])) return false;
    }
    return info->blamed_count > 0;
}

static void check_survivors(const struct trial *trial, const struct processes *processes) {
    char name[256];
    describe(trial, name, sizeof name);
    uint64_t died_ns = UINT64_MAX; /* about: the call in which the first of them died began */
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        if (o->signal == SIGKILL && o->entered_ns < died_ns) died_ns = o->entered_ns;
    }
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(!o->hung, "hangs");
        if (is_victim(trial, rank) && o->signal == SIGKILL) continue;
        CHECK(died_ns != UINT64_MAX && (rank != trial->victim || trial->second >= 0),
              "was to die there, but ended with exit code %d, status %d", o->exit_code, o->status);
        CHECK(o->exit_code == 0, "exit code %d, signal %d", o->exit_code, o->signal);
        CHECK(!o->wrong, "a wrong result was called OK");
        CHECK(o->status == TRIREME_ERROR_PEER_LOST, "%s", trireme_status_name(o->status));
        CHECK(blames_victims(trial, &o->info), "blames %u ranks, first %d", o->info.blamed_count,
              o->info.blamed[0]);
        CHECK(o->info.code == TRIREME_ERROR_PEER_LOST, "the info says code %d", o->info.code);
        CHECK(o->later == TRIREME_ERROR_PEER_LOST, "later %s", trireme_status_name(o->later));
        if (is_victim(trial, rank)) continue;
        CHECK(o->again == TRIREME_OK, "the new group says %s", trireme_status_name(o->again));
        /* From the victim's last sign of life, or from when this rank began to need it. */
        const uint64_t since = died_ns > o->entered_ns ? died_ns : o->entered_ns;
        const uint64_t took = o->returned_ns > since ? o->returned_ns - since : 0;
        CHECK(took < AT_MOST_NS || is_quick(), "took %llu ms",
              (unsigned long long)(took / 1000000));
        if (took > PROMPT_NS) {
            print_message("%s: rank %d took %llu ms: %s\n", name, rank,
                          (unsigned long long)(took / 1000000), o->message);
        }
        if (time_count < MOST_TRIALS) times[time_count++] = took;
    }
    ++trial_count;
}

static void run_trial(struct trial *trial, process_function *function) {
    struct processes processes;
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    unique_process_rendezvous(trial->next_rendezvous, sizeof trial->next_rendezvous);
    start_processes(&processes, trial->world_size, function, trial);
    wait_processes(&processes);
    check_survivors(trial, &processes);
    free_processes(&processes);
}

/* Sizes and victims: first, middle and last, which is the root, and two. Between hosts the last
 * four are enough. */
static const struct {
    int world_size;
    int victim;
    int second;
} places[] = {{2, 0, -1}, {2, 1, -1}, {3, 0, -1}, {3, 1, -1}, {3, 2, -1},
              {4, 0, -1}, {4, 2, -1}, {4, 3, -1}, {4, 1, 2}};

enum { PLACES = sizeof places / sizeof places[0], ON_ONE_HOST = PLACES - 4 };

static bool between_hosts(void) {
    return ranks_use_network();
}

static const char *const points[] = {"before_publish", "after_publish", "before_move",
                                     "mid_move",       "after_move",    "before_leave"};

static struct call make_call(trireme_operation_kind operation, uint64_t count, int world_size) {
    struct call call = {.operation = operation,
                        .dtype = TRIREME_DTYPE_F32,
                        .reduction = TRIREME_REDUCTION_SUM,
                        .count = operation == TRIREME_OPERATION_KIND_BARRIER ? 0 : count,
                        .root = world_size - 1};
    for (int rank = 0; rank < MOST_RANKS; ++rank) call.counts[rank] = count + (uint64_t)rank * 3;
    return call;
}

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

static void survivors_of_a_collective_name_the_victim(void **state) {
    (void)state;
    unsigned turn = 0;
    for (int operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
         operation <= TRIREME_OPERATION_KIND_ALL_TO_ALL_V; ++operation) {
        if (!is_collective(operation)) continue;
        for (size_t point = 0; point < sizeof points / sizeof points[0]; ++point) {
            /* A part of all places each time, so that over all points every place has its turn. */
            for (int place = 0; place < PLACES; ++place) {
                if (between_hosts() && place < ON_ONE_HOST) continue;
                if (!between_hosts() && (place + (int)turn) % 4 == 0 && !is_long()) continue;
                if (is_quick() && (place + (int)turn) % PLACES != 1) continue;
                const unsigned kinds = is_long() ? 8 : 1;
                for (unsigned kind = 0; kind < kinds; ++kind) {
                    const unsigned bits = is_long() ? kind : turn + (unsigned)place * 3;
                    struct trial trial = {.world_size = places[place].world_size,
                                          .victim = places[place].victim,
                                          .second = places[place].second,
                                          .shared = (bits & 1) != 0,
                                          .started = (bits & 4) != 0};
                    trial.call =
                        make_call(operation, (bits & 2) != 0 ? LARGE : SMALL, trial.world_size);
                    snprintf(trial.failpoint, sizeof trial.failpoint, "%s.%s",
                             operation_text(operation), points[point]);
                    run_trial(&trial, call_until_it_fails);
                }
            }
            ++turn;
        }
    }
}

static void survivors_of_a_message_name_the_victim(void **state) {
    (void)state;
    static const char *const messages[] = {"send.before_first",   "send.mid_message",
                                           "send.before_done",    "receive.before_first",
                                           "receive.mid_message", "receive.before_done"};
    for (size_t point = 0; point < sizeof messages / sizeof messages[0]; ++point) {
        for (int place = 0; place < PLACES; ++place) {
            if (places[place].second >= 0) continue;
            if (between_hosts() && place < ON_ONE_HOST && place != 0) continue;
            if (is_quick() && (place + (int)point) % 4 != 0) continue;
            struct trial trial = {.world_size = places[place].world_size,
                                  .victim = places[place].victim,
                                  .second = -1};
            const bool in_pieces = strstr(messages[point], "mid_message") != NULL;
            trial.call.count = in_pieces || place % 2 == 0 ? LARGE : SMALL;
            snprintf(trial.failpoint, sizeof trial.failpoint, "%s", messages[point]);
            run_trial(&trial, talk_until_it_fails);
        }
    }
}

/* ---- death on the way in ---- */

/* Healthy ranks of a busy machine have joined within far less. */
#define JOIN_NS (5000ull * 1000 * 1000)

/* A rank that comes when all others have failed and left finds none that could tell it why. */
static void wait_for_survivors(const struct trial *trial, int rank, struct outcome *outcome) {
    const struct outcome *const all = outcome - rank;
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    __atomic_store_n(&outcome->numbers[0], 1, __ATOMIC_RELEASE);
    for (int other = 0; other < trial->world_size; ++other) {
        while (other != trial->victim &&
               __atomic_load_n(&all[other].numbers[0], __ATOMIC_ACQUIRE) == 0 &&
               monotonic_ns() < end) {
            sleep_ms(2);
        }
    }
}

static void join_and_call(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    if (rank == trial->victim) die_at(trial->failpoint, 1);
    trireme_communicator *const communicator =
        join_process(rank, trial->world_size, trial->rendezvous, JOIN_NS);
    /* The victim dies on a thread of the library, and on a busy machine its own may come through
     * barriers before. */
    trireme_status status;
    const uint64_t end = monotonic_ns() + JOIN_NS;
    do {
        outcome->entered_ns = monotonic_ns();
        status = trireme_barrier(communicator, NULL);
    } while (status == TRIREME_OK && monotonic_ns() < end);
    keep_error(outcome, status);
    outcome->returned_ns = monotonic_ns();
    outcome->later = trireme_barrier(communicator, NULL);
    wait_for_survivors(trial, rank, outcome);
    trireme_communicator_destroy(communicator);
    go_on_without_victim(trial, rank, outcome);
}

/* A victim that no rank had met is missing rather than lost. */
static void check_joining(const struct trial *trial, const struct processes *processes) {
    char name[256];
    describe(trial, name, sizeof name);
    for (int rank = 0; rank < trial->world_size; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        CHECK(!o->hung, "hangs");
        if (rank == trial->victim) {
            CHECK(o->signal == SIGKILL, "was to die there, but ended with exit code %d",
                  o->exit_code);
            continue;
        }
        CHECK(o->exit_code == 0, "exit code %d, signal %d", o->exit_code, o->signal);
        CHECK(o->status == TRIREME_ERROR_PEER_LOST || o->status == TRIREME_ERROR_TIMEOUT, "%s",
              trireme_status_name(o->status));
        CHECK(o->later == o->status, "later %s", trireme_status_name(o->later));
        /* Without rank 0 no rank can know which others are there. */
        bool blamed = blames_only(&o->info, trial->victim);
        if (o->status == TRIREME_ERROR_TIMEOUT && trial->victim == 0) {
            blamed = o->info.blamed_count > 0 && o->info.blamed[0] == 0;
        }
        CHECK(blamed, "%s blames %u ranks, first %d", trireme_status_name(o->status),
              o->info.blamed_count, o->info.blamed[0]);
        CHECK(o->again == TRIREME_OK, "the new group says %s", trireme_status_name(o->again));
    }
    ++trial_count;
}

static void survivors_of_a_death_on_the_way_in_name_the_victim(void **state) {
    (void)state;
    if (between_hosts()) skip(); /* it has other failpoints there */
    static const char *const joins[] = {"join.before_claim", "join.after_claim",
                                        "join.before_hello", "join.after_hello",
                                        "join.before_ready"};
    enum { JOINS = sizeof joins / sizeof joins[0], MOST = JOINS * PLACES };
    static struct trial trials[MOST];
    static struct processes groups[MOST];
    int count = 0;
    /* All at once, since some sleep to their deadline. */
    for (int point = 0; point < JOINS; ++point) {
        for (int place = 0; place < PLACES; ++place) {
            if (places[place].second >= 0) continue;
            if (is_quick() && (place + point) % 4 != 0) continue;
            struct trial *const trial = &trials[count];
            trial->world_size = places[place].world_size;
            trial->victim = places[place].victim;
            trial->second = -1;
            snprintf(trial->failpoint, sizeof trial->failpoint, "%s", joins[point]);
            unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
            unique_process_rendezvous(trial->next_rendezvous, sizeof trial->next_rendezvous);
            start_processes(&groups[count], trial->world_size, join_and_call, trial);
            ++count;
        }
    }
    for (int i = 0; i < count; ++i) {
        wait_processes(&groups[i]);
        check_joining(&trials[i], &groups[i]);
        free_processes(&groups[i]);
    }
}

static void the_time_to_detect_a_death_is_short(void **state) {
    (void)state;
    assert_true(time_count > 0);
    int prompt = 0;
    for (int i = 0; i < time_count; ++i) prompt += times[i] < PROMPT_NS;
    for (int i = 1; i < time_count; ++i) { /* insertion sort: a few thousand numbers */
        const uint64_t value = times[i];
        int at = i;
        for (; at > 0 && times[at - 1] > value; --at) times[at] = times[at - 1];
        times[at] = value;
    }
    const char *const hosts = getenv("TRIREME_TESTS_HOSTS");
    const char *const backend = network_backend();
    printf("kill: over %s%s%s, ",
           !between_hosts()  ? "host"
           : backend == NULL ? "memory, met by tcp"
                             : backend,
           hosts == NULL ? "" : ", on hosts ", hosts == NULL ? "" : hosts);
    printf(
        "%d trials, %d survivors, 0 hangs; time to detection p50 %.2f ms, p99 %.2f ms, "
        "max %.2f ms; %d of %d within 250 ms\n",
        trial_count, time_count, (double)times[time_count / 2] / 1e6,
        (double)times[time_count * 99 / 100] / 1e6, (double)times[time_count - 1] / 1e6, prompt,
        time_count);
    /* Sanitizers are too slow for a promise about time; and on a machine with ten times more to run
     * than it has cores, a few survivors wait that long for a core alone. */
    if (!is_quick()) {
        assert_true(trial_count >= 300);
        assert_true(prompt * 100 >= time_count * 95);
    }
}

/* ---- nothing is left ---- */

static int remember_first_files(void **state) {
    (void)state;
    remember_files();
    return 0;
}

static void no_death_leaves_a_file(void **state) {
    (void)state;
    assert_true(trial_count > 0);
    assert_true(no_file_is_left());
}

int main(int argc, char **argv) {
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_collective_name_the_victim),
        cmocka_unit_test(survivors_of_a_message_name_the_victim),
        cmocka_unit_test(survivors_of_a_death_on_the_way_in_name_the_victim),
        cmocka_unit_test(the_time_to_detect_a_death_is_short),
        cmocka_unit_test(no_death_leaves_a_file),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, remember_first_files, NULL);
}
