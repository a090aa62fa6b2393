#include "parallel/pipeline/walk.hpp"

namespace trireme::pipeline {

Walk::Walk(const Schedule& schedule, std::uint32_t buffers)
    : schedule_(schedule),
      messages_(schedule),
      buffers_(buffers),
      next_(schedule.ranks),
      sent_(2 * schedule.cell(schedule.stages(), 0)),
      waiting_(buffers == 0 ? 0 : 2 * std::size_t{schedule.stages()}),
      asleep_(schedule.ranks) {
  for (std::uint32_t rank = schedule.ranks; rank > 0; --rank) ready_.push_back(rank - 1);
}

Need Walk::need_of(const Action& action) const {
  if (messages_.needs_forward(action)) {
    return {false, schedule_.cell(action.stage - 1, action.micro_batch), action.stage - 1};
  }
  if (messages_.needs_backward(action)) {
    return {true, schedule_.cell(action.stage + 1, action.micro_batch),
            schedule_.stages() + action.stage + 1};
  }
  return {};
}

std::uint32_t Walk::giver(const Action& action) const {
  return schedule_.rank_of[messages_.needs_forward(action) ? action.stage - 1 : action.stage + 1];
}

std::uint32_t Walk::taker(const Action& action) const {
  return schedule_.rank_of[messages_.makes_forward(action) ? action.stage + 1 : action.stage - 1];
}

bool Walk::lacks_buffer(std::uint32_t rank) const {
  const Action& action = schedule_.of(rank)[next_[rank]];
  const Need need = need_of(action);
  const std::uint64_t cells = schedule_.cell(schedule_.stages(), 0);
  return need.cell == kNothing || sent_[need.cell + (need.backward ? cells : 0)];
}

}  // namespace trireme::pipeline
