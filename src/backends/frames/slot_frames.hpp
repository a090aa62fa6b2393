// SlotFrames: turns the slots that a rank publishes into frames, and frames of peers into their
// slots. The engine sends these frames where it carries slots, else the link sends them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backends/engine.hpp"
#include "backends/frames/frame.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/segment.hpp"

namespace trireme::host {

class SlotFrames {
 public:
  // `engine`: null without.
  SlotFrames(local::Group& group, Engine* engine)
      : group_(group), engine_(engine), carries_(engine != nullptr && engine->carries_slots()) {}
  void use(local::Segment& segment) { segment_ = &segment; }

  // Whether the engine carries slots, and how many channels it carries, from 0 on.
  bool engine_carries() const { return carries_; }
  std::uint32_t carried_channels() const { return carries_ ? engine_->channels() : 0; }
  // By carried channel: how many slots this rank has published.
  using LastSlots = std::array<std::uint64_t, kChannels>;
  LastSlots last() const;

  // Writes the bytes after the header of a frame. bytes_of() is their number.
  static std::size_t bytes_of(const local::Slot& slot) { return sizeof(Call) + slot.carried; }
  static void write(const local::Slot& slot, std::byte* to);
  // Sends the last slot of a carried channel by the engine.
  Status publish(std::uint32_t channel);
  // Takes the slot of a peer out of its frame. CORRUPT if the frame makes no sense.
  Status take(int from, const FrameHeader& header, const std::byte* rest, std::uint64_t bytes);
  // Called when a peer has published a slot or left. A rank inside the engine compares no calls,
  // and may wait there for ranks that never come. It finds the reason by itself: see
  // Run::explain().
  void end_hopeless(int from) noexcept;

 private:
  local::Group& group_;
  Engine* const engine_;
  const bool carries_;
  local::Segment* segment_ = nullptr;
};

}  // namespace trireme::host
