// The effect of a failure on a model, and on the groups that it works in.
#include <string>
#include <utility>
#include <vector>

#include "model/peers.hpp"

namespace trireme::strategies {

Status Peers::refuse_call() {
  return invalid_state("called from inside a layer, bucket hook or update rule of the model");
}

Status Peers::keep_failure(Status status) {
  switch (status.code()) {
    case TRIREME_ERROR_INVALID_ARGUMENT:
    case TRIREME_ERROR_UNSUPPORTED:
    case TRIREME_ERROR_OUT_OF_MEMORY: break;
    case TRIREME_ERROR_INVALID_STATE:
      // It is the caller's mistake, but one that no later call can mend.
      if (link_.communicator->failure().code() != TRIREME_ERROR_INVALID_STATE) break;
      status = invalid_state(status.message() +
                             ": the model's communicator was destroyed before the model, which can "
                             "only be destroyed now");
      give_up(status);
      break;
    default: give_up(status); return Status(failed_);
  }
  return status;
}

void Peers::give_up(const Status& status) {
  failed_ = status;
  end_groups(status);
  tell();
  // A late rank of a small group may have waited there for a rank of another: the caller's group
  // sees all ranks.
  if (status.code() != TRIREME_ERROR_TIMEOUT) return;
  Status whole = link_.communicator->failure();
  const FailureDetails *const here = status.details(), *const there = whole.details();
  if (whole.code() != TRIREME_ERROR_TIMEOUT || there == nullptr) return;
  if (here != nullptr && here->blamed == there->blamed) return;
  failed_ = link_.of_step(link_.of_deadline(std::move(whole)));
}

// Models along that axis have it, too, or are about to receive it. Those along another one may not.
void Peers::give_up_together(const Status& status) {
  failed_ = Status(status);
  for (const auto* const group : link_.groups()) {
    if (*group != nullptr && group != &link_.communicator) {
      (*group)->fail(status.code(), status.message());
    }
  }
  if (norm_group_ != nullptr) norm_group_->fail(status.code(), status.message());
  for (const auto& group : joined_) group->fail(status.code(), status.message());
  if (axes_.own_groups().size() > 1) {
    for (const auto& group : axes_.own_groups()) group->fail(status.code(), status.message());
  }
  tell();
}

// Without this, a rank that waits in one of them would wait for this rank in vain. A group that has
// failed tells the reason already; a failure of none of them is known to the others, too, or is
// this rank's own.
void Peers::end_groups(const Status& status) const noexcept {
  std::vector<Communicator*> groups;
  try {
    for (const auto* const group : link_.groups()) {
      if (*group != nullptr) groups.push_back(group->get());
    }
    if (norm_group_ != nullptr) groups.push_back(norm_group_.get());
    for (const auto& group : joined_) groups.push_back(group.get());
    for (const auto& group : axes_.own_groups()) groups.push_back(group.get());
    // The groups along axes of a mesh are the caller's: they tell a cause, and go on.
    std::vector<Communicator*> causes = groups;
    for (Communicator* const group : axes_.groups()) causes.push_back(group);
    for (Communicator* const failed : causes) {
      const Status cause = failed->shared_failure();
      if (cause.ok()) continue;
      // Before any rank went on, all ranks knew the failure of a hook or layer: the caller's group
      // is in step.
      const bool in_step = cause.code() == TRIREME_ERROR_CALLBACK;
      for (Communicator* const group : groups) {
        const bool lives = in_step && group == link_.communicator.get();
        if (group != failed && !lives) group->fail_with(failed->lineage(), cause);
      }
      return;
    }
  } catch (...) {  // no memory for the reason
    return fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
  }
  report(status);
  // The caller's group goes on; the model's own groups are of no more use, and other models cannot
  // count on this rank.
  for (Communicator* const group : groups) {
    if (group != link_.communicator.get()) group->fail(status.code(), status.message());
  }
}

void Peers::abort(const Status& status, const std::string& why) {
  failed_ = status;
  link_.communicator->abort(why);
}

Status Peers::report_disk(Status status) const {
  if (!status.ok()) fail_groups(status.code(), status.message());
  return status;
}

void Peers::report(const Status& status) const noexcept {
  // Any other failure has come from the peers, or they have the same.
  if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY || status.code() == TRIREME_ERROR_SYSTEM) {
    fail_groups(status.code(), status.message());
  }
}

void Peers::fail_groups(trireme_status code, std::string_view why) const noexcept {
  link_.fail(code, why);
  if (norm_group_ != nullptr) norm_group_->fail(code, why);
  for (const auto& group : joined_) group->fail(code, why);
  for (const auto& group : axes_.own_groups()) group->fail(code, why);
  tell();
}

// The process may end as soon as the call has returned. Peers that do not know the failure by then
// would blame this rank.
void Peers::tell() const noexcept {
  try {
    for (const auto* const group : link_.groups()) {
      if (*group != nullptr) static_cast<void>((*group)->failure());
    }
    if (norm_group_ != nullptr) static_cast<void>(norm_group_->failure());
    for (const auto& group : joined_) static_cast<void>(group->failure());
    for (const auto& group : axes_.own_groups()) static_cast<void>(group->failure());
  } catch (...) {  // no memory for the words of a failure
  }
}

}  // namespace trireme::strategies
