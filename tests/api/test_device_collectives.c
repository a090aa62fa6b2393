/*
 * Collectives of memory of a device, over a driver of the tests. It runs work at once, as late as
 * it may or by chance, and watches for races. The oracle is plain arithmetic, and for the bits of
 * rounded sums a communicator of the host.
 */
#include <trireme/trireme.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "device_ranks.h"
#include "processes.h"

/* ---- results ---- */

/* Small whole numbers, whose sums are exact. */
static float number_of(int rank, uint64_t i) {
    return (float)((int)((i * 7 + (uint64_t)rank * 13) % 101) - 50);
}

static void fill_numbers(float *to, int rank, uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) to[i] = number_of(rank, first + i);
}

static void all_reduces(const struct rank *rank, uint64_t count, int in_place) {
    static _Thread_local float host[MOST_COUNT], found[MOST_COUNT + 1];
    const trireme_operation_options options = options_of(rank);
    fill_numbers(host, rank->number, 0, count);
    put(rank, rank->send, host, count);
    float *const to = in_place ? rank->send : rank->receive;
    const float mark = 12345;
    put(rank, to + count, &mark, 1);
    CHECK(trireme_all_reduce(rank->communicator, rank->send, to, count, TRIREME_DTYPE_F32,
                             TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
    get(rank, found, to, count + 1);
    CHECK(found[count] == mark);
    for (uint64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (int k = 0; k < rank->world; ++k) sum += number_of(k, i);
        CHECK(found[i] == sum);
    }
}

static void reduce_scatters(const struct rank *rank, uint64_t count, int in_place) {
    static _Thread_local float host[MOST_WORLD * MOST_COUNT], found[MOST_COUNT];
    const trireme_operation_options options = options_of(rank);
    const uint64_t all = count * (uint64_t)rank->world, first = count * (uint64_t)rank->number;
    fill_numbers(host, rank->number, 0, all);
    put(rank, rank->send, host, all);
    float *const to = in_place ? rank->send + first : rank->receive;
    CHECK(trireme_reduce_scatter(rank->communicator, rank->send, to, count, TRIREME_DTYPE_F32,
                                 TRIREME_REDUCTION_MAX, &options) == TRIREME_OK);
    get(rank, found, to, count);
    for (uint64_t i = 0; i < count; ++i) {
        float most = -INFINITY;
        for (int k = 0; k < rank->world; ++k) most = fmaxf(most, number_of(k, first + i));
        CHECK(found[i] == most);
    }
}

static void all_gathers(const struct rank *rank, uint64_t count, int in_place) {
    static _Thread_local float host[MOST_COUNT], found[MOST_WORLD * MOST_COUNT];
    const trireme_operation_options options = options_of(rank);
    const uint64_t all = count * (uint64_t)rank->world, first = count * (uint64_t)rank->number;
    fill_numbers(host, rank->number, 0, count);
    float *const from = in_place ? rank->receive + first : rank->send;
    put(rank, from, host, count);
    CHECK(trireme_all_gather(rank->communicator, from, rank->receive, count, TRIREME_DTYPE_F32,
                             &options) == TRIREME_OK);
    get(rank, found, rank->receive, all);
    for (uint64_t i = 0; i < all; ++i) {
        CHECK(found[i] == number_of((int)(i / count), i % count));
    }
}

static void all_to_alls(const struct rank *rank, uint64_t count) {
    static _Thread_local float host[MOST_WORLD * MOST_COUNT], found[MOST_WORLD * MOST_COUNT];
    const trireme_operation_options options = options_of(rank);
    const uint64_t all = count * (uint64_t)rank->world, first = count * (uint64_t)rank->number;
    fill_numbers(host, rank->number, 0, all);
    put(rank, rank->send, host, all);
    CHECK(trireme_all_to_all(rank->communicator, rank->send, rank->receive, count,
                             TRIREME_DTYPE_F32, &options) == TRIREME_OK);
    get(rank, found, rank->receive, all);
    for (uint64_t i = 0; i < all; ++i) {
        CHECK(found[i] == number_of((int)(i / count), first + i % count));
    }
}

static void broadcasts(const struct rank *rank, uint64_t count, int root) {
    static _Thread_local float host[MOST_COUNT], found[MOST_COUNT];
    const trireme_operation_options options = options_of(rank);
    fill_numbers(host, rank->number, 5, count);
    put(rank, rank->send, host, count);
    CHECK(trireme_broadcast(rank->communicator, rank->send, count, TRIREME_DTYPE_F32, root,
                            &options) == TRIREME_OK);
    get(rank, found, rank->send, count);
    for (uint64_t i = 0; i < count; ++i) CHECK(found[i] == number_of(root, 5 + i));
}

struct job {
    int world;
    char rendezvous[64];
};

static void every_operation(int number, void *context) {
    static const uint64_t counts[] = {0, 1, 7, 129, MOST_COUNT - 1};
    const struct job *const job = context;
    const struct rank rank = make_rank(number, job->world, job->rendezvous);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
        for (int in_place = 0; in_place < 2; ++in_place) {
            all_reduces(&rank, counts[i], in_place);
            reduce_scatters(&rank, counts[i], in_place);
            all_gathers(&rank, counts[i], in_place);
        }
        all_to_alls(&rank, counts[i]);
        broadcasts(&rank, counts[i], (int)i % job->world);
        CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK);
    }
    trireme_communicator_destroy(rank.communicator);
}

static void threads_as_ranks(void) {
    static const int worlds[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; ++i) {
        struct job job = {.world = worlds[i]};
        unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
        run_threads(job.world, every_operation, &job);
    }
    no_complaint();
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
    CHECK(FAKE(fake_retained, "fake_retained_count")(1) == 0);
}

static void operations_of_threads(void **state) {
    (void)state;
    run_in_all_modes(threads_as_ranks);
}

static void one_process(int number, void *context, struct outcome *outcome) {
    const struct job *const job = context;
    use_fake(modes[(number + 1) % (int)MODES]);
    every_operation(number, context);
    no_complaint();
    outcome->rounds = job->world;
}

static void operations_of_processes(void **state) {
    (void)state;
    static const int worlds[] = {2, 3, 5};
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; ++i) {
        struct job job = {.world = worlds[i]};
        struct processes processes;
        snprintf(job.rendezvous, sizeof job.rendezvous, "host://device-%u-%d", own_number(),
                 job.world);
        start_processes(&processes, job.world, one_process, &job);
        wait_processes(&processes);
        for (int k = 0; k < job.world; ++k) {
            assert_int_equal(processes.outcomes[k].exit_code, 0);
            assert_int_equal(processes.outcomes[k].rounds, job.world);
        }
        free_processes(&processes);
    }
}

/* ---- the bits ---- */

/* Any bits: rounded sums, subnormals, infinities, NaN. */
static uint64_t noise(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static void compare_bits(int number, void *context) {
    static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64, TRIREME_DTYPE_F16,
                                           TRIREME_DTYPE_BF16, TRIREME_DTYPE_F8E4M3};
    static const trireme_reduction reductions[] = {TRIREME_REDUCTION_SUM, TRIREME_REDUCTION_AVERAGE,
                                                   TRIREME_REDUCTION_SCALED_SUM};
    struct job *const jobs = context;
    const struct rank rank = make_rank(number, jobs[0].world, jobs[0].rendezvous);
    trireme_communicator *const host = join(number, jobs[1].world, jobs[1].rendezvous, -1);
    const uint64_t count = 333;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
        for (size_t k = 0; k < sizeof reductions / sizeof *reductions; ++k) {
            const size_t bytes = count * trireme_dtype_bytes(dtypes[i]);
            static _Thread_local unsigned char bits[8 * 333], wanted[8 * 333], found[8 * 333];
            for (size_t b = 0; b < bytes; ++b) {
                bits[b] = (unsigned char)noise(b * 64 + (uint64_t)number * 8 + i);
            }
            trireme_operation_options options = options_of(&rank);
            options.flags = k == 0 ? TRIREME_OPERATION_FLAG_REPRODUCIBLE : 0;
            options.scale = k == 2 ? 0.3 : 0;
            FAKE(fake_writes, "fake_queue_write")(rank.device, rank.stream, rank.send, bits, bytes);
            CHECK(trireme_all_reduce(rank.communicator, rank.send, rank.receive, count, dtypes[i],
                                     reductions[k], &options) == TRIREME_OK);
            FAKE(fake_reads, "fake_queue_read")
            (rank.device, rank.stream, found, rank.receive, bytes);
            FAKE(fake_synchronizes, "fake_synchronize")(rank.device, rank.stream);
            options.stream = (trireme_stream){0};
            CHECK(trireme_all_reduce(host, bits, wanted, count, dtypes[i], reductions[k],
                                     &options) == TRIREME_OK);
            CHECK(memcmp(found, wanted, bytes) == 0);
        }
    }
    trireme_communicator_destroy(host);
    trireme_communicator_destroy(rank.communicator);
}

static void bits_of_threads(void) {
    struct job jobs[2] = {{.world = 3}, {.world = 3}};
    for (int i = 0; i < 2; ++i) unique_rendezvous(jobs[i].rendezvous, sizeof jobs[i].rendezvous);
    run_threads(3, compare_bits, jobs);
    no_complaint();
}

static void bits_are_those_of_the_host(void **state) {
    (void)state;
    run_in_all_modes(bits_of_threads);
}

/* ---- two threads of one rank, and children ---- */

struct pair_of_channels {
    struct rank ranks[2];
};

static void urgent_and_normal(int index, void *context) {
    const struct pair_of_channels *const pair = context;
    struct rank rank = pair->ranks[index / 2];
    const uint64_t offset = index % 2 == 0 ? 0 : MOST_COUNT / 2;
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    rank.stream = FAKE(fake_stream, "fake_user_stream")(rank.device);
    options.stream = (trireme_stream){.kind = TRIREME_DEVICE_CUDA, .native = rank.stream};
    if (index % 2 == 1) options.priority = TRIREME_PRIORITY_HIGH;
    for (int round = 0; round < 20; ++round) {
        float number = (float)(index + round), found = 0;
        put(&rank, rank.send + offset, &number, 1);
        CHECK(trireme_all_reduce(rank.communicator, rank.send + offset, rank.receive + offset, 1,
                                 TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
        get(&rank, &found, rank.receive + offset, 1);
        CHECK(found == (float)(2 * round + 2 * (index % 2) + 2));
    }
}

static void calls_at_once(void) {
    struct pair_of_channels pair;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    for (int i = 0; i < 2; ++i) pair.ranks[i] = make_rank(i, 2, rendezvous);
    run_threads(4, urgent_and_normal, &pair);
    for (int i = 0; i < 2; ++i) trireme_communicator_destroy(pair.ranks[i].communicator);
    no_complaint();
}

static void threads_of_one_rank_call_at_once(void **state) {
    (void)state;
    run_in_all_modes(calls_at_once);
}

static void child_of(int number, void *context) {
    const struct job *const job = context;
    struct rank rank = make_rank(number, job->world, job->rendezvous);
    trireme_communicator *const parent = rank.communicator;
    CHECK(trireme_communicator_split(parent, number % 2, number, NULL, &rank.communicator) ==
          TRIREME_OK);
    trireme_communicator_destroy(parent);
    float number_here = 1, sum = 0;
    const trireme_operation_options options = options_of(&rank);
    CHECK_FAILS(trireme_all_reduce(rank.communicator, &number_here, rank.receive, 1,
                                   TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, &options),
                TRIREME_ERROR_INVALID_ARGUMENT, "send is memory of the host");
    put(&rank, rank.send, &number_here, 1);
    CHECK(trireme_all_reduce(rank.communicator, rank.send, rank.receive, 1, TRIREME_DTYPE_F32,
                             TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
    get(&rank, &sum, rank.receive, 1);
    CHECK(sum == (float)((job->world + 1 - number % 2) / 2));
    trireme_communicator_destroy(rank.communicator);
}

static void children(void) {
    struct job job = {.world = 3};
    unique_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(3, child_of, &job);
    no_complaint();
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
}

static void children_work_on_their_parents_device(void **state) {
    (void)state;
    run(children, "mode=lazy");
}

/* ---- refusals ---- */

static void other_memory(void) {
    char rendezvous[64], host_rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    unique_rendezvous(host_rendezvous, sizeof host_rendezvous);
    const struct rank rank = make_rank(0, 1, rendezvous);
    trireme_communicator *const host = join(0, 1, host_rendezvous, -1);
    float here[4] = {1, 2, 3, 4};
    void *const pinned = FAKE(fake_allocate, "fake_allocate_area")(1, 0, 64);
    void *const managed = FAKE(fake_allocate, "fake_allocate_area")(3, 0, 64);
    void *const other = FAKE(fake_memory, "fake_device_memory")(1, 64);
    char *const end = (char *)FAKE(fake_memory, "fake_device_memory")(0, 4096) + 4096 - 8;
    trireme_communicator *const on_device = rank.communicator;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    CHECK_FAILS(reduce_one(on_device, here, rank.receive, NULL), bad, "trireme_all_reduce: send is",
                "send is memory of the host", "works on CUDA device 0");
    CHECK_FAILS(reduce_one(on_device, rank.send, here, NULL), bad, "receive is memory of the host");
    CHECK_FAILS(reduce_one(on_device, rank.send, managed, NULL), bad, "receive is managed memory");
    CHECK_FAILS(reduce_one(on_device, other, rank.receive, NULL), bad,
                "send is memory of CUDA device 1");
    CHECK_FAILS(reduce_one(on_device, end, rank.receive, NULL), bad, "send ends in memory of");
    CHECK_FAILS(trireme_broadcast(on_device, here, 4, TRIREME_DTYPE_F32, 0, NULL), bad,
                "data is memory of the host");
    CHECK_FAILS(reduce_one(host, rank.send, here, NULL), bad, "send is memory of CUDA device 0",
                "works on memory of the host");
    CHECK_FAILS(reduce_one(host, here, rank.receive, NULL), bad, "receive is memory of CUDA");
    trireme_request *request = NULL;
    CHECK_FAILS(trireme_broadcast_start(host, rank.send, 4, TRIREME_DTYPE_F32, 0, NULL, &request),
                bad, "data is memory of CUDA device 0");
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
    trireme_operation_options buffered = TRIREME_OPERATION_OPTIONS_INIT;
    buffered.flags = TRIREME_OPERATION_FLAG_BUFFERED;
    trireme_message_info info = TRIREME_MESSAGE_INFO_INIT;
    const char *const data = "data is memory of CUDA device 0, but the communicator works on";
    CHECK_FAILS(trireme_send(host, rank.send, 4, f32, 0, 1, NULL), bad, data);
    CHECK_FAILS(trireme_send(host, rank.send, 4, f32, 0, 1, &buffered), bad, data);
    CHECK_FAILS(trireme_send_start(host, rank.send, 4, f32, 0, 1, NULL, &request), bad, data);
    CHECK_FAILS(trireme_receive(host, rank.receive, 4, f32, 0, 1, NULL), bad, data);
    CHECK_FAILS(trireme_receive_start(host, rank.receive, 4, f32, 0, 1, NULL, &request), bad, data);
    CHECK_FAILS(trireme_receive_message(host, rank.receive, 4, f32, 0, 1, NULL, &info), bad, data);
    CHECK_FAILS(trireme_send_receive(host, rank.send, 4, 0, 1, here, 4, 0, 1, f32, NULL), bad,
                data);
    CHECK_FAILS(trireme_send_receive(host, here, 4, 0, 1, rank.receive, 4, 0, 1, f32, NULL), bad,
                data);
    const void *const sends[] = {here, rank.send};
    void *const receives[] = {pinned, rank.receive}, *const places[] = {here, pinned};
    const uint64_t counts[] = {4, 4};
    CHECK_FAILS(trireme_all_reduce_list(host, sends, places, counts, 2, f32, TRIREME_REDUCTION_SUM,
                                        NULL),
                bad, "entry 1: send is memory of CUDA device 0");
    CHECK_FAILS(trireme_broadcast_list(host, receives, counts, 2, f32, 0, NULL), bad,
                "entry 1: data is memory of CUDA device 0");
    const char *const send = "send is memory of CUDA device 0";
    CHECK_FAILS(trireme_all_gather_v(host, rank.send, pinned, counts, f32, NULL), bad, send);
    CHECK_FAILS(trireme_all_to_all(host, rank.send, pinned, 4, f32, NULL), bad, send);
    CHECK_FAILS(trireme_reduce(host, rank.send, pinned, 4, f32, TRIREME_REDUCTION_SUM, 0, NULL),
                bad, send);
    CHECK_FAILS(trireme_gather(host, rank.send, pinned, 4, f32, 0, NULL), bad, send);
    CHECK_FAILS(trireme_scatter(host, rank.send, pinned, 4, f32, 0, NULL), bad, send);
    CHECK_FAILS(trireme_all_to_all_v(host, rank.send, counts, pinned, counts, f32, NULL), bad,
                send);
    CHECK_FAILS(trireme_all_to_all_v(host, here, counts, rank.receive, counts, f32, NULL), bad,
                "receive is memory of CUDA device 0");
    trireme_buffer *buffer = NULL;
    uint64_t found_counts[1] = {0};
    CHECK_FAILS(trireme_broadcast_to_buffer(host, rank.send, 4, f32, 0, NULL, &buffer), bad, data);
    CHECK_FAILS(trireme_scatter_to_buffer(host, rank.send, counts, f32, 0, NULL, &buffer), bad,
                send);
    CHECK_FAILS(trireme_all_gather_to_buffer(host, rank.send, 4, f32, NULL, found_counts, &buffer),
                bad, send);
    CHECK(request == NULL && buffer == NULL);
    /* Both groups go on; memory that is pinned or managed is the host's, too. */
    float found[4] = {0};
    put(&rank, rank.send, here, 4);
    CHECK(reduce_one(host, here, pinned, NULL) == TRIREME_OK);
    const trireme_operation_options options = options_of(&rank);
    CHECK(reduce_one(on_device, rank.send, rank.receive, &options) == TRIREME_OK);
    get(&rank, found, rank.receive, 4);
    CHECK(memcmp(found, here, sizeof here) == 0 && memcmp(pinned, here, sizeof here) == 0);
    trireme_communicator_destroy(host);
    trireme_communicator_destroy(on_device);
    no_complaint();
}

static void other_memory_is_refused_by_its_kind(void **state) {
    (void)state;
    run(other_memory, "mode=lazy");
}

static void other_streams(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    const struct rank rank = make_rank(0, 1, rendezvous);
    trireme_operation_options options = options_of(&rank);
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    options.stream.kind = TRIREME_DEVICE_HOST;
    CHECK_FAILS(reduce_one(rank.communicator, rank.send, rank.receive, &options), bad,
                "options.stream");
    options.stream.kind = 0; /* with a handle */
    CHECK_FAILS(reduce_one(rank.communicator, rank.send, rank.receive, &options), bad,
                "options.stream");
    options.stream.kind = TRIREME_DEVICE_CUDA;
    options.stream.reserved = 1;
    CHECK_FAILS(reduce_one(rank.communicator, rank.send, rank.receive, &options), bad,
                "options.stream");
    options.stream.reserved = 0;
    options.stream.native = FAKE(fake_foreign, "fake_foreign_stream")(0);
    CHECK_FAILS(reduce_one(rank.communicator, rank.send, rank.receive, &options), bad,
                "primary context");
    options.stream.native = rank.stream;
    FAKE(fake_captures, "fake_capture")(rank.stream, 1);
    CHECK_FAILS(reduce_one(rank.communicator, rank.send, rank.receive, &options),
                TRIREME_ERROR_INVALID_STATE, "recorded into a graph");
    FAKE(fake_captures, "fake_capture")(rank.stream, 0);
    const float zeros[4] = {0};
    put(&rank, rank.send, zeros, 4);
    /* Others record into a graph meanwhile. */
    void *const recorded = FAKE(fake_stream, "fake_user_stream")(0);
    FAKE(fake_captures, "fake_capture")(recorded, 1);
    CHECK(reduce_one(rank.communicator, rank.send, rank.receive, &options) == TRIREME_OK);
    FAKE(fake_captures, "fake_capture")(recorded, 0);
    CHECK(FAKE(fake_modes, "fake_capture_mode")() == 0);
    trireme_communicator_destroy(rank.communicator);
    no_complaint();
}

static void other_streams_are_refused(void **state) {
    (void)state;
    run(other_streams, "mode=lazy");
}

static void not_yet(void) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    const struct rank rank = make_rank(0, 1, rendezvous);
    trireme_communicator *const on_device = rank.communicator;
    const trireme_status no = TRIREME_ERROR_UNSUPPORTED;
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
    uint64_t counts[] = {4};
    trireme_buffer *buffer = NULL;
    CHECK_FAILS(trireme_broadcast_to_buffer(on_device, rank.send, 4, f32, 0, NULL, &buffer), no,
                "works on CUDA device 0", "does not work yet", "docs/gpus.md");
    CHECK_FAILS(trireme_scatter_to_buffer(on_device, rank.send, counts, f32, 0, NULL, &buffer), no,
                "CUDA device 0");
    CHECK_FAILS(trireme_all_gather_to_buffer(on_device, rank.send, 4, f32, NULL, counts, &buffer),
                no, "CUDA device 0");
    CHECK_FAILS(trireme_receive_to_buffer(on_device, f32, 0, 1, NULL, NULL, &buffer), no,
                "CUDA device 0");
    trireme_rebalance_options rebalance = TRIREME_REBALANCE_OPTIONS_INIT;
    rebalance.communicator = on_device;
    CHECK_FAILS(trireme_parallel_rebalance(NULL, NULL, &rebalance, NULL), no, "CUDA device 0");
    trireme_mesh_options mesh_options = TRIREME_MESH_OPTIONS_INIT;
    const char *const axis = "data";
    const int32_t size = 1;
    trireme_mesh *mesh = NULL;
    mesh_options.axis_names = &axis;
    mesh_options.axis_sizes = &size;
    mesh_options.axis_count = 1;
    CHECK_FAILS(trireme_mesh_create(on_device, &mesh_options, &mesh), no, "CUDA device 0");
    CHECK(buffer == NULL && mesh == NULL);
    trireme_communicator_destroy(on_device);
    no_complaint();
}

static void operations_without_devices_say_so(void **state) {
    (void)state;
    run(not_yet, "mode=lazy");
}

static void no_such_device(void) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    trireme_communicator *communicator = NULL;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    options.rendezvous = rendezvous;
    options.world_size = 1;
    options.device = (trireme_device){TRIREME_DEVICE_CUDA, 2};
    CHECK_FAILS(trireme_communicator_create(&options, &communicator),
                TRIREME_ERROR_INVALID_ARGUMENT, "options.device", "index is 2", "2 CUDA devices");
    options.device.index = -1;
    CHECK_FAILS(trireme_communicator_create(&options, &communicator),
                TRIREME_ERROR_INVALID_ARGUMENT, "options.device", "index is -1");
    CHECK(communicator == NULL);
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.device = TRIREME_DEVICE_CUDA;
    CHECK(trireme_capability(&query) == TRIREME_OK);
    query.operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
    CHECK(trireme_capability(&query) == TRIREME_OK);
    query.operation = TRIREME_OPERATION_KIND_SEND;
    CHECK(trireme_capability(&query) == TRIREME_OK);
    query.operation = TRIREME_OPERATION_KIND_PROBE;
    CHECK(trireme_capability(&query) == TRIREME_OK);
    query.operation = TRIREME_OPERATION_KIND_ALL_TO_ALL_V;
    CHECK(trireme_capability(&query) == TRIREME_OK);
    CHECK(FAKE(fake_retained, "fake_retained_count")(0) == 0);
}

static void no_device(void) {
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.device = TRIREME_DEVICE_CUDA;
    CHECK_FAILS(trireme_capability(&query), TRIREME_ERROR_UNSUPPORTED, "no CUDA device");
}

static void devices_that_are_not_there(void **state) {
    (void)state;
    run(no_such_device, "");
    run(no_device, "devices=0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_of_threads),
        cmocka_unit_test(operations_of_processes),
        cmocka_unit_test(bits_are_those_of_the_host),
        cmocka_unit_test(threads_of_one_rank_call_at_once),
        cmocka_unit_test(children_work_on_their_parents_device),
        cmocka_unit_test(other_memory_is_refused_by_its_kind),
        cmocka_unit_test(other_streams_are_refused),
        cmocka_unit_test(operations_without_devices_say_so),
        cmocka_unit_test(devices_that_are_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
