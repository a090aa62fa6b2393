// Reduction and cast loops over memory.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

// Whether the reduction means something for the dtype (sum of bool does not, for example).
bool reduction_supported(trireme_dtype dtype, trireme_reduction reduction);

// destination[i] = sources[0][i] op sources[1][i] op ... in that order, in one pass over all
// sources; source_count >= 1. destination may equal any source, but must not overlap one in another
// way. AVERAGE divides the sum by `divisor`, SCALED_SUM multiplies it by `scale`; other reductions
// ignore both.
//
// f16, bf16 and f8 are combined in f32 and rounded once at the end (nearest even; beyond its
// largest value f8e4m3, which has no infinity, becomes NaN). Integer sums and products wrap;
// AVERAGE divides the wrapped sum and truncates toward zero. Every NaN that is stored is the type's
// one positive quiet NaN. So the bits do not depend on the vector instructions in use, on alignment
// or on how a range is cut into calls.
void reduce(trireme_dtype dtype, trireme_reduction reduction, void* destination,
            const void* const* sources, std::uint32_t source_count, std::uint64_t count,
            std::uint32_t divisor, double scale);

// The same for so few bytes that the result stays in the caches.
void reduce_few(trireme_dtype dtype, trireme_reduction reduction, void* destination,
                const void* const* sources, std::uint32_t source_count, std::uint64_t count,
                std::uint32_t divisor, double scale);

// What is done before the end: an average and a scaled sum are sums until then.
inline trireme_reduction unfinished(trireme_reduction reduction) {
  const bool ends = reduction == TRIREME_REDUCTION_AVERAGE || reduction == TRIREME_REDUCTION_SCALED_SUM;
  return ends ? trireme_reduction{TRIREME_REDUCTION_SUM} : reduction;
}

// Whether elements are combined in f32 and rounded at the end: f16, bf16 and f8.
bool is_narrow(trireme_dtype dtype);
// Between a narrow dtype and f32, by the rules above.
void widen(trireme_dtype dtype, float* destination, const void* source, std::uint64_t count);
void narrow(trireme_dtype dtype, void* destination, const float* source, std::uint64_t count);
// Where a wide value does not round to its narrow one, it becomes that: who wrote the narrow one did
// not know of the other. f16 or bf16.
void adopt(trireme_dtype dtype, float* wide, const void* narrow, std::uint64_t count);
// destination[i] += source[i], which is of a narrow dtype.
void add_widened(trireme_dtype dtype, float* destination, const void* source, std::uint64_t count);

// reduce() into several destinations, of which each may equal a source. `stream` stores past the
// caches, unless there is a source among them, whose old contents are read anyway.
void reduce_into(trireme_dtype dtype, trireme_reduction reduction, void* const* destinations,
                 std::uint32_t destination_count, const void* const* sources,
                 std::uint32_t source_count, std::uint64_t count, std::uint32_t divisor,
                 double scale, bool stream);

// From this size on a result does not stay in the caches until somebody reads it, and storing past
// them saves reading the old contents first.
std::uint64_t streaming_bytes();

// destination[i] += source[i], f32 or f64.
void add(trireme_dtype dtype, void* destination, const void* source, std::uint64_t count);

// destination[i] = destination[i] * factor, f32 (factor rounded to f32 first) or f64.
void scale(trireme_dtype dtype, void* destination, double factor, std::uint64_t count);

// destination[i] into [-limit, limit], limit > 0; NaN stays. f32 (limit rounded to f32) or f64.
void clamp(trireme_dtype dtype, void* destination, double limit, std::uint64_t count);

// memcpy that stores past the caches, whatever the size.
void stream(void* destination, const void* source, std::uint64_t bytes);

// memcpy that stores past the caches when `bytes` is large.
void copy(void* destination, const void* source, std::uint64_t bytes);

// "avx512", "avx2" or "scalar": what this machine runs. TRIREME_VECTOR=avx2|scalar asks for less.
const char* vector_instructions();

}  // namespace trireme::kernels
