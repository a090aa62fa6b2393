/*
 * A rank dies while others are in groups made from the group that they had with it: in halves,
 * pairs, a twin and a child of the twin, and in those that a model makes for itself. A group
 * without the dead rank ends, too, because a rank of it that has seen the death elsewhere comes no
 * more. All survivors shrink the first group, and the first sum is right. Over host://, or with
 * TRIREME_TESTS_NETWORK between hosts; threads of one process that leave are there, too.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>

#include "models.h"
#include "options.h"
#include "processes.h"

#define F32 TRIREME_DTYPE_F32
enum { RANKS = 4, STEPS = 3, COUNT = 300, LARGE = 30000, ELEMENTS = 3 * COUNT };
enum { CHILDREN = 4, GROUPS = CHILDREN + 1 };

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

struct trial {
    int victim;
    int count; /* of elements, or the number of a training */
    char failpoint[64];
    char rendezvous[64];
};

static int trial_count;
static int death_count;

/* ---- the work of a process ---- */

/* Whether a sum over the group is right; its ranks are those of the root. */
static trireme_status sum_over(trireme_communicator *group, int count, bool *wrong) {
    int32_t rank = -1, size = 0, ranks[RANKS] = {0};
    static _Thread_local int64_t values[LARGE];
    trireme_status status = trireme_communicator_get_rank(group, &rank);
    if (status == TRIREME_OK) status = trireme_communicator_get_world_size(group, &size);
    if (status == TRIREME_OK) status = trireme_communicator_get_original_ranks(group, ranks, RANKS);
    if (status != TRIREME_OK) return status;
    int64_t sum = 0;
    for (int i = 0; i < size; ++i) sum += 1ll << (ranks[i] * 6);
    for (int i = 0; i < count; ++i) values[i] = (1ll << (ranks[rank] * 6)) * (i + 1);
    status = trireme_all_reduce(group, values, values, (uint64_t)count, TRIREME_DTYPE_I64,
                                TRIREME_REDUCTION_SUM, NULL);
    for (int i = 0; i < count && status == TRIREME_OK; ++i) *wrong |= values[i] != sum * (i + 1);
    return status;
}

static trireme_status
make_children(trireme_communicator *group, int rank, trireme_communicator **children) {
    const int32_t three[] = {0, 1, 2};
    trireme_communicator *unused = NULL;
    trireme_status status = trireme_communicator_split(group, rank / 2, 0, NULL, &children[0]);
    if (status == TRIREME_OK) {
        status = trireme_communicator_split(group, rank % 2, 0, NULL, &children[1]);
    }
    if (status == TRIREME_OK) status = trireme_communicator_duplicate(group, NULL, &children[2]);
    if (status == TRIREME_OK) {
        status = trireme_communicator_split(children[2], rank / 2, 0, NULL, &children[3]);
    }
    if (status == TRIREME_OK) {
        status = trireme_communicator_subgroup(group, three, 3, NULL, &unused);
    }
    trireme_communicator_destroy(unused);
    return status;
}

/* Those who are left: outcome->again is what the first sum of their group answered. */
static void go_on(trireme_communicator *group, struct outcome *outcome) {
    trireme_communicator *smaller = NULL;
    for (int tries = 0; tries < 8; ++tries) {
        outcome->again = trireme_communicator_shrink(group, NULL, &smaller);
        if (outcome->again != TRIREME_ERROR_PEER_LOST) break;
    }
    if (outcome->again == TRIREME_OK) {
        int32_t size = 0;
        outcome->again = trireme_communicator_get_world_size(smaller, &size);
        outcome->numbers[0] = size;
    }
    if (outcome->again == TRIREME_OK) outcome->again = sum_over(smaller, COUNT, &outcome->wrong);
    if (outcome->again != TRIREME_OK) {
        snprintf(outcome->text, sizeof outcome->text, "%.250s", trireme_last_error());
    }
    trireme_communicator_destroy(smaller);
}

static trireme_status work_in_all(trireme_communicator *group, trireme_communicator **children,
                                  const struct trial *trial, struct outcome *outcome) {
    trireme_status status = TRIREME_OK;
    for (int step = 0; step < STEPS && status == TRIREME_OK; ++step) {
        for (int i = 0; i < GROUPS && status == TRIREME_OK; ++i) {
            /* The small ones first: who is in one of them hears nothing of the others. */
            status = sum_over(i < CHILDREN ? children[i] : group, trial->count, &outcome->wrong);
            outcome->rounds += status == TRIREME_OK;
        }
    }
    /* A rank that died after its part of the last operation is missed now. */
    return status == TRIREME_OK ? trireme_barrier(group, NULL) : status;
}

static void work_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const group = join_process(rank, RANKS, trial->rendezvous, PATIENT_NS);
    trireme_communicator *children[CHILDREN] = {NULL};
    if (trireme_barrier(group, NULL) != TRIREME_OK) _exit(93);
    if (rank == trial->victim && trireme_failpoint_set(trial->failpoint) != TRIREME_OK) _exit(91);
    trireme_status status = make_children(group, rank, children);
    if (status == TRIREME_OK) status = work_in_all(group, children, trial, outcome);
    keep_error(outcome, status);
    if (status != TRIREME_OK) {
        go_on(group, outcome);
        /* Also those without the dead rank have ended, or do in a moment. */
        for (int i = 0; i < CHILDREN; ++i) {
            bool wrong = false;
            while (children[i] != NULL &&
                   (status = sum_over(children[i], 1, &wrong)) == TRIREME_OK) {
            }
            if (children[i] != NULL && status != TRIREME_ERROR_PEER_LOST) ++outcome->numbers[1];
        }
    }
    for (int i = 0; i < CHILDREN; ++i) trireme_communicator_destroy(children[i]);
    trireme_communicator_destroy(group);
}

/* ---- models ---- */

static const struct training {
    const char *name;
    trireme_strategy strategy;
    uint32_t shard_ranks;
    uint32_t reshard_ranks;
    int32_t share;
    bool norm_ranks; /* of two models, each of half of the ranks */
} kTrainings[] = {
    {"hybrid_shard, copied", TRIREME_STRATEGY_HYBRID_SHARD, 2, 0, TRIREME_SHARE_NEVER, false},
    {"hybrid_shard", TRIREME_STRATEGY_HYBRID_SHARD, 2, 0, TRIREME_SHARE_AUTO, false},
    {"zero3, gathered again by two", TRIREME_STRATEGY_ZERO3, 0, 2, TRIREME_SHARE_NEVER, false},
    {"two models under one norm", TRIREME_STRATEGY_ZERO2, 0, 0, TRIREME_SHARE_NEVER, true},
    {"two hybrid models under one norm", TRIREME_STRATEGY_HYBRID_SHARD, 1, 0, TRIREME_SHARE_NEVER,
     true},
};
enum { TRAININGS = sizeof kTrainings / sizeof kTrainings[0] };

/* Where ranks wait for each other, or have just done so. */
static const char *const kTrainingPoints[] = {"unit.after_gather",   "unit.before_wait",
                                              "bucket.after_launch", "bucket.after_wait",
                                              "step.before_agree",   "step.after_reductions",
                                              "step.before_norms",   "step.before_update",
                                              "step.after_give",     "all_reduce.after_publish",
                                              "step.before_return"};
enum { TRAINING_POINTS = sizeof kTrainingPoints / sizeof kTrainingPoints[0] };

#define CALL(call)                                 \
    do {                                           \
        if (status == TRIREME_OK) status = (call); \
    } while (0)

/* The model lives until all ranks have gone on, so that its end reveals no death. */
static void
train(const struct training *s, trireme_communicator *group, int rank, struct outcome *o) {
    trireme_status status = TRIREME_OK;
    trireme_communicator *half = NULL;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    if (s->norm_ranks) CALL(trireme_communicator_split(group, rank / 2, 0, NULL, &half));
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = s->strategy;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = 1500;
    shards_of(&options)->ranks = s->shard_ranks;
    units_of(&options)->reshard_ranks = s->reshard_ranks;
    shards_of(&options)->share = s->share;
    CALL(make_model(half != NULL ? half : group, &options, 3, COUNT, &model));
    trireme_optimizer_options rule = plain_rule();
    clipping_of(&rule)->max_norm = s->norm_ranks ? 1e9 : 0;
    rule.norm_ranks = s->norm_ranks ? group : NULL;
    CALL(trireme_optimizer_create(model, &rule, &optimizer));
    static float gradient[ELEMENTS], values[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) gradient[i] = 2;
    for (int step = 1; step <= STEPS; ++step) {
        for (uint64_t unit = 0; unit < 3; ++unit) {
            CALL(trireme_model_gather_unit(model, unit));
            CALL(trireme_model_release_unit(model, unit));
        }
        CALL(trireme_model_accumulate_flat(model, gradient, ELEMENTS, F32, 0));
        CALL(trireme_optimizer_step(optimizer));
        o->rounds += status == TRIREME_OK;
    }
    CALL(trireme_model_gather_parameters(model, values, ELEMENTS, F32));
    for (int i = 0; i < ELEMENTS && status == TRIREME_OK; ++i) o->wrong |= values[i] != -STEPS;
    CALL(trireme_barrier(group, NULL));
    keep_error(o, status);
    if (status != TRIREME_OK) go_on(group, o);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(half);
}

static void train_until_it_fails(int rank, void *context, struct outcome *outcome) {
    const struct trial *const trial = context;
    trireme_communicator *const group = join_process(rank, RANKS, trial->rendezvous, PATIENT_NS);
    if (trireme_barrier(group, NULL) != TRIREME_OK) _exit(93);
    if (rank == trial->victim && trireme_failpoint_set(trial->failpoint) != TRIREME_OK) _exit(91);
    train(&kTrainings[trial->count], group, rank, outcome);
    trireme_communicator_destroy(group);
}

/* ---- what the parent makes of it ---- */

static bool is_survivor_right(const struct outcome *o, bool died) {
    if (o->hung || o->exit_code != 0 || o->wrong) return false;
    if (!died) return o->status == TRIREME_OK;
    return o->status == TRIREME_ERROR_PEER_LOST && o->numbers[1] == 0 && o->again == TRIREME_OK &&
           o->numbers[0] == RANKS - 1;
}

static void
check_outcomes(const struct trial *trial, const char *what, const struct processes *processes) {
    const bool died = processes->outcomes[trial->victim].signal == SIGKILL;
    bool right = true;
    for (int rank = 0; rank < RANKS; ++rank) {
        if (died && rank == trial->victim) continue;
        right = right && is_survivor_right(&processes->outcomes[rank], died);
    }
    ++trial_count;
    death_count += died;
    if (right) return;
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        print_error(
            "  rank %d: exit %d, signal %d%s%s, %d rounds; %s: %s; %lld children ended otherwise; "
            "again %s, %lld ranks: %s\n",
            rank, o->exit_code, o->signal, o->hung ? ", hung" : "", o->wrong ? ", wrong" : "",
            o->rounds, trireme_status_name(o->status), o->message, (long long)o->numbers[1],
            trireme_status_name(o->again), (long long)o->numbers[0], o->text);
    }
    fail_msg("%s: %s of rank %d", what, trial->failpoint, trial->victim);
}

static void run_trial(struct trial *trial, const char *what, process_function *function) {
    struct processes processes;
    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
    start_processes(&processes, RANKS, function, trial);
    wait_processes(&processes);
    check_outcomes(trial, what, &processes);
    free_processes(&processes);
}

static void tell(const char *what) {
    assert_true(death_count > trial_count / 2);
    printf("children: %s: %d trials, %d deaths; all groups ended, everybody went on\n", what,
           trial_count, death_count);
    trial_count = death_count = 0;
}

static void every_group_ends_with_a_death_and_survivors_go_on(void **state) {
    (void)state;
    static const char *const points[] = {"before_publish", "after_publish", "before_leave"};
    unsigned turn = 0;
    for (int visit = 1; visit <= STEPS * GROUPS; ++visit) {
        for (int victim = 0; victim < RANKS; ++victim) {
            for (unsigned point = 0; point < 3; ++point, ++turn) {
                if (!is_long() && turn % 7 != 0) continue;
                if (is_quick() && turn % 35 != 0) continue;
                for (int large = 0; large < (is_long() ? 2 : 1); ++large) {
                    struct trial trial = {.victim = victim,
                                          .count = large || turn % 14 == 0 ? LARGE : COUNT};
                    snprintf(trial.failpoint, sizeof trial.failpoint, "all_reduce.%s=kill@%d",
                             points[point], visit);
                    run_trial(&trial, "at work", work_until_it_fails);
                }
            }
        }
    }
    tell("at work");
}

static void a_death_while_groups_are_made_keeps_nobody(void **state) {
    (void)state;
    unsigned turn = 0;
    for (int visit = 1; visit <= 5; ++visit) {
        for (int victim = 0; victim < RANKS; ++victim) {
            for (int late = 0; late < 2; ++late, ++turn) {
                if (!is_long() && turn % 7 != 0) continue;
                if (is_quick() && turn % 21 != 0) continue;
                struct trial trial = {.victim = victim, .count = COUNT};
                snprintf(trial.failpoint, sizeof trial.failpoint, "child.%s_join=kill@%d",
                         late ? "after" : "before", visit);
                run_trial(&trial, "being made", work_until_it_fails);
            }
        }
    }
    tell("being made");
}

static void every_group_of_a_model_ends_with_a_death(void **state) {
    (void)state;
    unsigned turn = 0;
    for (int training = 0; training < TRAININGS; ++training) {
        for (int point = 0; point < TRAINING_POINTS; ++point) {
            for (int victim = 0; victim < RANKS; ++victim) {
                for (int visit = 1; visit <= 2; ++visit, ++turn) {
                    if (!is_long() && turn % 11 != 0) continue;
                    if (is_quick() && turn % 55 != 0) continue;
                    struct trial trial = {.victim = victim, .count = training};
                    snprintf(trial.failpoint, sizeof trial.failpoint, "%s=kill@%d",
                             kTrainingPoints[point], visit);
                    run_trial(&trial, kTrainings[training].name, train_until_it_fails);
                }
            }
        }
    }
    tell("in models");
}

/* ---- ranks that are slow to meet ---- */

/* Ranks 0 and 1 meet all others in the child and leave it. Rank 2 learns of them only then and
 * leaves, too, before it meets rank 3. Rank 3 learns of the others last. */
static void make_a_child_slowly(int rank, void *context, struct outcome *outcome) {
    static const char *const slow[RANKS] =
        {NULL, NULL, "join.after_claim=sleep(50);join.after_hello=sleep(150)@2",
         "join.after_claim=sleep(50);join.after_hello=sleep(600)@2"};
    const struct trial *const trial = context;
    trireme_communicator *const group = join_process(rank, RANKS, trial->rendezvous, PATIENT_NS);
    trireme_communicator *child = NULL;
    if (trireme_barrier(group, NULL) != TRIREME_OK) _exit(93);
    if (trireme_failpoint_set(slow[rank]) != TRIREME_OK) _exit(91);
    keep_error(outcome, trireme_communicator_duplicate(group, NULL, &child));
    trireme_communicator_destroy(child);
    if (outcome->status == TRIREME_OK) keep_error(outcome, trireme_barrier(group, NULL));
    trireme_communicator_destroy(group);
}

static void a_child_is_made_although_quick_ranks_have_left_it(void **state) {
    (void)state;
    struct trial trial = {.victim = 0};
    struct processes processes;
    unique_host_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
    start_processes(&processes, RANKS, make_a_child_slowly, &trial);
    wait_processes(&processes);
    check_outcomes(&trial, "met slowly", &processes);
    free_processes(&processes);
    trial_count = death_count = 0;
}

/* ---- threads: who leaves is lost to those who wait ---- */

struct leaving {
    int victim;
    int after; /* so many sums */
    struct verdict *verdicts;
};

static void leave_in_the_middle(trireme_communicator *group, int rank, void *context) {
    const struct leaving *const leaving = context;
    struct verdict *const verdict = &leaving->verdicts[rank];
    trireme_communicator *children[CHILDREN] = {NULL};
    if (!EXPECT_STATUS(verdict, TRIREME_OK, make_children(group, rank, children))) return;
    trireme_status status = trireme_barrier(group, NULL); /* all ranks have all of them */
    bool wrong = false;
    for (int done = 0; status == TRIREME_OK && done < 2 * GROUPS; ++done) {
        if (rank == leaving->victim && done == leaving->after) break;
        const int i = done % GROUPS;
        status = sum_over(i < CHILDREN ? children[i] : group, COUNT, &wrong);
    }
    if (rank == leaving->victim) {
        /* As one that ends without a word does, all at once: the first group tells of it. */
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_abort(group, "it ends"));
        for (int i = 0; i < CHILDREN; ++i) trireme_communicator_destroy(children[i]);
        trireme_communicator_destroy(group);
        return;
    }
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED, status);
    trireme_communicator *smaller = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_shrink(group, NULL, &smaller));
    for (int i = 0; i < CHILDREN; ++i) {
        EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED, sum_over(children[i], 1, &wrong));
    }
    int32_t size = 0;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_world_size(smaller, &size));
    EXPECT_STATUS(verdict, TRIREME_OK, sum_over(smaller, COUNT, &wrong));
    EXPECT(verdict, size == RANKS - 1 && !wrong);
    trireme_communicator_destroy(smaller);
    for (int i = 0; i < CHILDREN; ++i) trireme_communicator_destroy(children[i]);
}

static void threads_whose_groups_end_go_on(void **state) {
    (void)state;
    unsigned turn = 0;
    const int rounds = is_long() ? 10 : 1;
    for (int round = 0; round < rounds; ++round) {
        for (int after = 0; after < 2 * GROUPS; ++after) {
            for (int victim = 0; victim < RANKS; ++victim, ++turn) {
                if (!is_long() && turn % 3 != 0) continue;
                struct verdict verdicts[RANKS] = {0};
                struct leaving leaving = {victim, after, verdicts};
                run_ranks(RANKS, leave_in_the_middle, &leaving);
                assert_verdicts(verdicts, RANKS);
                ++trial_count;
                ++death_count;
            }
        }
    }
    tell("threads");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_group_ends_with_a_death_and_survivors_go_on),
        cmocka_unit_test(a_death_while_groups_are_made_keeps_nobody),
        cmocka_unit_test(a_child_is_made_although_quick_ranks_have_left_it),
        cmocka_unit_test(every_group_of_a_model_ends_with_a_death),
        /* Last: processes are started before this one has used the library. */
        cmocka_unit_test(threads_whose_groups_end_go_on),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("children", tests, NULL, NULL);
}
