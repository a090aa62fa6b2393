// Optimizer: one step, from the gradients handed in to parameters on all ranks.
#include <bit>
#include <string>
#include <utility>

#include "optimizer/optimizer.hpp"
#include "optimizer/rules/user.hpp"
#include "optimizer/whole_gradients.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {
namespace {

// Steps from the creation of an optimizer on, in which models compare gradients in any case.
constexpr std::uint32_t kComparedSteps = 3;

// Whether check_every makes a comparison part of the step of this number.
bool compares(const optimizers::Settings& settings, std::uint64_t step) {
  return settings.check_every != 0 && step % settings.check_every == 0;
}

}  // namespace

Status Optimizer::check_step() const {
  TRIREME_RETURN_IF_ERROR(shard_.check_sealed());
  TRIREME_RETURN_IF_ERROR(shard_.gradients().passes().check_complete());
  return shard_.check_released("the step");
}

Status Optimizer::step() {
  TRIREME_RETURN_IF_ERROR(check_step());
  // This comes first, because a schedule of the caller may fail.
  if (!shard_.updates_in_backward()) {
    TRIREME_RETURN_IF_ERROR(next_rate(&settings_.step_rate));
  } else if (!shard_.gradients().agreement().has_rate()) {  // no pass of this rank has asked for
                                                            // the rate
    double rate = 0;
    TRIREME_RETURN_IF_ERROR(next_rate(&rate));
    take_rate(rate);
  }
  TRIREME_RETURN_IF_ERROR(shard_.keep(shard_.enter_step()));
  bool nobody = false;
  TRIREME_RETURN_IF_ERROR(run_step(false, &nobody));
  return norms_.outcome();
}

Status Optimizer::run_step(bool shadowed, bool* nobody) {
  const std::uint64_t number = steps_ + 1;
  // Whether other models of a mesh go on if this one fails now. Before their norm they hear of it.
  bool others_go_on = shard_.steps_alone();
  const bool compares_gradients = (own_steps_ < kComparedSteps || compares(settings_, number)) &&
                                  !shard_.updates_in_backward() && !rule_->reduces() &&
                                  has_whole_gradients(shard_);
  bool differs = false;  // from other models
  const auto run = [&]() -> Status {
    // A gather ends on this rank when no peer reads its shard any more. A later one reads the shard
    // only when this rank has come to it. So while no gather is under way here, the update below is
    // alone with the shard.
    TRIREME_RETURN_IF_ERROR(shard_.drop_gathered());
    TRIREME_FAILPOINT("step", "before_reductions");
    if (shard_.updates_in_backward()) {
      TRIREME_RETURN_IF_ERROR(finish_updates());
      return end_step(shadowed);
    }
    state_.read_ahead();
    TRIREME_RETURN_IF_ERROR(shard_.report_disk(shard_.expect_updates()));
    TRIREME_RETURN_IF_ERROR(shard_.gradients().wait_reductions());
    TRIREME_FAILPOINT("step", "after_reductions");
    std::uint32_t contributors = 0;
    if (shard_.uneven()) {
      TRIREME_RETURN_IF_ERROR(agree_on_contributors(shadowed, &contributors, nobody));
      if (*nobody) {
        shard_.gradients().clear();
        return shard_.uneven_inputs().leave(shard_.link(), false);
      }
    }
    norms_.begin_step();
    if (rule_->reduces()) {
      TRIREME_RETURN_IF_ERROR(norms_.add_up(&parameter_steps_));
      others_go_on = true;
      TRIREME_RETURN_IF_ERROR(rule_->update(norms_.factors(steps_ + 1, parameter_steps_)));
      return end_step(shadowed);
    }
    TRIREME_RETURN_IF_ERROR(shard_.gradients().exchange().finish(contributors));
    if (shard_.options().bucket_hook != nullptr) {
      shard_.gradients().hook().after_all();
      const HookAnswer& hook = shard_.gradients().hook().answer();
      TRIREME_RETURN_IF_ERROR(
          compare_answers(shard_, hook.answer, hook.bucket, "bucket hook", "bucket"));
    }
    if (compares_gradients) {
      if (own_steps_ < kComparedSteps) ++own_steps_;
      TRIREME_RETURN_IF_ERROR(compare_whole_gradients(shard_, &differs));
    }
    norms_.look_for_overflow();
    norms_.clip_values();
    TRIREME_RETURN_IF_ERROR(norms_.add_up(&parameter_steps_));
    others_go_on = true;
    if (norms_.overflows()) {  // the gradients are dropped, all else stays as it was
      TRIREME_RETURN_IF_ERROR(shard_.leave_step(!shadowed));
      norms_.step_skipped();
      return Status::success();
    }
    TRIREME_RETURN_IF_ERROR(rule_->update(norms_.factors(steps_ + 1, parameter_steps_)));
    return end_step(shadowed);
  };
  Status status = run();
  // A step that broke has left parameters that are neither the old nor the new ones.
  if (status.ok()) return status;
  // They come to the comparison of this step. It comes first: the norm's group fails below, and
  // they may not have left it.
  if (others_go_on && steps_ < number && compares(settings_, number))
    model_->refuse_replicas(status);
  if (differs) {
    shard_.give_up_together(status);
  } else {
    shard_.give_up(status);
  }
  return Status(shard_.failure());
}

// Gives the updated parameters to the ranks that need them, so that the next step may begin.
Status Optimizer::end_step(bool shadowed) {
  TRIREME_FAILPOINT("step", "after_update");
  TRIREME_RETURN_IF_ERROR(shard_.give_parameters(ShardView::Given::updated));
  TRIREME_FAILPOINT("step", "after_give");
  // No rank reads parameters while others still write them. StepNorms::add_up() is the other end of
  // this.
  if (shard_.layout().spread.shared) TRIREME_RETURN_IF_ERROR(shard_.link().meet());
  TRIREME_RETURN_IF_ERROR(shard_.leave_step(!shadowed));
  TRIREME_FAILPOINT("step", "before_return");
  norms_.step_made();
  ++steps_;
  shard_.step_made(steps_);
  return compares(settings_, steps_) ? model_->check_replicas() : Status::success();
}

// Uneven inputs: finds the number that divides the sum, and the learning rate of the step. A rank
// without data takes the others' rate for this step, whatever its own schedule says.
Status Optimizer::agree_on_contributors(bool shadowed, std::uint32_t* out, bool* nobody) {
  std::int64_t* const facts = shard_.told_words();
  constexpr std::size_t kFacts = 3;
  std::int64_t* const own = facts + kFacts * shard_.link().rank();
  constexpr std::int64_t kNoRate = -1;  // the bits of no rate: those of a negative one
  own[0] = shard_.gradients().passes().contributed();
  own[1] = shadowed ? kNoRate : std::bit_cast<std::int64_t>(settings_.learning_rate);
  own[2] = shadowed ? kNoRate : std::bit_cast<std::int64_t>(settings_.step_rate);
  Operation operation = in_place(shard_.link(), shard_.link().reductions, OperationKind::all_gather,
                                 TRIREME_DTYPE_I64, facts, kFacts, shard_.storage()->hold());
  TRIREME_FAILPOINT("step", "before_contributors");
  TRIREME_RETURN_IF_ERROR(shard_.link().run(std::move(operation)));
  std::int64_t contributors = 0;
  *nobody = true;
  for (std::uint32_t rank = 0; rank < shard_.link().world_size(); ++rank) {
    const std::int64_t* const theirs = facts + kFacts * rank;
    contributors += theirs[0];
    if (theirs[1] == kNoRate) continue;
    if (shadowed && *nobody) {
      settings_.learning_rate = std::bit_cast<double>(theirs[1]);
      settings_.step_rate = std::bit_cast<double>(theirs[2]);
    }
    *nobody = false;
  }
  // No rank contributed, so the gradients are zero, whatever divides them.
  *out = contributors > 0 ? static_cast<std::uint32_t>(contributors) : 1;
  return Status::success();
}

}  // namespace trireme::strategies
