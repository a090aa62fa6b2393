// model.h: check, call down, hand over.
#include "model/model.hpp"

#include <trireme/mesh.h>
#include <trireme/model.h>

#include <string>
#include <vector>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/model_options.hpp"
#include "collectives/communicator.hpp"
#include "collectives/device_moves.hpp"
#include "model/strategy.hpp"
#include "optimizer/counted_rule.hpp"

using trireme::Communicator;
using trireme::Status;
using trireme::sharding::AxisPlacement;
using trireme::strategies::count_planned_rule;
using trireme::strategies::Model;
namespace api = trireme::api;

namespace {

// Runs `body` on the model behind a handle.
template <class Body>
trireme_status with_model(const char* function, const trireme_model* handle, Body&& body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Model> model;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &model));
    TRIREME_RETURN_IF_ERROR(model->check_call());
    return body(*model);
  });
}

// The same for a step that all ranks take together: if memory runs out in the middle of it, the
// group fails.
template <class Body>
trireme_status together(const char* function, const trireme_model* handle, Body&& body) noexcept {
  return with_model(function, handle, [&](Model& model) -> Status {
    Status status = Status::success();
    api::hand_out(model, [&] { status = body(model); });
    return status;
  });
}

// Fills a caller's info struct from `fill`, which is called only if the struct can take it.
template <class Struct, class Fill>
Status give_info(Struct* caller, const char* what, Fill&& fill) {
  TRIREME_RETURN_IF_ERROR(api::check_info(caller, what));
  Struct info = {};
  TRIREME_RETURN_IF_ERROR(fill(&info));
  api::write_info(info, caller);
  return Status::success();
}

Status read_placements(const trireme_parameter_options& options, std::vector<AxisPlacement>* out) {
  const std::string count = std::to_string(options.placement_count);
  if (options.placement_count == 0 && options.placements != nullptr) {
    return trireme::invalid_argument("options.placements is set, but options.placement_count is 0");
  }
  if (options.placement_count > TRIREME_MESH_MAX_AXES) {
    return trireme::invalid_argument("options.placement_count " + count + " is above " +
                                     std::to_string(TRIREME_MESH_MAX_AXES));
  }
  const auto keep = [&](const trireme_parameter_placement& given,
                        const std::string& name) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(given.axis, (name + ".axis").c_str()));
    if (given.reserved != 0) {
      return trireme::invalid_argument(name + ".reserved is " + std::to_string(given.reserved) +
                                       ", and not 0");
    }
    constexpr uint64_t kMostStretches = 65'536;
    if (given.stretch_count > kMostStretches) {
      return trireme::invalid_argument(name + ".stretch_count " +
                                       std::to_string(given.stretch_count) + " is above 65,536");
    }
    if ((given.stretches != nullptr) != (given.stretch_count > 0)) {
      return trireme::invalid_argument(
          name + ".stretches is " + (given.stretches != nullptr ? "set" : "NULL") + ", but " +
          name + ".stretch_count is " + std::to_string(given.stretch_count));
    }
    AxisPlacement placement = {given.axis, given.kind, 1, given.dimension, given.extent, {}};
    for (uint64_t i = 0; i < given.stretch_count; ++i) {
      placement.stretches.push_back({given.stretches[2 * i], given.stretches[2 * i + 1]});
    }
    out->push_back(std::move(placement));
    return Status::success();
  };
  return api::read_list(options.placements, options.placement_count, "options.placements", keep);
}

}  // namespace

const char* trireme_strategy_name(trireme_strategy strategy) {
  return trireme::strategies::strategy_name(strategy);
}

trireme_status trireme_strategy_parse(const char* text, trireme_strategy* out_strategy) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(text, "text"));
    TRIREME_RETURN_IF_ERROR(api::require(out_strategy, "out_strategy"));
    return trireme::strategies::parse_strategy(text, out_strategy);
  });
}

trireme_status trireme_model_create(trireme_communicator* communicator,
                                    const trireme_model_options* caller_options,
                                    trireme_model** out_model) {
  return api::guard(__func__, [&]() -> Status {
    trireme::strategies::ModelOptions options;
    TRIREME_RETURN_IF_ERROR(api::read_model_options(caller_options, &options));
    TRIREME_RETURN_IF_ERROR(api::require(out_model, "out_model"));
    std::shared_ptr<Communicator> ranks;
    TRIREME_RETURN_IF_ERROR(api::find(communicator, &ranks));
    std::shared_ptr<Model> model;
    auto moves = trireme::moves_of(ranks);
    TRIREME_RETURN_IF_ERROR(
        Model::create(std::move(ranks), std::move(moves), options, count_planned_rule, &model));
    trireme_model* const handle = api::insert<trireme_model>(model);
    model->take_number();
    *out_model = handle;
    return Status::success();
  });
}

void trireme_model_destroy(trireme_model* model) { api::destroy(model); }

trireme_status trireme_model_add_parameter(trireme_model* model,
                                           const trireme_parameter_options* caller_options,
                                           uint64_t* out_parameter) {
  return with_model(__func__, model, [&](Model& found) -> Status {
    trireme_parameter_options options = TRIREME_PARAMETER_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller_options, "options", &options));
    std::vector<AxisPlacement> placements;
    TRIREME_RETURN_IF_ERROR(read_placements(options, &placements));
    uint64_t parameter = 0;
    TRIREME_RETURN_IF_ERROR(found.add_parameter(options, placements, &parameter));
    if (out_parameter != nullptr) *out_parameter = parameter;
    return Status::success();
  });
}

trireme_status trireme_model_seal(trireme_model* model) {
  return together(__func__, model, [](Model& found) { return found.seal(); });
}

trireme_status trireme_model_get_info(const trireme_model* model, trireme_model_info* out_info) {
  return with_model(__func__, model, [&](Model& found) {
    return give_info(out_info, "out_info",
                     [&](trireme_model_info* info) { return found.info(info); });
  });
}

trireme_status trireme_model_get_unit_info(const trireme_model* model, uint64_t unit,
                                           trireme_unit_info* out_info) {
  return with_model(__func__, model, [&](Model& found) {
    return give_info(out_info, "out_info",
                     [&](trireme_unit_info* info) { return found.unit_info(unit, info); });
  });
}

trireme_status trireme_model_get_memory(const trireme_model* model,
                                        trireme_model_memory* out_memory) {
  return with_model(__func__, model, [&](Model& found) {
    return give_info(out_memory, "out_memory",
                     [&](trireme_model_memory* memory) { return found.memory(memory); });
  });
}

trireme_status trireme_model_get_offload_info(const trireme_model* model,
                                              trireme_offload_info* out_info) {
  return with_model(__func__, model, [&](Model& found) {
    return give_info(out_info, "out_info",
                     [&](trireme_offload_info* info) { return found.offload_info(info); });
  });
}

trireme_status trireme_model_get_statistics(const trireme_model* model,
                                            trireme_model_statistics* out_statistics) {
  return with_model(__func__, model, [&](Model& found) {
    return give_info(out_statistics, "out_statistics",
                     [&](trireme_model_statistics* it) { return found.statistics(it); });
  });
}

trireme_status trireme_model_check_replicas(trireme_model* model) {
  return together(__func__, model, [](Model& found) { return found.check_replicas(); });
}

trireme_status trireme_model_broadcast_parameters(trireme_model* model, const void* values,
                                                  uint64_t count, trireme_dtype dtype,
                                                  int32_t root) {
  return together(__func__, model, [&](Model& found) {
    return found.broadcast_parameters(values, count, dtype, root);
  });
}

trireme_status trireme_model_gather_parameters(trireme_model* model, void* values, uint64_t count,
                                               trireme_dtype dtype) {
  return together(__func__, model,
                  [&](Model& found) { return found.gather_parameters(values, count, dtype); });
}

trireme_status trireme_model_gather_unit(trireme_model* model, uint64_t unit) {
  return together(__func__, model, [&](Model& found) { return found.gather_unit(unit); });
}

trireme_status trireme_model_release_unit(trireme_model* model, uint64_t unit) {
  return with_model(__func__, model, [&](Model& found) { return found.release_unit(unit); });
}

trireme_status trireme_model_get_parameter_data(const trireme_model* model, uint64_t parameter,
                                                void** out_data, uint64_t* out_count) {
  return with_model(__func__, model, [&](Model& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_data, "out_data"));
    return found.parameter_data(parameter, out_data, out_count);
  });
}

trireme_status trireme_model_get_leaf(const trireme_model* model, uint32_t micro_batch,
                                      uint32_t* out_leaf) {
  return with_model(__func__, model, [&](Model& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_leaf, "out_leaf"));
    return found.leaf(micro_batch, out_leaf);
  });
}

trireme_status trireme_model_begin_backward(trireme_model* model, uint32_t flags) {
  return together(__func__, model, [&](Model& found) { return found.begin_backward(flags); });
}

trireme_status trireme_model_get_gradient_data(trireme_model* model, uint64_t parameter,
                                               void** out_data, uint64_t* out_count,
                                               trireme_dtype* out_dtype, int32_t* out_adds) {
  return together(__func__, model, [&](Model& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_data, "out_data"));
    TRIREME_RETURN_IF_ERROR(api::require(out_adds, "out_adds"));
    return found.gradient_data(parameter, out_data, out_count, out_dtype, out_adds);
  });
}

trireme_status trireme_model_gradient_ready(trireme_model* model, uint64_t parameter,
                                            const void* gradient, uint64_t count,
                                            trireme_dtype dtype) {
  return together(__func__, model, [&](Model& found) {
    return found.gradient_ready(parameter, gradient, count, dtype);
  });
}

trireme_status trireme_model_end_backward(trireme_model* model) {
  return together(__func__, model, [](Model& found) { return found.end_backward(); });
}

trireme_status trireme_model_accumulate_flat(trireme_model* model, const void* gradients,
                                             uint64_t count, trireme_dtype dtype, uint32_t flags) {
  return together(__func__, model, [&](Model& found) {
    return found.accumulate_flat(gradients, count, dtype, flags);
  });
}

trireme_status trireme_model_discard_gradients(trireme_model* model) {
  return together(__func__, model, [](Model& found) { return found.discard_gradients(); });
}
