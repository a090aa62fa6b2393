/**
 * @file random.h
 * @brief Random numbers that an element's place decides: uniform values and dropout.
 *
 * An element has a number: its place in the whole array, counted row by row from 0. Its random
 * number depends on `seed`, `draw` and this number alone. So every part of the array has the same
 * random numbers as the whole, on every rank, in every layout, and in a second computation. There
 * is no state to keep.
 *
 * The generator is Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
 * as 1, 2, 3", SC 2011). Block b of a purpose is its output of four words:
 * - The key is `seed`, its low 32 bits first.
 * - The counter is b + 2^62 * purpose in 64 bits, then `draw` in 64 bits, low 32 bits first.
 *
 * Element e takes word e mod 4 of block e / 4:
 * - Purpose 0, uniform: the number is the upper 24 bits of the word for f32, 11 for f16 and 8 for
 *   bf16, as a binary fraction.
 * - For f64 it has 53 bits: that word, then the upper 21 bits of the same word of purpose 1.
 * - Purpose 2, dropout: the element is dropped if the word is below the integral part of
 *   2^32 * rate. This holds for every dtype, so all dtypes drop the same elements.
 *
 * Every machine and every set of vector instructions gives the same bits.
 *
 * Ownership: the caller keeps all memory. Thread safety: any thread may call all functions here.
 */
#ifndef TRIREME_RANDOM_H
#define TRIREME_RANDOM_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/**
 * Seed, draw, and a part of an array of rows and columns. An array without rows is one row, or one
 * column. Start from TRIREME_RANDOM_OPTIONS_INIT.
 *
 * Example: of an array of 6 by 10, rank 1 of 2 has the columns from 5 on. It sets rows 6,
 * first_column 5, columns 5 and all_columns 10.
 */
typedef struct trireme_random_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** Seed of the whole training. All ranks give the same. Default: 0. */
    uint64_t seed;
    /**
     * Number of the draw: another number gives other random numbers. Each layer of each step has
     * its own, for example step * layers + layer. Default: 0.
     */
    uint64_t draw;
    /** Row of the whole array in which the part begins. Default: 0. */
    uint64_t first_row;
    /** Rows of the part. Default: 0, which writes nothing. */
    uint64_t rows;
    /** Column of the whole array in which the part begins. Default: 0. */
    uint64_t first_column;
    /** Columns of the part. Default: 0, which writes nothing. */
    uint64_t columns;
    /** Columns of the whole array: first_column + columns or more. Required. */
    uint64_t all_columns;
} trireme_random_options; /* since 1.0 */

/** Seed 0, draw 0, and a part without elements. */
#define TRIREME_RANDOM_OPTIONS_INIT TRIREME_INIT(trireme_random_options)

/**
 * Fills memory with random numbers: multiples of 2^-24 (f32), 2^-53 (f64), 2^-11 (f16) or 2^-8
 * (bf16) from 0 on and below 1, each as likely as the others. Of one element all dtypes have the
 * same number, cut off to these bits.
 *
 * Does not block. Keeps no pointer.
 *
 * @param options  Seed, draw and part. Required.
 * @param[out] data  The part: rows * columns elements, row by row without gaps, at any address. May
 * be NULL if there are none. Not written on failure.
 * @param dtype  f32, f64, f16 or bf16.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or `flags` is not 0. Or the columns
 * reach beyond all_columns, the last element's number does not fit into 64 bits, or the part does
 * not fit into memory. The message has the values.
 * @retval TRIREME_ERROR_UNSUPPORTED  `dtype` is none of the four, or `options` sets a field newer
 * than this library.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_random_uniform(const trireme_random_options *options, void *data, trireme_dtype dtype);

/**
 * Dropout (Srivastava et al. 2014): sets elements to 0 with a probability, and multiplies the
 * others by 1 / (1 - the probability). It keeps no mask: backward is the same call on the gradient,
 * with the same options.
 *
 * - The probability is `rate`, rounded down to a multiple of 2^-32. So a rate below 2^-32 drops
 *   nothing and multiplies by 1, and no factor is above 2^32.
 * - A dropped element is +0, also where it was inf or NaN.
 * - f32 and f64 are multiplied in their own type, by the factor rounded to it. f16 and bf16 are
 *   multiplied in f32 and rounded once, to nearest even. A NaN stays one quiet NaN.
 *
 * Does not block. Keeps no pointer.
 *
 * @param options  Seed, draw and part. Required.
 * @param rate  Probability that an element is dropped, before it is rounded: 0 or more, below 1.
 * @param source  The part: rows * columns elements, row by row without gaps, at any address. May be
 * NULL if there are none.
 * @param[out] destination  The result, as large. It may be `source`, and must not overlap it in
 * part. Not written on failure.
 * @param dtype  f32, f64, f16 or bf16.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, `flags` is not 0, `rate` is below 0, 1
 * or more, or NaN, or the two overlap in part. Or the columns reach beyond all_columns, the last
 * element's number does not fit into 64 bits, or the part does not fit into memory. The message has
 * the values.
 * @retval TRIREME_ERROR_UNSUPPORTED  `dtype` is none of the four, or `options` sets a field newer
 * than this library.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV
trireme_random_dropout(const trireme_random_options *options, double rate, const void *source,
                       void *destination, trireme_dtype dtype);

TRIREME_END_C

#endif
