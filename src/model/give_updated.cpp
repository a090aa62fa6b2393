// ShardView: updated parameters go to the ranks that hold copies of them. Parameters in a file come
// from there and go back.
#include <algorithm>
#include <utility>
#include <vector>

#include "model/shard_view.hpp"
#include "model/units/team_gather.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/file_plan.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using sharding::FilePlan;
using sharding::Group;
using sharding::Range;

namespace {

// Gives part `index` of `count` of this rank's part of a group, which lies at `data`.
Status publish(Link& link, const sharding::Layout& layout, std::uint64_t number,
               std::uint64_t count, std::uint64_t index, char* data,
               std::shared_ptr<const void> owner) {
  const Group& group = layout.groups[number];
  const std::uint64_t size = dtype_size(group.dtype);
  // All ranks hold the same elements of a whole group; the replicas hold the same shard.
  const bool among_all = group.shard_ranks == 1;
  const bool in_teams = !among_all && link.replicas == nullptr;
  Communicator& holders = among_all || in_teams ? *link.communicator : *link.replicas;
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
  operation.channel = among_all || in_teams ? link.gathers : 0;
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
  link.given_bytes += sharding::gather_bytes(operation.counts, layout.replica_of(group, me), size);
  if (in_teams) {
    std::vector<TeamPlace> places;
    for (std::uint32_t rank = 0; rank < layout.spread.world_size; ++rank) {
      places.push_back({layout.part_of(group, rank), owned_by(rank).count});
    }
    make_team_gather(&operation, std::move(places), me);
  }
  TRIREME_FAILPOINT("step", "mid_give");
  return link.run(holders, std::move(operation));
}

// All ranks have equally many blocks of a group, and ranks that hold the same elements have the
// same blocks.
Status give_blocks(Peers& peers, const sharding::Layout& layout, ParameterFile& file,
                   std::uint64_t number) {
  TRIREME_RETURN_IF_ERROR(peers.report_disk(file.expect({number})));
  const std::uint64_t count = file.blocks_of(number);
  for (std::uint64_t index = 0; index < count; ++index) {
    ParameterFile::Window window;
    TRIREME_RETURN_IF_ERROR(
        peers.report_disk(file.open_block(number, index, ParameterFile::Access::update, &window)));
    TRIREME_RETURN_IF_ERROR(
        publish(peers.link(), layout, number, count, index, window.data, window.memory));
  }
  return Status::success();
}

}  // namespace

// Ranks that hold the same elements receive the elements that the others have updated.
Status ShardView::give_parameters(Given what) {
  const sharding::Layout& layout = *layout_;
  const bool written = what == Given::written;
  if (written || !layout.spread.whole_state()) {
    for (std::size_t number = 0; number < layout.groups.size(); ++number) {
      const Group& group = layout.groups[number];
      const bool alone = group.owned_counts.size() == 1;
      if (group.elements == 0 || (alone && (device_ == nullptr || !group.gathered))) continue;
      if (!written && group.bucket == sharding::kNone) continue;
      if (device_ != nullptr) TRIREME_RETURN_IF_ERROR(device_->fetch(number, group.owned));
      if (alone) continue;  // peers gather it from here
      TRIREME_RETURN_IF_ERROR(group.in_file ? give_blocks(*this, layout, *parameter_file_, number)
                                            : publish(link_, layout, number, 1, 0,
                                                      parameters_at(group, group.held.first),
                                                      storage_->hold()));
      if (device_ == nullptr) continue;
      const Range before = {group.held.first, group.owned.first - group.held.first};
      const Range after = {group.owned.end(), group.held.end() - group.owned.end()};
      TRIREME_RETURN_IF_ERROR(device_->place(number, before));
      TRIREME_RETURN_IF_ERROR(device_->place(number, after));
    }
  }
  if (parameter_file_ == nullptr) return Status::success();
  TRIREME_RETURN_IF_ERROR(report_disk(close_window()));
  return pool_ != nullptr ? report_disk(pool_->read_first()) : Status::success();
}

}  // namespace trireme::strategies
