// The sums of all ranks before an update: norms for clipping, parameters that no rank has used, and
// overflows with a loss scale. It also clips by value.
#pragma once

#include <trireme/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

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
  // Call it after all of that.
  void make_room();
  // Groups of parameters that are clipped.
  std::size_t group_count() const { return settings_.group_max_norms.size(); }
  // Norms of a step: one a group, or one of all gradients, or none.
  std::size_t norm_count() const { return settings_.max_norm > 0 ? 1 : group_count(); }

  // The calls of a step, in this order.
  void begin_step();
  void look_for_overflow();
  void clip_values();
  // `reduced` is the whole bucket with data_parallel, else this rank's block of it.
  void clip_values(const sharding::Bucket& bucket, char* reduced);
  // Compares the learning rates of all ranks before any change, and adds up the norm. Counts a step
  // of each parameter in it.
  Status add_up(ParameterSteps* steps);
  bool overflows() const { return overflow_.found; }
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

  void find_overflow(const std::int64_t* words);
  Status norm_over_models(double* out_norms);
  Status floor_failure() const;

  ShardView& shard_;
  const optimizers::Settings& settings_;
  optimizers::LossScale loss_scale_;
  std::unique_ptr<NormRanks> norm_ranks_;  // or null: the norm is that of the model's own ranks
  // The ranks' sums of a step, with groups or a loss scale; NormRanks has its own.
  Arena words_;
  double norm_ = 0;  // of this step
  double last_norm_ = kNoNorm;
  std::uint64_t own_overflow_ = sharding::kNone;  // parameter of this rank's overflow in this step
  Overflow overflow_;
  // By group of parameters, if there are groups.
  std::vector<optimizers::GradientNorm> group_sums_;
  std::vector<double> group_norms_, last_group_norms_;  // of this step; of the last one
  bool has_group_norms_ = false;                        // there was one
};

}  // namespace trireme::strategies
