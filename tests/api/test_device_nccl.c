/*
 * Collectives of device memory by NCCL, over a fake of it: which way is chosen, and the results.
 * The oracle is plain arithmetic in rank order; where a dtype has formulas of its own, it is a
 * communicator of the host.
 */
#include <trireme/trireme.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nccl_ranks.h"

struct job {
    int world;
    char rendezvous[64], host[64];
};

static void begin(struct job *job, int world) {
    job->world = world;
    unique_rendezvous(job->rendezvous, sizeof job->rendezvous);
    unique_rendezvous(job->host, sizeof job->host);
}

static uint64_t noise(uint64_t x) {
    x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
    x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
    return x ^ x >> 33;
}

static void fill_noise(unsigned char *to, size_t bytes, int rank, uint64_t seed) {
    for (size_t i = 0; i < bytes; ++i)
        to[i] = (unsigned char)noise(i * 64 + (uint64_t)rank + seed * 9973);
}

static const uint64_t counts[] = {0, 1, 2, 3, 7, 130};
#define COUNTS (sizeof counts / sizeof *counts)
#define MOST (MOST_WORLD * 130 * sizeof(double))

/* ---- sums, by plain arithmetic ---- */

static float value_of(int rank, uint64_t i) {
    return (float)(int)(noise(i * 8 + (uint64_t)rank) % 2000001 - 1000000) / 7.0f;
}

static void sums_in_rank_order(const struct rank *rank, uint64_t count, bool in_place) {
    static _Thread_local float own[130], found[131];
    const trireme_operation_options options = options_of(rank);
    for (uint64_t i = 0; i < count; ++i) own[i] = value_of(rank->number, i);
    put(rank, rank->send, own, count);
    float *const to = in_place ? rank->send : rank->receive;
    const float mark = 12345;
    put(rank, to + count, &mark, 1);
    CHECK(trireme_all_reduce(rank->communicator, rank->send, to, count, TRIREME_DTYPE_F32,
                             TRIREME_REDUCTION_AVERAGE, &options) == TRIREME_OK);
    get(rank, found, to, count + 1);
    CHECK(found[count] == mark);
    for (uint64_t i = 0; i < count; ++i) {
        float sum = value_of(0, i);
        for (int k = 1; k < rank->world; ++k) sum += value_of(k, i);
        CHECK(found[i] == sum / (float)rank->world);
    }
}

static void scattered_sums(const struct rank *rank, uint64_t count, bool in_place) {
    static _Thread_local float own[4 * 130], found[130];
    const trireme_operation_options options = options_of(rank);
    const uint64_t all = count * (uint64_t)rank->world, first = count * (uint64_t)rank->number;
    for (uint64_t i = 0; i < all; ++i) own[i] = value_of(rank->number, i);
    put(rank, rank->send, own, all);
    float *const to = in_place ? rank->send + first : rank->receive;
    CHECK(trireme_reduce_scatter(rank->communicator, rank->send, to, count, TRIREME_DTYPE_F32,
                                 TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
    get(rank, found, to, count);
    for (uint64_t i = 0; i < count; ++i) {
        float sum = value_of(0, first + i);
        for (int k = 1; k < rank->world; ++k) sum += value_of(k, first + i);
        CHECK(found[i] == sum);
    }
}

static void sums_of_integers(const struct rank *rank, uint64_t count) {
    static _Thread_local int32_t own[130], found[130];
    static const trireme_reduction reductions[] = {TRIREME_REDUCTION_SUM, TRIREME_REDUCTION_PRODUCT,
                                                   TRIREME_REDUCTION_MIN, TRIREME_REDUCTION_MAX};
    const trireme_operation_options options = options_of(rank);
    for (uint64_t i = 0; i < count; ++i) {
        own[i] = (int32_t)(uint32_t)noise(i * 8 + (uint64_t)rank->number);
    }
    for (size_t r = 0; r < 4; ++r) {
        put_bytes(rank, rank->send, own, count * 4);
        CHECK(trireme_all_reduce(rank->communicator, rank->send, rank->receive, count,
                                 TRIREME_DTYPE_I32, reductions[r], &options) == TRIREME_OK);
        get_bytes(rank, found, rank->receive, count * 4);
        for (uint64_t i = 0; i < count; ++i) {
            uint32_t bits = (uint32_t)noise(i * 8);
            for (int k = 1; k < rank->world; ++k) {
                const uint32_t next = (uint32_t)noise(i * 8 + (uint64_t)k);
                if (r == 0) bits += next;
                if (r == 1) bits *= next;
                if (r == 2 && (int32_t)next < (int32_t)bits) bits = next;
                if (r == 3 && (int32_t)next > (int32_t)bits) bits = next;
            }
            CHECK((uint32_t)found[i] == bits);
        }
    }
}

/* ---- bytes that only move ---- */

static void gathers(const struct rank *rank, trireme_dtype dtype, uint64_t count, bool in_place) {
    static _Thread_local unsigned char own[MOST], found[MOST], wanted[MOST];
    const trireme_operation_options options = options_of(rank);
    const size_t bytes = count * trireme_dtype_bytes(dtype);
    fill_noise(own, bytes, rank->number, count + (uint64_t)dtype);
    unsigned char *const all = (unsigned char *)rank->receive;
    void *const from = in_place ? (void *)(all + bytes * (size_t)rank->number) : rank->send;
    put_bytes(rank, from, own, bytes);
    CHECK(trireme_all_gather(rank->communicator, from, all, count, dtype, &options) == TRIREME_OK);
    get_bytes(rank, found, all, bytes * (size_t)rank->world);
    for (int k = 0; k < rank->world; ++k) {
        fill_noise(wanted, bytes, k, count + (uint64_t)dtype);
        CHECK(memcmp(found + bytes * (size_t)k, wanted, bytes) == 0);
    }
}

static void broadcasts(const struct rank *rank, trireme_dtype dtype, uint64_t count, int root) {
    static _Thread_local unsigned char own[MOST], found[MOST], wanted[MOST];
    const trireme_operation_options options = options_of(rank);
    const size_t bytes = count * trireme_dtype_bytes(dtype);
    fill_noise(own, bytes, rank->number, count);
    fill_noise(wanted, bytes, root, count);
    put_bytes(rank, rank->send, own, bytes);
    CHECK(trireme_broadcast(rank->communicator, rank->send, count, dtype, root, &options) ==
          TRIREME_OK);
    get_bytes(rank, found, rank->send, bytes);
    CHECK(memcmp(found, wanted, bytes) == 0);
}

static void exchanges(const struct rank *rank, trireme_dtype dtype, uint64_t count) {
    static _Thread_local unsigned char own[MOST], found[MOST], wanted[MOST];
    const trireme_operation_options options = options_of(rank);
    const size_t bytes = count * trireme_dtype_bytes(dtype), all = bytes * (size_t)rank->world;
    fill_noise(own, all, rank->number, count);
    put_bytes(rank, rank->send, own, all);
    CHECK(trireme_all_to_all(rank->communicator, rank->send, rank->receive, count, dtype,
                             &options) == TRIREME_OK);
    get_bytes(rank, found, rank->receive, all);
    for (int k = 0; k < rank->world; ++k) {
        fill_noise(wanted, all, k, count);
        CHECK(memcmp(found + bytes * (size_t)k, wanted + bytes * (size_t)rank->number, bytes) == 0);
    }
}

static void every_operation(int number, void *context) {
    const struct job *const job = context;
    const struct rank rank = make_rank_on(number, job->world, job->rendezvous, number, NULL);
    check_way(&rank, "not chosen before the first operation");
    for (size_t c = 0; c < COUNTS; ++c) {
        for (int in_place = 0; in_place < 2; ++in_place) {
            sums_in_rank_order(&rank, counts[c], in_place);
            scattered_sums(&rank, counts[c], in_place);
            gathers(&rank, TRIREME_DTYPE_F32, counts[c], in_place);
        }
        sums_of_integers(&rank, counts[c]);
        exchanges(&rank, TRIREME_DTYPE_F8E4M3, counts[c]);
        broadcasts(&rank, TRIREME_DTYPE_I16, counts[c], (int)c % job->world);
        CHECK(trireme_barrier(rank.communicator, NULL) == TRIREME_OK);
    }
    check_way(&rank, "CUDA device");
    check_way(&rank, "NCCL 2.28.9");
    trireme_communicator_destroy(rank.communicator);
}

static void threads_as_ranks(void) {
    for (int world = 1; world <= 4; ++world) {
        struct job job;
        begin(&job, world);
        run_threads(world, every_operation, &job);
    }
    nothing_is_left(4);
    no_complaint();
}

#define FOUR " devices=4"
static const char *const four[] = {"mode=eager" FOUR, "mode=lazy" FOUR, "mode=seeded:1" FOUR,
                                   "mode=seeded:2" FOUR, "mode=seeded:3" FOUR};

static void operations_of_threads(void **state) {
    (void)state;
    for (size_t i = 0; i < count_modes(); ++i) run(threads_as_ranks, four[i]);
}

static void one_process(int number, void *context, struct outcome *outcome) {
    use_fake(four[number % (int)MODES]);
    every_operation(number, context);
    nothing_is_left(4);
    no_complaint();
    outcome->rounds = 1;
}

static void operations_of_processes(void **state) {
    (void)state;
    for (int world = 2; world <= 3; ++world) {
        struct job job = {.world = world};
        struct processes processes;
        unique_host_rendezvous(job.rendezvous, sizeof job.rendezvous);
        start_processes(&processes, world, one_process, &job);
        wait_processes(&processes);
        for (int k = 0; k < world; ++k) {
            assert_int_equal(processes.outcomes[k].exit_code, 0);
            assert_int_equal(processes.outcomes[k].rounds, 1);
        }
        free_processes(&processes);
    }
}

/* ---- sums that are exchanged in several windows of 4 MiB ---- */

#define LONG_PART ((1u << 20) + 3)

static void long_sums(int number, void *context) {
    const struct job *const job = context;
    struct rank rank = make_rank_on(number, 2, job->rendezvous, number, NULL);
    const size_t bytes = 2 * LONG_PART * sizeof(float);
    rank.send = FAKE(fake_memory, "fake_device_memory")(number, bytes);
    rank.receive = FAKE(fake_memory, "fake_device_memory")(number, bytes);
    float *const own = malloc(bytes), *const found = malloc(bytes);
    CHECK(rank.send != NULL && rank.receive != NULL && own != NULL && found != NULL);
    const trireme_operation_options options = options_of(&rank);
    for (uint64_t i = 0; i < 2 * LONG_PART; ++i) own[i] = value_of(number, i);
    put(&rank, rank.send, own, 2 * LONG_PART);
    /* One element less: the second share is the shorter one. */
    const uint64_t count = 2 * LONG_PART - 1;
    CHECK(trireme_all_reduce(rank.communicator, rank.send, rank.receive, count, TRIREME_DTYPE_F32,
                             TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
    get(&rank, found, rank.receive, count);
    for (uint64_t i = 0; i < count; ++i) CHECK(found[i] == value_of(0, i) + value_of(1, i));
    CHECK(trireme_reduce_scatter(rank.communicator, rank.send, rank.receive, LONG_PART,
                                 TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
    get(&rank, found, rank.receive, LONG_PART);
    const uint64_t first = (uint64_t)number * LONG_PART;
    for (uint64_t i = 0; i < LONG_PART; ++i) {
        CHECK(found[i] == value_of(0, first + i) + value_of(1, first + i));
    }
    free(own);
    free(found);
    trireme_communicator_destroy(rank.communicator);
}

static void long_sums_of_threads(void) {
    struct job job;
    begin(&job, 2);
    run_threads(2, long_sums, &job);
    nothing_is_left(2);
    no_complaint();
}

static void long_sums_go_in_windows(void **state) {
    (void)state;
    run(long_sums_of_threads, four[1]);
}

/* ---- children, and two threads of one rank ---- */

static void child(int number, void *context) {
    const struct job *const job = context;
    struct rank rank = make_rank_on(number, 3, job->rendezvous, number, NULL);
    sums_in_rank_order(&rank, 7, false);
    trireme_communicator *const parent = rank.communicator;
    trireme_communicator *part = NULL;
    CHECK(trireme_communicator_split(parent, number == 1 ? 1 : 0, -number, NULL, &part) ==
          TRIREME_OK);
    /* Rank 2 comes first in the child of ranks 0 and 2. */
    int32_t own = -1, world = 0;
    CHECK(trireme_communicator_get_rank(part, &own) == TRIREME_OK);
    CHECK(trireme_communicator_get_world_size(part, &world) == TRIREME_OK);
    CHECK(world == (number == 1 ? 1 : 2) && own == (number == 0 ? 1 : 0));
    struct rank inner = rank;
    inner.communicator = part;
    inner.number = own;
    inner.world = world;
    check_way(&inner, "not chosen");
    sums_in_rank_order(&inner, 9, true);
    check_way(&inner, "NCCL 2.28.9");
    trireme_communicator_destroy(part);
    sums_in_rank_order(&rank, 5, false);
    trireme_communicator_destroy(parent);
}

static void children(void) {
    struct job job;
    begin(&job, 3);
    run_threads(3, child, &job);
    nothing_is_left(3);
    no_complaint();
}

static void children_meet_anew(void **state) {
    (void)state;
    run(children, four[1]);
    run(children, four[4]);
}

struct both {
    struct rank ranks[2];
};

/* Rank 0 begins with the urgent calls, rank 1 with the others: each priority has its own order. */
static void call_both_at_once(int index, void *context) {
    const struct both *const both = context;
    struct rank rank = both->ranks[index / 2];
    const bool urgent = index % 2 != index / 2;
    rank.stream = FAKE(fake_stream, "fake_user_stream")(rank.device);
    rank.send += urgent ? 500 : 0;
    rank.receive += urgent ? 500 : 0;
    trireme_operation_options options = options_of(&rank);
    if (urgent) options.priority = TRIREME_PRIORITY_HIGH;
    for (int round = 0; round < 20; ++round) {
        const float own = (float)(rank.number + round + (urgent ? 100 : 0));
        float found = 0;
        put(&rank, rank.send, &own, 1);
        CHECK(trireme_all_reduce(rank.communicator, rank.send, rank.receive, 1, TRIREME_DTYPE_F32,
                                 TRIREME_REDUCTION_SUM, &options) == TRIREME_OK);
        get(&rank, &found, rank.receive, 1);
        CHECK(found == (float)(1 + 2 * round + (urgent ? 200 : 0)));
    }
}

static void calls_at_once(void) {
    struct both both;
    struct job job;
    begin(&job, 2);
    for (int i = 0; i < 2; ++i) both.ranks[i] = make_rank_on(i, 2, job.rendezvous, i, NULL);
    run_threads(4, call_both_at_once, &both);
    for (int i = 0; i < 2; ++i) trireme_communicator_destroy(both.ranks[i].communicator);
    nothing_is_left(2);
    no_complaint();
}

static void both_priorities_go_at_once(void **state) {
    (void)state;
    for (size_t i = 0; i < count_modes(); ++i) run(calls_at_once, four[i]);
}

static void capabilities(void) {
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.backend = "nccl";
    CHECK_FAILS(trireme_capability(&query), TRIREME_ERROR_UNSUPPORTED, "CUDA devices alone");
    query.device = TRIREME_DEVICE_CUDA;
    query.operation = TRIREME_OPERATION_KIND_ALL_TO_ALL;
    CHECK(trireme_capability(&query) == TRIREME_OK);
}

static void it_is_asked_for(void **state) {
    (void)state;
    run(capabilities, four[0]);
}

/* ---- every dtype and reduction has the host's bits ---- */

static const trireme_dtype dtypes[] = {TRIREME_DTYPE_I8,     TRIREME_DTYPE_U8,
                                       TRIREME_DTYPE_I16,    TRIREME_DTYPE_U16,
                                       TRIREME_DTYPE_I32,    TRIREME_DTYPE_U32,
                                       TRIREME_DTYPE_I64,    TRIREME_DTYPE_U64,
                                       TRIREME_DTYPE_F16,    TRIREME_DTYPE_BF16,
                                       TRIREME_DTYPE_F32,    TRIREME_DTYPE_F64,
                                       TRIREME_DTYPE_F8E4M3, TRIREME_DTYPE_F8E5M2,
                                       TRIREME_DTYPE_BOOL,   TRIREME_DTYPE_BYTES};

static void compare_one(const struct rank *rank, trireme_communicator *host, trireme_dtype dtype,
                        trireme_reduction reduction, uint64_t count) {
    static _Thread_local unsigned char own[MOST], wanted[MOST], found[MOST];
    const size_t bytes = count * trireme_dtype_bytes(dtype), all = bytes * (size_t)rank->world;
    trireme_operation_options options = options_of(rank);
    options.scale = reduction == TRIREME_REDUCTION_SCALED_SUM ? 0.3 : 0;
    fill_noise(own, all, rank->number, count);
    trireme_operation_options plain = TRIREME_OPERATION_OPTIONS_INIT;
    plain.flags = TRIREME_OPERATION_FLAG_REPRODUCIBLE;
    plain.scale = options.scale;
    const trireme_status status =
        trireme_all_reduce(host, own, wanted, count, dtype, reduction, &plain);
    put_bytes(rank, rank->send, own, all);
    CHECK(trireme_all_reduce(rank->communicator, rank->send, rank->receive, count, dtype, reduction,
                             &options) == status);
    if (status != TRIREME_OK) return; /* such a sum has no meaning */
    get_bytes(rank, found, rank->receive, bytes);
    CHECK(memcmp(found, wanted, bytes) == 0);
    CHECK(trireme_reduce_scatter(host, own, wanted, count, dtype, reduction, &plain) == TRIREME_OK);
    CHECK(trireme_reduce_scatter(rank->communicator, rank->send, rank->receive, count, dtype,
                                 reduction, &options) == TRIREME_OK);
    get_bytes(rank, found, rank->receive, bytes);
    CHECK(memcmp(found, wanted, bytes) == 0);
}

static void compare_bits(int number, void *context) {
    const struct job *const job = context;
    const struct rank rank = make_rank_on(number, job->world, job->rendezvous, number, NULL);
    trireme_communicator *const host = join(number, job->world, job->host, -1);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; ++d) {
        for (trireme_reduction r = TRIREME_REDUCTION_SUM; r <= TRIREME_REDUCTION_SCALED_SUM; ++r) {
            compare_one(&rank, host, dtypes[d], r, 37);
        }
        gathers(&rank, dtypes[d], 5, false);
        exchanges(&rank, dtypes[d], 5);
        broadcasts(&rank, dtypes[d], 5, job->world - 1);
    }
    check_way(&rank, "NCCL");
    trireme_communicator_destroy(host);
    trireme_communicator_destroy(rank.communicator);
}

static void bits_of_threads(void) {
    for (int world = 1; world <= 4; ++world) {
        struct job job;
        begin(&job, world);
        run_threads(world, compare_bits, &job);
    }
    no_complaint();
}

static void bits_are_those_of_the_host(void **state) {
    (void)state;
    run(bits_of_threads, four[1]);
    run(bits_of_threads, four[2]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_of_threads),      cmocka_unit_test(operations_of_processes),
        cmocka_unit_test(long_sums_go_in_windows),    cmocka_unit_test(children_meet_anew),
        cmocka_unit_test(both_priorities_go_at_once), cmocka_unit_test(it_is_asked_for),
        cmocka_unit_test(bits_are_those_of_the_host),
    };
    return cmocka_run_group_tests(tests, make_nccl_folder, remove_nccl_folder);
}
