/* Buffers: zero, aligned, recognised also in the middle, and alive while an operation uses them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ranks.h"

static void a_buffer_is_zero_and_aligned_and_knows_its_size(void **state) {
    (void)state;
    static const uint64_t sizes[] = {0, 1, 4095, 4096, 4097, 1000003};
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const communicator = join_rank(0, 1, rendezvous);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        trireme_buffer *buffer = NULL;
        void *data = NULL;
        uint64_t bytes = 77;
        assert_int_equal(trireme_buffer_alloc(communicator, sizes[i], &buffer), TRIREME_OK);
        assert_int_equal(trireme_buffer_get_data(buffer, &data), TRIREME_OK);
        assert_int_equal(trireme_buffer_get_bytes(buffer, &bytes), TRIREME_OK);
        assert_int_equal(bytes, sizes[i]);
        if (sizes[i] > 0) assert_int_equal((uintptr_t)data % 4096, 0);
        for (uint64_t k = 0; k < sizes[i]; ++k) assert_int_equal(((unsigned char *)data)[k], 0);
        trireme_buffer_destroy(buffer);
    }
    trireme_communicator_destroy(communicator);
}

static void reduce_inside_buffers(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = (struct verdict *)context + rank;
    trireme_buffer *buffer = NULL;
    void *data = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_buffer_alloc(communicator, 40000, &buffer));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_buffer_get_data(buffer, &data));
    float *const send = (float *)data + 101, *const receive = (float *)data + 5003;
    for (int i = 0; i < 3001; ++i) send[i] = (float)(i + rank);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, send, receive, 3001, TRIREME_DTYPE_F32,
                                     TRIREME_REDUCTION_SUM, NULL));
    for (int i = 0; i < 3001; ++i) EXPECT(verdict, receive[i] == (float)(3 * i + 3));
    EXPECT(verdict, receive[-1] == 0 && receive[3001] == 0);
    trireme_buffer_destroy(buffer);
}

static void collectives_work_in_the_middle_of_a_buffer(void **state) {
    (void)state;
    struct verdict verdicts[3] = {0};
    run_ranks(3, reduce_inside_buffers, verdicts);
    assert_verdicts(verdicts, 3);
}

static void memory_outlives_the_handle_while_an_operation_uses_it(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *ranks[2];
    for (int i = 0; i < 2; ++i) ranks[i] = join_rank(i, 2, rendezvous);
    trireme_buffer *buffer = NULL;
    void *data = NULL;
    assert_int_equal(trireme_buffer_alloc(ranks[0], 80000, &buffer), TRIREME_OK);
    assert_int_equal(trireme_buffer_get_data(buffer, &data), TRIREME_OK);
    for (int i = 0; i < 10000; ++i) ((int64_t *)data)[i] = i;
    trireme_request *request = NULL;
    assert_int_equal(trireme_all_reduce_start(ranks[0], data, data, 10000, TRIREME_DTYPE_I64,
                                              TRIREME_REDUCTION_SUM, NULL, &request),
                     TRIREME_OK);
    trireme_buffer_destroy(buffer);
    trireme_buffer_destroy(buffer);
    static int64_t other[10000], result[10000];
    for (int i = 0; i < 10000; ++i) other[i] = 1;
    assert_int_equal(trireme_all_reduce(ranks[1], other, result, 10000, TRIREME_DTYPE_I64,
                                        TRIREME_REDUCTION_SUM, NULL),
                     TRIREME_OK);
    assert_int_equal(trireme_request_wait(request, LONG_NS), TRIREME_OK);
    for (int i = 0; i < 10000; ++i) assert_int_equal(result[i], i + 1);
    trireme_request_destroy(request);
    for (int i = 0; i < 2; ++i) trireme_communicator_destroy(ranks[i]);
}

static void a_buffer_outlives_its_communicator(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const communicator = join_rank(0, 1, rendezvous);
    trireme_buffer *buffer = NULL;
    void *data = NULL;
    assert_int_equal(trireme_buffer_alloc(communicator, 100, &buffer), TRIREME_OK);
    trireme_communicator_destroy(communicator);
    assert_int_equal(trireme_buffer_get_data(buffer, &data), TRIREME_OK);
    ((char *)data)[99] = 1;
    trireme_buffer_destroy(buffer);
}

static void what_is_no_buffer_or_too_large_is_refused(void **state) {
    (void)state;
    char rendezvous[64];
    unique_rendezvous(rendezvous, sizeof rendezvous);
    trireme_communicator *const communicator = join_rank(0, 1, rendezvous);
    trireme_buffer *const untouched = (trireme_buffer *)(uintptr_t)0x5a5a;
    trireme_buffer *buffer = untouched;
    assert_int_equal(trireme_buffer_alloc(communicator, 8, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_buffer_alloc(NULL, 8, &buffer), TRIREME_ERROR_INVALID_HANDLE);
    static const uint64_t too_large[] = {UINT64_MAX, UINT64_MAX - 4095, 1ull << 62, 1ull << 50};
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(trireme_buffer_alloc(communicator, too_large[i], &buffer),
                         TRIREME_ERROR_OUT_OF_MEMORY);
    }
    assert_ptr_equal(buffer, untouched);
    assert_int_equal(trireme_buffer_alloc(communicator, 8, &buffer), TRIREME_OK);
    assert_int_equal(trireme_buffer_get_data(buffer, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_int_equal(trireme_buffer_get_bytes(buffer, NULL), TRIREME_ERROR_INVALID_ARGUMENT);
    trireme_buffer_destroy(buffer);
    trireme_buffer *const wrong[] = {NULL, buffer, (trireme_buffer *)communicator, untouched};
    for (int i = 0; i < 4; ++i) {
        void *data = communicator;
        uint64_t bytes = 7;
        assert_int_equal(trireme_buffer_get_data(wrong[i], &data), TRIREME_ERROR_INVALID_HANDLE);
        assert_int_equal(trireme_buffer_get_bytes(wrong[i], &bytes), TRIREME_ERROR_INVALID_HANDLE);
        assert_ptr_equal(data, communicator);
        assert_int_equal(bytes, 7);
        if (i != 2) trireme_buffer_destroy(wrong[i]);
    }
    trireme_buffer_destroy(wrong[2]); /* a communicator is no buffer, so it stays */
    assert_int_equal(trireme_barrier(communicator, NULL), TRIREME_OK);
    trireme_communicator_destroy(communicator);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_buffer_is_zero_and_aligned_and_knows_its_size),
        cmocka_unit_test(collectives_work_in_the_middle_of_a_buffer),
        cmocka_unit_test(memory_outlives_the_handle_while_an_operation_uses_it),
        cmocka_unit_test(a_buffer_outlives_its_communicator),
        cmocka_unit_test(what_is_no_buffer_or_too_large_is_refused),
    };
    return cmocka_run_group_tests_name("buffers", tests, NULL, NULL);
}
