// Gaps: elements that somebody was to write and has not. Memory is filled with a mark before, and
// looked at for it afterwards. The mark is a quiet NaN whatever floating type it is read as, of a
// payload that no arithmetic makes by itself: what is computed from it is NaN, mostly the mark again.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

enum class Gap : std::uint16_t { in_activations = 0x7ffc, in_gradients = 0x7ffd };

// At any address.
void mark_gap(void* memory, std::uint64_t bytes, Gap gap);
// The first element of f32 or f64 from `first` on that has this mark; `count`: none.
std::uint64_t find_gap(trireme_dtype dtype, const void* values, std::uint64_t first,
                       std::uint64_t count, Gap gap);
// Whether gradients of f32 or f64 have been computed from a gap in activations of f16, bf16, f32 or,
// for f64, of f32 or f64: arithmetic and conversions keep what tells it.
bool has_trace(trireme_dtype dtype, const void* values, std::uint64_t count);

}  // namespace trireme::kernels
