// Compares a rank's goodbye with what has come of that rank. A goodbye may overtake the rank's
// calls: see SlotFrames::has_all().
#pragma once

#include "backends/frames/slot_frames.hpp"
#include "backends/slots/group.hpp"

namespace trireme::host {

// False: no rank that keeps to the protocol says so. `group` is this rank's.
bool makes_sense(const local::Group& group, int leaver, const SlotFrames::LastSlots& last);

// Whether cells of that rank may never come: a rank between, which would pass them on, has left
// with fewer steps. A rank with as many has passed on all of them.
bool may_miss_for_ever(const local::Group& group, int leaver, const SlotFrames::LastSlots& last);

}  // namespace trireme::host
