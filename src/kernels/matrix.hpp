// Products of matrices, with the same bits at every vector level.
#pragma once

#include <trireme/types.h>

#include <cstdint>

#include "kernels/vector.hpp"

namespace trireme::kernels {

// Numbers of f64 that products need, for at most so many rows, columns and summands.
std::uint64_t product_memory(std::uint64_t rows, std::uint64_t columns, std::uint64_t depth);

// dtype f32 or f64, or f16 or bf16 of `left` and `right` with a result of f32. Each sum is made in
// f64, one product after the other from k = 0 up. `added` comes last, and the result is rounded
// once. The result must not overlap the inputs, but may be `added`. With `lower`, the upper half
// becomes a mirror of the lower.
void multiply(trireme_dtype dtype, const MatrixProduct& product, double* memory);

}  // namespace trireme::kernels
