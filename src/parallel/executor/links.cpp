#include "parallel/executor/links.hpp"

#include <cstring>
#include <iterator>
#include <utility>

#include "parallel/executor/plan.hpp"
#include "platform/clock.hpp"
#include "platform/failpoint.hpp"

namespace trireme::parallel {
namespace {

constexpr std::uint64_t kMagic = 0x50495045;  // "PIPE"

// In front of the data of a message.
struct SentHeader {
  std::uint64_t magic = kMagic;
  StageHeader header;
  std::uint64_t unused[2] = {};
};
static_assert(sizeof(SentHeader) == kHeaderBytes);

// A lane's receives have the order of its sends. Micro-batches of a skipping one come in the order
// of their stages, which are no neighbours: each has a tag of its own.
std::uint64_t tag_of(const StageMessage& message) {
  return message.lane + (message.skips ? std::uint64_t{message.micro_batch} << 32 : 0);
}

std::string waiting_for(std::uint32_t rank) {
  return "waiting for rank " + std::to_string(rank) + ": ";
}

}  // namespace

Status StageLinks::fail(trireme_status code, const std::string& text) {
  link_.communicator->fail(code, text);
  static_cast<void>(link_.communicator->failure());  // the peers know it before the call returns
  return Status::failure(code, text);
}

// Names the action. A late message ends the step of all ranks, so the group fails.
Status StageLinks::explain(Status status, const StageMessage& message, const std::string& what) {
  StageNews planned;
  planned.extent.used = message.bytes;
  const std::string text =
      what + text_of_header(header_of(message, planned, hash_)) + ": " + status.message();
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

void StageLinks::begin_pass() {
  if (mail_ != nullptr) mail_->begin_pass();
}

Status StageLinks::send(const StageMessage& message, const StageNews& news, char* data,
                        std::uint32_t to) {
  const StageHeader header = header_of(message, news, hash_);
  TRIREME_FAILPOINT("pipeline", "before_send");
  Sending sending{nullptr, data + header.bytes, message, to};
  if (mail_ != nullptr) {
    Status sent = mail_->send(message, header, data);
    if (!sent.ok()) return explain(std::move(sent), message, "sending ");
    if (header.bytes == 0) return empty_.push_back(std::move(sending)), Status::success();
  } else {
    data -= kHeaderBytes;
    TRIREME_RETURN_IF_ERROR(start(header, message, data, to, &sending.request));
  }
  sending_.insert_or_assign(data, std::move(sending));
  return Status::success();
}

Status StageLinks::start(const StageHeader& header, const StageMessage& message, char* begin,
                         std::uint32_t to, std::shared_ptr<Request>* request) {
  SentHeader sent;
  sent.header = header;
  std::memcpy(begin, &sent, sizeof sent);
  MessageArguments arguments;
  arguments.kind = OperationKind::send;
  arguments.data = begin;
  arguments.count = kHeaderBytes + header.bytes;
  arguments.dtype = TRIREME_DTYPE_BYTES;
  arguments.peer = static_cast<std::int32_t>(to);
  arguments.tag = tag_of(message);
  arguments.owner = owner_;
  Status started = link_.communicator->start_message(arguments, link_.deadline(), request);
  return started.ok() ? started : explain(std::move(started), message, "sending ");
}

Status StageLinks::receive(const StageMessage& message, char* data, std::uint32_t from,
                           StageNews* news) {
  if (mail_ != nullptr) {
    const char* there = nullptr;
    TRIREME_RETURN_IF_ERROR(receive_in_place(message, from, news, &there));
    if (there == nullptr) return Status::success();
    if (news->extent.used > 0) std::memcpy(data, there, news->extent.used);
    return release(message);
  }
  MetMessage met;
  TRIREME_FAILPOINT("pipeline", "before_receive");
  const std::uint64_t started = now_ns();
  Status status = meet(message, data, from, &met);
  link_.exposed_ns += now_ns() - started;
  if (!status.ok()) return explain(std::move(status), message, waiting_for(from));
  SentHeader sent;
  std::memcpy(&sent, data - kHeaderBytes, sizeof sent);
  const char* instead = nullptr;
  if (met.count < kHeaderBytes) {
    instead = "less than a header";
  } else if (sent.magic != kMagic) {
    instead = "bytes that are no message of a pipeline";
  } else if (met.count != kHeaderBytes + sent.header.bytes) {
    instead = "a header of other bytes";
  }
  return compare(sent.header, message, from, instead, news);
}

MessageArguments StageLinks::receive_arguments(const StageMessage& message, char* data,
                                               std::uint32_t from) const {
  MessageArguments arguments;
  arguments.kind = OperationKind::receive;
  arguments.data = data - kHeaderBytes;
  arguments.count = kHeaderBytes + message.bytes;
  arguments.dtype = TRIREME_DTYPE_BYTES;
  arguments.peer = static_cast<std::int32_t>(from);
  arguments.tag = tag_of(message);
  arguments.fit = Message::Fit::up_to;
  arguments.owner = owner_;
  return arguments;
}

// It has no deadline of its own: its receiver does not wait yet.
Status StageLinks::post(const StageMessage& message, char* data, std::uint32_t from) {
  Status started = link_.communicator->start_message(receive_arguments(message, data, from),
                                                     Deadline::at(UINT64_MAX), &posted_[data]);
  return started.ok() ? started : explain(std::move(started), message, "receiving ");
}

Status StageLinks::meet(const StageMessage& message, char* data, std::uint32_t from,
                        MetMessage* met) {
  const auto found = posted_.find(data);
  if (found != posted_.end()) {
    const std::shared_ptr<Request> request = found->second;
    const Status waited = request->wait(link_.deadline());
    if (!waited.ok() && !request->done()) return find_blame(message, data, from, met);
    posted_.erase(found);
    static_cast<void>(request->met(met));
    return request->result();
  }
  return link_.communicator->run_message(receive_arguments(message, data, from), link_.timeout_ns,
                                         met);
}

// The deadline has passed. A wait for one message finds the rank to blame, so posted receives are
// withdrawn before it. Those whose messages have begun to come stay.
Status StageLinks::find_blame(const StageMessage& message, char* data, std::uint32_t from,
                              MetMessage* met) {
  for (auto next = posted_.begin(); next != posted_.end();) {
    next = next->second->cancel().ok() ? posted_.erase(next) : std::next(next);
  }
  if (const auto found = posted_.find(data); found != posted_.end()) {
    Status status = link_.wait(*found->second);
    static_cast<void>(found->second->met(met));
    posted_.erase(found);
    return status;
  }
  Status late =
      link_.communicator->run_message(receive_arguments(message, data, from), kMillisecond, met);
  if (late.code() != TRIREME_ERROR_TIMEOUT || late.details() == nullptr) return late;
  return Status::failure(
             TRIREME_ERROR_TIMEOUT,
             "no message within " + std::to_string(link_.timeout_ns / kMillisecond) + " ms")
      .with_details(*late.details());
}

Status StageLinks::receive_in_place(const StageMessage& message, std::uint32_t from,
                                    StageNews* news, const char** data) {
  StageHeader header;
  TRIREME_FAILPOINT("pipeline", "before_receive");
  Status met = mail_->receive(message, &header, data);
  if (!met.ok()) return explain(std::move(met), message, waiting_for(from));
  const char* const instead = *data == nullptr ? "a place that is not in its memory" : nullptr;
  TRIREME_RETURN_IF_ERROR(compare(header, message, from, instead, news));
  if (!news->failed) return Status::success();
  *data = nullptr;
  return release(message);
}

Status StageLinks::compare(const StageHeader& header, const StageMessage& message,
                           std::uint32_t from, const char* instead, StageNews* news) {
  const strategies::Extent known = news->extent;
  *news = news_of(header);
  StageNews expected = *news;
  // Both sides know the extent of a gradient, and of an output the planned bytes.
  if (message.direction == StageDirection::backward) expected.extent = known;
  if (header.bytes > message.bytes) expected.extent.used = message.bytes;
  const StageHeader wanted = header_of(message, expected, hash_);
  if (instead == nullptr && header == wanted) return Status::success();
  std::string text = "rank " + std::to_string(link_.rank()) + " of the pipeline waits for " +
                     text_of_header(wanted) + ", and rank " + std::to_string(from) + " sends " +
                     (instead == nullptr ? text_of_header(header) : instead);
  if (instead == nullptr && header.hash != hash_) text += ", by another schedule";
  return fail(TRIREME_ERROR_MISMATCH, text);
}

Status StageLinks::finish(const Sending& sending) {
  Status status = Status::success();
  if (sending.request == nullptr) {
    status = mail_->await_taken(sending.message);
  } else if (!sending.request->done() || !sending.request->result().ok()) {
    const std::uint64_t started = now_ns();
    status = link_.wait(*sending.request);
    link_.exposed_ns += now_ns() - started;
  }
  if (status.ok()) return status;
  return explain(std::move(status), sending.message,
                 "rank " + std::to_string(sending.to) + " has not taken ");
}

bool StageLinks::is_free(const char* begin, std::uint64_t bytes) const {
  auto next = sending_.upper_bound(begin);
  if (next != sending_.begin() && std::prev(next)->second.end > begin) --next;
  for (; next != sending_.end() && next->first < begin + bytes; ++next) {
    if (!next->second.request->done()) return false;
  }
  return true;
}

Status StageLinks::claim(const char* begin, std::uint64_t bytes) {
  if (bytes == 0) return Status::success();
  auto next = sending_.upper_bound(begin);
  if (next != sending_.begin() && std::prev(next)->second.end > begin) --next;
  while (next != sending_.end() && next->first < begin + bytes) {
    TRIREME_RETURN_IF_ERROR(finish(next->second));
    next = sending_.erase(next);
  }
  return Status::success();
}

Status StageLinks::drain() {
  for (const auto& [begin, sending] : sending_) TRIREME_RETURN_IF_ERROR(finish(sending));
  for (const Sending& sending : empty_) TRIREME_RETURN_IF_ERROR(finish(sending));
  drop();
  return Status::success();
}

}  // namespace trireme::parallel
