// Reads the options of a parallel object, and makes the schedule that they describe.
#pragma once

#include <trireme/parallel.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "api/pipeline.hpp"
#include "parallel/layout/layout.hpp"
#include "parallel/tensor/tensor.hpp"
#include "platform/status.hpp"

namespace trireme::api {

struct ParallelWish {
  parallel::LayoutOptions layout;
  std::shared_ptr<PipelineSchedule> schedule;     // null without a pipeline
  pipeline::Costs costs;                          // of its stages, equal ones by default
  std::optional<parallel::TensorOptions> tensor;  // not set: no tensor object
};

Status read_parallel_options(const trireme_parallel_options* caller, std::int32_t world_size,
                             ParallelWish* out);

}  // namespace trireme::api
