// Arithmetic on rows of one dtype: the same bits wherever a row lies. f16 and bf16 are computed in
// f32, and rounded once. Rows lie at any address.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::parallel {

// out = weights[0] * sources[0] + weights[1] * sources[1] + ..., in that order; 0 without a source.
// `weights` may be null: all are 1. `out` overlaps no source.
void add_weighted_rows(trireme_dtype dtype, const void* const* sources, const float* weights,
                       std::uint64_t source_count, std::uint64_t width, void* out);

// to = weight * from.
void scale_row(trireme_dtype dtype, float weight, const void* from, std::uint64_t width, void* to);

// The sum of a[i] * b[i], in f64.
double multiply_rows(trireme_dtype dtype, const void* a, const void* b, std::uint64_t width);

}  // namespace trireme::parallel
