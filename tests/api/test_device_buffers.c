/*
 * Buffers of memory of a device and of pinned memory, and copies. Then operations of devices with a
 * root, of all blocks, and of messages. The driver is that of the tests, the oracle plain
 * arithmetic.
 */
#include <trireme/trireme.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "device_ranks.h"

static void *data_of(const trireme_buffer *buffer) {
    void *data = NULL;
    CHECK(trireme_buffer_get_data(buffer, &data) == TRIREME_OK);
    return data;
}

static trireme_buffer *
buffer_of(const struct rank *rank, trireme_memory_kind kind, uint64_t bytes) {
    trireme_buffer *buffer = NULL;
    CHECK(trireme_buffer_alloc_kind(rank->communicator, kind, bytes, &buffer) == TRIREME_OK);
    return buffer;
}

static int lives(void) {
    return FAKE(fake_lives, "fake_live_count")();
}

/* ---- buffers ---- */

static void one_rank(struct rank *rank) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    *rank = make_rank(0, 1, rendezvous);
}

static void check_place_of(const void *data, trireme_memory_kind kind) {
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    CHECK(trireme_memory_get_info(data, &info) == TRIREME_OK);
    CHECK(info.kind == kind && info.device.kind == TRIREME_DEVICE_CUDA && info.device.index == 0);
}

static void zeros_of_both_kinds(void) {
    static const uint64_t sizes[] = {0, 1, 4096, 70001};
    struct rank rank;
    one_rank(&rank);
    const int before = lives();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        const trireme_memory_kind kinds[] = {TRIREME_MEMORY_KIND_DEFAULT,
                                             TRIREME_MEMORY_KIND_DEVICE,
                                             TRIREME_MEMORY_KIND_PINNED};
        for (size_t k = 0; k < 3; ++k) {
            static unsigned char found[70001];
            trireme_buffer *const buffer = buffer_of(&rank, kinds[k], sizes[i]);
            uint64_t bytes = 77;
            CHECK(trireme_buffer_get_bytes(buffer, &bytes) == TRIREME_OK && bytes == sizes[i]);
            void *const data = data_of(buffer);
            CHECK((uintptr_t)data % 4096 == 0);
            memset(found, 9, sizeof found);
            if (kinds[k] == TRIREME_MEMORY_KIND_PINNED) {
                if (bytes > 0) memcpy(found, data, bytes);
            } else if (bytes > 0) {
                FAKE(fake_reads, "fake_queue_read")(0, rank.stream, found, data, bytes);
                FAKE(fake_synchronizes, "fake_synchronize")(0, rank.stream);
            }
            for (uint64_t b = 0; b < bytes; ++b) CHECK(found[b] == 0);
            if (bytes > 0)
                check_place_of(data, kinds[k] == 0 ? TRIREME_MEMORY_KIND_DEVICE : kinds[k]);
            trireme_buffer_destroy(buffer);
            trireme_buffer_destroy(buffer); /* a stale handle is ignored */
        }
    }
    CHECK(lives() == before);
    trireme_buffer *buffer = NULL;
    CHECK(trireme_buffer_alloc(rank.communicator, 64, &buffer) == TRIREME_OK);
    check_place_of(data_of(buffer), TRIREME_MEMORY_KIND_DEVICE);
    trireme_communicator_destroy(rank.communicator);
    /* The buffer keeps the device. */
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 1);
    const float number = 3;
    float found = 0;
    put(&rank, data_of(buffer), &number, 1);
    get(&rank, &found, data_of(buffer), 1);
    CHECK(found == number);
    trireme_buffer_destroy(buffer);
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
    no_complaint();
}

static void buffers_are_zero_and_go_back(void **state) {
    (void)state;
    run_in_all_modes(zeros_of_both_kinds);
}

struct job {
    int world;
    char rendezvous[64];
};

/* Operands of every kind, also from the middle of a buffer. */
static void reduce_buffers(int number, void *context) {
    const struct job *const job = context;
    const struct rank rank = make_rank(number, job->world, job->rendezvous);
    trireme_operation_options options = options_of(&rank);
    trireme_buffer *const memory = buffer_of(&rank, TRIREME_MEMORY_KIND_DEVICE, 4096);
    trireme_buffer *const pinned = buffer_of(&rank, TRIREME_MEMORY_KIND_PINNED, 4096);
    float *const device = data_of(memory), *const host = data_of(pinned);
    const int sum = job->world * (job->world + 1) / 2;
    for (int round = 1; round < 4; ++round) {
        float here[100], found[100];
        for (int i = 0; i < 100; ++i) host[i] = here[i] = (float)(round * (number + 1) + i);
        put(&rank, device + 7, here, 100);
        CHECK(trireme_all_reduce(rank.communicator, host, device + 200, 100, TRIREME_DTYPE_F32,
                                 TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
        get(&rank, found, device + 200, 100);
        for (int i = 0; i < 100; ++i) CHECK(found[i] == (float)(round * sum + job->world * i));
        CHECK(trireme_all_reduce(rank.communicator, device + 7, host + 300, 100, TRIREME_DTYPE_F32,
                                 TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
        for (int i = 0; i < 100; ++i) CHECK(host[300 + i] == (float)(round * sum + job->world * i));
        CHECK(host[299] == 0 && host[400] == 0);
    }
    trireme_buffer_destroy(memory);
    trireme_buffer_destroy(pinned);
    trireme_communicator_destroy(rank.communicator);
}

static void operands_of_threads(void) {
    static const int worlds[] = {1, 3};
    const int before = lives();
    for (size_t i = 0; i < 2; ++i) {
        struct job job = {.world = worlds[i]};
        unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
        run_threads(job.world, reduce_buffers, &job);
    }
    no_complaint();
    CHECK(lives() <= before + 4); /* those of the callers, whose streams stay */
}

static void collectives_take_buffers(void **state) {
    (void)state;
    run_in_all_modes(operands_of_threads);
}

/* Rank 0's other thread destroys the buffers while the operation waits for rank 1. */
struct early {
    struct rank ranks[2];
    trireme_buffer *buffers[2];
    void *data[2];
};

static void destroyed_meanwhile(int index, void *context) {
    struct early *const early = context;
    const struct timespec moment = {.tv_nsec = 20 * 1000 * 1000};
    if (index == 2) {
        nanosleep(&moment, NULL);
        for (int i = 0; i < 2; ++i) trireme_buffer_destroy(early->buffers[i]);
        return;
    }
    const struct rank *const rank = &early->ranks[index];
    const trireme_operation_options options = options_of(rank);
    const float one = 1;
    float found = 0;
    float *const middle = (float *)early->data[0] + 3;
    if (index == 1) {
        for (int i = 0; i < 3; ++i) nanosleep(&moment, NULL);
        put(rank, rank->send, &one, 1);
    } else {
        put(rank, middle, &one, 1);
    }
    const void *const send = index == 0 ? middle : rank->send;
    void *const receive = index == 0 ? (float *)early->data[1] + 5 : rank->receive;
    CHECK(trireme_all_reduce(rank->communicator, send, receive, 1, TRIREME_DTYPE_F32,
                             TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
    if (index == 1) get(rank, &found, receive, 1);
    CHECK(index == 0 || found == 2);
}

static void early_end(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    struct early early;
    for (int i = 0; i < 2; ++i) early.ranks[i] = make_rank(i, 2, rendezvous);
    const int before = lives();
    for (int i = 0; i < 2; ++i) {
        early.buffers[i] = buffer_of(&early.ranks[0], TRIREME_MEMORY_KIND_DEVICE, 64);
        early.data[i] = data_of(early.buffers[i]);
    }
    run_threads(3, destroyed_meanwhile, &early);
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    for (int i = 0; i < 2; ++i) {
        CHECK(trireme_memory_get_info(early.data[i], &info) == TRIREME_OK);
        CHECK(info.kind == TRIREME_MEMORY_KIND_HOST); /* it has gone back */
        trireme_communicator_destroy(early.ranks[i].communicator);
    }
    CHECK(lives() <= before);
    no_complaint();
}

static void an_operation_keeps_its_buffers(void **state) {
    (void)state;
    run_in_all_modes(early_end);
}

static void refused(void) {
    struct rank rank;
    one_rank(&rank);
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const host = join(0, 1, rendezvous, -1);
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    trireme_buffer *buffer = NULL;
    trireme_communicator *const device = rank.communicator;
    CHECK_FAILS(trireme_buffer_alloc_kind(device, TRIREME_MEMORY_KIND_HOST, 64, &buffer), bad,
                "kind is HOST", "CUDA device 0", "PINNED");
    CHECK_FAILS(trireme_buffer_alloc_kind(host, TRIREME_MEMORY_KIND_DEVICE, 64, &buffer), bad,
                "kind is DEVICE", "memory of the host");
    CHECK_FAILS(trireme_buffer_alloc_kind(host, TRIREME_MEMORY_KIND_PINNED, 64, &buffer), bad,
                "kind is PINNED", "memory of the host");
    CHECK_FAILS(trireme_buffer_alloc_kind(device, TRIREME_MEMORY_KIND_MANAGED, 64, &buffer),
                TRIREME_ERROR_UNSUPPORTED, "kind is MANAGED");
    CHECK_FAILS(trireme_buffer_alloc_kind(device, 5, 64, &buffer), bad, "kind is 5");
    CHECK_FAILS(trireme_buffer_alloc_kind(device, -1, 64, &buffer), bad, "kind is -1");
    CHECK_FAILS(trireme_buffer_alloc_kind(device, 0, 64, NULL), bad, "out_buffer is NULL");
    CHECK_FAILS(trireme_buffer_alloc_kind(NULL, 0, 64, &buffer), TRIREME_ERROR_INVALID_HANDLE,
                "communicator is NULL");
    CHECK_FAILS(trireme_buffer_alloc_kind(device, 0, UINT64_MAX, &buffer), bad, "bytes is");
    CHECK(buffer == NULL);
    CHECK(trireme_buffer_alloc_kind(host, TRIREME_MEMORY_KIND_HOST, 64, &buffer) == TRIREME_OK);
    CHECK(*(char *)data_of(buffer) == 0);
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(host);
    trireme_communicator_destroy(device);
    no_complaint();
}

static void other_kinds_are_refused(void **state) {
    (void)state;
    run(refused, "mode=lazy");
}

/* The driver runs out at each of its allocations in turn. The group goes on. */
static void out_of_memory(void) {
    struct rank rank;
    one_rank(&rank);
    const int before = lives();
    trireme_buffer *buffer = NULL;
    for (int limit = 0; limit < 3; ++limit) {
        char script[64];
        snprintf(script, sizeof script, "mode=lazy oom=%d", limit);
        setenv("FAKE_CUDA", script, 1);
        const trireme_memory_kind kind =
            limit == 0 ? TRIREME_MEMORY_KIND_PINNED : TRIREME_MEMORY_KIND_DEVICE;
        CHECK_FAILS(trireme_buffer_alloc_kind(rank.communicator, kind, 4096, &buffer),
                    TRIREME_ERROR_OUT_OF_MEMORY, "CUDA device 0: cuMem");
        CHECK(buffer == NULL && lives() == before);
    }
    setenv("FAKE_CUDA", "mode=lazy", 1);
    buffer = buffer_of(&rank, TRIREME_MEMORY_KIND_DEVICE, 4096);
    const float here[4] = {1, 2, 3, 4};
    const trireme_operation_options options = options_of(&rank);
    put(&rank, rank.send, here, 4);
    CHECK(reduce_one(rank.communicator, rank.send, data_of(buffer), &options) == TRIREME_OK);
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(rank.communicator);
    no_complaint();
}

static void a_device_without_memory_is_a_status(void **state) {
    (void)state;
    run(out_of_memory, "mode=lazy");
}

/* A device that cannot map memory, that fails, or that does not come to the end of the clearing. */
static void bad_devices(void) {
    struct rank rank;
    one_rank(&rank);
    trireme_buffer *buffer = NULL;
    const int before = lives();
    setenv("FAKE_CUDA", "mode=lazy fail=cuMemsetD8Async:719", 1);
    CHECK_FAILS(trireme_buffer_alloc(rank.communicator, 64, &buffer), TRIREME_ERROR_DEVICE,
                "cuMemsetD8Async answers");
    setenv("FAKE_CUDA", "mode=lazy fail=cuStreamCreateWithPriority:719", 1);
    CHECK_FAILS(trireme_buffer_alloc(rank.communicator, 64, &buffer), TRIREME_ERROR_DEVICE,
                "cuStreamCreateWithPriority answers");
    CHECK(buffer == NULL && lives() == before);
    setenv("FAKE_CUDA", "mode=lazy", 1);
    CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK); /* the group goes on */
    trireme_communicator_destroy(rank.communicator);
    no_complaint();
}

static void stands_still(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    options.rendezvous = rendezvous;
    options.world_size = 1;
    options.timeout_ns = 50 * 1000 * 1000;
    options.device.kind = TRIREME_DEVICE_CUDA;
    trireme_communicator *communicator = NULL;
    trireme_buffer *buffer = NULL;
    CHECK(trireme_communicator_create(&options, &communicator) == TRIREME_OK);
    CHECK_FAILS(trireme_buffer_alloc(communicator, 64, &buffer), TRIREME_ERROR_TIMEOUT,
                "has not done its work");
    CHECK(buffer == NULL);
    trireme_communicator_destroy(communicator);
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 1); /* its end could wait */
    setenv("FAKE_CUDA", "mode=lazy", 1);
    no_complaint(); /* also when the device goes on: the memory is there */
}

static void cannot_map(void) {
    struct rank rank;
    one_rank(&rank);
    trireme_buffer *buffer = NULL;
    CHECK_FAILS(trireme_buffer_alloc(rank.communicator, 64, &buffer), TRIREME_ERROR_UNSUPPORTED,
                "cannot map memory");
    CHECK(trireme_buffer_alloc_kind(rank.communicator, TRIREME_MEMORY_KIND_PINNED, 64, &buffer) ==
          TRIREME_OK);
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(rank.communicator);
    no_complaint();
}

static void bad_devices_are_told(void **state) {
    (void)state;
    run(bad_devices, "mode=lazy");
    run(stands_still, "mode=lazy stall=1");
    run(cannot_map, "mode=lazy vmm=0");
}

/* The device stands still in a copy of a buffer. The caller destroys the buffer all the same. */
static void stuck(void) {
    struct rank rank;
    one_rank(&rank);
    trireme_buffer *const buffer = buffer_of(&rank, TRIREME_MEMORY_KIND_DEVICE, 64);
    trireme_buffer *const other = buffer_of(&rank, TRIREME_MEMORY_KIND_DEVICE, 64);
    void *const data = data_of(other);
    trireme_operation_options options = options_of(&rank);
    options.timeout_ns = 50 * 1000 * 1000;
    const float zeros[4] = {0};
    put(&rank, data_of(buffer), zeros, 4);
    setenv("FAKE_CUDA", "mode=lazy stuck=1", 1);
    CHECK_FAILS(reduce_one(rank.communicator, data_of(buffer), rank.receive, &options),
                TRIREME_ERROR_TIMEOUT, "may still copy");
    trireme_buffer_destroy(buffer);
    trireme_buffer_destroy(other); /* the driver could wait there */
    check_place_of(data, TRIREME_MEMORY_KIND_DEVICE);
    trireme_communicator_destroy(rank.communicator);
    setenv("FAKE_CUDA", "mode=lazy", 1);
    no_complaint(); /* the copy goes on, and finds its memory */
}

static void memory_of_a_copy_that_stands_still_stays(void **state) {
    (void)state;
    run(stuck, "mode=lazy");
}

/* Work of the caller in the default stream reads a buffer that is destroyed meanwhile. */
static void late_release(int index, void *context) {
    const struct timespec moment = {.tv_nsec = 50 * 1000 * 1000};
    struct early *const early = context;
    if (index == 0) {
        trireme_buffer_destroy(early->buffers[0]);
        trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
        CHECK(trireme_memory_get_info(early->data[0], &info) == TRIREME_OK);
        CHECK(info.kind == TRIREME_MEMORY_KIND_HOST); /* it has gone back */
        return;
    }
    nanosleep(&moment, NULL);
    FAKE(fake_holds, "fake_hold")(NULL, 0);
}

static void destroyed_under_work(void) {
    struct early early;
    one_rank(&early.ranks[0]);
    for (int i = 0; i < 2; ++i) {
        early.buffers[i] = buffer_of(&early.ranks[0], TRIREME_MEMORY_KIND_DEVICE, 8);
        early.data[i] = data_of(early.buffers[i]);
    }
    const float here[2] = {3, 4};
    float found[2] = {0};
    put(&early.ranks[0], early.data[0], here, 2);
    FAKE(fake_synchronizes, "fake_synchronize")(0, early.ranks[0].stream);
    FAKE(fake_holds, "fake_hold")(NULL, 1);
    FAKE(fake_reads, "fake_queue_read")(0, NULL, found, early.data[0], sizeof found);
    run_threads(2, late_release, &early);
    CHECK(found[0] == 3 && found[1] == 4);
    /* Of a stream that is recorded into a graph no work is known. So the memory stays. */
    FAKE(fake_captures, "fake_capture")(NULL, 1);
    trireme_buffer_destroy(early.buffers[1]);
    FAKE(fake_captures, "fake_capture")(NULL, 0);
    check_place_of(early.data[1], TRIREME_MEMORY_KIND_DEVICE);
    trireme_communicator_destroy(early.ranks[0].communicator);
    no_complaint();
}

/* The work in the default stream does not end. */
static void destroyed_under_endless_work(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    options.rendezvous = rendezvous;
    options.world_size = 1;
    options.timeout_ns = 50 * 1000 * 1000;
    options.device.kind = TRIREME_DEVICE_CUDA;
    trireme_communicator *communicator = NULL;
    trireme_buffer *buffers[2];
    CHECK(trireme_communicator_create(&options, &communicator) == TRIREME_OK);
    for (int i = 0; i < 2; ++i)
        CHECK(trireme_buffer_alloc(communicator, 64, &buffers[i]) == TRIREME_OK);
    void *const data = data_of(buffers[0]);
    float found = 1;
    FAKE(fake_holds, "fake_hold")(NULL, 1);
    FAKE(fake_reads, "fake_queue_read")(0, NULL, &found, data, sizeof found);
    for (int i = 0; i < 2; ++i) trireme_buffer_destroy(buffers[i]); /* the second waits no more */
    check_place_of(data, TRIREME_MEMORY_KIND_DEVICE);
    trireme_communicator_destroy(communicator);
    FAKE(fake_holds, "fake_hold")(NULL, 0);
    no_complaint(); /* the work goes on, and finds its memory */
    CHECK(found == 0);
}

static void a_buffer_waits_for_the_default_stream(void **state) {
    (void)state;
    run_in_all_modes(destroyed_under_work);
    run(destroyed_under_endless_work, "mode=lazy");
}

/* ---- copies of one rank ---- */

enum { COPIED = (9 << 20) + 5 }; /* three pieces */

static void check_copied(const unsigned char *found, const unsigned char *wanted, uint64_t bytes) {
    CHECK(bytes == 0 || memcmp(found, wanted, bytes) == 0);
}

static void copies(void) {
    static const uint64_t sizes[] = {0, 1, 4095, 4 << 20, COPIED};
    static unsigned char here[COPIED + 1], found[COPIED + 1];
    struct rank rank;
    one_rank(&rank);
    trireme_buffer *const buffer = buffer_of(&rank, TRIREME_MEMORY_KIND_DEVICE, 2 * COPIED + 8);
    trireme_buffer *const pinned = buffer_of(&rank, TRIREME_MEMORY_KIND_PINNED, COPIED);
    unsigned char *const device = data_of(buffer), *const locked = data_of(pinned);
    unsigned char *const second = device + COPIED + 8;
    for (uint64_t i = 0; i < COPIED + 1; ++i)
        here[i] = (unsigned char)((i * 131 >> 3) + (i >> 22) * 7);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        const uint64_t bytes = sizes[i];
        trireme_communicator *const c = rank.communicator;
        memset(found, 7, sizeof found);
        memset(locked, 7, COPIED);
        CHECK(trireme_memory_copy(c, device + 3, here, bytes, rank.stream) == TRIREME_OK);
        CHECK(trireme_memory_copy(c, second, device + 3, bytes, NULL) == TRIREME_OK);
        CHECK(trireme_memory_copy(c, found, second, bytes, rank.stream) == TRIREME_OK);
        check_copied(found, here, bytes);
        CHECK(found[bytes] == 7);
        CHECK(trireme_memory_copy(c, locked, device + 3, bytes, NULL) == TRIREME_OK);
        check_copied(locked, here, bytes);
        CHECK(trireme_memory_copy(c, device + 3, here + 1, bytes, NULL) == TRIREME_OK);
        CHECK(trireme_memory_copy(c, locked, device + 3, bytes, NULL) == TRIREME_OK);
        check_copied(locked, here + 1, bytes);
        CHECK(trireme_memory_copy(c, found, locked, bytes, NULL) == TRIREME_OK);
        check_copied(found, here + 1, bytes);
        CHECK(trireme_memory_copy(c, found, here, bytes, NULL) == TRIREME_OK);
        check_copied(found, here, bytes);
    }
    CHECK(trireme_memory_copy(rank.communicator, NULL, NULL, 0, NULL) == TRIREME_OK);
    trireme_buffer_destroy(buffer);
    trireme_buffer_destroy(pinned);
    trireme_communicator_destroy(rank.communicator);
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
    no_complaint();
}

/* A copy of no bytes, too, returns when the earlier work in its stream is done. */
static void release_later(int index, void *context) {
    const struct rank *const rank = context;
    const struct timespec moment = {.tv_nsec = 30 * 1000 * 1000};
    if (index == 1) {
        nanosleep(&moment, NULL);
        FAKE(fake_holds, "fake_hold")(rank->stream, 0);
        return;
    }
    float found[2] = {0};
    CHECK(trireme_memory_copy(rank->communicator, found, rank->send, 8, rank->stream) ==
          TRIREME_OK);
    CHECK(found[0] == 5 && found[1] == 6);
}

static void refuse_to_copy(struct rank *rank) {
    trireme_communicator *const c = rank->communicator;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    char host[64], rendezvous[64];
    void *const own = FAKE(fake_memory, "fake_device_memory")(0, 64);
    void *const other = FAKE(fake_memory, "fake_device_memory")(1, 64);
    void *const managed = FAKE(fake_allocate, "fake_allocate_area")(3, 0, 64);
    CHECK_FAILS(trireme_memory_copy(NULL, host, own, 8, NULL), TRIREME_ERROR_INVALID_HANDLE,
                "communicator is NULL");
    CHECK_FAILS(trireme_memory_copy(c, NULL, own, 8, NULL), bad, "to is NULL");
    CHECK_FAILS(trireme_memory_copy(c, host, NULL, 8, NULL), bad, "from is NULL");
    CHECK_FAILS(trireme_memory_copy(c, host, host + 7, 8, NULL), bad, "in common");
    CHECK_FAILS(trireme_memory_copy(c, host, own, UINT64_MAX, NULL), bad, "bytes");
    CHECK_FAILS(trireme_memory_copy(c, host, other, 8, NULL), bad,
                "from is memory of CUDA device 1");
    CHECK_FAILS(trireme_memory_copy(c, other, host, 8, NULL), bad, "to is memory of CUDA device 1");
    CHECK_FAILS(trireme_memory_copy(c, host, managed, 8, NULL), bad, "managed memory");
    CHECK_FAILS(trireme_memory_copy(c, host, own, 8, FAKE(fake_foreign, "fake_foreign_stream")(0)),
                bad, "primary context");
    FAKE(fake_captures, "fake_capture")(rank->stream, 1);
    CHECK_FAILS(trireme_memory_copy(c, host, own, 8, rank->stream), TRIREME_ERROR_INVALID_STATE,
                "graph");
    FAKE(fake_captures, "fake_capture")(rank->stream, 0);
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const here = join(0, 1, rendezvous, -1);
    char copy[64] = {0};
    memset(host, 3, sizeof host);
    CHECK(trireme_memory_copy(here, copy, host, 64, NULL) == TRIREME_OK);
    CHECK(memcmp(copy, host, 64) == 0);
    CHECK_FAILS(trireme_memory_copy(here, copy, own, 8, NULL), bad,
                "from is memory of CUDA device 0");
    CHECK_FAILS(trireme_memory_copy(here, own, copy, 8, NULL), bad,
                "to is memory of CUDA device 0");
    CHECK_FAILS(trireme_memory_copy(here, copy, host, 8, rank->stream), bad, "stream is set");
    trireme_communicator_destroy(here);
}

static void copies_wait_and_are_refused(void) {
    struct rank rank;
    one_rank(&rank);
    const float here[2] = {5, 6};
    char host[8];
    FAKE(fake_holds, "fake_hold")(rank.stream, 1);
    put(&rank, rank.send, here, 2);
    run_threads(2, release_later, &rank);
    refuse_to_copy(&rank);
    setenv("FAKE_CUDA", "mode=lazy oom=0", 1);
    static char large[1 << 20];
    CHECK_FAILS(trireme_memory_copy(rank.communicator, large, rank.send, 1 << 10, NULL),
                TRIREME_ERROR_OUT_OF_MEMORY, "CUDA device 0");
    setenv("FAKE_CUDA", "mode=lazy", 1);
    CHECK(trireme_memory_copy(rank.communicator, host, rank.send, 8, NULL) == TRIREME_OK);
    CHECK(memcmp(host, here, 8) == 0);
    CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK); /* the group goes on */
    trireme_communicator_destroy(rank.communicator);
    no_complaint();
}

/* The device stands still in the copy, or before it. */
static void late_copies(void) {
    static const char *const scripts[] = {"mode=lazy stuck=1", "mode=lazy"};
    const float here[2] = {5, 6};
    for (int held = 0; held < 2; ++held) {
        trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
        char rendezvous[64];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        options.rendezvous = rendezvous;
        options.world_size = 1;
        options.timeout_ns = 50 * 1000 * 1000;
        options.device.kind = TRIREME_DEVICE_CUDA;
        trireme_communicator *communicator = NULL;
        trireme_buffer *buffer = NULL;
        CHECK(trireme_communicator_create(&options, &communicator) == TRIREME_OK);
        CHECK(trireme_buffer_alloc(communicator, 8, &buffer) == TRIREME_OK);
        void *const data = data_of(buffer);
        void *const stream = FAKE(fake_stream, "fake_user_stream")(0);
        if (held) FAKE(fake_holds, "fake_hold")(stream, 1);
        FAKE(fake_writes, "fake_queue_write")(0, stream, data, here, sizeof here);
        setenv("FAKE_CUDA", scripts[held], 1);
        static float found[2];
        CHECK_FAILS(trireme_memory_copy(communicator, found, data, 8, stream),
                    TRIREME_ERROR_TIMEOUT, held ? "has not done its work" : "may still copy");
        trireme_buffer_destroy(buffer);
        check_place_of(data, TRIREME_MEMORY_KIND_DEVICE);
        CHECK(found[0] == 0 && found[1] == 0);
        CHECK(trireme_barrier(communicator, NULL) == TRIREME_OK);
        trireme_communicator_destroy(communicator);
        setenv("FAKE_CUDA", "mode=lazy", 1);
        if (held) FAKE(fake_holds, "fake_hold")(stream, 0);
        no_complaint();
    }
}

static void memory_is_copied_between_host_and_device(void **state) {
    (void)state;
    run_in_all_modes(copies);
    run(copies_wait_and_are_refused, "mode=lazy");
    run(late_copies, "mode=lazy");
}

/* ---- operations with a root, of all blocks, and messages ---- */

static float value(int from, int to, int i) {
    return (float)(100 * from + 10 * to + i % 7);
}

/* A block of this rank for each rank, or all the same. */
static void give(const struct rank *rank, int count) {
    static _Thread_local float host[MOST_WORLD * 40];
    for (int to = 0; to < rank->world; ++to) {
        for (int i = 0; i < count; ++i) host[to * count + i] = value(rank->number, to, i);
    }
    put(rank, rank->send, host, (uint64_t)(rank->world * count));
    for (int i = 0; i < MOST_WORLD * 40; ++i) host[i] = -1;
    put(rank, rank->receive, host, MOST_WORLD * 40);
}

static void reduces_to_root(const struct rank *rank, int count, int root) {
    float found[40 + 1];
    const trireme_operation_options options = options_of(rank);
    give(rank, count);
    CHECK(trireme_reduce(rank->communicator, rank->send,
                         rank->number == root ? rank->receive : NULL, (uint64_t)count,
                         TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, root, &options) == TRIREME_OK);
    get(rank, found, rank->receive, (uint64_t)count + 1);
    for (int i = 0; i < count; ++i) {
        float sum = 0;
        for (int from = 0; from < rank->world; ++from) sum += value(from, 0, i);
        CHECK(found[i] == (rank->number == root ? sum : -1));
    }
    CHECK(found[count] == -1);
}

static void gathers_to_root(const struct rank *rank, int count, int root) {
    float found[MOST_WORLD * 40 + 1];
    const trireme_operation_options options = options_of(rank);
    uint64_t counts[MOST_WORLD];
    const int before = rank->number * (rank->number + 1) / 2; /* rank r gives r + 1 elements */
    for (int r = 0; r < rank->world; ++r) counts[r] = (uint64_t)r + 1;
    const bool is_root = rank->number == root;
    give(rank, count);
    CHECK(trireme_gather(rank->communicator, rank->send, is_root ? rank->receive : NULL,
                         (uint64_t)count, TRIREME_DTYPE_F32, root, &options) == TRIREME_OK);
    get(rank, found, rank->receive, (uint64_t)(rank->world * count) + 1);
    for (int i = 0; i < rank->world * count; ++i) {
        CHECK(found[i] == (is_root ? value(i / count, 0, i % count) : -1));
    }
    CHECK(found[rank->world * count] == -1);
    give(rank, 40);
    CHECK(trireme_gather_v(rank->communicator, rank->send, is_root ? rank->receive : NULL, counts,
                           TRIREME_DTYPE_F32, root, &options) == TRIREME_OK);
    get(rank, found, rank->receive, (uint64_t)(before + rank->number + 2));
    for (int i = 0; i <= rank->number; ++i) {
        CHECK(found[before + i] == (is_root ? value(rank->number, 0, i) : -1));
    }
}

static void scatters_from_root(const struct rank *rank, int count, int root) {
    float found[40 + 1];
    const trireme_operation_options options = options_of(rank);
    uint64_t counts[MOST_WORLD];
    for (int r = 0; r < rank->world; ++r) counts[r] = (uint64_t)r + 1;
    const void *const send = rank->number == root ? rank->send : NULL;
    give(rank, count);
    CHECK(trireme_scatter(rank->communicator, send, rank->receive, (uint64_t)count,
                          TRIREME_DTYPE_F32, root, &options) == TRIREME_OK);
    get(rank, found, rank->receive, (uint64_t)count + 1);
    for (int i = 0; i < count; ++i) CHECK(found[i] == value(root, rank->number, i));
    CHECK(found[count] == -1);
    give(rank, 40);
    const int before = rank->number * (rank->number + 1) / 2;
    CHECK(trireme_scatter_v(rank->communicator, send, rank->receive, counts, TRIREME_DTYPE_F32,
                            root, &options) == TRIREME_OK);
    get(rank, found, rank->receive, (uint64_t)rank->number + 2);
    for (int i = 0; i <= rank->number; ++i) {
        CHECK(found[i] == value(root, (before + i) / 40, (before + i) % 40));
    }
    CHECK(found[rank->number + 1] == -1);
}

static void exchanges_blocks(const struct rank *rank, int count) {
    float found[MOST_WORLD * 40 + 1];
    const trireme_operation_options options = options_of(rank);
    give(rank, count);
    CHECK(trireme_all_to_all(rank->communicator, rank->send, rank->receive, (uint64_t)count,
                             TRIREME_DTYPE_F32, &options) == TRIREME_OK);
    get(rank, found, rank->receive, (uint64_t)(rank->world * count) + 1);
    for (int i = 0; i < rank->world * count; ++i) {
        CHECK(found[i] == value(i / count, rank->number, i % count));
    }
    CHECK(found[rank->world * count] == -1);
}

/* Rank r has r + 1 elements. */
static void v_forms(const struct rank *rank) {
    float found[MOST_WORLD * 40];
    const trireme_operation_options options = options_of(rank);
    uint64_t counts[MOST_WORLD];
    for (int r = 0; r < rank->world; ++r) counts[r] = (uint64_t)r + 1;
    const int all = rank->world * (rank->world + 1) / 2;
    give(rank, 40);
    CHECK(trireme_all_gather_v(rank->communicator, rank->send, rank->receive, counts,
                               TRIREME_DTYPE_F32, &options) == TRIREME_OK);
    get(rank, found, rank->receive, (uint64_t)all + 1);
    for (int from = 0, at = 0; from < rank->world; ++from) {
        for (int i = 0; i <= from; ++i) CHECK(found[at++] == value(from, 0, i));
    }
    CHECK(found[all] == -1);
    give(rank, 40);
    CHECK(trireme_reduce_scatter_v(rank->communicator, rank->send, rank->receive, counts,
                                   TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM,
                                   &options) == TRIREME_OK);
    get(rank, found, rank->receive, (uint64_t)rank->number + 2);
    for (int i = 0; i <= rank->number; ++i) {
        const int at = rank->number * (rank->number + 1) / 2 + i;
        float sum = 0;
        for (int from = 0; from < rank->world; ++from) sum += value(from, at / 40, at % 40);
        CHECK(found[i] == sum);
    }
    CHECK(found[rank->number + 1] == -1);
}

/* To the next rank, in a ring. */
static void messages(const struct rank *rank, int count) {
    float found[40 + 1];
    trireme_operation_options options = options_of(rank), buffered = options;
    buffered.flags = TRIREME_OPERATION_FLAG_BUFFERED;
    const int next = (rank->number + 1) % rank->world;
    const int last = (rank->number + rank->world - 1) % rank->world;
    const bool first = rank->number == 0;
    give(rank, count);
    for (int step = 0; step < 2; ++step) {
        if ((step == 0) == first) {
            CHECK(trireme_send(rank->communicator, rank->send, (uint64_t)count, TRIREME_DTYPE_F32,
                               next, 5, rank->world == 1 ? &buffered : &options) == TRIREME_OK);
        } else {
            CHECK(trireme_receive(rank->communicator, rank->receive, (uint64_t)count,
                                  TRIREME_DTYPE_F32, last, 5, &options) == TRIREME_OK);
        }
    }
    get(rank, found, rank->receive, (uint64_t)count + 1);
    for (int i = 0; i < count; ++i) CHECK(found[i] == value(last, 0, i));
    CHECK(found[count] == -1);
}

static void further_operations(int number, void *context) {
    static const int counts[] = {0, 1, 7, 39};
    const struct job *const job = context;
    const struct rank rank = make_rank(number, job->world, job->rendezvous);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
        const int root = (int)i % job->world;
        reduces_to_root(&rank, counts[i], root);
        gathers_to_root(&rank, counts[i], root);
        scatters_from_root(&rank, counts[i], root);
        exchanges_blocks(&rank, counts[i]);
        messages(&rank, counts[i]);
    }
    v_forms(&rank);
    trireme_communicator_destroy(rank.communicator);
}

static void threads_as_ranks(void) {
    static const int worlds[] = {1, 2, 3, 5, 8};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; ++i) {
        struct job job = {.world = worlds[i]};
        unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
        run_threads(job.world, further_operations, &job);
    }
    no_complaint();
}

static void roots_blocks_and_messages(void **state) {
    (void)state;
    run_in_all_modes(threads_as_ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_are_zero_and_go_back),
        cmocka_unit_test(collectives_take_buffers),
        cmocka_unit_test(an_operation_keeps_its_buffers),
        cmocka_unit_test(other_kinds_are_refused),
        cmocka_unit_test(a_device_without_memory_is_a_status),
        cmocka_unit_test(bad_devices_are_told),
        cmocka_unit_test(memory_of_a_copy_that_stands_still_stays),
        cmocka_unit_test(a_buffer_waits_for_the_default_stream),
        cmocka_unit_test(memory_is_copied_between_host_and_device),
        cmocka_unit_test(roots_blocks_and_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
