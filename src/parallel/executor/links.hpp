// StageLinks: the messages between the stages of a pipeline. Each has a header of 64 bytes that
// describes it. Both sides know what comes next; a header that does not fit is an error on both.
// Any message may say instead that its sender has failed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "parallel/pipeline/schedule.hpp"
#include "platform/status.hpp"

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

class StageLinks {
 public:
  // `link`: the group of the pipeline, whose messages are these alone.
  explicit StageLinks(strategies::Link& link) : link_(link) {}

  // Header and data lie in `owner`.
  void use(std::shared_ptr<const void> owner) { owner_ = std::move(owner); }
  // Of the schedule; two ranks with different ones do not understand each other.
  void set_hash(std::uint64_t hash) { hash_ = hash; }

  // Starts to send. The header goes in front of `data`; both stay as they are until claim().
  Status send(const StageMessage& message, const StageNews& news, char* data, std::uint32_t to);
  // Into `data`, and the header in front of it.
  Status receive(const StageMessage& message, char* data, std::uint32_t from, StageNews* news);
  // Waits until no message is read from these bytes.
  Status claim(const char* begin, std::uint64_t bytes);
  // Waits for all messages.
  Status drain();
  // After a failure: what is under way ends by itself.
  void drop() { sending_.clear(); }

 private:
  struct Sending {
    std::shared_ptr<Request> request;
    const char* begin = nullptr;
    const char* end = nullptr;
    StageMessage message;
    std::uint32_t to = 0;
  };

  Status finish(const Sending& sending);
  // Fails the group: no rank may wait for this one.
  Status fail(trireme_status code, const std::string& text);
  Status explain(Status status, const StageMessage& message, const std::string& what);

  strategies::Link& link_;
  std::shared_ptr<const void> owner_;
  std::uint64_t hash_ = 0;
  std::vector<Sending> sending_;
};

}  // namespace trireme::parallel
