// Optimizer: parameters that were updated go to the ranks that hold copies of them, and those that lie
// in a file come from there and go back.
#include <algorithm>
#include <utility>
#include <vector>

#include "model/units/team_gather.hpp"
#include "optimizer/optimizer.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/file_plan.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::FilePlan;
using sharding::Group;
using sharding::Range;

Status Optimizer::with_windows(const Piece& piece, ParameterFile::Access access,
                               const std::function<Status(const Piece& part)>& act) const {
  const Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  const sharding::Parameter& parameter = model.registry_.parameters()[piece.parameter];
  const std::uint64_t first = layout.first_in_group(parameter) + piece.first;
  Status acted = Status::success();
  TRIREME_RETURN_IF_ERROR(model.for_each_stretch(
      layout.group_of[parameter.unit], {first, piece.count}, access, [&](char* data, Range range) {
        if (!acted.ok()) return;
        Piece part = optimizers::part_of(piece, range.first - first, range.count);
        (piece.rounded_dtype != 0 ? part.rounded : part.parameters) = data;
        acted = act(part);
      }));
  return acted;
}

Status Optimizer::expect_parameters() const {
  ParameterFile* const file = model_->parameter_file_.get();
  return file != nullptr ? file->expect_updates() : Status::success();
}

// Ranks that hold the same elements get those that the others of them updated.
Status Optimizer::give_parameters(Given what) {
  Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  const bool written = what == Given::written;
  if (written || !layout.spread.whole_state()) {
    for (std::size_t number = 0; number < layout.groups.size(); ++number) {
      const Group& group = layout.groups[number];
      if (group.owned_counts.size() == 1 || group.elements == 0) continue;
      if (!written && group.bucket == sharding::kNone) continue;
      TRIREME_RETURN_IF_ERROR(group.in_file ? give_blocks(number) : give_group(number));
    }
  }
  if (model.parameter_file_ == nullptr) return Status::success();
  TRIREME_RETURN_IF_ERROR(model.tell_disk(model.parameter_file_->close_window()));
  return model.pool_ != nullptr ? model.tell_disk(model.pool_->read_first()) : Status::success();
}

Status Optimizer::give_group(std::uint64_t number) {
  const Model& model = *model_;
  const Group& group = model.layout_->groups[number];
  char* const data = model.storage_->parameters.data() + group.offset +
                     (group.held.first - group.kept.first) * dtype_size(group.dtype);
  return give(number, 1, 0, data, model.storage_->hold());
}

// All ranks have as many blocks of a group, and those that hold the same elements have the same.
Status Optimizer::give_blocks(std::uint64_t number) {
  Model& model = *model_;
  ParameterFile& file = *model.parameter_file_;
  TRIREME_RETURN_IF_ERROR(model.tell_disk(file.expect({number})));
  const std::uint64_t count = file.blocks_of(number);
  for (std::uint64_t index = 0; index < count; ++index) {
    ParameterFile::Window window;
    TRIREME_RETURN_IF_ERROR(
        model.tell_disk(file.open_block(number, index, ParameterFile::Access::update, &window)));
    TRIREME_RETURN_IF_ERROR(give(number, count, index, window.data, window.memory));
  }
  return Status::success();
}

// Of what is held of a group, part `index` of `count`, which lies at `data`.
Status Optimizer::give(std::uint64_t number, std::uint64_t count, std::uint64_t index, char* data,
                       std::shared_ptr<const void> owner) {
  Model& model = *model_;
  const sharding::Layout& layout = *model.layout_;
  const Group& group = layout.groups[number];
  const std::uint64_t size = dtype_size(group.dtype);
  // Of a whole group all ranks hold the same elements, of a shard the replicas.
  const bool among_all = group.shard_ranks == 1;
  const bool in_teams = !among_all && model.link_.replicas == nullptr;
  Communicator& holders = among_all || in_teams ? *model.link_.communicator : *model.link_.replicas;
  const auto part_of = [&](std::uint32_t rank) {
    return FilePlan::range_of(layout, group, count, index, rank);
  };
  const auto owned_by = [&](std::uint32_t rank) {
    const Range owned = layout.owned_by(group, rank);
    return intersect({owned.first - layout.held_by(group, rank).first, owned.count}, part_of(rank));
  };
  const std::uint32_t me = layout.spread.rank;
  const Range part = part_of(me), own = owned_by(me);
  Operation operation;
  operation.channel = among_all || in_teams ? model.link_.gathers : 0;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = group.dtype;
  operation.send = own.count > 0 ? data + (own.first - part.first) * size : data;
  operation.receive = data;
  operation.count = part.count;
  std::uint64_t first = 0;  // of the next replica's
  for (const std::uint64_t owned : group.owned_counts) {
    operation.counts.push_back(intersect({first, owned}, part).count);
    first += owned;
  }
  operation.agreement = number;
  operation.agreement_name = "group of units";
  operation.owner = std::move(owner);
  model.link_.given_bytes +=
      sharding::gather_bytes(operation.counts, layout.replica_of(group, me), size);
  if (in_teams) {
    std::vector<TeamPlace> places;
    for (std::uint32_t rank = 0; rank < layout.spread.world_size; ++rank) {
      places.push_back({layout.part_of(group, rank), owned_by(rank).count});
    }
    make_team_gather(&operation, std::move(places), me);
  }
  TRIREME_FAILPOINT("step", "mid_give");
  return model.link_.run(holders, std::move(operation));
}

}  // namespace trireme::strategies
