/*
 * backend "gloo": how it is asked for, what is said where it cannot be had, and that ranks which ask for
 * different backends hear of it. What it computes is in the tests of collectives, which run by it, too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ranks.h"

#define RANKS 3

static trireme_status create(int rank, int world_size, const char *rendezvous, const char *backend,
                             trireme_communicator **out) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = world_size;
    options.rendezvous = rendezvous;
    options.backend = backend;
    options.timeout_ns = LONG_NS;
    return trireme_communicator_create(&options, out);
}

struct job {
    char rendezvous[96];
    const char *backends[RANKS];
    struct verdict verdicts[RANKS];
};

static int expect_gloo(struct verdict *verdict, trireme_communicator *communicator) {
    char text[64];
    return EXPECT_STATUS(verdict, TRIREME_OK,
                         trireme_communicator_backend(communicator, text, sizeof text, NULL)) &&
           EXPECT(verdict, strcmp(text, "gloo (tcp)") == 0);
}

static int expect_sum(struct verdict *verdict, trireme_communicator *communicator, int world_size) {
    enum { COUNT = 50001 };
    int32_t *const data = malloc(COUNT * sizeof *data);
    int right = data != NULL;
    for (int i = 0; right && i < COUNT; ++i) data[i] = i;
    right = right && EXPECT_STATUS(verdict, TRIREME_OK,
                                   trireme_all_reduce(communicator, data, data, COUNT,
                                                      TRIREME_DTYPE_I32, TRIREME_SUM, NULL));
    for (int i = 0; right && i < COUNT; ++i) right = EXPECT(verdict, data[i] == i * world_size);
    free(data);
    return right;
}

static void use_groups(int rank, void *context) {
    struct job *const job = context;
    struct verdict *const verdict = &job->verdicts[rank];
    trireme_communicator *communicator = NULL;
    if (!EXPECT_STATUS(verdict, TRIREME_OK,
                       create(rank, RANKS, job->rendezvous, "gloo", &communicator))) {
        return;
    }
    expect_gloo(verdict, communicator);
    expect_sum(verdict, communicator, RANKS);
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
    struct job job = {.rendezvous = ""};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(RANKS, use_groups, &job);
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
    EXPECT(verdict, strstr(trireme_last_error(), "asks for backend \"host\"") != NULL);
    trireme_communicator_destroy(communicator);
}

static void ranks_with_different_backends_hear_of_it(void **state) {
    (void)state;
    struct job job = {.backends = {NULL, "gloo", "host"}};
    unique_network_rendezvous(job.rendezvous, sizeof job.rendezvous);
    run_threads(RANKS, meet_with_backend, &job);
    assert_verdicts(job.verdicts, RANKS);
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
        cmocka_unit_test(ranks_with_different_backends_hear_of_it),
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
