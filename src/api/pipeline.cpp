// pipeline.h.
#include <trireme/pipeline.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/pipeline.hpp"
#include "parallel/pipeline/best.hpp"
#include "parallel/pipeline/check.hpp"
#include "parallel/pipeline/draw.hpp"
#include "parallel/pipeline/generate.hpp"
#include "parallel/pipeline/partition.hpp"
#include "parallel/pipeline/simulate.hpp"
#include "parallel/pipeline/text.hpp"

using trireme::invalid_argument;
using trireme::Status;
namespace api = trireme::api;
namespace pipeline = trireme::pipeline;

namespace {

using api::PipelineSchedule;
using pipeline::Schedule;

constexpr std::uint64_t kDefaultEvaluations = 2000;
constexpr std::size_t kDrawingColumns = 240;

static_assert(static_cast<int>(pipeline::Name::kBest) == TRIREME_PIPELINE_ORDER_BEST);
static_assert(static_cast<int>(pipeline::Placement::kList) == TRIREME_PIPELINE_PLACEMENT_LIST);
static_assert(static_cast<int>(pipeline::Rule::kUnit) == TRIREME_PIPELINE_RULE_UNIT);
static_assert(static_cast<int>(pipeline::Objective::kSpan) == TRIREME_PIPELINE_OBJECTIVE_SPAN);

template <class Body>
trireme_status with_schedule(const char* function, const trireme_pipeline_schedule* handle,
                             Body body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<PipelineSchedule> found;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &found));
    return body(*found);
  });
}

// An array of the caller takes what fits; the count tells all.
template <class Item>
Status check_array(const Item* items, std::uint64_t capacity, const char* what) {
  return capacity == 0 ? Status::success() : api::require(items, what);
}

Status read_stage_costs(const trireme_pipeline_stage_costs& read, const std::string& name,
                        pipeline::StageCosts* out) {
  TRIREME_RETURN_IF_ERROR(api::check_zero(name + ".reserved", read.reserved));
  out->forward = read.forward;
  out->input = read.input;
  out->weight = read.weight;
  out->backward = read.backward == 0 ? read.input + read.weight : read.backward;
  out->recompute = read.recompute;
  out->gather = read.gather;
  out->reduce = read.reduce;
  out->kept_bytes = read.kept_bytes;
  out->held_bytes = read.held_bytes;
  out->checkpoint_bytes = read.checkpoint_bytes;
  out->parameter_bytes = read.parameter_bytes;
  out->message_bytes = read.message_bytes;
  return Status::success();
}

Status read_limits(const trireme_pipeline_limits* caller, std::uint32_t ranks,
                   pipeline::Limits* out) {
  trireme_pipeline_limits limits = TRIREME_PIPELINE_LIMITS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_optional(caller, "limits", &limits));
  out->buffers = limits.buffers;
  const std::uint64_t count = limits.bytes == nullptr ? 0 : ranks;
  if (limits.rank_count != count) {
    return invalid_argument("limits.rank_count is " + std::to_string(limits.rank_count) +
                            ", but must be " + std::to_string(count));
  }
  if (count > 0) out->bytes.assign(limits.bytes, limits.bytes + count);
  return Status::success();
}

// A valid schedule with its costs, simulated.
struct Simulation {
  pipeline::Costs costs{};
  pipeline::Limits limits{};
  pipeline::Times times{};
};

Status simulate(const Schedule& schedule, const trireme_pipeline_costs* costs,
                const trireme_pipeline_limits* limits, Simulation* out) {
  TRIREME_RETURN_IF_ERROR(api::read_pipeline_costs(costs, schedule.stages(), &out->costs));
  TRIREME_RETURN_IF_ERROR(read_limits(limits, schedule.ranks, &out->limits));
  if (!out->limits.bytes.empty()) {
    return invalid_argument(
        "limits.bytes must be NULL; trireme_pipeline_schedule_check() looks "
        "at bytes");
  }
  const pipeline::Verdict verdict = pipeline::check(schedule, out->limits, nullptr);
  if (!verdict.holds()) return api::refuse_broken(verdict);
  pipeline::simulate(schedule, out->costs, {.buffers = out->limits.buffers, .record = true},
                     &out->times);
  return Status::success();
}

Status hand_out(std::shared_ptr<PipelineSchedule> made, trireme_pipeline_schedule** out) {
  *out = api::insert<trireme_pipeline_schedule>(std::move(made));
  return Status::success();
}

// The ranks of the stages that the options name; empty if a search may choose.
Status read_placement(const trireme_pipeline_schedule_options& options,
                      std::uint32_t stages_per_rank, std::vector<std::uint32_t>* out) {
  const bool list = options.placement == TRIREME_PIPELINE_PLACEMENT_LIST;
  if (options.placement < 0 || options.placement > TRIREME_PIPELINE_PLACEMENT_LIST) {
    return invalid_argument("options.placement " + std::to_string(options.placement) +
                            " is unknown");
  }
  if (!list && (options.rank_of != nullptr || options.stage_count != 0)) {
    return invalid_argument("options.rank_of and stage_count are of placement LIST alone");
  }
  if (list) {
    TRIREME_RETURN_IF_ERROR(api::require(options.rank_of, "options.rank_of"));
    TRIREME_RETURN_IF_ERROR(
        pipeline::check_sizes(options.ranks, options.stage_count, options.micro_batches));
    if (options.stages_per_rank != 0) {
      return invalid_argument("options.stages_per_rank must be 0 with placement LIST");
    }
    out->assign(options.rank_of, options.rank_of + options.stage_count);
    return pipeline::check_placement(options.ranks, *out);
  }
  if (options.placement == TRIREME_PIPELINE_PLACEMENT_V && stages_per_rank != 2) {
    return invalid_argument("placement V has 2 stages a rank, not " +
                            std::to_string(stages_per_rank));
  }
  if (options.placement != 0) {
    *out = pipeline::place(static_cast<pipeline::Placement>(options.placement), options.ranks,
                           stages_per_rank);
  }
  return Status::success();
}

Status search(const trireme_pipeline_schedule_options& options, std::uint32_t stages_per_rank,
              PipelineSchedule* out) {
  pipeline::BestOptions wanted;
  wanted.ranks = options.ranks;
  wanted.micro_batches = options.micro_batches;
  wanted.seed = options.seed;
  wanted.evaluations = options.evaluations == 0 ? kDefaultEvaluations : options.evaluations;
  if (options.objective < 0 || options.objective > TRIREME_PIPELINE_OBJECTIVE_SPAN) {
    return invalid_argument("options.objective " + std::to_string(options.objective) +
                            " is unknown");
  }
  wanted.objective = static_cast<pipeline::Objective>(options.objective);
  const bool list = options.placement == TRIREME_PIPELINE_PLACEMENT_LIST;
  if (!list) {
    TRIREME_RETURN_IF_ERROR(pipeline::check_sizes(
        options.ranks, std::uint64_t{options.ranks} * stages_per_rank, options.micro_batches));
  }
  TRIREME_RETURN_IF_ERROR(read_placement(options, stages_per_rank, &wanted.rank_of));
  const std::uint32_t stages = list ? options.stage_count : options.ranks * stages_per_rank;
  pipeline::Costs costs;
  TRIREME_RETURN_IF_ERROR(api::read_pipeline_costs(options.costs, stages, &costs));
  TRIREME_RETURN_IF_ERROR(read_limits(options.limits, options.ranks, &wanted.limits));
  pipeline::Best best;
  TRIREME_RETURN_IF_ERROR(pipeline::find_best(wanted, costs, &best));
  *out = {std::move(best.schedule), static_cast<trireme_pipeline_order>(best.origin), best.value,
          best.bound, best.evaluations};
  return Status::success();
}

Status make_named(const trireme_pipeline_schedule_options& options, std::uint32_t stages_per_rank,
                  PipelineSchedule* out) {
  const auto name = static_cast<pipeline::Name>(options.order);
  const auto alone = [](bool unset, const char* what) {
    return unset ? Status::success()
                 : invalid_argument(std::string("options.") + what + " is of order BEST alone");
  };
  TRIREME_RETURN_IF_ERROR(alone(options.costs == nullptr, "costs"));
  TRIREME_RETURN_IF_ERROR(alone(options.limits == nullptr, "limits"));
  TRIREME_RETURN_IF_ERROR(alone(options.objective == 0, "objective"));
  TRIREME_RETURN_IF_ERROR(alone(options.seed == 0, "seed"));
  TRIREME_RETURN_IF_ERROR(alone(options.evaluations == 0, "evaluations"));
  TRIREME_RETURN_IF_ERROR(alone(options.rank_of == nullptr && options.stage_count == 0, "rank_of"));
  const auto own = static_cast<trireme_pipeline_placement>(pipeline::placement_of(name));
  if (options.placement != 0 && options.placement != own) {
    return invalid_argument(std::string(pipeline::name_of(name)) + " has placement " +
                            std::to_string(own) + ", not " + std::to_string(options.placement));
  }
  const pipeline::Shape shape{options.ranks, stages_per_rank, options.micro_batches};
  TRIREME_RETURN_IF_ERROR(pipeline::check_shape(name, shape));
  out->schedule = pipeline::generate(name, shape);
  out->order = options.order;
  return Status::success();
}

}  // namespace

Status api::read_pipeline_costs(const trireme_pipeline_costs* caller, std::uint32_t stages,
                                pipeline::Costs* out) {
  trireme_pipeline_costs costs = TRIREME_PIPELINE_COSTS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "costs", &costs));
  TRIREME_RETURN_IF_ERROR(api::check_zero("costs.reserved", costs.reserved));
  if (costs.stage_count != stages) {
    return invalid_argument("costs.stage_count is " + std::to_string(costs.stage_count) +
                            ", but there are " + std::to_string(stages) + " stages");
  }
  out->overhead = costs.overhead;
  out->latency = costs.latency;
  out->bytes_per_second = costs.bytes_per_second;
  out->stages.clear();
  const auto take = [&](const trireme_pipeline_stage_costs& read,
                        const std::string& name) -> Status {
    out->stages.emplace_back();
    return read_stage_costs(read, name, &out->stages.back());
  };
  TRIREME_RETURN_IF_ERROR(api::read_list(costs.stages, costs.stage_count, "costs.stages", take));
  return pipeline::check_costs(*out, stages);
}

Status api::refuse_broken(const pipeline::Verdict& verdict) {
  return trireme::invalid_state("the schedule cannot run: " + verdict.message);
}

Status api::make_schedule(const trireme_pipeline_schedule_options& options, PipelineSchedule* out) {
  if (options.order < 1 || options.order > pipeline::kNames) {
    return invalid_argument("options.order " + std::to_string(options.order) + " is unknown");
  }
  const std::uint32_t stages_per_rank = std::max(options.stages_per_rank, 1u);
  return options.order == TRIREME_PIPELINE_ORDER_BEST ? search(options, stages_per_rank, out)
                                                      : make_named(options, stages_per_rank, out);
}

const char* trireme_pipeline_order_name(trireme_pipeline_order order) {
  if (order < 1 || order > pipeline::kNames) return "unknown";
  return pipeline::name_of(static_cast<pipeline::Name>(order));
}

trireme_status trireme_pipeline_order_parse(const char* name, trireme_pipeline_order* out_order) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(name, "name"));
    TRIREME_RETURN_IF_ERROR(api::require(out_order, "out_order"));
    pipeline::Name found{};
    if (!pipeline::parse_name(name, &found)) {
      return invalid_argument(
          "no order of a pipeline has this name; names are gpipe, 1f1b, "
          "interleaved, looped-bfs, zb-h1, zb-h2, zbv, v-half, v-min, "
          "dualpipe-v, wave and best");
    }
    *out_order = static_cast<trireme_pipeline_order>(found);
    return Status::success();
  });
}

trireme_status trireme_pipeline_schedule_create(const trireme_pipeline_schedule_options* caller,
                                                trireme_pipeline_schedule** out_schedule) {
  return api::guard(__func__, [&]() -> Status {
    trireme_pipeline_schedule_options options = TRIREME_PIPELINE_SCHEDULE_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.reserved", options.reserved));
    TRIREME_RETURN_IF_ERROR(api::require(out_schedule, "out_schedule"));
    if ((options.flags & ~std::uint32_t{TRIREME_PIPELINE_FLAG_MESSAGES}) != 0) {
      return invalid_argument("options.flags " + std::to_string(options.flags) +
                              " has unknown bits");
    }
    auto made = std::make_shared<PipelineSchedule>();
    TRIREME_RETURN_IF_ERROR(api::make_schedule(options, made.get()));
    if (options.flags != 0) made->schedule = pipeline::with_messages(made->schedule);
    return hand_out(std::move(made), out_schedule);
  });
}

trireme_status trireme_pipeline_schedule_parse(const char* text, uint64_t length,
                                               trireme_pipeline_schedule** out_schedule) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(text, "text"));
    TRIREME_RETURN_IF_ERROR(api::require(out_schedule, "out_schedule"));
    auto made = std::make_shared<PipelineSchedule>();
    TRIREME_RETURN_IF_ERROR(
        pipeline::parse_schedule(std::string_view(text, length), &made->schedule));
    return hand_out(std::move(made), out_schedule);
  });
}

trireme_status trireme_pipeline_schedule_from_actions(uint32_t ranks, uint32_t micro_batches,
                                                      const uint32_t* rank_of, uint32_t stage_count,
                                                      const trireme_pipeline_action* actions,
                                                      const uint64_t* counts,
                                                      trireme_pipeline_schedule** out_schedule) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(pipeline::check_sizes(ranks, stage_count, micro_batches));
    TRIREME_RETURN_IF_ERROR(api::require(rank_of, "rank_of"));
    TRIREME_RETURN_IF_ERROR(api::require(actions, "actions"));
    TRIREME_RETURN_IF_ERROR(api::require(counts, "counts"));
    TRIREME_RETURN_IF_ERROR(api::require(out_schedule, "out_schedule"));
    auto made = std::make_shared<PipelineSchedule>();
    Schedule& schedule = made->schedule;
    schedule.ranks = ranks;
    schedule.micro_batches = micro_batches;
    schedule.rank_of.assign(rank_of, rank_of + stage_count);
    TRIREME_RETURN_IF_ERROR(pipeline::check_placement(ranks, schedule.rank_of));
    schedule.first.assign(1, 0);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::uint64_t before = schedule.first.back();
      if (counts[rank] > 32 * pipeline::kMostCells - before) {
        return invalid_argument("counts[" + std::to_string(rank) + "] is " +
                                std::to_string(counts[rank]) + ", too many actions");
      }
      schedule.first.push_back(before + counts[rank]);
    }
    schedule.actions.assign(actions, actions + schedule.first.back());
    return hand_out(std::move(made), out_schedule);
  });
}

void trireme_pipeline_schedule_destroy(trireme_pipeline_schedule* schedule) {
  api::destroy(schedule);
}

trireme_status trireme_pipeline_schedule_get_info(const trireme_pipeline_schedule* schedule,
                                                  trireme_pipeline_schedule_info* info) {
  return with_schedule(__func__, schedule, [&](const PipelineSchedule& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    trireme_pipeline_schedule_info now = TRIREME_PIPELINE_SCHEDULE_INFO_INIT;
    now.ranks = found.schedule.ranks;
    now.stages = found.schedule.stages();
    now.micro_batches = found.schedule.micro_batches;
    now.action_count = found.schedule.actions.size();
    now.order = found.order;
    now.has_messages = pipeline::has_messages(found.schedule) ? 1 : 0;
    now.value = found.value;
    now.bound = found.bound;
    now.evaluations = found.evaluations;
    api::write_info(now, info);
    return Status::success();
  });
}

trireme_status trireme_pipeline_schedule_placement(const trireme_pipeline_schedule* schedule,
                                                   uint32_t* rank_of, uint64_t capacity,
                                                   uint64_t* out_count) {
  return with_schedule(__func__, schedule, [&](const PipelineSchedule& found) -> Status {
    TRIREME_RETURN_IF_ERROR(check_array(rank_of, capacity, "rank_of"));
    TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
    const std::vector<std::uint32_t>& all = found.schedule.rank_of;
    std::copy_n(all.begin(), std::min<std::uint64_t>(capacity, all.size()), rank_of);
    *out_count = all.size();
    return Status::success();
  });
}

namespace {

Status check_schedule_rank(const Schedule& schedule, std::uint32_t rank) {
  if (rank < schedule.ranks) return Status::success();
  return invalid_argument("rank " + std::to_string(rank) + " is not below " +
                          std::to_string(schedule.ranks));
}

}  // namespace

trireme_status trireme_pipeline_schedule_actions(const trireme_pipeline_schedule* schedule,
                                                 uint32_t rank, trireme_pipeline_action* actions,
                                                 uint64_t capacity, uint64_t* out_count) {
  return with_schedule(__func__, schedule, [&](const PipelineSchedule& found) -> Status {
    TRIREME_RETURN_IF_ERROR(check_schedule_rank(found.schedule, rank));
    TRIREME_RETURN_IF_ERROR(check_array(actions, capacity, "actions"));
    TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
    const auto all = found.schedule.of(rank);
    std::copy_n(all.begin(), std::min<std::uint64_t>(capacity, all.size()), actions);
    *out_count = all.size();
    return Status::success();
  });
}

trireme_status trireme_pipeline_schedule_check(const trireme_pipeline_schedule* schedule,
                                               const trireme_pipeline_costs* costs,
                                               const trireme_pipeline_limits* limits,
                                               trireme_pipeline_check_report* report) {
  return with_schedule(__func__, schedule, [&](const PipelineSchedule& found) -> Status {
    if (report != nullptr) TRIREME_RETURN_IF_ERROR(api::check_info(report, "report"));
    pipeline::Costs read;
    pipeline::Limits most;
    if (costs != nullptr) {
      TRIREME_RETURN_IF_ERROR(api::read_pipeline_costs(costs, found.schedule.stages(), &read));
    }
    TRIREME_RETURN_IF_ERROR(read_limits(limits, found.schedule.ranks, &most));
    if (!most.bytes.empty() && costs == nullptr) {
      return invalid_argument("limits.bytes are set, but costs is NULL");
    }
    const pipeline::Verdict verdict =
        pipeline::check(found.schedule, most, costs == nullptr ? nullptr : &read);
    if (report != nullptr) {
      trireme_pipeline_check_report now = TRIREME_PIPELINE_CHECK_REPORT_INIT;
      now.rule = static_cast<trireme_pipeline_rule>(verdict.rule);
      now.rank = verdict.rank;
      now.index = verdict.index;
      now.action = verdict.action;
      if (verdict.holds() && costs != nullptr) {
        for (const std::uint64_t peak : pipeline::peak_bytes(found.schedule, read)) {
          now.peak_bytes = std::max(now.peak_bytes, peak);
        }
      }
      api::write_info(now, report);
    }
    return verdict.holds() ? Status::success() : api::refuse_broken(verdict);
  });
}

trireme_status trireme_pipeline_schedule_simulate(const trireme_pipeline_schedule* schedule,
                                                  const trireme_pipeline_costs* costs,
                                                  const trireme_pipeline_limits* limits,
                                                  trireme_pipeline_step_report* report,
                                                  trireme_pipeline_rank_times* ranks,
                                                  uint64_t rank_capacity) {
  return with_schedule(__func__, schedule, [&](const PipelineSchedule& found) -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(report, "report"));
    TRIREME_RETURN_IF_ERROR(check_array(ranks, rank_capacity, "ranks"));
    Simulation done;
    TRIREME_RETURN_IF_ERROR(simulate(found.schedule, costs, limits, &done));
    const pipeline::Times& times = done.times;
    trireme_pipeline_step_report now = TRIREME_PIPELINE_STEP_REPORT_INIT;
    now.makespan = times.makespan;
    now.span = times.span;
    now.work = times.work;
    now.idle = times.idle();
    now.bubble = times.bubble();
    now.lower_bound = times.lower_bound;
    now.critical_count = times.critical.size();
    for (std::uint64_t rank = 0; rank < times.ranks.size(); ++rank) {
      const pipeline::RankTimes& own = times.ranks[rank];
      now.peak_bytes = std::max(now.peak_bytes, own.peak_bytes);
      now.sent_bytes += own.sent_bytes;
      if (rank < rank_capacity) {
        ranks[rank] = {own.first_start, own.last_end, own.work, own.peak_bytes, own.sent_bytes};
      }
    }
    api::write_info(now, report);
    return Status::success();
  });
}

trireme_status trireme_pipeline_schedule_times(const trireme_pipeline_schedule* schedule,
                                               const trireme_pipeline_costs* costs,
                                               const trireme_pipeline_limits* limits, uint32_t rank,
                                               double* starts, double* ends, uint64_t capacity,
                                               uint64_t* out_count) {
  return with_schedule(__func__, schedule, [&](const PipelineSchedule& found) -> Status {
    TRIREME_RETURN_IF_ERROR(check_schedule_rank(found.schedule, rank));
    TRIREME_RETURN_IF_ERROR(check_array(starts, capacity, "starts"));
    TRIREME_RETURN_IF_ERROR(check_array(ends, capacity, "ends"));
    TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
    Simulation done;
    TRIREME_RETURN_IF_ERROR(simulate(found.schedule, costs, limits, &done));
    const std::uint64_t all = found.schedule.of(rank).size();
    const std::uint64_t first = found.schedule.first[rank], fit = std::min(capacity, all);
    std::copy_n(done.times.start.begin() + first, fit, starts);
    std::copy_n(done.times.end.begin() + first, fit, ends);
    *out_count = all;
    return Status::success();
  });
}

trireme_status trireme_pipeline_schedule_critical_path(const trireme_pipeline_schedule* schedule,
                                                       const trireme_pipeline_costs* costs,
                                                       const trireme_pipeline_limits* limits,
                                                       trireme_pipeline_critical_step* steps,
                                                       uint64_t capacity, uint64_t* out_count) {
  return with_schedule(__func__, schedule, [&](const PipelineSchedule& found) -> Status {
    TRIREME_RETURN_IF_ERROR(check_array(steps, capacity, "steps"));
    TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
    Simulation done;
    TRIREME_RETURN_IF_ERROR(simulate(found.schedule, costs, limits, &done));
    const std::vector<pipeline::Step>& all = done.times.critical;
    for (std::uint64_t i = 0; i < std::min<std::uint64_t>(capacity, all.size()); ++i) {
      steps[i] = {all[i].rank, all[i].waited ? 1u : 0u, all[i].index};
    }
    *out_count = all.size();
    return Status::success();
  });
}

trireme_status trireme_pipeline_schedule_write(const trireme_pipeline_schedule* schedule,
                                               trireme_pipeline_format format,
                                               const trireme_pipeline_costs* costs, char* text,
                                               uint64_t capacity, uint64_t* out_length) {
  return with_schedule(__func__, schedule, [&](const PipelineSchedule& found) -> Status {
    TRIREME_RETURN_IF_ERROR(check_array(text, capacity, "text"));
    TRIREME_RETURN_IF_ERROR(api::require(out_length, "out_length"));
    if (format < TRIREME_PIPELINE_FORMAT_TEXT || format > TRIREME_PIPELINE_FORMAT_TRACE) {
      return invalid_argument("format " + std::to_string(format) + " is unknown");
    }
    const Schedule& own = found.schedule;
    if (format <= TRIREME_PIPELINE_FORMAT_CSV) {
      if (costs != nullptr) return invalid_argument("costs must be NULL for TEXT and CSV");
      return api::write_text(format == TRIREME_PIPELINE_FORMAT_TEXT ? pipeline::write_text(own)
                                                                    : pipeline::write_csv(own),
                             text, capacity, out_length);
    }
    Simulation done;
    if (costs != nullptr) {
      TRIREME_RETURN_IF_ERROR(simulate(own, costs, nullptr, &done));
    } else {
      const pipeline::Verdict verdict = pipeline::check(own, {}, nullptr);
      if (!verdict.holds()) return api::refuse_broken(verdict);
      done.costs = pipeline::equal_costs(own.stages(), std::max(own.stages() / own.ranks, 1u), 0);
      pipeline::simulate(own, done.costs, {.record = true}, &done.times);
    }
    const auto draw = [&] {
      switch (format) {
        case TRIREME_PIPELINE_FORMAT_DRAWING:
          return pipeline::draw_text(own, done.times, kDrawingColumns);
        case TRIREME_PIPELINE_FORMAT_SVG: return pipeline::draw_svg(own, done.times);
        default: return pipeline::draw_trace(own, done.times);
      }
    };
    return api::write_text(draw(), text, capacity, out_length);
  });
}

trireme_status trireme_partition(const trireme_pipeline_layer_costs* caller_layers,
                                 uint64_t layer_count, const trireme_partition_options* caller,
                                 uint64_t* cuts, uint64_t cut_count, double* out_seconds) {
  return api::guard(__func__, [&]() -> Status {
    trireme_partition_options options = TRIREME_PARTITION_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.reserved", options.reserved));
    TRIREME_RETURN_IF_ERROR(api::require(cuts, "cuts"));
    if ((options.flags & ~std::uint32_t{TRIREME_PARTITION_FLAG_ALLOW_EMPTY}) != 0) {
      return invalid_argument("options.flags " + std::to_string(options.flags) +
                              " has unknown bits");
    }
    if (options.placement < 0 || options.placement > TRIREME_PIPELINE_PLACEMENT_WAVE) {
      return invalid_argument("options.placement " + std::to_string(options.placement) +
                              " must be LOOP, V or WAVE");
    }
    if (layer_count > 65536) {
      return invalid_argument("layer_count " + std::to_string(layer_count) + " is above 65536");
    }
    pipeline::PartitionOptions wanted;
    wanted.ranks = options.ranks;
    wanted.stages_per_rank = std::max(options.stages_per_rank, 1u);
    if (options.placement != 0) {
      wanted.placement = static_cast<pipeline::Placement>(options.placement);
    }
    wanted.allow_empty = options.flags != 0;
    const std::uint64_t stages = std::uint64_t{wanted.ranks} * wanted.stages_per_rank;
    TRIREME_RETURN_IF_ERROR(pipeline::check_sizes(wanted.ranks, stages, 1));
    if (cut_count != stages + 1) {
      return invalid_argument("cut_count is " + std::to_string(cut_count) + ", but " +
                              std::to_string(stages) + " stages have " +
                              std::to_string(stages + 1) + " cuts");
    }
    if (options.limits != nullptr) {
      wanted.limits.assign(options.limits, options.limits + wanted.ranks);
    }
    if (options.in_flight != nullptr) {
      wanted.in_flight.assign(options.in_flight, options.in_flight + wanted.ranks);
    }
    std::vector<pipeline::LayerCosts> layers;
    const auto take = [&](const trireme_pipeline_layer_costs& read,
                          const std::string& name) -> Status {
      layers.push_back({read.seconds, read.bytes, read.kept_bytes});
      return api::check_zero(name + ".reserved", read.reserved);
    };
    TRIREME_RETURN_IF_ERROR(api::read_list(caller_layers, layer_count, "layers", take));
    pipeline::Partition found;
    TRIREME_RETURN_IF_ERROR(pipeline::partition(layers, wanted, &found));
    std::copy(found.cuts.begin(), found.cuts.end(), cuts);
    if (out_seconds != nullptr) *out_seconds = found.seconds;
    return Status::success();
  });
}
