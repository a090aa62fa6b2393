#include "numbers.h"

#include <math.h>
#include <string.h>

int is_floating(trireme_dtype dtype) {
    return dtype >= TRIREME_DTYPE_F16 && dtype <= TRIREME_DTYPE_F8E5M2;
}

static int is_signed(trireme_dtype dtype) {
    return dtype == TRIREME_DTYPE_I8 || dtype == TRIREME_DTYPE_I16 || dtype == TRIREME_DTYPE_I32 ||
           dtype == TRIREME_DTYPE_I64;
}

int reduction_means_something(trireme_dtype dtype, trireme_reduction reduction) {
    const int bits = reduction >= TRIREME_REDUCTION_BAND && reduction <= TRIREME_REDUCTION_BXOR;
    const int order = reduction == TRIREME_REDUCTION_MIN || reduction == TRIREME_REDUCTION_MAX;
    if (dtype == TRIREME_DTYPE_BYTES) return 0;
    if (dtype == TRIREME_DTYPE_BOOL) return bits || order;
    return is_floating(dtype) ? !bits : reduction != TRIREME_REDUCTION_SCALED_SUM;
}

/* --- the small floating formats: sign, exponent, mantissa --- */

struct format {
    int bits, exponent_bits, mantissa_bits, bias;
};

static struct format format_of(trireme_dtype dtype) {
    switch (dtype) {
        case TRIREME_DTYPE_F16: return (struct format){16, 5, 10, 15};
        case TRIREME_DTYPE_BF16: return (struct format){16, 8, 7, 127};
        case TRIREME_DTYPE_F8E4M3: return (struct format){8, 4, 3, 7};
        default: return (struct format){8, 5, 2, 15};
    }
}

/* The value of a pattern without its sign; infinities and NaNs are left to their own test. */
static double magnitude(struct format format, uint32_t pattern) {
    const int exponent = (int)(pattern >> format.mantissa_bits);
    const double mantissa = pattern & ((1u << format.mantissa_bits) - 1);
    const double unit = ldexp(1, -format.mantissa_bits);
    if (exponent == 0) return ldexp(mantissa * unit, 1 - format.bias);
    return ldexp(1 + mantissa * unit, exponent - format.bias);
}

static uint32_t nearest_pattern(struct format format, double value) {
    const double wanted = fabs(value);
    uint32_t low = 0, high = (1u << (format.bits - 1)) - 1; /* patterns grow with their values */
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (magnitude(format, middle) <= wanted) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const double below = wanted - magnitude(format, low), above = magnitude(format, high) - wanted;
    const uint32_t pattern = below < above || (below == above && low % 2 == 0) ? low : high;
    return signbit(value) ? pattern | 1u << (format.bits - 1) : pattern;
}

double number_at(trireme_dtype dtype, const void *element) {
    if (dtype == TRIREME_DTYPE_F64) {
        double value;
        memcpy(&value, element, sizeof value);
        return value;
    }
    if (dtype == TRIREME_DTYPE_F32) {
        float value;
        memcpy(&value, element, sizeof value);
        return value;
    }
    const struct format format = format_of(dtype);
    uint32_t pattern = 0;
    memcpy(&pattern, element, (size_t)format.bits / 8);
    const uint32_t sign = 1u << (format.bits - 1);
    const double value = magnitude(format, pattern & (sign - 1));
    return (pattern & sign) != 0 ? -value : value;
}

void put_number(trireme_dtype dtype, double value, void *element) {
    if (dtype == TRIREME_DTYPE_F64) {
        memcpy(element, &value, sizeof value);
    } else if (dtype == TRIREME_DTYPE_F32) {
        const float rounded = (float)value;
        memcpy(element, &rounded, sizeof rounded);
    } else {
        const struct format format = format_of(dtype);
        const uint32_t pattern = nearest_pattern(format, value);
        memcpy(element, &pattern, (size_t)format.bits / 8);
    }
}

static int64_t load_integer(trireme_dtype dtype, const void *element) {
    const size_t size = trireme_dtype_bytes(dtype);
    uint64_t value = 0;
    memcpy(&value, element, size);
    if (is_signed(dtype) && size < 8 && (value >> (8 * size - 1) & 1) != 0)
        value |= ~0ull << (8 * size);
    return (int64_t)value;
}

/* --- contributions --- */

static uint64_t hash(uint64_t value) {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static void contribution(trireme_dtype dtype, trireme_reduction reduction, int rank, uint64_t salt,
                         uint64_t index, void *element) {
    const uint64_t random = hash(salt * 1000003 + index * 64 + (uint64_t)rank + 1);
    if (is_floating(dtype)) {
        /* A product stays in range of every format: factors 0.5, 1, 1.5, 2 with signs. */
        double value = (double)(random % 4 + 1) / 2;
        if (reduction != TRIREME_REDUCTION_PRODUCT) value = (double)(random % 4096) / 1024;
        put_number(dtype, (random >> 40) % 2 == 0 ? value : -value, element);
        return;
    }
    uint64_t value = random;
    if (dtype == TRIREME_DTYPE_BOOL) {
        value = random % 2;
    } else if (reduction == TRIREME_REDUCTION_PRODUCT) {
        value = random % 2 + 1;
        if (rank >= 6) value = 1;
        if (is_signed(dtype) && rank == 0) value = (uint64_t)(-(int64_t)value);
    } else if (reduction == TRIREME_REDUCTION_SUM || reduction == TRIREME_REDUCTION_AVERAGE) {
        value = random % 16;
        if (is_signed(dtype)) value = (uint64_t)((int64_t)value - 9);
    }
    memcpy(element, &value, trireme_dtype_bytes(dtype));
}

void fill_contribution(trireme_dtype dtype, trireme_reduction reduction, int rank, uint64_t salt,
                       void *elements, uint64_t first, uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
        contribution(dtype, reduction, rank, salt, first + i,
                     (char *)elements + i * trireme_dtype_bytes(dtype));
    }
}

/* --- the plain loops --- */

/* Small formats are accumulated in f32. */
static double narrow(trireme_dtype dtype, double value) {
    return dtype == TRIREME_DTYPE_F64 ? value : (double)(float)value;
}

static void reduce_floats(trireme_dtype dtype, trireme_reduction reduction, double scale,
                          const double *values, int count, void *element) {
    double result = values[0];
    for (int i = 1; i < count; ++i) {
        switch (reduction) {
            case TRIREME_REDUCTION_PRODUCT: result = narrow(dtype, result * values[i]); break;
            case TRIREME_REDUCTION_MIN: result = values[i] < result ? values[i] : result; break;
            case TRIREME_REDUCTION_MAX: result = values[i] > result ? values[i] : result; break;
            default: result = narrow(dtype, result + values[i]); break;
        }
    }
    if (reduction == TRIREME_REDUCTION_AVERAGE) result = narrow(dtype, result / count);
    if (reduction == TRIREME_REDUCTION_SCALED_SUM) result = narrow(dtype, result * scale);
    put_number(dtype, result, element);
}

static void reduce_integers(trireme_dtype dtype, trireme_reduction reduction, const int64_t *values,
                            int count, void *element) {
    int64_t result = values[0];
    for (int i = 1; i < count; ++i) {
        const int64_t value = values[i];
        const int less = is_signed(dtype) ? value < result : (uint64_t)value < (uint64_t)result;
        switch (reduction) {
            case TRIREME_REDUCTION_PRODUCT: result *= value; break;
            case TRIREME_REDUCTION_MIN: result = less ? value : result; break;
            case TRIREME_REDUCTION_MAX: result = less ? result : value; break;
            case TRIREME_REDUCTION_BAND: result &= value; break;
            case TRIREME_REDUCTION_BOR: result |= value; break;
            case TRIREME_REDUCTION_BXOR: result ^= value; break;
            default: result += value; break;
        }
    }
    if (reduction == TRIREME_REDUCTION_AVERAGE) result /= count;
    memcpy(element, &result, trireme_dtype_bytes(dtype));
}

int is_reduced(trireme_dtype dtype, trireme_reduction reduction, double scale, int world_size,
               uint64_t salt, const void *elements, uint64_t first, uint64_t count) {
    const size_t size = trireme_dtype_bytes(dtype);
    for (uint64_t i = 0; i < count; ++i) {
        double floats[64] = {0};
        int64_t integers[64] = {0};
        unsigned char expected[8], element[8] = {0};
        for (int rank = 0; rank < world_size; ++rank) {
            contribution(dtype, reduction, rank, salt, first + i, element);
            if (is_floating(dtype)) {
                floats[rank] = number_at(dtype, element);
            } else {
                integers[rank] = load_integer(dtype, element);
            }
        }
        const unsigned char *const found = (const unsigned char *)elements + i * size;
        if (is_floating(dtype)) {
            reduce_floats(dtype, reduction, scale, floats, world_size, expected);
            /* Compares values: the kernels' own tests compare the sign of a zero. */
            if (number_at(dtype, found) != number_at(dtype, expected)) return 0;
        } else {
            reduce_integers(dtype, reduction, integers, world_size, expected);
            if (memcmp(found, expected, size) != 0) return 0;
        }
    }
    return 1;
}
