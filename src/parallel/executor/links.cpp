#include "parallel/executor/links.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "parallel/executor/plan.hpp"
#include "platform/clock.hpp"
#include "platform/failpoint.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint32_t kMagic = 0x50495045;  // "PIPE"
enum : std::uint32_t { kFailed = 1, kGaps = 2, kTrains = 4 };

struct StageHeader {
  std::uint32_t magic = kMagic;
  std::uint32_t flags = 0;
  std::uint32_t direction = 0;
  std::uint32_t stage = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t reserved = 0;
  std::uint64_t step = 0;
  std::uint64_t hash = 0;
  std::uint64_t bytes = 0;
  std::uint64_t unused[2] = {};
};
static_assert(sizeof(StageHeader) == kHeaderBytes);

StageHeader header_of(const StageMessage& message, const StageNews& news, std::uint64_t hash) {
  StageHeader header;
  header.flags =
      (news.failed ? kFailed : 0u) | (news.gaps ? kGaps : 0u) | (message.trains ? kTrains : 0u);
  header.direction = static_cast<std::uint32_t>(message.direction);
  header.stage = message.stage;
  header.micro_batch = message.micro_batch;
  header.step = message.step;
  header.hash = hash;
  header.bytes = news.failed ? 0 : message.bytes;
  return header;
}

std::string text_of_header(const StageHeader& header) {
  if (header.magic != kMagic) return "bytes that are no message of a pipeline";
  const bool forward = header.direction == static_cast<std::uint32_t>(StageDirection::forward);
  return std::string(forward ? "the output" : "the gradient for the input") + " of stage " +
         std::to_string(header.stage) + " in micro-batch " + std::to_string(header.micro_batch) +
         " of " + ((header.flags & kTrains) != 0 ? "step " : "an evaluation after step ") +
         std::to_string(header.step + ((header.flags & kTrains) != 0 ? 1 : 0)) + " with " +
         std::to_string(header.bytes) + " bytes";
}

std::uint64_t tag_of(const StageMessage& message) {
  return std::uint64_t{message.stage} * 2 + static_cast<std::uint64_t>(message.direction);
}

}  // namespace

Status StageLinks::fail(trireme_status code, const std::string& text) {
  link_.communicator->fail(code, text);
  static_cast<void>(link_.communicator->failure());  // the peers know it before the call returns
  return Status::failure(code, text);
}

// Names the action. A late message ends the step of all ranks, so the group fails.
Status StageLinks::explain(Status status, const StageMessage& message, const std::string& what) {
  if (status.ok()) return status;
  const std::string text =
      what + text_of_header(header_of(message, {}, hash_)) + ": " + status.message();
  if (status.code() == TRIREME_ERROR_TIMEOUT) {
    const FailureDetails* const details = status.details();
    link_.communicator->fail(status.code(), text);
    static_cast<void>(link_.communicator->failure());
    Status late = Status::failure(status.code(), text);
    return details == nullptr ? std::move(late) : std::move(late).with_details(*details);
  }
  Status named = Status::failure(status.code(), text);
  return status.details() == nullptr ? std::move(named)
                                     : std::move(named).with_details(*status.details());
}

Status StageLinks::send(const StageMessage& message, const StageNews& news, char* data,
                        std::uint32_t to) {
  const StageHeader header = header_of(message, news, hash_);
  char* const begin = data - kHeaderBytes;
  std::memcpy(begin, &header, sizeof header);
  MessageArguments arguments;
  arguments.kind = OperationKind::send;
  arguments.data = begin;
  arguments.count = kHeaderBytes + header.bytes;
  arguments.dtype = TRIREME_DTYPE_BYTES;
  arguments.peer = static_cast<std::int32_t>(to);
  arguments.tag = tag_of(message);
  arguments.owner = owner_;
  Sending sending{nullptr, begin, begin + arguments.count, message, to};
  TRIREME_FAILPOINT("pipeline", "before_send");
  TRIREME_RETURN_IF_ERROR(
      explain(link_.communicator->start_message(arguments, link_.deadline(), &sending.request),
              message, "sending "));
  sending_.push_back(std::move(sending));
  return Status::success();
}

Status StageLinks::receive(const StageMessage& message, char* data, std::uint32_t from,
                           StageNews* news) {
  char* const begin = data - kHeaderBytes;
  MessageArguments arguments;
  arguments.kind = OperationKind::receive;
  arguments.data = begin;
  arguments.count = kHeaderBytes + message.bytes;
  arguments.dtype = TRIREME_DTYPE_BYTES;
  arguments.peer = static_cast<std::int32_t>(from);
  arguments.tag = tag_of(message);
  arguments.fit = Message::Fit::up_to;
  arguments.owner = owner_;
  MetMessage met;
  TRIREME_FAILPOINT("pipeline", "before_receive");
  const std::uint64_t started = now_ns();
  Status status = link_.communicator->run_message(arguments, link_.timeout_ns, &met);
  link_.exposed_ns += now_ns() - started;
  TRIREME_RETURN_IF_ERROR(
      explain(std::move(status), message, "waiting for rank " + std::to_string(from) + ": "));
  StageHeader header;
  std::memcpy(&header, begin, sizeof header);
  news->failed = met.count >= kHeaderBytes && (header.flags & kFailed) != 0;
  news->gaps = (header.flags & kGaps) != 0;
  const StageHeader wanted = header_of(message, *news, hash_);
  if (met.count == kHeaderBytes + wanted.bytes &&
      std::memcmp(&header, &wanted, sizeof header) == 0) {
    return Status::success();
  }
  std::string text = "rank " + std::to_string(link_.rank()) + " of the pipeline waits for " +
                     text_of_header(wanted) + ", and rank " + std::to_string(from) + " sends " +
                     (met.count < kHeaderBytes ? "less than a header" : text_of_header(header));
  if (header.magic == kMagic && header.hash != hash_) text += ", by another schedule";
  return fail(TRIREME_ERROR_MISMATCH, text);
}

Status StageLinks::finish(const Sending& sending) {
  if (sending.request->done() && sending.request->result().ok()) return Status::success();
  const std::uint64_t started = now_ns();
  Status status = link_.wait(*sending.request);
  link_.exposed_ns += now_ns() - started;
  return explain(std::move(status), sending.message,
                 "rank " + std::to_string(sending.to) + " has not taken ");
}

Status StageLinks::claim(const char* begin, std::uint64_t bytes) {
  for (std::size_t i = 0; i < sending_.size();) {
    const bool overlaps = begin < sending_[i].end && sending_[i].begin < begin + bytes;
    if (!overlaps && !sending_[i].request->done()) {
      ++i;
      continue;
    }
    TRIREME_RETURN_IF_ERROR(finish(sending_[i]));
    sending_.erase(sending_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return Status::success();
}

Status StageLinks::drain() {
  for (const Sending& sending : sending_) TRIREME_RETURN_IF_ERROR(finish(sending));
  sending_.clear();
  return Status::success();
}

}  // namespace trireme::parallel
