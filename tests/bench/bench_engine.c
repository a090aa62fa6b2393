/*
 * What a step of training costs beside compute, each way in turn in the same run:
 *
 *   trireme run --no-prefix --nproc-per-node 2 -- build/release/tests/bench/bench_engine
 *
 * Medians over rounds; a round runs every variant once, so the machine's moods hit all of them.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <trireme/trireme.h>

#define F32 TRIREME_DTYPE_F32
enum { ROUNDS = 9, MOST_VARIANTS = 4 };

static trireme_communicator *communicator;
static int rank;

#define MUST(call)                                                    \
    do {                                                              \
        if ((call) != TRIREME_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, trireme_last_error()); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

struct variant {
    const char *name;
    trireme_strategy strategy;
    int32_t share;
    uint32_t optimizer_flags;
    uint64_t minimum_unit_bytes;
    trireme_model *model;
    trireme_optimizer *optimizer;
    double times[ROUNDS];
};

/* `units` units of sizes[i % sizes_count] elements. */
static void make(struct variant *v, int units, const uint64_t *sizes, int sizes_count) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = v->strategy;
    options.share_parameters = v->share;
    options.minimum_unit_bytes = v->minimum_unit_bytes;
    MUST(trireme_model_create(communicator, &options, &v->model));
    for (int i = 0; i < units; ++i) {
        char name[32];
        snprintf(name, sizeof name, "layer%d", i);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &sizes[i % sizes_count];
        MUST(trireme_model_add_parameter(v->model, &parameter, NULL));
    }
    MUST(trireme_model_seal(v->model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_OPTIMIZER_ADAMW;
    rule.flags = v->optimizer_flags;
    MUST(trireme_optimizer_create(v->model, &rule, &v->optimizer));
}

static void unmake(struct variant *v) {
    MUST(trireme_barrier(communicator, NULL));
    trireme_optimizer_destroy(v->optimizer);
    trireme_model_destroy(v->model);
}

static void report(const char *title, struct variant *variants, int count) {
    if (rank != 0) return;
    printf("%s\n", title);
    double first = 0;
    for (int i = 0; i < count; ++i) {
        const double time = median(variants[i].times, ROUNDS);
        if (i == 0) first = time;
        trireme_model_info info = TRIREME_MODEL_INFO_INIT;
        MUST(trireme_model_get_info(variants[i].model, &info));
        printf("  %-34s %10.1f us  %6.2fx  %llu groups, %llu MiB shared\n", variants[i].name, time,
               first / time, (unsigned long long)info.groups,
               (unsigned long long)(info.shared_bytes >> 20));
    }
    fflush(stdout);
}

/* The exchange and the update of a step: gradients are there, and handed in at once. */
static void bench_step(void) {
    enum { UNITS = 72, ELEMENTS = 25200000 / UNITS };
    const uint64_t size = ELEMENTS;
    struct variant variants[] = {
        {.name = "zero1, separate passes",
         .strategy = TRIREME_STRATEGY_ZERO1,
         .share = TRIREME_SHARE_NEVER},
        {.name = "zero1, one copy",
         .strategy = TRIREME_STRATEGY_ZERO1,
         .share = TRIREME_SHARE_ALWAYS},
        {.name = "zero1, one sweep",
         .strategy = TRIREME_STRATEGY_ZERO1,
         .share = TRIREME_SHARE_NEVER,
         .optimizer_flags = TRIREME_OPTIMIZER_ONE_SWEEP},
        {.name = "zero1, one copy and one sweep",
         .strategy = TRIREME_STRATEGY_ZERO1,
         .share = TRIREME_SHARE_ALWAYS,
         .optimizer_flags = TRIREME_OPTIMIZER_ONE_SWEEP},
    };
    float *const gradient = malloc(size * sizeof *gradient);
    if (gradient == NULL) exit(1);
    for (uint64_t i = 0; i < size; ++i) gradient[i] = (float)(i % 1000) * 1e-3f;
    for (int i = 0; i < 4; ++i) make(&variants[i], UNITS, &size, 1);
    for (int round = -1; round < ROUNDS; ++round) {
        for (int i = 0; i < 4; ++i) {
            /* Handing in copies the gradients; that is not what is measured, but exchanges begin. */
            MUST(trireme_model_begin_backward(variants[i].model, 0));
            double handing = 0;
            for (uint64_t p = UNITS; p-- > 0;) {
                const double begin = now_us();
                MUST(trireme_model_gradient_ready(variants[i].model, p, gradient, size, F32));
                handing += now_us() - begin;
            }
            MUST(trireme_model_end_backward(variants[i].model));
            const double begin = now_us();
            MUST(trireme_optimizer_step(variants[i].optimizer));
            if (round >= 0) variants[i].times[round] = now_us() - begin + handing;
            MUST(trireme_barrier(communicator, NULL));
        }
    }
    report("a step of 25.2 M parameters in 72 tensors: copy in, reduce, AdamW, give out", variants,
           4);
    for (int i = 0; i < 4; ++i) unmake(&variants[i]);
    free(gradient);
}

static void bench_gather(void) {
    const uint64_t size = (64 << 20) / sizeof(float);
    struct variant variants[] = {
        {.name = "zero3, copied", .strategy = TRIREME_STRATEGY_ZERO3, .share = TRIREME_SHARE_NEVER},
        {.name = "zero3, one copy",
         .strategy = TRIREME_STRATEGY_ZERO3,
         .share = TRIREME_SHARE_ALWAYS},
    };
    for (int i = 0; i < 2; ++i) make(&variants[i], 1, &size, 1);
    for (int round = -1; round < ROUNDS; ++round) {
        for (int i = 0; i < 2; ++i) {
            MUST(trireme_barrier(communicator, NULL));
            const double begin = now_us();
            MUST(trireme_model_gather_unit(variants[i].model, 0));
            if (round >= 0) variants[i].times[round] = now_us() - begin;
            MUST(trireme_model_release_unit(variants[i].model, 0));
        }
    }
    report("gather of a unit of 64 MiB", variants, 2);
    for (int i = 0; i < 2; ++i) unmake(&variants[i]);
}

static void bench_many_layers(void) {
    enum { UNITS = 1000 };
    uint64_t sizes[10];
    for (int i = 0; i < 10; ++i) sizes[i] = 1000 + 1000 * (uint64_t)i;
    struct variant variants[] = {
        {.name = "zero3, a gather for each layer",
         .strategy = TRIREME_STRATEGY_ZERO3,
         .share = TRIREME_SHARE_NEVER,
         .minimum_unit_bytes = 1},
        {.name = "zero3, in groups",
         .strategy = TRIREME_STRATEGY_ZERO3,
         .share = TRIREME_SHARE_NEVER},
        {.name = "zero3, one copy",
         .strategy = TRIREME_STRATEGY_ZERO3,
         .share = TRIREME_SHARE_ALWAYS},
    };
    for (int i = 0; i < 3; ++i) make(&variants[i], UNITS, sizes, 10);
    for (int round = -1; round < ROUNDS; ++round) {
        for (int i = 0; i < 3; ++i) {
            MUST(trireme_barrier(communicator, NULL));
            const double begin = now_us();
            for (int k = 0; k < 2 * UNITS; ++k) {
                const uint64_t unit = (uint64_t)(k < UNITS ? k : 2 * UNITS - 1 - k);
                MUST(trireme_model_gather_unit(variants[i].model, unit));
                MUST(trireme_model_release_unit(variants[i].model, unit));
            }
            if (round >= 0) variants[i].times[round] = now_us() - begin;
        }
    }
    report("forward and backward gathers of 1000 layers of 1 k to 10 k parameters", variants, 3);
    for (int i = 0; i < 3; ++i) unmake(&variants[i]);
}

int main(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = "env://";
    MUST(trireme_communicator_create(&options, &communicator));
    int32_t number = 0;
    MUST(trireme_communicator_rank(communicator, &number));
    rank = number;
    bench_step();
    bench_gather();
    bench_many_layers();
    MUST(trireme_barrier(communicator, NULL));
    trireme_communicator_destroy(communicator);
    return 0;
}
