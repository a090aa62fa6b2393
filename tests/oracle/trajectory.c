/*
 * Trains a small problem with the public ABI and prints the parameters of rank 0 after each step as
 * hexadecimal floats, one step a line. test_pytorch.py computes the same with PyTorch.
 *
 * usage: trajectory KIND MOMENTUM FLAGS WEIGHT_DECAY DTYPE WORLD_SIZE STRATEGY STEPS
 *
 * MUON has two matrices and a vector, all others two vectors. Element i has the gradient c_i (p_i -
 * a_i) + (p_i - p_(i+1)) / 4 + w(t, i); rank r adds d_r, whose mean over the ranks is 0.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trireme/trireme.h>

#include "options.h"
#include "ranks.h"

#define ELEMENTS 37

struct setup {
    trireme_optimizer_options optimizer;
    trireme_strategy strategy;
    trireme_dtype dtype;
    int world_size;
    int steps;
    double *trajectory; /* of rank 0: steps x ELEMENTS */
};

/* A rank that cannot go on ends the program: its peers would only wait for it. */
static void check(trireme_status status) {
    if (status == TRIREME_OK) return;
    fprintf(stderr, "trajectory: %s\n", trireme_last_error());
    exit(1);
}

static double initial(int i) {
    return 1 + (i % 7) * 0.375 - (i % 3) * 1.25;
}

/* Everything in f32 for f32, as PyTorch does; the terms without p are exact in both types. */
static void gradient_f32(const float *p, float *g, int t, double shift) {
    for (int i = 0; i < ELEMENTS; ++i) {
        const float c = (float)(1 << i % 3) / 4;
        const float a = (float)(i % 5) / 2 - 1;
        const float w = (float)((7 * t + 3 * i) % 16) / 32 - 0.25f;
        g[i] =
            c * (p[i] - a) + (p[i] - p[(i + 1) % ELEMENTS]) / 4 + w + (float)(shift * (i % 3 - 1));
    }
}

static void gradient_f64(const double *p, double *g, int t, double shift) {
    for (int i = 0; i < ELEMENTS; ++i) {
        const double c = (double)(1 << i % 3) / 4;
        const double a = (double)(i % 5) / 2 - 1;
        const double w = (double)((7 * t + 3 * i) % 16) / 32 - 0.25;
        g[i] = c * (p[i] - a) + (p[i] - p[(i + 1) % ELEMENTS]) / 4 + w + shift * (i % 3 - 1);
    }
}

static void train(trireme_communicator *communicator, int rank, void *context) {
    const struct setup *const setup = context;
    trireme_model_options model_options = TRIREME_MODEL_OPTIONS_INIT;
    model_options.strategy = setup->strategy;
    trireme_model *model = NULL;
    check(trireme_model_create(communicator, &model_options, &model));
    static const uint64_t kVectors[][2] = {{10, 0}, {27, 0}},
                          kMatrices[][2] = {{2, 5}, {5, 3}, {12, 0}};
    const bool matrices = setup->optimizer.kind == TRIREME_RULE_MUON;
    const char *const names[] = {"first", "second", "third"};
    for (int i = 0; i < (matrices ? 3 : 2); ++i) {
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.dtype = setup->dtype;
        parameter.shape = matrices ? kMatrices[i] : kVectors[i];
        static const uint64_t kFactored[] = {3, 9};
        if (i == 1 && setup->optimizer.kind == TRIREME_RULE_ADAFACTOR) {
            parameter.shape = kFactored;
        }
        parameter.dimensions = parameter.shape[1] > 0 ? 2 : 1;
        parameter.name = names[i];
        check(trireme_model_add_parameter(model, &parameter, NULL));
    }
    check(trireme_model_seal(model));

    float p32[ELEMENTS], g32[ELEMENTS];
    double p64[ELEMENTS], g64[ELEMENTS];
    for (int i = 0; i < ELEMENTS; ++i) {
        p64[i] = initial(i);
        p32[i] = (float)initial(i);
    }
    const int wide = setup->dtype == TRIREME_DTYPE_F64;
    void *const p = wide ? (void *)p64 : (void *)p32;
    const void *const g = wide ? (const void *)g64 : (const void *)g32;
    check(trireme_model_broadcast_parameters(model, p, ELEMENTS, setup->dtype, 0));
    trireme_optimizer *optimizer = NULL;
    check(trireme_optimizer_create(model, &setup->optimizer, &optimizer));
    const double shift = (rank - (setup->world_size - 1) / 2.0) / 4;
    for (int t = 0; t < setup->steps; ++t) {
        if (wide) {
            gradient_f64(p64, g64, t, shift);
        } else {
            gradient_f32(p32, g32, t, shift);
        }
        check(trireme_model_accumulate_flat(model, g, ELEMENTS, setup->dtype, 0));
        check(trireme_optimizer_step(optimizer));
        check(trireme_model_gather_parameters(model, p, ELEMENTS, setup->dtype));
        for (int i = 0; rank == 0 && i < ELEMENTS; ++i) {
            setup->trajectory[t * ELEMENTS + i] = wide ? p64[i] : (double)p32[i];
        }
    }
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
}

static trireme_rule_kind kind_of(const char *name) {
    for (trireme_rule_kind kind = TRIREME_RULE_SGD; kind <= TRIREME_RULE_MUON; ++kind) {
        if (strcmp(name, trireme_rule_name(kind)) == 0) return kind;
    }
    fprintf(stderr, "trajectory: no rule is named %s\n", name);
    exit(2);
}

/* Of the rule. */
static void set_flags(trireme_optimizer_options *options, uint32_t flags) {
    if (options->kind == TRIREME_RULE_SGD) sgd_of(options)->flags = flags;
    if (options->kind == TRIREME_RULE_RMSPROP) rmsprop_of(options)->flags = flags;
    if (options->kind == TRIREME_RULE_MUON) muon_of(options)->flags = flags;
}

int main(int argc, char **argv) {
    if (argc != 9) {
        fputs(
            "usage: trajectory KIND MOMENTUM RULE_FLAGS WEIGHT_DECAY DTYPE WORLD_SIZE STRATEGY STEPS\n",
            stderr);
        return 2;
    }
    const trireme_optimizer_options defaults = TRIREME_OPTIMIZER_OPTIONS_INIT;
    struct setup setup = {.optimizer = defaults};
    setup.optimizer.kind = kind_of(argv[1]);
    setup.optimizer.learning_rate = 0.01;
    const double momentum = strtod(argv[2], NULL);
    if (momentum != 0) set_momentum(&setup.optimizer, momentum);
    set_flags(&setup.optimizer, (uint32_t)atoi(argv[3]));
    setup.optimizer.weight_decay = strtod(argv[4], NULL);
    setup.dtype = strcmp(argv[5], "f64") == 0 ? TRIREME_DTYPE_F64 : TRIREME_DTYPE_F32;
    setup.world_size = atoi(argv[6]);
    check(trireme_strategy_parse(argv[7], &setup.strategy));
    setup.steps = atoi(argv[8]);
    setup.trajectory = calloc((size_t)setup.steps * ELEMENTS, sizeof *setup.trajectory);
    if (setup.trajectory == NULL) return 1;
    run_ranks(setup.world_size, train, &setup);
    for (int t = 0; t < setup.steps; ++t) {
        for (int i = 0; i < ELEMENTS; ++i) {
            printf(i + 1 < ELEMENTS ? "%a " : "%a\n", setup.trajectory[t * ELEMENTS + i]);
        }
    }
    free(setup.trajectory);
    return 0;
}
