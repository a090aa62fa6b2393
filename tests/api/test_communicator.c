/* Communicators: joining, leaving, aborting, deadlines, queries, and fork. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"

#define SHORT_NS (20ull * 1000 * 1000)
#define UNTOUCHED ((trireme_communicator *)(uintptr_t)0x5a5a)

static trireme_communicator_options valid_options(const char *rendezvous) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.world_size = 1;
    options.rendezvous = rendezvous;
    options.timeout_ns = LONG_NS;
    return options;
}

static void answer_questions(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    int32_t number = -1;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_rank(communicator, &number));
    EXPECT(verdict, number == rank);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_world_size(communicator, &number));
    EXPECT(verdict, number == 3);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_wait_ready(communicator, LONG_NS));

    char text[64] = {0}, cut[6];
    uint64_t length = 0;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_get_backend(communicator, text, sizeof text, &length));
    EXPECT(verdict, strcmp(text, "local (threads)") == 0 && length == strlen(text));
    memset(cut, 'x', sizeof cut);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_get_backend(communicator, cut, 6, NULL));
    EXPECT(verdict, strcmp(cut, "local") == 0);
    length = 0;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_communicator_get_backend(communicator, NULL, 0, &length));
    EXPECT(verdict, length == strlen(text));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_communicator_get_backend(communicator, NULL, 1, NULL));
}

static void a_communicator_knows_who_and_what_it_is(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, answer_questions, verdicts);
    assert_verdicts(verdicts, 3);
}

static void bad_options_are_refused_with_the_field_named_and_nothing_written(void **state) {
    (void)state;
    char rendezvous[64], long_name[65];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    memset(long_name, 'n', 64);
    long_name[64] = 0;
    struct {
        const char *field;
        trireme_status status;
        trireme_communicator_options options;
    } cases[16];
    const size_t count = sizeof cases / sizeof *cases;
    for (size_t i = 0; i < count; ++i) {
        cases[i].options = valid_options(rendezvous);
        cases[i].status = TRIREME_ERROR_INVALID_ARGUMENT;
    }
    size_t i = 0;
    cases[i].field = "world_size", cases[i++].options.world_size = 0;
    cases[i].field = "world_size", cases[i++].options.world_size = -3;
    cases[i].field = "world", cases[i].status = TRIREME_ERROR_UNSUPPORTED;
    cases[i++].options.world_size = INT32_MAX;
    cases[i].field = "rank", cases[i++].options.rank = 1;
    cases[i].field = "rank", cases[i++].options.rank = -1;
    cases[i].field = "flags", cases[i++].options.flags = 1;
    cases[i].field = "rendezvous", cases[i++].options.rendezvous = NULL;
    cases[i].field = "rendezvous", cases[i++].options.rendezvous = "local://\xff\xfe";
    cases[i].field = "local://", cases[i++].options.rendezvous = "local://";
    cases[i].field = "name", cases[i++].options.name = "\xc0\x80";
    cases[i].field = "name", cases[i++].options.name = long_name;
    cases[i].field = "struct_size", cases[i++].options.struct_size = 0;
    cases[i].field = "struct_size", cases[i++].options.struct_size = 71;
    cases[i].field = "device", cases[i++].options.device.kind = 77;
    cases[i].field = "device", cases[i++].options.device.index = 1;
    setenv("TRIREME_CUDA_DRIVER", "/nowhere/libcuda.so.1", 1); /* a machine may have devices */
    cases[i].field = "device", cases[i].status = TRIREME_ERROR_UNSUPPORTED;
    cases[i++].options.device.kind = TRIREME_DEVICE_CUDA;
    assert_int_equal(i, count);
    for (i = 0; i < count; ++i) {
        trireme_communicator *communicator = UNTOUCHED;
        assert_int_equal(trireme_communicator_create(&cases[i].options, &communicator),
                         cases[i].status);
        assert_ptr_equal(communicator, UNTOUCHED);
        assert_non_null(strstr(trireme_last_error(), "trireme_communicator_create: "));
        if (strstr(trireme_last_error(), cases[i].field) == NULL) {
            fail_msg("case %zu: \"%s\" does not name %s", i, trireme_last_error(), cases[i].field);
        }
    }
    trireme_communicator *communicator = UNTOUCHED;
    trireme_communicator_options options = valid_options(rendezvous);
    assert_int_equal(trireme_communicator_create(NULL, &communicator),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_communicator_create(&options, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    options.backend = "teleport";
    assert_int_equal(trireme_communicator_create(&options, &communicator),
                     TRIREME_ERROR_UNSUPPORTED);
    assert_non_null(strstr(trireme_last_error(), "teleport"));
    options = valid_options("pigeon://post");
    const trireme_status status = trireme_communicator_create(&options, &communicator);
    assert_true(status == TRIREME_ERROR_UNSUPPORTED || status == TRIREME_ERROR_INVALID_ARGUMENT);
    assert_ptr_equal(communicator, UNTOUCHED);
}

static void options_of_other_releases_are_understood_or_refused(void **state) {
    (void)state;
    struct {
        trireme_communicator_options known;
        uint64_t newer;
    } options;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    memset(&options, 0, sizeof options);
    options.known = valid_options(rendezvous);
    options.known.struct_size = sizeof options;
    options.newer = 1;
    trireme_communicator *communicator = UNTOUCHED;
    assert_int_equal(trireme_communicator_create(&options.known, &communicator),
                     TRIREME_ERROR_UNSUPPORTED);
    assert_ptr_equal(communicator, UNTOUCHED);
    options.newer = 0;
    assert_int_equal(trireme_communicator_create(&options.known, &communicator), TRIREME_OK);

    struct {
        trireme_communicator_statistics known;
        uint64_t newer;
    } statistics;
    memset(&statistics, 0x5a, sizeof statistics);
    statistics.known.struct_size = sizeof statistics;
    assert_int_equal(trireme_communicator_get_statistics(communicator, &statistics.known),
                     TRIREME_OK);
    assert_int_equal(statistics.known.struct_size, sizeof statistics);
    assert_int_equal(statistics.known.operations, 0);
    assert_int_equal(statistics.newer, 0);
    statistics.known.struct_size = 39;
    assert_int_equal(trireme_communicator_get_statistics(communicator, &statistics.known),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    trireme_communicator_destroy(communicator);
}

static void a_rank_can_be_claimed_once(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const first = join_rank(0, 2, rendezvous);
    trireme_communicator_options options = valid_options(rendezvous);
    options.world_size = 2;
    trireme_communicator *second = UNTOUCHED;
    assert_int_equal(trireme_communicator_create(&options, &second),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(trireme_last_error(), "rank 0"));
    options.rank = 1;
    options.world_size = 3;
    assert_int_equal(trireme_communicator_create(&options, &second), TRIREME_ERROR_MISMATCH);
    assert_ptr_equal(second, UNTOUCHED);
    trireme_communicator_destroy(first);
}

/* --- deadlines, abort, leaving --- */

static void a_missing_rank_is_named_when_the_deadline_passes(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const ranks[2] = {join_rank(0, 3, rendezvous),
                                            join_rank(2, 3, rendezvous)};
    assert_int_equal(trireme_communicator_wait_ready(ranks[0], 0), TRIREME_ERROR_TIMEOUT);
    assert_int_equal(trireme_communicator_wait_ready(ranks[1], SHORT_NS), TRIREME_ERROR_TIMEOUT);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    assert_int_equal(trireme_last_error_info(&info), TRIREME_OK);
    assert_int_equal(info.blamed_count, 1);
    assert_int_equal(info.blamed[0], 1);

    trireme_operation_options soon = TRIREME_OPERATION_OPTIONS_INIT;
    soon.timeout_ns = SHORT_NS;
    float value = 1, sum = 0;
    assert_int_equal(trireme_all_reduce(ranks[0], &value, &sum, 1, TRIREME_DTYPE_F32,
                                        TRIREME_REDUCTION_SUM, &soon),
                     TRIREME_ERROR_TIMEOUT);
    assert_non_null(strstr(trireme_last_error(), "trireme_all_reduce: "));
    assert_non_null(strstr(trireme_last_error(), "rank"));
    assert_int_equal(trireme_last_error_info(&info), TRIREME_OK);
    assert_int_equal(info.code, TRIREME_ERROR_TIMEOUT);
    assert_string_equal(info.operation, "all_reduce");
    assert_string_equal(info.communicator, rendezvous);
    assert_int_equal(info.sequence, 1);
    int blames_rank_1 = 0;
    for (uint32_t i = 0; i < info.blamed_count && i < TRIREME_MAX_BLAMED_RANKS; ++i) {
        if (info.blamed[i] == 1) blames_rank_1 = 1;
    }
    assert_true(blames_rank_1);
    for (int i = 0; i < 2; ++i) trireme_communicator_destroy(ranks[i]);
}

/* Its last wait ended because rank 0 left: its earlier TIMEOUT is no reason any more. */
static void who_was_late_once_does_not_say_so_when_it_leaves_because_of_another(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *ranks[4] = {NULL};
    for (int rank = 0; rank < 3; ++rank) ranks[rank] = join_rank(rank, 4, rendezvous);
    assert_int_equal(trireme_communicator_wait_ready(ranks[1], SHORT_NS), TRIREME_ERROR_TIMEOUT);
    trireme_communicator_destroy(ranks[0]);
    assert_int_equal(trireme_communicator_wait_ready(ranks[1], LONG_NS), TRIREME_ERROR_PEER_LOST);
    trireme_communicator_destroy(ranks[1]);
    assert_int_equal(trireme_communicator_wait_ready(ranks[2], LONG_NS), TRIREME_ERROR_PEER_LOST);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    assert_int_equal(trireme_last_error_info(&info), TRIREME_OK);
    assert_int_equal(info.blamed_count, 2);
    assert_int_equal(info.blamed[0], 0);
    assert_int_equal(info.blamed[1], 1);
    trireme_communicator_destroy(ranks[2]);
}

static void wait_for_an_abort(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    if (rank == 3) {
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_abort(communicator, "not\ntoday"));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_abort(communicator, NULL));
    }
    for (int i = 0; i < 2; ++i) {
        EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED, trireme_barrier(communicator, NULL));
        EXPECT(verdict, strstr(trireme_last_error(), "rank 3 aborted: \"not today\"") != NULL);
    }
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(verdict, info.blamed_count == 1 && info.blamed[0] == 3);
    trireme_request *request = (trireme_request *)(uintptr_t)0x77;
    EXPECT_STATUS(verdict, TRIREME_ERROR_ABORTED,
                  trireme_barrier_start(communicator, NULL, &request));
    EXPECT(verdict, request == (trireme_request *)(uintptr_t)0x77);
}

static void an_abort_ends_every_operation_on_every_rank_and_the_first_reason_stays(void **state) {
    (void)state;
    struct verdict verdicts[4] = {0};
    run_ranks(4, wait_for_an_abort, verdicts);
    assert_verdicts(verdicts, 4);
}

struct two_threads {
    trireme_communicator *communicator;
    trireme_status status, abort_status;
};

static void block_or_end(int index, void *context) {
    struct two_threads *const all = context;
    if (index == 0) {
        all->status = trireme_barrier(all->communicator, NULL);
    } else if (index == 1) {
        all->abort_status = trireme_communicator_abort(all->communicator, "from beside");
    } else {
        trireme_communicator_destroy(all->communicator);
    }
}

static void another_thread_can_abort_or_destroy_while_one_waits(void **state) {
    (void)state;
    for (int turn = 0; turn < 20; ++turn) {
        char rendezvous[64];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        struct two_threads all = {join_rank(0, 2, rendezvous), TRIREME_OK, TRIREME_OK};
        trireme_communicator *const peer = join_rank(1, 2, rendezvous);
        run_threads(turn % 2 == 0 ? 2 : 3, block_or_end, &all);
        assert_true(all.abort_status == TRIREME_OK ||
                    (turn % 2 == 1 && all.abort_status == TRIREME_ERROR_INVALID_HANDLE));
        /* Aborted; or, where the destruction came first, lost or no handle any more. */
        assert_true(all.status == TRIREME_ERROR_ABORTED ||
                    (turn % 2 == 1 && (all.status == TRIREME_ERROR_INVALID_HANDLE ||
                                       all.status == TRIREME_ERROR_INVALID_STATE ||
                                       all.status == TRIREME_ERROR_PEER_LOST)));
        trireme_communicator_destroy(all.communicator);
        trireme_communicator_destroy(peer);
    }
}

static void wait_or_destroy(int index, void *context) {
    struct two_threads *const all = context;
    if (index == 0) {
        all->status = trireme_communicator_wait_ready(all->communicator, LONG_NS);
    } else {
        trireme_communicator_destroy(all->communicator);
    }
}

static void destruction_ends_a_wait_for_the_peers(void **state) {
    (void)state;
    for (int turn = 0; turn < 20; ++turn) {
        char rendezvous[64];
        unique_rendezvous(rendezvous, sizeof rendezvous);
        struct two_threads all = {join_rank(0, 2, rendezvous), TRIREME_OK, TRIREME_OK};
        run_threads(2, wait_or_destroy, &all);
        assert_true(all.status == TRIREME_ERROR_PEER_LOST ||
                    all.status == TRIREME_ERROR_INVALID_HANDLE ||
                    all.status == TRIREME_ERROR_INVALID_STATE);
    }
}

struct leaving {
    struct verdict verdicts[3];
    pthread_barrier_t both_done; /* of those who stay: the next operation fails the group */
};

static void leave_after_one(trireme_communicator *communicator, int rank, void *context) {
    struct leaving *const leaving = context;
    struct verdict *const verdict = &leaving->verdicts[rank];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    if (rank == 1) return;
    pthread_barrier_wait(&leaving->both_done);
    EXPECT_STATUS(verdict, TRIREME_ERROR_PEER_LOST, trireme_barrier(communicator, NULL));
    EXPECT(verdict, strstr(trireme_last_error(), "rank") != NULL);
}

static void a_rank_that_leaves_does_not_disturb_what_is_done_but_ends_what_follows(void **state) {
    (void)state;
    for (int turn = 0; turn < 20; ++turn) {
        struct leaving leaving;
        memset(&leaving, 0, sizeof leaving);
        pthread_barrier_init(&leaving.both_done, NULL, 2);
        run_ranks(3, leave_after_one, &leaving);
        pthread_barrier_destroy(&leaving.both_done);
        assert_verdicts(leaving.verdicts, 3);
    }
}

static void an_operation_waits_for_a_rank_that_joins_later(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *ranks[2] = {join_rank(0, 2, rendezvous), NULL};
    trireme_request *barrier = NULL, *message = NULL;
    int32_t out = 5, in = 0;
    assert_int_equal(trireme_barrier_start(ranks[0], NULL, &barrier), TRIREME_OK);
    assert_int_equal(trireme_send_start(ranks[0], &out, 1, TRIREME_DTYPE_I32, 1, 0, NULL, &message),
                     TRIREME_OK);
    assert_int_equal(trireme_request_wait(barrier, SHORT_NS), TRIREME_ERROR_TIMEOUT);
    ranks[1] = join_rank(1, 2, rendezvous);
    assert_int_equal(trireme_receive(ranks[1], &in, 1, TRIREME_DTYPE_I32, 0, 0, NULL), TRIREME_OK);
    assert_int_equal(in, 5);
    assert_int_equal(trireme_barrier(ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(barrier, LONG_NS), TRIREME_OK);
    assert_int_equal(trireme_request_wait(message, LONG_NS), TRIREME_OK);
    trireme_request_destroy(barrier);
    trireme_request_destroy(message);
    for (int i = 0; i < 2; ++i) trireme_communicator_destroy(ranks[i]);
}

static void a_group_of_one_needs_nobody(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    assert_int_equal(trireme_communicator_wait_ready(alone, 0), TRIREME_OK);
    float value = 3, result = 0;
    assert_int_equal(trireme_all_reduce(alone, &value, &result, 1, TRIREME_DTYPE_F32,
                                        TRIREME_REDUCTION_AVERAGE, NULL),
                     TRIREME_OK);
    assert_true(result == 3);
    trireme_communicator_destroy(alone);
}

/* --- statistics and flight record --- */

static uint64_t lines_of(const char *text) {
    uint64_t lines = 0;
    for (; *text != 0; ++text) lines += *text == '\n';
    return lines;
}

static char *record_of(trireme_communicator *communicator) {
    uint64_t length = 0;
    assert_int_equal(trireme_communicator_get_flight_record(communicator, NULL, 0, &length),
                     TRIREME_OK);
    char *const text = malloc(length + 1);
    assert_non_null(text);
    assert_int_equal(trireme_communicator_get_flight_record(communicator, text, length + 1, NULL),
                     TRIREME_OK);
    assert_int_equal(strlen(text), length);
    return text;
}

static void the_flight_record_tells_the_last_operations(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    char *text = record_of(alone);
    assert_string_equal(text, "");
    free(text);
    double data[3] = {0};
    assert_int_equal(trireme_broadcast(alone, data, 3, TRIREME_DTYPE_F64, 0, NULL), TRIREME_OK);
    trireme_request *request = NULL;
    assert_int_equal(trireme_receive_start(alone, data, 2, TRIREME_DTYPE_U8, 0, 1, NULL, &request),
                     TRIREME_OK);
    text = record_of(alone);
    assert_int_equal(lines_of(text), 2);
    assert_non_null(strstr(text,
                           "{\"sequence\":1,\"operation\":\"broadcast\",\"dtype\":\"f64\","
                           "\"count\":3,\"root\":0,\"start_ns\":"));
    assert_non_null(strstr(text, "\"status\":\"OK\"}\n"));
    assert_non_null(
        strstr(text, "\"operation\":\"receive\",\"dtype\":\"u8\",\"count\":2,\"peer\":0"));
    assert_non_null(strstr(text, "\"end_ns\":null,\"status\":null}\n"));
    free(text);
    assert_int_equal(trireme_request_cancel(request), TRIREME_OK);
    trireme_request_destroy(request);
    for (int i = 0; i < 3000; ++i) assert_int_equal(trireme_barrier(alone, NULL), TRIREME_OK);
    text = record_of(alone);
    assert_int_equal(lines_of(text), 2048);
    assert_null(strstr(text, "broadcast"));
    assert_non_null(strstr(text, "{\"sequence\":954,")); /* 3001 - 2048 + 1: the oldest */
    assert_non_null(strstr(text, "{\"sequence\":3001,"));
    free(text);

    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    assert_int_equal(trireme_communicator_get_statistics(alone, &statistics), TRIREME_OK);
    assert_int_equal(statistics.operations, 3002);
    assert_int_equal(statistics.failures, 1);
    trireme_communicator_destroy(alone);
}

/* --- handles --- */

static void every_function_refuses_what_is_no_communicator(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const live = join_rank(0, 1, rendezvous);
    trireme_buffer *buffer = NULL;
    assert_int_equal(trireme_buffer_alloc(live, 8, &buffer), TRIREME_OK);
    trireme_communicator *const stale = join_rank(0, 1, "local://stale");
    trireme_communicator_destroy(stale);
    trireme_communicator_destroy(stale);
    trireme_communicator_destroy(NULL);
    trireme_communicator_destroy((trireme_communicator *)buffer);
    trireme_communicator *const wrong[] = {NULL, stale, (trireme_communicator *)buffer, UNTOUCHED};
    for (int i = 0; i < 4; ++i) {
        int32_t number = 7;
        trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
        const trireme_status expected = TRIREME_ERROR_INVALID_HANDLE;
        assert_int_equal(trireme_communicator_wait_ready(wrong[i], 0), expected);
        assert_int_equal(trireme_communicator_get_rank(wrong[i], &number), expected);
        assert_int_equal(trireme_communicator_get_world_size(wrong[i], &number), expected);
        assert_int_equal(number, 7);
        assert_int_equal(trireme_communicator_get_backend(wrong[i], NULL, 0, NULL), expected);
        assert_int_equal(trireme_communicator_abort(wrong[i], NULL), expected);
        assert_int_equal(trireme_communicator_get_statistics(wrong[i], &statistics), expected);
        assert_int_equal(trireme_communicator_get_flight_record(wrong[i], NULL, 0, NULL), expected);
        assert_int_equal(trireme_communicator_get_last_calls(wrong[i], NULL, 0, NULL), expected);
        assert_int_equal(trireme_barrier(wrong[i], NULL), expected);
        assert_non_null(strstr(trireme_last_error(), "communicator"));
    }
    assert_int_equal(trireme_communicator_get_rank(live, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_communicator_get_world_size(live, NULL),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_communicator_get_statistics(live, NULL),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_communicator_get_flight_record(live, NULL, 5, NULL),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    uint64_t length = 77;
    assert_int_equal(trireme_communicator_get_last_calls(live, NULL, 5, &length),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(length, 77);
    assert_int_equal(trireme_barrier(live, NULL), TRIREME_OK);
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(live);
}

static void handles_mean_nothing_in_a_forked_child(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const communicator = join_rank(0, 1, rendezvous);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        const int refused = trireme_barrier(communicator, NULL) == TRIREME_ERROR_INVALID_HANDLE &&
                            strstr(trireme_last_error(), "fork") != NULL;
        trireme_communicator_destroy(communicator);
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(trireme_barrier(communicator, NULL), TRIREME_OK);
    trireme_communicator_destroy(communicator);
}

/* --- env:// --- */

static void clear_environment(void) {
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "TRIREME_RENDEZVOUS",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TRIREME_TOKEN",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "TRIREME_MPI_LIBRARY",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "GROUP_WORLD_SIZE",
                                        "NNODES",
                                        "TRIREME_TOKEN_FILE",
                                        "TRIREME_TOKEN_FD"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) unsetenv(names[i]);
}

static trireme_status
create_from_environment(int32_t rank, int32_t world_size, trireme_communicator **out) {
    trireme_communicator_options options = valid_options("env://");
    options.rank = rank;
    options.world_size = world_size;
    return trireme_communicator_create(&options, out);
}

static void the_environment_tells_rank_world_size_and_rendezvous(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    clear_environment();
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("TRIREME_RENDEZVOUS", rendezvous, 1);
    trireme_communicator *ranks[2] = {NULL, NULL};
    assert_int_equal(create_from_environment(0, 0, &ranks[1]), TRIREME_OK);
    int32_t number = 0;
    assert_int_equal(trireme_communicator_get_rank(ranks[1], &number), TRIREME_OK);
    assert_int_equal(number, 1);
    setenv("RANK", "0", 1);
    assert_int_equal(create_from_environment(0, 2, &ranks[0]), TRIREME_OK);
    assert_int_equal(trireme_communicator_wait_ready(ranks[0], LONG_NS), TRIREME_OK);
    for (int i = 0; i < 2; ++i) trireme_communicator_destroy(ranks[i]);
    clear_environment();
}

/* In the order of the documentation: each one set before the last one counts for more. */
static void other_starters_variables_are_understood(void **state) {
    (void)state;
    static const char *const names[][2] = {{"SLURM_PROCID", "SLURM_NTASKS"},
                                           {"PMI_RANK", "PMI_SIZE"},
                                           {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                           {"RANK", "WORLD_SIZE"}};
    clear_environment();
    for (int i = 0; i < 4; ++i) {
        char rank[8], size[8], rendezvous[64];
        snprintf(rank, sizeof rank, "%d", i);
        snprintf(size, sizeof size, "%d", i + 2);
        setenv(names[i][0], rank, 1);
        setenv(names[i][1], size, 1);
        unique_rendezvous(rendezvous, sizeof rendezvous);
        setenv("TRIREME_RENDEZVOUS", rendezvous, 1);
        trireme_communicator *communicator = NULL;
        assert_int_equal(create_from_environment(0, 0, &communicator), TRIREME_OK);
        int32_t number = -1;
        assert_int_equal(trireme_communicator_get_rank(communicator, &number), TRIREME_OK);
        assert_int_equal(number, i);
        assert_int_equal(trireme_communicator_get_world_size(communicator, &number), TRIREME_OK);
        assert_int_equal(number, i + 2);
        trireme_communicator_destroy(communicator);
    }
    for (int i = 0; i < 3; ++i) { /* one of a pair is no place */
        clear_environment();
        setenv(names[i][0], "0", 1);
        trireme_communicator *communicator = NULL;
        assert_int_equal(create_from_environment(0, 0, &communicator),
                         TRIREME_ERROR_INVALID_ARGUMENT);
        assert_non_null(strstr(trireme_last_error(), names[i][1]));
    }
    clear_environment();
}

static void mpi_says_what_it_tried(void **state) {
    (void)state;
    clear_environment();
    trireme_communicator_options options = valid_options("mpi://");
    options.rank = options.world_size = 0;
    trireme_communicator *communicator = NULL;
    assert_int_equal(trireme_communicator_create(&options, &communicator),
                     TRIREME_ERROR_INVALID_STATE);
    assert_non_null(strstr(trireme_last_error(), "OMPI_COMM_WORLD_RANK"));
    assert_non_null(strstr(trireme_last_error(), "PMI_RANK"));
    setenv("TRIREME_MPI_LIBRARY", "/nowhere/plugin.so", 1);
    assert_int_equal(trireme_communicator_create(&options, &communicator),
                     TRIREME_ERROR_UNSUPPORTED);
    assert_non_null(strstr(trireme_last_error(), "/nowhere/plugin.so"));
    setenv("TRIREME_MPI_LIBRARY", "libc.so.6", 1);
    assert_int_equal(trireme_communicator_create(&options, &communicator),
                     TRIREME_ERROR_UNSUPPORTED);
    assert_non_null(strstr(trireme_last_error(), "libc.so.6 is not a plugin of Trireme"));
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    query.backend = "mpi";
    assert_int_equal(trireme_capability(&query), TRIREME_ERROR_UNSUPPORTED);
    assert_non_null(strstr(trireme_last_error(), "libc.so.6"));
    options.backend = "frames"; /* said before MPI is looked for */
    options.world_size = 1;
    assert_int_equal(trireme_communicator_create(&options, &communicator),
                     TRIREME_ERROR_UNSUPPORTED);
    assert_non_null(strstr(trireme_last_error(), "\"frames\""));
    assert_null(communicator);
    clear_environment();
}

static void a_token_makes_the_rendezvous_and_stays_secret(void **state) {
    (void)state;
    clear_environment();
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", "29500", 1);
    char token[64];
    snprintf(token, sizeof token, "secret-%ld", (long)getpid());
    setenv("TRIREME_TOKEN", token, 1);
    trireme_communicator *communicator = NULL;
    assert_int_equal(create_from_environment(0, 0, &communicator), TRIREME_OK);
    assert_int_equal(trireme_communicator_wait_ready(communicator, 0), TRIREME_ERROR_TIMEOUT);
    assert_null(strstr(trireme_last_error(), "secret"));
    assert_int_equal(trireme_communicator_abort(communicator, NULL), TRIREME_OK);
    assert_int_equal(trireme_barrier(communicator, NULL), TRIREME_ERROR_ABORTED);
    assert_null(strstr(trireme_last_error(), "secret"));
    assert_non_null(strstr(trireme_last_error(), "host://env-"));
    trireme_communicator_destroy(communicator);
    clear_environment();
}

static void an_environment_that_lacks_something_or_disagrees_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *variable, *value;
    } bad[] = {{"RANK", NULL},         {"RANK", "one"},       {"RANK", "-1"},
               {"RANK", "2"},          {"RANK", "0x1"},       {"WORLD_SIZE", NULL},
               {"WORLD_SIZE", "0"},    {"WORLD_SIZE", "2 "},  {"WORLD_SIZE", "99999999999"},
               {"MASTER_ADDR", NULL},  {"MASTER_PORT", NULL}, {"MASTER_PORT", "port"},
               {"TRIREME_TOKEN", NULL}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        clear_environment();
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "2", 1);
        setenv("MASTER_ADDR", "localhost", 1);
        setenv("MASTER_PORT", "29500", 1);
        setenv("TRIREME_TOKEN", "hush", 1);
        if (bad[i].value == NULL) {
            unsetenv(bad[i].variable);
        } else {
            setenv(bad[i].variable, bad[i].value, 1);
        }
        trireme_communicator *communicator = UNTOUCHED;
        assert_int_equal(create_from_environment(0, 0, &communicator),
                         TRIREME_ERROR_INVALID_ARGUMENT);
        assert_ptr_equal(communicator, UNTOUCHED);
        assert_null(strstr(trireme_last_error(), "hush"));
        if (strcmp(bad[i].variable, "RANK") != 0 || bad[i].value == NULL ||
            bad[i].value[0] != '2') {
            assert_non_null(strstr(trireme_last_error(), bad[i].variable));
        }
    }
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    setenv("TRIREME_TOKEN", "hush", 1);
    trireme_communicator *communicator = UNTOUCHED;
    assert_int_equal(create_from_environment(0, 3, &communicator), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(trireme_last_error(), "world_size"));
    setenv("WORLD_SIZE", "3", 1);
    assert_int_equal(create_from_environment(2, 0, &communicator), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(trireme_last_error(), "rank"));
    setenv("TRIREME_RENDEZVOUS", "env://", 1);
    assert_int_equal(create_from_environment(0, 0, &communicator), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_ptr_equal(communicator, UNTOUCHED);
    clear_environment();
}

/* A token that is too short for a network tells where ranks would meet, without one. */
static void a_master_elsewhere_is_met_over_the_network(void **state) {
    (void)state;
    static const struct {
        const char *master, *variable, *value;
        trireme_status status;
    } cases[] = {
        {"192.0.2.1", NULL, NULL, TRIREME_ERROR_AUTHENTICATION},
        {"192.0.2.1", "LOCAL_WORLD_SIZE", "2", TRIREME_ERROR_AUTHENTICATION},
        {"no-such-host", "NNODES", "2", TRIREME_ERROR_AUTHENTICATION},
        {"2001:db8::1", NULL, NULL, TRIREME_ERROR_AUTHENTICATION},
        {"192.0.2.1", "LOCAL_WORLD_SIZE", "4", TRIREME_OK},
        {"192.0.2.1", "GROUP_WORLD_SIZE", "1", TRIREME_OK},
        {"127.0.0.1", NULL, NULL, TRIREME_OK},
        {"localhost", "LOCAL_RANK", "1", TRIREME_OK},
        {"::1", NULL, NULL, TRIREME_OK},
        {"127.0.0.1", "LOCAL_WORLD_SIZE", "2", TRIREME_ERROR_INVALID_ARGUMENT},
        {"localhost", "LOCAL_RANK", "0", TRIREME_ERROR_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        clear_environment();
        setenv("RANK", "1", 1);
        setenv("WORLD_SIZE", "4", 1);
        setenv("MASTER_ADDR", cases[i].master, 1);
        setenv("MASTER_PORT", "29500", 1);
        setenv("TRIREME_TOKEN", "hush", 1);
        if (cases[i].variable != NULL) setenv(cases[i].variable, cases[i].value, 1);
        trireme_communicator *communicator = NULL;
        const trireme_status status = create_from_environment(0, 0, &communicator);
        if (status != cases[i].status) {
            fail_msg("case %zu: %s, %s", i, trireme_status_name(status), trireme_last_error());
        }
        if (status == TRIREME_ERROR_INVALID_ARGUMENT) {
            assert_non_null(strstr(trireme_last_error(), "MASTER_ADDR"));
            assert_non_null(strstr(trireme_last_error(), cases[i].variable));
        }
        trireme_communicator_destroy(communicator);
    }
    clear_environment();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_communicator_knows_who_and_what_it_is),
        cmocka_unit_test(bad_options_are_refused_with_the_field_named_and_nothing_written),
        cmocka_unit_test(options_of_other_releases_are_understood_or_refused),
        cmocka_unit_test(a_rank_can_be_claimed_once),
        cmocka_unit_test(a_missing_rank_is_named_when_the_deadline_passes),
        cmocka_unit_test(who_was_late_once_does_not_say_so_when_it_leaves_because_of_another),
        cmocka_unit_test(an_abort_ends_every_operation_on_every_rank_and_the_first_reason_stays),
        cmocka_unit_test(another_thread_can_abort_or_destroy_while_one_waits),
        cmocka_unit_test(destruction_ends_a_wait_for_the_peers),
        cmocka_unit_test(a_rank_that_leaves_does_not_disturb_what_is_done_but_ends_what_follows),
        cmocka_unit_test(an_operation_waits_for_a_rank_that_joins_later),
        cmocka_unit_test(a_group_of_one_needs_nobody),
        cmocka_unit_test(the_flight_record_tells_the_last_operations),
        cmocka_unit_test(every_function_refuses_what_is_no_communicator),
        cmocka_unit_test(handles_mean_nothing_in_a_forked_child),
        cmocka_unit_test(the_environment_tells_rank_world_size_and_rendezvous),
        cmocka_unit_test(other_starters_variables_are_understood),
        cmocka_unit_test(mpi_says_what_it_tried),
        cmocka_unit_test(a_token_makes_the_rendezvous_and_stays_secret),
        cmocka_unit_test(an_environment_that_lacks_something_or_disagrees_is_refused_by_name),
        cmocka_unit_test(a_master_elsewhere_is_met_over_the_network),
    };
    return cmocka_run_group_tests_name("communicators", tests, NULL, NULL);
}
