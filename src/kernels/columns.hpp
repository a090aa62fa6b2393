// Matrices of layers by columns: a bias, and the sums that are its gradient. They have the same
// bits at every vector level. Every NaN that they store is the type's one positive quiet NaN.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

// Adds `bias` to each row of a matrix of f32 or f64 whose rows lie one after the other.
void add_bias(trireme_dtype dtype, const void* bias, std::uint64_t rows, std::uint64_t columns,
              void* matrix);

// result[j] = the sum of column j, or result[j] + that. The sum is made in f64, row after row, and
// rounded once, so its bits do not depend on the other columns. dtype: f32, f64, f16 or bf16; the
// result is f64 for f64, and f32 for the others. From a row to the next there are `step` elements.
void add_columns(trireme_dtype dtype, const void* matrix, std::uint64_t step, std::uint64_t rows,
                 std::uint64_t columns, bool add, void* result);

}  // namespace trireme::kernels
