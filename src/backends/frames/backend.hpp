// HostBackend: ranks whose bytes a transport carries in frames. Ranks compare what they call, and
// exchange what is small, through slots that the carrier takes to the peers; larger collectives are
// made of messages, or run by an engine where there is one.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "backends/backend.hpp"
#include "backends/engine.hpp"
#include "backends/frames/carrier.hpp"
#include "backends/slots/collective.hpp"
#include "backends/slots/memory.hpp"
#include "backends/slots/messages.hpp"

namespace trireme::host {

class HostBackend final : public Backend {
 public:
  // What is under it.
  struct Ways {
    trireme_transport transport;
    std::shared_ptr<Engine> engine;  // may be null; goes when the transport is released, before it
    std::string description;         // "host (transport)"
    // Ours alone: receive() may answer PEER_LOST for a rank whose last frame was taken, and this
    // says why; for rank -1, why the group fails. Null: the transport knows no losses.
    std::function<Status(int)> loss;
    // Ours alone: waits, but not long, until the system has what send() took, and the process may end.
    std::function<void()> settle = nullptr;
    // Ours alone: who gives no sign of life.
    std::function<std::vector<std::int32_t>()> silent = nullptr;
    // Opens a place where a group of some of the ranks can meet, until it is let go of; "ADDRESS:PORT".
    // Null: ranks cannot decide anything.
    std::function<Status(std::string* place, std::shared_ptr<const void>* out)> open_meeting =
        nullptr;
  };
  // group_name: what all ranks of the group call it. `ways` is kept if this succeeds.
  static Status join(const GroupOptions& options, const std::string& group_name, Ways ways,
                     std::unique_ptr<Backend>* out);
  ~HostBackend() override;

  std::string description() const override;
  Status wait_ready(Deadline deadline) override;
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline) override;
  Brief start_brief(const PlainOperation& operation, std::uint64_t sequence,
                    BriefTime* out_time) noexcept override;
  Status finish_brief(const Operation& operation, std::uint64_t sequence,
                      Deadline deadline) override;
  Status know_natives(Deadline deadline) override;
  bool has_native(const Operation& operation) const override;
  bool prefers_native(const Operation& operation) const override;
  Status agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
               std::vector<bool>* gives) override;
  void post(Message& message) override { set_of(message).post(message); }
  void progress() override {
    messages_.progress();
    algorithms_.progress();
    if (group_.failed()) carrier_->spread_failure();
  }
  bool withdraw(Message& message) override { return set_of(message).withdraw(message); }
  std::uint32_t activity() const override { return group_.activity(); }
  void wait_activity(std::uint32_t seen, Deadline deadline) override {
    group_.wait_activity(seen, deadline);
  }
  void wake_waiters() override { group_.wake_waiters(); }
  Status allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) override {
    return buffers_->allocate(bytes, out);
  }
  Status decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out) override;
  bool counts_as_lost(int rank) const override {
    return carrier_->decisions().counts_as_lost(rank);
  }
  void stop_deciding() noexcept override { carrier_->decisions().stop(); }
  void fail(const Status& status) noexcept override { group_.fail(status); }
  Status failure() const override { return after_failure(group_.failure()); }
  Status shared_failure() const override { return after_failure(group_.shared_failure()); }
  void on_end(std::shared_ptr<const EndListener> listener) override {
    carrier_->on_end(std::move(listener));
  }
  TrafficCounters traffic() const override;
  std::vector<std::int32_t> awaited(std::uint32_t channel) const override {
    return group_.awaited(channel);
  }
  std::vector<LastCalls> last_calls() const override { return group_.last_calls(); }

 private:
  HostBackend(const GroupOptions& options, std::shared_ptr<Carrier> carrier, Ways ways);
  local::Messages& set_of(const Message& message) {
    return message.context == 0 ? messages_ : algorithms_;
  }
  // What a call answers.
  Status after_failure(Status status) const {
    if (!status.ok() && group_.failed()) carrier_->spread_failure();
    return status;
  }

  const std::shared_ptr<Carrier> carrier_;
  const std::string description_;
  const std::function<void()> settle_;
  const std::function<Status(std::string*, std::shared_ptr<const void>*)> open_meeting_;
  local::Group& group_;
  const std::shared_ptr<local::Buffers> buffers_;
  local::Collectives collectives_;
  local::Messages messages_;
  local::Messages algorithms_;
  std::atomic<bool> ready_{false};
};

}  // namespace trireme::host
