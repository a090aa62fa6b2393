// Trainer: a step of a model from its layers' callbacks. What is kept between forward and backward is
// the plan's, units and gradients are the model's, the end of the step is the optimizer's.
#pragma once

#include <trireme/trainer.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "kernels/gaps.hpp"
#include "offload/activation_window.hpp"
#include "optimizer/optimizer.hpp"
#include "sharding/activation_plan.hpp"

namespace trireme::strategies {

class Trainer {
 public:
  // A layer as read by the boundary, with a name of its own.
  struct Layer {
    std::string name;
    trireme_layer described = {};
    std::vector<std::uint64_t> units = {};  // of its parameters, in their order
  };

  // `options` as read by the boundary.
  static Status create(const std::shared_ptr<Optimizer>& optimizer, std::vector<Layer> layers,
                       const trireme_trainer_options& options, std::shared_ptr<Trainer>* out);

  Status step(void* batch, trireme_trainer_metrics* out);
  Status evaluate(void* batch, double* out_loss);
  void request_stop();
  Status info(trireme_trainer_info* out) const;
  Status offload_info(trireme_offload_info* out) const;
  // No call may come from inside a callback, in the middle of another one.
  Status check_call() const;
  void fail_groups(trireme_status code, std::string_view why) const noexcept {
    model_->fail_groups(code, why);
  }

 private:
  // Parameters of a layer by their places in it: the first, those from it on as bits, and the first
  // element of the first.
  struct Gaps {
    std::uint64_t first = 0, told = 0, element = 0;
  };
  // What went wrong on this rank in a step: nothing, or the first thing.
  struct Failure {
    enum Kind : std::int32_t {
      none,
      answered,
      threw,
      left_out,   // gradients, so many as the answer
      refused,    // a gradient, which is none
      unwritten,  // gradients, so many as the answer
      input,      // its gradient, the whole of it if the answer is 1, that has come to those of layer `gaps.first`
      no_rate,
      file,
      corrupt
    };
    Kind kind = none;
    std::int32_t phase = 0, answer = 0;
    std::uint64_t layer = 0;
    std::uint32_t leaf = 0;
    Gaps gaps = {};
  };
  struct Free {
    std::align_val_t alignment;
    void operator()(void* memory) const { ::operator delete(memory, alignment); }
  };

  Trainer(const std::shared_ptr<Optimizer>& optimizer, std::vector<Layer> layers,
          const trireme_trainer_options& options);
  Status check_options() const;
  Status check_layers() const;
  void place_gradients();
  Status allocate();
  void prepare_calls();
  std::vector<sharding::Fact> facts() const;

  std::uint32_t rank() const { return model_->link_.rank(); }
  std::uint32_t world_size() const { return model_->link_.world_size(); }
  static constexpr std::uint64_t kAnswerWords = 9;
  std::uint64_t words() const;
  Status check_ready() const;
  Status pass(void* batch, bool trains, double* out_loss);
  Status micro_batch(std::uint32_t number, bool trains);
  Status forward(std::int32_t phase, std::uint64_t first, std::uint64_t end);
  Status backward(std::uint64_t first, std::uint64_t end);
  Status gather(std::uint64_t layer);
  Status release(std::uint64_t layer);
  Status offer_gradients(std::uint64_t layer);
  Status hand_in(std::uint64_t layer);
  // See gaps.cpp.
  bool zeroes() const;
  void prepare(void* memory, std::uint64_t bytes, kernels::Gap gap) const;
  void mark_unwritten(std::uint64_t layer);
  void look_for_gaps(std::uint64_t layer);
  void look_for_input_gap(std::uint64_t layer);
  std::string gaps_of(std::uint64_t layer, std::int64_t missing, const Gaps& gaps) const;
  // What callbacks of a layer work on comes from the file, and goes there.
  Status silent_disk(const Status& status) const;
  Status before_call(std::int32_t phase, std::uint64_t layer);
  void after_call(std::int32_t phase, std::uint64_t layer);
  bool computes() const { return leaf_ < total_ && failure_.kind == Failure::none; }
  void call(std::int32_t phase, std::uint64_t layer);
  void fail(Failure::Kind kind, std::int32_t phase, std::uint64_t layer, std::int32_t answer);
  Status exchange(bool trains, double* out_loss);
  Status tell_failures(const std::int64_t* all) const;

  const std::shared_ptr<Optimizer> optimizer_;
  const std::shared_ptr<Model> model_;
  std::vector<Layer> layers_;
  const trireme_trainer_options options_;  // without pointers
  const std::string offload_path_;         // empty: nothing lies in a file
  const std::uint32_t rounds_;  // micro-batches of a rank in a step; of some leaves may be one less
  const std::uint32_t total_;   // over all ranks
  const double micro_batch_scale_;  // of the gradients of each

  ActivationPlan plan_;
  std::uint64_t own_gradients_ = 0;  // bytes where backward writes those without a view
  std::shared_ptr<char> arena_;
  std::unique_ptr<ActivationWindow> window_;
  std::vector<std::uint64_t> node_of_;  // by layer, with a window
  std::shared_ptr<Memory> exchange_;
  std::uint64_t allocated_ = 0;  // without what the window keeps besides
  // By parameter.
  static constexpr std::uint64_t kView = UINT64_MAX, kFrozen = UINT64_MAX - 1;
  std::vector<std::uint64_t> gradient_places_;  // in the arena, or one of these two
  std::vector<const void*> parameters_;
  std::vector<std::uint64_t> counts_;
  std::vector<void*> gradients_;
  std::vector<void*> offered_;  // where backward was to write them
  static constexpr std::uint64_t kNoLayer = UINT64_MAX;
  std::uint64_t first_trained_ = kNoLayer;  // layer

  std::vector<trireme_layer_call> calls_;  // by layer

  // Of the step under way.
  std::uint32_t leaf_ = 0;
  Failure failure_;
  // Of the micro-batch under way: the first layer that left out input_gradient, or a part of it.
  std::uint64_t gap_layer_ = kNoLayer;
  bool gap_whole_ = false;
  bool told_ = false;                  // all ranks know of a failure
  std::vector<double> losses_;         // of this rank's micro-batches
  std::atomic<bool> running_ = false;  // so that after_step does not begin another one
  std::atomic<bool> stop_asked_ = false;
  bool stop_ = false;  // as all ranks know
};

inline void fail_to_hand_out(const Trainer& trainer) noexcept {
  trainer.fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
}

}  // namespace trireme::strategies
