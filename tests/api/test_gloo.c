/*
 * backend "gloo": how callers ask for it, the refusal where it is missing, and the failure of ranks
 * that ask for different backends; ranks that are late or have left, and empty calls. The tests of
 * collectives run by it, too, and check its results.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "processes.h"
#include "ranks.h"

#define RANKS 3
#define COUNT 50001 /* more than goes with the description of a call */
#define WARNING_NS (20ull * 1000 * 1000)
#define ENOUGH 2 /* warnings that one rank hears before the late one comes */

static trireme_status create(int rank, int world_size, const char *rendezvous, const char *backend,
                             trireme_communicator **out) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = world_size;
    options.rendezvous = rendezvous;
    options.backend = backend;
    options.timeout_ns = LONG_NS;
    options.stall_warning_ns = WARNING_NS;
    return trireme_communicator_create(&options, out);
}

struct job {
    char rendezvous[96];
    const char *backends[RANKS];
    atomic_int summed;
    atomic_int failed;
    struct verdict verdicts[RANKS];
};

/* The communicator of a rank of the job, or NULL, which the verdict knows. */
static trireme_communicator *join_gloo(struct job *job, int rank) {
    trireme_communicator *group = NULL;
    EXPECT_STATUS(&job->verdicts[rank], TRIREME_OK,
                  create(rank, RANKS, job->rendezvous, "gloo", &group));
    return group;
}

static void run_job(struct job job, void (*body)(int rank, void *context)) {
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(RANKS, body, &job);
    assert_verdicts(job.verdicts, RANKS);
}

static int expect_gloo(struct verdict *verdict, trireme_communicator *communicator) {
    char text[64];
    return EXPECT_STATUS(verdict, TRIREME_OK,
                         trireme_communicator_get_backend(communicator, text, sizeof text, NULL)) &&
           EXPECT(verdict, strcmp(text, "gloo (tcp)") == 0);
}

static int expect_sum(struct verdict *verdict, trireme_communicator *communicator, int world_size) {
    int32_t *const data = malloc(COUNT * sizeof *data);
    int right = data != NULL;
    for (int i = 0; right && i < COUNT; ++i) data[i] = i;
    right =
        right && EXPECT_STATUS(verdict, TRIREME_OK,
                               trireme_all_reduce(communicator, data, data, COUNT,
                                                  TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM, NULL));
    for (int i = 0; right && i < COUNT; ++i) right = EXPECT(verdict, data[i] == i * world_size);
    free(data);
    return right;
}

/* All but its own share of each rank goes round twice. */
static void expect_traffic(struct verdict *verdict, const trireme_communicator *communicator) {
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_get_statistics(communicator, &statistics));
    const uint64_t least = COUNT * sizeof(int32_t), most = 2 * least;
    EXPECT(verdict, statistics.sent_bytes > least && statistics.sent_bytes < most);
    EXPECT(verdict, statistics.received_bytes > least && statistics.received_bytes < most);
}

static void use_groups(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const communicator = join_gloo(job, rank);
    if (communicator == NULL) return;
    expect_gloo(verdict, communicator);
    expect_sum(verdict, communicator, RANKS);
    expect_traffic(verdict, communicator);
    const int32_t members[] = {0, 2};
    trireme_communicator *pair = NULL;
    if (EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_communicator_subgroup(communicator, members, 2, NULL, &pair)) &&
        pair != NULL) {
        expect_gloo(verdict, pair);
        expect_sum(verdict, pair, 2);
        trireme_communicator_destroy(pair);
    }
    trireme_communicator_destroy(communicator);
}

static void groups_of_gloo_make_groups_of_gloo(void **state) {
    (void)state;
    run_job((struct job){0}, use_groups);
}

static void move_nothing(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const group = join_gloo(job, rank);
    if (group == NULL) return;
    trireme_operation_options native = TRIREME_OPERATION_OPTIONS_INIT;
    native.algorithm = TRIREME_ALGORITHM_NATIVE;
    const trireme_dtype f32 = TRIREME_DTYPE_F32;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(group, NULL, NULL, 0, f32, TRIREME_REDUCTION_SUM, &native));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_reduce(group, NULL, NULL, 0, f32, TRIREME_REDUCTION_AVERAGE, 1, &native));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_reduce_scatter(group, NULL, NULL, 0, f32, TRIREME_REDUCTION_SUM,
                                         &native));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_all_gather(group, NULL, NULL, 0, f32, &native));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_all_to_all(group, NULL, NULL, 0, f32, &native));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_broadcast(group, NULL, 0, f32, 2, &native));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(group, &native));
    expect_sum(verdict, group, RANKS);
    trireme_communicator_destroy(group);
}

static void nothing_to_move_is_no_division(void **state) {
    (void)state;
    run_job((struct job){0}, move_nothing);
}

static void wait_for_count(struct verdict *verdict, atomic_int *counter, int count) {
    const uint64_t end = monotonic_ns() + PATIENT_NS;
    while (atomic_load(counter) < count) {
        if (!EXPECT(verdict, monotonic_ns() < end)) break;
        sleep_ms(1);
    }
}

static void leave_or_miss(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const group = join_gloo(job, rank);
    if (group == NULL) return;
    static int32_t data[RANKS][COUNT];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(group, NULL));
    if (rank != 1) {
        /* The next call fails the group, and so a barrier of another rank that still runs. */
        atomic_fetch_add(&job->summed, 1);
        wait_for_count(verdict, &job->summed, RANKS - 1);
        EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST,
                      trireme_all_reduce(group, data[rank], data[rank], COUNT, TRIREME_DTYPE_I32,
                                         TRIREME_REDUCTION_SUM, NULL));
        EXPECT(verdict, strstr(trireme_last_error(), "rank 1 left") != NULL);
    }
    trireme_communicator_destroy(group);
}

static void who_has_left_is_named(void **state) {
    (void)state;
    for (int trial = 0; trial < 5; ++trial) {
        run_job((struct job){0}, leave_or_miss);
    }
}

static atomic_int heard[RANKS];

static void TRIREME_CALLCONV listen_to(trireme_log_level level, const char *message,
                                       void *user_data) {
    (void)level;
    (void)user_data;
    int rank = 0;
    if (sscanf(message, "rank %d of", &rank) != 1 || rank < 0 || rank >= RANKS) return;
    if (strstr(message, ": rank 1 has not come to all_reduce, sequence 2,") != NULL) ++heard[rank];
}

static void come_late(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const group = join_gloo(job, rank);
    if (group == NULL) return;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(group, NULL));
    if (rank == 1) {
        wait_for_count(verdict, &heard[0], ENOUGH);
        wait_for_count(verdict, &heard[2], ENOUGH);
    }
    expect_sum(verdict, group, RANKS);
    trireme_communicator_destroy(group);
}

static void who_is_late_is_told_to_the_log(void **state) {
    (void)state;
    struct job job = {.rendezvous = ""};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    assert_int_equal(trireme_set_log_callback(listen_to, TRIREME_LOG_WARNING, NULL), TRIREME_OK);
    run_threads(RANKS, come_late, &job);
    assert_int_equal(trireme_set_log_callback(NULL, TRIREME_LOG_WARNING, NULL), TRIREME_OK);
    assert_verdicts(job.verdicts, RANKS);
}

static void meet_with_backend(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *communicator = NULL;
    if (!EXPECT_STATUS(verdict, TRIREME_OK,
                       create(rank, RANKS, job->rendezvous, job->backends[rank], &communicator))) {
        return;
    }
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, trireme_barrier(communicator, NULL));
    EXPECT(verdict, strstr(trireme_last_error(), "rank 1 asks for backend \"gloo\"") != NULL);
    EXPECT(verdict, strstr(trireme_last_error(), "asks for backend \"frames\"") != NULL);
    trireme_communicator_destroy(communicator);
}

static void ranks_with_different_backends_hear_of_it(void **state) {
    (void)state;
    run_job((struct job){.backends = {NULL, "gloo", "frames"}}, meet_with_backend);
}

/* Some ranks are inside Gloo when another one calls something else. */
static void call_what_others_do_not(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const communicator = join_gloo(job, rank);
    if (communicator == NULL) return;
    float *const data = calloc(COUNT, sizeof *data);
    expect_sum(verdict, communicator, RANKS);
    /* A rank that still adds up would get the mismatch there. */
    atomic_fetch_add(&job->summed, 1);
    wait_for_count(verdict, &job->summed, RANKS);
    const trireme_dtype dtype = rank == 2 ? TRIREME_DTYPE_I32 : TRIREME_DTYPE_F32;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_all_reduce(communicator, data, data, COUNT, dtype, TRIREME_REDUCTION_SUM,
                                     NULL));
    EXPECT(verdict, strstr(trireme_last_error(), "rank 2") != NULL);
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, trireme_barrier(communicator, NULL));
    trireme_communicator_destroy(communicator);
    free(data);
}

static void ranks_inside_gloo_hear_of_a_mismatch(void **state) {
    (void)state;
    run_job((struct job){0}, call_what_others_do_not);
}

/* Rank 1 never comes: the others end at the deadline, with their memory let go. */
static void call_without_one(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *const communicator = join_gloo(job, rank);
    if (communicator == NULL) return;
    float *const data = calloc(COUNT, sizeof *data);
    expect_sum(verdict, communicator, RANKS);
    if (rank != 1) {
        trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
        options.timeout_ns = 200 * 1000 * 1000;
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_all_reduce(communicator, data, data, COUNT, TRIREME_DTYPE_F32,
                                         TRIREME_REDUCTION_SUM, &options));
        trireme_error_info info = TRIREME_ERROR_INFO_INIT;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
        EXPECT(verdict, blames_only(&info, 1));
        atomic_fetch_add(&job->failed, 1);
    } else {
        wait_for_count(verdict, &job->failed, RANKS - 1);
        /* The others' call, which differs, may be here before the news of their deadline. */
        const trireme_status status = trireme_barrier(communicator, NULL);
        EXPECT(verdict, status == TRIREME_ERROR_TIMEOUT || status == TRIREME_ERROR_MISMATCH);
    }
    trireme_communicator_destroy(communicator);
    free(data);
}

static void a_rank_that_does_not_come_is_a_timeout(void **state) {
    (void)state;
    run_job((struct job){0}, call_without_one);
}

static void it_needs_a_network(void **state) {
    (void)state;
    trireme_communicator *communicator = NULL;
    static const char *const wrong[] = {"local://gloo", "host://gloo", "mpi://"};
    for (int i = 0; i < 3; ++i) {
        assert_int_equal(create(0, 1, wrong[i], "gloo", &communicator), TRIREME_ERROR_UNSUPPORTED);
        assert_non_null(strstr(trireme_last_error(), "\"gloo\" does not meet at"));
        assert_null(communicator);
    }
}

static void expect_missing(const char *why) {
    char rendezvous[96];
    trireme_communicator *communicator = NULL;
    unique_network_rendezvous(rendezvous, sizeof rendezvous);
    assert_int_equal(create(0, 1, rendezvous, "gloo", &communicator), TRIREME_ERROR_UNSUPPORTED);
    assert_null(communicator);
    if (strstr(trireme_last_error(), why) == NULL) fail_msg("%s", trireme_last_error());
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.backend = "gloo";
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_UNSUPPORTED);
    if (strstr(trireme_last_error(), why) == NULL) fail_msg("%s", trireme_last_error());
}

static void a_missing_plugin_is_named(void **state) {
    (void)state;
    setenv("TRIREME_GLOO_LIBRARY", "/nowhere/gloo.so", 1);
    expect_missing("/nowhere/gloo.so: cannot open shared object file");
    setenv("TRIREME_GLOO_LIBRARY", "libc.so.6", 1);
    expect_missing("libc.so.6 is not a plugin of Trireme");
    unsetenv("TRIREME_GLOO_LIBRARY");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_of_gloo_make_groups_of_gloo),
        cmocka_unit_test(nothing_to_move_is_no_division),
        cmocka_unit_test(who_has_left_is_named),
        cmocka_unit_test(who_is_late_is_told_to_the_log),
        cmocka_unit_test(ranks_with_different_backends_hear_of_it),
        cmocka_unit_test(ranks_inside_gloo_hear_of_a_mismatch),
        cmocka_unit_test(a_rank_that_does_not_come_is_a_timeout),
        cmocka_unit_test(it_needs_a_network),
        cmocka_unit_test(a_missing_plugin_is_named),
    };
    setenv("TRIREME_TOKEN", "the token of these tests", 1);
    unsetenv("TRIREME_TOKEN_FILE");
    unsetenv("TRIREME_GLOO_LIBRARY");
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.backend = "gloo";
    if (trireme_capability(&query) != TRIREME_OK) {
        printf("skipped: %s\n", trireme_last_error());
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
