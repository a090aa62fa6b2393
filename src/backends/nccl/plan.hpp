// How NCCL makes a collective, so that its bits are those of the host. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/backend.hpp"
#include "devices/cuda/plugin.hpp"
#include "platform/status.hpp"

namespace trireme::nccl {

enum class How {
  moves,     // bytes alone
  sums,      // NCCL reduces
  exchanges  // the parts are exchanged, and a kernel of the library sums them in rank order
};

// `own_sums`: the caller asks for NCCL's own, whose bits may differ.
How how(const PlainOperation& operation, bool own_sums);
// UNSUPPORTED if NCCL has no such sum, or one that breaks the library's rules.
Status check_own_sums(const PlainOperation& operation);

// For a reduction that NCCL makes. An average or scaled sum is a sum, which a kernel then finishes.
cuda::NcclType type_of(trireme_dtype dtype);
cuda::NcclReduction reduction_of(trireme_reduction reduction);
bool is_finished_by_kernel(trireme_reduction reduction);

// The elements that one rank sums in an exchange.
struct Share {
  std::uint64_t first = 0, count = 0;
};
std::vector<Share> shares_of(const PlainOperation& operation, int world_size);
// The part of a share that lies in its elements [at, at + most).
Share window_of(const Share& share, std::uint64_t at, std::uint64_t most);

}  // namespace trireme::nccl
