/*
 * One rank gets kill -9 in the sum of a SHARED parameter along "tensor", at every step of it, or as
 * gradients are compared. Or it
 * dies while a model with such sums is sealed. Each survivor of data 2 x tensor 2 gets PEER_LOST
 * long before its deadline, and so does its next call. Over host://.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <options.h>
#include <signal.h>
#include <unistd.h>

#include "processes.h"

#define WORLD 4
#define STEPS 3
#define PARAMETERS 4
#define ELEMENTS 1000
#define SOON_NS (20ull * 1000 * 1000 * 1000)

struct trial {
    trireme_strategy strategy;
    int victim;
    const char *point; /* acts at its first visit in the second step, or while sealing */
    bool in_seal;
    char rendezvous[64];
};

/* Ranks look for tied parameters along "pipeline" alone. */
static const char *axis_of(const struct trial *trial) {
    return strcmp(trial->point, "seal.before_tied") == 0 ? "pipeline" : "tensor";
}

static trireme_model *
seal(trireme_mesh *mesh, const struct trial *trial, int tensor, trireme_status *status) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = trial->strategy;
    trireme_bucket_options *const buckets = buckets_of(&options);
    buckets->bytes = buckets->first_bytes = 1;
    units_of(&options)->minimum_bytes = 1;
    trireme_model *model = NULL;
    if (trireme_mesh_create_model(mesh, &options, &model) != TRIREME_OK) _exit(93);
    const uint64_t elements = ELEMENTS;
    trireme_parameter_placement placement = TRIREME_PARAMETER_PLACEMENT_INIT;
    placement.axis = axis_of(trial);
    static const char *const names[PARAMETERS] = {"norm", "part", "router", "bias"};
    static const trireme_placement kinds[PARAMETERS] = {TRIREME_PLACEMENT_SHARED,
                                                        TRIREME_PLACEMENT_SPLIT,
                                                        TRIREME_PLACEMENT_SHARED,
                                                        TRIREME_PLACEMENT_WHOLE};
    const uint64_t pair[2] = {(uint64_t)tensor * ELEMENTS, ELEMENTS};
    for (int i = 0; i < PARAMETERS; ++i) {
        placement.kind = kinds[i];
        placement.extent = i == 1 ? 2 * ELEMENTS : 0;
        placement.stretches = i == 1 ? pair : NULL;
        placement.stretch_count = i == 1 ? 1 : 0;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[i];
        parameter.dtype = TRIREME_DTYPE_F32;
        parameter.dimensions = 1;
        parameter.shape = &elements;
        parameter.placements = &placement;
        parameter.placement_count = 1;
        if (trireme_model_add_parameter(model, &parameter, NULL) != TRIREME_OK) _exit(94);
    }
    *status = trireme_model_seal(model);
    return model;
}

static void train_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const all = join_process(rank, WORLD, trial->rendezvous, PATIENT_NS);
    const char *const axes[2] = {"data", axis_of(trial)};
    const int32_t sizes[2] = {2, 2};
    trireme_mesh_options shape = TRIREME_MESH_OPTIONS_INIT;
    shape.axis_names = axes;
    shape.axis_sizes = sizes;
    shape.axis_count = 2;
    trireme_mesh *mesh = NULL;
    if (trireme_mesh_create(all, &shape, &mesh) != TRIREME_OK) _exit(92);
    char setting[96];
    snprintf(setting, sizeof setting, "%s=kill", trial->point);
    const bool dies = rank == trial->victim;
    if (dies && trial->in_seal && trireme_failpoint_set(setting) != TRIREME_OK) _exit(91);
    /* Ranks along "pipeline" are farther apart than those along "data". */
    const int place = axes[1][0] == 'p' ? rank / 2 : rank % 2;
    trireme_status status = TRIREME_OK;
    trireme_model *const model = seal(mesh, trial, place, &status);
    trireme_optimizer *optimizer = NULL;
    if (status == TRIREME_OK) {
        trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
        rule.kind = TRIREME_RULE_LARS;
        rule.learning_rate = 1;
        if (trireme_optimizer_create(model, &rule, &optimizer) != TRIREME_OK) _exit(95);
    }
    static float gradients[PARAMETERS * ELEMENTS];
    for (int i = 0; i < PARAMETERS * ELEMENTS; ++i) gradients[i] = 1;
    for (int step = 0; step < STEPS && status == TRIREME_OK; ++step) {
        if (dies && step == 1 && trireme_failpoint_set(setting) != TRIREME_OK) _exit(91);
        outcome->entered_ns = monotonic_ns();
        status = trireme_model_accumulate_flat(model, gradients, PARAMETERS * ELEMENTS,
                                               TRIREME_DTYPE_F32, 0);
        if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
        outcome->returned_ns = monotonic_ns();
        if (status == TRIREME_OK) ++outcome->rounds;
    }
    if (status != TRIREME_OK) keep_error(outcome, status);
    outcome->later = trireme_model_accumulate_flat(model, gradients, PARAMETERS * ELEMENTS,
                                                   TRIREME_DTYPE_F32, 0);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_mesh_destroy(mesh);
    trireme_communicator_destroy(all);
}

static void run_trial(struct trial *trial) {
    struct processes processes;
    unique_host_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, WORLD, train_until_it_fails, trial);
    wait_processes(&processes);
    for (int rank = 0; rank < WORLD; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        const bool right = rank == trial->victim
                               ? o->signal == SIGKILL
                               : !o->hung && o->exit_code == 0 &&
                                     o->status == TRIREME_ERROR_PEER_LOST &&
                                     o->later == TRIREME_ERROR_PEER_LOST &&
                                     o->rounds <= (trial->in_seal ? 0 : STEPS - 1) &&
                                     o->returned_ns - o->entered_ns < SOON_NS;
        if (!right) {
            print_error(
                "%s, strategy %d, victim %d: rank %d: exit code %d, signal %d%s, %d "
                "rounds, %s, then %s: %s\n",
                trial->point, (int)trial->strategy, trial->victim, rank, o->exit_code, o->signal,
                o->hung ? ", hung" : "", o->rounds, trireme_status_name(o->status),
                trireme_status_name(o->later), o->message);
        }
        assert_true(right);
    }
    free_processes(&processes);
}

static void survivors_of_a_sum_lose_a_peer(void **state) {
    (void)state;
    static const char *const points[] = {"axis_sum.before_launch", "axis_sum.after_launch",
                                         "axis_sum.after_wait", "step.before_whole",
                                         "step.before_axis_norms"};
    for (size_t point = 0; point < sizeof points / sizeof points[0]; ++point) {
        for (int strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
            if (is_quick() && ((int)point + strategy) % 3 != 0) continue;
            struct trial trial = {.strategy = strategy,
                                  .victim = ((int)point + strategy) % WORLD,
                                  .point = points[point]};
            run_trial(&trial);
        }
    }
}

static void survivors_of_a_seal_with_sums_lose_a_peer(void **state) {
    (void)state;
    static const char *const points[] = {"seal.before_parts", "seal.before_cuts",
                                         "seal.before_tied"};
    for (int i = 0; i < 3 * WORLD; ++i) {
        struct trial trial = {.strategy = TRIREME_STRATEGY_ZERO2,
                              .victim = i / 3,
                              .point = points[i % 3],
                              .in_seal = true};
        run_trial(&trial);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_sum_lose_a_peer),
        cmocka_unit_test(survivors_of_a_seal_with_sums_lose_a_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
