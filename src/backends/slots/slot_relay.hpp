// SlotRelay: takes this rank's actions to peers that do not map the segment.
#pragma once

#include <cstdint>

namespace trireme::local {

class SlotRelay {
 public:
  virtual ~SlotRelay() = default;
  // This rank rang the bell of `rank`.
  virtual void ring(int rank) noexcept = 0;
  // This rank has published a collective in that channel; called on the thread that runs it.
  virtual void publish(std::uint32_t channel) noexcept = 0;
  // Whether a rank that waits for peers' publications must call fetch(): else they arrive by
  // themselves, and bells ring.
  virtual bool is_fetched() const noexcept = 0;
  // Brings the arrived publications of a channel. Any thread; never waits. Returns false if there
  // were none.
  virtual bool fetch(std::uint32_t channel) noexcept = 0;
};

}  // namespace trireme::local
