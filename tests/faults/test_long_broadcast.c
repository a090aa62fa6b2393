/*
 * Broadcasts that are too long for a cell, and small calls with a root between hosts. Bytes of all
 * lengths are right. A root does not wait, a call needs room only where it goes, and a rank that
 * waits in vain blames the late one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "calls.h"
#include "processes.h"
#include "ranks.h"

#define WINDOW 64       /* cells */
#define WARM 8          /* equal calls after which the next one is announced */
#define LONG_COUNT 5000 /* elements of a broadcast that no cell holds */

struct group {
    int world_size;
    int given;
    struct verdict verdicts[8];
};

struct late {
    pthread_barrier_t steps;
    trireme_status later[4];
    trireme_error_info info;
    struct verdict verdicts[4];
};

/* Rank 2 stands still. Rank 1 sends rank 2 its first cell, and nothing in the call that comes to
 * the same place. So it needs no room there. */
struct room {
    pthread_barrier_t steps;
    trireme_status status[3];
    struct verdict verdicts[3];
};

static void
call_past_a_rank_that_stands_still(trireme_communicator *communicator, int rank, void *context) {
    struct room *const room = context;
    struct verdict *const verdict = &room->verdicts[rank];
    int32_t numbers[2] = {0, 0};
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = 20ull * 1000 * 1000 * 1000;
    /* Of three calls each announces the next one. Rank 1 is the root of the first. */
    for (int i = 0; i < 2 * WINDOW + 65; ++i) {
        if (i == 2 * WINDOW - 2) {
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
            pthread_barrier_wait(&room->steps);
            if (rank == 2) pthread_barrier_wait(&room->steps);
        }
        const int root = i % 3 == 0 ? 1 : 0;
        const uint64_t count = i % 3 == 2 ? 2 : 1;
        if (rank == root) numbers[0] = numbers[1] = i;
        const trireme_status status =
            trireme_broadcast(communicator, numbers, count, TRIREME_DTYPE_I32, root, &options);
        if (room->status[rank] == TRIREME_OK) room->status[rank] = status;
        EXPECT(verdict, numbers[count - 1] == i);
        if (i == 2 * WINDOW - 2 + 64 && rank != 2) pthread_barrier_wait(&room->steps);
    }
}

static void a_call_asks_room_only_of_ranks_that_it_goes_to(void **state) {
    (void)state;
    if (!ranks_use_network()) return; /* in one memory all ranks read the same cell */
    struct room room = {0};
    pthread_barrier_init(&room.steps, NULL, 3);
    run_ranks(3, call_past_a_rank_that_stands_still, &room);
    pthread_barrier_destroy(&room.steps);
    assert_verdicts(room.verdicts, 3);
    for (int rank = 0; rank < 3; ++rank) assert_int_equal(room.status[rank], TRIREME_OK);
}

/* A root may send its elements to rank 1 alone, which passes them on. Rank 1 calls only when all
 * ranks behind it have them. */
struct passing {
    int world_size;
    bool scatters;
    int done;
    struct verdict verdicts[8];
};

static void call_behind_a_late_rank(trireme_communicator *communicator, int rank, void *context) {
    struct passing *const passing = context;
    const int n = passing->world_size;
    struct verdict *const verdict = &passing->verdicts[rank];
    for (int call = 0; call < WARM + 4; ++call) {
        int32_t elements[3 * 8];
        int32_t own[3] = {-1, -1, -1};
        for (int i = 0; i < 3 * n; ++i) elements[i] = call * 7919 + i * 31;
        const int first = passing->scatters ? 3 * rank : 0;
        if (call == WARM) {
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
            while (rank == 1 && __atomic_load_n(&passing->done, __ATOMIC_ACQUIRE) < n - 2)
                usleep(100);
        }
        if (!passing->scatters && rank == 0) memcpy(own, elements, sizeof own);
        const trireme_status status =
            passing->scatters
                ? trireme_scatter(communicator, elements, own, 3, TRIREME_DTYPE_I32, 0, NULL)
                : trireme_broadcast(communicator, own, 3, TRIREME_DTYPE_I32, 0, NULL);
        EXPECT_STATUS(verdict, TRIREME_OK, status);
        for (int i = 0; i < 3; ++i) EXPECT(verdict, own[i] == call * 7919 + (first + i) * 31);
        if (call == WARM && rank > 1) __atomic_add_fetch(&passing->done, 1, __ATOMIC_ACQ_REL);
    }
}

static void a_rank_passes_on_though_it_has_not_called(void **state) {
    (void)state;
    static const int worlds[] = {3, 4, 5, 8};
    for (size_t i = 0; i < 2 * sizeof worlds / sizeof worlds[0]; ++i) {
        struct passing passing = {.world_size = worlds[i / 2], .scatters = i % 2 == 1};
        run_ranks(passing.world_size, call_behind_a_late_rank, &passing);
        assert_verdicts(passing.verdicts, passing.world_size);
    }
}

/* Rank 1 leaves without the last call. Ranks behind it get the elements, or hear that it has left:
 * not only at the deadline. */
static void
call_behind_a_rank_that_leaves(trireme_communicator *communicator, int rank, void *context) {
    struct passing *const passing = context;
    struct verdict *const verdict = &passing->verdicts[rank];
    for (int call = 0; call <= WARM; ++call) {
        if (call == WARM) {
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
            if (rank == 1) return;
            if (rank == 0) usleep(30000);
        }
        int32_t number = rank == 0 ? call : -1;
        const trireme_status status =
            trireme_broadcast(communicator, &number, 1, TRIREME_DTYPE_I32, 0, NULL);
        if (call == WARM && status != TRIREME_OK) {
            trireme_error_info info = TRIREME_ERROR_INFO_INIT;
            EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST, status);
            EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
            EXPECT(verdict, info.blamed_count == 1 && info.blamed[0] == 1);
        } else {
            EXPECT_STATUS(verdict, TRIREME_OK, status);
            EXPECT(verdict, number == call);
        }
    }
}

static void a_rank_hears_that_one_before_it_has_left(void **state) {
    (void)state;
    for (int n = 3; n <= 5; ++n) {
        struct passing passing = {.world_size = n};
        run_ranks(n, call_behind_a_rank_that_leaves, &passing);
        assert_verdicts(passing.verdicts, n);
    }
}

/* Rank 1 has left before a call that it would pass on. So rank 5 never gets the root's elements,
 * and is in another call. It hears all the same that the root has left. */
static void
receive_from_a_root_that_leaves(trireme_communicator *communicator, int rank, void *context) {
    struct passing *const passing = context;
    struct verdict *const verdict = &passing->verdicts[rank];
    int32_t number = 5;
    for (int call = 0; call < WARM; ++call) {
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_broadcast(communicator, &number, 1, TRIREME_DTYPE_I32, 0, NULL));
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == 0) {
        usleep(30000);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_broadcast(communicator, &number, 1, TRIREME_DTYPE_I32, 0, NULL));
    }
    if (rank != 5) return;
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = LONG_NS;
    EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                  trireme_receive(communicator, &number, 1, TRIREME_DTYPE_I32, 0, 7, &options));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(verdict, blames_only(&info, 0));
}

static void a_root_has_left_though_nobody_passes_on_what_it_gave(void **state) {
    (void)state;
    struct passing passing = {.world_size = 8};
    run_ranks(8, receive_from_a_root_that_leaves, &passing);
    assert_verdicts(passing.verdicts, 8);
}

/* The root of a long broadcast returns though no other rank has come. */
static void give_long(trireme_communicator *communicator, int rank, void *context) {
    struct group *const group = context;
    struct verdict *const verdict = &group->verdicts[rank];
    int32_t *const numbers = malloc(LONG_COUNT * sizeof *numbers);
    if (numbers == NULL) abort();
    for (int call = 0; call < WARM + 4; ++call) {
        if (call == WARM) EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
        if (call == WARM && rank != 1) {
            while (__atomic_load_n(&group->given, __ATOMIC_ACQUIRE) == 0) usleep(100);
        }
        for (int i = 0; i < LONG_COUNT; ++i) numbers[i] = rank == 1 ? call * 7919 + i : -1;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_broadcast(communicator, numbers, LONG_COUNT, TRIREME_DTYPE_I32, 1,
                                        NULL));
        for (int i = 0; i < LONG_COUNT; ++i) EXPECT(verdict, numbers[i] == call * 7919 + i);
    }
    if (rank == 1) __atomic_store_n(&group->given, 1, __ATOMIC_RELEASE);
    free(numbers);
}

static void the_root_of_a_long_broadcast_does_not_wait(void **state) {
    (void)state;
    if (!ranks_use_network()) return;
    static const int worlds[] = {2, 3, 5};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; ++i) {
        struct group group = {.world_size = worlds[i]};
        run_ranks(worlds[i], give_long, &group);
        assert_verdicts(group.verdicts, worlds[i]);
    }
}

/* Broadcasts of many lengths: up to 4 KiB, along a tree, in pieces, and of the kinds in turn. */
static void broadcast_all_lengths(trireme_communicator *communicator, int rank, void *context) {
    struct group *const group = context;
    const int n = group->world_size;
    static const uint64_t lengths[] = {4096, 4097, 65535, 65536, 65537, 131072 + 3, (1 << 20) + 7};
    unsigned char *const memory = malloc((1 << 20) + 7);
    if (memory == NULL) abort();
    bool right = true;
    for (int round = 0; round < 3; ++round) {
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; ++l) {
            for (int root = 0; right && root < n; ++root) {
                const int seed = round * 7 + root * 3 + (int)l;
                for (uint64_t i = 0; i < lengths[l]; ++i) {
                    memory[i] =
                        rank == root ? (unsigned char)(i * 31 + (i >> 8) + (uint64_t)seed) : 0;
                }
                right = trireme_broadcast(communicator, memory, lengths[l], TRIREME_DTYPE_U8, root,
                                          NULL) == TRIREME_OK;
                for (uint64_t i = 0; i < lengths[l]; ++i) {
                    right &= memory[i] == (unsigned char)(i * 31 + (i >> 8) + (uint64_t)seed);
                }
            }
        }
    }
    EXPECT(&group->verdicts[rank], right);
    free(memory);
}

static void broadcasts_of_all_lengths_are_right(void **state) {
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; ++i) {
        struct group group = {.world_size = worlds[i]};
        run_ranks(worlds[i], broadcast_all_lengths, &group);
        assert_verdicts(group.verdicts, worlds[i]);
    }
}

/* The root is late. The last rank of the tree is the first whose deadline passes; it awaits a rank
 * that has come. */
#define ENOUGH_NS (1000ull * 1000 * 1000)

static void wait_for_a_late_root(trireme_communicator *communicator, int rank, void *context) {
    struct late *const late = context;
    const struct call call = {.operation = TRIREME_OPERATION_KIND_BROADCAST,
                              .dtype = TRIREME_DTYPE_F32,
                              .count = LONG_COUNT,
                              .root = 0};
    struct call_memory memory;
    struct verdict *const verdict = &late->verdicts[rank];
    if (!EXPECT(verdict, allocate_call(communicator, &call, rank, 4, false, &memory))) abort();
    for (int i = 0; i < WARM; ++i) {
        EXPECT_STATUS(verdict, TRIREME_OK, run_call(communicator, &call, &memory, false, LONG_NS));
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank != 0) {
        late->later[rank] =
            run_call(communicator, &call, &memory, false, rank == 3 ? ENOUGH_NS : LONG_NS);
    }
    if (rank == 3) {
        late->info.struct_size = sizeof late->info;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&late->info));
    }
    pthread_barrier_wait(&late->steps);
    free_call(&memory, false);
}

static void the_last_rank_of_a_tree_blames_the_late_root(void **state) {
    (void)state;
    if (!ranks_use_network()) return;
    struct late *const late = calloc(1, sizeof *late);
    assert_non_null(late);
    pthread_barrier_init(&late->steps, NULL, 4);
    run_ranks(4, wait_for_a_late_root, late);
    pthread_barrier_destroy(&late->steps);
    assert_verdicts(late->verdicts, 4);
    for (int rank = 1; rank < 4; ++rank) assert_int_equal(late->later[rank], TRIREME_ERROR_TIMEOUT);
    assert_true(blames_only(&late->info, 0));
    free(late);
}

/* The root stands still when all ranks have come, before it sends its bytes. The last rank of the
 * tree is the first whose deadline passes: rank 2 above it has come, and has no bytes either. */
struct stall {
    const char *failpoint;
    char rendezvous[64];
};

static void wait_for_bytes(int rank, void *context, struct outcome *outcome) {
    const struct stall *const stall = context;
    const struct call call = {.operation = TRIREME_OPERATION_KIND_BROADCAST,
                              .dtype = TRIREME_DTYPE_F32,
                              .count = LONG_COUNT,
                              .root = 0};
    struct call_memory memory;
    trireme_communicator *const communicator = join_process(rank, 4, stall->rendezvous, PATIENT_NS);
    if (!allocate_call(communicator, &call, rank, 4, false, &memory)) _exit(92);
    if (trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) _exit(93);
    if (rank == 0 && trireme_failpoint_set(stall->failpoint) != TRIREME_OK) _exit(91);
    /* The first call of its kind is told to all. */
    keep_error(outcome, run_call(communicator, &call, &memory, false,
                                 rank == 3 ? 2 * ENOUGH_NS : PATIENT_NS));
    free_call(&memory, false);
    trireme_communicator_destroy(communicator);
}

/* Only rank 2 may be blamed besides: rank 3 cannot know whether it has the bytes. */
static bool blames(const trireme_error_info *info, int rank) {
    for (uint32_t i = 0; i < info->blamed_count; ++i) {
        if (info->blamed[i] == rank) return true;
    }
    return false;
}

static void a_root_that_keeps_its_bytes_is_blamed(void **state) {
    (void)state;
    if (!ranks_use_network()) return;
    static const char *const failpoints[] = {"broadcast.before_move=sleep(80000)",
                                             "broadcast.before_move=stop"};
    for (size_t i = 0; i < sizeof failpoints / sizeof failpoints[0]; ++i) {
        struct stall stall = {.failpoint = failpoints[i]};
        unique_network_rendezvous(stall.rendezvous, sizeof stall.rendezvous);
        /* The deadline is what ends the call, not a peer's silence. */
        strcat(stall.rendezvous, "?silence_ms=60000");
        struct processes processes;
        start_processes(&processes, 4, wait_for_bytes, &stall);
        for (int rank = 1; rank < 4; ++rank) assert_false(wait_stopped(&processes, rank));
        kill(processes.ids[0], SIGKILL);
        wait_processes(&processes);
        for (int rank = 1; rank < 4; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            if (o->exit_code == 0 && o->status == TRIREME_ERROR_TIMEOUT && blames(&o->info, 0) &&
                !blames(&o->info, 1) && !blames(&o->info, 3) &&
                strstr(o->message, "has not passed its bytes on") != NULL &&
                strstr(o->message, "did not arrive") == NULL) {
                continue;
            }
            fail_msg("%s: rank %d: exit code %d, %s, blames %u ranks: %s", stall.failpoint, rank,
                     o->exit_code, trireme_status_name(o->status), o->info.blamed_count,
                     o->message);
        }
        free_processes(&processes);
    }
}

/* Rank 1 stands still before a call whose elements it passes on. The root has come. Its next call
 * tells the others so, or it makes none. */
static void wait_behind_a_stopped_rank(int rank, void *context, struct outcome *outcome) {
    const struct stall *const stall = context;
    trireme_communicator *const communicator = join_process(rank, 4, stall->rendezvous, PATIENT_NS);
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    int32_t number = 5;
    for (int call = 0; call < WARM; ++call) {
        if (trireme_broadcast(communicator, &number, 1, TRIREME_DTYPE_I32, 0, NULL) != TRIREME_OK)
            _exit(93);
    }
    if (trireme_barrier(communicator, NULL) != TRIREME_OK) _exit(94);
    if (rank == 1 && trireme_failpoint_set("broadcast.before_publish=stop") != TRIREME_OK)
        _exit(91);
    options.timeout_ns = rank == 0 ? PATIENT_NS : ENOUGH_NS;
    if (rank == 0) usleep(100000); /* rank 1 stands still */
    keep_error(outcome,
               trireme_broadcast(communicator, &number, 1, TRIREME_DTYPE_I32, 0, &options));
    if (rank == 0 && stall->failpoint != NULL) trireme_barrier(communicator, &options);
    if (rank == 0 && stall->failpoint == NULL) usleep(2 * ENOUGH_NS / 1000);
    trireme_communicator_destroy(communicator);
}

static void a_rank_that_passes_nothing_on_is_blamed_and_not_the_root(void **state) {
    (void)state;
    if (!ranks_use_network() || getenv("TRIREME_TESTS_HOSTS") != NULL) return;
    for (int knows = 0; knows < 2; ++knows) {
        struct stall stall = {.failpoint = knows ? "barrier" : NULL};
        unique_network_rendezvous(stall.rendezvous, sizeof stall.rendezvous);
        strcat(stall.rendezvous, "?silence_ms=60000");
        struct processes processes;
        start_processes(&processes, 4, wait_behind_a_stopped_rank, &stall);
        for (int rank = 2; rank < 4; ++rank) assert_false(wait_stopped(&processes, rank));
        kill(processes.ids[1], SIGKILL);
        wait_processes(&processes);
        const char *const text =
            knows ? "rank 1 has not passed its bytes on"
                  : "rank 0 did not arrive before the deadline, or rank 1 did not pass on";
        for (int rank = 2; rank < 4; ++rank) {
            const struct outcome *const o = &processes.outcomes[rank];
            if (o->exit_code == 0 && o->status == TRIREME_ERROR_TIMEOUT && blames(&o->info, 1) &&
                strstr(o->message, text) != NULL &&
                (!knows || strstr(o->message, "did not arrive") == NULL)) {
                continue;
            }
            fail_msg("rank %d: exit code %d, %s, blames %u ranks: %s", rank, o->exit_code,
                     trireme_status_name(o->status), o->info.blamed_count, o->message);
        }
        free_processes(&processes);
    }
}

/* Rank 1 stands still for longer than a leaver's calls are awaited elsewhere, then passes on what
 * the root gave before it left. */
static void take_from_a_root_that_has_left(int rank, void *context, struct outcome *outcome) {
    const struct stall *const stall = context;
    trireme_communicator *const communicator = join_process(rank, 4, stall->rendezvous, PATIENT_NS);
    int32_t number = 5;
    for (int call = 0; call < WARM; ++call) {
        if (trireme_broadcast(communicator, &number, 1, TRIREME_DTYPE_I32, 0, NULL) != TRIREME_OK)
            _exit(93);
    }
    if (trireme_barrier(communicator, NULL) != TRIREME_OK) _exit(94);
    if (rank == 1 && trireme_failpoint_set(stall->failpoint) != TRIREME_OK) _exit(91);
    if (rank == 0) usleep(100000); /* rank 1 stands still */
    number = rank == 0 ? 77 : -1;
    keep_error(outcome, trireme_broadcast(communicator, &number, 1, TRIREME_DTYPE_I32, 0, NULL));
    outcome->wrong = number != 77;
    trireme_communicator_destroy(communicator);
}

static void a_stopped_rank_may_pass_on_what_a_root_gave_before_it_left(void **state) {
    (void)state;
    if (!ranks_use_network()) return;
    struct stall stall = {.failpoint = "broadcast.before_publish=stop"};
    unique_network_rendezvous(stall.rendezvous, sizeof stall.rendezvous);
    struct processes processes;
    start_processes(&processes, 4, take_from_a_root_that_has_left, &stall);
    assert_true(wait_stopped(&processes, 1));
    usleep(700000);
    kill(processes.ids[1], SIGCONT);
    wait_processes(&processes);
    for (int rank = 0; rank < 4; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        if (o->exit_code == 0 && o->status == TRIREME_OK && !o->wrong) continue;
        fail_msg("rank %d: exit code %d, %s%s: %s", rank, o->exit_code,
                 trireme_status_name(o->status), o->wrong ? ", a wrong number" : "", o->message);
    }
    free_processes(&processes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_root_that_keeps_its_bytes_is_blamed), /* first: children begin afresh */
        cmocka_unit_test(a_rank_that_passes_nothing_on_is_blamed_and_not_the_root),
        cmocka_unit_test(a_stopped_rank_may_pass_on_what_a_root_gave_before_it_left),
        cmocka_unit_test(broadcasts_of_all_lengths_are_right),
        cmocka_unit_test(a_rank_passes_on_though_it_has_not_called),
        cmocka_unit_test(a_rank_hears_that_one_before_it_has_left),
        cmocka_unit_test(a_root_has_left_though_nobody_passes_on_what_it_gave),
        cmocka_unit_test(the_root_of_a_long_broadcast_does_not_wait),
        cmocka_unit_test(a_call_asks_room_only_of_ranks_that_it_goes_to),
        cmocka_unit_test(the_last_rank_of_a_tree_blames_the_late_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
