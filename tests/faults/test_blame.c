/*
 * The blame where ranks wait for each other, on threads. It goes to the rank that waits for no
 * other. It goes neither to a rank that waits for that one elsewhere, nor to a rank whose operation
 * had another one before it. The late rank is a thread that does not call.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "calls.h"
#include "models.h"
#include "options.h"
#include "processes.h"
#include "ranks.h"

/* Begun operations are with the others long before. */
#define SHORT_NS (1000ull * 1000 * 1000)
#define LATER_NS (40 * SHORT_NS)

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

/* ---- what one trial is ---- */

enum shape {
    CHAIN,   /* the hasty rank waits for all others, and they in another queue for the absent one */
    STARTED, /* the hasty rank's operation has one before it that has more time */
    BLOCKED, /* the same, by a call that blocks */
    SHAPES
};

struct trial {
    enum shape shape;
    int world_size, absent, hasty;
    pthread_barrier_t begun, over;
    trireme_status statuses[MOST_RANKS];
    trireme_error_info infos[MOST_RANKS];
    char texts[MOST_RANKS][600];
    struct verdict verdicts[MOST_RANKS];
};

static trireme_operation_options options_of(uint64_t timeout_ns, int32_t priority) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    options.priority = priority;
    return options;
}

/* All but the absent rank begin this one; the absent one begins nothing. */
static void begin(trireme_communicator *group, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdicts[rank];
    const int32_t ones[2] = {1, 1};
    int32_t sums[2] = {0};
    trireme_request *early = NULL, *late = NULL;
    trireme_status status = TRIREME_OK;
    EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(group, NULL));
    const bool comes = rank != trial->absent;
    if (comes && !(trial->shape == CHAIN && rank == trial->hasty)) {
        const trireme_operation_options options = options_of(LATER_NS, trial->shape == CHAIN);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_all_reduce_start(group, &ones[0], &sums[0], 1, TRIREME_DTYPE_I32,
                                               TRIREME_REDUCTION_SUM, &options, &early));
    }
    pthread_barrier_wait(&trial->begun);
    if (rank == trial->hasty) {
        const trireme_operation_options options = options_of(SHORT_NS, 0);
        if (trial->shape == STARTED) {
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_all_reduce_start(group, &ones[1], &sums[1], 1, TRIREME_DTYPE_I32,
                                                   TRIREME_REDUCTION_SUM, &options, &late));
            status = trireme_request_wait(late, LATER_NS);
        } else {
            status = trireme_all_reduce(group, &ones[1], &sums[1], 1, TRIREME_DTYPE_I32,
                                        TRIREME_REDUCTION_SUM, &options);
        }
    } else if (comes) {
        status = trireme_request_wait(early, LATER_NS);
    }
    if (rank == trial->absent) {
        pthread_barrier_wait(&trial->over);
        /* Until it hears of it. */
        while (status == TRIREME_OK) {
            status = trireme_all_reduce(group, &ones[0], &sums[0], 1, TRIREME_DTYPE_I32,
                                        TRIREME_REDUCTION_SUM, NULL);
        }
    }
    trial->statuses[rank] = status;
    snprintf(trial->texts[rank], sizeof trial->texts[rank], "%s", trireme_last_error());
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_last_error_info(&info));
    trial->infos[rank] = info;
    if (comes) pthread_barrier_wait(&trial->over);
    trireme_request_destroy(late);
    trireme_request_destroy(early);
}

static int trial_count, wrong_count;

static void run_trial(enum shape shape, int world_size, int absent, int hasty) {
    struct trial trial = {.shape = shape,
                          .world_size = world_size,
                          .absent = absent,
                          .hasty = hasty};
    if (pthread_barrier_init(&trial.begun, NULL, (unsigned)world_size) != 0 ||
        pthread_barrier_init(&trial.over, NULL, (unsigned)world_size) != 0) {
        abort();
    }
    run_ranks(world_size, begin, &trial);
    assert_verdicts(trial.verdicts, world_size);
    bool wrong = false;
    for (int rank = 0; rank < world_size; ++rank) {
        const bool right = trial.statuses[rank] == TRIREME_ERROR_TIMEOUT &&
                           blames_only(&trial.infos[rank], absent);
        if (right) continue;
        print_error("shape %d, rank %d of %d: %s, blames %u, the first %d, not rank %d alone: %s\n",
                    (int)shape, rank, world_size, trireme_status_name(trial.statuses[rank]),
                    trial.infos[rank].blamed_count, trial.infos[rank].blamed[0], absent,
                    trial.texts[rank]);
        wrong = true;
    }
    wrong_count += wrong;
    pthread_barrier_destroy(&trial.begun);
    pthread_barrier_destroy(&trial.over);
    ++trial_count;
}

static void every_shape_blames_who_waits_for_nobody(void **state) {
    (void)state;
    for (int shape = 0; shape < SHAPES; ++shape) {
        for (int world_size = 3; world_size <= (is_long() ? 7 : 3); ++world_size) {
            for (int absent = 0; absent < world_size; ++absent) {
                for (int step = 1; step < world_size; ++step) {
                    if (!is_long() && (absent + step) % 3 != 0) continue;
                    run_trial((enum shape)shape, world_size, absent, (absent + step) % world_size);
                }
            }
        }
    }
    printf("trials: %d of ranks that wait for each other, %d with another verdict\n", trial_count,
           wrong_count);
    assert_int_equal(wrong_count, 0);
}

/* ---- a training in which one thread stands still ---- */

enum { RANKS = 4, UNITS = 4, COUNT = 500, STEPS = 4, PLACES = UNITS + 2, AT_ONCE = 16 };
#define TRAINING_NS (4 * SHORT_NS)

/* The last ones have groups of their own beside the caller's: who waits in a smaller one is not to
 * blame in the whole. */
static const struct training {
    const char *name;
    trireme_strategy strategy;
    uint32_t shard_ranks, reshard_ranks;
} kTrainings[] = {
    {"data_parallel", TRIREME_STRATEGY_DATA_PARALLEL, 0, 0},
    {"zero1", TRIREME_STRATEGY_ZERO1, 0, 0},
    {"zero2", TRIREME_STRATEGY_ZERO2, 0, 0},
    {"zero3", TRIREME_STRATEGY_ZERO3, 0, 0},
    {"hybrid_shard", TRIREME_STRATEGY_HYBRID_SHARD, 2, 0},
    {"zero3, gathered again by two", TRIREME_STRATEGY_ZERO3, 0, 2},
};
enum { TRAININGS = sizeof kTrainings / sizeof kTrainings[0] };

struct frozen {
    const struct training *training;
    int victim, step, place;
    pthread_barrier_t over;
    char wrong[1200];
    pthread_mutex_t mutex;
};

static void note_wrong(struct frozen *trial, int rank, const char *what) {
    pthread_mutex_lock(&trial->mutex);
    const size_t length = strlen(trial->wrong);
    snprintf(trial->wrong + length, sizeof trial->wrong - length, "  rank %d: %s: %s\n", rank, what,
             trireme_last_error());
    pthread_mutex_unlock(&trial->mutex);
}

static void go_on(struct frozen *trial, trireme_communicator *group, int rank) {
    trireme_communicator *smaller = NULL;
    int32_t own = 0, size = 0;
    trireme_status status = trireme_communicator_shrink(group, NULL, &smaller);
    if (status == TRIREME_OK) status = trireme_communicator_get_world_size(smaller, &size);
    if (status == TRIREME_OK) status = trireme_communicator_get_rank(smaller, &own);
    int64_t value = 1ll << own;
    if (status == TRIREME_OK) {
        status = trireme_all_reduce(smaller, &value, &value, 1, TRIREME_DTYPE_I64,
                                    TRIREME_REDUCTION_SUM, NULL);
    }
    if (status != TRIREME_OK || size != RANKS - 1 || value != (1ll << size) - 1) {
        note_wrong(trial, rank, "does not go on");
    }
    trireme_communicator_destroy(smaller);
}

/* The victim comes to its place and calls nothing any more until the others have gone on. */
static bool stands_still(struct frozen *trial, int rank, int step, int place) {
    return rank == trial->victim && step == trial->step && place == trial->place;
}

static trireme_status train(struct frozen *trial, trireme_model *model,
                            trireme_optimizer *optimizer, int rank, bool *still) {
    float gradient[UNITS * COUNT];
    for (int i = 0; i < UNITS * COUNT; ++i) gradient[i] = 2;
    trireme_status status = TRIREME_OK;
    for (int step = 0; step < STEPS && status == TRIREME_OK; ++step) {
        for (int place = 0; place < PLACES && status == TRIREME_OK; ++place) {
            *still = stands_still(trial, rank, step, place);
            if (*still) return status;
            if (place < UNITS) {
                status = trireme_model_gather_unit(model, (uint64_t)place);
                if (status == TRIREME_OK)
                    status = trireme_model_release_unit(model, (uint64_t)place);
            } else if (place == UNITS) {
                status = trireme_model_accumulate_flat(model, gradient, UNITS * COUNT,
                                                       TRIREME_DTYPE_F32, 0);
            } else {
                status = trireme_optimizer_step(optimizer);
            }
        }
    }
    return status;
}

static void train_until_it_fails(trireme_communicator *group, int rank, void *context) {
    struct frozen *const trial = context;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = trial->training->strategy;
    units_of(&options)->minimum_bytes = 1;
    units_of(&options)->reshard_ranks = trial->training->reshard_ranks;
    shards_of(&options)->ranks = trial->training->shard_ranks;
    if (trial->training->reshard_ranks > 0) shards_of(&options)->share = TRIREME_SHARE_NEVER;
    buckets_of(&options)->bytes = COUNT * 4;
    options.timeout_ns = TRAINING_NS;
    const trireme_optimizer_options rule = plain_rule();
    trireme_status status = make_model(group, &options, UNITS, COUNT, &model);
    if (status == TRIREME_OK) status = trireme_optimizer_create(model, &rule, &optimizer);
    bool still = false;
    if (status == TRIREME_OK) status = train(trial, model, optimizer, rank, &still);
    if (rank != trial->victim) {
        trireme_error_info info = TRIREME_ERROR_INFO_INIT;
        const bool told = trireme_last_error_info(&info) == TRIREME_OK;
        if (status != TRIREME_ERROR_TIMEOUT || !told || !blames_only(&info, trial->victim)) {
            note_wrong(trial, rank, trireme_status_name(status));
        } else {
            go_on(trial, group, rank);
        }
    } else if (!still) {
        note_wrong(trial, rank, "did not come to its place");
    }
    pthread_barrier_wait(&trial->over);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void run_frozen(int index, void *context) {
    struct frozen *const trial = (struct frozen *)context + index;
    if (pthread_barrier_init(&trial->over, NULL, RANKS) != 0) abort();
    run_ranks(RANKS, train_until_it_fails, trial);
    pthread_barrier_destroy(&trial->over);
}

static int check_frozen(struct frozen *trials, int count) {
    int wrong = 0;
    run_threads(count, run_frozen, trials);
    for (int i = 0; i < count; ++i) {
        if (trials[i].wrong[0] == 0) continue;
        print_error("%s, rank %d stands still in step %d at %d:\n%s", trials[i].training->name,
                    trials[i].victim, trials[i].step, trials[i].place, trials[i].wrong);
        ++wrong;
    }
    return wrong;
}

static void everybody_names_the_thread_that_stands_still(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    static struct frozen trials[AT_ONCE];
    int count = 0, started = 0, wrong = 0;
    unsigned turn = 0;
    for (int training = 0; training < TRAININGS; ++training) {
        for (int step = 0; step < STEPS; ++step) {
            for (int place = 0; place < PLACES; ++place) {
                for (int victim = 0; victim < RANKS; ++victim, ++turn) {
                    /* Each strategy a few times, at other places and of other ranks; and those in
                     * which ranks most often wait for each other in several groups. */
                    const bool crossed = ranks_use_network() && !is_quick() && step == 1 &&
                                         place < UNITS && kTrainings[training].shard_ranks > 0;
                    if (!is_long() && !crossed && turn % (is_quick() ? 69 : 25) != 3) continue;
                    trials[count] = (struct frozen){.training = &kTrainings[training],
                                                    .victim = victim,
                                                    .step = step,
                                                    .place = place,
                                                    .mutex = PTHREAD_MUTEX_INITIALIZER};
                    ++started;
                    if (++count < AT_ONCE) continue;
                    wrong += check_frozen(trials, count);
                    count = 0;
                }
            }
        }
    }
    wrong += check_frozen(trials, count);
    printf("trials: %d trainings with a thread that stands still, %d with another verdict\n",
           started, wrong);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_blames_who_waits_for_nobody),
        cmocka_unit_test(everybody_names_the_thread_that_stands_still),
    };
    return cmocka_run_group_tests_name("blame", tests, NULL, NULL);
}
