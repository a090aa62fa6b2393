/* Bad arguments of every operation: refused by name, with nothing written and the group unharmed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "ranks.h"

#define UNTOUCHED ((trireme_request *)(uintptr_t)0x5a5a)

/* All arguments of all operations; each test spoils one of them. */
struct arguments {
    trireme_communicator *communicator;
    const void *send;
    void *receive;
    uint64_t count;
    const uint64_t *counts;
    trireme_dtype dtype;
    trireme_reduction reduction;
    int32_t rank; /* root or peer */
    const trireme_operation_options *options;
    trireme_request **out_request; /* NULL in a plain call */
    int started;
};

/* Operations by their number in TRIREME_OPERATION_KIND_*. */
static trireme_status call(trireme_operation_kind operation, const struct arguments *a) {
    const int started = a->started;
    switch (operation) {
        case TRIREME_OPERATION_KIND_ALL_REDUCE:
            return started ? trireme_all_reduce_start(a->communicator, a->send, a->receive,
                                                      a->count, a->dtype, a->reduction, a->options,
                                                      a->out_request)
                           : trireme_all_reduce(a->communicator, a->send, a->receive, a->count,
                                                a->dtype, a->reduction, a->options);
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER:
            return started ? trireme_reduce_scatter_start(a->communicator, a->send, a->receive,
                                                          a->count, a->dtype, a->reduction,
                                                          a->options, a->out_request)
                           : trireme_reduce_scatter(a->communicator, a->send, a->receive, a->count,
                                                    a->dtype, a->reduction, a->options);
        case TRIREME_OPERATION_KIND_REDUCE_SCATTER_V:
            return started
                       ? trireme_reduce_scatter_v_start(a->communicator, a->send, a->receive,
                                                        a->counts, a->dtype, a->reduction,
                                                        a->options, a->out_request)
                       : trireme_reduce_scatter_v(a->communicator, a->send, a->receive, a->counts,
                                                  a->dtype, a->reduction, a->options);
        case TRIREME_OPERATION_KIND_ALL_GATHER:
            return started
                       ? trireme_all_gather_start(a->communicator, a->send, a->receive, a->count,
                                                  a->dtype, a->options, a->out_request)
                       : trireme_all_gather(a->communicator, a->send, a->receive, a->count,
                                            a->dtype, a->options);
        case TRIREME_OPERATION_KIND_ALL_GATHER_V:
            return started
                       ? trireme_all_gather_v_start(a->communicator, a->send, a->receive, a->counts,
                                                    a->dtype, a->options, a->out_request)
                       : trireme_all_gather_v(a->communicator, a->send, a->receive, a->counts,
                                              a->dtype, a->options);
        case TRIREME_OPERATION_KIND_BROADCAST:
            return started ? trireme_broadcast_start(a->communicator, a->receive, a->count,
                                                     a->dtype, a->rank, a->options, a->out_request)
                           : trireme_broadcast(a->communicator, a->receive, a->count, a->dtype,
                                               a->rank, a->options);
        case TRIREME_OPERATION_KIND_BARRIER:
            return started ? trireme_barrier_start(a->communicator, a->options, a->out_request)
                           : trireme_barrier(a->communicator, a->options);
        case TRIREME_OPERATION_KIND_SEND:
            return started ? trireme_send_start(a->communicator, a->send, a->count, a->dtype,
                                                a->rank, 0, a->options, a->out_request)
                           : trireme_send(a->communicator, a->send, a->count, a->dtype, a->rank, 0,
                                          a->options);
        case TRIREME_OPERATION_KIND_REDUCE:
            return started ? trireme_reduce_start(a->communicator, a->send, a->receive, a->count,
                                                  a->dtype, a->reduction, a->rank, a->options,
                                                  a->out_request)
                           : trireme_reduce(a->communicator, a->send, a->receive, a->count,
                                            a->dtype, a->reduction, a->rank, a->options);
        case TRIREME_OPERATION_KIND_GATHER:
            return started ? trireme_gather_start(a->communicator, a->send, a->receive, a->count,
                                                  a->dtype, a->rank, a->options, a->out_request)
                           : trireme_gather(a->communicator, a->send, a->receive, a->count,
                                            a->dtype, a->rank, a->options);
        case TRIREME_OPERATION_KIND_GATHER_V:
            return started ? trireme_gather_v_start(a->communicator, a->send, a->receive, a->counts,
                                                    a->dtype, a->rank, a->options, a->out_request)
                           : trireme_gather_v(a->communicator, a->send, a->receive, a->counts,
                                              a->dtype, a->rank, a->options);
        case TRIREME_OPERATION_KIND_SCATTER:
            return started ? trireme_scatter_start(a->communicator, a->send, a->receive, a->count,
                                                   a->dtype, a->rank, a->options, a->out_request)
                           : trireme_scatter(a->communicator, a->send, a->receive, a->count,
                                             a->dtype, a->rank, a->options);
        case TRIREME_OPERATION_KIND_SCATTER_V:
            return started
                       ? trireme_scatter_v_start(a->communicator, a->send, a->receive, a->counts,
                                                 a->dtype, a->rank, a->options, a->out_request)
                       : trireme_scatter_v(a->communicator, a->send, a->receive, a->counts,
                                           a->dtype, a->rank, a->options);
        case TRIREME_OPERATION_KIND_ALL_TO_ALL:
            return started
                       ? trireme_all_to_all_start(a->communicator, a->send, a->receive, a->count,
                                                  a->dtype, a->options, a->out_request)
                       : trireme_all_to_all(a->communicator, a->send, a->receive, a->count,
                                            a->dtype, a->options);
        case TRIREME_OPERATION_KIND_ALL_TO_ALL_V:
            return started
                       ? trireme_all_to_all_v_start(a->communicator, a->send, a->counts, a->receive,
                                                    a->counts, a->dtype, a->options, a->out_request)
                       : trireme_all_to_all_v(a->communicator, a->send, a->counts, a->receive,
                                              a->counts, a->dtype, a->options);
        default:
            return started ? trireme_receive_start(a->communicator, a->receive, a->count, a->dtype,
                                                   a->rank, 0, a->options, a->out_request)
                           : trireme_receive(a->communicator, a->receive, a->count, a->dtype,
                                             a->rank, 0, a->options);
    }
}

static int is_v(trireme_operation_kind o) {
    return o == TRIREME_OPERATION_KIND_REDUCE_SCATTER_V ||
           o == TRIREME_OPERATION_KIND_ALL_GATHER_V || o == TRIREME_OPERATION_KIND_GATHER_V ||
           o == TRIREME_OPERATION_KIND_SCATTER_V || o == TRIREME_OPERATION_KIND_ALL_TO_ALL_V;
}
static int is_reducing(trireme_operation_kind o) {
    return o <= TRIREME_OPERATION_KIND_REDUCE_SCATTER_V || o == TRIREME_OPERATION_KIND_REDUCE;
}
static int has_send(trireme_operation_kind o) {
    return o != TRIREME_OPERATION_KIND_BROADCAST && o != TRIREME_OPERATION_KIND_BARRIER &&
           o != TRIREME_OPERATION_KIND_RECEIVE;
}
static int has_receive(trireme_operation_kind o) {
    return o != TRIREME_OPERATION_KIND_BARRIER && o != TRIREME_OPERATION_KIND_SEND;
}
static int has_rank(trireme_operation_kind o) {
    return o == TRIREME_OPERATION_KIND_BROADCAST ||
           (o >= TRIREME_OPERATION_KIND_SEND && o <= TRIREME_OPERATION_KIND_SCATTER_V);
}
static int has_count(trireme_operation_kind o) {
    return o != TRIREME_OPERATION_KIND_BARRIER && !is_v(o);
}

/* A rank of two whose peer never comes: a refused call must not wait for it. */
struct fixture {
    trireme_communicator *ranks[2];
    uint64_t counts[2];
    int32_t send[8], receive[8];
    trireme_request *request;
};

static void set_up(struct fixture *fixture) {
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    for (int rank = 0; rank < 2; ++rank) fixture->ranks[rank] = join_rank(rank, 2, rendezvous);
    fixture->counts[0] = 3;
    fixture->counts[1] = 1;
    for (int i = 0; i < 8; ++i) fixture->send[i] = i, fixture->receive[i] = -7;
    fixture->request = UNTOUCHED;
}

static struct arguments valid(struct fixture *fixture, int started) {
    return (struct arguments){.communicator = fixture->ranks[0],
                              .send = fixture->send,
                              .receive = fixture->receive,
                              .count = 2,
                              .counts = fixture->counts,
                              .dtype = TRIREME_DTYPE_I32,
                              .reduction = TRIREME_REDUCTION_SUM,
                              .rank = 0, /* as a root it uses all memory */
                              .out_request = &fixture->request,
                              .started = started};
}

static void refused(trireme_operation_kind operation, const struct arguments *arguments,
                    struct fixture *fixture, trireme_status expected, const char *named) {
    const trireme_status status = call(operation, arguments);
    if (status != expected || strstr(trireme_last_error(), named) == NULL) {
        fail_msg("operation %d: %s, \"%s\"; wanted %s naming %s", operation,
                 trireme_status_name(status), trireme_last_error(), trireme_status_name(expected),
                 named);
    }
    assert_ptr_equal(fixture->request, UNTOUCHED);
    for (int i = 0; i < 8; ++i) assert_int_equal(fixture->receive[i], -7);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    assert_int_equal(trireme_last_error_info(&info), TRIREME_OK);
    assert_int_equal(info.code, expected);
    assert_int_equal(info.sequence, 0);
}

/* Refusals leave no trace: the next operation of the group is its first. */
static void tear_down(struct fixture *fixture) {
    trireme_request *request = NULL;
    assert_int_equal(trireme_barrier_start(fixture->ranks[0], NULL, &request), TRIREME_OK);
    assert_int_equal(trireme_barrier(fixture->ranks[1], NULL), TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_OK);
    trireme_request_destroy(request);
    trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    assert_int_equal(trireme_communicator_get_statistics(fixture->ranks[0], &statistics),
                     TRIREME_OK);
    assert_int_equal(statistics.operations, 1);
    assert_int_equal(statistics.failures, 0);
    for (int rank = 0; rank < 2; ++rank) trireme_communicator_destroy(fixture->ranks[rank]);
}

/* Calls `body` for every operation in both forms; it spoils `a` and tells the expected outcome. */
#define FOR_EVERY_CALL(...)                                                \
    do {                                                                   \
        struct fixture fixture;                                            \
        set_up(&fixture);                                                  \
        for (trireme_operation_kind o = TRIREME_OPERATION_KIND_ALL_REDUCE; \
             o <= TRIREME_OPERATION_KIND_ALL_TO_ALL_V; ++o) {              \
            for (int started = 0; started < 2; ++started) {                \
                struct arguments a = valid(&fixture, started);             \
                __VA_ARGS__                                                \
            }                                                              \
        }                                                                  \
        tear_down(&fixture);                                               \
    } while (0)

#define INVALID TRIREME_ERROR_INVALID_ARGUMENT

static void null_where_elements_are_is_refused(void **state) {
    (void)state;
    FOR_EVERY_CALL({
        a.send = NULL;
        if (has_send(o)) refused(o, &a, &fixture, INVALID, "NULL");
        a = valid(&fixture, started);
        a.receive = NULL;
        if (has_receive(o)) refused(o, &a, &fixture, INVALID, "NULL");
        a = valid(&fixture, started);
        a.counts = NULL;
        if (is_v(o)) refused(o, &a, &fixture, INVALID, "counts");
        a = valid(&fixture, started);
        a.out_request = NULL;
        if (started) refused(o, &a, &fixture, INVALID, "out_request");
        a = valid(&fixture, started);
        a.communicator = NULL;
        refused(o, &a, &fixture, TRIREME_ERROR_INVALID_HANDLE, "communicator");
    });
}

static void unknown_numbers_are_refused(void **state) {
    (void)state;
    static const int32_t wrong[] = {0, -1, 99, INT32_MAX, INT32_MIN};
    FOR_EVERY_CALL({
        for (int i = 0; i < 5 && o != TRIREME_OPERATION_KIND_BARRIER; ++i) {
            a = valid(&fixture, started);
            a.dtype = wrong[i];
            refused(o, &a, &fixture, INVALID, "dtype");
            a = valid(&fixture, started);
            a.reduction = wrong[i];
            if (is_reducing(o)) refused(o, &a, &fixture, INVALID, "reduction");
            a = valid(&fixture, started);
            a.rank = i == 0 ? 2 : wrong[i];
            const int any = o == TRIREME_OPERATION_KIND_RECEIVE && a.rank == TRIREME_ANY_SOURCE;
            if (has_rank(o) && !any) refused(o, &a, &fixture, INVALID, "the ranks are 0 to 1");
        }
    });
}

static void reductions_without_meaning_are_unsupported(void **state) {
    (void)state;
    static const struct {
        trireme_dtype dtype;
        trireme_reduction reduction;
    } wrong[] = {{TRIREME_DTYPE_BYTES, TRIREME_REDUCTION_SUM},
                 {TRIREME_DTYPE_BOOL, TRIREME_REDUCTION_SUM},
                 {TRIREME_DTYPE_F32, TRIREME_REDUCTION_BAND},
                 {TRIREME_DTYPE_F8E4M3, TRIREME_REDUCTION_BXOR}};
    FOR_EVERY_CALL({
        for (int i = 0; i < 4 && is_reducing(o); ++i) {
            a.dtype = wrong[i].dtype;
            a.reduction = wrong[i].reduction;
            refused(o, &a, &fixture, TRIREME_ERROR_UNSUPPORTED, trireme_dtype_name(a.dtype));
        }
    });
}

static void counts_that_overflow_are_refused(void **state) {
    (void)state;
    static const uint64_t wrong[] = {UINT64_MAX, UINT64_MAX / 4 + 1, UINT64_MAX / 8 + 1, 1ull << 61,
                                     1ull << 55};
    FOR_EVERY_CALL({
        for (int i = 0; i < 5; ++i) {
            const uint64_t counts[2] = {1, wrong[i]};
            a.count = wrong[i];
            a.counts = counts;
            if (has_count(o)) refused(o, &a, &fixture, INVALID, "count");
            if (is_v(o)) refused(o, &a, &fixture, INVALID, "counts[1]");
        }
    });
}

static void overlapping_memory_is_refused(void **state) {
    (void)state;
    FOR_EVERY_CALL({
        /* One element apart from every place that an operation allows. */
        const int overlaps = has_send(o) && has_receive(o);
        const int whole =
            o == TRIREME_OPERATION_KIND_ALL_REDUCE || o == TRIREME_OPERATION_KIND_REDUCE;
        a.send = fixture.receive + (whole ? 1 : 0);
        a.receive = fixture.receive + (whole ? 0 : 1);
        if (o == TRIREME_OPERATION_KIND_ALL_GATHER || o == TRIREME_OPERATION_KIND_ALL_GATHER_V ||
            o == TRIREME_OPERATION_KIND_GATHER || o == TRIREME_OPERATION_KIND_GATHER_V) {
            a.receive = fixture.receive;
            a.send = fixture.receive + 1;
        }
        if (overlaps) refused(o, &a, &fixture, INVALID, "overlap");
    });
}

static void bad_options_are_refused(void **state) {
    (void)state;
    FOR_EVERY_CALL({
        trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;
        a.options = &options;
        options.struct_size = 0;
        refused(o, &a, &fixture, INVALID, "struct_size");
        options.struct_size = sizeof options - 1;
        refused(o, &a, &fixture, INVALID, "struct_size");
        options.struct_size = sizeof options;
        options.flags = 64;
        refused(o, &a, &fixture, INVALID, "options.flags is 64");
        options.flags = 0;
        options.stream.kind = TRIREME_DEVICE_CUDA;
        refused(o, &a, &fixture, INVALID, "options.stream");
        options.stream.kind = 0;
        options.stream.native = &options;
        refused(o, &a, &fixture, INVALID, "options.stream");
        options.stream.native = NULL;
        static const int32_t priorities[] = {-1, 2, INT32_MAX};
        for (int i = 0; i < 3; ++i) {
            options.priority = priorities[i];
            refused(o, &a, &fixture, INVALID, "options.priority");
        }
        options.priority = 0;
        options.scale = 0.5;
        refused(o, &a, &fixture, INVALID, "scale");
        options.scale = NAN;
        refused(o, &a, &fixture, INVALID, "scale");
        struct {
            trireme_operation_options known;
            uint64_t newer;
        } larger;
        memset(&larger, 0, sizeof larger);
        larger.known.struct_size = sizeof larger;
        larger.newer = 1;
        a.options = &larger.known;
        refused(o, &a, &fixture, TRIREME_ERROR_UNSUPPORTED, "newer");
        static const double factors[] = {0, INFINITY, -INFINITY, NAN};
        a = valid(&fixture, started);
        a.dtype = TRIREME_DTYPE_F32;
        a.reduction = TRIREME_REDUCTION_SCALED_SUM;
        a.options = &options;
        for (int i = 0; i < 4 && is_reducing(o); ++i) {
            options.scale = factors[i];
            refused(o, &a, &fixture, INVALID, "scaled_sum");
        }
    });
}

static void a_longer_struct_whose_rest_is_zero_is_understood(void **state) {
    (void)state;
    struct {
        trireme_operation_options known;
        uint64_t newer;
    } larger;
    memset(&larger, 0, sizeof larger);
    larger.known.struct_size = sizeof larger;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    assert_int_equal(trireme_barrier(alone, &larger.known), TRIREME_OK);
    trireme_communicator_destroy(alone);
}

static void nothing_may_be_null_when_there_are_no_elements(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const alone = join_rank(0, 1, rendezvous);
    const uint64_t none[1] = {0};
    for (trireme_operation_kind o = TRIREME_OPERATION_KIND_ALL_REDUCE;
         o <= TRIREME_OPERATION_KIND_ALL_TO_ALL_V; ++o) {
        if (o == TRIREME_OPERATION_KIND_SEND || o == TRIREME_OPERATION_KIND_RECEIVE) continue;
        const struct arguments a = {.communicator = alone,
                                    .counts = none,
                                    .dtype = TRIREME_DTYPE_F64,
                                    .reduction = TRIREME_REDUCTION_SUM};
        assert_int_equal(call(o, &a), TRIREME_OK);
    }
    trireme_communicator_destroy(alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_where_elements_are_is_refused),
        cmocka_unit_test(unknown_numbers_are_refused),
        cmocka_unit_test(reductions_without_meaning_are_unsupported),
        cmocka_unit_test(counts_that_overflow_are_refused),
        cmocka_unit_test(overlapping_memory_is_refused),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(a_longer_struct_whose_rest_is_zero_is_understood),
        cmocka_unit_test(nothing_may_be_null_when_there_are_no_elements),
    };
    return cmocka_run_group_tests_name("arguments", tests, NULL, NULL);
}
