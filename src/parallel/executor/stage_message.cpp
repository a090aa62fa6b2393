#include "parallel/executor/stage_message.hpp"

namespace trireme::parallel {

StageHeader header_of(const StageMessage& message, const StageNews& news, std::uint64_t hash) {
  StageHeader header;
  header.flags = (news.failed ? StageHeader::kFailed : 0u) | (news.gaps ? StageHeader::kGaps : 0u) |
                 (message.trains ? StageHeader::kTrains : 0u) |
                 (message.direction == StageDirection::backward ? StageHeader::kBackward : 0u) |
                 (message.skips ? StageHeader::kSkips : 0u);
  header.stage = message.stage;
  header.reader = message.reader;
  header.micro_batch = message.micro_batch;
  header.step = message.step;
  header.hash = hash;
  if (news.failed) return header;
  header.bytes = news.extent.used;
  header.shape = news.extent.shape;
  if (header.shape != StageHeader().shape) header.flags |= StageHeader::kShaped;
  return header;
}

StageNews news_of(const StageHeader& header) {
  return {(header.flags & StageHeader::kFailed) != 0,
          (header.flags & StageHeader::kGaps) != 0,
          {header.bytes, header.shape}};
}

std::string text_of_header(const StageHeader& header) {
  const bool forward = (header.flags & StageHeader::kBackward) == 0;
  const bool trains = (header.flags & StageHeader::kTrains) != 0;
  const std::string stage = std::to_string(header.stage), reader = std::to_string(header.reader);
  std::string text = forward ? "the output" : "the gradient for the input";
  text += " of stage " + stage;
  if ((header.flags & StageHeader::kSkips) != 0) {
    text = forward ? "the output of layer " + stage + " for layer " + reader
                   : "the gradient of layer " + reader + " for the output of layer " + stage;
  }
  return text + " in micro-batch " + std::to_string(header.micro_batch) + " of " +
         (trains ? "step " : "an evaluation after step ") +
         std::to_string(header.step + (trains ? 1 : 0)) + " with " + std::to_string(header.bytes) +
         " bytes";
}

}  // namespace trireme::parallel
