/* Linear layers: bad arguments, ranks that differ, products that fail. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "layers.inc"

#define UNTOUCHED ((trireme_linear *)(uintptr_t)0x5a5a)

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

static int32_t no_product(const trireme_product *product, void *user_data) {
    (void)product;
    (void)user_data;
    return 0;
}

static void providers_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
#define PROVIDER(change, status, words)                                                  \
    do {                                                                                 \
        trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;                           \
        trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;                    \
        options.gemm = &gemm;                                                            \
        change;                                                                          \
        REFUSED(status, words, trireme_tensor_create(pair.ranks[0], &options, &tensor)); \
    } while (0)
#define BAD_PROVIDER(change, words) PROVIDER(change, TRIREME_ERROR_INVALID_ARGUMENT, words)
    BAD_PROVIDER(gemm.kind = 0, "options.gemm.kind is 0, not one of TRIREME_GEMM_KIND_*");
    BAD_PROVIDER(gemm.kind = 4, "options.gemm.kind is 4");
    BAD_PROVIDER(gemm.struct_size = 8, "options.gemm.struct_size is 8");
    BAD_PROVIDER((gemm.kind = 3, gemm.reserved = 1), "options.gemm.reserved is 1");
    BAD_PROVIDER((gemm.kind = 3, gemm.library = "x"), "library is for LOADED alone");
    BAD_PROVIDER((gemm.kind = 1, gemm.threads = 2), "threads is for LOADED alone");
    BAD_PROVIDER(gemm.kind = 1, "gemm caller needs a callback");
    BAD_PROVIDER((gemm.kind = 3, gemm.callback = no_product), "a callback means nothing");
    BAD_PROVIDER((gemm.kind = 2, gemm.threads = 0x80000000u), "options.gemm.threads is 2147483648");
    BAD_PROVIDER((gemm.kind = 3, options.flags = 4), "options.flags is 4");
    BAD_PROVIDER((gemm.kind = 3, options.flags = TRIREME_TENSOR_FLAG_KEEP_GATHERED),
                 "KEEP_GATHERED without SEQUENCE");
    PROVIDER((gemm.kind = 2, gemm.library = "libno.so.1, ./libneither.so"),
             TRIREME_ERROR_UNSUPPORTED, "tried libno.so.1: ");
    PROVIDER((gemm.kind = 2, gemm.library = "libno.so.1, ./libneither.so"),
             TRIREME_ERROR_UNSUPPORTED, "tried ./libneither.so: ");
    PROVIDER((gemm.kind = 2, gemm.library = "libm.so.6"), TRIREME_ERROR_UNSUPPORTED,
             "has no cblas_sgemm and cblas_dgemm");
    PROVIDER((gemm.kind = 2, gemm.library = ","), TRIREME_ERROR_UNSUPPORTED, "no BLAS");
    assert_null(tensor);
    free_rank_pair(pair);
}

static void providers_are_told(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    trireme_gemm_info info = TRIREME_GEMM_INFO_INIT;
    assert_int_equal(trireme_tensor_create(pair.ranks[0], NULL, &tensor), TRIREME_OK);
    assert_int_equal(trireme_tensor_get_gemm_info(tensor, &info), TRIREME_OK);
    assert_true(info.kind == 0 && info.repeatable == 0 && info.library[0] == 0);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "info is NULL",
            trireme_tensor_get_gemm_info(tensor, NULL));
    trireme_tensor_destroy(tensor);
    assert_int_equal(make_layer_tensor(pair.ranks[0], 8, 0, TRIREME_GEMM_KIND_BUILTIN, &tensor),
                     TRIREME_OK);
    assert_int_equal(trireme_tensor_get_gemm_info(tensor, &info), TRIREME_OK);
    assert_true(info.kind == TRIREME_GEMM_KIND_BUILTIN && info.threads == 1 && info.repeatable);
    trireme_tensor_destroy(tensor);
    if (has_openblas()) {
        trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
        trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
        gemm.kind = TRIREME_GEMM_KIND_LOADED;
        gemm.library = "libno.so.1," OPENBLAS;
        gemm.threads = 2;
        options.gemm = &gemm;
        assert_int_equal(trireme_tensor_create(pair.ranks[0], &options, &tensor), TRIREME_OK);
        assert_int_equal(trireme_tensor_get_gemm_info(tensor, &info), TRIREME_OK);
        assert_true(info.kind == TRIREME_GEMM_KIND_LOADED && info.threads == 2);
        assert_string_equal(info.library, OPENBLAS);
        assert_non_null(strstr(info.version, "OpenBLAS"));
        /* One number of threads in a process. */
        trireme_tensor *other = NULL;
        gemm.threads = 1;
        REFUSED(TRIREME_ERROR_INVALID_STATE, "has one number for all",
                trireme_tensor_create(pair.ranks[1], &options, &other));
        trireme_tensor_destroy(tensor);
    }
    free_rank_pair(pair);
}

static const struct layer_spec usual = {.world_size = 2,
                                        .kind = TRIREME_LINEAR_KIND_COLUMN,
                                        .flags = TRIREME_LINEAR_FLAG_BIAS,
                                        .rows = 3,
                                        .input = 4,
                                        .output = 6,
                                        .stretches = 1,
                                        .dtype = TRIREME_DTYPE_F32};

static void linear_options_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL, *plain = NULL, *sequence = NULL;
    trireme_linear *linear = UNTOUCHED, *first = NULL;
    trireme_linear_options options;
    assert_int_equal(make_layer_tensor(pair.ranks[0], 4, 0, TRIREME_GEMM_KIND_BUILTIN, &tensor),
                     TRIREME_OK);
    assert_int_equal(make_layer_tensor(pair.ranks[0], 4, TRIREME_TENSOR_FLAG_SEQUENCE,
                                       TRIREME_GEMM_KIND_BUILTIN, &sequence),
                     TRIREME_OK);
    assert_int_equal(trireme_tensor_create(pair.ranks[0], NULL, &plain), TRIREME_OK);
#define BAD(change, words)                                         \
    do {                                                           \
        options = linear_options(&usual, "x");                     \
        change;                                                    \
        REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, words,             \
                trireme_linear_create(tensor, &options, &linear)); \
    } while (0)
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options is NULL",
            trireme_linear_create(tensor, NULL, &linear));
    BAD(options.struct_size = 8, "options.struct_size is 8");
    BAD(options.flags = 8, "options.flags is 8");
    BAD(options.reserved = 1, "options.reserved is 1");
    BAD(options.name = NULL, "options.name is NULL");
    BAD(options.name = "", "options.name is empty");
    BAD(options.name = "01234567890123456789012345678901234567890",
        "options.name has 41 bytes, more than 40");
    BAD(options.name = "\xc3(", "options.name is not UTF-8");
    BAD(options.name = "a\nb", "has a control character");
    BAD(options.kind = 0, "options.kind is 0, not one of TRIREME_LINEAR_KIND_*");
    BAD(options.kind = 3, "options.kind is 3");
    BAD(options.stretches = 4, "options.stretches is 4, which does not divide the 6 outputs");
    BAD(options.flags = TRIREME_LINEAR_FLAG_INPUT_SPLIT, "INPUT_SPLIT is for layers of kind ROW");
    BAD((options.kind = TRIREME_LINEAR_KIND_ROW,
         options.flags = TRIREME_LINEAR_FLAG_GATHERED_OUTPUT),
        "GATHERED_OUTPUT is for layers of kind COLUMN");
    BAD((options.kind = TRIREME_LINEAR_KIND_ROW, options.stretches = 2),
        "a layer of kind ROW has one");
    BAD(options.rows = 1ull << 55, "more bytes than memory can hold");
    BAD(options.input = UINT64_MAX, "more bytes than memory can hold");
    options = linear_options(&usual, "x");
    options.dtype = TRIREME_DTYPE_I32;
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "products of i32",
            trireme_linear_create(tensor, &options, &linear));
    options = linear_options(&usual, "x");
    REFUSED(TRIREME_ERROR_INVALID_STATE, "has no provider of products",
            trireme_linear_create(plain, &options, &linear));
    options.kind = TRIREME_LINEAR_KIND_ROW;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "with SEQUENCE a layer of kind ROW needs INPUT_SPLIT",
            trireme_linear_create(sequence, &options, &linear));
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "out_linear is NULL",
            trireme_linear_create(tensor, &options, NULL));
    assert_ptr_equal(linear, UNTOUCHED);
    /* A name is taken until its layer is destroyed. */
    options = linear_options(&usual, "x");
    assert_int_equal(trireme_linear_create(tensor, &options, &first), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "which another region has",
            trireme_linear_create(tensor, &options, &linear));
    trireme_linear_destroy(first);
    trireme_linear_destroy(first);
    trireme_linear_destroy(NULL);
    assert_int_equal(trireme_linear_create(tensor, &options, &first), TRIREME_OK);
    trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "info is NULL", trireme_linear_get_info(first, NULL));
    trireme_linear_destroy(first);
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "is not live", trireme_linear_get_info(first, &info));
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "a tensor handle was given where a linear",
            trireme_linear_get_info((trireme_linear *)tensor, &info));
    if (has_openblas()) {
        trireme_tensor *loaded = NULL;
        assert_int_equal(make_layer_tensor(pair.ranks[0], 4, 0, TRIREME_GEMM_KIND_LOADED, &loaded),
                         TRIREME_OK);
        options.dtype = TRIREME_DTYPE_BF16;
        REFUSED(TRIREME_ERROR_UNSUPPORTED, "products of bf16 (10) by the provider loaded",
                trireme_linear_create(loaded, &options, &linear));
        trireme_tensor_destroy(loaded);
    }
    trireme_tensor_destroy(tensor);
    trireme_tensor_destroy(sequence);
    trireme_tensor_destroy(plain);
    free_rank_pair(pair);
}

/* Calls that are refused alone: no peer takes part. */
static void calls_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    trireme_linear *linear = NULL, *bare = NULL;
    float in[12] = {0}, weight[12] = {0}, bias[3] = {0}, out[9] = {7}, grads[16] = {0};
    assert_int_equal(make_layer_tensor(pair.ranks[0], 0, 0, TRIREME_GEMM_KIND_BUILTIN, &tensor),
                     TRIREME_OK);
    trireme_linear_options options = linear_options(&usual, "x");
    assert_int_equal(trireme_linear_create(tensor, &options, &linear), TRIREME_OK);
    options.name = "bare";
    options.flags = 0;
    assert_int_equal(trireme_linear_create(tensor, &options, &bare), TRIREME_OK);
    trireme_pass_options pass = TRIREME_PASS_OPTIONS_INIT;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    REFUSED(bad, "input is NULL but holds 48 bytes",
            trireme_linear_forward(linear, NULL, weight, bias, out, NULL, NULL));
    REFUSED(bad, "weight is NULL but holds 48 bytes",
            trireme_linear_forward(linear, in, NULL, bias, out, NULL, NULL));
    REFUSED(bad, "bias is NULL but holds 12 bytes",
            trireme_linear_forward(linear, in, weight, NULL, out, NULL, NULL));
    REFUSED(bad, "output is NULL but holds 36 bytes",
            trireme_linear_forward(linear, in, weight, bias, NULL, NULL, NULL));
    REFUSED(bad, "bias is given, but layer \"bare\" has no BIAS",
            trireme_linear_forward(bare, in, weight, bias, out, NULL, NULL));
    REFUSED(bad, "output and input overlap",
            trireme_linear_forward(linear, in, weight, bias, in + 11, NULL, NULL));
    REFUSED(bad, "output and weight overlap",
            trireme_linear_forward(linear, in, weight, bias, weight, NULL, NULL));
    pass.flags = TRIREME_PASS_FLAG_ADD;
    REFUSED(bad, "options.flags is 1",
            trireme_linear_forward(linear, in, weight, bias, out, NULL, &pass));
    REFUSED(bad, "options.flags is 1",
            trireme_linear_backward_input(linear, out, weight, grads, NULL, &pass));
    pass.flags = 2;
    REFUSED(bad, "options.flags is 2",
            trireme_linear_backward_weight(linear, in, out, NULL, grads, bias, &pass));
    REFUSED(TRIREME_ERROR_INVALID_STATE,
            "backward input pass 1 of layer \"x\" needs as many forward passes, but there were 0",
            trireme_linear_backward_input(linear, out, weight, grads, NULL, NULL));
    REFUSED(TRIREME_ERROR_INVALID_STATE, "backward weight pass 1 of layer \"x\" needs",
            trireme_linear_backward_weight(linear, in, out, NULL, grads, bias, NULL));
    REFUSED(bad, "bias_gradient is given, but layer \"bare\" has no BIAS",
            trireme_linear_backward_weight(bare, in, out, NULL, grads, bias, NULL));
    REFUSED(bad, "weight_gradient and bias_gradient overlap",
            trireme_linear_backward_weight(linear, in, out, NULL, grads, grads + 1, NULL));
    /* Both gradients at once. The input has 3 by 4 elements, the rank's output 3 by 3. */
    float dx[12] = {7}, dw[12] = {7}, db[3] = {7};
    REFUSED(bad, "input is NULL but holds 48 bytes",
            trireme_linear_backward(linear, NULL, out, weight, dx, NULL, dw, db, NULL));
    REFUSED(bad, "output_gradient is NULL but holds 36 bytes",
            trireme_linear_backward(linear, in, NULL, weight, dx, NULL, dw, db, NULL));
    REFUSED(bad, "weight is NULL but holds 48 bytes",
            trireme_linear_backward(linear, in, out, NULL, dx, NULL, dw, db, NULL));
    REFUSED(bad, "input_gradient is NULL but holds 48 bytes",
            trireme_linear_backward(linear, in, out, weight, NULL, NULL, dw, db, NULL));
    REFUSED(bad, "weight_gradient is NULL but holds 48 bytes",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, NULL, db, NULL));
    REFUSED(bad, "bias_gradient is NULL but holds 12 bytes",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, dw, NULL, NULL));
    REFUSED(bad, "bias_gradient is given, but layer \"bare\" has no BIAS",
            trireme_linear_backward(bare, in, out, weight, dx, NULL, dw, db, NULL));
    REFUSED(bad, "input_gradient and input overlap",
            trireme_linear_backward(linear, in, out, weight, in, NULL, dw, db, NULL));
    REFUSED(bad, "weight_gradient and weight overlap",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, weight, db, NULL));
    REFUSED(bad, "input_gradient and weight_gradient overlap",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, dx + 11, db, NULL));
    REFUSED(bad, "options.flags is 2",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, dw, db, &pass));
    REFUSED(TRIREME_ERROR_INVALID_STATE,
            "backward input pass 1 of layer \"x\" needs as many forward passes, but there were 0",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, dw, db, NULL));
    assert_true(dx[0] == 7 && dw[0] == 7 && db[0] == 7);
    assert_true(out[0] == 7);
    assert_int_equal(trireme_batch_begin(), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_STATE, "batch",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, dw, db, NULL));
    REFUSED(TRIREME_ERROR_INVALID_STATE, "batch",
            trireme_linear_forward(linear, in, weight, bias, out, NULL, NULL));
    assert_int_equal(trireme_batch_end(), TRIREME_OK);
    /* A forward pass has one pass for the weight. A call for both is refused behind it. */
    assert_int_equal(trireme_linear_forward(linear, in, weight, bias, out, NULL, NULL), TRIREME_OK);
    assert_int_equal(trireme_linear_backward_weight(linear, in, out, NULL, dw, db, NULL),
                     TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_STATE, "backward weight pass 2 of layer \"x\" needs",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, dw, db, NULL));
    trireme_linear_destroy(linear);
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "is not live",
            trireme_linear_backward(linear, in, out, weight, dx, NULL, dw, db, NULL));
    trireme_linear_destroy(bare);
    trireme_tensor_destroy(tensor);
    free_rank_pair(pair);
}

static void calls_for_both_gradients_of_an_mlp_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    trireme_mlp *mlp = NULL;
    assert_int_equal(make_layer_tensor(pair.ranks[0], 0, 0, TRIREME_GEMM_KIND_BUILTIN, &tensor),
                     TRIREME_OK);
    trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
    options.name = "x";
    options.activation = TRIREME_ACTIVATION_KIND_RELU;
    options.dtype = TRIREME_DTYPE_F32;
    options.rows = options.input = options.output = 2;
    options.hidden = 4;
    assert_int_equal(trireme_mlp_create(tensor, &options, &mlp), TRIREME_OK);
    float in[4] = {0}, out[4] = {0}, weight[8] = {0}, other[8] = {0}, kept[256] = {0};
    trireme_mlp_weights weights = TRIREME_MLP_WEIGHTS_INIT;
    trireme_mlp_gradients gradients = TRIREME_MLP_GRADIENTS_INIT;
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    weights.fc1_weight = weight;
    weights.fc2_weight = other;
    float dx[4] = {7}, dw[2][8] = {{7}};
    gradients.fc1_weight = dw[0];
    gradients.fc2_weight = dw[1];
    REFUSED(bad, "weights is NULL",
            trireme_mlp_backward(mlp, in, out, NULL, dx, kept, &gradients, NULL));
    REFUSED(bad, "gradients is NULL",
            trireme_mlp_backward(mlp, in, out, &weights, dx, kept, NULL, NULL));
    REFUSED(bad, "input is NULL",
            trireme_mlp_backward(mlp, NULL, out, &weights, dx, kept, &gradients, NULL));
    REFUSED(bad, "output_gradient is NULL",
            trireme_mlp_backward(mlp, in, NULL, &weights, dx, kept, &gradients, NULL));
    REFUSED(bad, "input_gradient is NULL",
            trireme_mlp_backward(mlp, in, out, &weights, NULL, kept, &gradients, NULL));
    REFUSED(bad, "kept is NULL",
            trireme_mlp_backward(mlp, in, out, &weights, dx, NULL, &gradients, NULL));
    REFUSED(bad, "input_gradient and input overlap",
            trireme_mlp_backward(mlp, in, out, &weights, in, kept, &gradients, NULL));
    gradients.fc1_weight = weight;
    REFUSED(bad, "gradients.fc1_weight and weights.fc1_weight overlap",
            trireme_mlp_backward(mlp, in, out, &weights, dx, kept, &gradients, NULL));
    gradients.fc1_weight = NULL;
    REFUSED(bad, "gradients.fc1_weight is NULL",
            trireme_mlp_backward(mlp, in, out, &weights, dx, kept, &gradients, NULL));
    gradients.fc1_weight = dw[0];
    gradients.fc1_bias = in;
    REFUSED(bad, "the gradient of a bias is given, but layer \"x\" has no BIAS",
            trireme_mlp_backward(mlp, in, out, &weights, dx, kept, &gradients, NULL));
    gradients.fc1_bias = NULL;
    gradients.reserved = 1;
    REFUSED(bad, "gradients.reserved is 1",
            trireme_mlp_backward(mlp, in, out, &weights, dx, kept, &gradients, NULL));
    gradients.reserved = 0;
    trireme_pass_options pass = TRIREME_PASS_OPTIONS_INIT;
    pass.flags = 2;
    REFUSED(bad, "options.flags is 2",
            trireme_mlp_backward(mlp, in, out, &weights, dx, kept, &gradients, &pass));
    REFUSED(TRIREME_ERROR_INVALID_STATE, "backward pass 1 of layer \"x\" needs as many forward",
            trireme_mlp_backward(mlp, in, out, &weights, dx, kept, &gradients, NULL));
    assert_true(dx[0] == 7 && dw[0][0] == 7);
    trireme_mlp_destroy(mlp);
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "is not live",
            trireme_mlp_backward(mlp, in, out, &weights, dx, kept, &gradients, NULL));
    trireme_tensor_destroy(tensor);
    free_rank_pair(pair);
}

/* --- ranks that differ ------------------------------------------------------------------------ */

struct trial {
    int which;
    atomic_int arrived; /* ranks that have made the calls before */
    struct verdict verdicts[4];
};

static void call_otherwise(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct layer_spec spec = usual;
    uint32_t tensor_flags = 0, row_tile = 2;
    spec.kind = TRIREME_LINEAR_KIND_ROW;
    spec.flags = TRIREME_LINEAR_FLAG_INPUT_SPLIT;
    if (rank == 1) {
        switch (trial->which) {
            case 0: spec.rows = 5; break;
            case 1: spec.input = 5; break;
            case 2: spec.output = 7; break;
            case 3: spec.dtype = TRIREME_DTYPE_BF16; break;
            case 4: spec.flags |= TRIREME_LINEAR_FLAG_BIAS; break;
            case 5: spec.flags = 0; break;
            case 6: row_tile = 1; break;
            case 7: row_tile = 0; break;
            default: tensor_flags = TRIREME_TENSOR_FLAG_SEQUENCE; break;
        }
    }
    trireme_tensor *tensor = NULL;
    trireme_linear *linear = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_tiled_tensor(communicator, 0, tensor_flags, TRIREME_GEMM_KIND_BUILTIN,
                                    row_tile, &tensor));
    trireme_linear_options options = linear_options(&spec, "proj");
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &options, &linear));
    double in[64] = {0}, weight[64] = {0}, bias[64] = {0}, out[64] = {0};
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  trireme_linear_forward(linear, in, weight,
                                         (spec.flags & TRIREME_LINEAR_FLAG_BIAS) != 0 ? bias : NULL,
                                         out, NULL, NULL));
    EXPECT(verdict, says("forward of layer \"proj\""));
    trireme_linear_destroy(linear);
    trireme_tensor_destroy(tensor);
}

static void ranks_that_differ_all_get_mismatch(void **state) {
    (void)state;
    for (int which = 0; which < 9; ++which) {
        struct trial trial = {.which = which};
        run_ranks(3, call_otherwise, &trial);
        assert_verdicts(trial.verdicts, 3);
    }
}

/* Rank 1 makes the two calls where the others make one. The call for the input's gradient is the
 * first one that moves bytes in all of them. */
static void make_two_calls(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const uint32_t tensor_flags = trial->which % 2 == 0 ? 0 : TRIREME_TENSOR_FLAG_SEQUENCE;
    const bool row = trial->which == 3;
    struct layer_spec spec = usual;
    spec.kind = row ? TRIREME_LINEAR_KIND_ROW : TRIREME_LINEAR_KIND_COLUMN;
    spec.flags = row ? TRIREME_LINEAR_FLAG_INPUT_SPLIT : 0;
    trireme_tensor *tensor = NULL;
    trireme_linear *linear = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_tiled_tensor(communicator, 0, tensor_flags, TRIREME_GEMM_KIND_BUILTIN,
                                    trial->which == 2 ? UINT32_MAX : 2, &tensor));
    const trireme_linear_options options = linear_options(&spec, "proj");
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &options, &linear));
    float in[64] = {0}, weight[64] = {0}, out[64] = {0}, dx[64], dw[64], kept[64];
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_linear_forward(linear, in, weight, NULL, out, kept, NULL));
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH,
                  rank == 1
                      ? trireme_linear_backward_input(linear, out, weight, dx, kept, NULL)
                      : trireme_linear_backward(linear, in, out, weight, dx, kept, dw, NULL, NULL));
    EXPECT(verdict, says(" of layer \"proj\""));
    trireme_linear_destroy(linear);
    trireme_tensor_destroy(tensor);
}

static void ranks_with_one_call_and_with_two_get_mismatch(void **state) {
    (void)state;
    for (int which = 0; which < 4; ++which) {
        struct trial trial = {.which = which};
        run_ranks(3, make_two_calls, &trial);
        assert_verdicts(trial.verdicts, 3);
    }
}

/* --- products that fail ----------------------------------------------------------------------- */

static int32_t fail_on_rank_1(const trireme_product *product, void *user_data) {
    (void)product;
    return *(const int *)user_data == 1 ? 42 : 0;
}

static void fail_product(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    trireme_tensor *tensor = NULL;
    trireme_linear *linear = NULL;
    trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
    gemm.kind = TRIREME_GEMM_KIND_CALLER;
    gemm.callback = fail_on_rank_1;
    gemm.user_data = &rank;
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    options.gemm = &gemm;
    options.timeout_ns = 20ull * 1000 * 1000 * 1000;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_create(communicator, &options, &tensor));
    struct layer_spec spec = usual;
    /* In a pass that moves bytes, and in one that does not. */
    spec.kind = trial->which == 0 ? TRIREME_LINEAR_KIND_ROW : TRIREME_LINEAR_KIND_COLUMN;
    spec.flags = 0;
    const trireme_linear_options layer = linear_options(&spec, "down_proj");
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &layer, &linear));
    float in[64] = {0}, weight[64] = {0}, out[64] = {0};
    trireme_status status = trireme_linear_forward(linear, in, weight, NULL, out, NULL, NULL);
    if (trial->which == 1 && rank != 1) {
        EXPECT(verdict, status == TRIREME_OK);
        status = trireme_linear_backward_input(linear, out, weight, in, NULL, NULL);
    }
    EXPECT(verdict, status == TRIREME_ERROR_CALLBACK);
    EXPECT(verdict, says("layer \"down_proj\""));
    EXPECT(verdict, says("answered 42"));
    trireme_linear_destroy(linear);
    trireme_tensor_destroy(tensor);
}

static void a_failed_product_fails_all_ranks(void **state) {
    (void)state;
    for (int which = 0; which < 2; ++which) {
        struct trial trial = {.which = which};
        run_ranks(3, fail_product, &trial);
        assert_verdicts(trial.verdicts, 3);
    }
}

struct tile_failure {
    int rank, calls; /* calls that this rank has made */
};

static int32_t fail_in_a_tile(const trireme_product *product, void *user_data) {
    struct tile_failure *const failure = user_data;
    for (uint64_t i = 0; i < product->rows; ++i) {
        memset((float *)product->result + i * product->result_step, 0,
               product->columns * sizeof(float));
    }
    return failure->rank == 1 && --failure->calls == 0 ? 42 : 0;
}

/* A product of rank 1 fails, one tile after the other. Exchanges of earlier tiles are on their
 * way. Afterwards the arrays may be freed at once. */
static void fail_tile(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const bool row = trial->which % 2 == 0;
    struct tile_failure failure = {rank, 1 + trial->which / 2};
    trireme_tensor *tensor = NULL;
    trireme_linear *linear = NULL;
    trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
    gemm.kind = TRIREME_GEMM_KIND_CALLER;
    gemm.callback = fail_in_a_tile;
    gemm.user_data = &failure;
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    options.flags = TRIREME_TENSOR_FLAG_SEQUENCE;
    options.gemm = &gemm;
    options.row_tile = 2;
    options.timeout_ns = 20ull * 1000 * 1000 * 1000;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_create(communicator, &options, &tensor));
    struct layer_spec spec = usual;
    spec.rows = 7;
    spec.kind = row ? TRIREME_LINEAR_KIND_ROW : TRIREME_LINEAR_KIND_COLUMN;
    spec.flags = row ? TRIREME_LINEAR_FLAG_INPUT_SPLIT : TRIREME_LINEAR_FLAG_GATHERED_OUTPUT;
    const trireme_linear_options layer = linear_options(&spec, "down_proj");
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &layer, &linear));
    float *const in = calloc(64, sizeof *in), *const out = calloc(64, sizeof *out);
    float weight[64] = {0};
    EXPECT_STATUS(verdict, TRIREME_ERROR_CALLBACK,
                  trireme_linear_forward(linear, in, weight, NULL, out, NULL, NULL));
    EXPECT(verdict, says("layer \"down_proj\""));
    EXPECT(verdict, says("answered 42"));
    free(in);
    free(out);
    EXPECT_STATUS(verdict, TRIREME_ERROR_CALLBACK, trireme_barrier(communicator, NULL));
    trireme_linear_destroy(linear);
    trireme_tensor_destroy(tensor);
}

static void a_failed_product_of_any_tile_fails_all_ranks(void **state) {
    (void)state;
    for (int which = 0; which < 8; ++which) {
        struct trial trial = {.which = which};
        run_ranks(3, fail_tile, &trial);
        assert_verdicts(trial.verdicts, 3);
    }
}

/* A product of rank 1 fails in a call for both gradients: of each tile, then of the weight. The
 * exchanges of all tiles may be over before that one, so ranks may hear of it in their next call.
 */
static void fail_backward(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const int tiles = 4, number = 1 + trial->which / 2;
    struct tile_failure failure = {rank, 1000};
    trireme_tensor *tensor = NULL;
    trireme_linear *linear = NULL;
    trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
    gemm.kind = TRIREME_GEMM_KIND_CALLER;
    gemm.callback = fail_in_a_tile;
    gemm.user_data = &failure;
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    options.flags = trial->which % 2 == 0 ? 0 : TRIREME_TENSOR_FLAG_SEQUENCE;
    options.gemm = &gemm;
    options.row_tile = 2;
    options.timeout_ns = 20ull * 1000 * 1000 * 1000;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_create(communicator, &options, &tensor));
    struct layer_spec spec = usual;
    spec.rows = 7;
    spec.flags = 0;
    const trireme_linear_options layer = linear_options(&spec, "down_proj");
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &layer, &linear));
    float *const in = calloc(64, sizeof *in), *const dx = calloc(64, sizeof *dx);
    float *const out = calloc(64, sizeof *out), *const dw = calloc(64, sizeof *dw);
    float weight[64] = {0};
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_linear_forward(linear, in, weight, NULL, out, NULL, NULL));
    /* Else the failure might reach a rank in its forward pass. */
    ++trial->arrived;
    while (atomic_load(&trial->arrived) < 3) sched_yield();
    failure.calls = number;
    const trireme_status status =
        trireme_linear_backward(linear, in, out, weight, dx, NULL, dw, NULL, NULL);
    if (rank == 1 || number <= tiles || status != TRIREME_OK) {
        EXPECT(verdict, status == TRIREME_ERROR_CALLBACK);
        EXPECT(verdict, says("layer \"down_proj\""));
        EXPECT(verdict, says("answered 42"));
    }
    free(in);
    free(out);
    free(dx);
    free(dw);
    EXPECT_STATUS(verdict, TRIREME_ERROR_CALLBACK, trireme_barrier(communicator, NULL));
    trireme_linear_info info = TRIREME_LINEAR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_get_info(linear, &info));
    const uint64_t passes = status == TRIREME_OK ? 1 : 0;
    EXPECT(verdict, info.backward_input_passes == passes && info.backward_weight_passes == passes);
    trireme_linear_destroy(linear);
    trireme_tensor_destroy(tensor);
}

static void a_failed_product_of_both_gradients_fails_all_ranks(void **state) {
    (void)state;
    for (int which = 0; which < 10; ++which) {
        struct trial trial = {.which = which};
        run_ranks(3, fail_backward, &trial);
        assert_verdicts(trial.verdicts, 3);
    }
}

/* --- inside a completion callback ------------------------------------------------------------- */

struct inside {
    trireme_linear *linear, *column;
    struct verdict *verdict;
    atomic_int calls;
};

static void TRIREME_CALLCONV call_inside(trireme_status status, void *user_data) {
    struct inside *const inside = user_data;
    float in[64] = {0}, weight[64] = {0}, out[64] = {0};
    EXPECT(inside->verdict, status == TRIREME_OK);
    EXPECT_STATUS(inside->verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_linear_forward(inside->linear, in, weight, NULL, out, NULL, NULL));
    EXPECT(inside->verdict, says("a completion callback must not block"));
    float dx[64], dw[64];
    EXPECT_STATUS(inside->verdict, TRIREME_ERROR_INVALID_STATE,
                  trireme_linear_backward(inside->column, in, out, weight, dx, NULL, dw, NULL,
                                          NULL));
    EXPECT(inside->verdict, says("a completion callback must not block"));
    ++inside->calls;
}

/* Tiles could be started there, but not waited for. The group lives on. */
static void call_in_callback(trireme_communicator *communicator, int rank, void *context) {
    const struct trial *const trial = context;
    struct verdict *const verdict = &((struct trial *)context)->verdicts[rank];
    trireme_tensor *tensor = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_tiled_tensor(communicator, 0, 0, TRIREME_GEMM_KIND_BUILTIN,
                                    trial->which == 0 ? 1 : UINT32_MAX, &tensor));
    struct layer_spec spec = usual;
    spec.kind = TRIREME_LINEAR_KIND_ROW;
    spec.flags = TRIREME_LINEAR_FLAG_INPUT_SPLIT;
    const trireme_linear_options layer = linear_options(&spec, "layer");
    struct inside inside = {.verdict = verdict};
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &layer, &inside.linear));
    spec.kind = TRIREME_LINEAR_KIND_COLUMN;
    spec.flags = 0;
    const trireme_linear_options column = linear_options(&spec, "column");
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_linear_create(tensor, &column, &inside.column));
    float in[64] = {0}, weight[64] = {0}, out[64] = {0}, dx[64], dw[64];
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_linear_forward(inside.column, in, weight, NULL, out, NULL, NULL));
    trireme_request *request = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier_start(communicator, NULL, &request));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_on_complete(request, call_inside, &inside));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_request_wait(request, LONG_NS));
    trireme_request_destroy(request);
    /* The wait may end before the callback has. */
    while (atomic_load(&inside.calls) == 0) sched_yield();
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_barrier(communicator, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_linear_forward(inside.linear, in, weight, NULL, out, NULL, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_linear_backward(inside.column, in, out, weight, dx, NULL, dw, NULL,
                                          NULL));
    EXPECT(verdict, inside.calls == 1);
    trireme_linear_destroy(inside.linear);
    trireme_linear_destroy(inside.column);
    trireme_tensor_destroy(tensor);
}

static void tiles_are_refused_inside_a_callback(void **state) {
    (void)state;
    for (int which = 0; which < 2; ++which) {
        struct trial trial = {.which = which};
        run_ranks(3, call_in_callback, &trial);
        assert_verdicts(trial.verdicts, 3);
    }
}

/* --- a product of the caller ------------------------------------------------------------------ */

static int32_t count_products(const trireme_product *product, void *user_data) {
    struct plain_product plain = {.dtype = product->dtype,
                                  .left_transposed = product->left_transposed != 0,
                                  .right_transposed = product->right_transposed != 0,
                                  .add = product->add != 0,
                                  .rows = product->rows,
                                  .columns = product->columns,
                                  .depth = product->depth,
                                  .left = product->left,
                                  .right = product->right,
                                  .left_step = product->left_step,
                                  .right_step = product->right_step,
                                  .result = product->result,
                                  .result_step = product->result_step};
    multiply_plainly(&plain);
    ++*(int *)user_data;
    return product->struct_size >= 96 && product->reserved == 0 ? 0 : 1;
}

/* One rank with 4 blocks, as its caller computes it. A NaN in the input passes. */
static void a_caller_makes_the_products(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    trireme_linear *linear = NULL;
    int calls = 0;
    trireme_gemm_options gemm = TRIREME_GEMM_OPTIONS_INIT;
    gemm.kind = TRIREME_GEMM_KIND_CALLER;
    gemm.callback = count_products;
    gemm.user_data = &calls;
    trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
    options.gemm = &gemm;
    options.blocks = 4;
    assert_int_equal(trireme_tensor_create(pair.ranks[0], &options, &tensor), TRIREME_OK);
    struct layer_spec spec = usual;
    spec.blocks = 4;
    spec.gemm = TRIREME_GEMM_KIND_BUILTIN;
    const trireme_linear_options layer = linear_options(&spec, "x");
    assert_int_equal(trireme_linear_create(tensor, &layer, &linear), TRIREME_OK);
    struct layer_arrays all = make_layer_arrays(&spec);
    struct matrix weight = weight_part(&spec, &all.weight, 0);
    struct matrix bias = bias_part(&spec, &all.bias, 0);
    struct matrix out = make_matrix(spec.dtype, 3, 3);
    assert_int_equal(trireme_linear_forward(linear, all.input.data, weight.data, bias.data,
                                            out.data, NULL, NULL),
                     TRIREME_OK);
    assert_int_equal(calls, 2);
    struct part part = {0, 3, 0, 3, 1};
    struct matrix wanted = take_part(&all.output, part);
    assert_true(has_bits(&out, &wanted));
    set_number(spec.dtype, NAN, all.input.data);
    assert_int_equal(trireme_linear_forward(linear, all.input.data, weight.data, bias.data,
                                            out.data, NULL, NULL),
                     TRIREME_OK);
    for (uint64_t j = 0; j < 3; ++j) {
        assert_true(isnan(*(const float *)element_at(&out, 0, j)));
        assert_memory_equal(element_at(&out, 1, j), element_at(&wanted, 1, j), 4);
    }
    free(weight.data);
    free(bias.data);
    free(out.data);
    free(wanted.data);
    free_layer_arrays(&all);
    trireme_linear_destroy(linear);
    trireme_tensor_destroy(tensor);
    free_rank_pair(pair);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(providers_are_checked),
        cmocka_unit_test(providers_are_told),
        cmocka_unit_test(linear_options_are_checked),
        cmocka_unit_test(calls_are_checked),
        cmocka_unit_test(calls_for_both_gradients_of_an_mlp_are_checked),
        cmocka_unit_test(ranks_that_differ_all_get_mismatch),
        cmocka_unit_test(ranks_with_one_call_and_with_two_get_mismatch),
        cmocka_unit_test(a_failed_product_fails_all_ranks),
        cmocka_unit_test(a_failed_product_of_any_tile_fails_all_ranks),
        cmocka_unit_test(a_failed_product_of_both_gradients_fails_all_ranks),
        cmocka_unit_test(tiles_are_refused_inside_a_callback),
        cmocka_unit_test(a_caller_makes_the_products),
    };
    return cmocka_run_group_tests_name("layers_refusals", tests, NULL, NULL);
}
