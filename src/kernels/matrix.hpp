// Products of matrices, with the same bits at every vector level.
#pragma once

#include <trireme/types.h>

#include <cstdint>

#include "kernels/vector.hpp"

namespace trireme::kernels {

// Of f64, for products of at most so many rows, columns and summands.
std::uint64_t product_memory(std::uint64_t rows, std::uint64_t columns, std::uint64_t depth);

// dtype f32 or f64. Each sum is made in f64, one product after the other from k = 0 up, and rounded
// to dtype once, after what is added; the result must not overlap the rest. Of `lower` the upper
// half is a copy of it.
void multiply(trireme_dtype dtype, const MatrixProduct& product, double* memory);

}  // namespace trireme::kernels
