// Optimizer: one step, from the gradients handed in to parameters on all ranks.
#include "optimizer/step.hpp"

#include <bit>
#include <string>
#include <utility>

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

Status Optimizer::wait_for_caller() {
  DeviceShard* const there = shard_.on_device();
  return there == nullptr ? Status::success() : shard_.keep(there->begin());
}

Status Optimizer::step() {
  TRIREME_RETURN_IF_ERROR(check_step());
  TRIREME_RETURN_IF_ERROR(wait_for_caller());
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
  Step step(*this, 0, false);
  TRIREME_RETURN_IF_ERROR(step.run());
  return norms_.outcome();
}

Optimizer::Step::Step(Optimizer& optimizer, std::uint64_t partners, bool shadowed)
    : optimizer_(optimizer),
      shard_(optimizer.shard_),
      norms_(optimizer.norms_),
      partners_(partners),
      shadowed_(shadowed),
      number_(optimizer.steps_ + 1),
      others_go_on_(partners == 0 && shard_.steps_alone()) {}

Status Optimizer::Step::run() {
  Status status = reduce();
  if (status.ok() && !ended_) status = finish();
  return status.ok() ? status : break_off(status);
}

Status Optimizer::Step::reduce() {
  std::uint32_t& own_steps = optimizer_.own_steps_;
  const UpdateRule& rule = *optimizer_.rule_;
  const bool compares_gradients =
      (own_steps < kComparedSteps || compares(optimizer_.settings_, number_)) &&
      !shard_.updates_in_backward() && !rule.reduces() && has_whole_gradients(shard_);
  // A gather ends on this rank when no peer reads its shard any more. A later one reads the shard
  // only when this rank has come to it. So while no gather is under way here, the update below is
  // alone with the shard.
  TRIREME_RETURN_IF_ERROR(shard_.drop_gathered());
  TRIREME_FAILPOINT("step", "before_reductions");
  if (shard_.updates_in_backward()) {
    TRIREME_RETURN_IF_ERROR(optimizer_.finish_updates());
    ended_ = true;
    return end();
  }
  optimizer_.state_.read_ahead();
  TRIREME_RETURN_IF_ERROR(shard_.report_disk(shard_.expect_updates()));
  TRIREME_RETURN_IF_ERROR(shard_.gradients().wait_reductions());
  TRIREME_FAILPOINT("step", "after_reductions");
  std::uint32_t contributors = 0;
  if (shard_.uneven()) {
    TRIREME_RETURN_IF_ERROR(agree_on_contributors(&contributors));
    if (nobody_) {
      ended_ = true;
      shard_.gradients().clear();
      return shard_.uneven_inputs().leave(shard_.link(), false);
    }
  }
  norms_.begin_step(partners_);
  if (rule.reduces()) return norms_.add_up(&optimizer_.parameter_steps_);
  TRIREME_RETURN_IF_ERROR(shard_.gradients().exchange().finish(contributors));
  if (shard_.options().bucket_hook != nullptr) {
    shard_.gradients().hook().after_all();
    const HookAnswer& hook = shard_.gradients().hook().answer();
    TRIREME_RETURN_IF_ERROR(
        compare_answers(shard_, hook.answer, hook.bucket, "bucket hook", "bucket"));
  }
  if (compares_gradients) {
    if (own_steps < kComparedSteps) ++own_steps;
    TRIREME_RETURN_IF_ERROR(compare_whole_gradients(shard_, &differs_));
  }
  norms_.look_for_overflow();
  norms_.clip_values();
  return norms_.add_up(&optimizer_.parameter_steps_);
}

Status Optimizer::Step::finish() {
  all_go_on();
  ParameterSteps& steps = optimizer_.parameter_steps_;
  norms_.finish(&steps);
  if (norms_.overflows()) {  // the gradients are dropped, all else stays as it was
    TRIREME_RETURN_IF_ERROR(shard_.leave_step(!shadowed_));
    norms_.step_skipped();
    return Status::success();
  }
  TRIREME_RETURN_IF_ERROR(optimizer_.rule_->update(norms_.factors(number_, steps)));
  return end();
}

Status Optimizer::Step::break_off(const Status& status) {
  // Other models come to the comparison of this step. It comes first: the norm's group fails below,
  // and they may not have left it.
  if (others_go_on_ && optimizer_.steps_ < number_ && compares(optimizer_.settings_, number_))
    optimizer_.model_->refuse_replicas(status);
  if (differs_) {
    shard_.give_up_together(status);
  } else {
    shard_.give_up(status);
  }
  return Status(shard_.failure());
}

// Gives the updated parameters to the ranks that need them, so that the next step may begin.
Status Optimizer::Step::end() {
  TRIREME_FAILPOINT("step", "after_update");
  TRIREME_RETURN_IF_ERROR(shard_.give_parameters(ShardView::Given::updated));
  TRIREME_FAILPOINT("step", "after_give");
  // No rank reads parameters while others still write them. StepNorms::add_up() is the other end of
  // this.
  if (shard_.layout().spread.shared) TRIREME_RETURN_IF_ERROR(shard_.link().meet());
  TRIREME_RETURN_IF_ERROR(shard_.leave_step(!shadowed_));
  TRIREME_FAILPOINT("step", "before_return");
  norms_.step_made();
  optimizer_.steps_ = number_;
  shard_.step_made(number_);
  return compares(optimizer_.settings_, number_) ? optimizer_.model_->check_replicas()
                                                 : Status::success();
}

// Uneven inputs: finds the number that divides the sum, and the learning rate of the step. A rank
// without data takes the others' rate for this step, whatever its own schedule says.
Status Optimizer::Step::agree_on_contributors(std::uint32_t* out) {
  optimizers::Settings& settings = optimizer_.settings_;
  std::int64_t* const facts = shard_.told_words();
  constexpr std::size_t kFacts = 3;
  std::int64_t* const own = facts + kFacts * shard_.link().rank();
  constexpr std::int64_t kNoRate = -1;  // the bits of no rate: those of a negative one
  own[0] = shard_.gradients().passes().contributed();
  own[1] = shadowed_ ? kNoRate : std::bit_cast<std::int64_t>(settings.learning_rate);
  own[2] = shadowed_ ? kNoRate : std::bit_cast<std::int64_t>(settings.step_rate);
  Operation operation = in_place(shard_.link(), shard_.link().reductions, OperationKind::all_gather,
                                 TRIREME_DTYPE_I64, facts, kFacts, shard_.storage()->hold());
  TRIREME_FAILPOINT("step", "before_contributors");
  TRIREME_RETURN_IF_ERROR(shard_.link().run(std::move(operation)));
  std::int64_t contributors = 0;
  nobody_ = true;
  for (std::uint32_t rank = 0; rank < shard_.link().world_size(); ++rank) {
    const std::int64_t* const theirs = facts + kFacts * rank;
    contributors += theirs[0];
    if (theirs[1] == kNoRate) continue;
    if (shadowed_ && nobody_) {
      settings.learning_rate = std::bit_cast<double>(theirs[1]);
      settings.step_rate = std::bit_cast<double>(theirs[2]);
    }
    nobody_ = false;
  }
  // No rank contributed, so the gradients are zero, whatever divides them.
  *out = contributors > 0 ? static_cast<std::uint32_t>(contributors) : 1;
  return Status::success();
}

}  // namespace trireme::strategies
