/*
 * kill -9 of one rank inside of a region's pass, at every step of it: each survivor gets PEER_LOST
 * that names this rank and the region. Passes before are right to the last bit, between processes
 * as between threads. Over host://, or with TRIREME_TESTS_NETWORK over tcp://.
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

#include "../api/regions.inc"
#include "processes.h"

#define PASSES 4 /* the failpoint acts after the first one, for which all ranks have come */

struct trial {
    struct spec spec;
    bool forward;
    int victim; /* -1: none dies */
    char failpoint[64];
    char rendezvous[64];
};

static void pass_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const communicator =
        join_process(rank, trial->spec.world_size, trial->rendezvous, PATIENT_NS);
    trireme_tensor *tensor = NULL;
    trireme_region *region = NULL;
    if (trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) _exit(92);
    if (make_tensor(communicator, trial->spec.blocks, &tensor) != TRIREME_OK) _exit(93);
    if (make_region(tensor, &trial->spec, "block 7", &region) != TRIREME_OK) _exit(94);
    for (uint64_t round = 0; round < PASSES; ++round) {
        struct arrays forward = make_arrays(&trial->spec, true, rank, round);
        struct arrays backward = make_arrays(&trial->spec, false, rank, round);
        struct arrays *const arrays = trial->forward ? &forward : &backward;
        trireme_status status = TRIREME_OK;
        if (!trial->forward) status = run_pass(region, true, &forward);
        if (round == 1 && rank == trial->victim &&
            trireme_failpoint_set(trial->failpoint) != TRIREME_OK) {
            _exit(91);
        }
        if (status == TRIREME_OK) status = run_pass(region, trial->forward, arrays);
        if (outcome->status == TRIREME_OK && status != TRIREME_OK) {
            keep_error(outcome, status);
        } else if (status != TRIREME_OK) {
            outcome->later = status;
        } else if (is_right(&trial->spec, trial->forward, rank, round, arrays)) {
            ++outcome->rounds;
        } else {
            outcome->wrong = true;
        }
        free_arrays(&forward);
        free_arrays(&backward);
    }
    trireme_region_info info = TRIREME_REGION_INFO_INIT;
    if (trireme_region_get_info(region, &info) != TRIREME_OK) _exit(96);
    outcome->numbers[0] = (int64_t)(trial->forward ? info.forward_passes : info.backward_passes);
    trireme_region_destroy(region);
    trireme_tensor_destroy(tensor);
    trireme_communicator_destroy(communicator);
}

static void run_trial(struct trial *trial) {
    struct processes processes;
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, trial->spec.world_size, pass_until_it_fails, trial);
    wait_processes(&processes);
    for (int rank = 0; rank < trial->spec.world_size; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        const bool dies = rank == trial->victim, lives = trial->victim < 0;
        const bool right =
            !o->hung && !o->wrong &&
            (dies    ? o->signal == SIGKILL
             : lives ? o->exit_code == 0 && o->status == TRIREME_OK && o->rounds == PASSES
                     : o->exit_code == 0 && o->status == TRIREME_ERROR_PEER_LOST &&
                           blames_only(&o->info, trial->victim) &&
                           strstr(o->message, "pass of region \"block 7\"") != NULL &&
                           o->rounds < PASSES) &&
            (dies || o->numbers[0] == o->rounds);
        if (!right) {
            print_error("%s, kind %d, %s: rank %d: exit code %d, signal %d%s, %d rounds, %s: %s\n",
                        trial->failpoint, (int)trial->spec.kind,
                        trial->forward ? "forward" : "backward", rank, o->exit_code, o->signal,
                        o->hung ? ", hung" : "", o->rounds, trireme_status_name(o->status),
                        o->message);
        }
        assert_true(right);
    }
    free_processes(&processes);
}

static const struct {
    trireme_region_kind kind;
    bool forward;
    const char *operation; /* as failpoints call it */
    int steps;             /* of a pass of 3 ranks with 8 blocks */
} moves[] = {{TRIREME_REGION_KIND_REDUCE, true, "all_reduce", 3},
             {TRIREME_REGION_KIND_COPY, false, "all_reduce", 3},
             {TRIREME_REGION_KIND_GATHER, true, "all_gather_v", 1},
             {TRIREME_REGION_KIND_GATHER_SUM, false, "reduce_scatter_v", 2},
             {TRIREME_REGION_KIND_EXCHANGE, true, "all_to_all_v", 1},
             {TRIREME_REGION_KIND_EXCHANGE, false, "all_to_all_v", 1}};

enum { MOVES = sizeof moves / sizeof moves[0] };

static struct trial make_trial(size_t move, uint64_t rows, uint64_t columns) {
    return (struct trial){.forward = moves[move].forward,
                          .victim = -1,
                          .spec = {.world_size = 3,
                                   .blocks = 8,
                                   .kind = moves[move].kind,
                                   .dimension = is_split(moves[move].kind)
                                                    ? TRIREME_REGION_DIMENSION_COLUMNS
                                                    : TRIREME_REGION_DIMENSION_NONE,
                                   .dtype = TRIREME_DTYPE_F32,
                                   .rows = rows,
                                   .columns = columns}};
}

static void survivors_name_the_victim_and_the_region(void **state) {
    (void)state;
    static const char *const points[] = {"before_publish", "after_publish", "before_move",
                                         "mid_move",       "after_move",    "before_leave"};
    for (size_t move = 0; move < MOVES; ++move) {
        for (size_t point = 0; point < sizeof points / sizeof points[0]; ++point) {
            for (int step = 1; step <= moves[move].steps; ++step) {
                struct trial trial = make_trial(move, 101, 997);
                trial.victim = (int)(move + point + (size_t)step) % 3;
                /* A rank that dies at the end of the last step has done its part. Then the next
                 * pass fails: two are still to come. */
                snprintf(trial.failpoint, sizeof trial.failpoint, "%s.%s=kill@%d",
                         moves[move].operation, points[point], step);
                if (is_quick() && (point + (size_t)step) % 3 != 0) continue;
                run_trial(&trial);
            }
        }
    }
}

/* No rank dies: processes compute the bits that threads do, small or large. */
static void processes_compute_the_same_bits(void **state) {
    (void)state;
    for (size_t move = 0; move < MOVES; ++move) {
        struct trial small = make_trial(move, 5, 7);
        small.spec.dtype = TRIREME_DTYPE_BF16;
        run_trial(&small);
        struct trial large = make_trial(move, 301, 1013);
        run_trial(&large);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_name_the_victim_and_the_region),
        cmocka_unit_test(processes_compute_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
