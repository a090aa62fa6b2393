// Reduction and cast loops over memory.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

// Whether the reduction has a meaning for the dtype (a sum of bool has none, for example).
bool reduction_supported(trireme_dtype dtype, trireme_reduction reduction);

// destination[i] = sources[0][i] op sources[1][i] op ... in that order, in one pass over all
// sources; source_count >= 1. destination may equal any source, but must not overlap one in part.
// AVERAGE divides the sum by `divisor`, SCALED_SUM multiplies it by `scale`; other reductions
// ignore both.
//
// f16, bf16 and f8 are combined in f32 and rounded once at the end (nearest even; beyond its
// largest value f8e4m3, which has no infinity, becomes NaN). Integer sums and products wrap;
// AVERAGE divides the wrapped sum and truncates toward zero. Every NaN is stored as the type's one
// positive quiet NaN. So the bits do not depend on vector instructions, on alignment or on how a
// range is cut into calls.
void reduce(trireme_dtype dtype, trireme_reduction reduction, void* destination,
            const void* const* sources, std::uint32_t source_count, std::uint64_t count,
            std::uint32_t divisor, double scale);

// The same for few bytes, whose result stays in the caches.
void reduce_few(trireme_dtype dtype, trireme_reduction reduction, void* destination,
                const void* const* sources, std::uint32_t source_count, std::uint64_t count,
                std::uint32_t divisor, double scale);

// The reduction before the last step: an average and a scaled sum are sums until then.
inline trireme_reduction unfinished(trireme_reduction reduction) {
  const bool ends =
      reduction == TRIREME_REDUCTION_AVERAGE || reduction == TRIREME_REDUCTION_SCALED_SUM;
  return ends ? trireme_reduction{TRIREME_REDUCTION_SUM} : reduction;
}

// Whether elements are combined in f32 and rounded at the end: f16, bf16 and f8.
bool is_narrow(trireme_dtype dtype);
// Convert between a narrow dtype and f32, by the rules above.
void widen(trireme_dtype dtype, float* destination, const void* source, std::uint64_t count);
void narrow(trireme_dtype dtype, void* destination, const float* source, std::uint64_t count);
// Each wide value that does not round to its narrow value becomes the narrow value: a caller has
// changed the narrow one alone. dtype is f16 or bf16.
void adopt(trireme_dtype dtype, float* wide, const void* narrow, std::uint64_t count);
// destination[i] += source[i], where the source has a narrow dtype.
void add_widened(trireme_dtype dtype, float* destination, const void* source, std::uint64_t count);

// reduce() into several destinations. Each may equal a source. `stream` stores past the caches,
// unless a destination is a source, whose old contents are read in any case.
void reduce_into(trireme_dtype dtype, trireme_reduction reduction, void* const* destinations,
                 std::uint32_t destination_count, const void* const* sources,
                 std::uint32_t source_count, std::uint64_t count, std::uint32_t divisor,
                 double scale, bool stream);

// A result of this size or more leaves the caches before it is read. Storing past them saves
// reading the old contents first.
std::uint64_t streaming_bytes();

// destination[i] += source[i], f32 or f64.
void add(trireme_dtype dtype, void* destination, const void* source, std::uint64_t count);

// destination[i] = destination[i] * factor, f32 (factor rounded to f32 first) or f64.
void scale(trireme_dtype dtype, void* destination, double factor, std::uint64_t count);

// Clamps destination[i] to [-limit, limit], limit > 0; NaN stays. f32 (limit rounded to f32) or
// f64.
void clamp(trireme_dtype dtype, void* destination, double limit, std::uint64_t count);

// memcpy that stores past the caches, whatever the size.
void stream(void* destination, const void* source, std::uint64_t bytes);

// memcpy that stores past the caches when `bytes` is large.
void copy(void* destination, const void* source, std::uint64_t bytes);

// The level that this machine runs: "avx512", "avx2" or "scalar". TRIREME_VECTOR=avx2|scalar asks
// for a lower one.
const char* vector_instructions();

}  // namespace trireme::kernels
