/* Gathers: many small layers with and without groups, a large unit shared and copied, and the calls
 * alone. */
#include "engine.h"

void row_layers(void) {
    enum { UNITS = 1000, WAYS = 3 };
    uint64_t sizes[10];
    for (int i = 0; i < 10; ++i) sizes[i] = 1000 + 1000 * (uint64_t)i;
    struct way ways[WAYS] = {
        {.name = "layers_single", .share = TRIREME_SHARE_NEVER, .minimum_unit_bytes = 1},
        {.name = "layers_grouped", .share = TRIREME_SHARE_NEVER},
        {.name = "layers_shared", .share = TRIREME_SHARE_ALWAYS},
    };
    for (int i = 0; i < WAYS; ++i) {
        ways[i].strategy = TRIREME_STRATEGY_ZERO3;
        make(&ways[i], UNITS, sizes, 10);
    }
    double gathers[WAYS] = {0};
    for (int round = -1; round < rounds; ++round) {
        for (int i = 0; i < WAYS; ++i) {
            const uint64_t before = statistics_of(&ways[i]).gathers;
            meet();
            const double begin = now_us();
            for (int k = 0; k < 2 * UNITS; ++k) {
                const uint64_t unit = (uint64_t)(k < UNITS ? k : 2 * UNITS - 1 - k);
                MUST(trireme_model_gather_unit(ways[i].model, unit));
                MUST(trireme_model_release_unit(ways[i].model, unit));
            }
            if (round < 0) continue;
            ways[i].times[round] = now_us() - begin;
            gathers[i] = (double)(statistics_of(&ways[i]).gathers - before);
        }
    }
    for (int i = 0; i < WAYS; ++i) {
        char name[64];
        print_rounds(ways[i].name, ways[i].times);
        snprintf(name, sizeof name, "%s_gathers", ways[i].name);
        print_number(name, gathers[i]);
    }
    for (int i = 0; i < WAYS; ++i) unmake(&ways[i]);
}

/* A step with `gathers` gathers of unit 0. */
static void step_with_gathers(struct way *way, const float *gradient, uint64_t size, int gathers) {
    for (int i = 0; i < gathers; ++i) {
        MUST(trireme_model_gather_unit(way->model, 0));
        MUST(trireme_model_release_unit(way->model, 0));
    }
    MUST(trireme_model_begin_backward(way->model, 0));
    MUST(trireme_model_gradient_ready(way->model, 0, gradient, size, F32));
    MUST(trireme_model_end_backward(way->model));
    MUST(trireme_optimizer_step(way->optimizer));
}

static double bytes_of_step(struct way *way) {
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    MUST(trireme_model_get_memory(way->model, &memory));
    return (double)memory.sent_step_bytes;
}

void row_gather(void) {
    const uint64_t size = (64 << 20) / sizeof(float);
    struct way ways[] = {
        {.name = "gather_copied", .share = TRIREME_SHARE_NEVER},
        {.name = "gather_shared", .share = TRIREME_SHARE_ALWAYS},
    };
    float *const gradient = calloc(size, sizeof *gradient);
    if (gradient == NULL) exit(1);
    double bytes[2];
    for (int i = 0; i < 2; ++i) {
        ways[i].strategy = TRIREME_STRATEGY_ZERO3;
        make(&ways[i], 1, &size, 1);
        /* The bytes that two gathers add to a step's traffic. */
        for (int k = 0; k < 2; ++k) step_with_gathers(&ways[i], gradient, size, 0);
        bytes[i] = -bytes_of_step(&ways[i]);
        step_with_gathers(&ways[i], gradient, size, 2);
        bytes[i] = largest((bytes[i] + bytes_of_step(&ways[i])) / 2);
    }
    for (int round = -1; round < rounds; ++round) {
        for (int i = 0; i < 2; ++i) {
            meet();
            const double begin = now_us();
            MUST(trireme_model_gather_unit(ways[i].model, 0));
            if (round >= 0) ways[i].times[round] = now_us() - begin;
            MUST(trireme_model_release_unit(ways[i].model, 0));
        }
    }
    for (int i = 0; i < 2; ++i) {
        char name[64];
        print_rounds(ways[i].name, ways[i].times);
        snprintf(name, sizeof name, "%s_bytes", ways[i].name);
        print_number(name, bytes[i]);
    }
    for (int i = 0; i < 2; ++i) unmake(&ways[i]);
    free(gradient);
}

/* A group of one rank has no waits, so this is the cost of the calls. */
void row_hooks(void) {
    enum { UNITS = 1000, PASSES = 50 };
    struct way way = {.name = "hooks", .strategy = TRIREME_STRATEGY_ZERO3};
    const uint64_t size = 1;
    const float gradient = 1;
    make(&way, UNITS, &size, 1);
    for (int round = -1; round < rounds; ++round) {
        double best = 1e18;
        for (int pass = 0; pass < PASSES; ++pass) {
            MUST(trireme_model_begin_backward(way.model, 0));
            const double begin = now_us();
            for (uint64_t unit = UNITS; unit-- > 0;) {
                MUST(trireme_model_gather_unit(way.model, unit));
                MUST(trireme_model_gradient_ready(way.model, unit, &gradient, 1, F32));
                MUST(trireme_model_release_unit(way.model, unit));
            }
            const double time = (now_us() - begin) / UNITS;
            if (time < best) best = time;
            MUST(trireme_model_end_backward(way.model));
            MUST(trireme_optimizer_step(way.optimizer));
        }
        if (round >= 0) way.times[round] = best;
    }
    print_rounds(way.name, way.times);
    unmake(&way);
}
