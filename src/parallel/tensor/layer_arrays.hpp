// Arrays of layers: checks, biases, sums of columns.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <initializer_list>

#include "parallel/tensor/split.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

// An array of a caller, as its call names it.
struct LayerArray {
  const char* name;
  const void* data;
  std::uint64_t bytes;
  bool written;
};

// No array with bytes is NULL, and a written one has no byte in common with another one.
Status check_arrays(std::initializer_list<LayerArray> arrays);

// Adds `bias` to each row of a matrix of f32 or f64 whose rows lie one after the other.
void add_bias(trireme_dtype dtype, const void* bias, std::uint64_t rows, std::uint64_t columns,
              void* matrix);

// result[j] = the sum of column j, or result[j] + that. The sum is made in f64, row after row, and
// rounded once, so its bits do not depend on the other columns. dtype: f32, f64, f16 or bf16; the
// result has gradient_dtype().
void add_columns(trireme_dtype dtype, const void* matrix, std::uint64_t step, std::uint64_t rows,
                 std::uint64_t columns, bool add, void* result);

}  // namespace trireme::parallel
