// Soft-max of a row that lies in parts: the same bits at every vector level. Each part has its
// largest element and sums. Parts are merged in pairs.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <limits>

namespace trireme::kernels {

// A part of a row. Written into memory and messages as it is.
struct SoftmaxPart {
  double largest = -std::numeric_limits<double>::infinity();  // NaN if an element is NaN
  double sum = 0;     // of exp(element - largest), unless `largest` is no finite number
  double linear = 0;  // a sum over the elements that has nothing to do with soft-max
};

// linear: the sum of the elements if `with_sum`, else 0. dtype f32, f64, f16 or bf16. An
// exponential below e^-87, or e^-708 of f64, counts as 0.
SoftmaxPart softmax_part(trireme_dtype dtype, const void* elements, std::uint64_t count,
                         bool with_sum);

SoftmaxPart merge(const SoftmaxPart& a, const SoftmaxPart& b);

// gradients[i] = factor * exp(elements[i] - largest) - shift, where no element is above `largest`.
// Both arrays may be the same memory.
void softmax_gradients(trireme_dtype dtype, const void* elements, void* gradients,
                       std::uint64_t count, double largest, double factor, double shift);

// exp(x) of numbers up to 0. x may be -inf.
double exponential(double x);
// The natural logarithm of a finite number of 1 or more.
double logarithm(double x);

}  // namespace trireme::kernels
