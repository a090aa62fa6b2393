/* A layer of experts over ranks: near a plain computation in f64, rows moved exactly, and the same
 * bits for every number of ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "experts.inc"

#define MOST 8

static const int world_sizes[] = {1, 2, 3, 4, 5, 8};

/* Arrays of all rows. Those by experts lie in the order of experts, leaves and rows. */
enum array {
    CHOSEN,
    SLOT_WEIGHTS,
    SLOT_GRADIENTS,
    OUTPUTS,
    ROW_GRADIENTS,
    SCORE_GRADIENTS,
    RECEIVED,
    EXPERT_RESULTS,
    RESULT_GRADIENTS,
    RECEIVED_GRADIENTS,
    SEGMENTS,
    MATRIX_GRADIENTS,
    EXPERT_ROWS,
    EXPERT_DROPPED,
    MEAN_PROBABILITIES,
    ARRAYS
};

struct trial {
    struct layer layer;
    int world_size;
    bool keeps_nothing; /* combine without an array for its backward pass */
    unsigned char *arrays[ARRAYS];
    uint64_t sent[MOST]; /* rows of each rank that peers read in a dispatch pass */
    struct verdict verdicts[MOST];
};

static uint64_t array_bytes(const struct layer *l, enum array array) {
    const uint64_t rows = all_rows(l), slots = rows * l->top_k;
    const size_t size = trireme_dtype_bytes(l->dtype);
    switch (array) {
        case CHOSEN:
        case SLOT_WEIGHTS:
        case SLOT_GRADIENTS: return slots * 4;
        case OUTPUTS:
        case ROW_GRADIENTS: return rows * l->width * size;
        case SCORE_GRADIENTS: return rows * l->experts * 4;
        case RECEIVED:
        case EXPERT_RESULTS:
        case RESULT_GRADIENTS:
        case RECEIVED_GRADIENTS: return slots * l->width * size;
        case SEGMENTS: return ((uint64_t)l->experts * l->leaves + 1) * 8;
        case MATRIX_GRADIENTS: return l->experts * l->width * l->width * 4;
        default: return l->experts * 8;
    }
}

static void
put(struct trial *trial, enum array array, uint64_t at, const void *from, uint64_t bytes) {
    memcpy(trial->arrays[array] + at, from, bytes);
}

/* Every rank has these; they write them one after the other. */
static void put_same(struct trial *trial, struct verdict *verdict, int rank, enum array array,
                     const void *from) {
    const uint64_t bytes = array_bytes(&trial->layer, array);
    if (rank == 0) put(trial, array, 0, from, bytes);
    EXPECT(verdict, memcmp(trial->arrays[array], from, bytes) == 0);
}

/* --- the passes of a rank --------------------------------------------------------------------- */

static uint64_t sent_bytes(struct verdict *verdict, trireme_communicator *communicator) {
    trireme_communicator_statistics now = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_statistics(communicator, &now));
    return now.sent_bytes;
}

/* Over connections ranks pass parts of others on. */
static void expect_sent(struct verdict *verdict, trireme_communicator *communicator,
                        const struct trial *trial, uint64_t before, uint64_t planned) {
    const uint64_t sent = sent_bytes(verdict, communicator) - before;
    if (!ranks_use_transport() && !ranks_use_network()) {
        EXPECT(verdict, sent == planned);
        return;
    }
    int64_t both[2] = {(int64_t)sent, (int64_t)planned};
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, both, both, 2, TRIREME_DTYPE_I64,
                                     TRIREME_REDUCTION_SUM, NULL));
    EXPECT(verdict, both[0] == both[1] || (trial->world_size > 2 && both[0] > both[1]));
}

#define PASS(planned, call)                                                     \
    do {                                                                        \
        const uint64_t before = sent_bytes(verdict, communicator);              \
        EXPECT_STATUS(verdict, TRIREME_OK, (call));                             \
        expect_sent(verdict, communicator, trial, before, (uint64_t)(planned)); \
    } while (0)

static void compute_forward(const struct layer *l, const struct rank_arrays *r,
                            const trireme_experts_info *info) {
    for (uint32_t e = 0; e < info->expert_count; ++e) {
        compute_expert(l, r, info->first_expert + e, r->segments[e * info->leaves],
                       r->segments[(e + 1) * info->leaves], NULL);
    }
}

/* Gradients of an expert's matrix: of each leaf, and then their sum. */
static void compute_backward(struct trial *trial, const struct rank_arrays *r,
                             const trireme_experts_info *info) {
    const struct layer *const l = &trial->layer;
    const uint64_t count = l->width * l->width;
    float *const all = (float *)trial->arrays[MATRIX_GRADIENTS];
    float *const of_leaf = take(count * sizeof(float));
    for (uint64_t i = 0; i < (uint64_t)info->expert_count * info->leaves; ++i) {
        const uint64_t expert = info->first_expert + i / info->leaves;
        memset(of_leaf, 0, count * sizeof(float));
        compute_expert(l, r, expert, r->segments[i], r->segments[i + 1], of_leaf);
        for (uint64_t k = 0; k < count; ++k) all[expert * count + k] += of_leaf[k];
    }
    free(of_leaf);
}

static void
put_results(struct trial *trial, struct verdict *verdict, int rank, const struct rank_arrays *r,
            const trireme_experts_info *info, uint64_t received_rows) {
    const struct layer *const l = &trial->layer;
    const uint64_t row = l->width * trireme_dtype_bytes(l->dtype), slots = l->top_k * 4;
    put(trial, CHOSEN, r->first * slots, r->chosen, r->rows * slots);
    put(trial, SLOT_WEIGHTS, r->first * slots, r->weights, r->rows * slots);
    put(trial, SLOT_GRADIENTS, r->first * slots, r->d_weights, r->rows * slots);
    put(trial, OUTPUTS, r->first * row, r->output, r->rows * row);
    put(trial, ROW_GRADIENTS, r->first * row, r->d_rows, r->rows * row);
    put(trial, SCORE_GRADIENTS, r->first * l->experts * 4, r->d_scores, r->rows * l->experts * 4);
    uint64_t first = 0; /* of the rows of this rank's experts */
    for (uint32_t e = 0; e < info->first_expert; ++e) {
        first += r->expert_rows[e] - r->expert_dropped[e];
    }
    put(trial, RECEIVED, first * row, r->received, received_rows * row);
    put(trial, EXPERT_RESULTS, first * row, r->results, received_rows * row);
    put(trial, RESULT_GRADIENTS, first * row, r->d_results, received_rows * row);
    put(trial, RECEIVED_GRADIENTS, first * row, r->d_received, received_rows * row);
    EXPECT(verdict, r->segments[0] == 0 && r->segments[info->segment_count - 1] == received_rows);
    for (uint64_t i = 0; i < info->segment_count; ++i) {
        const uint64_t begin = first + r->segments[i];
        put(trial, SEGMENTS, ((uint64_t)info->first_expert * info->leaves + i) * 8, &begin, 8);
    }
    put_same(trial, verdict, rank, EXPERT_ROWS, r->expert_rows);
    put_same(trial, verdict, rank, EXPERT_DROPPED, r->expert_dropped);
    put_same(trial, verdict, rank, MEAN_PROBABILITIES, r->means);
}

static void expect_info(struct verdict *verdict, const struct trial *trial, int rank,
                        const trireme_experts_info *info) {
    const struct layer *const l = &trial->layer;
    const uint64_t n = (uint64_t)trial->world_size, r = (uint64_t)rank;
    EXPECT(verdict, info->rank == rank && info->world_size == trial->world_size);
    EXPECT(verdict, info->first_expert == r * l->experts / n);
    EXPECT(verdict, info->first_expert + info->expert_count == (r + 1) * l->experts / n);
    EXPECT(verdict, info->first_leaf == r * l->leaves / n && info->leaves == l->leaves);
    EXPECT(verdict, info->first_leaf + info->leaf_count == (r + 1) * l->leaves / n);
    EXPECT(verdict, info->segment_count == (uint64_t)info->expert_count * l->leaves + 1);
    EXPECT(verdict, info->held_memory == 0 && info->table_bytes > 0);
    EXPECT(verdict, info->routes == 0 && info->combines_backward == 0);
}

static void run_passes(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    const struct layer *const l = &trial->layer;
    struct verdict *const verdict = &trial->verdicts[rank];
    const trireme_experts_options options = experts_options(l);
    trireme_experts *experts = NULL;
    if (!EXPECT_STATUS(verdict, TRIREME_OK,
                       trireme_experts_create(communicator, &options, &experts))) {
        return;
    }
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    expect_info(verdict, trial, rank, &info);
    struct rank_arrays r = make_rank_arrays(l, &info);
    const trireme_experts_route_arrays arrays = route_arrays(l, &r, &info);
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    PASS(info.route_bytes, trireme_experts_route(experts, &arrays, &routed, NULL));
    EXPECT(verdict, routed.received_rows <= info.most_received);
    EXPECT(verdict, routed.sent_rows <= info.most_sent);
    trial->sent[rank] = routed.dispatch_bytes;
    PASS(routed.dispatch_bytes,
         trireme_experts_dispatch(experts, r.kept, r.data, r.received, NULL));
    compute_forward(l, &r, &info);
    PASS(routed.combine_bytes,
         trireme_experts_combine(experts, r.kept, r.results,
                                 trial->keeps_nothing ? NULL : r.returned, r.output, NULL));
    if (!trial->keeps_nothing) {
        PASS(routed.dispatch_bytes,
             trireme_experts_combine_backward(experts, r.kept, r.d_output, r.returned, r.d_results,
                                              r.d_weights, NULL));
        compute_backward(trial, &r, &info);
        PASS(routed.combine_bytes,
             trireme_experts_dispatch_backward(experts, r.kept, r.d_received, r.d_rows, NULL));
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_experts_route_backward(experts, r.kept, r.scores, r.d_weights,
                                                     r.d_mean, r.d_scores));
    }
    const uint64_t backward = trial->keeps_nothing ? 0 : 1;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    EXPECT(verdict, info.held_memory == info.pass_memory);
    EXPECT(verdict,
           info.pass_memory == (trial->world_size == 1
                                    ? 0
                                    : info.most_sent * l->width * trireme_dtype_bytes(l->dtype)));
    EXPECT(verdict, info.routes == 1 && info.dispatches == 1 && info.combines == 1);
    EXPECT(verdict, info.combines_backward == backward && info.dispatches_backward == backward);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    for (int writer = 0; writer < trial->world_size; ++writer) {
        if (writer == rank) put_results(trial, verdict, rank, &r, &info, routed.received_rows);
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    }
    free_rank_arrays(&r);
    trireme_experts_destroy(experts);
}

static void run_trial(struct trial *trial) {
    for (int i = 0; i < ARRAYS; ++i) {
        trial->arrays[i] = take(array_bytes(&trial->layer, (enum array)i));
    }
    run_ranks(trial->world_size, run_passes, trial);
    assert_verdicts(trial->verdicts, trial->world_size);
}

static void free_trial(struct trial *trial) {
    for (int i = 0; i < ARRAYS; ++i) free(trial->arrays[i]);
}

/* --- what is right -----------------------------------------------------------------------------
 */

static double result_at(const struct trial *trial, enum array array, uint64_t index) {
    const unsigned char *const at = trial->arrays[array];
    const trireme_dtype dtype = array == OUTPUTS || array == ROW_GRADIENTS ? trial->layer.dtype
                                : array == MEAN_PROBABILITIES              ? TRIREME_DTYPE_F64
                                                                           : TRIREME_DTYPE_F32;
    return number_at(dtype, at + index * trireme_dtype_bytes(dtype));
}

static double tolerance_of(trireme_dtype dtype) {
    return dtype == TRIREME_DTYPE_BF16 ? 0.05 : dtype == TRIREME_DTYPE_F16 ? 0.006 : 2e-5;
}

static void expect_near(const struct trial *trial, const struct whole *whole) {
    static const struct {
        enum array array;
        enum result result;
        const char *name;
    } pairs[] = {{SLOT_WEIGHTS, WEIGHTS, "weights"},
                 {SLOT_GRADIENTS, D_WEIGHTS, "d_weights"},
                 {OUTPUTS, OUTPUT, "output"},
                 {ROW_GRADIENTS, D_ROWS, "d_rows"},
                 {SCORE_GRADIENTS, D_SCORES, "d_scores"},
                 {MEAN_PROBABILITIES, MEANS, "means"},
                 {MATRIX_GRADIENTS, D_MATRICES, "d_matrices"}};
    const struct layer *const l = &trial->layer;
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        for (uint64_t k = 0; k < result_count(l, pairs[i].result); ++k) {
            const double got = result_at(trial, pairs[i].array, k);
            const double wanted = whole->results[pairs[i].result][k];
            /* Weights and means do not depend on the rows. */
            const bool of_scores =
                pairs[i].array == SLOT_WEIGHTS || pairs[i].array == MEAN_PROBABILITIES;
            const double tolerance = of_scores ? 1e-6 : tolerance_of(l->dtype);
            if (fabs(got - wanted) <= tolerance * (1 + fabs(wanted))) continue;
            print_error("%s[%llu] is %.9g, not %.9g (%u experts, top %u)\n", pairs[i].name,
                        (unsigned long long)k, got, wanted, l->experts, l->top_k);
            fail();
        }
    }
}

/* Choices, and all that is counted or copied. */
static void expect_exact(const struct trial *trial, const struct whole *whole) {
    const struct layer *const l = &trial->layer;
    const uint64_t row_bytes = l->width * trireme_dtype_bytes(l->dtype);
    const int32_t *const chosen = (const int32_t *)trial->arrays[CHOSEN];
    const uint64_t *const segments = (const uint64_t *)trial->arrays[SEGMENTS];
    unsigned char *const all = make_elements(l, ROWS, 0, all_rows(l) * l->width);
    for (uint64_t i = 0; i < all_rows(l) * l->top_k; ++i) {
        assert_int_equal(chosen[i], whole->routed[i] ? whole->choices[i] : -1);
    }
    assert_memory_equal(trial->arrays[EXPERT_ROWS], whole->chosen, l->experts * 8);
    assert_memory_equal(trial->arrays[EXPERT_DROPPED], whole->dropped, l->experts * 8);
    uint64_t at = 0;
    for (uint32_t expert = 0; expert < l->experts; ++expert) {
        for (uint32_t leaf = 0; leaf < l->leaves; ++leaf) {
            assert_int_equal(segments[expert * l->leaves + leaf], at);
            for (uint64_t row = first_row(l, leaf); row < first_row(l, leaf + 1); ++row) {
                for (uint32_t k = 0; k < l->top_k; ++k) {
                    const uint64_t slot = row * l->top_k + k;
                    if (!whole->routed[slot] || whole->choices[slot] != (int32_t)expert) continue;
                    assert_memory_equal(trial->arrays[RECEIVED] + at++ * row_bytes,
                                        all + row * row_bytes, row_bytes);
                }
            }
        }
    }
    assert_int_equal(segments[l->experts * l->leaves], at);
    free(all);
}

/* The place of a slot among the rows that experts get. */
static uint64_t place_of(const struct layer *l, const struct whole *whole, uint64_t slot) {
    uint64_t place = 0;
    for (uint64_t i = 0; i < all_rows(l) * l->top_k; ++i) {
        const bool before = whole->choices[i] < whole->choices[slot] ||
                            (whole->choices[i] == whole->choices[slot] && i < slot);
        place += whole->routed[i] && before;
    }
    return place;
}

/* Sums of `summands` in the order of slots, in f32 or f64, rounded once: to the last bit. */
static void expect_sums(const struct trial *trial, const struct whole *whole, enum array summands,
                        bool weighted, enum array sums) {
    const struct layer *const l = &trial->layer;
    const uint64_t size = trireme_dtype_bytes(l->dtype);
    const float *const weights = (const float *)trial->arrays[SLOT_WEIGHTS];
    for (uint64_t row = 0; row < all_rows(l); ++row) {
        for (uint64_t j = 0; j < l->width; ++j) {
            float narrow = 0;
            double wide = 0;
            bool first = true;
            for (uint64_t slot = row * l->top_k; slot < (row + 1) * l->top_k; ++slot) {
                if (!whole->routed[slot]) continue;
                const uint64_t at = place_of(l, whole, slot) * l->width + j;
                const double result = number_at(l->dtype, trial->arrays[summands] + at * size);
                const float weight = weighted ? weights[slot] : 1;
                const volatile float product = weight * (float)result;
                const volatile double wide_product = (double)weight * result;
                narrow = first ? product : narrow + product;
                wide = first ? wide_product : wide + wide_product;
                first = false;
            }
            unsigned char element[8];
            put_number(l->dtype, l->dtype == TRIREME_DTYPE_F64 ? wide : (double)narrow, element);
            assert_memory_equal(trial->arrays[sums] + (row * l->width + j) * size, element, size);
        }
    }
}

static void expect_slot_order(const struct trial *trial, const struct whole *whole) {
    expect_sums(trial, whole, EXPERT_RESULTS, true, OUTPUTS);
    if (!trial->keeps_nothing) {
        expect_sums(trial, whole, RECEIVED_GRADIENTS, false, ROW_GRADIENTS);
    }
}

/* Gradients of results to the last bit, and of weights within one f32 of the product in f64. */
static void expect_slot_gradients(const struct trial *trial, const struct whole *whole) {
    const struct layer *const l = &trial->layer;
    const uint64_t size = trireme_dtype_bytes(l->dtype);
    const float *const weights = (const float *)trial->arrays[SLOT_WEIGHTS];
    const float *const d_weights = (const float *)trial->arrays[SLOT_GRADIENTS];
    for (uint64_t slot = 0; slot < all_rows(l) * l->top_k; ++slot) {
        if (!whole->routed[slot]) {
            assert_true(d_weights[slot] == 0);
            continue;
        }
        const uint64_t place = place_of(l, whole, slot) * l->width;
        double product = 0;
        for (uint64_t j = 0; j < l->width; ++j) {
            const double gradient = input_at(l, D_OUTPUT, slot / l->top_k * l->width + j);
            const volatile float narrow = weights[slot] * (float)gradient;
            const double scaled =
                l->dtype == TRIREME_DTYPE_F64 ? (double)weights[slot] * gradient : (double)narrow;
            unsigned char element[8];
            put_number(l->dtype, scaled, element);
            assert_memory_equal(trial->arrays[RESULT_GRADIENTS] + (place + j) * size, element,
                                size);
            product +=
                gradient * number_at(l->dtype, trial->arrays[EXPERT_RESULTS] + (place + j) * size);
        }
        const float wanted = (float)product;
        assert_true(d_weights[slot] >= nextafterf(wanted, -INFINITY) &&
                    d_weights[slot] <= nextafterf(wanted, INFINITY));
    }
}

static void expect_same_bits(const struct trial *trial, const struct trial *first) {
    for (int i = 0; i < ARRAYS; ++i) {
        const uint64_t bytes = array_bytes(&trial->layer, (enum array)i);
        if (memcmp(trial->arrays[i], first->arrays[i], bytes) == 0) continue;
        print_error("array %d has other bits on %d ranks (%u experts, top %u)\n", i,
                    trial->world_size, trial->layer.experts, trial->layer.top_k);
        fail();
    }
}

static struct whole compute_plainly(const struct layer *l) {
    struct whole whole = make_whole(l);
    run_plainly(l, &whole);
    run_backward_plainly(l, &whole);
    return whole;
}

static void check_layer(const struct layer *l) {
    struct whole whole = compute_plainly(l);
    struct trial first = {.world_size = 0};
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        struct trial trial = {.layer = *l, .world_size = world_sizes[w]};
        if (l->leaves < (uint32_t)trial.world_size) continue;
        if ((is_quick() || ranks_use_transport()) && w % 2 == 1 && w != 5) continue;
        run_trial(&trial);
        if (first.world_size == 0) {
            expect_exact(&trial, &whole);
            expect_slot_order(&trial, &whole);
            expect_slot_gradients(&trial, &whole);
            expect_near(&trial, &whole);
            first = trial;
            continue;
        }
        expect_same_bits(&trial, &first);
        free_trial(&trial);
    }
    free_trial(&first);
    free_whole(&whole);
}

static const struct layer plain = {.experts = 8,
                                   .top_k = 2,
                                   .leaves = 8,
                                   .width = 5,
                                   .leaf_rows = {4, 1, 0, 7, 3, 3, 5, 2},
                                   .dtype = TRIREME_DTYPE_F32,
                                   .scores = TRIREME_EXPERTS_SCORES_LOGITS};

static void every_number_of_ranks_gives_the_same_bits(void **state) {
    (void)state;
    struct layer l = plain;
    check_layer(&l);
    l.flags = TRIREME_EXPERTS_FLAG_NORMALIZE;
    l.leaves = 12; /* several leaves on a rank, and uneven */
    l.leaf_rows[9] = 6;
    l.leaf_rows[11] = 1;
    l.pads = true;
    check_layer(&l);
    l.scores = TRIREME_EXPERTS_SCORES_PROBABILITIES;
    check_layer(&l);
    l.flags = 0;
    l.width = 1030; /* longer than the pieces in which rows are computed */
    l.experts = 3;
    for (int leaf = 1; leaf < 12; ++leaf) l.leaf_rows[leaf] = leaf % 3 == 0;
    check_layer(&l);
}

static void experts_need_not_divide_among_ranks(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 2, 3, 5, 7, 13};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; ++i) {
        struct layer l = plain;
        l.experts = counts[i];
        l.top_k = counts[i] < 3 ? 1 : 3; /* of three experts all */
        l.flags = i % 2 == 0 ? TRIREME_EXPERTS_FLAG_NORMALIZE : 0;
        check_layer(&l);
    }
}

static void every_dtype(void **state) {
    (void)state;
    static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F64, TRIREME_DTYPE_F16,
                                           TRIREME_DTYPE_BF16};
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; ++i) {
        struct layer l = plain;
        l.dtype = dtypes[i];
        l.top_k = 3;
        l.pads = true;
        check_layer(&l);
    }
}

static void experts_drop_what_is_beyond_their_capacity(void **state) {
    (void)state;
    for (int choice = 0; choice < 8; ++choice) {
        struct layer l = plain;
        l.drop = choice % 2 == 0 ? TRIREME_EXPERTS_DROP_LAST : TRIREME_EXPERTS_DROP_LOWEST_WEIGHT;
        l.capacity = choice < 4 ? 1 : 2;
        l.flags = choice % 4 < 2 ? TRIREME_EXPERTS_FLAG_NORMALIZE : 0;
        l.experts = 5;
        l.leaf_rows[2] = 17;
        l.pads = choice == 3 || choice == 4;
        check_layer(&l);
    }
}

static void all_rows_may_choose_one_expert(void **state) {
    (void)state;
    struct layer l = plain;
    l.top_k = 1;
    l.scoring = ONE_EXPERT;
    check_layer(&l);
    l.drop = TRIREME_EXPERTS_DROP_LAST;
    l.capacity = 1;
    check_layer(&l);
    l.flags = TRIREME_EXPERTS_FLAG_NORMALIZE; /* all weights are 1 */
    l.drop = TRIREME_EXPERTS_DROP_LOWEST_WEIGHT;
    l.capacity = 3;
    check_layer(&l);
}

static void the_lower_expert_wins_a_tie(void **state) {
    (void)state;
    struct layer l = plain;
    l.scoring = EQUAL;
    l.top_k = 3;
    check_layer(&l);
    l.drop = TRIREME_EXPERTS_DROP_LOWEST_WEIGHT;
    l.capacity = 2;
    check_layer(&l);
}

static void few_rows_and_none(void **state) {
    (void)state;
    for (uint64_t rows = 0; rows < 3; ++rows) {
        struct layer l = plain;
        memset(l.leaf_rows, 0, sizeof l.leaf_rows);
        l.leaf_rows[5] = rows;
        check_layer(&l);
    }
    struct layer l = plain;
    l.width = 0;
    check_layer(&l);
    l = plain;
    memset(l.leaf_rows, 0, sizeof l.leaf_rows);
    l.leaf_rows[0] = 3;
    l.pads = true; /* the only row of its leaf among them */
    check_layer(&l);
}

/* So many choices that a row's experts are sorted. */
static void a_row_may_choose_many_experts(void **state) {
    (void)state;
    struct layer l = plain;
    l.experts = 40;
    l.top_k = 33;
    l.width = 2;
    check_layer(&l);
    l.scoring = EQUAL;
    l.top_k = 40;
    check_layer(&l);
}

/* Without a backward pass the results need no memory of the caller. */
static void a_forward_pass_alone(void **state) {
    (void)state;
    struct whole whole = compute_plainly(&plain);
    for (int world_size = 1; world_size <= 3; world_size += 2) {
        struct trial trial = {.layer = plain, .world_size = world_size, .keeps_nothing = true};
        run_trial(&trial);
        expect_exact(&trial, &whole);
        expect_slot_order(&trial, &whole);
        free_trial(&trial);
    }
    free_whole(&whole);
}

/* --- bytes, leaves by default, micro-batches ---------------------------------------------------
 */

/* top_k * rows * width * (R-1)/R elements of a rank, where rows are routed evenly. */
static void even_routes_send_what_the_formula_says(void **state) {
    (void)state;
    struct trial trial = {.layer = plain, .world_size = 4};
    struct layer *const l = &trial.layer;
    l->leaves = 4;
    l->top_k = 8; /* each row goes to each expert */
    for (int leaf = 0; leaf < 4; ++leaf) l->leaf_rows[leaf] = 6;
    run_trial(&trial);
    for (int rank = 0; rank < 4; ++rank) {
        assert_int_equal(trial.sent[rank], 8 * 6 * 5 * 4 * 3 / 4);
    }
    free_trial(&trial);
}

struct batches {
    struct verdict verdicts[MOST];
};

/* Rows with -0 and infinities, by way of one expert and back, keep their bits. Those of padding
 * become 0. */
static void move_special_rows(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = &((struct batches *)context)->verdicts[rank];
    struct layer l = plain;
    l.top_k = 1;
    l.pads = true;
    l.flags = TRIREME_EXPERTS_FLAG_NORMALIZE; /* all weights are 1 */
    const trireme_experts_options options = experts_options(&l);
    trireme_experts *experts = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    trireme_experts_route_info routed = TRIREME_EXPERTS_ROUTE_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &options, &experts));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    struct rank_arrays r = make_rank_arrays(&l, &info);
    const trireme_experts_route_arrays arrays = route_arrays(&l, &r, &info);
    static const float special[] = {-0.0f, INFINITY, -INFINITY, 0.0f, -1e-45f};
    float *const wanted = take(r.rows * l.width * sizeof(float));
    for (uint64_t i = 0; i < r.rows * l.width; ++i) {
        ((float *)r.data)[i] = special[i % 5];
        wanted[i] = r.padding[i / l.width] != 0 ? 0 : special[i % 5];
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_route(experts, &arrays, &routed, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_dispatch(experts, r.kept, r.data, r.received, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_combine(experts, r.kept, r.received, NULL, r.output, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_experts_dispatch_backward(experts, r.kept, r.received, r.d_rows, NULL));
    EXPECT(verdict, memcmp(r.output, wanted, r.rows * l.width * sizeof(float)) == 0);
    EXPECT(verdict, memcmp(r.d_rows, wanted, r.rows * l.width * sizeof(float)) == 0);
    free(wanted);
    free_rank_arrays(&r);
    trireme_experts_destroy(experts);
}

static void special_numbers_keep_their_bits(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; ++world_size) {
        struct batches batches = {0};
        run_ranks(world_size, move_special_rows, &batches);
        assert_verdicts(batches.verdicts, world_size);
    }
}

/* One leaf for each rank without `leaves`, and two micro-batches side by side. */
static void run_batches(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = &((struct batches *)context)->verdicts[rank];
    struct layer l = plain;
    trireme_experts_options options = experts_options(&l);
    options.leaves = 0;
    trireme_experts *experts = NULL;
    trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_create(communicator, &options, &experts));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_experts_get_info(experts, &info));
    EXPECT(verdict, info.leaves == 3 && info.leaf_count == 1);
    struct rank_arrays batches[2];
    trireme_experts_route_info routed[2] = {TRIREME_EXPERTS_ROUTE_INFO_INIT,
                                            TRIREME_EXPERTS_ROUTE_INFO_INIT};
    for (int b = 0; b < 2; ++b) {
        batches[b] = make_rank_arrays(&l, &info);
        trireme_experts_route_arrays arrays = route_arrays(&l, &batches[b], &info);
        arrays.leaf_rows = NULL;
        if (b == 1) { /* other experts */
            for (uint64_t i = 0; i < arrays.rows * l.experts; ++i) batches[b].scores[i] *= -1;
        }
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_experts_route(experts, &arrays, &routed[b], NULL));
    }
    EXPECT(verdict, batches[0].rows == 0 ||
                        memcmp(batches[0].chosen, batches[1].chosen, batches[0].rows * 8) != 0);
    for (int b = 1; b >= 0; --b) {
        struct rank_arrays *const r = &batches[b];
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_experts_dispatch(experts, r->kept, r->data, r->received, NULL));
    }
    for (int b = 0; b < 2; ++b) { /* experts that change nothing: sums are rows times weights */
        struct rank_arrays *const r = &batches[b];
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_experts_combine(experts, r->kept, r->received, NULL, r->output,
                                              NULL));
        for (uint64_t i = 0; i < r->rows * l.width; ++i) {
            const float *const weights = r->weights + i / l.width * l.top_k;
            const double wanted = (double)(weights[0] + weights[1]) * (double)((float *)r->data)[i];
            EXPECT(verdict, fabs((double)((float *)r->output)[i] - wanted) < 1e-6);
        }
        free_rank_arrays(r);
    }
    trireme_experts_destroy(experts);
}

static void micro_batches_lie_side_by_side(void **state) {
    (void)state;
    struct batches batches = {0};
    run_ranks(3, run_batches, &batches);
    assert_verdicts(batches.verdicts, 3);
}

/* --- finite differences ------------------------------------------------------------------------
 */

static void gradients_are_those_of_finite_differences(void **state) {
    (void)state;
    static const struct {
        enum input input;
        enum array gradient;
    } pairs[] = {{ROWS, ROW_GRADIENTS}, {SCORES, SCORE_GRADIENTS}, {MATRICES, MATRIX_GRADIENTS}};
    for (int choice = 0; choice < 3; ++choice) {
        struct trial trial = {.layer = plain, .world_size = 3};
        struct layer *const l = &trial.layer;
        l->experts = 4;
        l->flags = choice == 0 ? 0 : TRIREME_EXPERTS_FLAG_NORMALIZE;
        l->scores =
            choice == 2 ? TRIREME_EXPERTS_SCORES_PROBABILITIES : TRIREME_EXPERTS_SCORES_LOGITS;
        l->drop = TRIREME_EXPERTS_DROP_LAST;
        l->capacity = 2;
        l->pads = true;
        run_trial(&trial);
        struct whole whole = make_whole(l);
        for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; ++p) {
            for (uint64_t i = 0; i < input_count(l, pairs[p].input); ++i) {
                double *const number = &whole.inputs[pairs[p].input][i];
                const double kept = *number, step = 1e-6;
                *number = kept + step;
                run_plainly(l, &whole);
                const double above = loss_of(l, &whole);
                *number = kept - step;
                run_plainly(l, &whole);
                const double slope = (above - loss_of(l, &whole)) / (2 * step);
                *number = kept;
                assert_true(fabs(slope - result_at(&trial, pairs[p].gradient, i)) <=
                            1e-4 * (1 + fabs(slope)));
            }
        }
        free_whole(&whole);
        free_trial(&trial);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(experts_need_not_divide_among_ranks),
        cmocka_unit_test(every_dtype),
        cmocka_unit_test(experts_drop_what_is_beyond_their_capacity),
        cmocka_unit_test(all_rows_may_choose_one_expert),
        cmocka_unit_test(the_lower_expert_wins_a_tie),
        cmocka_unit_test(few_rows_and_none),
        cmocka_unit_test(a_row_may_choose_many_experts),
        cmocka_unit_test(a_forward_pass_alone),
        cmocka_unit_test(even_routes_send_what_the_formula_says),
        cmocka_unit_test(special_numbers_keep_their_bits),
        cmocka_unit_test(micro_batches_lie_side_by_side),
        cmocka_unit_test(gradients_are_those_of_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
