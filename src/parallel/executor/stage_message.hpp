// StageMessage: what one message between two stages of a pipeline is, and how its header says so.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::parallel {

enum class StageDirection : std::uint32_t { forward = 0, backward = 1 };

// One message: the output of a stage, or the gradient of its input.
struct StageMessage {
  StageDirection direction = StageDirection::forward;
  bool trains = false;
  std::uint64_t step = 0;
  std::uint32_t stage = 0;  // that made it
  std::uint32_t micro_batch = 0;
  std::uint64_t bytes = 0;
};

// The sender's news beside its data.
struct StageNews {
  bool failed = false;  // there are no data
  bool gaps = false;    // a part of a gradient may be unwritten
};

// Both sides know what comes next. So a receiver compares the whole header.
struct StageHeader {
  enum : std::uint32_t { kFailed = 1, kGaps = 2, kTrains = 4 };

  std::uint32_t flags = 0;
  std::uint32_t direction = 0;
  std::uint32_t stage = 0;
  std::uint32_t micro_batch = 0;
  std::uint64_t step = 0;
  std::uint64_t hash = 0;  // of the schedule
  std::uint64_t bytes = 0;

  bool operator==(const StageHeader&) const = default;
};
static_assert(sizeof(StageHeader) == 40);

StageHeader header_of(const StageMessage& message, const StageNews& news, std::uint64_t hash);
StageNews news_of(const StageHeader& header);
std::string text_of_header(const StageHeader& header);

}  // namespace trireme::parallel
