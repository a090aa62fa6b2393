// The rules of a context's options.
#pragma once

#include "parallel/context/context.hpp"

namespace trireme::parallel {

Status check_context_options(const ContextOptions& options, std::uint32_t world_size);

}  // namespace trireme::parallel
