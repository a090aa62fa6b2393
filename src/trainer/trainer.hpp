// Trainer: a step of a model from its layers' callbacks. The plan says which activations are kept
// between forward and backward, the model has units and gradients, the optimizer ends the step.
#pragma once

#include <trireme/trainer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "offload/activation_window.hpp"
#include "model/model.hpp"
#include "optimizer/optimizer.hpp"
#include "sharding/activation_plan.hpp"
#include "trainer/extent.hpp"
#include "trainer/gaps.hpp"
#include "trainer/layer_failure.hpp"
#include "trainer/layer_gradients.hpp"
#include "trainer/layer_table.hpp"
#include "trainer/local_reads.hpp"
#include "trainer/pass_exchange.hpp"
#include "trainer/step_caller.hpp"
#include "trainer/trainer_device.hpp"

namespace trireme::strategies {

class Trainer final : public StepCaller {
 public:
  using Layer = LayerTable::Layer;

  // Read by the boundary, which puts the caller's nested options into one struct.
  struct Options {
    std::uint32_t flags = 0;
    std::uint32_t micro_batches = 0;
    std::uint64_t checkpoint_every = 0;
    std::uint64_t activation_budget_bytes = 0;
    std::uint64_t seed = 0;
    trireme_trainer_callback after_step = nullptr;
    void* user_data = nullptr;
    std::string offload_path = {};  // empty: no activations lie in a file
    std::uint64_t offload_buffer_bytes = 0;
  };

  static Status create(const std::shared_ptr<Optimizer>& optimizer, std::vector<Layer> layers,
                       const Options& options, std::shared_ptr<Trainer>* out);

  Status info(trireme_trainer_info* out) const override;
  Status offload_info(trireme_offload_info* out) const override;

 private:
  struct Free {
    std::align_val_t alignment;
    void operator()(void* memory) const { ::operator delete(memory, alignment); }
  };

  Trainer(const std::shared_ptr<Optimizer>& optimizer, std::vector<Layer> layers, Options options);
  Status check_options() const;
  Status allocate();
  void prepare_calls();
  std::vector<sharding::Fact> facts() const;

  Status pass(void* batch, bool trains, double* out_loss) override;
  std::uint32_t micro_batches() const override { return total_; }
  Status micro_batch(std::uint32_t number, bool trains);
  Status forward(std::int32_t phase, std::uint64_t first, std::uint64_t end);
  Status backward(std::uint64_t first, std::uint64_t end);
  Status gather(std::uint64_t layer);
  Status release(std::uint64_t layer);
  Status hand_in(std::uint64_t layer);
  void look_for_gaps(std::uint64_t layer, std::span<const char> input_gradient);
  std::span<char> input_gradient(std::uint64_t layer) const;
  // Activations of a layer come from the file, and go there.
  Status before_call(std::int32_t phase, std::uint64_t layer);
  void after_call(std::int32_t phase, std::uint64_t layer);
  bool computes() const { return leaf_ < total_ && failure_.kind == LayerFailure::none; }
  void call(std::int32_t phase, std::uint64_t layer);
  void call_back(trireme_layer_callback callback, std::int32_t phase, std::uint64_t layer);
  void fail(LayerFailure::Kind kind, std::int32_t phase, std::uint64_t layer, std::int32_t answer);
  Status exchange(bool trains, double* out_loss);
  Status allocate_on_device();
  // ---- with a device: see device_step.cpp ----
  Status begin_on_device();
  // Of work in the caller's stream: if it is refused, the layer has failed, and this succeeds.
  Status queued(Status status, std::int32_t phase, std::uint64_t layer);
  // After a callback, which may have left the stream so that nothing can be queued there.
  Status check_stream(std::int32_t phase, std::uint64_t layer) {
    return computes() ? queued(device_->begin(), phase, layer) : Status::success();
  }
  // The gradients of a layer, to the host; and that of its input if it was left out.
  Status fetch(std::uint64_t layer);
  Status fetch_input_gradient(std::uint64_t layer);
  Status wait_for_device();
  double* loss_place(std::uint32_t number) {
    return device_ != nullptr ? device_->losses() + number : &losses_[number];
  }

  LayerTable layers_;
  const Options options_;
  const std::uint32_t rounds_;  // micro-batches of a rank in a step; some ranks may have one leaf
                                // less
  const std::uint32_t total_;   // over all ranks
  const double micro_batch_scale_;  // for each one's gradients

  LayerGradients gradients_;
  GapSearch gaps_;
  LocalReads reads_{layers_};
  PassExchange exchange_;
  ActivationPlan plan_;
  std::unique_ptr<TrainerDevice> device_;  // null: the model is on the host
  std::shared_ptr<char> arena_;
  std::vector<char> input_gradient_;  // on a device, of a layer that has left it out
  std::unique_ptr<ActivationWindow> window_;
  std::vector<std::uint64_t> node_of_;  // by layer, with a window
  std::uint64_t allocated_ = 0;         // without the memory that the window keeps besides
  // By parameter.
  std::vector<const void*> parameters_;
  std::vector<std::uint64_t> counts_;

  std::vector<trireme_layer_call> calls_;  // by layer
  std::vector<Extent> extents_;            // of outputs in this micro-batch, by layer
  CallExtents told_extents_;

  // State of the present step.
  std::uint32_t leaf_ = 0;
  LayerFailure failure_;
  bool told_ = false;           // all ranks know of a failure
  std::vector<double> losses_;  // of this rank's micro-batches
};

}  // namespace trireme::strategies
