/* Vocabularies: embeddings to the last bit, losses and gradients of plain loops, and the same bits
 * for every number of ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ranks.h"
#include "vocabularies.inc"

#define MOST 8

static const int world_sizes[] = {1, 2, 3, 4, 5, 8};
enum { WORLD_SIZES = sizeof world_sizes / sizeof world_sizes[0] };

struct trial {
    struct spec spec;
    /* Results of one rank alone, with all classes; NULL: there are none to compare with. */
    void *losses, *gradients;
    bool keeps; /* this trial writes them */
    struct verdict verdicts[MOST];
};

static void fail_in(struct verdict *verdict, int line, const struct spec *spec, const char *what,
                    uint64_t row, double got, double wanted) {
    char text[240];
    snprintf(text, sizeof text,
             "%s in row %d: %.17g, not %.17g (%d ranks, %u blocks, %s, %d classes, s %g, z %g)",
             what, (int)row, got, wanted, spec->world_size, (unsigned)spec->blocks,
             trireme_dtype_name(spec->dtype), (int)spec->classes, spec->smoothing, spec->z_loss);
    expect_failed(verdict, __FILE__, line, text);
}

static uint64_t sent_bytes(struct verdict *verdict, trireme_communicator *communicator) {
    trireme_communicator_statistics now = TRIREME_COMMUNICATOR_STATISTICS_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_communicator_get_statistics(communicator, &now));
    return now.sent_bytes;
}

/* Ranks that share memory send just their plan. Over connections ranks pass parts of others on, so
 * all of them together send it, or more where a small exchange takes fewer messages. */
static bool is_as_planned(struct verdict *verdict, trireme_communicator *communicator,
                          uint64_t sent, uint64_t planned) {
    if (!ranks_use_transport() && !ranks_use_network()) return sent == planned;
    int64_t both[2] = {(int64_t)sent, (int64_t)planned};
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_all_reduce(communicator, both, both, 2, TRIREME_DTYPE_I64,
                                     TRIREME_REDUCTION_SUM, NULL));
    return both[0] >= both[1];
}

/* --- losses ----------------------------------------------------------------------------------- */

static void check_row(struct verdict *verdict, const struct spec *spec, int rank, uint64_t row,
                      const void *losses, const void *loss_gradients, const void *gradients) {
    const uint64_t first = cut(spec, rank), count = class_count(spec, rank);
    const size_t size = size_of(spec);
    double *const logits = malloc(spec->classes * sizeof *logits);
    if (logits == NULL) abort();
    for (uint64_t i = 0; i < spec->classes; ++i) {
        unsigned char element[8];
        put_fast(spec->dtype, logit_of(spec, row, i), element);
        logits[i] = number_at(spec->dtype, element);
    }
    const int64_t target = target_of(spec, row);
    const struct row_oracle oracle = row_of(spec, logits, target);
    const trireme_dtype loss_dtype = loss_dtype_of(spec);
    const double loss = number_at(loss_dtype, (const char *)losses + row * loss_size_of(spec));
    /* Terms of f32 have an error of two units; those of f64 are added in any order. */
    const double unit = loss_dtype == TRIREME_DTYPE_F64 ? 0x1p-48 : 0x1p-22;
    if (!(fabs(loss - oracle.loss) <= unit * (1 + fabs(oracle.loss))) ||
        (target == IGNORED && loss != 0)) {
        fail_in(verdict, __LINE__, spec, "loss", row, loss, oracle.loss);
    }
    const double given =
        number_at(loss_dtype, (const char *)loss_gradients + row * loss_size_of(spec));
    const double last = half_of_last_bit(spec->dtype);
    for (uint64_t i = 0; i < count; ++i) {
        const double got =
            number_at(spec->dtype, (const char *)gradients + (row * count + i) * size);
        const double wanted = given * gradient_of(spec, &oracle, logits, target, first + i);
        const double allowed = 1.01 * last * fabs(wanted) + unit * fabs(given) +
                               (spec->dtype == TRIREME_DTYPE_F16 ? 0x1p-25 : 0);
        /* exp(x) of f32 has an error of x/2 units, because x has one. */
        const double inexact = 16 * unit * fabs(given * exp(logits[first + i] - oracle.log_sum));
        if (!(fabs(got - wanted) <= allowed + inexact) || (target == IGNORED && got != 0)) {
            fail_in(verdict, __LINE__, spec, "gradient", row, got, wanted);
            break;
        }
    }
    free(logits);
}

/* The columns of this rank out of all. */
static bool has_columns(const struct spec *spec, int rank, const void *part, const void *whole) {
    const size_t size = size_of(spec), bytes = class_count(spec, rank) * size;
    for (uint64_t row = 0; row < spec->rows; ++row) {
        const char *const from =
            (const char *)whole + (row * spec->classes + cut(spec, rank)) * size;
        if (memcmp((const char *)part + row * bytes, from, bytes) != 0) return false;
    }
    return true;
}

static void make_losses(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const struct spec *const spec = &trial->spec;
    const uint64_t count = class_count(spec, rank);
    const size_t loss_bytes = spec->rows * loss_size_of(spec);
    const size_t bytes = spec->rows * count * size_of(spec);
    const size_t kept_bytes = spec->rows * TRIREME_VOCABULARY_KEPT_BYTES;
    void *const targets = make_tokens(spec, true), *const logits =
                                                       make_logits(spec, cut(spec, rank), count);
    void *const loss_gradients = make_loss_gradients(spec);
    void *const losses = allocate(loss_bytes), *const kept = allocate(kept_bytes);
    void *const gradients = allocate(bytes);
    trireme_vocabulary *vocabulary = NULL;
    trireme_vocabulary_info info = TRIREME_VOCABULARY_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, make_vocabulary(communicator, spec, "lm head", &vocabulary));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_vocabulary_get_info(vocabulary, &info));
    EXPECT(verdict, info.first_class == cut(spec, rank) && info.class_count == count);
    EXPECT(verdict, info.kept_bytes == kept_bytes);
    const uint64_t before = sent_bytes(verdict, communicator);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_loss(vocabulary, targets, spec->token_dtype, spec->rows,
                                          count == 0 ? NULL : logits, losses, kept, NULL));
    EXPECT(verdict, is_as_planned(verdict, communicator, sent_bytes(verdict, communicator) - before,
                                  info.loss_bytes));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_loss_backward(vocabulary, targets, spec->token_dtype,
                                                   spec->rows, logits, kept, loss_gradients,
                                                   gradients));
    EXPECT(verdict, is_guarded(losses, loss_bytes) && is_guarded(kept, kept_bytes) &&
                        is_guarded(gradients, bytes));
    for (uint64_t row = 0; row < spec->rows; ++row) {
        check_row(verdict, spec, rank, row, losses, loss_gradients, gradients);
    }
    if (trial->keeps) {
        memcpy(trial->losses, losses, loss_bytes);
        memcpy(trial->gradients, gradients, bytes);
    } else if (trial->losses != NULL) {
        EXPECT(verdict, memcmp(losses, trial->losses, loss_bytes) == 0);
        EXPECT(verdict, has_columns(spec, rank, gradients, trial->gradients));
    }
    /* In place, without kept bytes, and with gradients of 1. */
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_loss(vocabulary, targets, spec->token_dtype, spec->rows,
                                          logits, losses, NULL, NULL));
    if (trial->losses != NULL) EXPECT(verdict, memcmp(losses, trial->losses, loss_bytes) == 0);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_loss_backward(vocabulary, targets, spec->token_dtype,
                                                   spec->rows, logits, kept, loss_gradients,
                                                   logits));
    EXPECT(verdict, memcmp(logits, gradients, bytes) == 0);
    trireme_vocabulary_destroy(vocabulary);
    release(targets), release(logits), release(loss_gradients);
    release(losses), release(kept), release(gradients);
}

static void run_losses(struct spec spec, const uint32_t *blocks, size_t block_count) {
    for (size_t b = 0; b < block_count; ++b) {
        struct trial trial = {.spec = spec};
        trial.spec.blocks = blocks[b];
        trial.losses = allocate(spec.rows * loss_size_of(&spec));
        trial.gradients = allocate(spec.rows * spec.classes * size_of(&spec));
        for (int w = 0; w < WORLD_SIZES; ++w) {
            if (blocks[b] != 0 && (uint32_t)world_sizes[w] > blocks[b]) continue;
            struct trial one = trial;
            one.spec.world_size = world_sizes[w];
            one.keeps = world_sizes[w] == 1;
            /* Without blocks a sum has a summand for each rank. */
            if (blocks[b] == 0) one.losses = NULL, one.keeps = false;
            run_ranks(world_sizes[w], make_losses, &one);
            assert_verdicts(one.verdicts, world_sizes[w]);
        }
        release(trial.losses), release(trial.gradients);
    }
}

static const uint32_t all_blocks[] = {0, 1, 4, 8, 12};

static void losses_are_those_of_plain_loops(void **state) {
    (void)state;
    static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64, TRIREME_DTYPE_BF16,
                                           TRIREME_DTYPE_F16};
    static const struct {
        uint64_t classes, rows;
        double smoothing, z_loss;
        bool ignores;
    } cases[] = {{101, 6, 0, 0, false},   {1, 3, 0.1, 0.01, true}, {7, 5, 0.1, 1e-4, true},
                 {3, 0, 0.2, 0, false},   {331, 4, 1, 0, false},   {64, 9, 0, 0.25, true},
                 {200, 1, 0.3, 0, false}, {2, 7, 0, 0, true}};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; ++d) {
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; ++c) {
            if (is_quick() && (c + d) % 3 != 0) continue;
            const struct spec spec = {.classes = cases[c].classes,
                                      .rows = cases[c].rows,
                                      .dtype = dtypes[d],
                                      .token_dtype =
                                          (c + d) % 2 == 0 ? TRIREME_DTYPE_I64 : TRIREME_DTYPE_I32,
                                      .smoothing = cases[c].smoothing,
                                      .z_loss = cases[c].z_loss,
                                      .ignores = cases[c].ignores,
                                      .salt = 10 * c + d};
            run_losses(spec, all_blocks, sizeof all_blocks / sizeof all_blocks[0]);
        }
    }
}

static void a_vocabulary_of_50257_classes_is_split(void **state) {
    (void)state;
    const struct spec spec = {.classes = 50257,
                              .rows = 3,
                              .dtype = TRIREME_DTYPE_F32,
                              .token_dtype = TRIREME_DTYPE_I64,
                              .smoothing = 0.1,
                              .z_loss = 1e-4,
                              .salt = 99};
    static const uint32_t blocks[] = {8, 12};
    run_losses(spec, blocks, is_quick() ? 1 : 2);
}

/* --- numbers that are not finite ----------------------------------------------------------------
 */

enum { SPECIAL_ROWS = 8, SPECIAL_CLASSES = 40 };

/* The logit at one place. Each row has the target 20. */
static double special_logit(uint64_t row, uint64_t class) {
    const double usual = (double)(class % 7) - 3;
    switch (row) {
        case 0: return class == 33 ? NAN : usual;
        case 1: return class == 2 ? INFINITY : usual;
        case 2: return -INFINITY;
        case 3: return class == 20 ? -INFINITY : usual; /* the target */
        case 4: return class % 2 == 1 ? -INFINITY : usual;
        case 5: return class == 20 ? NAN : usual; /* ignored */
        case 6: return class == 39 ? NAN : class == 0 ? INFINITY : usual;
        default: return class == 20 ? usual : -INFINITY;
    }
}

/* The tests' own decoder has finite numbers alone. */
static double any_number_at(trireme_dtype dtype, const void *element) {
    uint16_t bits = 0;
    if (dtype == TRIREME_DTYPE_F64 || dtype == TRIREME_DTYPE_F32) return number_at(dtype, element);
    memcpy(&bits, element, sizeof bits);
    const uint16_t infinity = dtype == TRIREME_DTYPE_F16 ? 0x7c00 : 0x7f80;
    if ((bits & 0x7fff) > infinity) return NAN;
    return (bits & 0x7fff) == infinity ? INFINITY : number_at(dtype, element);
}

static void make_special_losses(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const struct spec *const spec = &trial->spec;
    const uint64_t first = cut(spec, rank), count = class_count(spec, rank);
    const size_t size = size_of(spec), loss_size = loss_size_of(spec);
    const int32_t targets[SPECIAL_ROWS] = {20, 20, 20, 20, 20, IGNORED, 20, 20};
    unsigned char *const logits = allocate(SPECIAL_ROWS * count * size);
    for (uint64_t row = 0; row < SPECIAL_ROWS; ++row) {
        for (uint64_t i = 0; i < count; ++i) {
            const double value = special_logit(row, first + i);
            unsigned char *const to = logits + (row * count + i) * size;
            /* The tests' own encoder has finite numbers alone. */
            const uint64_t infinity = spec->dtype == TRIREME_DTYPE_F64   ? 0x7ff0000000000000u
                                      : spec->dtype == TRIREME_DTYPE_F32 ? 0x7f800000u
                                      : spec->dtype == TRIREME_DTYPE_F16 ? 0x7c00u
                                                                         : 0x7f80u;
            const uint64_t sign = 1ull << (8 * size - 1);
            const uint64_t bits = isnan(value) ? (infinity | 1 | sign)
                                  : value > 0  ? infinity
                                               : (infinity | sign);
            if (isfinite(value)) {
                put_number(spec->dtype, value, to);
            } else {
                memcpy(to, &bits, size);
            }
        }
    }
    unsigned char *const gradients = allocate(SPECIAL_ROWS * count * size);
    unsigned char losses[SPECIAL_ROWS * 8];
    double kept[SPECIAL_ROWS][2];
    trireme_vocabulary *vocabulary = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_vocabulary(communicator, spec, "special", &vocabulary));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_loss(vocabulary, targets, TRIREME_DTYPE_I32, SPECIAL_ROWS,
                                          logits, losses, kept, NULL));
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_loss_backward(vocabulary, targets, TRIREME_DTYPE_I32,
                                                   SPECIAL_ROWS, logits, kept, NULL, gradients));
    for (uint64_t row = 0; row < SPECIAL_ROWS; ++row) {
        const double loss = number_at(loss_dtype_of(spec), losses + row * loss_size);
        const bool none = row < 3 || row == 6, masked = spec->smoothing > 0 && row > 3;
        if (row == 5             ? loss != 0
            : none               ? !isnan(loss)
            : row == 3 || masked ? !(isinf(loss) && loss > 0)
                                 : !isfinite(loss)) {
            fail_in(verdict, __LINE__, spec, "loss", row, loss, 0);
        }
        if (row == 7 && !masked && loss != 0) {
            fail_in(verdict, __LINE__, spec, "loss of the only class", row, loss, 0);
        }
        for (uint64_t i = 0; i < count; ++i) {
            const double got = any_number_at(spec->dtype, gradients + (row * count + i) * size);
            const bool off = isinf(special_logit(row, first + i)) && row < 5 && row > 2;
            const double share = spec->smoothing / SPECIAL_CLASSES;
            const double wanted =
                row == 3 && first + i == 20 ? spec->smoothing - 1 - share : -share;
            if ((none && !isnan(got)) || (!none && !isfinite(got)) || (row == 5 && got != 0) ||
                (off && !(fabs(got - wanted) <= 0x1p-7))) {
                fail_in(verdict, __LINE__, spec, "gradient", row, got, wanted);
            }
        }
    }
    trireme_vocabulary_destroy(vocabulary);
    release(logits), release(gradients);
}

static void rows_that_are_not_finite_have_the_documented_losses(void **state) {
    (void)state;
    static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_F64, TRIREME_DTYPE_BF16,
                                           TRIREME_DTYPE_F16};
    for (int w = 0; w < WORLD_SIZES; ++w) {
        for (int d = 0; d < 4; ++d) {
            for (int smooth = 0; smooth < 2; ++smooth) {
                struct trial trial = {.spec = {.world_size = world_sizes[w],
                                               .blocks = d % 2 == 0 ? 0 : 9,
                                               .classes = SPECIAL_CLASSES,
                                               .rows = SPECIAL_ROWS,
                                               .dtype = dtypes[d],
                                               .smoothing = smooth * 0.125,
                                               .ignores = true}};
                run_ranks(world_sizes[w], make_special_losses, &trial);
                assert_verdicts(trial.verdicts, world_sizes[w]);
            }
        }
    }
}

/* --- finite differences -------------------------------------------------------------------------
 */

static double
loss_at(struct verdict *verdict, trireme_vocabulary *vocabulary, const int32_t *targets,
        const double *logits, const double *weights, uint64_t rows, double *kept) {
    double losses[8], sum = 0;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_loss(vocabulary, targets, TRIREME_DTYPE_I32, rows, logits,
                                          losses, kept, NULL));
    for (uint64_t row = 0; row < rows; ++row) sum += weights[row] * losses[row];
    return sum;
}

static void take_differences(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const struct spec *const spec = &trial->spec;
    const uint64_t first = cut(spec, rank), count = class_count(spec, rank);
    int32_t *const targets = make_tokens(spec, true);
    double *const logits = make_logits(spec, first, count);
    double *const weights = make_loss_gradients(spec);
    double *const gradients = allocate(spec->rows * count * sizeof *gradients);
    double kept[2 * 8];
    trireme_vocabulary *vocabulary = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK, make_vocabulary(communicator, spec, "slope", &vocabulary));
    loss_at(verdict, vocabulary, targets, logits, weights, spec->rows, kept);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_loss_backward(vocabulary, targets, TRIREME_DTYPE_I32,
                                                   spec->rows, logits, kept, weights, gradients));
    const double step = 1e-5;
    for (uint64_t row = 0; row < spec->rows; ++row) {
        for (uint64_t class = 0; class < spec->classes; ++class) {
            const bool own = class >= first && class < first + count;
            double *const logit = &logits[row * count + class - first];
            const double usual = own ? *logit : 0;
            if (own) *logit = usual + step;
            const double up =
                loss_at(verdict, vocabulary, targets, logits, weights, spec->rows, NULL);
            if (own) *logit = usual - step;
            const double down =
                loss_at(verdict, vocabulary, targets, logits, weights, spec->rows, NULL);
            if (!own) continue;
            *logit = usual;
            const double got = gradients[row * count + class - first];
            const double wanted = (up - down) / (2 * step);
            if (!(fabs(got - wanted) <= 1e-7)) {
                fail_in(verdict, __LINE__, spec, "slope", row, got, wanted);
            }
        }
    }
    trireme_vocabulary_destroy(vocabulary);
    release(targets), release(logits), release(weights), release(gradients);
}

static void gradients_are_the_slopes_of_losses(void **state) {
    (void)state;
    for (int world_size = 1; world_size <= 3; ++world_size) {
        for (int kind = 0; kind < 3; ++kind) {
            struct trial trial = {.spec = {.world_size = world_size,
                                           .blocks = kind == 0 ? 0 : 5,
                                           .classes = 13,
                                           .rows = 4,
                                           .dtype = TRIREME_DTYPE_F64,
                                           .token_dtype = TRIREME_DTYPE_I32,
                                           .smoothing = kind == 1 ? 0.2 : 0,
                                           .z_loss = kind == 2 ? 0.05 : 0.001 * kind,
                                           .ignores = true,
                                           .salt = 5}};
            run_ranks(world_size, take_differences, &trial);
            assert_verdicts(trial.verdicts, world_size);
        }
    }
}

/* --- embeddings ---------------------------------------------------------------------------------
 */

/* Odd bits that no arithmetic would keep: a NaN with a payload, and -0.0. */
static void put_odd_bits(const struct spec *spec, unsigned char *rows, uint64_t count) {
    const uint64_t nan = spec->dtype == TRIREME_DTYPE_F64   ? 0xfff4000000012345u
                         : spec->dtype == TRIREME_DTYPE_F32 ? 0xff812345u
                         : spec->dtype == TRIREME_DTYPE_F16 ? 0xfd23u
                                                            : 0xff93u;
    for (uint64_t i = 0; i < count; i += 5) {
        memcpy(rows + (i * spec->width + i % spec->width) * size_of(spec), &nan, size_of(spec));
    }
}

static uint64_t distinct_tokens(const struct spec *spec, int rank) {
    uint64_t count = 0;
    for (uint64_t row = 0; row < spec->rows; ++row) {
        const int64_t token = token_of(spec, row);
        bool first = (uint64_t)token >= cut(spec, rank) && (uint64_t)token < cut(spec, rank + 1);
        for (uint64_t other = 0; other < row && first; ++other) {
            first = token_of(spec, other) != token;
        }
        count += first;
    }
    return count;
}

/* Adds rows of f32 or f64 one by one; narrower ones in f32, which is rounded once. */
static void add_plainly(const struct spec *spec, uint64_t class, const unsigned char *gradients,
                        const unsigned char *before, unsigned char *result) {
    const size_t size = size_of(spec);
    for (uint64_t column = 0; column < spec->width; ++column) {
        double wide = number_at(spec->dtype, before + column * size);
        float narrow = (float)wide;
        for (uint64_t row = 0; row < spec->rows; ++row) {
            if ((uint64_t)token_of(spec, row) != class) continue;
            const double next =
                number_at(spec->dtype, gradients + (row * spec->width + column) * size);
            wide += next;
            narrow += (float)next;
        }
        put_fast(spec->dtype, spec->dtype == TRIREME_DTYPE_F64 ? wide : (double)narrow,
                 result + column * size);
    }
}

static void embed(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    const struct spec *const spec = &trial->spec;
    const uint64_t first = cut(spec, rank), count = class_count(spec, rank);
    const size_t row_bytes = spec->width * size_of(spec), bytes = spec->rows * row_bytes;
    void *const tokens = make_tokens(spec, false);
    unsigned char *const all = make_rows(spec, 4, 0, spec->classes);
    if (spec->width > 0) put_odd_bits(spec, all, spec->classes);
    unsigned char *const output = allocate(bytes), *const expected = allocate(row_bytes);
    trireme_vocabulary *vocabulary = NULL;
    trireme_vocabulary_info info = TRIREME_VOCABULARY_INFO_INIT;
    EXPECT_STATUS(verdict, TRIREME_OK, make_vocabulary(communicator, spec, "tokens", &vocabulary));
    EXPECT_STATUS(verdict, TRIREME_OK, trireme_vocabulary_get_info(vocabulary, &info));
    const uint64_t before = sent_bytes(verdict, communicator);
    EXPECT_STATUS(verdict, TRIREME_OK,
                  trireme_vocabulary_embed(vocabulary, tokens, spec->token_dtype, spec->rows,
                                           all + first * row_bytes, output, NULL));
    const uint64_t planned =
        distinct_tokens(spec, rank) * row_bytes * (uint64_t)(spec->world_size - 1);
    EXPECT(verdict, is_as_planned(verdict, communicator, sent_bytes(verdict, communicator) - before,
                                  planned));
    EXPECT(verdict, planned <= info.embed_bytes);
    EXPECT(verdict, is_guarded(output, bytes));
    for (uint64_t row = 0; row < spec->rows; ++row) {
        const uint64_t class = (uint64_t)token_of(spec, row);
        if (memcmp(output + row * row_bytes, all + class * row_bytes, row_bytes) != 0) {
            fail_in(verdict, __LINE__, spec, "embedding", row, 0, 0);
        }
    }
    /* Twice, on top of what is there. */
    unsigned char *const gradients = make_rows(spec, 5, 0, spec->rows);
    unsigned char *const sums = make_rows(spec, 6, first, count);
    unsigned char *const old = allocate(count * row_bytes);
    for (int pass = 0; pass < 2; ++pass) {
        memcpy(old, sums, count * row_bytes);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_vocabulary_embed_backward(vocabulary, tokens, spec->token_dtype,
                                                        spec->rows, gradients, sums));
        for (uint64_t i = 0; i < count; ++i) {
            add_plainly(spec, first + i, gradients, old + i * row_bytes, expected);
            if (memcmp(sums + i * row_bytes, expected, row_bytes) != 0) {
                fail_in(verdict, __LINE__, spec, "weight gradient", i, 0, 0);
            }
        }
    }
    EXPECT(verdict, is_guarded(sums, count * row_bytes));
    trireme_vocabulary_destroy(vocabulary);
    release(tokens), release(all), release(output), release(expected);
    release(gradients), release(sums), release(old);
}

static void embeddings_have_the_bits_of_their_owners(void **state) {
    (void)state;
    static const trireme_dtype dtypes[] = {TRIREME_DTYPE_F32, TRIREME_DTYPE_BF16, TRIREME_DTYPE_F64,
                                           TRIREME_DTYPE_F16};
    static const uint64_t shapes[][3] = {/* classes, width, rows */
                                         {50, 9, 33}, {1, 4, 5}, {7, 1, 3},
                                         {3, 16, 0},  {2, 5, 1}, {11, 0, 4}};
    for (int w = 0; w < WORLD_SIZES; ++w) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
            for (size_t d = 0; d < 4; ++d) {
                struct trial trial = {
                    .spec = {.world_size = world_sizes[w],
                             .blocks = (s + d) % 2 == 0 ? 0 : 8 + (uint32_t)s,
                             .classes = shapes[s][0],
                             .width = shapes[s][1],
                             .rows = shapes[s][2],
                             .dtype = dtypes[d],
                             .token_dtype = d % 2 == 0 ? TRIREME_DTYPE_I32 : TRIREME_DTYPE_I64,
                             .salt = s}};
                if (is_quick() && (s + d) % 3 != 0) continue;
                run_ranks(world_sizes[w], embed, &trial);
                assert_verdicts(trial.verdicts, world_sizes[w]);
            }
        }
    }
}

/* Two micro-batches are under way, and each pass has fewer rows than planned. */
static void interleave(trireme_communicator *communicator, int rank, void *context) {
    struct trial *const trial = context;
    struct verdict *const verdict = &trial->verdicts[rank];
    struct spec specs[2] = {trial->spec, trial->spec};
    specs[1].salt = 77;
    specs[1].rows = 5;
    void *targets[2], *logits[2], *losses[2], *kept[2], *given[2], *gradients[2];
    trireme_vocabulary *vocabulary = NULL;
    EXPECT_STATUS(verdict, TRIREME_OK,
                  make_vocabulary(communicator, &trial->spec, "lm head", &vocabulary));
    const uint64_t count = class_count(&trial->spec, rank);
    for (int i = 0; i < 2; ++i) {
        targets[i] = make_tokens(&specs[i], true);
        logits[i] = make_logits(&specs[i], cut(&specs[i], rank), count);
        given[i] = make_loss_gradients(&specs[i]);
        losses[i] = allocate(specs[i].rows * 4);
        kept[i] = allocate(specs[i].rows * TRIREME_VOCABULARY_KEPT_BYTES);
        gradients[i] = allocate(specs[i].rows * count * 4);
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_vocabulary_loss(vocabulary, targets[i], TRIREME_DTYPE_I64,
                                              specs[i].rows, logits[i], losses[i], kept[i], NULL));
        int32_t one = 1;
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_all_reduce(communicator, &one, &one, 1, TRIREME_DTYPE_I32,
                                         TRIREME_REDUCTION_SUM, NULL));
        EXPECT(verdict, one == trial->spec.world_size);
    }
    for (int i = 0; i < 2; ++i) {
        EXPECT_STATUS(verdict, TRIREME_OK,
                      trireme_vocabulary_loss_backward(vocabulary, targets[i], TRIREME_DTYPE_I64,
                                                       specs[i].rows, logits[i], kept[i], given[i],
                                                       gradients[i]));
        for (uint64_t row = 0; row < specs[i].rows; ++row) {
            check_row(verdict, &specs[i], rank, row, losses[i], given[i], gradients[i]);
        }
        release(targets[i]), release(logits[i]), release(losses[i]);
        release(kept[i]), release(given[i]), release(gradients[i]);
    }
    trireme_vocabulary_destroy(vocabulary);
}

static void micro_batches_take_turns(void **state) {
    (void)state;
    struct trial trial = {.spec = {.world_size = 3,
                                   .classes = 70,
                                   .rows = 9,
                                   .dtype = TRIREME_DTYPE_F32,
                                   .token_dtype = TRIREME_DTYPE_I64,
                                   .ignores = true}};
    run_ranks(3, interleave, &trial);
    assert_verdicts(trial.verdicts, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_those_of_plain_loops),
        cmocka_unit_test(a_vocabulary_of_50257_classes_is_split),
        cmocka_unit_test(rows_that_are_not_finite_have_the_documented_losses),
        cmocka_unit_test(gradients_are_the_slopes_of_losses),
        cmocka_unit_test(embeddings_have_the_bits_of_their_owners),
        cmocka_unit_test(micro_batches_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
