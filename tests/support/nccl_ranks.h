/*
 * Ranks whose device memory goes by NCCL: that of the fake driver's file, where each rank has a
 * device of its own. Its ranks pass their bytes to each other by files in a folder of this program.
 */
#ifndef TRIREME_TESTS_NCCL_RANKS_H
#define TRIREME_TESTS_NCCL_RANKS_H

#include "device_ranks.h"
#include "processes.h"

static char nccl_folder[] = "/tmp/trireme-nccl-XXXXXX";

static inline int make_nccl_folder(void **state) {
    (void)state;
    if (mkdtemp(nccl_folder) == NULL) return -1;
    setenv("FAKE_NCCL_FOLDER", nccl_folder, 1);
    setenv("TRIREME_NCCL_LIBRARY", FAKE_CUDA, 1);
    return 0;
}

static inline int remove_nccl_folder(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", nccl_folder);
    return system(command) == 0 ? 0 : -1;
}

/* A rank on the device of its own number. */
static inline struct rank
make_rank_on(int number, int world, const char *rendezvous, int device, const char *backend) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = rendezvous;
    options.rank = number;
    options.world_size = world;
    options.timeout_ns = LONG_NS;
    options.device = (trireme_device){TRIREME_DEVICE_CUDA, device};
    options.backend = backend;
    struct rank rank = {.number = number, .world = world, .device = device};
    CHECK(trireme_communicator_create(&options, &rank.communicator) == TRIREME_OK);
    if (number % 3 != 2) rank.stream = FAKE(fake_stream, "fake_user_stream")(device);
    const size_t bytes = MOST_WORLD * MOST_COUNT * sizeof(double);
    rank.send = FAKE(fake_memory, "fake_device_memory")(device, bytes);
    rank.receive = FAKE(fake_memory, "fake_device_memory")(device, bytes);
    CHECK(rank.send != NULL && rank.receive != NULL);
    return rank;
}

static inline void put_bytes(const struct rank *rank, void *to, const void *from, size_t bytes) {
    FAKE(fake_writes, "fake_queue_write")(rank->device, rank->stream, to, from, bytes);
}

static inline void get_bytes(const struct rank *rank, void *to, const void *from, size_t bytes) {
    FAKE(fake_reads, "fake_queue_read")(rank->device, rank->stream, to, from, bytes);
    FAKE(fake_synchronizes, "fake_synchronize")(rank->device, rank->stream);
}

/* The way of its memory, as the communicator tells it. */
static inline void check_way(const struct rank *rank, const char *word) {
    char text[2048];
    CHECK(trireme_communicator_get_backend(rank->communicator, text, sizeof text, NULL) ==
          TRIREME_OK);
    if (strstr(text, word) == NULL) {
        fprintf(stderr, "no \"%s\" in \"%s\"\n", word, text);
        _exit(1);
    }
}

/* All communicators of NCCL are gone, and so are the contexts of these devices. */
static inline void nothing_is_left(int devices) {
    CHECK(FAKE(fake_ncclcounts, "fake_nccl_count")() == 0);
    for (int i = 0; i < devices; ++i) CHECK(FAKE(fake_retained, "fake_retained_count")(i) == 0);
}

#endif
