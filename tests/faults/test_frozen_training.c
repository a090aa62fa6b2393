/*
 * SIGSTOP of one rank in the middle of a training, with every strategy: when the deadline passes,
 * each other rank names exactly the frozen one. Its operation may have waited for that rank, behind
 * such an operation, or for a rank that did. They shrink to all but the frozen one, and their first
 * sum is right. Over host://, or with TRIREME_TESTS_NETWORK as between hosts.
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
enum { RANKS = 4, STEPS = 3, UNITS = 6, COUNT = 500, ELEMENTS = UNITS * COUNT, DONE = 15 };
/* Healthy ranks of a busy machine arrive within far less. */
#define SHORT_DEADLINE_NS (6000ull * 1000 * 1000)

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

static const struct training {
    const char *name;
    trireme_strategy strategy;
    uint32_t shard_ranks;
    uint32_t reshard_ranks;
    int32_t share;
} kTrainings[] = {
    {"data_parallel", TRIREME_STRATEGY_DATA_PARALLEL, 0, 0, TRIREME_SHARE_AUTO},
    {"zero1", TRIREME_STRATEGY_ZERO1, 0, 0, TRIREME_SHARE_AUTO},
    {"zero2", TRIREME_STRATEGY_ZERO2, 0, 0, TRIREME_SHARE_AUTO},
    {"zero3", TRIREME_STRATEGY_ZERO3, 0, 0, TRIREME_SHARE_AUTO},
    {"zero3, copied", TRIREME_STRATEGY_ZERO3, 0, 0, TRIREME_SHARE_NEVER},
    {"zero3, gathered again by two", TRIREME_STRATEGY_ZERO3, 0, 2, TRIREME_SHARE_NEVER},
    {"hybrid_shard", TRIREME_STRATEGY_HYBRID_SHARD, 2, 0, TRIREME_SHARE_AUTO},
    {"hybrid_shard, copied", TRIREME_STRATEGY_HYBRID_SHARD, 2, 0, TRIREME_SHARE_NEVER},
};
enum { TRAININGS = sizeof kTrainings / sizeof kTrainings[0] };

static const char *const kPoints[] = {"bucket.before_launch", "bucket.after_launch",
                                      "bucket.after_wait",    "step.before_reductions",
                                      "step.before_update",   "step.after_reductions",
                                      "step.after_update"};
enum { POINTS = sizeof kPoints / sizeof kPoints[0] };

struct trial {
    const struct training *training;
    int victim;
    char failpoint[64];
    char rendezvous[96];
};

#define CALL(call)                                 \
    do {                                           \
        if (status == TRIREME_OK) status = (call); \
    } while (0)

static void go_on(trireme_communicator *group, struct outcome *o) {
    trireme_communicator *smaller = NULL;
    int32_t rank = 0, size = 0, ranks[RANKS] = {0};
    trireme_status status = trireme_communicator_shrink(group, NULL, &smaller);
    CALL(trireme_communicator_get_world_size(smaller, &size));
    CALL(trireme_communicator_get_rank(smaller, &rank));
    CALL(trireme_communicator_get_original_ranks(smaller, ranks, RANKS));
    int64_t value = 1ll << rank;
    CALL(trireme_all_reduce(smaller, &value, &value, 1, TRIREME_DTYPE_I64, TRIREME_REDUCTION_SUM,
                            NULL));
    if (status != TRIREME_OK) {
        snprintf(o->text, sizeof o->text, "%.250s", trireme_last_error());
    } else {
        o->wrong |= value != (1ll << size) - 1;
        o->numbers[0] = size;
        for (int i = 0; i < size; ++i) o->numbers[1 + i] = ranks[i];
    }
    o->again = status;
    trireme_communicator_destroy(smaller);
}

static void train_until_it_fails(int rank, void *context, struct outcome *o) {
    const struct trial *const trial = context;
    const struct training *const s = trial->training;
    trireme_communicator *const group = join_process(rank, RANKS, trial->rendezvous, PATIENT_NS);
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = s->strategy;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = COUNT * 4;
    shards_of(&options)->ranks = s->shard_ranks;
    units_of(&options)->reshard_ranks = s->reshard_ranks;
    shards_of(&options)->share = s->share;
    options.timeout_ns = SHORT_DEADLINE_NS;
    trireme_status status = trireme_barrier(group, NULL);
    CALL(make_model(group, &options, UNITS, COUNT, &model));
    const trireme_optimizer_options rule = plain_rule();
    CALL(trireme_optimizer_create(model, &rule, &optimizer));
    /* The frames that the others need here may be on their way when the victim stops. */
    if (status != TRIREME_OK && status != TRIREME_ERROR_TIMEOUT) {
        fprintf(stderr, "rank %d: %s\n", rank, trireme_last_error());
        _exit(93);
    }
    if (rank == trial->victim && trireme_failpoint_set(trial->failpoint) != TRIREME_OK) _exit(91);
    static float gradient[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) gradient[i] = 2;
    for (int step = 0; step < STEPS; ++step) {
        for (uint64_t unit = 0; unit < UNITS; ++unit) {
            CALL(trireme_model_gather_unit(model, unit));
            CALL(trireme_model_release_unit(model, unit));
        }
        CALL(trireme_model_accumulate_flat(model, gradient, ELEMENTS, F32, 0));
        CALL(trireme_optimizer_step(optimizer));
        o->rounds += status == TRIREME_OK;
    }
    keep_error(o, status);
    if (status != TRIREME_OK) go_on(group, o);
    __atomic_store_n(&o->numbers[DONE], 1, __ATOMIC_RELEASE);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    trireme_communicator_destroy(group);
}

static bool is_right(const struct trial *trial, int rank, const struct outcome *o) {
    if (o->hung || o->exit_code != 0 || o->wrong) return false;
    /* The victim heard of it, or it had done its part before it stood still. */
    if (rank == trial->victim) return o->status == TRIREME_OK || o->again != TRIREME_OK;
    if (o->status != TRIREME_ERROR_TIMEOUT || !blames_only(&o->info, trial->victim)) return false;
    if (o->again != TRIREME_OK || o->numbers[0] != RANKS - 1) return false;
    for (int i = 0; i < RANKS - 1; ++i) {
        if (o->numbers[1 + i] == trial->victim) return false;
    }
    return true;
}

static void print_outcomes(const struct trial *trial, const struct processes *processes) {
    print_error("%s: %s of rank %d\n", trial->training->name, trial->failpoint, trial->victim);
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct outcome *const o = &processes->outcomes[rank];
        print_error(
            "  rank %d: exit %d, signal %d%s%s, %d steps; %s, blames %u, the first %d: %s; "
            "again %s, %lld ranks: %s\n",
            rank, o->exit_code, o->signal, o->hung ? ", hung" : "", o->wrong ? ", wrong" : "",
            o->rounds, trireme_status_name(o->status), o->info.blamed_count, o->info.blamed[0],
            o->message, trireme_status_name(o->again), (long long)o->numbers[0], o->text);
    }
}

/* So many at once, since they mostly sleep. */
enum { MOST_AT_ONCE = 16 };
static struct trial trials[MOST_AT_ONCE];
static struct processes groups[MOST_AT_ONCE];

static int freeze_and_check(int count) {
    int wrong = 0;
    const uint64_t end = monotonic_ns() + HANG_NS / 2;
    for (int i = 0; i < count; ++i) {
        const bool frozen = wait_stopped(&groups[i], trials[i].victim);
        for (int rank = 0; rank < RANKS; ++rank) {
            const int64_t *const done = &groups[i].outcomes[rank].numbers[DONE];
            while (frozen && rank != trials[i].victim && monotonic_ns() < end &&
                   __atomic_load_n(done, __ATOMIC_ACQUIRE) == 0) {
                sleep_ms(5);
            }
        }
        if (frozen) kill(groups[i].ids[trials[i].victim], SIGCONT);
    }
    for (int i = 0; i < count; ++i) {
        wait_processes(&groups[i]);
        bool right = true;
        for (int rank = 0; rank < RANKS; ++rank) {
            right = right && is_right(&trials[i], rank, &groups[i].outcomes[rank]);
        }
        if (!right) print_outcomes(&trials[i], &groups[i]);
        wrong += !right;
        free_processes(&groups[i]);
    }
    return wrong;
}

static void everybody_names_the_frozen_rank_alone(void **state) {
    (void)state;
    int count = 0, started = 0, wrong = 0;
    unsigned turn = 0;
    const bool on_network = getenv("TRIREME_TESTS_NETWORK") != NULL;
    for (int round = 0; round < (is_long() ? 2 : 1); ++round) {
        for (int training = 0; training < TRAININGS; ++training) {
            for (int point = 0; point < POINTS; ++point) {
                for (int victim = 0; victim < RANKS; ++victim, ++turn) {
                    /* Each strategy twice, at other points and of other ranks. */
                    if (!is_long() && turn % 14 != 5) continue;
                    if (is_quick() && turn % 42 != 5) continue;
                    struct trial *const trial = &trials[count];
                    trial->training = &kTrainings[training];
                    trial->victim = victim;
                    snprintf(trial->failpoint, sizeof trial->failpoint, "%s=stop@%d",
                             kPoints[point], 2 - round);
                    unique_process_rendezvous(trial->rendezvous, sizeof trial->rendezvous);
                    /* The deadline is what ends a call, not a peer's silence. */
                    if (on_network) strcat(trial->rendezvous, "?silence_ms=60000");
                    start_processes(&groups[count], RANKS, train_until_it_fails, trial);
                    ++started;
                    if (++count < MOST_AT_ONCE) continue;
                    wrong += freeze_and_check(count);
                    count = 0;
                }
            }
        }
    }
    wrong += freeze_and_check(count);
    printf("trials: %d trainings with a frozen rank, %d with another verdict\n", started, wrong);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_names_the_frozen_rank_alone),
    };
    return cmocka_run_group_tests_name("frozen_training", tests, NULL, NULL);
}
