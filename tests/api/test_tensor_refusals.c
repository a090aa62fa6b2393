/* Tensor objects and regions: bad arguments, ranks that differ, ranks that do not come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

#include "ranks.h"
#include "regions.inc"

#define MOST 8
#define UNTOUCHED_TENSOR ((trireme_tensor *)(uintptr_t)0x6b6b)
#define UNTOUCHED_REGION ((trireme_region *)(uintptr_t)0x5a5a)

/* Whether the last failure of this thread says so. */
static bool says(const char *words) {
    if (strstr(trireme_last_error(), words) != NULL) return true;
    fprintf(stderr, "\"%s\" is not in: %s\n", words, trireme_last_error());
    return false;
}

#define REFUSED(status, words, call)             \
    do {                                         \
        assert_int_equal((call), (status));      \
        if (!says(words)) fail_msg("%s", #call); \
    } while (0)

static const struct spec columns = {.world_size = 2,
                                    .kind = TRIREME_REGION_KIND_GATHER,
                                    .dimension = TRIREME_REGION_DIMENSION_COLUMNS,
                                    .dtype = TRIREME_DTYPE_F32,
                                    .rows = 3,
                                    .columns = 4};

static void tensor_options_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = UNTOUCHED_TENSOR;
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "communicator is NULL",
            trireme_tensor_create(NULL, NULL, &tensor));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "out_tensor is NULL",
            trireme_tensor_create(pair.ranks[0], NULL, NULL));
    options.blocks = 1;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.blocks is 1, below the 2 ranks",
            trireme_tensor_create(pair.ranks[0], &options, &tensor));
    options.blocks = TRIREME_TENSOR_MAX_BLOCKS + 1;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.blocks is 65537, above 65536",
            trireme_tensor_create(pair.ranks[0], &options, &tensor));
    options.blocks = 0;
    options.flags = 4;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.flags is 4",
            trireme_tensor_create(pair.ranks[0], &options, &tensor));
    options.flags = 0;
    options.struct_size = 4;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options.struct_size is 4",
            trireme_tensor_create(pair.ranks[0], &options, &tensor));
    assert_ptr_equal(tensor, UNTOUCHED_TENSOR);
    free_rank_pair(pair);
}

static void questions_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    uint64_t first = 7, count = 7;
    trireme_head_info heads = TRIREME_HEAD_INFO_INIT;
    assert_int_equal(make_tensor(pair.ranks[0], 8, &tensor), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "info is NULL", trireme_tensor_get_info(tensor, NULL));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "rank is 2, but the ranks are 0 to 1",
            trireme_tensor_range(tensor, 9, 2, &first, &count));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "rank is -1",
            trireme_tensor_range(tensor, 9, -1, &first, &count));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "out_first is NULL",
            trireme_tensor_range(tensor, 9, 0, NULL, &count));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "out_count is NULL",
            trireme_tensor_block(tensor, 9, 0, &first, NULL));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "block is 8, but the blocks are 0 to 7",
            trireme_tensor_block(tensor, 9, 8, &first, &count));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "heads is 0",
            trireme_tensor_heads(tensor, 0, 1, 0, &heads));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "kv_heads is 3, which does not divide the 8 heads",
            trireme_tensor_heads(tensor, 8, 3, 0, &heads));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "kv_heads is 0",
            trireme_tensor_heads(tensor, 8, 0, 0, &heads));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "rank is 5",
            trireme_tensor_heads(tensor, 8, 2, 5, &heads));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "info is NULL",
            trireme_tensor_heads(tensor, 8, 2, 0, NULL));
    assert_true(first == 7 && count == 7 && heads.head_count == 0);
    trireme_tensor_destroy(tensor);
    trireme_tensor_info info = TRIREME_TENSOR_INFO_INIT;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "is not live", trireme_tensor_get_info(tensor, &info));
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "a communicator handle was given where a tensor",
            trireme_tensor_get_info((trireme_tensor *)pair.ranks[0], &info));
    trireme_tensor_destroy(tensor);
    trireme_tensor_destroy(NULL);
    free_rank_pair(pair);
}

static void region_options_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    trireme_region *region = UNTOUCHED_REGION, *first = NULL;
    assert_int_equal(make_tensor(pair.ranks[0], 4, &tensor), TRIREME_OK);
#define REFUSES(change, status, words)                                            \
    do {                                                                          \
        trireme_region_options options = options_of(&columns, "x");               \
        change;                                                                   \
        REFUSED(status, words, trireme_region_create(tensor, &options, &region)); \
    } while (0)
#define BAD(change, words) REFUSES(change, TRIREME_ERROR_INVALID_ARGUMENT, words)
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options is NULL",
            trireme_region_create(tensor, NULL, &region));
    BAD(options.struct_size = 8, "options.struct_size is 8");
    BAD(options.flags = 1, "options.flags is 1");
    BAD(options.name = NULL, "options.name is NULL");
    BAD(options.name = "", "options.name is empty");
    BAD(options.name = "0123456789012345678901234567890123456789012345678901234567890123",
        "options.name has 64 bytes, more than 63");
    BAD(options.name = "\xc3(", "options.name is not UTF-8");
    BAD(options.name = "a\xe2\x82", "options.name is not UTF-8");
    BAD(options.name = "a\nb", "options.name, \"a?b\", has a control character");
    BAD(options.name = "\x1b[2J", "has a control character");
    BAD(options.name = "\xc2\x9b", "has a control character");
    BAD(options.kind = 0, "options.kind is 0, not one of TRIREME_REGION_KIND_*");
    BAD(options.kind = 8, "options.kind is 8");
    BAD(options.kind = -1, "options.kind is -1");
    BAD(options.dimension = 3, "options.dimension is 3, not one of");
    BAD(options.dimension = 0, "options.dimension is 0, but gather splits by rows or by columns");
    BAD(options.kind = TRIREME_REGION_KIND_COPY, "options.dimension is 2, but copy splits nothing");
    BAD(options.dtype = 0, "options.dtype is 0");
    BAD(options.dtype = 17, "options.dtype is 17");
    BAD(options.parts = 4, "options.parts is 4, but gather has no sum");
    BAD(options.row_unit = 3, "options.row_unit is 3, but the region does not cut rows");
    BAD(options.column_unit = 3, "options.column_unit is 3, which does not divide the 4 columns");
    BAD(options.column_unit = UINT64_MAX, "options.column_unit is 18446744073709551615, which");
    BAD((options.dimension = TRIREME_REGION_DIMENSION_ROWS, options.column_unit = 2),
        "options.column_unit is 2, but the region does not cut columns");
    BAD((options.kind = TRIREME_REGION_KIND_REDUCE, options.dimension = 0, options.row_unit = 3),
        "options.row_unit is 3, but the region does not cut rows");
    BAD((options.kind = TRIREME_REGION_KIND_EXCHANGE, options.row_unit = 2),
        "options.row_unit is 2, which does not divide the 3 rows");
    BAD(options.rows = 1ull << 60, "more bytes than memory can hold");
    BAD(options.rows = options.columns = 1ull << 32, "more bytes than memory can hold");
    BAD((options.kind = TRIREME_REGION_KIND_GATHER_SUM, options.parts = 1),
        "options.parts is 1, not in 2, the world size, to 65536");
    BAD((options.kind = TRIREME_REGION_KIND_GATHER_SUM, options.parts = 65537),
        "options.parts is 65537");
    REFUSES((options.kind = TRIREME_REGION_KIND_GATHER_SUM, options.dtype = TRIREME_DTYPE_BOOL),
            TRIREME_ERROR_UNSUPPORTED, "a sum of bool has no meaning");
    REFUSES((options.kind = TRIREME_REGION_KIND_REDUCE_SCATTER,
             options.dtype = TRIREME_DTYPE_BYTES),
            TRIREME_ERROR_UNSUPPORTED, "a sum of bytes has no meaning");
    assert_int_equal(make_region(tensor, &columns, "x", &first), TRIREME_OK);
    BAD((void)0, "options.name is \"x\", which another region has");
    assert_ptr_equal(region, UNTOUCHED_REGION);
    trireme_tensor_info info = TRIREME_TENSOR_INFO_INIT;
    assert_int_equal(trireme_tensor_get_info(tensor, &info), TRIREME_OK);
    assert_int_equal(info.region_count, 1);
    trireme_region_destroy(first);
    trireme_region_destroy(first);
    trireme_region_destroy(NULL);
    assert_int_equal(make_region(tensor, &columns, "x", &first), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "out_region is NULL",
            make_region(tensor, &columns, "y", NULL));
    trireme_region_destroy(first);
    trireme_tensor_destroy(tensor);
    free_rank_pair(pair);
#undef BAD
#undef REFUSES
}

/* --- arguments of a pass --------------------------------------------------------------------- */

static void arguments_of_a_pass_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    trireme_region *region = NULL, *sum = NULL;
    float memory[64];
    for (int i = 0; i < 64; ++i) memory[i] = -1;
    const void *parts[2] = {memory, memory + 12};
    const void *const nothing[2] = {memory, NULL};
    assert_int_equal(make_tensor(pair.ranks[0], 4, &tensor), TRIREME_OK);
    assert_int_equal(make_region(tensor, &columns, "x", &region), TRIREME_OK);
    struct spec sums = columns;
    sums.kind = TRIREME_REGION_KIND_REDUCE;
    sums.dimension = 0;
    assert_int_equal(make_region(tensor, &sums, "sum", &sum), TRIREME_OK);
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    REFUSED(bad, "parts is NULL", trireme_region_forward(region, NULL, 1, memory, NULL));
    REFUSED(bad, "part_count is 2, but a forward pass of region \"x\" takes 1 on this rank",
            trireme_region_forward(region, parts, 2, memory + 30, NULL));
    REFUSED(bad, "part_count is 0", trireme_region_forward(region, parts, 0, memory + 30, NULL));
    REFUSED(bad, "part_count is 1, but a forward pass of region \"sum\" takes 2",
            trireme_region_forward(sum, parts, 1, memory + 30, NULL));
    REFUSED(bad, "parts[0] is NULL but holds 6 elements",
            trireme_region_forward(region, nothing + 1, 1, memory + 30, NULL));
    REFUSED(bad, "parts[1] is NULL but holds 12 elements",
            trireme_region_forward(sum, nothing, 2, memory + 30, NULL));
    REFUSED(bad, "output is NULL but holds 12 elements",
            trireme_region_forward(region, parts, 1, NULL, NULL));
    REFUSED(bad,
            "parts[0] and output overlap; a forward pass of region \"x\" does not work in place",
            trireme_region_forward(region, parts, 1, memory, NULL));
    REFUSED(bad, "parts[0] and output overlap",
            trireme_region_forward(region, parts, 1, memory + 5, NULL));
    REFUSED(bad,
            "parts[1] and output overlap; a forward pass of region \"sum\" works in place only",
            trireme_region_forward(sum, parts, 2, memory + 13, NULL));
    trireme_pass_options options = TRIREME_PASS_OPTIONS_INIT;
    options.flags = 1;
    REFUSED(bad, "options.flags is 1",
            trireme_region_forward(region, parts, 1, memory + 30, &options));
    options.struct_size = 3;
    REFUSED(bad, "options.struct_size is 3",
            trireme_region_forward(region, parts, 1, memory + 30, &options));
    REFUSED(TRIREME_ERROR_INVALID_STATE,
            "backward pass 1 of region \"x\" needs as many forward passes, but there were 0",
            trireme_region_backward(region, parts, 1, memory + 30, NULL));
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "region is NULL",
            trireme_region_forward(NULL, parts, 1, memory + 30, NULL));
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "a tensor handle was given where a region",
            trireme_region_forward((trireme_region *)tensor, parts, 1, memory + 30, NULL));
    assert_int_equal(trireme_batch_begin(), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_STATE, "batch",
            trireme_region_forward(region, parts, 1, memory + 30, NULL));
    assert_int_equal(trireme_batch_end(), TRIREME_OK);
    for (int i = 0; i < 64; ++i) assert_true(memory[i] == -1);
    trireme_region_info info = TRIREME_REGION_INFO_INIT;
    assert_int_equal(trireme_region_get_info(region, &info), TRIREME_OK);
    assert_true(info.forward_passes == 0 && info.backward_passes == 0);
    REFUSED(bad, "info is NULL", trireme_region_get_info(region, NULL));
    /* A pass on one rank alone moves nothing, so it needs no peer, and no communicator. */
    struct spec copies = sums;
    copies.kind = TRIREME_REGION_KIND_COPY;
    trireme_region *copy = NULL;
    assert_int_equal(make_region(tensor, &copies, "copy", &copy), TRIREME_OK);
    trireme_communicator_destroy(pair.ranks[0]);
    assert_int_equal(trireme_region_forward(copy, parts, 1, memory + 30, NULL), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_STATE, "forward pass of region \"x\"",
            trireme_region_forward(region, parts, 1, memory + 30, NULL));
    assert_int_equal(trireme_region_get_info(region, &info), TRIREME_OK);
    assert_true(info.forward_passes == 0);
    trireme_region_destroy(copy);
    trireme_region_destroy(sum);
    trireme_region_destroy(region);
    trireme_tensor_destroy(tensor);
    free_rank_pair(pair);
}

/* --- ranks that differ -------------------------------------------------------------------------
 */

enum difference {
    NAME,
    LONG_NAME,
    KIND,
    DIMENSION,
    ROW_COUNT,
    COLUMN_COUNT,
    DTYPE,
    ROW_UNIT,
    COLUMN_UNIT,
    BLOCKS,
    PARTS,
    DIRECTION,
    OTHER_CALL,
    DIFFERENCES
};

struct quarrel {
    int world_size;
    enum difference difference;
    struct verdict verdicts[MOST];
};

#define LONG_WORD "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"

/* The message has the begin of the long name: "fc1", and whole letters of two bytes. */
static bool has_whole_letters(const char *text) {
    static const char begin[] = "forward \"fc1";
    const char *const name = strstr(text, begin);
    if (name == NULL) return false;
    const size_t letters = strcspn(name + sizeof begin - 1, "\"");
    return letters > 0 && letters < sizeof LONG_WORD - 1 && letters % 2 == 0;
}

static const char *name_of(enum difference difference, bool odd) {
    if (difference == LONG_NAME) return odd ? "fc" LONG_WORD "2" : "fc1" LONG_WORD;
    return difference == NAME && odd ? "fc2" : "fc1";
}

/* All but the last rank agree. */
static void differ(trireme_communicator *communicator, int rank, void *context) {
    struct quarrel *const quarrel = context;
    struct verdict *const verdict = &quarrel->verdicts[rank];
    const bool odd = rank == quarrel->world_size - 1;
    const enum difference how = odd ? quarrel->difference : DIFFERENCES;
    struct spec spec = columns;
    spec.world_size = quarrel->world_size;
    spec.kind = how == KIND ? TRIREME_REGION_KIND_GATHER : TRIREME_REGION_KIND_GATHER_SUM;
    spec.blocks = how == BLOCKS ? 9 : 8;
    spec.parts = how == KIND ? 0 : how == PARTS ? 9 : 8;
    spec.rows = spec.columns = 6;
    if (how == DIMENSION) spec.dimension = TRIREME_REGION_DIMENSION_ROWS;
    if (how == ROW_COUNT) spec.rows = 7;
    if (how == COLUMN_COUNT) spec.columns = 5;
    if (how == DTYPE) spec.dtype = TRIREME_DTYPE_I32;
    /* With 2 or 4 ranks, these units are cut where single rows and columns are. */
    if (quarrel->difference == ROW_UNIT) {
        spec.dimension = TRIREME_REGION_DIMENSION_ROWS;
        spec.rows = 8;
        spec.row_unit = how == ROW_UNIT ? 2 : 1;
    }
    if (quarrel->difference == COLUMN_UNIT) spec.columns = 8;
    if (how == COLUMN_UNIT) spec.column_unit = 2;
    trireme_tensor *tensor = NULL;
    trireme_region *region = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, spec.blocks, &tensor));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_region(tensor, &spec, name_of(quarrel->difference, odd), &region));
    if (quarrel->difference == DIRECTION) {
        struct arrays before = make_arrays(&spec, true, rank, 1);
        EXPECT_STATUS(verdict, TRIREME_OK, run_pass(region, true, &before));
        free_arrays(&before);
    }
    struct arrays arrays = make_arrays(&spec, how != DIRECTION, rank, 1);
    trireme_status status = 0;
    if (how == OTHER_CALL) {
        /* An exchange of the same sizes, by the caller's own call. */
        const uint64_t own = elements_of(&spec, COLUMNS, rank);
        uint64_t counts[MOST];
        for (int i = 0; i < spec.world_size; ++i) counts[i] = elements_of(&spec, COLUMNS, i);
        status = trireme_all_gather_v(communicator, own == 0 ? NULL : arrays.parts[0], arrays.out,
                                      counts, spec.dtype, NULL);
    } else {
        status = run_pass(region, how != DIRECTION, &arrays);
    }
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, status);
    const char *const text = trireme_last_error();
    EXPECT(verdict, strstr(text, "rank 0 called") != NULL);
    char last[32];
    snprintf(last, sizeof last, "rank %d called", quarrel->world_size - 1);
    EXPECT(verdict, strstr(text, last) != NULL);
    EXPECT(verdict, how == OTHER_CALL || strstr(text, "pass of region \"fc") != NULL);
    if (quarrel->difference == NAME) {
        EXPECT(verdict, strstr(text, "forward \"fc1\"") != NULL);
        EXPECT(verdict, strstr(text, "forward \"fc2\"") != NULL);
    }
    if (quarrel->difference == LONG_NAME) EXPECT(verdict, has_whole_letters(text));
    if (quarrel->difference == DIMENSION) EXPECT(verdict, strstr(text, "by rows") != NULL);
    free_arrays(&arrays);
    /* No pass works any more, and none was counted. */
    trireme_region_info info = TRIREME_REGION_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_region_get_info(region, &info));
    EXPECT(verdict, info.forward_passes == (quarrel->difference == DIRECTION));
    EXPECT(verdict, info.backward_passes == 0);
    arrays = make_arrays(&spec, true, rank, 1);
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, run_pass(region, true, &arrays));
    free_arrays(&arrays);
    trireme_region_destroy(region);
    trireme_tensor_destroy(tensor);
}

static void ranks_that_differ_all_get_mismatch(void **state) {
    (void)state;
    for (int difference = 0; difference < DIFFERENCES; ++difference) {
        for (int world_size = 2; world_size <= 5; ++world_size) {
            struct quarrel quarrel = {.world_size = world_size,
                                      .difference = (enum difference)difference};
            run_ranks(world_size, differ, &quarrel);
            assert_verdicts(quarrel.verdicts, world_size);
        }
    }
}

/* --- ranks that do not come ----------------------------------------------------------------------
 */

struct absence {
    bool by_tensor; /* the deadline is that of the tensor object */
    atomic_bool given_up;
    struct verdict verdicts[2];
};

static void wait_for_absent(trireme_communicator *communicator, int rank, void *context) {
    struct absence *const absence = context;
    struct verdict *const verdict = &absence->verdicts[rank];
    if (rank == 1) { /* stays until the other has given up */
        while (!atomic_load(&absence->given_up)) sched_yield();
        return;
    }
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    options.timeout_ns = absence->by_tensor ? 50 * 1000 * 1000 : LONG_NS;
    trireme_pass_options pass = TRIREME_PASS_OPTIONS_INIT;
    pass.timeout_ns = absence->by_tensor ? 0 : 60 * 1000 * 1000;
    trireme_tensor *tensor = NULL;
    trireme_region *region = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_create(communicator, &options, &tensor));
    EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, &columns, "late", &region));
    struct arrays arrays = make_arrays(&columns, true, rank, 1);
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                  trireme_region_forward(region, arrays.parts, 1, arrays.out, &pass));
    const char *const text = trireme_last_error();
    atomic_store(&absence->given_up, true);
    EXPECT(verdict, strstr(text, "forward pass of region \"late\"") != NULL);
    EXPECT(verdict, strstr(text, "rank 1") != NULL);
    EXPECT(verdict,
           strstr(text, absence->by_tensor
                            ? "the deadline is 0.05 s, timeout_ns of the tensor's options"
                            : "the deadline is 0.06 s, timeout_ns of the pass's options") != NULL);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(verdict, info.blamed_count == 1 && info.blamed[0] == 1);
    free_arrays(&arrays);
    trireme_region_destroy(region);
    trireme_tensor_destroy(tensor);
}

static void a_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    for (int by_tensor = 0; by_tensor <= 1; ++by_tensor) {
        struct absence absence = {.by_tensor = by_tensor != 0};
        run_ranks(2, wait_for_absent, &absence);
        assert_verdicts(absence.verdicts, 2);
    }
}

/* --- destroyed while a pass runs ----------------------------------------------------------------
 */

struct absent_peer {
    trireme_region *region;
    struct arrays arrays;
    trireme_status status;
};

static void *wait_in_pass(void *context) {
    struct absent_peer *const waiting = context;
    waiting->status = run_pass(waiting->region, true, &waiting->arrays);
    return NULL;
}

static void a_name_is_free_before_a_pass_ends(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    struct absent_peer waiting = {.arrays = make_arrays(&columns, true, 0, 1)};
    trireme_tensor *tensor = NULL;
    trireme_region *next = NULL;
    trireme_region_info info = TRIREME_REGION_INFO_INIT;
    trireme_tensor_info regions = TRIREME_TENSOR_INFO_INIT;
    pthread_t thread;
    assert_int_equal(make_tensor(pair.ranks[0], 0, &tensor), TRIREME_OK);
    assert_int_equal(make_region(tensor, &columns, "x", &waiting.region), TRIREME_OK);
    assert_int_equal(trireme_region_get_info(waiting.region, &info), TRIREME_OK);
    assert_int_equal(pthread_create(&thread, NULL, wait_in_pass, &waiting), 0);
    /* The record of calls tells that the pass has begun. */
    char record[4096] = "";
    while (strstr(record, "all_gather_v") == NULL) {
        assert_int_equal(trireme_communicator_get_flight_record(pair.ranks[0], record,
                                                                sizeof record, NULL),
                         TRIREME_OK);
        sched_yield();
    }
    trireme_region_destroy(waiting.region);
    assert_int_equal(trireme_tensor_get_info(tensor, &regions), TRIREME_OK);
    assert_int_equal(regions.region_count, 0);
    assert_int_equal(make_region(tensor, &columns, "x", &next), TRIREME_OK);
    assert_int_equal(trireme_communicator_abort(pair.ranks[1], "enough"), TRIREME_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(waiting.status, TRIREME_ERROR_ABORTED);
    /* The end of the first region leaves the name with the second one. */
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "which another region has",
            make_region(tensor, &columns, "x", &waiting.region));
    free_arrays(&waiting.arrays);
    trireme_region_destroy(next);
    trireme_tensor_destroy(tensor);
    free_rank_pair(pair);
}

/* --- inside a callback ----------------------------------------------------------------------- */

struct callback {
    trireme_region *region;
    struct arrays arrays;
    trireme_region *local; /* its forward pass moves nothing */
    struct arrays local_arrays;
    trireme_status status, local_status;
    atomic_bool over;
};

static void pass_inside(int32_t status, void *user_data) {
    (void)status;
    struct callback *const callback = user_data;
    callback->status = run_pass(callback->region, true, &callback->arrays);
    callback->local_status = run_pass(callback->local, true, &callback->local_arrays);
    atomic_store(&callback->over, true);
}

static void call_back(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = context;
    struct spec spec = columns;
    spec.world_size = 1;
    trireme_tensor *tensor = NULL;
    trireme_request *request = NULL;
    struct callback callback = {.status = TRIREME_OK};
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, 0, &tensor));
    EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, &spec, "inside", &callback.region));
    callback.arrays = make_arrays(&spec, true, rank, 1);
    struct spec parts = spec;
    parts.kind = TRIREME_REGION_KIND_SCATTER;
    EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, &parts, "local", &callback.local));
    callback.local_arrays = make_arrays(&parts, true, rank, 1);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &request));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_request_on_complete(request, pass_inside, &callback));
    while (!atomic_load(&callback.over)) sched_yield();
    EXPECT(verdict, callback.status == TRIREME_ERROR_INVALID_STATE);
    EXPECT(verdict, callback.local_status == TRIREME_OK);
    EXPECT(verdict, is_right(&parts, true, rank, 1, &callback.local_arrays));
    EXPECT_STATUS(verdict, TRIREME_OK, run_pass(callback.region, true, &callback.arrays));
    trireme_request_destroy(request);
    free_arrays(&callback.arrays);
    free_arrays(&callback.local_arrays);
    trireme_region_destroy(callback.region);
    trireme_region_destroy(callback.local);
    trireme_tensor_destroy(tensor);
}

static void no_pass_runs_inside_a_callback(void **state) {
    (void)state;
    struct verdict verdict = {""};
    run_ranks(1, call_back, &verdict);
    assert_verdicts(&verdict, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_options_are_checked),
        cmocka_unit_test(questions_are_checked),
        cmocka_unit_test(region_options_are_checked),
        cmocka_unit_test(arguments_of_a_pass_are_checked),
        cmocka_unit_test(ranks_that_differ_all_get_mismatch),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(a_name_is_free_before_a_pass_ends),
        cmocka_unit_test(no_pass_runs_inside_a_callback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
