#include "backends/frames/goodbyes.hpp"

#include <cstdint>

#include "backends/slots/broadcast_tree.hpp"
#include "backends/slots/spread_tree.hpp"

namespace trireme::host {

bool makes_sense(const local::Group& group, int leaver, const SlotFrames::LastSlots& last) {
  const local::Segment& segment = *group.segment();
  const std::uint32_t channels = segment.layout().has_cells ? local::kCellChannels : 0;
  for (std::uint32_t channel = 0; channel < channels; ++channel) {
    const auto taken = [&](int rank) {
      return segment.lane(channel, rank).position.load(std::memory_order_acquire);
    };
    const std::uint64_t steps = last.steps[channel];
    if (steps < taken(leaver) || steps > taken(group.rank()) + kMostStepsAhead ||
        last.cells[channel] > steps || last.slots[channel] > steps) {
      return false;
    }
  }
  return true;
}

bool may_miss_for_ever(const local::Group& group, int leaver, const SlotFrames::LastSlots& last) {
  const local::SpreadTree tree(leaver, group.world_size());
  for (const std::int32_t rank : tree.between(group.rank())) {
    if (!group.presence().left(rank)) continue;
    for (std::uint32_t channel = 0; channel < local::kCellChannels; ++channel) {
      if (!local::has_come(*group.segment(), channel, rank, last.steps[channel])) return true;
    }
  }
  return false;
}

}  // namespace trireme::host
