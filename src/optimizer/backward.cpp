// Optimizer: update in backward, bucket by bucket as their gradients are reduced.
#include <string>
#include <utility>

#include "optimizer/optimizer.hpp"
#include "optimizer/rules/lamb_lars.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Bucket;

// What must have seen all gradients before anything is updated.
Status Optimizer::check_update_in_backward() const {
  const char* why = nullptr;
  if (settings_.one_sweep) {
    why = "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP, which keeps all gradients until the step";
  } else if (settings_.max_norm > 0 || group_count() > 0) {
    why = "a norm of all gradients to be clipped to";
  } else if (loss_scale_.on()) {
    why = "a loss scale, by which a step may have to be skipped";
  } else if (optimizers::needs_norms(settings_)) {
    why = "a rule that needs norms of whole parameters";
  } else if (settings_.has_matrices()) {
    why = "a rule that needs whole matrices";
  }
  if (why == nullptr) return Status::success();
  return unsupported(std::string("TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD with ") + why);
}

// `reduced`: with data_parallel the whole bucket, else this rank's block of it.
Status Optimizer::update_bucket(std::uint64_t number, char* reduced) {
  Model& model = *model_;
  const Bucket& bucket = model.layout_->buckets[number];
  TRIREME_FAILPOINT("bucket", "before_update");
  model.reducer_->run_hook_after(number, reduced);
  // All ranks hear of it in the step.
  if (model.reducer_->hook_answer().answer != 0 || answer_ != 0) return Status::success();
  clip_values(bucket, reduced);
  const auto update_piece = [&](const Piece& piece) -> Status {
    answered_parameter_ = piece.parameter;
    return model.tell_disk(
        with_parameters(piece, ParameterFile::Access::update, [&](const Piece& part) {
          if (answer_ != 0) return Status::success();
          const CallbackScope scope(model.link_);
          answer_ = optimizers::update_piece(settings_, part, step_of(part), 1);
          return Status::success();
        }));
  };
  const std::uint64_t first = first_pieces_[number], end = first_pieces_[number + 1];
  for (std::uint64_t i = first; i < end; ++i) pieces_[i].gradients = reduced + gradient_places_[i];
  if (model.parameter_file_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(model.tell_disk(model.parameter_file_->expect(bucket.groups)));
  }
  if (offload_ != nullptr) {
    TRIREME_RETURN_IF_ERROR(update_offloaded(first, end, update_piece, &answer_));
  } else {
    for (std::uint64_t i = first; i < end && answer_ == 0; ++i) {
      TRIREME_RETURN_IF_ERROR(update_piece(pieces_[i]));
    }
  }
  if (model.parameter_file_ == nullptr) return Status::success();
  return model.tell_disk(model.parameter_file_->close_window());
}

// Updates what is left, and tells whether all went well on all ranks.
Status Optimizer::finish_updates() {
  Model& model = *model_;
  Reducer& reducer = *model.reducer_;
  TRIREME_RETURN_IF_ERROR(reducer.finish_updates());
  TRIREME_FAILPOINT("step", "after_reductions");
  if (model.options_.bucket_hook != nullptr) {
    const HookAnswer& hook = reducer.hook_answer();
    TRIREME_RETURN_IF_ERROR(compare_answers(hook.answer, hook.bucket, "bucket hook", "bucket"));
  }
  if (!reducer.verdict().ok()) {
    // Those who have discarded the step hear of it, too.
    model.fail_groups(reducer.verdict().code(), reducer.verdict().message());
    return Status(reducer.verdict());
  }
  // Also without a rule of the caller: nobody takes a step for made that another one has discarded.
  return compare_answers(std::exchange(answer_, 0), answered_parameter_, "update rule",
                         "parameter");
}

// Of a rank that discards a step which the others may make: what finish_updates() exchanges.
void Optimizer::tell_discarded(const HookAnswer& hook) {
  Status told = Status::success();
  if (model_->options_.bucket_hook != nullptr) {
    told = compare_answers(hook.answer, hook.bucket, "bucket hook", "bucket");
  }
  if (told.ok()) told = compare_answers(kDiscarded, sharding::kNone, "update rule", "parameter");
}

}  // namespace trireme::strategies
