#include "api/parallel_options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "api/boundary.hpp"
#include "api/tensor.hpp"
#include "parallel/pipeline/generate.hpp"
#include "parallel/pipeline/text.hpp"

namespace trireme::api {
namespace {

using parallel::Axis;

Status refuse_without_pipeline(bool unset, const char* field) {
  if (unset) return Status::success();
  return invalid_argument(std::string("options.") + field +
                          " is set, but there is 1 rank along pipeline; leave it 0");
}

Status check_no_pipeline(const trireme_parallel_options& options) {
  TRIREME_RETURN_IF_ERROR(refuse_without_pipeline(options.order == 0, "order"));
  TRIREME_RETURN_IF_ERROR(refuse_without_pipeline(options.placement == 0, "placement"));
  TRIREME_RETURN_IF_ERROR(
      refuse_without_pipeline(options.schedule_text == nullptr, "schedule_text"));
  TRIREME_RETURN_IF_ERROR(refuse_without_pipeline(options.costs == nullptr, "costs"));
  return refuse_without_pipeline(options.stages_per_rank <= 1, "stages_per_rank");
}

// A number of the options is that of the text, or 0.
Status check_text_size(const char* field, std::uint64_t wanted, std::uint64_t has,
                       const char* what) {
  if (wanted == 0 || wanted == has) return Status::success();
  return invalid_argument(std::string("options.") + field + " is " + std::to_string(wanted) +
                          ", but options.schedule_text has " + std::to_string(has) + " " + what);
}

Status read_text(const trireme_parallel_options& options, std::uint32_t ranks,
                 PipelineSchedule* out) {
  if (options.order != 0) {
    return invalid_argument("options.order and options.schedule_text are both set; leave one 0");
  }
  if (options.placement != 0) {
    return invalid_argument("options.placement is set, but options.schedule_text has its own");
  }
  TRIREME_RETURN_IF_ERROR(
      pipeline::parse_schedule(std::string_view(options.schedule_text), &out->schedule));
  const pipeline::Schedule& schedule = out->schedule;
  TRIREME_RETURN_IF_ERROR(check_text_size("pipeline", ranks, schedule.ranks, "ranks"));
  TRIREME_RETURN_IF_ERROR(check_text_size("micro_batches", options.micro_batches,
                                          schedule.micro_batches, "micro-batches"));
  return check_text_size("stages_per_rank", std::uint64_t{options.stages_per_rank} * ranks,
                         schedule.stages(), "stages in all");
}

Status make_parallel_order(const trireme_parallel_options& options, std::uint32_t ranks,
                           PipelineSchedule* out) {
  if (options.micro_batches == 0) {
    return invalid_argument("options.micro_batches is 0, but a pipeline needs 1 or more");
  }
  if (options.placement == TRIREME_PIPELINE_PLACEMENT_LIST) {
    return invalid_argument(
        "options.placement is LIST, which has no list here; write the schedule as "
        "options.schedule_text");
  }
  trireme_pipeline_schedule_options wanted = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
  wanted.order = options.order;
  if (options.order == 0) {
    wanted.order = options.stages_per_rank > 1 ? TRIREME_PIPELINE_ORDER_INTERLEAVED
                                               : TRIREME_PIPELINE_ORDER_1F1B;
  }
  wanted.ranks = ranks;
  wanted.stages_per_rank = options.stages_per_rank;
  wanted.micro_batches = options.micro_batches;
  wanted.placement = options.placement;
  const std::vector<std::uint64_t> bytes(ranks, options.activation_limit_bytes);
  trireme_pipeline_limits limits = TRIREME_PIPELINE_LIMITS_INIT;
  limits.bytes = bytes.data();
  limits.rank_count = ranks;
  if (wanted.order == TRIREME_PIPELINE_ORDER_BEST) {
    if (options.costs == nullptr) {
      return invalid_argument("options.costs is NULL, but options.order is BEST, which needs them");
    }
    wanted.costs = options.costs;
    if (options.activation_limit_bytes != 0) wanted.limits = &limits;
  }
  return make_schedule(wanted, out);
}

// Ranks may search with other costs, and read other texts.
void add_actions(const pipeline::Schedule& schedule, std::vector<sharding::Fact>* facts) {
  for (std::uint32_t stage = 0; stage < schedule.stages(); ++stage) {
    facts->push_back({"the rank of stage " + std::to_string(stage) + " of the schedule",
                      std::to_string(schedule.rank_of[stage])});
  }
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    const auto actions = schedule.of(rank);
    const std::string of = " of rank " + std::to_string(rank) + " along pipeline";
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const std::uint32_t pair = actions[i].pair;
      facts->push_back({"action " + std::to_string(i) + of,
                        pipeline::action_text(actions[i]) +
                            (pair == 0 ? "" : " in pair " + std::to_string(pair))});
    }
    facts->push_back({"the number of actions" + of, std::to_string(actions.size())});
  }
}

// Ranks with other costs would search another schedule, or refuse another one.
void add_costs(const pipeline::Costs& costs, std::vector<sharding::Fact>* facts) {
  const auto exact = [](double number) {
    char text[64];
    std::snprintf(text, sizeof text, "%a", number);
    return std::string(text);
  };
  const std::string name = "options.costs.";
  facts->push_back({name + "overhead", exact(costs.overhead)});
  facts->push_back({name + "latency", exact(costs.latency)});
  facts->push_back({name + "bytes_per_second", exact(costs.bytes_per_second)});
  for (std::size_t i = 0; i < costs.stages.size(); ++i) {
    const pipeline::StageCosts& stage = costs.stages[i];
    std::string value;
    const auto add = [&value](const char* field, const std::string& number) {
      value.append(value.empty() ? "" : ", ").append(field).append(" ").append(number);
    };
    add("forward", exact(stage.forward));
    add("backward", exact(stage.backward));
    add("input", exact(stage.input));
    add("weight", exact(stage.weight));
    add("recompute", exact(stage.recompute));
    add("gather", exact(stage.gather));
    add("reduce", exact(stage.reduce));
    add("kept_bytes", std::to_string(stage.kept_bytes));
    add("held_bytes", std::to_string(stage.held_bytes));
    add("checkpoint_bytes", std::to_string(stage.checkpoint_bytes));
    add("parameter_bytes", std::to_string(stage.parameter_bytes));
    add("message_bytes", std::to_string(stage.message_bytes));
    facts->push_back({name + "stages[" + std::to_string(i) + "]", std::move(value)});
  }
}

Status make_schedule_of(const trireme_parallel_options& options, ParallelWish* out) {
  const auto ranks =
      static_cast<std::uint32_t>(out->layout.sizes[static_cast<std::size_t>(Axis::pipeline)]);
  auto made = std::make_shared<PipelineSchedule>();
  const bool text = options.schedule_text != nullptr;
  TRIREME_RETURN_IF_ERROR(text ? read_text(options, ranks, made.get())
                               : make_parallel_order(options, ranks, made.get()));
  const pipeline::Schedule& schedule = made->schedule;
  const std::uint32_t stages = schedule.stages();
  out->costs = pipeline::equal_costs(stages, std::max(stages / ranks, 1u), 0);
  pipeline::Limits limits;
  if (options.costs != nullptr) {
    TRIREME_RETURN_IF_ERROR(read_pipeline_costs(options.costs, stages, &out->costs));
    add_costs(out->costs, &out->layout.facts);
    if (options.activation_limit_bytes != 0) {
      limits.bytes.assign(ranks, options.activation_limit_bytes);
    }
  }
  const pipeline::Verdict verdict = pipeline::check(schedule, limits, &out->costs);
  if (!verdict.holds()) return refuse_broken(verdict);
  out->layout.micro_batches = schedule.micro_batches;
  if (text || options.order == TRIREME_PIPELINE_ORDER_BEST) {
    add_actions(schedule, &out->layout.facts);
  }
  out->layout.schedule = {made, &schedule};
  out->schedule = std::move(made);
  return Status::success();
}

Status read_tensor(const trireme_parallel_options& options, ParallelWish* out) {
  trireme_tensor_options tensor = TRIREME_TENSOR_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_optional(options.tensor_options, "options.tensor_options", &tensor));
  out->layout.facts.push_back({"options.tensor_options.blocks", std::to_string(tensor.blocks)});
  out->layout.facts.push_back({"options.tensor_options.flags", std::to_string(tensor.flags)});
  out->layout.facts.push_back({"options.tensor_options.row_tile", std::to_string(tensor.row_tile)});
  const std::int32_t ranks = out->layout.sizes[static_cast<std::size_t>(Axis::tensor)];
  if (tensor.blocks != 0 && tensor.blocks < static_cast<std::uint32_t>(ranks)) {
    return invalid_argument("options.tensor_options.blocks is " + std::to_string(tensor.blocks) +
                            ", below the " + std::to_string(ranks) + " ranks along tensor");
  }
  if (ranks == 1 && options.tensor_options == nullptr) return Status::success();
  return read_tensor_options(tensor, "options.tensor_options", &out->tensor.emplace());
}

}  // namespace

Status read_parallel_options(const trireme_parallel_options* caller, std::int32_t world_size,
                             ParallelWish* out) {
  trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_struct(caller, "options", &options));
  TRIREME_RETURN_IF_ERROR(check_zero("options.flags", options.flags));
  parallel::LayoutOptions& layout = out->layout;
  layout.timeout_ns = options.timeout_ns;
  layout.activation_limit_bytes = options.activation_limit_bytes;
  TRIREME_RETURN_IF_ERROR(parallel::find_sizes({options.data, options.shard, options.tensor,
                                                options.pipeline, options.context, options.expert},
                                               world_size, &layout.sizes));
  layout.facts = {
      {"options.schedule_text", options.schedule_text != nullptr ? "set" : "not set"},
      {"options.order", std::to_string(options.order)},
      {"options.placement", std::to_string(options.placement)},
      {"options.stages_per_rank", std::to_string(std::max(options.stages_per_rank, 1u))},
      {"options.costs", options.costs != nullptr ? "set" : "not set"},
      {"options.tensor_options", options.tensor_options != nullptr ? "set" : "not set"}};
  TRIREME_RETURN_IF_ERROR(read_tensor(options, out));
  if (layout.sizes[static_cast<std::size_t>(Axis::pipeline)] > 1) {
    return make_schedule_of(options, out);
  }
  layout.micro_batches = std::max(options.micro_batches, 1u);
  return check_no_pipeline(options);
}

}  // namespace trireme::api
