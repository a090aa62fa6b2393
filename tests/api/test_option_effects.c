/*
 * Each field of the nested options changes the trained numbers, as a plain loop of the formulas in
 * optimizer.h computes them. The same field with its default does not.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <dirent.h>
#include <ranks.h>
#include <unistd.h>

#include "directory.inc"

enum { N = 4, STEPS = 3 };

static const double kFirst[N] = {0.5, -1.25, 2, 0.125};
static const double kGradients[STEPS][N] = {{0.5, -0.25, 1.5, -2},
                                            {-0.125, 0.75, 1, 0.5},
                                            {0.25, 1.25, -0.5, -1}};

/* ---- the plain loop ---- */

/* The inputs of a rule. */
struct numbers {
    trireme_rule_kind kind;
    double rate, decay, momentum, beta1, beta2, epsilon, trust, max_trust, beta2_decay, max_update,
        min_parameter, max_norm, max_value;
    bool nesterov, centered, match, matrix;
    int steps;
};

static struct numbers defaults_of(trireme_rule_kind kind) {
    struct numbers n = {.kind = kind, .rate = 0.001, .steps = 5};
    switch (kind) {
        case TRIREME_RULE_ADAM:
        case TRIREME_RULE_ADAMW: n.beta1 = 0.9, n.beta2 = 0.999, n.epsilon = 1e-8; break;
        case TRIREME_RULE_ADAGRAD: n.epsilon = 1e-10; break;
        case TRIREME_RULE_RMSPROP: n.beta2 = 0.99, n.epsilon = 1e-8; break;
        case TRIREME_RULE_LION: n.beta1 = 0.9, n.beta2 = 0.99; break;
        case TRIREME_RULE_LAMB: n.beta1 = 0.9, n.beta2 = 0.999, n.epsilon = 1e-6; break;
        case TRIREME_RULE_LARS: n.trust = 0.001; break;
        case TRIREME_RULE_ADAFACTOR:
            n.rate = 0.01, n.beta2_decay = -0.8, n.epsilon = ldexp(1, -52), n.max_update = 1;
            n.min_parameter = 0.001;
            break;
        case TRIREME_RULE_MUON:
            n.momentum = 0.95, n.beta1 = 0.9, n.beta2 = 0.999, n.epsilon = 1e-8;
            break;
        default: break;
    }
    return n;
}

static double norm(const double *values) {
    double sum = 0;
    for (int i = 0; i < N; ++i) sum += values[i] * values[i];
    return sqrt(sum);
}

static double at_most(double value, double limit) {
    return limit > 0 && value > limit ? limit : value;
}

static double sign(double value) {
    return (value > 0) - (value < 0);
}

/* One step of an element; rules that look at whole parameters come below. */
static double element(const struct numbers *n, int t, double p, double g, double *m, double *v) {
    const double scale1 = 1 - pow(n->beta1, t), scale2 = 1 - pow(n->beta2, t);
    switch (n->kind) {
        case TRIREME_RULE_SGD:
            g += n->decay * p;
            *v = t == 1 ? g : n->momentum * *v + g;
            if (n->momentum == 0) return p - n->rate * g;
            return p - n->rate * (n->nesterov ? g + n->momentum * *v : *v);
        case TRIREME_RULE_ADAM:
        case TRIREME_RULE_ADAMW:
        case TRIREME_RULE_MUON:
            if (n->kind == TRIREME_RULE_ADAM)
                g += n->decay * p;
            else
                p -= n->rate * n->decay * p;
            *m = n->beta1 * *m + (1 - n->beta1) * g;
            *v = n->beta2 * *v + (1 - n->beta2) * g * g;
            return p - n->rate / scale1 * *m / (sqrt(*v / scale2) + n->epsilon);
        case TRIREME_RULE_ADAGRAD:
            g += n->decay * p;
            *v += g * g;
            return p - n->rate * g / (sqrt(*v) + n->epsilon);
        case TRIREME_RULE_LION:
            p -= n->rate * n->decay * p;
            p -= n->rate * sign(n->beta1 * *m + (1 - n->beta1) * g);
            *m = n->beta2 * *m + (1 - n->beta2) * g;
            return p;
        default: abort();
    }
}

static void
rmsprop(const struct numbers *n, double *p, const double *g, double *v, double *m, double *b) {
    for (int i = 0; i < N; ++i) {
        const double with = g[i] + n->decay * p[i];
        v[i] = n->beta2 * v[i] + (1 - n->beta2) * with * with;
        m[i] += (1 - n->beta2) * (with - m[i]);
        const double d = sqrt(n->centered ? v[i] - m[i] * m[i] : v[i]) + n->epsilon;
        b[i] = n->momentum * b[i] + with / d;
        p[i] -= n->rate * b[i];
    }
}

static void lamb(const struct numbers *n, int t, double *p, const double *g, double *m, double *v) {
    double r[N];
    for (int i = 0; i < N; ++i) {
        m[i] = n->beta1 * m[i] + (1 - n->beta1) * g[i];
        v[i] = n->beta2 * v[i] + (1 - n->beta2) * g[i] * g[i];
        r[i] = m[i] / (1 - pow(n->beta1, t)) / (sqrt(v[i] / (1 - pow(n->beta2, t))) + n->epsilon) +
               n->decay * p[i];
    }
    const double trust = at_most(norm(p) / norm(r), n->max_trust);
    for (int i = 0; i < N; ++i) p[i] -= n->rate * trust * r[i];
}

static void lars(const struct numbers *n, double *p, const double *g, double *v) {
    const double whole = norm(g) + n->decay * norm(p) + n->epsilon;
    const double trust = at_most(n->trust * norm(p) / whole, n->max_trust);
    for (int i = 0; i < N; ++i) {
        v[i] = n->momentum * v[i] + n->rate * trust * (g[i] + n->decay * p[i]);
        p[i] -= v[i];
    }
}

static void adafactor(const struct numbers *n, int t, double *p, const double *g, double *v) {
    double u[N];
    for (int i = 0; i < N; ++i) {
        v[i] += pow(t, n->beta2_decay) * (g[i] * g[i] - v[i]);
        u[i] = g[i] / fmax(sqrt(v[i]), n->epsilon);
    }
    const double rms = sqrt(N), rate = fmin(n->rate, 1 / sqrt(t));
    const double length =
        fmax(n->min_parameter, norm(p) / rms) * rate / fmax(1, norm(u) / rms / n->max_update);
    for (int i = 0; i < N; ++i) p[i] -= n->rate * n->decay * p[i] + length * u[i];
}

/* A matrix of one column keeps its direction, and changes its length. */
static void muon(const struct numbers *n, double *p, const double *g, double *v) {
    double u[N];
    for (int i = 0; i < N; ++i) {
        v[i] = n->momentum * v[i] + (1 - n->momentum) * g[i];
        u[i] = n->nesterov ? n->momentum * v[i] + (1 - n->momentum) * g[i] : v[i];
    }
    double length = 1;
    for (int k = 0; k < n->steps; ++k) {
        const double a = length * length;
        length = 3.4445 * length + (-4.775 * a + 2.0315 * a * a) * length;
    }
    const double adjust = n->match ? 0.2 * sqrt(N) : sqrt(N);
    const double whole = fmax(norm(u), 1e-7);
    for (int i = 0; i < N; ++i) {
        p[i] -= n->rate * n->decay * p[i];
        p[i] -= n->rate * adjust * length * u[i] / whole;
    }
}

static void plain(const struct numbers *n, double *p) {
    double m[N] = {0}, v[N] = {0}, b[N] = {0};
    memcpy(p, kFirst, sizeof kFirst);
    for (int t = 1; t <= STEPS; ++t) {
        double g[N];
        memcpy(g, kGradients[t - 1], sizeof g);
        for (int i = 0; i < N && n->max_value > 0; ++i) {
            g[i] = fmax(-n->max_value, fmin(n->max_value, g[i]));
        }
        const double length = norm(g);
        for (int i = 0; i < N && n->max_norm > 0 && length > n->max_norm; ++i) {
            g[i] *= n->max_norm / length;
        }
        if (n->kind == TRIREME_RULE_RMSPROP)
            rmsprop(n, p, g, v, m, b);
        else if (n->kind == TRIREME_RULE_LAMB)
            lamb(n, t, p, g, m, v);
        else if (n->kind == TRIREME_RULE_LARS)
            lars(n, p, g, v);
        else if (n->kind == TRIREME_RULE_ADAFACTOR)
            adafactor(n, t, p, g, v);
        else if (n->kind == TRIREME_RULE_MUON && n->matrix)
            muon(n, p, g, v);
        else {
            for (int i = 0; i < N; ++i) p[i] = element(n, t, p[i], g[i], &m[i], &v[i]);
        }
    }
}

/* ---- the library ---- */

struct trial {
    struct verdict verdict;
    const trireme_optimizer_options *options;
    bool matrix;
    double values[N];
    double scale;
    trireme_offload_info file;
    bool in_directory;
};

static void train(trireme_communicator *communicator, int rank, void *context) {
    (void)rank;
    struct trial *const trial = context;
    struct verdict *const v = &trial->verdict;
    const uint64_t shape[] = {N, 1};
    trireme_model_options spread = TRIREME_MODEL_OPTIONS_INIT;
    spread.strategy = TRIREME_STRATEGY_ZERO2;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = "weights";
    parameter.dtype = TRIREME_DTYPE_F64;
    parameter.dimensions = trial->matrix ? 2 : 1;
    parameter.shape = shape;
    parameter.parameter_group = trial->options->group_count > 1 ? 1 : 0;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &spread, &model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_broadcast_parameters(model, kFirst, N, TRIREME_DTYPE_F64, 0));
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_create(model, trial->options, &optimizer));
    for (int t = 0; t < STEPS && v->text[0] == 0; ++t) {
        double scale = 1, gradients[N];
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale(optimizer, &scale));
        for (int i = 0; i < N; ++i) gradients[i] = kGradients[t][i] * scale;
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_accumulate_flat(model, gradients, N, TRIREME_DTYPE_F64, 0));
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_step(optimizer));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_loss_scale(optimizer, &trial->scale));
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_gather_parameters(model, trial->values, N, TRIREME_DTYPE_F64));
    if (trial->options->offload != NULL) {
        trial->file = (trireme_offload_info)TRIREME_OFFLOAD_INFO_INIT;
        EXPECT_STATUS(v, TRIREME_OK, trireme_optimizer_get_offload_info(optimizer, &trial->file));
        trial->in_directory = strcmp(trial->file.path, directory) == 0;
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static struct trial train_with(const trireme_optimizer_options *options, bool matrix) {
    struct trial trial = {.options = options, .matrix = matrix};
    run_ranks(1, train, &trial);
    assert_verdicts(&trial.verdict, 1);
    return trial;
}

static double furthest(const double *a, const double *b) {
    double most = 0;
    for (int i = 0; i < N; ++i) most = fmax(most, fabs(a[i] - b[i]));
    return most;
}

/* The library trains as the loop with `numbers`, and otherwise than with `before`. */
static void check(const char *what, const trireme_optimizer_options *options,
                  const struct numbers *numbers, const struct numbers *before) {
    double right[N], other[N];
    plain(numbers, right);
    plain(before, other);
    const struct trial trial = train_with(options, numbers->matrix);
    const double off = furthest(trial.values, right), moved = furthest(trial.values, other);
    if (off < 1e-13 && moved > 1e-8) return;
    print_error("%s: %g from the plain loop, %g from that of before\n", what, off, moved);
    fail();
}

/* ---- rules ---- */

/* The struct of a rule with one field set, over fields that are set already. */
#define FIELD(NAME, VALUE, NUMBER)                 \
    do {                                           \
        const struct numbers before = numbers;     \
        rule.NAME = (VALUE);                       \
        numbers.NUMBER = (VALUE);                  \
        check(#NAME, &options, &numbers, &before); \
    } while (0)
#define FLAG(VALUE, NUMBER)                         \
    do {                                            \
        const struct numbers before = numbers;      \
        rule.flags = (VALUE);                       \
        numbers.NUMBER = true;                      \
        check(#VALUE, &options, &numbers, &before); \
    } while (0)
#define BEGIN(TYPE, NAME)                                               \
    trireme_##TYPE##_options rule = TRIREME_##NAME##_OPTIONS_INIT;      \
    struct numbers numbers = defaults_of(TRIREME_RULE_##NAME);          \
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT; \
    options.rule = &rule.base;                                          \
    options.learning_rate = numbers.rate = 0.25;                        \
    options.weight_decay = numbers.decay = 0.125

static void numbers_of_rules_reach_the_loop(void **state) {
    (void)state;
    {
        BEGIN(sgd, SGD);
        FIELD(momentum, 0.75, momentum);
        FLAG(TRIREME_SGD_FLAG_NESTEROV, nesterov);
    }
    {
        BEGIN(adam, ADAM);
        FIELD(beta1, 0.5, beta1);
        FIELD(beta2, 0.75, beta2);
        FIELD(epsilon, 0.5, epsilon);
    }
    {
        BEGIN(adam, ADAMW);
        FIELD(beta1, 0.5, beta1);
        FIELD(beta2, 0.75, beta2);
        FIELD(epsilon, 0.5, epsilon);
    }
    {
        BEGIN(adagrad, ADAGRAD);
        FIELD(epsilon, 0.5, epsilon);
    }
    {
        BEGIN(rmsprop, RMSPROP);
        FIELD(alpha, 0.75, beta2);
        FIELD(epsilon, 0.5, epsilon);
        FIELD(momentum, 0.5, momentum);
        FLAG(TRIREME_RMSPROP_FLAG_CENTERED, centered);
    }
    {
        BEGIN(lion, LION);
        FIELD(beta2, 0.25, beta2);
        FIELD(beta1, 0.125, beta1);
    }
    {
        BEGIN(lamb, LAMB);
        FIELD(beta1, 0.5, beta1);
        FIELD(beta2, 0.75, beta2);
        FIELD(epsilon, 0.5, epsilon);
        FIELD(max_trust, 0.25, max_trust);
    }
    {
        BEGIN(lars, LARS);
        FIELD(momentum, 0.5, momentum);
        FIELD(epsilon, 0.5, epsilon);
        FIELD(trust_coefficient, 0.5, trust);
        FIELD(max_trust, 0.125, max_trust);
    }
    {
        BEGIN(adafactor, ADAFACTOR);
        FIELD(beta2_decay, -0.25, beta2_decay);
        FIELD(epsilon, 1.25, epsilon);
        FIELD(max_update_rms, 0.25, max_update);
        FIELD(min_parameter_rms, 4, min_parameter);
    }
    {
        BEGIN(muon, MUON); /* AdamW of a vector */
        FIELD(beta1, 0.5, beta1);
        FIELD(beta2, 0.75, beta2);
        FIELD(epsilon, 0.5, epsilon);
    }
    {
        BEGIN(muon, MUON);
        numbers.matrix = true;
        FIELD(momentum, 0.5, momentum);
        FLAG(TRIREME_MUON_FLAG_NESTEROV, nesterov);
        FIELD(orthogonal_steps, 1, steps);
        FIELD(rate_adjustment, TRIREME_MUON_RATE_MATCH_ADAMW, match);
    }
}

/* Halves all elements, and counts in its state. */
static int32_t TRIREME_CALLCONV halve(const trireme_update *update, void *user_data) {
    double *const p = update->parameters, *const calls = update->states[1];
    if (update->states[2] != NULL) return 1;
    for (uint64_t i = 0; i < update->count; ++i) {
        p[i] *= 0.5;
        calls[i] += 1;
        if (calls[i] != (double)update->step) return 2;
    }
    *(int *)user_data += 1;
    return 0;
}

static void a_rule_of_the_caller_has_its_states_and_data(void **state) {
    (void)state;
    trireme_user_rule_options rule = TRIREME_USER_RULE_OPTIONS_INIT;
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    int calls = 0;
    rule.update = halve;
    rule.state_count = 2;
    rule.user_data = &calls;
    options.rule = &rule.base;
    const struct trial trial = train_with(&options, false);
    for (int i = 0; i < N; ++i) assert_true(trial.values[i] == kFirst[i] / 8);
    assert_int_equal(calls, STEPS);
}

/* ---- the rest of an optimizer ---- */

static void clipping_and_groups_reach_the_loop(void **state) {
    (void)state;
    const double zero = 0, half = 0.5;
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    trireme_parameter_group groups[2] = {TRIREME_PARAMETER_GROUP_INIT,
                                         TRIREME_PARAMETER_GROUP_INIT};
    BEGIN(sgd, SGD);
    FIELD(momentum, 0.5, momentum);
    struct numbers before = numbers;

    clipping.max_norm = numbers.max_norm = 0.75;
    options.clipping = &clipping;
    check("max_norm", &options, &numbers, &before);
    before = numbers;
    clipping.max_value = numbers.max_value = 0.5;
    check("max_value", &options, &numbers, &before);

    /* The parameter is in the second group. */
    options.groups = groups;
    options.group_count = 2;
    groups[0].rate_factor = &zero;
    before.rate = 0;
    check("a group in which nothing is special", &options, &numbers, &before);
    before = numbers;
    groups[1].rate_factor = &half;
    numbers.rate *= half;
    check("rate_factor", &options, &numbers, &before);
    before = numbers;
    groups[1].weight_decay = &half;
    numbers.decay = half;
    check("weight_decay", &options, &numbers, &before);
    before = numbers;
    groups[1].weight_decay = &zero;
    numbers.decay = 0;
    check("weight_decay of 0", &options, &numbers, &before);
    before = numbers;
    clipping.max_norm = 0;
    groups[1].max_norm = numbers.max_norm = 0.25;
    check("max_norm of a group", &options, &numbers, &before);

    trireme_muon_options matrices = TRIREME_MUON_OPTIONS_INIT;
    options.clipping = NULL;
    options.rule = &matrices.base;
    options.group_count = 1;
    groups[0] = (trireme_parameter_group)TRIREME_PARAMETER_GROUP_INIT;
    numbers = defaults_of(TRIREME_RULE_MUON);
    numbers.rate = options.learning_rate, numbers.decay = options.weight_decay;
    before = numbers;
    before.matrix = true;
    groups[0].flags = TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE;
    double right[N], other[N];
    plain(&numbers, right);
    plain(&before, other);
    const struct trial trial = train_with(&options, true);
    assert_true(furthest(trial.values, right) < 1e-13 && furthest(trial.values, other) > 1e-8);
}

/* A scale of powers of two leaves the bits of training as they are. */
static void the_loss_scale_moves_as_its_fields_say(void **state) {
    (void)state;
    trireme_loss_scale_options scale = TRIREME_LOSS_SCALE_OPTIONS_INIT;
    BEGIN(adam, ADAM);
    struct numbers before = numbers;
    before.beta1 = 0.5;
    options.loss_scale = &scale;
    check("loss scale", &options, &numbers, &before);
    assert_true(train_with(&options, false).scale == 65536);
    scale.initial_scale = 8;
    assert_true(train_with(&options, false).scale == 8);
    scale.growth_interval = 1;
    assert_true(train_with(&options, false).scale == 64);
    scale.growth_factor = 4;
    assert_true(train_with(&options, false).scale == 512);
    scale.growth_interval = 2;
    assert_true(train_with(&options, false).scale == 32);
}

struct overflows {
    struct verdict verdict;
    const trireme_loss_scale_options *scale;
    double scales[4];
    int32_t at_floor;
};

static void overflow(trireme_communicator *communicator, int rank, void *context) {
    (void)rank;
    struct overflows *const o = context;
    const uint64_t elements = 1;
    trireme_model_options spread = TRIREME_MODEL_OPTIONS_INIT;
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    spread.strategy = TRIREME_STRATEGY_ZERO1;
    parameter.name = "weight";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &elements;
    options.kind = TRIREME_RULE_SGD;
    options.loss_scale = o->scale;
    trireme_model *model = NULL;
    trireme_optimizer *optimizer = NULL;
    EXPECT_STATUS(&o->verdict, TRIREME_OK, trireme_model_create(communicator, &spread, &model));
    EXPECT_STATUS(&o->verdict, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    EXPECT_STATUS(&o->verdict, TRIREME_OK, trireme_model_seal(model));
    EXPECT_STATUS(&o->verdict, TRIREME_OK, trireme_optimizer_create(model, &options, &optimizer));
    for (int step = 0; step < 4; ++step) {
        const float gradient = INFINITY;
        trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
        EXPECT_STATUS(&o->verdict, TRIREME_OK,
                      trireme_model_accumulate_flat(model, &gradient, 1, TRIREME_DTYPE_F32, 0));
        const trireme_status status = trireme_optimizer_step(optimizer);
        EXPECT_STATUS(&o->verdict, TRIREME_OK,
                      trireme_optimizer_get_loss_scale_info(optimizer, &info));
        EXPECT(&o->verdict, status == (info.at_floor ? TRIREME_ERROR_INVALID_STATE : TRIREME_OK));
        o->scales[step] = info.scale;
        o->at_floor = info.at_floor;
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static void expect_scales(const trireme_loss_scale_options *scale, double a, double b, double c,
                          double d, int32_t at_floor) {
    struct overflows o = {.scale = scale};
    run_ranks(1, overflow, &o);
    assert_verdicts(&o.verdict, 1);
    assert_true(o.scales[0] == a && o.scales[1] == b && o.scales[2] == c && o.scales[3] == d);
    assert_int_equal(o.at_floor, at_floor);
}

static void the_loss_scale_falls_as_its_fields_say(void **state) {
    (void)state;
    trireme_loss_scale_options scale = TRIREME_LOSS_SCALE_OPTIONS_INIT;
    scale.initial_scale = 256;
    expect_scales(&scale, 128, 64, 32, 16, 0);
    scale.backoff_factor = 0.25;
    expect_scales(&scale, 64, 16, 4, 1, 0);
    scale.hysteresis = 3;
    expect_scales(&scale, 256, 256, 64, 16, 0);
    scale.minimum_scale = 64;
    expect_scales(&scale, 256, 256, 64, 64, 1);
}

static void a_file_of_state_is_as_its_fields_say(void **state) {
    (void)state;
    trireme_offload_options offload = TRIREME_OFFLOAD_OPTIONS_INIT;
    BEGIN(adam, ADAM);
    struct numbers before = numbers;
    before.beta1 = 0.5;
    offload.path = directory;
    options.offload = &offload;
    check("offload", &options, &numbers, &before);
    const struct trial usual = train_with(&options, false);
    assert_true(usual.in_directory);
    assert_true(usual.file.file_bytes > 0 && usual.file.written_bytes > 0);
    assert_int_equal(usual.file.resident_bytes, 0);
    offload.buffer_bytes = 32768;
    const struct trial small = train_with(&options, false);
    assert_true(small.file.buffer_bytes <= 32768);
    assert_true(small.file.block_bytes <= usual.file.block_bytes);
    assert_int_equal(files_in_directory(), 0);
}

/* ---- models ---- */

struct spread {
    struct verdict verdict;
    const trireme_model_options *options;
    trireme_model_info info;
    trireme_model_memory memory;
    trireme_model_statistics statistics;
};

/* Eight units of 1,024 bytes, and one of 8. */
static void spread_model(trireme_communicator *communicator, int rank, void *context) {
    struct spread *const spread = (struct spread *)context + rank;
    struct verdict *const v = &spread->verdict;
    const uint64_t large = 128, small = 1;
    trireme_model *model = NULL;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, spread->options, &model));
    for (int unit = 0; unit < 9; ++unit) {
        char name[16];
        snprintf(name, sizeof name, "unit%d", unit);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = TRIREME_DTYPE_F64;
        parameter.dimensions = 1;
        parameter.shape = unit < 8 ? &large : &small;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, NULL));
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
    spread->info = (trireme_model_info)TRIREME_MODEL_INFO_INIT;
    spread->memory = (trireme_model_memory)TRIREME_MODEL_MEMORY_INIT;
    spread->statistics = (trireme_model_statistics)TRIREME_MODEL_STATISTICS_INIT;
    static const double gradients[8 * 128 + 1];
    EXPECT_STATUS(v, TRIREME_OK,
                  trireme_model_accumulate_flat(model, gradients, 8 * 128 + 1, TRIREME_DTYPE_F64,
                                                0));
    for (int pass = 0; pass < 2; ++pass) {
        for (uint64_t unit = 0; unit < 9; ++unit) {
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_gather_unit(model, unit));
            EXPECT_STATUS(v, TRIREME_OK, trireme_model_release_unit(model, unit));
        }
    }
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_info(model, &spread->info));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &spread->memory));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_statistics(model, &spread->statistics));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_discard_gradients(model));
    trireme_model_destroy(model);
}

static struct spread spread_over(int ranks, const trireme_model_options *options) {
    struct spread spreads[4];
    struct verdict verdicts[4];
    memset(spreads, 0, sizeof spreads);
    for (int rank = 0; rank < ranks; ++rank) spreads[rank].options = options;
    run_ranks(ranks, spread_model, spreads);
    for (int rank = 0; rank < ranks; ++rank) verdicts[rank] = spreads[rank].verdict;
    assert_verdicts(verdicts, ranks);
    return spreads[0];
}

static int32_t TRIREME_CALLCONV count_buckets(const trireme_bucket *bucket, void *user_data) {
    if (bucket->moment == TRIREME_HOOK_BEFORE) *(int *)user_data += 1;
    return 0;
}

static void buckets_units_and_shards_are_as_their_fields_say(void **state) {
    (void)state;
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    trireme_bucket_options buckets = TRIREME_BUCKET_OPTIONS_INIT;
    trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
    trireme_shard_options shards = TRIREME_SHARD_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO3;
    options.shards = &shards;
    shards.share = TRIREME_SHARE_NEVER;
    struct spread got = spread_over(4, &options);
    assert_int_equal(got.info.shared_bytes, 0);
    assert_int_equal(got.info.unit_groups, 1);
    assert_int_equal(got.info.buckets, 1);

    options.units = &units;
    units.minimum_bytes = 2048;
    got = spread_over(4, &options);
    assert_int_equal(got.info.unit_groups, 5);
    units.minimum_bytes = 1;
    got = spread_over(4, &options);
    assert_int_equal(got.info.unit_groups, 9);
    const uint64_t parameters = got.memory.planned_parameters;
    const uint64_t working = got.memory.planned_working;
    assert_int_equal(got.statistics.gathers, 18);
    units.persistent_bytes = 16;
    got = spread_over(4, &options);
    assert_int_equal(got.statistics.gathers, 16);
    assert_true(got.memory.planned_parameters >= parameters);
    units.prefetch_bytes = 4096;
    got = spread_over(4, &options);
    assert_true(got.memory.planned_working >= working + 3 * 1024);
    units.prefetch_bytes = 0;
    assert_int_equal(got.statistics.reshard_gathers, 0);
    units.reshard_ranks = 2;
    got = spread_over(4, &options);
    assert_true(got.statistics.reshard_gathers > 0);
    units.reshard_ranks = 0;

    options.buckets = &buckets;
    buckets.bytes = 2048;
    got = spread_over(4, &options);
    const uint64_t usual = got.info.buckets;
    assert_true(usual > 1 && usual < 8);
    buckets.first_bytes = 1;
    got = spread_over(4, &options);
    assert_int_equal(got.info.buckets, usual + 1);
    int called = 0;
    buckets.hook = count_buckets;
    buckets.user_data = &called;
    got = spread_over(1, &options);
    assert_int_equal(called, got.info.buckets);
    buckets.hook = NULL;

    units.persistent_bytes = 0;
    options.strategy = TRIREME_STRATEGY_HYBRID_SHARD;
    shards.ranks = 2;
    got = spread_over(4, &options);
    assert_int_equal(got.memory.planned_parameters,
                     2 * (parameters - 8) + 8); /* rank 0 has the odd one */
    if (!ranks_use_transport()) {
        shards.share = TRIREME_SHARE_ALWAYS;
        got = spread_over(4, &options);
        assert_true(got.info.shared_bytes > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_of_rules_reach_the_loop),
                                       cmocka_unit_test(
                                           a_rule_of_the_caller_has_its_states_and_data),
                                       cmocka_unit_test(clipping_and_groups_reach_the_loop),
                                       cmocka_unit_test(the_loss_scale_moves_as_its_fields_say),
                                       cmocka_unit_test(the_loss_scale_falls_as_its_fields_say),
                                       cmocka_unit_test(a_file_of_state_is_as_its_fields_say),
                                       cmocka_unit_test(
                                           buckets_units_and_shards_are_as_their_fields_say)};
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
