// Results of chunk pairs, before and after they are whole. A result has a maximum and a sum for
// each row and head, and an output that is not yet divided by the sum.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::parallel {

struct Partial {
  float* output = nullptr;   // `width` elements of each row and head
  float* maximum = nullptr;  // one of each row and head
  float* sum = nullptr;
};

// Makes `left` the result over the keys of both. count: rows times heads.
void merge_partials(const Partial& left, const Partial& right, std::uint64_t count,
                    std::uint64_t width);

// Divides the output by the sum, and writes it as the dtype.
void finish_partial(const Partial& whole, std::uint64_t count, std::uint64_t width,
                    trireme_dtype dtype, void* output);

// left[i] += right[i].
void add_summands(float* left, const float* right, std::uint64_t count);

}  // namespace trireme::parallel
