// Gaps: elements that were to be written and were not. Memory is filled with a mark before, and
// searched for it afterwards. The mark is a quiet NaN in every floating type, with a payload that
// no arithmetic makes by itself: results computed from it are NaN, mostly the mark again.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

enum class Gap : std::uint16_t { in_activations = 0x7ffc, in_gradients = 0x7ffd };

// Fills memory with the mark, at any address.
void mark_gap(void* memory, std::uint64_t bytes, Gap gap);
// The first element of f32 or f64 from `first` on that has this mark; `count` if there is none.
std::uint64_t find_gap(trireme_dtype dtype, const void* values, std::uint64_t first,
                       std::uint64_t count, Gap gap);
// Whether gradients of f32 or f64 were computed from a gap in activations. The activations are f16,
// bf16, f32 or, for f64, f32 or f64. Arithmetic and conversions keep the payload of the mark.
bool has_trace(trireme_dtype dtype, const void* values, std::uint64_t count);
// Whether one of f32 or f64 is NaN.
bool has_nan(trireme_dtype dtype, const void* values, std::uint64_t count);

}  // namespace trireme::kernels
