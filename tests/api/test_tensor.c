/* Tensor objects and regions: results to the last bit, for every number of ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <sys/mman.h>

#include "ranks.h"
#include "regions.inc"

#define MOST 8

static const int world_sizes[] = {1, 2, 3, 4, 5, 8};

struct trial {
    struct spec spec; /* the numbers of ranks, blocks and parts */
    struct verdict verdicts[MOST];
};

/* Bytes that peers read of this rank so far. */
static uint64_t sent_bytes(struct verdict *verdict, trireme_communicator *communicator) {
    trireme_communicator_statistics now = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_statistics(communicator, &now));
    return now.sent_bytes;
}

/* Ranks that share memory send just their plan. Over connections ranks pass parts of others on, so
 * all of them together send it. A small exchange of many ranks takes fewer messages, and more
 * bytes.
 */
static bool is_as_planned(struct verdict *verdict, trireme_communicator *communicator,
                          const struct spec *spec, uint64_t sent, uint64_t planned) {
    if (!ranks_use_transport() && !ranks_use_network()) return sent == planned;
    int64_t both[2] = {(int64_t)sent, (int64_t)planned};
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, both, both, 2, TRIREME_DTYPE_I64,
                                     TRIREME_REDUCTION_SUM, NULL));
    const bool passes_on = spec->kind == TRIREME_REGION_KIND_EXCHANGE && spec->world_size > 4;
    return both[0] == both[1] || (passes_on && both[0] > both[1]);
}

static void check_passes(struct verdict *verdict, trireme_communicator *communicator,
                         trireme_tensor *tensor, const struct spec *spec, int rank) {
    trireme_region *region = NULL;
    char name[64];
    snprintf(name, sizeof name, "kind %d, %s %dx%d", (int)spec->kind,
             trireme_dtype_name(spec->dtype), (int)spec->rows, (int)spec->columns);
    if (!EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, spec, name, &region))) return;
    trireme_region_info info = TRIREME_REGION_INFO_INIT;
    for (uint64_t pass = 0; pass < 4; ++pass) {
        const bool forward = pass % 2 == 0;
        struct arrays arrays = make_arrays(spec, forward, rank, pass + 11);
        enum form from, to;
        forms_of(spec, forward, &from, &to);
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_region_get_info(region, &info));
        EXPECT(verdict, (forward ? info.forward_parts : info.backward_parts) == arrays.count);
        EXPECT(verdict,
               (forward ? info.input_count : info.output_count) == elements_of(spec, from, rank));
        EXPECT(verdict,
               (forward ? info.output_count : info.input_count) == elements_of(spec, to, rank));
        const uint64_t before = sent_bytes(verdict, communicator);
        EXPECT_STATUS(verdict, TRIREME_OK, run_pass(region, forward, &arrays));
        const uint64_t sent = sent_bytes(verdict, communicator) - before;
        const uint64_t planned = forward ? info.forward_bytes : info.backward_bytes;
        if (!is_as_planned(verdict, communicator, spec, sent, planned)) {
            char text[160];
            snprintf(text, sizeof text, "%s, pass %d sent %llu bytes of %llu", name, (int)pass,
                     (unsigned long long)sent, (unsigned long long)planned);
            expect_failed(verdict, __FILE__, __LINE__, text);
        }
        if (!is_right(spec, forward, rank, pass + 11, &arrays)) {
            char text[160];
            snprintf(text, sizeof text, "%s, dimension %d, pass %d is wrong", name,
                     (int)spec->dimension, (int)pass);
            expect_failed(verdict, __FILE__, __LINE__, text);
        }
        free_arrays(&arrays);
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_region_get_info(region, &info));
    EXPECT(verdict, info.forward_passes == 2 && info.backward_passes == 2);
    trireme_region_destroy(region);
}

static void make_all_passes(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F32,  TRIREME_DTYPE_BF16,
                                           TRIREME_DTYPE_F64,  TRIREME_DTYPE_F16,
                                           TRIREME_DTYPE_I32,  TRIREME_DTYPE_F8E5M2,
                                           TRIREME_DTYPE_U8,   TRIREME_DTYPE_U64,
                                           TRIREME_DTYPE_BOOL, TRIREME_DTYPE_BYTES};
    static const uint64_t shapes[][2] = {{7, 13}, {1, 1}, {3, 0}, {0, 5},
                                         {2, 3},  {1, 9}, {6, 1}, {67, 251}};
    const size_t dtype_count = sees_threads_alone()    ? 1
                               : is_quick()            ? 2
                               : ranks_use_transport() ? 4
                                                       : sizeof dtypes / sizeof dtypes[0];
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, trial->spec.blocks, &tensor));
    for (size_t d = 0; d < dtype_count; ++d) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
            for (trireme_region_kind kind = 1; kind <= TRIREME_REGION_KIND_EXCHANGE; ++kind) {
                if (has_sum(kind) && !reduction_means_something(dtypes[d], TRIREME_REDUCTION_SUM)) {
                    continue;
                }
                /* The large shape has pieces of several rows, and does not fit into a slot. */
                if (s == 7 && d > 0) continue;
                for (trireme_region_dimension along = is_split(kind); along <= 2 * is_split(kind);
                     ++along) {
                    struct spec spec = trial->spec;
                    spec.kind = kind;
                    spec.dimension = along;
                    spec.dtype = dtypes[d];
                    spec.rows = shapes[s][0];
                    spec.columns = shapes[s][1];
                    check_passes(verdict, communicator, tensor, &spec, rank);
                }
            }
        }
    }
    trireme_tensor_destroy(tensor);
}

static void run_trial(int world_size, uint32_t blocks, uint32_t parts) {
    struct trial trial = {.spec = {.world_size = world_size, .blocks = blocks, .parts = parts}};
    run_ranks(world_size, make_all_passes, &trial);
    assert_verdicts(trial.verdicts, world_size);
}

/* The oracle adds summands of all ranks along one tree, without looking at the number of ranks. */
static void every_pass_gives_the_bits_of_one_process(void **state) {
    (void)state;
    static const uint32_t blocks[] = {1, 4, 8, 12};
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; ++b) {
            if (sees_threads_alone() && (w + b) % 2 != 0) continue;
            if (blocks[b] >= (uint32_t)world_sizes[w]) run_trial(world_sizes[w], blocks[b], 0);
        }
    }
}

static void without_blocks_each_rank_has_one_summand(void **state) {
    (void)state;
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        run_trial(world_sizes[w], 0, 0);
    }
}

static void a_region_has_summands_of_its_own(void **state) {
    (void)state;
    run_trial(1, 0, 5);
    run_trial(2, 0, 7);
    run_trial(3, 4, 13);
    run_trial(5, 12, 5);
}

/* Units of rows and columns, a single one and none among them. */
static void make_passes_in_units(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    static const uint64_t shapes[][2] = {{7, 4}, {1, 12}, {0, 3}, {3, 0}};
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, trial->spec.blocks, &tensor));
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
        for (trireme_region_kind kind = TRIREME_REGION_KIND_GATHER;
             kind <= TRIREME_REGION_KIND_EXCHANGE; ++kind) {
            for (trireme_region_dimension along = 1; along <= 2; ++along) {
                struct spec spec = trial->spec;
                spec.kind = kind;
                spec.dimension = along;
                spec.dtype = TRIREME_DTYPE_F32;
                spec.row_unit = 3;
                spec.column_unit = 5;
                spec.rows = 3 * shapes[s][0];
                spec.columns = 5 * shapes[s][1];
                /* To the ranks, 0 and 1 are the same unit. */
                if (s == 0 && along == 2) spec.row_unit = spec.column_unit = (uint64_t)rank % 2;
                check_passes(verdict, communicator, tensor, &spec, rank);
            }
        }
    }
    trireme_tensor_destroy(tensor);
}

static void units_stay_on_one_rank(void **state) {
    (void)state;
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (uint32_t blocks = 0; blocks <= 8; blocks += 8) {
            struct trial trial = {.spec = {.world_size = world_sizes[w], .blocks = blocks}};
            run_ranks(world_sizes[w], make_passes_in_units, &trial);
            assert_verdicts(trial.verdicts, world_sizes[w]);
        }
    }
}

/* Scatters two rows that count their columns. This rank gets those of its heads, and no others. */
static void expect_columns(struct verdict *verdict, trireme_tensor *tensor, uint64_t all_heads,
                           uint64_t head_columns, uint64_t unit, uint64_t first, uint64_t count) {
    const uint64_t columns = all_heads * head_columns, own = count * head_columns;
    trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
    options.name = "heads";
    options.kind = TRIREME_REGION_KIND_SCATTER;
    options.dimension = TRIREME_REGION_DIMENSION_COLUMNS;
    options.dtype = TRIREME_DTYPE_U32;
    options.rows = 2;
    options.columns = columns;
    options.column_unit = unit;
    trireme_region *region = NULL;
    trireme_region_info info = TRIREME_REGION_INFO_INIT;
    if (!EXPECT_STATUS(verdict, TRIREME_OK, trireme_region_create(tensor, &options, &region))) {
        return;
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_region_get_info(region, &info));
    if (EXPECT(verdict, info.output_count == 2 * own)) {
        uint32_t *const whole = malloc(2 * columns * sizeof *whole);
        uint32_t *const part = malloc(2 * own * sizeof *part + 1);
        if (whole == NULL || part == NULL) abort();
        for (uint64_t i = 0; i < 2 * columns; ++i) whole[i] = (uint32_t)i;
        const void *const parts[] = {whole};
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_region_forward(region, parts, 1, part, NULL));
        for (uint64_t i = 0; i < own; ++i) {
            EXPECT(verdict, part[i] == first * head_columns + i);
            EXPECT(verdict, part[own + i] == columns + first * head_columns + i);
        }
        free(whole);
        free(part);
    }
    trireme_region_destroy(region);
}

static void scatter_heads(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    static const struct {
        uint64_t heads, kv_heads, head_columns;
    } cases[] = {{12, 4, 64}, {12, 3, 5}, {8, 8, 16},  {16, 8, 3}, {30, 15, 2},
                 {7, 1, 4},   {1, 1, 8},  {36, 12, 7}, {5, 5, 1},  {64, 8, 128}};
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, trial->spec.blocks, &tensor));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const uint64_t heads = cases[i].heads, kv_heads = cases[i].kv_heads;
        const uint64_t size = cases[i].head_columns;
        const bool cuts_kv = kv_heads >= blocks_of(&trial->spec);
        trireme_head_info own = TRIREME_HEAD_INFO_INIT;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_tensor_heads(tensor, heads, kv_heads, rank, &own));
        expect_columns(verdict, tensor, heads, size, cuts_kv ? size * (heads / kv_heads) : size,
                       own.first_head, own.head_count);
        if (!cuts_kv) continue;
        expect_columns(verdict, tensor, kv_heads, size, size, own.first_kv_head, own.kv_head_count);
    }
    trireme_tensor_destroy(tensor);
}

static void regions_hold_the_columns_of_the_heads(void **state) {
    (void)state;
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (uint32_t blocks = 0; blocks <= 15; blocks = blocks == 0 ? 8 : blocks + 7) {
            struct trial trial = {.spec = {.world_size = world_sizes[w], .blocks = blocks}};
            run_ranks(world_sizes[w], scatter_heads, &trial);
            assert_verdicts(trial.verdicts, world_sizes[w]);
        }
    }
}

/* --- conjugates ------------------------------------------------------------------------------ */

/* <a, b> over the elements that this rank holds in both. Numbers are whole and small. */
static double product_of(const void *a, const void *b, uint64_t count) {
    const double *const x = a, *const y = b;
    double sum = 0;
    for (uint64_t i = 0; i < count; ++i) sum += x[i] * y[i];
    return sum;
}

static void make_whole_numbers(struct arrays *arrays, uint64_t count) {
    for (uint32_t i = 0; i < arrays->count; ++i) {
        double *const elements = (double *)arrays->memory[i];
        for (uint64_t k = 0; k < count; ++k) elements[k] = (double)(int)(elements[k] * 16);
    }
}

static void compare_products(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, trial->spec.blocks, &tensor));
    for (trireme_region_kind kind = 1; kind <= TRIREME_REGION_KIND_EXCHANGE; ++kind) {
        for (trireme_region_dimension along = is_split(kind); along <= 2 * is_split(kind);
             ++along) {
            struct spec spec = trial->spec;
            spec.kind = kind;
            spec.dimension = along;
            spec.dtype = TRIREME_DTYPE_F64;
            spec.rows = 11;
            spec.columns = 6;
            trireme_region *region = NULL;
            EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, &spec, "conjugate", &region));
            enum form from, to, back_from, back_to;
            forms_of(&spec, true, &from, &to);
            forms_of(&spec, false, &back_from, &back_to);
            struct arrays x = make_arrays(&spec, true, rank, 1);
            struct arrays y = make_arrays(&spec, false, rank, 2);
            make_whole_numbers(&x, elements_of(&spec, from, rank));
            make_whole_numbers(&y, elements_of(&spec, back_from, rank));
            EXPECT_STATUS(verdict, TRIREME_OK, run_pass(region, true, &x));
            EXPECT_STATUS(verdict, TRIREME_OK, run_pass(region, false, &y));
            /* Arrays that are whole on both sides count once. */
            double both[2] = {0, 0};
            for (uint32_t i = 0; i < y.count; ++i) {
                if (back_from == WHOLE && rank != 0) break;
                both[0] += product_of(x.out, y.parts[i], elements_of(&spec, to, rank));
            }
            for (uint32_t i = 0; i < x.count; ++i) {
                if (from == WHOLE && rank != 0) break;
                both[1] += product_of(x.parts[i], y.out, elements_of(&spec, from, rank));
            }
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_all_reduce(communicator, both, both, 2, TRIREME_DTYPE_F64,
                                             TRIREME_REDUCTION_SUM, NULL));
            if (both[0] != both[1] || both[0] == 0) {
                char text[96];
                snprintf(text, sizeof text, "kind %d, dimension %d: %g and %g", (int)kind,
                         (int)along, both[0], both[1]);
                expect_failed(verdict, __FILE__, __LINE__, text);
            }
            free_arrays(&x);
            free_arrays(&y);
            trireme_region_destroy(region);
        }
    }
    trireme_tensor_destroy(tensor);
}

static void backward_is_the_conjugate_of_forward(void **state) {
    (void)state;
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (uint32_t blocks = 0; blocks <= 8; blocks += 8) {
            struct trial trial = {.spec = {.world_size = world_sizes[w], .blocks = blocks}};
            run_ranks(world_sizes[w], compare_products, &trial);
            assert_verdicts(trial.verdicts, world_sizes[w]);
        }
    }
}

/* --- in place, NaN, other calls between --------------------------------------------------------
 */

static void reduce_in_place(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, trial->spec.blocks, &tensor));
    for (trireme_region_kind kind = 1; kind <= TRIREME_REGION_KIND_REDUCE; ++kind) {
        struct spec spec = trial->spec;
        spec.kind = kind;
        spec.dtype = kind == TRIREME_REGION_KIND_COPY ? TRIREME_DTYPE_BF16 : TRIREME_DTYPE_F32;
        spec.rows = 53;
        spec.columns = 131;
        trireme_region *region = NULL;
        EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, &spec, "in place", &region));
        for (uint32_t which = 0; which < 2; ++which) {
            for (int pass = 0; pass < 2; ++pass) {
                struct arrays arrays = make_arrays(&spec, pass == 0, rank, 5);
                /* One of the parts is the result, too. */
                unsigned char *const apart = arrays.out;
                const uint32_t place = which < arrays.count ? which : 0;
                arrays.out = arrays.memory[place];
                EXPECT_STATUS(verdict, TRIREME_OK, run_pass(region, pass == 0, &arrays));
                memcpy(apart, arrays.out, arrays.out_bytes);
                arrays.out = apart;
                EXPECT(verdict, is_right(&spec, pass == 0, rank, 5, &arrays));
                free_arrays(&arrays);
            }
        }
        trireme_region_destroy(region);
    }
    trireme_tensor_destroy(tensor);
}

static void whole_arrays_are_summed_in_place(void **state) {
    (void)state;
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (uint32_t blocks = 0; blocks <= 12; blocks += 12) {
            struct trial trial = {.spec = {.world_size = world_sizes[w], .blocks = blocks}};
            run_ranks(world_sizes[w], reduce_in_place, &trial);
            assert_verdicts(trial.verdicts, world_sizes[w]);
        }
    }
}

/* A NaN with a payload in one summand becomes the one quiet NaN, whoever has it. */
static void reduce_nan(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct spec spec = trial->spec;
    spec.kind = TRIREME_REGION_KIND_REDUCE;
    spec.dtype = TRIREME_DTYPE_F32;
    spec.rows = 1;
    spec.columns = blocks_of(&spec);
    trireme_tensor *tensor = NULL;
    trireme_region *region = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, spec.blocks, &tensor));
    EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, &spec, "nan", &region));
    struct arrays arrays = make_arrays(&spec, true, rank, 3);
    const uint32_t first = first_block(blocks_of(&spec), spec.world_size, rank);
    for (uint32_t i = 0; i < arrays.count; ++i) {
        const uint32_t odd_nan = 0xffc12345u;
        memcpy(arrays.memory[i] + 4 * (first + i), &odd_nan, 4);
    }
    EXPECT_STATUS(verdict, TRIREME_OK, run_pass(region, true, &arrays));
    for (uint32_t i = 0; i < spec.columns; ++i) {
        uint32_t bits;
        memcpy(&bits, arrays.out + 4 * i, 4);
        EXPECT(verdict, bits == 0x7fc00000u);
    }
    free_arrays(&arrays);
    trireme_region_destroy(region);
    trireme_tensor_destroy(tensor);
}

static void every_nan_becomes_the_same(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 4; ++world_size) {
        for (uint32_t blocks = 4; blocks <= 5; ++blocks) {
            struct trial trial = {.spec = {.world_size = world_size, .blocks = blocks}};
            run_ranks(world_size, reduce_nan, &trial);
            assert_verdicts(trial.verdicts, world_size);
        }
    }
    struct trial alone = {.spec = {.world_size = 1, .blocks = 1}};
    run_ranks(1, reduce_nan, &alone);
    assert_verdicts(alone.verdicts, 1);
}

/* Two regions of two tensor objects take turns with each other and with the caller's collectives.
 * The handles of the tensor objects are gone by then. */
static void take_turns(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct spec specs[2] = {trial->spec, trial->spec};
    trireme_region *regions[2] = {NULL, NULL};
    for (int i = 0; i < 2; ++i) {
        specs[i].kind = i == 0 ? TRIREME_REGION_KIND_REDUCE : TRIREME_REGION_KIND_EXCHANGE;
        specs[i].dimension = i;
        specs[i].dtype = TRIREME_DTYPE_F32;
        specs[i].rows = 5;
        specs[i].columns = 9;
        specs[i].blocks = i == 0 ? 4 : 0;
        trireme_tensor *tensor = NULL;
        EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, specs[i].blocks, &tensor));
        EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, &specs[i], "turn", &regions[i]));
        trireme_tensor_destroy(tensor);
    }
    for (uint64_t round = 0; round < 20; ++round) {
        for (int i = 0; i < 2; ++i) {
            struct arrays arrays = make_arrays(&specs[i], true, rank, round);
            EXPECT_STATUS(verdict, TRIREME_OK, run_pass(regions[i], true, &arrays));
            EXPECT(verdict, is_right(&specs[i], true, rank, round, &arrays));
            free_arrays(&arrays);
        }
        int32_t one = 1;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, &one, &one, 1, TRIREME_DTYPE_I32,
                                         TRIREME_REDUCTION_SUM, NULL));
        EXPECT(verdict, one == trial->spec.world_size);
    }
    for (int i = 0; i < 2; ++i) trireme_region_destroy(regions[i]);
}

static void regions_take_turns_with_other_calls(void **state) {
    (void)state;
    struct trial trial = {.spec = {.world_size = 3}};
    run_ranks(3, take_turns, &trial);
    assert_verdicts(trial.verdicts, 3);
}

/* More elements than 31 bits count. The last of 8 ranks takes its part of them, alone. */
static void take_last_part(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    if (rank != trial->spec.world_size - 1) return;
    struct spec spec = trial->spec;
    spec.kind = TRIREME_REGION_KIND_SCATTER;
    spec.dimension = TRIREME_REGION_DIMENSION_ROWS;
    spec.dtype = TRIREME_DTYPE_U8;
    spec.rows = (1u << 20) + 3;
    spec.columns = 2049;
    const uint64_t all = spec.rows * spec.columns;
    trireme_tensor *tensor = NULL;
    trireme_region *region = NULL;
    trireme_region_info info = TRIREME_REGION_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, 0, &tensor));
    EXPECT_STATUS(verdict, TRIREME_OK, make_region(tensor, &spec, "large", &region));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_region_get_info(region, &info));
    EXPECT(verdict, info.input_count == all && all > 1ull << 31);
    EXPECT(verdict, info.output_count == elements_of(&spec, ROWS, rank));
    unsigned char *const whole =
        mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    unsigned char *const part = malloc(info.output_count);
    if (whole == MAP_FAILED || part == NULL) abort();
    whole[all - info.output_count] = 3;
    whole[all - 1] = 4;
    const void *const parts[] = {whole};
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_region_forward(region, parts, 1, part, NULL));
    EXPECT(verdict, part[0] == 3 && part[1] == 0 && part[info.output_count - 1] == 4);
    munmap(whole, all);
    free(part);
    trireme_region_destroy(region);
    trireme_tensor_destroy(tensor);
}

static void arrays_may_have_more_than_two_billion_elements(void **state) {
    (void)state;
    struct trial trial = {.spec = {.world_size = 8}};
    run_ranks(8, take_last_part, &trial);
    assert_verdicts(trial.verdicts, 8);
}

/* --- shares ------------------------------------------------------------------------------------
 */

/* The query heads of a rank begin here. */
static uint64_t first_head(const struct spec *spec, uint64_t group, uint64_t kv_heads, int rank) {
    return kv_heads >= blocks_of(spec) ? group * cut(spec, kv_heads, rank)
                                       : cut(spec, group * kv_heads, rank);
}

/* Whether a query head of another rank uses a key/value head that one of this rank uses. */
static bool shares_kv(const struct spec *spec, uint64_t group, uint64_t kv_heads, int rank) {
    const uint64_t first = first_head(spec, group, kv_heads, rank);
    const uint64_t end = first_head(spec, group, kv_heads, rank + 1);
    for (uint64_t own = first; own < end; ++own) {
        for (uint64_t other = 0; other < group * kv_heads; ++other) {
            if ((other < first || other >= end) && other / group == own / group) return true;
        }
    }
    return false;
}

static void look_at_shares(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const struct spec *const spec = &trial->spec;
    trireme_tensor *tensor = NULL;
    trireme_tensor_info info = TRIREME_TENSOR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, spec->blocks, &tensor));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_get_info(tensor, &info));
    const uint32_t blocks = blocks_of(spec);
    EXPECT(verdict, info.rank == rank && info.world_size == spec->world_size);
    EXPECT(verdict, info.blocks == blocks && info.region_count == 0);
    EXPECT(verdict, info.first_block == first_block(blocks, spec->world_size, rank));
    EXPECT(verdict,
           info.first_block + info.block_count == first_block(blocks, spec->world_size, rank + 1));
    for (uint64_t extent = 0; extent < 30; ++extent) {
        uint64_t first = 77, count = 77;
        for (int other = 0; other < spec->world_size; ++other) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_tensor_range(tensor, extent, other, &first, &count));
            EXPECT(verdict, first == cut(spec, extent, other));
            EXPECT(verdict, first + count == cut(spec, extent, other + 1));
        }
        for (uint32_t block = 0; block < blocks; ++block) {
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_tensor_block(tensor, extent, block, &first, &count));
            EXPECT(verdict, first == block * extent / blocks);
            EXPECT(verdict, first + count == (block + 1) * extent / blocks);
        }
    }
    for (uint64_t kv_heads = 1; kv_heads < 10; ++kv_heads) {
        uint64_t next = 0;
        for (int other = 0; other < spec->world_size; ++other) {
            trireme_head_info heads = TRIREME_HEAD_INFO_INIT;
            EXPECT_STATUS(verdict, TRIREME_OK,
                          trireme_tensor_heads(tensor, 3 * kv_heads, kv_heads, other, &heads));
            EXPECT(verdict, heads.first_head == next);
            EXPECT(verdict, heads.first_head == first_head(spec, 3, kv_heads, other));
            next += heads.head_count;
            for (uint64_t h = heads.first_head; h < next; ++h) {
                EXPECT(verdict, h / 3 >= heads.first_kv_head);
                EXPECT(verdict, h / 3 < heads.first_kv_head + heads.kv_head_count);
            }
            EXPECT(verdict, heads.kv_shared == shares_kv(spec, 3, kv_heads, other));
        }
        EXPECT(verdict, next == 3 * kv_heads);
    }
    trireme_tensor_destroy(tensor);
}

static void shares_are_what_the_formulas_say(void **state) {
    (void)state;
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (uint32_t blocks = 0; blocks <= 24; blocks += 12) {
            struct trial trial = {.spec = {.world_size = world_sizes[w], .blocks = blocks}};
            run_ranks(world_sizes[w], look_at_shares, &trial);
            assert_verdicts(trial.verdicts, world_sizes[w]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pass_gives_the_bits_of_one_process),
        cmocka_unit_test(without_blocks_each_rank_has_one_summand),
        cmocka_unit_test(a_region_has_summands_of_its_own),
        cmocka_unit_test(units_stay_on_one_rank),
        cmocka_unit_test(regions_hold_the_columns_of_the_heads),
        cmocka_unit_test(backward_is_the_conjugate_of_forward),
        cmocka_unit_test(whole_arrays_are_summed_in_place),
        cmocka_unit_test(every_nan_becomes_the_same),
        cmocka_unit_test(regions_take_turns_with_other_calls),
        cmocka_unit_test(arrays_may_have_more_than_two_billion_elements),
        cmocka_unit_test(shares_are_what_the_formulas_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
