/* The update alone: AdamW of 50 and 100 M elements, beside a plain loop over as many bytes. The
 * ranks are the threads: each has its part of the elements, and a group of its own, so nothing is
 * exchanged. */
#include <string.h>

#include "engine.h"

enum { UNITS = 20 };

/* Reads four vectors and writes three, as AdamW does, and computes next to nothing. */
__attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default"))) static void
stream(float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
       uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
        m[i] += g[i];
        v[i] += g[i];
        p[i] += g[i];
    }
}

static void measure(uint64_t millions, uint64_t ranks, trireme_communicator *own) {
    const uint64_t size = millions * 1000000 / ranks / UNITS, count = size * UNITS;
    char names[3][32];
    struct way ways[] = {{.adamw = true}, {.adamw = true, .max_norm = 1}};
    trireme_communicator *const all = communicator;
    communicator = own;
    for (int i = 0; i < 2; ++i) {
        snprintf(names[i], sizeof names[i], "update_%s_%d", i == 0 ? "adamw" : "clipped",
                 (int)millions);
        ways[i].name = names[i];
        ways[i].strategy = TRIREME_STRATEGY_DATA_PARALLEL;
        make(&ways[i], UNITS, &size, 1);
    }
    communicator = all;
    snprintf(names[2], sizeof names[2], "update_stream_%d", (int)millions);
    double times[MOST_ROUNDS];
    float *const memory = aligned_alloc(4096, (4 * count * sizeof(float) + 4095) / 4096 * 4096);
    if (memory == NULL) exit(1);
    for (uint64_t i = 0; i < 4 * count; ++i) memory[i] = 1e-3f;
    for (int round = -1; round < rounds; ++round) {
        meet();
        const double begin = now_us();
        stream(memory, memory + count, memory + 2 * count, memory + 3 * count, count);
        if (round >= 0) times[round] = now_us() - begin;
        for (int i = 0; i < 2; ++i) {
            const double time = timed_update(&ways[i], UNITS, round < 0);
            if (round >= 0) ways[i].times[round] = time;
        }
    }
    print_rounds(names[2], times);
    for (int i = 0; i < 2; ++i) {
        print_rounds(ways[i].name, ways[i].times);
        unmake(&ways[i]);
    }
    free(memory);
}

void row_update(void) {
    int32_t ranks = 0;
    MUST(trireme_communicator_get_world_size(communicator, &ranks));
    trireme_communicator *own = NULL;
    MUST(trireme_communicator_split(communicator, rank, 0, NULL, &own));
    measure(50, (uint64_t)ranks, own);
    measure(100, (uint64_t)ranks, own);
    trireme_communicator_destroy(own);
}
