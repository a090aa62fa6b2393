// Walk: goes through the actions of all ranks in an order in which they can run, each after what it
// needs. The checker looks whether it comes to the end; the simulator counts time on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/schedule.hpp"

namespace trireme::pipeline {

constexpr std::uint64_t kNothing = ~std::uint64_t{0};

// The messages that an action needs and makes. Both directions have one cell for each stage and
// micro-batch: forward ones lie at the stage that made them, backward ones as well.
class Messages {
 public:
  explicit Messages(const Schedule& schedule)
      : schedule_(schedule), named_(has_messages(schedule)) {}

  bool named() const { return named_; }
  bool needs_forward(const Action& action) const {
    const bool takes = named_ ? action.kind == TRIREME_PIPELINE_KIND_RECV_F
                              : action.kind == TRIREME_PIPELINE_KIND_F;
    return takes && action.stage > 0 && schedule_.crosses(action.stage - 1);
  }
  bool needs_backward(const Action& action) const {
    const bool takes =
        named_ ? action.kind == TRIREME_PIPELINE_KIND_RECV_B : is_backward(action.kind);
    return takes && schedule_.crosses(action.stage);
  }
  bool makes_forward(const Action& action) const {
    const bool gives = named_ ? action.kind == TRIREME_PIPELINE_KIND_SEND_F
                              : action.kind == TRIREME_PIPELINE_KIND_F;
    return gives && schedule_.crosses(action.stage);
  }
  bool makes_backward(const Action& action) const {
    const bool gives =
        named_ ? action.kind == TRIREME_PIPELINE_KIND_SEND_B : is_backward(action.kind);
    return gives && action.stage > 0 && schedule_.crosses(action.stage - 1);
  }

 private:
  const Schedule& schedule_;
  const bool named_;
};

// A link carries the messages of one stage boundary in one direction. Forward links come first.
struct Need {
  bool backward = false;
  std::uint64_t cell = kNothing;  // of the message
  std::uint32_t link = 0;
};

class Walk {
 public:
  // `buffers`: messages of a link that may wait for their receiver; 0 is no limit.
  Walk(const Schedule& schedule, std::uint32_t buffers);

  // Calls `visit(rank, index, action, need)` for each action in turn. `need.cell` is the message
  // that the action took, or kNothing. Returns whether all actions could run.
  template <class Visit>
  bool run(Visit&& visit);

  // After run() returned false: the index of the action at which a rank stands.
  std::uint64_t next(std::uint32_t rank) const { return next_[rank]; }
  bool ended(std::uint32_t rank) const { return next_[rank] == schedule_.of(rank).size(); }
  const Messages& messages() const { return messages_; }
  // Whether the next action of a rank waits for a free buffer rather than for a message.
  bool lacks_buffer(std::uint32_t rank) const;
  Need need_of(const Action& action) const;
  std::uint32_t giver(const Action& action) const;  // the rank that sends what the action needs
  std::uint32_t taker(const Action& action) const;  // the rank that takes what the action makes

 private:
  std::uint32_t link(const Action& action) const {  // that carries what the action makes
    return messages_.makes_forward(action) ? action.stage : schedule_.stages() + action.stage;
  }
  bool has_room(const Action& action) const {
    if (buffers_ == 0) return true;
    return !makes(action) || waiting_[link(action)] < buffers_;
  }
  bool makes(const Action& action) const {
    return messages_.makes_forward(action) || messages_.makes_backward(action);
  }
  void wake(std::uint32_t rank) {
    if (!asleep_[rank]) return;
    asleep_[rank] = false;
    ready_.push_back(rank);
  }

  const Schedule& schedule_;
  const Messages messages_;
  const std::uint32_t buffers_;
  std::vector<std::uint64_t> next_;
  std::vector<bool> sent_;  // by cell, forward ones first
  std::vector<std::uint32_t> waiting_;
  std::vector<bool> asleep_;
  std::vector<std::uint32_t> ready_;
};

template <class Visit>
bool Walk::run(Visit&& visit) {
  const std::uint64_t cells = schedule_.cell(schedule_.stages(), 0);
  std::uint64_t left = schedule_.actions.size();
  while (!ready_.empty()) {
    const std::uint32_t rank = ready_.back();
    ready_.pop_back();
    const std::span<const Action> list = schedule_.of(rank);
    std::uint64_t index = next_[rank];
    for (; index < list.size(); ++index, --left) {
      const Action& action = list[index];
      const Need need = need_of(action);
      if (need.cell != kNothing && !sent_[need.cell + (need.backward ? cells : 0)]) break;
      if (!has_room(action)) break;
      visit(rank, index, action, need);
      if (need.cell != kNothing && buffers_ != 0) {
        --waiting_[need.link];
        wake(giver(action));
      }
      if (makes(action)) {
        const bool forward = messages_.makes_forward(action);
        sent_[schedule_.cell(action.stage, action.micro_batch) + (forward ? 0 : cells)] = true;
        if (buffers_ != 0) ++waiting_[link(action)];
        wake(taker(action));
      }
    }
    next_[rank] = index;
    asleep_[rank] = true;
  }
  return left == 0;
}

}  // namespace trireme::pipeline
