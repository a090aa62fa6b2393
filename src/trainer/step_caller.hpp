// StepCaller: the calls of a trainer that the user makes. The passes between them are the
// trainer's: of whole micro-batches (Trainer), or action by action along a pipeline.
#pragma once

#include <trireme/trainer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "model/model.hpp"
#include "optimizer/optimizer.hpp"

namespace trireme::strategies {

// Times and bytes of a layer of the whole model.
struct LayerCost {
  double seconds[3] = {};  // forward, backward for the input, backward for the weights
  std::uint64_t parameter_bytes = 0, kept_bytes = 0, output_bytes = 0;
};

class StepCaller {
 public:
  StepCaller(const StepCaller&) = delete;
  StepCaller& operator=(const StepCaller&) = delete;
  virtual ~StepCaller() = default;

  Status step(void* batch, trireme_trainer_metrics* out);
  Status evaluate(void* batch, double* out_loss);
  void request_stop();
  virtual Status info(trireme_trainer_info* out) const = 0;
  virtual Status offload_info(trireme_offload_info* out) const = 0;
  // Collective. `read`: whether this rank's other arguments are right. `capacity`: layers for which
  // the caller has room.
  virtual Status layer_costs(Status read, std::uint64_t capacity, std::vector<LayerCost>* out);
  // Refuses a call from inside a callback, in the middle of another one.
  Status check_call() const;
  void fail_groups(trireme_status code, std::string_view why) const noexcept {
    shard_.fail_groups(code, why);
  }

  static Status check_between_steps(ShardView& shard);

 protected:
  StepCaller(const std::shared_ptr<Optimizer>& optimizer, trireme_trainer_callback after_step,
             void* user_data)
      : optimizer_(optimizer),
        shard_(optimizer->model()->shard()),
        after_step_(after_step),
        user_data_(user_data) {}

  // All micro-batches of a step or an evaluation, and the ranks' outcomes.
  virtual Status pass(void* batch, bool trains, double* out_loss) = 0;
  // Micro-batches of all ranks together.
  virtual std::uint32_t micro_batches() const = 0;
  // Nanoseconds, from the beginning, in which this rank has waited for ranks of other models.
  virtual std::uint64_t other_exposed_ns() const { return 0; }

  bool stop_asked() const { return stop_asked_.load(std::memory_order_relaxed); }
  void note_stop(bool stop) { stop_ = stop_ || stop; }

  Model& model() const { return *optimizer_->model(); }
  std::uint32_t rank() const { return shard_.link().rank(); }
  std::uint32_t world_size() const { return shard_.link().world_size(); }

  const std::shared_ptr<Optimizer> optimizer_;
  ShardView& shard_;  // of it

 private:
  Status check_ready() const;
  std::uint64_t exposed_ns() const { return shard_.link().exposed_ns + other_exposed_ns(); }

  const trireme_trainer_callback after_step_;
  void* const user_data_;
  std::atomic<bool> running_ = false;  // keeps after_step from beginning another one
  std::atomic<bool> stop_asked_ = false;
  bool stop_ = false;  // as all ranks know
};

inline void fail_to_hand_out(const StepCaller& trainer) noexcept {
  trainer.fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
}

}  // namespace trireme::strategies
