/*
 * SIGSTOP of one rank: for less than the deadline nothing is lost; for longer each other rank gets
 * TIMEOUT that names exactly the frozen one, and that one, once awake, gets an error too. Over
 * host://, or with TRIREME_TESTS_NETWORK as between hosts.
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

/* It stands still in the second or third; of the next the others may have said all before they gave
 * up. */
#define ROUNDS 6
/* Healthy ranks of a busy machine arrive within far less. */
#define SHORT_DEADLINE_NS (4000ull * 1000 * 1000)
/* The long run: frozen for nine tenths of one, or for five of the short ones. */
#define LONG_DEADLINE_NS (40000ull * 1000 * 1000)
#define NEARLY_MS 36000
#define FIVE_TIMES_MS 20000

struct trial {
    struct call call;
    char failpoint[64];
    int world_size;
    int victim;
    bool shared;
    uint64_t timeout_ns;
    char rendezvous[64];
};

static const trireme_operation_kind operations[] =
    {TRIREME_OPERATION_KIND_ALL_REDUCE,     TRIREME_OPERATION_KIND_ALL_GATHER,
     TRIREME_OPERATION_KIND_ALL_GATHER_V,   TRIREME_OPERATION_KIND_BROADCAST,
     TRIREME_OPERATION_KIND_REDUCE_SCATTER, TRIREME_OPERATION_KIND_REDUCE_SCATTER_V,
     TRIREME_OPERATION_KIND_BARRIER,        TRIREME_OPERATION_KIND_REDUCE,
     TRIREME_OPERATION_KIND_GATHER_V,       TRIREME_OPERATION_KIND_SCATTER,
     TRIREME_OPERATION_KIND_ALL_TO_ALL,     TRIREME_OPERATION_KIND_ALL_TO_ALL_V};
static const char *const points[] = {"before_publish", "after_publish", "mid_move", "before_leave"};

#define OPERATIONS (sizeof operations / sizeof operations[0])
#define POINTS (sizeof points / sizeof points[0])

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}
static bool on_network(void) {
    return getenv("TRIREME_TESTS_NETWORK") != NULL;
}

static struct trial make_trial(size_t operation, size_t point, uint64_t timeout_ns) {
    const size_t turn = operation * POINTS + point;
    struct trial trial = {.world_size = 2 + (int)(turn % 3), .timeout_ns = timeout_ns};
    trial.victim = (int)(turn / 3) % trial.world_size;
    trial.shared = turn % 2 == 0;
    trial.call = (struct call){.operation = operations[operation],
                               .dtype = TRIREME_DTYPE_F32,
                               .reduction = TRIREME_REDUCTION_SUM,
                               .count = turn % 4 < 2 ? 7 : 200001,
                               .root = trial.world_size - 1};
    for (int rank = 0; rank < MOST_RANKS; ++rank) trial.call.counts[rank] = 50 + (uint64_t)rank;
    snprintf(trial.failpoint, sizeof trial.failpoint, "%s.%s=stop@2",
             operation_text(operations[operation]), points[point]);
    unique_process_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
    /* The deadline is what ends a call, not a peer's silence. */
    if (on_network()) strcat(trial.rendezvous, "?silence_ms=60000");
    return trial;
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
    /* All are there before the first short deadline begins. */
    if (trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) _exit(93);
    for (int round = 0; round < ROUNDS && outcome->status == TRIREME_OK && !outcome->wrong;
         ++round) {
        /* Not in the first round, whose deadline is long: some operations pass a point twice. */
        if (round == 1 && rank == trial->victim &&
            trireme_failpoint_set(trial->failpoint) != TRIREME_OK) {
            _exit(91);
        }
        fill_call(&trial->call, &memory, rank, trial->world_size, round);
        const trireme_status status = run_call(communicator, &trial->call, &memory, false,
                                               round == 0 ? PATIENT_NS : trial->timeout_ns);
        if (status != TRIREME_OK) {
            keep_error(outcome, status);
        } else if (is_call_right(&trial->call, &memory, rank, trial->world_size, round)) {
            ++outcome->rounds;
        } else {
            outcome->wrong = true;
        }
    }
    /* A small call with a root may be over here without the frozen rank: a barrier waits for it.
     * The others may have joined the first barrier before their deadline, but none joins the
     * second. */
    for (int i = 0; i < 2 && outcome->status == TRIREME_OK && !outcome->wrong; ++i) {
        trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
        options.timeout_ns = trial->timeout_ns;
        const trireme_status status = trireme_barrier(communicator, &options);
        if (status != TRIREME_OK) keep_error(outcome, status);
    }
    if (outcome->status != TRIREME_OK) {
        outcome->later = run_call(communicator, &trial->call, &memory, false, trial->timeout_ns);
    }
    free_call(&memory, trial->shared);
    trireme_communicator_destroy(communicator);
}

static void print_outcome(const struct trial *trial, int rank, const struct outcome *o) {
    print_error(
        "%s, %d ranks, victim %d: rank %d: %s after %d rounds, exit code %d, signal %d, "
        "blames %u ranks%s%s: %s\n",
        trial->failpoint, trial->world_size, trial->victim, rank, trireme_status_name(o->status),
        o->rounds, o->exit_code, o->signal, o->info.blamed_count, o->hung ? ", hangs" : "",
        o->wrong ? ", wrong result" : "", o->message);
}

/* All trials of a test run at once, since they mostly sleep. */
#define MOST_TRIALS (OPERATIONS * POINTS)

static struct trial trials[MOST_TRIALS];
static struct processes groups[MOST_TRIALS];

static size_t start_trials(uint64_t timeout_ns) {
    size_t count = 0;
    for (size_t operation = 0; operation < OPERATIONS; ++operation) {
        for (size_t point = 0; point < POINTS; ++point) {
            if (is_quick() && (operation + point) % 4 != 0) continue;
            trials[count] = make_trial(operation, point, timeout_ns);
            start_processes(&groups[count], trials[count].world_size, call_until_it_fails,
                            &trials[count]);
            ++count;
        }
    }
    return count;
}

static void wait_until_frozen(size_t count) {
    for (size_t i = 0; i < count; ++i) {
        if (wait_stopped(&groups[i], trials[i].victim)) continue;
        print_outcome(&trials[i], trials[i].victim, &groups[i].outcomes[trials[i].victim]);
        fail();
    }
}

static void a_rank_frozen_for_less_than_the_deadline_does_no_harm(void **state) {
    (void)state;
    const size_t count = start_trials(is_long() ? LONG_DEADLINE_NS : PATIENT_NS);
    wait_until_frozen(count);
    sleep_ms(is_long() ? NEARLY_MS : 300);
    for (size_t i = 0; i < count; ++i) kill(groups[i].ids[trials[i].victim], SIGCONT);
    for (size_t i = 0; i < count; ++i) {
        wait_processes(&groups[i]);
        for (int rank = 0; rank < trials[i].world_size; ++rank) {
            const struct outcome *const o = &groups[i].outcomes[rank];
            if (o->exit_code == 0 && o->status == TRIREME_OK && o->rounds == ROUNDS && !o->wrong) {
                continue;
            }
            print_outcome(&trials[i], rank, o);
            fail();
        }
        free_processes(&groups[i]);
    }
    printf("frozen: %zu freezes for less than the deadline, all results right\n", count);
}

static void a_rank_frozen_for_longer_is_named_and_gets_an_error_itself(void **state) {
    (void)state;
    const size_t count = start_trials(SHORT_DEADLINE_NS);
    wait_until_frozen(count);
    if (is_long()) sleep_ms(FIVE_TIMES_MS);
    /* Others end by themselves; then the frozen ones may go on. */
    for (size_t i = 0; i < count; ++i) {
        for (int rank = 0; rank < trials[i].world_size; ++rank) {
            if (rank != trials[i].victim) assert_true(!wait_stopped(&groups[i], rank));
        }
        kill(groups[i].ids[trials[i].victim], SIGCONT);
    }
    for (size_t i = 0; i < count; ++i) {
        wait_processes(&groups[i]);
        for (int rank = 0; rank < trials[i].world_size; ++rank) {
            const struct outcome *const o = &groups[i].outcomes[rank];
            const bool alive = o->exit_code == 0 && !o->hung && !o->wrong;
            const bool right = rank == trials[i].victim
                                   ? o->status != TRIREME_OK && o->later != TRIREME_OK
                                   : o->status == TRIREME_ERROR_TIMEOUT &&
                                         o->later == TRIREME_ERROR_TIMEOUT &&
                                         blames_only(&o->info, trials[i].victim);
            if (alive && right) continue;
            print_outcome(&trials[i], rank, o);
            fail();
        }
        free_processes(&groups[i]);
    }
    printf("frozen: %zu freezes for longer, each survivor names the frozen rank\n", count);
}

/* Rank 2 stands still while it waits for rank 1 in the urgent queue. Rank 1 waits for a message of
 * rank 2, and rank 0 for both. */
static void wait_for_who_waits(int rank, void *context, struct outcome *outcome) {
    trireme_communicator *const communicator = join_process(rank, 3, context, PATIENT_NS);
    if (trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) _exit(93);
    int32_t one = 1, sum = 0;
    trireme_request *urgent = NULL;
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = rank == 0 ? SHORT_DEADLINE_NS : PATIENT_NS;
    if (rank == 0) {
        keep_error(outcome, trireme_barrier(communicator, &options));
    } else if (rank == 1) {
        keep_error(outcome,
                   trireme_receive(communicator, &one, 1, TRIREME_DTYPE_I32, 2, 0, &options));
    } else {
        options.priority = 1;
        if (trireme_all_reduce_start(communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                                     TRIREME_REDUCTION_SUM, &options, &urgent) != TRIREME_OK) {
            _exit(94);
        }
        sleep_ms(500); /* so that the others see it wait */
        raise(SIGSTOP);
        keep_error(outcome, trireme_request_wait(urgent, PATIENT_NS));
    }
    trireme_request_destroy(urgent);
    trireme_communicator_destroy(communicator);
}

static void a_frozen_rank_is_to_blame_even_if_it_waits_for_another(void **state) {
    (void)state;
    char rendezvous[96];
    struct processes group;
    unique_process_rendezvous(rendezvous, sizeof rendezvous);
    if (on_network()) strcat(rendezvous, "?silence_ms=60000");
    start_processes(&group, 3, wait_for_who_waits, rendezvous);
    assert_true(wait_stopped(&group, 2));
    /* Ranks 0 and 1 end by themselves. */
    assert_false(wait_stopped(&group, 0));
    assert_false(wait_stopped(&group, 1));
    kill(group.ids[2], SIGCONT);
    wait_processes(&group);
    for (int rank = 0; rank < 3; ++rank) {
        const struct outcome *const o = &group.outcomes[rank];
        const bool right = rank == 2
                               ? o->status != TRIREME_OK
                               : o->status == TRIREME_ERROR_TIMEOUT && blames_only(&o->info, 2);
        if (o->exit_code == 0 && !o->hung && right) continue;
        fail_msg("rank %d: exit %d, %s, blames %u, the first %d: %s", rank, o->exit_code,
                 trireme_status_name(o->status), o->info.blamed_count, o->info.blamed[0],
                 o->message);
    }
    free_processes(&group);
}

struct late_trial {
    char rendezvous[64];
    trireme_operation_kind operation; /* all_reduce, or broadcast of rank 1 */
    int overwritten[2];               /* pipe: the survivor has used its memory anew */
    int woken[2];                     /* pipe: the victim is through with its call */
};

#define LATE_COUNT 200001u

/* Rank 1 stops in the middle of writing to the memory of rank 0. */
static void write_late(int rank, void *context, struct outcome *outcome) {
    struct late_trial *const trial = context;
    const uint64_t bytes = LATE_COUNT * sizeof(float);
    trireme_communicator *const communicator = join_process(rank, 2, trial->rendezvous, PATIENT_NS);
    trireme_buffer *buffer = NULL;
    void *memory = NULL;
    if (trireme_buffer_alloc(communicator, bytes, &buffer) != TRIREME_OK ||
        trireme_buffer_get_data(buffer, &memory) != TRIREME_OK ||
        trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) {
        _exit(93);
    }
    const bool reduces = trial->operation == TRIREME_OPERATION_KIND_ALL_REDUCE;
    const char *const point =
        reduces ? "all_reduce.mid_write=stop@1" : "broadcast.mid_write=stop@1";
    if (rank == 1 && trireme_failpoint_set(point) != TRIREME_OK) _exit(91);
    memset(memory, 0x70, bytes); /* large next to what rank 0 writes later */
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = SHORT_DEADLINE_NS;
    keep_error(outcome, reduces
                            ? trireme_all_reduce(communicator, memory, memory, LATE_COUNT,
                                                 TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, &options)
                            : trireme_broadcast(communicator, memory, LATE_COUNT, TRIREME_DTYPE_F32,
                                                1, &options));
    char byte = 0;
    if (rank == 1) {
        if (write(trial->woken[1], &byte, 1) != 1) _exit(94);
    } else {
        memset(memory, 0x5a, bytes);
        if (write(trial->overwritten[1], &byte, 1) != 1) _exit(94);
        if (read(trial->woken[0], &byte, 1) != 1) _exit(95);
        for (uint64_t i = 0; i < bytes; ++i) {
            outcome->wrong = outcome->wrong || ((unsigned char *)memory)[i] != 0x5a;
        }
    }
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(communicator);
}

static void write_late_in(trireme_operation_kind operation) {
    struct late_trial trial;
    struct processes group;
    char byte = 0;
    trial.operation = operation;
    unique_process_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
    assert_int_equal(pipe(trial.overwritten), 0);
    assert_int_equal(pipe(trial.woken), 0);
    start_processes(&group, 2, write_late, &trial);
    assert_true(wait_stopped(&group, 1));
    close(trial.overwritten[1]);
    const bool survived = read(trial.overwritten[0], &byte, 1) == 1;
    kill(group.ids[1], SIGCONT);
    wait_processes(&group);
    assert_true(survived);
    assert_int_equal(group.outcomes[0].exit_code, 0);
    assert_int_equal(group.outcomes[0].status, TRIREME_ERROR_TIMEOUT);
    assert_true(blames_only(&group.outcomes[0].info, 1));
    assert_false(group.outcomes[0].wrong);
    assert_int_equal(group.outcomes[1].exit_code, 0);
    free_processes(&group);
    close(trial.overwritten[0]);
    close(trial.woken[0]);
    close(trial.woken[1]);
}

static void a_frozen_rank_that_wakes_writes_to_nobodys_memory(void **state) {
    (void)state;
    if (on_network()) skip(); /* ranks share no memory there */
    write_late_in(TRIREME_OPERATION_KIND_ALL_REDUCE);
    write_late_in(TRIREME_OPERATION_KIND_BROADCAST);
}

int main(void) {
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_frozen_for_less_than_the_deadline_does_no_harm),
        cmocka_unit_test(a_rank_frozen_for_longer_is_named_and_gets_an_error_itself),
        cmocka_unit_test(a_frozen_rank_is_to_blame_even_if_it_waits_for_another),
        cmocka_unit_test(a_frozen_rank_that_wakes_writes_to_nobodys_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
