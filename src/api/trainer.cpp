// trainer.h: check, call down, hand over.
#include "trainer/trainer.hpp"

#include <trireme/trainer.h>

#include <memory>
#include <string>
#include <vector>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/offload_options.hpp"
#include "api/pipeline.hpp"
#include "parallel/executor/pipeline_trainer.hpp"
#include "platform/names.hpp"

using trireme::Status;
using trireme::parallel::PipelineTrainer;
using trireme::parallel::PipelineTrainerOptions;
using trireme::strategies::Optimizer;
using trireme::strategies::StepCaller;
using trireme::strategies::Trainer;
namespace api = trireme::api;

namespace {

template <class Body>
trireme_status with_trainer(const char* function, const trireme_trainer* handle,
                            Body&& body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<StepCaller> trainer;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &trainer));
    TRIREME_RETURN_IF_ERROR(trainer->check_call());
    return body(*trainer);
  });
}

Status read_reads(const trireme_layer& layer, const std::string& name,
                  std::vector<std::uint64_t>* out) {
  constexpr std::uint64_t kMost = 4096;
  if (layer.read_count > kMost) {
    return trireme::invalid_argument(name + ".read_count is " + std::to_string(layer.read_count) +
                                     ", above " + std::to_string(kMost));
  }
  if (layer.read_count == 0) return Status::success();
  TRIREME_RETURN_IF_ERROR(api::require(layer.reads, (name + ".reads").c_str()));
  out->assign(layer.reads, layer.reads + layer.read_count);
  return Status::success();
}

Status read_layers(const trireme_layer* layers, uint64_t count, std::vector<Trainer::Layer>* out) {
  return api::read_list(layers, count, "layers",
                        [&](const trireme_layer& read, const std::string& name) -> Status {
                          out->push_back({read.name == nullptr ? "" : read.name, read});
                          out->back().described.name = nullptr;  // the caller's
                          out->back().described.reads = nullptr;
                          return read_reads(read, name, &out->back().reads);
                        });
}

Status read_file(const trireme_trainer_options& options, std::string* path, uint64_t* window) {
  trireme_offload_options offload = TRIREME_OFFLOAD_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_offload(options.offload, &offload));
  if (offload.ratio != 0) {
    return trireme::invalid_argument("options.offload.ratio " + trireme::text_of(offload.ratio) +
                                     " is not 0: a trainer puts all activations in the file");
  }
  *path = offload.path == nullptr ? "" : offload.path;
  *window = offload.buffer_bytes;
  return Status::success();
}

Status read_options(const trireme_trainer_options& options, Trainer::Options* out) {
  out->flags = options.flags;
  out->micro_batches = options.micro_batches;
  out->checkpoint_every = options.checkpoint_every;
  out->activation_budget_bytes = options.activation_budget_bytes;
  out->seed = options.seed;
  out->after_step = options.after_step;
  out->user_data = options.user_data;
  return read_file(options, &out->offload_path, &out->offload_buffer_bytes);
}

Status check_flags(const trireme_trainer_pipeline_options& pipeline) {
  if ((pipeline.flags & ~uint32_t{TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT}) == 0) {
    return Status::success();
  }
  return trireme::invalid_argument("options.pipeline.flags " + std::to_string(pipeline.flags) +
                                   " has a bit that is no TRIREME_TRAINER_PIPELINE_FLAG_*");
}

Status read_pipeline(const trireme_trainer_options& options,
                     const trireme_trainer_pipeline_options& pipeline,
                     PipelineTrainerOptions* out) {
  std::shared_ptr<api::PipelineSchedule> schedule;
  TRIREME_RETURN_IF_ERROR(api::find(pipeline.schedule, &schedule));
  out->schedule = schedule->schedule;
  if (pipeline.cut_count > api::kMostCuts) {
    return trireme::invalid_argument("options.pipeline.cut_count is " +
                                     std::to_string(pipeline.cut_count) + ", above " +
                                     std::to_string(api::kMostCuts));
  }
  if (pipeline.cut_count > 0) {
    TRIREME_RETURN_IF_ERROR(api::require(pipeline.cuts, "options.pipeline.cuts"));
    out->cuts.assign(pipeline.cuts, pipeline.cuts + pipeline.cut_count);
  }
  out->flags = options.flags;
  out->pipeline_flags = pipeline.flags;
  out->micro_batches = options.micro_batches;
  out->seed = options.seed;
  out->checkpoints = {options.checkpoint_every, options.activation_budget_bytes};
  TRIREME_RETURN_IF_ERROR(read_file(options, &out->offload_path, &out->checkpoints.window));
  out->after_step = options.after_step;
  out->user_data = options.user_data;
  return check_flags(pipeline);
}

// A description of layers, and where the trainer goes.
struct Wanted {
  const trireme_layer* layers;
  uint64_t layer_count;
  trireme_optimizer* optimizer;
  trireme_trainer** out_trainer;
};

Status check_wanted(const Wanted& wanted, const trireme_trainer_options& options,
                    std::vector<Trainer::Layer>* layers) {
  TRIREME_RETURN_IF_ERROR(api::check_zero("options.reserved", options.reserved));
  TRIREME_RETURN_IF_ERROR(api::require(wanted.out_trainer, "out_trainer"));
  return read_layers(wanted.layers, wanted.layer_count, layers);
}

Status make_whole(const Wanted& wanted, const trireme_trainer_options& caller_options) {
  std::vector<Trainer::Layer> layers;
  TRIREME_RETURN_IF_ERROR(check_wanted(wanted, caller_options, &layers));
  Trainer::Options options;
  TRIREME_RETURN_IF_ERROR(read_options(caller_options, &options));
  std::shared_ptr<Optimizer> optimizer;
  TRIREME_RETURN_IF_ERROR(api::find(wanted.optimizer, &optimizer));
  TRIREME_RETURN_IF_ERROR(optimizer->check_call());
  Status status = Status::success();
  // All ranks create it together: if memory runs out in the middle of it, the groups fail.
  api::hand_out(*optimizer, [&] {
    std::shared_ptr<Trainer> made;
    status = Trainer::create(optimizer, std::move(layers), options, &made);
    std::shared_ptr<StepCaller> caller = std::move(made);
    if (status.ok()) *wanted.out_trainer = api::insert<trireme_trainer>(std::move(caller));
  });
  return status;
}

// Without communicator and optimizer this rank cannot meet the others. They hear of other faults.
Status make_staged(const Wanted& wanted, const trireme_trainer_options& options) {
  trireme_trainer_pipeline_options pipeline = TRIREME_TRAINER_PIPELINE_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(options.pipeline, "options.pipeline", &pipeline));
  std::shared_ptr<trireme::Communicator> along;
  TRIREME_RETURN_IF_ERROR(api::find_on_host(pipeline.communicator, &along));
  std::shared_ptr<Optimizer> optimizer;
  TRIREME_RETURN_IF_ERROR(api::find(wanted.optimizer, &optimizer));
  TRIREME_RETURN_IF_ERROR(optimizer->check_call());
  Status status = Status::success();
  const auto make = [&] {
    std::vector<Trainer::Layer> layers;
    PipelineTrainerOptions staged;
    staged.communicator = along;
    Status read = check_wanted(wanted, options, &layers);
    if (read.ok()) read = read_pipeline(options, pipeline, &staged);
    std::shared_ptr<PipelineTrainer> made;
    status = PipelineTrainer::create(optimizer, std::move(layers), std::move(staged),
                                     std::move(read), &made);
    std::shared_ptr<StepCaller> caller = std::move(made);
    if (status.ok()) *wanted.out_trainer = api::insert<trireme_trainer>(std::move(caller));
  };
  api::hand_out(*along, [&] { api::hand_out(*optimizer, make); });
  return status;
}

}  // namespace

trireme_status trireme_trainer_create(trireme_optimizer* optimizer, const trireme_layer* layers,
                                      uint64_t layer_count,
                                      const trireme_trainer_options* caller_options,
                                      trireme_trainer** out_trainer) {
  return api::guard(__func__, [&]() -> Status {
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_optional(caller_options, "options", &options));
    const Wanted wanted = {layers, layer_count, optimizer, out_trainer};
    return options.pipeline == nullptr ? make_whole(wanted, options) : make_staged(wanted, options);
  });
}

void trireme_trainer_destroy(trireme_trainer* trainer) { api::destroy(trainer); }

trireme_status trireme_trainer_step(trireme_trainer* trainer, void* batch,
                                    trireme_trainer_metrics* out_metrics) {
  return with_trainer(__func__, trainer, [&](StepCaller& found) -> Status {
    if (out_metrics != nullptr) {
      TRIREME_RETURN_IF_ERROR(api::check_info(out_metrics, "out_metrics"));
    }
    trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
    Status status = Status::success();
    api::hand_out(found, [&] { status = found.step(batch, &metrics); });
    if (status.ok() && out_metrics != nullptr) api::write_info(metrics, out_metrics);
    return status;
  });
}

trireme_status trireme_trainer_evaluate(trireme_trainer* trainer, void* batch, double* out_loss) {
  return with_trainer(__func__, trainer, [&](StepCaller& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_loss, "out_loss"));
    double loss = 0;
    Status status = Status::success();
    api::hand_out(found, [&] { status = found.evaluate(batch, &loss); });
    if (status.ok()) *out_loss = loss;
    return status;
  });
}

trireme_status trireme_trainer_request_stop(trireme_trainer* trainer) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<StepCaller> found;
    TRIREME_RETURN_IF_ERROR(api::find(trainer, &found));
    found->request_stop();
    return Status::success();
  });
}

trireme_status trireme_trainer_get_info(const trireme_trainer* trainer,
                                        trireme_trainer_info* out_info) {
  return with_trainer(__func__, trainer, [&](StepCaller& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(out_info, "out_info"));
    trireme_trainer_info info = TRIREME_TRAINER_INFO_INIT;
    TRIREME_RETURN_IF_ERROR(found.info(&info));
    api::write_info(info, out_info);
    return Status::success();
  });
}

trireme_status trireme_trainer_get_offload_info(const trireme_trainer* trainer,
                                                trireme_offload_info* out_info) {
  return with_trainer(__func__, trainer, [&](StepCaller& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(out_info, "out_info"));
    trireme_offload_info info = {};
    TRIREME_RETURN_IF_ERROR(found.offload_info(&info));
    api::write_info(info, out_info);
    return Status::success();
  });
}
