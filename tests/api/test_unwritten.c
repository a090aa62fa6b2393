/*
 * A trainer whose backward leaves memory unwritten: a step that fails on all ranks with a message
 * that names layer and gradient, whatever the type, the strategy and the number of micro-batches;
 * and the cases that are none, such as NaN by overflow.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <numbers.h>
#include <options.h>
#include <ranks.h>

enum { RANKS = 2, LAYERS = 3, PARAMETERS = 15, WIDTH = 9, MOST = 4099, ALL = 70 + 5 + MOST + 12 };

/* The middle layer has no parameter. The last has many, so that not all are listed. */
static const char *const kLayers[LAYERS] = {"first", "middle", "last"};
static const int kFirsts[LAYERS + 1] = {0, 2, 2, PARAMETERS};
static int size_of(int k) {
    return k == 0 ? 70 : k == 1 ? 5 : k == 2 ? MOST : 1;
}

enum act {
    WRITES,      /* everything */
    SKIPS,       /* parameter `which` of the layer, or all */
    ONE_SHORT,   /* one element of it, `element` */
    ADDS,        /* to the contents of the memory */
    NO_INPUT,    /* writes no input_gradient */
    PART_INPUT,  /* all but one number of it */
    PART_UNREAD, /* all but the last number, which is never read */
    OVERFLOWS,   /* writes inf and NaN */
    OWN_MEMORY,  /* points the place elsewhere */
    NO_GRADIENT, /* sets it to NULL */
    LEFT_OUT,    /* the same where every gradient is needed */
    ZERO_INPUT   /* writes no input_gradient, in a trainer that sets it to 0 */
};
enum { EVERY = -1 };

struct job {
    trireme_strategy strategy;
    trireme_dtype dtype;
    int leaves, micro_batches;
    uint32_t model_flags;
    bool scales;  /* the loss */
    bool adds_up; /* all layers do */
    uint32_t trainer_flags;
    enum act act;
    int rank, layer, which, element; /* rank, which: or EVERY */
    const char *words[4];            /* in the message; none: the step succeeds */
    bool ends_model;
    struct verdict verdicts[RANKS];
};

struct rank {
    struct job *job;
    int number;
    bool acts;
    _Alignas(8) char own[MOST * 8];
};

static struct layer_of {
    struct rank *rank;
    int layer;
} layers_of[RANKS][LAYERS];

static trireme_dtype gradient_dtype(trireme_dtype dtype) {
    return dtype == TRIREME_DTYPE_F64 ? dtype : TRIREME_DTYPE_F32;
}
static double gradient_of(int k, int i) {
    return (double)((i + k) % 3 - 1);
}

static int32_t TRIREME_CALLCONV forward(const trireme_layer_call *c, void *user_data) {
    (void)user_data;
    for (int i = 0; c->output != NULL && i < WIDTH; ++i) ((float *)c->output)[i] = 1;
    if (c->loss != NULL) *c->loss = 1;
    return 0;
}

static int32_t TRIREME_CALLCONV backward(const trireme_layer_call *c, void *user_data) {
    const struct layer_of *const me = user_data;
    struct rank *const r = me->rank;
    const struct job *const job = r->job;
    const trireme_dtype dtype = gradient_dtype(job->dtype);
    const bool acts =
        r->acts && (job->rank == EVERY || r->number == job->rank) && me->layer == job->layer;
    const enum act act = acts ? job->act : WRITES;
    const uint64_t size = dtype == TRIREME_DTYPE_F64 ? 8 : 4;
    for (int i = 0; c->input_gradient != NULL && i < WIDTH; ++i) {
        if (act == NO_INPUT || act == ZERO_INPUT || (act == PART_INPUT && i == 3)) continue;
        if (act == PART_UNREAD && i == WIDTH - 1) continue;
        ((float *)c->input_gradient)[i] =
            c->output_gradient == NULL ? 1 : ((const float *)c->output_gradient)[i] * 1.0f;
    }
    /* The result computed from the gradient that came: 1 of each number. */
    double scale = c->loss_scale;
    for (int i = 0; me->layer < LAYERS - 1 && i < WIDTH - 1; ++i) {
        const float came = ((const float *)c->output_gradient)[i];
        if (isnan(came)) scale = (double)came;
    }
    for (int k = 0; k < (int)c->parameter_count; ++k) {
        const bool mine = job->which == EVERY || job->which == k;
        char *to = c->gradients[k];
        if (mine && act == SKIPS) continue;
        if (mine && (act == NO_GRADIENT || act == LEFT_OUT)) {
            c->gradients[k] = NULL;
            continue;
        }
        if (mine && act == OWN_MEMORY) c->gradients[k] = to = r->own;
        for (int i = 0; i < (int)c->parameter_counts[k]; ++i) {
            double value = gradient_of(kFirsts[me->layer] + k, i);
            value = isnan(scale) ? value : value * scale;
            if (mine && act == ONE_SHORT && i == job->element) continue;
            if (mine && act == OVERFLOWS) value = i == 0 ? (double)NAN : (double)INFINITY;
            if (job->adds_up || (mine && act == ADDS)) value += number_at(dtype, to + i * size);
            if (dtype == TRIREME_DTYPE_F64) {
                ((double *)(void *)to)[i] = value;
            } else {
                ((float *)(void *)to)[i] = (float)value;
            }
            /* Whose payload comes through arithmetic. */
            const float came = me->layer + 1 < LAYERS ? ((const float *)c->output_gradient)[3] : 0;
            if (isnan(scale) && dtype == TRIREME_DTYPE_F64) {
                ((double *)(void *)to)[i] = (double)came * 2.0;
            } else if (isnan(scale)) {
                ((float *)(void *)to)[i] = came * 2.0f;
            }
        }
    }
    return 0;
}

static void make(struct rank *r, trireme_communicator *communicator, trireme_model **model,
                 trireme_optimizer **optimizer, trireme_trainer **trainer) {
    struct verdict *const v = &r->job->verdicts[r->number];
    const struct job *const job = r->job;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = job->strategy;
    options.leaves = (uint32_t)job->leaves;
    options.flags = job->model_flags;
    options.unused = job->act == NO_GRADIENT ? TRIREME_UNUSED_ZERO : TRIREME_UNUSED_ERROR;
    buckets_of(&options)->bytes = units_of(&options)->minimum_bytes = 1;
    if (job->strategy == TRIREME_STRATEGY_HYBRID_SHARD) shards_of(&options)->ranks = RANKS;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, model));
    for (int k = 0; k < PARAMETERS; ++k) {
        const uint64_t size = (uint64_t)size_of(k);
        char name[8];
        snprintf(name, sizeof name, "p%d", k);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.unit = k < 2 ? "u0" : "u1";
        parameter.dtype = job->dtype;
        parameter.dimensions = 1;
        parameter.shape = &size;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(*model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(*model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.25;
    if (job->scales) loss_scale_of(&rule)->initial_scale = 8;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(*model, &rule, optimizer));
    trireme_layer layers[LAYERS];
    for (int l = 0; l < LAYERS; ++l) {
        layers_of[r->number][l] = (struct layer_of){r, l};
        layers[l] = (trireme_layer)TRIREME_LAYER_INIT;
        layers[l].name = kLayers[l];
        layers[l].first_parameter = (uint64_t)kFirsts[l];
        layers[l].parameter_count = (uint64_t)(kFirsts[l + 1] - kFirsts[l]);
        layers[l].forward = forward;
        layers[l].backward = backward;
        layers[l].user_data = &layers_of[r->number][l];
        layers[l].output_bytes = l + 1 < LAYERS ? WIDTH * sizeof(float) : 0;
    }
    trireme_trainer_options how = TRIREME_TRAINER_OPTIONS_INIT;
    how.micro_batches = (uint32_t)job->micro_batches;
    how.flags = job->trainer_flags;
    EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_create(*optimizer, layers, LAYERS, &how, trainer));
}

/* Parameters after so many whole steps; `zeroed` of them had a gradient of 0 on all ranks. */
static void check_values(struct rank *r, trireme_model *model, int steps, int zeroed) {
    struct verdict *const v = &r->job->verdicts[r->number];
    static _Thread_local char values[ALL * 8];
    const uint64_t size = r->job->dtype == TRIREME_DTYPE_F64   ? 8
                          : r->job->dtype == TRIREME_DTYPE_F32 ? 4
                                                               : 2;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, values, ALL, r->job->dtype));
    int at = 0;
    for (int k = 0; k < PARAMETERS; ++k) {
        for (int i = 0; i < size_of(k); ++i, ++at) {
            const double right = k == zeroed ? 0 : -0.25 * steps * gradient_of(k, i);
            const double there = number_at(r->job->dtype, values + (uint64_t)at * size);
            if (there == right) continue;
            char text[200];
            snprintf(text, sizeof text, "element %d of p%d is %g, not %g", i, k, there, right);
            expect_failed(v, __FILE__, __LINE__, text);
            return;
        }
    }
}

static void train(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[number];
    static struct rank ranks[RANKS];
    struct rank *const r = &ranks[number];
    *r = (struct rank){.job = job, .number = number, .acts = true};
    for (int i = 0; i < MOST * 8; ++i) r->own[i] = (char)0xff;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_trainer *trainer = NULL;
    make(r, communicator, &model, &optimizer, &trainer);
    int steps = 0;
    if (job->words[0] != NULL) {
        EXPECT_STATUS(v, TRIREME_ERROR_CALLBACK, trireme_trainer_step(trainer, NULL, NULL));
        char who[24];
        snprintf(who, sizeof who, "rank %d", job->rank);
        bool right = job->ends_model || strstr(trireme_last_error(), who) != NULL;
        for (int i = 0; i < 4 && job->words[i] != NULL; ++i) {
            right = right && strstr(trireme_last_error(), job->words[i]) != NULL;
        }
        if (!right) expect_failed(v, __FILE__, __LINE__, trireme_last_error());
    } else {
        trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(trainer, NULL, &metrics));
        const bool skipped = job->act == OVERFLOWS && job->scales;
        EXPECT(v, metrics.skipped == (skipped ? 1 : 0));
        if (!skipped) ++steps;
    }
    /* The next step may come. */
    r->acts = false;
    const bool lost = job->act == OVERFLOWS && !job->scales;
    if (!job->ends_model && !lost && v->text[0] == 0) {
        if (steps == 1) {
            const bool zero = job->act == NO_GRADIENT || job->act == SKIPS;
            check_values(r, model, 1, zero ? kFirsts[job->layer] + job->which : PARAMETERS);
        }
        /* It then has had one gradient less. */
        const bool halved = steps == 1 && (job->act == NO_GRADIENT || job->act == SKIPS);
        EXPECT_STATUS(v, TRIREME_OK, trireme_trainer_step(trainer, NULL, NULL));
        if (!halved) check_values(r, model, steps + 1, PARAMETERS);
    }
    trireme_trainer_destroy(trainer);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void hand_in_none(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[number];
    static struct rank ranks[RANKS];
    ranks[number] = (struct rank){.job = job, .number = number};
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_trainer *trainer = NULL;
    make(&ranks[number], communicator, &model, &optimizer, &trainer);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(model, 0));
    const float one = 1;
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gradient_ready(model, 5, &one, 1, TRIREME_DTYPE_F32));
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_STATE, trireme_model_end_backward(model));
    static const char *const words[] =
        {"gradients of 14 of 15 parameters are missing: parameter 0 (\"p0\"), parameter 1 (\"p1\")",
         "parameter 4 (\"p4\"), parameter 6 (\"p6\")", "parameter 10 (\"p10\") and 4 more",
         "TRIREME_UNUSED_ZERO"};
    for (int i = 0; i < 4; ++i) {
        if (strstr(trireme_last_error(), words[i]) == NULL) {
            expect_failed(v, __FILE__, __LINE__, trireme_last_error());
        }
    }
    trireme_trainer_destroy(trainer);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void those_that_were_not_handed_in_are_listed(void **state) {
    (void)state;
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO1, .dtype = TRIREME_DTYPE_F32};
    run_ranks(RANKS, hand_in_none, &job);
    assert_verdicts(job.verdicts, RANKS);
}

static void run_job(struct job *job) {
    run_ranks(RANKS, train, job);
    for (int i = 0; i < RANKS; ++i) {
        if (job->verdicts[i].text[0] == 0) continue;
        print_error(
            "%s, %s, leaves %d, micro_batches %d, flags %d, act %d by rank %d in layer %d\n",
            trireme_strategy_name(job->strategy), trireme_dtype_name(job->dtype), job->leaves,
            job->micro_batches, (int)job->model_flags, (int)job->act, job->rank, job->layer);
    }
    assert_verdicts(job->verdicts, RANKS);
}

/* Every strategy with every type and kind of micro-batches. */
static void everywhere(const struct job *wanted) {
    static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64, TRIREME_DTYPE_F16,
                                           TRIREME_DTYPE_BF16};
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        for (int d = 0; d < 4; ++d) {
            for (int kind = 0; kind < 3; ++kind) {
                if (is_quick() && (s + d + kind) % 3 != 0) continue;
                struct job job = *wanted;
                job.strategy = s;
                job.dtype = dtypes[d];
                job.leaves = kind == 0 ? 4 : 0;
                job.micro_batches = kind == 0 ? 0 : kind;
                run_job(&job);
            }
        }
    }
}

/* The same in another layer. */
static void everywhere_of(struct job job, int layer, const char *words) {
    job.layer = layer;
    job.words[0] = words;
    everywhere(&job);
}

static void a_gradient_that_is_not_written_is_named(void **state) {
    (void)state;
    struct job job = {.act = SKIPS, .rank = 1, .layer = 0, .which = 1};
    job.words[0] = "layer 0 (\"first\") did not write 1 of its 2 gradients: \"p1\"";
    job.words[1] = "TRIREME_TRAINER_FLAG_ZERO_GRADIENTS";
    everywhere(&job);
    job.which = 0;
    job.rank = 0;
    everywhere_of(job, 2, "layer 2 (\"last\") did not write 1 of its 13 gradients: \"p2\"");
}

static void ten_of_many_are_listed(void **state) {
    (void)state;
    struct job job = {.act = SKIPS, .rank = 1, .layer = 2, .which = EVERY};
    job.words[0] = "did not write 13 of its 13 gradients: \"p2\", \"p3\"";
    job.words[1] = "\"p10\", \"p11\" and 3 more";
    everywhere(&job);
}

static void those_that_are_left_out_are_listed(void **state) {
    (void)state;
    struct job job = {.act = LEFT_OUT, .rank = 1, .layer = 2, .which = EVERY};
    job.words[0] = "layer 2 (\"last\") left out 13 of its 13 gradients: \"p2\", \"p3\"";
    job.words[1] = "\"p10\", \"p11\" and 3 more";
    job.words[2] = "TRIREME_UNUSED_ZERO";
    everywhere(&job);
}

static void a_gradient_that_lacks_one_element_is_named(void **state) {
    (void)state;
    static const int elements[] = {0, 1, 2050, MOST - 1};
    for (int i = 0; i < 4; ++i) {
        struct job job = {.act = ONE_SHORT, .rank = 0, .layer = 2, .which = 0};
        job.element = elements[i];
        char where[80];
        snprintf(where, sizeof where, "\"p2\" (from element %d on)", elements[i]);
        job.words[0] = where;
        everywhere(&job);
    }
}

static void adding_to_what_nobody_wrote_is_named(void **state) {
    (void)state;
    struct job job = {.act = ADDS, .rank = 1, .layer = 0, .which = 0};
    job.words[0] = "layer 0 (\"first\") did not write 1 of its 2 gradients: \"p0\"";
    everywhere(&job);
}

static void an_input_gradient_that_is_not_written_is_named(void **state) {
    (void)state;
    struct job job = {.act = NO_INPUT, .rank = 1, .layer = 2, .which = EVERY};
    job.words[0] = "layer 2 (\"last\") did not write its input_gradient";
    job.words[1] = "has come to a gradient of layer 0 (\"first\")";
    everywhere(&job);
    everywhere_of(job, 1, "layer 1 (\"middle\") did not write its input_gradient");
}

static void a_part_of_it_is_named_where_it_comes_to_a_gradient(void **state) {
    (void)state;
    struct job job = {.act = PART_INPUT, .rank = 0, .layer = 2, .which = EVERY};
    job.words[0] = "layer 2 (\"last\") did not write all of its input_gradient";
    job.words[1] = "layer 0 (\"first\")";
    everywhere(&job);
    /* A part that no gradient comes from, as of a short batch. */
    job.act = PART_UNREAD;
    job.words[0] = NULL;
    everywhere(&job);
}

static void updates_in_backward_end_the_model(void **state) {
    (void)state;
    for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
        struct job job = {.act = SKIPS, .rank = 1, .layer = 0, .which = 1, .ends_model = true};
        job.strategy = s;
        job.dtype = TRIREME_DTYPE_F32;
        job.model_flags = TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
        job.words[0] = "layer 0 (\"first\") did not write 1 of its 2 gradients";
        run_job(&job);
    }
}

static void numbers_that_overflow_are_no_gap(void **state) {
    (void)state;
    struct job job = {.act = OVERFLOWS, .rank = 1, .layer = 0, .which = 0};
    everywhere(&job);
    job.scales = true;
    everywhere(&job);
}

static void memory_of_the_caller_and_no_gradient_are_no_gap(void **state) {
    (void)state;
    struct job job = {.act = OWN_MEMORY, .rank = 0, .layer = 0, .which = 0};
    everywhere(&job);
    job.act = NO_GRADIENT;
    job.rank = EVERY;
    everywhere(&job);
}

static void zeros_where_the_options_say_so(void **state) {
    (void)state;
    struct job job = {.act = SKIPS, .rank = EVERY, .layer = 2, .which = 0};
    job.trainer_flags = TRIREME_TRAINER_FLAG_ZERO_GRADIENTS;
    everywhere(&job);
    job.act = ADDS;
    job.adds_up = true;
    everywhere(&job);
    job.adds_up = false;
    job.act = ZERO_INPUT;
    job.which = EVERY;
    everywhere(&job);
}

static void try_flags(trireme_communicator *communicator, int number, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[number];
    static struct rank ranks[RANKS];
    ranks[number] = (struct rank){.job = job, .number = number};
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    trireme_trainer *trainer = NULL;
    make(&ranks[number], communicator, &model, &optimizer, &trainer);
    trireme_trainer_destroy(trainer);
    trireme_trainer_options how = TRIREME_TRAINER_OPTIONS_INIT;
    trireme_layer layer = TRIREME_LAYER_INIT;
    layer.name = "all";
    layer.parameter_count = PARAMETERS;
    layer.forward = forward;
    layer.backward = backward;
    how.flags = TRIREME_TRAINER_FLAG_ZERO_GRADIENTS << 1;
    EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_trainer_create(optimizer, &layer, 1, &how, &trainer));
    EXPECT(v, strstr(trireme_last_error(),
                     "options.flags 2 has a bit that is no TRIREME_TRAINER_FLAG_*") != NULL);
    how.flags = number == 0 ? TRIREME_TRAINER_FLAG_ZERO_GRADIENTS : 0;
    EXPECT_STATUS(v, TRIREME_ERROR_MISMATCH,
                  trireme_trainer_create(optimizer, &layer, 1, &how, &trainer));
    EXPECT(v, strstr(trireme_last_error(), "flags") != NULL);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void flags_are_looked_at(void **state) {
    (void)state;
    struct job job = {.strategy = TRIREME_STRATEGY_ZERO2, .dtype = TRIREME_DTYPE_F32};
    run_ranks(RANKS, try_flags, &job);
    assert_verdicts(job.verdicts, RANKS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gradient_that_is_not_written_is_named),
        cmocka_unit_test(ten_of_many_are_listed),
        cmocka_unit_test(those_that_are_left_out_are_listed),
        cmocka_unit_test(a_gradient_that_lacks_one_element_is_named),
        cmocka_unit_test(adding_to_what_nobody_wrote_is_named),
        cmocka_unit_test(an_input_gradient_that_is_not_written_is_named),
        cmocka_unit_test(a_part_of_it_is_named_where_it_comes_to_a_gradient),
        cmocka_unit_test(updates_in_backward_end_the_model),
        cmocka_unit_test(numbers_that_overflow_are_no_gap),
        cmocka_unit_test(memory_of_the_caller_and_no_gradient_are_no_gap),
        cmocka_unit_test(zeros_where_the_options_say_so),
        cmocka_unit_test(flags_are_looked_at),
        cmocka_unit_test(those_that_were_not_handed_in_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
