/*
 * One rank of a job that mpirun has started, in one of several parts. Every element is compared
 * with plain arithmetic. Exit status 0: all is well; it reports failures on standard error.
 *
 * usage: job PART [RENDEZVOUS [BACKEND]]
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "numbers.h"
#include "ranks.h"

#define COUNT_OF(a) (sizeof(a) / sizeof *(a))
#define MILLISECOND_NS 1000000ull

static struct verdict verdict;
static const char *rendezvous = "mpi://";
static const char *backend = NULL;
/* Reproducible calls are the library's own everywhere: where MPI moves the bytes they begin at
 * once. */
static bool at_once = false;

static trireme_operation_options options_of(uint64_t timeout_ns) {
    trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
    options.timeout_ns = timeout_ns;
    if (at_once) options.flags = TRIREME_OPERATION_FLAG_REPRODUCIBLE;
    return options;
}

static trireme_status join_within(uint64_t timeout_ns, trireme_communicator **out) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = rendezvous;
    options.backend = backend;
    options.timeout_ns = timeout_ns;
    return trireme_communicator_create(&options, out);
}

static trireme_communicator *join(void) {
    trireme_communicator *communicator = NULL;
    if (join_within(LONG_NS, &communicator) != TRIREME_OK) {
        fprintf(stderr, "cannot join: %s\n", trireme_last_error());
        exit(3);
    }
    return communicator;
}

static int rank_of(trireme_communicator *communicator) {
    int32_t rank = -1;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_get_rank(communicator, &rank));
    return rank;
}

static int size_of(trireme_communicator *communicator) {
    int32_t size = 0;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_get_world_size(communicator, &size));
    return size;
}

static unsigned char pattern(int rank, uint64_t index) {
    return (unsigned char)(index * 31 + index / 251 + (uint64_t)rank * 57 + 1);
}

/* The place of the rank's own block in the reduction's input, in elements. */
static uint64_t first_of(const struct call *call, int rank) {
    uint64_t first = 0;
    if (call->operation == TRIREME_OPERATION_KIND_REDUCE_SCATTER)
        return call->count * (uint64_t)rank;
    if (call->operation == TRIREME_OPERATION_KIND_REDUCE_SCATTER_V) {
        for (int i = 0; i < rank; ++i) first += call->counts[i];
    }
    return first;
}

static void
check(trireme_communicator *communicator, const struct call *call, bool in_place, bool started) {
    const int rank = rank_of(communicator), n = size_of(communicator);
    const uint64_t size = trireme_dtype_bytes(call->dtype), salt = call->count + 7;
    struct call_memory memory;
    if (!allocate_call(communicator, call, rank, n, false, &memory)) abort();
    struct call_memory used = memory;
    const uint64_t first = first_of(call, rank);
    if (in_place && reduces(call->operation) && used.receive_bytes > 0) {
        used.receive = used.send + first * size;
    }
    if (reduces(call->operation)) {
        fill_contribution(call->dtype, call->reduction, rank, salt, used.send, 0,
                          used.send_bytes / size);
    } else if (call->operation == TRIREME_OPERATION_KIND_BROADCAST) {
        for (uint64_t i = 0; rank == call->root && i < used.receive_bytes; ++i) {
            used.receive[i] = pattern(rank, i);
        }
    } else {
        for (uint64_t i = 0; i < used.send_bytes; ++i) used.send[i] = pattern(rank, i);
    }
    EXPECT_STATUS(&verdict, TRIREME_OK, run_call(communicator, call, &used, started, LONG_NS));
    if (reduces(call->operation)) {
        EXPECT(&verdict, is_reduced(call->dtype, call->reduction, call->scale, n, salt,
                                    used.receive, first, used.receive_bytes / size));
    } else {
        bool right = true;
        for (uint64_t i = 0; i < used.receive_bytes; ++i) {
            const struct origin origin = origin_of(call, rank, n, i / size);
            right =
                right && used.receive[i] == pattern(origin.source, origin.index * size + i % size);
        }
        EXPECT(&verdict, right);
    }
    if (verdict.text[0] != 0) {
        fprintf(stderr, "rank %d of %d: %s of %llu %s, %s: %s\n", rank, n,
                operation_text(call->operation), (unsigned long long)call->count,
                trireme_dtype_name(call->dtype), trireme_reduction_name(call->reduction),
                verdict.text);
        exit(1);
    }
    free_call(&memory, false);
}

static struct call make(trireme_operation_kind operation, trireme_dtype dtype, trireme_reduction r,
                        uint64_t count, uint64_t number, int n) {
    struct call call = {.operation = operation, .dtype = dtype, .reduction = r, .count = count};
    if (r == TRIREME_REDUCTION_SCALED_SUM) call.scale = 0.375;
    if (has_root(operation)) call.root = (int32_t)(number % (uint64_t)n);
    for (int i = 0; is_v_form(operation) && i < MOST_RANKS; ++i) {
        call.counts[i] = ((uint64_t)i * 5 + number) % 7 * count / 3;
    }
    return call;
}

static const trireme_operation_kind reducing[] = {TRIREME_OPERATION_KIND_ALL_REDUCE,
                                                  TRIREME_OPERATION_KIND_REDUCE_SCATTER,
                                                  TRIREME_OPERATION_KIND_REDUCE_SCATTER_V,
                                                  TRIREME_OPERATION_KIND_REDUCE};
static const trireme_operation_kind moving[] = {TRIREME_OPERATION_KIND_ALL_GATHER,
                                                TRIREME_OPERATION_KIND_ALL_GATHER_V,
                                                TRIREME_OPERATION_KIND_BROADCAST,
                                                TRIREME_OPERATION_KIND_GATHER,
                                                TRIREME_OPERATION_KIND_GATHER_V,
                                                TRIREME_OPERATION_KIND_SCATTER,
                                                TRIREME_OPERATION_KIND_SCATTER_V,
                                                TRIREME_OPERATION_KIND_ALL_TO_ALL,
                                                TRIREME_OPERATION_KIND_ALL_TO_ALL_V};

/* A message around the ring, longer than a frame. */
static void send_around(trireme_communicator *communicator) {
    enum { LENGTH = 300001 };
    const int rank = rank_of(communicator), n = size_of(communicator);
    unsigned char *const memory = malloc(2 * LENGTH);
    if (memory == NULL) abort();
    for (uint64_t i = 0; i < LENGTH; ++i) memory[i] = pattern(rank, i);
    const int to = (rank + 1) % n, from = (rank + n - 1) % n;
    if (n > 1) {
        trireme_request *request = NULL;
        EXPECT_STATUS(&verdict, TRIREME_OK,
                      trireme_send_start(communicator, memory, LENGTH, TRIREME_DTYPE_U8, to, 5,
                                         NULL, &request));
        EXPECT_STATUS(&verdict, TRIREME_OK,
                      trireme_receive(communicator, memory + LENGTH, LENGTH, TRIREME_DTYPE_U8, from,
                                      5, NULL));
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
        trireme_request_destroy(request);
        bool right = true;
        for (uint64_t i = 0; i < LENGTH; ++i) {
            right = right && memory[LENGTH + i] == pattern(from, i);
        }
        EXPECT(&verdict, right);
    }
    free(memory);
}

static void run_collectives(trireme_communicator *communicator) {
    static const uint64_t counts[] = {0, 7, 1003};
    const int n = size_of(communicator);
    uint64_t number = 0;
    for (trireme_dtype dtype = TRIREME_DTYPE_I8; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
        for (trireme_reduction r = TRIREME_REDUCTION_SUM; r <= TRIREME_REDUCTION_SCALED_SUM; ++r) {
            if (!reduction_means_something(dtype, r)) continue;
            for (size_t i = 0; i < COUNT_OF(counts) * COUNT_OF(reducing); ++i, ++number) {
                const struct call call = make(reducing[i % COUNT_OF(reducing)], dtype, r,
                                              counts[i / COUNT_OF(reducing)], number, n);
                check(communicator, &call, number % 2 == 0, number % 3 == 0);
            }
        }
    }
    static const trireme_dtype widths[] = {TRIREME_DTYPE_BOOL, TRIREME_DTYPE_BF16,
                                           TRIREME_DTYPE_F32, TRIREME_DTYPE_I64};
    for (size_t d = 0; d < COUNT_OF(widths); ++d) {
        for (size_t i = 0; i < COUNT_OF(counts) * COUNT_OF(moving); ++i, ++number) {
            const struct call call = make(moving[i % COUNT_OF(moving)], widths[d], 0,
                                          counts[i / COUNT_OF(moving)], number, n);
            check(communicator, &call, false, number % 3 == 0);
        }
    }
    /* Larger than the bytes that MPI gets at a time, and no multiple of them. */
    static const trireme_operation_kind large[] = {TRIREME_OPERATION_KIND_ALL_REDUCE,
                                                   TRIREME_OPERATION_KIND_REDUCE,
                                                   TRIREME_OPERATION_KIND_REDUCE_SCATTER,
                                                   TRIREME_OPERATION_KIND_ALL_GATHER,
                                                   TRIREME_OPERATION_KIND_BROADCAST,
                                                   TRIREME_OPERATION_KIND_ALL_TO_ALL};
    for (size_t i = 0; i < COUNT_OF(large); ++i, ++number) {
        const struct call call = make(large[i], TRIREME_DTYPE_F32,
                                      i < 3 ? TRIREME_REDUCTION_AVERAGE : 0, 600011, number, n);
        check(communicator, &call, i == 0, false);
    }
    send_around(communicator);
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
}

/* A NaN has the same bits everywhere, whichever rank contributes it; the smallest of 0 and -0, too.
 */
static void run_awkward(trireme_communicator *communicator) {
    enum { COUNT = 4000 };
    static uint32_t send[COUNT], receive[COUNT], all[8 * COUNT];
    const int rank = rank_of(communicator), n = size_of(communicator);
    static const trireme_reduction reductions[] = {TRIREME_REDUCTION_SUM, TRIREME_REDUCTION_PRODUCT,
                                                   TRIREME_REDUCTION_MIN, TRIREME_REDUCTION_MAX};
    for (size_t r = 0; r < COUNT_OF(reductions); ++r) {
        for (uint32_t i = 0; i < COUNT; ++i) {
            const float value = (float)(i % 97) * 0.37f - (float)(rank * 3) * 1.7f;
            memcpy(&send[i], &value, sizeof value);
            if (i % 5 == 0) send[i] = rank % 2 == 0 ? 0u : 0x80000000u;
            if ((int)(i % 8) == rank) send[i] = 0xffc00000u + i + 1; /* a NaN with words in it */
        }
        EXPECT_STATUS(&verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, send, receive, COUNT, TRIREME_DTYPE_F32,
                                         reductions[r], NULL));
        EXPECT_STATUS(&verdict, TRIREME_OK,
                      trireme_all_gather(communicator, receive, all, COUNT, TRIREME_DTYPE_F32,
                                         NULL));
        for (int peer = 0; peer < n; ++peer) {
            EXPECT(&verdict, memcmp(all + peer * COUNT, receive, sizeof receive) == 0);
        }
        for (uint32_t i = 0; i < COUNT; ++i) {
            if ((int)(i % 8) < n) EXPECT(&verdict, receive[i] == 0x7fc00000u);
        }
    }
}

static void run_mismatch(trireme_communicator *communicator) {
    static float data[100000];
    const bool odd = rank_of(communicator) == 1;
    const trireme_operation_options options = options_of(LONG_NS);
    EXPECT_STATUS(&verdict, TRIREME_ERROR_MISMATCH,
                  trireme_all_reduce(communicator, data, data, odd ? 99999 : 100000,
                                     TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, &options));
    EXPECT(&verdict, strstr(trireme_last_error(), "rank") != NULL);
    EXPECT_STATUS(&verdict, TRIREME_ERROR_MISMATCH, trireme_barrier(communicator, NULL));
}

/* Rank 1 comes after the deadline. */
static void run_timeout(trireme_communicator *communicator) {
    static float data[100000];
    const trireme_operation_options options = options_of(300 * MILLISECOND_NS);
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank_of(communicator) == 1) {
        trireme_status status = TRIREME_OK;
        while (status == TRIREME_OK) { /* until it learns that the others have given up */
            usleep(10000);
            status = trireme_communicator_wait_ready(communicator, LONG_NS);
        }
        EXPECT(&verdict, status == TRIREME_ERROR_TIMEOUT);
        return;
    }
    EXPECT_STATUS(&verdict, TRIREME_ERROR_TIMEOUT,
                  trireme_all_reduce(communicator, data, data, 100000, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, &options));
    EXPECT(&verdict, strstr(trireme_last_error(), "rank 1") != NULL);
}

static bool is_backend(trireme_communicator *communicator, const char *begin) {
    char text[64] = "";
    EXPECT_STATUS(&verdict, TRIREME_OK,
                  trireme_communicator_get_backend(communicator, text, sizeof text, NULL));
    return strncmp(text, begin, strlen(begin)) == 0;
}

static void expect_sum(trireme_communicator *communicator) {
    const int n = size_of(communicator);
    int64_t sum = rank_of(communicator) + 1;
    EXPECT_STATUS(&verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, &sum, &sum, 1, TRIREME_DTYPE_I64,
                                     TRIREME_REDUCTION_SUM, NULL));
    EXPECT(&verdict, sum == (int64_t)n * (n + 1) / 2);
}

/* Groups one after the other, some of them without an operation, and two at once. */
static void run_again(void) {
    for (int i = 0; i < 6; ++i) {
        trireme_communicator *const first = join();
        trireme_communicator *const second = i % 3 == 2 ? join() : NULL;
        for (int k = 0; k < (i % 2 == 0 ? 2 : 0); ++k) {
            trireme_communicator *const used = k == 1 && second != NULL ? second : first;
            expect_sum(used);
        }
        trireme_communicator_destroy(first);
        trireme_communicator_destroy(second);
    }
}

/* Groups made from the group, and from those. */
static void run_children(trireme_communicator *communicator) {
    const int rank = rank_of(communicator), n = size_of(communicator);
    trireme_communicator *all = NULL, *half = NULL, *first = NULL;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_duplicate(communicator, NULL, &all));
    EXPECT_STATUS(&verdict, TRIREME_OK,
                  trireme_communicator_split(all, rank % 2, -rank, NULL, &half));
    EXPECT(&verdict, size_of(half) == (n + 1 - rank % 2) / 2);
    EXPECT(&verdict, rank_of(half) == size_of(half) - 1 - rank / 2);
    static const int32_t ranks[] = {0};
    EXPECT_STATUS(&verdict, TRIREME_OK,
                  trireme_communicator_subgroup(half, ranks, 1, NULL, &first));
    EXPECT(&verdict, (first != NULL) == (rank_of(half) == 0));
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    static const char *const names[] = {"data"};
    static const int32_t sizes[] = {0};
    options.axis_count = 1;
    options.axis_names = names;
    options.axis_sizes = sizes;
    trireme_mesh *mesh = NULL;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_mesh_create(all, &options, &mesh));
    trireme_communicator *axis = NULL;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_mesh_get_axis_communicator(mesh, "data", &axis));
    trireme_communicator *const groups[] = {communicator, all, half, first, axis};
    for (size_t i = 0; i < COUNT_OF(groups); ++i) {
        if (groups[i] != NULL) expect_sum(groups[i]);
    }
    send_around(half);
    trireme_mesh_destroy(mesh);
    for (size_t i = 1; i < 4; ++i) trireme_communicator_destroy(groups[i]);
    expect_sum(communicator);
}

/* The last rank goes; the others go on without it. */
static void run_shrink(trireme_communicator *communicator) {
    const int n = size_of(communicator);
    uint64_t flags = rank_of(communicator) == 0 ? 6 : 3;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_agree(communicator, &flags, LONG_NS));
    EXPECT(&verdict, flags == 2);
    if (rank_of(communicator) == n - 1) return;
    EXPECT_STATUS(&verdict, TRIREME_ERROR_PEER_LOST, trireme_barrier(communicator, NULL));
    trireme_communicator *rest = NULL;
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_communicator_shrink(communicator, NULL, &rest));
    EXPECT(&verdict, size_of(rest) == n - 1);
    expect_sum(rest);
    trireme_communicator_destroy(rest);
}

static int rank_in_environment(void) {
    const char *text = getenv("OMPI_COMM_WORLD_RANK");
    if (text == NULL) text = getenv("PMI_RANK");
    return text == NULL ? -1 : atoi(text);
}

/* Signs between the ranks outside of the library: files, each with its maker's rank. */
static void tell(const char *what) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%d", getenv("TRIREME_TEST_FOLDER"), what,
             rank_in_environment());
    FILE *const file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%ld", (long)getpid()) < 0 || fclose(file) != 0) abort();
}

static void wait_until_told(const char *what, int rank) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%d", getenv("TRIREME_TEST_FOLDER"), what, rank);
    while (access(path, F_OK) != 0) usleep(1000);
}

/* Rank 1 fails before it has told its host. The others wait until their deadlines; then all try
 * again. */
static void run_failing(void) {
    trireme_communicator *communicator = NULL;
    if (rank_in_environment() == 1) {
        EXPECT_STATUS(&verdict, TRIREME_OK, trireme_failpoint_set("mpi.before_meeting=fail@1"));
        EXPECT_STATUS(&verdict, TRIREME_ERROR_SYSTEM, join_within(LONG_NS, &communicator));
        wait_until_told("timeout", 0);
        wait_until_told("timeout", 2);
    } else {
        EXPECT_STATUS(&verdict, TRIREME_ERROR_TIMEOUT,
                      join_within(200 * MILLISECOND_NS, &communicator));
        EXPECT(&verdict, strstr(trireme_last_error(), "not all ranks of mpirun") != NULL);
        tell("timeout");
    }
    EXPECT(&verdict, communicator == NULL);
    communicator = join();
    expect_sum(communicator);
    trireme_communicator_destroy(communicator);
}

/* Creating a group does not wait once the ranks know each other. Rank 1 comes late to the second
 * group. */
static void run_lazy(trireme_communicator *communicator) {
    expect_sum(communicator);
    const int rank = rank_of(communicator);
    if (rank == 1) wait_until_told("timeout", 0);
    trireme_communicator *const second = join();
    if (rank == 0) {
        EXPECT_STATUS(&verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_communicator_wait_ready(second, 50 * MILLISECOND_NS));
        EXPECT(&verdict, strstr(trireme_last_error(), "not joined \"mpi://\"") != NULL);
        tell("timeout");
    }
    expect_sum(second);
    trireme_communicator_destroy(second);
}

/* The last rank stops by `action` when it sends its first bytes. */
static void run_stuck(trireme_communicator *communicator, const char *action, uint64_t timeout_ns,
                      trireme_status expected) {
    static float data[100000];
    char text[64];
    const bool stuck = rank_of(communicator) == size_of(communicator) - 1;
    snprintf(text, sizeof text, "mpi.before_send=%s", action);
    if (stuck) EXPECT_STATUS(&verdict, TRIREME_OK, trireme_failpoint_set(text));
    const trireme_operation_options options = options_of(timeout_ns);
    expect_sum(communicator);
    EXPECT_STATUS(&verdict, expected,
                  trireme_all_reduce(communicator, data, data, 100000, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, &options));
    EXPECT_STATUS(&verdict, expected, trireme_barrier(communicator, NULL));
}

/* Rank 1 never comes to the second group. */
static void run_never(trireme_communicator *communicator) {
    expect_sum(communicator);
    if (rank_of(communicator) != 1) {
        trireme_communicator *second = NULL;
        EXPECT_STATUS(&verdict, TRIREME_OK, join_within(300 * MILLISECOND_NS, &second));
        EXPECT_STATUS(&verdict, TRIREME_ERROR_TIMEOUT, trireme_barrier(second, NULL));
        EXPECT(&verdict, strstr(trireme_last_error(), "rank 1 has not joined \"mpi://\"") != NULL);
        trireme_communicator_destroy(second);
    }
    expect_sum(communicator);
}

static void refuse(const char *text, int32_t rank, int32_t world_size, const char *wanted,
                   trireme_status expected) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = text;
    options.rank = rank;
    options.world_size = world_size;
    options.backend = wanted;
    trireme_communicator *communicator = (trireme_communicator *)&options;
    EXPECT_STATUS(&verdict, expected, trireme_communicator_create(&options, &communicator));
    EXPECT(&verdict, communicator == (trireme_communicator *)&options);
}

static void run_refusals(trireme_communicator *communicator) {
    const int n = size_of(communicator);
    refuse("mpi://", 0, n + 1, backend, TRIREME_ERROR_INVALID_ARGUMENT);
    refuse("mpi://", rank_of(communicator) + 1, n, backend, TRIREME_ERROR_INVALID_ARGUMENT);
    refuse("mpi://", rank_of(communicator), n, "frames", TRIREME_ERROR_UNSUPPORTED);
    refuse("host://x", 0, 1, "mpi", TRIREME_ERROR_UNSUPPORTED);
    if (backend == NULL) {
        EXPECT(&verdict, is_backend(communicator, "local (processes, met by "));
    } else {
        EXPECT(&verdict, is_backend(communicator, "mpi ("));
        trireme_communicator *child = NULL;
        EXPECT_STATUS(&verdict, TRIREME_ERROR_UNSUPPORTED,
                      trireme_communicator_duplicate(communicator, NULL, &child));
        EXPECT_STATUS(&verdict, TRIREME_ERROR_UNSUPPORTED,
                      trireme_communicator_shrink(communicator, NULL, &child));
    }
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.backend = "mpi";
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_capability(&query));
    EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
}

int main(int count, char **arguments) {
    char part[32] = "";
    if (count > 1) snprintf(part, sizeof part, "%s", arguments[1]);
    char *const end = strstr(part, "_at_once");
    at_once = end != NULL;
    if (end != NULL) *end = 0;
    if (count > 2) rendezvous = arguments[2];
    if (count > 3) backend = arguments[3];
    if (strcmp(part, "again") == 0) {
        run_again();
    } else if (strcmp(part, "dying") == 0) {
        tell("pid");
        if (rank_in_environment() == 1 &&
            trireme_failpoint_set("mpi.before_meeting=kill") != TRIREME_OK) {
            return 2;
        }
        (void)join();
    } else if (strcmp(part, "failing") == 0) {
        run_failing();
    } else {
        trireme_communicator *const communicator = join();
        if (strcmp(part, "collectives") == 0) {
            run_collectives(communicator);
            run_awkward(communicator);
        } else if (strcmp(part, "mismatch") == 0) {
            run_mismatch(communicator);
        } else if (strcmp(part, "timeout") == 0) {
            run_timeout(communicator);
        } else if (strcmp(part, "refusals") == 0) {
            run_refusals(communicator);
        } else if (strcmp(part, "backend") == 0) {
            char text[64] = "";
            expect_sum(communicator);
            EXPECT_STATUS(&verdict, TRIREME_OK,
                          trireme_communicator_get_backend(communicator, text, sizeof text, NULL));
            if (rank_of(communicator) == 0) puts(text);
        } else if (strcmp(part, "children") == 0) {
            run_children(communicator);
        } else if (strcmp(part, "shrink") == 0) {
            run_shrink(communicator);
        } else if (strcmp(part, "lazy") == 0) {
            run_lazy(communicator);
        } else if (strcmp(part, "frozen") == 0) {
            run_stuck(communicator, "sleep(6000)@1", 500 * MILLISECOND_NS, TRIREME_ERROR_TIMEOUT);
        } else if (strcmp(part, "broken") == 0) {
            run_stuck(communicator, "fail@1", LONG_NS, TRIREME_ERROR_SYSTEM);
        } else if (strcmp(part, "never") == 0) {
            run_never(communicator);
        } else if (strcmp(part, "wait") ==
                   0) { /* until rank 1 is killed, and mpirun ends the rest */
            EXPECT_STATUS(&verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
            printf("pid %ld of rank %d\n", (long)getpid(), rank_of(communicator));
            fflush(stdout);
            if (rank_of(communicator) == 1) pause();
            if (trireme_barrier(communicator, NULL) != TRIREME_OK) pause();
        } else {
            fprintf(stderr, "no part \"%s\"\n", part);
            return 2;
        }
        trireme_communicator_destroy(communicator);
    }
    if (verdict.text[0] != 0) fprintf(stderr, "%s\n", verdict.text);
    return verdict.text[0] == 0 ? 0 : 1;
}
