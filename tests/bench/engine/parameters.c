/* A whole step of zero3 with AdamW, all units gathered for forward and for backward: parameters in
 * a file, state in another one too, and both in memory. */
#include <string.h>

#include "engine.h"

enum { UNITS = 16, WARM_UPS = 2, WAYS = 3 };

static double timed_step(struct way *way, const float *gradient, uint64_t size) {
    const double begin = now_us();
    for (uint64_t unit = 0; unit < UNITS; ++unit) {
        MUST(trireme_model_gather_unit(way->model, unit));
        MUST(trireme_model_release_unit(way->model, unit));
    }
    MUST(trireme_model_begin_backward(way->model, 0));
    for (uint64_t unit = UNITS; unit-- > 0;) {
        MUST(trireme_model_gather_unit(way->model, unit));
        MUST(trireme_model_release_unit(way->model, unit));
        MUST(trireme_model_gradient_ready(way->model, unit, gradient, size, F32));
    }
    MUST(trireme_model_end_backward(way->model));
    MUST(trireme_optimizer_step(way->optimizer));
    return now_us() - begin;
}

/* Bytes of parameters, state and buffers; gradients are the same in all ways. */
static double held(const struct way *way) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    MUST(trireme_model_get_memory(way->model, &memory));
    return (double)(memory.allocated_parameters + memory.allocated_optimizer_state +
                    memory.allocated_working);
}

static trireme_offload_info info_of(const struct way *way) {
    trireme_offload_info info = TRIREME_OFFLOAD_INFO_INIT;
    MUST(trireme_model_get_offload_info(way->model, &info));
    return info;
}

void row_parameters(void) {
    const uint64_t size = (elements + UNITS - 1) / UNITS;
    struct way ways[WAYS] = {
        {.name = "parameters_memory"},
        {.name = "parameters_file", .parameter_path = folder},
        {.name = "parameters_both", .parameter_path = folder, .offload_path = folder},
    };
    float *const gradient = malloc(size * sizeof *gradient);
    if (gradient == NULL) exit(1);
    for (uint64_t i = 0; i < size; ++i) gradient[i] = (float)(1 + i % 1000) * 1e-3f;
    for (int i = 0; i < WAYS; ++i) {
        ways[i].strategy = TRIREME_STRATEGY_ZERO3;
        ways[i].share = i == 0 ? TRIREME_SHARE_NEVER : TRIREME_SHARE_AUTO;
        ways[i].adamw = true;
        make(&ways[i], UNITS, &size, 1);
    }
    double moved[MOST_ROUNDS], waited[MOST_ROUNDS];
    for (int round = -WARM_UPS; round < rounds; ++round) {
        for (int i = 0; i < WAYS; ++i) {
            trireme_offload_info before = TRIREME_OFFLOAD_INFO_INIT, after = before;
            if (i == 1) before = info_of(&ways[i]);
            const double time = timed_step(&ways[i], gradient, size);
            if (round < 0) continue;
            ways[i].times[round] = time;
            if (i != 1) continue;
            after = info_of(&ways[i]);
            moved[round] = (double)(after.read_bytes - before.read_bytes + after.written_bytes -
                                    before.written_bytes);
            waited[round] = (after.waited_seconds - before.waited_seconds) * 1e6;
        }
    }
    for (int i = 0; i < WAYS; ++i) {
        char name[64];
        snprintf(name, sizeof name, "%s_bytes", ways[i].name);
        print_number(name, held(&ways[i]));
        print_rounds(ways[i].name, ways[i].times);
    }
    print_rounds("parameters_moved", moved);
    print_rounds("parameters_waited", waited);
    for (int i = 0; i < WAYS; ++i) unmake(&ways[i]);
    free(gradient);
}
