/* The cost of a call in C: the best batch of all_reduce of 8 bytes in a group of one rank, in
 * nanoseconds. */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <trireme/trireme.h>

enum { kBatch = 200, kBatches = 2000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.world_size = 1;
    options.rendezvous = "local://calls";
    trireme_communicator *communicator = NULL;
    if (trireme_communicator_create(&options, &communicator) != TRIREME_OK) return 1;
    double value = 1;
    double best = 1e18;
    for (int batch = 0; batch < kBatches; ++batch) {
        const double start = now();
        for (int i = 0; i < kBatch; ++i) {
            if (trireme_all_reduce(communicator, &value, &value, 1, TRIREME_DTYPE_F64,
                                   TRIREME_REDUCTION_SUM, NULL) != TRIREME_OK) {
                return 1;
            }
        }
        const double each = (now() - start) / kBatch;
        if (each < best) best = each;
    }
    trireme_communicator_destroy(communicator);
    printf("%.1f\n", best);
    return 0;
}
