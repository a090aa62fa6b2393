/*
 * The common parts of the rows of the engine's table: models of equal layers, steps, and how
 * figures leave the process. table.py starts the program and compares.
 */
#ifndef TRIREME_TESTS_BENCH_ENGINE_H
#define TRIREME_TESTS_BENCH_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <trireme/trireme.h>

#define F32 TRIREME_DTYPE_F32
#define MUST(call)                                                    \
    do {                                                              \
        if ((call) != TRIREME_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, trireme_last_error()); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

enum {
    MOST_ROUNDS = 101,
    /* The model of a step: 25.2 M parameters; the default buckets hold 1, 19, 19, 19, 14 layers. */
    LAYERS = 72,
    LAYER_ELEMENTS = 350000
};

extern trireme_communicator *communicator;
extern int rank, rounds;

/* For the rows offload, parameters and activations: the folder of files, and the number of
 * elements. */
extern const char *folder;
extern uint64_t elements;

/* One way to train, under its name in table.py. */
struct way {
    const char *name;
    trireme_strategy strategy;
    int32_t share;
    uint32_t optimizer_flags, model_flags;
    uint64_t minimum_unit_bytes, bucket_bytes;
    bool views; /* gradients lie in the exchange's memory, if the model has such a place */
    double max_norm;
    const char *offload_path, *parameter_path;
    bool adamw; /* else a rule without effect, so that the step is only the exchange */
    trireme_model *model;
    trireme_optimizer *optimizer;
    double times[MOST_ROUNDS];
};

double now_us(void);
double processor_us(void); /* of all threads of this process */

/* `units` units of sizes[i % sizes_count] elements. */
void make(struct way *way, int units, const uint64_t *sizes, int sizes_count);
void make_layers(struct way *way);
void unmake(struct way *way);

/* Hands in layer `layer`: its view, or a copy of `gradient`. */
void hand_in(struct way *way, int layer, const float *gradient);

/* A gradient for each layer to copy: small numbers, none of them 0. */
float *make_gradient(void);

/* Writes `gradient` to all views once, so that sums are of ordinary numbers. */
void fill_views(struct way *way, const float *gradient);

/*
 * The time of the optimizer's step alone. The backward pass before it leaves each view as it is, or
 * fills it with small numbers.
 */
double timed_update(struct way *way, uint64_t units, bool fill);

trireme_model_statistics statistics_of(const struct way *way);
void meet(void);

/* The largest of all ranks' numbers, on all ranks. */
double largest(double value);

/* Prints "NAME VALUE..." on rank 0: for each round the slowest rank's time. Collective. */
void print_rounds(const char *name, double *values);
void print_number(const char *name, double value);

/* The rows. */
void row_step(void);
void row_sweep(void);
void row_backward(void);
void row_overlap(void);
void row_layers(void);
void row_gather(void);
void row_hooks(void);
void row_update(void);
void row_offload(void);
void row_parameters(void);
void row_activations(void);
void row_trainer(void);

#endif
