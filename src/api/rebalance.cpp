// rebalance.h.
#include <trireme/rebalance.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/pipeline.hpp"
#include "parallel/rebalance/rebalance.hpp"
#include "trainer/step_caller.hpp"

using namespace trireme;
using parallel::Rebalance;
using parallel::RebalanceOptions;
using parallel::RebalanceReport;
using strategies::LayerCost;
using strategies::Optimizer;
using strategies::StepCaller;

namespace {

constexpr std::uint64_t kDefaultBuffer = std::uint64_t{4} << 20;
constexpr std::uint64_t kMostBuffer = std::uint64_t{1} << 40;

Status read_options(const trireme_rebalance_options& given, RebalanceOptions* out) {
  out->part = given.part;
  out->timeout_ns = given.timeout_ns;
  out->buffer_bytes = given.buffer_bytes == 0 ? kDefaultBuffer : given.buffer_bytes;
  if (out->buffer_bytes < 64 || out->buffer_bytes > kMostBuffer) {
    return invalid_argument("options.buffer_bytes is " + std::to_string(given.buffer_bytes) +
                            ", not in 64 to 2^40");
  }
  if (given.cut_count > api::kMostCuts) {
    return invalid_argument("options.cut_count is " + std::to_string(given.cut_count) + ", above " +
                            std::to_string(api::kMostCuts));
  }
  if (given.cut_count == 0) return Status::success();
  TRIREME_RETURN_IF_ERROR(api::require(given.cuts, "options.cuts"));
  out->cuts.assign(given.cuts, given.cuts + given.cut_count);
  return Status::success();
}

Status find_optimizer(const trireme_optimizer* handle, std::shared_ptr<Optimizer>* out) {
  TRIREME_RETURN_IF_ERROR(api::find(handle, out));
  return (*out)->check_call();
}

// They lie one behind the other.
Status check_list(const trireme_measured_costs* costs) {
  TRIREME_RETURN_IF_ERROR(api::check_info(costs, "costs"));
  if (costs->struct_size % alignof(trireme_measured_costs) == 0) return Status::success();
  return invalid_argument("costs[0].struct_size is " + std::to_string(costs->struct_size) +
                          ", no multiple of " + std::to_string(alignof(trireme_measured_costs)) +
                          "; start from TRIREME_MEASURED_COSTS_INIT");
}

trireme_measured_costs costs_of(const LayerCost& cost) {
  trireme_measured_costs costs = TRIREME_MEASURED_COSTS_INIT;
  costs.forward_seconds = cost.seconds[0];
  costs.input_seconds = cost.seconds[1];
  costs.weight_seconds = cost.seconds[2];
  costs.parameter_bytes = cost.parameter_bytes;
  costs.kept_bytes = cost.kept_bytes;
  costs.output_bytes = cost.output_bytes;
  return costs;
}

}  // namespace

trireme_status trireme_trainer_get_layer_costs(trireme_trainer* trainer,
                                               trireme_measured_costs* costs, uint64_t capacity,
                                               uint64_t* out_count) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<StepCaller> found;
    TRIREME_RETURN_IF_ERROR(api::find(trainer, &found));
    TRIREME_RETURN_IF_ERROR(found->check_call());
    std::vector<LayerCost> told;
    Status status = Status::success();
    api::hand_out(*found, [&] { status = found->layer_costs(check_list(costs), capacity, &told); });
    TRIREME_RETURN_IF_ERROR(status);
    const std::uint32_t stride = costs->struct_size;
    auto* next = reinterpret_cast<char*>(costs);
    for (const LayerCost& each : told) {
      std::memcpy(next, &stride, sizeof stride);
      api::write_info(costs_of(each), reinterpret_cast<trireme_measured_costs*>(next));
      next += stride;
    }
    if (out_count != nullptr) *out_count = told.size();
    return status;
  });
}

trireme_status trireme_parallel_rebalance(trireme_optimizer* from, trireme_optimizer* to,
                                          const trireme_rebalance_options* caller_options,
                                          trireme_rebalance_report* out_report) {
  return api::guard(__func__, [&]() -> Status {
    trireme_rebalance_options given = TRIREME_REBALANCE_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller_options, "options", &given));
    RebalanceOptions options;
    TRIREME_RETURN_IF_ERROR(api::find_on_host(given.communicator, &options.communicator));
    RebalanceReport made;
    Status status = Status::success();
    api::hand_out(*options.communicator, [&] {
      std::shared_ptr<Optimizer> old, fresh;
      Status read = read_options(given, &options);
      if (read.ok()) read = find_optimizer(from, &old);
      if (read.ok()) read = find_optimizer(to, &fresh);
      if (read.ok() && out_report != nullptr) read = api::check_info(out_report, "out_report");
      status = Rebalance::run(old, fresh, options, std::move(read), &made);
    });
    TRIREME_RETURN_IF_ERROR(status);
    if (out_report == nullptr) return status;
    trireme_rebalance_report report = TRIREME_REBALANCE_REPORT_INIT;
    report.sent_bytes = made.sent_bytes;
    report.received_bytes = made.received_bytes;
    report.kept_bytes = made.kept_bytes;
    report.buffer_bytes = made.buffer_bytes;
    report.peak_bytes = made.peak_bytes;
    api::write_info(report, out_report);
    return status;
  });
}
