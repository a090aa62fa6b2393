// CrossedCalls: finds ranks that disagree where calls go in rounds. A small call with a root in a
// cell goes to few ranks. A rank that makes another call sends a slot, which only ranks with such a
// call pass on. So neither may reach a rank that waits. Where some ranks have a slot and others a
// cell, one of those with a cell gets the slot of the rank before it: it finds the difference here.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "backends/slots/group.hpp"
#include "backends/slots/segment.hpp"
#include "platform/status.hpp"

namespace trireme::host {

class CrossedCalls {
 public:
  explicit CrossedCalls(const local::Group& group) : group_(group) {}
  void use(const local::Segment& segment) { segment_ = &segment; }

  // This rank has published a cell at that position, or the slot of a rank has come. MISMATCH: the
  // other one was there before.
  Status note_cell(std::uint32_t channel, std::uint64_t position);
  Status note_slot(std::uint32_t channel, int rank, std::uint64_t position);

 private:
  struct Own {
    std::uint64_t position = 0;
    Fingerprint print;
  };

  Status compare(std::uint32_t channel, int rank, std::uint64_t position, const Own& own) const;

  const local::Group& group_;
  const local::Segment* segment_ = nullptr;
  std::mutex mutex_;  // guards the following
  // This rank's last cells, which it fills again while other threads look at them here.
  std::array<std::array<Own, local::kCells>, local::kCellChannels> own_;
  std::array<std::uint64_t, local::kCellChannels> last_slot_{};  // the last position of any rank
};

}  // namespace trireme::host
