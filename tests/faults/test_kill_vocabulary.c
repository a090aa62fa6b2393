/*
 * kill -9 of one rank inside of an embed or loss pass, at every step of it: each survivor gets
 * PEER_LOST that names this rank and the vocabulary. Passes before have right results. Over
 * host://, or with TRIREME_TESTS_NETWORK over tcp://.
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

#include "../api/vocabularies.inc"
#include "processes.h"

#define PASSES 4 /* the failpoint acts after the first one, for which all ranks have come */

struct trial {
    struct spec spec;
    bool embeds;
    int victim; /* -1: none dies */
    char failpoint[64];
    char rendezvous[64];
};

static trireme_status
pass(trireme_vocabulary *vocabulary, const struct trial *trial, int rank, bool *out_right) {
    const struct spec *const spec = &trial->spec;
    const uint64_t first = cut(spec, rank), count = class_count(spec, rank);
    void *const tokens = make_tokens(spec, !trial->embeds);
    trireme_status status = TRIREME_OK;
    *out_right = true;
    if (trial->embeds) {
        float *const weight = make_rows(spec, 4, first, count);
        float *const all = make_rows(spec, 4, 0, spec->classes);
        float *const output = allocate(spec->rows * spec->width * 4);
        status = trireme_vocabulary_embed(vocabulary, tokens, spec->token_dtype, spec->rows, weight,
                                          output, NULL);
        for (uint64_t row = 0; row < spec->rows; ++row) {
            *out_right = *out_right && memcmp(output + row * spec->width,
                                              all + (uint64_t)token_of(spec, row) * spec->width,
                                              spec->width * 4) == 0;
        }
        release(weight), release(all), release(output);
    } else {
        float *const logits = make_logits(spec, first, count);
        float *const all = make_logits(spec, 0, spec->classes);
        float *const losses = allocate(spec->rows * 4);
        double *const row_logits = allocate(spec->classes * 8);
        status = trireme_vocabulary_loss(vocabulary, tokens, spec->token_dtype, spec->rows, logits,
                                         losses, NULL, NULL);
        for (uint64_t row = 0; row < spec->rows; ++row) {
            for (uint64_t i = 0; i < spec->classes; ++i) {
                row_logits[i] = (double)all[row * spec->classes + i];
            }
            const double wanted = row_of(spec, row_logits, target_of(spec, row)).loss;
            *out_right = *out_right && fabs((double)losses[row] - wanted) <= 1e-5 * (1 + wanted);
        }
        release(logits), release(all), release(losses), release(row_logits);
    }
    release(tokens);
    return status;
}

static void pass_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const communicator =
        join_process(rank, trial->spec.world_size, trial->rendezvous, PATIENT_NS);
    trireme_vocabulary *vocabulary = NULL;
    if (trireme_communicator_wait_ready(communicator, PATIENT_NS) != TRIREME_OK) _exit(92);
    if (make_vocabulary(communicator, &trial->spec, "head 7", &vocabulary) != TRIREME_OK) _exit(93);
    for (int round = 0; round < PASSES; ++round) {
        bool right = false;
        if (round == 1 && rank == trial->victim &&
            trireme_failpoint_set(trial->failpoint) != TRIREME_OK) {
            _exit(91);
        }
        const trireme_status status = pass(vocabulary, trial, rank, &right);
        if (outcome->status == TRIREME_OK && status != TRIREME_OK) {
            keep_error(outcome, status);
        } else if (status != TRIREME_OK) {
            outcome->later = status;
        } else if (right) {
            ++outcome->rounds;
        } else {
            outcome->wrong = true;
        }
    }
    trireme_vocabulary_destroy(vocabulary);
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
                           o->later == TRIREME_ERROR_PEER_LOST &&
                           blames_only(&o->info, trial->victim) &&
                           strstr(o->message, "pass of vocabulary \"head 7\"") != NULL &&
                           o->rounds < PASSES - 1);
        if (!right) {
            print_error("%s, %s: rank %d: exit code %d, signal %d%s, %d rounds, %s: %s\n",
                        trial->failpoint, trial->embeds ? "embed" : "loss", rank, o->exit_code,
                        o->signal, o->hung ? ", hung" : "", o->rounds,
                        trireme_status_name(o->status), o->message);
        }
        assert_true(right);
    }
    free_processes(&processes);
}

static struct trial make_trial(bool embeds, uint64_t rows) {
    return (struct trial){.embeds = embeds,
                          .victim = -1,
                          .spec = {.world_size = 3,
                                   .blocks = 8,
                                   .classes = 61,
                                   .width = 130,
                                   .rows = rows,
                                   .dtype = TRIREME_DTYPE_F32,
                                   .token_dtype = TRIREME_DTYPE_I64,
                                   .smoothing = 0.1}};
}

static void survivors_name_the_victim_and_the_vocabulary(void **state) {
    (void)state;
    static const char *const points[] = {"before_publish", "after_publish", "before_move",
                                         "mid_move",       "after_move",    "before_leave"};
    for (int embeds = 0; embeds <= 1; ++embeds) {
        for (size_t point = 0; point < sizeof points / sizeof points[0]; ++point) {
            struct trial trial = make_trial(embeds != 0, 600);
            trial.victim = (int)(point + (size_t)embeds) % 3;
            snprintf(trial.failpoint, sizeof trial.failpoint, "all_gather_v.%s=kill@1",
                     points[point]);
            run_trial(&trial);
        }
    }
}

/* No rank dies: processes compute what threads do, small or large. */
static void processes_compute_the_same(void **state) {
    (void)state;
    for (int embeds = 0; embeds <= 1; ++embeds) {
        struct trial small = make_trial(embeds != 0, 3);
        run_trial(&small);
        struct trial large = make_trial(embeds != 0, 3000);
        run_trial(&large);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_name_the_victim_and_the_vocabulary),
        cmocka_unit_test(processes_compute_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
