// Optimizer: ends a step. State lies with the owners of the gradients.
#pragma once

#include <trireme/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "model/model.hpp"
#include "optimizer/counters.hpp"
#include "optimizer/rules/settings.hpp"
#include "optimizer/rules/shard_state.hpp"
#include "optimizer/rules/step_factors.hpp"
#include "optimizer/rules/update_rule.hpp"
#include "optimizer/schedule.hpp"
#include "optimizer/state_ranges.hpp"
#include "optimizer/step_norms.hpp"

namespace trireme::strategies {

// Ascends in the order in which a process makes optimizers.
std::uint64_t next_optimizer() noexcept;

class Optimizer final : public UpdateSink {
 public:
  // The boundary has read `options`, with the outcome `read`.
  static Status create(const std::shared_ptr<Model>& model, const optimizers::Options& options,
                       Status read, const std::shared_ptr<Communicator>& told_norm_ranks,
                       std::shared_ptr<Optimizer>* out);
  ~Optimizer() override;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  Status step();
  // A step of several optimizers of this rank, with one norm over all of their models.
  static Status step_together(const std::vector<std::shared_ptr<Optimizer>>& optimizers);
  Status join(std::uint64_t* out_steps);
  Status set_learning_rate(double learning_rate);
  Status set_group_rate_factor(std::uint64_t group, double factor);
  // The boundary has read `options`; null means none.
  Status set_schedule(const optimizers::ScheduleOptions* options);
  const optimizers::Settings& settings() const { return settings_; }
  Status next_rate(double* out) override;
  // The word by which ranks compare a step of this rate, with the factors of groups.
  std::uint64_t rates_at(double step_rate) const;
  std::uint64_t step_count() const { return steps_; }
  void take_rate(double rate) override;
  void tell_discarded(const HookAnswer& hook) override;
  Status update_bucket(std::uint64_t number, char* reduced) override;
  Status parameters_set() override { return state_.refresh_masters(); }
  Status read_copies(OptimizerCopies* out) const override;
  // Norms, clipping and the loss scale.
  const StepNorms& norms() const { return norms_; }
  // The rate of the last step.
  double last_rate() const { return settings_.step_rate; }
  const std::shared_ptr<Model>& model() const { return model_; }
  Communicator& communicator() const { return model_->communicator(); }
  Status check_call() const { return model_->check_call(); }
  // The same as the model's.
  void fail_groups(trireme_status code, std::string_view why) const noexcept;

  // State of training that this rank owns. saved_state.cpp makes one piece of bytes of it.
  StateRanges& ranges() { return ranges_; }
  std::uint64_t saved_bytes() const;
  Status offload_info(trireme_offload_info* out) const { return state_.file_info(out); }
  Status save(char* state, std::uint64_t capacity) const;
  Status load(const char* state, std::uint64_t bytes);

  // The state that is in no range, and going on with ranges that were written: see restore.cpp.
  Status counters(trireme_optimizer_counters* out) const;
  // The boundary has read `given`, with the outcome `read`.
  Status restore(const trireme_optimizer_counters* given, Status read);

 private:
  Optimizer(std::shared_ptr<Model> model, const optimizers::Settings& settings)
      : model_(std::move(model)),
        shard_(model_->shard()),
        settings_(settings),
        state_(shard_, settings_),
        ranges_(shard_, state_),
        norms_(shard_, settings_) {}

  struct Saved;
  class Step;
  Counters counted() const;
  Saved describe_saved() const;
  Status check_saved(const char* state, std::uint64_t bytes, Saved* out,
                     optimizers::LossScale::State* scale) const;
  Status check_step() const;
  // On a device: until all is done that the caller has queued there.
  Status wait_for_caller();
  Status check_rate_is_free() const;
  Status finish_updates();

  const std::shared_ptr<Model> model_;
  ShardView& shard_;  // of it
  optimizers::Settings settings_;
  optimizers::Schedule schedule_;
  ShardState state_;
  std::unique_ptr<UpdateRule> rule_;
  StateRanges ranges_;
  StepNorms norms_;
  // The rule's answer in the present step, with update in backward.
  RuleAnswer answer_;
  std::uint64_t steps_ = 0;
  const std::uint64_t made_ = next_optimizer();
  std::uint32_t own_steps_ = 0;  // in which it has compared gradients with other models, at most 3
  ParameterSteps parameter_steps_;
};

inline void fail_to_hand_out(const Optimizer& optimizer) noexcept {
  optimizer.fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
}
inline void fail_to_hand_out(const std::vector<std::shared_ptr<Optimizer>>& optimizers) noexcept {
  for (const std::shared_ptr<Optimizer>& each : optimizers) fail_to_hand_out(*each);
}

}  // namespace trireme::strategies
