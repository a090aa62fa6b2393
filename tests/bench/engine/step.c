/* The step of a model of 25.2 M parameters: its exchange alone, its sweeps, and the exchange beside
 * compute. */
#include <string.h>

#include "engine.h"

/* From the first gradient handed in to the end of the step. */
static double timed_step(struct way *way, const float *gradient) {
    meet();
    const double begin = now_us();
    MUST(trireme_model_begin_backward(way->model, 0));
    for (int layer = LAYERS; layer-- > 0;) hand_in(way, layer, gradient);
    MUST(trireme_model_end_backward(way->model));
    MUST(trireme_optimizer_step(way->optimizer));
    return now_us() - begin;
}

void row_step(void) {
    struct way way = {.name = "step", .strategy = TRIREME_STRATEGY_DATA_PARALLEL, .views = true};
    float *const gradient = make_gradient();
    make_layers(&way);
    fill_views(&way, gradient);
    for (int round = -2; round < rounds; ++round) {
        const double time = timed_step(&way, gradient);
        if (round >= 0) way.times[round] = time;
    }
    print_rounds(way.name, way.times);
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    MUST(trireme_model_get_info(way.model, &info));
    print_number("step_buckets", (double)info.buckets);
    unmake(&way);
    free(gradient);
}

void row_sweep(void) {
    struct way ways[] = {
        /* All-reduce, and then every rank updates everything. */
        {.name = "replicated", .strategy = TRIREME_STRATEGY_DATA_PARALLEL},
        {.name = "replicated_views", .strategy = TRIREME_STRATEGY_DATA_PARALLEL, .views = true},
        /* Reduce-scatter, each rank's part of the update, all-gather. */
        {.name = "passes", .share = TRIREME_SHARE_NEVER},
        {.name = "passes_views", .share = TRIREME_SHARE_NEVER, .bucket_bytes = 1, .views = true},
        {.name = "sweep",
         .share = TRIREME_SHARE_NEVER,
         .optimizer_flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP},
        {.name = "sweep_views",
         .share = TRIREME_SHARE_NEVER,
         .optimizer_flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP,
         .bucket_bytes = 1,
         .views = true},
        {.name = "sweep_views_one_copy",
         .share = TRIREME_SHARE_ALWAYS,
         .optimizer_flags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP,
         .bucket_bytes = 1,
         .views = true},
    };
    enum { WAYS = sizeof ways / sizeof *ways };
    float *const gradient = make_gradient();
    for (int i = 0; i < WAYS; ++i) {
        if (ways[i].strategy == 0) ways[i].strategy = TRIREME_STRATEGY_ZERO1;
        ways[i].adamw = true;
        make_layers(&ways[i]);
        fill_views(&ways[i], gradient);
    }
    for (int round = -1; round < rounds; ++round) {
        for (int i = 0; i < WAYS; ++i) {
            const double time = timed_step(&ways[i], gradient);
            if (round >= 0) ways[i].times[round] = time;
        }
    }
    for (int i = 0; i < WAYS; ++i) print_rounds(ways[i].name, ways[i].times);
    for (int i = 0; i < WAYS; ++i) unmake(&ways[i]);
    free(gradient);
}

/* Update in backward beside the same training without it, and the gradient memory of both. */
void row_backward(void) {
    enum { PAIRS = 3 };
    static const trireme_strategy kStrategies[PAIRS] = {TRIREME_STRATEGY_DATA_PARALLEL,
                                                        TRIREME_STRATEGY_ZERO2,
                                                        TRIREME_STRATEGY_ZERO3};
    struct way ways[2 * PAIRS] = {{.name = "backward_plain_data_parallel"},
                                  {.name = "backward_data_parallel"},
                                  {.name = "backward_plain_zero2"},
                                  {.name = "backward_zero2"},
                                  {.name = "backward_plain_zero3"},
                                  {.name = "backward_zero3"}};
    float *const gradient = make_gradient();
    for (int i = 0; i < 2 * PAIRS; ++i) {
        ways[i].strategy = kStrategies[i / 2];
        ways[i].model_flags = i % 2 == 1 ? TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD : 0;
        ways[i].bucket_bytes = 4 << 20;
        ways[i].adamw = true;
        make_layers(&ways[i]);
    }
    for (int round = -2; round < rounds; ++round) {
        for (int i = 0; i < 2 * PAIRS; ++i) {
            const double time = timed_step(&ways[i], gradient);
            if (round >= 0) ways[i].times[round] = time;
        }
    }
    for (int i = 0; i < 2 * PAIRS; ++i) {
        print_rounds(ways[i].name, ways[i].times);
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        MUST(trireme_model_get_memory(ways[i].model, &memory));
        char name[64];
        snprintf(name, sizeof name, "%s_bytes", ways[i].name);
        print_number(name, (double)(memory.allocated_gradients + memory.allocated_working));
        unmake(&ways[i]);
    }
    free(gradient);
}

/* Three matrices of 192 KiB together stay in the second-level cache. */
enum { SIDE = 128 };
static float left[SIDE][SIDE], right[SIDE][SIDE], product[SIDE][SIDE];

/* One copy of the loop. A copy inlined elsewhere may lie across cache lines and take longer. Then
 * the compute alone and the compute beside the exchange would not be the same work. */
__attribute__((noinline, aligned(64))) static void compute(long rows) {
    for (long k = 0; k < rows; ++k) {
        const long i = k % SIDE;
        memset(product[i], 0, sizeof product[i]);
        for (int j = 0; j < SIDE; ++j) {
            for (int m = 0; m < SIDE; ++m) product[i][m] += left[i][j] * right[j][m];
        }
    }
}

/* Backward over all layers: each computes `rows` rows of the product, then hands in. */
static double timed_backward(struct way *way, const float *gradient, long rows) {
    const bool gathers = way->strategy == TRIREME_STRATEGY_ZERO3;
    meet();
    const double begin = now_us();
    MUST(trireme_model_begin_backward(way->model, 0));
    for (int layer = LAYERS; layer-- > 0;) {
        if (gathers) MUST(trireme_model_gather_unit(way->model, (uint64_t)layer));
        compute(rows);
        hand_in(way, layer, gradient);
        if (gathers) MUST(trireme_model_release_unit(way->model, (uint64_t)layer));
    }
    MUST(trireme_model_end_backward(way->model));
    MUST(trireme_optimizer_step(way->optimizer));
    return now_us() - begin;
}

static double timed_compute(long rows) {
    meet();
    const double begin = now_us();
    for (int layer = LAYERS; layer-- > 0;) compute(rows);
    return now_us() - begin;
}

/* Microseconds of all layers for one row of the product each. */
static double cost_of_row(void) {
    enum { PROBE = 40 };
    double best = 1e18;
    for (int i = 0; i < 5; ++i) {
        const double time = largest(timed_compute(PROBE));
        if (time < best) best = time;
    }
    return best / PROBE;
}

static void overlap(struct way *way, const float *gradient) {
    static double alone[MOST_ROUNDS], computing[MOST_ROUNDS], exposed[MOST_ROUNDS];
    static double processor[MOST_ROUNDS];
    make_layers(way);
    fill_views(way, gradient);
    const double cost = cost_of_row();
    for (int round = -2; round < rounds; ++round) {
        const double busy = processor_us();
        const double exchange = timed_backward(way, gradient, 0);
        const double moving = processor_us() - busy;
        const long rows = (long)(2.2 * largest(exchange) / cost) + 1;
        const double work = timed_compute(rows);
        const double before = (double)statistics_of(way).exposed_ns;
        const double both = timed_backward(way, gradient, rows);
        if (round < 0) continue;
        alone[round] = exchange;
        computing[round] = work;
        processor[round] = moving;
        way->times[round] = both;
        exposed[round] = ((double)statistics_of(way).exposed_ns - before) / 1e3;
    }
    char name[64];
    print_rounds(way->name, way->times);
    snprintf(name, sizeof name, "%s_alone", way->name);
    print_rounds(name, alone);
    snprintf(name, sizeof name, "%s_compute", way->name);
    print_rounds(name, computing);
    snprintf(name, sizeof name, "%s_exposed", way->name);
    print_rounds(name, exposed);
    snprintf(name, sizeof name, "%s_processor", way->name);
    print_rounds(name, processor);
    unmake(way);
}

void row_overlap(void) {
    for (int i = 0; i < SIDE; ++i) {
        for (int j = 0; j < SIDE; ++j) {
            left[i][j] = (float)(i + j) * 1e-3f;
            right[i][j] = (float)(i - j) * 1e-3f;
        }
    }
    /* The last bucket of backward has nothing to hide behind: 19 % of all bytes with the default
     * of 25 MiB, 3 % with buckets of 4 MiB. */
    enum { WAYS = 5, SMALL = 4 << 20 };
    struct way ways[WAYS] = {
        {.name = "overlap_data_parallel",
         .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
         .views = true},
        {.name = "overlap_data_parallel_small",
         .strategy = TRIREME_STRATEGY_DATA_PARALLEL,
         .bucket_bytes = SMALL,
         .views = true},
        {.name = "overlap_zero3", .strategy = TRIREME_STRATEGY_ZERO3},
        {.name = "overlap_zero3_small", .strategy = TRIREME_STRATEGY_ZERO3, .bucket_bytes = SMALL},
        {.name = "overlap_zero3_copied_small",
         .strategy = TRIREME_STRATEGY_ZERO3,
         .share = TRIREME_SHARE_NEVER,
         .bucket_bytes = SMALL},
    };
    float *const gradient = make_gradient();
    for (int i = 0; i < WAYS; ++i) overlap(&ways[i], gradient);
    /* The use of the product keeps the compiler from dropping its computation. */
    if (product[1][1] != product[1][1]) exit(1);
    free(gradient);
}
