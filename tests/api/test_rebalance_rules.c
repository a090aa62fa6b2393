/*
 * A training whose cuts change between steps, for each rule, type and kind of state: it goes on
 * with the bits of one whose cuts stay. Parameters, norms and counters are compared.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <dirent.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <math.h>
#include <options.h>
#include <ranks.h>

#include "directory.inc"

#define F32 TRIREME_DTYPE_F32
#define BF16 TRIREME_DTYPE_BF16
enum { LEAVES = 4, STEPS = 7, PARAMETERS = 9, LAYERS = 7, MOST_RANKS = 8, LARGEST = 40 };

/* "again" is tied to "a", "none" has no elements, and its layer nothing else. */
static const struct {
    const char *name;
    int layer;
    uint64_t rows, columns; /* columns 0: a vector */
} kParameters[PARAMETERS] = {
    {"a", 0, 7, 0},    {"again", 0, 7, 0},  {"frozen", 1, 3, 0},
    {"b", 1, 5, 0},    {"matrix", 2, 4, 6}, {"none", 3, 0, 0},
    {"tall", 4, 5, 3}, {"c", 5, 11, 0},     {"e", 6, 40, 0},
};
enum { A, AGAIN, FROZEN, B, MATRIX, NONE };

static uint64_t elements_of(int p) {
    return kParameters[p].columns == 0 ? kParameters[p].rows
                                       : kParameters[p].rows * kParameters[p].columns;
}

struct training {
    const char *name;
    trireme_rule_kind kind;
    uint32_t flags;
    trireme_dtype dtype;
    bool counts; /* steps of each parameter, a loss scale and groups */
    bool clips;
    bool state_in_file, parameters_in_file;
};

struct result {
    unsigned char values[PARAMETERS][LARGEST * 4];
    double norms[STEPS];
    uint64_t steps[PARAMETERS];
    trireme_optimizer_counters counters;
};

struct job {
    const struct training *training;
    trireme_strategy strategy;
    int data, ranks;
    int parts;     /* such as ranks along tensor: models with equal names */
    uint64_t seed; /* 0: the cuts stay */
    bool other_strategy, other_mesh;
    struct result result[2];
    struct verdict verdicts[MOST_RANKS];
};

static uint64_t drawn(uint64_t *state) {
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 33;
}

/* Each rank has an element that is trained. */
static void draw_cuts(int ranks, uint64_t *state, uint64_t *cuts) {
    for (;;) {
        cuts[0] = 0;
        for (int k = 1; k < ranks; ++k) cuts[k] = 1 + drawn(state) % (LAYERS - 1);
        cuts[ranks] = LAYERS;
        bool good = true;
        for (int k = 0; k < ranks; ++k) {
            good = good && cuts[k] < cuts[k + 1] && !(cuts[k] == 3 && cuts[k + 1] == 4);
        }
        if (good) return;
    }
}

struct rank {
    struct job *job;
    struct verdict *verdict;
    trireme_communicator *all, *copies;
    int number, columns, stages; /* its layout: ranks of each model, and models */
    int data, place, part;
    uint64_t cuts[MOST_RANKS + 1];
    trireme_model *model;
    trireme_optimizer *optimizer;
    int numbers[PARAMETERS]; /* in the model; -1: another rank's */
};

static float initial(int p, uint64_t i) {
    return (float)((p * 31 + (int)i * 29) % 37) * 0.11f - 1.3f;
}

static void make_model(struct rank *r, trireme_strategy strategy, bool starts) {
    struct verdict *const v = r->verdict;
    const struct training *const t = r->job->training;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = strategy;
    options.gradients = TRIREME_GRADIENTS_SUM;
    options.leaves = LEAVES;
    units_of(&options)->minimum_bytes = 1;
    buckets_of(&options)->bytes = 64;
    options.unused = t->counts ? TRIREME_UNUSED_SKIP : TRIREME_UNUSED_ERROR;
    shards_of(&options)->share = TRIREME_SHARE_NEVER;
    if (strategy == TRIREME_STRATEGY_HYBRID_SHARD) {
        shards_of(&options)->ranks = r->columns % 2 == 0 ? 2 : (uint32_t)r->columns;
    }
    if (t->parameters_in_file) parameter_file_of(&options)->path = directory;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(r->copies, &options, &r->model));
    unsigned char values[PARAMETERS * LARGEST * 4];
    uint64_t bytes = 0, count = 0;
    int number = 0;
    for (int p = 0; p < PARAMETERS; ++p) {
        const int layer = kParameters[p].layer;
        r->numbers[p] = -1;
        if (layer < (int)r->cuts[r->place] || layer >= (int)r->cuts[r->place + 1]) continue;
        r->numbers[p] = number++;
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = kParameters[p].name;
        parameter.dtype = t->dtype;
        parameter.dimensions = kParameters[p].columns == 0 ? 1 : 2;
        const uint64_t shape[] = {kParameters[p].rows, kParameters[p].columns};
        parameter.shape = shape;
        parameter.flags = p == FROZEN ? TRIREME_PARAMETER_FLAG_FROZEN : 0;
        parameter.tied_to = p == AGAIN ? "a" : NULL;
        parameter.parameter_group = t->counts && p % 2 == 1 && p != AGAIN ? 1 : 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(r->model, &parameter, NULL));
        if (p == AGAIN) continue;
        for (uint64_t i = 0; i < elements_of(p); ++i) {
            const float value = starts ? initial(p, i) + (float)r->part * 0.5f : 77.0f;
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            const uint16_t narrow = (uint16_t)(bits >> 16);
            const size_t size = t->dtype == F32 ? 4 : 2;
            memcpy(values + bytes, t->dtype == F32 ? (void *)&bits : (void *)&narrow, size);
            bytes += size;
            ++count;
        }
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(r->model));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(r->model, values, count, t->dtype, 0));
}

static int32_t TRIREME_CALLCONV user_rule(const trireme_update *update, void *unused) {
    (void)unused;
    for (uint64_t i = 0; i < update->count; ++i) {
        float *const mean = (float *)update->states[0] + i;
        *mean = 0.5f * *mean + ((const float *)update->gradients)[i];
        ((float *)update->parameters)[i] -= 0.125f * *mean / (float)update->step;
    }
    return 0;
}

static void make_optimizer(struct rank *r) {
    const struct training *const t = r->job->training;
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = t->kind;
    options.flags = t->flags;
    options.learning_rate = 0.05;
    if (t->kind == TRIREME_RULE_USER) {
        user_rule_of(&options)->update = user_rule;
        user_rule_of(&options)->state_count = 1;
    } else {
        options.weight_decay = 0.1;
    }
    if (t->kind == TRIREME_RULE_SGD || t->kind == TRIREME_RULE_RMSPROP) set_momentum(&options, 0.9);
    if (t->kind == TRIREME_RULE_RMSPROP) {
        rmsprop_of(&options)->flags = TRIREME_RMSPROP_FLAG_CENTERED;
    }
    if (t->counts) {
        loss_scale_of(&options)->initial_scale = 1024;
        loss_scale_of(&options)->growth_interval = 2;
        groups_of(&options, 2);
        const double factors[] = {1, 0.5};
        set_group_rates(&options, factors);
    }
    if (t->clips) clipping_of(&options)->max_norm = 2;
    if (t->clips || t->counts) options.norm_ranks = r->all;
    if (t->state_in_file) state_file_of(&options)->path = directory;
    EXPECT_STATUS(r->verdict, TRIREME_OK,
                  trireme_optimizer_create(r->model, &options, &r->optimizer));
}

/* ---- steps ---- */

static float gradient_of(int p, uint64_t i, int leaf, int attempt) {
    return (float)((p * 41 + (int)i * 37 + leaf * 11 + attempt * 5) % 19) * 0.37f - 2.9f;
}

static void make_step(struct rank *r, int attempt) {
    struct verdict *const v = r->verdict;
    const struct training *const t = r->job->training;
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(r->model, &info));
    if (t->counts && attempt == 3) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_set_learning_rate(r->optimizer, 0.03));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_optimizer_set_group_rate_factor(r->optimizer, 1, 0.25));
    }
    double scale = 0;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale(r->optimizer, &scale));
    for (uint32_t batch = 0; batch < info.micro_batches; ++batch) {
        uint32_t leaf = 0;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_leaf(r->model, batch, &leaf));
        if (leaf == UINT32_MAX) continue;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_begin_backward(r->model, 0));
        for (int p = PARAMETERS; p-- > 0;) {
            float g[LARGEST] = {0}; /* all of the second name */
            const bool skipped = t->counts && (p + attempt) % 4 == 0 && p != A && p != AGAIN;
            if (r->numbers[p] < 0 || p == FROZEN || skipped) continue;
            for (uint64_t i = 0; p != AGAIN && i < elements_of(p); ++i) {
                g[i] = gradient_of(p, i, (int)leaf, attempt) * (float)scale;
            }
            if (p == A && leaf == 3 && t->counts && attempt == 2) g[0] = INFINITY;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_model_gradient_ready(r->model, (uint64_t)r->numbers[p], g,
                                                       elements_of(p), F32));
        }
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_end_backward(r->model));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(r->optimizer));
    double norm = -1;
    if (t->clips && !(t->counts && attempt == 2)) {
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_gradient_norm(r->optimizer, &norm));
    }
    if (r->place == 0 && r->data == 0) r->job->result[r->part].norms[attempt] = norm;
}

static void free_layout(struct rank *r) {
    trireme_optimizer_destroy(r->optimizer);
    trireme_model_destroy(r->model);
    trireme_communicator_destroy(r->copies);
}

static void keep_result(struct rank *r) {
    struct verdict *const v = r->verdict;
    struct result *const result = &r->job->result[r->part];
    const size_t size = r->job->training->dtype == F32 ? 4 : 2;
    unsigned char values[PARAMETERS * LARGEST * 4];
    uint64_t count = 0;
    for (int p = 0; p < PARAMETERS; ++p) {
        if (r->numbers[p] >= 0 && p != AGAIN) count += elements_of(p);
    }
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(r->model, values, count,
                                                  r->job->training->dtype));
    uint64_t steps[PARAMETERS];
    double factors[2];
    trireme_optimizer_counters counters = TRIREME_OPTIMIZER_COUNTERS_INIT;
    counters.parameter_steps = steps;
    counters.parameter_count = PARAMETERS;
    counters.group_rate_factors = factors;
    counters.group_count = 2;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_counters(r->optimizer, &counters));
    if (r->data != r->columns - 1) return;
    uint64_t at = 0;
    for (int p = 0; p < PARAMETERS; ++p) {
        if (r->numbers[p] < 0) continue;
        if (counters.parameter_count > 0) result->steps[p] = steps[r->numbers[p]];
        if (p == AGAIN) continue;
        memcpy(result->values[p], values + at, elements_of(p) * size);
        at += elements_of(p) * size;
    }
    if (r->place > 0) return;
    counters.parameter_steps = NULL;
    counters.group_rate_factors = NULL;
    counters.parameter_count = 0; /* differs with the cuts */
    result->counters = counters;
    EXPECT(v, counters.group_count == 0 || (factors[0] == 1 && factors[1] == 0.25));
}

/* Rank number = (part * stages + place) * columns + data. */
static void take_place(struct rank *r, int columns, int stages) {
    r->columns = columns;
    r->stages = stages;
    r->data = r->number % columns;
    r->place = r->number / columns % stages;
    r->part = r->number / columns / stages;
    EXPECT_STATUS(r->verdict, TRIREME_OK,
                  trireme_communicator_split(r->all, r->part * stages + r->place, r->data, NULL,
                                             &r->copies));
}

static void train(trireme_communicator *all, int number, void *context) {
    struct job *const job = context;
    struct rank r = {.job = job, .verdict = &job->verdicts[number], .all = all, .number = number};
    struct verdict *const v = r.verdict;
    take_place(&r, job->data, job->ranks);
    uint64_t first = 5 + (uint64_t)job->ranks, state = job->seed;
    draw_cuts(job->ranks, &first, r.cuts);
    trireme_strategy strategy = job->strategy;
    make_model(&r, strategy, true);
    make_optimizer(&r);
    const int begin = job->seed == 0 ? STEPS : (int)(drawn(&state) % (STEPS - 2));
    for (int attempt = 0; attempt < STEPS && v->text[0] == 0; ++attempt) {
        if (attempt >= begin && (attempt - begin) % 2 == 0) {
            struct rank next = r;
            if (job->other_mesh) {
                take_place(&next, r.stages, r.columns);
            } else {
                take_place(&next, r.columns, r.stages);
            }
            draw_cuts(next.stages, &state, next.cuts);
            if (job->other_strategy) strategy = 1 + strategy % TRIREME_STRATEGY_HYBRID_SHARD;
            make_model(&next, strategy, false);
            make_optimizer(&next);
            trireme_rebalance_options options = TRIREME_REBALANCE_OPTIONS_INIT;
            options.communicator = all;
            options.part = 3 + (uint32_t)r.part;
            options.buffer_bytes = drawn(&state) % 2 == 0 ? 0 : 64 + drawn(&state) % 100;
            EXPECT_STATUS(v, TRIREME_OK,
                          trireme_parallel_rebalance(r.optimizer, next.optimizer, &options, NULL));
            free_layout(&r);
            r = next;
        }
        if (v->text[0] == 0) make_step(&r, attempt);
    }
    if (v->text[0] == 0) keep_result(&r);
    free_layout(&r);
}

static void run_job(struct job *job) {
    const int world = job->data * job->ranks * job->parts;
    memset(job->verdicts, 0, sizeof job->verdicts);
    memset(job->result, 0, sizeof job->result);
    run_ranks(world, train, job);
    for (int i = 0; i < world; ++i) {
        if (job->verdicts[i].text[0] == 0) continue;
        print_error("%s, %s, %d x %d x %d, seed %d, rank %d\n", job->training->name,
                    trireme_strategy_name(job->strategy), job->data, job->ranks, job->parts,
                    (int)job->seed, i);
    }
    assert_verdicts(job->verdicts, world);
    assert_int_equal(files_in_directory(), 0);
}

/* A run whose cuts stay against some whose cuts change. */
static void compare(struct job stays, int seeds) {
    static struct job one, other;
    one = stays;
    run_job(&one);
    assert_int_equal(one.result[0].counters.steps, one.training->counts ? STEPS - 1 : STEPS);
    for (int seed = 1; seed <= seeds; ++seed) {
        other = one;
        other.seed = (uint64_t)(seed * 100 + one.data * 10 + one.ranks);
        other.other_strategy =
            !one.training->parameters_in_file && (seed + one.data + one.ranks) % 3 == 0;
        /* Each model may have other ranks, too. */
        other.other_mesh = !one.training->parameters_in_file && (seed + one.data) % 2 == 0;
        run_job(&other);
        const bool same = memcmp(one.result, other.result, sizeof one.result) == 0;
        if (!same) {
            print_error("%s, %s, %d x %d x %d, seed %d: other bits\n", one.training->name,
                        trireme_strategy_name(one.strategy), one.data, one.ranks, one.parts,
                        (int)other.seed);
        }
        assert_true(same);
    }
}

static const struct training kTrainings[] = {
    {.name = "sgd", .kind = TRIREME_RULE_SGD, .dtype = F32, .clips = true},
    {.name = "adamw bf16 masters",
     .kind = TRIREME_RULE_ADAMW,
     .flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS,
     .dtype = BF16,
     .clips = true},
    {.name = "adam counts", .kind = TRIREME_RULE_ADAM, .dtype = F32, .counts = true, .clips = true},
    {.name = "adafactor", .kind = TRIREME_RULE_ADAFACTOR, .dtype = F32},
    {.name = "muon bf16 masters",
     .kind = TRIREME_RULE_MUON,
     .flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS,
     .dtype = BF16},
    {.name = "adamw stochastic",
     .kind = TRIREME_RULE_ADAMW,
     .flags = TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING,
     .dtype = BF16},
    {.name = "lamb", .kind = TRIREME_RULE_LAMB, .dtype = F32, .clips = true},
    {.name = "lars", .kind = TRIREME_RULE_LARS, .dtype = F32},
    {.name = "rmsprop", .kind = TRIREME_RULE_RMSPROP, .dtype = F32},
    {.name = "adagrad", .kind = TRIREME_RULE_ADAGRAD, .dtype = F32},
    {.name = "lion bf16", .kind = TRIREME_RULE_LION, .dtype = BF16},
    {.name = "muon", .kind = TRIREME_RULE_MUON, .dtype = F32},
    {.name = "adafactor bf16 masters",
     .kind = TRIREME_RULE_ADAFACTOR,
     .flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS,
     .dtype = BF16},
    {.name = "user", .kind = TRIREME_RULE_USER, .dtype = F32},
    {.name = "adamw, state in a file",
     .kind = TRIREME_RULE_ADAMW,
     .dtype = F32,
     .state_in_file = true},
    {.name = "adamw, parameters in a file",
     .kind = TRIREME_RULE_ADAMW,
     .dtype = F32,
     .parameters_in_file = true},
};

static void each_state_moves(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    const int meshes[][2] = {{2, 2}, {1, 3}, {3, 2}, {1, 2}, {4, 2},
                             {2, 3}, {2, 1}, {1, 5}, {2, 4}};
    const bool all = getenv("TRIREME_TEST_LONG") != NULL;
    for (size_t k = 0; k < sizeof kTrainings / sizeof kTrainings[0]; ++k) {
        for (int m = 0; m < 9; ++m) {
            for (trireme_strategy s = 1; s <= TRIREME_STRATEGY_HYBRID_SHARD; ++s) {
                const struct training *const t = &kTrainings[k];
                /* Only shards lie in a file of parameters. */
                if (t->parameters_in_file && (s != TRIREME_STRATEGY_ZERO3 || meshes[m][0] == 1)) {
                    continue;
                }
                if (!all && !t->parameters_in_file &&
                    (k + (size_t)m + (size_t)s) % (is_quick() ? 9 : 3) != 0) {
                    continue;
                }
                compare((struct job){.training = t,
                                     .strategy = s,
                                     .data = meshes[m][0],
                                     .ranks = meshes[m][1],
                                     .parts = 1},
                        all ? 5 : 1);
            }
        }
    }
}

static void parts_with_equal_names_stay_apart(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    for (size_t k = 1; k < 4; ++k) { /* without a norm of all */
        struct training training = kTrainings[k == 2 ? 5 : k];
        training.clips = training.counts = false;
        for (int data = 1; data <= 2; ++data) {
            const struct job job = {.training = &training,
                                    .strategy = data == 1 ? TRIREME_STRATEGY_DATA_PARALLEL
                                                          : TRIREME_STRATEGY_ZERO3,
                                    .data = data,
                                    .ranks = 2,
                                    .parts = 2};
            compare(job, 2);
        }
    }
}

/* ---- large ranges ---- */

enum { LARGE = 600 * 1000 + 7, LARGE_RANKS = 3 };
static struct verdict large_verdicts[LARGE_RANKS];

static float large_value(int parameter, uint64_t i) {
    return (float)((i * 2654435761u + (uint64_t)parameter * 40503u) % 1000003u);
}

/* A model of one large parameter, for this rank alone. */
static void make_large(struct verdict *v, trireme_communicator *alone, int parameter, bool starts,
                       trireme_model **model, trireme_optimizer **optimizer) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(alone, &options, model));
    char name[8];
    snprintf(name, sizeof name, "p%d", parameter);
    const uint64_t shape = LARGE;
    trireme_parameter_options described = TRIREME_PARAMETER_OPTIONS_INIT;
    described.name = name;
    described.dtype = F32;
    described.dimensions = 1;
    described.shape = &shape;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(*model, &described, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(*model));
    float *const values = calloc(LARGE, sizeof *values);
    for (uint64_t i = 0; i < LARGE && starts; ++i) values[i] = large_value(parameter, i);
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_broadcast_parameters(*model, values, LARGE, F32, 0));
    free(values);
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(*model, &rule, optimizer));
}

/* Each rank gives its parameter to the next one, in both directions in turn. */
static void pass_on(trireme_communicator *all, int number, void *context) {
    (void)context;
    struct verdict *const v = &large_verdicts[number];
    trireme_communicator *alone = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_communicator_split(all, number, 0, NULL, &alone));
    trireme_model *models[2] = {NULL, NULL};
    trireme_optimizer *optimizers[2] = {NULL, NULL};
    int parameter = number;
    make_large(v, alone, parameter, true, &models[0], &optimizers[0]);
    for (int round = 0; round < 2 && v->text[0] == 0; ++round) {
        parameter = (parameter + (round == 0 ? 1 : LARGE_RANKS - 1)) % LARGE_RANKS;
        make_large(v, alone, parameter, false, &models[1], &optimizers[1]);
        trireme_rebalance_options options = TRIREME_REBALANCE_OPTIONS_INIT;
        options.communicator = all;
        options.buffer_bytes = round == 0 ? 16384 : 0;
        trireme_rebalance_report report = TRIREME_REBALANCE_REPORT_INIT;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_parallel_rebalance(optimizers[0], optimizers[1], &options, &report));
        EXPECT(v, report.sent_bytes == LARGE * sizeof(float) && report.kept_bytes == 0);
        trireme_optimizer_destroy(optimizers[0]);
        trireme_model_destroy(models[0]);
        models[0] = models[1];
        optimizers[0] = optimizers[1];
        float *const values = malloc(LARGE * sizeof *values);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(models[0], values, LARGE, F32));
        uint64_t right = 0;
        for (uint64_t i = 0; i < LARGE; ++i) right += values[i] == large_value(parameter, i);
        EXPECT(v, right == LARGE);
        free(values);
    }
    trireme_optimizer_destroy(optimizers[0]);
    trireme_model_destroy(models[0]);
    trireme_communicator_destroy(alone);
}

static void large_ranges_go_in_many_messages(void **state) {
    (void)state;
    if (!ranks_make_groups()) skip();
    memset(large_verdicts, 0, sizeof large_verdicts);
    run_ranks(LARGE_RANKS, pass_on, NULL);
    assert_verdicts(large_verdicts, LARGE_RANKS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_state_moves),
        cmocka_unit_test(parts_with_equal_names_stay_apart),
        cmocka_unit_test(large_ranges_go_in_many_messages),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
