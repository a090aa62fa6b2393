// The matrix that has the directions of another one, all about equally long: what MUON goes along.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <functional>

#include "platform/status.hpp"

namespace trireme::optimizers {

// Of working memory that one matrix of f32 or f64 needs.
std::uint64_t orthogonal_bytes(trireme_dtype dtype, std::uint64_t rows, std::uint64_t columns);

// How long it takes, in multiplications.
double orthogonal_cost(std::uint64_t rows, std::uint64_t columns);

// `steps` Newton-Schulz steps, in place, as optimizer.h writes them. The bits depend on nothing
// but the elements. may_go_on, if there is one, is asked before each product: its first failure is
// answered at once, and leaves the matrix unfinished.
Status orthogonalise(trireme_dtype dtype, void* matrix, std::uint64_t rows, std::uint64_t columns,
                     std::uint32_t steps, char* memory,
                     const std::function<Status()>& may_go_on = {});

}  // namespace trireme::optimizers
