// The sums of all ranks before an update: norms for clipping, parameters that no rank has used, and
// overflows with a loss scale. It also clips by value.
#pragma once

#include <trireme/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/exact_sum.hpp"
#include "model/shard_view.hpp"
#include "optimizer/norm_ranks.hpp"
#include "optimizer/rules/clipping.hpp"
#include "optimizer/rules/loss_scale.hpp"
#include "optimizer/rules/step_factors.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// By target, if parameters can be skipped; or empty.
struct ParameterSteps {
  std::vector<std::uint64_t> steps_of;
  std::vector<bool> skipped;  // in this step
};

class StepNorms {
 public:
  static constexpr double kNoNorm = -1;

  StepNorms(ShardView& shard, const optimizers::Settings& settings)
      : shard_(shard), settings_(settings), loss_scale_(settings.loss_scale) {}

  // Bytes of its memory; `own_norm`: the norm is that of the model's own ranks.
  std::uint64_t plan(bool own_norm) const;
  Status allocate(std::uint64_t bytes);
  // Collective over `ranks`, with the outcome on the model's own ranks. `child` describes the group
  // that is made of them, `call` is the user's function.
  Status open_norm_ranks(Communicator& ranks, const ChildOptions& child, const char* call,
                         const std::vector<sharding::Fact>& facts, const Status& ready);
  // Whether ranks clip or skip by the gradients of all of them.
  bool decides_together() const { return norm_count() > 0 || loss_scale_.on(); }
  // Names the group of norm_ranks: equal on all of its ranks, and on no others. 0: there is none.
  std::uint64_t group_identity() const {
    return norm_ranks_ == nullptr ? 0 : norm_ranks_->identity();
  }
  // Makes room for the norms, and a name of the ranks that have them. Collective over the model's
  // ranks, after all of that.
  Status make_room();
  // Equal on all ranks that have the norms or overflows of a step in common, and on no others.
  std::uint64_t identity() const { return identity_; }
  const optimizers::Settings& settings() const { return settings_; }
  // Groups of parameters that are clipped.
  std::size_t group_count() const { return settings_.group_max_norms.size(); }
  // Norms of a step: one a group, or one of all gradients, or none.
  std::size_t norm_count() const { return settings_.max_norm > 0 ? 1 : group_count(); }

  // The calls of a step, in this order. `partners` names the optimizers that step together: their
  // ranks compare it. 0: this one steps alone.
  void begin_step(std::uint64_t partners);
  void look_for_overflow();
  void clip_values();
  // `reduced` is the whole bucket with data_parallel, else this rank's block of it.
  void clip_values(const sharding::Bucket& bucket, char* reduced);
  // Compares the learning rates of all ranks before any change, and adds up the squares of norms.
  Status add_up(ParameterSteps* steps);
  // Adds up the squares of optimizers that step together. All skip the step, or none does.
  static void unite(const std::vector<StepNorms*>& all);
  // Takes the norms by their squares. Counts a step of each parameter in it.
  void finish(ParameterSteps* steps);
  bool overflows() const { return overflow_.found; }
  // Whether the optimizer's own parameters have it.
  bool has_overflow() const { return overflow_.parameter != sharding::kNone; }
  // The factors of the gradients in the step of this number.
  StepFactors factors(std::uint64_t step, const ParameterSteps& steps) const;
  void step_made();
  void step_skipped();
  // A failure if the loss scale is at its floor.
  Status outcome() const { return overflow_.at_floor ? floor_failure() : Status::success(); }

  // For a training that goes on.
  void restore(const optimizers::LossScale::State& scale, double norm);
  const optimizers::LossScale& loss_scale() const { return loss_scale_; }

  // The norm of the last step, which may be a loaded one; negative if it computed none.
  double last_norm() const { return last_norm_; }
  Status gradient_norm(double* out) const;
  Status group_norm(std::uint64_t group, double* out) const;
  Status loss_scale_info(trireme_loss_scale_info* out) const;

 private:
  // An inf or NaN among the gradients of the last step; all ranks skipped it.
  struct Overflow {
    bool found = false;
    bool at_floor = false;                      // and the scale is at its floor
    std::uint64_t parameter = sharding::kNone;  // the lowest; kNone: of another model
    std::int32_t rank = -1;                     // the lowest that handed in such a gradient of it
  };

  // The ranks' sums of a step: words_, or the model's.
  std::int64_t* sum_words() const;
  std::shared_ptr<const void> sum_memory() const;
  void find_overflow(const std::int64_t* words);
  std::uint64_t mixed_with_partners(std::uint64_t agreement) const;
  Status squares_over_models();
  Status floor_failure() const;

  ShardView& shard_;
  const optimizers::Settings& settings_;
  optimizers::LossScale loss_scale_;
  std::unique_ptr<NormRanks> norm_ranks_;  // or null: the norm is that of the model's own ranks
  // The ranks' sums of a step, with groups or a loss scale; NormRanks has its own.
  Arena words_;
  std::uint64_t identity_ = 0, partners_ = 0;
  std::vector<kernels::ExactSum> squares_;    // of the norms of this step
  const std::int64_t* skip_words_ = nullptr;  // in the ranks' sums of this step
  double norm_ = 0;                           // of this step
  double last_norm_ = kNoNorm;
  std::uint64_t own_overflow_ = sharding::kNone;  // parameter of this rank's overflow in this step
  Overflow overflow_;
  // By group of parameters, if there are groups.
  std::vector<optimizers::GradientNorm> group_sums_;
  std::vector<double> group_norms_, last_group_norms_;  // of this step; of the last one
  bool has_group_norms_ = false;                        // there was one
};

}  // namespace trireme::strategies
