// Names of the layers of experts that live on each communicator of this process.
#pragma once

#include <string>

#include "collectives/communicator.hpp"

namespace trireme::parallel {

// The name is the layer's until it drops it. `name` must live so long. Any thread.
Status take_expert_name(const Communicator& communicator, const std::string& name);
void drop_expert_name(const Communicator& communicator, const std::string& name) noexcept;

}  // namespace trireme::parallel
