/*
 * Speed of cross-entropy, forward and backward, on 1 and 2 ranks that are threads, beside a plain
 * loop in one thread of the same run. Usage: bench_vocabulary [ROWS [CLASSES [ROUNDS [BLOCKS]]]]
 */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <trireme/trireme.h>

static uint64_t rows = 512, classes = 50257;
static int rounds = 9;
static uint32_t blocks = 0;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times) {
    qsort(times, (size_t)rounds, sizeof *times, compare);
    return times[rounds / 2];
}

static void *allocate(uint64_t bytes) {
    void *const memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (memory == NULL) abort();
    return memory;
}

static void require(trireme_status status) {
    if (status == TRIREME_OK) return;
    fprintf(stderr, "%s\n", trireme_last_error());
    exit(1);
}

/* Columns [first, first + count) of the logits. */
static float *make_logits(uint64_t first, uint64_t count) {
    float *const logits = allocate(rows * count * sizeof *logits);
    for (uint64_t row = 0; row < rows; ++row) {
        for (uint64_t i = 0; i < count; ++i) {
            const uint64_t mixed = (row * classes + first + i + 1) * 0x9e3779b97f4a7c15u;
            logits[row * count + i] = (float)(mixed >> 40) / (float)(1 << 21) - 4;
        }
    }
    return logits;
}

static int32_t *make_targets(void) {
    int32_t *const targets = allocate(rows * sizeof *targets);
    for (uint64_t row = 0; row < rows; ++row) targets[row] = (int32_t)(row * 7919 % classes);
    return targets;
}

/* --- the plain loop ----------------------------------------------------------------------------
 */

static double plain_loss(const float *logits, const int32_t *targets, float *gradients) {
    double all = 0;
    for (uint64_t row = 0; row < rows; ++row) {
        const float *const x = logits + row * classes;
        float *const d = gradients + row * classes;
        float largest = x[0], sum = 0;
        for (uint64_t i = 1; i < classes; ++i) largest = x[i] > largest ? x[i] : largest;
        for (uint64_t i = 0; i < classes; ++i) {
            d[i] = expf(x[i] - largest);
            sum += d[i];
        }
        all += (double)(largest + logf(sum) - x[targets[row]]);
        for (uint64_t i = 0; i < classes; ++i) d[i] /= sum;
        d[targets[row]] -= 1;
    }
    return all;
}

static double time_plain(double *loss) {
    float *const logits = make_logits(0, classes);
    float *const gradients = allocate(rows * classes * sizeof *gradients);
    int32_t *const targets = make_targets();
    double *const times = allocate((uint64_t)rounds * sizeof *times);
    *loss = plain_loss(logits, targets, gradients);
    for (int round = 0; round < rounds; ++round) {
        const double start = now();
        *loss = plain_loss(logits, targets, gradients);
        times[round] = now() - start;
    }
    const double result = median(times);
    free(logits), free(gradients), free(targets), free(times);
    return result;
}

/* --- ranks ------------------------------------------------------------------------------------ */

struct rank {
    int rank, world_size;
    double time, loss;
};

static void *run(void *context) {
    struct rank *const own = context;
    char rendezvous[64];
    snprintf(rendezvous, sizeof rendezvous, "local://bench-vocabulary-%d", own->world_size);
    trireme_communicator_options joined = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    joined.rank = own->rank;
    joined.world_size = own->world_size;
    joined.rendezvous = rendezvous;
    trireme_communicator *communicator = NULL;
    require(trireme_communicator_create(&joined, &communicator));
    trireme_tensor_options split = TRIREME_TENSOR_OPTIONS_INIT;
    split.blocks = blocks;
    trireme_tensor *tensor = NULL;
    require(trireme_tensor_create(communicator, &split, &tensor));
    trireme_vocabulary_options options = TRIREME_VOCABULARY_OPTIONS_INIT;
    options.name = "bench";
    options.classes = classes;
    options.rows = rows;
    options.dtype = TRIREME_DTYPE_F32;
    trireme_vocabulary *vocabulary = NULL;
    require(trireme_vocabulary_create(tensor, &options, &vocabulary));
    trireme_vocabulary_info info = TRIREME_VOCABULARY_INFO_INIT;
    require(trireme_vocabulary_get_info(vocabulary, &info));
    float *const logits = make_logits(info.first_class, info.class_count);
    float *const gradients = allocate(rows * info.class_count * sizeof *gradients);
    int32_t *const targets = make_targets();
    float *const losses = allocate(rows * sizeof *losses);
    void *const kept = allocate(info.kept_bytes);
    double *const times = allocate((uint64_t)rounds * sizeof *times);
    for (int round = -1; round < rounds; ++round) {
        require(trireme_barrier(communicator, NULL));
        const double start = now();
        require(trireme_vocabulary_loss(vocabulary, targets, TRIREME_DTYPE_I32, rows, logits,
                                        losses, kept, NULL));
        require(trireme_vocabulary_loss_backward(vocabulary, targets, TRIREME_DTYPE_I32, rows,
                                                 logits, kept, NULL, gradients));
        require(trireme_barrier(communicator, NULL));
        if (round >= 0) times[round] = now() - start;
    }
    own->time = median(times);
    for (uint64_t row = 0; row < rows; ++row) own->loss += (double)losses[row];
    free(logits), free(gradients), free(targets), free(losses), free(kept), free(times);
    trireme_vocabulary_destroy(vocabulary);
    trireme_tensor_destroy(tensor);
    trireme_communicator_destroy(communicator);
    return NULL;
}

static double time_ranks(int world_size, double *loss) {
    struct rank ranks[2] = {{0}};
    pthread_t threads[2];
    for (int rank = 0; rank < world_size; ++rank) {
        ranks[rank] = (struct rank){.rank = rank, .world_size = world_size};
        if (pthread_create(&threads[rank], NULL, run, &ranks[rank]) != 0) abort();
    }
    for (int rank = 0; rank < world_size; ++rank) pthread_join(threads[rank], NULL);
    *loss = ranks[0].loss;
    return ranks[0].time;
}

int main(int argc, char **argv) {
    if (argc > 1) rows = strtoull(argv[1], NULL, 10);
    if (argc > 2) classes = strtoull(argv[2], NULL, 10);
    if (argc > 3) rounds = atoi(argv[3]);
    if (argc > 4) blocks = (uint32_t)atoi(argv[4]);
    double plain_sum = 0, one_sum = 0, two_sum = 0;
    const double plain = time_plain(&plain_sum);
    const double one = time_ranks(1, &one_sum), two = time_ranks(2, &two_sum);
    printf("cross-entropy of %llu rows of %llu classes, f32, forward and backward\n",
           (unsigned long long)rows, (unsigned long long)classes);
    printf("  plain loop  %8.1f ms   loss %.6g\n", plain * 1e3, plain_sum);
    printf("  1 rank      %8.1f ms   loss %.6g   %.2f times the plain loop's speed\n", one * 1e3,
           one_sum, plain / one);
    printf("  2 ranks     %8.1f ms   loss %.6g   %.2f times, and %.2f times 1 rank's\n", two * 1e3,
           two_sum, plain / two, one / two);
    return 0;
}
