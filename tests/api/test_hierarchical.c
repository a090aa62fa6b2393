/*
 * tcp:// groups whose ranks share hosts, by a label in this test. They test which rank is on which
 * host. Large collectives of many pieces go over the hosts and are right, also in groups of the
 * group and in several queues at once. Ranks that disagree get a mismatch. The tests of collectives
 * run over such groups, too, with small payloads, every dtype and every reduction.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "calls.h"
#include "options.h"
#include "ranks.h"

#define ONE_HOST "local (processes, met by tcp)"
#define MOST 6
/* Of more pieces than one, and no multiple of anything. */
#define LARGE (is_quick() ? 300001u : 700001u)

struct job {
    const char *hosts; /* a letter for each rank */
    const char *says;  /* in what the group is called, from when all are there */
    char rendezvous[96];
    struct verdict verdicts[MOST];
};

static trireme_communicator *join_at(const struct job *job, int rank) {
    char rendezvous[128];
    snprintf(rendezvous, sizeof rendezvous, "%s?host=%c", job->rendezvous, job->hosts[rank]);
    return join_rank(rank, (int)strlen(job->hosts), rendezvous);
}

static int
is_called(struct verdict *verdict, trireme_communicator *communicator, const char *says) {
    char text[64];
    return EXPECT_STATUS(verdict, TRIREME_OK,
                         trireme_communicator_wait_ready(communicator, LONG_NS)) &&
           EXPECT_STATUS(verdict, TRIREME_OK,
                         trireme_communicator_get_backend(communicator, text, sizeof text, NULL)) &&
           EXPECT(verdict, strcmp(text, says) == 0);
}

static int64_t value(int rank, uint64_t index) {
    return (int64_t)(index % 1009) * (rank + 1) + rank;
}

static int64_t sum_of(int world_size, uint64_t index) {
    int64_t sum = 0;
    for (int rank = 0; rank < world_size; ++rank) sum += value(rank, index);
    return sum;
}

/* native: by the hosts, and refused where that is not offered. */
static void
check_all(struct verdict *verdict, trireme_communicator *communicator, int rank, int world_size,
          uint64_t count, const trireme_operation_options *options, int has_blocks) {
    const uint64_t all = count * (uint64_t)world_size;
    int64_t *const send = calloc(all + 1, sizeof *send);
    int64_t *const receive = calloc(all + 1, sizeof *receive);
    if (send == NULL || receive == NULL) abort();
    for (uint64_t i = 0; i < all; ++i) send[i] = value(rank, i);
    int right =
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, send, receive, all, TRIREME_DTYPE_I64,
                                         TRIREME_REDUCTION_SUM, options));
    for (uint64_t i = 0; right && i < all; ++i) {
        right = EXPECT(verdict, receive[i] == sum_of(world_size, i));
    }
    const trireme_status expected = has_blocks ? TRIREME_OK : TRIREME_ERROR_UNSUPPORTED;
    right =
        EXPECT_STATUS(verdict, expected,
                      trireme_reduce_scatter(communicator, send, receive, count, TRIREME_DTYPE_I64,
                                             TRIREME_REDUCTION_SUM, options));
    for (uint64_t i = 0; has_blocks && right && i < count; ++i) {
        right = EXPECT(verdict, receive[i] == sum_of(world_size, (uint64_t)rank * count + i));
    }
    right = EXPECT_STATUS(verdict, expected,
                          trireme_all_gather(communicator, send, receive, count, TRIREME_DTYPE_I64,
                                             options));
    for (uint64_t i = 0; has_blocks && right && i < all; ++i) {
        right = EXPECT(verdict, receive[i] == value((int)(i / count), i % count));
    }
    for (int root = 0; root < world_size; ++root) {
        for (uint64_t i = 0; i < all; ++i) receive[i] = rank == root ? value(root, i) : -1;
        right = EXPECT_STATUS(verdict, TRIREME_OK,
                              trireme_broadcast(communicator, receive, all, TRIREME_DTYPE_I64, root,
                                                options));
        for (uint64_t i = 0; right && i < all; ++i) {
            right = EXPECT(verdict, receive[i] == value(root, i));
        }
    }
    free(send);
    free(receive);
}

static void work_on_hosts(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    const int world_size = (int)strlen(job->hosts);
    trireme_communicator *const communicator = join_at(job, rank);
    /* Before the ranks have met, too: it is known then that all answer alike. */
    trireme_operation_options native = TRIREME_OPERATION_OPTIONS_INIT;
    native.algorithm = TRIREME_ALGORITHM_NATIVE;
    const int flat = strcmp(job->says, "frames (tcp)") == 0;
    const int one_host = strcmp(job->says, ONE_HOST) == 0;
    int32_t one = 1;
    EXPECT_STATUS(verdict, flat ? TRIREME_ERROR_UNSUPPORTED : TRIREME_OK,
                  trireme_all_reduce(communicator, &one, &one, 1, TRIREME_DTYPE_I32,
                                     TRIREME_REDUCTION_SUM, &native));
    EXPECT(verdict, one == (flat ? 1 : world_size));
    is_called(verdict, communicator, job->says);
    const int has_blocks = strstr(job->says, " to ") == NULL;
    if (!flat && !one_host)
        check_all(verdict, communicator, rank, world_size, 5, &native, has_blocks);
    check_all(verdict, communicator, rank, world_size, LARGE / (uint64_t)world_size, NULL, 1);
    trireme_communicator_destroy(communicator);
}

static void large_collectives_go_over_the_hosts(void **state) {
    (void)state;
    static const char *const jobs[][2] = {{"ab", "frames (tcp)"},
                                          {"aaa", ONE_HOST},
                                          {"aabb", "hierarchical (2 hosts x 2)"},
                                          {"abba", "hierarchical (2 hosts x 2)"},
                                          {"aab", "hierarchical (2 hosts x 1 to 2)"},
                                          {"abcabc", "hierarchical (3 hosts x 2)"}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; ++i) {
        struct job job = {.hosts = jobs[i][0], .says = jobs[i][1]};
        unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
        run_threads((int)strlen(job.hosts), work_on_hosts, &job);
        assert_verdicts(job.verdicts, MOST);
    }
}

struct bound {
    trireme_operation_kind operation;
    uint64_t bytes; /* of all blocks: from here on it goes over the hosts */
};
static const struct bound bounds[] = {
    {TRIREME_OPERATION_KIND_ALL_REDUCE, 32 << 10},
    {TRIREME_OPERATION_KIND_BROADCAST, 64 << 10},
    {TRIREME_OPERATION_KIND_ALL_GATHER, 256 << 10},
    {TRIREME_OPERATION_KIND_REDUCE, 128 << 10},
    {TRIREME_OPERATION_KIND_ALL_GATHER_V, 512 << 10},
    {TRIREME_OPERATION_KIND_REDUCE_SCATTER, 2 << 20},
    {TRIREME_OPERATION_KIND_REDUCE_SCATTER_V, 2 << 20},
};

/* The bytes that this rank sends to other hosts in one call. */
static uint64_t
sent_by_call(struct verdict *verdict, trireme_communicator *communicator, int rank,
             const struct bound *bound, uint64_t bytes, trireme_algorithm algorithm) {
    const uint64_t size = sizeof(float), n = 4;
    const bool is_whole = bound->operation == TRIREME_OPERATION_KIND_ALL_REDUCE ||
                          bound->operation == TRIREME_OPERATION_KIND_BROADCAST ||
                          bound->operation == TRIREME_OPERATION_KIND_REDUCE;
    struct call call = {.operation = bound->operation,
                        .dtype = TRIREME_DTYPE_F32,
                        .count = bytes / size / (is_whole ? 1 : n),
                        .root = 1,
                        .algorithm = algorithm};
    for (uint64_t i = 0; i < n; ++i) call.counts[i] = call.count;
    if (reduces(call.operation)) call.reduction = TRIREME_REDUCTION_SUM;
    struct call_memory memory;
    if (!allocate_call(communicator, &call, rank, (int)n, false, &memory)) abort();
    fill_call(&call, &memory, rank, (int)n, 1);
    trireme_communicator_statistics before = TRIREME_COMMUNICATOR_STATISTICS_INIT, after = before;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_statistics(communicator, &before));
    EXPECT_STATUS(verdict, TRIREME_OK, run_call(communicator, &call, &memory, false, LONG_NS));
    EXPECT(verdict, is_call_right(&call, &memory, rank, (int)n, 1));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_statistics(communicator, &after));
    free_call(&memory, false);
    return after.sent_bytes - before.sent_bytes;
}

static void look_at_bounds(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const communicator = join_at(job, rank);
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; ++i) {
        for (int below = 0; below < 2; ++below) {
            const uint64_t bytes = bounds[i].bytes - (below ? 16 : 0);
            uint64_t sent[2]; /* as the library chooses, and by the hosts */
            for (int named = 0; named < 2; ++named) {
                int64_t one = (int64_t)sent_by_call(verdict, communicator, rank, &bounds[i], bytes,
                                                    named ? TRIREME_ALGORITHM_NATIVE : 0);
                EXPECT_STATUS(verdict, TRIREME_OK,
                              trireme_all_reduce(communicator, &one, &one, 1, TRIREME_DTYPE_I64,
                                                 TRIREME_REDUCTION_SUM, NULL));
                sent[named] = (uint64_t)one;
            }
            if ((sent[0] == sent[1]) != (below == 0)) {
                EXPECT(verdict, !"the right way");
                const size_t length = strlen(verdict->text);
                snprintf(verdict->text + length, sizeof verdict->text - length,
                         " [%s, %llu bytes: sends %llu, by the hosts %llu]",
                         operation_text(bounds[i].operation), (unsigned long long)bytes,
                         (unsigned long long)sent[0], (unsigned long long)sent[1]);
            }
        }
    }
    trireme_communicator_destroy(communicator);
}

/* By all ranks together fewer bytes go between hosts than by pieces between all ranks. */
static void each_operation_has_its_bound(void **state) {
    (void)state;
    struct job job = {.hosts = "aabb", .says = "hierarchical (2 hosts x 2)"};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(4, look_at_bounds, &job);
    assert_verdicts(job.verdicts, 4);
}

static void work_in_groups(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const parent = join_at(job, rank);
    trireme_communicator *copy = NULL, *half = NULL;
    /* Ranks 3, 2, 0 of the hosts b, b, a; and rank 1 alone. */
    if (EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_communicator_split(parent, rank == 1, -rank, NULL, &half)) &&
        is_called(verdict, half, rank == 1 ? ONE_HOST : "hierarchical (2 hosts x 1 to 2)")) {
        const int own = rank == 1 ? 0 : rank == 0 ? 2 : 3 - rank;
        check_all(verdict, half, own, rank == 1 ? 1 : 3, 30001, NULL, 1);
    }
    if (EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_duplicate(parent, NULL, &copy))) {
        trireme_communicator_destroy(parent);
        if (is_called(verdict, copy, job->says)) {
            check_all(verdict, copy, rank, 4, 30001, NULL, 1);
        }
    }
    trireme_communicator_destroy(copy);
    trireme_communicator_destroy(half);
}

static void groups_of_such_a_group_have_hosts_of_their_own(void **state) {
    (void)state;
    struct job job = {.hosts = "aabb", .says = "hierarchical (2 hosts x 2)"};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(4, work_in_groups, &job);
    assert_verdicts(job.verdicts, 4);
}

/* Rank 0 and rank 2 come to the normal one only when the urgent ones are over. */
static void use_two_queues(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const communicator = join_at(job, rank);
    trireme_operation_options high = TRIREME_OPERATION_OPTIONS_INIT;
    high.priority = TRIREME_PRIORITY_HIGH;
    int64_t *const normal = malloc(LARGE * sizeof *normal);
    int64_t *const urgent = malloc(LARGE * sizeof *urgent);
    if (normal == NULL || urgent == NULL) abort();
    for (uint64_t i = 0; i < LARGE; ++i) normal[i] = value(rank, i);
    trireme_request *request = NULL;
    for (int turn = 0; turn < 4; ++turn) {
        if (turn == (rank % 2 == 0 ? 3 : 0)) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_all_reduce_start(communicator, normal, normal, LARGE,
                                                   TRIREME_DTYPE_I64, TRIREME_REDUCTION_SUM, NULL,
                                                   &request));
        }
        if (turn == 3) break;
        for (uint64_t i = 0; i < LARGE; ++i) urgent[i] = value(rank, i) + turn;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, urgent, urgent, LARGE, TRIREME_DTYPE_I64,
                                         TRIREME_REDUCTION_SUM, &high));
        int right = 1;
        for (uint64_t i = 0; right && i < LARGE; ++i) {
            right = EXPECT(verdict, urgent[i] == sum_of(4, i) + 4 * turn);
        }
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
    trireme_request_destroy(request);
    int right = 1;
    for (uint64_t i = 0; right && i < LARGE; ++i) {
        right = EXPECT(verdict, normal[i] == sum_of(4, i));
    }
    free(normal);
    free(urgent);
    trireme_communicator_destroy(communicator);
}

static void one_queue_does_not_wait_for_another(void **state) {
    (void)state;
    struct job job = {.hosts = "aabb"};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(4, use_two_queues, &job);
    assert_verdicts(job.verdicts, 4);
}

static void disagree(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const communicator = join_at(job, rank);
    float *const data = calloc(LARGE, sizeof *data);
    if (data == NULL) abort();
    const uint64_t count = rank == 2 ? LARGE - 1 : LARGE;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_all_reduce(communicator, data, data, count, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, NULL));
    EXPECT(verdict, strstr(trireme_last_error(), "rank 2 called") != NULL);
    for (uint64_t i = 0; i < LARGE; ++i) {
        if (!EXPECT(verdict, data[i] == 0)) break;
    }
    free(data);
    trireme_communicator_destroy(communicator);
}

static void who_disagrees_hears_of_it(void **state) {
    (void)state;
    struct job job = {.hosts = "aabb"};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(4, disagree, &job);
    assert_verdicts(job.verdicts, 4);
}

/* The algorithms of such a group are known when all have come. Until then no rank is refused one.
 */
static void who_asks_too_early_hears_who_is_missing(void **state) {
    (void)state;
    char rendezvous[96], place[128];
    trireme_operation_options native = TRIREME_OPERATION_OPTIONS_INIT;
    native.algorithm = TRIREME_ALGORITHM_NATIVE;
    native.timeout_ns = 200ull * 1000 * 1000;
    for (int started = 0; started < 2; ++started) {
        unique_network_rendezvous(rendezvous, sizeof rendezvous);
        snprintf(place, sizeof place, "%s?host=a", rendezvous);
        trireme_communicator *const communicator = join_rank(0, 3, place);
        int32_t one = 1;
        trireme_request *request = NULL;
        for (int turn = 0; turn < 2; ++turn) { /* and it stays so */
            const trireme_status status =
                started ? trireme_all_reduce_start(communicator, &one, &one, 1, TRIREME_DTYPE_I32,
                                                   TRIREME_REDUCTION_SUM, &native, &request)
                        : trireme_all_reduce(communicator, &one, &one, 1, TRIREME_DTYPE_I32,
                                             TRIREME_REDUCTION_SUM, &native);
            assert_int_equal(status, TRIREME_ERROR_TIMEOUT);
            assert_non_null(strstr(trireme_last_error(), "ranks 1 and 2 have not joined"));
        }
        assert_null(request);
        assert_int_equal(one, 1);
        trireme_communicator_destroy(communicator);
    }
}

/* hybrid_shard with shard_ranks 0: the ranks of a host keep one copy of the parameters between
 * them. */
static void shard(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const v = &job->verdicts[rank];
    trireme_communicator *const communicator = join_at(job, rank);
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_HYBRID_SHARD;
    units_of(&options)->minimum_bytes = 1;
    trireme_model *model = NULL;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const uint64_t shape = 240;
    uint64_t number = 0;
    parameter.name = "w";
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.shape = &shape;
    parameter.dimensions = 1;
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_create(communicator, &options, &model));
    EXPECT_STATUS(v, TRIREME_OK, trireme_model_add_parameter(model, &parameter, &number));
    if (strstr(job->says, "ranks") == NULL) {
        const uint64_t holders = strtoull(job->says, NULL, 10);
        trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
        float values[240], seen[240] = {0};
        for (int i = 0; i < 240; ++i) values[i] = (float)i;
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_seal(model));
        EXPECT_STATUS(v, TRIREME_OK, trireme_model_get_memory(model, &memory));
        EXPECT(v, memory.planned_parameters == sizeof values / holders);
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_broadcast_parameters(model, values, 240, TRIREME_DTYPE_F32, 1));
        EXPECT_STATUS(v, TRIREME_OK,
                      trireme_model_gather_parameters(model, seen, 240, TRIREME_DTYPE_F32));
        EXPECT(v, memcmp(seen, values, sizeof values) == 0);
    } else {
        EXPECT_STATUS(v, TRIREME_ERROR_INVALID_ARGUMENT, trireme_model_seal(model));
        EXPECT(v, strstr(trireme_last_error(), job->says) != NULL);
        /* The communicator lives on. */
        EXPECT_STATUS(v, TRIREME_OK, trireme_barrier(communicator, NULL));
    }
    trireme_model_destroy(model);
    trireme_communicator_destroy(communicator);
}

static void hybrid_shard_takes_the_ranks_of_a_host(void **state) {
    (void)state;
    /* The hosts of the ranks, and how many ranks keep a copy, or the refusal's words. */
    static const char *const cases[][2] = {
        {"aabb", "2"},
        {"aaa", "3"},
        {"abc", "1"},
        {"aabbcc", "2"},
        {"abab", "ranks 0 and 2; ranks 1 and 3 share a host each"},
        {"aab", "ranks 0 and 1; rank 2 share a host each"},
        {"abb", "rank 0; ranks 1 and 2 share a host each"},
        {"abba", "ranks 0 and 3; ranks 1 and 2 share a host each"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        struct job job = {.hosts = cases[i][0], .says = cases[i][1]};
        unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
        run_threads((int)strlen(job.hosts), shard, &job);
        assert_verdicts(job.verdicts, MOST);
    }
}

int main(void) {
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_collectives_go_over_the_hosts),
        cmocka_unit_test(each_operation_has_its_bound),
        cmocka_unit_test(groups_of_such_a_group_have_hosts_of_their_own),
        cmocka_unit_test(one_queue_does_not_wait_for_another),
        cmocka_unit_test(who_disagrees_hears_of_it),
        cmocka_unit_test(who_asks_too_early_hears_who_is_missing),
        cmocka_unit_test(hybrid_shard_takes_the_ranks_of_a_host),
    };
    /* The labels say which ranks share a host, and no backend says otherwise. */
    setenv("TRIREME_TESTS_NETWORK", "memory", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
