/*
 * Ranks that call what does not fit on their models: step them in another order, or compare, load
 * or read one that the others do something else with. Every rank hears of it, and of the models,
 * queues and calls of both sides: at once where they meet in one queue, else at the deadline, since
 * another thread might have come.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "models.h"
#include "options.h"
#include "processes.h"
#include "ranks.h"

#define F32 TRIREME_DTYPE_F32
enum { RANKS = 2, MODELS = 2, UNITS = 2, COUNT = 1500, ELEMENTS = UNITS * COUNT };
#define DEADLINE_NS (1500ull * 1000 * 1000)

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

enum act {
    STEP,
    CHECK_REPLICAS,
    LOAD,
    GET_PARAMETERS,
    SET_PARAMETERS,
    GATHER,
    BARRIER,
    ACTS,
    RESTORE = ACTS, /* with CHECK_REPLICAS and LOAD alone */
    ALL_ACTS
};

static const char *const kActs[ALL_ACTS] = {"step",           "check_replicas", "load",
                                            "get_parameters", "set_parameters", "gather_unit",
                                            "barrier",        "restore"};

struct trial {
    trireme_strategy strategy;
    enum act acts[RANKS];
    int models[RANKS];
    char rendezvous[96];
    struct outcome *outcomes;
};

static trireme_status
act(const struct trial *trial, trireme_communicator *group, int rank, trireme_model *const *models,
    trireme_optimizer *const *optimizers, const void *saved, uint64_t bytes) {
    static const float values[ELEMENTS];
    float read[ELEMENTS];
    trireme_model *const model = models[trial->models[rank]];
    switch (trial->acts[rank]) {
        case STEP: return trireme_optimizer_step(optimizers[trial->models[rank]]);
        case CHECK_REPLICAS: return trireme_model_check_replicas(model);
        case LOAD: return trireme_optimizer_load(optimizers[trial->models[rank]], saved, bytes);
        case GET_PARAMETERS: return trireme_model_gather_parameters(model, read, ELEMENTS, F32);
        case SET_PARAMETERS:
            return trireme_model_broadcast_parameters(model, values, ELEMENTS, F32, rank);
        case GATHER: return trireme_model_gather_unit(model, 1);
        case RESTORE: {
            trireme_optimizer *const optimizer = optimizers[trial->models[rank]];
            trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
            const trireme_status counted = trireme_optimizer_get_counters(optimizer, &counters);
            return counted != TRIREME_OK ? counted
                                         : trireme_optimizer_restore(optimizer, &counters);
        }
        default: break;
    }
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = DEADLINE_NS;
    return trireme_barrier(group, &options);
}

/* On a busy machine a rank comes late: the short deadline begins when all are there. */
static trireme_status meet(trireme_communicator *group) {
    trireme_operation_options patient = TRIREME_OPERATION_OPTIONS_INIT;
    patient.timeout_ns = PATIENT_NS;
    return trireme_barrier(group, &patient);
}

/* The calls of two ranks, each on one of its models; afterwards both go to a barrier. Deadlines end
 * the waits. */
static void
call(const struct trial *trial, trireme_communicator *group, int rank, struct outcome *o) {
    trireme_model *models[MODELS] = {NULL};
    trireme_optimizer *optimizers[MODELS] = {NULL};
    static const float gradient[ELEMENTS];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = trial->strategy;
    units_of(&options)->minimum_bytes = 1;
    shards_of(&options)->share = TRIREME_SHARE_NEVER;
    options.timeout_ns = DEADLINE_NS;
    const trireme_optimizer_options rule = plain_rule();
    trireme_status status = TRIREME_OK;
    uint64_t bytes = 0;
    for (int i = 0; i < MODELS && status == TRIREME_OK; ++i) {
        status = meet(group);
        if (status == TRIREME_OK) status = make_model(group, &options, UNITS, COUNT, &models[i]);
        if (status == TRIREME_OK)
            status = trireme_optimizer_create(models[i], &rule, &optimizers[i]);
    }
    if (status == TRIREME_OK) status = trireme_optimizer_get_saved_bytes(optimizers[0], &bytes);
    void *const saved = malloc(bytes);
    if (status == TRIREME_OK) status = trireme_optimizer_save(optimizers[0], saved, bytes, &bytes);
    /* Before the gradients, whose reduction begins at once: it is the last call of its rank. */
    if (status == TRIREME_OK) status = meet(group);
    if (status == TRIREME_OK && trial->acts[rank] == STEP) {
        status =
            trireme_model_accumulate_flat(models[trial->models[rank]], gradient, ELEMENTS, F32, 0);
    }
    const bool ready = status == TRIREME_OK;
    if (ready) status = act(trial, group, rank, models, optimizers, saved, bytes);
    if (status == TRIREME_OK) {
        trireme_operation_options patient = TRIREME_OPERATION_OPTIONS_INIT;
        patient.timeout_ns = 10 * DEADLINE_NS;
        status = trireme_barrier(group, &patient);
    }
    keep_error(o, status);
    o->wrong = !ready;
    for (int i = 0; i < MODELS; ++i) {
        trireme_optimizer_destroy(optimizers[i]);
        trireme_model_destroy(models[i]);
    }
    free(saved);
}

static void call_in_process(int rank, void *context, struct outcome *o) {
    const struct trial *const trial = context;
    trireme_communicator *const group = join_process(rank, RANKS, trial->rendezvous, PATIENT_NS);
    call(trial, group, rank, o);
    trireme_communicator_destroy(group);
}

static void call_in_thread(trireme_communicator *group, int rank, void *context) {
    const struct trial *const trial = context;
    call(trial, group, rank, &trial->outcomes[rank]);
}

/* A rank's call, in the words of the others' failures. */
static void words_of(const struct trial *trial, int rank, char *text, size_t capacity) {
    if (trial->acts[rank] == BARRIER) {
        snprintf(text, capacity, "barrier");
    } else {
        snprintf(text, capacity, "of model %d", trial->models[rank] + 1);
    }
}

/* Of one model in one queue, the difference is told by rank: the calls, or their compared terms. */
static bool tells_by_rank(const struct trial *trial, const struct outcome *o) {
    return trial->models[0] == trial->models[1] && o->status == TRIREME_ERROR_MISMATCH &&
           strstr(o->message, "rank 0") != NULL && strstr(o->message, "rank 1") != NULL;
}

/* At a deadline every rank reads the same text: it names ranks, queues and both operations. */
static bool tells_both_waits(const struct trial *trial, const char *message) {
    for (int rank = 0; rank < RANKS; ++rank) {
        char queue[40];
        snprintf(queue, sizeof queue, "queue of model %d", trial->models[rank] + 1);
        if (trial->acts[rank] != BARRIER && strstr(message, queue) == NULL) return false;
    }
    return strstr(message, "this rank was") == NULL && strstr(message, " during ") != NULL &&
           (strstr(message, " last called ") != NULL || strstr(message, " waits in ") != NULL);
}

static bool tells(const struct trial *trial, const struct outcome *o) {
    const char *const message = o->message;
    if (o->status == TRIREME_ERROR_TIMEOUT) return tells_both_waits(trial, message);
    for (int rank = 0; rank < RANKS; ++rank) {
        char words[40];
        words_of(trial, rank, words, sizeof words);
        if (strstr(message, words) == NULL) return false;
    }
    return true;
}

/* Calls that compare facts with the peers before they do anything. */
static bool compares(enum act act) {
    return act == CHECK_REPLICAS || act == LOAD || act == RESTORE;
}

/* Such calls meet in one queue, where every rank finds both of them. */
static bool names_both_calls(const struct trial *trial, const struct outcome *o) {
    char words[2 * 64];
    snprintf(words, sizeof words, "the call is %s%s on rank 0 and %s%s on rank 1",
             kActs[trial->acts[0]], trial->acts[0] == CHECK_REPLICAS ? "" : " of the optimizer",
             kActs[trial->acts[1]], trial->acts[1] == CHECK_REPLICAS ? "" : " of the optimizer");
    return o->status == TRIREME_ERROR_MISMATCH && strstr(o->message, words) != NULL;
}

static bool is_right(const struct trial *trial, const struct outcome *outcomes) {
    bool told = false;
    if (trial->models[0] == trial->models[1] && compares(trial->acts[0]) &&
        compares(trial->acts[1])) {
        for (int rank = 0; rank < RANKS; ++rank) {
            const struct outcome *const o = &outcomes[rank];
            if (o->hung || o->exit_code != 0 || o->wrong || !names_both_calls(trial, o))
                return false;
        }
        return true;
    }
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &outcomes[rank];
        if (o->hung || o->exit_code != 0 || o->wrong) return false;
        if (o->status != TRIREME_ERROR_MISMATCH && o->status != TRIREME_ERROR_TIMEOUT) return false;
        told = told || tells(trial, o) || tells_by_rank(trial, o);
    }
    return told;
}

static int trial_count, wrong_count;

static void judge(const struct trial *trial, const struct outcome *outcomes, const char *where) {
    ++trial_count;
    if (is_right(trial, outcomes)) return;
    wrong_count += !is_right(trial, outcomes);
    print_error("%s, strategy %d:\n", where, (int)trial->strategy);
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &outcomes[rank];
        print_error("  rank %d, %s of model %d: exit %d%s%s, %s: %s\n", rank,
                    kActs[trial->acts[rank]], trial->models[rank] + 1, o->exit_code,
                    o->hung ? ", hung" : "", o->wrong ? ", could not begin" : "",
                    trireme_status_name(o->status), o->message);
    }
}

/* So many at once, since they mostly sleep. */
enum { MOST_AT_ONCE = 32 };
static struct trial trials[MOST_AT_ONCE];
static struct processes groups[MOST_AT_ONCE];
static struct outcome outcomes[MOST_AT_ONCE][RANKS];

static void run_as_threads(int index, void *context) {
    (void)context;
    memset(outcomes[index], 0, sizeof outcomes[index]);
    trials[index].outcomes = outcomes[index];
    run_ranks(RANKS, call_in_thread, &trials[index]);
}

static void run_trials(int count, bool processes) {
    if (!processes) {
        run_threads(count, run_as_threads, NULL);
        for (int i = 0; i < count; ++i) judge(&trials[i], outcomes[i], "threads");
        return;
    }
    for (int i = 0; i < count; ++i) {
        unique_process_rendezvous(trials[i].rendezvous, sizeof trials[i].rendezvous);
        start_processes(&groups[i], RANKS, call_in_process, &trials[i]);
    }
    for (int i = 0; i < count; ++i) {
        wait_processes(&groups[i]);
        judge(&trials[i], groups[i].outcomes, "processes");
        free_processes(&groups[i]);
    }
}

/* Whether one rank waits for the other: what reads or writes this rank's part alone does not. */
static bool waits(trireme_strategy strategy, enum act one) {
    const bool whole = strategy != TRIREME_STRATEGY_ZERO3;
    return !(whole && (one == GET_PARAMETERS || one == GATHER));
}

static const trireme_strategy kStrategies[] = {TRIREME_STRATEGY_DATA_PARALLEL,
                                               TRIREME_STRATEGY_ZERO3, TRIREME_STRATEGY_ZERO1,
                                               TRIREME_STRATEGY_ZERO2};

/* Every two of those that compare, with each strategy. */
static int add_compared(void) {
    static const enum act acts[] = {CHECK_REPLICAS, LOAD, RESTORE};
    int count = 0;
    for (int s = 0; s < (is_long() ? 4 : 2); ++s) {
        for (int first = 0; first < 3; ++first) {
            for (int second = 0; second < 3; ++second) {
                if (first == second) continue;
                trials[count++] =
                    (struct trial){.strategy = kStrategies[s], .acts = {acts[first], acts[second]}};
            }
        }
    }
    return count;
}

static void run_all(bool processes) {
    unsigned turn = 0;
    trial_count = wrong_count = 0;
    run_trials(add_compared(), processes);
    int count = 0;
    for (int s = 0; s < (is_long() ? 4 : 2); ++s) {
        for (int first = 0; first < ACTS; ++first) {
            for (int second = first; second < ACTS; ++second) {
                for (int other = 0; other < MODELS; ++other) {
                    const bool same = first == second && other == 0;
                    const bool of_none = second == BARRIER && other > 0;
                    if (same || of_none) continue;
                    if (!waits(kStrategies[s], first) || !waits(kStrategies[s], second)) continue;
                    if (!is_long() && second != BARRIER && turn++ % (is_quick() ? 7 : 3) != 0)
                        continue;
                    trials[count++] = (struct trial){.strategy = kStrategies[s],
                                                     .acts = {(enum act)first, (enum act)second},
                                                     .models = {0, other}};
                    if (count < MOST_AT_ONCE) continue;
                    run_trials(count, processes);
                    count = 0;
                }
            }
        }
    }
    run_trials(count, processes);
    printf("trials: %d of crossed calls, %d without both\n", trial_count, wrong_count);
    assert_int_equal(wrong_count, 0);
}

static void processes_hear_of_both_calls(void **state) {
    (void)state;
    run_all(true);
}

static void threads_hear_of_both_calls(void **state) {
    (void)state;
    run_all(false);
}

int main(void) {
    /* In this order: whose children begin like fresh programs has not used the library. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_hear_of_both_calls),
        cmocka_unit_test(threads_hear_of_both_calls),
    };
    return cmocka_run_group_tests_name("crossed_models", tests, NULL, NULL);
}
