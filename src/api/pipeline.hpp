// The object behind a schedule's handle.
#pragma once

#include <trireme/pipeline.h>

#include <cstdint>

#include "parallel/pipeline/schedule.hpp"

namespace trireme::api {

struct PipelineSchedule {
  pipeline::Schedule schedule;
  trireme_pipeline_order order = 0;
  double value = 0, bound = 0;
  std::uint64_t evaluations = 0;
};

}  // namespace trireme::api
