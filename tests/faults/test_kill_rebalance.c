/*
 * kill -9 of one rank of data x pipeline while cuts change, at each message and each point of the
 * move: every survivor gets PEER_LOST, none hangs, and none goes on with a layout that others do
 * not have. A rank that dies after the last exchange may leave some with OK, whose next step fails.
 */
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

#include "../api/pipeline_chain.inc"
#include "../api/rebalance.inc"
#include "processes.h"

struct trial {
    struct job job;
    uint64_t seed;
    int victim; /* -1: none dies */
    char failpoint[64];
    char rendezvous[64];
};

/* No rank dies while others still make what they move to. */
static void wait_until_made(int number, const struct trial *trial, struct outcome *own) {
    const volatile struct outcome *const all = own - number;
    for (int rank = 0; rank < trial->job.data * trial->job.ranks; ++rank) {
        for (int k = 0; all[rank].numbers[0] == 0; ++k) {
            if (k == 10000) _exit(96);
            usleep(1000);
        }
    }
}

/* They never act, and count their visits. */
static const char kCounts[] =
    "rebalance.before_send=kill@1000000;rebalance.before_receive=kill@1000000";

static const char *const kMessages[] = {"rebalance.before_send", "rebalance.before_receive"};

static void step_and_move(int number, void *context, struct outcome *outcome) {
    struct trial *const trial = context;
    struct job *const job = &trial->job;
    trireme_communicator *const all =
        join_process(number, job->data * job->ranks, trial->rendezvous, PATIENT_NS);
    if (trireme_communicator_wait_ready(all, PATIENT_NS) != TRIREME_OK) _exit(92);
    uint64_t state = trial->seed;
    struct rank r = begin_rank(all, number, job), next;
    draw_cuts(&r, &state);
    make_rank(&r, all);
    make_trainer(&r);
    if (job->verdicts[number].text[0] != 0) _exit(94);
    trireme_trainer_metrics first = TRIREME_TRAINER_METRICS_INIT;
    if (trireme_trainer_step(r.trainer, &r, &first) != TRIREME_OK) _exit(93);
    outcome->wrong = first.loss != job->right->losses[0];
    trireme_trainer_destroy(r.trainer);
    r.trainer = NULL;
    begin_next(&next, &r);
    draw_cuts(&next, &state);
    make_rank(&next, all);
    if (next.optimizer == NULL) _exit(94);
    outcome->numbers[0] = 1;
    wait_until_made(number, trial, outcome);
    const char *const point = number == trial->victim ? trial->failpoint
                              : trial->victim < 0     ? kCounts
                                                      : "";
    if (trireme_failpoint_set(point) != TRIREME_OK) _exit(91);
    trireme_rebalance_options options = move_of(&next, all);
    options.buffer_bytes = 96;
    const trireme_status status =
        trireme_parallel_rebalance(r.optimizer, next.optimizer, &options, NULL);
    for (int k = 0; k < 2 && trial->victim < 0; ++k) {
        uint64_t hits = 0;
        if (trireme_failpoint_get_hits(kMessages[k], &hits) != TRIREME_OK) _exit(97);
        outcome->numbers[4 + k] = (int64_t)hits;
    }
    if (status != TRIREME_OK) {
        keep_error(outcome, status);
        outcome->later = trireme_parallel_rebalance(r.optimizer, next.optimizer, &options, NULL);
    } else {
        outcome->rounds = 1;
        make_trainer(&next);
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        const trireme_status step = next.trainer == NULL
                                        ? TRIREME_ERROR_PEER_LOST
                                        : trireme_trainer_step(next.trainer, &next, &metrics);
        if (step != TRIREME_OK) keep_error(outcome, step);
        outcome->wrong |= step == TRIREME_OK && (metrics.loss != job->right->losses[1] ||
                                                 metrics.gradient_norm != job->right->norms[1]);
        outcome->later = step;
        outcome->numbers[2] = step == TRIREME_OK;
    }
    end_rank(&r);
    free_layout(&next);
    trireme_communicator_destroy(all);
}

/* Of each rank: messages out and in, where none dies. */
static int messages[MOST_RANKS][2];

static void run_trial(struct trial *trial) {
    struct processes processes;
    const int world = trial->job.data * trial->job.ranks;
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, world, step_and_move, trial);
    wait_processes(&processes);
    const bool committed = strcmp(trial->failpoint, "rebalance.after_commit=kill@1") == 0;
    for (int rank = 0; rank < world; ++rank) {
        const struct outcome *const o = &processes.outcomes[rank];
        bool right = !o->hung && !o->wrong;
        if (rank == trial->victim) {
            right = right && o->signal == SIGKILL;
        } else if (trial->victim < 0) {
            right = right && o->exit_code == 0 && o->status == TRIREME_OK && o->numbers[2] == 1;
            for (int k = 0; k < 2; ++k) messages[rank][k] = (int)o->numbers[4 + k];
        } else {
            right = right && o->exit_code == 0 && o->status == TRIREME_ERROR_PEER_LOST &&
                    o->later == TRIREME_ERROR_PEER_LOST && (o->rounds == 0 || committed);
        }
        if (!right) {
            print_error(
                "%s of %d, %d x %d: rank %d: exit code %d, signal %d%s, %d rounds, %s: %s, "
                "later %s\n",
                trial->failpoint, trial->victim, trial->job.data, trial->job.ranks, rank,
                o->exit_code, o->signal, o->hung ? ", hung" : "", o->rounds,
                trireme_status_name(o->status), o->message, trireme_status_name(o->later));
        }
        assert_true(right);
    }
    free_processes(&processes);
}

/* The plain loop needs seeds of the library, which this process must not have used: a child does
 * it. */
static void draw(int number, void *context, struct outcome *outcome) {
    (void)context;
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
    make_trainer(&r);
    for (int step = 0; step < STEPS; ++step) {
        if (trireme_trainer_step(r.trainer, &r, NULL) != TRIREME_OK) _exit(94);
    }
    double loss = 0;
    if (trireme_trainer_evaluate(r.trainer, &r, &loss) != TRIREME_OK) _exit(95);
    static struct curve own;
    plain_training(6, 0, 0, &own);
    for (int step = 0; step < STEPS; ++step) {
        memcpy(&outcome->numbers[step], &own.losses[step], 8);
        memcpy(&outcome->numbers[STEPS + step], &own.norms[step], 8);
    }
    end_rank(&r);
    trireme_communicator_destroy(all);
}

static void draw_curve(struct curve *right) {
    struct processes processes;
    start_processes(&processes, 1, draw, NULL);
    wait_processes(&processes);
    assert_int_equal(processes.outcomes[0].exit_code, 0);
    for (int step = 0; step < STEPS; ++step) {
        memcpy(&right->losses[step], &processes.outcomes[0].numbers[step], 8);
        memcpy(&right->norms[step], &processes.outcomes[0].numbers[STEPS + step], 8);
    }
    free_processes(&processes);
}

static void a_killed_rank_is_lost_to_the_move(void **state) {
    (void)state;
    static struct curve right;
    draw_curve(&right);
    static const char *const points[] = {
        "rebalance.before_tables=kill@1",   "rebalance.between_tables=kill@1",
        "rebalance.before_allocate=kill@1", "rebalance.before_restore=kill@1",
        "agree.before_exchange=kill@1",     "agree.before_exchange=kill@2",
        "agree.before_exchange=kill@3",     "agree.before_exchange=kill@4",
        "agree.before_exchange=kill@5",     "agree.after_exchange=kill@3",
        "agree.after_exchange=kill@4",      "rebalance.after_commit=kill@1",
    };
    enum { POINTS = sizeof points / sizeof points[0] };
    const int meshes[][2] = {{2, 2}, {1, 3}, {2, 3}, {4, 2}};
    const bool all = getenv("TRIREME_TEST_LONG") != NULL;
    const int wanted = all ? 300 : is_quick() ? 10 : 20;
    int kills = 0;
    for (int round = 0; kills < wanted; ++round) {
        const int m = round % (all ? 4 : 3);
        static struct trial trial;
        memset(&trial, 0, sizeof trial);
        trial.seed = 11 + (uint64_t)round;
        trial.victim = -1;
        trial.job = (struct job){.strategy = (trireme_strategy)(1 + round % 5),
                                 .data = meshes[m][0],
                                 .ranks = meshes[m][1],
                                 .order = TRIREME_PIPELINE_ORDER_1F1B,
                                 .stages_per_rank = 1,
                                 .leaves = 6,
                                 .split = 0x55,
                                 .right = &right};
        run_trial(&trial);
        const int world = trial.job.data * trial.job.ranks;
        int sent = 0;
        for (int k = 0; k < world; ++k) sent += messages[k][0];
        assert_true(sent > 0);
        /* In the short run a third of the points, and one message of each rank. */
        for (int p = 0; p < POINTS && kills < wanted; ++p) {
            if (!all && (p + round) % 3 != 0) continue;
            trial.victim = (p + round) % world;
            snprintf(trial.failpoint, sizeof trial.failpoint, "%s", points[p]);
            run_trial(&trial);
            ++kills;
        }
        for (int k = 0; k < 2 * world && kills < wanted; ++k) {
            trial.victim = k / 2;
            const int count = messages[k / 2][k % 2];
            for (int message = 1; message <= count && kills < wanted; ++message) {
                if (!all && message != 1 + round % count) continue;
                snprintf(trial.failpoint, sizeof trial.failpoint, "%s=kill@%d", kMessages[k % 2],
                         message);
                run_trial(&trial);
                ++kills;
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_is_lost_to_the_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
