/* Vocabularies: bad arguments, tokens that are no class, ranks that differ, ranks that do not come.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>

#include "ranks.h"
#include "vocabularies.inc"

#define MOST 8
#define UNTOUCHED ((trireme_vocabulary *)(uintptr_t)0x6b6b)

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

static const struct spec usual = {.world_size = 2,
                                  .classes = 10,
                                  .width = 3,
                                  .rows = 4,
                                  .dtype = TRIREME_DTYPE_F32,
                                  .token_dtype = TRIREME_DTYPE_I32,
                                  .ignores = true};

static void options_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    trireme_tensor *tensor = NULL;
    trireme_vocabulary *vocabulary = UNTOUCHED;
    assert_int_equal(make_tensor(pair.ranks[0], 0, &tensor), TRIREME_OK);
#define REFUSES(change, status, words)                                                    \
    do {                                                                                  \
        trireme_vocabulary_options options = options_of(&usual, "x");                     \
        change;                                                                           \
        REFUSED(status, words, trireme_vocabulary_create(tensor, &options, &vocabulary)); \
    } while (0)
#define BAD(change, words) REFUSES(change, TRIREME_ERROR_INVALID_ARGUMENT, words)
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "options is NULL",
            trireme_vocabulary_create(tensor, NULL, &vocabulary));
    BAD(options.struct_size = 8, "options.struct_size is 8");
    BAD(options.flags = 3, "but for TRIREME_VOCABULARY_FLAG_IGNORE, is 2");
    BAD(options.reserved = 1, "options.reserved is 1");
    BAD(options.name = NULL, "options.name is NULL");
    BAD(options.name = "", "options.name is empty");
    BAD(options.name = "0123456789012345678901234567890123456789012345678901234567890123",
        "options.name has 64 bytes, more than 63");
    BAD(options.name = "\xc3(", "options.name is not UTF-8");
    BAD(options.name = "a\nb", "options.name, \"a?b\", has a control character");
    BAD(options.classes = 0, "options.classes is 0, must be 1 or more");
    BAD(options.classes = 1ull << 63, "options.classes is 9223372036854775808, more than");
    BAD(options.label_smoothing = -0.1, "options.label_smoothing is -0.1");
    BAD(options.label_smoothing = 1.5, "options.label_smoothing is 1.5, not in 0 to 1");
    BAD(options.label_smoothing = NAN, "options.label_smoothing is nan");
    BAD(options.z_loss = -1, "options.z_loss is -1, must be finite, and 0 or more");
    BAD(options.z_loss = INFINITY, "options.z_loss is inf");
    BAD(options.z_loss = NAN, "options.z_loss is nan");
    BAD(options.flags = 0, "options.ignored_target is -100, but must be 0 without");
    BAD(options.width = 1ull << 62, "the weight has more bytes than memory can hold");
    BAD((options.width = 1ull << 40, options.rows = 1ull << 40),
        "the array of embeddings has more bytes");
    BAD((options.classes = 1ull << 40, options.width = 0, options.rows = 1ull << 40),
        "the array of logits has more bytes");
    BAD((options.width = 0, options.classes = 1, options.rows = 1ull << 55),
        "the array that ranks exchange has more bytes than memory can hold");
    REFUSES(options.dtype = TRIREME_DTYPE_I32, TRIREME_ERROR_UNSUPPORTED,
            "options.dtype is 5 (i32): a vocabulary is of f32, f64, f16 or bf16");
    REFUSES(options.dtype = 0, TRIREME_ERROR_UNSUPPORTED, "options.dtype is 0");
    REFUSED(TRIREME_ERROR_INVALID_ARGUMENT, "out_vocabulary is NULL",
            make_vocabulary(pair.ranks[0], &usual, "x", NULL));
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "tensor is NULL",
            trireme_vocabulary_create(NULL, NULL, &vocabulary));
    assert_ptr_equal(vocabulary, UNTOUCHED);
    trireme_tensor_destroy(tensor);
    free_rank_pair(pair);
#undef BAD
#undef REFUSES
}

static void arguments_of_passes_are_checked(void **state) {
    (void)state;
    const struct rank_pair pair = make_rank_pair();
    const trireme_status bad = TRIREME_ERROR_INVALID_ARGUMENT;
    trireme_vocabulary *vocabulary = NULL;
    float memory[64];
    for (int i = 0; i < 64; ++i) memory[i] = -1;
    float *const rows = memory, *const out = memory + 24, *const kept = memory + 48;
    const int32_t tokens[5] = {0, 9, 3, 3, 1};
    int32_t zeros[16] = {0};
    assert_int_equal(make_vocabulary(pair.ranks[0], &usual, "x", &vocabulary), TRIREME_OK);
#define EMBED(tokens, dtype, count, weight, output) \
    trireme_vocabulary_embed(vocabulary, tokens, dtype, count, weight, output, NULL)
#define ADD(tokens, dtype, count, gradients, sums) \
    trireme_vocabulary_embed_backward(vocabulary, tokens, dtype, count, gradients, sums)
#define LOSS(targets, dtype, count, logits, losses, kept) \
    trireme_vocabulary_loss(vocabulary, targets, dtype, count, logits, losses, kept, NULL)
#define SLOPE(targets, dtype, count, logits, kept, given, gradients)                         \
    trireme_vocabulary_loss_backward(vocabulary, targets, dtype, count, logits, kept, given, \
                                     gradients)
    const trireme_dtype i32 = TRIREME_DTYPE_I32;
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "the dtype of tokens is 11, must be TRIREME_DTYPE_I32",
            EMBED(tokens, TRIREME_DTYPE_F32, 4, rows, out));
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "the dtype of tokens is 0", ADD(tokens, 0, 4, rows, out));
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "the dtype of targets is 4",
            LOSS(tokens, TRIREME_DTYPE_U16, 4, rows, out, kept));
    REFUSED(TRIREME_ERROR_UNSUPPORTED, "the dtype of targets is -1",
            SLOPE(tokens, -1, 4, rows, kept, NULL, out));
    REFUSED(bad, "rows is 5, above options.rows of the vocabulary, 4",
            EMBED(tokens, i32, 5, rows, out));
    REFUSED(bad, "rows is 18446744073709551615", LOSS(tokens, i32, UINT64_MAX, rows, out, kept));
    REFUSED(bad, "tokens is NULL but holds 4 numbers", EMBED(NULL, i32, 4, rows, out));
    REFUSED(bad, "targets is NULL but holds 4 numbers", LOSS(NULL, i32, 4, rows, out, kept));
    REFUSED(bad, "weight is NULL but holds 60 bytes", EMBED(tokens, i32, 4, NULL, out));
    REFUSED(bad, "output is NULL but holds 48 bytes", EMBED(tokens, i32, 4, rows, NULL));
    REFUSED(bad, "gradients is NULL but holds 48 bytes", ADD(tokens, i32, 4, NULL, out));
    REFUSED(bad, "weight_gradient is NULL but holds 60 bytes", ADD(tokens, i32, 4, rows, NULL));
    REFUSED(bad, "logits is NULL but holds 80 bytes", LOSS(tokens, i32, 4, NULL, out, kept));
    REFUSED(bad, "losses is NULL but holds 16 bytes", LOSS(tokens, i32, 4, rows, NULL, kept));
    REFUSED(bad, "kept is NULL but holds 64 bytes", SLOPE(tokens, i32, 4, rows, NULL, NULL, out));
    REFUSED(bad, "logits is NULL", SLOPE(tokens, i32, 4, NULL, kept, NULL, out));
    REFUSED(bad, "gradients is NULL", SLOPE(tokens, i32, 4, rows, kept, NULL, NULL));
    REFUSED(bad, "weight and output overlap", EMBED(tokens, i32, 4, rows, rows + 14));
    REFUSED(bad, "tokens and output overlap", EMBED(zeros, i32, 4, rows, zeros + 3));
    REFUSED(bad, "gradients and weight_gradient overlap", ADD(tokens, i32, 4, rows, rows + 11));
    REFUSED(bad, "logits and losses overlap", LOSS(tokens, i32, 4, rows, rows + 19, kept));
    REFUSED(bad, "kept and losses overlap", LOSS(tokens, i32, 4, rows, kept, kept));
    REFUSED(bad, "logits and kept overlap", LOSS(tokens, i32, 4, rows, out, rows + 4));
    REFUSED(bad, "logits and gradients overlap; in place, they are the same memory",
            SLOPE(tokens, i32, 4, rows, kept, NULL, rows + 1));
    REFUSED(bad, "kept and gradients overlap", SLOPE(tokens, i32, 4, rows, out, NULL, out));
    REFUSED(bad, "loss_gradients and gradients overlap",
            SLOPE(tokens, i32, 4, rows, kept, out, out));
    /* Tokens that are no class, the ignored target among them. The local call comes first: it
     * does not wait for the peer where a token is taken by mistake. */
    int32_t odd[4] = {0, 9, 10, 3};
    REFUSED(bad, "targets[2] is 10", SLOPE(odd, i32, 4, rows, kept, NULL, out));
    REFUSED(bad, "tokens[2] is 10, not a class: the vocabulary has the classes 0 to 9",
            EMBED(odd, i32, 4, rows, out));
    REFUSED(bad, "targets[2] is 10, not a class", LOSS(odd, i32, 4, rows, out, kept));
    odd[2] = IGNORED;
    REFUSED(bad, "tokens[2] is -100", EMBED(odd, i32, 4, rows, out));
    REFUSED(bad, "tokens[2] is -100", ADD(odd, i32, 4, rows, out));
    const int64_t large[1] = {(1ll << 32) + 1};
    REFUSED(bad, "tokens[0] is 4294967297", EMBED(large, TRIREME_DTYPE_I64, 1, rows, out));
    trireme_pass_options options = TRIREME_PASS_OPTIONS_INIT;
    options.flags = 1;
    REFUSED(bad, "options.flags is 1",
            trireme_vocabulary_embed(vocabulary, tokens, i32, 4, rows, out, &options));
    options.struct_size = 3;
    REFUSED(bad, "options.struct_size is 3",
            trireme_vocabulary_loss(vocabulary, tokens, i32, 4, rows, out, kept, &options));
    REFUSED(bad, "info is NULL", trireme_vocabulary_get_info(vocabulary, NULL));
    assert_int_equal(trireme_batch_begin(), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_STATE, "batch", EMBED(tokens, i32, 4, rows, out));
    REFUSED(TRIREME_ERROR_INVALID_STATE, "batch", LOSS(tokens, i32, 4, rows, out, kept));
    assert_int_equal(trireme_batch_end(), TRIREME_OK);
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "a communicator handle was given where a vocabulary",
            trireme_vocabulary_embed((trireme_vocabulary *)pair.ranks[0], tokens, i32, 4, rows, out,
                                     NULL));
    for (int i = 0; i < 64; ++i) assert_true(memory[i] == -1);
    trireme_communicator_destroy(pair.ranks[0]);
    REFUSED(TRIREME_ERROR_INVALID_STATE, "embed pass of vocabulary \"x\"",
            EMBED(tokens, i32, 4, rows, out));
    REFUSED(TRIREME_ERROR_INVALID_STATE, "loss pass of vocabulary \"x\"",
            LOSS(tokens, i32, 4, rows, out, kept));
    assert_int_equal(ADD(tokens, i32, 4, rows, out), TRIREME_OK);
    trireme_vocabulary_destroy(vocabulary);
    trireme_vocabulary_destroy(vocabulary);
    trireme_vocabulary_destroy(NULL);
    REFUSED(TRIREME_ERROR_INVALID_HANDLE, "is not live", ADD(tokens, i32, 4, rows, out));
    free_rank_pair(pair);
}

/* --- ranks that differ -------------------------------------------------------------------------
 */

enum difference {
    NAME,
    CLASSES,
    WIDTH,
    MOST_ROWS,
    DTYPE,
    SMOOTHING,
    Z_LOSS,
    IGNORING,
    IGNORED_TARGET,
    BLOCKS,
    ROW_COUNT,
    ONE_TOKEN,
    TWO_TOKENS,
    PASS,
    OTHER_CALL,
    DIFFERENCES
};

struct quarrel {
    int world_size;
    bool embeds;
    enum difference difference;
    struct verdict verdicts[MOST];
};

/* All but the last rank agree. */
static void differ(trireme_communicator *communicator, int rank, void *context) {
    struct quarrel *const quarrel = context;
    struct verdict *const verdict = &quarrel->verdicts[rank];
    const bool odd = rank == quarrel->world_size - 1;
    const enum difference how = odd ? quarrel->difference : DIFFERENCES;
    struct spec spec = usual;
    spec.world_size = quarrel->world_size;
    spec.blocks = how == BLOCKS ? 9 : 8;
    if (how == CLASSES) spec.classes = 11;
    if (how == WIDTH) spec.width = 4;
    if (how == MOST_ROWS) spec.rows = 5;
    if (how == DTYPE) spec.dtype = TRIREME_DTYPE_F16;
    if (how == SMOOTHING) spec.smoothing = 0.1;
    if (how == Z_LOSS) spec.z_loss = 1e-4;
    if (how == IGNORING) spec.ignores = false;
    trireme_tensor *tensor = NULL;
    trireme_vocabulary *vocabulary = NULL;
    trireme_vocabulary_options options = options_of(&spec, how == NAME ? "head 2" : "head 1");
    if (how == IGNORED_TARGET) options.ignored_target = -1;
    EXPECT_STATUS(verdict, TRIREME_OK, make_tensor(communicator, spec.blocks, &tensor));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_vocabulary_create(tensor, &options, &vocabulary));
    /* Tokens 1 and 2 are of the same rank, so that all sizes stay as they are. */
    int32_t tokens[4] = {8, 1, 1, 3};
    if (how == ONE_TOKEN) tokens[0] = 9;
    if (how == TWO_TOKENS) tokens[0] = 1, tokens[1] = 8;
    const uint64_t rows = how == ROW_COUNT ? 3 : 4;
    const bool embeds = quarrel->embeds != (how == PASS);
    double memory[256] = {0}, output[64], kept[8];
    trireme_status status = TRIREME_OK;
    if (how == OTHER_CALL) {
        uint64_t counts[MOST];
        for (int i = 0; i < spec.world_size; ++i) counts[i] = 3;
        status =
            trireme_all_gather_v(communicator, memory, output, counts, TRIREME_DTYPE_F32, NULL);
    } else if (embeds) {
        status = trireme_vocabulary_embed(vocabulary, tokens, TRIREME_DTYPE_I32, rows, memory,
                                          output, NULL);
    } else {
        status = trireme_vocabulary_loss(vocabulary, tokens, TRIREME_DTYPE_I32, rows, memory,
                                         output, kept, NULL);
    }
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, status);
    const char *const text = trireme_last_error();
    EXPECT(verdict, strstr(text, "rank 0 called") != NULL);
    char last[32];
    snprintf(last, sizeof last, "rank %d called", quarrel->world_size - 1);
    EXPECT(verdict, strstr(text, last) != NULL);
    EXPECT(verdict, how == OTHER_CALL || strstr(text, "pass of vocabulary \"head") != NULL);
    if (quarrel->difference == ONE_TOKEN) {
        EXPECT(verdict, strstr(text, "\"head 1\" of 4 tokens #") != NULL);
        EXPECT(verdict, strstr(text, " and one of ") != NULL);
    }
    status = trireme_vocabulary_loss(vocabulary, tokens, TRIREME_DTYPE_I32, 4, memory, output, kept,
                                     NULL);
    EXPECT_STATUS(verdict, TRIREME_ERROR_MISMATCH, status);
    trireme_vocabulary_destroy(vocabulary);
    trireme_tensor_destroy(tensor);
}

static void ranks_that_differ_all_get_mismatch(void **state) {
    (void)state;
    for (int difference = 0; difference < DIFFERENCES; ++difference) {
        for (int world_size = 2; world_size <= 5; ++world_size) {
            for (int embeds = 0; embeds <= 1; ++embeds) {
                struct quarrel quarrel = {.world_size = world_size,
                                          .embeds = embeds != 0,
                                          .difference = (enum difference)difference};
                run_ranks(world_size, differ, &quarrel);
                assert_verdicts(quarrel.verdicts, world_size);
            }
        }
    }
}

/* --- ranks that do not come ----------------------------------------------------------------------
 */

struct absence {
    bool by_tensor; /* the deadline is that of the tensor object */
    bool embeds;
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
    const trireme_vocabulary_options described = options_of(&usual, "late");
    trireme_tensor *tensor = NULL;
    trireme_vocabulary *vocabulary = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_tensor_create(communicator, &options, &tensor));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_vocabulary_create(tensor, &described, &vocabulary));
    const int32_t tokens[4] = {0, 1, 2, 3};
    float memory[64] = {0}, output[12];
    EXPECT_STATUS(verdict, TRIREME_ERROR_TIMEOUT,
                  absence->embeds ? trireme_vocabulary_embed(vocabulary, tokens, TRIREME_DTYPE_I32,
                                                             4, memory, output, &pass)
                                  : trireme_vocabulary_loss(vocabulary, tokens, TRIREME_DTYPE_I32,
                                                            4, memory, output, NULL, &pass));
    const char *const text = trireme_last_error();
    atomic_store(&absence->given_up, true);
    EXPECT(verdict, strstr(text, absence->embeds ? "embed pass of vocabulary \"late\""
                                                 : "loss pass of vocabulary \"late\"") != NULL);
    EXPECT(verdict,
           strstr(text, absence->by_tensor
                            ? "the deadline is 0.05 s, timeout_ns of the tensor's options"
                            : "the deadline is 0.06 s, timeout_ns of the pass's options") != NULL);
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_last_error_info(&info));
    EXPECT(verdict, info.blamed_count == 1 && info.blamed[0] == 1);
    trireme_vocabulary_destroy(vocabulary);
    trireme_tensor_destroy(tensor);
}

static void a_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    for (int which = 0; which < 4; ++which) {
        struct absence absence = {.by_tensor = which % 2 != 0, .embeds = which / 2 != 0};
        run_ranks(2, wait_for_absent, &absence);
        assert_verdicts(absence.verdicts, 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_are_checked),
        cmocka_unit_test(arguments_of_passes_are_checked),
        cmocka_unit_test(ranks_that_differ_all_get_mismatch),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
