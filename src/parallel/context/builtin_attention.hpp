// The library's own chunk pairs: plain soft-max attention, one query after the other, in f32.
#pragma once

#include <trireme/context.h>

#include <cstdint>

namespace trireme::parallel {

// Both take f32 arrays. `scores` has room for a number of each key.
void builtin_forward(const trireme_attention_call& call, float* scores);
void builtin_backward(const trireme_attention_call& call);

// A sum of products, in 8 sums whose order is fixed.
float dot(const float* a, const float* b, std::uint64_t count);

}  // namespace trireme::parallel
