/* Optimizers: options, agreement, the caller's own rule and its failure, and the norm. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <options.h>
#include <ranks.h>

#define RANKS 3

struct answer {
    trireme_status status;
    char message[320];
};

static struct answer ask(trireme_status status) {
    struct answer answer = {.status = status};
    if (status != TRIREME_OK) {
        snprintf(answer.message, sizeof answer.message, "%s", trireme_last_error());
    }
    return answer;
}

static void expect(struct answer answer, trireme_status status, const char *words) {
    if (answer.status != status) print_error("%s\n", answer.message);
    assert_int_equal(answer.status, status);
    if (words == NULL) return;
    if (strstr(answer.message, words) == NULL) {
        print_error("\"%s\" does not say \"%s\"\n", answer.message, words);
        fail();
    }
}

/* One parameter of `elements` doubles, and nothing frozen. */
static trireme_model *
sealed_model(trireme_communicator *communicator, trireme_strategy strategy, uint64_t elements) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    options.gradients = TRIREME_GRADIENTS_SUM;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "weights";
    parameter.dtype = TRIREME_DTYPE_F64;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    trireme_model *model = NULL;
    if (trireme_model_create(communicator, &options, &model) != TRIREME_OK ||
        trireme_model_add_parameter(model, &parameter, NULL) != TRIREME_OK ||
        trireme_model_seal(model) != TRIREME_OK) {
        fprintf(stderr, "%s\n", trireme_last_error());
        abort();
    }
    return model;
}

/* ---- options ---- */

static int32_t TRIREME_CALLCONV do_nothing(const trireme_update *update, void *user_data) {
    (void)update;
    (void)user_data;
    return 0;
}

struct refusal {
    const char *words;
    trireme_optimizer_options options;
};

static struct refusal refusals[40];
static struct answer refused[40];
static int refusal_count;

static trireme_optimizer_options *next_refusal(const char *words, trireme_rule_kind kind) {
    struct refusal *const refusal = &refusals[refusal_count++];
    refusal->words = words;
    refusal->options = (trireme_optimizer_options)TRIREME_OPTIMIZER_OPTIONS_INIT;
    refusal->options.kind = kind;
    return &refusal->options;
}

static void create_refused(trireme_communicator *communicator, int rank, void *context) {
    (void)rank;
    (void)context;
    trireme_model *const model = sealed_model(communicator, TRIREME_STRATEGY_ZERO1, 5);
    trireme_optimizer *const untouched = (trireme_optimizer *)0x1234;
    for (int i = 0; i < refusal_count; ++i) {
        trireme_optimizer *optimizer = untouched;
        refused[i] = ask(trireme_optimizer_create(model, &refusals[i].options, &optimizer));
        if (optimizer != untouched) abort();
    }
    trireme_model_destroy(model);
}

static void options_out_of_range_are_named(void **state) {
    (void)state;
    const trireme_rule_kind sgd = TRIREME_RULE_SGD, adam = TRIREME_RULE_ADAM,
                            user = TRIREME_RULE_USER;
    refusal_count = 0;
    (void)next_refusal("options.kind is 0", 0);
    (void)next_refusal("options.kind 99", 99);
    next_refusal("options.flags 1073741824", sgd)->flags = 1u << 30;
    next_refusal("options.learning_rate -1", sgd)->learning_rate = -1;
    next_refusal("options.learning_rate inf", sgd)->learning_rate = INFINITY;
    sgd_of(next_refusal("options.rule.momentum 1", sgd))->momentum = 1;
    sgd_of(next_refusal("options.rule.momentum nan", sgd))->momentum = NAN;
    sgd_of(next_refusal("options.rule.momentum 2", 0))->momentum = 2;
    adam_of(next_refusal("options.rule.beta1 1 is not in (0, 1)", adam))->beta1 = 1;
    adam_of(next_refusal("options.rule.beta2 -0.5 is not in (0, 1)", adam))->beta2 = -0.5;
    adam_of(next_refusal("options.rule.epsilon -1", adam))->epsilon = -1;
    next_refusal("options.weight_decay -0.5", sgd)->weight_decay = -0.5;
    clipping_of(next_refusal("options.clipping.max_norm nan", sgd))->max_norm = NAN;
    clipping_of(next_refusal("options.clipping.max_value -1", sgd))->max_value = -1;
    clipping_of(next_refusal("options.clipping.max_value inf", adam))->max_value = INFINITY;
    clipping_of(next_refusal("options.clipping.flags is 1", sgd))->flags = 1;
    clipping_of(next_refusal("options.clipping.struct_size is 4", sgd))->struct_size = 4;
    user_rule_of(next_refusal("options.rule.update is NULL", user))->state_count = 1;
    (void)next_refusal("options.rule", user);
    next_refusal("options.reserved is 1", sgd)->reserved = 1;
    sgd_of(next_refusal("NESTEROV", sgd))->flags = TRIREME_SGD_FLAG_NESTEROV;
    sgd_of(next_refusal("options.rule.flags 2", sgd))->flags = 2;
    sgd_of(next_refusal("options.rule.reserved is 1", sgd))->reserved = 1;
    sgd_of(next_refusal("options.rule.struct_size is 8", sgd))->base.struct_size = 8;
    /* The options name one rule, and their numbers another. */
    (void)sgd_of(next_refusal("options.rule.kind", adam));
    (void)adam_of(next_refusal("options.rule.kind", TRIREME_RULE_LAMB));
    sgd_of(next_refusal("options.rule.kind 99", 0))->base.kind = 99;
    trireme_optimizer_options *const decays = next_refusal("options.weight_decay 0.5 means", user);
    user_rule_of(decays)->update = do_nothing;
    decays->weight_decay = 0.5;
    trireme_optimizer_options *const greedy = next_refusal("options.rule.state_count 9", user);
    user_rule_of(greedy)->update = do_nothing;
    user_rule_of(greedy)->state_count = 9;
    next_refusal("options.struct_size is 4", sgd)->struct_size = 4;
    run_ranks(1, create_refused, NULL);
    for (int i = 0; i < refusal_count; ++i) {
        expect(refused[i], TRIREME_ERROR_INVALID_ARGUMENT, refusals[i].words);
    }
}

static void names_of_rules_are_those_of_the_header(void **state) {
    (void)state;
    assert_string_equal(trireme_rule_name(TRIREME_RULE_SGD), "sgd");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_ADAM), "adam");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_ADAMW), "adamw");
    assert_string_equal(trireme_rule_name(TRIREME_RULE_USER), "user");
    assert_string_equal(trireme_rule_name(0), "unknown");
    assert_string_equal(trireme_rule_name(99), "unknown");
}

/* ---- a life ---- */

struct life {
    struct answer answers[16];
    double rates[2], norm;
    uint64_t steps[2];
    trireme_model_memory with, without;
};

static void live(trireme_communicator *communicator, int rank, void *context) {
    struct life *const life = (struct life *)context + rank;
    struct answer *a = life->answers;
    trireme_model *const model = sealed_model(communicator, TRIREME_STRATEGY_ZERO3, 10);
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAM;
    trireme_optimizer *optimizer = NULL, *second = NULL;
    double ignored = 0;
    *a++ = ask(trireme_optimizer_create(model, NULL, &optimizer));
    *a++ = ask(trireme_optimizer_create(model, &options, NULL));
    *a++ = ask(trireme_optimizer_create(NULL, &options, &optimizer));
    *a++ = ask(trireme_optimizer_create(model, &options, &optimizer)); /* good */
    *a++ = ask(trireme_optimizer_create(model, &options, &second));
    *a++ = ask(trireme_optimizer_get_learning_rate(optimizer, &life->rates[0]));
    *a++ = ask(trireme_optimizer_set_learning_rate(optimizer, -1));
    *a++ = ask(trireme_optimizer_set_learning_rate(optimizer, NAN));
    *a++ = ask(trireme_optimizer_set_learning_rate(optimizer, 0)); /* good: nothing moves */
    *a++ = ask(trireme_optimizer_get_learning_rate(optimizer, &life->rates[1]));
    *a++ = ask(trireme_optimizer_get_step_count(optimizer, &life->steps[0]));
    *a++ = ask(trireme_optimizer_get_gradient_norm(optimizer, &ignored));
    life->with = (trireme_model_memory)TRIREME_MODEL_MEMORY_INIT;
    life->without = (trireme_model_memory)TRIREME_MODEL_MEMORY_INIT;
    *a++ = ask(trireme_model_get_memory(model, &life->with));
    trireme_optimizer_destroy(optimizer);
    *a++ = ask(trireme_model_get_memory(model, &life->without));
    *a++ = ask(trireme_optimizer_step(optimizer));
    clipping_of(&options)->max_norm = 1;
    *a++ = ask(trireme_optimizer_create(model, &options, &second)); /* another one */
    trireme_model_destroy(model);                                   /* the optimizer keeps it */
    if (trireme_optimizer_get_step_count(second, &life->steps[1]) != TRIREME_OK) abort();
    trireme_optimizer_destroy(second);
    trireme_optimizer_destroy(second);
    trireme_optimizer_destroy(NULL);
}

static void a_model_has_one_optimizer_at_a_time(void **state) {
    (void)state;
    static struct life lives[RANKS];
    memset(lives, 0, sizeof lives);
    run_ranks(RANKS, live, lives);
    const struct {
        trireme_status status;
        const char *words;
    } wanted[16] = {{TRIREME_ERROR_INVALID_ARGUMENT, "options is NULL"},
                    {TRIREME_ERROR_INVALID_ARGUMENT, "out_optimizer is NULL"},
                    {TRIREME_ERROR_INVALID_HANDLE, NULL},
                    {TRIREME_OK, NULL},
                    {TRIREME_ERROR_INVALID_STATE, "has an optimizer"},
                    {TRIREME_OK, NULL},
                    {TRIREME_ERROR_INVALID_ARGUMENT, "learning_rate -1"},
                    {TRIREME_ERROR_INVALID_ARGUMENT, "learning_rate nan"},
                    {TRIREME_OK, NULL},
                    {TRIREME_OK, NULL},
                    {TRIREME_OK, NULL},
                    {TRIREME_ERROR_INVALID_STATE, "max_norm is 0"},
                    {TRIREME_OK, NULL},
                    {TRIREME_OK, NULL},
                    {TRIREME_ERROR_INVALID_HANDLE, NULL},
                    {TRIREME_OK, NULL}};
    for (int rank = 0; rank < RANKS; ++rank) {
        const struct life *const life = &lives[rank];
        for (int i = 0; i < 16; ++i) expect(life->answers[i], wanted[i].status, wanted[i].words);
        assert_true(life->rates[0] == 0.001);
        assert_true(life->rates[1] == 0);
        assert_int_equal(life->steps[0] + life->steps[1], 0);
        const uint64_t owned = rank == 0 ? 4 : 3;
        assert_int_equal(life->with.allocated_optimizer_state, 2 * owned * sizeof(double));
        assert_int_equal(life->with.planned_optimizer_state, 2 * owned * sizeof(double));
        assert_int_equal(life->without.allocated_optimizer_state, 0);
        assert_int_equal(life->without.planned_optimizer_state, 0);
    }
}

/* ---- disagreement ---- */

struct dispute {
    struct answer create[RANKS], again[RANKS], step[RANKS];
    trireme_strategy strategy;
};

static void create_otherwise(trireme_communicator *communicator, int rank, void *context) {
    struct dispute *const dispute = context;
    trireme_model *const model = sealed_model(communicator, TRIREME_STRATEGY_ZERO2, 4);
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    set_momentum(&options, rank == 1 ? 0.5 : 0.25);
    trireme_optimizer *optimizer = NULL;
    dispute->create[rank] = ask(trireme_optimizer_create(model, &options, &optimizer));
    set_momentum(&options, 0.5);
    dispute->again[rank] = ask(trireme_optimizer_create(model, &options, &optimizer));
    const double gradients[4] = {1, 2, 3, 4};
    trireme_status status =
        trireme_model_accumulate_flat(model, gradients, 4, TRIREME_DTYPE_F64, 0);
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    dispute->step[rank] = ask(status);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void ranks_with_other_options_hear_of_it_and_may_try_again(void **state) {
    (void)state;
    static struct dispute dispute;
    run_ranks(RANKS, create_otherwise, &dispute);
    for (int rank = 0; rank < RANKS; ++rank) {
        expect(dispute.create[rank], TRIREME_ERROR_MISMATCH,
               "momentum is 0.25 on rank 0 and 0.5 on rank 1");
        expect(dispute.again[rank], TRIREME_OK, NULL);
        expect(dispute.step[rank], TRIREME_OK, NULL);
    }
}

static void learn_otherwise(trireme_communicator *communicator, int rank, void *context) {
    struct dispute *const dispute = context;
    trireme_model *const model = sealed_model(communicator, dispute->strategy, 4);
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    trireme_optimizer *optimizer = NULL;
    trireme_status status = trireme_optimizer_create(model, &options, &optimizer);
    if (status == TRIREME_OK && rank == 2) {
        status = trireme_optimizer_set_learning_rate(optimizer, 0.25);
    }
    const double gradients[4] = {1, 2, 3, 4};
    if (status == TRIREME_OK) {
        status = trireme_model_accumulate_flat(model, gradients, 4, TRIREME_DTYPE_F64, 0);
    }
    dispute->create[rank] = ask(status);
    dispute->step[rank] = ask(trireme_optimizer_step(optimizer));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void a_step_with_two_learning_rates_is_a_mismatch_everywhere(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct dispute dispute;
        memset(&dispute, 0, sizeof dispute);
        dispute.strategy = strategy;
        run_ranks(RANKS, learn_otherwise, &dispute);
        for (int rank = 0; rank < RANKS; ++rank) {
            expect(dispute.create[rank], TRIREME_OK, NULL);
            expect(dispute.step[rank], TRIREME_ERROR_MISMATCH, "learning rate");
        }
    }
}

/* ---- the caller's rule fails ---- */

struct failing {
    trireme_strategy strategy;
    struct answer first[RANKS], second[RANKS], later[RANKS], sums[RANKS];
    trireme_error_info info[RANKS];
};

static int32_t TRIREME_CALLCONV fail_on_the_second_step(const trireme_update *update,
                                                        void *user_data) {
    const bool fails = *(const bool *)user_data;
    return fails && update->step == 2 ? 7 : 0;
}

static void run_failing_rule(trireme_communicator *communicator, int rank, void *context) {
    struct failing *const failing = context;
    trireme_model *const model = sealed_model(communicator, failing->strategy, 9);
    bool fails = rank == 1;
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_USER;
    user_rule_of(&options)->update = fail_on_the_second_step;
    user_rule_of(&options)->user_data = &fails;
    trireme_optimizer *optimizer = NULL;
    trireme_status status = trireme_optimizer_create(model, &options, &optimizer);
    double values[9] = {0};
    for (int step = 0; step < 2; ++step) {
        if (status == TRIREME_OK) {
            status = trireme_model_accumulate_flat(model, values, 9, TRIREME_DTYPE_F64, 0);
        }
        if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
        *(step == 0 ? &failing->first[rank] : &failing->second[rank]) = ask(status);
    }
    failing->info[rank] = (trireme_error_info)TRIREME_ERROR_INFO_INIT;
    if (trireme_last_error_info(&failing->info[rank]) != TRIREME_OK) abort();
    failing->later[rank] =
        ask(trireme_model_gather_parameters(model, values, 9, TRIREME_DTYPE_F64));
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    int32_t one = 1, sum = 0;
    status = trireme_all_reduce(communicator, &one, &sum, 1, TRIREME_DTYPE_I32,
                                TRIREME_REDUCTION_SUM, NULL);
    failing->sums[rank] = ask(status);
    if (sum != RANKS) abort();
}

static void a_rule_that_fails_on_one_rank_fails_the_step_on_all(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct failing failing;
        memset(&failing, 0, sizeof failing);
        failing.strategy = strategy;
        run_ranks(RANKS, run_failing_rule, &failing);
        for (int rank = 0; rank < RANKS; ++rank) {
            const char *const words = "the update rule of rank 1 answered 7 for parameter 0";
            expect(failing.first[rank], TRIREME_OK, NULL);
            expect(failing.second[rank], TRIREME_ERROR_CALLBACK, words);
            assert_int_equal(failing.info[rank].blamed_count, 1);
            assert_int_equal(failing.info[rank].blamed[0], 1);
            expect(failing.later[rank], TRIREME_ERROR_CALLBACK, words);
            expect(failing.sums[rank], TRIREME_OK, NULL);
        }
    }
}

/* ---- what the caller's rule is shown ---- */

enum { ELEMENTS = 11 };

struct shown {
    trireme_strategy strategy;
    int seen[RANKS][ELEMENTS];
    bool right[RANKS];
    struct answer answer[RANKS];
};

struct looking {
    int *seen;
    bool right;
    uint64_t calls;
};

static int32_t TRIREME_CALLCONV look(const trireme_update *update, void *user_data) {
    struct looking *const looking = user_data;
    ++looking->calls;
    bool right = update->struct_size == sizeof *update && update->dtype == TRIREME_DTYPE_F64 &&
                 update->parameter == 0 && update->count > 0 && update->step == 1 &&
                 update->learning_rate == 0.125 && update->first + update->count <= ELEMENTS;
    for (int i = 0; i < TRIREME_MAX_STATES; ++i)
        right = right && (update->states[i] != NULL) == (i < 3);
    for (uint64_t i = 0; right && i < update->count; ++i) {
        const double element = (double)(update->first + i);
        ++looking->seen[update->first + i];
        right = ((const double *)update->gradients)[i] == RANKS * element &&
                ((const double *)update->parameters)[i] == element + 100;
        for (int s = 0; s < 3; ++s) {
            right = right && ((double *)update->states[s])[i] == 0;
            ((double *)update->states[s])[i] = element; /* must be no other element's */
        }
    }
    looking->right = looking->right && right;
    return 0;
}

static void show(trireme_communicator *communicator, int rank, void *context) {
    struct shown *const shown = context;
    struct looking looking = {.seen = shown->seen[rank], .right = true};
    trireme_model *const model = sealed_model(communicator, shown->strategy, ELEMENTS);
    double start[ELEMENTS], gradients[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) {
        start[i] = i + 100;
        gradients[i] = i;
    }
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_USER;
    user_rule_of(&options)->state_count = 3;
    options.learning_rate = 0.125;
    user_rule_of(&options)->update = look;
    user_rule_of(&options)->user_data = &looking;
    trireme_optimizer *optimizer = NULL;
    trireme_status status =
        trireme_model_broadcast_parameters(model, start, ELEMENTS, TRIREME_DTYPE_F64, 0);
    if (status == TRIREME_OK) status = trireme_optimizer_create(model, &options, &optimizer);
    if (status == TRIREME_OK) {
        status = trireme_model_accumulate_flat(model, gradients, ELEMENTS, TRIREME_DTYPE_F64, 0);
    }
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    shown->answer[rank] = ask(status);
    shown->right[rank] = looking.right && looking.calls > 0;
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void the_rule_of_the_caller_sees_what_this_rank_owns(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct shown shown;
        memset(&shown, 0, sizeof shown);
        shown.strategy = strategy;
        run_ranks(RANKS, show, &shown);
        for (int rank = 0; rank < RANKS; ++rank) {
            expect(shown.answer[rank], TRIREME_OK, NULL);
            assert_true(shown.right[rank]);
            for (int i = 0; i < ELEMENTS; ++i) {
                const int owner = i < 4 ? 0 : i < 8 ? 1 : 2; /* 4, 4 and 3 elements */
                const bool updates = strategy == TRIREME_STRATEGY_DATA_PARALLEL || owner == rank;
                assert_int_equal(shown.seen[rank][i], updates ? 1 : 0);
            }
        }
    }
}

/* ---- the norm ---- */

struct normed {
    trireme_strategy strategy;
    double gradients[ELEMENTS]; /* of rank 0; the others have none */
    double max_norm;
    struct answer early[RANKS], answer[RANKS];
    double norm[RANKS];
    double values[RANKS][ELEMENTS];
};

static void clip(trireme_communicator *communicator, int rank, void *context) {
    struct normed *const normed = context;
    trireme_model *const model = sealed_model(communicator, normed->strategy, ELEMENTS);
    const double none[ELEMENTS] = {0};
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_SGD;
    options.learning_rate = 1;
    clipping_of(&options)->max_norm = normed->max_norm;
    trireme_optimizer *optimizer = NULL;
    trireme_status status = trireme_optimizer_create(model, &options, &optimizer);
    normed->early[rank] = ask(trireme_optimizer_get_gradient_norm(optimizer, &normed->norm[rank]));
    if (status == TRIREME_OK) {
        status = trireme_model_accumulate_flat(model, rank == 0 ? normed->gradients : none,
                                               ELEMENTS, TRIREME_DTYPE_F64, 0);
    }
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    if (status == TRIREME_OK) {
        status = trireme_optimizer_get_gradient_norm(optimizer, &normed->norm[rank]);
    }
    if (status == TRIREME_OK) {
        status = trireme_model_gather_parameters(model, normed->values[rank], ELEMENTS,
                                                 TRIREME_DTYPE_F64);
    }
    normed->answer[rank] = ask(status);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

/* Large and small squares that an ordinary sum of doubles would lose. */
static void the_norm_is_exact_and_the_same_on_every_rank(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        for (int turn = 0; turn < ELEMENTS; ++turn) {
            static struct normed normed;
            memset(&normed, 0, sizeof normed);
            normed.strategy = strategy;
            normed.max_norm = 1e6;
            for (int i = 0; i < ELEMENTS; ++i) normed.gradients[i] = 0x1p-27; /* squares 2^-54 */
            normed.gradients[turn] = 1;
            run_ranks(RANKS, clip, &normed);
            const double wanted = (double)sqrtl((long double)(1 + 10 * 0x1p-54));
            for (int rank = 0; rank < RANKS; ++rank) {
                expect(normed.early[rank], TRIREME_ERROR_INVALID_STATE, "no step was made");
                expect(normed.answer[rank], TRIREME_OK, NULL);
                assert_memory_equal(&normed.norm[rank], &wanted, sizeof wanted);
            }
        }
    }
}

static void gradients_above_the_limit_are_scaled_down_to_it(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        static struct normed normed;
        memset(&normed, 0, sizeof normed);
        normed.strategy = strategy;
        normed.max_norm = 0.75;
        long double sum = 0;
        for (int i = 0; i < ELEMENTS; ++i) {
            normed.gradients[i] = (i % 2 == 0 ? 1 : -1) * (0.3 + 0.7 * i);
            sum += (long double)normed.gradients[i] * (long double)normed.gradients[i];
        }
        run_ranks(RANKS, clip, &normed);
        for (int rank = 0; rank < RANKS; ++rank) {
            expect(normed.answer[rank], TRIREME_OK, NULL);
            for (int i = 0; i < ELEMENTS; ++i) {
                const long double wanted = -(long double)normed.gradients[i] * 0.75L / sqrtl(sum);
                assert_true(fabsl(normed.values[rank][i] - wanted) <=
                            4 * DBL_EPSILON * fabsl(wanted));
            }
        }
    }
}

static void a_gradient_that_is_no_number_goes_through_and_shows_in_the_norm(void **state) {
    (void)state;
    for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
        for (int bad = 0; bad < 2; ++bad) {
            static struct normed normed;
            memset(&normed, 0, sizeof normed);
            normed.strategy = strategy;
            normed.max_norm = 1;
            for (int i = 0; i < ELEMENTS; ++i) normed.gradients[i] = 2;
            normed.gradients[9] = bad == 0 ? (double)NAN : -(double)INFINITY;
            run_ranks(RANKS, clip, &normed);
            for (int rank = 0; rank < RANKS; ++rank) {
                expect(normed.answer[rank], TRIREME_OK, NULL);
                assert_true(isnan(normed.norm[rank]));
                for (int i = 0; i < ELEMENTS; ++i) {
                    const double value = normed.values[rank][i];
                    assert_true(i != 9     ? value == -2
                                : bad == 0 ? isnan(value)
                                           : value == (double)INFINITY);
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(names_of_rules_are_those_of_the_header),
        cmocka_unit_test(a_model_has_one_optimizer_at_a_time),
        cmocka_unit_test(ranks_with_other_options_hear_of_it_and_may_try_again),
        cmocka_unit_test(a_step_with_two_learning_rates_is_a_mismatch_everywhere),
        cmocka_unit_test(a_rule_that_fails_on_one_rank_fails_the_step_on_all),
        cmocka_unit_test(the_rule_of_the_caller_sees_what_this_rank_owns),
        cmocka_unit_test(the_norm_is_exact_and_the_same_on_every_rank),
        cmocka_unit_test(gradients_above_the_limit_are_scaled_down_to_it),
        cmocka_unit_test(a_gradient_that_is_no_number_goes_through_and_shows_in_the_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
