// Random numbers by element: the same bits at every vector level, for every part of an array.
// trireme/random.h defines them.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

// Part of an array of rows and columns. The number of its last element fits into 64 bits, and its
// elements fit into memory.
struct RandomPart {
  std::uint64_t seed = 0, draw = 0;
  std::uint64_t first_row = 0, rows = 0;
  std::uint64_t first_column = 0, columns = 0, all_columns = 0;
};

// dtype f32, f64, f16 or bf16, at any address, also below.
void random_uniform(trireme_dtype dtype, const RandomPart& part, void* data);

// rate in [0, 1). `destination` may be `source`.
void random_dropout(trireme_dtype dtype, const RandomPart& part, double rate, const void* source,
                    void* destination);

}  // namespace trireme::kernels
