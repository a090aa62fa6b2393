/* Attention over ranks: near a plain computation in f64, and the same bits for every number of
 * ranks, both layouts and both methods. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attention.inc"
#include "ranks.h"

#define MOST 8

static const int world_sizes[] = {1, 2, 3, 4, 5, 8};

struct trial {
    struct attention attention;
    int world_size;
    trireme_context_layout layout;
    trireme_context_method method;
    bool calls;                     /* the tests' callbacks compute pairs */
    unsigned char *results[ARRAYS]; /* of the whole sequence */
    float *kept;
    uint64_t pairs[MOST];
    struct verdict verdicts[MOST];
};

static uint64_t sent_bytes(struct verdict *verdict, trireme_communicator *communicator) {
    trireme_communicator_statistics now = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_statistics(communicator, &now));
    return now.sent_bytes;
}

static trireme_attention_options options_of_pass(const struct attention *a) {
    trireme_attention_options options = TRIREME_ATTENTION_OPTIONS_INIT;
    options.sequence_starts = a->starts;
    options.sequence_count = a->start_count;
    return options;
}

/* As for regions: over connections ranks pass parts of others on. */
static void expect_planned(struct verdict *verdict, trireme_communicator *communicator,
                           const struct trial *trial, uint64_t sent, uint64_t planned) {
    if (trial->attention.start_count > 0) {
        EXPECT(verdict, ranks_use_transport() || ranks_use_network() || sent <= planned);
        return;
    }
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

/* Writes the rows of a rank to the whole sequence's results. */
static void put_results(struct trial *trial, const struct rank_arrays *r) {
    const struct attention *const a = &trial->attention;
    const size_t size = trireme_dtype_bytes(a->dtype);
    for (int i = OUTPUT; i < ARRAYS; ++i) {
        const uint64_t bytes = row_of_array(a, (enum array)i) * size;
        for (uint64_t row = 0; row < r->rows; ++row) {
            memcpy(trial->results[i] + r->positions[row] * bytes, r->memory[i] + row * bytes,
                   bytes);
        }
    }
    for (uint64_t row = 0; row < r->rows; ++row) {
        for (uint64_t half = 0; half < 2; ++half) {
            memcpy(trial->kept + (half * a->positions + r->positions[row]) * a->heads,
                   r->kept + (half * r->rows + row) * a->heads, a->heads * sizeof(float));
        }
    }
}

/* Between all ranks: messages between them are no longer counted. */
static void make_passes(trireme_communicator *communicator, int rank, void *context_of_test) {
    struct trial *const trial = context_of_test;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_context_options options =
        context_options(&trial->attention, trial->layout, trial->method);
    trireme_attention_callbacks callbacks = TRIREME_ATTENTION_CALLBACKS_INIT;
    callbacks.forward = forward_pair;
    callbacks.backward = backward_pair;
    if (trial->calls) {
        options.provider = TRIREME_ATTENTION_PROVIDER_CALLER;
        options.callbacks = &callbacks;
    }
    trireme_context *context = NULL;
    if (!EXPECT_STATUS(verdict, TRIREME_OK,
                       trireme_context_create(communicator, &options, &context))) {
        return;
    }
    struct rank_arrays r = make_rank_arrays(&trial->attention, context, rank);
    const trireme_attention_options pass = options_of_pass(&trial->attention);
    trireme_context_info info = TRIREME_CONTEXT_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_get_info(context, &info));
    EXPECT(verdict, info.rank == rank && info.world_size == trial->world_size);
    EXPECT(verdict, info.rows == r.rows && info.kept_count == 2 * r.rows * options.heads);
    EXPECT(verdict, info.q_count == r.rows * row_of_array(&trial->attention, Q));
    EXPECT(verdict, info.kv_count == r.rows * row_of_array(&trial->attention, K));
    EXPECT(verdict, info.held_memory == 0);
    trial->pairs[rank] = info.pairs;
    for (int backward = 0; backward < 2; ++backward) {
        const trireme_attention_arrays arrays = arrays_of_pass(&r, backward != 0);
        const uint64_t before = sent_bytes(verdict, communicator);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      backward != 0 ? trireme_context_attention_backward(context, &arrays, &pass)
                                    : trireme_context_attention_forward(context, &arrays, &pass));
        expect_planned(verdict, communicator, trial, sent_bytes(verdict, communicator) - before,
                       backward != 0 ? info.backward_bytes : info.forward_bytes);
        const uint64_t planned = backward != 0 && info.backward_memory > info.forward_memory
                                     ? info.backward_memory
                                     : info.forward_memory;
        trireme_context_info now = TRIREME_CONTEXT_INFO_INIT;
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_context_get_info(context, &now));
        EXPECT(verdict, now.held_memory == planned);
        EXPECT(verdict, now.forward_passes == 1 && now.backward_passes == (uint64_t)backward);
    }
    put_results(trial, &r);
    free_rank_arrays(&r);
    trireme_context_destroy(context);
}

static void run_trial(struct trial *trial) {
    const struct attention *const a = &trial->attention;
    const size_t size = trireme_dtype_bytes(a->dtype);
    for (int i = OUTPUT; i < ARRAYS; ++i) {
        trial->results[i] = take(count_of_array(a, (enum array)i) * size);
    }
    trial->kept = take(2 * a->positions * a->heads * sizeof(float));
    run_ranks(trial->world_size, make_passes, trial);
    assert_verdicts(trial->verdicts, trial->world_size);
}

static void free_trial(struct trial *trial) {
    for (int i = OUTPUT; i < ARRAYS; ++i) free(trial->results[i]);
    free(trial->kept);
}

static double tolerance_of(const struct attention *a) {
    const double big = a->big != 0 ? 100 : 1; /* scores of thousands have few digits behind 1 */
    return big * (a->dtype == TRIREME_DTYPE_BF16  ? 0.03
                  : a->dtype == TRIREME_DTYPE_F16 ? 0.004
                                                  : 2e-5);
}

static void expect_near(const struct trial *trial, const struct whole *whole) {
    const struct attention *const a = &trial->attention;
    static const char *const names[] = {"q", "k", "v", "d_output", "output", "dq", "dk", "dv"};
    const size_t size = trireme_dtype_bytes(a->dtype);
    for (int i = OUTPUT; i < ARRAYS; ++i) {
        for (uint64_t k = 0; k < count_of_array(a, (enum array)i); ++k) {
            const double got = number_at(a->dtype, trial->results[i] + k * size);
            const double wanted = whole->arrays[i][k];
            if (fabs(got - wanted) <= tolerance_of(a) * (1 + fabs(wanted))) continue;
            print_error("%s[%llu] is %.9g, not %.9g (%d positions, %d chunks)\n", names[i],
                        (unsigned long long)k, got, wanted, (int)a->positions, (int)a->chunks);
            fail();
        }
    }
}

static void expect_same_bits(const struct trial *trial, const struct trial *first) {
    const struct attention *const a = &trial->attention;
    const size_t size = trireme_dtype_bytes(a->dtype);
    bool same = memcmp(trial->kept, first->kept, 2 * a->positions * a->heads * sizeof(float)) == 0;
    for (int i = OUTPUT; i < ARRAYS; ++i) {
        same = same && memcmp(trial->results[i], first->results[i],
                              count_of_array(a, (enum array)i) * size) == 0;
    }
    if (same) return;
    print_error("other bits: %d positions, %d chunks, %d ranks, layout %d, method %d\n",
                (int)a->positions, (int)a->chunks, trial->world_size, (int)trial->layout,
                (int)trial->method);
    fail();
}

/* Every number of ranks that the chunks allow, both layouts and methods. */
static void check_attention(const struct attention *attention, bool calls) {
    struct whole whole = attend_plainly(attention);
    struct trial first = {.world_size = 0};
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (int choice = 0; choice < 4; ++choice) {
            struct trial trial = {.attention = *attention, .world_size = world_sizes[w]};
            trial.calls = calls;
            trial.layout = 1 + choice / 2;
            trial.method = 1 + choice % 2;
            const uint32_t least = (uint32_t)(trial.world_size * trial.layout);
            if (attention->chunks < least) continue;
            /* A transport takes a while to set up. */
            if ((is_quick() || ranks_use_transport()) && w % 2 == 1 && choice != 3) continue;
            run_trial(&trial);
            if (first.world_size == 0) {
                expect_near(&trial, &whole);
                first = trial;
                continue;
            }
            expect_same_bits(&trial, &first);
            free_trial(&trial);
        }
    }
    free_trial(&first);
    free_whole(&whole);
}

static const struct attention plain = {.positions = 37,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .width = 5,
                                       .chunks = 16,
                                       .causal = true,
                                       .dtype = TRIREME_DTYPE_F32};

static void every_number_of_ranks_gives_the_same_bits(void **state) {
    (void)state;
    struct attention a = plain;
    check_attention(&a, false);
    a.causal = false;
    check_attention(&a, false);
    a.chunks = 5; /* no power of two, and uneven for most ranks */
    check_attention(&a, false);
    a.causal = true;
    a.chunks = 11;
    a.width = 19;
    check_attention(&a, false);
}

static void few_positions_and_none(void **state) {
    (void)state;
    for (uint64_t positions = 0; positions < 6; ++positions) {
        struct attention a = plain;
        a.positions = positions;
        a.causal = positions % 2 == 1;
        check_attention(&a, false);
    }
}

static void sequences_do_not_see_each_other(void **state) {
    (void)state;
    for (int causal = 0; causal < 2; ++causal) {
        struct attention a = plain;
        a.causal = causal != 0;
        a.starts[0] = 3;
        a.starts[1] = 4;
        a.starts[2] = 21;
        a.starts[3] = 36;
        a.start_count = 4;
        check_attention(&a, false);
        a.starts[0] = 0; /* as without it */
        a.start_count = 1;
        check_attention(&a, false);
        a.chunks = 7;
        a.starts[0] = 20;
        check_attention(&a, false);
    }
}

static void narrow_numbers_are_rounded_once(void **state) {
    (void)state;
    struct attention a = plain;
    a.dtype = TRIREME_DTYPE_BF16;
    check_attention(&a, false);
    a.dtype = TRIREME_DTYPE_F16;
    a.kv_heads = 1;
    check_attention(&a, false);
}

/* Without rescaling, or with the wrong maximum, exp() of such scores is infinite. */
static void large_scores_stay_finite(void **state) {
    (void)state;
    struct attention a = plain;
    a.big = 500;
    check_attention(&a, false);
    a.big = 0;
    a.scale = 0.01;
    a.kv_heads = 4;
    check_attention(&a, false);
}

static void callers_compute_pairs(void **state) {
    (void)state;
    struct attention a = plain;
    a.chunks = 8;
    check_attention(&a, true);
    a.causal = false;
    a.starts[0] = 9;
    a.start_count = 1;
    check_attention(&a, true);
}

/* Layouts by their definition: a position's chunk, and its rank. */
static void positions_follow_the_layout(void **state) {
    (void)state;
    struct rank_pair pair = make_rank_pair();
    static const uint64_t extents[] = {0, 1, 3, 7, 8, 37};
    for (size_t e = 0; e < sizeof extents / sizeof extents[0]; ++e) {
        for (uint32_t chunks = 4; chunks <= 9; ++chunks) {
            for (trireme_context_layout layout = 1; layout <= 2; ++layout) {
                struct attention a = plain;
                a.positions = extents[e];
                a.chunks = chunks;
                const trireme_context_options options =
                    context_options(&a, layout, TRIREME_CONTEXT_METHOD_RING);
                trireme_context *context = NULL;
                assert_int_equal(trireme_context_create(pair.ranks[0], &options, &context),
                                 TRIREME_OK);
                uint64_t next[2] = {0, 0}, lists[2][40], counts[2];
                for (int rank = 0; rank < 2; ++rank) {
                    assert_int_equal(trireme_context_positions(context, rank, lists[rank], 40,
                                                               &counts[rank]),
                                     TRIREME_OK);
                }
                for (uint64_t position = 0; position < a.positions; ++position) {
                    uint32_t chunk = 0;
                    while ((chunk + 1) * a.positions / chunks <= position) ++chunk;
                    const uint32_t stretches = 2 * (uint32_t)layout;
                    uint32_t stretch = 0;
                    while ((stretch + 1) * chunks / stretches <= chunk) ++stretch;
                    const int rank = layout == 1 ? (int)stretch : stretch == 1 || stretch == 2;
                    assert_true(next[rank] < counts[rank]);
                    assert_int_equal(lists[rank][next[rank]++], position);
                }
                assert_int_equal(counts[0] + counts[1], a.positions);
                trireme_context_destroy(context);
            }
        }
    }
    free_rank_pair(pair);
}

/* 2C chunks of one size: the pairs of a causal attention are shared evenly. */
static void zigzag_shares_the_work(void **state) {
    (void)state;
    struct trial trial = {.attention = plain, .world_size = 4, .method = 1, .layout = 2};
    trial.attention.positions = 32;
    trial.attention.chunks = 8;
    run_trial(&trial);
    for (int rank = 0; rank < 4; ++rank) assert_int_equal(trial.pairs[rank], 9);
    free_trial(&trial);
    trial.layout = 1;
    run_trial(&trial);
    for (int rank = 0; rank < 4; ++rank) {
        assert_int_equal(trial.pairs[rank], (uint64_t)(4 * rank + 3));
    }
    free_trial(&trial);
}

/* The loss <output, d_output>, of the plain forward computation. */
static double loss_with(const struct attention *a, enum array array, uint64_t index, double step) {
    struct whole whole;
    for (int i = 0; i < ARRAYS; ++i) {
        whole.arrays[i] = i < OUTPUT ? whole_input(a, (enum array)i)
                                     : take(count_of_array(a, (enum array)i) * sizeof(double));
    }
    whole.arrays[array][index] += step;
    for (uint64_t query = 0; query < a->positions; ++query) {
        for (uint64_t head = 0; head < a->heads; ++head) attend(a, &whole, query, head);
    }
    const double loss =
        product_at(whole.arrays[OUTPUT], whole.arrays[D_OUTPUT], count_of_array(a, OUTPUT));
    free_whole(&whole);
    return loss;
}

static void gradients_are_those_of_finite_differences(void **state) {
    (void)state;
    struct trial trial = {.attention = plain, .world_size = 3, .method = 2, .layout = 2};
    struct attention *const a = &trial.attention;
    a->positions = 9;
    a->starts[0] = 4;
    a->start_count = 1;
    run_trial(&trial);
    for (enum array array = Q; array <= V; ++array) {
        const float *const gradient = (const float *)trial.results[DQ + array - Q];
        for (uint64_t index = 0; index < count_of_array(a, array); ++index) {
            const double step = 1e-5;
            const double slope =
                (loss_with(a, array, index, step) - loss_with(a, array, index, -step)) / (2 * step);
            assert_true(fabs(slope - (double)gradient[index]) <= 1e-4 * (1 + fabs(slope)));
        }
    }
    free_trial(&trial);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_ranks_gives_the_same_bits),
        cmocka_unit_test(few_positions_and_none),
        cmocka_unit_test(sequences_do_not_see_each_other),
        cmocka_unit_test(narrow_numbers_are_rounded_once),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(callers_compute_pairs),
        cmocka_unit_test(positions_follow_the_layout),
        cmocka_unit_test(zigzag_shares_the_work),
        cmocka_unit_test(gradients_are_those_of_finite_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
