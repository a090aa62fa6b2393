// parallel.h.
#include <trireme/parallel.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/boundary.hpp"
#include "api/child_options.hpp"
#include "api/handles.hpp"
#include "api/model_options.hpp"
#include "api/parallel_options.hpp"
#include "model/model.hpp"
#include "optimizer/counted_rule.hpp"
#include "parallel/layout/layout.hpp"
#include "parallel/layout/stages.hpp"
#include "parallel/pipeline/simulate.hpp"

using namespace trireme;
using parallel::ParallelLayout;

namespace trireme::api {

// A layout and the handles of its communicators. It also keeps the tensor object and the schedule.
class ParallelHandles {
 public:
  ParallelHandles(std::shared_ptr<ParallelLayout> layout, ParallelWish wish,
                  std::shared_ptr<parallel::Tensor> tensor)
      : layout_(std::move(layout)), wish_(std::move(wish)), tensor_(std::move(tensor)) {}
  // Once: what is made before memory runs out ends with the object.
  void open() {
    // First: if one axis or group has all ranks, its failure ends the waits along all, too.
    add(layout_->wide(TRIREME_PARALLEL_GROUP_ALL), layout_->shared_all());
    const auto& axes = layout_->mesh()->axis_communicators();
    for (std::size_t i = 0; i < axes.size(); ++i) add(1u << i, axes[i]);
    add(layout_->wide(TRIREME_PARALLEL_GROUP_GRADIENTS),
        layout_->mesh()->spread(sharding::Contents::all));
    add(layout_->wide(TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS),
        layout_->mesh()->spread(sharding::Contents::experts));
    if (wish_.schedule == nullptr) return;
    const pipeline::Schedule& schedule = wish_.schedule->schedule;
    pipeline::simulate(schedule, wish_.costs, {}, &times_);
    kept_ = parallel::kept_micro_batches(
        schedule)[static_cast<std::size_t>(layout_->coordinate(parallel::Axis::pipeline))];
  }
  ~ParallelHandles() {
    for (auto each = groups_.rbegin(); each != groups_.rend(); ++each) {
      trireme_communicator_destroy(each->handle);  // that of all ranks last
    }
    layout_->mesh()->leave_model_groups();
    layout_->all().leave();
  }
  ParallelHandles(const ParallelHandles&) = delete;
  ParallelHandles& operator=(const ParallelHandles&) = delete;

  const ParallelLayout& layout() const { return *layout_; }
  const std::shared_ptr<PipelineSchedule>& schedule() const { return wish_.schedule; }
  const std::shared_ptr<parallel::Tensor>& tensor() const { return tensor_; }
  const pipeline::Times& times() const { return times_; }
  std::uint64_t kept_micro_batches() const { return kept_; }

  // Null if there is none for these axes.
  trireme_communicator* communicator(std::uint32_t axes) const {
    std::uint32_t wide = layout_->wide(axes);
    // One rank: the communicator of any axis has it alone.
    if (wide == 0) wide = 1u << std::countr_zero(axes);
    const auto found = std::find_if(groups_.begin(), groups_.end(),
                                    [wide](const Group& each) { return each.axes == wide; });
    return found == groups_.end() ? nullptr : found->handle;
  }

 private:
  struct Group {
    std::uint32_t axes;
    trireme_communicator* handle;
  };

  void add(std::uint32_t axes, const std::shared_ptr<Communicator>& ranks) {
    if (axes == 0 || std::any_of(groups_.begin(), groups_.end(),
                                 [axes](const Group& each) { return each.axes == axes; })) {
      return;
    }
    groups_.reserve(groups_.size() + 1);
    groups_.push_back({axes, insert<trireme_communicator>(ranks)});
  }

  const std::shared_ptr<ParallelLayout> layout_;
  const ParallelWish wish_;
  const std::shared_ptr<parallel::Tensor> tensor_;
  std::vector<Group> groups_;
  pipeline::Times times_;
  std::uint64_t kept_ = 1;
};

}  // namespace trireme::api

namespace {

using api::ParallelHandles;
using parallel::Axis;

static_assert(TRIREME_PARALLEL_GROUP_ALL == parallel::kAllAxes);

template <class Body>
trireme_status with_parallel(const char* function, const trireme_parallel* handle,
                             Body body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<ParallelHandles> found;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &found));
    return body(*found, found->layout());
  });
}

Status check_axes(std::uint32_t axes) {
  if (axes != 0 && (axes & ~parallel::kAllAxes) == 0) return Status::success();
  return invalid_argument("axes is " + std::to_string(axes) +
                          ", no sum of TRIREME_PARALLEL_AXIS_*");
}

// "data+tensor".
std::string names_of(const sharding::MeshShape& shape, std::uint32_t axes) {
  std::string names;
  for (std::size_t i = 0; i < parallel::kAxes; ++i) {
    if ((axes >> i & 1) != 0) names += (names.empty() ? "" : "+") + shape.axes()[i].name;
  }
  return names;
}

Status read_layers(const trireme_pipeline_layer_costs* caller, std::uint64_t count,
                   std::vector<pipeline::LayerCosts>* out) {
  constexpr std::uint64_t kMostLayers = 65536;
  if (count > kMostLayers) {
    return invalid_argument("layer_count " + std::to_string(count) + " is above 65536");
  }
  const auto take = [&](const trireme_pipeline_layer_costs& read,
                        const std::string& name) -> Status {
    out->push_back({read.seconds, read.bytes, read.kept_bytes});
    TRIREME_RETURN_IF_ERROR(api::check_zero(name + ".reserved", read.reserved));
    if (read.bytes == 0) return Status::success();
    return invalid_argument(name + ".bytes is " + std::to_string(read.bytes) +
                            ", but must be 0: a parallel object has no limit of parameters");
  };
  TRIREME_RETURN_IF_ERROR(api::read_list(caller, count, "layers", take));
  return pipeline::check_layers(*out);
}

}  // namespace

namespace {

Status create_with_peers(const std::shared_ptr<Communicator>& ranks,
                         const trireme_parallel_options* options, trireme_parallel** out_parallel) {
  api::ParallelWish wish;
  // The peers hear of what is wrong here alone.
  Status own = api::read_parallel_options(options, ranks->world_size(), &wish);
  if (own.ok()) own = api::require(out_parallel, "out_parallel");
  const std::uint64_t timeout_ns =
      wish.layout.timeout_ns == 0 ? ranks->timeout_ns() : wish.layout.timeout_ns;
  const Deadline deadline = Deadline::after(timeout_ns);
  std::shared_ptr<ParallelLayout> layout;
  TRIREME_RETURN_IF_ERROR(ParallelLayout::create(ranks, wish.layout, own, deadline, &layout));
  wish.layout.facts = {};  // the ranks have compared them
  std::shared_ptr<parallel::Tensor> tensor;
  if (wish.tensor.has_value()) {
    const auto& axes = layout->mesh()->axis_communicators();
    TRIREME_RETURN_IF_ERROR(
        layout->agree("trireme_parallel_create", {},
                      parallel::Tensor::create(axes[static_cast<std::size_t>(Axis::tensor)],
                                               *wish.tensor, &tensor),
                      std::max<std::uint64_t>(deadline.remaining_ns(), 1)));
  }
  const auto handles =
      std::make_shared<ParallelHandles>(std::move(layout), std::move(wish), std::move(tensor));
  handles->open();
  *out_parallel = api::insert<trireme_parallel>(handles);
  return Status::success();
}

// Runs a call that all ranks make together. Without memory in the middle of it the group fails.
template <class Body>
Status together(Communicator& ranks, Body body) {
  Status status = Status::success();
  api::hand_out(ranks, [&] { status = body(); });
  return status;
}

}  // namespace

trireme_status trireme_parallel_create(trireme_communicator* communicator,
                                       const trireme_parallel_options* options,
                                       trireme_parallel** out_parallel) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> ranks;
    TRIREME_RETURN_IF_ERROR(api::find_on_host(communicator, &ranks));
    return together(*ranks, [&] { return create_with_peers(ranks, options, out_parallel); });
  });
}

void trireme_parallel_destroy(trireme_parallel* parallel) { api::destroy(parallel); }

trireme_status trireme_parallel_get_info(const trireme_parallel* parallel,
                                         trireme_parallel_info* info) {
  return with_parallel(__func__, parallel,
                       [&](const ParallelHandles& found, const ParallelLayout& layout) -> Status {
                         TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
                         trireme_parallel_info now = TRIREME_PARALLEL_INFO_INIT;
                         now.world_size = layout.shape().world_size();
                         now.rank = layout.all().rank();
                         now.data = layout.size(Axis::data);
                         now.shard = layout.size(Axis::shard);
                         now.tensor = layout.size(Axis::tensor);
                         now.pipeline = layout.size(Axis::pipeline);
                         now.context = layout.size(Axis::context);
                         now.expert = layout.size(Axis::expert);
                         now.data_rank = layout.coordinate(Axis::data);
                         now.shard_rank = layout.coordinate(Axis::shard);
                         now.tensor_rank = layout.coordinate(Axis::tensor);
                         now.pipeline_rank = layout.coordinate(Axis::pipeline);
                         now.context_rank = layout.coordinate(Axis::context);
                         now.expert_rank = layout.coordinate(Axis::expert);
                         now.readers = static_cast<std::int32_t>(layout.readers());
                         now.reader = static_cast<std::int32_t>(layout.reader());
                         now.gradient_ranks = layout.ranks_along(TRIREME_PARALLEL_GROUP_GRADIENTS);
                         now.expert_gradient_ranks =
                             layout.ranks_along(TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS);
                         now.micro_batches = layout.micro_batches();
                         now.stages = layout.stages();
                         std::vector<std::uint32_t> own;
                         TRIREME_RETURN_IF_ERROR(layout.find_stages(now.pipeline_rank, &own));
                         now.own_stages = static_cast<std::uint32_t>(own.size());
                         now.has_first_stage = own.front() == 0 ? 1 : 0;
                         now.has_last_stage = own.back() + 1 == now.stages ? 1 : 0;
                         now.has_tensor = found.tensor() != nullptr ? 1 : 0;
                         now.kept_micro_batches = found.kept_micro_batches();
                         if (found.schedule() != nullptr) {
                           now.order = found.schedule()->order;
                           now.makespan = found.times().makespan;
                           now.span = found.times().span;
                           now.bubble = found.times().bubble();
                         }
                         api::write_info(now, info);
                         return Status::success();
                       });
}

trireme_status trireme_parallel_get_coordinates(const trireme_parallel* parallel, int32_t rank,
                                                int32_t* out_coordinates, uint64_t capacity) {
  return with_parallel(__func__, parallel,
                       [&](const ParallelHandles&, const ParallelLayout& layout) -> Status {
                         TRIREME_RETURN_IF_ERROR(api::require(out_coordinates, "out_coordinates"));
                         TRIREME_RETURN_IF_ERROR(layout.shape().check_rank(rank));
                         if (capacity < parallel::kAxes) {
                           return invalid_argument("capacity is " + std::to_string(capacity) +
                                                   ", below " + std::to_string(parallel::kAxes));
                         }
                         const std::vector<std::int32_t> at = layout.shape().coordinates(rank);
                         std::copy(at.begin(), at.end(), out_coordinates);
                         return Status::success();
                       });
}

trireme_status trireme_parallel_get_rank(const trireme_parallel* parallel,
                                         const int32_t* coordinates, uint64_t count,
                                         int32_t* out_rank) {
  return with_parallel(__func__, parallel,
                       [&](const ParallelHandles&, const ParallelLayout& layout) -> Status {
                         TRIREME_RETURN_IF_ERROR(api::require(coordinates, "coordinates"));
                         TRIREME_RETURN_IF_ERROR(api::require(out_rank, "out_rank"));
                         if (count != parallel::kAxes) {
                           return invalid_argument("count is " + std::to_string(count) + ", not " +
                                                   std::to_string(parallel::kAxes));
                         }
                         return layout.shape().rank({coordinates, coordinates + count}, out_rank);
                       });
}

trireme_status trireme_parallel_get_communicator(const trireme_parallel* parallel, uint32_t axes,
                                                 trireme_communicator** out_communicator) {
  return with_parallel(
      __func__, parallel,
      [&](const ParallelHandles& found, const ParallelLayout& layout) -> Status {
        TRIREME_RETURN_IF_ERROR(check_axes(axes));
        TRIREME_RETURN_IF_ERROR(api::require(out_communicator, "out_communicator"));
        trireme_communicator* const ranks = found.communicator(axes);
        if (ranks == nullptr) {
          return invalid_argument("no communicator was made for " + names_of(layout.shape(), axes) +
                                  "; trireme_parallel_create_communicator() makes one");
        }
        *out_communicator = ranks;
        return Status::success();
      });
}

trireme_status trireme_parallel_create_communicator(const trireme_parallel* parallel, uint32_t axes,
                                                    const trireme_child_options* caller,
                                                    trireme_communicator** out_communicator) {
  return with_parallel(
      __func__, parallel, [&](const ParallelHandles&, const ParallelLayout& layout) -> Status {
        return together(layout.all(), [&]() -> Status {
          ChildOptions options;
          // The peers hear of what is wrong here alone.
          Status own = check_axes(axes);
          if (own.ok()) own = api::read_group_options(caller, &options);
          if (own.ok()) own = api::require(out_communicator, "out_communicator");
          const std::uint64_t timeout_ns =
              options.timeout_ns == 0 ? layout.all().timeout_ns() : options.timeout_ns;
          const Deadline deadline = Deadline::after(timeout_ns);
          TRIREME_RETURN_IF_ERROR(layout.agree("trireme_parallel_create_communicator",
                                               {{"axes", std::to_string(axes)}}, own, timeout_ns));
          // Nothing is left of a deadline that has passed; 0 would mean another one.
          options.timeout_ns = std::max<std::uint64_t>(deadline.remaining_ns(), 1);
          std::vector<std::size_t> which;
          for (std::size_t i = 0; i < parallel::kAxes; ++i) {
            if ((axes >> i & 1) != 0) which.push_back(i);
          }
          std::shared_ptr<Communicator> child;
          TRIREME_RETURN_IF_ERROR(
              layout.mesh()->make_communicator(std::move(which), options, &child));
          *out_communicator = api::insert<trireme_communicator>(std::move(child));
          return Status::success();
        });
      });
}

trireme_status trireme_parallel_create_model(const trireme_parallel* parallel,
                                             trireme_parallel_contents contents,
                                             const trireme_model_options* caller,
                                             trireme_model** out_model) {
  return with_parallel(
      __func__, parallel, [&](const ParallelHandles&, const ParallelLayout& layout) -> Status {
        if (contents != TRIREME_PARALLEL_CONTENTS_COMMON &&
            contents != TRIREME_PARALLEL_CONTENTS_EXPERTS) {
          return invalid_argument("contents is " + std::to_string(contents) +
                                  ", not one of TRIREME_PARALLEL_CONTENTS_*");
        }
        strategies::ModelOptions options;
        TRIREME_RETURN_IF_ERROR(api::read_model_options(caller, &options));
        TRIREME_RETURN_IF_ERROR(api::require(out_model, "out_model"));
        if (contents == TRIREME_PARALLEL_CONTENTS_EXPERTS) {
          options.contents = sharding::Contents::experts;
          if (layout.size(Axis::expert) > 1 && options.gradients != TRIREME_GRADIENTS_SUM) {
            return invalid_argument(
                "options.gradients is average in a model of experts with " +
                std::to_string(layout.size(Axis::expert)) +
                " ranks along expert: it would divide by " +
                std::to_string(layout.ranks_along(TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS)) +
                ", but the rows are those of " +
                std::to_string(layout.ranks_along(TRIREME_PARALLEL_GROUP_GRADIENTS)) +
                " ranks; set TRIREME_GRADIENTS_SUM and scale the gradients");
          }
        }
        std::shared_ptr<strategies::Model> model;
        TRIREME_RETURN_IF_ERROR(strategies::Model::create_on_mesh(
            layout.mesh(), options, strategies::count_planned_rule, &model));
        trireme_model* const handle = api::insert<trireme_model>(model);
        model->take_number();
        *out_model = handle;
        return Status::success();
      });
}

trireme_status trireme_parallel_get_tensor(const trireme_parallel* parallel,
                                           trireme_tensor** out_tensor) {
  return with_parallel(
      __func__, parallel, [&](const ParallelHandles& found, const ParallelLayout&) -> Status {
        TRIREME_RETURN_IF_ERROR(api::require(out_tensor, "out_tensor"));
        if (found.tensor() == nullptr) {
          return invalid_state(
              "there is 1 rank along tensor, and options.tensor_options were NULL: there is no "
              "tensor object");
        }
        *out_tensor = api::insert<trireme_tensor>(found.tensor());
        return Status::success();
      });
}

trireme_status trireme_parallel_get_schedule(const trireme_parallel* parallel,
                                             trireme_pipeline_schedule** out_schedule) {
  return with_parallel(
      __func__, parallel, [&](const ParallelHandles& found, const ParallelLayout&) -> Status {
        TRIREME_RETURN_IF_ERROR(api::require(out_schedule, "out_schedule"));
        if (found.schedule() == nullptr) {
          return invalid_state("there is 1 rank along pipeline: there is no schedule");
        }
        *out_schedule = api::insert<trireme_pipeline_schedule>(found.schedule());
        return Status::success();
      });
}

trireme_status trireme_parallel_get_stages(const trireme_parallel* parallel, int32_t pipeline_rank,
                                           uint32_t* stages, uint64_t capacity,
                                           uint64_t* out_count) {
  return with_parallel(
      __func__, parallel, [&](const ParallelHandles&, const ParallelLayout& layout) -> Status {
        if (capacity > 0) TRIREME_RETURN_IF_ERROR(api::require(stages, "stages"));
        TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
        std::vector<std::uint32_t> found;
        TRIREME_RETURN_IF_ERROR(layout.find_stages(pipeline_rank, &found));
        std::copy_n(found.begin(), std::min<std::uint64_t>(capacity, found.size()), stages);
        *out_count = found.size();
        return Status::success();
      });
}

trireme_status trireme_parallel_get_stage_rank(const trireme_parallel* parallel, uint32_t stage,
                                               int32_t* out_rank) {
  return with_parallel(__func__, parallel,
                       [&](const ParallelHandles&, const ParallelLayout& layout) -> Status {
                         TRIREME_RETURN_IF_ERROR(api::require(out_rank, "out_rank"));
                         return layout.find_stage_rank(stage, out_rank);
                       });
}

trireme_status trireme_parallel_partition(const trireme_parallel* parallel,
                                          const trireme_pipeline_layer_costs* layers,
                                          uint64_t layer_count, uint64_t* cuts, uint64_t cut_count,
                                          double* out_seconds) {
  return with_parallel(
      __func__, parallel, [&](const ParallelHandles&, const ParallelLayout& layout) -> Status {
        pipeline::Partition found;
        TRIREME_RETURN_IF_ERROR(together(layout.all(), [&]() -> Status {
          std::vector<pipeline::LayerCosts> costs;
          // The peers hear of what is wrong here alone.
          Status own = read_layers(layers, layer_count, &costs);
          if (own.ok()) own = api::require(cuts, "cuts");
          if (own.ok() && cut_count != std::uint64_t{layout.stages()} + 1) {
            own = invalid_argument("cut_count is " + std::to_string(cut_count) + ", but " +
                                   std::to_string(layout.stages()) + " stages have " +
                                   std::to_string(layout.stages() + 1) + " cuts");
          }
          return layout.partition(std::move(costs), own, &found);
        }));
        std::copy(found.cuts.begin(), found.cuts.end(), cuts);
        if (out_seconds != nullptr) *out_seconds = found.seconds;
        return Status::success();
      });
}

trireme_status trireme_parallel_get_rows(const trireme_parallel* parallel, uint64_t rows,
                                         uint32_t micro_batch, uint64_t* out_first,
                                         uint64_t* out_count) {
  return with_parallel(__func__, parallel,
                       [&](const ParallelHandles&, const ParallelLayout& layout) -> Status {
                         TRIREME_RETURN_IF_ERROR(api::require(out_first, "out_first"));
                         TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
                         sharding::Range range;
                         TRIREME_RETURN_IF_ERROR(layout.find_rows(rows, micro_batch, &range));
                         *out_first = range.first;
                         *out_count = range.count;
                         return Status::success();
                       });
}
