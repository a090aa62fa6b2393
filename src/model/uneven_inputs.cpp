#include "model/uneven_inputs.hpp"

#include <utility>

#include "platform/failpoint.hpp"

namespace trireme::strategies {

Operation UnevenInputs::operation(Link& link, const std::shared_ptr<Storage>& storage) {
  return in_place(link, link.gathers, OperationKind::all_reduce, TRIREME_DTYPE_I64, word_, 1,
                  storage->hold());
}

Status UnevenInputs::enter(Link& link, const std::shared_ptr<Storage>& storage) {
  if (!is_open() || entered_) return Status::success();
  *word_ = 1;
  TRIREME_RETURN_IF_ERROR(
      link.communicator->start(operation(link, storage), link.deadline(), &request_));
  entered_ = true;
  TRIREME_FAILPOINT("uneven", "after_enter");
  return Status::success();
}

Status UnevenInputs::look(Link& link, const std::shared_ptr<Storage>& storage,
                          std::int64_t* out_active) {
  *word_ = 0;
  TRIREME_FAILPOINT("uneven", "before_look");
  TRIREME_RETURN_IF_ERROR(link.run(operation(link, storage)));
  *out_active = *word_;
  entered_ = true;
  return Status::success();
}

void UnevenInputs::note(StepEvent::Kind kind, std::uint64_t value) {
  if (is_open()) events_.push_back({kind, value});
}

Status UnevenInputs::settle(Link& link) {
  const std::shared_ptr<Request> request = std::exchange(request_, nullptr);
  return request == nullptr ? Status::success() : link.wait(*request);
}

Status UnevenInputs::leave(Link& link, bool own) {
  if (!is_open()) return Status::success();
  entered_ = false;
  if (own) {
    last_ = std::move(events_);
    has_last_ = true;
  }
  events_.clear();
  return settle(link);
}

}  // namespace trireme::strategies
