// Agreement: before a collective made of messages moves anything, all ranks have called it, and all
// have called the same.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.hpp"
#include "collectives/message_queue.hpp"

namespace trireme {

// `group` is the communicator's name. After success *gives tells which ranks contribute to a fold.
Status reach_agreement(Backend& backend, MessageQueue& messages, const std::string& group,
                       const Operation& operation, std::uint64_t sequence, Deadline deadline,
                       std::vector<bool>* gives);

}  // namespace trireme
