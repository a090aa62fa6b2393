// ParallelLayout arranges the ranks of a communicator along six axes. It makes the groups along
// them, and shares out stages, layers and rows.
#pragma once

#include <trireme/parallel.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/mesh.hpp"
#include "parallel/pipeline/partition.hpp"
#include "parallel/pipeline/schedule.hpp"
#include "platform/status.hpp"
#include "sharding/range.hpp"
#include "sharding/registry.hpp"

namespace trireme::parallel {

constexpr std::size_t kAxes = TRIREME_PARALLEL_AXES;
constexpr std::uint32_t kAllAxes = (1u << kAxes) - 1;

// In the order of TRIREME_PARALLEL_AXIS_*.
enum class Axis : std::uint8_t { data, shard, tensor, pipeline, context, expert };

struct LayoutOptions {
  std::array<std::int32_t, kAxes> sizes{};  // 0: 1 rank
  std::uint32_t micro_batches = 1;          // of each reader
  std::uint64_t activation_limit_bytes = 0;
  std::uint64_t timeout_ns = 0;
  // Null without a pipeline. It is valid, for the ranks and micro-batches of these options.
  std::shared_ptr<const pipeline::Schedule> schedule;
  std::vector<sharding::Fact> facts;  // what else all ranks must have in common
};

// The sizes with the rest that one of them gets.
Status find_sizes(const std::array<std::int32_t, kAxes>& wanted, std::int32_t world_size,
                  std::array<std::int32_t, kAxes>* out);

class ParallelLayout {
 public:
  // Collective over `ranks`. `own`: whether the options of this rank are sound; other ranks hear if
  // not. All ranks meet by `deadline`.
  static Status create(const std::shared_ptr<Communicator>& ranks, const LayoutOptions& options,
                       const Status& own, Deadline deadline, std::shared_ptr<ParallelLayout>* out);

  const sharding::MeshShape& shape() const { return mesh_->shape(); }
  const std::shared_ptr<Mesh>& mesh() const { return mesh_; }
  // All ranks. When this group fails, so do those along the axes.
  Communicator& all() const { return *all_; }
  const std::shared_ptr<Communicator>& shared_all() const { return all_; }
  std::int32_t size(Axis axis) const { return options_.sizes[static_cast<std::size_t>(axis)]; }
  std::int32_t coordinate(Axis axis) const { return at_[static_cast<std::size_t>(axis)]; }
  std::uint32_t micro_batches() const { return options_.micro_batches; }

  // `axes` without those of 1 rank.
  std::uint32_t wide(std::uint32_t axes) const;
  // Ranks along all of `axes`.
  std::int32_t ranks_along(std::uint32_t axes) const;

  // Ranks that read rows of their own, and this one's number among them.
  std::uint32_t readers() const;
  std::uint32_t reader() const;
  Status find_rows(std::uint64_t rows, std::uint32_t micro_batch, sharding::Range* out) const;

  std::uint32_t stages() const;
  // Of a coordinate on pipeline, ascending.
  Status find_stages(std::int32_t pipeline_rank, std::vector<std::uint32_t>* out) const;
  Status find_stage_rank(std::uint32_t stage, std::int32_t* out) const;
  // Collective over all ranks. `own`: whether this rank's costs could be read and are sound. If so,
  // there are layers, and they have no bytes of parameters.
  Status partition(std::vector<pipeline::LayerCosts> layers, const Status& own,
                   pipeline::Partition* out) const;

  // Collective over all ranks: whether all of them say the same and have succeeded so far.
  Status agree(const char* call, const std::vector<sharding::Fact>& facts, const Status& own,
               std::uint64_t timeout_ns = 0) const;

 private:
  explicit ParallelLayout(LayoutOptions options) : options_(std::move(options)) {}

  Status cut(const std::vector<pipeline::LayerCosts>& layers, pipeline::Partition* out) const;

  const LayoutOptions options_;
  std::shared_ptr<Communicator> all_;
  std::shared_ptr<Mesh> mesh_;
  std::array<std::int32_t, kAxes> at_{};
};

}  // namespace trireme::parallel
