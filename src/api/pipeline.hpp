// The object behind trireme_pipeline_schedule, and how options become one.
#pragma once

#include <trireme/pipeline.h>

#include <cstdint>

#include "parallel/pipeline/check.hpp"
#include "parallel/pipeline/costs.hpp"
#include "parallel/pipeline/schedule.hpp"
#include "platform/status.hpp"

namespace trireme::api {

constexpr std::uint64_t kMostCuts = (1u << 18) + 1;  // stages of a schedule, and one

struct PipelineSchedule {
  pipeline::Schedule schedule;
  trireme_pipeline_order order = 0;
  double value = 0, bound = 0;
  std::uint64_t evaluations = 0;
};

// Of a known order.
Status make_schedule(const trireme_pipeline_schedule_options& options, PipelineSchedule* out);
Status read_pipeline_costs(const trireme_pipeline_costs* caller, std::uint32_t stages,
                           pipeline::Costs* out);
Status refuse_broken(const pipeline::Verdict& verdict);

}  // namespace trireme::api
