#include "backends/frames/crossed_calls.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "backends/slots/prints.hpp"
#include "platform/names.hpp"

namespace trireme::host {

Status CrossedCalls::note_cell(std::uint32_t channel, std::uint64_t position) {
  const std::lock_guard lock(mutex_);
  Own& own = own_[channel][position % local::kCells];
  own = {position, local::print_in(segment_->cell(channel, group_.rank(), position))};
  if (last_slot_[channel] < position) return Status::success();
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    TRIREME_RETURN_IF_ERROR(compare(channel, rank, position, own));
  }
  return Status::success();
}

Status CrossedCalls::note_slot(std::uint32_t channel, int rank, std::uint64_t position) {
  const std::lock_guard lock(mutex_);
  last_slot_[channel] = std::max(last_slot_[channel], position);
  const Own& own = own_[channel][position % local::kCells];
  return own.position == position ? compare(channel, rank, position, own) : Status::success();
}

// No call is both: a slot and a cell at one position are different calls.
Status CrossedCalls::compare(std::uint32_t channel, int rank, std::uint64_t position,
                             const Own& own) const {
  const local::Slot* const slot = segment_->lane(channel, rank).slot_at(position);
  if (slot == nullptr) return Status::success();
  std::vector<CalledBy> prints{{group_.rank(), own.print}, {rank, local::print_in(*slot)}};
  if (rank < group_.rank()) std::swap(prints[0], prints[1]);
  return compare_fingerprints(prints, operation_name(static_cast<OperationKind>(own.print.kind)),
                              own.print.sequence, group_.name());
}

}  // namespace trireme::host
