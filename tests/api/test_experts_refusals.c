/* A layer of experts: bad arguments, rows that cannot be routed, ranks that differ, ranks that do
 * not come. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include <cmocka.h>

#include "experts.inc"

#define UNTOUCHED ((trireme_experts *)(uintptr_t)0x6b6b)

static const struct layer plain = {.experts = 5,
                                   .top_k = 2,
                                   .leaves = 4,
                                   .width = 3,
                                   .leaf_rows = {3, 2, 4, 1},
                                   .dtype = TRIREME_DTYPE_F32,
                                   .scores = TRIREME_EXPERTS_SCORES_LOGITS};

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

#define REFUSES(change, status, words)                                                     \
    do {                                                                                   \
        trireme_experts_options options = experts_options(&plain);                         \
        change;                                                                            \
        REFUSED(status, words, trireme_experts_create(pair.ranks[0], &options, &experts)); \
    } while (0)

static void options_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_experts *experts = UNTOUCHED;
    const trireme_status invalid = TRIREME_ERROR_INVALID_ARGUMENT;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "communicator is NULL",
            trireme_experts_create(NULL, NULL, &experts));
    REFUSED(invalid, "options is NULL", trireme_experts_create(pair.ranks[0], NULL, &experts));
    REFUSES(options.struct_size = 8, invalid, "options.struct_size is 8");
    REFUSES(options.flags = 3, invalid, "is 2, but must be 0");
    REFUSES(options.name = NULL, invalid, "options.name is NULL");
    REFUSES(options.name = "", invalid, "options.name is empty");
    REFUSES(options.name = "a\nb", invalid, "control character");
    REFUSES(options.experts = 0, invalid, "options.experts is 0, not in 1 to 65536");
    REFUSES(options.experts = 65537, invalid, "options.experts is 65537, not in 1 to 65536");
    REFUSES(options.top_k = 0, invalid, "options.top_k is 0, not in 1 to 5");
    REFUSES(options.top_k = 6, invalid, "options.top_k is 6, not in 1 to 5, the number of experts");
    REFUSES(options.scores = 0, invalid, "options.scores is 0, not one of TRIREME_EXPERTS_SCORES_");
    REFUSES(options.scores = 3, invalid, "options.scores is 3");
    REFUSES(options.drop = -1, invalid, "options.drop is -1, not one of TRIREME_EXPERTS_DROP_");
    REFUSES(options.drop = 3, invalid, "options.drop is 3");
    REFUSES(options.drop = 1, invalid, "options.capacity is 0, but options.drop says");
    REFUSES(options.capacity = 4, invalid, "options.capacity is 4, but options.drop is NONE");
    REFUSES(options.dtype = 0, invalid, "options.dtype is 0");
    REFUSES(options.dtype = TRIREME_DTYPE_I32, TRIREME_ERROR_UNSUPPORTED, "options.dtype is i32");
    REFUSES(options.leaves = 1, invalid, "options.leaves is 1, not in 2 to 65536: each rank has");
    REFUSES(options.leaves = 65537, invalid, "options.leaves is 65537");
    REFUSES(options.rows = UINT64_MAX, invalid, "more bytes than memory can hold");
    REFUSES(options.width = UINT64_MAX, invalid, "more bytes than memory can hold");
    REFUSES((options.rows = 1ull << 30, options.width = 1ull << 30), invalid, "memory can hold");
    REFUSES((options.rows = 0, options.width = 1ull << 60), invalid, "memory can hold");
    const trireme_experts_options good = experts_options(&plain);
    REFUSED(invalid, "out_experts is NULL", trireme_experts_create(pair.ranks[0], &good, NULL));
    assert_ptr_equal(experts, UNTOUCHED);
    free_rank_pair(pair);
}

static void questions_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    const trireme_experts_options options = experts_options(&plain);
    trireme_experts *experts = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    assert_int_equal(trireme_experts_create(pair.ranks[0], &options, &experts), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "info is NULL",
            trireme_experts_get_info(experts, NULL));
    info.struct_size = 4;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "info.struct_size is 4",
            trireme_experts_get_info(experts, &info));
    trireme_experts_destroy(experts);
    trireme_experts_destroy(experts);
    trireme_experts_destroy(NULL);
    info.struct_size = sizeof info;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "is not live", trireme_experts_get_info(experts, &info));
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "a communicator handle was given where a",
            trireme_experts_get_info((trireme_experts *)pair.ranks[0], &info));
    free_rank_pair(pair);
}

/* --- arguments ---------------------------------------------------------------------------------
 */

struct alone {
    struct verdict *verdict;
    trireme_experts *experts;
    struct rank_arrays r;
    trireme_experts_route_arrays good;
};

#define NOT_ROUTED(change, words)                                               \
    do {                                                                        \
        trireme_experts_route_arrays arrays = a->good;                          \
        change;                                                                 \
        EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,                  \
                      trireme_experts_route(a->experts, &arrays, &info, NULL)); \
        EXPECT(verdict, says(words));                                           \
    } while (0)

static void refuse_routes(struct alone *a) {
    struct verdict *const verdict = a->verdict;
    trireme_experts_route_info info = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    const uint64_t sum_above[4] = {3, 2, 4, UINT64_MAX}, sum_below[4] = {3, 2, 4, 0};
    NOT_ROUTED(arrays.struct_size = 16, "arrays.struct_size is 16");
    NOT_ROUTED(arrays.reserved = 1, "arrays.reserved is 1");
    NOT_ROUTED(arrays.rows = 11, "arrays.rows is 11, above options.rows, which is 10");
    NOT_ROUTED(arrays.scores = NULL, "arrays.scores is NULL but holds 200 bytes");
    NOT_ROUTED(arrays.leaf_rows = NULL, "arrays.leaf_rows is NULL, but this rank has 4 leaves");
    NOT_ROUTED(arrays.leaf_rows = sum_above, "the sum of arrays.leaf_rows is above arrays.rows");
    NOT_ROUTED(arrays.leaf_rows = sum_below, "the sum of arrays.leaf_rows is below arrays.rows");
    NOT_ROUTED(arrays.kept = NULL, "arrays.kept is NULL");
    NOT_ROUTED(arrays.segments = NULL, "arrays.segments is NULL");
    NOT_ROUTED(arrays.kept = a->r.scores, "arrays.scores and arrays.kept overlap");
    NOT_ROUTED(arrays.weights = (float *)a->r.chosen, "arrays.chosen and arrays.weights overlap");
    NOT_ROUTED(arrays.chosen = (int32_t *)a->r.scores, "arrays.scores and arrays.chosen overlap");
    NOT_ROUTED(arrays.expert_dropped = a->r.expert_rows + 1, "expert_dropped overlap");
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_route(a->experts, NULL, &info, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_route(a->experts, &a->good, NULL, NULL));
    info.struct_size = 8;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_route(a->experts, &a->good, &info, NULL));
    EXPECT(verdict, says("info.struct_size is 8"));
    trireme_pass_options pass = TRIREME_PASS_OPTIONS_INIT;
    pass.flags = TRIREME_PASS_FLAG_ADD;
    info.struct_size = sizeof info;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_route(a->experts, &a->good, &info, &pass));
    EXPECT(verdict, says("options.flags is 1"));
    for (uint64_t i = 0; i < 20; ++i) EXPECT(verdict, a->r.chosen[i] == 0 && a->r.weights[i] == 0);
}

#define NOT_MOVED(words, call)                                        \
    do {                                                              \
        EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT, call); \
        EXPECT(verdict, says(words));                                 \
    } while (0)

static void refuse_moves(struct alone *a) {
    struct verdict *const verdict = a->verdict;
    trireme_experts *const e = a->experts;
    const struct rank_arrays *const r = &a->r;
    NOT_MOVED("kept is NULL", trireme_experts_dispatch(e, NULL, r->data, r->received, NULL));
    NOT_MOVED("rows is NULL but holds 120",
              trireme_experts_dispatch(e, r->kept, NULL, r->received, NULL));
    NOT_MOVED("received is NULL but holds 240",
              trireme_experts_dispatch(e, r->kept, r->data, NULL, NULL));
    NOT_MOVED("rows and received overlap",
              trireme_experts_dispatch(e, r->kept, r->data, r->data + 4, NULL));
    NOT_MOVED("kept and received overlap",
              trireme_experts_dispatch(e, r->kept, r->data, r->kept, NULL));
    NOT_MOVED("results is NULL",
              trireme_experts_combine(e, r->kept, NULL, r->returned, r->output, NULL));
    NOT_MOVED("output is NULL",
              trireme_experts_combine(e, r->kept, r->results, r->returned, NULL, NULL));
    NOT_MOVED("results and returned overlap",
              trireme_experts_combine(e, r->kept, r->results, r->results, r->output, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_experts_combine_backward(e, r->kept, r->d_output, r->returned,
                                                   r->d_results, r->d_weights, NULL));
    EXPECT(verdict, says("backward combine pass 1 of experts \"moe 3\" needs as many combine"));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_experts_dispatch_backward(e, r->kept, r->d_received, r->d_rows, NULL));
    EXPECT(verdict, says("backward dispatch pass 1 of experts \"moe 3\" needs as many dispatch"));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_dispatch(e, r->kept, r->data, r->received, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_combine(e, r->kept, r->results, r->returned, r->output, NULL));
    NOT_MOVED("returned is NULL",
              trireme_experts_combine_backward(e, r->kept, r->d_output, NULL, r->d_results,
                                               r->d_weights, NULL));
    NOT_MOVED("d_weights is NULL",
              trireme_experts_combine_backward(e, r->kept, r->d_output, r->returned, r->d_results,
                                               NULL, NULL));
    NOT_MOVED("d_output and d_results overlap",
              trireme_experts_combine_backward(e, r->kept, r->d_output, r->returned, r->d_output,
                                               r->d_weights, NULL));
    NOT_MOVED("d_received is NULL",
              trireme_experts_dispatch_backward(e, r->kept, NULL, r->d_rows, NULL));
    NOT_MOVED("d_rows is NULL",
              trireme_experts_dispatch_backward(e, r->kept, r->d_received, NULL, NULL));
    NOT_MOVED("kept is NULL",
              trireme_experts_route_backward(e, NULL, r->scores, r->d_weights, NULL, r->d_scores));
    NOT_MOVED("d_weights is NULL",
              trireme_experts_route_backward(e, r->kept, r->scores, NULL, NULL, r->d_scores));
    NOT_MOVED("d_scores is NULL",
              trireme_experts_route_backward(e, r->kept, r->scores, r->d_weights, NULL, NULL));
    NOT_MOVED("scores is NULL",
              trireme_experts_route_backward(e, r->kept, NULL, r->d_weights, NULL, r->d_scores));
    NOT_MOVED("scores and d_scores overlap",
              trireme_experts_route_backward(e, r->kept, r->scores, r->d_weights, NULL,
                                             r->scores + 1));
}

/* Any byte of what is kept may have been lost. */
static void refuse_kept(struct alone *a, const trireme_experts_info *info) {
    struct verdict *const verdict = a->verdict;
    const struct rank_arrays *const r = &a->r;
    for (uint64_t i = 0; i < info->kept_bytes; ++i) {
        r->kept[i] ^= 0x40;
        NOT_MOVED("kept has not the bytes that a route pass of experts \"moe 3\" wrote",
                  trireme_experts_dispatch(a->experts, r->kept, r->data, r->received, NULL));
        r->kept[i] ^= 0x40;
    }
    /* It may lie anywhere, and scores may become their gradients. */
    unsigned char *const moved = take(info->kept_bytes + 1);
    memcpy(moved + 1, r->kept, info->kept_bytes);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_route_backward(a->experts, moved + 1, r->scores, r->d_weights,
                                                 r->d_mean, r->d_scores));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_route_backward(a->experts, r->kept, r->scores, r->d_weights,
                                                 r->d_mean, r->scores));
    EXPECT(verdict, memcmp(r->scores, r->d_scores, 10 * 5 * sizeof(float)) == 0);
    /* Scores that no route pass allows. */
    memset(r->d_scores, 0x11, 10 * 5 * sizeof(float));
    for (int i = 0; i < 50; ++i) r->scores[i] = 0;
    r->scores[7 * 5 + 2] = NAN;
    NOT_MOVED("row 7 of rank 0 has, for expert 2, a score that is no finite number",
              trireme_experts_route_backward(a->experts, r->kept, r->scores, r->d_weights, NULL,
                                             r->d_scores));
    for (size_t i = 0; i < 10 * 5 * sizeof(float); ++i) {
        EXPECT(verdict, ((const unsigned char *)r->d_scores)[i] == 0x11);
    }
    free(moved);
}

/* One rank, so that nothing but the arguments can be wrong. */
static void refuse_arguments(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = &((struct verdict *)context)[rank];
    const trireme_experts_options options = experts_options(&plain);
    trireme_experts *experts = NULL, *other = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &options, &experts));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    struct alone a = {.verdict = verdict, .experts = experts};
    a.r = make_rank_arrays(&plain, &info);
    a.good = route_arrays(&plain, &a.r, &info);
    refuse_routes(&a);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_route(experts, &a.good, &routed, NULL));
    refuse_moves(&a);
    trireme_experts_options changed = options;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_create(communicator, &options, &other));
    EXPECT(verdict, says("options.name is \"moe 3\", which another layer of experts"));
    changed.name = "moe 4";
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &changed, &other));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_dispatch(other, a.r.kept, a.r.data, a.r.received, NULL));
    EXPECT(verdict, says("that a route pass of experts \"moe 4\" wrote on this rank"));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_begin());
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_experts_dispatch(experts, a.r.kept, a.r.data, a.r.received, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_batch_end());
    /* A layer that is made like one that is gone does not take what that one kept. */
    trireme_experts_destroy(other);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &changed, &other));
    unsigned char *const gone = take(info.kept_bytes);
    trireme_experts_route_arrays again = a.good;
    again.kept = gone;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_route(other, &again, &routed, NULL));
    trireme_experts_destroy(other);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &changed, &other));
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_dispatch(other, gone, a.r.data, a.r.received, NULL));
    EXPECT(verdict, says("that a route pass of experts \"moe 4\" wrote on this rank"));
    free(gone);
    refuse_kept(&a, &info);
    trireme_communicator_destroy(communicator);
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_experts_dispatch(experts, a.r.kept, a.r.data, a.r.received, NULL));
    free_rank_arrays(&a.r);
    trireme_experts_destroy(experts);
    trireme_experts_destroy(other);
}

static void arguments_are_checked(void **state) {
    (void)state;
    struct verdict verdict = {""};
    run_ranks(1, refuse_arguments, &verdict);
    assert_verdicts(&verdict, 1);
}

/* --- rows that cannot be routed -----------------------------------------------------------------
 */

struct bad_row {
    trireme_experts_scores scores;
    uint32_t flags;
    double score;      /* of row 1 of rank 1 for expert 3 */
    bool everywhere;   /* of the row for all experts */
    const char *words; /* of the message on all ranks */
    struct verdict verdicts[3];
};

static void route_a_bad_row(trireme_communicator *communicator, int rank, void *context) {
    struct bad_row *const test = context;
    struct verdict *const verdict = &test->verdicts[rank];
    struct layer l = plain;
    l.scores = test->scores;
    l.flags = test->flags;
    const trireme_experts_options options = experts_options(&l);
    trireme_experts *experts = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &options, &experts));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    struct rank_arrays r = make_rank_arrays(&l, &info);
    trireme_experts_route_arrays arrays = route_arrays(&l, &r, &info);
    for (int expert = 0; expert < 5 && rank == 1; ++expert) {
        if (test->everywhere || expert == 3) r.scores[5 + expert] = (float)test->score;
    }
    memset(r.kept, 0x5a, info.kept_bytes);
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_route(experts, &arrays, &routed, NULL));
    EXPECT(verdict, says(test->words) && r.kept[0] == 0x5a && routed.real_rows == 0);
    /* The group works on. A row of padding is not read. */
    memset(r.padding, 0, r.rows);
    if (rank == 1) r.padding[1] = 7;
    arrays.padding = r.padding;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_route(experts, &arrays, &routed, NULL));
    EXPECT(verdict, routed.real_rows == 9);
    if (rank == 1) EXPECT(verdict, r.chosen[2] == -1 && r.chosen[3] == -1 && r.weights[2] == 0);
    free_rank_arrays(&r);
    trireme_experts_destroy(experts);
}

/* Row 4 of each of two ranks lies in its second leaf. */
static void route_bad_rows(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = &((struct verdict *)context)[rank];
    const trireme_experts_options options = experts_options(&plain);
    trireme_experts *experts = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &options, &experts));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    struct rank_arrays r = make_rank_arrays(&plain, &info);
    const trireme_experts_route_arrays arrays = route_arrays(&plain, &r, &info);
    r.scores[4 * 5 + 1] = NAN; /* leaves have 3 and 2 rows, and 4 and 1 */
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_route(experts, &arrays, &routed, NULL));
    EXPECT(verdict, says("row 4 of rank 0 has, for expert 1, a score that is no finite number"));
    if (rank == 0) r.scores[4 * 5 + 1] = 0;
    EXPECT_STATUS(verdict, TRIREME_ERROR_INVALID_ARGUMENT,
                  trireme_experts_route(experts, &arrays, &routed, NULL));
    EXPECT(verdict, says("row 4 of rank 1 has, for expert 1, a score that is no finite number"));
    free_rank_arrays(&r);
    trireme_experts_destroy(experts);
}

static void the_first_bad_row_is_named(void **state) {
    (void)state;
    struct verdict verdicts[2] = {{""}, {""}};
    run_ranks(2, route_bad_rows, verdicts);
    assert_verdicts(verdicts, 2);
}

static void rows_without_a_choice_are_named_on_all_ranks(void **state) {
    (void)state;
    const trireme_experts_scores logits = TRIREME_EXPERTS_SCORES_LOGITS;
    const trireme_experts_scores probabilities = TRIREME_EXPERTS_SCORES_PROBABILITIES;
    const char *const not_finite = "row 1 of rank 1 has, for expert 3, a score that is no finite";
    const struct bad_row tests[] =
        {{logits, 0, NAN, false, not_finite, {{""}}},
         {logits, 0, INFINITY, false, not_finite, {{""}}},
         {probabilities, 0, -INFINITY, false, not_finite, {{""}}},
         {probabilities, 0, -0.5, false, "for expert 3, a score that is below 0", {{""}}},
         {probabilities,
          TRIREME_EXPERTS_FLAG_NORMALIZE,
          0,
          true,
          "row 1 of rank 1 chooses experts whose probabilities are 0",
          {{""}}}};
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; ++i) {
        struct bad_row test = tests[i];
        run_ranks(3, route_a_bad_row, &test);
        assert_verdicts(test.verdicts, 3);
    }
}

/* --- ranks that differ --------------------------------------------------------------------------
 */

enum difference {
    NAME,
    EXPERTS,
    TOP_K,
    WIDTH,
    MOST_ROWS,
    DTYPE,
    SCORE_KIND,
    FLAGS,
    CAPACITY,
    DROP,
    LEAVES,
    ANOTHER_BATCH,
    ANOTHER_PASS,
    DIFFERENCES
};

struct differing {
    enum difference difference;
    struct verdict verdicts[3];
};

static void change_layer(struct layer *l, enum difference difference) {
    if (difference == EXPERTS) l->experts = 6;
    if (difference == TOP_K) l->top_k = 3;
    if (difference == WIDTH) l->width = 2;
    if (difference == DTYPE) l->dtype = TRIREME_DTYPE_BF16;
    if (difference == SCORE_KIND) l->scores = TRIREME_EXPERTS_SCORES_PROBABILITIES;
    if (difference == FLAGS) l->flags = TRIREME_EXPERTS_FLAG_NORMALIZE;
    if (difference == CAPACITY) l->capacity = 3;
    if (difference == DROP) l->drop = TRIREME_EXPERTS_DROP_LOWEST_WEIGHT;
    if (difference == LEAVES) l->leaves = 3;
}

/* Two micro-batches whose counts are the same. */
static void
move_another_batch(struct differing *test, struct verdict *verdict, int rank,
                   trireme_experts *experts, struct rank_arrays *r,
                   trireme_experts_route_arrays arrays, const trireme_experts_info *info) {
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    unsigned char *const first = take(info->kept_bytes);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_route(experts, &arrays, &routed, NULL));
    memcpy(first, r->kept, info->kept_bytes);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_route(experts, &arrays, &routed, NULL));
    const bool differs = rank == 1;
    const void *const kept = test->difference == ANOTHER_BATCH && differs ? first : r->kept;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  test->difference == ANOTHER_PASS && differs
                      ? trireme_experts_combine(experts, kept, r->results, NULL, r->output, NULL)
                      : trireme_experts_dispatch(experts, kept, r->data, r->received, NULL));
    free(first);
}

static void differ(trireme_communicator *communicator, int rank, void *context) {
    struct differing *const test = context;
    struct verdict *const verdict = &test->verdicts[rank];
    struct layer l = plain;
    if (test->difference == CAPACITY || test->difference == DROP) {
        l.capacity = 2;
        l.drop = TRIREME_EXPERTS_DROP_LAST;
    }
    if (rank == 1) change_layer(&l, test->difference);
    trireme_experts_options options = experts_options(&l);
    if (rank == 1 && test->difference == NAME) options.name = "moe 4";
    if (rank == 1 && test->difference == MOST_ROWS) options.rows = 11;
    trireme_experts *experts = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &options, &experts));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    struct rank_arrays r = make_rank_arrays(&l, &info);
    const trireme_experts_route_arrays arrays = route_arrays(&l, &r, &info);
    if (test->difference >= ANOTHER_BATCH) {
        move_another_batch(test, verdict, rank, experts, &r, arrays, &info);
        EXPECT(verdict, says(" pass of experts \"moe 3\": "));
    } else {
        EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                      trireme_experts_route(experts, &arrays, &routed, NULL));
        EXPECT(verdict, says("route pass of experts \"moe "));
        EXPECT(verdict, trireme_experts_route(experts, &arrays, &routed, NULL) != TRIREME_OK);
    }
    free_rank_arrays(&r);
    trireme_experts_destroy(experts);
}

static void ranks_that_differ_all_get_a_mismatch(void **state) {
    (void)state;
    for (int difference = 0; difference < DIFFERENCES; ++difference) {
        struct differing test = {.difference = (enum difference)difference};
        run_ranks(3, differ, &test);
        assert_verdicts(test.verdicts, 3);
    }
}

/* Two layers differ only in the end of what a message holds of their names. */
static void mix_up_layers(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = &((struct verdict *)context)[rank];
    trireme_experts *experts[2] = {NULL, NULL};
    struct rank_arrays r[2];
    trireme_experts_options options = experts_options(&plain);
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    for (int i = 0; i < 2; ++i) {
        options.name =
            i == 0 ? "mixture block 1, of a long name" : "mixture block 2, of a long name";
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_experts_create(communicator, &options, &experts[i]));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts[i], &info));
        r[i] = make_rank_arrays(&plain, &info);
        const trireme_experts_route_arrays arrays = route_arrays(&plain, &r[i], &info);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_experts_route(experts[i], &arrays, &routed, NULL));
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_experts_dispatch(experts[i], r[i].kept, r[i].data, r[i].received,
                                               NULL));
    }
    const int own = rank == 0 ? 0 : 1;
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_experts_dispatch_backward(experts[own], r[own].kept, r[own].d_received,
                                                    r[own].d_rows, NULL));
    EXPECT(verdict, says("backward dispatch \"mixture block 1") &&
                        says("backward dispatch \"mixture block 2"));
    for (int i = 0; i < 2; ++i) {
        free_rank_arrays(&r[i]);
        trireme_experts_destroy(experts[i]);
    }
}

static void equal_layers_are_not_mixed_up(void **state) {
    (void)state;
    struct verdict verdicts[2] = {{""}, {""}};
    run_ranks(2, mix_up_layers, verdicts);
    assert_verdicts(verdicts, 2);
}

/* --- ranks that do not come, threads that do ----------------------------------------------------
 */

static void wait_alone(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = &((struct verdict *)context)[rank];
    if (rank == 1) { /* leaves only when rank 0 has given up */
        uint64_t word = 0;
        EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                      trireme_receive(communicator, &word, 1, TRIREME_DTYPE_U64, 0, 7, NULL));
        return;
    }
    trireme_experts_options options = experts_options(&plain);
    options.timeout_ns = 50 * 1000 * 1000;
    trireme_experts *experts = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &options, &experts));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    struct rank_arrays r = make_rank_arrays(&plain, &info);
    const trireme_experts_route_arrays arrays = route_arrays(&plain, &r, &info);
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                  trireme_experts_route(experts, &arrays, &routed, NULL));
    EXPECT(verdict, says("the deadline is 0.05 s, timeout_ns of the experts' options"));
    free_rank_arrays(&r);
    trireme_experts_destroy(experts);
}

static void a_rank_that_does_not_come_is_a_timeout(void **state) {
    (void)state;
    struct verdict verdicts[2] = {{""}, {""}};
    run_ranks(2, wait_alone, verdicts);
    assert_verdicts(verdicts, 2);
}

struct short_of_memory {
    _Atomic int routed; /* ranks whose route pass is over, which a failure of the other would end */
    trireme_status statuses[2];
    struct verdict verdicts[2];
};

/* No row travels, but memory is planned for one. */
static void ask_for_much(trireme_communicator *communicator, int rank, void *context) {
    struct short_of_memory *const test = context;
    struct verdict *const verdict = &test->verdicts[rank];
    trireme_experts_options options = experts_options(&plain);
    options.width = 1ull << 46;
    options.rows = 1;
    options.leaves = 0;
    trireme_experts *experts = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    trireme_experts_route_arrays arrays = TRIREME_EXPERTS_ROUTE_ARRAYS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &options, &experts));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    arrays.kept = take(info.kept_bytes);
    arrays.segments = take(info.segment_count * 8);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_route(experts, &arrays, &routed, NULL));
    atomic_fetch_add(&test->routed, 1);
    while (atomic_load(&test->routed) < 2) sched_yield();
    test->statuses[rank] = trireme_experts_dispatch(experts, arrays.kept, NULL, NULL, NULL);
    EXPECT(verdict, test->statuses[rank] != TRIREME_OK);
    EXPECT(verdict, says("dispatch pass of experts \"moe 3\": "));
    free(arrays.kept);
    free(arrays.segments);
    trireme_experts_destroy(experts);
}

/* The rank that runs out first fails the group. */
static void memory_that_runs_out_names_the_pass(void **state) {
    (void)state;
    struct short_of_memory test = {.verdicts = {{""}, {""}}};
    run_ranks(2, ask_for_much, &test);
    assert_verdicts(test.verdicts, 2);
    assert_true(test.statuses[0] == TRIREME_ERROR_OUT_OF_MEMORY ||
                test.statuses[1] == TRIREME_ERROR_OUT_OF_MEMORY);
}

struct both {
    trireme_experts *experts[2]; /* of two ranks */
    struct rank_arrays r[2];
    struct verdict verdicts[2];
    _Atomic bool ended; /* the pass of thread 0 */
};

static void route_one(int rank, void *context) {
    struct both *const both = context;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    struct verdict *const verdict = &both->verdicts[rank];
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(both->experts[rank], &info));
    both->r[rank] = make_rank_arrays(&plain, &info);
    const trireme_experts_route_arrays arrays = route_arrays(&plain, &both->r[rank], &info);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_route(both->experts[rank], &arrays, &routed, NULL));
}

/* Thread 0 waits in a pass of rank 0. Thread 1 gets no pass of that rank meanwhile, and then makes
 * the one of rank 1. */
static void pass_at_once(int index, void *context) {
    struct both *const both = context;
    struct verdict *const verdict = &both->verdicts[index];
    struct rank_arrays *const r = both->r;
    trireme_status status = TRIREME_OK;
    if (index == 0) {
        do {
            status =
                trireme_experts_dispatch(both->experts[0], r->kept, r->data, r->received, NULL);
        } while (status == TRIREME_ERROR_INVALID_STATE);
        atomic_store(&both->ended, true);
        EXPECT(verdict, status == TRIREME_OK);
        return;
    }
    do { /* local, so it succeeds until the dispatch pass runs */
        status = trireme_experts_route_backward(both->experts[0], r->kept, r->scores, r->d_weights,
                                                NULL, r->d_scores);
    } while (status == TRIREME_OK && !atomic_load(&both->ended));
    EXPECT(verdict, status == TRIREME_ERROR_INVALID_STATE);
    EXPECT(verdict, says("another pass of experts \"moe 3\" runs"));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_dispatch(both->experts[1], r[1].kept, r[1].data, r[1].received,
                                           NULL));
}

static void one_pass_at_a_time(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    struct both both = {.verdicts = {{""}, {""}}};
    const trireme_experts_options options = experts_options(&plain);
    for (int rank = 0; rank < 2; ++rank) {
        assert_int_equal(trireme_experts_create(pair.ranks[rank], &options, &both.experts[rank]),
                         TRIREME_OK);
    }
    run_threads(2, route_one, &both);
    run_threads(2, pass_at_once, &both);
    assert_verdicts(both.verdicts, 2);
    for (int rank = 0; rank < 2; ++rank) {
        free_rank_arrays(&both.r[rank]);
        trireme_experts_destroy(both.experts[rank]);
    }
    free_rank_pair(pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(questions_are_checked),
        cmocka_unit_test(arguments_are_checked),
        cmocka_unit_test(rows_without_a_choice_are_named_on_all_ranks),
        cmocka_unit_test(the_first_bad_row_is_named),
        cmocka_unit_test(ranks_that_differ_all_get_a_mismatch),
        cmocka_unit_test(equal_layers_are_not_mixed_up),
        cmocka_unit_test(a_rank_that_does_not_come_is_a_timeout),
        cmocka_unit_test(memory_that_runs_out_names_the_pass),
        cmocka_unit_test(one_pass_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
