/*
 * Numbers of every dtype, computed without the library: decoding by formula, encoding by searching
 * the nearest of all values, reductions as plain loops over decoded contributions.
 */
#ifndef TRIREME_TESTS_NUMBERS_H
#define TRIREME_TESTS_NUMBERS_H

#include <stdint.h>
#include <trireme/trireme.h>

int is_floating(trireme_dtype dtype);

/* Whether the headers give the reduction a meaning for the dtype. */
int reduction_means_something(trireme_dtype dtype, trireme_reduction reduction);

/* Fills in the contribution of `rank`: numbers that suit the dtype and the reduction, the same
 * every time. */
void fill_contribution(trireme_dtype dtype, trireme_reduction reduction, int rank, uint64_t salt,
                       void *elements, uint64_t first, uint64_t count);

/* Whether elements[i] is the reduction of element first + i of `world_size` contributions of
 * fill_contribution(). */
int is_reduced(trireme_dtype dtype, trireme_reduction reduction, double scale, int world_size,
               uint64_t salt, const void *elements, uint64_t first, uint64_t count);

/* One element of a floating dtype. A number is rounded to nearest even; it must not lie beyond the
 * largest finite one. */
double number_at(trireme_dtype dtype, const void *element);
void put_number(trireme_dtype dtype, double value, void *element);

#endif
