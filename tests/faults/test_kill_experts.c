/*
 * kill -9 of one rank inside of a pass of experts, at every step of it: each survivor gets
 * PEER_LOST that names this rank and the layer. Passes before are near the plain computation,
 * between processes as between threads. Over host://, or with TRIREME_TESTS_NETWORK over tcp://.
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

#include "../api/experts.inc"
#include "processes.h"

#define ROUNDS 4 /* the failpoint acts in the second one, and one comes after a failure */
#define RANKS 3
#define PASSES 5

static const char *const pass_names[PASSES] = {"route", "dispatch", "combine", "backward combine",
                                               "backward dispatch"};

static const struct layer shape = {.experts = 4,
                                   .top_k = 2,
                                   .leaves = 6,
                                   .width = 16,
                                   .leaf_rows = {20, 11, 30, 0, 25, 17},
                                   .dtype = TRIREME_DTYPE_F32,
                                   .scores = TRIREME_EXPERTS_SCORES_LOGITS};

struct trial {
    int pass;   /* in which the victim dies */
    int victim; /* -1: none dies */
    char failpoint[64];
    char rendezvous[64];
    const struct whole *whole;
};

struct member {
    trireme_experts *experts;
    trireme_experts_info info;
    struct rank_arrays r;
};

static trireme_status run_pass(const struct member *m, int pass) {
    const struct rank_arrays *const r = &m->r;
    const trireme_experts_route_arrays arrays = route_arrays(&shape, r, &m->info);
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    switch (pass) {
        case 0: return trireme_experts_route(m->experts, &arrays, &routed, NULL);
        case 1: return trireme_experts_dispatch(m->experts, r->kept, r->data, r->received, NULL);
        case 2:
            return trireme_experts_combine(m->experts, r->kept, r->results, r->returned, r->output,
                                           NULL);
        case 3:
            return trireme_experts_combine_backward(m->experts, r->kept, r->d_output, r->returned,
                                                    r->d_results, r->d_weights, NULL);
        default:
            return trireme_experts_dispatch_backward(m->experts, r->kept, r->d_received, r->d_rows,
                                                     NULL);
    }
}

static void compute(const struct member *m, bool backward) {
    float matrix[16 * 16] = {0};
    for (uint32_t e = 0; e < m->info.expert_count; ++e) {
        compute_expert(&shape, &m->r, m->info.first_expert + e, m->r.segments[e * m->info.leaves],
                       m->r.segments[(e + 1) * m->info.leaves], backward ? matrix : NULL);
    }
}

static bool is_near(const struct trial *trial, const struct rank_arrays *r) {
    const uint64_t first = r->first * shape.width;
    for (uint64_t i = 0; i < r->rows * shape.width; ++i) {
        const double output = trial->whole->results[OUTPUT][first + i];
        const double gradient = trial->whole->results[D_ROWS][first + i];
        if (!(fabs((double)((float *)r->output)[i] - output) <= 1e-4 * (1 + fabs(output)))) {
            return false;
        }
        if (!(fabs((double)((float *)r->d_rows)[i] - gradient) <= 1e-4 * (1 + fabs(gradient)))) {
            return false;
        }
    }
    return true;
}

/* All passes of a round, or those up to a failure. */
static trireme_status run_round(const struct trial *trial, const struct member *m, bool dies) {
    for (int pass = 0; pass < PASSES; ++pass) {
        if (dies && pass == trial->pass && trireme_failpoint_set(trial->failpoint) != TRIREME_OK) {
            _exit(91);
        }
        const trireme_status status = run_pass(m, pass);
        if (status != TRIREME_OK) return status;
        if (pass == 1 || pass == 3) compute(m, pass == 3);
    }
    return TRIREME_OK;
}

/* All ranks but rank 0 refuse what it kept. Their layers differ in nothing but the rank. */
static bool
is_refused_elsewhere(trireme_communicator *communicator, const struct member *m, int rank) {
    if (trireme_broadcast(communicator, m->r.kept, m->info.kept_bytes, TRIREME_DTYPE_BYTES, 0,
                          NULL) != TRIREME_OK) {
        return false;
    }
    /* Long enough for the rows of any rank. */
    float *const scores = take(all_rows(&shape) * shape.experts * sizeof(float));
    float *const d_weights = take(all_rows(&shape) * shape.top_k * sizeof(float));
    const trireme_status status =
        trireme_experts_route_backward(m->experts, m->r.kept, scores, d_weights, NULL, scores);
    free(scores);
    free(d_weights);
    return status == (rank == 0 ? TRIREME_OK : TRIREME_ERROR_INVALID_ARGUMENT);
}

static void run_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const communicator =
        join_process(rank, RANKS, trial->rendezvous, PATIENT_NS);
    const trireme_experts_options options = experts_options(&shape);
    struct member m = {.info = TRIREME_EXPERTS_INFO_INIT};
    if (trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) _exit(92);
    if (trireme_experts_create(communicator, &options, &m.experts) != TRIREME_OK) _exit(93);
    if (trireme_experts_get_info(m.experts, &m.info) != TRIREME_OK) _exit(94);
    m.r = make_rank_arrays(&shape, &m.info);
    for (int round = 0; round < ROUNDS; ++round) {
        const trireme_status status = run_round(trial, &m, round == 1 && rank == trial->victim);
        if (outcome->status == TRIREME_OK && status != TRIREME_OK) {
            keep_error(outcome, status);
        } else if (status != TRIREME_OK) {
            outcome->later = status;
        } else if (is_near(trial, &m.r)) {
            ++outcome->rounds;
        } else {
            outcome->wrong = true;
        }
    }
    if (trial->victim < 0 && !is_refused_elsewhere(communicator, &m, rank)) outcome->wrong = true;
    free_rank_arrays(&m.r);
    trireme_experts_destroy(m.experts);
    trireme_communicator_destroy(communicator);
}

/* A rank that has what it needs may be one pass further on when it hears of the death. */
static bool names_the_pass(const struct trial *trial, const char *message) {
    char words[80];
    for (int pass = trial->pass; pass <= trial->pass + 1; ++pass) {
        snprintf(words, sizeof words, "%s pass of experts \"moe 3\"", pass_names[pass % PASSES]);
        if (strstr(message, words) != NULL) return true;
    }
    return false;
}

static void run_trial(struct trial *trial) {
    struct processes processes;
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, RANKS, run_until_it_fails, trial);
    wait_processes(&processes);
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        const bool dies = rank == trial->victim, lives = trial->victim < 0;
        const bool right =
            !o->hung && !o->wrong &&
            (dies    ? o->signal == SIGKILL
             : lives ? o->exit_code == 0 && o->status == TRIREME_OK && o->rounds == ROUNDS
                     : o->exit_code == 0 && o->status == TRIREME_ERROR_PEER_LOST &&
                           o->later == TRIREME_ERROR_PEER_LOST &&
                           blames_only(&o->info, trial->victim) &&
                           names_the_pass(trial, o->message) && o->rounds < ROUNDS - 1);
        if (!right) {
            print_error("%s, %s: rank %d: exit code %d, signal %d%s, %d rounds, %s: %s\n",
                        trial->failpoint, pass_names[trial->pass], rank, o->exit_code, o->signal,
                        o->hung ? ", hung" : "", o->rounds, trireme_status_name(o->status),
                        o->message);
        }
        assert_true(right);
    }
    free_processes(&processes);
}

static void survivors_name_the_victim_and_the_pass(void **state) {
    static const char *const points[] = {"before_publish", "after_publish", "before_move",
                                         "mid_move",       "after_move",    "before_leave"};
    for (int pass = 0; pass < PASSES; ++pass) {
        for (size_t point = 0; point < sizeof points / sizeof points[0]; ++point) {
            if (is_quick() && (point + (size_t)pass) % 3 != 0) continue;
            struct trial trial = {.whole = *state, .pass = pass};
            trial.victim = (int)((size_t)pass + point) % RANKS;
            /* Two experts on one rank: rows travel in two rounds. */
            snprintf(trial.failpoint, sizeof trial.failpoint, "%s.%s=kill@%d",
                     pass == 0 ? "all_gather_v" : "all_to_all_v", points[point],
                     pass == 0 ? 1 : 1 + (int)point % 2);
            run_trial(&trial);
        }
    }
}

static void processes_compute_the_same(void **state) {
    struct trial trial = {.whole = *state, .victim = -1};
    run_trial(&trial);
}

int main(void) {
    struct whole whole = make_whole(&shape);
    run_plainly(&shape, &whole);
    run_backward_plainly(&shape, &whole);
    void *const state = &whole;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(survivors_name_the_victim_and_the_pass, state),
        cmocka_unit_test_prestate(processes_compute_the_same, state),
    };
    const int result = cmocka_run_group_tests(tests, NULL, NULL);
    free_whole(&whole);
    return result;
}
