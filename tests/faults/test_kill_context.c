/*
 * kill -9 of one rank inside of an attention, at every step of it: each survivor gets PEER_LOST
 * that names this rank and the context. Passes before are near the plain computation, between
 * processes as between threads. Over host://, or with TRIREME_TESTS_NETWORK over tcp://.
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

#include "../api/attention.inc"
#include "processes.h"

#define PASSES 4 /* the failpoint acts after the first one, for which all ranks have come */
#define RANKS 3

static const struct attention shape = {.positions = 300,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .width = 16,
                                       .chunks = 8,
                                       .causal = true,
                                       .dtype = TRIREME_DTYPE_F32};

struct trial {
    trireme_context_method method;
    bool backward;
    int victim;       /* -1: none dies */
    bool in_callback; /* else at the failpoint */
    char failpoint[64];
    char rendezvous[64];
    const struct whole *whole;
};

static bool dies_now; /* in a callback of this process */

static int32_t TRIREME_CALLCONV dying_forward(const trireme_attention_call *call, void *user) {
    if (dies_now) raise(SIGKILL);
    return forward_pair(call, user);
}
static int32_t TRIREME_CALLCONV dying_backward(const trireme_attention_call *call, void *user) {
    if (dies_now) raise(SIGKILL);
    return backward_pair(call, user);
}

static bool is_near(const struct trial *trial, const struct rank_arrays *r) {
    const enum array last = trial->backward ? DV : OUTPUT;
    for (int i = OUTPUT; i <= (int)last; ++i) {
        const uint64_t columns = row_of_array(&shape, (enum array)i);
        for (uint64_t at = 0; at < r->rows * columns; ++at) {
            const double wanted =
                trial->whole->arrays[i][r->positions[at / columns] * columns + at % columns];
            const double got = ((const float *)r->memory[i])[at];
            if (!(fabs(got - wanted) <= 1e-4 * (1 + fabs(wanted)))) return false;
        }
    }
    return true;
}

static trireme_status
run_pass(trireme_context *context, const struct rank_arrays *r, bool backward) {
    const trireme_attention_arrays arrays = arrays_of_pass(r, backward);
    return backward ? trireme_context_attention_backward(context, &arrays, NULL)
                    : trireme_context_attention_forward(context, &arrays, NULL);
}

static void attend_until_it_fails(int rank, void *context_of_test, struct outcome *outcome) {
    const struct trial *const trial = context_of_test;
    trireme_communicator *const communicator =
        join_process(rank, RANKS, trial->rendezvous, PATIENT_NS);
    trireme_context_options options = context_options(&shape, 2, trial->method);
    trireme_attention_callbacks callbacks = TRIREME_ATTENTION_CALLBACKS_INIT;
    callbacks.forward = dying_forward;
    callbacks.backward = dying_backward;
    options.provider = TRIREME_ATTENTION_PROVIDER_CALLER;
    options.callbacks = &callbacks;
    trireme_context *context = NULL;
    if (trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) _exit(92);
    if (trireme_context_create(communicator, &options, &context) != TRIREME_OK) _exit(93);
    struct rank_arrays r = make_rank_arrays(&shape, context, rank);
    for (int round = 0; round < PASSES; ++round) {
        trireme_status status = TRIREME_OK;
        if (trial->backward) status = run_pass(context, &r, false);
        if (round == 1 && rank == trial->victim) {
            dies_now = trial->in_callback;
            if (!trial->in_callback && trireme_failpoint_set(trial->failpoint) != TRIREME_OK) {
                _exit(91);
            }
        }
        if (status == TRIREME_OK) status = run_pass(context, &r, trial->backward);
        if (outcome->status == TRIREME_OK && status != TRIREME_OK) {
            keep_error(outcome, status);
        } else if (status != TRIREME_OK) {
            outcome->later = status;
        } else if (is_near(trial, &r)) {
            ++outcome->rounds;
        } else {
            outcome->wrong = true;
        }
    }
    free_rank_arrays(&r);
    trireme_context_destroy(context);
    trireme_communicator_destroy(communicator);
}

static void run_trial(struct trial *trial) {
    struct processes processes;
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, RANKS, attend_until_it_fails, trial);
    wait_processes(&processes);
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        const bool dies = rank == trial->victim, lives = trial->victim < 0;
        const bool right =
            !o->hung && !o->wrong &&
            (dies    ? o->signal == SIGKILL
             : lives ? o->exit_code == 0 && o->status == TRIREME_OK && o->rounds == PASSES
                     : o->exit_code == 0 && o->status == TRIREME_ERROR_PEER_LOST &&
                           blames_only(&o->info, trial->victim) &&
                           strstr(o->message, "pass of context \"layer 3\"") != NULL &&
                           o->later == TRIREME_ERROR_PEER_LOST && o->rounds < PASSES);
        if (!right) {
            print_error(
                "%s, method %d, %s: rank %d: exit code %d, signal %d%s, %d rounds, "
                "%s: %s\n",
                trial->in_callback ? "in a callback" : trial->failpoint, (int)trial->method,
                trial->backward ? "backward" : "forward", rank, o->exit_code, o->signal,
                o->hung ? ", hung" : "", o->rounds, trireme_status_name(o->status), o->message);
        }
        assert_true(right);
    }
    free_processes(&processes);
}

static void survivors_name_the_victim_and_the_context(void **state) {
    struct trial trial = {.whole = *state};
    static const char *const points[] = {"before_publish", "after_publish", "before_move",
                                         "mid_move",       "after_move",    "before_leave"};
    static const struct {
        const char *operation; /* as failpoints call it */
        trireme_context_method method;
        bool backward;
    } moves[] = {{"all_gather_v", TRIREME_CONTEXT_METHOD_GATHER, false},
                 {"all_gather", TRIREME_CONTEXT_METHOD_GATHER, false},
                 {"all_to_all_v", TRIREME_CONTEXT_METHOD_GATHER, true},
                 {"barrier", TRIREME_CONTEXT_METHOD_RING, true},
                 {"all_to_all_v", TRIREME_CONTEXT_METHOD_RING, false},
                 {"all_to_all_v", TRIREME_CONTEXT_METHOD_RING, true}};
    for (size_t move = 0; move < sizeof moves / sizeof moves[0]; ++move) {
        for (size_t point = 0; point < sizeof points / sizeof points[0]; ++point) {
            /* Some have one step, or no bytes to move: the victim then dies nowhere. */
            const bool small = strcmp(moves[move].operation, "barrier") == 0 ||
                               strcmp(moves[move].operation, "all_gather") == 0;
            if (small && point >= 2 && point <= 4) continue;
            if (is_quick() && (point + move) % 3 != 0) continue;
            trial.method = moves[move].method;
            trial.backward = moves[move].backward;
            trial.victim = (int)(move + point) % RANKS;
            const bool several = strcmp(moves[move].operation, "all_to_all_v") == 0;
            snprintf(trial.failpoint, sizeof trial.failpoint, "%s.%s=kill@%d",
                     moves[move].operation, points[point], several ? 1 + (int)point % 2 : 1);
            run_trial(&trial);
        }
    }
}

static void a_rank_that_dies_in_its_callback_is_named(void **state) {
    struct trial trial = {.whole = *state, .in_callback = true};
    for (int choice = 0; choice < 4; ++choice) {
        trial.method = 1 + choice % 2;
        trial.backward = choice >= 2;
        trial.victim = choice % RANKS;
        run_trial(&trial);
    }
}

static void processes_compute_the_same(void **state) {
    struct trial trial = {.whole = *state, .victim = -1};
    for (int choice = 0; choice < 4; ++choice) {
        trial.method = 1 + choice % 2;
        trial.backward = choice >= 2;
        run_trial(&trial);
    }
}

int main(void) {
    struct whole whole = attend_plainly(&shape);
    void *const state = &whole;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(survivors_name_the_victim_and_the_context, state),
        cmocka_unit_test_prestate(a_rank_that_dies_in_its_callback_is_named, state),
        cmocka_unit_test_prestate(processes_compute_the_same, state),
    };
    const int result = cmocka_run_group_tests(tests, NULL, NULL);
    free_whole(&whole);
    return result;
}
