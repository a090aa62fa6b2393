// The matrix with the directions of another one, all about equally long: MUON steps along it.
#pragma once

#include <trireme/types.h>

#include <cstdint>
#include <functional>

#include "platform/status.hpp"

namespace trireme::optimizers {

// Bytes of working memory for one matrix of f32 or f64.
std::uint64_t orthogonal_bytes(trireme_dtype dtype, std::uint64_t rows, std::uint64_t columns);

// Its cost in multiplications.
double orthogonal_cost(std::uint64_t rows, std::uint64_t columns);

// `steps` Newton-Schulz steps, in place, as optimizer.h writes them. The bits depend only on the
// elements. It asks may_go_on, if there is one, before each product. The first failure of that is
// returned at once, and leaves the matrix unfinished.
Status orthogonalise(trireme_dtype dtype, void* matrix, std::uint64_t rows, std::uint64_t columns,
                     std::uint32_t steps, char* memory,
                     const std::function<Status()>& may_go_on = {});

}  // namespace trireme::optimizers
