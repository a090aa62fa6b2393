/*
 * kill -9 of each rank of a parallel object while all others wait along another axis: each survivor
 * gets PEER_LOST, and none waits for its deadline. And kill -9 within calls of such an object that
 * all ranks make, along data, context and expert, and within a step of two optimizers. Over
 * host://, or with TRIREME_TESTS_NETWORK over tcp://.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <unistd.h>

#include <trireme/failpoint.h>

#include "processes.h"

enum { RANKS = 8 };

static const uint32_t axes[] = {TRIREME_PARALLEL_AXIS_DATA, TRIREME_PARALLEL_AXIS_TENSOR,
                                TRIREME_PARALLEL_AXIS_PIPELINE, TRIREME_PARALLEL_GROUP_ALL};

enum { AXES = sizeof axes / sizeof axes[0] };

struct trial {
    int axis; /* along which the ranks wait */
    int victim;
    char rendezvous[64];
};

/* Every rank waits for a message that its neighbour along the axis never sends. */
static void wait_along(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const ranks = join_process(rank, RANKS, trial->rendezvous, PATIENT_NS);
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = options.tensor = options.pipeline = 2;
    options.micro_batches = 4;
    trireme_parallel *parallel = NULL;
    if (trireme_parallel_create(ranks, &options, &parallel) != TRIREME_OK) _exit(91);
    /* The object has a group of its own. */
    if (rank % 2 == 0) trireme_communicator_destroy(ranks);
    trireme_communicator *along = NULL;
    int32_t own = -1, size = 0;
    if (trireme_parallel_get_communicator(parallel, axes[trial->axis], &along) != TRIREME_OK ||
        trireme_communicator_get_rank(along, &own) != TRIREME_OK ||
        trireme_communicator_get_world_size(along, &size) != TRIREME_OK) {
        _exit(92);
    }
    char byte = 0;
    outcome->entered_ns = monotonic_ns();
    const trireme_status status =
        trireme_receive(along, &byte, 1, TRIREME_DTYPE_BYTES, (own + 1) % size, 7, NULL);
    outcome->returned_ns = monotonic_ns();
    keep_error(outcome, status);
    /* Then no axis goes on, if not at once, in a moment. */
    for (int axis = 0; axis < AXES; ++axis) {
        trireme_communicator *other = NULL;
        if (trireme_parallel_get_communicator(parallel, axes[axis], &other) != TRIREME_OK) {
            _exit(93);
        }
        trireme_status later;
        while ((later = trireme_barrier(other, NULL)) == TRIREME_OK) {
        }
        if (later == TRIREME_ERROR_PEER_LOST) ++outcome->rounds;
    }
    trireme_parallel_destroy(parallel);
    if (rank % 2 != 0) trireme_communicator_destroy(ranks);
}

/* The number of `other` in the communicator along the axis that `rank` is in; -1: it is not there.
 * Tensor is fastest, then data, pipeline. */
static int32_t number_along(int axis, int rank, int other) {
    static const int bits[] = {2, 1, 4};
    if (axes[axis] == TRIREME_PARALLEL_GROUP_ALL) return other;
    const int bit = bits[axis];
    if ((rank & ~bit) != (other & ~bit)) return -1;
    return (other & bit) != 0 ? 1 : 0;
}

static uint64_t slowest_ns;

/* Over sockets the message also tells which rank has lost it. */
static bool names(const char *message, const char *before, int32_t number) {
    char was[64], is[64];
    snprintf(was, sizeof was, "%srank %d was lost", before, number);
    snprintf(is, sizeof is, "%srank %d is lost to rank ", before, number);
    return strstr(message, was) != NULL || strstr(message, is) != NULL;
}

static void run_trial(int axis, int victim) {
    static struct trial trial;
    trial = (struct trial){.axis = axis, .victim = victim};
    unique_process_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
    struct processes processes;
    start_processes(&processes, RANKS, wait_along, &trial);
    for (int rank = 0; rank < RANKS; ++rank) {
        volatile const uint64_t *const entered = &processes.outcomes[rank].entered_ns;
        for (int tries = 0; *entered == 0 && tries < 60000; ++tries) sleep_ms(1);
        assert_true(*entered != 0);
    }
    sleep_ms(20); /* until all wait; one that does not yet fails as well */
    const uint64_t killed_ns = monotonic_ns();
    assert_int_equal(kill(processes.ids[victim], SIGKILL), 0);
    wait_processes(&processes);
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        if (rank == victim) {
            assert_int_equal(o->signal, SIGKILL);
            continue;
        }
        /* Its number in the object, or in the communicator of the call if that saw it first. */
        const int32_t number = number_along(axis, rank, victim);
        const bool right =
            !o->hung && o->exit_code == 0 && o->rounds == AXES &&
            o->status == TRIREME_ERROR_PEER_LOST &&
            (names(o->message, "\" failed: ", victim) ||
             (number >= 0 && names(o->message, "trireme_receive: ", number))) &&
            (number >= 0 ? blames_only(&o->info, number) : o->info.blamed_count == 0);
        if (!right) {
            print_error("axes %u, victim %d: rank %d: exit code %d%s, %d axes failed, %s: %s\n",
                        axes[axis], victim, rank, o->exit_code, o->hung ? ", hung" : "", o->rounds,
                        trireme_status_name(o->status), o->message);
        }
        assert_true(right);
        if (o->returned_ns - killed_ns > slowest_ns) slowest_ns = o->returned_ns - killed_ns;
    }
    free_processes(&processes);
}

static void a_death_ends_waits_along_every_axis(void **state) {
    (void)state;
    for (int victim = 0; victim < RANKS; ++victim) {
        for (int axis = 0; axis < AXES; ++axis) {
            const bool all = getenv("TRIREME_TEST_LONG") != NULL;
            if (!all && (victim + axis) % (is_quick() ? 4 : 2) != 0) continue;
            run_trial(axis, victim);
        }
    }
    print_message("slowest survivor heard after %.1f ms\n", (double)slowest_ns / 1e6);
}

/* ---- deaths within calls that all ranks make ---- */

struct moment {
    char failpoint[64];
    int victim;
    bool cuts; /* in a partition, else in the creation */
    char rendezvous[64];
};

/* A survivor keeps its first failure: of the call, or of a barrier of all ranks that follows. */
static void die_within(int rank, void *context, struct outcome *outcome) {
    const struct moment *const moment = context;
    trireme_communicator *const ranks = join_process(rank, RANKS, moment->rendezvous, PATIENT_NS);
    /* Ranks that never joined would be missing, not lost. */
    if (trireme_barrier(ranks, NULL) != TRIREME_OK) _exit(97);
    const bool dies = rank == moment->victim;
    if (dies && !moment->cuts && trireme_failpoint_set(moment->failpoint) != TRIREME_OK) _exit(94);
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = options.context = options.expert = 2;
    trireme_parallel *parallel = NULL;
    trireme_status status = trireme_parallel_create(ranks, &options, &parallel);
    if (status == TRIREME_OK && moment->cuts) {
        if (dies && trireme_failpoint_set(moment->failpoint) != TRIREME_OK) _exit(95);
        trireme_pipeline_layer_costs layer = TRIREME_PIPELINE_LAYER_COSTS_INIT;
        uint64_t cuts[2];
        status = trireme_parallel_partition(parallel, &layer, 1, cuts, 2, NULL);
    }
    trireme_communicator *all = NULL;
    if (status == TRIREME_OK &&
        trireme_parallel_get_communicator(parallel, TRIREME_PARALLEL_GROUP_ALL, &all) !=
            TRIREME_OK) {
        _exit(96);
    }
    while (status == TRIREME_OK) status = trireme_barrier(all, NULL);
    keep_error(outcome, status);
    trireme_parallel_destroy(parallel);
    trireme_communicator_destroy(ranks);
}

static void die_while_it_cuts(int rank, void *context, struct outcome *outcome) {
    struct moment moment = *(const struct moment *)context;
    moment.cuts = true;
    die_within(rank, &moment, outcome);
}

static void die_in_a_step(int rank, void *context, struct outcome *outcome);

static void run_moment(const char *failpoint, int visit, int victim, process_function *die) {
    static struct moment moment;
    moment = (struct moment){.victim = victim};
    snprintf(moment.failpoint, sizeof moment.failpoint, "%s=kill@%d", failpoint, visit);
    unique_process_rendezvous(moment.rendezvous, sizeof moment.rendezvous);
    struct processes processes;
    start_processes(&processes, RANKS, die, &moment);
    wait_processes(&processes);
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        const bool right = rank == victim ? o->signal == SIGKILL
                                          : !o->hung && o->exit_code == 0 &&
                                                o->status == TRIREME_ERROR_PEER_LOST &&
                                                (die != die_in_a_step || o->rounds == 2);
        if (!right) {
            print_error("%s, victim %d: rank %d: signal %d, exit code %d%s, %s: %s\n",
                        moment.failpoint, victim, rank, o->signal, o->exit_code,
                        o->hung ? ", hung" : "", trireme_status_name(o->status), o->message);
        }
        assert_true(right);
    }
    free_processes(&processes);
}

static void a_death_within_a_call_ends_it_on_all_ranks(void **state) {
    (void)state;
    int victim = 0;
    static const char *const points[] = {"agree.before_exchange", "agree.after_exchange"};
    for (int point = 0; point < 2; ++point) {
        run_moment(points[point], 1, victim++ % RANKS, die_within);
        for (int visit = 1; visit <= 2; ++visit) {
            run_moment(points[point], visit, victim++ % RANKS, die_while_it_cuts);
        }
    }
    /* The groups of all ranks and of the axes. */
    run_moment("child.before_join", 1, victim++ % RANKS, die_within);
    run_moment("child.before_join", 2, victim++ % RANKS, die_within);
    run_moment("child.after_join", 1, victim++ % RANKS, die_within);
}

/* ---- deaths within a step of two optimizers ---- */

/* The model of experts, and that of all the rest. */
static trireme_optimizer *
make_optimizer(const trireme_parallel *parallel, trireme_parallel_contents contents,
               trireme_model **out_model) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    options.gradients = contents == TRIREME_PARALLEL_CONTENTS_EXPERTS ? TRIREME_GRADIENTS_SUM
                                                                      : TRIREME_GRADIENTS_AVERAGE;
    const uint64_t elements = 9;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    clipping.max_norm = 1;
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_ADAMW;
    rule.clipping = &clipping;
    trireme_optimizer *optimizer = NULL;
    if (trireme_parallel_create_model(parallel, contents, &options, out_model) != TRIREME_OK ||
        trireme_model_add_parameter(*out_model, &parameter, NULL) != TRIREME_OK ||
        trireme_model_seal(*out_model) != TRIREME_OK ||
        trireme_optimizer_create(*out_model, &rule, &optimizer) != TRIREME_OK) {
        _exit(98);
    }
    return optimizer;
}

static void die_in_a_step(int rank, void *context, struct outcome *outcome) {
    const struct moment *const moment = context;
    trireme_communicator *const ranks = join_process(rank, RANKS, moment->rendezvous, PATIENT_NS);
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = options.tensor = options.expert = 2;
    trireme_parallel *parallel = NULL;
    if (trireme_parallel_create(ranks, &options, &parallel) != TRIREME_OK) _exit(91);
    trireme_model *models[2] = {NULL};
    trireme_optimizer *optimizers[2];
    for (int part = 0; part < 2; ++part) {
        optimizers[part] = make_optimizer(parallel, part, &models[part]);
    }
    if (rank == moment->victim && trireme_failpoint_set(moment->failpoint) != TRIREME_OK) _exit(94);
    static const float gradient[9] = {1, 2, 3};
    trireme_status status = TRIREME_OK;
    while (status == TRIREME_OK) {
        for (int part = 0; part < 2 && status == TRIREME_OK; ++part) {
            status = trireme_model_accumulate_flat(models[part], gradient, 9, TRIREME_DTYPE_F32, 0);
        }
        if (status == TRIREME_OK) status = trireme_optimizer_step_together(optimizers, 2);
    }
    keep_error(outcome, status);
    /* Neither model goes on. */
    for (int part = 0; part < 2; ++part) {
        trireme_status later = TRIREME_OK;
        while (later == TRIREME_OK) {
            later = trireme_model_accumulate_flat(models[part], gradient, 9, TRIREME_DTYPE_F32, 0);
            /* The pass of a step that failed may have been made. */
            if (later == TRIREME_OK || later == TRIREME_ERROR_INVALID_STATE)
                later = trireme_optimizer_step(optimizers[part]);
        }
        if (later == TRIREME_ERROR_PEER_LOST || later == TRIREME_ERROR_ABORTED) ++outcome->rounds;
        trireme_optimizer_destroy(optimizers[part]);
        trireme_model_destroy(models[part]);
    }
    trireme_parallel_destroy(parallel);
    trireme_communicator_destroy(ranks);
}

static void a_death_in_a_step_of_two_optimizers_fails_both(void **state) {
    (void)state;
    int victim = 0;
    static const char *const points[] = {"step.after_reductions", "step.before_agree",
                                         "step.after_update", "step.before_return"};
    for (int point = 0; point < 4; ++point) {
        for (int visit = 1; visit <= 2; ++visit) { /* once for each model */
            run_moment(points[point], visit, victim++ % RANKS, die_in_a_step);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_ends_waits_along_every_axis),
        cmocka_unit_test(a_death_within_a_call_ends_it_on_all_ranks),
        cmocka_unit_test(a_death_in_a_step_of_two_optimizers_fails_both),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
