// The matrix that has the directions of another one, all about equally long: what MUON goes along.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::optimizers {

// Of working memory that one matrix of f32 or f64 needs.
std::uint64_t orthogonal_bytes(trireme_dtype dtype, std::uint64_t rows, std::uint64_t columns);

// How long it takes, in multiplications.
double orthogonal_cost(std::uint64_t rows, std::uint64_t columns);

// `steps` Newton-Schulz steps, in place, as optimizer_shard.h writes them. The bits depend on nothing
// but the elements.
void orthogonalise(trireme_dtype dtype, void* matrix, std::uint64_t rows, std::uint64_t columns,
                   std::uint32_t steps, char* memory);

}  // namespace trireme::optimizers
