/* Names, sizes, versions, the last error, the log and failpoints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "ranks.h"

static void dtypes_have_sizes_and_names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint64_t size;
    } expected[] = {{"unknown", 0}, {"i8", 1},   {"u8", 1},  {"i16", 2},    {"u16", 2},
                    {"i32", 4},     {"u32", 4},  {"i64", 8}, {"u64", 8},    {"f16", 2},
                    {"bf16", 2},    {"f32", 4},  {"f64", 8}, {"f8e4m3", 1}, {"f8e5m2", 1},
                    {"bool", 1},    {"bytes", 1}};
    for (int dtype = 0; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
        assert_string_equal(trireme_dtype_name(dtype), expected[dtype].name);
        assert_int_equal(trireme_dtype_bytes(dtype), expected[dtype].size);
    }
    static const int32_t wrong[] = {-1, 17, INT32_MAX, INT32_MIN};
    assert_string_equal(trireme_algorithm_name(TRIREME_ALGORITHM_NATIVE + 1), "unknown");
    for (int i = 0; i < 4; ++i) {
        assert_string_equal(trireme_dtype_name(wrong[i]), "unknown");
        assert_int_equal(trireme_dtype_bytes(wrong[i]), 0);
        assert_string_equal(trireme_reduction_name(wrong[i]), "unknown");
        assert_string_equal(trireme_algorithm_name(wrong[i]), "unknown");
        assert_string_equal(trireme_status_name(wrong[i] == -1 ? 1 : wrong[i]), "UNKNOWN");
    }
}

static void reductions_algorithms_and_statuses_have_names(void **state) {
    (void)state;
    static const char *const reductions[] = {"unknown", "sum",  "average", "product", "min",
                                             "max",     "band", "bor",     "bxor",    "scaled_sum"};
    for (int i = 0; i <= TRIREME_REDUCTION_SCALED_SUM; ++i) {
        assert_string_equal(trireme_reduction_name(i), reductions[i]);
    }
    static const char *const algorithms[] = {"automatic", "direct",
                                             "ring",      "halving_doubling",
                                             "binomial",  "double_tree",
                                             "bruck",     "pairwise",
                                             "native"};
    for (int i = 0; i <= TRIREME_ALGORITHM_NATIVE; ++i) {
        assert_string_equal(trireme_algorithm_name(i), algorithms[i]);
    }
    static const char *const statuses[] =
        {"OK",          "INVALID_ARGUMENT", "INVALID_HANDLE", "INVALID_STATE",
         "UNSUPPORTED", "OUT_OF_MEMORY",    "TIMEOUT",        "ABORTED",
         "PEER_LOST",   "MISMATCH",         "CORRUPT",        "AUTHENTICATION",
         "SYSTEM",      "CALLBACK",         "CANCELLED",      "INTERNAL",
         "DEVICE",      "UNKNOWN"};
    for (int i = 0; i <= 17; ++i) assert_string_equal(trireme_status_name(-i), statuses[i]);
}

static void the_version_is_that_of_the_headers(void **state) {
    (void)state;
    assert_int_equal(trireme_version(), TRIREME_VERSION);
    assert_int_equal(TRIREME_VERSION, TRIREME_VERSION_MAJOR * 1000000 +
                                          TRIREME_VERSION_MINOR * 1000 + TRIREME_VERSION_PATCH);
    assert_non_null(strstr(trireme_build_info(), "trireme 1."));
    assert_null(strchr(trireme_build_info(), '\n'));
}

static void capabilities_say_what_has_a_meaning(void **state) {
    (void)state;
    for (trireme_dtype dtype = TRIREME_DTYPE_I8; dtype <= TRIREME_DTYPE_BYTES; ++dtype) {
        for (trireme_reduction reduction = TRIREME_REDUCTION_SUM;
             reduction <= TRIREME_REDUCTION_SCALED_SUM; ++reduction) {
            trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
            query.dtype = dtype;
            query.reduction = reduction;
            query.operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
            assert_int_equal(trireme_capability(&query), reduction_means_something(dtype, reduction)
                                                             ? TRIREME_OK
                                                             : TRIREME_ERROR_UNSUPPORTED);
        }
    }
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    assert_int_equal(trireme_capability(&query), TRIREME_OK);
    static const char *const backends[] = {"local", "frames"};
    for (int i = 0; i < 2; ++i) {
        query.backend = backends[i];
        for (trireme_operation_kind operation = 0; operation <= TRIREME_OPERATION_KIND_PROBE;
             ++operation) {
            query.operation = operation;
            assert_int_equal(trireme_capability(&query), TRIREME_OK);
        }
        query.operation = 0;
    }
    query.backend = "nccl";
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_UNSUPPORTED);
    assert_non_null(strstr(trireme_last_error(), "nccl"));
    query.backend = NULL;
    setenv("TRIREME_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1); /* a machine may have devices */
    query.device = TRIREME_DEVICE_CUDA;
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_UNSUPPORTED);
    assert_non_null(strstr(trireme_last_error(), "CUDA"));
    query.device = 5;
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_INVALID_ARGUMENT);
    query.device = 0;
    query.operation = -1;
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_INVALID_ARGUMENT);
    query.operation = TRIREME_OPERATION_KIND_PROBE + 1;
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_INVALID_ARGUMENT);
    query.operation = 0;
    query.reserved = 1;
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_INVALID_ARGUMENT);
    query.reserved = 0;
    query.struct_size = 8;
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_capability(NULL), TRIREME_ERROR_INVALID_ARGUMENT);
}

/* --- the last error --- */

struct errors {
    char before[8][600], after[8][600];
};

static void fail_on_a_thread(int index, void *context) {
    struct errors *const errors = context;
    strncpy(errors->before[index], trireme_last_error(), sizeof errors->before[index] - 1);
    int32_t rank = 0;
    if (index % 2 == 0 && trireme_communicator_get_rank(NULL, &rank) != TRIREME_OK) {
        strncpy(errors->after[index], trireme_last_error(), sizeof errors->after[index] - 1);
    }
}

static void every_thread_has_its_own_last_error(void **state) {
    (void)state;
    static struct errors errors;
    memset(&errors, 0, sizeof errors);
    assert_int_equal(trireme_capability(NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    run_threads(8, fail_on_a_thread, &errors);
    for (int i = 0; i < 8; ++i) {
        assert_string_equal(errors.before[i], "");
        assert_string_equal(errors.after[i],
                            i % 2 == 0 ? "trireme_communicator_get_rank: communicator is NULL"
                                       : "");
    }
    assert_string_equal(trireme_last_error(), "trireme_capability: query is NULL");
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    assert_int_equal(trireme_capability(&query), TRIREME_OK);
    assert_string_equal(trireme_last_error(), "trireme_capability: query is NULL");
}

static void error_info_fits_callers_of_every_release(void **state) {
    (void)state;
    assert_int_equal(trireme_capability(NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    struct {
        trireme_error_info known;
        uint64_t newer;
    } info;
    memset(&info, 0x5a, sizeof info);
    info.known.struct_size = sizeof info;
    assert_int_equal(trireme_last_error_info(&info.known), TRIREME_OK);
    assert_int_equal(info.known.struct_size, sizeof info);
    assert_int_equal(info.known.code, TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(info.known.sequence, 0);
    assert_int_equal(info.known.blamed_count, 0);
    assert_string_equal(info.known.operation, "");
    assert_int_equal(info.known.try_again, 0);
    assert_int_equal(info.newer, 0);
    info.known.struct_size = 8;
    assert_int_equal(trireme_last_error_info(&info.known), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_last_error_info(NULL), TRIREME_ERROR_INVALID_ARGUMENT);
}

/* --- log and failpoints --- */

struct heard {
    char lines[4][200];
    trireme_log_level levels[4];
    int count;
};

static void hear(trireme_log_level level, const char *message, void *user_data) {
    struct heard *const heard = user_data;
    if (heard->count < 4) {
        strncpy(heard->lines[heard->count], message, sizeof heard->lines[0] - 1);
        heard->levels[heard->count] = level;
    }
    ++heard->count;
}

static void join_and_leave(void) {
    trireme_communicator *const communicator = join_rank(0, 1, "local://heard");
    trireme_communicator_destroy(communicator);
}

static void the_log_tells_who_comes_and_goes_to_who_wants_to_hear_it(void **state) {
    (void)state;
    struct heard heard = {0};
    join_and_leave();
    assert_int_equal(trireme_set_log_callback(hear, TRIREME_LOG_WARNING, &heard), TRIREME_OK);
    join_and_leave();
    assert_int_equal(heard.count, 0);
    assert_int_equal(trireme_set_log_callback(hear, TRIREME_LOG_INFO, &heard), TRIREME_OK);
    join_and_leave();
    assert_int_equal(trireme_set_log_callback(NULL, 0, NULL), TRIREME_OK);
    join_and_leave();
    assert_int_equal(heard.count, 2);
    assert_string_equal(heard.lines[0], "rank 0 of 1 joined \"local://heard\", local (threads)");
    assert_string_equal(heard.lines[1], "rank 0 of 1 left \"local://heard\", local (threads)");
    assert_int_equal(heard.levels[0], TRIREME_LOG_INFO);
}

static void a_log_level_that_is_none_is_refused(void **state) {
    (void)state;
    static const trireme_log_level wrong[] = {0, -1, 5};
    struct heard heard = {0};
    for (int i = 0; i < 3; ++i) {
        assert_int_equal(trireme_set_log_callback(hear, wrong[i], &heard),
                         TRIREME_ERROR_INVALID_ARGUMENT);
    }
    join_and_leave();
    assert_int_equal(heard.count, 0);
}

static void failpoints_can_be_listed_and_are_never_named_twice(void **state) {
    (void)state;
    const uint32_t count = trireme_failpoint_count();
    assert_true(count > 50);
    assert_null(trireme_failpoint_name(count));
    assert_null(trireme_failpoint_name(UINT32_MAX));
    for (uint32_t i = 0; i < count; ++i) {
        assert_non_null(strchr(trireme_failpoint_name(i), '.'));
        for (uint32_t k = 0; k < i; ++k) {
            assert_string_not_equal(trireme_failpoint_name(i), trireme_failpoint_name(k));
        }
    }
}

static void a_failpoint_acts_on_its_hit_and_counts(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    assert_int_equal(trireme_failpoint_set("barrier.before_publish=fail@3;send.before_first=off"),
                     TRIREME_OK);
    assert_int_equal(trireme_barrier(alone, NULL), TRIREME_OK);
    assert_int_equal(trireme_barrier(alone, NULL), TRIREME_OK);
    assert_int_equal(trireme_barrier(alone, NULL), TRIREME_ERROR_SYSTEM);
    assert_non_null(strstr(trireme_last_error(), "barrier.before_publish"));
    uint64_t hits = 0;
    assert_int_equal(trireme_failpoint_get_hits("barrier.before_publish", &hits), TRIREME_OK);
    assert_int_equal(hits, 3);

    static const char *const wrong[] = {"nonsense",
                                        "no.such=fail",
                                        "barrier.before_publish=explode",
                                        "barrier.before_publish=fail@0",
                                        "barrier.before_publish=fail@x",
                                        "barrier.before_publish=sleep(",
                                        "barrier.before_publish="};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        assert_int_equal(trireme_failpoint_set(wrong[i]), TRIREME_ERROR_INVALID_ARGUMENT);
    }
    assert_int_equal(trireme_failpoint_get_hits("barrier.before_publish", &hits), TRIREME_OK);
    assert_int_equal(hits, 3); /* a refused text changes nothing */
    assert_int_equal(trireme_failpoint_get_hits("no.such", &hits), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_failpoint_get_hits(NULL, &hits), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_failpoint_get_hits("send.before_first", NULL),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_failpoint_set(""), TRIREME_OK);
    assert_int_equal(trireme_failpoint_get_hits("barrier.before_publish", &hits), TRIREME_OK);
    assert_int_equal(hits, 0);
    trireme_communicator_destroy(alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dtypes_have_sizes_and_names),
        cmocka_unit_test(reductions_algorithms_and_statuses_have_names),
        cmocka_unit_test(the_version_is_that_of_the_headers),
        cmocka_unit_test(capabilities_say_what_has_a_meaning),
        cmocka_unit_test(every_thread_has_its_own_last_error),
        cmocka_unit_test(error_info_fits_callers_of_every_release),
        cmocka_unit_test(the_log_tells_who_comes_and_goes_to_who_wants_to_hear_it),
        cmocka_unit_test(a_log_level_that_is_none_is_refused),
        cmocka_unit_test(failpoints_can_be_listed_and_are_never_named_twice),
        cmocka_unit_test(a_failpoint_acts_on_its_hit_and_counts),
    };
    return cmocka_run_group_tests_name("basics", tests, NULL, NULL);
}
