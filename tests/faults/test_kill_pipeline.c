/*
 * kill -9 of one rank of data x pipeline inside of a step, at each point of it: every survivor gets
 * PEER_LOST, on all axes, and none hangs. A late survivor may still be at the end of the step
 * before. Steps before are right to the last bit, between processes
 * as between threads.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <ranks.h>
#include <signal.h>
#include <unistd.h>

#include "../api/directory.inc"
#include "../api/pipeline_chain.inc"
#include "processes.h"

struct trial {
    struct job job;
    int victim;              /* -1: none dies */
    bool evaluates, creates; /* dies in an evaluation, or when it creates the trainer */
    char failpoint[96];
    char rendezvous[64];
};

/* No rank dies while others still make their optimizers. */
static void wait_for_models(int number, const struct trial *trial, struct outcome *own) {
    const volatile struct outcome *const all = own - number;
    const int world = trial->job.data * trial->job.ranks;
    for (int rank = 0; rank < world; ++rank) {
        for (int k = 0; all[rank].numbers[0] == 0; ++k) {
            if (k == 10000) _exit(96);
            usleep(1000);
        }
    }
}

static void wait_for_others(int number, const struct trial *trial, struct outcome *own) {
    const volatile struct outcome *const all = own - number; /* of all processes, in their order */
    const int world = trial->job.data * trial->job.ranks;
    for (int rank = 0; rank < world; ++rank) {
        for (int k = 0; rank != trial->victim && all[rank].status == TRIREME_OK; ++k) {
            if (k == 10000) _exit(95);
            usleep(1000);
        }
    }
}

/* A process compares its losses with those of one process, if it is told them. */
static void step_until_it_fails(int number, void *context, struct outcome *outcome) {
    struct trial *const trial = context;
    trireme_communicator *const all =
        join_process(number, trial->job.data * trial->job.ranks, trial->rendezvous, PATIENT_NS);
    if (trireme_communicator_wait_ready(all, PATIENT_NS) != TRIREME_OK) _exit(92);
    struct rank r = begin_rank(all, number, &trial->job);
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    if (trial->job.verdicts[number].text[0] != 0) _exit(94);
    outcome->numbers[0] = 1;
    if (trial->creates && number == trial->victim) wait_for_models(number, trial, outcome);
    if (trial->creates && number == trial->victim &&
        trireme_failpoint_set(trial->failpoint) != TRIREME_OK) {
        _exit(91);
    }
    const trireme_status created = create_chain_trainer(&r, &pipeline);
    if (created != TRIREME_OK) keep_error(outcome, created);
    for (int step = 0; step < STEPS && created == TRIREME_OK; ++step) {
        if (step == 1 && number == trial->victim &&
            trireme_failpoint_set(trial->failpoint) != TRIREME_OK) {
            _exit(91);
        }
        double loss = 0;
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        trireme_status status = TRIREME_OK;
        if (step == 1 && trial->evaluates) {
            status = trireme_trainer_evaluate(r.trainer, &r, &loss);
        }
        if (status == TRIREME_OK) status = trireme_trainer_step(r.trainer, &r, &metrics);
        if (status != TRIREME_OK) {
            keep_error(outcome, status);
            outcome->later = trireme_trainer_step(r.trainer, &r, &metrics);
            break;
        }
        if (memcmp(&metrics.loss, &trial->job.right->losses[step], sizeof(double)) != 0) {
            outcome->wrong = true;
        }
        ++outcome->rounds;
    }
    /* A rank that leaves tells the others, too. It waits until they have heard otherwise. */
    if (created != TRIREME_OK) wait_for_others(number, trial, outcome);
    end_rank(&r);
    trireme_communicator_destroy(all);
}

/* Whether a message says: "JOB/SPLIT.COLOR" failed: rank RANK was lost. A group made from that one
 * has its name, and a number behind it. */
static bool says_lost(const char *message, int split, int color, int rank) {
    char group[16], words[48];
    snprintf(group, sizeof group, "/%d.%d", split, color);
    snprintf(words, sizeof words, "\" failed: rank %d was lost", rank);
    for (const char *at = strstr(message, group); at != NULL; at = strstr(at + 1, group)) {
        const char *end = at + strlen(group);
        while (*end == '/' || (end[-1] == '/' && *end >= '0' && *end <= '9')) ++end;
        if (strncmp(end, words, strlen(words)) == 0) return true;
    }
    return false;
}

/* In a group of an axis, by the first of its ranks: "3.data.2" has the ranks 2, 3 and so on. */
static bool says_lost_along(const char *message, const char *axis, int first, int rank) {
    char words[64];
    snprintf(words, sizeof words, "%s.%d\" failed: rank %d was lost", axis, first, rank);
    return strstr(message, words) != NULL;
}

/* By its number in the group of all, or in that of its pipeline, or in that of its model. */
static bool names_the_victim(const struct trial *trial, int rank, const struct outcome *o) {
    const int data = trial->job.data, victim = trial->victim;
    const int copy = victim % data, place = victim / data;
    char words[32];
    snprintf(words, sizeof words, "rank %d was lost", victim);
    return strstr(o->message, words) != NULL ||
           (rank % data == copy && blames_only(&o->info, place)) ||
           (rank / data == place && blames_only(&o->info, copy)) ||
           says_lost(o->message, 1, copy, place) || says_lost(o->message, 2, place, copy) ||
           says_lost_along(o->message, "data", place * data, copy) ||
           says_lost_along(o->message, "pipeline", copy, place);
}

struct count {
    int trials, survivors, hangs, wrong_names;
};

static void run_trial(struct trial *trial, struct count *count) {
    struct processes processes;
    const int world = trial->job.data * trial->job.ranks;
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, world, step_until_it_fails, trial);
    wait_processes(&processes);
    for (int rank = 0; rank < world; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        const bool dies = rank == trial->victim, lives = trial->victim < 0;
        const bool right =
            !o->hung && !o->wrong &&
            (dies    ? o->signal == SIGKILL
             : lives ? o->exit_code == 0 && o->status == TRIREME_OK && o->rounds == STEPS
                     : o->exit_code == 0 && o->status == TRIREME_ERROR_PEER_LOST &&
                           o->rounds <= 1 && (trial->creates || o->later == o->status));
        count->hangs += o->hung ? 1 : 0;
        count->survivors += !dies && right ? 1 : 0;
        const bool named = lives || trial->creates || dies || names_the_victim(trial, rank, o);
        count->wrong_names += named ? 0 : 1;
        if (!right || !named) {
            print_error(
                "%s of %d, order %d, %d x %d: rank %d: exit code %d, signal %d%s%s, "
                "%d rounds, %s: %s, later %s\n",
                trial->failpoint, trial->victim, (int)trial->job.order, trial->job.data,
                trial->job.ranks, rank, o->exit_code, o->signal, o->hung ? ", hung" : "",
                o->wrong ? ", wrong" : "", o->rounds, trireme_status_name(o->status), o->message,
                trireme_status_name(o->later));
        }
        assert_true(right);
        assert_true(named);
    }
    ++count->trials;
    free_processes(&processes);
}

/* Seeds and losses of one process, which then must not have used the library: a child does it. */
static void draw(int number, void *context, struct outcome *outcome) {
    struct curve *const curve = context;
    static struct job job;
    job = (struct job){.strategy = TRIREME_STRATEGY_DATA_PARALLEL,
                       .data = 1,
                       .ranks = 1,
                       .order = TRIREME_PIPELINE_ORDER_1F1B,
                       .stages_per_rank = 1,
                       .leaves = 6};
    char rendezvous[64];
    unique_process_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const all = join_process(number, 1, rendezvous, PATIENT_NS);
    struct rank r = begin_rank(all, 0, &job);
    make_rank(&r, all);
    const trireme_trainer_pipeline_options pipeline = pipeline_of(&r);
    if (create_chain_trainer(&r, &pipeline) != TRIREME_OK) _exit(93);
    for (int step = 0; step < STEPS; ++step) {
        if (trireme_trainer_step(r.trainer, &r, NULL) != TRIREME_OK) _exit(94);
    }
    double loss = 0;
    if (trireme_trainer_evaluate(r.trainer, &r, &loss) != TRIREME_OK) _exit(95);
    static struct curve own;
    plain_training(6, 0, 0, &own);
    for (int step = 0; step < STEPS; ++step) memcpy(&outcome->numbers[step], &own.losses[step], 8);
    (void)curve;
    end_rank(&r);
    trireme_communicator_destroy(all);
}

static void draw_right(struct curve *right) {
    struct processes processes;
    start_processes(&processes, 1, draw, right);
    wait_processes(&processes);
    assert_int_equal(processes.outcomes[0].exit_code, 0);
    for (int step = 0; step < STEPS; ++step) {
        memcpy(&right->losses[step], &processes.outcomes[0].numbers[step], 8);
    }
    free_processes(&processes);
}

static struct curve *curve_of_one_process(void) {
    static struct curve right;
    if (right.losses[0] == 0) draw_right(&right);
    return &right;
}

/* Messages past stages: the first one and a later one, and the lists of what is read. */
static void a_killed_rank_is_lost_past_stages(void **state) {
    (void)state;
    static struct curve right;
    chain_reads = true;
    draw_right(&right);
    static const char *const points[] = {"", "pipeline.before_skip=kill@1",
                                         "pipeline.before_skip=kill@4",
                                         "pipeline.before_reads=kill@1"};
    struct count count = {0};
    for (int p = 0; p < 4; ++p) {
        for (int victim = p % 2; victim < (p == 0 ? 1 : 3); victim += 2) {
            static struct trial trial;
            memset(&trial, 0, sizeof trial);
            trial.victim = p == 0 ? -1 : victim;
            trial.creates = p == 3;
            trial.job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                                     .data = 1,
                                     .ranks = 3,
                                     .order = TRIREME_PIPELINE_ORDER_1F1B,
                                     .stages_per_rank = 1,
                                     .leaves = 6,
                                     .right = &right};
            snprintf(trial.failpoint, sizeof trial.failpoint, "%s", points[p]);
            run_trial(&trial, &count);
        }
    }
    chain_reads = false;
}

/* Ranks that share a weight meet after the pass, and when they create the trainer. */
static void a_killed_holder_is_lost_on_all_axes(void **state) {
    (void)state;
    static struct curve right;
    chain_ties = TIES;
    draw_right(&right);
    static const char *const points[] = {"", "pipeline.before_tied=kill@1",
                                         "pipeline.before_tied=kill@2",
                                         "pipeline.before_ties=kill@1"};
    const bool long_run = getenv("TRIREME_TEST_LONG") != NULL;
    struct count count = {0};
    for (int p = 0; p < 4; ++p) {
        for (int victim = 0; victim < 4; ++victim) {
            if (!long_run && (victim + p) % 2 != 0) continue;
            static struct trial trial;
            memset(&trial, 0, sizeof trial);
            trial.victim = p == 0 ? -1 : victim;
            trial.creates = p == 3;
            trial.job = (struct job){.strategy = (trireme_strategy)(1 + (p + victim) % 4),
                                     .data = 2,
                                     .ranks = 2,
                                     .order = TRIREME_PIPELINE_ORDER_1F1B,
                                     .stages_per_rank = 1,
                                     .leaves = 6,
                                     .tied = true,
                                     .right = &right};
            snprintf(trial.failpoint, sizeof trial.failpoint, "%s", points[p]);
            run_trial(&trial, &count);
        }
    }
    chain_ties = 0;
    print_message("kill: tied weights: %d trials, %d survivors, %d hangs, %d wrong names\n",
                  count.trials, count.survivors, count.hangs, count.wrong_names);
}

static void a_killed_rank_is_lost_on_all_axes(void **state) {
    (void)state;
    const struct curve *const right = curve_of_one_process();
    struct count count = {0};
    static const char *const points[] = {
        "",
        "pipeline.before_send=kill@1",
        "pipeline.before_send=kill@3",
        "pipeline.before_receive=kill@1",
        "pipeline.before_receive=kill@3",
        "pipeline.before_sent=kill@2",
        "pipeline.before_sent=kill@3",
        "pipeline.before_send=sleep(30);pipeline.before_wake=kill@1", /* its peer sleeps */
        "pipeline.before_outcome=kill@1",
        "pipeline.after_outcome=kill@1",
        "bucket.after_launch=kill@2",
        "trainer.before_exchange=kill@1",
        "trainer.after_exchange=kill@1",
        "pipeline.before_allocate=kill@1",
        "agree.before_exchange=kill@2",
        "agree.after_exchange=kill@3",
        "agree.before_exchange=kill@1",
        "agree.before_exchange=kill@3",
        "agree.before_exchange=kill@4",
        "agree.before_exchange=kill@5",
        "agree.before_exchange=kill@6",
        "agree.before_exchange=kill@9",
        "pipeline.before_sizes=kill@1",
        "pipeline.before_keys=kill@1",
        "agree.before_exchange=kill@12",
        "agree.before_exchange=kill@15",
    };
    const int meshes[][2] = {{1, 2}, {2, 2}, {1, 4}, {2, 3}};
    const trireme_pipeline_order orders[] = {TRIREME_PIPELINE_ORDER_1F1B,
                                             TRIREME_PIPELINE_ORDER_ZB_H1,
                                             TRIREME_PIPELINE_ORDER_GPIPE};
    const bool long_run = getenv("TRIREME_TEST_LONG") != NULL;
    for (size_t p = 0; p < sizeof points / sizeof points[0]; ++p) {
        for (int m = 0; m < 4; ++m) {
            const int world = meshes[m][0] * meshes[m][1];
            /* One rank reduces nothing. */
            if (meshes[m][0] == 1 && strncmp(points[p], "bucket", 6) == 0) continue;
            for (int victim = 0; victim < world; ++victim) {
                if (!long_run && ((size_t)victim + p + (size_t)m) % (is_quick() ? 5 : 3) != 0) {
                    continue;
                }
                static struct trial trial;
                memset(&trial, 0, sizeof trial);
                trial.victim = p == 0 ? -1 : victim;
                trial.evaluates = p == 3 || p == 5 || p == 7;
                trial.creates = p >= 13;
                trial.job = (struct job){.strategy = (trireme_strategy)(1 + ((int)p + victim) % 4),
                                         .data = meshes[m][0],
                                         .ranks = meshes[m][1],
                                         .order = orders[((int)p + m) % 3],
                                         .stages_per_rank = 1,
                                         .leaves = 6,
                                         .split = 0x55,
                                         .right = right};
                snprintf(trial.failpoint, sizeof trial.failpoint, "%s", points[p]);
                run_trial(&trial, &count);
            }
        }
    }
}

/* Before each kind of action, in turn the first ones and the last ones of a step. */
static void a_kill_at_each_action_is_named(void **state) {
    (void)state;
    const struct curve *const right = curve_of_one_process();
    static const char *const points[] = {"pipeline.before_forward",  "pipeline.before_recompute",
                                         "pipeline.before_input",    "pipeline.before_weights",
                                         "pipeline.before_backward", "pipeline.before_send",
                                         "pipeline.before_receive"};
    const int meshes[][2] = {{1, 2}, {1, 3}, {2, 2}, {1, 4}};
    const bool long_run = getenv("TRIREME_TEST_LONG") != NULL;
    struct count count = {0};
    int number = 0;
    for (int p = 0; p < 7; ++p) {
        for (int m = 0; m < 4; ++m) {
            const int world = meshes[m][0] * meshes[m][1];
            for (int victim = 0; victim < world; ++victim) {
                for (int k = 0; k < 6; ++k) {
                    if (!long_run && ++number % (is_quick() ? 67 : 23) != 0) continue;
                    const bool whole = p == 4 || (k % 2 == 0 && p != 2 && p != 3);
                    static struct trial trial;
                    memset(&trial, 0, sizeof trial);
                    trial.victim = victim;
                    trial.job =
                        (struct job){.strategy = (trireme_strategy)(1 + (p + victim + k) % 4),
                                     .data = meshes[m][0],
                                     .ranks = meshes[m][1],
                                     .order = whole ? TRIREME_PIPELINE_ORDER_1F1B
                                                    : TRIREME_PIPELINE_ORDER_ZB_H1,
                                     .stages_per_rank = 1,
                                     .leaves = 6,
                                     .split = whole ? 0 : 0xff,
                                     .second_forward = k % 3 == 2 ? EARLY_R : EACH_R,
                                     .every = k % 3 == 2 ? 1 : 0,
                                     .right = right};
                    const int last = micro_batches_of(&trial.job) / (p == 1 ? 2 : 1);
                    snprintf(trial.failpoint, sizeof trial.failpoint, "%s=kill@%d", points[p],
                             1 + (k + victim) % last);
                    run_trial(&trial, &count);
                }
            }
        }
    }
    print_message("%d trials, %d survivors, %d hangs, %d wrong names\n", count.trials,
                  count.survivors, count.hangs, count.wrong_names);
    assert_int_equal(count.hangs + count.wrong_names, 0);
}

/* While ranks of a model tell each other the bytes of their plans. */
static void a_kill_before_the_budget_is_known_ends_the_creation(void **state) {
    (void)state;
    const struct curve *const right = curve_of_one_process();
    struct count count = {0};
    for (int victim = 0; victim < 4; ++victim) {
        static struct trial trial;
        memset(&trial, 0, sizeof trial);
        trial.victim = victim;
        trial.creates = true;
        trial.job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                                 .data = 2,
                                 .ranks = 2,
                                 .order = TRIREME_PIPELINE_ORDER_1F1B,
                                 .stages_per_rank = 1,
                                 .leaves = 6,
                                 .budget = 100000,
                                 .right = right};
        snprintf(trial.failpoint, sizeof trial.failpoint, "pipeline.before_budget=kill@1");
        run_trial(&trial, &count);
    }
}

/* While activations are on their way to files and back. The system frees the files. */
static void a_kill_leaves_no_file(void **state) {
    (void)state;
    const struct curve *const right = curve_of_one_process();
    struct count count = {0};
    static const char *const points[] = {"", "file.write=kill@4", "file.read=kill@4",
                                         "pipeline.before_backward=kill@2"};
    for (int p = 0; p < 4; ++p) {
        static struct trial trial;
        memset(&trial, 0, sizeof trial);
        trial.victim = p == 0 ? -1 : p;
        trial.job = (struct job){.strategy = TRIREME_STRATEGY_ZERO3,
                                 .data = 2,
                                 .ranks = 2,
                                 .order = TRIREME_PIPELINE_ORDER_GPIPE,
                                 .stages_per_rank = 1,
                                 .leaves = 6,
                                 .offload = directory,
                                 .right = right};
        snprintf(trial.failpoint, sizeof trial.failpoint, "%s", points[p]);
        run_trial(&trial, &count);
        assert_int_equal(files_in_directory(), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_lost_on_all_axes),
        cmocka_unit_test(a_kill_at_each_action_is_named),
        cmocka_unit_test(a_kill_before_the_budget_is_known_ends_the_creation),
        cmocka_unit_test(a_killed_holder_is_lost_on_all_axes),
        cmocka_unit_test(a_kill_leaves_no_file),
        cmocka_unit_test(a_killed_rank_is_lost_past_stages),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
