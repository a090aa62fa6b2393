/* Linear layers: every result to the last bit, for every number of ranks. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "layers.inc"

#define MOST 8

static const int world_sizes[] = {1, 2, 3, 4, 5, 8};

struct trial {
    struct layer_spec spec;
    struct verdict verdicts[MOST];
};

static uint64_t sent_bytes(struct verdict *verdict, trireme_communicator *communicator) {
    trireme_communicator_statistics now = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_statistics(communicator, &now));
    return now.sent_bytes;
}

static void tell(struct verdict *verdict, const struct layer_spec *spec, const char *what) {
    char text[240];
    snprintf(
        text, sizeof text,
        "%s: kind %d, flags %u, tensor flags %u, %s %dx%d by %d, %u stretches, %u blocks, tile %u",
        what, (int)spec->kind, spec->flags, spec->tensor_flags, trireme_dtype_name(spec->dtype),
        (int)spec->rows, (int)spec->input, (int)spec->output, spec->stretches, spec->blocks,
        spec->row_tile);
    expect_failed(verdict, __FILE__, __LINE__, text);
}

/* An array of the full extent, as it lies between layers. */
static struct part full_part(const struct layer_spec *spec, const struct matrix *whole, int rank) {
    struct part part = whole_part(whole);
    if ((spec->tensor_flags & TRIREME_TENSOR_FLAG_SEQUENCE) != 0) {
        part.first_row = rank_cut(spec, whole->rows, rank);
        part.end_row = rank_cut(spec, whole->rows, rank + 1);
    }
    return part;
}

static struct part split_part(const struct layer_spec *spec, const struct matrix *whole, int rank) {
    struct part part = whole_part(whole);
    if (is_column(spec) ? (spec->flags & TRIREME_LINEAR_FLAG_GATHERED_OUTPUT) != 0
                        : (spec->flags & TRIREME_LINEAR_FLAG_INPUT_SPLIT) == 0) {
        return part;
    }
    part.stretches = spec->stretches;
    part.first_column = rank_cut(spec, whole->columns / spec->stretches, rank);
    part.end_column = rank_cut(spec, whole->columns / spec->stretches, rank + 1);
    return part;
}

static struct part input_part(const struct layer_spec *spec, const struct matrix *whole, int rank) {
    return is_column(spec) ? full_part(spec, whole, rank) : split_part(spec, whole, rank);
}

static struct part
output_part(const struct layer_spec *spec, const struct matrix *whole, int rank) {
    return is_column(spec) ? split_part(spec, whole, rank) : full_part(spec, whole, rank);
}

/* Arrays of one rank, and their sizes as the layer tells them. */
struct own_arrays {
    struct matrix input, weight, bias, output_gradient;
    struct matrix output, input_gradient, weight_gradient, bias_gradient;
    unsigned char *kept;
};

static struct own_arrays
make_own(const struct layer_spec *spec, const struct layer_arrays *all, int rank) {
    struct own_arrays own;
    own.input = take_part(&all->input, input_part(spec, &all->input, rank));
    own.weight = weight_part(spec, &all->weight, rank);
    own.bias = bias_part(spec, &all->bias, rank);
    own.output_gradient =
        take_part(&all->output_gradient, output_part(spec, &all->output_gradient, rank));
    const trireme_dtype wide = wide_dtype(spec->dtype);
    own.output = make_matrix(spec->dtype, own.output_gradient.rows, own.output_gradient.columns);
    own.input_gradient = make_matrix(spec->dtype, own.input.rows, own.input.columns);
    own.weight_gradient = make_matrix(wide, own.weight.rows, own.weight.columns);
    own.bias_gradient = make_matrix(wide, own.bias.rows, own.bias.columns);
    own.kept = malloc(spec->rows * (spec->input + spec->output) * 8 + 1);
    if (own.kept == NULL) abort();
    return own;
}

static void free_own(struct own_arrays *own) {
    free(own->input.data);
    free(own->weight.data);
    free(own->bias.data);
    free(own->output_gradient.data);
    free(own->output.data);
    free(own->input_gradient.data);
    free(own->weight_gradient.data);
    free(own->bias_gradient.data);
    free(own->kept);
}

static void expect_part(struct verdict *verdict, const struct layer_spec *spec, const char *what,
                        const struct matrix *own, struct matrix wanted) {
    if (!has_bits(own, &wanted)) tell(verdict, spec, what);
    free(wanted.data);
}

static void expect_info(struct verdict *verdict, const struct layer_spec *spec,
                        const struct own_arrays *own, const trireme_linear_info *info) {
    const bool sizes =
        info->weight_rows == own->weight.rows && info->weight_columns == own->weight.columns &&
        info->input_rows == own->input.rows && info->input_columns == own->input.columns &&
        info->output_rows == own->output.rows && info->output_columns == own->output.columns &&
        info->gradient_dtype == wide_dtype(spec->dtype);
    if (!sizes) tell(verdict, spec, "info");
    const bool has_bias = (spec->flags & TRIREME_LINEAR_FLAG_BIAS) != 0;
    EXPECT(verdict, info->bias_count == (has_bias ? own->bias.rows * own->bias.columns : 0));
    const bool keeps = (spec->tensor_flags & (is_column(spec) ? TRIREME_TENSOR_FLAG_KEEP_GATHERED
                                                              : TRIREME_TENSOR_FLAG_SEQUENCE)) != 0;
    const uint64_t full = is_column(spec) ? spec->input : spec->output;
    EXPECT(verdict,
           info->kept_bytes == (keeps ? spec->rows * full * trireme_dtype_bytes(spec->dtype) : 0));
}

/* Ranks that share memory send just what info plans. */
static void expect_sent(struct verdict *verdict, const struct layer_spec *spec,
                        trireme_communicator *communicator, uint64_t before, uint64_t planned,
                        const char *what) {
    if (ranks_use_transport() || ranks_use_network()) return;
    if (sent_bytes(verdict, communicator) - before != planned) tell(verdict, spec, what);
}

/* Both gradients in one call, twice: the second time those of the weight are added. */
static void check_backward(struct verdict *verdict, trireme_communicator *communicator,
                           trireme_linear *linear, const struct layer_spec *spec,
                           const struct layer_arrays *all, const struct own_arrays *own, int rank) {
    const bool has_bias = (spec->flags & TRIREME_LINEAR_FLAG_BIAS) != 0;
    trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_get_info(linear, &info));
    for (int pass = 0; pass < 2; ++pass) {
        trireme_pass_options add = TRIREME_PASS_OPTIONS_INIT;
        if (pass == 1) add.flags = TRIREME_PASS_FLAG_ADD;
        spoil_matrix(&own->input_gradient);
        if (pass == 0) spoil_matrix(&own->weight_gradient);
        if (pass == 0) spoil_matrix(&own->bias_gradient);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_linear_forward(linear, own->input.data, own->weight.data,
                                             has_bias ? own->bias.data : NULL, own->output.data,
                                             own->kept, NULL));
        const uint64_t before = sent_bytes(verdict, communicator);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_linear_backward(linear, own->input.data, own->output_gradient.data,
                                              own->weight.data, own->input_gradient.data, own->kept,
                                              own->weight_gradient.data,
                                              has_bias ? own->bias_gradient.data : NULL, &add));
        expect_sent(verdict, spec, communicator, before,
                    info.backward_input_bytes + info.backward_weight_bytes, "backward bytes");
        expect_part(verdict, spec, "input gradient of both", &own->input_gradient,
                    take_part(&all->input_gradient, input_part(spec, &all->input_gradient, rank)));
        expect_part(verdict, spec, "weight gradient of both", &own->weight_gradient,
                    weight_part(spec, &all->weight_gradient[pass], rank));
        if (!has_bias) continue;
        expect_part(verdict, spec, "bias gradient of both", &own->bias_gradient,
                    bias_part(spec, &all->bias_gradient[pass], rank));
    }
}

static void check_layer(struct verdict *verdict, trireme_communicator *communicator,
                        trireme_tensor *tensor, const struct layer_spec *spec, int rank) {
    struct layer_arrays all = make_layer_arrays(spec);
    struct own_arrays own = make_own(spec, &all, rank);
    const bool has_bias = (spec->flags & TRIREME_LINEAR_FLAG_BIAS) != 0;
    const void *const bias = has_bias ? own.bias.data : NULL;
    void *const bias_gradient = has_bias ? own.bias_gradient.data : NULL;
    trireme_linear *linear = NULL;
    trireme_linear_options options = linear_options(spec, "layer");
    trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
    if (!EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &options, &linear))) {
        tell(verdict, spec, "create");
        goto end;
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_get_info(linear, &info));
    expect_info(verdict, spec, &own, &info);
    /* Twice: the second time gradients are added. */
    for (int pass = 0; pass < 2; ++pass) {
        trireme_pass_options add = TRIREME_PASS_OPTIONS_INIT;
        if (pass == 1) add.flags = TRIREME_PASS_FLAG_ADD;
        uint64_t before = sent_bytes(verdict, communicator);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_linear_forward(linear, own.input.data, own.weight.data, bias,
                                             own.output.data, own.kept, NULL));
        expect_sent(verdict, spec, communicator, before, info.forward_bytes, "forward bytes");
        expect_part(verdict, spec, "output", &own.output,
                    take_part(&all.output, output_part(spec, &all.output, rank)));
        before = sent_bytes(verdict, communicator);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_linear_backward_input(linear, own.output_gradient.data,
                                                    own.weight.data, own.input_gradient.data,
                                                    own.kept, NULL));
        expect_sent(verdict, spec, communicator, before, info.backward_input_bytes,
                    "backward input bytes");
        expect_part(verdict, spec, "input gradient", &own.input_gradient,
                    take_part(&all.input_gradient, input_part(spec, &all.input_gradient, rank)));
        before = sent_bytes(verdict, communicator);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_linear_backward_weight(linear, own.input.data,
                                                     own.output_gradient.data, own.kept,
                                                     own.weight_gradient.data, bias_gradient,
                                                     &add));
        expect_sent(verdict, spec, communicator, before, info.backward_weight_bytes,
                    "backward weight bytes");
        expect_part(verdict, spec, "weight gradient", &own.weight_gradient,
                    weight_part(spec, &all.weight_gradient[pass], rank));
        if (has_bias) {
            expect_part(verdict, spec, "bias gradient", &own.bias_gradient,
                        bias_part(spec, &all.bias_gradient[pass], rank));
        }
    }
    check_backward(verdict, communicator, linear, spec, &all, &own, rank);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_get_info(linear, &info));
    EXPECT(verdict, info.forward_passes == 4 && info.backward_input_passes == 4 &&
                        info.backward_weight_passes == 4);
end:
    trireme_linear_destroy(linear);
    free_own(&own);
    free_layer_arrays(&all);
}

/* The kinds with all their flags; a column layer of three stretches among them. */
static void check_kinds(struct verdict *verdict, trireme_communicator *communicator,
                        trireme_tensor *tensor, struct layer_spec spec, int rank) {
    const bool sequence = (spec.tensor_flags & TRIREME_TENSOR_FLAG_SEQUENCE) != 0;
    const uint64_t output = spec.output;
    for (uint32_t bias = 0; bias <= TRIREME_LINEAR_FLAG_BIAS; ++bias) {
        for (uint32_t gathered = 0; gathered < 2; ++gathered) {
            spec.kind = TRIREME_LINEAR_KIND_COLUMN;
            spec.flags = bias | (gathered ? TRIREME_LINEAR_FLAG_GATHERED_OUTPUT : 0);
            spec.stretches = bias == gathered ? 3 : 1;
            spec.output = spec.stretches * output;
            check_layer(verdict, communicator, tensor, &spec, rank);
            if (gathered && sequence) continue;
            spec.kind = TRIREME_LINEAR_KIND_ROW;
            spec.flags = bias | (gathered ? 0 : TRIREME_LINEAR_FLAG_INPUT_SPLIT);
            spec.stretches = 1;
            spec.output = output;
            check_layer(verdict, communicator, tensor, &spec, rank);
        }
    }
}

static void run_layers(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct layer_spec spec = trial->spec;
    /* Odd ones, tiny ones, extents below the world size, none at all. */
    static const uint64_t shapes[][3] = {{7, 13, 11}, {5, 3, 2}, {0, 4, 5},
                                         {1, 1, 1},   {3, 6, 0}, {2, 0, 3}};
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_tiled_tensor(communicator, spec.blocks, spec.tensor_flags, spec.gemm,
                                    spec.row_tile, &tensor));
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
        for (int which = 0; which < 4; ++which) {
            static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64,
                                                   TRIREME_DTYPE_BF16, TRIREME_DTYPE_F16};
            spec.dtype = dtypes[which];
            if (which > 1 && (spec.gemm == TRIREME_GEMM_KIND_LOADED || s > 1)) continue;
            /* Tiles differ by rows: a long shape, a short one, and no rows at all. */
            if (spec.row_tile != 0 && (s > 2 || which == 1 || which == 3)) continue;
            spec.rows = shapes[s][0];
            spec.input = shapes[s][1];
            spec.output = shapes[s][2];
            check_kinds(verdict, communicator, tensor, spec, rank);
        }
    }
    if (spec.gemm == TRIREME_GEMM_KIND_LOADED) {
        /* Beyond the tiles of its kernels. */
        spec.dtype = TRIREME_DTYPE_F32;
        spec.rows = 37;
        spec.input = 131;
        spec.output = 101;
        check_kinds(verdict, communicator, tensor, spec, rank);
    }
    trireme_tensor_destroy(tensor);
}

static const uint32_t flags[] = {0, TRIREME_TENSOR_FLAG_SEQUENCE,
                                 TRIREME_TENSOR_FLAG_SEQUENCE | TRIREME_TENSOR_FLAG_KEEP_GATHERED};

static void run_all(trireme_gemm_kind gemm, const uint32_t *blocks, size_t block_count) {
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (size_t b = 0; b < block_count; ++b) {
            if (blocks[b] != 0 && blocks[b] < (uint32_t)world_sizes[w]) continue;
            for (size_t f = 0; f < 3; ++f) {
                if (is_quick() && (w + b + f) % 3 != 0) continue;
                if (sees_threads_alone() && (w + b + f) % 9 != 0) continue;
                struct trial trial = {.spec = {.world_size = world_sizes[w],
                                               .blocks = blocks[b],
                                               .tensor_flags = flags[f],
                                               .gemm = gemm}};
                run_ranks(world_sizes[w], run_layers, &trial);
                assert_verdicts(trial.verdicts, world_sizes[w]);
            }
        }
    }
}

/* The oracle makes the products of all blocks in one process, whatever the number of ranks. */
static void builtin_layers_have_the_bits_of_one_process(void **state) {
    (void)state;
    static const uint32_t blocks[] = {4, 8, 12};
    run_all(TRIREME_GEMM_KIND_BUILTIN, blocks, 3);
}

static void layers_over_openblas_have_the_bits_of_one_process(void **state) {
    (void)state;
    static const uint32_t blocks[] = {4, 8, 12};
    if (!has_openblas()) skip();
    run_all(TRIREME_GEMM_KIND_LOADED, blocks, 3);
}

static void without_blocks_each_rank_makes_one_product(void **state) {
    (void)state;
    static const uint32_t none[] = {0};
    run_all(TRIREME_GEMM_KIND_BUILTIN, none, 1);
    if (has_openblas()) run_all(TRIREME_GEMM_KIND_LOADED, none, 1);
}

/* All numbers of ranks with all tiles; flags and blocks in turn. */
static void run_tiles(trireme_gemm_kind gemm, const uint32_t *tiles, size_t tile_count) {
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (size_t t = 0; t < tile_count; ++t) {
            if (sees_threads_alone() && (w + t) % 4 != 1) continue;
            struct trial trial = {.spec = {.world_size = world_sizes[w],
                                           .blocks = (w / 3 + t) % 2 == 0 ? 8 : 0,
                                           .tensor_flags = flags[(w + t) % 3],
                                           .row_tile = tiles[t],
                                           .gemm = gemm}};
            run_ranks(world_sizes[w], run_layers, &trial);
            assert_verdicts(trial.verdicts, world_sizes[w]);
        }
    }
}

/* Tiles of 1 row; of 3 with a short one behind; of a row less and a row more than all. The oracle
 * has no tiles: the built-in products do not depend on them. */
static void tiles_change_no_bits(void **state) {
    (void)state;
    static const uint32_t tiles[] = {1, 3, 6, 8, UINT32_MAX};
    run_tiles(TRIREME_GEMM_KIND_BUILTIN, tiles, 5);
}

/* The oracle calls OpenBLAS for the same tiles, in one process. */
static void tiles_over_openblas_have_the_bits_of_one_process(void **state) {
    (void)state;
    static const uint32_t tiles[] = {1, 2, 16};
    if (!has_openblas()) skip();
    run_tiles(TRIREME_GEMM_KIND_LOADED, tiles, 3);
}

/* --- the plan of a layer ---------------------------------------------------------------------- */

static uint64_t lines_of(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

struct tile_case {
    uint64_t rows;
    uint32_t row_tile, blocks;
    trireme_gemm_kind gemm;
    uint64_t shared, apart; /* rows of a tile: where ranks share memory, and where not */
};

/* A row layer of f32 needs its summands: one set of each own block, or two if one is on its way. */
static void plan_tiles(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = &((struct trial *)context)->verdicts[rank];
    const bool apart = ranks_use_transport() || ranks_use_network() || network_is_memory();
    const struct tile_case cases[] = {
        {10, 4, 0, TRIREME_GEMM_KIND_BUILTIN, 4, 4},
        {10, 10, 8, TRIREME_GEMM_KIND_BUILTIN, 10, 10},
        {10, 99, 0, TRIREME_GEMM_KIND_BUILTIN, 10, 10},
        {0, 3, 0, TRIREME_GEMM_KIND_BUILTIN, 0, 0},
        {10, 0, 0, TRIREME_GEMM_KIND_BUILTIN, 10, 10},
        {511, 0, 0, TRIREME_GEMM_KIND_BUILTIN, 511, 511},
        {515, 0, 0, TRIREME_GEMM_KIND_BUILTIN, 515, 387},
        {515, 0, 8, TRIREME_GEMM_KIND_BUILTIN, 515, 387},
        {9001, 0, 8, TRIREME_GEMM_KIND_BUILTIN, 9001, 2703},
        {515, 0, 0, TRIREME_GEMM_KIND_LOADED, 515, 387},
        /* One process has no tiles, and is promised the same bits. */
        {515, 0, 8, TRIREME_GEMM_KIND_LOADED, 515, 515},
        {515, 128, 8, TRIREME_GEMM_KIND_LOADED, 128, 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const struct tile_case *const one = &cases[i];
        if (one->gemm == TRIREME_GEMM_KIND_LOADED && !has_openblas()) continue;
        trireme_tensor *tensor = NULL;
        trireme_linear *linear = NULL;
        trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
        trireme_tensor_info share = TRIREME_TENSOR_INFO_INIT;
        const struct layer_spec spec = {.kind = TRIREME_LINEAR_KIND_ROW,
                                        .flags = TRIREME_LINEAR_FLAG_INPUT_SPLIT,
                                        .rows = one->rows,
                                        .input = 6,
                                        .output = 8,
                                        .stretches = 1,
                                        .dtype = TRIREME_DTYPE_F32};
        EXPECT_STATUS(verdict, TRIREME_OK,
                      make_tiled_tensor(communicator, one->blocks, 0, one->gemm, one->row_tile,
                                        &tensor));
        const trireme_linear_options options = linear_options(&spec, "layer");
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &options, &linear));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_get_info(linear, &info));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_get_info(tensor, &share));
        const bool several = share.world_size > 1;
        const uint64_t tile = apart && several ? one->apart : one->shared;
        const uint64_t sets = apart && several && tile < one->rows ? 2 : 1;
        EXPECT(verdict, info.tile_rows == tile);
        EXPECT(verdict, info.workspace_bytes == sets * share.block_count * lines_of(tile * 8 * 4));
        trireme_linear_destroy(linear);
        trireme_tensor_destroy(tensor);
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
}

static void tiles_are_planned(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ++ranks) {
        struct trial trial = {.spec = {.rows = 0}};
        run_ranks(ranks, plan_tiles, &trial);
        assert_verdicts(trial.verdicts, ranks);
    }
}

/* A column layer with SEQUENCE gathers its input once more while it has summands. With
 * KEEP_GATHERED the caller holds that array. */
static void plan_gathers(trireme_communicator *communicator, int rank, void *context) {
    struct verdict *const verdict = &((struct trial *)context)->verdicts[rank];
    const bool apart = ranks_use_transport() || ranks_use_network() || network_is_memory();
    for (size_t i = 1; i < sizeof flags / sizeof flags[0]; ++i) {
        trireme_tensor *tensor = NULL;
        trireme_linear *linear = NULL;
        trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
        trireme_tensor_info share = TRIREME_TENSOR_INFO_INIT;
        const struct layer_spec spec = {.kind = TRIREME_LINEAR_KIND_COLUMN,
                                        .rows = 10,
                                        .input = 6,
                                        .output = 8,
                                        .stretches = 1,
                                        .dtype = TRIREME_DTYPE_F32};
        EXPECT_STATUS(verdict, TRIREME_OK,
                      make_tiled_tensor(communicator, 8, flags[i], TRIREME_GEMM_KIND_BUILTIN, 4,
                                        &tensor));
        const trireme_linear_options options = linear_options(&spec, "layer");
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &options, &linear));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_get_info(linear, &info));
        EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_get_info(tensor, &share));
        const uint64_t sets = apart && share.world_size > 1 ? 2 : 1;
        const bool keeps = (flags[i] & TRIREME_TENSOR_FLAG_KEEP_GATHERED) != 0;
        EXPECT(verdict, info.workspace_bytes == sets * share.block_count * lines_of(4 * 6 * 4) +
                                                    (keeps ? 0 : lines_of(10 * 6 * 4)));
        trireme_linear_destroy(linear);
        trireme_tensor_destroy(tensor);
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
}

static void gathers_beside_sums_are_planned(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 3; ++ranks) {
        struct trial trial = {.spec = {.rows = 0}};
        run_ranks(ranks, plan_gathers, &trial);
        assert_verdicts(trial.verdicts, ranks);
    }
}

/* Automatic tiles of 387 and 128 rows between ranks that are apart. The oracle has no tiles. */
static void run_many_rows(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct layer_spec spec = trial->spec;
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_layer_tensor(communicator, spec.blocks, spec.tensor_flags, spec.gemm,
                                    &tensor));
    spec.dtype = TRIREME_DTYPE_F32;
    spec.rows = 515;
    spec.input = 5;
    spec.output = 7;
    check_kinds(verdict, communicator, tensor, spec, rank);
    trireme_tensor_destroy(tensor);
}

static void automatic_tiles_change_no_bits(void **state) {
    (void)state;
    for (uint32_t sequence = 0; sequence < 2; ++sequence) {
        struct trial trial = {.spec = {.world_size = 3,
                                       .blocks = 8,
                                       .tensor_flags = sequence * TRIREME_TENSOR_FLAG_SEQUENCE,
                                       .gemm = TRIREME_GEMM_KIND_BUILTIN}};
        run_ranks(3, run_many_rows, &trial);
        assert_verdicts(trial.verdicts, 3);
    }
}

/* --- a peer that comes late ------------------------------------------------------------------- */

struct late_case {
    trireme_linear_kind kind;
    uint32_t flags, tensor_flags;
    int awaited; /* products of rank 0 in its call, for which rank 1 waits before its own */
};

struct late_trial {
    const struct late_case *one;
    atomic_int products; /* of rank 0 */
    struct verdict verdicts[2];
};

static int32_t multiply_and_count(const trireme_product *product, void *user_data) {
    const struct plain_product plain = {.dtype = product->dtype,
                                        .left_transposed = product->left_transposed != 0,
                                        .right_transposed = product->right_transposed != 0,
                                        .add = product->add != 0,
                                        .rows = product->rows,
                                        .columns = product->columns,
                                        .depth = product->depth,
                                        .left = product->left,
                                        .left_step = product->left_step,
                                        .right = product->right,
                                        .right_step = product->right_step,
                                        .result = product->result,
                                        .result_step = product->result_step};
    multiply_plainly(&plain);
    if (user_data != NULL) ++*(atomic_int *)user_data;
    return 0;
}

/* Rank 0 comes to products beside its exchanges while rank 1 has not called yet. Else both would
 * wait for each other. Rank 0 reads nothing that has not come: rank 1 gives it time to. */
static void be_late(trireme_communicator *communicator, int rank, void *context) {
    struct late_trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const struct layer_spec spec = {.world_size = 2,
                                    .tensor_flags = trial->one->tensor_flags,
                                    .kind = trial->one->kind,
                                    .flags = trial->one->flags,
                                    .gemm = TRIREME_GEMM_KIND_BUILTIN,
                                    .rows = 6,
                                    .input = 5,
                                    .output = 4,
                                    .stretches = 1,
                                    .dtype = TRIREME_DTYPE_F32};
    struct layer_arrays all = make_layer_arrays(&spec);
    struct own_arrays own = make_own(&spec, &all, rank);
    trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
    gemm.kind = TRIREME_GEMM_KIND_CALLER;
    gemm.callback = multiply_and_count;
    if (rank == 0) gemm.user_data = &trial->products;
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    options.gemm = &gemm;
    options.flags = spec.tensor_flags;
    options.row_tile = UINT32_MAX;
    trireme_tensor *tensor = NULL;
    trireme_linear *linear = NULL, *other = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_create(communicator, &options, &tensor));
    const trireme_linear_options layer = linear_options(&spec, "layer");
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &layer, &linear));
    const trireme_linear_options next = linear_options(&spec, "other");
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &next, &other));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_linear_forward(linear, own.input.data, own.weight.data, NULL,
                                         own.output.data, own.kept, NULL));
    /* The memory that both layers share holds other rows now: NaN. */
    unsigned char *const kept = malloc(spec.rows * spec.input * sizeof(float));
    if (kept == NULL) abort();
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_linear_forward(other, own.input_gradient.data, own.weight.data, NULL,
                                         own.output.data, kept, NULL));
    free(kept);
    const int awaited = 2 + trial->one->awaited; /* and those of the forward passes */
    while (rank == 1 && atomic_load(&trial->products) < awaited) sched_yield();
    if (rank == 1) usleep(20000);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_linear_backward(linear, own.input.data, own.output_gradient.data,
                                          own.weight.data, own.input_gradient.data, own.kept,
                                          own.weight_gradient.data, NULL, NULL));
    if (rank == 0) atomic_store(&trial->products, 1000); /* a call that failed lets rank 1 go */
    expect_part(verdict, &spec, "input gradient beside a late peer", &own.input_gradient,
                take_part(&all.input_gradient, input_part(&spec, &all.input_gradient, rank)));
    expect_part(verdict, &spec, "weight gradient beside a late peer", &own.weight_gradient,
                weight_part(&spec, &all.weight_gradient[0], rank));
    trireme_linear_destroy(other);
    trireme_linear_destroy(linear);
    trireme_tensor_destroy(tensor);
    free_own(&own);
    free_layer_arrays(&all);
}

static void products_of_weights_wait_for_no_peer(void **state) {
    (void)state;
    static const struct late_case cases[] = {
        {TRIREME_LINEAR_KIND_COLUMN, 0, 0, 2},
        {TRIREME_LINEAR_KIND_COLUMN, TRIREME_LINEAR_FLAG_GATHERED_OUTPUT, 0, 2},
        {TRIREME_LINEAR_KIND_ROW, 0, 0, 2},
        /* The weight's product reads the input that is gathered once more. */
        {TRIREME_LINEAR_KIND_COLUMN, 0, TRIREME_TENSOR_FLAG_SEQUENCE, 1},
        {TRIREME_LINEAR_KIND_COLUMN, 0,
         TRIREME_TENSOR_FLAG_SEQUENCE | TRIREME_TENSOR_FLAG_KEEP_GATHERED, 2},
    };
    if (!ranks_use_transport()) skip(); /* where ranks share memory, they exchange in their calls */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        struct late_trial trial = {.one = &cases[i]};
        run_ranks(2, be_late, &trial);
        assert_verdicts(trial.verdicts, 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builtin_layers_have_the_bits_of_one_process),
        cmocka_unit_test(layers_over_openblas_have_the_bits_of_one_process),
        cmocka_unit_test(without_blocks_each_rank_makes_one_product),
        cmocka_unit_test(tiles_change_no_bits),
        cmocka_unit_test(tiles_over_openblas_have_the_bits_of_one_process),
        cmocka_unit_test(tiles_are_planned),
        cmocka_unit_test(gathers_beside_sums_are_planned),
        cmocka_unit_test(automatic_tiles_change_no_bits),
        cmocka_unit_test(products_of_weights_wait_for_no_peer),
    };
    return cmocka_run_group_tests_name("layers", tests, NULL, NULL);
}
