#define _POSIX_C_SOURCE 200809L
#include "engine.h"

#include <string.h>
#include <time.h>

double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

double processor_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int32_t TRIREME_CALLCONV do_nothing(const trireme_update *update, void *user_data) {
    (void)update;
    (void)user_data;
    return 0;
}

void make(struct way *way, int units, const uint64_t *sizes, int sizes_count) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = way->strategy;
    options.flags = way->model_flags;
    trireme_bucket_options buckets = TRIREME_BUCKET_OPTIONS_INIT;
    buckets.bytes = way->bucket_bytes;
    options.buckets = &buckets;
    trireme_unit_options gathers = TRIREME_UNIT_OPTIONS_INIT;
    gathers.minimum_bytes = way->minimum_unit_bytes;
    options.units = &gathers;
    trireme_shard_options shards = TRIREME_SHARD_OPTIONS_INIT;
    shards.share = way->share;
    options.shards = &shards;
    trireme_offload_options parameter_file = TRIREME_OFFLOAD_OPTIONS_INIT;
    parameter_file.path = way->parameter_path;
    if (way->parameter_path != NULL) options.offload = &parameter_file;
    MUST(trireme_model_create(communicator, &options, &way->model));
    for (int i = 0; i < units; ++i) {
        char name[32];
        snprintf(name, sizeof name, "layer%d", i);
        trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
        parameter.name = name;
        parameter.dtype = F32;
        parameter.dimensions = 1;
        parameter.shape = &sizes[i % sizes_count];
        MUST(trireme_model_add_parameter(way->model, &parameter, NULL));
    }
    MUST(trireme_model_seal(way->model));
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = way->adamw ? TRIREME_RULE_ADAMW : TRIREME_RULE_USER;
    rule.flags = way->optimizer_flags;
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    clipping.max_norm = way->max_norm;
    rule.clipping = &clipping;
    trireme_offload_options state_file = TRIREME_OFFLOAD_OPTIONS_INIT;
    state_file.path = way->offload_path;
    if (way->offload_path != NULL) rule.offload = &state_file;
    trireme_user_rule_options idle = TRIREME_USER_RULE_OPTIONS_INIT;
    idle.update = do_nothing;
    if (!way->adamw) rule.rule = &idle.base;
    MUST(trireme_optimizer_create(way->model, &rule, &way->optimizer));
}

void make_layers(struct way *way) {
    const uint64_t size = LAYER_ELEMENTS;
    make(way, LAYERS, &size, 1);
}

void unmake(struct way *way) {
    meet();
    trireme_optimizer_destroy(way->optimizer);
    trireme_model_destroy(way->model);
}

static float *view_of(struct way *way, int layer) {
    void *view = NULL;
    int32_t adds = 0;
    MUST(trireme_model_get_gradient_data(way->model, (uint64_t)layer, &view, NULL, NULL, &adds));
    return view;
}

void hand_in(struct way *way, int layer, const float *gradient) {
    const float *const view = way->views ? view_of(way, layer) : NULL;
    if (way->views && view == NULL) {
        fprintf(stderr, "%s has no view of layer %d\n", way->name, layer);
        exit(1);
    }
    MUST(trireme_model_gradient_ready(way->model, (uint64_t)layer, view != NULL ? view : gradient,
                                      LAYER_ELEMENTS, F32));
}

float *make_gradient(void) {
    float *const gradient = malloc(LAYER_ELEMENTS * sizeof *gradient);
    if (gradient == NULL) exit(1);
    for (int i = 0; i < LAYER_ELEMENTS; ++i) gradient[i] = (float)(1 + i % 1000) * 1e-3f;
    return gradient;
}

void fill_views(struct way *way, const float *gradient) {
    if (!way->views) return;
    MUST(trireme_model_begin_backward(way->model, 0));
    for (int layer = LAYERS; layer-- > 0;) {
        float *const view = view_of(way, layer);
        if (view != NULL) memcpy(view, gradient, LAYER_ELEMENTS * sizeof *view);
        hand_in(way, layer, gradient);
    }
    MUST(trireme_model_end_backward(way->model));
    MUST(trireme_optimizer_step(way->optimizer));
}

double timed_update(struct way *way, uint64_t units, bool fill) {
    MUST(trireme_model_begin_backward(way->model, 0));
    for (uint64_t unit = units; unit-- > 0;) {
        void *view = NULL;
        uint64_t count = 0;
        int32_t adds = 0;
        MUST(trireme_model_get_gradient_data(way->model, unit, &view, &count, NULL, &adds));
        for (uint64_t i = 0; fill && i < count; ++i)
            ((float *)view)[i] = (float)(1 + i % 1000) * 1e-3f;
        MUST(trireme_model_gradient_ready(way->model, unit, view, count, F32));
    }
    MUST(trireme_model_end_backward(way->model));
    meet();
    const double begin = now_us();
    MUST(trireme_optimizer_step(way->optimizer));
    return now_us() - begin;
}

trireme_model_statistics statistics_of(const struct way *way) {
    trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
    MUST(trireme_model_get_statistics(way->model, &statistics));
    return statistics;
}

void meet(void) {
    MUST(trireme_barrier(communicator, NULL));
}

double largest(double value) {
    MUST(trireme_all_reduce(communicator, &value, &value, 1, TRIREME_DTYPE_F64,
                            TRIREME_REDUCTION_MAX, NULL));
    return value;
}

void print_rounds(const char *name, double *values) {
    MUST(trireme_all_reduce(communicator, values, values, (uint64_t)rounds, TRIREME_DTYPE_F64,
                            TRIREME_REDUCTION_MAX, NULL));
    if (rank != 0) return;
    printf("%s", name);
    for (int i = 0; i < rounds; ++i) printf(" %.3f", values[i]);
    printf("\n");
    fflush(stdout);
}

void print_number(const char *name, double value) {
    if (rank == 0) printf("%s %.3f\n", name, value);
}
