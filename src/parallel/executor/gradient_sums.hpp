// GradientSums: the way of a pipeline's gradients from backward of a layer into the model.
// Gradients of several micro-batches add up here, in their order, and go to the model once. With
// leaves each micro-batch is a pass of the model, which adds along its tree.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "model/model.hpp"
#include "parallel/executor/gradient_order.hpp"
#include "parallel/executor/tied_gradients.hpp"
#include "trainer/layer_failure.hpp"
#include "trainer/layer_gradients.hpp"
#include "trainer/layer_table.hpp"

namespace trireme::parallel {

class GradientSums final : public GradientWay {
 public:
  using Parked = std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t>;

  // `by_pass`: each micro-batch is a pass of the model.
  GradientSums(strategies::Model& model, const strategies::LayerTable& layers,
               strategies::LayerGradients& gradients, strategies::LayerFailure& failure,
               bool by_pass);

  // Those of parameters that other ranks share.
  TiedGradients& tied() { return tied_; }

  // Bytes of one layer's gradients; of the sums of all, with those that wait for other ranks.
  std::vector<std::uint64_t> layer_bytes() const;
  std::uint64_t sum_bytes() const { return sum_bytes_ + tied_.bytes(); }
  // `parked`: places in the arena by micro-batch and layer. The sums begin at `sums`.
  void use(const std::shared_ptr<Memory>& arena, const Parked* parked, char* sums);

  // A step of so many micro-batches of this rank.
  void begin(std::uint32_t micro_batches);
  // This rank does not compute any more, here or because a peer has failed: zeros go in.
  void stop() { stopped_ = true; }
  // Backward of the layer has written its gradients, unless the step has failed.
  Status produced(std::uint64_t layer, std::uint32_t micro_batch) {
    return order_.produced(layer, micro_batch, *this);
  }
  // The actions of a step are over. A model without layers makes its passes now.
  Status end_without_layers();
  // All passes are over, on all ranks, and the step has not failed.
  Status hand_in_tied(const TiedGradients::Moment& moment) {
    return tied_.hand_in(moment, by_pass_ ? micro_batches_ : 1);
  }

 private:
  Status park(std::uint64_t layer, std::uint32_t micro_batch) override;
  Status take(std::uint64_t layer, std::uint32_t micro_batch, bool parked) override;
  Status end_pass() override;

  bool fails() const { return stopped_ || failure_.kind != strategies::LayerFailure::none; }
  std::uint64_t bytes_of(std::uint64_t parameter) const;
  Status begin_pass();
  Status hand_in(std::uint64_t layer, std::uint32_t micro_batch);
  // Whether the gradient is kept for the end of the step.
  bool waits(std::uint64_t layer, std::uint64_t place, std::uint32_t micro_batch);
  // The gradients of a layer as they lie in its parked place, or as backward left them.
  void find(std::uint64_t layer, std::uint32_t micro_batch, bool parked);
  void add(std::uint64_t layer);
  bool is_readable(std::uint64_t parameter) const;
  void refuse(std::uint64_t layer, std::uint64_t place);

  strategies::Model& model_;
  const strategies::LayerTable& layers_;
  strategies::LayerGradients& gradients_;
  strategies::LayerFailure& failure_;
  TiedGradients tied_;
  const bool by_pass_;
  GradientOrder order_;
  char* arena_ = nullptr;
  char* sums_ = nullptr;
  const Parked* parked_ = nullptr;
  std::uint64_t sum_bytes_ = 0;
  std::vector<std::uint64_t> sum_places_;  // by parameter
  // State of the present step.
  std::uint32_t micro_batches_ = 0;
  bool in_pass_ = false;
  bool stopped_ = false;
  std::vector<bool> has_sum_;         // by parameter
  std::vector<const void*> sources_;  // by parameter; null: there is no gradient
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::vector<bool>> parked_here_;
};

}  // namespace trireme::parallel
