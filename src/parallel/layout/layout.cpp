#include "parallel/layout/layout.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/subgroup.hpp"
#include "exchange/agreement.hpp"
#include "exchange/storage.hpp"
#include "parallel/layout/stages.hpp"

namespace trireme::parallel {
namespace {

constexpr std::array<const char*, kAxes> kAxisNames = {"data",     "shard",   "tensor",
                                                       "pipeline", "context", "expert"};
constexpr std::uint32_t kReaderAxes =
    TRIREME_PARALLEL_AXIS_DATA | TRIREME_PARALLEL_AXIS_SHARD | TRIREME_PARALLEL_AXIS_EXPERT;

std::vector<sharding::Axis> axes_of(const std::array<std::int32_t, kAxes>& sizes) {
  std::vector<sharding::Axis> axes;
  for (std::size_t i = 0; i < kAxes; ++i) axes.push_back({kAxisNames[i], sizes[i]});
  return axes;
}

// The way of agreements and partitions.
void open_link(const std::shared_ptr<Communicator>& ranks, std::uint64_t timeout_ns,
               strategies::Link* out) {
  out->communicator = ranks;
  out->timeout_ns = timeout_ns == 0 ? ranks->timeout_ns() : timeout_ns;
}

std::vector<sharding::Fact> facts_of(const LayoutOptions& options) {
  std::vector<sharding::Fact> facts;
  for (std::size_t i = 0; i < kAxes; ++i) {
    facts.push_back({std::string("options.") + kAxisNames[i], std::to_string(options.sizes[i])});
  }
  facts.push_back({"options.micro_batches", std::to_string(options.micro_batches)});
  facts.push_back(
      {"options.activation_limit_bytes", std::to_string(options.activation_limit_bytes)});
  facts.insert(facts.end(), options.facts.begin(), options.facts.end());
  return facts;
}

// Every element becomes the largest one of all ranks.
template <class Number>
Status take_largest(const strategies::Link& link, trireme_dtype dtype, std::vector<Number>* all) {
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      strategies::agree(link, "trireme_parallel_partition", {},
                        link.communicator->allocate(all->size() * sizeof(Number), &memory)));
  std::memcpy(memory->data(), all->data(), all->size() * sizeof(Number));
  Operation operation = strategies::in_place(link, link.gathers, OperationKind::all_reduce, dtype,
                                             memory->data(), all->size(), memory);
  operation.reduction = TRIREME_REDUCTION_MAX;
  TRIREME_RETURN_IF_ERROR(link.run(std::move(operation)));
  std::memcpy(all->data(), memory->data(), all->size() * sizeof(Number));
  return Status::success();
}

}  // namespace

Status find_sizes(const std::array<std::int32_t, kAxes>& wanted, std::int32_t world_size,
                  std::array<std::int32_t, kAxes>* out) {
  std::array<std::int32_t, kAxes> sizes = wanted;
  for (std::size_t i = 0; i < kAxes; ++i) {
    if (sizes[i] < TRIREME_PARALLEL_REST) {
      return invalid_argument(std::string("options.") + kAxisNames[i] + " is " +
                              std::to_string(sizes[i]) +
                              ", neither a number of ranks nor TRIREME_PARALLEL_REST");
    }
    // A mesh writes the rest as 0.
    sizes[i] = sizes[i] == TRIREME_PARALLEL_REST ? 0 : std::max(sizes[i], 1);
  }
  if (std::count(sizes.begin(), sizes.end(), 0) > 1) {
    std::string names;
    for (std::size_t i = 0; i < kAxes; ++i) {
      if (sizes[i] == 0)
        names += (names.empty() ? "options." : " and options.") + std::string(kAxisNames[i]);
    }
    return invalid_argument(names + " are TRIREME_PARALLEL_REST, but one axis can have the rest");
  }
  sharding::MeshShape shape;
  TRIREME_RETURN_IF_ERROR(
      sharding::MeshShape::make(axes_of(sizes), TRIREME_MESH_ORDER_BY_NAME, world_size, &shape));
  for (std::size_t i = 0; i < kAxes; ++i) (*out)[i] = shape.axes()[i].size;
  return Status::success();
}

Status ParallelLayout::create(const std::shared_ptr<Communicator>& ranks,
                              const LayoutOptions& options, const Status& own, Deadline deadline,
                              std::shared_ptr<ParallelLayout>* out) {
  strategies::Link link;
  // Nothing is left of a deadline that has passed; 0 would mean another one.
  const auto remaining = [deadline] { return std::max<std::uint64_t>(deadline.remaining_ns(), 1); };
  open_link(ranks, remaining(), &link);
  TRIREME_RETURN_IF_ERROR(
      strategies::agree(link, "trireme_parallel_create", facts_of(options), own));
  LayoutOptions kept = options;
  kept.facts = {};  // a long schedule has many
  std::shared_ptr<ParallelLayout> layout(new ParallelLayout(std::move(kept)));
  ChildOptions child;
  child.timeout_ns = remaining();
  TRIREME_RETURN_IF_ERROR(duplicate(*ranks, child, &layout->all_));
  TRIREME_RETURN_IF_ERROR(Mesh::create(layout->all_, axes_of(options.sizes),
                                       TRIREME_MESH_ORDER_BY_NAME, remaining(), &layout->mesh_));
  const std::vector<std::int32_t> at = layout->shape().coordinates(layout->all_->rank());
  std::copy(at.begin(), at.end(), layout->at_.begin());
  *out = std::move(layout);
  return Status::success();
}

Status ParallelLayout::agree(const char* call, const std::vector<sharding::Fact>& facts,
                             const Status& own, std::uint64_t timeout_ns) const {
  strategies::Link link;
  open_link(all_, timeout_ns, &link);
  return strategies::agree(link, call, facts, own);
}

std::uint32_t ParallelLayout::wide(std::uint32_t axes) const {
  for (std::size_t i = 0; i < kAxes; ++i) {
    if (options_.sizes[i] == 1) axes &= ~(1u << i);
  }
  return axes;
}

std::int32_t ParallelLayout::ranks_along(std::uint32_t axes) const {
  std::int32_t ranks = 1;
  for (std::size_t i = 0; i < kAxes; ++i) {
    if ((axes >> i & 1) != 0) ranks *= options_.sizes[i];
  }
  return ranks;
}

std::uint32_t ParallelLayout::readers() const {
  return static_cast<std::uint32_t>(ranks_along(kReaderAxes));
}

std::uint32_t ParallelLayout::reader() const {
  const std::int32_t shard = coordinate(Axis::data) * size(Axis::shard) + coordinate(Axis::shard);
  return static_cast<std::uint32_t>(shard * size(Axis::expert) + coordinate(Axis::expert));
}

Status ParallelLayout::find_rows(std::uint64_t rows, std::uint32_t micro_batch,
                                 sharding::Range* out) const {
  if (micro_batch >= options_.micro_batches) {
    return invalid_argument("micro_batch is " + std::to_string(micro_batch) + ", but a step has " +
                            std::to_string(options_.micro_batches));
  }
  const std::uint64_t parts = std::uint64_t{readers()} * options_.micro_batches;
  const std::uint64_t part = std::uint64_t{micro_batch} * readers() + reader();
  const auto begin = [&](std::uint64_t number) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>(Wide{number} * rows / parts);
  };
  *out = {begin(part), begin(part + 1) - begin(part)};
  return Status::success();
}

std::uint32_t ParallelLayout::stages() const {
  return options_.schedule == nullptr ? 1 : options_.schedule->stages();
}

Status ParallelLayout::find_stages(std::int32_t pipeline_rank,
                                   std::vector<std::uint32_t>* out) const {
  if (pipeline_rank < 0 || pipeline_rank >= size(Axis::pipeline)) {
    return invalid_argument("pipeline_rank is " + std::to_string(pipeline_rank) + ", not in 0 to " +
                            std::to_string(size(Axis::pipeline) - 1));
  }
  out->clear();
  for (std::uint32_t stage = 0; stage < stages(); ++stage) {
    if (options_.schedule == nullptr ||
        options_.schedule->rank_of[stage] == static_cast<std::uint32_t>(pipeline_rank)) {
      out->push_back(stage);
    }
  }
  return Status::success();
}

Status ParallelLayout::find_stage_rank(std::uint32_t stage, std::int32_t* out) const {
  if (stage >= stages()) {
    return invalid_argument("stage is " + std::to_string(stage) + ", but there are " +
                            std::to_string(stages()));
  }
  std::vector<std::int32_t> at(at_.begin(), at_.end());
  if (options_.schedule != nullptr) {
    at[static_cast<std::size_t>(Axis::pipeline)] =
        static_cast<std::int32_t>(options_.schedule->rank_of[stage]);
  }
  return shape().rank(at, out);
}

Status ParallelLayout::cut(const std::vector<pipeline::LayerCosts>& layers,
                           pipeline::Partition* out) const {
  if (options_.schedule != nullptr) {
    return cut_into_stages(layers, *options_.schedule, options_.activation_limit_bytes, out);
  }
  pipeline::PartitionOptions whole;
  if (options_.activation_limit_bytes != 0) whole.limits = {options_.activation_limit_bytes};
  return pipeline::partition(layers, whole, out);
}

Status ParallelLayout::partition(std::vector<pipeline::LayerCosts> layers, const Status& own,
                                 pipeline::Partition* out) const {
  strategies::Link link;
  open_link(all_, 0, &link);
  const char* const call = "trireme_parallel_partition";
  TRIREME_RETURN_IF_ERROR(
      strategies::agree(link, call, {{"layer_count", std::to_string(layers.size())}}, own));
  std::vector<double> seconds;
  std::vector<std::uint64_t> kept;
  for (const pipeline::LayerCosts& layer : layers) {
    seconds.push_back(layer.seconds);
    kept.push_back(layer.kept_bytes);
  }
  TRIREME_RETURN_IF_ERROR(take_largest(link, TRIREME_DTYPE_F64, &seconds));
  TRIREME_RETURN_IF_ERROR(take_largest(link, TRIREME_DTYPE_U64, &kept));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i] = {seconds[i], 0, kept[i]};
  }
  pipeline::Partition found;
  const Status done = cut(layers, &found);
  std::string cuts;
  for (const std::uint64_t first : found.cuts) cuts.append(" ").append(std::to_string(first));
  TRIREME_RETURN_IF_ERROR(strategies::agree(link, call, {{"cuts", std::move(cuts)}}, done));
  *out = std::move(found);
  return Status::success();
}

}  // namespace trireme::parallel
