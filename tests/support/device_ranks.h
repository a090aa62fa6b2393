/*
 * Ranks whose memory is a device's, over the driver of the tests. A process has one driver, so each
 * case is a process of its own.
 */
#ifndef TRIREME_TESTS_DEVICE_RANKS_H
#define TRIREME_TESTS_DEVICE_RANKS_H

#include <trireme/trireme.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* cmocka needs these before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "device_checks.h"
#include "fake_cuda/fake_cuda.h"
#include "ranks.h"

#define MOST_WORLD 8
#define MOST_COUNT 1000

/* Without NCCL, also on a machine that has it: bytes go through pinned memory. */
static inline void use_fake(const char *script) {
    setenv("TRIREME_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 0);
    setenv("TRIREME_CUDA_DRIVER", FAKE_CUDA, 1);
    setenv("TRIREME_CUDA_PLUGIN", FAKE_PLUGIN, 1);
    setenv("FAKE_CUDA", script, 1);
}

static inline void run(void (*body)(void), const char *script) {
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        use_fake(script);
        body();
        exit(0); /* a leak checker looks at it here */
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0) fail_msg("the case with \"%s\" failed", script);
}

static const char *const modes[] = {"mode=eager", "mode=lazy", "mode=seeded:1", "mode=seeded:2",
                                    "mode=seeded:3"};
#define MODES (sizeof modes / sizeof *modes)

/* A quick run has one order of work by chance. */
static inline size_t count_modes(void) {
    return is_quick() ? 3 : MODES;
}

static inline void run_in_all_modes(void (*body)(void)) {
    for (size_t i = 0; i < count_modes(); ++i) run(body, modes[i]);
}

static inline void *fake(const char *name) {
    void *const library = dlopen(FAKE_CUDA, RTLD_NOW);
    CHECK(library != NULL);
    void *const function = dlsym(library, name);
    CHECK(function != NULL);
    return function;
}

#define FAKE(type, name) ((type)(intptr_t)fake(name))

static inline void no_complaint(void) {
    const char *const text = FAKE(fake_finishes, "fake_finish")();
    if (*text != 0) fprintf(stderr, "%s\n", text);
    CHECK(*text == 0);
}

static inline trireme_communicator *join(int rank, int world, const char *rendezvous, int device) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = rendezvous;
    options.rank = rank;
    options.world_size = world;
    options.timeout_ns = LONG_NS;
    if (device >= 0) options.device = (trireme_device){TRIREME_DEVICE_CUDA, device};
    trireme_communicator *communicator = NULL;
    CHECK(trireme_communicator_create(&options, &communicator) == TRIREME_OK);
    return communicator;
}

/* ---- one rank's memory and its own stream ---- */

struct rank {
    trireme_communicator *communicator;
    int number, world, device;
    void *stream;          /* NULL: the default one */
    float *send, *receive; /* of the device */
};

static inline struct rank make_rank(int number, int world, const char *rendezvous) {
    struct rank rank = {.number = number, .world = world, .device = number % 2};
    const size_t bytes = (size_t)world * MOST_COUNT * sizeof(float);
    rank.communicator = join(number, world, rendezvous, rank.device);
    if (number % 3 != 2) rank.stream = FAKE(fake_stream, "fake_user_stream")(rank.device);
    rank.send = FAKE(fake_memory, "fake_device_memory")(rank.device, bytes);
    rank.receive = FAKE(fake_memory, "fake_device_memory")(rank.device, bytes);
    CHECK(rank.send != NULL && rank.receive != NULL);
    return rank;
}

static inline void put(const struct rank *rank, float *to, const float *from, uint64_t count) {
    FAKE(fake_writes, "fake_queue_write")
    (rank->device, rank->stream, to, from, count * sizeof *to);
}

/* Behind all that the caller has queued. */
static inline void get(const struct rank *rank, float *to, const float *from, uint64_t count) {
    FAKE(fake_reads, "fake_queue_read")(rank->device, rank->stream, to, from, count * sizeof *to);
    FAKE(fake_synchronizes, "fake_synchronize")(rank->device, rank->stream);
}

static inline trireme_operation_options options_of(const struct rank *rank) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.stream.kind = TRIREME_DEVICE_CUDA;
    options.stream.native = rank->stream;
    return options;
}

static inline trireme_status reduce_one(trireme_communicator *communicator, const void *send,
                                        void *receive, const trireme_operation_options *options) {
    return trireme_all_reduce(communicator, send, receive, 4, TRIREME_DTYPE_F32,
                              TRIREME_REDUCTION_SUM, options);
}

#endif
