/*
 * Random numbers by element: the published values of the generator, and a plain loop of it for
 * every dtype. Then parts that equal the whole, how often elements are dropped, and bad input.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h comes after those it needs. */
#include <cmocka.h>
#include <numbers.h>

#define F32 TRIREME_DTYPE_F32
#define F64 TRIREME_DTYPE_F64
#define F16 TRIREME_DTYPE_F16
#define BF16 TRIREME_DTYPE_BF16
#define BIG (UINT64_C(1) << 40)
#define FOUR_G (UINT64_C(1) << 32)

static const trireme_dtype kDtypes[] = {F32, F64, F16, BF16};
enum { DTYPES = sizeof kDtypes / sizeof kDtypes[0] };

static bool says(const char *words) {
    return strstr(trireme_last_error(), words) != NULL;
}

/* ---- the generator once more, as the paper has it ---- */

static void philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t x[4], k[2];
    memcpy(x, counter, sizeof x);
    memcpy(k, key, sizeof k);
    for (int round = 0; round < 10; ++round) {
        const uint64_t p = UINT64_C(0xd2511f53) * x[0], q = UINT64_C(0xcd9e8d57) * x[2];
        const uint32_t y[4] = {(uint32_t)(q >> 32) ^ x[1] ^ k[0], (uint32_t)q,
                               (uint32_t)(p >> 32) ^ x[3] ^ k[1], (uint32_t)p};
        memcpy(x, y, sizeof x);
        k[0] += 0x9e3779b9;
        k[1] += 0xbb67ae85;
    }
    memcpy(out, x, sizeof x);
}

/* The word of an element, as random.h says. */
static uint32_t word_of(uint64_t seed, uint64_t draw, uint32_t purpose, uint64_t element) {
    const uint64_t block = element / 4;
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32) + (purpose << 30),
                                 (uint32_t)draw, (uint32_t)(draw >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t words[4];
    philox(counter, key, words);
    return words[element % 4];
}

static double uniform_of(trireme_dtype dtype, uint64_t seed, uint64_t draw, uint64_t element) {
    const uint32_t word = word_of(seed, draw, 0, element);
    switch (dtype) {
        case F32: return ldexp(word >> 8, -24);
        case F16: return ldexp(word >> 21, -11);
        case BF16: return ldexp(word >> 24, -8);
        default: return ldexp(word, -32) + ldexp(word_of(seed, draw, 1, element) >> 11, -53);
    }
}

static bool is_dropped(double rate, uint64_t seed, uint64_t draw, uint64_t element) {
    return word_of(seed, draw, 2, element) < floor(ldexp(rate, 32));
}

static void the_plain_loop_has_the_published_values(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } kAnswers[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kAnswers / sizeof kAnswers[0]; ++i) {
        uint32_t words[4];
        philox(kAnswers[i].counter, kAnswers[i].key, words);
        assert_memory_equal(words, kAnswers[i].words, sizeof words);
    }
    /* The library's first four are those of the first line. */
    trireme_random_options options = TRIREME_RANDOM_OPTIONS_INIT;
    options.rows = 1;
    options.columns = options.all_columns = 4;
    float values[4];
    assert_int_equal(trireme_random_uniform(&options, values, F32), TRIREME_OK);
    for (int i = 0; i < 4; ++i) {
        assert_true(values[i] == (float)ldexp(kAnswers[0].words[i] >> 8, -24));
    }
}

/* ---- values ---- */

struct part {
    uint64_t seed, draw, first_row, rows, first_column, columns, all_columns;
};

static trireme_random_options options_of(struct part part) {
    trireme_random_options options = TRIREME_RANDOM_OPTIONS_INIT;
    options.seed = part.seed;
    options.draw = part.draw;
    options.first_row = part.first_row;
    options.rows = part.rows;
    options.first_column = part.first_column;
    options.columns = part.columns;
    options.all_columns = part.all_columns;
    return options;
}

static uint64_t number_of(struct part part, uint64_t i) {
    return (part.first_row + i / part.columns) * part.all_columns + part.first_column +
           i % part.columns;
}

static const struct part kParts[] = {
    {0, 0, 0, 1, 0, 1, 1},
    {1, 0, 0, 1, 0, 4099, 4099},
    {UINT64_C(0x8000000000000001), UINT64_C(0x700000009), 2, 31, 5, 3, 10},
    {3, 7, 0, 5, 0, 1000, 1000},
    {3, 8, 9, 3, 1, 1999, 2003},
    /* Blocks on both sides of 2^32, and the last elements that there are. */
    {4, 1, 0, 1, (UINT64_C(1) << 34) - 50, 99, UINT64_C(1) << 36},
    {UINT64_MAX, UINT64_MAX, UINT64_MAX / 17 - 8, 8, 0, 17, 17},
    {5, 5, 0, 1, UINT64_MAX - 33, 33, UINT64_MAX},
};
enum { PARTS = sizeof kParts / sizeof kParts[0], MOST = 6000 };

static void every_dtype_has_the_values_of_a_plain_loop(void **state) {
    (void)state;
    for (int p = 0; p < PARTS; ++p) {
        const struct part part = kParts[p];
        const trireme_random_options options = options_of(part);
        const uint64_t count = part.rows * part.columns;
        assert_true(count <= MOST);
        for (int d = 0; d < DTYPES; ++d) {
            const uint64_t size = trireme_dtype_bytes(kDtypes[d]);
            unsigned char *const memory = malloc((count + 2) * size);
            memset(memory, 0xa5, (count + 2) * size);
            unsigned char *const data = memory + 1; /* at no multiple of its size */
            assert_int_equal(trireme_random_uniform(&options, data, kDtypes[d]), TRIREME_OK);
            for (uint64_t i = 0; i < count; ++i) {
                const double value = number_at(kDtypes[d], data + i * size);
                assert_true(value ==
                            uniform_of(kDtypes[d], part.seed, part.draw, number_of(part, i)));
                assert_true(value >= 0 && value < 1);
            }
            assert_int_equal(memory[0], 0xa5);
            for (uint64_t i = 1 + count * size; i < (count + 2) * size; ++i) {
                assert_int_equal(memory[i], 0xa5);
            }
            free(memory);
        }
    }
}

/* A number of few bits: its product with 4/3, 2 and 8 is rounded, or exact, in every dtype. */
static double input_of(uint64_t i) {
    return i % 97 == 5 ? NAN : i % 89 == 7 ? -INFINITY : (double)(i % 251) / 8 - 15;
}

static void put(trireme_dtype dtype, double value, void *at) {
    if (isfinite(value) || dtype == F32 || dtype == F64) {
        put_number(dtype, value, at);
        return;
    }
    const uint16_t sign = signbit(value) && !isnan(value) ? 0x8000 : 0;
    const uint16_t infinity = dtype == F16 ? 0x7c00 : 0x7f80;
    const uint16_t bits = infinity | sign | (isnan(value) ? 0x60 : 0);
    memcpy(at, &bits, sizeof bits);
}

/* number_at() knows finite numbers of 16 bits alone. */
static double value_at(trireme_dtype dtype, const void *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    const uint16_t infinity = dtype == F16 ? 0x7c00 : 0x7f80;
    if (dtype == F32 || dtype == F64 || (bits & infinity) != infinity) return number_at(dtype, at);
    if ((bits & ~infinity & 0x7fff) != 0) return NAN;
    return (bits & 0x8000) != 0 ? -INFINITY : INFINITY;
}

static double rounded_to(trireme_dtype dtype, double value) {
    if (!isfinite(value)) return value;
    uint64_t memory;
    put_number(dtype, value, &memory);
    return number_at(dtype, &memory);
}

static void dropout_keeps_and_drops_as_a_plain_loop(void **state) {
    (void)state;
    static const double kRates[] = {0, 0x1p-40, 0.1, 0.25, 0.5, 0.875, 1 - 0x1p-33, 1 - 0x1p-53};
    for (int p = 0; p < PARTS; ++p) {
        const struct part part = kParts[p];
        const trireme_random_options options = options_of(part);
        const uint64_t count = part.rows * part.columns;
        for (int d = 0; d < DTYPES; ++d) {
            const trireme_dtype dtype = kDtypes[d];
            const uint64_t size = trireme_dtype_bytes(dtype);
            char *const source = malloc((count + 1) * size), *const copy = malloc(count * size);
            char *const result = malloc((count + 1) * size);
            for (uint64_t i = 0; i < count; ++i) put(dtype, input_of(i), source + i * size);
            memcpy(copy, source, count * size);
            for (size_t r = 0; r < sizeof kRates / sizeof kRates[0]; ++r) {
                const double rate = kRates[r];
                const double share = ldexp(floor(ldexp(rate, 32)), -32);
                const double factor =
                    dtype == F64 ? 1 / (1 - share) : (double)(float)(1 / (1 - share));
                memset(result, 0xa5, (count + 1) * size);
                assert_int_equal(trireme_random_dropout(&options, rate, source, result, dtype),
                                 TRIREME_OK);
                assert_memory_equal(source, copy, count * size);
                for (uint64_t i = 0; i < count; ++i) {
                    const double value = value_at(dtype, result + i * size);
                    if (is_dropped(rate, part.seed, part.draw, number_of(part, i))) {
                        assert_true(value == 0 && !signbit(value));
                        continue;
                    }
                    double product = value_at(dtype, source + i * size) * factor;
                    if (dtype == F16 || dtype == BF16) product = (double)(float)product;
                    if (dtype == F32) product = (double)(float)product;
                    if (dtype == F16 && fabs(product) >= 65520)
                        product = copysign(INFINITY, product);
                    const double expected = rounded_to(dtype, product);
                    assert_true(value == expected || (isnan(value) && isnan(expected)));
                }
                for (uint64_t i = 0; i < size; ++i) {
                    assert_int_equal((unsigned char)result[count * size + i], 0xa5);
                }
                /* In place, and backward: the same elements of another array. */
                char *const place = malloc(count * size);
                memcpy(place, source, count * size);
                assert_int_equal(trireme_random_dropout(&options, rate, place, place, dtype),
                                 TRIREME_OK);
                assert_memory_equal(place, result, count * size);
                free(place);
            }
            free(source);
            free(copy);
            free(result);
        }
    }
}

/* By hand: the factor is that of the probability, which is the rate rounded down. */
static void the_factor_follows_the_rounded_rate(void **state) {
    (void)state;
    static const struct {
        double rate, factor;
    } kFactors[] = {{0x1p-40, 1},          {0x1p-32 - 0x1p-80, 1},      {0.25 + 0x1p-40, 4.0 / 3},
                    {0.5 + 0x1p-33, 2},    {1 - 0x1.8p-31, 0x1p32 / 3}, {1 - 0x1p-32, 0x1p32},
                    {1 - 0x1p-33, 0x1p32}, {1 - 0x1p-53, 0x1p32}};
    /* Its word is 2^32 - 1: every rate keeps it. */
    const uint64_t kept = UINT64_C(6233961080);
    assert_int_equal(word_of(0, 0, 2, kept), UINT32_MAX);
    const trireme_random_options options =
        options_of((struct part){0, 0, 0, 1, kept - 1, 3, kept + 2});
    for (size_t i = 0; i < sizeof kFactors / sizeof kFactors[0]; ++i) {
        double wide[3] = {3, 3, 3};
        float values[3] = {3, 3, 3};
        assert_int_equal(trireme_random_dropout(&options, kFactors[i].rate, wide, wide, F64),
                         TRIREME_OK);
        assert_int_equal(trireme_random_dropout(&options, kFactors[i].rate, values, values, F32),
                         TRIREME_OK);
        assert_true(wide[1] == 3 * kFactors[i].factor);
        assert_true(values[1] == 3 * (float)kFactors[i].factor);
    }
    /* A rate that rounds to 0 changes nothing. */
    const trireme_random_options many =
        options_of((struct part){0, 0, 0, 1, kept - 2000, 4000, kept + 2000});
    float values[4000], before[4000];
    for (int i = 0; i < 4000; ++i) values[i] = before[i] = (float)(i - 2000) / 7;
    assert_int_equal(trireme_random_dropout(&many, 0x1p-40, values, values, F32), TRIREME_OK);
    assert_memory_equal(values, before, sizeof values);
}

/* ---- parts of an array ---- */

enum { ROWS = 7, COLUMNS = 53 };

/* Rank r of n has the columns, or the rows, from r * E / n on. */
static void parts_are_parts_of_the_whole(void **state) {
    (void)state;
    static const int kWorlds[] = {1, 2, 3, 4, 5, 8, 53};
    for (int d = 0; d < DTYPES; ++d) {
        const trireme_dtype dtype = kDtypes[d];
        const uint64_t size = trireme_dtype_bytes(dtype);
        const struct part all = {11, 12, 3, ROWS, 0, COLUMNS, COLUMNS};
        char whole[ROWS * COLUMNS * 8], dropped[ROWS * COLUMNS * 8], part[ROWS * COLUMNS * 8];
        trireme_random_options options = options_of(all);
        assert_int_equal(trireme_random_uniform(&options, whole, dtype), TRIREME_OK);
        assert_int_equal(trireme_random_dropout(&options, 0.3, whole, dropped, dtype), TRIREME_OK);
        for (size_t w = 0; w < sizeof kWorlds / sizeof kWorlds[0]; ++w) {
            for (int turned = 0; turned < 2; ++turned) {
                for (int rank = 0; rank < kWorlds[w]; ++rank) {
                    const int extent = turned ? ROWS : COLUMNS;
                    const uint64_t first = (uint64_t)(rank * extent / kWorlds[w]);
                    const uint64_t count = (uint64_t)((rank + 1) * extent / kWorlds[w]) - first;
                    struct part own = all;
                    if (turned) {
                        own.first_row += first;
                        own.rows = count;
                    } else {
                        own.first_column = first;
                        own.columns = count;
                    }
                    options = options_of(own);
                    assert_int_equal(trireme_random_uniform(&options, part, dtype), TRIREME_OK);
                    for (int pass = 0; pass < 2; ++pass) {
                        const char *const expected = pass == 0 ? whole : dropped;
                        for (uint64_t i = 0; i < own.rows; ++i) {
                            const uint64_t row = i + (turned ? first : 0);
                            const uint64_t column = turned ? 0 : first;
                            assert_memory_equal(part + i * own.columns * size,
                                                expected + (row * COLUMNS + column) * size,
                                                own.columns * size);
                        }
                        if (pass > 0) continue;
                        assert_int_equal(trireme_random_dropout(&options, 0.3, part, part, dtype),
                                         TRIREME_OK);
                    }
                }
            }
        }
    }
}

struct thread {
    pthread_t thread;
    trireme_status status;
    float values[3000];
};

static void *draw_on_a_thread(void *argument) {
    struct thread *const own = argument;
    const struct part part = {1, 2, 0, 30, 7, 100, 1000};
    const trireme_random_options options = options_of(part);
    own->status = trireme_random_uniform(&options, own->values, F32);
    return NULL;
}

static void threads_draw_the_same(void **state) {
    (void)state;
    static struct thread threads[4];
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(pthread_create(&threads[i].thread, NULL, draw_on_a_thread, &threads[i]),
                         0);
    }
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(pthread_join(threads[i].thread, NULL), 0);
        assert_int_equal(threads[i].status, TRIREME_OK);
        assert_memory_equal(threads[i].values, threads[0].values, sizeof threads[i].values);
    }
}

/* ---- how often ---- */

static double log_of_chance(double n, double k, double p) {
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) + k * log(p) + (n - k) * log1p(-p);
}

/* Whether a binomial variable is as far from its mean with a chance of 1e-6 or more. */
static bool is_likely(double n, double k, double p) {
    const double way = k < n * p ? -1 : 1;
    double tail = 0;
    for (double at = k; at >= 0 && at <= n; at += way) {
        const double chance = exp(log_of_chance(n, at, p));
        tail += chance;
        if (chance < tail * 1e-12) break;
    }
    return tail >= 1e-6;
}

enum { MANY = 1 << 20 };

static void elements_are_dropped_as_often_as_they_should(void **state) {
    (void)state;
    static const double kRates[] = {0.001, 0.1, 0.25, 0.5, 0.9};
    float *const values = malloc(MANY * sizeof *values), *const other =
                                                             malloc(MANY * sizeof *other);
    for (size_t r = 0; r < sizeof kRates / sizeof kRates[0]; ++r) {
        const double rate = kRates[r];
        trireme_random_options options = options_of((struct part){2026, 1, 0, 1, 0, MANY, MANY});
        for (int i = 0; i < MANY; ++i) values[i] = other[i] = 1;
        assert_int_equal(trireme_random_dropout(&options, rate, values, values, F32), TRIREME_OK);
        options.draw = 2;
        assert_int_equal(trireme_random_dropout(&options, rate, other, other, F32), TRIREME_OK);
        int dropped = 0, both = 0, pairs = 0, of_uniform = 0;
        for (int i = 0; i < MANY; ++i) {
            dropped += values[i] == 0;
            both += values[i] == 0 && other[i] == 0;
            pairs += i % 2 == 1 && values[i] == 0 && values[i - 1] == 0;
        }
        assert_true(is_likely(MANY, dropped, rate));
        /* Another draw, a neighbour and a uniform value know nothing of it. */
        assert_true(is_likely(MANY, both, rate * rate));
        assert_true(is_likely(MANY / 2, pairs, rate * rate));
        options.draw = 1;
        assert_int_equal(trireme_random_uniform(&options, other, F32), TRIREME_OK);
        for (int i = 0; i < MANY; ++i) of_uniform += values[i] == 0 && other[i] < 0.25f;
        assert_true(is_likely(MANY, of_uniform, rate * 0.25));
    }
    assert_false(is_likely(MANY, MANY * 0.5 + 3000, 0.5));
    assert_false(is_likely(MANY, MANY * 0.1 - 2000, 0.1));
    free(values);
    free(other);
}

static void uniform_values_fill_their_range(void **state) {
    (void)state;
    const trireme_random_options options =
        options_of((struct part){2027, 9, 0, 1024, 0, MANY / 1024, MANY / 1024});
    char *const values = malloc(MANY * sizeof(double));
    for (int d = 0; d < DTYPES; ++d) {
        assert_int_equal(trireme_random_uniform(&options, values, kDtypes[d]), TRIREME_OK);
        int bins[32] = {0};
        for (uint64_t i = 0; i < MANY; ++i) {
            ++bins[(int)(32 * number_at(kDtypes[d], values + i * trireme_dtype_bytes(kDtypes[d])))];
        }
        for (int bin = 0; bin < 32; ++bin) assert_true(is_likely(MANY, bins[bin], 1.0 / 32));
    }
    free(values);
}

/* ---- bad input ---- */

static const struct part kGood = {1, 2, 0, 4, 2, 5, 9};

/* Neither function takes it, and neither writes. */
static void refused(const trireme_random_options *options, trireme_dtype dtype,
                    trireme_status status, const char *words) {
    double values[20], before[20];
    for (int i = 0; i < 20; ++i) values[i] = before[i] = i;
    assert_int_equal(trireme_random_uniform(options, values, dtype), status);
    assert_true(says(words));
    assert_true(says("trireme_random_uniform"));
    assert_int_equal(trireme_random_dropout(options, 0.5, values, values, dtype), status);
    assert_true(says(words));
    assert_memory_equal(values, before, sizeof values);
}

static void parts_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const struct {
        struct part part;
        const char *words;
    } kBad[] = {
        {{1, 2, 0, 4, 5, 5, 9}, "5 columns from column 5 on reach beyond all_columns, 9"},
        {{1, 2, 0, 4, 0, 5, 0}, "all_columns, 0"},
        {{1, 2, 0, 4, 10, 0, 9}, "all_columns, 9"},
        {{1, 2, 0, 4, UINT64_MAX, 5, 9}, "reach beyond"},
        {{1, 2, 0, 4, 3, UINT64_MAX, 9}, "reach beyond"},
        {{1, 2, UINT64_MAX, 2, 0, 1, 1}, "2 rows from row 18446744073709551615 on"},
        {{1, 2, UINT64_MAX / 9, 2, 2, 5, 9}, "does not fit into 64 bits"},
        {{1, 2, UINT64_C(1) << 32, 1, 0, 5, UINT64_C(1) << 32}, "does not fit into 64 bits"},
        {{1, 2, 0, BIG, 0, 1 << 22, 1 << 22}, "do not fit into memory"},
        {{1, 2, 0, BIG, 0, (1 << 24) - 1, (1 << 24) - 1}, "do not fit into memory"},
        /* 2^64 elements, whose last number is the largest of 64 bits. */
        {{1, 2, 0, FOUR_G, 0, FOUR_G, FOUR_G}, "do not fit into memory"},
        {{1, 2, 0, UINT64_C(1) << 61, 0, 8, 8}, "do not fit into memory"},
    };
    for (size_t i = 0; i < sizeof kBad / sizeof kBad[0]; ++i) {
        trireme_random_options options = options_of(kBad[i].part);
        refused(&options, F64, TRIREME_ERROR_INVALID_ARGUMENT, kBad[i].words);
    }
    trireme_random_options options = options_of(kGood);
    refused(NULL, F32, TRIREME_ERROR_INVALID_ARGUMENT, "options is NULL");
    refused(&options, TRIREME_DTYPE_I32, TRIREME_ERROR_UNSUPPORTED, "i32");
    refused(&options, 0, TRIREME_ERROR_UNSUPPORTED, "f32, f64, f16 or bf16");
    refused(&options, -7, TRIREME_ERROR_UNSUPPORTED, "unknown");
    refused(&options, 1000, TRIREME_ERROR_UNSUPPORTED, "unknown");
    options.flags = 1;
    refused(&options, F32, TRIREME_ERROR_INVALID_ARGUMENT, "flags is 1");
    options.flags = 0;
    options.struct_size = 0;
    refused(&options, F32, TRIREME_ERROR_INVALID_ARGUMENT, "TRIREME_RANDOM_OPTIONS_INIT");
}

/* Options of a later release are taken while what they add is 0. */
static void newer_options_are_taken_if_they_set_nothing_new(void **state) {
    (void)state;
    struct {
        trireme_random_options known;
        uint64_t more;
    } newer = {options_of(kGood), 0};
    newer.known.struct_size = sizeof newer;
    float values[20], expected[20];
    const trireme_random_options options = options_of(kGood);
    assert_int_equal(trireme_random_uniform(&options, expected, F32), TRIREME_OK);
    assert_int_equal(trireme_random_uniform(&newer.known, values, F32), TRIREME_OK);
    assert_memory_equal(values, expected, sizeof values);
    newer.more = 1;
    refused(&newer.known, F32, TRIREME_ERROR_UNSUPPORTED, "newer than this library");
}

static void rates_out_of_range_are_refused(void **state) {
    (void)state;
    static const double kBad[] = {1, 1.5, -0x1p-60, -1, INFINITY, -INFINITY, NAN, -NAN};
    const trireme_random_options options = options_of(kGood);
    float values[20] = {3}, before[20] = {3};
    for (size_t i = 0; i < sizeof kBad / sizeof kBad[0]; ++i) {
        assert_int_equal(trireme_random_dropout(&options, kBad[i], values, values, F32),
                         TRIREME_ERROR_INVALID_ARGUMENT);
        assert_true(says("rate is ") && says("0 or more and below 1"));
        assert_memory_equal(values, before, sizeof values);
    }
    assert_int_equal(trireme_random_dropout(&options, -0.0, values, values, F32), TRIREME_OK);
    assert_true(values[0] == 3);
}

static void memory_is_there_and_does_not_overlap(void **state) {
    (void)state;
    trireme_random_options options = options_of(kGood);
    float values[40] = {1, 2, 3}, before[40] = {1, 2, 3};
    assert_int_equal(trireme_random_uniform(&options, NULL, F32), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says("data is NULL"));
    assert_int_equal(trireme_random_dropout(&options, 0.5, NULL, values, F32),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says("source is NULL"));
    assert_int_equal(trireme_random_dropout(&options, 0.5, values, NULL, F32),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says("destination is NULL"));
    assert_int_equal(trireme_random_dropout(&options, 0.5, values, values + 19, F32),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says("overlap"));
    assert_int_equal(trireme_random_dropout(&options, 0.5, values + 1, values, F32),
                     TRIREME_ERROR_INVALID_ARGUMENT);
    assert_true(says("overlap"));
    assert_memory_equal(values, before, sizeof values);
    assert_int_equal(trireme_random_dropout(&options, 0.5, values, values + 20, F32), TRIREME_OK);
    assert_memory_equal(values, before, 20 * sizeof values[0]);
    /* Nothing to write. */
    options.rows = 0;
    assert_int_equal(trireme_random_uniform(&options, NULL, F32), TRIREME_OK);
    options.rows = UINT64_MAX;
    options.columns = 0;
    options.first_row = UINT64_MAX;
    assert_int_equal(trireme_random_dropout(&options, 0, NULL, NULL, F32), TRIREME_OK);
    const trireme_random_options none = TRIREME_RANDOM_OPTIONS_INIT;
    assert_int_equal(trireme_random_uniform(&none, NULL, F32), TRIREME_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_loop_has_the_published_values),
        cmocka_unit_test(every_dtype_has_the_values_of_a_plain_loop),
        cmocka_unit_test(dropout_keeps_and_drops_as_a_plain_loop),
        cmocka_unit_test(the_factor_follows_the_rounded_rate),
        cmocka_unit_test(parts_are_parts_of_the_whole),
        cmocka_unit_test(threads_draw_the_same),
        cmocka_unit_test(elements_are_dropped_as_often_as_they_should),
        cmocka_unit_test(uniform_values_fill_their_range),
        cmocka_unit_test(parts_that_cannot_be_are_refused),
        cmocka_unit_test(newer_options_are_taken_if_they_set_nothing_new),
        cmocka_unit_test(rates_out_of_range_are_refused),
        cmocka_unit_test(memory_is_there_and_does_not_overlap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
