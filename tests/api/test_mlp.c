/* MLPs: results to the last bit for every number of ranks, and gradients by finite differences. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layers.inc"

#define MOST 8

static const int world_sizes[] = {1, 2, 3, 4, 5, 8};

/* --- activations by libm ---------------------------------------------------------------------- */

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double gelu_argument(double x) {
    return 2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x);
}

/* The share of a normal distribution below x. */
static double normal_below(double x) {
    return (double)(0.5L * erfcl(-(long double)x / sqrtl(2)));
}

static double value_of(trireme_activation_kind kind, double x) {
    switch (kind) {
        case TRIREME_ACTIVATION_KIND_RELU: return x > 0 ? x : 0;
        case TRIREME_ACTIVATION_KIND_GELU_TANH: return x * sigmoid(gelu_argument(x));
        case TRIREME_ACTIVATION_KIND_GELU: return x * normal_below(x);
        default: return x * sigmoid(x);
    }
}

static double slope_of(trireme_activation_kind kind, double x) {
    if (kind == TRIREME_ACTIVATION_KIND_RELU) return x > 0;
    if (kind == TRIREME_ACTIVATION_KIND_GELU) {
        return normal_below(x) + x * exp(-x * x / 2) / sqrt(2 * acos(-1));
    }
    const bool gelu = kind == TRIREME_ACTIVATION_KIND_GELU_TANH;
    const double s = sigmoid(gelu ? gelu_argument(x) : x);
    const double inner = gelu ? 2 * sqrt(2 / acos(-1)) * (1 + 3 * 0.044715 * x * x) : 1;
    return s + x * s * (1 - s) * inner;
}

static bool is_gated(trireme_activation_kind kind, uint32_t flags) {
    return kind == TRIREME_ACTIVATION_KIND_SWIGLU || (flags & TRIREME_MLP_FLAG_GATED) != 0;
}

static void activate_plainly(trireme_activation_kind kind, bool gated, trireme_dtype dtype,
                             uint64_t rows, uint64_t columns, const unsigned char *input,
                             const unsigned char *output_gradient, unsigned char *result) {
    const uint64_t size = trireme_dtype_bytes(dtype), width = columns * (gated ? 2 : 1);
    for (uint64_t i = 0; i < rows; ++i) {
        for (uint64_t j = 0; j < columns; ++j) {
            const double x = get_number(dtype, input + (i * width + j) * size);
            const double by =
                gated ? get_number(dtype, input + (i * width + columns + j) * size) : 1;
            if (output_gradient == NULL) {
                set_number(dtype, value_of(kind, x) * by, result + (i * columns + j) * size);
                continue;
            }
            const double gradient = get_number(dtype, output_gradient + (i * columns + j) * size);
            set_number(dtype, gradient * by * slope_of(kind, x), result + (i * width + j) * size);
            if (!gated) continue;
            set_number(dtype, gradient * value_of(kind, x),
                       result + (i * width + columns + j) * size);
        }
    }
}

/* As a host has it: gated if there are two inputs. */
static int32_t forward_of_caller(const trireme_activation_call *call, void *user_data) {
    *(uint64_t *)user_data += call->columns;
    activate_plainly(TRIREME_ACTIVATION_KIND_SILU, call->input_columns != call->columns,
                     call->dtype, call->rows, call->columns, call->input, NULL, call->result);
    return call->output_gradient == NULL && call->struct_size >= 64 ? 0 : 1;
}

static int32_t backward_of_caller(const trireme_activation_call *call, void *user_data) {
    (void)user_data;
    activate_plainly(TRIREME_ACTIVATION_KIND_SILU, call->input_columns != call->columns,
                     call->dtype, call->rows, call->columns, call->input, call->output_gradient,
                     call->result);
    return 0;
}

/* --- an MLP as data --------------------------------------------------------------------------- */

struct mlp_spec {
    int world_size;
    uint32_t blocks, tensor_flags, flags;
    trireme_gemm_kind gemm;
    trireme_activation_kind activation;
    trireme_dtype dtype;
    uint64_t rows, input, hidden, output;
};

/* As its two layers. */
static struct layer_spec layer_of(const struct mlp_spec *spec, bool second) {
    const uint32_t parts = is_gated(spec->activation, spec->flags) ? 2 : 1;
    const uint32_t bias = (spec->flags & TRIREME_MLP_FLAG_BIAS) != 0 ? TRIREME_LINEAR_FLAG_BIAS : 0;
    const struct layer_spec layer = {.world_size = spec->world_size,
                                     .blocks = spec->blocks,
                                     .tensor_flags = spec->tensor_flags,
                                     .gemm = spec->gemm,
                                     .kind = second ? TRIREME_LINEAR_KIND_ROW
                                                    : TRIREME_LINEAR_KIND_COLUMN,
                                     .flags = bias,
                                     .rows = spec->rows,
                                     .input = second ? spec->hidden : spec->input,
                                     .output = second ? spec->output : parts * spec->hidden,
                                     .stretches = second ? 1 : parts,
                                     .dtype = spec->dtype};
    return layer;
}

struct mlp_arrays {
    struct layer_arrays first, second; /* without their results where those are not known yet */
};

/* Whole arrays of one process. */
static struct mlp_arrays make_mlp_arrays(const struct mlp_spec *spec) {
    const struct layer_spec one = layer_of(spec, false), two = layer_of(spec, true);
    const bool gated = is_gated(spec->activation, spec->flags);
    struct mlp_arrays all = {make_layer_arrays(&one), make_layer_arrays(&two)};
    const struct matrix *const bias =
        (spec->flags & TRIREME_MLP_FLAG_BIAS) != 0 ? &all.second.bias : NULL;
    fill_matrix(&all.second.weight, 12);
    fill_matrix(&all.second.bias, 13);
    fill_matrix(&all.second.output_gradient, 14);
    activate_plainly(spec->activation, gated, spec->dtype, spec->rows, spec->hidden,
                     all.first.output.data, NULL, all.second.input.data);
    merge_plainly(&two, &all.second.input, &all.second.weight, bias, &all.second.output);
    spread_plainly(&two, &all.second.output_gradient, &all.second.weight, NULL,
                   &all.second.input_gradient);
    activate_plainly(spec->activation, gated, spec->dtype, spec->rows, spec->hidden,
                     all.first.output.data, all.second.input_gradient.data,
                     all.first.output_gradient.data);
    merge_plainly(&one, &all.first.output_gradient, &all.first.weight, NULL,
                  &all.first.input_gradient);
    for (int pass = 0; pass < 2; ++pass) {
        struct layer_arrays *const each[] = {&all.first, &all.second};
        for (int i = 0; i < 2; ++i) {
            struct matrix *const weight = each[i]->weight_gradient;
            struct matrix *const bias_gradient = each[i]->bias_gradient;
            if (pass == 1) {
                memcpy(weight[1].data, weight[0].data,
                       weight[0].rows * weight[0].columns * trireme_dtype_bytes(weight[0].dtype));
                memcpy(bias_gradient[1].data, bias_gradient[0].data,
                       bias_gradient[0].columns * trireme_dtype_bytes(bias_gradient[0].dtype));
            }
            weigh_plainly(i == 0 ? &one : &two, each[i], pass == 1, &weight[pass],
                          &bias_gradient[pass]);
        }
    }
    return all;
}

static trireme_mlp_options
mlp_options(const struct mlp_spec *spec, const char *name, uint64_t *columns) {
    trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
    options.name = name;
    options.flags = spec->flags;
    options.dtype = spec->dtype;
    options.activation = spec->activation;
    options.input = spec->input;
    options.hidden = spec->hidden;
    options.output = spec->output;
    options.rows = spec->rows;
    if (spec->activation == TRIREME_ACTIVATION_KIND_CALLER) {
        options.forward = forward_of_caller;
        options.backward = backward_of_caller;
        options.user_data = columns;
    }
    return options;
}

/* The rows between layers. */
static struct matrix take_rows(const struct mlp_spec *spec, const struct matrix *whole, int rank) {
    const struct layer_spec layer = layer_of(spec, false);
    struct part part = {0, whole->rows, 0, whole->columns, 1};
    if ((spec->tensor_flags & TRIREME_TENSOR_FLAG_SEQUENCE) != 0) {
        part.first_row = rank_cut(&layer, whole->rows, rank);
        part.end_row = rank_cut(&layer, whole->rows, rank + 1);
    }
    return take_part(whole, part);
}

struct trial {
    struct mlp_spec spec;
    struct verdict verdicts[MOST];
};

static void tell(struct verdict *verdict, const struct mlp_spec *spec, const char *what) {
    char text[240];
    snprintf(text, sizeof text, "%s: activation %d, flags %u, tensor flags %u, %s %dx%d, hidden %d",
             what, (int)spec->activation, spec->flags, spec->tensor_flags,
             trireme_dtype_name(spec->dtype), (int)spec->rows, (int)spec->input, (int)spec->hidden);
    expect_failed(verdict, __FILE__, __LINE__, text);
}

static void expect_bits(struct verdict *verdict, const struct mlp_spec *spec, const char *what,
                        const struct matrix *own, struct matrix wanted) {
    if (!has_bits(own, &wanted)) tell(verdict, spec, what);
    free(wanted.data);
}

/* This rank's arrays, and the results of its passes. */
struct own_mlp {
    struct matrix input, output_gradient, output, input_gradient;
    struct matrix weights[4], gradients[4]; /* fc1, its bias, fc2, its bias */
    unsigned char *kept;
    trireme_mlp_weights given;
    trireme_mlp_gradients taken;
};

static struct own_mlp make_own_mlp(const struct mlp_spec *spec, const struct mlp_arrays *all,
                                   int rank, uint64_t kept_bytes) {
    const struct layer_spec one = layer_of(spec, false), two = layer_of(spec, true);
    const bool has_bias = (spec->flags & TRIREME_MLP_FLAG_BIAS) != 0;
    struct own_mlp own;
    own.input = take_rows(spec, &all->first.input, rank);
    own.output_gradient = take_rows(spec, &all->second.output_gradient, rank);
    own.output = make_matrix(spec->dtype, own.output_gradient.rows, spec->output);
    own.input_gradient = make_matrix(spec->dtype, own.input.rows, spec->input);
    own.weights[0] = weight_part(&one, &all->first.weight, rank);
    own.weights[1] = bias_part(&one, &all->first.bias, rank);
    own.weights[2] = weight_part(&two, &all->second.weight, rank);
    own.weights[3] = bias_part(&two, &all->second.bias, rank);
    for (int i = 0; i < 4; ++i) {
        own.gradients[i] =
            make_matrix(wide_dtype(spec->dtype), own.weights[i].rows, own.weights[i].columns);
    }
    own.kept = malloc(kept_bytes + 1);
    if (own.kept == NULL) abort();
    own.given = (trireme_mlp_weights)TRIREME_MLP_WEIGHTS_INIT;
    own.taken = (trireme_mlp_gradients)TRIREME_MLP_GRADIENTS_INIT;
    own.given.fc1_weight = own.weights[0].data;
    own.given.fc2_weight = own.weights[2].data;
    own.taken.fc1_weight = own.gradients[0].data;
    own.taken.fc2_weight = own.gradients[2].data;
    if (has_bias) {
        own.given.fc1_bias = own.weights[1].data;
        own.given.fc2_bias = own.weights[3].data;
        own.taken.fc1_bias = own.gradients[1].data;
        own.taken.fc2_bias = own.gradients[3].data;
    }
    return own;
}

static void free_own_mlp(struct own_mlp *own) {
    free(own->input.data);
    free(own->output_gradient.data);
    free(own->output.data);
    free(own->input_gradient.data);
    for (int i = 0; i < 4; ++i) {
        free(own->weights[i].data);
        free(own->gradients[i].data);
    }
    free(own->kept);
}

static uint64_t sent_bytes(struct verdict *verdict, trireme_communicator *communicator) {
    trireme_communicator_statistics now = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_statistics(communicator, &now));
    return now.sent_bytes;
}

static void
check_gradients(struct verdict *verdict, const struct mlp_spec *spec, const struct mlp_arrays *all,
                const struct own_mlp *own, int pass, int rank) {
    const struct layer_spec one = layer_of(spec, false), two = layer_of(spec, true);
    expect_bits(verdict, spec, "fc1 weight", &own->gradients[0],
                weight_part(&one, &all->first.weight_gradient[pass], rank));
    expect_bits(verdict, spec, "fc2 weight", &own->gradients[2],
                weight_part(&two, &all->second.weight_gradient[pass], rank));
    if ((spec->flags & TRIREME_MLP_FLAG_BIAS) == 0) return;
    expect_bits(verdict, spec, "fc1 bias", &own->gradients[1],
                bias_part(&one, &all->first.bias_gradient[pass], rank));
    expect_bits(verdict, spec, "fc2 bias", &own->gradients[3],
                bias_part(&two, &all->second.bias_gradient[pass], rank));
}

/* Both gradients in one call. */
static void check_backward(struct verdict *verdict, trireme_communicator *communicator,
                           trireme_mlp *mlp, const struct mlp_spec *spec,
                           const struct mlp_arrays *all, struct own_mlp *own, int rank) {
    trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mlp_get_info(mlp, &info));
    for (int pass = 0; pass < 2; ++pass) {
        trireme_pass_options add = TRIREME_PASS_OPTIONS_INIT;
        if (pass == 1) add.flags = TRIREME_PASS_FLAG_ADD;
        spoil_matrix(&own->input_gradient);
        for (int i = 0; i < 4 && pass == 0; ++i) spoil_matrix(&own->gradients[i]);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mlp_forward(mlp, own->input.data, &own->given, own->output.data,
                                          own->kept, NULL));
        const uint64_t before = sent_bytes(verdict, communicator);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mlp_backward(mlp, own->input.data, own->output_gradient.data,
                                           &own->given, own->input_gradient.data, own->kept,
                                           &own->taken, &add));
        const uint64_t planned = info.backward_input_bytes + info.backward_weight_bytes;
        const uint64_t sent = sent_bytes(verdict, communicator) - before;
        if (!ranks_use_transport() && !ranks_use_network() && sent != planned) {
            tell(verdict, spec, "bytes of both");
        }
        expect_bits(verdict, spec, "input gradient of both", &own->input_gradient,
                    take_rows(spec, &all->first.input_gradient, rank));
        check_gradients(verdict, spec, all, own, pass, rank);
    }
}

static void check_mlp(struct verdict *verdict, trireme_communicator *communicator,
                      trireme_tensor *tensor, const struct mlp_spec *spec, int rank) {
    trireme_mlp *mlp = NULL;
    uint64_t columns = 0;
    const trireme_mlp_options options = mlp_options(spec, "mlp", &columns);
    trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
    if (!EXPECT_STATUS(verdict, TRIREME_OK, trireme_mlp_create(tensor, &options, &mlp))) return;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mlp_get_info(mlp, &info));
    struct mlp_arrays all = make_mlp_arrays(spec);
    struct own_mlp own = make_own_mlp(spec, &all, rank, info.kept_bytes);
    EXPECT(verdict, info.fc1_rows == own.weights[0].rows && info.count == own.weights[2].columns &&
                        info.input_rows == own.input.rows && info.output_rows == own.output.rows);
    for (int pass = 0; pass < 2; ++pass) {
        trireme_pass_options add = TRIREME_PASS_OPTIONS_INIT;
        if (pass == 1) add.flags = TRIREME_PASS_FLAG_ADD;
        const uint64_t before = sent_bytes(verdict, communicator);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mlp_forward(mlp, own.input.data, &own.given, own.output.data,
                                          own.kept, NULL));
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mlp_backward_input(mlp, own.output_gradient.data, &own.given,
                                                 own.input_gradient.data, own.kept, NULL));
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mlp_backward_weight(mlp, own.input.data, own.output_gradient.data,
                                                  own.kept, &own.taken, &add));
        const uint64_t planned =
            info.forward_bytes + info.backward_input_bytes + info.backward_weight_bytes;
        const uint64_t sent = sent_bytes(verdict, communicator) - before;
        if (!ranks_use_transport() && !ranks_use_network() && sent != planned) {
            tell(verdict, spec, "bytes");
        }
        expect_bits(verdict, spec, "output", &own.output,
                    take_rows(spec, &all.second.output, rank));
        expect_bits(verdict, spec, "input gradient", &own.input_gradient,
                    take_rows(spec, &all.first.input_gradient, rank));
        check_gradients(verdict, spec, &all, &own, pass, rank);
    }
    check_backward(verdict, communicator, mlp, spec, &all, &own, rank);
    if (spec->activation == TRIREME_ACTIVATION_KIND_CALLER) {
        EXPECT(verdict, columns == 4 * info.count);
    }
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mlp_get_info(mlp, &info));
    EXPECT(verdict, info.forward_passes == 4 && info.backward_input_passes == 4 &&
                        info.backward_weight_passes == 4);
    trireme_mlp_destroy(mlp);
    free_own_mlp(&own);
    free_layer_arrays(&all.first);
    free_layer_arrays(&all.second);
}

static void run_mlps(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct mlp_spec spec = trial->spec;
    static const uint64_t shapes[][4] = {{7, 5, 13, 6},
                                         {3, 4, 2, 1},
                                         {0, 3, 5, 2},
                                         {2, 1, 0, 3},
                                         {24, 96, 48, 5}};
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_layer_tensor(communicator, spec.blocks, spec.tensor_flags, spec.gemm,
                                    &tensor));
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
        spec.rows = shapes[s][0];
        spec.input = shapes[s][1];
        spec.hidden = shapes[s][2];
        spec.output = shapes[s][3];
        for (spec.activation = TRIREME_ACTIVATION_KIND_CALLER;
             spec.activation <= TRIREME_ACTIVATION_KIND_GELU; ++spec.activation) {
            const bool caller = spec.activation == TRIREME_ACTIVATION_KIND_CALLER;
            for (uint32_t gated = 0; gated <= (caller ? TRIREME_MLP_FLAG_GATED : 0); gated += 2) {
                spec.dtype = TRIREME_DTYPE_F32;
                spec.flags = gated | (spec.activation % 2 == 0 ? 0 : TRIREME_MLP_FLAG_BIAS);
                check_mlp(verdict, communicator, tensor, &spec, rank);
                if (s > 0 || spec.gemm == TRIREME_GEMM_KIND_LOADED) continue;
                spec.dtype = TRIREME_DTYPE_BF16;
                check_mlp(verdict, communicator, tensor, &spec, rank);
            }
        }
    }
    trireme_tensor_destroy(tensor);
}

static void run_all(trireme_gemm_kind gemm) {
    static const uint32_t flags[] = {0, TRIREME_TENSOR_FLAG_SEQUENCE,
                                     TRIREME_TENSOR_FLAG_SEQUENCE |
                                         TRIREME_TENSOR_FLAG_KEEP_GATHERED};
    static const uint32_t blocks[] = {0, 8, 12};
    for (size_t w = 0; w < sizeof world_sizes / sizeof world_sizes[0]; ++w) {
        for (size_t b = 0; b < 3; ++b) {
            for (size_t f = 0; f < 3; ++f) {
                if (is_quick() && (w + b + f) % 3 != 0) continue;
                if (sees_threads_alone() && (w + b + f) % 9 != 0) continue;
                struct trial trial = {.spec = {.world_size = world_sizes[w],
                                               .blocks = blocks[b],
                                               .tensor_flags = flags[f],
                                               .gemm = gemm}};
                run_ranks(world_sizes[w], run_mlps, &trial);
                assert_verdicts(trial.verdicts, world_sizes[w]);
            }
        }
    }
}

/* Each rank's own activation: their hidden units do not belong together. */
static void activate_otherwise(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct mlp_spec spec = trial->spec;
    trireme_tensor *tensor = NULL;
    trireme_mlp *mlp = NULL;
    uint64_t columns = 0;
    spec.activation = rank == 1 ? TRIREME_ACTIVATION_KIND_SILU : TRIREME_ACTIVATION_KIND_RELU;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_layer_tensor(communicator, 0, 0, TRIREME_GEMM_KIND_BUILTIN, &tensor));
    const trireme_mlp_options options = mlp_options(&spec, "mlp", &columns);
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mlp_create(tensor, &options, &mlp));
    double in[64] = {0}, weights[2][64] = {{0}}, out[64] = {0};
    char kept[4096];
    trireme_mlp_weights given = TRIREME_MLP_WEIGHTS_INIT;
    given.fc1_weight = weights[0];
    given.fc2_weight = weights[1];
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_mlp_forward(mlp, in, &given, out, kept, NULL));
    trireme_mlp_destroy(mlp);
    trireme_tensor_destroy(tensor);
}

static void ranks_with_different_activations_all_get_mismatch(void **state) {
    (void)state;
    struct trial trial = {
        .spec = {.dtype = TRIREME_DTYPE_F32, .rows = 3, .input = 2, .hidden = 6, .output = 2}};
    run_ranks(3, activate_otherwise, &trial);
    assert_verdicts(trial.verdicts, 3);
}

static void builtin_mlps_have_the_bits_of_one_process(void **state) {
    (void)state;
    run_all(TRIREME_GEMM_KIND_BUILTIN);
}

static void mlps_over_openblas_have_the_bits_of_one_process(void **state) {
    (void)state;
    if (!has_openblas()) skip();
    run_all(TRIREME_GEMM_KIND_LOADED);
}

/* --- finite differences ----------------------------------------------------------------------- */

static double dot(const struct matrix *a, const struct matrix *b) {
    double sum = 0;
    for (uint64_t i = 0; i < a->rows * a->columns; ++i) {
        sum += ((const double *)a->data)[i] * ((const double *)b->data)[i];
    }
    return sum;
}

static void move_along(struct matrix *to, const struct matrix *direction, double by) {
    for (uint64_t i = 0; i < to->rows * to->columns; ++i) {
        ((double *)to->data)[i] += by * ((const double *)direction->data)[i];
    }
}

/* The loss is <output, output_gradient>. All arrays move along one direction at once. */
static void compare_differences(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct mlp_spec spec = trial->spec;
    trireme_tensor *tensor = NULL;
    trireme_mlp *mlp = NULL;
    uint64_t columns = 0;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_layer_tensor(communicator, spec.blocks, 0, spec.gemm, &tensor));
    const trireme_mlp_options options = mlp_options(&spec, "mlp", &columns);
    trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mlp_create(tensor, &options, &mlp));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mlp_get_info(mlp, &info));
    struct mlp_arrays all = make_mlp_arrays(&spec);
    struct own_mlp own = make_own_mlp(&spec, &all, rank, info.kept_bytes);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_mlp_forward(mlp, own.input.data, &own.given, own.output.data, own.kept,
                                      NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_mlp_backward_input(mlp, own.output_gradient.data, &own.given,
                                             own.input_gradient.data, own.kept, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_mlp_backward_weight(mlp, own.input.data, own.output_gradient.data,
                                              own.kept, &own.taken, NULL));
    struct matrix *const moved[] = {&own.input, &own.weights[0], &own.weights[1], &own.weights[2],
                                    &own.weights[3]};
    struct matrix directions[5];
    double slope = 0;
    for (int i = 0; i < 5; ++i) {
        directions[i] = make_matrix(spec.dtype, moved[i]->rows, moved[i]->columns);
        /* The same on all ranks for arrays that all of them have. */
        const bool whole = i == 0 || i == 4;
        fill_matrix(&directions[i], (uint64_t)(20 + i + (whole ? 0 : 10 * rank)));
        if (whole && rank != 0) continue;
        slope += dot(&directions[i], i == 0 ? &own.input_gradient : &own.gradients[i - 1]);
    }
    const double step = 1e-4;
    double losses[2];
    for (int side = 0; side < 2; ++side) {
        for (int i = 0; i < 5; ++i)
            move_along(moved[i], &directions[i], side == 0 ? -step : 2 * step);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_mlp_forward(mlp, own.input.data, &own.given, own.output.data,
                                          own.kept, NULL));
        losses[side] = dot(&own.output, &own.output_gradient);
    }
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, &slope, &slope, 1, TRIREME_DTYPE_F64,
                                     TRIREME_REDUCTION_SUM, NULL));
    const double difference = (losses[1] - losses[0]) / (2 * step);
    if (!(fabs(difference - slope) < 1e-5 * fabs(slope)) || fabs(slope) < 1e-3) {
        char text[100];
        snprintf(text, sizeof text, "the slope is %.12g, by differences %.12g", slope, difference);
        tell(verdict, &spec, text);
    }
    for (int i = 0; i < 5; ++i) free(directions[i].data);
    trireme_mlp_destroy(mlp);
    trireme_tensor_destroy(tensor);
    free_own_mlp(&own);
    free_layer_arrays(&all.first);
    free_layer_arrays(&all.second);
}

static void gradients_are_slopes(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; ++world_size) {
        for (trireme_activation_kind kind = TRIREME_ACTIVATION_KIND_CALLER;
             kind <= TRIREME_ACTIVATION_KIND_GELU; ++kind) {
            struct trial trial = {.spec = {.world_size = world_size,
                                           .blocks = 4,
                                           .gemm = TRIREME_GEMM_KIND_BUILTIN,
                                           .activation = kind,
                                           .flags = TRIREME_MLP_FLAG_BIAS,
                                           .dtype = TRIREME_DTYPE_F64,
                                           .rows = 4,
                                           .input = 3,
                                           .hidden = 5,
                                           .output = 3}};
            run_ranks(world_size, compare_differences, &trial);
            assert_verdicts(trial.verdicts, world_size);
        }
    }
}

/* --- activations ------------------------------------------------------------------------------ */

/* Through an MLP of unit weights: its output is the activation, and its gradient the slope. */
static void activations_are_within_rounding_of_libm(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_communicator *alone = join_rank(0, 1, "local://one_rank_of_test_mlp");
    trireme_tensor *tensor = NULL;
    assert_int_equal(make_layer_tensor(alone, 0, 0, TRIREME_GEMM_KIND_BUILTIN, &tensor),
                     TRIREME_OK);
    enum { ROWS = 4001 };
    static double in[ROWS], out[ROWS], ones[ROWS], slopes[ROWS], kept[8 * ROWS];
    for (int i = 0; i < ROWS; ++i) {
        in[i] = (i - 2000) * (i % 2 == 0 ? 0.005 : 0.4);
        ones[i] = 1;
    }
    in[7] = NAN;
    const double unit = 1;
    for (trireme_activation_kind kind = TRIREME_ACTIVATION_KIND_RELU;
         kind <= TRIREME_ACTIVATION_KIND_GELU; ++kind) {
        if (kind == TRIREME_ACTIVATION_KIND_SWIGLU) continue; /* it has two inputs */
        const struct mlp_spec spec = {.world_size = 1,
                                      .gemm = TRIREME_GEMM_KIND_BUILTIN,
                                      .activation = kind,
                                      .dtype = TRIREME_DTYPE_F64,
                                      .rows = ROWS,
                                      .input = 1,
                                      .hidden = 1,
                                      .output = 1};
        const trireme_mlp_options options = mlp_options(&spec, "mlp", NULL);
        trireme_mlp *mlp = NULL;
        trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
        assert_int_equal(trireme_mlp_create(tensor, &options, &mlp), TRIREME_OK);
        assert_int_equal(trireme_mlp_get_info(mlp, &info), TRIREME_OK);
        assert_true(info.kept_bytes <= sizeof kept);
        trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
        weights.fc1_weight = &unit;
        weights.fc2_weight = &unit;
        assert_int_equal(trireme_mlp_forward(mlp, in, &weights, out, kept, NULL), TRIREME_OK);
        assert_int_equal(trireme_mlp_backward_input(mlp, ones, &weights, slopes, kept, NULL),
                         TRIREME_OK);
        for (int i = 0; i < ROWS; ++i) {
            if (i == 7) {
                assert_true(isnan(out[i]) && isnan(slopes[i]));
                continue;
            }
            const double value = value_of(kind, in[i]), slope = slope_of(kind, in[i]);
            const bool is_gelu = kind == TRIREME_ACTIVATION_KIND_GELU;
            if (is_gelu && in[i] >= -37.5 && fabs(out[i] - value) > 8 * 0x1p-53 * fabs(value)) {
                fail_msg("GELU of %.17g: %.17g, not %.17g", in[i], out[i], value);
            }
            if (is_gelu && in[i] < -37.5) assert_true(out[i] == 0 && slopes[i] == 0);
            if (is_gelu && in[i] < -37.5) continue;
            /* Rounding of the exponent's argument weighs with its size. */
            const double bound = 1e-15 * (1 + fabs(in[i]));
            if (fabs(out[i] - value) > bound * fabs(value) + 1e-300 ||
                fabs(slopes[i] - slope) > bound * (1 + fabs(slope))) {
                fail_msg("kind %d at %.17g: %.17g and %.17g, not %.17g and %.17g", (int)kind, in[i],
                         out[i], slopes[i], value, slope);
            }
        }
        trireme_mlp_destroy(mlp);
    }
    trireme_tensor_destroy(tensor);
    trireme_communicator_destroy(alone);
    free_rank_pair(pair);
}

/* --- refusals --------------------------------------------------------------------------------- */

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

static void bad_arguments_are_refused(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    trireme_mlp *const untouched = (trireme_mlp *)(uintptr_t)0x5a5a;
    trireme_mlp *mlp = untouched;
    assert_int_equal(make_layer_tensor(pair.ranks[0], 0, 0, TRIREME_GEMM_KIND_BUILTIN, &tensor),
                     TRIREME_OK);
    const struct mlp_spec spec = {.activation = TRIREME_ACTIVATION_KIND_RELU,
                                  .dtype = TRIREME_DTYPE_F32,
                                  .rows = 2,
                                  .input = 2,
                                  .hidden = 4,
                                  .output = 2};
    trireme_mlp_options options;
#define BAD(change, words)                                   \
    do {                                                     \
        options = mlp_options(&spec, "x", NULL);             \
        change;                                              \
        REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, words,       \
                trireme_mlp_create(tensor, &options, &mlp)); \
    } while (0)
    BAD(options.struct_size = 8, "options.struct_size is 8");
    BAD(options.flags = 4, "options.flags is 4");
    BAD(options.name = NULL, "options.name is NULL");
    BAD(options.name = "", "options.name is empty");
    BAD(options.activation = 0, "options.activation is 0, not one of TRIREME_ACTIVATION_KIND_*");
    BAD(options.activation = 7, "options.activation is 7");
    BAD(options.activation = TRIREME_ACTIVATION_KIND_CALLER, "needs forward and backward");
    BAD(options.forward = forward_of_caller, "forward and backward are for the activation CALLER");
    BAD(options.flags = TRIREME_MLP_FLAG_GATED, "GATED is for the activation CALLER alone");
    BAD((options.activation = TRIREME_ACTIVATION_KIND_SWIGLU, options.hidden = UINT64_MAX),
        "more elements than memory can hold");
    BAD(options.rows = 1ull << 55, "more bytes than memory can hold");
    options = mlp_options(&spec, "x", NULL);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "out_mlp is NULL",
            trireme_mlp_create(tensor, &options, NULL));
    assert_ptr_equal(mlp, untouched);
    assert_int_equal(trireme_mlp_create(tensor, &options, &mlp), TRIREME_OK);
    float in[4] = {0}, out[4] = {7}, weight[8] = {0}, kept[256] = {0};
    trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
    trireme_mlp_gradients gradients = TRIREME_MLP_GRADIENTS_INIT;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    REFUSED(bad, "weights is NULL", trireme_mlp_forward(mlp, in, NULL, out, kept, NULL));
    REFUSED(bad, "fc1_weight is NULL", trireme_mlp_forward(mlp, in, &weights, out, kept, NULL));
    weights.fc1_weight = weights.fc2_weight = weight;
    weights.reserved = 1;
    REFUSED(bad, "weights.reserved is 1", trireme_mlp_forward(mlp, in, &weights, out, kept, NULL));
    weights.reserved = 0;
    weights.fc2_bias = in;
    REFUSED(bad, "layer \"x\" has no BIAS",
            trireme_mlp_forward(mlp, in, &weights, out, kept, NULL));
    weights.fc2_bias = NULL;
    REFUSED(bad, "kept is NULL", trireme_mlp_forward(mlp, in, &weights, out, NULL, NULL));
    REFUSED(bad, "output and input overlap",
            trireme_mlp_forward(mlp, in, &weights, in, kept, NULL));
    REFUSED(TRIREME_ERROR_INVALID_STATE,
            "backward input pass 1 of layer \"x\" needs as many forward",
            trireme_mlp_backward_input(mlp, out, &weights, in, kept, NULL));
    gradients.fc1_weight = weight;
    gradients.fc2_weight = kept + 10;
    REFUSED(bad, "kept and fc2_weight overlap",
            trireme_mlp_backward_input(mlp, out,
                                       &(trireme_mlp_weights){.struct_size = sizeof weights,
                                                              .fc1_weight = weight,
                                                              .fc2_weight = kept},
                                       in, kept, NULL));
    REFUSED(bad, "fc2_weight and kept overlap",
            trireme_mlp_backward_weight(mlp, in, out, kept, &gradients, NULL));
    gradients.fc2_weight = weight;
    REFUSED(bad, "fc1_weight and fc2_weight overlap",
            trireme_mlp_backward_weight(mlp, in, out, kept, &gradients, NULL));
    float other[8];
    gradients.fc2_weight = other;
    REFUSED(TRIREME_ERROR_INVALID_STATE, "needs as many backward input passes",
            trireme_mlp_backward_weight(mlp, in, out, kept, &gradients, NULL));
    assert_true(out[0] == 7);
    trireme_mlp_destroy(mlp);
    trireme_mlp_info info = TRIREME_MLP_INFO_INIT;
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "is not live", trireme_mlp_get_info(mlp, &info));
    trireme_tensor_destroy(tensor);
    free_rank_pair(pair);
}

static int32_t fail_activation(const trireme_activation_call *call, void *user_data) {
    (void)call;
    return *(const int *)user_data == 1 ? 17 : 0;
}

static void fail_on_one_rank(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_tensor *tensor = NULL;
    trireme_mlp *mlp = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_layer_tensor(communicator, 0, 0, TRIREME_GEMM_KIND_BUILTIN, &tensor));
    struct mlp_spec spec = trial->spec;
    trireme_mlp_options options = mlp_options(&spec, "block 3", NULL);
    options.forward = options.backward = fail_activation;
    options.user_data = &rank;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_mlp_create(tensor, &options, &mlp));
    float in[64] = {0}, out[64] = {0}, weight[64] = {0}, kept[512] = {0};
    trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
    weights.fc1_weight = weights.fc2_weight = weight;
    EXPECT_STATUS(verdict, TRIREME_ERROR_CALLBACK,
                  trireme_mlp_forward(mlp, in, &weights, out, kept, NULL));
    EXPECT(verdict, says("layer \"block 3\": the activation's forward answered 17"));
    trireme_mlp_destroy(mlp);
    trireme_tensor_destroy(tensor);
}

static void a_failed_activation_fails_all_ranks(void **state) {
    (void)state;
    struct trial trial = {.spec = {.world_size = 3,
                                   .activation = TRIREME_ACTIVATION_KIND_CALLER,
                                   .dtype = TRIREME_DTYPE_F32,
                                   .rows = 2,
                                   .input = 2,
                                   .hidden = 6,
                                   .output = 2}};
    run_ranks(3, fail_on_one_rank, &trial);
    assert_verdicts(trial.verdicts, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builtin_mlps_have_the_bits_of_one_process),
        cmocka_unit_test(ranks_with_different_activations_all_get_mismatch),
        cmocka_unit_test(mlps_over_openblas_have_the_bits_of_one_process),
        cmocka_unit_test(gradients_are_slopes),
        cmocka_unit_test(activations_are_within_rounding_of_libm),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(a_failed_activation_fails_all_ranks),
    };
    return cmocka_run_group_tests_name("mlp", tests, NULL, NULL);
}
