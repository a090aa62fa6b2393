/*
 * Several models of one communicator: trained side by side, whichever rank or thread takes which of
 * them first, each gets the mean of its own gradients.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "options.h"
#include "ranks.h"

#define F32 TRIREME_DTYPE_F32

enum { MOST_MODELS = 64, MOST_TEST_RANKS = 4, ELEMENTS = 5, PAIR_MODELS = 8 };

static bool is_long(void) {
    return getenv("TRIREME_TEST_LONG") != NULL;
}

struct trained {
    trireme_model *model;
    trireme_optimizer *optimizer;
};

/* Of model `number`, on `rank`, in step `step`: no two means are alike. */
static float gradient_of(int number, int rank, int step) {
    return (float)((number + 1) * 16 + rank * 4 + step * 1024);
}

static float sum_of(int number, int world_size, int steps) {
    float sum = 0;
    for (int step = 0; step < steps; ++step) {
        for (int rank = 0; rank < world_size; ++rank) sum += gradient_of(number, rank, step);
    }
    return sum;
}

static void create_with(struct verdict *v, trireme_communicator *communicator,
                        trireme_strategy strategy, uint64_t timeout_ns, struct trained *out) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    options.timeout_ns = timeout_ns;
    options.gradients = TRIREME_GRADIENTS_SUM;
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) shards_of(&options)->ranks = 2;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &out->model));
    const uint64_t shape = ELEMENTS;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "weights";
    parameter.dtype = F32;
    parameter.dimensions = 1;
    parameter.shape = &shape;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(out->model, &parameter, NULL));
}

static void create(struct verdict *v, trireme_communicator *communicator, trireme_strategy strategy,
                   struct trained *out) {
    create_with(v, communicator, strategy, 0, out);
}

static void seal(struct verdict *v, struct trained *one) {
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(one->model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(one->model, &rule, &one->optimizer));
}

static void
accumulate(struct verdict *v, const struct trained *one, int number, int rank, int step) {
    float gradients[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) gradients[i] = gradient_of(number, rank, step);
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(one->model, gradients, ELEMENTS, F32, 0));
}

static void step(struct verdict *v, const struct trained *one) {
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(one->optimizer));
}

static void
check(struct verdict *v, const struct trained *one, int number, int world_size, int steps) {
    float values[ELEMENTS];
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(one->model, values, ELEMENTS, F32));
    for (int i = 0; i < ELEMENTS; ++i) {
        if (values[i] == -sum_of(number, world_size, steps)) continue;
        if (v->text[0] == 0) {
            snprintf(v->text, sizeof v->text, "model %d of this rank holds %g, not %g", number + 1,
                     (double)values[i], (double)-sum_of(number, world_size, steps));
        }
    }
}

static void destroy(struct trained *one) {
    trireme_optimizer_destroy(one->optimizer);
    trireme_model_destroy(one->model);
    memset(one, 0, sizeof *one);
}

/* ---- two of several models, in every order ---- */

enum order {
    BY_THREADS, /* each of the two models has a thread of its own */
    CROSSED,    /* odd ranks hand in gradients of the second one first; the steps have one order */
    ONE_ORDER,
    ORDERS
};

struct pairs {
    trireme_strategy strategy;
    int world_size;
    enum order order;
    int trials;
    struct verdict verdicts[MOST_TEST_RANKS];
};

struct own_thread {
    const struct trained *one;
    struct verdict verdict;
    int number, rank, step;
};

static void *train_alone(void *argument) {
    struct own_thread *const own = argument;
    accumulate(&own->verdict, own->one, own->number, own->rank, own->step);
    step(&own->verdict, own->one);
    return NULL;
}

static void train_pair(struct verdict *v, const struct trained *all, int rank, enum order order,
                       int first, int second, const int *steps) {
    const bool turned = rank % 2 == 1 && order != ONE_ORDER;
    const int one = turned ? second : first;
    const int other = turned ? first : second;
    if (order == BY_THREADS) {
        struct own_thread own[2] = {{&all[one], {""}, one, rank, steps[one]},
                                    {&all[other], {""}, other, rank, steps[other]}};
        pthread_t threads[2];
        for (int i = 0; i < 2; ++i) {
            if (pthread_create(&threads[i], NULL, train_alone, &own[i]) != 0) abort();
        }
        for (int i = 0; i < 2; ++i) {
            pthread_join(threads[i], NULL);
            if (v->text[0] == 0) *v = own[i].verdict;
        }
        return;
    }
    accumulate(v, &all[one], one, rank, steps[one]);
    accumulate(v, &all[other], other, rank, steps[other]);
    step(v, &all[first]);
    step(v, &all[second]);
}

static void train_pairs(trireme_communicator *communicator, int rank, void *context) {
    struct pairs *const pairs = context;
    struct verdict *const v = &pairs->verdicts[rank];
    struct trained all[PAIR_MODELS] = {{0}};
    int steps[PAIR_MODELS] = {0};
    int trials = 0;
    for (int i = 0; i < PAIR_MODELS; ++i) create(v, communicator, pairs->strategy, &all[i]);
    for (int i = 0; i < PAIR_MODELS; ++i) seal(v, &all[i]);
    for (int first = 0; first < PAIR_MODELS && v->text[0] == 0; ++first) {
        for (int second = 0; second < PAIR_MODELS && v->text[0] == 0; ++second) {
            if (first == second) continue;
            train_pair(v, all, rank, pairs->order, first, second, steps);
            ++steps[first], ++steps[second], ++trials;
            check(v, &all[first], first, pairs->world_size, steps[first]);
            check(v, &all[second], second, pairs->world_size, steps[second]);
        }
    }
    /* The others would wait; their failure does not matter here. */
    if (v->text[0] != 0 && trireme_communicator_abort(communicator, "wrong") != TRIREME_OK) abort();
    for (int i = 0; i < PAIR_MODELS; ++i) destroy(&all[i]);
    if (rank == 0) pairs->trials += trials;
}

static void every_pair_in_every_order(void **state) {
    (void)state;
    const trireme_strategy strategies[] = {TRIREME_STRATEGY_DATA_PARALLEL, TRIREME_STRATEGY_ZERO1,
                                           TRIREME_STRATEGY_ZERO2, TRIREME_STRATEGY_ZERO3,
                                           TRIREME_STRATEGY_HYBRID_SHARD};
    const int all = (int)(sizeof strategies / sizeof *strategies);
    struct pairs pairs = {0};
    for (int s = 0; s < (is_quick() ? 1 : all); ++s) {
        pairs.strategy = strategies[s];
        const bool hybrid = pairs.strategy == TRIREME_STRATEGY_HYBRID_SHARD;
        for (int world_size = 2; world_size <= (is_long() ? 4 : hybrid ? 2 : 3); ++world_size) {
            if (hybrid && world_size == 3) continue;
            pairs.world_size = world_size;
            for (int order = 0; order < ORDERS; ++order) {
                pairs.order = (enum order)order;
                if (s > 0 && order != BY_THREADS && !is_long()) continue;
                memset(pairs.verdicts, 0, sizeof pairs.verdicts);
                run_ranks(world_size, train_pairs, &pairs);
                assert_verdicts(pairs.verdicts, world_size);
            }
        }
    }
    print_message("%d trials of two models\n", pairs.trials);
}

/* ---- calls that do not fit, on one thread ---- */

struct crossed {
    int models[2]; /* of each rank */
    trireme_status statuses[2];
    char texts[2][600];
    struct verdict verdicts[2];
};

/* Rank 0 compares copies of one model, rank 1 sets the parameters of another one, or of the same.
 */
static void call_on_one_rank_alone(trireme_communicator *communicator, int rank, void *context) {
    struct crossed *const crossed = context;
    struct verdict *const v = &crossed->verdicts[rank];
    struct trained all[PAIR_MODELS] = {{0}};
    for (int i = 0; i < PAIR_MODELS; ++i) {
        create_with(v, communicator, TRIREME_STRATEGY_DATA_PARALLEL, 1000ull * 1000 * 1000,
                    &all[i]);
    }
    for (int i = 0; i < PAIR_MODELS; ++i) seal(v, &all[i]);
    trireme_model *const mine = all[crossed->models[rank]].model;
    const float values[ELEMENTS] = {0};
    crossed->statuses[rank] =
        rank == 0 ? trireme_model_check_replicas(mine)
                  : trireme_model_broadcast_parameters(mine, values, ELEMENTS, F32, 1);
    snprintf(crossed->texts[rank], sizeof crossed->texts[rank], "%s", trireme_last_error());
    for (int i = 0; i < PAIR_MODELS; ++i) destroy(&all[i]);
}

/* In one queue they disagree; in two no rank can know that no other thread will come. */
static void calls_that_do_not_fit_name_models_and_calls(void **state) {
    (void)state;
    int trials = 0;
    for (int first = 0; first < PAIR_MODELS; ++first) {
        for (int second = 0; second < PAIR_MODELS; ++second) {
            if (!is_long() && first != second && (first != 0 || second != 3)) continue;
            struct crossed crossed = {.models = {first, second}};
            run_ranks(2, call_on_one_rank_alone, &crossed);
            assert_verdicts(crossed.verdicts, 2);
            char own[40], other[40];
            snprintf(own, sizeof own, "of model %d", first + 1);
            snprintf(other, sizeof other, "of model %d", second + 1);
            bool named = false;
            for (int rank = 0; rank < 2; ++rank) {
                const char *const text = crossed.texts[rank];
                assert_int_equal(crossed.statuses[rank],
                                 first == second ? TRIREME_ERROR_MISMATCH : TRIREME_ERROR_TIMEOUT);
                named = named || (strstr(text, own) != NULL && strstr(text, other) != NULL &&
                                  (strstr(text, "broadcast") != NULL) &&
                                  (strstr(text, "all_gather") != NULL));
            }
            if (!named) print_error("%s\n%s\n", crossed.texts[0], crossed.texts[1]);
            assert_true(named);
            ++trials;
        }
    }
    print_message("%d calls that do not fit\n", trials);
}

/* ---- many models, each with a thread of its own ---- */

struct many {
    trireme_strategy strategy;
    int world_size, models, steps;
    unsigned seed;
    struct verdict verdicts[MOST_TEST_RANKS];
};

struct life {
    struct trained one;
    struct verdict verdict;
    int number, rank, world_size, steps;
};

static void *live(void *argument) {
    struct life *const life = argument;
    struct verdict *const v = &life->verdict;
    seal(v, &life->one);
    for (int i = 0; i < life->steps && v->text[0] == 0; ++i) {
        accumulate(v, &life->one, life->number, life->rank, i);
        step(v, &life->one);
    }
    if (v->text[0] == 0) check(v, &life->one, life->number, life->world_size, life->steps);
    destroy(&life->one);
    return NULL;
}

static unsigned next_random(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Created in one order, the rest in any: each rank shuffles its threads in a way of its own. */
static void live_side_by_side(trireme_communicator *communicator, int rank, void *context) {
    struct many *const many = context;
    struct verdict *const v = &many->verdicts[rank];
    struct life *const lives = calloc(MOST_MODELS, sizeof *lives);
    pthread_t threads[MOST_MODELS];
    int turns[MOST_MODELS];
    unsigned seed = many->seed + 977u * (unsigned)rank;
    if (lives == NULL) abort();
    for (int i = 0; i < many->models; ++i) {
        lives[i].number = i;
        lives[i].rank = rank;
        lives[i].world_size = many->world_size;
        lives[i].steps = many->steps;
        create(v, communicator, many->strategy, &lives[i].one);
        turns[i] = i;
    }
    for (int i = many->models; i-- > 1;) {
        const int other = (int)(next_random(&seed) % (unsigned)(i + 1));
        const int turn = turns[i];
        turns[i] = turns[other];
        turns[other] = turn;
    }
    for (int i = 0; i < many->models; ++i) {
        if (pthread_create(&threads[i], NULL, live, &lives[turns[i]]) != 0) abort();
    }
    for (int i = 0; i < many->models; ++i) pthread_join(threads[i], NULL);
    for (int i = 0; i < many->models; ++i) {
        if (v->text[0] == 0) *v = lives[i].verdict;
    }
    free(lives);
}

static void many_models_live_side_by_side(void **state) {
    (void)state;
    const trireme_strategy strategies[] = {TRIREME_STRATEGY_DATA_PARALLEL, TRIREME_STRATEGY_ZERO3,
                                           TRIREME_STRATEGY_HYBRID_SHARD};
    const int trials = is_long() ? 20 : is_quick() ? 1 : 2;
    int lives = 0;
    for (int trial = 0; trial < trials; ++trial) {
        for (int s = 0; s < 3; ++s) {
            struct many many = {.strategy = strategies[s],
                                .world_size = 2 + trial % 2,
                                .models = is_quick() ? 8 : MOST_MODELS,
                                .steps = 2,
                                .seed = (unsigned)(trial * 31 + s)};
            if (strategies[s] == TRIREME_STRATEGY_HYBRID_SHARD) {
                many.world_size = 2 + trial % 2 * 2;
                many.models = 6; /* each has groups of its own */
            }
            if (strategies[s] == TRIREME_STRATEGY_HYBRID_SHARD && !ranks_make_groups()) continue;
            run_ranks(many.world_size, live_side_by_side, &many);
            assert_verdicts(many.verdicts, many.world_size);
            lives += many.models;
        }
    }
    print_message("%d models side by side\n", lives);
}

/* ---- more models than a communicator has at a time, one after the other ---- */

enum { MODELS_IN_TURN = MOST_MODELS + 40 };

/* One of them stays all the time; of the others two live at a time, the last one always shorter. */
static void live_one_after_the_other(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = &((struct many *)context)->verdicts[rank];
    const int world_size = ((struct many *)context)->world_size;
    struct trained stays = {0}, before = {0};
    create(v, communicator, TRIREME_STRATEGY_ZERO2, &stays);
    seal(v, &stays);
    for (int i = 1; i < MODELS_IN_TURN && v->text[0] == 0; ++i) {
        struct trained one = {0};
        create(v, communicator,
               i % 2 == 0 ? TRIREME_STRATEGY_DATA_PARALLEL : TRIREME_STRATEGY_ZERO3, &one);
        if (i % 5 == 0) { /* never sealed */
            destroy(&one);
            continue;
        }
        seal(v, &one);
        accumulate(v, &one, i, rank, 0);
        accumulate(v, &stays, 0, rank, i);
        step(v, &one);
        step(v, &stays);
        check(v, &one, i, world_size, 1);
        if (rank == 0) destroy(&before); /* on the other ranks later, when others live already */
        struct trained after = before;
        before = one;
        if (rank != 0) destroy(&after);
    }
    if (v->text[0] != 0 && trireme_communicator_abort(communicator, "wrong") != TRIREME_OK) abort();
    destroy(&before);
    destroy(&stays);
}

static void channels_are_used_again(void **state) {
    (void)state;
    struct many many = {.world_size = 3};
    run_ranks(many.world_size, live_one_after_the_other, &many);
    assert_verdicts(many.verdicts, many.world_size);
}

static void live_too_many(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = &((struct many *)context)->verdicts[rank];
    struct trained *const all = calloc(MOST_MODELS + 2, sizeof *all);
    if (all == NULL) abort();
    for (int i = 0; i < MOST_MODELS; ++i) {
        create(v, communicator, TRIREME_STRATEGY_DATA_PARALLEL, &all[i]);
    }
    for (int i = 0; i < MOST_MODELS; ++i) seal(v, &all[i]);
    struct trained *const last = &all[MOST_MODELS];
    create(v, communicator, TRIREME_STRATEGY_DATA_PARALLEL, last);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_seal(last->model));
    EXPECT(v, strstr(trireme_last_error(), "model 65 of ") != NULL);
    EXPECT(v, strstr(trireme_last_error(), "more than 64 that live") != NULL);
    /* There is room again once all ranks have let go of one. */
    destroy(&all[7]);
    seal(v, last);
    accumulate(v, last, 7, rank, 0);
    accumulate(v, &all[8], 8, rank, 0);
    step(v, last);
    step(v, &all[8]);
    check(v, last, 7, 2, 1);
    check(v, &all[8], 8, 2, 1);
    for (int i = 0; i <= MOST_MODELS; ++i) destroy(&all[i]);
    free(all);
}

static void one_model_too_many_is_refused_on_all_ranks(void **state) {
    (void)state;
    struct many many = {.world_size = 2};
    run_ranks(many.world_size, live_too_many, &many);
    assert_verdicts(many.verdicts, many.world_size);
}

/* ---- ranks that gather different units hear their names ---- */

static void gather_another_unit(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const v = &((struct many *)context)->verdicts[rank];
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    shards_of(&options)->share = TRIREME_SHARE_NEVER;
    units_of(&options)->minimum_bytes = 1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    const char *const names[] = {"encoder", "decoder"};
    for (uint64_t i = 0; i < 2; ++i) {
        const uint64_t shape = ELEMENTS + i;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = names[i];
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &shape;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH, trireme_model_gather_unit(model, rank == 0 ? 0 : 1));
    EXPECT(v, strstr(trireme_last_error(), "one of unit \"encoder\" and one of unit \"decoder\""));
    trireme_model_destroy(model);
}

static void different_units_are_named(void **state) {
    (void)state;
    struct many many = {.world_size = 2};
    run_ranks(many.world_size, gather_another_unit, &many);
    assert_verdicts(many.verdicts, many.world_size);
}

/* ---- a communicator that is destroyed before its models ---- */

static void outlive_the_communicator(trireme_communicator *communicator, int rank, void *context) {
    struct many *const many = context;
    struct verdict *const v = &many->verdicts[rank];
    struct trained one = {0};
    create(v, communicator, many->strategy, &one);
    seal(v, &one);
    accumulate(v, &one, 0, rank, 0);
    step(v, &one);
    trireme_communicator_destroy(communicator);
    const float gradients[ELEMENTS] = {0};
    float values[ELEMENTS];
    const char *const cause = "communicator was destroyed before the model";
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_model_accumulate_flat(one.model, gradients, ELEMENTS, F32, 0));
    EXPECT(v, strstr(trireme_last_error(), cause) != NULL);
    /* No pass is left open that a later call would speak of instead. */
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_optimizer_step(one.optimizer));
    EXPECT(v, strstr(trireme_last_error(), cause) != NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_begin_backward(one.model, 0));
    EXPECT(v, strstr(trireme_last_error(), cause) != NULL);
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE,
                  trireme_model_gather_parameters(one.model, values, ELEMENTS, F32));
    EXPECT(v, strstr(trireme_last_error(), cause) != NULL);
    destroy(&one);
}

static void a_model_without_its_communicator_repeats_the_cause(void **state) {
    (void)state;
    struct many many = {.world_size = 2};
    for (many.strategy = TRIREME_STRATEGY_DATA_PARALLEL; many.strategy <= TRIREME_STRATEGY_ZERO3;
         ++many.strategy) {
        run_ranks(many.world_size, outlive_the_communicator, &many);
        assert_verdicts(many.verdicts, many.world_size);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_in_every_order),
        cmocka_unit_test(calls_that_do_not_fit_name_models_and_calls),
        cmocka_unit_test(many_models_live_side_by_side),
        cmocka_unit_test(channels_are_used_again),
        cmocka_unit_test(one_model_too_many_is_refused_on_all_ranks),
        cmocka_unit_test(different_units_are_named),
        cmocka_unit_test(a_model_without_its_communicator_repeats_the_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
