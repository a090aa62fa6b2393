// PipelineTrainer: a step of the stages that this rank has, action by action of a schedule. The
// plan says where each micro-batch lies, the links bring outputs and gradients from stage to stage,
// the model has this rank's parameters alone.
#pragma once

#include <trireme/trainer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "parallel/executor/gradient_sums.hpp"
#include "parallel/executor/layer_times.hpp"
#include "parallel/executor/memory_plan.hpp"
#include "parallel/executor/outcome.hpp"
#include "parallel/executor/pass_extents.hpp"
#include "parallel/executor/places.hpp"
#include "parallel/executor/plan.hpp"
#include "parallel/pipeline/schedule.hpp"
#include "trainer/gaps.hpp"
#include "trainer/layer_failure.hpp"
#include "trainer/layer_gradients.hpp"
#include "trainer/layer_table.hpp"
#include "trainer/pass_exchange.hpp"
#include "trainer/step_caller.hpp"

namespace trireme::parallel {

// Read by the boundary.
struct PipelineTrainerOptions {
  std::uint32_t flags = 0;           // of the trainer
  std::uint32_t pipeline_flags = 0;  // of its pipeline
  std::uint32_t micro_batches = 0;
  std::uint64_t seed = 0;
  CheckpointOptions checkpoints{};
  std::string offload_path{};  // empty: memory has all activations
  trireme_trainer_callback after_step = nullptr;
  void* user_data = nullptr;
  std::shared_ptr<Communicator> communicator{};  // the caller's, along the pipeline
  pipeline::Schedule schedule{};
  std::vector<std::uint64_t> cuts{};
};

class PipelineTrainer final : public strategies::StepCaller {
 public:
  using Layer = strategies::LayerTable::Layer;

  // The boundary has read the options, with the outcome `read`. If that is a failure, the
  // communicator alone is there, and its ranks hear of it.
  static Status create(const std::shared_ptr<strategies::Optimizer>& optimizer,
                       std::vector<Layer> layers, PipelineTrainerOptions options, Status read,
                       std::shared_ptr<PipelineTrainer>* out);
  ~PipelineTrainer() override;

  Status info(trireme_trainer_info* out) const override;
  Status offload_info(trireme_offload_info* out) const override;
  Status layer_costs(Status read, std::uint64_t capacity,
                     std::vector<strategies::LayerCost>* out) override;

 private:
  using Cell = StagePlaces::Cell;

  PipelineTrainer(const std::shared_ptr<strategies::Optimizer>& optimizer,
                  std::vector<Layer> layers, PipelineTrainerOptions options);
  Status prepare();  // the collective part of create()
  Status check_options() const;
  Status check_layers() const;
  std::vector<sharding::Fact> pipeline_facts() const;
  std::vector<sharding::Fact> model_facts() const;
  // Over all ranks of all models: a failure of one is a failure of all.
  Status agree_everywhere(const std::vector<sharding::Fact>& pipeline,
                          const std::vector<sharding::Fact>& model, Status own) const;
  Status exchange_sizes(std::vector<StageShape>* stages);
  std::uint64_t parameter_gradient_bytes() const;
  std::uint64_t exchange_bytes() const;
  Status check_limit() const;
  Status allocate();
  void prepare_calls();

  Status pass(void* batch, bool trains, double* out_loss) override;
  std::uint32_t micro_batches() const override { return total_; }
  std::uint64_t other_exposed_ns() const override { return link_.exposed_ns; }
  Status run_actions();
  Status act(const pipeline::Action& action);
  Status exchange(double* out_loss);
  void begin_pass(void* batch, bool trains);

  std::uint32_t leaf_of(std::uint32_t micro_batch) const {
    return micro_batch * world_size() + rank();
  }
  std::uint32_t own_micro_batches() const;
  bool computes(const Cell& cell) const {
    return cell.present && !stopped_ && failure_.kind == strategies::LayerFailure::none;
  }
  Status receive(const pipeline::Action& action, StageDirection direction);
  Status send(const pipeline::Action& action, StageDirection direction);
  Status forward(const pipeline::Action& action);
  Status backward(const pipeline::Action& action);
  Status gather(std::uint64_t layer);
  Status release(std::uint64_t layer);
  void fill_call(const Cell& cell, std::uint64_t place, bool forward, bool for_input,
                 char* input_gradient);
  void call(trireme_layer_callback callback, std::int32_t phase, std::uint64_t layer,
            std::uint32_t micro_batch);
  Status forward_layers(const Cell& cell, std::uint64_t first, std::uint64_t end,
                        std::int32_t phase);
  Status recompute(const pipeline::Action& action);
  Status backward_layer(const Cell& cell, std::uint64_t place, trireme_pipeline_kind kind,
                        char* input_gradient);
  void look_for_gaps(std::uint64_t layer, std::span<const char> input_gradient,
                     std::uint32_t micro_batch);

  strategies::LayerTable layers_;
  const PipelineTrainerOptions options_;
  const pipeline::Schedule schedule_;  // names its messages
  const std::uint32_t total_;          // micro-batches of all ranks of the model
  const double micro_batch_scale_;

  strategies::LayerFailure failure_;
  strategies::LayerGradients gradients_;
  strategies::GapSearch gaps_;
  GradientSums sums_;
  strategies::PassExchange exchange_;
  strategies::Link link_;  // along the pipeline
  PipelineOutcome outcome_;
  ExecutorPlan plan_;
  StagePlaces places_{schedule_, link_, plan_};
  std::shared_ptr<Memory> arena_;
  std::vector<const void*> parameters_;
  std::vector<std::uint64_t> counts_;
  std::vector<trireme_layer_call> calls_;  // by layer
  PassExtents extents_;
  LayerTimes times_;
  std::uint64_t measured_steps_ = 0;  // that are in these times

  // State of the present pass.
  bool trains_ = false;
  // A peer has failed. This rank does not compute any more in the pass. It goes through the rest of
  // the actions, so that no peer waits for it.
  bool stopped_ = false;
  bool told_ = false;  // all ranks know of a failure
  std::vector<double> losses_;
};

}  // namespace trireme::parallel
