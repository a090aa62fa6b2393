// What a failure makes of a model, and of the groups that it works in.
#include <string>
#include <utility>
#include <vector>

#include "model/model.hpp"

namespace trireme::strategies {

Status Model::keep(Status status) {
  switch (status.code()) {
    case TRIREME_OK:
    case TRIREME_ERROR_INVALID_ARGUMENT:
    case TRIREME_ERROR_UNSUPPORTED:
    case TRIREME_ERROR_OUT_OF_MEMORY: break;
    case TRIREME_ERROR_INVALID_STATE:
      // The caller's mistake, but one that no later call can make good.
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

void Model::give_up(const Status& status) {
  failed_ = status;
  end_groups(status);
  // Who was late in a small group may have waited there for one of another: the caller's group sees all.
  if (status.code() != TRIREME_ERROR_TIMEOUT) return;
  Status whole = link_.communicator->failure();
  const FailureDetails *const here = status.details(), *const there = whole.details();
  if (whole.code() != TRIREME_ERROR_TIMEOUT || there == nullptr) return;
  if (here != nullptr && here->blamed == there->blamed) return;
  failed_ = link_.of_step(link_.of_deadline(std::move(whole)));
}

// A rank that waits in one of them would wait for this one in vain. What has failed already says why; a
// failure of none of them the others have, too, or it is this rank's own.
void Model::end_groups(const Status& status) const noexcept {
  std::vector<Communicator*> groups;
  try {
    for (const auto* const group : link_.groups()) {
      if (*group != nullptr) groups.push_back(group->get());
    }
    if (norm_group_ != nullptr) groups.push_back(norm_group_.get());
    for (Communicator* const failed : groups) {
      const Status cause = failed->shared_failure();
      if (cause.ok()) continue;
      // What a hook or layer has failed, its ranks told before anybody went on: the caller's group is in step.
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
  tell(status);
  // The caller's group goes on; those of the model are of no use to anybody, nor is this rank to those of other models.
  for (Communicator* const group : groups) {
    if (group != link_.communicator.get()) group->fail(status.code(), status.message());
  }
}

void Model::tell(const Status& status) const noexcept {
  // Anything else has come from the peers, or they have the same.
  if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY || status.code() == TRIREME_ERROR_SYSTEM) {
    fail_groups(status.code(), status.message());
  }
}

void Model::fail_groups(trireme_status code, std::string_view why) const noexcept {
  link_.fail(code, why);
  if (norm_group_ != nullptr) norm_group_->fail(code, why);
}

}  // namespace trireme::strategies
