// Whether there is an inf or NaN among elements.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

// f16, bf16, f32 or f64, at any address.
bool all_finite(trireme_dtype dtype, const void* values, std::uint64_t count);

}  // namespace trireme::kernels
