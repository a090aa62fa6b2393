// StageMessage: what one message between two ranks of a pipeline is, and how its header says so.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/extent.hpp"

namespace trireme::parallel {

enum class StageDirection : std::uint32_t { forward = 0, backward = 1 };

// One message: the output of a stage, or the gradient of its input. Or the output of a layer for a
// later one that reads it, or the gradient that this one sends back.
struct StageMessage {
  StageDirection direction = StageDirection::forward;
  bool trains = false;
  std::uint64_t step = 0;
  std::uint32_t stage = 0;  // that made it
  std::uint32_t micro_batch = 0;
  std::uint64_t bytes = 0;  // as planned, the most that are sent
  std::uint32_t lane = 0;
  bool skips = false;        // `stage` is then the number of the layer that is read
  std::uint32_t reader = 0;  // the number of the layer that reads it
};

// The sender's news beside its data.
struct StageNews {
  bool failed = false;          // there are no data
  bool gaps = false;            // a part of a gradient may be unwritten
  strategies::Extent extent{};  // of the data; both sides know that of a gradient
};

// Both sides know what comes next but for the extent of an output. So a receiver compares the rest
// of the header.
struct StageHeader {
  enum : std::uint32_t {
    kFailed = 1,
    kGaps = 2,
    kTrains = 4,
    kShaped = 8,
    kBackward = 16,
    kSkips = 32
  };

  std::uint32_t flags = 0;
  std::uint32_t stage = 0, reader = 0;  // as of the message
  std::uint32_t micro_batch = 0;
  std::uint64_t step = 0;
  std::uint64_t hash = 0;   // of the schedule
  std::uint64_t bytes = 0;  // that are used
  // With kShaped alone some of them are not 0.
  decltype(strategies::Extent::shape) shape{};

  bool operator==(const StageHeader&) const = default;
};
static_assert(sizeof(StageHeader) == 104);

StageHeader header_of(const StageMessage& message, const StageNews& news, std::uint64_t hash);
StageNews news_of(const StageHeader& header);
std::string text_of_header(const StageHeader& header);

}  // namespace trireme::parallel
