// Checks of the options of a layer of experts.
#pragma once

#include "parallel/experts/experts.hpp"

namespace trireme::parallel {

Status check_experts_options(const ExpertsOptions& options, std::uint32_t world_size);

}  // namespace trireme::parallel
