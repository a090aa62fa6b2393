#include "parallel/tensor/mlp.hpp"

#include <algorithm>
#include <utility>

#include "parallel/tensor/layer_arrays.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {

Status Mlp::create(std::shared_ptr<Tensor> tensor, const MlpOptions& options,
                   std::shared_ptr<Mlp>* out) {
  TRIREME_RETURN_IF_ERROR(Activation::check(options.activation));
  LinearOptions layer;
  layer.name = options.name + ".fc1";
  layer.kind = TRIREME_LINEAR_KIND_COLUMN;
  layer.input = options.input;
  layer.stretches = Activation::is_gated(options.activation) ? 2 : 1;
  if (__builtin_mul_overflow(options.hidden, std::uint64_t{layer.stretches}, &layer.output)) {
    return invalid_argument("options.hidden is " + std::to_string(options.hidden) +
                            ": more elements than memory can hold");
  }
  layer.rows = options.rows;
  layer.dtype = options.dtype;
  layer.bias = options.bias;
  // Ranks with different activations would add units that do not belong together.
  layer.also = std::uint64_t{static_cast<std::uint32_t>(options.activation.kind)} * 2 +
               (Activation::is_gated(options.activation) ? 1 : 0) + 1;
  std::shared_ptr<Linear> first, second;
  TRIREME_RETURN_IF_ERROR(Linear::create(tensor, layer, &first));
  layer.name = options.name + ".fc2";
  layer.kind = TRIREME_LINEAR_KIND_ROW;
  layer.input = options.hidden;
  layer.output = options.output;
  layer.stretches = 1;
  layer.input_split = true;
  TRIREME_RETURN_IF_ERROR(Linear::create(tensor, layer, &second));
  std::shared_ptr<Mlp> mlp(
      new Mlp(std::move(tensor), options, std::move(first), std::move(second)));
  TRIREME_RETURN_IF_ERROR(mlp->tensor_->workspace().reserve(mlp->memory_));
  *out = std::move(mlp);
  return Status::success();
}

Mlp::Mlp(std::shared_ptr<Tensor> tensor, const MlpOptions& options, std::shared_ptr<Linear> first,
         std::shared_ptr<Linear> second)
    : tensor_(std::move(tensor)),
      options_(options),
      first_(std::move(first)),
      second_(std::move(second)),
      fc1_(first_->info()),
      fc2_(second_->info()),
      activation_(options.activation, options.dtype, fc2_.first, options.rows, fc2_.count),
      memory_(Workspace::rounded(activated_bytes()) +
              std::max(fc1_.workspace_bytes, fc2_.workspace_bytes)) {}

void Mlp::drop_names() noexcept {
  first_->drop_names();
  second_->drop_names();
}

std::uint64_t Mlp::hidden_bytes() const {
  return options_.rows * fc1_.output_columns * dtype_size(options_.dtype);
}

std::uint64_t Mlp::activated_bytes() const {
  return options_.rows * fc2_.input_columns * dtype_size(options_.dtype);
}

Mlp::Kept Mlp::kept_in(const void* memory) const {
  auto* next = static_cast<std::byte*>(const_cast<void*>(memory));
  const auto take = [&](std::uint64_t bytes) {
    std::byte* const at = next;
    if (next != nullptr) next += Workspace::rounded(bytes);
    return at;
  };
  Kept kept;
  kept.hidden = take(hidden_bytes());
  kept.activated = take(activated_bytes());
  kept.hidden_gradient = take(hidden_bytes());
  kept.gathered_input = take(fc1_.kept_bytes);
  kept.gathered_gradient = take(fc2_.kept_bytes);
  return kept;
}

trireme_mlp_info Mlp::info() const {
  trireme_mlp_info now = TRIREME_MLP_INFO_INIT;
  now.gradient_dtype = fc1_.gradient_dtype;
  now.first = fc2_.first;
  now.count = fc2_.count;
  now.fc1_rows = fc1_.weight_rows;
  now.input_rows = fc1_.input_rows;
  now.output_rows = fc2_.output_rows;
  now.kept_bytes = 2 * Workspace::rounded(hidden_bytes()) + Workspace::rounded(activated_bytes()) +
                   Workspace::rounded(fc1_.kept_bytes) + Workspace::rounded(fc2_.kept_bytes);
  now.workspace_bytes = memory_;
  now.tile_rows = fc1_.tile_rows;
  now.forward_bytes = fc1_.forward_bytes + fc2_.forward_bytes;
  now.backward_input_bytes = fc1_.backward_input_bytes + fc2_.backward_input_bytes;
  now.backward_weight_bytes = fc1_.backward_weight_bytes + fc2_.backward_weight_bytes;
  now.forward_passes = forward_passes_;
  now.backward_input_passes = backward_input_passes_;
  now.backward_weight_passes = backward_weight_passes_;
  return now;
}

Status Mlp::check_pass(const char* what, std::uint64_t passes, std::uint64_t earlier,
                       const char* what_earlier) const {
  if (passes < earlier) return Status::success();
  return invalid_state(std::string(what) + " pass " + std::to_string(passes + 1) + " of layer \"" +
                       options_.name + "\" needs as many " + what_earlier +
                       " passes, but there were " + std::to_string(earlier));
}

Status Mlp::check_weights(const trireme_mlp_weights& weights) const {
  if (options_.bias || (weights.fc1_bias == nullptr && weights.fc2_bias == nullptr)) {
    return Status::success();
  }
  return invalid_argument("a bias is given, but layer \"" + options_.name + "\" has no BIAS");
}

Status Mlp::check_gradients(const trireme_mlp_gradients& gradients) const {
  if (options_.bias || (gradients.fc1_bias == nullptr && gradients.fc2_bias == nullptr)) {
    return Status::success();
  }
  return invalid_argument("the gradient of a bias is given, but layer \"" + options_.name +
                          "\" has no BIAS");
}

Status Mlp::forward(const void* input, const trireme_mlp_weights& weights, void* output,
                    void* memory, Deadline deadline) {
  const std::uint64_t size = dtype_size(options_.dtype);
  TRIREME_RETURN_IF_ERROR(check_weights(weights));
  TRIREME_RETURN_IF_ERROR(check_arrays(
      {{"input", input, fc1_.input_rows * options_.input * size, false},
       {"fc1_weight", weights.fc1_weight, fc1_.weight_rows * options_.input * size, false},
       {"fc1_bias", weights.fc1_bias, fc1_.bias_count * size, false},
       {"fc2_weight", weights.fc2_weight, options_.output * fc2_.count * size, false},
       {"fc2_bias", weights.fc2_bias, fc2_.bias_count * size, false},
       {"output", output, fc2_.output_rows * options_.output * size, true},
       {"kept", memory, info().kept_bytes, true}}));
  return run_layer(*tensor_, options_.name, "forward", [&](Workspace::Use& use) -> Status {
    const Kept kept = kept_in(memory);
    TRIREME_RETURN_IF_ERROR(first_->forward_in(
        use, {input, weights.fc1_weight, weights.fc1_bias, kept.hidden, kept.gathered_input},
        deadline));
    TRIREME_RETURN_IF_ERROR(activation_.forward(kept.hidden, kept.activated));
    TRIREME_RETURN_IF_ERROR(second_->forward_in(
        use, {kept.activated, weights.fc2_weight, weights.fc2_bias, output, nullptr}, deadline));
    ++forward_passes_;
    return Status::success();
  });
}

Status Mlp::backward_input(const void* output_gradient, const trireme_mlp_weights& weights,
                           void* input_gradient, void* memory, Deadline deadline) {
  const std::uint64_t size = dtype_size(options_.dtype);
  TRIREME_RETURN_IF_ERROR(check_weights(weights));
  TRIREME_RETURN_IF_ERROR(check_arrays(
      {{"output_gradient", output_gradient, fc2_.output_rows * options_.output * size, false},
       {"fc1_weight", weights.fc1_weight, fc1_.weight_rows * options_.input * size, false},
       {"fc2_weight", weights.fc2_weight, options_.output * fc2_.count * size, false},
       {"input_gradient", input_gradient, fc1_.input_rows * options_.input * size, true},
       {"kept", memory, info().kept_bytes, true}}));
  TRIREME_RETURN_IF_ERROR(
      check_pass("backward input", backward_input_passes_, forward_passes_, "forward"));
  return run_layer(*tensor_, options_.name, "backward input", [&](Workspace::Use& use) -> Status {
    const Kept kept = kept_in(memory);
    TRIREME_RETURN_IF_ERROR(backward_hidden(use, output_gradient, weights, kept, deadline));
    TRIREME_RETURN_IF_ERROR(first_->backward_input_in(
        use, {kept.hidden_gradient, weights.fc1_weight, input_gradient, nullptr}, deadline));
    ++backward_input_passes_;
    return Status::success();
  });
}

Status Mlp::backward_hidden(Workspace::Use& use, const void* output_gradient,
                            const trireme_mlp_weights& weights, const Kept& kept,
                            Deadline deadline) {
  void* const activated_gradient = use.take(activated_bytes());
  TRIREME_RETURN_IF_ERROR(second_->backward_input_in(
      use, {output_gradient, weights.fc2_weight, activated_gradient, kept.gathered_gradient},
      deadline));
  return activation_.backward(kept.hidden, activated_gradient, kept.hidden_gradient);
}

Status Mlp::backward_weight(const void* input, const void* output_gradient, const void* memory,
                            const trireme_mlp_gradients& gradients, bool add, Deadline deadline) {
  const std::uint64_t size = dtype_size(options_.dtype), wide = dtype_size(fc1_.gradient_dtype);
  TRIREME_RETURN_IF_ERROR(check_gradients(gradients));
  TRIREME_RETURN_IF_ERROR(check_arrays(
      {{"input", input, fc1_.kept_bytes > 0 ? 0 : fc1_.input_rows * options_.input * size, false},
       {"output_gradient", output_gradient,
        fc2_.kept_bytes > 0 ? 0 : fc2_.output_rows * options_.output * size, false},
       {"kept", memory, info().kept_bytes, false},
       {"fc1_weight", gradients.fc1_weight, fc1_.weight_rows * options_.input * wide, true},
       {"fc1_bias", gradients.fc1_bias, fc1_.bias_count * wide, true},
       {"fc2_weight", gradients.fc2_weight, options_.output * fc2_.count * wide, true},
       {"fc2_bias", gradients.fc2_bias, fc2_.bias_count * wide, true}}));
  TRIREME_RETURN_IF_ERROR(check_pass("backward weight", backward_weight_passes_,
                                     backward_input_passes_, "backward input"));
  return run_layer(*tensor_, options_.name, "backward weight", [&](Workspace::Use& use) -> Status {
    const Kept kept = kept_in(memory);
    // The second layer's product goes on while the first one's input is gathered once more.
    const auto second = [&] {
      return second_->backward_weight_in(use,
                                         {kept.activated, output_gradient, kept.gathered_gradient,
                                          gradients.fc2_weight, gradients.fc2_bias, add},
                                         nullptr, deadline);
    };
    TRIREME_RETURN_IF_ERROR(
        first_->backward_weight_in(use,
                                   {input, kept.hidden_gradient, kept.gathered_input,
                                    gradients.fc1_weight, gradients.fc1_bias, add},
                                   second, deadline));
    ++backward_weight_passes_;
    return Status::success();
  });
}

Status Mlp::backward(const void* input, const void* output_gradient,
                     const trireme_mlp_weights& weights, void* input_gradient, void* memory,
                     const trireme_mlp_gradients& gradients, bool add, Deadline deadline) {
  const std::uint64_t size = dtype_size(options_.dtype), wide = dtype_size(fc1_.gradient_dtype);
  const std::uint64_t input_bytes = fc1_.input_rows * options_.input * size;
  TRIREME_RETURN_IF_ERROR(check_weights(weights));
  TRIREME_RETURN_IF_ERROR(check_gradients(gradients));
  TRIREME_RETURN_IF_ERROR(check_arrays(
      {{"input", input, fc1_.kept_bytes > 0 ? 0 : input_bytes, false},
       {"output_gradient", output_gradient, fc2_.output_rows * options_.output * size, false},
       {"weights.fc1_weight", weights.fc1_weight, fc1_.weight_rows * options_.input * size, false},
       {"weights.fc2_weight", weights.fc2_weight, options_.output * fc2_.count * size, false},
       {"input_gradient", input_gradient, input_bytes, true},
       {"kept", memory, info().kept_bytes, true},
       {"gradients.fc1_weight", gradients.fc1_weight, fc1_.weight_rows * options_.input * wide,
        true},
       {"gradients.fc1_bias", gradients.fc1_bias, fc1_.bias_count * wide, true},
       {"gradients.fc2_weight", gradients.fc2_weight, options_.output * fc2_.count * wide, true},
       {"gradients.fc2_bias", gradients.fc2_bias, fc2_.bias_count * wide, true}}));
  TRIREME_RETURN_IF_ERROR(
      check_pass("backward", backward_input_passes_, forward_passes_, "forward"));
  return run_layer(*tensor_, options_.name, "backward", [&](Workspace::Use& use) -> Status {
    const Kept kept = kept_in(memory);
    TRIREME_RETURN_IF_ERROR(backward_hidden(use, output_gradient, weights, kept, deadline));
    const auto second = [&] {
      return second_->backward_weight_in(use,
                                         {kept.activated, output_gradient, kept.gathered_gradient,
                                          gradients.fc2_weight, gradients.fc2_bias, add},
                                         nullptr, deadline);
    };
    TRIREME_RETURN_IF_ERROR(first_->backward_in(
        use, {kept.hidden_gradient, weights.fc1_weight, input_gradient, nullptr},
        {input, kept.hidden_gradient, kept.gathered_input, gradients.fc1_weight, gradients.fc1_bias,
         add},
        second, deadline));
    ++backward_input_passes_;
    ++backward_weight_passes_;
    return Status::success();
  });
}

}  // namespace trireme::parallel
