// layers.h.
#include <trireme/layers.h>

#include <memory>
#include <string>
#include <utility>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/tensor.hpp"
#include "parallel/tensor/linear.hpp"
#include "parallel/tensor/mlp.hpp"

using namespace trireme;
using parallel::Linear;
using parallel::Mlp;
using parallel::Tensor;

namespace {

constexpr std::uint32_t kLinearFlags = TRIREME_LINEAR_FLAG_BIAS |
                                       TRIREME_LINEAR_FLAG_GATHERED_OUTPUT |
                                       TRIREME_LINEAR_FLAG_INPUT_SPLIT;

// Weights or gradients of an MLP.
template <class Arrays>
Status read_mlp_arrays(const Arrays* caller, const char* what, Arrays* out) {
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, what, out));
  return api::check_zero(std::string(what) + ".reserved", out->reserved);
}

}  // namespace

trireme_status trireme_linear_create(trireme_tensor* tensor, const trireme_linear_options* caller,
                                     trireme_linear** out_linear) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Tensor> found;
    TRIREME_RETURN_IF_ERROR(api::find(tensor, &found));
    trireme_linear_options options = TRIREME_LINEAR_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_flags("options.flags", options.flags, kLinearFlags));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.reserved", options.reserved));
    TRIREME_RETURN_IF_ERROR(api::require(options.name, "options.name"));
    TRIREME_RETURN_IF_ERROR(api::require(out_linear, "out_linear"));
    parallel::LinearOptions layer;
    layer.name = options.name;
    layer.kind = options.kind;
    layer.input = options.input;
    layer.output = options.output;
    layer.rows = options.rows;
    layer.stretches = options.stretches;
    layer.dtype = options.dtype;
    layer.bias = (options.flags & TRIREME_LINEAR_FLAG_BIAS) != 0;
    layer.gathered_output = (options.flags & TRIREME_LINEAR_FLAG_GATHERED_OUTPUT) != 0;
    layer.input_split = (options.flags & TRIREME_LINEAR_FLAG_INPUT_SPLIT) != 0;
    TRIREME_RETURN_IF_ERROR(parallel::check_layer_name(layer.name));
    std::shared_ptr<Linear> linear;
    TRIREME_RETURN_IF_ERROR(Linear::create(std::move(found), std::move(layer), &linear));
    *out_linear = api::insert<trireme_linear>(std::move(linear));
    return Status::success();
  });
}

// A call in another thread may keep the layer alive, but not its name.
void trireme_linear_destroy(trireme_linear* linear) {
  const NoCancellation whole_call;
  if (const std::shared_ptr<Linear> found = api::remove(linear)) found->drop_names();
}

trireme_status trireme_linear_get_info(const trireme_linear* linear, trireme_linear_info* info) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Linear> found;
    TRIREME_RETURN_IF_ERROR(api::find(linear, &found));
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    api::write_info(found->info(), info);
    return Status::success();
  });
}

trireme_status trireme_linear_forward(trireme_linear* linear, const void* input, const void* weight,
                                      const void* bias, void* output, void* kept,
                                      const trireme_pass_options* options) {
  return api::run_layer_pass(
      __func__, linear, options, 0, [&](Linear& layer, const api::Pass& pass) {
        return layer.forward({input, weight, bias, output, kept}, pass.deadline);
      });
}

trireme_status trireme_linear_backward_input(trireme_linear* linear, const void* output_gradient,
                                             const void* weight, void* input_gradient, void* kept,
                                             const trireme_pass_options* options) {
  return api::run_layer_pass(
      __func__, linear, options, 0, [&](Linear& layer, const api::Pass& pass) {
        return layer.backward_input({output_gradient, weight, input_gradient, kept}, pass.deadline);
      });
}

trireme_status trireme_linear_backward_weight(trireme_linear* linear, const void* input,
                                              const void* output_gradient, const void* kept,
                                              void* weight_gradient, void* bias_gradient,
                                              const trireme_pass_options* options) {
  return api::run_layer_pass(
      __func__, linear, options, TRIREME_PASS_FLAG_ADD, [&](Linear& layer, const api::Pass& pass) {
        return layer.backward_weight(
            {input, output_gradient, kept, weight_gradient, bias_gradient, pass.add},
            pass.deadline);
      });
}

trireme_status trireme_linear_backward(trireme_linear* linear, const void* input,
                                       const void* output_gradient, const void* weight,
                                       void* input_gradient, void* kept, void* weight_gradient,
                                       void* bias_gradient, const trireme_pass_options* options) {
  return api::run_layer_pass(
      __func__, linear, options, TRIREME_PASS_FLAG_ADD, [&](Linear& layer, const api::Pass& pass) {
        return layer.backward(
            {output_gradient, weight, input_gradient, kept},
            {input, output_gradient, kept, weight_gradient, bias_gradient, pass.add},
            pass.deadline);
      });
}

trireme_status trireme_mlp_create(trireme_tensor* tensor, const trireme_mlp_options* caller,
                                  trireme_mlp** out_mlp) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Tensor> found;
    TRIREME_RETURN_IF_ERROR(api::find(tensor, &found));
    trireme_mlp_options options = TRIREME_MLP_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_flags("options.flags", options.flags,
                                             TRIREME_MLP_FLAG_BIAS | TRIREME_MLP_FLAG_GATED));
    TRIREME_RETURN_IF_ERROR(api::require(options.name, "options.name"));
    TRIREME_RETURN_IF_ERROR(api::require(out_mlp, "out_mlp"));
    TRIREME_RETURN_IF_ERROR(parallel::check_layer_name(options.name));
    parallel::MlpOptions layer;
    layer.name = options.name;
    layer.input = options.input;
    layer.hidden = options.hidden;
    layer.output = options.output;
    layer.rows = options.rows;
    layer.dtype = options.dtype;
    layer.bias = (options.flags & TRIREME_MLP_FLAG_BIAS) != 0;
    layer.activation = {options.activation, (options.flags & TRIREME_MLP_FLAG_GATED) != 0,
                        options.forward, options.backward, options.user_data};
    std::shared_ptr<Mlp> mlp;
    TRIREME_RETURN_IF_ERROR(Mlp::create(std::move(found), layer, &mlp));
    *out_mlp = api::insert<trireme_mlp>(std::move(mlp));
    return Status::success();
  });
}

void trireme_mlp_destroy(trireme_mlp* mlp) {
  const NoCancellation whole_call;
  if (const std::shared_ptr<Mlp> found = api::remove(mlp)) found->drop_names();
}

trireme_status trireme_mlp_get_info(const trireme_mlp* mlp, trireme_mlp_info* info) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Mlp> found;
    TRIREME_RETURN_IF_ERROR(api::find(mlp, &found));
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    api::write_info(found->info(), info);
    return Status::success();
  });
}

trireme_status trireme_mlp_forward(trireme_mlp* mlp, const void* input,
                                   const trireme_mlp_weights* weights, void* output, void* kept,
                                   const trireme_pass_options* options) {
  return api::run_layer_pass(__func__, mlp, options, 0, [&](Mlp& layer, const api::Pass& pass) {
    trireme_mlp_weights read = TRIREME_MLP_WEIGHTS_INIT;
    TRIREME_RETURN_IF_ERROR(read_mlp_arrays(weights, "weights", &read));
    return layer.forward(input, read, output, kept, pass.deadline);
  });
}

trireme_status trireme_mlp_backward_input(trireme_mlp* mlp, const void* output_gradient,
                                          const trireme_mlp_weights* weights, void* input_gradient,
                                          void* kept, const trireme_pass_options* options) {
  return api::run_layer_pass(__func__, mlp, options, 0, [&](Mlp& layer, const api::Pass& pass) {
    trireme_mlp_weights read = TRIREME_MLP_WEIGHTS_INIT;
    TRIREME_RETURN_IF_ERROR(read_mlp_arrays(weights, "weights", &read));
    return layer.backward_input(output_gradient, read, input_gradient, kept, pass.deadline);
  });
}

trireme_status trireme_mlp_backward_weight(trireme_mlp* mlp, const void* input,
                                           const void* output_gradient, const void* kept,
                                           const trireme_mlp_gradients* gradients,
                                           const trireme_pass_options* options) {
  return api::run_layer_pass(
      __func__, mlp, options, TRIREME_PASS_FLAG_ADD, [&](Mlp& layer, const api::Pass& pass) {
        trireme_mlp_gradients read = TRIREME_MLP_GRADIENTS_INIT;
        TRIREME_RETURN_IF_ERROR(read_mlp_arrays(gradients, "gradients", &read));
        return layer.backward_weight(input, output_gradient, kept, read, pass.add, pass.deadline);
      });
}

trireme_status trireme_mlp_backward(trireme_mlp* mlp, const void* input,
                                    const void* output_gradient, const trireme_mlp_weights* weights,
                                    void* input_gradient, void* kept,
                                    const trireme_mlp_gradients* gradients,
                                    const trireme_pass_options* options) {
  return api::run_layer_pass(
      __func__, mlp, options, TRIREME_PASS_FLAG_ADD, [&](Mlp& layer, const api::Pass& pass) {
        trireme_mlp_weights read = TRIREME_MLP_WEIGHTS_INIT;
        TRIREME_RETURN_IF_ERROR(read_mlp_arrays(weights, "weights", &read));
        trireme_mlp_gradients found = TRIREME_MLP_GRADIENTS_INIT;
        TRIREME_RETURN_IF_ERROR(read_mlp_arrays(gradients, "gradients", &found));
        return layer.backward(input, output_gradient, read, input_gradient, kept, found, pass.add,
                              pass.deadline);
      });
}
